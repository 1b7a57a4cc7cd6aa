"""Templates that tie words of a Doc by their spelling. `SimilarWords` ties words that are spelt nearly alike, such as
inflected names, typing errors and other transcriptions (text similarity: Bunescu & Mooney 2004). `Acronyms` ties acronyms to
the words that they stand for."""

from collections.abc import Callable
from itertools import product
from typing import Optional, Union

import numpy as np
from numpy.typing import NDArray
from rapidfuzz.distance import JaroWinkler, Levenshtein
from rapidfuzz.process import cdist

from spacy_crf import checks
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.optimizers.objective import setting

from ..errors import Warnings
from .groups import GroupTemplate, counted_up
from .templates import TokenPairs, flags, template

MEASURES = {"jaro_winkler": JaroWinkler.normalized_similarity, "levenshtein": Levenshtein.normalized_similarity}
_ROWS = 256  # of similarities that are in memory together
_BRACKETS = {"(": ")", "[": "]"}
_SMALL_WORDS = 2  # that may stand between words whose initials count: "Court of the European Union"


@template
class SimilarWords(GroupTemplate):
    """Ties places at which a Doc has words that are spelt nearly alike, but differ (`RepeatedWords` ties equal words).

    similarity (float): Least similarity of tied words, above 0 and up to 1.
    measure (str): "jaro_winkler" or "levenshtein" (the share of characters that need no change).
    only (Union[str, List[str]]): Flags, such as "is_title", at least one of which a word must have; None for any word.
    shortest (int): Least number of characters in a word.
    max_words (int): Largest number of different words in a Doc that are compared with each other. A Doc with more words has no
        ties; a warning is logged once.
    edges (str): For two words, "next" ties each place of one word to the next place of the other; "hub" ties the first places;
        "all" ties all places. The first token of a pair is the one that comes first in the Doc.
    max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool), associative (bool): See `TieTemplate`.
    """

    similarity: float = setting(0.9, checks.number, least=0.01, most=1.0)
    measure: str = setting("jaro_winkler", checks.one_of, allowed=tuple(MEASURES))
    only: Union[str, list[str], None] = setting("is_title", flags)
    shortest: int = setting(4, checks.count, most=checks.ANY)
    max_words: int = setting(2000, checks.count, most=100_000)

    def find(self, docs: DocBatch) -> TokenPairs:
        """The tied places of similar words, the earlier token first."""
        usable = self.usable(docs)
        found = []
        for d, (begin, end) in enumerate(zip(docs.bounds.tolist(), docs.bounds[1:].tolist())):
            places = begin + np.flatnonzero(usable[begin:end])
            if len(places) > 1:
                found.append(self._of_doc(docs, d, places))
        # Pairs of words are in no order that a Doc knows
        return TokenPairs(*np.sort(np.concatenate([np.zeros((2, 0), np.int64), *map(np.stack, found)], axis=1), axis=0))

    def _of_doc(self, docs: DocBatch, d: int, places: NDArray[np.int64]) -> TokenPairs:
        hashes, number = np.unique(docs.words[places], return_inverse=True)
        texts = [docs[d].vocab.strings[value] for value in hashes.tolist()]
        long = np.flatnonzero([len(text) >= self.shortest for text in texts])
        if len(long) > self.max_words:
            self.warn_once(Warnings.CRFW369, text=docs[d][:40].text[:40], n=len(long), most=self.max_words)
            return TokenPairs(places[:0], places[:0])
        words = [texts[w] for w in long.tolist()]
        one, other = _similar(words, MEASURES[self.measure], self.similarity)
        one = long[one]
        other = long[other]
        # The places of each word, side by side, in their order
        order = places[np.argsort(number.reshape(-1), kind="stable")]
        counts = np.bincount(number.reshape(-1), minlength=len(texts))
        first = np.cumsum(counts) - counts
        # How many ties each pair of words would have
        by_edges = {"hub": np.ones_like(one), "all": counts[one] * counts[other]}
        many = by_edges.get(self.edges, counts[one] + counts[other] - 1)
        of_words = np.zeros(len(texts), dtype=np.int64)
        for each in (one, other):
            np.add.at(of_words, each, many)
        too_many = of_words > self.max_edges
        self.warn_many(docs, order[first[too_many]])
        few = ~(too_many[one] | too_many[other])
        return self._tie_words(order, first, counts, one[few], other[few])

    def _tie_words(self, order, first, counts, one, other) -> TokenPairs:
        """Ties the places of pairs of words (int64[N] each): word w has order[first[w] : first[w] + counts[w]]."""
        if self.edges == "hub":
            return TokenPairs(order[first[one]], order[first[other]])
        if self.edges == "all":
            sizes = counts[one] * counts[other]
            each = counted_up(sizes)
            width = np.repeat(counts[other], sizes)
            return TokenPairs(
                order[np.repeat(first[one], sizes) + each // width],
                order[np.repeat(first[other], sizes) + each % width],
            )
        words = np.stack([one, other], axis=1).ravel()
        pair = np.repeat(np.repeat(np.arange(len(one)), 2), counts[words])
        is_other = np.repeat(np.tile([False, True], len(one)), counts[words])
        places = order[np.repeat(first[words], counts[words]) + counted_up(counts[words])]
        by_place = np.lexsort((places, pair))
        pair = pair[by_place]
        is_other = is_other[by_place]
        places = places[by_place]
        # Neighbours in the Doc that are one of each word
        meet = np.flatnonzero((pair[1:] == pair[:-1]) & (is_other[1:] != is_other[:-1]))
        return TokenPairs(places[meet], places[meet + 1])


def _similar(words: list[str], measure: Callable, least: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of words that are similar: their numbers, the lower one first."""
    pairs = []
    for begin in range(0, len(words), _ROWS):
        scores = cdist(
            words[begin : begin + _ROWS], words[begin:], scorer=measure, score_cutoff=least, dtype=np.float32
        )
        row, column = np.nonzero(np.triu(scores >= np.float32(least), k=1))
        pairs.append((begin + row, begin + column))
    none = np.zeros(0, dtype=np.int64)
    one, other = zip(*pairs) if pairs else ((), ())
    return np.concatenate([none, *one]), np.concatenate([none, *other])


@template
class Acronyms(GroupTemplate):
    """Ties acronyms to the first word of their expansion: words in front of a bracketed acronym that contain its letters in the
    same order and begin with its first letter (Schwartz & Hearst 2003), or words whose initials spell it.

    An acronym has at least two capitals, and perhaps digits.

    shortest (int), longest (int): Number of characters of an acronym.
    edges (str): "next" ties each place of an acronym to the latest expansion before it, or else to the first one; "hub" ties it
        to the first expansion; "all" ties it to all expansions.
    max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool), associative (bool): See `TieTemplate`.
    """

    shortest: int = setting(2, checks.count, least=2)
    longest: int = setting(10, checks.count, least=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count(self.owner, "shortest", self.shortest, least=2, most=self.longest)

    def find(self, docs: DocBatch) -> TokenPairs:
        """The first words of expansions, with the places of their acronyms."""
        pairs: list[tuple[int, int]] = []
        for doc, begin in zip(docs, docs.bounds.tolist()):
            texts = [token.text for token in doc]
            opens = [token.is_sent_start is True for token in doc]
            places: dict[str, list[int]] = {}
            for i, word in enumerate(texts):
                if self.shortest <= len(word) <= self.longest and word.isalnum() and sum(map(str.isupper, word)) > 1:
                    places.setdefault(word, []).append(i)
            meant: dict[str, set[int]] = {}
            for acronym, of_acronym in places.items():
                found = [_before_brackets(texts, opens, i, acronym) for i in of_acronym]
                meant[acronym] = {first for first in found if first is not None}
            for acronym, first in _initials(texts, opens, places) if places else ():
                meant[acronym].add(first)
            for acronym, expansions in meant.items():
                if expansions:
                    pairs += self._pairs(docs, begin, places[acronym], sorted(expansions))
        return TokenPairs(*np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy())

    def _pairs(self, docs: DocBatch, begin: int, places: list[int], expansions: list[int]) -> list[tuple[int, int]]:
        """The expansion comes first."""
        if len(places) * (len(expansions) if self.edges == "all" else 1) > self.max_edges:
            self.warn_many(docs, np.array([begin + places[0]]))
            return []
        if self.edges == "all":
            chosen = [(expansion, i) for i, expansion in product(places, expansions)]
        elif self.edges == "hub":
            chosen = [(expansions[0], i) for i in places]
        else:
            # The latest expansion in front of each place
            before = np.searchsorted(expansions, places) - 1
            chosen = [(expansions[max(0, n)], i) for n, i in zip(before.tolist(), places)]
        return [(begin + expansion, begin + i) for expansion, i in chosen]


def _before_brackets(texts: list[str], opens: list[bool], i: int, acronym: str) -> Optional[int]:
    """The first word of what stands in front of the bracketed acronym at i, and has its letters in this order.

    opens (list[bool]): Whether a sentence is known to start at each word.
    """
    if not (1 < i < len(texts) - 1 and _BRACKETS.get(texts[i - 1]) == texts[i + 1]) or any(opens[i - 1 : i + 1]):
        return None
    left = len(acronym) - 1
    for place in range(i - 2, max(-1, i - 2 - min(len(acronym) + 5, 2 * len(acronym))), -1):
        text = texts[place].lower()
        for at in range(len(text) - 1, -1, -1):
            if text[at] == acronym[left].lower() and (left > 0 or at == 0):
                left -= 1
                if left < 0:
                    return place
        if opens[place]:
            return None
    return None


def _initials(texts: list[str], opens: list[bool], places: dict[str, list[int]]):
    """Acronyms that the initials of neighbouring capitalised words spell, and the first of these."""
    lengths = sorted({len(acronym) for acronym in places})
    run: list[int] = []  # capitalised words with no more than a few small ones between
    small = 0
    for i, text in enumerate([*texts, "."]):
        if i < len(opens) and opens[i]:
            run = []
            small = 0
        if text[:1].isupper() and text not in places:
            run = [*run[-lengths[-1] + 1 :], i]
            small = 0
            for length in lengths:
                spelled = "".join(texts[place][0] for place in run[-length:])
                if len(run) >= length and spelled in places:
                    yield spelled, run[-length]
        elif text.islower() or text == "-":
            small += 1
            run = run if small <= _SMALL_WORDS else []
        else:
            run = []
            small = 0
