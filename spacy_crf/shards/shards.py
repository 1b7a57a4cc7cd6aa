"""Training on shards: a corpus is cut into pieces, and workers compute the terms of the objective for each piece.

    [initialize.components.NAME.shards]
    @misc = "spacy_crf.shards.v1"
    n = 8
    workers = 8
    path = "shards"

The main process and the workers write to the folder, in this order: the texts (`cut`), the component with all counted features
and no weights (`frozen`), each shard as a file that its worker maps into memory, and then the checkpoints of the training.
"""

import json
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional, Union, cast
from weakref import finalize

import numpy as np
import spacy
from spacy.language import Language
from spacy.training import Example
from thinc.api import Model, Optimizer

from .. import __version__, checks
from ..errors import Errors, announcements
from ..inference.threads import default_threads
from ..losses.clamped import ClampedLoss
from ..models.merged import SEEDS, Ties, Variables, keys_of
from ..models.weights import Weights, checksum
from ..optimizers.objective import CRFOptimizer
from ..pipeline.prepared import PreparedCorpus, view_for
from ..types import Floats, Settings
from ..whole_files import FileFormat, room_for, seal_into, unseal
from ..workers.executors import Executor, Processes, Ray, Staff
from ..workers.work_folder import Manifest, WorkFolder, shared_lock
from . import mapped
from .cut import Pieces
from .mixing import MIXING, Epoch, LossTerms, MixedEpochs, SumTree
from .part_counts import counts_in_parts, expect_counts, put_together
from .work import COUNTED, FROZEN, MARKS, VARIABLES, ShardTask, ShardWork, variables_in

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe

EXECUTORS = ("processes", "ray")
_CHECKPOINT = "checkpoint"
# Entry of the manifest once the counts of all parts are joined
_FROZEN = "features"
_SAVED = FileFormat("a checkpoint", b"spacy_crf checkpoint\n", 1)


class Shards:
    """Settings of a training on shards (``spacy_crf.shards.v1``).

    n (int): Number of shards. The last bits of the weights depend on it, and on no other setting here.
    executor (str): "processes" for processes on this machine, or "ray" for the workers of a Ray cluster.
    workers (int): Number of workers; None for one per shard, but at most one per core of this machine.
    address (str): Address of the Ray cluster; None starts a cluster on this machine.
    cores (int): Number of cores, and threads, of each worker of a Ray cluster. With all cores of a machine, its worker sends one
        sum for all of its shards.
    path (Path): The folder for the shards and the checkpoints. Workers on other machines must find it under this name.
    checkpoint_every (int): Least number of iterations between two checkpoints, which are written at the end of a step.
    mixing (str): Weights of shards in the averages of online optimizers: "size" for the number of sequences, or "uniform".
    """

    def __init__(
        self,
        n: int = 2,
        executor: str = "processes",
        workers: Optional[int] = None,
        address: Optional[str] = None,
        cores: int = 1,
        path: Union[str, Path] = "shards",
        checkpoint_every: int = 10,
        mixing: str = "size",
    ):
        owner = "spacy_crf.shards.v1"
        self.n = checks.count(owner, "n", n, most=1 << 16)
        self.executor = checks.one_of(owner, "executor", executor, EXECUTORS)
        if workers is None:
            workers = self.n if executor == "ray" else default_threads()
        self.workers = min(self.n, checks.count(owner, "workers", workers, most=checks.ANY))
        only_ray = "left out but for executor = 'ray'"
        checks.expect(address is None or executor == "ray", owner, "address", address, only_ray)
        self.address = None if address is None else checks.text(owner, "address", address)
        self.cores = checks.count(owner, "cores", cores, most=1 << 16)
        checks.expect(cores == 1 or executor == "ray", owner, "cores", cores, only_ray)
        checks.expect(isinstance(path, (str, Path)) and str(path) != "", owner, "path", path, "a folder")
        self.path = Path(path)
        self.checkpoint_every = checks.count(owner, "checkpoint_every", checkpoint_every, most=checks.ANY)
        self.mixing = checks.one_of(owner, "mixing", mixing, MIXING)

    def staff(self) -> Executor:
        """The executor of the workers."""
        return Processes(self.workers) if self.executor == "processes" else Ray(self.workers, self.address, self.cores)

    def begin(
        self, pipe: "CRFPipe", nlp: Optional[Language], optimizer: Optional[Optimizer], *, goes_on: bool
    ) -> "ShardedTraining":
        """Begin the initialization and training of a component.

        goes_on (bool): Whether the training continues from the component's present weights.
        RAISES (ValueError): CRF474 if the component can't be trained on shards, CRF472 if the folder holds other shards, CRF736
            if another process works in the folder.
        """
        reason = _refusal(pipe, nlp, optimizer, goes_on)
        if reason is not None:
            raise ValueError(Errors.CRF474.format(name=pipe.name, reason=reason))
        return ShardedTraining(self, pipe, cast(Language, nlp), view_for(cast(CRFOptimizer, optimizer)))


