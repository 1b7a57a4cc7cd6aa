"""Lattices of one document, for chains and for segments: the max-marginal of each node, and the arcs between selected nodes."""

from functools import cached_property
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ...kernels import lattice as kernels
from ...kernels.lattice import LatticeSteps
from ...kernels.log_space import LogPotentials
from ...types import GOES_ON, Floats
from ..decoding import seconds_of_recursion

ROWS = 2  # rows of a token: in front of it, and behind it
_MOST_TRANSITIONS = 1 << 24  # largest number of transitions that are written out (128 MiB)


class Lattice:
    """The lattice of a document; see `kernels.lattice`.

    log_potentials (LogPotentials): Scores of one sequence of at least one token, as a chain of segments.
    events (int32[S, S]): The event that automata read at each state after each state; the last row serves the start.
    n_events (int): Number of events.
    """

    def __init__(self, log_potentials: LogPotentials, events: NDArray[np.int32], n_events: int):
        self.events, self._n_events = events, n_events
        self.tokens, n_states = log_potentials.opening.shape
        self._folded = log_potentials
        self._prefix, self.worth = np.empty((2, ROWS * self.tokens, n_states))
        self.best = kernels.find_worth(log_potentials, self._prefix, self.worth)  # score of the best labelling

    @property
    def seconds(self) -> float:
        """Estimate the seconds that computing the worth of all nodes takes on a usual machine."""
        return seconds_of_recursion(self.tokens, self.worth.shape[1], len(self._folded.lengths))

    @property
    def rests(self) -> bool:
        """Whether a labelling may pass a token without any event."""
        return len(self._folded.lengths) > 1

    def worth_with(self, prices: Floats) -> Optional[Floats]:
        """Compute the worth of the nodes (float64[rows, S]) under prices that the scores of the events at each token get added
        (float64[n, E]); None if that needs too much memory."""
        possible, folded, worth = self.possible_events, self._folded, np.empty_like(self.worth)
        if (possible.sum(axis=0) <= 1).all():
            priced = folded._replace(opening=folded.opening + prices[:, possible.argmax(axis=0)])
        elif len(prices) * worth.shape[1] ** 2 > _MOST_TRANSITIONS:
            return None
        else:  # the event depends on the tag before
            transitions = folded.transitions + np.take(prices, self.events, axis=1)
            priced = folded._replace(transitions=transitions, first=folded.first + prices[0, self.events[-1]])
        kernels.find_worth(priced, np.empty_like(worth), worth)
        return worth

    @property
    def longest_step(self) -> int:
        """Largest number of rows that a step spans."""
        return ROWS * len(self._folded.lengths)

    @cached_property
    def possible_events(self) -> NDArray[np.bool_]:
        """Which events may happen where a state begins or continues: bool[E, S]."""
        found = np.zeros((self._n_events, self.worth.shape[1]), dtype=bool)
        before, state = np.nonzero((self._folded.transitions > -np.inf).any(axis=0))
        found[self.events[before, state], state] = True
        [state] = np.nonzero(self._folded.first > -np.inf)
        found[self.events[-1, state], state] = True
        return found

    def add(self, kept: NDArray[np.bool_], added: NDArray[np.bool_]) -> None:
        """Add nodes to connected ones (bool[rows, S]) in place, with the nodes on the best paths to and from each new node."""
        added = added & ~kept
        kept |= added
        kernels.connect(self._folded, self._prefix, self.worth, kept, added)

    def steps(self, kept: NDArray[np.bool_], jumps: NDArray[np.int64]) -> LatticeSteps:
        """Steps between the kept nodes (bool[rows, S]), given the row to which each row jumps (int64[rows])."""
        return kernels.list_steps(self._folded, self.events, self._prefix, kept, jumps)

    def path(self, best: NDArray[np.int64], steps: LatticeSteps, taken: NDArray[np.int32]) -> NDArray[np.int32]:
        """Convert the steps that a labelling takes (int32[M], of all steps) to a path of segments: int32[n].

        best (int64[rows]): States of the nodes that steps jump over, -1 for none.
        """
        places = steps.target[taken[:-1]]
        states = best.copy()
        states[steps.time[places] - 1] = steps.state[places]
        begins = states[::ROWS]
        return np.where(begins >= 0, begins, GOES_ON).astype(np.int32)
