"""Best-first search (A*) for the best labelling that a set of automata accepts, without building their product: of chains, and
of chains of segments.

What a prefix can still reach is bounded by the best suffix that ignores the automata; since these never reward, the first
complete labelling that is taken from the queue is the best. Where the rules are broken by little, few prefixes are looked at.
"""

import numpy as np

from ..types import GOES_ON
from . import helper, kernel


@helper
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


@helper
def _push(heap, bounds, n, node):
    """Put a node into the heap of n nodes, the one with the largest bound on top."""
    heap[n] = node
    while n > 0:
        above = (n - 1) // 2
        if bounds[heap[above]] >= bounds[heap[n]]:
            break
        heap[above], heap[n] = heap[n], heap[above]
        n = above


@helper
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


@helper
def _is_first(seen, node, place_of, tag_of, states):
    """Notes that a node was taken. Prefixes that end at one place in the same tag and states are one, and the first that is
    taken is the best of them.

    seen (int32[2^n]): Nodes that were taken, by their hash, -1 where there is room.
    RETURNS (bool): Whether it is the first of its kind.
    """
    slots = seen.shape[0]
    code = np.int64(place_of[node]) * 1000003 + tag_of[node]
    for n in range(states.shape[1]):
        code = code * 1000003 + states[node, n]
    slot = (code ^ (code >> 29)) & (slots - 1)
    while seen[slot] >= 0:
        other = seen[slot]
        if place_of[other] == place_of[node] and tag_of[other] == tag_of[node]:
            same = True
            for n in range(states.shape[1]):
                if states[other, n] != states[node, n]:
                    same = False
                    break
            if same:
                return False
        slot = (slot + 1) & (slots - 1)
    seen[slot] = node
    return True


@kernel
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
            if _is_first(seen, current, token_of, tag_of, states):
                break


@kernel
def best_segment_suffixes(
    opening, closing, lengths, spans, transitions, last, span_starts, span_lengths, reach, leave, out
):
    """leave[t, i] = max_j(transitions[i, j] + out[t+1, j])
    out[t, j] = opening[t, j] + max_k(lengths[k, j] + spans[.., j] + closing[t+k, j] + leave[t+k, j])"""
    tokens, size = opening.shape
    longest = lengths.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    for t in range(tokens - 1, -1, -1):
        for i in range(size):
            leave[t, i] = last[i] if t == tokens - 1 else -np.inf
            if t < tokens - 1:
                for j in range(size):
                    leave[t, i] = max(leave[t, i], transitions[(t + 1) * step, i, j] + out[t + 1, j])
        for j in range(size):
            n = span_starts[t]
            best = -np.inf
            for k in range(min(longest, tokens - t)):
                score = lengths[k, j] + closing[t + k, j] + leave[t + k, j]
                if n < span_starts[t + 1] and span_lengths[n] == k + 1:
                    score += spans[n, j]
                    n += 1
                if reach[t + k, j] <= t:
                    best = max(best, score)
            out[t, j] = opening[t, j] + best


@kernel
def best_first_segments(
    opening,
    closing,
    lengths,
    spans,
    transitions,
    first,
    last,
    span_starts,
    span_lengths,
    reach,
    events,
    following,
    scores,
    ends,
    offsets,
    max_nodes,
    path,
):
    """Best segmentation of one sequence of at least one token.

    opening ... reach: Scores of G states, and what a clamp leaves of them, as in ``kernels/semi_markov.py``.
    path (int32[T]): Receives the path of segments.
    The rest as in `best_first`; automata read one event per segment.
    RETURNS (int): 1 if it was found, 0 if there is none, -1 if there were too many prefixes.

    A prefix ends in front of the first token of a segment of a known state (place 2 t), or behind the last token of one (place
    2 t + 1): so it is followed by G others or by K, not by G · K.
    """
    tokens, size = opening.shape
    longest = lengths.shape[0]
    automata = offsets.shape[0] - 1
    step = 1 if transitions.shape[0] > 1 else 0
    leave, out = np.empty((tokens, size)), np.empty((tokens, size))
    best_segment_suffixes(
        opening, closing, lengths, spans, transitions, last, span_starts, span_lengths, reach, leave, out
    )
    bounds, reached = np.empty(max_nodes), np.empty(max_nodes)
    tag_of, place_of, parent = (
        np.empty(max_nodes, dtype=np.int32),
        np.empty(max_nodes, dtype=np.int32),
        np.empty(max_nodes, dtype=np.int32),
    )
    states = np.empty((max_nodes, automata), dtype=np.int16)
    heap = np.empty(max_nodes, dtype=np.int32)
    slots = 1
    while slots < 2 * max_nodes:
        slots *= 2
    seen = np.full(slots, -1, dtype=np.int32)
    nodes = queued = 0
    current = place = -1
    while True:
        t = (place + 1) // 2  # where a segment begins
        begins = place == 2 * t - 1
        span = span_starts[t]
        for c in range(size if begins else min(longest, tokens - t)):
            if nodes == max_nodes:
                return -1
            if begins:
                j = c
                score = first[j] if current < 0 else reached[current] + transitions[t * step, tag_of[current], j]
                rest = out[t, j]
            else:
                j = tag_of[current]
                score = reached[current] + opening[t, j] + lengths[c, j] + closing[t + c, j]
                if span < span_starts[t + 1] and span_lengths[span] == c + 1:
                    score += spans[span, j]
                    span += 1
                if reach[t + c, j] > t:
                    score = -np.inf
                rest = leave[t + c, j]
            if score == -np.inf or rest == -np.inf:
                continue
            event = events[size - 1 if current < 0 else tag_of[current], j]
            allowed = True
            for n in range(automata):
                state = 0 if current < 0 else states[current, n]
                to = following[offsets[n] + state, event] if begins else state
                if to < 0:
                    allowed = False
                    break
                if begins:
                    score += scores[offsets[n] + state, event]
                elif t + c == tokens - 1:
                    score += ends[offsets[n] + state]
                states[nodes, n] = to
            if not allowed or score == -np.inf:
                continue
            reached[nodes] = score
            bounds[nodes] = score + rest
            tag_of[nodes], parent[nodes] = j, current
            place_of[nodes] = 2 * t if begins else 2 * (t + c) + 1
            _push(heap, bounds, queued, nodes)
            queued += 1
            nodes += 1
        while True:
            if queued == 0:
                return 0
            current = _pop(heap, bounds, queued)
            queued -= 1
            place = place_of[current]
            if place == 2 * tokens - 1:
                path[:] = GOES_ON
                while current >= 0:
                    if place_of[current] % 2 == 0:
                        path[place_of[current] // 2] = tag_of[current]
                    current = parent[current]
                return 1
            if _is_first(seen, current, place_of, tag_of, states):
                break
