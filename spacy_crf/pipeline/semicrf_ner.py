"""Named entities as segments: the semi-Markov component."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Span
from spacy.training import Example

from ..inference.semi_markov import StateSegments
from ..models.segments import SegmentFeatures, certain_segments
from ..models.semi_markov import longest_of
from ..schemes import NO_SEGMENTS, SEGMENTS, Segments
from ..types import SegmentClamp, SegmentScores
from . import segment_supervision
from .crf_pipe import Supervision
from .entity_pipe import EntityPipe
from .gold_report import GoldReport
from .supervision import Gold, aligned_spans, refuse_contradictions

if TYPE_CHECKING:
    from ..constraints.facts import Facts
    from ..constraints.rules import Constraints
    from ..constraints.segment_training import RuledSegments
    from ..constraints.segments import SegmentRules
    from .decoding import SegmentDecoding
    from .settled import Settled


class SemiCRFEntityRecognizer(EntityPipe):
    """Finds entities, each scored as a whole (factory ``semicrf_ner``).

    Entities that a Doc has already are kept, and the rest is decoded around them. Entities end where a sentence is known
    to end. Its states are ``O`` and the labels, and its clamps `SegmentClamp`; tags are BIO.
    """

    takes = SegmentScores
    scheme = SEGMENTS
    walks_around_wrong = True

    def __init__(self, vocab, model, name="semicrf_ner", **settings):
        super().__init__(vocab, model, name, **settings)

    # -------------------------------------------------------------------------------------------------- annotation

    def gold(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Gold:
        gold = super().gold(examples, starts, report)
        long = self._split(gold.clamp, starts)
        if len(long.begin):
            tokens = [token for example in examples for token in example.predicted]
            for begin, end, state in zip(*long):
                words = " ".join(token.text for token in tokens[begin : min(end, begin + 8)])
                place = f"'{words}...' ({self.labels[state - 1]}, {end - begin} tokens)"
                report.add("gold entities are longer than the longest segment of their label, and were cut up", place)
        return gold

    def supervise(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Supervision:
        (clamp, unset), wrong, named = self.gold(examples, starts, report), NO_SEGMENTS, NO_SEGMENTS
        known = (starts, self.labels, self.model.attrs["longest"], examples)
        key = self.cfg.get("alternatives_spans_key")
        if key:
            clamp, wrong, named = segment_supervision.allow_alternatives(Gold(clamp, unset), *known, key, report)
        key = self.cfg.get("incorrect_spans_key")
        if key:
            refuse_contradictions(examples, key, self.is_gold, self.name)
            incorrect = segment_supervision.find_incorrect(clamp, *known, key, report)
            wrong = segment_supervision.join_segments(wrong, incorrect)
        return Supervision(clamp, unset, wrong, alternatives=named)

    def settled_clamp(self, settled: "Settled", starts: NDArray[np.int64]) -> SegmentClamp:
        clamp = super().settled_clamp(settled, starts)
        self._split(clamp, starts)
        return clamp

    def _split(self, clamp: SegmentClamp, starts: NDArray[np.int64]) -> StateSegments:
        """Cuts segments that are too long into the fewest that are allowed: every token keeps its label.

        RETURNS (StateSegments): Those that were too long.
        """
        found = certain_segments(clamp, starts)
        longest = self.model.attrs["longest"][found.state]
        too_long = found.end - found.begin > longest
        for begin, end, step in zip(found.begin[too_long], found.end[too_long], longest[too_long]):
            cuts = np.arange(begin + step, end, step)
            clamp.may_begin[cuts] = True
            clamp.must_begin[cuts] = True
        return StateSegments(found.begin[too_long], found.end[too_long], found.state[too_long])

    # ---------------------------------------------------------------------------------------------------- training

    def measure(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Sets the longest segment of each label."""
        lengths: dict[str, list[int]] = {label: [] for label in self.labels}
        key = self.cfg.get("alternatives_spans_key")
        for example in get_examples():
            alternatives = [span for _, span in aligned_spans([example], key)] if key else []
            for span in (*example.reference.ents, *alternatives):
                if span.label_ in lengths:
                    lengths[span.label_].append(len(span))
        longest = longest_of(self.model.attrs["longest_segment"], list(self.labels), lengths)
        before = self.model.attrs["longest"]
        if self.is_initialized:  # a trained model keeps the lengths that it knows
            longest[: len(before)] = np.maximum(longest[: len(before)], before)
        self.model.attrs["longest"] = longest

    @property
    def loss_excludes_spans(self) -> bool:
        return getattr(self.loss, "excludes_segments", False)

    @property
    def _segment_features(self) -> Optional[SegmentFeatures]:
        return self.model.get_ref("segments").attrs.get("segment_features")

    def _feature_stores(self) -> list[Any]:
        return super()._feature_stores() + ([] if self._segment_features is None else [self._segment_features])

    # -------------------------------------------------------------------------------------------------- prediction

    def best_tags(self, scores: SegmentScores, clamp: Optional[SegmentClamp]) -> NDArray[np.int32]:
        return self.scheme.states_to_tags(self.model.attrs["role"].structure.viterbi(scores, clamp=clamp).states)

    def segments(self, tags: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        return self.scheme.decode(tags, starts)

    def allowed_states(self, clamp: SegmentClamp) -> NDArray[np.bool_]:
        return clamp.states

    def refused(self, span: Span) -> Optional[str]:
        if span.label_ in self.labels:
            longest = int(self.model.attrs["longest"][1 + self.labels.index(span.label_)])
            if len(span) > longest:
                return f"the longest segment of its label has {longest} tokens"
        return super().refused(span)

    def label_of_states(self) -> NDArray[np.int64]:
        return np.arange(1 + len(self.labels)) - 1

    def compile_rules(self, constraints: "Constraints") -> "SegmentRules":
        from ..constraints.segments import SegmentRules

        return SegmentRules(constraints, list(self.labels))

    def ruled_structure(
        self, rules: "SegmentRules", facts: "Facts", known: Supervision, starts, doc_starts
    ) -> "RuledSegments":
        from ..constraints.segment_training import RuledSegments
        from ..inference.threads import default_threads

        longest, excluded, threads = self.model.attrs["longest"], self.excluded(known), default_threads()
        return RuledSegments(rules, facts, known.clamp, starts, doc_starts, longest, excluded=excluded, threads=threads)

    def decoding(self) -> "SegmentDecoding":
        from .decoding import SegmentDecoding

        return SegmentDecoding()
