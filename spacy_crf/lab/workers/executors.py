"""Who does the tasks of a long piece of work: processes of this machine, or the workers of a Ray cluster.

An executor makes, once in each of its workers, what does a task, and gives it one task after the other. A worker that dies –
killed, out of memory, its machine gone – is replaced, and its task done again. What a task raises is raised here.
"""

import itertools
import os
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple, Optional, Protocol, TypeVar

import spacy

from ... import __version__
from ...errors import Errors, shown

Task = TypeVar("Task", bound=Hashable)
# Makes what does a task. It is sent to the workers by its name, so these have to be able to import it.
Maker = Callable[[], Callable[[Task], Any]]

_MOST_DEATHS = 3  # of workers at the same task
_BEGUN = "begun"  # what a process says first
_SECONDS = 120.0  # until a cluster has a worker ready
_SECONDS_TO_ANSWER = 10.0  # until somebody is there at all; Ray itself would wait without an end
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # as gRPC begins


class Staff(Protocol):
    """Workers that stay from one run to the next, with what they have made."""

    def run(self, tasks: Iterable[Task], told: Any = None) -> Iterator[tuple[Task, Any]]:
        """The tasks with what came of them, as they get ready. As long as there are no more tasks than workers, those of a
        place among them go to the same worker, run by run.

        told: What all tasks are told, if it is not None: the second argument of what does them.
        RAISES (ValueError): CRF780 if a task seems to kill whoever does it, CRF738 if processes end before they begin.
        """
        ...


class Executor(Protocol):
    workers: int

    def staff(self, make: Maker) -> AbstractContextManager[Staff]: ...

    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """A single run of a staff."""
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

    @contextmanager
    def staff(self, make: Maker) -> Iterator[Staff]:
        """As every `Executor`."""
        staff = _ProcessStaff(make, self.workers)
        try:
            yield staff
        finally:
            staff.end()

    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """As every `Executor`."""
        with self.staff(make) as staff:
            yield from staff.run(tasks)


class _ProcessStaff:
    def __init__(self, make: Maker, workers: int):
        self._make, self._workers = make, workers
        self._idle: list[_Process] = []

    def run(self, tasks: Iterable[Task], told: Any = None) -> Iterator[tuple[Task, Any]]:
        left, deaths = list(tasks)[::-1], _Deaths()
        busy: dict[Connection, _Process] = {}

        def give() -> None:
            while left and len(busy) < self._workers:
                process = self._idle.pop(0) if self._idle else self._hire(busy.values())
                busy[process.connection] = process
                process.give(left.pop(), told)

        try:
            while left or busy:
                give()
                done = self._heard(busy, left, deaths)
                give()
                while done:  # of what is large, who asks for it has the only one
                    yield done[0][0], done.pop(0)[1].get()
        finally:
            for process in busy.values():  # nobody would hear their answers
                process.kill()

    def _heard(self, busy: dict[Connection, "_Process"], left: list[Any], deaths: _Deaths) -> list[tuple[Any, _Answer]]:
        """What those say who are the next to say something."""
        done = []
        for connection in wait(list(busy)):
            said = busy[connection].hear()
            if said == _BEGUN:
                continue
            process = busy.pop(connection)
            if said is None:
                process.end()
                deaths.add(process.task)
                left.append(process.task)
            else:
                self._idle.append(process)
                done.append((process.task, said))
        self._idle.sort(key=lambda process: process.number)
        return done

    def _hire(self, others: Iterable["_Process"]) -> "_Process":
        taken = {process.number for process in (*others, *self._idle)}
        return _Process(self._make, next(n for n in itertools.count() if n not in taken))

    def end(self) -> None:
        for process in self._idle:
            process.end()


class _Process:
    """It is started anew rather than forked: who forks may have threads, whose locks nobody would release.

    number (int): Its place among the workers. task: The one that it is at.
    """

    def __init__(self, make: Maker, number: int):
        self.number = number
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        # A daemon: it is not waited for where our own process ends before its staff was sent home
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()  # so that reading ends when the process does
        self._has_begun = False
        self.task: Any = None

    def give(self, task: Any, told: Any) -> None:
        self.task = task
        with suppress(OSError):  # that it is gone is seen when it shall answer
            _send(self.connection, (task, told))

    def hear(self) -> Any:
        """That it has begun, an `_Answer`, or None if it is gone. RAISES (ValueError): CRF738."""
        try:
            said = _received(self.connection)
        except (EOFError, OSError):
            said = None
        self._has_begun |= said is not None
        if not self._has_begun:
            self._process.join()
            if self._process.exitcode >= 0:  # nobody has killed it
                raise ValueError(Errors.CRF738.format(code=self._process.exitcode))
        return said

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
        _send(connection, _BEGUN)
        while True:
            task, told = _received(connection)
            try:
                work = work or make()
                answer = _Answer(_done(work, task, told))
            except Exception as error:
                answer = _Answer(None, _portable(error))
            _send(connection, answer)


def _send(connection: Connection, said: Any) -> None:
    """Its arrays as they are: copies would be the largest thing there."""
    arrays: list[pickle.PickleBuffer] = []
    connection.send((pickle.dumps(said, protocol=5, buffer_callback=arrays.append), len(arrays)))
    for array in arrays:
        connection.send_bytes(array.raw())


