"""Reads files: lines, or items of JSON, each with its place for messages. Also has the settings for reading, and the report."""

import ast
import codecs
import io
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Optional

from wasabi import msg

from ...errors import Errors, in_number
from .offsets import HABITS

_SHOWN = 3  # number of places in each warning

_HEAD = 50  # number of lines or items from which the format of a file is detected
# A file of Python that begins with TRAIN_DATA = [("a text", {"entities": …
_PYTHON = re.compile(r"\s*(\w+\s*=\s*)?\[\s*\(")
_JSON_SUFFIXES = (".json", ".jsonl", ".ndjson")
_BLANK = " \t\r\n\ufeff"


@dataclass(frozen=True)
class ReadSettings:
    """How to read a file.

    format (str): A name in ``FORMATS``; None to detect the format from the contents.
    word_column, label_column, tag_column (str): Columns of the word or text, of the entity tag or label of the text, and of
        ``token.tag``: numbers from 1 on, or names in the header. For JSON with texts: keys.
    scheme (str): Scheme of the entity tags, one of ``SCHEMES``; None to detect the scheme from the tags.
    n_sents (int): Number of sentences in a Doc; 0 for whole documents, if the file marks their ends.
    tag_names (Collection[str]): Names of tags or labels that are numbers, from 0 on.
    ignore (Collection[str]): Keys of JSON, or columns of a header, to leave out.
    overlaps (str): "longest" keeps the longest of overlapping spans, "error" refuses them.
    without_spans (bool): Whether a file without any annotation is accepted.
    predictions (bool): Whether to read the predictions of a model for texts without annotation.
    retokenize (bool): Whether the tokenizer cuts texts of columns, whose words are joined by spaces.
    spans_key (Optional[str]): Key of ``doc.spans`` for all spans, which may overlap; None for ``doc.ents``.
    offsets (Collection[str]): How the file counts characters: keys of ``HABITS``; by default the words of its spans show it.
    skip_broken (bool): Whether spans that can't be read become missing annotation.
    """

    format: Optional[str] = None
    encoding: str = "utf-8"
    word_column: Optional[str] = None
    label_column: Optional[str] = None
    tag_column: Optional[str] = None
    scheme: Optional[str] = None
    n_sents: int = 1
    tag_names: Collection[str] = ()
    ignore: Collection[str] = ()
    overlaps: str = "error"
    without_spans: bool = False
    predictions: bool = False
    retokenize: bool = False
    spans_key: Optional[str] = None
    offsets: Collection[str] = ()
    skip_broken: bool = False


