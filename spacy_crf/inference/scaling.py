"""Linear chains in the linear domain: exponentials that all tokens of a batch share, forward pass and backward pass.

The passes skip transitions that a scheme forbids: after reordering the states, most allowed transitions form one block of the
matrix, and the others are arcs.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import LatestResults
from ..kernels import linear_chain as kernels
from ..kernels.log_space import LogPotentials, SegmentArrays
from ..kernels.tiles import WHOLE
from ..types import Bools, ChainScores, Floats, Ints, StateGraph
from .log_space import LogWork
from .structure import Chunk

# An arc takes as long as so many entries of a block; fewer if arcs mostly come in long runs, as in graphs
ARC_COST = 8
ARC_COST_IN_RUNS = 4
# A block with arcs is used if it takes less than this share of the time of the whole matrix
WORTH_IT = 2 / 3
# Scores in a part of a chunk: half a megabyte fits the caches, and calls of kernels take a negligible time
CACHED_SCORES = 1 << 16
LEAST_TOKENS = 128  # of a part of a chunk


class ChainWork(LogWork[ChainScores]):
    """Scores of linear chains, prepared for the kernels."""

    @cached_property
    def emissions(self) -> Floats:
        """Emissions of each token: float64[T, S], -inf where the clamp forbids the state."""
        scores = self.scores.emissions
        return scores if self.clamp is None else np.where(self.clamp, scores, -np.inf)

    @property
    def potentials(self) -> kernels.ChainArrays:
        """The scores of the chunk as arguments of kernels."""
        scores = self.scores
        return kernels.ChainArrays(self.emissions, self.transitions, scores.first, scores.last, self.starts)

    @cached_property
    def log_potentials(self) -> LogPotentials:
        """The scores of the chunk for recursions in log space, as segments of one token each."""
        segments = self.segment_arrays(self.scores)
        return LogPotentials(
            opening=np.ascontiguousarray(self.emissions, dtype=np.float64),
            closing=segments.ends,
            lengths=segments.lengths,
            spans=segments.spans,
            transitions=segments.transitions,
            first=segments.first,
            last=segments.last,
            span_of=segments.span_of,
            reach=np.zeros(self.emissions.shape, dtype=np.int32),
            starts=self.starts,
        )

    def segment_arrays(self, scores: ChainScores) -> SegmentArrays:
        """Scores of chains as scores of segments of one token each: emissions are the scores of beginning a segment.

        scores (ChainScores): Potentials of the chunk, or derivatives with respect to them.
        """
        nothing = np.zeros((self.n_tokens + 1, self.n_states))  # segments have further scores, which are 0
        transitions = scores.transitions.reshape(self.transitions.shape)
        return SegmentArrays(
            tokens=nothing[1:],
            begins=scores.emissions,
            ends=nothing[1:],
            lengths=nothing[:1],
            spans=nothing[:0],
            transitions=transitions,
            first=scores.first,
            last=scores.last,
            span_of=np.full((self.n_tokens, 1), -1, dtype=np.int32),
            starts=self.starts,
        )

    @cached_property
    def ordered_scores(self) -> "OrderedScores":
        """Transitions, firsts and lasts in the order of states in which kernels read them. Computed once for all chunks, unless
        each token has its own transitions.
        """
        scores = (self.transitions, self.scores.first, self.scores.last)
        expansion = self.expansion
        if self.per_position:
            return OrderedScores(_whole(self.n_states), *scores)
        # A chunk of the batch asks the work on the whole batch
        if self.whole is not self:
            return self.whole.ordered_scores
        # An expanded chain keeps the result for its graph; other chains take the latest result for equal scores
        if expansion is not None:
            return expansion.cached(OrderedScores, lambda: OrderedScores.of_all_tokens(*scores, expansion.graph))
        return _latest_scores.of(OrderedScores.of_all_tokens, *scores)


# ---------------------------------------------------------------------------------------------- forbidden transitions


class TransitionLayout(kernels.BlockLayout):
    """Which allowed transitions form a block of the matrix after the states are reordered, and which are arcs beside the
    block.
    """

    @property
    def states_of_block(self) -> tuple[Ints, Ints]:
        """States of the block's rows (int64[R]) and columns (int64[C]), without padding."""
        return self.order[self.offset : self.offset + self.shape[0]], self.order[: self.shape[1]]

    @cached_property
    def runs(self) -> NDArray[np.uint64]:
        """Runs of arcs whose sources and targets rise by 1, see `kernels.ScaledPotentials`: uint64[N, 4]."""
        ends = np.stack((self.source, self.target), axis=1)  # [A, 2]
        begins_run = np.append(True, (np.diff(ends, axis=0) != 1).any(axis=1))[: len(ends)]
        begin = np.flatnonzero(begins_run)
        lengths = np.diff(np.append(begin, len(ends)))
        return np.column_stack((ends[begin], begin, lengths)).astype(np.uint64)

    @property
    def is_whole(self) -> bool:
        """Whether the block is the whole matrix."""
        return self.shape[0] >= len(self.order) and self.shape[1] >= len(self.order)

    @cached_property
    def is_in_order(self) -> bool:
        """Whether the states keep their own order."""
        return bool((self.order == np.arange(len(self.order))).all())

    @cached_property
    def changed_order(self) -> Ints:
        """The order of the states, empty where they keep their own, which saves kernels indirect reads."""
        return self.order[: 0 if self.is_in_order else None]

    def restore(self, block: Floats, arcs: Floats, out: Floats) -> Floats:
        """Write block and arcs into matrices. Entries of forbidden transitions are not written: they must be 0 already.

        block (float64[1 or n, R, C+]): Entries of the block.
        arcs (float64[A]): Entries of the arcs.
        out (float64[1 or n, S, S]): Receives the entries.
        RETURNS (float64[1 or n, S, S]): `out`.
        """
        size = len(self.order)
        if self.is_whole:
            out[:] = block[:, :size, :size]
            return out
        rows, columns = self.states_of_block
        out[0, rows[:, np.newaxis], columns] = block[0, : len(rows), : len(columns)]
        out[0, self.order[self.source], self.order[self.target]] = arcs
        return out


