"""Sets of chains over the same tokens: the model of a set, and one chain of it as a model of its own, with the layers and weights
of the model of the set."""

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps

from .. import arrays, checks
from ..inference.chain_set import add_states, of_states
from ..types import Ints, PathScores
from .linear_chain import ChainNode
from .node import no_backprop
from .semi_markov import SegmentsNode
from .structure import SharedScores, StructureModel, StructureNode


def ChainSet(inner: Model) -> Model:
    """A set of chains that read features once, for ``crf_spancat``, or ``crf_tagger`` with several attributes.

    inner (Model): A LinearChain or SemiMarkov, whose states are the states of all chains.
    """
    return check_inner("ChainSet", "inner", inner)


def check_inner(owner: str, setting: str, model: Any) -> Model:
    """Check that a model can score a set of chains.

    owner (str): The architecture, for the message.
    setting (str): The setting, for the message.
    model (object): The model.
    RETURNS (Model): The model.
    RAISES (ValueError): CRF020 for another one than a LinearChain or SemiMarkov.
    """
    node = getattr(model, "attrs", {}).get("node")
    checks.expect(
        type(getattr(node, "member_node", node)) in (ChainNode, SegmentsNode),  # members of a pool are of this class
        owner,
        setting,
        getattr(model, "name", model),
        "a LinearChain or a SemiMarkov",
    )
    return model


class ChainOfSet(StructureNode):
    """Node of one chain: its scores are the scores of the chain's states; outputs of layers, and weights, are those of all
    states.

    whole (Model): The model of the set.
    states (int64[S_c]): The states of the chain, among the states of the set.
    """

    def __init__(self, whole: Model, states: Ints):
        super().__init__()
        self.whole = whole
        self.states = states
        of = whole.attrs["node"]
        self.set_node: StructureNode = of
        self.gives = of.gives
        self.structure = of.structure
        self.traits = of.traits
        self.scored: Optional[tuple[Doc, PathScores]] = None  # a Doc, and the scores of the set for it

    def longest_of_states(self, model: Model) -> NDArray[np.int32]:
        """Tokens of the longest segment of each state of the chain; `model` is the model of the chain."""
        return self.set_node.longest_of_states(self.whole)[self.states]

    def join(self, outputs: tuple, shared: SharedScores) -> PathScores:
        """The scores of the chain's states, from the `outputs` of layers and `shared` scores for all states."""
        return of_states(self.set_node.join(outputs, shared), self.states)

    def _of_set(self, derivative: PathScores) -> PathScores:
        """The derivative with respect to the scores of all states, from the one with respect to the scores of the chain."""
        n_states = self.whole.get_dim("nO")
        zeros = {}
        for name, array in arrays.named(derivative).items():
            axes = zip(arrays.axes(derivative, name), array.shape)
            zeros[name] = np.zeros([n_states if axis.endswith("state") else size for axis, size in axes])
        total = derivative._replace(**zeros)
        add_states(total, derivative, self.states)
        return total

    def part(self, d_scores: PathScores, outputs: tuple) -> tuple[tuple, SharedScores]:
        """The derivatives with respect to the `outputs` of layers, and to shared scores, for all states, from `d_scores` of the
        chain's states.
        """
        return self.set_node.part(self._of_set(d_scores), outputs)

    def potentials(self, model: Model, weights: SharedScores) -> SharedScores:
        """The shared scores of all states by `weights`; `model` is the model of the chain."""
        return self.set_node.potentials(self.whole, weights)

    def possible(self, model: Model) -> SharedScores:
        """Masks of the parameters of the set: which scores are not -inf; `model` is the model of the chain."""
        return self.set_node.possible(self.whole)

    def weighed(self, model: Model) -> SharedScores:
        """Masks of the parameters of the set: which have a weight; `model` is the model of the chain."""
        return self.set_node.weighed(self.whole)

    def places_of(self, states: Ints) -> Ints:
        """The indices of `states` of the chain in the parameters of the set."""
        return self.states[states]

    def named_states(self, model: Model, parameter: Optional[str], places: tuple) -> tuple:
        """As `Node.named_states`: the numbers that the states at `places` of a `parameter` have within the chain. States of
        other chains, which the chain does not use, get the number of the first state.
        """
        number = np.zeros(self.whole.get_dim("nO"), dtype=np.int64)
        number[self.states] = np.arange(len(self.states))
        return tuple(number[place] for place in places)


class _ChainModel(StructureModel):
    """Model of one chain, which shares the layers and the parameters of the set."""

    def __init__(self, whole: Model, node: ChainOfSet):
        refs: dict[str, Optional[Model]] = {name: whole.get_ref(name) for name in whole.ref_names}
        super().__init__(
            "chain", _forward, layers=whole.layers, refs=refs, attrs={**whole.attrs, "node": node}, ops=NumpyOps()
        )
        # Parameters, and the id by which thinc finds them, are those of the set
        self.id = whole.id
        self._params = whole._params
        self._has_params = whole._has_params


def chain_of(whole: Model, states: Ints) -> Model:
    """Make the model of one chain of a set.

    whole (Model): The model of the set.
    states (int64[S_c]): The states of the chain, among the states of the set.
    """
    return _ChainModel(whole, ChainOfSet(whole, states))


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[PathScores, Callable]:
    node: ChainOfSet = model.attrs["node"]
    # The component may have scored the Doc, once for all chains of the set
    scored_doc, scores = node.scored or (None, None)
    if scores is None or len(docs) != 1 or docs[0] is not scored_doc:
        scores = node.whole.predict(docs)
    return of_states(scores, node.states), no_backprop
