"""Non-linear conjugate gradients after Polak and Ribière (Nocedal & Wright 2006, section 5.2)."""

from typing import Any, Optional

import numpy as np

from ..types import Floats
from .batch import BatchOptimizer, Position
from .objective import Objective
from .vectors import add_scaled, dot, norm


class ConjugateGradient(BatchOptimizer):
    """Conjugate gradients over the full training set, minimizing ``loss + l2·w²``.

    Needs more evaluations than L-BFGS, but keeps one vector where that keeps twice its `memory`.

    l2 (float): Weight of w², without a factor 1/2.
    iterations_per_step (int or "auto"): Iterations in one step, so that what spaCy does once a step does not dominate. "auto"
        for steps of 5 that no evaluation follows, until ten iterations lower the objective by no more than 3 %, and then for 10
        to 30, by the sizes of the training data and of what was last scored.
    tolerance (float): Stop when |gradient| / max(1, |w|) is no larger. 0 for never.
    period (int): How many iterations `delta` looks back.
    delta (float): Stop when `period` iterations improved the objective by no more than this part of its value.
    max_iterations (Optional[int]): Stop after so many, over all steps. None for no limit.
    max_line_search (int): Most evaluations of one line search.
    """

    curvature = 0.1  # conjugacy needs a nearly exact line search

    def new_memory(self) -> "LastDirection":
        return LastDirection()


class LastDirection:
    """The direction last taken, and how much of it the next one keeps."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.direction: Optional[Floats] = None
        self.share = 0.0  # beta
        self.descent = 0.0  # step · slope of the last move

    def __bool__(self) -> bool:
        return self.direction is not None

    def prepare(self, objective: Objective) -> None:
        """Knows no more than its moves tell."""

    def propose(self, gradient: Floats) -> tuple[Floats, float]:
        direction = np.negative(gradient)
        if self.direction is not None:
            add_scaled(direction, self.share, self.direction)
            slope = dot(gradient, direction)
            if slope < 0:
                return direction, self.descent / slope  # eq. 3.60: the same first-order change as last time
            self.clear()
            np.negative(gradient, out=direction)
        return direction, 1.0 / norm(gradient)

    def learn(self, before: Position, after: Position, direction: Floats, step: float) -> None:
        old, new = before.gradient, after.gradient
        overlap = dot(new, old)
        square = dot(new, new)
        # PR+ (eq. 5.45); Powell's restart (eq. 5.52) where successive gradients are far from orthogonal.
        self.share = 0.0 if abs(overlap) >= 0.2 * square else max(0.0, (square - overlap) / dot(old, old))
        self.descent = step * dot(old, direction)
        self.direction = direction

    def to_msg(self) -> list[Any]:
        return [self.direction, self.share, self.descent]

    def from_msg(self, msg: list[Any]) -> None:
        direction, self.share, self.descent = msg
        self.direction = None if direction is None else direction.copy()
