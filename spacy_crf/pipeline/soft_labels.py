"""Soft labels: a teacher's probabilities for texts, read from ``doc.spans`` into the form of `losses.soft`.

A group of spans with ``attrs["scores"]``, as spaCy's `spancat` writes it, has for each span the probability that exactly these
tokens are an entity of this label (for taggers: that each token has the label); the rest is the probability that a token is in no
entity. Among all distributions over labellings with these probabilities the one with the largest entropy is used: given that one
span ends where another begins, their labels and other ends are independent.
"""

from collections.abc import Callable, Iterator
from itertools import chain, product
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

_ROUNDING = 1e-9  # smaller sums of probabilities count as 0
_TOLERANCE = 1e-4  # a sum of scores, which files have rounded, may exceed 1 by as much


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
    """Add the soft labels in ``doc.spans[key]`` of a batch to its supervision, if it has any. The clamp allows the labels with a
    positive probability.

    parts (Parts): The parts of the component.
    key (str): Key of the soft labels.
    known (Supervision): The supervision by the annotation, whose clamp is changed in place.
    examples (List[Example]): The batch, whose sequences start at `starts` (int64[B + 1]).
    report (GoldReport): Gets the spans that cannot be used.
    """
    if not any(key in example.reference.spans for example in examples):
        return known
    spans, is_soft = _read(parts, key, examples, starts, report)

    def add(tokens: list[int], problem: str) -> None:
        """Report a problem with some tokens."""
        words = list(chain.from_iterable(example.predicted for example in examples)) if tokens else []
        for t in tokens:
            report.add(problem, f"at '{words[t].text}' in '{words[t].doc.text[:40]}'")

    spans, is_soft = _fit(parts, spans, is_soft & known.unset, add)
    encoded = parts.decoding.encode_spans(Segments(*spans[:3]))
    labelling, is_possible = _label(spans, encoded, is_soft, starts, parts)
    states_of(known.clamp)[is_soft] = is_possible[is_soft]
    # The labelled spans, in pieces, count as alternatives to the annotation
    label = np.repeat(spans.label, np.diff(encoded.starts))
    pieces = Segments(labelling.pieces.begin, labelling.pieces.end, label).only(label >= 0)
    return known._replace(
        soft=labelling, unset=known.unset & ~is_soft, alternatives=Segments.join([known.alternatives, pieces])
    )


# ------------------------------------------------------------------------------------------------------------- reading


def _read(parts: Parts, key: str, examples: list[Example], starts: Ints, report: GoldReport) -> tuple[SoftSpans, Bools]:
    """Read the spans with their probabilities.

    RETURNS (Tuple[SoftSpans, bool[T]]): The spans in the tokens of the batch, and which tokens have soft labels, in and outside
        of spans.
    RAISES (ValueError): CRF825 to CRF846 for spans that cannot be soft labels of the component.
    """
    rows = []
    shift = 0  # of the tokens of a Doc in the batch
    is_soft = np.zeros(int(starts[-1]), dtype=bool)
    for example in examples:
        if key in example.reference.spans:
            tokens = slice(shift, shift + len(example.predicted))
            is_soft[tokens] = True
            for span, score, aligned in _aligned(example, key):
                if span.label_ and span.label_ not in parts.annotation.labels:
                    place = f"doc.spans['{key}'] of '{span.doc.text[:40]}...', '{span.text}'"
                    checks.labels(f"Component '{parts.name}', {place}", [span.label_], parts.annotation.labels)
                if span.label_ and aligned is None:
                    report.add_span(span, key, "do not align with the tokens, of which nothing is known then")
                # The teacher is unsure about these tokens, or the span is no span of whole tokens
                if not span.label_ or aligned is None:
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
    return SoftSpans(*columns[:3].astype(np.int64), weight=columns[3]), is_soft


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
    """Make a distribution of the spans that were read: leave out spans that touch tokens without soft labels, scale down scores
    that add up to more than 1, and add spans without a label for tokens outside of all spans.

    is_soft (bool[T]): Which tokens have soft labels.
    add (Callable): Reports a problem with some tokens.
    RETURNS (Tuple[SoftSpans, bool[T]]): The spans, sorted by first token, and which tokens have soft labels.
    """
    n_tokens = len(is_soft)
    key = parts.loss.spans_key
    tokens_alone = parts.annotation.spans_are_tokens
    if tokens_alone:  # each token of a span is a span of its own
        length = spans.end - spans.begin
        labelled = ranges(spans.begin, spans.end)
        spans = SoftSpans(labelled, labelled + 1, np.repeat(spans.label, length), np.repeat(spans.weight, length))
    n_hard_before = np.append(0, np.cumsum(~is_soft))  # [T + 1] tokens without soft labels before each token
    is_inside = n_hard_before[spans.begin] == n_hard_before[spans.end]
    if not tokens_alone:
        what = f"spans in doc.spans['{key}'] touch tokens that are annotated, or of which nothing is known, and say nothing"
        add(spans.begin[~is_inside].tolist(), what)
    spans = spans.only(is_inside)
    covered = spans.covers(n_tokens)  # [T]
    if parts.decoding.outside < 0:  # every token has a label
        is_covered = covered > _ROUNDING
        total = np.where(is_covered, covered, 1.0)[spans.begin]
        spans = spans._replace(weight=spans.weight / total)
        return spans.only(np.argsort(spans.begin, kind="stable")), is_soft & is_covered
    what = f"tokens have spans in doc.spans['{key}'] whose scores add up to more than 1, and were scaled down"
    add(np.flatnonzero(covered > 1.0 + _TOLERANCE).tolist(), what)
    # A span can be no more probable than its tokens leave room for
    scale = np.array([covered[b:e].max() for b, e in zip(spans.begin.tolist(), spans.end.tolist())])
    spans = spans._replace(weight=spans.weight / np.maximum(1.0, scale))
    outside = np.where(is_soft, 1.0 - spans.covers(n_tokens), 0.0)  # [T] probability that no span covers the token
    open_tokens = np.flatnonzero(outside > _ROUNDING)
    unlabelled = SoftSpans(open_tokens, open_tokens + 1, np.full(len(open_tokens), -1), outside[open_tokens])
    joined = SoftSpans._make(map(np.concatenate, zip(spans, unlabelled)))
    return joined.only(np.argsort(joined.begin, kind="stable")), is_soft


