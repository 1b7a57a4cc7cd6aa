"""Leaving out of a model what has no effect: weights that are zero, and features that have no other."""

from typing import NamedTuple

from thinc.api import Model

from .sparse import SparseRole


class Pruned(NamedTuple):
    model: Model
    weights: int  # how many were left out
    features: int


def prune(model: Model) -> Pruned:
    """A copy of a model without the zeros among the weights of its sparse features."""
    pruned = model.copy()
    n_weights = n_features = 0
    for layer in pruned.layers:
        node = layer.attrs["role"]
        if isinstance(node, SparseRole):
            before, tables = node.features(layer), {}
            for name, table in before.tables.items():
                kept = layer.get_param(name) != 0
                tables[name] = table.pruned(kept)
                layer.set_param(name, layer.get_param(name)[kept])
                n_weights += int((~kept).sum())
                n_features += len(table.index) - len(tables[name].index)
            layer.attrs[node.attr] = before.with_tables(tables)
    return Pruned(pruned, n_weights, n_features)
