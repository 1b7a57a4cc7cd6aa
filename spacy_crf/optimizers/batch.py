"""The loop of optimizers that evaluate the whole objective: propose a direction, search along it, learn the curvature, stop or
continue.

The objective is ``loss + l1·|w| + l2·w²``; each iteration of a smooth objective usually needs one evaluation.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional, Union

import numpy as np

from .. import checks
from ..arrays import of_file
from ..errors import Errors, Warnings, announcements
from ..progress import Bar
from ..types import Floats
from .anchor import Anchored
from .line_search import RayPoint, strong_wolfe
from .objective import L2_TRIED, CRFOptimizer, Objective, no_l1, renew, setting

logger = logging.getLogger("spacy.spacy_crf")
CURVATURE = 0.9  # c2 of the strong Wolfe conditions
SILENCE = 10.0  # seconds between log messages of long steps; a terminal shows a bar
# Share of the time that evaluating the model after a step may take: with "auto", a step has 10 to 30 iterations accordingly. Far
# from the minimum of the objective no model is evaluated, and a step has 5.
OVERHEAD = 0.15
EARLY = 5
FEWEST = 10
MOST = 30
# The objective is near its minimum if the last ten iterations lower it by no more than this share each on average: 3 % in ten. If
# each ten iterations gain no more than 5/8 of the ten before, it is then within 5 % of the minimum, as on the sets of
# docs/benchmarks.md; with 5 % in ten it would have been 6 % above on mit_restaurant.
NEAR = 0.003
WINDOW = 10
# Largest difference between weights and their float32 values in a model
ROUNDED = 1e-6
TINY = float(np.finfo(np.float32).tiny)
PRECISION = float(np.finfo(np.float64).eps)  # smaller relative changes of an objective count as no change


class Position(NamedTuple):
    """Weights with the value of the objective."""

    weights: Floats  # [n]
    value: float  # loss + l1·|w| + l2·w², inf where it or its gradient is not finite
    gradient: Floats  # [n] gradient of loss + l2·w² alone: |w| has none at zero


class Progress(NamedTuple):
    """One iteration, as the callback `BatchOptimizer.on_iteration` receives it."""

    key: str
    iteration: int
    objective: float
    gradient_norm: float
    step: float
    evaluations: int


@dataclass
class BatchRun:
    """State of the minimization of one component's objective, kept from step to step."""

    signature: Hashable
    position: Position
    memory: Any  # how the algorithm searches, and the curvature it has learned, see `BatchOptimizer.new_memory`
    values: deque[float]  # objective at the last `period` + 1 positions
    iteration: int = 0
    stop_reason: Optional[str] = None
    gradient_norm: float = math.nan
    is_near_minimum: bool = False

    @property
    def weights(self) -> Floats:
        """RETURNS (float64[n]): The weights at the position."""
        return self.position.weights

    def to_msg(self) -> dict[str, object]:
        """The state in a form that msgpack can write and `BatchOptimizer.run_from_msg` can read."""
        converted = {"position": list(self.position), "memory": self.memory.to_msg(), "values": list(self.values)}
        return {**vars(self), **converted}

    def continues(self, objective: Objective) -> bool:
        """Whether an objective has the function and the weights of this run, apart from the model's rounding to float32."""
        if self.signature != objective.signature:
            return False
        weights = objective.weights()
        ours = self.position.weights
        return len(weights) == len(ours) and np.allclose(weights, ours, rtol=ROUNDED, atol=TINY)


def _count_or_auto(owner: str, name: str, value: Union[int, str]) -> Union[int, str]:
    """Check a setting that is a positive number, or "auto"."""
    return value if value == "auto" else checks.count(owner, name, value)


