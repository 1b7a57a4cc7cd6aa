"""Semi-Markov chains: sums, maxima, paths and samples of batches of segmented sequences.

A path is one int32 per token: the state where a segment begins, GOES_ON at its other tokens, -1 where there is no path.
"""

import itertools
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels import announce_compilation
from ..kernels import semi_markov as kernels
from ..kernels.numerics import SPREAD
from ..types import GOES_ON, Floats, Path, SegmentClamp, SegmentScores, SpanList
from .threads import run_chunks

CHUNK_TOKENS = 2048  # see linear_chain

States = NDArray[np.int32]


class SegmentMarginals(NamedTuple):
    """Segments and their probabilities, in the order of their first token, their length and their state."""

    begin: NDArray[np.int64]  # [M]
    end: NDArray[np.int64]  # [M]
    state: NDArray[np.int32]  # [M]
    probability: Floats  # [M]


class Segments(NamedTuple):
    """The segments of a path, in their order."""

    begin: NDArray[np.int64]  # [N]
    end: NDArray[np.int64]  # [N]
    state: NDArray[np.int32]  # [N]


def segments_of(states: States) -> Segments:
    """The segments of a path (int32[T]). Where there is no path (-1) there is none."""
    [begin] = np.nonzero(states != GOES_ON)
    end = np.append(begin[1:], len(states))
    real = states[begin] >= 0
    return Segments(begin[real], end[real], states[begin][real])


