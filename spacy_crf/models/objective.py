"""The training objective of a model over a fixed corpus, for optimizers that evaluate it many times."""

import copy
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..inference.threads import default_threads, run_chunks
from ..losses.clamped import ClampedLoss, LogLikelihood, SoftmaxMargin
from ..types import Floats, Seed
from .architecture import SharedScores
from .corpus import PackedClamp, SparseCorpus, corpus_of
from .emissions import EmissionFeatures
from .linear_chain import ChainNode
from .merged import SEEDS, MergedStates, Ties, Variables, keys_of
from .node import AnnotatedDocs
from .weights import Weights, checksum

# Batches whose scores are in memory together: their derivatives are summed up after all of them
_GROUP = 8
# Those whose states have no score but that of their features, and of transitions, first and last
_MERGED = (ChainNode,)
# Those that are sums over labellings, in which states cost the same that no annotation tells apart
_SUMS = (LogLikelihood, SoftmaxMargin)


class _Annotation(NamedTuple):
    clamp: PackedClamp
    weights: Optional[Floats]  # [B] of the sequences
    structure: Any  # what answers the loss, None for the model's own
    soft: Any  # what a teacher says, None for nothing

    @property
    def stored(self) -> Any:
        """What a file can hold of it; None if it can't hold all."""
        if self.structure is not None or self.soft is not None:
            return None
        return [self.clamp.stored(), self.weights]

    @classmethod
    def from_stored(cls, stored: Any) -> "_Annotation":
        clamp, weights = stored
        return cls(PackedClamp.from_stored(clamp), weights, None, None)

    @property
    def beside(self) -> dict[str, Any]:
        """What the loss is told beside the clamp."""
        return {"weights": self.weights} if self.soft is None else {"weights": self.weights, "soft": self.soft}


