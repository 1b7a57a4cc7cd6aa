"""Acronyms and what they stand for."""

from typing import NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc

from ... import checks
from ...features.doc_batch import DocBatch
from .groups import GroupTemplate
from .templates import TokenPairs

_BRACKETS = {"(": ")", "[": "]"}
_SMALL_WORDS = 2  # that may stand between words whose initials count: "Court of the European Union"


class Acronyms(GroupTemplate):
    """Ties acronyms to the first word of what they stand for: what stands in front of one in brackets, and has its letters in
    this order, the first one at its beginning (Schwartz & Hearst 2003); or words whose initials spell it.

    An acronym has at least two capitals, and perhaps digits.

    shortest (int), longest (int): Its characters.
    edges (str): "next", each place is tied to the latest one before it that says what it stands for, or else to the first one;
        "hub", to the first one; "all", to all.
    max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool): See `TieTemplate`.
    """

    def __init__(
        self,
        shortest: int = 2,
        longest: int = 10,
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges)
        self.longest = checks.count(self.owner, "longest", longest, least=2)
        self.shortest = checks.count(self.owner, "shortest", shortest, least=2, most=self.longest)

    def find(self, docs: DocBatch) -> TokenPairs:
        pairs = []
        for doc, begin in zip(docs, docs.bounds.tolist()):
            words = _Words.of(doc)
            places: dict[str, list[int]] = {}
            for i, word in enumerate(words.texts):
                if self.shortest <= len(word) <= self.longest and word.isalnum() and sum(map(str.isupper, word)) > 1:
                    places.setdefault(word, []).append(i)
            meant = _spelled_out(words, places) if places else {}
            for word, expansions in meant.items():
                pairs += self._pairs(docs, begin, places[word], sorted(expansions))
        if not pairs:
            return TokenPairs.none()
        source, target = np.array(pairs, dtype=np.int64).T
        return TokenPairs(source.copy(), target.copy())

    def _pairs(self, docs: DocBatch, begin: int, places: list[int], expansions: list[int]) -> list[tuple[int, int]]:
        """The expansion comes first."""
        if len(places) * (len(expansions) if self.edges == "all" else 1) > self.max_edges:
            self.tell_many(docs, np.array([begin + places[0]]))
            return []
        if self.edges == "all":
            chosen = [(expansion, i) for i in places for expansion in expansions]
        elif self.edges == "hub":
            chosen = [(expansions[0], i) for i in places]
        else:
            before = np.searchsorted(expansions, places) - 1
            chosen = [(expansions[max(0, n)], i) for n, i in zip(before.tolist(), places)]
        return [(begin + expansion, begin + i) for expansion, i in chosen]


class _Words(NamedTuple):
    """Of a Doc."""

    texts: list[str]
    starts: list[bool]  # whether a sentence is known to start there

    @classmethod
    def of(cls, doc: Doc) -> "_Words":
        return cls([token.text for token in doc], [token.is_sent_start is True for token in doc])


def _spelled_out(words: _Words, places: dict[str, list[int]]) -> dict[str, set[int]]:
    """The first words of what each acronym stands for, wherever that is said."""
    found: dict[str, set[int]] = {}
    for acronym, of_acronym in places.items():
        for i in of_acronym:
            first = _before_brackets(words, i, acronym)
            if first is not None:
                found.setdefault(acronym, set()).add(first)
    for acronym, first in _initials(words, places):
        found.setdefault(acronym, set()).add(first)
    return found


def _before_brackets(words: _Words, i: int, acronym: str) -> Optional[int]:
    """The first word of what stands in front of the acronym at i, in brackets, and has its letters in this order."""
    texts, n = words.texts, len(words.texts)
    if not (1 < i < n - 1 and _BRACKETS.get(texts[i - 1]) == texts[i + 1]) or any(words.starts[i - 1 : i + 1]):
        return None
    left = len(acronym) - 1
    for place in range(i - 2, max(-1, i - 2 - min(len(acronym) + 5, 2 * len(acronym))), -1):
        text = texts[place].lower()
        for at in range(len(text) - 1, -1, -1):
            if text[at] == acronym[left].lower() and (left > 0 or at == 0):
                left -= 1
                if left < 0:
                    return place
        if words.starts[place]:
            return None
    return None


def _initials(words: _Words, places: dict[str, list[int]]):
    """Acronyms that the initials of neighbouring capitalised words spell, and the first of these."""
    lengths = sorted({len(acronym) for acronym in places})
    run: list[int] = []  # capitalised words with no more than a few small ones between
    small = 0
    for i, text in enumerate([*words.texts, "."]):
        if i < len(words.starts) and words.starts[i]:
            run, small = [], 0
        if text[:1].isupper() and text not in places:
            run, small = [*run[-lengths[-1] + 1 :], i], 0
            for length in lengths:
                spelled = "".join(words.texts[place][0] for place in run[-length:])
                if len(run) >= length and spelled in places:
                    yield spelled, run[-length]
        elif text.islower() or text == "-":
            small += 1
            run = run if small <= _SMALL_WORDS else []
        else:
            run, small = [], 0
