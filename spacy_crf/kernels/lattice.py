"""Lattices: the nodes on good labellings of one sequence, and the steps between them.

A labelling is a chain of segments; of tags, each segment is one token. Nodes are rows of states: row 2 t is in front of
token t, where a segment of that state begins, and row 2 t + 1 behind token t, where a segment ends. The worth of a node is the
score of the best labelling through it (its max-marginal). Few nodes are worth nearly as much as the best labelling, and no
labelling scores more than any of its nodes is worth.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel
from .numerics import best_before

# There is no NaN, so maxima may be vectorised; -inf stays what it is.
MAXIMA = {"nnan", "nsz"}


class LatticeSteps(NamedTuple):
    """A part of a lattice as a graph: labellings are its ways from place 0 to the last one, V - 1. Its other places are nodes.

    A step out of row r is read by automata at time r + 1, those out of place 0 at time 0.
    """

    source: NDArray[np.int32]  # [N] sorted
    target: NDArray[np.int32]  # [N] each behind its source
    event: NDArray[np.int32]  # [N] what automata read, -1 for nothing
    scores: Floats  # [N]
    starts: NDArray[np.int64]  # [V + 1] the steps out of place v are starts[v]:starts[v + 1]
    time: NDArray[np.int32]  # [V]
    state: NDArray[np.int32]  # [V] -1 of the first and the last place


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
def suffixes(log_potentials, rest):
    """Score of the best labelling behind each node.

    log_potentials (log_space.LogPotentials): Scores of one sequence of at least one token.
    rest (float64[2 n, S]): Receives the scores.
    """
    transitions, size = log_potentials.transitions, rest.shape[1]
    tokens, longest = len(rest) // 2, len(log_potentials.lengths)
    step = 1 if transitions.shape[0] > 1 else 0
    row, out, turned = np.empty(size), np.empty(size), np.empty((1, size, size))
    turned[0] = transitions[0].T
    for t in range(tokens - 1, -1, -1):
        # leave[t, i] = max_j(transitions[i, j] + enter[t+1, j])
        rest[2 * t + 1] = log_potentials.last
        if t < tokens - 1:
            if step:
                turned[0] = transitions[t + 1].T
            row[:] = rest[2 * t + 2]
            _advance(row, turned, 0, out)
            rest[2 * t + 1] = out
        # enter[t, j] = max_k(score of the segment + leave[t+k, j])
        for j in range(size):
            best = -np.inf
            for k in range(min(longest, tokens - t)):
                best = max(best, segment_score(log_potentials, t, k, j) + rest[2 * (t + k) + 1, j])
            rest[2 * t, j] = best


@kernel
def find_worth(log_potentials, prefix, worth):
    """Compute the worth of all nodes.

    log_potentials (log_space.LogPotentials): Scores of one sequence of at least one token.
    prefix (float64[2 n, S]): Receives the score of the best labelling up to each node.
    worth (float64[2 n, S]): Receives the worth.
    RETURNS (float64): Score of the best labelling.
    """
    suffixes(log_potentials, worth)
    tokens, size = log_potentials.opening.shape
    longest = len(log_potentials.lengths)
    step = 1 if log_potentials.transitions.shape[0] > 1 else 0
    row, out = np.empty(size), np.empty(size)
    prefix[:] = -np.inf
    prefix[0] = log_potentials.first
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
    worth += prefix
    return worth[0].max()


@helper
def _rest(prefix, worth, row, j):
    """Score of the best labelling behind a node."""
    return worth[row, j] - prefix[row, j] if prefix[row, j] > -np.inf else -np.inf


@helper
def _best_behind(prefix, worth, row, transitions, k, i):
    best, found = -np.inf, 0
    for j in range(prefix.shape[1]):
        score = transitions[k, i, j] + _rest(prefix, worth, row, j)
        if score > best:
            best, found = score, j
    return found


@helper
def _keep(kept, added, row, j):
    if not kept[row, j]:
        kept[row, j] = added[row, j] = True


@helper
def _places(kept):
    """The time and the state of each place, and bounds: time t has the places bounds[t] to bounds[t + 1] - 1."""
    n_places = kept.sum() + 2
    time, state = np.empty(n_places, dtype=np.int32), np.empty(n_places, dtype=np.int32)
    bounds = np.empty(len(kept) + 3, dtype=np.int64)
    time[0], state[0], bounds[0], bounds[1] = 0, -1, 0, 1
    n = 1
    for row in range(len(kept)):
        for j in range(kept.shape[1]):
            if kept[row, j]:
                time[n], state[n] = row + 1, j
                n += 1
        bounds[row + 2] = n
    time[n], state[n], bounds[-1] = len(kept) + 1, -1, n + 1
    return time, state, bounds


@kernel
def connect(log_potentials, prefix, worth, kept, added):
    """Keep also the nodes on the best labelling through each added node.

    kept, added (bool[2 n, S]): The kept nodes, connected except for the added ones. The kernel adds nodes to both.
    """
    transitions, size = log_potentials.transitions, prefix.shape[1]
    tokens, longest = len(kept) // 2, len(log_potentials.lengths)
    step = 1 if transitions.shape[0] > 1 else 0
    for t in range(tokens - 1, -1, -1):
        for j in range(size):
            if added[2 * t + 1, j]:
                best, begin = -np.inf, t
                for k in range(min(longest, t + 1)):
                    score = prefix[2 * (t - k), j] + segment_score(log_potentials, t - k, k, j)
                    if score > best:
                        best, begin = score, t - k
                _keep(kept, added, 2 * begin, j)
        for j in range(size):
            if t > 0 and added[2 * t, j]:
                _keep(kept, added, 2 * t - 1, best_before(prefix, 2 * t - 1, transitions, t * step, j))
    for t in range(tokens):
        for j in range(size):
            if added[2 * t, j]:
                most, end = -np.inf, t
                for k in range(min(longest, tokens - t)):
                    last = 2 * (t + k) + 1
                    score = segment_score(log_potentials, t, k, j) + _rest(prefix, worth, last, j)
                    if score > most:
                        most, end = score, t + k
                _keep(kept, added, 2 * end + 1, j)
        for i in range(size):
            if t < tokens - 1 and added[2 * t + 1, i]:
                best = _best_behind(prefix, worth, 2 * t + 2, transitions, (t + 1) * step, i)
                _keep(kept, added, 2 * t + 2, best)


@kernel
def list_steps(log_potentials, events, prefix, kept, jumps):
    """List the steps between the kept nodes (bool[2 n, S]): into segments, which are events, and over segments, which are not.

    jumps (int64[2 n]): For a row with a single node, a later row with a single node, if no automaton reads anything between the
        two along the best labelling; 0 for a step to the next row.
    """
    transitions, first, last = log_potentials.transitions, log_potentials.first, log_potentials.last
    longest, rows = len(log_potentials.lengths), len(kept)
    step = 1 if transitions.shape[0] > 1 else 0
    time, state, bounds = _places(kept)
    place = np.full(kept.shape, -1, dtype=np.int32)
    most = bounds[2] - bounds[1] + bounds[rows + 2] - bounds[rows + 1] + rows
    for row in range(rows):
        if row % 2 == 0:
            most += (bounds[row + 2] - bounds[row + 1]) * longest
        elif row < rows - 1:
            most += (bounds[row + 2] - bounds[row + 1]) * (bounds[row + 3] - bounds[row + 2])
    for v in range(1, len(time) - 1):
        place[time[v] - 1, state[v]] = v
    source, target, event = np.empty((3, most), dtype=np.int32)
    values, starts = np.empty(most), np.zeros(len(time) + 1, dtype=np.int64)
    n = 0
    for v in range(len(time) - 1):
        row, i = time[v] - 1, state[v]
        if i >= 0 and jumps[row] > 0:
            w = bounds[jumps[row] + 1]
            source[n], target[n], event[n] = v, w, -1
            values[n] = prefix[jumps[row], state[w]] - prefix[row, i]
            n += 1
        elif row % 2 == 0:  # in front of a token
            for k in range(min(longest, (rows - row) // 2)):
                w, score = place[row + 2 * k + 1, i], segment_score(log_potentials, row // 2, k, i)
                if w >= 0 and score > -np.inf:
                    source[n], target[n], event[n], values[n] = v, w, -1, score
                    n += 1
        else:
            for w in range(bounds[row + 2], bounds[row + 3]):
                j = state[w]
                if j < 0:
                    score, happens = last[i], -1
                elif i < 0:
                    score, happens = first[j], events[len(events) - 1, j]
                else:
                    score, happens = transitions[(row + 1) // 2 * step, i, j], events[i, j]
                if score > -np.inf:
                    source[n], target[n], event[n], values[n] = v, w, happens, score
                    n += 1
        starts[v + 1] = n
    starts[len(time)] = n
    return LatticeSteps(source[:n], target[:n], event[:n], values[:n], starts, time, state)
