"""Annotation that Docs bring and that prediction keeps, in order of precedence: the annotation that is present, then
``doc.spans["crf_blocked"]``, then ``doc.spans["crf_forced"]``. The rules come last, and give way to all of these.

The annotation is added span by span. A span that contradicts earlier ones is left out with a warning, so some labelling has all
other spans. Tokens that no label is left for take no part in the labelling.
"""

from typing import Optional
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ..arrays import cut, states_of
from ..errors import Warnings, counted
from ..features.doc_batch import DocBatch, DocPart
from ..schemes import BEGIN, INSIDE, MISSING, OUTSIDE, Segments
from ..types import Bools, ChainClamp, Ints, PathScores
from .annotation.entities import LATEST, Entities, PresetAnnotation, entities_of
from .decoding import Decoding, Parts, Question, WithoutEdges, without_edges
from .excluded import without_steps

# keys of doc.spans
BLOCKED = "crf_blocked"
FORCED = "crf_forced"


_MOST_DOCS = 1000  # Docs to search for lost entities: that takes as long as predicting
_N_SEARCHED: "WeakKeyDictionary[Entities, int]" = WeakKeyDictionary()  # number of Docs searched so far


def restrict(
    parts: Parts,
    docs: DocBatch,
    scores: PathScores,
    preset: Optional[NDArray[np.uint64]],
    exclude: WithoutEdges = without_edges,
) -> Optional[Question]:
    """Ask for the labels that prediction still has to find: under the annotation that the Docs have, and without the tokens for
    which it leaves no label.

    parts (Parts): The parts of the component.
    docs (DocBatch): The Docs, with the scores of the model (PathScores).
    preset (Optional[NDArray[np.uint64]]): The annotation that Docs have already, from `Annotation.preset`; None to ignore it.
    exclude (Callable): Excludes labellings with white space at the edges of spans, see `without_edges`.
    RETURNS (Optional[Question]): None if the Docs have no annotation that prediction keeps.
    """
    shifts = zip(docs, docs.bounds.tolist())
    restricting = [(doc, shift) for doc, shift in shifts if doc.spans.get(BLOCKED) or doc.spans.get(FORCED)]
    if preset is None and not restricting:
        return None
    settled = PresetAnnotation.nothing(int(docs.bounds[-1]), len(parts.annotation.labels))
    if preset is not None:
        parts.annotation.settle(settled, preset, scores.starts)
    for doc, shift in restricting:
        _add_spans(parts, settled, scores.starts, doc, shift)
    known = settled.iob != MISSING  # [T]
    decoding_parts, decoded_scores = exclude(parts, docs, scores, known)
    decoding = decoding_parts.decoding
    settled_scores, clamp = _leave_settled(decoding, decoded_scores, settled)
    is_empty = ~np.any(states_of(clamp), axis=1)  # [T] whether no label is left for a token

    def restricted(other_scores: PathScores) -> PathScores:
        """Cut the same part out of other scores of the Docs."""
        _, decoded_scores = exclude(parts, docs, other_scores, known)
        settled_scores, _ = _leave_settled(decoding, decoded_scores, settled)
        return _leave_out(settled_scores, is_empty) if is_empty.any() else settled_scores

    question = Question(
        parts=decoding_parts,
        docs=docs,
        scores=settled_scores,
        clamp=clamp,
        asked=docs,
        restricted=restricted,
        starts=settled_scores.starts,
        settled=known,
    )
    if not is_empty.any():
        return question
    _warn_of_unlabelled(decoding_parts, docs, is_empty)
    kept = np.flatnonzero(~is_empty)
    return question._replace(
        docs=DocPart(docs, kept),
        scores=_leave_out(settled_scores, is_empty),
        clamp=clamp[kept],
        settled=known[kept],
        kept=kept,
    )


