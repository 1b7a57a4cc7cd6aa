"""The rules in the training of segments, as `training` has them for chains."""

from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.segment_graph import expand, join_segment_sequences, split_segment_expectations
from ..inference.semi_markov import SemiMarkov
from ..types import GOES_ON, Floats, Path, SegmentClamp, SegmentScores, SpanList
from .rule_set import Facts
from .segments import SegmentRules
from .training import Group, RuledStructure, States, ranges


class RuledSegments(RuledStructure):
    """Semi-Markov chains, see `RuledStructure`.

    clamp (SegmentClamp): Segments that the annotation allows.
    longest (int32[S]): Tokens of the longest segment of each state.
    """

    _by_token = ("tokens", "begins", "ends")

    def __init__(
        self,
        rules: SegmentRules,
        facts: Facts,
        clamp: SegmentClamp,
        starts: NDArray[np.int64],
        doc_starts: NDArray[np.int64],
        longest: NDArray[np.int32],
        *,
        threads: int = 1,
    ):
        self._longest = longest
        alone = np.zeros(len(doc_starts) - 1, dtype=bool)
        super().__init__(SemiMarkov(threads=threads), rules, facts, clamp, starts, doc_starts, alone)

    def _free_scores(self, starts: NDArray[np.int64]) -> SegmentScores:
        size = len(self._longest)
        by_token = np.zeros((3, int(starts[-1]), size))
        lengths = np.where(np.arange(1, self._longest.max() + 1)[:, None] <= self._longest, 0.0, -np.inf)
        spans, transitions, ends = np.zeros((0, size)), np.zeros((size, size)), np.zeros((2, size))
        return SegmentScores(*by_token, lengths, spans, transitions, *ends, None, starts)

    def _pick_scores(self, group: Group, scores: SegmentScores) -> SegmentScores:
        part, listed = super()._pick_scores(group, scores), scores.listed
        if listed is None:
            return part
        chosen = _spans_of(listed, group.tokens)
        of_tokens = np.append(0, np.cumsum(np.diff(listed.starts)[group.tokens])).astype(np.int64)
        return part._replace(listed=SpanList(of_tokens, listed.lengths[chosen]), spans=scores.spans[chosen])

    def _pick_clamp(self, group: Group, clamp: SegmentClamp) -> SegmentClamp:
        return SegmentClamp(*(array[group.tokens] for array in clamp))

    def _by_document(
        self, question: str, group: Group, scores: SegmentScores, clamp: Optional[SegmentClamp], weights: Floats
    ) -> tuple[Floats, SegmentScores]:
        expanded = expand(join_segment_sequences(scores, clamp, group.doc_starts), self._rules.graph(group.automata))
        values, expected = getattr(self._structure, question)(expanded.scores, clamp=expanded.clamp, weights=weights)
        return values, split_segment_expectations(expanded.tokens, expected, expanded.state_of, scores)

    def _add(self, total: SegmentScores, group: Group, expected: SegmentScores) -> None:
        super()._add(total, group, expected)
        total.lengths[:] += expected.lengths
        if total.listed is not None:
            total.spans[_spans_of(total.listed, group.tokens)] = expected.spans

    def path_score(self, scores: SegmentScores, states: States) -> Floats:
        """Scores of segmentations, -inf for those that break a rule."""
        begins = states != GOES_ON
        first = np.maximum.accumulate(np.where(begins, np.arange(len(states)), 0))
        only = SegmentClamp(states[first][:, np.newaxis] == np.arange(len(scores.first)), begins, begins)
        return self.viterbi_counts(scores, clamp=only)[0]

    def viterbi(self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None) -> Path:
        """Best segmentations that keep the rules."""
        values, used = self.viterbi_counts(scores, clamp=clamp)
        states = np.full(len(scores.tokens), -1, dtype=np.int32)
        states[used.tokens.max(axis=1, initial=0.0) > 0.0] = GOES_ON
        begins = used.begins.max(axis=1, initial=0.0) > 0.0
        states[begins] = used.begins.argmax(axis=1)[begins]
        return Path(states, values)


def _spans_of(listed: SpanList, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the spans that begin at some tokens."""
    return ranges(listed.starts[tokens], listed.starts[tokens + 1])