class CorpusObjective(Weights):
    """Loss of a corpus as a function of its weights.

    model (Model): See `Weights`.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self._loss = loss
        self._structure = self.architecture.in_training.with_threads(default_threads())
        self._annotation: list[_Annotation] = []
        self._layers: list[Any] = [*map(corpus_of, model.layers)]
        for batch in corpus:
            annotation = _Annotation(PackedClamp(batch.allowed), batch.weights, batch.structure, batch.soft)
            self._annotation.append(annotation)
            docs = DocBatch.of(batch.docs)
            for layer in self._layers:
                layer.add(docs)
        for layer in self._layers:
            layer.finish()
        self.signature = self._sign()
        self.n_impossible = 0
        self._merged: Optional[tuple[MergedStates, EmissionFeatures]] = None  # and the features of all states
        self._kept: list[Any] = []  # of each batch, which labellings are left
        self._n_evaluations = 0  # since that was renewed

    def renew(self) -> bool:
        """From here on labellings that are left out stay out, until it is asked again: so it is one function.

        RETURNS (bool): Whether any are left out.
        """
        if not self._kept and self.architecture.leaves_out(self._model):
            self._kept = [self._structure.to_keep() for _ in self._annotation]
        for kept in self._kept:
            kept.renew()
        self._choose()
        self._n_evaluations = 0
        return bool(self._kept)

    def _choose(self) -> None:
        """Tells the layers which of their scores are asked for, batch by batch."""

        def choose(number: int) -> None:
            places = self.architecture.places(self._kept[number].places)
            for layer in self._layers:
                layer.choose(number, places)

        run_chunks(choose, range(len(self._kept)), self._structure.threads)

    @property
    def n_batches(self) -> int:
        return len(self._annotation)

    def stored(self) -> Optional[list[Any]]:
        """What a file can hold of it: lists, texts, numbers and arrays. None if it can't hold all: rules that hold in training,
        soft labels, vectors of encoders, ties across documents, merged states."""
        annotation = [of_batch.stored for of_batch in self._annotation]
        if self._merged or None in annotation or not all(isinstance(layer, SparseCorpus) for layer in self._layers):
            return None
        return [annotation, [layer.stored() for layer in self._layers]]

    def with_stored(self, stored: list[Any]) -> "CorpusObjective":
        """The same function of the corpus that a file holds."""
        objective = copy.copy(self)
        annotation, layers = stored
        objective._annotation = [*map(_Annotation.from_stored, annotation)]
        objective._layers = [layer.with_stored(of_layer) for layer, of_layer in zip(self._layers, layers)]
        return objective

    def marks(self, seed: Seed) -> Floats:
        """The gradient if the derivatives of scores were random numbers (float64[n]); 0 for what is never equal to others."""
        marks = {block.name: np.zeros(block.size) for block in self._of_layers}
        for layer in self._layers:
            if isinstance(layer, SparseCorpus):
                marks.update(layer.marks(seed, threads=self._structure.threads))
        return self.join(marks, {block.name: np.zeros(block.mask.shape) for block in self._shared})

    def keep(self, stands: NDArray[np.bool_]) -> None:
        """From here on all is about some of the weights (bool[n])."""
        kept = {block.name: of_block for block, of_block in zip(self._tables, np.split(stands, self._starts[1:-1]))}
        owners = {}
        for layer in self._layers:
            if isinstance(layer, SparseCorpus):
                layer.thin({name: kept[name] for name in layer.names})
                owners.update(dict.fromkeys(layer.names, layer.features))
        self._line_up([block._replace(features=owners[block.name]) for block in self._tables])

    def merge_states(self) -> None:
        """Makes passes shorter: states that can't be told apart are one from here on, as long as their weights are equal. What it
        says stays the same."""
        if not self._can_merge_states:
            return
        layer, architecture = self._layers[0], self.architecture
        is_known = np.bincount(layer.features.states.pair_columns, minlength=self.n_states) > 0
        merged = MergedStates(architecture.possible(self._model), architecture.weighed(self._model), is_known)
        if merged.is_trivial:
            return
        clamps = (block.clamp.unpacked() for block in self._annotation)
        if all(np.array_equal(clamp, clamp[:, merged.stands][:, merged.of]) for clamp in clamps):
            self._merged = merged, layer.features
            self._move_states(layer.features.with_states(merged.of, merged.n_states), merged.stands)

    @property
    def _can_merge_states(self) -> bool:
        plain = type(self._loss) in _SUMS and not self._loss.cost and not self._loss.label_weights
        of_clamps = all(block.structure is None and block.soft is None for block in self._annotation)
        [layer, *others] = self._layers
        return (
            (plain and of_clamps and not others)
            and type(self.architecture) in _MERGED
            and (isinstance(layer, SparseCorpus) and layer.is_of_single_states)
        )

    def _move_states(self, features: EmissionFeatures, states: NDArray[np.int64]) -> None:
        self._layers[0].move(features)
        self._annotation = [
            block._replace(clamp=PackedClamp(block.clamp.unpacked()[:, states])) for block in self._annotation
        ]

    def _merged_for(self, shared: SharedScores) -> Optional[MergedStates]:
        """What makes fewer of the states. There is none from where weights are not equal that have to be."""
        if self._merged is None:
            return None
        merged, features = self._merged
        if merged.holds(shared):
            return merged
        self._merged = None
        self._move_states(features, merged.of)
        return None

    @property
    def frequencies(self) -> Floats:
        """How often the data has what each weight belongs to (float64[n])."""
        return self.met(self.evidence())

    def _sign(self) -> Hashable:
        """Says what function this is: the data, the layout and the loss."""
        told = repr(self._loss).encode("utf8") + self._structure.signature
        check = checksum([np.frombuffer(told, dtype=np.uint8)])
        for block in self._annotation:
            ruled = None if block.structure is None else np.frombuffer(block.structure.signature, dtype=np.uint8)
            soft = [] if block.soft is None else [column for part in block.soft[:3] for column in part]
            check = checksum([ruled, *block.clamp.octets, block.weights, *soft], check)
        for layer in self._layers:
            check = checksum(layer.fingerprint(), check)
        return (*self.layout, check)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        of_layers, own = self.split(weights)
        architecture, threads = self.architecture, self._structure.threads
        shared = architecture.potentials(self._model, own)
        merged = self._merged_for(shared)
        if merged is not None:
            shared = merged.potentials(shared)
        if self._n_evaluations == 1:
            self._choose()
        self._n_evaluations += 1
        passes = [layer.at({name: of_layers[name] for name in layer.names}, threads=threads) for layer in self._layers]
        value, n_impossible, d_shared = 0.0, 0, {name: np.zeros(shared[name].shape) for name in own}

        def differentiate(number: int):
            annotation = self._annotation[number]
            outputs = tuple(of_layer.score(number) for of_layer in passes)
            scores, structure = architecture.join(outputs, shared), annotation.structure or self._structure
            if self._kept and annotation.structure is None:
                structure = structure.keeping(self._kept[number])
            clamp = annotation.clamp.unpacked()
            losses, d_scores, impossible = self._loss(structure, scores, clamp, **annotation.beside)
            return (
                losses,
                impossible,
                architecture.derivatives(d_scores),
                architecture.part(d_scores, outputs),
                d_scores,
            )

        for first in range(0, self.n_batches, _GROUP):
            numbers, derivatives = range(first, min(first + _GROUP, self.n_batches)), []
            for losses, impossible, d_own, d_outputs, d_scores in run_chunks(differentiate, numbers, threads):
                architecture.learn(self._model, [d_scores])
                value += float(losses.sum())
                n_impossible += int(impossible.sum())
                for name, derivative in d_own.items():
                    d_shared[name] += derivative
                derivatives.append(d_outputs)
            for of_layer, of_batches in zip(passes, zip(*derivatives)):
                of_layer.collect(numbers, of_batches)
        self.n_impossible = n_impossible
        if merged is not None:
            d_shared = merged.spread(d_shared)
        gradients = {name: gradient for of_layer in passes for name, gradient in of_layer.gradient().items()}
        return value, self.join(gradients, d_shared)


class TiedObjective(Variables, CorpusObjective):
    """`CorpusObjective` as a function of variables, see `merged`.

    model, loss, corpus: See `CorpusObjective`.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        CorpusObjective.__init__(self, model, loss, corpus)
        Variables.__init__(self, model, Ties.of(*keys_of(model, [self.marks(seed) for seed in SEEDS])))
        stands = self.stands
        if not stands.all():
            self.keep(stands)
        self.signature = (*self.signature, int(stands.sum()))
        self.merge_states()

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        value, gradient = super().evaluate(self.spread(weights))
        return value, self.gathered(gradient)
