"""The objective of a corpus in as few variables as it has.

Most features of a corpus stand at one token only: its word, its affixes, the pairs and triples of words that it is in. Such
features say the same of the scores of each tag, whatever their weights. So do all that stand at the same tokens; training can't
tell their weights apart, and a regularizer makes them equal. k weights that are equal are one variable here, √k times as large as
each of them: loss, gradients, distances and angles are then those of the k weights, so whatever optimizers compute from these
goes the same way, step by step. Only Σ|w| is another thing, and weighed by `copies`.

On wnut17 the preset has 554 thousand weights and 158 thousand variables, on mit_restaurant 291 and 139, on cora_refs 134 and 46.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.feature_index import CountingTable
from ..kernels.hashing import hash_rows
from ..losses.clamped import ClampedLoss
from ..types import Floats
from .objective import CorpusObjective
from .role import AnnotatedDocs
from .sparse import VECTORS
from .weights import Weights

# Sums of random numbers say, two times, that weights belong to the same scores: by chance both are equal once in 2**60 or more
SEEDS = (0, 1)
_CHUNK = 1 << 19
_PARTS = 16  # of the keys, that are compared one part after the other


class Ties(NamedTuple):
    """Which of n weights are equal."""

    group: NDArray[np.int64]  # [n] number of the variable that each is part of
    place: NDArray[np.int64]  # [m] the weight that stands for each variable
    copies: Floats  # [m] how many weights a variable has

    @classmethod
    def of(cls, keys: NDArray[np.uint64], single: NDArray[np.bool_]) -> "Ties":
        """keys (uint64[n]): Equal for equal weights, single (bool[n]): Those that are like no others, whatever their keys."""
        group, stands = _groups(keys, single)
        place = np.flatnonzero(stands)
        return cls(group, place, np.bincount(group, minlength=len(place)).astype(np.float64))


def _groups(keys: NDArray[np.uint64], single: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The number of the variable of each weight (int64[n]), and whether it is the first of its variable (bool[n])."""
    first, stands = np.arange(len(keys)), single.copy()  # which is equal to each, and whether that is itself
    part = keys.astype(np.uint8) % _PARTS
    part[single] = _PARTS
    for number in range(_PARTS):  # a table of all keys would be the largest thing there
        some = np.flatnonzero(part == number)
        table = CountingTable()
        new = some[table.add(keys[some])]
        first[some], stands[new] = new[table.rows(keys[some])], True
    numbers = np.cumsum(stands, dtype=np.int32)
    numbers -= 1
    for begin in range(0, len(first), _CHUNK):
        first[begin : begin + _CHUNK] = numbers[first[begin : begin + _CHUNK]]
    return first, stands


class Variables:
    """The weights of a model as its variables: those that can't be told apart are one. Weights that are not equal to begin
    with are not tied.

    model (Model): See `Weights`.
    ties (Ties): Which of its weights are equal.
    """

    def __init__(self, model: Model, ties: Ties):
        self._every, self.ties = Weights(model), ties
        self._roots = np.sqrt(ties.copies)

    @property
    def layout(self) -> tuple[int, ...]:
        return (*self._every.layout, len(self._roots))

    @property
    def stands(self) -> NDArray[np.bool_]:
        """Which weights stand for variables: bool[n]."""
        stands = np.zeros(len(self.ties.group), dtype=bool)
        stands[self.ties.place] = True
        return stands

    @property
    def copies(self) -> Floats:
        """How many weights each stands for (float64[m])."""
        return self.ties.copies

    @property
    def frequencies(self) -> Floats:
        return self._every.met(self._every.evidence())[self.ties.place]

    def read(self) -> Floats:
        """Their values in the model."""
        return np.bincount(self.ties.group, self._every.weights(), minlength=len(self._roots)) / self._roots

    def assign(self, variables: Floats) -> None:
        """Writes them to the model."""
        self._every.assign((variables / self._roots)[self.ties.group])

    def spread(self, variables: Floats) -> Floats:
        """What derivatives with respect to the weights that stand for them are asked at."""
        return self._roots * variables

    def gathered(self, gradient: Floats) -> Floats:
        """The derivatives with respect to the variables, in the memory of those with respect to what `spread` gave."""
        gradient *= self._roots
        return gradient


class Marks(Protocol):
    """An array (float64[n]), or what gives some of its numbers as if it were one."""

    def __getitem__(self, here: slice, /) -> Floats: ...


def keys_of(model: Model, marks: Sequence[Marks]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """What says which weights of a model are tied, as `Ties.of` takes it: a key of each (uint64[n]), and those that no others are
    like (bool[n]).

    marks (Sequence[Marks]): Sums of random numbers, equal for weights that belong to the same scores.
    """
    every = Weights(model)
    n_weights = int(every._starts[-1])
    keys, single = np.empty(n_weights, dtype=np.uint64), np.ones(n_weights, dtype=bool)
    for number, (block, start) in enumerate(zip(every._blocks, every._starts)):
        is_table, weights = number < len(every._tables) and block.name != VECTORS, block.read()
        single[start : start + block.size] = not is_table
        for begin in range(0, block.size, _CHUNK):
            here = slice(start + begin, start + min(begin + _CHUNK, block.size))
            inside = slice(begin, here.stop - start)
            columns = block.table.pair_columns[inside] if is_table else np.zeros(here.stop - here.start)
            told = columns + np.float64(number << 32), *(of_seed[here] for of_seed in marks), weights[inside]
            rows = np.stack(told, axis=1) + 0.0  # of zeros only one
            keys[here] = hash_rows(rows.view(np.uint64))
    return keys, single


class TiedObjective(CorpusObjective):
    """`CorpusObjective` as a function of its variables.

    model, loss, corpus: See `CorpusObjective`.
    """

    def __init__(self, model: Model, loss: ClampedLoss, corpus: Iterable[AnnotatedDocs]):
        super().__init__(model, loss, corpus)
        keys = keys_of(model, [self.marks(seed) for seed in SEEDS])
        self._variables = Variables(model, Ties.of(*keys))
        stands = self._variables.stands
        if not stands.all():
            self.keep(stands)
        self.signature = (*self.signature, int(stands.sum()))
        self.merge_states()

    @property
    def copies(self) -> Floats:
        """How many weights each variable stands for (float64[n])."""
        return self._variables.copies

    @property
    def frequencies(self) -> Floats:
        return self._variables.frequencies

    def weights(self) -> Floats:
        return self._variables.read()

    def assign(self, weights: Floats) -> None:
        self._variables.assign(weights)

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        value, gradient = super().evaluate(self._variables.spread(weights))
        return value, self._variables.gathered(gradient)
