"""Passes over a corpus that train in the dual, see ``lab/dual.py``."""

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.online.blocks import clear, collect
from spacy_crf.kernels.online.segments import cover, running_sums
from spacy_crf.kernels.online.sequence import LossArguments, differentiate, expect, use_annotation
from spacy_crf.kernels.online.work import ChainBuffers, PairBuffers, PassBuffers, SegmentBuffers, Workspace
from spacy_crf.types import ChainCorpus, Floats


class ScoreTable(NamedTuple):
    """All scores of a corpus as one table [R, S], sequence by sequence: of its tokens, then transitions, firsts and lasts; of
    segments also begins, ends, listed spans and lengths."""

    rows: NDArray[np.int64]  # [B, kinds + 1] first row of each kind, and the end
    scores: tuple[Floats, ...]  # the work space of each kind
    derivatives: tuple[Floats, ...]
    direction: Floats  # [longest, S] room for the rows of a sequence, like the next two
    ascent: Floats
    room: Floats


def make_table(corpus: ChainCorpus, room: PassBuffers) -> ScoreTable:
    """The rows of all sequences of a corpus, beside its work space."""
    work = room.work
    segments = room.segments
    scores = (work.nodes, work.chain)
    derivatives = (work.d_nodes, work.d_chain)
    n_tokens = np.diff(corpus.starts)
    heights = [n_tokens, np.full(len(n_tokens), corpus.n_states + 2)]
    if segments is not None:
        scores += segments.begins, segments.ends, segments.spans, segments.lengths
        derivatives += segments.d_begins, segments.d_ends, segments.d_spans, segments.d_lengths
        n_spans = np.diff(segments.uses.listed_starts[corpus.starts])
        heights += [n_tokens, n_tokens, n_spans, np.full(len(n_tokens), segments.uses.longest)]
    ends = np.cumsum(np.transpose(heights)).reshape(len(n_tokens), len(heights))
    rows = np.column_stack([np.append(0, ends[:-1, -1]), ends])
    longest = int((rows[:, -1] - rows[:, 0]).max(initial=0))
    return ScoreTable(rows, scores, derivatives, *np.zeros((3, longest, corpus.n_states)))


class Ascent(NamedTuple):
    """The state of each sequence in the dual, and the settings of a pass. Only exponentiated gradients use the last three
    fields."""

    order: NDArray  # [n] order of the sequences
    learns: bool  # whether to learn, or only to compute the losses
    costs: Floats  # [S, S]
    weights: Floats  # [M]
    l2: Floats  # [M] of each weight
    uses: Floats  # [R, S] the mean uses of each score, less the annotation's; see `ScoreTable`
    dual: Floats  # [B] the mean cost of each sequence's labellings
    theta: Floats  # [R, S] scores of the distribution over a sequence's labellings, -inf where forbidden; or [0, S]
    rates: Floats  # [B]
    # Nothing is known of the distributions yet: those of theta replace the annotation, whatever the dual says
    first: bool


@kernel(seconds=20)
def ascend(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: PairBuffers,
    chains: Optional[ChainBuffers],
    segments: Optional[SegmentBuffers],
    table: ScoreTable,
    ascent: Ascent,
):
    """With ``theta`` exponentiated gradients, else Frank-Wolfe. There are no features of pairs. RETURNS: As `walk`."""
    total = 0.0
    for k in range(len(ascent.order)):
        b = ascent.order[k]
        arguments = LossArguments(b, ascent.costs, ascent.weights, 1.0)
        loss, moves = differentiate(corpus, work, pairs, chains, segments, True, arguments)
        if not math.isfinite(loss):
            return loss, k
        total += loss
        if not ascent.learns or not moves:
            continue
        if len(ascent.theta) == 0:
            _move_mean(corpus, work, pairs, segments, table, ascent, b)
        else:
            log_z = _move_distribution(corpus, work, pairs, chains, segments, table, ascent, b)
            if not math.isfinite(log_z):
                return log_z, k
    return total, -1


@helper
def _move_mean(corpus, work, pairs, segments, table, ascent, b):
    """Lacoste-Julien, Jaggi, Schmidt & Pletscher 2013, algorithm 3: each sequence keeps the mean of the labellings that it met,
    and moves it towards its most violating labelling by the best step."""
    weights = ascent.weights
    l2 = ascent.l2
    uses = ascent.uses
    dual = ascent.dual
    cost = _cost(corpus, work.d_nodes, b, ascent.costs)
    mean = uses[table.rows[b, 0] : table.rows[b, -1]]
    n_slots = _aim(corpus, work, pairs, segments, table, b, mean)
    slots = work.slots[:n_slots]
    amounts = work.amounts[:n_slots]
    # The dual along the direction: dual(step) = dual + step · gap - step² · square / 2, with the maximum at gap / square
    slope, square = _along(slots, amounts, weights, l2)
    # The dual is sum of costs - |sum of uses|² / 4 l2, and w = -uses / 2 l2.
    gap = slope + cost - dual[b]
    square /= 2.0
    step = 1.0 if square <= 0.0 else min(1.0, gap / square)
    if not step > 0.0 or (square <= 0.0 and not gap > 0.0):
        step = 0.0
    _descend(slots, amounts, weights, l2, step)
    dual[b] += step * (cost - dual[b])
    _add(mean, step, table.direction)


