"""Checks of settings and arguments, made once before anything is computed. spaCy checks configs too, but takes "nan" for a number
and True for 1."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Optional, TypeVar, Union, cast

from .errors import Errors, known_names, shown
from .types import Settings

# Squares and products of larger numbers overflow
LEAST = 1e-100
MOST = 1e100
# Bounds of numbers of repetitions or of cached things: larger ones would never end or take all memory. Seeds may be anything.
MANY = 1_000_000
ANY = 2**63 - 1
# How configs write tables by label: a section whose keys are the labels, or a list of pairs of a label and a value
ByLabel = Union[Settings, list]
Value = TypeVar("Value")
# In pairs %24 stands for $, which spaCy writes twice whenever it saves a config, and %25 for a % before 24 or 25
_ESCAPED = re.compile("%24|%25")
_MOST_SHOWN = 400  # characters of a table in a message


def expect(is_possible: object, owner: str, name: str, value: object, must: str) -> None:
    """RAISES (ValueError): CRF020 if the value is not possible; `must` says what it must be."""
    if not is_possible:
        raise ValueError(Errors.CRF020.format(owner=owner, name=name, value=shown(value), must=must))


def number(owner: str, name: str, value: Any, *, least: float = 0.0, most: float = MOST) -> float:
    """A number between bounds, bounds included."""
    must = f"a number from {least:g} to {most:g}" if most < MOST else f"a finite number, at least {least:g}"
    expect(_is_a(Real, value) and least <= value <= most, owner, name, value, must)
    return float(value)


def is_number(value: object) -> bool:
    """Whether a value is a number whose square does not overflow."""
    return _is_a(Real, value) and -MOST <= cast(float, value) <= MOST


def positive(owner: str, name: str, value: float) -> float:
    """A number above 0."""
    return number(owner, name, value, least=LEAST)


def count(owner: str, name: str, value: Any, *, least: int = 1, most: int = MANY) -> int:
    """A whole number between bounds, bounds included."""
    is_whole = _is_a(Integral, value)
    is_usual = most in (MANY, ANY) and not (is_whole and value > most)
    must = f"a whole number, at least {least}" if is_usual else f"a whole number from {least} to {most}"
    expect(is_whole and least <= value <= most, owner, name, value, must)
    return int(value)


def _is_a(kind: type, value: object) -> bool:
    """Whether a value is a number of that kind: to Python True and False are numbers too."""
    return isinstance(value, kind) and not isinstance(value, bool)


def flag(owner: str, name: str, value: bool) -> bool:
    """True or false."""
    expect(isinstance(value, bool), owner, name, value, "true or false")
    return value


def text(owner: str, name: str, value: str) -> str:
    """A text that is not empty."""
    expect(isinstance(value, str) and value, owner, name, value, "text")
    return value


def one_of(owner: str, name: str, value: Value, allowed: Collection[object]) -> Value:
    """One of the allowed values, of the same type."""
    if not any(type(value) is type(each) and value == each for each in allowed):
        expect(False, owner, name, value, f"one of {known_names(map(repr, allowed), repr(value))}")
    return value


def labels(owner: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """RAISES (ValueError): CRF846 for labels that are not among the known ones."""
    known = list(dict.fromkeys(known))
    unknown = [label for label in dict.fromkeys(asked) if label not in known]
    if unknown:
        raise ValueError(
            Errors.CRF846.format(owner=owner, labels=", ".join(map(repr, unknown)), known=known_names(known, *unknown))
        )


def listed(owner: str, name: str, value: Optional[Sequence[Value]], of: str) -> list[Value]:
    """A list; an empty one for None.

    of (str): Name of its items, for the message.
    """
    expect(value is None or isinstance(value, (list, tuple)), owner, name, value, f"a list of {of}")
    return list(value or [])


def table(
    owner: str,
    name: str,
    value: Any,
    of: str,
    is_possible: Optional[Callable] = None,
) -> Settings:
    """A table by names; an empty one for None.

    of (str): Name of its values, for the message. is_possible (Callable): Whether a value is possible.
    """
    is_table = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    possible = value is None or (is_table and (is_possible is None or all(map(is_possible, value.values()))))
    expect(possible, owner, name, value, f"a table from names to {of}")
    return dict(value or {})


def by_label(owner: str, name: str, value: Any, of: str, *, text: bool = False) -> Settings:
    """The table by label that a config writes as a section or as a list of pairs; an empty one for None.

    of (str): Name of its values, for the message. text (bool): Whether the values are text.
    RAISES (ValueError): CRF020 for other values, CRF925 for a table that the next config would not keep in this form, CRF926 for
        a line of a section that the config parser has cut in the wrong place.
    """
    if isinstance(value, (list, tuple)):
        found = _of_pairs(value)
        is_table = len(found) == len(value) and not any(isinstance(given, Mapping) for given in found.values())
        must = f"a list of pairs of a label and one of {of}, in which each label is once and tables are lists of pairs"
        expect(is_table, owner, name, value, must)
        is_kept = not any(isinstance(part, str) and "$" in part for part in chain.from_iterable(value))
    else:
        found = table(owner, name, value, of)
        for label, given in found.items():
            if isinstance(given, str) and not text and {"=", ":"} & {*given}:
                raise ValueError(Errors.CRF926.format(owner=owner, name=name, line=f"{label} = {given}"))
        is_kept = _is_section(found)
    if not is_kept:
        instead = json.dumps(_pairs(found), ensure_ascii=False, default=str)
        instead = instead if len(instead) <= _MOST_SHOWN else f"{instead[:_MOST_SHOWN]}…"
        raise ValueError(Errors.CRF925.format(owner=owner, name=name, pairs=instead))
    return found


def of_config(value: object) -> object:
    """The table for which the pairs of a config stand, without what is no pair; any other setting as it is."""
    return _of_pairs(value) if isinstance(value, (list, tuple)) else value


def _of_pairs(value: Sequence) -> Settings:
    pairs = [pair for pair in value if isinstance(pair, (list, tuple)) and len(pair) == 2]
    return {_unescaped(label): _unescaped(given) for label, given in pairs if isinstance(label, str)}


def in_config(value: object) -> object:
    """A setting as a saved config keeps it: a table by label becomes pairs if a section would lose labels."""
    return _pairs(value) if isinstance(value, Mapping) and not _is_section(value) else value


def _pairs(table: Mapping[str, object]) -> list[list[object]]:
    pairs = []
    for label, value in table.items():
        if isinstance(value, Mapping):
            value = _pairs(value)
        pairs.append([_escaped(label), _escaped(value)])
    return pairs


def _escaped(value: object) -> object:
    """A text in which %24 stands for $; any other value as it is."""
    return re.sub("%(?=2[45])", "%25", value).replace("$", "%24") if isinstance(value, str) else value


def _unescaped(value: Value) -> Union[Value, str]:
    return _ESCAPED.sub(lambda found: {"%24": "$", "%25": "%"}[found[0]], value) if isinstance(value, str) else value


def _is_section(table: Mapping[str, object]) -> bool:
    """Whether a config keeps a table as a section, and tables in it as sections of this section."""
    return all(_is_kept(label, value) for label, value in table.items())


def _is_kept(label: str, value: object) -> bool:
    """Whether a config keeps a line with this label as its name, or a section that ends with it. The parser cuts a line at the
    first = or :, cuts names of sections at dots, and takes some beginnings for comments, sections or registered functions."""
    try:
        label.encode()
    except UnicodeEncodeError:
        return False
    if not label or label != label.strip() or label[0] in "#;[@" or len(label.splitlines()) > 1:
        return False
    if isinstance(value, Mapping):
        return label != "*" and not set(label) & {".", "]"} and _is_section(value)
    return not set(label) & {"=", ":"} and not (isinstance(value, str) and "$" in value)


def is_path(value: object) -> bool:
    """Whether a value is a path that is not empty."""
    return isinstance(value, (str, Path)) and bool(str(value))


def is_optional_count(value: object) -> bool:
    """Whether a value is None, or a whole number above 0."""
    return value is None or (type(value) is int and value > 0)


def path_and_settings(
    owner: str, name: str, given: object, possible: Mapping[str, Callable[..., bool]], must: str
) -> Settings:
    """A file that a user names: a path, or a table with the path and settings.

    possible (Dict[str, Callable]): For each setting, including "path", a function that returns whether a value is possible.
    RETURNS (Dict[str, Any]): The table.
    RAISES (ValueError): CRF020.
    """
    settings = {"path": None, **(given if isinstance(given, dict) else {"path": given})}
    is_possible = all(key in possible and possible[key](value) for key, value in settings.items())
    expect(is_possible, owner, name, given, must)
    return settings


def is_written(saved: object, read: object) -> bool:
    """Whether a config with one value reads as another value.

    spaCy writes each ``$`` in a config twice, and keeps both when it loads a pipeline; after another save there are four. The
    value that the component itself has saved shows the original number.
    """
    ours = json.dumps(saved, sort_keys=True)
    found = json.dumps(read, sort_keys=True)
    while "$" in ours and len(ours) < len(found):
        ours = ours.replace("$", "$$")
    return ours == found
