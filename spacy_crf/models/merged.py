"""Equal weights as one variable, and equal states as one state: training with as few variables as a corpus can distinguish.

**Weights.** Most features of a corpus occur at one token only: its word, its affixes, the pairs and triples of words around it.
Features that occur at the same tokens contribute in the same way to the scores of each tag: training cannot distinguish their
weights, and a regularizer makes them equal. Here k equal weights are one variable, √k
times as large as each of them: loss, gradients, distances and angles are those of the k weights, so optimizers take the same
steps. Only Σ|w| differs, and `copies` weighs it. On wnut17 the preset has 554 thousand weights and 158 thousand variables, on
mit_restaurant 291 and 139, on cora_refs 134 and 46.

**States.** A scheme has tags that a corpus never shows: of 29 labels of addresses 12 are never a single token, and
have a tag U-x. No feature has a weight for such tags. As long as the weights of their transitions are equal too, so are the
alphas and betas of all these U-x and the derivatives, and the weights stay equal. Of the 117 tags of usaddress 35 are never
shown, of the 141 of snips 36.

States A and B stand for groups of equal states. Let each state of A be followed by r states of B, n steps in all. Then

    transitions'[A, B] = transitions[a, b] + log r        first'[A] = first[a] + log |A|        last'[A] = last[a]

have the sums of all states, and the expectation of A → B is that of n equal steps. This holds if for all A and B each state of A
is followed by the same number of states of B, and each state of B is preceded by the same number of states of A: an equitable
partition, found by splitting groups until no two states of one group differ in the states that they follow or precede. The
remaining states are in the order in which passes take them (see `inference.scaling`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.feature_index import CountingTable
from ..inference.scaling import order_of
from ..kernels.hashing import hash_rows
from ..types import Bools, Floats, Ints
from .sparse import VECTORS
from .structure import SharedScores
from .weights import Weights

# Equal sums of random numbers indicate weights of the same scores: by chance both sums are equal once in 2**60 or more
SEEDS = (0, 1)
_CHUNK = 1 << 19
_PARTS = 16  # parts of the keys, compared one after the other


class Ties(NamedTuple):
    """Groups of equal weights among n weights: m variables."""

    group: NDArray[np.int32]  # [n] the variable of each weight
    place: NDArray[np.int32]  # [m] the first weight of each variable, which represents it
    copies: NDArray[np.int32]  # [m] number of weights of each variable

    @classmethod
    def of(cls, keys: NDArray[np.uint64], single: Bools) -> "Ties":
        """Group weights.

        keys (uint64[n]): Keys that are equal for equal weights.
        single (bool[n]): Which weights equal no other, whatever their keys.
        """
        first = np.arange(len(keys))  # [n] the first weight of the group of each weight
        is_first = single.copy()
        # A table of all keys would take the most memory, so the keys are divided into parts
        part = keys.astype(np.uint8) % _PARTS
        part[single] = _PARTS
        for number in range(_PARTS):
            in_part = np.flatnonzero(part == number)
            table = CountingTable()
            new = in_part[table.add(keys[in_part])]  # weights whose key is new in the table
            first[in_part] = new[table.rows(keys[in_part])]
            is_first[new] = True
        number_of = np.cumsum(is_first, dtype=np.int32)
        number_of -= 1
        # In place and chunk by chunk, to save memory, `first` becomes the group
        for begin in range(0, len(first), _CHUNK):
            first[begin : begin + _CHUNK] = number_of[first[begin : begin + _CHUNK]]
        place = np.flatnonzero(is_first)
        copies = np.bincount(first, minlength=len(place))
        return cls(first.astype(np.int32), place.astype(np.int32), copies.astype(np.int32))


class Variables:
    """Base of objectives as functions of m variables, each of which stands for equal weights of a model.

    model (Model): The model with n weights.
    ties (Ties): The groups of equal weights.
    """

    def __init__(self, model: Model, ties: Ties):
        self._all_weights = Weights(model)
        self.ties = ties
        self._roots = np.sqrt(ties.copies)

    @property
    def is_representative(self) -> Bools:
        """Which weights represent variables: bool[n], True for the first weight of each group."""
        is_representative = np.zeros(len(self.ties.group), dtype=bool)
        is_representative[self.ties.place] = True
        return is_representative

    @property
    def copies(self) -> NDArray[np.int32]:
        """Number of weights that each variable stands for: int32[m]."""
        return self.ties.copies

    @property
    def frequencies(self) -> Floats:
        """How often training met the feature, token or sequence of each variable: float64[m]."""
        return self._all_weights.met(self._all_weights.evidence())[self.ties.place]

    def weights(self) -> Floats:
        """Values of the variables in the model: float64[m]."""
        # variable = √k · w for k equal weights w, here k · w / √k
        weights = self._all_weights.weights()
        return np.bincount(self.ties.group, weights, minlength=len(self._roots)) / self._roots

    def assign(self, weights: Floats) -> None:
        """Write variables to the model.

        weights (float64[m]): Values of the variables.
        """
        self._all_weights.assign((weights / self._roots)[self.ties.group])

    def spread(self, variables: Floats) -> Floats:
        """The values of the weights that represent `variables` (float64[m]) in the objective: float64[m]."""
        return self._roots * variables

    def gather(self, gradient: Floats) -> Floats:
        """Turn derivatives with respect to weights into derivatives with respect to variables, in place.

        gradient (float64[m]): Derivatives with respect to the weights that represent variables.
        RETURNS (float64[m]): `gradient`.
        """
        return np.multiply(gradient, self._roots, out=gradient)


def keys_of(model: Model, marks: Sequence[Floats]) -> tuple[NDArray[np.uint64], Bools]:
    """Keys that are equal for weights that training cannot distinguish, for `Ties.of`.

    model (Model): The model.
    marks (Sequence[float64[n]]): For each seed, marks of the weights, see `CorpusObjective.marks`.
    RETURNS (uint64[n], bool[n]): The keys, and which weights equal no others.
    """
    layout = Weights(model)
    n_weights = int(layout._starts[-1])
    keys = np.empty(n_weights, dtype=np.uint64)
    single = np.ones(n_weights, dtype=bool)
    for number, (block, start) in enumerate(zip(layout._blocks, layout._starts)):
        is_table = number < len(layout._tables) and block.name != VECTORS
        weights = block.read()
        single[start : start + block.size] = not is_table
        for begin in range(0, block.size, _CHUNK):  # chunks save memory
            end = min(begin + _CHUNK, block.size)
            in_vector = slice(start + begin, start + end)
            columns = block.table.pair_columns[begin:end] if is_table else np.zeros(end - begin)
            # Weights are equal if table and column, marks and values are equal
            parts = [columns + np.float64(number << 32)]
            parts += [seed_marks[in_vector] for seed_marks in marks]
            parts.append(weights[begin:end])
            rows = np.stack(parts, axis=1) + 0.0  # turns -0.0 into 0.0
            keys[in_vector] = hash_rows(rows.view(np.uint64))
    return keys, single


class MergedStates:
    """Mapping of S states to M merged states.

    possible (SharedScores): Masks of the transitions, firsts and lasts that are possible.
    weighed (SharedScores): Masks of the transitions, firsts and lasts that have a weight.
    is_known (bool[S]): Which states have weights of features; they are not merged.
    """

    def __init__(self, possible: SharedScores, weighed: SharedScores, is_known: Bools):
        kinds = {name: possible[name].astype(np.int64) + (possible[name] & weighed[name]) for name in possible}
        # Kind 0 are impossible scores, 1 possible ones without a weight, 2 those with a weight
        group = _split(kinds, np.where(is_known, np.arange(len(is_known)), len(is_known)))
        n_groups = int(group.max()) + 1
        allowed = possible["transitions"]
        source, target = np.nonzero(allowed)
        may_follow = np.zeros((n_groups, n_groups), dtype=bool)  # [M, M]
        may_follow[group[source], group[target]] = True
        order = order_of(may_follow)  # in which most possible transitions form a block, for fast passes
        self.merged_of = np.argsort(order)[group]  # [S] merged state of each state
        # [M] the first state of each merged state, which represents it, and the number of its states
        _, self.representatives, self._sizes = np.unique(self.merged_of, return_index=True, return_counts=True)
        # Possible transitions as numbers i · S + j, and the merged transition A · M + B of each
        self._steps = np.flatnonzero(allowed)
        self._part_of = self.merged_of[self._steps // len(group)] * n_groups + self.merged_of[self._steps % len(group)]
        counts = np.bincount(self._part_of, minlength=n_groups**2).reshape(n_groups, n_groups)
        self._counts = np.maximum(counts, 1)
        # r: states of B that may follow each state of A
        self._successors = np.maximum(counts / self._sizes[:, np.newaxis], 1.0)
        # The first of the equal transitions of each pair of groups: of repeated indices the last assignment stays
        first = np.zeros(n_groups**2, dtype=np.int64)  # 0 for transitions that are impossible
        first[self._part_of[::-1]] = self._steps[::-1]
        impossible = np.flatnonzero(~allowed)
        self._first = np.where(counts.ravel() > 0, first, impossible[0] if len(impossible) else 0)

    @property
    def n_states(self) -> int:
        """Number of merged states: M."""
        return len(self.representatives)

    def holds(self, shared: SharedScores) -> bool:
        """Whether all states of each merged state have equal scores among the `shared` scores of the S states."""
        transitions = shared["transitions"].ravel()
        has_equal_ends = all(
            np.array_equal(shared[name], shared[name][self.representatives][self.merged_of])
            for name in ("first", "last")
        )
        return has_equal_ends and np.array_equal(transitions[self._steps], transitions[self._first[self._part_of]])

    def potentials(self, shared: SharedScores) -> SharedScores:
        """Shared scores of the M merged states.

        shared (SharedScores): Shared scores of the S states, for which `holds` is true.
        """
        # transitions'[A, B] = transitions[a, b] + log r, first'[A] = first[a] + log |A|, last'[A] = last[a]
        transitions = shared["transitions"].ravel()[self._first].reshape(self._counts.shape)
        return {
            "transitions": transitions + np.log(self._successors),
            "first": shared["first"][self.representatives] + np.log(self._sizes),
            "last": shared["last"][self.representatives],
        }

    def spread(self, derivatives: SharedScores) -> SharedScores:
        """Derivatives with respect to the shared scores of the S states.

        derivatives (SharedScores): Derivatives with respect to the shared scores of the M merged states.
        """
        size = len(self.merged_of)
        # The equal transitions of A → B get equal shares of its derivative, and so do the states of A
        transitions = np.zeros(size * size)
        transitions[self._steps] = (derivatives["transitions"] / self._counts).ravel()[self._part_of]
        ends = {name: (derivatives[name] / self._sizes)[self.merged_of] for name in ("first", "last")}
        return {"transitions": transitions.reshape(size, size), **ends}


def _split(kinds: SharedScores, group: Ints) -> Ints:
    """The coarsest refinement of groups in which all states of a group have equally many transitions of each kind to and from
    each group: int64[S].

    Counting transitions for each pair of groups would take S³ operations. Instead each group has a random number, and states are
    compared by the sums of the numbers of the groups that they follow or precede, modulo 2**64. By chance the sums of two
    different states are equal once in 2**64.

    kinds (SharedScores): The kind of each score: 0 impossible, 1 without a weight, 2 with a weight.
    group (int64[S]): The groups to refine.
    """
    first = kinds["first"]
    last = kinds["last"]
    steps = kinds["transitions"]
    random = np.random.default_rng(SEEDS[0])
    n_before = 0
    while True:
        _, group = np.unique(group, return_inverse=True)
        n_groups = int(group.max()) + 1
        if n_groups == n_before:
            return group
        n_before = n_groups
        marks = random.integers(1 << 64, size=(2, n_groups), dtype=np.uint64)[:, group]  # [2 kinds, S]
        following = np.zeros(len(group), dtype=np.uint64)
        preceding = np.zeros(len(group), dtype=np.uint64)
        for kind, mark in zip((1, 2), marks):
            has_kind = steps == kind  # [S, S]
            following += np.where(has_kind, mark, 0).sum(axis=1, dtype=np.uint64)
            preceding += np.where(has_kind.T, mark, 0).sum(axis=1, dtype=np.uint64)
        columns = preceding, following, last.astype(np.uint64), first.astype(np.uint64), group.astype(np.uint64)
        order = np.lexsort(columns)  # by the last one first
        rows = np.stack(columns, axis=1)[order]
        is_new = np.append(True, (rows[1:] != rows[:-1]).any(axis=1))
        group = np.empty(len(order), dtype=np.int64)
        group[order] = np.cumsum(is_new) - 1
