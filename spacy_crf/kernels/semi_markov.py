"""Semi-Markov chains, for chunks of sequences laid end to end: sums in the linear domain, Viterbi, and scores of given paths.

`running_sums` brings scores into the form of `log_space`, whose textbook recursions are slower, never wrong, and respect masks
(``reach``), which the recursions of this file ignore.

    enter[b, j]  prefixes before b, with the step into a segment of state j that begins at b
    left[t, j]   prefixes whose last segment has state j and ends with t
    leave[t, j]  suffixes behind t, with the step out of a segment of state j that ends with t

The scaled recursions (``forward expectations``) sum in the linear domain. Rows of enter, left and leave have sum 1, and the
logarithms of the divisors are kept per row. A window over the last K rows holds exp(enter + opening - reference), or
exp(leave + closing - reference), with a reference per state that follows them; the inner loop is a multiplication and an
addition.

When the scaled recursions refuse, and why nothing is lost when they don't. Let the finite transitions (and firsts, and
lasts) lie within SPREAD = 300 of each other and the sum of a length's and a span's score within EXTRA = 100 of 0, and let
positive entries of the normalised rows be at least TINY = 1e-100. A row enters the window with an exponent within LEAD = 200,
or else its state's reference is moved such that it is 0. Moving may push an older entry below 1e-308. That is accepted only
where a shorter segment is allowed wherever a longer one is: then the newest entry, at least TINY, makes each sum that the older
one belongs to at least TINY · e^-EXTRA, and what was lost is less than 1e-308 · e^EXTRA, a share below 1e-120. Anything else is
refused: a sum of 0 means that no path is allowed.

Shapes: n tokens of the chunk, S states, K longest segment, N listed spans. Matrices of transitions are [1, ...] if all
positions share them, else [n, ...]: token t reads matrix ``t * step`` with step 0 or 1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import GOES_ON, Bools, Floats, Ints
from . import helper, kernel
from .exponentials import exp
from .numerics import LANES, LINEAR, TINY, best_before, best_end

LEAD = 200.0
EXTRA = 100.0
LARGEST_EXPONENT = 600.0
SMALLEST = 1e-250
LARGEST = 1e100


class ScaledSegmentPotentials(NamedTuple):
    """Scores and exponentials of a chunk for the scaled recursions."""

    opening: Floats  # [n, S] scores
    closing: Floats  # [n, S] scores
    lengths: Floats  # [K, S] exponentials
    spans: Floats  # [N, S] exponentials
    transitions: Floats  # [1 or n, S, S] exponentials less the maximum of each
    transposed: Floats  # [1 or n, S, S]
    first: Floats  # [S] exponentials less the maximum
    last: Floats  # [S] exponentials less the maximum
    shift: Floats  # [1 or n] the maxima of the transitions; the caller adds the maxima of first and last
    unbroken: Bools  # [S] whether a shorter segment is allowed wherever a longer one is
    span_of: NDArray[np.int32]  # [n, K]
    starts: Ints  # [B + 1]


class SegmentForwardRows(NamedTuple):
    """Rows that `forward` computes, and the logarithms of their scales."""

    enter: Floats  # [n, S] prefixes that begin a segment of the state at the token
    enter_scale: Floats  # [n]
    left: Floats  # [n, S] prefixes whose last segment, of the state, ends with the token
    left_scale: Floats  # [n]


@kernel
def running_sums(scores, opening, closing):
    """Move the scores of tokens to the ends of segments: the closing score adds a running sum, the opening score subtracts it.

    scores (log_space.SegmentArrays): Scores of the chunk.
    opening, closing (float64[n, S]): Receive the scores. A score of -inf counts as 0 in the sums; `mask` forbids it.
    RETURNS (bool): Whether a token forbids a state.
    """
    tokens = scores.tokens
    begins = scores.begins
    ends = scores.ends
    starts = scores.starts
    forbids = False
    size = tokens.shape[1]
    total = np.empty(size)
    for b in range(starts.shape[0] - 1):
        total[:] = 0.0
        for t in range(starts[b], starts[b + 1]):
            for j in range(size):
                # sum of tokens b..t = total[t] - total[b-1]: the begin of a segment subtracts what its end adds
                opening[t, j] = begins[t, j] - total[j]
                if tokens[t, j] == -np.inf:
                    forbids = True
                else:
                    total[j] += tokens[t, j]
                closing[t, j] = ends[t, j] + total[j]
    return forbids


@kernel
def mask(tokens, allowed, may_begin, must_begin, starts, opening, closing, reach):
    """Apply a clamp: set the scores of forbidden segments to -inf, and limit how far segments reach back.

    tokens (float64[n, S]): Scores; -inf forbids.
    allowed (bool[n, S]), may_begin, must_begin (bool[n]): The clamp.
    starts (int64[B + 1]): Where the sequences start.
    opening, closing (float64[n, S]): From `running_sums`. Receive -inf where no segment may begin or end.
    reach (int32[n, S]): Receives the first token that a segment ending here may begin with, t + 1 for none.
    """
    size = tokens.shape[1]
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        for t in range(begin, end):
            for j in range(size):
                # A forbidden token ends the reach; a token that must begin limits it
                reach[t, j] = t if t == begin or must_begin[t] else reach[t - 1, j]
                if not allowed[t, j] or tokens[t, j] == -np.inf:
                    reach[t, j] = t + 1
            if t > begin and not may_begin[t]:
                opening[t] = -np.inf
                closing[t - 1] = -np.inf


@kernel(in_place=True)
def no_mask(starts, reach):
    """Write the `reach` (int32[n, S]) of segments in a chunk without a clamp: back to the start of the sequence."""
    for b in range(starts.shape[0] - 1):
        reach[starts[b] : starts[b + 1]] = starts[b]


# ---------------------------------------------------------------------------------------------- scaled linear domain
# Helpers take the number of a row: counting the references to a slice takes as long as a loop over a dozen states.


@helper(fastmath=LINEAR)
def _normalise(rows, t):
    """Divide row t by its sum. RETURNS (float64): The sum; 0 for a row of zeros, -1 if the row has entries too small to trust."""
    total = 0.0
    for j in range(rows.shape[1]):
        total += rows[t, j]
    if total == 0.0:
        return 0.0
    if not 1e-250 < total < 1e250:
        return -1.0
    inverse = 1.0 / total
    too_small = 0
    for j in range(rows.shape[1]):
        rows[t, j] *= inverse
        too_small += (rows[t, j] < TINY) & (rows[t, j] > 0.0)
    return -1.0 if too_small else total


@helper(fastmath=LINEAR, forceinline=True)
def _exp(x):
    """exp of x, clipped to the range from -LARGEST_EXPONENT to LARGEST_EXPONENT."""
    x = x if x < LARGEST_EXPONENT else LARGEST_EXPONENT  # NaN is clipped too
    return exp(x if x > -LARGEST_EXPONENT else -LARGEST_EXPONENT)


@helper(fastmath=LINEAR)
def _multiply(into, matrices, k, row):
    """into[0, j] = sum_i row[i] · matrices[k, i, j], four rows at a time."""
    size = row.shape[0]
    for j in range(size):
        into[0, j] = 0.0
    whole = size // LANES * LANES
    for i in range(0, whole, LANES):
        a = row[i]
        c = row[i + 1]
        d = row[i + 2]
        e = row[i + 3]
        for j in range(size):
            upper = a * matrices[k, i, j] + c * matrices[k, i + 1, j]
            into[0, j] += upper + (d * matrices[k, i + 2, j] + e * matrices[k, i + 3, j])
    for i in range(whole, size):
        a = row[i]
        for j in range(size):
            into[0, j] += a * matrices[k, i, j]


@helper(fastmath=LINEAR)
def _put(window, slot, rows, at, log_scale, scores, t, reference):
    """Write a row into the window: window[slot] = exp(log(rows[at]) + log_scale + scores[t] - reference).

    window (float64[K, S]): The latest rows, each state relative to its reference.
    RETURNS (int): Number of states whose reference is too far from the row: `_move` moves these.
    """
    n_far = 0
    for j in range(rows.shape[1]):
        exponent = log_scale + scores[t, j] - reference[j]
        is_there = (rows[at, j] > 0.0) & (scores[t, j] > -np.inf)
        is_near = (exponent > -LEAD) & (exponent < LEAD)  # false for NaN, which is the reference of the first row
        n_far += 0 if is_near else 1 if is_there else 0
        mass = rows[at, j] * _exp(exponent)
        window[slot, j] = mass if is_there else 0.0
    return n_far


@helper
def _move(window, slot, rows, at, log_scale, scores, t, unbroken, reference):
    """Move the references that are too far from a row that `_put` has written, with the same arguments.

    unbroken (bool[S]): Whether a shorter segment is allowed wherever a longer one is.
    RETURNS (bool): False if an entry would underflow that the sums need.
    """
    for j in range(rows.shape[1]):
        added = log_scale + scores[t, j]  # to the logarithm of the row
        exponent = added - reference[j]
        if rows[at, j] == 0.0 or added == -np.inf or -LEAD < exponent < LEAD:
            continue
        # Entries of the window are relative to the reference: they change as it moves
        factor = np.exp(-exponent)
        for k in range(window.shape[0]):
            if k != slot and window[k, j] > 0.0:
                window[k, j] *= factor
                if window[k, j] > LARGEST or (window[k, j] < SMALLEST and not unbroken[j]):
                    return False
        reference[j] = added
        window[slot, j] = rows[at, j]
    return True


@helper(fastmath=LINEAR)
def _rescale(rows, at, reference, scores, t):
    """Multiply a row by exp(reference + scores[t]) and divide it by its sum. Its largest entry is then near 1, whatever its
    segments score.

    RETURNS (float64): The logarithm of the sum, -inf if the sum is 0, NaN if an entry would underflow that the sums need.
    """
    largest = -np.inf
    for j in range(rows.shape[1]):
        exponent = reference[j] + scores[t, j] if rows[at, j] > 0.0 else -np.inf
        largest = exponent if exponent > largest else largest
    if largest == -np.inf:
        rows[at] = 0.0
        return largest
    n_lost = 0
    for j in range(rows.shape[1]):
        exponent = reference[j] + scores[t, j] - largest
        is_there = (rows[at, j] > 0.0) & (scores[t, j] > -np.inf)
        mass = rows[at, j] * _exp(exponent)
        mass = mass if is_there & (exponent > -LARGEST_EXPONENT) else 0.0
        n_lost += 1 if is_there & (mass == 0.0) else 0
        rows[at, j] = mass
    divisor = _normalise(rows, at)
    return np.nan if n_lost > 0 or divisor <= 0.0 else largest + np.log(divisor)


@kernel(fastmath=LINEAR)
def forward(potentials, prefixes, log_z):
    """Forward pass.

    potentials (ScaledSegmentPotentials)
    prefixes (SegmentForwardRows): Receives the rows.
    log_z (float64[B]): Receives the log partition: -inf if no path is allowed, NaN if the sequence needs log space.
    """
    opening, closing, lengths, spans, transitions, _, first, last, shift, unbroken, span_of, starts = potentials
    enter, enter_scale, left, left_scale = prefixes
    size = opening.shape[1]
    longest = lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    window = np.empty((longest, size))
    reference = np.empty(size)
    # Separate arrays, so that the compiler knows that they overlap no others
    now = np.empty((1, size))
    before = np.empty(size)
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            log_z[b] = 0.0
            continue
        window[:] = 0.0
        reference[:] = np.nan
        scale = 0.0
        # enter[t, j] = logsum_i(left[t-1, i] + transitions[i, j])
        # left[t, j] = closing[t, j] + logsum_k(enter[t-k, j] + opening[t-k, j] + lengths[k, j] + spans[.., j])
        for t in range(begin, end):
            if t == begin:
                for j in range(size):
                    now[0, j] = first[j]
            else:
                _multiply(now, transitions, t * step, before)
                scale += shift[t * step]
            divisor = _normalise(now, 0)
            if divisor < 0.0:
                scale = np.nan
                break
            if divisor > 0.0:  # otherwise no segment may begin here, but later ones may
                scale += np.log(divisor)
            enter_scale[t] = scale
            for j in range(size):
                enter[t, j] = now[0, j]
            slot = (t - begin) % longest
            n_far = _put(window, slot, now, 0, scale, opening, t, reference)
            if n_far > 0 and not _move(window, slot, now, 0, scale, opening, t, unbroken, reference):
                scale = np.nan
                break
            for j in range(size):
                now[0, j] = 0.0
            for k in range(min(longest, t - begin + 1)):
                span = span_of[t - k, k]
                if span >= 0:
                    for j in range(size):
                        # The window is a ring: slot, slot - 1, ... are the begins t, t - 1, ...
                        now[0, j] += window[slot, j] * lengths[k, j] * spans[span, j]
                else:
                    for j in range(size):
                        now[0, j] += window[slot, j] * lengths[k, j]
                slot = slot - 1 if slot > 0 else longest - 1
            scale = _rescale(now, 0, reference, closing, t)
            if np.isnan(scale):
                break
            left_scale[t] = scale
            for j in range(size):
                before[j] = left[t, j] = now[0, j]
        z = 0.0
        if not np.isnan(scale):
            for j in range(size):
                z += before[j] * last[j]
            scale = scale + np.log(z) if z > 0.0 else -np.inf
        log_z[b] = scale


@helper
def _clear(out, begin, end):
    """Set begins, ends and spans of a sequence to 0."""
    out.begins[begin:end] = 0.0
    out.ends[begin:end] = 0.0
    for t in range(begin, end):
        for k in range(out.span_of.shape[1]):
            if out.span_of[t, k] >= 0:
                out.spans[out.span_of[t, k]] = 0.0


@kernel(fastmath=LINEAR)
def expectations(potentials, prefixes, weights, log_z, out):
    """Backward pass after `forward`: the derivative of sum_b weights[b] · log_z[b].

    weights (float64[B]): Factor of each sequence.
    prefixes, log_z: From `forward`. log_z receives NaN if the sequence needs log space.
    out (log_space.SegmentArrays): Its begins, ends and spans receive the expectations; 0 for sequences without a path. The kernel
        adds to its lengths and transitions; the caller multiplies the latter by the exp of the transitions.
    """
    opening, closing, lengths, spans, _, transitions, _, last, shift, unbroken, span_of, starts = potentials
    enter, enter_scale, left, left_scale = prefixes
    _, d_begins, d_ends, d_lengths, d_spans, d_transitions, _, _, _, _ = out
    size = opening.shape[1]
    longest = lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    window = np.empty((longest, size))
    reference = np.empty(size)
    leave = np.empty((1, size))
    suffix = np.empty((1, size))
    factor = np.empty(size)
    d_long = np.empty((longest, size))  # of one sequence, which the kernel may still refuse
    d_steps = np.empty((1 if step == 0 else 0, size, size))
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        _clear(out, begin, end)
        if begin == end or not log_z[b] > -np.inf:
            continue
        d_long[:] = 0.0
        d_steps[:] = 0.0
        window[:] = 0.0
        reference[:] = np.nan
        scale = 0.0
        trusted = True
        for t in range(end - 1, begin - 1, -1):
            # leave[t, i] = logsum_j(transitions[i, j] + out[t+1, j])
            if t == end - 1:
                for j in range(size):
                    leave[0, j] = last[j]
            else:
                _multiply(leave, transitions, (t + 1) * step, suffix[0])
                scale += shift[(t + 1) * step]
            divisor = _normalise(leave, 0)
            if divisor < 0.0:
                trusted = False
                break
            if divisor > 0.0:
                scale += np.log(divisor)
            behind = end - 1 - t
            slot = behind % longest
            n_far = _put(window, slot, leave, 0, scale, closing, t, reference)
            if n_far > 0 and not _move(window, slot, leave, 0, scale, closing, t, unbroken, reference):
                trusted = False
                break
            # A segment of state j ends with t where a prefix left[t, j] meets a suffix leave[t, j]. Positive products of the two
            # are at least TINY², so the exponent can be too large only where no product is positive.
            exponent = left_scale[t] + scale - log_z[b]
            probability = weights[b] * np.exp(exponent) if exponent < LARGEST_EXPONENT else 0.0
            for j in range(size):
                d_ends[t, j] = left[t, j] * leave[0, j] * probability
            # out[t, j] = opening[t, j] + logsum_k(leave[t+k, j] + closing[t+k, j] + lengths[k, j] + spans[.., j])
            n_large = 0
            for j in range(size):
                suffix[0, j] = 0.0
                # P(segment t..t+k) = enter · exp(opening) · window · lengths · spans / Z; factor is what all k share
                exponent = enter_scale[t] + opening[t, j] + reference[j] - log_z[b]
                # false for NaN: this state never ends a segment
                is_there = (enter[t, j] > 0.0) & (exponent > -LARGEST_EXPONENT)
                n_large += 1 if is_there & (exponent >= LARGEST_EXPONENT) else 0
                mass = weights[b] * enter[t, j] * _exp(exponent)
                factor[j] = mass if is_there else 0.0
            for k in range(min(longest, end - t)):
                span = span_of[t, k]
                if span >= 0:
                    for j in range(size):
                        mass = window[slot, j] * lengths[k, j] * spans[span, j]
                        suffix[0, j] += mass
                        d_spans[span, j] = mass * factor[j]
                        d_long[k, j] += mass * factor[j]
                else:
                    for j in range(size):
                        mass = window[slot, j] * lengths[k, j]
                        suffix[0, j] += mass
                        d_long[k, j] += mass * factor[j]
                slot = slot - 1 if slot > 0 else longest - 1
            for j in range(size):
                d_begins[t, j] = suffix[0, j] * factor[j]
            if n_large > 0:
                trusted = False
                break
            if t == begin:
                break
            scale = _rescale(suffix, 0, reference, opening, t)
            if np.isnan(scale):
                trusted = False
                break
            if scale == -np.inf:
                continue
            exponent = left_scale[t - 1] + shift[t * step] + scale - log_z[b]
            if exponent < -LARGEST_EXPONENT:
                continue
            if exponent > LARGEST_EXPONENT:
                trusted = False
                break
            probability = weights[b] * np.exp(exponent)
            for i in range(size):
                # P(i ends at t-1, j begins at t) = left[t-1, i] · transitions[i, j] · suffix[t, j] / Z, without the matrix
                mass = left[t - 1, i] * probability
                for j in range(size):
                    if step == 0:
                        d_steps[0, i, j] += mass * suffix[0, j]
                    else:
                        d_transitions[t, i, j] = mass * suffix[0, j]
        if trusted:
            for k in range(longest):
                for j in range(size):
                    d_lengths[k, j] += d_long[k, j]
            if step == 0:
                for i in range(size):
                    for j in range(size):
                        d_transitions[0, i, j] += d_steps[0, i, j]
        else:
            log_z[b] = np.nan
            _clear(out, begin, end)
            if step == 1:
                d_transitions[begin:end] = 0.0


# ----------------------------------------------------------------------------------------------------------- decoding


@kernel
def viterbi(log_potentials, states, totals):
    """Best segmentation of each sequence. Ties go to the lower state of the last segment, then to the shorter last segment, then
    likewise to the segments before.

    log_potentials (log_space.LogPotentials)
    states (int32[n]): Receives the path, -1 where the sequence has no allowed path.
    totals (float64[B]): Receives the score of the path.

    The kernel keeps no backpointers: the way back repeats the search, along the best path only.
    """
    opening, closing, lengths, spans, transitions, first, _, span_of, reach, starts = log_potentials
    size = lengths.shape[1]
    longest = lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    entered = np.empty(opening.shape)
    left = np.empty(opening.shape)
    # Separate arrays, so that the compiler knows that they overlap no others; four states at a time
    now = np.empty(size)
    before = np.empty((size + LANES - 1) // LANES * LANES)
    steps = np.empty((len(before), size))
    for i in range(len(before)):
        before[i] = -np.inf
        for j in range(size):
            steps[i, j] = transitions[0, i, j] if i < size and transitions.shape[0] == 1 else -np.inf
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        # entered[t, j] = opening[t, j] + max_i(left[t-1, i] + transitions[i, j])
        # left[t, j] = closing[t, j] + max_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
        for t in range(begin, end):
            if t == begin:
                for j in range(size):
                    now[j] = first[j]
            else:
                for i in range(size if step == 1 else 0):
                    for j in range(size):
                        steps[i, j] = transitions[t, i, j]
                for j in range(size):
                    now[j] = -np.inf
                for i in range(0, len(before), LANES):
                    a = before[i]
                    c = before[i + 1]
                    d = before[i + 2]
                    e = before[i + 3]
                    for j in range(size):
                        upper = max(a + steps[i, j], c + steps[i + 1, j])
                        lower = max(d + steps[i + 2, j], e + steps[i + 3, j])
                        now[j] = max(now[j], max(upper, lower))
            for j in range(size):
                entered[t, j] = now[j] + opening[t, j]
                now[j] = -np.inf
            for k in range(min(longest, t - begin + 1)):
                span = span_of[t - k, k]
                if span >= 0:
                    for j in range(size):
                        score = entered[t - k, j] + lengths[k, j] + spans[span, j]
                        now[j] = max(now[j], score if t - k >= reach[t, j] else -np.inf)
                else:
                    for j in range(size):
                        score = entered[t - k, j] + lengths[k, j]
                        now[j] = max(now[j], score if t - k >= reach[t, j] else -np.inf)
            for j in range(size):
                before[j] = now[j] + closing[t, j]
                left[t, j] = before[j]
        totals[b] = follow_back(log_potentials, entered, left, begin, end, states)


@helper
def follow_back(log_potentials, entered, left, begin, end, states):
    """Write the best path of a sequence into states (int32[n]), -1 where no path is allowed.

    entered, left (float64[n, S]): Scores of the best prefixes, with the step into a segment and up to its end.
    RETURNS (float): The score of the path.
    """
    _, _, lengths, spans, transitions, _, last, span_of, reach, _ = log_potentials
    step = 1 if transitions.shape[0] > 1 else 0
    t = end - 1
    state, total = best_end(left, t, last)
    if state == -1:
        states[begin:end] = -1
        return total
    while True:
        best = -np.inf
        longer = 0
        for k in range(min(len(lengths), t - begin + 1)):
            span = span_of[t - k, k]
            # The same sums as forwards, for the one state of the best path
            score = entered[t - k, state] + lengths[k, state] + (spans[span, state] if span >= 0 else 0.0)
            if score > best and t - k >= reach[t, state]:
                best = score
                longer = k
        states[t - longer + 1 : t + 1] = GOES_ON
        t -= longer
        states[t] = state
        if t == begin:
            return total
        state = best_before(left, t - 1, transitions, t * step, state)
        t -= 1


@kernel
def list_probable(log_potentials, entered, leaving, log_z, min_log_prob, found):
    """Segments with at least a certain probability, from the rows of `log_space.log_forward` and `log_space.log_backward`.

    found (int64[M], int64[M], int32[M], float64[M]): First tokens, lengths, states and log probabilities: receive M segments.
    RETURNS (int): Number of segments, perhaps above M.
    """
    _, _, lengths, spans, _, _, _, span_of, reach, starts = log_potentials
    size = lengths.shape[1]
    longest = lengths.shape[0]
    count = 0
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end or log_z[b] == -np.inf:
            continue
        for t in range(begin, end):
            for k in range(min(longest, end - t)):
                span = span_of[t, k]
                for j in range(size):
                    # log P(segment) = entered + lengths + spans + leaving - log Z
                    score = entered[t, j] + lengths[k, j] + leaving[t + k, j] + (spans[span, j] if span >= 0 else 0.0)
                    if reach[t + k, j] <= t and score > -np.inf and score - log_z[b] >= min_log_prob:
                        if count < found[0].shape[0]:
                            found[0][count] = t
                            found[1][count] = k + 1
                            found[2][count] = j
                            found[3][count] = score - log_z[b]
                        count += 1
    return count


# --------------------------------------------------------------------------------------------------------- given paths


@kernel
def segment_end(states, t, end):
    """The token behind the segment that begins at t, in a sequence whose last token is `end` - 1."""
    t += 1
    while t < end and states[t] == GOES_ON:
        t += 1
    return t


@kernel(in_place=True)
def path_score(scores, states, totals):
    """Score of one path per sequence: states (int32[n]), totals (float64[B]); -inf where the first state is negative, or a
    segment is longer than K."""
    tokens, begins, ends, lengths, spans, transitions, first, last, span_of, starts = scores
    step = 1 if transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        t = starts[b]
        end = starts[b + 1]
        score = 0.0
        before = -1
        while t < end:
            state = states[t]
            stop = segment_end(states, t, end)
            if state < 0 or stop - t > lengths.shape[0]:
                score = -np.inf
                break
            score += first[state] if before == -1 else transitions[t * step, before, state]
            score += begins[t, state] + ends[stop - 1, state] + lengths[stop - t - 1, state]
            if span_of[t, stop - t - 1] >= 0:
                score += spans[span_of[t, stop - t - 1], state]
            for i in range(t, stop):
                score += tokens[i, state]
            before = state
            t = stop
        if before >= 0 and score > -np.inf:
            score += last[before]
        totals[b] = score


@kernel(in_place=True)
def path_expectations(states, weights, out):
    """Add weights[b] for each score that the path of sequence b uses; sequences without a path add nothing."""
    d_tokens, d_begins, d_ends, d_lengths, d_spans, d_transitions, d_first, d_last, span_of, starts = out
    step = 1 if d_transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        t = starts[b]
        end = starts[b + 1]
        before = -1
        while t < end and states[t] >= 0:
            state = states[t]
            stop = segment_end(states, t, end)
            if before == -1:
                d_first[state] += weights[b]
            else:
                d_transitions[t * step, before, state] += weights[b]
            d_begins[t, state] += weights[b]
            d_ends[stop - 1, state] += weights[b]
            d_lengths[stop - t - 1, state] += weights[b]
            if span_of[t, stop - t - 1] >= 0:
                d_spans[span_of[t, stop - t - 1], state] += weights[b]
            for i in range(t, stop):
                d_tokens[i, state] += weights[b]
            before = state
            t = stop
        if before >= 0:
            d_last[before] += weights[b]


@kernel
def add_segments(begin, end, derivative, out):
    """From the derivative with respect to the scores of segments (float64[N, S]), add the derivatives of all terms except tokens.

    begin, end (int64[N]): The segments.
    """
    for n in range(begin.shape[0]):
        length = end[n] - begin[n]
        span = out.span_of[begin[n], length - 1]
        for j in range(derivative.shape[1]):
            out.begins[begin[n], j] += derivative[n, j]
            out.ends[end[n] - 1, j] += derivative[n, j]
            out.lengths[length - 1, j] += derivative[n, j]
            if span >= 0:
                out.spans[span, j] += derivative[n, j]


@kernel(in_place=True)
def cover(out):
    """Expected number of segments that cover each token: begun up to the token, minus ended before it."""
    d_tokens = out.tokens
    d_begins = out.begins
    d_ends = out.ends
    starts = out.starts
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for j in range(d_tokens.shape[1]):
                d_tokens[t, j] = d_begins[t, j]
                if t > starts[b]:
                    # covering[t] = covering[t-1] + begun at t - ended at t-1
                    d_tokens[t, j] += d_tokens[t - 1, j] - d_ends[t - 1, j]


@kernel(in_place=True)
def only_path(allowed, may_begin, must_begin, states):
    """Whether a clamp (bool[n, S], bool[n], bool[n]) allows exactly one path; states (int32[n]) receives it."""
    for t in range(allowed.shape[0]):
        choices = 0
        for j in range(allowed.shape[1]):
            if allowed[t, j]:
                choices += 1
                states[t] = j
        if choices != 1:
            return False
    for t in range(allowed.shape[0] - 1, -1, -1):
        if not must_begin[t]:
            if t == 0 or may_begin[t] or states[t] != states[t - 1]:
                return False
            states[t] = GOES_ON
    return True
