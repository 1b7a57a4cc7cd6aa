"""Annotated text as annotation tools and shared tasks write it, to the ``.spacy`` files that ``spacy train`` reads."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Optional

import spacy
import typer
from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab
from wasabi import msg

from ..errors import Errors
from .main import app, told_briefly

COLUMN_SUFFIXES = (".conll", ".iob", ".bio", ".tsv")
_SHOWN = 3  # places named of what could not be used


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


@app.command("convert")
def convert_cli(
    input_path: Annotated[Path, typer.Argument(help="A file, or a folder of files.", exists=True)],
    output_path: Annotated[Path, typer.Argument(help="The .spacy file, or a folder for them.")],
    lang: Annotated[str, typer.Option("--lang", "-l", help="Language of the tokenizer, for JSONL.")] = "en",
    tag_column: Annotated[
        Optional[int], typer.Option("--tag-column", "-t", min=2, help="Column that gives token.tag.")
    ] = None,
) -> None:
    """Convert annotated text to .spacy files.

    JSONL (.jsonl): one {"text": …, "spans": [{"start": …, "end": …, "label": …}]} per line, as annotation tools write
    it; other keys are ignored. Spans that do not align with the tokens count as missing annotation there.

    Columns (any other suffix): one token per line, the word in the first column and the entity tag (IOB2: B-LABEL,
    I-LABEL, O; - where annotation is missing) in the last; a line without words ends a sentence. If the last column is the
    one of --tag-column, there are no entities.

    Of a folder, the files *.jsonl, *.conll, *.iob, *.bio and *.tsv are converted.
    """
    with told_briefly():
        for source, target in _files(input_path, output_path):
            report = Report()
            docs = convert(source, lang=lang, tag_column=tag_column, report=report)
            target.parent.mkdir(parents=True, exist_ok=True)
            DocBin(docs=docs).to_disk(target)
            msg.good(f"{target}: {len(docs)} documents, {sum(len(doc.ents) for doc in docs)} entities")
            _tell(report.misaligned, "spans do not align with the tokens, and count as missing annotation")
            _tell(report.rejected, "lines were not accepted by the annotator, and are left out")


def convert(
    path: Path, *, lang: str = "en", tag_column: Optional[int] = None, report: Optional[Report] = None
) -> list[Doc]:
    """The annotated Docs of a file.

    path (Path): JSONL if it ends so, columns otherwise.
    lang (str): Whose tokenizer is used for JSONL.
    tag_column (int): Column, counted from 1, that gives ``token.tag``.
    report (Report): Told what could not be used.
    RETURNS (List[Doc])
    RAISES (ValueError): With file and line, if one can't be read.
    """
    report = Report() if report is None else report
    if path.suffix == ".jsonl":
        return list(_read_jsonl(path, lang, report))
    return list(_read_columns(path, tag_column))


def _files(source: Path, target: Path) -> list[tuple[Path, Path]]:
    if not source.is_dir():
        return [(source, target / f"{source.stem}.spacy" if target.is_dir() else target)]
    suffixes = (".jsonl", *COLUMN_SUFFIXES)
    files = sorted(path for path in source.iterdir() if path.suffix in suffixes)
    if not files:
        raise ValueError(Errors.CRF700.format(path=source, known=", ".join(suffixes)))
    return [(path, target / f"{path.stem}.spacy") for path in files]


def _tell(places: list[str], what: str) -> None:
    if places:
        msg.warn(f"{len(places)} {what}. First: {'; '.join(places[:_SHOWN])}")


# ----------------------------------------------------------------------------------------------------------- JSONL


def _read_jsonl(path: Path, lang: str, report: Report) -> Iterator[Doc]:
    nlp = spacy.blank(lang)
    for place, line in _lines(path):
        if not line.strip():
            continue
        text, spans, answer = _parse_item(line, place)
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


def _parse_item(line: str, place: str) -> tuple[str, list[Span], Optional[str]]:
    """Text, spans in their order, and the annotator's answer, if the tool wrote one."""
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(Errors.CRF701.format(place=place, reason=f"it is not JSON ({error})")) from None
    if not isinstance(item, dict) or not isinstance(item.get("text"), str):
        raise ValueError(Errors.CRF701.format(place=place, reason='it has no "text"'))
    spans = [] if item.get("spans") is None else item["spans"]
    if not isinstance(spans, list):
        raise ValueError(Errors.CRF701.format(place=place, reason='"spans" is not a list'))
    text = item["text"]
    spans = sorted(_parse_span(span, len(text), place) for span in spans)
    for span, following in pairwise(spans):
        if following.start < span.end:
            both = {"first": span.named_in(text), "second": following.named_in(text)}
            raise ValueError(Errors.CRF702.format(place=place, **both))
    return text, spans, item.get("answer")


def _parse_span(span: Any, length: int, place: str) -> Span:
    span = span if isinstance(span, dict) else {}
    start, end, label = span.get("start"), span.get("end"), span.get("label")
    offsets = isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= length
    if not offsets or not isinstance(label, str) or not label:
        reason = f'a span needs "start" < "end" within the {length} characters of the text, and a "label", not {span}'
        raise ValueError(Errors.CRF701.format(place=place, reason=reason))
    return Span(start, end, label)


# --------------------------------------------------------------------------------------------------------- columns


def _read_columns(path: Path, tag_column: Optional[int]) -> Iterator[Doc]:
    vocab = Vocab()
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
    """The lines of a file, each with its place. Only the line feed ends a line: texts may hold other separators."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            place = f"{path}, line {number}"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    Errors.CRF701.format(place=place, reason=f"it is not UTF-8 ({error.reason})")
                ) from None
            yield place, text.rstrip("\r\n")
