"""What a neural encoder says of segments: scores of their tokens, of the first and of the last, and the mean of those of all.

The mean is a score of the whole segment, so that all segments of up to `_MOST_TOKENS` are listed; a longer one has none.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..inference.semi_markov import add_spans
from ..losses.terms import every_span
from ..types import Floats, SpanList
from .emissions import Emissions
from .neural import EncoderRole
from .role import Sizes, check_equal
from .segments import SpanScores

_MOST_TOKENS = 24  # a list of all spans takes memory for each of them


class EncodedSegments(NamedTuple):
    emissions: Emissions
    spans: SpanScores  # whose scores of tokens are 0


class SegmentEncoderRole(EncoderRole):
    """The last layer gives each state four scores at each token."""

    gives = EncodedSegments
    kinds = 4
    learned = ("longest",)  # tokens of the longest segment with a mean

    def split(self, model: Model, scores: Floats, starts: NDArray[np.int64]) -> EncodedSegments:
        by_kind = scores.reshape(len(scores), self.kinds, scores.shape[1] // self.kinds)
        tokens, begins, ends, of_means = np.ascontiguousarray(by_kind.transpose(1, 0, 2))
        listed = every_span(starts, model.attrs["longest"])
        spans = SpanScores(begins, ends, np.zeros_like(tokens), means(of_means, listed), listed)
        return EncodedSegments(Emissions(tokens, None, starts), spans)

    def join(self, d_output: EncodedSegments) -> Floats:
        spans = d_output.spans
        d_means = scatter_means(spans.spans, spans.listed)
        parts = [d_output.emissions.scores, spans.begins, spans.ends, d_means]
        return np.concatenate(parts, axis=1)

    def measure(self, model: Model, sizes: Sizes) -> None:
        model.attrs["longest"] = min(_MOST_TOKENS, max(sizes.longest, model.attrs["longest"] or 1))

    def check(self, model: Model, n_states: int) -> None:
        super().check(model, n_states)
        longest = model.attrs["longest"]
        check_equal("longest segment with a mean", type(longest) is int and 1 <= longest <= _MOST_TOKENS, True)


def means(scores: Floats, listed: SpanList) -> Floats:
    """The mean of the scores of the tokens of each span: float64[N, S].

    scores (float64[T, S]), listed (SpanList): Every span of up to some length.
    """
    sums = np.vstack([np.zeros_like(scores[:1]), scores]).cumsum(axis=0) if len(scores) else scores
    begin = begins_of(listed)
    return (sums[begin + listed.lengths] - sums[begin]) / listed.lengths[:, np.newaxis]


def scatter_means(d_spans: Floats, listed: SpanList) -> Floats:
    """The way back: float64[T, S]."""
    shares = d_spans / listed.lengths[:, np.newaxis]
    changes, begin = np.zeros((len(listed.starts), d_spans.shape[1])), begins_of(listed)
    for length in range(1, 1 + int(listed.lengths.max(initial=0))):
        some = np.flatnonzero(listed.lengths == length)  # each begins at a token of its own
        changes[begin[some]] += shares[some]
        changes[begin[some] + length] -= shares[some]
    return changes[:-1].cumsum(axis=0)


def begins_of(listed: SpanList) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(listed.starts) - 1), np.diff(listed.starts))


def total_of_spans(parts: list[SpanScores], tokens: Floats) -> SpanScores:
    """The sum of what several layers say of the same segments, each of those it lists.

    tokens (float64[T, S]): For the shape, where there are none.
    """
    if not parts:
        none = np.zeros_like(tokens)
        return SpanScores(none, none, none, np.zeros((0, tokens.shape[1])), None)
    whole = parts[0]
    for part in parts[1:]:
        begin = begins_of(part.listed)
        listed, own, added = add_spans(whole.listed, begin, begin + part.listed.lengths, len(tokens))
        spans = np.zeros((len(listed.lengths), tokens.shape[1]))
        spans[own] += whole.spans
        spans[added] += part.spans
        sums = (a + b for a, b in zip(whole[:3], part[:3]))
        whole = SpanScores(*sums, spans, listed)
    return whole


def part_of_spans(d_spans: SpanScores, listed: SpanList) -> SpanScores:
    """The derivatives with respect to what one of them said, which listed some of the spans."""
    if listed is None or d_spans.listed is None or len(listed.lengths) == len(d_spans.listed.lengths):
        return d_spans
    begin = begins_of(listed)
    _, _, own = add_spans(d_spans.listed, begin, begin + listed.lengths, len(d_spans.tokens))
    return d_spans._replace(spans=d_spans.spans[own], listed=listed)
