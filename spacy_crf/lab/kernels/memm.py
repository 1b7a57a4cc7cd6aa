"""Local choices: each token chooses its tag by its own scores and those of the steps from the one or two tags before it.

    normalizer(t, w, u) = log sum_v exp(emissions[t, v] + steps[t, u, v] + grams[w, u, v])

The normalizer of the choice at token t depends on the tags w, u before it. S stands for the start of a sequence: the first choice
comes after (S, S), the second after (S, u). Exponentials are products of those that all choices share, and are computed anew
where their sum is too small.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...kernels import helper, kernel
from ...kernels.numerics import LINEAR, TINY
from ...types import Floats


class Choices(NamedTuple):
    """Scores of the choices of a batch, with their exponentials relative to the largest of each row."""

    emissions: Floats  # [T, S] with those of the ends of sequences
    shares: Floats  # [T, S] exp(emissions - largest)
    largest: Floats  # [T]
    steps: Floats  # [1 or T, S + 1, S] the last row is that of the first token
    step_shares: Floats  # [1 or T, S + 1, S] exp(steps - largest_step)
    largest_step: Floats  # [1 or T, S + 1]
    grams: Floats  # [G] scores of trigrams of tags
    gram_shares: Floats  # [G] exp(grams)
    gram_tags: NDArray[np.int64]  # [G] last tag of each
    gram_starts: NDArray[np.int64]  # [(S + 1)² + 1] trigrams by the two tags before the last
    starts: NDArray[np.int64]  # [B + 1]


def make_choices(work: Any) -> Choices:
    """The choices by the scores of a `ChainWork` or `HigherOrderWork`."""
    scores, size = work.scores, work.n_states
    emissions = scores.emissions.copy()
    emissions[work.ends()[1]] += scores.last
    first = np.broadcast_to(scores.first, (len(work.transitions), 1, size))
    steps = np.concatenate([work.transitions, first], axis=1)
    grams, keys, base = getattr(scores, "grams", np.zeros(0)), np.zeros(0, dtype=np.int64), size + 1
    if len(grams):
        keys = scores.orders.keys - base**3  # without the digit in front
    gram_starts = np.searchsorted(keys, base * np.arange(base**2 + 1))
    with np.errstate(over="ignore"):
        of_grams = grams, np.exp(grams), keys % base, gram_starts
    return Choices(*_exponentials(emissions), *_exponentials(steps), *of_grams, work.starts)


def _exponentials(scores: Floats) -> tuple[Floats, Floats, Floats]:
    """Scores, their exponentials relative to the largest of each row, and the largest, 0 where all are -inf."""
    largest = scores.max(axis=-1, initial=-np.inf)
    largest = np.where(largest > -np.inf, largest, 0.0)
    return scores, np.exp(scores - largest[..., np.newaxis]), largest


@helper(fastmath=LINEAR)
def _total(row):
    total = 0.0
    for v in range(len(row)):
        total += row[v]
    return total


@helper
def _choose(choices, t, w, u, row):
    """Shares of the tags at token t after the tags w, u, up to a factor: row (float64[S]).

    RETURNS (float, float): The sum of the shares, and the normalizer: -inf where every tag is forbidden.
    """
    emissions, shares, largest, steps, step_shares, largest_step, grams, gram_shares, tags, gram_starts, _ = choices
    r, context = t if len(steps) > 1 else 0, w * (len(row) + 1) + u
    for v in range(len(row)):
        row[v] = shares[t, v] * step_shares[r, u, v]
    for n in range(gram_starts[context], gram_starts[context + 1]):
        row[tags[n]] *= gram_shares[n]
    total = _total(row)
    if TINY < total < 1.0 / TINY:
        return total, math.log(total) + largest[t] + largest_step[r, u]
    for v in range(len(row)):
        row[v] = emissions[t, v] + steps[r, u, v]
    for n in range(gram_starts[context], gram_starts[context + 1]):
        row[tags[n]] += grams[n]
    highest = row.max()
    if highest == -np.inf:
        row[:] = 0.0
        return 1.0, highest
    for v in range(len(row)):
        row[v] = math.exp(row[v] - highest)
    total = _total(row)
    return total, math.log(total) + highest


@helper(forceinline=True)
def _learn(choices, t, w, u, weight, row, out):
    """Subtract the weighted derivative of a normalizer, but from that of the ends of sequences."""
    d_emissions, d_steps, _, d_grams = out
    tags, gram_starts = choices.gram_tags, choices.gram_starts
    total, _ = _choose(choices, t, w, u, row)
    r, context = t if len(d_steps) > 1 else 0, w * (len(row) + 1) + u
    factor = weight / total
    for v in range(len(row)):
        used = factor * row[v]
        d_emissions[t, v] -= used
        d_steps[r, u, v] -= used
    for n in range(gram_starts[context], gram_starts[context + 1]):
        d_grams[n] -= factor * row[tags[n]]
    return factor


@kernel
def along(choices, states, totals):
    """Sum of the normalizers of the choices along a path: states (int32[T]), totals (float64[B])."""
    size = choices.emissions.shape[1]
    row = np.empty(size)
    for b in range(len(totals)):
        totals[b] = 0.0
        w = u = size
        for t in range(choices.starts[b], choices.starts[b + 1]):
            totals[b] += _choose(choices, t, w, u, row)[1]
            w, u = u, states[t]


@kernel
def learn_along(choices, states, weights, out):
    """Subtract from ``out`` the derivative of sum_b weights[b] · totals[b] of `along`.

    out (float64[T, S], float64[1 or T, S + 1, S], float64[S], float64[G]): Emissions, steps, ends of sequences, trigrams.
    """
    size = choices.emissions.shape[1]
    row = np.empty(size)
    for b in range(len(weights)):
        w = u = size
        begin, end = choices.starts[b], choices.starts[b + 1]
        for t in range(begin, end):
            factor = _learn(choices, t, w, u, weights[b], row, out)
            w, u = u, states[t]
        if begin < end:
            for v in range(size):
                out[2][v] -= factor * row[v]


@kernel
def every(choices, normalizers):
    """The normalizer of each choice that has one: normalizers (float64[T, 1 or S + 1, S + 1]), by tags w and u. For order 1 w is
    always 0. Other entries stay as they are."""
    size = choices.emissions.shape[1]
    row, pairs = np.empty(size), normalizers.shape[1] > 1
    for b in range(len(choices.starts) - 1):
        begin, end = choices.starts[b], choices.starts[b + 1]
        for t in range(begin, end):
            for w in range(size if pairs and t > begin + 1 else 1):
                before = size if pairs and t <= begin + 1 else w
                for u in range(size if t > begin else 1):
                    after = u if t > begin else size
                    if (
                        before < size
                        and pairs
                        and choices.steps[t - 1 if len(choices.steps) > 1 else 0, w, u] == -np.inf
                    ):
                        continue  # the scheme forbids these two tags
                    normalizers[t, before, after] = _choose(choices, t, before, after, row)[1]


@kernel
def learn_every(choices, weights, out):
    """Subtract from ``out`` (see `learn_along`) the derivative of the sum of weights (float64[T, 1 or S + 1, S + 1]) times
    normalizers (see `every`)."""
    size = choices.emissions.shape[1]
    row = np.empty(size)
    for b in range(len(choices.starts) - 1):
        for t in range(choices.starts[b], choices.starts[b + 1]):
            for w in range(weights.shape[1]):
                for u in range(size + 1):
                    if weights[t, w, u] != 0.0:
                        factor = _learn(choices, t, w, u, weights[t, w, u], row, out)
                        if t == choices.starts[b + 1] - 1:
                            for v in range(size):
                                out[2][v] -= factor * row[v]
