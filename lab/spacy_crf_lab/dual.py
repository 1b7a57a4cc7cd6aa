"""Max-margin training in the dual. Each sequence has a distribution over its labellings, which is stored as the expected uses of
scores: of tokens and transitions, and for segments also of begins, ends, lengths and listed spans. Both optimizers minimize
``loss + l2·w²`` and compute the duality gap, an upper bound for the distance from the minimum.

    primal = l2·w² + sum_i max_y (cost_i(y) + w·(features_i(y) - features_i(annotation)))
    dual   = sum_i E_i[cost] - l2·w²       with w = sum_i (features_i(annotation) - E_i[features]) / 2·l2
"""

import logging
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.errors import announcements, cant_train
from spacy_crf.losses.clamped import MaxMargin
from spacy_crf.optimizers.batch import SILENCE
from spacy_crf.optimizers.objective import L2_TRIED, SequenceObjective, no_l1, setting
from spacy_crf.optimizers.online import CorpusPass, OnlineOptimizer, OnlineRun
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import GOES_ON, ChainCorpus

from .kernels.dual import Ascent, ascend, make_table
from .uses import expect_known_states

logger = logging.getLogger("spacy.spacy_crf")


@dataclass(kw_only=True, eq=False, repr=False)
class DualOptimizer(OnlineOptimizer):
    """Base of the two optimizers. They need the whole corpus in every batch and complete annotation, and store
    T·S + B·(S + 2)·S numbers, for segments 3·T·S + N·S + B·(S + 2 + K)·S; `ExponentiatedGradient` stores twice as many.

    l2 is at least 1e-20.
    """

    reads = "corpus"
    losses: ClassVar = (MaxMargin,)

    l1: float = setting(0.0, no_l1)
    l2: float = setting(1.0, checks.number, fixed=True, tried=L2_TRIED, least=1e-20)
    gap_tolerance: float = setting(1e-3, checks.number)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._last_said = time.monotonic()

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a loss that it does not train with, and for hidden states."""
        super().check_fit(pipe)
        expect_known_states(self, pipe)

    def duality_gap(self, key: str) -> float:
        """Return an upper bound for the distance of a component's objective from its minimum after the last step."""
        return self._runs[key].numbers["primal"] - self._runs[key].numbers["dual"]

    def prepare(self, objective: SequenceObjective, pass_: CorpusPass, run: OnlineRun, key: str) -> None:
        """Begin a run, or continue one with the same corpus. RAISES (ValueError): CRF347 for a corpus without a dual."""
        corpus = pass_.corpus
        run.is_held = False  # weights of earlier training are part of the objective
        if corpus.pairs is not None:
            what = f"features of pairs of tags of '{key}'"
            reason = "they are not part of the dual"
            fitting = "LBFGS, SGD or AdaGrad, or leave these features out (transitions = [])"
            raise cant_train(self, what, reason, fitting)
        partial = int((~corpus.is_known).sum())
        if partial:
            what = f"'{key}'"
            reason = f"{partial} of {len(corpus.is_known)} sequences are not annotated completely"
            fitting = "LBFGS, SGD, AdaGrad or a perceptron, or leave these sequences out"
            raise cant_train(self, what, reason, fitting)
        if run.numbers.get("signature") != objective.signature:
            # For another corpus, weights start again from their centre, and all its sequences from their annotation
            run.arrays = self._beginning(objective, pass_, run)
            run.slots[corpus.learned] = run.arrays["centre"][corpus.learned]
            run.numbers = {"signature": objective.signature, "first": True}
            run.stop_reason = None
        elif run.frame is None:
            self.expect_arrays(run, self._beginning(objective, pass_, run))
            missing = {"first", "loss", "primal", "dual"} - {*run.numbers}
            if missing:
                raise self.unusable(f"it lacks the numbers {', '.join(sorted(missing))}")

    def _beginning(self, objective: SequenceObjective, pass_: CorpusPass, run: OnlineRun) -> dict[str, NDArray]:
        """The arrays of a run before the first pass."""
        corpus = pass_.corpus
        centre = np.zeros_like(run.slots)
        strength = np.full_like(run.slots, self.l2)
        if objective.anchor is not None:
            centre[corpus.slot_of_weight] = objective.anchor.centre
            strength[corpus.slot_of_weight] += objective.anchor.strength
        arrays = {"dual": np.zeros(len(corpus.weights)), "centre": centre, "strength": strength}
        return {**arrays, **self.distributions(corpus, pass_)}

    def distributions(self, corpus: ChainCorpus, pass_: CorpusPass) -> dict[str, NDArray]:
        """The distributions over the labellings of each sequence at the beginning."""
        rows = make_table(corpus, pass_.room).rows
        return {"uses": np.zeros((rows[-1, -1], corpus.n_states))}

    def walk(self, pass_: CorpusPass, run: OnlineRun) -> tuple[float, int]:
        """An epoch that learns, and a pass that measures the gap. RETURNS (float, int): The loss, and -1 or where it is not
        finite."""
        if run.stop_reason is not None:
            return run.numbers["loss"], -1
        _, place = self.ascend(pass_, run, learns=True)
        run.numbers["first"] = False
        if place >= 0:
            return 0.0, place
        # The pass above changes weights while it measures: a second one measures the loss at fixed weights
        loss, _ = self.ascend(pass_._replace(order=np.sort(pass_.order)), run, learns=False)
        slots = pass_.corpus.slot_of_weight
        centre = run.arrays["centre"][slots]
        strength = run.arrays["strength"][slots]
        distance = run.slots[slots] - centre
        square = float(strength @ distance**2)
        # The costs in the dual are relative to the scores at the centre: w0 · uses, and d = -uses / 2 strength
        primal = loss + square
        dual = float(run.arrays["dual"].sum()) - square - 2.0 * float((strength * distance) @ centre)
        run.numbers.update(loss=loss, primal=primal, dual=dual)
        if primal - dual <= self.gap_tolerance * abs(primal):
            run.stop_reason = f"the duality gap is within gap_tolerance = {self.gap_tolerance}"
        return loss, -1

    def ascend(self, pass_: CorpusPass, run: OnlineRun, *, learns: bool) -> tuple[float, int]:
        """Pass through the corpus once. Weights and distributions change only if `learns`. RETURNS: As `walk`."""
        *room, _ = pass_.room
        table = make_table(pass_.corpus, pass_.room)
        dual = run.arrays["dual"]
        strength = run.arrays["strength"]
        uses = run.arrays.get("uses", np.zeros((0, pass_.corpus.n_states)))
        theta = run.arrays.get("theta", uses[:0])
        rates = run.arrays.get("rates", dual[:0])
        given = pass_.order, learns, pass_.costs, run.slots, strength
        return ascend(*room, table, Ascent(*given, uses, dual, theta, rates, bool(run.numbers["first"])))

    def step(self, objective: SequenceObjective, *, key: str) -> float:
        """Run the epochs of a step, and announce the gap. RETURNS (float): The primal objective."""
        super().step(objective, key=key)
        run = self._runs[key]
        numbers = run.numbers
        # Announce the progress to all users now and then, and the final gap
        is_done = run.stop_reason is not None
        ended = is_done and not numbers.get("told", False)
        now = time.monotonic()
        say = logger.info
        if ended or now - self._last_said >= SILENCE:
            say = announcements.info
            self._last_said = now
            numbers["told"] = is_done
        text = "%s: %s epoch %d primal %.6f dual %.6f gap %.6f"
        text += f" is within gap_tolerance = {self.gap_tolerance}" if ended else ""
        values = (numbers["primal"], numbers["dual"], self.duality_gap(key))
        say(text, key, type(self).__name__, run.iteration, *values)
        return numbers["primal"]


