"""What every rule is: a plain table ``{"rule": "at_most", "label": "ZIP", "n": 1}``, and what it says of tags.

Every rule may have a ``name``, for messages, and a ``weight``: without one it is hard, with one each place where it is broken
costs that much in log-odds (a negative weight is a bonus). ``label`` is one label, a list of labels, or "*" for all of them;
rules about how often or how long say it of each label by itself.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from .automaton import Automaton, SpanTags, per_sentence

Table = dict[str, Any]
NO_SPAN = "O"


class Steps(NamedTuple):
    """Pairs of tags that break a rule at some tokens only."""

    tokens: NDArray[np.bool_]  # [T] where the second tag stands
    pairs: NDArray[np.bool_]  # [S, S]


class Broken(NamedTuple):
    """What breaks a rule about tokens and neighbours; None for nothing."""

    emissions: Optional[NDArray[np.bool_]] = None  # [T, S]
    transitions: Optional[NDArray[np.bool_]] = None  # [S, S]
    first: Optional[NDArray[np.bool_]] = None  # [S]
    steps: Sequence[Steps] = ()
    # bool[T] and bool[S]: these tags at these tokens, in place of emissions, of which they are a small part
    tags_at: Optional[tuple[NDArray[np.bool_], NDArray[np.bool_]]] = None

    @property
    def on_tokens(self) -> bool:
        return self.emissions is not None or self.tags_at is not None

    def add_price(self, scores: Floats, price: float) -> None:
        """Adds the price to the scores of states at tokens (float64[T, S]) where the rule is broken, in place."""
        if self.emissions is not None:
            scores[self.emissions] += price
        if self.tags_at is not None:
            tokens, tags = map(np.flatnonzero, self.tags_at)
            scores[tokens[:, np.newaxis], tags] += price


@dataclass
class Rule:
    """Base of the rules.

    table: What the user wrote; it is saved with the model.
    place (int): Place in the list of rules.
    weight (Optional[float]): What it costs to break the rule once; None if it must not be broken.
    """

    table: Table
    place: int
    name: str
    weight: Optional[float]
    arguments: dict[str, Any] = field(repr=False)

    kind: ClassVar[str] = ""
    required: ClassVar[dict[str, Callable]] = {}
    optional: ClassVar[dict[str, tuple[Callable, Any]]] = {}  # reader and default

    @property
    def hard(self) -> bool:
        return self.weight is None

    @property
    def price(self) -> float:
        """Score of breaking the rule once."""
        return -np.inf if self.weight is None else -self.weight

    def __getattr__(self, name: str) -> Any:
        arguments = self.__dict__.get("arguments", {})
        if name in arguments:
            return arguments[name]
        raise AttributeError(name)

    # What a rule says of itself; each overrides what applies.

    def check(self) -> Optional[str]:
        """What is wrong about the arguments together."""
        return None

    def names(self) -> Iterable[str]:
        """All labels that the rule names."""
        return [] if self.arguments.get("label") in (None, "*") else self.label

    reads_pattern: ClassVar[bool] = False  # needs a Match
    reads_tags: ClassVar[bool] = False  # needs what a registered function allows: bool[T, S]
    local: ClassVar[bool] = False  # forbids tokens and steps, without a memory
    by_token: ClassVar[bool] = False  # of tokens, each by itself: what the pattern says of a token is all it asks for
    global_: ClassVar[bool] = False  # no small automaton holds it
    by_label: ClassVar[bool] = False  # says it of each label by itself: one automaton for each
    segment_scores: ClassVar[str] = "tokens"  # what its mask is for, of a segment: "tokens", "begins" or "ends"
    bounds_length: ClassVar[bool] = False  # forbids some lengths of segments, see `broken_lengths`

    def broken(self, tags: SpanTags, found: Any, opening: NDArray[np.bool_], closing: NDArray[np.bool_]) -> Broken:
        """What breaks the rule (for local rules).

        found: The Match, or the allowed tags.
        opening, closing (bool[T]): First and last tokens of sequences.
        """
        raise NotImplementedError

    @property
    def in_sentence(self) -> bool:
        """Whether what it says of a sentence does not depend on the others."""
        return self.arguments.get("per") == "sentence" or self.bounds_length

    @property
    def counts_to(self) -> int:
        """The largest number that its automata count to."""
        return 0

    def automata(self, tags: SpanTags, most: int) -> list[Automaton]:
        """Automata that together accept what keeps the rule (for rules with a memory).

        most (int): Tokens of the longest document that they are for: what only longer ones can reach they don't count.
        """
        return []

    def broken_lengths(self, tags: SpanTags, longest: int) -> NDArray[np.bool_]:
        """Lengths of segments that break the rule (for rules that bound it): bool[longest, S]."""
        raise NotImplementedError

    def labels(self, tags: SpanTags, argument: str = "label") -> list[int]:
        value = self.arguments[argument]
        return list(range(len(tags.labels))) if value == "*" else [tags.labels.index(name) for name in value]

    def _tags(self, tags: SpanTags) -> NDArray[np.bool_]:
        """bool[S]: tags of the labels that it is about."""
        chosen = np.zeros(len(tags.labels) + 1, dtype=bool)
        chosen[self.labels(tags)] = True
        return chosen[tags.label_of]  # the last is for -1, no label

    def _is_label(self, tags: SpanTags, names: Iterable[str]) -> NDArray[np.bool_]:
        """bool[S]: tags of the named labels; O stands for tags outside of all spans."""
        numbers = [-1 if name == NO_SPAN else tags.labels.index(name) for name in names]
        return np.isin(tags.label_of, numbers)

    def _in_scope(self, automata: list[Automaton]) -> list[Automaton]:
        return [per_sentence(automaton) if self.per == "sentence" else automaton for automaton in automata]
