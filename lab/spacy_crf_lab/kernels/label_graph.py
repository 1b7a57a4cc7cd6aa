"""Sums and maxima over the labels of texts that share one graph, and the estimators that find such a graph.

B texts, L labels, which are binary variables. Labels are eliminated one after the other (see `junction_tree`), in one order
for all texts. The table of a label has an entry for each setting of the label (bit 0 of the entry's number) and of its neighbours
that are eliminated later (the next bits, in the order of elimination). N is the length of all tables together.

    table[n1, n2, ..., y] = own[y] + pairs[ni, y] + messages[ni, ..., y]
    message[n1, n2, ...] = log sum_y exp(table[n1, n2, ..., y])
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel


class Plan(NamedTuple):
    """Elimination of L labels."""

    labels: NDArray[np.int64]  # [L] in the order of elimination
    starts: NDArray[np.int64]  # [L + 1] where the table of each label starts; its message starts at half of that
    parents: NDArray[np.int64]  # [L] place of the label whose table takes the message, -1 for none
    into: NDArray[np.int32]  # for each entry of a parent's table, the entry of the child's message
    into_starts: NDArray[np.int64]  # [L] where the entries of each child start


@helper
def _fill(own, pairs, plan, b, table, message, maximum):
    """Fill all tables and messages of text b. RETURNS (float): The log partition, or the best score."""
    n_labels = len(plan.labels)
    total = 0.0
    for k in range(n_labels):
        v = plan.labels[k]
        begin = plan.starts[k]
        end = plan.starts[k + 1]
        for x in range(begin, end, 2):
            table[x] = pairs[x] + own[b, n_labels + v]
            table[x + 1] = pairs[x + 1] + own[b, v]
    for k in range(n_labels):
        begin = plan.starts[k]
        end = plan.starts[k + 1]
        parent = plan.parents[k]
        for x in range(begin, end, 2):
            low = min(table[x], table[x + 1])
            high = max(table[x], table[x + 1])
            if low > -np.inf and not maximum:
                # log(e^a + e^b) = max + log(1 + e^(min - max)); for maxima the larger one
                high += math.log1p(math.exp(low - high))
            message[x // 2] = high
        if parent < 0:
            total += message[begin // 2]
        else:
            at = plan.starts[parent]
            first = plan.into_starts[k]
            for x in range(plan.starts[parent + 1] - at):
                table[at + x] += message[begin // 2 + plan.into[first + x]]
    return total


@kernel
def log_partition(own, pairs, plan, log_z):
    """Set log_z (float64[B]) to log partitions; arguments as of `expectations`."""
    table = np.empty(len(pairs))
    message = np.empty(len(pairs) // 2)
    for b in range(len(own)):
        log_z[b] = _fill(own, pairs, plan, b, table, message, False)


@kernel
def expectations(own, pairs, plan, weights, log_z, d_own, d_pairs):
    """Log partitions, and the derivative of their weighted sum.

    own (float64[B, 2 L]): Scores of present and of absent labels. pairs (float64[N]): Scores of the entries of tables.
    weights (float64[B]): Factors of the texts. log_z (float64[B]), d_own (float64[B, 2 L]): Are set.
    d_pairs (float64[N]): The expected uses of the entries of tables are added.
    """
    n_labels = len(plan.labels)
    table = np.empty(len(pairs))
    message = np.empty(len(pairs) // 2)
    share = np.empty(len(pairs) // 2)
    for b in range(len(own)):
        log_z[b] = _fill(own, pairs, plan, b, table, message, False)
        if log_z[b] == -np.inf:
            d_own[b] = 0.0
            continue
        for k in range(n_labels - 1, -1, -1):
            begin = plan.starts[k]
            end = plan.starts[k + 1]
            parent = plan.parents[k]
            share[begin // 2 : end // 2] = weights[b] if parent < 0 else 0.0
            if parent >= 0:
                at = plan.starts[parent]
                first = plan.into_starts[k]
                for x in range(plan.starts[parent + 1] - at):
                    # The parent's entries that continue a row of this table have its probability together
                    share[begin // 2 + plan.into[first + x]] += table[at + x]
            present = absent = 0.0
            for x in range(begin, end, 2):  # the table becomes the weighted probabilities of its entries
                factor = share[x // 2]
                total = message[x // 2]
                table[x] = factor * math.exp(table[x] - total) if table[x] > -np.inf else 0.0
                table[x + 1] = factor * math.exp(table[x + 1] - total) if table[x + 1] > -np.inf else 0.0
                absent = absent + table[x]
                present = present + table[x + 1]
            d_own[b, plan.labels[k]] = present
            d_own[b, n_labels + plan.labels[k]] = absent
        for x in range(len(pairs)):
            d_pairs[x] += table[x]


@kernel
def best(own, pairs, plan, states, scores):
    """Set states (int32[B, L]) to the best labellings, 1 for labels that are present (of equals, absent), -1 where there is no
    labelling; and scores (float64[B]) to their scores."""
    table = np.empty(len(pairs))
    message = np.empty(len(pairs) // 2)
    entry = np.empty(len(plan.labels), dtype=np.int64)
    for b in range(len(own)):
        scores[b] = _fill(own, pairs, plan, b, table, message, True)
        for k in range(len(plan.labels) - 1, -1, -1):
            row = 0
            parent = plan.parents[k]
            if parent >= 0:
                row = plan.into[plan.into_starts[k] + entry[parent]]
            x = plan.starts[k] + 2 * row
            state = 1 if table[x + 1] > table[x] else 0
            entry[k] = 2 * row + state
            states[b, plan.labels[k]] = state if scores[b] > -np.inf else -1


# -------------------------------------------------------------------------------------------------------- estimators


@helper
def _objective(starts, rows, counts, target, penalties, weights, fitted):
    """The value that `nodewise` minimises; sets the log-odds of each text: fitted (float64[R])."""
    n_labels = len(penalties)
    total = 0.0
    fitted[:] = weights[n_labels]
    for j in range(n_labels):
        if weights[j] != 0.0:
            total += penalties[j] * abs(weights[j])
            for m in range(starts[j], starts[j + 1]):
                fitted[rows[m]] += weights[j]
    n = counts.sum()
    for i in range(len(counts)):
        signed = fitted[i] if target[i] else -fitted[i]
        total += counts[i] / n * (math.log1p(math.exp(-abs(signed))) + max(-signed, 0.0))
    return total


@kernel
def nodewise(starts, rows, counts, target, penalties, tolerance, most, weights):
    """Logistic regression of one label on the others with l1 penalties, by coordinate descent on quadratic approximations
    (Friedman, Hastie & Tibshirani 2010, "Regularization paths for generalized linear models via coordinate descent"):

        min_w  (1/n) sum_i counts[i] · log-loss(target[i], w_0 + sum_(j in i) w_j)  +  sum_j penalties[j] · |w_j|

    starts (int64[L + 1]), rows (int64[M]): The distinct texts that have each label. counts (float64[R]): How often each occurs.
    target (float64[R]): 1 for texts that have the label. penalties (float64[L]): inf for labels that are left out.
    tolerance (float), most (int): Largest change of a weight, in log-odds, that ends the descent; largest number of
        approximations. weights (float64[L + 1]): First weights, replaced by the solution; the bias is the last one.
    RETURNS (float): The largest change of a weight by the last approximation.
    """
    n_labels = len(penalties)
    n = counts.sum()
    change = np.inf
    fitted = np.empty(len(counts))
    curve = np.empty(len(counts))
    residual = np.empty(len(counts))
    before = np.empty(len(weights))
    value = _objective(starts, rows, counts, target, penalties, weights, fitted)
    for _ in range(most):
        for i in range(len(counts)):
            # Quadratic approximation at the present weights: second derivative p (1 - p), and residual target - p
            p = 1.0 / (1.0 + math.exp(-fitted[i]))
            curve[i] = counts[i] / n * max(p * (1.0 - p), 1e-5)
            residual[i] = counts[i] / n * (target[i] - p)  # of the approximation: curve · (working response - fitted)
        before[:] = weights
        total = curve.sum()
        is_first = True
        active = True
        for _ in range(1000):
            # All labels, then those with weights until these stay, then all again
            largest = 0.0
            step = residual.sum() / total
            weights[n_labels] += step
            for i in range(len(counts)):
                residual[i] -= curve[i] * step
            largest = max(largest, abs(step))
            for j in range(n_labels):
                if penalties[j] == np.inf or (weights[j] == 0.0 and not (is_first or active)):
                    continue
                slope = 0.0
                bend = 0.0
                for m in range(starts[j], starts[j + 1]):
                    slope += residual[rows[m]]
                    bend += curve[rows[m]]
                if bend <= 0.0:
                    continue
                # w_j = S(aim, penalty) / bend, where S is soft thresholding
                aim = slope + bend * weights[j]
                new = math.copysign(max(abs(aim) - penalties[j], 0.0), aim) / bend
                step = new - weights[j]
                if step != 0.0:
                    weights[j] = new
                    for m in range(starts[j], starts[j + 1]):
                        residual[rows[m]] -= curve[rows[m]] * step
                    largest = max(largest, abs(step))
            if largest < tolerance:
                if is_first or active:
                    break
                active = True
            else:
                active = False
            is_first = False
        change = np.abs(weights - before).max()
        found = _objective(starts, rows, counts, target, penalties, weights, fitted)
        while found > value and change >= tolerance:  # the approximation ends before its minimum
            weights[:] = 0.5 * (weights + before)
            change = np.abs(weights - before).max()
            found = _objective(starts, rows, counts, target, penalties, weights, fitted)
        value = found
        if change < tolerance:
            break
    return change
