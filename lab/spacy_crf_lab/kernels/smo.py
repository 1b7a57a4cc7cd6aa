"""Passes over a corpus of linear chains that move mass from one labelling of a sequence to another, see ``lab/smo.py``."""

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel, linear_chain
from spacy_crf.kernels.online.blocks import clear, collect
from spacy_crf.kernels.online.chain import derivatives_of_chain
from spacy_crf.kernels.online.sequence import LossArguments, differentiate
from spacy_crf.kernels.online.work import ChainBuffers, PairBuffers, SegmentBuffers, Workspace
from spacy_crf.types import ChainCorpus, Floats

from .dual import _along, _descend

NEXT_TO_NOTHING = 1e-12  # smaller masses are rounding errors


class Arcs(NamedTuple):
    """The masses of neighbouring states of T tokens that have any. Arc ``i * S + j`` leads to state j of a token from state i of
    the token before; at the first token of a sequence i is 0."""

    counts: NDArray[np.int32]  # [T] arcs with a mass
    arcs: NDArray[np.int32]  # [T, C]
    masses: Floats  # [T, C]


class Exchange(NamedTuple):
    """Settings of a pass, and what it changes besides the arcs."""

    order: NDArray  # [n] order of the sequences
    costs: Floats  # [S, S]
    weights: Floats  # [M]
    l2: Floats  # [M] of each weight
    dual: Floats  # [B] the mean cost of each sequence's labellings


@kernel(seconds=20)
def exchange(
    corpus: ChainCorpus,
    work: Workspace,
    pairs: PairBuffers,
    chains: Optional[ChainBuffers],
    segments: Optional[SegmentBuffers],
    arcs: Arcs,
    given: Exchange,
):
    """Garber & Meshi 2016, algorithm 1, sequence by sequence.

    RETURNS: As `walk`; and whether it ended before the sequence at this place, as there is no room for another arc.
    """
    total = 0.0
    size = corpus.n_states
    costs = given.costs
    weights = given.weights
    l2 = given.l2
    worst = np.empty(len(work.path), dtype=np.int32)
    lowest = np.empty((len(worst), size))
    before = np.empty((len(worst), size), dtype=np.int32)
    for k in range(len(given.order)):
        b = given.order[k]
        begin = corpus.starts[b]
        n = corpus.starts[b + 1] - corpus.starts[b]
        loss, moves = differentiate(corpus, work, pairs, chains, segments, True, LossArguments(b, costs, weights, 1.0))
        if not math.isfinite(loss):
            return loss, k, False
        if moves:
            best = work.path[:n]
            most = _find_worst(work, arcs, begin, size, lowest[:n], before, worst[:n])
            # d = uses by the best labelling - uses by the worst
            clear(work.d_nodes, n)
            clear(work.d_chain, size + 2)
            work.amount[0] = 1.0
            linear_chain.path_expectations(best, work.amount, derivatives_of_chain(work, size))
            work.amount[0] = -1.0
            linear_chain.path_expectations(worst[:n], work.amount, derivatives_of_chain(work, size))
            n_slots = collect(corpus, work, pairs, segments, b)
            slots = work.slots[:n_slots]
            amounts = work.amounts[:n_slots]
            slope, square = _along(slots, amounts, weights, l2)
            cost = 0.0
            for t in range(n):
                gold = corpus.gold[begin + t]
                cost += costs[gold, best[t]] - costs[gold, worst[t]]
            # The dual grows by step · (slope + cost) - step² · square / 4
            gain = slope + cost
            if gain > 0.0:
                step = min(most, 2.0 * gain / square) if square > 0.0 else most
                if not _have_room(arcs, begin, size, best):
                    return total, k, True
                _descend(slots, amounts, weights, l2, step)
                given.dual[b] += step * cost
                _move(arcs, begin, size, best, step)
                _move(arcs, begin, size, worst[:n], -step)
        total += loss
    return total, -1, False


@helper
def _find_worst(work, arcs, begin, size, lowest, before, path):
    """Write the labelling of the lowest score among those with a mass into `path`. RETURNS (float): The most mass it can have."""
    nodes = work.nodes
    chain = work.chain
    n = len(path)
    # lowest[t, j] = nodes[t, j] + min_i(lowest[t-1, i] + transitions[i, j]) over arcs with a mass
    for t in range(n):
        for j in range(size):
            lowest[t, j] = np.inf
        for c in range(arcs.counts[begin + t]):
            i = arcs.arcs[begin + t, c] // size
            j = arcs.arcs[begin + t, c] % size
            score = nodes[t, j] + (chain[size, j] if t == 0 else lowest[t - 1, i] + chain[i, j])
            if score < lowest[t, j]:
                lowest[t, j] = score
                before[t, j] = c
    at = 0
    least = np.inf
    for j in range(size):
        # The last state: argmin_j(lowest[n-1, j] + last[j])
        if lowest[n - 1, j] + chain[size + 1, j] < least:
            at = j
            least = lowest[n - 1, j] + chain[size + 1, j]
    # A chain's masses are a flow: a labelling can have as much as the least of its arcs
    most = np.inf
    for t in range(n - 1, -1, -1):
        path[t] = at
        c = before[t, at]
        most = min(most, arcs.masses[begin + t, c])
        at = arcs.arcs[begin + t, c] // size
    return most


@helper
def _place(arcs, t, arc):
    """Place of an arc of a token, or where it has to be added."""
    for c in range(arcs.counts[t]):
        if arcs.arcs[t, c] == arc:
            return c
    return np.int64(arcs.counts[t])


@helper
def _arc(path, t, size):
    """Number of the arc of a path into token t, see `Arcs`."""
    return path[t] if t == 0 else path[t - 1] * size + path[t]


@helper
def _have_room(arcs, begin, size, path):
    """Whether there is room for all arcs of a path."""
    has_room = True
    for t in range(len(path)):
        has_room &= _place(arcs, begin + t, _arc(path, t, size)) < arcs.arcs.shape[1]
    return has_room


@helper
def _move(arcs, begin, size, path, step):
    """Add a mass to the arcs of a labelling, and drop those that have none left."""
    counts, codes, masses = arcs
    for t in range(len(path)):
        at = begin + t
        arc = _arc(path, t, size)
        c = _place(arcs, at, arc)
        if c == counts[at]:
            codes[at, c] = arc
            masses[at, c] = 0.0
            counts[at] += 1
        masses[at, c] += step
        if masses[at, c] < NEXT_TO_NOTHING:
            # The last arc takes the place of one without mass
            last = counts[at] - 1
            codes[at, c] = codes[at, last]
            masses[at, c] = masses[at, last]
            counts[at] = last
