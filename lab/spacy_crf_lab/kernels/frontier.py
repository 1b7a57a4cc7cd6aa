"""Sums over a single sequence with ties inside it, from its first token to its last.

A tie is open from its first end to its second one. While it is open, there is a sum for each label of its first end, in
addition to each state. The frontier is the labels of all tokens at which open ties begin.

    sums[t][a, y] = own[t, y] · prod over ties that end at t of table[a's label of the other end, y's label]
                    · sum_i before[a, i] · step[i, y]
    before[a', y] = sum of sums[t][a, y] over the a that a' continues

a' continues a where it has the same labels, but for tokens that are open no longer, and y's label if t opens a tie.

All in the linear domain, scaled at each token. T tokens, S states, L labels, A = L ** (open tokens) frontiers.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import helper, kernel
from spacy_crf.types import Floats

_LEAST = 1e-100  # least ratio of the largest sums of two neighbouring tokens; smaller sums are not trusted


class Factors(NamedTuple):
    """Scores, each less a maximum that is added to the log partition, as exponentials."""

    own: Floats  # [T, S]
    steps: Floats  # [1 or T, S, S]
    tables: Floats  # [K, L, L]
    label_of: NDArray[np.int64]  # [S]


class Frontier(NamedTuple):
    """Which ties are open at each token."""

    n_open: NDArray[np.int64]  # [T] tokens whose labels are known at a token, the one opened last in the last place
    closes: NDArray[np.bool_]  # [T, W] which of these places are open no longer behind the token
    opens: NDArray[np.bool_]  # [T] whether the token's own label belongs to the frontier behind it
    ties: NDArray[np.int64]  # [T + 1] the ties that end at token t are ties[t]:ties[t + 1]
    place: NDArray[np.int64]  # [E] of the other end
    kind: NDArray[np.int64]  # [E]
    is_turned: NDArray[np.bool_]  # [E] whether the token is the source
    starts: NDArray[np.int64]  # [T + 1] rows of the sums of each token: A of them


@helper
def _label(a, place, n_open, n_labels):
    """The label in a place of a frontier."""
    return (a // n_labels ** (n_open - 1 - place)) % n_labels


@helper
def _continued(frontier, t, n_labels, into):
    """Set into (int64[A]) to the frontiers behind a token, without its own label."""
    n_open = frontier.n_open[t]
    for a in range(n_labels**n_open):
        # Numbers in base L: a digit for each open token, without those that are closed
        left = 0
        for place in range(n_open):
            if not frontier.closes[t, place]:
                left = left * n_labels + _label(a, place, n_open, n_labels)
        into[a] = left


@helper
def _weigh(factors, frontier, t, scale, out):
    """Set out (float64[A, S]) to the factors of a token and of the ties that end at it, divided by a scale."""
    own, _, tables, label_of = factors
    n_labels = tables.shape[1]
    n_open = frontier.n_open[t]
    for a in range(len(out)):
        for y in range(out.shape[1]):
            out[a, y] = own[t, y] / scale
    for e in range(frontier.ties[t], frontier.ties[t + 1]):
        table = tables[frontier.kind[e]]
        for a in range(len(out)):
            other = _label(a, frontier.place[e], n_open, n_labels)
            for y in range(out.shape[1]):
                label = label_of[y]
                out[a, y] *= table[label, other] if frontier.is_turned[e] else table[other, label]


@helper
def _behind(factors, frontier, t, sums, into, before):
    """Set before (float64[A', S]) to the sums behind a token."""
    label_of = factors.label_of
    n_labels = factors.tables.shape[1]
    opens = frontier.opens[t]
    _continued(frontier, t, n_labels, into)
    before[:] = 0.0
    for a in range(len(sums)):
        for y in range(sums.shape[1]):
            before[into[a] * n_labels + label_of[y] if opens else into[a], y] += sums[a, y]


@kernel
def sum_up(factors, frontier, weight, d_own, d_steps, d_tables):
    """Compute the log partition of the factors, and add its derivative times a weight, unless d_own has no rows.

    RETURNS (float): The log partition; NaN if numbers are too small to be trusted.
    """
    own, steps, tables, label_of = factors
    starts = frontier.starts
    n_tokens, size = own.shape
    n_labels = tables.shape[1]
    most = n_labels ** (frontier.n_open.max() + 1)
    sums = np.empty((starts[n_tokens], size))
    scales = np.ones(n_tokens)
    log_z = 0.0
    into = np.empty(most, dtype=np.int64)
    before = np.zeros((most, size))
    factor = np.empty((most, size))
    for t in range(n_tokens):
        here = sums[starts[t] : starts[t + 1]]
        k = t if len(steps) > 1 else 0
        _weigh(factors, frontier, t, 1.0, factor[: len(here)])
        # sums[t][a, y] = sum_i before[a, i] · step[i, y], then times the factors of the token and its ties
        here[:] = 1.0 if t == 0 else 0.0
        for a in range(len(here) if t > 0 else 0):
            for i in range(size):
                mass = before[a, i]
                if mass > 0.0:
                    for y in range(size):
                        here[a, y] += mass * steps[k, i, y]
        here *= factor[: len(here)]
        # Each token's sums have the maximum 1; the logarithms of the scales make up the log partition
        scales[t] = here.max()
        if not scales[t] > _LEAST:
            return np.nan
        here /= scales[t]
        log_z += np.log(scales[t])
        if t < n_tokens - 1:
            _behind(factors, frontier, t, here, into, before[: starts[t + 2] - starts[t + 1]])
    total = sums[starts[n_tokens - 1] :].sum()
    log_z += np.log(total)
    if not len(d_own):
        return log_z
    # d_sums[a, y]: the derivative of the log partition with respect to sums[t][a, y]
    d_sums = np.full((most, size), 1.0 / total)
    others = np.empty((most, size))
    for t in range(n_tokens - 1, -1, -1):
        here = sums[starts[t] : starts[t + 1]]
        n_open = frontier.n_open[t]
        for a in range(len(here)):
            for y in range(size):
                d_own[t, y] += weight * here[a, y] * d_sums[a, y]
        for e in range(frontier.ties[t], frontier.ties[t + 1]):
            for a in range(len(here)):
                other = _label(a, frontier.place[e], n_open, n_labels)
                for y in range(size):
                    label = label_of[y]
                    # P(frontier a, state y) = sums · derivative: the label of the other end is a digit of a
                    p = weight * here[a, y] * d_sums[a, y]
                    if frontier.is_turned[e]:
                        d_tables[frontier.kind[e], label, other] += p
                    else:
                        d_tables[frontier.kind[e], other, label] += p
        if t == 0:
            break
        k = t if len(steps) > 1 else 0
        last = sums[starts[t - 1] : starts[t]]
        # others[a, i] = sum_y step[i, y] · factor[a, y] · d_sums[a, y], the derivative by before[a, i]
        _weigh(factors, frontier, t, scales[t], factor[: len(here)])
        factor[: len(here)] *= d_sums[: len(here)]
        _behind(factors, frontier, t - 1, last, into, before[: len(here)])
        for a in range(len(here)):
            for i in range(size):
                total = 0.0
                for y in range(size):
                    total += steps[k, i, y] * factor[a, y]
                others[a, i] = total
                mass = weight * before[a, i]
                if mass > 0.0:
                    for y in range(size):
                        d_steps[k, i, y] += mass * steps[k, i, y] * factor[a, y]
        opens = frontier.opens[t - 1]
        for a in range(len(last)):
            for y in range(size):
                # before[a', y] is a sum over frontiers a that continue as a': each has its derivative
                d_sums[a, y] = others[into[a] * n_labels + label_of[y] if opens else into[a], y]
    return log_z
