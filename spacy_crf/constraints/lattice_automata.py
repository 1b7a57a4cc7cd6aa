"""Automata for the search in a lattice. They read kinds of events; kind 0 leaves an automaton in its state."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..kernels.dual_decomposition import KindAutomata
from ..kernels.lattice import LatticeArcs
from ..types import Floats
from .automaton import BREAK, OUTSIDE, Automaton, SpanTags
from .lattice import ROWS

_MOST_COMPARED = 200  # states of an automaton whose pairs are compared


class LatticeAutomaton:
    """An automaton that reads kinds of events, and whose scores are at most 0. Events that act alike in every state are of one
    kind."""

    has_duals = True  # whether its kinds have dual variables outside the restricted lattice

    def __init__(self, automaton: Automaton, tags: SpanTags):
        self._tags = tags
        states = np.arange(automaton.n_states)
        columns = np.concatenate([automaton.next, automaton.scores])
        # Events with the same column act alike in every state
        _, first, column_of = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        following = automaton.next[:, first]
        scores = automaton.scores[:, first]
        # Kind 0 are the events that never change the state or the score
        acts = (following != states[:, np.newaxis]).any(axis=0) | (scores != 0.0).any(axis=0)
        kinds = np.where(acts, np.cumsum(acts), 0)
        # [E + 1] the last entry is for arcs without an event
        self.kind_of = np.append(kinds[column_of.reshape(-1)], 0).astype(np.int32)
        self.following = arrays.contiguous(np.column_stack([states, following[:, acts]]), np.int32)  # [Q, C]
        self.scores = arrays.contiguous(np.column_stack([np.zeros(len(states)), scores[:, acts]]), np.float64)
        self.last = np.asarray(automaton.last, dtype=float)
        self.reads_breaks = bool(self.kind_of[BREAK])
        self.is_hard = bool((following < 0).any() or (self.last == -np.inf).any())

    def read(self, arcs: LatticeArcs) -> NDArray[np.int32]:
        """Read arcs. arcs (LatticeArcs): N arcs. RETURNS (int32[N]): Kind of each arc."""
        return self.kind_of[arcs.event]

    def states_read(self) -> NDArray[np.bool_]:
        """States whose labels the automaton distinguishes from ``O``: bool[S + 1], where state S is the break."""
        label_kinds = self.kind_of[self._tags.begins(0) : -1].reshape(2, -1)  # [begins, continues; L]
        is_read = (label_kinds != self.kind_of[OUTSIDE]).any(axis=0)  # [L]
        # Tags of no label, and the break, have the label -1, which indexes the last entry
        return np.append(is_read, False)[np.append(self._tags.label_of, -1)]

    def rows_read(self, on_best: NDArray[np.bool_]) -> NDArray[np.int64]:
        """List the rows of the lattice in which the automaton reads the best labelling.

        on_best (bool[rows, S]): The nodes of that labelling.
        RETURNS (int64[N]): The rows.
        """
        return np.flatnonzero(on_best[:, self.states_read()].any(axis=1))

    @cached_property
    def may_gain(self) -> bool:
        """Whether an event may raise the best score that the automaton can still reach. An automaton with many states is not
        checked: True."""
        n_states = len(self.last)
        if n_states > _MOST_COMPARED:
            return True
        allowed = self.following >= 0
        next_states = np.maximum(self.following, 0)
        # [Q, Q] whether state p is at least as good as state q: assumed from the scores of ends, until steps refute it
        as_good = self.last[:, np.newaxis] >= self.last
        has_changed = True
        while has_changed:
            # as_good[p, q] stays true if each step of q is allowed in p, scores as much, and leads to a state as good
            before = as_good.copy()
            for kind in range(1, next_states.shape[1]):
                scores_as_much = self.scores[:, kind, np.newaxis] >= self.scores[:, kind]
                leads_as_far = before[next_states[:, kind, np.newaxis], next_states[:, kind]]
                as_good &= ~allowed[:, kind] | (allowed[:, kind, np.newaxis] & scores_as_much & leads_as_far)
            has_changed = (as_good != before).any()
        # No event gains if each state is as good as the states to which its steps lead
        states = np.arange(n_states)[:, np.newaxis]
        return not (as_good[states, next_states] | ~allowed).all()

    @property
    def members(self) -> NDArray[np.bool_]:
        """Which events belong to each kind: bool[C, E]."""
        return self.kind_of[:-1] == np.arange(self.following.shape[1])[:, np.newaxis]

    def forbid_impossible(self, duals: Floats) -> None:
        """Forbid the kinds that are impossible at a token, in place.

        duals (float64[n, C]): Dual variables by token and kind; those of impossible kinds become inf.
        """

    def add_to_events(self, of_events: Floats, duals: Floats) -> None:
        """Add the dual variables of kinds to the scores of their events, in place.

        of_events (float64[n, E]): Scores by token and event.
        duals (float64[n, C]): Dual variables by token and kind.
        """
        for event in np.flatnonzero(self.kind_of[:-1]):
            of_events[:, event] += duals[:, self.kind_of[event]]


class TextAutomaton:
    """Automaton of the rule that all spans with one text have one label. In chains it reads the tokens of the text, and the token
    behind it. Its kinds of events: a span continues; something else happens; a span of a label begins where the text does.

    occurrences (Sequence[Tuple[int, int]]): Begin and end of the text where it occurs, in the order of first tokens.
    tokens (int): Number of tokens.
    """

    has_duals = is_hard = True
    may_gain = reads_breaks = False  # by events elsewhere

    def __init__(self, tags: SpanTags, occurrences: Sequence[tuple[int, int]], tokens: int):
        self._tags = tags
        self._begins, self._ends = np.array(occurrences).T
        self._length = int(self._ends[0] - self._begins[0])
        self._is_begin = np.zeros(tokens + 1, dtype=bool)
        self._is_begin[self._begins] = True
        self._is_near = np.zeros(tokens + 1, dtype=bool)  # at the text, or behind it
        for offset in range(self._length + 1):
            self._is_near[self._begins + offset] = True

    def read(self, arcs: LatticeArcs) -> NDArray[np.int32]:
        """Read arcs, and make the tables of the automaton for the labels of these arcs.

        arcs (LatticeArcs): N arcs.
        RETURNS (int32[N]): Kind of each arc.
        """
        # The event at token t is read at time 2 t; an arc that leaves at 2 t + 1 is the span itself
        token, is_odd = np.divmod(arcs.time[arcs.source], ROWS)
        n_labels = len(self._tags.labels)
        label = arcs.event - self._tags.begins(0)  # negative outside of spans, n_labels and more where a span continues
        is_read = self._is_near[token] & (is_odd == 0)
        begins = self._is_begin[token] & (is_odd == 0) & (label >= 0) & (label < n_labels)
        self._labels = np.unique(label[begins])
        kinds = np.where(label >= n_labels, _CONTINUES, _OTHER)
        kinds[begins] = _BEGINS + np.searchsorted(self._labels, label[begins])
        self._make_tables()
        return np.where(is_read, kinds, 0).astype(np.int32)

    def _make_tables(self) -> None:
        """Make the tables of next states and scores. A state is a pair, text_label · (1 + L · length) + progress:

        text_label: 1 + the label that the text has had; 0 for none so far.
        progress: 1 + label · length + tokens - 1 in a span that may be the text; 0 outside of such spans.
        """
        n_labels = len(self._labels)
        length = self._length
        n_progress = 1 + n_labels * length
        text_label, progress = np.divmod(np.arange((1 + n_labels) * n_progress), n_progress)
        label = (progress - 1) // length + 1
        tokens = (progress - 1) % length + 1
        is_text = (progress > 0) & (tokens == length)  # unless the span continues
        is_wrong = is_text & (text_label > 0) & (text_label != label)
        next_label = np.where(is_text & (text_label == 0), label, text_label)
        unread = text_label * n_progress + progress
        continued = text_label * n_progress + np.where((progress > 0) & ~is_text, progress + 1, 0)
        columns = [unread, continued]  # next states by kind of event: kind 0, and _CONTINUES
        for next_progress in (0, *(1 + np.arange(n_labels) * length)):  # _OTHER, and _BEGINS with each label
            columns.append(np.where(is_wrong, -1, next_label * n_progress + next_progress))
        self.following = arrays.contiguous(np.column_stack(columns), np.int32)
        self.scores = np.zeros(self.following.shape)
        self.last = np.zeros(len(text_label))

    @property
    def members(self) -> NDArray[np.bool_]:
        """Which events belong to each kind: bool[C, E]."""
        events = np.arange(self._tags.n_events)
        continues = events >= self._tags.inside(0)
        nothing = np.zeros(len(events), dtype=bool)
        begins = [events == self._tags.begins(label) for label in self._labels]
        return np.array([nothing, continues, ~continues, *begins])

    def forbid_impossible(self, duals: Floats) -> None:
        """Set `duals` (float64[n, C]) to inf where a kind is impossible at a token: kind 0 where tokens are read, the other kinds
        elsewhere, and beginnings of spans where the text does not begin."""
        is_near = self._is_near[: len(duals)]
        duals[~is_near] = np.inf
        duals[:, 0] = np.where(is_near, np.inf, 0.0)
        duals[~self._is_begin[: len(duals)], _BEGINS:] = np.inf

    def add_to_events(self, of_events: Floats, duals: Floats) -> None:
        """Add the dual variables of kinds (float64[n, C]) to the scores of their events (float64[n, E]), in place."""
        tokens = np.flatnonzero(self._is_near[: len(of_events)])  # [M] in a match or right behind it
        is_continuation = np.arange(of_events.shape[1]) >= self._tags.inside(0)  # [E]
        begin_events = self._tags.begins(0) + self._labels  # [L] a span of a label begins
        # [M, E]
        added = np.where(is_continuation, duals[tokens, _CONTINUES, np.newaxis], duals[tokens, _OTHER, np.newaxis])
        # Only where a match begins have the beginnings of spans kinds of their own
        opens = self._is_begin[tokens]  # [M]
        added[np.ix_(opens, begin_events)] = duals[tokens[opens], _BEGINS:]
        of_events[tokens] += added

    def states_read(self) -> NDArray[np.bool_]:
        """No states: the automaton reads certain tokens, whatever their states, see `rows_read`."""
        return np.zeros(len(self._tags.label_of) + 1, dtype=bool)

    def rows_read(self, on_best: NDArray[np.bool_]) -> NDArray[np.int64]:
        """List all rows that the automaton reads, whatever is `on_best`."""
        return ROWS * np.flatnonzero(self._is_near[:-1])


_CONTINUES = 1
_OTHER = 2
_BEGINS = 3  # with the first label, and so on


class SegmentTextAutomaton(TextAutomaton):
    """The automaton of a text in chains of segments: it reads whole segments. Its kinds are the labels of the text."""

    has_duals = False  # segments are no events

    def read(self, arcs: LatticeArcs) -> NDArray[np.int32]:
        """Read arcs that are whole segments, and make the tables for the labels of the text, see `TextAutomaton.read`.

        arcs (LatticeArcs): N arcs.
        RETURNS (int32[N]): Kind of each arc: 0 for another text, 1 + n for the text with the n-th of its labels.
        """
        # An arc that is a segment leaves at time 2 begin + 1 and arrives at time 2 end
        begin, is_odd = np.divmod(arcs.time[arcs.source], ROWS)
        end = arcs.time[arcs.target] // ROWS
        label = np.append(self._tags.label_of, -1)[arcs.state[arcs.source]]
        is_text = (is_odd == 1) & (end - begin == self._length) & self._is_begin[begin] & (label >= 0)
        self._labels = np.unique(label[is_text])
        kinds = np.zeros(len(begin), dtype=np.int32)
        kinds[is_text] = 1 + np.searchsorted(self._labels, label[is_text])
        state = np.arange(1 + len(self._labels))  # the label of the text, 0 for none so far
        may_follow = (state[:, np.newaxis] == 0) | (state[:, np.newaxis] == state)
        self.following = np.where(may_follow, state, -1).astype(np.int32)
        self.following[:, 0] = state
        self.scores = np.zeros(self.following.shape)
        self.last = np.zeros(len(state))
        return kinds

    def rows_read(self, on_best: NDArray[np.bool_]) -> NDArray[np.int64]:
        """List the first and the last row of each occurrence, whatever is `on_best`."""
        return np.unique([ROWS * self._begins, ROWS * self._ends - 1])


def stacked(automata: Sequence[LatticeAutomaton]) -> KindAutomata:
    """Stack automata in one table for the kernels.

    automata (Sequence[LatticeAutomaton]): The automata.
    RETURNS (KindAutomata): Their tables, one behind the other.
    """
    sizes = [automaton.following.size for automaton in automata]
    widths = [automaton.following.shape[1] for automaton in automata]
    n_states = [len(automaton.last) for automaton in automata]
    return KindAutomata(
        following=np.concatenate([automaton.following.ravel() for automaton in automata]),
        scores=np.concatenate([automaton.scores.ravel() for automaton in automata]),
        last=np.concatenate([automaton.last for automaton in automata]),
        tables=np.cumsum([0, *sizes[:-1]]).astype(np.int64),
        widths=np.array(widths, dtype=np.int64),
        states=np.cumsum([0, *n_states]).astype(np.int64),
    )
