"""Going on from weights that stand for data that is no longer there.

Near the weights w0 that it came with, the loss of what a model has learned from is about ``Σ hold · (w − w0)²``: the more often a
feature was met, the more it costs to change its weights. What there is to minimize is this and the loss of the N sequences that
came since. Optimizers that solve for a batch of n of them minimize

    loss of the batch + Σ n/N · hold · (w − w0)² + Σ ((1 − n/N) · hold + others) · (w − w1)²

from where the weights are, w1; the last term stands for the other sequences and vanishes where the batch has all. Batch after
batch they come to the minimum of the whole (Bertsekas 2011, "Incremental proximal methods"). They see it as a function of the
distance from its centre (`Anchored`), so that their l1 and l2 are about that too. Rules that learn from one sequence after
the other, and thinc's optimizers, take their steps and are drawn back to w0 after each of them, or a few: a proximal step.
"""

import zlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from ..types import Floats
from .objective import Objective

# What one meeting adds to what a move costs. A model of news that went on with 50 addresses kept 0.80 to 0.82 of F = 0.82 with
# 0.03 to 0.1, whatever l2; with 0.003 it lost five points.
STRENGTH = 0.1
# What it counts of that for weights that came later: of new labels, or of features that were not seen with their label before.
# They were not asked for then. Counted in full, fifty addresses were learned to F 0.58 in place of 0.80.
LATER = 0.01


class Anchor(NamedTuple):
    """Where a model goes on from."""

    begin: Floats  # [n] w0
    hold: Floats  # [n] what (w - w0)² costs, beside the loss of all that came since
    now: Floats  # [n] w1
    others: Floats  # [n] what (w - w1)² costs for texts that came since, and that the next step is not about
    n_since: int  # sequences that came since
    share: float  # of them, that the next step is about

    @classmethod
    def of(cls, frame: Any, begin: tuple[Any, Floats], before: Any, since: Any, batch: Any) -> "Anchor":
        """frame: Which weights there are. begin (tuple): Which there were, and w0. before, since, batch: What was met (see
        `models.weights.Evidence`); no batch if the next step is about all that came since.
        """
        was, known = begin
        places, now = frame.places(was), frame.weights()
        weights, asked_for = np.zeros_like(now), np.full_like(now, LATER)
        weights[places], asked_for[places] = known, 1.0
        others = np.zeros_like(now) if batch is None else np.maximum(frame.met(since) - frame.met(batch), 0.0)
        share = 1.0 if batch is None else min(1.0, batch.sequences / max(1, since.sequences))
        hold = STRENGTH * asked_for * frame.met(before)
        return cls(weights, hold, now, STRENGTH * others, since.sequences, share)

    @property
    def unit(self) -> float:
        """RETURNS (float): The scale of the weights, their root mean square; 1 where all are 0."""
        known = self.begin[self.begin != 0.0]
        return float(np.sqrt(np.mean(known**2))) if len(known) else 1.0

    @property
    def strength(self) -> Floats:
        """RETURNS (float64[n]): What the squared distance from the centre costs a solver, beside its l2."""
        return self.hold + self.others

    @property
    def centre(self) -> Floats:
        """RETURNS (float64[n]): Where a solver's distance is zero."""
        to_begin = np.divide(
            self.share * self.hold, self.strength, out=np.ones_like(self.hold), where=self.strength > 0
        )
        return self.now + to_begin * (self.begin - self.now)

    def cost(self, weights: Floats, n_sequences: int) -> float:
        """What weights (float64[n]) cost beside the loss of so many sequences."""
        return float(self.hold @ (weights - self.begin) ** 2) * n_sequences / max(1, self.n_since)

    def drawn(self, weights: Floats, rates: Any, n_sequences: int) -> Floats:
        """Weights (float64[n]) after a proximal step for so many sequences.

        rates (float or float64[n]): How far a unit of the derivative of a sequence moved them.
        """
        cost = 2.0 * rates * self.hold * (n_sequences / max(1, self.n_since))
        return self.begin + (weights - self.begin) / (1.0 + cost)


class Anchored:
    """An objective as a function of the distance from the anchor's centre: ``loss(centre + d) + Σ strength · d²``.

    objective (Objective): The loss of the new data.
    """

    def __init__(self, objective: Objective, anchor: Anchor):
        self._objective = objective
        self._start, self._strength = anchor.centre, anchor.strength
        # As the model has it, and what that stands for
        self._assigned = objective.weights(), anchor.now - anchor.centre
        check = zlib.crc32(np.ascontiguousarray(self._strength), zlib.crc32(np.ascontiguousarray(self._start)))
        self.signature: Hashable = (objective.signature, check)

    @property
    def n_impossible(self) -> int:
        return self._objective.n_impossible

    def renew(self) -> bool:
        renew = getattr(self._objective, "renew", None)
        return renew is not None and renew()

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
