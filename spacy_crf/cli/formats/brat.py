"""Reads brat's standoff format: a text in one file, and its annotation in a file ``.ann`` beside it."""

import re
from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .annotation import Span, make_doc, parse_span
from .source import ReadSettings, Report, Source, unreadable

SUFFIX = ".ann"
_DIGITS = 18  # largest number of digits of an offset: more than the length of any text has
# The kind of a line, by the first letter of its identifier
_KINDS = {"T": "spans", "R": "relations", "*": "relations", "E": "events", "A": "attributes", "M": "attributes"}
_KINDS |= {"N": "normalizations", "#": "notes"}
_ID = re.compile(r"(\*|[TREAMN]\d+\S*|#\S*)\t")
_SPAN = re.compile(r"(\S+) (\d+ \d+(?:;\d+ \d+)*) *")


def is_collection(path: Path) -> bool:
    return path.is_dir() and any(path.glob(f"*{SUFFIX}"))


def sniff(source: Source) -> bool:
    path = source.path
    return path.suffix == SUFFIX or (path.suffix == ".txt" and path.with_suffix(SUFFIX).exists()) or is_collection(path)


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc for each text of a folder, or for one text. A span in several parts becomes missing annotation; relations,
    events, attributes, normalizations and notes are counted and left out."""
    path = source.path
    for annotated in sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path.with_suffix(SUFFIX)]:
        for file in (annotated, annotated.with_suffix(".txt")):
            if not file.is_file():
                two = "brat keeps a text and its annotation in two files of the same name"
                raise unreadable(path, f"{two}, and {file.name} is missing")
        text = Source(annotated.with_suffix(".txt"), source.encoding).text()
        spans, broken = [], []
        for place, kind, fields in _lines(Source(annotated, source.encoding)):
            parts = _parts(fields, text, place) if kind == "spans" else []
            (spans if len(parts) == 1 else broken).extend(parts)
            if len(parts) != 1:
                report.unkept.setdefault("spans in several parts" if parts else kind, []).append(place)
        report.has_spans |= bool(spans)
        yield make_doc(nlp, text, spans, missing=broken, place=str(annotated), settings=settings, report=report)


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
        if name in known and name[0] not in "*#":
            raise unreadable(place, f"its identifier {name} is also used at {known[name]}")
        known[name] = place
        yield place, _KINDS[name[0]], line[match.end() :].split("\t")


def _parts(fields: list[str], text: str, place: str) -> list[Span]:
    """Parse the parts of a span, and join parts with only white space between them: brat writes spans across lines so.

    RAISES (ValueError): CRF701 with the place, if the line has no label with offsets in the text; CRF871 if the words in the line
        differ from the text.
    """
    match = _SPAN.fullmatch(fields[0])
    if match is None:
        needs = "a span needs a label and offsets, as 'PER 0 3' or 'PER 0 3;8 12'"
        raise unreadable(place, f"{needs}, and has {fields[0][:40]!r}")
    label, offsets = match.groups()
    joined: list[tuple[int, int]] = []
    parts = (part.split(" ") for part in offsets.split(";"))
    for start, end in sorted((int(start[:_DIGITS]), int(end[:_DIGITS])) for start, end in parts):
        if joined and start >= joined[-1][1] and not text[joined[-1][1] : start].strip():
            start = joined.pop()[0]
        joined.append((start, end))
    span = {"label": label, "text": fields[1] if len(fields) > 1 and len(joined) == 1 else None}
    return [parse_span({**span, "start": start, "end": end}, text, place) for start, end in joined]
