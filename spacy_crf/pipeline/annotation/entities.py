"""Entities as annotation: read from ``doc.ents``, and written to it."""

import zlib
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Optional
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, ENT_TYPE
from spacy.tokens import Doc, Span, Token
from spacy.training import Example

from ...arrays import ranges
from ...errors import Errors, Warnings
from ...features.doc_batch import DocBatch, read_attributes
from ...inference.structure import SpanStates
from ...schemes import BEGIN, INSIDE, MISSING, NO_SEGMENTS, OUTSIDE, Scheme, Segments, SegmentScheme, TransitionMask
from ...types import Clamp
from ..decoding import without_edges
from .annotation import (
    Annotation,
    GoldReport,
    Mention,
    PresetAnnotation,
    Starts,
    Supervision,
    Tags,
    probability_of,
    same_words,
)
from .trimming import DROPPED, TRIMMED, mentions_of

if TYPE_CHECKING:
    from ..decoding import Parts
    from ..prediction import Prediction

_ENTITY = [ENT_IOB, ENT_TYPE]
_IS_PRESET = 1  # bit that INSIDE and BEGIN share

# For the warning about entities that a component cannot set because another component of this package has set overlapping ones
_MOST_DOCS = 1000  # Docs in which `Entities.look_for_lost` searches: that takes as long as predicting
_LOOKED_AT: "WeakKeyDictionary[Entities, int]" = WeakKeyDictionary()  # number of Docs searched so far
# For each component, its last batch and labels
_LATEST: dict[str, tuple["ReferenceType[Doc]", tuple[str, ...]]] = {}


