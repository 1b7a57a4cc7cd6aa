"""State graphs: sums, maxima, paths and samples of labellings whose states are more than tags.

A `GraphChain` answers the questions of `Structure` about ``ChainScores`` of tags, under a graph in which each labelling is
at most one path (as in graphs made of deterministic automata): whatever is asked in tags is answered in tags.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels import linear_chain as chain_kernels
from ..kernels import state_graph as kernels
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats, Path, StateGraph
from . import linear_chain as chains
from .spans import LikelySpans, SpanStates
from .threads import run_chunks

States = NDArray[np.int32]


class GraphChain:
    """Answers the questions of `Structure` for ``ChainScores``, of the labellings that the graph allows.

    graph (StateGraph): At most one path for each labelling.
    threads (int): How many chunks of sequences may be done at a time; the results don't depend on it.
    """

    def __init__(self, graph: StateGraph, *, threads: int = 1):
        self.graph = graph
        self.threads = threads
        states = np.arange(len(graph.tag_of) + 1)
        source_starts = np.searchsorted(graph.source, states).astype(np.int64)
        by_target = np.argsort(graph.target, kind="stable")
        target_starts = np.searchsorted(graph.target[by_target], states).astype(np.int64)
        self._graph = kernels.Graph(source_starts, *graph, target_starts, by_target)

    # --------------------------------------------------------------------------------------------------------- sums

    def log_partition(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Log of the sum over all labellings of exp(score).

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): Tags still allowed, or None.
        RETURNS (float64[B]): -inf where no labelling is allowed, 0 for an empty sequence.
        """
        batch = chains._check(kernels.forward, scores, clamp)
        log_z = np.empty(len(batch.starts) - 1)

        def sum_chunk(chunk) -> None:
            self._forward(batch.cut(chunk), log_z[chunk.sequences])

        run_chunks(sum_chunk, batch.chunks(), self.threads)
        return log_z

    def expectations(
        self, scores: ChainScores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """Log partitions, and the derivative of sum_b weights[b] · log_z[b] with respect to every score of tags.

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): Tags still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], ChainScores)
        """
        batch = chains._check(kernels.expectations, scores, clamp)
        weights = batch.check_weights(weights)
        log_z = np.empty(len(batch.starts) - 1)
        out = batch.empty_scores()
        out.emissions[:] = 0.0
        per_position = batch.per_position

        def expect_chunk(chunk) -> tuple[Floats, Floats, Floats]:
            part, chunk_log_z = batch.cut(chunk), log_z[chunk.sequences]
            alpha, beta = self._forward(part, chunk_log_z), self._backward(part)
            d_transitions, (d_first, d_last) = np.zeros(part.transitions.shape), np.zeros((2, len(part.first)))
            d_scores = chain_kernels.Scores(out.emissions[chunk.tokens], d_transitions, d_first, d_last, part.starts)
            kernels.expectations(part.scores, self._graph, alpha, beta, chunk_log_z, weights[chunk.sequences], d_scores)
            return d_transitions, d_first, d_last

        chunks = batch.chunks()
        for chunk, (d_transitions, d_first, d_last) in zip(chunks, run_chunks(expect_chunk, chunks, self.threads)):
            if per_position:
                out.transitions[chunk.tokens] = d_transitions
            else:
                out.transitions[:] += d_transitions[0]
            out.first[:] += d_first
            out.last[:] += d_last
        return log_z, out._replace(starts=scores.starts)

    def marginals(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each tag at each token: float64[T, S], all 0 in a sequence without any labelling."""
        return self.expectations(scores, clamp=clamp)[1].emissions

    # -------------------------------------------------------------------------------------------------------- maxima

    def viterbi(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Path:
        """Most probable labelling of each sequence.

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): Tags still allowed, or None.
        RETURNS (Path): Tags and their total score; -1 and -inf where no labelling is allowed.
        """
        batch = chains._check(kernels.viterbi, scores, clamp)
        path = Path(np.empty(len(batch.emissions), dtype=np.int32), np.empty(len(batch.starts) - 1))

        def decode_chunk(chunk) -> None:
            states = np.empty(chunk.tokens.stop - chunk.tokens.start, dtype=np.int32)
            kernels.viterbi(batch.cut(chunk).scores, self._graph, states, path.scores[chunk.sequences])
            path.states[chunk.tokens] = self._tags(states)

        run_chunks(decode_chunk, batch.chunks(), self.threads)
        return path

    def viterbi_counts(
        self, scores: ChainScores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """`expectations` with max in place of log-sum."""
        path = self.viterbi(scores, clamp=clamp)
        return path.scores, self.path_expectations(scores, path.states, weights=weights)

    def n_best(self, scores: ChainScores, n: int, *, clamp: Optional[Clamp] = None) -> list[list[tuple[float, States]]]:
        """The n most probable labellings of each sequence, best first: lists of (score, tags)."""
        if n < 1:
            raise ValueError(Errors.CRF014.format(n=n))
        batch = chains._check(kernels.n_best, scores, clamp)

        def search(b: int) -> list[tuple[float, States]]:
            sequence = batch.cut(batch.chunk(b, b + 1))
            if len(sequence.emissions) == 0:
                return [(0.0, np.empty(0, dtype=np.int32))]
            states, path_scores = np.empty((n, len(sequence.emissions)), dtype=np.int32), np.empty(n)
            found = kernels.n_best(sequence.scores, self._graph, n, states, path_scores)
            return [(float(path_scores[rank]), self._tags(states[rank])) for rank in range(found)]

        return run_chunks(search, range(len(batch.starts) - 1), self.threads)

    # --------------------------------------------------------------------------------------------------------- paths

    def path_score(self, scores: ChainScores, states: States) -> Floats:
        """Score of one labelling per sequence: float64[B], -inf for those that the graph does not allow."""
        return self.viterbi(scores, clamp=_only(states, len(scores.first))).scores

    def path_expectations(
        self,
        scores: ChainScores,
        states: States,
        *,
        weights: Optional[Floats] = None,
        out: Optional[ChainScores] = None,
    ) -> ChainScores:
        """Which scores the labellings use, times the weights, added to `out` if it is given; labellings that the graph
        does not allow use nothing."""
        allowed = self.viterbi(scores, clamp=_only(states, len(scores.first))).states
        return chains.LinearChain().path_expectations(scores, allowed, weights=weights, out=out)

    def log_probability(self, scores: ChainScores, states: States) -> Floats:
        """Log probability of one labelling per sequence: float64[B], at most 0."""
        log_probability = self.path_score(scores, states)
        possible = log_probability > -np.inf
        np.subtract(log_probability, self.log_partition(scores), out=log_probability, where=possible)
        return np.minimum(log_probability, 0.0, out=log_probability)

    def only_path(self, clamp: Clamp) -> Optional[States]:
        """The only labelling that a clamp allows, None if it allows none or several at some token."""
        states = np.empty(len(clamp), dtype=np.int32)
        return states if chain_kernels.only_path(np.ascontiguousarray(clamp), states) else None

    # ------------------------------------------------------------------------------------------------------- samples

    def sample(self, scores: ChainScores, n: int, *, seed: int, clamp: Optional[Clamp] = None) -> States:
        """Labellings drawn from their distribution: int32[n, T], -1 where no labelling is allowed."""
        batch = chains._check(kernels.sample, scores, clamp)
        uniforms = np.random.default_rng(seed).random((n, len(batch.emissions)))
        tags = np.empty(uniforms.shape, dtype=np.int32)

        def draw_chunk(chunk) -> None:
            part = batch.cut(chunk)
            drawn = np.empty((n, len(part.emissions)), dtype=np.int32)
            alpha = self._forward(part, np.empty(len(part.starts) - 1))
            kernels.sample(part.scores, self._graph, alpha, np.ascontiguousarray(uniforms[:, chunk.tokens]), drawn)
            tags[:, chunk.tokens] = self._tags(drawn)

        run_chunks(draw_chunk, batch.chunks(), self.threads)
        return tags

    # --------------------------------------------------------------------------------------------------------- spans

    def span_probabilities(
        self, scores: ChainScores, spans: SpanStates, segments: Segments, *, clamp: Optional[Clamp] = None
    ) -> Floats:
        """As `inference.spans.span_probabilities`, of the labellings that the graph allows: float64[N]."""
        batch = chains._check(kernels.span_probabilities, scores, clamp)
        begin, end, label = (np.ascontiguousarray(array, dtype=np.int64) for array in segments)
        probabilities = np.zeros(len(begin))
        for chunk in batch.chunks():
            n = slice(*np.searchsorted(begin, [chunk.tokens.start, chunk.tokens.stop]))
            if n.start < n.stop:
                shift = chunk.tokens.start
                posterior = self._posterior(batch.cut(chunk), spans)
                kernels.span_probabilities(*posterior, begin[n] - shift, end[n] - shift, label[n], probabilities[n])
        return probabilities

    def likely_spans(
        self, scores: ChainScores, spans: SpanStates, min_prob: float, *, clamp: Optional[Clamp] = None
    ) -> LikelySpans:
        """As `inference.spans.likely_spans`, of the labellings that the graph allows."""
        batch = chains._check(kernels.likely_spans, scores, clamp)
        parts = []
        for chunk in batch.chunks():
            posterior = self._posterior(batch.cut(chunk), spans)
            size = 4 * (chunk.tokens.stop - chunk.tokens.start)
            while True:
                begin, end, label = np.empty((3, size), dtype=np.int64)
                probabilities = np.empty(size)
                found = kernels.likely_spans(*posterior, float(min_prob), begin, end, label, probabilities)
                if found <= size:
                    break
                size = found
            shift = chunk.tokens.start
            parts.append((begin[:found] + shift, end[:found] + shift, label[:found], probabilities[:found]))
        begin, end, label, probabilities = (np.concatenate(column) for column in zip(*parts))
        return LikelySpans(Segments(begin, end, label), probabilities)

    def _posterior(self, part, spans: SpanStates):
        """What the kernels of spans begin their arguments with."""
        log_z = np.empty(len(part.starts) - 1)
        alpha, beta = self._forward(part, log_z), self._backward(part)
        n_labels = (len(part.first) - spans.offset) // spans.width
        tags = spans.offset + np.arange(n_labels + 1) * spans.width
        label_starts = np.searchsorted(self.graph.tag_of, tags).astype(np.int64)
        posterior = kernels.Posterior(alpha, beta, log_z, spans.continues, label_starts)
        return part.scores, self._graph, posterior

    # ------------------------------------------------------------------------------------------------------- helpers

    def _forward(self, part, log_z: Floats) -> Floats:
        alpha = np.empty((len(part.emissions), len(self.graph.tag_of)))
        kernels.forward(part.scores, self._graph, alpha, log_z)
        return alpha

    def _backward(self, part) -> Floats:
        beta = np.empty((len(part.emissions), len(self.graph.tag_of)))
        kernels.backward(part.scores, self._graph, beta)
        return beta

    def _tags(self, states: States) -> States:
        return np.where(states >= 0, self.graph.tag_of[states], -1).astype(np.int32)


class Joined(NamedTuple):
    """The sequences of each document as a single chain: between two of them stands a break, with a tag of its own."""

    scores: ChainScores  # of S + 1 tags
    clamp: Optional[Clamp]
    tokens: NDArray[np.int64]  # [T] places of the tokens in the chains


def join_sequences(
    scores: ChainScores, clamp: Optional[Clamp] = None, doc_starts: Optional[NDArray[np.int64]] = None
) -> Joined:
    """The chain whose labellings are those of all sequences of a document together, with the same scores.

    What `first` and `last` say of sequences becomes the transitions from and to the break, tag S.

    doc_starts (int64[D + 1]): Where documents start; one document by default. Each becomes one sequence.
    """
    tokens, size = scores.emissions.shape
    starts = np.array([0, tokens]) if scores.starts is None else np.asarray(scores.starts)
    doc_starts = np.array([0, tokens]) if doc_starts is None else doc_starts
    opening = np.unique(starts[:-1][starts[:-1] < starts[1:]])  # empty sequences say nothing
    opening = opening[~np.isin(opening, doc_starts)]
    places = np.arange(tokens) + np.searchsorted(opening, np.arange(tokens), side="right")
    breaks = opening + np.arange(len(opening))
    length = tokens + len(breaks)
    emissions = np.full((length, size + 1), -np.inf)
    emissions[places, :size] = scores.emissions
    emissions[breaks, size] = 0.0
    if clamp is not None:
        joined_clamp = np.zeros((length, size + 1), dtype=np.bool_)
        joined_clamp[places, :size] = clamp
        joined_clamp[breaks, size] = True
        clamp = joined_clamp
    transitions = np.asarray(scores.transitions)
    joined = np.full((length, size + 1, size + 1) if transitions.ndim == 3 else (size + 1, size + 1), -np.inf)
    if transitions.ndim == 3:
        joined[places, :size, :size] = transitions
    else:
        joined[:size, :size] = transitions
    joined[..., :size, size] = scores.last
    joined[..., size, :size] = scores.first
    first, last = np.append(scores.first, -np.inf), np.append(scores.last, -np.inf)
    joined_starts = doc_starts + np.searchsorted(opening, doc_starts, side="left")
    return Joined(ChainScores(emissions, joined, first, last, joined_starts.astype(np.int64)), clamp, places)


def split_expectations(joined: Joined, expected: ChainScores, starts: Optional[NDArray[np.int64]]) -> ChainScores:
    """Derivatives with respect to the scores of a joined chain, as those of the sequences it was made of."""
    size = expected.emissions.shape[1] - 1
    transitions = expected.transitions
    inside = transitions[joined.tokens] if transitions.ndim == 3 else transitions
    beside = transitions.sum(axis=0) if transitions.ndim == 3 else transitions
    return ChainScores(
        expected.emissions[joined.tokens, :size].copy(),
        inside[..., :size, :size].copy(),
        expected.first[:size] + beside[size, :size],
        expected.last[:size] + beside[:size, size],
        starts,
    )


def cut_document(scores: ChainScores, clamp: Optional[Clamp], tokens: slice) -> tuple[ChainScores, Optional[Clamp]]:
    """The scores and the clamp of one document of a batch."""
    of_doc = scores._replace(
        emissions=scores.emissions[tokens],
        transitions=scores.transitions[tokens] if np.ndim(scores.transitions) == 3 else scores.transitions,
        starts=cut_starts(scores.starts, tokens),
    )
    return of_doc, None if clamp is None else clamp[tokens]


def cut_starts(starts: NDArray[np.int64], tokens: slice) -> NDArray[np.int64]:
    """Where the sequences of a document start, empty ones left out, counted from its first token."""
    first, last = np.searchsorted(starts, [tokens.start, tokens.stop], side="left")
    return np.unique(np.clip(starts[first : last + 1], tokens.start, tokens.stop)) - tokens.start


def _only(states: States, size: int) -> Clamp:
    """The clamp that leaves one labelling; none where a state is negative."""
    return np.asarray(states)[:, np.newaxis] == np.arange(size)
