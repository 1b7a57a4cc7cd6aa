"""What users ask to be explained: a span, and what it is compared with."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
from spacy.tokens import Doc, Span

from .. import checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..pipeline.prediction import labelling
from ..schemes import NO_SEGMENTS, Segments
from .comparison import NothingToCompare, Question, Sides, nothing
from .events import Place, events_of
from .explanation import Explanation, Row, SpanOf
from .reading import Reading

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe

Against = Union[None, str, Span, Iterable[Span]]


class Asked(NamedTuple):
    """A question with its words."""

    question: Question
    doc: Doc
    span: Optional[SpanOf]
    against: str
    is_complement: bool  # whether it is compared with everything else

    def probability(self, odds: float) -> dict[str, float]:
        """What log-odds say, and near 1 the complement, which subtraction would lose."""
        if not self.is_complement:
            return {"log-odds": odds}
        found = {"log-odds": odds, "probability": float(np.exp(-np.logaddexp(0.0, -odds)))}
        return found | {"1 - probability": float(np.exp(-np.logaddexp(0.0, odds)))}

    @property
    def outside_and_labels(self) -> list[str]:
        """The labels, and the tag of tokens outside of all spans, if there is one."""
        decoding = self.question.pipe.decoding
        return [*decoding.annotation.tags()[: decoding.tag_spans.offset], *decoding.annotation.labels]

    def explanation(
        self, kind: str, target: float, base: float, rows: list[Row], totals: dict[str, float], **more: Any
    ) -> Explanation:
        name, words = self.question.pipe.name, [token.text for token in self.doc]
        ruled = self.question.ruled
        rules = [] if ruled is None else [*ruled.left_out, *ruled.effects()]
        return Explanation(kind, name, words, self.span, self.against, target, base, rows, totals, rules=rules, **more)


def ask(pipe: "CRFPipe", doc: Doc, span: Optional[Span], against: Against) -> Asked:
    """The question that arguments of `CRFPipe.explain` stand for.

    RAISES (ValueError): CRF838 or CRF846 for spans that can't be explained.
    """
    if not len(doc):
        raise ValueError(Errors.CRF838.format(name=pipe.name, what="the text", reason="it has no tokens"))
    docs = DocBatch([doc])
    reading = Reading(pipe, docs)
    asking = _Asking(pipe, doc, reading)
    if span is None:
        sides, told = asking.labellings(against)
        return Asked(Question(pipe, docs, reading, sides), doc, None, told, False)
    wanted = asking.span(span)
    place = asking.place(wanted)
    having = asking.events.having(place)
    lacking, other, told = asking.rival(place, wanted, against)
    tokens = slice(min(place.begin, other.begin), max(place.end, other.end))
    question = Question(pipe, docs, reading, Sides(having, lacking, tokens))
    return Asked(question, doc, wanted, told, against is None)


class _Asking:
    def __init__(self, pipe: "CRFPipe", doc: Doc, reading: Reading):
        self._pipe, self._doc, self._scores = pipe, doc, reading.scores
        self._starts = np.asarray(reading.scores.starts)
        self.events = events_of(pipe.decoding)

    def span(self, span: Any) -> SpanOf:
        """A span with its label: the most probable one if it has none."""
        [(begin, end, label)] = labelling(self._pipe.name, self._doc, [span])
        if label or not self._pipe.labels:
            return begin, end, label
        n = len(self._pipe.labels)
        segments = Segments(np.full(n, begin), np.full(n, end), np.arange(n))
        self._check(begin, end)
        found = self._pipe.distribution(self._doc).span_probabilities(segments)
        return begin, end, self._pipe.labels[int(found.argmax())]

    def place(self, span: SpanOf) -> Place:
        begin, end, label = span
        self._check(begin, end)
        return Place(begin, end, self._number(label), self._starts)

    def _check(self, begin: int, end: int) -> None:
        text, name = self._doc[begin:end].text, self._pipe.name
        if ((self._starts > begin) & (self._starts < end)).any():
            raise NothingToCompare(
                Errors.CRF838.format(name=name, what=f"'{text}'", reason="it crosses a sentence start")
            )
        if self._pipe.annotation.spans_are_tokens and end - begin > 1:
            reason = f"it labels single tokens, and these are {end - begin}. Ask about one of them, such as doc[3:4]"
            raise ValueError(Errors.CRF838.format(name=name, what=f"'{text}'", reason=reason))

    def _number(self, label: str) -> int:
        checks.labels(self._pipe.owner, [label], self._pipe.labels)
        return self._pipe.labels.index(label)

    def rival(self, place: Place, span: SpanOf, against: Against) -> tuple[list[Any], Place, str]:
        """Clamps of the labellings that a span is compared with, what these are about, and that in words."""
        if against is None:
            return self.events.lacking(place), place, "against everything else"
        if isinstance(against, str):
            is_outside = against in ("", "O") and against not in self._pipe.labels
            other = Place(place.begin, place.end, -1 if is_outside else self._number(against), self._starts)
            told = (*span[:2], "O" if is_outside else against)
        elif isinstance(against, Span):
            told = self.span(against)
            other = self.place(told)
        else:
            clamp, told = self._only(against)
            return [clamp], Place(0, len(self._doc), -1, self._starts), f"against the labelling {told}"
        if told == span:
            what = f"'{self._doc[span[0] : span[1]].text}'"
            raise ValueError(
                Errors.CRF838.format(name=self._pipe.name, what=what, reason="`against` asks for the same")
            )
        return self.events.having(other), other, f"against '{self._doc[told[0] : told[1]].text}' as {told[2]}"

    def labellings(self, against: Against) -> tuple[Sides, str]:
        """The best labelling, and the second best or a given one."""
        if isinstance(against, (str, Span)):
            reason = f"without a span it compares the labelling with another one, a list of Spans, not with {against!r}"
            raise ValueError(Errors.CRF838.format(name=self._pipe.name, what="the labelling", reason=reason))
        best = self._pipe.n_best(self._doc, 2)
        if len(best) < 2:
            raise NothingToCompare(Errors.CRF838.format(name=self._pipe.name, what="it", reason=nothing(has=False)))
        (_, ours), (_, theirs) = best
        [first, _], (second, told) = self._only(ours), self._only(theirs if against is None else against)
        return Sides([first], [second], slice(0, len(self._doc))), f"against {told}"

    def _only(self, spans: Iterable[Span]) -> tuple[Any, str]:
        """The clamp of a complete labelling, and this in words."""
        found, decoding = labelling(self._pipe.name, self._doc, spans), self._pipe.decoding
        for begin, end, _ in found:
            self._check(begin, end)
        columns = zip(*((begin, end, self._number(label)) for begin, end, label in found))
        segments = Segments(*(np.array(c, dtype=np.int64) for c in columns)) if found else NO_SEGMENTS
        path = decoding.path(decoding.annotation.path(segments, self._starts), self._starts)
        told = "; ".join(f"{self._doc[begin:end].text} ({label})" for begin, end, label in found) or "nothing"
        return decoding.only(decoding.explained, decoding.explained.prepare(self._scores), path), told
