"""The linear chain: emissions plus transitions between neighbouring tags.

The model's output is ``ChainScores``: the potentials of a batch, with -inf where the tag scheme forbids a transition. Emissions
may be a sum of the scores of sparse features and of an encoder: `Joint` says how both learn together, in this architecture and
in `semi_markov`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from .. import checks
from ..arrays import per_position
from ..inference.linear_chain import LinearChain as LinearChainInference
from ..types import ChainScores, Settings
from .emissions import Emissions, total
from .node import gives
from .sparse import SparseNode
from .structure import SharedScores, StructureModel, StructureNode, build

if TYPE_CHECKING:
    from .neural import EncoderNode

_MODES = ("adam", "frozen", "pool")


class ChainNode(StructureNode):
    """Node of a linear chain."""

    gives = ChainScores
    structure = LinearChainInference()

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> ChainScores:
        """The potentials: emissions are the sum of the `outputs` of layers, transitions the `shared` ones, plus those of
        tokens if a template reads transitions.
        """
        emissions, token_transitions, starts = total(outputs)
        transitions = shared["transitions"] if token_transitions is None else token_transitions + shared["transitions"]
        return ChainScores(emissions, transitions, shared["first"], shared["last"], starts)

    def part(self, d_scores: ChainScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Derivatives with respect to the `outputs` of layers, which are equal for all layers, and to the shared scores, from
        `d_scores`.
        """
        token_transitions = d_scores.transitions if per_position(d_scores) else None
        d_output = Emissions(d_scores.emissions, token_transitions, np.asarray(d_scores.starts))
        return (d_output,) * len(outputs), self.shared_part(d_scores)


def LinearChain(
    emissions: Optional[Model[list[Doc], Emissions]] = None,
    tok2vec: Optional[Model[list[Doc], list[Floats2d]]] = None,
    hidden_width: int = 0,
    dropout: float = 0.0,
    possible_transitions: bool = False,
    joint: Optional[Settings] = None,
) -> Model[list[Doc], ChainScores]:
    """A first-order linear chain (Lafferty, McCallum & Pereira 2001) whose emissions are the sum of the scores of its parts.

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    tok2vec (Model): An encoder, or a listener to one before the component.
    hidden_width (int): Width of a hidden layer between the encoder and the scores, 0 for none.
    dropout (float): Beside an encoder, the share of the features that training leaves out, so that the encoder learns too. The
        encoder's own dropout is set in [training].
    possible_transitions (bool): Whether every pair of tags that the scheme allows gets a weight, not only pairs seen in training.
        Other pairs stay possible, with a weight of zero.
    joint (dict): How both parts learn together, see `Joint`.
    """
    owner = "LinearChain"
    layers, joint_settings = scored_tokens(owner, emissions, tok2vec, hidden_width, dropout, joint)
    possible = checks.flag(owner, "possible_transitions", possible_transitions)
    return put_together("linear_chain", ChainNode, layers, joint_settings, possible_transitions=possible)


# -------------------------------------------------------------------------------- sums of sparse features and an encoder


class Joint(NamedTuple):
    """How the parts of a model whose scores are a sum learn together.

    mode (str): "adam", all parts from the beginning, by gradients; "frozen", all parts but the encoder, which does not change; or
        "pool", features and encoder each as though alone, with shares by held-out texts.
    chain_rate (float): Learning rate of scores that all tokens share, relative to the encoder's: 0.0001 to 10,000.
    sparse_rate (float): Learning rate of sparse features, relative to the encoder's.
    held_out (float): Share of the texts that are held out.
    """

    mode: str = "adam"
    chain_rate: float = 10.0
    sparse_rate: float = 3.0
    held_out: float = 0.1

    @classmethod
    def read(cls, owner: str, given: Optional[Settings]) -> "Joint":
        """Read and check the settings of a config.

        owner (str): Name of the architecture, for messages.
        given (object): The settings, None for the defaults.
        RAISES (ValueError): CRF020 for settings that do not exist or do not fit.
        """
        settings = checks.table(owner, "joint", given, "settings")
        for key in settings:
            checks.one_of(owner, "joint: setting", key, cls._fields)
        joint = cls(**settings)
        checks.one_of(owner, "joint.mode", joint.mode, _MODES)
        chain_rate = checks.number(owner, "joint.chain_rate", joint.chain_rate, least=1e-4, most=1e4)
        sparse_rate = checks.number(owner, "joint.sparse_rate", joint.sparse_rate, least=1e-4, most=1e4)
        held_out = checks.number(owner, "joint.held_out", joint.held_out, least=0.01, most=0.5)
        if not joint.learns:  # rates are relative to that of the encoder
            chain_rate = 1.0
            sparse_rate = 1.0
        return cls(joint.mode, chain_rate, sparse_rate, held_out)

    @property
    def learns(self) -> bool:
        """Whether the encoder is trained."""
        return self.mode != "frozen"


