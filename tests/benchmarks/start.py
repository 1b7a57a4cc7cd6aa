"""Costs of a first use and of each later start, beside another version: ``python -m tests.benchmarks.start --beside PYTHON``.
PYTHON is the interpreter of an environment in which the other version is installed.

- events: every function that numba compiles for a first training and prediction of a component, helpers and numba's own inner
  functions included, in whatever process.
- compiling: what the same command takes with an empty numba cache, less what it takes with a full one, on 1 core, on 2, ...
- first: from `spacy.load` of a saved `crf_ner` of the news corpus to its first answer, after `import spacy`.
- help: ``python -m spacy crf COMMAND --help``, less ``python -m spacy --help``.
- blank: `spacy.blank("en")`, with this package and without.

Each figure is measured in processes of their own, and the versions take turns. Both read files that this version has made, and
train with their own configs. CPU time includes the processes that a process has started.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Optional

import spacy
import typer
from spacy.tokens import Doc, DocBin, Span

from spacy_crf.cli.group import command_modules

from .data import ROOT
from .measure import show

PARTS = ("events", "compiling", "first", "help", "blank")
# Words with a capital letter are names
TEXTS = [
    "Ann Lee lives in New York City .",
    "Bob left Paris for Acme Foods .",
    "nobody was there",
    "Acme Foods hired Ann Lee , Bob and 12 others on Monday .",
    "In New York it rains .",
    "yes",
]
# Arguments: name of a shipped config, a .spacy file, settings as JSON, and the folder to write the pipeline to
TRAIN = """
import io, json, sys
from pathlib import Path
import spacy
import spacy_crf
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
name, texts, settings, output = sys.argv[1:]
package = Path(spacy_crf.__file__).parent
folder = package if (package / "configs").is_dir() else package.parent
settings = {"paths.train": texts, "paths.dev": texts, **json.loads(settings)}
nlp = init_nlp(spacy.util.load_config(folder / "configs" / f"{name}.cfg", overrides=settings))
Path(output).mkdir(exist_ok=True)
train(nlp, Path(output), stdout=io.StringIO(), stderr=io.StringIO())
nlp = spacy.load(Path(output, "model-best"))
list(nlp.pipe(["Ann Lee lives in New York City .", "nobody was there"]))
"""
# Argument: a pipeline
ANSWER = """
import json, sys, time
import spacy
cpu, wall = time.process_time(), time.perf_counter()
nlp = spacy.load(sys.argv[1])
nlp("Officials from Chile met the mayor of Valparaiso in March 2024 .")
print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]))
"""
# Argument: the beginning of the folder of the distributions that are hidden
BLANK = """
import importlib.metadata, json, sys, time
distributions = importlib.metadata.distributions
importlib.metadata.distributions = lambda **options: (
    found for found in distributions(**options) if not found._path.name.startswith(sys.argv[1])
)
import spacy
cpu, wall = time.process_time(), time.perf_counter()
spacy.blank("en")
print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]))
"""
# Every Python that finds this module writes a line for each function that numba compiles
SITECUSTOMIZE = """
import os
from numba.core import event

class Lines(event.Listener):
    def on_start(self, event):
        with open(os.environ["COMPILED_FUNCTIONS"], "a") as file:
            file.write(event.data["dispatcher"].py_func.__name__ + "\\n")

    def on_end(self, event):
        pass

