"""Entities that a component does not set because another one of ours has set others there: ``doc.ents`` has none that overlap."""

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ..errors import Warnings
from ..features.doc_batch import DocBatch
from ..schemes import Segments
from .annotation.annotation import Annotation
from .parts import Parts

_MOST_DOCS = 1000  # in which this is looked for: it takes as long as predicting them


class _Batch(NamedTuple):
    first: "ReferenceType[Doc]"
    labels: tuple[str, ...]


_LOOKED_AT: WeakKeyDictionary[Annotation, int] = (
    WeakKeyDictionary()
)  # Docs of each component in which overlaps were looked for
_LATEST: dict[str, _Batch] = {}  # what each component has written last


def remember(name: str, labels: Iterable[str], docs: list[Doc]) -> None:
    """A component has written to a batch."""
    if docs:
        _LATEST[name] = _Batch(ref(docs[0]), tuple(labels))


def look(parts: Parts, docs: DocBatch, scores: Any, present: Segments) -> None:
    """Warns once (CRFW423) if a component would find entities that overlap those of another one.

    scores: What the model says of the Docs, whatever they bring.
    present (Segments): The entities that they bring; their labels are hashes.
    """
    n_before = _LOOKED_AT.get(parts.annotation, 0)
    if n_before >= _MOST_DOCS or Warnings.CRFW423 in parts.told or not len(present.start):
        return
    others = {name: batch.labels for name, batch in _LATEST.items() if name != parts.name and batch.first() is docs[0]}
    if not others:
        return
    _LOOKED_AT[parts.annotation] = n_before + len(docs)
    found = parts.decoding.segments(parts.decoding.best_tags(scores, None), scores.starts)
    at = _numbers(present, int(docs.bounds[-1]))
    for begin, end, label in zip(*(column.tolist() for column in found)):
        for n in np.unique(at[begin:end][at[begin:end] >= 0]).tolist():
            start, stop, kept = (int(column[n]) for column in present)
            number = int(np.searchsorted(docs.bounds, start, side="right")) - 1
            doc, shift = docs[number], int(docs.bounds[number])
            kept_label, own = doc.vocab.strings[kept % (1 << 64)], parts.labels[label]
            other = next((name for name, labels in others.items() if kept_label in labels), None)
            if other is not None and (start, stop, kept_label) != (begin, end, own):
                spans = doc[begin - shift : end - shift].text, doc[start - shift : stop - shift].text
                told = {"other": other, "label": own, "kept_label": kept_label, "text": doc.text[:40]}
                parts.tell_once(Warnings.CRFW423, span=spans[0], kept=spans[1], **told)
                return


def _numbers(spans: Segments, n_tokens: int) -> NDArray[np.int64]:
    """Which span each token is part of, -1 for none: int64[T]."""
    numbers = np.full(n_tokens, -1)
    for n, (begin, end) in enumerate(zip(spans.start.tolist(), spans.end.tolist())):
        numbers[begin:end] = n
    return numbers
