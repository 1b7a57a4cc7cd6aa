"""Counts of features in parts of a corpus, joined into the counts of the whole corpus."""

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.vocab import Vocab
from thinc.api import Model

from ..arrays import expect_below, expect_starts, of_file
from ..errors import Errors
from ..features.feature_index import FeatureIndex, FeatureNames, HashedIndex, HashTable
from ..models.node import Sizes
from ..models.sparse import VECTORS, ClusteredWords, SparseFeatures, SparseNode
from ..models.structure import StructureNode
from ..models.table import Table, list_pairs, mark_pairs, move_weights
from ..types import Settings


def counts_in_parts(model: Model) -> bool:
    """Whether a model's initialization is a sum of counts over texts, so that parts of a corpus can be counted separately."""
    kind = type(model.attrs["node"])
    return (
        issubclass(kind, StructureNode)
        and kind.init_weights is StructureNode.init_weights
        and all(isinstance(layer.attrs["node"], SparseNode) for layer in model.layers)
        and not any(VECTORS in layer.attrs["node"].features(layer).tables for layer in model.layers)
    )


def keep_all_features(model: Model) -> None:
    """Let the model keep every feature of its part, since other parts of the corpus may have the feature too."""
    for layer in model.layers:
        layer.attrs.update({name: 0 for name in ("min_count", "possible_states") if name in layer.attrs})


def counted(model: Model) -> Settings:
    """The counts of a model after its initialization with a part of the corpus: arrays, lists, texts and numbers."""
    tables = []
    for features in _features_of(model):
        tables.append({name: _part_of(table) for name, table in features.tables.items()})
    return {
        "tables": tables,
        "clustered": [features.clustered for features in _with_clusters(model)],
        "observed": np.asarray(model.attrs["observed"], dtype=np.uint8),
        "met": list(model.attrs["met"]),
    }


def _features_of(model: Model) -> list[SparseFeatures]:
    return [layer.attrs["node"].features(layer) for layer in model.layers]


def _with_clusters(model: Model) -> list[SparseFeatures]:
    """The features of the layers that read word clusters."""
    return [features for features in _features_of(model) if features.clusters]


def expect_counts(model: Model, part: Settings) -> None:
    """Check counts that were read from a file, since kernels index by them.

    part (Settings): The result of `counted` for a part of the corpus.
    RAISES (Exception): Of whatever kind, if the counts are not of this model.
    """
    for features, tables in zip(_features_of(model), part["tables"], strict=True):
        for name, table in tables.items():
            if "keys" not in table:  # hashed features have counts alone
                continue
            n_rows = len(table["keys"])
            widths = table["widths"]
            templates, strings = json.loads(table["names"].tobytes())
            of_file("keys", table["keys"], np.uint64, (None,), copied=False)
            sizes = {len(table[field]) for field in ("counts", "widths", "n_parts", "template_of")}
            if sizes != {n_rows}:
                raise ValueError(f"it has {n_rows} features, and {sorted(sizes)} numbers of them")
            for what, numbers in (("columns", widths), ("parts", table["n_parts"])):
                expect_below(f"numbers of {what}", numbers, 1 << 31)
                expect_starts(f"starts of {what}", np.append(0, np.cumsum(numbers, dtype=np.int64)), len(table[what]))
            expect_below("columns", table["columns"], features.tables[name].n_columns)
            expect_below("parts of features", table["parts"], len(strings))
            expect_below("templates of features", table["template_of"], len(templates))


def _part_of(table: Table) -> dict[str, NDArray]:
    """Arrays of a table in the smallest types that hold them: a single process joins all parts."""
    part = {"counts": table.counts, "columns": np.zeros(0, dtype=np.int32)}
    if isinstance(table.index, FeatureIndex):
        templates, template_of, starts, parts, strings = table.index.feature_names
        part.update(keys=table.index.keys, widths=np.diff(table.pair_starts), columns=table.pair_columns)
        part.update(template_of=template_of, n_parts=np.diff(starts), parts=parts)
        for name, array in part.items():
            if name != "keys":  # hashes, of 64 bits
                part[name] = array.astype(np.min_scalar_type(int(array.max(initial=0))))
        part["names"] = np.frombuffer(json.dumps([templates, strings]).encode("ascii"), dtype=np.uint8)
    return part


