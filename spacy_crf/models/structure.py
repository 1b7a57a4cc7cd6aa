"""Base of the models of a structure, which join the outputs of their layers with the scores that all tokens share.

These shared scores are the parameters of such a model. Its attributes are "allowed", the transitions, firsts and lasts that the
tag scheme allows (`TransitionMask`, set by the component), "observed", the rows of transitions, firsts and lasts that tell which
of these scores have a weight (uint8[S + 2, S]), "met", how many tokens and sequences training met, and "beside", what optimizers
keep with the weights, by name, or None.
"""

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps, Optimizer
from thinc.util import data_validation

from ..arrays import each_chain, per_position, states_of
from ..features.doc_batch import DocBatch
from ..features.feature_index import FeatureIndex, HashedIndex, VectorIndex
from ..inference.structure import Structure
from ..types import AnyClamp, Bools, Floats, Ints, PathScores, ScoreArrays
from .emissions import pairs_allowed
from .node import (
    AnnotatedDocs,
    Batches,
    Node,
    Sizes,
    Traits,
    add_gradient,
    check_array,
    check_equal,
    check_weights,
    enlarged,
    read_params,
    rearrange_param,
    write_param,
)

SharedScores = dict[str, Any]  # by parameter: an array, or a number that stands for an array of equal numbers
_OFFSET = re.compile(r"\[(-?\d+)\]")


# ------------------------------------------------------------------------- weights with the names of what they weigh


class Feature(NamedTuple):
    """The name of a feature, for explanations."""

    name: str
    template: str
    offset: Optional[int]  # of the token that the template reads; None if it reads several, or none

    @classmethod
    def of(cls, index: Union[FeatureIndex, HashedIndex, VectorIndex], row: int) -> "Feature":
        """The feature in a row of an index."""
        names, [number] = templates_of(index, np.array([row]))
        template = names[int(number)]
        return cls(index.name(row), template, offset_of(template))

    @classmethod
    def shared(cls, parameter: str, row: int = 0) -> "Feature":
        """The feature that stands for a parameter of all tokens: "transition", "first", "last", or "length=N" for row N - 1."""
        name = f"length={row + 1}" if parameter == "lengths" else parameter.removesuffix("s")
        return cls(name, parameter, None)


def templates_of(
    index: Union[FeatureIndex, HashedIndex, VectorIndex], rows: NDArray[np.integer]
) -> tuple[list[str], NDArray[np.integer]]:
    """The templates of the features of an index.

    index (FeatureIndex, HashedIndex or VectorIndex): The index.
    rows (int[N]): Rows of the index.
    RETURNS (list[str], int64[N]): Names of all templates, and which of these templates each row belongs to.
    """
    if isinstance(index, FeatureIndex):
        return index.feature_names.templates, index.feature_names.template_of[rows].astype(np.int64)
    if isinstance(index, VectorIndex):
        return [f"vector[{offset}]" for offset in index.offsets], rows // index.width
    return ["hashed rows"], np.zeros(len(rows), dtype=np.int64)


def offset_of(template: str) -> Optional[int]:
    """The offset of a template if all of its parts read the same offset, else None."""
    offsets = set(_OFFSET.findall(template))
    return int(offsets.pop()) if len(offsets) == 1 else None


