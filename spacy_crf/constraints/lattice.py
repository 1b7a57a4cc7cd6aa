"""The lattice of one document, for chains and for segments: the max-marginal of each node, and the arcs between some nodes."""

from functools import cached_property
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..kernels import lattice as kernels
from ..kernels.lattice import LatticeArcs
from ..kernels.log_space import LogPotentials
from ..types import GOES_ON, Floats
from .budget import seconds_of_recursion

ROWS = 2  # rows of a token: in front of it, and behind it
_MOST_TRANSITIONS = 1 << 24  # largest number of transitions that are written out (128 MiB)


class Lattice:
    """The lattice of a document; see `kernels.lattice`.

    log_potentials (LogPotentials): Scores of one sequence of at least one token, as a chain of segments.
    events (int32[S, S]): events[i, j] is the event that automata read at state j directly after state i; the last row is for
        the start.
    n_events (int): Number of events.
    """

    def __init__(self, log_potentials: LogPotentials, events: NDArray[np.int32], n_events: int):
        self.events = events
        self._n_events = n_events
        self._log_potentials = log_potentials
        self.tokens, n_states = log_potentials.opening.shape
        self._prefix = np.empty((ROWS * self.tokens, n_states))
        self.max_marginals = np.empty((ROWS * self.tokens, n_states))
        # Score of the best labelling
        self.best = kernels.find_max_marginals(log_potentials, self._prefix, self.max_marginals)

    @property
    def seconds(self) -> float:
        """Estimate the seconds that computing all max-marginals takes on a usual machine."""
        return seconds_of_recursion(self.tokens, self.max_marginals.shape[1], len(self._log_potentials.lengths))

    @property
    def may_skip_tokens(self) -> bool:
        """Whether a labelling may pass a token without any event."""
        return len(self._log_potentials.lengths) > 1

    @property
    def longest_arc(self) -> int:
        """Largest number of rows that an arc spans."""
        return ROWS * len(self._log_potentials.lengths)

    @cached_property
    def possible_events(self) -> NDArray[np.bool_]:
        """Which events may happen where a state begins or continues: bool[E, S]."""
        is_possible = np.zeros((self._n_events, self.max_marginals.shape[1]), dtype=bool)
        before, after = np.nonzero((self._log_potentials.transitions > -np.inf).any(axis=0))
        is_possible[self.events[before, after], after] = True
        [first] = np.nonzero(self._log_potentials.first > -np.inf)
        is_possible[self.events[-1, first], first] = True
        return is_possible

    def max_marginals_with(self, event_scores: Floats) -> Optional[Floats]:
        """Compute the max-marginals with additional scores of events.

        event_scores (float64[n, E]): What each event at each token scores in addition.
        RETURNS (float64[rows, S]): The max-marginals; None if that needs too much memory.
        """
        potentials = self._log_potentials
        possible = self.possible_events
        if (possible.sum(axis=0) <= 1).all():
            # A state has one event, whatever is in front of it: the event's score is added to the state's
            event_of = possible.argmax(axis=0)
            potentials = potentials._replace(opening=potentials.opening + event_scores[:, event_of])
        elif len(event_scores) * possible.shape[1] ** 2 > _MOST_TRANSITIONS:
            return None
        else:  # the event depends on the tag before
            potentials = potentials._replace(
                transitions=potentials.transitions + np.take(event_scores, self.events, axis=1),
                first=potentials.first + event_scores[0, self.events[-1]],
            )
        max_marginals = np.empty_like(self.max_marginals)
        kernels.find_max_marginals(potentials, np.empty_like(max_marginals), max_marginals)
        return max_marginals

    def add(self, kept: NDArray[np.bool_], added: NDArray[np.bool_]) -> None:
        """Add nodes in place, with the nodes on the best labelling through each new node.

        kept (bool[rows, S]): The nodes so far, which are connected.
        added (bool[rows, S]): The new nodes.
        """
        added = added & ~kept
        kept |= added
        kernels.connect(self._log_potentials, self._prefix, self.max_marginals, kept, added)

    def arcs(self, kept: NDArray[np.bool_], jumps: NDArray[np.int64]) -> LatticeArcs:
        """List the arcs between the kept nodes.

        kept (bool[rows, S]): The nodes.
        jumps (int64[rows]): The row to which each row jumps, 0 for the next row.
        RETURNS (LatticeArcs): The arcs.
        """
        row, state = np.nonzero(kept)
        # Rows are counted from 1: row 0 is the start, the last one the end
        time = np.concatenate([[0], row + 1, [len(kept) + 1]]).astype(np.int32)
        state = np.concatenate([[-1], state, [-1]]).astype(np.int32)
        first_at = np.searchsorted(time, np.arange(len(kept) + 3))
        return kernels.list_arcs(self._log_potentials, self.events, self._prefix, jumps, time, state, first_at)

    def path(self, skipped: NDArray[np.int64], arcs: LatticeArcs, best_arcs: NDArray[np.int32]) -> NDArray[np.int32]:
        """Convert the arcs of a labelling to a path of segments.

        skipped (int64[rows]): States of the nodes that arcs jump over, -1 for none.
        arcs (LatticeArcs): All arcs.
        best_arcs (int32[M]): The arcs of the labelling, as positions among all.
        RETURNS (int32[n]): The state at the first token of each segment, GOES_ON at its other tokens.
        """
        nodes = arcs.target[best_arcs[:-1]]  # the last arc leads to the end, which has no row
        states = skipped.copy()
        states[arcs.time[nodes] - 1] = arcs.state[nodes]  # times count rows from 1
        begins = states[::ROWS]  # [n] segments begin in the row in front of a token
        return np.where(begins >= 0, begins, GOES_ON).astype(np.int32)
