"""Entities as annotation: read from ``doc.ents``, and written to it."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, ENT_TYPE, ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example

from ..errors import Errors
from ..features.doc_batch import DocBatch, doc_bounds, read_attributes
from ..schemes import BEGIN, INSIDE, MISSING, NO_SEGMENTS, OUTSIDE, Scheme, Segments, TransitionMask
from .crf_pipe import Prediction
from .gold_report import GoldReport
from .ruled_pipe import RuledPipe
from .supervision import Gold

if TYPE_CHECKING:
    from .settled import Settled

_ENTITY = [ENT_IOB, ENT_TYPE]


class EntityPipe(RuledPipe):
    """Base of the components that find entities.

    Entities that a Doc has already are kept, and the rest is decoded around them. Entities end where a sentence is known
    to end.

    scheme (Scheme): How entities are spelt as tags; set before the component is made.
    """

    scheme: Scheme
    writes = ("ent_iob", "ent_type")
    can_do_without_labels = True  # then it finds nothing

    def assigns(self) -> list[str]:
        return ["doc.ents", *super().assigns()]

    def tags(self) -> list[str]:
        return self.scheme.tags(list(self.labels))

    def transition_mask(self) -> TransitionMask:
        return self.scheme.transition_mask(len(self.labels))

    def segments_tags(self, segments: Segments, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        return self.scheme.encode(*_annotate(segments, int(starts[-1]), OUTSIDE), starts)

    def judged(self, example: Example) -> Iterator[tuple[Optional[float], bool]]:
        gold = {(ent.start_char, ent.end_char, ent.label_) for ent in example.reference.ents}
        missing = [tag in (None, "-") for tag in example.get_aligned_ner()]
        for ent in example.predicted.ents:
            if not any(missing[ent.start : ent.end]):
                yield ent._.crf_prob, (ent.start_char, ent.end_char, ent.label_) in gold

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        for ent in doc.ents:
            self._refuse_negated(ent.label_, f"'{ent.text}' in '{doc.text[:40]}'")
        return {ent.label_ for ent in doc.ents if ent.label_}

    def _refuse_negated(self, label: str, place: str) -> None:
        """RAISES (ValueError): CRF440 for a label such as "!PER", which spaCy's `ner` refuses too."""
        if label.startswith("!") and len(label) > 1 and label not in self.labels:
            raise ValueError(Errors.CRF440.format(name=self.name, label=label, negated=label[1:], place=place))

    def is_gold(self, span: Span) -> bool:
        return any((ent.start, ent.end, ent.label) == (span.start, span.end, span.label) for ent in span.doc.ents)

    def gold(self, examples: list[Example], starts: NDArray[np.int64], report: GoldReport) -> Gold:
        annotation = [_aligned_entities(example, report) for example in examples]
        iob, types = np.concatenate(annotation).T if annotation else np.zeros((2, 0), dtype=np.uint64)
        label = self.label_indices(types)
        entity = (iob == BEGIN) | (iob == INSIDE)
        unknown = entity & (label < 0)
        doc_starts = doc_bounds([example.predicted for example in examples])

        def place(token: int) -> str:
            n = int(np.searchsorted(doc_starts, token, side="right")) - 1
            doc = examples[n].predicted
            return f"token {token - doc_starts[n]} ('{doc[int(token - doc_starts[n])].text}') of '{doc.text[:40]}'"

        for token in np.flatnonzero(unknown & (iob == BEGIN) & (types != 0)):
            self._refuse_negated(self.vocab.strings[int(types[token])], place(token))
            report.add("gold entities have a label the component does not know, and count as outside", place(token))
        iob = np.where(unknown, OUTSIDE, iob)
        for token in starts[:-1][starts[:-1] < len(iob)]:
            if iob[token] == INSIDE:
                report.add("gold entities cross the start of a sentence, and count as missing", place(token))
                iob = _without_entity_at(iob, int(token))
        return Gold(self.scheme.clamp(iob, np.maximum(label, 0), starts, len(self.labels)), iob == MISSING)

    def read_preset(self, docs: list[Doc]) -> Optional[NDArray[np.uint64]]:
        docs = DocBatch.of(docs)
        return read_attributes(docs, _ENTITY) if _is_preset(docs.ent_iob).any() else None

    def settle_preset(self, settled: "Settled", preset: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        iob, types = preset.T
        label, settled.taken[:] = self.label_indices(types), _is_preset(iob)
        # Entities of other labels and blocked tokens (BEGIN without a type) stay as they are: no entity of ours there.
        iob = np.where(settled.taken, np.where(label >= 0, iob, OUTSIDE), MISSING)
        opening = starts[:-1][starts[:-1] < len(iob)]
        iob[opening] = np.where(iob[opening] == INSIDE, OUTSIDE, iob[opening])
        settled.iob[:] = _repaired(iob)
        settled.label[:] = np.maximum(label, 0)
        settled.present[settled.taken] = types[settled.taken]

    def settled_clamp(self, settled: "Settled", starts: NDArray[np.int64]) -> Any:
        return self.scheme.clamp(settled.iob, settled.label, starts, len(self.labels))

    def refused_beside(
        self, settled: "Settled", starts: NDArray[np.int64], begin: int, end: int, label: int
    ) -> Optional[str]:
        if ((starts > begin) & (starts < end)).any():
            return "it crosses the start of a sentence"
        if self.scheme.name == "IO":
            entity = (settled.iob == BEGIN) | (settled.iob == INSIDE)
            beside = [token for token, edge in ((begin - 1, begin), (end, end)) if edge not in starts]
            if any(entity[token] and settled.label[token] == label for token in beside):
                return "the scheme IO can't tell it from its neighbour"
        return None

    def _labels_changed(self) -> None:
        super()._labels_changed()
        hashes = np.array([*map(self.vocab.strings.add, self.labels), 0], dtype=np.uint64)
        # `ent_iob` (where the tag alone tells it) and `ent_type` of each tag
        types = hashes[self.scheme.label_of_tag(len(self.labels))]
        self._annotation_of_tag = np.stack([self.scheme.iob_of_tag(len(self.labels)), types], axis=1)

    def set_annotations(self, docs: Iterable[Doc], prediction: Prediction) -> None:
        """Write entities to ``doc.ents``, beside those that are there.

        docs (Iterable[Doc]): The Docs that were predicted.
        prediction (Prediction): What `predict` gave.
        """
        annotation, present = self._annotation_of_tag[prediction.tags], NO_SEGMENTS
        if not self.scheme.tags_tell_iob:
            annotation[:, 0] = self.scheme.iob(prediction.tags, prediction.starts)
        if prediction.preset is not None:
            kept = _is_preset(prediction.preset[:, 0])
            annotation[kept] = prediction.preset[kept]
            present = _entities(prediction.preset)
        for doc, begin, end in zip(docs, prediction.doc_starts.tolist(), prediction.doc_starts[1:].tolist()):
            if begin < end:
                doc.from_array(_ENTITY, annotation[begin:end])
        if prediction.probabilities is not None:
            self.write_probabilities(docs, prediction, present)


def _annotate(segments: Segments, tokens: int, other: int) -> tuple[NDArray, NDArray]:
    """``ent_iob`` codes and labels (0 beside the segments) of tokens laid end to end."""
    iob, label = np.full(tokens, other), np.zeros(tokens, dtype=np.int64)
    for begin, end, number in zip(*segments):
        iob[begin:end] = INSIDE
        iob[begin] = BEGIN
        label[begin:end] = number
    return iob, label


def _is_preset(iob: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which tokens are part of an entity, or blocked."""
    return (iob == BEGIN) | (iob == INSIDE)


def _entities(annotation: NDArray[np.uint64]) -> Segments:
    """The entities of annotated tokens (`ent_iob`, `ent_type`)."""
    iob, types = annotation.T
    begin = np.flatnonzero((iob == BEGIN) & (types != 0))
    outside = np.append(np.flatnonzero(iob != INSIDE), len(iob))
    end = outside[np.searchsorted(outside, begin, side="right")]
    return Segments(begin, end, types[begin].astype(np.int64))


def _aligned_entities(example: Example, report: GoldReport) -> NDArray[np.uint64]:
    """Gold ``ent_iob`` and ``ent_type`` at the tokens of the predicted Doc: uint64[T, 2]."""
    predicted, reference = example.predicted, example.reference
    if len(predicted) == len(reference) and (predicted.to_array(ORTH) == reference.to_array(ORTH)).all():
        annotation = reference.to_array(_ENTITY).reshape(len(reference), 2)
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


def _without_entity_at(iob: NDArray, token: int) -> NDArray:
    """Marks the entity around a token as missing."""
    begin, end = token, token + 1
    while iob[begin] == INSIDE:
        begin -= 1
    while end < len(iob) and iob[end] == INSIDE:
        end += 1
    iob = iob.copy()
    iob[begin:end] = MISSING
    return iob


def _repaired(iob: NDArray) -> NDArray:
    """An entity whose first tokens were taken out is no entity: its rest is OUTSIDE too."""
    iob = iob.copy()
    for token in np.flatnonzero((iob[1:] == INSIDE) & (iob[:-1] != BEGIN) & (iob[:-1] != INSIDE)) + 1:
        end = token
        while end < len(iob) and iob[end] == INSIDE:
            iob[end] = OUTSIDE
            end += 1
    return iob
