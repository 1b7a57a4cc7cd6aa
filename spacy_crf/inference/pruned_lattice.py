"""Scores of chains of higher order, the n-grams of tags that have a weight, and pruned lattices of such chains.

Lattices are built level by level (Müller, Schmid & Schütze 2013): first single states, then pairs of the states that are likely
by their emissions, then triples of likely pairs, and so on.
"""

from collections.abc import Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..arrays import states_of
from ..errors import Errors
from ..kernels import higher_order as kernels
from ..kernels.hashing import hash_rows, insert
from ..types import ChainScores, Clamp, Floats, Ints
from .structure import Chunk, Work

MOST = 3  # the highest order


class Orders(NamedTuple):
    """N-grams that have a weight, and settings of pruning. They are constants: nothing has a derivative with respect to them.

    The key of an n-gram is a number in base ``size + 1``: first the digit 1, then its tags. The digit ``size`` stands for the
    start of a sequence.
    """

    order: int
    keys: Ints  # [G] sorted
    size: int  # number of tags
    keep: Optional[float] = None  # mean number of nodes that a token keeps after each level; None for all
    thresholds: Optional[Floats] = None  # [order] least probability of kept nodes; None to keep as many as `keep` says
    digit_of: Optional[Ints] = None  # [S] digit of each state, None if states are tags
    table: Optional[tuple[NDArray[np.uint64], NDArray[np.int32]]] = None  # hash table of the keys, see `indexed`
    measured: Optional[Floats] = None  # [order] in derivatives: the thresholds in training, or NaN

    @property
    def levels(self) -> int:
        """The highest order of an n-gram with a weight."""
        return max(1, self.order)

    def digits(self, n_states: int) -> Ints:
        """Digit of each state in keys: int64[S]. States without a tag have the digit for the outside of a sequence.

        n_states (int): S.
        """
        digits = np.arange(n_states, dtype=np.int64) if self.digit_of is None else self.digit_of
        return np.append(digits, np.full(n_states - len(digits), self.size))


def indexed(orders: Orders) -> Orders:
    """Add the hash table of the keys to orders that have none.

    orders (Orders): N-grams that have a weight.
    RETURNS (Orders): The orders with the table.
    """
    return orders._replace(table=_table_of(orders))


def _table_of(orders: Orders) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    if orders.table is not None:
        return orders.table
    size = 1 << max(4, (2 * len(orders.keys)).bit_length())
    hashes = np.zeros(size, dtype=np.uint64)
    rows = np.full(size, -1, dtype=np.int32)
    insert(hashes, rows, hash_rows(orders.keys.astype(np.uint64)[:, np.newaxis]), 0)
    return hashes, rows


def key_of(tags: Sequence[Any], size: int) -> Any:
    """Key of an n-gram of tags, or of several n-grams.

    tags (Sequence): The tags, each a number or int64[G]; the first may be ``size``, the start of a sequence.
    size (int): Number of tags.
    RETURNS (int or int64[G]): The key, or the keys.
    """
    key = 1
    for tag in tags:
        key = key * (size + 1) + tag
    return key


def tags_of_keys(keys: Ints, size: int) -> Ints:
    """Tags of the n-grams with some keys.

    keys (int64[G]): The keys.
    size (int): Number of tags.
    RETURNS (int64[G, MOST + 1]): The tags of each n-gram, padded in front with -1.
    """
    left = keys.copy()
    tags = np.full((len(keys), MOST + 1), -1, dtype=np.int64)
    for place in range(MOST, -1, -1):
        has_more = left > 1
        tags[has_more, place] = left[has_more] % (size + 1)
        left[has_more] //= size + 1
    return tags


class HigherOrderScores(NamedTuple):
    """Potentials of a batch of chains: the scores of `ChainScores`, and scores of n-grams of three or more tags."""

    emissions: Floats  # [T, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    grams: Floats  # [G]
    orders: Orders
    starts: Optional[Ints] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType({**ChainScores.AXES, "grams": ("gram",)})


