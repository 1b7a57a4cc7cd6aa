"""L-BFGS (Nocedal & Wright 2006, section 7.2), with l1 OWL-QN (Andrew & Gao 2007)."""

from collections import deque
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from .. import checks
from ..arrays import of_file
from ..types import Bools, Floats
from .batch import BatchOptimizer, BatchRun, Position, add_scaled, dot, norm
from .line_search import RayPoint, backtracking
from .objective import Objective, setting

# First steps of weights are proportional to this power of their features' frequencies: the curvature grows with the frequency,
# but falls as the model becomes certain. From -0.2 to -0.4 did best, with l1 and without; -0.5 and -1 were worse close to the
# minimum. On wnut17, cora_refs, usaddress and mit_restaurant it saves a tenth to a half of the iterations.
_REACH = -0.3
FAST = 0.03  # average gain per iteration far from the minimum, as a share of the objective
# With l1 no step is longer than the last move by more than this factor. If rare features have many weights (wnut17), the first
# steps would be thousands of times too long, and losses so far away take long to compute: 60 iterations took 5.4 s, and 2.3 s
# with the bound; usaddress, cora_refs and mit_restaurant take as many evaluations as without.
GROWTH = 5.0


@dataclass(kw_only=True, eq=False, repr=False)
class LBFGS(BatchOptimizer):
    """Limited-memory BFGS over the full training set, minimizing ``loss + l1·|w| + l2·w²``.

    l1 (float): Weight of |w|. Above 0, OWL-QN sets weights to exactly 0 where they lower the loss less than this cost.
    l2 (float): Weight of w², without a factor 1/2.
    memory (int): Number of past moves from which the curvature is inferred.
    iterations_per_step (int or "auto"): Iterations in one step, so that spaCy's work after each step takes a small share of the
        time. "auto": steps of 5 without evaluation until ten iterations lower the objective by at most 3 %, then steps of 10 to
        30, by the sizes of the training data and of the data last scored.
    tolerance (float): Stop when |gradient| / max(1, |w|) is at most this. 0 for never.
    period (int): Number of iterations over which `delta` is measured.
    delta (float): Stop when `period` iterations lower the objective by no more than this share of its value.
    max_iterations (Optional[int]): Stop after this many iterations in all steps together. None for no limit.
    max_line_search (int): Most evaluations in one line search.
    """

    l1: float = setting(0.0, checks.number, fixed=True, tried=(0.0, 0.05))
    memory: int = setting(20, checks.count, fixed=True, most=1000)

    def new_memory(self) -> "CurvaturePairs":
        """An empty memory of moves."""
        return CurvaturePairs(self.memory)

    def evaluate(self, objective: Objective, weights: Floats) -> Position:
        """Evaluate the objective, loss + l1·|w| + l2·w². The gradient is that of loss + l2·w²."""
        position = super().evaluate(objective, weights)
        if not self.l1:
            return position
        cost = float(np.sum(self.prices(objective) * np.abs(weights)))
        return position._replace(value=position.value + cost)

    def prices(self, objective: Objective) -> Union[float, Floats]:
        """The cost of |w|: l1, or √k · l1 for a variable that stands for k weights, each of which is w / √k."""
        copies = getattr(objective, "copies", None)
        return self.l1 if copies is None else self.l1 * np.sqrt(copies)


def pseudo_gradient(position: Position, l1: Union[float, Floats]) -> Floats:
    """The gradient of loss + l1·|w| + l2·w². At w = 0 it is the one-sided derivative on the side where the function descends,
    and 0 if the function descends on neither side (eq. 4).

    position (Position): Weights with the gradient of loss + l2·w².
    l1 (float or float64[n]): Cost of |w|.
    RETURNS (float64[n]): The pseudo-gradient.
    """
    weights, _, gradient = position
    pseudo = l1 * np.sign(weights)
    pseudo += gradient
    is_zero = weights == 0
    at_zero = gradient[is_zero]
    l1_at_zero = np.broadcast_to(l1, weights.shape)[is_zero]
    pseudo[is_zero] = np.sign(at_zero) * np.maximum(np.abs(at_zero) - l1_at_zero, 0.0)
    return pseudo


