"""Reads spaCy's own files: ``.spacy``, what `Doc.to_json` writes, and the JSON of spaCy 2 with documents, paragraphs, sentences
and tokens."""

import json
import warnings
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training.converters import json_to_docs

from ...errors import Errors, shown
from ...pipeline.corpora import docs_in, set_origin
from .annotation import check_length, holds_annotation, is_unicode, read_spans, set_entities
from .source import Fields, ReadSettings, Report, Source, unreadable


def read_docbin(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read the Docs of a .spacy file."""
    for doc in docs_of(source.path, nlp):
        report.has_spans |= len(doc) > 0 and doc.has_annotation("ENT_IOB")
        yield doc


def docs_of(path: Path, nlp: Language) -> list[Doc]:
    """Read the Docs of a ``.spacy`` file. RAISES (ValueError): CRF701 if the file is damaged, or has another format."""
    try:
        return list(docs_in(DocBin().from_disk(path), nlp.vocab))
    except OSError:
        raise
    except Exception as error:  # zlib and msgpack may raise anything
        raise ValueError(Errors.CRF701.format(place=path, reason=f"it is not a .spacy file ({error})")) from error


# What Doc.to_json writes, and Doc.from_json reads
_OF_DOC = {"text", "tokens", "ents", "sents", "cats", "spans", "_", "underscore_token", "underscore_span"}


def is_of_doc(item: Fields) -> bool:
    """Whether an item is one of `Doc.to_json`, whose tokens have no text."""
    if not isinstance(item.get("text"), str):
        return False
    tokens = item.get("tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, dict) for token in tokens):
        return False
    return {"id", "start", "end"} <= tokens[0].keys() and "text" not in tokens[0]


def read_doc(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc from each item, with all that it holds. RAISES (ValueError): CRF701 with the place, if spaCy refuses an item."""
    for place, value in source.items():
        if not isinstance(value, dict) or not isinstance(value.get("text"), str) or not is_unicode(value["text"]):
            raise unreadable(place, f"it is not what Doc.to_json writes: {shown(value)}")
        item = {key: part for key, part in value.items() if key not in settings.ignore}
        check_length(item["text"], nlp, place)
        for key in item.keys() - _OF_DOC:
            if holds_annotation(item[key]):
                raise ValueError(
                    Errors.CRF707.format(place=place, key=key, value=shown(item[key]), known="ents and spans")
                )
        ents = item.pop("ents", None)
        try:
            doc = Doc(nlp.vocab).from_json(item)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError, IndexError, OverflowError) as error:
            reason = (
                f"spaCy says: {error}"
                if isinstance(error, ValueError)
                else f"it is not what Doc.to_json writes: {shown(value)}"
            )
            raise unreadable(place, reason) from None
        if ents is not None:
            report.has_spans = True
            spans, is_complete = read_spans(ents if isinstance(ents, list) else [ents], doc.text, place, report)
            doc = set_entities(
                doc, doc.text, spans, is_complete=is_complete, place=place, settings=settings, report=report
            )
        set_origin(doc, place, item.get("id"))
        yield doc


def read_json(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc from each paragraph with spaCy's converter. Annotation that the converter would ignore is an error."""
    for place, value in source.items():
        paragraphs = value.get("paragraphs") if isinstance(value, dict) else None
        if not isinstance(paragraphs, list):
            raise unreadable(place, f'it has no "paragraphs": {shown(value)}')
        for number, paragraph in enumerate(paragraphs, start=1):
            where = f"{place}, paragraph {number}"
            try:
                tokens = chain.from_iterable(sentence["tokens"] for sentence in paragraph["sentences"])
                tags = [token.get("ner") for token in tokens]
            except (KeyError, TypeError, AttributeError):
                wrong = f'it has no "sentences" with "tokens": {shown(paragraph)}'
                raise unreadable(where, wrong) from None
            report.has_spans |= any(tag is not None for tag in tags)
            if not tags:
                report.rejected.append(f"{where} (no tokens)")
                continue
            entities = None if "entities" in settings.ignore or any(tags) else paragraph.get("entities")
            if entities not in (None, [], [[]]):
                raise ValueError(
                    Errors.CRF707.format(
                        place=where, key="entities", value=shown(entities), known='"ner" of the tokens'
                    )
                )
            doc = _make_doc({**value, "paragraphs": [paragraph]}, where)
            set_origin(doc, where, value.get("id"))
            yield doc


def _make_doc(document: Fields, place: str) -> Doc:
    """Convert a document of spaCy 2 that has one paragraph. RAISES (ValueError): CRF701 with the place, if spaCy can't use it."""
    with warnings.catch_warnings():
        # spaCy would only warn of tags that it can't use, and leave them out
        warnings.simplefilter("error")
        try:
            [doc] = json_to_docs(json.dumps([document]))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, UserWarning) as error:
            raise unreadable(place, f"spaCy says: {error}") from None
    return doc
