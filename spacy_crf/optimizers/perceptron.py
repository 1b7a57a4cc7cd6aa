"""Perceptrons (Collins 2002): wrong answers move the weights towards the annotation."""

import logging

import numpy as np

from ..errors import Warnings
from ..kernels import online as kernels
from ..types import Floats
from .objective import SequenceObjective
from .online import Averaged, OnlineOptimizer, OnlineRun, Pass

logger = logging.getLogger("spacy.spacy_crf")


class AveragedPerceptron(Averaged):
    """The averaged structured perceptron (Collins 2002, figure 1 and section 2.2). With the loss MaxMargin or label costs the
    best labelling is looked for with its costs.

    The averages are in `optimizer.averages`, which `spacy train` evaluates and saves; the weights themselves are those after
    the last sequence.

    use_averages (bool): Whether `optimizer.averages` is there.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): For the order of the sequences.

    Nothing depends on how far an update moves a weight, here 1, but for a model that goes on: its weights have a unit already.
    """

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        super().start(run, objective)
        run.numbers["unit"] = 1.0 if objective.anchor is None else objective.anchor.unit

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        return run.numbers["unit"]

    def walk(self, pass_: Pass, run: OnlineRun) -> tuple[float, int]:
        return self.apply(kernels.PERCEPTRON, pass_, run, run.numbers["unit"], memory=run.arrays["drift"])


class BatchPerceptron(OnlineOptimizer):
    """The perceptron that answers a whole pass with the same weights, and then adds the mean of the updates of all sequences that
    it got wrong.

    It is no voted perceptron (Freund & Schapire 1999), which keeps the weights after every mistake and lets all of them answer.
    There is none here: the path that is best by the sum of their scores is the one that their average finds in a single answer,
    and that is `AveragedPerceptron` (Collins 2002 averages for the same reason).

    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): For the order of the sequences, on which nothing depends here but the rounding.
    """

    walks_in_parts = False

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        run.numbers["unit"] = 1.0 if objective.anchor is None else objective.anchor.unit

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        return run.numbers["unit"] / n_sequences

    def walk(self, pass_: Pass, run: OnlineRun) -> tuple[float, int]:
        updates = np.zeros_like(run.slots)
        loss, place = self.apply(kernels.BATCH_PERCEPTRON, pass_, run, memory=updates)
        run.slots += run.numbers["unit"] * updates
        return loss, place


class VotedPerceptron(BatchPerceptron):
    """What `spacy_crf.BatchPerceptron.v1` was called in version 0.1.0, for configs that have the name."""

    def __post_init__(self) -> None:
        logger.warning(Warnings.CRFW131)
        super().__post_init__()
