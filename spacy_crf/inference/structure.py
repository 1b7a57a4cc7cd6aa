"""The questions that every structure answers about its scores.

A structure is a family of labellings. It defines how to sum the scores of a chunk of sequences (`expect`), which labelling is
best (`best`), and which scores a labelling uses (`score_path`, `add_path`). Some structures also list or draw labellings (`rank`,
`draw`). This file derives everything else, once for all structures: checks, chunks, threads, and the joining of partial results.
"""

import itertools
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, Optional, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..arrays import Scores
from ..checks import ANY, count
from ..errors import Errors
from ..kernels import checks, linear_chain
from ..kernels.spans import SpanStates as SpanStates
from ..schemes import Segments
from ..types import Bools, ChainClamp, Floats, Ints, Path, Seed, StateGraph
from .threads import run_chunks

States = NDArray[np.int32]
OfWork = TypeVar("OfWork", bound="Work")
OfStructure = TypeVar("OfStructure", bound="Structure")
Result = TypeVar("Result")

# In place of a graph without states, since kernels want one: it begins no sequence
_NO_STATES = StateGraph(
    source=np.zeros(0, np.int32),
    target=np.zeros(0, np.int32),
    scores=np.zeros(0),
    first=np.full(1, -np.inf),
    last=np.full(1, -np.inf),
    tag_of=np.zeros(1, np.int32),
)


class LikelySpans(NamedTuple):
    """Spans with their probabilities."""

    segments: Segments  # N of them
    probabilities: Floats  # [N]

    def moved(self, tokens: int) -> "LikelySpans":
        """The spans, shifted to the right by a number of tokens."""
        start, end, label = self.segments
        return LikelySpans(Segments(start + tokens, end + tokens, label), self.probabilities)

    @classmethod
    def join(cls, parts: "Sequence[LikelySpans]") -> "LikelySpans":
        """Join several lists of spans, in their order.

        parts (Sequence[LikelySpans]): The lists.
        """
        columns = zip(*[part.segments for part in parts])
        probabilities = [part.probabilities for part in parts]
        return cls(Segments(*map(np.concatenate, columns)), np.concatenate(probabilities))


def collect(search: Callable[..., int], size: int) -> LikelySpans:
    """Call a kernel that lists spans, again with larger arrays if the first ones are too small.

    search (Callable): The kernel. It fills begin, end, label (int64[N]) and probabilities (float64[N]), and returns how many
        spans there are; where the arrays are full, it goes on counting.
    size (int): N for the first call.
    """
    while True:
        begin, end, label = np.empty((3, size), dtype=np.int64)
        probabilities = np.empty(size)
        found = search(begin, end, label, probabilities)
        if found <= size:
            return LikelySpans(Segments(begin[:found], end[:found], label[:found]), probabilities[:found])
        size = found


class Chunk(NamedTuple):
    """Neighbouring sequences of a batch, and their tokens."""

    sequences: slice
    tokens: slice


class Expansion:
    """Scores that all sequences share, expanded from tags to the states of a graph.

    graph (StateGraph): The graph.
    arrays (dict[str, Floats]): The expanded arrays, by the name of the scores.
    """

    def __init__(self, graph: StateGraph, arrays: dict[str, Floats]):
        self.graph = graph
        self.arrays = arrays
        self._cached: dict[object, Any] = {}
        # The argument and the result of the latest call of `spans`
        self._spans: Optional[tuple[SpanStates, SpanStates]] = None

    def cached(self, key: object, compute: Callable[[], Result]) -> Result:
        """The result of `compute`, which is called once for each key.

        key (object): What names the result.
        compute (Callable): The function that computes the result.
        """
        if key not in self._cached:
            self._cached[key] = compute()
        return self._cached[key]

    def spans(self, tag_spans: SpanStates) -> SpanStates:
        """How the graph's states encode spans.

        tag_spans (SpanStates): How tags encode spans.
        """
        # Other threads may replace `_spans` at any time, so it is read once
        latest_tag_spans, state_spans = self._spans or (None, tag_spans)
        if latest_tag_spans is None or latest_tag_spans.continues is not tag_spans.continues:
            state_spans = tag_spans.over(self.graph.tag_of)
            self._spans = (tag_spans, state_spans)
        return state_spans


