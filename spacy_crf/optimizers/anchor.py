"""Continuing training from weights that stand for earlier data, which is not available any more.

Near the first weights w0 of a model the loss of its earlier data is about ``Σ hold · (w − w0)²``: the more often training met a
feature, the more it costs to change its weights. The objective is this cost and the loss of N new sequences. Optimizers that
solve for a batch of n sequences minimize

    loss of the batch + Σ n/N · hold · (w − w0)² + Σ ((1 − n/N) · hold + others) · (w − w1)²

from the present weights w1; the last term stands for the other sequences and vanishes if the batch has all. Batch after batch the
weights approach the minimum of the whole (Bertsekas 2011, "Incremental proximal methods"). The optimizer gets a function of the
distance from the centre of the costs (`Anchored`), so l1 and l2 apply to this distance. Online rules and thinc's optimizers take
their own steps; after one or a few steps, a proximal step draws the weights back to w0.
"""

import zlib
from collections.abc import Hashable
from typing import Any, NamedTuple, Optional, Protocol, Union

import numpy as np

from ..types import Floats
from .objective import Frame, Objective, renew

# Cost of changing a weight, for each time that training met its feature. A news model that was trained further on 50 addresses
# kept F 0.80 to 0.82 (of 0.82) on news with 0.03 to 0.1, whatever l2; with 0.003 it lost five points.
STRENGTH = 0.1
# Share of this cost for later weights (of new labels, or of features first seen with their label), which the earlier data did not
# need. At the full cost, training on fifty addresses reached F 0.58 in place of 0.80.
LATER = 0.01


class Evidence(Protocol):
    """How often data has each feature, as `models.node.Evidence` counts it; an anchor itself needs the number of sequences."""

    @property
    def sequences(self) -> int:
        """Number of sequences of the data."""
        ...


class Anchor(NamedTuple):
    """Weights from which a model continues, and the cost of leaving them."""

    begin: Floats  # [n] w0
    hold: Floats  # [n] cost of (w - w0)², on top of the loss of all new sequences
    now: Floats  # [n] w1
    others: Floats  # [n] cost of (w - w1)², which stands for the new sequences that are not in the next step
    n_since: int  # number of new sequences
    share: float  # share of the new sequences in the next step

    @classmethod
    def of(
        cls, frame: Frame, begin: tuple[Frame, Floats], before: Evidence, since: Any, batch: Optional[Evidence]
    ) -> "Anchor":
        """Make the anchor of a model.

        frame (Weights): The layout of the n weights.
        begin (tuple[Weights, float64[m]]): The layout and the weights from which training continues; since then the model may
            have got further weights.
        before (Evidence): How often the earlier data has each feature.
        since (Evidence): How often all new data has each feature.
        batch (Evidence): How often the data of the next step has each feature; None if the step takes all new data.
        """
        frame_before, weights_before = begin
        old_places = frame.places(frame_before)  # [m] indices of the weights that the model had already
        weights = frame.weights()
        first_weights = np.zeros_like(weights)
        first_weights[old_places] = weights_before
        factors = np.full_like(weights, LATER)
        factors[old_places] = 1.0
        n_elsewhere = np.zeros_like(weights)  # how often new data outside the next step has the feature of each weight
        share = 1.0
        if batch is not None:
            n_elsewhere = np.maximum(frame.met(since) - frame.met(batch), 0.0)
            share = min(1.0, batch.sequences / max(1, since.sequences))
        return cls(
            begin=first_weights,
            hold=STRENGTH * factors * frame.met(before),
            now=weights,
            others=STRENGTH * n_elsewhere,
            n_since=since.sequences,
            share=share,
        )

    @property
    def unit(self) -> float:
        """RETURNS (float): The scale of the weights, their root mean square; 1 where all are 0."""
        nonzero = self.begin[self.begin != 0.0]
        return float(np.sqrt(np.mean(nonzero**2))) if len(nonzero) else 1.0

    @property
    def strength(self) -> Floats:
        """RETURNS (float64[n]): Cost of the squared distance from the centre, for a batch optimizer, on top of its l2."""
        return self.hold + self.others

    @property
    def centre(self) -> Floats:
        """RETURNS (float64[n]): The weights at distance zero, for a batch optimizer."""
        # share · hold · (w - w0)² + (strength - share · hold) · (w - w1)² is strength · (w - centre)², plus a constant
        towards_begin = np.divide(
            self.share * self.hold, self.strength, out=np.ones_like(self.hold), where=self.strength > 0
        )
        return self.now + towards_begin * (self.begin - self.now)

    def cost(self, weights: Floats, n_sequences: int) -> float:
        """Cost of weights (float64[n]), to be added to the loss of `n_sequences` sequences."""
        return float(self.hold @ (weights - self.begin) ** 2) * n_sequences / max(1, self.n_since)

    def draw_back(self, weights: Floats, rates: Union[float, Floats], n_sequences: int) -> Floats:
        """Weights after a proximal step towards the first weights.

        weights (float64[n]): The weights before the step.
        rates (float or float64[n]): How far a unit of a sequence's derivative moves a weight.
        n_sequences (int): Number of sequences since the last proximal step.
        RETURNS (float64[n]): The weights after the step.
        """
        # The minimum of rate · cost(w) + (w - weights)² / 2
        cost = 2.0 * rates * self.hold * (n_sequences / max(1, self.n_since))
        return self.begin + (weights - self.begin) / (1.0 + cost)


