"""Base of the models of a structure, which join the outputs of their layers with the scores that all tokens share.

These shared scores are the parameters of such a model. Its attributes are "allowed", the transitions, firsts and lasts that the
tag scheme allows (`TransitionMask`, set by the component), "observed", which of them have a weight (uint8[S + 2, S]), "met", how
many tokens and sequences training met, and "beside", what optimizers keep with the weights, by name, or None.
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
    set_moved,
    write_param,
)

SharedScores = dict[str, Any]  # for each parameter an array, or one value for all of it
_OFFSET = re.compile(r"\[(-?\d+)\]")


# ------------------------------------------------------------------------- weights with the names of what they weigh


class Feature(NamedTuple):
    name: str
    template: str
    offset: Optional[int]

    @classmethod
    def of(cls, index: Union[FeatureIndex, HashedIndex, VectorIndex], row: int) -> "Feature":
        """The feature in a row of an index of any kind."""
        names, of_rows = templates_of(index, np.array([row]))
        template = names[int(of_rows[0])]
        return cls(index.name(row), template, offset_of(template))

    @classmethod
    def shared(cls, parameter: str, row: int = 0) -> "Feature":
        """Name of a parameter that all tokens share: "transition", "first", "last", or "length=N" for its row N - 1."""
        name = f"length={row + 1}" if parameter == "lengths" else parameter.removesuffix("s")
        return cls(name, parameter, None)


def templates_of(
    index: Union[FeatureIndex, HashedIndex, VectorIndex], rows: NDArray[np.integer]
) -> tuple[list[str], NDArray[np.integer]]:
    """The templates of the features of an index.

    index (FeatureIndex, HashedIndex or VectorIndex): An index of any kind.
    rows (int[N]): Rows of the index.
    RETURNS (list[str], int64[N]): Names of templates, and the number of the template of each row.
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
    feature: Callable[[int], Feature]
    counts: Optional[NDArray[np.int64]] = None  # [F]
    # Names, and the number of each weight's template (int64[W])
    templates: Optional[tuple[list[str], NDArray[np.integer]]] = None
    # [S] the label of each state, where weights are for labels, not for states
    label_of: Optional[NDArray[np.int64]] = None

    def about(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which weights belong to wanted states (bool[S]) or their labels: bool[W]."""
        if self.label_of is not None:
            wanted = np.bincount(self.label_of, wanted[: len(self.label_of)]) > 0
        return np.logical_or.reduce([wanted[states] for states in self.states])


class TokenTerms(NamedTuple):
    """Terms of the scores of single tokens of a Doc, other than features, for explanations."""

    names: list[str]  # N
    tokens: Ints  # [N]
    scores: Floats  # [N, S] added to the scores of the token
    template: str  # that the explanation names


class Explained(NamedTuple):
    """Joins the scores whose terms an explanation shows."""

    node: "StructureNode"
    weights: SharedScores  # of the parameters of the node
    # [C, S] of each layer, the factors of its columns in the scores of states; () for states
    mixes: Sequence[Floats] = ()
    # Makes the terms of token scores other than those of layers with weights, from the model, the outputs of the layers with
    # weights in double precision, and a single Doc; None without any
    terms: Optional[Callable[[Model, tuple, DocBatch], Optional[TokenTerms]]] = None


class StructureModel(Model):
    """A model from Docs to scores. Its dimension ``nO``, the number of states, is the one that its node knows, or that of its
    members in a pool, and may grow; thinc's own dimensions cannot change once there are parameters.
    """

    def initialize(self, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> Model:
        """Initialize the model with a corpus `X` for the sizes `Y`, see `init`."""
        with data_validation(False):  # X is a corpus, Y are sizes, neither of which thinc can check
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
        """Like thinc's, with a learning rate for each node.

        optimizer (Optimizer): Takes the steps.
        """
        for node in self.walk():
            for shim in node.shims:
                shim.finish_update(optimizer)
        # "lr_scale" balances parts of a model that learn together
        for node in self.walk():
            scale = node.attrs.get("lr_scale", 1.0)
            for name in node.grad_names:
                after, _ = optimizer((node.id, name), node.get_param(name), node.get_grad(name), lr_scale=scale)
                node.set_param(name, after)


class StructureNode(Node):
    """Base of the nodes of models of a structure."""

    traits = Traits("tokens", learned=("observed", "met", "beside"), params=("transitions", "first", "last"))
    structure: Structure  # structure for the scores

    def __init__(self) -> None:
        self._latest: Optional[tuple] = None  # see `latest_potentials`; threads may be reading it

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
        """The way back through `join`.

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
        """The `batch` as the layers need it, by their columns (see `columns`)."""
        return batch

    def limits(self, model: Model) -> object:
        """Key of `latest_potentials`: what determines the possible scores of `model`, another object after a change."""
        return model.attrs["allowed"]

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: which scores are not -inf."""
        return model.attrs["allowed"]._asdict()

    def weighed(self, model: Model) -> SharedScores:
        """Masks of the parameters of `model`: which scores have a weight."""
        observed = model.attrs["observed"].astype(bool)
        return {"transitions": observed[:-2], "first": observed[-2], "last": observed[-1]}

    def longest(self, model: Model) -> int:
        """Tokens of the longest segment of `model`."""
        return 1

    def leaves_out(self, model: Model) -> bool:
        """Whether sums of `model` run over a selection of the labellings, which changes with the weights."""
        return False

    def learn(self, model: Model, d_scores: Iterable[ScoreArrays]) -> None:
        """Update attributes of the model that no gradient changes.

        model (Model): The model.
        d_scores (Iterable[ScoreArrays]): The derivatives of each of some batches.
        """

    def alike(self, scores: PathScores, other: PathScores) -> PathScores:
        """Scores with arrays of the same shapes as other scores, to add both.

        scores (PathScores): Potentials of some texts.
        other (PathScores): Other potentials of these texts, which may have more entries, such as listed spans.
        RETURNS (PathScores): `scores` with all of these entries.
        """
        return scores

    # ----------------------------------------------------------------------------------------------- explanations

    def explained(self, model: Model) -> "Explained":
        """What joins the scores of `model` whose terms an explanation shows."""
        return Explained(self, exact_weights(model))

    def places_of(self, states: Ints) -> Ints:
        """The places in the parameters of `states` of a labelling (int64[N]): int64[N]."""
        return states

    def weight_blocks(self, model: Model, name: str) -> Optional[list[Block]]:
        """Weights of the parameter `name` of `model` with names; None where the weights belong to states."""
        return None

    # ------------------------------------------------------------------------------------------ common to all models

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores in float64, -inf where they are impossible.

        model (Model): The model, which knows what is possible.
        weights (SharedScores): The weights of its parameters.
        """
        possible = self.possible(model)
        return {
            name: np.where(possible[name], weights[name], -np.inf).astype(np.float64) for name in self.traits.params
        }

    def latest_potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """`potentials`, the same object as long as the weights are unchanged. Callers must not write to it. (Optimizers change
        weights in place, so their bytes are compared.)

        model (Model): The model, which knows what is possible.
        weights (SharedScores): The weights of its parameters.
        """
        # Other threads may replace it: it is read once
        latest = self._latest
        limits = self.limits(model)
        asked = tuple([array.tobytes() for array in weights.values()])
        if latest is None or latest[0] is not limits or latest[1] != asked:
            latest = self._latest = (limits, asked, self.potentials(model, weights))
        return latest[2]

    def shared_part(self, d_scores: PathScores) -> SharedScores:
        """Derivatives with respect to the shared scores.

        d_scores (PathScores): Derivatives with respect to potentials that hold the shared scores by name.
        """
        # Transitions of all tokens share a weight, so their derivatives add up
        found = {name: getattr(d_scores, name) for name in self.traits.params}
        if per_position(d_scores):
            found["transitions"] = d_scores.transitions.sum(axis=0)
        return found

    def weighted_sum(self, outputs: Sequence[PathScores], shares: Floats) -> PathScores:
        """Weighted sum of scores of the same texts; impossible scores stay impossible.

        outputs (Sequence[PathScores]): The potentials of M models.
        shares (float64[M]): The weight of each.
        """
        total = outputs[0]
        for other in outputs[1:]:
            total = self.alike(total, other)
        sums = {name: np.zeros(np.shape(getattr(total, name))) for name in self.gives.AXES}
        for output, share in zip(outputs, shares):
            scores = self.alike(output, total)
            for name, of_name in sums.items():
                array = getattr(scores, name)
                # 0 · -inf would be NaN
                of_name += np.multiply(array, share, out=np.full(array.shape, -np.inf), where=array > -np.inf)
        return total._replace(**sums)

    def dot(self, d_scores: PathScores, scores: PathScores) -> float:
        """Derivative with respect to a factor of the scores: the sum over possible scores of derivative times score.

        d_scores (PathScores): Derivatives with respect to the scores times the factor.
        scores (PathScores): The scores.
        """
        scores = self.alike(scores, d_scores)
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
                set_moved(model, name, partial(enlarged, shape=shape))
        if "observed" not in self.traits.learned or before == model.get_dim("nO"):
            return
        # [S + 2, S] transitions, then firsts, then lasts
        observed = np.zeros((model.get_dim("nO") + 2, model.get_dim("nO")), bool)
        if before:
            observed = self._possible_steps(model, n_states)
            observed[:before, :before] = model.attrs["observed"][:-2]
            observed[-2:, :before] = model.attrs["observed"][-2:]
        model.attrs["observed"] = observed.astype(np.uint8)

    def init_weights(self, model: Model, corpus: Batches, n_states: int, is_new: bool) -> None:
        """Find the parameters that get a weight, and set the first values of new weights that are not 0. By default, transitions
        of unambiguous annotation get a weight, or all that are possible.

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
        shapes = self.shapes(model, n_states)
        possible = self.possible(model)
        steps = [np.broadcast_to(possible[name], shapes[name]) for name in ("transitions", "first", "last")]
        return np.vstack(steps)

    def expect(self, model: Model, n_states: int, saved: dict[str, bytes]) -> None:
        """Prepare `model` for loading `n_states` states and the attributes `saved`, without what belongs to other weights."""
        model.attrs["beside"] = None  # of other weights

    def forget(self, model: Model) -> None:
        """Return `model` to its state before training, of which it has met nothing."""
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
    """A model of a structure.

    name (str): Name of the model.
    node (StructureNode): Its node.
    layers (dict[str, Model]): Its layers by the names under which `model.get_ref` finds them.
    kind (type[StructureModel]): Its class.
    attrs: Its attributes.
    """
    params = dict.fromkeys(node.traits.params)
    parts = list(layers.values())
    refs: dict[str, Optional[Model]] = {**layers}
    attrs = {"node": node, "met": [0, 0], "observed": None, "beside": None, "allowed": None, **attrs}
    model = kind(name, forward, init=init, layers=parts, refs=refs, params=params, attrs=attrs, ops=NumpyOps())
    for part in parts:
        if part.has_ref("tok2vec"):
            model.set_ref("tok2vec", part.get_ref("tok2vec"))  # spaCy's commands look for it there
    return model


def without_stage(model: StructureModel) -> StructureModel:
    """An untrained model of a structure with the same settings, without templates that read the labels of a first stage.

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
    for name in model.param_names:  # some models have parameters that are no scores
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
    shared = node.potentials(model, weights) if is_train else node.latest_potentials(model, weights)

    def backprop(d_scores: PathScores) -> list[Doc]:
        # Entries of the parameters that have no weight get no gradient
        weighed = node.weighed(model)
        node.learn(model, [d_scores])
        d_outputs, d_shared = node.part(d_scores, outputs)
        for name, gradient in d_shared.items():
            add_gradient(model, name, np.where(weighed[name], gradient, 0.0))
        d_docs = [backprop_layer(d) for backprop_layer, d in zip(backprops, d_outputs)]
        return d_docs[0]

    scores = node.join(outputs, shared)
    return scores if is_train else node.in_prediction(model, scores), backprop


def init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Initialize a model, or add what a corpus shows beyond the present features and states.

    model (Model): A model of a structure.
    X (Batches): The corpus; None to initialize the layers alone.
    Y (Sizes): Its sizes.
    """
    node: StructureNode = model.attrs["node"]
    if X is None or Y is None:
        for layer in model.layers:
            layer.initialize()
        return
    of_states = {name: model.attrs.get(name) for name in ("tag_of", "inner")}
    sizes = Sizes(*Y)._replace(longest=node.longest(model), **of_states)
    is_new = not model.has_dim("nO")
    met = list(model.attrs["met"])
    unread = [True]

    def read() -> Iterable[AnnotatedDocs]:
        """The corpus for the layers; the first reading counts its tokens and sequences."""
        counts = bool(unread)
        unread[:] = []
        for batch in X():
            if counts:
                met[0] += int(batch.starts[-1])
                met[1] += len(batch.starts) - 1
            yield node.layer_batch(batch)

    of_layers = sizes._replace(n_states=node.columns(sizes.n_states))
    for layer in model.layers:
        layer.initialize(X=read, Y=of_layers)
    model.attrs["met"] = met
    node.resize(model, sizes.n_states)
    node.init_weights(model, X, sizes.n_states, is_new)


def _mark(observed: Bools, clamp: AnyClamp, starts: Ints) -> None:
    """Mark in ``observed`` (bool[S + 2, S]) the transitions, firsts and lasts of tokens whose annotation leaves one state."""
    allowed = states_of(clamp)
    # [T] tokens with a transition; None for all
    n_states = allowed.shape[1]
    steps = getattr(clamp, "must_begin", None)
    state = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    begin = starts[:-1][starts[:-1] < starts[1:]]
    end = starts[1:][starts[:-1] < starts[1:]]
    # Rows S and S + 1 of `observed` are those of firsts and lasts
    for row, tokens in ((-2, begin), (-1, end - 1)):
        observed[row, state[tokens][state[tokens] >= 0]] = True
    # A pair is the number i · S + j of a transition
    pairs, _ = pairs_allowed(allowed, starts, steps)
    observed[pairs // n_states, pairs % n_states] = True
