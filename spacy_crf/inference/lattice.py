"""Lattices of a document, whatever its structure: what its nodes are worth, and the steps between some of them."""

import time
from functools import cached_property
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ..kernels import lattice as kernels
from ..kernels.lattice import Steps
from ..types import GOES_ON, Floats
from .scaling import ChainWork
from .semi_markov import SegmentWork

_MOST_TRANSITIONS = 1 << 24  # that may be written out (128 MiB)


class ChainLattice:
    """The lattice of a chain; see `kernels.lattice`.

    work (ChainWork): One sequence of at least one token.
    events (int32[S, S]): What each tag means to automata after each tag; the last row counts at the start.
    n_events (int): How many events there are.
    """

    rests = False  # whether labellings may pass by a time without a step
    rows_of_token = 1
    _beginning = "emissions"  # the scores of what begins at a token

    def __init__(self, work: Union[ChainWork, SegmentWork], events: NDArray[np.int32], n_events: int):
        self.events, self._n_events, self.tokens = events, n_events, work.n_tokens
        began = time.perf_counter()
        self._scores = self._potentials(work)
        self._prefix, self.worth = np.empty((2, self.rows_of_token * work.n_tokens, work.n_states))
        self.best = self._ask(self._scores, self._prefix, self.worth)  # score of the best labelling
        self.seconds = time.perf_counter() - began  # that it takes to find what nodes are worth

    def _potentials(self, work: Any) -> Any:
        return work.potentials

    def worth_with(self, prices: Floats) -> Optional[Floats]:
        """What the nodes are worth if each event at each token has a price, which is added (float64[n, E]): float64[rows, S];
        None if that takes too much memory."""
        scores = self._with_prices(prices)
        if scores is None:
            return None
        worth = np.empty_like(self.worth)
        self._ask(scores, np.empty_like(worth), worth)
        return worth

    def _with_prices(self, prices: Floats) -> Any:
        possible, size = self.possible_events, self.worth.shape[1]
        if (possible.sum(axis=0) <= 1).all():
            priced = getattr(self._scores, self._beginning) + prices[:, possible.argmax(axis=0)]
            return self._scores._replace(**{self._beginning: priced})
        if len(prices) * size**2 > _MOST_TRANSITIONS:
            return None
        transitions = self._scores.transitions + prices[:, self.events]  # what happens depends on the tag before
        return self._scores._replace(transitions=transitions, first=self._scores.first + prices[0, self.events[-1]])

    @property
    def longest_step(self) -> int:
        """How many rows it may lead further."""
        return 1

    @cached_property
    def possible_events(self) -> NDArray[np.bool_]:
        """What may happen where a state begins or goes on: bool[E, S]."""
        found = np.zeros((self._n_events, self.worth.shape[1]), dtype=bool)
        before, state = np.nonzero((self._scores.transitions > -np.inf).any(axis=0))
        found[self.events[before, state], state] = True
        [state] = np.nonzero(self._scores.first > -np.inf)
        found[self.events[-1, state], state] = True
        return found

    def worth_of_events(self, worth: Floats) -> Floats:
        """Of the best labelling in which an event happens at a token: float64[n, E]."""
        rows, possible = worth[:: self.rows_of_token], self.possible_events
        of_events = np.full((len(rows), len(possible)), -np.inf)
        for event in np.flatnonzero(possible.any(axis=1)):
            of_events[:, event] = rows[:, possible[event]].max(axis=1)
        return of_events

    def add(self, kept: NDArray[np.bool_], added: NDArray[np.bool_]) -> None:
        """Keeps some more nodes, and those on the best way to each of them and on the best way on: bool[rows, S], in place.

        kept: Nodes that are connected. added: The others.
        """
        added = added & ~kept
        kept |= added
        self._connect(self._scores, self._prefix, self.worth, kept, added)

    def steps(self, kept: NDArray[np.bool_], jumps: NDArray[np.int64]) -> Steps:
        """The steps between the nodes that are kept, see `kernels.chain_steps`."""
        return self._list(self._scores, self.events, self._prefix, kept, jumps)

    def path(self, best: NDArray[np.int64], steps: Steps, taken: NDArray[np.int32]) -> NDArray[np.int32]:
        """The labelling that takes some steps, as tags or as a path of segments.

        best (int64[rows]): The states of the nodes that steps jump over, -1 for none.
        """
        places = steps.target[taken[:-1]]
        states = best.copy()
        states[steps.time[places] - 1] = steps.state[places]
        return states.astype(np.int32)

    _ask, _connect, _list = (
        staticmethod(kernel) for kernel in (kernels.chain_worth, kernels.connect_chain, kernels.chain_steps)
    )


class SegmentLattice(ChainLattice):
    """The lattice of a chain of segments.

    work (SegmentWork): One sequence of at least one token.
    """

    rests = True
    rows_of_token = 2
    _beginning = "opening"

    def _potentials(self, work: SegmentWork) -> Any:
        return work.folded

    @property
    def longest_step(self) -> int:
        return 2 * len(self._scores.lengths)

    def path(self, best: NDArray[np.int64], steps: Steps, taken: NDArray[np.int32]) -> NDArray[np.int32]:
        states = super().path(best, steps, taken)[::2]
        return np.where(states >= 0, states, GOES_ON).astype(np.int32)

    _ask, _connect, _list = (
        staticmethod(kernel) for kernel in (kernels.segment_worth, kernels.connect_segments, kernels.segment_steps)
    )
