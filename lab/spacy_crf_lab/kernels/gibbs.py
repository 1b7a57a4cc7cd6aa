"""Gibbs sampling of tied chains: walks draw one sequence after the other, given the present labels of all others.

A walk draws a sequence as a whole (a block): a filter runs forwards, then the states are drawn backwards. Scores of ties to other
sequences are added to the emissions:

    rows[t, j] = power · (emissions[t, j] + of_ties[t, j]) + logsum_i(rows[t-1, i] + power · transitions[i, j])

The filter cannot know a tie inside a sequence: only the draw of its first token knows the label of its last one. So labellings
come up too often or too rarely by a factor, and a draw is accepted with a probability (Metropolis et al. 1953; Hastings 1970):

    shift(y) = sum_t logsum_i(next[t, i] + power · inside[t, i]) - logsum_i(next[t, i])
    next[t, i] = rows[t, i] + power · transitions[i, y[t+1]]
    taken with probability min(1, exp(shift(draw) - shift(what was there)))

If draws ignore the ties to other sequences, the probability includes these ties too.

Shapes: T tokens, S states, L labels, E ties; a tie is listed twice, once for each of its ends.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.linear_chain import ChainArrays
from spacy_crf.kernels.log_space import exponentials_of, sum_steps
from spacy_crf.kernels.numerics import best_before, best_end, draw, log_sum
from spacy_crf.types import Floats

_MORE = 1e-9  # least gain for which a labelling replaces another one


class Neighbours(NamedTuple):
    """The other ends of the ties of each token t are ``ends[bounds[t]:bounds[t + 1]]``."""

    bounds: NDArray[np.int64]  # [T + 1]
    ends: NDArray[np.int64]  # [2 E]
    kinds: NDArray[np.int64]  # [2 E]
    tables: Floats  # [2 K, L, L] score of label i at the other end with label j at this end
    label_of: NDArray[np.int64]  # [S]


@helper
def own_scores(chains, t, begin, end, row):
    """Set row (float64[S]) to the scores of a token, without transitions and ties."""
    emissions, _, first, last, _ = chains
    for j in range(len(row)):
        row[j] = emissions[t, j]
        if t == begin:
            row[j] += first[j]
        if t == end - 1:
            row[j] += last[j]


@helper
def _tell(neighbours, states, t, begin, end, inside, row):
    """Add the scores of a token's ties to tokens inside begin:end, or else of those to tokens outside it, to `row`.

    RETURNS (bool): Whether the token has other ties too.
    """
    bounds, ends, kinds, tables, label_of = neighbours
    has_others = False
    for e in range(bounds[t], bounds[t + 1]):
        if (begin <= ends[e] < end) != inside:
            has_others = True
        else:
            added = tables[kinds[e], label_of[states[ends[e]]]]
            for j in range(len(row)):
                row[j] += added[label_of[j]]
    return has_others


@helper
def _follow(chains, neighbours, rows, b, uniforms, terms, states):
    """Follow a sequence backwards. With random numbers the states (int32[T]) are drawn, without any they are given.

    RETURNS (float): The shift of this labelling.
    """
    transitions = chains.transitions
    size = rows.shape[1]
    shift = 0.0
    begin = chains.starts[b]
    end = chains.starts[b + 1]
    step = 1 if transitions.shape[0] > 1 else 0
    bounds = neighbours.bounds
    ends = neighbours.ends
    for t in range(end - 1, begin - 1, -1):
        is_joined = False
        for e in range(bounds[t], bounds[t + 1]):
            is_joined |= t < ends[e] < end
        if is_joined or len(uniforms):
            for i in range(size):
                terms[i] = rows[t, i]
                if t < end - 1:
                    terms[i] += transitions[(t + 1) * step, i, states[t + 1]]
        if is_joined:
            # Without the ties inside, then with them
            shift -= log_sum(terms)
            _tell(neighbours, states, t, t + 1, end, True, terms)
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


@kernel
def walk(chains, neighbours, powers, given_ties, uniforms, states, drawn):
    """Draw all sequences, once in each of N rounds.

    chains (ChainArrays), neighbours (Neighbours)
    powers (float64[N]): Exponent of the probabilities in each round.
    given_ties (bool): Whether sequences are drawn given their ties to other sequences; otherwise the draws are proposals that
        ignore these ties.
    uniforms (float64[N, T + B]): Random numbers of the tokens and of the sequences.
    states (int32[T]): A possible labelling, which is updated.
    drawn (int32[N, T]): Receives the labellings.
    RETURNS (int): Number of accepted draws.
    """
    transitions = chains.transitions
    starts = chains.starts
    (n_tokens, size) = chains.emissions.shape
    step = 1 if transitions.shape[0] > 1 else 0
    rows = np.empty((n_tokens, size))
    room = np.empty((2, size))
    proposed = np.empty(n_tokens, dtype=np.int32)
    taken = 0
    here = chains
    ties = neighbours
    known = exponentials_of(transitions, False)
    for n in range(len(powers)):
        power = powers[n]
        is_new = n == 0 or powers[n] != powers[n - 1]
        if is_new:
            here = ChainArrays(
                power * chains.emissions, power * transitions, power * chains.first, power * chains.last, starts
            )
            bounds, ends, kinds, tables, label_of = neighbours
            ties = Neighbours(bounds, ends, kinds, power * tables, label_of)
            known = exponentials_of(here.transitions, False)
        for b in range(len(starts) - 1):
            begin = starts[b]
            end = starts[b + 1]
            # The filter of a sequence stays the same where it does not depend on the other labels
            for t in range(begin, end if given_ties or is_new else begin):
                own_scores(here, t, begin, end, rows[t])
                if given_ties:
                    _tell(ties, states, t, begin, end, False, rows[t])
                if t > begin:
                    sum_steps(rows, t - 1, here.transitions, t * step, known, room[:1], room, 1)
                    rows[t] += room[1]
            # log of the ratio of the draw's true probability to that of the present labelling, each by the filter's
            more = _follow(here, ties, rows, b, uniforms[n], room[0], proposed)
            more -= _follow(here, ties, rows, b, uniforms[n, :0], room[0], states)
            if not given_ties:
                more += _of_ties(ties, proposed, states, begin, end, False)
                more -= _of_ties(ties, states, states, begin, end, False)
            if more >= 0.0 or uniforms[n, n_tokens + b] < math.exp(more):
                taken += 1
                states[begin:end] = proposed[begin:end]
        drawn[n] = states
    return taken


@helper
def best_path(chains, rows, begin, end, states):
    """Set the states of a sequence to its best labelling. `rows` has the scores of its tokens without transitions, and receives
    the scores of the best prefixes."""
    transitions = chains.transitions
    free = np.zeros(rows.shape[1])
    step = 1 if transitions.shape[0] > 1 else 0
    # rows[t, j] += max_i(rows[t-1, i] + transitions[i, j])
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
    transitions = chains.transitions
    score = _of_ties(neighbours, states, states, begin, end, True)
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
    rows = np.empty((n_tokens, size))
    own = np.empty((n_tokens, size))
    proposed = np.empty(n_tokens, dtype=np.int32)
    for _ in range(sweeps):
        changed = False
        for b in some:
            begin = starts[b]
            end = starts[b + 1]
            for turn in range(2):
                has_inside = False
                for t in range(begin, end):
                    own_scores(chains, t, begin, end, own[t])
                    rows[t] = own[t]
                    has_inside |= _tell(neighbours, states, t, begin, end, False, own[t])
                    # First without the ties inside, then with them, given the present labels
                    if turn == 0:
                        rows[t] = own[t]
                    else:  # none is inside of nothing
                        _tell(neighbours, states, t, 0, 0, False, rows[t])
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
