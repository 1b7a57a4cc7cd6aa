"""Workers that share a long piece of work: processes of this machine, or the workers of a Ray cluster.

An executor makes, once in each worker, a function that does a task, and then sends the worker one task after the other. If a
worker dies (killed, out of memory, its machine gone), the executor replaces it and repeats its task. The main process raises
the error of a task.
"""

import os
import pickle
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Optional, Protocol, TypeVar, cast

import spacy

from .. import __version__
from ..errors import Errors, optional_package, shown

# Makes the function that does a task. The arguments of that function are the task and, unless it is None, a value that all tasks
# share. Workers get the maker by its name, so they must be able to import it.
Maker = Callable[[], Callable]
# Result of a task, or the error that it raised
Outcome = tuple[object, Optional[Exception]]

Task = TypeVar("Task")

_MOST_DEATHS = 3  # largest number of workers that may die at the same task
_READY = "ready"  # the first message of a process
_SECONDS = 120.0  # time until a cluster must have a ready worker
_SECONDS_TO_ANSWER = 10.0  # time until an address must answer; Ray itself would wait forever
# As gRPC begins
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


class Executor:
    """Base of the executors."""

    workers: int

    def staff(self, make: Maker) -> AbstractContextManager["Staff"]:
        """Start workers that keep their objects from one run to the next."""
        raise NotImplementedError

    def run(self, make: Maker, tasks: Iterable[Task]) -> Iterator[tuple[Task, Any]]:
        """Start workers, do the tasks, and end the workers. Yields tasks with their results."""
        with self.staff(make) as staff:
            yield from staff.run(tasks)


class Staff(Protocol):
    """Workers that do tasks."""

    def run(self, tasks: Iterable[Task], shared: object = None) -> Iterator[tuple[Task, Any]]:
        """Yield each task with its result as soon as it is done. If there are no more tasks than workers, the n-th task goes to
        the same worker in each run.

        shared: Second argument of the function that does a task, unless it is None.
        RAISES (ValueError): CRF780 if a task seems to kill its workers, CRF738 if processes end before they are ready.
        """
        ...


class _Worker:
    """Does tasks, in the process of a worker."""

    def __init__(self, make: Maker):
        self._make = make
        self._work: Optional[Callable] = None

    def versions(self) -> dict[str, str]:
        return _versions()

    def do(self, task: object, shared: object) -> Outcome:
        """Do a task. RETURNS (Outcome): The result, or the error, which can be sent to another process."""
        try:
            self._work = self._work or self._make()
            return (self._work(task) if shared is None else self._work(task, shared)), None
        except Exception as error:
            try:
                # Some errors can be pickled, but not read again
                pickle.loads(pickle.dumps(error))
            except Exception:  # the error can't be sent to another process
                return None, RuntimeError(f"{type(error).__name__}: {error}")
            return None, error


def _result(outcome: Outcome) -> object:
    """The result of a task. RAISES: The error of the task."""
    result, error = outcome
    if error is not None:
        raise error
    return result


def _add_death(deaths: "Counter[object]", task: object) -> None:
    """Count the death of a worker at a task. RAISES (ValueError): CRF780 if too many workers died at it."""
    deaths[task] += 1
    if deaths[task] >= _MOST_DEATHS:
        raise ValueError(Errors.CRF780.format(task=shown(task), deaths=_MOST_DEATHS))


# ------------------------------------------------------------------------------------------- processes of this machine


class Processes(Executor):
    """Executor with processes of this machine."""

    def __init__(self, workers: int):
        self.workers = workers

    @contextmanager
    def staff(self, make: Maker) -> Iterator["_ProcessStaff"]:
        """Start processes that stay for several runs."""
        staff = _ProcessStaff(make, self.workers)
        try:
            yield staff
        finally:
            for process in staff.processes.values():
                process.end()


