"""Beam search: at each token the search extends only the best prefixes."""

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..inference.scaling import ChainWork, Shared
from ..inference.structure import States, Work
from ..kernels import log_space
from ..types import Floats, Path
from .higher_order.structure import HigherOrderWork
from .kernels import beam as kernels
from .kernels import higher_order


class Beam(NamedTuple):
    """Prefixes that a beam search keeps at each token, the setting `decode = "beam"` of components.

    states (int): Number of states that may end a kept prefix; one prefix is kept for each.
    margin (float): Largest difference between the score of a kept prefix and that of the best one.
    """

    states: int
    margin: float = np.inf

    def keeps_all(self, n_prefixes: int) -> bool:
        """Whether the beam keeps every one of `n_prefixes` prefixes."""
        return self.states >= n_prefixes and self.margin == np.inf

    def search(self, work: Work) -> "BeamSearch":
        """Search a chunk of chains, segments or chains of higher order."""
        searches = {ChainWork: ChainSearch, HigherOrderWork: LatticeSearch}
        return searches.get(type(work), BeamSearch)(work, self)


class BeamSearch:
    """Beam search over linear chains or chains of segments.

    work (Work): A chunk with ``log_potentials``, its scores in the form of segments.
    beam (Beam): How many prefixes the search keeps.
    """

    def __init__(self, work: Any, beam: Beam):
        self._work, self._beam = work, beam

    @property
    def path(self) -> Path:
        """Best labelling that the beam finds for each sequence.

        RETURNS (Path): States int32[T] and scores float64[B]; -1 and -inf where the beam loses every labelling.
        """
        return self._found[1]

    def rank(self, states: States, scores: Floats) -> int:
        """The n best labellings within the beam, see `Structure.rank`.

        states (int32[n, T]), scores (float64[n]): Receive the labellings.
        RETURNS (int): How many labellings there are.
        """
        log_potentials, (left, _) = self._work.log_potentials, self._found
        within = log_potentials._replace(closing=np.where(left > -np.inf, log_potentials.closing, -np.inf))
        return log_space.n_best(within, self._work.predecessors, len(scores), states, scores)

    @cached_property
    def _found(self) -> tuple[NDArray, Path]:
        """Scores of the prefixes that the beam keeps (float64[T, S], -inf for the others), and the paths."""
        left = np.empty(self._work.log_potentials.opening.shape)
        path = Path(np.empty(len(left), dtype=np.int32), np.empty(self._work.n_sequences))
        leaving = _leaving(self._work)
        kernels.search(self._work.log_potentials, leaving, tuple(self._beam), left, *path)
        return left, path


class ChainSearch(BeamSearch):
    """Beam search over linear chains, with a faster kernel for `viterbi`."""

    @cached_property
    def path(self) -> Path:
        """Best labelling that the beam finds for each sequence, see `BeamSearch.path`."""
        work = self._work
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        leaving = _leaving(work)
        kernels.viterbi(tuple(work.potentials), *work.steps.in_order, leaving, tuple(self._beam), *path)
        return path


class LatticeSearch(BeamSearch):
    """Beam search over chains of higher order. Their prefixes end with the nodes of a lattice."""

    def rank(self, states: States, scores: Floats) -> int:
        """The n best labellings within the beam, see `BeamSearch.rank`."""
        sums, (kept, _) = self._work.sums, self._found
        possible = np.where(kept, sums.scores, -np.inf)
        return higher_order.n_best(sums.level, possible, sums.weights, len(scores), states, scores)

    @cached_property
    def _found(self) -> tuple[NDArray, Path]:
        """The nodes that the beam keeps (bool[N]), and the paths."""
        work, sums = self._work, self._work.sums
        kept = np.empty(len(sums.scores), dtype=np.bool_)
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        beam, leaving = tuple(self._beam), _leaving(work)
        kernels.search_lattice(sums.level, sums.scores, sums.weights, leaving, beam, work.starts, kept, *path)
        return kept, path


_shared = Shared(kernels.best_leaving, most=4)


def _leaving(work: Any) -> Floats:
    """Score of the best transition out of each state: float64[1 or T, S]."""
    return kernels.best_leaving(work.transitions) if work.per_position else _shared.of(work.transitions)
