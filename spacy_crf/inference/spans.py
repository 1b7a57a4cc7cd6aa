"""Probabilities of spans under the posterior of a chain.

A `SpanStates` names the states that make up a span, so one recursion serves every tag scheme.
"""

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels import spans as kernels
from ..kernels.spans import Posterior, SpanStates
from ..schemes import Segments
from ..types import Bools, Floats, Ints
from . import log_space, scaling
from .scaling import ChainWork, ForwardPass
from .structure import LikelySpans, collect


def weigh(work: ChainWork, spans: SpanStates, segments: Segments) -> Floats:
    """Probability that exactly the tokens of each span of a chunk are one span of its label: float64[N].

    work (ChainWork): Potentials of the chunk.
    spans (SpanStates): How states encode spans.
    segments (Segments): N spans, by their first token.
    """
    probabilities = np.zeros(len(segments.start))
    for posterior, tokens in _posteriors(work, spans):
        _ask(posterior, tokens, spans, segments, probabilities)
        del posterior  # before the next one is made
    return probabilities


def list_likely(work: ChainWork, spans: SpanStates, min_prob: float) -> LikelySpans:
    """All spans of a chunk of at least some probability, by their first token.

    work (ChainWork): Potentials of the chunk.
    spans (SpanStates): How states encode spans.
    min_prob (float): The least probability.
    """
    # Sequences in log space come last, so spans are sorted by their first token again
    parts = []
    for posterior, tokens in _posteriors(work, spans):
        search = partial(kernels.likely_spans, posterior, spans, float(min_prob))
        parts.append(collect(search, 4 * len(posterior.marginals)).moved(tokens.start))
        del posterior, search  # before the next one is made
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
    0 for those sequences, and left out if there are no others.)
    """
    continues: Any = spans.continues  # of a chain's states there is always one
    # P(span of states y_b ... y_e) = P(y_b enters) · prod_t P(y_t | y_(t-1)) · P(y_e leaves), from alpha, beta and transitions
    before = scaling.forward(work)
    marginals = np.empty_like(work.emissions)
    scaling.backward(work, before, np.ones(work.n_sequences), marginals)
    refused = np.isnan(before.log_z)
    if not refused.all() or not work.n_sequences:
        yield _linear_posterior(work, before, marginals, continues), slice(0, work.n_tokens)
    del before, marginals  # a long text takes its memory only once
    for b in np.flatnonzero(refused).tolist():
        sequence = work.chunk(b, b + 1)
        yield _log_posterior(work.cut(sequence), continues), sequence.tokens


def _linear_posterior(work: ChainWork, before: ForwardPass, marginals: Floats, continues: Bools) -> Posterior:
    """Posterior of a chunk from both passes in the linear domain."""
    exponentials = work.steps.exponentials
    opening = np.zeros(work.n_tokens, dtype=np.bool_)
    opening[work.ends()[0]] = True
    matrices = exponentials.matrices
    kept = exponentials.neighbours
    if kept is None or kept[0] is not continues:
        kept = continues, _neighbours(matrices > 0.0, continues)
        exponentials.neighbours = kept
    return Posterior(
        left=before.alpha,
        matrices=matrices,
        right=before.scaled.emissions,
        number=exponentials.layout.number,
        neighbours=kept[1],
        marginals=marginals,
        opening=opening,
        in_logs=False,
    )


def _log_posterior(sequence: ChainWork, continues: Bools) -> Posterior:
    """Posterior of one sequence from both passes in log space. Steps are not written out: they would take T·S² numbers."""
    log_z = np.empty(1)
    left = log_space.prefixes(sequence, log_z)[1]
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
    """Which states have any neighbour before and behind them, inside their span and outside: bool[4, S].

    possible (bool[1 or n, S, S]): Which steps are possible.
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
