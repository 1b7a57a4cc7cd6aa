"""The reference pages under docs/, made of what is registered: ``python -m spacy project run reference``.

`tests/test_reference_pages.py` fails where a name is missing.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

from typer.models import ArgumentInfo, OptionInfo
from typer.utils import get_params_from_function

import spacy_crf
from spacy_crf.cli.configs import FOLDER, config_files
from spacy_crf.cli.group import app, import_commands
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
        "reference_registry": (
            f"# Registered names\n\n{_MADE} What each setting means: [settings](reference_settings.md).\n{registry()}"
        ),
        "reference_settings": (
            f"# What settings mean\n\n{_MADE} In the order of [the names](reference_registry.md).\n{settings()}"
        ),
        "reference_api": f"# From Python\n\n{_MADE}\n{_api()}",
        "reference_cli": f"# Commands and their options\n\n{_MADE} [The command line](command_line.md) says more.\n{cli()}",
        "reference_errors": f"# Errors and warnings\n\n{_MADE} Words in braces are filled in.\n{errors(messages())}",
    }


# --------------------------------------------------------------------------------------------------------- registry


def entry_points(project: Path = ROOT) -> Iterator[tuple[str, str, str]]:
    """Group, name and place of all that a distribution registers for configs."""
    project = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf8"))["project"]
    for group, names in project["entry-points"].items():
        for name, place in names.items():
            if group != "spacy_cli" and not group.startswith("spacy_crf_"):
                yield group, name, place


def _at(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def parameters(project: Path = ROOT) -> dict[str, list[str]]:
    """Settings by registered name."""
    return {name: _parameters(_at(place)) for _, name, place in entry_points(project)}


def registry(project: Path = ROOT) -> str:
    rows = {}
    text = ""
    for group, name, place in entry_points(project):
        found = _at(place)
        settings = " ".join(f"`{setting}`" for setting in _parameters(found))
        rows.setdefault(group, []).append((f"`{name}`", _summary(found), settings))
    for group, of_group in rows.items():
        text += f"\n## {group.partition('_')[2]}\n\n" + _table(("name", "what it is", "settings"), of_group)
    return text


def _summary(found: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    first = re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0].removesuffix(":").removeprefix("Construct a ")
    return re.sub(r" \(``spacy_crf\w*\.\w+\.v1``\)", "", first)


def _parameters(found: Any) -> list[str]:
    return [name for name in inspect.signature(found).parameters if name not in ("nlp", "name", "self")]


def settings(project: Path = ROOT) -> str:
    return "".join(f"\n## `{name}`\n\n{_told(_at(place))}\n" for _, name, place in entry_points(project))


# --------------------------------------------------------------------------------------------------------------- api

# What is imported from elsewhere, what methods return, and what all losses have
_OTHERS = (
    "spacy_crf.sklearn:CRF",
    "spacy_crf.explain.explanation:Explanation",
    "spacy_crf.losses.clamped:ClampedLoss",
)


def public_names() -> Iterator[tuple[str, Any]]:
    """What is for import, and what its methods return: with the names by which pages call them."""
    for name in spacy_crf.__all__:
        if not name.startswith("__"):
            yield f"spacy_crf.{name}", getattr(spacy_crf, name)
    for place in _OTHERS:
        yield place.replace(":", "."), _at(place)


def bases() -> list[type]:
    """Classes of ours that those inherit from, the most general last, each once."""
    found = [base for _, each in public_names() if inspect.isclass(each) for base in each.__mro__[1:]]
    return [base for base in dict.fromkeys(found) if base.__module__.startswith("spacy_crf.pipeline")]


def methods(of: type) -> dict[str, Any]:
    """Its own public functions and properties that are documented."""
    kinds = (FunctionType, property, classmethod, staticmethod)
    own = {name: each for name, each in vars(of).items() if isinstance(each, kinds) and not name.startswith("_")}
    return {name: each for name, each in own.items() if inspect.getdoc(each)}


def _api() -> str:
    text = ""
    for name, each in [*public_names(), *((base.__name__, base) for base in bases())]:
        called = "" if inspect.isclass(each) else _called(each)
        text += f"\n## `{name}{called}`\n\n"
        inherited = [base.__name__ for base in getattr(each, "__mro__", ())[1:] if base in bases()]
        text += _told(each) + "\n"
        if inherited:
            text += "\nMethods too of " + ", ".join(f"[{base}](#{base.lower()})" for base in inherited) + ".\n"
        for method, found in methods(each).items() if inspect.isclass(each) else ():
            found = getattr(found, "__func__", found)
            called = "" if isinstance(found, property) else _called(found)
            text += f"\n### `{method}{called}`\n\n{_told(found)}\n"
    return text


def _called(function: Any) -> str:
    """Arguments and their defaults; what they are, the docstring says."""
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(function).parameters.values()]
    return str(inspect.Signature([each for each in parameters if each.name != "self"]))


_ARGUMENT = re.compile(r"(RETURNS|YIELDS|RAISES|\w+)((?: \(.*?\)(?:, \w+(?= \())?)*)(?::\s|$)(.*)", re.DOTALL)
_TYPED = re.compile(r"(\w+)? \((.*?)\)(?=$|, \w+ \()")


def _told(found: Any) -> str:
    """A docstring of spaCy's form as Markdown."""
    text = (inspect.getdoc(found) or "").replace("``", "`")
    parameters = inspect.signature(found).parameters.values() if callable(found) else []
    names = {each.name for each in parameters} | {"RETURNS", "YIELDS", "RAISES"}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return "\n\n".join(_paragraph(part, names, takes_any) for part in text.split("\n\n") if part)


