"""Translates regular expressions of Python into JavaScript's, so that they match the same."""

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

if sys.version_info >= (3, 11):
    from re import _parser as parser
else:
    import sre_parse as parser

FLAGS = "u"  # of all translated patterns: they read code points
# A node of Python's tree of a pattern: its operator, and the operator's arguments
Node = tuple[Any, Any]
_EVERY_CHARACTER = "".join(map(chr, range(sys.maxunicode + 1)))
_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}
_EMPTY_HAS_NO_EDGE = re.search(r"\B", "") is not None  # since Python 3.14
_SYMBOLS = {(0, 1): "?", (0, parser.MAXREPEAT): "*", (1, parser.MAXREPEAT): "+"}


class UntranslatableError(ValueError):
    """JavaScript cannot match what a part of a pattern matches; the message names the part."""


@cache
def to_javascript(pattern: str) -> tuple[str, str]:
    r"""Translate a pattern. Classes such as ``\w`` and letters of either case become the characters that this Python means, so
    that the Unicode version of the JavaScript engine does not matter. No group captures, but those that make a group atomic.

    pattern (str): A regular expression of Python.
    RETURNS (str, str): The source and the flags for ``new RegExp(source, flags)``.
    RAISES (UntranslatableError): For references to groups, for repeats of what may be empty, and for atomic groups in
        lookbehinds.
    """
    tree: Any = parser.parse(pattern)
    return _Translation().sequence(tree, tree.state.flags), FLAGS


class _Translation:
    """The translation of one pattern."""

    def __init__(self) -> None:
        self._n_captures = 0
        self._is_in_lookbehind = False

    def sequence(self, nodes: Iterable[Node], flags: int) -> str:
        """Translate nodes that follow each other, under flags (`flags`) such as `re.IGNORECASE`."""
        return "".join(self._node(operator.name, argument, flags) for operator, argument in nodes)

    def _node(self, operator: str, argument: Any, flags: int) -> str:
        """Translate a node.

        operator (str): The name of its operator, such as "MAX_REPEAT".
        argument: The argument of the operator.
        flags (int): The flags that hold there.
        """
        if operator == "LITERAL" and not flags & re.IGNORECASE:
            return _escaped(argument)
        if operator in ("LITERAL", "NOT_LITERAL"):
            return _characters([(parser.LITERAL, argument)], flags, is_negated=operator == "NOT_LITERAL")
        if operator == "IN":
            is_negated = argument[0][0] is parser.NEGATE
            return _characters(argument[is_negated:], flags, is_negated)
        if operator == "ANY":
            return "[^]" if flags & re.DOTALL else r"[^\n]"
        if operator == "AT":
            return _position(argument.name, flags)
        if operator == "BRANCH":
            return _group("|".join(self.sequence(branch, flags) for branch in argument[1]))
        if operator == "SUBPATTERN":
            _, added, removed, nodes = argument
            return _group(self.sequence(nodes, (flags | added) & ~removed))
        if operator in ("MAX_REPEAT", "MIN_REPEAT"):
            return self._repeat(argument, flags, is_lazy=operator == "MIN_REPEAT")
        if operator == "POSSESSIVE_REPEAT":
            return self._atomic([(parser.MAX_REPEAT, argument)], flags)
        if operator == "ATOMIC_GROUP":
            return self._atomic(argument, flags)
        if operator in ("ASSERT", "ASSERT_NOT"):
            direction, nodes = argument
            return self._lookaround(direction, nodes, flags, "=" if operator == "ASSERT" else "!")
        if operator == "FAILURE":
            return "[]"
        raise UntranslatableError(f"it has {operator}, such as a reference to a group")

    def _repeat(self, argument: Any, flags: int, is_lazy: bool) -> str:
        """Translate a repeat: fewest and most times, and the nodes (`argument`); `is_lazy` if it takes as few as it can."""
        fewest, most, nodes = argument
        body = self.sequence(nodes, flags)
        if nodes.getwidth()[0] == 0:
            # JavaScript never repeats an empty match, Python does once
            if (fewest, most) != (0, 1):
                raise UntranslatableError(f"it repeats {body[:40]}, which may match nothing")
            return f"(?:|{body})" if is_lazy else f"(?:{body}|)"
        most_text = "" if most == parser.MAXREPEAT else most
        symbol = _SYMBOLS.get((fewest, most), f"{{{fewest},{most_text}}}")
        return _group(body) + symbol + "?" * is_lazy

    def _atomic(self, nodes: Iterable[Node], flags: int) -> str:
        """Translate a group that is never entered again: a lookahead never is, and a reference repeats what it matched."""
        if self._is_in_lookbehind:
            raise UntranslatableError("it has an atomic group or a possessive repeat in a lookbehind")
        self._n_captures += 1
        number = self._n_captures
        return f"(?:(?=({self.sequence(nodes, flags)}))\\{number})"

    def _lookaround(self, direction: int, nodes: Iterable[Node], flags: int, sign: str) -> str:
        """Translate an assertion about the text behind (`direction` 1) or before (-1).

        direction (int): Where the text stands that the assertion is about.
        nodes (Iterable[Node]): What this text matches.
        flags (int): The flags that hold there.
        sign (str): "=", or "!" if the text must not match.
        """
        was_in_lookbehind = self._is_in_lookbehind
        self._is_in_lookbehind = was_in_lookbehind or direction < 0
        body = self.sequence(nodes, flags)
        self._is_in_lookbehind = was_in_lookbehind
        return _group(f"(?{'<' if direction < 0 else ''}{sign}{body})")


