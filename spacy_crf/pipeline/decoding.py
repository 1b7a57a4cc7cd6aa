"""What structures add to prediction under rules, and the distribution over the labellings of a Doc.

Labellings are tags, wherever they are given or taken; for segments these are BIO.
"""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..arrays import Joined, Scores
from ..inference.linear_chain import LinearChain
from ..inference.semi_markov import SemiMarkov
from ..inference.structure import SpanStates, Structure
from ..schemes import SEGMENTS, Segments
from ..types import GOES_ON, Floats

if TYPE_CHECKING:
    from ..constraints.decoding import Decoded, Documents

States = NDArray[np.int32]


class Decoding:
    """Base: `ChainDecoding` or `SegmentDecoding`.

    spans (SpanStates): How states spell spans.
    """

    structure: ClassVar[Structure]
    always_joins: ClassVar[bool]  # whether the sequences of a Doc are one where no rule ties them together

    def __init__(self, spans: SpanStates):
        self.spans = spans

    def decode(self, rules, documents: "Documents", doc_starts: NDArray[np.int64], kept=None) -> "Decoded":
        """Tags of the best labellings that keep the rules, see `constraints.decoding.decode`."""
        from ..constraints.decoding import decode

        decoded = decode(rules, documents, doc_starts, kept)
        return decoded._replace(tags=self.tags(decoded.tags))

    def tags(self, path: States) -> States:
        """The tags of a path of states."""
        raise NotImplementedError

    def path(self, tags: States, starts: NDArray[np.int64]) -> States:
        """The path of states that tags stand for."""
        raise NotImplementedError

    def both(self, clamp: Any, other: Any) -> Any:
        """What two clamps allow."""
        raise NotImplementedError

    def expected(self, scores: Scores, marginals: Floats) -> Scores:
        """Scores whose best labelling has the largest sum of marginals."""
        found = {name: np.where(array > -np.inf, 0.0, -np.inf) for name, array in arrays.named(scores).items()}
        first = scores._fields[0]
        return scores._replace(**{**found, first: found[first] + marginals})

    def distribution(self, scores: Any, clamp: Any, graph: Optional[Structure]) -> "Distribution":
        """The distribution of the scores of a Doc under the graph of some rules, None for none."""
        if graph is None and not self.always_joins:
            return self.batch(scores, clamp)
        joined, starts = arrays.join_sequences(scores, clamp), np.asarray(scores.starts)
        return Distribution(self, graph or self.structure, joined, scores[0].shape[1], starts)

    def batch(self, scores: Any, clamp: Any) -> "Distribution":
        """The same for several Docs, whose sequences nothing ties together: marginals and probabilities of spans."""
        joined = Joined(scores, clamp, np.arange(len(scores[0])))
        return Distribution(self, self.structure, joined, scores[0].shape[1], np.asarray(scores.starts))


class ChainDecoding(Decoding):
    """Of linear chains, whose states are the tags."""

    structure = LinearChain()
    always_joins = True

    def tags(self, path: States) -> States:
        return path

    def path(self, tags: States, starts: NDArray[np.int64]) -> States:
        return tags

    def both(self, clamp: Any, other: Any) -> Any:
        return clamp & other


class SegmentDecoding(Decoding):
    """Of chains of segments: state 0 is ``O``, and state 1 + l is label l."""

    structure = SemiMarkov()
    always_joins = False

    def __init__(self) -> None:
        super().__init__(SpanStates(None, 1, 1))

    def tags(self, path: States) -> States:
        return SEGMENTS.states_to_tags(path)

    def path(self, tags: States, starts: NDArray[np.int64]) -> States:
        path = np.zeros(len(tags), dtype=np.int32)
        begin, end, label = SEGMENTS.decode(tags, starts)
        path[arrays.ranges(begin, end)] = GOES_ON
        path[begin] = 1 + label
        return path

    def both(self, clamp: Any, other: Any) -> Any:
        may_begin, must_begin = clamp.may_begin & other.may_begin, clamp.must_begin | other.must_begin
        return type(clamp)(clamp.states & other.states, may_begin, must_begin)


