"""Iterative scaling: all weights move at once, each to the minimum of a bound of the objective.

    objective(w + d) - objective(w) <= sum_k bound_k(d_k)
    bound_k'(d) = sum_m expected[m, k] · exp(mass[m] · d) + 2·l2·(w_k + d) - observed[k]

The mass of a sequence is the largest sum of the values of all features that a labelling has, so features must not have negative
values. With one mass for all sequences, the largest, this is generalized iterative scaling (Darroch & Ratcliff 1972; for chains
Lafferty, McCallum & Pereira 2001, algorithm S), with several improved iterative scaling (Della Pietra, Della Pietra & Lafferty
1997; algorithm T); l2 as Chen & Rosenfeld 1999.
"""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar, Optional, Union

import numpy as np

from spacy_crf import checks
from spacy_crf.arrays import of_file
from spacy_crf.errors import cant_train
from spacy_crf.losses.clamped import LogLikelihood, SoftmaxMargin
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.optimizers.batch import BatchOptimizer, BatchRun, Position
from spacy_crf.optimizers.line_search import RayPoint
from spacy_crf.optimizers.objective import setting
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Floats

from .uses import Highest, Observed, expect_known_states

_ROUNDS = 30  # most rounds of Newton's method for a move
_MOST = 700.0  # exponents beyond it overflow
_FITTING = "LBFGS, ConjugateGradient, Newton or SGD"


