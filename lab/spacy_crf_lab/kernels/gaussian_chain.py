"""Sums over real numbers some of which are similar: a Gaussian whose precision matrix has an entry for each tie.

    E(y) = precision · sum_i (y_i - f_i)² + sum_(ties i < j) strength · similarity · (y_i - y_j)²

N numbers, E ties. Numbers are in blocks, which no tie leaves. The Cholesky factor L of a block is stored by rows, each from its
first entry that may differ from 0 (its begin) to the diagonal; no other entry of L differs from 0 (George & Liu 1981, "Computer
Solution of Large Sparse Positive Definite Systems", 4.2). In a chain each row has two entries, so all passes take time O(N).
"""

import math

import numpy as np

from spacy_crf.kernels import helper, kernel


@helper
def _factorize(begin, at, first, end, factor):
    """Replace the precision matrix of a block by its Cholesky factor. RETURNS (float): The logarithm of the determinant."""
    log_determinant = 0.0
    for i in range(first, end):
        row = at[i] - begin[i]  # where entry 0 of the row would be
        square = factor[row + i]
        for j in range(begin[i], i):
            other = at[j] - begin[j]
            # L[i, j] = (A[i, j] - sum_(k < j) L[i, k] L[j, k]) / L[j, j]
            entry = factor[row + j]
            for k in range(max(begin[i], begin[j]), j):
                entry -= factor[row + k] * factor[other + k]
            entry /= factor[other + j]
            factor[row + j] = entry
            square -= entry * entry
        # L[i, i]² = A[i, i] - sum_(k < i) L[i, k]², and log |A| = sum_i log L[i, i]²
        factor[row + i] = math.sqrt(square)
        log_determinant += math.log(square)
    return log_determinant


@helper
def _solve(begin, at, first, end, factor, b):
    """Replace linear terms by the solution of L Lᵀ x = b. RETURNS (float): bᵀ x."""
    product = 0.0
    # L z = b forwards, and bᵀ x = |z|²
    for i in range(first, end):
        row = at[i] - begin[i]
        for j in range(begin[i], i):
            b[i] -= factor[row + j] * b[j]
        b[i] /= factor[row + i]
        product += b[i] * b[i]
    # Lᵀ x = z backwards
    for i in range(end - 1, first - 1, -1):
        row = at[i] - begin[i]
        b[i] /= factor[row + i]
        for j in range(begin[i], i):
            b[j] -= factor[row + j] * b[i]
    return product


@helper
def _invert(begin, at, reach, first, end, factor, inverse):
    """Set the entries of the inverse where the factor has entries (Takahashi, Fagan & Chin 1973):

    Z[i, j] = ([i = j] / L[j, j] - sum_(k > j) Z[i, k] L[k, j]) / L[j, j]
    """
    for j in range(end - 1, first - 1, -1):
        diagonal = factor[at[j] - begin[j] + j]
        for i in range(reach[j], j - 1, -1):
            if begin[i] <= j:
                total = 1.0 / diagonal if i == j else 0.0
                for k in range(j + 1, reach[j] + 1):
                    if begin[k] <= j:
                        high = max(i, k)
                        low = min(i, k)
                        total -= inverse[at[high] - begin[high] + low] * factor[at[k] - begin[k] + j]
                inverse[at[i] - begin[i] + j] = total / diagonal


@kernel
def lay_out(source, target, begin, reach, at):
    """Where the entries of the factor are, for ties (int64[E]): begin (int64[N]), the first entry of each row; reach (int64[N]),
    the last row with an entry in each column or an earlier one; at (int64[N + 1]), the place of the first entry of each row."""
    n = len(begin)
    for i in range(n):
        begin[i] = i
        reach[i] = i
    for e in range(len(source)):
        begin[target[e]] = min(begin[target[e]], source[e])
    for i in range(n):
        reach[begin[i]] = max(reach[begin[i]], i)
    at[0] = 0
    for i in range(n):
        if i > 0:
            reach[i] = max(reach[i], reach[i - 1])
        at[i + 1] = at[i] + i - begin[i] + 1


