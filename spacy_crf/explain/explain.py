"""``component.explain``: turns a user's question about a span or a label into a comparison, and explains it."""

from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any, Union, cast

import numpy as np
from spacy.tokens import Doc, Span

from .. import checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..pipeline.annotation.cats import Cats, SeveralCats
from ..pipeline.crf_textcat import CRFTextClassifier
from ..pipeline.pipe import LearningPipe, check_doc
from ..pipeline.prediction import CRFPipe
from ..pipeline.probabilities import labelling
from ..schemes import Segments
from ..types import AnyClamp
from .comparison import (
    Comparison,
    LabelComparison,
    NothingToCompare,
    Sides,
    SpanPlace,
    events_of,
    nothing,
    preset_labellings,
)
from .contributions import contrast, contrast_of_labels, leave_out, log_odds
from .explanation import Explanation, SpanOf
from .reading import Reading
from .training_texts import texts
from .words import words

Against = Union[None, str, Span, Iterable[Span]]
# Other packages add kinds by entry points of the group `spacy_crf_explanations`: functions of a `Comparison` and options
KINDS: dict[str, Callable[..., Explanation]] = {
    "contrast": contrast,
    "log_odds": log_odds,
    "leave_out": leave_out,
    "words": words,
    "texts": texts,
}
_OPTIONS = {"words": ("candidates", "near"), "texts": ("corpus", "l2", "l1", "effect")}


def explain(
    pipe: Union[CRFPipe, CRFTextClassifier],
    doc: Doc,
    span: Union[Span, str, None] = None,
    against: Against = None,
    kind: str = "words",
    **options: object,
) -> Explanation:
    """Explain a decision. See `CRFPipe.explain`, and `CRFTextClassifier.explain`, where a label takes the place of the span."""
    check_doc(pipe.name, doc)
    entries = {}
    # Reading the entry points of all installed packages takes milliseconds
    if kind not in KINDS:
        entries = {entry.name: entry for entry in entry_points(group="spacy_crf_explanations")}
    checks.one_of(pipe.owner, "kind", kind, {**entries, **KINDS})
    pipe.require_ready([doc])
    if kind in entries:
        make_explanation = entries[kind].load()
    else:
        make_explanation = KINDS[kind]
        for name in options:
            setting = f"kind = '{kind}': option"
            checks.expect(kind in _OPTIONS, pipe.owner, setting, name, "left out, since this kind has no options")
            checks.one_of(pipe.owner, setting, name, _OPTIONS[kind])
    unexplained = pipe.model.attrs["node"].traits.unexplained
    if unexplained is not None:
        raise NothingToCompare(_cant(pipe, "its decisions", unexplained))
    if not len(doc):
        raise ValueError(_cant(pipe, "the text", "it has no tokens"))
    if isinstance(pipe.annotation, SeveralCats) and kind == "leave_out":
        raise ValueError(_cant(pipe, kind, "a feature may speak for several labels of one text. Set another kind"))
    if isinstance(pipe.annotation, Cats):
        if make_explanation is contrast:
            make_explanation = contrast_of_labels
        return make_explanation(compare_labels(pipe, doc, span, against), **options)
    return make_explanation(compare_spans(pipe, doc, span, against), **options)


def _cant(pipe: LearningPipe, what: str, reason: str) -> str:
    return Errors.CRF838.format(name=pipe.name, what=what, reason=reason)


# ------------------------------------------------------------------------------------------------------------- spans


def compare_spans(pipe: CRFPipe, doc: Doc, span: Union[Span, str, None], against: Against) -> Comparison:
    """Make a comparison from the arguments of `CRFPipe.explain`.

    RAISES (ValueError): CRF838 or CRF846 for spans that can't be explained.
    """
    reading = Reading(pipe, pipe.batch_class([doc]))
    reader = _SpanReader(pipe, doc, reading)
    if span is None:
        sides, in_words = reader.labellings(against)
        return Comparison(pipe, reading, sides, span=None, against=in_words)
    explained = reader.span(span)
    place = reader.place(explained)
    events = reader.events
    # `other` is the place whose tokens the other side restricts
    if against is None:
        lacking = events.lacking(place)
        other = place
        in_words = None
    elif isinstance(against, (str, Span)):
        begin, end, _ = explained
        if isinstance(against, Span):
            rival = reader.span(against)
            other = reader.place(rival)
        elif against in ("", "O") and against not in pipe.labels:
            rival = (begin, end, "O")
            other = SpanPlace(begin, end, label=-1, starts=reader.starts)
        else:
            rival = (begin, end, against)
            other = reader.place(rival)
        if rival == explained:
            raise ValueError(_cant(pipe, f"'{doc[begin:end].text}'", "`against` asks for the same"))
        lacking = events.having(other)
        in_words = f"'{doc[rival[0] : rival[1]].text}' as {rival[2]}"
    else:
        clamp, labelling_in_words = reader.single_labelling(against)
        lacking = [clamp]
        other = SpanPlace(0, len(doc), label=-1, starts=reader.starts)
        in_words = f"the labelling {labelling_in_words}"
    return Comparison(
        pipe,
        reading,
        Sides(
            having=events.having(place),
            lacking=lacking,
            tokens=slice(min(place.begin, other.begin), max(place.end, other.end)),
        ),
        explained,
        in_words,
    )


