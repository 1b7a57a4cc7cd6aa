"""Emissions of a fixed corpus, scored many times: the part of a training objective that all structures share."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ..features.kinds import KindBuilder
from ..inference.threads import run_chunks
from ..types import Floats, TokenFeatures
from .emissions import Emissions, SparseFeatures
from .sparse_rows import KindRows, Part, parts_for

# Tokens that one thread scores at a time (half as many took 10 to 15 % longer); fewer where transitions depend on the position
_BLOCK = 1 << 13
# Blocks whose scores are in memory together: their derivatives are summed up after all of them
_GROUP = 8
# Windows that occur less often than this times the number of tags have no table of their scores, a row of which is as long as
# all their features together: as fast on CoNLL-2000 (22 tags) and german_ler (39), and with many tags it saves much memory.
_OFTEN = 0.1


def block_tokens(features: SparseFeatures) -> int:
    """How many tokens to put into one batch of a corpus."""
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_tags**2)
    return _BLOCK


class PackedBits(NamedTuple):
    """A boolean array in an eighth of its memory."""

    octets: NDArray[np.uint8]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: NDArray[np.bool_]) -> "PackedBits":
        return cls(np.packbits(array), array.shape)

    def unpacked(self) -> NDArray[np.bool_]:
        return np.unpackbits(self.octets, count=math.prod(self.shape)).view(np.bool_).reshape(self.shape)


class _Block(NamedTuple):
    starts: NDArray[np.int64]  # [B + 1]
    kinds: list[NDArray[np.int32]]  # as in CorpusTokens
    rest: NDArray[np.integer]  # [M, T] where the weights of the other templates' features begin
    items: TokenFeatures
    pairs: Optional[TokenFeatures]  # of transition templates


class CorpusEmissions:
    """Weights to emissions and back, block by block.

    features (SparseFeatures): What is known of the features.
    corpus (Iterable[list[Doc]]): The blocks, read once; their Docs are not kept.
    """

    def __init__(self, features: SparseFeatures, corpus: Iterable[list[Doc]]):
        self._features = features
        states, transitions = features.compiled
        builder = KindBuilder(states, features.states.index)
        tokens, pairs = [], []
        for docs in corpus:
            columns = features.reader.read(docs)
            tokens.append(builder.add(columns))
            templates = features.feature_set.transitions
            pairs.append(transitions.rows(columns, features.transitions.index) if templates else None)
        shared, tokens = builder.finish(tokens, often=max(2, int(_OFTEN * features.n_tags)))
        self._kinds = [KindRows(kinds, features.states, features.reader.reach) for kinds in shared]
        self._blocks = [
            _Block(starts, kinds, features.states.first_slots(rest), items, pairs_of_block)
            for (starts, kinds, rest, items), pairs_of_block in zip(tokens, pairs)
        ]

    def __len__(self) -> int:
        return len(self._blocks)

    def groups(self) -> list[range]:
        """Numbers of the blocks to score before their derivatives are collected."""
        return [range(n, min(n + _GROUP, len(self))) for n in range(0, len(self), _GROUP)]

    def fingerprint(self) -> list[NDArray]:
        """The arrays that say what the corpus is."""
        return [array for block in self._blocks for array in (*block.kinds, block.starts, block.rest, block.items.rows)]

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
        self._tables = [kinds.score(self._slots, threads=threads) for kinds in self._kinds]
        self._d_tables = [kinds.zeros() for kinds in self._kinds]
        self._d_slots = self._features.states.zero_slots()
        self._d_states, self._d_transitions = np.zeros(len(states)), np.zeros(len(transitions))

    def score(self, number: int) -> Emissions:
        """Emissions of one block, by one thread."""
        starts, kinds, rest, items, pairs = self._blocks[number]
        features = self._features
        scores = np.zeros((int(starts[-1]), features.n_tags))
        for rows, of_tokens, table in zip(self._kinds, kinds, self._tables):
            rows.add_scores(of_tokens, starts, table, scores)
        features.states.add_references(rest, self._slots, scores)
        features.states.add_scores(items, self._slots, scores)
        transitions = None
        if pairs is not None:
            transitions = np.zeros((len(scores), features.n_tags**2))
            features.transitions.add_scores(pairs, self._pair_slots, transitions)
            transitions = transitions.reshape(len(scores), features.n_tags, features.n_tags)
        return Emissions(scores, transitions, starts)

    def collect(self, numbers: Iterable[int], d_scores: list[Floats], d_transitions: list[Floats]) -> None:
        """Derivatives with respect to the scores (float64[T, S]) and the transitions (float64[T, S, S] where templates have
        transitions) of some blocks."""
        features = self._features
        blocks = [self._blocks[number] for number in numbers]
        d_pairs = [d.reshape(len(d), -1) for d in d_transitions]

        def collect(part: Part) -> None:
            for (starts, kinds, rest, items, pairs), d_block, d_pairs_of_block in zip(blocks, d_scores, d_pairs):
                for rows, of_tokens, d_table in zip(self._kinds, kinds, self._d_tables):
                    rows.scatter(of_tokens, starts, d_block, d_table, part=part)
                features.states.scatter_references(rest, d_block, self._d_slots, part=part)
                features.states.scatter(items, d_block, self._d_states, part=part)
                if pairs is not None:
                    features.transitions.scatter(pairs, d_pairs_of_block, self._d_transitions, part=part)

        run_chunks(collect, parts_for(self._threads), self._threads)

    def gradient(self) -> tuple[Floats, Floats]:
        """Derivatives with respect to the weights of tags and of pairs of tags; call it once, at the end."""

        def scatter(part: Part) -> None:
            for rows, d_table in zip(self._kinds, self._d_tables):
                rows.scatter_slots(d_table, self._d_slots, part=part)

        run_chunks(scatter, parts_for(self._threads), self._threads)
        self._d_states += self._features.states.weights_of(self._d_slots)
        return self._d_states, self._d_transitions


class ChainSums:
    """What a pass adds up beside the emissions: the value, and the derivatives of what all blocks share.

    shape (tuple[int, int]): S + 2 and S: transitions, firsts and lasts.
    """

    def __init__(self, shape: tuple[int, int]):
        self.value = 0.0
        self.n_impossible = 0
        self.d_chain = np.zeros(shape)

    def add(self, losses: Floats, d_scores: Any, impossible: NDArray[np.bool_]) -> None:
        """Adds what the loss said of a block."""
        self.value += float(losses.sum())
        self.n_impossible += int(impossible.sum())
        d_pairs = d_scores.transitions
        self.d_chain[:-2] += d_pairs.sum(axis=0) if d_pairs.ndim == 3 else d_pairs
        self.d_chain[-2] += d_scores.first
        self.d_chain[-1] += d_scores.last
