"""Going on with a trained model: what it keeps, and what it learns. ``python -m tests.benchmarks.continuing``

A model of ``assets/news``, trained as in ``configs/crf_ner.cfg``, goes on with single texts of news, and with 50 addresses, whose
labels it does not know.
"""

import random
from pathlib import Path

import spacy
from spacy.training import Example
from spacy.util import minibatch, registry

from spacy_crf.cli.reading import read_examples
from spacy_crf.optimizers.lbfgs import LBFGS

ASSETS = Path(__file__).parents[2] / "assets"
# Optimizer, the loss it fits, its settings, and whether it wants all texts at once
OPTIMIZERS = [
    ("spacy_crf.LBFGS.v1", "LogLikelihood", {"l2": 0.1}, True),
    ("spacy_crf.ConjugateGradient.v1", "LogLikelihood", {}, True),
    ("spacy_crf.FrankWolfe.v1", "MaxMargin", {}, True),
    ("spacy_crf.ExponentiatedGradient.v1", "MaxMargin", {}, True),
    ("spacy_crf.SGD.v1", "LogLikelihood", {}, False),
    ("spacy_crf.AdaGrad.v1", "LogLikelihood", {}, False),
    ("spacy_crf.AveragedPerceptron.v1", "Perceptron", {}, False),
    ("spacy_crf.BatchPerceptron.v1", "Perceptron", {}, False),
    ("spacy_crf.PassiveAggressive.v1", "Perceptron", {}, False),
    ("spacy_crf.AROW.v1", "Perceptron", {}, False),
    ("Adam.v1", "LogLikelihood", {"learn_rate": 0.02}, False),
]


def main() -> None:
    model = _trained().to_bytes()
    print("| optimizer | one text | 50 addresses: news | addresses |\n| --- | --- | --- | --- |")
    for name, loss, settings, wants_all in OPTIMIZERS:
        one = min(_after_one(model, name, loss, settings, n) for n in range(0, 51, 10))
        news, addresses = _after_fifty(model, name, loss, settings, wants_all)
        print(f"| `{name}` | {one:.3f} | {news:.3f} | {addresses:.3f} |", flush=True)


def _blank(loss: str) -> spacy.language.Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": f"spacy_crf.{loss}.v1"}, "optimizer": None})
    return nlp


def _trained() -> spacy.language.Language:
    nlp = _blank("LogLikelihood")
    examples = _read(nlp, "news", "train")
    nlp.initialize(lambda: examples, sgd=LBFGS(l2=0.1))
    for _ in range(3):
        nlp.update(examples, sgd=nlp._optimizer)
    return nlp


def _loaded(model: bytes, name: str, loss: str, settings: dict):
    nlp = _blank(loss).from_bytes(model)
    return nlp, nlp.resume_training(sgd=registry.get("optimizers", name)(**settings))


def _read(nlp, kind: str, split: str) -> list[Example]:
    return list(read_examples(ASSETS / kind / f"{split}.jsonl", nlp))


def _f(nlp, kind: str) -> float:
    return nlp.evaluate(_read(nlp, kind, "dev"))["ents_f"]


def _after_one(model, name, loss, settings, n: int) -> float:
    nlp, sgd = _loaded(model, name, loss, settings)
    nlp.update([_read(nlp, "news", "dev")[n]], sgd=sgd)
    return _f(nlp, "news")


def _after_fifty(model, name, loss, settings, wants_all: bool) -> tuple[float, float]:
    nlp, sgd = _loaded(model, name, loss, settings)
    examples = _read(nlp, "addresses", "train")
    random.Random(0).shuffle(examples)
    examples = examples[:50]
    for epoch in range(10):
        random.Random(epoch).shuffle(examples)
        for batch in [examples] if wants_all else minibatch(examples, 10):
            nlp.update(batch, sgd=sgd)
    return _f(nlp, "news"), _f(nlp, "addresses")


if __name__ == "__main__":
    main()
