"""Tables of spans with their probabilities: `spacy_crf.to_frame`."""

import sys

import pytest
import spacy
from spacy.tokens import Span

import spacy_crf

COLUMNS = ["doc", "start", "end", "start_char", "end_char", "text", "label", "prob"]


@pytest.fixture
def docs():
    nlp = spacy.blank("en")
    docs = [nlp("Ann met Lee"), nlp("nobody"), nlp("in New York")]
    docs[0].ents = [Span(docs[0], 0, 1, "PER")]
    docs[0].ents[0]._.crf_prob = 0.9
    docs[2].ents = [Span(docs[2], 1, 3, "GPE")]
    docs[0].spans["sc"] = [Span(docs[0], 0, 3, "A"), Span(docs[0], 0, 1, "B")]
    docs[0].spans["sc"].attrs["scores"] = [0.25, 0.5]
    docs[2].spans["sc"] = [Span(docs[2], 0, 1, "A")]
    return docs


def rows_of(frame, library):
    found = frame.rows() if library == "polars" else [*frame.itertuples(index=False, name=None)]
    return [tuple(None if value != value else value for value in row) for row in found]  # pandas' NaN


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_row_for_each_span(docs, library):
    pytest.importorskip(library)
    frame = spacy_crf.to_frame(iter(docs), library=library)
    assert [*frame.columns] == COLUMNS
    assert rows_of(frame, library) == [
        (0, 0, 1, 0, 3, "Ann", "PER", 0.9),
        (2, 1, 3, 3, 11, "New York", "GPE", None),
    ]
    spans = spacy_crf.to_frame(docs, spans_key="sc", library=library)
    assert [(row[0], row[5], row[6], row[7]) for row in rows_of(spans, library)] == [
        (0, "Ann met Lee", "A", 0.25),
        (0, "Ann", "B", 0.5),
        (2, "in", "A", None),
    ]
    assert [*spans.dtypes] == [*frame.dtypes] == [*spacy_crf.to_frame([], library=library).dtypes]


def test_what_is_missing_or_impossible_is_said(docs, monkeypatch):
    for library in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(ImportError, match=f"CRF781: to_frame needs {library}.*pip install {library}"):
            spacy_crf.to_frame(docs, library=library)
    with pytest.raises(ValueError, match=r"CRF020.*library"):
        spacy_crf.to_frame(docs, library="arrow")
    with pytest.raises(ValueError, match=r"CRF020.*spans_key"):
        spacy_crf.to_frame(docs, spans_key="")


def test_only_docs_have_rows():
    pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"CRF479.*'Ann'"):
        spacy_crf.to_frame(["Ann"])
