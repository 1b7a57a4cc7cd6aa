"""Segments under rules, and their distributions. Tags, wherever they are given or taken, are BIO."""

from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.segment_graph import by_label, cut_segments, expand, join_segment_sequences, labels_of
from ..inference.semi_markov import Segments as StateSegments
from ..inference.semi_markov import SemiMarkov
from ..schemes import SEGMENTS, Segments
from ..types import Floats, SegmentClamp, SegmentScores, StateGraph

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded


class SegmentDecoding:
    """See `Decoding`."""

    def decode(
        self, rules, scores: SegmentScores, doc_starts, facts, words, clamp: Optional[SegmentClamp], kept
    ) -> "Decoded":
        from ..constraints.segments import decode

        decoded = decode(rules, scores, doc_starts, facts, words, clamp=clamp, kept=kept)
        return decoded._replace(tags=SEGMENTS.states_to_tags(decoded.tags))

    def expected(self, scores: SegmentScores, marginals: Floats) -> SegmentScores:
        zeros = {
            name: np.where(getattr(scores, name) > -np.inf, 0.0, -np.inf)
            for name in ("begins", "ends", "lengths", "spans", "transitions", "first", "last")
        }
        return scores._replace(tokens=np.where(scores.tokens > -np.inf, marginals, -np.inf), **zeros)

    def cut(
        self, scores: SegmentScores, clamp: Optional[SegmentClamp], tokens: slice
    ) -> tuple[SegmentScores, Optional[SegmentClamp]]:
        return cut_segments(scores, clamp, tokens)

    def distribution(
        self, scores: SegmentScores, clamp: Optional[SegmentClamp], graph: Optional[StateGraph]
    ) -> "SegmentDistribution":
        n_tokens, size = scores.tokens.shape
        starts = np.asarray(scores.starts)
        if graph is None:  # nothing ties the sequences together
            every, state_of = np.arange(n_tokens), np.arange(size, dtype=np.int32)
            return SegmentDistribution(scores, clamp, state_of, size, every, starts)
        expanded = expand(join_segment_sequences(scores, clamp), graph)
        return SegmentDistribution(expanded.scores, expanded.clamp, expanded.state_of, size, expanded.tokens, starts)

    def batch(self, scores: SegmentScores, clamp: Optional[SegmentClamp]) -> "SegmentDistribution":
        return self.distribution(scores, clamp, None)


class SegmentDistribution(NamedTuple):
    """See `Distribution`. The states of the scores may be those of a graph."""

    scores: SegmentScores
    clamp: Optional[SegmentClamp]
    state_of: NDArray[np.int32]  # [S'] the state of the model that each one is
    size: int  # S, of the model
    tokens: NDArray[np.int64]  # [T] places of the tokens
    starts: NDArray[np.int64]  # of the sequences

    def marginals(self) -> Floats:
        marginals = SemiMarkov().marginals(self.scores, clamp=self.clamp)[self.tokens]
        return by_label(marginals, self.state_of, self.size)

    def span_probabilities(self, segments: Segments) -> Floats:
        # Each span is a question for every state that its label has in the graph.
        asked, state = np.nonzero(segments.label[:, None] + 1 == self.state_of)
        begin, end = self.tokens[segments.start], self.tokens[segments.end - 1] + 1
        wanted = StateSegments(begin[asked], end[asked], state)
        found = SemiMarkov().segment_probabilities(self.scores, wanted, clamp=self.clamp)
        return np.minimum(np.bincount(asked, found, minlength=len(segments.start)), 1.0)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        # A probable span has a state of at least its share of the probability; then all its states are added up.
        most_states = int(np.bincount(self.state_of).max())
        found = SemiMarkov().segment_marginals(self.scores, clamp=self.clamp, min_prob=min_prob / most_states)
        label = self.state_of[found.state] - 1
        real = (label >= 0) & (label < self.size - 1)  # neither O nor a break
        place = np.full(len(self.scores.tokens), -1)
        place[self.tokens] = np.arange(len(self.tokens))
        columns = np.column_stack([place[found.begin], place[found.end - 1] + 1, label])[real]
        if most_states == 1:
            return Segments(*columns.T), found.probability[real]
        segments = Segments(*np.unique(columns, axis=0).T)
        probabilities = self.span_probabilities(segments)
        kept = probabilities >= min_prob * (1 - 1e-6)
        return Segments(*(column[kept] for column in segments)), probabilities[kept]

    def n_best(self, n: int) -> list[tuple[float, NDArray[np.int32]]]:
        log_z = SemiMarkov().log_partition(self.scores, clamp=self.clamp)
        best: list[tuple[float, tuple]] = [(0.0, ())]
        for paths, partition in zip(SemiMarkov().n_best(self.scores, n, clamp=self.clamp), log_z.tolist()):
            # the best of the sequences so far, with the best of the next one
            joined = [(a + score - partition, (*before, states)) for a, before in best for score, states in paths]
            best = sorted(joined, key=lambda item: -item[0])[:n]
        empty = np.zeros(0, dtype=np.int32)
        return [(min(1.0, float(np.exp(score))), self._tags(np.concatenate([empty, *parts]))) for score, parts in best]

    def log_probability(self, tags: NDArray[np.int32]) -> float:
        # The graph has at most one path for it, so the sum over what a clamp leaves is its score.
        size = len(self.scores.tokens)
        begins, states = np.ones(size, dtype=bool), np.ones((size, len(self.state_of)), dtype=bool)
        state = np.zeros(len(self.tokens), dtype=np.int64)
        for first, last, label in zip(*SEGMENTS.decode(tags, self.starts)):
            state[first:last] = label + 1
            begins[self.tokens[first + 1 : last]] = False
        states[self.tokens] = state[:, None] == self.state_of
        only = SegmentClamp(states, begins, begins)
        if self.clamp is not None:
            may_begin, must_begin = begins & self.clamp.may_begin, begins | self.clamp.must_begin
            only = SegmentClamp(states & self.clamp.states, may_begin, must_begin)
        score = SemiMarkov().log_partition(self.scores, clamp=only).sum()
        if score == -np.inf:
            return -np.inf
        return min(0.0, float(score - SemiMarkov().log_partition(self.scores, clamp=self.clamp).sum()))

    def sample(self, n: int, seed: int) -> NDArray[np.int32]:
        drawn = SemiMarkov().sample(self.scores, n, seed=seed, clamp=self.clamp)
        return np.array([self._tags(path) for path in drawn], dtype=np.int32).reshape(n, len(self.tokens))

    def _tags(self, path: NDArray[np.int32]) -> NDArray[np.int32]:
        return SEGMENTS.states_to_tags(labels_of(path, self.state_of)[self.tokens])