def _leave_settled(decoding: Decoding, scores: PathScores, settled: PresetAnnotation) -> tuple[PathScores, ChainClamp]:
    """Leave the labellings that contain all settled spans and no blocked labels.

    RETURNS (PathScores, ChainClamp): The scores, in which forbidden transitions are -inf, and the states that are left.
    """
    clamp, forbidden_steps = decoding.encode_clamp(decoding.annotation.clamp(settled, scores.starts), scores.starts)
    label_of_state = decoding.label_of_states  # [S] -1 for states without a label
    has_label = label_of_state >= 0
    states_of(clamp)[:, has_label] &= ~settled.blocked[:, label_of_state[has_label]]
    return (without_steps(decoding, scores, forbidden_steps) if len(forbidden_steps) else scores), clamp


def _add_spans(parts: Parts, settled: PresetAnnotation, starts: Ints, doc: Doc, shift: int) -> None:
    """Add the spans in doc.spans that restrict a Doc: first the blocked spans, then the forced ones."""

    def warn(key: str, span: Span, problem: Optional[str]) -> None:
        if problem:
            parts.warn(Warnings.CRFW604, doc=doc.text[:40], span=span.text, key=key, reason=problem)

    for span in doc.spans.get(BLOCKED, ()):
        warn(BLOCKED, span, _block(parts, settled, span, shift))
    forced = [*doc.spans.get(FORCED, ())]
    if parts.annotation.n_levels > 1:
        from .annotation.spans import forced_on_level

        forced = forced_on_level(parts.annotation, settled, starts, forced, shift)
    for span in forced:
        warn(FORCED, span, _force(parts, settled, starts, span, shift))


def _block(parts: Parts, settled: PresetAnnotation, span: Span, shift: int) -> Optional[str]:
    """Forbid the label of a span at its tokens; a span without a label forbids all labels.

    RETURNS (Optional[str]): The reason if present annotation of some tokens contradicts this, otherwise None.
    """
    if span.label and span.label_ not in parts.annotation.labels:
        return None  # the component never finds this label
    tokens = slice(shift + span.start, shift + span.end)
    labels = [parts.annotation.labels.index(span.label_)] if span.label else slice(None)
    # Annotation that is present comes first, so its tokens are not blocked
    present = settled.present[tokens]
    settled.blocked[tokens, labels] |= (present == 0)[:, np.newaxis]
    contradicts = present == span.label if span.label else present != 0
    return f"{parts.annotation.noun} is there already" if contradicts.any() else None


def _force(parts: Parts, settled: PresetAnnotation, starts: Ints, span: Span, shift: int) -> Optional[str]:
    """Settle a span that must be found. RETURNS (Optional[str]): The reason if that is impossible, otherwise None."""
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
    # The codes of the span: each token a span of its own for taggers
    iob = np.where((np.arange(begin, end) == begin) | annotation.spans_are_tokens, BEGIN, INSIDE)
    # Tokens that are settled with this label and these codes agree with the span; tokens of a longer or shorter entity do not
    agrees = (settled.iob[tokens] == iob) & (settled.label[tokens] == label)
    if not annotation.spans_are_tokens:
        is_longer = end < len(settled.iob) and settled.iob[end] == INSIDE
        agrees &= agrees.all() and not is_longer
    contradicts = settled.taken[tokens] & ~agrees
    if (settled.present[tokens][contradicts] != 0).any():
        return f"{annotation.noun} is there already"
    if (settled.iob[tokens][contradicts] == OUTSIDE).any():
        return "its tokens are blocked in doc.ents"
    if contradicts.any():
        return "it overlaps with another one"
    if settled.blocked[tokens, label].any():
        return f"doc.spans['{BLOCKED}'] comes first"
    problem = annotation.conflict_with(settled, starts, begin, end, label)
    if problem is None:
        settled.iob[tokens] = iob
        settled.label[tokens] = label
        settled.taken[tokens] = True
    return problem


