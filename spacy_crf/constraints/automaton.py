"""Rules with a memory: finite automata over the events of a labelling, and graphs of states whose paths keep the rules.

An automaton reads one event per token: the token is outside of all spans, begins a span of some label, is inside of one that
began before, or stands for the break between two sentences of a document. Every tag scheme is translated into the
same events (`SpanTags.events`), so a rule is written once.

Steps and ends have a score: 0 if no rule is broken, -inf if they are forbidden, a number between as the price of breaking a soft
rule.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ..schemes import Segments
from ..types import Bools, Floats, Ints, StateGraph

OUTSIDE = 0
BREAK = 1
_FIRST_LABEL = 2


class SpanTags:
    """How the tags of a component encode spans.

    labels (list[str]): The labels.
    label_of (int64[S]): Label of each tag, -1 for tags outside of all spans.
    continues (bool[S, S]): Whether tag j directly after tag i continues the span of i.

    Tag S, which no component has, stands for the break between two sentences.
    """

    def __init__(self, labels: Sequence[str], label_of: Ints, continues: Any):
        self.labels = list(labels)
        self.label_of = label_of
        self.continues = continues

    @property
    def n_events(self) -> int:
        """Number of events: E = 2 + 2 L for L labels."""
        return _FIRST_LABEL + 2 * len(self.labels)

    def begins(self, label: int) -> int:
        """Number of the event "a span of this label begins". label (int): Number of the label."""
        return _FIRST_LABEL + label

    def inside(self, label: int) -> int:
        """Number of the event "a span of this label continues". label (int): Number of the label."""
        return _FIRST_LABEL + len(self.labels) + label

    @cached_property
    def events(self) -> NDArray[np.int32]:
        """events[i, j]: the event of tag j directly after tag i, int32[S + 1, S + 1]. Tag S is the break, or the start of a
        document."""
        size = len(self.label_of)
        events = np.full((size + 1, size + 1), BREAK, dtype=np.int32)
        events[:, :size] = np.where(self.label_of >= 0, _FIRST_LABEL + self.label_of, OUTSIDE)
        events[:size, :size] += (len(self.labels) * self.continues).astype(np.int32)
        return events

    def events_of(self, tags: NDArray[np.int32], opening: Bools) -> NDArray[np.int32]:
        """List the events of the tags of sequences laid end to end.

        tags (int32[T]): The tags.
        opening (bool[T]): Whether a token begins a sequence.
        RETURNS (int32[T]): The event of each token.
        """
        before = np.empty(len(tags), dtype=np.int64)
        before[1:] = tags[:-1]
        before[opening] = len(self.label_of)
        return self.events[before, tags]

    def segments_of(self, tags: NDArray[np.int32], opening: Bools) -> Segments:
        """List the spans of a sequence of tags.

        tags (int32[T]): The tags, -1 for none.
        opening (bool[T]): Whether a token begins a sequence.
        RETURNS (Segments): The spans.
        """
        label = np.where(tags >= 0, self.label_of[tags], -1)
        return Segments.of_states(tags, label, self.continues, opening)


class Automaton(NamedTuple):
    """A deterministic automaton; it starts in state 0."""

    next: NDArray[np.int32]  # [Q, E] next state after an event, -1 if the event is forbidden
    scores: Floats  # [Q, E] score of a step
    last: Floats  # [Q] score of ending in a state

    @property
    def n_states(self) -> int:
        """Number of states: Q."""
        return len(self.last)

    @property
    def accepts_nothing(self) -> bool:
        """Whether no sequence may end in any state."""
        return not (self.last > -np.inf).any()

    def charge(self, states: Union[int, slice, Ints], events: Union[int, list[int], Ints, Bools], price: float) -> None:
        """Add a price to the steps from these states at these events, in place.

        states (int, slice or int64[N]): The states that the steps leave.
        events (int, int64[N] or bool[E]): The events of the steps.
        price (float): The price; -inf forbids the steps.
        """
        if price == -np.inf:
            self.next[states, events] = -1
        else:
            self.scores[states, events] += price

    def may_bind(self, length: int) -> bool:
        """Whether a sequence of so many events can get a score below 0.

        length (int): Number of events in the sequence.
        """
        # The scores are at most 0: as long as only free steps are taken, no score is lowered
        free = (self.next >= 0) & (self.scores == 0.0)  # [Q, E] steps that cost nothing
        reached = np.arange(self.n_states) == 0  # [Q] states that such steps reach
        for _ in range(length):
            if not free[reached].all():
                return True
            following = reached.copy()
            following[self.next[reached]] = True
            if (following == reached).all():
                break
            reached = following
        return bool((self.last[reached] != 0.0).any())


def make_automaton(n_states: int, n_events: int) -> Automaton:
    """Make an automaton whose steps all stay in their state, and that accepts every sequence.

    n_states (int), n_events (int): Numbers of its states and events.
    RETURNS (Automaton): The automaton, to be changed in place.
    """
    following = np.repeat(np.arange(n_states, dtype=np.int32)[:, None], n_events, axis=1)
    return Automaton(following, np.zeros((n_states, n_events)), np.zeros(n_states))


def per_sentence(automaton: Automaton) -> Automaton:
    """Make an automaton that ends at each break and starts anew behind it.

    automaton (Automaton): The automaton of one sentence.
    RETURNS (Automaton): The automaton of a document.
    """
    following = automaton.next.copy()
    scores = automaton.scores.copy()
    following[:, BREAK] = np.where(automaton.last > -np.inf, 0, -1)
    scores[:, BREAK] = np.where(automaton.last > -np.inf, automaton.last, 0.0)
    return Automaton(following, scores, automaton.last)


def parted(automaton: Automaton) -> tuple[Floats, Automaton]:
    """Split an automaton into the scores that it gives to events in every state, and a rest that never raises a score, so that
    the rest can be left out until a labelling breaks it.

    automaton (Automaton): The automaton.
    RETURNS (float64[E], Automaton): Scores, -inf for events that the automaton never allows; and the rest.
    """
    allowed = automaton.next >= 0
    # always[e] = max_q scores[q, e]; what remains, scores[q, e] - always[e], is at most 0
    always = np.where(allowed, automaton.scores, -np.inf).max(axis=0)
    finite = np.where(always > -np.inf, always, 0.0)
    always[BREAK] = 0.0  # breaks occur in every labelling
    return always, Automaton(
        next=automaton.next,
        scores=np.where(allowed, automaton.scores - finite, 0.0),
        last=automaton.last if automaton.accepts_nothing else automaton.last - automaton.last.max(),
    )


def product(first: Automaton, second: Automaton, *, max_states: Optional[int] = None) -> Optional[Automaton]:
    """Multiply two automata: the product gives each sequence of events the sum of both scores.

    first (Automaton), second (Automaton): The automata.
    max_states (int): Largest number of states.
    RETURNS (Automaton): The product over the reachable pairs of states; None if there are more of these.
    """
    # Events that neither automaton distinguishes are merged.
    columns = np.concatenate([first.next, second.next, first.scores, second.scores])
    _, representative, class_of = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    class_of = class_of.reshape(-1)
    # Breadth-first over pairs of states, from the pair of start states
    number_of = {(0, 0): 0}
    pairs = [(0, 0)]
    rows = []
    first_next = first.next[:, representative].tolist()
    second_next = second.next[:, representative].tolist()
    for first_state, second_state in pairs:  # the loop appends to the list
        row = []
        for pair in zip(first_next[first_state], second_next[second_state]):
            if min(pair) < 0:  # one of them forbids the event
                row.append(-1)
                continue
            if pair not in number_of:
                if max_states is not None and len(pairs) >= max_states:
                    return None
                number_of[pair] = len(pairs)
                pairs.append(pair)
            row.append(number_of[pair])
        rows.append(row)
    first_states, second_states = np.array(pairs).T
    return Automaton(
        next=np.array(rows, dtype=np.int32)[:, class_of],
        scores=first.scores[first_states] + second.scores[second_states],
        last=first.last[first_states] + second.last[second_states],
    )


def minimised(automaton: Automaton) -> Automaton:
    """Make the smallest automaton that gives every step, and every end, of a sequence of events the score that the given
    automaton gives (Moore's refinement).

    automaton (Automaton): The automaton.
    RETURNS (Automaton): Its smallest equivalent.
    """
    automaton = _trimmed(automaton)
    following = automaton.next
    scores = np.where(following >= 0, automaton.scores, 0.0)
    # Events that lead to equal states at equal scores count once
    different_columns = np.unique(np.concatenate([following, scores]), axis=1)
    targets_by_event = different_columns[: len(following)].T.astype(np.int64)  # [different events, Q] next states
    # Classes of states: at first by scores, then refined until all states of a class lead to the same classes
    _, classes = np.unique(np.column_stack([scores, automaton.last, following >= 0]), axis=0, return_inverse=True)
    classes = classes.reshape(-1)
    while True:
        refined = classes
        for targets in targets_by_event:
            pairs = refined * (len(targets) + 1) + np.where(targets >= 0, classes[targets] + 1, 0)
            _, refined = np.unique(pairs, return_inverse=True)
        if refined.max() == classes.max():
            break
        classes = refined
    # Number the classes by their first member, so that the start remains state 0
    _, first_member = np.unique(classes, return_index=True)
    order = np.argsort(first_member)
    number = np.empty(len(order), dtype=np.int32)
    number[order] = np.arange(len(order))
    members = first_member[order]
    following = following[members]
    following = np.where(following >= 0, number[classes[following]], -1).astype(np.int32)
    return Automaton(following, scores[members], automaton.last[members])


def _trimmed(automaton: Automaton) -> Automaton:
    """The automaton without states that cannot be reached, or cannot reach an allowed end. The start state stays in any case."""
    source, event = np.nonzero(automaton.next >= 0)
    target = automaton.next[source, event]
    # Backwards from the ends: states from which no end can be reached are useless
    useful = _reachable(target, source, automaton.last > -np.inf)
    useful[0] = True
    inside = useful[source] & useful[target]
    kept = np.flatnonzero(_reachable(source[inside], target[inside], np.arange(len(useful)) == 0))
    number = np.full(len(useful) + 1, -1, dtype=np.int32)  # the last entry is for -1
    number[kept] = np.arange(len(kept))
    return Automaton(number[automaton.next[kept]], automaton.scores[kept], automaton.last[kept])


# Tags times states of an automaton: a graph whose paths are the labellings that keep the rules


def rule_graph(tags: SpanTags, automaton: Automaton, allowed: np.ndarray) -> StateGraph:
    """Make the graph whose paths are the labellings that an automaton accepts.

    tags (SpanTags): The S tags.
    automaton (Automaton): Reads the events of the tags.
    allowed (bool[S + 1, S + 1]): Which tag may follow which; the graph has arcs for these pairs only. Row and column S, the
        break, also define the tags that may begin and end sequences.
    RETURNS (StateGraph): The graph over S + 1 tags, with the states that lie on some path, ordered by tag.
    """
    n_tags = len(tags.label_of) + 1
    n_states = automaton.n_states
    before, after = np.nonzero(allowed)  # tag pairs
    events = tags.events[before, after]
    # State (tag, q) has number tag * Q + q. Each arc is a pair of tags and the automaton's state that reads it.
    next_states = automaton.next[:, events]  # [Q, pairs]
    is_possible = (next_states >= 0) & (automaton.scores[:, events] > -np.inf)
    state_before, pair = np.nonzero(is_possible)
    source = before[pair] * n_states + state_before
    target = after[pair] * n_states + next_states[state_before, pair]
    scores = automaton.scores[state_before, events[pair]]
    # State 0 reads the first event; no sequence begins or ends with a break
    first = np.full((n_tags, n_states), -np.inf)
    first_events = tags.events[-1, :-1]
    to_state = automaton.next[0, first_events]
    [first_tags] = np.nonzero((to_state >= 0) & allowed[-1, :-1])
    first[first_tags, to_state[first_tags]] = automaton.scores[0, first_events[first_tags]]
    last = np.full((n_tags, n_states), -np.inf)
    last[:-1][allowed[:-1, -1]] = automaton.last
    first = first.reshape(-1)
    last = last.reshape(-1)
    # A state is useful if a path leads to it, and from it to an end
    useful = _reachable(source, target, first > -np.inf) & _reachable(target, source, last > -np.inf)
    number = np.cumsum(useful) - 1
    kept = useful[source] & useful[target]
    tag_of = np.repeat(np.arange(n_tags), n_states)[useful]
    useful_source = number[source[kept]]
    useful_target = number[target[kept]]
    return _in_order(useful_source, useful_target, scores[kept], first[useful], last[useful], tag_of)


def copied(graph: StateGraph, tag_of: np.ndarray) -> StateGraph:
    """Make a graph over copies of tags, with each state of the given graph once for each copy of its tag.

    graph (StateGraph): The graph over tags.
    tag_of (int[C]): The tag of each copy, for all tags of the graph.
    RETURNS (StateGraph): The graph over the C copies.
    """
    state_of, copy_of = np.nonzero(graph.tag_of[:, None] == tag_of)  # of each state of the new graph
    n_copies = np.bincount(state_of, minlength=len(graph.tag_of))
    first_copy = np.cumsum(n_copies) - n_copies
    # Each arc is copied for each pair of copies of its two states
    n_pairs = n_copies[graph.source] * n_copies[graph.target]
    arc = np.repeat(np.arange(len(n_pairs)), n_pairs)
    pair = np.arange(len(arc)) - np.repeat(np.cumsum(n_pairs) - n_pairs, n_pairs)  # number of the pair, for its arc
    n_targets = n_copies[graph.target[arc]]
    source = first_copy[graph.source[arc]] + pair // n_targets
    target = first_copy[graph.target[arc]] + pair % n_targets
    return _in_order(source, target, graph.scores[arc], graph.first[state_of], graph.last[state_of], copy_of)


def _in_order(source, target, scores, first, last, tag_of) -> StateGraph:
    """A graph with its arcs sorted by source, then by target."""
    # Kernels walk the arcs of one source after the other
    order = np.lexsort((target, source))
    source, target, tag_of = (array.astype(np.int32) for array in (source[order], target[order], tag_of))
    return StateGraph(source, target, np.ascontiguousarray(scores[order]), first, last, tag_of)


def _reachable(source, target, start):
    """The states `start` (bool[Q]) and all states that arcs reach from these: bool[Q]."""
    reached = start
    while True:
        grown = reached.copy()
        grown[target[reached[source]]] = True
        if (grown == reached).all():
            return reached
        reached = grown
