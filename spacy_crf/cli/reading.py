"""Annotated texts as annotation tools, shared tasks and spaCy write them."""

import json
import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.vocab import Vocab

from ..errors import Errors, shown

COLUMN_SUFFIXES = (".conll", ".iob", ".bio", ".tsv")
SPAN_KEYS = ("spans", "entities", "label", "labels")  # Prodigy's, spaCy's and doccano's
# What tools write beside spans, and what this would lose
_OTHER_ANNOTATION = {"accept", "annotations", "cats", "ents", "ner", "relations", "tags"}
_OFFSETS, _LABELS = {"start", "start_offset", "start_char"}, {"label", "labels", "tag", "type"}  # what tells a span


class Span(NamedTuple):
    """Characters ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str

    def named_in(self, text: str) -> str:
        return f"{self.start}-{self.end} '{text[self.start : self.end]}' ({self.label})"


class Report:
    """What was read, and what of it could not be used."""

    def __init__(self) -> None:
        self.misaligned: list[str] = []  # places
        self.rejected: list[str] = []


def read_docs(
    path: Path,
    nlp: Language,
    *,
    tag_column: Optional[int] = None,
    ignore: Collection[str] = (),
    report: Optional[Report] = None,
) -> list[Doc]:
    """The annotated Docs of a file.

    path (Path): JSONL if it ends so, columns otherwise.
    nlp (Language): Its tokenizer is used for JSONL.
    tag_column (int): Column, counted from 1, that gives ``token.tag``.
    ignore (Collection[str]): Keys of JSONL that are passed over, whatever they hold.
    report (Report): Told what could not be used.
    RETURNS (List[Doc])
    RAISES (ValueError): With file and line, if one can't be read; if there are no texts.
    """
    report = Report() if report is None else report
    if path.suffix == ".json":
        raise ValueError(Errors.CRF716.format(path=path))
    docs = list(
        _read_jsonl(path, nlp, ignore, report)
        if path.suffix == ".jsonl"
        else _read_columns(path, nlp.vocab, tag_column)
    )
    if not docs:
        rejected = len(report.rejected)
        raise ValueError((Errors.CRF719 if rejected else Errors.CRF708).format(path=path, rejected=rejected))
    return docs


def read_examples(path: Path, nlp: Language) -> list[Example]:
    """Examples of a .spacy file, of a folder of them, or of a file that `read_docs` reads.

    RAISES (ValueError): If there are none.
    """
    corpus = Corpus(path)
    if path.suffix != ".spacy" and not path.is_dir():
        return list(corpus.make_examples(nlp, read_docs(path, nlp)))
    try:
        examples = list(corpus(nlp))
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise ValueError(Errors.CRF717.format(path=path, reason=error)) from None
    if not examples:
        raise ValueError(Errors.CRF708.format(path=path))
    return examples


# ----------------------------------------------------------------------------------------------------------- JSONL


def _read_jsonl(path: Path, nlp: Language, ignore: Collection[str], report: Report) -> Iterator[Doc]:
    for place, line in _lines(path):
        if not line.strip():
            continue
        text, spans, answer = _parse_item(line, ignore, place)
        if answer not in (None, "accept"):
            report.rejected.append(f"{place} ('{answer}')")
            continue
        doc = nlp.make_doc(text)
        entities, cut = [], []
        for span in spans:
            entity = doc.char_span(span.start, span.end, label=span.label)
            if entity is None:
                report.misaligned.append(f"{place}, {span.named_in(text)}")
                # None for a space between tokens
                cut.extend(doc.char_span(span.start, span.end, alignment_mode="expand") or ())
            else:
                entities.append(entity)
        # A token that a misaligned span cuts may be part of an entity, which then says more about it.
        taken = {token.i for entity in entities for token in entity}
        missing = [doc[i : i + 1] for i in sorted({token.i for token in cut} - taken)]
        doc.set_ents(entities, missing=missing, default="outside")
        yield doc


def _parse_item(line: str, ignore: Collection[str], place: str) -> tuple[str, list[Span], Optional[str]]:
    """Text, spans in their order, and the annotator's answer, if the tool wrote one."""
    try:
        item = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(Errors.CRF701.format(place=place, reason=f"it is not JSON ({error})")) from None
    if isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict):
        item = {**item[1], "text": item[0]}  # as spaCy's training data once was
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise ValueError(Errors.CRF701.format(place=place, reason='it has no "text"'))
    text, item = item["text"], {key: value for key, value in item.items() if key not in ignore}
    spans = sorted(_parse_span(span, len(text), place) for span in _spans_of(item, place))
    for span, following in pairwise(spans):
        if following.start < span.end:
            both = {"first": span.named_in(text), "second": following.named_in(text)}
            raise ValueError(Errors.CRF702.format(place=place, **both))
    return text, spans, item.get("answer")


