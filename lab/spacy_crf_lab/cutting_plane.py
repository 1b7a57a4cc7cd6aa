"""Max-margin training by cutting planes: a structural SVM with one slack variable (Joachims, Finley & Yu 2009, algorithm 3).

The loss of the corpus is convex in the weights, so each evaluation, value and gradient at v, gives a plane below it:

    loss(w) >= value + gradient·(w - v) = a·w + b

The highest of the planes met so far, plus l2·w², bounds the objective from below. The next plane is found on the way from the
best weights so far to the minimum of the bound (Franc & Sonnenburg 2009): minima of few planes are far away.
"""

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from spacy_crf import checks
from spacy_crf.arrays import of_file
from spacy_crf.errors import announcements, cant_train
from spacy_crf.losses.clamped import MaxMargin
from spacy_crf.optimizers.batch import BatchRun, Position, dot, read_run
from spacy_crf.optimizers.objective import L2_TRIED, CRFOptimizer, Objective, no_l1, renew, setting
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Floats

from .errors import Errors
from .simplex import mixture
from .uses import Observed, expect_known_states

logger = logging.getLogger("spacy.spacy_crf")

# How far to go from the best weights to the minimum of the bound. On 500 sentences of conll2000 (l2 = 100) a gap of 1e-2 took 27
# passes; with 0.1 it took 29, with 0.05 it took 43, and at the minimum itself 65.
_WAY = 0.2
_IDLE = 50  # iterations after which a plane without a share is dropped (Joachims, Finley & Yu, section 5.3)


@dataclass(kw_only=True, eq=False, repr=False)
class CuttingPlane(CRFOptimizer):
    """A structural SVM by cutting planes (Joachims, Finley & Yu 2009), minimizing ``loss + l2·w²`` over the full training set, of
    any structure. Annotation must be complete.

    Each iteration takes one pass over the corpus, in all threads. The larger l2, the fewer it takes.

    l1 (float): 0, as only LBFGS, SGD and AdaGrad set weights to 0.
    l2 (float): Weight of w², without a factor 1/2.
    gap_tolerance (float): Stop when the duality gap is at most this fraction of the objective.
    planes (int): Most planes in memory, each of the size of the weights.
    iterations_per_step (int): Iterations in one step.
    """

    losses: ClassVar = (MaxMargin,)

    l1: float = setting(0.0, no_l1)
    l2: float = setting(1.0, checks.number, fixed=True, tried=L2_TRIED, least=1e-20)
    gap_tolerance: float = setting(1e-3, checks.number)
    planes: int = setting(100, checks.count, fixed=True, least=3, most=10_000)
    iterations_per_step: int = setting(10, checks.count)

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a loss that it does not train with, and for hidden states."""
        super().check_fit(pipe)
        expect_known_states(self, pipe)

    def duality_gap(self, key: str) -> float:
        """Return an upper bound for the distance of a component's objective from its minimum after the last step."""
        run = self._runs[key]
        return run.position.value - run.memory.bound

    def step(self, objective: Objective, *, key: str) -> float:
        """Run `iterations_per_step` iterations, or until the gap is closed. RETURNS (float): The least objective so far."""
        run = self._runs.get(key)
        if renew(objective) or run is None or not run.continues(objective):
            run = self._runs[key] = self._start(objective, key)
        try:
            for _ in range(self.iterations_per_step):
                if run.stop_reason is not None:
                    break
                self._iterate(objective, run, key)
        finally:
            objective.assign(run.position.weights)
        return run.position.value

    def _start(self, objective: Any, key: str) -> BatchRun:
        incomplete: list[bool] = []
        if not hasattr(objective, "evaluate_loss"):
            raise cant_train(
                self, f"the shards of '{key}'", "workers evaluate nothing but the loss", "SGD or a perceptron"
            )
        objective.evaluate_loss(objective.weights(), loss=Observed(incomplete))
        if incomplete:
            raise cant_train(
                self,
                what=f"'{key}'",
                reason="some sequences are not annotated completely",
                fitting="LBFGS, SGD, AdaGrad or a perceptron, or leave these sequences out",
            )
        memory = Planes(len(objective.weights()))
        position = self._cut(objective, memory, objective.weights())
        if not math.isfinite(position.value):
            raise ValueError(Errors.CRF203.format(key=key, optimizer=type(self).__name__))
        return BatchRun(objective.signature, position, memory, deque(maxlen=1))

    def _iterate(self, objective: Objective, run: BatchRun, key: str) -> None:
        memory = run.memory
        # The next plane touches the loss between the best weights and the minimum of the bound
        lowest = memory.minimize(self.l2, self.planes)
        best = run.position.weights
        position = self._cut(objective, memory, best + _WAY * (lowest - best))
        if position.value < run.position.value:
            run.position = position
        run.iteration += 1
        gap = self.duality_gap(key)
        values = key, type(self).__name__, run.iteration, run.position.value, memory.bound, gap
        text = "%s: %s iteration %d primal %.6f dual %.6f gap %.6f"
        if gap <= self.gap_tolerance * abs(run.position.value):
            run.stop_reason = f"the duality gap is within gap_tolerance = {self.gap_tolerance}"
            announcements.info(f"{text} is within gap_tolerance = {self.gap_tolerance}", *values)
        else:
            logger.debug(text, *values)

    def _cut(self, objective: Objective, memory: "Planes", weights: Floats) -> Position:
        """Evaluate the objective, and add the plane that the evaluation gives."""
        loss, gradient = objective.evaluate(weights)
        # loss(w) >= gradient·w + (loss(v) - gradient·v)
        if math.isfinite(loss):
            memory.add(gradient, loss - dot(gradient, weights))
        return Position(weights, loss + self.l2 * dot(weights, weights), gradient)

    def run_from_msg(self, msg: dict[str, Any]) -> BatchRun:
        """The run of `run_to_msg`."""
        return read_run(msg, Planes(0))


