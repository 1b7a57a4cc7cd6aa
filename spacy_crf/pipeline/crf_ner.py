"""Named entities: labels in a tag scheme, read from and written to ``doc.ents``."""

from functools import lru_cache
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.structure import SpanStates
from ..schemes import BEGIN, INSIDE, Scheme, get_scheme
from ..types import Clamp
from .chain_pipe import ChainPipe
from .entity_pipe import EntityPipe


class CRFEntityRecognizer(EntityPipe, ChainPipe):
    """Finds entities (factory ``crf_ner``).

    Entities that a Doc has already are kept, and the rest is decoded around them. Entities end where a sentence is known
    to end.
    """

    meaning = ("scheme",)

    def __init__(self, vocab, model, name="crf_ner", *, scheme: str = "BILUO", **settings):
        self.scheme = get_scheme(scheme)
        super().__init__(vocab, model, name, scheme=scheme, **settings)

    def tag_labels(self) -> list[str]:
        return ["O", *(label for label in self.labels for _ in self.scheme.prefixes)]

    def span_tags(self, label: str, length: int) -> Optional[NDArray[np.int64]]:
        if label in ("", "O"):
            return np.zeros(length, dtype=np.int64)
        if label not in self.labels:
            return None
        iob = np.array([BEGIN, *[INSIDE] * (length - 1)])
        labels = np.full(length, self.labels.index(label))
        return self.scheme.reading.encode(iob, labels, np.array([0, length])).astype(np.int64)

    def continuing_tags(self, tag: int) -> NDArray[np.bool_]:
        return self.scheme.reading.continues(len(self.labels))[tag]

    def tells_alone(self, length: int) -> bool:
        return length == 1 and bool(self.scheme.closes)  # U-PER

    def spell(self, allowed: Clamp, starts: NDArray[np.int64]) -> tuple[Clamp, NDArray[np.int64]]:
        return self.scheme.spell(allowed, starts)

    def span_states(self) -> SpanStates:
        return _span_states(self.scheme, len(self.labels))


@lru_cache(maxsize=32)
def _span_states(scheme: Scheme, n_labels: int) -> SpanStates:
    return SpanStates(scheme.continues(n_labels), 1, len(scheme.prefixes))