class Block(NamedTuple):
    """The weights of one table, or of a parameter that all tokens share."""

    name: str
    weights: NDArray[np.floating]  # [W]
    states: tuple[NDArray[np.int64], ...]  # one or two states of each weight: int64[W]
    rows: NDArray[np.int64]  # [W] row of each weight's feature
    feature: Callable[[int], Feature]  # the feature of a row
    counts: Optional[NDArray[np.int64]] = None  # [F] how often training met each feature
    # Names of templates, and which of these templates each weight belongs to (int64[W])
    templates: Optional[tuple[list[str], NDArray[np.integer]]] = None
    # [S] the label of each state, where weights are for labels, not for states
    label_of: Optional[NDArray[np.int64]] = None

    def about(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which weights belong to wanted states (bool[S]) or to the labels of these states: bool[W]."""
        if self.label_of is not None:  # `states` holds labels
            wanted = np.bincount(self.label_of, wanted[: len(self.label_of)]) > 0
        # A weight with several states, such as a transition, belongs to each of them
        return np.logical_or.reduce([wanted[states] for states in self.states])


class TokenTerms(NamedTuple):
    """N terms in the scores of the tokens of a Doc that are no weights of features, for explanations."""

    names: list[str]  # N
    tokens: Ints  # [N] the token of each term
    scores: Floats  # [N, S] what the term adds to the scores of the token
    template: str  # what explanations name in place of a template


class Explained(NamedTuple):
    """How explanations compute the scores whose terms they show."""

    node: "StructureNode"  # joins the outputs of the layers with the shared scores
    weights: SharedScores  # of the parameters of the node
    # For each layer float64[C, S]: scores of states = scores of the layer's C columns · mix; () where columns are states
    mixes: Sequence[Floats] = ()
    # Makes the terms of token scores beside the weights of features, from the model, the outputs of the layers in double
    # precision, and a batch of one Doc; None if there are no such terms
    terms: Optional[Callable[[Model, tuple, DocBatch], Optional[TokenTerms]]] = None


class StructureModel(Model):
    """A model from Docs to scores. Its dimension ``nO`` is the number of states, for which it asks its node, since it may grow;
    thinc's own dimensions cannot change once there are parameters.
    """

    def initialize(self, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> Model:
        """Initialize the model with a corpus `X` for the sizes `Y`; the function `init` does the work."""
        with data_validation(False):  # thinc checks arrays, not corpora and sizes
            return super().initialize(X, Y)

    def has_dim(self, name: str) -> Optional[bool]:
        """Whether the dimension `name` is known; None if it is not yet."""
        if name != "nO":
            return super().has_dim(name)
        return True if self.attrs["node"].n_states(self) is not None else None

    def get_dim(self, name: str) -> int:
        """The size of the dimension `name`."""
        if name != "nO" or not self.has_dim("nO"):
            return super().get_dim(name)
        return self.attrs["node"].n_states(self)

    def finish_update(self, optimizer: Optimizer) -> None:
        """Update the parameters from their gradients, as thinc does; a node's "lr_scale" multiplies the learning rate.

        optimizer (Optimizer): The optimizer of thinc or of spaCy.
        """
        for node in self.walk():
            for shim in node.shims:
                shim.finish_update(optimizer)
        # "lr_scale" balances parts of a model that learn together
        for node in self.walk():
            scale = node.attrs.get("lr_scale", 1.0)
            for name in node.grad_names:
                updated, _ = optimizer((node.id, name), node.get_param(name), node.get_grad(name), lr_scale=scale)
                node.set_param(name, updated)


class StructureNode(Node):
    """Base of the nodes of models of a structure."""

    traits = Traits("tokens", learned=("observed", "met", "beside"), params=("transitions", "first", "last"))
    structure: Structure  # structure for the scores

    def __init__(self) -> None:
        self._latest: Optional[tuple] = None  # what `cached_potentials` caches: key, bytes of the weights, potentials

    @property
    def in_training(self) -> Structure:
        """The structure that losses use for batches without their own, see `training_batch`."""
        return self.structure

    # ----------------------------------------------------------------------------------------------- for subclasses

    def join(self, outputs: tuple, shared: SharedScores) -> PathScores:
        """The potentials of a batch.

        outputs (tuple): The outputs of the layers.
        shared (SharedScores): The scores that all tokens share.
        RETURNS (PathScores): The potentials, of the class `gives`.
        """
        raise NotImplementedError

    def in_prediction(self, model: Model, scores: PathScores) -> PathScores:
        """The potentials that prediction reads.

        model (Model): The model.
        scores (PathScores): The potentials of `join`, which training reads.
        """
        return scores

    def part(self, d_scores: PathScores, outputs: tuple) -> tuple[tuple, SharedScores]:
        """Backpropagate through `join`.

        d_scores (PathScores): Derivatives with respect to the potentials.
        outputs (tuple): The outputs of the layers.
        RETURNS (tuple, SharedScores): Derivatives with respect to the outputs, and with respect to the shared scores.
        """
        raise NotImplementedError

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters of `model` for `n_states` states."""
        return {"transitions": (n_states, n_states), "first": (n_states,), "last": (n_states,)}

    def n_states(self, model: Model) -> Optional[int]:
        """Number of states of `model`; None before it has parameters."""
        return len(model.get_param("first")) if model.has_param("first") else None

    def layer_batch(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """The `batch` as the layers read it: where they score other columns than states, with a clamp of these columns."""
        return batch

    def potentials_key(self, model: Model) -> object:
        """An object that is replaced whenever the possible scores of `model` change, so that `cached_potentials` notices."""
        return model.attrs["allowed"]

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: which scores are not -inf."""
        return model.attrs["allowed"]._asdict()

    def weighed(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: which scores have a weight."""
        observed = model.attrs["observed"].astype(bool)
        return {"transitions": observed[:-2], "first": observed[-2], "last": observed[-1]}

    def longest(self, model: Model) -> int:
        """How many tokens the longest segment of `model` may have."""
        return 1

    def prunes_labellings(self, model: Model) -> bool:
        """Whether `model` only sums over the likely labellings, which change with the weights."""
        return False

    def update_averages(self, model: Model, d_scores: Iterable[ScoreArrays]) -> None:
        """Update attributes of the model that are no parameters, such as moving averages.

        model (Model): The model.
        d_scores (Iterable[ScoreArrays]): For each batch, the derivatives with respect to its potentials.
        """

    def with_entries_of(self, scores: PathScores, other: PathScores) -> PathScores:
        """Give scores the entries that other scores of the same texts have in addition, such as listed spans, so that their
        arrays can be added.

        scores (PathScores): The potentials.
        other (PathScores): The other potentials.
        """
        return scores

    # ----------------------------------------------------------------------------------------------- explanations

    def explained(self, model: Model) -> "Explained":
        """How explanations compute the scores of `model`."""
        return Explained(self, exact_weights(model))

    def places_of(self, states: Ints) -> Ints:
        """The indices at which the parameters hold `states` (int64[N]) of a labelling: int64[N]."""
        return states

    def weight_blocks(self, model: Model, name: str) -> Optional[list[Block]]:
        """The weights of the parameter `name` of `model`, each with a name to show; None if they belong to states, whose labels
        are their names."""
        return None

    # ------------------------------------------------------------------------------------------ common to all models

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores in float64, -inf where they are impossible.

        model (Model): The model, which determines what is possible.
        weights (SharedScores): The values of its parameters.
        """
        possible = self.possible(model)
        return {
            name: np.where(possible[name], weights[name], -np.inf).astype(np.float64) for name in self.traits.params
        }

    def cached_potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The result of `potentials`, cached until the weights or the possible scores change. Callers must not write to it.

        model (Model): The model, which determines what is possible.
        weights (SharedScores): The values of its parameters.
        """
        key = self.potentials_key(model)
        # Optimizers change weights in place, so bytes are compared
        contents = tuple([array.tobytes() for array in weights.values()])
        # Other threads may replace `_latest` at any time, so it is read once
        latest_key, latest_contents, potentials = self._latest or (None, None, {})
        if latest_key is not key or latest_contents != contents:
            potentials = self.potentials(model, weights)
            self._latest = (key, contents, potentials)
        return potentials

    def shared_part(self, d_scores: PathScores) -> SharedScores:
        """Derivatives with respect to the shared scores.

        d_scores (PathScores): Derivatives with respect to potentials whose fields are named like the parameters.
        """
        d_shared = {name: getattr(d_scores, name) for name in self.traits.params}
        if per_position(d_scores):
            # The transitions of all tokens share a weight
            d_shared["transitions"] = d_scores.transitions.sum(axis=0)
        return d_shared

    def weighted_sum(self, outputs: Sequence[PathScores], shares: Floats) -> PathScores:
        """Weighted sum of scores of the same texts; impossible scores stay impossible.

        outputs (Sequence[PathScores]): The potentials of M models.
        shares (float64[M]): The factor of each model.
        """
        total = outputs[0]
        for other in outputs[1:]:
            total = self.with_entries_of(total, other)
        sums = {name: np.zeros(np.shape(getattr(total, name))) for name in self.gives.AXES}
        for output, share in zip(outputs, shares):
            scores = self.with_entries_of(output, total)
            for name, weighted in sums.items():
                array = getattr(scores, name)
                # 0 · -inf would be NaN, so -inf stays as it is
                weighted += np.multiply(array, share, out=np.full(array.shape, -np.inf), where=array > -np.inf)
        return total._replace(**sums)

    def dot(self, d_scores: PathScores, scores: PathScores) -> float:
        """The derivative with respect to a factor that multiplies all scores: the sum of derivative · score over the scores
        that are not -inf.

        d_scores (PathScores): Derivatives with respect to the scores times the factor.
        scores (PathScores): The scores.
        """
        scores = self.with_entries_of(scores, d_scores)
        total = 0.0
        for name in self.gives.AXES:
            array = getattr(scores, name)
            total += float((getattr(d_scores, name) * np.where(array > -np.inf, array, 0.0)).sum())
        return total

    def resize(self, model: Model, n_states: int) -> None:
        """Add states to the model. Every possible transition with a new state gets a weight.

        model (Model): The model.
        n_states (int): The new number of states.
        """
        for layer in model.layers:
            layer.attrs["node"].resize(layer, self.columns(n_states))
        before = model.get_dim("nO") if model.has_dim("nO") else 0
        for name, shape in self.shapes(model, n_states).items():
            if not before:
                write_param(model, name, np.zeros(shape))
            elif model.get_param(name).shape != shape:
                rearrange_param(model, name, partial(enlarged, shape=shape))
        if "observed" not in self.traits.learned or before == model.get_dim("nO"):
            return
        observed = np.zeros((model.get_dim("nO") + 2, model.get_dim("nO")), bool)
        if before:  # otherwise `init_weights` finds out what occurs
            # Between the present states only what was observed so far; what involves a new state counts as observed
            observed = self._possible_steps(model, n_states)
            observed[:before, :before] = model.attrs["observed"][:-2]
            observed[-2:, :before] = model.attrs["observed"][-2:]  # the rows of firsts and lasts
        model.attrs["observed"] = observed.astype(np.uint8)

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Find the parameters that get a weight, and set the first values of new weights that are not 0. By default, transitions
        get a weight if the annotation has them where it is unambiguous, or with `possible_transitions` if they are possible.

        model (Model): The model, with layers and parameters for all states.
        corpus (Batches): The training data.
        n_states (int): Number of states.
        is_new (bool): Whether all weights are new.
        """
        observed = model.attrs["observed"].astype(bool)
        possible = self._possible_steps(model, n_states)
        if model.attrs["possible_transitions"]:
            observed |= possible
        else:
            for batch in corpus():
                for clamp in each_chain(batch.allowed):
                    _mark(observed, clamp, batch.starts)
        model.attrs["observed"] = (observed & possible).astype(np.uint8)

    def _possible_steps(self, model: Model, n_states: int) -> Bools:
        """Which transitions, firsts and lasts are possible, in the rows of "observed": bool[S + 2, S]."""
        shapes = self.shapes(model, n_states)
        possible = self.possible(model)
        steps = [np.broadcast_to(possible[name], shapes[name]) for name in ("transitions", "first", "last")]
        return np.vstack(steps)

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Prepare `model` for loading weights for `n_states` states, and the attributes `saved`."""
        model.attrs["beside"] = None  # belongs to the present weights

    def forget(self, model: Model) -> None:
        """Return `model` to its state before training."""
        super().forget(model)
        model.attrs["met"] = [0, 0]

    def check(self, model: Model, n_states: int) -> None:
        """Check the loaded parameters and attributes of `model` for `n_states` states. RAISES (ValueError): CRF509."""
        check_weights(model, self.shapes(model, n_states))
        if "observed" in self.traits.learned:
            [size] = self.shapes(model, n_states)["first"]
            check_array("observed", model.attrs["observed"], (size + 2, size), np.uint8)
        met = model.attrs["met"]
        is_count = isinstance(met, list) and [*map(type, met)] == [int, int] and min(met) >= 0
        check_equal("what training met", is_count, True)
        beside = model.attrs["beside"]
        check_equal("what is kept with the weights", beside is None or isinstance(beside, dict), True)


def exact_weights(model: Model) -> SharedScores:
    """The weights of the parameters of a model of a structure, in double precision.

    model (Model): The model.
    """
    weights = read_params(model, model.attrs["node"].traits.params)
    return {name: array.astype(np.float64) for name, array in weights.items()}


def build(
    name: str,
    node: StructureNode,
    layers: dict[str, Model],
    *,
    kind: type[StructureModel] = StructureModel,
    **attrs: Any,
) -> StructureModel:
    """Build the model of a structure.

    name (str): Name of the model.
    node (StructureNode): Node of the model.
    layers (dict[str, Model]): The layers, by the names under which `model.get_ref` finds them.
    kind (type[StructureModel]): Class of the model.
    attrs: Further attributes of the model.
    """
    params = dict.fromkeys(node.traits.params)
    children = list(layers.values())
    refs: dict[str, Optional[Model]] = {**layers}
    attrs = {"node": node, "met": [0, 0], "observed": None, "beside": None, "allowed": None, **attrs}
    model = kind(name, forward, init=init, layers=children, refs=refs, params=params, attrs=attrs, ops=NumpyOps())
    for layer in children:
        if layer.has_ref("tok2vec"):
            model.set_ref("tok2vec", layer.get_ref("tok2vec"))  # spaCy's commands look for it there
    return model


def without_stage(model: StructureModel) -> StructureModel:
    """Build an untrained model with the settings of another, except templates that read the labels of a first stage.

    model (StructureModel): The model.
    """
    layers = {name: model.get_ref(name).copy() for name in model.ref_names}
    for layer in layers.values():
        layer.ops = NumpyOps()
        for features in layer.attrs.values():
            if hasattr(features, "set_stage"):
                features.set_stage(features.feature_set.without_stage(), None)
    attrs = copy.deepcopy({name: value for name, value in model.attrs.items() if name != "node"})
    untrained = build(model.name, copy.deepcopy(model.attrs["node"]), layers, kind=type(model), **attrs)
    for name in model.param_names:  # some models have further parameters, which `build` does not know
        untrained.set_param(name, None)
    return untrained


def forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[ScoreArrays, Callable]:
    """Potentials of a batch: the outputs of the layers, joined with the scores that all tokens share.

    model (Model): A model of a structure.
    docs (list[Doc]): The batch.
    is_train (bool): Whether backpropagation follows.
    RETURNS (ScoreArrays, Callable): The potentials, and the function that takes their derivatives.
    """
    node: StructureNode = model.attrs["node"]
    outputs, backprops = zip(*[layer(docs, is_train) for layer in model.layers])
    weights = read_params(model, node.traits.params)
    shared = node.potentials(model, weights) if is_train else node.cached_potentials(model, weights)

    def backprop(d_scores: PathScores) -> list[Doc]:
        node.update_averages(model, [d_scores])  # no gradient: moving averages of the model, and such attributes
        d_outputs, d_shared = node.part(d_scores, outputs)
        weighed = node.weighed(model)
        for name, gradient in d_shared.items():
            # Scores without a weight stay 0
            add_gradient(model, name, np.where(weighed[name], gradient, 0.0))
        d_docs = [backprop_layer(d_output) for backprop_layer, d_output in zip(backprops, d_outputs)]
        return d_docs[0]  # each layer returns an empty list, since Docs have no derivative

    scores = node.join(outputs, shared)
    return scores if is_train else node.in_prediction(model, scores), backprop


def init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Initialize a model, or add the features and states of a corpus that the model lacks.

    model (Model): A model of a structure.
    X (Batches): The corpus; None to initialize the layers alone.
    Y (Sizes): Sizes of the corpus.
    """
    node: StructureNode = model.attrs["node"]
    if X is None or Y is None:
        for layer in model.layers:
            layer.initialize()
        return
    tag_of = model.attrs.get("tag_of")
    sizes = Sizes(*Y)._replace(longest=node.longest(model), tag_of=tag_of, inner=model.attrs.get("inner"))
    is_new = not model.has_dim("nO")
    met = list(model.attrs["met"])  # tokens and sequences
    is_first = True

    def read() -> Iterable[AnnotatedDocs]:
        """The corpus for the layers; the first reading counts its tokens and sequences."""
        nonlocal is_first
        counts = is_first
        is_first = False
        for batch in X():
            if counts:
                met[0] += int(batch.starts[-1])
                met[1] += len(batch.starts) - 1
            yield node.layer_batch(batch)

    layer_sizes = sizes._replace(n_states=node.columns(sizes.n_states))
    for layer in model.layers:
        layer.initialize(X=read, Y=layer_sizes)
    model.attrs["met"] = met
    node.resize(model, sizes.n_states)
    node.init_weights(model, X, sizes.n_states, is_new)


def _mark(observed: Bools, clamp: AnyClamp, starts: Ints) -> None:
    """Mark in ``observed`` (bool[S + 2, S]) the transitions, firsts and lasts of tokens whose annotation leaves one state."""
    allowed = states_of(clamp)  # [T, S]
    n_states = allowed.shape[1]
    only_state = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)  # [T] -1 for none or several
    has_tokens = starts[:-1] < starts[1:]
    first_states = only_state[starts[:-1][has_tokens]]
    last_states = only_state[starts[1:][has_tokens] - 1]
    observed[-2, first_states[first_states >= 0]] = True
    observed[-1, last_states[last_states >= 0]] = True
    # Segments have transitions only at the tokens where they must begin
    steps = getattr(clamp, "must_begin", None)
    pairs, _ = pairs_allowed(allowed, starts, steps)  # each is i · S + j
    observed[pairs // n_states, pairs % n_states] = True
