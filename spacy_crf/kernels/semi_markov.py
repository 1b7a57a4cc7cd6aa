"""Semi-Markov chains: forward, backward and their relatives over a chunk of sequences laid end to end.

A segment of state j over the tokens b to t has the score (`fold` brings scores into this form)

    opening[b, j] + closing[t, j] + lengths[t - b, j] + spans[n, j]      the last where the span is listed, as number n

and two neighbouring segments that of their transition. Between segments stands one sum over states, so all is
O(T·(K·S + S²)) time and O(T·S + K·S) memory beyond the scores (Sarawagi & Cohen 2004, with the transitions factored out).

    enter[b, j]  prefixes before b, with the step into a segment of state j that begins at b
    left[t, j]   prefixes whose last segment has state j and ends with t
    leave[t, j]  suffixes behind t, with the step out of a segment of state j that ends with t

Two families, as for linear chains. The scaled ones (``forward expectations``) sum in the linear domain. Rows of enter,
left and leave have sum 1, and the logarithms of the divisors are kept per row. A window over the last K rows holds
exp(enter + opening - reference), or exp(leave + closing - reference), with a reference per state that follows them; the
inner loop is a multiplication and an addition. The log-space ones (``log_forward log_expectations``) are the textbook
recursions. They also know masks (``reach``), which the scaled ones don't.

When the scaled recursions refuse, and why nothing is lost when they don't. Let the finite transitions (and firsts, and
lasts) lie within SPREAD = 300 of each other and the sum of a length's and a span's score within EXTRA = 100 of 0, and let
positive entries of the normalised rows be at least TINY = 1e-100. A row enters the window with an exponent within LEAD = 200,
or else its state's reference is moved such that it is 0. Moving may push an older entry below 1e-308. That is accepted only
where a shorter segment is allowed wherever a longer one is: then the newest entry, at least TINY, makes each sum that the older
one belongs to at least TINY · e^-EXTRA, and what was lost is less than 1e-308 · e^EXTRA, a share below 1e-120. Anything else is
refused: a sum of 0 means that no path is allowed.

Shapes: n tokens of the chunk, S states, K longest segment, N listed spans, in the order of their first token and then of
their length; span_starts (int64[n + 1]) says which begin at a token. end_starts (int64[n + 1]) and end_spans (int32[N]) list
them by their last token and then by their length. Matrices of transitions are [1, ...] if all positions share them, else
[n, ...]: token t reads matrix ``t * step`` with step 0 or 1.
"""

import numpy as np

from ..types import GOES_ON
from . import helper, kernel
from .numerics import LINEAR, TINY, draw, log_sum

LEAD = 200.0
EXTRA = 100.0
LARGEST_EXPONENT = 600.0
SMALLEST, LARGEST = 1e-250, 1e100


@kernel
def fold(tokens, begins, ends, starts, opening, closing):
    """Spread the scores of tokens over the ends of the segments: running sums, added behind and taken off in front.

    tokens, begins, ends (float64[n, S]): Scores.
    starts (int64[B + 1]): Where the sequences start.
    opening, closing (float64[n, S]): Receive them. A token that forbids a state counts as 0 here: see `mask`.
    RETURNS (bool): Whether a token forbids a state.
    """
    forbids = False
    size = tokens.shape[1]
    total = np.empty(size)
    for b in range(starts.shape[0] - 1):
        total[:] = 0.0
        for t in range(starts[b], starts[b + 1]):
            for j in range(size):
                opening[t, j] = begins[t, j] - total[j]
                if tokens[t, j] > -np.inf:
                    total[j] += tokens[t, j]
                else:
                    forbids = True
                closing[t, j] = ends[t, j] + total[j]
    return forbids


@kernel
def mask(tokens, allowed, may_begin, must_begin, starts, opening, closing, reach):
    """Forbid what a clamp forbids.

    tokens (float64[n, S]): Scores; -inf forbids.
    allowed (bool[n, S]), may_begin, must_begin (bool[n]): The clamp.
    starts (int64[B + 1]): Where the sequences start.
    opening, closing (float64[n, S]): From `fold`. Receive -inf where no segment may begin or end.
    reach (int32[n, S]): Receives the first token that a segment ending here may begin with, t + 1 for none.
    """
    size = tokens.shape[1]
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        for t in range(begin, end):
            for j in range(size):
                reach[t, j] = t if t == begin or must_begin[t] else reach[t - 1, j]
                if not allowed[t, j] or tokens[t, j] == -np.inf:
                    reach[t, j] = t + 1
            if t > begin and not may_begin[t]:
                opening[t] = -np.inf
                closing[t - 1] = -np.inf


