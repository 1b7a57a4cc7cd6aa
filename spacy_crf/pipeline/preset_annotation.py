"""Annotation that Docs bring and that prediction keeps, in order of precedence: the annotation that is present, then
``doc.spans["crf_blocked"]``, then ``doc.spans["crf_forced"]``. The rules come last, and give way to all of these.

The annotation is added span by span. A span that contradicts earlier ones is left out with a warning, so some labelling has all
other spans. Tokens that no label is left for take no part in the labelling.
"""

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ..arrays import cut, states_of
from ..errors import Warnings, counted
from ..features.doc_batch import DocBatch, DocPart
from ..schemes import BEGIN, INSIDE, MISSING, OUTSIDE
from .annotation.entities import PresetAnnotation
from .decoding import Decoding, Parts, Question, without_edges
from .supervision import without_steps

# keys of doc.spans
BLOCKED = "crf_blocked"
FORCED = "crf_forced"


def restrict(
    parts: Parts,
    docs: DocBatch,
    scores: Any,
    preset: Optional[NDArray[np.uint64]],
    exclude: Callable[..., tuple[Parts, Any]] = without_edges,
) -> Optional[Question]:
    """The part of Docs that prediction still has to label; None if the Docs have no annotation that prediction keeps. `preset` is
    the result of `Annotation.preset`; `exclude` excludes white space at the edges of spans, see `without_edges`."""
    restricted = [(doc, shift) for doc, shift in zip(docs, docs.bounds.tolist()) if _is_restricted(doc)]
    if preset is None and not restricted:
        return None
    settled = PresetAnnotation.nothing(int(docs.bounds[-1]), len(parts.annotation.labels))
    if preset is not None:
        parts.annotation.settle(settled, preset, scores.starts)
    for doc, shift in restricted:
        _add_spans(parts, settled, scores.starts, doc, shift)
    known = settled.iob != MISSING

    def leave_settled(given: Any) -> tuple[Parts, Any, Any]:
        over, wide = exclude(parts, docs, given, known)
        return over, *_leave_settled(over.decoding, wide, settled)

    over, left, clamp = leave_settled(scores)
    empty = ~np.any(states_of(clamp), axis=1)
    if not empty.any():
        return Question(over, docs, left, clamp, docs, lambda given: leave_settled(given)[1], left.starts, known)
    _warn_of_unlabelled(over, docs, empty)
    kept = np.flatnonzero(~empty)

    def leave_out(given: Any) -> Any:
        return _leave_out(leave_settled(given)[1], kept, empty)

    some = _leave_out(left, kept, empty)
    return Question(over, DocPart(docs, kept), some, clamp[kept], docs, leave_out, left.starts, known[kept], kept)


def _leave_settled(decoding: Decoding, scores: Any, settled: PresetAnnotation) -> tuple[Any, Any]:
    """The scores and the clamp of the labellings that contain all settled spans."""
    clamp, steps = decoding.encode_clamp(decoding.annotation.clamp(settled, scores.starts), scores.starts)
    label = decoding.label_of_states
    states_of(clamp)[:, label >= 0] &= ~settled.blocked[:, label[label >= 0]]
    return (without_steps(decoding, scores, steps) if len(steps) else scores), clamp


def _is_restricted(doc: Doc) -> bool:
    return any(key in doc.spans and len(doc.spans[key]) for key in (BLOCKED, FORCED))


def _add_spans(parts: Parts, settled: PresetAnnotation, starts: NDArray[np.int64], doc: Doc, shift: int) -> None:
    """Add the spans in doc.spans that restrict a Doc: first the blocked spans, then the forced ones."""

    def warn(key: str, span: Span, problem: Optional[str]) -> None:
        if problem:
            parts.warn(Warnings.CRFW604, doc=doc.text[:40], span=span.text, key=key, reason=problem)

    for span in doc.spans.get(BLOCKED, ()):
        warn(BLOCKED, span, _block(parts, settled, span, shift))
    forced = [*doc.spans.get(FORCED, ())]
    annotation = parts.annotation
    if annotation.n_levels > 1:
        from .annotation.spans import on_own_level

        forced = on_own_level(annotation, settled, starts, forced, shift)
    for span in forced:
        warn(FORCED, span, _force(parts, settled, starts, span, shift))


def _block(parts: Parts, settled: PresetAnnotation, span: Span, shift: int) -> Optional[str]:
    """Add a span in which no label, or not its own label, may be found. RETURNS (str): Why it cannot apply everywhere."""
    if span.label and span.label_ not in parts.annotation.labels:
        return None  # the component never finds this label
    tokens = slice(shift + span.start, shift + span.end)
    labels = [parts.annotation.labels.index(span.label_)] if span.label else slice(None)
    present = settled.present[tokens]
    settled.blocked[tokens, labels] |= (present == 0)[:, np.newaxis]
    contradicts = present == span.label if span.label else present != 0
    return f"{parts.annotation.found} is there already" if contradicts.any() else None


def _force(parts: Parts, settled: PresetAnnotation, starts: NDArray[np.int64], span: Span, shift: int) -> Optional[str]:
    """Add a span that must be found. RETURNS (str): Why that is impossible, or None."""
    annotation = parts.annotation
    begin = shift + span.start
    end = shift + span.end
    if span.label_ not in parts.annotation.labels:
        return None if span.label_ in annotation.elsewhere else "the component has no such label"
    tokens = slice(begin, end)
    label = parts.annotation.labels.index(span.label_)
    longest = parts.decoding.longest
    if longest is not None and end - begin > longest[1 + label]:
        return f"the longest segment of its label has {longest[1 + label]} tokens"
    if begin == end:
        return "it has no tokens"
    iob = np.where((np.arange(begin, end) == begin) | annotation.spans_are_tokens, BEGIN, INSIDE)
    same = (settled.iob[tokens] == iob) & (settled.label[tokens] == label)
    if not annotation.spans_are_tokens:
        goes_on = end < len(settled.iob) and settled.iob[end] == INSIDE
        same &= same.all() and not goes_on
    other = settled.taken[tokens] & ~same
    if (settled.present[tokens][other] != 0).any():
        return f"{annotation.found} is there already"
    if (settled.iob[tokens][other] == OUTSIDE).any():
        return "its tokens are blocked in doc.ents"
    if other.any():
        return "it overlaps with another one"
    if settled.blocked[tokens, label].any():
        return f"doc.spans['{BLOCKED}'] comes first"
    problem = annotation.conflict_with(settled, starts, begin, end, label)
    if problem is None:
        settled.iob[tokens] = iob
        settled.label[tokens] = label
        settled.taken[tokens] = True
    return problem


def _warn_of_unlabelled(parts: Parts, docs: DocBatch, empty: NDArray[np.bool_]) -> None:
    """Warn once for each Doc with tokens for which no label is left."""
    at = np.flatnonzero(empty)
    of_doc = np.searchsorted(docs.bounds, at, side="right") - 1
    for d in np.unique(of_doc).tolist():
        first = docs[d][int(at[of_doc == d][0] - docs.bounds[d])]
        parts.warn(
            Warnings.CRFW420,
            doc=docs[d].text[:40],
            n=counted(int((of_doc == d).sum()), "token"),
            token=first.i,
            word=first.text,
            key=BLOCKED,
        )


def _leave_out(scores: Any, kept: NDArray[np.int64], empty: NDArray[np.bool_]) -> Any:
    """Scores of the tokens that take part. A token that is left out splits its sequence."""
    starts = np.union1d(scores.starts, np.flatnonzero(empty))
    return cut(scores, kept, np.unique(np.searchsorted(kept, starts)))