def _spans_of(item: dict[str, Any], place: str) -> list[Any]:
    """The spans of an item, as they were written. RAISES (ValueError): If anything else in it holds annotation."""
    if isinstance(item.get("label"), str) and "spans" in item:
        item = {**item, "label": None}  # Prodigy writes there what was asked for
    keys = [key for key in SPAN_KEYS if item.get(key) not in (None, [])]
    for key, value in item.items():
        if key not in SPAN_KEYS and value and (key in _OTHER_ANNOTATION or _holds_annotation(value)):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known=", ".join(SPAN_KEYS)))
    if len(keys) > 1:
        raise ValueError(Errors.CRF714.format(place=place, keys=" and ".join(map(repr, keys)), last=keys[-1]))
    spans = item[keys[0]] if keys else []
    if not isinstance(spans, list):
        raise ValueError(Errors.CRF701.format(place=place, reason=f'"{keys[0]}" is not a list of spans'))
    return spans


def _holds_annotation(value: Any) -> bool:
    """Whether spans with labels, or tags of tokens, are anywhere in it."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if _OFFSETS.intersection(value) and _LABELS.intersection(value):
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            is_span = len(value) == 3 and [type(part) for part in value] == [int, int, str]
            if is_span or any(isinstance(part, str) and part[:2] in ("B-", "U-") for part in value):
                return True
            waiting.extend(value)
    return False


def _parse_span(span: Any, length: int, place: str) -> Span:
    if isinstance(span, list) and len(span) == 3:
        start, end, label = span
    else:
        fields = span if isinstance(span, dict) else {}
        start, end = (fields.get(name, fields.get(f"{name}_offset")) for name in ("start", "end"))
        label = fields.get("label")
    offsets = type(start) is int and type(end) is int and 0 <= start < end <= length
    if not offsets or not isinstance(label, str) or not label:
        reason = (
            f'a span needs "start" < "end" within the {length} characters of the text, and a "label" – or is '
            f"[start, end, label] – not {shown(span)}"
        )
        raise ValueError(Errors.CRF701.format(place=place, reason=reason))
    return Span(start, end, label)


# --------------------------------------------------------------------------------------------------------- columns


def _read_columns(path: Path, vocab: Vocab, tag_column: Optional[int]) -> Iterator[Doc]:
    least, width = max(2, tag_column or 0), None
    rows: list[list[str]] = []
    for place, line in _lines(path):
        row = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or row[0] == "-DOCSTART-":
            if rows:
                yield _make_doc(vocab, rows, tag_column)
            rows = []
            continue
        if line.startswith("# ") and not _is_tag(row[-1]) and len(row) != width:
            continue  # a comment
        expected = f"at least {least}" if width is None else f"{width}, as in the lines before,"
        if len(row) < least or len(row) != (width or len(row)):
            raise ValueError(Errors.CRF703.format(place=place, got=len(row), expected=expected))
        if not row[0]:
            raise ValueError(Errors.CRF701.format(place=place, reason="the word is empty"))
        width = len(row)
        if tag_column != width:
            _check_tag(row[-1], rows[-1][-1] if rows else "O", place)
        rows.append(row)
    if rows:
        yield _make_doc(vocab, rows, tag_column)


def _check_tag(tag: str, before: str, place: str) -> None:
    if not _is_tag(tag):
        raise ValueError(Errors.CRF704.format(place=place, tag=tag))
    if tag.startswith("I-") and before[2:] != tag[2:]:
        raise ValueError(Errors.CRF705.format(place=place, tag=tag, before=before, begin=f"B-{tag[2:]}"))


def _is_tag(tag: str) -> bool:
    return tag in ("O", "-") or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def _make_doc(vocab: Vocab, rows: list[list[str]], tag_column: Optional[int]) -> Doc:
    words = [row[0] for row in rows]
    tags = [row[tag_column - 1] for row in rows] if tag_column else None
    ents = [None if row[-1] == "-" else row[-1] for row in rows] if tag_column != len(rows[0]) else None
    return Doc(vocab, words=words, tags=tags, ents=ents)


# ----------------------------------------------------------------------------------------------------------- lines


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as file:
        yield from read_lines(file, str(path))


def read_lines(file: Iterable[bytes], name: str) -> Iterator[tuple[str, str]]:
    """The lines of a file, each with its place. Only the line feed ends a line: texts may hold other separators.

    RAISES (ValueError): With the place, if one is not UTF-8.
    """
    for number, line in enumerate(file, start=1):
        place = f"{name}, line {number}"
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(Errors.CRF701.format(place=place, reason=f"it is not UTF-8 ({error.reason})")) from None
        yield place, text.rstrip("\r\n")
