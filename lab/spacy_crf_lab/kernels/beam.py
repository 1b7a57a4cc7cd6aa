"""Beam search: the best labelling among those that at each token are one of a few.

Of the prefixes that end with a token, the best one of each state, a beam keeps the best few, and only these go on (Lowerre 1976).
What it finds is the best of the labellings whose prefixes are all kept; at the last token none is left out. Prefixes are compared
with the best transition that may follow. Without it those that wait for a large one looked too bad: of german_ler's sentences
(77 tags, 8 kept) a beam missed the best labelling in 4.1 %, and misses it in 0.7 %.

Shapes as in `linear_chain`, `higher_order` and `pieces`.
"""

import numpy as np

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.higher_order import follow_nodes
from spacy_crf.kernels.lattice import MAXIMA
from spacy_crf.kernels.numerics import LANES, best_end
from spacy_crf.kernels.semi_markov import follow_back


@helper
def _choose(values, n, beam, chosen):
    """The places of those of n values (float64[>= n]) that a beam keeps, best first; the lower places of equal values.

    beam (tuple): Number of values that are kept, and their largest distance from the best one.
    chosen (int64[>= width]): Receives the places.
    RETURNS (int): Number of places.
    """
    width, margin = beam
    # Of the values from `least` down none is kept
    found = 0
    least = -np.inf
    # Insertion sort of the best values; a value equal to an earlier one goes behind it
    for k in range(n):
        if values[k] > least:
            m = min(found, width - 1)
            while m > 0 and values[chosen[m - 1]] < values[k]:
                chosen[m] = chosen[m - 1]
                m -= 1
            chosen[m] = k
            found = min(found + 1, width)
            if found == width:
                least = values[chosen[width - 1]]
    # chosen is in falling order: what is too far below the best value is at the end
    while found > 1 and values[chosen[found - 1]] < values[chosen[0]] - margin:
        found -= 1
    return found


@helper(inline="always", fastmath=MAXIMA)
def _advance(row, kept, n, matrices, k, values):
    """values[j] = max(values[j], row[i] + matrices[k, i, j]) for n kept states i (int64[>= n]), four at a time; the last of them
    counts again where fewer than four are left."""
    for m in range(0, n, LANES):
        h = kept[m]
        i = kept[min(m + 1, n - 1)]
        o = kept[min(m + 2, n - 1)]
        p = kept[min(m + 3, n - 1)]
        a = row[h]
        c = row[i]
        d = row[o]
        e = row[p]
        for j in range(len(values)):
            upper = max(a + matrices[k, h, j], c + matrices[k, i, j])
            lower = max(d + matrices[k, o, j], e + matrices[k, p, j])
            values[j] = max(values[j], max(upper, lower))


@kernel(fastmath=MAXIMA)
def viterbi(scores, leaving, beam, states, totals):
    """`linear_chain.viterbi` within a beam.

    scores (linear_chain.ChainArrays)
    leaving (float64[1 or n, S]): The best transition out of each state.
    beam (tuple): Number of states that are kept, and the largest distance of a kept prefix from the best one.
    states (int32[n]), totals (float64[B]): Receive the paths and their scores; -1 and -inf where the beam drops every path.
    """
    emissions, transitions, first, last, starts = scores
    tokens, size = emissions.shape
    step = 1 if transitions.shape[0] > 1 else 0
    beam = min(beam[0], size), beam[1]
    kept = np.empty((tokens, beam[0]), dtype=np.int64)
    counts = np.empty(tokens, dtype=np.int64)
    delta = np.empty((tokens, size))
    now = np.empty(size)
    ranks = np.empty(size)
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        # delta[t, j] = emissions[t, j] + max_i(delta[t-1, i] + transitions[i, j])
        for t in range(begin, end):
            for j in range(size):
                now[j] = first[j] if t == begin else -np.inf
            if t > begin:
                _advance(delta[t - 1], kept[t - 1], counts[t - 1], transitions, t * step, now)
            for j in range(size):
                delta[t, j] = now[j] + emissions[t, j]
            if t < end - 1:
                for j in range(size):
                    ranks[j] = delta[t, j] + leaving[(t + 1) * step, j]
                counts[t] = _choose(ranks, size, beam, kept[t])
        best, totals[b] = best_end(delta, end - 1, last)
        states[begin:end] = best
        for t in range(end - 1, begin if best >= 0 else end, -1):
            # The best kept predecessor of `after`, the lowest state of equals
            after = best
            score = -np.inf
            best = size
            for i in kept[t - 1, : counts[t - 1]]:
                through = delta[t - 1, i] + transitions[t * step, i, after]
                if through > score or (through == score and i < best):
                    best = i
                    score = through
            states[t - 1] = best


# -------------------------------------------------------------------------------------------------------------- pieces


