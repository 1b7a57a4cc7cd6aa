"""Linear chains: the best labelling, and the log partition and its derivative, of a single sequence.

The recursions are those of ``kernels/linear_chain.py``. Here each sequence has its own exponentials, in rows of whole vectors,
and transitions are not reordered. With the batch kernels instead, `walk` took one and a half times as long to compile, and a
perceptron's pass took a fifth longer because of the preparations of each call.
"""

import math

import numpy as np

from .. import helper
from ..exponentials import exp_row
from ..linear_chain import ChainArrays
from ..numerics import LANES, LINEAR, SPREAD, TINY, best_before, best_end, log_sum
from .blocks import clear


@helper(inline="always")
def scores_of_chain(work, size):
    """The scores of the sequence in the form of the batch kernels (ChainArrays)."""
    chain = work.chain
    return ChainArrays(work.nodes, work.steps, chain[size], chain[size + 1], work.bounds)


@helper(inline="always")
def derivatives_of_chain(work, size):
    """The derivatives of the sequence in the form of the batch kernels (ChainArrays)."""
    d_chain = work.d_chain
    return ChainArrays(work.d_nodes, work.d_steps, d_chain[size], d_chain[size + 1], work.bounds)


@helper
def best_path(work, chains, pairs, path, n, size):
    """Write the best labelling into ``path`` and return its score. Ties go to the lower last state, then the lower one before."""
    nodes = work.nodes
    chain = work.chain
    delta = chains.forward
    transitions = chain if len(pairs.scores) == 0 else work.matrix
    width = chain.shape[1]
    # Added states are forbidden by -inf, so they need no test
    for j in range(width):
        delta[0, j] = chain[size, j] + nodes[0, j]
    # delta[t, j] = nodes[t, j] + max_i(delta[t-1, i] + transitions[i, j])
    for t in range(1, n):
        if len(pairs.scores) > 0:
            _set_transitions(pairs.scores, t, size, transitions)
        for j in range(width):
            delta[t, j] = -np.inf
        for i in range(0, width, LANES):
            a = delta[t - 1, i]
            c = delta[t - 1, i + 1]
            d = delta[t - 1, i + 2]
            e = delta[t - 1, i + 3]
            for j in range(width):
                upper = max(a + transitions[i, j], c + transitions[i + 1, j])
                lower = max(d + transitions[i + 2, j], e + transitions[i + 3, j])
                delta[t, j] = max(delta[t, j], max(upper, lower))
        for j in range(width):
            delta[t, j] += nodes[t, j]
    best, total = best_end(delta, n - 1, chain[size + 1])
    if best == -1:
        return total
    path[n - 1] = best
    steps = transitions[:width].reshape(1, width, width)
    for t in range(n - 1, 0, -1):
        if len(pairs.scores) > 0:
            _set_transitions(pairs.scores, t, size, transitions)
        best = best_before(delta, t - 1, steps, 0, best)
        path[t - 1] = best
    return total


