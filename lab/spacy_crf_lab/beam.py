"""Beam search: at each token the search extends only the best prefixes."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.inference.higher_order import HigherOrder, HigherOrderWork
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.scaling import ChainWork
from spacy_crf.inference.semi_markov import SemiMarkov
from spacy_crf.inference.structure import States, Structure, Work
from spacy_crf.kernels import higher_order, log_space
from spacy_crf.pipeline.decoding import Decoder, Decoding
from spacy_crf.pipeline.distribution import Distribution
from spacy_crf.pipeline.probabilities import Batch
from spacy_crf.types import Floats, Path

from .errors import Errors
from .kernels import beam as kernels

_SEARCHED = (LinearChain, SemiMarkov, HigherOrder)  # structures with a beam, and their subclasses


@dataclass(frozen=True)
class Beam(Decoder):
    """Beam search over chains, segments or chains of higher order, for the setting `decoder` of components.

    width (int): Most states that may end a kept prefix; the search keeps one prefix for each.
    margin (Optional[float]): Largest distance of a kept prefix from the best one, in log-odds. None for any distance.
    """

    width: int = 8
    margin: Optional[float] = None

    def __post_init__(self) -> None:
        checks.count("Beam", "width", self.width)
        if self.margin is not None:
            checks.number("Beam", "margin", self.margin)

    @property
    def _limits(self) -> tuple[int, float]:
        """The width, and the margin in log-odds (infinity for none), as the kernels take them."""
        return self.width, math.inf if self.margin is None else float(self.margin)

    def searched(self, decoding: Decoding) -> "BeamSearch":
        """RAISES (ValueError): CRF340 for another structure than chains, segments and chains of higher order."""
        structure = decoding.structure
        if not isinstance(structure, _SEARCHED) or structure.graph is not None:
            raise ValueError(Errors.CRF340)
        return within(structure, self)

    def distribution(self, batch: Batch, d: Optional[int]) -> Distribution:
        """The distribution of Doc d of a batch (None for all Docs): the beam changes the search, not the probabilities."""
        return batch.by(batch.scores, d)

    def keeps_all(self, n_prefixes: int) -> bool:
        """Whether the beam keeps every one of `n_prefixes` prefixes."""
        return self.margin is None and self.width >= n_prefixes

    def path(self, work: Work) -> Path:
        """Find the best labelling of each sequence within the beam: -1 and -inf where the beam drops every labelling."""
        # Chains have a kernel that keeps nothing but back pointers
        if not isinstance(work, ChainWork):
            return self.search(work)[1]
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(work.potentials, _leaving(work), self._limits, *path)
        return path

    def rank(self, work: Any, states: States, scores: Floats) -> int:
        """Find the n best labellings of a single sequence within the beam, see `Structure.rank`."""
        kept, _ = self.search(work)
        if isinstance(work, HigherOrderWork):
            # The exact search for n labellings, among the prefixes that the beam has kept
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
            kernels.search_lattice(*lattice, self._limits, work.starts, kept, *path)
        else:
            kept = np.empty(work.log_potentials.opening.shape)
            kernels.search(work.log_potentials, _leaving(work), self._limits, kept, *path)
        return kept, path


def _leaving(work: Work) -> Floats:
    """Score of the best transition out of each state: float64[1 or T, S]."""
    return work.transitions.max(axis=2, initial=-np.inf)


class BeamSearch(Structure):
    """A structure that searches for best labellings within a beam. Where the beam drops every labelling of a sequence, the result
    is the best one of all. Sums run over all labellings.
    """

    exhaustive: Structure  # the structure without the beam
    beam: Beam

    def __reduce__(self) -> tuple:
        return within, (self.exhaustive, self.beam), vars(self)

    def _keeps_all(self, work: Work) -> bool:
        """Whether the search is exact, as it is over a graph."""
        if isinstance(work, HigherOrderWork):  # prefixes end with nodes of a lattice
            n_prefixes = int(np.diff(work.lattice.level.starts).max(initial=0))
        else:
            n_prefixes = work.n_states
        return self.graph is not None or self.beam.keeps_all(n_prefixes)

    def best(self, work: Work) -> Path:
        """Best labelling of each sequence within the beam; of all labellings where the beam keeps them all or drops them all."""
        if self._keeps_all(work):
            return self.exhaustive.best(work)
        path = self.beam.path(work)
        # A narrow beam may end in a dead end: then the exact search answers
        lost = path.scores == -np.inf
        if lost.any():
            part, tokens = work.only(lost)
            path.states[tokens], path.scores[lost] = self.exhaustive.best(part)
        return path

    def rank(self, work: Work, states: States, scores: Floats) -> int:
        """The n best labellings of a sequence, see `Structure.rank`; of all labellings where the beam finds none."""
        found = 0
        if not self._keeps_all(work):
            found = self.beam.rank(work, states, scores)
        return found or self.exhaustive.rank(work, states, scores)


def within(structure: Structure, beam: Beam) -> BeamSearch:
    """A structure that searches within a beam."""
    # The state of the structure as it is: `__init__` would begin a new one
    found = object.__new__(_class(type(structure)))
    vars(found).update(vars(structure), exhaustive=structure, beam=beam)
    return found


@cache
def _class(searched: type[Structure]) -> type[BeamSearch]:
    """The class that answers as `searched`, and searches within a beam."""
    return type(f"{searched.__name__}WithinBeam", (BeamSearch, searched), {})
