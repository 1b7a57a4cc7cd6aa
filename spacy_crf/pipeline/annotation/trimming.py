"""White space at the edges of gold spans is trimmed and counted, in training and where tools compare them with what is found."""

from collections.abc import Iterable, Iterator
from typing import Any, Optional

from spacy.tokens import Doc, Span

from ...errors import Warnings
from .annotation import Annotation, GoldReport, Mention, place_of

# How reports call gold spans
TRIMMED = "begin or end with white space, which was trimmed"
DROPPED = "are white space alone, and were left out"


def trimmed(span: Span) -> Optional[Span]:
    """A span without white space at its edges: the span itself if it has none, None for a span of white space alone."""
    if len(span) and not span[0].is_space and not span[-1].is_space:
        return span
    words = [token.i for token in span if not token.is_space]
    if not words:
        return None
    return Span(span.doc, words[0], words[-1] + 1, label=span.label)


def trims(annotation: Annotation, span: Span) -> bool:
    """Whether white space at the edges of a gold span has to go: the span has a label, and the annotation forbids it."""
    return not annotation.space_edges and span.label_ not in ("", "O")


def without_blanks(spans: Iterable[Span], annotation: Annotation, key: str, report: GoldReport) -> Iterator[Span]:
    """The gold spans in ``doc.spans[key]``, trimmed unless the annotation allows white space at their edges."""
    for span in spans:
        kept = trimmed(span) if trims(annotation, span) else span
        if kept is not span:
            report.add_span(span, key, DROPPED if kept is None else TRIMMED)
        if kept is not None:
            yield kept


def mentions_of(spans: Iterable[Span], probabilities: Iterable[Any], annotation: Annotation) -> list[Mention]:
    """Spans as tools compare them, gold ones and found ones: trimmed as in training. Each has its own probability."""
    found = []
    for span, probability in zip(spans, probabilities):
        kept = trimmed(span) if trims(annotation, span) else span
        if kept is not None:
            found.append(Mention(kept.start_char, kept.end_char, kept.label_, probability))
    return found


def tell_trimmed(pipe: Any, references: Iterable[Doc]) -> None:
    """Warn once about the gold spans that `mentions_of` changes."""
    annotation = pipe.annotation
    if annotation.space_edges or Warnings.CRFW901 in pipe.told:
        return
    spans = [span for doc in references for span in annotation.gold_spans(doc)]
    changed = [span for span in spans if trims(annotation, span) and trimmed(span) is not span]
    if changed:
        pipe.warn_once(Warnings.CRFW901, count=f"{len(changed):,}", total=f"{len(spans):,}", place=place_of(changed[0]))
