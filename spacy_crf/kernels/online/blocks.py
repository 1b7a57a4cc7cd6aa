"""The weights that a sequence uses, block by block: features of states, of pairs of states and of segments, then matrices. The
functions add up scores, collect the gradient by weight, take descent steps, and apply overdue regularization."""

import math

import numpy as np

from .. import helper
from ..numerics import LINEAR

OF_SPANS = 3  # kinds of `SegmentUses` from this number on are about spans


@helper(fastmath=LINEAR)
def add_scores(uses, begin, end, size, weights, scale, adds, scores):
    """scores[t, c] = scale · (sum of the weights of column c that token t uses), plus scale · scores[t, c] if `adds`."""
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
def collect(corpus, work, pairs, segments, b):
    """Gradient by weight: write each slot of a sequence whose sum is not 0 to work.slots, and the sums to work.amounts.

    RETURNS (int): Number of slots.
    """
    learned = corpus.learned
    d_chain = work.d_chain
    size = corpus.n_states
    gradient = work.gradient
    slots = work.slots
    amounts = work.amounts
    sums = learned, gradient, slots
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    none = np.int64(0)  # with a literal, numba would compile a second variant
    found = _collect(corpus.states, begin, end, size, work.d_nodes, sums, none)
    if len(pairs.scores) > 0:
        found = _collect(pairs.uses, begin, end, size * size, pairs.d_scores, sums, found)
    if segments is not None:
        uses = segments.uses
        derivatives = (work.d_nodes, segments.d_begins, segments.d_ends, segments.d_spans, segments.d_spans)
        for kind in range(5):
            a, c = rows_of_kind(uses.listed_starts, kind, begin, end)
            found = _collect(uses.features, a, c, size, derivatives[kind], sums, found)
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
    for n in range(found):  # a slot is listed twice if its sum was 0 in between
        slot = slots[n]
        if gradient[slot] != 0.0:
            slots[n_slots] = slot
            amounts[n_slots] = gradient[slot]
            gradient[slot] = 0.0
            n_slots += 1
    return n_slots


@helper
def _collect(uses, begin, end, size, d_scores, sums, found):
    """Add the gradient of one block to the sums, and append the slots that it touches to the `found` slots listed before.

    RETURNS (int): Number of slots listed now.
    """
    slots, columns, values, bounds = uses
    learned, gradient, touched = sums
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
                        # A slot is listed when its sum leaves 0
                        if gradient[slot] == 0.0:
                            touched[found] = slot
                            found += 1
                        gradient[slot] += value * d_token[column + j]
    return found


@helper(fastmath=LINEAR)
def descend_sequence(corpus, work, pairs, segments, b, rate, weights):
    """Stochastic gradient descent on loss / B + decay / 2 · w², for losses with a derivative at most states of most tokens.
    Shrinking all weights is one multiplication (Shalev-Shwartz, Singer & Srebro 2007, section 2.3).

    settings (of SGD): decay; then numerator and offset of the learning rate: rate / (offset + steps).
    """
    size = corpus.n_states
    learned = corpus.learned
    d_chain = work.d_chain
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    _descend(corpus.states, begin, end, size, work.d_nodes, rate, learned, weights)
    if len(pairs.scores) > 0:
        _descend(pairs.uses, begin, end, size * size, pairs.d_scores, rate, learned, weights)
    if segments is not None:
        uses = segments.uses
        derivatives = (work.d_nodes, segments.d_begins, segments.d_ends, segments.d_spans, segments.d_spans)
        # Derivatives that an earlier block has used are multiplied by the rate already
        rates = (1.0, rate, rate, rate, 1.0)
        for kind in range(5):
            a, c = rows_of_kind(uses.listed_starts, kind, begin, end)
            _descend(uses.features, a, c, size, derivatives[kind], rates[kind], learned, weights)
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
def _descend(uses, begin, end, size, d_scores, rate, learned, weights):
    """Take a step along the gradient of one block: weights -= rate · value · d_scores, for slots that are weights."""
    slots, columns, values, bounds = uses
    for t in range(begin, end):
        d_token = d_scores[t - begin]
        for j in range(size):
            # In place: a second block with these derivatives has the rate 1, see `descend_sequence`
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
def catch_up_sequence(corpus, pairs, segments, b, given):
    """Apply overdue regularization to all weights that a sequence uses. given (tuple): The further arguments of `catch_up`."""
    _, settings, _, _, _ = given
    if settings[2] == 0.0 and settings[3] == 0.0:
        return
    size = corpus.n_states
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    _catch_up_features(corpus.states, begin, end, size, given)
    if len(pairs.scores) > 0:
        _catch_up_features(pairs.uses, begin, end, size * size, given)
    if segments is not None:
        uses = segments.uses
        for kind in range(5):
            a, c = rows_of_kind(uses.listed_starts, kind, begin, end)
            _catch_up_features(uses.features, a, c, size, given)
    for slot in range(corpus.chain_start, len(corpus.learned)):
        if corpus.learned[slot]:
            catch_up(slot, np.int64(1), *given)


