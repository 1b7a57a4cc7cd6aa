"""Ties between the tokens of chains: the sequences that they connect, and the messages of belief propagation along them.

L labels (P: rounded up to a multiple of LANES by labels without a state), E ties, V tied tokens (places), C components:
sets of sequences that ties connect. A tie has two messages, one into each of its ends; row 0 is the one into its source.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.numerics import LANES, LINEAR
from spacy_crf.types import Floats

LEAST = 1e-300  # the least number of a message
_LITTLE = 0.01  # part of the tolerance up to which a moved message is not sent on


class Sent(NamedTuple):
    """Ties, by which messages are sent."""

    ends: NDArray[np.int64]  # [2, E] places
    kind: NDArray[np.int64]  # [E]
    tables: Floats  # [2, K, P, P] exp of the scores, of each kind less the largest, and the same turned
    shares: Floats  # [E] exponent of each message


@helper
def _root(parents, i):
    """The root of a sequence's component (union-find with path halving)."""
    while parents[i] != i:
        parents[i] = parents[parents[i]]
        i = parents[i]
    return i


@kernel
def connect(source, target, component):
    """Set the component of each of B sequences (int64[B]); components are numbered in the order of their first sequences.

    source, target (int64[E]): Sequences that are tied.
    RETURNS (int): Number of components.
    """
    for b in range(len(component)):
        component[b] = b
    for e in range(len(source)):
        i = _root(component, source[e])
        j = _root(component, target[e])
        # The lower root stays, so that components are numbered by their first sequences
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
    """Count the ties of a spanning forest, for which ties are taken in their order unless they close a cycle (Kruskal 1956).

    source, target (int64[E]): Sequences that are tied. order (int64[E]). parents (int64[B]): 0, 1, ….
    uses (int64[E]): Counted up.
    """
    for e in order:
        i = _root(parents, source[e])
        j = _root(parents, target[e])
        if i != j:
            parents[i] = j
            uses[e] += 1


@kernel
def add_messages(ties, messages, are_logarithms, some, tokens, label_of, emissions, out):
    """Set the emissions of some tied tokens to their own emissions plus all messages.

    ties (Sent), messages (float64[E, 2, at least L]): As in `sweep`, or their logarithms.
    some (int64[N]): Places. tokens (int64[V]): Token of each place. label_of (int64[S]): Label of each state.
    emissions (float64[T, S]): Without messages. out (float64[T, S])
    """
    ends = ties.ends
    shares = ties.shares
    asked = np.zeros(len(tokens), dtype=np.bool_)
    asked[some] = True
    told = np.zeros((len(tokens), messages.shape[2]))
    for e in range(len(shares)):
        for side in range(2):
            v = ends[side, e]
            for i in range(messages.shape[2] if asked[v] else 0):
                message = messages[e, side, i]
                told[v, i] += shares[e] * (message if are_logarithms else np.log(message))
    for v in some:
        t = tokens[v]
        for j in range(len(label_of)):
            out[t, j] = emissions[t, j] + told[v, label_of[j]]


@helper(fastmath=LINEAR)
def _send(beliefs, tables, n, ends, messages, rows, share, damping, tolerance, room):
    """Send the message of one place to another, computed from the beliefs of the sender.

    tables (float64[2 K, P, P]): By labels of the receiver and the sender. ends (int, int): Sender and receiver.
    messages (float64[2 E, P]), rows (int, int): Rows of the message back and of this message. room (float64[2, P])
    RETURNS (int): 0 if the message has not moved, 1 if little, 2 if by more than the tolerance.
    """
    u, v = ends
    back, forth = rows
    size = messages.shape[1]
    total = 0.0
    # The cavity: what u believes without the message from v
    for i in range(size):
        room[0, i] = beliefs[u, i] / messages[back, i]
    for j in range(0, size, LANES):
        a = b = c = d = 0.0
        for i in range(size):
            x = room[0, i]
            a += tables[n, j, i] * x
            b += tables[n, j + 1, i] * x
            c += tables[n, j + 2, i] * x
            d += tables[n, j + 3, i] * x
        room[1, j] = a
        room[1, j + 1] = b
        room[1, j + 2] = c
        room[1, j + 3] = d
        total += (a + b) + (c + d)
    if not total > 0.0:  # nothing is possible there
        return 0
    factor = 1.0 / total
    total = 0.0
    # log m = (1 - damping) log new + damping log old
    for j in range(size if damping > 0.0 else 0):
        told = np.log(max(room[1, j] * factor, LEAST))
        room[1, j] = np.exp(told + damping * (np.log(messages[forth, j]) - told))
    factor = factor if damping == 0.0 else 1.0
    n_moved = n_little = 0
    for j in range(size):
        message = room[1, j] * factor
        message = message if message > LEAST else LEAST
        # b[v] <- b[v] · (new / old)^share, scaled to the sum 1
        ratio = message / messages[forth, j]
        messages[forth, j] = message
        room[0, j] = ratio
        n_moved += abs(ratio - 1.0) > tolerance
        n_little += abs(ratio - 1.0) > _LITTLE * tolerance
    for j in range(size if share != 1.0 else 0):
        room[0, j] = room[0, j] ** share
    for j in range(size):
        belief = beliefs[v, j] * room[0, j]
        beliefs[v, j] = belief
        total += belief
    factor = 1.0 / total if total > 0.0 else 1.0
    for j in range(size):
        beliefs[v, j] *= factor
    return 2 if n_moved > 0 else 1 if n_little > 0 else 0