class Work(Generic[Scores]):
    """Checked scores with a clamp: of all sequences, or of a chunk. Caches arrays that are derived from the scores.

    scores (Scores): The scores, as `arrays.conform` returns them; over the states of a graph if the structure has one.
    clamp: What is still allowed, or None.
    original (Scores): The scores as the caller passed them.
    whole (Work): For a chunk the work of all sequences, which holds what chunks share; None for the work of all sequences.
    """

    expansion: Optional[Expansion] = None  # of the work of all sequences, if states are those of a graph

    def __init__(
        self,
        scores: Scores,
        clamp: Optional[ChainClamp] = None,
        original: Optional[Scores] = None,
        whole: Optional["Work[Scores]"] = None,
    ):
        self.scores = scores
        self.clamp: Any = clamp  # of the class that the structure takes
        self.original = scores if original is None else original
        self._whole: Any = whole
        self.starts: Ints = scores.starts
        self.n_tokens, self.n_states = scores[0].shape
        self.n_sequences = len(scores.starts) - 1

    # Not cached: up to Python 3.11 a cached property takes a lock, which takes longer

    @property
    def per_position(self) -> bool:
        """Whether transitions depend on the token."""
        return self.scores.transitions.ndim == 3

    @property
    def transitions(self) -> Floats:
        """Scores of transitions: float64[1 or T, S, S]."""
        transitions = self.scores.transitions
        return transitions if self.per_position else transitions[np.newaxis]

    @property
    def whole(self: OfWork) -> OfWork:
        """The work of all sequences, which this work may be a chunk of."""
        # A reference from an object to itself would keep its arrays alive until Python looks for cycles
        return self if self._whole is None else self._whole

    @property
    def tag_of(self) -> Optional[NDArray[np.int32]]:
        """Tag of each state: int32[S], None where states are tags."""
        expansion = self.expansion if self._whole is None else self._whole.expansion
        return None if expansion is None else expansion.graph.tag_of

    @property
    def n_tags(self) -> int:
        """Number of tags; where states are those of a graph, `n_states` differs."""
        return np.shape(self.original[0])[1]

    def clamped(self: OfWork, clamp: ChainClamp) -> OfWork:
        """These scores with another clamp.

        clamp (ChainClamp): What is still allowed, by tag.
        """
        return type(self)(self.scores, self.in_states(clamp), self.original, self.whole)

    def in_states(self, clamp: ChainClamp) -> ChainClamp:
        """Check a clamp of tags, and turn it into a clamp of states.

        clamp (ChainClamp): What is still allowed, by tag.
        """
        clamp = arrays.check_clamp(clamp, self.n_tokens, self.n_tags)
        return clamp if self.tag_of is None else arrays.expand_clamp(clamp, self.tag_of)

    def most_tokens(self, tokens: int) -> int:
        """How many tokens a chunk of these scores may have. `tokens` is the default of the structure."""
        return tokens

    def chunks(self, tokens: int) -> list[Chunk]:
        """Divide the sequences into chunks of about `tokens` tokens each."""
        tokens = self.most_tokens(tokens)
        if self.n_tokens <= tokens:
            return [self.chunk(0, self.n_sequences)]
        # A sequence belongs to the block of `tokens` tokens in which it begins
        blocks = self.starts[:-1] // tokens
        cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
        return [self.chunk(begin, end) for begin, end in itertools.pairwise(cuts)]

    def chunk(self, begin: int, end: int) -> Chunk:
        """The chunk of the sequences begin to end - 1."""
        return Chunk(slice(begin, end), slice(int(self.starts[begin]), int(self.starts[end])))

    def cut(self: OfWork, chunk: Chunk) -> OfWork:
        """The scores and the clamp of one chunk."""
        sequences, tokens = chunk
        if sequences.stop - sequences.start == self.n_sequences:
            return self
        return self._part(tokens, self.starts[sequences.start : sequences.stop + 1] - tokens.start)

    def only(self: OfWork, sequences: Bools) -> tuple[OfWork, Bools]:
        """The scores and the clamp of chosen sequences.

        sequences (bool[B]): Which sequences are chosen.
        RETURNS (Work, bool[T]): The scores, and which tokens they belong to.
        """
        lengths = np.diff(self.starts)
        is_chosen = np.repeat(sequences, lengths)
        starts = np.append(0, np.cumsum(lengths[sequences]))
        return self._part(np.flatnonzero(is_chosen), starts), is_chosen

    def _part(self: OfWork, tokens: arrays.Tokens, starts: Ints) -> OfWork:
        """The scores and the clamp of `tokens` (a slice or int64[N]), in sequences that start at `starts`."""
        scores = arrays.cut(self.scores, tokens, starts)
        clamp = arrays.cut_clamp(self.clamp, tokens)
        return type(self)(scores, clamp, self.original, self.whole)

    @cached_property
    def predecessors(self) -> tuple[Ints, Ints]:
        """The A possible transitions, by target: for each state the states before it, in rising order.

        RETURNS (int64[S + 1], int64[A]): `starts` and `sources`. Transitions lead to state j from
            sources[starts[j] : starts[j + 1]].
        """
        if self.whole is not self:
            return self.whole.predecessors
        target, source = np.nonzero((self.transitions > -np.inf).any(axis=0).T)
        starts = np.searchsorted(target, np.arange(self.n_states + 1))
        # `nonzero` returns columns of one array, for which kernels would be compiled once more
        return starts, np.ascontiguousarray(source)

    def ends(self) -> tuple[Ints, Ints]:
        """First and last token of each sequence that has tokens: int64[N] each."""
        has_tokens = self.starts[:-1] < self.starts[1:]
        return self.starts[:-1][has_tokens], self.starts[1:][has_tokens] - 1

    def check_weights(self, weights: Optional[Floats]) -> Floats:
        """Check the factors of the sequences, and return them: float64[B].

        weights (float64[B]): The factors; None for ones.
        """
        if weights is None:
            return np.ones(self.n_sequences)
        arrays.check_shape("weights", weights, (self.n_sequences,), "one number per sequence")
        return arrays.contiguous(weights, np.float64)

    def check_states(self, states: States) -> States:
        """Check one labelling for each sequence, and return the labellings: int32[T].

        states (int32[T]): The labellings; -1 stands for no state.
        RAISES (ValueError): CRF011 or CRF013 for labellings that do not fit the scores.
        """
        arrays.check_shape("states", states, (self.n_tokens,), "one state per token")
        states = arrays.contiguous(states, np.int32)
        if len(states) and states.max() >= self.n_tags:
            token = int(states.argmax())
            raise ValueError(Errors.CRF013.format(token=token, state=states[token], states=self.n_tags))
        return states


