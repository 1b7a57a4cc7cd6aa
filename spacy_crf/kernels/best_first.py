"""Best-first search (A*) for the best labelling that a set of automata accepts, without building their product.

A prefix of a labelling ends at a node of the lattice (`kernels.lattice`): in front of the first token of a segment of a known
state (row 2 t), or behind the last token of one (row 2 t + 1). So it is followed by S others or by K, not by S · K. Where all
segments are single tokens, prefixes end behind them. No labelling with a prefix scores more than

    bound(prefix) = score(prefix) + suffix[node]      the best suffix ignores the automata, which never reward

so the first complete labelling that is taken from the queue is the best one. If the best labelling breaks few rules, the search
extends few prefixes.
"""

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import GOES_ON, Floats
from . import helper, kernel
from .lattice import best_suffixes, segment_score
from .numerics import slot_of


class EventAutomata(NamedTuple):
    """A automata stacked in one table of Q states. Each automaton numbers its states from 0, and reads one event for each tag or
    segment."""

    events: NDArray[np.int32]  # [S + 1, S + 1] event of the second tag after the first; the last row serves the start
    following: NDArray[np.int32]  # [Q, E] next state after an event, -1 if the event is forbidden
    scores: Floats  # [Q, E] at most 0
    ends: Floats  # [Q] scores of ending in a state
    offsets: NDArray[np.int64]  # [A + 1] first state of each automaton


class Prefixes(NamedTuple):
    """The prefixes that were reached, M at most."""

    score: Floats  # [M]
    node: NDArray[np.int32]  # [M] row · S + state
    parent: NDArray[np.int32]  # [M] the prefix that was extended, -1 for none
    states: NDArray[np.int16]  # [M, A] of the automata
    extended: NDArray[np.int32]  # [2^m] the prefixes that were taken from the queue, by their hash, see `slot_of`


@helper
def _make_prefixes(most, n_automata):
    """Room for `most` prefixes (Prefixes)."""
    slots = 1
    # A power of two, at most half full
    while slots < 2 * most:
        slots *= 2
    node, parent = np.empty((2, most), dtype=np.int32)
    states = np.empty((most, n_automata), dtype=np.int16)
    return Prefixes(np.empty(most), node, parent, states, np.full(slots, -1, dtype=np.int32))


@helper
def _take(queue, prefixes, last_row):
    """Take the prefix with the highest bound from the queue. Of prefixes that end at one node with automata in equal states,
    only the first to be taken, which is the best, is returned. Complete labellings are all returned.

    last_row (int): First node of the last row.
    RETURNS (int): Number of the prefix, -1 for none.
    """
    while len(queue) > 0:
        _, m = heappop(queue)
        slot = slot_of(prefixes.extended, prefixes.node, prefixes.states, prefixes.node[m], prefixes.states[m])
        if prefixes.node[m] >= last_row or prefixes.extended[slot] < 0:
            prefixes.extended[slot] = m
            return m
    return -1


@kernel
def best_first(log_potentials, automata, max_prefixes, path):
    """Best labelling of one sequence of at least one token.

    log_potentials (log_space.LogPotentials): Scores of the sequence.
    automata (EventAutomata): The automata.
    max_prefixes (int): Prefixes to keep at most.
    path (int32[T]): Receives the path of segments.
    RETURNS (int): 1 if the best labelling was found, 0 if there is none, -1 if there were too many prefixes.
    """
    tokens, size = log_potentials.opening.shape
    transitions = log_potentials.transitions
    longest = len(log_potentials.lengths)
    step = 1 if transitions.shape[0] > 1 else 0
    last_row = 2 * tokens - 1
    suffix = np.empty((2 * tokens, size))
    best_suffixes(log_potentials, suffix)
    events, following, scores, ends, offsets = automata
    n_automata = len(offsets) - 1
    prefixes = _make_prefixes(max_prefixes, n_automata)
    m = row = current = -1
    # A list whose type numba infers from its first entry
    queue = [(0.0, m)]  # minus the bound of each prefix, and its number
    queue.pop()
    n_prefixes = 0
    # Extends the current prefix, and takes the next from the queue. The loop is one function: two took twice as long
    while row < last_row:
        t = (row + 1) // 2  # where a segment begins
        begins = row == 2 * t - 1
        before = len(events) - 1 if current < 0 else prefixes.node[current] % size
        for c in range(size if begins else min(longest, tokens - t)):
            if begins:  # with a segment of state c
                j = c
                end = 2 * t
                score = (
                    log_potentials.first[j]
                    if current < 0
                    else prefixes.score[current] + transitions[t * step, before, j]
                )
            else:  # the segment has c + 1 tokens
                j = before
                end = 2 * (t + c) + 1
                score = prefixes.score[current] + segment_score(log_potentials, t, c, j)
            if score == -np.inf or suffix[end, j] == -np.inf:
                continue
            if begins and longest == 1:
                score += segment_score(log_potentials, t, 0, j)
                end = 2 * t + 1
            m = n_prefixes
            if m == max_prefixes:
                return -1
            # score(prefix) = score(prefix before) + scores of the step and the segment + sum_a scores_a[state, event]
            for a in range(n_automata):
                state = 0 if current < 0 else prefixes.states[current, a]
                if begins:
                    score += scores[offsets[a] + state, events[before, j]]
                    state = following[offsets[a] + state, events[before, j]]
                    if state < 0:
                        score = -np.inf
                        break
                if end == last_row:
                    score += ends[offsets[a] + state]
                prefixes.states[m, a] = state
            if score == -np.inf:
                continue
            prefixes.score[m] = score
            prefixes.node[m] = end * size + j
            prefixes.parent[m] = current
            heappush(queue, (-score - suffix[end, j], m))
            n_prefixes += 1
        current = _take(queue, prefixes, last_row * size)
        if current < 0:
            return 0
        row = prefixes.node[current] // size
    # Back along the parents: a prefix at an even row, or behind a single token, names a state
    path[:] = GOES_ON
    while current >= 0:
        row, state = divmod(prefixes.node[current], size)
        if longest == 1 or row % 2 == 0:
            path[row // 2] = state
        current = prefixes.parent[current]
    return 1
