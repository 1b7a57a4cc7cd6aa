"""Docs that are processed together, laid end to end."""

from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, ORTH, SENT_START
from spacy.tokens import Doc

# Read together, since most of what reading costs is the same for one attribute and for three
_PLAIN = [ORTH, SENT_START, ENT_IOB]


class DocBatch(list[Doc]):
    """Docs whose words, starts and ends several parts of a component ask for: they are read once.

    It is for one prediction, in which nobody changes the Docs.
    """

    @classmethod
    def of(cls, docs: Iterable[Doc]) -> "DocBatch":
        """The same, if it is one already."""
        return docs if isinstance(docs, cls) else cls(docs)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """Where the tokens of each Doc begin and end: int64[D + 1]."""
        return doc_bounds(self)

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

    def read(self, attributes: list[int]) -> NDArray[np.uint64]:
        """``Doc.to_array``, and along with it what all batches are asked for: uint64[T, C]."""
        if not attributes and "_plain" in self.__dict__:  # as for the second reader of a batch
            return np.zeros((len(self.words), 0), dtype=np.uint64)
        rows = read_attributes(self, [*_PLAIN, *attributes])
        self._plain = np.ascontiguousarray(rows[:, : len(_PLAIN)].T)
        return rows[:, len(_PLAIN) :]

    @cached_property
    def _plain(self) -> NDArray[np.uint64]:
        return np.ascontiguousarray(read_attributes(self, _PLAIN).T)


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
        self._plain = docs._plain[:, kept]


def doc_bounds(docs: list[Doc]) -> NDArray[np.int64]:
    """RETURNS (int64[D + 1]): Where the tokens of each Doc begin and end."""
    return np.fromiter(accumulate(map(len, docs), initial=0), dtype=np.int64, count=len(docs) + 1)


def read_attributes(docs: list[Doc], attributes: list[int]) -> NDArray[np.uint64]:
    """``Doc.to_array`` of all Docs, laid end to end: uint64[T, C]."""
    if not docs:
        return np.zeros((0, len(attributes)), dtype=np.uint64)
    return np.concatenate([doc.to_array(attributes) for doc in docs]).reshape(-1, len(attributes))


def sequence_starts(sent_start: NDArray, doc_starts: NDArray) -> NDArray[np.int64]:
    """Where the sequences of a batch begin and end: at the Docs' ends and at known sentence starts.

    sent_start (uint64[T]): spaCy's SENT_START values: 1 where a sentence is known to start.
    RETURNS (int64[B + 1])
    """
    opens = np.empty(len(sent_start) + 1, dtype=bool)
    np.equal(sent_start, 1, out=opens[:-1])
    opens[doc_starts] = True  # an empty Doc begins where the next one does, and the last ends behind all tokens
    return opens.nonzero()[0]