def _refusal(pipe: "CRFPipe", nlp: Optional[Language], optimizer: Optional[Optimizer], goes_on: bool) -> Optional[str]:
    """The reason why a component can't be trained on shards, or None."""
    node = pipe.model.attrs["node"]
    if nlp is None:
        return "what shards are made of is said by the config of the pipeline: give nlp, as nlp.initialize() does"
    if goes_on:
        return "start_from begins with weights that were learned from other texts"
    if not isinstance(optimizer, CRFOptimizer):
        return "its optimizer takes gradients of batches: use spacy_crf.LBFGS.v1, or one that learns from sequences"
    if optimizer.wants_sequences and optimizer.wants_whole_corpus:
        return f"{type(optimizer).__name__} keeps what it knows of each sequence: use spacy_crf.LBFGS.v1"
    if not pipe.is_linear or pipe.has_encoder or pipe.is_pool:
        return "its scores are not sums of weights of sparse features alone"
    if any(features.feature_set.reads_outer for features in pipe.feature_stores):
        return "its features read outer"
    if pipe.first_stage is not None:
        return "a first stage labels its texts"
    if node.prunes_labellings(pipe.model):
        return "`keep` leaves out labellings, which ones depends on the weights"
    return None


def _is_entry(key: object, entry: object) -> bool:
    """Whether a line of a manifest, a key and its entry, may be one that `ShardedTraining` wrote."""
    if key == "cut":
        return isinstance(entry, dict) and all(type(entry.get(name)) is int for name in ("texts", "tokens", "check"))
    if key == _FROZEN:
        return entry is True
    return key in ("laid out", "prepared") and isinstance(entry, list)


