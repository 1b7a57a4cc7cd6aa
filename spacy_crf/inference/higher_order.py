"""Chains of higher order: what a tag scores may depend on up to three tags before it.

    score(y) = sum_t emissions[t, y_t] + transitions[y_(t-1), y_t] + sum_(m > 1) grams[y_(t-m) ... y_t]

Their labellings are summed in a lattice that is made level by level (Müller, Schmid & Schütze 2013): single states, then what
may follow what among those that are likely by their emissions, then pairs among those that are likely so far, and so on. The
last level holds what is summed. Without a limit (``keep``) nothing is left out, and everything is exact.
"""

from copy import copy
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..errors import Errors
from ..kernels import higher_order as kernels
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats, Path, StateGraph
from .linear_chain import LinearChain
from .spans import segments_of
from .state_graph import tags_of
from .structure import Asked, BestPath, Chunk, LikelySpans, Places, SpanStates, States, Structure, Work, collect

if TYPE_CHECKING:
    from .beam import BeamSearch

MOST = 3  # the highest order
_LIKELY = 1e-3  # probabilities among which a threshold is looked for first
_LESS, _LEAST = 1e-2, 1e-12  # share of a threshold that left no labelling, and what is not divided any more
_LIKELY_TOKENS = 4  # times as many are a chunk if something is left out
_FEW = 32  # states that are all asked for pairs, as emissions alone say less of what is likely
_MOST_ARCS = 1 << 28  # of a chunk: they take some gigabytes


class Orders(NamedTuple):
    """Which n-grams have a weight, and what is left out. (No derivative is taken of this.)

    The keys of n-grams are numbers to the base ``size + 1`` whose first digit is 1, and then come its tags; ``size`` stands for
    what is in front of a sequence.
    """

    order: int
    keys: NDArray[np.int64]  # [G] sorted
    size: int  # tags
    keep: Optional[float] = None  # nodes that a token keeps after each level, on average; None for all
    thresholds: Optional[Floats] = (
        None  # [order] how probable what stays is at least; None: as `keep` says, at each asking
    )
    digit_of: Optional[NDArray[np.int64]] = None  # [S] of states, None where these are the tags
    slots: Optional[NDArray[np.int32]] = None  # of the keys, see `indexed`
    measured: Optional[Floats] = (
        None  # [order] of derivatives: how probable what stayed in training was at least, or NaN
    )

    @property
    def levels(self) -> int:
        return max(1, self.order)

    def digits(self, n_states: int) -> NDArray[np.int64]:
        """The digit of each state; states that are no tag's are outside."""
        digits = np.arange(n_states, dtype=np.int64) if self.digit_of is None else self.digit_of
        return np.append(digits, np.full(n_states - len(digits), self.size))


def indexed(orders: Orders) -> Orders:
    """With the hash table of the keys."""
    slots = np.full(1 << max(4, (2 * len(orders.keys)).bit_length()), -1, dtype=np.int32)
    kernels.index_keys(orders.keys, slots)
    return orders._replace(slots=slots)


def key_of(tags: tuple[int, ...], size: int) -> int:
    """The key of an n-gram, whose first tag may be ``size``: what is in front of a sequence."""
    key = 1
    for tag in tags:
        key = key * (size + 1) + tag
    return key