@helper
def _move_distribution(corpus, work, pairs, chains, segments, table, ascent, b):
    """Bartlett, Collins, Taskar & McAllester 2004, figure 2: the distribution over a sequence's labellings is that of a chain
    with scores theta, and the step adds rate · (score + cost) to them. The rate of each sequence is halved until the dual grows,
    and grows by a twentieth when it did (Collins et al. 2008, section 6).

    RETURNS (float): The log partition.
    """
    weights = ascent.weights
    l2 = ascent.l2
    dual = ascent.dual
    rates = ascent.rates
    first = ascent.first
    rows = table.rows[b]
    n = corpus.starts[b + 1] - corpus.starts[b]
    weight = corpus.weights[b]
    mean = ascent.uses[rows[0] : rows[-1]]
    theta = ascent.theta[rows[0] : rows[-1]]
    scores = table.room
    _copy(table.scores, rows, table.ascent, False)  # with the cost
    log_z = 0.0
    for _ in range(20):
        rate = 0.0 if first else rates[b]
        for r in range(theta.shape[0]):
            for j in range(theta.shape[1]):
                # Rates may become 0
                # exp(theta') = exp(theta) · exp(rate · (score + cost)): a multiplicative step
                rise = table.ascent[r, j]
                scores[r, j] = theta[r, j] + rate * rise if rise > -np.inf else -np.inf
        _copy(table.scores, rows, scores, True)
        for kind in range(len(table.derivatives)):
            clear(table.derivatives[kind], rows[kind + 1] - rows[kind])
        if segments is not None:
            running_sums(corpus, work, segments, b, np.bool_(False))  # no literal: it would be compiled anew
        # Means of the uses under exp(theta + rate · ascent), less those of the annotation
        log_z = expect(corpus, work, pairs, chains, segments, b, weight)
        if not math.isfinite(log_z):
            break
        use_annotation(corpus, work, chains, segments, b, -weight)
        if segments is not None:
            cover(work, segments, n, corpus.n_states)
        cost = _cost(corpus, work.d_nodes, b, ascent.costs)
        n_slots = _aim(corpus, work, pairs, segments, table, b, mean)
        slots = work.slots[:n_slots]
        amounts = work.amounts[:n_slots]
        slope, square = _along(slots, amounts, weights, l2)
        # Where a distribution has all its mass at one labelling growth is nothing but rounding, yet theta has to move on.
        growth = cost - dual[b] + slope - square / 4.0
        if growth >= -1e-12 * (abs(cost) + abs(slope) + square / 4.0) or first:
            _descend(slots, amounts, weights, l2, 1.0)
            dual[b] = cost
            _add(mean, 1.0, table.direction)
            _subtract_maxima(scores, n, theta)
            if not first:
                rates[b] *= 1.05
            break
        rates[b] *= 0.5
    return log_z


@helper
def _subtract_maxima(scores, n, theta):
    """Each token has one state, so only differences within its row matter, and the scores of n tokens may stay small."""
    for r in range(theta.shape[0]):
        largest = 0.0
        if r < n:
            largest = -np.inf
            for j in range(theta.shape[1]):
                largest = max(largest, scores[r, j])
        for j in range(theta.shape[1]):
            theta[r, j] = max(scores[r, j] - largest, -1e4) if r < n else scores[r, j]


@helper
def _descend(slots, amounts, weights, l2, step):
    """Take a step along a direction: weights -= step · amounts / (2 l2)."""
    for n in range(len(slots)):
        # w = -uses / 2 l2 follows the mean uses
        weights[slots[n]] -= step * amounts[n] / (2.0 * l2[slots[n]])


@helper
def _copy(tables, rows, table, back):
    """Copy the scores, or derivatives, of a sequence to a table, one kind below the other; or back."""
    r = 0
    for kind in range(len(tables)):
        for t in range(rows[kind + 1] - rows[kind]):
            for j in range(table.shape[1]):
                if back:
                    tables[kind][t, j] = table[r, j]
                else:
                    table[r, j] = tables[kind][t, j]
            r += 1


@helper
def _add(rows, amount, others):
    """rows += amount · others"""
    for r in range(len(rows)):
        for j in range(rows.shape[1]):
            rows[r, j] += amount * others[r, j]


@helper(inline="always")
def _aim(corpus, work, pairs, segments, table, b, mean):
    """The direction from a sequence's present mean to its target: by score in ``table.direction``, and collected by weight."""
    direction = table.direction
    _copy(table.derivatives, table.rows[b], direction, False)
    _add(direction[: len(mean)], -1.0, mean)
    _copy(table.derivatives, table.rows[b], direction, True)
    return collect(corpus, work, pairs, segments, b)


@helper
def _cost(corpus, d_nodes, b, costs):
    """Expected cost of the labellings whose mean uses of tokens' scores, minus the annotation's, are `d_nodes`. The annotation
    itself costs nothing."""
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
