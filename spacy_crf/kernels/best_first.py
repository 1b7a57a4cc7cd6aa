"""Best-first search (A*) for the best labelling that a set of automata accepts, without building their product.

What a prefix can still reach is bounded by the best suffix that ignores the automata; since these never reward, the first
complete labelling that is taken from the queue is the best. Where the rules are broken by little, few prefixes are looked at.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _best_suffixes(emissions, transitions, last, beta):
    """beta[t, i] = max_j(transitions[i, j] + emissions[t+1, j] + beta[t+1, j])"""
    tokens, size = emissions.shape
    step = 1 if transitions.shape[0] > 1 else 0
    beta[tokens - 1] = last
    for t in range(tokens - 1, 0, -1):
        for i in range(size):
            best = -np.inf
            for j in range(size):
                best = max(best, transitions[t * step, i, j] + emissions[t, j] + beta[t, j])
            beta[t - 1, i] = best


@njit(cache=True, nogil=True)
def _push(heap, bounds, n, node):
    """Put a node into the heap of n nodes, the one with the largest bound on top."""
    heap[n] = node
    while n > 0:
        above = (n - 1) // 2
        if bounds[heap[above]] >= bounds[heap[n]]:
            break
        heap[above], heap[n] = heap[n], heap[above]
        n = above


@njit(cache=True, nogil=True)
def _pop(heap, bounds, n):
    """Take the top from the heap of n nodes."""
    top = heap[0]
    n -= 1
    heap[0] = heap[n]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= n:
            break
        if below + 1 < n and bounds[heap[below + 1]] > bounds[heap[below]]:
            below += 1
        if bounds[heap[at]] >= bounds[heap[below]]:
            break
        heap[at], heap[below] = heap[below], heap[at]
        at = below
    return top


@njit(cache=True, nogil=True)
def best_first(emissions, transitions, first, last, events, following, scores, ends, offsets, max_nodes, path):
    """Best labelling of one sequence of at least one token.

    emissions (float64[T, G]), transitions (float64[1 | T, G, G]), first, last (float64[G]): Scores.
    events (int32[G, G]): Event of each tag after each tag; at the first token the last row counts.
    following (int32[Q, E]), scores (float64[Q, E]; at most 0), ends (float64[Q]), offsets (int64[N + 1]): The automata, one
        below the other.
    max_nodes (int): Prefixes to keep at most.
    path (int32[T]): Receives the tags.
    RETURNS (int): 1 if it was found, 0 if there is none, -1 if there were too many prefixes.
    """
    tokens, size = emissions.shape
    automata = offsets.shape[0] - 1
    step = 1 if transitions.shape[0] > 1 else 0
    beta = np.empty((tokens, size))
    _best_suffixes(emissions, transitions, last, beta)
    bounds, reached = np.empty(max_nodes), np.empty(max_nodes)
    tag_of, token_of, parent = (
        np.empty(max_nodes, dtype=np.int32),
        np.empty(max_nodes, dtype=np.int32),
        np.empty(max_nodes, dtype=np.int32),
    )
    states = np.empty((max_nodes, automata), dtype=np.int16)
    heap = np.empty(max_nodes, dtype=np.int32)
    # Prefixes that end in the same tag and states are one; the first that is taken is the best of them.
    slots = 1
    while slots < 2 * max_nodes:
        slots *= 2
    seen = np.full(slots, -1, dtype=np.int32)
    nodes = queued = 0
    current = -1
    t = -1
    while True:
        before = size - 1 if current < 0 else tag_of[current]
        for j in range(size):
            if current < 0:
                score = first[j] + emissions[0, j]
            else:
                score = reached[current] + transitions[(t + 1) * step, before, j] + emissions[t + 1, j]
            if score == -np.inf or beta[t + 1, j] == -np.inf:
                continue
            if nodes == max_nodes:
                return -1
            event = events[before, j]
            allowed = True
            for n in range(automata):
                state = 0 if current < 0 else states[current, n]
                score += scores[offsets[n] + state, event]
                to = following[offsets[n] + state, event]
                if to < 0:
                    allowed = False
                    break
                states[nodes, n] = to
                if t + 1 == tokens - 1:
                    score += ends[offsets[n] + to]
            if not allowed or score == -np.inf:
                continue
            reached[nodes] = score
            bounds[nodes] = score + beta[t + 1, j]
            tag_of[nodes], token_of[nodes], parent[nodes] = j, t + 1, current
            _push(heap, bounds, queued, nodes)
            queued += 1
            nodes += 1
        while True:
            if queued == 0:
                return 0
            current = _pop(heap, bounds, queued)
            queued -= 1
            t = token_of[current]
            if t == tokens - 1:
                while current >= 0:
                    path[token_of[current]] = tag_of[current]
                    current = parent[current]
                return 1
            code = np.int64(t) * size + tag_of[current]
            for n in range(automata):
                code = code * 1000003 + states[current, n]
            slot = (code ^ (code >> 29)) & (slots - 1)
            is_new = True
            while seen[slot] >= 0:
                other = seen[slot]
                if token_of[other] == t and tag_of[other] == tag_of[current]:
                    same = True
                    for n in range(automata):
                        if states[other, n] != states[current, n]:
                            same = False
                            break
                    if same:
                        is_new = False
                        break
                slot = (slot + 1) & (slots - 1)
            if is_new:
                seen[slot] = current
                break
