"""Supervision beyond the annotation itself: alternatives, spans known to be wrong, and the weight of a Doc."""

import math
import zlib
from collections.abc import Iterator
from numbers import Real
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example

from .. import checks
from ..errors import Errors
from ..features.doc_batch import read_attributes
from ..inference.linear_chain import LinearChain
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats
from .annotation.entities import Annotation, GoldReport, Keys, Supervision, same_words
from .annotation.trimming import DROPPED, TRIMMED, place_of, trimmed

WEIGHT = "crf_weight"  # name of the Doc extension


class EncodedSpans(NamedTuple):
    """How spans are encoded: the states of the pieces that make up each span."""

    states: NDArray[np.int64]  # [M]
    lengths: NDArray[np.int64]  # [M] tokens of the pieces
    starts: NDArray[np.int64]  # [N + 1] pieces of each span


def allow_alternatives(
    gold: Supervision, annotation: Annotation, examples: list[Example], key: str, report: GoldReport
) -> None:
    """Allow the tags of the spans in ``reference.spans[key]``: where annotation is missing, only these are allowed; elsewhere
    they are allowed beside the annotation."""
    for begin, span in trimmed_spans(examples, key, annotation, report):
        tags = annotation.span_tags(span.label_, len(span))
        if tags is None:
            if span.label_ not in annotation.elsewhere:
                report.add_span(span, key, "have a label the component does not know")
            continue
        tokens = np.arange(begin + span.start, begin + span.end)
        fresh = tokens[gold.unset[tokens]]
        gold.clamp[fresh] = False
        gold.unset[fresh] = False
        gold.clamp[tokens, tags] = True


