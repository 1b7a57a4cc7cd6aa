"""`crf annotate --workers`: what two processes make of an archive of short texts against one:
``python -m tests.benchmarks.archives``.

The texts are the 20,000 ingredients, again and again, the labels those of ingredients_ip. What it takes
until workers are ready, once for an archive of any length, is told by a short one.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import typer

from .data import make_examples, read_sentences, read_texts
from .measure import show
from .ours import make_pipeline, train


def main(
    texts: int = typer.Option(200_000, help="How many."),
    workers: str = typer.Option("1,2", help="Numbers of processes that take turns."),
    repeats: int = typer.Option(1, help="Of each; the median counts."),
) -> None:
    """Seconds of the clock and of all processes, and texts a second, by the number of workers."""
    numbers = [int(number) for number in workers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        _save_pipeline(Path(folder) / "model")
        _write_texts(Path(folder) / "all.jsonl", texts)
        _write_texts(Path(folder) / "few.jsonl", 100)
        _annotate(Path(folder), "few", 1)  # what is compiled is kept from then on
        seconds = {(name, n): [] for name in ("all", "few") for n in numbers}
        for _ in range(repeats):
            for (name, n), some in seconds.items():
                some.append(_annotate(Path(folder), name, n))
    rows = []
    for n in numbers:
        (wall, cpu), (start, _) = ([*map(statistics.median, zip(*seconds[name, n]))] for name in ("all", "few"))
        rows.append((n, wall, cpu, start, round(texts / (wall - start))))
    header = ("workers", "s", "s of all processes", "s to get ready", "texts a second, once ready")
    show(f"{texts:,} texts", header, rows)


def _save_pipeline(path: Path) -> None:
    nlp = make_pipeline("crf_ner")
    train(nlp, make_examples(nlp.vocab, read_sentences("ingredients_ip", "train", limit=3000)))
    nlp.to_disk(path)


def _write_texts(path: Path, n: int) -> None:
    some = read_texts("ingredients.txt", 20_000)
    with path.open("w", encoding="utf8") as file:
        for number in range(n):
            file.write(json.dumps({"text": some[number % len(some)], "id": number}) + "\n")


def _annotate(folder: Path, name: str, workers: int) -> tuple[float, float]:
    """RETURNS (tuple[float, float]): Seconds of the clock, and of all processes."""
    with tempfile.TemporaryDirectory(dir=folder) as target:
        paths = [str(folder / "model"), str(folder / f"{name}.jsonl"), f"{target}/out"]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "spacy",
            "crf",
            "annotate",
            *paths,
            "--workers",
            str(workers),
        ]
        subprocess.run(command, check=True, capture_output=True)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    typer.run(main)
