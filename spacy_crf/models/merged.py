"""States that training can't tell apart, as one: the same sums over fewer states.

A scheme has tags for what a corpus never shows: of 29 labels of addresses 12 are never a single token and have a tag U-x all the
same. No feature has a weight for such tags. As long as the weights of their transitions are equal too, alphas and betas of all
those U-x are equal, so are the derivatives, and so remain the weights. Of the 117 tags of usaddress 35 are never shown, of the
141 of snips 36.

States A and B stand for so many equal ones. Let each state of A be followed by r of those of B, n steps in all. Then

    transitions'[A, B] = transitions[a, b] + log r        first'[A] = first[a] + log |A|        last'[A] = last[a]

have the sums of all states, and what is expected of A → B is that of n equal steps. This holds if for all A and B each state of
A is followed by as many states of B, and each state of B comes behind as many of A: an equitable partition, found by splitting
groups until no two states of one differ in what they follow or are followed by.

The states left are put in the order in which passes take them (see `inference.scaling`).
"""

import numpy as np
from numpy.typing import NDArray

from ..inference.scaling import order_of
from .architecture import Shared


class MergedStates:
    """S states as M.

    possible, weighed (Shared): Which transitions, firsts and lasts there are, and which of them have a weight.
    is_known (bool[S]): The states for which features have weights: each stays by itself.
    """

    def __init__(self, possible: Shared, weighed: Shared, is_known: NDArray[np.bool_]):
        kinds = {name: possible[name].astype(np.int64) + (possible[name] & weighed[name]) for name in possible}
        group = _split(kinds, np.where(is_known, np.arange(len(is_known)), len(is_known)))
        n_groups, allowed = int(group.max()) + 1, possible["transitions"]
        among = np.zeros((n_groups, n_groups), dtype=bool)
        among[tuple(group[ends] for ends in np.nonzero(allowed))] = True
        order = order_of(among)
        self.of = np.argsort(order)[group]  # [S] which of the M each is part of
        _, self.stands, self._sizes = np.unique(self.of, return_index=True, return_counts=True)  # [M]
        # Of all steps that are possible: where they are among S · S, and which of the M · M each is part of
        self._steps = np.flatnonzero(allowed)
        self._part_of = self.of[self._steps // len(group)] * n_groups + self.of[self._steps % len(group)]
        counts = np.bincount(self._part_of, minlength=n_groups**2).reshape(n_groups, n_groups)
        self._counts = np.maximum(counts, 1)
        self._successors = np.maximum(counts / self._sizes[:, np.newaxis], 1.0)
        first = np.zeros(n_groups**2, dtype=np.int64)  # any, where none is possible
        first[self._part_of[::-1]] = self._steps[::-1]
        impossible = np.flatnonzero(~allowed)
        self._first = np.where(counts.ravel() > 0, first, impossible[0] if len(impossible) else 0)

    @property
    def n_states(self) -> int:
        return len(self.stands)

    @property
    def is_trivial(self) -> bool:
        """Whether all stays as it is."""
        return np.array_equal(self.of, np.arange(len(self.of)))

    def holds(self, shared: Shared) -> bool:
        """Whether what is to be equal is."""
        steps = shared["transitions"].ravel()
        ends = all(np.array_equal(shared[name], shared[name][self.stands][self.of]) for name in ("first", "last"))
        return ends and np.array_equal(steps[self._steps], steps[self._first[self._part_of]])

    def potentials(self, shared: Shared) -> Shared:
        """Those of the M states."""
        steps = shared["transitions"].ravel()[self._first].reshape(self._counts.shape)
        return {
            "transitions": steps + np.log(self._successors),
            "first": shared["first"][self.stands] + np.log(self._sizes),
            "last": shared["last"][self.stands],
        }

    def spread(self, derivatives: Shared) -> Shared:
        """The way back: derivatives with respect to those of the S states."""
        size = len(self.of)
        steps = np.zeros(size * size)
        steps[self._steps] = (derivatives["transitions"] / self._counts).ravel()[self._part_of]
        ends = {name: (derivatives[name] / self._sizes)[self.of] for name in ("first", "last")}
        return {"transitions": steps.reshape(size, size), **ends}


def _split(kinds: Shared, group: NDArray[np.int64]) -> NDArray[np.int64]:
    """The coarsest groups within these in which all states have as many steps of each kind to and from each group: int64[S]."""
    ends, steps = [kinds[name][:, np.newaxis] for name in ("first", "last")], kinds["transitions"]
    n_before = 0
    while True:
        _, group = np.unique(group, return_inverse=True)
        members = (group[:, np.newaxis] == np.arange(group.max() + 1)).astype(np.int64)
        if members.shape[1] == n_before:
            return group
        n_before = members.shape[1]
        of_kinds = [matrix @ members for kind in (1, 2) for matrix in (steps == kind, kind == steps.T)]
        _, group = np.unique(np.hstack([group[:, np.newaxis], *ends, *of_kinds]), axis=0, return_inverse=True)
        group = group.ravel()
