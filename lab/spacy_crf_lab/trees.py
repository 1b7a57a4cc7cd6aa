"""Regression trees with a vector in each leaf: see `kernels.boosting`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.features.feature_index import FeatureIndex
from spacy_crf.models.node import check_array, check_equal, enlarged
from spacy_crf.types import TemplateRows, TokenFeatures

from .kernels.boosting import find_leaves

_NO_VALUES = np.zeros(0, dtype=np.float32)
MOST_LEAVES = 64  # of a tree, see `kernels.boosting.find_leaves`
EVERYWHERE = "all tokens"  # name of the path of a tree without a split


class Forest(NamedTuple):
    """B trees with N nodes and L leaves. A node is followed by all that is behind its "no", then by all behind its "yes", so the
    leaves are in this order too."""

    roots: NDArray[np.int32]  # [B]
    feature: NDArray[np.int32]  # [N] row of the feature that a node asks for, -1 for leaves
    threshold: NDArray[np.float32]  # [N] that its value must exceed; -inf if the feature need only be there
    yes: NDArray[np.int32]  # [N] the node for "yes"; -1 for leaves
    values: NDArray[np.float32]  # [L, S]

    @classmethod
    def none(cls, n_states: int) -> "Forest":
        """No trees."""
        none = np.zeros(0, dtype=np.int32)
        return cls(none, none, _NO_VALUES, none, np.zeros((0, n_states), dtype=np.float32))

    def plus(self, other: "Forest") -> "Forest":
        """These trees, followed by other ones."""
        shift = np.int32(len(self.feature))
        moved = other._replace(roots=other.roots + shift, yes=np.where(other.yes >= 0, other.yes + shift, other.yes))
        return Forest._make(map(np.concatenate, zip(self, moved)))

    def with_states(self, n_states: int) -> "Forest":
        """The trees with a score of 0 for new states, which are the last ones."""
        return self._replace(values=enlarged(self.values, (len(self.values), n_states)))

    def paths(self, index: FeatureIndex) -> list[str]:
        """The questions and answers that lead to each leaf."""
        before = [""] * len(self.feature)
        paths = []
        for node, (row, threshold, yes) in enumerate(zip(self.feature.tolist(), self.threshold, self.yes.tolist())):
            if row < 0:
                paths.append(before[node] or EVERYWHERE)
                continue
            asked = index.name(row) + ("" if threshold == -np.inf else f" > {threshold:.6g}")
            so_far = before[node] + " and " if before[node] else ""
            before[node + 1] = f"{so_far}not {asked}"
            before[yes] = so_far + asked
        return paths

    def check(self, n_features: int, n_states: int) -> None:
        """Check loaded trees, which kernels trust. RAISES (ValueError): CRF509."""
        n_nodes = len(self.feature) if isinstance(self.feature, np.ndarray) else 0
        n_leaves = len(self.values) if isinstance(self.values, np.ndarray) else 0
        check_array("roots of the trees", self.roots, (2 * n_leaves - n_nodes,), np.int32)
        check_array("features of the trees", self.feature, (n_nodes,), np.int32)
        check_array("thresholds of the trees", self.threshold, (n_nodes,), np.float32)
        check_array("answers of the trees", self.yes, (n_nodes,), np.int32)
        check_array("leaves of the trees", self.values, (n_leaves, n_states), np.float32)
        fits = (
            (self.feature < n_features).all() and not np.isnan(self.threshold).any() and np.isfinite(self.values).all()
        )
        # waiting are the nodes for "yes" that are to come
        roots = []
        waiting = []
        n_of_tree = 0
        for node, (row, yes) in enumerate(zip(self.feature.tolist(), self.yes.tolist())):
            if not n_of_tree:
                roots.append(node)
            n_of_tree += 1
            if row >= 0:
                waiting.append(yes)
            elif waiting:
                fits &= waiting.pop() == node + 1 < n_nodes
            else:
                fits &= n_of_tree < 2 * MOST_LEAVES
                n_of_tree = 0
        check_equal("the trees", bool(fits and not waiting and roots == self.roots.tolist()), True)


class CompiledForest:
    """Trees in the form in which leaves are looked up, see `kernels.boosting.find_leaves`.

    forest (Forest): The trees.
    rows (int32[F]): The features that they ask for.
    """

    def __init__(self, forest: Forest):
        self.forest = forest
        [nodes] = np.nonzero(forest.feature >= 0)
        self.rows, feature = np.unique(forest.feature[nodes], return_inverse=True)
        nodes = nodes[np.argsort(feature, kind="stable")]
        before = np.append(0, np.cumsum(forest.feature < 0))  # leaves before each node
        self._first_leaf = before[forest.roots].astype(np.int32)
        tree = np.searchsorted(forest.roots, nodes, side="right") - 1
        # The leaves under the "no" of each node
        first = before[nodes + 1] - self._first_leaf[tree]
        behind = before[forest.yes[nodes]] - self._first_leaf[tree]
        # A bit for each leaf: an answer "yes" rules out the leaves under "no"
        ones = (np.uint64(1) << (behind - first).astype(np.uint64)) - np.uint64(1)
        self._asked = tree.astype(np.int32), forest.threshold[nodes], ~(ones << first.astype(np.uint64))
        self._starts = np.append(0, np.cumsum(np.bincount(feature, minlength=len(self.rows)))).astype(np.int64)

    def leaves(self, rows: TemplateRows, items: TokenFeatures) -> NDArray[np.int32]:
        """The leaf of each token in each tree (int32[T, B]), from its features by template and the others, by place in `rows`."""
        leaves = np.empty((len(items.starts) - 1, len(self._first_leaf)), dtype=np.int32)
        values = _NO_VALUES if items.values is None else items.values
        find_leaves(rows, items.rows, values, items.starts, self._starts, self._asked, self._first_leaf, leaves)
        return leaves
