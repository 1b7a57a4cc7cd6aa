"""Online learning rules, and the walk over the sequences. The gradient of a sequence's loss is ``amounts`` at ``slots``; ``seen``
is the number of sequences before it.
"""

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ...types import ChainCorpus, Floats
from .. import helper, kernel
from .blocks import catch_up, catch_up_sequence, collect, descend_sequence
from .chain import count_wrong
from .segments import count_wrong_segments
from .sequence import LossArguments, differentiate
from .work import ChainBuffers, PairBuffers, SegmentBuffers, Workspace

# Rules up to AROW compare with the best labelling
NOTHING, PERCEPTRON, BATCH_PERCEPTRON, PASSIVE_AGGRESSIVE, AROW, SGD, SGD_L1, ADAGRAD = range(8)


class RuleRun(NamedTuple):
    """A rule and the sequences that it learns from."""

    order: NDArray  # [n] order of the sequences
    costs: Floats  # [S, S], or [0, 0]: cost of each state where the annotation has another one
    weights: Floats  # [M]
    rule: int
    settings: tuple[float, float, float, float]  # settings of the rule
    seen: float  # number of earlier sequences
    # [2] scale of the weights (w = scale · weights), and the largest charge of a weight so far; 1 and 0 for rules other than SGD
    scaling: Floats
    memory: Floats  # [M] or [0] what the rule keeps for each slot: drift, variance, q or the latest step
    squares: Floats  # [M] or [0] squared gradients of AdaGrad


@kernel(seconds=20)
def walk(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: PairBuffers,
    chains: Optional[ChainBuffers],
    segments: Optional[SegmentBuffers],
    maximum: bool,
    run: RuleRun,
):
    """Apply a rule to the sequences in the given order. One kernel serves all rules, since nearly all of the machine code
    computes the loss of a sequence and its derivative.

    RETURNS (float, int): The sum of losses, and -1; or the first loss that is not finite, and the place of its sequence.
    """
    order, costs, weights, rule, settings, seen, scaling, memory, squares = run
    total = 0.0
    n_updates = 0
    for k in range(len(order)):
        b = order[k]
        if rule == ADAGRAD:
            catch_up_sequence(corpus, pairs, segments, b, (weights, settings, seen + k, memory, squares))
        arguments = LossArguments(b, costs, weights, scaling[0])
        loss, moves = differentiate(corpus, work, pairs, chains, segments, maximum, arguments)
        if not math.isfinite(loss):
            return loss, k
        if rule == SGD:
            # w <- (1 - rate · decay) w - rate · gradient, where w = scaling · weights
            rate = settings[1] / (settings[2] + seen + k)
            scaling[0] *= 1.0 - rate * settings[0]
            if moves:
                descend_sequence(corpus, work, pairs, segments, b, rate / scaling[0], weights)
        elif rule != NOTHING:
            n_slots = collect(corpus, work, pairs, segments, b) if moves else 0
            slots = work.slots[:n_slots]
            amounts = work.amounts[:n_slots]
            if rule == SGD_L1:
                sgd_l1(slots, amounts, weights, settings, seen + k, scaling, memory)
            elif rule == ADAGRAD:
                adagrad(slots, amounts, weights, settings, squares)
            elif rule == PERCEPTRON:
                perceptron(slots, amounts, weights, settings, seen + k, memory)
            elif rule == BATCH_PERCEPTRON:
                n_updates += n_slots > 0
                for n in range(n_slots):
                    memory[slots[n]] -= amounts[n]
            elif n_slots > 0:
                wrong = _count_wrong(corpus, work, chains, segments, b) if maximum else 0
                loss = _learn_with_margin(run, slots, amounts, loss, wrong, corpus.weights[b], seen + k)
        total += loss
        # Before the scale vanishes, multiply it into the weights
        if scaling[0] < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= scaling[0]
            scaling[0] = 1.0
    for slot in range(len(memory) if n_updates > 0 else 0):
        memory[slot] /= n_updates
    return total, -1


@helper
def _count_wrong(corpus, work, chains, segments, b):
    """Number of tokens at which the best labelling contradicts the annotation."""
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    wrong = 0
    if chains is not None:
        wrong = count_wrong(corpus.gold, corpus.clamp, begin, end, work.path)
    if segments is not None:
        wrong = count_wrong_segments(corpus.gold, corpus.clamp, segments, begin, end, work.path)
    return wrong


@helper
def _learn_with_margin(run, slots, amounts, loss, wrong, factor, seen):
    """Update by AROW or passive-aggressive learning.

    loss (float): The loss without a margin, times the factor of the sequence. If there are costs, they are part of the loss.
    wrong (int): Number of wrong tokens.
    RETURNS (float): The loss with its margin.
    """
    _, costs, weights, rule, settings, _, _, memory, _ = run
    has_costs = len(costs) > 0
    if rule == AROW:
        return arow(slots, amounts, loss / factor + (0.0 if has_costs else wrong), factor, weights, settings, memory)
    margin = 0.0
    if not has_costs:
        # The third setting of passive-aggressive learning: whether the margin grows with the mistakes
        margin = math.sqrt(wrong) if settings[2] > 0.0 else 1.0
    return passive_aggressive(slots, amounts, loss / factor + margin, factor, weights, settings, seen, memory)


