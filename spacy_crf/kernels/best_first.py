"""Best-first search (A*) for the best labelling that a set of automata accepts, without building their product: of chains, and
of chains of segments.

What a prefix can still reach is bounded by the best suffix that ignores the automata; since these never reward, the first
complete labelling that is taken from the queue is the best. Where the rules are broken by little, few prefixes are looked at.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import GOES_ON, Floats
from . import helper, kernel


class Automata(NamedTuple):
    """One below the other; states count from the first of their automaton. They read one event for each tag, or segment."""

    events: NDArray[np.int32]  # [G, G] event of each tag after each tag; at the start the last row counts
    following: NDArray[np.int32]  # [Q, E]
    scores: Floats  # [Q, E] at most 0
    ends: Floats  # [Q]
    offsets: NDArray[np.int64]  # [N + 1]


class Prefixes(NamedTuple):
    """Those that were reached, M at most, and the queue of those that were not looked at yet."""

    bounds: Floats  # [M] of what they can still reach
    reached: Floats  # [M]
    tag_of: NDArray[np.int32]  # [M]
    place_of: NDArray[np.int32]  # [M] where they end
    parent: NDArray[np.int32]  # [M]
    states: NDArray[np.int16]  # [M, N] of the automata
    heap: NDArray[np.int32]  # [M] the one with the largest bound on top
    seen: NDArray[np.int32]  # [2^m] those that were taken, by their hash, -1 where there is room
    counts: NDArray[np.int64]  # how many there are, and how many are in the queue


@helper
def _make_prefixes(most, n_automata):
    slots = 1
    while slots < 2 * most:
        slots *= 2
    return Prefixes(
        np.empty(most),
        np.empty(most),
        np.empty(most, dtype=np.int32),
        np.empty(most, dtype=np.int32),
        np.empty(most, dtype=np.int32),
        np.empty((most, n_automata), dtype=np.int16),
        np.empty(most, dtype=np.int32),
        np.full(slots, -1, dtype=np.int32),
        np.zeros(2, dtype=np.int64),
    )


@helper
def _extend(prefixes, automata, before, tag, place, score, rest, reads, is_end):
    """Puts a prefix into the queue, if the automata accept it.

    before (int): The prefix it extends, -1 for none.
    score, rest (float): Of the prefix without the automata, and the best that can follow.
    reads (bool): Whether the automata read an event here. is_end (bool): Whether it is complete.
    """
    if score == -np.inf or rest == -np.inf:
        return
    events, following, scores, ends, offsets = automata
    node = prefixes.counts[0]
    event = events[len(events) - 1 if before < 0 else prefixes.tag_of[before], tag]
    for n in range(len(offsets) - 1):
        at = offsets[n] + (0 if before < 0 else prefixes.states[before, n])
        if reads:
            score += scores[at, event]
            if following[at, event] < 0:
                return
            at = offsets[n] + following[at, event]
        if is_end:
            score += ends[at]
        prefixes.states[node, n] = at - offsets[n]
    if score == -np.inf:
        return
    prefixes.reached[node], prefixes.bounds[node] = score, score + rest
    prefixes.tag_of[node], prefixes.place_of[node], prefixes.parent[node] = tag, place, before
    heap, bounds, n = prefixes.heap, prefixes.bounds, prefixes.counts[1]
    heap[n] = node
    while n > 0 and bounds[heap[(n - 1) // 2]] < bounds[heap[n]]:
        heap[(n - 1) // 2], heap[n] = heap[n], heap[(n - 1) // 2]
        n = (n - 1) // 2
    prefixes.counts[0] += 1
    prefixes.counts[1] += 1


@helper
def _take(prefixes, last_place):
    """The best prefix in the queue that is the first of its kind or complete, -1 if there is none."""
    while prefixes.counts[1] > 0:
        prefixes.counts[1] -= 1
        node = _pop(prefixes.heap, prefixes.bounds, prefixes.counts[1])
        if prefixes.place_of[node] == last_place or _is_first(prefixes, node):
            return node
    return -1


@helper
def _pop(heap, bounds, n):
    """Take the top from the heap, of which n nodes are left."""
    top = heap[0]
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
def _is_first(prefixes, node):
    """Notes that a prefix was taken. Those that end at one place in the same tag and states are one, and the first that is
    taken is the best of them. RETURNS (bool): Whether it is the first of its kind."""
    _, _, tag_of, place_of, _, states, _, seen, _ = prefixes
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
                same &= states[other, n] == states[node, n]
            if same:
                return False
        slot = (slot + 1) & (slots - 1)
    seen[slot] = node
    return True


@kernel
def best_first(scores, automata, max_nodes, path):
    """Best labelling of one sequence of at least one token.

    scores (linear_chain.Scores), automata (Automata)
    max_nodes (int): Prefixes to keep at most.
    path (int32[T]): Receives the tags.
    RETURNS (int): 1 if it was found, 0 if there is none, -1 if there were too many prefixes.
    """
    emissions, transitions, first, last, _ = scores
    tokens, size = emissions.shape
    step = 1 if transitions.shape[0] > 1 else 0
    beta = np.empty((tokens, size))
    # beta[t, i] = max_j(transitions[i, j] + emissions[t+1, j] + beta[t+1, j])
    beta[tokens - 1] = last
    for t in range(tokens - 1, 0, -1):
        for i in range(size):
            best = -np.inf
            for j in range(size):
                best = max(best, transitions[t * step, i, j] + emissions[t, j] + beta[t, j])
            beta[t - 1, i] = best
    prefixes = _make_prefixes(max_nodes, len(automata.offsets) - 1)
    reached, tag_of, place_of = prefixes.reached, prefixes.tag_of, prefixes.place_of
    current = -1
    while True:
        t = 0 if current < 0 else place_of[current] + 1
        for j in range(size):
            if current < 0:
                score = first[j] + emissions[0, j]
            else:
                score = reached[current] + transitions[t * step, tag_of[current], j] + emissions[t, j]
            if score > -np.inf and beta[t, j] > -np.inf and prefixes.counts[0] == max_nodes:
                return -1
            _extend(prefixes, automata, current, j, t, score, beta[t, j], True, t == tokens - 1)
        current = _take(prefixes, tokens - 1)
        if current < 0:
            return 0
        if place_of[current] == tokens - 1:
            break
    while current >= 0:
        path[place_of[current]] = tag_of[current]
        current = prefixes.parent[current]
    return 1


@kernel
def best_segment_suffixes(folded, leave, out):
    """leave[t, i] = max_j(transitions[i, j] + out[t+1, j])
    out[t, j] = opening[t, j] + max_k(lengths[k, j] + spans[.., j] + closing[t+k, j] + leave[t+k, j])"""
    opening, closing, lengths, spans, transitions, _, last, span_of, reach, _ = folded
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
            best = -np.inf
            for k in range(min(longest, tokens - t)):
                score = lengths[k, j] + closing[t + k, j] + leave[t + k, j]
                if span_of[t, k] >= 0:
                    score += spans[span_of[t, k], j]
                if reach[t + k, j] <= t:
                    best = max(best, score)
            out[t, j] = opening[t, j] + best


@kernel
def best_first_segments(folded, automata, max_nodes, path):
    """Best segmentation of one sequence of at least one token.

    folded (semi_markov.Folded)
    path (int32[T]): Receives the path of segments.
    The rest as in `best_first`.
    RETURNS (int): 1 if it was found, 0 if there is none, -1 if there were too many prefixes.

    A prefix ends in front of the first token of a segment of a known state (place 2 t), or behind the last token of one (place
    2 t + 1): so it is followed by G others or by K, not by G · K.
    """
    opening, closing, lengths, spans, transitions, first, _, span_of, reach, _ = folded
    tokens, size = opening.shape
    step = 1 if transitions.shape[0] > 1 else 0
    leave, out = np.empty((tokens, size)), np.empty((tokens, size))
    best_segment_suffixes(folded, leave, out)
    prefixes = _make_prefixes(max_nodes, len(automata.offsets) - 1)
    reached, tag_of, place_of = prefixes.reached, prefixes.tag_of, prefixes.place_of
    current = place = -1
    while place < 2 * tokens - 1:
        t = (place + 1) // 2  # where a segment begins
        begins = place == 2 * t - 1
        for c in range(size if begins else min(lengths.shape[0], tokens - t)):
            if prefixes.counts[0] == max_nodes:
                return -1
            if begins:
                score = first[c] if current < 0 else reached[current] + transitions[t * step, tag_of[current], c]
                _extend(prefixes, automata, current, c, 2 * t, score, out[t, c], True, False)
                continue
            j, end = tag_of[current], t + c
            if reach[end, j] <= t:
                score = reached[current] + opening[t, j] + lengths[c, j] + closing[end, j]
                if span_of[t, c] >= 0:
                    score += spans[span_of[t, c], j]
                _extend(prefixes, automata, current, j, 2 * end + 1, score, leave[end, j], False, end == tokens - 1)
        current = _take(prefixes, 2 * tokens - 1)
        if current < 0:
            return 0
        place = place_of[current]
    path[:] = GOES_ON
    while current >= 0:
        if place_of[current] % 2 == 0:
            path[place_of[current] // 2] = tag_of[current]
        current = prefixes.parent[current]
    return 1