ScoresOrWork = Union[Scores, Work[Scores]]


class Structure(Generic[Scores]):
    """A family of labellings, which answers questions about sums and maxima over the labellings. All data are in the scores.

    Every question takes the scores of a batch of B sequences, laid end to end, or the result of `prepare`. If no labelling
    remains, the log partition and the best score are -inf, expectations and marginals are 0, and paths hold -1. The empty
    sequence has one labelling, of score 0.

    threads (int): How many chunks of sequences may run at a time; results do not depend on it.

    Arguments of the questions:

    scores (Scores or Work): Potentials of B sequences.
    clamp: What is still allowed; None allows everything. The questions are about labellings that the clamp allows.
    weights (float64[B]): Factor of each sequence, 1 by default.
    states (int32[T]): One labelling for each sequence; -1 stands for no state.
    spans (SpanStates): How states encode spans.
    """

    # The optional questions that the structure answers, and "exact" if sums and maxima are those of all labellings, not
    # approximate. Without "path" a labelling may have several paths: its score is their log-sum, but `viterbi` and `n_best`
    # return single paths
    answers: frozenset[str] = frozenset(["exact", "path", "n_best", "sample", "span_probabilities", "likely_spans"])
    # About how many tokens a chunk has: so many that a kernel takes longer than its call. By default all tokens are one chunk.
    # The number does not depend on the number of threads, so that sums over chunks have the same bits with any number.
    chunk_tokens: ClassVar[int] = 1 << 62
    uniforms: ClassVar[tuple[int, ...]] = ()  # shape of the random numbers that `draw` takes for one token
    work: ClassVar[type[Work]]

    graph: Optional[StateGraph] = None  # the graph whose paths are the labellings
    _expansions: arrays.LatestResults  # expansions for the graph

    def __init__(self, *, threads: int = 1):
        self.threads = threads

    @property
    def signature(self) -> bytes:
        """Bytes that are equal for structures that give the same answers."""
        settings = {name: getattr(value, "signature", value) for name, value in vars(self).items() if name != "threads"}
        return repr((type(self).__name__, settings)).encode("utf8")

    def with_threads(self: OfStructure, threads: int) -> OfStructure:
        """A copy that uses this number of threads."""
        structure = copy(self)
        structure.threads = threads
        return structure

    def over(self, graph: StateGraph) -> "Structure[Scores]":
        """A copy of this structure whose labellings are the sequences of tags along the paths of a graph, which encodes rules or
        copies of tags.

        Questions and answers stay in tags: each state of the graph takes the scores of its tag, and results for states are added
        up by tag. The score of a labelling is the log-sum over its paths; graphs of deterministic automata have at most one path
        for each labelling. `viterbi`, `n_best` and `sample` find paths.

        graph (StateGraph): The graph.
        """
        structure = copy(self)
        structure.graph = graph if len(graph.tag_of) else _NO_STATES
        structure.answers = self.answers - {"path"}
        structure._expansions = arrays.LatestResults()
        return structure

    # ------------------------------------------------------------------------------------ methods that a structure adds

    def forward(self, work: Work[Scores]) -> Floats:
        """Log partitions of a chunk: float64[B].

        work (Work): Potentials of the chunk.
        """
        return self.expect(work, np.ones(work.n_sequences), arrays.zeros(work.scores))

    def expect(self, work: Work[Scores], weights: Floats, out: Scores) -> Floats:
        """Differentiate the log partitions of a chunk.

        work (Work): Potentials of B sequences.
        weights (float64[B]): Factor of each sequence.
        out (Scores): Zeros, which become the derivative of sum_b weights[b] · log_z[b] with respect to every score.
        RETURNS (float64[B]): Log partitions.
        """
        raise NotImplementedError

    def best(self, work: Work[Scores]) -> Path:
        """Best path of each sequence of a chunk.

        Unless a structure documents another order, ties go to the lower last state, then to the lower state before it,
        and so on.

        work (Work): Potentials of the chunk.
        RETURNS (Path): States and their total score.
        """
        raise NotImplementedError

    def rank(self, work: Work[Scores], states: States, scores: Floats) -> int:
        """Find the n best paths of a single sequence that has tokens, ties as in `best`.

        work (Work): Potentials of the sequence.
        states (int32[n, T]): Receives the paths, best first.
        scores (float64[n]): Receives their scores.
        RETURNS (int): How many paths there are.
        """
        raise NotImplementedError

    def draw(self, work: Work[Scores], uniforms: Floats) -> States:
        """Draw n paths of a chunk.

        work (Work): Potentials of the chunk.
        uniforms (float64[n, T, ...]): Random numbers in [0, 1).
        RETURNS (int32[n, T]): The paths.
        """
        raise NotImplementedError

    def labels(self, work: Work[Scores], path: States) -> States:
        """The labelling that a path encodes: int32[T].

        work (Work): Potentials, whose states may be those of a graph.
        path (int32[T]): A path of these states.
        """
        return path if work.tag_of is None else arrays.tags_of(path, work.tag_of)

    def count(self, work: Work[Scores], path: States, weights: Floats, out: Scores) -> None:
        """Add the weighted use of each score by a path.

        work (Work): Potentials of B sequences.
        path (int32[T]): One path for each sequence.
        weights (float64[B]): Factor of each sequence.
        out (Scores): Receives the sums, for the scores that the caller gave.
        """
        if work.tag_of is None:
            self.add_path(work, path, weights, out)
            return
        # States of a graph share the scores of their tag: uses are added up by tag
        used = arrays.zeros(work.scores)
        self.add_path(work, path, weights, used)
        arrays.add(out, self.narrow(work, used), slice(0, work.n_tokens))

    def weigh_spans(self, work: Work[Scores], spans: SpanStates, segments: Segments) -> Floats:
        """Probabilities of spans of a chunk, for `span_probabilities`: float64[N].

        work (Work): Potentials of the chunk.
        spans (SpanStates): How states encode spans.
        segments (Segments): N spans, by their first token.
        """
        raise NotImplementedError

    def list_spans(self, work: Work[Scores], spans: SpanStates, min_prob: float) -> LikelySpans:
        """The spans of a chunk that are at least as probable as `min_prob`, for `likely_spans`.

        work (Work): Potentials of the chunk.
        spans (SpanStates): How states encode spans.
        min_prob (float): The least probability.
        """
        raise NotImplementedError

    def score_segments(self, work: Work[Scores], begin: Ints, end: Ints) -> Floats:
        """Scores of segments without transitions, first and last: float64[N, S], -inf for segments longer than K.

        work (Work): Potentials of the sequences.
        begin (int64[N]): First token of each segment.
        end (int64[N]): The token behind each segment.
        """
        raise NotImplementedError

    def segments_derivative(self, work: Work[Scores], begin: Ints, end: Ints, derivative: Floats) -> Scores:
        """Backpropagate through `score_segments`, where a segment at an end of its sequence also uses `first` or `last`.
        Segments longer than K add nothing.

        work (Work): Potentials of the sequences.
        begin (int64[N]): First token of each segment.
        end (int64[N]): The token behind each segment.
        derivative (float64[N, S]): The derivative with respect to the scores of segments.
        RETURNS (Scores): The derivative with respect to all scores; 0 for transitions.
        """
        raise NotImplementedError

    def only(self, work: Work[Scores], states: States) -> ChainClamp:
        """The clamp that allows one labelling for each sequence.

        work (Work): Potentials of B sequences.
        states (int32[T]): The labellings.
        """
        return states[:, np.newaxis] == np.arange(work.n_tags)

    def only_path(self, clamp: ChainClamp) -> Optional[States]:
        """The labelling that a clamp allows (int32[T]); None if it allows none or several.

        clamp (ChainClamp): What is still allowed.
        """
        states = np.empty(len(clamp), dtype=np.int32)
        return states if linear_chain.only_path(arrays.contiguous(clamp, np.bool_), states) else None

    def score_path(self, work: Work[Scores], states: States) -> Floats:
        """Score of one labelling for each sequence: float64[B], -inf for labellings that are forbidden or hold -1.

        work (Work): Potentials of B sequences.
        states (int32[T]): The labellings.
        """
        return self.log_partition(work, clamp=self.only(work, states))

    def add_path(self, work: Work[Scores], states: States, weights: Floats, out: Scores) -> None:
        """Add the weighted use of each score by one labelling for each sequence.

        work (Work): Potentials of B sequences.
        states (int32[T]): The labellings.
        weights (float64[B]): Factor of each sequence.
        out (Scores): Receives the sums.
        """
        _, used = self.expectations(work, clamp=self.only(work, states), weights=weights)
        arrays.add(out, used, slice(0, work.n_tokens))

    # --------------------------------------------------------------------------------- methods common to all structures

    def prepare(
        self, scores: ScoresOrWork, clamp: Optional[ChainClamp] = None, *, annotated: Optional[ChainClamp] = None
    ) -> Work[Scores]:
        """Check scores once, for several questions.

        scores (Scores or Work): Potentials of B sequences.
        clamp (ChainClamp): What is still allowed, or None.
        annotated (ChainClamp): In training what the annotation allows; a structure that prunes labellings keeps these labellings.
        RAISES (ValueError): CRF010 to CRF016 for scores that are not usable.
        """
        if isinstance(scores, Work):
            return scores if clamp is None else scores.clamped(clamp)
        conforming = self.conform(scores)
        if self.graph is None:
            work = self.work(conforming, original=scores)
        else:
            expansion = self.expansion(conforming, self.graph)
            token_names = [name for name in arrays.named(conforming) if name not in expansion.arrays]
            token_arrays = arrays.expand(conforming, expansion.graph, token_names)
            work = self.work(conforming._replace(**expansion.arrays, **token_arrays), original=scores)
            work.expansion = expansion
        return work if clamp is None else work.clamped(clamp)

    def expansion(self, scores: Scores, graph: StateGraph) -> Expansion:
        """Expand the scores of tags that all sequences share to the graph's states.

        States whose tag is impossible at every token are left out, since their scores of -inf would keep sums out of the linear
        domain. If all states are impossible they stay, since kernels need a state.

        scores (Scores): Potentials by tag.
        graph (StateGraph): The graph.
        """
        shared = [name for name in arrays.named(scores) if arrays.is_shared(scores, name)]

        def expand(possible: Bools, *_: Floats) -> Expansion:
            """Expand `scores`; the further arguments are its shared arrays, on which the result depends too."""
            is_kept = possible[graph.tag_of]
            part = arrays.part_of_graph(graph, is_kept) if is_kept.any() and not is_kept.all() else graph
            return Expansion(part, arrays.expand(scores, part, shared))

        possible = (scores[0] > -np.inf).any(axis=0)  # [S] tags that a token may have
        shared_arrays = [getattr(scores, name) for name in shared]
        return self._expansions.of(expand, possible, *shared_arrays)

    def conform(self, scores: Scores) -> Scores:
        """Check scores, and return them in the form that the kernels take.

        scores (Scores): Potentials of B sequences.
        RAISES (ValueError): CRF010 to CRF012 for scores that are not usable.
        """
        conforming = arrays.conform(scores)
        flat = tuple([array.ravel() for array in conforming[: len(conforming.AXES)]])
        if not checks.well_formed(conforming.starts, len(conforming[0]), flat):
            arrays.refuse(conforming)
        return conforming

    def narrow(self, work: Work[Scores], expected: Scores) -> Scores:
        """Turn derivatives with respect to scores of states into derivatives with respect to the scores that the caller passed.

        work (Work): The potentials.
        expected (Scores): Derivatives with respect to the scores of the work, whose states may be those of a graph.
        """
        if work.tag_of is not None and work.whole.expansion is not None:
            expected = arrays.contract(expected, work.whole.expansion.graph, work.n_tags)
        return work.original._replace(**{name: getattr(expected, name) for name in work.original.AXES})

    def log_partition(self, scores: ScoresOrWork, *, clamp: Optional[ChainClamp] = None) -> Floats:
        """Log of the sum over all labellings: log_z[b] = log sum_y exp(score(y)).

        scores (Scores or Work): Potentials of B sequences.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (float64[B]): Log partitions.
        """
        work = self.prepare(scores, clamp)
        if work.n_tokens <= self.chunk_tokens:  # for a short text, chunking would take as long as the sums
            return self.forward(work)
        log_z = np.empty(work.n_sequences)

        def sum_chunk(chunk: Chunk) -> None:
            log_z[chunk.sequences] = self.forward(work.cut(chunk))

        self._in_chunks(work, sum_chunk)
        return log_z

    def expectations(
        self, scores: ScoresOrWork, *, clamp: Optional[ChainClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores]:
        """Log partitions, and the derivative of sum_b weights[b] · log_z[b] with respect to every score.

        scores (Scores or Work): Potentials of B sequences.
        clamp (ChainClamp): What is still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], Scores): Log partitions, and the expected number of uses of each score, times the weights. A sequence
            without any labelling uses nothing.
        """
        work = self.prepare(scores, clamp)
        weights = work.check_weights(weights)
        log_z = np.empty(work.n_sequences)
        total = arrays.zeros(work.scores)
        if work.n_tokens <= work.most_tokens(self.chunk_tokens):
            log_z[:] = self.expect(work, weights, total)
            return log_z, self.narrow(work, total)

        def expect_chunk(chunk: Chunk) -> Scores:
            chunk_total = arrays.part_of(total, chunk.tokens)  # arrays of tokens are views of `total`
            log_z[chunk.sequences] = self.expect(work.cut(chunk), weights[chunk.sequences], chunk_total)
            return chunk_total

        for chunk_total in self._in_chunks(work, expect_chunk):
            arrays.add_shared(total, chunk_total)
        return log_z, self.narrow(work, total)

    def marginals(self, scores: ScoresOrWork, *, clamp: Optional[ChainClamp] = None) -> Floats:
        """Probability of each state at each token.

        scores (Scores or Work): Potentials of B sequences.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (float64[T, S]): Rows with sum 1; all 0 in a sequence without any labelling.
        """
        _, expected = self.expectations(scores, clamp=clamp)
        uses_of_states = expected[0]  # the first field of all classes of scores: of each state at each token
        return np.clip(uses_of_states, 0.0, 1.0)

    def viterbi(self, scores: ScoresOrWork, *, clamp: Optional[ChainClamp] = None) -> Path:
        """Best labelling of each sequence, with ties as in `best`.

        scores (Scores or Work): Potentials of B sequences.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (Path): States int32[T] and scores float64[B].
        """
        work = self.prepare(scores, clamp)
        path = self._best(work)
        return Path(self.labels(work, path.states), path.scores)

    def _best(self, work: Work[Scores]) -> Path:
        """Best paths of all sequences, chunk by chunk."""
        if work.n_tokens <= self.chunk_tokens or self.threads == 1:  # no sums over chunks: nothing to gain
            return self.best(work)
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))

        def decode_chunk(chunk: Chunk) -> None:
            path.states[chunk.tokens], path.scores[chunk.sequences] = self.best(work.cut(chunk))

        self._in_chunks(work, decode_chunk)
        return path

    def viterbi_counts(
        self, scores: ScoresOrWork, *, clamp: Optional[ChainClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Scores]:
        """`expectations` with max in place of log-sum: the scores of the best paths, and what they use.

        scores (Scores or Work): Potentials of B sequences.
        clamp (ChainClamp): What is still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], Scores): Best scores, and the weighted use of each score by the best paths.
        """
        work = self.prepare(scores, clamp)
        path = self._best(work)
        used = arrays.zeros(work.original)
        self.count(work, path.states, work.check_weights(weights), used)
        return path.scores, used

    def path_score(self, scores: ScoresOrWork, states: States) -> Floats:
        """Score of one labelling for each sequence.

        scores (Scores or Work): Potentials of B sequences.
        states (int32[T]): The labellings.
        RETURNS (float64[B]): The scores, -inf for labellings that are forbidden or hold -1.
        """
        work = self.prepare(scores)
        states = work.check_states(states)
        if work.tag_of is None:
            return self.score_path(work, states)
        return Structure.score_path(self, work, states)  # sums over the paths of the labelling

    def path_expectations(
        self, scores: ScoresOrWork, states: States, *, weights: Optional[Floats] = None, out: Optional[Scores] = None
    ) -> Scores:
        """Weighted use of each score by one labelling for each sequence.

        scores (Scores or Work): Potentials of B sequences.
        states (int32[T]): The labellings.
        weights (float64[B]): Factor of each sequence, 1 by default.
        out (Scores): Receives the sums; zeros if None.
        RETURNS (Scores): `out`.
        """
        work = self.prepare(scores)
        used = arrays.zeros(work.original) if out is None else out
        states = work.check_states(states)
        weights = work.check_weights(weights)
        if work.tag_of is None:
            self.add_path(work, states, weights, used)
        else:
            # A labelling has several paths: sum over all of them, where a subclass adds a single one
            Structure.add_path(self, work, states, weights, used)
        return used

    def differentiate_path(self, work: Work[Scores], states: States, weights: Floats) -> tuple[Floats, Floats, Scores]:
        """Differentiate sum_b weights[b] · (log_z[b] - score of the labelling of sequence b). Sequences with an impossible
        labelling add nothing.

        work (Work): Potentials of B sequences.
        states (int32[T]): One labelling for each sequence.
        weights (float64[B]): Factor of each sequence.
        RETURNS (float64[B], float64[B], Scores): Log partitions, scores of the labellings, and the derivative.
        """
        # d (log_z - score(y)) = expectations - uses of y
        path_scores = self.path_score(work, states)
        weights = np.where(path_scores > -np.inf, weights, 0.0)
        log_z, derivative = self.expectations(work, weights=weights)
        self.path_expectations(work, states, weights=-weights, out=derivative)
        return log_z, path_scores, derivative

    def log_probability(self, scores: ScoresOrWork, states: States) -> Floats:
        """Normalised score of one labelling for each sequence.

        scores (Scores or Work): Potentials of B sequences.
        states (int32[T]): The labellings.
        RETURNS (float64[B]): score - log_z, at most 0.
        """
        work = self.prepare(scores)
        log_probability = self.path_score(work, states)
        is_possible = log_probability > -np.inf
        # Impossible labellings stay at -inf; -inf - -inf would be NaN
        np.subtract(log_probability, self.log_partition(work), out=log_probability, where=is_possible)
        return np.minimum(log_probability, 0.0, out=log_probability)

    def n_best(
        self, scores: ScoresOrWork, n: int, *, clamp: Optional[ChainClamp] = None
    ) -> list[list[tuple[float, States]]]:
        """The n best labellings of each sequence, best first; fewer where fewer exist.

        scores (Scores or Work): Potentials of B sequences.
        n (int): How many labellings.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (list[list[tuple[float, int32[n]]]]): Scores and states, one list for each sequence.
        """
        count("n_best", "n", n, most=ANY)
        work = self.prepare(scores, clamp)

        def search(b: int) -> list[tuple[float, States]]:
            sequence = work.cut(work.chunk(b, b + 1))
            states = np.empty((n, sequence.n_tokens), dtype=np.int32)
            scores = np.zeros(n)
            # The empty sequence has one labelling, of score 0
            n_paths = self.rank(sequence, states, scores) if sequence.n_tokens else 1
            return [(score, self.labels(work, path)) for score, path in zip(scores[:n_paths].tolist(), states)]

        return run_chunks(search, range(work.n_sequences), self.threads)

    def sample(self, scores: ScoresOrWork, n: int, *, seed: Seed, clamp: Optional[ChainClamp] = None) -> States:
        """Draw n labellings. One seed gives one answer for any number of threads.

        scores (Scores or Work): Potentials of B sequences.
        n (int): How many labellings.
        seed (Seed): Seed of the random numbers.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (int32[n, T]): The labellings.
        """
        work = self.prepare(scores, clamp)
        # Drawn before the batch is divided into chunks, so that these do not matter
        uniforms = np.random.default_rng(seed).random((n, work.n_tokens, *self.uniforms))
        states = np.empty((n, work.n_tokens), dtype=np.int32)

        def draw_chunk(chunk: Chunk) -> None:
            states[:, chunk.tokens] = self.draw(work.cut(chunk), np.ascontiguousarray(uniforms[:, chunk.tokens]))

        self._in_chunks(work, draw_chunk)
        return self.labels(work, states)

    def span_probabilities(
        self, scores: ScoresOrWork, spans: SpanStates, segments: Segments, *, clamp: Optional[ChainClamp] = None
    ) -> Floats:
        """Probability that exactly these tokens are one span of this label, summed over all labellings that contain the
        span.

        scores (Scores or Work): Potentials of B sequences.
        spans (SpanStates): How states encode spans.
        segments (Segments): N spans, by their first token; each inside one sequence.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (float64[N]): The probabilities.
        """
        work = self.prepare(scores, clamp)
        begin, end, label = [np.ascontiguousarray(column, dtype=np.int64) for column in segments]
        probabilities = np.zeros(len(begin))
        if not len(begin):
            return probabilities
        has_span = np.zeros(work.n_sequences, dtype=bool)
        has_span[np.searchsorted(work.starts, begin, side="right") - 1] = True
        if not has_span.all():  # most sentences of a novel have no span, and are left out
            work, is_chosen = work.only(has_span)
            new_index = np.append(0, np.cumsum(is_chosen))  # [T + 1] of each token
            begin = new_index[begin]
            end = new_index[end]

        def weigh(chunk: Chunk) -> None:
            offset = chunk.tokens.start
            first, behind = np.searchsorted(begin, [offset, chunk.tokens.stop])
            in_chunk = slice(first, behind)
            chunk_segments = Segments(begin[in_chunk] - offset, end[in_chunk] - offset, label[in_chunk])
            probabilities[in_chunk] = self.weigh_spans(work.cut(chunk), spans, chunk_segments)

        self._in_chunks(work, weigh)
        return probabilities

    def likely_spans(
        self, scores: ScoresOrWork, spans: SpanStates, min_prob: float, *, clamp: Optional[ChainClamp] = None
    ) -> LikelySpans:
        """All spans whose probability is at least `min_prob`, by their first token.

        scores (Scores or Work): Potentials of B sequences.
        spans (SpanStates): How states encode spans.
        min_prob (float): The least probability. With 0 the answer has every possible span; their number grows with the
            square of the tokens.
        clamp (ChainClamp): What is still allowed, or None.
        RETURNS (LikelySpans): The spans with their probabilities.
        """
        work = self.prepare(scores, clamp)

        def search(chunk: Chunk) -> LikelySpans:
            return self.list_spans(work.cut(chunk), spans, min_prob).moved(chunk.tokens.start)

        return LikelySpans.join(self._in_chunks(work, search))

    def _in_chunks(self, work: Work[Scores], function: Callable[[Chunk], Result]) -> list[Result]:
        """Call a function for each chunk in several threads. RETURNS (list[Result]): The results, in the order of the chunks."""
        return run_chunks(function, work.chunks(self.chunk_tokens), self.threads)
