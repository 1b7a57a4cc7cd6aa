"""Components whose model gives ``SegmentScores``: state 0 is ``O``, state 1 + l is label l, and clamps are `SegmentClamp`. Tags
are BIO."""

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from spacy.training import Example
from thinc.api import Model

from .. import arrays
from ..models.segments import certain_segments
from ..models.semi_markov import longest_of
from ..schemes import NO_SEGMENTS, NO_STEPS, SEGMENTS, Segments
from ..types import GOES_ON, Floats, Ints, SegmentClamp, SegmentScores
from .annotation.entities import Annotation, Entities, GoldReport, Keys, Supervision
from .decoding import Decoding, States
from .distribution import of_docs
from .prediction import CRFPipe
from .supervision import EncodedSpans, aligned_spans, likely_spans, possible_spans, trimmed_spans, without_blanks

if TYPE_CHECKING:
    from ..constraints.rule_set import RuleSet
    from ..constraints.settings import Constraints


_LITTLE = 1e-6  # share of a token
_Segment = tuple[int, int, int]  # first token, token behind, state


class Texts(NamedTuple):
    """Some examples, and the limits of segments in them."""

    examples: list[Example]
    annotation: Annotation
    starts: Ints  # [B + 1] where their sequences start
    longest: States  # [S] tokens of the longest segment of each state; longer spans are split
    report: GoldReport