@kernel
def no_mask(starts, reach):
    """`reach` (int32[n, S]) where nothing is forbidden."""
    for b in range(starts.shape[0] - 1):
        reach[starts[b] : starts[b + 1]] = starts[b]


# ---------------------------------------------------------------------------------------------- scaled linear domain


@helper(fastmath=LINEAR)
def _normalise(row):
    """Divide a row by its sum. RETURNS (float64): The sum; 0 if it is 0, -1 where the row has entries too small to trust."""
    total = 0.0
    for j in range(row.shape[0]):
        total += row[j]
    if total == 0.0:
        return 0.0
    if not 1e-250 < total < 1e250:
        return -1.0
    inverse = 1.0 / total
    too_small = 0
    for j in range(row.shape[0]):
        row[j] *= inverse
        too_small += (row[j] < TINY) & (row[j] > 0.0)
    return -1.0 if too_small else total


@helper
def _put(window, filled, slot, row, log_scale, scores, unbroken, reference):
    """Write a row into the window: exp(log(row) + log_scale + scores - reference), moving references that are too far away.

    window (float64[K, S]), slot (int): Where the row goes. The first `filled` slots are in use.
    unbroken (bool[S]): Whether a shorter segment is allowed wherever a longer one is.
    RETURNS (bool): False where something would be lost.
    """
    for j in range(row.shape[0]):
        if row[j] == 0.0 or scores[j] == -np.inf:
            window[slot, j] = 0.0
            continue
        exponent = log_scale + scores[j] - reference[j]
        if not -LEAD < exponent < LEAD:  # so written, it is true for NaN too: the reference of the first row is NaN
            factor = np.exp(-exponent)
            for k in range(filled):
                if k != slot and window[k, j] > 0.0:
                    window[k, j] *= factor
                    if window[k, j] > LARGEST or (window[k, j] < SMALLEST and not unbroken[j]):
                        return False
            reference[j] = log_scale + scores[j]
            exponent = 0.0
        window[slot, j] = row[j] * np.exp(exponent)
    return True