_LIKELY = 1e-3  # the search for a threshold starts with larger probabilities
# factor for a threshold that left no labelling, and the smallest threshold
_LESS = 1e-2
_LEAST = 1e-12
ALL_STATES = 32  # up to so many states, the first level keeps all: pairs are a better criterion than emissions
_MOST_ARCS = 1 << 28  # largest number of arcs of a chunk, which take some gigabytes
_LIKELY_TOKENS = 4  # factor for the size of chunks if lattices are pruned
_LIKELY_ARCS = 1 << 23  # number of arcs of a chunk if they are not


class PrunedLattice(NamedTuple):
    """Labellings of some sequences that survive pruning."""

    level: kernels.Level
    tokens: Ints  # [N] token of each node
    depth: Ints  # [B] order of each sequence
    thresholds: Floats  # [order] least probability of kept nodes; NaN for levels without pruning


class LatticeCache:
    """Lattices of a batch that training evaluates repeatedly. A rebuilt lattice keeps its earlier nodes, so that training
    converges; otherwise pruned labellings might come and go.
    """

    def __init__(self) -> None:
        self.now: dict[int, PrunedLattice] = {}  # by the first token of each chunk
        self.before: dict[int, PrunedLattice] = {}

    def renew(self) -> None:
        """Let the next evaluation rebuild the lattices and keep their present nodes."""
        self.before = self.now or self.before
        self.now = {}


