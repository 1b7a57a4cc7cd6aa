"""Adaptive regularization of weight vectors (Crammer, Kulesza & Dredze 2009)."""

from typing import ClassVar

import numpy as np

from .. import checks
from ..kernels import online as kernels
from ..types import Floats
from .objective import SequenceObjective, setting, with_settings
from .online import OnlineOptimizer, OnlineRun, Pass


@with_settings
class AROW(OnlineOptimizer):
    """A distribution over weights with a diagonal covariance: weights that were used often move less (figure 1). The margin is
    the number of wrong tokens, or the costs of the loss.

    variance (float): Of every weight at the start.
    gamma (float): How strongly the past binds: the r of the paper.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): For the order of the sequences.
    """

    identity: ClassVar = ("seed", "variance", "gamma")
    follows: ClassVar = ("variance",)

    variance: float = setting(1.0, checks.positive)
    gamma: float = setting(1.0, checks.positive)

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        run.arrays["variance"] = variance = np.full_like(run.slots, self.variance)
        if objective.anchor is not None:  # what training met before has made weights sure
            slots, anchor = objective.corpus.slot_of_weight, objective.anchor
            variance[slots] = 1.0 / (1.0 / self.variance + 2.0 * anchor.hold)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        return 0.0  # the variance holds what was met before

    def walk(self, pass_: Pass, run: OnlineRun) -> tuple[float, int]:
        return self.apply(kernels.AROW, pass_, run, self.gamma, memory=run.arrays["variance"])
