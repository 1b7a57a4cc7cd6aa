"""Chains of higher order: the score of a tag may depend on up to three tags before it.

    score(y) = sum_t emissions[t, y_t] + transitions[y_(t-1), y_t] + sum_(m > 1) grams[y_(t-m) ... y_t]

The recursions sum over the last level of a lattice (`lattice`). Without a limit (``keep``) the lattice contains every
labelling, and all results are exact.
"""

from copy import copy
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..kernels import higher_order as kernels
from ..kernels.spans import SpanStates
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats, Path
from .pruned_lattice import (
    HigherOrderScores,
    HigherOrderWork,
    LatticeCache,
    Orders,
    indexed,
)
from .structure import LikelySpans, ScoresOrWork, States, Structure, collect


class HigherOrder(Structure[HigherOrderScores]):
    """Answers the questions of `Structure` for `HigherOrderScores`, and for `ChainScores` as chains of order 1. Clamps are
    bool[T, S]. If lattices are pruned, sums run over the remaining labellings.
    """

    chunk_tokens = 512
    cache: Optional[LatticeCache] = None  # lattices of one batch, see `with_cache`
    work = HigherOrderWork

    def conform(self, scores: Union[HigherOrderScores, ChainScores]) -> HigherOrderScores:
        """Check `scores`, and index their n-grams; chains of order 1 have none."""
        if isinstance(scores, ChainScores):
            scores = HigherOrderScores(
                *scores[:4],
                grams=np.zeros(0),
                orders=Orders(order=1, keys=np.zeros(0, dtype=np.int64), size=np.shape(scores.emissions)[1]),
                starts=scores.starts,
            )
        orders = scores.orders
        arrays.check_shape("grams", scores.grams, (len(orders.keys),), "one number for each n-gram that has a weight")
        return super().conform(scores._replace(orders=indexed(orders)))

    def prepare(
        self,
        scores: Union[ChainScores, ScoresOrWork],
        clamp: Optional[Clamp] = None,
        *,
        annotated: Optional[Clamp] = None,
    ) -> HigherOrderWork:
        """Check scores once, for several questions. If lattices are pruned, they keep the labellings of the annotation.

        scores (HigherOrderScores, ChainScores or Work): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        annotated (bool[T, S]): States that the annotation allows, in training.
        """
        work: Any = super().prepare(scores, clamp)  # a HigherOrderWork
        is_pruned = work.scores.orders.keep is not None
        return work if annotated is None or not is_pruned else work.around(annotated, self.cache)

    def with_cache(self) -> "HigherOrder":
        """A copy that evaluates one batch repeatedly, with the same lattices until ``cache.renew()``."""
        structure = copy(self)
        structure.cache = LatticeCache()
        return structure

    def narrow(self, work: HigherOrderWork, expected: HigherOrderScores) -> HigherOrderScores:
        """The derivatives `expected` with respect to the scores that the caller passed, with the measured thresholds of
        pruning.
        """
        return _with_thresholds(work, super().narrow(work, expected))

    def viterbi_counts(
        self, scores: ScoresOrWork, *, clamp: Any = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, HigherOrderScores]:
        """Scores of the best paths of `scores` that `clamp` allows, and their use of each score times `weights`
        (float64[B]).
        """
        work = self.prepare(scores, clamp)
        best, used = super().viterbi_counts(work, weights=weights)
        return best, _with_thresholds(work, used)

    def forward(self, work: HigherOrderWork) -> Floats:
        """Log partitions of the chunk `work`: log-sums over its lattice, or over single tokens where pruning lost the
        annotation.
        """
        # `sums` computes alpha[n] = score[n] + logsum over arcs (m, n) of alpha[m] + weight[m, n], for the lattice's nodes n
        log_z = work.sums.log_z
        is_lost = work.lattice.depth == 0  # pruning lost the annotation: the tokens are independent
        if is_lost.any():
            independent_log_z, _ = work.alone
            log_z = np.where(is_lost, independent_log_z, log_z)
        return log_z

    def expect(self, work: HigherOrderWork, weights: Floats, out: HigherOrderScores) -> Floats:
        """Both passes over the lattice of `work`: `out` becomes the derivative of sum_b `weights`[b] · log_z[b]."""
        level = work.lattice.level
        depth = work.lattice.depth
        kernels.collect(level, work.sums.chances(weights), work.starts, _flat(out))
        if not depth.all():
            # Pruning lost the annotation at the first level: tokens are independent
            alone = work.are_alone
            _, probabilities = work.alone
            out.emissions[alone] += weights[work.sequence_of[alone], np.newaxis] * probabilities
        return self.forward(work)

    def best(self, work: HigherOrderWork) -> Path:
        """Best path through the lattice of each sequence of `work`."""
        sums = work.sums
        depth = work.lattice.depth
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(sums.level, sums.scores, sums.weights, work.starts, *path)
        if not depth.all():
            # Pruning lost the annotation: each token has its best state
            alone = work.are_alone
            best = work.emissions.max(axis=1, initial=-np.inf)
            path.states[alone] = np.where(best > -np.inf, work.emissions.argmax(axis=1), -1)[alone]
            totals = np.bincount(work.sequence_of, best, minlength=work.n_sequences).astype(np.float64)
            path.scores[depth == 0] = totals[depth == 0]
        return path

    def rank(self, work: HigherOrderWork, states: States, scores: Floats) -> int:
        """The best paths of the sequence `work`, in `states` (int32[n, T]), and their `scores` (float64[n])."""
        sums = work.sums
        return kernels.n_best(sums.level, sums.scores, sums.weights, len(scores), states, scores)

    def draw(self, work: HigherOrderWork, uniforms: Floats) -> States:
        """Paths through the lattice of `work`, drawn by `uniforms` (float64[n, T]): int32[n, T]."""
        drawn = np.empty(uniforms.shape, dtype=np.int32)
        kernels.sample(work.sums.level, work.sums.chances(), work.starts, uniforms, drawn)
        return drawn

    def score_path(self, work: HigherOrderWork, states: States) -> Floats:
        """Scores by `work` of the paths `states` (int32[T]): float64[B]."""
        totals = np.empty(work.n_sequences)
        potentials = work.emissions, work.scores.first, work.scores.last, work.table, work.stride
        order = work.scores.orders.levels
        depth = self._depths(work)
        kernels.score_paths(states, potentials, work.starts, work.grams, order, depth, totals)
        return totals

    def add_path(self, work: HigherOrderWork, states: States, weights: Floats, out: HigherOrderScores) -> None:
        """Add `weights` (float64[B]) to the scores in `out` that the paths `states` (int32[T]) of `work` use."""
        order = work.scores.orders.levels
        depth = self._depths(work)
        kernels.add_paths(states, weights, work.starts, work.grams, order, work.stride, depth, _flat(out))

    def _depths(self, work: HigherOrderWork) -> NDArray[np.int64]:
        """The order up to which the lattice of each sequence was built: int64[B]."""
        whole = work.whole
        if whole.annotated is None:
            return np.full(work.n_sequences, work.scores.orders.levels)
        if whole.depths is None:
            chunks = whole.chunks(self.chunk_tokens)
            whole.depths = np.concatenate([whole.cut(chunk).lattice.depth for chunk in chunks])
        return whole.depths

    def weigh_spans(self, work: HigherOrderWork, spans: SpanStates, segments: Segments) -> Floats:
        """Probabilities in `work` of the spans `segments`; `spans` says how states encode them: float64[N]."""
        probabilities = np.zeros(len(segments.start))
        posterior = self._posterior(work, spans)
        kernels.span_probabilities(*posterior, segments.start, segments.end, segments.label, probabilities)
        return probabilities

    def list_spans(self, work: HigherOrderWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        """The spans in `work` whose probability is at least `min_prob`; `spans` says how states encode them."""
        posterior = self._posterior(work, spans)

        def search(*out: NDArray) -> int:
            return kernels.likely_spans(*posterior, work.starts, float(min_prob), *out)

        # Room for four spans at each token; `collect` makes more if they are not enough
        segments, probabilities = collect(search, 4 * work.n_tokens)
        order = np.argsort(segments.start, kind="stable")
        return LikelySpans(Segments(*(column[order] for column in segments)), probabilities[order])

    def _posterior(self, work: HigherOrderWork, spans: SpanStates) -> tuple:
        """The first arguments of the kernels that compute span probabilities."""
        level = work.sums.level
        chances = work.sums.chances()
        tag_of = work.tag_of
        state_spans = spans if tag_of is None else spans.over(tag_of)
        # Probabilities that a span begins, or ends, at each node
        enters = np.zeros(len(level.symbol))  # [N]
        leaves = np.zeros(len(level.symbol))
        kernels.span_ends(level, chances, state_spans.continues, work.starts, enters, leaves)
        return level, chances, (enters, leaves), state_spans.continues, state_spans.label_of


def _with_thresholds(work: HigherOrderWork, derivatives: HigherOrderScores) -> HigherOrderScores:
    """Derivatives that also report the thresholds of pruning in training, as the geometric mean over chunks."""
    if work.whole.annotated is None or isinstance(derivatives, ChainScores):
        return derivatives
    lattices = work.whole.lattices
    measured = np.full(work.scores.orders.levels, np.nan)
    for m in range(len(measured)):
        # In the order of the chunks, so that the mean has the same bits with any number of threads
        thresholds = [float(lattices[first].thresholds[m]) for first in sorted(lattices)]
        positive = [threshold for threshold in thresholds if threshold > 0.0]
        if positive:
            measured[m] = np.exp(np.log(positive).mean())
    return derivatives._replace(orders=derivatives.orders._replace(measured=measured))


def _flat(out: Union[HigherOrderScores, ChainScores]) -> tuple[Floats, ...]:
    """The arrays to which kernels add derivatives. `ChainScores` have no n-grams."""
    grams = getattr(out, "grams", np.zeros(0))
    return out.emissions, out.first, out.last, out.transitions.reshape(-1), grams
