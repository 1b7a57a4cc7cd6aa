"""Sums over the labels of texts that attract or repel each other: an Ising model over the labels of a text.

    score(y) = sum_j labels[present or absent]_j + sum_((j, k) in edges) pairs_jk y_j y_k        y_j = 1: the text has label j

All texts have the same graph, so labels are eliminated in one order for all of them: sums are exact if the tables are small
enough. For wider graphs texts become sequences with ties, for the inference methods in `ties`.
"""

from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf.inference.independent_labels import IndependentLabels, LabelSetWork
from spacy_crf.inference.structure import States
from spacy_crf.types import Bools, Floats, Ints, Path

from .errors import Errors
from .kernels import label_graph as kernels
from .kernels.junction_tree import order as elimination_order
from .ties.method import Inference
from .ties.scores import TiedScores, Ties
from .ties.structure import TiedChains

MOST_ENTRIES = 1 << 20  # of a table: of 20 labels that all depend on each other


class LabelScores(NamedTuple):
    """Potentials of B texts with L labels, and E pairs of labels."""

    labels: Floats  # [B, 2 L] of present labels, then of absent ones
    pairs: Floats  # [E] added where both labels are present
    edges: NDArray[np.int64]  # [E, 2] the labels of each pair
    implies: Bools  # [E] pairs whose first label is never present without the second
    starts: NDArray[np.int64]  # [B + 1]

    AXES = MappingProxyType({"labels": ("text", "state"), "pairs": ("pair",)})

    @property
    def n_labels(self) -> int:
        """Number of labels, L."""
        return self.labels.shape[1] // 2


class Places(NamedTuple):
    """Elimination of the labels of a graph, and the entries of tables that belong to its pairs."""

    plan: kernels.Plan
    entries: Ints  # [M] entries with both labels of a pair
    pair_of: Ints  # [M] that pair
    broken: Ints  # entries whose label lacks a label that it implies

    def tables(self, pairs: Floats) -> Floats:
        """The scores of the entries of all tables: float64[N]."""
        found = np.bincount(self.entries, pairs[self.pair_of], minlength=int(self.plan.starts[-1])).astype(np.float64)
        found[self.broken] = -np.inf
        return found


def places_of(edges: NDArray[np.int64], implies: Bools, n_labels: int) -> Places:
    """RAISES (ValueError): CRF481 for a graph with too large tables."""
    return _places(edges.tobytes(), implies.tobytes(), n_labels)


@lru_cache(maxsize=64)
def _places(edges: bytes, implies: bytes, n_labels: int) -> Places:
    pairs = np.frombuffer(edges, dtype=np.int64).reshape(-1, 2)
    sizes = np.full(n_labels, 2)
    order, largest = elimination_order(pairs[:, 0].copy(), pairs[:, 1].copy(), sizes, MOST_ENTRIES)
    if largest > MOST_ENTRIES:
        raise ValueError(Errors.CRF481.format(edges=len(pairs), labels=n_labels, most=MOST_ENTRIES))
    # The labels of each table: its own one, and the later ones, the next one of them first
    rests = [order.rest[begin:end][::-1] for begin, end in zip(order.starts[:-1], order.starts[1:])]
    # Entry n of a table has bit k of n for the label at place k
    tables = [[int(v), *rest.tolist()] for v, rest in zip(order.variables, rests)]
    starts = np.append(0, np.cumsum([1 << len(table) for table in tables])).astype(np.int64)
    numbers = [np.arange(1 << len(table)) for table in tables]
    parents = np.array([order.place[table[1]] if len(table) > 1 else -1 for table in tables], dtype=np.int64)
    into = []
    for table, parent in zip(tables, parents):
        entries = np.zeros(len(numbers[parent]) if parent >= 0 else 0, dtype=np.int64)
        for n, label in enumerate(table[1:]):
            entries |= (numbers[parent] >> tables[parent].index(label) & 1) << n
        into.append(entries)
    into_starts = np.append(0, np.cumsum([*map(len, into)]))[:-1].astype(np.int64)
    plan = kernels.Plan(order.variables, starts, parents, np.concatenate(into).astype(np.int32), into_starts)
    entries = []
    broken = [np.zeros(0, dtype=np.int64)]
    for (source, target), is_implied in zip(pairs.tolist(), np.frombuffer(implies, dtype=bool)):
        k = min(order.place[source], order.place[target])
        # [entries] whether the label is present
        has = numbers[k] >> tables[k].index(source) & 1
        has_other = numbers[k] >> tables[k].index(target) & 1
        entries.append(starts[k] + np.flatnonzero(has & has_other))
        if is_implied:
            broken.append(starts[k] + np.flatnonzero(has > has_other))
    pair_of = np.repeat(np.arange(len(entries)), [*map(len, entries)])
    return Places(plan, np.concatenate([*entries, broken[0]]), pair_of, np.concatenate(broken))


