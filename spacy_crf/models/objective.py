"""The training objective of a sparse linear chain over a fixed corpus, for optimizers that evaluate it many times."""

import zlib
from collections.abc import Hashable, Iterable
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.kinds import CorpusTokens, KindBuilder
from ..inference.linear_chain import LinearChain
from ..inference.threads import default_threads
from ..losses.clamped import ClampedLoss
from ..types import Clamp, Floats, TokenFeatures
from .emissions import AnnotatedDocs, Emissions, SparseFeatures
from .linear_chain import chain_scores
from .sparse_rows import KindRows, TransposedFeatures

# Tokens whose scores are in memory at once; fewer where transitions depend on the position
_BLOCK = 1 << 15


class _Block(NamedTuple):
    tokens: CorpusTokens
    items: Optional[TransposedFeatures]  # those of the tokens, by feature
    pairs: Optional[TokenFeatures]  # of transition templates
    pairs_by_feature: Optional[TransposedFeatures]
    clamp: Clamp  # [T, S]
    weights: Optional[Floats]  # [B] of the sequences


class ChainWeights:
    """All weights of a sparse linear chain as one vector: emissions, transition templates, transitions, firsts, lasts;
    weights that were not seen in training are not part of it.

    model (Model): A LinearChain on SparseEmissions.
    """

    def __init__(self, model: Model):
        self._model = model
        self._emissions = model.get_ref("emissions")
        self._features: SparseFeatures = self._emissions.attrs["features"]
        self._observed = model.attrs["observed"].astype(bool)
        self._bounds = np.cumsum([0, self._features.states.n_weights, self._features.transitions.n_weights])

    @property
    def model_features(self) -> SparseFeatures:
        """The features that the objective was made for."""
        return self._features

    @property
    def layout(self) -> tuple[int, ...]:
        """Equal for vectors that mean the same weights."""
        features = self._features
        check = zlib.crc32(np.ascontiguousarray(self._observed))
        for rows in (features.states, features.transitions):
            for array in (rows.index.keys, rows.pair_starts, rows.pair_columns):
                check = zlib.crc32(np.ascontiguousarray(array), check)
        return (int(self._bounds[-1]), int(self._observed.sum()), check)

    def weights(self) -> Floats:
        chain = np.vstack([self._model.get_param(name) for name in ("transitions", "first", "last")])
        parts = [self._emissions.get_param("states"), self._emissions.get_param("transitions"), chain[self._observed]]
        return np.concatenate(parts).astype(np.float64)

    def parameters(self, weights: Floats) -> dict[tuple[int, str], NDArray[np.float32]]:
        """The weights as thinc knows them: by the id of their model and their name."""
        states, transitions, chain = np.split(weights.astype(np.float32), self._bounds[1:])
        dense = np.zeros(self._observed.shape, dtype=np.float32)
        dense[self._observed] = chain
        return {
            (self._emissions.id, "states"): states.copy(),
            (self._emissions.id, "transitions"): transitions.copy(),
            (self._model.id, "transitions"): dense[:-2].copy(),
            (self._model.id, "first"): dense[-2].copy(),
            (self._model.id, "last"): dense[-1].copy(),
        }

    def assign(self, weights: Floats) -> None:
        for (model_id, name), value in self.parameters(weights).items():
            model = self._model if model_id == self._model.id else self._emissions
            model.set_param(name, value)


class LinearChainObjective(ChainWeights):
    """Loss of a corpus as a function of its weights.

    model (Model): A LinearChain on SparseEmissions.
    loss (ClampedLoss): What is minimised.
    corpus (Iterable[AnnotatedDocs]): Its Docs in batches, read once.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model)
        self._loss = loss
        self._structure = LinearChain(threads=default_threads())
        self._blocks = self._read(corpus)
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
            items = pairs = pairs_by_feature = None
            if tokens.items is not None:
                items = TransposedFeatures(tokens.items, features.states)
            if features.feature_set.transitions:
                pairs = transitions.rows(columns, features.transitions.index)
                pairs_by_feature = TransposedFeatures(pairs, features.transitions)
            blocks.append(_Block(tokens, items, pairs, pairs_by_feature, batch.allowed, batch.weights))
        self._kinds = KindRows(builder.finish(), features.states, features.reader.reach)
        return blocks

    def _sign(self) -> Hashable:
        """Says what function this is: the data, the layout and the loss."""
        check = zlib.crc32(repr(self._loss).encode("utf8"))
        for block in self._blocks:
            arrays = [*block.tokens.kinds, block.tokens.rest, block.clamp, block.weights]
            for array in arrays:
                if array is not None:
                    check = zlib.crc32(np.ascontiguousarray(array), check)
        return (int(self._bounds[-1]), int(self._observed.sum()), check)

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
        d_slots = features.states.zero_slots()
        self.n_impossible = 0
        for block in self._blocks:
            emissions = np.zeros((len(block.clamp), features.n_tags))
            self._kinds.add_scores(block.tokens.kinds, table, emissions, threads=threads)
            features.states.add_template_scores(block.tokens.rest, slots, emissions, threads=threads)
            if block.tokens.items is not None:
                features.states.add_scores(block.tokens.items, slots, emissions, threads=threads)
            pairs = self._score_pairs(block, transition_slots)
            scored = Emissions(emissions, pairs, block.tokens.kinds.starts)
            scores = chain_scores(self._model, scored, chain[:-2], chain[-2], chain[-1])
            losses, d_scores, impossible = self._loss(self._structure, scores, block.clamp, weights=block.weights)
            value += losses.sum()
            self.n_impossible += int(impossible.sum())
            d_emissions, d_pairs = d_scores.emissions, d_scores.transitions
            self._kinds.scatter(block.tokens.kinds, d_emissions, d_table, threads=threads)
            features.states.scatter_templates(block.tokens.rest, d_emissions, d_slots, threads=threads)
            if block.items is not None:
                block.items.gather(d_emissions, d_states, threads=threads)
            if block.pairs_by_feature is not None:
                block.pairs_by_feature.gather(d_pairs.reshape(len(d_pairs), -1), d_transitions, threads=threads)
            d_chain[:-2] += d_pairs.sum(axis=0) if d_pairs.ndim == 3 else d_pairs
            d_chain[-2] += d_scores.first
            d_chain[-1] += d_scores.last
        self._kinds.scatter_slots(d_table, d_slots, threads=threads)
        d_states += features.states.weights_of(d_slots)
        d_observed[:] = d_chain[self._observed]
        return float(value), gradient

    def _score_pairs(self, block: _Block, slots: Floats) -> Optional[Floats]:
        """Scores of the transition templates: float64[T, S, S]."""
        if block.pairs is None:
            return None
        n_tokens, n_tags = len(block.clamp), self._features.n_tags
        pairs = np.zeros((n_tokens, n_tags * n_tags))
        self._features.transitions.add_scores(block.pairs, slots, pairs, threads=self._structure.threads)
        return pairs.reshape(n_tokens, n_tags, n_tags)


def block_tokens(features: SparseFeatures) -> int:
    """How many tokens to put into one batch of a corpus."""
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_tags**2)
    return _BLOCK
