"""What all models of a structure do: put together what their layers and their own parameters say, and take derivatives apart.

The parameters of such a model are the scores that all tokens share. Its attributes say what is known of them: "allowed", which
transitions, firsts and lasts the tag scheme allows (`TransitionMask`, set by the component), "observed", which of them have a
weight (uint8[S + 2, S]), and "met", how many tokens and sequences training met.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps
from thinc.util import data_validation

from ..arrays import per_position, states_of
from ..features.doc_batch import DocBatch
from ..inference.structure import Places, Structure
from ..types import Floats
from .emissions import pairs_allowed
from .role import AnnotatedDocs, Corpus, Role, Sizes, check_array, check_equal, check_weights, enlarged, set_moved

Shared = dict[str, NDArray]  # an array for each parameter


class TokenTerms(NamedTuple):
    """What single tokens of a Doc are told beside their features, as an explanation shows it."""

    names: list[str]  # N
    tokens: NDArray[np.int64]  # [N]
    scores: Floats  # [N, S] that are added to those of the token


class StructureModel(Model):
    """A model from Docs to scores, whose dimension ``nO`` is that of its parameter "first": the states, which may become more.
    thinc's own dimensions can't change once there are parameters."""

    def initialize(self, X: Any = None, Y: Any = None) -> "StructureModel":
        with data_validation(False):  # they are a corpus, and what is to be predicted of it
            return super().initialize(X, Y)

    def has_dim(self, name: str) -> Optional[bool]:
        if name != "nO":
            return super().has_dim(name)
        return True if self.has_param("first") else None

    def get_dim(self, name: str) -> int:
        return len(self.get_param("first")) if name == "nO" and self.has_dim("nO") else super().get_dim(name)


class Architecture(Role):
    """The node of a model of a structure."""

    labelled = "tokens"
    params: tuple[str, ...] = ("transitions", "first", "last")
    of_sequences: tuple[str, ...] = ("first", "last")  # parameters that score something that a sequence has once
    learned = ("observed", "met")
    structure: Structure  # answers questions about the scores

    def __init__(self) -> None:
        self._latest: Optional[tuple] = None  # of `latest_potentials`, replaced as a whole: threads may be reading

    @property
    def in_training(self) -> Structure:
        """What answers losses."""
        return self.structure

    # --------------------------------------------------------------------------------------- what a structure adds

    def join(self, outputs: tuple, shared: Shared) -> Any:
        """The potentials, from what the layers give and what tokens share."""
        raise NotImplementedError

    def part(self, d_scores: Any, outputs: tuple) -> tuple:
        """The way back: derivatives with respect to what each layer gave."""
        raise NotImplementedError

    def shapes(self, model: Model, n_states: int) -> dict[str, tuple[int, ...]]:
        """Of the parameters."""
        return {"transitions": (n_states, n_states), "first": (n_states,), "last": (n_states,)}

    def told(self, batch: AnnotatedDocs) -> AnnotatedDocs:
        """A batch as the layers are told of it, which know columns."""
        return batch

    def places(self, places: Optional[Places]) -> Optional[Places]:
        """Which scores of the layers are asked for, where these scores of tags are."""
        return places

    def limits(self, model: Model) -> Any:
        """What says which scores are possible: another object if others are."""
        return model.attrs["allowed"]

    def possible(self, model: Model) -> Shared:
        """Which scores are not -inf: a mask for each parameter."""
        return model.attrs["allowed"]._asdict()

    def weighed(self, model: Model) -> Shared:
        """Which of them have a weight: a mask for each parameter."""
        observed = model.attrs["observed"].astype(bool)
        return {"transitions": observed[:-2], "first": observed[-2], "last": observed[-1]}

    def start(self, model: Model, corpus: Corpus, is_new: bool) -> None:
        """Gives new weights what they begin with, where that is not 0.

        is_new (bool): Whether all of them are.
        """

    def steps(self, clamp: Any) -> Optional[NDArray[np.bool_]]:
        """Tokens at which annotation surely makes a step from state to state: bool[T], None for all."""
        return None

    def longest(self, model: Model) -> int:
        """Tokens of the longest piece with one state."""
        return 1

    def leaves_out(self, model: Model) -> bool:
        """Whether sums are those of some of the labellings, which change with the weights."""
        return False

    def learn(self, model: Model, d_scores: Iterable[Any]) -> None:
        """What training says beside gradients, in derivatives of batches."""

    def alike(self, scores: Any, other: Any) -> Any:
        """Scores whose arrays have a place for everything that others of the same texts have."""
        return scores

    # ------------------------------------------------------------------------------------------- what is explained

    @property
    def explained(self) -> "Architecture":
        """What puts together the scores of which an explanation shows the terms."""
        return self

    def token_terms(self, model: Model, outputs: tuple, docs: DocBatch) -> Optional[TokenTerms]:
        """What tokens are told beside what layers with weights say, None for nothing.

        outputs: Of these layers, in double precision. docs (DocBatch): Of a single Doc.
        """
        return None

    def weight_blocks(self, model: Model, name: str) -> Any:
        """Weights of a parameter with names (a list of `explain.weights.Block`); None where the weights belong to states."""
        return None

    # ---------------------------------------------------------------------------------------- what all of them do

    def potentials(self, model: Model, weights: Shared) -> Shared:
        """What tokens share, in float64, with -inf where it is not possible."""
        possible = self.possible(model)
        return {name: np.where(possible[name], weights[name], -np.inf).astype(np.float64) for name in self.params}

    def latest_potentials(self, model: Model, weights: Shared) -> Shared:
        """The same from batch to batch, so that predicting need not make them again; nobody writes to them. Optimizers change
        weights in place, so they are compared."""
        latest, limits = self._latest, self.limits(model)
        asked = tuple([array.tobytes() for array in weights.values()])
        if latest is None or latest[0] is not limits or latest[1] != asked:
            potentials = self.potentials(model, weights)
            latest = self._latest = (limits, asked, potentials)
        return latest[2]

    def derivatives(self, d_scores: Any) -> Shared:
        """With respect to what tokens share."""
        found = {name: getattr(d_scores, name) for name in self.params}
        if per_position(d_scores):
            found["transitions"] = d_scores.transitions.sum(axis=0)
        return found

    def weighted_sum(self, outputs: Sequence[Any], shares: Floats) -> Any:
        """Of scores of the same texts. What is not possible stays so.

        shares (float64[M]): Of each of the outputs.
        """
        total, *others = outputs
        for other in others:
            total = self.alike(total, other)
        arrays = {}
        for name in self.gives.AXES:
            both = [getattr(self.alike(output, total), name) for output in outputs]
            arrays[name] = sum(_times(array, share) for array, share in zip(both, shares))
        return total._replace(**arrays)

    def dot(self, d_scores: Any, scores: Any) -> float:
        """Derivatives times scores: with respect to a factor of these. Those that are not possible have none."""
        scores = self.alike(scores, d_scores)
        pairs = ((getattr(d_scores, name), getattr(scores, name)) for name in self.gives.AXES)
        return float(sum((d * np.where(array > -np.inf, array, 0.0)).sum() for d, array in pairs))

    def resize(self, model: Model, n_states: int) -> None:
        """Every possible step with a new state has a weight."""
        for layer in model.layers:
            layer.attrs["role"].resize(layer, self.columns(n_states))
        before = model.get_dim("nO") if model.has_dim("nO") else 0
        for name, shape in self.shapes(model, n_states).items():
            if not before:
                model.set_param(name, np.zeros(shape, dtype=np.float32))
            elif model.get_param(name).shape != shape:
                set_moved(model, name, partial(enlarged, shape=shape))
        if before != n_states:
            self.enlarge(model, before, n_states)

    def enlarge(self, model: Model, before: int, n_states: int) -> None:
        """Says what is known of new states, of which some stand behind those that there were before (0 for none)."""
        observed = self._possible_steps(model, n_states) if before else np.zeros((n_states + 2, n_states), bool)
        if before:
            observed[:before, :before] = model.attrs["observed"][:-2]
            observed[-2:, :before] = model.attrs["observed"][-2:]
        model.attrs["observed"] = observed.astype(np.uint8)

    def observe(self, model: Model, corpus: Corpus, n_states: int) -> None:
        """Which steps have a weight: those that training meets where annotation leaves one state, or all that are possible."""
        observed, possible = model.attrs["observed"].astype(bool), self._possible_steps(model, n_states)
        if model.attrs["possible_transitions"]:
            observed |= possible
        else:
            for batch in corpus():
                _mark(observed, states_of(batch.allowed), batch.starts, self.steps(batch.allowed))
        model.attrs["observed"] = (observed & possible).astype(np.uint8)

    def _possible_steps(self, model: Model, n_states: int) -> NDArray[np.bool_]:
        shapes, possible = self.shapes(model, n_states), self.possible(model)
        steps = [np.broadcast_to(possible[name], shapes[name]) for name in ("transitions", "first", "last")]
        return np.vstack(steps)

    def forget(self, model: Model) -> None:
        super().forget(model)
        model.attrs["met"] = [0, 0]

    def check(self, model: Model, n_states: int) -> None:
        check_weights(model, self.shapes(model, n_states))
        if "observed" in self.learned:
            check_array("observed", model.attrs["observed"], (n_states + 2, n_states), np.uint8)
        met = model.attrs["met"]
        is_count = isinstance(met, list) and [*map(type, met)] == [int, int] and min(met) >= 0
        check_equal("what training met", is_count, True)


def _times(array: NDArray, share: float) -> Floats:
    return np.multiply(array, share, out=np.full(array.shape, -np.inf), where=array > -np.inf)


def build(name: str, node: Architecture, layers: dict[str, Model], **attrs: Any) -> StructureModel:
    """A model with these layers, under their names, and these attributes."""
    params, attrs = (
        dict.fromkeys(node.params),
        {"role": node, "met": [0, 0], "observed": None, "allowed": None, **attrs},
    )
    parts = list(layers.values())
    model = StructureModel(
        name, forward, init=init, layers=parts, refs=layers, params=params, attrs=attrs, ops=NumpyOps()
    )
    for part in parts:
        if part.has_ref("tok2vec"):
            model.set_ref("tok2vec", part.get_ref("tok2vec"))  # where spaCy's commands look for an encoder
    return model


def without_stage(model: Model) -> StructureModel:
    """A model of the same settings that has learned nothing, without the templates that read what a first stage says."""
    layers = {name: model.get_ref(name).copy() for name in model.ref_names}
    for layer in layers.values():
        layer.ops = NumpyOps()
        for features in layer.attrs.values():
            if hasattr(features, "set_stage"):
                features.set_stage(features.feature_set.without_stage(), None)
    attrs = copy.deepcopy({name: value for name, value in model.attrs.items() if name != "role"})
    return build(model.name, copy.deepcopy(model.attrs["role"]), layers, **attrs)


def forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Any, Callable]:
    node: Architecture = model.attrs["role"]
    outputs, backprops = zip(*[layer(docs, is_train) for layer in model.layers])
    weights = {name: model.get_param(name) for name in node.params}
    shared = node.potentials(model, weights) if is_train else node.latest_potentials(model, weights)

    def backprop(d_scores: Any) -> list[Doc]:
        weighed = node.weighed(model)
        node.learn(model, [d_scores])
        for name, gradient in node.derivatives(d_scores).items():
            model.inc_grad(name, np.where(weighed[name], gradient, 0.0).astype(np.float32))
        d_docs = [backprop_layer(d) for backprop_layer, d in zip(backprops, node.part(d_scores, outputs))]
        return d_docs[0]

    return node.join(outputs, shared), backprop


def init(model: Model, X: Optional[Corpus] = None, Y: Optional[Sizes] = None) -> None:
    node: Architecture = model.attrs["role"]
    if X is None or Y is None:
        for layer in model.layers:
            layer.initialize()
        return
    sizes = Sizes(*Y)._replace(longest=node.longest(model), tag_of=model.attrs.get("tag_of"))
    is_new = not model.has_dim("nO")
    met = list(model.attrs["met"])
    corpus = _counted(X, met)
    of_layers = sizes._replace(n_states=node.columns(sizes.n_states))
    for layer in model.layers:
        layer.initialize(X=lambda: map(node.told, corpus()), Y=of_layers)
    model.attrs["met"] = met
    node.resize(model, sizes.n_states)
    node.observe(model, X, sizes.n_states)
    node.start(model, X, is_new)


def _counted(corpus: Corpus, met: list[int]) -> Corpus:
    """The corpus, whose tokens and sequences are added to ``met`` as it is read for the first time."""
    unread = [True]

    def read() -> Iterable[AnnotatedDocs]:
        counts, unread[:] = bool(unread), []
        for batch in corpus():
            if counts:
                met[0] += int(batch.starts[-1])
                met[1] += len(batch.starts) - 1
            yield batch

    return read


def _mark(observed: NDArray[np.bool_], allowed: NDArray[np.bool_], starts: NDArray[np.int64], steps: Any) -> None:
    """Marks in ``observed`` (bool[S + 2, S]) transitions, firsts and lasts of tokens whose annotation leaves one state."""
    n_states = allowed.shape[1]
    state = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    begin, end = starts[:-1][starts[:-1] < starts[1:]], starts[1:][starts[:-1] < starts[1:]]
    for row, tokens in ((-2, begin), (-1, end - 1)):
        observed[row, state[tokens][state[tokens] >= 0]] = True
    pairs, _ = pairs_allowed(allowed, starts, steps)
    observed[pairs // n_states, pairs % n_states] = True
