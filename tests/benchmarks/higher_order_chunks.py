"""Chunks by chains of higher order: ``python -m tests.benchmarks.higher_order_chunks``

CoNLL-2000 with its parts of speech, and the features of CRFsuite's chunking example: the chain of order 1 against higher orders,
for all chunks and for noun phrases alone.
"""

import time
from typing import Annotated, Any

import typer

from spacy_crf.optimizers.lbfgs import LBFGS

from .data import Sentence, iob2_tags, make_examples, read_sentences
from .measure import entity_f1, show
from .ours import EXAMPLE_TEMPLATES, make_pipeline

FEATURES = {"@misc": "spacy_crf.features.v1", "templates": EXAMPLE_TEMPLATES, "padding": False}
EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": FEATURES}


def main(
    orders: Annotated[str, typer.Option(help="1 is that of the linear chain; between commas.")] = "1,2",
    keep: Annotated[float, typer.Option(help="Of higher orders; 0 leaves out nothing.")] = 4.0,
    chunks: Annotated[str, typer.Option(help="all, NP, or both between commas.")] = "all,NP",
    scheme: Annotated[str, typer.Option(help="Of the tags.")] = "BIO",
    sentences: Annotated[int, typer.Option(help="Of the training data; 0 for all.")] = 0,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS, at most.")] = 150,
    l2: Annotated[float, typer.Option(help="Of all weights.")] = 0.25,
    held_out: Annotated[
        bool, typer.Option(help="F1 on the last fifth of the training data, which is held out.")
    ] = False,
) -> None:
    """F1 on the test data, one line after each model."""
    header = ["chunks", "order", "F1", "iterations", "training (CPU s)"]
    for only in chunks.split(","):
        for order in map(int, orders.split(",")):
            train, test = (_chunks(part, only, limit) for part, limit in (("train", sentences), ("test", 0)))
            if held_out:
                train, test = train[: len(train) * 4 // 5], train[len(train) * 4 // 5 :]
            row = _row(_model(order, keep or None), train, test, scheme, iterations, l2)
            show("Chunks of CoNLL-2000", header, [[only, order, *row]])


def _model(order: int, keep: Any) -> dict[str, Any]:
    if order == 1:
        return {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS}
    return {"@architectures": "spacy_crf.HigherOrder.v1", "order": order, "keep": keep, "emissions": EMISSIONS}


def _row(
    model: dict[str, Any], train: list[Sentence], test: list[Sentence], scheme: str, iterations: int, l2: float
) -> list[object]:
    nlp = make_pipeline("crf_ner", {"scheme": scheme, "model": model})
    train, test = (make_examples(nlp.vocab, part) for part in (train, test))
    # Which labellings are left is looked at again with each step
    optimizer, begin = LBFGS(l2=l2, iterations_per_step=10), time.process_time()
    nlp.initialize(lambda: train, sgd=optimizer)
    while (run := optimizer._runs.get("crf_ner")) is None or (run.iteration < iterations and run.stop_reason is None):
        nlp.update(train, sgd=optimizer)
    seconds = time.process_time() - begin
    found = nlp.pipe([example.predicted.copy() for example in test])
    gold, found = ([iob2_tags(doc) for doc in docs] for docs in ((example.reference for example in test), found))
    return [f"{entity_f1(gold, found):.2f}", run.iteration, f"{seconds:.0f}"]


def _chunks(part: str, only: str, limit: int) -> list[Sentence]:
    found = read_sentences("conll2000", part, limit=limit or None)
    if only == "all":
        return found
    return [each._replace(tags=[tag if tag.endswith(f"-{only}") else "O" for tag in each.tags]) for each in found]


if __name__ == "__main__":
    typer.run(main)
