"""Explanations of chains whose scores are weighted sums of others: those of opinion pools and of output codes."""

from collections.abc import Callable, Sequence
from typing import Any, Optional

from thinc.api import Model

from spacy_crf.models.emissions import Emissions
from spacy_crf.models.linear_chain import ChainNode
from spacy_crf.models.structure import SharedScores
from spacy_crf.types import ChainScores, Floats, Ints


class MixedChain(ChainNode):
    """Node of the chain of states, for explanations of a model whose layers have other columns:

        emissions = sum over the layers of  output · mix

    mixes (Sequence[float64[C, S]]): The mix of each layer.
    names (Callable): Gives the number of the name of each column, see `StructureNode.named_states`.
    last (Callable): Makes the output of the last layer from that of the first one, on which it depends; None for no such layer.
    """

    def __init__(
        self,
        mixes: Sequence[Floats],
        names: Callable[[Ints], Ints],
        last: Optional[Callable[[Emissions], Emissions]] = None,
    ):
        super().__init__()
        self._mixes = mixes
        self._names = names
        self._last = last

    def join(self, outputs: tuple[Emissions, ...], shared: SharedScores) -> ChainScores:
        """The chain of states: emissions are sums of the outputs times their mixes."""
        outputs = outputs if self._last is None else (outputs[0], self._last(outputs[0]))
        emissions: Any = sum(output.scores @ mix for output, mix in zip(outputs, self._mixes))
        return super().join((Emissions(emissions, None, outputs[0].starts),), shared)

    def part(self, d_scores: ChainScores, outputs: tuple[Emissions, ...]) -> tuple[tuple, SharedScores]:
        """Derivatives by the outputs of the layers, and by the shared scores."""
        starts = outputs[0].starts
        d_outputs = tuple([Emissions(d_scores.emissions @ mix.T, None, starts) for mix in self._mixes])
        return d_outputs, self.shared_part(d_scores)

    def named_states(self, model: Model, parameter: Optional[str], places: tuple[Ints, ...]) -> tuple[Ints, ...]:
        """Numbers of the names of columns, or states of shared scores."""
        return places if parameter else tuple(self._names(place) for place in places)