def _group(source: str) -> str:
    """A group around a translated part."""
    return f"(?:{source})"


def _position(name: str, flags: int) -> str:
    """Translate a position (`name`), such as the beginning of a line."""
    if name == "AT_BEGINNING" and flags & re.MULTILINE:
        return r"(?<![^\n])"
    if name in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
        return "^"
    if name == "AT_END" and flags & re.MULTILINE:
        return r"(?![^\n])"
    if name == "AT_END":  # also before a new line at the end
        return r"(?=\n?$)"
    if name == "AT_END_STRING":
        return "$"
    word = _class(r"\w", flags & re.ASCII)
    is_edge = f"(?:(?<=[{word}])(?![{word}])|(?<![{word}])(?=[{word}]))"
    if name == "AT_BOUNDARY":
        return is_edge
    return f"(?!{is_edge})" if _EMPTY_HAS_NO_EDGE else f"(?!{is_edge}|^$)"


def _characters(items: Sequence[Node], flags: int, is_negated: bool) -> str:
    """Translate a set of characters: the items of Python's class, and whether all others are meant."""
    source = ""
    for operator, argument in items:
        if operator.name == "CATEGORY":
            source += _CATEGORIES[argument.name]
        elif operator.name == "RANGE":
            source += f"\\U{argument[0]:08x}-\\U{argument[1]:08x}"
        else:
            source += f"\\U{argument:08x}"
    characters = _class(source, flags & (re.ASCII | re.IGNORECASE))
    return f"[{'^' * is_negated}{characters}]"


@cache
def _class(source: str, flags: int) -> str:
    """The characters that Python's class ``[source]`` matches, as the inside of a class of JavaScript: their runs."""
    runs = re.compile(f"[{source}]+", flags).finditer(_EVERY_CHARACTER)
    return "".join(_run(match.start(), match.end() - 1) for match in runs)


def _run(first: int, last: int) -> str:
    """Code points from `first` to `last` in a class of JavaScript."""
    hyphen = "-" * (last > first + 1)
    return _escaped(first) + (hyphen + _escaped(last)) * (last > first)


def _escaped(point: int) -> str:
    """A code point in JavaScript."""
    character = chr(point)
    return character if character.isalnum() else f"\\u{{{point:x}}}"
