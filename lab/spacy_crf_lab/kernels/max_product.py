"""Max-product: the messages of `ties` and the passes of `linear_chain` with maxima in place of sums, in logarithms.

T tokens, S states, L labels, E ties, V tied tokens (places), see `ties` and `gibbs`.
"""

import numpy as np

from spacy_crf.kernels import helper, kernel

from .gibbs import best_path, own_scores


@kernel
def max_marginals(chains, label_of, rows, out):
    """The best score of all labellings of its sequence in which a token has a label.

    chains (ChainArrays), label_of (int64[S])
    rows (int64[R]): Tokens, in order. out (float64[R, L]): Receives the scores.
    """
    emissions, transitions, _, _, starts = chains
    n_tokens, size = emissions.shape
    step = 1 if transitions.shape[0] > 1 else 0
    before = np.empty((n_tokens, size))
    behind = np.zeros((n_tokens, size))
    scores = np.empty(size)
    r = 0
    for b in range(len(starts) - 1):
        begin = starts[b]
        end = starts[b + 1]
        if r == len(rows) or rows[r] >= end:
            continue
        # before[t, j] = emissions[t, j] + max_i(before[t-1, i] + transitions[i, j])
        for t in range(begin, end):
            own_scores(chains, t, begin, end, before[t])
            if t > begin:
                scores[:] = -np.inf
                for i in range(size):
                    for j in range(size):
                        scores[j] = max(scores[j], before[t - 1, i] + transitions[t * step, i, j])
                before[t] += scores
        # behind[t, i] = max_j(transitions[i, j] + emissions[t+1, j] + behind[t+1, j])
        for t in range(end - 2, begin - 1, -1):
            own_scores(chains, t + 1, begin, end, scores)
            scores += behind[t + 1]
            for i in range(size):
                largest = -np.inf
                for j in range(size):
                    largest = max(largest, transitions[(t + 1) * step, i, j] + scores[j])
                behind[t, i] = largest
        while r < len(rows) and rows[r] < end:
            out[r] = -np.inf
            for j in range(size):
                label = label_of[j]
                out[r, label] = max(out[r, label], before[rows[r], j] + behind[rows[r], j])
            r += 1


@helper
def _send(beliefs, table, turned, u, v, back, forth, damping, message):
    """Send the message of place u to place v, and add it to the beliefs of v.

    back, forth (float64[L]): The message from v to u, and this one, which is replaced. turned (bool): Whether u is the target.
    RETURNS (float): The largest change of a number of the message.
    """
    message[:] = -np.inf
    for i in range(len(message)):
        # m[u>v](j) = max_i(b[u](i) - m[v>u](i) + table[i, j]), less its maximum
        cavity = beliefs[u, i] - back[i]
        for j in range(len(message)):
            message[j] = max(message[j], cavity + (table[j, i] if turned else table[i, j]))
    largest = message.max()
    if largest == -np.inf:  # nothing is possible there
        return 0.0
    moved = 0.0
    for j in range(len(message)):
        damped = message[j] - largest
        damped += damping * (forth[j] - damped)
        moved = max(moved, abs(damped - forth[j]))
        # A belief contains each message once
        beliefs[v, j] += damped - forth[j]
        forth[j] = damped
    return moved


@kernel
def sweep(ties, some, bounds, damping, sweeps, tolerance, beliefs, messages):
    """Send messages along some ties in both directions until they converge, as `ties.sweep` does, with tables of scores:

    m[u>v](j) = max_i(b[u](i) - m[v>u](i) + table[i, j])
    """
    ends, kind, tables, _ = ties
    message = np.empty(beliefs.shape[1])
    for c in range(len(bounds) - 1):
        begin = bounds[c]
        end = bounds[c + 1]
        for _ in range(sweeps if begin < end else 0):
            largest = 0.0
            for step in range(2 * (end - begin)):
                side, n = (0, begin + step) if step < end - begin else (1, 2 * end - begin - 1 - step)
                e = some[n]
                u = ends[side, e]
                v = ends[1 - side, e]
                into = messages[e]
                table = tables[kind[e]]
                back = into[side]
                forth = into[1 - side]
                largest = max(largest, _send(beliefs, table, side == 1, u, v, back, forth, damping[c], message))
            if largest < tolerance:
                break


@kernel
def decide(chains, neighbours, incoming, order, states):
    """Give one sequence after the other its best labelling, given the labels decided before it and the messages from the
    sequences after it. Without cycles the result is a best labelling of all, even if several are equally good.

    incoming (float64[2 E, L]): Messages of the other ends of `gibbs.Neighbours`.
    order (int64[B]): Order of the sequences. states (int32[T]): Receives the labelling, -1 where nothing is decided.
    """
    bounds, ends, kinds, tables, label_of = neighbours
    rows = np.empty(chains.emissions.shape)
    states[:] = -1
    for b in order:
        begin = chains.starts[b]
        end = chains.starts[b + 1]
        for t in range(begin, end):
            own_scores(chains, t, begin, end, rows[t])
            for e in range(bounds[t], bounds[t + 1]):
                other = states[ends[e]]
                added = incoming[e] if other < 0 else tables[kinds[e], label_of[other]]
                for j in range(len(label_of)):
                    rows[t, j] += added[label_of[j]]
        best_path(chains, rows, begin, end, states)
