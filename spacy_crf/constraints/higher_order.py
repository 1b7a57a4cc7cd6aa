"""Rules of chains of higher order: as those of chains, but what no graph of states holds can't be had."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..inference.higher_order import HigherOrder
from ..inference.structure import Structure
from ..schemes import TransitionMask
from .automaton import SpanTags
from .rule_set import RuleSet
from .settings import Constraints


class HigherOrderRules(RuleSet):
    """See `RuleSet`.

    RAISES (ValueError): CRF034 for rules that need a program.
    """

    structure = HigherOrder()
    has_programs = False

    def __init__(
        self, constraints: Constraints, tags: SpanTags, mask: TransitionMask, structure: Optional[Structure] = None
    ):
        super().__init__(constraints, tags, mask, structure)
        if self.global_:
            raise ValueError(Errors.CRF034.format(rules=", ".join(rule.name for rule in self.global_)))

    def best_first(self, joined: Any, automata: frozenset[int]) -> tuple[bool, Optional[NDArray[np.int32]]]:
        return False, None  # its bounds are those of chains of order 1
