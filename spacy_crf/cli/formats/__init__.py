"""Reads annotated texts in the formats of annotation tools, shared tasks and spaCy. Each format is a row of a table: a function
that recognizes files of the format, and a function that reads Docs from them."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import mode
from typing import NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from ...blanks import split_columns
from ...errors import Errors
from ...pipeline.corpora import origin_of, set_origin
from . import brat, columns, conllu, label_studio, spacy_files, table, texts, words
from .annotation import check_doc
from .columns import is_tag
from .source import ReadSettings, Report, Source

# Names of files that can be read, beside those of spaCy and brat
SUFFIXES = (
    *(".jsonl", ".ndjson", ".json", ".conllu", ".conllx", ".csv", ".tsv", ".xml"),
    *(".conll", ".iob", ".iob2", ".bio", ".biluo", ".bioes"),
)
_LISTED = 20  # most broken spans that one message lists
_LONG = 5_000  # tokens: a longer document probably consists of several


# settings that name columns
_WORD = "word_column"
_LABEL = "label_column"
_TAG = "tag_column"


class Format(NamedTuple):
    """columns: The settings that name columns, of those that the format reads."""

    title: str
    sniff: Callable[[Source], bool]
    read: Callable[[Source, Language, ReadSettings, Report], Iterator[Doc]]
    columns: tuple[str, ...] = ()


# A file has the first format whose `sniff` recognizes it. Every JSON file has one of the formats up to "texts"
FORMATS = {
    "spacy": Format("a .spacy file", lambda source: source.path.suffix == ".spacy", spacy_files.read_docbin),
    "xml": Format("XML of labelled parts", lambda source: source.path.suffix == ".xml", texts.read_xml),
    "brat": Format("brat's standoff", brat.sniff, brat.read),
    "labelstudio": Format("Label Studio's JSON", label_studio.sniff, label_studio.read, (_WORD,)),
    "spacy2": Format(
        "spaCy 2's JSON",
        lambda source: any("paragraphs" in item for item in source.head_objects()),
        spacy_files.read_json,
    ),
    "places": Format("texts with the places of words", words.sniff, words.read),
    "word_spans": Format("words with spans of words", columns.sniff_word_spans, columns.read_word_spans),
    "tokens": Format(
        "lists of words and tags", columns.sniff_lists, partial(columns.read_sentences, columns.sentences_of_lists)
    ),
    "doc": Format(
        "spaCy's Doc.to_json",
        lambda source: any(map(spacy_files.is_of_doc, source.head_objects())),
        spacy_files.read_doc,
    ),
    "prodigy": Format("Prodigy's JSONL", texts.sniff_prodigy, texts.read, (_WORD, _LABEL)),
    "doccano": Format("doccano's JSONL", texts.sniff_doccano, texts.read, (_WORD, _LABEL)),
    "texts": Format("annotated texts", Source.is_json, texts.read, (_WORD, _LABEL)),
    "conllu": Format("CoNLL-U", conllu.sniff, conllu.read, (_LABEL,)),
    "table": Format("a table with a header", table.sniff, table.read, (_WORD, _LABEL, _TAG)),
    "words": Format(
        "words with their tags behind them",
        columns.sniff_words,
        partial(columns.read_sentences, columns.sentences_of_words),
    ),
    # Which are read only if they are named, since they look like any text
    "spaced": Format("words between spaces", lambda source: False, words.read_spaced),
    "boundaries": Format("characters with known boundaries", lambda source: False, words.read_boundaries),
    "conll": Format(
        "columns",
        lambda source: True,
        partial(columns.read_sentences, columns.sentences_of_columns),
        (_WORD, _LABEL, _TAG),
    ),
}


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read the Docs of a file, one by one.

    report (Report): Collects counts of the contents, and annotation that could not be used.
    RAISES (ValueError): CRF747 for a column that the format does not read. With file and line, if a Doc can't be read; CRF878
        if a text is too long. At the end: CRF755 or the only message if spans can't be read, unless the settings skip them;
        CRF708 if there are no texts, CRF865 if a file with keys or columns for annotation has no annotation.
    """
    report.format = settings.format or sniff(source)
    format_ = FORMATS[report.format]
    for name in (_WORD, _LABEL, _TAG):
        value = getattr(settings, name)
        if value is not None and name not in format_.columns:
            option = f"--{name.replace('_', '-')} {value}"
            raise ValueError(Errors.CRF747.format(path=source.path, title=format_.title, option=option))
    for doc in format_.read(source, nlp, settings, report):
        report.documents += 1
        report.spans += len(doc.spans.get(settings.spans_key, ()) if settings.spans_key else doc.ents)
        for key, group in doc.spans.items():
            if key == texts.INCORRECT:
                report.incorrect += len(group)
            elif key != settings.spans_key:
                report.groups[key] = report.groups.get(key, 0) + len(group)
        report.tagged += len(doc) > 0 and doc.has_annotation("TAG")
        report.labelled += bool(doc.cats)
        report.labels |= dict.fromkeys(doc.cats)
        report.exclusive &= list(doc.cats.values()).count(1.0) < 2
        place = f"{source.path}, document {report.documents}"
        if len(doc) > _LONG:
            report.long.append(f"{place}: {len(doc):,} tokens")
        check_doc(doc, nlp, place)
        if not origin_of(doc):
            set_origin(doc, place)
        yield doc
    if report.broken and not settings.skip_broken:
        raise _broken(source, report.broken)
    if not report.documents:
        rejected = len(report.rejected)
        raise ValueError(
            Errors.CRF708.format(
                path=f"{source.path} (the annotator rejected all {rejected} texts)" if rejected else source.path
            )
        )
    if report.has_spans and not (report.spans or report.incorrect or report.labelled or settings.without_spans):
        raise ValueError(
            Errors.CRF865.format(
                path=source.path,
                format=FORMATS[report.format].title,
                documents=report.documents,
                lost=len(report.misaligned) + len(report.unaligned),
            )
        )


