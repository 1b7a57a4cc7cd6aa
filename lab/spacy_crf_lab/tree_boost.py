"""Gradient boosting of trees: each round adds a tree that fits the residuals of all tokens, what the annotation has more of each
state than the model expects (Friedman 2001; Dietterich, Hao & Ashenfelter 2008, for CRFs).

    residual[t, y] = -dloss/dscore[t, y] = 1[y_t = y] - P(y_t = y)

for the log-likelihood, where the second derivative is P (1 - P). A leaf has the Newton step of its tokens, and so have the
transitions, all times `shrinkage`.
"""

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.arrays import of_file
from spacy_crf.errors import announcements, cant_train
from spacy_crf.inference.threads import default_threads
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.optimizers.objective import CRFOptimizer, renew, setting
from spacy_crf.pipeline.prediction import CRFPipe
from spacy_crf.progress import Bar
from spacy_crf.types import Floats

from .boosted_emissions import BoostedCorpus, BoostedNode
from .tree_growth import Growth, grow, newton_step
from .trees import MOST_LEAVES, Forest
from .uses import Variances

_HALVINGS = 10


@dataclass
class BoostRun:
    """State of the training of one component."""

    weights: Floats  # [n] shared scores, without the rounding to float32
    forest: Forest
    iteration: int = 0  # rounds
    stop_reason: Optional[str] = None

    def to_msg(self) -> list[object]:
        """The run as a file holds it."""
        return [self.weights, [*self.forest], self.iteration]