@kernel(fastmath=LINEAR)
def forward(
    opening,
    closing,
    lengths,
    spans,
    transitions,
    first,
    last,
    starts,
    span_lengths,
    end_starts,
    end_spans,
    shift,
    unbroken,
    enter,
    enter_scale,
    left,
    left_scale,
    log_z,
):
    """Forward pass.

    opening, closing (float64[n, S]): From `fold`.
    lengths (float64[K, S]), spans (float64[N, S]): exp of the scores.
    transitions (float64[1 | n, S, S]), first, last (float64[S]): exp of the scores less their maximum.
    starts (int64[B + 1]): Where the sequences start.
    span_lengths (int32[N]), end_starts (int64[n + 1]), end_spans (int32[N]): The listed spans.
    shift (float64[1 | n]): The maxima of the transitions; those of first and last are left to the caller.
    unbroken (bool[S]): Whether a shorter segment is allowed wherever a longer one is.
    enter, left (float64[n, S]), enter_scale, left_scale (float64[n]): Receive the rows and the logarithms of their scales.
    log_z (float64[B]): Receives the log partition: -inf if no path is allowed, NaN if the sequence has to be done in log space.
    """
    size, longest = opening.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    window = np.empty((longest, size))
    reference = np.empty(size)
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            log_z[b] = 0.0
            continue
        reference[:] = np.nan
        scale = 0.0
        # enter[t, j] = logsum_i(left[t-1, i] + transitions[i, j])
        # left[t, j] = closing[t, j] + logsum_k(enter[t-k, j] + opening[t-k, j] + lengths[k, j] + spans[.., j])
        for t in range(begin, end):
            if t == begin:
                for j in range(size):
                    enter[t, j] = first[j]
            else:
                for j in range(size):
                    enter[t, j] = 0.0
                for i in range(size):
                    mass = left[t - 1, i]
                    for j in range(size):
                        enter[t, j] += mass * transitions[t * step, i, j]
                scale += shift[t * step]
            divisor = _normalise(enter[t])
            if divisor < 0.0:
                scale = np.nan
                break
            if divisor > 0.0:  # otherwise no segment may begin here, which need not be the end
                scale += np.log(divisor)
            enter_scale[t] = scale
            if not _put(
                window, min(t - begin, longest), (t - begin) % longest, enter[t], scale, opening[t], unbroken, reference
            ):
                scale = np.nan
                break
            for j in range(size):
                left[t, j] = 0.0
            n = end_starts[t]
            for k in range(min(longest, t - begin + 1)):
                slot = (t - begin - k) % longest
                if n < end_starts[t + 1] and span_lengths[end_spans[n]] == k + 1:
                    for j in range(size):
                        left[t, j] += window[slot, j] * lengths[k, j] * spans[end_spans[n], j]
                    n += 1
                else:
                    for j in range(size):
                        left[t, j] += window[slot, j] * lengths[k, j]
            # The new scale brings the largest entry near 1, whatever its segment scored.
            largest = -np.inf
            for j in range(size):
                if left[t, j] > 0.0:
                    largest = max(largest, reference[j] + closing[t, j])
            if largest == -np.inf:
                left[t] = 0.0
            else:
                for j in range(size):
                    if left[t, j] > 0.0:
                        left[t, j] *= np.exp(reference[j] + closing[t, j] - largest)
                        if left[t, j] == 0.0 and closing[t, j] > -np.inf:
                            largest = np.nan
                            break
                scale = largest
                divisor = _normalise(left[t])
                if divisor <= 0.0:
                    scale = np.nan
                else:
                    scale += np.log(divisor)
            if np.isnan(scale):
                break
            left_scale[t] = scale
        z = 0.0
        if not np.isnan(scale):
            for j in range(size):
                z += left[end - 1, j] * last[j]
            scale = scale + np.log(z) if z > 0.0 else -np.inf
        log_z[b] = scale


