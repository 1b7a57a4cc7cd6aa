"""The lines of a file, or the items of its JSON, each with its place for messages."""

import ast
import codecs
import io
import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Optional

from ...errors import Errors

_HEAD = 50  # lines or items that show the format of a file
_PYTHON = re.compile(r"\s*(\w+\s*=\s*)?\[\s*\(")  # TRAIN_DATA = [("a text", {"entities": …
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_BLANK = " \t\r\n\ufeff"


class Item(NamedTuple):
    place: str
    value: Any


class Source:
    """A file to read. Each call of `lines` and `items` reads it from its beginning.

    position (int): How many of the `size` bytes the latest call has read.
    """

    def __init__(self, path: Path, encoding: str = "utf-8") -> None:
        """RAISES (ValueError): CRF872 if there is no such encoding."""
        try:
            self._goes_by_lines = "\n".encode(encoding) == b"\n"
        except (LookupError, UnicodeError):
            raise ValueError(Errors.CRF872.format(encoding=encoding, path=path)) from None
        self.path = path
        self.encoding = encoding
        self.size = path.stat().st_size
        self.position = 0

    def lines(self) -> Iterator[tuple[str, str]]:
        """The lines, each with its place. RAISES (ValueError): With the place, if a line is not in the encoding of the file."""
        for place, line in self._whole_lines():
            yield place, line.rstrip("\r\n")

    def text(self) -> str:
        """The whole text. RAISES (ValueError): With the place, if a line is not in the encoding of the file."""
        return "".join(line for _, line in self._whole_lines())

    def _whole_lines(self) -> Iterator[tuple[str, str]]:
        self.position = 0
        with self.path.open("rb") as file:
            if self._goes_by_lines:
                yield from decoded_lines(self._counted(file), str(self.path), self.encoding)
            else:
                data, self.position = file.read(), self.size
                yield from _lines_of_text(data, str(self.path), self.encoding)

    def items(self) -> Iterator[Item]:
        """The values of JSONL, of one JSON list, or of one Python list.

        RAISES (ValueError): With the place, if a value can't be read.
        """
        first = next((line for _, line in self.lines() if line.strip(_BLANK)), "")
        if self.path.suffix == ".py" or _PYTHON.match(first):
            yield from _python_items(self._text(), self.path)
        elif self._is_one_value(first):
            for item in _json_items(self._text(), self.path):
                self.position = self.size
                yield item
        else:
            for place, line in self.lines():
                if line.strip():
                    yield Item(place, parsed(line, place))

    def head_lines(self) -> list[str]:
        """The first lines that are not empty."""
        return list(islice((line for _, line in self.lines() if line.strip()), _HEAD))

    def head_items(self) -> list[Any]:
        """The first values, up to the first one that is neither JSON nor Python."""
        found: list[Any] = []
        try:
            for item in islice(self.items(), _HEAD):
                found.append(item.value)
        except ValueError:  # the reader will report it with its place
            pass
        return found

    def is_json(self) -> bool:
        """Whether the file is meant to be JSON or Python, by its name or its beginning."""
        if self.path.suffix in (*_JSON_SUFFIXES, ".py"):
            return True
        return any(isinstance(value, dict | list) for value in self.head_items()[:1])

    def _text(self) -> str:
        lines = (line for _, line in self.lines())
        return "\n".join(lines)

    def _counted(self, file: Iterable[bytes]) -> Iterator[bytes]:
        for line in file:
            self.position += len(line)
            yield line

    def _is_one_value(self, first: str) -> bool:
        """Whether the file is one JSON value rather than one on each line."""
        try:
            value = json.loads(first.strip(_BLANK))
        except (ValueError, RecursionError):
            return first.strip(_BLANK).startswith("[") or self.path.suffix == ".json"
        return isinstance(value, list) and bool(value) and not isinstance(value[0], str)  # ["a text", {…}] is an item


def read_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    """The lines of a file in UTF-8, each with its place. RAISES (ValueError): CRF701 with the place, if a line is not in
    UTF-8."""
    for place, line in decoded_lines(file, name):
        yield place, line.rstrip("\r\n")


