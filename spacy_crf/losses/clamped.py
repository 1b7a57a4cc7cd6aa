"""Losses that are one subtraction: what all labellings reach, less what those that the annotation allows reach.

    loss     = value(scores + cost)        - value(scores + cost, clamp)
    gradient = expectations(scores + cost) - expectations(scores + cost, clamp)

The clamp carries the kind of supervision: one state per token (full annotation), the states that a partial annotation
allows, all hidden states of the gold tag. A new loss is a new row below: its value and its cost.
"""

from dataclasses import dataclass
from typing import ClassVar, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.structure import Scores, Structure
from ..types import Clamp, Floats, SegmentClamp


@dataclass(frozen=True)
class ClampedLoss:
    """Base of the losses in this file.

    maximum (bool): Value is the score of the best labelling; else it is the log partition.
    cost (float): Added at each token to the scores of the states that the annotation does not allow (Hamming cost), so
        that a labelling has to be worse by this much per mistake.
    """

    maximum: ClassVar[bool] = False
    cost: ClassVar[float] = 0.0

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Clamp, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores, NDArray[np.bool_]]:
        """Loss of each sequence and the derivative of their sum.

        structure (Structure): Answers the questions about the scores.
        scores (Scores): Potentials of B sequences.
        clamp (bool[T, S]): States that the annotation allows.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], Scores, bool[B]): Weighted losses; their sum's derivative with respect to every score; and
            which sequences have no labelling that the annotation allows: their loss and derivative are 0.
        """
        weights = np.ones(_batch_size(scores)) if weights is None else np.asarray(weights, dtype=np.float64)
        value = structure.viterbi_counts if self.maximum else structure.expectations
        states = structure.only_path(clamp)
        if self.cost:
            scores = _add_cost(scores, clamp, self.cost)
        if states is None:
            reached, d_clamped = value(scores, clamp=clamp, weights=weights)
        else:
            reached = structure.path_score(scores, states)
        impossible = reached == -np.inf
        weights = np.where(impossible, 0.0, weights)
        best, d_scores = value(scores, weights=weights)
        if states is None:
            _subtract(d_scores, d_clamped)  # an impossible sequence has no expectations: nothing to subtract
        else:
            structure.path_expectations(scores, states, weights=-weights, out=d_scores)
        losses = np.zeros(len(weights))
        np.subtract(best, reached, out=losses, where=~impossible)
        return weights * np.maximum(losses, 0.0), d_scores, impossible


class LogLikelihood(ClampedLoss):
    """Negative log probability of the annotation (of all labellings that it allows, if several)."""


class Perceptron(ClampedLoss):
    """How far the best labelling lies above the annotation (Collins 2002)."""

    maximum = True


class MaxMargin(ClampedLoss):
    """How far the best labelling, its mistakes added, lies above the annotation (Taskar et al. 2003)."""

    maximum = True
    cost = 1.0


class SoftmaxMargin(ClampedLoss):
    """Log-likelihood that asks for a margin of one per mistake (Gimpel & Smith 2010)."""

    cost = 1.0


def _batch_size(scores) -> int:
    return 1 if scores.starts is None else len(scores.starts) - 1


def _add_cost(scores: Scores, clamp: Clamp, cost: float) -> Scores:
    """The first field of all scores has one row per token and one column per state."""
    allowed = clamp.states if isinstance(clamp, SegmentClamp) else clamp
    return scores._replace(**{scores._fields[0]: scores[0] + cost * ~allowed})


def _subtract(scores: Scores, others: Scores) -> None:
    for name in scores._fields:
        if name not in ("listed", "starts"):
            array = getattr(scores, name)
            array -= getattr(others, name)