@dataclass(kw_only=True, eq=False, repr=False)
class TreeBoost(CRFOptimizer):
    """Grows the trees of `spacy_crf_lab.BoostedEmissions.v1`, one in each round, from all texts (`spacy_crf.full_batch.v1`). For
    losses with a gradient, such as LogLikelihood.

    rounds_per_step (int): Trees between two evaluations, at most 1,000.
    leaves (int): Most leaves of a tree, at most 64.
    shrinkage (float): Factor of each tree and of the steps of transitions. A loss that rises halves it for the round.
    l2 (float): Positive; the larger, the smaller the scores of leaves with few tokens.
    subsample (float): Share of the tokens that count for the splits of a tree, drawn anew in each round.
    min_gain (float): Splits that lower the loss by less, to second order and before `shrinkage`, are not made.
    seed (int): Random seed of the drawing.
    """

    rounds_per_step: int = setting(5, checks.count, most=1000)
    leaves: int = setting(64, checks.count, fixed=True, tried=(4, 8, 16, 32, 64), most=MOST_LEAVES)
    shrinkage: float = setting(
        0.2, checks.number, fixed=True, tried=(0.05, 0.1, 0.2, 0.3), least=checks.LEAST, most=1.0
    )
    l2: float = setting(1.0, checks.positive, fixed=True, tried=(0.3, 1.0, 3.0, 10.0))
    subsample: float = setting(0.5, checks.number, fixed=True, least=checks.LEAST, most=1.0)
    min_gain: float = setting(0.0, checks.number, fixed=True)
    seed: int = setting(0, checks.count, fixed=True, least=0, most=checks.ANY)

    def check_fit(self, pipe: CRFPipe) -> None:
        """RAISES (ValueError): CRF347 for a loss that it does not train with, and a model without trees."""
        super().check_fit(pipe)
        if not any(isinstance(part.attrs.get("node"), BoostedNode) for part in pipe.model.walk()):
            raise cant_train(
                self,
                what=f"the model of '{pipe.name}'",
                reason="it has no trees that could grow",
                fitting="spacy_crf.LBFGS.v1",
            )

    def step(self, objective: CorpusObjective, *, key: str) -> float:
        """RAISES (ValueError): CRF347 if the model continues from earlier training."""
        corpus = self._corpus(objective, key)
        renew(objective)
        run = self._runs.get(key)
        # Another optimizer or a loaded model has changed the trees
        if run is None or run.forest is not corpus.features.forest or len(run.weights) != len(objective.weights()):
            iteration = 0 if run is None else run.iteration
            run = self._runs[key] = BoostRun(objective.weights(), corpus.features.forest, iteration)
        value, gradient = objective.evaluate(run.weights)
        try:
            with Bar(f"{key}: {type(self).__name__}", "round", self.rounds_per_step) as bar:
                for done in range(1, self.rounds_per_step + 1):
                    if run.stop_reason is not None:
                        break
                    value, gradient = self._round(objective, corpus, run, value, gradient, key)
                    bar.show(done, f"loss {value:,.1f}")
        finally:
            objective.assign(run.weights)
        return value

    def _corpus(self, objective: CorpusObjective, key: str) -> BoostedCorpus:
        found = [layer for layer in getattr(objective, "parts", [()])[-1] if isinstance(layer, BoostedCorpus)]
        if not found:
            raise cant_train(
                self,
                what=f"the model of '{key}'",
                reason="it goes on from earlier training, and trees for later texts alone would change what it has learned",
                fitting="all texts, in a training from the beginning",
            )
        return found[0]

    def _round(
        self, objective: CorpusObjective, corpus: BoostedCorpus, run: BoostRun, value: float, gradient: Floats, key: str
    ) -> tuple[float, Floats]:
        """Grow a tree, and move the transitions. RETURNS (float, float64[n]): The loss and its gradient afterwards."""
        settings = Growth(self.leaves, self.shrinkage, self.l2, self.min_gain)
        before = corpus.scores
        size = corpus.scores.shape[1]
        # [T, 2 S] residuals, then second derivatives
        derivatives: NDArray[np.float32] = np.empty((len(before), 2 * size), dtype=np.float32)
        derivatives[:, :size] = -corpus.derivatives
        # P (1 - P) for the scores of states, and likewise for transitions
        _, curvature = objective.evaluate_loss(run.weights, loss=Variances())
        derivatives[:, size:] = corpus.derivatives
        # By the round's number, so that a resumed training draws the same
        drawn = np.random.default_rng((self.seed, run.iteration)).random(len(before)) < self.subsample
        tree, leaf_of = grow(corpus.postings, derivatives, drawn, settings, default_threads())
        move = newton_step(-gradient, curvature, settings)
        # A step that raises the loss is halved until it lowers it
        for halving in range(_HALVINGS):
            part = tree._replace(values=tree.values * np.float32(0.5**halving))
            weights = run.weights + 0.5**halving * move
            corpus.set_trees(run.forest.plus(part), before + part.values[leaf_of])
            found, of_found = objective.evaluate(weights)
            if found < value:
                run.weights = weights
                run.forest = corpus.features.forest
                run.iteration += 1
                return found, of_found
        corpus.set_trees(run.forest, before)
        run.stop_reason = f"round {run.iteration + 1} found no tree that lowers the loss"
        announcements.info("%s: %s stopped at loss %.6f: %s", key, type(self).__name__, value, run.stop_reason)
        return value, gradient

    def resume(self, objective: CorpusObjective, data: bytes, *, key: str) -> int:
        """Continue a saved run. RETURNS (int): The rounds that it has taken."""
        run: BoostRun = self.saved_run(data, key)
        corpus = self._corpus(objective, key)
        try:
            run.forest.check(len(corpus.features.index), corpus.scores.shape[1])
        except ValueError as error:
            raise self.unusable(error) from error
        self.expect_alike("weights", len(run.weights), len(objective.weights()))
        objective.assign(run.weights)
        corpus.features.forest = run.forest
        self._runs[key] = run
        return run.iteration

    def run_from_msg(self, msg: Any) -> BoostRun:
        """The run of `run_to_msg`."""
        weights, forest, iteration = msg
        read = Forest(*(array.copy() for array in forest))
        read.check(1 + int(read.feature.max(initial=-1)), read.values.shape[1])
        checks.count("a run", "iteration", iteration, least=0, most=checks.ANY)
        return BoostRun(of_file("the weights", weights, np.float64, (None,)), read, iteration)
