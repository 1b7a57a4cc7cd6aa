"""Components whose model gives ``HigherOrderScores``."""

import numpy as np
from thinc.api import Model

from ..constraints.automaton import SpanTags
from ..constraints.rule_set import RuleSet
from ..constraints.settings import Constraints
from ..errors import Errors
from ..inference.higher_order import HigherOrder
from ..inference.pruned_lattice import HigherOrderScores, Orders
from ..types import Floats
from .annotation.entities import Annotation
from .decoding import Decoding


class HigherOrderDecoding(Decoding):
    def __init__(self, model: Model, annotation: Annotation):
        super().__init__(model, annotation)
        model.attrs["node"].name_tags(annotation.tags())

    def compile_rules(self, constraints: Constraints) -> RuleSet:
        """Compile the rules for the present labels, without a search in a lattice, which searches chains of order 1 only.

        RAISES (ValueError): CRF034 for rules that need a lattice.
        """
        compared = [rule.name for rule in constraints.rules if rule.global_]
        if compared:
            raise ValueError(Errors.CRF034.format(rules=", ".join(compared)))
        tags = SpanTags(list(self.annotation.labels), self.label_of_states, self.spans.continues)
        structure = self.special_search or HigherOrder()
        return RuleSet(constraints, tags, self.annotation.mask(), structure, in_lattice=False)

    def expected(self, scores: HigherOrderScores, worth: dict[str, Floats]) -> HigherOrderScores:
        """Make scores whose best labelling has the largest expected worth. The worth of a token does not depend on other tokens,
        and pruned tags stay pruned.
        """
        found = super().expected(scores, worth)
        none = np.zeros(0, dtype=np.int64)
        return found._replace(
            emissions=np.where(found.emissions > 0.0, found.emissions, -np.inf),
            # No worth depends on other tags, so chains of order 1 without scores of transitions are enough
            grams=np.zeros(0),
            orders=Orders(1, none, scores.orders.size),
        )
