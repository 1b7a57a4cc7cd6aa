"""Feature induction (Della Pietra, Della Pietra & Lafferty 1997; for chains McCallum 2003): a model grows from nothing, by those
features of a large pool that gain most.
"""

import json
import logging
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Optional

import numpy as np

from spacy_crf import checks
from spacy_crf.arrays import of_file
from spacy_crf.errors import announcements, cant_train
from spacy_crf.features.feature_index import FeatureIndex, FeatureNames
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.corpus import FixedTokens, SparseCorpus
from spacy_crf.models.objective import CorpusObjective, TiedObjective
from spacy_crf.models.weights import checksum
from spacy_crf.optimizers.batch import ROUNDED, TINY, BatchOptimizer
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.optimizers.objective import CRFOptimizer, setting
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.types import Bools, Floats, Ints, Settings

from .conjugate_gradient import ConjugateGradient
from .errors import Warnings
from .feature_gains import STATES, gains, uncertain_tokens
from .uses import expect_known_states

logger = logging.getLogger("spacy.spacy_crf")
_NAMED = 5  # features of each round that the log names


class Candidates:
    """W weights of features of tokens, one for all features that occur at the same tokens, and the rest of a model.

    objective (TiedObjective): Its variables, each of them as one weight, are the weights of `whole`.
    """

    def __init__(self, objective: TiedObjective):
        n = len(objective.copies)
        # Variables of the objective are shared by features of the same tokens: each counts once
        self.whole: CorpusObjective = objective.restricted(np.ones(n, dtype=bool))
        self.layer: Any = place_of_states(objective)
        self.tokens: FixedTokens = self.whole.parts[2][self.layer].tokens[STATES]
        numbers: Any = np.arange(n)
        self.weights: Any = self.whole.split(numbers)[0][STATES]  # [W] places of the candidates among all weights
        self.feature = self.tokens.table.rows_of_pairs()  # [W] row of each candidate
        self.names: FeatureNames = self.tokens.table.index.feature_names
        self.parts = parts_of(self.names)  # [F, P]
        self.is_conjunction: Any = (self.parts >= 0).any(axis=1)  # [F]

    def templates(self, chosen: Bools) -> list[str]:
        """The templates of the chosen candidates (bool[W]), those with most of them first."""
        counts = Counter(self.names.template_of[self.feature[chosen]].tolist())
        return [self.names.templates[template] for template, _ in counts.most_common()]


def place_of_states(objective: CorpusObjective) -> Optional[int]:
    """Number of the layer with counted features of tokens; None if there is no such layer, or several."""
    places = [
        place
        for place, layer in enumerate(objective.parts[2])
        if isinstance(layer, SparseCorpus)
        and STATES in layer.tokens
        and isinstance(layer.features.tables[STATES].index, FeatureIndex)
    ]
    return places[0] if len(places) == 1 else None


def parts_of(names: FeatureNames) -> Ints:
    """The features that each feature is a conjunction of: int64[F, P], -1 for none. A template of several parts makes
    conjunctions of the features of its parts, as far as these are templates themselves.
    """
    # Conjunctions are spelled "A|B": the parts between the bars are templates, if the model has them
    first = names.part_starts[:-1]
    widths = [1 + template.count("|") for template in names.templates]
    found = np.full((len(names.template_of), max(widths, default=1)), -1)
    rows_of = [np.flatnonzero(names.template_of == number) for number in range(len(names.templates))]
    # Row of each feature of a single part, by template and then by value
    row_of_value = {}
    for template, width, rows in zip(names.templates, widths, rows_of):
        if width == 1:
            row_of_value[template] = np.full(len(names.strings), -1)
            row_of_value[template][names.parts[first[rows]]] = rows
    for template, width, rows in zip(names.templates, widths, rows_of):
        for place, part in enumerate(template.split("|") if width > 1 else ()):
            if part in row_of_value:
                found[rows, place] = row_of_value[part][names.parts[first[rows] + place]]
    return found


def single_weights(objective: TiedObjective) -> Floats:
    """The weights of the model, summed up for each variable: float64[m]."""
    return objective.spread(objective.weights())


class Chosen:
    """The objective of some of the weights, for the inner optimizer: see `optimizers.objective.Objective`.

    whole (CorpusObjective): All weights. chosen (bool[m]): Those that count.
    """

    def __init__(self, objective: TiedObjective, whole: CorpusObjective, chosen: Bools):
        self._objective = objective
        self._chosen = chosen
        self.restricted = whole.restricted(chosen)
        self.signature = (*objective.signature, checksum([chosen]))
        self.frequencies = self.restricted.frequencies
        self.renew = self.restricted.renew
        self.evaluate_loss = self.restricted.evaluate_loss
        self.evaluate = self.restricted.evaluate

    def weights(self) -> Floats:
        """The chosen weights of the model."""
        return single_weights(self._objective)[self._chosen]

    def assign(self, weights: Floats) -> None:
        """Write weights to the model: for features of the same tokens to the first one alone."""
        of_model = np.zeros(len(self._objective.ties.group))
        of_model[self._objective.ties.place[self._chosen]] = weights
        self._objective.frame().assign(of_model)


