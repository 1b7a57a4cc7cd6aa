"""Exact inference for tokens that only ties connect, as trees: two passes, which take as long as those of a chain."""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays
from spacy_crf.inference.scaling import aligned
from spacy_crf.inference.structure import States
from spacy_crf.kernels import linear_chain as chain_kernels
from spacy_crf.kernels.numerics import SPREAD
from spacy_crf.kernels.tiles import WHOLE
from spacy_crf.types import Floats

from ..kernels import trees as kernels
from .method import Expected
from .scores import Problem


class Trees(NamedTuple):
    """The components of a problem that are trees and whose sums do not underflow."""

    problem: Problem
    forest: kernels.Forest
    component: NDArray[np.int64]  # [T]
    own: Floats  # [T, S]

    @classmethod
    def of(cls, problem: Problem) -> "Optional[Trees]":
        """The forests of a problem. None if it has none, because transitions weigh neighbours together or all its ties form
        cycles."""
        if problem.chains.transitions.any():
            return None
        component = problem.of_tokens
        forest = kernels.grow(problem.source, problem.target, component, len(problem.firsts))
        if not len(forest.order):
            return None
        return cls(problem, forest, component, problem.own)

    def expectations(self, weights: Optional[Floats]) -> Expected:
        """Compute the log partitions of the components, NaN for components that are not trees or underflow; and, unless weights
        (float64[C]) are None, the derivative of the weighted sum of the others."""
        problem = self.problem
        chains = self.problem.chains
        shift = problem.tables.max(axis=(1, 2), initial=-np.inf)
        tables = _both_ways(problem.tables, 0.0, shift)
        states, of_tokens, spread = self._exponentials()
        log_z = np.where(self.forest.is_forest, 0.0, np.nan)
        if np.ptp(problem.tables, axis=(1, 2)).max(initial=0.0) > SPREAD:
            log_z[:] = np.nan
        # Scores too far apart: the component is left to a junction tree, in logarithms
        log_z[self.component[spread > SPREAD]] = np.nan
        log_z += np.bincount(problem.of_ties, shift[problem.kind], minlength=len(log_z))
        log_z += np.bincount(self.component, of_tokens, minlength=len(log_z))
        # Ties see labels: states of one label are summed first, and split again by `_by_state`
        own = states if self.is_plain else self._by_label(states)
        longest = int(np.diff(self.forest.starts).max())
        size = own.shape[1]
        pairs = aligned((2, len(shift), kernels.TOGETHER, size))
        room = kernels.Room(own, *aligned((3, longest, size)), *pairs, waiting=np.zeros(len(shift), dtype=np.int64))
        asked = (self.forest, room, problem.kind, tables, self.component)
        if weights is None:
            kernels.sums(*asked, np.zeros(0), own[:0], tables[0], log_z)
            return Expected(log_z, chains, problem.tables)
        # Leave components that underflow out of the sums
        known = ~np.isnan(log_z)
        while True:
            believed = np.zeros(self.own.shape if self.is_plain else own.shape)
            counts = aligned(tables.shape[1:])
            found = log_z.copy()
            counts[:] = 0.0
            kernels.sums(*asked, np.where(known, weights, 0.0), believed, counts, found)
            if not (known & np.isnan(found)).any():
                break
            known &= ~np.isnan(found)
        found[~known] = np.nan
        marginals = self._by_state(believed, own, states)
        n_labels = problem.n_labels
        (opens, closes) = arrays.ends(chains.starts, len(marginals))
        d_chains = chains._replace(
            emissions=marginals,
            transitions=np.zeros(chains.transitions.shape),
            first=marginals[opens].sum(axis=0),
            last=marginals[closes].sum(axis=0),
        )
        counts *= tables[0]
        return Expected(found, d_chains, np.ascontiguousarray(counts[:, :n_labels, :n_labels]))

    def _exponentials(self) -> tuple[Floats, Floats, Floats]:
        """exp of the scores of tokens, each row less its maximum (float64[T, P]), these maxima, and how far from them the
        smallest finite scores are (float64[T])."""
        n, size = self.own.shape
        scaled = aligned((n, _padded(size)))
        shift = np.zeros(n)
        spread = np.zeros(n)
        chain_kernels.scale(np.ascontiguousarray(self.own), np.zeros(0, dtype=np.int64), scaled, shift, spread)
        return scaled, shift, spread

    def _by_label(self, states: Floats) -> Floats:
        """Sum numbers of states by label, with padding labels (float64[T, L])."""
        sums = aligned((len(states), _padded(self.problem.n_labels)))
        sums[:] = 0.0
        sums[:, : self.problem.n_labels] = self.problem.by_label(states[:, : len(self.problem.label_of)])
        return sums

    def _by_state(self, believed: Floats, own: Floats, states: Floats) -> Floats:
        """Split the belief about each label among its states, in proportion to their scores."""
        if self.is_plain:
            return believed
        label_of = self.problem.label_of
        share = np.divide(believed, own, out=np.zeros(own.shape), where=own > 0.0)
        return share[:, label_of] * states[:, : len(label_of)]

    def best(self) -> tuple[States, Floats]:
        """Find the best labellings (int32[T]) of the trees, and their scores (float64[C]); NaN for other components."""
        problem = self.problem
        label_of = self.problem.label_of
        own = np.full((len(self.own), _padded(problem.n_labels)), -np.inf)
        if self.is_plain:
            own[:, : len(label_of)] = self.own
        else:
            for state, label in enumerate(label_of.tolist()):
                own[:, label] = np.maximum(own[:, label], self.own[:, state])
        labels = np.zeros(len(own), dtype=np.int64)
        scores = np.where(self.forest.is_forest, 0.0, np.nan)
        tables = _both_ways(problem.tables, -np.inf)
        kernels.best(self.forest, own, problem.kind, tables, self.component, labels, scores)
        if self.is_plain:
            return labels.astype(np.int32), scores
        fitting = label_of == labels[:, np.newaxis]
        return np.where(fitting, self.own, -np.inf).argmax(axis=1).astype(np.int32), scores

    @property
    def is_plain(self) -> bool:
        """Whether states are labels."""
        label_of = self.problem.label_of
        n_labels = self.problem.n_labels
        return len(label_of) == n_labels and bool((label_of == np.arange(n_labels)).all())


def _padded(size: int) -> int:
    return -(-size // WHOLE) * WHOLE


def _both_ways(tables: Floats, filling: float, shift: Optional[Floats] = None) -> Floats:
    """The tables, and the same turned: float64[2, K, L, L], with further labels that are filled up.

    shift (float64[K]): If it is given, exp of the tables less these. (In place: so much memory to be had took longer than exp.)
    """
    n, size = tables.shape[:2]
    both = aligned((2, n, _padded(size), _padded(size)))
    both[0] = filling
    inside = both[0, :, :size, :size]
    if shift is None:
        inside[:] = tables
    else:
        np.subtract(tables, shift[:, np.newaxis, np.newaxis], out=inside)
        np.exp(inside, out=inside)
    both[1] = both[0].swapaxes(1, 2)
    return both
