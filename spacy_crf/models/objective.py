"""The training objective of a model over a fixed corpus, for optimizers that evaluate it many times."""

import copy
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple, Optional

import numpy as np
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..inference.bridges import BridgedStructure
from ..inference.chain_set import evaluate
from ..inference.threads import default_threads, run_chunks
from ..losses.clamped import LabelledLoss, LogLikelihood, SoftmaxMargin
from ..losses.soft import SoftLabelling
from ..types import Bools, Floats, Ints, PathScores, Seed
from .corpus import PackedClamp, SparseCorpus, corpus_by
from .emissions import EmissionFeatures
from .linear_chain import ChainNode
from .merged import SEEDS, MergedStates, Ties, Variables, keys_of
from .node import AnnotatedDocs, TrainingStructure
from .weights import Weights, checksum

# Batches whose scores are in memory at the same time; their derivatives are summed when all are done
_GROUP = 8
# Nodes whose states have only scores of features, transitions, first and last
_MERGED = (ChainNode,)
# Losses that are sums over labellings, and whose costs are equal for states that no annotation distinguishes
_SUMS = (LogLikelihood, SoftmaxMargin)


class _BatchAnnotation(NamedTuple):
    clamp: PackedClamp
    weights: Optional[Floats]  # [B] of the sequences
    structure: Optional[TrainingStructure]  # structure for the loss, None for the model's own
    soft: Optional[SoftLabelling]  # soft labels, None without any


