"""The rules in the training of segments, and the spans known to be wrong, as `training` has them for chains.

A span that is wrong with some label is one segment: it is listed, and its score of this label is -inf.
"""

from typing import Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..inference.semi_markov import SemiMarkov, list_spans
from ..types import Floats, SegmentClamp, SegmentScores
from .facts import Facts
from .incorrect_spans import Excluded
from .rule_set import SegmentRules
from .training import NOTHING, Group, RuledStructure


class RuledSegments(RuledStructure):
    """Semi-Markov chains, see `RuledStructure`. What is asked with a clamp – what the annotation allows – leaves out the
    segmentations with a wrong span too; without one, wrong spans have their costs.

    clamp (SegmentClamp): Segments that the annotation allows.
    longest (int32[S]): Tokens of the longest segment of each state.
    excluded (Excluded): Wrong spans, none of which is longer than the longest segment.
    """

    def __init__(
        self,
        rules: SegmentRules,
        facts: Facts,
        clamp: SegmentClamp,
        starts: NDArray[np.int64],
        doc_starts: NDArray[np.int64],
        longest: NDArray[np.int32],
        *,
        excluded: Excluded = NOTHING,
        threads: int = 1,
    ):
        self._longest = longest
        self._excluded = excluded
        self.wrong = excluded.wrong
        alone = np.zeros(len(doc_starts) - 1, dtype=bool)
        super().__init__(SemiMarkov(threads=threads), rules, facts, clamp, starts, doc_starts, alone)

    @property
    def signature(self) -> bytes:
        """Equal for the same rules and wrong spans."""
        return super().signature + np.concatenate(self.wrong).tobytes()

    def _free_scores(self, starts: NDArray[np.int64]) -> SegmentScores:
        size = len(self._longest)
        by_token = np.zeros((3, int(starts[-1]), size))
        lengths = np.where(np.arange(1, self._longest.max() + 1)[:, None] <= self._longest, 0.0, -np.inf)
        spans, transitions, ends = np.zeros((0, size)), np.zeros((size, size)), np.zeros((2, size))
        return SegmentScores(*by_token, lengths, spans, transitions, *ends, None, starts)

    def _answer(
        self, question: str, group: Group, scores: SegmentScores, clamp: Optional[SegmentClamp], weights: Floats
    ) -> tuple[Floats, SegmentScores]:
        wrong, _, costs = self._excluded
        has_price = clamp is not None or (costs is not None and costs.any())
        if not len(wrong.start) or not has_price:
            return super()._answer(question, group, scores, clamp, weights)
        listing, own, numbers = list_spans(scores, wrong.start, wrong.end)
        listing.spans[numbers, 1 + wrong.label] += -np.inf if clamp is not None else costs[1 + wrong.label]
        values, expected = super()._answer(question, group, listing, clamp, weights)
        total = arrays.zeros(listing)
        arrays.add(total, expected, group.tokens)
        return values, arrays.cut(
            total._replace(spans=total.spans[own], listed=scores.listed), group.tokens, group.starts
        )
