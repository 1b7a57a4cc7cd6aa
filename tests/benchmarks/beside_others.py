"""Ours beside other programs, in F1, speed, training time, size, start and memory: ``python -m tests.benchmarks.beside_others``.

Every step is a process of its own with one thread (`beside_systems`), one after the other. Times are CPU seconds, since other
programs may use the machine too. Each result is a line of the file `--output`: a run that was interrupted goes on, and
``--table`` prints the table of docs/beside_others.md. Run it twice, the second time with a new file: the first one compiles.
"""

import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

import typer

from .beside_systems import SYSTEMS, Task
from .data import ROOT, SETS, Sentence, data_folder, parse_conll, read_sentences
from .measure import entity_f1, machine, size_mb

LANGUAGES = {"german_ler": "de"}
NAMES = "cora_refs,usaddress,mit_restaurant,wnut17,conll2000,ingredients_ip,jnlpba,german_ler"
GENERAL = ("ours", "ours, accuracy", "CRFsuite", "Wapiti", "ner")
# usaddress brings a model that has learned the upstream training part. Its test part are the addresses that each version must get
# right; those of OpenStreetMap were never to learn from. Of the other tools only the costs are measured.
UPSTREAM = {
    "usaddress_upstream": {"train": "train", "test": "test"},
    "usaddress_osm": {"train": "train", "test": "test_osm"},
}
OF_A_TASK = {
    **dict.fromkeys(UPSTREAM, ("ours", "ours, accuracy", "CRFsuite", "sklearn-crfsuite", "usaddress")),
    "ingredients_ip": ("ingredient-parser",),
    "people": ("probablepeople",),
}
ALL_NAMES = f"{NAMES},{','.join(UPSTREAM)},people"
ALL_SYSTEMS = "; ".join(SYSTEMS)
ONE_THREAD = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "SPACY_CRF_THREADS")
FITTED = 2000  # sentences at most, without a dev part: all are for training, with settings that are cross-validated
NER_SECONDS = {"all": (60, 90), "few": (20, 40)}  # twice those of the slowest of ours, within these limits


class Job(NamedTuple):
    set: str
    system: str
    size: int  # sentences drawn from the training part; 0 for all, up to a limit


def main(
    output: str = typer.Option("beside_others.jsonl", help="File with a line for each result."),
    names: str = typer.Option(ALL_NAMES, help="Sets, between commas."),
    systems: str = typer.Option(ALL_SYSTEMS, help="Systems, between semicolons."),
    sizes: str = typer.Option("0,1000,100,300", help="Sentences of the training part; 0 for all."),
    most_train: int = typer.Option(3_000, help="Sentences of the training part, at most."),
    most_test: int = typer.Option(2_000, help="Sentences of the test part, at most."),
    minutes: float = typer.Option(600, help="Begin nothing more after so many minutes."),
    table: bool = typer.Option(False, "--table", help="Only print the tables of what is in the file."),
) -> None:
    begin = time.monotonic()
    jobs = list(all_jobs(names.split(","), systems.split("; "), [int(size) for size in sizes.split(",")]))
    results = read_results(Path(output))
    for job in [] if table else jobs:
        if job not in results and time.monotonic() < begin + 60 * minutes:
            results[job] = run(job, results, most_train, most_test)
            with Path(output).open("a", encoding="utf8") as file:
                file.write(json.dumps({**job._asdict(), **results[job]}) + "\n")
            print(*job, results[job], flush=True)
    print(as_markdown(results))


def all_jobs(names: Sequence[str], systems: Sequence[str], sizes: Iterable[int]) -> Iterator[Job]:
    """Size after size: what is left out if there is no time for all of them are the last ones. A size that a set does not have is
    the size 0."""
    for size in sizes:
        for name in names:
            if size and size >= len(sentences(name, "train")):
                continue
            chosen = (*(GENERAL if name in SETS else ()), *(OF_A_TASK.get(name, ()) if size == 0 else ()))
            for system in chosen:
                package = SYSTEMS[system].package
                if system in systems and (package is None or importlib.util.find_spec(package)):
                    yield Job(name, system, size)


def read_results(path: Path) -> dict[Job, dict[str, Any]]:
    results = {}
    for line in path.read_text(encoding="utf8").splitlines() if path.is_file() else []:
        row = json.loads(line)
        results[Job(*(row.pop(field) for field in Job._fields))] = row
    return results


# ------------------------------------------------------------------------------------------------------------- one result


