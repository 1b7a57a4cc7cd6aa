"""What is the same at several places of a Doc, and which of the places are tied: the base of the templates that ask this."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ... import checks
from ...errors import Errors, Warnings, announcements
from ...features.doc_batch import DocBatch
from .template import CliqueTemplate, TokenPairs

EDGES = ("next", "all", "hub")
WORDS = ("first", "all")


class GroupTemplate(CliqueTemplate):
    """Base of the templates that tie places of a Doc that have something in common.

    edges (str): "next", each place is tied to the next one; "hub", to the first one; "all", to all others: their number grows
        with the square of the places.
    max_edges (int): What would get more ties in a Doc gets none there: this is said once.
    """

    def __init__(self, features: Any, symmetric: bool, edges: str, max_edges: int):
        super().__init__(features, symmetric)
        self.edges = checks.one_of(self.owner, "edges", edges, EDGES)
        self.max_edges = checks.count(self.owner, "max_edges", max_edges, most=10_000_000)
        self._told = False

    def tie(
        self, docs: DocBatch, places: NDArray[np.int64], keys: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which of the places (int64[N]) with equal keys (uint64[N]) are tied: their numbers, the earlier one first."""
        if not len(places):
            none = np.zeros(0, dtype=np.int64)
            return none, none
        of_doc = docs.of_tokens(places)
        # By Doc, then by key; places of equal ones in their order
        order = np.lexsort((places, keys, of_doc))
        of_doc, keys = of_doc[order], keys[order]
        is_new = np.append(True, (np.diff(of_doc) > 0) | (keys[1:] != keys[:-1]))
        first = np.flatnonzero(is_new)
        counts = np.diff(np.append(first, len(order)))
        many = counts * (counts - 1) // 2 if self.edges == "all" else counts - 1
        self.tell_many(docs, places[order[first[many > self.max_edges]]])
        usable = np.repeat(many <= self.max_edges, counts)
        return self._tie(order[usable], is_new[usable], counts[many <= self.max_edges])

    def _tie(self, numbers: NDArray[np.int64], is_new: NDArray[np.bool_], counts: NDArray[np.int64]):
        """Ties what stands side by side.

        is_new (bool[N]): The first of each group. counts (int64[W]): Of each.
        """
        later = np.flatnonzero(~is_new)
        if self.edges == "next":
            return numbers[later - 1], numbers[later]
        first = np.repeat(np.flatnonzero(is_new), counts)
        if self.edges == "hub":
            return numbers[first[later]], numbers[later]
        before = later - first[later]  # how many earlier places each has
        source = np.repeat(first[later], before) + counted_up(before)
        return numbers[source], np.repeat(numbers[later], before)

    def tell_many(self, docs: DocBatch, tokens: NDArray[np.int64]) -> None:
        """Says of the first of some tokens that there would be too many ties."""
        if len(tokens) and not self._told:
            self._told = True
            d = int(docs.of_tokens(tokens[:1])[0])
            word = docs[d][int(tokens[0] - docs.bounds[d])].text
            message = Warnings.CRFW040.format(
                owner=self.owner, word=word, text=docs[d][:40].text[:40], most=self.max_edges
            )
            announcements.warning(message)


class Phrases(NamedTuple):
    """Spans of a batch, and what says which of those of a Doc belong together."""

    begin: NDArray[np.int64]  # [N]
    length: NDArray[np.int64]  # [N]
    key: NDArray[np.uint64]  # [N]

    @classmethod
    def of(cls, rows: list[tuple[int, int, int]]) -> "Phrases":
        """rows: Their begins, lengths and keys."""
        begin, length, key = zip(*rows) if rows else ((), (), ())
        return cls(np.array(begin, np.int64), np.array(length, np.int64), np.array(key, np.uint64))


class PhraseTemplate(GroupTemplate):
    """Base of the templates that tie phrases.

    words (str): "first", the first words of two phrases are tied; "all", the second ones, the third ones … as well.
    """

    def __init__(self, features: Any, symmetric: bool, edges: str, max_edges: int, words: str):
        super().__init__(features, symmetric, edges, max_edges)
        self.words = checks.one_of(self.owner, "words", words, WORDS)

    def phrases(self, docs: DocBatch) -> Phrases:
        raise NotImplementedError

    def find(self, docs: DocBatch) -> TokenPairs:
        found = self.phrases(docs)
        one, other = self.tie(docs, found.begin, found.key)
        source, target = found.begin[one], found.begin[other]
        if self.words == "all":
            several = np.minimum(found.length[one], found.length[other])
            further = counted_up(several)
            source, target = np.repeat(source, several) + further, np.repeat(target, several) + further
        apart = source != target  # spans may begin together, or follow one another twice
        pairs = np.unique(np.stack([source, target])[:, apart], axis=1)
        return TokenPairs(*pairs.astype(np.int64))

    def of_spans(self, docs: DocBatch, read: Callable[[Doc], Iterable[tuple[Span, Optional[int]]]]) -> Phrases:
        """Those of each Doc.

        read (Callable): Gives spans and their keys; those without one are left out.
        RAISES (ValueError): CRF369 for a span that is not in its Doc.
        """
        rows = []
        for doc, begin in zip(docs, docs.bounds.tolist()):
            for span, key in read(doc):
                if not 0 <= span.start < span.end <= len(doc):
                    where = f"{span.start} to {span.end}"
                    raise ValueError(Errors.CRF369.format(owner=self.owner, span=where, text=doc.text[:40], n=len(doc)))
                if key is not None:
                    rows.append((begin + span.start, span.end - span.start, key))
        return Phrases.of(rows)


def counted_up(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, … up to each count."""
    after = np.cumsum(counts)
    return np.arange(int(counts.sum())) - np.repeat(after - counts, counts)
