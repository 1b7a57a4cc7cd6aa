"""Processes that compile a component's kernels side by side, where nothing has called them before.

`signatures.jsonl` lists the kernels that a first training and a first prediction call with the shipped configs. When the first of
them has to be compiled, this process starts others, which import kernels but not spaCy. All of them, this process too, draw
kernels from one queue, the slowest first, and keep the code on disk. When the queue is empty and the others have ended, this
process goes on. It reads what they have compiled, and compiles what is missing: where a process was killed, could not write, or
could not be started, nothing but time is lost.
"""

import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Union

from numba import types
from numba.core.registry import cpu_target

TRAINING = "training"
PREDICTION = "prediction"
_MOST_JOBS = 4  # more processes gain little, and each needs 200 MB
_SECONDS_A_JOB = 2.0  # of compiling, below which starting a process takes longer than it saves
_MOST_SECONDS = 120.0  # to wait for a process that has a last kernel to compile
_BYTES = 2  # of a number in the queue

Call = tuple[str, str]  # TRAINING or PREDICTION, and the name of a model: whose kernels are called, and when
# A type of numba: the name of a number such as "int64", an array such as "float64[2]" or "readonly uint32[1]", or the class of a
# named tuple, "" for other tuples, followed by the types of its members
Described = Union[str, list]


class ListedKernel(NamedTuple):
    """A line of `signatures.jsonl`."""

    kernel: str  # its module, below the package, and its name
    seconds: float  # that compiling takes
    training: list[str]  # structures whose first training calls the kernel
    prediction: list[str]  # structures whose first prediction calls it
    arguments: list[Described]

    def calls(self) -> Iterator[Call]:
        """Yield who calls the kernel."""
        for structure in self.training:
            yield TRAINING, structure
        for structure in self.prediction:
            yield PREDICTION, structure

    def compile(self) -> None:
        """Compile the kernel for these arguments, or read its code where another process has written it."""
        import_attribute(self.kernel).compile(self.types())

    def types(self) -> tuple:
        """The types of the arguments, as numba has them."""
        return tuple(map(_numba_type, self.arguments))

    def path(self) -> Path:
        """The file of the kernel's code for these arguments."""
        return import_attribute(self.kernel)._cache.path(self.types(), cpu_target.target_context)


@cache
def listed_kernels() -> list[ListedKernel]:
    """The kernels of `signatures.jsonl`, in its order."""
    lines = Path(__file__).with_name("signatures.jsonl").read_text(encoding="utf8").splitlines()
    return [ListedKernel(**json.loads(line)) for line in lines]


