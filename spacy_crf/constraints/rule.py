"""The base of all rules. A rule is a plain table, such as ``{"rule": "at_most", "label": "ZIP", "n": 1}``.

Every rule may have a ``name``, for messages, and a ``weight``. Without a weight the rule is hard; with one, each violation costs
that much in log-odds (a negative weight is a bonus). ``label`` is one label, a list of labels, or "*" for all of them; rules that
count or measure spans do so for each label separately.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..types import Bools, Floats, Ints
from .automaton import Automaton, SpanTags, per_sentence

Table = dict[str, Any]
NO_SPAN = "O"
# Kinds of rules that ask for spans
_ASKING = {
    "always_on",
    "always_after",
    "at_least",
    "exactly",
    "requires",
    "in_one_piece",
    "custom",
}


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


class PatternMatches(dict[int, Union[Match, Bools]]):
    """Matches of patterns, and tags that functions allow, in a batch of documents: a Match, or bool[T, S], by place of the rule.

    words (WordKinds): Matches of the rules whose patterns read single words, in place of Match objects.
    """

    def __init__(
        self, found: Mapping[int, Union[Match, Bools]] = MappingProxyType({}), words: Optional[WordKinds] = None
    ):
        super().__init__(found)
        self.words = words

    def __missing__(self, place: int) -> Match:
        """The matches of a rule whose pattern depends on the word alone."""
        if self.words is None:
            raise KeyError(place)
        found = self.words.matched[self.words.of_token, self.words.places[place]]
        return Match(found, found, found)

    def of_labels(self, label_of: Ints) -> "PatternMatches":
        """Make facts about labels: a label is allowed where any of its tags is.

        label_of (int64[S]): The label of each tag, -1 for none.
        RETURNS (PatternMatches): The same matches, with allowed labels in place of allowed tags.
        """
        # [S, L + 1] whether a tag has a label; column 0 is for no label
        has_label = (label_of[:, np.newaxis] + 1) == np.arange(label_of.max(initial=-1) + 2)
        facts = {}  # allowed labels are bool[T, L + 1]
        for place, fact in self.items():
            facts[place] = fact if isinstance(fact, Match) else (fact[:, :, np.newaxis] & has_label).any(axis=1)
        return PatternMatches(facts, self.words)

    def at(self, tokens: Union[slice, Ints]) -> "PatternMatches":
        """Cut out the facts about some tokens.

        tokens (slice or int64[N]): The tokens.
        RETURNS (PatternMatches): The facts about these N tokens.
        """
        cut = PatternMatches(words=self.words and self.words._replace(of_token=self.words.of_token[tokens]))
        for place, fact in self.items():
            cut[place] = fact._make(array[tokens] for array in fact) if isinstance(fact, Match) else fact[tokens]
        return cut


class Documents(NamedTuple):
    """Scores of documents before any rule, and the facts about tokens that rules depend on."""

    scores: Any  # `PathScores`
    clamp: Any  # Clamp or SegmentClamp, None for none
    facts: PatternMatches
    words: Optional[NDArray[np.uint64]]  # [T] for rules about texts of spans

    def at(self, tokens: slice) -> "Documents":
        """Cut out one document, or one sentence.

        tokens (slice): Its tokens.
        RETURNS (Documents): That document or sentence alone.
        """
        scores, clamp = arrays.cut_document(self.scores, self.clamp, tokens)
        return Documents(scores, clamp, self.facts.at(tokens), None if self.words is None else self.words[tokens])


class Violations(NamedTuple):
    """Tags and pairs of neighbouring tags that break a rule; a field is None if it has none."""

    emissions: Optional[Bools] = None  # [T, S]
    transitions: Optional[Bools] = None  # [S, S] at all tokens
    first: Optional[Bools] = None  # [S]
    # bool[T] and bool[S, S]: pairs whose second tag is at one of these tokens
    steps: Optional[tuple[Bools, Bools]] = None
    # bool[T] and bool[S]: these tags at these tokens; replaces `emissions` where few tags break the rule
    tags_at: Optional[tuple[Bools, Bools]] = None

    @property
    def on_tokens(self) -> bool:
        """Whether single tags break the rule."""
        return self.emissions is not None or self.tags_at is not None

    def add_price(self, scores: Floats, price: float) -> None:
        """Add the price of the rule where single tags break it, in place.

        scores (float64[T, S]): Scores of states.
        price (float): The price.
        """
        if self.emissions is not None:
            scores[self.emissions] += price
        if self.tags_at is not None:
            tokens, tags = map(np.flatnonzero, self.tags_at)
            scores[tokens[:, np.newaxis], tags] += price


@dataclass
class Rule:
    """Base of the rules.

    table (Table): The rule as the user wrote it; it is saved with the model.
    place (int): Place in the list of rules.
    name (str): Name in messages.
    weight (Optional[float]): Cost of breaking the rule once; None for a hard rule.
    arguments (Dict[str, Any]): The arguments by name, as attributes too: `rule.label`, `rule.n`.
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
        """Whether the rule may not be broken at any price."""
        return self.weight is None

    @property
    def price(self) -> float:
        """Score that a labelling gets for breaking the rule once."""
        return -np.inf if self.weight is None else -self.weight

    def __getattr__(self, name: str) -> Any:
        """The value of an argument, such as `n`."""
        arguments = self.__dict__.get("arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(name)

    # Methods that kinds of rules override.

    def check(self) -> Optional[str]:
        """Check the arguments against each other. RETURNS (Optional[str]): The fault, or None."""
        return None

    def names(self) -> Iterable[str]:
        """RETURNS (Iterable[str]): All labels that the rule names."""
        given = (self.arguments.get(argument) or [] for argument in ("label", "labels", "if", "then"))
        return [name for name in chain.from_iterable(given) if name != "*"]

    def violations(self, tags: SpanTags, found: Any, opening: Bools, closing: Bools) -> Violations:
        """Find the tags and pairs of tags with which a labelling breaks a local rule.

        tags (SpanTags): The tags of the component.
        found (Match or bool[T, S]): The matches of the pattern, or the tags that a function allows; None for other rules.
        opening (bool[T]), closing (bool[T]): First and last tokens of sequences.
        RETURNS (Violations): The tags and pairs.
        """
        raise NotImplementedError

    @property
    def asks(self) -> bool:
        """Whether a labelling that breaks the rule may keep it with more spans."""
        return self.kind in _ASKING

    @property
    def in_sentence(self) -> bool:
        """Whether each sentence keeps or breaks the rule by itself."""
        return self.arguments.get("per") == "sentence" or self.bounds_length

    @property
    def counts_to(self) -> int:
        """Largest number that the rule's automata count to."""
        return 0

    def automata(self, tags: SpanTags, most: int) -> list[Automaton]:
        """Make the automata of a rule with a memory: together they accept the labellings that keep it.

        tags (SpanTags): The tags of the component.
        most (int): Tokens of the longest document for which the automata are made: they count no further.
        RETURNS (List[Automaton]): The automata; with `by_label`, one for each label of the rule.
        """
        return []

    def broken_lengths(self, tags: SpanTags, longest: int) -> Bools:
        """Find the lengths of segments that break a rule about lengths.

        tags (SpanTags): The S states of the component.
        longest (int): Tokens of the longest segment.
        RETURNS (bool[longest, S]): Whether a segment of n + 1 tokens breaks the rule.
        """
        raise NotImplementedError

    def labels(self, tags: SpanTags, argument: str = "label") -> list[int]:
        """Number the labels that an argument names.

        tags (SpanTags): The tags of the component.
        argument (str): Name of the argument.
        RETURNS (List[int]): The numbers of the labels.
        """
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
