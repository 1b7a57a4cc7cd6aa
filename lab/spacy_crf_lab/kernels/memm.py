"""Local choices: each token chooses its tag by its own scores and those of the steps from the one or two tags before it.

    normalizer(t, w, u) = log sum_v exp(emissions[t, v] + steps[t, u, v] + grams[w, u, v])

The normalizer of the choice at token t depends on the tags w, u before it. S stands for the start of a sequence: the first choice
comes after (S, S), the second after (S, u). The choice of a last token has the scores ``last`` too. Exponentials are products of
those that all choices share, and are computed anew where their sum is too small.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from spacy_crf.kernels import helper, kernel
from spacy_crf.kernels.exponentials import LEAST, exp_less, extremes
from spacy_crf.kernels.numerics import LINEAR, TINY
from spacy_crf.kernels.tiles import WHOLE
from spacy_crf.types import Floats, Ints


class Choices(NamedTuple):
    """Scores of the choices of a batch. Rows of P columns are whole vectors."""

    emissions: Floats  # [T, S]
    last: Floats  # [S]
    steps: Floats  # [1 or T, S + 1, S] the last row is that of the first token
    shares: Floats  # [1 or T, S + 1, P] exp(steps - largest), 0 in columns behind S
    largest: Floats  # [1 or T, S + 1] of each row of the steps, 0 where all are -inf
    grams: Floats  # [G] scores of trigrams of tags
    gram_shares: Floats  # [G] exp(grams)
    gram_tags: Ints  # [G] last tag of each
    gram_starts: Ints  # [(S + 1)² + 1] trigrams by the two tags before the last
    starts: Ints  # [B + 1]


def make_choices(work: Any) -> Choices:
    """The choices by the scores of a `ChainWork` or `HigherOrderWork`."""
    scores = work.scores
    size = work.n_states
    first = np.broadcast_to(scores.first, (len(work.transitions), 1, size))
    steps = np.concatenate([work.transitions, first], axis=1)
    largest = steps.max(axis=2)
    largest[largest == -np.inf] = 0.0
    shares = np.zeros((*largest.shape, -(-size // WHOLE) * WHOLE))
    shares[:, :, :size] = np.exp(steps - largest[:, :, np.newaxis])
    grams = getattr(scores, "grams", np.zeros(0))
    keys = np.zeros(0, dtype=np.int64)
    base = size + 1
    if len(grams):
        keys = scores.orders.keys - base**3  # without the digit in front
    gram_starts = np.searchsorted(keys, base * np.arange(base**2 + 1))
    with np.errstate(over="ignore"):
        gram_shares = np.exp(grams)
    gram_shares[gram_shares == np.inf] = np.nan  # which a sum cannot hide: it is then computed by logarithms
    of_grams = grams, gram_shares, keys % base, gram_starts
    return Choices(scores.emissions, scores.last, steps, shares, largest, *of_grams, work.starts)


@helper(forceinline=True)
def _open(emissions, t, last, is_last, rows):
    """Shares of the tags at token t by its own scores: rows[0] (float64[2, P]). RETURNS (float): The largest of these scores."""
    size = emissions.shape[1]
    for v in range(size):
        rows[0, v] = emissions[t, v]
    for v in range(size, rows.shape[1]):
        rows[0, v] = -np.inf
    if is_last:
        for v in range(size):
            rows[0, v] += last[v]
    largest, _ = extremes(rows, 0)
    largest = largest if largest > -np.inf else 0.0
    exp_less(rows, 0, largest, LEAST)
    return largest


@helper(fastmath=LINEAR, forceinline=True)
def _product(rows, shares, r, u):
    """rows[1] = rows[0] · shares[r, u]. RETURNS (float): Its sum."""
    total = 0.0
    for v in range(rows.shape[1]):
        rows[1, v] = rows[0, v] * shares[r, u, v]
        total += rows[1, v]
    return total


@helper
def _exactly(choices, t, is_last, r, u, context, rows):
    """As `_choose`, by logarithms, for any scores. RETURNS (float, float): The same, or 1 and -inf if no tag is possible."""
    size = choices.emissions.shape[1]
    for v in range(size):
        # logsum_v(emissions + steps + last + grams)
        rows[1, v] = choices.emissions[t, v] + choices.steps[r, u, v] + (choices.last[v] if is_last else 0.0)
    for n in range(choices.gram_starts[context], choices.gram_starts[context + 1]):
        rows[1, choices.gram_tags[n]] += choices.grams[n]
    largest = rows[1, :size].max()
    total = 0.0
    for v in range(size):
        rows[1, v] = math.exp(rows[1, v] - largest) if largest > -np.inf else 0.0
        total += rows[1, v]
    return (total, largest + math.log(total)) if total > 0.0 else (1.0, -np.inf)


@helper(forceinline=True)
def _choose(choices, t, is_last, r, u, context, rows, largest):
    """Shares of the tags at token t after other tags, up to a factor: rows[1] (float64[2, P]), from rows[0].

    r, u, context (int): The row of the steps, and the number of the pair of tags. largest (float): From `_open`.
    RETURNS (float, float): The sum of the shares, and the normalizer.
    """
    total = _product(rows, choices.shares, r, u)
    begin = choices.gram_starts[context]
    end = choices.gram_starts[context + 1]
    if begin < end:
        for n in range(begin, end):
            rows[1, choices.gram_tags[n]] *= choices.gram_shares[n]
        total = rows[1].sum()
    if TINY < total < 1.0 / TINY:
        return total, math.log(total) + largest + choices.largest[r, u]
    return _exactly(choices, t, is_last, r, u, context, rows)


@kernel
def follow(choices, states, weights, totals, out):
    """Log probability of one path per sequence: states (int32[T]), totals (float64[B]); and the derivative of -weights · totals.

    out (float64[T, S], float64[1 or T, S + 1, S], float64[S], float64[G]): Receives the derivative with respect to emissions; to
        steps, ends and trigrams it is added. Impossible paths add nothing.
    """
    d_emissions, d_steps, d_last, d_grams = out
    emissions, last, steps, shares, largest, grams, gram_shares, gram_tags, gram_starts, starts = choices
    size = emissions.shape[1]
    by_token = len(steps) > 1
    rows = np.empty((2, shares.shape[2]))
    for b in range(len(totals)):
        begin = starts[b]
        end = starts[b + 1]
        score = 0.0
        for t in range(begin, end):
            u = states[t - 1] if t > begin else size
            # log P = sum of scores - sum of normalizers
            score += emissions[t, states[t]] + steps[t if by_token else 0, u, states[t]]
        if begin < end:
            score += last[states[end - 1]]
        if score == -np.inf:
            totals[b] = score
            d_emissions[begin:end] = 0.0
            continue
        weight = weights[b]
        w = size
        u = size
        for t in range(begin, end):
            # `_choose`, written out: reading the arrays of the choices there took a quarter of the time
            r = t if by_token else 0
            context = w * (size + 1) + u
            y = states[t]
            is_last = t == end - 1
            highest = _open(emissions, t, last, is_last, rows)
            total = _product(rows, shares, r, u)
            for n in range(gram_starts[context], gram_starts[context + 1]):
                rows[1, gram_tags[n]] *= gram_shares[n]
            if gram_starts[context] < gram_starts[context + 1]:
                total = rows[1].sum()
            normalizer = math.log(max(total, TINY)) + highest + largest[r, u]
            if not TINY < total < 1.0 / TINY:
                total, normalizer = _exactly(choices, t, is_last, r, u, context, rows)
            score -= normalizer
            factor = weight / total
            for v in range(size):
                # The derivative of -log P(y) by a score of tag v is P(v) - [v = y]
                d_emissions[t, v] = factor * rows[1, v]
            for v in range(size):
                d_steps[r, u, v] += factor * rows[1, v]
            d_emissions[t, y] -= weight
            d_steps[r, u, y] -= weight
            for n in range(gram_starts[context], gram_starts[context + 1]):
                d_grams[n] += factor * rows[1, gram_tags[n]]
                if gram_tags[n] == y:
                    score += grams[n]
                    d_grams[n] -= weight
            w = u
            u = y
        for v in range(size if begin < end else 0):
            d_last[v] += d_emissions[end - 1, v]
        totals[b] = score


@kernel
def every(choices, normalizers):
    """The normalizer of each choice that has one: normalizers (float64[T, 1 or S + 1, S + 1]), by tags w and u. For order 1 w is
    always 0. Other entries stay as they are."""
    size = choices.emissions.shape[1]
    pairs = normalizers.shape[1] > 1
    rows = np.empty((2, choices.shares.shape[2]))
    by_token = len(choices.steps) > 1
    for b in range(len(choices.starts) - 1):
        begin = choices.starts[b]
        end = choices.starts[b + 1]
        for t in range(begin, end):
            is_last = t == end - 1
            largest = _open(choices.emissions, t, choices.last, is_last, rows)
            for w in range(size if pairs and t > begin + 1 else 1):
                before = size if pairs and t <= begin + 1 else w
                for u in range(size if t > begin else 1):
                    after = u if t > begin else size
                    if before < size and pairs and choices.steps[t - 1 if by_token else 0, w, u] == -np.inf:
                        continue  # the scheme forbids these two tags
                    r = t if by_token else 0
                    context = before * (size + 1) + after
                    found = _choose(choices, t, is_last, r, after, context, rows, largest)
                    normalizers[t, before, after] = found[1]


@kernel
def learn_every(choices, weights, out):
    """Subtract from ``out`` (see `follow`) the derivative of the sum of weights (float64[T, 1 or S + 1, S + 1]) times normalizers
    (see `every`)."""
    d_emissions, d_steps, d_last, d_grams = out
    size = choices.emissions.shape[1]
    by_token = len(choices.steps) > 1
    rows = np.empty((2, choices.shares.shape[2]))
    for b in range(len(choices.starts) - 1):
        for t in range(choices.starts[b], choices.starts[b + 1]):
            is_last = t == choices.starts[b + 1] - 1
            r = t if by_token else 0
            largest = _open(choices.emissions, t, choices.last, is_last, rows)
            for w in range(weights.shape[1]):
                for u in range(size + 1):
                    if weights[t, w, u] == 0.0:
                        continue
                    context = w * (size + 1) + u
                    total, _ = _choose(choices, t, is_last, r, u, context, rows, largest)
                    factor = weights[t, w, u] / total
                    for v in range(size):
                        used = factor * rows[1, v]
                        d_emissions[t, v] -= used
                        d_steps[r, u, v] -= used
                        if is_last:
                            d_last[v] -= used
                    for n in range(choices.gram_starts[context], choices.gram_starts[context + 1]):
                        d_grams[n] -= factor * rows[1, choices.gram_tags[n]]
