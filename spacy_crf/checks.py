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

# Squares and products of smaller numbers underflow, those of larger ones overflow
LEAST = 1e-100
MOST = 1e100
# Largest counts: of repetitions and cached things, since more would never end or take all memory; of anything else, such as seeds
MANY = 1_000_000
ANY = 2**63 - 1
# How configs write tables by label: a section whose keys are the labels, or a list of pairs of a label and a value
ByLabel = Union[Settings, list]
Value = TypeVar("Value")
# In pairs %24 stands for $, which spaCy doubles whenever it saves a config, and %25 for a % before 24 or 25
_ESCAPED = re.compile("%24|%25")
_MOST_SHOWN = 400  # characters of a table in a message


def expect(is_possible: object, owner: str, name: str, value: object, must: str) -> None:
    """RAISES (ValueError): CRF020 if the value is not possible.

    owner (str): Whose setting or argument it is, for the message, as in the other functions: a component, function or command.
    name (str): Name of the setting or argument.
    must (str): What the value must be: "a whole number".
    """
    if not is_possible:
        raise ValueError(Errors.CRF020.format(owner=owner, name=name, value=shown(value), must=must))


def number(owner: str, name: str, value: Any, *, least: float = 0.0, most: float = MOST) -> float:
    """Check that a value is a number from `least` to `most`, and return it as float."""
    must = f"a number from {least:g} to {most:g}" if most < MOST else f"a finite number, at least {least:g}"
    expect(_is_a(Real, value) and least <= value <= most, owner, name, value, must)
    return float(value)


def is_number(value: object) -> bool:
    """Whether a value is a number whose square does not overflow."""
    return _is_a(Real, value) and -MOST <= cast(float, value) <= MOST


def positive(owner: str, name: str, value: float) -> float:
    """Check that a value is a number above 0, and return it as float."""
    return number(owner, name, value, least=LEAST)


def count(owner: str, name: str, value: Any, *, least: int = 1, most: int = MANY) -> int:
    """Check that a value is a whole number from `least` to `most`, and return it as int."""
    is_whole = _is_a(Integral, value)
    # The bounds for anything are named only if the value exceeds them
    hides_most = most in (MANY, ANY) and not (is_whole and value > most)
    must = f"a whole number, at least {least}" if hides_most else f"a whole number from {least} to {most}"
    expect(is_whole and least <= value <= most, owner, name, value, must)
    return int(value)


def _is_a(kind: type, value: object) -> bool:
    """Whether a value is a number of that kind, and neither True nor False, which to Python are numbers too."""
    return isinstance(value, kind) and not isinstance(value, bool)


def flag(owner: str, name: str, value: bool) -> bool:
    """Check that a value is True or False, and return it."""
    expect(isinstance(value, bool), owner, name, value, "true or false")
    return value


def text(owner: str, name: str, value: str) -> str:
    """Check that a value is a text that is not empty, and return it."""
    expect(isinstance(value, str) and value, owner, name, value, "text")
    return value


