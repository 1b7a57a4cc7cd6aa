"""Upper bounds of log partitions by tree-reweighting (Wainwright, Jaakkola & Willsky 2005).

The scores are a mean of those of forests, each with all chains and some of the ties, and the log partition is convex: so it is at
most the mean of theirs. How often a tie is in such a forest is its share. One that joins two tokens of a sentence is in none, as
the sentence joins them already; it is replaced by scores of its two ends that are together nowhere below its own:

    table[i, j] <= (max_k table[i, k] + max_k table[k, j]) / 2

Maxima of scores are convex in them, and the log partition rises with emissions: so it is convex in all scores still.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...types import Floats
from ..kernels import ties as kernels
from .method import Expected
from .scores import Problem

_FORESTS = 50  # at least


class Bounded(NamedTuple):
    """A problem of ties between sentences alone, whose log partition is at least as large."""

    problem: Problem
    shares: Floats  # [E'] of its ties
    inside: "Inside"

    @classmethod
    def of(cls, problem: Problem) -> "Bounded":
        starts = problem.chains.starts
        ends = np.searchsorted(starts, [problem.source, problem.target], side="right") - 1
        within = problem.inside
        inside = Inside.of(problem, within)
        emissions = problem.chains.emissions.copy()
        for tokens, scores in ((inside.source, inside.of_source), (inside.target, inside.of_target)):
            np.add.at(emissions, tokens, scores[inside.kind][:, problem.label_of])
        of_ties = problem.of_ties[~within]
        between = problem._replace(
            chains=problem.chains._replace(emissions=emissions),
            source=problem.source[~within],
            target=problem.target[~within],
            kind=problem.kind[~within],
            bounds=np.searchsorted(of_ties, np.arange(len(problem.firsts) + 1)),
        )
        return cls(between, _shares(between, ends[:, ~within], len(starts) - 1), inside)

    def expected(self, found: Expected) -> Expected:
        """The derivative with respect to the tables of all ties."""
        self.inside.add(found, self.problem.label_of)
        return found


class Inside(NamedTuple):
    """Ties inside of sentences: score[i, j] <= of_source[i] + of_target[j]."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    kind: NDArray[np.int64]
    of_source: Floats  # [K, L] half of the largest of each row
    of_target: Floats  # [K, L] and of each column
    best_target: NDArray[np.int64]  # [K, L] where these are
    best_source: NDArray[np.int64]  # [K, L]

    @classmethod
    def of(cls, problem: Problem, within: NDArray[np.bool_]) -> "Inside":
        tables = problem.tables
        return cls(
            problem.source[within],
            problem.target[within],
            problem.kind[within],
            tables.max(axis=2) / 2.0,
            tables.max(axis=1) / 2.0,
            tables.argmax(axis=2),
            tables.argmax(axis=1),
        )

    def add(self, found: Expected, label_of: NDArray[np.int64]) -> None:
        labels = (label_of[:, np.newaxis] == np.arange(self.of_source.shape[1])).astype(np.float64)
        every, marginals = np.arange(labels.shape[1]), found.chains.emissions
        for u, v, kind in zip(self.source.tolist(), self.target.tolist(), self.kind.tolist()):
            table = found.tables[kind]
            table[every, self.best_target[kind]] += marginals[u] @ labels / 2.0
            table[self.best_source[kind], every] += marginals[v] @ labels / 2.0


def _shares(problem: Problem, ends: NDArray[np.int64], n_sequences: int) -> Floats:
    """In which share of random forests each tie is: of at least so many, and until every tie is in one.

    ends (int64[2, E]): Sequences.
    """
    shares = np.ones(ends.shape[1])
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