@helper
def _set_transitions(pairs, t, size, matrix):
    """Write the scores of the step to token t into a matrix [P, P]."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = pairs[t, i * size + j] if i < size and j < size else -np.inf


@helper(fastmath=LINEAR)
def expect_scaled(work, chains, n, size, amount):
    """Return the log partition, and add the expected uses of each score, times an amount.

    Scaled linear domain, as in `linear_chain`. Where numbers could underflow it returns NaN and adds nothing.
    """
    nodes = work.nodes
    chain = work.chain
    d_nodes = work.d_nodes
    d_chain = work.d_chain
    _, alpha, exp_nodes, arriving, beta, transposed, sums = chains
    matrix = work.matrix
    width = matrix.shape[0]
    clear(sums, width)
    largest = -np.inf
    least = np.inf
    for i in range(size):
        for j in range(size):
            largest = max(largest, chain[i, j])
            least = min(least, chain[i, j] if chain[i, j] > -np.inf else np.inf)
    if largest == -np.inf:
        largest = least = 0.0
    spread = largest - least
    if not spread < SPREAD:
        return np.nan
    for i in range(width):
        exp_row(chain, i, largest, matrix, i, -SPREAD)
        if i >= size:  # firsts and lasts may lie here
            for j in range(width):
                matrix[i, j] = 0.0
        for j in range(width):
            transposed[j, i] = matrix[i, j]
    log_z = 0.0
    # alpha[t, j] = nodes[t, j] + logsum_i(alpha[t-1, i] + transitions[i, j])
    for t in range(n):
        a = c = d = e = -np.inf
        for j in range(0, width, LANES):  # four independent maxima
            a = max(a, nodes[t, j])
            c = max(c, nodes[t, j + 1])
            d = max(d, nodes[t, j + 2])
            e = max(e, nodes[t, j + 3])
        top = max(max(a, c), max(d, e))
        if top == -np.inf:
            return top
        n_small = 0
        for j in range(width):
            n_small += (nodes[t, j] <= top + spread - SPREAD) & (nodes[t, j] > -np.inf)
        if n_small > 0:
            return np.nan
        exp_row(nodes, t, top, exp_nodes, t, -SPREAD)
        if t == 0:
            for j in range(width):
                alpha[t, j] = math.exp(chain[size, j])
            log_z += top
        else:
            for j in range(width):
                alpha[t, j] = 0.0
            for i in range(0, width, LANES):
                a = alpha[t - 1, i]
                c = alpha[t - 1, i + 1]
                d = alpha[t - 1, i + 2]
                e = alpha[t - 1, i + 3]
                for j in range(width):
                    upper = a * matrix[i, j] + c * matrix[i + 1, j]
                    alpha[t, j] += upper + d * matrix[i + 2, j] + e * matrix[i + 3, j]
            log_z += top + largest
        total = 0.0
        for j in range(width):
            alpha[t, j] *= exp_nodes[t, j]
            total += alpha[t, j]
        if not TINY < total < 1.0 / TINY:
            return np.nan
        log_z += math.log(total)
        share = 1.0 / total
        for j in range(width):
            alpha[t, j] *= share
    total = 0.0
    for j in range(width):
        beta[j] = math.exp(chain[size + 1, j])
        total += alpha[n - 1, j] * beta[j]
    if not TINY < total < 1.0 / TINY:
        return np.nan
    log_z += math.log(total)
    # beta[t-1, i] = logsum_j(transitions[i, j] + nodes[t, j] + beta[t, j])
    for t in range(n - 1, -1, -1):
        total = 0.0
        for j in range(width):
            total += alpha[t, j] * beta[j]
        if not total > TINY:
            return np.nan
        share = amount / total
        total = 0.0
        for j in range(width):
            alpha[t, j] *= share
            arriving[t, j] = exp_nodes[t, j] * beta[j]
            total += arriving[t, j]
            exp_nodes[t, j] = alpha[t, j] * beta[j]
        if t == 0:
            break
        share = 1.0 / total
        for j in range(width):
            arriving[t, j] *= share
            beta[j] = 0.0
        for i in range(0, width, LANES):
            a = arriving[t, i]
            c = arriving[t, i + 1]
            d = arriving[t, i + 2]
            e = arriving[t, i + 3]
            for j in range(width):
                upper = a * transposed[i, j] + c * transposed[i + 1, j]
                beta[j] += upper + d * transposed[i + 2, j] + e * transposed[i + 3, j]
    # alpha[t-1, i] · matrix[i, j] · arriving[t, j] is the expected number of steps from i at t - 1 to j at t; four tokens at once
    for t in range(1, n, 4):
        for i in range(size):
            if t + 3 < n:
                a = alpha[t - 1, i]
                c = alpha[t, i]
                d = alpha[t + 1, i]
                e = alpha[t + 2, i]
                for j in range(width):
                    upper = a * arriving[t, j] + c * arriving[t + 1, j]
                    sums[i, j] += upper + d * arriving[t + 2, j] + e * arriving[t + 3, j]
            else:
                for u in range(t, n):
                    for j in range(width):
                        sums[i, j] += alpha[u - 1, i] * arriving[u, j]
    for t in range(n):
        for j in range(size):
            d_nodes[t, j] += exp_nodes[t, j]
    for j in range(size):
        d_chain[size, j] += exp_nodes[0, j]
        d_chain[size + 1, j] += exp_nodes[n - 1, j]
    for i in range(size):
        for j in range(size):
            d_chain[i, j] += sums[i, j] * matrix[i, j]
    return log_z


@helper
def expect_in_logs(work, chains, n, size, amount):
    """`expect_scaled` by the textbook recursions in log space, for sequences that `expect_scaled` gives up or whose transitions
    depend on the token. (`log_space` does the same, but takes longer to compile than everything else.)"""
    nodes, steps, first, last, _ = scores_of_chain(work, size)
    alpha = chains.forward
    d_nodes, d_steps, d_first, d_last, _ = derivatives_of_chain(work, size)
    step = 1 if steps.shape[0] > 1 else 0
    terms = np.empty(size)
    arriving = np.empty(size)
    beta = np.empty(size)
    # The same recursions with log-sums, see `log_space`
    for t in range(n):
        for j in range(size):
            for i in range(size if t > 0 else 0):
                terms[i] = alpha[t - 1, i] + steps[t * step, i, j]
            alpha[t, j] = nodes[t, j] + (log_sum(terms) if t > 0 else first[j])
    for j in range(size):
        beta[j] = last[j]
        terms[j] = alpha[n - 1, j] + beta[j]
    log_z = log_sum(terms)
    if not math.isfinite(log_z):
        return log_z
    for t in range(n - 1, -1, -1):
        for j in range(size):
            expected = amount * math.exp(alpha[t, j] + beta[j] - log_z)
            d_nodes[t, j] += expected
            if t == 0:
                d_first[j] += expected
            if t == n - 1:
                d_last[j] += expected
            arriving[j] = nodes[t, j] + beta[j]
        for i in range(size if t > 0 else 0):
            for j in range(size):
                terms[j] = steps[t * step, i, j] + arriving[j]
                d_steps[t * step, i, j] += amount * math.exp(alpha[t - 1, i] + terms[j] - log_z)
            beta[i] = log_sum(terms)
    return log_z


@helper
def count_wrong(gold, clamp, begin, end, path):
    """Number of tokens at which a path contradicts the annotation."""
    wrong = 0
    for t in range(begin, end):
        state = path[t - begin]
        wrong += state != gold[t] if gold[t] >= 0 else not clamp[t, state]
    return wrong
