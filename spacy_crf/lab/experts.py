"""Experts of an opinion pool: where they have their scores, which templates they read, and what they are worth."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..arrays import Tokens, contiguous
from ..features.templates import Template
from ..inference.chain_set import ChainSet
from ..inference.structure import Structure
from ..losses.clamped import LogLikelihood
from ..models.architecture import SharedScores
from ..optimizers.batch import BatchRun
from ..optimizers.lbfgs import LBFGS
from ..schemes import TransitionMask
from ..types import Bools, ChainScores, Floats, Ints, SetClamp
from .kernels import opinion_pool as kernels

POSITIONS = ("past", "present", "future", "whole")
OUTSIDE = "O"


class Experts(NamedTuple):
    """In which of C columns each of k experts scores each of S states. Columns of new states come last."""

    columns: NDArray[np.int64]  # [k, S]
    expert_of: Ints  # [C] the expert of a column
    state_of: Ints  # [C] the state that a column scores, the first one if there are several

    @classmethod
    def of_all(cls, n_states: int, n: int) -> "Experts":
        """Experts that know all states."""
        every = np.arange(n_states * n)
        return cls(np.ascontiguousarray(every.reshape(n_states, n).T), every % n, every // n)

    @classmethod
    def of_labels(cls, labels: Sequence[str]) -> "Experts":
        """An expert for each label, with a column for all states of other labels. labels: Of the states, "O" for none."""
        label_of, outside = np.array(labels, dtype=object), labels.index(OUTSIDE) if OUTSIDE in labels else 0
        known = [label for label in dict.fromkeys(labels) if label != OUTSIDE] or [OUTSIDE]
        columns = np.zeros((len(known), len(labels)), dtype=np.int64)
        expert_of: list[int] = []
        state_of: list[int] = []
        for expert, label in enumerate(known):
            own = np.flatnonzero(label_of == label) if label != OUTSIDE else np.zeros(0, dtype=np.int64)
            columns[expert] = len(state_of)
            columns[expert, own] = len(state_of) + 1 + np.arange(len(own))
            state_of += [outside, *own.tolist()]
            expert_of += [expert] * (1 + len(own))
        return cls(columns, np.array(expert_of), np.array(state_of))

    @property
    def size(self) -> int:
        return len(self.expert_of)

    @property
    def states_of(self) -> tuple[Ints, ...]:
        """The columns of each expert, in rising order."""
        return tuple(np.flatnonzero(self.expert_of == expert) for expert in range(len(self.columns)))

    def clamp(self, allowed: Bools) -> SetClamp:
        """The columns of each expert that annotation allows (bool[T, S])."""
        of_columns = np.zeros((len(allowed), self.size), dtype=bool)
        for own in self.columns:
            for state, column in enumerate(own.tolist()):
                of_columns[:, column] |= allowed[:, state]
        return SetClamp(tuple(of_columns[:, own] for own in self.states_of), self.states_of)

    def mask(self, allowed: TransitionMask) -> SharedScores:
        """Masks of the parameters: the steps of each expert that stand for possible steps of states."""
        transitions = np.zeros((self.size, self.size), dtype=bool)
        first, last = np.zeros((2, self.size), dtype=bool)
        before, after = np.nonzero(allowed.transitions)
        for own in self.columns:
            transitions[own[before], own[after]] = True
            first[own[allowed.first]] = True
            last[own[allowed.last]] = True
        return {"transitions": transitions, "first": first, "last": last}

    def pooled(self, array: Floats, shares: Floats) -> Floats:
        """Weighted sum of the scores of the experts: float64[..., S] of float64[..., C], or float64[S, S] of float64[C, C]."""
        if array.shape == (self.size, self.size):
            parts = [share * array[np.ix_(own, own)] for share, own in zip(shares, self.columns)]
            return np.sum(parts, axis=0)
        rows = contiguous(np.atleast_2d(array), np.float64)
        out = np.empty((len(rows), self.columns.shape[1]))
        kernels.pool(rows, self.columns, shares, out)
        return out[0] if array.ndim == 1 else out

    def mix(self, shares: Floats) -> Floats:
        """The factor of each column in the scores of each state: float64[C, S]."""
        mix = np.zeros((self.size, self.columns.shape[1]))
        for own, share in zip(self.columns, shares):
            mix[own, np.arange(len(own))] = share
        return mix

    def spread(self, d_pooled: Floats, shares: Floats) -> Floats:
        """Derivatives by the scores of the experts, from those by the scores of tokens of the pool: float64[T, C]."""
        out = np.zeros((len(d_pooled), self.size))
        kernels.spread(contiguous(d_pooled, np.float64), self.columns, shares, out)
        return out

    def uses(self, d_pooled: ChainScores, scores: ChainScores) -> Floats:
        """Derivatives by the weights of the experts, from those by the scores of the pool: float64[k]."""
        found = []
        for own in self.columns:
            steps = known(scores.transitions)[np.ix_(own, own)]
            ends = d_pooled.first @ known(scores.first)[own] + d_pooled.last @ known(scores.last)[own]
            found.append((d_pooled.transitions * steps).sum() + ends)
        of_columns = self.spread(d_pooled.emissions, np.ones(len(found))) * scores.emissions
        of_emissions: Any = np.bincount(self.expert_of, of_columns.sum(axis=0), minlength=len(found))
        return np.array(found) + of_emissions


def known(array: Floats) -> Floats:
    """Scores with 0 for those that are impossible."""
    return np.where(array > -np.inf, array, 0.0)


class HeldOut(NamedTuple):
    """The sequences of a batch that tell the weights of the experts."""

    tokens: Tokens
    starts: Ints  # [B + 1]
    clamp: Any
    weights: Floats  # [B]
    structure: Structure


class SetOfExperts(ChainSet):
    """The structure of a batch in training, where each expert is a chain of its own."""

    def __init__(self, structure: Structure, experts: Experts, held_out: HeldOut, weights: Floats):
        super().__init__([structure] * len(experts.columns), experts.states_of)
        self._experts, self.held_out = experts, held_out
        self.weights = weights  # [B] of all sequences, with those that are held out

    def losses(self, loss: Any) -> list[Any]:
        if not loss.states:
            return super().losses(loss)
        if self._losses[0] is not loss:
            labels, found = np.array([*loss.states, OUTSIDE], dtype=object), []
            for columns in self.states_of:
                states = self._experts.state_of[columns]
                if len(states) < len(loss.states):  # the first one stands for those of all other labels
                    states = np.append(-1, states[1:])
                found.append(loss.bind(labels[states]).among(np.arange(len(states))))
            self._losses = loss, found
        return self._losses[1]


def shares_of(model: Model) -> Floats:
    """The weights of the experts of a pool: float64[k]."""
    shares: Any = model.get_param("shares")
    return shares.astype(np.float64)


class SharesObjective:
    """Negative log probability of texts, by the weights of the experts: convex, and smooth.

    parts (Iterable[tuple[ChainScores, HeldOut]]): The scores of the experts for these texts.
    """

    signature = b"shares"

    def __init__(self, model: Model, parts: Iterable[tuple[ChainScores, HeldOut]]):
        self._model, self._parts = model, list(parts)

    def weights(self) -> Floats:
        return shares_of(self._model)

    def assign(self, weights: Floats) -> None:
        shares: Any = weights.astype(np.float32)
        self._model.set_param("shares", shares)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        role, loss = self._model.attrs["role"], LogLikelihood()
        value, gradient = 0.0, np.zeros(len(weights))
        for scores, held_out in self._parts:
            pooled = role.pooled(self._model, scores, weights)
            losses, d_pooled, _ = loss(held_out.structure, pooled, held_out.clamp, weights=held_out.weights)
            value += float(losses.sum())
            gradient += role.experts.uses(d_pooled, scores)
        return value, gradient


class Quiet(LBFGS):
    """Does not announce why it stops."""

    def _stop(self, run: BatchRun, key: str, reason: str) -> None:
        run.stop_reason = reason


def by_position(templates: Sequence[Template]) -> Bools:
    """Which of the experts "past", "present", "future" and "whole" read each template (bool[M, 4]). A template that reads tokens
    on both sides belongs to both, one that reads the token alone to "present"; "whole" reads all."""
    offsets = [[part.offset for part in template.parts] for template in templates]
    past, future = (np.array([sign * max(sign * n for n in of) for of in offsets]) for sign in (-1, 1))
    return np.stack([past < 0, (past >= 0) & (future <= 0), future > 0, np.ones(len(offsets), dtype=bool)], axis=1)


def at_random(templates: Sequence[Template], *, n: int, share: float, seed: int) -> Bools:
    """Which of n experts read each template (bool[M, n]): the first one reads all, the others a random share each."""
    random, reads = np.random.default_rng(seed), np.ones((len(templates), n), dtype=bool)
    for expert in range(1, n):
        reads[random.permutation(len(templates))[max(1, round(share * len(templates))) :], expert] = False
    return reads
