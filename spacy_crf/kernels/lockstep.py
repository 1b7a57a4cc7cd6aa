"""Linear chains of many states: `forward` and `expectations` of `linear_chain`, of four sequences at a time.

A matrix that the cache next to a core doesn't hold is read once for a token of each of them: with 120 states both take 0.6 of
the time. With few states they would take longer, as what has to be known of four sequences is not kept in registers.

A lane is what stands for a sequence: its next token gets its row, and when there is none, another sequence takes the lane. Each
sum is formed in the order in which `linear_chain` forms it, but for those of several sequences: ``d_first`` and ``d_last``.
"""

import numpy as np

from . import helper, kernel
from .linear_chain import normalise
from .numerics import LINEAR, SPREAD, TINY
from .tiles import add_four_products, add_product

TOGETHER = 4
LARGE = 1 << 11  # numbers of a matrix: from so many on it takes less time

_ZERO, _NO, _YES = np.int64(0), np.bool_(False), np.bool_(True)


@helper(fastmath=LINEAR, forceinline=True)
def _multiply(blocks, source, s, first, target, t, to, runs, back, arcs, n):
    """target[t[l]] = source[s[l]] @ the matrix, for n lanes l, see `linear_chain`."""
    for lane in range(n):
        row = max(t[lane], 0)  # which tells LLVM that no index is negative
        for j in range(target.shape[1]):
            target[row, j] = 0.0
    if n == TOGETHER:
        add_four_products(source, s, first, blocks, target, t, to)
    else:
        for lane in range(n):
            add_product(source, s[lane], first, blocks, _ZERO, target, t[lane], to)
    for m in range(runs.shape[0]):
        begin, length = runs[m, 2], runs[m, 3]
        there = runs[m, 0] if back else runs[m, 1]
        here = runs[m, 1] if back else runs[m, 0]
        for lane in range(n):
            row, column = max(s[lane], 0), max(t[lane], 0)
            for k in range(length):
                target[column, there + k] += arcs[begin + k] * source[row, here + k]


@kernel(fastmath=LINEAR)
def forward(potentials, layout, alpha, log_z):
    """See `linear_chain.forward`. All tokens share a matrix."""
    emissions, block, _, arcs, runs, first, last, shift, spread, starts = potentials
    width = alpha.shape[1]
    # Of each lane: its sequence, its next token, the one before it, and the logarithms of the divisors up to there
    sequence, token, before = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    totals = np.empty(TOGETHER)
    following = n = 0
    while n > 0 or following < len(log_z):
        _multiply(block, alpha, before, layout.offset, alpha, token, _ZERO, runs, _NO, arcs, n)
        lane = 0
        while lane < n or (n < TOGETHER and following < len(log_z)):
            if lane == n:  # of a sequence that begins
                sequence[lane], token[lane], totals[lane] = following, starts[following], 0.0
                following += 1
                n += 1
            b, t, total = max(sequence[lane], 0), max(token[lane], 0), totals[lane]
            begin, end = starts[b], starts[b + 1]
            if begin < end:
                if t == begin:
                    for j in range(width):
                        alpha[t, j] = first[j]
                divisor = normalise(alpha, t, emissions) if spread[t] <= SPREAD else -1.0
                if divisor > 0.0:
                    total += np.log(divisor) + shift[t]
                else:
                    total = np.nan if divisor < 0.0 else -np.inf
            possible = total > -np.inf  # false for NaN too
            if possible and t + 1 < end:
                token[lane], before[lane], totals[lane] = t + 1, t, total
                lane += 1
                continue
            if possible and begin < end:
                z = 0.0
                for j in range(width):
                    z += alpha[t, j] * last[j]
                total += np.log(z) if z > 0.0 else -np.inf
            log_z[b] = total
            if following < len(log_z):
                sequence[lane], token[lane], totals[lane] = following, starts[following], 0.0
                following += 1
            else:  # the last lane becomes this one
                n -= 1
                sequence[lane], token[lane], totals[lane] = sequence[n], token[n], totals[n]