def put_together(model: Model, vocab: Vocab, n_states: int, parts: Callable[[], Iterable[Settings]]) -> None:
    """Initialize a model with the counts of the parts of a corpus, in their order.

    parts (Callable): Reads the result of `counted` for each part. It is called for the counts, and again for the feature names.
    RAISES (ValueError): CRF114 if no feature occurs often enough.
    """
    node: StructureNode = model.attrs["node"]
    sizes = Sizes(vocab, n_states, longest=node.longest(model))
    for layer in model.layers:
        layer.attrs["node"].resize(layer, node.columns(n_states))
        # Rows of hashed features do not depend on counts
        if "rows" in layer.attrs:
            tables = layer.attrs["node"].features(layer).tables
            tables["states"] = Table.full(HashedIndex(layer.attrs["rows"]), tables["states"].n_columns)
            layer.set_param("states", layer.ops.alloc1f(tables["states"].n_weights))
    sums = []
    for features in _features_of(model):
        sums.append({name: TableSum(table) for name, table in features.tables.items()})
    met = np.zeros(2, dtype=np.int64)
    observed = np.zeros((n_states + 2, n_states), dtype=np.uint8)
    clustered = [ClusteredWords.none(len(features.clusters)) for features in _with_clusters(model)]
    for part in parts():
        for sums_of_layer, tables in zip(sums, part["tables"]):
            for name, table in tables.items():
                sums_of_layer[name].add(table)
        clustered = [so_far.plus(*of_part) for so_far, of_part in zip(clustered, part["clustered"])]
        met += part["met"]
        observed |= part["observed"]
    for layer, sums_of_layer in zip(model.layers, sums):
        min_count = layer.attrs.get("min_count", 1)
        for name, table_sum in sums_of_layer.items():
            n_features = table_sum.choose(min_count)
            if name == "states" and n_features and not table_sum.n_kept:
                raise ValueError(Errors.CRF114.format(min_count=min_count, seen=n_features))
    # Names are read in a second pass, so that only those of the chosen features are in memory
    for part in parts():
        for sums_of_layer, tables in zip(sums, part["tables"]):
            for name, table in tables.items():
                sums_of_layer[name].add_names(table)
    for layer, sums_of_layer in zip(model.layers, sums):
        features = layer.attrs["node"].features(layer)
        first = features.first_state if layer.attrs.get("possible_states") else None
        tables = {name: table_sum.freeze(first) for name, table_sum in sums_of_layer.items()}
        for name, table in tables.items():
            move_weights(layer, name, features.tables[name], table)
        layer.attrs[layer.attrs["node"].attr] = features.with_tables(tables, **features.measured(sizes))
    for features, clustered_words in zip(_with_clusters(model), clustered):
        features.clustered = clustered_words
    node.resize(model, n_states)
    model.attrs.update(observed=observed, met=met.tolist())


