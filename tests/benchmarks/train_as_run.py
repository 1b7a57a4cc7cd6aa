"""Training as people run it: ``spacy train`` with a config of ours, from a .spacy file to model-best, against a script that reads
the same file and trains python-crfsuite with its strong features: ``python -m tests.benchmarks.train_as_run``.

Both are commands of their own, start-up and all, and take turns. A set without a dev part is evaluated on its test part.
"""

import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import typer

from .data import ROOT, SETS, read_sentences, save_docbin
from .measure import show
from .training import watch

# Entities in Docs of sentences; the last three take minutes
NAMES = ("wnut17", "mit_restaurant", "cora_refs", "conll2000", "jnlpba", "german_ler")
SMALL = 10_000  # tokens of training data
MUST, MUST_IF_SMALL = 0.4, 0.6
CRFSUITE = """
import sys
import spacy
from spacy.tokens import DocBin
from tests.benchmarks.data import iob2_tags
from tests.benchmarks.rivals import STRONG_PARAMS, CRFsuite, strong_features
docs = list(DocBin().from_disk(sys.argv[1]).get_docs(spacy.blank("en").vocab))
rival = CRFsuite(strong_features, STRONG_PARAMS).read(docs, [iob2_tags(doc) for doc in docs])
rival.train(sys.argv[2], max_iterations=150)
"""


def main(
    names: str = typer.Option("wnut17,mit_restaurant,cora_refs", help=f"Some of {', '.join(NAMES)}, between commas."),
    repeats: int = typer.Option(3, help="Runs of each; the median counts."),
    config: str = typer.Option("crf_ner", help="Of configs/."),
    cpu: bool = typer.Option(False, "--cpu", help="Seconds of CPU time, for a machine that has other things to do."),
) -> None:
    """Whole runs, side by side."""
    clock = _cpu_of_commands if cpu else time.perf_counter
    rows = [_compare(name, repeats, ROOT / "configs" / f"{config}.cfg", clock) for name in names.split(",")]
    header = ("set", "tokens", "spacy train, s", "python-crfsuite, s", "ratio", "must")
    show(f"configs/{config}.cfg against 150 iterations of CRFsuite, medians of {repeats}", header, rows)


def _cpu_of_commands() -> float:
    """Seconds that the commands took which have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _compare(name: str, repeats: int, config: Path, clock: Callable[[], float]) -> list[object]:
    n_tokens = sum(len(sentence.words) for sentence in read_sentences(name, "train"))
    with tempfile.TemporaryDirectory() as folder:
        paths = {part: Path(folder) / f"{part}.spacy" for part in ("train", "dev")}
        for part, path in paths.items():
            present = part if getattr(SETS[name], part) else "test"
            save_docbin(path, read_sentences(name, present))
        overrides = [text for part, path in paths.items() for text in (f"--paths.{part}", str(path))]
        ours = [sys.executable, "-m", "spacy", "train", str(config), *overrides, "--output", f"{folder}/model"]
        theirs = [sys.executable, "-c", CRFSUITE, str(paths["train"]), f"{folder}/model.crfsuite"]
        watch(ours)  # compiles
        seconds: list[list[float]] = [[], []]
        for _ in range(repeats):
            for command, times in zip((ours, theirs), seconds):
                start = clock()
                watch(command)
                times.append(clock() - start)
    a, b = map(statistics.median, seconds)
    must = MUST_IF_SMALL if n_tokens < SMALL else MUST
    return [name, n_tokens, a, b, a / b, f"≤ {must}{'' if a <= must * b else ' MISSED'}"]


if __name__ == "__main__":
    typer.run(main)
