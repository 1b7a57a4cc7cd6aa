"""What components with one tag per token have in common: how tags spell spans, and rules in training."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Optimizer

from ..errors import Errors
from ..features.columns import doc_bounds
from ..inference.spans import SpanStates, segments_of
from ..schemes import Segments
from ..types import ChainScores, Clamp
from .crf_pipe import GoldReport
from .ruled_pipe import RuledPipe

if TYPE_CHECKING:
    from ..constraints.rule_set import RuleSet
    from ..constraints.rules import Constraints
    from .probabilities import Decoding


class ChainPipe(RuledPipe):
    """Base of the components whose model gives ``ChainScores``. Their states are the tags, and clamps are bool[T, S]."""

    _told_broken = False  # whether it was said which gold annotations break rules

    def span_states(self) -> SpanStates:
        """How tags spell spans."""
        raise NotImplementedError

    def segments(self, tags: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        opening = np.zeros(len(tags), dtype=bool)
        opening[starts[:-1][starts[:-1] < len(tags)]] = True
        return segments_of(tags, self.span_states(), opening)

    def free_clamp(self, tokens: int) -> Clamp:
        return np.ones((tokens, len(self.tags())), dtype=bool)

    def allowed_states(self, clamp: Clamp) -> Clamp:
        return clamp

    def both_clamps(self, clamp: Clamp, forced: Clamp) -> Clamp:
        kept = forced & clamp
        return np.where(kept.any(axis=1)[:, None], kept, forced)

    def label_of_states(self) -> NDArray[np.int64]:
        spans = self.span_states()
        return np.maximum((np.arange(len(self.tags())) - spans.offset) // spans.width, -1)

    @property
    def outside(self) -> int:
        return self.span_states().offset - 1  # 0 where there is O

    def best_tags(self, scores: ChainScores, clamp: Any) -> NDArray[np.int32]:
        return self.model.attrs["structure"].viterbi(scores, clamp=clamp).states

    def compile_rules(self, constraints: "Constraints") -> "RuleSet":
        from ..constraints.automaton import SpanTags
        from ..constraints.rule_set import RuleSet

        tags = SpanTags(list(self.labels), self.label_of_states(), self.span_states().continues)
        return RuleSet(constraints, tags, self.transition_mask())

    def decoding(self) -> "Decoding":
        from .chain_decoding import ChainDecoding

        return ChainDecoding(self.span_states())

    # ---------------------------------------------------------------------------------------------------- training

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        return self.span_states().continues[tag]

    def training_structure(self, docs: list[Doc], clamp: Clamp, starts: NDArray[np.int64], wrong: Segments) -> Any:
        """The sums and maxima under the rules, if they hold in training, and without the spans known to be wrong."""
        rules = self.rules() if self.constraints is not None and self.constraints.in_training else None
        if rules is None and not len(wrong.start):
            return None
        from ..constraints.rules import Constraints
        from ..constraints.training import RuledChain
        from ..inference.threads import default_threads

        rule_set = self.compile_rules(Constraints([])) if rules is None else rules.all
        facts = {} if rules is None else rules.matcher(docs)
        chain = RuledChain(rule_set, facts, clamp, starts, doc_bounds(docs), wrong=wrong, threads=default_threads())
        report = GoldReport()
        for rule, d in chain.broken:
            problem = f"gold annotations break the rule '{rule.name}', and are trained without it"
            report.add(problem, f"'{docs[d].text[:40]}'")
        if not self._told_broken:
            report.log(self.name)
            self._told_broken = bool(chain.broken)
        return chain

    def _check_fit(self, optimizer: Optimizer) -> None:
        super()._check_fit(optimizer)
        ruled = self.constraints is not None and self.constraints.in_training
        if ruled and getattr(optimizer, "wants_sequences", False):
            raise ValueError(Errors.CRF616.format(name=self.name, optimizer=type(optimizer).__name__))