class Entities(Annotation):
    """Named entities of a Doc. Entities that a Doc has already are kept. Entities end where a sentence is known to end.

    scheme (Scheme): The tag scheme of entities.
    space_edges (bool): Whether entities may begin and end with white space, as those of imported models may.
    """

    writes = ("ent_iob", "ent_type")
    found = "an entity"
    spans_are_tokens = False
    scores_prefix = "ents"
    may_have_no_labels = True  # a component without labels finds nothing
    outside = frozenset(["", "O"])

    def __init__(self, scheme: Scheme, *, space_edges: bool = False):
        self.scheme = scheme
        self.space_edges = space_edges
        self.needs_neighbours = scheme.name == "IOB1"

    def _tabulate(self) -> None:
        self.written_labels = self.labels
        hashes = np.array([*map(self.vocab.strings.add, self.labels), 0], dtype=np.uint64)
        # `ent_iob` (if the tag alone determines it) and `ent_type` of each tag
        types = hashes[self.scheme.label_of_tag(len(self.labels))]
        self._annotation_of_tag = np.stack([self.scheme.iob_of_tag(len(self.labels)), types], axis=1)

    @property
    def assigns(self) -> list[str]:
        return ["doc.ents", *super().assigns]

    # ------------------------------------------------------------------------------------------------------ as tags

    def tags(self) -> list[str]:
        return self.scheme.tags(list(self.labels))

    def tag_labels(self) -> list[str]:
        tags_of_label = (len(self.tags()) - 1) // max(1, len(self.labels))
        return ["O", *(label for label in self.labels for _ in range(tags_of_label))]

    def mask(self) -> TransitionMask:
        return self.scheme.transition_mask(len(self.labels))

    def span_states(self) -> SpanStates:
        return _span_states(self.scheme, len(self.labels))

    def path(self, segments: Segments, starts: Starts) -> Tags:
        iob = np.full(int(starts[-1]), OUTSIDE)
        label = np.zeros(int(starts[-1]), dtype=np.int64)
        tokens = ranges(segments.start, segments.end)
        iob[tokens] = INSIDE
        label[tokens] = np.repeat(segments.label, segments.end - segments.start)
        iob[segments.start] = BEGIN
        return self.scheme.encode(iob, label, starts)

    # ---------------------------------------------------------------------------------------------------- in training

    def span_tags(self, label: str, length: int) -> Optional[NDArray[np.int64]]:
        if label in self.outside:
            return np.zeros(length, dtype=np.int64)
        if label not in self.labels:
            return None
        iob = np.array([BEGIN, *[INSIDE] * (length - 1)])
        labels = np.full(length, self.labels.index(label))
        return self.scheme.reading.encode(iob, labels, np.array([0, length])).astype(np.int64)

    def tells_alone(self, length: int) -> bool:
        return length == 1 and bool(self.scheme.closes)  # U-PER

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        return self.scheme.reading.continues(len(self.labels))[tag]

    def spell(self, allowed: Any, starts: Starts) -> tuple[Any, NDArray[np.int64]]:
        return self.scheme.spell(allowed, starts)

    def gold_spans(self, doc: Doc) -> Iterable[Span]:
        """The annotated spans of a reference Doc."""
        return doc.ents

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        iob, types = read_attributes([doc], _ENTITY).T  # reading Spans took longer than all features of the Doc
        labels = [doc.vocab.strings[label] for label in dict.fromkeys(types[(iob == BEGIN) & (types != 0)].tolist())]
        for label in labels:
            self._refuse_negated(label, lambda label=label: f"'{_first(doc, label).text}' in '{doc.text[:40]}'")
        return labels

    def _refuse_negated(self, label: str, place: Callable[[], str]) -> None:
        """RAISES (ValueError): CRF440 for a label such as "!PER", which spaCy's `ner` refuses too."""
        if label.startswith("!") and len(label) > 1 and label not in self.labels:
            raise ValueError(Errors.CRF440.format(name=self.name, label=label, negated=label[1:], place=place()))

    def is_gold(self, span: Span) -> bool:
        return any((ent.start, ent.end, ent.label) == (span.start, span.end, span.label) for ent in span.doc.ents)

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        annotation = [_aligned_entities(example, report) for example in examples]
        iob, types = np.concatenate(annotation).T if annotation else np.zeros((2, 0), dtype=np.uint64)
        label = self.label_indices(types)
        entity = (iob == BEGIN) | (iob == INSIDE)
        unknown = entity & (label < 0)
        doc_starts = DocBatch(example.predicted for example in examples).bounds

        def place(token: int) -> str:
            n = int(np.searchsorted(doc_starts, token, side="right")) - 1
            doc = examples[n].predicted
            return f"token {token - doc_starts[n]} ('{doc[int(token - doc_starts[n])].text}') of '{doc.text[:40]}'"

        for token in np.flatnonzero(unknown & (iob == BEGIN) & (types != 0)).tolist():
            unknown_label = self.spelled(int(types[token]), (example.reference for example in examples))
            self._refuse_negated(unknown_label, partial(place, token))
            report.add("gold entities have a label the component does not know, and count as outside", place(token))
        iob = np.where(unknown, OUTSIDE, iob)
        if not self.space_edges:
            iob = self._trimmed(iob, examples, place, report)
        for token in starts[:-1][starts[:-1] < len(iob)].tolist():
            if iob[token] == INSIDE:
                report.add("gold entities cross the start of a sentence, and count as missing", place(token))
                opening = _openings(iob)
                iob = np.where(opening == opening[token], MISSING, iob)
        return Supervision(self.scheme.clamp(iob, np.maximum(label, 0), starts, len(self.labels)), iob == MISSING)

    @staticmethod
    def _trimmed(iob: NDArray, examples: list[Example], place: Callable[[int], str], report: GoldReport) -> NDArray:
        """Trim white space from the edges of entities, and leave out entities of white space alone."""
        blank = DocBatch(example.predicted for example in examples).is_space
        is_entity = (iob == BEGIN) | (iob == INSIDE)
        if not (is_entity & blank).any():
            return iob
        iob = iob.copy()
        begins = np.flatnonzero(iob == BEGIN)
        outside = np.append(np.flatnonzero(iob != INSIDE), len(iob))
        ends = outside[np.searchsorted(outside, begins, side="right")]
        for begin, end in zip(begins.tolist(), ends.tolist()):
            if not (blank[begin] or blank[end - 1]):
                continue
            words = begin + np.flatnonzero(~blank[begin:end])
            report.add(f"gold entities {TRIMMED if len(words) else DROPPED}", place(begin))
            iob[begin:end] = OUTSIDE
            if len(words):
                iob[words[0] : words[-1] + 1] = INSIDE
                iob[words[0]] = BEGIN
        return iob

    def fingerprint(self, docs: list[Doc]) -> int:
        return zlib.crc32(read_attributes(docs, _ENTITY).data)

    def mentions_in(self, doc: Doc) -> list[Mention]:
        return self._mentions(doc.ents)

    def _mentions(self, ents: Iterable[Span]) -> list[Mention]:
        ents = list(ents)
        return mentions_of(ents, map(probability_of, ents), self)

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        found = list(example.predicted.ents)
        if not same_words(example.predicted, example.reference) or MISSING in example.reference.to_array(ENT_IOB):
            missing = [tag in (None, "-") for tag in example.get_aligned_ner()]
            found = [ent for ent in found if not any(missing[ent.start : ent.end])]
        return self.mentions_in(example.reference), self._mentions(found)

    # -------------------------------------------------------------------------------------------------- in prediction

    def preset(self, docs: DocBatch) -> Optional[NDArray[np.uint64]]:
        return read_attributes(docs, _ENTITY) if (docs.ent_iob & _IS_PRESET).any() else None

    def look_for_lost(self, parts: "Parts", docs: DocBatch, scores: Any, preset: NDArray[np.uint64]) -> None:
        """Warn once (CRFW423) if a component would find entities that overlap the entities of another component."""
        n_before = _LOOKED_AT.get(self, 0)
        present = _entities(preset)
        if n_before >= _MOST_DOCS or Warnings.CRFW423 in parts.told or not len(present.start):
            return
        others = {
            name: labels for name, (first, labels) in _LATEST.items() if name != parts.name and first() is docs[0]
        }
        if not others:
            return
        _LOOKED_AT[self] = n_before + len(docs)
        parts, scores = without_edges(parts, docs, scores)
        found = parts.decoding.segments(parts.decoding.best_tags(scores, None), scores.starts)
        for begin, end, label in zip(*(column.tolist() for column in found)):
            for n in np.flatnonzero((present.start < end) & (present.end > begin)).tolist():
                start, stop, kept = (int(column[n]) for column in present)
                number = int(np.searchsorted(docs.bounds, start, side="right")) - 1
                doc = docs[number]
                shift = int(docs.bounds[number])
                kept_label = doc.vocab.strings[kept % (1 << 64)]
                own = parts.labels[label]
                other = next((name for name, labels in others.items() if kept_label in labels), None)
                if other is not None and (start, stop, kept_label) != (begin, end, own):
                    spans = doc[begin - shift : end - shift].text, doc[start - shift : stop - shift].text
                    told = {"other": other, "label": own, "kept_label": kept_label, "text": doc.text[:40]}
                    parts.warn_once(Warnings.CRFW423, span=spans[0], kept=spans[1], **told)
                    return

    def settle(self, settled: PresetAnnotation, preset: NDArray[np.uint64], starts: Starts) -> None:
        iob, types = preset.T
        label = self.label_indices(types)
        settled.taken[:] = _is_preset(iob)
        # Entities with other labels and blocked tokens (BEGIN without a type) stay as they are: this component finds none there.
        iob = np.where(settled.taken, np.where(label >= 0, iob, OUTSIDE), MISSING)
        opening = starts[:-1][starts[:-1] < len(iob)]
        iob[opening] = np.where(iob[opening] == INSIDE, OUTSIDE, iob[opening])
        settled.iob[:] = _repaired(iob)
        settled.label[:] = np.maximum(label, 0)
        settled.present[settled.taken] = types[settled.taken]

    def clamp(self, settled: PresetAnnotation, starts: Starts) -> Clamp:
        return self.scheme.clamp(settled.iob, settled.label, starts, len(self.labels))

    def refused_beside(
        self, settled: PresetAnnotation, starts: Starts, begin: int, end: int, label: int
    ) -> Optional[str]:
        if ((starts > begin) & (starts < end)).any():
            return "it crosses the start of a sentence"
        if self.scheme.name == "IO":
            entity = _is_preset(settled.iob)
            beside = [token for token, edge in ((begin - 1, begin), (end, end)) if edge not in starts]
            if any(entity[token] and settled.label[token] == label for token in beside):
                return "the scheme IO can't tell it from its neighbour"
        return None

    def write(self, docs: list[Doc], prediction: "Prediction") -> Segments:
        # uint64, which the stub of `from_array` does not take
        annotation: Any = self._annotation_of_tag[prediction.tags]
        present = NO_SEGMENTS
        if not self.scheme.tags_tell_iob:
            annotation[:, 0] = self.scheme.iob(prediction.tags, prediction.starts)
        if prediction.preset is not None:
            kept = _is_preset(prediction.preset[:, 0])
            annotation[kept] = prediction.preset[kept]
            present = _entities(prediction.preset)
        if docs:
            _LATEST[self.name] = ref(docs[0]), self.labels
        begin = 0
        for doc, end in zip(docs, prediction.doc_starts[1:].tolist()):
            if begin < end:
                doc.from_array(_ENTITY, annotation[begin:end])
            begin = end
        return present

    def label_at(self, token: Token) -> str:
        return token.ent_type_


