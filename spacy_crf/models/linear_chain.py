"""The linear chain: emissions plus transitions between neighbouring tags.

The model's output is ``ChainScores``: the potentials of a batch, with -inf where the tag scheme forbids a transition.
"""

from spacy.tokens import Doc
from thinc.api import Model

from .. import checks
from ..arrays import per_position
from ..inference.linear_chain import LinearChain as LinearChainInference
from ..types import ChainScores
from .architecture import Architecture, Shared, build
from .emissions import Emissions, check_emissions


class ChainRole(Architecture):
    gives = ChainScores
    structure = LinearChainInference()

    def join(self, outputs: tuple[Emissions], shared: Shared) -> ChainScores:
        [(scores, transitions, starts)] = outputs
        transitions = shared["transitions"] if transitions is None else transitions + shared["transitions"]
        return ChainScores(scores, transitions, shared["first"], shared["last"], starts)

    def part(self, d_scores: ChainScores) -> tuple[Emissions]:
        of_tokens = d_scores.transitions if per_position(d_scores) else None
        return (Emissions(d_scores.emissions, of_tokens, d_scores.starts),)


def LinearChain(
    emissions: Model[list[Doc], Emissions], possible_transitions: bool = False
) -> Model[list[Doc], ChainScores]:
    """A first-order linear chain (Lafferty, McCallum & Pereira 2001).

    emissions (Model): Scores of tags at tokens, from SparseEmissions or Tok2VecEmissions.
    possible_transitions (bool): Give every pair of tags that the scheme allows a weight, not only those seen in training.
        The others stay possible, with a weight of zero.
    """
    check_emissions("LinearChain", emissions)
    possible = checks.flag("LinearChain", "possible_transitions", possible_transitions)
    return build("linear_chain", ChainRole(), {"emissions": emissions}, possible_transitions=possible)
