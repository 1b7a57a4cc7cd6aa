"""L-BFGS (Nocedal & Wright 2006, section 7.2) and, with l1, OWL-QN (Andrew & Gao 2007)."""

from collections import deque
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np

from .. import checks
from ..types import Floats
from .batch import BatchOptimizer, Position, Run
from .line_search import Point, backtracking
from .objective import Objective, setting, with_settings
from .vectors import add_scaled, dot, norm

# Where nothing else is known, weights move as far as this power of the frequency of what they belong to, which has the more
# curvature, but the less the surer the model is of it. From -0.2 to -0.4 did best, with l1 and without; -0.5 and -1 were worse
# close to the minimum. On wnut17, cora_refs, usaddress and mit_restaurant it saves a tenth to a half of the iterations.
_REACH = -0.3
FAST = 0.03  # share of the objective that an iteration loses far from the minimum
# With l1 no step is tried that is longer than the last move by more. Where rare features have many weights (wnut17), the first
# steps would be thousands of times too long, and sums over labellings so far away take long: 60 iterations took 5.4 s, and 2.3 s
# so; usaddress, cora_refs and mit_restaurant take as many evaluations as without.
GROWTH = 5.0


@with_settings
class LBFGS(BatchOptimizer):
    """Limited-memory BFGS over the full training set, minimizing ``loss + l1·|w| + l2·w²``.

    l1 (float): Weight of |w|. Above 0, OWL-QN sets the weights that do not earn it to exactly 0.
    l2 (float): Weight of w², without a factor 1/2.
    memory (int): How many past moves to infer the curvature from.
    iterations_per_step (int or "auto"): Iterations in one step, so that what spaCy does once a step does not dominate. "auto"
        for steps of 5 that no evaluation follows, until ten iterations lower the objective by no more than 3 %, and then for 10
        to 30, by the sizes of the training data and of what was last scored.
    tolerance (float): Stop when |gradient| / max(1, |w|) is no larger. 0 for never.
    period (int): How many iterations `delta` looks back.
    delta (float): Stop when `period` iterations improved the objective by no more than this part of its value.
    max_iterations (Optional[int]): Stop after so many, over all steps. None for no limit.
    max_line_search (int): Most evaluations of one line search.
    """

    identity: ClassVar = ("l1", "l2", "memory")

    l1: float = setting(0.0, checks.number)
    memory: int = setting(20, checks.count, most=1000)

    def new_memory(self) -> "CurvaturePairs":
        return CurvaturePairs(self.memory)

    def evaluate(self, objective: Objective, weights: Floats) -> Position:
        position = super().evaluate(objective, weights)
        if not self.l1:
            return position
        return position._replace(value=position.value + float(np.sum(self._prices(objective) * np.abs(weights))))

    def steepest_ascent(self, objective: Objective, position: Position) -> Floats:
        return pseudo_gradient(position, self._prices(objective)) if self.l1 else position.gradient

    def _prices(self, objective: Objective) -> Union[float, Floats]:
        """What |w| costs: of a variable that stands for k weights, each of them smaller by 1 / √k, √k times l1."""
        copies = getattr(objective, "copies", None)
        return self.l1 if copies is None else self.l1 * np.sqrt(copies)

    def search(
        self, objective: Objective, run: Run, gradient: Floats, direction: Floats, step: float
    ) -> tuple[Optional[Point], int]:
        if not self.l1:
            return super().search(objective, run, gradient, direction, step)
        # No weight may change its sign, and all move the way that steepest descent would move them (Andrew & Gao, section
        # 3.2). Far from the minimum that saves half of the iterations; close to it, it discards what the curvature says of
        # correlated weights and hardly goes on. There only weights at zero are held to it.
        before = run.position
        against = direction * gradient >= 0
        if not _falls_fast(run.values):
            against &= before.weights == 0
        direction[against] = 0.0
        orthant = np.where(before.weights != 0, before.weights, direction)
        if not dot(gradient, direction) < 0:
            return None, 0
        if run.memory:
            step = min(step, GROWTH * norm(run.memory.pairs[-1].move) / norm(direction))

        def phi(step: float) -> Point:
            weights = step * direction
            weights += before.weights
            weights[weights * orthant <= 0] = 0.0
            after = self.evaluate(objective, weights)
            return Point(step, after.value, dot(gradient, weights - before.weights) / step, after)

        return backtracking(phi, Point(0.0, before.value, 0.0), step, max_evaluations=self.max_line_search)