@lru_cache(maxsize=32)
def _span_states(scheme: Scheme, n_labels: int) -> SpanStates:
    if isinstance(scheme, SegmentScheme):
        return SpanStates.even(None, n_labels, offset=1)
    return SpanStates.even(scheme.continues(n_labels), n_labels, offset=1, width=len(scheme.prefixes))


def _first(doc: Doc, label: str) -> Span:
    return next(ent for ent in doc.ents if ent.label_ == label)


def _is_preset(iob: NDArray) -> NDArray[np.bool_]:
    """Which tokens are part of an entity, or blocked: bool[T]."""
    return (iob & _IS_PRESET).astype(bool)


def _entities(annotation: NDArray[np.uint64]) -> Segments:
    """The entities of annotated tokens (`ent_iob`, `ent_type`)."""
    iob, types = annotation.T
    begin = np.flatnonzero((iob == BEGIN) & (types != 0))
    outside = np.append(np.flatnonzero(iob != INSIDE), len(iob))
    end = outside[np.searchsorted(outside, begin, side="right")]
    return Segments(begin, end, types[begin].astype(np.int64))


def _aligned_entities(example: Example, report: GoldReport) -> NDArray[np.uint64]:
    """Gold ``ent_iob`` and ``ent_type`` at the tokens of the predicted Doc: uint64[T, 2]."""
    predicted = example.predicted
    reference = example.reference
    if same_words(predicted, reference):
        annotation = read_attributes([reference], _ENTITY)
        blocked = (annotation[:, 0] == BEGIN) & (annotation[:, 1] == 0)
        annotation[blocked, 0] = OUTSIDE
        return annotation
    annotation = np.zeros((len(predicted), 2), dtype=np.uint64)
    tags = example.get_aligned_ner()
    for i, tag in enumerate(tags):
        if tag is None or tag == "-":
            continue
        prefix, _, label = tag.partition("-")
        annotation[i, 0] = {"B": BEGIN, "U": BEGIN, "I": INSIDE, "L": INSIDE}.get(prefix, OUTSIDE)
        annotation[i, 1] = predicted.vocab.strings.add(label) if label else 0
    found = sum(tag is not None and tag[0] in "BU" for tag in tags)
    lost = len(reference.ents) - found
    if lost > 0:
        aligned = {(ent.start_char, ent.end_char) for ent in example.get_aligned_spans_y2x(reference.ents)}
        for ent in reference.ents:
            if (ent.start_char, ent.end_char) not in aligned:
                place = f"'{ent.text}' ({ent.label_}) in '{reference.text[:40]}'"
                report.add("gold entities do not align with the tokens, and count as missing", place)
    return annotation


def _openings(iob: NDArray) -> NDArray[np.int64]:
    """For each token the last token up to it that is not INSIDE; -1 for none: int64[T]."""
    return np.maximum.accumulate(np.where(iob == INSIDE, -1, np.arange(len(iob)))) if len(iob) else np.zeros(0, int)


def _repaired(iob: NDArray) -> NDArray:
    """Entities that lost their first tokens are no entities: their other tokens become OUTSIDE."""
    opening = _openings(iob)
    is_whole = (opening >= 0) & (iob[opening] == BEGIN) if len(iob) else np.zeros(0, bool)
    return np.where((iob == INSIDE) & ~is_whole, OUTSIDE, iob)
