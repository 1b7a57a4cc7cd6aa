"""How many iterations OWL-QN takes to within 1 % of its optimum, against CRFsuite's with the same features:
``python -m tests.benchmarks.iterations``.

The tags are those of BIO on both sides; ours forbid the pairs that the scheme does, so each has an optimum of its own: the lowest
objective of so many iterations that neither has much left to gain.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import spacy
import typer

from .data import iob2_tags, make_examples, read_sentences
from .measure import show
from .ours import STRONG_FEATURES, make_pipeline
from .rivals import STRONG_PARAMS, CRFsuite, strong_features

NAMES = "wnut17,mit_restaurant,cora_refs,usaddress"
PENALTIES = STRONG_PARAMS["c1"], STRONG_PARAMS["c2"]
NEAR = 1.01


def main(
    names: str = typer.Option(NAMES, help="Data sets, between commas."),
    most: int = typer.Option(250, help="Iterations that are made."),
    preset: bool = typer.Option(False, help="Ours once more, with its own preset and tags."),
) -> None:
    """Side by side."""
    rows = []
    for name in names.split(","):
        config = {"scheme": "BIO", "model": {"possible_transitions": True, "emissions": {"features": STRONG_FEATURES}}}
        a, b = needed(ours(name, config, most)), needed(theirs(name, most))
        row = [name, a, b, a / b, f"≤ 1.0{'' if a <= b else ' MISSED'}"]
        rows.append([*row, needed(ours(name, {}, most))] if preset else row)
    header = ("set", "spacy_crf", "python-crfsuite", "ratio", "must", *(("with the preset",) if preset else ()))
    show(f"Iterations to within {NEAR - 1:.0%} of the optimum, c1 = {PENALTIES[0]}, c2 = {PENALTIES[1]}", header, rows)


def needed(values: Sequence[float]) -> int:
    """Iterations until the objective stays near its lowest value."""
    return next(n for n, value in enumerate(values, 1) if value <= NEAR * min(values))


def ours(name: str, config: dict, most: int) -> list[float]:
    """The objective after each iteration."""
    nlp = make_pipeline("crf_ner", config)
    examples = make_examples(nlp.vocab, read_sentences(name, "train"), entities=True)
    settings = {"l1": PENALTIES[0], "l2": PENALTIES[1], "delta": 0.0, "iterations_per_step": most}
    optimizer = spacy.registry.optimizers.get("spacy_crf.LBFGS.v1")(**settings, max_iterations=most)
    values: list[float] = []
    optimizer.on_iteration = lambda progress: values.append(progress.objective)
    nlp.initialize(lambda: examples, sgd=optimizer)
    nlp.update(examples, sgd=optimizer)
    return values


def theirs(name: str, most: int) -> list[float]:
    """The same of CRFsuite."""
    vocab = spacy.blank("en").vocab
    docs = [example.reference for example in make_examples(vocab, read_sentences(name, "train"), entities=True)]
    rival = CRFsuite(strong_features, STRONG_PARAMS).read(docs, [iob2_tags(doc) for doc in docs])
    with tempfile.TemporaryDirectory() as folder:
        rival.train(Path(folder) / "model.crfsuite", max_iterations=most, delta=1e-12)
    return [iteration["loss"] for iteration in rival.trainer.logparser.iterations]


if __name__ == "__main__":
    typer.run(main)