def _received(connection: Connection) -> Any:
    """What `_send` was given; its arrays can only be read."""
    said, n_arrays = connection.recv()
    return pickle.loads(said, buffers=[connection.recv_bytes() for _ in range(n_arrays)])


def _done(work: Callable, task: Any, told: Any) -> Any:
    return work(task) if told is None else work(task, told)


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

    workers (int): How many. cores (int): That each of them has for itself.
    address (str): As `ray.init` takes it: `auto`, `HOST:PORT` or `ray://HOST:PORT`.
    RAISES (ImportError): CRF781 if Ray is not installed.
    """

    def __init__(self, workers: int, address: Optional[str] = None, cores: int = 1):
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                Errors.CRF781.format(what="The executor 'ray'", package="Ray", reason=error, install="'spacy-crf[ray]'")
            ) from None
        self.workers, self.address, self.cores, self._ray = workers, address, cores, ray

    @contextmanager
    def staff(self, make: Maker) -> Iterator[Staff]:
        """As every `Executor`. RAISES (ValueError): CRF782 if nobody answers at the address."""
        with self._connected():
            yield _RayStaff(self, make)

    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """As every `Executor`."""
        with self.staff(make) as staff:
            yield from staff.run(tasks)

    def unusable(self, reason: Any) -> str:
        """What to raise then."""
        where = f"at {self.address}" if self.address else "that is started on this machine"
        return Errors.CRF782.format(where=where, reason=reason)

    @contextmanager
    def _connected(self) -> Iterator[None]:
        if self._ray.is_initialized():
            yield
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = {} if self.address else {"num_cpus": self.workers * self.cores, "include_dashboard": False}
        try:
            if self.address and ":" in self.address:
                _check_answer(*self.address.removeprefix("ray://").rsplit(":", 1))
            self._ray.init(self.address, log_to_driver=False, logging_level="error", **local)
        except Exception as error:  # whatever Ray raises
            raise ValueError(self.unusable(error)) from error
        try:
            yield
        finally:
            self._ray.shutdown()


def _check_answer(host: str, port: str) -> None:
    """RAISES (OSError): If nobody is there, or says nothing."""
    with socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER) as connection:
        connection.sendall(_HELLO)
        connection.recv(1)


class _RayStaff:
    """ray: The module."""

    def __init__(self, of: Ray, make: Maker):
        self._of, self._ray = of, of._ray
        hire = self._ray.remote(_Actor).options(num_cpus=of.cores).remote
        self._hire = lambda: hire(make)
        self._actors: list[Any] = []  # by their place
        self._beginning: dict[Any, int] = {}  # what tells that the worker of a place is ready

    def run(self, tasks: Iterable[Task], told: Any = None) -> Iterator[tuple[Task, Any]]:
        """RAISES (ValueError): CRF782 if no worker gets ready, CRF783 if workers have other versions than we, CRF739 if they
        can't import what they are to do."""
        ray, deaths, left = self._ray, _Deaths(), list(tasks)[::-1]
        told = None if told is None else ray.put(told)  # once for each machine
        while len(self._actors) < min(self._of.workers, len(left)):
            self._replace(len(self._actors))
        # Some may never get ready, in a cluster with fewer cores: nobody waits for them
        idle = sorted({*range(len(self._actors))} - {*self._beginning.values()})
        running: dict[Any, tuple[int, Any]] = {}

        def give() -> None:
            while left and idle:
                place, task = idle.pop(0), left.pop()
                running[self._actors[place].do.remote(task, told)] = place, task

        while left or running:
            give()
            waits = [*running, *(self._beginning if left else ())]
            [*ready], _ = ray.wait(waits, timeout=None if running else _SECONDS)
            if not ready:
                raise ValueError(self._of.unusable("no worker got ready in time"))
            [reference] = ready
            is_task = reference in running
            place, task = running.pop(reference) if is_task else (self._beginning.pop(reference), "its beginning")
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                if error.actor_init_failed:
                    raise ValueError(Errors.CRF739.format(reason=str(error).splitlines()[-1])) from error
                deaths.add(task)
                left += [task] if is_task else []
                self._replace(place)
                continue
            idle.append(place)
            if not is_task:
                check_versions(answer)
                continue
            give()
            yield task, answer.get()

    def _replace(self, place: int) -> None:
        self._actors[place:] = [self._hire(), *self._actors[place + 1 :]]
        self._beginning[self._actors[place].versions.remote()] = place


class _Actor:
    """A worker of a cluster."""

    def __init__(self, make: Maker):
        self._make = make
        self._work: Any = None

    def versions(self) -> dict[str, str]:
        return _versions()

    def do(self, task: Any, told: Any) -> _Answer:
        try:
            self._work = self._work or self._make()
            return _Answer(_done(self._work, task, told))
        except Exception as error:
            return _Answer(None, _portable(error))


def _versions() -> dict[str, str]:
    return {"spacy_crf": __version__, "spacy": spacy.__version__}


def check_versions(theirs: dict[str, str]) -> None:
    """RAISES (ValueError): CRF783."""
    for package, ours in _versions().items():
        if theirs.get(package) != ours:
            raise ValueError(Errors.CRF783.format(package=package, ours=ours, theirs=theirs.get(package)))
