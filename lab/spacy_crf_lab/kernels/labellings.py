"""The best labellings of a graph with several states for a tag, where the score of a labelling is the sum over its paths.

Best-first search (A*) over prefixes of tags. A prefix keeps the sums over its paths, one for each state of its last tag. Its
bound takes, behind each state, the best of the next tags:

    rest[t, i] = max_y logsum_{j of tag y} (arc[i, j] + emissions[t+1, j] + rest[t+1, j])
    bound(prefix) = logsum_i (alpha[i] + rest[t, i])

A maximum behind each single state is at least the maximum behind all of them together. So no labelling is better than the bound
of its prefixes, and complete labellings leave the queue best first. With one state for each tag the bound is exact; otherwise the
problem is NP-hard (Lyngso & Pedersen 2002), so the search has a limit.

Shapes: n tokens, S states, those of one tag side by side. Transitions are [1, S, S] or [n, S, S]. Arcs are the transitions that
are possible anywhere, by their source: the arcs of state i are ``source_starts[i]:source_starts[i + 1]``.
"""

from heapq import heappop, heappush

import numpy as np

from spacy_crf.kernels import helper, kernel


@helper
def _bounds(scores, arcs, tag_of, begin, rest):
    """Write to rest (float64[n, S]) the best score behind each state of the sequence that starts at token `begin`."""
    emissions, transitions, _, last, _ = scores
    source_starts, target = arcs
    tokens, states = rest.shape
    for i in range(states):
        rest[tokens - 1, i] = last[i]
    for t in range(tokens - 2, -1, -1):
        k = begin + t + 1 if transitions.shape[0] > 1 else 0
        for i in range(states):
            best = largest = -np.inf
            total = 0.0
            tag = -1
            for a in range(source_starts[i], source_starts[i + 1]):
                j = target[a]
                # A running log-sum over the states of one tag; at the next tag, it competes for the maximum
                if tag_of[j] != tag:
                    if total > 0.0:
                        best = max(best, largest + np.log(total))
                    largest = -np.inf
                    total = 0.0
                    tag = tag_of[j]
                value = transitions[k, i, j] + emissions[begin + t + 1, j] + rest[t + 1, j]
                if value > largest:
                    # The new maximum rescales the sum so far
                    total = total * np.exp(largest - value) + 1.0
                    largest = value
                elif value > -np.inf:
                    total += np.exp(value - largest)
            if total > 0.0:
                best = max(best, largest + np.log(total))
            rest[t, i] = best


@helper
def _larger(array, size):
    """A copy of an array with more room."""
    larger = np.empty(size, dtype=array.dtype)
    larger[: len(array)] = array
    return larger


@helper
def _search(scores, arcs, tag_of, begin, end, most, labellings, totals):
    """The best labellings of one sequence that has tokens, see `best_labellings`. RETURNS (int, bool): How many were found, and
    whether there are no others as good."""
    emissions, transitions, first, _, _ = scores
    source_starts, target = arcs
    tokens = end - begin
    states = tag_of.shape[0]
    rest = np.empty((tokens, states))
    _bounds(scores, arcs, tag_of, begin, rest)
    # Prefixes: their last state (the first one of its tag), last token, parent, and where their sums begin in `sums`
    sums = np.empty(1024)
    (state, place, parent, start) = np.empty((4, 1024), dtype=np.int64)
    n_nodes = n_sums = n_taken = found = 0
    queue = [(0.0, n_nodes)]  # minus the bound of each prefix, and its number
    queue.pop()
    alpha = np.empty(states)
    largest = np.empty(states)
    current = -1
    t = -1
    while True:
        # alpha[j] = emissions[t+1, j] + logsum_i(sums[i] + arc[i, j])
        alpha[:] = 0.0
        largest[:] = -np.inf
        if current < 0:
            for j in range(states):
                largest[j] = first[j]
                alpha[j] = 1.0
        else:
            k = begin + t + 1 if transitions.shape[0] > 1 else 0
            # Two rounds over the arcs: the maxima, then the sums of exp(value - maximum)
            i0 = state[current]
            tag = tag_of[state[current]]
            for done in range(2):
                i = i0
                while i < states and tag_of[i] == tag:
                    before = sums[start[current] + i - i0]
                    if before > -np.inf:
                        for a in range(source_starts[i], source_starts[i + 1]):
                            j = target[a]
                            value = before + transitions[k, i, j]
                            if done == 0:
                                largest[j] = max(largest[j], value)
                            elif value > -np.inf:
                                alpha[j] += np.exp(value - largest[j])
                    i += 1
        for j in range(states):
            is_possible = largest[j] > -np.inf and alpha[j] > 0.0
            alpha[j] = np.log(alpha[j]) + largest[j] + emissions[begin + t + 1, j] if is_possible else -np.inf
        # The prefixes that are longer by one tag
        j = 0
        while j < states:
            j0 = j
            tag = tag_of[j]
            # bound = logsum_j(alpha[j] + rest[t+1, j]) over the states of the tag
            top = -np.inf
            total = 0.0
            while j < states and tag_of[j] == tag:
                top = max(top, alpha[j] + rest[t + 1, j])
                j += 1
            if top == -np.inf:
                continue
            if n_nodes == len(state):
                size = 2 * n_nodes
                state = _larger(state, size)
                place = _larger(place, size)
                parent = _larger(parent, size)
                start = _larger(start, size)
            if n_sums + j - j0 > len(sums):
                sums = _larger(sums, 2 * (n_sums + j - j0))
            start[n_nodes] = n_sums
            for i in range(j0, j):
                sums[n_sums] = alpha[i]
                n_sums += 1
                if alpha[i] + rest[t + 1, i] > -np.inf:
                    total += np.exp(alpha[i] + rest[t + 1, i] - top)
            state[n_nodes] = j0
            place[n_nodes] = t + 1
            parent[n_nodes] = current
            heappush(queue, (-top - np.log(total), n_nodes))
            n_nodes += 1
        # The next one to look at: those that are complete are answers
        while True:
            if len(queue) == 0 or found == len(totals):
                return found, True
            cost, current = heappop(queue)
            t = place[current]
            if t < tokens - 1:
                break
            totals[found] = -cost
            node = current
            while node >= 0:
                labellings[found, begin + place[node]] = tag_of[state[node]]
                node = parent[node]
            found += 1
        n_taken += 1
        if n_taken > most:
            return found, False


@kernel
def best_labellings(scores, arcs, tag_of, most, labellings, totals, found, proven):
    """The best labellings of each sequence, best first.

    scores (linear_chain.Scores), arcs (int64[S + 1], int64[A]): Where the arcs of each source begin, and their targets.
    tag_of (int64[S]): The tag of each state.
    most (int): Prefixes to look at for each token of a labelling, beside 10,000.
    labellings (int32[N, n]), totals (float64[B, N]): Receive the labellings, as tags, and their scores.
    found (int64[B]): Receives how many there are, N at most. proven (bool[B]): Whether there are no others as good.
    """
    starts = scores.starts
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        if begin == end:
            totals[b, 0] = 0.0
            found[b] = 1
            proven[b] = True
            continue
        limit = 10_000 + most * (end - begin) * totals.shape[1]
        found[b], proven[b] = _search(scores, arcs, tag_of, begin, end, limit, labellings, totals[b])
