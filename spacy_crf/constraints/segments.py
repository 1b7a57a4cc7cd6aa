"""Rules about segments: masks on tokens, ends, lengths and neighbours, and automata that read one event per segment.

Every segment begins a new span, so none ever continues; what the automata have to know is multiplied into the states of the
semi-Markov chain (`inference.segment_graph`). The best labelling is found lazily, as for chains.
"""

from collections.abc import Iterable
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import Joined, cut_document, join_sequences
from ..inference.semi_markov import SemiMarkov, segments_of
from ..inference.state_graph import GraphSegments
from ..schemes import SEGMENTS, Segments
from ..types import GOES_ON, Floats, SegmentClamp, SegmentScores, StateGraph
from .automaton import SpanTags
from .decoding import Decoded, Kept, Search, cut_words, documents_without, search_where_broken
from .facts import Facts
from .integer_program import Solution
from .rule_set import CompiledRules, ends
from .rules import Constraints, Rule
from .segment_program import solve_segments

# Transitions between the states of a graph that may be written out (128 MiB); beyond, the solver is faster
_MOST_TRANSITIONS = 1 << 24


class SegmentRules(CompiledRules):
    """The rules of a component whose states are ``O`` and the labels, see `CompiledRules`.

    constraints (Constraints): The rules, and how they are enforced.
    labels (list[str]): The labels.
    """

    def __init__(self, constraints: Constraints, labels: list[str]):
        size = 1 + len(labels)
        tags = SpanTags(labels, np.arange(size) - 1, np.zeros((size, size), dtype=bool))
        super().__init__(constraints, tags, SEGMENTS.transition_mask(len(labels)))

    @staticmethod
    def is_local(rule: Rule) -> bool:
        return rule.local or rule.bounds_length

    def _inference(self, graph: StateGraph) -> GraphSegments:
        return GraphSegments(graph)

    def _search(self, joined: Joined, stack: tuple, most: int) -> tuple[int, NDArray[np.int32]]:
        structure = SemiMarkov()
        return structure.search(structure.prepare(joined.scores, joined.clamp), self.tags.events, stack, most)

    def apply(self, scores: SegmentScores, facts: Facts, kept: Optional[Iterable[int]] = None) -> SegmentScores:
        """Scores with the rules without a memory: -inf where a hard one is broken, less where a soft one is.

        scores (SegmentScores): Potentials of B sequences; they stay as they are.
        facts (Facts): What patterns and functions say of the tokens.
        kept (Iterable[int]): Places of the rules that hold, all of them by default.
        """
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

    def scores_of_path(
        self, states: NDArray[np.int32], opening: NDArray[np.bool_], doc_starts: NDArray[np.int64]
    ) -> Floats:
        """What each automaton says of each document's segmentation: float64[D, N].

        states (int32[T]): The path; where there is none it counts as ``O``.
        opening (bool[T]): First tokens of sequences.
        """
        begins = states != GOES_ON
        starts = np.append(0, np.cumsum(begins))[doc_starts]
        return self.scores_of(np.maximum(states[begins], 0), opening[begins], starts)


def _priced(scores: SegmentScores, part: str, broken: Optional[NDArray[np.bool_]], rule: Rule) -> SegmentScores:
    if broken is None or not broken.any():
        return scores
    return scores._replace(**{part: getattr(scores, part) + np.where(broken, rule.price, 0.0)})


class SegmentDocument(NamedTuple):
    """One document of a batch: scores without the rules, and what the rules need to know."""

    scores: SegmentScores
    clamp: Optional[SegmentClamp]
    facts: Facts
    words: NDArray[np.uint64]  # [T]


def decode(
    rules: SegmentRules,
    scores: SegmentScores,
    doc_starts: NDArray[np.int64],
    facts: Facts,
    words: Optional[NDArray[np.uint64]] = None,
    *,
    clamp: Optional[SegmentClamp] = None,
    kept: Optional[Kept] = None,
) -> Decoded:
    """Best segmentations of D documents.

    scores (SegmentScores): Potentials, without the rules.
    doc_starts (int64[D + 1]): Where the documents start; each begins a sequence.
    facts (Facts): What patterns and functions say of the tokens.
    words (uint64[T]): The words, for rules about texts.
    clamp (SegmentClamp): Segments still allowed, or None.
    kept (Kept): The rules that hold; by default all that can be kept, in their order.
    RETURNS (Decoded): Its tags are paths of segments.
    """
    places = None if kept is None else kept.places
    path = SemiMarkov().viterbi(rules.apply(scores, facts, places), clamp=clamp)
    opening, _ = ends(scores.starts, len(path.states))
    totals = rules.scores_of_path(path.states, opening, doc_starts)
    broken = documents_without(path.scores, scores.starts, doc_starts) | rules.broken(totals, places)

    def search(tokens: slice) -> SegmentSearch:
        of_doc, of_clamp = cut_document(scores, clamp, tokens)
        document = SegmentDocument(of_doc, of_clamp, facts.at(tokens), cut_words(words, tokens))
        return SegmentSearch(rules, document)

    return search_where_broken(rules, path.states, doc_starts, broken, search, kept)


class SegmentSearch(Search):
    """The search for the best segmentation of a document."""

    def _masked(self, kept: set[int]) -> Joined:
        document = self._document
        return join_sequences(self._rules.apply(document.scores, document.facts, kept), document.clamp)

    def _viterbi(self, masked: Joined, structure: Optional[GraphSegments]) -> Optional[tuple[NDArray[np.int32], float]]:
        if structure is not None:
            matrices = len(masked.scores.tokens) if masked.scores.transitions.ndim == 3 else 1
            if matrices * len(structure.graph.tag_of) ** 2 > _MOST_TRANSITIONS:
                return None
        path = (structure or SemiMarkov()).viterbi(masked.scores, clamp=masked.clamp)
        return path.states, float(path.scores[0])

    def _program(self, masked: Joined, automata, occurrences, seconds: float) -> Solution:
        return solve_segments(masked, self._rules.tags, automata, occurrences, time_limit=seconds)

    def _totals(self, tags: NDArray[np.int32]) -> Floats:
        opening, _ = ends(self._document.scores.starts, len(tags))
        return self._rules.scores_of_path(tags, opening, np.array([0, len(tags)]))[0]

    def _segments(self, tags: NDArray[np.int32]) -> Segments:
        begin, end, state = segments_of(tags)
        named = state > 0
        return Segments(begin[named], end[named], state[named].astype(np.int64) - 1)
