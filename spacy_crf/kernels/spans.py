"""Probabilities of spans under the posterior of a linear chain.

Given its scores, a linear chain is a Markov chain: the probability that exactly the tokens b..e-1 are one span is

    P(a span begins at b with state i) · Π P(next state | state) over the steps inside · P(the span goes on no further)

summed over the few states of the span's label. With the posterior of a step factored as

    edge(t, i, j) = left[t - 1, i] · matrices[t, i, j] · right[t, j],        P(j at t | i at t - 1) = edge / marginals[t - 1, i]

that is one multiplication per token of the span; where factors may underflow, they are logarithms. States of other labels matter
only at the two ends of the span.

Most states of a tag scheme either always begin a span or always continue one, and likewise at its end. Only states that can do
both need sums over all states (``neighbours``).
"""

import math
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..types import Bools, Floats, Ints
from . import helper, kernel


class Posterior(NamedTuple):
    """Posterior of n tokens and S states: P(i at t - 1, j at t) = left[t-1, i] · matrices[t, i, j] · right[t, j], or if the three
    are logarithms, exp(left[t-1, i] + matrices[t, i, j] + right[t, j])."""

    left: Floats  # [n, P] the columns after the first S are padding
    matrices: Floats  # [1 or n, S, S]
    right: Floats  # [n, P]
    number: Ints  # [S] column of each state in left and right
    # [4, S] whether some state can stand before the state inside its span, before it outside, behind it inside, behind it outside
    neighbours: Bools
    marginals: Floats  # [n, S]
    opening: Bools  # [n] where sequences begin
    in_logs: bool  # whether left, matrices and right are logarithms


class SpanStates(NamedTuple):
    """How the states of a chain spell spans: label l has the states ``label_starts[l]`` to ``label_starts[l + 1]`` - 1."""

    # [S, S] whether state j directly after state i continues the span of i; None, in no kernel, if each span is one segment
    continues: Optional[Bools]
    label_starts: Ints  # [L + 1]

    @classmethod
    def even(cls, continues: Optional[Bools], n_labels: int, *, offset: int = 0, width: int = 1) -> "SpanStates":
        """Spelling with `width` states for each label; the first `offset` states have no label."""
        return cls(continues, offset + width * np.arange(n_labels + 1))

    def over(self, tag_of: Optional[NDArray[np.int32]]) -> "SpanStates":
        """Spelling by the states of a graph, from their tags (int32[S], in order); None leaves the states as they are."""
        if tag_of is None:
            return self
        continues = None if self.continues is None else self.continues[np.ix_(tag_of, tag_of)]
        return SpanStates(continues, np.searchsorted(tag_of, self.label_starts))

    @property
    def offset(self) -> int:
        """The number of states without a label, which come first."""
        return int(self.label_starts[0])

    @property
    def label_of(self) -> Ints:
        """Label of each state, -1 for none: int64[S + 1]; the last entry is for the state -1."""
        labels = np.repeat(np.arange(len(self.label_starts) - 1), np.diff(self.label_starts))
        return np.concatenate([np.full(self.offset, -1), labels, [-1]])


@helper(inline="always")
def _step(posterior, t, i, j):
    """P(i at t - 1, j at t)."""
    left = posterior.left
    matrices = posterior.matrices
    right = posterior.right
    number = posterior.number
    k = t if matrices.shape[0] > 1 else 0
    if posterior.in_logs:
        return math.exp(left[t - 1, number[i]] + matrices[k, i, j] + right[t, number[j]])
    return left[t - 1, number[i]] * matrices[k, i, j] * right[t, number[j]]


@helper(inline="always")
def _enter(posterior, continues, t, first_state, states):
    """states[m] = P(a span begins at t, with state first_state + m)."""
    neighbours = posterior.neighbours
    marginals = posterior.marginals
    opening = posterior.opening
    for m in range(states.shape[0]):
        j = first_state + m
        states[m] = marginals[t, j]
        if opening[t] or states[m] == 0.0 or not neighbours[0, j]:
            continue
        states[m] = 0.0
        if neighbours[1, j]:
            for i in range(marginals.shape[1]):
                if not continues[i, j]:
                    states[m] += _step(posterior, t, i, j)