class TableSum:
    """Builds the table of a corpus from the tables of its parts. Call `add` for each part, `choose`, `add_names` for each part,
    and `freeze`.

    empty (Table): A table without features, which gives the number of columns.
    """

    def __init__(self, empty: Table):
        self._empty = empty
        self._n_columns = empty.n_columns
        # Hashed features have no names, and share rows
        self._is_hashed = not isinstance(empty.index, FeatureIndex)
        self._rows = HashTable()
        # This hash table is the largest object while parts are joined
        self._rows.slots_per_key = 2
        self._bound = 0  # upper bound of the counts
        self._counts: Any = np.zeros(0, dtype=np.uint32)  # in a narrow type, since most features are dropped later
        # [F, words of 64 bits] a bit for each column: whether a feature occurs with it
        self._seen = np.zeros((0, (self._n_columns + 63) // 64), dtype=np.uint64)
        # For each part, which features no earlier part has
        self._new: list[NDArray[np.bool_]] = []
        self._n_named = 0  # number of features with names so far
        self._templates: dict[str, int] = {}
        self._strings: dict[str, int] = {}
        # For each part of the corpus: the template, the number of strings and the strings of its new features' names
        self._named_parts: list[tuple[NDArray[np.integer], ...]] = []

    def add(self, part: dict[str, NDArray]) -> None:
        """Add the counts of the next part."""
        if self._is_hashed:
            self._counts = part["counts"] + (self._counts if len(self._counts) else 0)
            return
        keys = part["keys"]
        # Features keep the order in which the parts have them, as in a single process
        new = self._rows.rows(keys) < 0
        self._new.append(new)
        self._rows.insert(keys[new])
        rows = self._rows.rows(keys)
        self._bound += int(part["counts"].max(initial=0))
        if self._bound > np.iinfo(self._counts.dtype).max:
            self._counts = self._counts.astype(np.int64)
        # In place, since a copy would be the largest object in memory
        for array in (self._counts, self._seen):
            array.resize((len(self._rows), *array.shape[1:]), refcheck=False)
        self._counts[rows] += part["counts"].astype(self._counts.dtype)
        starts = np.append(0, np.cumsum(part["widths"], dtype=np.int64))
        mark_pairs(rows, np.arange(len(rows) + 1), part["columns"].astype(np.int32), starts, self._seen)

    def choose(self, min_count: int) -> int:
        """Choose the features that occur often enough. RETURNS (int): Number of all features; 0 for hashed ones."""
        if self._is_hashed:
            return 0
        self._kept = (self._counts >= min_count) & self._seen.any(axis=1)
        self._keys = self._rows.keys[self._kept]
        self._rows = HashTable()
        self._counts = self._counts[self._kept]
        self._seen = self._seen[self._kept]
        return len(self._kept)

    @property
    def n_kept(self) -> int:
        """Number of features that `choose` has kept."""
        return len(self._keys)

    def add_names(self, part: dict[str, NDArray]) -> None:
        """Add the names of the next part, in the order of `add`."""
        if self._is_hashed:
            return
        # Of the features that no earlier part has, the chosen ones
        is_named = self._new.pop(0)
        begin = self._n_named
        self._n_named = begin + int(is_named.sum())
        is_named[is_named] = self._kept[begin : self._n_named]
        n_parts = part["n_parts"]
        parts = part["parts"][np.repeat(is_named, n_parts)]
        templates, strings = json.loads(part["names"].tobytes())
        # Flags, since sorting the numbers would take too much memory
        is_used = np.zeros(len(strings), dtype=np.bool_)
        is_used[parts] = True
        numbers = np.full(len(strings), -1, dtype=np.int32)
        for n in np.flatnonzero(is_used).tolist():
            numbers[n] = self._strings.setdefault(strings[n], len(self._strings))
        string_numbers = numbers[parts]
        # The number of each template of the part among all templates
        template_numbers = [self._templates.setdefault(name, len(self._templates)) for name in templates]
        template_of = string_numbers  # empty, as there are no features without templates
        if len(template_numbers):
            template_of = np.array(template_numbers, dtype=np.int32)[part["template_of"][is_named]]
        self._named_parts.append((template_of, n_parts[is_named], string_numbers))

    def _names(self) -> FeatureNames:
        """The names of the chosen features, in the order of their rows."""
        template_of, n_parts, parts = map(np.concatenate, zip(*self._named_parts))
        self._named_parts = []
        starts = np.append(0, np.cumsum(n_parts, dtype=np.int64))
        return FeatureNames([*self._templates], template_of, starts, parts, [*self._strings])

    def freeze(self, first: int | None) -> Table:
        """Make the table of the chosen features.

        first (int): Each feature gets all columns from this one on; None for the columns with which it occurs.
        """
        if self._is_hashed:
            table = self._empty
            return Table(table.index, table.pair_starts, table.pair_columns, self._n_columns, self._counts)
        index = FeatureIndex(self._keys, packed=self._names().packed())
        counts = self._counts.astype(np.int64)
        if first is not None:
            return Table.full(index, self._n_columns, counts, first=first)
        # The columns of each feature are the bits that any part has set
        starts, columns = list_pairs(self._seen, self._n_columns)
        return Table(index, starts, columns, self._n_columns, counts)
