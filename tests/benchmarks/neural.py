"""Encoders under a CRF beside spaCy's ``ner``, and beside sparse features: ``python -m tests.benchmarks.neural``

Each learner has the same seconds of CPU, evaluations on dev not counted, and is tested as it was when it was best on dev. The
rival is what ``spacy init config`` writes for ``ner``, with the encoder of ``crf_ner_tok2vec.cfg``; ours are in ``configs/``.
"""

import hashlib
import json
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from spacy.cli.init_config import init_config
from spacy.language import Language
from spacy.schemas import ConfigSchemaTraining
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.util import load_config, minibatch, registry, resolve_dot_names
from thinc.api import Config, Optimizer

from .data import ROOT, Sentence, iob2_tags, make_doc, make_examples, read_sentences, save_docbin
from .measure import entity_f1, show, side_by_side
from .rivals import cache_folder

EVALUATIONS = 6  # on dev
MOST_DEV = 1000  # sentences
BATCH = 32  # texts, where speed is measured
MOST_OF_TRANSFORMER = 1.15  # times its time
PARTS = ("accuracy", "speed", "transformer")
LEARNERS = {"sparse": "crf_ner", "tok2vec": "crf_ner_tok2vec", "hybrid": "crf_ner_hybrid", "pool": "crf_ner_pool"}


class Learned(NamedTuple):
    """What a learner has come to."""

    dev: float  # F1 of entities, percent
    test: float
    at: int  # seconds when it was best on dev
    words_per_second: float  # that it learned from


def main(
    only: Annotated[str, typer.Option(help=f"Some of {', '.join(PARTS)}, between commas.")] = ",".join(PARTS),
    sets: Annotated[str, typer.Option(help="Sets of entities, between commas.")] = (
        "mit_restaurant,wnut17,usaddress,conll2000,jnlpba"
    ),
    learners: Annotated[str, typer.Option(help="Between commas.")] = ",".join(["ner", *LEARNERS]),
    seconds: Annotated[int, typer.Option(help="Of CPU that each may learn.")] = 60,
    repeats: Annotated[int, typer.Option(help="Turns, where speed is measured.")] = 7,
    fresh: Annotated[bool, typer.Option(help="Learn again what is known from an earlier run.")] = False,
) -> None:
    """F1 of entities after the same time; and the time of a step and of prediction, one beside the other."""
    parts_asked = only.split(",")
    if "accuracy" in parts_asked:
        rows: list[list[object]] = []
        for name in sets.split(","):
            found = {learner: learned(name, learner, seconds, fresh=fresh) for learner in learners.split(",")}
            for learner, (dev, test, at, speed) in found.items():
                gain = f"{test - found['ner'].test:+.2f}" if "ner" in found else None
                rows.append([name, learner, dev, test, gain, at, round(speed)])
        header = ["set", "learner", "dev F1", "test F1", "to ner", "best after s", "words/s"]
        show(f"Entities after {seconds} s of CPU", header, rows)
    if "speed" in parts_asked:
        show("Seconds of CPU on mit_restaurant", ["what", "ner", "tok2vec", "share", ""], speed_rows(repeats))
    if "transformer" in parts_asked:
        show("A CRF on a transformer", ["what", "alone", "with a CRF", "cost", ""], transformer_rows(repeats))


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
    train, dev = read_sentences(name, "train"), read_sentences(name, "dev", limit=MOST_DEV)
    if dev:
        return train, dev
    return [each for number, each in enumerate(train) if number % 10], train[::10]


def speed_rows(repeats: int) -> list[list[object]]:
    """Steps of training, and `nlp.pipe` after them."""
    sentences = read_sentences("mit_restaurant", "train", limit=20 * BATCH)
    steps, pipes = [], []
    for learner in ("ner", "tok2vec"):
        nlp = _untrained(_config(learner, {}), sentences)
        examples, optimizer = make_examples(nlp.vocab, sentences), nlp.create_optimizer()
        steps.append(partial(_steps, nlp, examples, optimizer))
        pipes.append(partial(_predict, nlp, sentences))
    rows = []
    for what, tasks in (("training", steps), ("nlp.pipe", pipes)):
        theirs, ours = side_by_side(*tasks, repeats=repeats, clock=time.process_time)
        rows.append([what, theirs, ours, f"{theirs / ours:.2f}", "met" if ours <= theirs else "MISSED"])
    return rows


def transformer_rows(repeats: int) -> list[list[object]]:
    """`nlp.pipe` of a small random transformer, alone and with a CRF on it."""
    if find_spec("spacy_curated_transformers") is None:
        return [["spacy-curated-transformers is not installed", None, None, None, "SKIPPED"]]
    sentences = read_sentences("mit_restaurant", "train", limit=10 * BATCH)
    config = load_config(ROOT / "configs" / "crf_ner_transformer.cfg")
    characters = sorted({character for sentence in sentences for word in sentence.words for character in word})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *characters, *(f"##{each}" for each in characters)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "pieces.txt"
        path.write_text("\n".join(pieces), encoding="utf8")
        sizes = {"hidden_width": 128, "intermediate_width": 512, "num_attention_heads": 2, "num_hidden_layers": 4}
        config["components"]["transformer"]["model"] |= {"vocab_size": len(pieces), **sizes}
        loader = {"@model_loaders": "spacy-curated-transformers.WordpieceLoader.v1", "path": str(path)}
        config["initialize"]["components"]["transformer"] = {"piecer_loader": loader}
        nlp = _untrained(config, sentences)

    def alone() -> None:
        with nlp.select_pipes(disable="crf_ner"):
            _predict(nlp, sentences)

    without, both = side_by_side(alone, partial(_predict, nlp, sentences), repeats=repeats, clock=time.process_time)
    cost = both / without
    return [["nlp.pipe", without, both, f"{cost:.2f}", "met" if cost <= MOST_OF_TRANSFORMER else "MISSED"]]


def _untrained(config: Config, sentences: list[Sentence]) -> Language:
    with TemporaryDirectory() as folder:
        save_docbin(Path(folder) / "train.spacy", sentences)
        config["paths"] |= dict.fromkeys(("train", "dev"), str(Path(folder) / "train.spacy"))
        return init_nlp(config)


def _steps(nlp: Language, examples: list[Example], optimizer: Optimizer) -> None:
    for batch in minibatch(examples, BATCH):
        nlp.update(batch, sgd=optimizer, drop=0.1, losses={})


def _predict(nlp: Language, sentences: list[Sentence]) -> None:
    for _ in nlp.pipe([make_doc(nlp.vocab, sentence) for sentence in sentences]):
        pass


if __name__ == "__main__":
    typer.run(main)
