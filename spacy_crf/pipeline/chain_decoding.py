"""Chains under rules, and their distributions."""

from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference import spans as chain_spans
from ..inference.linear_chain import LinearChain
from ..inference.spans import SpanStates
from ..inference.state_graph import GraphChain, Joined, cut_document, join_sequences
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded


class ChainDecoding(NamedTuple):
    """See `Decoding`."""

    spans: SpanStates

    def decode(self, rules, scores: ChainScores, doc_starts, facts, words, clamp: Optional[Clamp], kept) -> "Decoded":
        from ..constraints.decoding import decode

        return decode(rules, scores, doc_starts, facts, words, self.spans, clamp=clamp, kept=kept)

    def expected(self, scores: ChainScores, marginals: Floats) -> ChainScores:
        return ChainScores(
            np.where(scores.emissions > -np.inf, marginals, -np.inf),
            *(np.where(part > -np.inf, 0.0, -np.inf) for part in (scores.transitions, scores.first, scores.last)),
            scores.starts,
        )

    def cut(self, scores: ChainScores, clamp: Optional[Clamp], tokens: slice) -> tuple[ChainScores, Optional[Clamp]]:
        return cut_document(scores, clamp, tokens)

    def distribution(
        self, scores: ChainScores, clamp: Optional[Clamp], graph: Optional[GraphChain]
    ) -> "ChainDistribution":
        padded = SpanStates(np.pad(self.spans.continues, (0, 1)), self.spans.offset, self.spans.width)
        structure = LinearChain() if graph is None else graph
        return ChainDistribution(structure, join_sequences(scores, clamp), padded, np.asarray(scores.starts))

    def batch(self, scores: ChainScores, clamp: Optional[Clamp]) -> "_ChainBatch":
        return _ChainBatch(scores, clamp, self.spans)


class _ChainBatch(NamedTuple):
    """The part of `Distribution` that batches are asked for."""

    scores: ChainScores
    clamp: Optional[Clamp]
    spans: SpanStates

    def marginals(self) -> Floats:
        return LinearChain().marginals(self.scores, clamp=self.clamp)

    def span_probabilities(self, segments: Segments) -> Floats:
        return chain_spans.span_probabilities(self.scores, self.spans, segments, clamp=self.clamp)


class ChainDistribution(NamedTuple):
    """See `Distribution`: one Doc, its sequences joined."""

    structure: Any  # LinearChain or GraphChain
    joined: Joined
    spans: SpanStates  # with the break as one more tag
    starts: NDArray[np.int64]  # of the sequences

    def marginals(self) -> Floats:
        marginals = self.structure.marginals(self.joined.scores, clamp=self.joined.clamp)
        return np.ascontiguousarray(marginals[self.joined.tokens, :-1])

    def span_probabilities(self, segments: Segments) -> Floats:
        places = self.joined.tokens
        moved = Segments(places[segments.start], places[segments.end - 1] + 1, segments.label)
        if isinstance(self.structure, GraphChain):
            return self.structure.span_probabilities(self.joined.scores, self.spans, moved, clamp=self.joined.clamp)
        return chain_spans.span_probabilities(self.joined.scores, self.spans, moved, clamp=self.joined.clamp)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        if isinstance(self.structure, GraphChain):
            likely = self.structure.likely_spans(self.joined.scores, self.spans, min_prob, clamp=self.joined.clamp)
        else:
            likely = chain_spans.likely_spans(self.joined.scores, self.spans, min_prob, clamp=self.joined.clamp)
        begin, end, label = likely.segments
        token_at = np.full(len(self.joined.scores.emissions), -1)
        token_at[self.joined.tokens] = np.arange(len(self.joined.tokens))
        real = token_at[begin] >= 0  # a break is no span
        segments = Segments(token_at[begin[real]], token_at[end[real] - 1] + 1, label[real])
        return segments, likely.probabilities[real]

    def n_best(self, n: int) -> list[tuple[float, NDArray[np.int32]]]:
        log_z = self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)[0]
        [best] = self.structure.n_best(self.joined.scores, n, clamp=self.joined.clamp)
        return [(min(1.0, float(np.exp(score - log_z))), tags[self.joined.tokens]) for score, tags in best]

    def log_probability(self, tags: NDArray[np.int32]) -> float:
        n_tags = len(self.joined.scores.first) - 1
        if (tags < 0).any():
            return -np.inf
        whole = np.full(len(self.joined.scores.emissions), n_tags, dtype=np.int32)
        whole[self.joined.tokens] = tags
        if self.joined.clamp is not None and not self.joined.clamp[np.arange(len(whole)), whole].all():
            return -np.inf
        score = self.structure.path_score(self.joined.scores, whole)[0]
        if score == -np.inf:
            return -np.inf
        log_z = self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)[0]
        return min(0.0, float(score - log_z))

    def sample(self, n: int, seed: int) -> NDArray[np.int32]:
        drawn = self.structure.sample(self.joined.scores, n, seed=seed, clamp=self.joined.clamp)
        return drawn[:, self.joined.tokens]
