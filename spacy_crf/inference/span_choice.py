"""Chooses among likely spans, no two of which may overlap.

A set of spans is worth the sum of their probabilities less a price for each span, so the set never takes a span whose price
exceeds its probability. With a price of one half the set minimises the expected number of mistakes. A lower price finds more
spans, and more wrong ones. Among all choices by probability, some price maximises the expected F1, or any other F (half of the F1
that it reaches; Lipton, Elkan & Naryanaswamy 2014, for labels that do not exclude each other).
"""

import numpy as np

from ..schemes import Segments
from ..types import Floats, Ints, SegmentScores
from .semi_markov import add_spans
from .structure import LikelySpans

LEAST = 1e-3  # less probable spans are ignored
_SURE = 1.0 - 1e-6  # upper bound of prices: certain spans are always taken
_ROUNDING = 1e-9  # a span whose probability equals its price is taken
_UNLISTED = -2.0  # score of spans that are not likely: below any likely span, but better than no labelling


def prices_of(least: Floats) -> Floats:
    """Price of a span of each label (float64[L]), by the least probability at which a span of the label is taken (float64[L])."""
    return np.clip(least, LEAST, _SURE)


def worth(likely: LikelySpans, prices: Floats, starts: Ints, *, may_touch: bool = True) -> SegmentScores:
    """Scores of segments whose best labelling is the most valuable set of spans: state 0 is outside, state 1 + l is label l.

    likely (LikelySpans): All spans whose probability reaches their price.
    prices (float64[L]): Price of a span of each label.
    starts (int64[B + 1]): Where the sequences start.
    may_touch (bool): Whether a span may begin where another span of its label ends.
    """
    (begin, end, label), probabilities = likely
    n_tokens, size = int(starts[-1]), 1 + len(prices)
    listed, _, number = add_spans(None, begin, end, n_tokens)
    begins, spans = np.full((n_tokens, size), _UNLISTED), np.zeros((len(listed.lengths), size))
    begins[:, 0] = 0.0
    spans[number, 1 + label] = probabilities - prices[label] + _ROUNDING - _UNLISTED
    lengths = np.zeros((max(1, int(listed.lengths.max(initial=1))), size))
    lengths[1:, 0] = -np.inf  # outside are single tokens
    transitions = np.zeros((size, size))
    if not may_touch:
        transitions[np.arange(1, size), np.arange(1, size)] = -np.inf
    none, ends = np.zeros((n_tokens, size)), np.zeros(size)
    return SegmentScores(none, begins, none, lengths, spans, transitions, ends, ends, listed, np.asarray(starts))


def probabilities_of(chosen: Segments, likely: LikelySpans) -> Floats:
    """Probability of each of N chosen spans, 0 if the span is not among the likely ones: float64[N]."""
    columns = [np.concatenate(pair).astype(np.int64) for pair in zip(likely.segments, chosen)]
    _, number = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    number = number.ravel()
    known = len(likely.probabilities)
    found = np.zeros(len(number))
    found[number[:known]] = likely.probabilities
    return found[number[known:]]
