"""Who does the tasks of a long piece of work: processes of this machine, or the workers of a Ray cluster.

An executor makes, once in each of its workers, what does a task, and gives it one task after the other. A worker that dies –
killed, out of memory, its machine gone – is replaced, and its task done again. What a task raises is raised here.
"""

import os
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Optional, Protocol, TypeVar

import spacy

from .. import __version__
from ..errors import Errors, shown

Task = TypeVar("Task", bound=Hashable)
# Makes what does a task. It is sent to the workers by its name, so these have to be able to import it.
Maker = Callable[[], Callable[[Task], Any]]

_MOST_DEATHS = 3  # of workers at the same task
_SECONDS = 120.0  # until a cluster has a worker ready
_SECONDS_TO_ANSWER = 10.0  # until somebody is there at all; Ray itself would wait without an end


class Executor(Protocol):
    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """The tasks with what came of them, as they get ready.

        RAISES (ValueError): CRF780 if a task seems to kill whoever does it.
        """
        ...


class _Deaths:
    """Of workers, by the task that they were at."""

    def __init__(self) -> None:
        self._at: Counter[Any] = Counter()

    def add(self, task: Any) -> None:
        """RAISES (ValueError): CRF780."""
        self._at[task] += 1
        if self._at[task] >= _MOST_DEATHS:
            raise ValueError(Errors.CRF780.format(task=shown(task), deaths=_MOST_DEATHS))


class _Answer(NamedTuple):
    result: Any
    error: Optional[BaseException] = None

    def get(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


# ------------------------------------------------------------------------------------------- processes of this machine


class Processes:
    """workers (int): How many."""

    def __init__(self, workers: int):
        self.workers = workers

    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """As every `Executor`."""
        left, deaths = list(tasks)[::-1], _Deaths()
        staff: dict[Connection, _Process] = {}
        try:
            while left or staff:
                while left and len(staff) < self.workers:
                    process = _Process(make)
                    staff[process.connection] = process
                    process.give(left.pop())
                for connection in wait(list(staff)):
                    process = staff[connection]
                    task, answer = process.task, process.answer()
                    if answer is None:
                        deaths.add(task)
                        left.append(task)
                    if answer is None or not left:
                        staff.pop(connection).end()
                    else:
                        process.give(left.pop())
                    if answer is not None:
                        yield task, answer.get()
        finally:
            for process in staff.values():
                process.kill()


class _Process:
    """It is started anew rather than forked: who forks may have threads, whose locks nobody would release.

    task: The one that it is at.
    """

    def __init__(self, make: Maker):
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make))
        self._process.start()
        theirs.close()  # so that reading ends when the process does
        self.task: Any = None

    def give(self, task: Any) -> None:
        self.task = task
        with suppress(OSError):  # that it is gone is seen when it shall answer
            self.connection.send(task)

    def answer(self) -> Optional[_Answer]:
        """None if it is gone."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def end(self) -> None:
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        self._process.terminate()
        self.end()


def _serve(connection: Connection, make: Maker) -> None:
    """What a process does until its connection is closed, by us or because we are gone. It leaves Ctrl-C to us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work = None
    with suppress(EOFError, OSError):
        while True:
            task = connection.recv()
            try:
                work = work or make()
                answer = _Answer(work(task))
            except Exception as error:
                answer = _Answer(None, _portable(error))
            connection.send(answer)


def _portable(error: Exception) -> Exception:
    """As it can be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


# ----------------------------------------------------------------------------------------------------- a Ray cluster


class Ray:
    """The workers of a cluster; of one on this machine, started for the purpose, if there is no address.

    workers (int): How many, each on a core of its own.
    address (str): As `ray.init` takes it: `auto`, `HOST:PORT` or `ray://HOST:PORT`.
    RAISES (ImportError): CRF781 if Ray is not installed.
    """

    def __init__(self, workers: int, address: Optional[str] = None):
        try:
            import ray
        except ImportError as error:
            raise ImportError(Errors.CRF781.format(reason=error)) from None
        self.workers, self.address, self._ray = workers, address, ray

    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """As every `Executor`.

        RAISES (ValueError): CRF782 if nobody answers at the address, or no worker gets ready. CRF783 if workers have other
            versions than we.
        """
        ray, deaths, left = self._ray, _Deaths(), list(tasks)[::-1]
        running: dict[Any, tuple[Any, Any]] = {}
        with self._connected():
            hire = ray.remote(_Actor).options(num_cpus=1).remote
            # Some may never get ready, in a cluster with fewer cores: nobody waits for them
            staff = [hire(make) for _ in range(min(self.workers, len(left)))]
            beginning = {actor.versions.remote(): actor for actor in staff}
            while left or running:
                [*ready], _ = ray.wait([*running, *(beginning if left else ())], timeout=None if running else _SECONDS)
                if not ready:
                    raise ValueError(Errors.CRF782.format(address=self.address, reason="no worker got ready in time"))
                [reference] = ready
                actor, task = running.pop(reference, None) or (beginning.pop(reference), None)
                done = None
                try:
                    answer = ray.get(reference)
                except ray.exceptions.RayActorError:
                    deaths.add("its beginning" if task is None else task)
                    left += [] if task is None else [task]
                    actor = hire(make)
                    beginning[actor.versions.remote()] = actor
                    continue
                if task is None:
                    check_versions(answer)
                else:
                    done = task, answer.get()
                if left:
                    task = left.pop()
                    running[actor.do.remote(task)] = actor, task
                if done is not None:
                    yield done

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self._ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = {} if self.address else {"num_cpus": self.workers, "include_dashboard": False}
        try:
            if self.address and ":" in self.address:
                host, port = self.address.removeprefix("ray://").rsplit(":", 1)
                socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER).close()
            self._ray.init(self.address, log_to_driver=False, logging_level="error", **local)
        except Exception as error:  # whatever Ray raises
            raise ValueError(Errors.CRF782.format(address=self.address, reason=error)) from error
        try:
            yield
        finally:
            self._ray.shutdown()


class _Actor:
    """A worker of a cluster."""

    def __init__(self, make: Maker):
        self._make = make
        self._work: Any = None

    def versions(self) -> dict[str, str]:
        return _versions()

    def do(self, task: Any) -> _Answer:
        try:
            self._work = self._work or self._make()
            return _Answer(self._work(task))
        except Exception as error:
            return _Answer(None, _portable(error))


def _versions() -> dict[str, str]:
    return {"spacy_crf": __version__, "spacy": spacy.__version__}


def check_versions(theirs: dict[str, str]) -> None:
    """RAISES (ValueError): CRF783."""
    for package, ours in _versions().items():
        if theirs.get(package) != ours:
            raise ValueError(Errors.CRF783.format(package=package, ours=ours, theirs=theirs.get(package)))
