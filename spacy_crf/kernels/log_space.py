"""Chains of pieces – tokens, or segments – in logarithms: sums, the best labellings in their order, and samples.

A labelling cuts a sequence into pieces of 1 to K tokens, with a state each; in linear chains K is 1. A piece of state j over the
tokens b to t has the score

    opening[b, j] + closing[t, j] + lengths[t - b, j] + spans[n, j]      the last term only if the span is listed, as number n

and two neighbouring pieces add the score of their transition. Between pieces there is one sum over states, so the recursions take
O(T·(K·S + S²)) time and O(T·S + K·S) memory beyond the scores (Sarawagi & Cohen 2004, with the transitions factored out).

    entered[b, j]  prefixes before b, with the step into a piece of state j that begins at b, and its opening
    left[t, j]     prefixes whose last piece has state j and ends with t
    leaving[t, j]  suffixes behind t, with the step out of a piece of state j that ends with t, and its closing
    out[b, j]      suffixes whose first piece has state j and begins at b

These recursions are never wrong, whatever the scores and whatever a clamp forbids. Sums over steps are matrix products of
exponentials minus maxima where no product can underflow, and log-sums elsewhere, or where transitions depend on the token.

Shapes: n tokens of a chunk, S states, K longest piece, N listed spans. Matrices of transitions are [1, ...] if all positions
share them, else [n, ...]: token t reads matrix ``t * step`` with step 0 or 1.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import GOES_ON, Floats, Ints
from . import helper, kernel
from .exponentials import LEAST, exp_less, exp_row
from .numerics import SPREAD, TINY, draw, log_sum, merge


class SegmentArrays(NamedTuple):
    """Scores of a chunk, see `types.SegmentScores`. The same tuple holds derivatives with respect to the scores."""

    tokens: Floats  # [n, S]
    begins: Floats  # [n, S]
    ends: Floats  # [n, S]
    lengths: Floats  # [K, S]
    spans: Floats  # [N, S]
    transitions: Floats  # [1 or n, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    span_of: NDArray[np.int32]  # [n, K] number of the listed span that begins here and has length k + 1, -1 for none
    starts: Ints  # [B + 1] where the sequences start


class LogPotentials(NamedTuple):
    """Scores of a chunk as the recursions take them, without the scores that a clamp forbids."""

    opening: Floats  # [n, S] see `semi_markov.running_sums`
    closing: Floats  # [n, S]
    lengths: Floats  # [K, S]
    spans: Floats  # [N, S]
    transitions: Floats  # [1 or n, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    span_of: NDArray[np.int32]  # [n, K]
    reach: NDArray[np.int32]  # [n, S] first token that a piece ending here may begin with, t + 1 for none
    starts: Ints  # [B + 1]


@helper
def gather(log_potentials, t, begin, entered, terms):
    """Scores of the pieces that end with t: terms[k, j] = entered[t-k, j] + lengths[k, j] + spans[.., j], all but closing.

    terms (float64[K, S]): Receives them; -inf where a piece is forbidden.
    RETURNS (int): Number of possible lengths.
    """
    lengths = log_potentials.lengths
    spans = log_potentials.spans
    span_of = log_potentials.span_of
    reach = log_potentials.reach
    size = lengths.shape[1]
    n_lengths = min(lengths.shape[0], t - begin + 1)
    for k in range(n_lengths):
        for j in range(size):
            terms[k, j] = entered[t - k, j] + lengths[k, j] if t - k >= reach[t, j] else -np.inf
        span = span_of[t - k, k]
        if span >= 0:
            for j in range(size):
                terms[k, j] += spans[span, j]
    return n_lengths


@helper
def exponentials_of(transitions, turned):
    """exp of a matrix that all tokens share, minus the maximum; target by source if `turned`.

    RETURNS (float64[S, S], float64, bool): The exponentials; the maximum, -inf if no score is finite; `turned`.
    """
    size = transitions.shape[1]
    top = -np.inf
    exps = np.empty((size, size))
    # Only a matrix that all tokens share is worth the exponentials
    for i in range(size if transitions.shape[0] == 1 else 0):
        for j in range(size):
            exps[i, j] = transitions[0, j, i] if turned else transitions[0, i, j]
            top = max(top, exps[i, j])
    for i in range(size if top > -np.inf else 0):
        exp_less(exps, i, top, -SPREAD)
    return exps, top, turned


@helper
def _largest(rows, t):
    """The largest number of a row."""
    largest = -np.inf
    for j in range(rows.shape[1]):
        largest = max(largest, rows[t, j])
    return largest


@helper
def sum_steps(rows, t, transitions, k, known, room, sums, to):
    """sums[to, j] = logsum_i(rows[t, i] + transitions[k, i, j]), with transitions[k, j, i] if the transitions are turned.

    known (tuple): From `exponentials_of`. room (float64[1, S]): Work space.
    """
    exps, top, turned = known
    size = sums.shape[1]
    largest = _largest(rows, t)
    for j in range(size):
        sums[to, j] = 0.0
    if top > -np.inf and largest > -np.inf:
        exp_row(rows, t, largest, room, 0, -SPREAD)
        for i in range(size):
            # sum_i exp(rows[t, i] - largest) · exp(transitions[i, j] - top)
            mass = room[0, i]
            for j in range(size):
                sums[to, j] += mass * exps[i, j]
    for j in range(size):
        if sums[to, j] > TINY:
            sums[to, j] = largest + top + math.log(sums[to, j])
        else:
            # The sum is too small to be trusted: log-sum of this column
            for i in range(size):
                room[0, i] = rows[t, i] + (transitions[k, j, i] if turned else transitions[k, i, j])
            sums[to, j] = log_sum(room[0])


@helper
def _sum_lengths(terms, n_lengths, shares, sums, to):
    """sums[to, j] = logsum_k(terms[k, j]); shares (float64[K, S]) is work space."""
    size = terms.shape[1]
    for j in range(size):
        sums[to, j] = terms[0, j]
    if n_lengths == 1:
        return
    for k in range(1, n_lengths):
        for j in range(size):
            sums[to, j] = max(sums[to, j], terms[k, j])
    for k in range(n_lengths):
        for j in range(size):
            # logsum_k = maximum + log sum_k exp(terms - maximum)
            shares[k, j] = terms[k, j] - (sums[to, j] if sums[to, j] > -np.inf else 0.0)
        exp_less(shares, k, 0.0, -SPREAD)
        if k > 0:
            for j in range(size):
                shares[0, j] += shares[k, j]
    for j in range(size):
        if sums[to, j] > -np.inf:
            sums[to, j] += math.log(shares[0, j])


@kernel
def log_forward(log_potentials, entered, left, log_z):
    """Forward pass.

    log_potentials (LogPotentials)
    entered, left (float64[n, S]): Receive the prefixes.
    log_z (float64[B]): Receives the log partition.
    """
    opening, closing, lengths, _, transitions, first, last, _, _, starts = log_potentials
    size = lengths.shape[1]
    step = 1 if transitions.shape[0] > 1 else 0
    known = exponentials_of(transitions, False)
    terms = np.empty(lengths.shape)
    shares = np.empty(lengths.shape)
    room = np.empty((1, size))
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            log_z[b] = 0.0
            continue
        for t in range(begin, end):
            # entered[t, j] = opening[t, j] + logsum_i(left[t-1, i] + transitions[i, j])
            if t == begin:
                for j in range(size):
                    entered[t, j] = first[j]
            else:
                sum_steps(left, t - 1, transitions, t * step, known, room, entered, t)
            for j in range(size):
                entered[t, j] += opening[t, j]
            # left[t, j] = closing[t, j] + logsum_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
            _sum_lengths(terms, gather(log_potentials, t, begin, entered, terms), shares, left, t)
            for j in range(size):
                left[t, j] += closing[t, j]
        for j in range(size):
            room[0, j] = left[end - 1, j] + last[j]
        log_z[b] = log_sum(room[0])


@kernel
def log_backward(log_potentials, leaving, out):
    """Backward pass; leaving, out (float64[n, S]) receive the suffixes."""
    opening, closing, lengths, spans, transitions, _, last, span_of, reach, starts = log_potentials
    longest, size = lengths.shape
    step = 1 if transitions.shape[0] > 1 else 0
    known = exponentials_of(transitions, True)
    terms = np.empty(lengths.shape)
    shares = np.empty(lengths.shape)
    room = np.empty((1, size))
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        for t in range(end - 1, begin - 1, -1):
            # leaving[t, i] = closing[t, i] + logsum_j(transitions[i, j] + out[t+1, j])
            if t == end - 1:
                for j in range(size):
                    leaving[t, j] = last[j]
            else:
                sum_steps(out, t + 1, transitions, (t + 1) * step, known, room, leaving, t)
            for i in range(size):
                leaving[t, i] += closing[t, i]
            # out[t, j] = opening[t, j] + logsum_k(leaving[t+k, j] + lengths[k, j] + spans[.., j])
            n_lengths = min(longest, end - t)
            for k in range(n_lengths):
                for j in range(size):
                    terms[k, j] = leaving[t + k, j] + lengths[k, j] if reach[t + k, j] <= t else -np.inf
                span = span_of[t, k]
                if span >= 0:
                    for j in range(size):
                        terms[k, j] += spans[span, j]
            _sum_lengths(terms, n_lengths, shares, out, t)
            for j in range(size):
                out[t, j] += opening[t, j]


@kernel
def log_expectations(log_potentials, weights, entered, left, leaving, suffixes, log_z, out):
    """Expectations from the rows of `log_forward` and `log_backward`: the derivative of sum_b weights[b] · log_z[b].

    out (SegmentArrays): Receives the sums in begins, ends, lengths, spans and transitions, which are added to.
    """
    _, _, lengths, spans, transitions, _, _, span_of, reach, starts = log_potentials
    _, d_begins, d_ends, d_lengths, d_spans, d_transitions, _, _, _, _ = out
    longest, size = lengths.shape
    step = 1 if transitions.shape[0] > 1 else 0
    exps, top, _ = exponentials_of(transitions, False)
    room = np.empty((2, size))
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end or log_z[b] == -np.inf:
            continue
        for t in range(begin, end):
            for k in range(min(longest, end - t)):
                span = span_of[t, k]
                for j in range(size):
                    allowed = reach[t + k, j] <= t
                    room[0, j] = entered[t, j] + lengths[k, j] + leaving[t + k, j] if allowed else -np.inf
                if span >= 0:
                    for j in range(size):
                        room[0, j] += spans[span, j]
                # P(piece of state j over t..t+k) = exp(entered + lengths + spans + leaving - log Z)
                exp_row(room, 0, log_z[b], room, 1, LEAST)
                for j in range(size):
                    expected = weights[b] * room[1, j]
                    d_begins[t, j] += expected
                    d_ends[t + k, j] += expected
                    d_lengths[k, j] += expected
                    if span >= 0:
                        d_spans[span, j] += expected
            if t == begin:
                continue
            before = _largest(left, t - 1)
            after = _largest(suffixes, t)
            exponent = before + after + top - log_z[b]
            # All products that underflow sum to less than 1e-130 · e^exponent
            if -np.inf < exponent < SPREAD / 3.0:
                exp_row(left, t - 1, before, room, 0, -SPREAD)
                exp_row(suffixes, t, after, room, 1, -SPREAD)
                # P(i, j) = exp(left[t-1, i] + transitions[i, j] + out[t, j] - log Z), as a product of three exponentials
                share = weights[b] * math.exp(exponent)
                for i in range(size):
                    mass = share * room[0, i]
                    for j in range(size):
                        d_transitions[0, i, j] += mass * exps[i, j] * room[1, j]
                continue
            for i in range(size):
                for j in range(size):
                    score = left[t - 1, i] + transitions[t * step, i, j] + suffixes[t, j]
                    if score > -np.inf:
                        d_transitions[t * step, i, j] += weights[b] * math.exp(score - log_z[b])


@kernel
def n_best(log_potentials, predecessors, n, states, totals):
    """The n best labellings of one sequence of at least one token, best first. Of equal labellings the first has the lower state
    in the last piece, then the shorter last piece, then likewise for the pieces before.

    predecessors (int64[S + 1], int64[A]): See `Work.predecessors`.
    states (int32[n, T]), totals (float64[n]): Receive the paths.
    RETURNS (int): Number of paths, at most n.
    """
    opening, closing, lengths, spans, transitions, first, last, span_of, reach, _ = log_potentials
    tokens, size = opening.shape
    longest = lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    entered = np.full((tokens, size, n), -np.inf)
    left = np.full((tokens, size, n), -np.inf)
    from_state = np.full((tokens + 1, size, n), np.int32(-1))
    from_rank = np.empty((tokens + 1, size, n), np.int32)
    longer = np.empty((tokens, size, n), np.int32)  # tokens of the piece after its first
    enter_rank = np.empty((tokens, size, n), np.int32)
    rows = np.empty(max(size, longest), dtype=np.int64)
    extra = np.empty(max(size, longest))
    scores = np.empty(n)
    before, sources = predecessors
    every = np.arange(size)
    for t in range(tokens + 1):
        # Row `tokens` is a single state after the last token, reached through `last`.
        for j in range(size if t < tokens else 1):
            if t == 0:
                entered[0, j, 0] = first[j] + opening[0, j]
                continue
            possible = sources[before[j] : before[j + 1]] if t < tokens else every
            for m in range(len(possible)):
                rows[m] = (t - 1) * size + possible[m]
                extra[m] = transitions[t * step, possible[m], j] if t < tokens else last[possible[m]]
            choices = extra[: len(possible)]
            # entered[t, j, rank] = opening + the n best of left[t-1, i, rank'] + transitions[i, j]
            found = merge(left.reshape(-1, n), rows, choices, scores, from_state[t, j], from_rank[t, j])
            for rank in range(found):
                from_state[t, j, rank] = possible[from_state[t, j, rank]]
                if t < tokens:
                    entered[t, j, rank] = scores[rank] + opening[t, j]
                else:
                    totals[rank] = scores[rank]
        if t == tokens:
            break
        n_lengths = min(longest, t + 1)
        for j in range(size):
            if longest == 1 and reach[t, j] <= t and span_of[t, 0] < 0:  # a single list: nothing to merge
                for rank in range(n):
                    longer[t, j, rank] = 0
                    enter_rank[t, j, rank] = rank
                    left[t, j, rank] = entered[t, j, rank] + lengths[0, j] + closing[t, j]
                continue
            for k in range(n_lengths):
                rows[k] = (t - k) * size + j
                extra[k] = lengths[k, j] if t - k >= reach[t, j] else -np.inf
                if span_of[t - k, k] >= 0:
                    extra[k] += spans[span_of[t - k, k], j]
            # left[t, j, rank] = closing + the n best of entered[t-k, j, rank'] + lengths[k, j] + spans[.., j]
            found = merge(entered.reshape(-1, n), rows, extra[:n_lengths], scores, longer[t, j], enter_rank[t, j])
            for rank in range(found):
                left[t, j, rank] = scores[rank] + closing[t, j]
    found = 0
    while found < n and from_state[tokens, 0, found] >= 0:
        t = tokens
        state = 0
        rank = found
        while t > 0:
            state, rank = from_state[t, state, rank], from_rank[t, state, rank]
            begin = t - longer[t - 1, state, rank] - 1
            rank = enter_rank[t - 1, state, rank]
            states[found, begin + 1 : t] = GOES_ON
            states[found, begin] = state
            t = begin
        found += 1
    return found


@kernel
def sample(log_potentials, predecessors, entered, left, uniforms, states):
    """Draw labellings from the posterior: backward sampling after the forward pass.

    predecessors (int64[S + 1], int64[A]): See `Work.predecessors`.
    entered, left (float64[n, S]): From `log_forward`.
    uniforms (float64[N, n, 2]): Random numbers in [0, 1): the two at the last token of a piece choose its state and its length.
    states (int32[N, n]): Receives the paths, -1 where a sequence has no allowed path.
    """
    _, _, lengths, _, transitions, _, last, _, _, starts = log_potentials
    longest, size = lengths.shape
    step = 1 if transitions.shape[0] > 1 else 0
    terms = np.empty((longest, size))
    column = np.empty(max(size, longest))
    before, sources = predecessors
    every = np.arange(size)
    for n in range(uniforms.shape[0]):
        for b in range(starts.shape[0] - 1):
            begin = starts[b]
            t = starts[b + 1] - 1
            state = -1
            while t >= begin:
                possible = every if state == -1 else sources[before[state] : before[state + 1]]
                for m in range(len(possible)):
                    arc = last[possible[m]] if state == -1 else transitions[(t + 1) * step, possible[m], state]
                    # P(i | next state j) ~ exp(left[t, i] + transitions[i, j]), and of the length ~ exp(terms[k, i])
                    column[m] = left[t, possible[m]] + arc
                drawn = draw(column[: len(possible)], uniforms[n, t, 0])
                if drawn == -1:  # happens only at the last token: no path is allowed
                    states[n, begin : t + 1] = -1
                    break
                state = possible[drawn]
                n_lengths = gather(log_potentials, t, begin, entered, terms)
                for k in range(n_lengths):
                    column[k] = terms[k, state]
                longer = draw(column[:n_lengths], uniforms[n, t, 1])
                states[n, t - longer + 1 : t + 1] = GOES_ON
                states[n, t - longer] = state
                t -= longer + 1