@dataclass
class Report:
    """Counts of the contents of files, and places of annotation that could not be used."""

    format: str = ""
    scheme: str = ""
    spelling: str = ""  # a tag, if tags are spelled otherwise than B-PER
    documents: int = 0
    spans: int = 0
    tagged: int = 0  # documents with tags
    labelled: int = 0  # documents with labels of the whole text
    segmented: int = 0  # documents with places of words
    extended: int = 0  # documents with values of extensions
    labels: dict[str, None] = field(default_factory=dict)  # labels of documents, in order of occurrence
    exclusive: bool = True  # whether no document has several labels
    groups: dict[str, int] = field(default_factory=dict)  # spans in doc.spans, by key, beside those that are asked for
    incorrect: int = 0  # spans that are annotated as wrong
    has_spans: bool = False  # whether the file has keys or columns for spans, filled or empty
    offsets: list[str] = field(default_factory=list)  # how the file counts characters: keys of HABITS
    broken: list[str] = field(default_factory=list)  # messages about spans that can't be read
    # Places, for warnings
    trimmed: list[str] = field(default_factory=list)  # spans with white space at their edges
    overlapping: list[str] = field(default_factory=list)  # spans that overlap others and are left out
    misaligned: list[str] = field(default_factory=list)  # entities whose edges are not those of tokens
    unaligned: list[str] = field(default_factory=list)  # spans in doc.spans whose edges are not those of tokens
    rejected: list[str] = field(default_factory=list)  # texts that the annotator rejected
    unread: list[str] = field(default_factory=list)  # texts with further annotations, which are not read
    unlabelled: list[str] = field(default_factory=list)  # texts without labels, if other texts have some
    unkept: dict[str, list[str]] = field(default_factory=dict)  # annotation that a Doc can't hold, by kind
    long: list[str] = field(default_factory=list)  # very long documents
    binary: list[str] = field(default_factory=list)  # answers about a single span
    columns: list[str] = field(default_factory=list)  # columns that were not read
    tag_columns: list[str] = field(default_factory=list)  # columns of entity tags that were read
    repaired: list[str] = field(default_factory=list)  # tags that go on with an entity that does not stand before them
    comments: list[str] = field(default_factory=list)  # lines that could be the token "#"
    inside: list[str] = field(default_factory=list)  # sentences that begin inside of words
    other_texts: list[str] = field(
        default_factory=list
    )  # sentences of CoNLL-U whose `# text` is not that of their words

    def print_warnings(self) -> None:
        """Print what was left out or repaired, with the first places of each."""
        for places, message in (
            (self.trimmed, "span|spans began or ended with white space, which is left out"),
            (self.broken, "span|spans can't be read: the rest of the text|texts counts as missing annotation"),
            (
                self.overlapping,
                "span|spans overlapping longer ones (or equal ones in front) is|are left out (--spans-key sc keeps all, for "
                "crf_spancat)",
            ),
            (self.misaligned, "span|spans does|do not align with the tokens, and counts|count as missing annotation"),
            (self.unaligned, "span|spans does|do not align with the tokens, and is|are left out"),
            (self.rejected, "text|texts not accepted by the annotator or empty, and left out"),
            (self.unread, "text|texts is|are annotated several times: the first that counts is kept"),
            (self.unlabelled, "text|texts has|have no label where others have one, and counts|count as not annotated"),
            *((places, f"{kind} can't be kept in doc.ents, and are left out") for kind, places in self.unkept.items()),
            (
                self.repaired,
                "tag|tags whose entity is not the one in front begins|begin an entity, as conlleval reads tags",
            ),
            (
                self.comments,
                "line|lines with # at the beginning skipped as comment|comments, but could be a token|tokens",
            ),
            (self.inside, "sentence|sentences begins|begin inside of a word, and is|are moved to the next one"),
            (
                self.other_texts,
                "sentence|sentences whose # text is not that of its|their words, which are what is read",
            ),
            (self.long, "document|documents of great length: are the ends of sentences marked in the file?"),
        ):
            if places:
                msg.warn(f"{in_number(len(places), message)}. First: {'; '.join(places[:_SHOWN])}")
        if self.binary:
            msg.info(
                f"{in_number(len(self.binary), 'answer|answers is|are about a single span')}: the rest of the text counts as "
                "missing annotation, and what was rejected is in doc.spans['incorrect_spans'] (incorrect_spans_key of the "
                "components)"
            )
        if self.spelling:
            msg.info(f"Tags such as {self.spelling} are read as letter and label")
        if self.offsets:
            msg.info(f"The offsets of its spans count {' and '.join(HABITS[name] for name in self.offsets)}")
        if len(self.tag_columns) > 1:
            msg.info(f"Spans are those of the tags in columns {', '.join(self.tag_columns)}")
        if self.columns:
            msg.info(f"Columns that are not read: {', '.join(self.columns)}")


Fields = dict[str, Any]  # a JSON object


class Item(NamedTuple):
    """A value that was read from a file."""

    place: str  # the file and the number of the line or item, for messages
    value: Any


def unreadable(place: object, reason: object) -> ValueError:
    """Make the error CRF701 for a place that can't be read."""
    return ValueError(Errors.CRF701.format(place=place, reason=reason))


