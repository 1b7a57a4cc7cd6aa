"""The training objective of a sparse linear chain over a fixed corpus, for optimizers that evaluate it many times."""

import zlib
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Optional

import numpy as np
from thinc.api import Model

from ..features.kinds import KindBuilder
from ..inference.linear_chain import LinearChain
from ..inference.threads import default_threads
from ..losses.clamped import ClampedLoss
from ..types import Clamp, Floats, TokenFeatures
from .emissions import AnnotatedDocs, Emissions, SparseFeatures
from .linear_chain import chain_scores
from .sparse_rows import KindRows, SortedKinds, TransposedFeatures

# Tokens whose scores are in memory at once; fewer where transitions depend on the position
_BLOCK = 1 << 17


class _Block(NamedTuple):
    tokens: SortedKinds
    rest: TokenFeatures
    transposed: TransposedFeatures  # of rest
    transitions: Optional[TokenFeatures]
    transposed_transitions: Optional[TransposedFeatures]
    clamp: Clamp  # [T, S]
    weights: Optional[Floats]  # [B] of the sequences


class LinearChainObjective:
    """Loss of a corpus as a function of all weights as one vector: emissions, transition templates, transitions, firsts,
    lasts; weights that were not seen in training are not part of it.

    model (Model): A LinearChain on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        self._model = model
        self._loss = loss
        self._structure = LinearChain(threads=default_threads())
        self._emissions = model.get_ref("emissions")
        self._features: SparseFeatures = self._emissions.attrs["features"]
        self._observed = model.attrs["observed"].astype(bool)
        self._blocks = self._read(corpus)
        self._bounds = np.cumsum([0, self._features.states.n_weights, self._features.transitions.n_weights])
        self.signature = self._sign()
        self.n_impossible = 0

    def _read(self, corpus: Iterable[AnnotatedDocs]) -> list[_Block]:
        features = self._features
        states, transitions = features.compiled
        builder = KindBuilder(states, features.states.index)
        blocks = []
        for batch in corpus:
            columns = features.reader.read(batch.docs)
            tokens = builder.add(columns)
            pairs = transposed_pairs = None
            if features.feature_set.transitions:
                pairs = transitions.rows(columns, features.transitions.index)
                transposed_pairs = TransposedFeatures(pairs, features.transitions)
            transposed = TransposedFeatures(tokens.rest, features.states)
            sorted_kinds = SortedKinds(tokens.kinds, batch.starts)
            blocks.append(
                _Block(sorted_kinds, tokens.rest, transposed, pairs, transposed_pairs, batch.allowed, batch.weights)
            )
        self._kinds = KindRows(builder.finish(), features.states, features.reader.reach)
        return blocks

    @property
    def model_features(self) -> SparseFeatures:
        """The features that the objective was made for."""
        return self._features

    def _sign(self) -> Hashable:
        """Says what function this is: the data, the layout and the loss."""
        check = zlib.crc32(repr(self._loss).encode("utf8"))
        for block in self._blocks:
            arrays = [block.tokens.kinds, block.tokens.starts, block.rest.rows, block.clamp, block.weights]
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
        table, d_table = self._kinds.score(slots, threads=threads), self._kinds.zeros()
        self.n_impossible = 0
        for block in self._blocks:
            emissions = np.zeros((len(block.clamp), features.n_tags))
            self._kinds.add_scores(block.tokens, table, emissions, threads=threads)
            features.states.add_scores(block.rest, slots, emissions, threads=threads)
            pairs = self._score_pairs(block, transition_slots)
            scored = Emissions(emissions, pairs, block.tokens.starts)
            scores = chain_scores(self._model, scored, chain[:-2], chain[-2], chain[-1])
            losses, d_scores, impossible = self._loss(self._structure, scores, block.clamp, weights=block.weights)
            value += losses.sum()
            self.n_impossible += int(impossible.sum())
            self._kinds.gather(block.tokens, d_scores.emissions, d_table, threads=threads)
            block.transposed.gather(d_scores.emissions, d_states, threads=threads)
            d_pairs = d_scores.transitions
            if block.transposed_transitions is not None:
                flat = d_pairs.reshape(len(d_pairs), -1)
                block.transposed_transitions.gather(flat, d_transitions, threads=threads)
            d_chain[:-2] += d_pairs.sum(axis=0) if d_pairs.ndim == 3 else d_pairs
            d_chain[-2] += d_scores.first
            d_chain[-1] += d_scores.last
        self._kinds.gather_weights(d_table, d_states, threads=threads)
        d_observed[:] = d_chain[self._observed]
        return float(value), gradient

    def _score_pairs(self, block: _Block, slots: Floats) -> Optional[Floats]:
        """Scores of the transition templates: float64[T, S, S]."""
        if block.transitions is None:
            return None
        n_tokens, n_tags = len(block.clamp), self._features.n_tags
        pairs = np.zeros((n_tokens, n_tags * n_tags))
        self._features.transitions.add_scores(block.transitions, slots, pairs, threads=self._structure.threads)
        return pairs.reshape(n_tokens, n_tags, n_tags)


def block_tokens(features: SparseFeatures) -> int:
    """How many tokens to put into one batch of a corpus."""
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_tags**2)
    return _BLOCK
