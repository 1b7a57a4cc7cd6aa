"""Exact answers by a junction tree (see `elimination`), whose tables may be made smaller by leaving out ties."""

from typing import Optional

import numpy as np

from ... import checks
from ...errors import Warnings, announcements
from .belief_propagation import BeliefPropagation
from .elimination import Elimination
from .method import LOG_PARTITION, WALK
from .scores import Problem

DROPS = (None, "mutual_information")


class JunctionTree(Elimination):
    """Exact answers by eliminating one token after the other.

    max_table (int): Numbers of a table, at most. A sentence alone needs the square of the tags.
    drop (str): What is done where a table would be larger: it is an error if None; with "mutual_information" the ties that say
        least are left out, until all tables fit. It is said once how much they would have said.
    """

    def __init__(self, max_table: int = 1_000_000, drop: Optional[str] = None):
        super().__init__(max_table)
        self.drop = checks.one_of(type(self).__name__, "drop", drop, DROPS)
        if drop is not None:
            # Without some ties there is no log partition to train with: gold labels would count in all ties, others in some
            self.exact, self.answers = False, self.answers - {LOG_PARTITION, WALK}
        self.n_dropped, self.n_ties = 0, 0  # of the components whose tables would have been too large
        self._told_dropped = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_table={self.max_table}, drop={self.drop!r})"

    def _fitting(self, part: Problem) -> Problem:
        """A component, without ties that would make tables too large if these are to be left out: as few as possible, of those
        whose ends say least of each other. So much further from the whole is what is left (Koller & Friedman 2009, 8.5)."""
        if self.drop is None or self._fits(part):
            return part
        information = BeliefPropagation(iterations=50, damping=0.2).information(part)
        order = np.argsort(information, kind="stable")

        def without(n: int) -> Problem:
            kept = np.sort(order[n:])
            ends = {name: getattr(part, name)[kept] for name in ("source", "target", "kind")}
            return part._replace(**ends, bounds=np.array([0, len(kept)]))

        fewest, n = 1, len(order)
        while fewest < n:
            half = (fewest + n) // 2
            fewest, n = (fewest, half) if self._fits(without(half)) else (half + 1, n)
        self.n_dropped, self.n_ties = self.n_dropped + n, self.n_ties + len(order)
        self._tell_dropped(n, len(order), float(information[order[:n]].sum()))
        return without(n)

    def _tell_dropped(self, n: int, n_ties: int, information: float) -> None:
        if not self._told_dropped:
            self._told_dropped = True
            message = Warnings.CRFW371.format(n=n, ties=n_ties, most=self.max_table, information=f"{information:.3g}")
            announcements.warning(message)
