"""All weights of a model as one vector: weights of the features of tokens, of segments, of the layer on a fixed encoder, then of
shared scores. Weights that training does not use are not part of the vector."""

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..types import Bools, Floats, Ints
from .neural import EncoderNode
from .node import Evidence, read_params
from .sparse import SparseFeatures, SparseNode
from .structure import StructureNode
from .table import Table


class TableBlock(NamedTuple):
    """Weights of a table of features."""

    model: Model  # with the parameter
    name: str
    features: SparseFeatures

    @property
    def table(self) -> Table:
        """The table."""
        return self.features.tables[self.name]

    @property
    def fingerprint(self) -> list[NDArray]:
        """Arrays that are equal for blocks whose weights have the same meaning."""
        return self.table.fingerprint()

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.table.n_weights

    def read(self) -> NDArray[np.float32]:
        """The weights: float32[N]."""
        return read_params(self.model, [self.name])[self.name]

    def laid_out(self, weights: NDArray) -> NDArray:
        """Weights (float[N]) in the shape of the parameter."""
        return weights

    def places(self, before: "TableBlock") -> Ints:
        """The indices in this block of the weights of an earlier block: int64[N of the earlier block].

        before (TableBlock): The block as it was when the model had fewer labels or features.
        """
        columns = before.features.columns_among(self.features.n_states)[self.name]
        return self.table.find_weights(before.table, columns)

    def met(self, evidence: Evidence, key: str) -> Floats:
        """How often training met the feature of each weight: float64[N].

        evidence (Evidence): How often training met each feature.
        key (str): Key of the table in the evidence.
        """
        # The evidence may be older than the table, in which new features come last
        counts = np.zeros(len(self.table.index))
        old_counts = evidence.counts[key]
        counts[: len(old_counts)] = old_counts
        return counts[self.table.rows_of_pairs()]


class ArrayBlock(NamedTuple):
    """Weights of a parameter that is an array: of scores that all tokens share, or of the layer on a fixed encoder."""

    model: Model
    name: str
    mask: Bools  # which entries have a weight; axes of states may grow
    shape: tuple[int, ...]  # of the parameter; the mask may have an axis more
    of_sequences: bool = False  # whether each sequence, not each token, uses one of the scores

    @property
    def fingerprint(self) -> list[NDArray]:
        """Arrays that are equal for blocks whose weights have the same meaning."""
        return [self.mask]

    @property
    def size(self) -> int:
        """Number of weights."""
        return int(self.mask.sum())

    def read(self) -> NDArray[np.float32]:
        """The weights: float32[N]."""
        return self.model.ops.to_numpy(self.model.get_param(self.name)).reshape(self.mask.shape)[self.mask]

    def laid_out(self, weights: NDArray) -> NDArray:
        """`weights` in the shape of the parameter, 0 for entries that have none."""
        array = np.zeros(self.mask.shape, dtype=weights.dtype)
        array[self.mask] = weights
        return array.reshape(self.shape)

    def places(self, before: "ArrayBlock") -> Ints:
        """The indices in this block of the weights of `before`, the block as it was when the model had fewer states."""
        number = np.cumsum(self.mask).reshape(self.mask.shape) - 1  # of each entry that has a weight
        old_corner = tuple(map(slice, before.mask.shape))
        return number[old_corner][before.mask]

    def met(self, evidence: Evidence, key: str) -> Floats:
        """How often training met each weight: the number of tokens, or of sequences, in the `evidence`; `key` is not used."""
        return np.full(self.size, float(evidence.sequences if self.of_sequences else evidence.tokens))


NAMES = ("W", "b")


