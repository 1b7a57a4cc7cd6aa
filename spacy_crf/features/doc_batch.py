"""Batches of Docs laid end to end, and the rows of their scores, by tokens, sentences or texts."""

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IS_SPACE, ORTH, SENT_START
from spacy.tokens import Doc

from ..errors import Errors
from ..kernels.hashing import sequence_starts
from ..types import Floats, TokenFeatures
from .document import Labeller, Labelling

# Read together: four attributes take hardly longer than one
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
        """Number of the Doc of each of some tokens: int64[N]."""
        return np.searchsorted(self.bounds, tokens, side="right") - 1

    def sequence_starts(self) -> NDArray[np.int64]:
        """Bounds of the sequences, which begin with Docs and at known sentence starts: int64[B + 1]."""
        return sequence_starts(self.sent_start, self.bounds)

    def labelled_by(self, stage: Optional[Labeller]) -> Labelling:
        """The labelling of a first stage. RAISES (ValueError): CRF810 without one."""
        if self.labelling is not None:
            return self.labelling
        if stage is None:
            raise ValueError(Errors.CRF810.format(where="The features read what a first stage says (stage:...)"))
        return stage(self)

    def read(self, attributes: list[int]) -> NDArray[np.uint64]:
        """``Doc.to_array`` of all Docs; reads words, starts and entities with it: uint64[T, C]."""
        # As for the second reader of a batch
        if not attributes and "words" in vars(self):
            return np.zeros((len(self.words), 0), dtype=np.uint64)
        rows = read_attributes(self, [*_PLAIN, *attributes])
        self.words, self.sent_start, self.ent_iob, is_space = np.ascontiguousarray(rows[:, : len(_PLAIN)].T)
        self.is_space = is_space.astype(bool)
        return rows[:, len(_PLAIN) :]


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
    """The rows of the scores of D texts, laid end to end."""

    tokens: Starts  # [U + 1] where the tokens of each row begin and end
    texts: Starts  # [D + 1] where the rows of each text begin and end

    @classmethod
    def of(cls, unit: Optional[str], sequences: Starts, texts: Starts) -> "UnitRows":
        """Rows with one row for each token, sentence or text.

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
        filled = self.tokens[:-1] < self.tokens[1:]
        total = np.zeros((len(filled), scores.shape[1]))
        if filled.any():
            total[filled] = np.add.reduceat(scores, self.tokens[:-1][filled], axis=0)
        return total