class SegmentDecoding(Decoding):
    """Decoding of chains of segments, see `Decoding`."""

    always_joins = False
    walks_around_wrong = True

    @property
    def longest(self) -> States:
        """Tokens of the longest segment of each state: int32[S]."""
        return self.model.attrs["node"].longest_of_states(self.model)

    def best_with_probabilities(self, scores: SegmentScores, clamp: Optional[SegmentClamp]) -> tuple[States, Floats]:
        """RETURNS (int32[T], float64[N]): Tags of the most probable labelling under a clamp, and the probability of each of its
        spans."""
        tags = self.best_tags(scores, clamp)
        segments = self.segments(tags, np.asarray(scores.starts))
        return tags, of_docs(self, scores, clamp).span_probabilities(segments)

    def worth(self, expected: SegmentScores) -> dict[str, Floats]:
        """Expected number of right tags, as for chains. That sum is equal for one segment and for two neighbours of one label; a
        tiny bonus for the likelier begin decides between them instead of rounding errors. `expected` has the expected use of each
        score."""
        tokens = np.clip(expected.tokens, 0.0, 1.0)
        begins = np.clip(expected.begins, 0.0, 1.0)
        goes_on = tokens - begins
        return {"tokens": tokens + _LITTLE * goes_on, "begins": _LITTLE * (begins - goes_on)}

    def segments(self, tags: States, starts: Ints) -> Segments:
        """The spans of a labelling by its BIO tags (int32[T]); sequences start at `starts`."""
        return SEGMENTS.decode(tags, starts)

    def encode_clamp(self, clamp: SegmentClamp, starts: Ints) -> tuple[SegmentClamp, Ints]:
        """The clamp itself, in which segments that are too long for the model are split; it forbids no steps."""
        self._split(clamp, starts)
        return clamp, NO_STEPS

    def compile_rules(self, constraints: "Constraints") -> "RuleSet":
        """Compile rules (`constraints`) for the present labels."""
        from ..constraints.rule_set import segment_rules

        return segment_rules(constraints, list(self.annotation.labels), self.special_search)

    def tags(self, path: States) -> States:
        """BIO tags (int32[T]) of a path of segments, which has a state where one begins and GOES_ON inside."""
        return SEGMENTS.states_to_tags(path)

    def path(self, tags: States, starts: Ints) -> States:
        """The path of segments (int32[T]) for BIO tags of sequences that start at `starts`."""
        path = np.zeros(len(tags), dtype=np.int32)
        begin, end, label = SEGMENTS.decode(tags, starts)
        path[arrays.ranges(begin, end)] = GOES_ON
        path[begin] = 1 + label
        return path

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: Ints, keys: Keys, report: GoldReport
    ) -> Supervision:
        """Add the alternatives and the incorrect spans to the annotation, see `Decoding.supervise`."""
        self._report_long(self._split(gold.clamp, starts), examples, report)
        clamp = gold.clamp
        wrong = NO_SEGMENTS
        alternatives = NO_SEGMENTS
        texts = Texts(examples, self.annotation, starts, self.longest, report)
        if keys.alternatives:
            clamp, wrong, alternatives = _allow_alternatives(gold, texts, keys.alternatives)
        if keys.incorrect:
            wrong = _find_incorrect(clamp, texts, keys.incorrect, wrong)
        return Supervision(clamp, gold.unset, wrong, alternatives=alternatives)

    def encode_spans(self, spans: Segments) -> EncodedSpans:
        """How segments encode `spans`; spans that are too long are split into the fewest allowed segments."""
        length = spans.end - spans.start
        # [N] tokens of the longest segment of the label of each span
        step = self.longest[1 + spans.label]
        n_pieces = -(-length // step)  # rounded up
        starts = np.append(0, np.cumsum(n_pieces))
        lengths = np.repeat(step, n_pieces).astype(np.int64)
        lengths[starts[1:] - 1] = length - (n_pieces - 1) * step
        return EncodedSpans(np.repeat(1 + spans.label, n_pieces), lengths, starts)

    def _split(self, clamp: SegmentClamp, starts: Ints) -> Segments:
        """Split too long segments of a clamp into the fewest allowed segments, in place. Every token keeps its label.

        RETURNS (Segments): The segments that were too long, with states in place of labels.
        """
        segments = certain_segments(clamp, starts)
        too_long = segments.only(segments.end - segments.start > self.longest[segments.label])
        for begin, end, step in zip(too_long.start, too_long.end, self.longest[too_long.label]):
            cuts = np.arange(begin + step, end, step)
            clamp.may_begin[cuts] = True
            clamp.must_begin[cuts] = True
        return too_long

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


# ------------------------------------------------------------- alternatives, and spans known to be wrong
#
# `supervision` does the same for tags. For segments both can be expressed exactly: segments that a clamp allows by mistake are
# listed as excluded. With "New York" (GPE), "New" (O) and "York" (PER) as alternatives, the clamp also allows "New York" (PER) if
# New has PER among its alternatives, and the list excludes it again.


def set_longest(model: Model, annotation: Any, examples: Iterable[Example], keys: Keys) -> None:
    """Set the attribute "longest" of a model, the length of the longest segment of each label, before features are counted. In a
    trained model these lengths may only grow.

    model (Model): The component's model.
    annotation (Entities): The component's annotation.
    examples (Iterable[Example]): The training data.
    keys (Keys): The keys of ``doc.spans`` with alternatives and with soft labels, which count too.
    """
    lengths: dict[str, list[int]] = {label: [] for label in annotation.labels}
    for example in examples:
        spans = list(annotation.gold_spans(example.reference))
        if keys.alternatives:
            spans += [span for _, span in aligned_spans([example], keys.alternatives)]
        if keys.soft:
            spans += likely_spans(example.reference, keys.soft)
        for span in spans:
            trimmed = without_blanks(span, annotation, "", GoldReport())
            if trimmed is not None and span.label_ in lengths:
                lengths[span.label_].append(len(trimmed))
    longest = longest_of(model.attrs["longest_segment"], list(annotation.labels), lengths)
    before = model.attrs["longest"]
    if model.has_dim("nO"):  # the model is trained already
        longest[: len(before)] = np.maximum(longest[: len(before)], before)
    model.attrs["longest"] = longest


def _allow_alternatives(gold: Supervision, texts: Texts, key: str) -> tuple[SegmentClamp, Segments, Segments]:
    """Allow the spans in ``reference.spans[key]``: where annotation is missing, only these spans are allowed; elsewhere they are
    allowed beside the annotation. A labelling is a sequence of alternatives and annotated segments.

    gold (Supervision): The annotation. Tokens of alternatives no longer count as unset in it.
    RETURNS (SegmentClamp, Segments, Segments): The clamp, segments that the clamp allows but the annotation does not, and the
        alternatives with a label.
    """
    clamp = gold.clamp
    missing = gold.unset.copy()
    n_tokens = len(missing)
    alternatives = set(_alternative_segments(texts, key))
    touched = np.zeros(n_tokens, dtype=bool)
    for begin, end, _ in alternatives:
        touched[begin:end] = True
    gold.unset[touched] = False
    # Tokens that are annotated as outside stay so beside the alternatives
    outside = ~missing & clamp.states[:, 0]
    allowed = alternatives | {(int(t), int(t) + 1, 0) for t in np.flatnonzero(touched & outside)}
    for begin, end, state in _rows(certain_segments(clamp, texts.starts)):
        if touched[begin:end].any():
            allowed.add((begin, end, state))
    states = clamp.states.copy()
    states[touched & missing] = False
    # By token, and behind the last one: whether it is in one of the allowed segments, an end of one, or within one
    inside = np.zeros(n_tokens + 1, dtype=bool)
    edges = np.zeros_like(inside)
    crossed = np.zeros_like(inside)
    for begin, end, state in allowed:
        states[begin:end, state] = True
        inside[begin:end] = True
        crossed[begin + 1 : end] = True
        edges[[begin, end]] = True
    # Alternatives determine whether a segment begins at their tokens, and at the token behind each
    decided = (inside | np.append(False, inside[:-1]))[:-1]
    clamp = SegmentClamp(
        states=states,
        may_begin=np.where(decided, edges[:-1], clamp.may_begin),
        must_begin=np.where(decided, ~crossed[:-1], clamp.must_begin),
    )
    # The clamp also allows segments that join parts of several alternatives
    excluded = set(_segments_at(np.flatnonzero(inside[:-1]), clamp, texts)) - allowed
    return clamp, _columns(excluded), _columns((begin, end, state) for begin, end, state in alternatives if state > 0)


def _find_incorrect(clamp: SegmentClamp, texts: Texts, key: str, wrong: Segments) -> Segments:
    """Add the spans in ``reference.spans[key]`` to the segments that are wrong already (`wrong`), unless the annotation has
    exactly this segment, or excludes it anyway. The label "O" forbids in the clamp, in place, that the tokens are outside."""
    annotated = set(_rows(certain_segments(clamp, texts.starts)))
    found = {(begin, end, 1 + label) for begin, end, label in _rows(wrong)}
    report = texts.report
    for first, span in possible_spans(texts.examples, key, texts.annotation, report):
        if not span.label:
            report.add_span(span, key, "have no label, and say nothing")
        if span.label_ == "O":  # forbidden where the annotation leaves another state
            states = clamp.states[first + span.start : first + span.end]
            known = states.sum(axis=1) == 1
            states[~known, 0] = False
            if (known & states[:, 0]).any():
                report.add_span(span, key, "are all that is left of their tokens, and stay")
        if span.label_ not in texts.annotation.labels:
            continue
        state = 1 + texts.annotation.labels.index(span.label_)
        segment = (first + span.start, first + span.end, state)
        if segment in annotated:
            report.add_span(span, key, "are all that is left of their tokens, and stay")
        elif segment in _segments_at([segment[0]], clamp, texts):
            found.add(segment)
    return _columns(found)


def _alternative_segments(texts: Texts, key: str) -> Iterator[_Segment]:
    """Yield the spans in ``reference.spans[key]`` as segments, and report those that can't be used. Tokens with the label "O", or
    without one, are segments of one token with state 0."""
    labels = texts.annotation.labels
    report = texts.report
    for first, span in trimmed_spans(texts.examples, key, texts.annotation, report):
        begin = first + span.start
        end = first + span.end
        if span.label_ in ("", "O"):
            yield from ((t, t + 1, 0) for t in range(begin, end))
        elif span.label_ not in labels:
            report.add_span(span, key, "have a label the component does not know")
        elif np.searchsorted(texts.starts, begin, side="right") != np.searchsorted(texts.starts, end - 1, side="right"):
            report.add_span(span, key, "cross the start of a sentence, and say nothing")
        else:
            state = 1 + labels.index(span.label_)
            most_tokens = int(texts.longest[state])
            if end - begin > most_tokens:
                report.add_span(span, key, "are longer than the longest segment of their label, and were cut up")
            yield from ((t, min(t + most_tokens, end), state) for t in range(begin, end, most_tokens))


def _segments_at(tokens: Iterable[int], clamp: SegmentClamp, texts: Texts) -> Iterator[_Segment]:
    """The segments that begin with some of the tokens and that the clamp allows."""
    n_tokens = len(clamp.states)
    closes = np.append(clamp.must_begin, True)  # whether every segment must end before this token
    # No segment crosses the start of a sequence
    closes[texts.starts] = True
    may_close = closes | np.append(clamp.may_begin, True)
    for begin in map(int, tokens):
        for state in np.flatnonzero(clamp.states[begin]) if may_close[begin] else ():
            for end in range(begin + 1, min(begin + int(texts.longest[state]), n_tokens) + 1):
                if may_close[end]:
                    yield begin, end, int(state)
                if closes[end] or not clamp.states[end, state]:
                    break


def _columns(segments: Iterable[_Segment]) -> Segments:
    """Segments with labels in place of states, sorted by first token."""
    return Segments.of_rows((begin, end, state - 1) for begin, end, state in sorted(segments))


def _rows(segments: Segments) -> Iterator[_Segment]:
    """The start, the end and the label, or state, of each segment."""
    return zip(segments.start.tolist(), segments.end.tolist(), segments.label.tolist())