@kernel
def sweep(ties, some, bounds, damping, sweeps, tolerance, beliefs, messages):
    """Send messages along some ties in both directions until they converge, while the messages of the chains stay fixed.

    m[u>v](j) = sum_i b[u](i) / m[v>u](i) · table[i, j], scaled so that its numbers add up to 1

    A message is sent again only if another token than v has sent u a new one: most ties share no end with others, and need one
    message.

    ties (Sent): All of them.
    some (int64[M]): The ties, by their components and then in order.
    bounds (int64[C + 1]): Bounds of the ties of each component. damping (float64[C]): Share of its value that a message keeps.
    tolerance (float): Messages stay if none of their numbers changes by more than this part.
    beliefs (float64[V, P]): Beliefs at each place, with all its messages; each row adds up to 1. They are updated with the
        messages.
    messages (float64[E, 2, P])
    """
    ends, kind, tables, shares = ties
    size = messages.shape[2]
    n_kinds = tables.shape[1]
    # An array of all, as a slice of each would be counted
    rows = messages.reshape(-1, size)
    both = tables.reshape(-1, size, size)
    room = np.empty((2, size))
    news = np.zeros(len(beliefs), dtype=np.int64)  # how many have come to a place
    own = np.zeros((len(some), 2), dtype=np.int64)  # and of these along a tie
    known = np.full((len(some), 2), -1)  # how many others had come when it sent its latest message
    for c in range(len(bounds) - 1):
        begin = bounds[c]
        end = bounds[c + 1]
        for _ in range(sweeps if begin < end else 0):
            largest = 0
            for step in range(2 * (end - begin)):
                side, n = (0, begin + step) if step < end - begin else (1, 2 * end - begin - 1 - step)
                e = some[n]
                u = ends[side, e]
                v = ends[1 - side, e]
                if known[n, side] == news[u] - own[n, side]:
                    continue
                known[n, side] = news[u] - own[n, side]
                table = kind[e] + (1 - side) * n_kinds
                sent = (2 * e + side, 2 * e + 1 - side)
                moved = _send(beliefs, both, table, (u, v), rows, sent, shares[e], damping[c], tolerance, room)
                largest = max(largest, moved)
                if moved > 0:
                    news[v] += 1
                    own[n, 1 - side] += shares[e] == 1.0  # otherwise u says something else for it
                    if damping[c] > 0.0:  # it has not said all
                        known[n, side] = -1
            if largest < 2:
                break


@kernel
def weigh(ties, beliefs, messages, weights, log_z, d_tables):
    """The partition of each tie, and the expected number of times that each pair of labels is at its ends:

    b[e](i, j) = b[u](i) / m[v>u](i) · table[i, j] · b[v](j) / m[u>v](j) / z[e]

    ties (Sent), messages (float64[E, 2, P]): See `sweep`. beliefs (float64[V, P]): Probabilities.
    weights (float64[E]): Factors of the expectations. log_z (float64[E]): Receives the logarithms of z.
    d_tables (float64[K, P, P]): Is added to.
    """
    ends, kind, tables, _ = ties
    size = beliefs.shape[1]
    room = np.empty((2, size))
    for e in range(len(kind)):
        k = kind[e]
        shift = 0.0
        for side in range(2):
            largest = 0.0
            for i in range(size):
                # Cavities of both ends, scaled to the maximum 1
                room[side, i] = beliefs[ends[side, e], i] / messages[e, side, i]
                largest = max(largest, room[side, i])
            for i in range(size if largest > 0.0 else 0):
                room[side, i] /= largest
            shift += np.log(largest) if largest > 0.0 else 0.0
        total = 0.0
        for i in range(size):
            for j in range(size):
                total += room[0, i] * tables[0, k, i, j] * room[1, j]
        log_z[e] = shift + np.log(total) if total > 0.0 else -np.inf
        if total > 0.0 and weights[e] != 0.0:
            factor = weights[e] / total
            for i in range(size):
                for j in range(size):
                    d_tables[k, i, j] += factor * room[0, i] * tables[0, k, i, j] * room[1, j]
