"""Reads spaCy's own files: ``.spacy``, and the JSON of spaCy 2 with documents, paragraphs, sentences and tokens."""

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training.converters import json_to_docs

from ...errors import Errors, shown
from .source import ReadSettings, Report, Source, unreadable


def sniff_docbin(source: Source) -> bool:
    return source.path.suffix == ".spacy"


def read_docbin(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    for doc in docs_of(source.path, nlp):
        report.has_spans |= len(doc) > 0 and doc.has_annotation("ENT_IOB")
        yield doc


def docs_of(path: Path, nlp: Language) -> list[Doc]:
    """Read the Docs of a ``.spacy`` file. RAISES (ValueError): CRF701 if the file is damaged, or has another format."""
    try:
        return list(DocBin().from_disk(path).get_docs(nlp.vocab))
    except OSError:
        raise
    except Exception as error:  # zlib and msgpack may raise anything
        raise ValueError(Errors.CRF701.format(place=path, reason=f"it is not a .spacy file ({error})")) from error


def sniff_json(source: Source) -> bool:
    items = source.head_items() if source.is_json() else []
    return any(isinstance(item, dict) and "paragraphs" in item for item in items)


def read_json(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc from each paragraph with spaCy's converter. Annotation that the converter would ignore is an error."""
    for place, value in source.items():
        paragraphs = value.get("paragraphs") if isinstance(value, dict) else None
        if not isinstance(paragraphs, list):
            raise unreadable(place, f'it has no "paragraphs": {shown(value)}')
        for number, paragraph in enumerate(paragraphs, start=1):
            where = f"{place}, paragraph {number}"
            try:
                tags = [token.get("ner") for sentence in paragraph["sentences"] for token in sentence["tokens"]]
            except (KeyError, TypeError, AttributeError):
                wrong = f'it has no "sentences" with "tokens": {shown(paragraph)}'
                raise unreadable(where, wrong) from None
            report.has_spans |= any(tag is not None for tag in tags)
            if not tags:
                report.rejected.append(f"{where} (no tokens)")
                continue
            entities = None if "entities" in settings.ignore or any(tags) else paragraph.get("entities")
            if entities not in (None, [], [[]]):
                shows = {"key": "entities", "value": shown(entities), "known": '"ner" of the tokens'}
                raise ValueError(Errors.CRF707.format(place=where, **shows))
            yield _make_doc({**value, "paragraphs": [paragraph]}, where)


def _make_doc(document: dict[str, Any], place: str) -> Doc:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # spaCy warns of tags that it can't use, and leaves them out
        try:
            [doc] = json_to_docs(json.dumps([document]))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, UserWarning) as error:
            raise unreadable(place, f"spaCy says: {error}") from None
    return doc
