"""Parts of speech with morphology by chains of higher order: ``python -m tests.benchmarks.higher_order``

UD English EWT has 321 labels of UPOS and FEATS. What a pass over its training data costs, how fast it is tagged and how well, for
chains of order 1 and 2 that look at what is likely; beside the exact chain, python-crfsuite and spaCy's morphologizer.
"""

import time
from collections.abc import Callable, Iterator
from itertools import compress
from operator import not_
from typing import Annotated, Any, Optional

import numpy as np
import spacy
import typer
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import minibatch

from spacy_crf.optimizers.lbfgs import LBFGS

from .data import data_folder
from .measure import memory_mb, show
from .rivals import strong_features

MODELS: dict[str, dict[str, Any]] = {
    "exact, order 1": {"@architectures": "spacy_crf.LinearChain.v1"},
    "order 1, keep 4": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 1, "keep": 4.0},
    "order 2, keep 4": {"@architectures": "spacy_crf.HigherOrder.v1", "order": 2, "keep": 4.0},
    "order 2, keep 4, parts": {
        "@architectures": "spacy_crf.HigherOrder.v1",
        "order": 2,
        "keep": 4.0,
        "label_parts": "morph",
    },
}


def main(
    only: Annotated[
        str, typer.Option(help="Models, between semicolons; crfsuite and morphologizer are some too.")
    ] = ";".join([*MODELS, "crfsuite", "morphologizer"]),
    share: Annotated[float, typer.Option(help="Of the sentences of training.")] = 1.0,
    iterations: Annotated[int, typer.Option(help="Of L-BFGS; 0 for passes only.")] = 60,
    seconds: Annotated[float, typer.Option(help="Of CPU, that the morphologizer learns.")] = 600.0,
    min_count: Annotated[int, typer.Option(help="Features that are rarer are left out.")] = 2,
    all_labels: Annotated[bool, typer.Option(help="The share begins with sentences that show all labels.")] = False,
) -> None:
    """CPU seconds of a pass, tokens/s, accuracy of the labels on the test data, one line after each model."""
    header = ["model", "labels", "tokens", "pass s", "train s", "tokens/s", "accuracy", "MB"]
    for name in only.split(";"):
        nlp = spacy.blank("en")
        train, test = (list(read(nlp, part)) for part in ("train", "test"))
        train = (_labels_first(train) if all_labels else train)[: int(share * len(train))]
        if name == "crfsuite":
            row = crfsuite(train, test, iterations, min_count)
        elif name == "morphologizer":
            row = morphologizer(nlp, train, test, seconds)
        else:
            row = ours(nlp, MODELS[name], train, test, iterations, min_count)
        show("UD English EWT, UPOS and FEATS", header, [[name, *row, memory_mb()]])


def read(nlp: Language, part: str) -> Iterator[Example]:
    """The sentences of a part, as Docs with parts of speech and morphology."""
    text = (data_folder() / "ud_ewt_docs" / f"{part}.conllu").read_text(encoding="utf8")
    for sentence in text.split("\n\n"):
        rows = [line.split("\t") for line in sentence.splitlines() if line and not line.startswith("#")]
        rows = [row for row in rows if row[0].isdigit()]
        if rows:
            words = [row[1] for row in rows]
            spaces = ["SpaceAfter=No" not in row[9] for row in rows]
            doc = Doc(nlp.vocab, words, spaces, pos=[row[3] for row in rows])
            for token, row in zip(doc, rows):
                token.set_morph(None if row[5] == "_" else row[5])
            yield Example(Doc(nlp.vocab, words, spaces), doc)


def _labels_first(train: list[Example]) -> list[Example]:
    """With the sentences in front that show a label for the first time."""
    known: set[tuple[str, str]] = set()
    shows = []
    for example in train:
        labels = {(token.pos_, str(token.morph)) for token in example.reference}
        shows.append(not labels <= known)
        known |= labels
    return [*compress(train, shows), *compress(train, map(not_, shows))]


