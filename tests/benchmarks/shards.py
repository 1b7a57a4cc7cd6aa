"""Training on shards against one process with as many threads, and what it costs by the size of the problem:
``python -m tests.benchmarks.shards``.

Each side is a process of its own, initialized by `configs/crf_ner_large.cfg`; then they take turns at a pass over the corpus.
"""

import os
import statistics
import tempfile
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import typer
from spacy.training.initialize import init_nlp
from spacy.util import load_config

from spacy_crf.workers.executors import Processes

from .data import ROOT, read_sentences, save_docbin
from .measure import show


def main(
    name: str = typer.Option("german_ler", help="Data set with entities."),
    limit: int = typer.Option(0, help="Most sentences of training data; 0 for all."),
    copies: int = typer.Option(1, help="How often the corpus is taken."),
    shards: int = typer.Option(2, help="How many."),
    workers: int = typer.Option(2, help="Processes on one side, threads on the other."),
    repeats: int = typer.Option(7, help="Passes of each side; the median counts."),
    alone: bool = typer.Option(False, help="Only the shards, where a whole corpus would not fit."),
) -> None:
    """Both sides: seconds a pass and memory. Then the model of the costs that docs/training.md gives."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPACY_CRF_THREADS"] = str(workers)
        sentences = read_sentences(name, "train", limit=limit or None)
        (Path(folder) / "train").mkdir()
        for copy in range(copies):
            save_docbin(Path(folder) / "train" / f"{copy:03}.spacy", sentences)
        del sentences
        sides = {"shards": Side(folder, {"n": shards, "workers": workers, "path": f"{folder}/shards"})}
        if not alone:
            sides["one process"] = Side(folder, None)
        for _ in range(repeats):
            for side in sides.values():
                side.do_pass()
        rows = [side.row(title) for title, side in sides.items()]
        for side in sides.values():
            side.end()
    header = (
        "side",
        "tokens",
        "tags",
        "variables",
        "start-up, s",
        "s a pass",
        "MB of the main process",
        "MB of workers",
    )
    show(f"{name} × {copies}: {shards} shards, {workers} workers against {workers} threads", header, rows)
    show("A pass of which nothing is computed", ("variables", "workers", "s"), _reductions(workers))


class Side:
    """A process that is initialized, and evaluates the objective when it is told to."""

    def __init__(self, folder: str, shards: Any):
        self._connection, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_serve, args=(theirs, folder, shards))
        self._process.start()
        self._started = self._connection.recv()
        self._seconds: list[float] = []
        self._connection.send(None)
        self._connection.recv()  # the first pass loads what the others have

    def do_pass(self) -> None:
        self._connection.send(None)
        seconds, self._memory = self._connection.recv()
        self._seconds.append(seconds)

    def row(self, title: str) -> tuple:
        *problem, seconds = self._started
        own, *of_workers = self._memory
        return title, *problem, seconds, statistics.median(self._seconds), own, sum(of_workers)

    def end(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(connection: Connection, folder: str, shards: Any) -> None:
    start = time.perf_counter()
    config = load_config(ROOT / "configs" / "crf_ner_large.cfg", overrides={"paths.train": f"{folder}/train"})
    config["paths"]["dev"] = f"{folder}/train"
    if shards is not None:
        block = {"@misc": "spacy_crf.shards.v1", **shards}
        config["initialize"]["components"]["crf_ner"]["shards"] = block
    nlp = init_nlp(config)
    pipe = nlp.get_pipe("crf_ner")
    corpus = pipe.training.corpus
    weights = np.random.default_rng(0).normal(size=len(corpus.objective.weights())) / 10
    connection.send((corpus.n_tokens, pipe.decoding.n_states, len(weights), time.perf_counter() - start))
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        start = time.perf_counter()
        corpus.objective.evaluate(weights)
        connection.send((time.perf_counter() - start, [_peak("self"), *map(_share, _children())]))


def _peak(pid: str) -> int:
    """MB that a process had at most."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def _share(pid: str) -> int:
    """MB of a process, of what it shares with others its part."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("Pss:")]
    return int(line.split()[1]) // 1024


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


# --------------------------------------------------------------------------------------------------- costs of asking


def _reductions(workers: int) -> list[tuple]:
    """What it takes to send weights to all workers, and to add up what comes back."""
    rows = []
    with Processes(workers).staff(_Echo) as staff:
        for size in (1_000_000, 5_000_000):
            weights, seconds = np.ones(size), []
            for _ in range(6):
                start = time.perf_counter()
                total = np.zeros(size)
                for _, found in staff.run(range(workers), weights):
                    total += found
                seconds.append(time.perf_counter() - start)
            rows.append((size, workers, statistics.median(seconds[1:])))
    return rows


class _Echo:
    def __call__(self, task: int, weights: Any) -> Any:
        return weights


if __name__ == "__main__":
    typer.run(main)
