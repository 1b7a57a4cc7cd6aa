"""Checks of settings and arguments, made once before anything is computed. spaCy checks configs too, but takes "nan" for a number
and True for 1."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Optional

from .errors import Errors, known_names, shown

# Squares and products of larger numbers overflow
LEAST, MOST = 1e-100, 1e100
# Bounds of numbers of repetitions or of cached things: larger ones would never end or take all memory. Seeds may be anything.
MANY, ANY = 1_000_000, 2**63 - 1


def expect(is_possible: Any, owner: str, name: str, value: Any, must: str) -> None:
    """RAISES (ValueError): CRF020 if the value is not possible; `must` says what it must be."""
    if not is_possible:
        raise ValueError(Errors.CRF020.format(owner=owner, name=name, value=shown(value), must=must))


def number(owner: str, name: str, value: Any, *, least: float = 0.0, most: float = MOST) -> float:
    """A number between bounds, bounds included."""
    must = f"a number from {least:g} to {most:g}" if most < MOST else f"a finite number, at least {least:g}"
    expect(_is_a(Real, value) and least <= value <= most, owner, name, value, must)
    return float(value)


def is_number(value: Any) -> bool:
    return _is_a(Real, value) and -MOST <= value <= MOST


def positive(owner: str, name: str, value: Any) -> float:
    return number(owner, name, value, least=LEAST)


def count(owner: str, name: str, value: Any, *, least: int = 1, most: int = MANY) -> int:
    """A whole number between bounds, bounds included."""
    is_whole = _is_a(Integral, value)
    is_usual = most in (MANY, ANY) and not (is_whole and value > most)
    must = f"a whole number, at least {least}" if is_usual else f"a whole number from {least} to {most}"
    expect(is_whole and least <= value <= most, owner, name, value, must)
    return int(value)


def _is_a(kind: type, value: Any) -> bool:
    """Whether a value is a number of that kind: to Python True and False are numbers too."""
    return isinstance(value, kind) and not isinstance(value, bool)


def flag(owner: str, name: str, value: Any) -> bool:
    expect(isinstance(value, bool), owner, name, value, "true or false")
    return value


def text(owner: str, name: str, value: Any) -> str:
    expect(isinstance(value, str) and value, owner, name, value, "text")
    return value


def one_of(owner: str, name: str, value: Any, allowed: Collection[Any]) -> Any:
    if not any(type(value) is type(each) and value == each for each in allowed):
        expect(False, owner, name, value, f"one of {known_names(map(repr, allowed), repr(value))}")
    return value


def labels(owner: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """RAISES (ValueError): CRF846 for labels that are not among the known ones."""
    known = list(dict.fromkeys(known))
    unknown = [label for label in asked if label not in known]
    if unknown:
        names = {"labels": ", ".join(map(repr, unknown)), "known": known_names(known, *unknown)}
        raise ValueError(Errors.CRF846.format(owner=owner, **names))


def listed(owner: str, name: str, value: Any, of: str) -> list[Any]:
    """A list; an empty one for None.

    of (str): Name of its items, for the message.
    """
    expect(value is None or isinstance(value, (list, tuple)), owner, name, value, f"a list of {of}")
    return list(value or [])


def table(owner: str, name: str, value: Any, of: str, is_possible: Optional[Callable] = None) -> dict[str, Any]:
    """A table by names; an empty one for None.

    of (str): Name of its values, for the message. is_possible (Callable): Whether a value is possible.
    """
    is_table = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    possible = value is None or (is_table and (is_possible is None or all(map(is_possible, value.values()))))
    expect(possible, owner, name, value, f"a table from names to {of}")
    return dict(value or {})


def is_path(value: Any) -> bool:
    return isinstance(value, (str, Path)) and bool(str(value))


def is_optional_count(value: Any) -> bool:
    return value is None or (type(value) is int and value > 0)


def path_and_settings(
    owner: str, name: str, given: Any, possible: dict[str, Callable[[Any], bool]], must: str
) -> dict[str, Any]:
    """A file that a user names: a path, or a table with the path and settings.

    possible (Dict[str, Callable]): For each setting, including "path", a function that returns whether a value is possible.
    RETURNS (Dict[str, Any]): The table.
    RAISES (ValueError): CRF020.
    """
    settings = {"path": None, **(given if isinstance(given, dict) else {"path": given})}
    is_possible = all(key in possible and possible[key](value) for key, value in settings.items())
    expect(is_possible, owner, name, given, must)
    return settings


def is_written(saved: Any, read: Any) -> bool:
    """Whether a config with one value reads as another value.

    spaCy writes each ``$`` in a config twice, and keeps both when it loads a pipeline; after another save there are four. The
    value that the component itself has saved shows the original number.
    """
    ours, found = (json.dumps(value, sort_keys=True) for value in (saved, read))
    while "$" in ours and len(ours) < len(found):
        ours = ours.replace("$", "$$")
    return ours == found
