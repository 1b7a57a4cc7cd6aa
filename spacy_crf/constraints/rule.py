"""The base of all rules. A rule is a plain table, such as ``{"rule": "at_most", "label": "ZIP", "n": 1}``.

Every rule may have a ``name``, for messages, and a ``weight``. Without a weight the rule is hard; with one, each violation costs
that much in log-odds (a negative weight is a bonus). ``label`` is one label, a list of labels, or "*" for all of them; rules that
count or measure spans do so for each label separately.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..types import Bools, Floats, Ints
from .automaton import Automaton, SpanTags, per_sentence

Table = dict[str, Any]
NO_SPAN = "O"


class Match(NamedTuple):
    """Where the pattern of a rule matches in the T tokens of a batch."""

    covered: Bools  # [T] tokens that are part of a match
    begins: Bools  # [T] first tokens of matches
    ends: Bools  # [T] last tokens of matches


class WordKinds(NamedTuple):
    """Matches of patterns that read one word each. A kind is a set of words that the same patterns match."""

    of_token: NDArray[np.int32]  # [T] kind of each token's word
    matched: Bools  # [K, N] whether each of N patterns matches each kind
    places: Mapping[int, int]  # column of each rule in `matched`, by the rule's place


class PatternMatches(dict):
    """Matches of patterns, and tags that functions allow, in a batch of documents: a Match, or bool[T, S], by place of the rule.

    words (WordKinds): Matches of the rules whose patterns read single words, in place of Match objects.
    """

    def __init__(self, found: Optional[Mapping[int, Any]] = None, words: Optional[WordKinds] = None):
        super().__init__(found or {})
        self.words = words

    def __missing__(self, place: int) -> Match:
        if self.words is None:
            raise KeyError(place)
        found = self.words.matched[self.words.of_token, self.words.places[place]]
        return Match(found, found, found)

    def of_labels(self, label_of: Ints) -> "PatternMatches":
        """The same matches with allowed labels in place of allowed tags: a label is allowed where any of its tags is.

        label_of (int64[S]): The label of each tag, -1 for none.
        """
        belongs = (label_of[:, np.newaxis] + 1) == np.arange(label_of.max(initial=-1) + 2)
        found = {
            place: fact if isinstance(fact, Match) else (fact[:, :, np.newaxis] & belongs).any(axis=1)
            for place, fact in self.items()
        }
        return PatternMatches(found, self.words)

    def at(self, tokens: Union[slice, Ints]) -> "PatternMatches":
        """The matches at some of the tokens."""
        words = None if self.words is None else self.words._replace(of_token=self.words.of_token[tokens])
        cut = {
            place: Match(*(array[tokens] for array in fact)) if isinstance(fact, Match) else fact[tokens]
            for place, fact in self.items()
        }
        return PatternMatches(cut, words)


class Documents(NamedTuple):
    """Scores of documents before any rule, and the facts about tokens that rules depend on."""

    scores: Any
    clamp: Any
    facts: PatternMatches
    words: Optional[NDArray[np.uint64]]  # [T] for rules about texts of spans

    def at(self, tokens: slice) -> "Documents":
        """The part of these documents at some tokens: one document, or one sentence."""
        words = None if self.words is None else self.words[tokens]
        return Documents(*arrays.cut_document(self.scores, self.clamp, tokens), self.facts.at(tokens), words)


class Violations(NamedTuple):
    """Tags and pairs of neighbouring tags that break a rule; None for none."""

    emissions: Optional[Bools] = None  # [T, S]
    transitions: Optional[Bools] = None  # [S, S] at all tokens
    first: Optional[Bools] = None  # [S]
    # bool[T] and bool[S, S]: pairs whose second tag is at one of these tokens
    steps: Optional[tuple[Bools, Bools]] = None
    # bool[T] and bool[S]: these tags at these tokens; replaces `emissions` where few tags break the rule
    tags_at: Optional[tuple[Bools, Bools]] = None

    @property
    def on_tokens(self) -> bool:
        return self.emissions is not None or self.tags_at is not None

    def add_price(self, scores: Floats, price: float) -> None:
        """Add the price to the scores of states (float64[T, S]) at the tokens where they break the rule, in place."""
        if self.emissions is not None:
            scores[self.emissions] += price
        if self.tags_at is not None:
            tokens, tags = map(np.flatnonzero, self.tags_at)
            scores[tokens[:, np.newaxis], tags] += price


@dataclass
class Rule:
    """Base of the rules.

    table: The rule as the user wrote it; it is saved with the model.
    place (int): Place in the list of rules.
    weight (Optional[float]): Cost of breaking the rule once; None for a hard rule.
    """

    table: Table
    place: int
    name: str
    weight: Optional[float]
    arguments: dict[str, Any] = field(repr=False)

    required: ClassVar[dict[str, Callable]] = {}
    optional: ClassVar[dict[str, tuple[Callable, Any]]] = {}  # reader and default of each optional argument

    reads_pattern: ClassVar[bool] = False  # takes a Match
    reads_tags: ClassVar[bool] = False  # takes the tags that a registered function allows: bool[T, S]
    local: ClassVar[bool] = False  # forbids tags and pairs of neighbouring tags, without a memory
    by_token: ClassVar[bool] = False  # depends only on the match of each token
    global_: ClassVar[bool] = False  # has no small automaton
    by_label: ClassVar[bool] = False  # applies to each label separately: one automaton per label
    segment_scores: ClassVar[str] = "tokens"  # scores of a segment that its mask changes: "tokens", "begins" or "ends"
    bounds_length: ClassVar[bool] = False  # forbids some lengths of segments, see `broken_lengths`

    @property
    def kind(self) -> str:
        """Name of this kind of rule in a rule's table."""
        return self.table["rule"]

    @property
    def hard(self) -> bool:
        return self.weight is None

    @property
    def price(self) -> float:
        """Score that a labelling gets for breaking the rule once."""
        return -np.inf if self.weight is None else -self.weight

    def __getattr__(self, name: str) -> Any:
        arguments = self.__dict__.get("arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(name)

    # Methods that kinds of rules override.

    def check(self) -> Optional[str]:
        """Check the arguments against each other. RETURNS (Optional[str]): The fault, None if there is none."""
        return None

    def names(self) -> Iterable[str]:
        """All labels that the rule names."""
        return [] if self.arguments.get("label") in (None, "*") else self.label

    def violations(self, tags: SpanTags, found: Any, opening: Bools, closing: Bools) -> Violations:
        """Tags and pairs of tags with which a labelling breaks a local rule.

        found: The Match, or the allowed tags.
        opening, closing (bool[T]): First and last tokens of sequences.
        """
        raise NotImplementedError

    @property
    def asks(self) -> bool:
        """Whether a labelling that breaks the rule may keep it with more spans."""
        return False

    @property
    def in_sentence(self) -> bool:
        """Whether each sentence keeps or breaks the rule by itself."""
        return self.arguments.get("per") == "sentence" or self.bounds_length

    @property
    def counts_to(self) -> int:
        """Largest number that the rule's automata count to."""
        return 0

    def automata(self, tags: SpanTags, most: int) -> list[Automaton]:
        """Automata that together accept the labellings that keep a rule with a memory.

        most (int): Tokens of the longest document for which the automata are made: they count no further.
        """
        return []

    def broken_lengths(self, tags: SpanTags, longest: int) -> Bools:
        """Lengths of segments that break a rule about lengths: bool[longest, S]."""
        raise NotImplementedError

    def labels(self, tags: SpanTags, argument: str = "label") -> list[int]:
        """Numbers of the labels that an argument names."""
        value = self.arguments[argument]
        return list(range(len(tags.labels))) if value == "*" else [tags.labels.index(name) for name in value]

    def _tags(self, tags: SpanTags) -> Bools:
        """Tags of the labels that the rule is about: bool[S]."""
        return np.isin(tags.label_of, self.labels(tags))

    def _is_label(self, tags: SpanTags, names: Iterable[str]) -> Bools:
        """Tags of the named labels: bool[S]; "O" names the tags outside of all spans."""
        numbers = [-1 if name == NO_SPAN else tags.labels.index(name) for name in names]
        return np.isin(tags.label_of, numbers)

    def _in_scope(self, automata: list[Automaton]) -> list[Automaton]:
        return [per_sentence(automaton) if self.per == "sentence" else automaton for automaton in automata]