class LabelGraphs(IndependentLabels):
    """Implements the methods of `Structure` for the labels of texts. Clamps and paths are those of `IndependentLabels`.

    inference (Inference): Answers in place of elimination; a text is then a set of tied sequences of one token.
    """

    def __init__(self, inference: Optional[Inference] = None, *, threads: int = 1):
        super().__init__(threads=threads)
        self.inference = inference
        self._tied = None if inference is None else TiedChains(inference)

        if inference is not None and not inference.exact:
            self.answers = frozenset()

    def expect(self, work: LabelSetWork, weights: Floats, out: LabelScores) -> Floats:
        """Log partitions of texts (float64[B]); `out` receives the derivative of their weighted sum."""
        log_z = np.zeros(work.n_sequences)
        n_labels = work.scores.n_labels
        known = np.zeros(len(log_z), dtype=bool)
        if work.clamp is not None:  # fully annotated texts have one labelling, which takes no sums
            known = (work.clamp[:, :n_labels] != work.clamp[:, n_labels:]).all(axis=1)
            log_z[known] = _add_labellings(work, known, work.clamp[known, :n_labels], weights, out)
        own = np.ascontiguousarray(work.clamped_labels[~known])
        of_rest = weights[~known]
        if self._tied is not None:
            # A label that is neither leaves other components of its text possible, which must not count
            of_rest = np.where((own.reshape(len(own), 2, n_labels).max(axis=1) > -np.inf).all(axis=1), of_rest, 0.0)
            tied = _as_tied(own, work.scores)
            found, d_tied = self._tied.expectations(tied, weights=np.repeat(of_rest, n_labels))
            log_z[~known] = found.reshape(-1, n_labels).sum(axis=1)
            states = d_tied.emissions.reshape(-1, n_labels, 2)
            out.labels[~known] = np.concatenate([states[:, :, 1], states[:, :, 0]], axis=1)
            out.pairs[:] += d_tied.tables[:, 1, 1]
            return log_z
        places = places_of(work.scores.edges, work.scores.implies, n_labels)
        tables = places.tables(work.scores.pairs)
        rest = np.empty(len(own))
        d_labels = np.empty(own.shape)
        d_tables = np.zeros(len(tables))
        kernels.expectations(own, tables, places.plan, of_rest, rest, d_labels, d_tables)
        log_z[~known] = rest
        out.labels[~known] = d_labels
        out.pairs[:] += np.bincount(places.pair_of, d_tables[places.entries], minlength=len(out.pairs))
        return log_z

    def best(self, work: LabelSetWork) -> Path:
        """The best set of labels of each text: int32[B, L]."""
        own = np.ascontiguousarray(work.clamped_labels)
        n_labels = work.scores.n_labels
        shape = (len(own), n_labels)
        if self._tied is not None:
            found = self._tied.viterbi(_as_tied(own, work.scores))
            total = found.scores.reshape(shape).sum(axis=1)
            return Path(np.where(total[:, np.newaxis] > -np.inf, found.states.reshape(shape), -1), total)
        states = np.empty(shape, dtype=np.int32)
        best = np.empty(len(own))
        places = places_of(work.scores.edges, work.scores.implies, n_labels)
        kernels.best(own, places.tables(work.scores.pairs), places.plan, states, best)
        return Path(states, best)

    def add_path(self, work: LabelSetWork, states: States, weights: Floats, out: LabelScores) -> None:
        """Add the weighted uses by the sets of labels."""
        found = np.all(states >= 0, axis=1)
        _add_labellings(work, found, states[found] == 1, weights, out)


def _add_labellings(work: LabelSetWork, texts: Bools, present: Bools, weights: Floats, total: LabelScores) -> Floats:
    """Add the weighted uses of scores by a labelling (of bool[N, L]) of each of some texts (bool[B]). RETURNS (float64[N]): Their
    scores."""
    scores = work.scores
    states = np.concatenate([present, ~present], axis=1)
    weights = weights[texts]
    first = present[:, scores.edges[:, 0]]
    second = present[:, scores.edges[:, 1]]
    # A label without one that it implies
    is_broken = (first & ~second & scores.implies).any(axis=1)
    weights = np.where(is_broken, 0.0, weights)
    both = (first & second).astype(np.float64)
    total.labels[texts] += weights[:, np.newaxis] * states
    total.pairs[:] += weights @ both
    found = np.where(states, scores.labels[texts], 0.0).sum(axis=1) + both @ scores.pairs
    return np.where(is_broken, -np.inf, found)


def _as_tied(own: Floats, scores: LabelScores) -> TiedScores:
    """Texts as sequences of one token with the states absent and present, one for each label, that ties connect."""
    n_texts, size = own.shape
    n_edges = len(scores.edges)
    first = size // 2 * np.arange(n_texts)[:, np.newaxis]
    source, target = (first + scores.edges.T[:, np.newaxis]).reshape(2, -1).astype(np.int32)
    kinds = np.arange(n_edges, dtype=np.int32)
    ties = Ties(source, target, np.tile(kinds, n_texts), kinds[:, np.newaxis], np.zeros(n_edges, dtype=bool))
    emissions = np.stack([own[:, size // 2 :], own[:, : size // 2]], axis=2).reshape(-1, 2)
    tables = np.zeros((n_edges, 2, 2))
    nothing = np.zeros(2)
    tables[:, 1, 1] = scores.pairs
    starts = np.arange(len(emissions) + 1)
    return TiedScores(emissions, np.zeros((2, 2)), nothing, nothing, tables, np.arange(2), ties, starts)