@dataclass(kw_only=True, eq=False, repr=False)
class BatchOptimizer(CRFOptimizer):
    """Minimizes an objective over the full training set, `iterations_per_step` iterations at a time."""

    l1: float = setting(0.0, no_l1)
    l2: float = setting(1.0, checks.number, fixed=True, tried=L2_TRIED)
    iterations_per_step: Union[int, str] = setting(10, _count_or_auto)
    tolerance: float = setting(1e-5, checks.number)
    period: int = setting(10, checks.count, most=1_000_000)
    delta: float = setting(1e-5, checks.number)
    max_iterations: Optional[int] = setting(None, checks.count)
    max_line_search: int = setting(20, checks.count)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_iteration: Optional[Callable[[Progress], None]] = None
        self._warned: set[str] = set()
        self._last_said = 0.0
        self._bar = Bar("", "iteration")  # for the current step

    def new_memory(self) -> Any:
        """An empty memory of the curvature, by which the algorithm searches.

        RETURNS: An object that is true unless it is empty, and has these methods:
            `prepare(objective, key)`: Called at the beginning of each step.
            `ascent(optimizer, objective, position)`: The gradient (float64[n], not to be changed), or a subgradient where the
                objective has no gradient.
            `search(optimizer, objective, run, ascent)`: The result of `search` of this class along the direction that the memory
                proposes: that of steepest descent while the memory is empty.
            `learn(before, after, step)`: Takes note of a move between two positions.
            `clear()`: Empties the memory.
            `to_msg()`: The content, for msgpack.
            `from_msg(msg, n)`: Takes over the content, and checks that its arrays are of n weights.
        """
        raise NotImplementedError

    def step(self, objective: Objective, *, key: str) -> float:
        """Run `iterations_per_step` iterations, or until a stop rule applies; later steps return the final value.

        Whatever happens meanwhile, even a KeyboardInterrupt, the model gets the best weights found so far.

        objective (Objective): The component's loss.
        key (str): The component's name.
        RETURNS (float): The objective with its regularizer.
        """
        run = self._runs.get(key)
        if run is None or not run.continues(objective):
            if run is not None and key not in self._warned and not isinstance(objective, Anchored):
                self._warned.add(key)
                logger.warning(Warnings.CRFW201.format(key=key, optimizer=type(self).__name__))
            run = self._runs[key] = self._start(objective, key)
        elif renew(objective):
            self._renew(objective, run, key)
        if run.stop_reason is None:
            run.memory.prepare(objective, key)
            try:
                self._last_said = time.monotonic()
                self._step(objective, run, key)
            finally:
                objective.assign(run.position.weights)
        return run.position.value

    def _step(self, objective: Objective, run: BatchRun, key: str) -> None:
        """Run the iterations of a step, with a progress bar in a terminal."""
        n_iterations = self.iterations_per_step
        if isinstance(n_iterations, str):  # "auto"
            # So many that evaluating the model takes the share OVERHEAD of the time
            wanted = math.ceil((1 / OVERHEAD - 1) * getattr(objective, "passes_per_evaluation", 0.0))
            n_iterations = min(max(FEWEST, wanted), MOST) if run.is_near_minimum else EARLY
        with Bar(f"{key}: {type(self).__name__}", "iteration", n_iterations) as self._bar:
            for done in range(1, n_iterations + 1):
                self._iterate(objective, run, key)
                if run.stop_reason is not None:
                    break
                self._bar.show(done, f"objective {run.position.value:,.1f}")

    def _renew(self, objective: Objective, run: BatchRun, key: str) -> None:
        """Evaluate an objective that may have changed. If its value has changed, a run that has stopped continues."""
        before = run.position.value
        run.position = self.evaluate(objective, run.position.weights)
        after = run.position.value
        if run.stop_reason is None or abs(after - before) > self.delta * max(abs(after), PRECISION):
            run.values = deque([after], maxlen=self.period + 1)
            run.stop_reason = None
            self._judge(objective, run, key)

    def resume(self, objective: Objective, data: bytes, *, key: str) -> int:
        """Continue training from a checkpoint, as `CRFOptimizer.resume`. The present stop rules apply to the checkpoint."""
        n_iterations = super().resume(objective, data, key=key)
        run = self._runs[key]
        if run.stop_reason is not None:  # by stop rules that may have changed since
            run.stop_reason = None
            self._judge(objective, run, key)
        return n_iterations

    def is_worth_evaluating(self, key: str) -> bool:
        """Whether the model of a component (`key`) should be evaluated now: with "auto", only near the minimum of its
        objective.
        """
        return self.iterations_per_step != "auto" or key not in self._runs or self._runs[key].is_near_minimum

    def _start(self, objective: Objective, key: str) -> BatchRun:
        """Begin a run at the weights of the model. RAISES (ValueError): CRF203 if the objective is not finite there."""
        renew(objective)
        position = self.evaluate(objective, objective.weights())
        if not math.isfinite(position.value):
            raise ValueError(Errors.CRF203.format(key=key, optimizer=type(self).__name__))
        values = deque([position.value], maxlen=self.period + 1)
        run = BatchRun(objective.signature, position, self.new_memory(), values)
        # Without a regularizer there may be no minimum: only scores on dev data show when to stop
        run.is_near_minimum = not self.l2 and not self.l1
        self._judge(objective, run, key)
        return run

    def _iterate(self, objective: Objective, run: BatchRun, key: str) -> None:
        """Make one iteration: search along a direction, move to the point, learn from the move, and apply the stop rules."""
        before = run.position
        ascent = run.memory.ascent(self, objective, before)
        evaluations = 0
        while True:
            point, tries = run.memory.search(self, objective, run, ascent)
            evaluations += tries
            if point is not None:
                break
            if not run.memory:  # not even along steepest descent
                self._stop(run, key, "the line search found no lower point")
                return
            run.memory.clear()
        # Each statement leaves a consistent state, so training can continue after an interrupt between two of them.
        run.memory.learn(before, point.where, point.step)
        run.position = point.where
        run.iteration += 1
        run.values.append(point.value)
        self._judge(objective, run, key)
        progress = Progress(key, run.iteration, point.value, run.gradient_norm, point.step, evaluations)
        log = logger.debug
        now = time.monotonic()
        if now - self._last_said >= SILENCE and not self._bar.is_shown:
            log = announcements.info
            self._last_said = now
        log("%s: iteration %d objective %.6f gradient norm %.4g step %.4g evaluations %d", *progress)
        if self.on_iteration is not None:
            self.on_iteration(progress)

    def evaluate(self, objective: Objective, weights: Floats) -> Position:
        """Evaluate the objective with its smooth regularizer, loss + l2·w².

        objective (Objective): The loss.
        weights (float64[n]): The weights.
        RETURNS (Position): The weights with value and gradient; the value is inf if either is not finite.
        """
        value, gradient = objective.evaluate(weights)
        with np.errstate(over="ignore", invalid="ignore"):  # value and gradient are checked for steps too far
            if self.l2:
                value += self.l2 * dot(weights, weights)
                add_scaled(gradient, 2.0 * self.l2, weights)
            if not math.isfinite(value) or not math.isfinite(dot(gradient, gradient)):
                value = math.inf
        return Position(weights, float(value), gradient)

    def search(
        self,
        objective: Objective,
        run: BatchRun,
        gradient: Floats,
        direction: Floats,
        step: float,
        *,
        curvature: float = CURVATURE,
    ) -> tuple[Optional[RayPoint], int]:
        """Search along a direction from the position of a run.

        objective (Objective): The function.
        run (BatchRun): The state, at whose `position` the search begins.
        gradient (float64[n]): The gradient there.
        direction (float64[n]): The direction.
        step (float): The first step to try.
        curvature (float): c2 of the strong Wolfe conditions.
        RETURNS (tuple[Optional[RayPoint], int]): The accepted point, with its Position, and the number of evaluations.
        """
        before = run.position
        slope = dot(gradient, direction)
        if not slope < 0:
            return None, 0

        def phi(step: float) -> RayPoint:
            """The objective along the direction."""
            weights = step * direction
            weights += before.weights
            after = self.evaluate(objective, weights)
            with np.errstate(over="ignore", invalid="ignore"):
                return RayPoint(step, after.value, dot(after.gradient, direction), after)

        start = RayPoint(0.0, before.value, slope)
        return strong_wolfe(phi, start, step, curvature=curvature, max_evaluations=self.max_line_search)

    def _judge(self, objective: Objective, run: BatchRun, key: str) -> None:
        """Apply the stop rules of CRFsuite, and find out whether the minimum is near."""
        run.gradient_norm = norm(run.memory.ascent(self, objective, run.position))
        improvement = run.values[0] - run.values[-1]
        if run.gradient_norm <= self.tolerance * max(1.0, norm(run.position.weights)):
            self._stop(run, key, f"the gradient norm {run.gradient_norm:.4g} is within tolerance = {self.tolerance}")
        elif len(run.values) > self.period and improvement <= max(self.delta, PRECISION) * abs(run.values[-1]):
            self._stop(run, key, f"the last {self.period} iterations improved it by no more than delta = {self.delta}")
        elif self.max_iterations is not None and run.iteration >= self.max_iterations:
            self._stop(run, key, f"max_iterations = {self.max_iterations} reached")
        if not run.is_near_minimum:
            n = min(len(run.values) - 1, WINDOW)
            values = run.values
            is_near = n >= min(EARLY, self.period) and values[-1 - n] - values[-1] <= NEAR * n * abs(values[-1])
            run.is_near_minimum = run.stop_reason is not None or is_near
            if run.is_near_minimum and run.stop_reason is None and self.iterations_per_step == "auto":
                text = "%s: the objective comes near its minimum after %d iterations, at %.6f: models are evaluated from here on"
                announcements.info(text, key, run.iteration, run.position.value)

    def _stop(self, run: BatchRun, key: str, reason: str) -> None:
        """End a run, and log the reason."""
        run.stop_reason = reason
        self._bar.pause()
        text = "%s: %s stopped after %d iterations at objective %.6f: %s"
        announcements.info(text, key, type(self).__name__, run.iteration, run.position.value, reason)

    def run_from_msg(self, msg: dict[str, Any]) -> BatchRun:
        """Load a run from the result of `BatchRun.to_msg`. RAISES: An error of any class if it is damaged."""
        memory = self.new_memory()
        run = read_run(msg, memory)
        values = [checks.number("a run", "values", value, least=-checks.MOST) for value in msg["values"]]
        checks.expect(values, "a run", "values", values, "at least one number")
        run.values = deque(values, maxlen=self.period + 1)
        return run