class HigherOrderWork(Work[HigherOrderScores]):
    """Scores of higher-order chains, prepared for the kernels.

    Each chunk builds its lattice once: from the labellings that the clamp allows or, if `around` names an annotation, from all
    labellings, which include the annotated ones.
    """

    annotated: Optional[Clamp] = None  # clamp of the annotation of the whole batch, if lattices are built around it
    place: int = 0  # first token of the chunk in the whole batch
    depths: Optional[Ints] = None  # [B] order of each sequence of the whole batch, once known
    lattices: dict[int, PrunedLattice]  # around the annotation, by the first token of each chunk
    kept: Optional[LatticeCache]  # which keeps them from step to step, if there is any

    def around(self, clamp: Clamp, kept: Optional[LatticeCache]) -> "HigherOrderWork":
        """The same scores, with lattices that keep the labellings of an annotation.

        clamp (bool[T, S]): What the annotation allows.
        kept (Optional[LatticeCache]): Remembers the lattices from step to step.
        """
        work = type(self)(self.scores, None, self.given)
        work.expansion = self.whole.expansion
        work.annotated = states_of(self.in_states(clamp))
        work.lattices = {}
        work.kept = kept
        return work

    def most_tokens(self, tokens: int) -> int:
        """Number of tokens in a chunk: more than `tokens` if lattices are pruned and small, fewer if they are whole and large.

        tokens (int): The structure's default.
        """
        orders = self.scores.orders
        if orders.keep is not None:
            return _LIKELY_TOKENS * tokens
        return max(1, min(tokens, _LIKELY_ARCS // self.n_states ** (orders.levels + 1)))

    def cut(self, chunk: Chunk) -> "HigherOrderWork":
        """The work of one chunk, which knows its place in the batch.

        chunk (Chunk): The sequences and their tokens.
        """
        part = super().cut(chunk)
        if part is not self:
            part.place = chunk.tokens.start
        return part

    @cached_property
    def emissions(self) -> Floats:
        """Emissions of each token: float64[T, S], -inf where the clamp forbids the state."""
        scores = self.scores.emissions
        return scores if self.clamp is None else np.where(self.clamp, scores, -np.inf)

    @cached_property
    def is_free(self) -> bool:
        """Whether every transition is allowed, and all tokens share the transitions."""
        if self.whole is not self:
            return self.whole.is_free
        return self.per_position is False and bool(np.isfinite(self.scores.transitions).all())

    @property
    def stride(self) -> int:
        """Distance between the transitions of neighbouring tokens in `table`: 0 if all tokens share one matrix."""
        return self.n_states**2 if self.per_position else 0

    @cached_property
    def table(self) -> Floats:
        """Scores of arcs in one array, see `kernels.higher_order`."""
        if self.whole is not self and not self.per_position:
            return self.whole.table
        return np.concatenate([self.transitions.ravel(), [0.0], self.scores.grams])

    @cached_property
    def grams(self) -> kernels.Grams:
        """The n-grams of tags that have a weight."""
        orders = self.scores.orders
        digits = orders.digits(self.n_tags if self.tag_of is not None else self.n_states)
        if self.tag_of is not None:
            digits = digits[self.tag_of]
        keys, rows = _table_of(orders)
        return kernels.Grams(keys, rows, digits, orders.size + 1, self.transitions.size)

    @cached_property
    def sequence_of(self) -> Ints:
        """Sequence of each token: int64[T]."""
        return np.repeat(np.arange(self.n_sequences), np.diff(self.starts))

    @property
    def representatives(self) -> Union[slice, Ints]:
        """One state of each tag."""
        tag_of = self.tag_of
        return slice(None) if tag_of is None else np.unique(tag_of, return_index=True)[1]

    @property
    def lattice(self) -> PrunedLattice:
        """The lattice around the annotation if the work has one, else the lattice of the clamp."""
        whole = self.whole
        place = self.place
        if whole.annotated is None:
            return self._own_lattice
        if place not in whole.lattices:
            annotated = whole.annotated[place : place + self.n_tokens]
            kept = whole.kept or LatticeCache()
            if place in kept.now:
                lattice = with_scores(self, kept.now[place])
            else:
                lattice = make_lattice(self, annotated, kept.before.get(place))
                kept.now[place] = lattice
            whole.lattices[place] = lattice
        return whole.lattices[place]

    @cached_property
    def _own_lattice(self) -> PrunedLattice:
        return make_lattice(self)

    @cached_property
    def sums(self) -> "Sums":
        """Scores of the lattice, with its forward pass."""
        return Sums(self, self.lattice.level, self.clamp if self.whole.annotated is not None else None)

    @cached_property
    def alone(self) -> tuple[Floats, Floats]:
        """Sum over sequences without a lattice, whose tokens are independent.

        RETURNS (float64[B], float64[M, S]): Log partitions, 0 for sequences with a lattice; and the probability of each state at
            the M tokens of sequences without one.
        """
        emissions = self.emissions[self.are_alone]
        sequence_of = self.sequence_of[self.are_alone]
        largest = emissions.max(axis=1, initial=-np.inf)
        chances = np.exp(emissions - np.where(largest > -np.inf, largest, 0.0)[:, np.newaxis])
        sums = chances.sum(axis=1)
        with np.errstate(divide="ignore"):
            log_z = np.bincount(sequence_of, np.log(sums) + largest, minlength=self.n_sequences).astype(np.float64)
        # P(state j) = exp(emission j) / sum_i exp(emission i), 0 without any labelling
        possible = log_z[sequence_of] > -np.inf  # [M] whether the sequence of the token has a labelling
        factors = np.divide(possible, sums, out=np.zeros(len(sums)), where=sums > 0.0)
        chances *= factors[:, np.newaxis]
        return log_z, chances

    @property
    def are_alone(self) -> NDArray[np.bool_]:
        """Which tokens belong to sequences without a lattice: bool[T]."""
        return self.lattice.depth[self.sequence_of] == 0


class Sums:
    """Scores of a lattice, in which a clamp (bool[T, S]) may forbid states. Its forward pass is computed on demand."""

    def __init__(self, work: HigherOrderWork, level: kernels.Level, clamp: Optional[Clamp] = None):
        self.level = level
        self.starts = work.starts
        self._table = work.table
        self.weights = self._table[level.used]
        self.scores = level.scores
        if clamp is not None:
            allowed = clamp[tokens_of(level), level.symbol]
            self.scores = np.where(allowed, level.scores, -np.inf)

    @cached_property
    def exponentials(self) -> Floats:
        """exp of the scores of arcs (float64[A]); NaN in place of infinity."""
        # Exponentials of the arcs or of the table, whichever is shorter
        few = len(self.level.used) <= len(self._table)
        with np.errstate(over="ignore"):
            exponentials = np.exp(self.weights if few else self._table)
        # Infinity must not enter a sum: for NaN, kernels add logarithms instead
        exponentials[exponentials == np.inf] = np.nan
        return exponentials if few else exponentials[self.level.used]

    @cached_property
    def _forward(self) -> tuple[kernels.LatticeForwardSums, Floats]:
        prefixes = kernels.LatticeForwardSums(*np.empty((3, len(self.level.symbol))))
        log_z = np.empty(len(self.starts) - 1)
        of_arcs = self.weights, self.exponentials
        kernels.forward(self.level, self.scores, *of_arcs, self.starts, prefixes, log_z)
        return prefixes, log_z

    @property
    def log_z(self) -> Floats:
        """Log partitions of the sequences: float64[B]."""
        return self._forward[1]

    def chances(self, factors: Optional[Floats] = None) -> kernels.Chances:
        """Probabilities of the nodes and arcs of the lattice, times a factor.

        factors (float64[B]): Factor of each sequence, 1 by default.
        """
        prefixes, log_z = self._forward
        factors = np.ones(len(log_z)) if factors is None else factors
        chances = kernels.Chances(np.zeros(len(self.scores)), np.zeros(len(self.weights)))
        lattice = self.level, self.scores, self.weights, self.exponentials, self.starts
        kernels.posterior(*lattice, prefixes, log_z, factors, chances)
        return chances


def tokens_of(level: kernels.Level) -> Ints:
    """Token of each node: int64[N].

    level (Level): A lattice of N nodes.
    """
    return np.repeat(np.arange(len(level.starts) - 1), np.diff(level.starts))


def make_lattice(
    work: HigherOrderWork, annotated: Optional[Clamp] = None, before: Optional[PrunedLattice] = None
) -> PrunedLattice:
    """Build the lattices of a chunk, level by level.

    work (HigherOrderWork): Potentials of the chunk.
    annotated (bool[T, S]): States of the annotation. A sequence whose next level would lose all annotated labellings
        stays at the level before (early update).
    before (PrunedLattice): Lattice whose nodes stay.
    """
    levels = work.scores.orders.levels
    depth = np.full(work.n_sequences, levels)
    thresholds = np.full(levels, np.nan)
    # At level m a node stands for the last m states, and an arc adds one. Arcs whose probability is above a threshold become the
    # nodes of level m + 1
    level, thresholds[0] = _first_level(work, annotated, before, depth)
    for m in range(1, levels):
        sums = Sums(work, level)
        stays = depth < levels
        chosen = sums.weights > -np.inf
        if work.scores.orders.keep is not None:
            chances = sums.chances().arcs
            thresholds[m] = _threshold(work, m, chances, annotated is not None)
            chosen = chances > thresholds[m]
            if annotated is None:
                # In prediction a sequence always keeps some labelling: all of its arcs, if the likely ones form no path
                lost = _lost(level, level.scores > -np.inf, chosen, work.starts)
                of_arcs = np.repeat(work.sequence_of, np.diff(level.arcs[level.starts]))
                chosen |= lost[of_arcs] & (sums.weights > -np.inf)
            else:
                if before is not None:
                    chosen |= _were_chosen(work, level, m, before)
                allowed = annotated[tokens_of(level), level.symbol] & (level.scores > -np.inf)
                lost = _lost(level, allowed, chosen, work.starts) & ~stays
                depth[lost] = m
                stays = stays | lost
        level = kernels.next_level(level, m, sums.weights, chosen, stays, work.starts, work.grams)
    return PrunedLattice(level, tokens_of(level), depth, thresholds)


def with_scores(work: HigherOrderWork, lattice: PrunedLattice) -> PrunedLattice:
    """A lattice with other scores.

    work (HigherOrderWork): The scores.
    lattice (PrunedLattice): The nodes, of the same tokens.
    """
    level = lattice.level
    scores = np.empty(len(lattice.tokens))
    ends = work.scores.first, work.scores.last
    kernels.score_nodes(level, work.emissions, *ends, work.starts, work.table, scores)
    return lattice._replace(level=level._replace(scores=scores))


def _first_level(
    work: HigherOrderWork, annotated: Optional[Clamp], before: Optional[PrunedLattice], depth: Ints
) -> tuple[kernels.Level, float]:
    """Build the lattice of single states. Sets ``depth`` to 0 where pruning loses the annotation.

    RETURNS (Level, float): The lattice, and the least probability of kept states by their emissions.
    """
    possible = work.emissions > -np.inf
    if work.scores.orders.keep is None or possible.shape[1] <= ALL_STATES:
        return _level_of(work, possible), np.nan
    # Probability of each state by the emissions of its token alone, shared by states of one tag
    largest = work.emissions.max(axis=1, initial=-np.inf, keepdims=True)
    chances = np.exp(work.emissions - np.where(largest > -np.inf, largest, 0.0))
    chances /= np.maximum(chances[:, work.representatives].sum(axis=1, keepdims=True), 1.0)
    threshold = _threshold(work, 0, chances[:, work.representatives].ravel(), annotated is not None)
    kept = chances > threshold
    kept[np.arange(len(kept)), chances.argmax(axis=1)] = True
    if before is not None:
        kept[before.tokens, before.level.symbol] = True
    kept &= possible
    level = _level_of(work, kept)
    of_token = work.sequence_of
    if annotated is None and work.is_free:
        return level, threshold
    nodes = level.scores > -np.inf
    if annotated is not None:
        nodes &= annotated[tokens_of(level), level.symbol]
    lost = _lost(level, nodes, work.table[level.used] > -np.inf, work.starts)
    if annotated is not None and lost.any():
        depth[lost] = 0
        level = _level_of(work, kept & ~lost[of_token, np.newaxis])
    if annotated is not None:
        return level, threshold
    limit = threshold
    while lost.any() and limit >= 0.0:  # the scheme, or a rule, allows no path through the likely states
        limit = limit * _LESS if limit > _LEAST else -1.0
        kept |= possible & (chances > limit) & lost[of_token, np.newaxis]
        level = _level_of(work, kept)
        lost = _lost(level, level.scores > -np.inf, work.table[level.used] > -np.inf, work.starts)
    return level, threshold


def _were_chosen(work: HigherOrderWork, level: kernels.Level, m: int, before: PrunedLattice) -> NDArray[np.bool_]:
    """Find the arcs that are nodes of another lattice, or ends of its nodes."""
    base = work.grams.base
    digits = work.grams.digits
    counts = np.diff(level.arcs)
    into = np.repeat(np.arange(len(counts)), counts)
    # An arc is the n-gram of its first node and the tag of its second; a node of `before` ends with such an n-gram
    codes = level.code[arrays.ranges(level.source, level.source + counts)] * base + digits[level.symbol[into]]
    whole = base ** (m + 1)  # the last m + 1 tags
    known = (before.depth > m)[work.sequence_of][before.tokens]
    ends = before.tokens[known] * (2 * whole) + whole + before.level.code[known] % whole
    return np.isin(tokens_of(level)[into] * (2 * whole) + codes, ends)


def _threshold(work: HigherOrderWork, m: int, chances: Floats, in_training: bool) -> float:
    """The threshold that training found; during training, the threshold that leaves ``keep`` nodes per token on average."""
    orders = work.scores.orders
    if orders.thresholds is not None and not in_training and orders.thresholds[m] > 0.0:
        return float(orders.thresholds[m])
    # The n-th largest probability, first without the small ones, which are most
    n_kept = int(orders.keep * work.n_tokens)
    likely = chances[chances > _LIKELY]
    if len(likely) <= n_kept:
        likely = chances[chances > 0.0]
    if len(likely) <= n_kept:
        return 0.0
    return float(np.partition(likely, len(likely) - n_kept - 1)[len(likely) - n_kept - 1])


def _level_of(work: HigherOrderWork, kept: Clamp) -> kernels.Level:
    scores = work.scores
    levels = scores.orders.levels
    ends = (scores.first, scores.last)
    counts = kept.sum(axis=1)
    n_arcs = int((counts[1:] * counts[:-1]).sum())
    if n_arcs > _MOST_ARCS:
        raise ValueError(Errors.CRF030.format(tokens=work.n_tokens, arcs=n_arcs, states=int(counts.max())))
    return kernels.first_level(kept, work.emissions, *ends, work.starts, work.grams, levels, work.stride)


def _lost(level: kernels.Level, nodes: NDArray[np.bool_], open_arcs: NDArray[np.bool_], starts) -> NDArray[np.bool_]:
    """Find the sequences in which no path remains."""
    found = np.empty(len(starts) - 1, dtype=np.bool_)
    kernels.reachable(level, nodes, open_arcs, starts, found)
    return ~found
