"""The linear chain: emissions plus transitions between neighbouring tags.

The model's output is ``ChainScores``: the potentials of a batch, with -inf where the tag scheme forbids a transition.
"""

from typing import Any, Optional

from spacy.tokens import Doc
from thinc.api import Model
from thinc.types import Floats2d

from .. import checks
from ..arrays import per_position
from ..inference.linear_chain import LinearChain as LinearChainInference
from ..types import ChainScores
from .emissions import Emissions, total
from .joint import put_together, scored_tokens
from .structure import SharedScores, StructureNode


class ChainNode(StructureNode):
    gives = ChainScores
    structure = LinearChainInference()

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> ChainScores:
        """emissions[t, j] = sum of the `outputs` of layers; transitions are `shared`, or sums of shared ones and those of
        tokens.
        """
        first, *others = outputs
        scores, transitions, starts = total(outputs) if others else first
        transitions = shared["transitions"] if transitions is None else transitions + shared["transitions"]
        return ChainScores(scores, transitions, shared["first"], shared["last"], starts)

    def part(self, d_scores: ChainScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """From `d_scores` to derivatives with respect to the `outputs` of layers, all the same, and to the shared scores."""
        of_tokens = d_scores.transitions if per_position(d_scores) else None
        starts: Any = d_scores.starts  # derivatives always have them
        d_output = Emissions(d_scores.emissions, of_tokens, starts)
        return (d_output,) * len(outputs), self.shared_part(d_scores)


def LinearChain(
    emissions: Optional[Model[list[Doc], Emissions]] = None,
    tok2vec: Optional[Model[list[Doc], list[Floats2d]]] = None,
    hidden_width: int = 0,
    dropout: float = 0.0,
    possible_transitions: bool = False,
    joint: Optional[dict[str, Any]] = None,
) -> Model[list[Doc], ChainScores]:
    """A first-order linear chain (Lafferty, McCallum & Pereira 2001) whose emissions are the sum of the scores of its parts.

    emissions (Model): Sums of weights of features, from SparseEmissions or HashedEmissions.
    tok2vec (Model): An encoder, or a listener to one before the component.
    hidden_width (int): Width of a hidden layer between the encoder and the scores, 0 for none.
    dropout (float): Beside an encoder, the share of the features that training leaves out, so that the encoder learns too. The
        encoder's own dropout is set in [training].
    possible_transitions (bool): Whether every pair of tags that the scheme allows gets a weight, not only pairs seen in training.
        Other pairs stay possible, with a weight of zero.
    joint (dict): How both parts learn together, see `joint.Joint`.
    """
    owner = "LinearChain"
    layers, both = scored_tokens(owner, emissions, tok2vec, hidden_width, dropout, joint)
    possible = checks.flag(owner, "possible_transitions", possible_transitions)
    return put_together("linear_chain", ChainNode, layers, both, possible_transitions=possible)