@dataclass(kw_only=True, eq=False, repr=False)
class GIS(BatchOptimizer):
    """Generalized iterative scaling over the full training set, minimizing ``loss + l2·w²``, for comparison: each iteration
    lowers the objective, but it needs many times the iterations of L-BFGS. Annotation must be complete.

    The settings are described at `spacy_crf.LBFGS.v1`.
    """

    losses: ClassVar = (LogLikelihood, SoftmaxMargin)
    masses: ClassVar[int] = 1

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a loss that it does not train with, and for hidden states."""
        super().check_fit(pipe)
        expect_known_states(self, pipe)

    def new_memory(self) -> "Masses":
        """An empty memory, see `BatchOptimizer.new_memory`."""
        return Masses(self)


@dataclass(kw_only=True, eq=False, repr=False)
class IIS(GIS):
    """Improved iterative scaling over the full training set, minimizing ``loss + l2·w²``, for comparison: as
    `spacy_crf_lab.GIS.v1`, but short sequences do not wait for long ones.

    masses (int): Number of different masses of sequences, of which each takes a pass over the corpus in each iteration. Sequences
        with other masses are split between the next lower and the next higher one.

    The other settings are described at `spacy_crf.LBFGS.v1`.
    """

    masses: int = setting(2, checks.count, fixed=True, least=2, most=64)


def solve(expected: Floats, masses: Floats, pull: Floats, slope: Union[float, Floats]) -> Floats:
    """Solve sum_m expected[m] · exp(masses[m] · d) + pull + slope · d = 0 for each weight.

    expected (float64[M, n]), masses (float64[M]), slope (float or float64[n]): At least 0.
    RETURNS (float64[n]): d, from above where a solution is infinite or does not exist.
    """
    # The left side is convex and grows: Newton's method descends to the root from any point above it, such as one where a single
    # term makes up for the pull
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        highest = np.min(np.log(-pull / expected) / masses[:, np.newaxis], axis=0)
        highest = np.fmin(highest, -(expected.sum(axis=0) + pull) / slope)
    d = np.where(np.isfinite(highest), np.maximum(highest, 0.0), 0.0)
    for _ in range(_ROUNDS):
        terms = expected * np.exp(np.minimum(masses[:, np.newaxis] * d, _MOST))  # overflows only beside zeros
        steep = masses @ terms + slope
        move = np.divide(terms.sum(axis=0) + pull + slope * d, steep, out=np.zeros_like(d), where=steep > 0.0)
        d -= move
        if np.abs(move).max(initial=0.0) <= 1e-12 * np.abs(d).max(initial=0.0):
            break
    return d


def split(of_sequences: list[Floats], most: int) -> tuple[Floats, list[list[Floats]]]:
    """Choose masses (`most` at most) among those of the sequences (float64[B] for each batch), and split the sequences between
    them. RETURNS: See `Masses`."""
    every = np.maximum(np.concatenate([*of_sequences, np.zeros(0)]), np.finfo(np.float64).tiny)
    known = np.unique(every)
    if len(known) > most:
        known = np.unique(np.quantile(every, np.linspace(0.0, 1.0, most) if most > 1 else [1.0], method="higher"))
    if not len(known):
        known = np.ones(1)
    bounds = np.cumsum([0, *map(len, of_sequences)])
    shares = []
    for mass in np.eye(len(known))[::-1]:
        # exp(mass · d) is convex in the mass: a sequence split between two masses counts with more, never with less
        of_mass = np.interp(every, known, mass)
        shares.append([of_mass[begin:end] for begin, end in pairwise(bounds)])
    return known[::-1].copy(), shares


class Masses:
    """Memory of iterative scaling: what it knows of the sequences. It learns nothing on its way, so its truth value is False."""

    def __init__(self, optimizer: GIS) -> None:
        self._optimizer = optimizer
        self.masses = np.zeros(0)  # [M] the largest first
        # For each mass and each batch, the share of each sequence that counts with the mass: float64[B]
        self.shares: list[list[Floats]] = []
        self.observed = np.zeros((0, 0))  # [M, n] uses of weights by the annotation

    def __bool__(self) -> bool:
        return False

    def prepare(self, objective: CorpusObjective, key: str) -> None:
        """Find the masses, and what the annotation uses. RAISES (ValueError): CRF347 for what can't be scaled."""
        if len(self.masses):
            return
        if not hasattr(objective, "evaluate_loss"):
            reason = "workers evaluate nothing but the loss"
            raise cant_train(self._optimizer, f"the shards of '{key}'", reason, "LBFGS")
        if objective.least_value < 0.0:
            reason = f"there are negative values, such as {objective.least_value:g}"
            raise cant_train(self._optimizer, f"the features of '{key}'", reason, _FITTING)
        at = objective.weights()
        # With weights of 1 the best score is the largest sum of feature values: the mass
        ones = 1.0 - getattr(objective, "origin", np.zeros_like(at))
        objective.evaluate_loss(ones, loss=Highest())
        masses, shares = split(objective.losses, self._optimizer.masses)
        incomplete: list[bool] = []
        observed = [objective.evaluate_loss(at, loss=Observed(incomplete), factors=some)[1] for some in shares]
        if incomplete:
            raise cant_train(self._optimizer, f"'{key}'", "some sequences are not annotated completely", _FITTING)
        self.shares = shares
        self.observed = np.stack(observed)
        self.masses = masses

    def ascent(self, optimizer: GIS, objective: CorpusObjective, position: Position) -> Floats:
        """The gradient."""
        return position.gradient

    def search(
        self, optimizer: GIS, objective: CorpusObjective, run: BatchRun, gradient: Floats
    ) -> tuple[Optional[RayPoint], int]:
        """Move each weight to the minimum of its bound. RETURNS (RayPoint, int): The point reached, and one evaluation."""
        before = run.position
        strength = optimizer.l2 + getattr(objective, "strength", 0.0)
        # [M, n] expected uses of each weight by the sequences of each mass
        expected = np.empty_like(self.observed)
        expected[0] = gradient - 2.0 * strength * before.weights + self.observed.sum(axis=0)
        for m, shares in enumerate(self.shares[1:], 1):
            expected[m] = objective.evaluate_loss(before.weights, factors=shares)[1] + self.observed[m]
            expected[0] -= expected[m]
        # The part of bound' that does not depend on the move
        pull = 2.0 * strength * before.weights - self.observed.sum(axis=0)
        move = solve(np.maximum(expected, 0.0), self.masses, pull, 2.0 * strength)
        after = optimizer.evaluate(objective, before.weights + move)
        return RayPoint(1.0, after.value, math.nan, after) if after.value < before.value else None, 1

    def learn(self, before: Position, after: Position, step: float) -> None:
        """Nothing to learn."""

    def clear(self) -> None:
        """Nothing to forget."""

    def to_msg(self) -> list[object]:
        """The memory as a file holds it."""
        return [self.masses, self.shares, self.observed]

    def from_msg(self, msg: tuple[Floats, list[list[Floats]], Floats], n: int) -> None:
        """Take over what `to_msg` returned, for n weights."""
        masses, shares, observed = msg
        self.masses = of_file("the masses", masses, np.float64, (None,))
        self.observed = of_file("the observed uses", observed, np.float64, (len(masses), n))
        read_share = partial(of_file, "shares of masses", dtype=np.float64, shape=(None,))
        self.shares = [list(map(read_share, of_mass)) for of_mass in shares]
        counts = len(masses), len(self.shares)
        checks.expect(counts[0] == counts[1] > 0, "the memory", "masses", counts, "as many masses as lists of shares")