def add_spans(
    listed: Optional[SpanList], begin: NDArray[np.int64], end: NDArray[np.int64], n_tokens: int
) -> tuple[SpanList, NDArray[np.int64], NDArray[np.int64]]:
    """A list with more spans in it, some of which may be there already.

    RETURNS (SpanList, int64[M], int64[N]): The list, and the numbers that those have in it that were there before, and these.
    """
    starts, lengths = listed or (np.zeros(n_tokens + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    width = 1 + max(int(lengths.max(initial=0)), int((end - begin).max(initial=0)))
    before = np.repeat(np.arange(n_tokens), np.diff(starts)) * width + lengths
    added = begin * width + (end - begin)
    keys = np.union1d(before, added).astype(np.int64)
    starts = np.append(0, np.cumsum(np.bincount(keys // width, minlength=n_tokens))).astype(np.int64)
    together = SpanList(starts, (keys % width).astype(np.int32))
    return together, np.searchsorted(keys, before), np.searchsorted(keys, added)


def list_spans(
    scores: SegmentScores, begin: NDArray[np.int64], end: NDArray[np.int64]
) -> tuple[SegmentScores, NDArray[np.int64], NDArray[np.int64]]:
    """The same potentials with more spans listed, which get scores of 0.

    scores (SegmentScores): Potentials of B sequences.
    begin, end (int64[N]): The spans, each of 1 to K tokens within a sequence; some may be listed already.
    RETURNS (SegmentScores, int64[M], int64[N]): The potentials, and the numbers as in `add_spans`.
    """
    listed, own, numbers = add_spans(scores.listed, begin, end, len(scores.tokens))
    spans = np.zeros((len(listed.lengths), np.shape(scores.tokens)[1]))
    spans[own] = scores.spans
    return scores._replace(spans=spans, listed=listed), own, numbers


def every_span(starts: NDArray[np.int64], longest: int) -> SpanList:
    """All spans of 1 to K tokens within B sequences (int64[B + 1])."""
    behind = np.repeat(starts[1:], np.diff(starts))
    counts = np.minimum(longest, behind - np.arange(len(behind)))
    first = np.append(0, np.cumsum(counts)).astype(np.int64)
    lengths = 1 + np.arange(first[-1]) - np.repeat(first[:-1], counts)
    return SpanList(first, lengths.astype(np.int32))


def scores_of_segments(scores: SegmentScores, begin: NDArray[np.int64], end: NDArray[np.int64]) -> Floats:
    """Scores of given segments, without those of transitions, first and last.

    scores (SegmentScores): Potentials of B sequences.
    begin, end (int64[N]): The segments, each of at least one token and within a sequence.
    RETURNS (float64[N, S]): With each state; -inf for segments of more than K tokens.
    """
    batch = _check(scores)
    whole = batch.cut(batch.chunk(0, len(batch.starts) - 1)).folded
    length, last = end - begin, end - 1
    possible = length <= len(batch.lengths)
    found = whole.opening[begin] + whole.closing[last]
    found += batch.lengths[np.where(possible, length, 1) - 1]
    number = whole.span_of[begin, np.where(possible, length, 1) - 1]
    number[~possible] = -1
    found[number >= 0] += batch.spans[number[number >= 0]]
    found[~possible[:, np.newaxis] | (whole.reach[last] > begin[:, np.newaxis])] = -np.inf
    return found


def derivative_of_segments(
    scores: SegmentScores, begin: NDArray[np.int64], end: NDArray[np.int64], derivative: Floats
) -> SegmentScores:
    """The way back: the derivative with respect to every score, of what depends on the scores of given segments.

    scores (SegmentScores): Potentials of B sequences. Only their shapes matter.
    begin, end (int64[N]): The segments; those of more than K tokens count for nothing.
    derivative (float64[N, S]): With respect to the score of each with each state.
    RETURNS (SegmentScores): Those of transitions are 0. Each segment at an end of its sequence uses `first` or `last`.
    """
    batch = _check(scores)
    out = batch.empty_scores()
    for array in (out.begins, out.ends, out.spans):
        array[:] = 0.0
    possible = end - begin <= len(batch.lengths)
    rows = batch.rows_of(out)
    kernels.add_segments(begin[possible], end[possible], derivative[possible], rows)
    kernels.cover(rows)
    opening, closing = batch.first_tokens()
    out.first[:] = out.begins[opening].sum(axis=0)
    out.last[:] = out.ends[closing].sum(axis=0)
    return out._replace(listed=scores.listed, starts=scores.starts)


class SemiMarkov:
    """Answers the questions of `Structure` for `SegmentScores`. Clamps are `SegmentClamp`.

    threads (int): How many chunks of sequences may be done at a time; the results don't depend on it.
    """

    def __init__(self, *, threads: int = 1):
        self.threads = threads

    # --------------------------------------------------------------------------------------------------------- sums

    def log_partition(self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None) -> Floats:
        """Log of the sum over all segmentations of exp(score).

        scores (SegmentScores): Potentials of B sequences.
        clamp (SegmentClamp): Segments still allowed, or None.
        RETURNS (float64[B]): -inf where no segmentation is allowed, 0 for an empty sequence.
        """
        batch = _check(scores, clamp)
        shared = None if batch.per_position else _exponentiate(batch)
        log_z = np.empty(len(batch.starts) - 1)

        def sum_chunk(chunk: _Chunk) -> None:
            part = batch.cut(chunk)
            _forward(part, shared or _exponentiate(part), log_z[chunk.sequences])
            _finish_in_log_space(part, log_z[chunk.sequences])

        run_chunks(sum_chunk, batch.chunks(), self.threads)
        return log_z

    def expectations(
        self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, SegmentScores]:
        """Log partitions, and the derivative of sum_b weights[b] · log_z[b] with respect to every score.

        scores (SegmentScores): Potentials of B sequences.
        clamp (SegmentClamp): Segments still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], SegmentScores): Log partitions, and the expected number of times that each score is used, times
            the weights. A sequence without any path uses nothing.
        """
        batch = _check(scores, clamp)
        shared = None if batch.per_position else _exponentiate(batch)
        weights = batch.check_weights(weights)
        log_z = np.empty(len(batch.starts) - 1)
        out = batch.empty_scores()

        def expect_chunk(chunk: _Chunk) -> kernels.Scores:
            part = batch.cut(chunk)
            return _expectations(
                part,
                shared or _exponentiate(part),
                weights[chunk.sequences],
                log_z[chunk.sequences],
                batch.rows_of(out, chunk),
            )

        chunks = batch.chunks()
        for chunk, derivatives in zip(chunks, run_chunks(expect_chunk, chunks, self.threads)):
            out.lengths[:] += derivatives.lengths
            if batch.per_position:
                out.transitions[chunk.tokens] = derivatives.transitions
            else:
                out.transitions[:] += derivatives.transitions[0]
        opening, closing = batch.first_tokens()
        out.first[:] = out.begins[opening].sum(axis=0)
        out.last[:] = out.ends[closing].sum(axis=0)
        return log_z, out._replace(listed=scores.listed, starts=scores.starts)

    def marginals(self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None) -> Floats:
        """Probability that a segment of each state covers each token.

        scores (SegmentScores): Potentials of B sequences.
        clamp (SegmentClamp): Segments still allowed, or None.
        RETURNS (float64[T, S]): Rows with sum 1; all 0 in a sequence without any path.
        """
        return np.clip(self.expectations(scores, clamp=clamp)[1].tokens, 0.0, 1.0)

    def segment_marginals(
        self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None, min_prob: float = 0.01
    ) -> SegmentMarginals:
        """Probability of each segment: that exactly these tokens are a segment of this state.

        scores (SegmentScores): Potentials of B sequences.
        clamp (SegmentClamp): Segments still allowed, or None.
        min_prob (float): Leave out those that are less probable.
        RETURNS (SegmentMarginals): Tokens are counted through the whole batch.
        """
        batch = _check(scores, clamp)
        # one part in a million more, so that a bound such as 1.0 is not missed by rounding
        min_log_prob = np.log(min_prob) - 1e-6 if min_prob > 0 else -np.inf

        def list_chunk(chunk: _Chunk) -> SegmentMarginals:
            part = batch.cut(chunk)
            log_z = np.empty(len(part.starts) - 1)
            entered, _ = _log_forward(part.folded, log_z)
            leaving, _ = _log_backward(part.folded)
            room = 0
            while True:
                found = SegmentMarginals(*np.empty((2, room), dtype=np.int64), np.empty(room, np.int32), np.empty(room))
                count = kernels.list_probable(part.folded, entered, leaving, log_z, min_log_prob, found)
                if count <= room:
                    begin, length, state, log_prob = (array[:count] for array in found)
                    begin = begin + chunk.tokens.start
                    return SegmentMarginals(begin, begin + length, state, np.minimum(np.exp(log_prob), 1.0))
                room = count

        found = run_chunks(list_chunk, batch.chunks(), self.threads)
        return SegmentMarginals(*(np.concatenate(arrays) for arrays in zip(*found)))

    def segment_probabilities(
        self, scores: SegmentScores, segments: Segments, *, clamp: Optional[SegmentClamp] = None
    ) -> Floats:
        """Probabilities of given segments, each a question of its own.

        scores (SegmentScores): Potentials of B sequences.
        segments (Segments): Tokens are counted through the whole batch; each lies within a sequence.
        clamp (SegmentClamp): Segments still allowed, or None.
        RETURNS (float64[N]): 0 for segments that are not possible.
        """
        length = segments.end - segments.begin
        [asked] = np.nonzero((length >= 1) & (length <= len(scores.lengths)))
        # A listed span has an expectation of its own.
        listing, _, numbers = list_spans(scores, segments.begin[asked], segments.end[asked])
        _, expected = self.expectations(listing, clamp=clamp)
        probabilities = np.zeros(len(length))
        probabilities[asked] = expected.spans[numbers, segments.state[asked]]
        return np.clip(probabilities, 0.0, 1.0)

    # -------------------------------------------------------------------------------------------------------- maxima

    def viterbi(self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None) -> Path:
        """Most probable path of each sequence; among equals the one with the lower last state, the shorter last segment, then
        the same of the segment before, and so on.

        scores (SegmentScores): Potentials of B sequences.
        clamp (SegmentClamp): Segments still allowed, or None.
        RETURNS (Path): States and their total score; -1 and -inf where no path is allowed.
        """
        batch = _check(scores, clamp)
        path = Path(np.empty(len(batch.tokens), dtype=np.int32), np.empty(len(batch.starts) - 1))

        def decode_chunk(chunk: _Chunk) -> None:
            part = batch.cut(chunk)
            kernels.viterbi(part.folded, path.states[chunk.tokens], path.scores[chunk.sequences])

        run_chunks(decode_chunk, batch.chunks(), self.threads)
        return path

    def viterbi_counts(
        self, scores: SegmentScores, *, clamp: Optional[SegmentClamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, SegmentScores]:
        """`expectations` with max in place of log-sum.

        scores (SegmentScores): Potentials of B sequences.
        clamp (SegmentClamp): Segments still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], SegmentScores): Scores of the most probable paths, and how often these use each score, times the
            weights.
        """
        path = self.viterbi(scores, clamp=clamp)
        return path.scores, self.path_expectations(scores, path.states, weights=weights)

    def n_best(
        self, scores: SegmentScores, n: int, *, clamp: Optional[SegmentClamp] = None
    ) -> list[list[tuple[float, States]]]:
        """The n most probable paths of each sequence, best first; ties as in `viterbi`.

        scores (SegmentScores): Potentials of B sequences.
        n (int): How many at most: a sequence has fewer where fewer are allowed.
        clamp (SegmentClamp): Segments still allowed, or None.
        RETURNS (list): For each sequence the list of its (score, int32 states).
        """
        if n < 1:
            raise ValueError(Errors.CRF014.format(n=n))
        batch = _check(scores, clamp)

        def search(b: int) -> list[tuple[float, States]]:
            part = batch.cut(batch.chunk(b, b + 1))
            if len(part.tokens) == 0:
                return [(0.0, np.empty(0, dtype=np.int32))]
            states = np.empty((n, len(part.tokens)), dtype=np.int32)
            path_scores = np.empty(n)
            found = kernels.n_best(part.folded, n, states, path_scores)
            return [(float(path_scores[rank]), states[rank]) for rank in range(found)]

        return run_chunks(search, range(len(batch.starts) - 1), self.threads)

    # --------------------------------------------------------------------------------------------------------- paths

    def path_score(self, scores: SegmentScores, states: States) -> Floats:
        """Score of one path per sequence.

        scores (SegmentScores): Potentials of B sequences.
        states (int32[T]): The paths; -1 stands for no path.
        RETURNS (float64[B]): -inf for paths that are not allowed.
        """
        batch = _check(scores)
        path_scores = np.empty(len(batch.starts) - 1)
        kernels.path_score(batch.scores, batch.check_states(states), path_scores)
        return path_scores

    def path_expectations(
        self,
        scores: SegmentScores,
        states: States,
        *,
        weights: Optional[Floats] = None,
        out: Optional[SegmentScores] = None,
    ) -> SegmentScores:
        """Which scores the paths use: the expectations under a clamp that leaves no other path.

        scores (SegmentScores): Potentials of B sequences. Only their shapes matter.
        states (int32[T]): The paths; -1 stands for no path, which uses nothing.
        weights (float64[B]): Factor of each sequence, 1 by default.
        out (SegmentScores): What `expectations` returned, to be added to (in place); new zeros by default.
        RETURNS (SegmentScores): How often each score is used, times the weights.
        """
        batch = _check(scores)
        if out is None:
            out = batch.empty_scores()._replace(listed=scores.listed, starts=scores.starts)
            for array in (out.tokens, out.begins, out.ends, out.spans):
                array[:] = 0.0
        kernels.path_expectations(batch.check_states(states), batch.check_weights(weights), batch.rows_of(out))
        return out

    def log_probability(self, scores: SegmentScores, states: States) -> Floats:
        """Log probability of one path per sequence.

        scores (SegmentScores): Potentials of B sequences.
        states (int32[T]): The paths; -1 stands for no path.
        RETURNS (float64[B]): At most 0; -inf for paths that are not allowed.
        """
        log_probability = self.path_score(scores, states)
        log_z = self.log_partition(scores)
        np.subtract(log_probability, log_z, out=log_probability, where=log_probability > -np.inf)
        return np.minimum(log_probability, 0.0, out=log_probability)

    def only_path(self, clamp: SegmentClamp) -> Optional[States]:
        """The path that a clamp allows, if it allows exactly one.

        clamp (SegmentClamp): Segments still allowed.
        RETURNS (int32[T] or None): The only path.
        """
        states = np.empty(len(clamp.states), dtype=np.int32)
        return states if kernels.only_path(*(_array(array, np.bool_) for array in clamp), states) else None

    # ------------------------------------------------------------------------------------------------------- samples

    def sample(self, scores: SegmentScores, n: int, *, seed: int, clamp: Optional[SegmentClamp] = None) -> States:
        """Paths drawn from their distribution: one seed, one answer, whatever the number of threads.

        scores (SegmentScores): Potentials of B sequences.
        n (int): How many of each sequence.
        seed (int): For numpy's default generator.
        clamp (SegmentClamp): Segments still allowed, or None.
        RETURNS (int32[n, T]): -1 where no path is allowed.
        """
        batch = _check(scores, clamp)
        uniforms = np.random.default_rng(seed).random((n, len(batch.tokens), 2))
        states = np.empty((n, len(batch.tokens)), dtype=np.int32)

        def draw_chunk(chunk: _Chunk) -> None:
            part = batch.cut(chunk)
            entered, left = _log_forward(part.folded, np.empty(len(part.starts) - 1))
            drawn = np.empty((n, len(part.tokens)), dtype=np.int32)
            kernels.sample(part.folded, entered, left, np.ascontiguousarray(uniforms[:, chunk.tokens]), drawn)
            states[:, chunk.tokens] = drawn

        run_chunks(draw_chunk, batch.chunks(), self.threads)
        return states


class _Chunk(NamedTuple):
    sequences: slice
    tokens: slice


class _Listed(NamedTuple):
    """A `SpanList` of a batch."""

    starts: NDArray[np.int64]  # [T + 1]
    lengths: NDArray[np.int32]  # [N]

    def of_tokens(self, tokens: slice) -> slice:
        """The spans that begin, and so also end, within whole sequences."""
        return slice(int(self.starts[tokens.start]), int(self.starts[tokens.stop]))

    def cut(self, tokens: slice) -> "_Listed":
        spans = self.of_tokens(tokens)
        return _Listed(self.starts[tokens.start : tokens.stop + 1] - spans.start, self.lengths[spans])


class _Batch(NamedTuple):
    """Checked scores as the kernels want them. A chunk of a batch is a batch again, and has the last two fields."""

    tokens: Floats  # [T, S]
    begins: Floats  # [T, S]
    ends: Floats  # [T, S]
    lengths: Floats  # [K, S]
    spans: Floats  # [N, S]
    transitions: Floats  # [1, S, S], or [T, S, S] per position
    first: Floats  # [S]
    last: Floats  # [S]
    listed: _Listed
    starts: NDArray[np.int64]  # [B + 1]
    per_position: bool
    clamp: Optional[SegmentClamp]
    folded: Optional[kernels.Folded] = None
    masked: bool = False

    @property
    def span_of(self) -> NDArray[np.int32]:
        """int32[T, K], see `kernels.Scores`."""
        return kernels.number_spans(*self.listed, len(self.lengths))

    @property
    def scores(self) -> kernels.Scores:
        return kernels.Scores(*self[:8], self.span_of, self.starts)

    def rows_of(self, out: SegmentScores, chunk: Optional[_Chunk] = None) -> kernels.Scores:
        """Where the derivative of a chunk goes, as the kernels want it. What chunks share has to be added to `out` in the end."""
        if chunk is None:
            transitions = out.transitions if self.per_position else out.transitions[np.newaxis]
            return kernels.Scores(*out[:5], transitions, out.first, out.last, self.span_of, self.starts)
        sequences, at = chunk
        listed = self.listed.cut(at)
        return kernels.Scores(
            out.tokens[at],
            out.begins[at],
            out.ends[at],
            np.zeros_like(self.lengths),
            out.spans[self.listed.of_tokens(at)],
            np.zeros_like(self.transitions[at] if self.per_position else self.transitions),
            out.first,
            out.last,
            kernels.number_spans(*listed, len(self.lengths)),
            self.starts[sequences.start : sequences.stop + 1] - at.start,
        )

    def chunks(self) -> list[_Chunk]:
        """Cut where a sequence is the first to start in another block of CHUNK_TOKENS."""
        blocks = self.starts[:-1] // CHUNK_TOKENS
        cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
        return [self.chunk(b, c) for b, c in itertools.pairwise(cuts)]

    def chunk(self, b: int, c: int) -> _Chunk:
        return _Chunk(slice(b, c), slice(int(self.starts[b]), int(self.starts[c])))

    def cut(self, chunk: _Chunk) -> "_Batch":
        """The scores of some sequences, in the kernels' form, their clamp already applied."""
        sequences, at = chunk
        tokens, starts = self.tokens[at], self.starts[sequences.start : sequences.stop + 1] - at.start
        part = self._replace(
            tokens=tokens,
            begins=self.begins[at],
            ends=self.ends[at],
            spans=self.spans[self.listed.of_tokens(at)],
            transitions=self.transitions[at] if self.per_position else self.transitions,
            listed=self.listed.cut(at),
            starts=starts,
            clamp=None,
        )
        opening, closing = np.empty((2, *tokens.shape))
        reach = np.empty(tokens.shape, dtype=np.int32)
        scores = part.scores
        masked = kernels.fold(scores, opening, closing)
        if self.clamp is not None:
            masked = True
            kernels.mask(tokens, *(array[at] for array in self.clamp), starts, opening, closing, reach)
        elif masked:
            free, never = np.ones(tokens.shape, dtype=bool), np.zeros(len(tokens), dtype=bool)
            kernels.mask(tokens, free, ~never, never, starts, opening, closing, reach)
        else:
            kernels.no_mask(starts, reach)
        return part._replace(folded=kernels.Folded(opening, closing, *scores[3:9], reach, starts), masked=masked)

    def sequence(self, b: int) -> tuple[_Chunk, kernels.Folded]:
        """One sequence of a batch that `cut` gave."""
        chunk = self.chunk(b, b + 1)
        at, folded = chunk.tokens, self.folded
        spans = self.listed.of_tokens(at)
        return chunk, folded._replace(
            opening=folded.opening[at],
            closing=folded.closing[at],
            spans=folded.spans[spans],
            transitions=folded.transitions[at] if self.per_position else folded.transitions,
            span_of=np.where(folded.span_of[at] >= 0, folded.span_of[at] - np.int32(spans.start), np.int32(-1)),
            reach=folded.reach[at] - np.int32(at.start),
            starts=self.starts[b : b + 2] - at.start,
        )

    def first_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last token of each sequence that has any."""
        some = self.starts[:-1] < self.starts[1:]
        return self.starts[:-1][some], self.starts[1:][some] - 1

    def empty_scores(self) -> SegmentScores:
        """Room for a derivative; only what is added to is set to 0."""
        return SegmentScores(
            np.empty_like(self.tokens),
            np.empty_like(self.tokens),
            np.empty_like(self.tokens),
            np.zeros_like(self.lengths),
            np.empty_like(self.spans),
            np.zeros(self.transitions.shape if self.per_position else self.transitions.shape[1:]),
            np.zeros_like(self.first),
            np.zeros_like(self.last),
        )

    def check_weights(self, weights: Optional[Floats]) -> Floats:
        expected = (len(self.starts) - 1,)
        if weights is None:
            return np.ones(expected)
        _check_shape("weights", weights, expected, "one number per sequence")
        return _array(weights, np.float64)

    def check_states(self, states: States) -> States:
        _check_shape("states", states, self.tokens.shape[:1], "one state per token")
        size = self.tokens.shape[1]
        states = _array(states, np.int32)
        if len(states) and states.max() >= size:
            token = int(states.argmax())
            raise ValueError(Errors.CRF013.format(token=token, state=states[token], states=size))
        return states


def _check(scores: SegmentScores, clamp: Optional[SegmentClamp] = None) -> _Batch:
    """Check the scores of a batch, once."""
    announce_compilation(kernels.forward, kernels.viterbi)
    arrays = {name: _array(getattr(scores, name), np.float64) for name in _SCORES}
    if arrays["tokens"].ndim != 2:
        raise ValueError(Errors.CRF011.format(what="tokens", shape=arrays["tokens"].shape, expected="[tokens, states]"))
    n_tokens, size = arrays["tokens"].shape
    per_position = arrays["transitions"].ndim == 3
    longest = len(arrays["lengths"]) if arrays["lengths"].ndim else 0
    if longest == 0:
        raise ValueError(Errors.CRF015.format(shape=arrays["lengths"].shape))
    if scores.starts is None:
        starts = np.array([0, n_tokens], dtype=np.int64)
    else:
        starts = _array(scores.starts, np.int64)
        if len(starts) == 0 or starts[0] != 0 or starts[-1] != n_tokens or (starts[1:] < starts[:-1]).any():
            raise ValueError(Errors.CRF012.format(starts=starts, tokens=n_tokens))
    listed = _check_listed(scores.listed, starts, longest)
    shapes = {
        "begins": ((n_tokens, size), "one number per token and state"),
        "ends": ((n_tokens, size), "one number per token and state"),
        "lengths": ((longest, size), "one number per length and state"),
        "spans": ((len(listed.lengths), size), "one number per listed span and state"),
        "transitions": ((n_tokens, size, size) if per_position else (size, size), "[S, S] or [T, S, S]"),
        "first": ((size,), "one number per state"),
        "last": ((size,), "one number per state"),
    }
    for name, (shape, meaning) in shapes.items():
        _check_shape(name, arrays[name], shape, meaning)
    for name, array in arrays.items():
        if not array.max(initial=-np.inf) < np.inf:  # so written, it is true for NaN too
            _refuse(name, array)
    if clamp is not None:
        _check_shape("clamp.states", clamp.states, (n_tokens, size), "one bool per token and state")
        _check_shape("clamp.may_begin", clamp.may_begin, (n_tokens,), "one bool per token")
        _check_shape("clamp.must_begin", clamp.must_begin, (n_tokens,), "one bool per token")
        clamp = SegmentClamp(*(_array(array, np.bool_) for array in clamp))
    if not per_position:
        arrays["transitions"] = arrays["transitions"][np.newaxis]
    return _Batch(**arrays, listed=listed, starts=starts, per_position=per_position, clamp=clamp)


_SCORES = ("tokens", "begins", "ends", "lengths", "spans", "transitions", "first", "last")
_AXES = {
    "tokens": ("token", "state"),
    "begins": ("token", "state"),
    "ends": ("token", "state"),
    "lengths": ("length", "state"),
    "spans": ("span", "state"),
    "first": ("state",),
    "last": ("state",),
}


def _check_listed(listed: Optional[SpanList], starts: NDArray[np.int64], longest: int) -> _Listed:
    n_tokens = int(starts[-1])
    if listed is None:
        return _Listed(np.zeros(n_tokens + 1, dtype=np.int64), np.zeros(0, dtype=np.int32))
    span_starts, lengths = _array(listed.starts, np.int64), _array(listed.lengths, np.int32)
    begin = np.repeat(np.arange(n_tokens), np.diff(span_starts)) if len(span_starts) == n_tokens + 1 else None
    if begin is None or len(begin) != len(lengths) or span_starts[0] != 0:
        raise ValueError(
            Errors.CRF016.format(reason="starts does not lead from 0 to the number of spans, token by token")
        )
    if len(lengths):
        last = begin + lengths - 1
        end_of_sequence = starts[np.searchsorted(starts, begin, side="right")]
        same = begin[1:] == begin[:-1]
        if lengths.min() < 1 or lengths.max() > longest:
            raise ValueError(Errors.CRF016.format(reason=f"lengths lie outside 1 to {longest}"))
        if (last >= end_of_sequence).any():
            raise ValueError(Errors.CRF016.format(reason="a span reaches beyond the end of its sequence"))
        if (lengths[1:][same] <= lengths[:-1][same]).any():
            raise ValueError(Errors.CRF016.format(reason="the lengths of one token's spans do not rise"))
    return _Listed(span_starts, lengths)


def _array(array, dtype) -> NDArray:
    array = np.ascontiguousarray(array, dtype=dtype)
    return array if array.flags.writeable else array.copy()


def _check_shape(what: str, array, shape: tuple[int, ...], meaning: str) -> None:
    if np.shape(array) != shape:
        raise ValueError(Errors.CRF011.format(what=what, shape=np.shape(array), expected=f"{shape} ({meaning})"))


def _refuse(what: str, array: Floats) -> None:
    index = np.unravel_index(np.argmin(array < np.inf), array.shape)
    axes = _AXES.get(what, ("token", "state", "next state")[-array.ndim :])
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, index))
    raise ValueError(Errors.CRF010.format(what=what, where=where, value=array[index]))


# --------------------------------------------------------------------------------- between scores and the linear domain


class _Exponentials(NamedTuple):
    """exp of the scores that tokens share."""

    lengths: Floats  # [K, S]
    transitions: Floats  # [1 or n, S, S] less the maximum of each
    transposed: Floats  # [1 or n, S, S]
    first: Floats  # [S] less the maximum
    last: Floats  # [S] less the maximum
    shift: Floats  # [1 or n] the maxima of the transitions
    end_shift: float  # the sum of the maxima of first and last
    unbroken: NDArray[np.bool_]  # [S]
    refused: bool  # are they too different from each other?


def _exponentiate(batch: _Batch) -> _Exponentials:
    transitions, shift, spread = _exp(batch.transitions)
    first, first_shift, first_spread = _exp(batch.first[np.newaxis])
    last, last_shift, last_spread = _exp(batch.last[np.newaxis])
    refused = max(spread, first_spread, last_spread) > SPREAD
    refused |= _largest(batch.lengths) + _largest(batch.spans) > kernels.EXTRA
    lengths = np.exp(np.minimum(batch.lengths, kernels.EXTRA))
    allowed = lengths > 0
    return _Exponentials(
        lengths,
        transitions,
        np.ascontiguousarray(transitions.transpose(0, 2, 1)),
        first[0],
        last[0],
        shift,
        float(first_shift[0] + last_shift[0]),
        (allowed[1:] <= allowed[:-1]).all(axis=0),
        bool(refused),
    )


def _exp(scores: Floats) -> tuple[Floats, Floats, float]:
    """exp of vectors or matrices, less the maximum of each. RETURNS: They, the maxima, and the largest distance from them."""
    axes = tuple(range(1, scores.ndim))
    largest = scores.max(axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(largest > -np.inf, largest, 0.0)
    less = scores - largest
    spread = -np.where(less > -np.inf, less, 0.0).min(initial=0.0)
    return np.exp(less), largest.reshape(-1)[...], float(spread)


def _largest(scores: Floats) -> float:
    return float(np.abs(np.where(scores > -np.inf, scores, 0.0)).max(initial=0.0))


def _forward(
    part: _Batch, exponentials: _Exponentials, log_z: Floats
) -> Optional[tuple[kernels.Potentials, kernels.Prefixes]]:
    """Fills log_z, with NaN where log space has to help. RETURNS: What the backward pass goes on with, None where it has nothing
    to do."""
    if part.masked or exponentials.refused:
        log_z[:] = np.nan
        return None
    rows, scales = np.empty((2, *part.tokens.shape)), np.empty((2, len(part.tokens)))
    prefixes = kernels.Prefixes(rows[0], scales[0], rows[1], scales[1])
    folded = part.folded
    potentials = kernels.Potentials(
        folded.opening,
        folded.closing,
        exponentials.lengths,
        np.exp(folded.spans),
        exponentials.transitions,
        exponentials.transposed,
        exponentials.first,
        exponentials.last,
        exponentials.shift,
        exponentials.unbroken,
        folded.span_of,
        folded.starts,
    )
    kernels.forward(potentials, prefixes, log_z)
    if exponentials.end_shift:
        log_z[part.starts[:-1] < part.starts[1:]] += exponentials.end_shift
    return potentials, prefixes


def _finish_in_log_space(part: _Batch, log_z: Floats) -> None:
    for b in np.flatnonzero(np.isnan(log_z)):
        _log_forward(part.sequence(b)[1], log_z[b : b + 1])


def _expectations(
    part: _Batch, exponentials: _Exponentials, weights: Floats, log_z: Floats, out: kernels.Scores
) -> kernels.Scores:
    """One chunk: fills log_z and `out`, and returns it."""
    scaled = _forward(part, exponentials, log_z)
    if scaled is not None:
        some = part.starts[:-1] < part.starts[1:]
        log_z[some] -= exponentials.end_shift
        kernels.expectations(*scaled, weights, log_z, out)
        log_z[some] += exponentials.end_shift
        out.transitions[:] *= exponentials.transitions
    for b in np.flatnonzero(np.isnan(log_z)):
        chunk, sequence = part.sequence(b)
        at = chunk.tokens
        of_sequence = out._replace(
            begins=out.begins[at],
            ends=out.ends[at],
            spans=out.spans[part.listed.of_tokens(at)],
            transitions=out.transitions[at] if part.per_position else out.transitions,
            span_of=sequence.span_of,
            starts=sequence.starts,
        )
        rows = (*_log_forward(sequence, log_z[b : b + 1]), *_log_backward(sequence))
        kernels.log_expectations(sequence, weights[b : b + 1], *rows, log_z[b : b + 1], of_sequence)
    kernels.cover(out)
    return out


def _log_forward(folded: kernels.Folded, log_z: Floats) -> tuple[Floats, Floats]:
    entered, left = np.empty((2, *folded.opening.shape))
    kernels.log_forward(folded, entered, left, log_z)
    return entered, left


def _log_backward(folded: kernels.Folded) -> tuple[Floats, Floats]:
    leaving, out = np.empty((2, *folded.opening.shape))
    kernels.log_backward(folded, leaving, out)
    return leaving, out
