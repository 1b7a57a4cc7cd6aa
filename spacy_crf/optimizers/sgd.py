"""Stochastic (sub)gradients of one sequence at a time, for ``loss + l1·|w| + l2·w²``."""

import logging
from typing import Optional

import numpy as np

from .. import checks
from ..kernels import walk as kernels
from ..losses.clamped import ClampedLoss
from ..types import Floats
from .objective import SequenceObjective
from .online import OnlineOptimizer, OnlineRun, Pass

logger = logging.getLogger("spacy.spacy_crf")


class SGD(OnlineOptimizer):
    """Stochastic gradient descent, as CRFsuite's `l2sgd` and Bottou's crfsgd do it: the learning rate falls as
    1 / (decay · (t0 + t)), with decay = 2·l2 / sequences (Shalev-Shwartz, Singer & Srebro 2007), and t0 is chosen by trying
    rates on a sample. With l1, the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009.

    l1 (float): Weight of |w|.
    l2 (float): Weight of w², without a factor 1/2. Small values shrink the weights little, and 0 not at all.
    calibration_eta (float): The first learning rate to try.
    calibration_rate (float): Factor between two rates to try.
    calibration_samples (int): How many sequences to try them on.
    calibration_candidates (int): How many rates that lower the loss to look for.
    sequences (Optional[int]): How many sequences l1 and l2 belong to: those of the corpus, where it is streamed. None for those
        of the first step.
    epochs_per_step (int): Passes over the batch in one step.
    seed (int): For the order of the sequences.
    """

    losses = (ClampedLoss,)
    identity = ("seed", "l1", "l2", "sequences")

    def __init__(
        self,
        *,
        l1: float = 0.0,
        l2: float = 1.0,
        calibration_eta: float = 0.1,
        calibration_rate: float = 2.0,
        calibration_samples: int = 1000,
        calibration_candidates: int = 10,
        sequences: Optional[int] = None,
        epochs_per_step: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(epochs_per_step=epochs_per_step, seed=seed)
        self.l1 = checks.number("SGD", "l1", l1)
        self.l2 = checks.number("SGD", "l2", l2)
        self.sequences = None if sequences is None else checks.count("SGD", "sequences", sequences)
        self.calibration_eta = checks.positive("SGD", "calibration_eta", calibration_eta)
        self.calibration_rate = checks.number("SGD", "calibration_rate", calibration_rate, least=1.001)
        self.calibration_samples = checks.count("SGD", "calibration_samples", calibration_samples)
        self.calibration_candidates = checks.count("SGD", "calibration_candidates", calibration_candidates)

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        run.numbers = {"scale": 1.0, "due": 0.0}
        if self.l1:
            run.arrays["paid"] = np.zeros_like(run.slots)

    def prepare(self, objective: SequenceObjective, pass_: Pass, run: OnlineRun, key: str) -> None:
        if "eta" in run.numbers:
            return
        # l2 belongs to the sum over all sequences
        run.numbers["sequences"] = float(self.sequences or max(1, len(objective.corpus.starts) - 1))
        run.numbers["eta"] = self._calibrate(pass_, run, objective, key)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        _, rate, offset = self._schedule(run)
        return rate / (offset + run.count)

    def _schedule(self, run: OnlineRun) -> tuple[float, float, float]:
        decay = 0.0 if run.is_held else 2.0 * self.l2 / run.numbers["sequences"]
        # eta / (1 + decay · eta · t) = (1 / decay) / (t0 + t); without decay as if l2 were 1
        slower = decay if decay > 0.0 else 2.0 / run.numbers["sequences"]
        return decay, 1.0 / slower, 1.0 / (slower * run.numbers["eta"])

    def walk(self, pass_: Pass, run: OnlineRun) -> tuple[float, int]:
        numbers, sequences = run.numbers, run.numbers["sequences"]
        l1 = 0.0 if run.is_held else self.l1
        schedule = self._schedule(run)
        if not l1:
            return self.apply(kernels.SGD, pass_, run, *schedule)
        paid = run.arrays["paid"]
        loss, place = self.apply(kernels.SGD_L1, pass_, run, *schedule, l1 / sequences, memory=paid)
        kernels.charge_all(pass_.corpus.learned, run.slots, numbers["scale"], numbers["due"], paid)
        return loss, place

    def present(self, run: OnlineRun) -> Floats:
        return run.numbers["scale"] * run.slots

    def penalty(self, weights: Floats) -> float:
        return self.l1 * float(np.abs(weights).sum()) + self.l2 * float(weights @ weights)

    def _calibrate(self, pass_: Pass, run: OnlineRun, goal: SequenceObjective, key: str) -> float:
        """The rate with the lowest objective after one pass over a sample: doubled while that helps, then halved."""
        corpus, n_sequences = pass_.corpus, len(pass_.order)
        sample = np.random.default_rng((self.seed, 1 << 20)).permutation(n_sequences)[: self.calibration_samples]
        pass_ = pass_._replace(order=sample)
        share = len(sample) / n_sequences

        def objective(position: OnlineRun) -> float:
            loss, _ = self.apply(kernels.NOTHING, pass_, position)
            weights = self.present(position)[corpus.slot_of_weight]
            return loss + (goal.anchor.cost(weights, len(sample)) if run.is_held else share * self.penalty(weights))

        def try_rate(eta: float) -> float:
            trial = self._snapshot(run)
            trial.numbers["eta"] = eta
            _, place = self._walk_through(pass_, trial, goal)
            after = objective(trial) if place < 0 else np.inf
            return after if np.isfinite(after) else np.inf

        before = objective(run)
        best, best_eta, factor, lower = np.inf, self.calibration_eta, self.calibration_rate, 0
        eta = self.calibration_eta
        for _ in range(4 * self.calibration_candidates):
            after = try_rate(eta)
            if after < best:
                best, best_eta = after, eta
            if after < before:
                lower += 1
            if lower >= self.calibration_candidates and factor < 1.0:
                break
            if factor > 1.0 and after > best:  # too far: go on below the first rate
                eta, factor = self.calibration_eta, 1.0 / self.calibration_rate
            elif factor < 1.0 and after > best and lower > 0:
                break
            eta *= factor
        logger.info("%s: SGD starts with the learning rate %.4g", key, best_eta)
        return best_eta


class AdaGrad(OnlineOptimizer):
    """Each weight has a learning rate of its own, ``learn_rate / (epsilon + sqrt(sum of its squared gradients))`` (Duchi, Hazan
    & Singer 2011). The regularizers are proximal steps; a weight catches up with those it missed when its feature occurs.

    l1 (float): Weight of |w|.
    l2 (float): Weight of w², without a factor 1/2.
    learn_rate (float): Numerator of the learning rates.
    epsilon (float): Added to their denominators.
    sequences (Optional[int]): How many sequences l1 and l2 belong to: those of the corpus, where it is streamed. None for those
        of the first step.
    epochs_per_step (int): Passes over the batch in one step.
    seed (int): For the order of the sequences.
    """

    losses = (ClampedLoss,)
    identity = ("seed", "l1", "l2", "sequences", "rate", "epsilon")

    def __init__(
        self,
        *,
        l1: float = 0.0,
        l2: float = 1.0,
        learn_rate: float = 0.3,
        epsilon: float = 1e-6,
        sequences: Optional[int] = None,
        epochs_per_step: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__(epochs_per_step=epochs_per_step, seed=seed)
        self.l1 = checks.number("AdaGrad", "l1", l1)
        self.l2 = checks.number("AdaGrad", "l2", l2)
        self.sequences = None if sequences is None else checks.count("AdaGrad", "sequences", sequences)
        # thinc's optimizers have a learn_rate that schedules set
        self.rate = checks.positive("AdaGrad", "learn_rate", learn_rate)
        self.epsilon = checks.positive("AdaGrad", "epsilon", epsilon)

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        run.arrays["squares"] = np.zeros_like(run.slots)
        run.arrays["regularized"] = np.zeros_like(run.slots)

    def prepare(self, objective: SequenceObjective, pass_: Pass, run: OnlineRun, key: str) -> None:
        run.numbers.setdefault("sequences", float(self.sequences or max(1, len(objective.corpus.starts) - 1)))

    def walk(self, pass_: Pass, run: OnlineRun) -> tuple[float, int]:
        sequences = run.numbers["sequences"]
        regularized, squares = run.arrays["regularized"], run.arrays["squares"]
        l1, l2 = (0.0, 0.0) if run.is_held else (self.l1, self.l2)
        settings = (float(self.rate), float(self.epsilon), l1 / sequences, l2 / sequences)
        loss, place = self.apply(kernels.ADAGRAD, pass_, run, *settings, memory=regularized, squares=squares)
        if l1 or l2:
            seen = float(run.count + len(pass_.order))
            kernels.catch_up_all(pass_.corpus.learned, run.slots, settings, seen, regularized, squares)
        return loss, place

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> Floats:
        squares = run.arrays["squares"][objective.corpus.slot_of_weight]
        return np.where(squares > 0.0, self.rate / (self.epsilon + np.sqrt(squares)), 0.0)

    def penalty(self, weights: Floats) -> float:
        return self.l1 * float(np.abs(weights).sum()) + self.l2 * float(weights @ weights)
