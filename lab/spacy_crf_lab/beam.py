"""Beam search: at each token the search extends only the best prefixes."""

import math
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.inference.higher_order import HigherOrderWork
from spacy_crf.inference.scaling import ChainWork
from spacy_crf.inference.structure import States, Work
from spacy_crf.kernels import higher_order, log_space
from spacy_crf.types import Floats, Path

from .kernels import beam as kernels


@dataclass(frozen=True)
class Beam:
    """Beam search over chains, segments or chains of higher order, for the setting `decode = "beam"` of components.

    states (int): Number of states that may end a kept prefix; the search keeps one prefix for each.
    margin (float): Largest difference between the scores of the best prefix and of a kept one.
    """

    states: int
    margin: float = math.inf

    def __post_init__(self) -> None:
        checks.count("Beam", "states", self.states)

    def keeps_all(self, n_prefixes: int) -> bool:
        """Whether the beam keeps every one of `n_prefixes` prefixes."""
        return self.states >= n_prefixes and self.margin == math.inf

    def path(self, work: Work) -> Path:
        """Find the best labelling of each sequence within the beam: -1 and -inf where the beam drops every labelling."""
        if not isinstance(work, ChainWork):
            return self.search(work)[1]
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(work.potentials, _leaving(work), astuple(self), *path)
        return path

    def rank(self, work: Any, states: States, scores: Floats) -> int:
        """Find the n best labellings of a single sequence within the beam, see `Structure.rank`."""
        kept, _ = self.search(work)
        if isinstance(work, HigherOrderWork):
            possible = np.where(kept, work.sums.scores, -np.inf)
            return higher_order.n_best(work.sums.level, possible, work.sums.weights, len(scores), states, scores)
        closing = np.where(kept > -np.inf, work.log_potentials.closing, -np.inf)
        within = work.log_potentials._replace(closing=closing)
        return log_space.n_best(within, work.predecessors, len(scores), states, scores)

    def search(self, work: Any) -> tuple[NDArray, Path]:
        """Run the search. RETURNS (float64[T, S], Path): Scores of the prefixes, -inf for dropped ones, and the best path. For
        chains of higher order, whose prefixes end with nodes of a lattice: which nodes the search keeps (bool[N]), and the path.
        """
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        if isinstance(work, HigherOrderWork):
            sums = work.sums
            kept = np.empty(len(sums.scores), dtype=np.bool_)
            lattice = sums.level, sums.scores, sums.weights, _leaving(work)
            kernels.search_lattice(*lattice, astuple(self), work.starts, kept, *path)
        else:
            kept = np.empty(work.log_potentials.opening.shape)
            kernels.search(work.log_potentials, _leaving(work), astuple(self), kept, *path)
        return kept, path


def _leaving(work: Work) -> Floats:
    """Score of the best transition out of each state: float64[1 or T, S]."""
    return work.transitions.max(axis=2, initial=-np.inf)