event.register("numba:compile", Lines())
"""
NEWS = {
    "components.crf_ner.confidence": True,
    "components.crf_ner.model.emissions.features.extra": ["in:places[-1..1]"],
    "initialize.components.crf_ner.gazetteers": {"places": str(ROOT / "assets" / "news" / "gazetteer_gpe.txt")},
}


class Seconds(NamedTuple):
    """CPU and wall time."""

    cpu: float
    wall: float

    def less(self, other: "Seconds") -> "Seconds":
        return Seconds(self.cpu - other.cpu, self.wall - other.wall)


def main(
    beside: str = typer.Option("", help="Python of the other version; by default there is none."),
    rounds: int = typer.Option(5, help="Turns that each version takes; medians are compared."),
    only: str = typer.Option(",".join(PARTS), help="Parts, separated by commas."),
    components: str = typer.Option("crf_ner,semicrf_ner,crf_tagger,crf_spancat,crf_textcat", help="Those of `events`."),
    timed: str = typer.Option("crf_ner", help="Components of `compiling`."),
    cores: str = typer.Option("1,2", help="How many cores `compiling` has; those that the machine lacks are left out."),
    commands: str = typer.Option("", help="Commands of `help`, by default all."),
) -> None:
    """First use and starts, beside another version."""
    parts = only.split(",")
    pythons = [Path(sys.executable)]
    if beside:
        pythons.append(Path(beside))
    columns = titles(pythons)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = []
        if "events" in parts or "compiling" in parts:
            annotated().to_disk(folder / "texts.spacy")
        if "events" in parts:
            for component in components.split(","):
                counts = [compile_events(python, component, folder) for python in pythons]
                rows.append([component, *counts, *ratio(counts)])
            show("Functions that numba compiles for a first training and prediction", ["", *columns, "ratio"], rows)
        figures: dict[str, list[Seconds]] = {}
        if "compiling" in parts:
            available = len(os.sched_getaffinity(0))
            for n_cores in [int(n) for n in cores.split(",") if int(n) <= available]:
                for component in timed.split(","):
                    title = f"compiling {component}, {n_cores} core{'s' * (n_cores > 1)}"
                    figures[title] = compiling(pythons, component, folder, n_cores, rounds)
        if "first" in parts:
            figures |= first_answers(pythons, folder, rounds)
        if "help" in parts:
            chosen = commands.split(",") if commands else own_commands()
            figures |= help_of_commands(pythons, chosen, folder, rounds)
        if "blank" in parts:
            for title, hidden in (("blank, with this package", "none is hidden"), ("blank, without", "spacy_crf")):
                figures[title] = medians(pythons, rounds, partial(blank_pipeline, folder=folder, hidden=hidden))
    for kind in Seconds._fields if figures else ():
        rows = []
        for title, seconds in figures.items():
            values = [getattr(value, kind) for value in seconds]
            rows.append([title, *values, *ratio(values)])
        title = {"cpu": "CPU", "wall": "Wall clock"}[kind]
        show(title, ["", *(f"{column}, s" for column in columns), "ratio"], rows, note=f"Medians of {rounds} turns.")


def titles(pythons: list[Path]) -> list[str]:
    """The title of the column of each version."""
    script = "import spacy_crf; print(spacy_crf.__version__)"
    versions = [run([python, "-c", script], Path(tempfile.gettempdir())).strip() for python in pythons]
    others = [f"beside {version}" for version in versions[1:]]
    return ["this version", *others]


def ratio(values: list) -> list[Optional[float]]:
    """The last cell of a row: the first value as a part of the second."""
    return [values[0] / values[1] if len(values) > 1 and values[1] else None]


# ------------------------------------------------------------------------------------------------------------- processes


def run(command: Iterable[object], folder: Path, environment: Optional[dict[str, str]] = None) -> str:
    """Run a command in a folder without packages. RETURNS (str): What it prints."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = [str(argument) for argument in command]
    done = subprocess.run(
        arguments, cwd=folder, env={**variables, **(environment or {})}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{arguments} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def outer(command: Iterable[object], folder: Path, environment: Optional[dict[str, str]] = None) -> Seconds:
    """Measure a command, with the processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    run(command, folder, environment)
    wall = time.perf_counter() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Seconds(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall)


def inner(python: Path, script: str, folder: Path, environment: dict[str, str], *arguments: object) -> Seconds:
    """Measure a script by its own clocks, after its imports."""
    return Seconds(*json.loads(run([python, "-c", script, *arguments], folder, environment)))


def medians(pythons: list[Path], rounds: int, measured: Callable[[Path], Seconds]) -> list[Seconds]:
    """The medians of a measurement for each Python; they take turns.

    measured (Callable[[Path], Seconds]): Measures once.
    RETURNS (list[Seconds]): In the order of `pythons`.
    """
    turns = [[measured(python) for python in pythons] for _ in range(rounds)]
    return [median(of_python) for of_python in zip(*turns)]


def median(seconds: Iterable[Seconds]) -> Seconds:
    """The medians of CPU and of wall time."""
    return Seconds(*map(statistics.median, zip(*seconds)))


# -------------------------------------------------------------------------------------------------------------- compiling


def annotated() -> DocBin:
    """Texts with annotation for every component."""
    nlp = spacy.blank("en")
    docs = DocBin(store_user_data=True)
    for text in TEXTS:
        words = text.split()
        is_name = [word[0].isupper() for word in words]
        ents = []
        for named, before in zip(is_name, [False, *is_name]):
            boundary = "I" if before else "B"
            ents.append(f"{boundary}-NAME" if named else "O")
        doc = Doc(nlp.vocab, words=words, tags=["NAME" if named else "WORD" for named in is_name], ents=ents)
        doc.spans["sc"] = [*doc.ents, *(Span(doc, ent.start, ent.start + 1, label="FIRST") for ent in doc.ents)]
        doc.cats = {"NAMES": float(any(is_name)), "NONE": float(not any(is_name))}
        docs.add(doc)
    return docs


def train_and_predict(python: Path, component: str, folder: Path) -> list[object]:
    """The command that trains a component on few texts, and applies it."""
    return [python, "-c", TRAIN, component, folder / "texts.spacy", "{}", folder / "trained"]


def compile_events(python: Path, component: str, folder: Path) -> int:
    """How many functions numba compiles with an empty cache, in all processes."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "sitecustomize.py").write_text(SITECUSTOMIZE, encoding="utf8")
        lines = Path(name, "compiled.txt")
        environment = {
            "PYTHONPATH": name,
            "COMPILED_FUNCTIONS": str(lines),
            "NUMBA_CACHE_DIR": str(Path(name, "cache")),
            "SPACY_CRF_THREADS": "1",  # processes side by side would each compile some of numba's own functions
        }
        run(train_and_predict(python, component, folder), folder, environment)
        return len(lines.read_text(encoding="utf8").splitlines())


def compiling(pythons: list[Path], component: str, folder: Path, n_cores: int, rounds: int) -> list[Seconds]:
    """Measure how much longer a first training and prediction takes with an empty cache than with a full one, on some cores."""

    def measured(python: Path) -> Seconds:
        with tempfile.TemporaryDirectory() as cache:
            command = train_and_predict(python, component, folder)
            environment = {"NUMBA_CACHE_DIR": cache}
            cold = outer(command, folder, environment)
            warm = outer(command, folder, environment)
        return cold.less(warm)

    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:n_cores])  # of this process, and of those that it starts
    try:
        return medians(pythons, rounds, measured)
    finally:
        os.sched_setaffinity(0, all_cores)