def _find_layout(transitions: Floats) -> TransitionLayout:
    """The layout of `transitions` (float64[1, S, S]). It only depends on which transitions are possible, so that a batch and its
    chunks sum in the same order.
    """
    size = transitions.shape[1]
    if size <= kernels.LANES:
        return _whole(size)
    return _find_block(size, np.packbits(transitions[0] > -np.inf).tobytes())


def order_of(allowed: Bools) -> Ints:
    """The order of the states in the layout of their transitions: int64[S].

    allowed (bool[S, S]): Transitions that are allowed.
    """
    return _find_layout(np.where(allowed, 0.0, -np.inf)[np.newaxis]).order


@lru_cache(maxsize=64)
def _whole(size: int) -> TransitionLayout:
    """The layout whose block is the whole matrix of `size` states."""
    no_arcs = np.empty(0, dtype=np.int32)
    return TransitionLayout(
        order=np.arange(size),
        number=np.arange(size),
        offset=0,
        source=no_arcs,
        target=no_arcs,
        shape=(round_up(size), round_up(size)),
    )


@lru_cache(maxsize=64)
def _find_block(size: int, mask: bytes) -> TransitionLayout:
    """Find the layout whose block, with the arcs beside it, takes the least time.

    size (int): S.
    mask (bytes): Bits of bool[S, S], the allowed transitions. (As a key of the cache the mask costs less than decoding a
        sentence.)
    """
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=size * size)
    allowed = bits.astype(bool).reshape(size, size)
    is_source, is_target = _choose_block(allowed)
    order = _order_states(is_source, is_target, allowed & ~(is_source[:, np.newaxis] & is_target))
    # In this order the columns of the block are its targets, from the first state on, and its rows are its sources, from `offset`
    # on. Rows begin and end at multiples of whole vectors
    offset = int((is_target & ~is_source).sum()) // kernels.LANES * kernels.LANES
    end = int((is_target | is_source).sum()) if is_source.any() else offset
    shape = round_up(end) - offset, round_up(int(is_target.sum()))
    arcs = allowed[order[:, np.newaxis], order]
    arcs[offset : offset + shape[0], : shape[1]] = False
    source, target = np.nonzero(arcs)
    # The first arc to each target, then the second ...: arcs that follow one another change different states
    turn = (arcs.cumsum(axis=0) - 1)[source, target]
    by_turn = np.lexsort((target, turn))
    source = source[by_turn].astype(np.int32)
    target = target[by_turn].astype(np.int32)
    whole = _whole(size)
    cost = shape[0] * shape[1] + ARC_COST * len(source)
    if shape == whole.shape or cost > WORTH_IT * whole.shape[0] * whole.shape[1]:
        return whole
    return TransitionLayout(order, np.argsort(order), offset, source, target, shape)


