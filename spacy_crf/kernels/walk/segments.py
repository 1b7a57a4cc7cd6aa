"""Chains of segments: as ``chain``. Scores and recursions are those of ``kernels/semi_markov.py``, in logarithms."""

import math

import numpy as np

from ...types import GOES_ON
from .. import helper
from ..numerics import SPREAD, TINY, exp_row, log_sum
from .blocks import add_scores, rows_of_kind
from .chain import set_transitions


@helper
def score_segments(states, nodes, segments, begin, end, size, weights, scale):
    """Scores of tokens, begins, ends, lengths and listed spans; and which spans are listed."""
    uses = segments.uses
    starts = uses.listed_starts
    first = starts[begin]
    scores = (nodes, segments.begins, segments.ends, segments.spans, segments.spans)
    add_scores(states, begin, end, size, weights, 1.0, False, nodes)
    for kind in range(5):
        a, c = rows_of_kind(starts, kind, begin, end)
        # The first is added to what states gave, the last to what spans gave: so these two are not scaled yet.
        is_second, is_scaled = kind == 0 or kind == 4, kind != 3
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
def fold(nodes, segments, clamp, begin, end, size, is_clamped):
    """Opening, closing and reach of segments, see `semi_markov.fold` and `semi_markov.mask`."""
    opening, closing, reach, total = segments.opening, segments.closing, segments.reach, segments.column
    must_begin, may_begin = segments.uses.must_begin, segments.uses.may_begin
    for j in range(size):
        total[j] = 0.0
    for t in range(end - begin):
        for j in range(size):
            opening[t, j] = segments.begins[t, j] - total[j]
            total[j] += nodes[t, j]
            closing[t, j] = segments.ends[t, j] + total[j]
            reach[t, j] = 0
        if is_clamped:
            for j in range(size):
                reach[t, j] = t if t == 0 or must_begin[begin + t] else reach[t - 1, j]
                if not clamp[begin + t, j]:
                    reach[t, j] = t + 1
            if t > 0 and not may_begin[begin + t]:
                for j in range(size):
                    opening[t, j] = closing[t - 1, j] = -np.inf


@helper
def exclude(excluded, spans, kept, costs, is_over):
    """Forbids the spans that the annotation excludes, or, when that is over, gives them their scores back, with the least cost of
    their state."""
    for n in range(len(excluded)):
        for j in range(excluded.shape[1]):
            if excluded[n, j]:
                if is_over:
                    least = np.inf
                    for i in range(len(costs)):
                        if i != j:
                            least = min(least, costs[i, j])
                    spans[n, j] = kept[n, j] + (least if least < np.inf else 0.0)
                else:
                    kept[n, j] = spans[n, j]
                    spans[n, j] = -np.inf


@helper
def _gather_ending(segments, t, size):
    """Scores of the segments that end with t, with what is before them and without the closing, in terms[k].

    RETURNS (int): How many lengths are possible.
    """
    entered, lengths, terms = segments.entered, segments.lengths, segments.terms
    n_lengths = min(len(lengths), t + 1)
    for k in range(n_lengths):
        span = segments.span_of[t - k, k]
        for j in range(size):
            terms[k, j] = entered[t - k, j] + lengths[k, j] if segments.reach[t, j] <= t - k else -np.inf
        if span >= 0:
            for j in range(size):
                terms[k, j] += segments.spans[span, j]
    return n_lengths


@helper
def best_segments(work, pairs, segments, path, n, size):
    """The best segmentation in ``path``, and its score; ties as in `semi_markov.viterbi`."""
    chain, entered, left, terms = work.chain, segments.entered, segments.left, segments.terms
    transitions = chain if pairs is None else work.matrix
    for t in range(n):
        if pairs is not None:
            set_transitions(chain, pairs.scores, t, size, transitions)
        for j in range(size):
            entered[t, j] = chain[size, j] if t == 0 else -np.inf
        if t > 0:
            for i in range(size):
                for j in range(size):
                    entered[t, j] = max(entered[t, j], left[t - 1, i] + transitions[i, j])
        for j in range(size):
            entered[t, j] += segments.opening[t, j]
            left[t, j] = -np.inf
        n_lengths = _gather_ending(segments, t, size)
        for k in range(n_lengths):
            for j in range(size):
                left[t, j] = max(left[t, j], terms[k, j])
        for j in range(size):
            left[t, j] += segments.closing[t, j]
    state, total = -1, -np.inf
    for j in range(size):
        if left[n - 1, j] + chain[size + 1, j] > total:
            state, total = j, left[n - 1, j] + chain[size + 1, j]
    if state == -1:
        return np.nan if math.isnan(left[n - 1, 0]) else -np.inf
    t = n - 1
    while True:
        n_lengths = _gather_ending(segments, t, size)
        longer = 0
        for k in range(1, n_lengths):
            if terms[k, state] > terms[longer, state]:
                longer = k
        for i in range(t - longer + 1, t + 1):
            path[i] = GOES_ON
        t -= longer
        path[t] = state
        if t == 0:
            return total
        if pairs is not None:
            set_transitions(chain, pairs.scores, t, size, transitions)
        after, best = state, -np.inf
        for i in range(size):
            if left[t - 1, i] + transitions[i, after] > best:
                best = left[t - 1, i] + transitions[i, after]
                state = i
        t -= 1


