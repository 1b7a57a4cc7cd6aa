"""Emissions of a fixed corpus, scored many times: the part of a training objective that all structures share."""

from collections.abc import Iterable
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..features.kinds import CorpusTokens, KindBuilder
from ..types import Floats, TokenFeatures
from .emissions import AnnotatedDocs, Emissions, SparseFeatures
from .sparse_rows import KindRows, TransposedFeatures

# Tokens whose scores are in memory at once; fewer where transitions depend on the position
_BLOCK = 1 << 17


def block_tokens(features: SparseFeatures) -> int:
    """How many tokens to put into one batch of a corpus."""
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_tags**2)
    return _BLOCK


class _Block(NamedTuple):
    tokens: CorpusTokens
    items: Optional[TransposedFeatures]  # those of the tokens, by feature
    pairs: Optional[TokenFeatures]  # of transition templates
    pairs_by_feature: Optional[TransposedFeatures]


class CorpusEmissions:
    """Weights to emissions and back, block by block.

    features (SparseFeatures): What is known of the features.
    corpus (Iterable[AnnotatedDocs]): The blocks, read once.
    """

    def __init__(self, features: SparseFeatures, corpus: Iterable[AnnotatedDocs]):
        self._features = features
        states, transitions = features.compiled
        builder = KindBuilder(states, features.states.index)
        self._blocks = []
        for batch in corpus:
            columns = features.reader.read(batch.docs)
            tokens = builder.add(columns)
            items = pairs = pairs_by_feature = None
            if tokens.items is not None:
                items = TransposedFeatures(tokens.items, features.states)
            if features.feature_set.transitions:
                pairs = transitions.rows(columns, features.transitions.index)
                pairs_by_feature = TransposedFeatures(pairs, features.transitions)
            self._blocks.append(_Block(tokens, items, pairs, pairs_by_feature))
        self._kinds = KindRows(builder.finish(), features.states, features.reader.reach)

    def __len__(self) -> int:
        return len(self._blocks)

    def fingerprint(self) -> list[NDArray]:
        """The arrays that say what the corpus is."""
        return [array for block in self._blocks for array in (*block.tokens.kinds, block.tokens.rest)]

    def at(self, states: Floats, transitions: Floats, *, threads: int = 1) -> "EmissionsPass":
        """One pass over the corpus, with these weights of tags and of pairs of tags."""
        return EmissionsPass(self, states, transitions, threads)


class EmissionsPass:
    """Scores blocks one by one, collects the derivatives with respect to the scores, and sums up those of the weights."""

    def __init__(self, corpus: CorpusEmissions, states: Floats, transitions: Floats, threads: int):
        self._features, self._blocks, self._kinds = corpus._features, corpus._blocks, corpus._kinds
        self._threads = threads
        self._slots = self._features.states.slots(states)
        self._pair_slots = self._features.transitions.slots(transitions)
        self._table = self._kinds.score(self._slots, threads=threads)
        self._d_table, self._d_slots = self._kinds.zeros(), self._features.states.zero_slots()
        self._d_states, self._d_transitions = np.zeros(len(states)), np.zeros(len(transitions))

    def score(self, number: int) -> Emissions:
        """Emissions of one block."""
        tokens, _, pairs, _ = self._blocks[number]
        features, threads = self._features, self._threads
        scores = np.zeros((len(tokens.kinds.kinds), features.n_tags))
        self._kinds.add_scores(tokens.kinds, self._table, scores, threads=threads)
        features.states.add_template_scores(tokens.rest, self._slots, scores, threads=threads)
        if tokens.items is not None:
            features.states.add_scores(tokens.items, self._slots, scores, threads=threads)
        transitions = None
        if pairs is not None:
            transitions = np.zeros((len(scores), features.n_tags**2))
            features.transitions.add_scores(pairs, self._pair_slots, transitions, threads=threads)
            transitions = transitions.reshape(len(scores), features.n_tags, features.n_tags)
        return Emissions(scores, transitions, tokens.kinds.starts)

    def collect(self, number: int, d_scores: Floats, d_transitions: Floats) -> None:
        """Derivatives with respect to the scores (float64[T, S]) and the transitions (float64[T, S, S] where templates have
        transitions) of one block."""
        tokens, items, _, pairs_by_feature = self._blocks[number]
        threads = self._threads
        self._kinds.scatter(tokens.kinds, d_scores, self._d_table, threads=threads)
        self._features.states.scatter_templates(tokens.rest, d_scores, self._d_slots, threads=threads)
        if items is not None:
            items.gather(d_scores, self._d_states, threads=threads)
        if pairs_by_feature is not None:
            flat = d_transitions.reshape(len(d_transitions), -1)
            pairs_by_feature.gather(flat, self._d_transitions, threads=threads)

    def gradient(self) -> tuple[Floats, Floats]:
        """Derivatives with respect to the weights of tags and of pairs of tags; call it once, at the end."""
        self._kinds.scatter_slots(self._d_table, self._d_slots, threads=self._threads)
        return self._d_states + self._features.states.weights_of(self._d_slots), self._d_transitions