def scored_tokens(
    owner: str,
    emissions: Optional[Model],
    tok2vec: Optional[Model],
    hidden_width: int,
    dropout: float,
    settings: Optional[Settings],
    make_encoder_node: Optional[Callable[[bool], "EncoderNode"]] = None,
) -> tuple[dict[str, Model], Joint]:
    """Check the settings of an architecture whose layers score tokens, and make the layers.

    owner (str): The architecture, for messages.
    emissions (Optional[Model]): Sums of weights of features.
    tok2vec (Optional[Model]): An encoder.
    hidden_width (int): Width of a hidden layer between the encoder and the scores, 0 for none.
    dropout (float): Share of the features that training leaves out.
    settings (Optional[dict]): Settings of `Joint`.
    make_encoder_node (Callable): Takes whether the encoder is trained, and makes its node; by default a node of emissions.
    RETURNS (dict[str, Model], Joint): The layers by name, and how they learn together.
    RAISES (ValueError): CRF020 for settings that do not fit.
    """
    joint = Joint.read(owner, settings)
    rate = checks.number(owner, "dropout", dropout, most=0.99)
    layers = {}
    if emissions is not None or tok2vec is None:
        must = "sparse emissions, such as spacy_crf.SparseEmissions.v1; or nothing, with an encoder as tok2vec"
        layer: Any = emissions
        is_emissions = gives(layer) is Emissions
        is_sparse = is_emissions and isinstance(layer.attrs["node"], SparseNode)
        # Other linear emissions are possible as the only layer of a chain
        is_alone = (
            is_emissions and layer.attrs["node"].traits.is_linear and tok2vec is None and make_encoder_node is None
        )
        checks.expect(is_sparse or is_alone, owner, "emissions", emissions, must)
        layers["emissions"] = layer
    if tok2vec is not None:
        from .neural import EncoderNode, encoder_emissions  # slow, and features alone need no encoder

        layers["encoder"] = encoder_emissions(
            owner, tok2vec, hidden_width, (make_encoder_node or EncoderNode)(joint.learns)
        )
    # Dropout and rates balance features and encoder
    has_both = len(layers) == 2
    if has_both:
        layers["emissions"].attrs.update(dropout=rate, lr_scale=joint.sparse_rate)
    checks.expect(
        joint.learns or not (hidden_width or rate),
        owner,
        "joint.mode",
        joint.mode,
        "'adam' where there is a hidden_width or dropout",
    )
    checks.expect(
        has_both or joint.mode != "pool",
        owner,
        "joint.mode",
        joint.mode,
        "'adam' unless there are both emissions and tok2vec",
    )
    checks.expect(has_both or not rate, owner, "dropout", dropout, "0 unless there are both emissions and tok2vec")
    checks.expect(
        tok2vec is not None or not hidden_width,
        owner,
        "hidden_width",
        hidden_width,
        "0 without tok2vec: it is that of a layer on the encoder",
    )
    return layers, joint


def put_together(
    name: str, make_node: Callable[[], StructureNode], layers: dict[str, Model], joint: Joint, **attrs: Any
) -> StructureModel:
    """Make a model of the sum of layers, or a pool of a model of sparse features and a model of an encoder.

    name (str): Name of the model.
    make_node (Callable): Makes the node of each model.
    layers (dict[str, Model]): The layers by name.
    joint (Joint): How the layers learn together.
    attrs: Attributes of the model.
    """
    if joint.mode != "pool":
        rate: Settings = {"lr_scale": joint.chain_rate} if "encoder" in layers else {}
        return build(name, make_node(), layers, **attrs, **rate)
    from .pool import make_pool  # few models are pools

    encoder = {"encoder": layers["encoder"]}
    sparse = {part: layer for part, layer in layers.items() if part != "encoder"}
    members = [
        build(name, make_node(), sparse, lr_scale=joint.sparse_rate, **attrs),
        build(name, make_node(), encoder, lr_scale=joint.chain_rate, **attrs),
    ]
    return make_pool(make_node, members, held_out=joint.held_out, lr_scale=joint.chain_rate)