class _ProcessStaff:
    def __init__(self, make: Maker, workers: int):
        self._make = make
        self._workers = workers
        self.processes: dict[int, _Process] = {}  # processes by their place

    def run(self, tasks: Iterable[Task], shared: object = None) -> Iterator[tuple[Task, Any]]:
        left = list(tasks)[::-1]  # the next task is the last
        deaths = Counter()
        idle = list(range(self._workers))  # places of processes without a task
        # Place and task of each process, by its connection
        busy: dict[Connection, tuple[int, Task]] = {}

        def give() -> None:
            """Give tasks to idle processes, and start those that do not run."""
            while left and idle:
                place = idle.pop(0)
                task = left.pop()
                if place not in self.processes:
                    self.processes[place] = _Process(self._make)
                busy[self.processes[place].connection] = place, task
                self.processes[place].give((task, shared))

        try:
            while left or busy:
                give()
                done = []
                for connection in cast(list[Connection], wait(list(busy))):
                    place, _ = busy[connection]
                    message = cast(Outcome, self.processes[place].receive())
                    if message == _READY:
                        continue
                    place, task = busy.pop(connection)
                    idle.append(place)
                    if message is None:  # the process has died
                        self.processes.pop(place).end()
                        _add_death(deaths, task)
                        left.append(task)
                    else:
                        done.append((task, message))
                idle.sort()
                give()
                # Results may be large: the caller has the only reference
                while done:
                    task, outcome = done.pop(0)
                    yield task, _result(outcome)
        finally:
            for place, _ in busy.values():  # nobody would receive their results
                self.processes.pop(place).kill()


class _Process:
    """A worker process. It is spawned, not forked: a fork would inherit locks of threads, which nobody would release."""

    def __init__(self, make: Maker):
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        # A daemon: the main process can end without waiting for the worker
        self._process = context.Process(target=_serve, args=(theirs, make), daemon=True)
        self._process.start()
        theirs.close()  # so that reading ends when the process does
        self._is_ready = False

    def give(self, message: tuple[object, object]) -> None:
        with suppress(OSError):  # the process is gone, which `receive` will see
            _send(self.connection, message)

    def receive(self) -> object:
        """Receive a message. RETURNS: `_READY`, an `Outcome`, or None if the process has died.

        RAISES (ValueError): CRF738 if it ends before its first message.
        """
        try:
            message = _received(self.connection)
        except (EOFError, OSError):
            message = None
        self._is_ready |= message is not None
        if not self._is_ready:
            self._process.join()
            code = self._process.exitcode
            if code is not None and code >= 0:  # the process was not killed
                raise ValueError(Errors.CRF738.format(code=code))
        return message

    def end(self) -> None:
        self.connection.close()
        self._process.join()

    def kill(self) -> None:
        self._process.terminate()
        self.end()


def _serve(connection: Connection, make: Maker) -> None:
    """Do tasks until the connection closes, because the main process closed it or died. Only the main process handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker(make)
    with suppress(EOFError, OSError):
        _send(connection, _READY)
        while True:
            _send(connection, worker.do(*_received(connection)))


def _send(connection: Connection, message: object) -> None:
    """Send a message, and its arrays without copying them: copies would be the largest objects in memory."""
    arrays: list[pickle.PickleBuffer] = []
    connection.send((pickle.dumps(message, protocol=5, buffer_callback=arrays.append), len(arrays)))
    for array in arrays:
        connection.send_bytes(array.raw())


def _received(connection: Connection) -> Any:
    """Receive a message from `_send`. Its arrays are read-only."""
    message, n_arrays = connection.recv()
    return pickle.loads(message, buffers=[connection.recv_bytes() for _ in range(n_arrays)])


# ----------------------------------------------------------------------------------------------------- a Ray cluster


class Ray(Executor):
    """Executor with the workers of a Ray cluster. Without an address, it starts a cluster on this machine.

    workers (int): Number of workers. cores (int): Number of cores of each worker.
    address (str): Address for `ray.init`: `auto`, `HOST:PORT` or `ray://HOST:PORT`.
    RAISES (ImportError): CRF781 if Ray is not installed.
    """

    def __init__(self, workers: int, address: Optional[str] = None, cores: int = 1):
        self.workers = workers
        self.address = address
        self.cores = cores
        self._ray = optional_package("ray", what="The executor 'ray'", package="Ray", install="'spacy-crf[ray]'")

    @contextmanager
    def staff(self, make: Maker) -> Iterator["_RayStaff"]:
        """Start workers that stay for several runs. RAISES (ValueError): CRF782 if the address does not answer."""
        if self._ray.is_initialized():
            yield _RayStaff(self, make)
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        local = {} if self.address else {"num_cpus": self.workers * self.cores, "include_dashboard": False}
        try:
            if self.address and ":" in self.address:
                host, port = self.address.removeprefix("ray://").rsplit(":", 1)
                with socket.create_connection((host, int(port)), _SECONDS_TO_ANSWER) as connection:
                    connection.sendall(_HELLO)
                    connection.recv(1)
            self._ray.init(self.address, log_to_driver=False, logging_level="error", **local)
        except Exception as error:  # Ray may raise anything
            raise ValueError(self.refusal(error)) from error
        try:
            yield _RayStaff(self, make)
        finally:
            self._ray.shutdown()

    def refusal(self, reason: object) -> str:
        """The message that this cluster can't be used."""
        return Errors.CRF782.format(
            where=f"at {self.address}" if self.address else "that is started on this machine", reason=reason
        )


