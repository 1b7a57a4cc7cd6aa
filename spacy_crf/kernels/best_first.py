"""Best-first search (A*) for the best labelling that a set of automata accepts, without building their product.

The bound of a prefix adds the best suffix that ignores the automata. Since automata never reward, the first complete labelling
taken from the queue is the best one. If the best labelling breaks few rules, the search expands few prefixes.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import GOES_ON, Floats
from . import helper, kernel
from .lattice import segment_score, suffixes


class EventAutomata(NamedTuple):
    """Automata stacked in one table; the states of each are numbered from 0. An automaton reads one event for each tag or
    segment."""

    events: NDArray[np.int32]  # [G, G] event of each tag after each tag; at the start the last row counts
    following: NDArray[np.int32]  # [Q, E]
    scores: Floats  # [Q, E] at most 0
    ends: Floats  # [Q]
    offsets: NDArray[np.int64]  # [N + 1]


class Prefixes(NamedTuple):
    """The prefixes that were reached, M at most."""

    reached: Floats  # [M] their scores
    tag_of: NDArray[np.int32]  # [M]
    place_of: NDArray[np.int32]  # [M] where they end
    parent: NDArray[np.int32]  # [M]
    states: NDArray[np.int16]  # [M, N] of the automata
    seen: NDArray[np.int32]  # [2^m] the prefixes that were taken from the queue, by their hash, -1 where there is room


@helper
def _make_prefixes(most, n_automata):
    slots = 1
    while slots < 2 * most:
        slots *= 2
    tag_of, place_of, parent = np.empty((3, most), dtype=np.int32)
    states, seen = np.empty((most, n_automata), dtype=np.int16), np.full(slots, -1, dtype=np.int32)
    return Prefixes(np.empty(most), tag_of, place_of, parent, states, seen)


@helper
def _take(queue, prefixes, last_place):
    """Take from the queue the best prefix that is complete or the first of its kind. RETURNS (int): Its number, -1 for none."""
    while len(queue) > 0:
        _, node = heappop(queue)
        if prefixes.place_of[node] == last_place or _is_first(prefixes, node):
            return node
    return -1


@helper
def _is_first(prefixes, node):
    """Note that a prefix was taken. Prefixes that end at one place in the same tag and automaton states are of one kind, and
    the first one taken is the best of its kind. RETURNS (bool): Whether it is the first of its kind."""
    _, tag_of, place_of, _, states, seen = prefixes
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
def best_first(log_potentials, automata, max_nodes, path):
    """Best labelling of one sequence of at least one token.

    log_potentials (log_space.LogPotentials), automata (EventAutomata)
    max_nodes (int): Prefixes to keep at most.
    path (int32[T]): Receives the path of segments.
    RETURNS (int): 1 if it was found, 0 if there is none, -1 if there were too many prefixes.

    A prefix ends in front of the first token of a segment of a known state (place 2 t), or behind the last token of one (place
    2 t + 1): so it is followed by G others or by K, not by G · K. Where all segments are single tokens it ends behind them.
    """
    tokens, size = log_potentials.opening.shape
    transitions, first, longest = log_potentials.transitions, log_potentials.first, len(log_potentials.lengths)
    step = 1 if transitions.shape[0] > 1 else 0
    rest = np.empty((2 * tokens, size))
    suffixes(log_potentials, rest)
    # All that a candidate needs is at hand here: handed to a function it took twice as long.
    events, following, scores, ends, offsets = automata
    prefixes = _make_prefixes(max_nodes, len(offsets) - 1)
    reached, tag_of, place_of, parent, states, _ = prefixes
    current = place = node = -1
    queue = [(0.0, node)]  # minus the bound of each prefix, and its number
    queue.pop()
    n_prefixes = 0
    while place < 2 * tokens - 1:
        t = (place + 1) // 2  # where a segment begins
        begins = place == 2 * t - 1
        before = len(events) - 1 if current < 0 else tag_of[current]
        for c in range(size if begins else min(longest, tokens - t)):
            j, end = (c, 2 * t) if begins else (before, 2 * (t + c) + 1)
            if begins and current < 0:
                score = first[j]
            elif begins:
                score = reached[current] + transitions[t * step, before, j]
            else:
                score = reached[current] + segment_score(log_potentials, t, c, j)
            if score == -np.inf or rest[end, j] == -np.inf:
                continue
            if begins and longest == 1:
                score, end = score + segment_score(log_potentials, t, 0, j), 2 * t + 1
            node = n_prefixes
            if node == max_nodes:
                return -1
            allowed = True
            for n in range(len(offsets) - 1):
                state = 0 if current < 0 else states[current, n]
                if begins:
                    score += scores[offsets[n] + state, events[before, j]]
                    state = following[offsets[n] + state, events[before, j]]
                    if state < 0:
                        allowed = False
                        break
                if end == 2 * tokens - 1:
                    score += ends[offsets[n] + state]
                states[node, n] = state
            if not allowed or score == -np.inf:
                continue
            reached[node], tag_of[node], place_of[node], parent[node] = score, j, end, current
            heappush(queue, (-score - rest[end, j], node))
            n_prefixes += 1
        current = _take(queue, prefixes, 2 * tokens - 1)
        if current < 0:
            return 0
        place = place_of[current]
    path[:] = GOES_ON
    while current >= 0:
        place = place_of[current]
        if longest == 1 or place % 2 == 0:
            path[place // 2] = tag_of[current]
        current = prefixes.parent[current]
    return 1