@helper
def _reordered(layout):
    """Which state comes as number k, empty if all stay as they are."""
    in_order = True
    for k in range(len(layout.order)):
        in_order &= layout.order[k] == k
    return layout.order[: 0 if in_order else len(layout.order)]


@helper(fastmath=LINEAR, forceinline=True)
def _derive(alpha, emissions, t, beta, row, weight, order, d_emissions):
    """What `expectations` leaves at a token of its row of beta. The row behind it is room for what is expected.

    RETURNS (bool): Whether the numbers can be trusted.
    """
    width = alpha.shape[1]
    divisor = total = 0.0
    for j in range(width):
        divisor += beta[row, j]
        total += alpha[t, j] * beta[row, j]
    if divisor < TINY or total < TINY * divisor:
        return False
    # alpha[t] now serves the step to t + 1, whose product the divisor has shrunk
    inverse, factor = 1.0 / divisor, weight / total
    too_small = 0
    for j in range(width):
        too_small += (beta[row, j] * inverse < TINY) & (beta[row, j] > 0.0)
        alpha[t, j] *= factor
        emissions[t, j] *= beta[row, j] * inverse
        beta[row + 1, j] = alpha[t, j] * beta[row, j]
    if too_small:
        return False
    if len(order) == 0:
        for j in range(d_emissions.shape[1]):
            d_emissions[t, j] = beta[row + 1, j]
    else:
        for k in range(len(order)):
            d_emissions[t, order[k]] = beta[row + 1, k]
    return True


@helper
def _finish(begin, end, trusted, alpha, emissions, d_emissions, d_first, d_last):
    """What `expectations` leaves of a sequence, whose tokens are done."""
    if trusted:
        for j in range(d_emissions.shape[1]):
            d_first[j] += d_emissions[begin, j]
            d_last[j] += d_emissions[end - 1, j]
        emissions[begin] = 0.0
    else:
        d_emissions[begin:end] = 0.0
        alpha[begin:end] = 0.0
        emissions[begin:end] = 0.0


@kernel(fastmath=LINEAR)
def expectations(potentials, layout, weights, alpha, log_z, d_emissions, d_first, d_last):
    """See `linear_chain.expectations`. All tokens share a matrix."""
    emissions, _, transposed, arcs, runs, _, last, _, _, starts = potentials
    order = _reordered(layout)
    width = alpha.shape[1]
    # Of each lane: its sequence, its next token, the one behind it, and where its row of beta is, with room behind it
    sequence, token, after = np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64), np.empty(TOGETHER, np.int64)
    rows, beta = 2 * np.arange(TOGETHER), np.empty((2 * TOGETHER, width))
    following = n = 0
    while n > 0 or following < len(log_z):
        _multiply(transposed, emissions, after, _ZERO, beta, rows, layout.offset, runs, _YES, arcs, n)
        lane = 0
        while lane < n or (n < TOGETHER and following < len(log_z)):
            if lane == n:  # of a sequence that ends
                sequence[lane], token[lane] = following, starts[following + 1] - 1
                following += 1
                n += 1
            b, t = max(sequence[lane], 0), max(token[lane], 0)
            begin, end = starts[b], starts[b + 1]
            trusted = begin < end and log_z[b] > -np.inf
            if trusted:
                if t == end - 1:
                    for j in range(width):
                        beta[2 * lane, j] = last[j]
                trusted = _derive(alpha, emissions, t, beta, 2 * lane, weights[b], order, d_emissions)
                if not trusted:
                    log_z[b] = np.nan
            if trusted and t > begin:
                token[lane], after[lane] = t - 1, t
                lane += 1
                continue
            _finish(begin, end, trusted, alpha, emissions, d_emissions, d_first, d_last)
            if following < len(log_z):
                sequence[lane], token[lane] = following, starts[following + 1] - 1
                following += 1
            else:
                n -= 1
                sequence[lane], token[lane] = sequence[n], token[n]
                beta[2 * lane] = beta[2 * n]
