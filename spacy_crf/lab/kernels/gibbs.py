"""Walks through the labellings of tied chains: one sequence after the other is drawn, given the present labels of all others.

A sequence is drawn as a whole (a block): filtered forwards, then drawn backwards. What its ties to others say of a token is added
to its emissions:

    rows[t, j] = power · (emissions[t, j] + told[t, j]) + logsum_i(rows[t-1, i] + power · transitions[i, j])

A tie inside of a sequence is known at its first token only, when the last one has been drawn. So labellings come up too often or
too rarely by a factor, and draws are taken with a probability (Metropolis & al. 1953; Hastings 1970):

    shift(y) = sum_t logsum_i(next[t, i] + power · inside[t, i]) - logsum_i(next[t, i])
    next[t, i] = rows[t, i] + power · transitions[i, y[t+1]]
    taken with probability min(1, exp(shift(draw) - shift(what was there)))

Where sequences are told nothing by others, the ties to these come in there too.

Shapes: T tokens, S states, L labels, E ties; a tie is there twice, once for each of its ends.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels import helper, kernel
from ...kernels.exponentials import exp_less, exp_row
from ...kernels.numerics import SPREAD, TINY, best_before, best_end, draw, log_sum
from ...types import Floats

_MORE = 1e-9  # by which a labelling has to be better than another one


class Neighbours(NamedTuple):
    """The other ends of the ties of each token t are ``ends[bounds[t]:bounds[t + 1]]``."""

    bounds: NDArray[np.int64]  # [T + 1]
    ends: NDArray[np.int64]  # [2 E]
    kinds: NDArray[np.int64]  # [2 E]
    tables: Floats  # [2 K, L, L] what label i of the other end adds to label j of this one
    label_of: NDArray[np.int64]  # [S]


@helper
def own_scores(chains, t, begin, end, power, row):
    """Sets row (float64[S]) to the scores of a token without those of transitions."""
    emissions, _, first, last, _ = chains
    for j in range(len(row)):
        row[j] = power * emissions[t, j]
        if t == begin:
            row[j] += power * first[j]
        if t == end - 1:
            row[j] += power * last[j]


@helper
def _tell(neighbours, states, t, begin, end, inside, power, row):
    """Add the scores of a token's ties to tokens inside begin:end, or else of those to tokens outside it, to `row`.

    RETURNS (bool): Whether the token has other ties too.
    """
    bounds, ends, kinds, tables, label_of = neighbours
    has_others = False
    for e in range(bounds[t], bounds[t + 1]):
        if (begin <= ends[e] < end) != inside:
            has_others = True
        else:
            told = tables[kinds[e], label_of[states[ends[e]]]]
            for j in range(len(row)):
                row[j] += power * told[label_of[j]]
    return has_others


@helper
def _filter(rows, t, transitions, k, power, exps, top, room):
    """Adds to rows[t] the sums over the states before.

    exps (float64[S, S]), top (float): From `_exponentials`. room (float64[2, S])
    """
    size = rows.shape[1]
    largest = -np.inf
    for i in range(size):
        largest = max(largest, rows[t - 1, i])
    sums = room[1]
    sums[:] = 0.0
    if top > -np.inf and largest > -np.inf:
        exp_row(rows, t - 1, largest, room, 0, -SPREAD)
        for i in range(size):
            mass = room[0, i]
            for j in range(size):
                sums[j] += mass * exps[i, j]
    for j in range(size):
        if sums[j] > TINY:
            rows[t, j] += largest + top + math.log(sums[j])
        elif rows[t, j] > -np.inf:
            for i in range(size):
                room[0, i] = rows[t - 1, i] + power * transitions[k, i, j]
            rows[t, j] += log_sum(room[0])


@helper
def _follow(chains, neighbours, rows, power, b, uniforms, room, states):
    """Goes through a sequence backwards, whose states (int32[T]) are drawn where there are random numbers, and given otherwise.

    RETURNS (float): The shift of this labelling.
    """
    transitions, size, shift = chains.transitions, rows.shape[1], 0.0
    begin, end = chains.starts[b], chains.starts[b + 1]
    step, terms = 1 if transitions.shape[0] > 1 else 0, room[0]
    bounds, ends = neighbours.bounds, neighbours.ends
    for t in range(end - 1, begin - 1, -1):
        is_joined = False
        for e in range(bounds[t], bounds[t + 1]):
            is_joined |= t < ends[e] < end
        if is_joined or len(uniforms):
            for i in range(size):
                terms[i] = rows[t, i]
                if t < end - 1:
                    terms[i] += power * transitions[(t + 1) * step, i, states[t + 1]]
        if is_joined:
            shift -= log_sum(terms)
            _tell(neighbours, states, t, t + 1, end, True, power, terms)
            shift += log_sum(terms)
        if len(uniforms):
            states[t] = draw(terms, uniforms[t])
    return shift


@helper
def _of_ties(neighbours, states, others, begin, end, inside):
    """Score of the ties of a sequence: of those inside it (half at each end), or of those to other sequences.

    states (int32[T]): Labels of the sequence's own tokens. others (int32[T]): Labels of the tokens of other sequences.
    """
    bounds, ends, kinds, tables, label_of = neighbours
    score = 0.0
    for t in range(begin, end):
        for e in range(bounds[t], bounds[t + 1]):
            is_inside = begin <= ends[e] < end
            if is_inside == inside:
                other = states[ends[e]] if is_inside else others[ends[e]]
                score += (0.5 if is_inside else 1.0) * tables[kinds[e], label_of[other], label_of[states[t]]]
    return score


@helper
def _exponentials(transitions, power, exps):
    """Set exps (float64[S, S]) to exp(power · transitions - maximum), if all tokens share the transitions. RETURNS (float):
    The maximum; -inf if they don't."""
    top = -np.inf
    if transitions.shape[0] == 1:
        for i in range(exps.shape[0]):
            for j in range(exps.shape[1]):
                exps[i, j] = power * transitions[0, i, j]
                top = max(top, exps[i, j])
        for i in range(exps.shape[0] if top > -np.inf else 0):
            exp_less(exps, i, top, -SPREAD)
    return top