def _choose_block(allowed: Bools) -> tuple[Bools, Bools]:
    """Choose the block of transitions. Its sources are all states that may precede some state k. Its targets are the states that
    the block, with arcs from their further predecessors, reaches at a lower cost than arcs alone. The best k has the least cost.

    allowed (bool[S, S]): Transitions that are allowed.
    RETURNS (bool[S], bool[S]): Which states are sources, and which are targets.
    """
    # States with equal predecessors, such as all B-x and U-x, are of one kind: to compare K kinds takes S·K² operations, not S³
    packed = np.packbits(allowed.T, axis=1)
    _, first, kind, n_states = np.unique(packed, axis=0, return_index=True, return_inverse=True, return_counts=True)
    predecessors = allowed[:, first]  # [S, K]
    n_predecessors = predecessors.sum(axis=0)  # [K]
    # [target, k] predecessors of the target that are none of k
    not_in_block = predecessors.T.astype(np.float64) @ ~predecessors
    # The cost of each target: by arcs alone; and in the block of each k, which has as many rows as k has predecessors
    cost_on_arcs = ARC_COST * n_predecessors[:, np.newaxis]  # [K, 1]
    cost_in_block = n_predecessors + ARC_COST * not_in_block  # [K, K]
    costs = n_states @ np.minimum(cost_on_arcs, cost_in_block)  # [K]
    k = np.lexsort((first, costs))[0]
    is_target = cost_in_block[:, k] < cost_on_arcs[:, 0]  # [K]
    return predecessors[:, k], is_target[kind.ravel()]


def _order_states(is_source: Bools, is_target: Bools, is_arc: Bools) -> Ints:
    """The order of the states in a layout: int64[S]. First come targets of the block that are no sources, then targets that are
    sources, other sources, and all other states; so the block's rows are neighbours, and its columns.

    Within these groups, the order makes runs of arcs long: states with more arcs come first, and the targets of arcs follow the
    order of their first sources.

    is_source (bool[S]), is_target (bool[S]): The states of the block.
    is_arc (bool[S, S]): The allowed transitions beside the block.
    """
    group = np.select([is_target & ~is_source, is_target, is_source], [0, 1, 2], default=3)  # [S]
    n_arcs = is_arc.sum(axis=0) + is_arc.sum(axis=1)
    rank = np.argsort(np.lexsort((-n_arcs, group)))  # [S] of each state, with more arcs first
    first_source = np.where(is_arc, rank[:, np.newaxis], len(rank)).min(axis=0)
    return np.lexsort((rank, np.minimum(first_source, rank), group))