@kernel(fastmath=MAXIMA)
def search(log_potentials, leaving, beam, left, states, totals):
    """`semi_markov.viterbi` within a beam, which keeps a few states of the pieces that end with a token.

    log_potentials (log_space.LogPotentials)
    leaving (float64[1 or n, S]): The best transition out of each state.
    beam (tuple): How many states are kept, and how far below the best one.
    left (float64[n, S]): Receives the scores of the prefixes that are kept, -inf for the others.
    states (int32[n]), totals (float64[B]): Receive the paths and their scores; -1 and -inf where the beam comes to nothing.
    """
    opening, closing, lengths, spans, transitions, first, _, span_of, reach, starts = log_potentials
    longest, size = lengths.shape
    step = 1 if transitions.shape[0] > 1 else 0
    beam = min(beam[0], size), beam[1]
    chosen = np.empty(beam[0], dtype=np.int64)
    entered = np.empty(opening.shape)
    now = np.empty(size)
    ranks = np.empty(size)
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        found = 0
        for t in range(begin, end):
            # entered[t, j] = opening[t, j] + max_i(left[t-1, i] + transitions[i, j])
            for j in range(size):
                now[j] = first[j] if t == begin else -np.inf
            if t > begin:
                _advance(left[t - 1], chosen, found, transitions, t * step, now)
            for j in range(size):
                entered[t, j] = now[j] + opening[t, j]
                now[j] = -np.inf
            # left[t, j] = closing[t, j] + max_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
            for k in range(min(longest, t - begin + 1)):
                span = span_of[t - k, k]
                for j in range(size):
                    score = entered[t - k, j] + lengths[k, j]
                    if span >= 0:
                        score += spans[span, j]
                    now[j] = max(now[j], score if t - k >= reach[t, j] else -np.inf)
            for j in range(size):
                now[j] += closing[t, j]
                # Only kept states go on, so the others are -inf, except at the end
                left[t, j] = now[j] if t == end - 1 else -np.inf
            if t < end - 1:
                for j in range(size):
                    ranks[j] = now[j] + leaving[(t + 1) * step, j]
                found = _choose(ranks, size, beam, chosen)
                for m in range(found):
                    left[t, chosen[m]] = now[chosen[m]]
        totals[b] = follow_back(log_potentials, entered, left, begin, end, states)


# ------------------------------------------------------------------------------------------------------------ lattices


@kernel
def search_lattice(level, scores, weights, leaving, beam, starts, kept, states, totals):
    """`higher_order.viterbi` within a beam, which keeps a few nodes of each token.

    level (higher_order.Level), scores (float64[N]), weights (float64[A]): As there.
    leaving (float64[1 or n, S]): The best transition out of each state.
    beam (tuple): How many nodes are kept, and how far below the best one.
    kept (bool[N]): Receives which.
    states (int32[n]), totals (float64[B]): Receive the paths and their scores; -1 and -inf where the beam comes to nothing.
    """
    node_starts, symbol, _, _, source, arcs, _, _ = level
    step = 1 if leaving.shape[0] > 1 else 0
    most = 0
    for t in range(len(node_starts) - 1):
        most = max(most, node_starts[t + 1] - node_starts[t])
    beam = min(beam[0], most), beam[1]
    chosen = np.empty(beam[0], dtype=np.int64)
    ranks = np.empty(most)
    delta = np.empty(len(symbol))
    back = np.empty(len(symbol), dtype=np.int64)
    before = np.empty(most, dtype=np.int64)  # the nodes that are kept of the token before, in their order
    kept[:] = False
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        n_before = 0
        for t in range(begin, end):
            nodes = node_starts[t + 1] - node_starts[t]
            # delta[v] = scores[v] + max_u(delta[u] + weights[u, v]) over the kept nodes u, which are in order
            for v in range(node_starts[t], node_starts[t + 1]):
                best = 0.0 if t == begin else -np.inf
                back[v] = -1
                first = source[v]
                behind = source[v] + arcs[v + 1] - arcs[v]
                m = np.searchsorted(before[:n_before], first)
                while m < n_before and before[m] < behind:
                    score = delta[before[m]] + weights[arcs[v] + before[m] - first]
                    if score > best:
                        best = score
                        back[v] = before[m]
                    m += 1
                delta[v] = best + scores[v]
            found = nodes
            if t < end - 1:
                for k in range(nodes):
                    v = node_starts[t] + k
                    ranks[k] = delta[v] + leaving[(t + 1) * step, symbol[v]]
                found = _choose(ranks, nodes, beam, chosen)
            for k in range(found):
                kept[node_starts[t] + (chosen[k] if t < end - 1 else k)] = True
            # The kept nodes in their order, not in that of their ranks
            n_before = 0
            for v in range(node_starts[t], node_starts[t + 1]):
                if kept[v]:
                    before[n_before] = v
                    n_before += 1
        totals[b] = follow_nodes(level, delta, back, begin, end, states)