def _warn_of_unlabelled(parts: Parts, docs: DocBatch, empty: Bools) -> None:
    """Warn once for each Doc with tokens for which no label is left (`empty`, bool[T])."""
    tokens = np.flatnonzero(empty)
    doc_of_token = np.searchsorted(docs.bounds, tokens, side="right") - 1
    for d in np.unique(doc_of_token).tolist():
        in_doc = tokens[doc_of_token == d] - docs.bounds[d]
        first = docs[d][int(in_doc[0])]
        parts.warn(
            Warnings.CRFW420,
            doc=docs[d].text[:40],
            n=counted(len(in_doc), "token"),
            token=first.i,
            word=first.text,
            key=BLOCKED,
        )


def _leave_out(scores: PathScores, empty: Bools) -> PathScores:
    """The scores without some tokens (`empty`, bool[T]). A token that is left out splits its sequence in two."""
    kept = np.flatnonzero(~empty)
    starts = np.union1d(scores.starts, np.flatnonzero(empty))
    # Where these tokens, or the next ones that are kept, are among the kept tokens
    kept_starts = np.unique(np.searchsorted(kept, starts))
    return cut(scores, kept, kept_starts)


# --------------------------------------------------------------- entities that are lost to those of another component


def warn_of_overlaps(parts: Parts, docs: DocBatch, scores: PathScores, preset: NDArray[np.uint64]) -> None:
    """Warn once (CRFW423) if a component would find entities that overlap the entities of another component of this package.

    parts (Parts): The parts of the component.
    docs (DocBatch): The Docs, with the scores of the model (PathScores).
    preset (uint64[T, 2]): The annotation that Docs have already, from `Entities.preset`.
    """
    annotation = parts.annotation
    if not isinstance(annotation, Entities) or Warnings.CRFW423 in parts.warned:
        return
    n_before = _N_SEARCHED.get(annotation, 0)
    present = entities_of(preset)
    if n_before >= _MOST_DOCS or not len(present.start):
        return
    # Components whose last batch began with the same Doc (by a weak reference) are in the same pipeline, before this one
    latest = [(name, labels) for name, (first_doc, labels) in LATEST.items() if first_doc() is docs[0]]
    labels_of = {name: labels for name, labels in latest if name != parts.name}
    if not labels_of:
        return
    _N_SEARCHED[annotation] = n_before + len(docs)
    # What the component would find if the Docs had no annotation
    decoding_parts, decoded_scores = without_edges(parts, docs, scores)
    decoding = decoding_parts.decoding
    found = decoding.segments(decoding.best_tags(decoded_scores, None), decoded_scores.starts)
    for begin, end, label in np.stack(found, axis=1).tolist():
        for n in np.flatnonzero((present.start < end) & (present.end > begin)).tolist():
            if _warn_of_overlap(parts, docs, (begin, end, parts.annotation.labels[label]), present, n, labels_of):
                return


def _warn_of_overlap(
    parts: Parts,
    docs: DocBatch,
    found: tuple[int, int, str],
    present: Segments,
    n: int,
    labels_of: dict[str, tuple[str, ...]],
) -> bool:
    """Warn if another component has set the present entity `n`, and a component found something else. Says whether it warned.

    labels_of: The labels of the other components, by their names.
    """
    begin, end, label = found
    start = int(present.start[n])
    stop = int(present.end[n])
    number = int(np.searchsorted(docs.bounds, start, side="right")) - 1
    doc = docs[number]
    shift = int(docs.bounds[number])
    kept_label = doc.vocab.strings[int(present.label[n]) % (1 << 64)]  # a hash, as int64
    other = next((name for name, labels in labels_of.items() if kept_label in labels), None)
    if other is None or (start, stop, kept_label) == found:
        return False
    parts.warn_once(
        Warnings.CRFW423,
        span=doc[begin - shift : end - shift].text,
        kept=doc[start - shift : stop - shift].text,
        other=other,
        label=label,
        kept_label=kept_label,
        text=doc.text[:40],
    )
    return True
