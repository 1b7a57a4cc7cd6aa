"""The rules of the trainable tokenizer, which hold whatever the weights."""

import logging
import re
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import checks
from ..errors import Warnings
from ..features.characters import Lexicon, code_points
from ..features.feature_index import HashTable
from ..inference.linear_chain import LinearChain
from ..inference.structure import Structure
from ..kernels.gazetteers import find_phrases
from ..models.characters import INSIDE
from ..types import Bools, ChainScores, Floats, Ints, StateGraph

logger = logging.getLogger("spacy.spacy_crf")
NAME = "spacy_crf.Tokenizer.v1"
# Of rules that contradict each other, the one named later holds
ORDER = ("longest", "always_split", "never_split", "user_words")
_LETTER = re.compile(r"\w")  # a letter, digit or underscore
_AROUND = 10  # characters on each side of a contradiction in a warning


class Rules:
    """The rules of the config; the arguments are those of `make_tokenizer`.

    RAISES (ValueError): CRF020 for settings that are not possible.
    """

    def __init__(
        self,
        never_split: Sequence[str],
        always_split: Sequence[str],
        user_words: Sequence[str],
        longest: Optional[int],
    ):
        self.settings: dict[str, Any] = {
            "never_split": list(never_split),
            "always_split": list(always_split),
            "user_words": list(user_words),
            "longest": longest,
        }
        self.longest = None if longest is None else checks.count(NAME, "longest", longest)
        self._never = _compiled("never_split", never_split)
        self._always = _compiled("always_split", always_split)
        words = checks.listed(NAME, "user_words", user_words, "words")
        self._words = [checks.text(NAME, "user_words", word) for word in words]
        self._warned: set[tuple[str, str]] = set()  # the pairs of rules whose contradiction was reported

    def __bool__(self) -> bool:
        """Whether there are any rules."""
        return self.longest is not None or self.cut_letters or bool(self._never)

    @property
    def cut_letters(self) -> bool:
        """Whether a rule may cut a run of letters that the model keeps whole."""
        return bool(self._always or self._words)

    @cached_property
    def _trie(self) -> tuple[tuple[NDArray[np.uint64], NDArray[np.int32]], NDArray[np.int32]]:
        """The user words for `find_phrases`: the table of their beginnings, and the label 0 of those that are words. It is made
        when the first text is cut, since it needs compiled kernels."""
        trie = Lexicon.of(self._words)
        return HashTable(trie.keys).arrays, np.where(trie.lengths > 0, 0, -1).astype(np.int32)

    def restrict(self, text: str, units: Ints, possible: Bools) -> Bools:
        """Forbid the tags that rules exclude, and warn of rules that contradict each other.

        text (str): The text.
        units (int64[U]): Where its units begin.
        possible (bool[U, S]): The tags that units may have; the method changes it.
        RETURNS (bool[U]): The units inside of tokens that are longer than `longest`, since another rule keeps them whole.
        """
        demands = _Demands(text, units, possible)
        for pattern in self._always:
            for match in pattern.finditer(text):
                demands.cut("always_split", *match.span())
        for pattern in self._never:
            for match in pattern.finditer(text):
                demands.join("never_split", *match.span())
        for start, end in self._find_words(text):
            demands.join("user_words", start, end)
            demands.cut("user_words", start, end)
        too_long = np.zeros(len(units), dtype=bool)
        if self.longest is not None:
            too_long = demands.free_too_long(self.longest)
        for pair, example in demands.contradictions.items():
            if pair not in self._warned:
                self._warned.add(pair)
                winner, loser = pair
                logger.warning(Warnings.CRFW993.format(winner=winner, loser=loser, example=example))
        return too_long

    def _find_words(self, text: str) -> Iterator[tuple[int, int]]:
        """Find the user words in a text (`text`) from left to right. Of words that begin alike the longest counts, and the next
        word begins behind it.

        YIELDS (tuple[int, int]): Where each begins and ends.
        """
        if not self._words:
            return
        points = code_points(text).astype(np.uint64)
        text_bounds = np.array([0, len(points)])
        starts, lengths, _ = find_phrases(points, text_bounds, *self._trie)
        behind = 0  # the word before
        for n in np.lexsort((-lengths, starts)).tolist():
            start = int(starts[n])
            end = start + int(lengths[n])
            if start >= behind and not _touches_letters(text, start, end):
                yield start, end
                behind = end

    def best_tags(self, scores: ChainScores, too_long: Bools) -> NDArray[np.int32]:
        """The tags of the most probable segmentations of texts: int32[U].

        scores (ChainScores): The scores of the tags of the texts' units, of which the last says that a word goes on.
        too_long (bool[U]): From `restrict`.
        """
        tags = LinearChain().viterbi(scores).states
        if self.longest is None:
            return tags
        # The chain that counts the units of words takes more time, and is rarely needed
        goes_on = len(scores.transitions) - 1
        first, behind = runs(tags == goes_on)
        if ((behind - first >= self.longest) & ~too_long[first]).any():
            chain, chain_scores = self._chain(scores, too_long)
            tags = np.minimum(chain.viterbi(chain_scores).states, goes_on)
        return tags

    def marginals(self, scores: ChainScores, too_long: Bools) -> Floats:
        """The probabilities of tags: float64[U, S]; the arguments are those of `best_tags`."""
        chain, chain_scores = self._chain(scores, too_long)
        marginals = chain.marginals(chain_scores)
        goes_on = len(scores.transitions) - 1
        return np.column_stack([marginals[:, :goes_on], marginals[:, goes_on:].sum(axis=1)])

    def n_best(self, scores: ChainScores, too_long: Bools, n: int) -> list[tuple[float, NDArray[np.int32]]]:
        """The `n` most probable segmentations of a single text: probabilities and tags (int32[U]); the other arguments are those
        of `best_tags`."""
        chain, chain_scores = self._chain(scores, too_long)
        log_z = chain.log_partition(chain_scores)[0]
        goes_on = len(scores.transitions) - 1
        ranked = chain.n_best(chain_scores, n)[0]
        return [(float(np.exp(score - log_z)), np.minimum(states, goes_on)) for score, states in ranked]

    def _chain(self, scores: ChainScores, too_long: Bools) -> tuple[Structure[ChainScores], ChainScores]:
        """The chain of the segmentations that rules allow, and its scores; the arguments are those of `best_tags`.

        RETURNS (Structure, ChainScores): Under a limit, the scores have one tag more, for the units of a word behind as many as
            the limit allows.
        """
        if self.longest is None:
            return LinearChain(), scores
        # The further tag has the scores of the last one
        emissions = np.pad(scores.emissions, [(0, 0), (0, 1)], mode="edge")
        emissions[~too_long, -1] = -np.inf
        limited = ChainScores(
            emissions,
            np.pad(scores.transitions, [(0, 1), (0, 1)], mode="edge"),
            np.pad(scores.first, (0, 1), mode="edge"),
            np.pad(scores.last, (0, 1), mode="edge"),
            scores.starts,
        )
        return _limited_chain(len(scores.transitions), self.longest), limited


