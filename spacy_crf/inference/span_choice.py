"""Which of the likely spans to take together, where no two of them may overlap.

A set of spans is worth the sum of their probabilities, less a price for each of them: a span that is dearer than it is probable
is not taken. With the price at one half that is the set with the fewest mistakes in the mean; the lower it is, the more is found,
and the more of what is found is wrong. Among all ways to choose spans by their probabilities, one of these prices has the best
expected F1, or any other F (half of the F1 that it reaches; Lipton, Elkan & Naryanaswamy 2014, for labels that exclude nothing).
"""

import numpy as np
from numpy.typing import NDArray

from ..schemes import Segments
from ..types import Floats, SegmentScores
from .semi_markov import add_spans
from .structure import LikelySpans

LEAST = 1e-3  # what is less probable is not looked at
_SURE = 1.0 - 1e-6  # nothing is dearer: what is certain is taken
_ROUNDING = 1e-9  # what is as probable as it is dear is taken
_UNLISTED = -2.0  # of spans that are not among the likely ones: less than any of these, but better than no labelling


def prices_of(least: Floats) -> Floats:
    """The price of a span of each label, from the least probability with which it is to be taken: float64[L]."""
    return np.clip(least, LEAST, _SURE)


def worth(likely: LikelySpans, prices: Floats, starts: NDArray[np.int64], *, may_touch: bool = True) -> SegmentScores:
    """Scores of segments whose best labelling is the set of spans that is worth most: state 0 is outside, state 1 + l is label l.

    likely (LikelySpans): All spans that are at least as probable as they are dear.
    prices (float64[L]): Of a span of each label.
    starts (int64[B + 1]): Of the sequences.
    may_touch (bool): Whether a span may begin where another one of its label ends.
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


def probabilities_of(chosen: Segments, likely: LikelySpans) -> NDArray[np.float64]:
    """The probability of each span that was taken (float64[N]), 0 if it is none of the likely ones."""
    columns = [np.concatenate(pair).astype(np.int64) for pair in zip(likely.segments, chosen)]
    _, number = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    number = number.ravel()
    known = len(likely.probabilities)
    found = np.zeros(len(number))
    found[number[:known]] = likely.probabilities
    return found[number[known:]]
