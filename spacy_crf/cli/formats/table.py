"""Reads tables with a header (CSV, TSV): each row has a token, perhaps with the number of its sentence; or a text and its label;
or lists of the words and tags of a sentence, as pandas writes them."""

import ast
import csv
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...blanks import is_blank, split_words
from ...errors import Errors, known_names, shown
from ...pipeline.corpora import set_origin
from .annotation import Labels, TextLabels, named, parse_labels, tokenized
from .columns import Row, is_tag, read_sentences
from .source import ReadSettings, Report, Source, unreadable

_SEPARATORS = "\t,;|"
_HEAD = 50  # number of rows that are checked to tell tables of tokens from tables of texts
_LONG = 40  # characters: more than a word has
# Usual names of columns. If a header contains several of them, the first in these lists counts
_WORD = ("word", "words", "token", "tokens", "form", "text")
_LABEL = ("ner_tag", "ner_tags", "ner", "entity", "iob", "bio", "tag", "tags", "label", "labels")
_POS = ("pos", "pos_tag", "pos_tags", "xpos", "upos")
_SENTENCE = ("sentence #", "sentence", "sentence_id", "sentence_idx", "sent", "sent_id", "sent_idx")
_TEXT = ("text", "comment", "comment_text", "content", "message", "query", "review", "sentence", "title", "tweet")
_TEXT += ("utterance",)
_CLASS = ("label", "labels", "cats", "category", "class", "intent", "sentiment", "topic")
_JOINED = "#|;"  # possible separators of the labels of one text
_DOCUMENT = ("document", "document_id", "doc", "doc_id", "docid")

# NumPy writes arrays without commas, and Python would join their strings
_ITEM = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?[0-9]+)"""
_ARRAY = re.compile(rf"\[\s*{_ITEM}(?:\s+{_ITEM})+\s*\]", re.DOTALL)


class Header(NamedTuple):
    """The separator, the names of columns, and the numbers of the columns to read."""

    separator: str
    names: list[str]
    # Numbers of columns from 0 on, or None. Readers of `is_usable` headers know which of them are numbers
    word: Any  # of words or texts
    label: Any  # of tags of entities or labels of texts
    tag: Optional[int]  # of `token.tag`
    sentence: Optional[int]
    document: Optional[int]

    def is_usable(self) -> bool:
        """Whether the header names a column of words or texts, and one of labels or tags."""
        return self.word is not None and (self.label is not None or self.tag is not None)


def sniff(source: Source) -> bool:
    """Whether the first line is a header, or cells hold texts or lists."""
    lines = source.head_lines()
    settings = ReadSettings()
    if not lines:
        return False
    header = _header(lines[0], settings, _WORD, _LABEL)
    is_table = source.path.suffix == ".csv" or header.is_usable()
    return is_table or _holds_lists(source, settings) or _holds_texts(source, settings)


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a token, a text or a sentence from each row. A sentence ends at an empty row, or where its number changes; a
    document ends where the number of the document changes."""
    if _holds_lists(source, settings):
        return read_sentences(_sentences_of_lists, source, nlp, settings, report)
    if _holds_texts(source, settings):
        return _labelled_docs(source, nlp, settings, report)
    return read_sentences(_sentences, source, nlp, settings, report)


def _header(line: str, settings: ReadSettings, words: tuple[str, ...], labels: tuple[str, ...]) -> Header:
    """Parse the header.

    words, labels (Tuple[str]): The usual names of the columns of words (or texts) and of labels, the most usual first.
    RAISES (ValueError): CRF868 if the header lacks a column that the settings name.
    """
    # The separator of the table is the most frequent one in its header
    separator = max(_SEPARATORS, key=line.count)
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error:
        names = []
    lower = [name.lower() for name in names]

    def column(usual_names: tuple[str, ...], option: str = "") -> Optional[int]:
        """The column that the user names by an option, by its name or its number from 1 on; else the first usual one."""
        choice = getattr(settings, option) if option else None
        if choice is None:
            return next((lower.index(name) for name in usual_names if name in lower), None)
        if choice in names:
            return names.index(choice)
        numbers = [str(n) for n in range(1, len(names) + 1)]
        if choice in numbers:
            return numbers.index(choice)
        raise ValueError(
            Errors.CRF868.format(option=option.replace("_", "-"), value=choice, known=known_names(names, choice))
        )

    return Header(
        separator=separator,
        names=names,
        word=column(words, "word_column"),
        label=column(labels, "label_column"),
        tag=column(_POS, "tag_column"),
        sentence=column(_SENTENCE),
        document=column(_DOCUMENT),
    )