@kernel(fastmath=LINEAR)
def expectations(
    opening,
    closing,
    lengths,
    spans,
    transitions,
    first,
    last,
    starts,
    span_starts,
    span_lengths,
    shift,
    unbroken,
    weights,
    enter,
    enter_scale,
    left,
    left_scale,
    log_z,
    d_begins,
    d_ends,
    d_lengths,
    d_spans,
    d_transitions,
):
    """Backward pass over what `forward` left: the derivative of sum_b weights[b] · log_z[b].

    transitions (float64[1 | n, S, S]): As in `forward`, but each matrix transposed.
    span_starts (int64[n + 1]), span_lengths (int32[N]): The listed spans by their first token.
    weights (float64[B]): Factor of each sequence.
    enter ... log_z: From `forward`. log_z receives NaN if the sequence has to be done in log space.
    d_begins, d_ends (float64[n, S]), d_spans (float64[N, S]): Receive the expected segments that begin and end at each token,
        and the expectations of the listed ones; 0 for sequences without a path or refused.
    d_lengths (float64[K, S]): Added to.
    d_transitions (float64[1 | n, S, S]): Added to; still to be multiplied by the exp of the transitions.
    The rest as in `forward`.
    """
    size, longest = opening.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    window = np.empty((longest, size))
    reference = np.empty(size)
    leave = np.empty(size)
    out = np.empty(size)
    factor = np.empty(size)
    d_long = np.empty((longest, size))  # of one sequence, which may still be refused
    d_steps = np.empty((1 if step == 0 else 0, size, size))
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        d_begins[begin:end] = 0.0
        d_ends[begin:end] = 0.0
        if begin < end:
            d_spans[span_starts[begin] : span_starts[end]] = 0.0
        if begin == end or not log_z[b] > -np.inf:
            continue
        d_long[:] = 0.0
        d_steps[:] = 0.0
        reference[:] = np.nan
        scale = 0.0
        trusted = True
        for t in range(end - 1, begin - 1, -1):
            # leave[t, i] = logsum_j(transitions[i, j] + out[t+1, j])
            if t == end - 1:
                for j in range(size):
                    leave[j] = last[j]
            else:
                for j in range(size):
                    leave[j] = 0.0
                for i in range(size):
                    mass = out[i]
                    for j in range(size):
                        leave[j] += mass * transitions[(t + 1) * step, i, j]
                scale += shift[(t + 1) * step]
            divisor = _normalise(leave)
            if divisor < 0.0:
                trusted = False
                break
            if divisor > 0.0:
                scale += np.log(divisor)
            behind = end - 1 - t
            if not _put(window, min(behind, longest), behind % longest, leave, scale, closing[t], unbroken, reference):
                trusted = False
                break
            # out[t, j] = opening[t, j] + logsum_k(leave[t+k, j] + closing[t+k, j] + lengths[k, j] + spans[.., j])
            for j in range(size):
                out[j] = 0.0
                factor[j] = 0.0
                exponent = enter_scale[t] + opening[t, j] + reference[j] - log_z[b]
                if enter[t, j] > 0.0 and exponent > -LARGEST_EXPONENT:  # false for NaN: this state never ends a segment
                    trusted &= exponent < LARGEST_EXPONENT
                    factor[j] = weights[b] * enter[t, j] * np.exp(min(exponent, LARGEST_EXPONENT))
            n = span_starts[t]
            for k in range(min(longest, end - t)):
                slot = (behind - k) % longest
                if n < span_starts[t + 1] and span_lengths[n] == k + 1:
                    for j in range(size):
                        mass = window[slot, j] * lengths[k, j] * spans[n, j]
                        out[j] += mass
                        d_spans[n, j] = mass * factor[j]
                        d_begins[t, j] += mass * factor[j]
                        d_ends[t + k, j] += mass * factor[j]
                        d_long[k, j] += mass * factor[j]
                    n += 1
                else:
                    for j in range(size):
                        mass = window[slot, j] * lengths[k, j]
                        out[j] += mass
                        d_begins[t, j] += mass * factor[j]
                        d_ends[t + k, j] += mass * factor[j]
                        d_long[k, j] += mass * factor[j]
            if t == begin:
                break
            largest = -np.inf
            for j in range(size):
                if out[j] > 0.0:
                    largest = max(largest, reference[j] + opening[t, j])
            if largest == -np.inf:
                out[:] = 0.0
                continue
            for j in range(size):
                if out[j] > 0.0:
                    out[j] *= np.exp(reference[j] + opening[t, j] - largest)
                    if out[j] == 0.0 and opening[t, j] > -np.inf:
                        trusted = False
            scale = largest
            divisor = _normalise(out)
            if divisor <= 0.0 or not trusted:
                trusted = False
                break
            scale += np.log(divisor)
            exponent = left_scale[t - 1] + shift[t * step] + scale - log_z[b]
            if exponent < -LARGEST_EXPONENT:
                continue
            if exponent > LARGEST_EXPONENT:
                trusted = False
                break
            probability = weights[b] * np.exp(exponent)
            for i in range(size):
                mass = left[t - 1, i] * probability
                for j in range(size):
                    if step == 0:
                        d_steps[0, i, j] += mass * out[j]
                    else:
                        d_transitions[t, i, j] = mass * out[j]
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
            d_begins[begin:end] = 0.0
            d_ends[begin:end] = 0.0
            d_spans[span_starts[begin] : span_starts[end]] = 0.0
            if step == 1:
                d_transitions[begin:end] = 0.0


# ---------------------------------------------------------------------------------------------------------- log space


@helper
def _gather(t, first_token, source, lengths, spans, span_lengths, end_starts, end_spans, reach, terms):
    """Scores of the segments that end with t: terms[k, j] = source[t-k, j] + lengths[k, j] + spans[.., j], all but closing.

    source (float64[n, S]): Scores up to and with the opening of a segment.
    terms (float64[K, S]): Receives them; -inf where a segment is forbidden.
    RETURNS (int): How many lengths there are.
    """
    size = lengths.shape[1]
    n_lengths = min(lengths.shape[0], t - first_token + 1)
    n = end_starts[t]
    for k in range(n_lengths):
        for j in range(size):
            terms[k, j] = source[t - k, j] + lengths[k, j] if t - k >= reach[t, j] else -np.inf
        if n < end_starts[t + 1] and span_lengths[end_spans[n]] == k + 1:
            for j in range(size):
                terms[k, j] += spans[end_spans[n], j]
            n += 1
    return n_lengths