@helper
def segments_score(work, pairs, segments, path, size):
    chain = work.chain
    score, before, t = 0.0, -1, 0
    while t < len(path):
        state, end = path[t], t + 1
        while end < len(path) and path[end] == GOES_ON:
            end += 1
        score += chain[size, state] if before < 0 else chain[before, state]
        if before >= 0 and pairs is not None:
            score += pairs.scores[t, before * size + state]
        score += segments.begins[t, state] + segments.ends[end - 1, state] + segments.lengths[end - t - 1, state]
        if segments.span_of[t, end - t - 1] >= 0:
            score += segments.spans[segments.span_of[t, end - t - 1], state]
        for i in range(t, end):
            score += work.nodes[i, state]
        before, t = state, end
    return score + chain[size + 1, before]


@helper
def use_segments(work, pairs, segments, path, size, amount):
    """Adds an amount for each score that a path of segments uses; those of tokens are left to `cover`."""
    d_chain = work.d_chain
    before, t = -1, 0
    while t < len(path):
        state, end = path[t], t + 1
        while end < len(path) and path[end] == GOES_ON:
            end += 1
        d_chain[size if before < 0 else before, state] += amount
        if before >= 0 and pairs is not None:
            pairs.d_scores[t, before * size + state] += amount
        segments.d_begins[t, state] += amount
        segments.d_ends[end - 1, state] += amount
        segments.d_lengths[end - t - 1, state] += amount
        if segments.span_of[t, end - t - 1] >= 0:
            segments.d_spans[segments.span_of[t, end - t - 1], state] += amount
        before, t = state, end
    d_chain[size + 1, before] += amount


@helper
def count_wrong_segments(gold, clamp, segments, begin, end, path):
    """Tokens at which a path contradicts the annotation: another state, or a segment begins or goes on where it must not, or ends
    that is excluded."""
    uses = segments.uses
    wrong = state = first = 0
    for t in range(begin, end):
        goes_on = path[t - begin] == GOES_ON
        if not goes_on:
            state, first = path[t - begin], t
        is_wrong = uses.must_begin[t] if goes_on else t > begin and not uses.may_begin[t]
        is_wrong |= state != gold[t] if gold[t] >= 0 else not clamp[t, state]
        if len(uses.excluded) > 0 and (t + 1 == end or path[t + 1 - begin] != GOES_ON):
            span = segments.span_of[first - begin, t - first]
            is_wrong |= span >= 0 and uses.excluded[uses.listed_starts[begin] + span, state]
        wrong += is_wrong
    return wrong


@helper
def cover(d_begins, d_ends, n, size, d_nodes):
    """Segments over each token: those that began up to it, less those that ended before it."""
    for t in range(n):
        for j in range(size):
            d_nodes[t, j] = d_begins[t, j]
            if t > 0:
                d_nodes[t, j] += d_nodes[t - 1, j] - d_ends[t - 1, j]