@kernel
def sum_up(
    f,
    known,
    values,
    precision,
    strengths,
    source,
    target,
    kind,
    similarity,
    begin,
    reach,
    at,
    blocks,
    wants,
    log_z,
    mean,
    variance,
    d_f,
    d_shared,
):
    """The logarithm of the integral of exp(-E) over the numbers that are not known, and what follows from it.

    f (float64[N]): Regressions. known (bool[N]), values (float64[N]): Numbers that are known. strengths (float64[M]): By kind.
    source, target, kind (int64[E]), similarity (float64[E]): Ties, by their target. begin, reach, at: See `lay_out`.
    blocks (int64[B + 1]): Where blocks begin. wants (float64[B]): Factors of the derivatives of blocks.
    log_z (float64[B]), mean, variance (float64[N]), d_f (float64[N]): Are set; the variance of known numbers is 0.
    d_shared (float64[1 + M]): Derivatives by the logarithms of the precision and of the strengths, which are added.
    """
    factor = np.zeros(at[len(f)])
    inverse = np.empty(at[len(f)])
    e = 0
    for block in range(len(blocks) - 1):
        first = blocks[block]
        end = blocks[block + 1]
        energy = 0.0
        free = 0
        for i in range(first, end):
            place = at[i] - begin[i] + i
            # A known number is a block of its own, with the precision 1 and the mean that is known
            factor[place] = 1.0 if known[i] else 2.0 * precision
            mean[i] = values[i] if known[i] else 2.0 * precision * f[i]
            energy += precision * ((values[i] - f[i]) ** 2 if known[i] else f[i] ** 2)
            free += not known[i]
        ties = e
        while e < len(source) and target[e] < end:
            i = source[e]
            j = target[e]
            # w (y_i - y_j)² adds 2w to both diagonals, -2w between; of a known y_j it leaves a linear term 2w y_j
            weight = strengths[kind[e]] * similarity[e]
            if known[i] and known[j]:
                energy += weight * (values[i] - values[j]) ** 2
            elif known[i] or known[j]:
                unknown, given = (j, values[i]) if known[i] else (i, values[j])
                factor[at[unknown] - begin[unknown] + unknown] += 2.0 * weight
                mean[unknown] += 2.0 * weight * given
                energy += weight * given**2
            else:
                factor[at[i] - begin[i] + i] += 2.0 * weight
                factor[at[j] - begin[j] + j] += 2.0 * weight
                factor[at[j] - begin[j] + i] -= 2.0 * weight
            e += 1
        log_z[block] = -energy
        if free > 0:
            log_determinant = _factorize(begin, at, first, end, factor)
            product = _solve(begin, at, first, end, factor, mean)
            for i in range(first, end):
                if known[i]:
                    # What the blocks of known numbers have added
                    product -= values[i] ** 2
            # log ∫ exp(-yᵀ A y / 2 + bᵀ y) = (n log 2π - log |A| + bᵀ A⁻¹ b) / 2
            log_z[block] += 0.5 * (free * math.log(2.0 * math.pi) - log_determinant + product)
            _invert(begin, at, reach, first, end, factor, inverse)
        for i in range(first, end):
            variance[i] = 0.0 if known[i] else inverse[at[i] - begin[i] + i]
            # d/df_i = 2 precision (E[y_i] - f_i), and E[(y_i - f_i)²] = (E[y_i] - f_i)² + var(y_i)
            d_f[i] = wants[block] * 2.0 * precision * (mean[i] - f[i])
            d_shared[0] -= wants[block] * precision * ((mean[i] - f[i]) ** 2 + variance[i])
        for tie in range(ties, e):
            i = source[tie]
            j = target[tie]
            together = 0.0 if known[i] or known[j] else inverse[at[j] - begin[j] + i]
            # E[(y_i - y_j)²] = (E[y_i] - E[y_j])² + var(y_i) + var(y_j) - 2 cov(y_i, y_j)
            square = (mean[i] - mean[j]) ** 2 + variance[i] + variance[j] - 2.0 * together
            d_shared[1 + kind[tie]] -= wants[block] * strengths[kind[tie]] * similarity[tie] * square
