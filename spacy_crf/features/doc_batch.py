"""Docs that are processed together, laid end to end."""

from collections.abc import Iterable
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

    # Not as cached properties: before Python 3.12 these take a lock, which for a short Doc takes as long as its features
    _bounds: Optional[NDArray[np.int64]] = None
    _rows: Optional[NDArray[np.uint64]] = None
    labelling: Optional[Labelling] = None  # what a first stage says of them, where it is not the last word of the stage

    @classmethod
    def of(cls, docs: Iterable[Doc]) -> "DocBatch":
        """The same, if it is one already."""
        return docs if isinstance(docs, cls) else cls(docs)

    @property
    def bounds(self) -> NDArray[np.int64]:
        """Where the tokens of each Doc begin and end: int64[D + 1]."""
        if self._bounds is None:
            self._bounds = doc_bounds(self)
        return self._bounds

    @property
    def words(self) -> NDArray[np.uint64]:
        """Hash of each word: uint64[T]."""
        return self._plain[0]

    @property
    def sent_start(self) -> NDArray[np.uint64]:
        """spaCy's SENT_START values, 1 where a sentence is known to start: uint64[T]."""
        return self._plain[1]

    @property
    def ent_iob(self) -> NDArray[np.uint64]:
        """uint64[T]"""
        return self._plain[2]

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
        if not attributes and self._rows is not None:  # as for the second reader of a batch
            return np.zeros((len(self.words), 0), dtype=np.uint64)
        rows = read_attributes(self, [*_PLAIN, *attributes])
        self._rows = np.ascontiguousarray(rows[:, : len(_PLAIN)].T)
        return rows[:, len(_PLAIN) :]

    @property
    def _plain(self) -> NDArray[np.uint64]:
        if self._rows is None:
            self.read([])
        return self._rows


class DocPart(DocBatch):
    """Docs of which some tokens take no part.

    docs (DocBatch): The Docs.
    kept (int64[T']): The tokens that do.
    """

    def __init__(self, docs: DocBatch, kept: NDArray[np.int64]):
        super().__init__(docs)
        self.whole = docs
        self.kept = kept
        self._bounds = np.searchsorted(kept, docs.bounds)
        self._rows = docs._plain[:, kept]


def doc_bounds(docs: list[Doc]) -> NDArray[np.int64]:
    """RETURNS (int64[D + 1]): Where the tokens of each Doc begin and end."""
    return np.fromiter(accumulate(map(len, docs), initial=0), dtype=np.int64, count=len(docs) + 1)


def read_attributes(docs: list[Doc], attributes: list[int]) -> NDArray[np.uint64]:
    """``Doc.to_array`` of all Docs, laid end to end: uint64[T, C]."""
    if not docs:
        return np.zeros((0, len(attributes)), dtype=np.uint64)
    return np.concatenate([doc.to_array(attributes) for doc in docs]).reshape(-1, len(attributes))
