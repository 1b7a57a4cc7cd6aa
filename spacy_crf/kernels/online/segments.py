"""Chains of segments: one sequence in the form of `semi_markov` and `log_space`, and segments that its annotation excludes."""

import math

import numpy as np

from ...types import GOES_ON
from .. import helper
from .. import semi_markov as batches
from ..log_space import LogPotentials, SegmentArrays, log_backward, log_expectations, log_forward
from .blocks import add_scores, rows_of_kind


@helper(inline="always")
def scores_of_segments(work, segments, size):
    """The scores of the sequence in the form of the batch kernels (SegmentArrays)."""
    of_tokens = (work.nodes, segments.begins, segments.ends)
    ends = (work.chain[size], work.chain[size + 1])
    return SegmentArrays(*of_tokens, segments.lengths, segments.spans, work.steps, *ends, segments.span_of, work.bounds)


@helper(inline="always")
def derivatives_of_segments(work, segments, size):
    """The derivatives of the sequence in the form of the batch kernels (SegmentArrays)."""
    of_tokens = (work.d_nodes, segments.d_begins, segments.d_ends)
    ends = (work.d_chain[size], work.d_chain[size + 1])
    return SegmentArrays(
        *of_tokens, segments.d_lengths, segments.d_spans, work.d_steps, *ends, segments.span_of, work.bounds
    )


@helper
def running_sums(corpus, work, segments, b, is_clamped):
    """Bring the scores of a sequence into the form of `log_space`; if `is_clamped`, only those that its annotation allows."""
    opening = segments.opening
    closing = segments.closing
    reach = segments.reach
    bounds = work.bounds
    batches.running_sums(scores_of_segments(work, segments, corpus.n_states), opening, closing)
    if is_clamped:
        begin = corpus.starts[b]
        end = corpus.starts[b + 1]
        may_begin = segments.uses.may_begin[begin:end]
        must_begin = segments.uses.must_begin[begin:end]
        batches.mask(work.nodes, corpus.clamp[begin:end], may_begin, must_begin, bounds, opening, closing, reach)
    else:
        batches.no_mask(bounds, reach)


@helper(inline="always")
def log_potentials_of(work, segments, n, size):
    """The log potentials of the first n tokens, from `running_sums`.

    RETURNS (LogPotentials)
    """
    opening = segments.opening[:n]
    chain = work.chain
    of_segments = (segments.lengths, segments.spans)
    ends = (chain[size], chain[size + 1])
    return LogPotentials(
        opening, segments.closing, *of_segments, work.steps, *ends, segments.span_of, segments.reach, work.bounds
    )


@helper(inline="always")
def expect_segments(log_potentials, work, segments, amount):
    """Return the log partition, and add the expected uses of each score, times an amount; `cover` adds tokens and ends."""
    shape = log_potentials.opening.shape
    log_z = work.total
    entered = np.empty(shape)
    left = np.empty(shape)
    leaving = np.empty(shape)
    suffixes = np.empty(shape)
    log_forward(log_potentials, entered, left, log_z)
    if math.isfinite(log_z[0]):
        work.amount[0] = amount
        log_backward(log_potentials, leaving, suffixes)
        out = derivatives_of_segments(work, segments, shape[1])
        log_expectations(log_potentials, work.amount, entered, left, leaving, suffixes, log_z, out)
    return log_z[0]


@helper(inline="always")
def cover(work, segments, n, size):
    """Add the derivatives for each token, from the segments that cover it, and for the ends of the sequence."""
    batches.cover(derivatives_of_segments(work, segments, size))
    for j in range(size):
        work.d_chain[size, j] = segments.d_begins[0, j]
        work.d_chain[size + 1, j] = segments.d_ends[n - 1, j]


@helper
def score_segments(states, nodes, segments, begin, end, size, weights, scale):
    """Score tokens, begins, ends, lengths and listed spans, and record which spans are listed."""
    uses = segments.uses
    starts = uses.listed_starts
    first = starts[begin]
    scores = (nodes, segments.begins, segments.ends, segments.spans, segments.spans)
    add_scores(states, begin, end, size, weights, 1.0, np.bool_(False), nodes)
    for kind in range(5):
        a, c = rows_of_kind(starts, kind, begin, end)
        # The first kind is added to the scores of states, the last one to those of spans, which are not scaled yet.
        is_second = kind == 0 or kind == 4
        is_scaled = kind != 3
        add_scores(uses.features, a, c, size, weights, scale if is_scaled else 1.0, is_second, scores[kind])
    for k in range(uses.longest):
        for j in range(size):
            segments.lengths[k, j] = scale * weights[uses.length_start + k * size + j]
    for t in range(begin, end):
        for k in range(uses.longest):
            segments.span_of[t - begin, k] = -1
        for n in range(starts[t], starts[t + 1]):
            segments.span_of[t - begin, uses.listed_lengths[n] - 1] = n - first


@helper
def exclude(segments, begin, end, costs, is_over):
    """Forbid the spans that the annotation excludes; if `is_over`, restore their scores and add the least cost of their state."""
    uses = segments.uses
    spans = segments.spans
    kept = segments.kept
    excluded = uses.excluded[uses.listed_starts[begin] : uses.listed_starts[end]]
    for n in range(len(excluded)):
        for j in range(excluded.shape[1]):
            if excluded[n, j]:
                if is_over:
                    # As `_add_costs` for the state: the smallest cost against another state
                    least = np.inf
                    for i in range(len(costs)):
                        if i != j:
                            least = min(least, costs[i, j])
                    spans[n, j] = kept[n, j] + (least if least < np.inf else 0.0)
                else:
                    kept[n, j] = spans[n, j]
                    spans[n, j] = -np.inf


@helper
def count_wrong_segments(gold, clamp, segments, begin, end, path):
    """Number of tokens at which a path contradicts the annotation: by another state, by a segment that begins or continues where
    the annotation forbids it, or by the end of an excluded segment."""
    uses = segments.uses
    wrong = state = first = 0
    for t in range(begin, end):
        goes_on = path[t - begin] == GOES_ON
        if not goes_on:
            state = path[t - begin]
            first = t
        is_wrong = uses.must_begin[t] if goes_on else t > begin and not uses.may_begin[t]
        is_wrong |= state != gold[t] if gold[t] >= 0 else not clamp[t, state]
        if len(uses.excluded) > 0 and (t + 1 == end or path[t + 1 - begin] != GOES_ON):
            span = segments.span_of[first - begin, t - first]
            is_wrong |= span >= 0 and uses.excluded[uses.listed_starts[begin] + span, state]
        wrong += is_wrong
    return wrong