def tags_of_keys(keys: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The way back: int64[G, MOST + 1], with -1 in front where there are fewer tags."""
    left, tags = keys.copy(), np.full((len(keys), MOST + 1), -1, dtype=np.int64)
    for place in range(MOST, -1, -1):
        has_more = left > 1
        tags[has_more, place] = left[has_more] % (size + 1)
        left[has_more] //= size + 1
    return tags


class HigherOrderScores(NamedTuple):
    """Potentials of a batch of chains: those of `ChainScores`, and those of n-grams of three tags and more."""

    emissions: Floats  # [T, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    grams: Floats  # [G]
    orders: Orders
    starts: Optional[NDArray[np.int64]] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType({**ChainScores.AXES, "grams": ("gram",)})


class Lattice(NamedTuple):
    """What is left of the labellings of some sequences."""

    level: kernels.Level
    tokens: NDArray[np.int64]  # [N] of the nodes
    depth: NDArray[np.int64]  # [B] the order of each sequence
    thresholds: Floats  # [order] what was left out was less probable, NaN where that was not asked


class Kept:
    """The lattices of a batch that is asked about again and again. When they are made anew, what they had stays: so a search for
    the best weights comes to an end, while those that were left out might come and go."""

    def __init__(self) -> None:
        self.now: dict[int, Lattice] = {}  # by their first token
        self.before: dict[int, Lattice] = {}

    def renew(self) -> None:
        self.before, self.now = self.now or self.before, {}

    @property
    def places(self) -> Optional[Places]:
        """The scores of tokens that the lattices read; None as long as there are no lattices."""
        if not self.now:
            return None
        tokens, states = zip(*[(place + lattice.tokens, lattice.level.symbol) for place, lattice in self.now.items()])
        size = 1 + max(int(symbols.max(initial=0)) for symbols in states)
        every = np.unique(np.concatenate(tokens) * size + np.concatenate(states))
        return Places(every // size, every % size)


class HigherOrderWork(Work[HigherOrderScores]):
    """Chains for the kernels.

    A lattice is made once: of what the clamp allows, or, where an annotation is named (`around`), of all labellings, among which
    are those of the annotation.
    """

    tag_of: Optional[NDArray[np.int32]] = None  # [S] of the states of a graph, None where these are tags; of the whole
    annotated: Any = None  # what annotation allows, where lattices go by it; of the whole
    place: int = 0  # first token of the chunk among those of the whole
    depths: Optional[NDArray[np.int64]] = None  # [B] the order of each sequence, once that was asked; of the whole

    def around(self, clamp: Clamp, kept: "Optional[Kept]") -> "HigherOrderWork":
        """kept (Kept): Lattices to go on with, and where those go that are not there."""
        work = type(self)(self.scores, None, self.given)
        work.tag_of = self.whole.tag_of
        work.annotated = self._in_states(arrays.check_clamp(clamp, self.n_tokens, self.n_tags))
        work.lattices, work.kept = {}, kept
        return work

    def clamped(self, clamp: Any) -> "HigherOrderWork":
        clamp = self._in_states(arrays.check_clamp(clamp, self.n_tokens, self.n_tags))
        return type(self)(self.scores, clamp, self.given, self.whole)

    def most_tokens(self, tokens: int) -> int:
        """Lattices of what is likely are so small that those of more tokens may be in memory."""
        return tokens if self.scores.orders.keep is None else _LIKELY_TOKENS * tokens

    def cut(self, chunk: Chunk) -> "HigherOrderWork":
        part = super().cut(chunk)
        if part is not self:
            part.place = chunk.tokens.start
        return part

    def _in_states(self, clamp: Clamp) -> Clamp:
        tag_of = self.whole.tag_of
        return clamp if tag_of is None else np.ascontiguousarray(clamp[:, tag_of])

    @cached_property
    def emissions(self) -> Floats:
        """[T, S], -inf where the clamp forbids."""
        scores = self.scores.emissions
        return scores if self.clamp is None else np.where(self.clamp, scores, -np.inf)

    @property
    def is_free(self) -> bool:
        """Whether any state may follow any other."""
        return self.per_position is False and self.whole._all_finite

    @cached_property
    def _all_finite(self) -> bool:
        return bool(np.isfinite(self.scores.transitions).all())

    @property
    def stride(self) -> int:
        return self.n_states**2 if self.per_position else 0

    @property
    def table(self) -> Floats:
        """What arcs score, see `kernels.higher_order`."""
        if self.per_position:
            return _table(self.transitions, self.scores.grams)
        return self.whole._shared_table

    @cached_property
    def _shared_table(self) -> Floats:
        return _table(self.transitions, self.scores.grams)

    @cached_property
    def grams(self) -> kernels.Grams:
        orders = self.scores.orders
        return kernels.Grams(
            orders.keys, orders.slots, orders.digits(self.n_states), orders.size + 1, self.transitions.size
        )

    @cached_property
    def sequence_of(self) -> NDArray[np.int64]:
        """[T] of the tokens."""
        return np.repeat(np.arange(self.n_sequences), np.diff(self.starts))

    @property
    def representatives(self) -> Union[slice, NDArray[np.int64]]:
        """One state of each tag."""
        tag_of = self.whole.tag_of
        return slice(None) if tag_of is None else np.unique(tag_of, return_index=True)[1]

    @property
    def lattice(self) -> Lattice:
        """That of the annotation if there is one, else of the clamp."""
        whole = self.whole
        if whole.annotated is None:
            return self._own_lattice
        if self.place not in whole.lattices:
            whole.lattices[self.place] = self._annotated_lattice
        return whole.lattices[self.place]

    @property
    def _annotated_lattice(self) -> Lattice:
        place, kept = self.place, self.whole.kept
        annotated = self.whole.annotated[place : place + self.n_tokens]
        if kept is None:
            return _make_lattice(self, annotated)
        if place not in kept.now:
            kept.now[place] = _make_lattice(self, annotated, kept.before.get(place))
            return kept.now[place]
        return _with_scores(self, kept.now[place])

    @cached_property
    def _own_lattice(self) -> Lattice:
        return _make_lattice(self, None)

    @property
    def n_prefixes(self) -> int:
        return int(np.diff(self.lattice.level.starts).max(initial=0))

    @cached_property
    def sums(self) -> "_Sums":
        return _Sums(self, self.lattice.level, self.clamp if self.whole.annotated is not None else None)

    @cached_property
    def alone(self) -> tuple[Floats, Floats]:
        """Log partitions of the sequences without a lattice (float64[B], 0 for the others), whose tokens know nothing of one
        another, and how probable the states of these are (float64[M, S])."""
        depth, log_z = self.lattice.depth, np.zeros(self.n_sequences)
        chances = np.empty((int(np.diff(self.starts)[depth == 0].sum()), self.n_states))
        kernels.sum_alone(self.emissions, self.starts, depth, log_z, chances)
        return log_z, chances


def _table(transitions: Floats, grams: Floats) -> Floats:
    return np.concatenate([transitions.ravel(), [0.0], grams])


class _Sums:
    """Scores of a lattice, and the pass forward where it is asked for.

    clamp (bool[T, S]): What is allowed in it, None for all.
    """

    def __init__(self, work: HigherOrderWork, level: kernels.Level, clamp: Optional[Clamp] = None):
        self.level, self.starts, self._table = level, work.starts, work.table
        self.weights = self._table[level.used]
        self.scores = level.scores
        if clamp is not None:
            allowed = clamp[_tokens_of(level), level.symbol]
            self.scores = np.where(allowed, level.scores, -np.inf)

    @cached_property
    def exponentials(self) -> Floats:
        few = len(self.level.used) <= len(self._table)
        with np.errstate(over="ignore"):
            exponentials = np.exp(self.weights if few else self._table)
        # Never taken for a sum: logarithms are added instead
        exponentials[exponentials == np.inf] = np.nan
        return exponentials if few else exponentials[self.level.used]

    @cached_property
    def _forward(self) -> tuple[kernels.Prefixes, Floats]:
        prefixes = kernels.Prefixes(*np.empty((3, len(self.level.symbol))))
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
        of_arcs = self.weights, self.exponentials
        kernels.posterior(
            self.level, self.scores, *of_arcs, self.starts, prefixes, log_z, factors, chances
        )  # fmt: skip
        return chances


def _tokens_of(level: kernels.Level) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(level.starts) - 1), np.diff(level.starts))


# ------------------------------------------------------------------------------------------------ what is left of all


def _make_lattice(
    work: HigherOrderWork, annotated: Optional[Clamp] = None, before: Optional[Lattice] = None
) -> Lattice:
    """annotated (bool[T, S]): Sequences whose lattice would lose all that it allows stay at the level before (early update).
    before (Lattice): Whose nodes stay."""
    levels = work.scores.orders.levels
    depth, thresholds = np.full(work.n_sequences, levels), np.full(levels, np.nan)
    level, thresholds[0] = _first_level(work, annotated, before, depth)
    for m in range(1, levels):
        sums, stays = _Sums(work, level), depth < levels
        chosen = sums.weights > -np.inf
        if work.scores.orders.keep is not None:
            chosen, thresholds[m] = _likely_arcs(work, sums, m, annotated is not None)
            if annotated is None:
                lost = _lost(level, level.scores > -np.inf, chosen, work.starts)
                chosen |= lost[_sequences_of_arcs(work, level)] & (sums.weights > -np.inf)
            else:
                if before is not None:
                    chosen |= _were_chosen(work, level, m, before)
                allowed = annotated[_tokens_of(level), level.symbol] & (level.scores > -np.inf)
                lost = _lost(level, allowed, chosen, work.starts) & ~stays
                depth[lost], stays = m, stays | lost
        level = kernels.next_level(level, m, sums.weights, chosen, stays, work.starts, work.grams)
    return Lattice(level, _tokens_of(level), depth, thresholds)


def _with_scores(work: HigherOrderWork, lattice: Lattice) -> Lattice:
    """A lattice with other scores."""
    level, scores = lattice.level, np.empty(len(lattice.tokens))
    ends = work.scores.first, work.scores.last
    kernels.score_nodes(level, work.emissions, *ends, work.starts, work.table, scores)
    return lattice._replace(level=level._replace(scores=scores))


def _first_level(
    work: HigherOrderWork, annotated: Optional[Clamp], before: Optional[Lattice], depth: NDArray[np.int64]
) -> tuple[kernels.Level, float]:
    """The lattice of single states, and how probable they are at least by themselves. ``depth`` becomes 0 where the annotation is
    lost."""
    possible = work.emissions > -np.inf
    if work.scores.orders.keep is None or possible.shape[1] <= _FEW:
        return _level_of(work, possible), np.nan
    chances = _chances(work)
    threshold = _threshold(work, 0, chances[:, work.representatives].ravel(), annotated is not None)
    kept = chances > threshold
    kept[np.arange(len(kept)), chances.argmax(axis=1)] = True
    if before is not None:
        kept[before.tokens, before.level.symbol] = True
    kept &= possible
    level, of_token = _level_of(work, kept), work.sequence_of
    if annotated is None and work.is_free:
        return level, threshold
    nodes = level.scores > -np.inf
    if annotated is not None:
        nodes &= annotated[_tokens_of(level), level.symbol]
    lost = _lost(level, nodes, work.table[level.used] > -np.inf, work.starts)
    if annotated is not None and lost.any():
        depth[lost] = 0
        level = _level_of(work, kept & ~lost[of_token, np.newaxis])
    if annotated is not None:
        return level, threshold
    limit = threshold
    while lost.any() and limit >= 0.0:  # the scheme, or a rule, leaves no way through what is likely
        limit = limit * _LESS if limit > _LEAST else -1.0
        kept |= possible & (chances > limit) & lost[of_token, np.newaxis]
        level = _level_of(work, kept)
        lost = _lost(level, level.scores > -np.inf, work.table[level.used] > -np.inf, work.starts)
    return level, threshold


def _chances(work: HigherOrderWork) -> Floats:
    """How probable each state is by the emissions of its token alone: float64[T, S], as its tag is."""
    emissions = work.emissions
    largest = emissions.max(axis=1, initial=-np.inf, keepdims=True)
    chances = np.exp(emissions - np.where(largest > -np.inf, largest, 0.0))
    totals = chances[:, work.representatives].sum(axis=1, keepdims=True)
    chances /= np.maximum(totals, 1.0)
    return chances


def _likely_arcs(work: HigherOrderWork, sums: _Sums, m: int, in_training: bool) -> tuple[NDArray[np.bool_], float]:
    """The arcs that are likely in the lattice so far."""
    chances = sums.chances().arcs
    threshold = _threshold(work, m, chances, in_training)
    return chances > threshold, threshold


def _were_chosen(work: HigherOrderWork, level: kernels.Level, m: int, before: Lattice) -> NDArray[np.bool_]:
    """The arcs that are nodes, or ends of nodes, of another lattice."""
    base, digits = work.grams.base, work.grams.digits
    counts = np.diff(level.arcs)
    into = np.repeat(np.arange(len(counts)), counts)
    codes = level.code[arrays.ranges(level.source, level.source + counts)] * base + digits[level.symbol[into]]
    whole = base ** (m + 1)  # the last m + 1 tags
    known = (before.depth > m)[work.sequence_of][before.tokens]
    ends = before.tokens[known] * (2 * whole) + whole + before.level.code[known] % whole
    return np.isin(_tokens_of(level)[into] * (2 * whole) + codes, ends)


def _threshold(work: HigherOrderWork, m: int, chances: Floats, in_training: bool) -> float:
    """What was learned; in training, what leaves ``keep`` for each token."""
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


def _noted(work: HigherOrderWork, found: HigherOrderScores) -> HigherOrderScores:
    """With the thresholds of training, on average."""
    if work.whole.annotated is None or isinstance(found, ChainScores):
        return found
    lattices, measured = work.whole.lattices, np.full(work.scores.orders.levels, np.nan)
    for m in range(len(measured)):
        of_chunks = [float(lattices[place].thresholds[m]) for place in sorted(lattices)]
        of_chunks = [threshold for threshold in of_chunks if threshold > 0.0]
        if of_chunks:
            measured[m] = np.exp(np.log(of_chunks).mean())
    return found._replace(orders=found.orders._replace(measured=measured))


def _level_of(work: HigherOrderWork, kept: Clamp) -> kernels.Level:
    scores = work.scores
    levels, ends = scores.orders.levels, (scores.first, scores.last)
    counts = kept.sum(axis=1)
    n_arcs = int((counts[1:] * counts[:-1]).sum())
    if n_arcs > _MOST_ARCS:
        message = Errors.CRF030.format(tokens=work.n_tokens, arcs=n_arcs, states=int(counts.max()))
        raise ValueError(message)
    return kernels.first_level(kept, work.emissions, *ends, work.starts, work.grams, levels, work.stride)


def _lost(level: kernels.Level, nodes: NDArray[np.bool_], open_arcs: NDArray[np.bool_], starts) -> NDArray[np.bool_]:
    """Sequences through which no way is left."""
    found = np.empty(len(starts) - 1, dtype=np.bool_)
    kernels.reachable(level, nodes, open_arcs, starts, found)
    return ~found


def _sequences_of_arcs(work: HigherOrderWork, level: kernels.Level) -> NDArray[np.int64]:
    return np.repeat(work.sequence_of, np.diff(level.arcs[level.starts]))


# ------------------------------------------------------------------------------------------------ the structure


class HigherOrder(Structure[HigherOrderScores]):
    """Answers the questions of `Structure` for `HigherOrderScores`, and for `ChainScores` as those of order 1; clamps are
    bool[T, S]. Where something is left out, probabilities are those of the labellings that remain."""

    chunk_tokens = 512
    answers = Structure.answers | {"beam"}
    kept: Optional[Kept] = None  # of one batch, see `keeping`
    work = HigherOrderWork
    only, only_path = LinearChain.only, LinearChain.only_path

    def conform(self, scores: Union[HigherOrderScores, ChainScores]) -> HigherOrderScores:
        if isinstance(scores, ChainScores):
            size, none = np.shape(scores.emissions)[1], np.zeros(0, dtype=np.int64)
            scores = HigherOrderScores(*scores[:4], none.astype(float), Orders(1, none, size), scores.starts)
        orders = scores.orders
        arrays.check_shape("grams", scores.grams, (len(orders.keys),), "one number for each n-gram that has a weight")
        scores = scores if orders.slots is not None else scores._replace(orders=indexed(orders))
        return super().conform(scores)

    def around(self, work: HigherOrderWork, clamp: Clamp) -> HigherOrderWork:
        return work if work.scores.orders.keep is None else work.around(clamp, self.kept)

    def keeping(self, kept: Kept) -> "HigherOrder":
        structure = copy(self)
        structure.kept = kept
        return structure

    def to_keep(self) -> Kept:
        return Kept()

    def narrow(self, work: HigherOrderWork, expected: HigherOrderScores) -> HigherOrderScores:
        return _noted(work, super().narrow(work, expected))

    def viterbi_counts(
        self, scores: Asked, *, clamp: Any = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, HigherOrderScores]:
        work = self.prepare(scores, clamp)
        best, used = super().viterbi_counts(work, weights=weights)
        return best, _noted(work, used)

    def forward(self, work: HigherOrderWork) -> tuple[Floats, Any]:
        sums, depth = work.sums, work.lattice.depth
        log_z = sums.log_z
        if not depth.all():
            log_z = np.where(depth == 0, work.alone[0], log_z)
        return log_z, None

    def backward(self, work: HigherOrderWork, kept: Any, weights: Floats, out: HigherOrderScores) -> None:
        level, depth = work.lattice.level, work.lattice.depth
        kernels.collect(level, work.sums.chances(weights), work.starts, _flat(out))
        if not depth.all():
            kernels.collect_alone(work.starts, depth, work.alone[1], weights, out.emissions)

    def best(self, work: HigherOrderWork) -> Path:
        sums, depth = work.sums, work.lattice.depth
        path = Path(np.empty(work.n_tokens, dtype=np.int32), np.empty(work.n_sequences))
        kernels.viterbi(sums.level, sums.scores, sums.weights, work.starts, *path)
        if not depth.all():
            alone = depth[work.sequence_of] == 0
            best = work.emissions.max(axis=1, initial=-np.inf)
            path.states[alone] = np.where(best > -np.inf, work.emissions.argmax(axis=1), -1)[alone]
            path.scores[depth == 0] = _sums_of_tokens(work, best)[depth == 0]
        return path

    def rank(self, work: HigherOrderWork, states: States, scores: Floats) -> int:
        sums = work.sums
        return kernels.n_best(sums.level, sums.scores, sums.weights, len(scores), states, scores)

    def search(self, work: HigherOrderWork) -> "BeamSearch":
        from .beam import LatticeSearch  # for few

        return LatticeSearch(work, self.beam)

    def draw(self, work: HigherOrderWork, uniforms: Floats) -> States:
        drawn = np.empty(uniforms.shape, dtype=np.int32)
        kernels.sample(work.sums.level, work.sums.chances(), work.starts, uniforms, drawn)
        return drawn

    def score_path(self, work: HigherOrderWork, states: States) -> Floats:
        totals = np.empty(work.n_sequences)
        potentials = work.emissions, work.scores.first, work.scores.last, work.table, work.stride
        order, depth = work.scores.orders.levels, self._depths(work)
        kernels.score_paths(states, potentials, work.starts, work.grams, order, depth, totals)
        return totals

    def add_path(self, work: HigherOrderWork, states: States, weights: Floats, out: HigherOrderScores) -> None:
        order, depth = work.scores.orders.levels, self._depths(work)
        kernels.add_paths(states, weights, work.starts, work.grams, order, work.stride, depth, _flat(out))

    def _depths(self, work: HigherOrderWork) -> NDArray[np.int64]:
        """The order of each sequence."""
        whole = work.whole
        if whole.annotated is None:
            return np.full(work.n_sequences, work.scores.orders.levels)
        if whole.depths is None:
            chunks = whole.chunks(self.chunk_tokens)
            whole.depths = np.concatenate([whole.cut(chunk).lattice.depth for chunk in chunks])
        return whole.depths

    def weigh_spans(self, work: HigherOrderWork, spans: SpanStates, segments: Segments) -> Floats:
        probabilities = np.zeros(len(segments.start))
        kernels.span_probabilities(*self._posterior(work, spans), *segments, probabilities)
        return probabilities

    def list_spans(self, work: HigherOrderWork, spans: SpanStates, min_prob: float) -> LikelySpans:
        posterior = self._posterior(work, spans)

        def search(*found: NDArray) -> int:
            return kernels.likely_spans(*posterior, work.starts, float(min_prob), *found)

        segments, probabilities = collect(search, 4 * work.n_tokens)
        order = np.argsort(segments.start, kind="stable")
        return LikelySpans(Segments(*(column[order] for column in segments)), probabilities[order])

    def best_path(self, scores: Asked, spelt: SpanStates, *, clamp: Optional[Clamp] = None) -> BestPath:
        """`viterbi` with the probabilities of the spans of its paths."""
        work = self.prepare(scores, clamp)
        states = self.viterbi(work).states
        opening = np.zeros(work.n_tokens, dtype=bool)
        opening[work.ends()[0]] = True
        segments = segments_of(states, spelt, opening)
        return BestPath(states, LikelySpans(segments, self.span_probabilities(work, spelt, segments)))

    def _posterior(self, work: HigherOrderWork, spans: SpanStates) -> tuple:
        """What the kernels of spans begin their arguments with."""
        level, chances = work.sums.level, work.sums.chances()
        continues, label_of, tag_of = spans.continues, spans.label_of, work.whole.tag_of
        if tag_of is not None:
            label_of, continues = label_of[tag_of], np.ascontiguousarray(continues[np.ix_(tag_of, tag_of)])
        enters, leaves = np.zeros((2, len(level.symbol)))
        kernels.span_ends(level, chances, continues, work.starts, enters, leaves)
        return level, chances, (enters, leaves), continues, label_of


def _flat(out: HigherOrderScores) -> tuple[Floats, ...]:
    """Where kernels add derivatives."""
    return out.emissions, out.first, out.last, out.transitions.reshape(-1), out.grams


def _sums_of_tokens(work: HigherOrderWork, terms: Floats) -> Floats:
    """By sequence: float64[B]."""
    return np.bincount(work.sequence_of, terms, minlength=work.n_sequences).astype(np.float64)


class GraphHigherOrder(HigherOrder):
    """Answers the questions of `Structure` for the `HigherOrderScores` of tags, of the labellings that a graph allows.

    graph (StateGraph): Which state may follow which.
    """

    ambiguous = True
    answers = Structure.answers
    score_path, add_path = Structure.score_path, Structure.add_path

    def __init__(self, graph: StateGraph):
        super().__init__()
        self.graph = graph

    def prepare(self, scores: Any, clamp: Any = None) -> HigherOrderWork:
        if isinstance(scores, Work):
            return super().prepare(scores, clamp)
        checked = self.conform(scores)
        digits = checked.orders.digits(len(checked.first))
        orders = checked.orders._replace(digit_of=digits[self.graph.tag_of])
        work = self.work(arrays.expand(checked, self.graph)._replace(orders=orders), given=scores)
        work.tag_of = self.graph.tag_of
        return work if clamp is None else work.clamped(clamp)

    def narrow(self, work: HigherOrderWork, expected: HigherOrderScores) -> HigherOrderScores:
        return super().narrow(work, arrays.contract(expected, self.graph.tag_of, work.n_tags))

    def labels(self, work: HigherOrderWork, path: States) -> States:
        return tags_of(path, self.graph.tag_of)

    def count(self, work: HigherOrderWork, path: States, weights: Floats, out: HigherOrderScores) -> None:
        used = arrays.zeros(work.scores)
        HigherOrder.add_path(self, work, path, weights, used)
        arrays.add(out, self.narrow(work, used), slice(0, work.n_tokens))
