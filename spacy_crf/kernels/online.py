"""Rules that learn from one sequence after the other: score it, see what the loss wants, change the weights it uses.

All weights are one vector of M slots: those of the features of states, of the features of pairs of states, then a matrix
[S + 2, S] of transitions, firsts and lasts, -inf where forbidden. Rows of features with many states own a slot for every
state, so not every slot is a weight (``learned``). A rule touches the slots of a sequence's features and nothing else.

Shapes: n tokens of a sequence, S states, P = S rounded up to a multiple of LANES, the added states forbidden.
"""

import math
from typing import NamedTuple, Optional

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..types import ChainCorpus, Floats, SlotUses

LANES = 4
LINEAR = {"reassoc", "contract"}
TINY = 1e-100
SPREAD = 300.0

# Rules of `walk`
NOTHING = 0
PERCEPTRON = 1
VOTED_PERCEPTRON = 2
PASSIVE_AGGRESSIVE = 3
AROW = 4
SGD = 5
SGD_L1 = 6
ADAGRAD = 7

# Helpers are called by kernels only: no way in for Python. What a helper calls is compiled again as a part of it, and then
# as a part of its callers, so calls are not nested deeply. ``pairs``, ``bests`` and ``sums`` are None where they are not
# needed, and what is done with them is then not compiled.
HELPER = {"cache": True, "nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class Workspace(NamedTuple):
    """Room for one sequence after the other. Derivatives are those of its loss with respect to each score."""

    nodes: Floats  # [n, P] scores of states
    chain: Floats  # [at least S + 2, P] scores of transitions, firsts, lasts
    d_nodes: Floats
    d_chain: Floats
    kept: Floats  # [n, P]
    forward: Floats  # [n, P]
    matrix: Floats  # [P, P]
    gradient: Floats  # [M] sums while they are collected, otherwise 0
    slots: NDArray[np.int64]  # what was collected: the gradient at these slots
    amounts: Floats


class PairWork(NamedTuple):
    """The features of pairs of states."""

    uses: SlotUses
    scores: Floats  # [n, S * S] added to the transitions into each token
    d_scores: Floats


class BestWork(NamedTuple):
    """For losses that look at the best labelling."""

    path: NDArray[np.int32]  # [n]


class SumWork(NamedTuple):
    """For losses that look at the log partition."""

    exp_nodes: Floats  # [n, P]
    arriving: Floats  # [n, P]
    beta: Floats  # [P]
    transposed: Floats  # [P, P]
    sums: Floats  # [P, P]


class Room(NamedTuple):
    """Work space for a pass over a corpus, with either ``bests`` or ``sums``."""

    work: Workspace
    pairs: Optional[PairWork]
    bests: Optional[BestWork]
    sums: Optional[SumWork]


def make_room(corpus: ChainCorpus, *, maximum: bool) -> Room:
    size = corpus.n_states
    width = -(-size // LANES) * LANES
    longest = int(np.diff(corpus.starts).max(initial=1))
    height = max(size + 2, width)
    work = Workspace(
        nodes=np.full((longest, width), -np.inf),
        chain=np.full((height, width), -np.inf),
        d_nodes=np.zeros((longest, width)),
        d_chain=np.zeros((height, width)),
        kept=np.zeros((longest, width)),
        forward=np.zeros((longest, width)),
        matrix=np.zeros((width, width)),
        gradient=np.zeros(len(corpus.learned)),
        slots=np.zeros(corpus.most_slots, dtype=np.int64),
        amounts=np.zeros(corpus.most_slots),
    )
    pairs = bests = sums = None
    if corpus.pairs is not None:
        pairs = PairWork(corpus.pairs, np.zeros((longest, size * size)), np.zeros((longest, size * size)))
    if maximum:
        bests = BestWork(np.zeros(longest, dtype=np.int32))
    else:
        sums = SumWork(
            exp_nodes=np.zeros((longest, width)),
            arriving=np.zeros((longest, width)),
            beta=np.zeros(width),
            transposed=np.zeros((width, width)),
            sums=np.zeros((width, width)),
        )
    return Room(work, pairs, bests, sums)


# ---------------------------------------------------------------------------------------------- ways through a corpus


@njit(cache=True, nogil=True)
def walk(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: Optional[PairWork],
    bests: Optional[BestWork],
    sums: Optional[SumWork],
    order,
    costs,
    weights,
    rule,
    settings,
    state,
    memory,
    squares,
):
    """Applies a rule to the sequences in the order given. One kernel, since most of it is the same for all rules.

    costs (float64[S, S] or [0, 0]): Added to the score of each state where the annotation says another one.
    settings (four floats): Of the rule; memory (float64[M] or [0]): What it remembers of each slot: see below.
    state (float64[3]): How many sequences came before; the scale of the weights, w = scale · weights, and what any weight
        could have been charged so far, both of SGD.
    squares (float64[M] or [0]): Of AdaGrad.
    RETURNS: The sum of losses, and -1; or a loss that is not a finite number, and its place in the order. It stops there.
    """
    total = 0.0
    n_updates = 0
    for k in range(len(order)):
        b = order[k]
        if rule == ADAGRAD:
            _catch_up_sequence(corpus, pairs, b, weights, settings, state[0], memory, squares)
        loss, moves = _differentiate(corpus, work, pairs, bests, sums, b, costs, weights, state[1])
        if not math.isfinite(loss):
            return loss, k
        if rule == SGD:
            rate = settings[1] / (settings[2] + state[0])
            state[1] *= 1.0 - rate * settings[0]
            if moves:
                _descend(corpus, work, pairs, b, rate / state[1], weights)
        elif rule != NOTHING:
            n_slots = _collect(corpus, work, pairs, b) if moves else 0
            slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
            if rule == SGD_L1:
                _sgd_l1(slots, amounts, weights, settings, state, memory)
            elif rule == ADAGRAD:
                _adagrad(slots, amounts, weights, settings, squares)
            elif bests is not None and n_slots > 0:
                if rule == PERCEPTRON:
                    _perceptron(slots, amounts, weights, state[0], memory)
                elif rule == VOTED_PERCEPTRON:
                    n_updates += 1
                    for n in range(n_slots):
                        memory[slots[n]] -= amounts[n]
                else:
                    factor = corpus.weights[b]
                    wrong = _n_wrong(corpus, b, bests.path)
                    if rule == PASSIVE_AGGRESSIVE:
                        loss = _passive_aggressive(
                            slots, amounts, loss, factor, wrong, len(costs) > 0, weights, settings, state[0], memory
                        )
                    else:
                        loss = _arow(slots, amounts, loss, factor, wrong, len(costs) > 0, weights, settings, memory)
        total += loss
        state[0] += 1.0
        if state[1] < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= state[1]
            state[1] = 1.0
    if n_updates > 0:
        for slot in range(len(memory)):
            memory[slot] /= n_updates
    return total, -1


@njit(cache=True, nogil=True)
def frank_wolfe(
    corpus: ChainCorpus, work: Workspace, bests: BestWork, order, learns, costs, weights, nodes, edges, dual, l2
):
    """Lacoste-Julien, Jaggi, Schmidt & Pletscher 2013, algorithm 3: each sequence keeps the mean of the labellings that
    it met, and moves it towards its most violating labelling by the best step.

    learns (bool): Or are only the losses wanted?
    nodes (float64[T, S]), edges (float64[B, S + 2, S]): The mean uses of each score, less the annotation's.
    dual (float64[B]): The mean cost of each sequence's labellings.
    RETURNS: As `walk`.
    """
    starts = corpus.starts
    d_nodes, d_chain = work.d_nodes, work.d_chain
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        begin, end = starts[b], starts[b + 1]
        loss, _ = _differentiate(corpus, work, None, bests, None, b, costs, weights, 1.0)
        if not math.isfinite(loss):
            return loss, k
        total += loss
        if not learns:
            continue
        cost = 0.0
        for t in range(begin, end):
            cost += corpus.weights[b] * costs[corpus.gold[t], bests.path[t - begin]]
        _add(d_nodes, d_chain, -1.0, nodes[begin:end], edges[b])  # where to go, less where it is
        n_slots = _collect(corpus, work, None, b)
        slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
        slope, square = _along(slots, amounts, weights)
        # The dual is sum of costs - |sum of uses|² / 4 l2, and w = -uses / 2 l2.
        gap = slope + cost - dual[b]
        square /= 2.0 * l2
        step = 1.0 if square <= 0.0 else min(1.0, gap / square)
        if not step > 0.0 or (square <= 0.0 and not gap > 0.0):
            step = 0.0
        for n in range(n_slots):
            weights[slots[n]] -= step * amounts[n] / (2.0 * l2)
        dual[b] += step * (cost - dual[b])
        _add(nodes[begin:end], edges[b], step, d_nodes, d_chain)
    return total, -1


@njit(cache=True, nogil=True)
def exponentiated_gradient(
    corpus: ChainCorpus,
    work: Workspace,
    bests: BestWork,
    sums: SumWork,
    order,
    learns,
    costs,
    weights,
    nodes,
    edges,
    dual,
    theta_nodes,
    theta_edges,
    rates,
    first,
    l2,
):
    """Bartlett, Collins, Taskar & McAllester 2004, figure 2: the distribution over a sequence's labellings is that of a
    chain with scores theta, and the step adds rate · (score + cost) to them. The rate of each sequence is halved until the
    dual grows, and grows by a twentieth when it did (Collins et al. 2008, section 6).

    learns, nodes, edges, dual: As in `frank_wolfe`, of the distribution. theta_nodes (float64[T, S]), theta_edges
    (float64[B, S + 2, S]): Its scores, -inf where forbidden. rates (float64[B]).
    first (bool): Nothing is known of the distributions yet: they replace the annotation, whatever the dual says.
    RETURNS: As `walk`.
    """
    starts = corpus.starts
    gold = corpus.gold
    size = corpus.n_states
    node_scores, chain = work.nodes, work.chain
    d_nodes, d_chain = work.d_nodes, work.d_chain
    ascent_nodes, ascent_chain = np.zeros(node_scores.shape), np.zeros(chain.shape)
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        begin, end = starts[b], starts[b + 1]
        weight = corpus.weights[b]
        if begin == end or weight == 0.0:
            continue
        loss, _ = _differentiate(corpus, work, None, bests, None, b, costs, weights, 1.0)
        if not math.isfinite(loss):
            return loss, k
        total += loss
        if not learns:
            continue
        for t in range(end - begin):
            for j in range(size):
                ascent_nodes[t, j] = node_scores[t, j]  # with the cost
        for i in range(size + 2):
            for j in range(size):
                ascent_chain[i, j] = chain[i, j]
        for _ in range(20):
            for t in range(end - begin):
                for j in range(size):
                    node_scores[t, j] = theta_nodes[begin + t, j] + rates[b] * ascent_nodes[t, j]
            for i in range(size + 2):
                for j in range(size):
                    chain[i, j] = theta_edges[b, i, j] + rates[b] * ascent_chain[i, j]
            _clear(d_nodes, end - begin)
            _clear(d_chain, len(d_chain))
            log_z = _expect_scaled(work, sums, end - begin, size, 1.0)
            if math.isnan(log_z):
                log_z = _expect_in_logs(work, None, end - begin, size, 1.0)
            if not math.isfinite(log_z):
                return log_z, k
            cost = 0.0
            for t in range(end - begin):
                for j in range(size):
                    cost += weight * d_nodes[t, j] * costs[gold[begin + t], j]
                    d_nodes[t, j] *= weight
            for i in range(size + 2):
                for j in range(size):
                    d_chain[i, j] *= weight
            _use_path(work, None, gold[begin:end], size, -weight)
            _add(d_nodes, d_chain, -1.0, nodes[begin:end], edges[b])
            n_slots = _collect(corpus, work, None, b)
            slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
            slope, square = _along(slots, amounts, weights)
            growth = cost - dual[b] + slope - square / (4.0 * l2)
            if growth >= 0.0 or first:
                for n in range(n_slots):
                    weights[slots[n]] -= amounts[n] / (2.0 * l2)
                dual[b] = cost
                _add(nodes[begin:end], edges[b], 1.0, d_nodes, d_chain)
                for t in range(end - begin):
                    # Only differences within a row matter, so the scores may stay small.
                    largest = -np.inf
                    for j in range(size):
                        largest = max(largest, node_scores[t, j])
                    for j in range(size):
                        theta_nodes[begin + t, j] = max(node_scores[t, j] - largest, -1e4)
                for i in range(size + 2):
                    for j in range(size):
                        theta_edges[b, i, j] = chain[i, j]
                rates[b] *= 1.05
                break
            rates[b] *= 0.5
    return total, -1


@njit(**HELPER)
def _add(nodes, chain, amount, other_nodes, other_chain):
    """Uses of nodes and edges, with and without room for added states: the first += amount · the second."""
    for t in range(min(len(nodes), len(other_nodes))):
        for j in range(min(nodes.shape[1], other_nodes.shape[1])):
            nodes[t, j] += amount * other_nodes[t, j]
    for i in range(min(len(chain), len(other_chain))):
        for j in range(min(chain.shape[1], other_chain.shape[1])):
            chain[i, j] += amount * other_chain[i, j]


@njit(**HELPER)
def _along(slots, amounts, weights):
    """RETURNS: weights · gradient, and |gradient|²."""
    slope = square = 0.0
    for n in range(len(slots)):
        slope += weights[slots[n]] * amounts[n]
        square += amounts[n] ** 2
    return slope, square


# ----------------------------------------------------------------------------------------------------------- the rules

# The gradient of a sequence's loss is ``amounts`` at ``slots``, ``seen`` is how many sequences came before it.


@njit(**HELPER)
def _perceptron(slots, amounts, weights, seen, drift):
    """Collins 2002, figure 1: w += features(annotation) - features(best labelling).

    drift (float64[M]): Sum of all updates, each times the weight vectors before it, of which the zeros at the start are one:
        the average is weights - drift / vectors.
    """
    for n in range(len(slots)):
        weights[slots[n]] -= amounts[n]
        drift[slots[n]] -= (seen + 1.0) * amounts[n]


@njit(**HELPER)
def _passive_aggressive(slots, amounts, loss, factor, wrong, has_costs, weights, settings, seen, drift):
    """Crammer et al. 2006: the smallest change after which the annotation wins by a margin.

    loss (float): With the factor of the sequence. wrong (int): Tokens at which the best labelling is wrong.
    settings: kind, 0 for PA (eq. 6: tau = loss / |d|²), 1 for PA-I (at most c), 2 for PA-II (|d|² + 1 / 2c); c; whether
        the margin is the root of the number of wrong tokens instead of 1. Costs are a margin already.
    drift: As in `_perceptron`.
    RETURNS: The loss with its margin.
    """
    kind, c, sensitive = settings[0], settings[1] * factor, settings[2] > 0.0
    margin = 0.0 if has_costs else math.sqrt(wrong) if sensitive else 1.0
    loss = max(0.0, loss / factor + margin)
    square = 0.0
    for n in range(len(slots)):
        square += (amounts[n] / factor) ** 2
    if kind == 2.0:
        tau = loss / (square + 0.5 / c)
    else:
        tau = loss / square if square > 0.0 else 0.0
        if kind == 1.0:
            tau = min(tau, c)
    for n in range(len(slots)):
        update = tau / factor * amounts[n]
        weights[slots[n]] -= update
        drift[slots[n]] -= (seen + 1.0) * update
    return factor * loss


@njit(**HELPER)
def _arow(slots, amounts, loss, factor, wrong, has_costs, weights, settings, variance):
    """Crammer, Kulesza & Dredze 2009, figure 1, with a diagonal covariance.

    loss (float): With the factor of the sequence. wrong (int): The margin, tokens at which the best labelling is wrong.
        Costs are a margin already.
    settings: gamma, r of the paper. variance (float64[M]): How unsure each weight is. It only falls.
    RETURNS: The loss with its margin.
    """
    noise = settings[0] / factor
    loss = max(0.0, loss / factor + (0.0 if has_costs else wrong))
    confidence = 0.0
    for n in range(len(slots)):
        confidence += variance[slots[n]] * (amounts[n] / factor) ** 2
    alpha = loss / (confidence + noise)
    for n in range(len(slots)):
        slot, difference = slots[n], amounts[n] / factor
        weights[slot] -= alpha * variance[slot] * difference
        variance[slot] = 1.0 / (1.0 / variance[slot] + difference**2 / noise)
    return factor * loss


@njit(fastmath=LINEAR, **HELPER)
def _descend(corpus, work, pairs, b, rate, weights):
    """Stochastic gradient descent on loss / B + decay / 2 · w², where most states of most tokens have a derivative. Shrinking
    all weights is one product (Shalev-Shwartz, Singer & Srebro 2007, section 2.3).

    settings of SGD: decay, then the learning rate's numerator and offset: rate / (offset + steps).
    """
    size = corpus.n_states
    learned = corpus.learned
    d_chain = work.d_chain
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    _descend_uses(corpus.states, begin, end, size, work.d_nodes, rate, learned, weights)
    if pairs is not None:
        _descend_uses(pairs.uses, begin, end, size * size, pairs.d_scores, rate, learned, weights)
    slot = corpus.chain_start
    for i in range(size + 2):
        for j in range(size):
            if learned[slot]:
                weights[slot] -= rate * d_chain[i, j]
            slot += 1


@njit(fastmath=LINEAR, **HELPER)
def _descend_uses(uses, begin, end, size, d_scores, rate, learned, weights):
    slots, columns, values, bounds = uses
    for t in range(begin, end):
        d_token = d_scores[t - begin]
        for j in range(size):
            d_token[j] *= rate
        for n in range(bounds[2 * t], bounds[2 * t + 1]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            at = slots[n]
            for j in range(size):
                weights[at + j] -= value * d_token[j] * learned[at + j]
        for n in range(bounds[2 * t + 1], bounds[2 * t + 2]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            weights[slots[n]] -= value * d_token[columns[n]]


@njit(**HELPER)
def _sgd_l1(slots, amounts, weights, settings, state, paid):
    """`_descend` with the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009, figure 2.

    settings: As of SGD, and the weight of |w| per sequence. paid (float64[M]): q, what each weight was charged.
    """
    decay, rate, offset, l1 = settings
    rate /= offset + state[0]
    state[1] *= 1.0 - rate * decay
    state[2] += rate * l1
    for n in range(len(slots)):
        slot = slots[n]
        weights[slot] -= rate / state[1] * amounts[n]
        weights[slot] = _charge(weights[slot] * state[1], state[2], paid, slot) / state[1]


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


@njit(**HELPER)
def _adagrad(slots, amounts, weights, settings, squares):
    """Duchi, Hazan & Singer 2011, section 5.1 (composite mirror descent), each weight catching up when it is used.

    settings: The learning rates' numerator, and what is added to their denominators; weights of |w| and w² per sequence.
    squares (float64[M]): Sums of the squared gradients.
    """
    for n in range(len(slots)):
        squares[slots[n]] += amounts[n] ** 2
        weights[slots[n]] -= settings[0] / (settings[1] + math.sqrt(squares[slots[n]])) * amounts[n]


@njit(**HELPER)
def _catch_up(slot, weights, settings, seen, regularized, squares):
    """So many proximal steps w <- max(0, |w| - eta l1) / (1 + 2 eta l2) without a gradient in between, as one.

    regularized (float64[M]): Up to which step each weight is.
    """
    rate, epsilon, l1, l2 = settings
    steps = seen - regularized[slot]
    regularized[slot] = seen
    if squares[slot] == 0.0 or steps <= 0.0 or weights[slot] == 0.0:
        return
    eta = rate / (epsilon + math.sqrt(squares[slot]))
    shrink = 1.0 / (1.0 + 2.0 * eta * l2)
    power = shrink**steps
    charged = steps if l2 == 0.0 else shrink * (1.0 - power) / (1.0 - shrink)
    size = abs(weights[slot]) * power - eta * l1 * charged
    weights[slot] = np.sign(weights[slot]) * max(0.0, size)


@njit(**HELPER)
def _catch_up_sequence(corpus, pairs, b, weights, settings, seen, regularized, squares):
    if settings[2] == 0.0 and settings[3] == 0.0:
        return
    size = corpus.n_states
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    _catch_up_uses(corpus.states, begin, end, size, weights, settings, seen, regularized, squares)
    if pairs is not None:
        _catch_up_uses(pairs.uses, begin, end, size * size, weights, settings, seen, regularized, squares)
    for slot in range(corpus.chain_start, len(weights)):
        if corpus.learned[slot]:
            _catch_up(slot, weights, settings, seen, regularized, squares)


@njit(**HELPER)
def _catch_up_uses(uses, begin, end, size, weights, settings, seen, regularized, squares):
    slots, _, _, bounds = uses
    for side in range(2 * begin, 2 * end):
        for n in range(bounds[side], bounds[side + 1]):
            for slot in range(slots[n], slots[n] + (size if side % 2 == 0 else 1)):
                _catch_up(slot, weights, settings, seen, regularized, squares)


@njit(cache=True, nogil=True)
def catch_up_all(learned, weights, settings, seen, regularized, squares):
    """Brings every weight up to date with the regularizer."""
    for slot in range(len(weights)):
        if learned[slot]:
            _catch_up(slot, weights, settings, seen, regularized, squares)


# ------------------------------------------------------------------------------------------- what a sequence asks for


@njit(**HELPER)
def _differentiate(corpus, work, pairs, bests, sums, b, costs, weights, scale):
    """Leaves the derivative of a sequence's loss in the work spaces.

    RETURNS: The loss, times the weight of the sequence; and whether the derivative may be anything but zero.
    """
    gold = corpus.gold
    clamp = corpus.clamp
    size = corpus.n_states
    nodes, chain, kept = work.nodes, work.chain, work.kept
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    factor = corpus.weights[b]
    n = end - begin
    _clear(work.d_nodes, n)
    _clear(work.d_chain, size + 2)
    if pairs is not None:
        _clear(pairs.d_scores, n)
    if n == 0 or factor == 0.0:
        return 0.0, False
    _add_scores(corpus.states, begin, end, size, weights, scale, nodes)
    if pairs is not None:
        _add_scores(pairs.uses, begin, end, size * size, weights, scale, pairs.scores)
    for i in range(size + 2):
        for j in range(size):
            chain[i, j] = scale * weights[corpus.chain_start + i * size + j]
    value = reached = 0.0
    for step in range(2):  # what the annotation allows, then everything
        is_free = step == 1
        if not is_free and corpus.is_known[b]:
            reached = _path_score(work, pairs, gold[begin:end], size)
        else:
            if is_free and len(costs) > 0:
                _add_costs(nodes, gold, clamp, begin, end, costs)
            if not is_free:
                for t in range(n):
                    for j in range(size):
                        kept[t, j] = nodes[t, j]
                        if not clamp[begin + t, j]:
                            nodes[t, j] = -np.inf
            amount = factor if is_free else -factor
            if bests is not None:
                value = _viterbi(work, pairs, bests.path, n, size)
                if math.isfinite(value):
                    _use_path(work, pairs, bests.path[:n], size, amount)
            if sums is not None:
                value = np.nan
                if pairs is None:
                    value = _expect_scaled(work, sums, n, size, amount)
                if math.isnan(value):
                    value = _expect_in_logs(work, pairs, n, size, amount)
            if not is_free:
                reached = value
                for t in range(n):
                    for j in range(size):
                        nodes[t, j] = kept[t, j]
        if reached == -np.inf:
            return 0.0, False  # the annotation is forbidden: nothing to learn
    if corpus.is_known[b]:
        _use_path(work, pairs, gold[begin:end], size, -factor)
    return factor * max(value - reached, 0.0) if math.isfinite(value) else np.nan, True


@njit(**HELPER)
def _clear(rows, n):
    for t in range(n):
        for j in range(rows.shape[1]):
            rows[t, j] = 0.0


@njit(fastmath=LINEAR, **HELPER)
def _add_scores(uses, begin, end, size, weights, scale, scores):
    """scores[t, c] = scale · the weights of column c that token t uses."""
    slots, columns, values, bounds = uses
    for t in range(begin, end):
        target = scores[t - begin]
        for j in range(size):
            target[j] = 0.0
        for n in range(bounds[2 * t], bounds[2 * t + 1]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            at = slots[n]
            for j in range(size):
                target[j] += value * weights[at + j]
        for n in range(bounds[2 * t + 1], bounds[2 * t + 2]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            target[columns[n]] += value * weights[slots[n]]
        for j in range(size):
            target[j] *= scale


@njit(**HELPER)
def _add_costs(nodes, gold, clamp, begin, end, costs):
    """Where the annotation leaves several states, a wrong one costs what the cheapest of the mistakes costs."""
    for t in range(begin, end):
        for j in range(len(costs)):
            if gold[t] >= 0:
                nodes[t - begin, j] += costs[gold[t], j]
            elif not clamp[t, j]:
                least = np.inf
                for i in range(len(costs)):
                    if clamp[t, i]:
                        least = min(least, costs[i, j])
                nodes[t - begin, j] += least


@njit(**HELPER)
def _n_wrong(corpus, b, path):
    """Tokens at which a path contradicts the annotation."""
    wrong = 0
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    for t in range(begin, end):
        state, named = path[t - begin], corpus.gold[t]
        wrong += state != named if named >= 0 else not corpus.clamp[t, state]
    return wrong


@njit(**HELPER)
def _path_score(work, pairs, path, size):
    nodes, chain = work.nodes, work.chain
    score = chain[size, path[0]] + chain[size + 1, path[-1]]
    for t in range(len(path)):
        score += nodes[t, path[t]]
        if t > 0:
            score += chain[path[t - 1], path[t]]
            if pairs is not None:
                score += pairs.scores[t, path[t - 1] * size + path[t]]
    return score


@njit(**HELPER)
def _use_path(work, pairs, path, size, amount):
    """Adds an amount for each score that a path uses."""
    d_nodes, d_chain = work.d_nodes, work.d_chain
    d_chain[size, path[0]] += amount
    d_chain[size + 1, path[-1]] += amount
    for t in range(len(path)):
        d_nodes[t, path[t]] += amount
        if t > 0:
            d_chain[path[t - 1], path[t]] += amount
            if pairs is not None:
                pairs.d_scores[t, path[t - 1] * size + path[t]] += amount


@njit(**HELPER)
def _collect(corpus, work, pairs, b):
    """The gradient by weight: each slot of a sequence whose sum is not 0 in work.slots, the sums in work.amounts.

    RETURNS (int): How many.
    """
    learned, d_chain = corpus.learned, work.d_chain
    size = corpus.n_states
    gradient, slots, amounts = work.gradient, work.slots, work.amounts
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    found = _collect_uses(corpus.states, begin, end, size, work.d_nodes, learned, gradient, slots, 0)
    if pairs is not None:
        found = _collect_uses(pairs.uses, begin, end, size * size, pairs.d_scores, learned, gradient, slots, found)
    slot = corpus.chain_start
    for i in range(size + 2):
        for j in range(size):
            if d_chain[i, j] != 0.0 and learned[slot]:
                gradient[slot] = d_chain[i, j]
                slots[found] = slot
                found += 1
            slot += 1
    n_slots = 0
    for n in range(found):  # a slot is listed twice where its sum was 0 in between
        slot = slots[n]
        if gradient[slot] != 0.0:
            slots[n_slots] = slot
            amounts[n_slots] = gradient[slot]
            gradient[slot] = 0.0
            n_slots += 1
    return n_slots


@njit(**HELPER)
def _collect_uses(uses, begin, end, size, d_scores, learned, gradient, touched, found):
    slots, columns, values, bounds = uses
    for t in range(begin, end):
        d_token = d_scores[t - begin]
        moves = False
        for j in range(size):
            moves |= d_token[j] != 0.0
        if not moves:
            continue
        for side in range(2 * t, 2 * t + 2):
            for n in range(bounds[side], bounds[side + 1]):
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                column = columns[n]
                for j in range(size if side == 2 * t else 1):
                    slot = slots[n] + j
                    if d_token[column + j] != 0.0 and learned[slot]:
                        if gradient[slot] == 0.0:
                            touched[found] = slot
                            found += 1
                        gradient[slot] += value * d_token[column + j]
    return found


# ----------------------------------------------------------------------------------------------------------- inference


@njit(**HELPER)
def _viterbi(work, pairs, path, n, size):
    """The best labelling in ``path``, and its score; among equals the one with the lower last state, then the one before."""
    nodes, chain, delta = work.nodes, work.chain, work.forward
    transitions = chain if pairs is None else work.matrix
    width = chain.shape[1]
    for j in range(width):
        delta[0, j] = chain[size, j] + nodes[0, j]
    # delta[t, j] = nodes[t, j] + max_i(delta[t-1, i] + transitions[i, j])
    for t in range(1, n):
        if pairs is not None:
            _set_transitions(chain, pairs.scores, t, size, transitions)
        for j in range(width):
            delta[t, j] = -np.inf
        for i in range(0, width, LANES):
            a, c, d, e = delta[t - 1, i], delta[t - 1, i + 1], delta[t - 1, i + 2], delta[t - 1, i + 3]
            for j in range(width):
                upper = max(a + transitions[i, j], c + transitions[i + 1, j])
                lower = max(d + transitions[i + 2, j], e + transitions[i + 3, j])
                delta[t, j] = max(delta[t, j], max(upper, lower))
        for j in range(width):
            delta[t, j] += nodes[t, j]
    best, score = -1, -np.inf
    for j in range(size):
        if delta[n - 1, j] + chain[size + 1, j] > score:
            best, score = j, delta[n - 1, j] + chain[size + 1, j]
    if best == -1:
        return np.nan if math.isnan(delta[n - 1, 0]) else -np.inf
    total = score
    path[n - 1] = best
    for t in range(n - 1, 0, -1):
        j, score = best, -np.inf
        if pairs is not None:
            _set_transitions(chain, pairs.scores, t, size, transitions)
        for i in range(size):
            if delta[t - 1, i] + transitions[i, j] > score:
                best, score = i, delta[t - 1, i] + transitions[i, j]
        path[t - 1] = best
    return total


@njit(**HELPER)
def _set_transitions(chain, pairs, t, size, matrix):
    """The scores of the step to token t, in matrix [P, P]."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = chain[i, j] + pairs[t, i * size + j] if i < size and j < size else -np.inf


@njit(fastmath=LINEAR, **HELPER)
def _exp(source, row, largest, target):
    """target[row] = exp(source[row] - largest), for differences between -SPREAD and 0, and 0 where they are smaller.

    exp(x) = exp(x / 1024)^1024: additions and products of whole vectors, where math.exp would be called for every number.
    It is right to twelve digits.
    """
    for j in range(target.shape[1]):
        x = (source[row, j] - largest) * (1.0 / 1024.0)
        y = 1.0 + x * (1.0 / 11.0)  # the first twelve terms of the series
        y = 1.0 + x * (1.0 / 10.0) * y
        y = 1.0 + x * (1.0 / 9.0) * y
        y = 1.0 + x * (1.0 / 8.0) * y
        y = 1.0 + x * (1.0 / 7.0) * y
        y = 1.0 + x * (1.0 / 6.0) * y
        y = 1.0 + x * (1.0 / 5.0) * y
        y = 1.0 + x * (1.0 / 4.0) * y
        y = 1.0 + x * (1.0 / 3.0) * y
        y = 1.0 + x * (1.0 / 2.0) * y
        y = 1.0 + x * y
        for _ in range(10):
            y *= y
        target[row, j] = 0.0 if x < -SPREAD / 1024.0 else y  # NaN stays NaN


@njit(fastmath=LINEAR, **HELPER)
def _expect_scaled(work, sum_work, n, size, amount):
    """Log partition; adds the expected uses of each score, times an amount.

    Scaled linear domain, as in `linear_chain`; NaN, and nothing added, where numbers could vanish.
    """
    nodes, chain, d_nodes, d_chain = work.nodes, work.chain, work.d_nodes, work.d_chain
    alpha, matrix = work.forward, work.matrix
    exp_nodes, arriving, beta, transposed, sums = sum_work
    width = matrix.shape[0]
    _clear(sums, width)
    largest, least = -np.inf, np.inf
    for i in range(size):
        for j in range(size):
            largest = max(largest, chain[i, j])
            least = min(least, chain[i, j] if chain[i, j] > -np.inf else np.inf)
    if largest == -np.inf:
        largest = least = 0.0
    spread = largest - least
    if not spread < SPREAD:
        return np.nan
    for i in range(width):
        _exp(chain, i, largest, matrix)
        if i >= size:  # there may be the firsts and lasts
            for j in range(width):
                matrix[i, j] = 0.0
        for j in range(width):
            transposed[j, i] = matrix[i, j]
    log_z = 0.0
    # alpha[t, j] = nodes[t, j] + logsum_i(alpha[t-1, i] + transitions[i, j])
    for t in range(n):
        a = c = d = e = -np.inf
        for j in range(0, width, LANES):  # four maxima that don't wait for one another
            a, c = max(a, nodes[t, j]), max(c, nodes[t, j + 1])
            d, e = max(d, nodes[t, j + 2]), max(e, nodes[t, j + 3])
        top = max(max(a, c), max(d, e))
        if top == -np.inf:
            return top
        n_small = 0
        for j in range(width):
            n_small += (nodes[t, j] <= top + spread - SPREAD) & (nodes[t, j] > -np.inf)
        if n_small > 0:
            return np.nan
        _exp(nodes, t, top, exp_nodes)
        if t == 0:
            for j in range(width):
                alpha[t, j] = math.exp(chain[size, j])
            log_z += top
        else:
            for j in range(width):
                alpha[t, j] = 0.0
            for i in range(0, width, LANES):
                a, c, d, e = alpha[t - 1, i], alpha[t - 1, i + 1], alpha[t - 1, i + 2], alpha[t - 1, i + 3]
                for j in range(width):
                    upper = a * matrix[i, j] + c * matrix[i + 1, j]
                    alpha[t, j] += upper + d * matrix[i + 2, j] + e * matrix[i + 3, j]
            log_z += top + largest
        total = 0.0
        for j in range(width):
            alpha[t, j] *= exp_nodes[t, j]
            total += alpha[t, j]
        if not TINY < total < 1.0 / TINY:
            return np.nan
        log_z += math.log(total)
        share = 1.0 / total
        for j in range(width):
            alpha[t, j] *= share
    total = 0.0
    for j in range(width):
        beta[j] = math.exp(chain[size + 1, j])
        total += alpha[n - 1, j] * beta[j]
    if not TINY < total < 1.0 / TINY:
        return np.nan
    log_z += math.log(total)
    # beta[t-1, i] = logsum_j(transitions[i, j] + nodes[t, j] + beta[t, j])
    for t in range(n - 1, -1, -1):
        total = 0.0
        for j in range(width):
            total += alpha[t, j] * beta[j]
        if not total > TINY:
            return np.nan
        share = amount / total
        total = 0.0
        for j in range(width):
            alpha[t, j] *= share
            arriving[t, j] = exp_nodes[t, j] * beta[j]
            total += arriving[t, j]
            exp_nodes[t, j] = alpha[t, j] * beta[j]
        if t == 0:
            break
        share = 1.0 / total
        for j in range(width):
            arriving[t, j] *= share
            beta[j] = 0.0
        for i in range(0, width, LANES):
            a, c, d, e = arriving[t, i], arriving[t, i + 1], arriving[t, i + 2], arriving[t, i + 3]
            for j in range(width):
                upper = a * transposed[i, j] + c * transposed[i + 1, j]
                beta[j] += upper + d * transposed[i + 2, j] + e * transposed[i + 3, j]
    # The step from i at t - 1 to j at t is expected alpha[t-1, i] · matrix[i, j] · arriving[t, j] times; four at once
    for t in range(1, n, 4):
        for i in range(size):
            if t + 3 < n:
                a, c, d, e = alpha[t - 1, i], alpha[t, i], alpha[t + 1, i], alpha[t + 2, i]
                for j in range(width):
                    upper = a * arriving[t, j] + c * arriving[t + 1, j]
                    sums[i, j] += upper + d * arriving[t + 2, j] + e * arriving[t + 3, j]
            else:
                for u in range(t, n):
                    for j in range(width):
                        sums[i, j] += alpha[u - 1, i] * arriving[u, j]
    for t in range(n):
        for j in range(size):
            d_nodes[t, j] += exp_nodes[t, j]
    for j in range(size):
        d_chain[size, j] += exp_nodes[0, j]
        d_chain[size + 1, j] += exp_nodes[n - 1, j]
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
        total += math.exp(term - largest)
    return largest + math.log(total)


@njit(**HELPER)
def _expect_in_logs(work, pairs, n, size, amount):
    """Textbook forward and backward, where the scaled ones give up or transitions depend on the token."""
    nodes, chain, d_nodes, d_chain, alpha = work.nodes, work.chain, work.d_nodes, work.d_chain, work.forward
    terms, arriving, beta = np.empty(size), np.empty(size), np.empty(size)
    for t in range(n):
        for j in range(size):
            if t == 0:
                alpha[t, j] = nodes[t, j] + chain[size, j]
                continue
            for i in range(size):
                terms[i] = alpha[t - 1, i] + chain[i, j]
                if pairs is not None:
                    terms[i] += pairs.scores[t, i * size + j]
            alpha[t, j] = nodes[t, j] + _log_sum(terms)
    for j in range(size):
        beta[j] = chain[size + 1, j]
        terms[j] = alpha[n - 1, j] + beta[j]
    log_z = _log_sum(terms)
    if not math.isfinite(log_z):
        return log_z
    for t in range(n - 1, -1, -1):
        for j in range(size):
            expected = amount * math.exp(alpha[t, j] + beta[j] - log_z)
            d_nodes[t, j] += expected
            if t == 0:
                d_chain[size, j] += expected
            if t == n - 1:
                d_chain[size + 1, j] += expected
            arriving[j] = nodes[t, j] + beta[j]
        if t == 0:
            break
        for i in range(size):
            for j in range(size):
                terms[j] = chain[i, j] + arriving[j]
                if pairs is not None:
                    terms[j] += pairs.scores[t, i * size + j]
                expected = amount * math.exp(alpha[t - 1, i] + terms[j] - log_z)
                d_chain[i, j] += expected
                if pairs is not None:
                    pairs.d_scores[t, i * size + j] += expected
            beta[i] = _log_sum(terms)
    return log_z
