"""State graphs: sums, maxima, paths and samples of labellings whose states are more than tags.

A graph's states know their tag, and rules are paths in it. Whatever is asked in tags is answered in tags: the score of a
labelling is the log-sum over its paths (in graphs made of deterministic automata, at most one), while `viterbi`, `n_best` and
`sample` find paths.
"""

from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..kernels import linear_chain as chain_kernels
from ..kernels import state_graph as kernels
from ..schemes import Segments
from ..types import ChainScores, Floats, GraphScores, Path, SegmentClamp, SegmentScores, StateGraph
from .linear_chain import LinearChain
from .scaling import ChainWork
from .semi_markov import SegmentWork, SemiMarkov, StateSegments
from .spans import collect
from .structure import LikelySpans, SpanStates, States, Structure


class GraphChain(Structure[GraphScores]):
    """Answers the questions of `Structure` for the ``ChainScores`` of tags, of the labellings that a graph allows. For
    ``GraphScores`` it answers them for those of arcs and of the graph's states too.

    graph (StateGraph): Which state may follow which.
    """

    ambiguous = True
    chunk_tokens = 8192
    work = ChainWork
    only, only_path = LinearChain.only, LinearChain.only_path

    def __init__(self, graph: StateGraph):
        super().__init__()
        self.graph = graph
        states = np.arange(len(graph.tag_of) + 1)
        by_target = np.argsort(graph.target, kind="stable")
        source_starts = np.searchsorted(graph.source, states).astype(np.int64)
        target_starts = np.searchsorted(graph.target[by_target], states).astype(np.int64)
        self._graph = kernels.Graph(source_starts, *graph, target_starts, by_target)

    def conform(self, scores: Union[ChainScores, GraphScores]) -> GraphScores:
        if isinstance(scores, ChainScores):
            of_graph = self.graph.scores, self.graph.first, self.graph.last
            scores = GraphScores(*scores[:4], *of_graph, scores.starts)
        n_states = len(self.graph.tag_of)
        sizes = {"arcs": len(self.graph.source), "graph_first": n_states, "graph_last": n_states}
        for name, size in sizes.items():
            arrays.check_shape(name, getattr(scores, name), (size,), "one number for each in the graph")
        return super().conform(scores)

    def forward(self, work: ChainWork) -> tuple[Floats, tuple[Floats, Floats]]:
        log_z, alpha = np.empty(work.n_sequences), np.empty((work.n_tokens, len(self.graph.tag_of)))
        kernels.forward(work.potentials, self.arcs_of(work), alpha, log_z)
        return log_z, (alpha, log_z)

    def backward(self, work: ChainWork, kept: tuple[Floats, Floats], weights: Floats, out: GraphScores) -> None:
        alpha, log_z = kept
        posterior = alpha, self._suffixes(work), log_z
        d_transitions = out.transitions.reshape(work.transitions.shape)
        d_tags = chain_kernels.Scores(out.emissions, d_transitions, out.first, out.last, work.starts)
        d_graph = out.arcs, out.graph_first, out.graph_last
        kernels.expectations(work.potentials, self.arcs_of(work), posterior, weights, d_tags, d_graph)

    def best(self, work: ChainWork) -> Path:
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(work.potentials, self.arcs_of(work), *path)
        return path

    def rank(self, work: ChainWork, states: States, scores: Floats) -> int:
        return kernels.n_best(work.potentials, self.arcs_of(work), len(scores), states, scores)

    def draw(self, work: ChainWork, uniforms: Floats) -> States:
        drawn = np.empty(uniforms.shape, dtype=np.int32)
        _, (alpha, _) = self.forward(work)
        kernels.sample(work.potentials, self.arcs_of(work), alpha, uniforms, drawn)
        return drawn

    def labels(self, work: ChainWork, path: States) -> States:
        return tags_of(path, self.graph.tag_of)

    def count(self, work: ChainWork, path: States, weights: Floats, out: Union[ChainScores, GraphScores]) -> None:
        LinearChain.add_path(self, work, self.labels(work, path), weights, out)
        if isinstance(out, GraphScores):
            of_token = np.repeat(weights, np.diff(work.starts))
            opening, closing = (tokens[path[tokens] >= 0] for tokens in work.ends())
            np.add.at(out.graph_first, path[opening], of_token[opening])
            np.add.at(out.graph_last, path[closing], of_token[closing])
            after = np.setdiff1d(np.flatnonzero(path >= 0), opening)
            keys = self.graph.source.astype(np.int64) * len(self.graph.tag_of) + self.graph.target
            taken = path[after - 1].astype(np.int64) * len(self.graph.tag_of) + path[after]
            np.add.at(out.arcs, np.searchsorted(keys, taken), of_token[after])

    def weigh_spans(self, work: ChainWork, spans: SpanStates, segments: Segments) -> Floats:
        probabilities = np.zeros(len(segments.start))
        kernels.span_probabilities(*self._posterior(work, spans), *segments, probabilities)
        return probabilities

    def list_spans(self, work: ChainWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        posterior = self._posterior(work, spans)

        def search(*found: NDArray) -> int:
            return kernels.likely_spans(*posterior, float(min_prob), *found)

        return collect(search, 4 * work.n_tokens)

    def _posterior(self, work: ChainWork, spans: SpanStates) -> tuple:
        """What the kernels of spans begin their arguments with."""
        log_z, (alpha, _) = self.forward(work)
        label_starts = np.searchsorted(self.graph.tag_of, spans.label_starts).astype(np.int64)
        posterior = kernels.Posterior(alpha, self._suffixes(work), log_z, spans.continues, label_starts)
        return work.potentials, self.arcs_of(work), posterior

    def _suffixes(self, work: ChainWork) -> Floats:
        beta = np.empty((work.n_tokens, len(self.graph.tag_of)))
        kernels.backward(work.potentials, self.arcs_of(work), beta)
        return beta

    def arcs_of(self, work: ChainWork) -> kernels.Graph:
        """The graph with the scores that are asked about."""
        scores = work.scores
        return self._graph._replace(scores=scores.arcs, first=scores.graph_first, last=scores.graph_last)


class _ExpandedWork(SegmentWork):
    """Chains of segments whose states are those of a graph; clamps are given in tags."""

    tag_of: NDArray[np.int32]  # [S], of the whole

    def clamped(self, clamp: SegmentClamp) -> "_ExpandedWork":
        clamp = arrays.check_clamp(clamp, self.n_tokens, self.n_tags)
        clamp = clamp._replace(states=np.ascontiguousarray(clamp.states[:, self.whole.tag_of]))
        return type(self)(self.scores, clamp, self.given, self.whole)


class GraphSegments(SemiMarkov):
    """Answers the questions of `Structure` for the ``SegmentScores`` of tags, of the segmentations that a graph allows: a chain
    of segments over the graph's states is one like any other, and what it says of states is added up by tag.

    graph (StateGraph): Which state may follow which.
    """

    ambiguous = True
    work = _ExpandedWork
    score_path, add_path = Structure.score_path, Structure.add_path

    def __init__(self, graph: StateGraph):
        super().__init__()
        self.graph = graph

    def prepare(self, scores: Any, clamp: Any = None) -> _ExpandedWork:
        if isinstance(scores, SegmentWork):
            return super().prepare(scores, clamp)
        checked = SemiMarkov().prepare(scores).scores
        # States whose tag is nowhere possible would only be forbidden everywhere, and so keep the sums from the linear domain.
        # Where that is all of them, they stay: kernels want a state.
        possible = (
            (checked.tokens > -np.inf).any(axis=0) if len(checked.tokens) else np.ones(checked.tokens.shape[1], bool)
        )
        kept = possible[self.graph.tag_of]
        graph = _part(self.graph, kept) if kept.any() else self.graph
        work = _ExpandedWork(arrays.expand(checked, graph), given=scores)
        work.tag_of = graph.tag_of
        return work if clamp is None else work.clamped(clamp)

    def narrow(self, work: _ExpandedWork, expected: SegmentScores) -> SegmentScores:
        return super().narrow(work, arrays.contract(expected, work.whole.tag_of, work.n_tags))

    def labels(self, work: _ExpandedWork, path: States) -> States:
        return tags_of(path, work.whole.tag_of)

    def count(self, work: _ExpandedWork, path: States, weights: Floats, out: SegmentScores) -> None:
        used = arrays.zeros(work.scores)
        SemiMarkov.add_path(self, work, path, weights, used)
        arrays.add(out, self.narrow(work, used), slice(0, work.n_tokens))

    def weigh_spans(self, work: _ExpandedWork, spans: SpanStates, segments: Segments) -> Floats:
        # Each span is a question for every state that its label has in the graph.
        asked, state = np.nonzero((segments.label + spans.offset)[:, np.newaxis] == work.whole.tag_of)
        found = self.weigh_segments(work, StateSegments(segments.start[asked], segments.end[asked], state))
        return np.minimum(np.bincount(asked, found, minlength=len(segments.start)), 1.0)

    def list_spans(self, work: _ExpandedWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        # A probable span has a state of at least its share of the probability; then all its states are added up.
        tag_of = work.whole.tag_of
        most_states = int(np.bincount(tag_of).max(initial=1))
        (begin, end, state), _ = self.list_segments(work, min_prob / most_states)
        label = tag_of[state] - spans.offset
        columns = np.column_stack([begin, end, label])[label >= 0]
        segments = Segments(*np.unique(columns, axis=0).T)
        probabilities = self.weigh_spans(work, spans, segments)
        kept = probabilities >= min_prob * (1 - 1e-6)
        return LikelySpans(Segments(*(column[kept] for column in segments)), probabilities[kept])


def tags_of(states: States, tag_of: NDArray[np.int32]) -> States:
    """Paths of the states of a graph as paths of tags; negative entries stay."""
    tags, is_state = states.astype(np.int32), states >= 0
    tags[is_state] = tag_of[states[is_state]]
    return tags


def _part(graph: StateGraph, kept: NDArray[np.bool_]) -> StateGraph:
    """The graph of some of its states (bool[S])."""
    if kept.all():
        return graph
    number = np.cumsum(kept) - 1
    arcs = kept[graph.source] & kept[graph.target]
    source, target = (number[ends[arcs]].astype(np.int32) for ends in (graph.source, graph.target))
    return StateGraph(source, target, graph.scores[arcs], graph.first[kept], graph.last[kept], graph.tag_of[kept])