class _Demands:
    """Applies rules to the units of a text. Apply the weaker rules first, in the order of `ORDER`: later ones override them.

    text (str), units (int64[U]), possible (bool[U, S]): See `Rules.restrict`.
    """

    def __init__(self, text: str, units: Ints, possible: Bools):
        self._text = text
        self._units = units
        self._possible = possible
        # [U] the number in `ORDER` of the rule that decides; -1 where none does
        self._decided_by: NDArray[np.int8] = np.full(len(units), -1, dtype=np.int8)
        # An example of each contradiction, by the rule that holds and the one that gives way
        self.contradictions: dict[tuple[str, str], str] = {}

    def cut(self, rule: str, *places: int) -> None:
        """Let tokens begin at places of the text, or behind the white space there. Nothing changes inside of a unit, nor at the
        beginning of the text, where a token begins anyway.

        rule (str): The name of the rule.
        """
        for place in places:
            unit = int(np.searchsorted(self._units, place))
            if 0 < unit < len(self._units) and not self._text[place : self._units[unit]].strip():
                self._decide(rule, unit, unit + 1, begins=True)

    def join(self, rule: str, start: int, end: int) -> None:
        """Let no token begin behind the first character of a span (`start`, `end`) and before its end; `rule` is the rule's
        name."""
        first = max(1, int(np.searchsorted(self._units, start, side="right")))
        behind = int(np.searchsorted(self._units, end))
        self._decide(rule, first, behind, begins=False)

    def free_too_long(self, longest: int) -> Bools:
        """Make what rules keep whole a token of its own where it has more than `longest` units.

        RETURNS (bool[U]): The units inside of these tokens.
        """
        too_long = np.zeros(len(self._units), dtype=bool)
        is_joined = np.logical_not(self._possible[:, :INSIDE].any(axis=1))
        first_units, ends = runs(is_joined)
        for first, behind in zip(first_units.tolist(), ends.tolist()):
            if behind - first < longest:
                continue
            too_long[first:behind] = True
            for unit in (first - 1, behind):
                if 0 < unit < len(self._units):
                    self._possible[unit, INSIDE] = False
            strongest = ORDER[self._decided_by[first:behind].max()]
            self._report(first, strongest, "longest")
        return too_long

    def _decide(self, rule: str, first: int, behind: int, *, begins: bool) -> None:
        """Let tokens begin (`begins`), or not begin, at the units from `first` up to, not including, `behind`."""
        units = slice(first, behind)
        began = ~self._possible[units, INSIDE]
        number = ORDER.index(rule)
        decided_by = self._decided_by[units]
        contradicts = (decided_by >= 0) & (decided_by != number) & (began != begins)
        for unit in (first + np.flatnonzero(contradicts)).tolist():
            self._report(unit, rule, ORDER[self._decided_by[unit]])
        self._decided_by[units] = number
        self._possible[units, :INSIDE] = begins
        self._possible[units, INSIDE] = not begins

    def _report(self, unit: int, winner: str, loser: str) -> None:
        """Keep the text around a unit as an example of a contradiction of two rules."""
        place = int(self._units[unit])
        around = self._text[max(0, place - _AROUND) : place + _AROUND]
        self.contradictions.setdefault((winner, loser), around)


