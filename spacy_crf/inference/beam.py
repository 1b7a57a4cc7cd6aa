"""Beam search: the best labelling among few prefixes, and those that come next."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import beam as kernels
from ..kernels import higher_order, log_space
from ..types import Floats, Path
from .scaling import Shared
from .structure import Beam, States


class BeamSearch:
    """Of chains of tokens or of segments.

    work (Work): Says what its scores are of pieces (``log_potentials``).
    beam (Beam)
    """

    def __init__(self, work: Any, beam: Beam):
        self._work, self._beam = work, beam

    @property
    def path(self) -> Path:
        """The best labelling of each sequence within the beam, -1 and -inf where it comes to nothing."""
        return self._found[1]

    def rank(self, states: States, scores: Floats) -> int:
        """As `Structure.rank`, of the labellings within the beam."""
        log_potentials, (left, _) = self._work.log_potentials, self._found
        within = log_potentials._replace(closing=np.where(left > -np.inf, log_potentials.closing, -np.inf))
        return log_space.n_best(within, self._work.predecessors, len(scores), states, scores)

    @cached_property
    def _found(self) -> tuple[NDArray, Path]:
        """The scores of the prefixes that are kept (float64[T, S], -inf for others), and the paths."""
        left = np.empty(self._work.log_potentials.opening.shape)
        path = Path(np.empty(len(left), dtype=np.int32), np.empty(self._work.n_sequences))
        leaving = _leaving(self._work)
        kernels.search(self._work.log_potentials, leaving, tuple(self._beam), left, *path)
        return left, path


class ChainSearch(BeamSearch):
    """Of linear chains: what `viterbi` asks is quicker than what the other questions need."""

    @cached_property
    def path(self) -> Path:
        work = self._work
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        leaving = _leaving(work)
        kernels.viterbi(tuple(work.potentials), *work.steps.in_order, leaving, tuple(self._beam), *path)
        return path


class LatticeSearch(BeamSearch):
    """Of chains of higher order, whose prefixes end with the nodes of a lattice."""

    def rank(self, states: States, scores: Floats) -> int:
        sums, (kept, _) = self._work.sums, self._found
        possible = np.where(kept, sums.scores, -np.inf)
        return higher_order.n_best(sums.level, possible, sums.weights, len(scores), states, scores)

    @cached_property
    def _found(self) -> tuple[NDArray, Path]:
        """The nodes that are kept (bool[N]), and the paths."""
        work, sums = self._work, self._work.sums
        kept = np.empty(len(sums.scores), dtype=np.bool_)
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        beam, leaving = tuple(self._beam), _leaving(work)
        kernels.search_lattice(sums.level, sums.scores, sums.weights, leaving, beam, work.starts, kept, *path)
        return kept, path


_shared = Shared(kernels.best_leaving, most=4)


def _leaving(work: Any) -> Floats:
    """The best transition out of each state: float64[1 or T, S]."""
    return kernels.best_leaving(work.transitions) if work.per_position else _shared.of(work.transitions)
