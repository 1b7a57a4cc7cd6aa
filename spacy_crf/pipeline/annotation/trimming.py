"""White space at the edges of gold spans is trimmed and counted, in training and where tools compare them with what is found."""

from collections.abc import Iterable
from itertools import chain
from typing import Any, NamedTuple, Optional

from spacy.tokens import Doc, Span

from ...errors import Warnings

# How reports call gold spans
TRIMMED = "begin or end with white space, which was trimmed"
DROPPED = "are white space alone, and were left out"


class Mention(NamedTuple):
    """A labelled span or token of a text."""

    start: int  # in characters
    end: int
    label: str
    probability: Optional[float] = None  # given by the component

    @property
    def place(self) -> tuple[int, int, str]:
        """Start, end and label: equal for an annotated mention and the same mention found."""
        return self[:3]


def place_of(span: Span) -> str:
    """Name of a span in a report."""
    return f"'{span.text}' ({span.label_}) in '{span.doc.text[:40]}'"


def trimmed(span: Span, *, space_edges: bool) -> Optional[Span]:
    """A gold span without white space at its edges: the span itself if it has none, None for a span of white space alone.

    space_edges (bool): Whether the annotation allows white space there; it always does in spans without a label.
    """
    if space_edges or span.label_ in ("", "O"):
        return span
    if len(span) and not span[0].is_space and not span[-1].is_space:
        return span
    words = [token.i for token in span if not token.is_space]
    if not words:
        return None
    return Span(span.doc, words[0], words[-1] + 1, label=span.label)


def mentions_of(spans: Iterable[Span], probabilities: Iterable[Optional[float]], *, space_edges: bool) -> list[Mention]:
    """Spans as tools compare them, gold ones and found ones: trimmed as in training.

    spans (Iterable[Span]): The spans.
    probabilities (Iterable[Optional[float]]): The probability of each, if it has one.
    space_edges (bool): Whether the annotation allows white space at the edges of spans.
    """
    found = []
    for span, probability in zip(spans, probabilities):
        kept = trimmed(span, space_edges=space_edges)
        if kept is not None:
            found.append(Mention(kept.start_char, kept.end_char, kept.label_, probability))
    return found


def warn_of_trimmed(pipe: Any, references: Iterable[Doc]) -> None:
    """Warn once (CRFW901) if `mentions_of` changes gold spans that a component (LearningPipe) reads from reference Docs."""
    if pipe.annotation.space_edges or Warnings.CRFW901 in pipe.warned:
        return
    spans = list(chain.from_iterable(map(pipe.annotation.gold_spans, references)))
    changed = [span for span in spans if trimmed(span, space_edges=False) is not span]
    if changed:
        pipe.warn_once(Warnings.CRFW901, count=f"{len(changed):,}", total=f"{len(spans):,}", place=place_of(changed[0]))
