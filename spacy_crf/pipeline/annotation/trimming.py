"""White space at the edges of gold spans is trimmed, and counted."""

from collections.abc import Iterable, Iterator
from typing import Optional

from spacy.tokens import Span

from .annotation import Annotation, GoldReport

# How reports call gold spans
TRIMMED = "begin or end with white space, which was trimmed"
DROPPED = "are white space alone, and were left out"


def trimmed(span: Span) -> Optional[Span]:
    """A span without white space at its edges: the span itself if it has none, None for a span of white space alone."""
    words = [token.i for token in span if not token.is_space]
    if not words:
        return None
    if len(span) == words[-1] + 1 - words[0]:
        return span
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
