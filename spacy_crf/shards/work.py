"""The work of one process on the shards of a corpus."""

import logging
import os
import pickle
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, cast

import numpy as np
from spacy.training import Example

from ..arrays import expect_below, of_file
from ..errors import Errors, announcements
from ..losses.clamped import ClampedLoss
from ..models.merged import SEEDS, Ties
from ..models.node import AnnotatedDocs
from ..models.objective import CorpusObjective
from ..models.sequences import SequencesObjective
from ..pipeline.initialization import count
from ..types import Bools, Floats
from . import mapped
from .cut import Pieces
from .mixing import Epoch, LossTerms, SumTree, begin_part, mixture, walk_part
from .part_counts import counted, keep_all_features

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe

COUNTED = "counted-{:05}"
PREPARED = "prepared-{:05}"
MARKS = "marks-{:05}"
SHARD = "shard-{:05}"
FROZEN = "frozen"
VARIABLES = "variables"


class ShardTask(NamedTuple):
    """A method of `ShardWork`, and the shards to which a worker applies it."""

    verb: str
    begin: int
    end: int


class ShardWork:
    """Executes tasks: calls the method that a task names.

    folder (str), n (int): The folder of the training, and its number of shards.
    digest (int): Identifies the training. pipe (bytes): The component as its config makes it.
    threads (int): Number of threads of this worker.
    """

    def __init__(self, folder: str, n: int, digest: int, pipe: bytes, threads: int):
        os.environ["SPACY_CRF_THREADS"] = str(threads)
        announcements.setLevel(logging.WARNING)
        self._folder = Path(folder)
        self._n = n
        self._digest = digest
        self._pipe = pipe
        self._pieces = Pieces(self._folder / "corpus")
        self._shards: dict[int, CorpusObjective] = {}
        self._files: dict[int, mapped.File] = {}  # the files of these shards
        self._sequences: dict[int, Optional[SequencesObjective]] = {}

    def __call__(self, task: ShardTask, shared: object = None) -> object:
        """Do a task. shared: What all tasks of a run share, such as the weights."""
        return getattr(self, task.verb)(task, shared)

    # ------------------------------------------------------------------------------------------- what initializes

    def count(self, task: ShardTask, pipe: bytes) -> None:
        """Count the features of a shard, and write the counts to a file."""
        pipe = _unpickled(pipe)
        keep_all_features(pipe.model)
        is_annotated = count(pipe, lambda: self._examples(pipe, task.begin), None, had_labels=True)
        facts = {"is_annotated": int(is_annotated), "left_out": pipe.cfg["left_out"]}
        mapped.write(self._path(COUNTED, task.begin), [self._digest, facts, counted(pipe.model)])

    def prepare(self, task: ShardTask, shared: object) -> int:
        """Look up the features of a shard, and write a file with the marks of its weights. RETURNS (int): Its signature."""
        objective = self._looked_up(task.begin)
        stored = objective.stored()
        if stored is not None:
            mapped.write(self._path(PREPARED, task.begin), [self._digest, stored])
        mapped.write(self._path(MARKS, task.begin), [objective.marks((seed, task.begin)) for seed in SEEDS])
        return objective.signature[-1]

    def thin(self, task: ShardTask, shared: object) -> None:
        """Rewrite the file of a shard with only the rows that have variables."""
        path = self._path(PREPARED, task.begin)
        if path.exists():
            objective = self._stored(self._objective([]), path, self._file(path))
            objective.keep(self._is_representative)
            mapped.write(self._path(SHARD, task.begin), [self._digest, objective.stored()])
            path.unlink()

    # --------------------------------------------------------------------------------------------------- training

    def evaluate(self, task: ShardTask, weights: Floats) -> list[tuple[tuple[int, int], LossTerms]]:
        """Compute the terms of the objective for these shards, and sum them as far as the tree allows."""
        tree = SumTree(self._n)
        for number in range(task.begin, task.end):
            if number not in self._shards:
                self._shards[number] = self._load(number)
            objective = self._shards[number]
            value, gradient = objective.evaluate(weights)
            tree.add((0, number), LossTerms(value, objective.n_impossible, gradient))
            if number in self._files and task.end - task.begin > 1:
                self._files[number].give_back()
        return [*tree.left.items()]

    # -------------------------------------------------------------------------------- training by parameter mixing

    def lay_out(self, task: ShardTask, shared: object) -> tuple[int, int]:
        """Prepare a shard for online optimizers. RETURNS (tuple[int, int]): Its number of sequences, and its signature."""
        objective = self._sequences_of(task.begin)
        return (0, 0) if objective is None else (objective.n_sequences, objective.signature[-1])

    def begin(self, task: ShardTask, epoch: Epoch) -> dict[str, float]:
        """Prepare the first epoch on a shard that has sequences."""
        objective: Any = self._sequences_of(task.begin, epoch)
        return begin_part(epoch, objective)

    def walk(self, task: ShardTask, epoch: Epoch) -> list[tuple[tuple[int, int], LossTerms]]:
        """Run an epoch on each shard, and sum the weighted results as far as the tree allows."""
        tree = SumTree(self._n)
        for number in range(task.begin, task.end):
            objective: Any = self._sequences_of(number, epoch)
            value = 0.0
            if objective is None:
                mixed = mixture(epoch.optimizer, epoch.run, slice(None))
            else:
                value, mixed = walk_part(epoch, objective, number)
            mixed *= epoch.shares[number]
            tree.add((0, number), LossTerms(value, 0, mixed))
        return [*tree.left.items()]

    def _sequences_of(self, number: int, epoch: Optional[Epoch] = None) -> Optional[SequencesObjective]:
        """The objective of a shard for online optimizers, made once; None if the shard is empty.

        epoch (Epoch): Tells the objective the number of sequences of all shards.
        """
        if number not in self._sequences:
            data = [self._trained.training.data(block, "sequences") for block in self._blocks(number)]
            # `CRFOptimizer.check_fit` has refused other losses
            loss = cast(ClampedLoss, self._trained.loss)
            objective = SequencesObjective(self._trained.model, loss, data) if data else None
            self._sequences[number] = objective
        objective = self._sequences[number]
        if objective is not None and epoch is not None:
            objective.n_sequences = epoch.n_sequences
        return objective

    # ------------------------------------------------------------------------------------------------------ parts

    def _load(self, number: int) -> CorpusObjective:
        """Load the objective of a shard from its file, or look up its features again if it has no file."""
        path = self._path(SHARD, number)
        if path.exists():
            self._files[number] = self._file(path)
            return self._stored(self._without_corpus, path, self._files[number])
        objective = self._looked_up(number)
        objective.keep(self._is_representative)
        return objective

    def _stored(self, objective: CorpusObjective, path: Path, file: mapped.File) -> CorpusObjective:
        """The objective for the corpus in a file. RAISES (ValueError): CRF472 for arrays that are not of this model."""
        try:
            loaded = objective.with_stored(file.value[1])
        except Exception as error:  # whatever a file may contain in place of arrays
            raise mapped.damaged(path, error) from error
        file.give_back()
        return loaded

    @cached_property
    def _without_corpus(self) -> CorpusObjective:
        """The objective with the weights that represent variables, and no corpus, which `_stored` adds."""
        objective = self._objective([])
        objective.keep(self._is_representative)
        return objective

    def _looked_up(self, number: int) -> CorpusObjective:
        """The objective of a shard, whose features are looked up."""
        return self._objective(map(self._trained.training.data, self._blocks(number)))

    def _objective(self, corpus: Iterable[AnnotatedDocs]) -> CorpusObjective:
        return CorpusObjective(self._trained.model, self._trained.loss, corpus)

    def _blocks(self, number: int) -> Iterator[list[Example]]:
        """The texts of a shard, in batches."""
        return self._trained.training.blocks(self._examples(self._trained, number))

    @cached_property
    def _trained(self) -> "CRFPipe":
        """The component with all features and without weights."""
        pipe = _unpickled(self._pipe).from_disk(self._folder / FROZEN)
        pipe.training.continuation = pipe.training.new_features = None
        return pipe

    @property
    def _is_representative(self) -> Bools:
        """Which weights represent variables: bool[n]."""
        return variables_in(self._folder)[0]

    def _examples(self, pipe: "CRFPipe", number: int) -> Iterator[Example]:
        return self._pieces.read(pipe.vocab, self._pieces.shard(number, self._n))

    def _path(self, name: str, number: int) -> Path:
        return self._folder / name.format(number)

    def _file(self, path: Path) -> mapped.File:
        """Map the file of a shard into memory. RAISES (ValueError): CRF472 if it belongs to another training."""
        file = mapped.File(path)
        if not isinstance(file.value, list) or len(file.value) != 2 or file.value[0] != self._digest:
            raise ValueError(Errors.CRF472.format(path=path, reason="it is a shard of another training"))
        return file


