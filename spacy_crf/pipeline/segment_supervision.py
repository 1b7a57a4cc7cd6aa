"""Alternatives and spans known to be wrong, for segments; `supervision` does the same for tags.

For segments both can be expressed exactly: segments that a clamp allows by mistake are listed as excluded. With "New York" (GPE),
"New" (O) and "York" (PER) as alternatives, the clamp also allows "New York" (PER) if New has PER among its alternatives, and the
list excludes it again.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.training import Example
from thinc.api import Model

from ..models.segments import certain_segments
from ..models.semi_markov import longest_of
from ..schemes import Segments
from ..types import SegmentClamp
from .annotation.entities import GoldReport, Keys, Supervision
from .supervision import aligned_spans, likely_spans, possible_spans, trimmed_spans, without_blanks

_Segment = tuple[int, int, int]  # first token, token behind, state


class Texts(NamedTuple):
    """Some examples, and the limits of segments in them."""

    examples: list[Example]
    annotation: Any
    starts: NDArray[np.int64]  # [B + 1] where their sequences start
    longest: NDArray[np.int32]  # [S] tokens of the longest segment of each state; longer spans are split
    report: GoldReport


def measure(model: Model, annotation: Any, examples: Iterable[Example], keys: Keys) -> None:
    """Set the longest segments of a model, before features are counted. A trained model keeps its lengths.

    annotation (Entities): The annotation of the component.
    """
    lengths: dict[str, list[int]] = {label: [] for label in annotation.labels}
    for example in examples:
        named = aligned_spans([example], keys.alternatives) if keys.alternatives else ()
        likely = likely_spans(example.reference, keys.soft) if keys.soft else ()
        spans = (*annotation.gold_spans(example.reference), *(span for _, span in named), *likely)
        for span in spans:
            kept = without_blanks(span, annotation, "", GoldReport())
            if kept is not None and span.label_ in lengths:
                lengths[span.label_].append(len(kept))
    longest = longest_of(model.attrs["longest_segment"], list(annotation.labels), lengths)
    before = model.attrs["longest"]
    if model.has_dim("nO"):
        longest[: len(before)] = np.maximum(longest[: len(before)], before)
    model.attrs["longest"] = longest


def allow_alternatives(gold: Supervision, texts: Texts, key: str) -> tuple[SegmentClamp, Segments, Segments]:
    """Allow the spans in ``reference.spans[key]``: where annotation is missing, only these spans are allowed; elsewhere they are
    allowed beside the annotation. A labelling is a sequence of alternatives and annotated segments.

    RETURNS (SegmentClamp, Segments, Segments): The clamp, segments that the clamp allows but the annotation does not, and the
        alternatives with a label.
    """
    clamp = gold.clamp
    missing = gold.unset.copy()
    n_tokens = len(missing)
    named = set(_named(texts, key))
    touched = np.zeros(n_tokens, dtype=bool)
    for begin, end, _ in named:
        touched[begin:end] = True
    gold.unset[touched] = False
    outside = ~missing & clamp.states[:, 0]
    allowed = named | {(int(t), int(t) + 1, 0) for t in np.flatnonzero(touched & outside)}
    for begin, end, state in zip(*(column.tolist() for column in certain_segments(clamp, texts.starts))):
        if touched[begin:end].any():
            allowed.add((begin, end, state))
    states = clamp.states.copy()
    states[touched & missing] = False
    inside, edges, crossed = np.zeros((3, n_tokens + 1), dtype=bool)
    for begin, end, state in allowed:
        states[begin:end, state] = True
        inside[begin:end] = True
        crossed[begin + 1 : end] = True
        edges[[begin, end]] = True
    is_told = (inside | np.append(False, inside[:-1]))[
        :-1
    ]  # tokens where alternatives determine whether a segment begins
    clamp = SegmentClamp(
        states=states,
        may_begin=np.where(is_told, edges[:-1], clamp.may_begin),
        must_begin=np.where(is_told, ~crossed[:-1], clamp.must_begin),
    )
    excluded = set(_segments_at(np.flatnonzero(inside[:-1]), clamp, texts)) - allowed
    return clamp, _columns(excluded), _columns(segment for segment in named if segment[2] > 0)


def find_incorrect(clamp: SegmentClamp, texts: Texts, key: str) -> Segments:
    """Wrong segments from the spans in ``reference.spans[key]``, unless the annotation decides already: exactly these tokens with
    this label."""
    annotated = set(zip(*(column.tolist() for column in certain_segments(clamp, texts.starts))))
    found = set()
    labels = texts.annotation.labels
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
        if span.label_ not in labels:
            continue
        segment = (first + span.start, first + span.end, 1 + labels.index(span.label_))
        if segment in annotated:
            report.add_span(span, key, "are all that is left of their tokens, and stay")
        elif segment in _segments_at([segment[0]], clamp, texts):
            found.add(segment)
    return _columns(found)


def join_segments(*parts: Segments) -> Segments:
    found: set[_Segment] = set()
    for part in parts:
        found.update((b, e, 1 + label) for b, e, label in zip(*(column.tolist() for column in part)))
    return _columns(found)


def _named(texts: Texts, key: str) -> Iterator[_Segment]:
    """The alternatives, as segments."""
    examples, annotation, starts, longest, report = texts
    labels = annotation.labels
    for first, span in trimmed_spans(examples, key, annotation, report):
        begin = first + span.start
        end = first + span.end
        if span.label_ in ("", "O"):
            yield from ((t, t + 1, 0) for t in range(begin, end))
        elif span.label_ not in labels:
            report.add_span(span, key, "have a label the component does not know")
        elif np.searchsorted(starts, begin, side="right") != np.searchsorted(starts, end - 1, side="right"):
            report.add_span(span, key, "cross the start of a sentence, and say nothing")
        else:
            state = 1 + labels.index(span.label_)
            step = int(longest[state])
            if end - begin > step:
                report.add_span(span, key, "are longer than the longest segment of their label, and were cut up")
            yield from ((t, min(t + step, end), state) for t in range(begin, end, step))


def _segments_at(tokens: Iterable[int], clamp: SegmentClamp, texts: Texts) -> Iterator[_Segment]:
    """The segments that begin with some of the tokens and that the clamp allows."""
    n_tokens = len(clamp.states)
    closes = np.append(clamp.must_begin, True)  # whether every segment must end before this token
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
    table = np.array(sorted(segments), dtype=np.int64).reshape(-1, 3)
    return Segments(table[:, 0], table[:, 1], table[:, 2] - 1)
