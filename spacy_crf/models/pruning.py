"""Leaving out of a model what has no effect: weights that are zero, and features that have no other."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from .sparse_rows import SparseRows


class Pruned(NamedTuple):
    model: Model
    weights: int  # how many were left out
    features: int


def prune(model: Model) -> Pruned:
    """A copy of a model without the zeros among the weights of its sparse features."""
    pruned = model.copy()
    n_weights = n_features = 0
    for node in pruned.walk():
        for name, features in list(node.attrs.items()):
            if not hasattr(features, "with_tables"):
                continue
            tables = {}
            for param, rows in features.tables.items():
                weights = node.get_param(param)
                kept = weights != 0
                tables[param] = _keep(rows, kept)
                node.set_param(param, weights[kept])
                n_weights += int((~kept).sum())
                n_features += len(rows.index) - len(tables[param].index)
            node.attrs[name] = features.with_tables(tables)
    return Pruned(pruned, n_weights, n_features)


def _keep(rows: SparseRows, kept: NDArray[np.bool_]) -> SparseRows:
    """Some of the weights (bool[W]), and the features that have any."""
    widths = np.bincount(rows.rows_of_pairs()[kept], minlength=len(rows.index))
    has_weight = widths > 0
    index = rows.index.keep(has_weight)
    if len(index) < len(rows.index):
        widths, counts = widths[has_weight], rows.counts[has_weight]
    else:  # hashed rows stay
        counts = rows.counts
    starts = np.append(0, np.cumsum(widths)).astype(np.int64)
    return SparseRows(index, starts, rows.pair_columns[kept], rows.n_columns, counts)
