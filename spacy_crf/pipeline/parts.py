"""The parts of a component that prediction and training need, whichever component it is."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..arrays import spread
from ..features.doc_batch import DocBatch
from ..losses.clamped import LabelledLoss
from .annotation.annotation import Annotation
from .decoding import Decoding

if TYPE_CHECKING:
    from ..constraints.rule_set import RuleSet
    from .rule_matching import RuleMatcher

logger = logging.getLogger("spacy.spacy_crf")


class Rules(NamedTuple):
    """Rules compiled for the present labels."""

    all: "RuleSet"
    matcher: "RuleMatcher"
    # The same rules for other states of the same tags: makes them, and what it has made
    make: "Callable[[Decoding], Rules]"
    made: "dict[Decoding, Rules]"

    def over(self, decoding: Decoding) -> "Rules":
        """The rules compiled for the states of another decoding."""
        if decoding not in self.made:
            self.made[decoding] = self.make(decoding)
        return self.made[decoding]


class Parts(NamedTuple):
    """The parts by which a component predicts and learns."""

    name: str
    model: Model
    annotation: Annotation
    decoding: Decoding
    loss: LabelledLoss
    rules: Optional[Rules]
    settings: dict[str, Any]
    told: set[str]  # warnings that are given once, and were

    @property
    def labels(self) -> tuple[str, ...]:
        return self.annotation.labels

    def warn(self, message: str, **values: Any) -> None:
        logger.warning(message.format(name=self.name, **values))

    def warn_once(self, message: str, **values: Any) -> None:
        if message not in self.told:
            self.told.add(message)
            self.warn(message, **values)


class Unsettled(NamedTuple):
    """The part of some Docs that prediction still has to label."""

    parts: Parts  # that decode the scores
    docs: DocBatch
    scores: Any
    clamp: Any
    asked: DocBatch  # the Docs as a whole
    restricted: Callable[[Any], Any]  # the same part of other scores of the Docs
    starts: NDArray[np.int64]  # where the sequences started before tokens were left out
    settled: Optional[NDArray[np.bool_]] = None  # [T] tokens whose label is known
    kept: Optional[NDArray[np.int64]] = None  # tokens that take part, None for all

    def tags(self, tags: NDArray[np.int32]) -> NDArray[np.int32]:
        """Tags of all tokens (int32[T]) from tags of the tokens that take part; -1 for the others."""
        return tags if self.kept is None else spread(tags, self.kept, int(self.starts[-1]), -1)
