"""Soft labels: a teacher's probabilities for texts, read from ``doc.spans`` into the form of `losses.soft`.

A group of spans with ``attrs["scores"]``, as spaCy's `spancat` writes it, has for each span the probability that exactly these
tokens are an entity of this label (for taggers: that each token has the label); the rest is the probability that a token is in no
entity. Among all distributions over labellings with these probabilities the one with the largest entropy is used: given that one
span ends where another begins, their labels and other ends are independent.
"""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple, Optional, Union

import numpy as np
from spacy.tokens import Span
from spacy.training import Example

from .. import checks
from ..arrays import ends, ranges, states_of
from ..losses.soft import NO_STATE, Runs, SoftLabelling, SoftSegments, SoftTransitions
from ..schemes import Segments
from ..types import Bools, Floats, Ints
from .annotation.entities import GoldReport, Supervision, same_words
from .decoding import Parts
from .supervision import EncodedSpans, soft_scores, without_blanks

# of sums of weights, and of scores as they were written
_ROUNDING = 1e-9
_TOLERANCE = 1e-4


class SoftSpans(NamedTuple):
    """Spans that exclude each other if they overlap."""

    begin: Ints  # [N]
    end: Ints  # [N]
    label: Ints  # [N] -1 for none
    weight: Floats  # [N] their probabilities

    def only(self, which: Union[Bools, Ints]) -> "SoftSpans":
        """Some of the spans; `which` is a mask (bool[N]) or their numbers (int64[M])."""
        return SoftSpans(self.begin[which], self.end[which], self.label[which], self.weight[which])

    def covers(self, n_tokens: int) -> Floats:
        """Probability that a span covers each of `n_tokens` tokens: float64[T]."""
        opened = np.bincount(self.begin, self.weight, n_tokens + 1)
        closed = np.bincount(self.end, self.weight, n_tokens + 1)
        return np.cumsum(opened - closed, dtype=np.float64)[:n_tokens]


def supervise(
    parts: Parts, key: str, known: Supervision, examples: list[Example], starts: Ints, report: GoldReport
) -> Supervision:
    """Add the soft labels of a batch in ``doc.spans[key]``, if it has any. The clamp allows the labels with a positive
    probability.

    parts (Parts): Of the component.
    key (str): Key of the soft labels.
    known (Supervision): By the annotation, whose clamp is changed in place.
    examples (List[Example]): The batch, whose sequences start at `starts` (int64[B + 1]).
    report (GoldReport): Gets the spans that cannot be used.
    """
    if not any(key in example.reference.spans for example in examples):
        return known
    spans, is_soft = _read(parts, key, examples, starts, report)

    def add(tokens: list[int], problem: str) -> None:
        """Report a problem with some tokens."""
        words = list(chain.from_iterable(example.predicted for example in examples)) if tokens else []
        for at in tokens:
            report.add(problem, f"at '{words[at].text}' in '{words[at].doc.text[:40]}'")

    spans, is_soft = _fit(parts, spans, is_soft & known.unset, add)
    encoded = parts.decoding.encode_spans(Segments(*spans[:3]))
    labelling, by_token = _label(spans, encoded, is_soft, starts, parts)
    states_of(known.clamp)[is_soft] = by_token[is_soft]
    label = np.repeat(spans.label, np.diff(encoded.starts))
    named = Segments(labelling.pieces.begin, labelling.pieces.end, label).only(label >= 0)
    return known._replace(
        soft=labelling, unset=known.unset & ~is_soft, alternatives=Segments.join([known.alternatives, named])
    )


# ------------------------------------------------------------------------------------------------------------- reading


def _read(parts: Parts, key: str, examples: list[Example], starts: Ints, report: GoldReport) -> tuple[SoftSpans, Bools]:
    """Read the spans with their probabilities, and find the tokens of texts with soft labels, in or outside of spans (bool[T]).

    RAISES (ValueError): CRF825 to CRF846 for spans that cannot be soft labels of the component.
    """
    rows = []
    shift = 0
    is_soft = np.zeros(int(starts[-1]), dtype=bool)
    for example in examples:
        if key in example.reference.spans:
            tokens = slice(shift, shift + len(example.predicted))
            is_soft[tokens] = True
            for span, score, aligned in _aligned(example, key):
                if span.label_ and span.label_ not in parts.annotation.labels:
                    place = f"doc.spans['{key}'] of '{span.doc.text[:40]}...', '{span.text}'"
                    checks.labels(f"Component '{parts.name}', {place}", [span.label_], parts.annotation.labels)
                if not span.label_:
                    is_soft[tokens][_touched(example, span)] = False
                elif aligned is None:
                    report.add_span(span, key, "do not align with the tokens, of which nothing is known then")
                    is_soft[tokens][_touched(example, span)] = False
                elif score > 0.0 and len(aligned):
                    kept = without_blanks(aligned, parts.annotation, key, report)
                    if kept is None:
                        continue
                    begin = shift + kept.start
                    end = shift + kept.end
                    rows.append((begin, end, parts.annotation.labels.index(span.label_), score))
                    if ((starts > begin) & (starts < end)).any() and not parts.annotation.spans_are_tokens:
                        report.add_span(span, key, "cross the start of a sentence, and their tokens count as missing")
                        is_soft[begin:end] = False
        shift += len(example.predicted)
    columns = np.ascontiguousarray(np.array(rows, dtype=np.float64).reshape(-1, 4).T)
    begin, end, label = columns[:3].astype(np.int64)
    return SoftSpans(begin, end, label, weight=columns[3]), is_soft