@kernel
def walk(chains, neighbours, powers, is_told, uniforms, states, drawn):
    """Draws all sequences again and again.

    chains (ChainArrays), neighbours (Neighbours)
    powers (float64[N]): Exponent of the probabilities in each round.
    is_told (bool): Whether sequences are drawn given their ties to other sequences; otherwise the draws are proposals that
        ignore these ties.
    uniforms (float64[N, T + B]): Random numbers of the tokens and of the sequences.
    states (int32[T]): A possible labelling, which is updated.
    drawn (int32[N, T]): Receives the labellings.
    RETURNS (int): How many draws were taken.
    """
    transitions, starts = chains.transitions, chains.starts
    n_tokens, size = chains.emissions.shape
    step = 1 if transitions.shape[0] > 1 else 0
    rows, room, exps = np.empty((n_tokens, size)), np.empty((2, size)), np.empty((size, size))
    proposed = np.empty(n_tokens, dtype=np.int32)
    taken, top, last_power = 0, -np.inf, -1.0
    for n in range(len(powers)):
        power = powers[n]
        is_new = power != last_power
        if is_new:
            top, last_power = _exponentials(transitions, power, exps), power
        for b in range(len(starts) - 1):
            begin, end = starts[b], starts[b + 1]
            if is_told or is_new:
                for t in range(begin, end):
                    own_scores(chains, t, begin, end, power, rows[t])
                    if is_told:
                        _tell(neighbours, states, t, begin, end, False, power, rows[t])
                    if t > begin:
                        _filter(rows, t, transitions, t * step, power, exps, top, room)
            more = _follow(chains, neighbours, rows, power, b, uniforms[n], room, proposed)
            more -= _follow(chains, neighbours, rows, power, b, uniforms[n, :0], room, states)
            if not is_told:
                more += power * _of_ties(neighbours, proposed, states, begin, end, False)
                more -= power * _of_ties(neighbours, states, states, begin, end, False)
            if more >= 0.0 or uniforms[n, n_tokens + b] < math.exp(more):
                taken += 1
                states[begin:end] = proposed[begin:end]
        drawn[n] = states
    return taken


@helper
def best_path(chains, rows, begin, end, states):
    """Sets the states of a sequence to the best ones, by the scores of its tokens without transitions in rows, which become
    those of the best prefixes."""
    transitions, free = chains.transitions, np.zeros(rows.shape[1])
    step = 1 if transitions.shape[0] > 1 else 0
    for t in range(begin + 1, end):
        for j in range(rows.shape[1]):
            i = best_before(rows, t - 1, transitions, t * step, j)
            rows[t, j] += rows[t - 1, i] + transitions[t * step, i, j]
    for t in range(end - 1, begin - 1, -1):
        if t == end - 1:
            states[t], _ = best_end(rows, t, free)
        else:
            states[t] = best_before(rows, t, transitions, (t + 1) * step, states[t + 1])


@helper
def _score(chains, neighbours, own, begin, end, states):
    """Score of a sequence. own (float64[T, S]): Scores of its tokens, including its ties to other sequences."""
    transitions, score = chains.transitions, _of_ties(neighbours, states, states, begin, end, True)
    step = 1 if transitions.shape[0] > 1 else 0
    for t in range(begin, end):
        score += own[t, states[t]]
        if t > begin:
            score += transitions[t * step, states[t - 1], states[t]]
    return score


@kernel
def ascend(chains, neighbours, some, sweeps, states):
    """Replace the labelling of one sequence after the other by the best one given all others, if that is better, until no
    sequence improves (iterated conditional modes, Besag 1986). Ties inside a sequence are ignored at first, then treated as
    ties to other sequences.

    some (int64[N]): The sequences. sweeps (int): Most passes over them. states (int32[T]): A possible labelling, which is
        updated.
    """
    starts = chains.starts
    n_tokens, size = chains.emissions.shape
    rows, own = np.empty((n_tokens, size)), np.empty((n_tokens, size))
    proposed = np.empty(n_tokens, dtype=np.int32)
    for _ in range(sweeps):
        changed = False
        for b in some:
            begin, end = starts[b], starts[b + 1]
            for turn in range(2):
                has_inside = False
                for t in range(begin, end):
                    own_scores(chains, t, begin, end, 1.0, own[t])
                    rows[t] = own[t]
                    has_inside |= _tell(neighbours, states, t, begin, end, False, 1.0, own[t])
                    if turn == 0:
                        rows[t] = own[t]
                    else:  # none is inside of nothing
                        _tell(neighbours, states, t, 0, 0, False, 1.0, rows[t])
                if turn == 1 and not has_inside:
                    continue
                best_path(chains, rows, begin, end, proposed)
                gain = _score(chains, neighbours, own, begin, end, proposed)
                gain -= _score(chains, neighbours, own, begin, end, states)
                if gain > _MORE:
                    changed = True
                    states[begin:end] = proposed[begin:end]
        if not changed:
            break