def _blocks_on_encoder(layer: Model) -> Iterator[ArrayBlock]:
    """The parameters of the layer on an encoder, in which each kind of scores has rows for all states."""
    output = layer.get_ref("output")
    kinds = layer.attrs["node"].kinds
    for name in NAMES:
        shape = output.get_param(name).shape
        yield ArrayBlock(output, name, np.ones((kinds, shape[0] // kinds, *shape[1:]), dtype=bool), shape)


class Weights:
    """How all weights of a model of a structure, on sparse features or a fixed encoder, lie in one vector."""

    def __init__(self, model: Model):
        self.model = model
        self.node: StructureNode = model.attrs["node"]
        self._sparse = [layer for layer in model.layers if isinstance(layer.attrs["node"], SparseNode)]
        self.features: list[SparseFeatures] = [layer.attrs["node"].features(layer) for layer in self._sparse]
        dense = [layer for layer in model.layers if isinstance(layer.attrs["node"], EncoderNode)]
        self._dense: list[ArrayBlock] = []
        for layer in dense:
            self._dense += _blocks_on_encoder(layer)
        self._shared = [
            ArrayBlock(model, name, mask, mask.shape, name in self.node.traits.of_sequences)
            for name, mask in self.node.weighed(model).items()
        ]
        tables = []
        for layer, features in zip(self._sparse, self.features):
            tables += [TableBlock(layer, name, features) for name in features.tables]
        self._line_up(tables)

    def _line_up(self, tables: list[TableBlock]) -> None:
        """Set the order of the blocks, and the keys of the weights of layers."""
        self._tables = tables
        self._of_layers = [*tables, *self._dense]
        self._blocks = [*self._of_layers, *self._shared]
        self._starts = np.append(0, np.cumsum([block.size for block in self._blocks]))
        # Several layers may have tables of one name, whose keys are "states", "states 2" …
        counts: Counter[str] = Counter()
        self._keys: dict[tuple[int, str], str] = {}
        for block in self._of_layers:
            counts[block.name] += 1
            n = counts[block.name]
            self._keys[block.model.id, block.name] = block.name if n == 1 else f"{block.name} {n}"

    def _key(self, model: Model, name: str) -> str:
        """The key of a parameter in the dicts that `split` returns."""
        return self._keys.get((model.id, name), name)

    @property
    def n_states(self) -> int:
        """Number of states of the model."""
        return self.model.get_dim("nO")

    @property
    def layout(self) -> tuple[int, ...]:
        """Number of weights and a checksum, which are equal if vectors have the same weights in the same order."""
        check = 0
        for block in self._blocks:
            check = checksum(block.fingerprint, check)
        return int(self._starts[-1]), check

    def frame(self) -> "Weights":
        """The layout alone: subclasses add a corpus to it."""
        return Weights(self.model)

    def places(self, before: "Weights") -> Ints:
        """The indices of the weights of an earlier layout in this one: int64[n of the earlier layout].

        before (Weights): The layout as it was when the model had fewer labels or features.
        """
        blocks = zip(self._starts, self._blocks, before._blocks)
        return np.concatenate([start + block.places(earlier) for start, block, earlier in blocks])

    def evidence(self) -> Evidence:
        """How often training so far met each feature, and how many tokens and sequences it met."""
        counts = {self._key(block.model, block.name): block.table.counts for block in self._tables}
        return Evidence.of_model(counts, self.model.attrs["met"])

    def evidence_of(self, docs: list[Doc]) -> Evidence:
        """How often each feature occurs in texts, and how many tokens and sequences the texts have.

        docs (list[Doc]): The texts.
        """
        counts = {}
        docs = DocBatch.of(docs)
        sequences = self.node.starts(docs)
        for layer, features in zip(self._sparse, self.features):
            found = features.look_up(docs)
            for name, table in features.tables.items():
                rows = found.features[name].rows if name in found.features else np.zeros(0, dtype=np.int32)
                counts[self._key(layer, name)] = np.bincount(rows, minlength=len(table.index))
        return Evidence(counts, int(sequences[-1]), len(sequences) - 1)

    def met(self, evidence: Evidence) -> Floats:
        """How often training met the feature, token or sequence of each weight: float64[n].

        evidence (Evidence): How often training met each feature, and how many tokens and sequences it met.
        """
        return np.concatenate([block.met(evidence, self._key(block.model, block.name)) for block in self._blocks])

    def weights(self) -> Floats:
        """The weights of the model: float64[n]."""
        return np.concatenate([block.read() for block in self._blocks]).astype(np.float64)

    def parameters(self, weights: Floats) -> dict[tuple[int, str], Any]:
        """The parameters (float32) by thinc's keys: the id of a model and the name of a parameter.

        weights (float64[n]): The weights.
        """
        laid_out = self._laid_out(weights.astype(np.float32))
        return {(block.model.id, block.name): block.model.ops.asarray(array) for block, array in laid_out}

    def assign(self, weights: Floats) -> None:
        """Write weights to the model.

        weights (float64[n]): The weights.
        """
        for block, array in self._laid_out(weights.astype(np.float32)):
            block.model.set_param(block.name, block.model.ops.asarray(array))

    def _laid_out(self, weights: NDArray) -> Iterable[tuple[Any, NDArray]]:
        """The blocks, each with its part of a vector of weights in the shape of the parameter."""
        parts = np.split(weights, self._starts[1:-1])
        return ((block, block.laid_out(part)) for block, part in zip(self._blocks, parts))

    def split(self, weights: Floats) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Split a vector into the weights of the layers, by key, and the shared scores, by parameter; scores without a weight
        are 0.

        weights (float64[n]): The weights.
        """
        items = [(self._key(block.model, block.name), array) for block, array in self._laid_out(weights)]
        n_of_layers = len(self._of_layers)
        return dict(items[:n_of_layers]), dict(items[n_of_layers:])

    def join(self, of_layers: dict[str, Floats], shared: dict[str, Floats], into: Optional[Floats] = None) -> Floats:
        """Join a vector from the two dicts that `split` returns: float64[n].

        of_layers (dict[str, float64[...]]): Weights of the layers by key.
        shared (dict[str, float64[...]]): Shared scores by parameter.
        into (float64[n]): Receives the vector; None for a new one.
        """
        parts = [of_layers[self._key(block.model, block.name)] for block in self._of_layers]
        return np.concatenate([*parts, *(shared[block.name][block.mask] for block in self._shared)], out=into)


def checksum(arrays: Iterable[Optional[NDArray]], check: int = 0) -> int:
    """CRC32 of arrays.

    arrays (Iterable[Optional[NDArray]]): The arrays, of which None are skipped.
    check (int): The checksum to continue from.
    """
    for array in arrays:
        if array is not None:
            check = zlib.crc32(np.ascontiguousarray(array).data, check)
    return check
