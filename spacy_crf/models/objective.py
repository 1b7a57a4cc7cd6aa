"""The training objective of a sparse linear chain over a fixed corpus, for optimizers that evaluate it many times."""

import zlib
from collections.abc import Hashable
from typing import NamedTuple, Optional

import numpy as np
from thinc.api import Model

from ..inference.linear_chain import LinearChain
from ..inference.threads import default_threads
from ..losses.clamped import ClampedLoss
from ..types import Clamp, Floats
from .emissions import Prepared, SparseFeatures, score_prepared
from .linear_chain import chain_scores
from .sparse_rows import TransposedFeatures

# Tokens whose scores are in memory at once; fewer where transitions depend on the position
_BLOCK = 1 << 17


class _Block(NamedTuple):
    prepared: Prepared
    clamp: Clamp  # [T, S]
    weights: Optional[Floats]  # [B] of the sequences
    states: TransposedFeatures
    transitions: Optional[TransposedFeatures]


class LinearChainObjective:
    """Loss of a corpus as a function of all weights as one vector: emissions, transition templates, transitions, firsts,
    lasts; weights that were not seen in training are not part of it.

    model (Model): A LinearChain on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus: Looked-up features, the clamp bool[T, S] and the weights float64[B] or None of each batch of Docs.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: list[tuple[Prepared, Clamp, Optional[Floats]]]):
        self._model = model
        self._loss = loss
        self._structure = LinearChain(threads=default_threads())
        self._emissions = model.get_ref("emissions")
        self._features: SparseFeatures = self._emissions.attrs["features"]
        features = self._features
        self._observed = model.attrs["observed"].astype(bool)
        self._blocks = [
            _Block(
                prepared,
                clamp,
                weights,
                TransposedFeatures(prepared.states, features.states),
                TransposedFeatures(prepared.transitions, features.transitions) if prepared.transitions else None,
            )
            for prepared, clamp, weights in corpus
        ]
        self._bounds = np.cumsum([0, features.states.n_weights, features.transitions.n_weights])
        self.signature = self._sign()
        self.n_impossible = 0

    @property
    def model_features(self) -> SparseFeatures:
        """The features that the objective was made for."""
        return self._features

    def _sign(self) -> Hashable:
        """Says what function this is: the data, the layout and the loss."""
        check = zlib.crc32(repr(self._loss).encode("utf8"))
        for block in self._blocks:
            arrays = [block.prepared.states.rows, block.prepared.starts, block.clamp, block.weights]
            for array in arrays:
                if array is not None:
                    check = zlib.crc32(np.ascontiguousarray(array), check)
        return (int(self._bounds[-1]), int(self._observed.sum()), check)

    def weights(self) -> Floats:
        chain = np.vstack([self._model.get_param(name) for name in ("transitions", "first", "last")])
        parts = [self._emissions.get_param("states"), self._emissions.get_param("transitions"), chain[self._observed]]
        return np.concatenate(parts).astype(np.float64)

    def assign(self, weights: Floats) -> None:
        states, transitions, chain = np.split(weights.astype(np.float32), self._bounds[1:])
        self._emissions.set_param("states", states.copy())
        self._emissions.set_param("transitions", transitions.copy())
        dense = np.zeros(self._observed.shape, dtype=np.float32)
        dense[self._observed] = chain
        for name, value in zip(("transitions", "first", "last"), (dense[:-2], dense[-2], dense[-1])):
            self._model.set_param(name, value.copy())

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        features = self._features
        states, transitions, observed = np.split(weights, self._bounds[1:])
        slots, transition_slots = features.states.slots(states), features.transitions.slots(transitions)
        chain = np.zeros(self._observed.shape)
        chain[self._observed] = observed
        value, gradient, d_chain = 0.0, np.zeros(len(weights)), np.zeros(chain.shape)
        d_states, d_transitions, d_observed = np.split(gradient, self._bounds[1:])  # views
        threads = self._structure.threads
        self.n_impossible = 0
        for block in self._blocks:
            emissions = score_prepared(features, block.prepared, slots, transition_slots, threads=threads)
            scores = chain_scores(self._model, emissions, chain[:-2], chain[-2], chain[-1])
            losses, d_scores, impossible = self._loss(self._structure, scores, block.clamp, weights=block.weights)
            value += losses.sum()
            self.n_impossible += int(impossible.sum())
            block.states.gather(d_scores.emissions, d_states, threads=threads)
            d_pairs = d_scores.transitions
            if block.transitions is not None:
                flat = d_pairs.reshape(len(d_pairs), -1)
                block.transitions.gather(flat, d_transitions, threads=threads)
            d_chain[:-2] += d_pairs.sum(axis=0) if d_pairs.ndim == 3 else d_pairs
            d_chain[-2] += d_scores.first
            d_chain[-1] += d_scores.last
        d_observed[:] = d_chain[self._observed]
        return float(value), gradient


def block_tokens(features: SparseFeatures) -> int:
    """How many tokens to put into one batch of a corpus."""
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_tags**2)
    return _BLOCK
