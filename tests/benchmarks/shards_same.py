"""Whether training on shards finds bitwise the same weights, whoever works and whoever is killed:
``python -m tests.benchmarks.shards_same``.

Each row is ``python -m spacy crf train`` in a process of its own, 30 iterations of L-BFGS.
"""

import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import numpy as np
import typer

from tests.train_command import after, train, weights, worker_after

from .data import read_sentences, save_docbin
from .measure import show


def main(
    name: str = typer.Option("german_ler", help="Data set with entities."),
    limit: int = typer.Option(300, help="Sentences of training data."),
    shards: int = typer.Option(5, help="How many."),
    seed: int = typer.Option(0, help="Of the moments at which processes are killed."),
    ray: bool = typer.Option(find_spec("ray") is not None, help="Whether workers of a Ray cluster train, too."),
) -> None:
    """1, 2 and 4 workers; one that is killed; the main process killed, and the same command given again."""
    random = np.random.default_rng(seed)
    rows, found = [], set()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_docbin(folder / "train.spacy", read_sentences(name, "train", limit=limit))

        def add(title: str, workers: int, kill: str = "", *options: str) -> float:
            output, start = folder / str(len(rows)), time.perf_counter()
            given = ["--shards", str(shards), "--workers", str(workers), *options]
            killed: list[int] = []
            if kill == "worker":
                moment = worker_after(random.uniform(0.2, 0.6) * seconds, killed)
            else:
                moment = after(random.uniform(0.3, 0.9) * seconds, killed) if kill else lambda run: None
            code = train(folder / "train.spacy", output, given, moment)
            if code < 0 and killed:
                code = train(folder / "train.spacy", output, given)
            if code:
                said = (folder / f"{output.name}.txt").read_text()
                raise SystemExit(f"Training ended with {code}:\n{said[-3000:]}")
            data = weights(output)
            found.add(data)
            took = time.perf_counter() - start
            rows.append((title, workers, len(killed), took, len(data) // 8, f"{crc32(data):08x}"))
            return took

        seconds = add("processes", 1)
        seconds = add("processes", 2)
        add("processes", 4)
        add("processes, one killed", 2, "worker")
        add("processes, all killed once", 2, "all")
        if ray:
            seconds = add("Ray", 2, "", "--ray", "local")
            add("Ray, one killed", 2, "worker", "--ray", "local")
    show(
        f"{limit} sentences of {name} on {shards} shards",
        ("by", "workers", "killed", "s", "weights", "their checksum"),
        rows,
    )
    if len(found) > 1:
        raise SystemExit("The weights are not the same.")


if __name__ == "__main__":
    typer.run(main)