def _sentences(source: Source, settings: ReadSettings, report: Report) -> Iterator[Optional[list[Row]]]:
    """Read tokens. Yields the rows of each sentence, and None at the end of each document."""
    rows: list[Row] = []
    # The latest numbers or names of a sentence and a document
    last_sentence = ""
    last_document = ""
    for place, cells, header in _table(source, settings, report, _WORD, _LABEL, has_tokens=True):
        is_empty = all(map(is_blank, cells))
        # Some tables number only the first row of a sentence or document: an empty cell continues it
        sentence = "" if is_empty or header.sentence is None else cells[header.sentence].strip()
        document = "" if is_empty or header.document is None else cells[header.document].strip()
        ends_sentence = bool(sentence) and sentence != last_sentence
        ends_document = bool(document) and document != last_document
        if rows and (is_empty or ends_sentence or ends_document):
            yield rows
            rows = []
        if ends_document and last_document:
            yield None
        last_sentence = sentence or last_sentence
        last_document = document or last_document
        if not is_empty:
            columns = (header.word, header.label, header.tag)
            word, label, tag = (None if column is None else cells[column] for column in columns)
            for name, cell in (("word", word), ("tag", label)):
                if cell is not None and is_blank(cell):
                    raise unreadable(place, f"the {name} is empty")
                # A missing closing quote takes all lines up to the next quote into one cell
                if cell is not None and "\n" in cell:
                    raise unreadable(place, f"the {name} {cell[:40]!r} has several lines: look for a quote")
            rows.append(Row(place, word or "", label.strip() if label is not None else None, tag))
    if rows:
        yield rows


# -------------------------------------------------------------------------------------------------- lists in the cells


def _holds_lists(source: Source, settings: ReadSettings) -> bool:
    """Whether cells hold the tags of a sentence as a list, beside a list of its words or its words between spaces."""
    words = []  # the list of words in each row, or None
    tags = []
    try:
        for _, cells, header in islice(_rows_of_lists(source, settings, Report()), _HEAD):
            words.append(None if header.word is None else _as_list(cells[header.word]))
            if header.label is not None and cells[header.label]:
                tags.append(_as_list(cells[header.label]))
    except ValueError:  # the reader will report it
        return False
    if None in tags:
        return False
    are_tags = any(isinstance(tag, str) and is_tag(tag) for tag in chain.from_iterable(tags))
    # Lists of numbers are tags too, if the words are lists beside them
    return are_tags or (bool(tags) and all(words))


def _rows_of_lists(source: Source, settings: ReadSettings, report: Report) -> Iterator[tuple[str, list[str], "Header"]]:
    """Yield place and cells of each row, and the header, of a table with a sentence in each row."""
    return _table(source, settings, report, (*_WORD, *_TEXT), _LABEL, has_tokens=True)


def _as_list(cell: object) -> Optional[list[Any]]:
    """The list in a cell, as Python, JSON or NumPy write it; None if there is none."""
    if not isinstance(cell, str) or not cell.lstrip().startswith("["):
        return None
    # The cell may hold anything that begins with a bracket
    with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        if _ARRAY.fullmatch(cell.strip()):
            return [ast.literal_eval(item) for item in re.findall(_ITEM, cell, re.DOTALL)]
        value = ast.literal_eval(cell.strip())
        if isinstance(value, list):
            return value
    return None


def _sentences_of_lists(source: Source, settings: ReadSettings, report: Report) -> Iterator[list[Row]]:
    """Read a sentence from each row. RAISES (ValueError): CRF701 if its words and tags differ in number."""
    for place, cells, header in _rows_of_lists(source, settings, report):
        if all(map(is_blank, cells)):
            continue
        words = _as_list(cells[header.word]) or split_words(cells[header.word])
        labels = None if header.label is None else _as_list(cells[header.label]) or []
        tags = None if header.tag is None else _as_list(cells[header.tag]) or []
        for values in (labels, tags):
            if values is not None and len(values) != len(words):
                raise unreadable(place, f"{len(words)} words, but {len(values)} tags in a list")
        rows = []
        for n, word in enumerate(words):
            label = labels[n] if labels else None
            label = named(label, settings.tag_names, place) if type(label) is int else label
            tag = tags[n] if tags else None
            if any(value is not None and (not isinstance(value, str) or is_blank(value)) for value in (label, tag)):
                raise unreadable(place, f"a tag is not a word: {shown([label, tag])}")
            if not isinstance(word, str) or is_blank(word):
                raise unreadable(place, f"a word is empty or not a text: {shown(word)}")
            rows.append(Row(place, word, label, tag))
        if rows:
            yield rows


# ----------------------------------------------------------------------------------------------- texts and their labels


def _holds_texts(source: Source, settings: ReadSettings) -> bool:
    """Whether a table has texts: the header names texts and labels, some text is longer than a word, and no label is a tag."""
    texts = []
    labels = []
    try:
        for row in islice(_text_rows(source, settings, Report()), _HEAD):
            texts.append(row.text.strip())
            labels.append(row.label)
    except ValueError:  # the reader will report it
        pass
    return any(" " in text or len(text) > _LONG for text in texts) and not any(map(is_tag, labels))


