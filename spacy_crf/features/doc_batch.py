"""Batches of Docs laid end to end; which tokens make up the rows of scores of tokens, sentences or texts; and attributes of
tokens that depend on the rest of the Doc.

``doc:`` attributes compare the forms of a word. The case of a word carries no information where a sentence begins, so first
tokens of sentences count only if the word has no other tokens. A word that occurs once in its Doc has no value.

``stage:`` attributes show which label a token would have if a first labelling of its Doc were consistent, for the templates of a
second stage (Krishnan & Manning 2006, An Effective Two-Stage Model for Exploiting Non-Local Dependencies in Named Entity
Recognition). Words are compared in lower case.

``outer`` is the label of the outermost span at the token, for the levels inside it where spans nest.
"""

from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, ORTH, SENT_START
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.tokens import Doc

from ..arrays import ranges
from ..errors import Errors
from ..kernels.document import FirstLabels, FormColumns, document_values, majorities
from ..kernels.hashing import ABSENT
from ..schemes import Segments
from ..types import Floats, TokenFeatures

DOCUMENT_ATTRIBUTES = ["doc:title_elsewhere", "doc:majority_shape", "doc:cased_form"]
# Attributes of the lexeme from which the attributes of the Doc are computed
READS = ["lower", "shape", "orth", "is_title", "capitals"]
MAJORITIES = ("token_majority", "entity_majority", "superentity_majority")
STAGE_ATTRIBUTES = [f"stage:{name}" for name in MAJORITIES]
OUTER = "outer"

# A sentence begins behind these words, whether or not the Doc has a sentence boundary there
_ENDS = np.array([hash_string(end) for end in (".", "!", "?", "…", ":", "\n", "\n\n")], dtype=np.uint64)
_OUTSIDE = np.uint64(0)  # hash of the empty string, as with ent_type


class Labelling(NamedTuple):
    """The spans that a first stage finds in a batch of Docs, from left to right; or the outermost of the spans that nest."""

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
    reads_entities = any(name in names for name in STAGE_ATTRIBUTES[1:])
    # Arrays of one type, so that the kernel compiles once
    spans = (np.ascontiguousarray(column, dtype=np.int64) for column in labelling.spans)
    first_labels = FirstLabels(lower, _marked(starts, len(lower)), *spans)
    label_numbers = majorities(first_labels, doc_starts, len(labelling.labels), reads_entities)
    # The number behind the labels means outside of spans; NO_LABEL, -1, indexes the last hash
    hashes = np.append(labelling.labels, [_OUTSIDE, ABSENT])
    columns = [STAGE_ATTRIBUTES.index(name) for name in names]
    return hashes[label_numbers[:, columns]]


def read_outer(labelling: Labelling, n_tokens: int) -> NDArray[np.uint64]:
    """Values of ``outer``: the label of the span at each token, the longest if several overlap. RETURNS (uint64[T])"""
    start, end, label = labelling.spans
    # Shorter spans first, so that the longest span is written last
    order = np.argsort(end - start, kind="stable")
    start = start[order]
    end = end[order]
    values = np.full(n_tokens, _OUTSIDE)
    values[ranges(start, end)] = np.repeat(labelling.labels[label[order]], end - start)
    return values


def _marked(starts: NDArray[np.int64], n_tokens: int) -> NDArray[np.bool_]:
    """Which tokens begin a sequence: bool[T + 1]."""
    begins = np.zeros(n_tokens + 1, dtype=np.bool_)
    begins[starts] = True
    return begins