@dataclass
class InductionRun:
    """State of the training of one component."""

    signature: Hashable
    weights: Floats  # [m] of all weights of the objective
    chosen: Bools  # [m]
    worth: Floats  # [F] the largest gain that a weight of each feature has had
    inner: Any  # the optimizer of the weights, with its state
    value: float = 0.0  # of the objective
    iteration: int = 0  # rounds
    is_grown: bool = False  # whether no more weights are chosen
    stop_reason: Optional[str] = None
    candidates: Any = None  # not saved

    def to_msg(self) -> dict[str, object]:
        """The run as a file holds it, without the candidates."""
        return {**vars(self), "inner": self.inner.to_bytes(), "candidates": None}

    def continues(self, objective: TiedObjective) -> bool:
        """Whether the objective is the same function, at the same weights."""
        if self.signature != objective.signature:
            return False
        weights = single_weights(objective)
        return len(weights) == len(self.weights) and np.allclose(weights, self.weights, rtol=ROUNDED, atol=TINY)


def _inner(owner: str, name: str, value: Any) -> BatchOptimizer:
    checks.expect(isinstance(value, (LBFGS, ConjugateGradient)), owner, name, value, "LBFGS or ConjugateGradient")
    return value


@dataclass(kw_only=True, eq=False, repr=False)
class FeatureInduction(CRFOptimizer):
    """Trains a small model with few of the features that templates find. Each step is a round: it adds those weights of features
    and tags that gain most, each estimated alone, and trains all weights so far. Where nothing is left to add, training goes on
    until the inner optimizer stops. Of features of the same tokens only the first one gets weights.

    per_round (int): Most weights that a round adds.
    pool (int): From the second round on, conjunctions of the features with the largest gains, so many, may be added.
    conjunctions (bool): Whether to add features of templates that join others, such as those of `spacy_crf_lab.feature_pairs.v1`.
    iterations (int): Iterations of the inner optimizer in each step.
    min_gain (float): Least gain in log-likelihood, less the cost by l1 and l2, of a weight that is added, and of a round.
    max_weights (Optional[int]): Most weights of features. None for no limit.
    inner (Optimizer): LBFGS or ConjugateGradient, with its l1, l2 and stop rules. LBFGS by default.
    """

    losses: ClassVar = (LogLikelihood,)

    per_round: int = setting(500, checks.count, fixed=True, most=10_000_000)
    pool: int = setting(1000, checks.count, fixed=True, most=10_000_000)
    conjunctions: bool = setting(True, checks.flag, fixed=True)
    iterations: int = setting(10, checks.count)
    min_gain: float = setting(0.01, checks.number, fixed=True)
    max_weights: Optional[int] = setting(None, checks.count, fixed=True, most=10_000_000)
    inner: Any = setting(None, _inner)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inner = LBFGS() if self.inner is None else self.inner
        self.leaves_zeros = True

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a loss that it does not train with, and for hidden states."""
        super().check_fit(pipe)
        expect_known_states(self, pipe)  # hidden states begin with random weights

    def step(self, objective: Any, *, key: str) -> float:
        """Run a round. RAISES (ValueError): CRF347 for models without counted features of tokens, or that go on from others."""
        run = self._run_of(objective, key)
        if run.stop_reason is None:
            if run.iteration == 0:
                self._fit(objective, run, key)  # without features
            run.iteration += 1
            if not run.is_grown:
                before = run.value
                self._grow(objective, run, key)
                # It remembers steps in a space of fewer weights
                run.inner.forget(key)
                self._fit(objective, run, key)
                self._judge(run, before, key)
            else:
                self._fit(objective, run, key)
                run.stop_reason = run.inner.stop_reason(key)
        return run.value

    def _run_of(self, objective: CorpusObjective, key: str) -> InductionRun:
        if not isinstance(objective, TiedObjective):
            reason = "it begins without features, with all texts in this process"
            raise cant_train(self, f"'{key}' from earlier training, or on shards", reason, "spacy_crf.LBFGS.v1")
        if place_of_states(objective) is None:
            reason = "it chooses among the features of a layer of SparseEmissions"
            raise cant_train(self, f"the model of '{key}'", reason, "spacy_crf.LBFGS.v1")
        if objective.node.prunes_labellings(objective.parts[0]):
            reason = "the labellings that count change with the weights, and gains are compared from round to round"
            raise cant_train(
                self, f"the pruned labellings of '{key}'", reason, "spacy_crf.LBFGS.v1, or set keep = null"
            )
        run = self._runs.get(key)
        if run is None or not run.continues(objective):
            known = Candidates(objective)
            weights = single_weights(objective)
            # Transitions count from the beginning, features when they are chosen
            chosen = np.ones(len(weights), dtype=bool)
            chosen[known.weights] = weights[known.weights] != 0.0
            if self.conjunctions and not known.is_conjunction.any():
                logger.warning(Warnings.CRFW630.format(name=key))
            worth = np.zeros(len(known.parts))
            inner = self.inner.without_runs()
            run = self._runs[key] = InductionRun(objective.signature, weights, chosen, worth, inner, candidates=known)
        if run.candidates is None:
            run.candidates = Candidates(objective)
            self.expect_alike("features", len(run.worth), len(run.candidates.parts))
        return run

    def _grow(self, objective: TiedObjective, run: InductionRun, key: str) -> None:
        """Choose the weights that gain most."""
        known: Candidates = run.candidates
        now = known.whole.restricted(run.chosen)
        uncertain = uncertain_tokens(now, known.layer, run.weights[run.chosen])
        is_new = self._allowed(run)[known.feature] & ~run.chosen[known.weights]
        # Each gain as if its weight alone were added
        found, _ = gains(known.tokens, uncertain, is_new, l1=self.inner.l1, l2=self.inner.l2)
        np.maximum.at(run.worth, known.feature, found)
        # The largest gains first; the order of equal gains is that of the features
        best = np.argsort(-found, kind="stable")[: self.per_round]
        best = best[found[best] >= max(self.min_gain, TINY)]
        n_before = int(run.chosen[known.weights].sum())
        best = best if self.max_weights is None else best[: max(0, self.max_weights - n_before)]
        run.chosen[known.weights[best]] = True
        names = ", ".join(map(known.names.of, dict.fromkeys(known.feature[best[:_NAMED]].tolist())))
        text = "%s: round %d adds %d weights to %d, of %d candidates, with gains of %.3g to %.3g%s"
        span = found[best[[0, -1]]] if len(best) else np.zeros(2)
        shown = f": {names} …" if names else ""
        announcements.info(text, key, run.iteration, len(best), n_before, int(is_new.sum()), *span, shown)

    def _allowed(self, run: InductionRun) -> Bools:
        """Which features may get weights: bool[F]."""
        is_conjunction = run.candidates.is_conjunction
        if not self.conjunctions or run.iteration == 1:
            return ~is_conjunction
        # A conjunction is tried if one of its parts is among the features with the largest gains so far
        atoms = np.flatnonzero(~is_conjunction)
        in_pool = np.zeros(len(is_conjunction) + 1, dtype=bool)  # the last one stands for part -1
        in_pool[atoms[np.argsort(-run.worth[atoms], kind="stable")[: self.pool]]] = True
        return ~is_conjunction | in_pool[run.candidates.parts].any(axis=1)

    def _judge(self, run: InductionRun, before: float, key: str) -> None:
        """Decide whether the model is grown, and tell the templates that it has then."""
        chosen = run.chosen[run.candidates.weights]
        is_full = False
        if self.max_weights is not None:
            is_full = int(chosen.sum()) >= self.max_weights
        waits = self.conjunctions and run.iteration == 1 and run.candidates.is_conjunction.any()  # for the pool
        run.is_grown = bool(is_full or (not waits and before - run.value < max(self.min_gain, TINY)))
        if run.is_grown:
            announcements.info(
                "%s: has grown to %d weights of features in %d rounds. Its templates are %s",
                key,
                int(chosen.sum()),
                run.iteration,
                json.dumps(run.candidates.templates(chosen), ensure_ascii=False),
            )

    def _fit(self, objective: TiedObjective, run: InductionRun, key: str) -> None:
        """Train the chosen weights."""
        of_chosen = Chosen(objective, run.candidates.whole, run.chosen)
        # From the weights of the round before
        run.inner.iterations_per_step = self.iterations
        run.value = run.inner.step(of_chosen, key=key)
        run.weights = single_weights(objective)
        objective.n_impossible = of_chosen.restricted.n_impossible

    def resume(self, objective: TiedObjective, data: bytes, *, key: str) -> int:
        """Continue a saved run. RETURNS (int): The rounds that it has taken."""
        run: InductionRun = self.saved_run(data, key)
        self.expect_alike("weights", len(run.weights), len(single_weights(objective)))
        whole = objective.restricted(np.ones(len(run.chosen), dtype=bool))
        Chosen(objective, whole, run.chosen).assign(run.weights[run.chosen])
        self._runs[key] = run
        return run.iteration

    def run_from_msg(self, msg: Settings) -> InductionRun:
        """The run of `run_to_msg`."""
        owner = "a run"
        reason = msg["stop_reason"]
        hash(msg["signature"])  # an array has none
        inner = self.inner.without_runs().from_bytes(msg["inner"])
        weights = of_file("the weights", msg["weights"], np.float64, (None,))
        return InductionRun(
            msg["signature"],
            weights,
            of_file("the chosen weights", msg["chosen"], np.bool_, weights.shape),
            of_file("the gains", msg["worth"], np.float64, (None,)),
            inner,
            checks.number(owner, "value", msg["value"], least=-checks.MOST),
            checks.count(owner, "iteration", msg["iteration"], least=0, most=checks.ANY),
            checks.flag(owner, "is_grown", msg["is_grown"]),
            None if reason is None else checks.text(owner, "stop_reason", reason),
        )