@kernel
def log_forward(
    opening,
    closing,
    lengths,
    spans,
    transitions,
    first,
    last,
    starts,
    span_lengths,
    end_starts,
    end_spans,
    reach,
    entered,
    left,
    log_z,
):
    """Textbook forward pass.

    opening, closing (float64[n, S]), lengths (float64[K, S]), spans (float64[N, S]), transitions (float64[1 | n, S, S]),
    first, last (float64[S]): Scores.
    reach (int32[n, S]): From `mask` or `no_mask`.
    entered (float64[n, S]): Receives enter + opening.
    left (float64[n, S]): Receives the log score of all prefixes whose last segment ends here.
    log_z (float64[B]): Receives the log partition.
    """
    size, longest = lengths.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    terms = np.empty((longest, size))
    column = np.empty(max(longest, size))
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            log_z[b] = 0.0
            continue
        for t in range(begin, end):
            # entered[t, j] = opening[t, j] + logsum_i(left[t-1, i] + transitions[i, j])
            for j in range(size):
                if t == begin:
                    entered[t, j] = first[j] + opening[t, j]
                else:
                    for i in range(size):
                        column[i] = left[t - 1, i] + transitions[t * step, i, j]
                    entered[t, j] = log_sum(column[:size]) + opening[t, j]
            # left[t, j] = closing[t, j] + logsum_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
            n_lengths = _gather(t, begin, entered, lengths, spans, span_lengths, end_starts, end_spans, reach, terms)
            for j in range(size):
                for k in range(n_lengths):
                    column[k] = terms[k, j]
                left[t, j] = closing[t, j] + log_sum(column[:n_lengths])
        for j in range(size):
            column[j] = left[end - 1, j] + last[j]
        log_z[b] = log_sum(column[:size])


@kernel
def log_backward(
    opening, closing, lengths, spans, transitions, last, starts, span_starts, span_lengths, reach, leaving, out
):
    """Textbook backward pass.

    leaving (float64[n, S]): Receives leave + closing.
    out (float64[n, S]): Receives the log score of all suffixes whose first segment begins here. The rest as in `log_forward`.
    """
    size, longest = lengths.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    column = np.empty(max(longest, size))
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        for t in range(end - 1, begin - 1, -1):
            # leaving[t, i] = closing[t, i] + logsum_j(transitions[i, j] + out[t+1, j])
            for i in range(size):
                if t == end - 1:
                    leaving[t, i] = last[i] + closing[t, i]
                else:
                    for j in range(size):
                        column[j] = transitions[(t + 1) * step, i, j] + out[t + 1, j]
                    leaving[t, i] = log_sum(column[:size]) + closing[t, i]
            # out[t, j] = opening[t, j] + logsum_k(leaving[t+k, j] + lengths[k, j] + spans[.., j])
            n_lengths = min(longest, end - t)
            for j in range(size):
                n = span_starts[t]
                for k in range(n_lengths):
                    column[k] = leaving[t + k, j] + lengths[k, j] if reach[t + k, j] <= t else -np.inf
                    if n < span_starts[t + 1] and span_lengths[n] == k + 1:
                        column[k] += spans[n, j]
                        n += 1
                out[t, j] = log_sum(column[:n_lengths]) + opening[t, j]


@kernel
def log_expectations(
    opening,
    lengths,
    spans,
    transitions,
    starts,
    span_starts,
    span_lengths,
    reach,
    weights,
    entered,
    left,
    leaving,
    out,
    log_z,
    d_begins,
    d_ends,
    d_lengths,
    d_spans,
    d_transitions,
):
    """Expectations from what `log_forward` and `log_backward` left: the derivative of sum_b weights[b] · log_z[b].

    d_begins, d_ends (float64[n, S]), d_spans (float64[N, S]): Overwritten.
    d_lengths (float64[K, S]), d_transitions (float64[1 | n, S, S]): Added to.
    """
    size, longest = lengths.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        d_begins[begin:end] = 0.0
        d_ends[begin:end] = 0.0
        if begin < end:
            d_spans[span_starts[begin] : span_starts[end]] = 0.0
        if begin == end or log_z[b] == -np.inf:
            continue
        for t in range(begin, end):
            for j in range(size):
                n = span_starts[t]
                for k in range(min(longest, end - t)):
                    score = entered[t, j] + lengths[k, j] + leaving[t + k, j]
                    listed = n < span_starts[t + 1] and span_lengths[n] == k + 1
                    if listed:
                        score += spans[n, j]
                        n += 1
                    if reach[t + k, j] <= t and score > -np.inf:
                        expected = weights[b] * np.exp(score - log_z[b])
                        d_begins[t, j] += expected
                        d_ends[t + k, j] += expected
                        d_lengths[k, j] += expected
                        if listed:
                            d_spans[n - 1, j] = expected
            if t > begin:
                for i in range(size):
                    for j in range(size):
                        score = left[t - 1, i] + transitions[t * step, i, j] + out[t, j]
                        if score > -np.inf:
                            d_transitions[t * step, i, j] += weights[b] * np.exp(score - log_z[b])


