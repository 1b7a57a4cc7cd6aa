"""Combines the results of shards: sums of derivatives, whose last bit does not depend on the order in which workers finish, and
iterative parameter mixing (McDonald, Hall & Mann 2010, figure 3) for online optimizers, which learn from one sequence after the
other.

In each epoch of parameter mixing, every shard is trained separately from the same weights; then the new weights are averaged,
and so are the numbers that the rule keeps for each weight. This algorithm differs from an epoch on the whole corpus: the updates
of a shard reach the other shards only at the end of the epoch. No result depends on which worker trains on which shard, or on
which worker finishes first.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple, Union, cast

import numpy as np
from thinc.api import Model

from ..losses.clamped import ClampedLoss
from ..models.weights import Weights
from ..optimizers.objective import SequenceObjective
from ..optimizers.online import OnlineOptimizer, OnlineRun
from ..types import Floats, Ints

MIXING = ("size", "uniform")
Node = tuple[int, int]


class LossTerms(NamedTuple):
    """Value and derivative of an objective over one shard, or over several."""

    value: float
    n_impossible: int
    gradient: Floats


class SumTree:
    """A sum over n shards by a tree that depends on n alone: it adds neighbours first, then neighbouring pairs, and so on. So the
    sum is the same bit by bit, whichever process adds which shards, and whenever.

    Node (level, place) is the sum of ``1 << level`` shards (or of the remaining ones) from number ``place << level`` on.
    """

    def __init__(self, n: int):
        self._n = n
        # The sums of nodes that wait for their neighbours
        self.left: dict[Node, LossTerms] = {}

    def add(self, node: Node, terms: LossTerms) -> None:
        """Add the sum of the shards of a node, and join it with its neighbours as far as these have been added."""
        level, place = node
        while (1 << level) < self._n:
            neighbour = place ^ 1  # the places of neighbours differ in the last bit
            # The last node of a level may have no neighbour
            if neighbour << level < self._n:
                if (level, neighbour) not in self.left:
                    break
                other = self.left.pop((level, neighbour))
                terms = LossTerms(
                    value=other.value + terms.value,
                    n_impossible=other.n_impossible + terms.n_impossible,
                    gradient=np.add(other.gradient, terms.gradient, out=other.gradient),
                )
            level = level + 1
            place = place >> 1
        # Arrays from workers lie in the read-only memory of the message
        if not terms.gradient.flags.writeable:
            terms = terms._replace(gradient=terms.gradient.copy())
        self.left[level, place] = terms

    @property
    def total(self) -> LossTerms:
        """The sum of all shards, once all are added."""
        [total] = self.left.values()
        return total


class Epoch(NamedTuple):
    """Description of an epoch of parameter mixing for the workers.

    run (OnlineRun): A run whose slots are the weights; it stays unchanged.
    shares (list[float]): Weight of the result of each shard. n_sequences (int): Number of sequences in all shards.
    """

    optimizer: OnlineOptimizer
    run: OnlineRun
    key: str
    shares: list[float]
    n_sequences: int


def shares_of(n_sequences: list[int], mixing: str) -> list[float]:
    """Weight of each shard: in proportion to its number of sequences, or the same for each shard with sequences."""
    sizes = np.array(n_sequences if mixing == "size" else np.sign(n_sequences), dtype=np.float64)
    return (sizes / max(1.0, sizes.sum())).tolist()


class MixedEpochs(Weights):
    """A corpus in shards, as seen by the main process: see `optimizers.objective.SequenceObjective`.

    ask (Callable): Lets the workers execute a verb, "begin" or "walk", for an epoch.
    n_sequences (list[int]): Number of sequences in each shard.
    """

    anchor = None

    def __init__(
        self,
        model: Model,
        loss: ClampedLoss,
        ask: Callable[[str, Epoch], object],
        n_sequences: list[int],
        mixing: str,
        signature: tuple[int, ...],
    ):
        super().__init__(model)
        self.loss = loss
        self.signature = signature
        self._ask = ask
        self.n_sequences = sum(n_sequences)
        self._shares = shares_of(n_sequences, mixing)
        size = int(self._starts[-1])
        # The main process has no corpus, and its slots are the weights, see `types.ChainCorpus`
        none = np.zeros(0, dtype=np.int64)
        self.corpus = SimpleNamespace(learned=np.ones(size, bool), slot_of_weight=np.arange(size), forbidden=none)

    @property
    def mixed(self) -> "MixedEpochs":
        """This corpus itself, since its epochs run on shards; other corpora have None."""
        return self

    def epoch(self, optimizer: OnlineOptimizer, run: OnlineRun, key: str) -> float:
        """Run an epoch on all shards. RETURNS (float): The loss."""
        epoch = Epoch(optimizer.without_runs(), _without_corpus(run), key, self._shares, self.n_sequences)
        if not run.iteration:
            run.numbers = cast(dict[str, float], self._ask("begin", epoch))
            epoch = epoch._replace(run=_without_corpus(run))
        # In place of a gradient, the terms have the weighted sum of the shards' mixtures
        terms = cast(LossTerms, self._ask("walk", epoch))
        store_average(optimizer, run, terms.gradient)
        return terms.value


def _without_corpus(run: OnlineRun) -> OnlineRun:
    """The part of a run that workers need."""
    return OnlineRun(run.layout, run.weights[:0], run.slots, run.arrays, run.numbers, run.count, run.iteration)


# ------------------------------------------------------------------------------------------------- a part of the corpus


def begin_part(epoch: Epoch, objective: SequenceObjective) -> dict[str, float]:
    """Prepare a run on a part of its corpus. RETURNS (dict[str, float]): The initial numbers of the run."""
    optimizer = epoch.optimizer
    run = _run_of_part(epoch, objective)
    optimizer.prepare(objective, optimizer.pass_through(objective), run, epoch.key)
    return run.numbers


def walk_part(epoch: Epoch, objective: SequenceObjective, part: int) -> tuple[float, Floats]:
    """Run an epoch on one part of a corpus, from the weights that all parts share. RETURNS: The loss, and a `mixture`."""
    optimizer = epoch.optimizer
    run = _run_of_part(epoch, objective)
    # The first part gets the seed of an undivided corpus
    seed = (optimizer.seed, run.iteration, part) if part else (optimizer.seed, run.iteration)
    loss = optimizer.epoch(optimizer.pass_through(objective), run, objective, seed, epoch.key)
    return loss, mixture(optimizer, run, objective.corpus.slot_of_weight)


def mixture(optimizer: OnlineOptimizer, run: OnlineRun, slots: Union[slice, Ints]) -> Floats:
    """The weights of a run and the rule's numbers for each weight, as one array that can be averaged over runs: float64[k].

    slots (Union[slice, Ints]): The slot of each weight.
    """
    arrays = []
    for name in sorted(run.arrays):
        # A drift depends on the number of updates; the average of the weights, which it stands for, does not
        array = optimizer.average(run) if name in optimizer.drifts else run.arrays[name]
        arrays.append(array[slots])
    numbers = [run.numbers[name] for name in sorted(run.numbers)]
    return np.concatenate([optimizer.present(run)[slots], *arrays, numbers, [run.count]])


def store_average(optimizer: OnlineOptimizer, run: OnlineRun, mixed: Floats) -> None:
    """Store an average of mixtures in a run whose slots are the weights: the inverse of `mixture`.

    mixed (float64[k]): The average.
    """
    names = sorted(run.arrays)
    ends = len(run.slots) * np.arange(1, len(names) + 2)  # where the weights, and the arrays in the order of names, end
    run.slots, *arrays, rest = np.split(mixed, ends)
    *numbers, run.count = rest.tolist()
    run.numbers = dict(zip(sorted(run.numbers), numbers))
    if "scale" in run.numbers:
        run.numbers["scale"] = 1.0  # a mixture has weights with their scale
    for name, array in zip(names, arrays):
        # For a drift, the mixture has the average of the weights
        run.arrays[name] = (run.slots - array) * (run.count + 1) if name in optimizer.drifts else array


def _run_of_part(epoch: Epoch, objective: SequenceObjective) -> OnlineRun:
    """Copy the run of an epoch, whose slots are the weights, into the slots of a part of the corpus."""
    corpus = objective.corpus
    run = epoch.run
    copied = OnlineRun(run.layout, run.weights, np.zeros(len(corpus.learned)), iteration=run.iteration)
    copied.slots[corpus.slot_of_weight] = run.slots
    copied.slots[corpus.forbidden] = -np.inf
    epoch.optimizer.start(copied, objective)
    for name, array in run.arrays.items():
        copied.arrays[name][corpus.slot_of_weight] = array
    copied.numbers = dict(run.numbers)
    copied.count = run.count
    return copied
