"""Scores of chains of higher order, the n-grams of tags that have a weight, and pruned lattices of such chains.

Lattices are built level by level (Müller, Schmid & Schütze 2013): first single states, then pairs of the states that are likely
by their emissions, then triples of likely pairs, and so on.
"""

from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..errors import Errors
from ..kernels import higher_order as kernels
from ..kernels.hashing import hash_rows, insert
from ..types import ChainScores, Clamp, Floats

MOST = 3  # the highest order


class Orders(NamedTuple):
    """N-grams that have a weight, and settings of pruning. They are constants: nothing has a derivative with respect to them.

    The key of an n-gram is a number in base ``size + 1``: first the digit 1, then its tags. The digit ``size`` stands for the
    start of a sequence.
    """

    order: int
    keys: NDArray[np.int64]  # [G] sorted
    size: int  # number of tags
    keep: Optional[float] = None  # mean number of nodes that a token keeps after each level; None for all
    thresholds: Optional[Floats] = None  # [order] least probability of kept nodes; None to keep as many as `keep` says
    digit_of: Optional[NDArray[np.int64]] = None  # [S] digit of each state, None if states are tags
    table: Optional[tuple[NDArray[np.uint64], NDArray[np.int32]]] = None  # hash table of the keys, see `indexed`
    measured: Optional[Floats] = None  # [order] in derivatives: the thresholds in training, or NaN

    @property
    def levels(self) -> int:
        """The highest order of an n-gram with a weight."""
        return max(1, self.order)

    def digits(self, n_states: int) -> NDArray[np.int64]:
        """Digit of each state in keys: int64[S]. States without a tag have the digit for the outside of a sequence."""
        digits = np.arange(n_states, dtype=np.int64) if self.digit_of is None else self.digit_of
        return np.append(digits, np.full(n_states - len(digits), self.size))


def indexed(orders: Orders) -> Orders:
    """The orders with a hash table of the keys."""
    size = 1 << max(4, (2 * len(orders.keys)).bit_length())
    table = np.zeros(size, dtype=np.uint64), np.full(size, -1, dtype=np.int32)
    insert(*table, hash_rows(orders.keys.astype(np.uint64)[:, np.newaxis]), 0)
    return orders._replace(table=table)


def key_of(tags: tuple[Any, ...], size: int) -> Any:
    """Key of an n-gram of tags, of which the first may be ``size``, the start of a sequence."""
    key = 1
    for tag in tags:
        key = key * (size + 1) + tag
    return key


def tags_of_keys(keys: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Tags of the n-grams with some keys (int64[G]), padded in front with -1: int64[G, MOST + 1]."""
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
    starts: Optional[NDArray[np.int64]] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType({**ChainScores.AXES, "grams": ("gram",)})


_LIKELY = 1e-3  # the search for a threshold starts with larger probabilities
# factor for a threshold that left no labelling, and the smallest threshold
_LESS = 1e-2
_LEAST = 1e-12
_FEW = 32  # up to so many states, the first level keeps all: pairs are a better criterion than emissions
_MOST_ARCS = 1 << 28  # largest number of arcs of a chunk, which take some gigabytes


class PrunedLattice(NamedTuple):
    """Labellings of some sequences that survive pruning."""

    level: kernels.Level
    tokens: NDArray[np.int64]  # [N] token of each node
    depth: NDArray[np.int64]  # [B] order of each sequence
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


HigherOrderWork = Any  # of structure.py, which imports this file


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
        return self._forward[1]

    def chances(self, factors: Optional[Floats] = None) -> kernels.Chances:
        prefixes, log_z = self._forward
        factors = np.ones(len(log_z)) if factors is None else factors
        chances = kernels.Chances(np.zeros(len(self.scores)), np.zeros(len(self.weights)))
        lattice = self.level, self.scores, self.weights, self.exponentials, self.starts
        kernels.posterior(*lattice, prefixes, log_z, factors, chances)
        return chances


def tokens_of(level: kernels.Level) -> NDArray[np.int64]:
    """Token of each node: int64[N]."""
    return np.repeat(np.arange(len(level.starts) - 1), np.diff(level.starts))


def make_lattice(
    work: HigherOrderWork, annotated: Optional[Clamp] = None, before: Optional[PrunedLattice] = None
) -> PrunedLattice:
    """Build the lattices of a chunk, level by level.

    annotated (bool[T, S]): States of the annotation. A sequence whose next level would lose all annotated labellings stays at the
        level before (early update).
    before (PrunedLattice): Lattice whose nodes stay.
    """
    levels = work.scores.orders.levels
    depth = np.full(work.n_sequences, levels)
    thresholds = np.full(levels, np.nan)
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
    """The lattice with the scores of `work`."""
    level = lattice.level
    scores = np.empty(len(lattice.tokens))
    ends = work.scores.first, work.scores.last
    kernels.score_nodes(level, work.emissions, *ends, work.starts, work.table, scores)
    return lattice._replace(level=level._replace(scores=scores))


def _first_level(
    work: HigherOrderWork, annotated: Optional[Clamp], before: Optional[PrunedLattice], depth: NDArray[np.int64]
) -> tuple[kernels.Level, float]:
    """Build the lattice of single states. Sets ``depth`` to 0 where pruning loses the annotation.

    RETURNS (Level, float): The lattice, and the least probability of kept states by their emissions.
    """
    possible = work.emissions > -np.inf
    if work.scores.orders.keep is None or possible.shape[1] <= _FEW:
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
