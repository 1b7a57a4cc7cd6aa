"""Components whose model gives ``HigherOrderScores``: as of chains, but for rules and the best expected labelling."""

from typing import TYPE_CHECKING, Any

import numpy as np
from thinc.api import Model

from ..errors import Errors
from ..inference.orders import HigherOrderScores, Orders
from ..losses.clamped import ClampedLoss
from ..types import Floats
from .annotation.annotation import Annotation
from .decoding import Decoding

if TYPE_CHECKING:
    from ..constraints.higher_order import HigherOrderRules
    from ..constraints.settings import Constraints


class HigherOrderDecoding(Decoding):
    unexplained = Errors.CRF325

    def __init__(self, model: Model, annotation: Annotation):
        super().__init__(model, annotation)
        model.attrs["role"].name_tags(annotation.tags())

    def check_fit(self, pipe: Any) -> None:
        """RAISES (ValueError): CRF324 for a loss that asks for what is known of chains of order 1 only."""
        if not isinstance(pipe.loss, ClampedLoss):
            raise ValueError(Errors.CRF324.format(name=pipe.name, loss=type(pipe.loss).__name__))

    def compile_rules(self, constraints: "Constraints") -> "HigherOrderRules":
        from ..constraints.automaton import SpanTags
        from ..constraints.higher_order import HigherOrderRules

        tags = SpanTags(list(self.annotation.labels), self.label_of_states, self.spans.continues)
        return HigherOrderRules(constraints, tags, self.annotation.mask(), self._within)

    def expected(self, scores: HigherOrderScores, worth: dict[str, Floats]) -> HigherOrderScores:
        """What each token adds does not depend on others; tags that were left out stay so."""
        found, none = super().expected(scores, worth), np.zeros(0, dtype=np.int64)
        emissions = np.where(found.emissions > 0.0, found.emissions, -np.inf)
        return found._replace(emissions=emissions, grams=np.zeros(0), orders=Orders(1, none, scores.orders.size))