def _aligned(example: Example, key: str) -> Iterator[tuple[Span, float, Optional[Span]]]:
    """Yield each span of a reference Doc, its score, and the span of the predicted Doc with which it aligns; None without one."""
    group = example.reference.spans[key]
    same = same_words(example.predicted, example.reference)
    for span, score in zip(group, soft_scores(group, key)):
        if same:
            yield span, score, span
        else:
            yield span, score, next(iter(example.get_aligned_spans_y2x([span], allow_overlap=True)), None)


def _touched(example: Example, span: Span) -> list[int]:
    """Tokens of the predicted Doc that overlap a span of the reference."""
    text = range(span.start_char, span.end_char)
    return [t.i for t in example.predicted if t.idx < text.stop and t.idx + len(t) > text.start]


def _fit(
    parts: Parts, spans: SoftSpans, is_soft: Bools, add: Callable[[list[int], str], None]
) -> tuple[SoftSpans, Bools]:
    """The possible spans, and single tokens outside of all spans, sorted by first token; and the tokens with soft labels.

    add (Callable): Reports a problem with some tokens.
    """
    n_tokens = len(is_soft)
    key = parts.loss.spans_key
    tokens_alone = parts.annotation.spans_are_tokens
    if tokens_alone:
        length = spans.end - spans.begin
        at = ranges(spans.begin, spans.end)
        spans = SoftSpans(at, at + 1, np.repeat(spans.label, length), np.repeat(spans.weight, length))
    # [T + 1] number of tokens before each that have no soft labels
    n_open = np.append(0, np.cumsum(~is_soft))
    fits = n_open[spans.begin] == n_open[spans.end]
    if not tokens_alone:
        what = f"spans in doc.spans['{key}'] touch tokens that are annotated, or of which nothing is known, and say nothing"
        add(spans.begin[~fits].tolist(), what)
    spans = spans.only(fits)
    covered = spans.covers(n_tokens)
    if tokens_alone:  # taggers label every token
        is_covered = covered > _ROUNDING
        total = np.where(is_covered, covered, 1.0)[spans.begin]
        spans = spans._replace(weight=spans.weight / total)
        return spans.only(np.argsort(spans.begin, kind="stable")), is_soft & is_covered
    what = f"tokens have spans in doc.spans['{key}'] whose scores add up to more than 1, and were scaled down"
    add(np.flatnonzero(covered > 1.0 + _TOLERANCE).tolist(), what)
    # A span can be no more probable than its tokens leave room for
    scale = np.array([covered[b:e].max() for b, e in zip(spans.begin.tolist(), spans.end.tolist())])
    spans = spans._replace(weight=spans.weight / np.maximum(1.0, scale))
    outside = np.where(is_soft, 1.0 - spans.covers(n_tokens), 0.0)
    at = np.flatnonzero(outside > _ROUNDING)
    none = SoftSpans(at, at + 1, np.full(len(at), -1), outside[at])
    every = SoftSpans._make(map(np.concatenate, zip(spans, none)))
    return every.only(np.argsort(every.begin, kind="stable")), is_soft


# ------------------------------------------------------------------------------------------------------------- encoding


