"""Linear chains: sums, maxima, paths and samples of batches of sequences."""

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, NoReturn, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels import announce_compilation
from ..kernels import linear_chain as kernels
from ..types import ChainScores, Clamp, Floats, Path
from .threads import run_chunks

# Sequences are done in chunks of about this many tokens: enough for a kernel to take longer than its call, and fixed, so that
# sums over chunks are the same bits with any number of threads.
CHUNK_TOKENS = 8192

# What skipping forbidden transitions costs: one arc takes as long as this many entries of a block, and a block with arcs
# is faster than the whole matrix from about this share of its entries on.
ARC_COST = 8
WORTH_IT = 2 / 3

States = NDArray[np.int32]


class LinearChain:
    """Answers the questions of `Structure` for `ChainScores`.

    threads (int): How many chunks of sequences may be done at a time; the results don't depend on it.
    """

    def __init__(self, *, threads: int = 1):
        self.threads = threads

    # --------------------------------------------------------------------------------------------------------- sums

    def log_partition(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Log of the sum over all paths of exp(score).

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        RETURNS (float64[B]): -inf where no path is allowed, 0 for an empty sequence.
        """
        batch = _check(kernels.forward, scores, clamp)
        shared = None if batch.per_position else _exponentiate(batch)
        log_z = np.empty(len(batch.starts) - 1)

        def sum_chunk(chunk: _Chunk) -> None:
            part = batch.cut(chunk)
            chunk_log_z = log_z[chunk.sequences]
            exponentials = shared or _exponentiate(part)
            scaled, layout = _scale(part, exponentials), exponentials.layout
            kernels.forward(scaled, layout, np.empty_like(scaled.emissions), chunk_log_z)
            for b in np.flatnonzero(np.isnan(chunk_log_z)):
                sequence = part.cut(part.chunk(b, b + 1))
                kernels.log_forward(sequence.scores, np.empty_like(sequence.emissions), chunk_log_z[b : b + 1])

        run_chunks(sum_chunk, batch.chunks(), self.threads)
        return log_z

    def expectations(
        self, scores: ChainScores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """Log partitions, and the derivative of sum_b weights[b] · log_z[b] with respect to every score.

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], ChainScores): Log partitions, and how often each score is expected to be used, times the
            weights. A sequence without any path uses nothing.
        """
        batch = _check(kernels.expectations, scores, clamp)
        shared = None if batch.per_position else _exponentiate(batch)
        weights = batch.check_weights(weights)
        log_z = np.empty(len(batch.starts) - 1)
        out = batch.empty_scores()

        def expect_chunk(chunk: _Chunk) -> tuple[Floats, Floats, Floats]:
            part = batch.cut(chunk)
            return _expectations(
                part,
                shared or _exponentiate(part),
                weights[chunk.sequences],
                log_z[chunk.sequences],
                out.emissions[chunk.tokens],
            )

        chunks = batch.chunks()
        for chunk, (d_transitions, d_first, d_last) in zip(chunks, run_chunks(expect_chunk, chunks, self.threads)):
            if batch.per_position:
                out.transitions[chunk.tokens] = d_transitions
            else:
                out.transitions[:] += d_transitions[0]
            out.first[:] += d_first
            out.last[:] += d_last
        return log_z, out._replace(starts=scores.starts)

    def marginals(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each state at each token.

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        RETURNS (float64[T, S]): Rows with sum 1; all 0 in a sequence without any path.
        """
        return self.expectations(scores, clamp=clamp)[1].emissions

    def edge_marginals(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Floats:
        """Probability of each pair of neighbouring states.

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        RETURNS (float64[T, S, S]): Of state i at t - 1 and state j at t; 0 where t opens a sequence.
        """
        transitions = scores.transitions
        if np.ndim(transitions) == 2:
            transitions = np.broadcast_to(transitions, (len(scores.emissions), *np.shape(transitions)))
        return self.expectations(scores._replace(transitions=transitions), clamp=clamp)[1].transitions

    # -------------------------------------------------------------------------------------------------------- maxima

    def viterbi(self, scores: ChainScores, *, clamp: Optional[Clamp] = None) -> Path:
        """Most probable path of each sequence; among equals the one whose last state is lower, then the one before it …

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        RETURNS (Path): States and their total score; -1 and -inf where no path is allowed.
        """
        batch = _check(kernels.viterbi, scores, clamp)
        path = Path(np.empty(len(batch.emissions), dtype=np.int32), np.empty(len(batch.starts) - 1))
        layout = _layout(batch.transitions, batch.per_position)

        def decode_chunk(chunk: _Chunk) -> None:
            kernels.viterbi(batch.cut(chunk).scores, layout, path.states[chunk.tokens], path.scores[chunk.sequences])

        run_chunks(decode_chunk, batch.chunks(), self.threads)
        return path

    def viterbi_counts(
        self, scores: ChainScores, *, clamp: Optional[Clamp] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, ChainScores]:
        """`expectations` with max in place of log-sum.

        scores (ChainScores): Potentials of B sequences.
        clamp (bool[T, S]): States still allowed, or None.
        weights (float64[B]): Factor of each sequence, 1 by default.
        RETURNS (float64[B], ChainScores): Scores of the most probable paths, and how often these use each score, times
            the weights.
        """
        path = self.viterbi(scores, clamp=clamp)
        return path.scores, self.path_expectations(scores, path.states, weights=weights)

    def n_best(self, scores: ChainScores, n: int, *, clamp: Optional[Clamp] = None) -> list[list[tuple[float, States]]]:
        """The n most probable paths of each sequence, best first; ties as in `viterbi`.

        scores (ChainScores): Potentials of B sequences.
        n (int): How many at most: a sequence has fewer where fewer are allowed.
        clamp (bool[T, S]): States still allowed, or None.
        RETURNS (list): For each sequence the list of its (score, int32 states).
        """
        if n < 1:
            raise ValueError(Errors.CRF014.format(n=n))
        batch = _check(kernels.n_best, scores, clamp)

        def search(b: int) -> list[tuple[float, States]]:
            sequence = batch.cut(batch.chunk(b, b + 1))
            if len(sequence.emissions) == 0:
                return [(0.0, np.empty(0, dtype=np.int32))]
            states = np.empty((n, len(sequence.emissions)), dtype=np.int32)
            path_scores = np.empty(n)
            found = kernels.n_best(sequence.scores, n, states, path_scores)
            return [(float(path_scores[rank]), states[rank]) for rank in range(found)]

        return run_chunks(search, range(len(batch.starts) - 1), self.threads)

    # --------------------------------------------------------------------------------------------------------- paths

    def path_score(self, scores: ChainScores, states: States) -> Floats:
        """Score of one path per sequence.

        scores (ChainScores): Potentials of B sequences.
        states (int32[T]): The paths; a negative state stands for no path.
        RETURNS (float64[B]): -inf for paths that are not allowed.
        """
        batch = _check(kernels.path_score, scores)
        path_scores = np.empty(len(batch.starts) - 1)
        kernels.path_score(batch.scores, batch.check_states(states), path_scores)
        return path_scores

    def path_expectations(
        self,
        scores: ChainScores,
        states: States,
        *,
        weights: Optional[Floats] = None,
        out: Optional[ChainScores] = None,
    ) -> ChainScores:
        """Which scores the paths use: the expectations under a clamp that leaves no other path.

        scores (ChainScores): Potentials of B sequences. Only their shapes matter.
        states (int32[T]): The paths; a negative state stands for no path, which uses nothing.
        weights (float64[B]): Factor of each sequence, 1 by default.
        out (ChainScores): What `expectations` returned, to be added to (in place); new zeros by default.
        RETURNS (ChainScores): How often each score is used, times the weights.
        """
        batch = _check(kernels.path_expectations, scores)
        if out is None:
            out = batch.empty_scores()._replace(starts=scores.starts)
            out.emissions[:] = 0.0
        transitions = out.transitions if batch.per_position else out.transitions[np.newaxis]
        uses = kernels.Scores(out.emissions, transitions, out.first, out.last, batch.starts)
        kernels.path_expectations(batch.check_states(states), batch.check_weights(weights), uses)
        return out

    def log_probability(self, scores: ChainScores, states: States) -> Floats:
        """Log probability of one path per sequence.

        scores (ChainScores): Potentials of B sequences.
        states (int32[T]): The paths; a negative state stands for no path.
        RETURNS (float64[B]): At most 0; -inf for paths that are not allowed.
        """
        log_probability = self.path_score(scores, states)
        np.subtract(
            log_probability, self.log_partition(scores), out=log_probability, where=log_probability > -np.inf
        )  # fmt: skip
        return np.minimum(log_probability, 0.0, out=log_probability)

    def only_path(self, clamp: Clamp) -> Optional[States]:
        """The states that a clamp allows, if it allows exactly one at each token.

        clamp (bool[T, S]): States still allowed.
        RETURNS (int32[T] or None): The only path.
        """
        states = np.empty(len(clamp), dtype=np.int32)
        return states if kernels.only_path(_array(clamp, np.bool_), states) else None

    # ------------------------------------------------------------------------------------------------------- samples

    def sample(self, scores: ChainScores, n: int, *, seed: int, clamp: Optional[Clamp] = None) -> States:
        """Paths drawn from their distribution: one seed, one answer, whatever the number of threads.

        scores (ChainScores): Potentials of B sequences.
        n (int): How many of each sequence.
        seed (int): For numpy's default generator.
        clamp (bool[T, S]): States still allowed, or None.
        RETURNS (int32[n, T]): -1 where no path is allowed.
        """
        batch = _check(kernels.sample, scores, clamp)
        uniforms = np.random.default_rng(seed).random((n, len(batch.emissions)))
        states = np.empty(uniforms.shape, dtype=np.int32)

        def draw_chunk(chunk: _Chunk) -> None:
            part = batch.cut(chunk)
            alpha = np.empty_like(part.emissions)
            drawn = np.empty((n, len(alpha)), dtype=np.int32)
            kernels.log_forward(part.scores, alpha, np.empty(len(part.starts) - 1))
            kernels.sample(part.scores, alpha, np.ascontiguousarray(uniforms[:, chunk.tokens]), drawn)
            states[:, chunk.tokens] = drawn

        run_chunks(draw_chunk, batch.chunks(), self.threads)
        return states


class _Chunk(NamedTuple):
    sequences: slice
    tokens: slice


class _Batch(NamedTuple):
    """Checked scores as the kernels want them: contiguous, float64, writable (to numba, read-only is another type).
    A chunk of a batch is a batch again."""

    emissions: Floats  # [T, S]
    transitions: Floats  # [1, S, S], or [T, S, S] per position
    first: Floats  # [S]
    last: Floats  # [S]
    starts: NDArray[np.int64]  # [B + 1]
    per_position: bool
    clamp: Optional[Clamp]

    @property
    def scores(self) -> kernels.Scores:
        return kernels.Scores(*self[:5])

    def chunks(self) -> list[_Chunk]:
        """Cut where a sequence is the first to start in another block of CHUNK_TOKENS."""
        if len(self.emissions) <= CHUNK_TOKENS:
            return [self.chunk(0, len(self.starts) - 1)]
        blocks = self.starts[:-1] // CHUNK_TOKENS
        cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
        return [self.chunk(b, c) for b, c in itertools.pairwise(cuts)]

    def chunk(self, b: int, c: int) -> _Chunk:
        return _Chunk(slice(b, c), slice(int(self.starts[b]), int(self.starts[c])))

    def cut(self, chunk: _Chunk) -> "_Batch":
        """The scores of some sequences, their clamp already applied."""
        sequences, tokens = chunk
        if self.clamp is None and sequences.stop - sequences.start == len(self.starts) - 1:
            return self
        emissions = self.emissions[tokens]
        if self.clamp is not None:
            emissions = np.where(self.clamp[tokens], emissions, -np.inf)
        return self._replace(
            emissions=emissions,
            transitions=self.transitions[tokens] if self.per_position else self.transitions,
            starts=self.starts[sequences.start : sequences.stop + 1] - tokens.start,
            clamp=None,
        )

    def only(self, sequences: NDArray[np.bool_]) -> tuple["_Batch", NDArray[np.bool_]]:
        """Some of the sequences (bool[B]). RETURNS: The batch of these, and which tokens are theirs (bool[T])."""
        lengths = np.diff(self.starts)
        tokens = np.repeat(sequences, lengths)
        part = self._replace(
            emissions=self.emissions[tokens],
            transitions=self.transitions[tokens] if self.per_position else self.transitions,
            starts=np.append(0, np.cumsum(lengths[sequences])),
            clamp=None if self.clamp is None else self.clamp[tokens],
        )
        return part, tokens

    def empty_scores(self) -> ChainScores:
        """Room for a derivative. The emissions are not set."""
        transitions = np.zeros(self.transitions.shape if self.per_position else self.transitions.shape[1:])
        return ChainScores(
            np.empty_like(self.emissions), transitions, np.zeros_like(self.first), np.zeros_like(self.last)
        )

    def check_weights(self, weights: Optional[Floats]) -> Floats:
        expected = (len(self.starts) - 1,)
        if weights is None:
            return np.ones(expected)
        _check_shape("weights", weights, expected, "one number per sequence")
        return _array(weights, np.float64)

    def check_states(self, states: States) -> States:
        _check_shape("states", states, self.emissions.shape[:1], "one state per token")
        size = self.emissions.shape[1]
        states = _array(states, np.int32)
        if len(states) and states.max() >= size:
            token = int(states.argmax())
            raise ValueError(Errors.CRF013.format(token=token, state=states[token], states=size))
        return states


def _check(kernel, scores: ChainScores, clamp: Optional[Clamp] = None) -> _Batch:
    """Check the scores of a batch before the kernel gets to see them."""
    announce_compilation(kernel)
    emissions = _array(scores.emissions, np.float64)
    if emissions.ndim != 2:
        raise ValueError(Errors.CRF011.format(what="emissions", shape=emissions.shape, expected="[tokens, states]"))
    tokens, size = emissions.shape
    transitions = _array(scores.transitions, np.float64)
    per_position = transitions.ndim == 3
    _check_shape(
        "transitions", transitions, (tokens, size, size) if per_position else (size, size), "[S, S] or [T, S, S]"
    )
    first = _array(scores.first, np.float64)
    last = _array(scores.last, np.float64)
    _check_shape("first", first, (size,), "one number per state")
    _check_shape("last", last, (size,), "one number per state")
    starts = _array([0, tokens] if scores.starts is None else scores.starts, np.int64)
    if clamp is not None:
        _check_shape("clamp", clamp, (tokens, size), "one bool per token and state")
        clamp = _array(clamp, np.bool_)
    batch = _Batch(
        emissions, transitions if per_position else transitions[np.newaxis], first, last, starts, per_position, clamp
    )
    if not kernels.well_formed(*batch.scores):
        _refuse(scores._replace(emissions=emissions, transitions=transitions, first=first, last=last, starts=starts))
    return batch


def _array(array, dtype) -> NDArray:
    array = np.ascontiguousarray(array, dtype=dtype)
    return array if array.flags.writeable else array.copy()


def _check_shape(what: str, array, shape: tuple[int, ...], meaning: str) -> None:
    if np.shape(array) != shape:
        raise ValueError(Errors.CRF011.format(what=what, shape=np.shape(array), expected=f"{shape} ({meaning})"))


def _refuse(scores: ChainScores) -> NoReturn:
    """Say which of the scores is the mistake."""
    axes = {
        "emissions": ("token", "state"),
        "transitions": ("token", "state", "next state")[-scores.transitions.ndim :],
    }
    for what, array in zip(scores._fields, scores[:4]):
        if not array.max(initial=-np.inf) < np.inf:  # so written, it is true for NaN too
            index = np.unravel_index(np.argmin(array < np.inf), array.shape)
            where = ", ".join(f"{axis} {i}" for axis, i in zip(axes.get(what, ("state",)), index))
            raise ValueError(Errors.CRF010.format(what=what, where=where, value=array[index]))
    raise ValueError(Errors.CRF012.format(starts=scores.starts, tokens=len(scores.emissions)))


# ---------------------------------------------------------------------------------------------- forbidden transitions


class _Layout(kernels.Layout):
    """Where the allowed transitions are, once the states are in order: in a block of the matrix, and on a few arcs."""

    @property
    def block(self) -> tuple[slice, slice, slice]:
        """Index of the block in matrices [1 or n, P, P]."""
        return slice(None), slice(self.offset, self.offset + self.shape[0]), slice(0, self.shape[1])

    @property
    def is_whole(self) -> bool:
        return self.shape[0] >= len(self.order) and self.shape[1] >= len(self.order)

    def restore(self, block: Floats, arcs: Floats) -> Floats:
        """The matrices [1 or n, S, S], with 0 where transitions are forbidden.

        block (float64[1 or n, R, C]), arcs (float64[A]): What they have there.
        """
        size = len(self.order)
        if self.is_whole:
            return np.ascontiguousarray(block[:, :size, :size])
        matrices = np.zeros((1, _padded(size), _padded(size)))
        matrices[self.block] = block
        matrices[0, self.source, self.target] = arcs
        return matrices[:, self.number[:, np.newaxis], self.number]


def _layout(transitions: Floats, per_position: bool) -> _Layout:
    """Says which transitions are allowed, and nothing else: so a batch and its parts are added up in the same order."""
    size = transitions.shape[1]
    if per_position or size <= kernels.LANES:
        return _whole(size)
    return _find_block(size, np.packbits(transitions[0] > -np.inf).tobytes())


@lru_cache(maxsize=64)
def _whole(size: int) -> _Layout:
    nowhere = np.empty(0, dtype=np.int32)
    return _Layout(np.arange(size), np.arange(size), 0, nowhere, nowhere, (_padded(size), _padded(size)))


@lru_cache(maxsize=64)
def _find_block(size: int, mask: bytes) -> _Layout:
    """The cheapest of these blocks: its sources are all states that may come before some state k, its targets those states
    that are cheaper to reach from there, and on arcs from elsewhere, than on arcs alone.

    size (int): S.
    mask (bytes): Bits of bool[S, S], which transitions are allowed. (As a key it costs less than decoding a sentence.)
    """
    allowed = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=size * size).astype(bool).reshape(size, size)
    n_sources = allowed.sum(axis=0)
    elsewhere = allowed.T.astype(np.float64) @ ~allowed  # [target, k] predecessors of the target, but not of k
    on_arcs = ARC_COST * n_sources[:, np.newaxis]
    in_block = n_sources + ARC_COST * elsewhere
    k = np.minimum(on_arcs, in_block).sum(axis=0).argmin()
    is_source, is_target = allowed[:, k], in_block[:, k] < on_arcs[:, 0]

    order = np.lexsort((np.where(is_target, is_source, ~is_source), ~is_target))
    offset = int((is_target & ~is_source).sum()) // kernels.LANES * kernels.LANES
    end = int((is_target | is_source).sum()) if is_source.any() else offset
    shape = _padded(end) - offset, _padded(int(is_target.sum()))
    rest = allowed[order[:, np.newaxis], order]
    rest[offset : offset + shape[0], : shape[1]] = False
    source, target = np.nonzero(rest)
    # The first arc to each target, then the second …: two that follow one another change different states.
    turn = (rest.cumsum(axis=0) - 1)[source, target]
    places = np.lexsort((target, turn))
    source, target = source[places].astype(np.int32), target[places].astype(np.int32)
    whole = _whole(size)
    cost = shape[0] * shape[1] + ARC_COST * len(source)
    if shape == whole.shape or cost > WORTH_IT * whole.shape[0] * whole.shape[1]:
        return whole
    return _Layout(order, np.argsort(order), offset, source, target, shape)