class Anchored:
    """An objective as a function of the distance d from the anchor's centre: ``loss(centre + d) + Σ strength · d²``.

    objective (Objective): The loss of the new data.
    anchor (Anchor): The weights from which the model continues, and the cost of leaving them.
    """

    def __init__(self, objective: Objective, anchor: Anchor):
        self._objective: Any = objective
        self.origin = anchor.centre
        self.strength = anchor.strength
        # Weights as the model has them, and the distance that they represent
        self._assigned = objective.weights(), anchor.now - anchor.centre
        check = zlib.crc32(np.ascontiguousarray(self.strength).data, zlib.crc32(np.ascontiguousarray(self.origin).data))
        self.signature: Hashable = (objective.signature, check)

    @property
    def n_impossible(self) -> int:
        """RETURNS (int): Number of sequences that no labelling fits."""
        return self._objective.n_impossible

    def renew(self) -> bool:
        """Adopt changes of the data. RETURNS (bool): Whether the objective may have changed."""
        return renew(self._objective)

    def weights(self) -> Floats:
        """RETURNS (float64[n]): The distance of the weights from the centre."""
        weights = self._objective.weights()
        assigned, distance = self._assigned
        # The model has rounded the weights to float32, the assigned distance is exact
        return distance.copy() if np.array_equal(weights, assigned) else weights - self.origin

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Evaluate the loss of the new data and the cost of a distance (`weights`, float64[n]), as `Objective.evaluate`."""
        value, gradient = self._objective.evaluate(self.origin + weights)
        pull = self.strength * weights
        with np.errstate(over="ignore", invalid="ignore"):  # the optimizer notices steps too far
            return value + float(pull @ weights), gradient + 2.0 * pull

    def evaluate_loss(self, weights: Floats, **options: object) -> tuple[float, Floats]:
        """Evaluate a loss of the new data at a distance (`weights`), without the cost of the distance.

        weights (float64[n]): The distance.
        options: Further arguments of `CorpusObjective.evaluate_loss`.
        """
        return self._objective.evaluate_loss(self.origin + weights, **options)

    @property
    def model(self) -> Any:
        """RETURNS (Model): The model whose weights these are."""
        return self._objective.model

    @property
    def losses(self) -> list[Floats]:
        """RETURNS (list[float64[B]]): The loss of each sequence of each batch at the latest evaluation."""
        return self._objective.losses

    @property
    def least_value(self) -> float:
        """RETURNS (float): The least value of a feature."""
        return self._objective.least_value

    def assign(self, weights: Floats) -> None:
        """Write the weights at a distance (`weights`, float64[n]) from the centre to the model."""
        self._objective.assign(self.origin + weights)
        self._assigned = self._objective.weights(), weights.copy()
