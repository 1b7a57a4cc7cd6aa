"""Probabilities of spans: what a posterior over states says about labelled stretches of tokens.

Which states make up a span is said by a `SpanStates`, so that every tag scheme is served by the same recursion.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..kernels import linear_chain as chain_kernels
from ..kernels import spans as kernels
from ..kernels.spans import Posterior, SpanStates
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats
from . import linear_chain as chains
from .threads import run_chunks


class LikelySpans(NamedTuple):
    """Spans with their probabilities."""

    segments: Segments  # N of them
    probabilities: Floats  # [N]


class BestPath(NamedTuple):
    """The most probable path with its spans."""

    states: NDArray[np.int32]  # [T] -1 where no path is allowed
    spans: LikelySpans


def span_probabilities(
    scores: ChainScores, spans: SpanStates, segments: Segments, *, clamp: Optional[Clamp] = None, threads: int = 1
) -> Floats:
    """The probability that exactly these tokens are one span of this label, for each of N spans.

    It sums over all labellings that contain the span, whatever they say elsewhere.

    scores (ChainScores): Potentials of B sequences.
    spans (SpanStates): How states spell spans.
    segments (Segments): The spans, by their first token; each inside one sequence.
    clamp (bool[T, S]): States still allowed, or None.
    RETURNS (float64[N])
    """
    batch = chains._check(kernels.span_probabilities, scores, clamp)
    begin, end, label = (np.ascontiguousarray(array, dtype=np.int64) for array in segments)
    probabilities = np.zeros(len(begin))
    if not len(begin):
        return probabilities
    asked = np.zeros(len(batch.starts) - 1, dtype=bool)
    asked[np.searchsorted(batch.starts, begin, side="right") - 1] = True
    if not asked.all():  # most sentences of a novel have no span
        batch, tokens = batch.only(asked)
        place = np.append(0, np.cumsum(tokens))
        begin, end = place[begin], place[end]
    shared = None if batch.per_position else chains._exponentiate(batch)

    def ask_chunk(chunk) -> None:
        for posterior, tokens, _ in _posteriors(batch, chunk, shared, spans):
            n = slice(*np.searchsorted(begin, [tokens.start, tokens.stop]))
            _ask(posterior, spans, begin[n] - tokens.start, end[n] - tokens.start, label[n], probabilities[n])

    run_chunks(ask_chunk, batch.chunks(), threads)
    return probabilities


def best_path(scores: ChainScores, spans: SpanStates, *, clamp: Optional[Clamp] = None) -> BestPath:
    """The most probable path (`LinearChain.viterbi`) with the probabilities of its spans (`span_probabilities`), for which the
    path is searched among the states that are likely enough.

    scores (ChainScores): Potentials of B sequences.
    spans (SpanStates): How states spell spans.
    clamp (bool[T, S]): States still allowed, or None.
    RETURNS (BestPath)
    """
    batch = chains._check(chain_kernels.viterbi_among_likely, scores, clamp)
    shared = None if batch.per_position else chains._exponentiate(batch)
    states = np.empty(len(batch.emissions), dtype=np.int32)
    found = []
    for chunk in batch.chunks():
        part = batch.cut(chunk)
        of_chunk = states[chunk.tokens]
        for posterior, tokens, log_z in _posteriors(part, part.chunk(0, len(part.starts) - 1), shared, spans):
            if log_z is not None:  # the whole chunk; sequences in log space come again, one by one
                _search(part, posterior, log_z, of_chunk)
                begin, end, label = segments_of(of_chunk, spans, posterior.opening)
                probabilities = np.zeros(len(begin))
            n = slice(*np.searchsorted(begin, [tokens.start, tokens.stop]))
            _ask(posterior, spans, begin[n] - tokens.start, end[n] - tokens.start, label[n], probabilities[n])
        found.append((begin + chunk.tokens.start, end + chunk.tokens.start, label, probabilities))
    begin, end, label, probabilities = (np.concatenate(column) for column in zip(*found))
    return BestPath(states, LikelySpans(Segments(begin, end, label), probabilities))


def _search(part, posterior: Posterior, log_z: Floats, states: NDArray[np.int32]) -> None:
    found = np.empty(len(log_z), dtype=np.bool_)
    order = np.argsort(posterior.number)
    chain_kernels.viterbi_among_likely(part.scores, order, posterior.marginals, log_z, states, found)
    if not found.all():
        rest, tokens = part.only(~found)
        transitions = rest.transitions if rest.per_position else rest.transitions[0]
        scores = ChainScores(rest.emissions, transitions, rest.first, rest.last, rest.starts)
        states[tokens] = chains.LinearChain().viterbi(scores).states


def _ask(posterior: Posterior, spans: SpanStates, begin, end, label, probabilities: Floats) -> None:
    columns = (np.ascontiguousarray(column, dtype=np.int64) for column in (begin, end, label))
    kernels.span_probabilities(posterior, spans, *columns, probabilities)


def likely_spans(
    scores: ChainScores, spans: SpanStates, min_prob: float, *, clamp: Optional[Clamp] = None, threads: int = 1
) -> LikelySpans:
    """All spans of at least some probability.

    scores (ChainScores): Potentials of B sequences.
    spans (SpanStates): How states spell spans.
    min_prob (float): With 0, every span that is possible, whose number grows with the square of the tokens.
    clamp (bool[T, S]): States still allowed, or None.
    RETURNS (LikelySpans): By their first token.
    """
    batch = chains._check(kernels.likely_spans, scores, clamp)
    shared = None if batch.per_position else chains._exponentiate(batch)

    def list_chunk(chunk) -> list[NDArray]:
        # Log-space sequences answer after the others of their chunk: sorted again in the end.
        return [
            _list(posterior, tokens.start, spans, min_prob)
            for posterior, tokens, _ in _posteriors(batch, chunk, shared, spans)
        ]

    parts = [part for parts in run_chunks(list_chunk, batch.chunks(), threads) for part in parts]
    begin, end, label, probabilities = (np.concatenate(column) for column in zip(*parts))
    order = np.argsort(begin, kind="stable")
    return LikelySpans(Segments(begin[order], end[order], label[order]), probabilities[order])


def _list(posterior: Posterior, start: int, spans: SpanStates, min_prob: float):
    size = 4 * len(posterior.marginals)
    while True:
        begin, end, label = np.empty((3, size), dtype=np.int64)
        probabilities = np.empty(size)
        found = kernels.likely_spans(posterior, spans, float(min_prob), begin, end, label, probabilities)
        if found <= size:
            return begin[:found] + start, end[:found] + start, label[:found], probabilities[:found]
        size = found


def _posteriors(batch, chunk, shared, spans):
    """The posterior of a chunk, its tokens and log partitions, then those of its sequences that have to be done in log space (0
    in the first, where their log partition is NaN), and None."""
    part = batch.cut(chunk)
    exponentials = shared or chains._exponentiate(part)
    log_z = np.empty(len(part.starts) - 1)
    marginals = np.empty_like(part.emissions)
    scaled, left, _ = chains._forward_backward(part, exponentials, np.ones(len(log_z)), log_z, marginals)
    matrices = exponentials.matrices
    neighbours = _neighbours(exponentials, spans)
    opening = np.zeros(len(marginals), dtype=np.bool_)
    opening[part.starts[:-1][part.starts[:-1] < part.starts[1:]]] = True
    yield (
        Posterior(left, matrices, scaled.emissions, exponentials.layout.number, neighbours, marginals, opening),
        chunk.tokens,
        log_z,
    )
    for b in np.flatnonzero(np.isnan(log_z)):
        sequence = part.chunk(b, b + 1)
        tokens = slice(chunk.tokens.start + sequence.tokens.start, chunk.tokens.start + sequence.tokens.stop)
        yield _log_posterior(part.cut(sequence)), tokens, None


def _neighbours(exponentials, spans: SpanStates) -> NDArray[np.bool_]:
    """Which states have any neighbours before and behind them, in their span and outside: bool[4, S]."""
    kept = exponentials.neighbours
    if kept is None or kept[0] is not spans.continues:
        kept = exponentials.neighbours = (spans.continues, _find_neighbours(exponentials.matrices, spans.continues))
    return kept[1]


def _find_neighbours(matrices: Floats, continues: NDArray[np.bool_]) -> NDArray[np.bool_]:
    if len(matrices) > 1:  # they may differ from token to token
        return np.ones((4, matrices.shape[1]), dtype=bool)
    possible = matrices[0] > 0.0
    inside, outside = possible & continues, possible & ~continues
    return np.array([inside.any(axis=0), outside.any(axis=0), inside.any(axis=1), outside.any(axis=1)])


def _log_posterior(sequence) -> Posterior:
    """Of one sequence, by the textbook recursions: its steps are not factored, the factors are 1."""
    tokens, size = sequence.emissions.shape
    transitions = np.array(np.broadcast_to(sequence.transitions, (tokens, size, size)), order="C")  # writable
    sequence = sequence._replace(transitions=transitions)
    alpha, marginals = np.empty((2, tokens, size))
    log_z, steps = np.empty(1), np.zeros((tokens, size, size))
    out = chain_kernels.Scores(marginals, steps, *np.zeros((2, size)), sequence.starts)
    chain_kernels.log_forward(sequence.scores, alpha, log_z)
    chain_kernels.log_expectations(sequence.scores, np.ones(1), alpha, log_z, out)
    ones = np.ones((tokens, size))
    number, neighbours = np.arange(size), np.ones((4, size), dtype=bool)
    return Posterior(ones, steps, ones, number, neighbours, marginals, np.arange(tokens) == 0)


def segments_of(states: NDArray[np.int32], spans: SpanStates, opening: NDArray[np.bool_]) -> Segments:
    """The spans that a labelling spells.

    states (int32[T]): Valid states; negative ones are outside of all spans.
    opening (bool[T]): Where sequences begin.
    """
    label = np.where(states >= spans.offset, (states - spans.offset) // spans.width, -1)
    goes_on = np.zeros(len(states), dtype=bool)
    goes_on[1:] = spans.continues[states[:-1], states[1:]] & ~opening[1:] & (label[1:] >= 0) & (label[:-1] >= 0)
    begins = (label >= 0) & ~goes_on
    ends = label >= 0
    ends[:-1] &= ~goes_on[1:]
    return Segments(np.flatnonzero(begins), np.flatnonzero(ends) + 1, label[begins])
