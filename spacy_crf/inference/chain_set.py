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
    """The structure of a set of chains, with which `evaluate` computes losses. Prediction uses the structures of the single
    chains.

    structures (Sequence[Structure]): The structure of each chain.
    states_of (Sequence[int64[S_c]]): The states of each chain, among the S states of the model.
    loss_states_of (Sequence[int64[S_c]]): The states of each chain, among the states of the loss; None if the loss has the states
        of the model.
    """

    answers = frozenset(["exact"])

    def __init__(
        self,
        structures: Sequence[Structure],
        states_of: Sequence[Ints],
        loss_states_of: Optional[Sequence[Ints]] = None,
    ):
        self.structures = tuple(structures)
        self.states_of = tuple(states_of)
        self._loss_states_of = self.states_of if loss_states_of is None else loss_states_of
        self._latest: tuple[Any, list] = (None, [])  # the latest loss of the set, and the losses of its chains

    def losses(self, loss: Any) -> list[Callable]:
        """The loss of each chain.

        loss (LabelledLoss): The loss of the set.
        """
        latest_loss, losses = self._latest
        if latest_loss is not loss:
            losses = [loss.among(states) for states in self._loss_states_of]
            self._latest = (loss, losses)
        return losses

    @property
    def signature(self) -> bytes:
        """Bytes that are equal for sets that give the same answers."""
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
    """Evaluate a loss and its derivative with respect to the scores. The loss of a set of chains is the sum over its chains.

    loss (Callable): The loss, such as a `losses.clamped.ClampedLoss`.
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
    chain_losses = structure.losses(loss)
    chain_scores = split(scores, structure.states_of)
    for c, states in enumerate(structure.states_of):
        values, d_chain, is_impossible = chain_losses[c](
            structure.structures[c], chain_scores[c], clamp.chains[c], weights=weights, **options
        )
        add_states(d_scores, d_chain, states)
        losses = losses + values
        impossible = impossible | is_impossible
    return losses, d_scores, impossible


def of_states(scores: Scores, states: Ints) -> Scores:
    """The scores of some states, as though there were no others.

    scores (Scores): Potentials of S states.
    states (int64[N]): The states.
    RETURNS (Scores): Potentials of N states.
    """
    [chain_scores] = split(scores, [states])
    return chain_scores


def split(scores: Scores, states_of: Sequence[Ints]) -> list[Scores]:
    """The scores of the states of each chain.

    scores (Scores): Potentials of S states.
    states_of (Sequence[int64[S_c]]): The states of each chain.
    RETURNS (list[Scores]): Potentials of each chain.
    """
    fields: list[dict[str, Floats]] = [{} for _ in states_of]  # of each chain, by name
    all_states = np.concatenate(states_of)
    sizes = np.array([len(states) for states in states_of])
    slices = [_as_slice(states) for states in states_of]
    for name, array in arrays.named(scores).items():
        if arrays.axes(scores, name)[-1] == "next state":
            parts = [np.ascontiguousarray(array[..., states[:, np.newaxis], states]) for states in states_of]
        elif array.ndim == 1:
            parts = [array[states] for states in states_of]
        elif None not in slices:
            parts = [np.ascontiguousarray(array[:, columns]) for columns in slices]
        else:
            # One call copies the columns of all chains, one chain behind the other
            copied = np.empty(len(array) * len(all_states))
            kernels.take(arrays.contiguous(array, np.float64), all_states, sizes, copied)
            flat_parts = np.split(copied, len(array) * np.cumsum(sizes)[:-1])
            parts = [part.reshape(len(array), size) for part, size in zip(flat_parts, sizes.tolist())]
        for chain_fields, part in zip(fields, parts):
            chain_fields[name] = part
    return [scores._replace(**chain_fields) for chain_fields in fields]


def add_states(total: Scores, part: Scores, states: Ints) -> None:
    """Add the derivative with respect to the scores of N states to the derivative with respect to the scores of all states.

    total (Scores): The derivative for all S states, which receives the sums.
    part (Scores): The derivative for the N states.
    states (int64[N]): The N states.
    """
    columns = _as_slice(states)
    for name, array in arrays.named(total).items():
        added = getattr(part, name)
        if arrays.axes(total, name)[-1] == "next state":
            array[..., states[:, np.newaxis], states] += added
        elif array.ndim == 1:
            array[states] += added
        elif columns is not None:
            array[:, columns] += added
        else:
            kernels.add(np.ascontiguousarray(added), states, array)


def _as_slice(states: Ints) -> Optional[slice]:
    """Rising states as a slice, by which numpy copies columns in a third of the time; None if they are not neighbours."""
    if not len(states):
        return slice(0, 0)
    first = int(states[0])
    behind = int(states[-1]) + 1
    return slice(first, behind) if behind - first == len(states) else None
