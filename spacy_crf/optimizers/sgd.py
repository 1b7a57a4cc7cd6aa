"""Optimizers that descend by the (sub)gradient of one sequence at a time, for ``loss + l1·|w| + l2·w²``."""

import logging
from dataclasses import dataclass
from typing import ClassVar, Optional

import numpy as np

from .. import checks
from ..errors import Errors
from ..kernels.online import rules as kernels
from ..losses.clamped import ClampedLoss
from ..types import Floats
from .objective import L2_TRIED, SequenceObjective, setting
from .online import CorpusPass, OnlineOptimizer, OnlineRun

logger = logging.getLogger("spacy.spacy_crf")


@dataclass(kw_only=True, eq=False, repr=False)
class Regularized(OnlineOptimizer):
    """Base of the optimizers in this file, with l1 and l2, and the number of sequences whose sum of losses they are set for."""

    losses: ClassVar = (ClampedLoss,)

    l1: float = setting(0.0, checks.number, fixed=True)
    l2: float = setting(1.0, checks.number, fixed=True, tried=L2_TRIED)
    sequences: Optional[int] = setting(None, checks.count, fixed=True, most=checks.ANY)

    def prepare(self, objective: SequenceObjective, pass_: CorpusPass, run: OnlineRun, key: str) -> None:
        """Prepare a step: a new run gets the number of sequences of its `objective`. `pass_` and `key` are not used."""
        # l1 and l2 apply to the sum of the losses of all sequences
        run.numbers.setdefault("sequences", float(self.sequences or max(1, objective.n_sequences)))

    def penalty(self, weights: Floats) -> float:
        """The regularizer at the weights: l1·|w| + l2·w²."""
        return self.l1 * float(np.abs(weights).sum()) + self.l2 * float(weights @ weights)


@dataclass(kw_only=True, eq=False, repr=False)
class SGD(Regularized):
    """Stochastic gradient descent as in CRFsuite's `l2sgd` and Bottou's crfsgd: the learning rate falls as 1 / (decay · (t0 +
    t)), with decay = 2·l2 / sequences (Shalev-Shwartz, Singer & Srebro 2007); trials of several rates on a sample determine t0.
    With l1, the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009.

    l1 (float): Weight of |w|.
    l2 (float): Weight of w², without a factor 1/2. Small values shrink the weights little, and 0 does not shrink them.
    calibration_eta (float): The first learning rate to try.
    calibration_rate (float): Factor between two rates to try.
    calibration_samples (int): Number of sequences on which rates are tried.
    calibration_candidates (int): Number of rates to find that lower the loss.
    sequences (Optional[int]): Number of sequences for which l1 and l2 are set: for a streamed corpus, all of its sequences. None
        for the number of sequences of the first step.
    epochs_per_step (int): Passes over the batch in one step, at most 1,000.
    seed (int): Seed of the order of the sequences.
    """

    calibration_eta: float = setting(0.1, checks.positive)
    calibration_rate: float = setting(2.0, checks.number, least=1.001)
    calibration_samples: int = setting(1000, checks.count, most=checks.ANY)
    calibration_candidates: int = setting(10, checks.count, most=100)

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of a new run: the scale is 1, and no penalty is due. `objective` is not used."""
        run.numbers = {"scale": 1.0, "due": 0.0}
        if self.l1:
            run.arrays["paid"] = np.zeros_like(run.slots)

    def prepare(self, objective: SequenceObjective, pass_: CorpusPass, run: OnlineRun, key: str) -> None:
        """Prepare a step: trials on a sample of `pass_` choose the first learning rate of a new run.

        objective (SequenceObjective): The corpus of a component.
        pass_ (CorpusPass): All sequences.
        run (OnlineRun): The state.
        key (str): Name of the component, for messages.
        """
        super().prepare(objective, pass_, run, key)
        if "eta" not in run.numbers:
            run.numbers["eta"] = self._calibrate(pass_, run, objective, key)

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> float:
        """The learning rate of a run: rate / (offset + count). `objective`, `moves` and `n_sequences` are not used."""
        _, rate, offset = self._schedule(run)
        return rate / (offset + run.count)

    def _schedule(self, run: OnlineRun) -> tuple[float, float, float]:
        """Decay, rate and offset of a run: the learning rate at time t is rate / (offset + t)."""
        decay = 0.0 if run.is_held else 2.0 * self.l2 / run.numbers["sequences"]
        # eta / (1 + decay · eta · t) = (1 / decay) / (offset + t), where offset = 1 / (decay · eta). Without decay, the rate
        # falls as with l2 = 1
        slowing = decay if decay > 0.0 else 2.0 / run.numbers["sequences"]
        return decay, 1.0 / slowing, 1.0 / (slowing * run.numbers["eta"])

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Learn from the sequences of a pass. With l1, weights that did not occur lately pay their penalty at the end."""
        numbers = run.numbers
        l1 = 0.0 if run.is_held else self.l1
        schedule = self._schedule(run)
        if not l1:
            return self.apply(kernels.SGD, pass_, run, *schedule)
        paid = run.arrays["paid"]
        result = self.apply(kernels.SGD_L1, pass_, run, *schedule, l1 / numbers["sequences"], memory=paid)
        kernels.charge_all(pass_.corpus.learned, run.slots, numbers["scale"], numbers["due"], paid)
        return result

    def present(self, run: OnlineRun) -> Floats:
        """The current weights of a run by slot: scale · slots."""
        return run.numbers["scale"] * run.slots

    def _calibrate(self, pass_: CorpusPass, run: OnlineRun, goal: SequenceObjective, key: str) -> float:
        """Find the learning rate with the lowest objective after one pass over a sample. It tries larger and larger rates
        while that helps, then rates below the first one. RAISES (ValueError): CRF213 if all rates diverge.
        """
        corpus = pass_.corpus
        n_sequences = len(pass_.order)
        sample = np.random.default_rng((self.seed, 1 << 20)).permutation(n_sequences)[: self.calibration_samples]
        pass_ = pass_._replace(order=sample)
        share = len(sample) / run.numbers["sequences"]  # the corpus may have more sequences than this part

        def objective(position: OnlineRun) -> float:
            """The objective on the sample, at the weights of a run."""
            loss, _ = self.apply(kernels.NOTHING, pass_, position)
            weights = self.present(position)[corpus.slot_of_weight]
            if run.is_held:
                return loss + goal.anchor.cost(weights, len(sample))
            return loss + share * self.penalty(weights)

        def try_rate(eta: float) -> float:
            """The objective after a pass with this first rate; inf if the weights diverge."""
            trial = self._snapshot(run)
            trial.numbers["eta"] = eta
            decay, rate, offset = self._schedule(trial)
            if decay * rate >= offset + trial.count:  # the first step would shrink weights to 0 or beyond
                return np.inf
            _, failed = self._walk_through(pass_, trial, goal)
            value = objective(trial) if failed < 0 else np.inf
            return value if np.isfinite(value) else np.inf

        before = objective(run)
        best = np.inf
        best_eta = self.calibration_eta
        # Above 1 while rates rise. Once a rate is too large, it is below 1, and rates fall from the first one
        factor = self.calibration_rate
        n_lower = 0  # rates that lowered the objective
        eta = self.calibration_eta
        for _ in range(4 * self.calibration_candidates):
            after = try_rate(eta)
            if after < best:
                best = after
                best_eta = eta
            if after < before:
                n_lower += 1
            if n_lower >= self.calibration_candidates and factor < 1.0:
                break
            if factor > 1.0 and (after > best or after == np.inf):  # too large: continue below the first rate
                eta = self.calibration_eta
                factor = 1.0 / self.calibration_rate
            elif factor < 1.0 and after > best and n_lower > 0:
                break
            eta *= factor
        if best == np.inf:
            raise ValueError(
                Errors.CRF213.format(
                    key=key, eta=self.calibration_eta, tried=f"{self.calibration_eta:.4g} to {eta:.4g}"
                )
            )
        logger.info("%s: SGD starts with the learning rate %.4g", key, best_eta)
        return best_eta


