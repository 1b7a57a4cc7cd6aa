"""The reference pages under docs/, made of what is registered: ``python -m spacy project run reference``.

`tests/test_reference_pages.py` fails where a name is missing.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, get_args

from thinc.api import Optimizer
from typer.models import ArgumentInfo, OptionInfo
from typer.utils import get_params_from_function

import spacy_crf
from spacy_crf.cli.configs import CONFIGS, config_files
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
        "reference_settings": f"# Registered names and their settings\n\n{_MADE}\n{settings()}",
        "reference_api": f"# From Python\n\n{_MADE} `help(…)` says what each argument is.\n{_api()}",
        "reference_cli": f"# Commands and their options\n\n{_MADE}\n{cli()}",
        "reference_errors": f"# Errors and warnings\n\n{_MADE} Words in braces are filled in.\n{errors(messages())}",
    }


# --------------------------------------------------------------------------------------------------------- settings


class Setting(NamedTuple):
    """A parameter, as a docstring of spaCy's form describes it."""

    name: str
    type: str
    text: str


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


def settings(project: Path = ROOT, *, whole: bool = True) -> str:
    """A table for each group: a row for each name, and one for each of its settings.

    whole (bool): Whether rows have the type and all that a docstring says of a setting, or its first sentence.
    """
    tables: dict[str, list[tuple[str, str]]] = {}
    told: dict[tuple[str, Setting], str] = {}  # the first name with a setting, of the plugin's if there is one
    if project != ROOT:
        for group, name, place in entry_points():
            for setting in settings_of(place):
                told.setdefault((group, setting), name)
    for group, name, place in entry_points(project):
        rows = tables.setdefault(group, [])
        rows.append((f"**`{name}`**", _summary(_at(place))))
        for setting in settings_of(place):
            first = told.setdefault((group, setting), name)
            shown = setting.text if whole else _first_sentence(setting.text)
            if first != name and len(shown.split()) > 3:
                shown = f"as of `{first}`"
            own = f"`{setting.name}`{setting.type if whole else ''}"
            if rows[-1][1] == shown:
                rows[-1] = (f"{rows[-1][0]}, {own}", shown)
            else:
                rows.append((own, shown))
    parts = []
    for group, rows in tables.items():
        parts.append(f"\n## {group.partition('_')[2]}\n\n" + _table(("name, and its settings", "what it is"), rows))
    return "".join(parts)


def settings_of(place: str) -> list[Setting]:
    """The settings of what is registered, described by its docstring or by one that this refers to."""
    found = _at(place)
    names = [name for name in inspect.signature(found).parameters if name not in ("nlp", "name", "self")]
    described = _described(found)
    for other in re.findall(r"`(spacy_crf\.[\w.]+)`", inspect.getdoc(found) or ""):
        described = {**_described(_registered().get(other)), **described}
    settings = []
    for name in names:
        setting = described.get(name, Setting(name, "", ""))
        seen = re.match(r"See `(?:spacy_crf\w*\.)?(\w+)(?:\.v1)?`", setting.text)
        if seen:
            bases = {base.__name__: base for base in getattr(found, "__mro__", ())}
            other = bases.get(seen[1]) or _registered().get(seen[1])
            setting = setting._replace(text=_described(other).get(name, setting).text)
        settings.append(setting)
    return settings


@cache
def _registered() -> dict[str, Any]:
    """The objects that the plugin registers, by their names, and by these without prefix and version."""
    found = {name: _at(place) for _, name, place in entry_points()}
    return {**{name.split(".")[-2]: each for name, each in found.items() if "." in name}, **found}


def _described(found: Any) -> dict[str, Setting]:
    """The parameters that a docstring describes, one or several in an entry."""
    described = {}
    if found is None:
        return described
    parameters = inspect.signature(found).parameters
    for part in re.split(r"\n(?! )", (inspect.getdoc(found) or "").replace("``", "`")):
        argument = _ARGUMENT.fullmatch(part)
        if argument and argument[1] in parameters:
            text = " ".join(argument[3].split())
            for name, kind in _TYPED.findall(f"{argument[1]}{argument[2]}"):
                described[name] = Setting(name, f" ({kind})" if kind else "", text)
            described.setdefault(argument[1], Setting(argument[1], "", text))
    return described


def _summary(found: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].split())
    return re.sub(r" \(``spacy_crf\w*\.\w+\.v1``\)", "", _first_sentence(text)).replace("``", "`")


def _first_sentence(text: str) -> str:
    first = re.split(r"(?<=[.:]) (?=[A-Z`])", text)[0]
    return first.removesuffix(":").removeprefix("Construct a ")


# --------------------------------------------------------------------------------------------------------------- api

# What is imported from elsewhere, and what methods return
_OTHERS = (
    "spacy_crf.sklearn:CRF",
    "spacy_crf.explain.explanation:Explanation",
)
# Members of components by which the parts of the package call each other
INNER = {
    "annotation_of",
    "asks_functions",
    "assigns",
    "by_probability",
    "chains",
    "check_optimizer",
    "check_settings",
    "choose_settings",
    "decided",
    "threshold_settings",
    "distribution",
    "announce_kernels",
    "expected_spans",
    "feature_stores",
    "follow_settings",
    "clear_scores",
    "get_loss",
    "learner",
    "make_annotation",
    "owner",
    "parts",
    "probabilities_and_annotation",
    "require_ready",
    "requires",
    "rules",
    "rules_train",
    "spans_of",
}


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


