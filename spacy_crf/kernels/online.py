"""Rules that learn from one sequence after the other: score it, see what the loss wants, change the weights it uses.

All weights are one vector of M slots: those of the features of states, of the features of pairs of states, of segments, then a
matrix [S + 2, S] of transitions, firsts and lasts, -inf where forbidden, and the lengths of segments. Rows of features with many
states own a slot for every state, so not every slot is a weight (``learned``). A rule touches the slots of a sequence's features
and nothing else. Rules are the same for chains and for chains of segments; the last part of the file is about segments alone.

Shapes: n tokens of a sequence, S states, P = S rounded up to a multiple of LANES, the added states forbidden; K tokens of the
longest segment.
"""

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..types import GOES_ON, ChainCorpus, Floats, SegmentUses, SlotUses
from . import helper, kernel
from .numerics import LANES, LINEAR, SPREAD, TINY, exp_row, log_sum

OF_SPANS = 3  # from which on the kinds of a `SegmentUses` are about spans

# Rules of `walk`; those up to AROW look at the best labelling
NOTHING = 0
PERCEPTRON = 1
VOTED_PERCEPTRON = 2
PASSIVE_AGGRESSIVE = 3
AROW = 4
SGD = 5
SGD_L1 = 6
ADAGRAD = 7

# ``pairs``, ``chains``, ``segments``, ``bests`` and ``sums`` are None where they are not needed, and what is done with them is
# then not compiled. (What is done where one is None is compiled always.)


class Workspace(NamedTuple):
    """Room for one sequence after the other. Derivatives are those of its loss with respect to each score."""

    nodes: Floats  # [n, P] scores of states
    chain: Floats  # [at least S + 2, P] scores of transitions, firsts, lasts
    d_nodes: Floats
    d_chain: Floats
    matrix: Floats  # [P, P]
    gradient: Floats  # [M] sums while they are collected, otherwise 0
    slots: NDArray[np.int64]  # what was collected: the gradient at these slots
    amounts: Floats


class PairWork(NamedTuple):
    """The features of pairs of states."""

    uses: SlotUses
    scores: Floats  # [n, S * S] added to the transitions into each token
    d_scores: Floats


class ChainWork(NamedTuple):
    """For linear chains."""

    kept: Floats  # [n, P]
    forward: Floats  # [n, P]


class SegmentWork(NamedTuple):
    """For chains of segments. Scores and recursions are those of ``kernels/semi_markov.py``, in logarithms."""

    uses: SegmentUses
    begins: Floats  # [n, S] scores
    ends: Floats  # [n, S]
    lengths: Floats  # [K, S]
    spans: Floats  # [N, S]
    kept: Floats  # [N, S] of the spans that are excluded while the annotation holds
    d_begins: Floats
    d_ends: Floats
    d_lengths: Floats
    d_spans: Floats
    span_of: NDArray[np.int32]  # [n, K] number of the listed span that begins here and has this length, -1 for none
    opening: Floats  # [n, S]
    closing: Floats  # [n, S]
    reach: NDArray[np.int32]  # [n, S] first token that a segment ending here may begin with
    entered: Floats  # [n, S] prefixes
    left: Floats  # [n, S]
    leaving: Floats  # [n, S] suffixes
    out: Floats  # [n, S]
    mass: Floats  # [n, S]
    terms: Floats  # [K, S]
    shares: Floats  # [K, S]
    column: Floats  # [S]


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


class ScoreTable(NamedTuple):
    """All scores of a corpus as one table [R, S], sequence by sequence: those of its tokens, then transitions, firsts and lasts;
    of segments also begins, ends, listed spans and lengths."""

    rows: NDArray[np.int64]  # [B, kinds + 1] first row of each kind, and the end
    longest: int  # rows of a sequence
    scores: tuple[Floats, ...]  # the work space of each kind
    derivatives: tuple[Floats, ...]


class Room(NamedTuple):
    """Work space for a pass over a corpus, with either ``chains`` or ``segments``, and with either ``bests`` or ``sums``."""

    corpus: ChainCorpus  # its pairs and segments are in their work spaces
    work: Workspace
    pairs: Optional[PairWork]
    chains: Optional[ChainWork]
    segments: Optional[SegmentWork]
    bests: Optional[BestWork]
    sums: Optional[SumWork]


def make_room(corpus: ChainCorpus, *, maximum: bool) -> Room:
    size = corpus.n_states
    longest, width = _node_shape(corpus)
    height = max(size + 2, width)
    work = Workspace(
        nodes=np.full((longest, width), -np.inf),
        chain=np.full((height, width), -np.inf),
        d_nodes=np.zeros((longest, width)),
        d_chain=np.zeros((height, width)),
        matrix=np.zeros((width, width)),
        gradient=np.zeros(len(corpus.learned)),
        slots=np.zeros(corpus.most_slots, dtype=np.int64),
        amounts=np.zeros(corpus.most_slots),
    )
    pairs = chains = segments = bests = sums = None
    if corpus.segments is None:
        chains = ChainWork(np.zeros((longest, width)), np.zeros((longest, width)))
    else:
        segments = _make_segment_room(corpus.segments, corpus.starts, size)
    if corpus.pairs is not None:
        pairs = PairWork(corpus.pairs, np.zeros((longest, size * size)), np.zeros((longest, size * size)))
    if maximum:
        bests = BestWork(np.zeros(longest, dtype=np.int32))
    else:
        sums = make_sums(corpus)
    return Room(corpus._replace(pairs=None, segments=None), work, pairs, chains, segments, bests, sums)


