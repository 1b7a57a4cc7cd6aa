"""Rules that learn from one sequence after the other: score it, see what the loss wants, change the weights it uses.

All weights are one vector of M slots: those of the features of states, of the features of pairs of states, then a matrix
[S + 2, S] of transitions, firsts and lasts, -inf where forbidden. Rows of features with many states own a slot for every
state, so not every slot is a weight (``learned``). A rule touches the slots of a sequence's features and nothing else.

Shapes: n tokens of a sequence, S states, P = S rounded up to a multiple of LANES, the added columns forbidden.
Every kernel takes the sequences in the order given and answers with the sum of their losses and with the place in
that order where a loss was not a finite number, -1 if none was. It stops there.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..types import ChainCorpus, Floats

LANES = 4
LINEAR = {"reassoc", "contract"}
TINY = 1e-100
SPREAD = 300.0

# Helpers are called by kernels only. Ways in for Python would take most of the time to compile, with so many arrays.
HELPER = {"cache": True, "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class SequenceWork(NamedTuple):
    """Room for one sequence after the other."""

    size: int  # S
    emissions: Floats  # [n, P]
    chain: Floats  # [S + 2, S] scores of transitions, firsts, lasts
    pair_scores: Floats  # [n, S * S], where there are features of pairs
    d_emissions: Floats  # [n, P]
    d_chain: Floats  # [S + 2, S]
    d_pairs: Floats  # [n, S * S]
    transitions: Floats  # [P, P]
    alpha: Floats  # [n, P]
    beta: Floats  # [2, P]
    scaled: Floats  # [n, P]
    kept: Floats  # [n, P]
    sums: Floats  # [P, P]
    path: NDArray[np.int32]  # [n]
    gradient: Floats  # [M] of the sequence, 0 between two sequences
    marked: NDArray[np.bool_]  # [M]
    touched: NDArray[np.int64]  # slots whose gradient may not be 0


# ----------------------------------------------------------------------------------------------------------- the rules


@njit(cache=True, nogil=True)
def perceptron(corpus: ChainCorpus, order, costs, weights, drift, count):
    """Collins 2002, figure 1: w += features(annotation) - features(best labelling).

    drift (float64[M]): Sum of all updates, each times the updates before it: the average is weights - drift / count.
    count (int): How many sequences came before.
    """
    work = _workspace(corpus)
    touched = work.touched
    gradient = work.gradient
    total = 0.0
    for k in range(len(order)):
        loss = _gradient(corpus, order[k], weights, 1.0, True, costs, work)
        if not np.isfinite(loss):
            return total, k
        total += loss
        for n in range(_collect(corpus, order[k], work)):
            slot = touched[n]
            update = gradient[slot]
            weights[slot] -= update
            drift[slot] -= (count + k) * update
            gradient[slot] = 0.0
    return total, -1


@njit(cache=True, nogil=True)
def voted_perceptron(corpus: ChainCorpus, order, costs, weights, updates):
    """The weights stay as they are; all updates are added up.

    updates (float64[M]): Receives their mean over the sequences that ask for one.
    """
    work = _workspace(corpus)
    touched = work.touched
    gradient = work.gradient
    total = 0.0
    n_updates = 0
    for k in range(len(order)):
        loss = _gradient(corpus, order[k], weights, 1.0, True, costs, work)
        if not np.isfinite(loss):
            return total, k
        total += loss
        n_touched = _collect(corpus, order[k], work)
        n_updates += n_touched > 0
        for n in range(n_touched):
            slot = touched[n]
            updates[slot] -= gradient[slot]
            gradient[slot] = 0.0
    if n_updates > 0:
        updates /= n_updates
    return total, -1


@njit(cache=True, nogil=True)
def passive_aggressive(corpus: ChainCorpus, order, costs, weights, drift, count, kind, c, sensitive):
    """Crammer et al. 2006: the smallest change after which the annotation wins by a margin.

    kind (int): 0 for PA (eq. 6: tau = loss / |d|²), 1 for PA-I (at most c), 2 for PA-II (|d|² + 1 / 2c).
    sensitive (bool): The margin is the root of the number of wrong tokens instead of 1; costs are a margin already.
    drift, count: As in `perceptron`.
    """
    factors = corpus.weights
    work = _workspace(corpus)
    gradient = work.gradient
    touched = work.touched
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        weight = factors[b]
        loss = _gradient(corpus, b, weights, 1.0, True, costs, work)
        if not np.isfinite(loss):
            return total, k
        n_touched = _collect(corpus, b, work)
        if n_touched == 0 or weight == 0.0:
            continue
        loss /= weight
        if len(costs) == 0:
            loss += np.sqrt(_n_wrong(corpus, b, work)) if sensitive else 1.0
        square = 0.0
        for n in range(n_touched):
            square += (gradient[touched[n]] / weight) ** 2
        if kind == 2:
            tau = loss / (square + 0.5 / (c * weight))
        else:
            tau = loss / square if square > 0.0 else 0.0
            if kind == 1:
                tau = min(tau, c * weight)
        total += weight * max(0.0, loss)
        tau = max(0.0, tau) / weight
        for n in range(n_touched):
            slot = touched[n]
            update = tau * gradient[slot]
            weights[slot] -= update
            drift[slot] -= (count + k) * update
            gradient[slot] = 0.0
    return total, -1


@njit(cache=True, nogil=True)
def arow(corpus: ChainCorpus, order, costs, weights, variance, gamma):
    """Crammer, Kulesza & Dredze 2009, figure 1, with a diagonal covariance.

    variance (float64[M]): How unsure each weight is. It only falls.
    gamma (float): r of the paper. The margin is the number of wrong tokens; costs are a margin already.
    """
    factors = corpus.weights
    work = _workspace(corpus)
    touched = work.touched
    gradient = work.gradient
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        weight = factors[b]
        loss = _gradient(corpus, b, weights, 1.0, True, costs, work)
        if not np.isfinite(loss):
            return total, k
        n_touched = _collect(corpus, b, work)
        if n_touched == 0 or weight == 0.0:
            continue
        loss /= weight
        if len(costs) == 0:
            loss += _n_wrong(corpus, b, work)
        confidence = 0.0
        for n in range(n_touched):
            slot = touched[n]
            gradient[slot] /= weight
            confidence += variance[slot] * gradient[slot] ** 2
        noise = gamma / weight
        alpha = max(0.0, loss) / (confidence + noise)
        total += weight * max(0.0, loss)
        for n in range(n_touched):
            slot = touched[n]
            difference = gradient[slot]
            weights[slot] -= alpha * variance[slot] * difference
            variance[slot] = 1.0 / (1.0 / variance[slot] + difference**2 / noise)
            gradient[slot] = 0.0
    return total, -1


@njit(cache=True, nogil=True)
def sgd(corpus: ChainCorpus, order, maximum, costs, weights, scale, decay, rate, offset, count):
    """Stochastic gradient descent on loss / B + decay / 2 · w²; w = scale · weights, so that shrinking all weights is one
    product (Shalev-Shwartz, Singer & Srebro 2007, section 2.3).

    rate (float): Numerator of the learning rate rate / (offset + steps).
    RETURNS: the scale too.
    """
    work = _workspace(corpus)
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        eta = rate / (offset + count + k)
        loss = _gradient(corpus, b, weights, scale, maximum, costs, work)
        if not np.isfinite(loss):
            return total, k, scale
        total += loss
        scale *= 1.0 - eta * decay
        _descend(corpus, b, eta / scale, weights, work)
        if scale < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= scale
            scale = 1.0
    return total, -1, scale


@njit(cache=True, nogil=True)
def sgd_l1(corpus: ChainCorpus, order, maximum, costs, weights, scale, decay, rate, offset, count, l1, due, paid):
    """`sgd` with the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009, figure 2.

    l1 (float): Weight of |w| per sequence.
    due (float): u, what any weight could have been charged so far. paid (float64[M]): q, what each was.
    RETURNS: the scale and what is due too.
    """
    work = _workspace(corpus)
    touched = work.touched
    gradient = work.gradient
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        eta = rate / (offset + count + k)
        loss = _gradient(corpus, b, weights, scale, maximum, costs, work)
        if not np.isfinite(loss):
            return total, k, scale, due
        total += loss
        scale *= 1.0 - eta * decay
        due += eta * l1
        for n in range(_collect(corpus, b, work)):
            slot = touched[n]
            weights[slot] -= eta / scale * gradient[slot]
            gradient[slot] = 0.0
            weights[slot] = _charge(weights[slot] * scale, due, paid, slot) / scale
        if scale < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= scale
            scale = 1.0
    return total, -1, scale, due


@njit(**HELPER)
def _charge(weight, due, paid, slot):
    before = weight
    if weight > 0.0:
        weight = max(0.0, weight - (due + paid[slot]))
    elif weight < 0.0:
        weight = min(0.0, weight + (due - paid[slot]))
    paid[slot] += weight - before
    return weight


@njit(cache=True, nogil=True)
def charge_all(learned, weights, scale, due, paid):
    """Brings every weight up to date, the used and the unused."""
    for slot in range(len(weights)):
        if learned[slot]:
            weights[slot] = _charge(weights[slot] * scale, due, paid, slot) / scale


@njit(cache=True, nogil=True)
def adagrad(corpus: ChainCorpus, order, maximum, costs, weights, squares, seen, rate, epsilon, l1, l2, count):
    """Duchi, Hazan & Singer 2011, section 5.1 (composite mirror descent), each weight catching up when it is used.

    squares (float64[M]): Sums of the squared gradients. seen (int64[M]): Up to which step a weight is regularized.
    l1, l2 (float): Weights of |w| and w² per sequence.
    """
    work = _workspace(corpus)
    touched = work.touched
    gradient = work.gradient
    regularized = l1 > 0.0 or l2 > 0.0
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        if regularized:
            _catch_up_sequence(corpus, b, weights, squares, seen, rate, epsilon, l1, l2, count + k)
        loss = _gradient(corpus, b, weights, 1.0, maximum, costs, work)
        if not np.isfinite(loss):
            return total, k
        total += loss
        for n in range(_collect(corpus, b, work)):
            slot = touched[n]
            squares[slot] += gradient[slot] ** 2
            weights[slot] -= rate / (epsilon + np.sqrt(squares[slot])) * gradient[slot]
            gradient[slot] = 0.0
    return total, -1


@njit(**HELPER)
def _catch_up(weight, square, steps, rate, epsilon, l1, l2):
    """So many proximal steps w <- max(0, |w| - eta l1) / (1 + 2 eta l2) without a gradient in between, as one."""
    if square == 0.0 or steps == 0 or weight == 0.0:
        return weight
    eta = rate / (epsilon + np.sqrt(square))
    shrink = 1.0 / (1.0 + 2.0 * eta * l2)
    power = shrink**steps
    charged = steps if l2 == 0.0 else shrink * (1.0 - power) / (1.0 - shrink)
    size = abs(weight) * power - eta * l1 * charged
    return np.sign(weight) * max(0.0, size)


@njit(**HELPER)
def _catch_up_sequence(corpus, b, weights, squares, seen, rate, epsilon, l1, l2, now):
    starts = corpus.starts
    row_starts = corpus.row_starts
    slot_starts = corpus.slot_starts
    rows = corpus.rows
    pair_row_starts = corpus.pair_row_starts
    pair_slot_starts = corpus.pair_slot_starts
    pair_rows = corpus.pair_rows
    chain_start = corpus.chain_start
    learned = corpus.learned
    for t in range(starts[b], starts[b + 1]):
        for n in range(row_starts[t], row_starts[t + 1]):
            for slot in range(slot_starts[rows[n]], slot_starts[rows[n] + 1]):
                if seen[slot] < now:
                    weights[slot] = _catch_up(weights[slot], squares[slot], now - seen[slot], rate, epsilon, l1, l2)
                    seen[slot] = now
        for n in range(pair_row_starts[t], pair_row_starts[t + 1]):
            for slot in range(pair_slot_starts[pair_rows[n]], pair_slot_starts[pair_rows[n] + 1]):
                if seen[slot] < now:
                    weights[slot] = _catch_up(weights[slot], squares[slot], now - seen[slot], rate, epsilon, l1, l2)
                    seen[slot] = now
    for slot in range(chain_start, len(weights)):
        if learned[slot] and seen[slot] < now:
            weights[slot] = _catch_up(weights[slot], squares[slot], now - seen[slot], rate, epsilon, l1, l2)
            seen[slot] = now


@njit(cache=True, nogil=True)
def catch_up_all(learned, weights, squares, seen, rate, epsilon, l1, l2, now):
    """Brings every weight up to date with the regularizer."""
    for slot in range(len(weights)):
        if learned[slot]:
            weights[slot] = _catch_up(weights[slot], squares[slot], now - seen[slot], rate, epsilon, l1, l2)
        seen[slot] = now


@njit(cache=True, nogil=True)
def frank_wolfe(corpus: ChainCorpus, order, costs, weights, nodes, edges, dual, l2):
    """Lacoste-Julien, Jaggi, Schmidt & Pletscher 2013, algorithm 3: each sequence keeps the mean of the labellings that
    it met, and moves it towards its most violating labelling by the best step.

    nodes (float64[T, S]), edges (float64[B, S + 2, S]): The mean uses of each score, less the annotation's.
    dual (float64[B]): The mean cost of each sequence's labellings.
    """
    starts = corpus.starts
    factors = corpus.weights
    work = _workspace(corpus)
    size = work.size
    d_emissions = work.d_emissions
    d_chain = work.d_chain
    touched = work.touched
    gradient = work.gradient
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        begin, end = starts[b], starts[b + 1]
        loss = _gradient(corpus, b, weights, 1.0, True, costs, work)
        if not np.isfinite(loss):
            return total, k
        total += loss
        cost = factors[b] * _cost_of_best(corpus, b, costs, work)
        for t in range(end - begin):  # where to go, less where it is
            for j in range(size):
                d_emissions[t, j] -= nodes[begin + t, j]
        for i in range(size + 2):
            for j in range(size):
                d_chain[i, j] -= edges[b, i, j]
        n_touched = _collect(corpus, b, work)
        slope, square = _along(work, n_touched, weights)
        # The dual is sum of costs - |sum of uses|² / 4 l2, and w = -uses / 2 l2.
        gap = slope + cost - dual[b]
        square /= 2.0 * l2
        step = 1.0 if square <= 0.0 else min(1.0, gap / square)
        if not step > 0.0 or (square <= 0.0 and not gap > 0.0):
            step = 0.0
        for n in range(n_touched):
            slot = touched[n]
            weights[slot] -= step * gradient[slot] / (2.0 * l2)
            gradient[slot] = 0.0
        dual[b] += step * (cost - dual[b])
        for t in range(end - begin):
            for j in range(size):
                nodes[begin + t, j] += step * d_emissions[t, j]
        for i in range(size + 2):
            for j in range(size):
                edges[b, i, j] += step * d_chain[i, j]
    return total, -1


@njit(cache=True, nogil=True)
def exponentiated_gradient(
    corpus: ChainCorpus, order, costs, weights, nodes, edges, dual, theta_nodes, theta_edges, rates, first, l2
):
    """Bartlett, Collins, Taskar & McAllester 2004, figure 2: the distribution over a sequence's labellings is that of a
    chain with scores theta, and the step adds rate · (score + cost) to them. The rate of each sequence is halved until the
    dual grows, and grows by a twentieth when it did (Collins et al. 2008, section 6).

    nodes, edges, dual: As in `frank_wolfe`, of the distribution. theta_nodes (float64[T, S]), theta_edges
    (float64[B, S + 2, S]): Its scores, -inf where forbidden. rates (float64[B]).
    first (bool): Nothing is known of the distributions yet: they replace the annotation, whatever the dual says.
    """
    starts = corpus.starts
    factors = corpus.weights
    gold = corpus.gold
    work = _workspace(corpus)
    size = work.size
    emissions = work.emissions
    chain = work.chain
    d_emissions = work.d_emissions
    d_chain = work.d_chain
    touched = work.touched
    gradient = work.gradient
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        begin, end = starts[b], starts[b + 1]
        weight = factors[b]
        if begin == end or weight == 0.0:
            continue
        loss = _gradient(corpus, b, weights, 1.0, True, costs, work)
        if not np.isfinite(loss):
            return total, k
        total += loss
        ascent_nodes = emissions[: end - begin, :size].copy()  # with the cost
        ascent_edges = chain.copy()
        for _ in range(20):
            rate = rates[b]
            for t in range(end - begin):
                for j in range(size):
                    emissions[t, j] = theta_nodes[begin + t, j] + rate * ascent_nodes[t, j]
            for i in range(size + 2):
                for j in range(size):
                    chain[i, j] = theta_edges[b, i, j] + rate * ascent_edges[i, j]
            d_emissions[: end - begin] = 0.0
            d_chain[:] = 0.0
            log_z = _infer(corpus, begin, end - begin, False, 1.0, work)
            if not np.isfinite(log_z):
                return total, k
            cost = 0.0
            for t in range(end - begin):
                named = gold[begin + t]
                for j in range(size):
                    cost += weight * d_emissions[t, j] * costs[named, j]
                    d_emissions[t, j] *= weight
            d_chain *= weight
            _use_path(corpus, begin, gold[begin:end], -weight, work)
            for t in range(end - begin):
                for j in range(size):
                    d_emissions[t, j] -= nodes[begin + t, j]
            for i in range(size + 2):
                for j in range(size):
                    d_chain[i, j] -= edges[b, i, j]
            n_touched = _collect(corpus, b, work)
            slope, square = _along(work, n_touched, weights)
            growth = cost - dual[b] + slope - square / (4.0 * l2)
            if growth >= 0.0 or first:
                for n in range(n_touched):
                    slot = touched[n]
                    weights[slot] -= gradient[slot] / (2.0 * l2)
                    gradient[slot] = 0.0
                dual[b] = cost
                for t in range(end - begin):
                    # Only differences within a row matter, so the scores may stay small.
                    largest = emissions[t, :size].max()
                    for j in range(size):
                        nodes[begin + t, j] += d_emissions[t, j]
                        theta_nodes[begin + t, j] = max(emissions[t, j] - largest, -1e4)
                for i in range(size + 2):
                    for j in range(size):
                        edges[b, i, j] += d_chain[i, j]
                        theta_edges[b, i, j] = chain[i, j]
                rates[b] *= 1.05
                break
            for n in range(n_touched):
                gradient[touched[n]] = 0.0
            rates[b] *= 0.5
    return total, -1


@njit(cache=True, nogil=True)
def loss_of(corpus: ChainCorpus, order, maximum, costs, weights):
    """The loss of some sequences at fixed weights."""
    work = _workspace(corpus)
    total = 0.0
    for k in range(len(order)):
        total += _gradient(corpus, order[k], weights, 1.0, maximum, costs, work)
    return total


# ------------------------------------------------------------------------------------------- what a sequence asks for


@njit(**HELPER)
def _workspace(corpus):
    size = corpus.n_states
    width = (size + LANES - 1) // LANES * LANES
    longest = 1
    for b in range(len(corpus.starts) - 1):
        longest = max(longest, corpus.starts[b + 1] - corpus.starts[b])
    pairs = longest if len(corpus.pair_rows) > 0 else 0
    return SequenceWork(
        size,
        np.full((longest, width), -np.inf),  # emissions
        np.zeros((size + 2, size)),  # chain
        np.zeros((pairs, size * size)),  # pair_scores
        np.zeros((longest, width)),  # d_emissions
        np.zeros((size + 2, size)),  # d_chain
        np.zeros((pairs, size * size)),  # d_pairs
        np.full((width, width), -np.inf),  # transitions
        np.zeros((longest, width)),  # alpha
        np.zeros((2, width)),  # beta
        np.zeros((longest, width)),  # scaled
        np.zeros((longest, width)),  # kept
        np.zeros((width, width)),  # sums
        np.zeros(longest, dtype=np.int32),  # path
        np.zeros(corpus.learned.shape[0]),  # gradient
        np.zeros(corpus.learned.shape[0], dtype=np.bool_),  # marked
        np.zeros(corpus.most_slots, dtype=np.int64),  # touched
    )


@njit(**HELPER)
def _gradient(corpus, b, weights, scale, maximum, costs, work):
    """Loss of a sequence; leaves its derivative in work.d_emissions, work.d_chain and work.d_pairs.

    costs (float64[S, S] or [0, 0]): Added to the score of each state where the annotation says another one.
    RETURNS (float): The loss, times the weight of the sequence.
    """
    starts = corpus.starts
    factors = corpus.weights
    is_known = corpus.is_known
    gold = corpus.gold
    clamp = corpus.clamp
    d_chain = work.d_chain
    d_emissions = work.d_emissions
    d_pairs = work.d_pairs
    emissions = work.emissions
    size = work.size
    kept = work.kept
    begin, end = starts[b], starts[b + 1]
    weight = factors[b]
    n = end - begin
    _clear(d_chain, size + 2)
    _clear(d_emissions, n)
    _clear(d_pairs, min(n, len(d_pairs)))
    if begin == end or weight == 0.0:
        return 0.0
    _score(corpus, b, weights, scale, work)
    value = reached = 0.0
    for step in range(2):  # what the annotation allows, then everything
        is_free = step == 1
        if not is_free and is_known[b]:
            reached = _path_score(corpus, begin, gold[begin:end], work)
            if np.isfinite(reached):
                _use_path(corpus, begin, gold[begin:end], -weight, work)
        else:
            if is_free:
                if len(costs) > 0:
                    _add_costs(corpus, b, costs, work)
            else:
                for t in range(n):
                    for j in range(size):
                        kept[t, j] = emissions[t, j]
                        if not clamp[begin + t, j]:
                            emissions[t, j] = -np.inf
            value = _infer(corpus, begin, n, maximum, weight if is_free else -weight, work)
            if not is_free:
                reached = value
                for t in range(n):
                    for j in range(size):
                        emissions[t, j] = kept[t, j]
        if reached == -np.inf:
            return 0.0  # the annotation is forbidden: nothing to learn
    return weight * max(value - reached, 0.0) if np.isfinite(value) else np.nan


@njit(**HELPER)
def _clear(rows, n):
    for t in range(n):
        for j in range(rows.shape[1]):
            rows[t, j] = 0.0


@njit(fastmath=LINEAR, **HELPER)
def _score(corpus, b, weights, scale, work):
    """Fills work.emissions, work.chain and, with features of pairs, work.pair_scores."""
    starts = corpus.starts
    row_starts = corpus.row_starts
    values = corpus.values
    slot_starts = corpus.slot_starts
    rows = corpus.rows
    slot_columns = corpus.slot_columns
    pair_row_starts = corpus.pair_row_starts
    pair_values = corpus.pair_values
    pair_rows = corpus.pair_rows
    pair_slot_starts = corpus.pair_slot_starts
    pair_slot_columns = corpus.pair_slot_columns
    pair_start = corpus.pair_start
    chain_start = corpus.chain_start
    size = work.size
    emissions = work.emissions
    pair_scores = work.pair_scores
    chain = work.chain
    begin, end = starts[b], starts[b + 1]
    for t in range(begin, end):
        target = emissions[t - begin]
        for j in range(size):
            target[j] = 0.0
        for n in range(row_starts[t], row_starts[t + 1]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            at, stop = slot_starts[rows[n]], slot_starts[rows[n] + 1]
            if stop - at == size:
                for j in range(size):
                    target[j] += value * weights[at + j]
            else:
                for s in range(at, stop):
                    target[slot_columns[s]] += value * weights[s]
        for j in range(size):
            target[j] *= scale
        for n in range(pair_row_starts[t], pair_row_starts[t + 1]):
            if n == pair_row_starts[t]:
                pair_scores[t - begin] = 0.0
            value = np.float64(pair_values[n]) if len(pair_values) > 0 else 1.0
            row = pair_rows[n]
            for s in range(pair_slot_starts[row], pair_slot_starts[row + 1]):
                pair_scores[t - begin, pair_slot_columns[s - pair_start]] += value * scale * weights[s]
    at = chain_start
    for i in range(size + 2):
        for j in range(size):
            chain[i, j] = scale * weights[at + i * size + j]


@njit(**HELPER)
def _has_pairs(corpus, t):
    pair_row_starts = corpus.pair_row_starts
    return pair_row_starts[t + 1] > pair_row_starts[t]


@njit(**HELPER)
def _set_transitions(corpus, begin, t, work):
    """The scores of the step to token t, in work.transitions [P, P]."""
    size = work.size
    transitions = work.transitions
    chain = work.chain
    pair_scores = work.pair_scores
    for i in range(size):
        for j in range(size):
            transitions[i, j] = chain[i, j]
    if _has_pairs(corpus, begin + t):
        for i in range(size):
            for j in range(size):
                transitions[i, j] += pair_scores[t, i * size + j]


@njit(**HELPER)
def _add_costs(corpus, b, costs, work):
    """Where the annotation leaves several states, a wrong one costs what the cheapest of the mistakes costs."""
    starts = corpus.starts
    gold = corpus.gold
    clamp = corpus.clamp
    size = work.size
    emissions = work.emissions
    begin, end = starts[b], starts[b + 1]
    for t in range(begin, end):
        named = gold[t]
        if named >= 0:
            for j in range(size):
                emissions[t - begin, j] += costs[named, j]
        else:
            for j in range(size):
                if not clamp[t, j]:
                    least = np.inf
                    for i in range(size):
                        if clamp[t, i]:
                            least = min(least, costs[i, j])
                    emissions[t - begin, j] += least


@njit(**HELPER)
def _path_score(corpus, begin, path, work):
    chain = work.chain
    size = work.size
    emissions = work.emissions
    pair_scores = work.pair_scores
    score = chain[size, path[0]] + chain[size + 1, path[-1]]
    for t in range(len(path)):
        score += emissions[t, path[t]]
        if t > 0:
            score += chain[path[t - 1], path[t]]
            if _has_pairs(corpus, begin + t):
                score += pair_scores[t, path[t - 1] * size + path[t]]
    return score


@njit(**HELPER)
def _use_path(corpus, begin, path, amount, work):
    """Adds an amount for each score that a path uses."""
    d_chain = work.d_chain
    size = work.size
    d_emissions = work.d_emissions
    d_pairs = work.d_pairs
    d_chain[size, path[0]] += amount
    d_chain[size + 1, path[-1]] += amount
    for t in range(len(path)):
        d_emissions[t, path[t]] += amount
        if t > 0:
            d_chain[path[t - 1], path[t]] += amount
            if _has_pairs(corpus, begin + t):
                d_pairs[t, path[t - 1] * size + path[t]] += amount


@njit(**HELPER)
def _viterbi(corpus, begin, n, work):
    """The best labelling in work.path, and its score; among equals the one with the lower last state, then the one before."""
    pair_rows = corpus.pair_rows
    size = work.size
    alpha = work.alpha
    chain = work.chain
    emissions = work.emissions
    path = work.path
    delta, transitions = alpha, work.transitions
    width = transitions.shape[0]
    _set_transitions(corpus, begin, 0, work)
    for t in range(n):
        for j in range(width):
            delta[t, j] = -np.inf
    for j in range(size):
        delta[0, j] = chain[size, j] + emissions[0, j]
    # delta[t, j] = emissions[t, j] + max_i(delta[t-1, i] + transitions[i, j])
    for t in range(1, n):
        if len(pair_rows) > 0:
            _set_transitions(corpus, begin, t, work)
        for i in range(0, width, 2):
            a, c = delta[t - 1, i], delta[t - 1, i + 1]
            for j in range(width):
                delta[t, j] = max(delta[t, j], max(a + transitions[i, j], c + transitions[i + 1, j]))
        for j in range(size):
            delta[t, j] += emissions[t, j]
    best, score = -1, -np.inf
    for j in range(size):
        if delta[n - 1, j] + chain[size + 1, j] > score:
            best, score = j, delta[n - 1, j] + chain[size + 1, j]
    if best == -1:
        return np.nan if np.isnan(delta[n - 1, 0]) else -np.inf
    total = score
    path[n - 1] = best
    for t in range(n - 1, 0, -1):
        j, score = best, -np.inf
        if len(pair_rows) > 0:
            _set_transitions(corpus, begin, t, work)
        for i in range(size):
            if delta[t - 1, i] + transitions[i, j] > score:
                best, score = i, delta[t - 1, i] + transitions[i, j]
        path[t - 1] = best
    return total


@njit(fastmath=LINEAR, **HELPER)
def _multiply(source, s, matrix, target, t):
    """target[t] = source[s] @ matrix"""
    width = matrix.shape[0]
    for j in range(width):
        target[t, j] = 0.0
    for i in range(0, width, 4):
        a, b, c, d = source[s, i], source[s, i + 1], source[s, i + 2], source[s, i + 3]
        for j in range(width):
            target[t, j] += a * matrix[i, j] + b * matrix[i + 1, j] + c * matrix[i + 2, j] + d * matrix[i + 3, j]


@njit(**HELPER)
def _infer(corpus, begin, n, maximum, amount, work):
    """The score of the best labelling, or the log partition; adds the uses of each score, times an amount."""
    if maximum:
        value = _viterbi(corpus, begin, n, work)
        if np.isfinite(value):
            _use_path(corpus, begin, work.path[:n], amount, work)
        return value
    value = np.nan if len(corpus.pair_rows) > 0 else _expect_scaled(n, amount, work)
    return _expect_in_logs(corpus, begin, n, amount, work) if np.isnan(value) else value


@njit(**HELPER)
def _expect_scaled(n, amount, work):
    """Log partition; adds to work.d_emissions and d_chain the expected uses of each score, times an amount.

    Scaled linear domain, as in `linear_chain`; NaN, and nothing added, where numbers could vanish.
    """
    size = work.size
    scaled = work.scaled
    transitions = work.transitions
    sums = work.sums
    chain = work.chain
    emissions = work.emissions
    d_emissions = work.d_emissions
    d_chain = work.d_chain
    alpha, beta, exp_emissions, matrix, sums = work.alpha, work.beta, scaled, transitions, sums
    width = matrix.shape[0]
    largest = -np.inf
    least = np.inf
    for i in range(size):
        for j in range(size):
            largest = max(largest, chain[i, j])
            if chain[i, j] > -np.inf:
                least = min(least, chain[i, j])
    if largest == -np.inf:
        largest = least = 0.0
    spread = largest - least
    for i in range(size):
        for j in range(size):
            matrix[i, j] = np.exp(chain[i, j] - largest)
    for i in range(width):
        for j in range(size if i < size else 0, width):
            matrix[i, j] = 0.0
    log_z = 0.0
    # alpha[t, j] = emissions[t, j] + logsum_i(alpha[t-1, i] + transitions[i, j])
    for t in range(n):
        top = -np.inf
        bottom = np.inf
        for j in range(size):
            top = max(top, emissions[t, j])
            if emissions[t, j] > -np.inf:
                bottom = min(bottom, emissions[t, j])
        if top == -np.inf:
            return top
        if not top - bottom + spread < SPREAD:
            return np.nan
        for j in range(size):
            exp_emissions[t, j] = np.exp(emissions[t, j] - top)
        if t == 0:
            for j in range(width):
                alpha[t, j] = np.exp(chain[size, j]) if j < size else 0.0
            log_z += top
        else:
            _multiply(alpha, t - 1, matrix, alpha, t)
            log_z += top + largest
        total = 0.0
        for j in range(width):
            alpha[t, j] *= exp_emissions[t, j]
            total += alpha[t, j]
        if not TINY < total < 1.0 / TINY:
            return np.nan
        log_z += np.log(total)
        for j in range(width):
            alpha[t, j] /= total
    total = 0.0
    for j in range(size):
        beta[(n - 1) % 2, j] = np.exp(chain[size + 1, j])
        total += alpha[n - 1, j] * beta[(n - 1) % 2, j]
    if not TINY < total < 1.0 / TINY:
        return np.nan
    log_z += np.log(total)
    sums[:] = 0.0
    beta[:, size:] = 0.0
    # beta[t-1, i] = logsum_j(transitions[i, j] + emissions[t, j] + beta[t, j])
    for t in range(n - 1, -1, -1):
        now = t % 2
        total = 0.0
        for j in range(size):
            total += alpha[t, j] * beta[now, j]
        if not total > TINY:
            return np.nan
        for j in range(width):
            alpha[t, j] *= amount / total  # serves the step to t + 1 no more
            beta_j = beta[now, j]
            beta[now, j] *= exp_emissions[t, j]
            exp_emissions[t, j] = alpha[t, j] * beta_j
        if t == 0:
            break
        largest = 0.0
        for j in range(width):
            largest = max(largest, beta[now, j])
        for j in range(width):
            beta[now, j] /= largest
        for i in range(width):
            products = 0.0
            for j in range(width):
                products += matrix[i, j] * beta[now, j]
            beta[1 - now, i] = products
        total = 0.0
        for i in range(size):
            total += alpha[t - 1, i] * beta[1 - now, i]
        if not total > TINY:
            return np.nan
        for i in range(size):
            share = amount * alpha[t - 1, i] / total
            for j in range(width):
                sums[i, j] += share * beta[now, j]
    for t in range(n):
        for j in range(size):
            d_emissions[t, j] += exp_emissions[t, j]
    for j in range(size):
        d_chain[size, j] += exp_emissions[0, j]
        d_chain[size + 1, j] += exp_emissions[n - 1, j]
    for i in range(size):
        for j in range(size):
            d_chain[i, j] += sums[i, j] * matrix[i, j]
    return log_z


@njit(**HELPER)
def _log_sum(terms):
    largest = -np.inf
    for term in terms:
        largest = max(largest, term)
    if largest == -np.inf:
        return largest
    total = 0.0
    for term in terms:
        total += np.exp(term - largest)
    return largest + np.log(total)


@njit(**HELPER)
def _expect_in_logs(corpus, begin, n, amount, work):
    """Textbook forward and backward."""
    pair_rows = corpus.pair_rows
    size = work.size
    transitions = work.transitions
    chain = work.chain
    emissions = work.emissions
    d_emissions = work.d_emissions
    d_chain = work.d_chain
    d_pairs = work.d_pairs
    alpha, transitions = work.alpha, transitions
    terms, beta, arriving = np.empty(size), chain[size + 1].copy(), np.empty(size)
    _set_transitions(corpus, begin, 0, work)
    for t in range(n):
        if t > 0 and len(pair_rows) > 0:
            _set_transitions(corpus, begin, t, work)
        for j in range(size):
            if t == 0:
                alpha[t, j] = chain[size, j] + emissions[t, j]
            else:
                for i in range(size):
                    terms[i] = alpha[t - 1, i] + transitions[i, j]
                alpha[t, j] = emissions[t, j] + _log_sum(terms)
    for j in range(size):
        terms[j] = alpha[n - 1, j] + beta[j]
    log_z = _log_sum(terms)
    if not np.isfinite(log_z):
        return log_z
    for t in range(n - 1, -1, -1):
        for j in range(size):
            expected = amount * np.exp(alpha[t, j] + beta[j] - log_z)
            d_emissions[t, j] += expected
            if t == 0:
                d_chain[size, j] += expected
            if t == n - 1:
                d_chain[size + 1, j] += expected
            arriving[j] = emissions[t, j] + beta[j]
        if t == 0:
            break
        if len(pair_rows) > 0:
            _set_transitions(corpus, begin, t, work)
        for i in range(size):
            for j in range(size):
                terms[j] = transitions[i, j] + arriving[j]
                expected = amount * np.exp(alpha[t - 1, i] + terms[j] - log_z)
                d_chain[i, j] += expected
                if _has_pairs(corpus, begin + t):
                    d_pairs[t, i * size + j] += expected
            beta[i] = _log_sum(terms)
    return log_z


@njit(**HELPER)
def _is_wrong(corpus, token, state):
    gold = corpus.gold
    clamp = corpus.clamp
    named = gold[token]
    return state != named if named >= 0 else not clamp[token, state]


@njit(**HELPER)
def _n_wrong(corpus, b, work):
    """Tokens at which work.path contradicts the annotation."""
    starts = corpus.starts
    path = work.path
    wrong = 0
    for t in range(starts[b], starts[b + 1]):
        wrong += _is_wrong(corpus, t, path[t - starts[b]])
    return wrong


@njit(**HELPER)
def _cost_of_best(corpus, b, costs, work):
    """What `_add_costs` has added to the score of work.path."""
    starts = corpus.starts
    clamp = corpus.clamp
    path = work.path
    size = work.size
    total = 0.0
    if len(costs) > 0:
        for t in range(starts[b], starts[b + 1]):
            state, named = path[t - starts[b]], corpus.gold[t]
            if named >= 0:
                total += costs[named, state]
            elif not clamp[t, state]:
                least = np.inf
                for i in range(size):
                    if clamp[t, i]:
                        least = min(least, costs[i, state])
                total += least
    return total


# --------------------------------------------------------------------------------------------- from scores to weights


@njit(fastmath=LINEAR, **HELPER)
def _descend(corpus, b, rate, weights, work):
    """weights -= rate · gradient, where most states of most tokens have a derivative."""
    starts = corpus.starts
    row_starts = corpus.row_starts
    values = corpus.values
    slot_starts = corpus.slot_starts
    rows = corpus.rows
    learned = corpus.learned
    slot_columns = corpus.slot_columns
    pair_row_starts = corpus.pair_row_starts
    pair_values = corpus.pair_values
    pair_rows = corpus.pair_rows
    pair_slot_starts = corpus.pair_slot_starts
    pair_slot_columns = corpus.pair_slot_columns
    pair_start = corpus.pair_start
    chain_start = corpus.chain_start
    size = work.size
    d_emissions = work.d_emissions
    d_pairs = work.d_pairs
    d_chain = work.d_chain
    begin, end = starts[b], starts[b + 1]
    for t in range(begin, end):
        d_scores = d_emissions[t - begin]
        moves = False
        for j in range(size):
            d_scores[j] *= rate
            moves |= d_scores[j] != 0.0
        if moves:
            for n in range(row_starts[t], row_starts[t + 1]):
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                at, stop = slot_starts[rows[n]], slot_starts[rows[n] + 1]
                if stop - at == size:
                    for j in range(size):
                        weights[at + j] -= value * d_scores[j] * learned[at + j]
                else:
                    for s in range(at, stop):
                        weights[s] -= value * d_scores[slot_columns[s]]
        for n in range(pair_row_starts[t], pair_row_starts[t + 1]):
            value = np.float64(pair_values[n]) if len(pair_values) > 0 else 1.0
            row = pair_rows[n]
            for s in range(pair_slot_starts[row], pair_slot_starts[row + 1]):
                if learned[s]:
                    column = pair_slot_columns[s - pair_start]
                    weights[s] -= value * rate * d_pairs[t - begin, column]
    for i in range(size + 2):
        for j in range(size):
            slot = chain_start + i * size + j
            if learned[slot]:
                weights[slot] -= rate * d_chain[i, j]


@njit(**HELPER)
def _collect(corpus, b, work):
    """The gradient of a sequence by weight: sums in work.gradient, whose slots are listed in work.touched.

    RETURNS (int): How many slots. Who reads a sum sets it back to 0.
    """
    starts = corpus.starts
    row_starts = corpus.row_starts
    values = corpus.values
    slot_starts = corpus.slot_starts
    rows = corpus.rows
    slot_columns = corpus.slot_columns
    learned = corpus.learned
    pair_row_starts = corpus.pair_row_starts
    pair_values = corpus.pair_values
    pair_rows = corpus.pair_rows
    pair_slot_starts = corpus.pair_slot_starts
    pair_slot_columns = corpus.pair_slot_columns
    pair_start = corpus.pair_start
    chain_start = corpus.chain_start
    size = work.size
    d_emissions = work.d_emissions
    d_pairs = work.d_pairs
    d_chain = work.d_chain
    marked = work.marked
    touched = work.touched
    begin, end = starts[b], starts[b + 1]
    found = 0
    for t in range(begin, end):
        d_scores = d_emissions[t - begin]
        moves = False
        for j in range(size):
            moves |= d_scores[j] != 0.0
        if moves:
            for n in range(row_starts[t], row_starts[t + 1]):
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                for s in range(slot_starts[rows[n]], slot_starts[rows[n] + 1]):
                    d_score = d_scores[slot_columns[s]]
                    if d_score != 0.0 and learned[s]:
                        found = _note(work, s, value * d_score, found)
        for n in range(pair_row_starts[t], pair_row_starts[t + 1]):
            value = np.float64(pair_values[n]) if len(pair_values) > 0 else 1.0
            row = pair_rows[n]
            for s in range(pair_slot_starts[row], pair_slot_starts[row + 1]):
                d_score = d_pairs[t - begin, pair_slot_columns[s - pair_start]]
                if d_score != 0.0 and learned[s]:
                    found = _note(work, s, value * d_score, found)
    for i in range(size + 2):
        for j in range(size):
            slot = chain_start + i * size + j
            if d_chain[i, j] != 0.0 and learned[slot]:
                found = _note(work, slot, d_chain[i, j], found)
    for n in range(found):
        marked[touched[n]] = False
    return found


@njit(**HELPER)
def _note(work, slot, amount, found):
    marked = work.marked
    touched = work.touched
    gradient = work.gradient
    if not marked[slot]:
        marked[slot] = True
        touched[found] = slot
        found += 1
    gradient[slot] += amount
    return found


@njit(**HELPER)
def _along(work, n_touched, weights):
    """RETURNS: weights · gradient, and |gradient|²."""
    touched = work.touched
    gradient = work.gradient
    slope = square = 0.0
    for n in range(n_touched):
        slot = touched[n]
        slope += weights[slot] * gradient[slot]
        square += gradient[slot] ** 2
    return slope, square