@kernel
def list_probable(
    lengths,
    spans,
    starts,
    span_starts,
    span_lengths,
    reach,
    entered,
    leaving,
    log_z,
    min_log_prob,
    found_begin,
    found_length,
    found_state,
    found_log_prob,
):
    """Segments with at least a certain probability, from what `log_forward` and `log_backward` left.

    found_begin, found_length (int64[M]), found_state (int32[M]), found_log_prob (float64[M]): Receive the first M of them.
    RETURNS (int): How many there are.
    """
    size, longest = lengths.shape[1], lengths.shape[0]
    found = 0
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end or log_z[b] == -np.inf:
            continue
        for t in range(begin, end):
            n = span_starts[t]
            for k in range(min(longest, end - t)):
                listed = n < span_starts[t + 1] and span_lengths[n] == k + 1
                for j in range(size):
                    score = entered[t, j] + lengths[k, j] + leaving[t + k, j] + (spans[n, j] if listed else 0.0)
                    if reach[t + k, j] <= t and score > -np.inf and score - log_z[b] >= min_log_prob:
                        if found < found_begin.shape[0]:
                            found_begin[found] = t
                            found_length[found] = k + 1
                            found_state[found] = j
                            found_log_prob[found] = score - log_z[b]
                        found += 1
                if listed:
                    n += 1
    return found


# ----------------------------------------------------------------------------------------------------------- decoding


@kernel
def viterbi(
    opening,
    closing,
    lengths,
    spans,
    transitions,
    first,
    last,
    starts,
    span_lengths,
    end_starts,
    end_spans,
    reach,
    states,
    scores,
):
    """Best segmentation of each sequence. Among equals: the lower state of the last segment, the shorter last segment,
    then the same of the one before, and so on to the front.

    states (int32[n]): Receives the path, -1 where the sequence has none.
    scores (float64[B]): Receives the score of the path. The rest as in `log_forward`.

    Backpointers are not kept: along the best path, and only there, the way back asks once more what was best.
    """
    size, longest = lengths.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    entered = np.empty(opening.shape)
    left = np.empty(opening.shape)
    terms = np.empty((longest, size))
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            scores[b] = 0.0
            continue
        # entered[t, j] = opening[t, j] + max_i(left[t-1, i] + transitions[i, j])
        # left[t, j] = closing[t, j] + max_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
        for t in range(begin, end):
            if t == begin:
                for j in range(size):
                    entered[t, j] = first[j] + opening[t, j]
            else:
                for j in range(size):
                    entered[t, j] = -np.inf
                for i in range(size):
                    score = left[t - 1, i]
                    for j in range(size):
                        entered[t, j] = max(entered[t, j], score + transitions[t * step, i, j])
                for j in range(size):
                    entered[t, j] += opening[t, j]
            n_lengths = _gather(t, begin, entered, lengths, spans, span_lengths, end_starts, end_spans, reach, terms)
            for j in range(size):
                left[t, j] = -np.inf
            for k in range(n_lengths):
                for j in range(size):
                    left[t, j] = max(left[t, j], terms[k, j])
            for j in range(size):
                left[t, j] += closing[t, j]
        state = -1
        best = -np.inf
        for j in range(size):
            if left[end - 1, j] + last[j] > best:
                best = left[end - 1, j] + last[j]
                state = j
        scores[b] = best
        if state == -1:
            states[begin:end] = -1
            continue
        t = end - 1
        while True:
            n_lengths = _gather(t, begin, entered, lengths, spans, span_lengths, end_starts, end_spans, reach, terms)
            longer = 0
            for k in range(1, n_lengths):
                if terms[k, state] > terms[longer, state]:
                    longer = k
            states[t - longer + 1 : t + 1] = GOES_ON
            t -= longer
            states[t] = state
            if t == begin:
                break
            best = -np.inf
            after = state
            for i in range(size):
                if left[t - 1, i] + transitions[t * step, i, after] > best:
                    best = left[t - 1, i] + transitions[t * step, i, after]
                    state = i
            t -= 1