# --------------------------------------------------------------------------------------------------------------- starting


def first_answers(pythons: list[Path], folder: Path, rounds: int) -> dict[str, list[Seconds]]:
    """From `spacy.load` of a `crf_ner` of the news corpus to its first answer, with a full numba cache and with an empty one."""
    run([sys.executable, "-m", "spacy", "crf", "convert", ROOT / "assets" / "news", "--output", folder / "news"], ROOT)
    pipelines = {}
    caches = {}
    for n, python in enumerate(pythons):
        caches[python] = {"NUMBA_CACHE_DIR": str(folder / f"cache{n}")}
        output = folder / f"pipeline{n}"
        pipelines[python] = output / "model-best"
        run(
            [python, "-c", TRAIN, "crf_ner", folder / "news" / "train.spacy", json.dumps(NEWS), output],
            folder,
            caches[python],
        )
        inner(python, ANSWER, folder, caches[python], pipelines[python])

    def cold(python: Path) -> Seconds:
        with tempfile.TemporaryDirectory() as cache:
            return inner(python, ANSWER, folder, {"NUMBA_CACHE_DIR": cache}, pipelines[python])

    def warm(python: Path) -> Seconds:
        return inner(python, ANSWER, folder, caches[python], pipelines[python])

    return {"first answer, warm": medians(pythons, rounds, warm), "first answer, cold": medians(pythons, rounds, cold)}


def own_commands() -> list[str]:
    """The names of this package's commands, without those that other packages add."""
    return [name for name, module in command_modules().items() if module.startswith("spacy_crf.")]


def help_of_commands(pythons: list[Path], commands: list[str], folder: Path, rounds: int) -> dict[str, list[Seconds]]:
    """Measure how much longer ``spacy crf COMMAND --help`` takes than ``spacy --help``, for each command."""
    return {
        f"crf {command} --help": medians(pythons, rounds, partial(help_of_command, command=command, folder=folder))
        for command in commands
    }


def help_of_command(python: Path, command: str, folder: Path) -> Seconds:
    """Measure once how much longer ``spacy crf COMMAND --help`` takes than ``spacy --help``."""
    spacy_alone = outer([python, "-m", "spacy", "--help"], folder)
    return outer([python, "-m", "spacy", "crf", command, "--help"], folder).less(spacy_alone)


def blank_pipeline(python: Path, folder: Path, hidden: str) -> Seconds:
    """Measure `spacy.blank("en")` without the distributions whose folders begin with `hidden`."""
    return inner(python, BLANK, folder, {}, hidden)


if __name__ == "__main__":
    typer.run(main)
