"""In which order the variables of a graph are eliminated, and what is left of their neighbours then.

Next is the variable whose neighbours lack the fewest edges (min-fill), of equals the one with the smallest table. Neighbours
stand in lists that grow in one array; an eliminated variable is taken off the lists of its neighbours, who become neighbours of
each other.

N variables, E edges.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels import helper, kernel
from ...types import Floats


class Order(NamedTuple):
    """Variables, as they are eliminated."""

    variables: NDArray[np.int64]  # [N]
    place: NDArray[np.int64]  # [N] of each variable in this order
    starts: NDArray[np.int64]  # [N + 1] the neighbours that variable n has left are rest[starts[n]:starts[n + 1]]
    rest: NDArray[np.int64]  # [R] variables, those that are eliminated later first


class Costs(NamedTuple):
    """Of eliminating each variable now."""

    lacking: NDArray[np.int64]  # [N] pairs of its neighbours that are no neighbours
    others: Floats  # [N] log of how many labellings its neighbours have


class Queue(NamedTuple):
    """A heap of the variables that are left: the one at k comes before those at 2 k + 1 and 2 k + 2."""

    heap: NDArray[np.int64]  # [N] variables
    at: NDArray[np.int64]  # [N] where each stands


class Lists(NamedTuple):
    """The neighbours of each variable v are ``pool[begin[v] : begin[v] + count[v]]``, where there is room for so many."""

    begin: NDArray[np.int64]  # [N]
    count: NDArray[np.int64]  # [N]
    room: NDArray[np.int64]  # [N]


@helper
def _append(pool, end, lists, v, other):
    """RETURNS (int64[P], int): The array of all lists, a larger one where there is no room, and where it is free."""
    begin, count, room = lists
    if count[v] == room[v]:
        more = 2 * room[v] + 2
        if end + more > len(pool):
            larger = np.empty(2 * (end + more), dtype=np.int64)
            larger[:end] = pool[:end]
            pool = larger
        for k in range(count[v]):
            pool[end + k] = pool[begin[v] + k]
        begin[v], room[v] = end, more
        end += more
    pool[begin[v] + count[v]] = other
    count[v] += 1
    return pool, end


@helper
def _count(pool, lists, v, logs, marks, stamp, costs):
    """Sets the costs of a variable. marks (int64[N]): Have room for such a stamp."""
    begin, count, _ = lists
    end = begin[v] + count[v]
    for k in range(begin[v], end):
        marks[pool[k]] = stamp
    found, total = 0, 0.0
    for k in range(begin[v], end):
        other = pool[k]
        total += logs[other]
        for m in range(begin[other], begin[other] + count[other]):
            found += marks[pool[m]] == stamp
    costs.lacking[v] = (count[v] * (count[v] - 1) - found) // 2
    costs.others[v] = total


@helper
def _read(source, target, n):
    """The neighbours of n variables. RETURNS (Lists, int64[P], int): And the array where they stand, and where it is free."""
    lists = Lists(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
    begin, count, _ = lists
    pool, end = np.empty(8 * len(source) + 4, dtype=np.int64), 0
    for e in range(len(source)):
        u, v = source[e], target[e]
        if count[u] > count[v]:
            u, v = v, u
        is_new = True
        for k in range(begin[u], begin[u] + count[u]):
            is_new = is_new and pool[k] != v
        if is_new:
            pool, end = _append(pool, end, lists, u, v)
            pool, end = _append(pool, end, lists, v, u)
    return lists, pool, end


@helper
def _join(pool, end, lists, some, marks, stamp):
    """Makes some variables (int64[M]) neighbours of each other. RETURNS (int64[P], int): As `_append`."""
    begin, count, _ = lists
    for n in range(len(some)):
        u = some[n]
        marks[u] = stamp + n
        for k in range(begin[u], begin[u] + count[u]):
            marks[pool[k]] = stamp + n
        for other in some:
            if marks[other] != stamp + n:
                pool, end = _append(pool, end, lists, u, other)
    return pool, end


@helper
def _around(pool, lists, some, marks, stamp, found):
    """Some variables (int64[M]) and their neighbours, each once: to found (int64[N]). RETURNS (int): How many they are."""
    begin, count, _ = lists
    n = 0
    for u in some:
        if marks[u] != stamp:
            marks[u], found[n] = stamp, u
            n += 1
        for k in range(begin[u], begin[u] + count[u]):
            if marks[pool[k]] != stamp:
                marks[pool[k]], found[n] = stamp, pool[k]
                n += 1
    return n


@helper
def _before(costs, u, v):
    lacking, others = costs
    if lacking[u] != lacking[v]:
        return lacking[u] < lacking[v]
    return others[u] < others[v] if others[u] != others[v] else u < v


@helper
def _settle(queue, costs, n, k):
    """Moves what is at k to its place in a heap of n variables."""
    heap, at = queue
    v = heap[k]
    while k > 0 and _before(costs, v, heap[(k - 1) // 2]):
        heap[k] = heap[(k - 1) // 2]
        at[heap[k]] = k
        k = (k - 1) // 2
    while 2 * k + 1 < n:
        below = 2 * k + 1
        if below + 1 < n and _before(costs, heap[below + 1], heap[below]):
            below += 1
        if not _before(costs, heap[below], v):
            break
        heap[k] = heap[below]
        at[heap[k]] = k
        k = below
    heap[k], at[v] = v, k


@helper
def _latest_first(place, some):
    """Sorts some variables (int64[M], few) by their place."""
    for k in range(1, len(some)):
        v, m = some[k], k
        while m > 0 and place[some[m - 1]] < place[v]:
            some[m] = some[m - 1]
            m -= 1
        some[m] = v


@helper
def _remove(pool, lists, v, other):
    begin, count, _ = lists
    k, last = begin[v], begin[v] + count[v] - 1
    while pool[k] != other:
        k += 1
    pool[k] = pool[last]
    count[v] -= 1


@kernel
def order(source, target, sizes, most):
    """The order.

    source, target (int64[E]): The ends of edges, some of which may be the same. sizes (int64[N]): Of the variables.
    most (int): Numbers of a table; at the first one that would be larger there is no more order.
    RETURNS (Order, float): And how large the largest table is.
    """
    n = len(sizes)
    lists, pool, end = _read(source, target, n)
    begin, count, _ = lists
    logs, marks, stamp, found = np.log(sizes), np.full(n, -1), n, np.empty(n, dtype=np.int64)
    costs, queue = Costs(np.zeros(n, dtype=np.int64), np.zeros(n)), Queue(np.arange(n), np.arange(n))
    for v in range(n):
        _count(pool, lists, v, logs, marks, v, costs)
        _settle(queue, costs, v + 1, v)
    variables, place, starts = np.empty(n, dtype=np.int64), np.full(n, n), np.zeros(n + 1, dtype=np.int64)
    rest, largest = np.empty(4 * n + 4, dtype=np.int64), 0.0
    for done in range(n):
        v = queue.heap[0]
        table = float(sizes[v])
        for k in range(begin[v], begin[v] + count[v]):
            table *= sizes[pool[k]]
        largest = max(largest, table)
        if largest > most:
            return Order(variables, place, starts, rest), largest
        behind = starts[done] + count[v]
        if behind > len(rest):
            larger = np.empty(2 * behind, dtype=np.int64)
            larger[: starts[done]] = rest[: starts[done]]
            rest = larger
        left = rest[starts[done] : behind]
        left[:] = pool[begin[v] : begin[v] + count[v]]
        variables[done], place[v], starts[done + 1] = v, done, behind
        queue.heap[0] = queue.heap[n - 1 - done]
        _settle(queue, costs, n - 1 - done, 0)
        for u in left:
            _remove(pool, lists, u, v)
        changed, are_joined = left, costs.lacking[v] == 0
        if not are_joined:
            pool, end = _join(pool, end, lists, left, marks, stamp)
            stamp += len(left)
            changed = found[: _around(pool, lists, left, marks, stamp, found)]
        for u in changed:
            if are_joined:
                # It lacks a neighbour less, and its pairs with those that it was no neighbour of
                costs.lacking[u] -= count[u] + 1 - len(left)
                costs.others[u] -= logs[v]
            else:
                stamp += 1
                _count(pool, lists, u, logs, marks, stamp, costs)
            _settle(queue, costs, n - 1 - done, queue.at[u])
        stamp += 1
    for k in range(n):
        _latest_first(place, rest[starts[k] : starts[k + 1]])
    return Order(variables, place, starts, rest), largest
