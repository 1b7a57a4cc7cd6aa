"""How the parts of a model whose scores are a sum, sparse features and an encoder, are put together and learn together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from thinc.api import Model

from .. import checks
from .emissions import Emissions
from .node import gives
from .sparse import SparseNode
from .structure import StructureModel, StructureNode, build

if TYPE_CHECKING:
    from .neural import EncoderNode

_MODES = ("adam", "frozen", "pool")


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
    def read(cls, owner: str, given: Any) -> "Joint":
        """Settings of a config.

        owner (str): The architecture, for messages.
        given (object): The settings, None for the defaults.
        RAISES (ValueError): CRF020 for settings that do not exist or do not fit.
        """
        given = checks.table(owner, "joint", given, "settings")
        for key in given:
            checks.one_of(owner, "joint: setting", key, cls._fields)
        joint = cls(**given)
        checks.one_of(owner, "joint.mode", joint.mode, _MODES)
        named = zip(cls._fields[1:3], joint[1:3])
        rates = [checks.number(owner, f"joint.{name}", rate, least=1e-4, most=1e4) for name, rate in named]
        held_out = checks.number(owner, "joint.held_out", joint.held_out, least=0.01, most=0.5)
        sparse_rate, encoder_rate = rates if joint.learns else (1.0, 1.0)
        return cls(joint.mode, sparse_rate, encoder_rate, held_out)

    @property
    def learns(self) -> bool:
        """Whether the encoder is trained."""
        return self.mode != "frozen"


def scored_tokens(
    owner: str,
    emissions: Any,
    tok2vec: Any,
    hidden_width: int,
    dropout: float,
    joint: Any,
    of: Optional[Callable[[bool], "EncoderNode"]] = None,
) -> tuple[dict[str, Model], Joint]:
    """Layers that score tokens by their names, and how they learn together, from the settings of an architecture.

    owner (str): The architecture, for messages.
    emissions (Optional[Model]): Sums of weights of features.
    tok2vec (Optional[Model]): An encoder.
    hidden_width (int): Width of a hidden layer between the encoder and the scores, 0 for none.
    dropout (float): Share of the features that training leaves out.
    joint (Optional[dict]): Settings of `Joint`.
    of (Callable): Makes the encoder's node; by default one that gives emissions. Called with whether the encoder is
        trained.
    RETURNS (dict[str, Model], Joint): The layers and the settings.
    RAISES (ValueError): CRF020 for settings that do not fit.
    """
    joint = Joint.read(owner, joint)
    rate = checks.number(owner, "dropout", dropout, most=0.99)
    layers = {}
    if emissions is not None or tok2vec is None:
        must = "sparse emissions, such as spacy_crf.SparseEmissions.v1; or nothing, with an encoder as tok2vec"
        given: Any = emissions
        is_sparse = gives(given) is Emissions and isinstance(given.attrs["node"], SparseNode)
        # Others, such as those of kernels, stand alone in a chain
        is_fixed = gives(given) is Emissions and given.attrs["node"].traits.is_linear and tok2vec is None and of is None
        checks.expect(is_sparse or is_fixed, owner, "emissions", emissions, must)
        layers["emissions"] = given
    if tok2vec is not None:
        from .neural import EncoderNode, encoder_emissions  # features alone need no encoder

        layers["encoder"] = encoder_emissions(owner, tok2vec, hidden_width, (of or EncoderNode)(joint.learns))
    both = len(layers) == 2
    if both:
        layers["emissions"].attrs.update(dropout=rate, lr_scale=joint.sparse_rate)
    convex = joint.learns or not (hidden_width or rate)
    checks.expect(convex, owner, "joint.mode", joint.mode, "'adam' where there is a hidden_width or dropout")
    pools = both or joint.mode != "pool"
    checks.expect(pools, owner, "joint.mode", joint.mode, "'adam' unless there are both emissions and tok2vec")
    checks.expect(both or not rate, owner, "dropout", dropout, "0 unless there are both emissions and tok2vec")
    alone = tok2vec is not None or not hidden_width
    checks.expect(alone, owner, "hidden_width", hidden_width, "0 without tok2vec: it is that of a layer on the encoder")
    return layers, joint


def put_together(
    name: str, make_node: Callable[[], StructureNode], layers: dict[str, Model], joint: Joint, **attrs: Any
) -> StructureModel:
    """A model of the sum of some layers, or a pool of a model of sparse features and a model of an encoder.

    name (str): Name of the model.
    make_node (Callable): Makes the node of each model.
    layers (dict[str, Model]): The layers by name.
    joint (Joint): How they learn together.
    attrs: Attributes of the model.
    """
    if joint.mode != "pool":
        rate = {"lr_scale": joint.chain_rate} if "encoder" in layers else {}
        return build(name, make_node(), layers, **attrs, **rate)
    from .pool import make_pool  # few models are pools

    encoder = {"encoder": layers["encoder"]}
    sparse = {part: layer for part, layer in layers.items() if part != "encoder"}
    members = [
        build(name, make_node(), sparse, lr_scale=joint.sparse_rate, **attrs),
        build(name, make_node(), encoder, lr_scale=joint.chain_rate, **attrs),
    ]
    return make_pool(make_node, members, held_out=joint.held_out, lr_scale=joint.chain_rate)