def ours(nlp, model, train, test, iterations: int, min_count: int) -> list[Any]:
    features = {"@misc": "spacy_crf.tagger_features.v1"}
    emissions = {"@architectures": "spacy_crf.SparseEmissions.v1", "min_count": min_count, "features": features}
    pipe = nlp.add_pipe("crf_tagger", config={"attribute": "pos+morph", "model": {**model, "emissions": emissions}})
    optimizer = LBFGS(l2=0.1, iterations_per_step=5)
    nlp.initialize(lambda: train, sgd=optimizer)
    objective = pipe.training.objective(optimizer, train)
    begin = time.process_time()
    while (run := optimizer._runs.get("it")) is None or (run.iteration < iterations and run.stop_reason is None):
        optimizer.step(objective, key="it")
        if not iterations:
            break
    trained = time.process_time() - begin
    weights = objective.weights()
    objective.renew()  # in the first step lattices are those of weights that are all 0: there are none
    objective.evaluate(weights)
    passes = [_seconds(lambda: objective.evaluate(weights)) for _ in range(3)]
    pipe.clear_scores()
    tokens_per_second, found = tag(nlp, test)
    n_tokens = sum(len(example.reference) for example in train)
    return [len(pipe.labels), n_tokens, float(np.median(passes)), trained, tokens_per_second, found]


def tag(nlp: Language, test: list[Example]) -> tuple[float, float]:
    """Tokens per second, and the share with the right label."""
    docs = [example.predicted.copy() for example in test]
    list(nlp.pipe([doc.copy() for doc in docs[:300]]))
    begin = time.process_time()
    docs = list(nlp.pipe(docs))
    passed = time.process_time() - begin
    pairs = [(a, b) for doc, example in zip(docs, test) for a, b in zip(doc, example.reference)]
    right = sum(a.pos_ == b.pos_ and str(a.morph) == str(b.morph) for a, b in pairs)
    return len(pairs) / passed, right / len(pairs)


def crfsuite(train, test, iterations: int, min_count: int) -> list[Any]:
    import pycrfsuite

    def labels(doc: Doc) -> list[str]:
        return [f"{token.pos_}|{token.morph}" for token in doc]

    trainer = pycrfsuite.Trainer(verbose=False)
    for example in train:
        trainer.append(strong_features(example.reference), labels(example.reference))
    # The first pass over the data, and how long more of them take
    spent = []
    for n in (1, max(2, iterations // 10)):
        trainer.set_params({"c2": 0.1, "max_iterations": n, "feature.minfreq": min_count})
        spent.append((n, _seconds(lambda: trainer.train("/tmp/crfsuite.model"))))
    (few, short), (many, long) = spent
    n_labels = len({label for example in train for label in labels(example.reference)})
    tagger = pycrfsuite.Tagger()
    tagger.open("/tmp/crfsuite.model")
    some = test[:200]
    passed = _seconds(lambda: [tagger.tag(strong_features(example.reference)) for example in some])
    tokens = sum(len(example.reference) for example in some)
    return [n_labels, sum(len(e.reference) for e in train), (long - short) / (many - few), long, tokens / passed, None]


def morphologizer(nlp, train, test, seconds: float) -> list[Any]:
    """Its tok2vec is that of spaCy's default."""
    pipe = nlp.add_pipe("morphologizer")
    optimizer = nlp.initialize(lambda: train)
    begin, rng = time.process_time(), np.random.default_rng(0)
    while time.process_time() - begin < seconds:
        for batch in minibatch([train[i] for i in rng.permutation(len(train))], size=128):
            nlp.update(batch, sgd=optimizer, drop=0.1)
            if time.process_time() - begin > seconds:
                break
    with nlp.use_params(optimizer.averages):
        speed, accuracy = tag(nlp, test)
    n_tokens = sum(len(example.reference) for example in train)
    return [len(pipe.labels), n_tokens, None, time.process_time() - begin, speed, accuracy]


def _seconds(function: Callable) -> float:
    begin: Optional[float] = time.process_time()
    function()
    return time.process_time() - begin


if __name__ == "__main__":
    typer.run(main)
