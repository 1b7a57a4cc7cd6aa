"""Words of a Doc that are spelt nearly alike: inflected names, slips, other transcriptions (text similarity: Bunescu & Mooney
2004)."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import JaroWinkler, Levenshtein
from rapidfuzz.process import cdist

from ... import checks
from ...errors import Warnings, announcements
from ...features.doc_batch import DocBatch
from .groups import GroupTemplate, counted_up
from .templates import TokenPairs, flags

MEASURES = {"jaro_winkler": JaroWinkler.normalized_similarity, "levenshtein": Levenshtein.normalized_similarity}
_ROWS = 256  # of similarities that are in memory together


class SimilarWords(GroupTemplate):
    """Ties places at which a Doc has words that are spelt nearly alike, but not the same: those `RepeatedWords` ties.

    similarity (float): From above 0 to 1: how similar words have to be.
    measure (str): "jaro_winkler" or "levenshtein" (the share of characters that need no change).
    only (Union[str, List[str]]): Flags of which a word must have one, such as "is_title"; None for any word.
    shortest (int): Characters of a word.
    max_words (int): Different words of a Doc that are compared with each other. A Doc that has more has no ties, which is said
        once.
    edges (str): Of two words, "next" ties each place of one to the next place of the other; "hub" the first places; "all" all.
        The first token of a pair is the one that stands first in the Doc.
    max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool): See `TieTemplate`.
    """

    def __init__(
        self,
        similarity: float = 0.9,
        measure: str = "jaro_winkler",
        only: Any = "is_title",
        shortest: int = 4,
        max_words: int = 2000,
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges)
        owner = self.owner
        self.similarity = checks.number(owner, "similarity", similarity, least=0.01, most=1.0)
        self.measure = checks.one_of(owner, "measure", measure, tuple(MEASURES))
        self.only = flags(owner, "only", only)
        self.shortest = checks.count(owner, "shortest", shortest, most=checks.ANY)
        self.max_words = checks.count(owner, "max_words", max_words, most=100_000)
        self._told_words = False

    @property
    def attributes(self) -> list[str]:
        return self.only

    def find(self, docs: DocBatch) -> TokenPairs:
        usable, found = self.having(docs, self.only), []
        for d, (begin, end) in enumerate(zip(docs.bounds.tolist(), docs.bounds[1:].tolist())):
            places = begin + np.flatnonzero(usable[begin:end])
            if len(places) > 1:
                found.append(self._of_doc(docs, d, places))
        if not found:
            return TokenPairs.none()
        # Pairs of words are in no order that a Doc knows
        return TokenPairs(*np.sort([np.concatenate(ends) for ends in zip(*found)], axis=0))

    def _of_doc(self, docs: DocBatch, d: int, places: NDArray[np.int64]) -> TokenPairs:
        hashes, number = np.unique(docs.words[places], return_inverse=True)
        texts = [docs[d].vocab.strings[value] for value in hashes.tolist()]
        long = np.flatnonzero([len(text) >= self.shortest for text in texts])
        if len(long) > self.max_words:
            self._tell_words(docs, d, len(long))
            return TokenPairs.none()
        words = [texts[w] for w in long.tolist()]
        one, other = (long[each] for each in _similar(words, MEASURES[self.measure], self.similarity))
        # The places of each word, side by side, in their order
        order = places[np.argsort(number.reshape(-1), kind="stable")]
        counts = np.bincount(number.reshape(-1), minlength=len(texts))
        first = np.cumsum(counts) - counts
        many = {"hub": 1, "next": counts[one] + counts[other] - 1, "all": counts[one] * counts[other]}[self.edges]
        of_words = np.zeros(len(texts), dtype=np.int64)
        for each in (one, other):
            np.add.at(of_words, each, many)
        too_many = of_words > self.max_edges
        self.tell_many(docs, order[first[too_many]])
        few = ~(too_many[one] | too_many[other])
        return self._tie_words(order, first, counts, one[few], other[few])

    def _tie_words(self, order, first, counts, one, other) -> TokenPairs:
        """Ties the places of pairs of words (int64[N] each): word w has order[first[w] : first[w] + counts[w]]."""
        if self.edges == "hub":
            return TokenPairs(order[first[one]], order[first[other]])
        if self.edges == "all":
            sizes = counts[one] * counts[other]
            each, width = counted_up(sizes), np.repeat(counts[other], sizes)
            return TokenPairs(
                order[np.repeat(first[one], sizes) + each // width],
                order[np.repeat(first[other], sizes) + each % width],
            )
        words = np.stack([one, other], axis=1).ravel()
        pair = np.repeat(np.repeat(np.arange(len(one)), 2), counts[words])
        is_other = np.repeat(np.tile([False, True], len(one)), counts[words])
        places = order[np.repeat(first[words], counts[words]) + counted_up(counts[words])]
        by_place = np.lexsort((places, pair))
        pair, is_other, places = pair[by_place], is_other[by_place], places[by_place]
        meet = np.flatnonzero((pair[1:] == pair[:-1]) & (is_other[1:] != is_other[:-1]))
        return TokenPairs(places[meet], places[meet + 1])

    def _tell_words(self, docs: DocBatch, d: int, n: int) -> None:
        if not self._told_words:
            self._told_words = True
            text = docs[d][:40].text[:40]
            announcements.warning(Warnings.CRFW369.format(owner=self.owner, text=text, n=n, most=self.max_words))


def _similar(words: list[str], measure: Any, least: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of words that are similar: their numbers, the lower one first."""
    pairs = []
    for begin in range(0, len(words), _ROWS):
        scores = cdist(
            words[begin : begin + _ROWS], words[begin:], scorer=measure, score_cutoff=least, dtype=np.float32
        )
        row, column = np.nonzero(np.triu(scores >= np.float32(least), k=1))
        pairs.append((begin + row, begin + column))
    none = np.zeros(0, dtype=np.int64)
    return tuple(np.concatenate([none, *ends]) for ends in (zip(*pairs) if pairs else ((), ())))