def one_of(owner: str, name: str, value: Value, allowed: Collection[object]) -> Value:
    """Check that a value equals one of the allowed values and has its type (True is not 1), and return it."""
    if not any(type(value) is type(possible) and value == possible for possible in allowed):
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
    """Check that a value is a list, a tuple or None, and return its items in a new list.

    of (str): Name of the items, for the message.
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
    """Check that a value is None or a table whose keys are text, and return a new table with its items.

    of (str): Name of the values of the table, for the message.
    is_possible (Callable): Whether a value of the table is possible; None: each is.
    """
    is_table = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    if is_table and is_possible is not None:
        is_table = all(map(is_possible, value.values()))
    expect(value is None or is_table, owner, name, value, f"a table from names to {of}")
    return dict(value or {})


def by_label(owner: str, name: str, value: Any, of: str, *, text: bool = False) -> Settings:
    """Check a table by label, which a config writes as a section or as a list of pairs, and return it as a table; an empty table
    for None.

    of (str): Name of the values of the table, for the message.
    text (bool): Whether the values of the table are text.
    RAISES (ValueError): CRF020 for anything else, CRF925 for a table that spaCy would change when it saves the config, CRF926 for
        a line of a section that the config parser has cut in the wrong place.
    """
    if isinstance(value, (list, tuple)):
        values = _of_pairs(value)
        is_table = len(values) == len(value) and not any(isinstance(given, Mapping) for given in values.values())
        must = f"a list of pairs of a label and one of {of}, in which each label is once and tables are lists of pairs"
        expect(is_table, owner, name, value, must)
        # spaCy doubles each $, which is why pairs write %24
        is_kept = not any(isinstance(part, str) and "$" in part for part in chain.from_iterable(value))
    else:
        values = table(owner, name, value, of)
        for label, given in values.items():
            # A label with = or : was cut there, and its end has become the beginning of the value
            if isinstance(given, str) and not text and {"=", ":"} & {*given}:
                raise ValueError(Errors.CRF926.format(owner=owner, name=name, line=f"{label} = {given}"))
        is_kept = _is_section(values)
    if not is_kept:
        pairs = json.dumps(_pairs(values), ensure_ascii=False, default=str)
        pairs = pairs if len(pairs) <= _MOST_SHOWN else f"{pairs[:_MOST_SHOWN]}…"
        raise ValueError(Errors.CRF925.format(owner=owner, name=name, pairs=pairs))
    return values


def of_config(value: object) -> object:
    """The inverse of `in_config`: the table of a setting that is a list of pairs, without items that are no pairs; any other
    setting as it is."""
    return _of_pairs(value) if isinstance(value, (list, tuple)) else value


def _of_pairs(value: Sequence) -> Settings:
    """The table of a list of pairs of a label and a value, without items that are no such pairs."""
    pairs = [pair for pair in value if isinstance(pair, (list, tuple)) and len(pair) == 2]
    return {_unescaped(label): _unescaped(given) for label, given in pairs if isinstance(label, str)}


def in_config(value: object) -> object:
    """A setting as a saved config keeps it: a table by label becomes pairs if a section would lose labels."""
    return _pairs(value) if isinstance(value, Mapping) and not _is_section(value) else value


def _pairs(table: Mapping[str, object]) -> list[list[object]]:
    """The items of a table, and of the tables in it, as lists of pairs, with $ escaped."""
    pairs = []
    for label, value in table.items():
        if isinstance(value, Mapping):
            value = _pairs(value)
        pairs.append([_escaped(label), _escaped(value)])
    return pairs


def _escaped(value: object) -> object:
    """A text with %24 in place of each $; any other value as it is."""
    return re.sub("%(?=2[45])", "%25", value).replace("$", "%24") if isinstance(value, str) else value


def _unescaped(value: Value) -> Union[Value, str]:
    """A text with $ in place of each %24; any other value as it is."""
    return _ESCAPED.sub(lambda match: {"%24": "$", "%25": "%"}[match[0]], value) if isinstance(value, str) else value


def _is_section(table: Mapping[str, object]) -> bool:
    """Whether a config keeps a table as a section, and tables in it as sections of this section."""
    return all(_is_kept(label, value) for label, value in table.items())


def _is_kept(label: str, value: object) -> bool:
    """Whether a config keeps the line `label = value`, or a section whose name ends with the label and whose table is the value.

    The parser cuts a line at the first = or :, cuts names of sections at dots, and takes some beginnings for comments, sections
    or registered functions.
    """
    try:
        label.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can't be written to a file
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
    """Check how a user names a file: by its path alone, or by a table with the path and settings.

    possible (Dict[str, Callable]): For each setting, including "path", a function that returns whether a value is possible.
    RETURNS (Dict[str, Any]): The table, also for a path alone.
    RAISES (ValueError): CRF020 for an unknown setting, or a value that is not possible.
    """
    named = given if isinstance(given, dict) else {"path": given}
    settings = {"path": None, **named}  # without a path, None is checked
    is_possible = all(key in possible and possible[key](value) for key, value in settings.items())
    expect(is_possible, owner, name, given, must)
    return settings


def is_written(saved: object, read: object) -> bool:
    """Whether the value of a setting that is `read` from a config is the `saved` one, however often spaCy has saved the config.

    spaCy writes each ``$`` in a config twice, and keeps both when it loads a pipeline; after another save there are four. The
    value that the component itself has saved shows the original number.
    """
    expected = json.dumps(saved, sort_keys=True)
    found = json.dumps(read, sort_keys=True)
    while "$" in expected and len(expected) < len(found):
        expected = expected.replace("$", "$$")
    return expected == found
