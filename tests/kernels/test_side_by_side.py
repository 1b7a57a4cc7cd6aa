"""Kernels that several processes compile side by side."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from spacy_crf.kernels import compiling as module
from spacy_crf.kernels.compiling import PREDICTION, TRAINING, Crew, ListedKernel
from tests.test_configs import ROOT

pytestmark = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
CALLED = Path("the kernel that was called")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where kernels write their code; there are ten, and each takes a second to compile."""
    kernels = [ListedKernel(f"kernel {n}", 1.0, ["chain"], ["chain"] if n < 5 else [], []) for n in range(10)]
    monkeypatch.setattr(module, "listed_kernels", lambda: kernels)
    monkeypatch.setattr(ListedKernel, "path", lambda listed: tmp_path / listed.kernel)
    monkeypatch.setattr(ListedKernel, "compile", lambda listed: listed.path().touch())
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """The numbers of jobs of each time that processes would be started."""
    started = []

    def start(kernels, jobs):
        started.append((len(kernels), jobs))
        return 0

    monkeypatch.setattr(module, "_compile_side_by_side", start)
    return started


def compile_missing(*calls, jobs=0, called=CALLED):
    crew = Crew()
    crew.jobs = jobs
    for phase, structure, cores in calls:
        crew.announce(phase, structure, cores)
    crew.compile_missing(called)
    return crew


@pytest.mark.parametrize(
    ("call", "jobs", "expected"),
    [
        ((TRAINING, "chain", 8), 0, [(10, 4)]),  # four processes by default, at most
        ((TRAINING, "chain", 2), 0, [(10, 2)]),
        ((TRAINING, "chain", 1), 0, []),
        ((TRAINING, "chain", 8), 1, []),
        ((TRAINING, "chain", 2), 9, [(10, 6)]),  # more would wait for the others to start
        ((PREDICTION, "chain", 8), 0, [(5, 3)]),
        ((PREDICTION, "another", 8), 0, []),
    ],
)
def test_there_are_as_many_processes_as_cores_and_work(folder, started, call, jobs, expected):
    compile_missing(call, jobs=jobs)
    assert started == expected


def test_what_is_compiled_or_will_be_is_left_out(folder, started):
    (folder / "kernel 0").touch()
    crew = compile_missing((TRAINING, "chain", 2), called=folder / "kernel 1")
    assert started == [(8, 2)] and crew.n_left() == 9
    crew.compile_missing(CALLED)  # as each further kernel does that is missing
    crew.announce(TRAINING, "chain", 2)
    crew.compile_missing(CALLED)
    assert len(started) == 1
    crew.announce(PREDICTION, "chain", 2)
    crew.compile_missing(CALLED)
    assert started[1:] == [(4, 2)]


def test_nothing_is_announced_nothing_started(folder, started):
    assert compile_missing().n_left() == 0 and not started


def test_workers_start_no_processes(folder, started, monkeypatch):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: "the process that has workers for each core")
    assert compile_missing((TRAINING, "chain", 8)).n_left() == 10 and not started


@pytest.mark.parametrize("executable", ["/usr/bin/uwsgi", "C:/app/app.exe", "", None])
def test_programs_with_python_in_them_are_not_started_again(folder, started, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    compile_missing((TRAINING, "chain", 8))
    assert not started


def run_instead(monkeypatch, code):
    """Let the processes run other code. RETURNS (list): The processes that are started."""
    processes, start = [], subprocess.Popen

    def run(command, **options):
        processes.append(start([*command[:-1], code], **options))
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", run)
    return processes


@pytest.mark.parametrize(
    "code",
    [
        "raise ImportError",
        "import os; os.read(0, 2); os.kill(os.getpid(), 9)",  # killed while it compiles
        "import os; os.read(0, 2); os.kill(os.getpid(), 19)" if hasattr(signal, "SIGSTOP") else "",
    ],
)
def test_nobody_waits_for_processes_that_ended(folder, monkeypatch, code):
    processes = run_instead(monkeypatch, code)
    monkeypatch.setattr(module, "_MOST_SECONDS", 1.0)
    crew = compile_missing((TRAINING, "chain", 3))
    assert len(processes) == 2
    assert all(process.returncode is not None for process in processes)  # nor are they left behind
    assert crew.n_left() <= 2 and crew.n_elsewhere == 0


def test_where_no_process_can_be_started_all_is_left_to_this_one(folder, monkeypatch):
    def refuse(*arguments, **options):
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert compile_missing((TRAINING, "chain", 3)).n_left() == 10


def test_an_interrupt_ends_the_processes(folder, monkeypatch):
    def interrupt(listed):
        raise KeyboardInterrupt

    monkeypatch.setattr(ListedKernel, "compile", interrupt)
    processes = run_instead(monkeypatch, "import time; time.sleep(1000)")
    with pytest.raises(KeyboardInterrupt):
        compile_missing((TRAINING, "chain", 2))
    assert [process.returncode is not None for process in processes] == [True]


def test_a_kernel_that_does_not_compile_is_left_to_its_caller(folder, monkeypatch):
    def fail(listed):
        raise TypeError("of numba")

    monkeypatch.setattr(ListedKernel, "compile", fail)
    run_instead(monkeypatch, "")
    assert compile_missing((TRAINING, "chain", 2)).n_left() == 10


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked")
def test_a_process_stops_when_its_starter_was_killed(folder, monkeypatch):
    starters = iter([1, 1, 1, 2, 2])
    monkeypatch.setattr(os, "getppid", lambda: next(starters))
    with (folder / "queue").open("w+b") as queue:
        queue.write(bytes([0, 0, 0, 1, 0, 2, 0, 3]))
        queue.seek(0)
        assert module._compile_drawn(queue.fileno()) == 2


# Arguments: how many cores there are, and whether the first process leaves the queue to the other one
SIDE_BY_SIDE = """
import sys
from spacy_crf.kernels import compiling
from spacy_crf.kernels.announcing import announcer
from spacy_crf.kernels.compiling import crew, import_attribute

listed = compiling.listed_kernels()[:3]
compiling.listed_kernels = lambda: listed
compiling._SECONDS_A_JOB = 0.1
if sys.argv[2] == "leaves":
    compiling._compile_drawn = lambda queue: 0
for kernel in listed:
    for phase, structure in kernel.calls():
        crew.announce(phase, structure, int(sys.argv[1]))
for kernel in listed:
    kernel.compile()
n_read = sum(sum(kernel.stats.cache_hits.values()) for kernel in {import_attribute(kernel.kernel) for kernel in listed})
print(announcer.compiled, crew.n_elsewhere, n_read, crew.n_left())
"""


def program(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", SIDE_BY_SIDE, *arguments],
        cwd=ROOT,
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_process_reads_what_another_has_compiled(tmp_path):
    assert program(tmp_path, "2", "leaves").communicate()[0].split() == ["1", "2", "2", "0"]
    assert program(tmp_path, "2", "draws").communicate()[0].split() == ["0", "0", "3", "0"]


def test_programs_compile_the_same_kernels_at_once(tmp_path):
    programs = [program(tmp_path, "2", "draws") for _ in range(2)]
    for started in programs:
        n_compiled, _, n_read, n_left = map(int, started.communicate()[0].split())
        assert (n_compiled + n_read, n_left) == (3, 0)
