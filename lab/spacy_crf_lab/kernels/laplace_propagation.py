"""Sweeps of Laplace propagation over the sequences of a corpus of linear chains, see ``lab/laplace_propagation.py``."""

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.online.blocks import add_scores
from spacy_crf.kernels.online.sequence import LossArguments, differentiate
from spacy_crf.kernels.online.work import ChainBuffers, PairBuffers, SegmentBuffers, Workspace
from spacy_crf.types import ChainCorpus, Floats, Ints

LONGEST = 4.0  # no score of a token moves farther in one visit: the second derivatives hold nearby only


class Sites(NamedTuple):
    """For each sequence, a Gaussian factor exp(shift · w - precision · w² / 2) of each weight that it uses."""

    starts: Ints  # [B + 1] of the factors of each sequence
    slots: NDArray[np.int32]  # [N] of the weights
    precision: Floats  # [N] tau
    shift: Floats  # [N] nu


class Sweep(NamedTuple):
    """A sweep over the sequences, and the posterior that it changes."""

    order: Ints  # [B]
    sites: Sites
    mean: Floats  # [M] m, by slot
    precision: Floats  # [M] p of the prior and all sites
    damping: float  # share of the precision of an old site that a new one keeps


@kernel(seconds=15)
def propagate(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: PairBuffers,
    chains: Optional[ChainBuffers],
    segments: Optional[SegmentBuffers],
    sweep: Sweep,
):
    """Renew the sites of each sequence once.

    The sites of all others are the prior of a sequence (its cavity). Its loss has the gradient g and the second derivatives h at
    the present mean. The mean moves towards the minimum of both together,

        d = -(g - (tau · m - nu)) / (p - tau + h),    m <- m + a · d,    tau <- h,    nu <- nu + (p · m) - (p · m before)

    so that at a fixed point g = tau · m - nu for each sequence: the sum of all gradients is that of the prior, as in the MAP.

    RETURNS (float, float, int): The sum of losses, the squared length of all moves, and -1; or the place of the first sequence
        whose loss is not finite.
    """
    order, sites, mean, precision, damping = sweep
    size = corpus.n_states
    total = 0.0
    moved = 0.0
    costs = np.empty((0, 0))
    first = np.zeros(len(mean))
    second = np.zeros(len(mean))
    along = np.zeros(len(mean))
    varied = np.zeros(work.nodes.shape)
    changed = np.zeros(work.nodes.shape)
    of_chain = np.zeros((size + 2, size))
    for k in range(len(order)):
        b = order[k]
        begin = corpus.starts[b]
        end = corpus.starts[b + 1]
        loss, moves = differentiate(corpus, work, pairs, chains, segments, False, LossArguments(b, costs, mean, 1.0))
        if not math.isfinite(loss):
            return loss, moved, k
        total += loss
        if not moves:
            continue
        _vary(corpus, work, b, varied, of_chain)
        _gather(corpus, begin, end, work.d_nodes, varied, first, second)
        for i in range(size + 2):
            for j in range(size):
                slot = corpus.chain_start + i * size + j
                first[slot] = work.d_chain[i, j]
                second[slot] = of_chain[i, j]
        slope = curvature = 0.0
        for n in range(sites.starts[b], sites.starts[b + 1]):
            slot = sites.slots[n]
            # Per weight: the new precision of the site, and the Newton direction against the cavity
            tau = damping * sites.precision[n] + (1.0 - damping) * second[slot]
            residual = first[slot] - (sites.precision[n] * mean[slot] - sites.shift[n])
            cavity = precision[slot] - sites.precision[n]
            along[slot] = -residual / (cavity + tau)
            slope += residual * along[slot]
            curvature += cavity * along[slot] ** 2
            second[slot] = tau
        # The curvature along the direction needs the change of each token's scores
        add_scores(corpus.states, begin, end, size, along, 1.0, np.bool_(False), changed)
        farthest = 0.0
        for t in range(end - begin):
            for j in range(size):
                # diag(mu) - mu mu' <= 2 diag(mu (1 - mu)): its rows are diagonally dominant
                curvature += 2.0 * varied[t, j] * changed[t, j] ** 2
                farthest = max(farthest, abs(changed[t, j]))
        for i in range(size + 2):
            for j in range(size):
                change = along[corpus.chain_start + i * size + j]
                curvature += 2.0 * of_chain[i, j] * change**2
                farthest = max(farthest, abs(change))
        # The minimum along the direction, no farther than the Newton step
        step = -slope / curvature if curvature > 0.0 else 0.0
        step = (1.0 - damping) * min(1.0, step)
        if step * farthest > LONGEST:
            step = LONGEST / farthest
        for n in range(sites.starts[b], sites.starts[b + 1]):
            slot = sites.slots[n]
            # nu changes by as much as p · m does, so that p · m is the sum of all nu
            before = precision[slot] * mean[slot]
            precision[slot] += second[slot] - sites.precision[n]
            mean[slot] += step * along[slot]
            moved += (step * along[slot]) ** 2
            sites.precision[n] = second[slot]
            sites.shift[n] += precision[slot] * mean[slot] - before
            along[slot] = first[slot] = second[slot] = 0.0
        for slot in range(corpus.chain_start, len(mean)):  # those that are no weights
            first[slot] = second[slot] = 0.0
    return total, moved, -1


@helper
def _vary(corpus, work, b, varied, of_chain):
    """Variances of the uses of scores, from the derivatives: a score whose derivative is p or p - 1 is used with a probability of
    p. Of the uses of scores of the chain as large a share is taken to be uncertain as of those of states."""
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    size = corpus.n_states
    factor = corpus.weights[b]
    uncertain = 0.0
    for t in range(end - begin):
        for j in range(size):
            part = min(1.0, abs(work.d_nodes[t, j]) / factor)
            varied[t, j] = factor * part * (1.0 - part)
            uncertain += varied[t, j]
    for i in range(size + 2):
        for j in range(size):
            of_chain[i, j] = work.d_chain[i, j]
    if corpus.is_known[b]:
        for t in range(begin + 1, end):
            of_chain[corpus.gold[t - 1], corpus.gold[t]] += factor
        of_chain[size, corpus.gold[begin]] += factor
        of_chain[size + 1, corpus.gold[end - 1]] += factor
    share = uncertain / (factor * (end - begin))
    for i in range(size + 2):
        for j in range(size):
            of_chain[i, j] = share * abs(of_chain[i, j])


@helper
def _gather(corpus, begin, end, d_nodes, varied, first, second):
    """Add the first and second derivatives by each weight of features, from those by the scores of tokens."""
    slots, columns, values, bounds = corpus.states
    for t in range(begin, end):
        for side in range(2 * t, 2 * t + 2):
            for n in range(bounds[side], bounds[side + 1]):
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                for j in range(corpus.n_states if side == 2 * t else 1):
                    column = columns[n] + j
                    first[slots[n] + j] += value * d_nodes[t - begin, column]
                    second[slots[n] + j] += value * value * varied[t - begin, column]
