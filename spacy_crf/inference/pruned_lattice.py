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
    """N-grams that have a weight, and settings of pruning: the part of the scores that has no derivatives.

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
    """A copy of orders that has the hash table of the keys.

    orders (Orders): N-grams that have a weight.
    """
    return orders._replace(table=_table_of(orders))


def _table_of(orders: Orders) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """The hash table of the keys: hashes, and the n-gram of each hash, -1 for none. It is computed if the orders lack it."""
    if orders.table is not None:
        return orders.table
    size = 1 << max(4, (2 * len(orders.keys)).bit_length())
    hashes = np.zeros(size, dtype=np.uint64)
    rows = np.full(size, -1, dtype=np.int32)
    insert(hashes, rows, hash_rows(orders.keys.astype(np.uint64)[:, np.newaxis]), 0)
    return hashes, rows


def key_of(tags: Sequence[Any], size: int) -> Any:
    """The key of an n-gram of tags, or the keys of G n-grams.

    tags (Sequence): The tags in their order, each a number, or int64[G]; the first may be ``size``, the start of a sequence.
    size (int): Number of tags.
    RETURNS (int or int64[G]): The key, or the keys.
    """
    key = 1
    for tag in tags:
        key = key * (size + 1) + tag
    return key


def tags_of_keys(keys: Ints, size: int) -> Ints:
    """The tags of n-grams, from their keys.

    keys (int64[G]): The keys.
    size (int): Number of tags.
    RETURNS (int64[G, MOST + 1]): The tags of each n-gram, padded in front with -1.
    """
    prefixes = keys.copy()
    tags = np.full((len(keys), MOST + 1), -1, dtype=np.int64)
    for position in range(MOST, -1, -1):  # from the last tag to the first
        has_tag = prefixes > 1  # 1 is the key of no tags
        tags[has_tag, position] = prefixes[has_tag] % (size + 1)
        prefixes[has_tag] //= size + 1
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


_LIKELY = 1e-3  # the search for a threshold tries the probabilities above it first
_LESS = 1e-2  # factor for a threshold that left no labelling
_LEAST = 1e-12  # the smallest threshold but 0
ALL_STATES = 32  # up to so many states, the first level keeps all: pairs are a better criterion than emissions
_MOST_ARCS = 1 << 28  # most arcs that a chunk may have: they take some gigabytes
_LIKELY_TOKENS = 4  # factor for the tokens of a chunk if lattices are pruned
_LIKELY_ARCS = 1 << 23  # about the number of arcs of a chunk if lattices are not pruned


class PrunedLattice(NamedTuple):
    """Lattices of B sequences: the labellings that survive pruning."""

    level: kernels.Level  # N nodes, and their arcs
    tokens: Ints  # [N] token of each node
    depth: Ints  # [B] the order up to which the lattice of a sequence was built; 0 where pruning lost the annotation
    thresholds: Floats  # [order] least probability of kept nodes; NaN for levels without pruning


class LatticeCache:
    """Lattices of a batch that training evaluates repeatedly, by the first token of each chunk. A rebuilt lattice keeps its
    earlier nodes; otherwise labellings might come and go, and training would not converge.
    """

    def __init__(self) -> None:
        self.current: dict[int, PrunedLattice] = {}
        self.previous: dict[int, PrunedLattice] = {}

    def renew(self) -> None:
        """Let the next evaluation rebuild the lattices; the rebuilt ones keep the nodes of the present ones."""
        self.previous = self.current or self.previous
        self.current = {}


class HigherOrderWork(Work[HigherOrderScores]):
    """Scores of higher-order chains, prepared for the kernels.

    Each chunk builds its lattice once. In prediction it is a lattice of the labellings that the clamp allows; in training one of
    all labellings, in which pruning keeps the annotated ones (`around`).
    """

    annotated: Optional[Clamp] = None  # of all sequences, in training: what the annotation allows
    first_token: int = 0  # of the chunk, among the tokens of all sequences
    depths: Optional[Ints] = None  # [B] of all sequences: depth of each lattice, once computed
    lattices: dict[int, PrunedLattice]  # of all sequences, in training: by the first token of each chunk
    cache: Optional[LatticeCache]  # keeps lattices from one evaluation of training to the next

    def around(self, clamp: Clamp, cache: Optional[LatticeCache]) -> "HigherOrderWork":
        """Return work on the same scores whose pruned lattices keep the labellings that an annotation allows.

        clamp (bool[T, S]): What the annotation allows.
        cache (Optional[LatticeCache]): Keeps the lattices from one evaluation to the next; None to build them each time.
        """
        work = type(self)(self.scores, None, self.original)
        work.expansion = self.whole.expansion
        work.annotated = states_of(self.in_states(clamp))
        work.lattices = {}
        work.cache = cache
        return work

    def most_tokens(self, tokens: int) -> int:
        """How many tokens a chunk may have: more than `tokens` if lattices are pruned, fewer if whole lattices would be large.

        tokens (int): The structure's default.
        """
        orders = self.scores.orders
        if orders.keep is not None:
            return _LIKELY_TOKENS * tokens
        return max(1, min(tokens, _LIKELY_ARCS // self.n_states ** (orders.levels + 1)))

    def cut(self, chunk: Chunk) -> "HigherOrderWork":
        """The scores and the clamp of one chunk.

        chunk (Chunk): The sequences and their tokens.
        """
        part = super().cut(chunk)
        if part is not self:
            part.first_token = chunk.tokens.start
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
        """How far the transitions of neighbouring tokens are apart in `table`; 0 if all tokens share one matrix."""
        return self.n_states**2 if self.per_position else 0

    @cached_property
    def table(self) -> Floats:
        """All scores that arcs may have, in one array: transitions, 0, n-grams."""
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
        """The first state of each tag."""
        if self.tag_of is None:
            return slice(None)
        _, first_states = np.unique(self.tag_of, return_index=True)
        return first_states

    @property
    def lattice(self) -> PrunedLattice:
        """The lattice of this chunk: in training it keeps the annotation, in prediction it has the states of the clamp.

        In training, a lattice of the cache is used until the cache is renewed. The next lattice keeps the nodes of this one.
        """
        whole = self.whole
        first = self.first_token  # the key of the chunk
        if whole.annotated is None:
            return self._clamp_lattice
        if first not in whole.lattices:
            annotated = whole.annotated[first : first + self.n_tokens]
            cache = whole.cache or LatticeCache()
            if first in cache.current:
                lattice = with_scores(self, cache.current[first])
            else:
                lattice = make_lattice(self, annotated, cache.previous.get(first))
                cache.current[first] = lattice
            whole.lattices[first] = lattice
        return whole.lattices[first]

    @cached_property
    def _clamp_lattice(self) -> PrunedLattice:
        return make_lattice(self)

    @cached_property
    def sums(self) -> "Sums":
        """Sums over the lattice."""
        # A lattice around the annotation is built without the clamp
        clamp = self.clamp if self.whole.annotated is not None else None
        return Sums(self, self.lattice.level, clamp)

    @cached_property
    def alone(self) -> tuple[Floats, Floats]:
        """Sums over the sequences without a lattice, as if their tokens were independent.

        RETURNS (float64[B], float64[M, S]): Log partitions, 0 for sequences with a lattice; and the probability of each state at
            the M tokens of sequences without a lattice.
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
    """Sums over a lattice, computed on demand: log partitions, and probabilities of nodes and arcs.

    work (HigherOrderWork): Potentials of the chunk.
    level (Level): The lattice.
    clamp (bool[T, S]): States still allowed; None if all states of the lattice are allowed.
    """

    def __init__(self, work: HigherOrderWork, level: kernels.Level, clamp: Optional[Clamp] = None):
        self.level = level
        self.starts = work.starts
        self._table = work.table
        self.weights = self._table[level.used]  # [A] of arcs
        self.scores = level.scores  # [N] of nodes
        if clamp is not None:
            allowed = clamp[tokens_of(level), level.symbol]
            self.scores = np.where(allowed, level.scores, -np.inf)

    @cached_property
    def exponentials(self) -> Floats:
        """exp of the scores of arcs (float64[A]); NaN in place of infinity."""
        # Exponentials of the arcs or of the table, whichever is shorter
        of_arcs = len(self.level.used) <= len(self._table)
        with np.errstate(over="ignore"):
            exponentials = np.exp(self.weights if of_arcs else self._table)
        # Infinity must not enter a sum: for NaN, kernels add logarithms instead
        exponentials[exponentials == np.inf] = np.nan
        return exponentials if of_arcs else exponentials[self.level.used]

    @cached_property
    def _forward(self) -> tuple[kernels.LatticeForwardSums, Floats]:
        prefixes = kernels.LatticeForwardSums(*np.empty((3, len(self.level.symbol))))
        log_z = np.empty(len(self.starts) - 1)
        kernels.forward(self.level, self.scores, self.weights, self.exponentials, self.starts, prefixes, log_z)
        return prefixes, log_z

    @property
    def log_z(self) -> Floats:
        """Log partitions of the sequences: float64[B]."""
        _, log_z = self._forward
        return log_z

    def chances(self, factors: Optional[Floats] = None) -> kernels.Chances:
        """Probabilities of the nodes and arcs of the lattice, times a factor.

        factors (float64[B]): Factor of each sequence, 1 by default.
        """
        prefixes, log_z = self._forward
        factors = np.ones(len(log_z)) if factors is None else factors
        chances = kernels.Chances(np.zeros(len(self.scores)), np.zeros(len(self.weights)))
        kernels.posterior(
            self.level,
            self.scores,
            self.weights,
            self.exponentials,
            self.starts,
            prefixes,
            log_z,
            factors,
            chances,
        )
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
    annotated (bool[T, S]): In training the states that the annotation allows. A sequence whose next level would lose all
        annotated labellings stays at its level (early update).
    before (PrunedLattice): In training an earlier lattice of the chunk, whose nodes stay; None if there is none.
    """
    levels = work.scores.orders.levels
    depth = np.full(work.n_sequences, levels)
    thresholds = np.full(levels, np.nan)
    # At level m a node stands for the last m states, and an arc adds one. Arcs whose probability is above a threshold become the
    # nodes of level m + 1
    level, thresholds[0] = _first_level(work, annotated, before, depth)
    for m in range(1, levels):
        sums = Sums(work, level)
        is_finished = depth < levels  # [B] sequences that get no further level
        is_kept = sums.weights > -np.inf  # [A]
        if work.scores.orders.keep is not None:
            chances = sums.chances().arcs
            thresholds[m] = _threshold(work, m, chances, annotated is not None)
            is_kept = chances > thresholds[m]
            possible_nodes = level.scores > -np.inf
            if annotated is None:
                # In prediction a sequence always keeps some labelling: all of its arcs, if the likely ones form no path
                is_lost = _lost(level, possible_nodes, is_kept, work.starts)
                sequence_of_arc = np.repeat(work.sequence_of, np.diff(level.arcs[level.starts]))
                is_kept |= is_lost[sequence_of_arc] & (sums.weights > -np.inf)
            else:
                if before is not None:
                    is_kept |= _were_kept(work, level, m, before)
                annotated_nodes = annotated[tokens_of(level), level.symbol] & possible_nodes
                is_lost = _lost(level, annotated_nodes, is_kept, work.starts) & ~is_finished
                depth[is_lost] = m
                is_finished = is_finished | is_lost
        level = kernels.next_level(level, m, sums.weights, is_kept, is_finished, work.starts, work.grams)
    return PrunedLattice(level, tokens_of(level), depth, thresholds)


def with_scores(work: HigherOrderWork, lattice: PrunedLattice) -> PrunedLattice:
    """A copy of a lattice with new scores of its nodes.

    work (HigherOrderWork): Potentials of the tokens of the lattice.
    lattice (PrunedLattice): The lattice.
    """
    level = lattice.level
    scores = np.empty(len(lattice.tokens))
    kernels.score_nodes(level, work.emissions, work.scores.first, work.scores.last, work.starts, work.table, scores)
    return lattice._replace(level=level._replace(scores=scores))


def _first_level(
    work: HigherOrderWork, annotated: Optional[Clamp], before: Optional[PrunedLattice], depth: Ints
) -> tuple[kernels.Level, float]:
    """Build the lattice of single states.

    work (HigherOrderWork): Potentials of the chunk.
    annotated (bool[T, S]): In training the states that the annotation allows, None in prediction.
    before (PrunedLattice): In training an earlier lattice, whose nodes stay; None if there is none.
    depth (int64[B]): Becomes 0 for sequences in which pruning loses the annotation: they have no nodes.
    RETURNS (Level, float): The lattice, and the least probability of kept states by their emissions.
    """
    is_possible = work.emissions > -np.inf  # [T, S]
    if work.scores.orders.keep is None or is_possible.shape[1] <= ALL_STATES:
        return _level_of(work, is_possible), np.nan
    # Probability of each state by the emissions of its token alone; states of one tag have the probability of the tag
    largest = work.emissions.max(axis=1, initial=-np.inf, keepdims=True)
    chances = np.exp(work.emissions - np.where(largest > -np.inf, largest, 0.0))
    chances /= np.maximum(chances[:, work.representatives].sum(axis=1, keepdims=True), 1.0)
    threshold = _threshold(work, 0, chances[:, work.representatives].ravel(), annotated is not None)
    is_kept = chances > threshold
    is_kept[np.arange(len(is_kept)), chances.argmax(axis=1)] = True  # a token keeps its likeliest state
    if before is not None:
        is_kept[before.tokens, before.level.symbol] = True
    is_kept &= is_possible
    level = _level_of(work, is_kept)
    if annotated is not None:
        annotated_nodes = annotated[tokens_of(level), level.symbol] & (level.scores > -np.inf)
        is_lost = _lost(level, annotated_nodes, work.table[level.used] > -np.inf, work.starts)
        if is_lost.any():
            depth[is_lost] = 0
            level = _level_of(work, is_kept & ~is_lost[work.sequence_of, np.newaxis])
        return level, threshold
    if work.is_free:  # any states form a path
        return level, threshold
    # In prediction a sequence always has a path: where the scheme or a rule allows none through the likely states, a lower and
    # lower threshold adds states, and at last all possible states
    is_lost = _lost(level, level.scores > -np.inf, work.table[level.used] > -np.inf, work.starts)
    lower = threshold
    while is_lost.any() and lower >= 0.0:
        lower = lower * _LESS if lower > _LEAST else -1.0
        is_kept |= is_possible & (chances > lower) & is_lost[work.sequence_of, np.newaxis]
        level = _level_of(work, is_kept)
        is_lost = _lost(level, level.scores > -np.inf, work.table[level.used] > -np.inf, work.starts)
    return level, threshold


def _were_kept(work: HigherOrderWork, level: kernels.Level, m: int, before: PrunedLattice) -> NDArray[np.bool_]:
    """Which arcs of `level` have n-grams that an earlier lattice kept at the same tokens: bool[A].

    level (Level): Level m, whose arcs have n-grams of m + 1 tags.
    before (PrunedLattice): The earlier lattice. Its nodes have n-grams of at least m + 1 tags, unless their sequence has got no
        level above m.
    """
    base = work.grams.base
    n_arcs = np.diff(level.arcs)  # [N] arcs into each node
    target = np.repeat(np.arange(len(n_arcs)), n_arcs)  # [A]
    source = arrays.ranges(level.source, level.source + n_arcs)  # [A]
    # The code of an n-gram is a number in this base: the digit 1, then the tags. An arc adds the tag of its target to the n-gram
    # of its source
    arc_codes = level.code[source] * base + work.grams.digits[level.symbol[target]]
    # The last m + 1 tags of a node are the last digits of its code, to which the digit 1 in front is added
    first_code = base ** (m + 1)  # 1, then m + 1 zeros
    has_level = (before.depth > m)[work.sequence_of][before.tokens]  # [N of before]
    node_codes = first_code + before.level.code[has_level] % first_code
    # One number for each pair of a token and a code
    n_codes = 2 * first_code
    arc_keys = tokens_of(level)[target] * n_codes + arc_codes
    return np.isin(arc_keys, before.tokens[has_level] * n_codes + node_codes)


def _threshold(work: HigherOrderWork, m: int, chances: Floats, in_training: bool) -> float:
    """The least probability of nodes of level m + 1. In prediction it is the one that training measured, if it did; otherwise the
    one that leaves ``keep`` nodes per token of the chunk.

    chances (float64[...]): Probabilities of the nodes.
    """
    orders = work.scores.orders
    if orders.thresholds is not None and not in_training and orders.thresholds[m] > 0.0:
        return float(orders.thresholds[m])
    n_kept = int(orders.keep * work.n_tokens)
    # Most probabilities are small, and need not be sorted
    likely = chances[chances > _LIKELY]
    if len(likely) <= n_kept:
        likely = chances[chances > 0.0]
    if len(likely) <= n_kept:
        return 0.0
    largest_pruned = len(likely) - n_kept - 1  # its index in rising order
    return float(np.partition(likely, largest_pruned)[largest_pruned])


def _level_of(work: HigherOrderWork, kept: Clamp) -> kernels.Level:
    """The lattice of single states, with a node for each of the `kept` states (bool[T, S]). RAISES (ValueError): CRF030."""
    scores = work.scores
    levels = scores.orders.levels
    counts = kept.sum(axis=1)  # [T]
    n_arcs = int((counts[1:] * counts[:-1]).sum())
    if n_arcs > _MOST_ARCS:
        raise ValueError(Errors.CRF030.format(tokens=work.n_tokens, arcs=n_arcs, states=int(counts.max())))
    return kernels.first_level(
        kept,
        work.emissions,
        scores.first,
        scores.last,
        work.starts,
        work.grams,
        levels,
        work.stride,
    )


def _lost(level: kernels.Level, nodes: NDArray[np.bool_], open_arcs: NDArray[np.bool_], starts) -> NDArray[np.bool_]:
    """In which sequences no path leads through these nodes (bool[N]) by these arcs (bool[A]): bool[B]."""
    has_path = np.empty(len(starts) - 1, dtype=np.bool_)
    kernels.reachable(level, nodes, open_arcs, starts, has_path)
    return ~has_path
