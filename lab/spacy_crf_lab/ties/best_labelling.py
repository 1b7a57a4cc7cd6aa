"""Base of the inference methods that search best labellings, and have no sums over labellings of their own."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.inference.structure import States
from spacy_crf.types import ChainScores, Floats

from ..errors import Errors
from ..kernels.max_flow import Agreeing
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
        """How far from the best ones labellings may be, and what helps."""
        return f"Their scores are within {self.gap:.3g} of the best ones.{self.advice}"

    def count(self, scores: Floats, bounds: Floats, certain: float = CERTAIN) -> None:
        """Note the scores of labellings of components (float64[C]) and their upper bounds (float64[C]); a relative gap up to
        `certain` is none."""
        some = scores > -np.inf
        gaps = bounds[some] - scores[some]
        self.n_asked += len(scores)
        self.n_unconverged += int((gaps > certain * (1.0 + abs(scores[some]))).sum())
        self.gap = max(self.gap, float(gaps.max(initial=0.0)))

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        """Log partitions and derivatives by belief propagation."""
        return _SUMS.expectations(problem, weights)

    def marginals(self, problem: Problem) -> Floats:
        """Marginals by belief propagation."""
        return _SUMS.marginals(problem)

    def as_chains(self, problem: Problem) -> ChainScores:
        """Chains by belief propagation."""
        return _SUMS.as_chains(problem)


class LabelScores(NamedTuple):
    """The scores of a problem by K columns: the labels of its ties where chains have no transitions, else its states. Transitions
    are ties then."""

    graph: Agreeing
    state_of: NDArray[np.int64]  # [T, K] the best state of each column
    label_of: NDArray[np.int64]  # [K] of each column
    n_ties: int  # number of ties; those behind them are transitions

    @classmethod
    def of(cls, problem: Problem) -> "LabelScores":
        """RAISES (ValueError): CRF040 for rewards of groups below 0."""
        own = problem.own
        label_of = problem.label_of
        transitions = np.asarray(problem.chains.transitions)
        tables = problem.tables
        source = problem.source
        target = problem.target
        kind = problem.kind
        columns = np.arange(problem.n_labels)
        if transitions.any():
            columns = label_of
            state_of = np.broadcast_to(np.arange(len(label_of)), own.shape)
            # Tokens with a token before them in their sequence
            later = np.setdiff1d(np.arange(len(own)), problem.starts)
            steps = transitions[later] if transitions.ndim == 3 else transitions[np.newaxis]
            of_steps = len(tables) + (np.arange(len(later)) if transitions.ndim == 3 else np.zeros_like(later))
            tables = np.concatenate([tables[:, label_of][:, :, label_of], steps])
            source = np.append(source, later - 1)
            target = np.append(target, later)
            kind = np.append(kind, of_steps)
        else:
            # Without transitions, only the best state of each label can be part of a best labelling
            of_states = np.where(label_of == np.arange(problem.n_labels)[:, np.newaxis], 0.0, -np.inf)  # [L, S]
            state_of = np.stack([(own + of_label).argmax(axis=1) for of_label in of_states], axis=1)
            by_label = np.take_along_axis(own, state_of, axis=1)
            own = np.where(label_of[state_of] == np.arange(problem.n_labels), by_label, -np.inf)
        of_labels = problem.tables.diagonal(axis1=1, axis2=2)[problem.group_kind]
        rewards = np.ascontiguousarray(of_labels[:, columns])
        if (rewards < 0.0).any():
            raise ValueError(Errors.CRF040.format(reason=f"a group has the reward {rewards.min():.3g}, below 0"))
        ties = (source, target, kind), np.ascontiguousarray(tables)
        graph = Agreeing(np.ascontiguousarray(own), *ties[0], ties[1], problem.members, problem.group_starts, rewards)
        return cls(graph, state_of, columns, len(problem.source))

    def states(self, labels: NDArray[np.int64]) -> States:
        """The states (int32[T]) of labels (int64[T])."""
        return np.take_along_axis(self.state_of, labels[:, np.newaxis], axis=1)[:, 0].astype(np.int32)