def methods(of: Any) -> dict[str, Any]:
    """Its own public functions and properties that are documented; of optimizers none, since spaCy calls them."""
    if not inspect.isclass(of) or issubclass(of, Optimizer):
        return {}
    kinds = (FunctionType, property, classmethod, staticmethod)
    own = {name: each for name, each in vars(of).items() if isinstance(each, kinds) and not name.startswith("_")}
    return {name: each for name, each in own.items() if name not in INNER and inspect.getdoc(each)}


def _api() -> str:
    text = ""
    for name, each in [*public_names(), *((base.__name__, base) for base in bases())]:
        called = "" if inspect.isclass(each) else _called(each)
        inherited = [base.__name__ for base in getattr(each, "__mro__", ())[1:] if base in bases()]
        text += f"\n## `{name}{called}`\n\n{_told(each)}\n"
        if inherited:
            text += "\nMethods too of " + ", ".join(f"[{base}](#{base.lower()})" for base in inherited) + ".\n"
        rows = []
        for method, member in methods(each).items():
            function = getattr(member, "__func__", member)
            called = "" if isinstance(function, property) else _called(function)
            rows.append((f"`{method}{called}`", _told(function)))
        if rows:
            text += "\n" + _table(("member", "what it is"), rows)
    return text


def _called(function: Any) -> str:
    """Arguments and their defaults; what they are, the docstring says."""
    parameters = [each.replace(annotation=each.empty) for each in inspect.signature(function).parameters.values()]
    return str(inspect.Signature([each for each in parameters if each.name != "self"]))


_ARGUMENT = re.compile(r"(RETURNS|YIELDS|RAISES|\w+)((?: \(.*?\)(?:, \w+(?= \())?)*)(?::\s|$)(.*)", re.DOTALL)
_TYPED = re.compile(r"(\w+) \((.*?)\)(?=$|, \w+ \()")


def _told(found: Any) -> str:
    """The first paragraph of a docstring, and what it says of results."""
    told = []
    text = (inspect.getdoc(found) or "").replace("``", "`")
    for paragraph in text.split("\n\n"):
        for part in re.split(r"\n(?! )", paragraph):
            argument = _ARGUMENT.fullmatch(part)
            if argument and argument[1] in ("RETURNS", "YIELDS"):
                kind = argument[2].strip(" ()")
                told.append(f"{argument[1].capitalize()} `{kind}`: {' '.join(argument[3].split())}".removesuffix(": "))
            elif not argument and paragraph == text.split("\n\n")[0]:
                told.append(part)
    return " ".join(told)


# ---------------------------------------------------------------------------------------------------------- commands


def commands(package: str = "spacy_crf") -> dict[str, Callable]:
    """The function of each command of a package, which says by its signature what the command takes."""
    import_commands()
    found = sorted(app.registered_commands, key=lambda each: each.name)
    return {
        command.name: command.callback for command in found if command.callback.__module__.startswith(f"{package}.")
    }


def cli(package: str = "spacy_crf") -> str:
    text = "\n`--code FILE`, an option of every command but `compile` and `project`, names a Python file to import.\n"
    for name, command in commands(package).items():
        usage = [name]
        outputs = []
        options = []
        for parameter in get_params_from_function(command).values():
            info = parameter.default
            required = getattr(info, "default", ...) in (..., parameter.empty)
            if isinstance(info, ArgumentInfo):
                argument = info.metavar or parameter.name.upper()
                usage.append(argument if required else f"[{argument}]")
            elif isinstance(info, OptionInfo):
                if required and parameter.name == "output":
                    outputs.append("--output OUTPUT")
                options.append(_option(parameter.name, parameter.annotation, info, None if required else info.default))
        text += f"\n## `{' '.join([*usage, *outputs])}`\n\n{' '.join(inspect.getdoc(command).split())}\n\n"
        text += "".join(options)
    return text


def _option(name: str, kind: Any, told: OptionInfo, default: Any) -> str:
    names = ", ".join(f"`{given}`" for given in told.param_decls or (f"--{name.replace('_', '-')}",))
    default = getattr(default, "value", default)
    shown = "" if default in (None, False, "") or default == [] else f" (`{default}`)"
    enums = [each for each in (kind, *get_args(kind)) if isinstance(each, type) and issubclass(each, Enum)]
    values = [[value.value for value in each if value.value not in _added()] for each in enums]
    choices = "".join(f" One of {', '.join(each)}." for each in values)
    return f"- {names}{shown}: {told.help}{choices}\n"


@cache
def _added() -> set[str]:
    """Values of options that other installed packages add."""
    orders = {entry.name for entry in metadata.entry_points(group="spacy_crf_orders")}
    return orders | {name for name, path in config_files().items() if path.parent != CONFIGS}


# ------------------------------------------------------------------------------------------------------------ errors


def messages(*of: type) -> dict[str, str]:
    """Every message by its code."""
    found = {code: text for each in of or (Errors, Warnings) for code, text in vars(each).items()}
    return {code: text.partition(": ")[2] for code, text in sorted(found.items()) if code.startswith("CRF")}


def errors(of: dict[str, str], *, whole: bool = True) -> str:
    """A row for each code. whole (bool): Whether rows have the message, or its first sentence."""
    shown = {code: text if whole else _first_sentence(text) for code, text in of.items()}
    return "\n" + _table(("code", "message"), shown.items())


def _table(head: tuple[str, ...], rows: Any) -> str:
    cells = [tuple(" ".join(str(cell).split()).replace("|", "\\|") for cell in row) for row in rows]
    lines = [head, tuple("---" for _ in head), *cells]
    return "".join(f"{' | '.join(line)}\n" for line in lines)


if __name__ == "__main__":
    main()
