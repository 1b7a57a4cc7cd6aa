"""Truncated Newton: each direction solves the Newton equation by linear conjugate gradients, without a matrix of second
derivatives (Nocedal & Wright 2006, algorithm 7.1)."""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from spacy_crf import checks
from spacy_crf.optimizers.batch import BatchOptimizer, BatchRun, Position, add_scaled, dot, norm
from spacy_crf.optimizers.line_search import RayPoint
from spacy_crf.optimizers.objective import Objective
from spacy_crf.types import Floats

from .conjugate_gradient import preconditioner

# Length of the move between two gradients whose difference is taken, relative to max(1, |w|)
_SMALL = 1e-5
# The residual of the Newton equation is at most this share of the gradient, and most iterations of conjugate gradients
_LOOSE = 0.5
_MOST = 250


@dataclass(kw_only=True, eq=False, repr=False)
class Newton(BatchOptimizer):
    """Truncated Newton over the full training set, minimizing ``loss + l2·w²``, for every loss and structure that L-BFGS trains.

    Each product of the second derivatives and a vector takes one evaluation, as it is the difference of two gradients. So Newton
    needs few iterations, but more evaluations than L-BFGS; it keeps six vectors where L-BFGS keeps 2 · `memory`. The settings are
    described at `spacy_crf.LBFGS.v1`.
    """

    def new_memory(self) -> "LastGain":
        """An empty memory, see `BatchOptimizer.new_memory`."""
        return LastGain()


class LastGain:
    """Memory of Newton: whether the latest move succeeded, otherwise the next one is steepest descent; and by which factor it
    shortened the gradient."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget the latest move."""
        self.ratio = 0.0

    def __bool__(self) -> bool:
        return self.ratio > 0.0

    def prepare(self, objective: Objective, key: str) -> None:
        """Nothing to prepare: the memory depends on moves only."""

    def ascent(self, optimizer: Newton, objective: Objective, position: Position) -> Floats:
        """The gradient."""
        return position.gradient

    def search(
        self, optimizer: Newton, objective: Objective, run: BatchRun, gradient: Floats
    ) -> tuple[Optional[RayPoint], int]:
        """Solve the Newton equation if the latest move succeeded, and search along its solution, else along the gradient; see
        `BatchOptimizer.search`."""
        products = 0
        if self.ratio > 0.0:
            direction, products = self._solve(optimizer, objective, run, gradient)
            step = 1.0
        else:
            direction = np.negative(gradient)
            step = 1.0 / norm(gradient)
        point, evaluations = optimizer.search(objective, run, gradient, direction, step)
        return point, products + evaluations

    def _solve(self, optimizer: Newton, objective: Objective, run: BatchRun, gradient: Floats) -> tuple[Floats, int]:
        """Solve H d = -gradient as exactly as the latest gain makes worth while. RETURNS: d, and the number of evaluations."""
        weights = run.weights
        small = _SMALL * max(1.0, norm(run.weights))
        scale = preconditioner(optimizer, objective, weights) if hasattr(objective, "evaluate_loss") else 1.0
        direction = np.zeros_like(gradient)
        residual = gradient.copy()
        scaled = scale * residual
        along = -scaled
        square = dot(residual, scaled)
        enough = min(_LOOSE, self.ratio) * norm(gradient)
        for products in range(1, _MOST + 1):
            length = small / norm(along)
            # H·d = (gradient(w + length · d) - gradient(w)) / length
            image = optimizer.evaluate(objective, weights + length * along).gradient
            image -= gradient
            image /= length
            curvature = dot(along, image)
            if not curvature > 0.0:  # not convex here, or not finite
                return (direction if products > 1 else along), products
            step = square / curvature
            add_scaled(direction, step, along)
            add_scaled(residual, step, image)
            if norm(residual) <= enough:
                break
            scaled = scale * residual
            before = square
            square = dot(residual, scaled)
            # d <- beta d - P r, conjugate to all directions so far
            along *= square / before
            along -= scaled
        return direction, products

    def learn(self, before: Position, after: Position, step: float) -> None:
        """Keep by which factor a move shortened the gradient."""
        self.ratio = norm(after.gradient) / norm(before.gradient)

    def to_msg(self) -> float:
        """The memory as a file holds it."""
        return self.ratio

    def from_msg(self, msg: float, n: int) -> None:
        """Take over what `to_msg` returned."""
        self.ratio = checks.number("the memory", "ratio", msg)