@kernel
def n_best(
    opening,
    closing,
    lengths,
    spans,
    transitions,
    first,
    last,
    span_lengths,
    end_starts,
    end_spans,
    reach,
    n,
    states,
    scores,
):
    """The n best segmentations of one sequence of at least one token, best first; ties as in `viterbi`.

    states (int32[n, T]), scores (float64[n]): Receive the paths. The rest as in `log_forward`.
    RETURNS (int): How many paths there are, at most n.
    """
    tokens, size = opening.shape
    longest = lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    entered = np.full((tokens, size, n), -np.inf)
    from_state = np.full((tokens + 1, size, n), -1, dtype=np.int32)
    from_rank = np.full((tokens + 1, size, n), -1, dtype=np.int32)
    left = np.full((tokens, size, n), -np.inf)
    length_of = np.full((tokens, size, n), -1, dtype=np.int32)
    enter_rank = np.full((tokens, size, n), -1, dtype=np.int32)
    taken = np.empty(max(size, longest), dtype=np.int64)
    arcs = np.empty(size)
    extra = np.empty(longest)
    for t in range(tokens + 1):
        # Row `tokens` is a single state after the last token, reached through `last`.
        for j in range(size if t < tokens else 1):
            if t == 0:
                entered[0, j, 0] = first[j] + opening[0, j]
                continue
            for i in range(size):
                arcs[i] = transitions[t * step, i, j] if t < tokens else last[i]
            taken[:size] = 0
            for rank in range(n):
                best = -1
                score = -np.inf
                for i in range(size):
                    if taken[i] < n and left[t - 1, i, taken[i]] + arcs[i] > score:
                        score = left[t - 1, i, taken[i]] + arcs[i]
                        best = i
                if best == -1:
                    break
                from_state[t, j, rank] = best
                from_rank[t, j, rank] = taken[best]
                taken[best] += 1
                if t < tokens:
                    entered[t, j, rank] = score + opening[t, j]
                else:
                    scores[rank] = score
        if t == tokens:
            break
        n_lengths = min(longest, t + 1)
        for j in range(size):
            at = end_starts[t]
            for k in range(n_lengths):
                extra[k] = lengths[k, j] if t - k >= reach[t, j] else -np.inf
                if at < end_starts[t + 1] and span_lengths[end_spans[at]] == k + 1:
                    extra[k] += spans[end_spans[at], j]
                    at += 1
            taken[:n_lengths] = 0
            for rank in range(n):
                best = -1
                score = -np.inf
                for k in range(n_lengths):
                    if taken[k] < n and entered[t - k, j, taken[k]] + extra[k] > score:
                        score = entered[t - k, j, taken[k]] + extra[k]
                        best = k
                if best == -1:
                    break
                left[t, j, rank] = score + closing[t, j]
                length_of[t, j, rank] = best + 1
                enter_rank[t, j, rank] = taken[best]
                taken[best] += 1
    found = 0
    while found < n and from_state[tokens, 0, found] >= 0:
        t, state, rank = tokens, 0, found
        while t > 0:
            before = from_state[t, state, rank]
            rank = from_rank[t, state, rank]
            state = before
            begin = t - length_of[t - 1, state, rank]
            rank = enter_rank[t - 1, state, rank]
            states[found, begin + 1 : t] = GOES_ON
            states[found, begin] = state
            t = begin
        found += 1
    return found


