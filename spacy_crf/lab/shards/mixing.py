"""Iterative parameter mixing (McDonald, Hall & Mann 2010, figure 3): how optimizers that learn from one sequence after the other
learn from a corpus in shards.

In each epoch every shard is walked through from the same weights, by itself; then the weights that were found are averaged, and
so is what the rule remembers of each weight. That is another algorithm than a walk through the whole corpus: what a shard learns
in an epoch the others hear of at its end. Nothing depends on who walks through which shard, nor on who is first.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ...losses.clamped import ClampedLoss
from ...models.weights import Weights
from ...optimizers.objective import SequenceObjective
from ...optimizers.online import OnlineOptimizer, OnlineRun
from ...types import Floats
from .sums import Terms

MIXING = ("size", "uniform")


class Lesson(NamedTuple):
    """What the workers of an epoch are told.

    shares (list[float]): How much what each shard has found weighs. n_sequences (int): Of all shards.
    """

    optimizer: OnlineOptimizer
    run: OnlineRun
    key: str
    shares: list[float]
    n_sequences: int


def shares_of(n_sequences: list[int], mixing: str) -> list[float]:
    """How much each shard weighs: as much as it has sequences, or as much as any other that has some."""
    sizes = np.array(n_sequences, dtype=np.float64) if mixing == "size" else np.sign(n_sequences).astype(np.float64)
    return (sizes / max(1.0, sizes.sum())).tolist()


class _Slots(NamedTuple):
    """The main process has no corpus, and its slots are the weights. See `types.ChainCorpus`."""

    learned: NDArray[np.bool_]
    slot_of_weight: NDArray[np.int64]
    forbidden: NDArray[np.int64]


class MixedEpochs(Weights):
    """The main process's view of a corpus in shards: see `optimizers.objective.SequenceObjective`.

    ask (Callable): Has the workers do what a verb says, with a lesson: "begin" or "walk".
    n_sequences (list[int]): Of each shard.
    """

    anchor = None

    def __init__(
        self,
        model: Model,
        loss: ClampedLoss,
        ask: Callable[[str, Lesson], Any],
        n_sequences: list[int],
        mixing: str,
        signature: tuple[int, ...],
    ):
        super().__init__(model)
        self.loss, self.signature, self._ask = loss, signature, ask
        self.n_sequences, self._shares = sum(n_sequences), shares_of(n_sequences, mixing)
        size = int(self._starts[-1])
        self.corpus = _Slots(np.ones(size, dtype=bool), np.arange(size), np.zeros(0, dtype=np.int64))

    @property
    def mixed(self) -> "MixedEpochs":
        return self

    def epoch(self, optimizer: OnlineOptimizer, run: OnlineRun, key: str) -> float:
        """RETURNS (float): The loss that was met."""
        lesson = Lesson(optimizer.without_runs(), _told(run), key, self._shares, self.n_sequences)
        if not run.epoch:
            run.numbers = self._ask("begin", lesson)
            lesson = lesson._replace(run=_told(run))
        found: Terms = self._ask("walk", lesson)
        take_mixture(optimizer, run, found.gradient)
        return found.value


def _told(run: OnlineRun) -> OnlineRun:
    """What workers need of it."""
    return OnlineRun(run.layout, run.assigned[:0], run.slots, run.arrays, run.numbers, run.count, run.epoch)


# ------------------------------------------------------------------------------------------------- a part of the corpus


def begin_part(optimizer: OnlineOptimizer, objective: SequenceObjective, run: OnlineRun, key: str) -> dict[str, float]:
    """RETURNS (dict[str, float]): The numbers of a run that begins, as they are found by a part of its corpus."""
    own = _in_slots(optimizer, run, objective)
    optimizer.prepare(objective, optimizer.pass_through(objective), own, key)
    return own.numbers


def walk_part(
    optimizer: OnlineOptimizer, objective: SequenceObjective, run: OnlineRun, part: int, key: str
) -> tuple[float, Floats]:
    """An epoch over a part of a corpus alone, from where all of them are.

    run (OnlineRun): Its slots are the weights. It stays as it is.
    RETURNS (tuple[float, float64[k]]): The loss, and where this part has come to, as `mixture` has it.
    """
    own = _in_slots(optimizer, run, objective)
    # A single part is walked through as a whole is
    seed = (optimizer.seed, run.epoch, part) if part else (optimizer.seed, run.epoch)
    loss = optimizer.epoch(optimizer.pass_through(objective), own, objective, seed, key)
    return loss, mixture(optimizer, own, objective.corpus.slot_of_weight)


def mixture(optimizer: OnlineOptimizer, run: OnlineRun, slots: Any) -> Floats:
    """All that a run knows of its weights, as numbers of which those of several runs may be averaged (float64[k])."""
    averaged = {name: optimizer.average(run) for name in optimizer.drifts}
    arrays = [averaged.get(name, run.arrays[name])[slots] for name in sorted(run.arrays)]
    numbers = [run.numbers[name] for name in sorted(run.numbers)]
    return np.concatenate([optimizer.present(run)[slots], *arrays, numbers, [run.count]])


def take_mixture(optimizer: OnlineOptimizer, run: OnlineRun, mixed: Floats) -> None:
    """What `mixture` says, for a run whose slots are the weights."""
    names, size = sorted(run.arrays), len(run.slots)
    run.slots, *arrays, numbers = np.split(mixed, size * np.arange(1, len(names) + 2))
    *numbers, run.count = numbers.tolist()
    run.numbers = dict(zip(sorted(run.numbers), numbers))
    if "scale" in run.numbers:
        run.numbers["scale"] = 1.0
    for name, array in zip(names, arrays):
        run.arrays[name] = (run.slots - array) * (run.count + 1) if name in optimizer.drifts else array


def _in_slots(optimizer: OnlineOptimizer, run: OnlineRun, objective: SequenceObjective) -> OnlineRun:
    """A copy of a run whose slots are the weights, for a part of its corpus."""
    corpus = objective.corpus
    own = OnlineRun(run.layout, run.assigned, np.zeros(len(corpus.learned)), epoch=run.epoch)
    own.slots[corpus.slot_of_weight] = run.slots
    own.slots[corpus.forbidden] = -np.inf
    optimizer.start(own, objective)
    for name, array in run.arrays.items():
        own.arrays[name][corpus.slot_of_weight] = array
    own.numbers, own.count = dict(run.numbers), run.count
    return own
