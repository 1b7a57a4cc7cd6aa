"""Weights with variances: a Gaussian posterior with a precision for each weight.

    q(w) = N(w; m, diag(T / p)),    p[f] = 2 · l2 + sum_t mu_t (1 - mu_t)

m is the maximum of the posterior under the prior exp(-l2 |w|²), and the sum runs over the places where the training data use the
weight, each with probability mu_t: the diagonal of the second derivatives of the loss (MacKay 1992). T is the temperature.
"""

import copy
import logging
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Optional, Union

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from spacy_crf import checks
from spacy_crf.arrays import Scores, expect_below, expect_starts, named, of_file
from spacy_crf.errors import cant_train
from spacy_crf.inference.structure import Structure
from spacy_crf.kernels.online.work import make_room
from spacy_crf.losses.clamped import LabelledLoss, LogLikelihood
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.models.weights import Weights
from spacy_crf.optimizers.batch import dot, norm
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.objective import CRFOptimizer, no_l1, setting
from spacy_crf.optimizers.online import check_sequences
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Bools, ChainCorpus, Clamp, Floats

from .errors import Errors, Warnings
from .kernels import laplace_propagation as kernels
from .kernels.laplace_propagation import Sites, Sweep
from .posterior import check_layers, save_posterior
from .uses import TINY, variances

logger = logging.getLogger("spacy.spacy_crf")

# "auto" times the features of a token, chosen among 1, 0.35 and 0.14: docs/uncertainty.md
COLD = 0.3