def _label(
    spans: SoftSpans, tags: EncodedSpans, is_soft: Bools, starts: Ints, parts: Parts
) -> tuple[SoftLabelling, Bools]:
    """The probabilities of states and transitions that spans imply, and the possible states at each token: bool[T, S]."""
    n_tokens = len(is_soft)
    n_pieces = np.diff(tags.starts)
    weight = np.repeat(spans.weight, n_pieces)
    # The end of each piece: the begin of its span, and the lengths of the pieces of the span up to it
    tokens_before = np.append(0, np.cumsum(spans.end - spans.begin))[:-1]  # of earlier spans
    end = np.repeat(spans.begin - tokens_before, n_pieces) + np.cumsum(tags.lengths)
    pieces = SoftSegments(end - tags.lengths, end, tags.states, weight)
    # Within a span, each piece follows the one before it
    inner = np.delete(np.arange(len(weight)), tags.starts[:-1])
    inside = SoftTransitions(pieces.begin[inner], tags.states[inner - 1], tags.states[inner], weight[inner])
    meets = is_soft & ~ends(starts, n_tokens)[0]
    meets[1:] &= is_soft[:-1]
    left, right, of_pairs = _pairs(spans, meets)
    first = tags.states[tags.starts[:-1]]
    last = tags.states[tags.starts[1:] - 1]
    between = SoftTransitions(spans.begin[right], last[left], first[right], of_pairs)
    steps = SoftTransitions._make(map(np.concatenate, zip(inside, between)))
    runs = _runs(spans, (first, last), is_soft, starts)
    runs = runs._replace(goes_on=parts.decoding.spans.continues)
    by_token = np.zeros((n_tokens, len(parts.decoding.label_of_states)), dtype=bool)
    by_token[ranges(pieces.begin, pieces.end), np.repeat(pieces.state, tags.lengths)] = True
    return SoftLabelling(
        pieces=pieces, steps=steps, runs=runs, has_soft=np.diff(np.append(0, np.cumsum(is_soft))[starts]) > 0
    ), by_token


def _pairs(spans: SoftSpans, meets: Bools) -> tuple[Ints, Ints, Floats]:
    """Pairs of spans that may follow each other at some tokens, and their probabilities. (Spans are sorted by first token.)

    q(left, right) = q(left) · q(right) / q(some span begins here)
    """
    n_tokens = len(meets)
    # Numbers of the spans in the order of their ends
    by_end = np.argsort(spans.end, kind="stable")
    n_left = np.bincount(spans.end, minlength=n_tokens + 1)[:n_tokens]
    n_right = np.bincount(spans.begin, minlength=n_tokens)
    first_left = np.cumsum(n_left) - n_left
    first_right = np.cumsum(n_right) - n_right
    n_pairs = np.where(meets, n_left * n_right, 0)
    # The pairs of each token are numbered through: number = left * n_right + right
    token = np.repeat(np.arange(n_tokens), n_pairs)
    number = np.arange(len(token)) - np.repeat(np.cumsum(n_pairs) - n_pairs, n_pairs)
    left = by_end[first_left[token] + number // n_right[token]]
    right = first_right[token] + number % n_right[token]
    begins = np.bincount(spans.begin, spans.weight, minlength=n_tokens)
    return left, right, spans.weight[left] * spans.weight[right] / begins[token]


def _runs(spans: SoftSpans, states: tuple[Ints, Ints], is_soft: Bools, starts: Ints) -> Runs:
    """Runs of tokens without soft labels. states: The first and the last state of each span."""
    n_tokens = len(is_soft)
    opens, closes = ends(starts, n_tokens)
    before = np.append(True, is_soft[:-1])[:n_tokens]
    after = np.append(is_soft[1:], True)[:n_tokens]
    begin = np.flatnonzero(~is_soft & (opens | before))
    end = np.flatnonzero(~is_soft & (closes | after)) + 1
    at_end = np.isin(spans.end, begin)
    at_begin = np.isin(spans.begin, end)
    before_runs = _by_token(spans.end[at_end], states[1][at_end], spans.weight[at_end])
    after_runs = _by_token(spans.begin[at_begin], states[0][at_begin], spans.weight[at_begin])
    alone = {NO_STATE: 1.0}
    rows = []
    for b, e in zip(begin.tolist(), end.tolist()):
        left = alone if opens[b] else before_runs[b]
        right = alone if closes[e - 1] else after_runs[e]
        for before_run, p in left.items():
            rows += [(b, e, before_run, behind_run, p * q) for behind_run, q in right.items()]
    columns = np.ascontiguousarray(np.array(rows, dtype=np.float64).reshape(-1, 5).T)
    begin, end, before, after = columns[:4].astype(np.int64)
    return Runs(begin, end, before, after, columns[4])


def _by_token(tokens: Ints, states: Ints, weights: Floats) -> dict[int, dict[int, float]]:
    """Probability of each state at the ends of spans, by token."""
    found: dict[int, dict[int, float]] = {}
    for token, state, weight in zip(tokens.tolist(), states.tolist(), weights.tolist()):
        of_token = found.setdefault(token, {})
        of_token[state] = of_token.get(state, 0.0) + weight
    return found
