"""Tables with a header (CSV, TSV): a token in each row, and perhaps a column that numbers sentences."""

import csv
from collections.abc import Iterator
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, known_names
from .settings import Report, Settings
from .source import Source
from .tags import Row, tagged_docs

_SEPARATORS = "\t,;|"
# What people call the columns; of several the first counts.
_WORD = ("word", "words", "token", "tokens", "form", "text")
_LABEL = ("ner_tag", "ner_tags", "ner", "entity", "iob", "bio", "tag", "tags", "label", "labels")
_POS = ("pos", "pos_tag", "pos_tags", "xpos", "upos")
_SENTENCE = ("sentence #", "sentence", "sentence_id", "sentence_idx", "sent", "sent_id", "sent_idx")
_DOCUMENT = ("document", "document_id", "doc", "doc_id", "docid")


class Header(NamedTuple):
    """The separator, the names, and which of them is what."""

    separator: str
    names: list[str]
    word: Optional[int]
    label: Optional[int]
    tag: Optional[int]
    sentence: Optional[int]
    document: Optional[int]

    def is_usable(self) -> bool:
        return self.word is not None and (self.label is not None or self.tag is not None)


def sniff(source: Source) -> bool:
    if source.is_json():
        return False
    lines = source.head_lines()
    if not lines:
        return False
    header = _header(lines[0], Settings())
    return source.path.suffix == ".csv" or header.is_usable()


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    """A sentence ends where its number changes, and at an empty row; a document where its number changes."""
    return tagged_docs(lambda: _sentences(source, settings, report), nlp.vocab, settings, report)


def _header(line: str, settings: Settings) -> Header:
    """What the first line says. RAISES (ValueError): CRF868 if it has not the columns asked for."""
    separator = max(_SEPARATORS, key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator))]
    lower = [name.lower() for name in names]

    def column(known: tuple[str, ...], option: str = "") -> Optional[int]:
        asked = getattr(settings, option) if option else None
        if asked is None:
            return next((lower.index(name) for name in known if name in lower), None)
        if asked in names:
            return names.index(asked)
        if asked.isdecimal() and 0 < int(asked) <= len(names):
            return int(asked) - 1
        raise ValueError(
            Errors.CRF868.format(option=option.replace("_", "-"), value=asked, known=known_names(names, asked))
        )

    tag, word = column(_POS, "tag_column"), column(_WORD, "word_column")
    label = column(_LABEL, "label_column")
    return Header(separator, names, word, label, tag, column(_SENTENCE), column(_DOCUMENT))


def _sentences(source: Source, settings: Settings, report: Report) -> Iterator[Optional[list[Row]]]:
    lines = source.lines()
    first, line = next(((place, line) for place, line in lines if line.strip()), ("", ""))
    header = _header(line, settings)
    if not header.is_usable():
        raise ValueError(Errors.CRF869.format(place=first, names=", ".join(header.names)))
    read_from = (header.word, header.label, header.tag, header.sentence, header.document)
    report.columns = [name or str(n + 1) for n, name in enumerate(header.names) if n not in read_from]
    rows: list[Row] = []
    number = document = ""
    for place, cells in _cells(lines, header):
        is_empty = not any(cell.strip() for cell in cells)
        # Some number the first row of a sentence only
        new = "" if is_empty or header.sentence is None else cells[header.sentence].strip()
        new_document = "" if is_empty or header.document is None else cells[header.document].strip()
        ends_document = bool(new_document) and new_document != document
        if rows and (is_empty or (new and new != number) or ends_document):
            yield rows
            rows = []
        if ends_document and document:
            yield None
        number, document = new or number, new_document or document
        if not is_empty:
            rows.append(_row(place, cells, header))
    if rows:
        yield rows


def _row(place: str, cells: list[str], header: Header) -> Row:
    word, label, tag = (None if at is None else cells[at] for at in (header.word, header.label, header.tag))
    for what, cell in (("word", word), ("tag", label)):
        if cell is not None and (not cell.strip() or "\n" in cell):
            reason = (
                f"the {what} {'is empty' if not cell.strip() else f'{cell[:40]!r} has several lines: look for a quote'}"
            )
            raise ValueError(Errors.CRF701.format(place=place, reason=reason))
    return Row(place, word or "", label.strip() if label is not None else None, tag)


def _cells(lines: Iterator[tuple[str, str]], header: Header) -> Iterator[tuple[str, list[str]]]:
    """The rows with their places. RAISES (ValueError): If one has not as many cells as the header."""
    width = len(header.names)
    for place, cells in _tabs(lines) if header.separator == "\t" else _quoted(lines, header.separator):
        if len(cells) != width and any(cells):
            expected = f"{width}, as in the header ({', '.join(header.names)}),"
            raise ValueError(Errors.CRF703.format(place=place, got=len(cells), expected=expected))
        yield place, cells if any(cells) else [""] * width


def _tabs(lines: Iterator[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Between tabs a quote is a word like others, unless it is written as four: as programs do that quote."""
    for place, line in lines:
        yield place, [_unquoted(cell) for cell in line.split("\t")]


def _unquoted(cell: str) -> str:
    inner = cell[1:-1]
    is_quoted = len(cell) > 2 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else cell


def _quoted(lines: Iterator[tuple[str, str]], separator: str) -> Iterator[tuple[str, list[str]]]:
    places: list[str] = []

    def texts() -> Iterator[str]:
        for place, line in lines:
            places.append(place)
            yield line + "\n"

    reader = csv.reader(texts(), delimiter=separator, strict=True)
    while True:
        places.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise ValueError(Errors.CRF701.format(place=places[0], reason=f"it is no CSV ({error})")) from None
        if cells is None:
            return
        yield places[0], cells