class _SpanReader:
    """Reads the spans and labellings that users ask about."""

    def __init__(self, pipe: CRFPipe, doc: Doc, reading: Reading):
        self._pipe = pipe
        self._doc = doc
        self._reading = reading
        self.starts = np.asarray(reading.scores.starts)
        self.events = events_of(pipe.decoding)

    def span(self, span: Union[Span, str]) -> SpanOf:
        """Read a span and its label; a span without a label gets the most probable one."""
        [(begin, end, label)] = labelling(self._pipe.name, self._doc, [cast(Span, span)])
        if label or not self._pipe.labels:
            return begin, end, label
        self._check(begin, end)
        # Only to refuse a Doc that has tokens without any label
        preset_labellings(self._pipe, self._reading.docs, self._reading.scores)
        n = len(self._pipe.labels)
        segments = Segments(np.full(n, begin), np.full(n, end), np.arange(n))
        probabilities = self._pipe.distribution(self._doc).span_probabilities(segments)
        return begin, end, self._pipe.labels[int(probabilities.argmax())]

    def place(self, span: SpanOf) -> SpanPlace:
        """The place of a span in the Doc. RAISES (ValueError): CRF838 or CRF846 for a span that no labelling has."""
        begin, end, label = span
        self._check(begin, end)
        checks.labels(self._pipe.owner, [label], self._pipe.labels)
        return SpanPlace(begin, end, self._pipe.labels.index(label), self.starts)

    def _check(self, begin: int, end: int) -> None:
        """RAISES (ValueError): CRF838 for tokens that can't be a span of the component."""
        what = f"'{self._doc[begin:end].text}'"
        if ((self.starts > begin) & (self.starts < end)).any():
            raise NothingToCompare(_cant(self._pipe, what, "it crosses the start of a sentence"))
        if self._pipe.annotation.spans_are_tokens and end - begin > 1:
            reason = f"it labels single tokens, and these are {end - begin}. Ask about one of them, such as doc[3:4]"
            raise ValueError(_cant(self._pipe, what, reason))

    def labellings(self, against: Against) -> tuple[Sides, str]:
        """The sides for the best labelling and for `against`, by default the second best, and the second side in words."""
        if isinstance(against, (str, Span)):
            reason = f"without a span it compares the labelling with another one, a list of Spans, not with {against!r}"
            raise ValueError(_cant(self._pipe, "the labelling", reason))
        best = self._pipe.n_best(self._doc, 2)
        if len(best) < 2:
            raise nothing(self._pipe, has=False)
        (_, ours), (_, theirs) = best
        first, _ = self.single_labelling(ours)
        second, in_words = self.single_labelling(theirs if against is None else against)
        return Sides([first], [second], slice(0, len(self._doc))), in_words

    def single_labelling(self, spans: Iterable[Span]) -> tuple[AnyClamp, str]:
        """The clamp that allows only the labelling with these spans, and the labelling in words."""
        checked = labelling(self._pipe.name, self._doc, spans)
        decoding = self._pipe.decoding
        places = [self.place(span) for span in checked]
        segments = Segments(
            start=np.array([place.begin for place in places], dtype=np.int64),
            end=np.array([place.end for place in places], dtype=np.int64),
            label=np.array([place.label for place in places], dtype=np.int64),
        )
        path = decoding.path(decoding.annotation.path(segments, self.starts), self.starts)
        in_words = "; ".join(f"{self._doc[begin:end].text} ({label})" for begin, end, label in checked) or "nothing"
        structure = decoding.explained
        return decoding.only(structure, structure.prepare(self._reading.scores), path), in_words


# --------------------------------------------------------------------------------------------------- labels of texts


def compare_labels(pipe: CRFTextClassifier, doc: Doc, label: Any, against: Any) -> LabelComparison:
    """Make a comparison from the arguments of `CRFTextClassifier.explain`.

    RAISES (ValueError): CRF846 for an unknown label, CRF838 for a label that `against` does not exclude.
    """
    if label is None:
        label = next(iter(pipe.probabilities(doc)))  # the most probable label is the first
    checks.labels(pipe.owner, [label, label if against is None else against], pipe.labels)
    having, lacking = cast(Cats, pipe.annotation).sides(label, against)
    reading = Reading(pipe, DocBatch([doc]))
    sides = Sides(having, lacking, slice(0, int(reading.scores.starts[-1])))
    return LabelComparison(pipe, reading, sides, (0, len(doc), label), against)
