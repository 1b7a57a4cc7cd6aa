"""What several who each count the features of a part of a corpus find, put together: what one who counts all of it would."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.vocab import Vocab
from thinc.api import Model

from ..errors import Errors
from ..features.feature_index import FeatureIndex, HashTable
from .architecture import Architecture
from .role import Sizes
from .sparse import VECTORS, SparseRole
from .table import Table, move_weights


def counts_in_parts(model: Model) -> bool:
    """Whether what a model learns when it is initialized is a sum over the texts."""
    kind = type(model.attrs["role"])
    return (
        issubclass(kind, Architecture)
        and kind.observe is Architecture.observe
        and kind.start is Architecture.start
        and all(isinstance(layer.attrs["role"], SparseRole) for layer in model.layers)
        and not any(VECTORS in layer.attrs["role"].features(layer).tables for layer in model.layers)
    )


def counts_all(model: Model) -> None:
    """From here on the model keeps every feature that it meets, since others may have met it too."""
    for layer in model.layers:
        layer.attrs.update({name: 0 for name in ("min_count", "possible_states") if name in layer.attrs})


def counted(model: Model) -> dict[str, Any]:
    """What a model has found in its part, as msgpack can write it."""
    tables = [layer.attrs["role"].features(layer).tables for layer in model.layers]
    return {
        "tables": [{name: table.to_dict() for name, table in of_layer.items()} for of_layer in tables],
        "observed": model.attrs["observed"].tolist(),
        "met": list(model.attrs["met"]),
    }


def put_together(model: Model, vocab: Vocab, n_states: int, parts: Iterable[dict[str, Any]]) -> None:
    """Initializes a model by what was found in the parts of a corpus, in their order.

    RAISES (ValueError): CRF114 if no feature was met often enough.
    """
    node: Architecture = model.attrs["role"]
    sizes = Sizes(vocab, n_states, longest=node.longest(model))
    for layer in model.layers:
        layer.attrs["role"].resize(layer, node.columns(n_states))
    sums = [
        {name: TableSum(table) for name, table in layer.attrs["role"].features(layer).tables.items()}
        for layer in model.layers
    ]
    met, observed = np.zeros(2, dtype=np.int64), np.zeros((n_states + 2, n_states), dtype=np.uint8)
    for part in parts:
        for of_layer, of_part in zip(sums, part["tables"]):
            for name, table in of_part.items():
                of_layer[name].add(Table.from_dict(table))
        met += part["met"]
        observed |= np.array(part["observed"], dtype=np.uint8)
    for layer, of_layer in zip(model.layers, sums):
        _take(layer, of_layer, sizes)
    node.resize(model, n_states)
    model.attrs.update(observed=observed, met=met.tolist())


def _take(layer: Model, sums: dict[str, "TableSum"], sizes: Sizes) -> None:
    role, min_count = layer.attrs["role"], layer.attrs.get("min_count", 1)
    old = role.features(layer)
    first = old.first_state if layer.attrs.get("possible_states") else None
    tables = {name: of_table.freeze(min_count, first) for name, of_table in sums.items()}
    if "states" in tables and not len(tables["states"].index) and len(sums["states"]):
        raise ValueError(Errors.CRF114.format(min_count=min_count, seen=len(sums["states"])))
    for name, table in tables.items():
        move_weights(layer, name, old.tables[name], table)
    layer.attrs[role.attr] = old.with_tables(tables, **old.measured(sizes))


class TableSum:
    """The table of a corpus, from those of its parts.

    empty (Table): What is known before: nothing but the number of columns.
    """

    def __init__(self, empty: Table):
        self._n_columns = empty.n_columns
        self._hashed: Table | None = None  # where features have no names, and so no rows of their own
        self._rows = HashTable()
        self._counts = np.zeros(0, dtype=np.int64)
        self._pairs = np.zeros(0, dtype=np.int64)  # row · C + column, in rising order
        self._templates: dict[str, int] = {}
        self._strings: dict[str, int] = {}
        self._names: list[
            tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]
        ] = []  # of the new of each part

    def __len__(self) -> int:
        """How many features were met."""
        return len(self._rows)

    def add(self, table: Table) -> None:
        """The next part."""
        index = table.index
        if not isinstance(index, FeatureIndex):
            counts = 0 if self._hashed is None else self._hashed.counts
            self._hashed = Table(index, table.pair_starts, table.pair_columns, table.n_columns, counts + table.counts)
            return
        new = self._rows.rows(index.keys) < 0
        self._remember(index.keep(new))
        self._rows.insert(index.keys[new])
        rows = self._rows.rows(index.keys).astype(np.int64)
        counts = np.zeros(len(self), dtype=np.int64)
        counts[: len(self._counts)] = self._counts
        counts[rows] += table.counts
        self._counts = counts
        pairs = rows[table.rows_of_pairs()] * self._n_columns + table.pair_columns
        self._pairs = np.union1d(self._pairs, pairs)

    def _remember(self, new: FeatureIndex) -> None:
        """How features are spelled."""
        templates = [self._templates.setdefault(name, len(self._templates)) for name in new.templates]
        strings = [self._strings.setdefault(text, len(self._strings)) for text in new.strings]
        template_of = np.array(templates, dtype=np.int32)[new.template_of] if len(new) else new.template_of
        parts = np.array(strings, dtype=np.int32)[new.parts] if len(new.parts) else new.parts
        self._names.append((template_of, np.diff(new.part_starts), parts))

    def freeze(self, min_count: int, first: int | None) -> Table:
        """The features that were met often enough, with the columns that each met; or with all from the first one on."""
        if self._hashed is not None:
            return self._hashed
        row, column = np.divmod(self._pairs, self._n_columns)
        widths = np.bincount(row, minlength=len(self))
        keep = (self._counts >= min_count) & (widths > 0)
        if not self._names:
            self._remember(FeatureIndex.empty())
        template_of, n_parts, parts = (np.concatenate(columns) for columns in zip(*self._names))
        starts = np.append(0, np.cumsum(n_parts)).astype(np.int64)
        templates, strings = list(self._templates), list(self._strings)
        index = FeatureIndex(self._rows.keys, templates, template_of, starts, parts, strings).keep(keep)
        if first is not None:
            return Table.full(index, self._n_columns, self._counts[keep], first=first)
        pair_starts = np.append(0, np.cumsum(widths[keep])).astype(np.int64)
        return Table(index, pair_starts, column[keep[row]].astype(np.int32), self._n_columns, self._counts[keep])