def sequence_starts(sent_start: NDArray[np.uint64], doc_starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bounds of the sequences of a batch: ends of Docs and known sentence starts.

    sent_start (uint64[T]): spaCy's SENT_START values: 1 where a sentence is known to start.
    doc_starts (int64[D + 1]): Where the Docs start.
    RETURNS (int64[B + 1])
    """
    begins = np.empty(len(sent_start) + 1, dtype=np.bool_)
    np.equal(sent_start, 1, out=begins[:-1])
    # An empty Doc begins where the next Doc does; the last empty Doc begins behind all tokens
    begins[doc_starts] = True
    return begins.nonzero()[0]


# Always read together: four attributes take hardly longer than one
_PLAIN = [ORTH, SENT_START, ENT_IOB, IS_SPACE]
TOKEN, SENT, TEXT = UNITS = ("token", "sent", "text")  # units that have scores
Starts = NDArray[np.int64]


class DocBatch(list[Doc]):
    """The Docs of one prediction, which must not change meanwhile. Several parts of a component need their words, starts and
    ends; the batch reads them once."""

    labelling: Optional[Labelling] = None  # used in place of the first stage's labelling

    @classmethod
    def of(cls, docs: Iterable[Doc]) -> "DocBatch":
        """The argument itself if it is a batch, or else a batch of its Docs."""
        return docs if isinstance(docs, cls) else cls(docs)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where the tokens of each Doc begin and end: int64[D + 1]."""
        return np.fromiter(accumulate(map(len, self), initial=0), dtype=np.int64, count=len(self) + 1)

    # `read` sets these four properties together

    @cached_property
    def words(self) -> NDArray[np.uint64]:
        """Hash of each word: uint64[T]."""
        self.read([])
        return self.words

    @cached_property
    def sent_start(self) -> NDArray[np.uint64]:
        """spaCy's SENT_START values, 1 where a sentence is known to start: uint64[T]."""
        self.read([])
        return self.sent_start

    @cached_property
    def ent_iob(self) -> NDArray[np.uint64]:
        """spaCy's ENT_IOB values: uint64[T]."""
        self.read([])
        return self.ent_iob

    @cached_property
    def is_space(self) -> NDArray[np.bool_]:
        """Whether each token is white space: bool[T]."""
        self.read([])
        return self.is_space

    def of_tokens(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the Doc to which each of N tokens belongs: int64[N]."""
        return np.searchsorted(self.bounds, tokens, side="right") - 1

    def sequence_starts(self) -> NDArray[np.int64]:
        """Bounds of the sequences, which begin where Docs begin and at known sentence starts: int64[B + 1]."""
        return sequence_starts(self.sent_start, self.bounds)

    def labelled_by(self, stage: Optional[Labeller]) -> Labelling:
        """The labelling of this batch, or else what the first stage finds. RAISES (ValueError): CRF810 without a first stage."""
        if self.labelling is not None:
            return self.labelling
        if stage is None:
            raise ValueError(Errors.CRF810.format(where="The features read what a first stage says (stage:...)"))
        return stage(self)

    def read(self, attributes: list[int]) -> NDArray[np.uint64]:
        """``Doc.to_array`` of all Docs: uint64[T, C]. Sets the batch's `words`, `sent_start`, `ent_iob` and `is_space` too:
        reading them costs hardly more."""
        # They are set already, and there is nothing else to read
        if not attributes and "words" in vars(self):
            return np.zeros((len(self.words), 0), dtype=np.uint64)
        rows = read_attributes(self, [*_PLAIN, *attributes])
        self.words, self.sent_start, self.ent_iob, is_space = np.ascontiguousarray(rows[:, : len(_PLAIN)].T)
        self.is_space = is_space.astype(bool)
        return rows[:, len(_PLAIN) :]


class WholeDocs(DocBatch):
    """A batch in which each Doc is one sequence, whatever sentences are known: for components that find sentences."""

    def sequence_starts(self) -> NDArray[np.int64]:
        """Bounds of the sequences, which begin where Docs begin: int64[B + 1]."""
        return sequence_starts(np.zeros_like(self.sent_start), self.bounds)


class DocPart(DocBatch):
    """A batch of Docs without some of their tokens.

    docs (DocBatch): The Docs.
    kept (int64[T']): The remaining tokens.
    """

    def __init__(self, docs: DocBatch, kept: NDArray[np.int64]):
        super().__init__(docs)
        self.whole = docs
        self.kept = kept
        self.bounds = np.searchsorted(kept, docs.bounds)
        self.words = docs.words[kept]
        self.sent_start = docs.sent_start[kept]
        self.ent_iob = docs.ent_iob[kept]
        self.is_space = docs.is_space[kept]


def read_attributes(docs: list[Doc], attributes: list[Union[int, str]]) -> NDArray[np.uint64]:
    """``Doc.to_array`` of all Docs, laid end to end: uint64[T, C]."""
    if not docs:
        return np.zeros((0, len(attributes)), dtype=np.uint64)
    arrays = [doc.to_array(attributes) for doc in docs]
    return np.concatenate(arrays, dtype=np.uint64).reshape(-1, len(attributes))


class UnitRows(NamedTuple):
    """Which tokens make up each row of scores, for the U rows of D texts, laid end to end."""

    tokens: Starts  # [U + 1] where the tokens of each row begin and end
    texts: Starts  # [D + 1] where the rows of each text begin and end

    @classmethod
    def of(cls, unit: Optional[str], sequences: Starts, texts: Starts) -> "UnitRows":
        """One row for each token, sentence or text.

        unit (Optional[str]): One of `UNITS`; None for sentences.
        sequences (int64[B + 1]), texts (int64[D + 1]): Where the tokens of each sentence, and of each text, begin and end.
        """
        if unit == TEXT:
            return cls(texts, np.arange(len(texts)))
        if unit == TOKEN:
            return cls(np.arange(texts[-1] + 1), texts)
        tokens = np.unique(np.append(sequences, texts))
        return cls(tokens, np.searchsorted(tokens, texts))

    def gather(self, features: TokenFeatures) -> TokenFeatures:
        """The features of the tokens of each row."""
        return features._replace(starts=features.starts[self.tokens])

    def total(self, scores: Floats) -> Floats:
        """Sum of the scores of the tokens of each row: float64[U, C]."""
        if (np.diff(self.tokens) == 1).all():
            return scores
        # For a row without tokens, `reduceat` would return the scores of the next token
        starts = self.tokens[:-1]
        has_tokens = starts < self.tokens[1:]
        total = np.zeros((len(starts), scores.shape[1]))
        if has_tokens.any():
            total[has_tokens] = np.add.reduceat(scores, starts[has_tokens], axis=0)
        return total