def make_table(corpus: ChainCorpus, room: Room) -> ScoreTable:
    work, segments = room.work, room.segments
    scores, derivatives = (work.nodes, work.chain), (work.d_nodes, work.d_chain)
    n_tokens = np.diff(corpus.starts)
    heights = [n_tokens, np.full(len(n_tokens), corpus.n_states + 2)]
    if segments is not None:
        scores += segments.begins, segments.ends, segments.spans, segments.lengths
        derivatives += segments.d_begins, segments.d_ends, segments.d_spans, segments.d_lengths
        n_spans = np.diff(segments.uses.listed_starts[corpus.starts])
        heights += [n_tokens, n_tokens, n_spans, np.full(len(n_tokens), segments.uses.longest)]
    ends = np.cumsum(np.transpose(heights)).reshape(len(n_tokens), len(heights))
    rows = np.column_stack([np.append(0, ends[:-1, -1]), ends])
    return ScoreTable(rows, int((rows[:, -1] - rows[:, 0]).max(initial=0)), scores, derivatives)


def make_sums(corpus: ChainCorpus) -> SumWork:
    longest, width = _node_shape(corpus)
    return SumWork(
        exp_nodes=np.zeros((longest, width)),
        arriving=np.zeros((longest, width)),
        beta=np.zeros(width),
        transposed=np.zeros((width, width)),
        sums=np.zeros((width, width)),
    )