@dataclass(kw_only=True, eq=False, repr=False)
class AdaGrad(Regularized):
    """Gives each weight its own learning rate, ``learn_rate / (epsilon + sqrt(sum of its squared gradients))`` (Duchi, Hazan &
    Singer 2011). The regularizers are proximal steps; when a feature occurs, its weights catch up on the steps that they missed.

    learn_rate (float): Numerator of the learning rates.
    epsilon (float): Constant added to the denominators.

    The other settings are those of `spacy_crf.SGD.v1`.
    """

    l2: float = setting(1.0, checks.number, fixed=True, tried=(0.03, 0.3, 3.0))
    learn_rate: float = setting(0.3, checks.positive, fixed=True, tried=(0.1, 0.3, 1.0))
    epsilon: float = setting(1e-6, checks.positive, fixed=True)

    def start(self, run: OnlineRun, objective: SequenceObjective) -> None:
        """Set up the memory of a new run: the sums of squared gradients are 0. `objective` is not used."""
        run.arrays["squares"] = np.zeros_like(run.slots)
        run.arrays["regularized"] = np.zeros_like(run.slots)

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """Learn from the sequences of a pass, and regularize the weights that did not occur at the end."""
        sequences = run.numbers["sequences"]
        regularized = run.arrays["regularized"]
        squares = run.arrays["squares"]
        l1, l2 = (0.0, 0.0) if run.is_held else (self.l1, self.l2)
        settings = (float(self.learn_rate), float(self.epsilon), l1 / sequences, l2 / sequences)
        result = self.apply(kernels.ADAGRAD, pass_, run, *settings, memory=regularized, squares=squares)
        if l1 or l2:
            seen = float(run.count + len(pass_.order))
            kernels.catch_up_all(pass_.corpus.learned, run.slots, settings, seen, regularized, squares)
        return result

    def rates(self, run: OnlineRun, objective: SequenceObjective, moves: Floats, n_sequences: int) -> Floats:
        """The learning rate of each weight: learn_rate / (epsilon + √sum of squared gradients). `moves` and `n_sequences` are not
        used.
        """
        squares = run.arrays["squares"][objective.corpus.slot_of_weight]
        return np.where(squares > 0.0, self.learn_rate / (self.epsilon + np.sqrt(squares)), 0.0)