@kernel
def sample(
    lengths,
    spans,
    transitions,
    last,
    starts,
    span_lengths,
    end_starts,
    end_spans,
    reach,
    entered,
    left,
    uniforms,
    states,
):
    """Draw segmentations from the posterior: forward filtering has been done, this is backward sampling.

    entered, left (float64[n, S]): From `log_forward`.
    uniforms (float64[N, n, 2]): Random numbers in [0, 1): at the last token of a segment for its state and its length.
    states (int32[N, n]): Receives the paths, -1 where a sequence has no allowed path.
    """
    size, longest = lengths.shape[1], lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    terms = np.empty((longest, size))
    column = np.empty(max(size, longest))
    for n in range(uniforms.shape[0]):
        for b in range(starts.shape[0] - 1):
            begin, t = starts[b], starts[b + 1] - 1
            state = -1
            while t >= begin:
                for i in range(size):
                    arc = last[i] if state == -1 else transitions[(t + 1) * step, i, state]
                    column[i] = left[t, i] + arc
                state = draw(column[:size], uniforms[n, t, 0])
                if state == -1:  # only possible at the last token: no path at all
                    states[n, begin : t + 1] = -1
                    break
                n_lengths = _gather(
                    t, begin, entered, lengths, spans, span_lengths, end_starts, end_spans, reach, terms
                )
                for k in range(n_lengths):
                    column[k] = terms[k, state]
                longer = draw(column[:n_lengths], uniforms[n, t, 1])
                states[n, t - longer + 1 : t + 1] = GOES_ON
                states[n, t - longer] = state
                t -= longer + 1


# --------------------------------------------------------------------------------------------------------- given paths


@kernel
def segment_end(states, t, end):
    """The token behind the segment that begins at t, in a sequence that ends before `end`."""
    t += 1
    while t < end and states[t] == GOES_ON:
        t += 1
    return t


@kernel
def path_score(
    tokens, begins, ends, lengths, spans, transitions, first, last, starts, span_starts, span_lengths, states, scores
):
    """Score of one path per sequence: states (int32[n]), scores (float64[B]); -inf where the first state is negative, or a
    segment is longer than K."""
    step = 1 if transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        t, end = starts[b], starts[b + 1]
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
            for n in range(span_starts[t], span_starts[t + 1]):
                if span_lengths[n] == stop - t:
                    score += spans[n, state]
            for i in range(t, stop):
                score += tokens[i, state]
            before = state
            t = stop
        if before >= 0 and score > -np.inf:
            score += last[before]
        scores[b] = score


@kernel
def path_expectations(
    starts,
    span_starts,
    span_lengths,
    states,
    weights,
    d_tokens,
    d_begins,
    d_ends,
    d_lengths,
    d_spans,
    d_transitions,
    d_first,
    d_last,
):
    """Add weights[b] for each score that the path of sequence b uses; sequences without a path add nothing."""
    step = 1 if d_transitions.shape[0] > 1 else 0
    for b in range(starts.shape[0] - 1):
        t, end = starts[b], starts[b + 1]
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
            for n in range(span_starts[t], span_starts[t + 1]):
                if span_lengths[n] == stop - t:
                    d_spans[n, state] += weights[b]
            for i in range(t, stop):
                d_tokens[i, state] += weights[b]
            before = state
            t = stop
        if before >= 0:
            d_last[before] += weights[b]


@kernel
def add_segments(begin, end, number, derivative, d_begins, d_ends, d_lengths, d_spans):
    """Add the derivative with respect to the scores of segments (float64[N, S]) to those of what they are sums of, but tokens.

    begin, end (int64[N]): The segments.
    number (int64[N]): Where they are in the list of spans, -1 for nowhere.
    """
    for n in range(begin.shape[0]):
        for j in range(derivative.shape[1]):
            d_begins[begin[n], j] += derivative[n, j]
            d_ends[end[n] - 1, j] += derivative[n, j]
            d_lengths[end[n] - begin[n] - 1, j] += derivative[n, j]
            if number[n] >= 0:
                d_spans[number[n], j] += derivative[n, j]


@kernel
def cover(d_begins, d_ends, starts, d_tokens):
    """Expected number of segments that cover each token: those that began up to it, less those that ended before it."""
    size = d_begins.shape[1]
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for j in range(size):
                d_tokens[t, j] = d_begins[t, j]
                if t > starts[b]:
                    d_tokens[t, j] += d_tokens[t - 1, j] - d_ends[t - 1, j]


@kernel
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
