"""Which texts a component has learned from, so that scores of these texts are not taken for scores of new ones.

A text is kept as a hash of 64 bits, and of all hashes the smallest `MOST`: 8 bytes a text, at most 1 MB, in the component's file.
Hashes give no text away, but whoever has a text can find out whether the component has learned from it.
"""

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.training import Example

MOST = 1 << 17
_NEW = 1 << 16  # hashes that wait to be sorted


class LearnedTexts:
    """The texts that a component has learned from.

    is_known (bool): Whether all of its texts are known, as after `initialize`.
    """

    def __init__(self, *, is_known: bool):
        self._hashes = np.zeros(0, dtype=np.uint64)  # sorted
        self._new: set[int] = set()
        self._is_known = is_known

    def add(self, examples: Iterable[Example]) -> None:
        if not self._is_known:
            return
        self._new.update(_hash(example) for example in examples if len(example.reference))
        if len(self._new) >= _NEW:
            self._sort()

    def _sort(self) -> None:
        new = np.fromiter(self._new, dtype=np.uint64, count=len(self._new))
        self._hashes = np.union1d(self._hashes, new)[:MOST]
        self._new = set()

    def count(self, examples: Iterable[Example]) -> Optional[int]:
        """How many of these texts the component has learned from; an estimate if it has learned from more than `MOST` texts, and
        None if its texts are not known, such as those of models that earlier versions saved."""
        if not self._is_known:
            return None
        self._sort()
        hashes = np.array([_hash(example) for example in examples if len(example.reference)], dtype=np.uint64)
        if len(self._hashes) < MOST:
            return int(np.isin(hashes, self._hashes).sum())
        small = hashes[hashes <= self._hashes[-1]]
        return round(np.isin(small, self._hashes).sum() / max(1, len(small)) * len(hashes))

    def packed(self) -> Optional[bytes]:
        """The form in which the texts are saved; None if they are not known."""
        self._sort()
        return self._hashes.astype("<u8").tobytes() if self._is_known else None

    @classmethod
    def unpacked(cls, saved: Any) -> "LearnedTexts":
        """Texts as `packed` gives them, or whatever else a file has in their place."""
        texts = cls(is_known=isinstance(saved, bytes) and len(saved) % 8 == 0)
        if texts._is_known:
            texts._hashes = np.unique(np.frombuffer(saved, dtype="<u8").astype(np.uint64))[:MOST]
        return texts


def _hash(example: Example) -> int:
    """A number for a text without its white space, which formats of columns do not keep."""
    return hash_string("".join(example.reference.text.split()))
