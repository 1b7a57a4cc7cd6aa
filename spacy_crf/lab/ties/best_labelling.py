"""Base of the inference methods that search best labellings, and have no sums over labellings of their own."""

import numpy as np

from ...types import ChainScores, Floats
from .belief_propagation import BeliefPropagation
from .method import MAXIMUM, Expected, Inference
from .scores import Problem

CERTAIN = 1e-6  # largest gap, relative to the score, between the score of a best labelling and its upper bound
_SUMS = BeliefPropagation()


class BestLabelling(Inference):
    """Base of the methods that answer one question: which labelling is best. Probabilities, marginals and log partitions are
    those of `BeliefPropagation` with its usual settings."""

    answers = frozenset([MAXIMUM])
    advice = ""  # what else to do about labellings that may not be the best ones
    gap = 0.0  # largest difference so far between an upper bound and the score of the labelling found

    @property
    def remedy(self) -> str:
        return f"Their scores are within {self.gap:.3g} of the best ones.{self.advice}"

    def count(self, scores: Floats, bounds: Floats, certain: float = CERTAIN) -> None:
        """Note the scores of labellings of components (float64[C]) and their upper bounds (float64[C]); a relative gap up to
        `certain` is none."""
        some = scores > -np.inf
        gaps = bounds[some] - scores[some]
        self.n_asked += len(scores)
        self.n_unsettled += int((gaps > certain * (1.0 + abs(scores[some]))).sum())
        self.gap = max(self.gap, float(gaps.max(initial=0.0)))

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        return _SUMS.expectations(problem, weights)

    def marginals(self, problem: Problem) -> Floats:
        return _SUMS.marginals(problem)

    def as_chains(self, problem: Problem) -> ChainScores:
        return _SUMS.as_chains(problem)
