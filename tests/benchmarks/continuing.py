"""Going on with a trained model: what it keeps, and what it learns. ``python -m tests.benchmarks.continuing``

A model of ``assets/news``, trained as in ``configs/crf_ner.cfg``, goes on with single texts of news, and with 50 addresses, whose
labels it does not know. Other components, and other sets (those of `data.SETS`, for instance ``--old conll2000 --new wnut17``).
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import spacy
import typer
from spacy.language import Language
from spacy.training import Example
from spacy.util import minibatch, registry

from spacy_crf.cli.texts import read_examples
from spacy_crf.optimizers.lbfgs import LBFGS

from .data import SETS, make_examples, read_sentences

ASSETS = Path(__file__).parents[2] / "assets"


class Way(NamedTuple):
    """How a model goes on."""

    optimizer: str
    loss: str  # that fits it
    settings: dict[str, Any]
    batch_size: int  # of the 50 texts


WAYS = {
    "LBFGS": Way("spacy_crf.LBFGS.v1", "LogLikelihood", {"l2": 0.1}, 50),
    "LBFGS in batches": Way("spacy_crf.LBFGS.v1", "LogLikelihood", {"l2": 0.1}, 10),
    "SGD": Way("spacy_crf.SGD.v1", "LogLikelihood", {}, 10),
    "SGD on all": Way("spacy_crf.SGD.v1", "LogLikelihood", {}, 50),
    "AdaGrad": Way("spacy_crf.AdaGrad.v1", "LogLikelihood", {}, 10),
    "AveragedPerceptron": Way("spacy_crf.AveragedPerceptron.v1", "Perceptron", {}, 10),
    "AveragedPerceptron on all": Way("spacy_crf.AveragedPerceptron.v1", "Perceptron", {}, 50),
    "BatchPerceptron": Way("spacy_crf.BatchPerceptron.v1", "Perceptron", {}, 10),
    "PassiveAggressive": Way("spacy_crf.PassiveAggressive.v1", "Perceptron", {}, 10),
    "AROW": Way("spacy_crf.AROW.v1", "Perceptron", {}, 10),
    "Adam": Way("Adam.v1", "LogLikelihood", {"learn_rate": 0.02}, 10),
    "Adam one by one": Way("Adam.v1", "LogLikelihood", {"learn_rate": 0.02}, 1),
}


def main(
    component: Annotated[str, typer.Option(help="crf_ner, crf_tagger or semicrf_ner.")] = "crf_ner",
    old: Annotated[str, typer.Option(help="What it was trained on.")] = "news",
    new: Annotated[str, typer.Option(help="Where the 50 texts are from.")] = "addresses",
    limit: Annotated[int, typer.Option(help="Most texts to train and to score by.")] = 1000,
    ways: Annotated[str, typer.Option(help="Some of the ways, between commas; all by default.")] = "",
) -> None:
    def read(nlp: Language, name: str, part: str) -> list[Example]:
        if name not in SETS:
            return list(read_examples(ASSETS / name / f"{part}.jsonl", nlp))[:limit]
        part = part if getattr(SETS[name], part) else "test"
        is_tags = component == "crf_tagger"
        sentences = read_sentences(name, part, limit=limit)
        if is_tags and SETS[name].entities:  # those of its second column
            sentences = [sentence._replace(tags=sentence.pos) for sentence in sentences]
        return make_examples(nlp.vocab, [s._replace(pos=None) for s in sentences], entities=not is_tags)

    def fifty(nlp: Language) -> list[Example]:
        examples = read(nlp, new, "train")
        random.Random(0).shuffle(examples)
        return examples[:50]

    model = _trained(component, lambda nlp: read(nlp, old, "train")).to_bytes()
    nlp = _blank(component, "LogLikelihood").from_bytes(model)
    print(f"before: {_score(nlp, read(nlp, old, 'dev')):.3f} on {old}")
    alone = _trained(component, lambda nlp: fifty(nlp))
    print(f"a model of the 50 texts alone: {_score(alone, read(alone, new, 'dev')):.3f} on {new}")
    both = _trained(component, lambda nlp: read(nlp, old, "train") + fifty(nlp))
    print(f"a model of all: {_score(both, read(both, old, 'dev')):.3f}, {_score(both, read(both, new, 'dev')):.3f}")
    print(f"| optimizer | one text | 50 of {new}: {old} | {new} |\n| --- | --- | --- | --- |")
    for name in ways.split(",") if ways else WAYS:
        way = WAYS[name]
        lowest = 1.0
        for n in range(0, 51, 10):
            nlp, sgd = _loaded(component, model, way)
            dev = read(nlp, old, "dev")
            nlp.update([dev[n]], sgd=sgd)
            lowest = min(lowest, _score(nlp, dev, sgd))
        nlp, sgd = _loaded(component, model, way)
        examples = fifty(nlp)
        for epoch in range(10):
            if way.batch_size < 50:
                random.Random(epoch).shuffle(examples)
            for batch in minibatch(examples, way.batch_size):
                nlp.update(batch, sgd=sgd)
        kept, learned = (_score(nlp, read(nlp, kind, "dev"), sgd) for kind in (old, new))
        print(f"| {name} | {lowest:.3f} | {kept:.3f} | {learned:.3f} |", flush=True)


def _blank(component: str, loss: str) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe(component, config={"loss": {"@losses": f"spacy_crf.{loss}.v1"}, "optimizer": None})
    return nlp


def _trained(component: str, read: Callable[[Language], list[Example]]) -> Language:
    nlp = _blank(component, "LogLikelihood")
    examples = read(nlp)
    nlp.initialize(lambda: examples, sgd=LBFGS(l2=0.1))
    for _ in range(3):
        nlp.update(examples, sgd=nlp._optimizer)
    return nlp


def _loaded(component: str, model: bytes, way: Way):
    nlp = _blank(component, way.loss).from_bytes(model)
    return nlp, nlp.resume_training(sgd=registry.get("optimizers", way.optimizer)(**way.settings))


def _score(nlp: Language, examples: list[Example], sgd: Any = None) -> float:
    """With the averages, if there are some, as `spacy train` does."""
    with nlp.use_params(getattr(sgd, "averages", None) or {}):
        scores = nlp.evaluate(examples)
    return scores.get("ents_f", scores.get("tag_acc"))


if __name__ == "__main__":
    typer.run(main)
