"""Automata for the search in a lattice. They read kinds of steps; kind 0 leaves an automaton in its state."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ... import arrays
from ...kernels.dual_decomposition import KindAutomata
from ...kernels.lattice import LatticeSteps
from ...types import Floats
from ..automaton import BREAK, OUTSIDE, Automaton, SpanTags
from .lattice import ROWS

_MANY = 200


class LatticeAutomaton:
    """An automaton without rewards, over kinds of events. Events on which it always acts alike are one kind."""

    pays = True  # whether kinds can have prices

    def __init__(self, automaton: Automaton, tags: SpanTags):
        self._tags = tags
        states = np.arange(automaton.n_states)
        columns = np.concatenate([automaton.next, automaton.scores])
        _, first, kinds = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        following, scores = automaton.next[:, first], automaton.scores[:, first]
        moves = (following != states[:, np.newaxis]).any(axis=0) | (scores != 0.0).any(axis=0)
        number = np.where(moves, np.cumsum(moves), 0)
        self.kind_of = np.append(number[kinds.reshape(-1)], 0).astype(np.int32)  # the last one for no event
        self.following = arrays.contiguous(np.column_stack([states, following[:, moves]]), np.int32)
        self.scores = arrays.contiguous(np.column_stack([np.zeros(len(states)), scores[:, moves]]), np.float64)
        self.last = np.asarray(automaton.last, dtype=float)
        self.reads_breaks = bool(self.kind_of[BREAK])
        self.is_hard = bool((following < 0).any() or (self.last == -np.inf).any())

    def kinds(self, steps: LatticeSteps) -> NDArray[np.int32]:
        """Kind of each step: int32[N]."""
        return self.kind_of[steps.event]

    def states(self) -> NDArray[np.bool_]:
        """States whose labels the automaton distinguishes from ``O``: bool[S + 1], the last one for the break."""
        of_labels = self.kind_of[self._tags.begins(0) : -1].reshape(2, -1)
        read = (of_labels != self.kind_of[OUTSIDE]).any(axis=0)
        return np.append(read, False)[np.append(self._tags.label_of, -1)]

    def rows(self, on_best: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Rows of the lattice in which the automaton reads the best labelling, given its nodes (bool[rows, S]): int64[N]."""
        return np.flatnonzero(on_best[:, self.states()].any(axis=1))

    @cached_property
    def may_gain(self) -> bool:
        """Whether an event may raise the best score that the automaton can still reach. For an automaton with many states the
        answer is True without a check."""
        following, scores, last = self.following, self.scores, self.last
        if len(last) > _MANY:
            return True
        allowed, to = following >= 0, np.maximum(following, 0)
        as_good = last[:, np.newaxis] >= last  # whether a state is as good as another one, as far as is known
        while True:
            before = as_good.copy()
            for c in range(1, following.shape[1]):
                better = scores[:, c, np.newaxis] >= scores[:, c]
                goes_on = allowed[:, c, np.newaxis] & better & before[to[:, c, np.newaxis], to[:, c]]
                as_good &= ~allowed[:, c] | goes_on
            if (as_good == before).all():
                break
        return not (as_good[np.arange(len(last))[:, np.newaxis], to] | ~allowed).all()

    @property
    def members(self) -> NDArray[np.bool_]:
        """Which events belong to each kind: bool[C, E]."""
        return self.kind_of[:-1] == np.arange(self.following.shape[1])[:, np.newaxis]

    def forbid(self, prices: Floats) -> None:
        """Set the prices (float64[n, C]) of kinds that are impossible at a token to inf, in place."""

    def pay(self, table: Floats, prices: Floats) -> None:
        """Add the prices of kinds to the prices of their events (float64[n, E]), in place."""
        for event in np.flatnonzero(self.kind_of[:-1]):
            table[:, event] += prices[:, self.kind_of[event]]


