"""Trees of tied tokens: two passes, from the leaves to the root and back.

T tokens, S states, E ties, L labels (rounded up to a multiple of WHOLE by labels without a state), K tables, C components. Tokens
are in an order in which parents come before their children, children of one parent and tokens of one tree side by side. Messages
along a tie are scaled so that their numbers add up to 1:

    up[u](j)   = sum_i inside[u](i) table[i, j]            inside[u] = own[u] * product of up[c], c children of u
    down[u](i) = sum_j cavity[u](j) table[i, j]            cavity[u] = own[p] * down[p] * product of up[c], c other children of p

Here i is a label of u and j one of its parent p. Where numbers get too small to be trusted a component's log partition is NaN.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.numerics import LANES, LINEAR
from spacy_crf.kernels.tiles import add_up
from spacy_crf.types import Floats

_LEAST = 1e-250  # products of positive numbers below this are not trusted
TOGETHER = 8  # pairs that are counted at once
# between them lie products whose logarithm is not taken yet
_SMALL = 1e-100
_LARGE = 1e100


class Forest(NamedTuple):
    """The trees of the components that have no cycles."""

    order: NDArray[np.int64]  # [N] tokens
    parent: NDArray[np.int64]  # [N] places in this order, -1 for roots
    tie: NDArray[np.int64]  # [N] to the parent, -1 for roots
    turned: NDArray[np.int64]  # [N] 1 where the parent is its source
    children: NDArray[np.int64]  # [N, 2] places where those of each begin and end
    starts: NDArray[np.int64]  # [R + 1] of the trees
    is_forest: NDArray[np.bool_]  # [C]


class Room(NamedTuple):
    """Work space for a tree of N tokens, and beliefs about the two ends of ties that wait to be counted."""

    own: Floats  # [T, L] of all of them
    inside: Floats  # [N, L]
    messages: Floats  # [N, L]
    outside: Floats  # [N, L]
    left: Floats  # [K, TOGETHER, L]
    right: Floats  # [K, TOGETHER, L]
    waiting: NDArray[np.int64]  # [K] how many there are


@kernel
def grow(source, target, component, n_components):
    """Find the trees of ties.

    source, target (int64[E]): Tokens. component (int64[T]).
    """
    n = len(component)
    begins = np.zeros(n + 1, dtype=np.int64)
    for e in range(len(source)):
        begins[source[e] + 1] += 1
        begins[target[e] + 1] += 1
    begins = np.cumsum(begins)
    ties = np.empty(2 * len(source), dtype=np.int64)
    filled = begins[:-1].copy()
    for e in range(len(source)):
        for t in (source[e], target[e]):
            ties[filled[t]] = e
            filled[t] += 1
    order = np.empty(n, dtype=np.int64)
    place = np.full(n, -1)
    parent = np.full(n, -1)
    tie = np.full(n, -1)
    turned = np.zeros(n, dtype=np.int64)
    children = np.zeros((n, 2), dtype=np.int64)
    starts = np.empty(n + 1, dtype=np.int64)
    is_forest = np.ones(n_components, dtype=np.bool_)
    n_met = 0
    n_trees = 0
    for root in range(n):
        if place[root] >= 0 or not is_forest[component[root]]:
            continue
        # Breadth first: parents before children, children of one parent side by side
        done = begin = n_met
        order[n_met] = root
        place[root] = n_met
        n_met += 1
        while done < n_met:
            u = order[done]
            children[done, 0] = n_met
            for k in range(begins[u], begins[u + 1]):
                e = ties[k]
                if e == tie[done]:
                    continue
                v = target[e] if source[e] == u else source[e]
                # Another way to a node that is known closes a cycle
                if place[v] >= 0:
                    is_forest[component[u]] = False
                else:
                    order[n_met] = v
                    place[v] = n_met
                    parent[n_met] = done
                    tie[n_met] = e
                    turned[n_met] = 0 if source[e] == v else 1
                    n_met += 1
            children[done, 1] = n_met
            done += 1
        starts[n_trees] = begin
        n_trees += 1
    starts[n_trees] = n_met
    return Forest(
        order[:n_met], parent[:n_met], tie[:n_met], turned[:n_met], children[:n_met], starts[: n_trees + 1], is_forest
    )


# The helpers are inlined by numba: handing over the parts of their arrays takes longer than the work for few labels.


@helper(fastmath=LINEAR, inline="always")
def _along(tables, side, n, source, s, target, t):
    """target[t] = source[s] times a table, scaled so that it adds up to 1. RETURNS (float): The sum before scaling."""
    size = tables.shape[3]
    total = 0.0
    sums = target[t, :size]  # which tells LLVM that no index is negative
    for j in range(size):
        sums[j] = 0.0
    table = (side * tables.shape[1] + n) * size * size
    add_up(size, size, source, (s * size,), 1, tables, table, size, target, (t * size,))
    for j in range(size):
        total += sums[j]
    factor = 1.0 / total if total > 0.0 else 0.0
    for j in range(size):
        sums[j] *= factor
    return total


@helper(fastmath=LINEAR, inline="always")
def _multiply(left, s, right, u, target, t):
    """target[t] = left[s] * right[u]. RETURNS (int): Number of products that are too small to be trusted."""
    size = target.shape[1]
    wrong = 0
    ones = left[s, :size]
    others = right[u, :size]
    products = target[t, :size]
    for i in range(size):
        a = ones[i]
        b = others[i]
        product = a * b
        wrong += (product < _LEAST) & (a > 0.0) & (b > 0.0)
        products[i] = product
    return wrong


@helper
def _count(room, n, counts):
    """Add the products of the waiting pairs to counts[n], several pairs at a time, so that each number is loaded and stored
    once."""
    lefts = room.left
    rights = room.right
    waiting = room.waiting
    size = counts.shape[2]
    first = n * lefts.shape[1] * counts.shape[2]
    for i in range(0, size, LANES):
        row = (n * size + i) * size
        columns = (first + i, first + i + 1, first + i + 2, first + i + 3)
        sums = (row, row + size, row + 2 * size, row + 3 * size)
        add_up(size, waiting[n], lefts, columns, size, rights, first, size, counts, sums)
    waiting[n] = 0


@helper(fastmath=LINEAR)
def _go_up(forest, begin, end, kind, tables, room):
    """Pass messages from the leaves of a tree to its root. RETURNS (float): The log partition, NaN where it is not to be
    trusted."""
    own = room.own
    inside = room.inside
    messages = room.messages
    order = forest.order
    parent = forest.parent
    tie = forest.tie
    turned = forest.turned
    total = 0.0
    product = 1.0
    wrong = 0
    rest = 0.0
    for k in range(end - begin):
        for i in range(own.shape[1]):
            inside[k, i] = own[order[begin + k], i]
    for k in range(end - begin - 1, 0, -1):
        p = parent[begin + k] - begin
        # log Z = sum of the logarithms of the messages' sums, taken for several at once
        product *= _along(tables, turned[begin + k], kind[tie[begin + k]], inside, k, messages, k)
        if not _SMALL < product < _LARGE:
            total = total + np.log(product) if product > 0.0 else np.nan
            product = 1.0
        wrong += _multiply(inside, p, messages, k, inside, p)
    for i in range(own.shape[1]):
        rest += inside[0, i]
    product *= rest
    return total + np.log(product) if wrong == 0 and product > 0.0 else np.nan


@helper(fastmath=LINEAR)
def _go_down(forest, r, kind, tables, room, weight, counts):
    """Pass messages from the root back to the leaves; `inside` of each token becomes its marginals, times a weight. RETURNS
    (bool): Whether no number got too small to be trusted."""
    own, inside, messages, outside, left, right, waiting = room
    order = forest.order
    tie = forest.tie
    turned = forest.turned
    children = forest.children
    begin = forest.starts[r]
    end = forest.starts[r + 1]
    size = own.shape[1]
    so_far = np.empty((1, size))
    cavity = np.empty((1, size))
    wrong = 0
    outside[0] = 1.0
    for k in range(end - begin):
        first = children[begin + k, 0] - begin
        behind = children[begin + k, 1] - begin
        # so_far = own · down · up of the children before; outside[u] = up of the children behind
        wrong += _multiply(own, order[begin + k], outside, k, so_far, 0)
        total = 0.0
        wrong += _multiply(inside, k, outside, k, inside, k)
        for i in range(size):
            total += inside[k, i]
        wrong += not total > 0.0
        for i in range(size):
            inside[k, i] *= weight / total
        for u in range(behind - 1, first - 1, -1):  # what the later children say
            if u < behind - 1:
                wrong += _multiply(outside, u + 1, messages, u + 1, outside, u)
            else:
                for i in range(size):
                    outside[u, i] = 1.0
        for u in range(first, behind):
            wrong += _multiply(so_far, 0, outside, u, cavity, 0)
            wrong += _multiply(so_far, 0, messages, u, so_far, 0)
            side = turned[begin + u]
            n = kind[tie[begin + u]]
            total = 0.0
            scale = _along(tables, 1 - side, n, cavity, 0, outside, u)
            for i in range(size):
                total += inside[u, i] * outside[u, i]
            if scale * total > 0.0:
                # P(i, j) = inside[u](i) · table[i, j] · cavity[u](j) / z, counted without the table
                at = waiting[n]
                factor = weight / (scale * total)
                of_own, of_parent = (right, left) if side == 1 else (left, right)
                for i in range(size):
                    of_own[n, at, i] = factor * inside[u, i]
                    of_parent[n, at, i] = cavity[0, i]
                waiting[n] += 1
                if waiting[n] == TOGETHER:
                    _count(room, n, counts)
    return wrong == 0


@kernel
def sums(forest, room, kind, tables, component, weights, believed, counts, log_z):
    """Log partitions of the components, and the derivatives of their weighted sum.

    room (Room): With exp of the scores of the tokens; no pair waits. kind (int64[E]): Of the ties.
    tables (float64[2, K, L, L]): exp of scores, and the same turned. component (int64[T])
    weights (float64[C]): Of the expectations; none if they are not asked for.
    believed (float64[T, at most L]): Receives the marginals.
    counts (float64[K, L, L]): Those of the pairs of labels of ties, divided by the tables, are added.
    log_z (float64[C]): Is added to.
    """
    order = forest.order
    starts = forest.starts
    for r in range(len(starts) - 1):
        begin = starts[r]
        end = starts[r + 1]
        c = component[order[begin]]
        total = _go_up(forest, begin, end, kind, tables, room)
        log_z[c] += total
        if len(weights) == 0 or np.isnan(total) or weights[c] == 0.0:
            continue
        if not _go_down(forest, r, kind, tables, room, weights[c], counts):
            log_z[c] = np.nan
        for k in range(end - begin):
            for i in range(believed.shape[1]):
                believed[order[begin + k], i] = room.inside[k, i]
    for n in range(len(counts) if len(weights) else 0):
        _count(room, n, counts)


@kernel
def best(forest, own, kind, tables, component, labels, scores):
    """The best labels of each forest (int64[T]), the lowest of equals, and their scores (float64[C], is added to).

    own (float64[T, L]), tables (float64[2, K, L, L]): Scores, see `sums`.
    """
    order, parents, ties, turned, _, starts, _ = forest
    size = own.shape[1]
    longest = 1
    for r in range(len(starts) - 1):
        longest = max(longest, starts[r + 1] - starts[r])
    inside = np.empty((longest, size))
    message = np.empty(size)
    for r in range(len(starts) - 1):
        begin = starts[r]
        end = starts[r + 1]
        for k in range(end - begin):
            inside[k] = own[order[begin + k]]
        for k in range(end - begin - 1, 0, -1):
            p = parents[begin + k] - begin
            side = turned[begin + k]
            n = kind[ties[begin + k]]
            message[:] = -np.inf
            for i in range(0, size, LANES):
                a = inside[k, i]
                b = inside[k, i + 1]
                c = inside[k, i + 2]
                d = inside[k, i + 3]
                # inside[p, j] += max_i(inside[k, i] + table[i, j])
                for j in range(size):
                    upper = max(a + tables[side, n, i, j], b + tables[side, n, i + 1, j])
                    lower = max(c + tables[side, n, i + 2, j], d + tables[side, n, i + 3, j])
                    message[j] = max(message[j], max(upper, lower))
            for j in range(size):
                inside[p, j] += message[j]
        for k in range(end - begin):
            chosen = 0
            largest = -np.inf
            for i in range(size):
                score = inside[k, i]
                if k > 0:
                    of_parent = labels[order[parents[begin + k]]]
                    score += tables[turned[begin + k], kind[ties[begin + k]], i, of_parent]
                if score > largest:
                    chosen = i
                    largest = score
            labels[order[begin + k]] = chosen
            if k == 0:
                scores[component[order[begin]]] += largest