def round_up(size: int, width: int = kernels.LANES) -> int:
    """The size rounded up to a multiple of a width."""
    return -(-size // width) * width


def aligned(shape: tuple[int, ...]) -> Floats:
    """Uninitialised array whose first number begins a cache line: loading vectors that span two lines took twice as long.

    shape (tuple[int, ...]): Shape of the array.
    """
    size = math.prod(shape)
    buffer = np.empty(size + WHOLE)
    begin = -buffer.ctypes.data // buffer.itemsize % WHOLE  # numbers before the next cache line
    return buffer[begin : begin + size].reshape(shape)


# --------------------------------------------------------------------------------- between scores and the linear domain


@dataclass(eq=False)
class Exponentials:
    """exp(scores - maximum) for each array of scores that tokens share. P, C+ and R+ are sizes padded to whole vectors."""

    layout: TransitionLayout
    block: Floats  # [1 or n, R, C+] transitions
    transposed: Floats  # [1 or n, C, R+] the same, target by source
    arcs: Floats  # [A] the other transitions
    first: Floats  # [P]
    last: Floats  # [P]
    shift: Floats  # [1 or n] the maxima of the transitions
    end_shift: Floats  # [1] the sum of the maxima of first and last
    spread: Floats  # [1 or n] the largest distance of two finite scores of one array: transitions, first or last

    neighbours: Optional[tuple] = None  # cached by `linear_chain`: an argument and the result of `_neighbours`

    @cached_property
    def matrices(self) -> Floats:
        """Exponentials of the transitions, with states in their own order: float64[1 or n, S, S]."""
        size = len(self.layout.order)
        return self.layout.restore(self.block, self.arcs, np.zeros((len(self.block), size, size)))


@dataclass(eq=False)
class OrderedScores:
    """Transitions, firsts and lasts, and the layout in which kernels read them."""

    layout: TransitionLayout
    transitions: Floats  # [1 or n, S, S]
    first: Floats  # [S]
    last: Floats  # [S]

    @classmethod
    def of_all_tokens(
        cls, transitions: Floats, first: Floats, last: Floats, graph: Optional[StateGraph] = None
    ) -> "OrderedScores":
        """Find the layout of scores that all tokens share.

        transitions (float64[1, S, S]): Scores of transitions.
        first (float64[S]): Scores of first states.
        last (float64[S]): Scores of last states.
        graph (StateGraph): The graph whose arcs are the allowed transitions, if states are those of a graph.
        """
        size = transitions.shape[1]
        if graph is None or size <= WHOLE or ARC_COST_IN_RUNS * len(graph.source) >= size**2:
            return cls(_find_layout(transitions), transitions, first, last)
        # No block: arcs whose sources and targets rise by 1 form long runs, as tags mostly leave an automaton in its state
        states = np.arange(size)
        by_step = np.lexsort((graph.source, graph.target - graph.source))
        layout = TransitionLayout(
            order=states,
            number=states,
            offset=0,
            source=graph.source[by_step],
            target=graph.target[by_step],
            shape=(0, 0),
        )
        return cls(layout, transitions, first, last)

    @cached_property
    def exponentials(self) -> Exponentials:
        """Exponentials of these scores."""
        return _exponentials(self.layout, self.transitions, self.first, self.last)

    @cached_property
    def viterbi_arguments(self) -> tuple[tuple, Floats, Floats]:
        """Arguments of the `viterbi` kernel: the layout, the block of each matrix (float64[1 or n, R, C]) and the arcs
        (float64[A]). (numba unpacks a plain tuple in half the time.)
        """
        layout = self.layout
        transitions = self.transitions
        rows, columns = layout.states_of_block
        block = np.full((max(1, len(transitions)), *layout.shape), -np.inf)
        if layout.is_whole:
            block[: len(transitions), : len(rows), : len(columns)] = transitions
            return tuple(layout), block, np.empty(0)
        block[0, : len(rows), : len(columns)] = transitions[0, rows[:, np.newaxis], columns]
        return tuple(layout), block, transitions[0, layout.order[layout.source], layout.order[layout.target]]


_latest_scores = LatestResults(32)


def _exponentials(layout: TransitionLayout, transitions: Floats, first: Floats, last: Floats) -> Exponentials:
    """Compute the exponentials of transitions (float64[1 or n, S, S]), first and last (float64[S] each) in a layout."""
    size = len(layout.order)
    height, width = layout.shape
    # Kernels read whole vectors: of all states, of the block's columns, and of its rows, which begin at `offset`
    padded_size = round_up(max(size, width, layout.offset + round_up(height, WHOLE)), WHOLE)  # P
    matrices = np.zeros((len(transitions), padded_size, padded_size))
    ends = np.zeros((2, padded_size))
    if not layout.is_whole:
        transitions = transitions[:, layout.order[:, np.newaxis], layout.order]
    shift, spread = exp_less(transitions, matrices[:, :size, :size])
    first_shift, first_spread = exp_less(first[layout.order], ends[0, :size])
    last_shift, last_spread = exp_less(last[layout.order], ends[1, :size])
    block = matrices[:, layout.offset : layout.offset + height, :width]
    return Exponentials(
        layout=layout,
        block=_with_padded_rows(block),
        transposed=_with_padded_rows(block.transpose(0, 2, 1)),
        arcs=np.empty(0) if layout.is_whole else matrices[0, layout.source, layout.target],
        first=ends[0],
        last=ends[1],
        shift=shift,
        end_shift=first_shift + last_shift,
        spread=np.maximum(spread, max(first_spread, last_spread)),
    )


def _with_padded_rows(matrices: Floats) -> Floats:
    """Matrices (float64[1 or n, R, C]) padded with zeros to rows of whole vectors: float64[1 or n, R, C+]."""
    n_matrices, height, width = matrices.shape
    padded = aligned((n_matrices, height, round_up(width, WHOLE)))
    padded[:] = 0.0
    padded[:, :, :width] = matrices
    return padded


def exp_less(scores: Floats, out: Floats) -> tuple[Floats, Floats]:
    """Compute exp(scores - maximum) of a vector, or of each of n matrices.

    scores (float64[S] or float64[n, S, S]): The scores.
    out (float64, of the same shape): Receives the exponentials.
    RETURNS (float64[1 or n], float64[1 or n]): The maxima, and their distances from the smallest finite scores.
    """
    axes = tuple(range(scores.ndim))[-2:]
    largest = scores.max(axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(largest > -np.inf, largest, 0.0)
    # out = exp(scores - max), in (0, 1]
    np.exp(scores - largest, out=out)
    smallest = np.where(scores > -np.inf, scores, largest).min(axis=axes, keepdims=True, initial=np.inf)
    return largest.reshape(-1), (largest - smallest).reshape(-1)


class ForwardPass(NamedTuple):
    """Arrays that the forward pass hands to the backward pass."""

    scaled: kernels.ScaledPotentials
    alpha: Floats  # [n, P]
    log_z: Floats  # [B] NaN for sequences that need log space


def _scale(exponentials: Exponentials, scores: Floats, starts: Ints, emissions: Floats) -> kernels.ScaledPotentials:
    """Make arguments of the kernels of the linear domain from emissions in log space (`scores`, float64[n, S]). The array
    `emissions` (float64[n, P]) receives their exponentials.
    """
    shift, spread = np.empty((2, len(scores)))
    shift[:] = exponentials.shift
    spread[:] = exponentials.spread
    # The first token of a sequence has no transition; it accounts for first and last
    shift[starts[:-1][starts[:-1] < starts[1:]]] = exponentials.end_shift
    layout = exponentials.layout
    kernels.scale(scores, layout.changed_order, emissions, shift, spread)
    return kernels.ScaledPotentials(
        emissions=emissions,
        block=exponentials.block,
        transposed=exponentials.transposed,
        arcs=exponentials.arcs,
        runs=layout.runs,
        first=exponentials.first,
        last=exponentials.last,
        shift=shift,
        spread=spread,
        starts=starts,
    )


def forward(work: ChainWork) -> ForwardPass:
    """Forward pass of a chunk.

    work (ChainWork): Potentials of the chunk.
    """
    exponentials = work.ordered_scores.exponentials
    emissions, alpha = aligned((2, work.n_tokens, len(exponentials.first)))
    scaled = _scale(exponentials, work.emissions, work.starts, emissions)
    # alpha[t, j] = exp(emissions[t, j]) · sum_i alpha[t-1, i] · exp(transitions[t, i, j]), divided by its sum over j
    log_z = np.empty(work.n_sequences)
    kernels.forward(scaled, exponentials.layout.offset, alpha, log_z)
    return ForwardPass(scaled, alpha, log_z)


def backward(work: ChainWork, before: ForwardPass, weights: Floats, d_emissions: Floats) -> Floats:
    """Backward pass of a chunk, which differentiates sum_b weights[b] · log_z[b]. It overwrites alpha and emissions of the
    forward pass, see `kernels.expectations`, and sets log_z to NaN where it finds that a sequence needs log space.

    work (ChainWork): Potentials of the chunk.
    before (ForwardPass): The forward pass.
    weights (float64[B]): Factor of each sequence.
    d_emissions (float64[n, S]): Receives the derivatives of emissions.
    RETURNS (float64[2, S]): Derivatives of firsts and lasts.
    """
    # beta[t, i] = sum_j exp(transitions[t+1, i, j] + emissions[t+1, j]) · beta[t+1, j]
    # d_emissions[t, j] = weights[b] · alpha[t, j] · beta[t, j] / sum_i alpha[t, i] · beta[t, i]
    d_ends = np.zeros((2, work.n_states))
    _expect_emissions(work.ordered_scores.exponentials.layout, before, weights, d_emissions, d_ends)
    return d_ends


def _expect_emissions(
    layout: TransitionLayout, before: ForwardPass, weights: Floats, d_emissions: Floats, d_ends: Iterable[Floats]
) -> None:
    """Backward pass of a chunk, as `backward`.

    layout (TransitionLayout): The layout of the transitions.
    before (ForwardPass): The forward pass.
    weights (float64[B]): Factor of each sequence.
    d_emissions (float64[n, S]): Receives the derivatives of emissions.
    d_ends (float64[S], float64[S]): Receive the derivatives of firsts and lasts, which are added.
    """
    scaled, alpha, log_z = before
    beta = np.empty((2, alpha.shape[1]))
    kernels.expectations(scaled, layout.offset, layout.changed_order, weights, alpha, log_z, beta, d_emissions, *d_ends)
    for b in np.flatnonzero(~(log_z > -np.inf)).tolist():
        # Without a path, or left to log space
        tokens = slice(scaled.starts[b], scaled.starts[b + 1])
        for array in (scaled.emissions, alpha, d_emissions):
            array[tokens] = 0.0


def expect(work: ChainWork, weights: Floats, out: ChainScores) -> Floats:
    """Both passes, for all derivatives. All tokens share one matrix of transitions.

    work (ChainWork): Potentials of the chunk.
    weights (float64[B]): Factor of each sequence.
    out (ChainScores): Zeros, which become the derivatives of sum_b weights[b] · log_z[b].
    RETURNS (float64[B]): Log partitions, NaN where a sequence needs log space.
    """
    exponentials = work.ordered_scores.exponentials
    layout = exponentials.layout
    log_z = np.empty(work.n_sequences)
    d_block = np.zeros_like(exponentials.block)
    d_arcs = np.zeros_like(exponentials.arcs)
    for (sequences, tokens), part in _forward_by_parts(work, log_z):
        _expect_emissions(layout, part, weights[sequences], out.emissions[tokens], (out.first, out.last))
        kernels.transition_expectations(part.alpha, part.scaled.emissions, layout.runs, layout.offset, d_block, d_arcs)
    d_block *= exponentials.block
    d_arcs *= exponentials.arcs
    layout.restore(d_block, d_arcs, out.transitions[np.newaxis])
    return log_z


def marginals(work: ChainWork, rows: Ints) -> tuple[Floats, Floats]:
    """Both passes, for the marginals of selected tokens. All tokens share one matrix of transitions.

    work (ChainWork): Potentials of B sequences.
    rows (int64[N]): The selected tokens, rising.
    RETURNS (float64[N, S], float64[B]): Probabilities of the states; and log partitions, NaN where a sequence needs log space.
    """
    layout = work.ordered_scores.exponentials.layout
    log_z = np.empty(work.n_sequences)
    ends = np.zeros((2, work.n_states))  # receive the expectations of first and last scores, which nobody asked for
    probabilities = np.empty((len(rows), work.n_states))
    buffer = np.empty((0, work.n_states))  # all parts use the same memory
    weights = np.ones(work.n_sequences)
    for (sequences, tokens), part in _forward_by_parts(work, log_z):
        n_tokens = len(part.alpha)
        if len(buffer) < n_tokens:
            buffer = np.empty((n_tokens, work.n_states))
        _expect_emissions(layout, part, weights[sequences], buffer[:n_tokens], ends)
        first, behind = np.searchsorted(rows, (tokens.start, tokens.stop))
        in_part = slice(first, behind)
        probabilities[in_part] = buffer[rows[in_part] - tokens.start]
    return np.maximum(probabilities, 0.0, out=probabilities), log_z


def _forward_by_parts(work: ChainWork, log_z: Floats) -> Iterator[tuple[Chunk, ForwardPass]]:
    """Forward passes part by part. All parts use the same memory, which stays in the cache of the processor, so a result is valid
    until the next one. Log partitions also go to `log_z` (float64[B]).
    """
    exponentials = work.ordered_scores.exponentials
    scores = work.emissions
    layout = exponentials.layout
    width = len(exponentials.first)
    parts = work.chunks(max(LEAST_TOKENS, CACHED_SCORES // width))
    longest = max(tokens.stop - tokens.start for _, tokens in parts)
    buffer = aligned((2, longest, width))
    for sequences, tokens in parts:
        emissions, alpha = buffer[:, : tokens.stop - tokens.start]
        starts = work.starts[sequences.start : sequences.stop + 1] - tokens.start
        scaled = _scale(exponentials, scores[tokens], starts, emissions)
        part_log_z = log_z[sequences]
        # alpha[t, j] = exp(emissions[t, j]) · sum_i alpha[t-1, i] · exp(transitions[i, j]), divided by its sum over j
        kernels.forward(scaled, layout.offset, alpha, part_log_z)
        yield Chunk(sequences, tokens), ForwardPass(scaled, alpha, part_log_z)
