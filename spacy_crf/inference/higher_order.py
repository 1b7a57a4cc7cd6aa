"""Chains of higher order: the score of a tag may depend on up to three tags before it.

    score(y) = sum_t emissions[t, y_t] + transitions[y_(t-1), y_t] + sum_(m > 1) grams[y_(t-m) ... y_t]

The recursions sum over the last level of a lattice (`lattice`). Without a limit (``keep``) the lattice contains every
labelling, and all results are exact.
"""

from copy import copy
from functools import cached_property
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
    LatticeCache,
    Orders,
    PrunedLattice,
    Sums,
    indexed,
    make_lattice,
    with_scores,
)
from .structure import Chunk, LikelySpans, ScoresOrWork, States, Structure, Work, collect

_LIKELY_TOKENS = 4  # factor for the size of chunks if lattices are pruned
_LIKELY_ARCS = 1 << 23  # number of arcs of a chunk if they are not


class HigherOrderWork(Work[HigherOrderScores]):
    """Scores of higher-order chains, prepared for the kernels.

    Each chunk builds its lattice once: from the labellings that the clamp allows or, if `around` names an annotation, from all
    labellings, which include the annotated ones.
    """

    annotated: Any = None  # clamp of the annotation of the whole batch, if lattices are built around it
    place: int = 0  # first token of the chunk in the whole batch
    depths: Optional[NDArray[np.int64]] = None  # [B] order of each sequence of the whole batch, once known
    lattices: dict[int, PrunedLattice]  # around the annotation, by the first token of each chunk
    kept: Optional[LatticeCache]  # which keeps them from step to step, if there is any

    def around(self, clamp: Clamp, kept: Optional[LatticeCache]) -> "HigherOrderWork":
        """Return work whose lattices, which `kept` remembers, keep the labellings of an annotation (bool[T, S])."""
        work = type(self)(self.scores, None, self.given)
        work.expansion = self.whole.expansion
        work.annotated = self.in_states(clamp)
        work.lattices = {}
        work.kept = kept
        return work

    def most_tokens(self, tokens: int) -> int:
        """Largest number of tokens in a chunk: pruned lattices are small, so chunks have more tokens; whole ones are large."""
        orders = self.scores.orders
        if orders.keep is not None:
            return _LIKELY_TOKENS * tokens
        return max(1, min(tokens, _LIKELY_ARCS // self.n_states ** (orders.levels + 1)))

    def cut(self, chunk: Chunk) -> "HigherOrderWork":
        part = super().cut(chunk)
        if part is not self:
            part.place = chunk.tokens.start
        return part

    @cached_property
    def emissions(self) -> Floats:
        """Emissions of each token: float64[T, S], -inf where the clamp forbids the state."""
        scores = self.scores.emissions
        return scores if self.clamp is None else np.where(self.clamp, scores, -np.inf)

    @cached_property
    def is_free(self) -> bool:
        """Whether every transition is allowed, and all tokens share the transitions."""
        if self.whole is not self:
            return self.whole.is_free
        return self.per_position is False and bool(np.isfinite(self.scores.transitions).all())

    @property
    def stride(self) -> int:
        """Distance between the transitions of neighbouring tokens in `table`: 0 if all tokens share one matrix."""
        return self.n_states**2 if self.per_position else 0

    @cached_property
    def table(self) -> Floats:
        """Scores of arcs in one array, see `kernels.higher_order`."""
        if self.whole is not self and not self.per_position:
            return self.whole.table
        return np.concatenate([self.transitions.ravel(), [0.0], self.scores.grams])

    @cached_property
    def grams(self) -> kernels.Grams:
        """The n-grams of tags that have a weight."""
        orders = self.scores.orders
        digits = orders.digits(self.n_tags if self.tag_of is not None else self.n_states)
        if self.tag_of is not None:
            digits = digits[self.tag_of]
        n_steps = self.transitions.size
        table: Any = orders.table  # see `HigherOrder.conform`
        keys, rows = table
        return kernels.Grams(keys, rows, digits, orders.size + 1, n_steps)

    @cached_property
    def sequence_of(self) -> NDArray[np.int64]:
        """Sequence of each token: int64[T]."""
        return np.repeat(np.arange(self.n_sequences), np.diff(self.starts))

    @property
    def representatives(self) -> Union[slice, NDArray[np.int64]]:
        """One state of each tag."""
        tag_of = self.tag_of
        return slice(None) if tag_of is None else np.unique(tag_of, return_index=True)[1]

    @property
    def lattice(self) -> PrunedLattice:
        """The lattice around the annotation if the work has one, else the lattice of the clamp."""
        whole = self.whole
        place = self.place
        if whole.annotated is None:
            return self._own_lattice
        if place not in whole.lattices:
            annotated = whole.annotated[place : place + self.n_tokens]
            kept = whole.kept
            if kept is None:
                whole.lattices[place] = make_lattice(self, annotated)
            elif place in kept.now:
                whole.lattices[place] = with_scores(self, kept.now[place])
            else:
                whole.lattices[place] = kept.now[place] = make_lattice(self, annotated, kept.before.get(place))
        return whole.lattices[place]

    @cached_property
    def _own_lattice(self) -> PrunedLattice:
        return make_lattice(self, None)

    @property
    def n_prefixes(self) -> int:
        """Largest number of nodes of a token."""
        return int(np.diff(self.lattice.level.starts).max(initial=0))

    @cached_property
    def sums(self) -> Sums:
        """Scores of the lattice, with its forward pass."""
        return Sums(self, self.lattice.level, self.clamp if self.whole.annotated is not None else None)

    @cached_property
    def alone(self) -> tuple[Floats, Floats]:
        """Sum over sequences without a lattice, whose tokens are independent.

        RETURNS (float64[B], float64[M, S]): Log partitions, 0 for sequences with a lattice; and the probability of each state at
            the M tokens of sequences without one.
        """
        emissions = self.emissions[self.are_alone]
        sequence_of = self.sequence_of[self.are_alone]
        largest = emissions.max(axis=1, initial=-np.inf)
        chances = np.exp(emissions - np.where(largest > -np.inf, largest, 0.0)[:, np.newaxis])
        sums = chances.sum(axis=1)
        with np.errstate(divide="ignore"):
            log_z: Any = np.bincount(sequence_of, np.log(sums) + largest, minlength=self.n_sequences)
        chances *= np.divide(log_z[sequence_of] > -np.inf, sums, out=np.zeros(len(sums)), where=sums > 0.0)[
            :, np.newaxis
        ]
        return log_z, chances

    @property
    def are_alone(self) -> NDArray[np.bool_]:
        """Which tokens belong to sequences without a lattice: bool[T]."""
        return self.lattice.depth[self.sequence_of] == 0


class HigherOrder(Structure[HigherOrderScores]):
    """Implements `Structure` for `HigherOrderScores`, and for `ChainScores` as chains of order 1. Clamps are bool[T, S]. If
    lattices are pruned, probabilities refer to the remaining labellings.
    """

    chunk_tokens = 512
    kept: Optional[LatticeCache] = None  # lattices of one batch, see `with_cache`
    work = HigherOrderWork

    def conform(self, scores: Union[HigherOrderScores, ChainScores]) -> HigherOrderScores:
        if isinstance(scores, ChainScores):
            none = np.zeros(0, dtype=np.int64)
            scores = HigherOrderScores(
                *scores[:4],
                none.astype(float),
                Orders(order=1, keys=none, size=np.shape(scores.emissions)[1]),
                scores.starts,
            )
        orders = scores.orders
        arrays.check_shape("grams", scores.grams, (len(orders.keys),), "one number for each n-gram that has a weight")
        scores = scores if orders.table is not None else scores._replace(orders=indexed(orders))
        return super().conform(scores)

    def prepare(self, scores: Any, clamp: Any = None, *, annotated: Any = None) -> Any:
        work: Any = super().prepare(scores, clamp)
        return work if annotated is None or work.scores.orders.keep is None else work.around(annotated, self.kept)

    def with_cache(self) -> "HigherOrder":
        """RETURNS (HigherOrder): A copy that remembers the labellings of one batch, as ``kept``, until ``kept.renew()``."""
        structure = copy(self)
        structure.kept = LatticeCache()
        return structure

    def narrow(self, work: HigherOrderWork, expected: HigherOrderScores) -> HigherOrderScores:
        return _noted(work, super().narrow(work, expected))

    def viterbi_counts(
        self, scores: ScoresOrWork, *, clamp: Any = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, HigherOrderScores]:
        work = self.prepare(scores, clamp)
        best, used = super().viterbi_counts(work, weights=weights)
        return best, _noted(work, used)

    def forward(self, work: HigherOrderWork) -> Floats:
        sums = work.sums
        depth = work.lattice.depth
        log_z = sums.log_z
        if not depth.all():
            log_z = np.where(depth == 0, work.alone[0], log_z)
        return log_z

    def expect(self, work: HigherOrderWork, weights: Floats, out: HigherOrderScores) -> Floats:
        level = work.lattice.level
        depth = work.lattice.depth
        kernels.collect(level, work.sums.chances(weights), work.starts, _flat(out))
        if not depth.all():
            alone = work.are_alone
            out.emissions[alone] += weights[work.sequence_of[alone], np.newaxis] * work.alone[1]
        return self.forward(work)

    def best(self, work: HigherOrderWork) -> Path:
        sums = work.sums
        depth = work.lattice.depth
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(sums.level, sums.scores, sums.weights, work.starts, *path)
        if not depth.all():
            alone = work.are_alone
            best = work.emissions.max(axis=1, initial=-np.inf)
            path.states[alone] = np.where(best > -np.inf, work.emissions.argmax(axis=1), -1)[alone]
            totals = np.bincount(work.sequence_of, best, minlength=work.n_sequences).astype(np.float64)
            path.scores[depth == 0] = totals[depth == 0]
        return path

    def rank(self, work: HigherOrderWork, states: States, scores: Floats) -> int:
        sums = work.sums
        return kernels.n_best(sums.level, sums.scores, sums.weights, len(scores), states, scores)

    def draw(self, work: HigherOrderWork, uniforms: Floats) -> States:
        drawn = np.empty(uniforms.shape, dtype=np.int32)
        kernels.sample(work.sums.level, work.sums.chances(), work.starts, uniforms, drawn)
        return drawn

    def score_path(self, work: HigherOrderWork, states: States) -> Floats:
        totals = np.empty(work.n_sequences)
        potentials = work.emissions, work.scores.first, work.scores.last, work.table, work.stride
        order = work.scores.orders.levels
        depth = self._depths(work)
        kernels.score_paths(states, potentials, work.starts, work.grams, order, depth, totals)
        return totals

    def add_path(self, work: HigherOrderWork, states: States, weights: Floats, out: HigherOrderScores) -> None:
        order = work.scores.orders.levels
        depth = self._depths(work)
        kernels.add_paths(states, weights, work.starts, work.grams, order, work.stride, depth, _flat(out))

    def _depths(self, work: HigherOrderWork) -> NDArray[np.int64]:
        """The order used for each sequence: int64[B]."""
        whole = work.whole
        if whole.annotated is None:
            return np.full(work.n_sequences, work.scores.orders.levels)
        if whole.depths is None:
            chunks = whole.chunks(self.chunk_tokens)
            whole.depths = np.concatenate([whole.cut(chunk).lattice.depth for chunk in chunks])
        return whole.depths

    def weigh_spans(self, work: HigherOrderWork, spans: SpanStates, segments: Segments) -> Floats:
        probabilities = np.zeros(len(segments.start))
        kernels.span_probabilities(*self._posterior(work, spans), *segments, probabilities)
        return probabilities

    def list_spans(self, work: HigherOrderWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        posterior = self._posterior(work, spans)

        def search(*found: NDArray) -> int:
            return kernels.likely_spans(*posterior, work.starts, float(min_prob), *found)

        segments, probabilities = collect(search, 4 * work.n_tokens)
        order = np.argsort(segments.start, kind="stable")
        return LikelySpans(Segments(*(column[order] for column in segments)), probabilities[order])

    def _posterior(self, work: HigherOrderWork, spans: SpanStates) -> tuple:
        """Make the first arguments of the kernels that compute span probabilities."""
        level = work.sums.level
        chances = work.sums.chances()
        continues: Any = spans.continues
        label_of = spans.label_of
        tag_of = work.tag_of
        if tag_of is not None:
            label_of = label_of[tag_of]
            continues = np.ascontiguousarray(continues[np.ix_(tag_of, tag_of)])
        enters, leaves = np.zeros((2, len(level.symbol)))
        kernels.span_ends(level, chances, continues, work.starts, enters, leaves)
        return level, chances, (enters, leaves), continues, label_of


def _noted(work: HigherOrderWork, found: HigherOrderScores) -> HigherOrderScores:
    """Record the mean pruning thresholds of training in the expectations."""
    if work.whole.annotated is None or isinstance(found, ChainScores):
        return found
    lattices = work.whole.lattices
    measured = np.full(work.scores.orders.levels, np.nan)
    for m in range(len(measured)):
        of_chunks = [float(lattices[place].thresholds[m]) for place in sorted(lattices)]
        of_chunks = [threshold for threshold in of_chunks if threshold > 0.0]
        if of_chunks:
            measured[m] = np.exp(np.log(of_chunks).mean())
    return found._replace(orders=found.orders._replace(measured=measured))


def _flat(out: Union[HigherOrderScores, ChainScores]) -> tuple[Floats, ...]:
    """The arrays to which kernels add derivatives. `ChainScores` have no n-grams."""
    grams = getattr(out, "grams", np.zeros(0))
    return out.emissions, out.first, out.last, out.transitions.reshape(-1), grams
