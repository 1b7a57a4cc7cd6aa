"""Passive-aggressive learning (Crammer, Dekel, Keshet, Shalev-Shwartz & Singer 2006)."""

from typing import ClassVar

import numpy as np

from .. import checks
from ..kernels import online as kernels
from ..types import Floats
from .objective import SequenceObjective, setting, with_settings
from .online import Averaged, OnlineRun, Pass


@with_settings
class PassiveAggressive(Averaged):
    """The smallest change of the weights after which the annotation beats the best labelling by a margin.

    The loss Perceptron compares with the best labelling by score, as CRFsuite does (prediction-based updates, section 7 of the
    paper); MaxMargin with the best by score and cost (max-loss updates), whose cost is the margin.

    type (int): 0 is PA, which always reaches the margin; 1 is PA-I, whose step is at most `c`; 2 is PA-II, whose step grows
        ever slower.
    c (float): Aggressiveness of PA-I and PA-II.
    error_sensitive (bool): The margin is the square root of the number of wrong tokens instead of 1, where the loss has no
        costs.
    use_averages (bool): Whether `optimizer.averages` holds the averaged weights.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): For the order of the sequences.
    """

    identity: ClassVar = ("seed", "type", "c", "error_sensitive", "averaging")

    type: int = setting(1, checks.count, least=0, most=2)
    c: float = setting(1.0, checks.positive)
    error_sensitive: bool = setting(True, checks.flag)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        moved = moves[moves != 0.0]  # each by the step's length, as derivatives of features are one
        return float(np.sqrt(np.mean(moved**2))) if len(moved) else 0.0

    def walk(self, pass_: Pass, run: OnlineRun) -> tuple[float, int]:
        settings = (self.type, self.c, self.error_sensitive)
        return self.apply(kernels.PASSIVE_AGGRESSIVE, pass_, run, *settings, memory=run.arrays["drift"])
