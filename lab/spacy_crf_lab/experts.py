"""Experts of an opinion pool: where they have their scores, which templates they read, and what they are worth."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from spacy_crf.arrays import Tokens
from spacy_crf.features.templates import Template
from spacy_crf.inference.chain_set import ChainSet, split
from spacy_crf.inference.structure import Structure
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.structure import SharedScores
from spacy_crf.schemes import TransitionMask
from spacy_crf.types import Bools, ChainScores, Clamp, Floats, Ints, SetClamp

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
        # An expert distinguishes the states of its label, and sees one state in all others
        label_of = np.array(labels, dtype=object)
        outside = labels.index(OUTSIDE) if OUTSIDE in labels else 0
        known = [label for label in dict.fromkeys(labels) if label != OUTSIDE] or [OUTSIDE]
        columns = np.zeros((len(known), len(labels)), dtype=np.int64)
        expert_of: list[int] = []
        state_of: list[int] = []
        for expert, label in enumerate(known):
            own = np.flatnonzero(label_of == label) if label != OUTSIDE else np.zeros(0, dtype=np.int64)
            columns[expert] = len(state_of)
            # Column 0 of an expert stands for what is not its own
            columns[expert, own] = len(state_of) + 1 + np.arange(len(own))
            state_of += [outside, *own.tolist()]
            expert_of += [expert] * (1 + len(own))
        return cls(columns, np.array(expert_of), np.array(state_of))

    @property
    def size(self) -> int:
        """Number of columns, C."""
        return len(self.expert_of)

    @property
    def states_of(self) -> tuple[Ints, ...]:
        """The columns of each expert, in rising order."""
        return tuple(np.flatnonzero(self.expert_of == expert) for expert in range(len(self.columns)))

    @property
    def stands_for(self) -> Floats:
        """Which columns stand for which states, 1 or 0: float64[C, S]."""
        return self.mix(np.ones(len(self.columns)))

    def clamp(self, allowed: Bools) -> SetClamp:
        """The columns of each expert that annotation allows (bool[T, S])."""
        # A column is allowed if it stands for any allowed state
        of_columns = allowed @ self.stands_for.T > 0.0
        return SetClamp(tuple(of_columns[:, own] for own in self.states_of), self.states_of)

    def mask(self, allowed: TransitionMask) -> SharedScores:
        """Masks of the parameters: the steps of each expert that stand for possible steps of states."""
        stands_for = self.stands_for
        # Steps lead from a column to one of the same expert
        of_one = self.expert_of[:, np.newaxis] == self.expert_of
        # A step is possible if it stands for any possible step of states
        steps = of_one & (stands_for @ allowed.transitions @ stands_for.T > 0.0)
        return {
            "transitions": steps,
            "first": stands_for @ allowed.first > 0.0,
            "last": stands_for @ allowed.last > 0.0,
        }

    def apart(self, scores: ChainScores) -> list[ChainScores]:
        """The scores that each expert gives to all S states."""
        return split(scores, [*self.columns])

    def mix(self, shares: Floats) -> Floats:
        """The factor of each column in the scores of each state: float64[C, S]."""
        mix = np.zeros((self.size, self.columns.shape[1]))
        for share, own in zip(shares, self.columns):
            mix[own, np.arange(len(own))] = share
        return mix

    def pooled(self, shared: SharedScores, shares: Floats) -> SharedScores:
        """Weighted sums of the shared scores of the experts, for states."""
        mix = self.mix(shares)
        # pool(i, j) = sum_k share_k · transitions_k[column of i, column of j]
        parts = [share * shared["transitions"][np.ix_(own, own)] for share, own in zip(shares, self.columns)]
        return {"transitions": np.sum(parts, axis=0), "first": shared["first"] @ mix, "last": shared["last"] @ mix}


class HeldOut(NamedTuple):
    """The sequences of a batch that tell the weights of the experts."""

    tokens: Tokens
    starts: Ints  # [B + 1]
    clamp: Optional[Clamp]
    weights: Floats  # [B]
    structure: Structure


class SetOfExperts(ChainSet):
    """The structure of a batch in training, where each expert is a chain of its own.

    held_out (HeldOut): The sequences that tell the weights of the experts.
    weights (float64[B]): Of all sequences, with those that are held out.
    """

    def __init__(self, structure: Structure, experts: Experts, held_out: HeldOut, weights: Floats):
        columns = experts.states_of
        super().__init__([structure] * len(columns), columns, [experts.state_of[own] for own in columns])
        self.held_out = held_out
        self.weights = weights


def shares_of(model: Model) -> Floats:
    """The weights of the experts of a pool: float64[k]."""
    shares: Any = model.get_param("shares")
    return shares.astype(np.float64)


class SharesObjective:
    """Negative log probability of texts, by the weights of the experts: convex, and smooth.

    texts (Iterable[tuple[ChainScores, HeldOut]]): The scores of the experts for these texts.
    """

    signature = b"shares"

    def __init__(self, model: Model, texts: Iterable[tuple[ChainScores, HeldOut]]):
        self._model = model
        self._texts = list(texts)

    def weights(self) -> Floats:
        """The weights of the experts: float64[k]."""
        return shares_of(self._model)

    def assign(self, weights: Floats) -> None:
        """Write the weights of the experts (float64[k]) to the model."""
        shares: Any = weights.astype(np.float32)
        self._model.set_param("shares", shares)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Loss of the texts at weights of the experts (float64[k]), and its gradient (float64[k])."""
        node = self._model.attrs["node"]
        loss = LogLikelihood()
        value = 0.0
        gradient = np.zeros(len(weights))
        for scores, held_out in self._texts:
            pooled = node.pooled(self._model, scores, weights)
            losses, d_pooled, _ = loss(held_out.structure, pooled, held_out.clamp, weights=held_out.weights)
            value += float(losses.sum())
            # d/dshare_k of sum_k share_k · scores_k is the product with the scores of expert k
            gradient += [node.dot(d_pooled, own) for own in node.experts.apart(scores)]
        return value, gradient


def by_position(templates: Sequence[Template]) -> Bools:
    """Which of the experts "past", "present", "future" and "whole" read each template (bool[M, 4]). A template that reads tokens
    on both sides belongs to both, one that reads the token alone to "present"; "whole" reads all."""
    reads = []
    for template in templates:
        offsets = [part.offset for part in template.parts]
        past = min(offsets) < 0
        future = max(offsets) > 0
        reads.append((past, not past and not future, future, True))
    return np.array(reads, dtype=bool).reshape(-1, 4)


def at_random(templates: Sequence[Template], *, n: int, share: float, seed: int) -> Bools:
    """Which of n experts read each template (bool[M, n]): the first one reads all, the others a random share each."""
    random = np.random.default_rng(seed)
    reads = np.ones((len(templates), n), dtype=bool)
    for expert in range(1, n):
        # At least one template is left
        reads[random.permutation(len(templates))[max(1, round(share * len(templates))) :], expert] = False
    return reads
