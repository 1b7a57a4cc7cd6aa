"""Dual decomposition: an upper bound on the score of all labellings that automata accept, in a lattice (`kernels.lattice`).

Each automaton reads a copy of the labelling. Where the copies must agree there is a Lagrange multiplier, a dual variable: one for
each automaton, time, and kind of events that the automaton distinguishes at that time. With dual variables u, every labelling y
that all automata accept has

    score(y) + sum_a score_a(y)  <=  max_y [score(y) + sum_a u_a(y)]  +  sum_a max_z [score_a(z) - u_a(z)]  =  bound(u)

where u_a(y) is the sum of the variables of the events of y, and every maximum is one recursion. The bound is convex in u; its
subgradient is the difference between the events of the best y and those of the best z (Rush & Collins 2012, section 5).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel

PATIENCE = 8.0  # steps that do not lower the bound, after which steps become shorter
SHORTER = 0.7  # by this factor
ROUNDING = 1e-9  # a bound and a score are equal if they differ by less, relative to the score


class KindAutomata(NamedTuple):
    """Automata that read kinds of events. Kind 0 leaves an automaton in its state at no cost. Scores are at most 0."""

    # Automaton a in state q, after kind c: at tables[a] + q * widths[a] + c; -1 is forbidden
    following: NDArray[np.int32]
    scores: Floats  # in the same order
    last: Floats  # in the order of automata and their states
    tables: NDArray[np.int64]  # [A]
    widths: NDArray[np.int64]  # [A] kinds
    states: NDArray[np.int64]  # [A + 1] first state of each automaton


class DualVariables(NamedTuple):
    """The Z dual variables. A reading is a time at which an automaton may read kinds other than 0; each of these kinds has a
    variable."""

    readings: NDArray[np.int64]  # [A + 1] first reading of each automaton
    may_skip: NDArray[np.bool_]  # [R] whether kind 0 is possible too
    starts: NDArray[np.int64]  # [R + 1] first variable of each reading
    kind: NDArray[np.int32]  # [Z] kind of events of each variable
    automaton: NDArray[np.int32]  # [Z]
    time: NDArray[np.int32]  # [R] time of each reading
    reading_at: NDArray[np.int32]  # [A, times + 1] the first reading of an automaton that is not before a time
    suffixes: NDArray[np.int64]  # [A + 1] first suffix: one for each state at each reading, and at the end
    of_arc: NDArray[np.int32]  # the variables of each arc
    arc_starts: NDArray[np.int64]  # [N + 1] the variables of arc e are of_arc[arc_starts[e]:arc_starts[e + 1]]


@kernel
def make_variables(arcs, kinds, states, may_skip_times):
    """Make the dual variables of automata in a part of a lattice (DualVariables).

    kinds (int32[A, N]): The kind of each arc for each automaton.
    states (int64[A + 1]): First state of each automaton.
    may_skip_times (bool): Whether a labelling may have no arc at a time.
    """
    n_automata, n_arcs = kinds.shape
    times = arcs.time[-1] + 1
    arc_starts = np.zeros(n_arcs + 1, dtype=np.int64)
    for a in range(n_automata):
        for e in range(n_arcs):
            arc_starts[e + 1] += kinds[a, e] != 0
    arc_starts = np.cumsum(arc_starts)
    filled = arc_starts[:-1].copy()
    most = arc_starts[-1]
    of_arc = np.empty(most, dtype=np.int32)
    kind, automaton, time = np.empty((3, most), dtype=np.int32)
    starts = np.zeros(most + 1, dtype=np.int64)
    may_skip = np.zeros(most, dtype=np.bool_)
    readings, suffixes = np.zeros((2, n_automata + 1), dtype=np.int64)
    reading_at = np.empty((n_automata, times + 1), dtype=np.int32)
    r = z = 0
    for a in range(n_automata):
        e = 0
        at = 0
        while e < n_arcs:
            # The arcs of one time, which are neighbours; each kind of event among them has a variable
            now = arcs.time[arcs.source[e]]
            first = z
            skips = may_skip_times
            while e < n_arcs and arcs.time[arcs.source[e]] == now:
                if kinds[a, e] == 0:
                    skips = True
                else:
                    known = first
                    while known < z and kind[known] != kinds[a, e]:
                        known += 1
                    if known == z:
                        kind[z] = kinds[a, e]
                        automaton[z] = a
                        z += 1
                    of_arc[filled[e]] = known
                    filled[e] += 1
                e += 1
            if z > first:
                reading_at[a, at : now + 1] = r
                at = now + 1
                time[r] = now
                may_skip[r] = skips
                r += 1
                starts[r] = z
        reading_at[a, at:] = r
        readings[a + 1] = r
        suffixes[a + 1] = suffixes[a] + (r - readings[a] + 1) * (states[a + 1] - states[a])
    return DualVariables(
        readings,
        may_skip[:r],
        starts[: r + 1],
        kind[:z],
        automaton[:z],
        time[:r],
        reading_at,
        suffixes,
        of_arc,
        arc_starts,
    )


@kernel
def first_duals(arcs, kinds, variables, order, duals):
    """Find the first values of the dual variables. They cancel what a labelling gains by the events that automata read, and leave
    the choice among these events to the automata. They are optimal if what an event gains does not depend on other times.

    kinds (int32[A, N]): The kind of each arc for each automaton.
    order (int64[A]): The order of the automata: only the first automaton that reads an arc cancels its gain.
    duals (float64[Z]): Receives the values.
    """
    n_nodes = len(arcs.time)
    n_arcs = len(arcs.source)
    prefix = np.full(n_nodes, -np.inf)
    suffix = np.full(n_nodes, -np.inf)
    prefix[0] = suffix[-1] = 0.0
    # max_marginals[e] = prefix[source] + score + suffix[target]
    for e in range(n_arcs):
        prefix[arcs.target[e]] = max(prefix[arcs.target[e]], prefix[arcs.source[e]] + arcs.scores[e])
    for e in range(n_arcs - 1, -1, -1):
        suffix[arcs.source[e]] = max(suffix[arcs.source[e]], arcs.scores[e] + suffix[arcs.target[e]])
    max_marginals = prefix[arcs.source] + arcs.scores + suffix[arcs.target]  # [N]
    time = arcs.time[arcs.source]  # [N]
    is_cancelled = np.zeros(n_arcs, dtype=np.bool_)
    # Best score of a labelling with an arc at each time that the automaton does not read
    unread = np.empty(arcs.time[-1] + 1)
    duals[:] = 0.0
    for a in order:
        unread[:] = -np.inf
        for e in range(n_arcs):
            if kinds[a, e] == 0:
                unread[time[e]] = max(unread[time[e]], max_marginals[e])
        for e in range(n_arcs):
            if kinds[a, e] != 0 and not is_cancelled[e] and unread[time[e]] > -np.inf:
                # u(event) = min over its arcs of (best without reading - best through the arc), at most 0
                z = _variable(variables, e, a)
                duals[z] = min(duals[z], unread[time[e]] - max_marginals[e])
        for e in range(n_arcs):
            is_cancelled[e] |= kinds[a, e] != 0 and duals[_variable(variables, e, a)] < 0.0


@helper
def _variable(variables, e, a):
    """The variable of an automaton at an arc that the automaton reads."""
    n = variables.arc_starts[e]
    while variables.automaton[variables.of_arc[n]] != a:
        n += 1
    return variables.of_arc[n]


@helper(inline="always")
def _arc_bound(arcs, variables, duals, suffix, e):
    """score(e) + sum of its variables + suffix[target of e]"""
    score = arcs.scores[e] + suffix[arcs.target[e]]
    for n in range(variables.arc_starts[e], variables.arc_starts[e + 1]):
        score += duals[variables.of_arc[n]]
    return score


@helper(inline="always")
def move(automata, a, state, kind):
    """The position, in the tables of the automata, of the step of automaton a from a state at a kind of event."""
    return automata.tables[a] + state * automata.widths[a] + kind


@kernel
def find_bound(arcs, automata, variables, duals, suffix, suffixes):
    """Compute an upper bound on the score of every labelling, and of what can follow each node and each state of an automaton.

    duals (float64[Z]): Values of the dual variables.
    suffix (float64[V]): Receives the best score behind each node, plus the variables of its arcs.
    suffixes (float64[variables.suffixes[-1]]): Receives the best score in each state of an automaton from each reading on, minus
        the variables.
    RETURNS (float64): The bound.
    """
    # suffix[v] = max_e(score(e) + sum of its variables + suffix[target of e]) over the arcs e out of v
    suffix[:] = -np.inf
    suffix[-1] = 0.0
    for e in range(len(arcs.source) - 1, -1, -1):
        suffix[arcs.source[e]] = max(suffix[arcs.source[e]], _arc_bound(arcs, variables, duals, suffix, e))
    total = suffix[0]
    # suffixes[r, q] = max_z(scores[q, z] - duals[z] + suffixes[r + 1, following[q, z]]) over the variables z of reading r
    for a in range(len(automata.tables)):
        size = automata.states[a + 1] - automata.states[a]
        at = variables.suffixes[a + 1] - size
        suffixes[at : at + size] = automata.last[automata.states[a] : automata.states[a + 1]]
        for r in range(variables.readings[a + 1] - 1, variables.readings[a] - 1, -1):
            for q in range(size):
                best = suffixes[at + q] if variables.may_skip[r] else -np.inf
                for z in range(variables.starts[r], variables.starts[r + 1]):
                    x = move(automata, a, q, variables.kind[z])
                    if automata.following[x] >= 0:
                        best = max(best, automata.scores[x] - duals[z] + suffixes[at + automata.following[x]])
                suffixes[at - size + q] = best
            at -= size
        total += suffixes[at]
    return total


@kernel
def bound_automaton(following, scores, last, duals):
    """Upper bound on the score of one automaton minus the dual variables, with a variable for each kind at each token.

    following (int32[Q, C]), scores (float64[Q, C]), last (float64[Q]): The automaton: next states, -1 for none; scores of steps;
        scores of ends.
    duals (float64[n, C]): Values of the variables, inf for impossible kinds.
    """
    suffix = last.copy()
    now = np.empty(len(last))
    # suffix[t, q] = max_c(scores[q, c] - duals[t, c] + suffix[t+1, following[q, c]])
    for t in range(len(duals) - 1, -1, -1):
        for q in range(len(last)):
            now[q] = -np.inf
            for c in range(following.shape[1]):
                if following[q, c] >= 0:
                    now[q] = max(now[q], scores[q, c] - duals[t, c] + suffix[following[q, c]])
        suffix[:] = now
    return suffix[0]


class Descent(NamedTuple):
    """State of the descent to the lowest bound."""

    values: Floats  # [4] at UPPER, LOWER, RATE and WAITED
    duals: Floats  # [Z]
    best_duals: Floats  # [Z] of the lowest bound
    best_path: NDArray[np.int32]  # [V] the arcs of the best labelling known
    length: NDArray[np.int64]  # [1] number of these arcs


UPPER = 0  # the lowest upper bound
LOWER = 1  # score of the best labelling known, the lower bound
RATE = 2  # factor on the length of steps
WAITED = 3  # steps since the upper bound fell


@helper
def _best_labelling(arcs, automata, variables, duals, suffix, states, path, differences):
    """Follow the best labelling under the dual variables, and count each of its variables in `differences`.

    RETURNS (float, int): The labelling's score, including the scores of the automata; and its length.
    """
    states[:] = 0
    total = 0.0
    node = 0
    length = 0
    while node < len(suffix) - 1:
        best = -np.inf
        taken = -1
        # The best arc out of the node, as the bound sees it
        for e in range(arcs.starts[node], arcs.starts[node + 1]):
            score = _arc_bound(arcs, variables, duals, suffix, e)
            if score > best:
                best = score
                taken = e
        total += arcs.scores[taken]
        for n in range(variables.arc_starts[taken], variables.arc_starts[taken + 1]):
            z = variables.of_arc[n]
            a = variables.automaton[z]
            differences[z] += 1
            if states[a] >= 0:
                x = move(automata, a, states[a], variables.kind[z])
                states[a] = automata.following[x]
                total += automata.scores[x]
        path[length] = taken
        length += 1
        node = arcs.target[taken]
    for a in range(len(states)):
        total = total + automata.last[automata.states[a] + states[a]] if states[a] >= 0 else -np.inf
    return total, length


@helper
def _best_readings(automata, variables, duals, suffixes, differences):
    """Follow the best labelling for each automaton alone under the dual variables, and subtract 1 in `differences` for each of
    its variables."""
    for a in range(len(automata.tables)):
        size = automata.states[a + 1] - automata.states[a]
        q = 0
        at = variables.suffixes[a]
        for r in range(variables.readings[a], variables.readings[a + 1]):
            at += size
            best = suffixes[at + q] if variables.may_skip[r] else -np.inf
            taken = -1
            to = q
            for z in range(variables.starts[r], variables.starts[r + 1]):
                x = move(automata, a, q, variables.kind[z])
                if automata.following[x] >= 0:
                    score = automata.scores[x] - duals[z] + suffixes[at + automata.following[x]]
                    # Of equal scores, the event that the common labelling has
                    if score > best or (score == best and differences[z] > 0):
                        best = score
                        taken = z
                        to = automata.following[x]
            if taken >= 0:
                differences[taken] -= 1
            q = to


@kernel
def descend(arcs, automata, variables, descent, suffix, suffixes, iterations):
    """Lower the upper bound by subgradient steps.

    descent (Descent): Is updated. suffix, suffixes: Work space, see `find_bound`.
    RETURNS (int): Number of iterations. It is smaller than `iterations` if a labelling reaches the bound, or if there is none.
    """
    values, duals, best_duals, best_path, length = descent
    # The subgradient: uses by the labelling minus uses by the automata
    differences = np.zeros(len(duals), dtype=np.int64)
    path = np.empty_like(best_path)
    states = np.zeros(len(automata.tables), dtype=np.int64)
    for n in range(iterations):
        bound = find_bound(arcs, automata, variables, duals, suffix, suffixes)
        values[WAITED] += 1.0
        # Steps become shorter where the bound has not fallen for long
        if bound < values[UPPER] - ROUNDING:
            values[UPPER] = bound
            values[WAITED] = 0.0
            best_duals[:] = duals
        elif values[WAITED] > PATIENCE:
            values[RATE] *= SHORTER
            values[WAITED] = 0.0
        if bound == -np.inf:
            return n + 1
        differences[:] = 0
        score, taken = _best_labelling(arcs, automata, variables, duals, suffix, states, path, differences)
        if score > values[LOWER]:
            values[LOWER] = score
            length[0] = taken
            best_path[:] = path
        known = values[LOWER] > -np.inf
        if known and values[UPPER] <= values[LOWER] + ROUNDING * (1.0 + abs(values[LOWER])):
            return n + 1
        _best_readings(automata, variables, duals, suffixes, differences)
        differing = np.count_nonzero(differences)
        # All copies agree with the labelling: the bound is its score
        if differing == 0:
            return n + 1
        # Polyak 1969: as far as the bound is from the best score, or, if none is known, as far as it would be from a good one
        distance = bound - values[LOWER] if known else 2.0 * differing + bound - values[UPPER]
        length_of_step = values[RATE] * distance / differing
        for z in range(len(differences)):
            duals[z] -= length_of_step * differences[z]
    return iterations