class _RayStaff:
    def __init__(self, executor: Ray, make: Maker):
        self._executor = executor
        self._ray = executor._ray
        hire = self._ray.remote(_Worker).options(num_cpus=executor.cores).remote
        self._hire = lambda: hire(make)
        self._actors: list = []  # workers by their place
        # The place of each starting worker, by the call that returns when the worker is ready
        self._beginning: dict[object, int] = {}

    def run(self, tasks: Iterable[Task], shared: object = None) -> Iterator[tuple[Task, Any]]:
        """Run tasks, see `Executor.staff`. RAISES (ValueError): CRF782 if no worker gets ready, CRF783 if workers have other
        versions than this process, CRF739 if they can't import the function that does tasks."""
        ray = self._ray
        deaths = Counter()
        left = list(tasks)[::-1]
        # Sent to each machine once, not with each task
        shared = None if shared is None else ray.put(shared)
        while len(self._actors) < min(self._executor.workers, len(left)):
            self._replace(len(self._actors))
        # In a cluster with fewer cores, some workers never get ready: don't wait for them
        idle = sorted({*range(len(self._actors))} - {*self._beginning.values()})
        running: dict[object, tuple[int, Any]] = {}

        def give() -> None:
            """Give tasks to idle workers."""
            while left and idle:
                place = idle.pop(0)
                task = left.pop()
                running[self._actors[place].do.remote(task, shared)] = place, task

        while left or running:
            give()
            waits = [*running, *(self._beginning if left else ())]
            [*ready], _ = ray.wait(waits, timeout=None if running else _SECONDS)
            if not ready:
                raise ValueError(self._executor.refusal("no worker got ready in time"))
            [reference] = ready
            is_task = reference in running
            task: Any = "its beginning"
            if is_task:
                place, task = running.pop(reference)
            else:
                place = self._beginning.pop(reference)
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                if error.actor_init_failed:
                    raise ValueError(Errors.CRF739.format(reason=str(error).splitlines()[-1])) from error
                _add_death(deaths, task)
                left += [task] if is_task else []
                self._replace(place)
                continue
            idle.append(place)
            if is_task:
                give()
                yield task, _result(answer)
            else:
                check_versions(answer)

    def _replace(self, place: int) -> None:
        """Start a worker at a place, the first or in place of a worker that died."""
        self._actors[place:] = [self._hire(), *self._actors[place + 1 :]]
        self._beginning[self._actors[place].versions.remote()] = place


def _versions() -> dict[str, str]:
    return {"spacy_crf": __version__, "spacy": spacy.__version__}


def check_versions(theirs: dict[str, str]) -> None:
    """Compare the versions of a worker with those of this process. RAISES (ValueError): CRF783 if they differ."""
    for package, ours in _versions().items():
        if theirs.get(package) != ours:
            raise ValueError(Errors.CRF783.format(package=package, ours=ours, theirs=theirs.get(package)))