def variables_in(folder: Path) -> tuple[Bools, Ties]:
    """Which weights stand for variables (bool[n]), and the ties. RAISES (ValueError): CRF472 if their file is damaged."""
    path = folder / VARIABLES
    value = mapped.read(path)
    try:
        is_representative, *arrays = value
        ties = Ties(*arrays)
        of_file("variables", is_representative, np.bool_, (None,), copied=False)
        for name, array, size in zip(ties._fields, ties, (len(is_representative), len(ties.place), len(ties.place))):
            of_file(name, array, np.int32, (size,), copied=False)
        expect_below("variables of weights", ties.group, len(ties.place))
        expect_below("places of variables", ties.place, len(ties.group))
        expect_below("copies of variables", ties.copies, len(ties.group) + 1, least=1)
    except Exception as error:  # whatever a file may contain in place of arrays
        raise mapped.damaged(path, error) from error
    return is_representative, ties


def _unpickled(pipe: bytes) -> "CRFPipe":
    """Unpickle a component. RAISES (ValueError): CRF473 if this process can't import a part of it."""
    try:
        return pickle.loads(pipe)
    except Exception as error:  # imports may raise anything
        raise ValueError(
            Errors.CRF473.format(name="that is trained", reason=f"{type(error).__name__}: {error}")
        ) from error
