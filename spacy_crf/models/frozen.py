"""An encoder that stays as it is: the layer on its vectors has weights like any others, in the vector of all weights of a model
and in the objective of a corpus, which stays convex."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..types import Floats
from .role import Evidence

NAMES = ("W", "b")


class DenseBlock(NamedTuple):
    """The weights of a parameter of the layer."""

    model: Model
    name: str
    kinds: int  # of scores, each of which has a row for each state
    shape: tuple[int, ...]

    @classmethod
    def all_of(cls, layer: Model) -> "list[DenseBlock]":
        """layer (Model): On the encoder."""
        output, kinds = layer.get_ref("output"), layer.attrs["role"].kinds
        return [cls(output, name, kinds, output.get_param(name).shape) for name in NAMES]

    @property
    def fingerprint(self) -> list[NDArray]:
        return [np.array(self.shape)]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def read(self) -> NDArray[np.float32]:
        return self.model.ops.to_numpy(self.model.get_param(self.name)).ravel()

    def laid_out(self, weights: NDArray) -> NDArray:
        return weights.reshape(self.shape).copy()

    def places(self, before: "DenseBlock") -> NDArray[np.int64]:
        number = np.arange(self.size).reshape(self.kinds, self.shape[0] // self.kinds, -1)
        return number[:, : before.shape[0] // self.kinds].ravel()

    def met(self, evidence: Evidence) -> Floats:
        return np.full(self.size, float(evidence.tokens))


class DenseCorpus:
    """The vectors of the tokens of a corpus, batch by batch: what `corpus.Corpus` is for sparse features.

    layer (Model): On the encoder.
    """

    names = NAMES

    def __init__(self, layer: Model):
        self.layer = layer
        self.vectors: list[NDArray[np.float32]] = []  # [T, width] of each batch
        self.starts: list[NDArray[np.int64]] = []

    def add(self, docs: DocBatch) -> None:
        ops = self.layer.ops
        self.vectors.append(ops.to_numpy(ops.flatten(self.layer.get_ref("tok2vec").predict(docs))))
        self.starts.append(docs.sequence_starts())

    def finish(self) -> None:
        """There is nothing to do."""

    def choose(self, number: int, places: Any) -> None:
        """See `corpus.Corpus`; it says everything."""

    def fingerprint(self) -> Iterable[NDArray]:
        yield from (*self.vectors, *self.starts)

    def at(self, weights: dict[str, Floats], *, threads: int = 1) -> "DensePass":
        return DensePass(self, weights)


class DensePass:
    """See `corpus.Pass`."""

    def __init__(self, corpus: DenseCorpus, weights: dict[str, Floats]):
        self._corpus, self._weights = corpus, weights
        self._role = corpus.layer.attrs["role"]
        self._gradients = {name: np.zeros(array.shape) for name, array in weights.items()}

    def score(self, number: int) -> Any:
        scores = self._corpus.vectors[number] @ self._weights["W"].T + self._weights["b"]
        return self._role.split(self._corpus.layer, scores, self._corpus.starts[number])

    def collect(self, numbers: Iterable[int], derivatives: Iterable[Any]) -> None:
        for number, derivative in zip(numbers, derivatives):
            d_scores = self._role.join(derivative)
            self._gradients["W"] += d_scores.T @ self._corpus.vectors[number]
            self._gradients["b"] += d_scores.sum(axis=0)

    def gradient(self) -> dict[str, Floats]:
        return {name: array.ravel() for name, array in self._gradients.items()}
