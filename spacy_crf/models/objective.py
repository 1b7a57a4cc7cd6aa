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
from .structure import SharedScores
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
    structure: Optional[TrainingStructure]  # for the loss; None for the model's own
    soft: Optional[SoftLabelling]


class CorpusObjective(Weights):
    """Loss of a corpus, whose batches are read once, as a function of the weights of a model.

    model (Model): The model.
    loss (LabelledLoss): The loss.
    corpus (Iterable[AnnotatedDocs]): The batches.
    """

    def __init__(self, model: Model, loss: LabelledLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self._loss: Any = loss
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
        for layer, layer_corpus in zip(model.layers, self._layers):
            owner = layer.get_ref("output") if layer.has_ref("output") else layer  # the model with the parameters
            self._names.append({name: self._key(owner, name) for name in layer_corpus.names})
        self.signature: tuple = self._sign()
        self.n_impossible = 0
        # Merged states, and the features of the states before merging
        self._merged: Optional[tuple[MergedStates, EmissionFeatures]] = None
        self._cached: list = []  # for each batch a structure that caches pruned lattices

    def renew(self) -> bool:
        """Choose again which labellings are pruned. Between two calls the choice stays, so that the objective does not change.

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
        """The model, its loss, and the corpus of each layer, such as a `SparseCorpus`."""
        return self.model, self._loss, self._layers

    def annotation(self, number: int) -> tuple:
        """The annotation of a batch.

        number (int): The number of the batch.
        RETURNS (AnyClamp, float64[B], object): What the annotation allows; the factors of the sequences, None for ones; and the
            structure with rules, or soft labels, None for neither.
        """
        clamp, weights, structure, soft = self._annotation[number]
        return clamp.unpacked(), weights, structure or soft

    def stored(self) -> Optional[list]:
        """The objective as lists, texts, numbers and arrays, which a file can hold. None if it has rules that hold in training,
        soft labels, vectors of encoders or merged states.
        """
        has_only_clamps = all(block.structure is None and block.soft is None for block in self._annotation)
        has_only_features = all(isinstance(layer, SparseCorpus) for layer in self._layers)
        if self._merged or not has_only_clamps or not has_only_features:
            return None
        annotation = [[[*block.clamp], block.weights] for block in self._annotation]
        return [annotation, [layer.stored() for layer in self._layers]]

    def with_stored(self, stored: list) -> "CorpusObjective":
        """A copy of this objective with the corpus that a file holds.

        stored (list): The result of `stored`.
        RAISES: An error of any class if the corpus does not fit the model, or is damaged.
        """
        objective = copy.copy(self)
        annotation, layers = stored
        objective._annotation = [
            _BatchAnnotation(PackedClamp(*clamp), weights, structure=None, soft=None) for clamp, weights in annotation
        ]
        stored_layers = zip(self._layers, layers, strict=True)
        objective._layers = [layer.with_stored(stored_layer) for layer, stored_layer in stored_layers]
        layer_batches = [layer.batches for layer in objective._layers]
        for block, *batches in zip(objective._annotation, *layer_batches, strict=True):
            # All layers, and the annotation, have the tokens and sequences of the first layer
            starts = batches[0].starts
            n_tokens = int(starts[-1])
            n_sequences = len(starts) - 1
            block.clamp.expect_whole(n_tokens)
            fits = all((int(batch.starts[-1]), len(batch.starts) - 1) == (n_tokens, n_sequences) for batch in batches)
            if not fits or (block.weights is not None and len(block.weights) != n_sequences):
                raise ValueError("its annotation is of other sequences than its features")
        return objective

    def marks(self, seed: Seed) -> Floats:
        """Marks of the weights, equal for weights that the same tokens use (see `SparseCorpus.marks`): float64[n], 0 for
        weights of encoders and of shared scores.

        seed (Seed): Seed of the random numbers.
        """
        marks = {self._key(block.model, block.name): np.zeros(block.size) for block in self._of_layers}
        for layer, names in zip(self._layers, self._names):
            if isinstance(layer, SparseCorpus):
                table_marks = layer.marks(seed, threads=self._structure.threads)
                marks.update({names[name]: values for name, values in table_marks.items()})
        return self.join(marks, {block.name: np.zeros(block.mask.shape) for block in self._shared})

    def keep(self, is_kept: Bools) -> None:
        """Restrict the objective to some of the weights.

        is_kept (bool[n]): The weights that stay; the others count as 0.
        """
        keys = [self._key(block.model, block.name) for block in self._tables]
        # Tables are the first blocks of the vector
        kept_in_table = dict(zip(keys, np.split(is_kept, self._starts[1:-1])))
        thinned = {}  # features by the key of the table
        for layer, names in zip(self._layers, self._names):
            if isinstance(layer, SparseCorpus):
                layer.thin({name: kept_in_table[key] for name, key in names.items()})
                thinned.update(dict.fromkeys(names.values(), layer.features))
        self._line_up([block._replace(features=thinned[key]) for key, block in zip(keys, self._tables)])

    def restricted(self, is_kept: Bools) -> "CorpusObjective":
        """A copy whose argument is the weights of the model that stay, in place of variables; it merges no states, and cannot
        write weights to the model.

        is_kept (bool[n]): The weights that stay; the others count as 0.
        """
        objective = CorpusObjective.__new__(CorpusObjective)
        layers = [layer.copied() if isinstance(layer, SparseCorpus) else layer for layer in self._layers]
        vars(objective).update(vars(self), _layers=layers)
        if objective._merged is not None:
            merged, features = objective._merged
            objective._merged = None
            objective._move_states(features, merged.merged_of)
        if not is_kept.all():
            objective.keep(is_kept)
        return objective

    def merge_states(self) -> None:
        """Merge states that training cannot distinguish, as long as their weights are equal: passes are shorter, values and
        gradients do not change.
        """
        layer = self._layers[0]
        node = self.node
        # The loss, the annotation and rules must not distinguish the states either
        has_plain_loss = type(self._loss) in _SUMS and not self._loss.cost and not self._loss.label_weights
        has_only_clamps = all(_has_no_rules(block.structure) and block.soft is None for block in self._annotation)
        has_only_emissions = isinstance(layer, SparseCorpus) and layer.is_of_single_states
        can_merge = has_plain_loss and has_only_clamps and has_only_emissions and type(node) in _MERGED
        if len(self._layers) > 1 or not can_merge:
            return
        features: Any = layer.features
        is_known = np.bincount(features.states.pair_columns, minlength=self.n_states) > 0
        merged = MergedStates(node.possible(self.model), node.weighed(self.model), is_known)
        if np.array_equal(merged.merged_of, np.arange(len(merged.merged_of))):  # no two states are equal
            return
        clamps = (block.clamp.unpacked() for block in self._annotation)  # one at a time: together they take much memory
        bridged = [block.structure for block in self._annotation if isinstance(block.structure, BridgedStructure)]
        masks = [structure.bridges.at_blank for structure in bridged]
        # The annotation allows either all states of a merged state or none
        if all(
            np.array_equal(mask, mask[..., merged.representatives][..., merged.merged_of])
            for mask in chain(clamps, masks)
        ):
            self._merged = merged, features
            self._move_states(features.with_states(merged.merged_of, merged.n_states), merged.representatives)

    def _move_states(self, features: EmissionFeatures, states: Ints) -> None:
        """Switch to `features` of other states; each of them has the annotation of one of `states` (int64[M])."""
        self._layers[0].move(features)
        moved = []  # a new list, since restricted objectives share the present one
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
        """A value that is equal for equal data, layouts and losses, see `Objective.signature`."""
        settings = repr(self._loss).encode("utf8") + self._structure.signature
        check = checksum([np.frombuffer(settings, dtype=np.uint8)])
        for block in self._annotation:
            rules = None if block.structure is None else np.frombuffer(block.structure.signature, dtype=np.uint8)
            soft = [] if block.soft is None else [*block.soft.pieces, *block.soft.steps, *block.soft.runs]
            # The checksum skips None, which stands for no rules or no factors
            check = checksum([rules, *block.clamp.octets, block.weights, *soft], check)
        for layer in self._layers:
            check = checksum(layer.fingerprint(), check)
        return (*self.layout, check)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Evaluate the loss of the corpus.

        weights (float64[n]): The weights.
        RETURNS (float, float64[n]): The loss and its gradient.
        """
        return self.evaluate_loss(weights)

    def evaluate_loss(
        self,
        weights: Floats,
        *,
        loss: Any = None,
        factors: Optional[list[Floats]] = None,
        into: Optional[list] = None,
    ) -> tuple[float, Floats]:
        """Evaluate a loss of the corpus, and set `losses`, the losses of the sequences of each batch.

        weights (float64[n]): The weights.
        loss (Callable): The loss, by default that of the model.
        factors (list[float64[B]]): Factors of the sequences of each batch, 1 by default.
        into (list): Receives, for each batch, the derivatives with respect to the outputs of all layers. The gradient then
            lacks the weights of the layers.
        RETURNS (float, float64[n]): The loss and its gradient.
        """
        loss = self._loss if loss is None else loss
        self.losses: list[Floats] = [np.zeros(0)] * self.n_batches
        node = self.node
        layer_weights, shared_weights = self.split(weights)
        shared, merged = self._shared_potentials(shared_weights)
        structures = self._cached or [self._structure] * self.n_batches
        gradient = np.zeros(len(weights))
        layer_gradients, _ = self.split(gradient)  # passes may add to these views
        passes = self._passes(layer_weights, layer_gradients)
        value = 0.0
        n_impossible = 0
        d_shared = {name: np.zeros(shared[name].shape) for name in shared_weights}

        def differentiate(number: int):
            """Compute the losses of a batch, in one thread, and their derivatives for the layers and for the shared scores. Write
            the losses to `losses`."""
            annotation = self._annotation[number]
            outputs = tuple(layer_pass.score(number) for layer_pass in passes)
            scores = node.join(outputs, shared)
            structure: Any = annotation.structure or structures[number]
            clamp = annotation.clamp.unpacked()
            soft = {} if annotation.soft is None else {"soft": annotation.soft}
            sequence_weights = annotation.weights
            if factors is not None:
                sequence_weights = factors[number] if sequence_weights is None else sequence_weights * factors[number]
            options = {"weights": sequence_weights, **soft}
            losses, d_scores, impossible = evaluate(loss, structure, scores, clamp, **options)
            self.losses[number] = losses
            d_outputs, d_batch = node.part(d_scores, outputs)
            return losses, impossible, d_batch, d_outputs, d_scores

        # Sums are added in the order of batches, whatever thread computed them
        for first in range(0, self.n_batches, _GROUP):
            numbers = range(first, min(first + _GROUP, self.n_batches))
            derivatives = []
            for losses, impossible, d_batch, d_outputs, d_scores in run_chunks(
                differentiate, numbers, self._structure.threads
            ):
                node.update_averages(self.model, [d_scores])
                value += float(losses.sum())
                n_impossible += int(impossible.sum())
                for name, derivative in d_batch.items():
                    d_shared[name] += derivative
                derivatives.append(d_outputs)
            if into is not None:
                into += derivatives
                continue
            for layer_pass, d_layer in zip(passes, zip(*derivatives)):
                layer_pass.collect(numbers, d_layer)
        self.n_impossible = n_impossible
        if merged is not None:
            d_shared = merged.spread(d_shared)
        gradients = {}
        for names, layer_pass in zip(self._names, passes):
            for name, parameter_gradient in layer_pass.gradient().items():
                gradients[names[name]] = parameter_gradient
        return value, self.join(gradients, d_shared, into=gradient)

    def _shared_potentials(self, shared_weights: SharedScores) -> tuple[SharedScores, Optional[MergedStates]]:
        """The potentials that all tokens share, for merged states if there are any.

        Once weights of merged states have become different, the states are separated for good.

        shared_weights (SharedScores): The second part that `split` returns.
        RETURNS (SharedScores, Optional[MergedStates]): The potentials, and how states are merged; None if they are not.
        """
        shared = self.node.potentials(self.model, shared_weights)
        if self._merged is None:
            return shared, None
        merged, features = self._merged
        if not merged.holds(shared):
            self._merged = None
            self._move_states(features, merged.merged_of)
            return shared, None
        return merged.potentials(shared), merged

    def _passes(self, layer_weights: dict[str, Floats], into: Optional[dict[str, Floats]] = None) -> list:
        """Start a pass of each layer over the corpus.

        layer_weights (dict[str, float64[...]]): The first part that `split` returns.
        into (dict[str, float64[...]]): Zeros by the same keys, which may receive the gradient.
        """
        passes = []
        for layer, names in zip(self._layers, self._names):
            weights = {name: layer_weights[key] for name, key in names.items()}
            d_weights = None if into is None else {name: into[key] for name, key in names.items()}
            passes.append(layer.at(weights, threads=self._structure.threads, into=d_weights))
        return passes

    def weigh(self, weights: list[Floats], cause: str) -> None:
        """Change the factors of the sequences.

        weights (list[float64[B]]): The factors of each batch.
        cause (str): What determines the factors; it becomes a part of the signature.
        """
        blocks = zip(self._annotation, weights)
        self._annotation = [block._replace(weights=sequence_weights) for block, sequence_weights in blocks]
        self.signature = (*self.signature, cause)

    def scores(self, weights: Floats) -> Callable[[int], PathScores]:
        """A function from the number of a batch to its scores, for models whose states are not merged.

        weights (float64[n]): The weights.
        """
        layer_weights, shared_weights = self.split(weights)
        passes = self._passes(layer_weights)
        shared = self.node.potentials(self.model, shared_weights)
        return lambda number: self.node.join(tuple(layer_pass.score(number) for layer_pass in passes), shared)


def _has_no_rules(structure: Optional[TrainingStructure]) -> bool:
    """Whether the structure of a batch is the model's own (None), perhaps with states masked at blank tokens."""
    return structure is None or (isinstance(structure, BridgedStructure) and structure.masks_alone)


class TiedObjective(Variables, CorpusObjective):
    """`CorpusObjective` as a function of variables, see `merged`."""

    def __init__(self, model: Model, loss: LabelledLoss, corpus: Iterable[AnnotatedDocs]):
        CorpusObjective.__init__(self, model, loss, corpus)
        Variables.__init__(self, model, Ties.of(*keys_of(model, [self.marks(seed) for seed in SEEDS])))
        # One weight of each group remains, which has the value of the variable
        is_kept = self.is_representative
        if not is_kept.all():
            self.keep(is_kept)
        self.signature = (*self.signature, int(is_kept.sum()))
        self.merge_states()

    def evaluate_loss(self, weights: Floats, **options: Any) -> tuple[float, Floats]:
        """Evaluate a loss of the corpus as a function of variables.

        weights (float64[m]): Values of the variables.
        options: Further arguments of `CorpusObjective.evaluate_loss`.
        RETURNS (float, float64[m]): The loss and its gradient.
        """
        value, gradient = super().evaluate_loss(self.spread(weights), **options)
        return value, self.gather(gradient)

    def scores(self, weights: Floats) -> Callable[[int], PathScores]:
        """A function from the number of a batch to its scores by variables, `weights` (float64[m])."""
        return super().scores(self.spread(weights))