def _labelled_docs(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Make Docs of texts with labels. The file is read twice, since any row may add a label."""
    # The different cells of labels, each with its first place: a table may have millions of rows
    cells: dict[str, str] = {}
    for row in _text_rows(source, settings, Report()):
        cells.setdefault(row.label, row.place)
    labels = TextLabels()
    for cell, place in cells.items():
        labels.add(_labels_of(cell, cells, settings, place))
    for row in _text_rows(source, settings, report):
        if not row.text.strip():
            report.rejected.append(f"{row.place} (no text)")
            continue
        doc = tokenized(row.text, nlp, row.place)
        doc.cats = labels.cats(_labels_of(row.label, cells, settings, row.place), row.place, report)
        set_origin(doc, row.place, row.id)
        yield doc


class TextRow(NamedTuple):
    """The cells of a text."""

    place: str
    text: str
    label: str  # one or several labels, see `_labels_of`
    id: Optional[str]


def _text_rows(source: Source, settings: ReadSettings, report: Report) -> Iterator[TextRow]:
    """Read the rows of a table of texts, without empty rows."""
    for place, cells, header in _table(source, settings, report, _TEXT, _CLASS, has_tokens=False):
        if any(cell.strip() for cell in cells):
            ids = [cell for name, cell in zip(header.names, cells) if name.lower() == "id"]
            yield TextRow(place, cells[header.word], cells[header.label].strip(), ids[0] if ids else None)


def _labels_of(cell: str, cells: Collection[str], settings: ReadSettings, place: str) -> Labels:
    """Parse the labels of a cell: a list, or labels between separators if another cell has one of these labels alone.

    cells (Collection[str]): All cells of labels in the file, each once.
    place (str): Place of the row, for messages.
    """
    if not cell:
        return []
    value: object = cell
    if cell[:1] == "[":
        value = _as_list(cell) or cell
    elif cell[:1] == "{":
        with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            value = ast.literal_eval(cell)
        # Label Studio writes several answers to a question as {'choices': […]}
        if isinstance(value, dict) and [*value] == ["choices"]:
            value = value["choices"]
    elif settings.tag_names and cell.isdecimal() and len(cell) < 9:
        value = int(cell)
    for separator in _JOINED:
        parts = [part.strip() for part in cell.split(separator)]
        # Not for cells that were parsed above, or cut at an earlier separator
        if value == cell and len(parts) > 1 and all(parts) and any(part in cells for part in parts):
            value = parts
    return parse_labels(value, place, settings.tag_names)


# --------------------------------------------------------------------------------------------------------- rows


def _table(
    source: Source,
    settings: ReadSettings,
    report: Report,
    words: tuple[str, ...],
    labels: tuple[str, ...],
    *,
    has_tokens: bool,
) -> Iterator[tuple[str, list[str], Header]]:
    """Read a table. Yields place and cells of each row, and the header. Empty rows have as many empty cells as others.

    words, labels (Tuple[str]): The usual names of the columns of words (or texts) and of labels.
    has_tokens (bool): Whether rows are tokens or sentences, so that a column of `token.tag` may stand for that of labels.
    RAISES (ValueError): CRF869 if the header does not name the columns, CRF703 if a row has more or fewer cells than the header.
    """
    lines = source.lines()
    header_place, line = next(((place, line) for place, line in lines if line.strip()), ("", ""))
    header = _header(line, settings, words, labels)
    if not header.is_usable() or (header.label is None and not has_tokens):
        raise ValueError(Errors.CRF869.format(place=header_place, names=", ".join(header.names)[:200]))
    columns_read = {header.word, header.label}
    if has_tokens:
        columns_read |= {header.tag, header.sentence, header.document}
    report.columns = [name or str(n + 1) for n, name in enumerate(header.names) if n not in columns_read]
    width = len(header.names)
    # Tables between tabs are written without quoting, and a quote is a token there
    if header.separator == "\t":
        rows = ((place, list(map(_unquoted, line.split("\t")))) for place, line in lines)
    else:
        rows = _quoted(lines, header.separator)
    for place, cells in rows:
        if len(cells) != width and any(cells):
            raise ValueError(
                Errors.CRF703.format(
                    place=place, got=len(cells), expected=f"{width}, as in the header ({', '.join(header.names)}),"
                )
            )
        yield place, cells if any(cells) else [""] * width, header


def _unquoted(cell: str) -> str:
    """Read a cell between tabs. A quote is an ordinary word; four quotes, from programs that quote cells, are one quote."""
    inner = cell[1:-1]
    is_enclosed = len(cell) > 2 and cell[0] == cell[-1] == '"'
    has_only_doubled = '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_enclosed and has_only_doubled else cell


def _quoted(lines: Iterator[tuple[str, str]], separator: str) -> Iterator[tuple[str, list[str]]]:
    """Read the rows of CSV from lines with their places. Yields place and cells of each row. A cell in quotes may have several
    lines; the place of its row is that of the first line.

    RAISES (ValueError): CRF701 with the place, if the lines are not CSV.
    """
    places: list[str] = []  # of the lines that the reader has asked for

    def texts() -> Iterator[str]:
        for place, line in lines:
            places.append(place)
            yield line + "\n"

    reader = csv.reader(texts(), delimiter=separator, strict=True)
    begin = 0  # the first line of the next row
    try:
        for cells in reader:
            yield places[begin], cells
            begin = reader.line_num
    except csv.Error as error:
        raise unreadable(places[begin], f"it is not CSV ({error})") from None