# ------------------------------------------------------------------------------------------------------------- encoding


def _label(
    spans: SoftSpans, tags: EncodedSpans, is_soft: Bools, starts: Ints, parts: Parts
) -> tuple[SoftLabelling, Bools]:
    """Turn the probabilities of spans into probabilities of states and of transitions between states.

    spans (SoftSpans): N spans, sorted by first token.
    tags (EncodedSpans): The states of their M pieces: of the tokens of a span, or of its segments.
    is_soft (bool[T]): Which tokens have soft labels.
    starts (int64[B + 1]): Where the sequences start.
    parts (Parts): The parts of the component.
    RETURNS (Tuple[SoftLabelling, bool[T, S]]): The probabilities, and the states that are possible at each token.
    """
    n_tokens = len(is_soft)
    n_pieces = np.diff(tags.starts)  # [N]
    weight = np.repeat(spans.weight, n_pieces)  # [M] a piece is as probable as its span
    # A piece ends as many tokens behind the begin of its span as it and the earlier pieces of the span have
    tokens_before = np.append(0, np.cumsum(spans.end - spans.begin))[:-1]  # [N] of all earlier spans
    end = np.repeat(spans.begin - tokens_before, n_pieces) + np.cumsum(tags.lengths)
    pieces = SoftSegments(end - tags.lengths, end, tags.states, weight)
    # Within a span, each piece but the first follows the piece before it
    inner = np.delete(np.arange(len(weight)), tags.starts[:-1])
    inside = SoftTransitions(pieces.begin[inner], tags.states[inner - 1], tags.states[inner], weight[inner])
    # Between spans: two can meet at a token if this token and the one before it, of the same sequence, have soft labels
    can_meet = is_soft & ~ends(starts, n_tokens)[0]
    can_meet[1:] &= is_soft[:-1]
    left, right, pair_weights = _pairs(spans, can_meet)
    first = tags.states[tags.starts[:-1]]  # [N]
    last = tags.states[tags.starts[1:] - 1]
    between = SoftTransitions(spans.begin[right], last[left], first[right], pair_weights)
    transitions = SoftTransitions._make(map(np.concatenate, zip(inside, between)))
    runs = _runs(spans, first, last, is_soft, starts)
    is_possible = np.zeros((n_tokens, len(parts.decoding.label_of_states)), dtype=bool)
    is_possible[ranges(pieces.begin, pieces.end), np.repeat(pieces.state, tags.lengths)] = True
    n_soft_before = np.append(0, np.cumsum(is_soft))[starts]  # [B + 1] tokens with soft labels before each sequence
    labelling = SoftLabelling(
        pieces=pieces,
        steps=transitions,
        runs=runs._replace(goes_on=parts.decoding.spans.continues),
        has_soft=np.diff(n_soft_before) > 0,
    )
    return labelling, is_possible


