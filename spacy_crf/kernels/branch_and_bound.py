"""Branch and bound: the best labelling that automata accept, in a part of a lattice.

The search extends prefixes of labellings node by node. Of the prefixes that end at a node with the automata in the same states
it keeps the best. What may follow a prefix is bounded by dual decomposition (`kernels.dual_decomposition`):

    bound(prefix) = score(prefix) + suffix[node] + sum_a suffixes[a, next reading of a, state of a]

A prefix is pruned if its bound is no higher than a score that is known. Of the others, the `width` prefixes with the highest
bounds are extended at each node. If no bound of those left out is higher than the score of the labelling found, that one is best.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel
from .dual_decomposition import ROUNDING, move
from .numerics import slot_of

# Arguments of helpers, which numba would compile once more for literals
_START = np.int32(0)
_NO_PREFIX = np.int32(-1)
_NO_ARC = np.int64(-1)


class Prefixes(NamedTuple):
    """The prefixes that the search keeps, M at most."""

    score: Floats  # [M] score, including the scores of the automata
    bound: Floats  # [M] upper bound on all labellings with this prefix
    parent: NDArray[np.int32]  # [M] the prefix that was extended
    arc: NDArray[np.int32]  # [M] the last arc
    node: NDArray[np.int32]  # [M] where the prefix ends
    following: NDArray[np.int32]  # [M] the next prefix at the same node, -1 for none
    states: NDArray[np.int32]  # [M, A] of the automata
    first_at: NDArray[np.int32]  # [V] the first prefix at each node, -1 for none
    unused: NDArray[np.int32]  # [M] numbers that no prefix has, `counts[UNUSED]` of them
    table: NDArray[np.int32]  # [2^m] prefixes at nodes to come, by their hash, see `slot_of`
    counts: NDArray[np.int64]  # [3] at UNUSED, HASHED and LAST


UNUSED = 0  # numbers that no prefix has
HASHED = 1  # slots of the table in use
LAST = 2  # the last node that has a prefix


@helper
def _make_prefixes(most, n_automata, n_nodes):
    """Room for `most` prefixes (Prefixes)."""
    slots = 64
    while slots < 4 * most:
        slots *= 2
    score, bound = np.empty((2, most))
    parent, arc, node, following = np.empty((4, most), dtype=np.int32)
    states = np.empty((most, n_automata), dtype=np.int32)
    first_at = np.full(n_nodes, -1, dtype=np.int32)
    unused = np.arange(most - 1, -1, -1).astype(np.int32)
    table = np.full(slots, -1, dtype=np.int32)
    counts = np.array([most, 0, 0])
    return Prefixes(score, bound, parent, arc, node, following, states, first_at, unused, table, counts)


@helper
def _forget_before(prefixes, node):
    """Drop the prefixes that end at a node, or before it, from the hash table."""
    prefixes.table[:] = -1
    prefixes.counts[HASHED] = 0
    for later in range(node + 1, prefixes.counts[LAST] + 1):
        m = prefixes.first_at[later]
        while m >= 0:
            slot = slot_of(prefixes.table, prefixes.node, prefixes.states, np.int32(later), prefixes.states[m])
            prefixes.table[slot] = m
            prefixes.counts[HASHED] += 1
            m = prefixes.following[m]


@helper
def _add(prefixes, node, states, score, bound, parent, arc):
    """Add a prefix, or replace the prefix that ends at this node with automata in these states if the new score is higher.

    RETURNS (bool): False if there is no room.
    """
    slot = slot_of(prefixes.table, prefixes.node, prefixes.states, node, states)
    m = prefixes.table[slot]
    if m < 0:
        if prefixes.counts[UNUSED] == 0:
            return False
        prefixes.counts[UNUSED] -= 1
        prefixes.counts[HASHED] += 1
        prefixes.counts[LAST] = max(prefixes.counts[LAST], node)
        m = prefixes.unused[prefixes.counts[UNUSED]]
        prefixes.table[slot] = m
        prefixes.node[m] = node
        prefixes.states[m] = states
        prefixes.following[m] = prefixes.first_at[node]
        prefixes.first_at[node] = m
    elif prefixes.score[m] >= score:
        return True
    prefixes.score[m] = score
    prefixes.bound[m] = bound
    prefixes.parent[m] = parent
    prefixes.arc[m] = arc
    return True


@helper
def _leave_out(prefixes, node, width):
    """Remove all but the `width` prefixes with the highest bounds at a node.

    RETURNS (float): The highest bound of a removed prefix, -inf for none.
    """
    count = 0
    m = prefixes.first_at[node]
    while m >= 0:
        count += 1
        m = prefixes.following[m]
    if count <= width:
        return -np.inf
    bounds = np.empty(count)
    m = prefixes.first_at[node]
    for n in range(count):
        bounds[n] = prefixes.bound[m]
        m = prefixes.following[m]
    # The width-th highest bound; prefixes with equal bounds are kept too
    bounds.sort()
    least = bounds[count - width]
    left_out = -np.inf
    m = prefixes.first_at[node]
    prefixes.first_at[node] = -1
    while m >= 0:
        following = prefixes.following[m]
        if prefixes.bound[m] >= least:
            prefixes.following[m] = prefixes.first_at[node]
            prefixes.first_at[node] = m
        else:
            left_out = max(left_out, prefixes.bound[m])
            prefixes.unused[prefixes.counts[UNUSED]] = m
            prefixes.counts[UNUSED] += 1
        m = following
    return left_out


@kernel
def branch_and_bound(arcs, automata, variables, suffix, suffixes, width, known, most, path):
    """Find the best labelling that automata accept, if its score is higher than the best known score.

    arcs (LatticeArcs), automata (KindAutomata), variables (DualVariables): The lattice, and what reads it.
    suffix, suffixes: From `find_bound`.
    width (int): Most prefixes to extend at each node. most (int): Most prefixes in all.
    known (float): The best known score.
    path (int32[V]): Receives the arcs of the labelling.
    RETURNS (float, int, float, int): Score and length of the labelling, -inf and 0 if there is none; the highest bound of a
        prefix that was left out, -inf for none; and the number of arcs tried.
    """
    n_automata = len(automata.tables)
    end = len(suffix) - 1
    prefixes = _make_prefixes(most, n_automata, end + 1)
    states = np.zeros(n_automata, dtype=np.int32)
    # Only bounds above the known score count, by more than rounding
    least = known + ROUNDING * (1.0 + abs(known)) if known > -np.inf else known
    left_out = -np.inf
    tried = 0
    _add(prefixes, _START, states, 0.0, np.inf, _NO_PREFIX, _NO_ARC)
    for v in range(end):
        left_out = max(left_out, _leave_out(prefixes, v, width))
        # No later prefix ends at a node that was passed
        if 2 * prefixes.counts[HASHED] > len(prefixes.table):
            _forget_before(prefixes, v)
        m = prefixes.first_at[v]
        while m >= 0:
            tried += arcs.starts[v + 1] - arcs.starts[v]
            for e in range(arcs.starts[v], arcs.starts[v + 1]):
                w = arcs.target[e]
                score = prefixes.score[m] + arcs.scores[e]
                if score + suffix[w] == -np.inf:
                    continue
                states[:] = prefixes.states[m]
                for n in range(variables.arc_starts[e], variables.arc_starts[e + 1]):
                    z = variables.of_arc[n]
                    a = variables.automaton[z]
                    x = move(automata, a, states[a], variables.kind[z])
                    states[a] = automata.following[x]
                    score += automata.scores[x]
                    if states[a] < 0:
                        score = -np.inf
                        break
                if score == -np.inf:
                    continue
                # bound = score + suffix[w] + sum_a suffixes[a, next reading of a, state of a]
                bound = score + suffix[w]
                for a in range(n_automata):
                    size = automata.states[a + 1] - automata.states[a]
                    reading = variables.reading_at[a, arcs.time[w]] - variables.readings[a]
                    bound += suffixes[variables.suffixes[a] + reading * size + states[a]]
                if bound > least and not _add(prefixes, w, states, score, bound, m, e):
                    left_out = max(left_out, bound)
            m = prefixes.following[m]
    # At the end nothing follows: the bound is the score
    best = -np.inf
    found = _NO_PREFIX
    m = prefixes.first_at[end]
    while m >= 0:
        if prefixes.bound[m] > best:
            best = prefixes.bound[m]
            found = m
        m = prefixes.following[m]
    length = 0
    m = found
    while m >= 0 and prefixes.arc[m] >= 0:
        length += 1
        m = prefixes.parent[m]
    # The parents lead backwards
    for n in range(length - 1, -1, -1):
        path[n] = prefixes.arc[found]
        found = prefixes.parent[found]
    return best, length, left_out, tried
