"""A set of chains over the same tokens: one model has the scores of all of them, side by side, and each chain is a labelling of
its own. A state may belong to several chains, as the state outside of all spans does.

Chains are independent, given the scores, so the log partition of the set is a sum:

    log Z = sum_c log Z_c

and so are the losses that are differences of log partitions or of best scores.
"""

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from .. import arrays
from ..arrays import Scores
from ..types import Bools, Floats, Ints


class ChainSet:
    """The structure of a set of chains, for losses; all other questions go to the single chains.

    structures (Sequence): The structure of each chain.
    states_of (Sequence[int64[S_c]]): The states of each chain, among the S states of the model.
    """

    exact = True

    def __init__(self, structures: Sequence[Any], states_of: Sequence[Ints]):
        self.structures, self.states_of = tuple(structures), tuple(states_of)

    @property
    def signature(self) -> bytes:
        """Equal for sets that give the same answers."""
        return b"|".join([structure.signature for structure in self.structures])


def evaluate(
    loss: Callable, structure: Any, scores: Scores, clamp: Any, *, weights: Optional[Floats] = None, **told: Any
) -> tuple[Floats, Scores, Bools]:
    """A loss, and its derivative by the scores. For a set of chains, whose clamp is a `SetClamp`, it is the sum of their losses.

    For arguments and results see `losses.clamped.ClampedLoss`; a sequence is impossible if it is so in one of the chains.
    """
    if not isinstance(structure, ChainSet):
        return loss(structure, scores, clamp, weights=weights, **told)
    d_scores, losses, impossible = arrays.zeros(scores), 0.0, np.False_
    for of_chain, states, allowed in zip(structure.structures, structure.states_of, clamp.chains):
        own = arrays.of_states(scores, states)
        lost, d_own, lacks = loss.among(states)(of_chain, own, allowed, weights=weights, **told)
        arrays.add_states(d_scores, d_own, states)
        losses, impossible = losses + lost, impossible | lacks
    return losses, d_scores, impossible
