"""Exact inference by a junction tree (see `elimination`). Leaving out ties can make its tables smaller."""

from typing import Optional

import numpy as np

from ... import checks
from ...errors import Warnings, announcements
from ...optimizers.objective import setting
from .belief_propagation import BeliefPropagation
from .elimination import Elimination
from .method import LOG_PARTITION, WALK, method
from .scores import Problem

DROPS = (None, "mutual_information")


@method
class JunctionTree(Elimination):
    """Exact inference by eliminating one token after the other.

    max_table (int): Largest size of a table, in numbers. A sentence without ties needs the square of the number of tags.
    drop (str): Action if a table would be larger: None raises an error; "mutual_information" leaves out the least informative
        ties until all tables fit, and logs once how much information is lost.
    """

    drop: Optional[str] = setting(None, checks.one_of, allowed=DROPS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop is not None:
            # Without some ties there is no log partition to train with: gold labels would count in all ties, others in some
            self.exact, self.answers = False, self.answers - {LOG_PARTITION, WALK}
        self.n_dropped, self.n_ties = 0, 0  # of the components whose tables would have been too large
        self._has_warned = False

    def _fitting(self, part: Problem) -> Problem:
        """A component, without ties that would make tables too large if these are to be left out: as few as possible, of those
        whose ends say least of each other. So much further from the whole is what is left (Koller & Friedman 2009, 8.5)."""
        if self.drop is None or self.fits(part):
            return part
        information = BeliefPropagation(iterations=50, damping=0.2).information(part)
        order = np.argsort(information, kind="stable")

        def without(n: int) -> Problem:
            return part.with_ties(np.sort(order[n:]))

        fewest, n = 1, len(order)
        while fewest < n:
            half = (fewest + n) // 2
            fewest, n = (fewest, half) if self.fits(without(half)) else (half + 1, n)
        self.n_dropped, self.n_ties = self.n_dropped + n, self.n_ties + len(order)
        if not self._has_warned:
            self._has_warned = True
            lost = f"{float(information[order[:n]].sum()):.3g}"
            announcements.warning(Warnings.CRFW371.format(n=n, ties=len(order), most=self.max_table, information=lost))
        return without(n)
