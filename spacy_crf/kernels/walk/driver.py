"""The way of the rules through a corpus."""

import math
from typing import Optional

from ...types import ChainCorpus
from .. import kernel
from .blocks import catch_up_sequence, collect, descend_sequence
from .chain import count_wrong
from .rules import ADAGRAD, AROW, BATCH_PERCEPTRON, NOTHING, PERCEPTRON, SGD, SGD_L1
from .rules.adagrad import adagrad
from .rules.arow import arow
from .rules.passive_aggressive import passive_aggressive
from .rules.perceptron import perceptron
from .rules.sgd import sgd_l1
from .segments import count_wrong_segments
from .sequence import differentiate
from .work import BestWork, ChainWork, PairWork, SegmentWork, SumWork, Workspace


@kernel(seconds=15)
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
    """Applies a rule to the sequences in the order given. One kernel for all rules: nearly all that is compiled is the loss of a
    sequence and its derivative.

    costs (float64[S, S] or [0, 0]): Added to the score of each state where the annotation says another one.
    settings (four floats): Of the rule. seen (float): How many sequences came before.
    scaling (float64[2]): The scale of the weights, w = scale · weights, and what any weight could have been charged so far; 1 and
        0 but for SGD.
    memory (float64[M] or [0]): What the rule remembers of each slot, if anything. squares (float64[M] or [0]): Of AdaGrad.
    RETURNS: The sum of losses, and -1; or a loss that is not a finite number, and its place in the order. It stops there.
    """
    total = 0.0
    n_updates = 0
    for k in range(len(order)):
        b = order[k]
        if rule == ADAGRAD:
            catch_up_sequence(corpus, pairs, segments, b, weights, settings, seen + k, memory, squares)
        loss, moves = differentiate(corpus, work, pairs, chains, segments, bests, sums, b, costs, weights, scaling[0])
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
            elif bests is not None and n_slots > 0:
                factor = corpus.weights[b]
                begin, end = corpus.starts[b], corpus.starts[b + 1]
                wrong = 0
                if chains is not None:
                    wrong = count_wrong(corpus.gold, corpus.clamp, begin, end, bests.path)
                if segments is not None:
                    wrong = count_wrong_segments(corpus.gold, corpus.clamp, segments, begin, end, bests.path)
                margin = 0.0 if len(costs) > 0 else float(wrong)
                if rule == AROW:
                    loss = arow(slots, amounts, loss / factor + margin, factor, weights, settings, memory)
                else:
                    if len(costs) == 0:
                        margin = math.sqrt(wrong) if settings[2] > 0.0 else 1.0
                    margin += loss / factor
                    loss = passive_aggressive(slots, amounts, margin, factor, weights, settings, seen + k, memory)
        total += loss
        if scaling[0] < 1e-9:
            for slot in range(len(weights)):
                weights[slot] *= scaling[0]
            scaling[0] = 1.0
    for slot in range(len(memory) if n_updates > 0 else 0):
        memory[slot] /= n_updates
    return total, -1