def _pairs(spans: SoftSpans, can_meet: Bools) -> tuple[Ints, Ints, Floats]:
    """List the pairs of spans of which one ends where the other begins.

    q(left, right) = q(left) · q(right) / q(some span begins here)

    spans (SoftSpans): The spans, sorted by first token.
    can_meet (bool[T]): The tokens at which the right span of a pair may begin.
    RETURNS (Tuple[int64[P], int64[P], float64[P]]): The numbers of the left and of the right span of each pair, and its
        probability.
    """
    n_tokens = len(can_meet)
    # The spans that end at each token, and those that begin there, are neighbours in these orders
    by_end = np.argsort(spans.end, kind="stable")
    n_left = np.bincount(spans.end, minlength=n_tokens + 1)[:n_tokens]  # [T]
    n_right = np.bincount(spans.begin, minlength=n_tokens)
    first_left = np.cumsum(n_left) - n_left  # [T] the place of the first one in its order
    first_right = np.cumsum(n_right) - n_right
    n_pairs = np.where(can_meet, n_left * n_right, 0)  # [T]
    # The pairs of a token are numbered from 0 on: number = left * n_right + right
    token = np.repeat(np.arange(n_tokens), n_pairs)  # [P]
    number = np.arange(len(token)) - np.repeat(np.cumsum(n_pairs) - n_pairs, n_pairs)
    left = by_end[first_left[token] + number // n_right[token]]
    right = first_right[token] + number % n_right[token]
    begins = np.bincount(spans.begin, spans.weight, minlength=n_tokens)  # [T] probability that some span begins here
    return left, right, spans.weight[left] * spans.weight[right] / begins[token]


def _runs(spans: SoftSpans, first: Ints, last: Ints, is_soft: Bools, starts: Ints) -> Runs:
    """List the runs of tokens without soft labels: once for each pair of a state in front of the run and a state behind it, with
    the probability of the pair. The two states are independent.

    first (int64[N]), last (int64[N]): The first and the last state of each span.
    is_soft (bool[T]): Which tokens have soft labels.
    starts (int64[B + 1]): Where the sequences start.
    """
    n_tokens = len(is_soft)
    opens, closes = ends(starts, n_tokens)
    # Runs begin behind tokens with soft labels and at the first tokens of sequences, and end likewise
    is_behind_soft = np.append(True, is_soft[:-1])[:n_tokens]
    is_before_soft = np.append(is_soft[1:], True)[:n_tokens]
    run_begins = np.flatnonzero(~is_soft & (opens | is_behind_soft))
    run_ends = np.flatnonzero(~is_soft & (closes | is_before_soft)) + 1
    # Spans that end where a run begins, and spans that begin where a run ends
    in_front = np.isin(spans.end, run_begins)
    behind = np.isin(spans.begin, run_ends)
    states_in_front = _probabilities_by_token(spans.end[in_front], last[in_front], spans.weight[in_front])
    states_behind = _probabilities_by_token(spans.begin[behind], first[behind], spans.weight[behind])
    no_span = {NO_STATE: 1.0}
    rows = []
    for begin, end in zip(run_begins.tolist(), run_ends.tolist()):
        before = no_span if opens[begin] else states_in_front[begin]
        after = no_span if closes[end - 1] else states_behind[end]
        for (state_before, p), (state_after, q) in product(before.items(), after.items()):
            rows.append((begin, end, state_before, state_after, p * q))
    columns = np.ascontiguousarray(np.array(rows, dtype=np.float64).reshape(-1, 5).T)
    return Runs(*columns[:4].astype(np.int64), weight=columns[4])


def _probabilities_by_token(tokens: Ints, states: Ints, weights: Floats) -> dict[int, dict[int, float]]:
    """The probability of each state at each token: the sum of the `weights` with this token and state."""
    probabilities: dict[int, dict[int, float]] = {}
    for token, state, weight in zip(tokens.tolist(), states.tolist(), weights.tolist()):
        of_token = probabilities.setdefault(token, {})
        of_token[state] = of_token.get(state, 0.0) + weight
    return probabilities
