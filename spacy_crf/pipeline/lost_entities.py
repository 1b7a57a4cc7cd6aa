"""The warning about entities that a component cannot set because another component of this package has set overlapping ones."""

from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import Warnings
from ..features.doc_batch import DocBatch
from ..schemes import Segments
from .annotation.entities import LATEST, Entities, entities_of
from .decoding import Parts, without_edges

_MOST_DOCS = 1000  # Docs to search: that takes as long as predicting
_LOOKED_AT: "WeakKeyDictionary[Entities, int]" = WeakKeyDictionary()  # number of Docs searched so far


def warn_of_overlaps(parts: Parts, docs: DocBatch, scores: Any, preset: NDArray[np.uint64]) -> None:
    """Warn once (CRFW423) if a component would find entities that overlap the entities of another component."""
    annotation = parts.annotation
    if not isinstance(annotation, Entities) or Warnings.CRFW423 in parts.warned:
        return
    n_before = _LOOKED_AT.get(annotation, 0)
    present = entities_of(preset)
    if n_before >= _MOST_DOCS or not len(present.start):
        return
    labels_of = {name: labels for name, (first, labels) in LATEST.items() if name != parts.name and first() is docs[0]}
    if not labels_of:
        return
    _LOOKED_AT[annotation] = n_before + len(docs)
    over, wide = without_edges(parts, docs, scores)
    found = over.decoding.segments(over.decoding.best_tags(wide, None), wide.starts)
    for begin, end, label in zip(*(column.tolist() for column in found)):
        for n in np.flatnonzero((present.start < end) & (present.end > begin)).tolist():
            if _warn(parts, docs, (begin, end, parts.annotation.labels[label]), present, n, labels_of):
                return


def _warn(
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
    start, stop, kept = (int(column[n]) for column in present)
    number = int(np.searchsorted(docs.bounds, start, side="right")) - 1
    doc = docs[number]
    shift = int(docs.bounds[number])
    kept_label = doc.vocab.strings[kept % (1 << 64)]
    other = next((name for name, labels in labels_of.items() if kept_label in labels), None)
    if other is None or (start, stop, kept_label) == found:
        return False
    kept_span = doc[start - shift : stop - shift].text
    parts.warn_once(
        Warnings.CRFW423,
        span=doc[begin - shift : end - shift].text,
        kept=kept_span,
        other=other,
        label=label,
        kept_label=kept_label,
        text=doc.text[:40],
    )
    return True
