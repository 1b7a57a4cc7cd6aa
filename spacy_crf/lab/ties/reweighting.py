"""Upper bounds of log partitions by tree-reweighting (Wainwright, Jaakkola & Willsky 2005).

The scores are a mean of those of forests, each with all chains and some of the ties, and the log partition is convex: so it is at
most the mean of theirs. How often a tie is in such a forest is its share. One that joins two tokens of a sentence is in none, as
the sentence joins them already; it is replaced by scores of its two ends that are together nowhere below its own:

    table[i, j] <= (max_k table[i, k] + max_k table[k, j]) / 2

Maxima of scores are convex in them, and the log partition rises with emissions: so it is convex in all scores still.
"""

from typing import NamedTuple

import numpy as np

from ...types import Floats
from ..kernels import ties as kernels
from .method import Expected
from .scores import Problem

_FORESTS = 50  # at least


class Bounded(NamedTuple):
    """A problem of ties between sentences alone, whose log partition is at least as large."""

    problem: Problem
    shares: Floats  # [E'] of its ties
    whole: Problem  # with the ties inside sentences

    @classmethod
    def of(cls, whole: Problem) -> "Bounded":
        inside, emissions = whole.inside, whole.chains.emissions.copy()
        for tokens, axis in ((whole.source, 2), (whole.target, 1)):
            halves = whole.tables.max(axis=axis) / 2.0  # [K, L]
            np.add.at(emissions, tokens[inside], halves[whole.kind[inside]][:, whole.label_of])
        between = whole.with_ties(~inside)._replace(chains=whole.chains._replace(emissions=emissions))
        return cls(between, _shares(between), whole)

    def expected(self, found: Expected) -> Expected:
        """Add the derivative with respect to the tables of ties inside sentences."""
        whole, (best_source, best_target) = self.whole, (self.whole.tables.argmax(axis=axis) for axis in (1, 2))
        [inside], every = np.nonzero(whole.inside), np.arange(whole.n_labels)
        of_source, of_target = (
            whole.by_label(found.chains.emissions[ends[inside]]) / 2.0 for ends in (whole.source, whole.target)
        )
        for n, kind in enumerate(whole.kind[inside].tolist()):
            found.tables[kind, every, best_target[kind]] += of_source[n]
            found.tables[kind, best_source[kind], every] += of_target[n]
        return found


def _shares(problem: Problem) -> Floats:
    """The share of random forests that have each tie: of at least `_FORESTS`, and until every tie is in one."""
    ends = np.searchsorted(problem.chains.starts, [problem.source, problem.target], side="right") - 1
    shares, n_sequences = np.ones(ends.shape[1]), len(problem.component)
    for c in range(len(problem.firsts)):
        ties = slice(int(problem.bounds[c]), int(problem.bounds[c + 1]))
        n_ties = ties.stop - ties.start
        random, uses, forests = np.random.default_rng(0), np.zeros(n_ties, dtype=np.int64), 0
        of_ties = ends[:, ties]
        while forests < _FORESTS or (uses == 0).any():
            order = random.permutation(n_ties)
            if forests >= _FORESTS:  # first those that are in none so far
                order = order[np.argsort(uses[order] > 0, kind="stable")]
            kernels.add_forest(*of_ties, order, np.arange(n_sequences), uses)
            forests += 1
        shares[ties] = uses / forests
    return shares
