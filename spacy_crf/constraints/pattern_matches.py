"""What the patterns and functions of rules say of a batch of documents."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray


class Match(NamedTuple):
    """Where the pattern of a rule matches."""

    covered: NDArray[np.bool_]  # [T] tokens that are part of a match
    begins: NDArray[np.bool_]  # [T] first tokens of matches
    ends: NDArray[np.bool_]  # [T] last tokens of matches


class WordKinds(NamedTuple):
    """What patterns of one token say that look at nothing but its word. Words of which all say the same are of one kind."""

    of_token: NDArray[np.int32]  # [T]
    matched: NDArray[np.bool_]  # [K, N] the kinds that each pattern matches
    places: Mapping[int, int]  # the column of each rule, by its place


class PatternMatches(dict):
    """By the place of each rule that asks for it, its Match, or the tags that it allows (bool[T, S]).

    words (WordKinds): For the rules whose patterns look at words, in place of a Match.
    """

    def __init__(self, found: Optional[Mapping[int, Any]] = None, words: Optional[WordKinds] = None):
        super().__init__(found or {})
        self.words = words

    def __missing__(self, place: int) -> Match:
        if self.words is None:
            raise KeyError(place)
        found = self.words.matched[self.words.of_token, self.words.places[place]]
        return Match(found, found, found)

    def of_words(self, place: int) -> bool:
        """Whether the fact about a rule is one about words."""
        return self.words is not None and place in self.words.places

    def of_labels(self, label_of: NDArray[np.int64]) -> "PatternMatches":
        """The same, with the labels in place of the tags: outside, then the labels that any of their tags allows.

        label_of (int64[S]): The label of each tag, -1 for none.
        """
        states = np.arange(label_of.max(initial=-1) + 2)
        belongs = (label_of[:, np.newaxis] + 1) == states
        found = {
            place: fact if isinstance(fact, Match) else (fact[:, :, np.newaxis] & belongs).any(axis=1)
            for place, fact in self.items()
        }
        return PatternMatches(found, self.words)

    def at(self, tokens: Union[slice, NDArray[np.int64]]) -> "PatternMatches":
        """What is said of some of the tokens."""
        words = None if self.words is None else self.words._replace(of_token=self.words.of_token[tokens])
        cut = {
            place: Match(*(array[tokens] for array in fact)) if isinstance(fact, Match) else fact[tokens]
            for place, fact in self.items()
        }
        return PatternMatches(cut, words)