class Source:
    """A file to read. Each call of `lines` and `items` reads it from its beginning.

    size (int): Number of bytes of the file.
    position (int): Number of bytes that the latest call has read.
    """

    def __init__(self, path: Path, encoding: str = "utf-8") -> None:
        """Open a source. RAISES (ValueError): CRF872 if the encoding is unknown, CRF749 for a pipe or a device."""
        try:
            self._goes_by_lines = "\n".encode(encoding) == b"\n"
        except (LookupError, UnicodeError):
            raise ValueError(Errors.CRF872.format(encoding=encoding, path=path)) from None
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ValueError(Errors.CRF749.format(path=path))
        self.path = path
        self.encoding = encoding
        self.size = path.stat().st_size
        self.position = 0

    def lines(self) -> Iterator[tuple[str, str]]:
        """Read the lines, each with its place. RAISES (ValueError): With the place, if a line is not in the file's encoding."""
        return _without_ends(self._whole_lines(), str(self.path))

    def text(self) -> str:
        """Read the whole text. RAISES (ValueError): With the place, if a line is not in the file's encoding."""
        return "".join(line for _, line in self._whole_lines())

    def _whole_lines(self) -> Iterator[tuple[str, str]]:
        """Read the lines with their ends, each with its place, and count the bytes in `position`."""
        self.position = 0
        with self.path.open("rb") as file:
            name = str(self.path)
            lines = file
            encoding = self.encoding
            # In UTF-16 a line feed has two bytes, so lines are cut after decoding
            if not self._goes_by_lines:
                lines = io.BytesIO(_in_utf8(file.read(), name, encoding))
                encoding = "utf-8"

            def counted() -> Iterator[bytes]:
                for line in lines:
                    self.position += len(line)
                    yield line

            yield from _decoded_lines(counted(), name, encoding)

    def items(self) -> Iterator[Item]:
        """Read the values of JSONL, of one JSON list, or of one Python list.

        RAISES (ValueError): With the place, if a value can't be read.
        """
        first = next((line for _, line in self.lines() if line.strip(_BLANK)), "")
        if self.path.suffix == ".py" or _PYTHON.match(first):
            yield from _python_items("\n".join(line for _, line in self.lines()), self.path)
        elif self._is_one_value(first):
            # A single JSON value is parsed as a whole
            for item in _json_items("\n".join(line for _, line in self.lines()), self.path):
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
        values = []
        try:
            for item in islice(self.items(), _HEAD):
                values.append(item.value)
        except ValueError:  # the reader will report the error with its place
            pass
        return values

    def head_objects(self) -> list[Fields]:
        """The first JSON objects; none if the file is not JSON."""
        return [value for value in self.head_items() if isinstance(value, dict)] if self.is_json() else []

    def is_json(self) -> bool:
        """Whether the name or the beginning of the file looks like JSON or Python."""
        if self.path.suffix in (*_JSON_SUFFIXES, ".py"):
            return True
        return any(isinstance(value, dict | list) for value in self.head_items()[:1])

    def _is_one_value(self, first: str) -> bool:
        """Whether the file is one JSON value rather than one on each line. `first` is its first line."""
        try:
            value = json.loads(first.strip(_BLANK))
        except (ValueError, RecursionError):  # the value goes on in the next line
            return first.strip(_BLANK).startswith("[") or self.path.suffix == ".json"
        # A list is the whole file, but ["a text", {…}] is the item of one line
        return isinstance(value, list) and bool(value) and not isinstance(value[0], str)


def read_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    """Read the lines of a file in UTF-8, each with its place. RAISES (ValueError): CRF701 with the place, if a line is not in
    UTF-8."""
    return _without_ends(_decoded_lines(file, name), name)


def _without_ends(lines: Iterable[tuple[str, str]], name: str) -> Iterator[tuple[str, str]]:
    """Cut off the ends of lines. If a carriage return alone ends the first line, as on old Macs, carriage returns end all lines,
    and are counted for the places.

    name (str): Name of the file, for the places.
    """
    by_returns = False
    number = 0  # of the line, if carriage returns end lines
    for n, (place, line) in enumerate(lines):
        line = line.rstrip("\r\n")
        if n == 0:
            by_returns = "\r" in line
        if not by_returns:
            yield place, line
            continue
        for part in line.split("\r"):
            number += 1
            yield f"{name}, line {number}", part


def _decoded_lines(file: Iterable[bytes], name: str, encoding: str = "utf-8") -> Iterator[tuple[str, str]]:
    """Read the lines of a file with their ends, each with its place. Only line feeds end lines: texts may have other separators.

    RAISES (ValueError): CRF701 with the place, if a line is not in this encoding.
    """
    for number, line in enumerate(file, start=1):
        place = f"{name}, line {number}"
        yield place, decoded(line, place, encoding, is_first=number == 1)


def decoded(line: bytes, place: str, encoding: str = "utf-8", *, is_first: bool = False) -> str:
    """Decode a line of a file.

    is_first (bool): Whether the line is the first one, which may begin with a byte order mark. The mark is left out.
    RAISES (ValueError): CRF701 with the place, if the line is not in this encoding.
    """
    may_have_mark = is_first and encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    try:
        text = line.decode("utf-8-sig" if may_have_mark else encoding)
    except UnicodeError as error:
        raise _not_in(encoding, place, line, error) from None
    # UTF-16 without a mark is valid UTF-8 if the text is ASCII
    if may_have_mark and text.count("\0") > len(text) // 3:
        raise _not_in(encoding, place, line)
    return text


def _in_utf8(data: bytes, name: str, encoding: str) -> bytes:
    """Convert a file from an encoding such as UTF-16, in which a line feed has more than one byte.

    RAISES (ValueError): CRF701 with the place, if the file is not in this encoding.
    """
    try:
        return data.decode(encoding).encode("utf8")
    except UnicodeError as error:
        before = data[: getattr(error, "start", 0)].decode(encoding, "replace")
        raise _not_in(encoding, f"{name}, line {before.count(chr(10)) + 1}", data, error) from None


