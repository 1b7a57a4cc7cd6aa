"""Attributes of tokens that depend on the rest of the Doc.

``doc:`` attributes compare the forms of a word. The case of a word carries no information where a sentence begins, so first
tokens of sentences count only if the word has no other tokens. A word that occurs once in its Doc has no value.

``stage:`` attributes show which label a token would have if a first labelling of its Doc were consistent, for the templates of a
second stage (Krishnan & Manning 2006, An Effective Two-Stage Model for Exploiting Non-Local Dependencies in Named Entity
Recognition). Words are compared in lower case.

``outer`` is the label of the outermost span at the token, for the inner levels of spans that nest.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub

from ..arrays import ranges
from ..kernels.document import FirstLabels, FormColumns, document_values, majorities
from ..kernels.hashing import ABSENT
from ..schemes import Segments

DOCUMENT_ATTRIBUTES = ["doc:title_elsewhere", "doc:majority_shape", "doc:cased_form"]
# Attributes of the lexeme
READS = ["lower", "shape", "orth", "is_title", "capitals"]
MAJORITIES = ("token_majority", "entity_majority", "superentity_majority")
STAGE_ATTRIBUTES = [f"stage:{name}" for name in MAJORITIES]
OUTER = "outer"

# A sentence begins behind them, whether or not the Doc has a sentence boundary there
_ENDS = np.array([hash_string(end) for end in (".", "!", "?", "…", ":", "\n", "\n\n")], dtype=np.uint64)
_OUTSIDE = np.uint64(0)  # hash of the empty string, as with ent_type


class Labelling(NamedTuple):
    """The spans that a first stage finds in a batch of Docs, in their order; or the outermost of spans that nest."""

    spans: Segments
    labels: NDArray[np.uint64]  # hash of each label in the StringStore


Labeller = Callable[[list], Labelling]  # takes a `DocBatch`


def read_document(
    names: list[str],
    forms: NDArray[np.uint64],
    doc_starts: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Values of some `DOCUMENT_ATTRIBUTES` for the tokens of a batch.

    forms (uint64[T, 5]): The attributes that `READS` names.
    doc_starts (int64[D + 1]), starts (int64[B + 1]): Where Docs and sequences begin.
    RETURNS (uint64[T, len(names)])
    """
    columns = FormColumns(*np.ascontiguousarray(forms.T))
    begins = _marked(starts, len(forms))
    begins[1:] |= np.isin(columns.orth, _ENDS)
    values = document_values(columns, doc_starts, begins)
    return values[:, [DOCUMENT_ATTRIBUTES.index(name) for name in names]]


def read_stage(
    names: list[str],
    labelling: Labelling,
    lower: NDArray[np.uint64],
    doc_starts: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Values of some `STAGE_ATTRIBUTES` for the tokens of a batch.

    lower (uint64[T]): Hashes of the words in lower case.
    doc_starts (int64[D + 1]), starts (int64[B + 1]): Where Docs and sequences begin.
    RETURNS (uint64[T, len(names)])
    """
    entities = any(name in names for name in STAGE_ATTRIBUTES[1:])
    # So kernels compile once
    spans = (np.ascontiguousarray(column, dtype=np.int64) for column in labelling.spans)
    first = FirstLabels(lower, _marked(starts, len(lower)), *spans)
    values = majorities(first, doc_starts, len(labelling.labels), entities)
    # NO_LABEL, -1, indexes the last one
    hashes = np.append(labelling.labels, [_OUTSIDE, ABSENT])
    return hashes[values[:, [STAGE_ATTRIBUTES.index(name) for name in names]]]


def read_outer(labelling: Labelling, n_tokens: int) -> NDArray[np.uint64]:
    """Values of ``outer``: the label of the span at each token, the longest if several overlap. RETURNS (uint64[T])"""
    start, end, label = labelling.spans
    # Shorter spans first, so that the longest one is written last
    order = np.argsort(end - start, kind="stable")
    values = np.full(n_tokens, _OUTSIDE)
    values[ranges(start[order], end[order])] = np.repeat(labelling.labels[label[order]], (end - start)[order])
    return values


def _marked(starts: NDArray[np.int64], n_tokens: int) -> NDArray[np.bool_]:
    """Which tokens begin a sequence: bool[T + 1]."""
    begins = np.zeros(n_tokens + 1, dtype=np.bool_)
    begins[starts] = True
    return begins