class Curvature(LabelledLoss):
    """Zero; in place of its derivative the second derivative of the loss by each score: how much the uses of the score vary
    among all labellings, less how much they vary among those that the annotation allows.
    """

    def __call__(
        self,
        structure: Structure,
        scores: Scores,
        clamp: Optional[Clamp],
        *,
        weights: Optional[Floats] = None,
        **told: object,
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        _, varied = variances(structure, scores, None, weights)
        allowed, known = variances(structure, scores, clamp, weights)
        for name, array in named(varied).items():
            array -= getattr(known, name)
        return np.zeros(len(allowed)), varied, allowed == -np.inf


def _temperature(owner: str, name: str, value: Any) -> Union[float, str]:
    return value if value == "auto" else checks.positive(owner, name, value)


@dataclass
class PropagationRun:
    """State of the training of one component by propagation."""

    signature: Hashable  # of the corpus
    weights: NDArray[np.float32]  # [n] those last written to the model
    mean: Floats  # [M] by slot
    precision: Floats  # [M]
    sites: Sites
    iteration: int = 0  # sweeps
    stop_reason: Optional[str] = None
    is_near_minimum: bool = True

    def to_msg(self) -> dict[str, object]:
        """The run as a file holds it."""
        return {**vars(self), "sites": list(self.sites)}


@dataclass(kw_only=True, eq=False, repr=False)
class LaplacePropagation(LBFGS):
    """Trains weights and their variances under the prior exp(-l2 · w²), for the decoder
    `spacy_crf_lab.draws.v1`. It needs features of tokens or segments, and the loss LogLikelihood.

    With method = "propagation" (Smola, Vishwanathan & Eskin 2003) each sequence keeps a Gaussian factor for each weight that it
    uses. A visit renews the factors of a sequence by the derivatives of its log-likelihood, with all other factors as the prior.
    The fixed point of the means is the MAP, which L-BFGS finds too. It trains linear chains with features of tokens.

    method (str): "propagation", or "diagonal_laplace" for L-BFGS and one more pass for the variances.
    temperature (float or "auto"): Factor of the variances; 1 for those of the posterior. "auto" is 0.3 / the mean number of
        features of a token, by which averages are calibrated better: docs/uncertainty.md says why.
    sweeps (int): With "propagation", passes over the corpus in one step.
    damping (float): With "propagation", the share of the old factors that a visit keeps, below 1.
    seed (int): With "propagation", seed of the order of the sequences.
    delta (float): With "propagation", stop when a sweep moves the weights by no more than this share of their length.

    The other settings are those of `spacy_crf.LBFGS.v1`; with "propagation", `max_iterations` counts sweeps, and settings of line
    searches, `memory` and `tolerance` have no effect.
    """

    losses: ClassVar = (LogLikelihood,)

    l1: float = setting(0.0, no_l1)
    method: str = setting("propagation", checks.one_of, fixed=True, allowed=("propagation", "diagonal_laplace"))
    temperature: Union[float, str] = setting("auto", _temperature, fixed=True)
    sweeps: int = setting(5, checks.count, most=1000)
    damping: float = setting(0.5, checks.number, fixed=True, most=0.99)
    seed: int = setting(0, checks.count, fixed=True, least=0, most=checks.ANY)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.method == "propagation":
            self.reads = "corpus"

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a loss or, with propagation, a model that it does not train."""
        super().check_fit(pipe)
        if self.wants_sequences:
            check_sequences(self, pipe)

    def step(self, objective: Any, *, key: str) -> float:
        """RAISES (ValueError): CRF347 for models whose weights are not all of sparse features, and for propagation in other
        models than chains; CRF020 for l2 = 0; CRF206 if the loss is not finite."""
        checks.expect(
            self.l2 > 0.0, type(self).__name__, "l2", self.l2, "greater than 0: the prior of weights has a variance"
        )
        if self.wants_sequences:
            return self._propagate(objective, key)
        if not hasattr(objective, "evaluate_loss"):
            raise cant_train(self, f"the shards of '{key}'", "workers evaluate nothing but the loss", "LBFGS")
        self._check_model(objective.model, key)
        value = super().step(objective, key=key)
        if self.is_worth_evaluating(key):
            # p = 2 · l2 + sum_t mu_t (1 - mu_t), divided by the temperature
            curvature = objective.evaluate_loss(self._runs[key].weights, loss=Curvature())[1]
            if hasattr(objective, "copies"):  # a variable is used √k times where each of its k weights is used once
                curvature = (curvature / np.sqrt(objective.copies))[objective.ties.group]
            prior = 2.0 * (self.l2 + getattr(objective, "strength", 0.0))
            model = objective.model
            save_posterior(model, (prior + np.maximum(curvature, 0.0)) / self._temperature_of(model))
        return value

    def _check_model(self, model: Model, key: str) -> None:
        problem = check_layers(model)
        if problem is not None:
            raise cant_train(self, f"the model of '{key}'", problem, "LBFGS")

    def _temperature_of(self, model: Model) -> float:
        if not isinstance(self.temperature, str):
            return self.temperature
        evidence = Weights(model).evidence()
        met = sum(int(counts.sum()) for name, counts in evidence.counts.items() if name != "transitions")
        return COLD / max(1.0, met / max(1, evidence.tokens))

    # ----------------------------------------------------------------------------------------------------- propagation

    def _propagate(self, objective: Any, key: str) -> float:
        corpus = objective.corpus
        model = objective.model
        self._check_model(model, key)
        if corpus.pairs is not None or corpus.segments is not None or objective.anchor is not None:
            raise cant_train(
                self,
                what=f"the model of '{key}'",
                reason="propagation is for chains with features of tokens, whose training begins anew",
                fitting='LaplacePropagation with method = "diagonal_laplace"',
            )
        run = self._run_of(objective, key)
        slots = corpus.slot_of_weight
        room = make_room(corpus, maximum=False)
        value = 0.0
        for _ in range(self.sweeps):
            if run.stop_reason is not None:
                break
            # A sweep with a loss that is not finite leaves the run as it was
            before = copy.deepcopy(run)
            order = np.random.default_rng((self.seed, run.iteration)).permutation(len(corpus.starts) - 1)
            sweep = Sweep(order, run.sites, run.mean, run.precision, self.damping)
            losses, moved, place = kernels.propagate(*room[:-1], sweep)
            if place >= 0:
                self._runs[key] = before
                raise ValueError(
                    Errors.CRF206.format(
                        what="The loss",
                        name=key,
                        where=f"for LaplacePropagation in sweep {run.iteration + 1}, at {objective.describe(int(order[place]))}",
                    )
                )
            run.iteration += 1
            mean = run.mean[slots]
            value = losses + self.l2 * dot(mean, mean)
            gap = math.sqrt(moved) / max(norm(mean), TINY)
            logger.debug("%s: sweep %d objective %.6f moves %.3g", key, run.iteration, value, gap)
            if gap <= self.delta:
                run.stop_reason = f"a sweep moved the weights by {gap:.2g} of their length, within delta = {self.delta}"
            elif self.max_iterations is not None and run.iteration >= self.max_iterations:
                run.stop_reason = f"max_iterations = {self.max_iterations} reached"
                logger.warning(Warnings.CRFW644.format(name=key, n=run.iteration, gap=gap, delta=self.delta))
        mean = run.mean[slots]
        objective.assign(mean)
        run.weights = mean.astype(np.float32)
        save_posterior(model, run.precision[slots] / self._temperature_of(model))
        return float(value)

    def _run_of(self, objective: Any, key: str) -> PropagationRun:
        run = self._runs.get(key)
        corpus = objective.corpus
        now = objective.weights().astype(np.float32)
        if run is not None and run.signature == objective.signature and np.array_equal(run.weights, now):
            self.expect_alike("weights", len(run.mean), len(corpus.learned))
            self.expect_alike("sequences", len(run.sites.starts), len(corpus.starts))
            return run
        if run is not None and key not in self._warned:
            self._warned.add(key)
            logger.warning(Warnings.CRFW201.format(key=key, optimizer=type(self).__name__))
        mean = np.zeros(len(corpus.learned))
        mean[corpus.forbidden] = -np.inf
        precision = np.full(len(mean), 2.0 * self.l2)
        run = self._runs[key] = PropagationRun(objective.signature, now, mean, precision, sites_of(corpus))
        return run

    def run_from_msg(self, msg: Any) -> Any:
        """The run of `run_to_msg`."""
        if not self.wants_sequences:
            return super().run_from_msg(msg)
        owner = "a run"
        reason = msg["stop_reason"]
        hash(msg["signature"])  # an array has none
        starts, slots, *factors = msg["sites"]
        starts = of_file("starts of the sites", starts, np.int64, (None,))
        slots = of_file("slots of the sites", slots, np.int32, (None,))
        tau_and_nu = [of_file("the sites", each, np.float64, slots.shape) for each in factors]
        mean = of_file("the mean", msg["mean"], np.float64, (None,), finite=False)
        expect_starts("starts of the sites", starts, len(slots))
        expect_below("slots of the sites", slots, len(mean))
        return PropagationRun(
            msg["signature"],
            of_file("the weights", msg["weights"], np.float32, (None,)),
            mean,
            of_file("the precision", msg["precision"], np.float64, mean.shape),
            Sites(starts, slots, *tau_and_nu),
            checks.count(owner, "iteration", msg["iteration"], least=0, most=checks.ANY),
            None if reason is None else checks.text(owner, "stop_reason", reason),
            checks.flag(owner, "is_near_minimum", msg["is_near_minimum"]),
        )

    def resume(self, objective: CorpusObjective, data: bytes, *, key: str) -> int:
        """Continue a saved run. RETURNS (int): The iterations, or with propagation the sweeps, that it has taken."""
        if self.wants_sequences:
            return CRFOptimizer.resume(self, objective, data, key=key)
        return super().resume(objective, data, key=key)


def sites_of(corpus: ChainCorpus) -> Sites:
    """Flat factors of each sequence, one for each weight that it uses."""
    starts = corpus.starts
    (slots, _, _, bounds) = corpus.states
    shared = np.arange(corpus.chain_start, len(corpus.learned))
    counts = [0]
    every = []
    for begin, end in zip(2 * starts[:-1], 2 * starts[1:]):
        # Even places list rows that are used whole, odd places single slots (`SlotUses`)
        sides = np.arange(begin, end)
        of_use = np.repeat(sides % 2 == 0, np.diff(bounds[begin : end + 1]))
        uses = slots[bounds[begin] : bounds[end]].astype(np.int64)
        rows = (uses[of_use][:, np.newaxis] + np.arange(corpus.n_states)).ravel()
        found = np.unique(np.concatenate([rows, uses[~of_use], shared]))
        every.append(found[corpus.learned[found]])
        counts.append(len(every[-1]))
    joined = np.concatenate([shared[:0], *every]).astype(np.int32)
    return Sites(np.cumsum(counts), joined, np.zeros(len(joined)), np.zeros(len(joined)))
