r"""Lattices: the nodes on good labellings of one sequence, and the arcs between them.

A labelling is a chain of segments; of tags, each segment is one token. A node is a row and a state: in row 2 t, in front of token
t, a segment of that state begins, and in row 2 t + 1, behind token t, a segment ends. Arcs are segments and transitions:

           token 0   token 1   token 2
    row    0    1    2    3    4    5
    A      .    .    .    .    o====o      B over tokens 0 and 1, then A over token 2:
    B      o==============o---/  .  .      two segments (===) and a transition (---)

    prefix[node]        score of the best labelling up to a node
    suffix[node]        score of the best labelling behind it
    max_marginal[node]  prefix + suffix, the score of the best labelling through the node

No labelling scores more than the max-marginal of any of its nodes, and few nodes have one near the score of the best labelling.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel
from .numerics import best_before

# There is no NaN, so maxima may be vectorised; -inf stays what it is.
MAXIMA = {"nnan", "nsz"}


class LatticeArcs(NamedTuple):
    """A part of a lattice as a graph: labellings are its paths from node 0, the start, to node V - 1, the end."""

    source: NDArray[np.int32]  # [N] sorted
    target: NDArray[np.int32]  # [N] each behind its source
    event: NDArray[np.int32]  # [N] what automata read, -1 for nothing
    scores: Floats  # [N]
    starts: NDArray[np.int64]  # [V + 1] the arcs out of node v are starts[v]:starts[v + 1]
    # [V] 0 for the start, 1 + row for nodes of the lattice; automata read an arc at the time of its source
    time: NDArray[np.int32]
    state: NDArray[np.int32]  # [V] -1 for the start and the end


@helper(fastmath=MAXIMA)
def _advance(row, matrices, k, out):
    """out[j] = max_i(row[i] + matrices[k, i, j])"""
    out[:] = -np.inf
    for i in range(len(row)):
        before = row[i]
        if before > -np.inf:
            for j in range(len(out)):
                out[j] = max(out[j], before + matrices[k, i, j])


@helper(inline="always")
def segment_score(log_potentials, t, k, j):
    """Score of the segment of state j over k + 1 tokens from t, -inf for an impossible segment."""
    if log_potentials.reach[t + k, j] > t:
        return -np.inf
    score = log_potentials.opening[t, j] + log_potentials.lengths[k, j] + log_potentials.closing[t + k, j]
    n = log_potentials.span_of[t, k]
    return score + log_potentials.spans[n, j] if n >= 0 else score


@kernel
def best_suffixes(log_potentials, suffix):
    """Compute the score of the best labelling behind each node.

    log_potentials (log_space.LogPotentials): Scores of one sequence of at least one token.
    suffix (float64[2 n, S]): Receives the scores.
    """
    transitions = log_potentials.transitions
    tokens, size = log_potentials.opening.shape
    longest = len(log_potentials.lengths)
    step = 1 if transitions.shape[0] > 1 else 0
    row = np.empty(size)
    out = np.empty(size)
    turned = np.empty((1, size, size))
    turned[0] = transitions[0].T
    for t in range(tokens - 1, -1, -1):
        # suffix[2t+1, i] = max_j(transitions[i, j] + suffix[2t+2, j])
        suffix[2 * t + 1] = log_potentials.last
        if t < tokens - 1:
            if step:
                turned[0] = transitions[t + 1].T
            row[:] = suffix[2 * t + 2]
            _advance(row, turned, 0, out)
            suffix[2 * t + 1] = out
        # suffix[2t, j] = max_k(score of the segment + suffix[2(t+k)+1, j])
        for j in range(size):
            best = -np.inf
            for k in range(min(longest, tokens - t)):
                best = max(best, segment_score(log_potentials, t, k, j) + suffix[2 * (t + k) + 1, j])
            suffix[2 * t, j] = best


@kernel
def find_max_marginals(log_potentials, prefix, max_marginals):
    """Compute the max-marginals of all nodes.

    log_potentials (log_space.LogPotentials): Scores of one sequence of at least one token.
    prefix (float64[2 n, S]): Receives the score of the best labelling up to each node.
    max_marginals (float64[2 n, S]): Receives the max-marginals.
    RETURNS (float64): Score of the best labelling.
    """
    best_suffixes(log_potentials, max_marginals)
    tokens, size = log_potentials.opening.shape
    longest = len(log_potentials.lengths)
    step = 1 if log_potentials.transitions.shape[0] > 1 else 0
    row = np.empty(size)
    out = np.empty(size)
    prefix[:] = -np.inf
    prefix[0] = log_potentials.first
    # prefix[2t, j] = max_i(prefix[2t-1, i] + transitions[i, j]); prefix[2(t+k)+1, j] = max_k(prefix[2t, j] + segment)
    for t in range(tokens):
        if t > 0:
            row[:] = prefix[2 * t - 1]
            _advance(row, log_potentials.transitions, t * step, out)
            prefix[2 * t] = out
        for j in range(size):
            if prefix[2 * t, j] > -np.inf:
                for k in range(min(longest, tokens - t)):
                    end = 2 * (t + k) + 1
                    prefix[end, j] = max(prefix[end, j], prefix[2 * t, j] + segment_score(log_potentials, t, k, j))
    max_marginals += prefix
    return max_marginals[0].max()


@helper
def _suffix(prefix, max_marginals, row, j):
    """Score of the best labelling behind a node."""
    return max_marginals[row, j] - prefix[row, j] if prefix[row, j] > -np.inf else -np.inf


@helper
def _best_begin(log_potentials, prefix, t, j):
    """First token of the last segment of the best labelling up to the end of a segment of state j behind token t."""
    best = -np.inf
    begin = t
    for k in range(min(len(log_potentials.lengths), t + 1)):
        score = prefix[2 * (t - k), j] + segment_score(log_potentials, t - k, k, j)
        if score > best:
            best = score
            begin = t - k
    return begin


@helper
def _best_end(log_potentials, prefix, max_marginals, t, j):
    """Last token of the first segment of the best labelling from the begin of a segment of state j in front of token t."""
    best = -np.inf
    end = t
    for k in range(min(len(log_potentials.lengths), len(prefix) // 2 - t)):
        behind = _suffix(prefix, max_marginals, 2 * (t + k) + 1, j)
        score = segment_score(log_potentials, t, k, j) + behind
        if score > best:
            best = score
            end = t + k
    return end


@helper
def _best_after(prefix, max_marginals, row, transitions, k, i):
    """The best state in a row after state i."""
    best = -np.inf
    after = 0
    for j in range(prefix.shape[1]):
        score = transitions[k, i, j] + _suffix(prefix, max_marginals, row, j)
        if score > best:
            best = score
            after = j
    return after


@helper
def _keep(kept, added, row, j):
    """Keep a node, and mark it as added if it is new."""
    if not kept[row, j]:
        kept[row, j] = added[row, j] = True


@kernel
def connect(log_potentials, prefix, max_marginals, kept, added):
    """Keep also the nodes on the best labelling through each added node.

    kept (bool[2 n, S]), added (bool[2 n, S]): The kept nodes, and which of these were added and are not connected yet. The kernel
        adds nodes to both.
    """
    transitions = log_potentials.transitions
    size = prefix.shape[1]
    tokens = len(kept) // 2
    step = 1 if transitions.shape[0] > 1 else 0
    # From the right to the left the best way to each node, then from the left to the right the best way on
    for t in range(tokens - 1, -1, -1):
        for j in range(size):
            if added[2 * t + 1, j]:
                _keep(kept, added, 2 * _best_begin(log_potentials, prefix, t, j), j)
        for j in range(size):
            if t > 0 and added[2 * t, j]:
                _keep(kept, added, 2 * t - 1, best_before(prefix, 2 * t - 1, transitions, t * step, j))
    for t in range(tokens):
        for j in range(size):
            if added[2 * t, j]:
                _keep(kept, added, 2 * _best_end(log_potentials, prefix, max_marginals, t, j) + 1, j)
        for i in range(size):
            if t < tokens - 1 and added[2 * t + 1, i]:
                after = _best_after(prefix, max_marginals, 2 * t + 2, transitions, (t + 1) * step, i)
                _keep(kept, added, 2 * t + 2, after)


@kernel
def list_arcs(log_potentials, events, prefix, jumps, time, state, first_at):
    """List the arcs between some nodes (LatticeArcs): transitions, which are events, and segments, which are not.

    events (int32[S + 1, S + 1]): Event of each transition; the last row serves transitions from the start.
    jumps (int64[2 n]): For a row with a single node, a later row with a single node, if no automaton reads anything between the
        two along the best labelling; 0 for arcs to the next row.
    time (int32[V]), state (int32[V]): The nodes, see `LatticeArcs`.
    first_at (int64[2 n + 3]): The nodes at time i are first_at[i]:first_at[i + 1].
    """
    transitions = log_potentials.transitions
    first = log_potentials.first
    last = log_potentials.last
    rows = len(prefix)
    longest = len(log_potentials.lengths)
    step = 1 if transitions.shape[0] > 1 else 0
    n_nodes = len(time)
    # Number of each node by row and state
    number = np.full(prefix.shape, -1, dtype=np.int32)
    for v in range(1, n_nodes - 1):
        number[time[v] - 1, state[v]] = v
    counts = np.diff(first_at)  # of nodes at each time
    # Jumps, segments, and transitions between nodes of neighbouring rows
    most = rows + longest * n_nodes + (counts[:-1:2] * counts[1::2]).sum()
    source = np.empty(most, dtype=np.int32)
    target = np.empty(most, dtype=np.int32)
    event = np.full(most, -1, dtype=np.int32)
    scores = np.empty(most)
    starts = np.zeros(n_nodes + 1, dtype=np.int64)
    n = 0
    for v in range(n_nodes - 1):
        row = time[v] - 1
        i = state[v]
        # Between single nodes the best labelling is a single arc, whose score is the difference of the prefixes
        if i >= 0 and jumps[row] > 0:
            w = first_at[jumps[row] + 1]
            source[n] = v
            target[n] = w
            scores[n] = prefix[jumps[row], state[w]] - prefix[row, i]
            n += 1
        elif row % 2 == 0:  # in front of a token
            for k in range(min(longest, (rows - row) // 2)):
                w = number[row + 2 * k + 1, i]
                score = segment_score(log_potentials, row // 2, k, i)
                if w >= 0 and score > -np.inf:
                    source[n] = v
                    target[n] = w
                    scores[n] = score
                    n += 1
        else:
            for w in range(first_at[row + 2], first_at[row + 3]):
                j = state[w]
                read_event = -1 if j < 0 else events[i, j]  # row -1 of events is that of the start
                if j < 0:
                    score = last[i]
                elif i < 0:
                    score = first[j]
                else:
                    score = transitions[(row + 1) // 2 * step, i, j]
                if score > -np.inf:
                    source[n] = v
                    target[n] = w
                    event[n] = read_event
                    scores[n] = score
                    n += 1
        starts[v + 1] = n
    starts[n_nodes] = n
    return LatticeArcs(source[:n], target[:n], event[:n], scores[:n], starts, time, state)