def read_run(msg: dict[str, Any], memory: Any) -> BatchRun:
    """Load a run, except its `values`.

    msg (dict): The result of `BatchRun.to_msg`.
    memory (object): An empty memory, which `from_msg` fills.
    RAISES: An error of any class if the message is damaged.
    """
    owner = "a run"
    hash(msg["signature"])  # raises an error for an array, which a damaged message may have here
    weights, value, gradient = msg["position"]
    weights = of_file("the weights", weights, np.float64, (None,))
    gradient = of_file("the gradient", gradient, np.float64, weights.shape)
    position = Position(weights, checks.number(owner, "value", value, least=-checks.MOST), gradient)
    memory.from_msg(msg["memory"], len(weights))
    reason = msg["stop_reason"]
    return BatchRun(
        msg["signature"],
        position,
        memory,
        deque(maxlen=1),
        iteration=checks.count(owner, "iteration", msg["iteration"], least=0, most=checks.ANY),
        stop_reason=None if reason is None else checks.text(owner, "stop_reason", reason),
        gradient_norm=float(msg["gradient_norm"]),
        is_near_minimum=checks.flag(owner, "is_near_minimum", msg["is_near_minimum"]),
    )


# ---------------------------------------------------------------------- arithmetic on vectors of millions of weights


# Numbers in a block. Products of a block stay in the cache, so no temporary array is as long as the vectors. And a block is too
# short for BLAS to use several threads, which spin for 8 ms on a busy machine where one core needs 0.15 ms (450 thousand
# weights); so results do not depend on the number of threads.
BLOCK = 8192


def add_scaled(target: Floats, factor: float, vector: Floats) -> None:
    """target += factor * vector"""
    for start in range(0, len(target), BLOCK):
        target[start : start + BLOCK] += factor * vector[start : start + BLOCK]


def dot(a: Floats, b: Floats) -> float:
    """Σ a·b"""
    return float(sum(a[start : start + BLOCK] @ b[start : start + BLOCK] for start in range(0, len(a), BLOCK)))


def norm(vector: Floats) -> float:
    """√Σ vector²"""
    return math.sqrt(dot(vector, vector))