# -------------------------------------------------------------------------------------------------------------- rules


@helper
def perceptron(slots, amounts, weights, settings, seen, drift):
    """The averaged perceptron (Collins 2002), figure 1: w += unit · (features(annotation) - features(best labelling)).

    settings: unit.
    drift (float64[M]): Sum of all updates, each times the number of earlier weight vectors (the initial zeros count): the average
        is weights - drift / vectors.
    """
    for n in range(len(slots)):
        weights[slots[n]] -= settings[0] * amounts[n]
        drift[slots[n]] -= (seen + 1.0) * settings[0] * amounts[n]


@helper
def passive_aggressive(slots, amounts, loss, factor, weights, settings, seen, drift):
    """Passive-aggressive learning (Crammer, Dekel, Keshet, Shalev-Shwartz & Singer 2006): the smallest change after which the
    annotation wins by a margin.

    loss (float): The loss without the sequence's factor, with the margin: 1, or the root of the number of wrong tokens, or the
        costs.
    settings: kind, 0 for PA (eq. 6: tau = loss / |d|²), 1 for PA-I (at most c), 2 for PA-II (|d|² + 1 / 2c); c.
    drift: As in `perceptron`.
    RETURNS: The loss with the factor.
    """
    kind = settings[0]
    c = settings[1] * factor
    loss = max(0.0, loss)
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
        # w <- w - tau · d, where d is the gradient without the sequence's factor
        update = tau / factor * amounts[n]
        weights[slots[n]] -= update
        drift[slots[n]] -= (seen + 1.0) * update
    return factor * loss


@helper
def arow(slots, amounts, loss, factor, weights, settings, variance):
    """Adaptive regularization of weight vectors (Crammer, Kulesza & Dredze 2009), figure 1, with a diagonal covariance.

    loss (float): The loss without the sequence's factor, with the margin: the number of wrong tokens, or the costs.
    settings: gamma, r of the paper. variance (float64[M]): Uncertainty of each weight, which only falls.
    RETURNS: The loss with the factor.
    """
    noise = settings[0] / factor
    loss = max(0.0, loss)
    confidence = 0.0
    for n in range(len(slots)):
        # v = dᵀ Sigma d, alpha = loss / (v + r), w <- w - alpha Sigma d, Sigma⁻¹ <- Sigma⁻¹ + d² / r
        confidence += variance[slots[n]] * (amounts[n] / factor) ** 2
    alpha = loss / (confidence + noise)
    for n in range(len(slots)):
        slot = slots[n]
        difference = amounts[n] / factor
        weights[slot] -= alpha * variance[slot] * difference
        variance[slot] = 1.0 / (1.0 / variance[slot] + difference**2 / noise)
    return factor * loss


@helper
def sgd_l1(slots, amounts, weights, settings, seen, scaling, paid):
    """Stochastic gradient descent with l1: `descend_sequence` with the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009,
    figure 2.

    settings: Those of SGD, and the weight of |w| per sequence. paid (float64[M]): q, the total charge of each weight.
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
    """A weight after the l1 penalty that is due, which stops at 0; `paid` becomes what the weight has paid in total."""
    before = weight
    if weight > 0.0:
        weight = max(0.0, weight - (due + paid[slot]))
    elif weight < 0.0:
        weight = min(0.0, weight + (due - paid[slot]))
    paid[slot] += weight - before
    return weight


@kernel
def charge_all(learned, weights, scale, due, paid):
    """Charge every weight the penalty that is due, whether or not a sequence used the weight."""
    for slot in range(len(weights)):
        if learned[slot]:
            weights[slot] = _charge(weights[slot] * scale, due, paid, slot) / scale


@helper
def adagrad(slots, amounts, weights, settings, squares):
    """A learning rate for each weight (Duchi, Hazan & Singer 2011, section 5.1, composite mirror descent); `catch_up` regularizes
    the weight when it is used.

    settings: Numerator of the learning rates, the constant in their denominators, and the weights of |w| and w² per sequence.
    squares (float64[M]): Sums of the squared gradients.
    """
    for n in range(len(slots)):
        # w <- w - rate / (epsilon + sqrt(sum of squares)) · gradient
        squares[slots[n]] += amounts[n] ** 2
        weights[slots[n]] -= settings[0] / (settings[1] + math.sqrt(squares[slots[n]])) * amounts[n]


@kernel
def catch_up_all(learned, weights, settings, seen, regularized, squares):
    """Apply overdue regularization to every weight."""
    for slot in range(len(weights)):
        if learned[slot]:
            catch_up(slot, np.int64(1), weights, settings, seen, regularized, squares)