@helper
def expect_segments(work, pairs, segments, n, size, amount):
    """Log partition; adds the expected uses of each score, times an amount; those of tokens are left to `cover`.

    Sums are logarithms. Inside, steps are products of exp(left - maximum) and exp(transitions - maximum); where these could
    vanish, or transitions depend on the token, it is the textbook sum.
    """
    chain, exps, d_chain = work.chain, work.matrix, work.d_chain
    opening, closing, entered, left = segments.opening, segments.closing, segments.entered, segments.left
    leaving, out, mass, terms, shares = segments.leaving, segments.out, segments.mass, segments.terms, segments.shares
    lengths, spans, column = segments.lengths, segments.spans, segments.column
    top = -np.inf
    for i in range(size):
        for j in range(size):
            top = max(top, chain[i, j])
    for i in range(size):
        exp_row(chain, i, top, exps)
    # entered[t, j] = opening[t, j] + logsum_i(left[t-1, i] + transitions[i, j])
    # left[t, j] = closing[t, j] + logsum_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
    for t in range(n):
        if t == 0:
            for j in range(size):
                entered[t, j] = chain[size, j] + opening[t, j]
        else:
            largest = _largest(left[t - 1])
            for j in range(size):
                entered[t, j] = 0.0
            if pairs is None and largest > -np.inf:
                exp_row(left, t - 1, largest, mass)
                for i in range(size):
                    for j in range(size):
                        entered[t, j] += mass[t - 1, i] * exps[i, j]
            for j in range(size):
                if entered[t, j] > TINY:
                    entered[t, j] = largest + top + math.log(entered[t, j])
                else:
                    entered[t, j] = _log_sum_steps(chain, pairs, t, -1, j, left[t - 1], size, column, False)
                entered[t, j] += opening[t, j]
        _log_sum_lengths(terms, _gather_ending(segments, t, size), size, shares, left[t])
        for j in range(size):
            left[t, j] += closing[t, j]
    for j in range(size):
        column[j] = left[n - 1, j] + chain[size + 1, j]
    log_z = log_sum(column)
    if not math.isfinite(log_z):
        return log_z
    for j in range(size):
        leaving[n - 1, j] = chain[size + 1, j]
        d_chain[size + 1, j] += amount * math.exp(column[j] - log_z)
    # leaving[t, i] = closing[t, i] + logsum_j(transitions[i, j] + out[t+1, j])
    # out[t, j] = opening[t, j] + logsum_k(leaving[t+k, j] + lengths[k, j] + spans[.., j])
    for t in range(n - 1, -1, -1):
        if t < n - 1:
            after, before = _largest(out[t + 1]), _largest(left[t])
            share = after + before + top - log_z
            is_scaled = pairs is None and after > -np.inf and before > -np.inf and share < SPREAD / 3.0
            if is_scaled:
                exp_row(out, t + 1, after, mass)
                exp_row(left, t, before, mass)
                share = amount * math.exp(share)
            for i in range(size):
                total = 0.0
                if is_scaled:
                    factor = share * mass[t, i]
                    for j in range(size):
                        step = exps[i, j] * mass[t + 1, j]
                        total += step
                        d_chain[i, j] += factor * step
                elif left[t, i] > -np.inf:
                    for j in range(size):
                        step = chain[i, j]
                        if pairs is not None:
                            step += pairs.scores[t + 1, i * size + j]
                        expected = amount * math.exp(left[t, i] + step + out[t + 1, j] - log_z)
                        d_chain[i, j] += expected
                        if pairs is not None:
                            pairs.d_scores[t + 1, i * size + j] += expected
                if total > TINY:
                    leaving[t, i] = after + top + math.log(total)
                else:
                    leaving[t, i] = _log_sum_steps(chain, pairs, t + 1, i, -1, out[t + 1], size, column, True)
        for j in range(size):
            leaving[t, j] += closing[t, j]
        n_lengths = min(len(lengths), n - t)
        for k in range(n_lengths):
            span = segments.span_of[t, k]
            for j in range(size):
                terms[k, j] = leaving[t + k, j] + lengths[k, j] if segments.reach[t + k, j] <= t else -np.inf
                if span >= 0:
                    terms[k, j] += spans[span, j]
                shares[k, j] = entered[t, j] + terms[k, j]
            exp_row(shares, k, log_z, shares)
            for j in range(size):
                expected = amount * shares[k, j]
                segments.d_begins[t, j] += expected
                segments.d_ends[t + k, j] += expected
                segments.d_lengths[k, j] += expected
                if span >= 0:
                    segments.d_spans[span, j] += expected
                if t == 0:
                    d_chain[size, j] += expected
        _log_sum_lengths(terms, n_lengths, size, shares, out[t])
        for j in range(size):
            out[t, j] += opening[t, j]
    return log_z


@helper
def _log_sum_steps(chain, pairs, t, i, j, row, size, terms, leaves):
    """Log of the sum over the steps into token t that leave state i (to all j), or that lead to state j (from all i)."""
    for other in range(size):
        before, after = (i, other) if leaves else (other, j)
        terms[other] = row[other] + chain[before, after]
        if pairs is not None:
            terms[other] += pairs.scores[t, before * size + after]
    return log_sum(terms)


@helper
def _log_sum_lengths(terms, n_lengths, size, shares, out):
    """out[j] = log of the sum over k of exp(terms[k, j])."""
    for j in range(size):
        out[j] = -np.inf
    for k in range(n_lengths):
        for j in range(size):
            out[j] = max(out[j], terms[k, j])
    for k in range(n_lengths):
        for j in range(size):
            shares[k, j] = terms[k, j] - (out[j] if out[j] > -np.inf else 0.0)
        exp_row(shares, k, 0.0, shares)
        if k > 0:
            for j in range(size):
                shares[0, j] += shares[k, j]
    for j in range(size):
        out[j] = out[j] + math.log(shares[0, j]) if out[j] > -np.inf else -np.inf


@helper
def _largest(row):
    largest = -np.inf
    for value in row:
        largest = max(largest, value)
    return largest
