"""Which training texts made a decision. Where the objective with l2 has its optimum, its derivative is 0, and so every weight is
a sum over the texts (Yeh et al. 2018, "Representer Point Selection for Explaining Deep Neural Networks"):

    2 · l2 · w_f = sum_i (observed_f,i - expected_f,i) - l1 · sign(w_f)

A contrast is a sum of weights, each so many times, D_f. So text i has the share sum_f D_f (observed - expected)_f,i / (2 · l2)
in it: what the text's scores would be with the weights D, times what its loss says of its scores.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from spacy.training import Example, validate_examples
from thinc.api import Model

from .. import arrays, checks
from ..errors import Errors
from ..features.doc_batch import DocBatch
from ..models.role import AnnotatedDocs
from ..models.sparse import SparseFeatures, SparseRole
from ..types import Floats
from .asking import Asked
from .contrast import difference, rows_between
from .explanation import Explanation, Row

if TYPE_CHECKING:
    from ..pipeline.crf_pipe import CRFPipe

_MOST_LEFT = 0.01  # of the contrast, in which an optimum is no optimum
_SHOWN = 60  # characters of a text


def texts(
    asked: Asked, corpus: Optional[Iterable[Example]] = None, l2: Optional[float] = None, l1: Optional[float] = None
) -> Explanation:
    """The rows are training texts, and add up to the contrast as far as training has converged.

    corpus (Iterable[Example]): What the component was trained with, complete.
    l2 (float), l1 (float): The regularization that it was trained with; by default that of the component's own optimizer.
    RAISES (ValueError): CRF840 to CRF842 if the model is no such sum.
    """
    question, pipe = asked.question, asked.question.pipe
    examples = _checked(pipe, corpus)
    l2, l1 = _strength(pipe, "l2", l2), _strength(pipe, "l1", l1)
    if not l2:
        raise ValueError(Errors.CRF841.format(name=pipe.name))
    ours, theirs, target = question.best()
    uses = Uses(pipe, DocBatch([asked.doc]), question.of_doc(difference(question, ours, theirs)))
    weights = rows_between(question, ours, theirs)
    of_rules = sum(row.contribution for row in weights if row.feature.startswith("rule "))
    base = of_rules - l1 * uses.signs() / (2 * l2)
    rows = [_row(n, eg, -share / (2 * l2)) for n, (eg, share) in enumerate(uses.shares(examples)) if share]
    left = base + sum(row.contribution for row in rows) - target
    scale = sum(abs(row.contribution) for row in weights)
    if abs(left) > _MOST_LEFT * max(scale, 1e-9):
        raise ValueError(Errors.CRF842.format(name=pipe.name, found=target + left, target=target, l2=l2, l1=l1))
    return asked.explanation("texts", target, base, rows, {"score": target})


def _checked(pipe: "CRFPipe", corpus: Optional[Iterable[Example]]) -> list[Example]:
    if pipe.model.has_ref("cliques"):
        raise ValueError(Errors.CRF368.format(name=pipe.name))
    sparse = all(isinstance(layer.attrs["role"], SparseRole) for layer in pipe.model.layers)
    if not pipe.is_linear or not sparse:
        raise ValueError(
            Errors.CRF840.format(name=pipe.name, reason="it has an encoder, whose weights are no such sums")
        )
    if corpus is None:
        raise ValueError(
            Errors.CRF840.format(name=pipe.name, reason="give the texts it was trained with: corpus=examples")
        )
    examples = list(corpus)
    validate_examples(examples, "explain")
    return examples


def _strength(pipe: "CRFPipe", name: str, given: Optional[float]) -> float:
    own = getattr(pipe.optimizer, name, 0.0) if given is None else given
    return checks.number(pipe.owner, name, own)


def _row(n: int, example: Example, share: float) -> Row:
    text = " ".join(example.reference.text.split())
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    return Row(f"#{n} {shown}", "text", None, None, None, (), 1.0, share, 1.0, share)


class LayerUses(NamedTuple):
    """How often a sum uses the weights of a layer, as weights of its own."""

    features: SparseFeatures
    weights: dict[str, Floats]  # what was learned
    uses: dict[str, Floats]


class Uses:
    """How often a sum of scores uses each weight.

    docs (DocBatch): Of the Doc whose scores they are. derivative: Which of them.
    """

    def __init__(self, pipe: "CRFPipe", docs: DocBatch, derivative: Any):
        self._pipe, model = pipe, pipe.model
        self._architecture = model.attrs["role"]
        found = [layer.attrs["role"].features(layer).look_up(docs) for layer in model.layers]
        outputs = tuple(
            self._features(layer).score(one, self._features(layer).slots(_weights(layer)))
            for layer, one in zip(model.layers, found)
        )
        parts = self._architecture.part(derivative, outputs)
        self._layers = [self._of_layer(*given) for given in zip(model.layers, found, parts)]
        self._weights = {name: model.get_param(name) for name in self._architecture.params}
        derivatives = self._architecture.derivatives(derivative)
        self._shared = {name: np.where(self._weights[name] != 0.0, derivatives[name], 0.0) for name in self._weights}

    @staticmethod
    def _features(layer: Model) -> SparseFeatures:
        return layer.attrs["role"].features(layer)

    def _of_layer(self, layer: Model, found: Any, part: Any) -> LayerUses:
        features = self._features(layer)
        uses = {name: np.zeros(table.n_weights) for name, table in features.tables.items()}
        features.scatter(found, part, uses)
        weights = _weights(layer)
        # With l1 the sums are those of the weights that are not 0; without, none is
        return LayerUses(features, weights, {name: np.where(weights[name] != 0.0, uses[name], 0.0) for name in uses})

    def signs(self) -> float:
        """The sum of the signs of the weights, each as often as it is used."""
        pairs = [(layer.uses[name], layer.weights[name]) for layer in self._layers for name in layer.uses]
        pairs += [(self._shared[name], self._weights[name]) for name in self._shared]
        return float(sum((uses * np.sign(weights)).sum() for uses, weights in pairs))

    def shares(self, examples: list[Example]) -> Iterator[tuple[Example, float]]:
        """Of each text, how its loss changes along the uses."""
        training = self._pipe.training
        for block in training.blocks(examples):
            data = training.data(block)
            if data.structure is None and data.soft is None:
                yield from zip(block, self._shares_of_batch(data))
            else:  # these know the batch as a whole: each text is one
                for example in block:
                    yield example, self._share(training.data([example]))

    def _shares_of_batch(self, data: AnnotatedDocs) -> Iterator[float]:
        docs = DocBatch.of(data.docs)
        scores, along = self._score(docs)
        for begin, end in zip(docs.bounds.tolist(), docs.bounds[1:].tolist()):
            tokens, sequences = slice(begin, end), slice(*np.searchsorted(data.starts, [begin, end]))
            if begin == end:
                yield 0.0
                continue
            of_doc, clamp = arrays.cut_document(scores, data.allowed, tokens)
            weights = None if data.weights is None else data.weights[sequences]
            _, derivative, _ = self._pipe.loss(self._pipe.decoding.in_training, of_doc, clamp, weights=weights)
            yield self._architecture.dot(derivative, arrays.cut_document(along, None, tokens)[0])

    def _share(self, data: AnnotatedDocs) -> float:
        scores, along = self._score(DocBatch.of(data.docs))
        told = {} if data.soft is None else {"soft": data.soft}
        structure = data.structure or self._pipe.decoding.in_training
        _, derivative, _ = self._pipe.loss(structure, scores, data.allowed, weights=data.weights, **told)
        return self._architecture.dot(derivative, along)

    def _score(self, docs: DocBatch) -> tuple[Any, Any]:
        """The scores of texts, and what they would be were the uses the weights."""
        outputs, along = [], []
        for features, weights, uses in self._layers:
            found = features.look_up(docs)
            outputs.append(features.score(found, features.slots(weights)))
            along.append(features.score(found, features.slots(uses)))
        potentials = self._architecture.potentials(self._pipe.model, self._weights)
        join = self._architecture.join
        return join(tuple(outputs), potentials), join(tuple(along), self._shared)


def _weights(layer: Model) -> dict[str, Floats]:
    features = layer.attrs["role"].features(layer)
    return {name: layer.get_param(name) for name in features.tables}