class CurvaturePairs:
    """Memory of L-BFGS, which infers the inverse Hessian from the last moves. Without moves it is a diagonal matrix that
    depends on the frequencies of features.

    size (int): How many moves to keep.
    """

    def __init__(self, size: int) -> None:
        # Oldest first: s (float64[n]) the difference of weights, y (float64[n]) the difference of gradients, and s·y
        self.pairs: deque[tuple[Floats, Floats, float]] = deque(maxlen=size)
        self._reach: Optional[Floats] = None  # [n] relative first step of each weight, None if unknown

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def prepare(self, objective: Objective, key: str) -> None:
        """Take over the frequencies of features from the first objective. `key` is not used."""
        frequencies = getattr(objective, "frequencies", None)
        if frequencies is not None and self._reach is None:
            self._reach = (1.0 + frequencies) ** _REACH

    def ascent(self, optimizer: LBFGS, objective: Objective, position: Position) -> Floats:
        """The gradient of an objective at a position; the pseudo-gradient if the optimizer has l1."""
        return pseudo_gradient(position, optimizer.prices(objective)) if optimizer.l1 else position.gradient

    def search(
        self, optimizer: LBFGS, objective: Objective, run: BatchRun, gradient: Floats
    ) -> tuple[Optional[RayPoint], int]:
        """Search along the direction that the curvature gives.

        optimizer (LBFGS): The optimizer, with its settings.
        objective (Objective): The function.
        run (BatchRun): The state, at whose `position` the search begins.
        gradient (float64[n]): The result of `ascent` there.
        RETURNS (tuple[Optional[RayPoint], int]): As `BatchOptimizer.search`.
        """
        if optimizer.l1:
            return self.search_in_orthant(optimizer, objective, run, gradient, np.True_)
        direction, step = self.propose(gradient)
        return optimizer.search(objective, run, gradient, direction, step)

    def search_in_orthant(
        self,
        optimizer: LBFGS,
        objective: Objective,
        run: BatchRun,
        gradient: Floats,
        stays: Union[np.bool_, Bools],
    ) -> tuple[Optional[RayPoint], int]:
        """Search by ever shorter steps, in which weights that would change their sign stop at 0.

        optimizer (LBFGS): The optimizer, with its settings.
        objective (Objective): The function.
        run (BatchRun): The state, at whose `position` the search begins.
        gradient (float64[n]): The result of `ascent` there.
        stays (bool or bool[n]): Which weights must not change their sign.
        RETURNS (tuple[Optional[RayPoint], int]): As `BatchOptimizer.search`.
        """
        direction, step = self.propose(gradient)
        # No weight changes its sign, and all weights move in the direction of steepest descent (Andrew & Gao, section 3.2). Far
        # from the minimum that saves half of the iterations; close to it, it discards the curvature of correlated weights and
        # hardly advances: there it applies only to weights at zero.
        before = run.position
        against = direction * gradient >= 0
        falls_fast = run.values[0] - run.values[-1] > FAST * (len(run.values) - 1) * abs(run.values[-1])
        if not falls_fast or not optimizer.l1:
            against &= before.weights == 0
        direction[against & stays] = 0.0
        orthant = np.where(before.weights != 0, before.weights, direction)  # its signs are those that weights may have
        if not dot(gradient, direction) < 0:
            return None, 0
        if self.pairs:
            step = min(step, GROWTH * norm(self.pairs[-1][0]) / norm(direction))

        def phi(step: float) -> RayPoint:
            """The objective along the direction, projected onto the orthant."""
            weights = step * direction
            weights += before.weights
            weights[(weights * orthant <= 0) & stays] = 0.0
            after = optimizer.evaluate(objective, weights)
            return RayPoint(step, after.value, dot(gradient, weights - before.weights) / step, after)

        return backtracking(phi, RayPoint(0.0, before.value, 0.0), step, max_evaluations=optimizer.max_line_search)

    def propose(self, gradient: Floats) -> tuple[Floats, float]:
        """The direction -H · gradient, by the two-loop recursion (Nocedal & Wright, algorithm 7.4), where H0 is diagonal.

        gradient (float64[n]): The gradient at the present position.
        RETURNS (tuple[float64[n], float]): The direction, and the first step to try along it.
        """
        direction = np.negative(gradient)
        reach = 1.0 if self._reach is None else self._reach
        if not self.pairs:
            direction *= reach
            return direction, 1.0 / norm(direction)
        shares = []
        for move, change, curvature in reversed(self.pairs):
            share = dot(move, direction) / curvature
            add_scaled(direction, -share, change)
            shares.append(share)
        _, newest, curvature = self.pairs[-1]
        direction *= reach
        direction *= curvature / dot(newest, reach * newest)
        for (move, change, curvature), share in zip(self.pairs, reversed(shares)):
            add_scaled(direction, share - dot(change, direction) / curvature, move)
        return direction, 1.0

    def learn(self, before: Position, after: Position, step: float) -> None:
        """Keep the move between two positions if it fits a convex function. `step` is not used."""
        move = after.weights - before.weights
        change = after.gradient - before.gradient
        curvature = dot(move, change)
        # Otherwise the Hessian would not be positive definite along the move
        if curvature > np.finfo(np.float64).eps * norm(move) * norm(change):
            self.pairs.append((move, change, curvature))

    def clear(self) -> None:
        """Forget all moves."""
        self.pairs.clear()

    def to_msg(self) -> list[object]:
        """RETURNS (list): The pairs, for `from_msg`."""
        return [list(pair) for pair in self.pairs]

    def from_msg(self, msg: list[Any], n: int) -> None:
        """Take over the pairs that `to_msg` returned, of n weights. RAISES: An error of any class if they are damaged."""
        for move, change, curvature in msg:
            move = of_file("a move of the memory", move, np.float64, (n,))
            change = of_file("a move of the memory", change, np.float64, (n,))
            self.pairs.append((move, change, checks.number("the memory", "curvature", curvature)))