def _broken(source: Source, messages: list[str]) -> ValueError:
    """Make the error for spans that can't be read: it lists the first ones."""
    advice = "--skip-broken leaves such spans out; the rest of their texts is then missing annotation."
    if len(messages) == 1:
        return ValueError(f"{messages[0]} {advice}")
    listed = "".join(f"\n  {message}" for message in messages[:_LISTED])
    others = len(messages) - _LISTED
    more = f"\n  and {others:,} more" if others > 0 else ""
    return ValueError(Errors.CRF755.format(path=source.path, n=len(messages), listed=listed + more, advice=advice))


def sniff(source: Source) -> str:
    """Detect the format of a file.

    RETURNS (str): Name of the format.
    RAISES (ValueError): CRF756 for a format that is known and not read, CRF757 for running text.
    """
    refuse(source)
    name = next(name for name, format_ in FORMATS.items() if format_.sniff(source))
    if name == "conll":  # which takes any text
        refuse_running_text(source)
    return name


__all__ = ["FORMATS", "SUFFIXES", "Format", "ReadSettings", "Report", "Source", "check_doc", "read", "sniff"]


_HEAD_BYTES = 512
_FEWEST_LIKE_COLUMNS = 0.8  # share of lines with the usual number of columns, in a file of columns


class Refused(NamedTuple):
    """A format, what begins its files, and what to do with them."""

    title: str
    begins: bytes
    advice: str