def run(job: Job, results: dict[Job, dict[str, Any]], most_train: int, most_test: int) -> dict[str, Any]:
    """Train and use a system. RETURNS (dict): Its figures, or why there are none."""
    lang, system = LANGUAGES.get(job.set, "en"), SYSTEMS[job.system]
    test = drawn(sentences(job.set, "test"), most_test)
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), {}
        (folder / "words.json").write_text(json.dumps([sentence.words for sentence in test]), encoding="utf8")
        try:
            if system.train is not None:
                ours = [
                    row.get("train_seconds", 0)
                    for other, row in results.items()
                    if other[::2] == job[::2] and "ours" in other[1]
                ]
                least, most = NER_SECONDS["few" if job.size else "all"]
                train, dev = parts(job, most_train)
                task = Task(lang, columns(train), columns(dev), min(max([least, *(2 * s for s in ours)]), most))
                (folder / "task.json").write_text(json.dumps(task._asdict()), encoding="utf8")
                found |= step("train", job.system, folder, lang) | {"sentences": len(train)}
            else:
                [package] = importlib.util.find_spec(system.package).submodule_search_locations
                found["model_mb"] = size_mb(Path(package))
            for _ in range(2 if "ours" in job.system and not job.size else 1):  # the first time compiles
                used = step("use", job.system, folder, lang)
        except subprocess.CalledProcessError as error:
            return {"error": reason(error.stderr)}
        tags = json.loads((folder / "tags.json").read_text(encoding="utf8"))
    if test[0].tags and job.system != "ingredient-parser":
        found["f1"] = entity_f1([sentence.tags for sentence in test], tags)
    return found | used


def step(kind: str, system: str, folder: Path, lang: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.benchmarks.beside_systems", kind, system, str(folder), lang]
    environment = {**os.environ, **dict.fromkeys(ONE_THREAD, "1")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def reason(printed: str) -> str:
    """The last exception in what a process has printed."""
    begin = max((found.start() for found in re.finditer(r"^[\w.]+Error\b", printed, re.MULTILINE)), default=0)
    return " ".join(printed[begin:].replace("*", " ").split())[:200]


def sentences(name: str, part: str) -> list[Sentence]:
    """A part of a set, without parts of speech: texts have none. People are names drawn from lists, without tags."""
    if name == "people":
        files = [data_folder() / "gazetteers" / f"{kind}_us.txt" for kind in ("first_names", "surnames")]
        names = [drawn(file.read_text(encoding="utf8").splitlines(), 2000) for file in files]
        return [Sentence([first, last], None, []) for first, last in zip(*names)]
    if name in UPSTREAM:
        file = UPSTREAM[name].get(part)
        text = (data_folder() / "usaddress" / f"{file}.conll").read_text(encoding="utf8") if file else ""
        return list(parse_conll(text.split("\n")))
    return [sentence._replace(pos=None) for sentence in read_sentences(name, part)]


def parts(job: Job, most_train: int) -> tuple[list[Sentence], list[Sentence]]:
    """The sentences to train on, and those for choosing a model; where the set has no such, every tenth of many."""
    train = drawn(sentences(job.set, "train"), job.size or most_train)
    dev = drawn(sentences(job.set, "dev"), most_train // 5)
    if job.size or (not dev and len(train) <= FITTED):
        return train, []
    if not dev and "ours" in job.system:
        return [s for n, s in enumerate(train) if n % 10], train[::10]
    return train, dev


def drawn(items: Sequence[Any], most: int) -> list[Any]:
    return random.Random(0).sample(items, most) if len(items) > most else list(items)


def columns(part: Iterable[Sentence]) -> tuple[list[list[str]], list[list[str]]]:
    part = list(part)
    return [sentence.words for sentence in part], [sentence.tags for sentence in part]


# ----------------------------------------------------------------------------------------------------------------- tables

COSTS = {
    "tokens_per_second": "tokens/s",
    "train_seconds": "training, s",
    "model_mb": "model, MB",
    "start_seconds": "start, s",
    "use_mb": "memory, MB",
    "train_mb": "in training, MB",
}
SIZES = {"100": 100, "300": 300, "1,000": 1000, "all": 0}


def as_markdown(results: dict[Job, dict[str, Any]]) -> str:
    """F1 by the number of training sentences, and what each system costs that was trained on all of them."""
    header = ("set", "system", *SIZES, *COSTS.values())
    lines = [f"| {' | '.join(header)} |", f"|{' --- |' * len(header)}"]
    for name in ALL_NAMES.split(","):
        systems = [system for system in SYSTEMS if Job(name, system, 0) in results]
        f1 = {system: [_f1(results.get(Job(name, system, n), {})) for n in SIZES.values()] for system in systems}
        best = [max(column, key=lambda cell: float(cell or 0)) for column in zip(*f1.values())]
        for system in systems:
            row = results[Job(name, system, 0)]
            if "error" in row:
                lines.append(f"| {name} | {system} | does not run: {row['error']} |")
                continue
            cells = [f"**{cell}**" if cell and cell == most else cell for cell, most in zip(f1[system], best)]
            cells += [_cost(row.get(cost)) for cost in COSTS]
            lines.append(f"| {name} | {system} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", machine()])


def _f1(row: dict[str, Any]) -> str:
    return f"{row['f1']:.1f}" if "f1" in row else ""


def _cost(value: Optional[float]) -> str:
    """Three digits, or two in front of the point."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 10 else f"{float(f'{value:.3g}'):,.0f}"


if __name__ == "__main__":
    typer.run(main)