class FrankWolfe(DualOptimizer):
    """A structural SVM by block-coordinate Frank-Wolfe (Lacoste-Julien, Jaggi, Schmidt & Pletscher 2013, algorithm 3). It needs
    no learning rate, since the best step along each direction has a closed form.

    l1 (float): 0, as only LBFGS, SGD and AdaGrad set weights to 0.
    l2 (float): Weight of w², without a factor 1/2: lambda·n/2 in the paper.
    gap_tolerance (float): Stop when the duality gap is at most this fraction of the objective.
    epochs_per_step (int): Passes over the corpus in one step, at most 1,000.
    seed (int): Random seed for the order of the sequences.
    """


@dataclass(kw_only=True, eq=False, repr=False)
class ExponentiatedGradient(DualOptimizer):
    """Exponentiated gradients on the max-margin dual, by the marginals of tokens and transitions (Bartlett, Collins, Taskar &
    McAllester 2004, figure 2). It visits one sequence at a time, each with its own step size (Collins, Globerson, Koo, Carreras
    & Bartlett 2008, section 6).

    l1 (float): 0, as only LBFGS, SGD and AdaGrad set weights to 0.
    l2 (float): Weight of w², without a factor 1/2: 1/2C in the paper.
    rate (float): First step size.
    gap_tolerance (float): Stop when the duality gap is at most this fraction of the objective.
    epochs_per_step (int): Passes over the corpus in one step, at most 1,000.
    seed (int): Random seed for the order of the sequences.
    """

    rate: float = setting(1.0, checks.number, fixed=True, least=checks.LEAST, most=1e6)

    def distributions(self, corpus: ChainCorpus, pass_: CorpusPass) -> dict[str, NDArray]:
        """Nearly all of the mass on the annotation."""
        arrays = super().distributions(corpus, pass_)
        rows = make_table(corpus, pass_.room).rows
        theta = np.zeros(arrays["uses"].shape)
        tokens = np.concatenate([np.arange(*bounds) for bounds in rows[:, :2]])
        # Logarithms of masses up to a constant: exp(5) to 1 for the annotated state
        theta[tokens, corpus.gold] = 5.0
        if corpus.segments is not None:
            begins = np.concatenate([np.arange(*bounds) for bounds in rows[:, 2:4]])
            theta[begins[corpus.segments.path == GOES_ON]] = -5.0
        return {**arrays, "theta": theta, "rates": np.full(len(corpus.weights), float(self.rate))}
