"""Reads models of Wapiti (linear chains), and makes features from columns by its patterns."""

import re
from collections.abc import Iterator, Sequence
from io import SEEK_END, BytesIO
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from .foreign import ForeignModel, Octets, as_octets, as_text
from .functions import Pattern, PatternPlace, PatternSource, assemble, compile_form, template_lines

_COMMAND = re.compile(r'%([xtmXTM])\[(@?) *([+-]?\d{1,9}), *(\d{1,9})(?:,"((?:[^"\\]|\\.)*)")?\]')
_HEADERS = {
    "#mdl#": re.compile(rb"#mdl#(?:(\d{1,9})#)?(\d{1,18})"),
    "#rdr#": re.compile(rb"#rdr#(\d{1,9})/(\d{1,9})/(\d)"),
    "#qrk#": re.compile(rb"#qrk#(\d{1,18})"),
}
_WEIGHTS = re.compile(rb"(?:\d{1,18}=[^=\n]+\n)*")
_AT_ONCE = 1 << 22  # bytes
_CHAIN = b"2"
_FARTHEST = 4
_MOST_PATTERNS_AWAY = 1000


# ----------------------------------------------------------------------------------------------- regular expressions

_CLASSES = {
    "a": frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    "d": frozenset(b"0123456789"),
    "l": frozenset(b"abcdefghijklmnopqrstuvwxyz"),
    "p": frozenset(b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"),
    "s": frozenset(b" \t\n\v\f\r"),
    "u": frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
_CLASSES["w"] = _CLASSES["a"] | _CLASSES["d"]
_EVERY = frozenset(range(1, 256))
_ONCE, _ANY, _MAYBE, _END = range(4)
_MOST_ITEMS = 100


class Expression:
    """A regular expression of Wapiti, over bytes, with ASCII letters.

    An item is ``.``, a byte, or ``\\`` and the letter of a class (a capital letter for all bytes outside the class). ``*``
    repeats an item as few times as possible, ``?`` makes it optional, ``^`` and ``$`` stand for the ends. An expression has at
    most 100 items. A match takes time in proportion to the number of items and of bytes.
    RAISES (ValueError): With the reason, if the text is not such an expression.
    """

    def __init__(self, text: str):
        octets = as_octets(text)
        self._is_anchored = octets.startswith(b"^")
        self._items: list[tuple[frozenset[int], int]] = []
        at = int(self._is_anchored)
        while at < len(octets):
            first = octets[at : at + 1]
            if first == b"$" and at + 1 == len(octets):
                self._items.append((frozenset(), _END))
                break
            if first in (b"*", b"?"):
                raise ValueError(f"{first.decode()} repeats nothing")
            width = 2 if first == b"\\" else 1
            item = octets[at : at + width]
            if item == b"\\":
                raise ValueError("it ends with a backslash")
            after = octets[at + width : at + width + 1]
            kind = {b"*": _ANY, b"?": _MAYBE}.get(after, _ONCE)
            if len(self._items) == _MOST_ITEMS:
                raise ValueError(f"it has more than {_MOST_ITEMS} items")
            self._items.append((_bytes_of(item), kind))
            at += width + (kind != _ONCE)

    def find(self, octets: bytes) -> tuple[int, int] | None:
        """Find the first match. RETURNS (int, int): Its place, and its length as Wapiti counts it. That length may be too large,
        since Wapiti does not subtract the bytes that a failed attempt has counted."""
        length = 0  # bytes counted so far
        # By item and position, the bytes that a failed attempt has counted. If attempts were repeated, the time would double with
        # each item
        failed: dict[tuple[int, int], int] = {}

        def match(n: int, position: int) -> bool:
            """Whether the items from number `n` on match at a position."""
            nonlocal length
            if n == len(self._items):
                return True
            item, kind = self._items[n]
            is_there = position < len(octets) and octets[position] in item
            if kind == _END:
                return position == len(octets)
            if kind == _ONCE:
                length += 1
                return is_there and match(n + 1, position + 1)
            # "*" repeats the item from position to position, as long as the items behind it fail; "?" tries one position
            attempts = []  # positions, and the length in front of each
            while (n, position) not in failed:
                length_before = length
                attempts.append((position, length_before))
                if kind == _MAYBE and is_there:
                    length += 1
                    if match(n + 1, position + 1):
                        return True
                    length -= 1
                if match(n + 1, position):
                    return True
                if kind == _MAYBE:
                    break
                length = length_before + 1
                if not is_there:
                    break
                position += 1
                is_there = position < len(octets) and octets[position] in item
            else:  # an earlier attempt has failed from here on
                length += failed[n, position]
            for attempt, length_before in attempts:
                failed[n, attempt] = length - length_before
            return False

        for begin in range(1 if self._is_anchored else len(octets) + 1):
            length = 0
            if match(0, begin):
                return begin, length
        return None


def _bytes_of(item: bytes) -> frozenset[int]:
    """The bytes that an item of an expression matches."""
    if item == b".":
        return _EVERY
    if len(item) == 2:
        name = chr(item[1])
        if name in _CLASSES:
            return _CLASSES[name]
        if name.lower() in _CLASSES:
            return _EVERY - _CLASSES[name.lower()]
    return frozenset(item[-1:])


class _Command(dict[str, str]):
    """Applies a command to words, and caches the results: tests and matches are slow, and most words occur again."""

    def __init__(self, command: str, expression: str | None):
        super().__init__()
        self._kind = command.lower()
        self._lowers = command.isupper()
        self._expression: Any = None if expression is None else Expression(expression)

    def __missing__(self, word: str) -> str:
        """Compute and cache the result for a word."""
        if len(self) > 100_000:  # so that an endless stream of new words does not fill the memory
            self.clear()
        text = self._lowered(word) if self._expression is None else self._test_or_match(as_octets(word))
        self[word] = text
        return text

    def _test_or_match(self, octets: bytes) -> str:
        """The value of a test (%t) for a word, "true" or "false"; or of a match (%m), the part of the word that matches."""
        match = self._expression.find(octets)
        if self._kind == "t":
            return "false" if match is None else "true"
        begin, length = match or (0, 0)
        return self._lowered(as_text(octets[begin : begin + length]))

    def _lowered(self, text: str) -> str:
        """The text in lower case, if the command is in upper case (%X). As bytes, so that only ASCII changes."""
        return as_text(as_octets(text).lower()) if self._lowers else text


def compile_pattern(line: str) -> Pattern:
    """Compile a line of a file of patterns. RAISES (ValueError): CRF856 if the line is not a pattern, or not supported."""
    known = '%x[offset,column], %t[offset,column,"…"] or %m[offset,column,"…"]'
    form, places = compile_form(line, _COMMAND, lambda match: _place(line, match), known)
    if form[:1].lower() not in ("u", "b", "*"):
        raise ValueError(Errors.CRF856.format(template=line, reason="patterns begin with u, b or *"))
    return Pattern(form[:1].lower() + form[1:], places)


def _place(line: str, match: "re.Match[str]") -> PatternPlace:
    """Make the place of a command in a line. RAISES (ValueError): CRF856 for a wrong expression or offset."""
    command, absolute, offset, column, expression = match.groups()
    if (command.lower() == "x") != (expression is None):
        raise ValueError(Errors.CRF856.format(template=line, reason="%t and %m have an expression, %x has none"))
    try:
        change = None if command == "x" else _Command(command, expression).__getitem__
    except ValueError as error:
        raise ValueError(Errors.CRF856.format(template=line, reason=f'"{expression}": {error}')) from error
    position = int(offset)
    if abs(position) > _MOST_PATTERNS_AWAY:
        raise ValueError(Errors.CRF856.format(template=line, reason=f"offsets are at most {_MOST_PATTERNS_AWAY}"))
    if not absolute:
        argument = "" if expression is None else f',"{expression}"'
        of_word = "" if change is None else f"u%{command}[0,0{argument}]"
        return PatternPlace(int(column), position, "token", change, of_word)
    # Wapiti counts from 1 at the start of a sequence, and from -1 at its end
    return PatternPlace(
        column=int(column),
        offset=position if position < 0 else position - 1,
        anchor="end" if position < 0 else "start",
        change=change,
    )


def wapiti_features(patterns: Sequence[str], columns: Sequence[str]) -> PatternSource:
    """A source of feature names made by Wapiti's patterns (``spacy_crf.wapiti_features.v1``).

    patterns (List[str]): Patterns such as '*:suffix=%m[0,0,".?.?%24"]'. Write a dollar as %24.
    columns (List[str]): Attributes of tokens in the columns, such as ["orth", "tag"], or "ext:NAME" for an extension.
    """
    return PatternSource(patterns, compile_pattern, columns, outside)


def outside(n: int) -> str:
    """The text of the position `n` words before (negative) or behind a sequence."""
    distance = str(abs(n)) if abs(n) <= _FARTHEST else "#"
    return f"_x{'-' if n < 0 else '+'}{distance}"


def read_patterns(text: str) -> list[str]:
    """Read the patterns of a file. RAISES (ValueError): CRF856 for a line that is not a pattern."""
    patterns = []
    for line in template_lines(text):
        pattern = line.split("#")[0].rstrip(" \t")  # without a comment
        if pattern:
            compile_pattern(pattern)
            patterns.append(pattern)
    return patterns


# ------------------------------------------------------------------------------------------------------------ models


class _Lines(Octets):
    """A file of headers, netstrings (``3:the,``) and lines, which is read from its beginning to its end, part by part."""

    def __init__(self, stream: BinaryIO, source: str):
        super().__init__(b"", source, "a model of Wapiti")
        self._stream = stream
        self._size = stream.seek(0, SEEK_END)
        stream.seek(0)

    def refuse_here(self, reason: str) -> NoReturn:
        """Refuse the file at the place that was read last. RAISES (ValueError): CRF854."""
        self.refuse(f"up to byte {self._stream.tell()}", reason)

    def header(self, what: str) -> tuple[bytes, ...]:
        """Read the next line, a header such as "#mdl#". RETURNS (tuple[bytes, ...]): Its numbers."""
        line = self.line()
        match = _HEADERS[what].fullmatch(line)
        return match.groups() if match else self.refuse_here(f"{what} is expected, not {line[:40]!r}")

    def line(self) -> bytes:
        """Read the next line."""
        line = self._stream.readline()
        return line[:-1] if line.endswith(b"\n") else self.refuse_here("the last line does not end: it is cut off")

    def texts(self, n: int) -> list[str]:
        """Read the next `n` netstrings."""
        texts = []
        for _ in range(n):
            digits, colon, text = self.line().partition(b":")
            size = int(digits) if digits.isdigit() and len(digits) < 12 else -1
            if not colon or not 0 <= size <= self._size:
                self.refuse_here("a text is expected, as LENGTH:TEXT,")
            if len(text) <= size:  # the line break is part of the text
                text += b"\n" + self._stream.read(size - len(text)) + self.line()
            if len(text) != size + 1 or not text.endswith(b","):
                self.refuse_here(f"the text {text[:20]!r} has another length than {size}")
            texts.append(as_text(text[:-1]))
        return texts

    def weights(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Yield the numbers and the values of the weights, from lines such as ``12=0x1.8p+1``, some at a time."""
        while part := self._stream.read(_AT_ONCE) + self._stream.readline():
            if not part.endswith(b"\n"):
                self.refuse_here("the last line does not end: it is cut off")
            match: Any = _WEIGHTS.fullmatch(part)
            try:
                lines = match[0].decode("ascii").replace("=", "\n").split("\n")
                ids = np.array([*map(int, lines[:-1:2])])
                values = np.array([*map(float.fromhex, lines[1::2])])
            except (TypeError, ValueError, OverflowError):
                self.refuse_here("not all lines are weights, as NUMBER=0x1.8p+1")
            yield ids, values


def read_wapiti(data: "bytes | BinaryIO", source: str) -> ForeignModel:
    """Read a model from the bytes of its file, or from the open file, which takes less memory.

    source (str): Name of the file, for messages.
    RAISES (ValueError): CRF854 with the place, if the file is damaged or not a linear chain of Wapiti; CRF856 for a wrong
        pattern."""
    lines = _Lines(BytesIO(data) if isinstance(data, (bytes, bytearray, memoryview)) else data, source)
    kind, n_weights = lines.header("#mdl#")
    if kind not in (None, _CHAIN):
        lines.refuse(
            "the header",
            "it is no linear chain: maximum entropy models of single tokens (0) and of steps (1) are "
            f"normalised otherwise, and this is {kind.decode()}",
        )
    n_patterns, _, _ = lines.header("#rdr#")
    patterns = lines.texts(int(n_patterns))
    if not patterns:
        lines.refuse("the patterns", "there are none: it was trained on features that were ready-made")
    (n_labels,) = lines.header("#qrk#")
    labels = lines.texts(int(n_labels))
    (n_names,) = lines.header("#qrk#")
    names = lines.texts(int(n_names))
    lines.check_labels(labels)
    # [F] whether a feature has a weight for each label, and whether it has a weight for each pair of labels
    has_labels = np.array([name[:1] in "u*" for name in names], dtype=bool)
    has_pairs = np.array([name[:1] in "b*" for name in names], dtype=bool)
    size = len(labels)
    # Weights are numbered feature by feature: first those of labels, then those of pairs
    starts = np.append(0, np.cumsum(has_labels * size + has_pairs * size * size))
    first_of_labels = np.where(has_labels, starts[:-1], -1)
    first_of_pairs = np.where(has_pairs, starts[:-1] + np.where(has_labels, size, 0), -1)
    n_lines = 0
    parts = [(np.zeros(0, dtype=np.int64), np.zeros(0))]
    for ids, values in lines.weights():
        n_lines += len(ids)
        is_wrong = (ids >= starts[-1]) | ~np.isfinite(values)
        if is_wrong.any():
            lines.refuse_here(f"weight {ids[is_wrong][0]} of {starts[-1]} is {values[is_wrong][0]}")
        parts.append((ids[values != 0], values[values != 0]))
    if n_lines != int(n_weights):
        lines.refuse("the weights", f"there are {n_lines}, and the header announces {int(n_weights)}: it is cut off")
    all_ids, all_values = map(np.concatenate, zip(*parts))
    del parts  # as large as the weights
    compiled = [compile_pattern(pattern) for pattern in patterns]
    # A pattern of pairs without a place makes the same feature everywhere: its weights are transitions
    constants = {pattern.form % () for pattern in compiled if not pattern.places and pattern.form[0] in "b*"}
    blocks = (first_of_labels, first_of_pairs)
    return assemble("wapiti", labels, names, blocks, all_ids, all_values, patterns, constants)