def _node_shape(corpus: ChainCorpus) -> tuple[int, int]:
    return int(np.diff(corpus.starts).max(initial=1)), -(-corpus.n_states // LANES) * LANES


def _make_segment_room(uses: SegmentUses, starts: NDArray[np.int64], size: int) -> SegmentWork:
    n, longest = int(np.diff(starts).max(initial=1)), uses.longest
    n_spans = int(np.diff(uses.listed_starts[starts]).max(initial=1))
    by_token = [np.zeros((n, size)) for _ in range(11)]
    by_length = [np.zeros((longest, size)) for _ in range(4)]
    return SegmentWork(
        uses,
        *by_token[:2],
        by_length[0],
        np.zeros((n_spans, size)),
        np.zeros((n_spans if len(uses.excluded) else 0, size)),
        *by_token[2:4],
        by_length[1],
        np.zeros((n_spans, size)),
        np.full((n, longest), -1, dtype=np.int32),
        *by_token[4:6],
        np.zeros((n, size), dtype=np.int32),
        *by_token[6:],
        *by_length[2:],
        np.zeros(size),
    )


# ---------------------------------------------------------------------------------------------- ways through a corpus


@kernel
def walk(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: Optional[PairWork],
    chains: Optional[ChainWork],
    segments: Optional[SegmentWork],
    bests: Optional[BestWork],
    sums: Optional[SumWork],
    order,
    costs,
    weights,
    rule,
    settings,
    seen,
    scaling,
    memory,
    squares,
):
    """Applies a rule to the sequences in the order given. One kernel, since most of it is the same for all rules; what some of
    them need is None for the others, and then theirs is compiled only.

    costs (float64[S, S] or [0, 0]): Added to the score of each state where the annotation says another one.
    settings (four floats): Of the rule. seen (float): How many sequences came before.
    scaling (float64[2] or None): The scale of the weights, w = scale · weights, and what any weight could have been charged so
        far, both of SGD.
    memory (float64[M] or None): What the rule remembers of each slot: see below. None for SGD without l1.
    squares (float64[M] or None): Of AdaGrad.
    RETURNS: The sum of losses, and -1; or a loss that is not a finite number, and its place in the order. It stops there.
    """
    total = 0.0
    n_updates = 0
    for k in range(len(order)):
        b = order[k]
        scale = 1.0
        if scaling is not None:
            scale = scaling[0]
        if squares is not None:
            _catch_up_sequence(corpus, pairs, segments, b, weights, settings, seen + k, memory, squares)
        loss, moves = _differentiate(corpus, work, pairs, chains, segments, bests, sums, b, costs, weights, scale)
        if not math.isfinite(loss):
            return loss, k
        if scaling is not None and rule == SGD:
            rate = settings[1] / (settings[2] + seen + k)
            scaling[0] *= 1.0 - rate * settings[0]
            if moves:
                _descend(corpus, work, pairs, segments, b, rate / scaling[0], weights)
        if memory is not None and rule != NOTHING:
            n_slots = _collect(corpus, work, pairs, segments, b) if moves else 0
            slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
            if scaling is not None and rule == SGD_L1:
                _sgd_l1(slots, amounts, weights, settings, seen + k, scaling, memory)
            if squares is not None and rule == ADAGRAD:
                _adagrad(slots, amounts, weights, settings, squares)
            if bests is not None and rule <= AROW and n_slots > 0:
                if rule == PERCEPTRON:
                    _perceptron(slots, amounts, weights, seen + k, memory)
                elif rule == VOTED_PERCEPTRON:
                    n_updates += 1
                    for n in range(n_slots):
                        memory[slots[n]] -= amounts[n]
                else:
                    factor = corpus.weights[b]
                    begin, end = corpus.starts[b], corpus.starts[b + 1]
                    wrong = 0
                    if chains is not None:
                        wrong = _n_wrong(corpus.gold, corpus.clamp, begin, end, bests.path)
                    if segments is not None:
                        must, may = segments.uses.must_begin, segments.uses.may_begin
                        wrong = _n_wrong_segments(corpus.gold, corpus.clamp, must, may, begin, end, bests.path)
                    if rule == PASSIVE_AGGRESSIVE:
                        loss = _passive_aggressive(
                            slots, amounts, loss, factor, wrong, len(costs) > 0, weights, settings, seen + k, memory
                        )
                    else:
                        loss = _arow(slots, amounts, loss, factor, wrong, len(costs) > 0, weights, settings, memory)
        total += loss
        if scaling is not None and scaling[0] < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= scaling[0]
            scaling[0] = 1.0
    if memory is not None and n_updates > 0:
        for slot in range(len(memory)):
            memory[slot] /= n_updates
    return total, -1


@kernel
def frank_wolfe(
    corpus: ChainCorpus,
    work: Workspace,
    chains: Optional[ChainWork],
    segments: Optional[SegmentWork],
    bests: BestWork,
    table: ScoreTable,
    order,
    learns,
    costs,
    weights,
    uses,
    dual,
    l2,
):
    """Lacoste-Julien, Jaggi, Schmidt & Pletscher 2013, algorithm 3: each sequence keeps the mean of the labellings that
    it met, and moves it towards its most violating labelling by the best step.

    learns (bool): Or are only the losses wanted?
    uses (float64[R, S]): The mean uses of each score, less the annotation's; see `ScoreTable`.
    dual (float64[B]): The mean cost of each sequence's labellings.
    RETURNS: As `walk`.
    """
    direction = np.zeros((table.longest, corpus.n_states))
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        loss, moves = _differentiate(corpus, work, None, chains, segments, bests, None, b, costs, weights, 1.0)
        if not math.isfinite(loss):
            return loss, k
        total += loss
        if not learns or not moves:
            continue
        cost = _cost(corpus, work.d_nodes, b, costs)
        mean = uses[table.rows[b, 0] : table.rows[b, -1]]
        n_slots = _aim(corpus, work, segments, table, b, mean, direction)
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
        _add(mean, step, direction)
    return total, -1


@kernel
def exponentiated_gradient(
    corpus: ChainCorpus,
    work: Workspace,
    chains: Optional[ChainWork],
    segments: Optional[SegmentWork],
    bests: BestWork,
    sums: SumWork,
    table: ScoreTable,
    order,
    learns,
    costs,
    weights,
    uses,
    dual,
    theta,
    rates,
    first,
    l2,
):
    """Bartlett, Collins, Taskar & McAllester 2004, figure 2: the distribution over a sequence's labellings is that of a
    chain with scores theta, and the step adds rate · (score + cost) to them. The rate of each sequence is halved until the
    dual grows, and grows by a twentieth when it did (Collins et al. 2008, section 6).

    learns, uses, dual: As in `frank_wolfe`, of the distribution. theta (float64[R, S]): Its scores, -inf where forbidden.
    rates (float64[B]).
    first (bool): Nothing is known of the distributions yet: those of theta replace the annotation, whatever the dual says.
    RETURNS: As `walk`.
    """
    size = corpus.n_states
    shape = table.longest, size
    ascent, scores, direction = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        loss, moves = _differentiate(corpus, work, None, chains, segments, bests, None, b, costs, weights, 1.0)
        if not math.isfinite(loss):
            return loss, k
        total += loss
        if not learns or not moves:
            continue
        begin, end = corpus.starts[b], corpus.starts[b + 1]
        n, weight = end - begin, corpus.weights[b]
        rows = table.rows[b]
        mean, theta_b = uses[rows[0] : rows[-1]], theta[rows[0] : rows[-1]]
        _read(table.scores, rows, ascent)  # with the cost
        for _ in range(20):
            rate = 0.0 if first else rates[b]
            for r in range(len(mean)):
                for j in range(size):
                    # Rates may become 0
                    scores[r, j] = theta_b[r, j] + rate * ascent[r, j] if ascent[r, j] > -np.inf else -np.inf
            _write(scores, rows, table.scores)
            for kind in range(len(table.derivatives)):
                _clear(table.derivatives[kind], rows[kind + 1] - rows[kind])
            log_z = np.nan
            if chains is not None:
                log_z = _expect_scaled(work, chains, sums, n, size, weight)
                if math.isnan(log_z):
                    log_z = _expect_in_logs(work, chains, None, n, size, weight)
                _use_path(work, None, corpus.gold[begin:end], size, -weight)
            if segments is not None:
                _fold(work.nodes, segments, corpus.clamp, begin, end, size, False)
                log_z = _expect_segments(work, None, segments, n, size, weight)
                _use_segments(work, None, segments, segments.uses.path[begin:end], size, -weight)
                _cover(segments.d_begins, segments.d_ends, n, size, work.d_nodes)
            if not math.isfinite(log_z):
                return log_z, k
            cost = _cost(corpus, work.d_nodes, b, costs)
            n_slots = _aim(corpus, work, segments, table, b, mean, direction)
            slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
            slope, square = _along(slots, amounts, weights)
            # Where a distribution has all its mass at one labelling growth is nothing but rounding, yet theta has to move on.
            growth = cost - dual[b] + slope - square / (4.0 * l2)
            if growth >= -1e-12 * (abs(cost) + abs(slope) + square / (4.0 * l2)) or first:
                for m in range(n_slots):
                    weights[slots[m]] -= amounts[m] / (2.0 * l2)
                dual[b] = cost
                _add(mean, 1.0, direction)
                for r in range(len(mean)):
                    # Each token has one state, so only differences within its row matter, and these scores may stay small.
                    largest = 0.0
                    if r < n:
                        largest = -np.inf
                        for j in range(size):
                            largest = max(largest, scores[r, j])
                    for j in range(size):
                        theta_b[r, j] = max(scores[r, j] - largest, -1e4) if r < n else scores[r, j]
                if not first:
                    rates[b] *= 1.05
                break
            rates[b] *= 0.5
    return total, -1


@helper
def _read(tables, rows, target):
    """The scores, or derivatives, of a sequence, one kind below the other."""
    r = 0
    for kind in range(len(tables)):
        for t in range(rows[kind + 1] - rows[kind]):
            for j in range(target.shape[1]):
                target[r, j] = tables[kind][t, j]
            r += 1


@helper
def _write(source, rows, tables):
    """The reverse of `_read`."""
    r = 0
    for kind in range(len(tables)):
        for t in range(rows[kind + 1] - rows[kind]):
            for j in range(source.shape[1]):
                tables[kind][t, j] = source[r, j]
            r += 1


@helper
def _add(rows, amount, others):
    for r in range(len(rows)):
        for j in range(rows.shape[1]):
            rows[r, j] += amount * others[r, j]


@helper(inline="always")
def _aim(corpus, work, segments, table, b, mean, direction):
    """Where a sequence could go, less where it is: in terms of scores, and collected by weight."""
    _read(table.derivatives, table.rows[b], direction)
    _add(direction[: len(mean)], -1.0, mean)
    _write(direction, table.rows[b], table.derivatives)
    return _collect(corpus, work, None, segments, b)


@helper
def _cost(corpus, d_nodes, b, costs):
    """Of the labellings whose uses, less the annotation's, are the derivative: the annotation itself costs nothing."""
    cost = 0.0
    begin = corpus.starts[b]
    for t in range(begin, corpus.starts[b + 1]):
        for j in range(corpus.n_states):
            cost += d_nodes[t - begin, j] * costs[corpus.gold[t], j]
    return cost


@helper
def _along(slots, amounts, weights):
    """RETURNS: weights · gradient, and |gradient|²."""
    slope = square = 0.0
    for n in range(len(slots)):
        slope += weights[slots[n]] * amounts[n]
        square += amounts[n] ** 2
    return slope, square


# ----------------------------------------------------------------------------------------------------------- the rules

# The gradient of a sequence's loss is ``amounts`` at ``slots``, ``seen`` is how many sequences came before it.


@helper
def _perceptron(slots, amounts, weights, seen, drift):
    """Collins 2002, figure 1: w += features(annotation) - features(best labelling).

    drift (float64[M]): Sum of all updates, each times the weight vectors before it, of which the zeros at the start are one:
        the average is weights - drift / vectors.
    """
    for n in range(len(slots)):
        weights[slots[n]] -= amounts[n]
        drift[slots[n]] -= (seen + 1.0) * amounts[n]


@helper
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


@helper
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


@helper(fastmath=LINEAR)
def _descend(corpus, work, pairs, segments, b, rate, weights):
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
    if segments is not None:
        uses = segments.uses
        derivatives = (work.d_nodes, segments.d_begins, segments.d_ends, segments.d_spans, segments.d_spans)
        # What was used before has the rate already
        rates = (1.0, rate, rate, rate, 1.0)
        for kind in range(5):
            a, c = _rows(uses.listed_starts, kind, begin, end)
            _descend_uses(uses.features, a, c, size, derivatives[kind], rates[kind], learned, weights)
        slot = uses.length_start
        for k in range(uses.longest):
            for j in range(size):
                if learned[slot]:
                    weights[slot] -= rate * segments.d_lengths[k, j]
                slot += 1
    slot = corpus.chain_start
    for i in range(size + 2):
        for j in range(size):
            if learned[slot]:
                weights[slot] -= rate * d_chain[i, j]
            slot += 1


@helper(fastmath=LINEAR)
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


@helper
def _sgd_l1(slots, amounts, weights, settings, seen, scaling, paid):
    """`_descend` with the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009, figure 2.

    settings: As of SGD, and the weight of |w| per sequence. paid (float64[M]): q, what each weight was charged.
    """
    decay, rate, offset, l1 = settings
    rate /= offset + seen
    scaling[0] *= 1.0 - rate * decay
    scaling[1] += rate * l1
    for n in range(len(slots)):
        slot = slots[n]
        weights[slot] -= rate / scaling[0] * amounts[n]
        weights[slot] = _charge(weights[slot] * scaling[0], scaling[1], paid, slot) / scaling[0]


@helper
def _charge(weight, due, paid, slot):
    before = weight
    if weight > 0.0:
        weight = max(0.0, weight - (due + paid[slot]))
    elif weight < 0.0:
        weight = min(0.0, weight + (due - paid[slot]))
    paid[slot] += weight - before
    return weight


@kernel
def charge_all(learned, weights, scale, due, paid):
    """Brings every weight up to date, the used and the unused."""
    for slot in range(len(weights)):
        if learned[slot]:
            weights[slot] = _charge(weights[slot] * scale, due, paid, slot) / scale


@helper
def _adagrad(slots, amounts, weights, settings, squares):
    """Duchi, Hazan & Singer 2011, section 5.1 (composite mirror descent), each weight catching up when it is used.

    settings: The learning rates' numerator, and what is added to their denominators; weights of |w| and w² per sequence.
    squares (float64[M]): Sums of the squared gradients.
    """
    for n in range(len(slots)):
        squares[slots[n]] += amounts[n] ** 2
        weights[slots[n]] -= settings[0] / (settings[1] + math.sqrt(squares[slots[n]])) * amounts[n]


@helper
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


@helper
def _catch_up_sequence(corpus, pairs, segments, b, weights, settings, seen, regularized, squares):
    if settings[2] == 0.0 and settings[3] == 0.0:
        return
    size = corpus.n_states
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    _catch_up_uses(corpus.states, begin, end, size, weights, settings, seen, regularized, squares)
    if pairs is not None:
        _catch_up_uses(pairs.uses, begin, end, size * size, weights, settings, seen, regularized, squares)
    if segments is not None:
        uses = segments.uses
        for kind in range(5):
            a, c = _rows(uses.listed_starts, kind, begin, end)
            _catch_up_uses(uses.features, a, c, size, weights, settings, seen, regularized, squares)
    for slot in range(corpus.chain_start, len(weights)):
        if corpus.learned[slot]:
            _catch_up(slot, weights, settings, seen, regularized, squares)


@helper
def _catch_up_uses(uses, begin, end, size, weights, settings, seen, regularized, squares):
    slots, _, _, bounds = uses
    for side in range(2 * begin, 2 * end):
        for n in range(bounds[side], bounds[side + 1]):
            for slot in range(slots[n], slots[n] + (size if side % 2 == 0 else 1)):
                _catch_up(slot, weights, settings, seen, regularized, squares)


@kernel
def catch_up_all(learned, weights, settings, seen, regularized, squares):
    """Brings every weight up to date with the regularizer."""
    for slot in range(len(weights)):
        if learned[slot]:
            _catch_up(slot, weights, settings, seen, regularized, squares)


# ------------------------------------------------------------------------------------------- what a sequence asks for


# A part of its callers before LLVM sees them, which then optimizes it once instead of twice
@helper(inline="always")
def _differentiate(corpus, work, pairs, chains, segments, bests, sums, b, costs, weights, scale):
    """Leaves the derivative of a sequence's loss in the work spaces.

    RETURNS: The loss, times the weight of the sequence; and whether the derivative may be anything but zero.
    """
    gold = corpus.gold
    clamp = corpus.clamp
    size = corpus.n_states
    nodes, chain = work.nodes, work.chain
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    factor = corpus.weights[b]
    n = end - begin
    _clear(work.d_nodes, n)
    _clear(work.d_chain, size + 2)
    if pairs is not None:
        _clear(pairs.d_scores, n)
    if segments is not None:
        _clear(segments.d_begins, n)
        _clear(segments.d_ends, n)
        _clear(segments.d_lengths, len(segments.d_lengths))
        _clear(segments.d_spans, segments.uses.listed_starts[end] - segments.uses.listed_starts[begin])
    if n == 0 or factor == 0.0:
        return 0.0, False
    if chains is not None:
        _add_scores(corpus.states, begin, end, size, weights, scale, False, nodes)
    if segments is not None:
        _score_segments(corpus.states, nodes, segments, begin, end, size, weights, scale)
    if pairs is not None:
        _add_scores(pairs.uses, begin, end, size * size, weights, scale, False, pairs.scores)
    for i in range(size + 2):
        for j in range(size):
            chain[i, j] = scale * weights[corpus.chain_start + i * size + j]
    value = reached = 0.0
    for step in range(2):  # what the annotation allows, then everything
        is_free = step == 1
        if not is_free and corpus.is_known[b]:
            if chains is not None:
                reached = _path_score(work, pairs, gold[begin:end], size)
            if segments is not None:
                reached = _segments_score(work, pairs, segments, segments.uses.path[begin:end], size)
        else:
            if is_free and len(costs) > 0:
                _add_costs(nodes, gold, clamp, begin, end, costs)
            if segments is not None:
                _fold(nodes, segments, clamp, begin, end, size, not is_free)
                if len(segments.uses.excluded) > 0 and not corpus.is_known[b]:
                    first, last = segments.uses.listed_starts[begin], segments.uses.listed_starts[end]
                    _exclude(segments.uses.excluded[first:last], segments.spans, segments.kept, is_free)
            if chains is not None and not is_free:
                for t in range(n):
                    for j in range(size):
                        chains.kept[t, j] = nodes[t, j]
                        if not clamp[begin + t, j]:
                            nodes[t, j] = -np.inf
            amount = factor if is_free else -factor
            if bests is not None:
                if chains is not None:
                    value = _viterbi(work, chains, pairs, bests.path, n, size)
                    if math.isfinite(value):
                        _use_path(work, pairs, bests.path[:n], size, amount)
                if segments is not None:
                    value = _best_segments(work, pairs, segments, bests.path, n, size)
                    if math.isfinite(value):
                        _use_segments(work, pairs, segments, bests.path[:n], size, amount)
            if sums is not None:
                if chains is not None:
                    value = np.nan
                    if pairs is None:
                        value = _expect_scaled(work, chains, sums, n, size, amount)
                    if math.isnan(value):
                        value = _expect_in_logs(work, chains, pairs, n, size, amount)
                if segments is not None:
                    value = _expect_segments(work, pairs, segments, n, size, amount)
            if not is_free:
                reached = value
                if chains is not None:
                    for t in range(n):
                        for j in range(size):
                            nodes[t, j] = chains.kept[t, j]
        if reached == -np.inf:
            return 0.0, False  # the annotation is forbidden: nothing to learn
    if corpus.is_known[b]:
        if chains is not None:
            _use_path(work, pairs, gold[begin:end], size, -factor)
        if segments is not None:
            _use_segments(work, pairs, segments, segments.uses.path[begin:end], size, -factor)
    if segments is not None:
        _cover(segments.d_begins, segments.d_ends, n, size, work.d_nodes)
    return factor * max(value - reached, 0.0) if math.isfinite(value) else np.nan, True


@helper
def _clear(rows, n):
    for t in range(n):
        for j in range(rows.shape[1]):
            rows[t, j] = 0.0


@helper(fastmath=LINEAR)
def _add_scores(uses, begin, end, size, weights, scale, adds, scores):
    """scores[t, c] = scale · the weights of column c that token t uses; what is there already counts as some, if it adds."""
    slots, columns, values, bounds = uses
    for t in range(begin, end):
        target = scores[t - begin]
        if not adds:
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


@helper
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


@helper
def _n_wrong(gold, clamp, begin, end, path):
    """Tokens at which a path contradicts the annotation."""
    wrong = 0
    for t in range(begin, end):
        state = path[t - begin]
        wrong += state != gold[t] if gold[t] >= 0 else not clamp[t, state]
    return wrong


@helper
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


@helper
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


@helper
def _collect(corpus, work, pairs, segments, b):
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
    if segments is not None:
        uses = segments.uses
        derivatives = (work.d_nodes, segments.d_begins, segments.d_ends, segments.d_spans, segments.d_spans)
        for kind in range(5):
            a, c = _rows(uses.listed_starts, kind, begin, end)
            found = _collect_uses(uses.features, a, c, size, derivatives[kind], learned, gradient, slots, found)
        slot = uses.length_start
        for k in range(uses.longest):
            for j in range(size):
                if segments.d_lengths[k, j] != 0.0 and learned[slot]:
                    gradient[slot] = segments.d_lengths[k, j]
                    slots[found] = slot
                    found += 1
                slot += 1
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


@helper
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


@helper
def _viterbi(work, chains, pairs, path, n, size):
    """The best labelling in ``path``, and its score; among equals the one with the lower last state, then the one before."""
    nodes, chain, delta = work.nodes, work.chain, chains.forward
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


@helper
def _set_transitions(chain, pairs, t, size, matrix):
    """The scores of the step to token t, in matrix [P, P]."""
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            matrix[i, j] = chain[i, j] + pairs[t, i * size + j] if i < size and j < size else -np.inf


@helper(fastmath=LINEAR)
def _expect_scaled(work, chains, sum_work, n, size, amount):
    """Log partition; adds the expected uses of each score, times an amount.

    Scaled linear domain, as in `linear_chain`; NaN, and nothing added, where numbers could vanish.
    """
    nodes, chain, d_nodes, d_chain = work.nodes, work.chain, work.d_nodes, work.d_chain
    alpha, matrix = chains.forward, work.matrix
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
        exp_row(chain, i, largest, matrix)
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
        exp_row(nodes, t, top, exp_nodes)
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


@helper
def _expect_in_logs(work, chains, pairs, n, size, amount):
    """Textbook forward and backward, where the scaled ones give up or transitions depend on the token."""
    nodes, chain, d_nodes, d_chain, alpha = work.nodes, work.chain, work.d_nodes, work.d_chain, chains.forward
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
            alpha[t, j] = nodes[t, j] + log_sum(terms)
    for j in range(size):
        beta[j] = chain[size + 1, j]
        terms[j] = alpha[n - 1, j] + beta[j]
    log_z = log_sum(terms)
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
            beta[i] = log_sum(terms)
    return log_z


# ------------------------------------------------------------------------------------------------------------ segments


@helper
def _rows(listed_starts, kind, begin, end):
    """What tokens begin:end use of a kind of `SegmentUses.features`."""
    n_tokens = len(listed_starts) - 1
    if kind < OF_SPANS:
        return kind * n_tokens + begin, kind * n_tokens + end
    before = OF_SPANS * n_tokens + (kind - OF_SPANS) * listed_starts[-1]
    return before + listed_starts[begin], before + listed_starts[end]


@helper
def _score_segments(states, nodes, segments, begin, end, size, weights, scale):
    """Scores of tokens, begins, ends, lengths and listed spans; and which spans are listed."""
    uses = segments.uses
    starts = uses.listed_starts
    first = starts[begin]
    scores = (nodes, segments.begins, segments.ends, segments.spans, segments.spans)
    _add_scores(states, begin, end, size, weights, 1.0, False, nodes)
    for kind in range(5):
        a, c = _rows(starts, kind, begin, end)
        # The first is added to what states gave, the last to what spans gave: so these two are not scaled yet.
        is_second, is_scaled = kind == 0 or kind == 4, kind != 3
        _add_scores(uses.features, a, c, size, weights, scale if is_scaled else 1.0, is_second, scores[kind])
    for k in range(uses.longest):
        for j in range(size):
            segments.lengths[k, j] = scale * weights[uses.length_start + k * size + j]
    for t in range(begin, end):
        for k in range(uses.longest):
            segments.span_of[t - begin, k] = -1
        for n in range(starts[t], starts[t + 1]):
            segments.span_of[t - begin, uses.listed_lengths[n] - 1] = n - first


@helper
def _fold(nodes, segments, clamp, begin, end, size, is_clamped):
    """Opening, closing and reach of segments, see `semi_markov.fold` and `semi_markov.mask`."""
    opening, closing, reach, total = segments.opening, segments.closing, segments.reach, segments.column
    must_begin, may_begin = segments.uses.must_begin, segments.uses.may_begin
    for j in range(size):
        total[j] = 0.0
    for t in range(end - begin):
        for j in range(size):
            opening[t, j] = segments.begins[t, j] - total[j]
            total[j] += nodes[t, j]
            closing[t, j] = segments.ends[t, j] + total[j]
            reach[t, j] = 0
        if is_clamped:
            for j in range(size):
                reach[t, j] = t if t == 0 or must_begin[begin + t] else reach[t - 1, j]
                if not clamp[begin + t, j]:
                    reach[t, j] = t + 1
            if t > 0 and not may_begin[begin + t]:
                for j in range(size):
                    opening[t, j] = closing[t - 1, j] = -np.inf


@helper
def _exclude(excluded, spans, kept, is_over):
    """Forbids the spans that the annotation excludes, or, when that is over, gives them their scores back."""
    for n in range(len(excluded)):
        for j in range(excluded.shape[1]):
            if excluded[n, j]:
                if is_over:
                    spans[n, j] = kept[n, j]
                else:
                    kept[n, j] = spans[n, j]
                    spans[n, j] = -np.inf


@helper
def _gather_ending(segments, t, size):
    """Scores of the segments that end with t, with what is before them and without the closing, in terms[k].

    RETURNS (int): How many lengths are possible.
    """
    entered, lengths, terms = segments.entered, segments.lengths, segments.terms
    n_lengths = min(len(lengths), t + 1)
    for k in range(n_lengths):
        span = segments.span_of[t - k, k]
        for j in range(size):
            terms[k, j] = entered[t - k, j] + lengths[k, j] if segments.reach[t, j] <= t - k else -np.inf
        if span >= 0:
            for j in range(size):
                terms[k, j] += segments.spans[span, j]
    return n_lengths


@helper
def _best_segments(work, pairs, segments, path, n, size):
    """The best segmentation in ``path``, and its score; ties as in `semi_markov.viterbi`."""
    chain, entered, left, terms = work.chain, segments.entered, segments.left, segments.terms
    transitions = chain if pairs is None else work.matrix
    for t in range(n):
        if pairs is not None:
            _set_transitions(chain, pairs.scores, t, size, transitions)
        for j in range(size):
            entered[t, j] = chain[size, j] if t == 0 else -np.inf
        if t > 0:
            for i in range(size):
                for j in range(size):
                    entered[t, j] = max(entered[t, j], left[t - 1, i] + transitions[i, j])
        for j in range(size):
            entered[t, j] += segments.opening[t, j]
            left[t, j] = -np.inf
        n_lengths = _gather_ending(segments, t, size)
        for k in range(n_lengths):
            for j in range(size):
                left[t, j] = max(left[t, j], terms[k, j])
        for j in range(size):
            left[t, j] += segments.closing[t, j]
    state, total = -1, -np.inf
    for j in range(size):
        if left[n - 1, j] + chain[size + 1, j] > total:
            state, total = j, left[n - 1, j] + chain[size + 1, j]
    if state == -1:
        return np.nan if math.isnan(left[n - 1, 0]) else -np.inf
    t = n - 1
    while True:
        n_lengths = _gather_ending(segments, t, size)
        longer = 0
        for k in range(1, n_lengths):
            if terms[k, state] > terms[longer, state]:
                longer = k
        for i in range(t - longer + 1, t + 1):
            path[i] = GOES_ON
        t -= longer
        path[t] = state
        if t == 0:
            return total
        if pairs is not None:
            _set_transitions(chain, pairs.scores, t, size, transitions)
        after, best = state, -np.inf
        for i in range(size):
            if left[t - 1, i] + transitions[i, after] > best:
                best = left[t - 1, i] + transitions[i, after]
                state = i
        t -= 1


@helper
def _segments_score(work, pairs, segments, path, size):
    chain = work.chain
    score, before, t = 0.0, -1, 0
    while t < len(path):
        state, end = path[t], t + 1
        while end < len(path) and path[end] == GOES_ON:
            end += 1
        score += chain[size, state] if before < 0 else chain[before, state]
        if before >= 0 and pairs is not None:
            score += pairs.scores[t, before * size + state]
        score += segments.begins[t, state] + segments.ends[end - 1, state] + segments.lengths[end - t - 1, state]
        if segments.span_of[t, end - t - 1] >= 0:
            score += segments.spans[segments.span_of[t, end - t - 1], state]
        for i in range(t, end):
            score += work.nodes[i, state]
        before, t = state, end
    return score + chain[size + 1, before]


@helper
def _use_segments(work, pairs, segments, path, size, amount):
    """Adds an amount for each score that a path of segments uses; those of tokens are left to `_cover`."""
    d_chain = work.d_chain
    before, t = -1, 0
    while t < len(path):
        state, end = path[t], t + 1
        while end < len(path) and path[end] == GOES_ON:
            end += 1
        d_chain[size if before < 0 else before, state] += amount
        if before >= 0 and pairs is not None:
            pairs.d_scores[t, before * size + state] += amount
        segments.d_begins[t, state] += amount
        segments.d_ends[end - 1, state] += amount
        segments.d_lengths[end - t - 1, state] += amount
        if segments.span_of[t, end - t - 1] >= 0:
            segments.d_spans[segments.span_of[t, end - t - 1], state] += amount
        before, t = state, end
    d_chain[size + 1, before] += amount


@helper
def _n_wrong_segments(gold, clamp, must_begin, may_begin, begin, end, path):
    """Tokens at which a path contradicts the annotation: another state, or a segment begins or goes on where it must not."""
    wrong = 0
    state = 0
    for t in range(begin, end):
        goes_on = path[t - begin] == GOES_ON
        if not goes_on:
            state = path[t - begin]
        is_wrong = must_begin[t] if goes_on else t > begin and not may_begin[t]
        is_wrong |= state != gold[t] if gold[t] >= 0 else not clamp[t, state]
        wrong += is_wrong
    return wrong


@helper
def _cover(d_begins, d_ends, n, size, d_nodes):
    """Segments over each token: those that began up to it, less those that ended before it."""
    for t in range(n):
        for j in range(size):
            d_nodes[t, j] = d_begins[t, j]
            if t > 0:
                d_nodes[t, j] += d_nodes[t - 1, j] - d_ends[t - 1, j]


@helper
def _log_sum_steps(chain, pairs, t, i, j, row, size, terms, leaves):
    """Log of the sum over the steps into token t that leave state i (to all j), or that lead to state j (from all i)."""
    for other in range(size):
        before, after = (i, other) if leaves else (other, j)
        terms[other] = row[other] + chain[before, after]
        if pairs is not None:
            terms[other] += pairs.scores[t, before * size + after]
    return log_sum(terms)


@helper
def _log_sum_lengths(terms, n_lengths, size, shares, out):
    """out[j] = log of the sum over k of exp(terms[k, j])."""
    for j in range(size):
        out[j] = -np.inf
    for k in range(n_lengths):
        for j in range(size):
            out[j] = max(out[j], terms[k, j])
    for k in range(n_lengths):
        for j in range(size):
            shares[k, j] = terms[k, j] - (out[j] if out[j] > -np.inf else 0.0)
        exp_row(shares, k, 0.0, shares)
        if k > 0:
            for j in range(size):
                shares[0, j] += shares[k, j]
    for j in range(size):
        out[j] = out[j] + math.log(shares[0, j]) if out[j] > -np.inf else -np.inf


@helper
def _largest(row):
    largest = -np.inf
    for value in row:
        largest = max(largest, value)
    return largest


@helper
def _expect_segments(work, pairs, segments, n, size, amount):
    """Log partition; adds the expected uses of each score, times an amount; those of tokens are left to `_cover`.

    Sums are logarithms. Inside, steps are products of exp(left - maximum) and exp(transitions - maximum); where these could
    vanish, or transitions depend on the token, it is the textbook sum.
    """
    chain, exps, d_chain = work.chain, work.matrix, work.d_chain
    opening, closing, entered, left = segments.opening, segments.closing, segments.entered, segments.left
    leaving, out, mass, terms, shares = segments.leaving, segments.out, segments.mass, segments.terms, segments.shares
    lengths, spans, column = segments.lengths, segments.spans, segments.column
    top = -np.inf
    for i in range(size):
        for j in range(size):
            top = max(top, chain[i, j])
    for i in range(size):
        exp_row(chain, i, top, exps)
    # entered[t, j] = opening[t, j] + logsum_i(left[t-1, i] + transitions[i, j])
    # left[t, j] = closing[t, j] + logsum_k(entered[t-k, j] + lengths[k, j] + spans[.., j])
    for t in range(n):
        if t == 0:
            for j in range(size):
                entered[t, j] = chain[size, j] + opening[t, j]
        else:
            largest = _largest(left[t - 1])
            for j in range(size):
                entered[t, j] = 0.0
            if pairs is None and largest > -np.inf:
                exp_row(left, t - 1, largest, mass)
                for i in range(size):
                    for j in range(size):
                        entered[t, j] += mass[t - 1, i] * exps[i, j]
            for j in range(size):
                if entered[t, j] > TINY:
                    entered[t, j] = largest + top + math.log(entered[t, j])
                else:
                    entered[t, j] = _log_sum_steps(chain, pairs, t, -1, j, left[t - 1], size, column, False)
                entered[t, j] += opening[t, j]
        _log_sum_lengths(terms, _gather_ending(segments, t, size), size, shares, left[t])
        for j in range(size):
            left[t, j] += closing[t, j]
    for j in range(size):
        column[j] = left[n - 1, j] + chain[size + 1, j]
    log_z = log_sum(column)
    if not math.isfinite(log_z):
        return log_z
    for j in range(size):
        leaving[n - 1, j] = chain[size + 1, j]
        d_chain[size + 1, j] += amount * math.exp(column[j] - log_z)
    # leaving[t, i] = closing[t, i] + logsum_j(transitions[i, j] + out[t+1, j])
    # out[t, j] = opening[t, j] + logsum_k(leaving[t+k, j] + lengths[k, j] + spans[.., j])
    for t in range(n - 1, -1, -1):
        if t < n - 1:
            after, before = _largest(out[t + 1]), _largest(left[t])
            share = after + before + top - log_z
            is_scaled = pairs is None and after > -np.inf and before > -np.inf and share < SPREAD / 3.0
            if is_scaled:
                exp_row(out, t + 1, after, mass)
                exp_row(left, t, before, mass)
                share = amount * math.exp(share)
            for i in range(size):
                total = 0.0
                if is_scaled:
                    factor = share * mass[t, i]
                    for j in range(size):
                        step = exps[i, j] * mass[t + 1, j]
                        total += step
                        d_chain[i, j] += factor * step
                elif left[t, i] > -np.inf:
                    for j in range(size):
                        step = chain[i, j]
                        if pairs is not None:
                            step += pairs.scores[t + 1, i * size + j]
                        expected = amount * math.exp(left[t, i] + step + out[t + 1, j] - log_z)
                        d_chain[i, j] += expected
                        if pairs is not None:
                            pairs.d_scores[t + 1, i * size + j] += expected
                if total > TINY:
                    leaving[t, i] = after + top + math.log(total)
                else:
                    leaving[t, i] = _log_sum_steps(chain, pairs, t + 1, i, -1, out[t + 1], size, column, True)
        for j in range(size):
            leaving[t, j] += closing[t, j]
        n_lengths = min(len(lengths), n - t)
        for k in range(n_lengths):
            span = segments.span_of[t, k]
            for j in range(size):
                terms[k, j] = leaving[t + k, j] + lengths[k, j] if segments.reach[t + k, j] <= t else -np.inf
                if span >= 0:
                    terms[k, j] += spans[span, j]
                shares[k, j] = entered[t, j] + terms[k, j]
            exp_row(shares, k, log_z, shares)
            for j in range(size):
                expected = amount * shares[k, j]
                segments.d_begins[t, j] += expected
                segments.d_ends[t + k, j] += expected
                segments.d_lengths[k, j] += expected
                if span >= 0:
                    segments.d_spans[span, j] += expected
                if t == 0:
                    d_chain[size, j] += expected
        _log_sum_lengths(terms, n_lengths, size, shares, out[t])
        for j in range(size):
            out[t, j] += opening[t, j]
    return log_z
