"""Ties between the tokens of chains: equal words, which sequences they connect, and what tied tokens tell each other.

L labels, E ties, V tied tokens (places), C components: sets of sequences that ties connect. A tie has two messages, one into each
of its ends, in logarithms; row 0 is the one into its source.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel

LEAST = 1e-300  # of a probability whose logarithm is taken
_LITTLE = 0.01  # of the tolerance, by which a message moves that is no news


class Sent(NamedTuple):
    """Ties, by which messages are sent."""

    ends: NDArray[np.int64]  # [2, E] places
    kind: NDArray[np.int64]  # [E]
    tables: Floats  # [K, L, L] exp of the scores, of each kind less the largest
    shares: Floats  # [E] by which power a message counts


@kernel
def repeated(words, usable, doc_starts):
    """The usable tokens whose word another usable token of the Doc has.

    words (uint64[T]), usable (bool[T]), doc_starts (int64[D + 1])
    RETURNS (int64[N])
    """
    longest, size = 0, 1
    for d in range(len(doc_starts) - 1):
        longest = max(longest, doc_starts[d + 1] - doc_starts[d])
    while size < 2 * longest:
        size *= 2
    mask = np.uint64(size - 1)
    slots = np.full(size, -1, dtype=np.int64)  # tokens; those of earlier Docs are as good as none
    found = np.zeros(len(words), dtype=np.bool_)
    for d in range(len(doc_starts) - 1):
        begin = doc_starts[d]
        for t in range(begin, doc_starts[d + 1]):
            if usable[t]:
                slot = np.int64(words[t] & mask)
                while slots[slot] >= begin and words[slots[slot]] != words[t]:
                    slot = (slot + 1) & (size - 1)
                if slots[slot] >= begin:
                    found[slots[slot]] = found[t] = True
                slots[slot] = t
    return found.nonzero()[0]


@helper
def _root(parents, i):
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@kernel
def connect(source, target, component):
    """Sets the component of each of B sequences (int64[B]), numbered in the order of their first sequences.

    source, target (int64[E]): Sequences that are tied.
    RETURNS (int): How many components there are.
    """
    for b in range(len(component)):
        component[b] = b
    for e in range(len(source)):
        i, j = _root(component, source[e]), _root(component, target[e])
        component[max(i, j)] = min(i, j)
    n = 0
    for b in range(len(component)):
        # The root is the lowest of all, so that it has its number by now
        if component[b] == b:
            component[b] = n
            n += 1
        else:
            component[b] = component[component[b]]
    return n


@kernel
def add_forest(source, target, order, parents, uses):
    """Counts the ties of a forest (Kruskal 1956): of all, in their order, those that close no cycle.

    source, target (int64[E]): Sequences that are tied. order (int64[E]). parents (int64[B]): 0, 1, ….
    uses (int64[E]): Counted up.
    """
    for e in order:
        i, j = _root(parents, source[e]), _root(parents, target[e])
        if i != j:
            parents[i] = j
            uses[e] += 1


@kernel
def arrive(ties, messages, some, tokens, label_of, emissions, out):
    """Sets the emissions of some tied tokens to their own and all messages.

    ties (Sent), messages (float64[E, 2, L]): See `sweep`.
    some (int64[N]): Places. tokens (int64[V]): Which are there. label_of (int64[S])
    emissions (float64[T, S]): Without messages. out (float64[T, S])
    """
    ends, _, _, shares = ties
    told = np.zeros((len(tokens), messages.shape[2]))
    for e in range(len(shares)):
        for side in range(2):
            v = ends[side, e]
            for i in range(messages.shape[2]):
                told[v, i] += shares[e] * messages[e, side, i]
    for v in some:
        t = tokens[v]
        for j in range(len(label_of)):
            out[t, j] = emissions[t, j] + told[v, label_of[j]]


@kernel
def by_label(of_states, label_of, sums):
    """Adds numbers of states (float64[N, S]) to those of their labels (float64[N, L]).

    label_of (int64[S])
    """
    for n in range(len(of_states)):
        for j in range(len(label_of)):
            sums[n, label_of[j]] += of_states[n, j]


@helper
def _send(beliefs, tables, kind, turned, u, v, back, forth, share, damping, cavity, message):
    """Sends what the place u says to v, given what it believes. RETURNS (float): How far the message has moved."""
    size = len(cavity)
    largest = -np.inf
    for i in range(size):
        cavity[i] = beliefs[u, i] - back[i]
        largest = max(largest, cavity[i])
    if largest == -np.inf:  # nothing is possible there
        return 0.0
    message[:] = 0.0
    for i in range(size):
        p = np.exp(cavity[i] - largest)
        if p > 0.0:
            if turned:
                for j in range(size):
                    message[j] += p * tables[kind, j, i]
            else:
                for j in range(size):
                    message[j] += p * tables[kind, i, j]
    largest = LEAST
    for j in range(size):
        largest = max(largest, message[j])
    moved = 0.0
    for j in range(size):
        told = np.log(max(message[j] / largest, LEAST))
        told += damping * (forth[j] - told)
        moved = max(moved, abs(told - forth[j]))
        beliefs[v, j] += share * (told - forth[j])
        forth[j] = told
    return moved


@kernel
def sweep(ties, some, bounds, damping, sweeps, tolerance, beliefs, messages):
    """Sends messages along some ties, forth and back until they stay, while the chains say the same.

    m[u>v](j) = log sum_i exp(b[u](i) - m[v>u](i) + table[i, j])

    Only where u has had news since, other than from v: most ties share no end with others, and have said all at once.

    ties (Sent): All of them.
    some (int64[M]): Which, by their components, and then in order.
    bounds (int64[C + 1]): Which of these each component has, damping (float64[C]): How much of its value a message keeps there.
    beliefs (float64[V, L]): Logarithms of what each place believes, all messages in it; follows these.
    messages (float64[E, 2, L])
    """
    ends, kind, tables, shares = ties
    cavity, message = np.empty(beliefs.shape[1]), np.empty(beliefs.shape[1])
    news = np.zeros(len(beliefs), dtype=np.int64)  # how many have come to a place
    own = np.zeros((len(some), 2), dtype=np.int64)  # and of these along a tie
    known = np.full((len(some), 2), -1)  # how many others had come when it sent its latest message
    for c in range(len(bounds) - 1):
        begin, end = bounds[c], bounds[c + 1]
        for _ in range(sweeps if begin < end else 0):
            largest = 0.0
            for step in range(2 * (end - begin)):
                side, n = (0, begin + step) if step < end - begin else (1, 2 * end - begin - 1 - step)
                e = some[n]
                u, v, into = ends[side, e], ends[1 - side, e], messages[e]
                if known[n, side] == news[u] - own[n, side]:
                    continue
                known[n, side] = news[u] - own[n, side]
                turned = side == 1
                back, forth = into[side], into[1 - side]
                moved = _send(
                    beliefs, tables, kind[e], turned, u, v, back, forth, shares[e], damping[c], cavity, message
                )
                largest = max(largest, moved)
                if moved > _LITTLE * tolerance:
                    news[v] += 1
                    own[n, 1 - side] += shares[e] == 1.0  # otherwise u says something else for it
                    if damping[c] > 0.0:  # it has not said all
                        known[n, side] = -1
            if largest < tolerance:
                break


@kernel
def weigh(ties, beliefs, messages, weights, log_z, d_tables):
    """What each tie is worth, and how often each pair of labels is expected at its ends:

    b[e](i, j) = exp(b[u](i) - m[v>u](i) + table[i, j] + b[v](j) - m[u>v](j)) / z[e]

    ties (Sent), messages (float64[E, 2, L]): See `sweep`. beliefs (float64[V, L]): Logarithms of probabilities.
    weights (float64[E]): Factors of the expectations. log_z (float64[E]): Receives the logarithms of z.
    d_tables (float64[K, L, L]): Is added to.
    """
    ends, kind, tables, _ = ties
    size = beliefs.shape[1]
    left, right = np.empty(size), np.empty(size)
    for e in range(len(kind)):
        u, v, shift = ends[0, e], ends[1, e], 0.0
        for side in range(2):
            row, place = (left, u) if side == 0 else (right, v)
            largest = -np.inf
            for i in range(size):
                row[i] = beliefs[place, i] - messages[e, side, i]
                largest = max(largest, row[i])
            for i in range(size):
                row[i] = np.exp(row[i] - largest) if largest > -np.inf else 0.0
            shift += largest
        total = 0.0
        for i in range(size):
            for j in range(size):
                total += left[i] * tables[kind[e], i, j] * right[j]
        log_z[e] = shift + np.log(total) if total > 0.0 else -np.inf
        if total > 0.0 and weights[e] != 0.0:
            factor = weights[e] / total
            for i in range(size):
                for j in range(size):
                    d_tables[kind[e], i, j] += factor * left[i] * tables[kind[e], i, j] * right[j]
