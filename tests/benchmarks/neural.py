"""Encoders under a CRF beside spaCy's ``ner``, and beside sparse features: ``python -m tests.benchmarks.neural``

Each learner has the same seconds of CPU, evaluations on dev not counted, and is tested as it was when it was best on dev. The
rival is what ``spacy init config`` writes for ``ner``, with the encoder of ``crf_ner_tok2vec.cfg``; ours are in ``configs/``.
"""

import hashlib
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from spacy.cli.init_config import init_config
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import load_config, registry, resolve_dot_names
from thinc.api import Config

from .data import ROOT, Sentence, iob2_tags, make_doc, read_sentences, save_docbin
from .measure import entity_f1, show
from .rivals import cache_folder

EVALUATIONS = 10  # on dev
LEARNERS = {"sparse": "crf_ner", "tok2vec": "crf_ner_tok2vec", "hybrid": "crf_ner_hybrid", "pool": "crf_ner_pool"}


class Learned(NamedTuple):
    """What a learner has come to."""

    dev: float  # F1 of entities, percent
    test: float
    at: int  # seconds when it was best on dev
    words_per_second: float  # that it learned from


def main(
    sets: Annotated[str, typer.Option(help="Sets of entities, between commas.")] = (
        "mit_restaurant,wnut17,usaddress,conll2000,jnlpba"
    ),
    learners: Annotated[str, typer.Option(help="Between commas.")] = ",".join(["ner", *LEARNERS]),
    seconds: Annotated[int, typer.Option(help="Of CPU that each may learn.")] = 60,
    fresh: Annotated[bool, typer.Option(help="Measure again what is known from an earlier run.")] = False,
) -> None:
    """F1 of entities after the same time, and how many words each learned from in a second."""
    rows: list[list[object]] = []
    for name in sets.split(","):
        for learner in learners.split(","):
            found = learned(name, learner, seconds, fresh=fresh)
            rows.append([name, learner, found.dev, found.test, found.at, round(found.words_per_second)])
    header = ["set", "learner", "dev F1", "test F1", "seconds", "words/s"]
    show(f"Entities after {seconds} s of CPU", header, rows)


def learned(name: str, learner: str, seconds: int, *, fresh: bool = False, **overrides: Any) -> Learned:
    """What a learner comes to on a set, from an earlier run where it is known.

    overrides: Of the config, by dotted names.
    """
    config = _config(learner, overrides)
    digest = hashlib.sha256(config.to_str().encode("utf8")).hexdigest()[:8]
    path = cache_folder() / f"neural-{learner}-{name}-{seconds}-{digest}.json"
    if fresh or not path.is_file():
        with TemporaryDirectory() as folder:
            found = _learn(config, name, seconds, Path(folder))
        path.write_text(json.dumps({"overrides": overrides, **found._asdict()}), encoding="utf8")
    values = json.loads(path.read_text(encoding="utf8"))
    return Learned(*(values[field] for field in Learned._fields))


def _config(learner: str, overrides: dict[str, Any]) -> Config:
    config = load_config(ROOT / "configs" / f"{LEARNERS.get(learner, LEARNERS['tok2vec'])}.cfg")
    if learner == "ner":
        encoder = config["components"]["crf_ner"]["model"]["tok2vec"]
        config = init_config(lang="en", pipeline=["ner"], optimize="efficiency", gpu=False)
        config["components"]["tok2vec"]["model"] = encoder
        config["components"]["ner"]["model"]["tok2vec"]["width"] = encoder["width"]
    return Config().from_str(config.to_str(), interpolate=False, overrides=overrides)


def _learn(config: Config, name: str, seconds: int, folder: Path) -> Learned:
    """Trains as `spacy train` does, until the time is over or an optimizer of ours has converged."""
    for part, sentences in zip(("train", "dev"), parts(name)):
        config["paths"][part] = str(folder / f"{part}.spacy")
        save_docbin(folder / f"{part}.spacy", sentences)
    nlp = init_nlp(config)
    config = nlp.config.interpolate()
    training = registry.resolve(config["training"], schema=ConfigSchemaTraining)
    train, dev = resolve_dot_names(config, [training["train_corpus"], training["dev_corpus"]])
    optimizer, dev_examples = training["optimizer"], list(dev(nlp))
    n_words, spent, best = 0, 0.0, Best()
    start = time.process_time()
    for _, batch in create_train_batches(nlp, train, training["batcher"], 0):
        nlp.update(batch, drop=training["dropout"], sgd=False, losses={})
        for _, pipe in nlp.components:
            pipe.finish_update(optimizer)
        optimizer.step_schedules()
        n_words += sum(len(example.predicted) for example in batch)
        spent += time.process_time() - start
        has_ended = spent >= seconds or getattr(optimizer, "stop_reason", lambda key: None)("crf_ner") is not None
        if has_ended or spent >= best.evaluations * seconds / EVALUATIONS:
            with nlp.use_params(optimizer.averages):
                best.meet(nlp, 100 * nlp.evaluate(dev_examples)["ents_f"], spent)
        if has_ended:
            break
        start = time.process_time()
    nlp.from_bytes(best.saved)
    test = read_sentences(name, "test")
    tagged = [iob2_tags(doc) for doc in nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in test])]
    return Learned(best.dev, entity_f1([sentence.tags for sentence in test], tagged), round(best.at), n_words / spent)


class Best:
    """A pipeline as it was when it was best on dev."""

    dev, at, saved, evaluations = -1.0, 0.0, b"", 1

    def meet(self, nlp: Language, dev: float, spent: float) -> None:
        self.evaluations += 1
        if dev > self.dev:
            self.dev, self.at, self.saved = dev, spent, nlp.to_bytes()


def parts(name: str) -> tuple[list[Sentence], list[Sentence]]:
    """Of the training data and of dev: every tenth sentence of the training data where a set has no such file."""
    train, dev = read_sentences(name, "train"), read_sentences(name, "dev")
    if dev:
        return train, dev
    return [each for number, each in enumerate(train) if number % 10], train[::10]


if __name__ == "__main__":
    typer.run(main)