class ShardedTraining:
    """The folder and the workers of a training.

    kind (str): The view of the corpus that the optimizer needs, see `pipeline.prepared.VIEWS`.
    RAISES (ValueError): CRF472 if the folder holds shards of another training, CRF736 if another process works in it.
    """

    def __init__(self, shards: Shards, pipe: "CRFPipe", nlp: Language, kind: str):
        self.shards = shards
        self._pipe = pipe
        self.kind = kind
        folder = WorkFolder(str(shards.path.absolute()), Errors.CRF472)
        head = _head(shards, pipe, nlp)
        folder.make()
        self._lock = shared_lock(shards.path)
        self._manifest = Manifest(folder, head, first=_FROZEN, is_entry=_is_entry)
        self.pieces = Pieces(shards.path / "corpus")
        threads = max(1, default_threads() // shards.workers) if shards.executor == "processes" else shards.cores
        self._digest = zlib.crc32(json.dumps(head, sort_keys=True).encode("utf8"))
        self._work = partial(ShardWork, str(shards.path), shards.n, self._digest, _pickled(pipe), threads)
        self._open = ExitStack()  # closes the workers
        self._staff: Optional[Staff] = None
        # Otherwise the workers would wait for tasks when the interpreter ends
        finalize(self, self._open.close)

    # ------------------------------------------------------------------------------------------- what initializes

    def restore(self, pipe: "CRFPipe") -> bool:
        """Load the component with all features, if the folder has it. RETURNS (bool): Whether the folder has it."""
        if _FROZEN not in self._manifest.done:
            return False
        pipe.from_disk(self.shards.path / FROZEN)
        pipe.training.continuation = pipe.training.new_features = None
        what = f"{self.shards.n} shards are" if self._kind_done in self._manifest.done else "features of all shards are"
        announcements.info("%s: %s in %s already", pipe.name, what, self.shards.path)
        return True

    def cut(self, examples: Iterable[Example]) -> Callable[[], Iterator[Example]]:
        """Write the texts to the folder. RETURNS (Callable): A function that reads the texts again."""
        # A manifest whose config names no files does not tell whether the texts are the same: they are written, and compared
        if "cut" not in self._manifest.done or not self._manifest.head["files"]:
            before = self._manifest.done.get("cut")
            counts = self.pieces.write(examples, before if _FROZEN in self._manifest.done else None)
            if counts != before:
                self._remove(COUNTED)  # counts of other texts, left by a command that failed
            self._manifest.enter("cut", counts, at_once=True)
            announcements.info("%s: %d texts with %d tokens", self._pipe.name, counts["texts"], counts["tokens"])
        return lambda: self.pieces.read(self._pipe.vocab, range(len(self.pieces)))

    def count(self, pipe: "CRFPipe", had_labels: bool) -> bool:
        """Let workers count the features of each shard, if the model's initialization is a sum over parts of the corpus. Shards
        that were counted before a restart are not counted again. RETURNS (bool): Whether the features were counted."""
        if not counts_in_parts(pipe.model):
            return False
        paths = self._paths(COUNTED)
        # Shards with a complete file of counts from this training
        counted = set()
        for number, path in enumerate(paths):
            with suppress(OSError, ValueError, TypeError, LookupError):
                if mapped.read(path)[0] == self._digest:
                    counted.add(number)
        if counted:
            announcements.info("%s: %d of %d shards are counted already", pipe.name, len(counted), self.shards.n)
        self._each("count", [number for number in range(self.shards.n) if number not in counted], _pickled(pipe))
        # These workers have all features, and their names, in memory
        self.close()
        facts = [mapped.read(path)[1] for path in paths]  # see `ShardWork.count`
        if not had_labels and not any(of_shard["is_annotated"] for of_shard in facts):
            raise ValueError(Errors.CRF431.format(name=pipe.name))
        pipe.cfg["left_out"] = sorted(set().union(*(of_shard["left_out"] for of_shard in facts)))
        pipe.training.begin()
        put_together(pipe.model, pipe.vocab, pipe.decoding.n_states, lambda: self._counts(pipe.model))
        return True

    def _counts(self, model: Model) -> Iterator[Settings]:
        """The counts of all shards. RAISES (ValueError): CRF472 for those of another model."""
        for path in self._paths(COUNTED):
            try:
                _, _, counts = mapped.read(path)
                expect_counts(model, counts)
            except Exception as error:  # whatever a file may contain in place of counts
                raise mapped.damaged(path, error) from error
            yield counts

    def _paths(self, name: str) -> list[Path]:
        """The files of all shards with this name, such as COUNTED."""
        return [self.shards.path / name.format(number) for number in range(self.shards.n)]

    def _remove(self, name: str) -> None:
        """Remove the files of all shards with this name."""
        for path in self._paths(name):
            path.unlink(missing_ok=True)

    def corpus(self, pipe: "CRFPipe") -> "ShardedCorpus":
        """Prepare all shards, and return the corpus for training steps."""
        if _FROZEN not in self._manifest.done:
            frozen = self.shards.path / FROZEN
            with room_for(frozen):
                pipe.to_disk(frozen)
            self._manifest.enter(_FROZEN, True, at_once=True)
            self._remove(COUNTED)
        if self._kind_done not in self._manifest.done:
            announcements.info("%s: preparing %d shards", pipe.name, self.shards.n)
            entry = self._lay_out(pipe) if self.kind == "sequences" else self._prepare(pipe.model)
            self._manifest.enter(self._kind_done, entry, at_once=True)
        return ShardedCorpus(pipe, self, self._manifest.done["cut"]["tokens"], self._manifest.done[self._kind_done])

    @property
    def _kind_done(self) -> str:
        """The entry of the manifest for the last work before training."""
        return "laid out" if self.kind == "sequences" else "prepared"

    def _lay_out(self, pipe: "CRFPipe") -> list[list[int]]:
        """Prepare the shards for online optimizers. RETURNS (list): Signature of all shards, and sequences in each shard."""
        # The signature changes with the corpus: a checkpoint of other texts is refused
        n_sequences, signatures = zip(*self._each("lay_out"))
        check = checksum([np.array(signatures, dtype=np.uint64)])
        return [[*Weights(pipe.model).layout, self.shards.n, check], list(n_sequences)]

    def _prepare(self, model: Model) -> list[int]:
        """Look up all features, and find the tied weights. RETURNS (list[int]): The signature of all shards."""
        check = checksum([np.array(self._each("prepare"), dtype=np.uint64)])
        paths = self._paths(MARKS)
        files = [*map(mapped.File, paths)]
        # They are read slice by slice, as arrays
        marks = [cast(Floats, _SumOfFiles(files, number)) for number in range(len(SEEDS))]
        ties = Ties.of(*keys_of(model, marks))
        for path in paths:
            path.unlink()
        variables = Variables(model, ties)
        mapped.write(self.shards.path / VARIABLES, [variables.is_representative, *variables.ties])
        self._each("thin")
        self.close()  # these workers have the tables of features in memory
        return [*Weights(model).layout, len(variables.copies), self.shards.n, check]

    # -------------------------------------------------------------------------------------------------- workers

    def _each(self, verb: str, numbers: Optional[Iterable[int]] = None, shared: object = None) -> list:
        """Let workers do a task for each shard.

        verb (str): Method of `ShardWork`.
        numbers (Iterable[int]): Numbers of the shards; None for all.
        shared: Second argument of the method.
        RETURNS (list): The results, in the order of the shards.
        """
        # A task for each shard, so that idle workers take over from slow ones
        tasks = [ShardTask(verb, n, n + 1) for n in (range(self.shards.n) if numbers is None else numbers)]
        results = dict(self._run(tasks, shared))
        return [results[task] for task in tasks]

    def evaluate(self, weights: Floats) -> LossTerms:
        """Compute the terms of the objective, summed over all shards. weights (float64[n]): The weights of the variables."""
        return self._sum("evaluate", weights)

    def learn(self, verb: str, epoch: Epoch) -> object:
        """Let workers execute an epoch of an online optimizer, see `MixedEpochs`."""
        if verb == "walk":
            return self._sum(verb, epoch)
        first_with_sequences = int(np.argmax(np.array(epoch.shares) > 0.0))
        [result] = self._each(verb, [first_with_sequences], epoch)
        return result

    def _sum(self, verb: str, shared: object) -> LossTerms:
        """Let workers do tasks for all shards, and sum the results."""
        n = self.shards.n
        workers = self.shards.workers
        # Neighbouring shards go to one worker, which sums them before it answers
        bounds = [number * n // workers for number in range(workers + 1)]
        tasks = [ShardTask(verb, begin, end) for begin, end in pairwise(bounds)]
        tree = SumTree(n)
        for _, sums in self._run(tasks, shared):
            for node, terms in sums:
                tree.add(tuple(node), LossTerms(*terms))
        return tree.total

    def _run(self, tasks: list[ShardTask], shared: object) -> Iterator[tuple[ShardTask, Any]]:
        """Let the workers do tasks. Workers are started for the first tasks, and stopped if a task fails."""
        if self._staff is None:
            self._staff = self._open.enter_context(self.shards.staff().staff(self._work))
        try:
            yield from self._staff.run(tasks, shared)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the workers. New workers start when they are needed."""
        self._staff = None
        self._open.close()


class _SumOfFiles:
    """The sum of arrays, one in each of several files. Only the slices that are read are in memory."""

    def __init__(self, files: list[mapped.File], number: int):
        self._files = files
        self._arrays = [file.value[number] for file in files]

    def __getitem__(self, part: slice) -> Floats:
        first, *others = self._arrays
        total = first[part].copy()
        for array in others:
            total += array[part]
        for file in self._files:
            file.give_back()
        return total


class ShardedObjective(Variables):
    """Sum of the losses of all shards as a function of the variables of a model, see `optimizers.objective.Objective`."""

    def __init__(self, model: Model, ties: Ties, ask: Callable[[Floats], LossTerms], signature: tuple):
        super().__init__(model, ties)
        self._ask = ask
        self.signature = signature
        self.n_impossible = 0

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Value and gradient at the weights of the variables: float64[n]."""
        value, self.n_impossible, gradient = self._ask(self.spread(weights))
        return value, self.gather(gradient)


class ShardedCorpus(PreparedCorpus):
    """The corpus that the component was initialized with, in shards.

    n_tokens (int): Number of tokens in all shards.
    prepared (list): The result of `ShardedTraining._lay_out` for online optimizers, of `ShardedTraining._prepare` for others.
    """

    def __init__(self, pipe: "CRFPipe", training: ShardedTraining, n_tokens: int, prepared: list):
        self._pipe = pipe
        self._training = training
        self.n_tokens = n_tokens
        self.kind = training.kind
        self._parts_before = self._parts_of_pipe()
        # The iteration of the last checkpoint, -1 before the first step
        self._saved_at = -1
        if self.kind == "sequences":
            signature, n_sequences = prepared
            loss = cast(ClampedLoss, pipe.loss)  # see `CRFOptimizer.check_fit`
            mixing = training.shards.mixing
            self.objective = MixedEpochs(pipe.model, loss, training.learn, n_sequences, mixing, tuple(signature))
            return
        _, ties = variables_in(training.shards.path)
        self.objective = ShardedObjective(pipe.model, ties, training.evaluate, tuple(prepared))

    def before_step(self, optimizer: CRFOptimizer) -> None:
        """Continue from the checkpoint, if there is one and the optimizer has not started yet."""
        if self._saved_at >= 0:
            return
        self._saved_at = 0
        path = self._training.shards.path / _CHECKPOINT
        if path.exists():
            saved = unseal(_SAVED, path.read_bytes(), str(path))
            self._saved_at = optimizer.resume(self.objective, saved, key=self._pipe.name)
            announcements.info("%s: goes on at iteration %d of %s", self._pipe.name, self._saved_at, path.parent)

    def after_step(self, optimizer: CRFOptimizer) -> None:
        """Write a checkpoint if one is due. RAISES (ValueError): CRF475 if the disk is full; the previous checkpoint stays."""
        name = self._pipe.name
        at = optimizer.iterations_made(name)
        is_over = optimizer.stop_reason(name) is not None
        if at > self._saved_at and (is_over or at >= self._saved_at + self._training.shards.checkpoint_every):
            with mapped.whole(self._training.shards.path / _CHECKPOINT) as file:
                seal_into(file, _SAVED, optimizer.checkpoint(name))
            self._saved_at = at
        if is_over:
            self._training.close()


# ------------------------------------------------------------------------------------------------------- the folder


def _head(shards: Shards, pipe: "CRFPipe", nlp: Language) -> dict[str, object]:
    """Everything that the shards depend on, for the head of the manifest."""
    config = nlp.config.interpolate()
    initialize = {**config["initialize"], "components": dict(config["initialize"].get("components", {}))}
    settings = dict(initialize["components"].get(pipe.name, {}))
    settings.pop("shards", None)  # of these settings, only n changes what the folder holds
    initialize["components"][pipe.name] = settings
    head = {
        "versions": {"spacy_crf": __version__, "spacy": spacy.__version__},
        "n": shards.n,
        "component": pipe.name,
        "nlp": config["nlp"],
        "components": config["components"],
        "initialize": initialize,
        "annotating_components": config["training"].get("annotating_components"),
        "files": {path: _stamp(Path(path)) for path in sorted(_paths(initialize))},
    }
    return json.loads(json.dumps(head, default=str))


def _paths(value: object) -> set[str]:
    """The texts in a value that name files or folders."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return set().union(*map(_paths, value))
    is_path = isinstance(value, (str, Path)) and str(value) and len(str(value)) < 4096 and Path(value).exists()
    return {str(value)} if is_path else set()


def _stamp(path: Path) -> list[list[object]]:
    """A stamp of the files below a path, which is equal as long as the files are the same."""
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    return [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def _pickled(pipe: "CRFPipe") -> bytes:
    """Pickle a component for the workers. RAISES (ValueError): CRF473 if it can't be pickled."""
    try:
        return pickle.dumps(pipe)
    except Exception as error:  # functions and extensions may raise anything
        raise ValueError(Errors.CRF473.format(name=pipe.name, reason=error)) from error
