"""Constants and small functions that several kernels need."""

import math

import numpy as np

from . import helper

LANES = 4  # numbers in a vector; arrays are padded to whole vectors
SPREAD = 300.0  # largest distance between scores that meet in the linear domain
TINY = 1e-100  # normalised numbers below this one are not trusted

# The linear domain has no infinities: sums may be reordered (vectorised) and fused with products.
LINEAR = {"reassoc", "contract"}

NO_FEATURE = np.uint64(0)  # the hash that stands for no feature
FIRST_HASH = np.uint64(0x9E3779B97F4A7C15)
_SECOND = np.uint64(0xBF58476D1CE4E5B9)
_THIRD = np.uint64(0x94D049BB133111EB)
_R30 = np.uint64(30)
_R27 = np.uint64(27)
_R31 = np.uint64(31)


@helper
def log_sum(terms):
    """Log of the sum of exp(terms), float64[N]."""
    largest = -np.inf
    for term in terms:
        largest = max(largest, term)
    if largest == -np.inf:
        return largest
    total = 0.0
    for term in terms:
        total += math.exp(term - largest)
    return largest + math.log(total)


@helper
def draw(terms, uniform):
    """Draw an index with probabilities proportional to exp(terms), float64[N]; -1 if all terms are -inf. Overwrites the terms."""
    largest = -np.inf
    for term in terms:
        largest = max(largest, term)
    if largest == -np.inf:
        return -1
    for i in range(len(terms)):
        terms[i] = np.exp(terms[i] - largest)
    return draw_mass(terms, uniform)


@helper
def draw_mass(masses, uniform):
    """Draw the index of a mass (float64[N]), with probabilities proportional to the masses; -1 if all masses are 0."""
    remaining = 0.0
    for mass in masses:
        remaining += mass
    remaining *= uniform
    drawn = -1
    for i in range(len(masses)):
        if masses[i] > 0.0:
            drawn = i  # the last possible index remains if rounding leaves a remainder
            remaining -= masses[i]
            if remaining < 0.0:
                break
    return drawn


@helper(in_place=True, forceinline=True)
def best_end(rows, t, last):
    """State and score of the best path that ends at row t; of equal states the lowest. Without an allowed path (row t may have no
    states): -1, and -inf or the NaN of the row.

    rows (float64[n, S]): Scores of the best prefixes. last (float64[S]): Scores of ends, added to row t.
    """
    best = -1
    score = -np.inf
    for j in range(len(last)):
        if rows[t, j] + last[j] > score:
            best = j
            score = rows[t, j] + last[j]
    return best, score if best >= 0 or len(last) == 0 else rows[t, 0] + last[0]


@helper(in_place=True, forceinline=True)
def best_before(rows, t, transitions, k, j):
    """The best predecessor, at t, of state j; of equal states the lowest."""
    score = -np.inf
    for i in range(rows.shape[1]):
        score = max(score, rows[t, i] + transitions[k, i, j])
    best = 0
    # Of the states with the maximum the lowest; keeping it in the loop above would keep LLVM from vectors
    while rows[t, best] + transitions[k, best, j] < score:
        best += 1
    return best


@helper
def merge(lists, rows, extra, scores, chosen, ranks):
    """Merge M sorted lists, each with a bonus that is added to its entries, and take the n largest sums; of equal sums the sum of
    the earlier list comes first.

    lists (float64[R, n]): Lists in falling order; rows (int64[M]): The rows of the M lists.
    extra (float64[M]): The bonus of each list.
    scores (float64[n]): Receives the sums.
    chosen, ranks (int32[n]): Receive the list (0 to M - 1) of each sum, and the position in that list.
    RETURNS (int): Number of sums.
    """
    taken = np.zeros(len(extra), dtype=np.int64)
    for n in range(len(scores)):
        best = -1
        score = -np.inf
        for m in range(len(extra)):
            # lists[rows[m], taken[m]] is the best entry of list m that is left
            if taken[m] < len(scores) and lists[rows[m], taken[m]] + extra[m] > score:
                best = m
                score = lists[rows[m], taken[m]] + extra[m]
        if best == -1:
            return n
        scores[n] = score
        chosen[n] = best
        ranks[n] = taken[best]
        taken[best] += 1
    return len(scores)


@helper(in_place=True)
def mix(hashed, value):
    """Mix one value into a hash (the finaliser of SplitMix64: Steele, Lea & Flood 2014)."""
    z = (hashed ^ value) + FIRST_HASH
    z = (z ^ (z >> _R30)) * _SECOND
    z = (z ^ (z >> _R27)) * _THIRD
    return z ^ (z >> _R31)


@helper
def slot_of(table, nodes, states, node, own):
    """The slot of a prefix of a labelling in a hash table, or the free slot for it. Prefixes that end at one node with automata
    in equal states share a slot.

    table (int32[2^m]): Number of the prefix in each slot, -1 for none.
    nodes (int32[M]), states (int[M, A]): Node and states of each prefix.
    node (int), own (int[A]): Node and states of the prefix that is looked for.
    """
    # A polynomial of the node and the states, whose high bits count too
    code = np.int64(node)
    for state in own:
        code = code * 1000003 + state
    mask = len(table) - 1
    slot = (code ^ (code >> 29)) & mask
    while table[slot] >= 0:
        other = table[slot]
        is_equal = nodes[other] == node
        for a in range(len(own)):
            is_equal &= states[other, a] == own[a]
        if is_equal:
            break
        slot = (slot + 1) & mask
    return slot
