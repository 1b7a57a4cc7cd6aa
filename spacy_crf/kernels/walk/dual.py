"""Ways through a corpus that train in the dual, see ``optimizers/dual.py``."""

import math
from typing import Optional

import numpy as np

from ...types import ChainCorpus
from .. import helper, kernel
from .blocks import clear, collect
from .chain import expect_in_logs, expect_scaled, use_path
from .segments import cover, expect_segments, fold, use_segments
from .sequence import differentiate
from .work import BestWork, ChainWork, ScoreTable, SegmentWork, SumWork, Workspace


@kernel(seconds=15)
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
    dual (float64[B]): The mean cost of each sequence's labellings. l2 (float64[M]): Of each weight.
    RETURNS: As `walk`.
    """
    direction = np.zeros((table.longest, corpus.n_states))
    total = 0.0
    for k in range(len(order)):
        b = order[k]
        loss, moves = differentiate(corpus, work, None, chains, segments, bests, None, b, costs, weights, 1.0)
        if not math.isfinite(loss):
            return loss, k
        total += loss
        if not learns or not moves:
            continue
        cost = _cost(corpus, work.d_nodes, b, costs)
        mean = uses[table.rows[b, 0] : table.rows[b, -1]]
        n_slots = _aim(corpus, work, segments, table, b, mean, direction)
        slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
        slope, square = _along(slots, amounts, weights, l2)
        # The dual is sum of costs - |sum of uses|² / 4 l2, and w = -uses / 2 l2.
        gap = slope + cost - dual[b]
        square /= 2.0
        step = 1.0 if square <= 0.0 else min(1.0, gap / square)
        if not step > 0.0 or (square <= 0.0 and not gap > 0.0):
            step = 0.0
        for n in range(n_slots):
            weights[slots[n]] -= step * amounts[n] / (2.0 * l2[slots[n]])
        dual[b] += step * (cost - dual[b])
        _add(mean, step, direction)
    return total, -1


@kernel(seconds=15)
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
        loss, moves = differentiate(corpus, work, None, chains, segments, bests, None, b, costs, weights, 1.0)
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
                clear(table.derivatives[kind], rows[kind + 1] - rows[kind])
            log_z = np.nan
            if chains is not None:
                log_z = expect_scaled(work, chains, sums, n, size, weight)
                if math.isnan(log_z):
                    log_z = expect_in_logs(work, chains, None, n, size, weight)
                use_path(work, None, corpus.gold[begin:end], size, -weight)
            if segments is not None:
                fold(work.nodes, segments, corpus.clamp, begin, end, size, False)
                log_z = expect_segments(work, None, segments, n, size, weight)
                use_segments(work, None, segments, segments.uses.path[begin:end], size, -weight)
                cover(segments.d_begins, segments.d_ends, n, size, work.d_nodes)
            if not math.isfinite(log_z):
                return log_z, k
            cost = _cost(corpus, work.d_nodes, b, costs)
            n_slots = _aim(corpus, work, segments, table, b, mean, direction)
            slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
            slope, square = _along(slots, amounts, weights, l2)
            # Where a distribution has all its mass at one labelling growth is nothing but rounding, yet theta has to move on.
            growth = cost - dual[b] + slope - square / 4.0
            if growth >= -1e-12 * (abs(cost) + abs(slope) + square / 4.0) or first:
                for m in range(n_slots):
                    weights[slots[m]] -= amounts[m] / (2.0 * l2[slots[m]])
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
    return collect(corpus, work, None, segments, b)


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
def _along(slots, amounts, weights, l2):
    """RETURNS: weights · gradient, and gradient² / l2."""
    slope = square = 0.0
    for n in range(len(slots)):
        slope += weights[slots[n]] * amounts[n]
        square += amounts[n] ** 2 / l2[slots[n]]
    return slope, square
