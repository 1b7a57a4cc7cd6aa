"""The reference pages under docs/, made of what is registered: ``python -m spacy project run reference``.

`tests/test_reference_pages.py` fails where a name is missing.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo, OptionInfo

from spacy_crf.cli import app
from spacy_crf.errors import Errors, Warnings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # a dependency of pytest there

ROOT = Path(__file__).parents[1]
_MADE = "Made by `python -m spacy project run reference`."


def main() -> None:
    for name, page in pages().items():
        (ROOT / "docs" / f"{name}.md").write_text(page, encoding="utf8")


def pages() -> dict[str, str]:
    return {
        "reference_registry": f"# Registered names\n\n{_MADE} What each setting means says the docstring.\n{_registry()}",
        "reference_cli": f"# Commands and their options\n\n{_MADE} [The command line](command_line.md) says more.\n{_cli()}",
        "reference_errors": f"# Errors and warnings\n\n{_MADE} Words in braces are filled in.\n{_errors()}",
    }


# --------------------------------------------------------------------------------------------------------- registry


def entry_points() -> Iterator[tuple[str, str, str]]:
    """Group, name and place of all that is registered for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    for group, names in project["entry-points"].items():
        for name, place in names.items():
            yield group, name, place


def _registry() -> str:
    rows, text = {}, ""
    for group, name, place in entry_points():
        module, _, attribute = place.partition(":")
        found = getattr(importlib.import_module(module), attribute)
        if group != "spacy_cli":
            rows.setdefault(group, []).append((f"`{name}`", _summary(found), _parameters(found)))
    for group, of_group in rows.items():
        text += f"\n## {group.partition('_')[2]}\n\n" + _table(("name", "what it is", "settings"), of_group)
    return text


def _summary(found: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    first = re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0].removesuffix(":").removeprefix("Construct a ")
    return re.sub(r" \(``spacy_crf\.\w+\.v\d``\)", "", first)


def _parameters(found: Any) -> str:
    names = [name for name in inspect.signature(found).parameters if name not in ("nlp", "name", "self")]
    return " ".join(f"`{name}`" for name in names)


# ---------------------------------------------------------------------------------------------------------- commands


def commands() -> dict[str, Callable]:
    """The function of each command, which says by its signature what the command takes."""
    return {command.name: command.callback for command in sorted(app.registered_commands, key=lambda each: each.name)}


def _cli() -> str:
    text = ""
    for name, command in commands().items():
        usage, options = [name], []
        hints = get_type_hints(command, include_extras=True)
        for parameter in inspect.signature(command).parameters.values():
            kind, *told = get_args(hints[parameter.name]) or (hints[parameter.name],)
            if told and isinstance(told[0], ArgumentInfo):
                required = parameter.default is parameter.empty
                usage.append(parameter.name.upper() if required else f"[{parameter.name.upper()}]")
            elif told:
                options.append(_option(parameter, kind, told[0]))
        text += f"\n## `{' '.join(usage)}`\n\n{' '.join(inspect.getdoc(command).split())}\n\n" + "".join(options)
    return text


def _option(parameter: inspect.Parameter, kind: Any, told: OptionInfo) -> str:
    given = [told.default] if isinstance(told.default, str) else []  # where typer keeps the first name
    given = [*given, *(told.param_decls or ())] or [f"--{parameter.name.replace('_', '-')}"]
    names = ", ".join(f"`{name}`" for name in given)
    default = getattr(parameter.default, "value", parameter.default)
    shown = "" if default in (None, False, "", parameter.empty) or default == [] else f" (`{default}`)"
    enums = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Enum)]
    choices = "".join(f" One of {', '.join(value.value for value in each)}." for each in enums)
    return f"- {names}{shown}: {told.help}{choices}\n"


# ------------------------------------------------------------------------------------------------------------ errors


def messages() -> dict[str, str]:
    """Every message by its code."""
    found = {**vars(Errors), **vars(Warnings)}
    return {code: text.partition(": ")[2] for code, text in sorted(found.items()) if code.startswith("CRF")}


def _errors() -> str:
    return "\n" + _table(("code", "message"), messages().items())


def _table(head: tuple[str, ...], rows: Any) -> str:
    cells = [tuple(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
