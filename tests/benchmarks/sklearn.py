"""`spacy_crf.sklearn.CRF` against sklearn-crfsuite: ``python -m tests.benchmarks.sklearn``.

wnut17 with the features of sklearn-crfsuite's tutorial (its Spanish texts are not at hand). Fits take turns, measured in CPU
seconds, ours on one thread as CRFsuite's; objectives are compared where both have converged.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("SPACY_CRF_THREADS", "1")

import typer
from sklearn_crfsuite import CRF as CRFsuite

from spacy_crf.sklearn import CRF

from .data import read_sentences
from .measure import show, token_accuracy

SETTINGS = {"c1": 0.1, "c2": 0.1, "all_possible_transitions": True}
CONVERGED = {"max_iterations": 2000, "delta": 1e-7}


def tutorial_features(words: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the tutorial but for its parts of speech, which wnut17 has not."""
    of_neighbours = [
        {"word.lower()": word.lower(), "word.istitle()": word.istitle(), "word.isupper()": word.isupper()}
        for word in words
    ]
    sequence = []
    for t, word in enumerate(words):
        own: dict[str, Any] = {"bias": 1.0, **of_neighbours[t]}
        own.update({"word[-3:]": word[-3:], "word[-2:]": word[-2:], "word.isdigit()": word.isdigit()})
        for offset, edge in ((-1, "BOS"), (1, "EOS")):
            if 0 <= t + offset < len(words):
                own.update({f"{offset:+d}:{name}": value for name, value in of_neighbours[t + offset].items()})
            else:
                own[edge] = True
        sequence.append(own)
    return sequence


def main(
    repeats: int = typer.Option(3, help="Fits of each, of which the median counts."),
    limit: int = typer.Option(None, help="Sentences to train on; all by default."),
) -> None:
    """Fit both on the same features and compare time, objective, weights and accuracy."""
    train, test = (read_sentences("wnut17", part, limit=limit) for part in ("train", "test"))
    X, y = [tutorial_features(s.words) for s in train], [s.tags for s in train]
    X_test, y_test = [tutorial_features(s.words) for s in test], [s.tags for s in test]
    CRF(max_iterations=2).fit(X[:20], y[:20]).predict(X[:20])  # compiles, or reads what was compiled

    ours, theirs = CRF(max_iterations=100, **SETTINGS), CRFsuite(max_iterations=100, **SETTINGS)
    seconds = paired(repeats, lambda: ours.fit(X, y), lambda: theirs.fit(X, y))
    predicting = paired(repeats, lambda: ours.predict(X_test), lambda: theirs.predict(X_test))
    end, their_end = CRF(**SETTINGS, **CONVERGED).fit(X, y), CRFsuite(**SETTINGS, **CONVERGED).fit(X, y)
    objective, their_objective = end.objective_, their_end.training_log_.last_iteration["loss"]
    rows = [
        ("CPU seconds of fit, 100 iterations", *seconds, seconds[1] / seconds[0], "≥ 1.5"),
        ("objective then", ours.objective_, theirs.training_log_.last_iteration["loss"], None, ""),
        ("objective, converged", objective, their_objective, objective / their_objective, "± 1e-4"),
        ("weights, converged", len(end.state_features_), len(their_end.state_features_), None, ""),
        (
            "token accuracy, %",
            token_accuracy(y_test, end.predict(X_test)),
            token_accuracy(y_test, their_end.predict(X_test)),
            None,
            "",
        ),
        ("CPU seconds of predict", *predicting, predicting[1] / predicting[0], ""),
    ]
    show("wnut17, features of the tutorial", ("", "spacy_crf", "sklearn-crfsuite", "ratio", "must"), rows)


def paired(repeats: int, *tasks: Callable[[], Any]) -> list[float]:
    """Median CPU seconds of each task, in turns."""
    seconds: list[list[float]] = [[] for _ in tasks]
    for _ in range(repeats):
        for task, of_task in zip(tasks, seconds):
            start = time.process_time()
            task()
            of_task.append(time.process_time() - start)
    return [statistics.median(of_task) for of_task in seconds]


if __name__ == "__main__":
    typer.run(main)
