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
from ..kernels import chain_set as kernels
from ..types import Bools, Floats, Ints


class ChainSet:
    """The structure of a set of chains, for losses; all other questions go to the single chains.

    structures (Sequence): The structure of each chain.
    states_of (Sequence[int64[S_c]]): The states of each chain, among the S states of the model.
    of_loss (Sequence[int64[S_c]]): The same states among those that the loss knows by their labels, where these are others.
    """

    answers = frozenset(["exact"])

    def __init__(self, structures: Sequence[Any], states_of: Sequence[Ints], of_loss: Optional[Sequence[Ints]] = None):
        self.structures = tuple(structures)
        self.states_of = tuple(states_of)
        self._of_loss = self.states_of if of_loss is None else of_loss
        self._losses: tuple[Any, list[Any]] = None, []  # the latest loss, and that of each chain

    def losses(self, loss: Any) -> list[Any]:
        """The loss of each chain."""
        known, of_chains = self._losses
        if known is not loss:
            of_chains = [loss.among(states) for states in self._of_loss]
            self._losses = loss, of_chains
        return of_chains

    @property
    def signature(self) -> bytes:
        """Equal for sets that give the same answers."""
        return b"|".join([structure.signature for structure in self.structures])


def evaluate(
    loss: Callable, structure: Any, scores: Scores, clamp: Any, *, weights: Optional[Floats] = None, **options: Any
) -> tuple[Floats, Scores, Bools]:
    """A loss, and its derivative by the scores. For a set of chains, whose clamp is a `SetClamp`, it is the sum of their losses.

    For arguments and results see `losses.clamped.ClampedLoss`; a sequence is impossible if it is so in one of the chains.
    """
    if not isinstance(structure, ChainSet):
        return loss(structure, scores, clamp, weights=weights, **options)
    d_scores = arrays.zeros(scores)
    losses: Any = 0.0
    impossible: Any = np.False_
    states_of = structure.states_of
    chains = zip(structure.losses(loss), structure.structures, split(scores, states_of), clamp.chains, states_of)
    for of_loss, of_chain, own, allowed, states in chains:
        lost, d_own, lacks = of_loss(of_chain, own, allowed, weights=weights, **options)
        add_states(d_scores, d_own, states)
        losses = losses + lost
        impossible = impossible | lacks
    return losses, d_scores, impossible


def of_states(scores: Scores, states: Ints) -> Scores:
    """The scores of some states (int64[N]), as though there were no others."""
    return split(scores, [states])[0]


def split(scores: Scores, states_of: Sequence[Ints]) -> list[Scores]:
    """The scores of the states of each chain."""
    found: list[dict[str, Floats]] = [{} for _ in states_of]
    every = np.concatenate(states_of)
    sizes = np.array([*map(len, states_of)])
    runs = [*map(_run, states_of)]
    for name, array in arrays.named(scores).items():
        if arrays.axes(scores, name)[-1] == "next state":
            parts = [np.ascontiguousarray(array[..., states[:, np.newaxis], states]) for states in states_of]
        elif array.ndim == 1:
            parts = [array[states] for states in states_of]
        elif None not in runs:
            parts = [np.ascontiguousarray(array[:, run]) for run in runs]
        else:
            room = np.empty(len(array) * len(every))
            kernels.take(arrays.contiguous(array, np.float64), every, sizes, room)
            cuts = np.split(room, len(array) * np.cumsum(sizes)[:-1])
            parts = [cut.reshape(len(array), size) for cut, size in zip(cuts, sizes.tolist())]
        for of_chain, part in zip(found, parts):
            of_chain[name] = part
    return [scores._replace(**of_chain) for of_chain in found]


def add_states(total: Scores, part: Scores, states: Ints) -> None:
    """Add the derivative by the scores of some states (int64[N]) to the derivative by the scores of all."""
    for name, array in arrays.named(total).items():
        of_part = getattr(part, name)
        if arrays.axes(total, name)[-1] == "next state":
            array[..., states[:, np.newaxis], states] += of_part
        elif array.ndim == 1:
            array[states] += of_part
        elif (run := _run(states)) is not None:
            array[:, run] += of_part
        else:
            kernels.add(np.ascontiguousarray(of_part), states, array)


def _run(states: Ints) -> Optional[slice]:
    """The states, which rise, as a slice, whose columns are copied in a third of the time; None if they are not side by side."""
    first, size = (int(states[0]), len(states)) if len(states) else (0, 0)
    return slice(first, first + size) if not size or int(states[-1]) == first + size - 1 else None
