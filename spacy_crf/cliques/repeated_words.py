"""The same word at several places of a Doc (skip-chains: Sutton & McCallum 2004; Finkel, Grenager & Manning 2005)."""

from functools import reduce
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import Warnings, announcements
from ..features.doc_batch import DocBatch
from ..kernels.ties import repeated
from .template import CliqueTemplate, Pairs, flags

ATTRIBUTES = ("ORTH", "LOWER", "NORM", "LEMMA", "SHAPE", "PREFIX", "SUFFIX")
EDGES = ("next", "all", "hub")


class RepeatedWords(CliqueTemplate):
    """Ties the places at which a Doc has the same word.

    attr (str): By which words are the same: ORTH, LOWER, NORM, LEMMA, SHAPE, PREFIX or SUFFIX.
    only (Union[str, List[str]]): Flags of which a word must have one, such as "is_title"; None for any word.
    edges (str): "next", each place is tied to the next one; "hub", to the first one; "all", to all others: their number grows
        with the square of the places.
    features (List[str]): See `CliqueTemplate`.
    symmetric (bool): See `CliqueTemplate`.
    max_edges (int): A word that would get more ties in a Doc gets none there: this is said once.
    """

    def __init__(
        self,
        attr: str = "ORTH",
        only: Any = "is_title",
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric)
        self.attr = checks.one_of(self.owner, "attr", attr, ATTRIBUTES)
        self.only = flags(self.owner, "only", only)
        self.edges = checks.one_of(self.owner, "edges", edges, EDGES)
        self.max_edges = checks.count(self.owner, "max_edges", max_edges)
        self._told = False

    @property
    def attributes(self) -> list[str]:
        return list(dict.fromkeys([*super().attributes, self.attr.lower(), *self.only]))

    def find(self, docs: DocBatch) -> Pairs:
        words, *flags = self.read(docs, [self.attr.lower(), *self.only])
        usable = words != 0
        if flags:
            usable &= reduce(np.bitwise_or, flags) != 0
        some = repeated(words, usable, docs.bounds)
        if not len(some):
            return Pairs.none()
        of_doc = np.searchsorted(docs.bounds, some, side="right")
        # By Doc, then by word; places of equal ones in their order
        order = np.lexsort((words[some], of_doc))
        some, of_doc = some[order], of_doc[order]
        is_new = np.append(True, (np.diff(of_doc) > 0) | (words[some[1:]] != words[some[:-1]]))[: len(some)]
        first = np.flatnonzero(is_new)
        counts = np.diff(np.append(first, len(some)))
        many = counts * (counts - 1) // 2 if self.edges == "all" else counts - 1
        self._tell(docs, some[first[many > self.max_edges]])
        usable = np.repeat(many <= self.max_edges, counts)
        return self._tie(some[usable], is_new[usable], counts[many <= self.max_edges])

    def _tie(self, places: NDArray[np.int64], is_new: NDArray[np.bool_], counts: NDArray[np.int64]) -> Pairs:
        """Ties the places of equal words, which stand side by side.

        is_new (bool[N]): The first of each word. counts (int64[W]): Places of each.
        """
        later = np.flatnonzero(~is_new)
        if self.edges == "next":
            return Pairs(places[later - 1], places[later])
        first = np.repeat(np.flatnonzero(is_new), counts)
        if self.edges == "hub":
            return Pairs(places[first[later]], places[later])
        before = later - first[later]  # how many earlier places each has
        source = np.repeat(first[later], before) + _counted_up(before)
        return Pairs(places[source], np.repeat(places[later], before))

    def _tell(self, docs: DocBatch, tokens: NDArray[np.int64]) -> None:
        if len(tokens) and not self._told:
            self._told = True
            d = int(np.searchsorted(docs.bounds, tokens[0], side="right")) - 1
            word = docs[d][int(tokens[0] - docs.bounds[d])].text
            message = Warnings.CRFW040.format(
                owner=self.owner, word=word, text=docs[d][:40].text[:40], most=self.max_edges
            )
            announcements.warning(message)


def _counted_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … up to each count."""
    after = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(after - counts, counts)
