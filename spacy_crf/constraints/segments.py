"""Rules about segments: masks on tokens, ends, lengths and neighbours, and automata that read one event per segment.

Every segment begins a new span, so none ever continues; what the automata have to know is multiplied into the states of the
semi-Markov chain (`inference.segment_graph`). The best labelling is found lazily, as for chains.
"""

from collections.abc import Iterable
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.semi_markov import SemiMarkov, segments_of
from ..inference.state_graph import GraphSegments
from ..schemes import SEGMENTS, Segments
from ..types import GOES_ON, Floats, SegmentScores, StateGraph
from .automaton import SpanTags
from .facts import Facts
from .readers import SegmentTextReader
from .rule_set import CompiledRules, ends
from .rules import Constraints, Rule


class SegmentRules(CompiledRules):
    """The rules of a component whose states are ``O`` and the labels, see `CompiledRules`.

    constraints (Constraints): The rules, and how they are enforced.
    labels (list[str]): The labels.
    """

    structure, dense = SemiMarkov(), True
    text_reader = SegmentTextReader

    def __init__(self, constraints: Constraints, labels: list[str]):
        size = 1 + len(labels)
        tags = SpanTags(labels, np.arange(size) - 1, np.zeros((size, size), dtype=bool))
        super().__init__(constraints, tags, SEGMENTS.transition_mask(len(labels)))

    @staticmethod
    def is_local(rule: Rule) -> bool:
        return rule.local or rule.bounds_length

    def _inference(self, graph: StateGraph) -> GraphSegments:
        return GraphSegments(graph)

    def apply(self, scores: SegmentScores, facts: Facts, kept: Optional[Iterable[int]] = None) -> SegmentScores:
        opening, closing = ends(scores.starts, len(scores.tokens))
        for rule in self.local:
            if kept is not None and rule.place not in kept:
                continue
            if rule.bounds_length:
                scores = _priced(scores, "lengths", rule.broken_lengths(self.tags, len(scores.lengths)), rule)
                continue
            broken = self._broken(rule, facts, opening, closing)
            if broken.on_tokens:
                priced = getattr(scores, rule.segment_scores).copy()
                broken.add_price(priced, rule.price)
                scores = scores._replace(**{rule.segment_scores: priced})
            scores = _priced(scores, "transitions", broken.transitions, rule)
            scores = _priced(scores, "first", broken.first, rule)
        return scores

    def totals(self, states: NDArray[np.int32], starts: NDArray[np.int64], doc_starts: NDArray[np.int64]) -> Floats:
        begins, (opening, _) = states != GOES_ON, ends(starts, len(states))
        of_docs = np.append(0, np.cumsum(begins))[doc_starts]
        return self._scores_of(np.maximum(states[begins], 0), opening[begins], of_docs)

    def segments(self, states: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        begin, end, state = segments_of(states)
        named = state > 0
        return Segments(begin[named], end[named], state[named].astype(np.int64) - 1)


def _priced(scores: SegmentScores, part: str, broken: Optional[NDArray[np.bool_]], rule: Rule) -> SegmentScores:
    if broken is None or not broken.any():
        return scores
    return scores._replace(**{part: getattr(scores, part) + np.where(broken, rule.price, 0.0)})
