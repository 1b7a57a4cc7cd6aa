"""Docs that are processed together, laid end to end."""

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, ORTH, SENT_START
from spacy.tokens import Doc

from ..errors import Errors
from ..kernels.hashing import sequence_starts
from .two_stage import Labeller, Labelling

# Read together, since most of what reading costs is the same for one attribute and for three
_PLAIN = [ORTH, SENT_START, ENT_IOB]


class DocBatch(list[Doc]):
    """Docs whose words, starts and ends several parts of a component ask for: they are read once.

    It is for one prediction, in which nobody changes the Docs.
    """

    labelling: Optional[Labelling] = None  # what a first stage says of them, where it is not the last word of the stage

    @classmethod
    def of(cls, docs: Iterable[Doc]) -> "DocBatch":
        """The Docs as a batch: as they are, if they are one already."""
        return docs if isinstance(docs, cls) else cls(docs)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where the tokens of each Doc begin and end: int64[D + 1]."""
        return np.fromiter(accumulate(map(len, self), initial=0), dtype=np.int64, count=len(self) + 1)

    # `read` fills in these three together

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

    def of_tokens(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which Doc each of some tokens is in: int64[N]."""
        return np.searchsorted(self.bounds, tokens, side="right") - 1

    def sequence_starts(self) -> NDArray[np.int64]:
        """Where the sequences begin and end, at the Docs' ends and at known sentence starts: int64[B + 1]."""
        return sequence_starts(self.sent_start, self.bounds)

    def labelled_by(self, stage: Optional[Labeller]) -> Labelling:
        """What the first stage says of them. RAISES (ValueError): CRF810 if there is none."""
        if self.labelling is None and stage is None:
            raise ValueError(Errors.CRF810.format(where="The features read what a first stage says (stage:...)"))
        return stage(self) if self.labelling is None else self.labelling

    def read(self, attributes: list[int]) -> NDArray[np.uint64]:
        """``Doc.to_array``, and along with it what all batches are asked for: uint64[T, C]."""
        if not attributes and "words" in vars(self):  # as for the second reader of a batch
            return np.zeros((len(self.words), 0), dtype=np.uint64)
        rows = read_attributes(self, [*_PLAIN, *attributes])
        self.words, self.sent_start, self.ent_iob = np.ascontiguousarray(rows[:, : len(_PLAIN)].T)
        return rows[:, len(_PLAIN) :]


class DocPart(DocBatch):
    """Docs of which some tokens take no part.

    docs (DocBatch): The Docs.
    kept (int64[T']): The tokens that do.
    """

    def __init__(self, docs: DocBatch, kept: NDArray[np.int64]):
        super().__init__(docs)
        self.whole = docs
        self.kept = kept
        self.bounds = np.searchsorted(kept, docs.bounds)
        self.words, self.sent_start, self.ent_iob = docs.words[kept], docs.sent_start[kept], docs.ent_iob[kept]


def doc_bounds(docs: list[Doc]) -> NDArray[np.int64]:
    """RETURNS (int64[D + 1]): Where the tokens of each Doc begin and end."""
    return DocBatch.of(docs).bounds


def read_attributes(docs: list[Doc], attributes: list[int]) -> NDArray[np.uint64]:
    """``Doc.to_array`` of all Docs, laid end to end: uint64[T, C]."""
    if not docs:
        return np.zeros((0, len(attributes)), dtype=np.uint64)
    return np.concatenate([doc.to_array(attributes) for doc in docs]).reshape(-1, len(attributes))