def _falls_fast(values: Sequence[float]) -> bool:
    """Whether the objective loses more than `FAST` of its value in an iteration, in the mean of the last ones."""
    return values[0] - values[-1] > FAST * (len(values) - 1) * abs(values[-1])


def pseudo_gradient(position: Position, l1: Union[float, Floats]) -> Floats:
    """The one-sided derivative of loss + l1·|w| + l2·w² on the side that descends, 0 where neither does (eq. 4)."""
    weights, _, gradient = position
    pseudo = l1 * np.sign(weights)
    pseudo += gradient
    zero = weights == 0
    at_zero = gradient[zero]
    pseudo[zero] = np.sign(at_zero) * np.maximum(np.abs(at_zero) - np.broadcast_to(l1, weights.shape)[zero], 0.0)
    return pseudo


class CurvaturePair(NamedTuple):
    move: Floats  # [n] s: difference of weights
    change: Floats  # [n] y: difference of gradients
    curvature: float  # s·y


class CurvaturePairs:
    """The inverse Hessian as the last few moves show it, and where they don't, the frequencies of what weights belong to."""

    def __init__(self, size: int) -> None:
        self.pairs: deque[CurvaturePair] = deque(maxlen=size)  # oldest first
        self._reach: Optional[Floats] = None  # [n] how far each weight is to go, None where that is not known

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def prepare(self, objective: Objective) -> None:
        frequencies = getattr(objective, "frequencies", None)
        if frequencies is not None and self._reach is None:
            self._reach = (1.0 + frequencies) ** _REACH

    def propose(self, gradient: Floats) -> tuple[Floats, float]:
        """The two-loop recursion (Nocedal & Wright, algorithm 7.4) on -gradient, where H0 is diagonal."""
        direction, reach = np.negative(gradient), 1.0 if self._reach is None else self._reach
        if not self.pairs:
            direction *= reach
            return direction, 1.0 / norm(direction)
        shares = []
        for move, change, curvature in reversed(self.pairs):
            share = dot(move, direction) / curvature
            add_scaled(direction, -share, change)
            shares.append(share)
        newest = self.pairs[-1]
        direction *= reach
        direction *= newest.curvature / dot(newest.change, reach * newest.change)
        for (move, change, curvature), share in zip(self.pairs, reversed(shares)):
            add_scaled(direction, share - dot(change, direction) / curvature, move)
        return direction, 1.0

    def learn(self, before: Position, after: Position, direction: Floats, step: float) -> None:
        if len(self.pairs) == self.pairs.maxlen:
            oldest = self.pairs.popleft()
            move, change = oldest.move, oldest.change  # its arrays are used again
        else:
            move, change = np.empty_like(before.weights), np.empty_like(before.weights)
        np.subtract(after.weights, before.weights, out=move)
        np.subtract(after.gradient, before.gradient, out=change)
        curvature = dot(move, change)
        if curvature > np.finfo(np.float64).eps * norm(move) * norm(change):  # else no convex model fits the move
            self.pairs.append(CurvaturePair(move, change, curvature))

    def clear(self) -> None:
        self.pairs.clear()

    def to_msg(self) -> list[Any]:
        return [list(pair) for pair in self.pairs]

    def from_msg(self, msg: list[Any]) -> None:
        self.pairs.extend(CurvaturePair(move.copy(), change.copy(), curvature) for move, change, curvature in msg)
