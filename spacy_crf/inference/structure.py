"""The questions that every structure answers about its scores."""

from typing import Optional, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..types import Clamp, Floats, Path

Scores = TypeVar("Scores")


class Structure(Protocol[Scores]):
    """A family of labellings and their sums and maxima. Stateless: everything that matters is in the scores.

    All of them take a batch of B sequences, laid end to end. A clamp leaves out the labellings that use a forbidden
    state. Where no labelling is left the log partition and the best score are -inf, expectations and marginals are 0,
    and paths hold -1. The empty sequence has one labelling, of score 0.
    """

    def log_partition(self, scores: Scores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Log of the sum over all labellings of exp(score): float64[B]."""
        ...

    def expectations(
        self, scores: Scores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores]:
        """Log partitions, and the derivative of their weighted sum with respect to every score."""
        ...

    def viterbi(self, scores: Scores, *, clamp: Optional[Clamp] = None) -> Path:
        """Best labelling of each sequence."""
        ...

    def viterbi_counts(
        self, scores: Scores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores]:
        """`expectations` with max in place of log-sum: best scores, and which scores the best labellings use."""
        ...

    def path_score(self, scores: Scores, states: NDArray[np.int32]) -> Floats:
        """Score of one labelling per sequence: float64[B]."""
        ...

    def path_expectations(
        self,
        scores: Scores,
        states: NDArray[np.int32],
        *,
        weights: Optional[Floats] = None,
        out: Optional[Scores] = None,
    ) -> Scores:
        """Which scores the given labellings use, times the weights, added to `out` if it is given."""
        ...

    def log_probability(self, scores: Scores, states: NDArray[np.int32]) -> Floats:
        """Normalised score of one labelling per sequence: float64[B]."""
        ...

    def only_path(self, clamp: Clamp) -> Optional[NDArray[np.int32]]:
        """The states of the only labelling that a clamp leaves, None if it leaves none or several."""
        ...

    def marginals(self, scores: Scores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each state at each token: float64[T, S]."""
        ...

    def n_best(
        self, scores: Scores, n: int, *, clamp: Optional[Clamp] = None
    ) -> list[list[tuple[float, NDArray[np.int32]]]]:
        """For each sequence the (score, states) of its n best labellings, best first."""
        ...

    def sample(self, scores: Scores, n: int, *, seed: int, clamp: Optional[Clamp] = None) -> NDArray[np.int32]:
        """n labellings drawn from the distribution: int32[n, T]."""
        ...
