"""spaCy's own ``.spacy`` files."""

from collections.abc import Iterator

from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ...errors import Errors
from .settings import Report, Settings
from .source import Source


def sniff(source: Source) -> bool:
    return source.path.suffix == ".spacy"


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    try:
        docs = list(DocBin().from_disk(source.path).get_docs(nlp.vocab))
    except OSError:
        raise
    except Exception as error:  # whatever zlib and msgpack raise
        raise ValueError(Errors.CRF717.format(path=source.path, reason=error)) from None
    for doc in docs:
        report.has_spans |= doc.has_annotation("ENT_IOB")
        yield doc
