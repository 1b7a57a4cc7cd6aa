"""Binary chains over the same tokens, side by side: sums, best bits, and the bits of tags.

Chain c gives its bit at token t the score ``SCALE * units[t, c]`` if the bit is 1, and its negative if the bit is 0. Inner loops
run over the chains, and each changes few arrays, since LLVM vectorises no others.
"""

import math

import numpy as np

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.exponentials import exp

# A column of features has half of the difference of the scores of both values. The penalty l2 of its weight is that of two
# weights of opposite sign, which a chain of two tags has.
SCALE = math.sqrt(0.5)
_MOST = 150.0


@kernel
def agreed(clamp, codes, bits):
    """Find the bits in which all allowed tags agree.

    clamp (bool[T, S]), codes (uint8[S, C])
    bits (int8[T, C]): Receives the bits, -1 where tags differ; rows of tokens without an allowed tag stay.
    """
    n_tags, n_bits = codes.shape
    for t in range(len(clamp)):
        n = 0
        for y in range(n_tags):
            if clamp[t, y]:
                n += 1
                if n == 1:
                    for c in range(n_bits):
                        bits[t, c] = codes[y, c]
                else:
                    for c in range(n_bits):
                        if bits[t, c] != codes[y, c]:
                            bits[t, c] = -1


# An error for a divisor of 0, which Python asks for, would keep LLVM from vectors
@helper(error_model="numpy")
def _extend(one, factor, shorter, longer):
    """Extend the beginnings by a token: set `longer` to the odds of 1 at its end."""
    for c in range(len(factor)):
        # before[t] = e^odds · (1 + e^coupling · before[t-1]) / (1 + before[t-1]), the odds of 1 among the beginnings
        longer[c] = one[c] * (1.0 + factor[c] * shorter[c]) / (1.0 + shorter[c])


@helper(error_model="numpy")
def _return(one, factor, beginnings, behind):
    """Go back by a token: `one` and `beginnings` become probabilities of 1, and of 1 with 1 behind; `behind` takes it in."""
    for c in range(len(factor)):
        # behind: the odds of 1 in what follows; with those of the beginnings they give P(1) and P(1, then 1)
        share = 1.0 / (1.0 + behind[c])
        both = factor[c] * behind[c]
        follows = (1.0 + both) * share
        of_one = beginnings[c] / (1.0 + beginnings[c] * follows)
        behind[c] = one[c] * follows
        beginnings[c] = of_one * both * share
        one[c] = of_one * follows


@kernel
def expect(units, ends, coupling, starts, rows, path, weights, every, totals, d_units, counts):
    """Both passes over chains in the form

        score(b) = sum_t odds[t] · b_t + coupling · sum_t b_(t-1) · b_t,        odds[t] = 2 · SCALE · units[t] + ends

    for bits b_t of 0 and 1: the score less that of zeros. The passes run over the share of 1 beside 0, among the beginnings up to
    a token, and in what follows.

    units (float64[T, C]), coupling (float64[C])
    ends (float64[3, C]): Added to the odds of each token, of a first token, and of a last token.
    starts (int64[B + 1]), weights (float64[B])
    rows (float64[S, C]), path (int32[T]): Bits of tags, and tags whose scores are to be subtracted. None if the path is empty.
    every (int): Number of tokens whose sums may be multiplied before the logarithm is taken.
    totals (float64[2, B]): Receives log partitions, and scores of the path.
    d_units (float64[T, C]): Receives the weighted derivatives of these scores.
    counts (float64[4, C]): The derivatives by ends and coupling are added.
    """
    n_bits = units.shape[1]
    longest = 0
    has_path = len(path) > 0
    for b in range(len(starts) - 1):
        longest = max(longest, starts[b + 1] - starts[b])
    # exp(odds), then the probability of 1; and the shares among the beginnings, then the probability of 1 and 1 behind
    one = np.empty((longest, n_bits))
    before = np.empty((longest, n_bits))
    factor = np.empty(n_bits)
    behind = np.empty(n_bits)
    product = np.empty(n_bits)
    of_path = np.empty(n_bits)
    of_all, of_first, of_last, of_pairs = counts
    for c in range(n_bits):
        factor[c] = math.exp(coupling[c])
    for b in range(len(starts) - 1):
        begin = starts[b]
        weight = weights[b]
        total = 0.0
        length = starts[b + 1] - starts[b]
        of_path[:] = 0.0
        for t in range(length):
            here = one[t]
            source = units[begin + t]
            added = ends[0]
            for c in range(n_bits):
                here[c] = 2.0 * SCALE * source[c] + added[c]
            if t == 0:
                here += ends[1]
            if t == length - 1:
                here += ends[2]
            if has_path:
                row = rows[path[begin + t]]
                for c in range(n_bits):
                    of_path[c] += row[c] * here[c]
                if t > 0:
                    row_before = rows[path[begin + t - 1]]
                    for c in range(n_bits):
                        of_path[c] += row[c] * row_before[c] * coupling[c]
            for c in range(n_bits):
                here[c] = exp(here[c])
            if t == 0:
                before[0] = here
            else:
                _extend(here, factor, before[t - 1], before[t])
            if t % every == 0:
                product[:] = 1.0
            shares = before[t]
            for c in range(n_bits):
                # log Z = sum_t log(1 + before[t]); a logarithm of a product of several
                product[c] *= 1.0 + shares[c]
            if t % every == every - 1 or t == length - 1:
                for c in range(n_bits):
                    total += math.log(product[c])
        totals[0, b] = total
        totals[1, b] = of_path.sum()
        behind[:] = 0.0
        for t in range(length - 1, -1, -1):
            here = one[t]
            pair = before[t]
            out = d_units[begin + t]
            _return(here, factor, pair, behind)
            if has_path:
                row = rows[path[begin + t]]
                for c in range(n_bits):
                    # Expected uses less those of the path
                    here[c] -= row[c]
                if t < length - 1:
                    row_behind = rows[path[begin + t + 1]]
                    for c in range(n_bits):
                        pair[c] -= row[c] * row_behind[c]
            for c in range(n_bits):
                of_pairs[c] += weight * pair[c]
            for c in range(n_bits):
                of_all[c] += weight * here[c]
            for c in range(n_bits):
                out[c] = 2.0 * SCALE * weight * here[c]
        if length > 0:
            for c in range(n_bits):
                of_first[c] += weight * one[0, c]
                of_last[c] += weight * one[length - 1, c]


