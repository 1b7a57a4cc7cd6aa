"""Eliminate the variables of a graph one after the other; derivatives, best states and draws follow in the opposite order
(Koller & Friedman 2009, chapter 9).

T tokens, which are the variables, S states, E edges, K tables, L labels.

Order. The next variable is the one whose neighbours lack the fewest edges (min-fill); of equals, the one with the smallest table.
The lists of neighbours grow in one array. An eliminated variable leaves the lists of its neighbours, which become neighbours of
each other.

Tables. Tokens are numbered in the order of elimination. The table of a token has an axis for each of its remaining neighbours,
those that are eliminated later first, and a last axis for the possible states of the token. All tables lie in one flat array,
one behind the other; so do all messages.

    table[n1, n2, ..., x] = own[x] + edges[ni, x] + messages[ni, ..., x]
    message[n1, n2, ...] = log sum_x exp(table[n1, n2, ..., x])
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.exponentials import exp_less
from spacy_crf.kernels.numerics import SPREAD, draw_mass
from spacy_crf.types import Floats


class Order(NamedTuple):
    """The order in which variables are eliminated."""

    variables: NDArray[np.int64]  # [N]
    place: NDArray[np.int64]  # [N] place of each variable in this order
    # [N + 1] the remaining neighbours of the variable at place n are rest[starts[n]:starts[n + 1]]
    starts: NDArray[np.int64]
    rest: NDArray[np.int64]  # [R] variables, those that are eliminated later first


class Left(NamedTuple):
    """The variables that are left. The neighbours of variable v are ``pool[begin[v] : begin[v] + count[v]]``, where there is room
    for ``room[v]`` of them."""

    begin: NDArray[np.int64]  # [N]
    count: NDArray[np.int64]  # [N]
    room: NDArray[np.int64]  # [N]
    lacking: NDArray[np.int64]  # [N] number of pairs of its neighbours without an edge
    others: Floats  # [N] log of the number of labellings of its neighbours


@helper
def _append(pool, end, left, v, other):
    """Append a variable to the neighbours of v.

    RETURNS (int64[P], int): The array of all lists, enlarged if it was full, and the first free place in it.
    """
    begin = left.begin
    count = left.count
    room = left.room
    if count[v] == room[v]:
        more = 2 * room[v] + 2
        if end + more > len(pool):
            larger = np.empty(2 * (end + more), dtype=np.int64)
            larger[:end] = pool[:end]
            pool = larger
        for k in range(count[v]):
            pool[end + k] = pool[begin[v] + k]
        begin[v] = end
        room[v] = more
        end += more
    pool[begin[v] + count[v]] = other
    count[v] += 1
    return pool, end


@helper
def _count(pool, left, v, logs, marks, stamp):
    """Set the costs of a variable. marks (int64[N]): Work space, without this stamp."""
    begin = left.begin
    count = left.count
    end = begin[v] + count[v]
    for k in range(begin[v], end):
        marks[pool[k]] = stamp
    found = 0
    total = 0.0
    for k in range(begin[v], end):
        other = pool[k]
        total += logs[other]
        # Edges among the neighbours are found from both of their ends
        for m in range(begin[other], begin[other] + count[other]):
            found += marks[pool[m]] == stamp
    left.lacking[v] = (count[v] * (count[v] - 1) - found) // 2
    left.others[v] = total


@helper
def _read(source, target, n):
    """Read the edges of n variables. RETURNS (Left, int64[P], int): The variables, the array of their neighbours, and the first
    free place in it."""
    begin, count, room, lacking = np.zeros((4, n), dtype=np.int64)
    left = Left(begin, count, room, lacking, np.zeros(n))
    pool = np.empty(8 * len(source) + 4, dtype=np.int64)
    end = 0
    for e in range(len(source)):
        u = source[e]
        v = target[e]
        if count[u] > count[v]:
            u, v = v, u
        is_new = True
        # The shorter list of the two says whether the edge is known
        for k in range(begin[u], begin[u] + count[u]):
            is_new = is_new and pool[k] != v
        if is_new:
            pool, end = _append(pool, end, left, u, v)
            pool, end = _append(pool, end, left, v, u)
    return left, pool, end


@helper
def _join(pool, end, left, some, marks, stamp):
    """Connect some variables (int64[M]) with each other. RETURNS (int64[P], int): As `_append`."""
    begin = left.begin
    count = left.count
    for n in range(len(some)):
        u = some[n]
        marks[u] = stamp + n
        for k in range(begin[u], begin[u] + count[u]):
            marks[pool[k]] = stamp + n
        for other in some:
            if marks[other] != stamp + n:
                pool, end = _append(pool, end, left, u, other)
    return pool, end


@helper
def _around(pool, left, some, marks, stamp, found):
    """Write some variables (int64[M]) and their neighbours, each once, to found (int64[N]). RETURNS (int): Their number."""
    begin = left.begin
    count = left.count
    n = 0
    for u in some:
        if marks[u] != stamp:
            marks[u] = stamp
            found[n] = u
            n += 1
        for k in range(begin[u], begin[u] + count[u]):
            if marks[pool[k]] != stamp:
                marks[pool[k]] = stamp
                found[n] = pool[k]
                n += 1
    return n


@helper
def _latest_first(place, some):
    """Sort a few variables (int64[M]) by their place, the latest first."""
    for k in range(1, len(some)):
        v = some[k]
        m = k
        while m > 0 and place[some[m - 1]] < place[v]:
            some[m] = some[m - 1]
            m -= 1
        some[m] = v


@helper
def _remove(pool, left, v, other):
    """Remove a variable from the neighbours of v."""
    k = left.begin[v]
    while pool[k] != other:
        k += 1
    left.count[v] -= 1
    pool[k] = pool[left.begin[v] + left.count[v]]


@kernel
def order(source, target, sizes, most):
    """Find the order of elimination.

    source, target (int64[E]): The ends of edges, which may repeat. sizes (int64[N]): Number of states of each variable.
    most (int): Largest size of a table; the search stops at the first table that would be larger.
    RETURNS (Order, float): The order, and the size of the largest table.
    """
    n = len(sizes)
    left, pool, end = _read(source, target, n)
    begin = left.begin
    count = left.count
    logs = np.log(sizes)
    marks = np.full(n, -1)
    stamp = n
    found = np.empty(n, dtype=np.int64)
    # Costs and variables; an entry whose costs are no longer those of its variable is passed over
    queue = [(0, 0.0, n)]
    queue.pop()
    for v in range(n):
        _count(pool, left, v, logs, marks, v)
        heappush(queue, (left.lacking[v], left.others[v], v))
    variables = np.empty(n, dtype=np.int64)
    place = np.full(n, n)
    starts = np.zeros(n + 1, dtype=np.int64)
    rest = np.empty(4 * n + 4, dtype=np.int64)
    largest = 0.0
    for done in range(n):
        lacking, others, v = heappop(queue)
        # Costs change while a variable waits: an entry is valid if its costs are the present ones
        while place[v] < n or lacking != left.lacking[v] or others != left.others[v]:
            lacking, others, v = heappop(queue)
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
        # The neighbours are the axes of the variable's table, and a clique from now on
        beside = rest[starts[done] : behind]
        beside[:] = pool[begin[v] : begin[v] + count[v]]
        variables[done] = v
        place[v] = done
        starts[done + 1] = behind
        for u in beside:
            _remove(pool, left, u, v)
        changed = beside
        if lacking > 0:
            pool, end = _join(pool, end, left, beside, marks, stamp)
            stamp += len(beside)
            changed = found[: _around(pool, left, beside, marks, stamp, found)]
        # Costs change for the neighbours, and if edges were added, for their neighbours too
        for u in changed:
            stamp += 1
            _count(pool, left, u, logs, marks, stamp)
            heappush(queue, (left.lacking[u], left.others[u], u))
        stamp += 1
    for k in range(n):
        _latest_first(place, rest[starts[k] : starts[k + 1]])
    return Order(variables, place, starts, rest), largest


# ------------------------------------------------------------------------------------------------------------- tables


class Graph(NamedTuple):
    """Scores of tokens and of pairs of tokens: the edges between neighbours, then the ties."""

    own: Floats  # [T, S]
    states: NDArray[np.int64]  # [sum] the states of token t are states[bounds[t]:bounds[t + 1]]
    bounds: NDArray[np.int64]  # [T + 1]
    source: NDArray[np.int64]  # [E]
    target: NDArray[np.int64]  # [E]
    kind: NDArray[np.int64]  # [E] table of a tie, -1 for neighbours
    transitions: Floats  # [1 or T, S, S]
    tables: Floats  # [K, L, L]
    label_of: NDArray[np.int64]  # [S]


class Tree(NamedTuple):
    """Places of tables, messages and edges."""

    order: Order
    tables: NDArray[np.int64]  # [T + 1] where the table of each token begins, all at 0 if tables are not kept
    messages: NDArray[np.int64]  # [T + 1] where its message begins
    edges: NDArray[np.int64]  # [E] table n contains the scores of the edges edges[edge_starts[n]:edge_starts[n + 1]]
    edge_starts: NDArray[np.int64]  # [T + 1]


@kernel
def possible(own):
    """The possible states of tokens (state 0 of a token without any): `states` and `bounds` of a `Graph`.

    own (float64[T, S]): Scores, -inf for impossible states.
    """
    n, size = own.shape
    states = np.empty(n * size, dtype=np.int64)
    bounds = np.zeros(n + 1, dtype=np.int64)
    found = 0
    for t in range(n):
        for s in range(size):
            if own[t, s] > -np.inf:
                states[found] = s
                found += 1
        if found == bounds[t]:
            states[found] = 0
            found += 1
        bounds[t + 1] = found
    return states[:found].copy(), bounds


@helper
def _axes(tree, bounds, n, sizes, strides):
    """Set sizes (int64[A]) to the sizes of the axes of a table except the last one. RETURNS (int): Number of these axes."""
    order = tree.order
    begin = order.starts[n]
    end = order.starts[n + 1]
    for a in range(end - begin):
        t = order.rest[begin + a]
        sizes[a] = bounds[t + 1] - bounds[t]
        strides[a] = 0
    return end - begin


@helper
def _place(tree, bounds, n, others, strides):
    """Set strides (int64[A]) to the steps of a factor along the axes of a table.

    others (int64[M]): The neighbours that the factor depends on, besides the token of the table, in the order of its axes.
    """
    order = tree.order
    begin = order.starts[n]
    a = order.starts[n + 1] - order.starts[n] - 1
    # The last axis is the token itself; axes that the factor does not have get the step 0
    stride = bounds[order.variables[n] + 1] - bounds[order.variables[n]]
    for m in range(len(others) - 1, -1, -1):
        while order.rest[begin + a] != others[m]:
            strides[a] = 0
            a -= 1
        strides[a] = stride
        stride *= bounds[others[m] + 1] - bounds[others[m]]
        a -= 1
    strides[: a + 1] = 0


@helper
def _of_message(tree, child):
    """The tokens that the message of a child depends on, besides its receiver."""
    order = tree.order
    return order.rest[order.starts[child] : order.starts[child + 1] - 1]


@helper
def _next(counters, sizes, strides, n_axes, at):
    """Go to the next row of a table. RETURNS (int): The matching place in a second array, whose steps along the axes are
    `strides`."""
    for a in range(n_axes - 1, -1, -1):
        counters[a] += 1
        at += strides[a]
        if counters[a] < sizes[a]:
            break
        at -= strides[a] * sizes[a]
        counters[a] = 0
    return at


@helper
def _add(table, size, factor, axes, n_axes, back):
    """Add a factor (float64[...]) to a table (float64[rows * size]); on the way back, add the table to the factor.

    axes (int64[3, A]): Counters, sizes, and strides.
    """
    counters = axes[0]
    sizes = axes[1]
    strides = axes[2]
    counters[:n_axes] = 0
    at = 0
    for row in range(0, len(table), size):
        if back:
            for x in range(size):
                factor[at + x] += table[row + x]
        else:
            for x in range(size):
                table[row + x] += factor[at + x]
        at = _next(counters, sizes, strides, n_axes, at)


@helper
def _edge(graph, e, v, transitions, tables, of_edge, back):
    """Set of_edge (float64[states of the other end * states of v]) to the scores of an edge; on the way back, add it to their
    derivatives. RETURNS (int): The other end."""
    states = graph.states
    bounds = graph.bounds
    label_of = graph.label_of
    u = graph.source[e] + graph.target[e] - v
    k = graph.kind[e]
    is_source = v == graph.source[e]
    at = 0
    t = graph.target[e] if len(transitions) > 1 else 0
    for a in range(bounds[u], bounds[u + 1]):
        for b in range(bounds[v], bounds[v + 1]):
            i, j = (states[b], states[a]) if is_source else (states[a], states[b])
            if not back:
                of_edge[at] = transitions[t, i, j] if k < 0 else tables[k, label_of[i], label_of[j]]
            elif k < 0:
                transitions[t, i, j] += of_edge[at]
            else:
                tables[k, label_of[i], label_of[j]] += of_edge[at]
            at += 1
    return u


@helper
def _sum_up(table, size, message):
    """Set a message to the log sums of the rows of a table, and the rows to probabilities."""
    for row in range(len(message)):
        at = row * size
        largest = -np.inf
        for x in range(at, at + size):
            largest = max(largest, table[x])
        # message = largest + log sum_x exp(table - largest); the row becomes exp(table - message)
        message[row] = largest
        if largest > -np.inf:
            for x in range(at, at + size):
                table[x] -= largest
    as_row = table.reshape(1, len(table))
    exp_less(as_row, 0, 0.0, -SPREAD)
    for row in range(len(message)):
        at = row * size
        total = 0.0
        for x in range(at, at + size):
            total += table[x]
        if total > 0.0:
            message[row] += np.log(total)
            factor = 1.0 / total
            for x in range(at, at + size):
                table[x] *= factor


@helper
def _largest(table, size, message):
    """Set a message to the maxima of the rows of a table."""
    for row in range(len(message)):
        message[row] = -np.inf
        for x in range(row * size, (row + 1) * size):
            message[row] = max(message[row], table[x])


@kernel
def eliminate(graph, tree, maximum):
    """Eliminate all tokens.

    maximum (bool): Whether to take maxima in place of sums.
    RETURNS (float64[sum], float64[sum], float): The tables (for sums: the probability of each state of a token given the states
        of its neighbours), the messages, and the log partition or the best score.
    """
    bounds = graph.bounds
    (variables, place, starts, rest) = tree.order
    n = len(variables)
    total = 0.0
    tables = np.empty(tree.tables[n])
    messages = np.empty(tree.messages[n])
    axes = np.zeros((3, np.diff(starts).max() if n else 0), dtype=np.int64)
    most = np.diff(bounds).max() if n else 0
    of_edge = np.empty(most * most)
    last_child = np.full(n, -1)
    next_child = np.full(n, -1)
    other = np.empty(1, dtype=np.int64)
    for k in range(n):
        v = variables[k]
        size = bounds[v + 1] - bounds[v]
        message = messages[tree.messages[k] : tree.messages[k + 1]]
        table = tables[tree.tables[k] : tree.tables[k] + len(message) * size]
        for row in range(0, len(table), size):
            for x in range(size):
                table[row + x] = graph.own[v, graph.states[bounds[v] + x]]
        n_axes = _axes(tree, bounds, k, axes[1], axes[2])
        # table = own + edges to tokens that are eliminated later + messages of children
        for e in tree.edges[tree.edge_starts[k] : tree.edge_starts[k + 1]]:
            other[0] = _edge(graph, e, v, graph.transitions, graph.tables, of_edge, False)
            _place(tree, bounds, k, other, axes[2])
            _add(table, size, of_edge, axes, n_axes, False)
        child = last_child[k]
        while child >= 0:
            _place(tree, bounds, k, _of_message(tree, child), axes[2])
            _add(table, size, messages[tree.messages[child] : tree.messages[child + 1]], axes, n_axes, False)
            child = next_child[child]
        if maximum:
            _largest(table, size, message)
        else:
            _sum_up(table, size, message)
        if starts[k] < starts[k + 1]:
            # The message goes to the neighbour that is eliminated next
            parent = place[rest[starts[k + 1] - 1]]
            next_child[k] = last_child[parent]
            last_child[parent] = k
        else:
            total += message[0]
    return tables, messages, total


@kernel
def derive(graph, tree, tables, weight, d_own, d_transitions, d_tables):
    """Add the expected number of uses of each score, times a weight, to derivatives in the shapes of the scores. The tables (of
    sums) become the weighted probabilities of their labellings."""
    bounds = graph.bounds
    (variables, place, starts, rest) = tree.order
    n = len(variables)
    axes = np.zeros((3, np.diff(starts).max() if n else 0), dtype=np.int64)
    most = np.diff(bounds).max() if n else 0
    of_edge = np.empty(most * most)
    of_rest = np.empty(np.diff(tree.messages).max() if n else 0)
    other = np.empty(1, dtype=np.int64)
    for k in range(n - 1, -1, -1):
        v = variables[k]
        size = bounds[v + 1] - bounds[v]
        table = tables[tree.tables[k] : tree.tables[k + 1]]
        rows = of_rest[: tree.messages[k + 1] - tree.messages[k]]
        if starts[k] < starts[k + 1]:
            parent = rest[starts[k + 1] - 1]
            p = place[parent]
            size_there = bounds[parent + 1] - bounds[parent]
            n_axes = _axes(tree, bounds, p, axes[1], axes[2])
            _place(tree, bounds, p, _of_message(tree, k), axes[2])
            # P(neighbours) = sum of the parent's table over the axes that this table does not have
            rows[:] = 0.0
            _add(tables[tree.tables[p] : tree.tables[p + 1]], size_there, rows, axes, n_axes, True)
        else:
            rows[:] = weight
        for row in range(len(rows)):
            for x in range(size):
                # P(x, neighbours) = P(x | neighbours) · P(neighbours)
                table[row * size + x] *= rows[row]
                d_own[v, graph.states[bounds[v] + x]] += table[row * size + x]
        n_axes = _axes(tree, bounds, k, axes[1], axes[2])
        for e in tree.edges[tree.edge_starts[k] : tree.edge_starts[k + 1]]:
            other[0] = graph.source[e] + graph.target[e] - v
            _place(tree, bounds, k, other, axes[2])
            of_edge[: (bounds[other[0] + 1] - bounds[other[0]]) * size] = 0.0
            _add(table, size, of_edge, axes, n_axes, True)
            _edge(graph, e, v, d_transitions, d_tables, of_edge, True)


@helper
def _row(tree, bounds, k, chosen):
    """The row of a table for the chosen states of the other tokens."""
    order = tree.order
    row = 0
    for t in order.rest[order.starts[k] : order.starts[k + 1]]:
        row = row * (bounds[t + 1] - bounds[t]) + chosen[t]
    return row


@kernel
def best(graph, tree, tables, states):
    """Set states (int32[T]) to the best labelling, from the tables of maxima."""
    bounds = graph.bounds
    variables = tree.order.variables
    chosen = np.zeros(len(states), dtype=np.int64)
    for k in range(len(variables) - 1, -1, -1):
        v = variables[k]
        size = bounds[v + 1] - bounds[v]
        at = tree.tables[k] + size * _row(tree, bounds, k, chosen)
        chosen[v] = np.argmax(tables[at : at + size])
        states[v] = graph.states[bounds[v] + chosen[v]]


@kernel
def draw(graph, tree, tables, uniforms, states):
    """Draw labellings (int32[M, T]) from the tables of sums by random numbers (float64[M, T])."""
    bounds = graph.bounds
    variables = tree.order.variables
    chosen = np.zeros(states.shape[1], dtype=np.int64)
    for m in range(len(states)):
        for k in range(len(variables) - 1, -1, -1):
            v = variables[k]
            size = bounds[v + 1] - bounds[v]
            at = tree.tables[k] + size * _row(tree, bounds, k, chosen)
            chosen[v] = draw_mass(tables[at : at + size], uniforms[m, k])
            states[m, v] = graph.states[bounds[v] + chosen[v]]