def _padded(size: int) -> int:
    return -(-size // kernels.LANES) * kernels.LANES


# --------------------------------------------------------------------------------- between scores and the linear domain


@dataclass(eq=False)
class _Exponentials:
    """exp of the scores that tokens share, each less the maximum of its array. P is S rounded up to whole vectors."""

    layout: _Layout
    block: Floats  # [1 or n, R, C] transitions
    transposed: Floats  # [1 or n, C, R] the same, target by source
    arcs: Floats  # [A] the other transitions
    first: Floats  # [P]
    last: Floats  # [P]
    shift: Floats  # [1 or n] the maxima of the transitions
    end_shift: float  # the sum of the maxima of first and last
    spread: Floats  # [1 or n] largest distance of two finite scores, of the transitions or of first or last

    neighbours: Optional[tuple] = None  # what `spans` found out about the matrices

    @cached_property
    def matrices(self) -> Floats:
        """The transitions in the order of the states: [1 or n, S, S]."""
        return self.layout.restore(self.block, self.arcs)


def _exponentiate(batch: _Batch) -> _Exponentials:
    if batch.per_position:
        return _exponentials(_whole(len(batch.first)), batch.transitions, batch.first, batch.last)
    return _shared.of(batch.transitions, batch.first, batch.last)


class _Shared:
    """The latest exponentials: batch after batch has the same transitions. Nobody writes to what is shared."""

    def __init__(self, most: int):
        self._most = most
        self._latest: tuple[
            tuple[tuple[Floats, ...], _Exponentials], ...
        ] = ()  # replaced as a whole: threads may be reading

    def of(self, *scores: Floats) -> _Exponentials:
        for known, exponentials in self._latest:
            if all(map(np.array_equal, known, scores)):
                return exponentials
        transitions, first, last = copies = tuple(array.copy() for array in scores)
        exponentials = _exponentials(_layout(transitions, False), transitions, first, last)
        self._latest = ((copies, exponentials), *self._latest[: self._most - 1])
        return exponentials


_shared = _Shared(most=4)


def _exponentials(layout: _Layout, transitions: Floats, first: Floats, last: Floats) -> _Exponentials:
    size = len(layout.order)
    matrices = np.zeros((len(transitions), _padded(size), _padded(size)))
    ends = np.zeros((2, _padded(size)))
    if not layout.is_whole:
        transitions = transitions[:, layout.order[:, np.newaxis], layout.order]
    shift, spread = _exp(transitions, matrices[:, :size, :size])
    first_shift, first_spread = _exp(first[layout.order], ends[0, :size])
    last_shift, last_spread = _exp(last[layout.order], ends[1, :size])
    block = np.ascontiguousarray(matrices[layout.block])
    return _Exponentials(
        layout=layout,
        block=block,
        transposed=np.ascontiguousarray(block.transpose(0, 2, 1)),
        arcs=np.empty(0) if layout.is_whole else matrices[0, layout.source, layout.target],
        first=ends[0],
        last=ends[1],
        shift=shift,
        end_shift=first_shift + last_shift,
        spread=np.maximum(spread, max(first_spread, last_spread)),
    )


def _exp(scores: Floats, out: Floats):
    """exp of a vector or of each matrix, less its maximum. RETURNS: The maxima, and how far from them scores lie."""
    axes = tuple(range(scores.ndim))[-2:]
    largest = scores.max(axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(largest > -np.inf, largest, 0.0)
    np.exp(scores - largest, out=out)
    smallest = np.where(scores > -np.inf, scores, largest).min(axis=axes, keepdims=True, initial=np.inf)
    return largest.reshape(-1), (largest - smallest).reshape(-1)


def _scale(part: _Batch, exponentials: _Exponentials) -> kernels.Potentials:
    tokens = len(part.emissions)
    emissions = np.empty((tokens, len(exponentials.first)))
    shift = np.empty(tokens)
    spread = np.empty(tokens)
    layout = exponentials.layout
    kernels.scale(part.emissions, layout.order[: 0 if layout.is_whole else None], emissions, shift, spread)
    np.exp(emissions, out=emissions)
    arriving = np.empty(tokens)
    arriving[:] = exponentials.shift
    arriving[part.starts[:-1][part.starts[:-1] < part.starts[1:]]] = exponentials.end_shift
    return kernels.Potentials(
        emissions,
        exponentials.block,
        exponentials.transposed,
        exponentials.arcs,
        exponentials.first,
        exponentials.last,
        shift + arriving,
        spread + exponentials.spread,
        part.starts,
    )


def _forward_backward(
    part: _Batch, exponentials: _Exponentials, weights: Floats, log_z: Floats, d_emissions: Floats
) -> tuple[kernels.Potentials, Floats, Floats]:
    """One chunk in the linear domain: fills log_z (NaN where log space has to be asked) and d_emissions [n, S], in the layout's
    order.

    RETURNS (Potentials, float64[n, P], float64[2, S]): Those and alpha as `kernels.expectations` leaves them, and the derivatives
        of firsts and lasts, all in the layout's order.
    """
    scaled = _scale(part, exponentials)
    alpha = np.empty_like(scaled.emissions)
    d_ends = np.zeros((2, len(part.first)))
    kernels.forward(scaled, exponentials.layout, alpha, log_z)
    kernels.expectations(scaled, exponentials.layout, weights, alpha, log_z, d_emissions, *d_ends)
    return scaled, alpha, d_ends


def _expectations(
    part: _Batch, exponentials: _Exponentials, weights: Floats, log_z: Floats, d_emissions: Floats
) -> tuple[Floats, Floats, Floats]:
    """One chunk: fills log_z and d_emissions. RETURNS: The derivatives of transitions [1 or n, S, S], first, last [S]."""
    layout = exponentials.layout
    d_in_order = d_emissions if layout.is_whole else np.empty_like(d_emissions)
    scaled, alpha, d_ends = _forward_backward(part, exponentials, weights, log_z, d_in_order)
    if not layout.is_whole:
        kernels.reorder(d_in_order, layout.number, d_emissions)
        d_ends = np.take(d_ends, layout.number, axis=1)
    d_first, d_last = d_ends
    d_block, d_arcs = np.zeros_like(exponentials.block), np.zeros_like(exponentials.arcs)
    kernels.transition_expectations(scaled, layout, alpha, d_block, d_arcs)
    d_block *= exponentials.block
    d_arcs *= exponentials.arcs
    d_transitions = layout.restore(d_block, d_arcs)
    for b in np.flatnonzero(np.isnan(log_z)):
        chunk = part.chunk(b, b + 1)
        sequence = part.cut(chunk)
        log_alpha = np.empty_like(sequence.emissions)
        d_steps = d_transitions[chunk.tokens] if part.per_position else d_transitions
        out = kernels.Scores(d_emissions[chunk.tokens], d_steps, d_first, d_last, sequence.starts)
        kernels.log_forward(sequence.scores, log_alpha, log_z[b : b + 1])
        kernels.log_expectations(sequence.scores, weights[b : b + 1], log_alpha, log_z[b : b + 1], out)
    return d_transitions, d_first, d_last