class CorpusObjective(Weights):
    """Loss of a corpus, whose batches are read once, as a function of the weights of a model."""

    def __init__(self, model: Model, loss: LabelledLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self._loss: Any = loss  # of any class: some have costs
        self._structure: Any = self.node.in_training.with_threads(default_threads())
        self._annotation: list[_BatchAnnotation] = []
        self._layers: list = [corpus_by(layer.attrs["node"], layer) for layer in model.layers]
        for batch in corpus:
            annotation = _BatchAnnotation(PackedClamp.of(batch.allowed), batch.weights, batch.structure, batch.soft)
            self._annotation.append(annotation)
            docs = DocBatch.of(batch.docs)
            for layer in self._layers:
                layer.add(docs)
        for layer in self._layers:
            layer.finish()
        self._names: list[dict[str, str]] = []  # for each layer, the keys of its weights by their names
        for layer, read in zip(model.layers, self._layers):
            owner = layer.get_ref("output") if layer.has_ref("output") else layer
            self._names.append({name: self._key(owner, name) for name in read.names})
        self.signature: tuple = self._sign()
        self.n_impossible = 0
        self._merged: Optional[tuple[MergedStates, EmissionFeatures]] = None  # with the features of all states
        self._cached: list = []  # for each batch, the structure with its pruned labellings

    def renew(self) -> bool:
        """Prune labellings anew; until the next call the pruned labellings stay the same, so that the objective does not change.

        RETURNS (bool): Whether any labellings are pruned.
        """
        if not self._cached and self.node.prunes_labellings(self.model):
            self._cached = [self._structure.with_cache() for _ in self._annotation]
        for structure in self._cached:
            structure.cache.renew()
        return bool(self._cached)

    @property
    def n_batches(self) -> int:
        """Number of batches of the corpus."""
        return len(self._annotation)

    @property
    def parts(self) -> tuple[Model, LabelledLoss, list]:
        """The model, its loss, and what each layer of the model read of the corpus."""
        return self.model, self._loss, self._layers

    def annotation(self, number: int) -> tuple:
        """The annotation of a batch.

        number (int): The number of the batch.
        RETURNS (AnyClamp, float64[B], object): What it allows, the factors of the sequences (None for 1), and rules or
            soft labels.
        """
        clamp, weights, structure, soft = self._annotation[number]
        return clamp.unpacked(), weights, structure or soft

    def stored(self) -> Optional[list]:
        """The objective as a file can hold it: lists, texts, numbers and arrays. None with rules that hold in training, soft
        labels, vectors of encoders or merged states.
        """
        of_clamps = all(block.structure is None and block.soft is None for block in self._annotation)
        if self._merged or not of_clamps or not all(isinstance(layer, SparseCorpus) for layer in self._layers):
            return None
        annotation = [[[*block.clamp], block.weights] for block in self._annotation]
        return [annotation, [layer.stored() for layer in self._layers]]

    def with_stored(self, stored: list) -> "CorpusObjective":
        """The objective for the corpus that a file holds.

        stored (list): What `stored` returned.
        RAISES: An error of any class for another corpus.
        """
        objective = copy.copy(self)
        annotation, layers = stored
        objective._annotation = [_BatchAnnotation(PackedClamp(*clamp), some, None, None) for clamp, some in annotation]
        stored_layers = zip(self._layers, layers, strict=True)
        objective._layers = [layer.with_stored(of_layer) for layer, of_layer in stored_layers]
        for block, *found in zip(objective._annotation, *(layer.batches for layer in objective._layers), strict=True):
            sizes = {(int(of.starts[-1]), len(of.starts) - 1) for of in found}
            block.clamp.expect_whole(min(sizes)[0])
            n_sequences = {len(found[0].starts) - 1 if block.weights is None else len(block.weights)}
            if len(sizes) > 1 or {min(sizes)[1]} != n_sequences:
                raise ValueError("its annotation is of other sequences than its features")
        return objective

    def marks(self, seed: Seed) -> Floats:
        """Gradient for random numbers as derivatives of scores: float64[n], 0 for weights that never equal others.

        seed (Seed): Seed of the random numbers.
        """
        # Zeros for weights of encoders and of shared scores
        marks = {self._key(block.model, block.name): np.zeros(block.size) for block in self._of_layers}
        for layer, names in zip(self._layers, self._names):
            if isinstance(layer, SparseCorpus):
                found = layer.marks(seed, threads=self._structure.threads)
                marks.update({names[name]: of_table for name, of_table in found.items()})
        return self.join(marks, {block.name: np.zeros(block.mask.shape) for block in self._shared})

    def keep(self, stands: Bools) -> None:
        """Restrict the objective to some of the weights.

        stands (bool[n]): The weights that stay; the others count as 0.
        """
        keys = [self._key(block.model, block.name) for block in self._tables]
        kept = dict(zip(keys, np.split(stands, self._starts[1:-1])))
        owners = {}
        for layer, names in zip(self._layers, self._names):
            if isinstance(layer, SparseCorpus):
                layer.thin({name: kept[key] for name, key in names.items()})
                owners.update(dict.fromkeys(names.values(), layer.features))
        self._line_up([block._replace(features=owners[key]) for key, block in zip(keys, self._tables)])

    def restricted(self, stands: Bools) -> "CorpusObjective":
        """The objective as a function of some of its weights, without variables and merged states; the others count as 0.
        It evaluates, and cannot assign.

        stands (bool[n]): The weights that stay.
        """
        objective = CorpusObjective.__new__(CorpusObjective)
        layers = [layer.copied() if isinstance(layer, SparseCorpus) else layer for layer in self._layers]
        vars(objective).update(vars(self), _layers=layers)
        if objective._merged is not None:
            merged, features = objective._merged
            objective._merged = None
            objective._move_states(features, merged.of)
        if not stands.all():
            objective.keep(stands)
        return objective

    def merge_states(self) -> None:
        """Shorten passes: states that training cannot distinguish are merged as long as their weights are equal. Values and
        gradients do not change.
        """
        layer = self._layers[0]
        node = self.node
        # Merged states are equal for the loss, for the annotation and for rules
        plain = type(self._loss) in _SUMS and not self._loss.cost and not self._loss.label_weights
        of_clamps = all(_is_of_masks(block.structure) and block.soft is None for block in self._annotation)
        of_states = isinstance(layer, SparseCorpus) and layer.is_of_single_states
        if len(self._layers) > 1 or not (plain and of_clamps and of_states and type(node) in _MERGED):
            return
        features: Any = layer.features
        is_known = np.bincount(features.states.pair_columns, minlength=self.n_states) > 0
        merged = MergedStates(node.possible(self.model), node.weighed(self.model), is_known)
        if np.array_equal(merged.of, np.arange(len(merged.of))):
            return
        clamps = (block.clamp.unpacked() for block in self._annotation)  # one at a time: together they take much memory
        bridged = [block.structure for block in self._annotation if isinstance(block.structure, BridgedStructure)]
        masks = [structure.bridges.at_blank for structure in bridged]
        if all(np.array_equal(clamp, clamp[..., merged.stands][..., merged.of]) for clamp in chain(clamps, masks)):
            self._merged = merged, features
            self._move_states(features.with_states(merged.of, merged.n_states), merged.stands)

    def _move_states(self, features: EmissionFeatures, states: Ints) -> None:
        self._layers[0].move(features)
        moved = []  # a new list, as restricted objectives share the present one
        for block in self._annotation:
            structure = block.structure
            if isinstance(structure, BridgedStructure):
                structure = structure.of_states(states)
            clamp = PackedClamp.of(block.clamp.unpacked()[:, states])
            moved.append(block._replace(clamp=clamp, structure=structure))
        self._annotation = moved

    @property
    def least_value(self) -> float:
        """The least value of a feature; 0 if all values are positive."""
        return min(getattr(layer, "least_value", 0.0) for layer in self._layers)

    @property
    def frequencies(self) -> Floats:
        """How often the data has the feature, token or sequence of each weight: float64[n]."""
        return self.met(self.evidence())

    def _sign(self) -> tuple:
        """Signature of the function: the data, the layout and the loss."""
        settings = repr(self._loss).encode("utf8") + self._structure.signature
        check = checksum([np.frombuffer(settings, dtype=np.uint8)])
        for block in self._annotation:
            ruled = None if block.structure is None else np.frombuffer(block.structure.signature, dtype=np.uint8)
            soft = [] if block.soft is None else [*block.soft.pieces, *block.soft.steps, *block.soft.runs]
            # None, for no rules or no factors, adds nothing
            check = checksum([ruled, *block.clamp.octets, block.weights, *soft], check)
        for layer in self._layers:
            check = checksum(layer.fingerprint(), check)
        return (*self.layout, check)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Loss of the corpus.

        weights (float64[n]): The weights.
        RETURNS (float, float64[n]): The loss and its gradient.
        """
        return self.ask(weights)

    def ask(
        self,
        weights: Floats,
        *,
        loss: Any = None,
        factors: Optional[list[Floats]] = None,
        into: Optional[list] = None,
    ) -> tuple[float, Floats]:
        """A loss of the corpus. Afterwards, `losses` has the losses of the sequences, batch by batch.

        weights (float64[n]): The weights.
        loss (Callable): The loss, by default that of the model.
        factors (list[float64[B]]): Factors of the sequences of each batch, 1 by default.
        into (list): Gets for each batch the derivatives with respect to the outputs of all layers, which the gradient
            then lacks.
        RETURNS (float, float64[n]): As `evaluate`.
        """
        loss = self._loss if loss is None else loss
        self.losses: list[Floats] = [np.zeros(0)] * self.n_batches
        of_layers, own = self.split(weights)
        node = self.node
        threads = self._structure.threads
        shared = node.potentials(self.model, own)
        if self._merged is not None and not self._merged[0].holds(shared):  # these weights are not equal any more
            merged, features = self._merged
            self._merged = None
            self._move_states(features, merged.of)
        merged = None if self._merged is None else self._merged[0]
        if merged is not None:
            shared = merged.potentials(shared)
        structures = self._cached or [self._structure] * self.n_batches
        gradient = np.zeros(len(weights))
        passes = self._passes(of_layers, self.split(gradient)[0])
        value = 0.0
        n_impossible = 0
        d_shared = {name: np.zeros(shared[name].shape) for name in own}

        def differentiate(number: int):
            annotation = self._annotation[number]
            # Of one batch, in one thread: scores of layers, potentials, loss, and the way back to layers and shared scores
            outputs = tuple(of_layer.score(number) for of_layer in passes)
            scores = node.join(outputs, shared)
            structure: Any = annotation.structure or structures[number]
            clamp = annotation.clamp.unpacked()
            soft = {} if annotation.soft is None else {"soft": annotation.soft}
            of_sequences = annotation.weights
            if factors is not None:
                of_sequences = factors[number] if of_sequences is None else of_sequences * factors[number]
            options = {"weights": of_sequences, **soft}
            losses, d_scores, impossible = evaluate(loss, structure, scores, clamp, **options)
            self.losses[number] = losses
            d_outputs, d_own = node.part(d_scores, outputs)
            return losses, impossible, d_own, d_outputs, d_scores

        # Sums are added in the order of batches, whatever thread computed them
        for first in range(0, self.n_batches, _GROUP):
            numbers = range(first, min(first + _GROUP, self.n_batches))
            derivatives = []
            for losses, impossible, d_own, d_outputs, d_scores in run_chunks(differentiate, numbers, threads):
                node.learn(self.model, [d_scores])
                value += float(losses.sum())
                n_impossible += int(impossible.sum())
                for name, derivative in d_own.items():
                    d_shared[name] += derivative
                derivatives.append(d_outputs)
            if into is not None:
                into += derivatives
                continue
            for of_layer, of_batches in zip(passes, zip(*derivatives)):
                of_layer.collect(numbers, of_batches)
        self.n_impossible = n_impossible
        if merged is not None:
            d_shared = merged.spread(d_shared)
        gradients = {}
        for names, of_layer in zip(self._names, passes):
            for name, of_parameter in of_layer.gradient().items():
                gradients[names[name]] = of_parameter
        return value, self.join(gradients, d_shared, into=gradient)

    def _passes(self, of_layers: dict[str, Floats], into: Optional[dict[str, Floats]] = None) -> list:
        """A pass of each layer over the corpus, with weights by key. `into` has zeros for the derivatives, by key."""
        passes = []
        for layer, names in zip(self._layers, self._names):
            own = {name: of_layers[key] for name, key in names.items()}
            d_own = None if into is None else {name: into[key] for name, key in names.items()}
            passes.append(layer.at(own, threads=self._structure.threads, into=d_own))
        return passes

    def weigh(self, weights: list[Floats], cause: str) -> None:
        """Change the factors of the sequences.

        weights (list[float64[B]]): The factors of each batch.
        cause (str): Changes the signature.
        """
        self._annotation = [block._replace(weights=some) for block, some in zip(self._annotation, weights)]
        self.signature = (*self.signature, cause)

    def scores(self, weights: Floats) -> Callable[[int], PathScores]:
        """A function from the number of a batch to its scores, for models whose states are not merged.

        weights (float64[n]): The weights.
        """
        of_layers, own = self.split(weights)
        passes = self._passes(of_layers)
        shared = self.node.potentials(self.model, own)
        return lambda number: self.node.join(tuple(of_layer.score(number) for of_layer in passes), shared)


def _is_of_masks(structure: Optional[TrainingStructure]) -> bool:
    """Whether the structure of a batch is the model's own, or masks states of it at some tokens."""
    return structure is None or (isinstance(structure, BridgedStructure) and structure.masks_alone)


class TiedObjective(Variables, CorpusObjective):
    """`CorpusObjective` as a function of variables, see `merged`."""

    def __init__(self, model: Model, loss: LabelledLoss, corpus: Iterable[AnnotatedDocs]):
        CorpusObjective.__init__(self, model, loss, corpus)
        Variables.__init__(self, model, Ties.of(*keys_of(model, [self.marks(seed) for seed in SEEDS])))
        # Weights that stand for others remain, with variables as their values
        stands = self.stands
        if not stands.all():
            self.keep(stands)
        self.signature = (*self.signature, int(stands.sum()))
        self.merge_states()

    def ask(self, weights: Floats, **asked: Any) -> tuple[float, Floats]:
        """A loss of the corpus as a function of variables; `asked` as for `CorpusObjective.ask`.

        weights (float64[m]): Values of the variables.
        RETURNS (float, float64[m]): The loss and its gradient.
        """
        value, gradient = super().ask(self.spread(weights), **asked)
        return value, self.gathered(gradient)

    def scores(self, weights: Floats) -> Callable[[int], PathScores]:
        """A function from the number of a batch to its scores by variables, `weights` (float64[m])."""
        return super().scores(self.spread(weights))
