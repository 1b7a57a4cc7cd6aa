"""Non-linear conjugate gradients after Polak and Ribière (Nocedal & Wright 2006, section 5.2)."""

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from spacy_crf import checks
from spacy_crf.arrays import of_file
from spacy_crf.errors import cant_train
from spacy_crf.optimizers.batch import BatchOptimizer, BatchRun, Position, add_scaled, dot, norm
from spacy_crf.optimizers.line_search import RayPoint
from spacy_crf.optimizers.objective import Objective, setting
from spacy_crf.types import Floats

from .uses import Variances

_CURVATURE = 0.1  # c2 of the strong Wolfe conditions: conjugacy needs a nearly exact line search
# Iterations after which a preconditioner is renewed, and the relative gain of an iteration below which mixed ones end
_RENEWED = 10
_SLOW = 0.01
# A preconditioner is this power of the curvatures. On 500 sentences of conll2000 to within 1e-4 of the minimum, -0.5 took 153
# evaluations and -1 took 304; mixed 156 and 200; in Newton 150 and 277. Without it they were 158, and those of L-BFGS 75.
_POWER = -0.5
# Least curvature of a weight, as a share of the mean: l2 may be 0, and a weight whose tokens are certain has next to none
_LEAST = 0.01


@dataclass(kw_only=True, eq=False, repr=False)
class ConjugateGradient(BatchOptimizer):
    """Conjugate gradients over the full training set, minimizing ``loss + l2·w²``.

    Conjugate gradients need more evaluations than L-BFGS, but keep one vector where L-BFGS keeps 2 · `memory` vectors. The
    settings not named here are described at `spacy_crf.LBFGS.v1`.

    preconditioner (str): "diagonal" scales gradients by estimates of the second derivatives of each weight, renewed every 10
        iterations (Sha & Pereira 2003); or "none".
    mixed (bool): Drop the preconditioner, for good, where an iteration lowers the objective by less than 1 %: it helps far from
        the minimum.
    """

    preconditioner: str = setting("none", checks.one_of, fixed=True, allowed=("none", "diagonal"))
    mixed: bool = setting(False, checks.flag, fixed=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = not self.mixed or self.preconditioner != "none"
        checks.expect(fits, type(self).__name__, "mixed", self.mixed, 'false, or preconditioner must be "diagonal"')

    def new_memory(self) -> "LastDirection":
        """An empty memory, see `BatchOptimizer.new_memory`."""
        return LastDirection(self)


def preconditioner(optimizer: BatchOptimizer, objective: Any, weights: Floats) -> Floats:
    """Factors of the gradient (float64[n]) from estimates of the second derivative by each weight."""
    curvatures = np.abs(objective.evaluate_loss(weights, loss=Variances())[1])  # features may have negative values
    if hasattr(objective, "copies"):  # a variable is used √k times where each of its k weights is used once
        curvatures *= np.sqrt(objective.copies)
    curvatures += 2.0 * (optimizer.l2 + getattr(objective, "strength", 0.0))
    return np.maximum(curvatures, _LEAST * curvatures.mean() if curvatures.any() else 1.0) ** _POWER


class LastDirection:
    """Memory of conjugate gradients: the latest direction, and the share of it that the next direction keeps."""

    def __init__(self, optimizer: ConjugateGradient) -> None:
        self._optimizer = optimizer
        self.scale: Optional[Floats] = None  # [n] the preconditioner: factors of the gradient; None without one
        self.is_plain = False  # whether the preconditioner has been dropped for good
        self._proposed: Optional[Floats] = None  # [n] the direction of the move that is not learned yet
        self.clear()

    def clear(self) -> None:
        """Forget the latest direction, so that the next one is the steepest descent."""
        self.direction: Optional[Floats] = None
        self.share = 0.0  # beta
        self.descent = 0.0  # step · slope of the last move
        if self.is_plain:
            self.scale = None

    def __bool__(self) -> bool:
        return self.direction is not None

    def prepare(self, objective: Objective, key: str) -> None:
        """RAISES (ValueError): CRF347 for a preconditioner if the objective evaluates nothing but its loss."""
        if self._optimizer.preconditioner != "none" and not hasattr(objective, "evaluate_loss"):
            raise cant_train(
                self._optimizer,
                what=f"the shards of '{key}' with a preconditioner",
                reason="workers evaluate nothing but the loss",
                fitting='LBFGS, or preconditioner = "none"',
            )

    def ascent(self, optimizer: ConjugateGradient, objective: Objective, position: Position) -> Floats:
        """The gradient."""
        return position.gradient

    def search(
        self, optimizer: ConjugateGradient, objective: Objective, run: BatchRun, gradient: Floats
    ) -> tuple[Optional[RayPoint], int]:
        """Search along the next direction, after a new preconditioner where one is due; see `BatchOptimizer.search`."""
        direction, step = self.propose(gradient)
        self._proposed = direction
        if optimizer.preconditioner != "none" and not self.is_plain:
            # Near the minimum the preconditioner, which is an estimate, disturbs conjugacy
            if optimizer.mixed and run.iteration and run.values[-2] - run.values[-1] < _SLOW * abs(run.values[-1]):
                self.is_plain = True
                self.clear()
                direction, step = self.propose(gradient)
            elif run.iteration % _RENEWED == 0:
                self.scale = preconditioner(optimizer, objective, run.weights)
                direction, step = self.propose(gradient)
        return optimizer.search(objective, run, gradient, direction, step, curvature=_CURVATURE)

    def _scaled(self, gradient: Floats) -> Floats:
        return gradient if self.scale is None else self.scale * gradient

    def propose(self, gradient: Floats) -> tuple[Floats, float]:
        """The next direction (float64[n]), -P·gradient + beta · the latest one, and the first step to try along it."""
        direction = np.negative(self._scaled(gradient))
        if self.direction is not None:
            add_scaled(direction, self.share, self.direction)
            slope = dot(gradient, direction)
            if slope < 0:
                return direction, self.descent / slope  # eq. 3.60: the same first-order change as last time
            self.clear()
            direction = np.negative(self._scaled(gradient))
        return direction, 1.0 / norm(gradient) if self.scale is None else 1.0

    def learn(self, before: Position, after: Position, step: float) -> None:
        """Compute beta from the gradients before and after a move."""
        old = before.gradient
        new = after.gradient
        scaled = self._scaled(new)
        overlap = dot(scaled, old)
        square = dot(scaled, new)
        # PR+ (eq. 5.45); Powell's restart (eq. 5.52) where successive gradients are far from orthogonal.
        far = abs(overlap) >= 0.2 * square
        self.share = 0.0 if far else max(0.0, (square - overlap) / dot(old, self._scaled(old)))
        direction: Any = self._proposed  # by the latest search
        self.descent = step * dot(old, direction)
        self.direction = direction

    def to_msg(self) -> list[object]:
        """The memory as a file holds it."""
        return [self.direction, self.share, self.descent, self.scale, self.is_plain]

    def from_msg(self, msg: tuple[Optional[Floats], float, float, Optional[Floats], bool], n: int) -> None:
        """Take over what `to_msg` returned, for n weights."""
        direction, share, descent, scale, is_plain = msg
        self.share = float(share)
        self.descent = float(descent)
        self.is_plain = checks.flag("the memory", "is_plain", is_plain)
        self.direction = None if direction is None else of_file("the latest direction", direction, np.float64, (n,))
        self.scale = None if scale is None else of_file("the preconditioner", scale, np.float64, (n,))
