"""Leaving out of a model what has no effect: weights that are zero, and features that have no other."""

from typing import NamedTuple

import numpy as np
from thinc.api import Model

from .emissions import SparseFeatures
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
        features = node.attrs.get("features")
        if not isinstance(features, SparseFeatures):
            continue
        smaller = SparseFeatures(features.feature_set, gazetteers=features.gazetteers, n_tags=features.n_tags)
        for name in ("states", "transitions"):
            rows: SparseRows = getattr(features, name)
            weights = node.get_param(name)
            kept = weights != 0
            widths = np.bincount(rows.rows_of_pairs()[kept], minlength=len(rows.index))
            has_weight = widths > 0
            index = rows.index.keep(has_weight)
            kept_widths = widths if len(index) == len(rows.index) else widths[has_weight]
            starts = np.append(0, np.cumsum(kept_widths)).astype(np.int64)
            counts = rows.counts if len(index) == len(rows.index) else rows.counts[has_weight]
            setattr(smaller, name, SparseRows(index, starts, rows.pair_columns[kept], rows.n_columns, counts))
            node.set_param(name, weights[kept])
            n_weights += int((~kept).sum())
            n_features += len(rows.index) - len(index)
        node.attrs["features"] = smaller
    return Pruned(pruned, n_weights, n_features)