class Distribution(NamedTuple):
    """The distribution over the labellings of one Doc, or of a batch of Docs whose sequences no rule ties together."""

    decoding: Decoding
    structure: Structure
    joined: Joined
    size: int  # S, of the model
    starts: NDArray[np.int64]  # of the sequences

    def marginals(self) -> Floats:
        """Probability of each state at each token: float64[T, S]."""
        marginals = self.structure.marginals(self.joined.scores, clamp=self.joined.clamp)
        return np.ascontiguousarray(marginals[self.joined.tokens, : self.size])

    def span_probabilities(self, segments: Segments) -> Floats:
        """Probability of each of some spans, which are given by their first token: float64[N]."""
        places = self.joined.tokens
        moved = Segments(places[segments.start], places[segments.end - 1] + 1, segments.label)
        return self.structure.span_probabilities(self.joined.scores, self._spans, moved, clamp=self.joined.clamp)

    def likely_spans(self, min_prob: float) -> tuple[Segments, Floats]:
        """All spans of at least some probability."""
        scores, clamp = self.joined.scores, self.joined.clamp
        (begin, end, label), probabilities = self.structure.likely_spans(scores, self._spans, min_prob, clamp=clamp)
        token_at = np.full(len(scores[0]), -1)
        token_at[self.joined.tokens] = np.arange(len(self.joined.tokens))
        real = token_at[begin] >= 0  # a break is no span
        return Segments(token_at[begin[real]], token_at[end[real] - 1] + 1, label[real]), probabilities[real]

    def n_best(self, n: int) -> list[tuple[float, States]]:
        """Probability and tags of the best labellings of one Doc."""
        found = self.structure.n_best(self.joined.scores, n, clamp=self.joined.clamp)
        best: list[tuple[float, tuple]] = [(0.0, ())]
        for paths, log_z in zip(found, self._log_partition().tolist()):
            # the best of the sequences so far, with the best of the next one
            longer = [(a + score - log_z, (*before, states)) for a, before in best for score, states in paths]
            best = sorted(longer, key=lambda item: -item[0])[:n]
        none = np.zeros(0, dtype=np.int32)
        return [(min(1.0, float(np.exp(score))), self._tags(np.concatenate([none, *parts]))) for score, parts in best]

    def log_probability(self, tags: States) -> float:
        """Log probability of a labelling of one Doc."""
        path = np.full(len(self.joined.scores[0]), self.size, dtype=np.int32)
        path[self.joined.tokens] = self.decoding.path(tags, self.starts)
        work = self.structure.prepare(self.joined.scores)
        only = self.structure.only(work, path)
        if self.joined.clamp is not None:
            only = self.decoding.both(only, self.joined.clamp)
        score = self.structure.log_partition(work, clamp=only).sum()
        return min(0.0, float(score - self._log_partition().sum())) if score > -np.inf else -np.inf

    def sample(self, n: int, seed: int) -> States:
        """Tags of labellings drawn: int32[n, T]."""
        drawn = self.structure.sample(self.joined.scores, n, seed=seed, clamp=self.joined.clamp)
        return np.array([self._tags(path) for path in drawn], dtype=np.int32).reshape(n, len(self.joined.tokens))

    @property
    def _spans(self) -> SpanStates:
        """How states spell spans, with the break as one more state if there may be any."""
        spans = self.decoding.spans
        if spans.continues is None or np.shape(self.joined.scores.first)[0] == self.size:
            return spans
        return spans._replace(continues=np.pad(spans.continues, (0, 1)))

    def _log_partition(self) -> Floats:
        return self.structure.log_partition(self.joined.scores, clamp=self.joined.clamp)

    def _tags(self, path: States) -> States:
        return self.decoding.tags(path[self.joined.tokens])
