"""The parts of a component that prediction and training need, whichever component it is."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from thinc.api import Model

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
