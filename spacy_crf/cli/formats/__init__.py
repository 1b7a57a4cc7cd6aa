"""Reads annotated texts in the formats of annotation tools, shared tasks and spaCy. Each format is a row of a table: a function
that recognizes files of the format, and a function that reads Docs from them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors
from ...pipeline.origins import origin_of, set_origin
from . import brat, columns, conllu, label_studio, spacy_files, table, texts, word_spans, xml
from .annotation import check_doc
from .refused import refuse, refuse_running_text
from .source import ReadSettings, Report, Source

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
    "spacy": Format("a .spacy file", spacy_files.sniff_docbin, spacy_files.read_docbin),
    "xml": Format("XML of labelled parts", xml.sniff, xml.read),
    "brat": Format("brat's standoff", brat.sniff, brat.read),
    "labelstudio": Format("Label Studio's JSON", label_studio.sniff, label_studio.read, (_WORD,)),
    "spacy2": Format("spaCy 2's JSON", spacy_files.sniff_json, spacy_files.read_json),
    "word_spans": Format("words with spans of words", word_spans.sniff, word_spans.read),
    "tokens": Format(
        "lists of words and tags", columns.sniff_lists, partial(columns.read_sentences, columns.sentences_of_lists)
    ),
    "doc": Format("spaCy's Doc.to_json", spacy_files.sniff_doc, spacy_files.read_doc),
    "prodigy": Format("Prodigy's JSONL", texts.sniff_prodigy, texts.read, (_WORD, _LABEL)),
    "doccano": Format("doccano's JSONL", texts.sniff_doccano, texts.read, (_WORD, _LABEL)),
    "texts": Format("annotated texts", texts.sniff, texts.read, (_WORD, _LABEL)),
    "conllu": Format("CoNLL-U", conllu.sniff, conllu.read, (_LABEL,)),
    "table": Format("a table with a header", table.sniff, table.read, (_WORD, _LABEL, _TAG)),
    "words": Format(
        "words with their tags behind them",
        columns.sniff_words,
        partial(columns.read_sentences, columns.sentences_of_words),
    ),
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
    _check_columns(source, settings, FORMATS[report.format])
    for doc in FORMATS[report.format].read(source, nlp, settings, report):
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


def _check_columns(source: Source, settings: ReadSettings, format_: Format) -> None:
    for name in (_WORD, _LABEL, _TAG):
        value = getattr(settings, name)
        if value is not None and name not in format_.columns:
            raise ValueError(
                Errors.CRF747.format(
                    path=source.path, title=format_.title, option=f"--{name.replace('_', '-')} {value}"
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
    found = next(name for name, format_ in FORMATS.items() if format_.sniff(source))
    if found == "conll":
        refuse_running_text(source)
    return found


__all__ = ["FORMATS", "Format", "ReadSettings", "Report", "Source", "check_doc", "read", "sniff"]
