"""Chooses among likely spans, no two of which may overlap.

A set of spans is worth the sum of their probabilities less a price for each span, so the set never takes a span whose price
exceeds its probability. With a price of one half the set minimises the expected number of mistakes. A lower price finds more
spans, and more wrong ones. The expected F1 is highest at some price, and so is any other F score. For F1 and labels that do not
exclude each other, that price is half of the highest expected F1 (Lipton, Elkan & Naryanaswamy 2014).
"""

import numpy as np

from ..schemes import Segments
from ..types import Floats, Ints, SegmentScores
from .semi_markov import add_spans

LEAST = 1e-3  # less probable spans are ignored
_SURE = 1.0 - 1e-6  # upper bound of prices: certain spans are always taken
_ROUNDING = 1e-9  # a span whose probability equals its price is taken
_UNLISTED = -1e6  # gain of spans that are not candidates: such a span is chosen only where no other set keeps the rules


def prices_of(least: Floats) -> Floats:
    """The price of a span of each label, which a choice subtracts from the probability of the span: float64[L].

    least (float64[L]): The least probability at which a span of each label is chosen.
    """
    return np.clip(least, LEAST, _SURE)


def worth(candidates: Segments, gains: Floats, n_labels: int, starts: Ints, *, may_touch: bool = True) -> SegmentScores:
    """Scores of segments whose best labelling is the set of candidates with the highest sum of gains. State 0 is outside of
    spans, state 1 + l is label l.

    candidates (Segments): N different spans.
    gains (float64[N]): Gain of each span: its probability less the price of its label.
    n_labels (int): L.
    starts (int64[B + 1]): Where the sequences start.
    may_touch (bool): Whether a span may begin where another span of its label ends.
    """
    begin, end, label = candidates
    n_tokens = int(starts[-1])
    size = 1 + n_labels
    listed, _, number = add_spans(None, begin, end, n_tokens)
    # Any span begins with a penalty, for which the score of a candidate makes up
    begins = np.full((n_tokens, size), _UNLISTED)
    begins[:, 0] = 0.0
    spans = np.zeros((len(listed.lengths), size))
    spans[number, 1 + label] = gains + _ROUNDING - _UNLISTED
    lengths = np.zeros((max(1, int(listed.lengths.max(initial=1))), size))
    lengths[1:, 0] = -np.inf  # segments outside of spans are single tokens
    transitions = np.zeros((size, size))
    if not may_touch:
        transitions[np.arange(1, size), np.arange(1, size)] = -np.inf
    return SegmentScores(
        tokens=np.zeros((n_tokens, size)),
        begins=begins,
        ends=np.zeros((n_tokens, size)),
        lengths=lengths,
        spans=spans,
        transitions=transitions,
        first=np.zeros(size),
        last=np.zeros(size),
        listed=listed,
        starts=np.asarray(starts),
    )


def places_of(chosen: Segments, candidates: Segments) -> Ints:
    """The index of each chosen span among the candidates, -1 for spans that are no candidates: int64[N].

    chosen (Segments): N spans.
    candidates (Segments): The candidates.
    """
    # Equal spans get equal numbers
    columns = [np.concatenate(pair).astype(np.int64) for pair in zip(candidates, chosen)]
    _, number = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    number = number.ravel()
    n_candidates = len(candidates.start)
    index_of_number = np.full(len(number), -1)
    index_of_number[number[:n_candidates]] = np.arange(n_candidates)
    return index_of_number[number[n_candidates:]]