class Planes:
    """Planes below the loss, and the share of each in the minimum of their maximum plus l2·w². The first is 0: no loss is less.

    size (int): Number of weights.
    """

    def __init__(self, size: int) -> None:
        self.slopes = [np.zeros(size)]  # a, float64[n] each
        # b, alpha
        self.offsets = np.zeros(1)
        self.shares = np.ones(1)
        self.idle = np.zeros(1)  # iterations without a share
        self.products = np.zeros((1, 1))  # a·a of each two planes
        self.bound = -math.inf

    def add(self, slope: Floats, offset: float) -> None:
        """Add the plane slope·w + offset, without a share."""
        # The dual needs nothing of the planes but their products
        products = np.array([dot(slope, other) for other in [*self.slopes, slope]])
        self.products = np.block([[self.products, products[:-1, np.newaxis]], [products]])
        self.slopes.append(slope)
        self.offsets = np.append(self.offsets, offset)
        self.shares = np.append(self.shares, 0.0)
        self.idle = np.append(self.idle, 0.0)

    def minimize(self, l2: float, most: int) -> Floats:
        """The weights at the minimum of the bound. At most so many planes stay, where room for the next one is left."""
        # Dual: max_alpha alpha·b - |sum alpha a|² / 4 l2, alpha on the simplex; w = -sum alpha a / 2 l2
        self.shares = mixture(self.products / (2.0 * l2), self.offsets, self.shares)
        slope: Any = sum(share * each for share, each in zip(self.shares, self.slopes) if share > 0.0)
        self.bound = float(self.shares @ self.offsets) - dot(slope, slope) / (4.0 * l2)
        self.idle = np.where(self.shares > 0.0, 0.0, self.idle + 1.0)
        keep = self.idle < _IDLE
        keep[0] = True
        if np.count_nonzero(keep) >= most:
            keep[1:][np.argsort(self.idle[1:], kind="stable")[most - 2 :]] = False
        if self.shares[~keep].any():  # a mean of planes is a plane below the loss, and has all of the shares
            offset = float(self.shares @ self.offsets)
            self.slopes = [self.slopes[0]]
            self.offsets = np.zeros(1)
            self.shares = np.zeros(1)
            self.idle = np.zeros(1)
            self.products = np.zeros((1, 1))
            self.add(slope, offset)
            self.shares[1] = 1.0
        elif not keep.all():
            self.slopes = [each for each, stays in zip(self.slopes, keep) if stays]
            self.offsets = self.offsets[keep]
            self.shares = self.shares[keep]
            self.idle = self.idle[keep]
            self.products = self.products[np.ix_(keep, keep)]
        return slope * (-1.0 / (2.0 * l2))

    def to_msg(self) -> list[object]:
        """The planes as a file holds them."""
        return [self.slopes, self.offsets, self.shares, self.idle, self.products, self.bound]

    def from_msg(self, msg: tuple[list[Floats], Floats, Floats, Floats, Floats, float], n: int) -> None:
        """Take over what `to_msg` returned, for n weights."""
        slopes, offsets, shares, idle, products, bound = msg
        self.slopes = [of_file("a plane", each, np.float64, (n,)) for each in slopes]
        size = len(self.slopes)
        checks.expect(size > 0, "the memory", "planes", size, "at least 1")
        self.offsets = of_file("the offsets of planes", offsets, np.float64, (size,))
        self.shares = of_file("the shares of planes", shares, np.float64, (size,))
        self.idle = of_file("the idle times of planes", idle, np.float64, (size,))
        self.products = of_file("products of planes", products, np.float64, (size, size))
        self.bound = float(bound)