@helper
def catch_up(first, size, weights, settings, seen, regularized, squares):
    """Apply the proximal steps w <- max(0, |w| - eta l1) / (1 + 2 eta l2) that a run of slots has missed, as one step.

    settings, squares: As in `rules.adagrad`.
    regularized (float64[M]): The latest step that regularized each weight.
    """
    rate, epsilon, l1, l2 = settings
    last = 0.0
    for slot in range(first, first + size):  # 0 for slots that are no weights
        last = max(last, regularized[slot])
        regularized[slot] = seen
    steps = seen - last
    if steps <= 0.0:
        return
    for slot in range(first, first + size):
        if squares[slot] == 0.0 or weights[slot] == 0.0:
            continue
        # n steps: w / (1 + 2 eta l2)^n - eta l1 sum_(k = 1..n) 1 / (1 + 2 eta l2)^k
        eta = rate / (epsilon + math.sqrt(squares[slot]))
        excess = 2.0 * eta * l2
        # By repeated squaring: a general power took two thirds of a pass
        power = 1.0
        square = 1.0 / (1.0 + excess)
        n = np.int64(steps)
        while n > 0:
            if n & 1:
                power *= square
            square *= square
            n >>= 1
        # The sum of these powers; as a series where 1 - power would have few digits or none
        if steps * excess < 1e-4:
            charged = steps * (1.0 - 0.5 * (steps + 1.0) * excess * (1.0 - (steps + 2.0) / 3.0 * excess))
        else:
            charged = (1.0 - power) / excess
        left = abs(weights[slot]) * power - eta * l1 * charged
        weights[slot] = np.sign(weights[slot]) * max(0.0, left)


@helper
def _catch_up_features(uses, begin, end, size, given):
    """Apply overdue regularization to the weights of one block. given (tuple): The further arguments of `catch_up`."""
    slots, _, _, bounds = uses
    for side in range(2 * begin, 2 * end):
        for n in range(bounds[side], bounds[side + 1]):
            catch_up(slots[n], size if side % 2 == 0 else 1, *given)


@helper
def rows_of_kind(listed_starts, kind, begin, end):
    """Rows of a kind of `SegmentUses.features` that the tokens begin to end - 1 use."""
    n_tokens = len(listed_starts) - 1
    if kind < OF_SPANS:
        return kind * n_tokens + begin, kind * n_tokens + end
    before = OF_SPANS * n_tokens + (kind - OF_SPANS) * listed_starts[-1]
    return before + listed_starts[begin], before + listed_starts[end]


@helper
def clear(rows, n):
    """Set the first n rows to 0."""
    for t in range(n):
        for j in range(rows.shape[1]):
            rows[t, j] = 0.0