def refuse_contradictions(examples: list[Example], key: str, annotation: Annotation) -> None:
    """RAISES (ValueError): CRF441 for a span that is both annotated and in ``reference.spans[key]``, as in spaCy's `ner`."""
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
    starts: NDArray[np.int64],
) -> Segments:
    """Forbid the spans in ``reference.spans[key]``, unless the annotation decides already: exactly these tokens with this label,
    as in spaCy's `ner`; the label "O" forbids that the tokens are outside. The function removes from the clamp the tags that
    alone determine such a span: single tokens with BILUO, tags of taggers, and "O".

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
        known = allowed[tokens].sum(axis=1) == 1
        if span.label_ not in annotation.labels or annotation.needs_no_neighbours(len(span)):
            is_annotated = (known & allowed[tokens, tags]).any()
            allowed[tokens[~known], tags[~known]] = False
        elif not opening.isdisjoint(tokens[1:].tolist()) or not allowed[tokens, tags].all():
            continue  # no labelling has the span anyway
        else:
            after = int(tokens[-1]) + 1
            goes_on = after not in opening and allowed[after, annotation.continuing_tags(int(tags[-1]))].any()
            is_annotated = known.all() and not goes_on
            if not is_annotated:
                found.add((int(tokens[0]), after, annotation.labels.index(span.label_)))
        if is_annotated:
            report.add_span(span, key, "are all that is left of their tokens, and stay")
    columns = zip(*sorted(found)) if found else np.zeros((3, 0))
    return Segments(*(np.array(column, dtype=np.int64) for column in columns))


def without_steps(decoding: Any, scores: ChainScores, steps: NDArray[np.int64]) -> ChainScores:
    """Scores of a chain that forbid certain steps (int64[N, 3]), see `Scheme.encode_clamp`."""
    label = decoding.label_of_states
    continues: Any = decoding.spans.continues  # for chains
    shape = (len(scores.emissions), *continues.shape)
    transitions = np.array(np.broadcast_to(scores.transitions, shape))
    for token, to_label, goes_on in steps.tolist():
        transitions[token, (continues == goes_on) & (label == to_label)] = -np.inf
    return scores._replace(transitions=transitions)


def leave_out(decoding: Any, steps: NDArray[np.int64], clamp: Clamp, starts: NDArray[np.int64]) -> None:
    """Remove states from a clamp, in place, until no labelling takes any of the given steps. This also excludes some allowed
    labellings; it serves losses and optimizers that cannot handle steps. At least one labelling remains if there was one."""
    allowed = clamp.copy()
    label = decoding.label_of_states
    continues: Any = decoding.spans.continues  # for chains
    for token, to_label, goes_on in steps.tolist():
        of_label = label == to_label
        # A step that continues a span has its label before and here; a step that begins one has another tag before
        before, here = (of_label, of_label & continues[of_label].any(axis=0)) if goes_on else (~of_label, of_label)
        ways = [(token - 1, before), (token, here)]
        for at, states in ways if goes_on else ways[::-1]:
            if (clamp[at] & ~states).any():
                clamp[at] &= ~states
                break
    of_step = np.searchsorted(starts, steps[:, 0], side="right") - 1
    for b in np.unique(of_step).tolist():
        tokens = slice(int(starts[b]), int(starts[b + 1]))
        of_states = np.zeros((tokens.stop - tokens.start, decoding.n_states))
        free = ChainScores(of_states, *(np.where(may, 0.0, -np.inf) for may in decoding.mask()))
        without = without_steps(decoding, free, steps[of_step == b] - [tokens.start, 0, 0])
        left, possible = (LinearChain().log_partition(scores, clamp=clamp[tokens]) for scores in (without, free))
        if left[0] > -np.inf and np.isclose(left[0], possible[0], rtol=0.0, atol=1e-9):
            continue
        # A state removed because of one step may be needed because of another
        path, best = LinearChain().viterbi(without, clamp=allowed[tokens])
        of_path = decoding.tags(path)[:, np.newaxis] == np.arange(len(decoding.annotation.tags()))
        clamp[tokens] = of_path[:, decoding.tag_of] & (best[0] > -np.inf)


def soft_scores(group: SpanGroup, key: str) -> list[float]:
    """The scores of a group of soft labels. RAISES (ValueError): CRF825 if they are not probabilities."""
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
    """Soft labels with a probability above one half."""
    if key not in doc.spans:
        return []
    group = doc.spans[key]
    return [span for span, score in zip(group, soft_scores(group, key)) if score >= 0.5]


def aligned_spans(examples: list[Example], key: str) -> Iterator[tuple[int, Span]]:
    """Spans as spans of the predicted Docs, each with the first token of its Doc in the batch."""
    begin = 0
    for example in examples:
        predicted = example.predicted
        reference = example.reference
        if key in reference.spans:
            spans = list(reference.spans[key])
            if not same_words(predicted, reference):
                spans = example.get_aligned_spans_y2x(spans, allow_overlap=True)
            yield from ((begin, span) for span in spans if len(span))
        begin += len(predicted)


def trimmed_spans(
    examples: list[Example], key: str, annotation: Annotation, report: GoldReport
) -> Iterator[tuple[int, Span]]:
    """`aligned_spans` without white space at their edges."""
    for begin, span in aligned_spans(examples, key):
        kept = without_blanks(span, annotation, key, report)
        if kept is not None:
            yield begin, kept


def without_blanks(span: Span, annotation: Annotation, key: str, report: GoldReport) -> Optional[Span]:
    """A gold span in ``doc.spans[key]``, trimmed if the annotation forbids white space at its edges; None if nothing is left."""
    kept = trimmed(span, space_edges=annotation.space_edges)
    if kept is not span:
        report.add_span(span, key, DROPPED if kept is None else TRIMMED)
    return kept


def possible_spans(
    examples: list[Example], key: str, annotation: Annotation, report: GoldReport
) -> Iterator[tuple[int, Span]]:
    """`aligned_spans` but for those that no labelling has, as they have white space at their edges. These are not trimmed: that a
    span is wrong does not mean that a shorter one is."""
    for begin, span in aligned_spans(examples, key):
        if trimmed(span, space_edges=annotation.space_edges) is not span:
            report.add_span(span, key, "begin or end with white space, as no span does, and say nothing")
        else:
            yield begin, span


def sequence_weights(examples: list[Example], starts: NDArray[np.int64], bounds: NDArray[np.int64]) -> Optional[Floats]:
    """``doc._.crf_weight`` of the reference Docs, for each sequence (float64[B]); None if all are 1. RAISES (ValueError): CRF020.

    starts (int64[B + 1]), bounds (int64[D + 1]): Where the rows of each sequence, and of each Doc, begin and end.
    """
    weights = _weights(examples)
    if all(weight == 1.0 for weight in weights):
        return None
    if np.array_equal(starts, bounds):  # those without tokens too
        return np.array(weights, dtype=np.float64)
    doc_of_sequence = np.searchsorted(bounds, starts[:-1], side="right") - 1
    return np.array(weights, dtype=np.float64)[np.minimum(doc_of_sequence, len(weights) - 1)]


def _weights(examples: list[Example]) -> list[float]:
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
    """A number that changes with what training reads of examples (of predicted Docs, `attributes`), except from functions."""
    check = annotation.fingerprint([example.reference for example in examples])
    for docs, read in (("predicted", [ORTH, *attributes]), ("reference", [ORTH])):
        check = zlib.crc32(read_attributes([getattr(example, docs) for example in examples], read).data, check)
    lengths = [(len(example.predicted), len(example.reference)) for example in examples]
    for numbers in (np.array(lengths, dtype=np.int64), np.array(_weights(examples), dtype=np.float64)):
        check = zlib.crc32(numbers.data, check)
    for example in examples if any(keys) else ():
        groups = example.reference.spans
        spans = [(key, span.start, span.end, span.label) for key in filter(None, keys) for span in groups.get(key, ())]
        scores = list(groups[keys.soft].attrs.items()) if keys.soft in groups else []
        check = zlib.crc32(repr((spans, scores)).encode("utf8"), check)
    return check
