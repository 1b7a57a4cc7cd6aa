"""The way of the rules through a corpus."""

import math
from typing import NamedTuple, Optional

from numpy.typing import NDArray

from ...types import ChainCorpus, Floats
from .. import helper, kernel
from .blocks import catch_up_sequence, collect, descend_sequence
from .chain import count_wrong
from .rules import ADAGRAD, AROW, BATCH_PERCEPTRON, NOTHING, PERCEPTRON, SGD, SGD_L1
from .rules.adagrad import adagrad
from .rules.arow import arow
from .rules.passive_aggressive import passive_aggressive
from .rules.perceptron import perceptron
from .rules.sgd import sgd_l1
from .segments import count_wrong_segments
from .sequence import Turn, differentiate
from .work import ChainBuffers, PairBuffers, SegmentBuffers, Workspace


class RuleRun(NamedTuple):
    """A rule and what it goes through."""

    order: NDArray  # [n] of the sequences
    costs: Floats  # [S, S], or [0, 0]: added to the score of each state where the annotation says another one
    weights: Floats  # [M]
    rule: int
    settings: tuple[float, float, float, float]  # of the rule
    seen: float  # how many sequences came before
    # [2] the scale of the weights, w = scale · weights, and what any weight could have been charged; 1 and 0 but for SGD
    scaling: Floats
    memory: Floats  # [M] or [0] what the rule remembers of each slot, if anything
    squares: Floats  # [M] or [0] of AdaGrad


@kernel(seconds=20)
def walk(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: PairBuffers,
    chains: Optional[ChainBuffers],
    segments: Optional[SegmentBuffers],
    maximum: bool,
    lesson: RuleRun,
):
    """Applies a rule to the sequences in the order given. One kernel for all rules: nearly all that is compiled is the loss of a
    sequence and its derivative.

    RETURNS: The sum of losses, and -1; or a loss that is not a finite number, and its place in the order. It stops there.
    """
    order, costs, weights, rule, settings, seen, scaling, memory, squares = lesson
    total = 0.0
    n_updates = 0
    for k in range(len(order)):
        b = order[k]
        if rule == ADAGRAD:
            catch_up_sequence(corpus, pairs, segments, b, (weights, settings, seen + k, memory, squares))
        turn = Turn(b, costs, weights, scaling[0])
        loss, moves = differentiate(corpus, work, pairs, chains, segments, maximum, turn)
        if not math.isfinite(loss):
            return loss, k
        if rule == SGD:
            rate = settings[1] / (settings[2] + seen + k)
            scaling[0] *= 1.0 - rate * settings[0]
            if moves:
                descend_sequence(corpus, work, pairs, segments, b, rate / scaling[0], weights)
        elif rule != NOTHING:
            n_slots = collect(corpus, work, pairs, segments, b) if moves else 0
            slots, amounts = work.slots[:n_slots], work.amounts[:n_slots]
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
                loss = _beat(lesson, slots, amounts, loss, wrong, corpus.weights[b], seen + k)
        total += loss
        if scaling[0] < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= scaling[0]
            scaling[0] = 1.0
    for slot in range(len(memory) if n_updates > 0 else 0):
        memory[slot] /= n_updates
    return total, -1


@helper
def _count_wrong(corpus, work, chains, segments, b):
    """Tokens at which the best labelling contradicts the annotation."""
    begin, end, wrong = corpus.starts[b], corpus.starts[b + 1], 0
    if chains is not None:
        wrong = count_wrong(corpus.gold, corpus.clamp, begin, end, work.path)
    if segments is not None:
        wrong = count_wrong_segments(corpus.gold, corpus.clamp, segments, begin, end, work.path)
    return wrong


@helper
def _beat(lesson, slots, amounts, loss, wrong, factor, seen):
    """AROW, or passive-aggressive learning. RETURNS: The loss with its margin."""
    _, costs, weights, rule, settings, _, _, memory, _ = lesson
    has_costs = len(costs) > 0
    if rule == AROW:
        return arow(slots, amounts, loss / factor + (0.0 if has_costs else wrong), factor, weights, settings, memory)
    margin = 0.0
    if not has_costs:
        margin = math.sqrt(wrong) if settings[2] > 0.0 else 1.0
    return passive_aggressive(slots, amounts, loss / factor + margin, factor, weights, settings, seen, memory)
