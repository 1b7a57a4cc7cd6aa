"""Linear chains: sums, maxima, paths, samples and spans of batches of sequences."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..kernels import linear_chain as kernels
from ..kernels import spans as span_kernels
from ..kernels.spans import Posterior, SpanStates
from ..schemes import Segments
from ..types import Bools, ChainScores, Floats, Ints, Path
from . import log_space, scaling
from .scaling import ChainWork, ForwardPass
from .structure import LikelySpans, States, Structure, collect


class LinearChain(Structure[ChainScores]):
    """Answers the questions of `Structure` for `ChainScores`; clamps are bool[T, S]."""

    chunk_tokens = 8192
    work = ChainWork
    prepare: Callable[..., ChainWork]

    def forward(self, work: ChainWork) -> Floats:
        """Log partitions of the chunk `work`: alpha[t, j] = emissions[t, j] + logsum_i(alpha[t-1, i] + transitions[i,
        j]).
        """
        log_z, _ = forward_pass(work)
        return log_z

    def expect(self, work: ChainWork, weights: Floats, out: ChainScores) -> Floats:
        """Both passes over `work`: `out` becomes the derivative of sum_b `weights`[b] · log_z[b]."""
        if work.per_position:
            log_z, passes = forward_pass(work)
            backward_pass(work, passes, weights, out)
            return log_z
        # d log_z / d emissions[t, j]      = P(y_t = j)                = exp(alpha[t, j] + beta[t, j] - log_z)
        # d log_z / d transitions[i, j]    = sum_t P(y_(t-1) = i, y_t = j)
        log_z = scaling.expect(work, weights, out)
        # NaN marks the sequences whose scores lie too far apart for the linear domain
        for b in np.flatnonzero(np.isnan(log_z)).tolist():
            _log_backward(work, b, log_space.forward(work, work.chunk(b, b + 1), log_z), log_z, weights, out)
        return log_z

    def best(self, work: ChainWork) -> Path:
        """Best path of each sequence of `work`: best[t, j] = emissions[t, j] + max_i(best[t-1, i] + transitions[i, j])."""
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        delta = np.empty(work.emissions.shape)
        ordered = np.empty((2, scaling.round_up(work.n_states)))
        kernels.viterbi(tuple(work.potentials), *work.ordered_scores.viterbi_arguments, delta, ordered, *path)
        return path

    def rank(self, work: ChainWork, states: States, scores: Floats) -> int:
        """The best paths of the sequence `work`, in `states` (int32[n, T]), and their `scores` (float64[n])."""
        return log_space.rank(work, states, scores)

    def draw(self, work: ChainWork, uniforms: Floats) -> States:
        """Paths of `work`, drawn from the last token to the first by `uniforms` (float64[n, T]): int32[n, T]."""
        linear = scaling.forward(work)
        # NaN: the scores are too far apart for sums outside of log space
        if work.per_position or np.isnan(linear.log_z).any():
            # `log_space.draw` takes two numbers per token, the second for the length of a segment, which is always 1 here
            return log_space.draw(work, np.stack((uniforms, uniforms), axis=-1))
        # P(y_t = i | y_(t+1) = j) is proportional to exp(alpha[t, i] + transitions[i, j])
        source_starts, sources = work.predecessors
        targets = np.repeat(np.arange(work.n_states), np.diff(source_starts))
        arc_scores = work.transitions[0][sources, targets]  # [A]
        arcs = np.exp(arc_scores - arc_scores.max(initial=-np.inf))
        states = np.empty(uniforms.shape, dtype=np.int32)
        exponentials = work.ordered_scores.exponentials
        kernels.sample(
            (linear.alpha, linear.log_z),
            exponentials.layout.number,
            exponentials.last,
            (source_starts, sources),
            arcs,
            work.starts,
            uniforms,
            states,
        )
        return states

    def score_path(self, work: ChainWork, states: States) -> Floats:
        """Scores by `work` of the paths `states` (int32[T]): first + sum_t emissions[t, y_t] + transitions[y_(t-1), y_t]
        + last.
        """
        path_scores = np.empty(work.n_sequences)
        scores = work.scores
        free = kernels.ChainArrays(scores.emissions, work.transitions, scores.first, scores.last, work.starts)
        kernels.path_score(free, states, path_scores)
        return path_scores

    def add_path(self, work: ChainWork, states: States, weights: Floats, out: ChainScores) -> None:
        """Add `weights` (float64[B]) to the scores in `out` that the paths `states` (int32[T]) of `work` use."""
        d_transitions = out.transitions.reshape(work.transitions.shape)
        uses = kernels.ChainArrays(out.emissions, d_transitions, out.first, out.last, work.starts)
        kernels.path_expectations(states, weights, uses)

    def score_segments(self, work: ChainWork, begin: Ints, end: Ints) -> Floats:
        """Scores of segments from `begin` to `end` (int64[N] each): emissions of single tokens, -inf for longer segments:
        float64[N, S].
        """
        return np.where((end - begin == 1)[:, np.newaxis], work.emissions[begin], -np.inf)

    def segments_derivative(self, work: ChainWork, begin: Ints, end: Ints, derivative: Floats) -> ChainScores:
        """The derivative with respect to the scores of the chain, from the `derivative` (float64[N, S]) with respect to scores of
        segments from `begin` to `end` (int64[N] each). Segments of several tokens have no scores here, and add nothing.
        """
        out = arrays.zeros(work.scores)
        is_single = end - begin == 1
        # Segments may repeat: `bincount` adds up what an assignment by index would overwrite
        cells = begin[is_single, np.newaxis] * work.n_states + np.arange(work.n_states)  # t · S + j
        sums = np.bincount(cells.ravel(), derivative[is_single].ravel(), minlength=out.emissions.size)
        out.emissions[:] = sums.reshape(out.emissions.shape)
        # `first` counts what begins a sequence, and `last` what ends one
        opening, closing = work.ends()
        out.first[:] = out.emissions[opening].sum(axis=0)
        out.last[:] = out.emissions[closing].sum(axis=0)
        return out

    def weigh_spans(self, work: ChainWork, spans_of_states: SpanStates, segments: Segments) -> Floats:
        """Probabilities in `work` of spans (`segments`) that states encode as `spans_of_states` says: float64[N]."""
        return _weigh(work, _expanded(work, spans_of_states), segments)

    def list_spans(self, work: ChainWork, spans_of_states: SpanStates, min_prob: float) -> LikelySpans:
        """The spans in `work` whose probability is at least `min_prob`; `spans_of_states` says how states encode spans."""
        return _list_likely(work, _expanded(work, spans_of_states), min_prob)


def _expanded(work: ChainWork, spans_of_states: SpanStates) -> SpanStates:
    """How the states of the work encode spans: `spans_of_states`, expanded if states are those of a graph."""
    expansion = work.whole.expansion
    return spans_of_states if expansion is None else expansion.spans(spans_of_states)


def _log_backward(
    work: ChainWork, b: int, log_pass: log_space.LogPass, log_z: Floats, weights: Floats, out: ChainScores
) -> None:
    """Add the derivatives of sequence b to `out`, from the forward pass of the sequence in log space."""
    log_space.backward(log_pass, log_z, weights, out)
    out.first[:] += out.emissions[work.starts[b]]
    out.last[:] += out.emissions[work.starts[b + 1] - 1]


def forward_pass(work: ChainWork) -> tuple[Floats, tuple]:
    """Forward pass over a chunk, in log space for sequences that do not fit the linear domain.

    work (ChainWork): Potentials of B sequences.
    RETURNS (float64[B], tuple): Log partitions, and the argument of `backward_pass`: the pass in the linear domain, log
        partitions, and the passes in log space by sequence.
    """
    linear = scaling.forward(work)
    log_z = linear.log_z.copy()
    log_passes = {}
    for b in np.flatnonzero(np.isnan(log_z)).tolist():
        log_passes[b] = log_space.forward(work, work.chunk(b, b + 1), log_z)
    return log_z, (linear, log_z, log_passes)


def backward_pass(
    work: ChainWork,
    passes: tuple[ForwardPass, Floats, dict[int, log_space.LogPass]],
    weights: Floats,
    out: ChainScores,
) -> None:
    """Backward pass over a chunk.

    work (ChainWork): Potentials of B sequences.
    passes (tuple): The second result of `forward_pass`.
    weights (float64[B]): Factor of each sequence.
    out (ChainScores): Zeros, which become the derivative of sum_b weights[b] · log_z[b].
    """
    if not work.n_tokens:  # a chunk without tokens may have no matrices of transitions
        return
    exponentials = work.ordered_scores.exponentials
    linear, log_z, log_passes = passes
    layout = exponentials.layout
    scaled, alpha, linear_log_z = linear
    # Overwrites alpha by what the next kernel needs, and linear_log_z by NaN where the linear domain does not suffice
    out.first[:], out.last[:] = scaling.backward(work, linear, weights, out.emissions)
    d_block = np.zeros_like(exponentials.block)
    d_arcs = np.zeros_like(exponentials.arcs)
    # P(y_(t-1) = i, y_t = j) = alpha[t-1, i] · exp(transitions[t, i, j]) · beta[t, j] / z, of which the kernel leaves out the
    # exponentials of transitions
    kernels.transition_expectations(alpha, scaled.emissions, layout.runs, layout.offset, d_block, d_arcs)
    d_block *= exponentials.block
    d_arcs *= exponentials.arcs
    layout.restore(d_block, d_arcs, out.transitions.reshape(work.transitions.shape))
    for b in np.flatnonzero(np.isnan(linear_log_z)).tolist():
        if b not in log_passes:  # only the backward pass refused the linear domain
            log_passes[b] = log_space.forward(work, work.chunk(b, b + 1), log_z)
        _log_backward(work, b, log_passes[b], log_z, weights, out)


class TextScores(ChainScores):
    """Potentials of B texts as chains. ``emissions[b]`` are the label scores of text b, the only token of its chain. ``first`` is
    the bias of each label; ``transitions`` and ``last`` are not learned.
    """

    __slots__ = ()


class TextSoftmax(LinearChain):
    """Answers the questions of a chain for texts, whose chains have a single token, by a softmax over labels.

    The passes of `scaling` would refuse scores that lie as far apart as those of naive Bayes, and log space would take longer
    than all other work.
    """

    def forward(self, work: ChainWork) -> Floats:
        """Log partitions of the texts of `work`: log_z[b] = logsum_j(emissions[b, j] + first[j] + last[j])."""
        log_z, _ = self._softmax(work)
        return log_z

    def expect(self, work: ChainWork, weights: Floats, out: ChainScores) -> Floats:
        """Derivatives for the texts of `work` in `out`: `weights`[b] · P(label j) at emissions[b, j], and their sums at
        first and last.
        """
        log_z, shares = self._softmax(work)
        np.multiply(shares, weights[:, np.newaxis], out=out.emissions)
        out.first[:] = out.emissions.sum(axis=0)
        out.last[:] = out.first
        return log_z

    def _softmax(self, work: ChainWork) -> tuple[Floats, Floats]:
        return softmax(work.emissions + (work.scores.first + work.scores.last))


def softmax(rows: Floats) -> tuple[Floats, Floats]:
    """Normalise rows of scores: shares[n, j] = exp(rows[n, j]) / sum_i exp(rows[n, i]).

    rows (float64[N, S]): The scores.
    RETURNS (float64[N], float64[N, S]): Log-sum of each row, and the shares; 0 where all scores of a row are -inf.
    """
    # log sum_j exp(s[j]) = m + log sum_j exp(s[j] - m) with m = max_j s[j], where no exponential overflows
    largest = rows.max(axis=1, initial=-np.inf)
    shares = np.exp(rows - np.where(largest > -np.inf, largest, 0.0)[:, np.newaxis])
    total = shares.sum(axis=1)
    shares /= np.where(total > 0.0, total, 1.0)[:, np.newaxis]
    with np.errstate(divide="ignore"):
        return largest + np.log(total), shares


# ------------------------------------------------------------------------------------------ spans under the posterior

# A `SpanStates` names the states that make up a span, so one recursion serves every tag scheme


def _weigh(work: ChainWork, spans: SpanStates, segments: Segments) -> Floats:
    """Probability that exactly the tokens of each span of a chunk are one span of its label: float64[N]."""
    probabilities = np.zeros(len(segments.start))
    for posterior, tokens in _posteriors(work, spans):
        _weigh_spans_at(tokens, posterior, spans, segments, probabilities)
        del posterior  # its memory is free before the next posterior takes as much
    return probabilities


def _list_likely(work: ChainWork, spans: SpanStates, min_prob: float) -> LikelySpans:
    """All spans of a chunk whose probability is at least `min_prob`, by their first token."""
    parts = []
    for posterior, tokens in _posteriors(work, spans):
        room = np.empty((2, work.n_states))
        search = partial(span_kernels.likely_spans, posterior, spans, float(min_prob), room)
        # Room for four spans at each token; `collect` makes more if they are not enough
        parts.append(collect(search, 4 * len(posterior.marginals)).moved(tokens.start))
        del posterior, search  # the memory is free before the next posterior takes as much
    segments, probabilities = LikelySpans.join(parts)
    # Sequences in log space came last
    order = np.argsort(segments.start, kind="stable")
    return LikelySpans(Segments(*(column[order] for column in segments)), probabilities[order])


def _weigh_spans_at(
    tokens: slice, posterior: Posterior, spans: SpanStates, segments: Segments, probabilities: Floats
) -> None:
    """Compute the probabilities of the spans that begin at certain tokens.

    tokens (slice): The tokens of the posterior.
    posterior (Posterior): Sums over the labellings of these tokens.
    spans (SpanStates): How states encode spans.
    segments (Segments): All spans, sorted by first token.
    probabilities (float64[N]): Receives the probabilities of those spans that begin at the tokens.
    """
    first, behind = np.searchsorted(segments.start, [tokens.start, tokens.stop])
    begin = np.ascontiguousarray(segments.start[first:behind] - tokens.start, np.int64)
    end = np.ascontiguousarray(segments.end[first:behind] - tokens.start, np.int64)
    label = np.ascontiguousarray(segments.label[first:behind], np.int64)
    room = np.empty((2, posterior.marginals.shape[1]))
    span_kernels.span_probabilities(posterior, spans, room, begin, end, label, probabilities[first:behind])


def _posteriors(work: ChainWork, spans: SpanStates) -> Iterator[tuple[Posterior, slice]]:
    """The posterior of a chunk and its tokens, then the posterior and the tokens of each sequence that needs log space. The
    first posterior has zeros for these sequences, and is left out if all sequences need log space.
    """
    continues: Any = spans.continues  # never None for states of a chain
    # P(span of states y_b ... y_e) = P(y_b enters) · prod_t P(y_t | y_(t-1)) · P(y_e leaves), from alpha, beta and transitions
    before = scaling.forward(work)
    marginals = np.empty_like(work.emissions)
    scaling.backward(work, before, np.ones(work.n_sequences), marginals)
    needs_log_space = np.isnan(before.log_z)
    if not needs_log_space.all() or not work.n_sequences:
        yield _linear_posterior(work, before, marginals, continues), slice(0, work.n_tokens)
    del before, marginals  # a long text takes its memory only once
    for b in np.flatnonzero(needs_log_space).tolist():
        sequence = work.chunk(b, b + 1)
        yield _log_posterior(work.cut(sequence), continues), sequence.tokens


def _linear_posterior(work: ChainWork, before: ForwardPass, marginals: Floats, continues: Bools) -> Posterior:
    """Posterior of a chunk from both passes in the linear domain."""
    exponentials = work.ordered_scores.exponentials
    opening = np.zeros(work.n_tokens, dtype=np.bool_)
    opening[work.ends()[0]] = True
    matrices = exponentials.matrices
    # All chunks share the neighbours of states
    cached = exponentials.neighbours
    if cached is None or cached[0] is not continues:
        cached = exponentials.neighbours = continues, _neighbours(matrices > 0.0, continues)
    _, neighbours = cached
    return Posterior(
        left=before.alpha,
        matrices=matrices,
        right=before.scaled.emissions,
        number=exponentials.layout.number,
        neighbours=neighbours,
        marginals=marginals,
        opening=opening,
        in_logs=False,
    )


def _log_posterior(sequence: ChainWork, continues: Bools) -> Posterior:
    """Posterior of one sequence from both passes in log space. Steps are not written out: they would take T·S² numbers."""
    log_z = np.empty(1)
    _, left = log_space.prefixes(sequence, log_z)
    leaving, right = log_space.suffixes(sequence)
    if log_z[0] > -np.inf:
        right -= log_z[0]
        leaving += left
        leaving -= log_z[0]
    marginals = np.exp(leaving, out=leaving)
    if log_z[0] == -np.inf:  # no labelling, and no states
        marginals[:] = 0.0
    return Posterior(
        left=left,
        matrices=sequence.transitions,
        right=right,
        number=np.arange(sequence.n_states),
        neighbours=_neighbours(sequence.transitions > -np.inf, continues),
        marginals=marginals,
        opening=np.arange(sequence.n_tokens) == 0,
        in_logs=True,
    )


def _neighbours(possible: Bools, continues: Bools) -> Bools:
    """Which states have neighbours.

    possible (bool[1 or n, S, S]): Which steps are possible.
    continues (bool[S, S]): Which steps continue a span.
    RETURNS (bool[4, S]): For each state, whether some state may stand before it inside the same span; before it outside of its
        span; behind it inside the same span; behind it outside of its span.
    """
    if len(possible) != 1:  # they may differ from token to token, or there is none
        return np.ones((4, possible.shape[1]), dtype=bool)
    inside = possible[0] & continues
    outside = possible[0] & ~continues
    return np.array([inside.any(axis=0), outside.any(axis=0), inside.any(axis=1), outside.any(axis=1)])


def segments_of(states: NDArray[np.int32], spans: SpanStates, opening: Bools) -> Segments:
    """The spans that a labelling encodes.

    states (int32[T]): The labelling, of valid states; -1 is outside of all spans.
    spans (SpanStates): How states encode spans.
    opening (bool[T]): Where sequences begin.
    """
    continues: Any = spans.continues
    return Segments.of_states(states, _label_of(spans.label_starts.tobytes())[states], continues, opening)


@lru_cache(maxsize=64)  # for a short text this function took as long as all others together
def _label_of(label_starts: bytes) -> Ints:
    return SpanStates(None, np.frombuffer(label_starts, dtype=np.int64)).label_of
