"""Probabilities of spans under the posterior of a chain.

A `SpanStates` names the states that make up a span, so one recursion serves every tag scheme.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..kernels import spans as kernels
from ..kernels.spans import Posterior, SpanStates
from ..schemes import Segments
from ..types import Bools, Floats, Ints
from . import log_space, scaling
from .scaling import ChainWork, Exponentials
from .structure import LikelySpans, collect


def weigh(work: ChainWork, spans: SpanStates, segments: Segments) -> Floats:
    """Probability that exactly the tokens of each of N spans of a chunk are one span of its label: float64[N]."""
    probabilities = np.zeros(len(segments.start))
    for posterior, tokens in _posteriors(work, spans):
        _ask(posterior, tokens, spans, segments, probabilities)
    return probabilities


def list_likely(work: ChainWork, spans: SpanStates, min_prob: float) -> LikelySpans:
    """All spans of a chunk of at least some probability, by their first token."""
    # Sequences in log space come last: the spans are sorted again
    parts = []
    for posterior, tokens in _posteriors(work, spans):
        search = partial(kernels.likely_spans, posterior, spans, float(min_prob))
        parts.append(collect(search, 4 * len(posterior.marginals)).moved(tokens.start))
    segments, probabilities = LikelySpans.join(parts)
    order = np.argsort(segments.start, kind="stable")
    return LikelySpans(Segments(*(column[order] for column in segments)), probabilities[order])


def _ask(posterior: Posterior, tokens: slice, spans: SpanStates, segments: Segments, probabilities: Floats) -> None:
    """Fill in the probabilities of the spans that begin at the tokens of a posterior."""
    n = slice(*np.searchsorted(segments.start, [tokens.start, tokens.stop]))
    shifts = (tokens.start, tokens.start, 0)
    columns = [np.ascontiguousarray(column[n] - shift, np.int64) for column, shift in zip(segments, shifts)]
    kernels.span_probabilities(posterior, spans, *columns, probabilities[n])


def _posteriors(work: ChainWork, spans: SpanStates) -> Iterator[tuple[Posterior, slice]]:
    """The posterior of a chunk with its tokens, then the posterior of each sequence that needs log space. (The first posterior is
    0 for those sequences.)
    """
    exponentials = work.exponentials
    before = scaling.forward(work)
    marginals = np.empty_like(work.emissions)
    scaling.backward(work, before, np.ones(work.n_sequences), marginals)
    matrices = exponentials.matrices
    opening = np.zeros(work.n_tokens, dtype=np.bool_)
    opening[work.ends()[0]] = True
    neighbours = _neighbours(exponentials, spans)
    number, right = exponentials.layout.number, before.scaled.emissions
    posterior = Posterior(before.alpha, matrices, right, number, neighbours, marginals, opening)
    yield posterior, slice(0, work.n_tokens)
    for b in np.flatnonzero(np.isnan(before.log_z)).tolist():
        sequence = work.chunk(b, b + 1)
        yield _log_posterior(work.cut(sequence)), sequence.tokens


def _neighbours(exponentials: Exponentials, spans: SpanStates) -> Bools:
    """Which states have any neighbour before and behind them, inside their span and outside: bool[4, S]."""
    kept, matrices = exponentials.neighbours, exponentials.matrices
    continues: Any = spans.continues  # of a chain's states there is always one
    if kept is not None and kept[0] is continues:
        return kept[1]
    if len(matrices) != 1:  # they may differ from token to token, or there is none
        found = np.ones((4, matrices.shape[1]), dtype=bool)
    else:
        possible = matrices[0] > 0.0
        inside, outside = possible & continues, possible & ~continues
        found = np.array([inside.any(axis=0), outside.any(axis=0), inside.any(axis=1), outside.any(axis=1)])
    exponentials.neighbours = continues, found
    return found


def _log_posterior(sequence: ChainWork) -> Posterior:
    """Posterior of one sequence from log space: its edges are not factored, all factors are 1."""
    tokens, size = sequence.emissions.shape
    steps = np.array(np.broadcast_to(sequence.transitions, (tokens, size, size)), order="C")  # writable
    work, log_z = ChainWork(sequence.scores._replace(transitions=steps), sequence.clamp), np.empty(1)
    expected = arrays.zeros(work.scores)
    log_space.backward(log_space.forward(work, work.chunk(0, 1), log_z), log_z, np.ones(1), expected)
    ones = np.ones((tokens, size))
    number, neighbours, opening = np.arange(size), np.ones((4, size), dtype=bool), np.arange(tokens) == 0
    return Posterior(ones, expected.transitions, ones, number, neighbours, expected.emissions, opening)


def segments_of(states: NDArray[np.int32], spans: SpanStates, opening: Bools) -> Segments:
    """The spans that a labelling (int32[T], valid states; -1 is outside of all spans) spells.

    opening (bool[T]): Where sequences begin.
    """
    continues: Any = spans.continues
    return Segments.spelt(states, _label_of(spans.label_starts.tobytes())[states], continues, opening)


@lru_cache(maxsize=64)  # for a short text this function took as long as all others together
def _label_of(label_starts: bytes) -> Ints:
    return SpanStates(None, np.frombuffer(label_starts, dtype=np.int64)).label_of
