"""Linear chains: sums, maxima, paths and samples of batches of sequences."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import arrays
from ..kernels import linear_chain as kernels
from ..schemes import Segments
from ..types import ChainScores, Floats, Ints, Path
from . import log_space, scaling, spans
from .scaling import ChainWork
from .spans import LikelySpans, SpanStates
from .structure import States, Structure


class LinearChain(Structure[ChainScores]):
    """Answers the questions of `Structure` for `ChainScores`; clamps are bool[T, S]."""

    chunk_tokens = 8192
    work = ChainWork
    prepare: Callable[..., ChainWork]

    def forward(self, work: ChainWork) -> Floats:
        return forward_pass(work)[0]

    def expect(self, work: ChainWork, weights: Floats, out: ChainScores) -> Floats:
        if work.per_position:
            log_z, kept = forward_pass(work)
            backward_pass(work, kept, weights, out)
            return log_z
        log_z = scaling.expect(work, weights, out)
        for b in np.flatnonzero(np.isnan(log_z)).tolist():
            _log_backward(work, b, log_space.forward(work, work.chunk(b, b + 1), log_z), log_z, weights, out)
        return log_z

    def best(self, work: ChainWork) -> Path:
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(tuple(work.potentials), *work.steps.in_order, *path)
        return path

    rank: Any = staticmethod(log_space.rank)

    def draw(self, work: ChainWork, uniforms: Floats) -> States:
        linear = scaling.forward(work)
        if work.per_position or np.isnan(linear.log_z).any():
            return log_space.draw(work, np.stack((uniforms, uniforms), axis=-1))  # no lengths to draw
        before, sources = work.predecessors
        arcs = work.transitions[0][sources, np.repeat(np.arange(work.n_states), np.diff(before))]
        arcs = np.exp(arcs - arcs.max(initial=-np.inf))
        states = np.empty(uniforms.shape, dtype=np.int32)
        exponentials = work.steps.exponentials
        number = exponentials.layout.number
        rows = (linear.alpha, linear.log_z)
        kernels.sample(rows, number, exponentials.last, (before, sources), arcs, work.starts, uniforms, states)
        return states

    def score_path(self, work: ChainWork, states: States) -> Floats:
        path_scores = np.empty(work.n_sequences)
        scores = work.scores
        free = kernels.ChainArrays(scores.emissions, work.transitions, scores.first, scores.last, work.starts)
        kernels.path_score(free, states, path_scores)
        return path_scores

    def add_path(self, work: ChainWork, states: States, weights: Floats, out: ChainScores) -> None:
        d_transitions = out.transitions.reshape(work.transitions.shape)
        uses = kernels.ChainArrays(out.emissions, d_transitions, out.first, out.last, work.starts)
        kernels.path_expectations(states, weights, uses)

    def score_segments(self, work: ChainWork, begin: Ints, end: Ints) -> Floats:
        return np.where((end - begin == 1)[:, np.newaxis], work.emissions[begin], -np.inf)

    def segments_derivative(self, work: ChainWork, begin: Ints, end: Ints, derivative: Floats) -> ChainScores:
        out = arrays.zeros(work.scores)
        single = end - begin == 1
        places = begin[single, np.newaxis] * work.n_states + np.arange(work.n_states)
        sums = np.bincount(places.ravel(), derivative[single].ravel(), minlength=out.emissions.size)
        out.emissions[:] = sums.reshape(out.emissions.shape)
        opening, closing = work.ends()
        out.first[:] = out.emissions[opening].sum(axis=0)
        out.last[:] = out.emissions[closing].sum(axis=0)
        return out

    def weigh_spans(self, work: ChainWork, spans_of_states: SpanStates, segments: Segments) -> Floats:
        return spans.weigh(work, _expanded(work, spans_of_states), segments)

    def list_spans(self, work: ChainWork, spans_of_states: SpanStates, min_prob: float) -> LikelySpans:
        return spans.list_likely(work, _expanded(work, spans_of_states), min_prob)


def _expanded(work: ChainWork, spans_of_states: SpanStates) -> SpanStates:
    """How the states of the work encode spans."""
    expansion = work.whole.expansion
    return spans_of_states if expansion is None else expansion.spans(spans_of_states)


def _log_backward(work: ChainWork, b: int, done: tuple, log_z: Floats, weights: Floats, out: ChainScores) -> None:
    log_space.backward(done, log_z, weights, out)
    out.first[:] += out.emissions[work.starts[b]]
    out.last[:] += out.emissions[work.starts[b + 1] - 1]


def forward_pass(work: ChainWork) -> tuple[Floats, tuple]:
    """Log partitions (float64[B]), and what `backward_pass` continues with: the pass in the linear domain, log partitions, and
    the passes of sequences in log space."""
    linear = scaling.forward(work)
    log_z = linear.log_z.copy()
    logs = {b: log_space.forward(work, work.chunk(b, b + 1), log_z) for b in np.flatnonzero(np.isnan(log_z)).tolist()}
    return log_z, (linear, log_z, logs)


def backward_pass(work: ChainWork, kept: tuple, weights: Floats, out: ChainScores) -> None:
    """Set `out`, which is 0, to the derivative of sum_b weights[b] · log_z[b]."""
    if not work.n_tokens:  # whose transitions may be no matrices
        return
    exponentials = work.steps.exponentials
    linear, log_z, logs = kept
    layout = exponentials.layout
    (scaled, alpha, linear_log_z) = linear
    out.first[:], out.last[:] = scaling.backward(work, linear, weights, out.emissions)
    d_block = np.zeros_like(exponentials.block)
    d_arcs = np.zeros_like(exponentials.arcs)
    kernels.transition_expectations(scaled, layout, alpha, d_block, d_arcs)
    d_block *= exponentials.block
    d_arcs *= exponentials.arcs
    layout.restore(d_block, d_arcs, out.transitions.reshape(work.transitions.shape))
    for b in np.flatnonzero(np.isnan(linear_log_z)).tolist():
        if b not in logs:  # only the backward pass refused the linear domain
            logs[b] = log_space.forward(work, work.chunk(b, b + 1), log_z)
        _log_backward(work, b, logs[b], log_z, weights, out)


class TextScores(ChainScores):
    """Potentials of B texts as chains. ``emissions[b]`` are the label scores of text b, the only token of its chain. ``first`` is
    the bias of each label; ``transitions`` and ``last`` are not learned.
    """

    __slots__ = ()


class TextSoftmax(LinearChain):
    """Answers the questions of a chain without the passes of `scaling`, which refuse scores that lie as far apart as those of
    naive Bayes, and without log space, which takes longer than all other work.
    """

    def forward(self, work: ChainWork) -> Floats:
        return self._softmax(work)[0]

    def expect(self, work: ChainWork, weights: Floats, out: ChainScores) -> Floats:
        log_z, shares = self._softmax(work)
        np.multiply(shares, weights[:, np.newaxis], out=out.emissions)
        out.first[:] = out.emissions.sum(axis=0)
        out.last[:] = out.first
        return log_z

    def _softmax(self, work: ChainWork) -> tuple[Floats, Floats]:
        return softmax(work.emissions + (work.scores.first + work.scores.last))


def softmax(rows: Floats) -> tuple[Floats, Floats]:
    """Log-sums of rows (float64[N]), and the share of each entry in the sum of its row (float64[N, S]); 0 where all are -inf."""
    largest = rows.max(axis=1, initial=-np.inf)
    shares = np.exp(rows - np.where(largest > -np.inf, largest, 0.0)[:, np.newaxis])
    total = shares.sum(axis=1)
    shares /= np.where(total > 0.0, total, 1.0)[:, np.newaxis]
    with np.errstate(divide="ignore"):
        return largest + np.log(total), shares
