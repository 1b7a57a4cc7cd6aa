"""Chains of higher order: lattices of the labellings that are left, level by level.

At level m, a node stands for the last m states and an arc adds one state: the kept arcs are the nodes of level m + 1. So the
sources of all arcs into a node are a range of nodes, and a sum over these arcs is a sum over a row.

    level 1            level 2
    a1 ––– b1          a1b1 ––– b1c2
       ╲              (a1b2 ––– b2c2: pruned)
    a2 ––– b2 ––– c2   a2b2 ––– b2c2

One table has the scores of all arcs: the transitions, row by row, then 0 for n-grams without a weight, then the other n-grams.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel
from .hashing import find_slot
from .numerics import FIRST_HASH, TINY, draw_mass, merge, mix


class Grams(NamedTuple):
    """The n-grams of tags that have a weight. A key is a number whose digits are 1 and then the tags."""

    slots: NDArray[np.uint64]  # [2^k] hash table of the keys, see `hashing.find_slot`
    rows: NDArray[np.int32]  # [2^k] number of the n-gram in each slot, -1 for none
    digits: NDArray[np.int64]  # [S] tag of each state
    base: int  # number of digits: the tags, then one digit for what is outside of a sequence
    zero: int  # place in the table of scores where n-grams begin, with a 0 for n-grams without a weight


class Level(NamedTuple):
    """The lattice of B sequences, with N nodes and A arcs. Arcs are sorted by target, and then by source: the arcs into node v
    are ``arcs[v]:arcs[v + 1]``, and come from the nodes ``source[v]``, ``source[v] + 1`` …"""

    starts: NDArray[np.int64]  # [T + 1] the nodes of each token
    symbol: NDArray[np.int64]  # [N] the last state of each node
    code: NDArray[np.int64]  # [N] the last tags of each node, as a key
    scores: Floats  # [N] score of the state at its token, plus the scores at the places of `trail`
    source: NDArray[np.int64]  # [N] source of the first arc into each node
    arcs: NDArray[np.int64]  # [N + 1] first arc into each node
    used: NDArray[np.int64]  # [A] place of the score of each arc in the table
    trail: NDArray[np.int64]  # [N, order] places of the scores of the last tags, -1 for none


class LatticeForwardSums(NamedTuple):
    """Results of the forward pass."""

    alpha: Floats  # [N] log-sum of all prefixes that end at the node
    linear: Floats  # [N] exp(alpha - the largest alpha of the token)
    sums: Floats  # [N] sum of linear · exp(weight) over the arcs into the node, 0 where logarithms were taken


class Chances(NamedTuple):
    """Probabilities, times the weight of their sequence."""

    nodes: Floats  # [N]
    arcs: Floats  # [A]


# ------------------------------------------------------------------------------------------------------- n-grams


@helper
def place_of(grams, key):
    """Place in the table of the score of an n-gram."""
    return grams.zero + 1 + grams.rows[find_slot(grams.slots, mix(FIRST_HASH, np.uint64(key)))]


@helper
def _use(grams, states, begin, t, m, stride):
    """Place in the table of the score of the last m + 1 states of a path at token t; -1 for none.

    begin (int): First token of the sequence.
    """
    digits = grams.digits
    base = grams.base
    if t == begin or t - begin + 1 < m:
        return -1
    if m == 1:
        return t * stride + states[t - 1] * digits.shape[0] + states[t]
    # The digits of the key: 1, then the tags, with base - 1 in front of the sequence
    key = 1
    for back in range(m, -1, -1):
        key = key * base + (digits[states[t - back]] if t - back >= begin else base - 1)
    return place_of(grams, key)


@kernel
def score_paths(states, potentials, starts, grams, order, depth, totals):
    """Scores of one path per sequence.

    states (int32[T]): The paths; a sequence with a state -1 has no path.
    potentials (tuple): Emissions (float64[T, S]), first, last (float64[S]), the table of transitions and n-grams (float64[N]),
        and the distance of two tokens in it.
    order (int): The order. depth (int64[B]): The highest order that counts in each sequence.
    totals (float64[B]): Receives the scores.
    """
    emissions, first, last, table, stride = potentials
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        totals[b] = 0.0
        for t in range(begin, end):
            if states[t] < 0:
                totals[b] = -np.inf
                break
            totals[b] += emissions[t, states[t]]
            for m in range(1, min(order, depth[b]) + 1):
                use = _use(grams, states, begin, t, m, stride)
                if use >= 0:
                    totals[b] += table[use]
        if begin < end and depth[b] > 0 and totals[b] > -np.inf:
            totals[b] += first[states[begin]] + last[states[end - 1]]


@kernel
def add_paths(states, factors, starts, grams, order, stride, depth, out):
    """Add, for each score, how often `score_paths` uses it, times the factor of the sequence (`factors`, float64[B]).

    out (tuple): Derivatives with respect to emissions, first, last, transitions (float64[n · S · S]) and n-grams.
    """
    d_emissions, d_first, d_last, d_transitions, d_grams = out
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        lowest = 0
        for t in range(begin, end):
            lowest = min(lowest, states[t])
        if begin == end or lowest < 0:
            continue
        for t in range(begin, end):
            d_emissions[t, states[t]] += factors[b]
            for m in range(1, min(order, depth[b]) + 1):
                use = _use(grams, states, begin, t, m, stride)
                if use >= 0:
                    _add_use(use, factors[b], d_transitions, d_grams)
        if depth[b] > 0:
            d_first[states[begin]] += factors[b]
            d_last[states[end - 1]] += factors[b]


@helper(inline="always")
def _add_use(use, derivative, d_transitions, d_grams):
    """Add a derivative with respect to a place in the table."""
    n_transitions = d_transitions.shape[0]
    if use < n_transitions:
        d_transitions[use] += derivative
    elif use > n_transitions:
        d_grams[use - n_transitions - 1] += derivative


# ------------------------------------------------------------------------------------------------------- lattices


@kernel
def first_level(kept, emissions, first, last, starts, grams, order, stride):
    """Make the lattice of single states (Level).

    kept (bool[T, S]): States that become nodes.
    """
    digits = grams.digits
    base = grams.base
    n_tokens, size = kept.shape
    node_starts = np.zeros(n_tokens + 1, dtype=np.int64)
    for t in range(n_tokens):
        node_starts[t + 1] = node_starts[t]
        for j in range(size):
            node_starts[t + 1] += kept[t, j]
    n_nodes = node_starts[-1]
    symbol, code, source = np.zeros((3, n_nodes), dtype=np.int64)
    scores = np.empty(n_nodes)
    arcs = np.zeros(n_nodes + 1, dtype=np.int64)
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            v = node_starts[t]
            for j in range(size):
                if kept[t, j]:
                    symbol[v] = j
                    code[v] = base + digits[j]
                    scores[v] = emissions[t, j]
                    if t == starts[b]:
                        scores[v] += first[j]
                    if t == starts[b + 1] - 1:
                        scores[v] += last[j]
                    n_sources = 0
                    if t > starts[b]:
                        source[v] = node_starts[t - 1]
                        n_sources = node_starts[t] - node_starts[t - 1]
                    arcs[v + 1] = arcs[v] + n_sources
                    v += 1
    used = np.empty(arcs[-1], dtype=np.int64)
    for t in range(n_tokens):
        for v in range(node_starts[t], node_starts[t + 1]):
            for a in range(arcs[v], arcs[v + 1]):
                # Place of transitions[t, i, j] in the table
                used[a] = t * stride + symbol[source[v] + a - arcs[v]] * size + symbol[v]
    trail = np.full((n_nodes, order), -1, dtype=np.int64)
    return Level(node_starts, symbol, code, scores, source, arcs, used, trail)


@kernel
def next_level(level, m, weights, chosen, stays, starts, grams):
    """Make the lattice of level m + 1 (Level), whose nodes are arcs of the lattice of level m.

    level (Level): The lattice of level m. weights (float64[A]): Scores of its arcs.
    chosen (bool[A]): The arcs that become nodes.
    stays (bool[B]): Sequences that keep the lattice of level m.
    """
    node_starts, symbol, code, scores, source, arcs, used, trail = level
    digits = grams.digits
    base = grams.base
    n_before = symbol.shape[0]
    first_new = np.empty(n_before, dtype=np.int64)
    n_new = np.empty(n_before, dtype=np.int64)
    new_starts = np.zeros(starts[-1] + 1, dtype=np.int64)
    n_nodes = 0
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for v in range(node_starts[t], node_starts[t + 1]):
                first_new[v] = n_nodes
                # A node becomes as many nodes as arcs into it are chosen
                n_new[v] = 1
                if t > starts[b] and not stays[b]:
                    n_new[v] = 0
                    for a in range(arcs[v], arcs[v + 1]):
                        n_new[v] += chosen[a]
                n_nodes += n_new[v]
            new_starts[t + 1] = n_nodes
    new_symbol, new_code, new_source = np.zeros((3, n_nodes), dtype=np.int64)
    new_scores = np.empty(n_nodes)
    new_arcs = np.zeros(n_nodes + 1, dtype=np.int64)
    new_trail = np.empty((n_nodes, trail.shape[1]), dtype=np.int64)
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for v in range(node_starts[t], node_starts[t + 1]):
                # Arc (u, v) becomes node w; the nodes of u are its sources, so sources are ranges again
                w = first_new[v]
                if t == starts[b] or stays[b]:
                    new_symbol[w] = symbol[v]
                    new_code[w] = code[v]
                    new_scores[w] = scores[v]
                    new_trail[w] = trail[v]
                    if stays[b]:
                        new_source[w] = first_new[source[v]] if t > starts[b] else 0
                        new_arcs[w + 1] = new_arcs[w] + arcs[v + 1] - arcs[v]
                    else:
                        new_code[w] = (base + base - 1) * base + digits[symbol[v]]
                        new_arcs[w + 1] = new_arcs[w]
                    continue
                for a in range(arcs[v], arcs[v + 1]):
                    if chosen[a]:
                        u = source[v] + a - arcs[v]
                        new_symbol[w] = symbol[v]
                        new_code[w] = code[u] * base + digits[symbol[v]]
                        new_scores[w] = scores[v] + weights[a]
                        new_trail[w] = trail[v]
                        new_trail[w, m - 1] = used[a]
                        new_source[w] = first_new[u]
                        new_arcs[w + 1] = new_arcs[w] + n_new[u]
                        w += 1
    new_used = np.empty(new_arcs[-1], dtype=np.int64)
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b] + 1, starts[b + 1]):
            if stays[b]:
                for v in range(node_starts[t], node_starts[t + 1]):
                    w = first_new[v]
                    new_used[new_arcs[w] : new_arcs[w + 1]] = used[arcs[v] : arcs[v + 1]]
                continue
            is_known = t - starts[b] >= m  # else a shorter n-gram says it
            for w in range(new_starts[t], new_starts[t + 1]):
                for a in range(new_arcs[w], new_arcs[w + 1]):
                    before = new_code[new_source[w] + a - new_arcs[w]]
                    key = before * base + digits[new_symbol[w]]
                    new_used[a] = place_of(grams, key) if is_known else grams.zero
    return Level(new_starts, new_symbol, new_code, new_scores, new_source, new_arcs, new_used, new_trail)


@kernel
def score_nodes(level, emissions, first, last, starts, table, scores):
    """Write the scores of nodes (`scores`, float64[N]) from new scores of tokens and n-grams, for a lattice that was made with
    older scores."""
    node_starts, symbol, _, _, _, _, _, trail = level
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for v in range(node_starts[t], node_starts[t + 1]):
                scores[v] = emissions[t, symbol[v]]
                if t == starts[b]:
                    scores[v] += first[symbol[v]]
                if t == starts[b + 1] - 1:
                    scores[v] += last[symbol[v]]
                for m in range(trail.shape[1]):
                    if trail[v, m] >= 0:
                        scores[v] += table[trail[v, m]]


@kernel
def reachable(level, possible, open_arcs, starts, found):
    """Find the sequences that have a path from the first to the last token.

    possible (bool[N]), open_arcs (bool[A]): Nodes and arcs that a path may use.
    found (bool[B]): Receives whether a sequence has a path.
    """
    node_starts, _, _, _, source, arcs, _, _ = level
    reached = np.zeros(possible.shape[0], dtype=np.bool_)
    for b in range(starts.shape[0] - 1):
        found[b] = True
        for t in range(starts[b], starts[b + 1]):
            found[b] = False
            for v in range(node_starts[t], node_starts[t + 1]):
                reached[v] = possible[v] and t == starts[b]
                if possible[v]:
                    for a in range(arcs[v], arcs[v + 1]):
                        reached[v] |= open_arcs[a] and reached[source[v] + a - arcs[v]]
                found[b] |= reached[v]
            if not found[b]:
                break


# ------------------------------------------------------------------------------------------------------- sums


@kernel
def forward(level, scores, weights, exponentials, starts, prefixes, log_z):
    """Log partitions.

    scores (float64[N]): Scores of nodes, -inf for forbidden ones. weights, exponentials (float64[A]): Scores of arcs; their exp.
    prefixes (LatticeForwardSums), log_z (float64[B]): Receive the sums.
    """
    node_starts, _, _, _, source, arcs, _, _ = level
    alpha, linear, sums = prefixes
    for b in range(starts.shape[0] - 1):
        if starts[b] == starts[b + 1]:
            log_z[b] = 0.0
            continue
        shift = 0.0
        # alpha[t, v] = scores[v] + logsum_u(alpha[t-1, u] + weights[u, v])
        for t in range(starts[b], starts[b + 1]):
            largest = -np.inf
            for v in range(node_starts[t], node_starts[t + 1]):
                sums[v] = 0.0
                if t == starts[b]:
                    alpha[v] = scores[v]
                else:
                    alpha[v] = _arriving(source[v], arcs[v], arcs[v + 1], weights, exponentials, prefixes, shift, v)
                    alpha[v] += scores[v]
                largest = max(largest, alpha[v])
            shift = largest
            for v in range(node_starts[t], node_starts[t + 1]):
                linear[v] = math.exp(alpha[v] - shift) if alpha[v] > -np.inf else 0.0
        total = 0.0
        for v in range(node_starts[starts[b + 1] - 1], node_starts[starts[b + 1]]):
            total += linear[v]
        log_z[b] = math.log(total) + shift if shift > -np.inf else -np.inf


@helper
def _arriving(source, first, end, weights, exponentials, prefixes, shift, v):
    """Log-sum of the prefixes that arrive at node v. Computes it in the linear domain, and stores it there, if it is large
    enough."""
    alpha, linear, sums = prefixes
    total = 0.0
    # logsum_u(alpha[u] + weights[u, v]): in the linear domain, or where numbers are too small, in logarithms
    for a in range(first, end):
        total += linear[source + a - first] * exponentials[a]
    if TINY < total < np.inf:
        sums[v] = total
        return math.log(total) + shift
    largest = -np.inf
    for a in range(first, end):
        largest = max(largest, alpha[source + a - first] + weights[a])
    if largest == -np.inf:
        return largest
    total = 0.0
    for a in range(first, end):
        total += math.exp(alpha[source + a - first] + weights[a] - largest)
    return math.log(total) + largest


@kernel
def posterior(level, scores, weights, exponentials, starts, prefixes, log_z, factors, chances):
    """Probabilities of nodes and arcs, times a factor of their sequence.

    factors (float64[B]): The factors. chances (Chances): Zeros; receives the probabilities.
    """
    node_starts, _, _, _, source, arcs, _, _ = level
    alpha, linear, sums = prefixes
    nodes, of_arcs = chances
    for b in range(starts.shape[0] - 1):
        if starts[b] == starts[b + 1] or log_z[b] == -np.inf:
            continue
        for v in range(node_starts[starts[b + 1] - 1], node_starts[starts[b + 1]]):
            nodes[v] = factors[b] * math.exp(alpha[v] - log_z[b])
        # P(u at t-1, v at t) = P(v) · P(u | v)
        for t in range(starts[b + 1] - 1, starts[b], -1):
            for v in range(node_starts[t], node_starts[t + 1]):
                if nodes[v] == 0.0:
                    continue
                if sums[v] > 0.0:
                    share = nodes[v] / sums[v]
                    for a in range(arcs[v], arcs[v + 1]):
                        u = source[v] + a - arcs[v]
                        of_arcs[a] = share * linear[u] * exponentials[a]
                        nodes[u] += of_arcs[a]
                else:
                    before = alpha[v] - scores[v]
                    for a in range(arcs[v], arcs[v + 1]):
                        u = source[v] + a - arcs[v]
                        of_arcs[a] = nodes[v] * math.exp(alpha[u] + weights[a] - before)
                        nodes[u] += of_arcs[a]


@kernel
def collect(level, chances, starts, out):
    """Add the derivatives with respect to all scores.

    out (tuple): See `add_paths`.
    """
    node_starts, symbol, _, _, _, _, used, trail = level
    nodes, of_arcs = chances
    d_emissions, d_first, d_last, d_transitions, d_grams = out
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for v in range(node_starts[t], node_starts[t + 1]):
                p = nodes[v]
                d_emissions[t, symbol[v]] += p
                if t == starts[b]:
                    d_first[symbol[v]] += p
                if t == starts[b + 1] - 1:
                    d_last[symbol[v]] += p
                # The scores of n-grams that nodes have taken in at lower levels
                for m in range(trail.shape[1]):
                    if trail[v, m] >= 0:
                        _add_use(trail[v, m], p, d_transitions, d_grams)
    for a in range(used.shape[0]):
        _add_use(used[a], of_arcs[a], d_transitions, d_grams)


# ------------------------------------------------------------------------------------------------------- paths


@kernel
def viterbi(level, scores, weights, starts, path, totals):
    """Best path of each sequence; of equal paths, the one with the lowest last state, then the lowest state before it, and so on.

    path (int32[T]): Receives the states, -1 where no path is allowed. totals (float64[B]): Receives the scores.
    """
    node_starts, symbol, _, _, source, arcs, _, _ = level
    delta = np.empty(symbol.shape[0])
    back = np.empty(symbol.shape[0], dtype=np.int64)
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        # delta[v] = scores[v] + max_u(delta[u] + weights[u, v])
        for t in range(begin, end):
            for v in range(node_starts[t], node_starts[t + 1]):
                best = 0.0 if t == begin else -np.inf
                back[v] = -1
                for a in range(arcs[v], arcs[v + 1]):
                    score = delta[source[v] + a - arcs[v]] + weights[a]
                    if score > best:
                        best = score
                        back[v] = source[v] + a - arcs[v]
                delta[v] = best + scores[v]
        totals[b] = follow_nodes(level, delta, back, begin, end, path)


@helper
def follow_nodes(level, delta, back, begin, end, path):
    """Write the best path of a sequence.

    delta (float64[N]), back (int64[N]): Score of the best prefix that ends with each node, and the node before, -1 for none.
    RETURNS (float): The score of the path.
    """
    last = -1
    total = -np.inf
    for v in range(level.starts[end - 1], level.starts[end]):
        if delta[v] > total:
            last = v
            total = delta[v]
    for t in range(end - 1, begin - 1, -1):
        path[t] = level.symbol[last] if last >= 0 else -1
        last = back[last] if last >= 0 else -1
    return total


@kernel
def n_best(level, scores, weights, n, paths, totals):
    """The n best paths of one sequence of at least one token, best first, ties as in `viterbi`.

    paths (int32[n, T]), totals (float64[n]): Receive the paths.
    RETURNS (int): Number of paths.
    """
    node_starts, symbol, _, _, source, arcs, _, _ = level
    n_nodes = symbol.shape[0]
    n_tokens = node_starts.shape[0] - 1
    delta = np.full((n_nodes, n), -np.inf)  # scores of the n best prefixes that end here
    from_node = np.full((n_nodes + 1, n), np.int32(-1))
    from_rank = np.empty((n_nodes + 1, n), dtype=np.int32)
    sums = np.empty(n)
    rows = np.empty(max(1, n_nodes), dtype=np.int64)
    steps = np.zeros(max(1, n_nodes))
    for t in range(n_tokens + 1):
        # One node after the last token
        is_end = t == n_tokens
        for v in range(n_nodes if is_end else node_starts[t], n_nodes + 1 if is_end else node_starts[t + 1]):
            if t == 0:
                delta[v, 0] = scores[v]
                continue
            if t < n_tokens:
                first = source[v]
                n_arcs = arcs[v + 1] - arcs[v]
                steps[:n_arcs] = weights[arcs[v] : arcs[v + 1]]
            else:
                first = node_starts[t - 1]
                n_arcs = n_nodes - node_starts[t - 1]
                steps[:n_arcs] = 0.0
            for k in range(n_arcs):
                rows[k] = first + k
            # The n best of all (source, rank): delta[v, rank] = scores[v] + delta[u, rank'] + weights[u, v]
            found = merge(delta, rows, steps[:n_arcs], sums, from_node[v], from_rank[v])
            for rank in range(found):
                from_node[v, rank] = first + from_node[v, rank]
                if t < n_tokens:
                    delta[v, rank] = sums[rank] + scores[v]
                else:
                    totals[rank] = sums[rank]
    found = 0
    while found < n and from_node[n_nodes, found] >= 0:
        v = n_nodes
        rank = found
        for t in range(n_tokens, 0, -1):
            v, rank = from_node[v, rank], from_rank[v, rank]
            paths[found, t - 1] = symbol[v]
        found += 1
    return found


@kernel
def sample(level, chances, starts, uniforms, drawn):
    """Draw paths from the posterior, backwards from the last token.

    chances (Chances): With factors of 1. uniforms (float64[n, T]). drawn (int32[n, T]): Receives the paths, -1 for none.
    """
    node_starts, symbol, _, _, source, arcs, _, _ = level
    nodes, of_arcs = chances
    for i in range(drawn.shape[0]):
        for b in range(starts.shape[0] - 1):
            v = -1
            for t in range(starts[b + 1] - 1, starts[b] - 1, -1):
                if t == starts[b + 1] - 1:
                    first = node_starts[t]
                    row = nodes[first : node_starts[t + 1]]
                elif v >= 0:
                    first = source[v]
                    row = of_arcs[arcs[v] : arcs[v + 1]]
                else:
                    drawn[i, t] = -1
                    continue
                chosen = draw_mass(row, uniforms[i, t])
                v = first + chosen if chosen >= 0 else -1
                drawn[i, t] = symbol[v] if v >= 0 else -1


# ------------------------------------------------------------------------------------------------------- spans


@kernel
def span_ends(level, chances, continues, starts, enters, leaves):
    """Compute how probably a span begins or ends at each node.

    enters (float64[N]): Receives P(a span begins at the node | the path goes through the node).
    leaves (float64[N]): Zeros; receives P(the path goes through the node, and a span ends there).
    """
    node_starts, symbol, _, _, source, arcs, _, _ = level
    nodes, of_arcs = chances
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            for v in range(node_starts[t], node_starts[t + 1]):
                entering = 0.0
                for a in range(arcs[v], arcs[v + 1]):
                    u = source[v] + a - arcs[v]
                    if not continues[symbol[u], symbol[v]]:
                        entering += of_arcs[a]
                        leaves[u] += of_arcs[a]
                enters[v] = 1.0 if t == starts[b] else entering / nodes[v] if nodes[v] > 0.0 else 0.0
                if t == starts[b + 1] - 1:
                    leaves[v] = nodes[v]


@helper
def _step_back(level, chances, continues, t, open_spans):
    """Follow the open spans from token t back to token t - 1. RETURNS (float): Their probability."""
    node_starts, symbol, _, _, source, arcs, _, _ = level
    nodes, of_arcs = chances
    total = 0.0
    for u in range(node_starts[t - 1], node_starts[t]):
        open_spans[u] = 0.0
    for v in range(node_starts[t], node_starts[t + 1]):
        if open_spans[v] > 0.0:
            for a in range(arcs[v], arcs[v + 1]):
                u = source[v] + a - arcs[v]
                if continues[symbol[u], symbol[v]]:
                    # P(u | v) = P(u, v) / P(v)
                    p = open_spans[v] * (of_arcs[a] / nodes[v])
                    open_spans[u] += p
                    total += p
    return total


@helper
def _close(level, label_of, leaves, t, label, open_spans):
    """Begin to follow backwards the spans of a label that end with token t. RETURNS (float): Their probability."""
    total = 0.0
    for v in range(level.starts[t], level.starts[t + 1]):
        open_spans[v] = leaves[v] if label_of[level.symbol[v]] == label else 0.0
        total += open_spans[v]
    return total


@helper
def _entered(level, enters, t, open_spans):
    """Probability that the open spans begin at token t."""
    total = 0.0
    for v in range(level.starts[t], level.starts[t + 1]):
        # P(the span begins at t, is open until its end) = sum_v open[v] · P(enters | v)
        total += open_spans[v] * enters[v]
    return total


@kernel
def span_probabilities(level, chances, ends, continues, label_of, begin, end, label, probabilities):
    """Probability of each of n spans.

    ends (tuple): From `span_ends`. label_of (int64[S]): The label of each state, -1 for none.
    begin, end, label (int64[n]): The spans. probabilities (float64[n]): Receives the probabilities.
    """
    enters, leaves = ends
    open_spans = np.zeros(enters.shape[0])
    for n in range(begin.shape[0]):
        # Backwards from the end: probability that a span with this end is open at token t
        open_prob = _close(level, label_of, leaves, end[n] - 1, label[n], open_spans)
        for t in range(end[n] - 1, begin[n], -1):
            if open_prob > 0.0:
                open_prob = _step_back(level, chances, continues, t, open_spans)
        probabilities[n] = min(1.0, _entered(level, enters, begin[n], open_spans)) if open_prob > 0.0 else 0.0


@kernel
def likely_spans(level, chances, ends, continues, label_of, starts, min_prob, begin, end, label, probabilities):
    """List all spans with a probability of at least `min_prob`, sorted by last token.

    begin, end, label (int64[n]), probabilities (float64[n]): Receive the first n spans.
    RETURNS (int): Number of spans, perhaps more than n.
    """
    enters, leaves = ends
    open_spans = np.zeros(enters.shape[0])
    n_labels = label_of.max() + 1 if label_of.shape[0] else 0
    found = 0
    for b in range(starts.shape[0] - 1):
        for last in range(starts[b], starts[b + 1]):
            for label_number in range(n_labels):
                # Probability that a span with this end is open at token t
                open_prob = _close(level, label_of, leaves, last, label_number, open_spans)
                for t in range(last, starts[b] - 1, -1):
                    # A longer span has no larger probability than its end
                    if open_prob <= 0.0 or open_prob < min_prob * (1.0 - 1e-9):
                        break
                    p = _entered(level, enters, t, open_spans)
                    if p > 0.0 and p >= min_prob:
                        if found < begin.shape[0]:
                            begin[found] = t
                            end[found] = last + 1
                            label[found] = label_number
                            probabilities[found] = min(1.0, p)
                        found += 1
                    if t > starts[b]:
                        open_prob = _step_back(level, chances, continues, t, open_spans)
    return found
