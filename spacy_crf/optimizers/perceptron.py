"""Optimizers that learn from mistakes: perceptrons (Collins 2002), passive-aggressive updates (Crammer et al. 2006) and adaptive
regularization of weight vectors (Crammer, Kulesza & Dredze 2009)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import checks
from ..kernels.online import rules as kernels
from ..types import Floats
from .objective import SequenceObjective, setting
from .online import Averaged, CorpusPass, OnlineOptimizer, OnlineRun


class AveragedPerceptron(Averaged):
    """The averaged structured perceptron (Collins 2002, figure 1 and section 2.2). With the loss MaxMargin or label costs, the
    search for the best labelling includes the costs of mistakes.

    `optimizer.averages` holds the averages, which `spacy train` evaluates and saves; the model itself holds the weights after the
    last sequence. The zeros before the first sequence count too: over n sequences the averages are n / (n + 1) times those of the
    weights after each one, and find the same labellings.

    use_averages (bool): Whether `optimizer.averages` holds the averaged weights.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): Seed of the order of the sequences.

    An update moves a weight by 1, or by the scale of the weights in a model that continues from earlier training.
    """

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of a new run: an update moves weights by 1, or by the scale of the weights of the anchor."""
        super().start(run, objective)
        run.numbers["unit"] = 1.0 if objective.anchor is None else objective.anchor.unit

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        """How far a unit of a sequence's derivative moves a weight: the unit of the run. Other arguments are not used."""
        return run.numbers["unit"]

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Learn from the sequences of a pass: w += unit · (uses by the annotation - uses by the best path)."""
        return self.apply(kernels.PERCEPTRON, pass_, run, run.numbers["unit"], memory=run.arrays["drift"])


class BatchPerceptron(OnlineOptimizer):
    """The perceptron that decodes all sequences of a pass with the same weights, then adds the mean of the updates of the
    sequences that it got wrong.

    This is not the voted perceptron (Freund & Schapire 1999), which keeps the weights after every mistake and lets them vote.
    If these weights added up their scores in place of voting, the best path would be that of their average, see
    `AveragedPerceptron`.

    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): Seed of the order of the sequences, which affects only rounding.
    """

    walks_in_parts = False

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of a new run: an update moves weights by 1, or by the scale of the weights of the anchor."""
        run.numbers["unit"] = 1.0 if objective.anchor is None else objective.anchor.unit

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        """How far a unit of a sequence's derivative moves a weight: unit / n_sequences. `objective` and `moves` are not used."""
        return run.numbers["unit"] / n_sequences

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Decode the sequences of a pass, then add the mean of their updates: w += unit · mean update."""
        mean_update = np.zeros_like(run.slots)  # filled by the kernel
        result = self.apply(kernels.BATCH_PERCEPTRON, pass_, run, memory=mean_update)
        run.slots += run.numbers["unit"] * mean_update
        return result


@dataclass(kw_only=True, eq=False, repr=False)
class PassiveAggressive(Averaged):
    """The smallest change of the weights after which the annotation beats the best labelling by a margin.

    The loss Perceptron compares the annotation with the best labelling by score, as CRFsuite does (prediction-based updates,
    section 7 of the paper); MaxMargin compares it with the best labelling by score plus cost (max-loss updates), whose cost is
    the margin.

    type (int): 0 is PA, which always reaches the margin; 1 is PA-I, whose step is at most `c`; 2 is PA-II, which shortens
        every step, the more the smaller `c`.
    c (float): Aggressiveness of PA-I and PA-II.
    error_sensitive (bool): Whether the margin is the square root of the number of wrong tokens, not 1, if the loss has no costs.
    use_averages (bool): Whether `optimizer.averages` holds the averaged weights.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): Seed of the order of the sequences.
    """

    type: int = setting(1, checks.count, fixed=True, tried=(1, 2), least=0, most=2)
    c: float = setting(1.0, checks.positive, fixed=True, tried=(0.01, 0.1, 1.0, 10.0))
    error_sensitive: bool = setting(True, checks.flag, fixed=True)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        """How far a unit of a sequence's derivative moves a weight: the root mean square of the moves that are not 0. Other
        arguments are not used.
        """
        nonzero = moves[moves != 0.0]  # derivatives of features are 1, so moves are the lengths of steps
        return float(np.sqrt(np.mean(nonzero**2))) if len(nonzero) else 0.0

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Learn from the sequences of a pass; the kernel has the step sizes of PA, PA-I and PA-II."""
        settings = (self.type, self.c, self.error_sensitive)
        return self.apply(kernels.PASSIVE_AGGRESSIVE, pass_, run, *settings, memory=run.arrays["drift"])


@dataclass(kw_only=True, eq=False, repr=False)
class AROW(OnlineOptimizer):
    """Keeps a distribution over weights with a diagonal covariance: weights that were used often move less (figure 1). The margin
    is the number of wrong tokens, or the costs of the loss.

    variance (float): Initial variance of every weight.
    gamma (float): r of the paper: the larger, the smaller each update.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): Seed of the order of the sequences.
    """

    follows: ClassVar = ("variance",)

    variance: float = setting(1.0, checks.positive, fixed=True, tried=(0.1, 1.0, 10.0))
    gamma: float = setting(1.0, checks.positive, fixed=True, tried=(0.1, 1.0, 10.0))

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of a new run: the variance of each weight."""
        variance = np.full_like(run.slots, self.variance)
        run.arrays["variance"] = variance
        if objective.anchor is not None:  # earlier training makes weights more certain
            slots = objective.corpus.slot_of_weight
            anchor = objective.anchor
            variance[slots] = 1.0 / (1.0 / self.variance + 2.0 * anchor.hold)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        """0, so that proximal steps do nothing: the variances already keep weights from moving. No argument is used."""
        return 0.0

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Learn from the sequences of a pass: weights move in proportion to their variances, which shrink."""
        return self.apply(kernels.AROW, pass_, run, self.gamma, memory=run.arrays["variance"])