def import_attribute(name: str) -> Any:
    """Import a module of this package. RETURNS: Its kernel or class with a name, such as "kernels.hashing.insert"."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(f"..{module}", __package__), attribute)


def _numba_type(described: Described) -> Any:
    """Make a type of numba of its description."""
    if isinstance(described, list):
        name, *members = described
        named_tuple = import_attribute(name) if name else None
        return types.BaseTuple.from_types(list(map(_numba_type, members)), named_tuple)
    number, _, dimensions = described.removeprefix("readonly ").partition("[")
    dtype = getattr(types, number)
    if not dimensions:
        return dtype
    return types.Array(dtype, int(dimensions.rstrip("]")), "C", readonly=described.startswith("readonly"))


class Crew:
    """This process and those that compile kernels with it.

    jobs (int): How many processes compile at once, this one among them; 0 for one a core, but four at most.
    n_elsewhere (int): How many kernels the other processes have compiled.
    """

    def __init__(self) -> None:
        self.jobs = 0
        self.n_elsewhere = 0
        self._announced: dict[Call, int] = {}  # the calls of components, and how many cores this process may use
        self._begun: set[Call] = set()  # calls whose kernels have been compiled, or are being compiled
        self._missing: set[Path] = set()  # files of kernels that were missing when this began

    def announce(self, phase: str, structure: str, cores: int) -> None:
        """Announce that a component will be trained, or will predict. Nothing is compiled before the first kernel is called.

        phase (str): TRAINING or PREDICTION.
        structure (str): The name of the component's model.
        cores (int): How many cores this process may use.
        """
        self._announced[phase, structure] = cores

    def n_left(self) -> int:
        """Number of kernels that will be called, as far as that was announced, and that no process has compiled yet."""
        return sum(not path.exists() for path in self._missing)

    def compile_missing(self, called: Path) -> None:
        """Compile the kernels of announced calls, if there are several and this process may start others.

        called (Path): The file of the kernel that was called, and that this process will compile itself.
        """
        new_calls = self._announced.keys() - self._begun
        if not new_calls:
            return
        self._begun |= new_calls
        missing = _missing_kernels(new_calls)
        self._missing |= missing.keys()
        missing.pop(called, None)
        seconds = sum(listed.seconds for listed in missing.values())
        most_jobs = self.jobs or min(_MOST_JOBS, max(self._announced[call] for call in new_calls))
        jobs = min(most_jobs, 1 + int(seconds / _SECONDS_A_JOB))
        if jobs > 1 and _may_start_processes():
            n_here = _compile_side_by_side(list(missing.values()), jobs)
            self.n_elsewhere += sum(path.exists() for path in missing) - n_here


def _missing_kernels(calls: set[Call]) -> dict[Path, ListedKernel]:
    """The listed kernels of some calls that nobody has compiled, by the files that their code will have."""
    missing = {}
    for listed in listed_kernels():
        if calls.isdisjoint(listed.calls()):
            continue
        path = listed.path()
        if not path.exists():
            missing[path] = listed
    return missing


def _may_start_processes() -> bool:
    """Whether this process is no worker that was started beside others, and whether `sys.executable` is Python and not a program
    with Python in it."""
    is_python = Path(sys.executable or "").stem.lower().startswith("python")
    return is_python and multiprocessing.parent_process() is None


def _compile_side_by_side(kernels: list[ListedKernel], jobs: int) -> int:
    """Compile kernels in this process and others, and wait for the others. Kernels may be missing afterwards.

    jobs (int): How many processes compile, this one among them.
    RETURNS (int): How many kernels this process has compiled; 0 if a process could not be started.
    """
    n_here = 0
    slowest_first = sorted(kernels, key=lambda listed: -listed.seconds)
    # Not by PYTHONPATH: a module beside a script, such as types.py, would then take the place of one of Python's. Kernels need
    # neither SciPy nor cffi; where they are missing, numba is ready to compile in half the time
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; sys.modules.update(scipy=None, cffi=None); "
        f"from {__name__} import work; work()"
    )
    processes = []
    with TemporaryFile() as queue:
        for listed in slowest_first:
            queue.write(listed_kernels().index(listed).to_bytes(_BYTES, "big"))
        queue.flush()
        queue.seek(0)
        try:
            for _ in range(jobs - 1):
                process = subprocess.Popen([sys.executable, "-c", program], stdin=queue, stdout=DEVNULL, stderr=DEVNULL)
                processes.append(process)
            n_here = _compile_drawn(queue.fileno())
            for process in processes:
                process.wait(_MOST_SECONDS)
        except (OSError, subprocess.TimeoutExpired):  # no memory for one more process, or a process that was stopped
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
    return n_here


def _compile_drawn(queue: int) -> int:
    """Draw kernels from the queue until it is empty, and compile them.

    queue (int): File descriptor of the queue, which has numbers in the list. The processes share the place where they read, so
        that each number is read once.
    RETURNS (int): How many kernels were compiled.
    """
    n_compiled = 0
    starter = os.getppid()
    # If the process that started this one has ended, nobody waits for the kernels
    while os.getppid() == starter and (number := os.read(queue, _BYTES)):
        with suppress(Exception):  # who calls the kernel gets the error
            listed_kernels()[int.from_bytes(number, "big")].compile()
            n_compiled += 1
    return n_compiled


def work() -> None:
    """Compile kernels from the queue, which is stdin, in a process that was started to do so."""
    _compile_drawn(sys.stdin.fileno())


crew = Crew()
