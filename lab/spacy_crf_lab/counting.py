"""Transitions from counts, by deleted interpolation, as TnT computes them (Brants 2000)."""

from typing import NamedTuple

import numpy as np

from spacy_crf.inference.pruned_lattice import key_of, tags_of_keys
from spacy_crf.schemes import TransitionMask
from spacy_crf.types import Bools, Floats, Ints

_TINY = float(np.finfo(np.float32).tiny)


class Counts(NamedTuple):
    """Numbers of sequences and tokens with certain tags, which may be expected numbers."""

    steps: Floats  # [S + 1, S + 1] of a tag and the next one; the last row is the start of a sequence, the last column its end
    keys: Ints  # [G] triples of tags, of which the first may be the start, see `Orders`
    grams: Floats  # [G] of these triples

    @classmethod
    def none(cls, size: int, keys: Ints) -> "Counts":
        """Counts of nothing yet, for S tags."""
        return cls(np.zeros((size + 1, size + 1)), keys, np.zeros(len(keys)))

    def add(self, tags: Ints, starts: Ints, weights: Floats) -> None:
        """Count the tags of sequences (int64[T], -1 for unknown ones), where each token counts as often as its weight says."""
        size = len(self.steps) - 1
        begin = starts[:-1][starts[:-1] < starts[1:]]
        end = starts[1:][starts[:-1] < starts[1:]] - 1
        before = np.append(-1, tags[:-1])
        before[begin] = size
        # Tokens t - 1 and t - 2, the start of the sequence where it begins
        earlier = np.append(-1, before[:-1])
        earlier[begin] = -1
        of_ends = tags[end], np.full(len(end), size)
        for u, v, weight in ((before, tags, weights), (*of_ends, weights[end])):
            known = (u >= 0) & (v >= 0)
            np.add.at(self.steps, (u[known], v[known]), weight[known])
        if len(self.keys):
            known = (earlier >= 0) & (before >= 0) & (tags >= 0)
            keys = key_of((earlier[known], before[known], tags[known]), size)
            np.add.at(self.grams, np.searchsorted(self.keys, keys), weights[known])


class StepScores(NamedTuple):
    """Logarithms of probabilities of transitions, without the logarithm of the probability of the tag alone."""

    transitions: Floats  # [S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    grams: Floats  # [G] what a triple adds to the transition between its last tags


def shares_of_tags(counts: Counts, smoothing: float) -> Floats:
    """Probability of each tag alone: float64[S]."""
    of_tags = counts.steps[:, :-1].sum(axis=0) + smoothing
    return of_tags / of_tags.sum()


def step_scores(counts: Counts, allowed: TransitionMask, smoothing: float) -> StepScores:
    """Scores of transitions by deleted interpolation.

        q(v | w, u) = l3 c(w, u, v) / c(w, u) + l2 c(u, v) / c(u) + l1 p(v)        (Brants 2000, eq. 6)

    where p(v) is shared out among the tags that the scheme allows after u. Before each transition, the sequence ends with a
    probability that depends on u alone. Without triples, l3 = 0.
    """
    steps = counts.steps[:, :-1]
    size = len(counts.steps) - 1
    of_tags = shares_of_tags(counts, smoothing)
    # p(v): tags that the scheme forbids after u get nothing
    alone = of_tags * may_follow(allowed)
    alone = shares(alone, alone.sum(axis=1, keepdims=True))
    after = steps.sum(axis=1)
    w, u, v = tags_of_keys(counts.keys, size)[:, 1:].T
    pairs = np.zeros((size + 1, size))
    np.add.at(pairs, (w, u), counts.grams)
    l1, l2, l3 = _interpolation(steps, (w, u, v), counts.grams, pairs)
    lower = l1 * alone + l2 * shares(steps, after[:, np.newaxis])
    ends = (counts.steps[:-1, -1] + smoothing) / (counts.steps[:-1].sum(axis=1) + 2.0 * smoothing)
    ends = np.where(allowed.last, np.where(allowed.transitions.any(axis=1), ends, 1.0), 0.0)
    # log(q(v | w, u) / q(v | u)), which is added to the transition between the last two tags
    grams = np.log1p(shares(l3 * shares(counts.grams, pairs[w, u]), lower[u, v]))
    lower[-1] += l3 * shares(steps[-1], after[-1])  # nothing but the start is before the start
    of_steps = log(lower) - log(of_tags)
    return StepScores(of_steps[:-1] + log(1.0 - ends)[:, np.newaxis], of_steps[-1], log(ends), grams)


def may_follow(allowed: TransitionMask) -> Bools:
    """Tags that may follow each tag, and the start: bool[S + 1, S]."""
    return np.vstack([allowed.transitions, allowed.first])


def log(values: Floats) -> Floats:
    """Logarithms, finite ones for zeros: what is impossible has no weight, and other zeros come from rounding."""
    return np.log(np.maximum(values, _TINY))


def shares(parts: Floats, of: Floats) -> Floats:
    """parts / of, and 0 for 0 / 0."""
    return np.divide(parts, of, out=np.zeros(np.broadcast(parts, of).shape), where=of > 0.0)


def _interpolation(steps: Floats, grams: tuple[Ints, Ints, Ints], n_grams: Floats, pairs: Floats) -> Floats:
    """The weights l1, l2, l3: each event votes, as often as it occurs, for the estimate that predicts it best when one
    occurrence is left out (Brants 2000, figure 1). Each estimate begins with one vote, so that no event becomes impossible.

    grams (int64[G] each), n_grams (float64[G]): Triples and their counts; without any, pairs vote. pairs (float64[S + 1, S]):
        Counts of the pairs that begin triples.
    """
    after = steps.sum(axis=1)
    of_tags = steps.sum(axis=0)
    if len(n_grams):
        w, u, v = grams
        votes = n_grams
        estimates = [(n_grams, pairs[w, u])]
    else:
        u, v = np.nonzero(steps)
        votes = steps[u, v]
        estimates = []
    estimates = [(of_tags[v], np.full(len(v), of_tags.sum())), (steps[u, v], after[u]), *estimates]
    # [estimates, events] each estimate as if the event had occurred once less
    ratios = [shares(np.maximum(n - 1.0, 0.0), np.maximum(total - 1.0, 0.0)) for n, total in estimates]
    won = np.bincount(np.argmax(ratios, axis=0), votes, minlength=3) + (np.arange(3) < len(estimates))
    return won / won.sum()
