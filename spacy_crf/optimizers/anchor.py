"""Going on from weights that stand for data that is no longer there.

Near the weights w0 that it came with, the loss of what a model has learned from is about ``Σ strength · (w − w0)²``: the more
often a feature was met, the more it costs to change its weights. Optimizers that minimize an objective are given it as a function
of the distance d = w − w0 (`Anchored`), so that their l1 and l2 are about the distance too. Rules that learn from one sequence
after the other, and thinc's optimizers, let each weight go a part of the way only (`Anchor.shares`), as if what was met before
had a say too.
"""

import zlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from ..types import Floats
from .objective import Objective

# What one meeting adds to the strength. A model of news that went on with 50 addresses kept 0.80 to 0.82 of F = 0.82 with 0.03 to
# 0.1, whatever l2; with 0.003 it lost five points.
STRENGTH = 0.1
# The say of one meeting before, against one now
SAY = 3.0


class Anchor(NamedTuple):
    """Where a model goes on from."""

    weights: Floats  # [n] w0
    met: Floats  # [n] how often what each weight belongs to was met before
    comes: Floats  # [n] how often it is met now

    @classmethod
    def of(cls, frame: Any, before: Any, now: Any) -> "Anchor":
        """frame: Which weights there are, before, now: what was met before, and now (see `models.objective.Evidence`)."""
        return cls(frame.weights(), frame.met(before), frame.met(now))

    @property
    def strength(self) -> Floats:
        """RETURNS (float64[n]): What (w - w0)² costs, beside l2."""
        return STRENGTH * self.met

    @property
    def shares(self) -> Floats:
        """RETURNS (float64[n]): How much of the way each weight goes that a step would have it go."""
        return self.comes / np.maximum(self.comes + SAY * self.met, 1e-300)


class Anchored:
    """An objective as a function of the distance from where the model goes on: ``loss(w0 + d) + Σ strength · d²``.

    objective (Objective): The loss of the new data.
    """

    def __init__(self, objective: Objective, anchor: Anchor):
        self._objective = objective
        self._start, self._strength = anchor.weights, anchor.strength
        self._assigned = (
            objective.weights(),
            np.zeros(len(anchor.weights)),
        )  # as the model has it, and what that stands for
        check = zlib.crc32(np.ascontiguousarray(self._strength), zlib.crc32(np.ascontiguousarray(self._start)))
        self.signature: Hashable = (objective.signature, check)

    @property
    def n_impossible(self) -> int:
        return self._objective.n_impossible

    def weights(self) -> Floats:
        """RETURNS (float64[n]): The distance, without what the model rounds."""
        weights, (assigned, distance) = self._objective.weights(), self._assigned
        return distance.copy() if np.array_equal(weights, assigned) else weights - self._start

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        value, gradient = self._objective.evaluate(self._start + weights)
        pull = self._strength * weights
        with np.errstate(over="ignore", invalid="ignore"):
            return value + float(pull @ weights), gradient + 2.0 * pull

    def assign(self, weights: Floats) -> None:
        self._objective.assign(self._start + weights)
        self._assigned = self._objective.weights(), weights.copy()