def _compiled(name: str, patterns: Sequence[str]) -> list["re.Pattern[str]"]:
    """Compile the regular expressions of a setting. RAISES (ValueError): CRF020."""
    compiled = []
    for pattern in checks.listed(NAME, name, patterns, "regular expressions"):
        try:
            compiled.append(re.compile(checks.text(NAME, name, pattern)))
        except (re.error, OverflowError, RecursionError) as error:
            checks.expect(False, NAME, name, pattern, f"a list of regular expressions ({error})")
    return compiled


def _touches_letters(text: str, start: int, end: int) -> bool:
    """Whether a word (from `start` up to `end`) begins or ends with a letter of a script with upper and lower case, and touches
    another letter or digit there."""
    before = text[max(0, start - 1) : start]
    first = text[start]
    last = text[end - 1]
    touches_before = first.lower() != first.upper() and _LETTER.match(before) is not None
    touches_behind = last.lower() != last.upper() and _LETTER.match(text, end) is not None
    return touches_before or touches_behind


def runs(flags: Bools) -> Ints:
    """Where runs of True begin, and where they end, in an array (`flags`, bool[N]): int64[2, R]."""
    return np.flatnonzero(np.diff(flags, prepend=False, append=False)).reshape(-1, 2).T


@lru_cache(maxsize=8)
def _limited_chain(n_tags: int, longest: int) -> Structure[ChainScores]:
    """The chain whose states count the units of a word, up to `longest`; see `Rules._chain` for the one tag more.

    n_tags (int): Number of tags, of which the last says that a word goes on.
    """
    n_begins = n_tags - 1
    beyond = n_begins + longest - 1  # the state of all units behind as many as the limit allows
    sources = np.arange(beyond + 1)
    # Each state to the beginnings; and each to the next unit of the word, from a beginning to the second one
    next_units = np.minimum(np.maximum(n_begins, sources + 1), beyond)
    targets = np.column_stack([np.tile(np.arange(n_begins), (len(sources), 1)), next_units])
    first = np.full(beyond + 1, -np.inf)
    first[:n_begins] = 0.0
    tag_of = np.minimum(sources, n_begins).astype(np.int32)
    tag_of[beyond] = n_tags
    n_arcs = targets.size
    graph = StateGraph(
        np.repeat(sources, n_begins + 1).astype(np.int32),
        targets.ravel().astype(np.int32),
        np.zeros(n_arcs),
        first,
        np.zeros(beyond + 1),
        tag_of,
    )
    return LinearChain().over(graph)