_TABLE = "Save the sheet as CSV (UTF-8)"
_TEXT = "Save the texts as lines or JSONL and annotate them, or export the annotation as JSONL"
_UNPACK = "Unpack it, and convert what is in it"
# What is in a zip file decides between these, by name
_IN_ZIP = {".xlsx": ("an Excel file", _TABLE), ".ods": ("a spreadsheet", _TABLE)}
_IN_ZIP |= dict.fromkeys((".docx", ".odt", ".pptx"), ("a document of an office program", _TEXT))
_ZIP = b"PK\x03\x04"
_BINARY = (
    Refused("a zip archive", _ZIP, _UNPACK),
    Refused("a gzip archive", b"\x1f\x8b", _UNPACK),
    Refused("an old Excel or Word file", b"\xd0\xcf\x11\xe0", "Save it as CSV (UTF-8) or as text"),
    Refused("a PDF", b"%PDF", _TEXT),
    Refused("an RTF document", rb"{\rtf", _TEXT),
    Refused("a Parquet file", b"PAR1", "Write it as JSONL: pandas' to_json(orient='records', lines=True)"),
    Refused("an Arrow file", b"ARROW1", "Write it as JSONL: Dataset.to_json of Hugging Face"),
    Refused("a SQLite database", b"SQLite format 3", "Export its annotation as JSONL, as `prodigy db-out` does"),
)
_PATTERNS = (
    ("WebAnno TSV 3 (INCEpTION)", r"#FORMAT=WebAnno TSV", "Export it as CoNLL 2002, or as CoNLL-U"),
    ("PubTator", r"\d+\|t\|", "Convert it to brat's standoff or to JSONL with offsets into the joined text"),
    ("UIMA's XMI", r"(<\?xml[^>]*>\s*)?<xmi:XMI", "Export it as CoNLL 2002"),
    ("GATE's XML", r"(<\?xml[^>]*>\s*)?<GateDocument", "Export it as JSONL with spans"),
    (
        "BioC XML",
        r"(<\?xml[^>]*>\s*)?(<!DOCTYPE collection[^>]*>\s*)?<collection>\s*<source>",
        "Convert it to brat's standoff",
    ),
    ("HTML", r"(?i)<!doctype html|<html", _TEXT),
    (
        "Rasa's YAML",
        r"version:.*\s+nlu:|nlu:\s",
        "Convert it: `rasa data convert nlu -f json`, and write its examples as JSONL",
    ),
    ("Rasa's Markdown", r"## (intent|synonym|lookup|regex):", "Convert it: `rasa data convert nlu -f json`"),
)
# A key of a JSON object, or a path of keys
_JSON = (
    (("rasa_nlu_data",), "Rasa's JSON", 'Write the list under "common_examples" as JSONL'),
    (("documents", "passages"), "BioC JSON", "Convert it to brat's standoff"),
)


def refuse_binary(path: Path) -> None:
    """Refuse a file that is not text. RAISES (ValueError): CRF756 with the name of the format, if its first bytes show it."""
    # The beginning of a file says more than its name: exports are often renamed
    head = _head(path)
    for known in _BINARY:
        if head.startswith(known.begins):
            title = known.title
            advice = known.advice
            # Office files are zip archives: there the name says which
            if known.begins == _ZIP:
                title, advice = _IN_ZIP.get(path.suffix.lower(), (title, advice))
            raise _refusal(path, title, advice)


def refuse(source: Source) -> None:
    """Refuse a file in a format that is known and not read. RAISES (ValueError): CRF756 with the name of the format."""
    if source.path.is_dir():
        return
    refuse_binary(source.path)
    head = _head(source.path)
    text = head.decode(source.encoding, "ignore").lstrip("\ufeff \t\r\n")
    for title, pattern, advice in _PATTERNS:
        if re.match(pattern, text):
            raise _refusal(source.path, title, advice)
    if text.startswith("{") and source.is_json():
        for keys, title, advice in _JSON:
            if keys[0] in text and _has(next(iter(source.head_items()), None), keys):
                raise _refusal(source.path, title, advice)


def refuse_running_text(source: Source) -> None:
    """Refuse running text. RAISES (ValueError): CRF757 if the lines of a file differ in their number of words, and no line ends
    with a tag."""
    rows = [split_columns(line) for line in source.head_lines() if not line.startswith("#")]
    if not rows or any(is_tag(row[-1].strip()) for row in rows):
        return
    widths = [len(row) for row in rows]
    n_usual = widths.count(mode(widths))
    if n_usual < _FEWEST_LIKE_COLUMNS * len(rows):
        # The message names the first line and the first line that differs from it
        n, other = next((n, width) for n, width in enumerate(widths, start=1) if width != widths[0])
        raise ValueError(Errors.CRF757.format(path=source.path, first=widths[0], n=n, other=other))


def _has(value: object, keys: tuple[str, ...]) -> bool:
    """Whether a value of JSON has a path of keys. In a list, the first element is followed."""
    for key in keys:
        value = value[0] if isinstance(value, list) and value else value
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _head(path: Path) -> bytes:
    """The first bytes of a file."""
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _refusal(path: Path, title: str, advice: str) -> ValueError:
    """The error CRF756 for a file in a format that is known and not read."""
    return ValueError(Errors.CRF756.format(path=path, title=title, advice=advice))
