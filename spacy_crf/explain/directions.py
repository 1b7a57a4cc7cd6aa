"""A direction among the weights of a model whose scores are sums of them, and what changes along it."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from spacy.training import Example
from thinc.api import Model

from .. import arrays
from ..features.doc_batch import DocBatch
from ..models.role import AnnotatedDocs
from ..models.sparse import Found, SparseFeatures
from ..types import Floats

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe


class Direction:
    """How much each weight changes.

    of_layers (Dict[str, float64[W]]): Weights of features, by table. shared (Dict[str, Floats]): What all tokens share.
    """

    def __init__(self, pipe: "CRFPipe", of_layers: dict[str, Floats], shared: dict[str, Floats]):
        self._pipe, self._architecture = pipe, pipe.model.attrs["role"]
        self.of_layers, self.shared = of_layers, shared

    @classmethod
    def of_scores(cls, pipe: "CRFPipe", docs: DocBatch, derivative: Any) -> "Direction":
        """How often a sum of scores of texts uses each weight.

        derivative: How often it uses each score.
        """
        model, of_layers = pipe.model, {}
        architecture = model.attrs["role"]
        found = _look_up(model, docs)
        parts = architecture.part(derivative, _outputs(model, found, _learned(model)[0]))
        for layer, one, part in zip(model.layers, found, parts):
            features = _features(layer)
            uses = {name: np.zeros(table.n_weights) for name, table in features.tables.items()}
            features.scatter(one, part, uses)
            of_layers.update(uses)
        return cls(pipe, of_layers, architecture.derivatives(derivative))

    def of_known(self) -> "Direction":
        """Without the weights that are 0."""
        of_layers, shared = _learned(self._pipe.model)
        pairs = (self.of_layers, of_layers), (self.shared, shared)
        return Direction(self._pipe, *({name: np.where(w[name] != 0.0, u[name], 0.0) for name in w} for u, w in pairs))

    def signs(self) -> float:
        """The sum of the signs of the weights that were learned, each as often as it is used."""
        of_layers, shared = _learned(self._pipe.model)
        pairs = (self.of_layers, of_layers), (self.shared, shared)
        return float(sum((u[name] * np.sign(w[name])).sum() for u, w in pairs for name in w))

    def scores(self, docs: DocBatch) -> Any:
        """How the scores of texts change."""
        return self._scores(_look_up(self._pipe.model, docs))

    def _scores(self, found: list[Found]) -> Any:
        return self._architecture.join(_outputs(self._pipe.model, found, self.of_layers), self.shared)

    def slopes(self, examples: list[Example]) -> Iterator[tuple[Example, float]]:
        """Of each text, how its loss changes."""
        training = self._pipe.training
        for block in training.blocks(examples):
            data = training.data(block)
            if data.structure is None and data.soft is None:
                yield from zip(block, self._slopes_of_batch(data))
            else:  # these know the batch as a whole: each text is one
                for example in block:
                    yield example, self._slope(training.data([example]))

    def _slopes_of_batch(self, data: AnnotatedDocs) -> Iterator[float]:
        bounds = self._pipe.decoding.bounds(data.docs).tolist()
        scores, along = self._both(data)
        for begin, end in itertools.pairwise(bounds):
            rows, sequences = slice(begin, end), slice(*np.searchsorted(data.starts, [begin, end]))
            if begin == end:
                yield 0.0
                continue
            of_doc, clamp = arrays.cut_document(scores, data.allowed, rows)
            weights = None if data.weights is None else data.weights[sequences]
            _, derivative, _ = self._pipe.loss(
                self._pipe.model.attrs["role"].in_training, of_doc, clamp, weights=weights
            )
            yield self._architecture.dot(derivative, arrays.cut_document(along, None, rows)[0])

    def _slope(self, data: AnnotatedDocs) -> float:
        scores, along = self._both(data)
        told = {} if data.soft is None else {"soft": data.soft}
        structure = data.structure or self._pipe.model.attrs["role"].in_training
        _, derivative, _ = self._pipe.loss(structure, scores, data.allowed, weights=data.weights, **told)
        return self._architecture.dot(derivative, along)

    def _both(self, data: AnnotatedDocs) -> tuple[Any, Any]:
        """The scores of texts, and how they change."""
        model = self._pipe.model
        found, (of_layers, shared) = _look_up(model, DocBatch.of(data.docs)), _learned(model)
        potentials = self._architecture.potentials(model, shared)
        return self._architecture.join(_outputs(model, found, of_layers), potentials), self._scores(found)


def _features(layer: Model) -> SparseFeatures:
    return layer.attrs["role"].features(layer)


def _learned(model: Model) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """The weights of all layers, and what tokens share."""
    of_layers = {name: layer.get_param(name) for layer in model.layers for name in _features(layer).tables}
    return of_layers, {name: model.get_param(name) for name in model.attrs["role"].params}


def _look_up(model: Model, docs: DocBatch) -> list[Found]:
    """The features of texts for each layer."""
    return [_features(layer).look_up(docs) for layer in model.layers]


def _outputs(model: Model, found: list[Found], weights: dict[str, Floats]) -> tuple[Any, ...]:
    """What each layer gives with some weights."""
    stores = [_features(layer) for layer in model.layers]
    return tuple(features.score(one, features.slots(weights)) for features, one in zip(stores, found))
