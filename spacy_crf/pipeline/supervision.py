"""Supervision beyond the annotation itself: alternatives, spans known to be wrong, and the weight of a Doc."""

import math
import zlib
from collections.abc import Iterator
from numbers import Real
from typing import NamedTuple, Optional

import numpy as np
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example

from .. import checks
from ..errors import Errors
from ..features.doc_batch import read_attributes
from ..schemes import Segments
from ..types import Floats, Ints
from .annotation.entities import Annotation, GoldReport, Keys, Supervision, same_words
from .annotation.trimming import DROPPED, TRIMMED, place_of, trimmed

WEIGHT = "crf_weight"  # name of the Doc extension


class EncodedSpans(NamedTuple):
    """How spans are encoded: the states of the pieces that make up each span."""

    states: Ints  # [M]
    lengths: Ints  # [M] tokens of the pieces
    starts: Ints  # [N + 1] pieces of each span


def allow_alternatives(
    gold: Supervision, annotation: Annotation, examples: list[Example], key: str, report: GoldReport
) -> None:
    """Allow the tags of the spans in ``reference.spans[key]``: where annotation is missing, only these are allowed; elsewhere
    they are allowed beside the annotation.

    gold (Supervision): The annotation in tags, which is changed in place.
    annotation (Annotation): The component's annotation.
    examples (List[Example]): The texts.
    key (str): Key of the spans.
    report (GoldReport): Gets the spans that cannot be used.
    """
    for begin, span in trimmed_spans(examples, key, annotation, report):
        tags = annotation.span_tags(span.label_, len(span))
        if tags is None:
            if span.label_ not in annotation.elsewhere:
                report.add_span(span, key, "have a label the component does not know")
            continue
        tokens = np.arange(begin + span.start, begin + span.end)
        # The first alternative of a token without annotation replaces "anything"
        fresh = tokens[gold.unset[tokens]]
        gold.clamp[fresh] = False
        gold.unset[fresh] = False
        gold.clamp[tokens, tags] = True


def refuse_contradictions(examples: list[Example], key: str, annotation: Annotation) -> None:
    """RAISES (ValueError): CRF441 if the `annotation` of `examples` has a span that is in ``reference.spans[key]`` too, as in
    spaCy's `ner`."""
    for example in examples:
        for span in example.reference.spans.get(key, ()):
            if annotation.is_gold(span):
                raise ValueError(
                    Errors.CRF441.format(
                        name=annotation.name, span=place_of(span), place=f"tokens {span.start} to {span.end}", key=key
                    )
                )


def forbid_incorrect(
    gold: Supervision,
    annotation: Annotation,
    examples: list[Example],
    key: str,
    report: GoldReport,
    starts: Ints,
) -> Segments:
    """Forbid the spans in ``reference.spans[key]``, unless the annotation decides already: exactly these tokens with this label,
    as in spaCy's `ner`; the label "O" forbids that the tokens are outside. The function removes from the clamp the tags that
    alone determine such a span: single tokens with BILUO, tags of taggers, and "O".

    gold (Supervision): The annotation in tags, whose clamp is changed in place.
    annotation (Annotation): The component's annotation.
    examples (List[Example]): The texts, whose sequences start at `starts` (int64[B + 1]).
    key (str): Key of the spans.
    report (GoldReport): Gets the spans that cannot be used.
    RETURNS (Segments): The other spans, which no clamp can exclude.
    """
    found = set()
    allowed = gold.clamp
    opening = set(starts.tolist())
    for begin, span in possible_spans(examples, key, annotation, report):
        tags = annotation.span_tags(span.label_, len(span)) if span.label else None
        if tags is None:
            if not span.label:
                report.add_span(span, key, "have no label, and say nothing")
            continue
        tokens = np.arange(begin + span.start, begin + span.end)
        # The annotation decides about tokens for which a single tag is left
        known = allowed[tokens].sum(axis=1) == 1
        if span.label_ not in annotation.labels or annotation.needs_no_neighbours(len(span)):
            is_annotated = (known & allowed[tokens, tags]).any()
            allowed[tokens[~known], tags[~known]] = False
        elif not opening.isdisjoint(tokens[1:].tolist()) or not allowed[tokens, tags].all():
            continue  # no labelling has the span anyway
        else:
            after = int(tokens[-1]) + 1
            # A longer annotated span is another one
            goes_on = after not in opening and allowed[after, annotation.continuing_tags(int(tags[-1]))].any()
            is_annotated = known.all() and not goes_on
            if not is_annotated:
                found.add((int(tokens[0]), after, annotation.labels.index(span.label_)))
        if is_annotated:
            report.add_span(span, key, "are all that is left of their tokens, and stay")
    return Segments.of_rows(sorted(found))


def soft_scores(group: SpanGroup, key: str) -> list[float]:
    """The scores of a group of soft labels, in ``doc.spans[key]``. RAISES (ValueError): CRF825 if they are not probabilities."""
    text = group.doc.text[:40]
    scores = group.attrs.get("scores")
    if scores is None or np.ndim(scores) != 1 or len(scores) != len(group):
        found = "no scores" if scores is None else f"scores of shape {np.shape(scores)}"
        raise ValueError(Errors.CRF825.format(key=key, text=text, problem=f"{len(group)} spans have {found}"))
    for span, score in zip(group, scores):
        if not (isinstance(score, Real) and 0.0 <= float(score) <= 1.0):
            raise ValueError(
                Errors.CRF825.format(
                    key=key, text=text, problem=f"the score of '{span.text}' ({span.label_}) is {score}"
                )
            )
    return [float(score) for score in scores]


