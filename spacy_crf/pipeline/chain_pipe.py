"""What components with one tag per token have in common: how tags spell spans, and rules in training."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..inference.linear_chain import LinearChain
from ..inference.spans import segments_of
from ..inference.structure import SpanStates
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats
from .crf_pipe import Supervision
from .ruled_pipe import RuledPipe

if TYPE_CHECKING:
    from ..constraints.facts import Facts
    from ..constraints.rule_set import RuleSet
    from ..constraints.rules import Constraints
    from .decoding import Decoding


class ChainPipe(RuledPipe):
    """Base of the components whose model gives ``ChainScores``. Their states are the tags, and clamps are bool[T, S]."""

    takes = ChainScores

    # Whether most sequences of the latest batch had spans. Then the posterior of all of them comes first, and the best path is
    # found by it; otherwise the best path, and the posterior of those that have spans. Both give the same.
    _is_dense = True

    def span_states(self) -> SpanStates:
        """How tags spell spans."""
        raise NotImplementedError

    def segments(self, tags: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        opening = np.zeros(len(tags), dtype=bool)
        opening[starts[:-1][starts[:-1] < len(tags)]] = True
        return segments_of(tags, self.span_states(), opening)

    def allowed_states(self, clamp: Clamp) -> Clamp:
        return clamp

    def label_of_states(self) -> NDArray[np.int64]:
        spans = self.span_states()
        return np.maximum((np.arange(len(self.tags())) - spans.offset) // spans.width, -1)

    @property
    def outside(self) -> int:
        return self.span_states().offset - 1  # 0 where there is O

    def without_steps(self, scores: ChainScores, steps: NDArray[np.int64]) -> ChainScores:
        label, continues = self.label_of_states(), self.span_states().continues
        shape = (len(scores.emissions), *continues.shape)
        transitions = np.array(np.broadcast_to(scores.transitions, shape))
        for token, to_label, goes_on in steps.tolist():
            transitions[token, (continues == goes_on) & (label == to_label)] = -np.inf
        return scores._replace(transitions=transitions)

    def best_tags(self, scores: ChainScores, clamp: Any) -> NDArray[np.int32]:
        return self.model.attrs["role"].structure.viterbi(scores, clamp=clamp).states

    def best_with_probabilities(self, scores: ChainScores, clamp: Any) -> tuple[NDArray[np.int32], Floats]:
        if self._is_dense:
            tags, (segments, probabilities) = LinearChain().best_path(scores, self.span_states(), clamp=clamp)
        else:
            tags = self.best_tags(scores, clamp)
            segments = self.segments(tags, scores.starts)
            probabilities = LinearChain().span_probabilities(scores, self.span_states(), segments, clamp=clamp)
        with_spans = np.unique(np.searchsorted(scores.starts, segments.start, side="right"))
        self._is_dense = 2 * len(with_spans) >= len(scores.starts) - 1
        return tags, probabilities

    def compile_rules(self, constraints: "Constraints") -> "RuleSet":
        from ..constraints.automaton import SpanTags
        from ..constraints.rule_set import RuleSet

        tags = SpanTags(list(self.labels), self.label_of_states(), self.span_states().continues)
        return RuleSet(constraints, tags, self.transition_mask())

    def decoding(self) -> "Decoding":
        from .decoding import ChainDecoding

        return ChainDecoding(self.span_states())

    # ---------------------------------------------------------------------------------------------------- training

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        return self.span_states().continues[tag]

    def ruled_structure(self, rules: "RuleSet", facts: "Facts", known: Supervision, starts, doc_starts) -> Any:
        from ..constraints.training import RuledChain
        from ..inference.threads import default_threads

        excluded, threads = self.excluded(known), default_threads()
        return RuledChain(rules, facts, known.clamp, starts, doc_starts, excluded=excluded, threads=threads)
