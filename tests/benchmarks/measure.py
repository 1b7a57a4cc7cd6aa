"""Fair measurements: tasks side by side in one run, peak memory in processes of their own, scores, and the table."""

import csv
import gc
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Optional

import spacy_crf

Tags = Sequence[Sequence[str]]
RECORD = (
    "SPACY_CRF_RECORD"  # environment variable: a file, such as history.csv here, to which `show` appends all figures
)


def side_by_side(
    *tasks: Callable[[], Any],
    repeats: int = 5,
    warm_up: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median seconds of each task. The tasks take turns, so that a busy minute of the machine hits all of them.

    warm_up (bool): Whether to run each task once before it counts.
    clock (Callable[[], float]): `time.process_time` where others use the machine too.
    """
    if warm_up:
        for task in tasks:
            task()
    seconds: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeats):
        for task, times in zip(tasks, seconds):
            gc.collect()  # or one task pays for what all of them left behind, turn after turn the same one
            start = clock()
            task()
            times.append(clock() - start)
    return [statistics.median(times) for times in seconds]


# Arithmetic on vectors that stay in the caches of the core, and words that don't: what other programs do
_BUSY = """
import numpy
numbers, words = numpy.random.default_rng(0).random((2, 1 << 13)), {}
while True:
    numpy.exp(numbers, out=numbers)
    numbers %= 1.0
    for n in range(2000):
        words[f"{n * 7919 % 400_000}"] = n
"""


@contextmanager
def busy_siblings() -> Iterator[None]:
    """Keep every core but one busy with other work, as on a host that several people share.

    Two of the cores that a virtual machine shows are often two threads of one real core, which share its units and its caches.
    """
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range((os.cpu_count() or 1) - 1)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def machine() -> str:
    """The processor and how many cores there are, so that figures of different hosts are not taken for one series."""
    info, name = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
    if info.is_file():
        told = dict(map(str.strip, line.split(":", 1)) for line in info.read_text().splitlines() if ":" in line)
        numbers = [f"{key} {told[key]}" for key in ("cpu family", "model") if key in told]
        name = ", ".join([told.get("model name", name), *numbers])
    return f"{name}; {os.cpu_count()} cores"


class Training(NamedTuple):
    """One optimisation with L-BFGS."""

    features: int  # weights, as CRFsuite counts them
    iterations: int
    objective: float  # at the end, with its regularizer
    seconds: float  # from the first pass to the last
    seconds_per_pass: float  # median; with what the optimizer does between two passes
    passes: int  # evaluations of objective and gradient
    objective_at_zero: Optional[float] = None  # CRFsuite does not tell


class Result(NamedTuple):
    """One tagger on one data set."""

    f1: Optional[float]  # of entities, percent; None for a set of plain tags
    accuracy: float  # of tokens, percent
    train_seconds: float  # from Docs to the saved model
    tokens_per_second: float  # from Docs to tags
    model_mb: float
    peak_mb: float  # of the process that trained, with its imports
    training: Training
    spans: Optional[tuple] = None  # see `ours.SpansF1`


class Measured(NamedTuple):
    result: Any
    seconds: float
    peak_mb: float


def in_own_process(function: Callable, *args: Any) -> Measured:
    """Call a module-level function in a fresh interpreter: its result, wall time without start-up, and peak memory."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(_measured, function, args).result()


def _measured(function: Callable, args: tuple) -> Measured:
    start = time.perf_counter()
    result = function(*args)
    return Measured(result, time.perf_counter() - start, peak_mb())


def peak_mb() -> float:
    """The most memory that this process has had."""
    # Linux carries ru_maxrss over from the parent through fork and exec; VmHWM belongs to this process alone.
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def memory_mb() -> float:
    """What this process has in memory now (on Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def entity_f1(gold: Tags, predicted: Tags) -> float:
    """Percent, micro average over entities, as conlleval counts them."""
    from seqeval.metrics import f1_score  # not above: a process whose memory is measured may have no use for it

    return 100 * float(f1_score([list(tags) for tags in gold], [list(tags) for tags in predicted]))


def whole_texts(gold: Tags, predicted: Tags) -> float:
    """Percent of texts in which exactly the gold entities are found."""
    from seqeval.metrics.sequence_labeling import get_entities

    are_right = [get_entities(list(g)) == get_entities(list(p)) for g, p in zip(gold, predicted, strict=True)]
    return 100 * statistics.mean(are_right)


def token_accuracy(gold: Tags, predicted: Tags) -> float:
    """Percent of tokens with the right tag."""
    pairs = [(g, p) for one, other in zip(gold, predicted, strict=True) for g, p in zip(one, other, strict=True)]
    return 100 * sum(g == p for g, p in pairs) / len(pairs)


def size_mb(path: Path) -> float:
    """Megabytes (10^6 bytes) of a file or of everything below a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files) / 1e6


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[Optional[object]]], *, note: str = "") -> None:
    """Print a table: the first column names the row, the others are right-aligned; small floats get more digits. The machine
    stands below it."""
    from rich.console import Console
    from rich.table import Table

    if os.environ.get(RECORD):
        _record(Path(os.environ[RECORD]), header, rows)
    caption = f"{note} {machine()}.".strip()
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for position, name in enumerate(header):
        table.add_column(name, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*[_cell(value) for value in row])
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _record(path: Path, header: Sequence[str], rows: Sequence[Sequence[Optional[object]]]) -> None:
    """Append a line for each number: version, date, benchmark, row and column, figure, unit, and machine.

    The unit is in the next column without a name, or behind a comma in the name of the number's own."""
    start = [spacy_crf.__version__, date.today().isoformat(), Path(sys.argv[0]).stem]
    with path.open("a", encoding="utf8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for row in rows:
            for n, value in enumerate(row):
                if n and isinstance(value, (int, float)):
                    what, comma, unit = header[n].rpartition(", ")
                    units = [cell for name, cell in zip(header[n + 1 :], row[n + 1 :]) if not name]
                    if units or not comma:
                        what, unit = header[n], units[0] if units else ""
                    writer.writerow([*start, f"{row[0]}, {what}".strip(", "), f"{value:.6g}", unit, machine()])


def _cell(value: Optional[object]) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        digits = 4 if abs(value) < 0.1 else 3 if abs(value) < 1 else 2
        return f"{value:,.{digits}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