def _not_in(encoding: str, place: str, line: bytes, error: Optional[UnicodeError] = None) -> ValueError:
    """Make the error CRF701 for a line in another encoding, with a guess at that encoding."""
    is_utf16 = line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in line
    advice = "probably --encoding utf-16" if is_utf16 else "such as --encoding cp1252"
    reason = getattr(error, "reason", error) or "every second byte is 0"
    wrong = f"it is not {encoding.upper()} ({reason})"
    return unreadable(place, f"{wrong}. Save the file as UTF-8, or name its encoding for `spacy crf convert`, {advice}")


def parsed(text: str, place: str) -> Any:
    """Parse JSON. RAISES (ValueError): CRF701 with the place, if the text is not JSON."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise _not_json(error, place) from None


def _not_json(error: Exception, place: str) -> ValueError:
    """Make the error CRF701 for a place that the JSON decoder could not read."""
    if "int_max_str_digits" in str(error):
        return unreadable(place, "an integer has more than 4,300 digits, which Python does not read")
    reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
    return unreadable(place, f"it is not JSON ({reason})")


def _without_twins(pairs: list[tuple[str, object]]) -> Fields:
    """Make a JSON object from its keys and values.

    RAISES (ValueError): If it has a key twice, since all but the last value would be lost.
    """
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return fields


# json.loads would make a decoder for each line
_DECODER = json.JSONDecoder(object_pairs_hook=_without_twins)


def _json_items(text: str, path: Path) -> Iterator[Item]:
    """Parse the values of a file that is one JSON list, or of a file with one value after the other.

    RAISES (ValueError): CRF701 with the place, if a value is not JSON, or the list does not end properly.
    """
    position = _skip_blanks(text, 0)  # of the next character to parse
    in_list = text[position : position + 1] == "["
    position = _skip_blanks(text, position + 1) if in_list else position
    number = 0
    line = 1
    counted_to = 0  # the position up to which lines are counted
    while position < len(text) and not (in_list and text[position] == "]"):
        number += 1
        line += text.count("\n", counted_to, position)
        counted_to = position
        place = f"{path}, line {line}, item {number}"
        try:
            value, position = _DECODER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            raise _not_json(error, f"{path}, line {error.lineno}, item {number}") from None
        except (ValueError, RecursionError) as error:
            raise _not_json(error, place) from None
        yield Item(place, value)
        position = _skip_blanks(text, position)
        if in_list and text[position : position + 1] == ",":
            position = _skip_blanks(text, position + 1)
        elif in_list and text[position : position + 1] != "]":
            is_cut = position >= len(text)
            reason = "the list ends without ']', so the file may have been cut" if is_cut else "',' is missing"
            raise unreadable(place, f"it is not JSON (after it, {reason})")
    is_cut = position >= len(text)
    if in_list and (is_cut or _skip_blanks(text, position + 1) < len(text)):
        reason = "the list ends without ']'" if is_cut else "there is more after the list"
        raise unreadable(f"{path}, line {text.count(chr(10)) + 1}", reason)


def _skip_blanks(text: str, position: int) -> int:
    """The position of the first character from `position` on that is not white space; the end of the text if there is none."""
    while position < len(text) and text[position] in _BLANK:
        position += 1
    return position


def _python_items(text: str, path: Path) -> Iterator[Item]:
    """Read the elements of the list in a Python file, as spaCy 2 was trained on, without running the code.

    RAISES (ValueError): CRF701 with the place, if the file is not Python, has several lists, or an element is not a literal.
    """
    try:
        tree: Any = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = f"{path}, line {getattr(error, 'lineno', None) or 1}"
        raise unreadable(place, f"it is not Python ({getattr(error, 'msg', error)})") from None
    lists = [node.value for node in tree.body if isinstance(getattr(node, "value", None), ast.List)]
    if len(lists) > 1:
        reason = "there is a second list, and only one can hold the texts: move the other to a file of its own"
        raise unreadable(f"{path}, line {lists[1].lineno}", reason)
    for number, node in enumerate(lists[0].elts if lists else (), start=1):
        place = f"{path}, line {node.lineno}, item {number}"
        try:
            # By way of JSON, which has lists in place of tuples
            yield Item(place, json.loads(json.dumps(ast.literal_eval(node))))
        except (ValueError, TypeError, RecursionError, MemoryError) as error:
            raise unreadable(place, f"it is not a Python literal ({error})") from None
