"""Spans of Docs as a table of pandas or polars."""

from collections.abc import Iterable, Iterator
from typing import Any, Optional

from spacy.tokens import Doc, Span

from .. import checks
from ..errors import Errors, optional_package, shown
from ..pipeline.annotation.entities import probability_of

LIBRARIES = ("pandas", "polars")
# The columns and their types, which a table without rows has, too
_COLUMNS = {
    "doc": "int64",
    "start": "int64",
    "end": "int64",
    "start_char": "int64",
    "end_char": "int64",
    "text": "str",
    "label": "str",
    "prob": "float64",
}


def to_frame(docs: Iterable[Doc], *, spans_key: Optional[str] = None, library: str = "pandas") -> Any:
    """A table of the entities of some Docs, or of other spans: a row for each, with the columns doc (number of the Doc, from 0),
    start and end (tokens), start_char and end_char, text, label, and prob, which is missing where no component has set it.

    docs (Iterable[Doc]): The Docs, such as `nlp.pipe(texts)`; each is read once.
    spans_key (str): Key of `doc.spans`, for these spans and their `attrs["scores"]`; Docs without the key have no rows. None for
        entities and their `span._.crf_prob`.
    library (str): "pandas" or "polars", which must be installed.
    RETURNS (DataFrame)
    RAISES (ImportError): CRF781 if the library cannot be imported.
    RAISES (ValueError): CRF020 for another library or an empty key, CRF479 for anything but Docs.
    """
    checks.one_of("to_frame", "library", library, LIBRARIES)
    if spans_key is not None:
        checks.text("to_frame", "spans_key", spans_key)
    frames = optional_package(library, what="to_frame", install=library)
    rows = []
    for n, doc in enumerate(docs):
        for span, prob in _spans_of(doc, spans_key):
            rows.append((n, span.start, span.end, span.start_char, span.end_char, span.text, span.label_, prob))
    # Without rows, `zip` would give no columns
    columns = dict(zip(_COLUMNS, zip(*rows))) if rows else dict.fromkeys(_COLUMNS, ())
    if library == "polars":
        types = {"int64": frames.Int64, "float64": frames.Float64, "str": frames.String}
        return frames.DataFrame(columns, schema={name: types[kind] for name, kind in _COLUMNS.items()})
    return frames.DataFrame({name: list(column) for name, column in columns.items()}).astype(_COLUMNS)


def _spans_of(doc: Doc, key: Optional[str]) -> Iterator[tuple[Span, Optional[float]]]:
    """Yield the spans of a Doc with their probabilities: the entities (None), or the spans of a key of `doc.spans`.

    RAISES (ValueError): CRF479 for anything but a Doc.
    """
    if not isinstance(doc, Doc):
        raise ValueError(Errors.CRF479.format(name="to_frame", value=shown(doc)))
    if key is None:
        yield from ((ent, probability_of(ent)) for ent in doc.ents)
    elif key in doc.spans:
        scores = doc.spans[key].attrs.get("scores")
        scores = [None] * len(doc.spans[key]) if scores is None else map(float, scores)
        yield from zip(doc.spans[key], scores)
