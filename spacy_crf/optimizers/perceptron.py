"""Optimizers that learn from mistakes: perceptrons (Collins 2002), passive-aggressive updates (Crammer et al. 2006) and adaptive
regularization of weight vectors (Crammer, Kulesza & Dredze 2009)."""

import logging
from typing import ClassVar

import numpy as np

from .. import checks
from ..errors import Warnings
from ..kernels.online import rules as kernels
from ..types import Floats
from .objective import SequenceObjective, setting, with_settings
from .online import Averaged, CorpusPass, OnlineOptimizer, OnlineRun

logger = logging.getLogger("spacy.spacy_crf")


class AveragedPerceptron(Averaged):
    """The averaged structured perceptron (Collins 2002, figure 1 and section 2.2). With the loss MaxMargin or label costs the
    search for the best labelling includes its costs.

    The averages are in `optimizer.averages`, which `spacy train` evaluates and saves; the weights themselves are those after
    the last sequence.

    use_averages (bool): Whether `optimizer.averages` is there.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): For the order of the sequences.

    An update moves a weight by 1, or in a model that continues from earlier training by the scale of its weights.
    """

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        super().start(run, objective)
        run.numbers["unit"] = 1.0 if objective.anchor is None else objective.anchor.unit

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        return run.numbers["unit"]

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        return self.apply(kernels.PERCEPTRON, pass_, run, run.numbers["unit"], memory=run.arrays["drift"])


class BatchPerceptron(OnlineOptimizer):
    """The perceptron that answers a whole pass with the same weights, and then adds the mean of the updates of all sequences that
    it got wrong.

    It is not the voted perceptron (Freund & Schapire 1999), which keeps the weights after every mistake and lets all of them
    vote: the best path by the sum of their scores is the one that their average finds, see `AveragedPerceptron`.

    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): For the order of the sequences, on which nothing depends here but the rounding.
    """

    walks_in_parts = False

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        run.numbers["unit"] = 1.0 if objective.anchor is None else objective.anchor.unit

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        return run.numbers["unit"] / n_sequences

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        updates = np.zeros_like(run.slots)
        loss, place = self.apply(kernels.BATCH_PERCEPTRON, pass_, run, memory=updates)
        run.slots += run.numbers["unit"] * updates
        return loss, place


class VotedPerceptron(BatchPerceptron):
    """Former name of `spacy_crf.BatchPerceptron.v1`, from version 0.1.0, for configs that have it."""

    def __post_init__(self) -> None:
        logger.warning(Warnings.CRFW131)
        super().__post_init__()


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
        moved = moves[moves != 0.0]  # by the step's length, as derivatives of features are 1
        return float(np.sqrt(np.mean(moved**2))) if len(moved) else 0.0

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        settings = (self.type, self.c, self.error_sensitive)
        return self.apply(kernels.PASSIVE_AGGRESSIVE, pass_, run, *settings, memory=run.arrays["drift"])


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
        if objective.anchor is not None:  # weights are as sure as the earlier training made them
            slots, anchor = objective.corpus.slot_of_weight, objective.anchor
            variance[slots] = 1.0 / (1.0 / self.variance + 2.0 * anchor.hold)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        return 0.0  # the variance holds the weights

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        return self.apply(kernels.AROW, pass_, run, self.gamma, memory=run.arrays["variance"])
