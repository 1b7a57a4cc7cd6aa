"""Annotation that Docs bring and that prediction keeps, in order of precedence: the annotation that is present, then
``doc.spans["crf_blocked"]``, then ``doc.spans["crf_forced"]``. The rules come last, and yield to all of it.

It is taken up span by span. What contradicts something before it is left out, and said: so there is a labelling that has all of
the rest, but for tokens that were left without any label, which take no part.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ..arrays import cut_linked, spread, states_of
from ..errors import Warnings
from ..features.doc_batch import DocBatch, DocPart
from ..schemes import BEGIN, INSIDE, MISSING, OUTSIDE
from .parts import Parts
from .supervision import without_steps

if TYPE_CHECKING:
    from .decoding import Decoding

BLOCKED, FORCED = "crf_blocked", "crf_forced"  # keys of doc.spans


class PresetAnnotation(NamedTuple):
    """Known labels of the T tokens of some Docs. The arrays are filled in place."""

    iob: NDArray[np.int64]  # [T] spaCy's codes of what is settled; MISSING where anything may be
    label: NDArray[np.int64]  # [T] labels of the spans there
    present: NDArray[np.uint64]  # [T] hash of the annotation that was there before, 0 for none
    taken: NDArray[np.bool_]  # [T] tokens that nothing later can change
    blocked: NDArray[np.bool_]  # [T, L] labels that a token does not get

    @classmethod
    def nothing(cls, n_tokens: int, n_labels: int) -> "PresetAnnotation":
        iob, label = np.full(n_tokens, MISSING), np.zeros(n_tokens, dtype=np.int64)
        present, taken = np.zeros(n_tokens, dtype=np.uint64), np.zeros(n_tokens, dtype=bool)
        return cls(iob, label, present, taken, np.zeros((n_tokens, n_labels), dtype=bool))


class Unsettled(NamedTuple):
    """The part of some Docs that is left to be predicted."""

    docs: DocBatch
    scores: Any
    clamp: Any
    settled: NDArray[np.bool_]  # [T] tokens whose label is known
    kept: Optional[NDArray[np.int64]]  # the tokens it is about, None for all
    starts: NDArray[np.int64]  # of the sequences, as they were before tokens were left out

    def tags(self, tags: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tags (int32[T]) of all tokens: -1 for those that were left out."""
        return tags if self.kept is None else spread(tags, self.kept, int(self.starts[-1]), -1)


def restrict(parts: Parts, docs: DocBatch, scores: Any, preset: Optional[NDArray[np.uint64]]) -> Optional[Unsettled]:
    """The part of Docs that is left to be predicted; None if they bring nothing that prediction keeps.

    scores: What the model says of them.
    preset: Annotation that is present and counts, as `Annotation.preset` gives it, or None.
    """
    spans = [(doc, shift, key, span) for doc, shift in zip(docs, docs.bounds.tolist()) for key, span in _spans(doc)]
    if preset is None and not spans:
        return None
    settled = PresetAnnotation.nothing(int(docs.bounds[-1]), len(parts.labels))
    if preset is not None:
        parts.annotation.settle(settled, preset, scores.starts)
    for doc, shift, key, span in spans:
        problem = (_block if key == BLOCKED else _force)(parts, settled, scores.starts, span, shift)
        if problem:
            parts.warn(Warnings.CRFW604, doc=doc.text[:40], span=span.text, key=key, reason=problem)
    scores, clamp = _leave_settled(parts.decoding, scores, settled)
    known = settled.iob != MISSING
    empty = ~states_of(clamp).any(axis=1)
    if not empty.any():
        return Unsettled(docs, scores, clamp, known, None, scores.starts)
    _warn_of_unlabelled(parts, docs, empty)
    kept = np.flatnonzero(~empty)
    some = _leave_out(scores, kept, empty)
    return Unsettled(DocPart(docs, kept), some, clamp[kept], known[kept], kept, scores.starts)


def _leave_settled(decoding: "Decoding", scores: Any, settled: PresetAnnotation) -> tuple[Any, Any]:
    """The scores and the clamp of the labellings that have all that is settled."""
    clamp, steps = decoding.spell(decoding.annotation.clamp(settled, scores.starts), scores.starts)
    label = decoding.label_of_states
    states_of(clamp)[:, label >= 0] &= ~settled.blocked[:, label[label >= 0]]
    return (without_steps(decoding, scores, steps) if len(steps) else scores), clamp


def _spans(doc: Doc) -> Iterator[tuple[str, Span]]:
    """The spans that a Doc brings: first those that are blocked, then those that are forced."""
    for key in (BLOCKED, FORCED):
        if key in doc.spans:
            for span in doc.spans[key]:
                yield key, span


def _block(parts: Parts, settled: PresetAnnotation, starts: NDArray[np.int64], span: Span, shift: int) -> Optional[str]:
    """Takes up a span where nothing is found, or nothing of its label. RETURNS (str): Why it does not hold everywhere."""
    if span.label and span.label_ not in parts.labels:
        return None  # nothing of this label is found anyway
    tokens = slice(shift + span.start, shift + span.end)
    labels = [parts.labels.index(span.label_)] if span.label else slice(None)
    present = settled.present[tokens]
    settled.blocked[tokens, labels] |= (present == 0)[:, np.newaxis]
    contradicts = present == span.label if span.label else present != 0
    return f"{parts.annotation.found} is there already" if contradicts.any() else None


def _force(parts: Parts, settled: PresetAnnotation, starts: NDArray[np.int64], span: Span, shift: int) -> Optional[str]:
    """Takes up a span that is one of those found. RETURNS (str): Why it can't be."""
    annotation = parts.annotation
    begin, end = shift + span.start, shift + span.end
    if span.label_ not in parts.labels:
        return "the component has no such label"
    tokens, label, longest = slice(begin, end), parts.labels.index(span.label_), parts.decoding.longest
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
    problem = annotation.refused_beside(settled, starts, begin, end, label)
    if problem is None:
        settled.iob[tokens], settled.label[tokens], settled.taken[tokens] = iob, label, True
    return problem


def _warn_of_unlabelled(parts: Parts, docs: DocBatch, empty: NDArray[np.bool_]) -> None:
    """Once for each Doc with tokens that have no label left."""
    at = np.flatnonzero(empty)
    of_doc = np.searchsorted(docs.bounds, at, side="right") - 1
    for d in np.unique(of_doc).tolist():
        first = docs[d][int(at[of_doc == d][0] - docs.bounds[d])]
        n = int((of_doc == d).sum())
        parts.warn(Warnings.CRFW420, doc=docs[d].text[:40], n=n, token=first.i, word=first.text, key=BLOCKED)


def _leave_out(scores: Any, kept: NDArray[np.int64], empty: NDArray[np.bool_]) -> Any:
    """The scores of the tokens that are kept. What is left out parts its sequence."""
    starts = np.union1d(scores.starts, np.flatnonzero(empty))
    return cut_linked(scores, kept, np.unique(np.searchsorted(kept, starts)))
