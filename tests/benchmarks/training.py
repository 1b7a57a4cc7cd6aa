"""Every optimizer against python-crfsuite's algorithm of the same name, on CoNLL-2000 with the features of CRFsuite's chunking
example: ``python -m tests.benchmarks.training``. Both sides make as many passes, one thread each, one after the other.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import spacy
import typer
from spacy.util import registry

from .data import make_doc, make_examples, read_sentences
from .measure import entity_f1, in_own_process, show
from .ours import EXAMPLE_MODEL
from .rivals import CRFsuite, CRFsuiteTagger, example_features


class Pair(NamedTuple):
    """An algorithm here and there."""

    optimizer: str
    settings: dict[str, Any]
    loss: str
    algorithm: str
    params: dict[str, Any]


PAIRS = {
    "averaged perceptron": Pair("AveragedPerceptron", {}, "Perceptron", "ap", {}),
    "passive-aggressive": Pair("PassiveAggressive", {}, "Perceptron", "pa", {}),
    "AROW": Pair("AROW", {}, "Perceptron", "arow", {}),
    "SGD, l2 = 1": Pair("SGD", {"l2": 1.0}, "LogLikelihood", "l2sgd", {"c2": 1.0}),
    "OWL-QN, l1 = l2 = 0.1": Pair("LBFGS", {"l1": 0.1, "l2": 0.1}, "LogLikelihood", "lbfgs", {"c1": 0.1, "c2": 0.1}),
}


def main(
    passes: int = typer.Option(30, help="Passes over the data (OWL-QN: iterations)."),
    only: str = typer.Option("", help="Only the algorithm whose name begins with this."),
) -> None:
    """Compare F1, training time and size."""
    os.environ["SPACY_CRF_THREADS"] = "1"
    rows = []
    for name, pair in PAIRS.items():
        if not name.startswith(only):
            continue
        theirs = in_own_process(train_crfsuite, pair, passes)
        ours = in_own_process(train_ours, pair, passes)
        (f1, seconds, n_weights), (their_f1, their_seconds, their_weights) = ours.result, theirs.result
        faster = "met" if seconds <= 0.5 * their_seconds else "MISSED"
        as_good = "met" if f1 >= their_f1 - 0.2 else "MISSED"
        cells = [
            f1,
            their_f1,
            as_good,
            seconds,
            their_seconds,
            seconds / their_seconds,
            faster,
            n_weights,
            their_weights,
        ]
        rows.append([name, *cells, ours.peak_mb, theirs.peak_mb])
    header = (
        "CoNLL-2000",
        "F1",
        "CRFsuite",
        "-0.2",
        "s",
        "CRFsuite",
        "ratio",
        "≤ 0.5",
        "non-zero",
        "CRFsuite",
        "MB",
        "MB",
    )
    show(f"Training, {passes} passes", header, rows, note="Seconds are those of the optimizer, features looked up.")


def train_ours(pair: Pair, passes: int) -> tuple[float, float, int]:
    """F1, seconds of training, weights that are not zero."""
    nlp = spacy.blank("en")
    loss = {"@losses": f"spacy_crf.{pair.loss}.v1"}
    pipe = nlp.add_pipe("crf_tagger", config={"model": EXAMPLE_MODEL, "overwrite": True, "loss": loss})
    examples = make_examples(nlp.vocab, read_sentences("conll2000", "train"), entities=False)
    make = registry.optimizers.get(f"spacy_crf.{pair.optimizer}.v1")
    nlp.initialize(lambda: examples)
    warm_up = make(**pair.settings)
    pipe.update(examples[:20], sgd=warm_up)  # compiles
    nlp.initialize(lambda: examples)
    steps = {"max_iterations": passes, "iterations_per_step": passes} if pair.optimizer == "LBFGS" else {}
    optimizer = make(**pair.settings, **(steps or {"epochs_per_step": passes}))
    seconds: list[float] = []
    step = optimizer.step

    def timed(objective, *, key):
        start = time.perf_counter()
        value = step(objective, key=key)
        seconds.append(time.perf_counter() - start)
        return value

    optimizer.step = timed
    pipe.update(examples, sgd=optimizer)
    test = read_sentences("conll2000", "test")
    with nlp.use_params(optimizer.averages or {}):
        predicted = [[token.tag_ for token in doc] for doc in nlp.pipe([make_doc(nlp.vocab, s) for s in test])]
        arrays = [node.get_param(name) for node in pipe.model.walk() for name in node.param_names]
        n_weights = sum(int(np.count_nonzero(array)) for array in arrays)
    return entity_f1([s.tags for s in test], predicted), seconds[-1], n_weights


def train_crfsuite(pair: Pair, passes: int) -> tuple[float, float, int]:
    """The same for python-crfsuite, whose own log tells the seconds."""
    vocab = spacy.blank("en").vocab
    sentences = read_sentences("conll2000", "train")
    rival = CRFsuite(example_features, {})
    rival.trainer.select(pair.algorithm)
    rival.trainer.set_params({"max_iterations": passes, **pair.params})
    rival.read((make_doc(vocab, s) for s in sentences), [s.tags for s in sentences])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.crfsuite"
        start = time.perf_counter()
        rival.trainer.train(str(path))
        seconds = time.perf_counter() - start
        tagger = CRFsuiteTagger(example_features, path)
        test = read_sentences("conll2000", "test")
        predicted = [tagger(make_doc(vocab, s)) for s in test]
        n_weights = len(tagger.tagger.info().state_features) + len(tagger.tagger.info().transitions)
    return entity_f1([s.tags for s in test], predicted), seconds, n_weights


if __name__ == "__main__":
    typer.run(main)
