"""Trees of tied tokens: two passes, from the leaves to the root and back.

T tokens, S states, E ties, L labels (filled up to a multiple of LANES with such as nobody has), K tables, C components. Tokens
are in an order in which parents come before their children, those of one parent behind each other, and each tree as a whole. What
passes along a tie is scaled so that its largest number is 1:

    up[u](j)   = sum_i inside[u](i) table[i, j]            inside[u] = own[u] * product of up[c], c children of u
    down[u](i) = sum_j cavity[u](j) table[i, j]            cavity[u] = own[p] * down[p] * product of up[c], c other children of p

Here i is a label of u and j one of its parent p. Where numbers get too small to be trusted a component's log partition is NaN.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import helper, kernel
from .numerics import LANES, SPREAD, exp_row

_LEAST = 1e-250  # products of positive numbers below this are not trusted


class Forest(NamedTuple):
    """The trees of the components that have no cycles."""

    order: NDArray[np.int64]  # [N] tokens
    parent: NDArray[np.int64]  # [N] places in this order, -1 for roots
    tie: NDArray[np.int64]  # [N] to the parent, -1 for roots
    turned: NDArray[np.int64]  # [N] 1 where the parent is its source
    children: NDArray[np.int64]  # [N, 2] places where those of each begin and end
    starts: NDArray[np.int64]  # [R + 1] of the trees
    is_forest: NDArray[np.bool_]  # [C]


@kernel
def grow(source, target, component, n_components):
    """The forest of ties.

    source, target (int64[E]): Tokens. component (int64[T]).
    """
    n = len(component)
    begins = np.zeros(n + 1, dtype=np.int64)
    for e in range(len(source)):
        begins[source[e] + 1] += 1
        begins[target[e] + 1] += 1
    begins = np.cumsum(begins)
    ties, filled = np.empty(2 * len(source), dtype=np.int64), begins[:-1].copy()
    for e in range(len(source)):
        for t in (source[e], target[e]):
            ties[filled[t]] = e
            filled[t] += 1
    order, place = np.empty(n, dtype=np.int64), np.full(n, -1)
    parent, tie, turned = np.full(n, -1), np.full(n, -1), np.zeros(n, dtype=np.int64)
    children, starts = np.zeros((n, 2), dtype=np.int64), np.empty(n + 1, dtype=np.int64)
    is_forest = np.ones(n_components, dtype=np.bool_)
    n_met, n_trees = 0, 0
    for root in range(n):
        if place[root] >= 0 or not is_forest[component[root]]:
            continue
        done = begin = n_met
        order[n_met], place[root] = root, n_met
        n_met += 1
        while done < n_met:
            u = order[done]
            children[done, 0] = n_met
            for k in range(begins[u], begins[u + 1]):
                e = ties[k]
                if e == tie[done]:
                    continue
                v = target[e] if source[e] == u else source[e]
                if place[v] >= 0:
                    is_forest[component[u]] = False
                else:
                    order[n_met], place[v] = v, n_met
                    parent[n_met], tie[n_met], turned[n_met] = done, e, 0 if source[e] == v else 1
                    n_met += 1
            children[done, 1] = n_met
            done += 1
        starts[n_trees] = begin
        n_trees += 1
    starts[n_trees] = n_met
    return Forest(
        order[:n_met], parent[:n_met], tie[:n_met], turned[:n_met], children[:n_met], starts[: n_trees + 1], is_forest
    )


@helper
def _along(tables, side, k, row, out):
    """out = row times a table, whose rows are about the labels of the sender."""
    size = len(row)
    out[:] = 0.0
    for i in range(0, size, LANES):
        a, b, c, d = row[i], row[i + 1], row[i + 2], row[i + 3]
        for j in range(size):
            of_two = a * tables[side, k, i, j] + b * tables[side, k, i + 1, j]
            out[j] += of_two + (c * tables[side, k, i + 2, j] + d * tables[side, k, i + 3, j])


@helper
def _scale(row):
    """Makes its largest number 1. RETURNS (float): That number."""
    largest = 0.0
    for i in range(len(row)):
        largest = max(largest, row[i])
    if largest > 0.0:
        factor = 1.0 / largest
        for i in range(len(row)):
            row[i] *= factor
    return largest


@helper
def _multiply(row, by):
    """RETURNS (bool): Whether that can be trusted."""
    wrong = 0
    for i in range(len(row)):
        product = row[i] * by[i]
        wrong += (product < _LEAST) & (row[i] > 0.0) & (by[i] > 0.0)
        row[i] = product
    return wrong == 0


@helper
def _read(scores, t, label_of, of_states, own, k):
    """own[k] = exp(scores - their maximum), by label. RETURNS (float): The maximum, NaN where it is not to be trusted."""
    largest, least = -np.inf, np.inf
    for s in range(scores.shape[1]):
        of_states[0, s] = scores[t, s]
        largest = max(largest, scores[t, s])
        if scores[t, s] > -np.inf:
            least = min(least, scores[t, s])
    if not (largest > -np.inf and largest - least <= SPREAD):
        own[k] = 1.0
        return np.nan
    if len(label_of) == 0:
        exp_row(of_states, 0, largest, own, k)
        return largest
    exp_row(of_states, 0, largest, of_states, 0)
    own[k] = 0.0
    for s in range(len(label_of)):
        own[k, label_of[s]] += of_states[0, s]
    return largest


@helper
def _count(left, right, factor, k, counts):
    for i in range(len(left)):
        share = factor * left[i]
        if share != 0.0:
            for j in range(len(right)):
                counts[k, i, j] += share * right[j]


@kernel
def sums(forest, scores, label_of, kind, tables, component, weights, marginals, counts, log_z):
    """Log partitions of the components, and the derivatives of their weighted sum.

    scores (float64[T, S]): Of the tokens. label_of (int64[S]): None where states are labels.
    kind (int64[E]): Of the ties. tables (float64[2, K, L, L]): exp of scores, and the same turned. component (int64[T])
    weights (float64[C]): Of the expectations; none if they are not asked for.
    marginals (float64[T, S]): Receive those of the states.
    counts (float64[K, L, L]): Those of the pairs of labels of ties, divided by the tables, are added.
    log_z (float64[C]): Is added to.
    """
    order, parents, ties, turned, children, starts, _ = forest
    size, longest = tables.shape[2], 1
    for r in range(len(starts) - 1):
        longest = max(longest, starts[r + 1] - starts[r])
    own, inside = np.empty((longest, size)), np.empty((longest, size))
    messages, outside = np.empty((longest, size)), np.empty((longest, size))
    so_far, cavity = np.empty(size), np.empty(size)
    of_states = np.full((1, size if len(label_of) == 0 else scores.shape[1]), -np.inf)
    for r in range(len(starts) - 1):
        begin, end, total, fine = starts[r], starts[r + 1], 0.0, True
        c = component[order[begin]]
        for k in range(end - begin):
            total += _read(scores, order[begin + k], label_of, of_states, own, k)
            inside[k] = own[k]
        for k in range(end - begin - 1, -1, -1):
            largest = _scale(inside[k])
            total += np.log(largest) if largest > 0.0 else np.nan
            if k > 0:
                p = parents[begin + k] - begin
                _along(tables, turned[begin + k], kind[ties[begin + k]], inside[k], messages[k])
                largest = _scale(messages[k])
                total += np.log(largest) if largest > 0.0 else np.nan
                fine = _multiply(inside[p], messages[k]) and fine
        largest = inside[0].sum()
        total += np.log(largest) if fine and largest > 0.0 else np.nan
        log_z[c] += total
        if len(weights) == 0 or np.isnan(total) or weights[c] == 0.0:
            continue
        outside[0] = 1.0
        for k in range(end - begin):
            first, behind = children[begin + k, 0] - begin, children[begin + k, 1] - begin
            so_far[:] = 1.0
            for u in range(behind - 1, first - 1, -1):  # what the later children say
                outside[u] = so_far
                if u > first:
                    fine = _multiply(so_far, messages[u]) and fine
                    _scale(so_far)
            so_far[:] = own[k]
            fine = _multiply(so_far, outside[k]) and fine
            _scale(so_far)
            for u in range(first, behind):
                cavity[:] = so_far
                if u < behind - 1:
                    fine = _multiply(cavity, outside[u]) and fine
                    _scale(cavity)
                side, n = turned[begin + u], kind[ties[begin + u]]
                _along(tables, 1 - side, n, cavity, outside[u])
                total = 0.0
                for i in range(size):
                    total += inside[u, i] * outside[u, i]
                if total > 0.0:
                    left, right = (cavity, inside[u]) if side else (inside[u], cavity)
                    _count(left, right, weights[c] / total, n, counts)
                _scale(outside[u])
                fine = _multiply(so_far, messages[u]) and fine
                _scale(so_far)
            total, t = so_far.sum(), order[begin + k]
            fine = fine and total > 0.0
            factor = weights[c] / total if total > 0.0 else 0.0
            if len(label_of) == 0:
                for s in range(scores.shape[1]):
                    marginals[t, s] = factor * so_far[s]
            else:
                largest = scores[t].max()
                for s in range(scores.shape[1]):
                    label = label_of[s]
                    if own[k, label] > 0.0:
                        marginals[t, s] = factor * so_far[label] / own[k, label] * np.exp(scores[t, s] - largest)
        if not fine:
            log_z[c] = np.nan


@kernel
def best(forest, own, kind, tables, component, labels, scores):
    """The best labels of each forest (int64[T]), the lowest of equals, and their scores (float64[C], is added to).

    own (float64[T, L]), tables (float64[2, K, L, L]): Scores, see `sums`.
    """
    order, parents, ties, turned, _, starts, _ = forest
    size, longest = own.shape[1], 1
    for r in range(len(starts) - 1):
        longest = max(longest, starts[r + 1] - starts[r])
    inside, message = np.empty((longest, size)), np.empty(size)
    for r in range(len(starts) - 1):
        begin, end = starts[r], starts[r + 1]
        for k in range(end - begin):
            inside[k] = own[order[begin + k]]
        for k in range(end - begin - 1, 0, -1):
            p, side, n = parents[begin + k] - begin, turned[begin + k], kind[ties[begin + k]]
            message[:] = -np.inf
            for i in range(0, size, LANES):
                a, b, c, d = inside[k, i], inside[k, i + 1], inside[k, i + 2], inside[k, i + 3]
                for j in range(size):
                    upper = max(a + tables[side, n, i, j], b + tables[side, n, i + 1, j])
                    lower = max(c + tables[side, n, i + 2, j], d + tables[side, n, i + 3, j])
                    message[j] = max(message[j], max(upper, lower))
            for j in range(size):
                inside[p, j] += message[j]
        for k in range(end - begin):
            chosen, largest = 0, -np.inf
            for i in range(size):
                score = inside[k, i]
                if k > 0:
                    of_parent = labels[order[parents[begin + k]]]
                    score += tables[turned[begin + k], kind[ties[begin + k]], i, of_parent]
                if score > largest:
                    chosen, largest = i, score
            labels[order[begin + k]] = chosen
            if k == 0:
                scores[component[order[begin]]] += largest
