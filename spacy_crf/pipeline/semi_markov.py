"""Components whose model gives ``SegmentScores``: state 0 is ``O``, state 1 + l is label l, and clamps are `SegmentClamp`. Tags
are BIO."""

from itertools import chain
from typing import TYPE_CHECKING, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.training import Example

from .. import arrays
from ..models.segments import certain_segments
from ..schemes import NO_SEGMENTS, NO_STEPS, SEGMENTS, Segments
from ..types import GOES_ON, Floats, SegmentClamp, SegmentScores
from . import segment_supervision
from .annotation.entities import Entities, GoldReport, Keys, Supervision
from .decoding import Decoding, States
from .distribution import of_docs
from .prediction import CRFPipe
from .segment_supervision import Texts
from .supervision import EncodedSpans

if TYPE_CHECKING:
    from ..constraints.rule_set import RuleSet
    from ..constraints.settings import Constraints


_LITTLE = 1e-6  # share of a token


class SegmentDecoding(Decoding):
    always_joins = False
    walks_around_wrong = True

    @property
    def longest(self) -> NDArray[np.int32]:
        """Tokens of the longest segment of each state: int32[S]."""
        return self.model.attrs["node"].longest_of_states(self.model)

    def best_with_probabilities(self, scores: SegmentScores, clamp: Optional[SegmentClamp]) -> tuple[States, Floats]:
        tags = self.best_tags(scores, clamp)
        segments = self.segments(tags, np.asarray(scores.starts))
        return tags, of_docs(self, scores, clamp).span_probabilities(segments)

    def worth(self, expected: SegmentScores) -> dict[str, Floats]:
        """Expected number of right tags, as for chains. That sum is equal for one segment and for two neighbours of one label; a
        tiny bonus for the likelier begin decides between them instead of rounding errors."""
        tokens = np.clip(expected.tokens, 0.0, 1.0)
        begins = np.clip(expected.begins, 0.0, 1.0)
        goes_on = tokens - begins
        return {"tokens": tokens + _LITTLE * goes_on, "begins": _LITTLE * (begins - goes_on)}

    def segments(self, tags: States, starts: NDArray[np.int64]) -> Segments:
        return SEGMENTS.decode(tags, starts)

    def encode_clamp(self, clamp: SegmentClamp, starts: NDArray[np.int64]) -> tuple[SegmentClamp, NDArray[np.int64]]:
        self._split(clamp, starts)
        return clamp, NO_STEPS

    def compile_rules(self, constraints: "Constraints") -> "RuleSet":
        from ..constraints.rule_set import segment_rules

        return segment_rules(constraints, list(self.annotation.labels), self.special_search)

    def tags(self, path: States) -> States:
        return SEGMENTS.states_to_tags(path)

    def path(self, tags: States, starts: NDArray[np.int64]) -> States:
        path = np.zeros(len(tags), dtype=np.int32)
        begin, end, label = SEGMENTS.decode(tags, starts)
        path[arrays.ranges(begin, end)] = GOES_ON
        path[begin] = 1 + label
        return path

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: NDArray[np.int64], keys: Keys, report: GoldReport
    ) -> Supervision:
        self._report_long(self._split(gold.clamp, starts), examples, report)
        clamp = gold.clamp
        wrong = NO_SEGMENTS
        named = NO_SEGMENTS
        texts = Texts(examples, self.annotation, starts, self.longest, report)
        if keys.alternatives:
            clamp, wrong, named = segment_supervision.allow_alternatives(gold, texts, keys.alternatives)
        if keys.incorrect:
            incorrect = segment_supervision.find_incorrect(clamp, texts, keys.incorrect)
            wrong = segment_supervision.join_segments(wrong, incorrect)
        return Supervision(clamp, gold.unset, wrong, alternatives=named)

    def encode_spans(self, spans: Segments) -> EncodedSpans:
        """How segments encode spans; spans that are too long are split into the fewest allowed segments."""
        length = spans.end - spans.start
        step = self.longest[1 + spans.label]
        n_pieces = -(-length // step)
        starts = np.append(0, np.cumsum(n_pieces))
        lengths = np.repeat(step, n_pieces).astype(np.int64)
        lengths[starts[1:] - 1] = length - (n_pieces - 1) * step
        return EncodedSpans(np.repeat(1 + spans.label, n_pieces), lengths, starts)

    def _split(self, clamp: SegmentClamp, starts: NDArray[np.int64]) -> Segments:
        """Split segments that are too long into the fewest allowed segments, so that every token keeps its label.

        RETURNS (Segments): The segments that were too long, with states in place of labels.
        """
        found = certain_segments(clamp, starts)
        longest = self.longest[found.label]
        too_long = found.end - found.start > longest
        for begin, end, step in zip(found.start[too_long], found.end[too_long], longest[too_long]):
            cuts = np.arange(begin + step, end, step)
            clamp.may_begin[cuts] = True
            clamp.must_begin[cuts] = True
        return Segments(*(column[too_long] for column in found))

    def _report_long(self, long: Segments, examples: list[Example], report: GoldReport) -> None:
        if len(long.start):
            tokens = list(chain.from_iterable(example.predicted for example in examples))
            for begin, end, state in zip(*long):
                words = " ".join(token.text for token in tokens[begin : min(end, begin + 8)])
                place = f"'{words}...' ({self.annotation.labels[state - 1]}, {end - begin} tokens)"
                report.add("gold entities are longer than the longest segment of their label, and were cut up", place)


class SemiCRFEntityRecognizer(CRFPipe):
    """Finds entities, each scored as a whole (factory ``semicrf_ner``). Entities that a Doc has already are kept, and the rest is
    decoded around them. Entities end where a sentence is known to end. For the settings see `make_semicrf_ner`.
    """

    labelled = "segments"

    def __init__(self, vocab, model, name="semicrf_ner", **settings):
        super().__init__(vocab, model, name, annotation=Entities(SEGMENTS), **settings)
