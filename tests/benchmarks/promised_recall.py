"""Is a promised recall kept, and how tight is it? ``python -m tests.benchmarks.promised_recall``.

A model gives each annotated entity of dev and test its probability once. Then texts are dealt out again and again: some of them
are DEV, by which ``crf threshold --recall`` finds a threshold, and all of them are what DEV is drawn from, where the promise has
to hold: broken where the recall on them is lower. `rest` is the recall on the texts outside of DEV, which are few themselves:
there, chance breaks a promise more often.
"""

import math
import time
from typing import NamedTuple, Optional

import numpy as np
import typer

from spacy_crf.errors import Errors
from spacy_crf.pipeline.promises import JudgedText, judge, promise_recall

from .data import make_examples, read_sentences
from .measure import show
from .ours import make_pipeline, train

SETS = ("wnut17", "mit_restaurant", "germeval14")
SETTINGS = {"l1": 0.0, "l2": 1.0, "max_iterations": 100}
GOALS = (0.9, 0.95, 0.98)
MOST_ABOVE = 3.0  # points
UNPROMISED = tuple(getattr(Errors, code).partition(":")[0] for code in ("CRF424", "CRF425"))


class Dealt(NamedTuple):
    """Recalls with the threshold that one DEV promises."""

    all: float
    rest: float
    min_prob: float


def main(
    sets: str = typer.Option(",".join(SETS), help="Comma-separated."),
    times: int = typer.Option(500, help="How often texts are dealt out."),
    entities: str = typer.Option("600,1000", help="Numbers of entities of DEV."),
    alpha: float = typer.Option(0.1),
) -> None:
    rows = []
    for name in sets.split(","):
        judged = judged_texts(name)
        for n in map(int, entities.split(",")):
            for goal in GOALS:
                rows.append(row(name, judged, n, goal, alpha, times))
    header = [
        "set",
        "entities",
        "promise",
        "kept by",
        "recall",
        "most",
        "broken",
        "most",
        "",
        "rest",
        "broken",
        "min_prob",
    ]
    note = f"In percent; alpha = {alpha:g}, {times} times. kept by: the share of DEVs that can promise it. recall: the mean over "
    note += "these, of all entities alike."
    show("A recall that is promised", header, rows, note=note)


def judged_texts(name: str) -> list[JudgedText]:
    start, nlp = time.perf_counter(), make_pipeline("crf_ner")
    train(nlp, make_examples(nlp.vocab, read_sentences(name, "train")), **SETTINGS)
    sentences = [sentence for part in ("dev", "test") for sentence in read_sentences(name, part)]
    judged = judge(nlp.get_pipe("crf_ner"), make_examples(nlp.vocab, sentences))
    print(f"{name}: {len(judged)} texts, {time.perf_counter() - start:.0f} s")
    return judged


def row(name: str, judged: list[JudgedText], n_entities: int, goal: float, alpha: float, times: int) -> list[object]:
    n_gold = np.array([len(text.gold) for text in judged])
    n_texts = round(n_entities * len(judged) / n_gold.sum())
    generator, found = np.random.default_rng(0), []
    for _ in range(times):
        dealt = generator.permutation(len(judged))
        found.append(deal(judged, dealt[:n_texts], dealt[n_texts:], goal, alpha))
    kept = [each for each in found if each is not None]
    broken, broken_rest = (100 * sum(getattr(each, of) < goal for each in kept) / times for of in ("all", "rest"))
    most = 100 * (alpha + 2 * math.sqrt(alpha * (1 - alpha) / times))
    cells = [name, n_entities, f"{100 * goal:g}", f"{100 * len(kept) / times:.1f}"]
    if not kept:
        return [*cells, None, None, broken, most, "met", None, None, None]
    recall, rest, min_prob = (float(np.median(c) if n == 2 else np.mean(c)) for n, c in enumerate(zip(*kept)))
    is_met = broken <= most and 100 * recall <= 100 * goal + MOST_ABOVE
    met = "met" if is_met else "MISSED"
    above = 100 * goal + MOST_ABOVE
    return [*cells, 100 * recall, above, broken, most, met, 100 * rest, broken_rest, f"{min_prob:g}"]


def deal(judged: list[JudgedText], dev: np.ndarray, rest: np.ndarray, goal: float, alpha: float) -> Optional[Dealt]:
    """RETURNS (Dealt): None if these texts can't promise the recall."""
    try:
        least = promise_recall("DEV", [judged[n] for n in dev], goal, alpha)
    except ValueError as error:
        if not str(error).startswith(UNPROMISED):
            raise
        return None
    return Dealt(recall_of(judged, least), recall_of([judged[n] for n in rest], least), least)


def recall_of(judged: list[JudgedText], min_prob: float) -> float:
    return float((np.concatenate([text.gold for text in judged]) >= min_prob).mean())


if __name__ == "__main__":
    typer.run(main)