def decoded_lines(file: Iterable[bytes], name: str, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """The lines of a file with their ends, each with its place. Only a line feed ends a line: texts may contain other separators.

    RAISES (ValueError): CRF701 with the place, if a line is not in this encoding.
    """
    utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    for number, line in enumerate(file, start=1):
        place = f"{name}, line {number}"
        is_first = utf8 and number == 1
        try:
            text = line.decode("utf-8-sig" if is_first else encoding)
        except UnicodeError as error:
            raise _not_in(encoding, place, line, error) from None
        if is_first and text.count("\0") > len(text) // 3:
            raise _not_in(encoding, place, line)
        yield place, text


def _lines_of_text(data: bytes, name: str, encoding: str) -> Iterator[tuple[str, str]]:
    """The lines of a file in an encoding such as UTF-16, in which a line feed is more than one byte.

    RAISES (ValueError): CRF701 with the place, if the file is not in this encoding.
    """
    try:
        text = data.decode(encoding)
    except UnicodeError as error:
        before = data[: getattr(error, "start", 0)].decode(encoding, "replace")
        raise _not_in(encoding, f"{name}, line {before.count(chr(10)) + 1}", data, error) from None
    for number, line in enumerate(io.StringIO(text.removeprefix("\ufeff"), newline="\n"), start=1):
        yield f"{name}, line {number}", line


def _not_in(encoding: str, place: str, line: bytes, error: Optional[UnicodeError] = None) -> ValueError:
    """The error CRF701 for a line in another encoding, with a guess at that encoding."""
    is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line
    found = getattr(error, "reason", error) or "every second byte is 0"
    reason = (
        f"it is not {encoding.upper()} ({found}). Save the file as UTF-8, or name its encoding for `spacy crf convert`, "
        f"{'probably --encoding utf-16' if is_utf16 else 'such as --encoding cp1252'}"
    )
    return ValueError(Errors.CRF701.format(place=place, reason=reason))


def parsed(text: str, place: str) -> Any:
    """Parse JSON. RAISES (ValueError): CRF701 with the place, if the text is not JSON."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(error, place) from None


def _not_json(error: Exception, place: str) -> ValueError:
    if "int_max_str_digits" in str(error):
        reason = "an integer has more than 4,300 digits, which Python does not read"
    elif isinstance(error, json.JSONDecodeError):
        reason = f"it is not JSON ({error.msg}, column {error.colno})"
    else:
        reason = f"it is not JSON ({error})"
    return ValueError(Errors.CRF701.format(place=place, reason=reason))


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. RAISES (ValueError): If a key stands twice: all but its last value would be lost."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_without_twins)  # json.loads would make a decoder for each line


def _json_items(text: str, path: Path) -> Iterator[Item]:
    """The values of one JSON list, or values that follow each other."""
    at = _next(text, 0)
    in_list = text[at : at + 1] == "["
    at, line, number = (_next(text, at + 1) if in_list else at), 1, 0
    counted = 0
    while at < len(text) and not (in_list and text[at] == "]"):
        number, line, counted = number + 1, line + text.count("\n", counted, at), at
        place = f"{path}, line {line}, item {number}"
        try:
            value, at = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise _not_json(error, f"{path}, line {error.lineno}, item {number}") from None
        except (ValueError, RecursionError) as error:
            raise _not_json(error, place) from None
        yield Item(place, value)
        at = _next(text, at)
        if in_list and text[at : at + 1] == ",":
            at = _next(text, at + 1)
        elif in_list and text[at : at + 1] != "]":
            reason = "the list ends without ']', so the file may have been cut" if at >= len(text) else "',' is missing"
            raise ValueError(Errors.CRF701.format(place=place, reason=f"it is not JSON (after it, {reason})"))
    if in_list and (at >= len(text) or _next(text, at + 1) < len(text)):
        reason = "there is more after the list" if at < len(text) else "the list ends without ']'"
        raise ValueError(Errors.CRF701.format(place=f"{path}, line {text.count(chr(10)) + 1}", reason=reason))


def _next(text: str, at: int) -> int:
    """The place behind the white space at `at`."""
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _python_items(text: str, path: Path) -> Iterator[Item]:
    """The elements of the list in a Python file. The code is parsed and not run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = f"it is not Python ({getattr(error, 'msg', error)})"
        raise ValueError(Errors.CRF701.format(place=f"{path}, line {line}", reason=reason)) from None
    lists = [node.value for node in tree.body if isinstance(getattr(node, "value", None), ast.List)]
    if len(lists) > 1:
        reason = "there is a second list, and only one can hold the texts: move the other to a file of its own"
        raise ValueError(Errors.CRF701.format(place=f"{path}, line {lists[1].lineno}", reason=reason))
    for number, node in enumerate(lists[0].elts if lists else (), start=1):
        place = f"{path}, line {node.lineno}, item {number}"
        try:
            yield Item(place, _as_json(ast.literal_eval(node)))
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            reason = f"it is not a Python literal ({error})"
            raise ValueError(Errors.CRF701.format(place=place, reason=reason)) from None


def _as_json(value: Any) -> Any:
    """A value with lists in place of tuples."""
    if isinstance(value, list | tuple):
        return [_as_json(part) for part in value]
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    return value