def likely_spans(doc: Doc, key: str) -> list[Span]:
    """Soft labels in ``doc.spans[key]`` with a probability of at least one half."""
    if key not in doc.spans:
        return []
    group = doc.spans[key]
    return [span for span, score in zip(group, soft_scores(group, key)) if score >= 0.5]


def aligned_spans(examples: list[Example], key: str) -> Iterator[tuple[int, Span]]:
    """Yield the spans in ``reference.spans[key]`` of a batch of examples, aligned with the predicted Docs.

    YIELDS (Tuple[int, Span]): The number of the batch's tokens before the Doc, and the span in the tokens of the Doc.
    """
    begin = 0
    for example in examples:
        reference = example.reference
        if key in reference.spans:
            spans = list(reference.spans[key])
            if not same_words(example.predicted, reference):
                spans = example.get_aligned_spans_y2x(spans, allow_overlap=True)
            yield from ((begin, span) for span in spans if len(span))
        begin += len(example.predicted)


def trimmed_spans(
    examples: list[Example], key: str, annotation: Annotation, report: GoldReport
) -> Iterator[tuple[int, Span]]:
    """Yield the spans of `aligned_spans`, trimmed if the `annotation` forbids white space at their edges. `report` gets the spans
    that had to be trimmed."""
    for begin, span in aligned_spans(examples, key):
        kept = without_blanks(span, annotation, key, report)
        if kept is not None:
            yield begin, kept


def without_blanks(span: Span, annotation: Annotation, key: str, report: GoldReport) -> Optional[Span]:
    """A gold span in ``doc.spans[key]``, trimmed if the annotation forbids white space at its edges; None if nothing is left.
    `report` gets the span if it had to be trimmed."""
    kept = trimmed(span, space_edges=annotation.space_edges)
    if kept is not span:
        report.add_span(span, key, DROPPED if kept is None else TRIMMED)
    return kept


def possible_spans(
    examples: list[Example], key: str, annotation: Annotation, report: GoldReport
) -> Iterator[tuple[int, Span]]:
    """Yield the spans of `aligned_spans`, except spans with white space at an edge if the `annotation` forbids it: no labelling
    has these spans, and `report` gets them. They are not trimmed: if a span is wrong, a shorter span may be right."""
    for begin, span in aligned_spans(examples, key):
        if trimmed(span, space_edges=annotation.space_edges) is not span:
            report.add_span(span, key, "begin or end with white space, as no span does, and say nothing")
        else:
            yield begin, span


def sequence_weights(examples: list[Example], starts: Ints, bounds: Ints) -> Optional[Floats]:
    """``doc._.crf_weight`` of the reference Docs, for each sequence (float64[B]); None if all are 1. RAISES (ValueError): CRF020.

    examples (List[Example]): The texts.
    starts (int64[B + 1]), bounds (int64[D + 1]): Where the rows of each sequence, and of each Doc, begin and end.
    """
    weights = _weights(examples)
    if all(weight == 1.0 for weight in weights):
        return None
    of_docs = np.array(weights, dtype=np.float64)
    if np.array_equal(starts, bounds):  # each Doc is one sequence, also a Doc without tokens
        return of_docs
    # Sequences without tokens at the end of the batch belong to the last Doc
    doc_of_sequence = np.searchsorted(bounds, starts[:-1], side="right") - 1
    return of_docs[np.minimum(doc_of_sequence, len(weights) - 1)]


def _weights(examples: list[Example]) -> list[float]:
    """Read the weight of each reference Doc. RAISES (ValueError): CRF020 for anything but a finite number, at least 0."""
    weights = []
    for example in examples:
        doc = example.reference
        weight = doc._.get(WEIGHT)
        is_number = isinstance(weight, (float, Real))  # `isinstance(…, Real)` alone is slow
        if not (is_number and math.isfinite(weight) and float(weight) >= 0.0):
            checks.expect(
                False, f"The document '{doc.text[:40]}...'", "doc._.crf_weight", weight, "a finite number, at least 0"
            )
        weights.append(float(weight))
    return weights


def fingerprint(annotation: Annotation, examples: list[Example], keys: Keys, attributes: list[int]) -> int:
    """A checksum of what training reads of examples, except from functions.

    annotation (Annotation): The annotation that reads the labels of the reference Docs.
    examples (List[Example]): The texts.
    keys (Keys): Keys of ``reference.spans``.
    attributes (List[int]): Attributes of the predicted Docs, beside their words.
    """
    predicted = [example.predicted for example in examples]
    references = [example.reference for example in examples]
    lengths = [(len(example.predicted), len(example.reference)) for example in examples]
    check = annotation.fingerprint(references)
    for read in (
        read_attributes(predicted, [ORTH, *attributes]),
        read_attributes(references, [ORTH]),
        np.array(lengths, dtype=np.int64),
        np.array(_weights(examples), dtype=np.float64),
    ):
        check = zlib.crc32(read.data, check)
    for example in examples if any(keys) else ():
        groups = example.reference.spans
        spans = [(key, span.start, span.end, span.label) for key in filter(None, keys) for span in groups.get(key, ())]
        scores = list(groups[keys.soft].attrs.items()) if keys.soft in groups else []
        check = zlib.crc32(repr((spans, scores)).encode("utf8"), check)
    return check
