"""Named entities: labels in a tag scheme, read from and written to ``doc.ents``."""

from functools import lru_cache
from typing import TYPE_CHECKING, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.structure import SpanStates
from ..schemes import BEGIN, INSIDE, Scheme, get_scheme
from ..types import ChainScores, Clamp
from .chain_pipe import ChainPipe
from .entity_pipe import EntityPipe

if TYPE_CHECKING:
    from .settled import Settled


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
        return self.scheme.encode(iob, labels, np.array([0, length])).astype(np.int64)

    def tells_alone(self, length: int) -> bool:
        return length == 1 and bool(self.scheme.closes)  # U-PER

    def settled_scores(self, scores: ChainScores, settled: "Settled") -> tuple[ChainScores, Clamp]:
        scores, clamp = super().settled_scores(scores, settled)
        parted = self.scheme.parted(settled.iob, scores.starts)
        if len(parted):  # IOB1: what a clamp can't say is said by the transitions of these tokens
            shape = (len(scores.emissions), *np.shape(scores.transitions)[-2:])
            transitions = np.array(np.broadcast_to(scores.transitions, shape))
            transitions[parted] = np.where(self.span_states().continues, -np.inf, transitions[parted])
            scores = scores._replace(transitions=transitions)
        return scores, clamp

    def span_states(self) -> SpanStates:
        return _span_states(self.scheme, len(self.labels))


@lru_cache(maxsize=32)
def _span_states(scheme: Scheme, n_labels: int) -> SpanStates:
    return SpanStates(scheme.continues(n_labels), 1, len(scheme.prefixes))