@kernel(error_model="numpy")
def cascade(units, ends, coupling, weights, starts, signs):
    """Add to the units of each chain what the bits of the chains before it add at the tokens beside: the sum of these chains'
    weights, each times the probability that its bit is 1, less that of 0.

    units (float64[T, C]): Also receives the sums.
    ends (float64[3, C]), coupling (float64[C]), starts (int64[B + 1]): See `expect`. Beyond 150, where probabilities are 0 and 1,
        odds and couplings are cut off.
    weights (float64[2, C, C]): Of chain c for the bit of chain e of the token before, [0, c, e], and behind, [1, c, e].
    signs (float64[T, C]): Receives the probability that a bit is 1, less that of 0.
    """
    n_tokens, n_bits = units.shape
    one = np.empty(n_tokens)
    before = np.empty(n_tokens)
    for c in range(n_bits):
        factor = math.exp(min(coupling[c], _MOST))
        for b in range(len(starts) - 1):
            begin = starts[b]
            end = starts[b + 1]
            share = 0.0
            for t in range(begin, end):
                added = 0.0
                for e in range(c if t > begin else 0):
                    added += weights[0, c, e] * signs[t - 1, e]
                for e in range(c if t < end - 1 else 0):
                    added += weights[1, c, e] * signs[t + 1, e]
                units[t, c] += added
                odds = 2.0 * SCALE * units[t, c] + ends[0, c]
                odds += ends[1, c] if t == begin else 0.0
                odds += ends[2, c] if t == end - 1 else 0.0
                one[t] = math.exp(max(-_MOST, min(_MOST, odds)))
                before[t] = share = one[t] * (1.0 + factor * share) / (1.0 + share)
            behind = 0.0
            for t in range(end - 1, begin - 1, -1):
                # As `_return`, for one chain
                follows = (1.0 + factor * behind) / (1.0 + behind)
                signs[t, c] = 2.0 * before[t] * follows / (1.0 + before[t] * follows) - 1.0
                behind = one[t] * follows


@kernel
def best(units, transitions, first, last, starts, bits):
    """Find the best bits of each chain. Equal scores go to 0.

    units (float64[T, C]), transitions (float64[C, 2, 2]), first, last (float64[C, 2]), starts (int64[B + 1])
    bits (int8[T, C]): Receives the bits.
    """
    n_tokens, n_bits = units.shape
    come_from = np.zeros((n_tokens, 2), dtype=np.int8)
    for c in range(n_bits):
        scores = transitions[c]
        for b in range(len(starts) - 1):
            begin = starts[b]
            end = starts[b + 1]
            if begin == end:
                continue
            of_zero = first[c, 0]
            of_one = first[c, 1]
            for t in range(begin, end):
                if t > begin:
                    from_zero = of_zero + scores[0, 0]
                    from_one = of_one + scores[1, 0]
                    to_zero = of_zero + scores[0, 1]
                    to_one = of_one + scores[1, 1]
                    come_from[t, 0] = from_one > from_zero
                    come_from[t, 1] = to_one > to_zero
                    of_zero = max(from_zero, from_one)
                    of_one = max(to_zero, to_one)
                # Best scores of the beginnings that end with 0 and with 1
                of_zero -= SCALE * units[t, c]
                of_one += SCALE * units[t, c]
            bit = 1 if of_one + last[c, 1] > of_zero + last[c, 0] else 0
            for t in range(end - 1, begin - 1, -1):
                bits[t, c] = bit
                bit = come_from[t, bit]