def _paragraph(text: str, names: set[str], takes_any: bool) -> str:
    """Arguments become a list, and what is set in becomes a block."""
    if text.startswith("    "):
        return f"```text\n{text}\n```"
    told, listed = [], []
    for part in re.split(r"\n(?! )", text):
        argument = _ARGUMENT.fullmatch(part)
        if argument and (argument[1] in names or (takes_any and argument[2])):
            listed.append(_entry(*argument.groups()))
        else:
            told.append(part)
    return "\n\n".join("\n".join(lines) for lines in (told, listed) if lines)


def _entry(name: str, kinds: str, text: str) -> str:
    shown = name.capitalize() if name.isupper() else f"`{name}`"
    typed = _TYPED.sub(lambda found: f"{f'`{found[1]}`' if found[1] else ''} (`{found[2]}`)", kinds)
    words = " ".join(text.split())
    return f"- {shown}{typed}{f': {words}' if words else ''}"


# ---------------------------------------------------------------------------------------------------------- commands


def commands(package: str = "spacy_crf") -> dict[str, Callable]:
    """The function of each command of a package, which says by its signature what the command takes."""
    import_commands()
    found = sorted(app.registered_commands, key=lambda each: each.name)
    return {
        command.name: command.callback for command in found if command.callback.__module__.startswith(f"{package}.")
    }


def cli(package: str = "spacy_crf") -> str:
    text = ""
    for name, command in commands(package).items():
        usage, options = [name], []
        for parameter in get_params_from_function(command).values():
            info = parameter.default
            required = getattr(info, "default", ...) in (..., parameter.empty)
            if isinstance(info, ArgumentInfo):
                usage.append(parameter.name.upper() if required else f"[{parameter.name.upper()}]")
            elif isinstance(info, OptionInfo):
                options.append(_option(parameter.name, parameter.annotation, info, None if required else info.default))
        text += f"\n## `{' '.join(usage)}`\n\n{' '.join(inspect.getdoc(command).split())}\n\n" + "".join(options)
    return text


def _option(name: str, kind: Any, told: OptionInfo, default: Any) -> str:
    names = ", ".join(f"`{given}`" for given in told.param_decls or (f"--{name.replace('_', '-')}",))
    default = getattr(default, "value", default)
    shown = "" if default in (None, False, "") or default == [] else f" (`{default}`)"
    enums = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Enum)]
    added = {entry.name for entry in metadata.entry_points(group="spacy_crf_orders")}  # by packages that are installed
    added |= {name for name, path in config_files().items() if path.parent != FOLDER}
    values = [[value.value for value in each if value.value not in added] for each in enums]
    choices = "".join(f" One of {', '.join(each)}." for each in values)
    return f"- {names}{shown}: {told.help}{choices}\n"


# ------------------------------------------------------------------------------------------------------------ errors


def messages(*of: type) -> dict[str, str]:
    """Every message by its code."""
    found = {code: text for each in of or (Errors, Warnings) for code, text in vars(each).items()}
    return {code: text.partition(": ")[2] for code, text in sorted(found.items()) if code.startswith("CRF")}


def errors(of: dict[str, str]) -> str:
    return "\n" + _table(("code", "message"), of.items())


def _table(head: tuple[str, ...], rows: Any) -> str:
    cells = [tuple(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
