"""Labellings that automata accept, in a lattice (`kernels.lattice`): an upper bound by dual decomposition, and a search
among the labellings that the bound does not rule out.

Each automaton reads the steps of its own copy of the labelling, and prices on what it reads pay for where the copies
differ. With prices u, every labelling y that all automata accept has

    score(y) + sum_a score_a(y)  <=  max_y [score(y) + sum_a u_a(y)]  +  sum_a max_z [score_a(z) - u_a(z)]

where every maximum is one recursion. `ascend` moves the prices to where the bound is low (subgradients: Rush & Collins
2012), and the recursions bound what any prefix can still reach; `search` keeps the best prefixes at every place and leaves
out what is worth no more than a labelling that is known.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel

_FIRST, _NONE = np.int32(0), np.int32(-1)  # for a literal numba compiles a helper anew


class KindAutomata(NamedTuple):
    """Automata that read kinds of events. Kind 0 leaves an automaton in its state at no cost. Scores are at most 0."""

    # Automaton a in state q, after kind c: at tables[a] + q * widths[a] + c; -1 is forbidden
    following: NDArray[np.int32]
    scores: Floats  # in the same order
    last: Floats  # in the order of automata and their states
    tables: NDArray[np.int64]  # [A]
    widths: NDArray[np.int64]  # [A] kinds
    states: NDArray[np.int64]  # [A + 1] first state of each automaton


class Slots(NamedTuple):
    """The events of automata: each time at which an automaton may read a kind other than 0 is a row, each such kind a slot."""

    rows: NDArray[np.int64]  # [A + 1] first row of each automaton
    may_rest: NDArray[np.bool_]  # [R] whether kind 0 is possible too
    starts: NDArray[np.int64]  # [R + 1] the slots of a row
    kind: NDArray[np.int32]  # [Z]
    automaton: NDArray[np.int32]  # [Z]
    time: NDArray[np.int32]  # [R]
    row_at: NDArray[np.int32]  # [A, times + 1] the first row of an automaton that is not before a time
    # [A + 1] where its suffixes stand: a row of states for each of its rows, and one for the end
    bounds: NDArray[np.int64]
    of_step: NDArray[np.int32]  # the slots of each step
    step_starts: NDArray[np.int64]  # [N + 1]


@kernel
def make_slots(steps, kinds, states, rests):
    """The slots of automata in a part of a lattice.

    kinds (int32[A, N]): The kind of each step for each automaton.
    states (int64[A + 1]): First state of each automaton.
    rests (bool): Whether a labelling may have no step at a time.
    """
    n_automata, n_steps = kinds.shape
    times = steps.time[-1] + 1
    step_starts = np.zeros(n_steps + 1, dtype=np.int64)
    for a in range(n_automata):
        for e in range(n_steps):
            step_starts[e + 1] += kinds[a, e] != 0
    step_starts = np.cumsum(step_starts)
    most = step_starts[-1]
    filled = step_starts[:-1].copy()
    of_step = np.empty(most, dtype=np.int32)
    kind, automaton, time = np.empty((3, most), dtype=np.int32)
    starts = np.zeros(most + 1, dtype=np.int64)
    may_rest = np.zeros(most, dtype=np.bool_)
    rows, bounds = np.zeros((2, n_automata + 1), dtype=np.int64)
    row_at = np.empty((n_automata, times + 1), dtype=np.int32)
    n_rows = n_slots = 0
    for a in range(n_automata):
        e = 0
        at = 0
        while e < n_steps:
            now = steps.time[steps.source[e]]
            first, rest = n_slots, rests
            while e < n_steps and steps.time[steps.source[e]] == now:
                c = kinds[a, e]
                if c == 0:
                    rest = True
                else:
                    z = first
                    while z < n_slots and kind[z] != c:
                        z += 1
                    if z == n_slots:
                        kind[z], automaton[z] = c, a
                        n_slots += 1
                    of_step[filled[e]] = z
                    filled[e] += 1
                e += 1
            if n_slots > first:
                row_at[a, at : now + 1] = n_rows
                at = now + 1
                time[n_rows], may_rest[n_rows] = now, rest
                n_rows += 1
                starts[n_rows] = n_slots
        row_at[a, at:] = n_rows
        rows[a + 1] = n_rows
        bounds[a + 1] = bounds[a] + (n_rows - rows[a] + 1) * (states[a + 1] - states[a])
    return Slots(
        rows,
        may_rest[:n_rows],
        starts[: n_rows + 1],
        kind[:n_slots],
        automaton[:n_slots],
        time[:n_rows],
        row_at,
        bounds,
        of_step,
        step_starts,
    )


@kernel
def first_prices(steps, kinds, slots, order, prices):
    """Initial prices. They cancel what a labelling gains by the steps that automata read, so the automata choose among these
    steps. They are optimal if the worth of a choice at one time does not depend on the choices at other times. One automaton
    pays for each step.

    kinds (int32[A, N]): The kind of each step for each automaton.
    order (int64[A]): Automata, the first ones before the others.
    prices (float64[Z]): Receives them.
    """
    n_places, n_steps = len(steps.time), len(steps.source)
    prefix, rest = np.full(n_places, -np.inf), np.full(n_places, -np.inf)
    prefix[0] = rest[-1] = 0.0
    for e in range(n_steps):
        prefix[steps.target[e]] = max(prefix[steps.target[e]], prefix[steps.source[e]] + steps.scores[e])
    for e in range(n_steps - 1, -1, -1):
        rest[steps.source[e]] = max(rest[steps.source[e]], steps.scores[e] + rest[steps.target[e]])
    prices[:] = -np.inf
    is_paid = np.zeros(n_steps, dtype=np.bool_)
    without = np.full(steps.time[-1] + 1, -np.inf)
    for a in order:
        without[:] = -np.inf
        for e in range(n_steps):
            if kinds[a, e] == 0:
                time = steps.time[steps.source[e]]
                without[time] = max(without[time], prefix[steps.source[e]] + steps.scores[e] + rest[steps.target[e]])
        for e in range(n_steps):
            if kinds[a, e] != 0 and not is_paid[e]:
                time = steps.time[steps.source[e]]
                gain = prefix[steps.source[e]] + steps.scores[e] + rest[steps.target[e]] - without[time]
                if 0.0 < gain < np.inf:
                    for n in range(slots.step_starts[e], slots.step_starts[e + 1]):
                        z = slots.of_step[n]
                        if slots.automaton[z] == a:
                            prices[z] = max(prices[z], gain)
        for e in range(n_steps):
            for n in range(slots.step_starts[e], slots.step_starts[e + 1]):
                z = slots.of_step[n]
                is_paid[e] |= slots.automaton[z] == a and prices[z] > -np.inf
    for z in range(len(prices)):
        prices[z] = -prices[z] if prices[z] > -np.inf else 0.0


@kernel
def bound(steps, automata, slots, prices, rest, suffixes):
    """Compute the best score that can follow each place and each state of an automaton, under prices.

    prices (float64[Z])
    rest (float64[V]): Receives the score for each place, plus the prices of the slots used.
    suffixes (float64[bounds[-1]]): Receives the score for each row and state of each automaton, minus the prices.
    RETURNS (float64): An upper bound on the score of every labelling.
    """
    rest[:] = -np.inf
    rest[-1] = 0.0
    for e in range(len(steps.source) - 1, -1, -1):
        score = steps.scores[e] + rest[steps.target[e]]
        for n in range(slots.step_starts[e], slots.step_starts[e + 1]):
            score += prices[slots.of_step[n]]
        rest[steps.source[e]] = max(rest[steps.source[e]], score)
    total = rest[0]
    for a in range(len(automata.tables)):
        size, table, width = automata.states[a + 1] - automata.states[a], automata.tables[a], automata.widths[a]
        at = slots.bounds[a + 1] - size
        suffixes[at : at + size] = automata.last[automata.states[a] : automata.states[a + 1]]
        for r in range(slots.rows[a + 1] - 1, slots.rows[a] - 1, -1):
            for q in range(size):
                best = suffixes[at + q] if slots.may_rest[r] else -np.inf
                for z in range(slots.starts[r], slots.starts[r + 1]):
                    x = table + q * width + slots.kind[z]
                    if automata.following[x] >= 0:
                        best = max(best, automata.scores[x] - prices[z] + suffixes[at + automata.following[x]])
                suffixes[at - size + q] = best
            at -= size
        total += suffixes[slots.bounds[a]]
    return total


@kernel
def bound_automaton(following, scores, last, prices):
    """The part of one automaton in an upper bound, where kinds have prices wherever they may happen.

    following (int32[Q, C]), scores (float64[Q, C]), last (float64[Q])
    prices (float64[n, C]): inf for what is not possible.
    """
    behind, now = last.copy(), np.empty(len(last))
    for t in range(len(prices) - 1, -1, -1):
        for q in range(len(last)):
            now[q] = -np.inf
            for c in range(following.shape[1]):
                if following[q, c] >= 0:
                    now[q] = max(now[q], scores[q, c] - prices[t, c] + behind[following[q, c]])
        behind[:] = now
    return behind[0]


class Climb(NamedTuple):
    """State of an ascent."""

    values: Floats  # [4] the lowest bound, the score of the best labelling known, the rate, and steps without a gain
    prices: Floats  # [Z]
    best_prices: Floats  # [Z] of the lowest bound
    best_path: NDArray[np.int32]  # [V] the steps of the best labelling known
    length: NDArray[np.int64]  # [1] number of these steps


@helper
def _follow(steps, automata, slots, prices, rest, states, path, uses):
    """The best labelling under prices, and which slots it uses. RETURNS: Its score, including the scores of the automata, and
    its length."""
    states[:] = 0
    total, place, length = 0.0, 0, 0
    while place < len(rest) - 1:
        best, taken = -np.inf, -1
        for e in range(steps.starts[place], steps.starts[place + 1]):
            score = steps.scores[e] + rest[steps.target[e]]
            for n in range(slots.step_starts[e], slots.step_starts[e + 1]):
                score += prices[slots.of_step[n]]
            if score > best:
                best, taken = score, e
        total += steps.scores[taken]
        for n in range(slots.step_starts[taken], slots.step_starts[taken + 1]):
            z = slots.of_step[n]
            uses[z] += 1
            a = slots.automaton[z]
            if states[a] >= 0:
                x = automata.tables[a] + states[a] * automata.widths[a] + slots.kind[z]
                states[a] = automata.following[x]
                total += automata.scores[x]
        path[length] = taken
        length += 1
        place = steps.target[taken]
    for a in range(len(states)):
        total = total + automata.last[automata.states[a] + states[a]] if states[a] >= 0 else -np.inf
    return total, length


@helper
def _follow_automata(automata, slots, prices, suffixes, uses):
    """Subtract from `uses` the slots that the automata would choose under the prices."""
    for a in range(len(automata.tables)):
        size, q, at = automata.states[a + 1] - automata.states[a], 0, slots.bounds[a]
        for r in range(slots.rows[a], slots.rows[a + 1]):
            at += size
            best, taken, to = suffixes[at + q] if slots.may_rest[r] else -np.inf, -1, q
            for z in range(slots.starts[r], slots.starts[r + 1]):
                x = automata.tables[a] + q * automata.widths[a] + slots.kind[z]
                if automata.following[x] >= 0:
                    score = automata.scores[x] - prices[z] + suffixes[at + automata.following[x]]
                    if score > best or (score == best and uses[z] > 0):  # what the labelling has, if it is as good
                        best, taken, to = score, z, automata.following[x]
            if taken >= 0:
                uses[taken] -= 1
            q = to


@kernel
def ascend(steps, automata, slots, climb, rest, suffixes, iterations):
    """Lower the upper bound by subgradient steps on the prices.

    climb (Climb): State of the ascent, which is updated. rest, suffixes: Work space, see `bound`.
    RETURNS (int): Number of iterations. It is smaller than `iterations` if a labelling reaches the bound, or if there is none.
    """
    values, prices, best_prices, best_path, length = climb
    uses = np.zeros(len(prices), dtype=np.int64)
    path, states = np.empty_like(best_path), np.zeros(len(automata.tables), dtype=np.int64)
    for n in range(iterations):
        total = bound(steps, automata, slots, prices, rest, suffixes)
        if total < values[0] - 1e-9:
            values[0], values[3] = total, 0.0
            best_prices[:] = prices
        else:
            values[3] += 1.0
            if values[3] > 8.0:
                values[2], values[3] = 0.7 * values[2], 0.0
        if total == -np.inf:
            return n + 1
        uses[:] = 0
        score, taken = _follow(steps, automata, slots, prices, rest, states, path, uses)
        if score > values[1]:
            values[1], length[0] = score, taken
            best_path[:] = path
        if values[1] > -np.inf and values[0] <= values[1] + 1e-9 * (1.0 + abs(values[1])):
            return n + 1
        _follow_automata(automata, slots, prices, suffixes, uses)
        differing = 0
        for z in range(len(uses)):
            differing += uses[z] != 0
        if differing == 0:
            return n + 1
        # Polyak's step to the labelling that is known, or as if a good one was so far away
        distance = total - values[1] if values[1] > -np.inf else 2.0 * differing + total - values[0]
        size = values[2] * distance / differing
        for z in range(len(uses)):
            prices[z] -= size * uses[z]
    return iterations


class PrefixTable(NamedTuple):
    """The prefixes that the search keeps, M at most."""

    score: Floats  # [M] score, including the scores of the automata
    worth: Floats  # [M] score plus a bound on what may follow
    parent: NDArray[np.int32]  # [M]
    step: NDArray[np.int32]  # [M]
    place: NDArray[np.int32]  # [M]
    beside: NDArray[np.int32]  # [M] another prefix at the same place, -1 for none
    states: NDArray[np.int32]  # [M, A]
    latest: NDArray[np.int32]  # [V] a prefix at each place, -1 for none
    free: NDArray[np.int32]  # [M] unused entries
    known: NDArray[np.int32]  # [2^m] prefixes at later places, by their hash, -1 where there is room
    counts: NDArray[np.int64]  # number of unused entries, number of hashes in use, and the last place that has a prefix


@helper
def _make_prefixes(most, n_automata, n_places):
    hashes = 64
    while hashes < 4 * most:
        hashes *= 2
    score, worth = np.empty((2, most))
    parent, step, place, beside = np.empty((4, most), dtype=np.int32)
    states, free = np.empty((most, n_automata), dtype=np.int32), np.arange(most - 1, -1, -1).astype(np.int32)
    latest, known = np.full(n_places, -1, dtype=np.int32), np.full(hashes, -1, dtype=np.int32)
    return PrefixTable(score, worth, parent, step, place, beside, states, latest, free, known, np.array([most, 0, 0]))


@helper
def _slot_of(prefixes, place, states):
    """The slot of a prefix in the hash table, or the free slot for it."""
    mask = len(prefixes.known) - 1
    code = np.int64(place)
    for state in states:
        code = code * 1000003 + state
    slot = (code ^ (code >> 29)) & mask
    while prefixes.known[slot] >= 0:
        other = prefixes.known[slot]
        if prefixes.place[other] == place:
            same = True
            for a in range(len(states)):
                same &= prefixes.states[other, a] == states[a]
            if same:
                break
        slot = (slot + 1) & mask
    return slot


@helper
def _hash_again(prefixes, place):
    """Drop the prefixes that end at this place or before it from the hash table."""
    prefixes.known[:] = -1
    prefixes.counts[1] = 0
    for later in range(place + 1, prefixes.counts[2] + 1):
        m = prefixes.latest[later]
        while m >= 0:
            prefixes.known[_slot_of(prefixes, later, prefixes.states[m])] = m
            prefixes.counts[1] += 1
            m = prefixes.beside[m]


@helper
def _put(prefixes, place, states, score, worth, parent, step):
    """Keep a prefix if it is the best one of its place and states. RETURNS (bool): False if there is no room."""
    slot = _slot_of(prefixes, place, states)
    m = prefixes.known[slot]
    if m < 0:
        if prefixes.counts[0] == 0:
            return False
        prefixes.counts[0] -= 1
        m = prefixes.free[prefixes.counts[0]]
        prefixes.known[slot] = m
        prefixes.place[m], prefixes.states[m] = place, states
        prefixes.beside[m], prefixes.latest[place] = prefixes.latest[place], m
        prefixes.counts[1] += 1
        prefixes.counts[2] = max(prefixes.counts[2], place)
    elif prefixes.score[m] >= score:
        return True
    prefixes.score[m], prefixes.worth[m], prefixes.parent[m], prefixes.step[m] = score, worth, parent, step
    return True


@helper
def _choose(prefixes, place, width):
    """Keep only the best prefixes at a place. RETURNS (float): The worth of the best prefix that is dropped."""
    count, m = 0, prefixes.latest[place]
    while m >= 0:
        count, m = count + 1, prefixes.beside[m]
    if count <= width:
        return -np.inf
    worths, m = np.empty(count), prefixes.latest[place]
    for n in range(count):
        worths[n], m = prefixes.worth[m], prefixes.beside[m]
    worths.sort()
    least, left_out = worths[count - width], -np.inf
    m, kept = prefixes.latest[place], -1
    while m >= 0:
        behind = prefixes.beside[m]
        if prefixes.worth[m] >= least:
            prefixes.beside[m], kept = kept, m
        else:
            left_out = max(left_out, prefixes.worth[m])
            prefixes.free[prefixes.counts[0]] = m
            prefixes.counts[0] += 1
        m = behind
    prefixes.latest[place] = kept
    return left_out


@kernel
def search(steps, automata, slots, rest, suffixes, width, floor, most, path):
    """The best labelling that automata accept, among those of the best prefixes at each place.

    rest, suffixes: From `bound`.
    width (int): Most prefixes at each place. most (int): Most prefixes in all.
    floor (float): Score of a known labelling; the search looks only for better ones.
    path (int32[V]): Receives the steps.
    RETURNS (float, int, float, int): Score and length of the labelling, -inf and 0 if there is none; the worth of the best
        prefix that was left out, -inf for none; and the number of steps tried.
    """
    n_automata, last = len(automata.tables), len(rest) - 1
    prefixes = _make_prefixes(most, n_automata, last + 1)
    now = np.zeros(n_automata, dtype=np.int32)
    floor += 1e-9 * (1.0 + abs(floor)) if floor > -np.inf else 0.0
    _put(prefixes, _FIRST, now, 0.0, np.inf, _NONE, np.int64(_NONE))
    left_out, tried = -np.inf, 0
    for v in range(last):
        left_out = max(left_out, _choose(prefixes, v, width))
        if 2 * prefixes.counts[1] > len(prefixes.known):
            _hash_again(prefixes, v)
        m = prefixes.latest[v]
        while m >= 0:
            tried += steps.starts[v + 1] - steps.starts[v]
            for e in range(steps.starts[v], steps.starts[v + 1]):
                w = steps.target[e]
                score = prefixes.score[m] + steps.scores[e]
                if score + rest[w] == -np.inf:
                    continue
                now[:] = prefixes.states[m]
                for x in range(slots.step_starts[e], slots.step_starts[e + 1]):
                    z = slots.of_step[x]
                    a = slots.automaton[z]
                    at = automata.tables[a] + now[a] * automata.widths[a] + slots.kind[z]
                    now[a] = automata.following[at]
                    score += automata.scores[at]
                    if now[a] < 0:
                        score = -np.inf
                        break
                if score == -np.inf:
                    continue
                worth = score + rest[w]
                for a in range(n_automata):
                    size = automata.states[a + 1] - automata.states[a]
                    row = slots.row_at[a, steps.time[w]] - slots.rows[a]
                    worth += suffixes[slots.bounds[a] + row * size + now[a]]
                if worth > floor and not _put(prefixes, w, now, score, worth, m, e):
                    left_out = max(left_out, worth)
            m = prefixes.beside[m]
    best, found, m = -np.inf, -1, prefixes.latest[last]
    while m >= 0:
        if prefixes.worth[m] > best:
            best, found = prefixes.worth[m], m
        m = prefixes.beside[m]
    length, m = 0, found
    while m >= 0 and prefixes.step[m] >= 0:
        length, m = length + 1, prefixes.parent[m]
    m = found
    for x in range(length - 1, -1, -1):
        path[x], m = prefixes.step[m], prefixes.parent[m]
    return best, length, left_out, tried
