"""Probabilities of spans under the posterior of a linear chain.

Given its scores, a linear chain is a Markov chain: the probability that exactly the tokens b..e-1 are one span is

    P(a span begins at b with state i) · Π P(next state | state) over the steps inside · P(the span goes on no further)

summed over the few states of the span's label. With the posterior of a step factored as

    edge(t, i, j) = left[t - 1, i] · matrices[t, i, j] · right[t, j],        P(j at t | i at t - 1) = edge / marginals[t - 1, i]

that is one multiplication per token of the span, and no state outside its label is looked at except at its two ends.

Shapes: n tokens, S states, P >= S (padding is 0); label l owns the states ``offset + l * width`` up to ``offset +
(l + 1) * width``. ``continues[i, j]`` says that j directly after i goes on with the span of i; ``opening[t]`` (bool[n])
that token t begins a sequence. One matrix [S, S] is shared by all tokens, or there is one per token; state i has column
``number[i]`` of left, right and marginals.

Most states of a tag scheme only ever begin a span or only go on with one, and likewise at its end: ``neighbours`` (bool[4,
S]) says of each state whether there is any before it in its span, any before it outside, any behind it in its span, any
behind it outside. The sums over all states are for those alone that have both.
"""

import numpy as np

from . import helper, kernel


@helper
def _enter(left, matrices, right, number, neighbours, marginals, opening, continues, t, first_state, states):
    """states[m] = P(a span begins at t, with state first_state + m)."""
    k = t if matrices.shape[0] > 1 else 0
    for m in range(states.shape[0]):
        j = first_state + m
        states[m] = marginals[t, number[j]]
        if opening[t] or states[m] == 0.0 or not neighbours[0, j]:
            continue
        total = 0.0
        if neighbours[1, j]:
            for i in range(marginals.shape[1]):
                if not continues[i, j]:
                    total += left[t - 1, number[i]] * matrices[k, i, j]
        states[m] = total * right[t, number[j]]


@helper
def _advance(left, matrices, right, number, marginals, continues, t, first_state, states, before):
    """From the states at t - 1 to those at t of spans that go on. RETURNS (float64): Their sum."""
    k = t if matrices.shape[0] > 1 else 0
    before[:] = states
    total = 0.0
    for n in range(states.shape[0]):
        j = first_state + n
        states[n] = 0.0
        for m in range(states.shape[0]):
            i = first_state + m
            if continues[i, j] and before[m] > 0.0:
                step = left[t - 1, number[i]] * matrices[k, i, j] * right[t, number[j]]
                states[n] += before[m] * step / marginals[t - 1, number[i]]
        total += states[n]
    return total


@helper
def _leave(left, matrices, right, number, neighbours, marginals, opening, continues, t, first_state, states):
    """P(a span that is in one of the states at t - 1 does not go on at t)."""
    at_end = t == marginals.shape[0] or opening[t]
    k = t if matrices.shape[0] > 1 and not at_end else 0
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
                    leaving += matrices[k, i, j] * right[t, number[j]]
            total += states[m] * (left[t - 1, number[i]] * leaving / marginals[t - 1, number[i]])
    return min(total, 1.0)


@kernel
def span_probabilities(
    left,
    matrices,
    right,
    number,
    neighbours,
    marginals,
    opening,
    continues,
    offset,
    width,
    begin,
    end,
    label,
    probabilities,
):
    """Probability of each of the given spans.

    left, right (float64[n, P]), matrices (float64[1 | n, S, S]): Factors of the posterior of steps.
    number (int64[S]), neighbours (bool[4, S]): See above.
    marginals (float64[n, S]): Probability of each state at each token.
    begin, end, label (int64[N]): The spans, each inside one sequence.
    probabilities (float64[N]): Receives the answer.
    """
    states = np.empty(width)
    before = np.empty(width)
    for n in range(begin.shape[0]):
        i, b, e = offset + label[n] * width, begin[n], end[n]
        _enter(left, matrices, right, number, neighbours, marginals, opening, continues, b, i, states)
        for t in range(b + 1, e):
            _advance(left, matrices, right, number, marginals, continues, t, i, states, before)
        probabilities[n] = _leave(
            left, matrices, right, number, neighbours, marginals, opening, continues, e, i, states
        )


@kernel
def likely_spans(
    left,
    matrices,
    right,
    number,
    neighbours,
    marginals,
    opening,
    continues,
    offset,
    width,
    min_prob,
    begin,
    end,
    label,
    probabilities,
):
    """All spans of at least some probability, by their first token, label and length.

    A span's beginning has at least the probability of the span, so beginnings below min_prob are not followed.

    min_prob (float64): With 0, all spans that are possible.
    begin, end, label (int64[N]), probabilities (float64[N]): Receive the first N of the spans.
    RETURNS (int): How many there are, perhaps more than N.
    """
    tokens, size = marginals.shape
    states = np.empty(width)
    before = np.empty(width)
    found = 0
    for b in range(tokens):
        for of_label in range((size - offset) // width):
            first_state = offset + of_label * width
            possible = 0.0
            for m in range(width):
                possible += marginals[b, number[first_state + m]]
            if possible < min_prob or possible == 0.0:
                continue
            _enter(left, matrices, right, number, neighbours, marginals, opening, continues, b, first_state, states)
            possible = states.sum()
            e = b + 1
            while possible >= min_prob and possible > 0.0:
                p = _leave(
                    left, matrices, right, number, neighbours, marginals, opening, continues, e, first_state, states
                )
                if p >= min_prob and p > 0.0:
                    if found < begin.shape[0]:
                        begin[found], end[found], label[found], probabilities[found] = b, e, of_label, p
                    found += 1
                if e == tokens or opening[e]:
                    break
                possible = _advance(left, matrices, right, number, marginals, continues, e, first_state, states, before)
                e += 1
    return found
