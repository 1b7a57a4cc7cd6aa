"""Reads brat's standoff format: a text in one file, and its annotation in a file ``.ann`` beside it."""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...pipeline.corpora import set_origin
from .annotation import make_doc, read_spans
from .offsets import BOM, CRLF, UTF16, HabitSearch, index_of
from .source import Fields, ReadSettings, Report, Source, unreadable

SUFFIX = ".ann"
_DIGITS = 18  # largest number of digits of an offset: more than the length of any text has
# The kind of a line, by the first letter of its identifier
_KINDS = {"T": "spans", "R": "relations", "*": "relations", "E": "events", "A": "attributes", "M": "attributes"}
_KINDS |= {"N": "normalizations", "#": "notes"}
_ID = re.compile(r"(\*|[TREAMN]\d+\S*|#\S*)\t")
_SPAN = re.compile(r"(\S+) (\d+ \d+(?:;\d+ \d+)*) *")


def is_collection(path: Path) -> bool:
    """Whether a path is a folder with files of brat."""
    return path.is_dir() and any(path.glob(f"*{SUFFIX}"))


def sniff(source: Source) -> bool:
    """Whether a file belongs to brat, or a folder has such files."""
    path = source.path
    return path.suffix == SUFFIX or (path.suffix == ".txt" and path.with_suffix(SUFFIX).exists()) or is_collection(path)


class _Written(NamedTuple):
    """A span as the file has it."""

    place: str  # the file and the number of the line, for messages
    label: str
    parts: list[tuple[int, int]]  # start and end of each part
    words: Optional[str]  # None if the line has none


class _Standoff(NamedTuple):
    """A text with its annotation."""

    place: str  # the file of the annotation
    text: str
    spans: list[_Written]
    others: list[tuple[str, str]]  # place and kind of other lines


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc for each text of a folder, or for one text. A span in several parts becomes missing annotation; relations,
    events, attributes, normalizations and notes are counted and left out."""
    texts = [file.with_suffix(".txt") for file in _annotated(source.path)]
    # Some tools count the byte order mark as the first character
    has_mark = any(path.is_file() and path.read_bytes().startswith(codecs.BOM_UTF8) for path in texts)
    habits = HabitSearch(settings.offsets, (UTF16, CRLF, BOM) if has_mark else (UTF16, CRLF))
    for standoff in _standoffs(source):
        if habits.needs(standoff.text):
            # The words of a span in parts are joined in the line, and can stand nowhere in the text
            whole = [span for span in standoff.spans if len(span.parts) == 1]
            habits.see(standoff.text, ((*span.parts[0], span.words) for span in whole))
    report.offsets = habits.found()
    # The files are read again, now that it is known how they count
    for standoff in _standoffs(source):
        spans = []
        in_parts = []  # the parts of spans in several parts
        is_complete = True
        # A Doc has no place for relations and the like: the user learns how many are left out
        for place, kind in standoff.others:
            report.unkept.setdefault(kind, []).append(place)
        index = index_of(standoff.text, report.offsets)
        for span in standoff.spans:
            parts = _join_parts(span, standoff.text, index)
            parsed, are_complete = read_spans(parts, standoff.text, span.place, report)
            is_complete &= are_complete
            if len(parts) == 1:
                spans.extend(parsed)
            else:
                in_parts.extend(parsed)
                report.unkept.setdefault("spans in several parts", []).append(span.place)
        report.has_spans |= bool(spans)
        doc = make_doc(
            nlp,
            standoff.text,
            spans,
            missing=in_parts,
            is_complete=is_complete,
            place=standoff.place,
            settings=settings,
            report=report,
        )
        set_origin(doc, standoff.place)
        yield doc


def _annotated(path: Path) -> list[Path]:
    """The files of annotation in a folder, or the one that belongs to a file."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path.with_suffix(SUFFIX)]


def _standoffs(source: Source) -> Iterator[_Standoff]:
    """Read the texts of a folder, or one text. RAISES (ValueError): CRF701 if the text or its annotation is missing."""
    for annotated in _annotated(source.path):
        for file in (annotated, annotated.with_suffix(".txt")):
            if not file.is_file():
                two = "brat keeps a text and its annotation in two files of the same name"
                raise unreadable(source.path, f"{two}, and {file.name} is missing")
        text = Source(annotated.with_suffix(".txt"), source.encoding).text()
        spans = []
        others = []
        for place, kind, fields in _lines(Source(annotated, source.encoding)):
            if kind == "spans":
                spans.append(_parse_span(fields, place))
            else:
                others.append((place, kind))
        yield _Standoff(str(annotated), text, spans, others)


def _lines(source: Source) -> Iterator[tuple[str, str, list[str]]]:
    """Yield place and kind of each line, and its fields between tabs after the identifier.

    RAISES (ValueError): CRF701 with the place, for a line without identifier or an identifier used twice.
    """
    known: dict[str, str] = {}
    for place, line in source.lines():
        if not line.strip():
            continue
        match = _ID.match(line)
        if match is None:
            raise unreadable(place, f"it does not begin with an identifier such as T1 and a tab: {line[:40]!r}")
        name = match[1]
        # Every relation of equivalence is called *, and the names of notes do not matter
        if name in known and name[0] not in "*#":
            raise unreadable(place, f"its identifier {name} is also used at {known[name]}")
        known[name] = place
        yield place, _KINDS[name[0]], line[match.end() :].split("\t")


def _parse_span(fields: list[str], place: str) -> _Written:
    """Parse the fields of a span. RAISES (ValueError): CRF701 with the place, if the line has no label with offsets."""
    match = _SPAN.fullmatch(fields[0])
    if match is None:
        needs = "a span needs a label and offsets, as 'PER 0 3' or 'PER 0 3;8 12'"
        raise unreadable(place, f"{needs}, and has {fields[0][:40]!r}")
    label, offsets = match.groups()
    parts = [part.split(" ") for part in offsets.split(";")]
    # int() is quadratic in the digits, and a file may hold millions of them
    numbers = [(int(start[:_DIGITS]), int(end[:_DIGITS])) for start, end in parts]
    return _Written(place, label, sorted(numbers), fields[1] if len(fields) > 1 else None)


def _join_parts(span: _Written, text: str, index: Optional[dict[int, int]]) -> list[Fields]:
    """Make an object of each part of a span, for `read_spans`. Parts with only white space between them become one part, since
    brat cuts spans at the ends of lines.

    index (Optional[dict[int, int]]): The character of the text at each offset of the file; None if the offsets are characters.
    """
    joined: list[tuple[int, int]] = []
    for start, end in span.parts:
        if index is not None:
            start = index.get(start, -1)
            end = index.get(end, -1)
        if joined and start >= joined[-1][1] and not text[joined[-1][1] : start].strip():
            start = joined.pop()[0]
        joined.append((start, end))
    words = span.words if len(joined) == 1 else None
    return [{"start": start, "end": end, "label": span.label, "text": words} for start, end in joined]
