"""A set of chains over the same tokens: one model has the scores of all of them, side by side, and each chain is a labelling of
its own. A state may belong to several chains, as the state outside of all spans does.

Chains are independent, given the scores, so the log partition of the set is a sum:

    log Z = sum_c log Z_c

and so are the losses that are differences of log partitions or of best scores.
"""

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import numpy as np

from .. import arrays
from ..arrays import Scores
from ..kernels import chain_set as kernels
from ..types import AnyClamp, Bools, Floats, Ints, SetClamp
from .structure import Structure


class ChainSet:
    """The structure of a set of chains, for losses; all other questions go to the single chains.

    structures (Sequence[Structure]): The structure of each chain.
    states_of (Sequence[int64[S_c]]): The states of each chain, among the S states of the model.
    of_loss (Sequence[int64[S_c]]): The numbers of these states among the states of the loss, if the loss numbers its states
        otherwise than the model.
    """

    answers = frozenset(["exact"])

    def __init__(
        self, structures: Sequence[Structure], states_of: Sequence[Ints], of_loss: Optional[Sequence[Ints]] = None
    ):
        self.structures = tuple(structures)
        self.states_of = tuple(states_of)
        self._of_loss = self.states_of if of_loss is None else of_loss
        self._latest: Optional[tuple[Any, list]] = None  # the latest loss of the set, and the losses of its chains

    def losses(self, loss: Any) -> list[Callable]:
        """The loss of each chain.

        loss (LabelledLoss): The loss of the set.
        """
        if self._latest is None or self._latest[0] is not loss:
            self._latest = loss, [loss.among(states) for states in self._of_loss]
        return self._latest[1]

    @property
    def signature(self) -> bytes:
        """Equal for sets that give the same answers."""
        return b"|".join([structure.signature for structure in self.structures])


def evaluate(
    loss: Callable,
    structure: Union[ChainSet, Structure],
    scores: Scores,
    clamp: AnyClamp,
    *,
    weights: Optional[Floats] = None,
    **options: object,
) -> tuple[Floats, Scores, Bools]:
    """A loss and its derivative with respect to the scores. The loss of a set of chains is the sum of the losses of its chains.

    loss (Callable): The loss, see `losses.clamped.ClampedLoss`.
    structure (ChainSet or Structure): The set, or a single structure.
    scores (Scores): Potentials of B sequences, for all states of a set.
    clamp (AnyClamp): What the annotation allows; for a set a `SetClamp`.
    weights (float64[B]): Factor of each sequence, 1 by default.
    options: Further arguments of the loss.
    RETURNS (float64[B], Scores, bool[B]): Losses, derivatives of their sum, and which sequences are impossible in any chain.
    """
    if not (isinstance(structure, ChainSet) and isinstance(clamp, SetClamp)):
        return loss(structure, scores, clamp, weights=weights, **options)
    d_scores = arrays.zeros(scores)
    losses = np.zeros(1)  # [B] after the first chain
    impossible = np.zeros(1, dtype=bool)
    losses_of = structure.losses(loss)
    scores_of = split(scores, structure.states_of)
    for c, states in enumerate(structure.states_of):
        of_chain = losses_of[c](structure.structures[c], scores_of[c], clamp.chains[c], weights=weights, **options)
        chain_losses, d_chain, impossible_here = of_chain
        add_states(d_scores, d_chain, states)
        losses = losses + chain_losses
        impossible = impossible | impossible_here
    return losses, d_scores, impossible


def of_states(scores: Scores, states: Ints) -> Scores:
    """The scores of some states, as though there were no others.

    scores (Scores): Potentials of S states.
    states (int64[N]): The states.
    RETURNS (Scores): Potentials of N states.
    """
    return split(scores, [states])[0]


def split(scores: Scores, states_of: Sequence[Ints]) -> list[Scores]:
    """The scores of the states of each chain.

    scores (Scores): Potentials of S states.
    states_of (Sequence[int64[S_c]]): The states of each chain.
    RETURNS (list[Scores]): Potentials of each chain.
    """
    found: list[dict[str, Floats]] = [{} for _ in states_of]
    every = np.concatenate(states_of)
    sizes = np.array([len(states) for states in states_of])
    runs = [_run(states) for states in states_of]
    for name, array in arrays.named(scores).items():
        if arrays.axes(scores, name)[-1] == "next state":
            parts = [np.ascontiguousarray(array[..., states[:, np.newaxis], states]) for states in states_of]
        elif array.ndim == 1:
            parts = [array[states] for states in states_of]
        elif None not in runs:
            parts = [np.ascontiguousarray(array[:, run]) for run in runs]
        else:
            # One call copies the columns of all chains
            room = np.empty(len(array) * len(every))
            kernels.take(arrays.contiguous(array, np.float64), every, sizes, room)
            cuts = np.split(room, len(array) * np.cumsum(sizes)[:-1])
            parts = [cut.reshape(len(array), size) for cut, size in zip(cuts, sizes.tolist())]
        for of_chain, part in zip(found, parts):
            of_chain[name] = part
    return [scores._replace(**of_chain) for of_chain in found]


def add_states(total: Scores, part: Scores, states: Ints) -> None:
    """Add the derivative with respect to the scores of some states to the derivative with respect to all scores.

    total (Scores): The derivative for S states, which receives the sums.
    part (Scores): The derivative for N of them.
    states (int64[N]): These states.
    """
    run = _run(states)
    for name, array in arrays.named(total).items():
        of_part = getattr(part, name)
        if arrays.axes(total, name)[-1] == "next state":
            array[..., states[:, np.newaxis], states] += of_part
        elif array.ndim == 1:
            array[states] += of_part
        elif run is not None:
            array[:, run] += of_part
        else:
            kernels.add(np.ascontiguousarray(of_part), states, array)


def _run(states: Ints) -> Optional[slice]:
    """The states, which rise, as a slice, whose columns are copied in a third of the time; None if they are not side by side."""
    if not len(states):
        return slice(0, 0)
    first = int(states[0])
    behind = int(states[-1]) + 1
    return slice(first, behind) if behind - first == len(states) else None
