"""Features and settings of `crf_textcat` by cross-validation on the training data of the intents of snips, never the test set:
``python -m tests.benchmarks.textcat_search``.

Learns from one part of the training texts and is judged by the others, for some parts in turn. What is in the file already is not
tried again.
"""

import itertools
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPACY_CRF_THREADS", "1")

import spacy
import srsly
import typer

from .textcat import Items, examples_of, read

WORDS = ["lower[0]", "lower[-1]|lower[0]"]
ORTH = ["orth[0]", "orth[-1]|orth[0]"]
TRIPLES = ["lower[-2]|lower[-1]|lower[0]"]
AFFIXES = ["prefix3[0]", "suffix3[0]"]
MORE_AFFIXES = [*AFFIXES, "prefix2[0]", "suffix2[0]", "prefix4[0]", "suffix4[0]"]
TEMPLATES = {
    "words": WORDS,
    "words, orth": [*WORDS, *ORTH],
    "words, orth[0]": [*WORDS, "orth[0]"],
    "words, triples": [*WORDS, *TRIPLES],
    "words, shape": [*WORDS, "shape[0]"],
    "words, affixes": [*WORDS, *AFFIXES],
    "words, orth, affixes": [*WORDS, *ORTH, *AFFIXES],
    "words, orth, triples": [*WORDS, *ORTH, *TRIPLES],
    "words, orth, more affixes": [*WORDS, *ORTH, *MORE_AFFIXES],
    "words, orth, more affixes, n-grams": [*WORDS, *ORTH, *MORE_AFFIXES, "ngrams3[0]", "ngrams4[0]"],
    "words, skip": [*WORDS, "lower[-2]|lower[0]"],
}
MODELS: dict[str, dict[str, Any]] = {"bag": {"@architectures": "spacy_crf.MaxEntText.v1"}}


def judge(
    model: dict[str, Any], templates: list[str], l2: float, train: Items, dev: Items, most: int
) -> dict[str, float]:
    """Share of right labels, mean loss of texts, and CPU seconds."""
    start = time.process_time()
    nlp = spacy.blank("en")
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1"}
    emissions["features"] = {"@misc": "spacy_crf.features.v1", "templates": templates}
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": l2, "max_iterations": most}
    pipe = nlp.add_pipe("crf_textcat", config={"model": {**model, "emissions": emissions}, "optimizer": optimizer})
    examples = examples_of(nlp, train)
    nlp.initialize(lambda: examples)
    while pipe.optimizer.stop_reason(pipe.name) is None:
        nlp.update(examples)
    docs = list(nlp.pipe(item["text"] for item in dev))
    right = [max(doc.cats, key=doc.cats.get) == item["intent"] for doc, item in zip(docs, dev)]
    loss = [-math.log(max(doc.cats[item["intent"]], 1e-12)) for doc, item in zip(docs, dev)]
    return {
        "accuracy": 100 * statistics.mean(right),
        "loss": statistics.mean(loss),
        "seconds": time.process_time() - start,
    }


def main(
    file: str = typer.Option("textcat_search.jsonl", help="What was tried, one line each."),
    models: str = typer.Option("", help="Between semicolons; all by default."),
    templates: str = typer.Option(";".join(TEMPLATES), help="Between semicolons."),
    l2: str = typer.Option("0.1", help="Between semicolons."),
    seeds: str = typer.Option("0", help="Of models that have a seed, between semicolons."),
    iterations: int = typer.Option(40, help="Of L-BFGS at most."),
    parts: int = typer.Option(5, help="Parts of the training data."),
    folds: int = typer.Option(2, help="How many of them are learned from in turn."),
) -> None:
    """Try all combinations."""
    texts, results = read("train"), Path(file)
    known = [line["tried"] for line in srsly.read_jsonl(results)] if results.exists() else []
    combinations = itertools.product(
        range(folds), seeds.split(";"), l2.split(";"), templates.split(";"), models.split(";") if models else MODELS
    )
    for fold, seed, strength, features, name in combinations:
        tried = [fold, parts, int(seed), float(strength), iterations, features, name]
        if tried in known:
            continue
        others = [text for n, text in enumerate(texts) if n % parts != fold]
        model = {**MODELS[name], "seed": int(seed)} if "seed" in MODELS[name] else MODELS[name]
        found = judge(model, TEMPLATES[features], float(strength), texts[fold::parts], others, iterations)
        line = {"tried": tried, **{what: round(value, 4) for what, value in found.items()}}
        print(line, flush=True)
        with results.open("a", encoding="utf8") as stream:
            stream.write(srsly.json_dumps(line) + "\n")


if __name__ == "__main__":
    typer.run(main)