@helper(inline="always")
def _advance(posterior, continues, t, first_state, states, before):
    """Move the probabilities of open spans from their states at t - 1 to those at t. RETURNS (float64): Their sum."""
    marginals = posterior.marginals
    for m in range(states.shape[0]):  # slices took 1.8 s longer to compile, for an error message about shapes
        before[m] = states[m]
    total = 0.0
    for n in range(states.shape[0]):
        j = first_state + n
        states[n] = 0.0
        if marginals[t, j] == 0.0:  # the sums are rounded, and the next step divides by this marginal
            continue
        for m in range(states.shape[0]):
            i = first_state + m
            if continues[i, j] and before[m] > 0.0:
                # P(j | i) = P(i, j) / P(i), for steps that continue the span
                states[n] += before[m] * _step(posterior, t, i, j) / marginals[t - 1, i]
        total += states[n]
    return total


@helper(inline="always")
def _leave(posterior, continues, t, first_state, states):
    """P(a span that is in one of the states at t - 1 ends before t)."""
    neighbours = posterior.neighbours
    marginals = posterior.marginals
    opening = posterior.opening
    at_end = t == marginals.shape[0] or opening[t]
    total = 0.0
    for m in range(states.shape[0]):
        i = first_state + m
        if states[m] == 0.0:
            continue
        if at_end or not neighbours[2, i]:
            total += states[m]
        elif neighbours[3, i]:
            leaving = 0.0
            for j in range(marginals.shape[1]):
                if not continues[i, j]:
                    # P(the span goes on no further | i) = sum of the steps out of i that do not continue it / P(i)
                    leaving += _step(posterior, t, i, j)
            total += states[m] * (leaving / marginals[t - 1, i])
    return min(total, 1.0)


@kernel(in_place=True)
def span_probabilities(posterior, spans, room, begin, end, label, probabilities):
    """Probability of each of the given spans.

    posterior (Posterior), spans (SpanStates)
    room (float64[2, S]): Is overwritten: probabilities of the states of a span.
    begin, end, label (int64[N]): The spans, each inside one sequence.
    probabilities (float64[N]): Receives the probabilities.
    """
    continues, label_starts = spans
    for n in range(begin.shape[0]):
        i = label_starts[label[n]]
        b = begin[n]
        e = end[n]
        states = room[0, : label_starts[label[n] + 1] - i]
        before = room[1, : label_starts[label[n] + 1] - i]
        _enter(posterior, continues, b, i, states)
        for t in range(b + 1, e):
            _advance(posterior, continues, t, i, states, before)
        probabilities[n] = _leave(posterior, continues, e, i, states)


@kernel(in_place=True)
def likely_spans(posterior, spans, min_prob, room, begin, end, label, probabilities):
    """All spans with at least a certain probability, sorted by first token, label and length.

    The beginning of a span is at least as probable as the span, so the search drops beginnings below min_prob.

    min_prob (float64): 0 lists all possible spans.
    room (float64[2, S]): Is overwritten: probabilities of the states of a span.
    begin, end, label (int64[N]), probabilities (float64[N]): Receive the first N of the spans.
    RETURNS (int): Number of spans, perhaps more than N.
    """
    continues, label_starts = spans
    marginals = posterior.marginals
    opening = posterior.opening
    tokens = marginals.shape[0]
    found = 0
    for b in range(tokens):
        for label_number in range(label_starts.shape[0] - 1):
            first_state = label_starts[label_number]
            behind = label_starts[label_number + 1]
            states = room[0, : behind - first_state]
            before = room[1, : behind - first_state]
            possible = 0.0
            for m in range(first_state, behind):
                # No span from b is more probable than all its states together
                possible += marginals[b, m]
            if possible < min_prob or possible == 0.0:
                continue
            _enter(posterior, continues, b, first_state, states)
            possible = 0.0
            for m in range(behind - first_state):
                possible += states[m]
            e = b + 1
            while possible >= min_prob and possible > 0.0:
                p = _leave(posterior, continues, e, first_state, states)
                if p >= min_prob and p > 0.0:
                    if found < begin.shape[0]:
                        begin[found] = b
                        end[found] = e
                        label[found] = label_number
                        probabilities[found] = p
                    found += 1
                if e == tokens or opening[e]:
                    break
                possible = _advance(posterior, continues, e, first_state, states, before)
                e += 1
    return found