class TextAutomaton:
    """Automaton of the rule that all spans with one text have one label. In chains it reads events at and behind the text.

    occurrences (Sequence[Tuple[int, int]]): Places of the text, in the order of their first tokens.
    """

    pays = is_hard = True
    may_gain = reads_breaks = False  # by events elsewhere

    def __init__(self, tags: SpanTags, occurrences: Sequence[tuple[int, int]], tokens: int):
        self._tags = tags
        self._begins, self._ends = map(np.array, zip(*occurrences))
        self._length = int(self._ends[0] - self._begins[0])
        self._is_begin, self._is_near = np.zeros((2, tokens + 1), dtype=bool)
        self._is_begin[self._begins] = True
        for offset in range(self._length + 1):
            self._is_near[self._begins + offset] = True

    def kinds(self, steps: LatticeSteps) -> NDArray[np.int32]:
        """Kind of each step: int32[N]. Also gives the automaton states for the labels of these steps."""
        time, n_labels = steps.time[steps.source], len(self._tags.labels)
        token, behind = np.divmod(time, ROWS)
        label = steps.event - self._tags.begins(0)
        begins = self._is_begin[token] & (behind == 0) & (label >= 0) & (label < n_labels)
        self._labels = np.unique(label[begins])
        kinds = np.where(label >= n_labels, _GOES_ON, _OTHER)
        kinds[begins] = _BEGINS + np.searchsorted(self._labels, label[begins])
        self._make_tables()
        return np.where(self._is_near[token] & (behind == 0), kinds, 0).astype(np.int32)

    def _make_tables(self) -> None:
        # State: the label of the text (0 for none), and the progress of a span that may be the text: 0 for no span, or
        # 1 + label * length + tokens - 1
        n_labels, length = len(self._labels), self._length
        inner = 1 + n_labels * length
        decided, at = np.divmod(np.arange((1 + n_labels) * inner), inner)
        begun, so_far = (at - 1) // length, (at - 1) % length + 1
        ends = (at > 0) & (so_far == length)  # unless the span continues
        wrong = ends & (decided > 0) & (decided != begun + 1)
        settled = np.where(ends & (decided == 0), begun + 1, decided) * inner
        columns = [decided * inner + at, decided * inner + np.where((at > 0) & ~ends, at + 1, 0)]
        columns += [np.where(wrong, -1, settled + after) for after in (0, *(1 + np.arange(n_labels) * length))]
        self.following = arrays.contiguous(np.column_stack(columns), np.int32)
        self.scores, self.last = np.zeros(self.following.shape), np.zeros(len(decided))

    @property
    def members(self) -> NDArray[np.bool_]:
        events = np.arange(self._tags.n_events)
        inside = events >= self._tags.inside(0)
        return np.array([~inside & inside, inside, ~inside, *(events == self._tags.begins(n) for n in self._labels)])

    def forbid(self, prices: Floats) -> None:
        near = self._is_near[: len(prices)]
        prices[~near] = np.inf
        prices[:, 0] = np.where(near, np.inf, 0.0)
        prices[~self._is_begin[: len(prices)], _BEGINS:] = np.inf

    def pay(self, table: Floats, prices: Floats) -> None:
        """Add the prices of kinds to the prices of their events, see `LatticeAutomaton.pay`."""
        near, begins = np.flatnonzero(self._is_near[: len(table)]), self._tags.begins(0) + self._labels
        inside = np.arange(table.shape[1]) >= self._tags.inside(0)
        of_events = np.where(inside, prices[near, _GOES_ON, np.newaxis], prices[near, _OTHER, np.newaxis])
        starts = self._is_begin[near]
        of_events[np.ix_(starts, begins)] = prices[near[starts], _BEGINS:]
        table[near] += of_events

    def states(self) -> NDArray[np.bool_]:
        """No states, since the automaton reads places, see `rows`."""
        return np.zeros(len(self._tags.label_of) + 1, dtype=bool)

    def rows(self, on_best: NDArray[np.bool_]) -> NDArray[np.int64]:
        """All rows that the automaton reads."""
        return ROWS * np.flatnonzero(self._is_near[:-1])


_GOES_ON, _OTHER, _BEGINS = 1, 2, 3


class SegmentTextAutomaton(TextAutomaton):
    """The automaton of a text in chains of segments: it reads whole segments."""

    pays = False  # segments have no prices

    def kinds(self, steps: LatticeSteps) -> NDArray[np.int32]:
        begin, behind = np.divmod(steps.time[steps.source], ROWS)
        end = steps.time[steps.target] // ROWS
        label = np.append(self._tags.label_of, -1)[steps.state[steps.source]]
        is_text = (behind == 1) & (end - begin == self._length) & self._is_begin[begin] & (label >= 0)
        self._labels = np.unique(label[is_text])
        kinds = np.zeros(len(begin), dtype=np.int32)
        kinds[is_text] = 1 + np.searchsorted(self._labels, label[is_text])
        state = np.arange(1 + len(self._labels))
        is_kept = (state[:, np.newaxis] == 0) | (state[:, np.newaxis] == state)
        self.following = np.where(is_kept, state, -1).astype(np.int32)
        self.following[:, 0] = state
        self.scores, self.last = np.zeros(self.following.shape), np.zeros(len(state))
        return kinds

    def rows(self, on_best: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.unique([ROWS * self._begins, ROWS * self._ends - 1])


def stacked(readers: Sequence[LatticeAutomaton]) -> KindAutomata:
    """Stack automata in one table for the kernels."""
    sizes = [reader.following.size for reader in readers]
    states = [len(reader.last) for reader in readers]
    return KindAutomata(
        np.concatenate([reader.following.ravel() for reader in readers]),
        np.concatenate([reader.scores.ravel() for reader in readers]),
        np.concatenate([reader.last for reader in readers]),
        np.cumsum([0, *sizes[:-1]]).astype(np.int64),
        np.array([reader.following.shape[1] for reader in readers], dtype=np.int64),
        np.cumsum([0, *states]).astype(np.int64),
    )
