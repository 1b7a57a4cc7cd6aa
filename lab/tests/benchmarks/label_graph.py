"""Several labels of a text, on the tags of Stack Overflow: ``python -m lab.tests.benchmarks.label_graph``.

Independent labels, graphs of labels and trees of this package against scikit-learn's ClassifierChain of logistic regressions on
1-2-grams and spaCy's textcat_multilabel. All see the words of spaCy's tokenizer. Micro-F1 of the labels whose probability
reaches 0.5, or the threshold that is best on dev, and of the most probable set of labels (of scikit-learn its predictions);
exact matches of that set. ``--graph`` times the graph alone.
"""

import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPACY_CRF_THREADS", "1")

import numpy as np
import spacy
import srsly
import typer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import ClassifierChain
from spacy.language import Language
from spacy.training import Example
from spacy.util import fix_random_seed, minibatch

from spacy_crf_lab.label_cliques import Annotated, LearnedGraph
from tests.benchmarks.data import data_folder
from tests.benchmarks.measure import show

WORDS = {"@misc": "spacy_crf.features.v1", "templates": ["lower[0]", "lower[-1]|lower[0]"]}
CLIQUES: dict[str, dict[str, Any]] = {
    "independent": {},
    "LearnedGraph": {"labels": {"@misc": "spacy_crf_lab.LearnedGraph.v1"}},
    "LabelTree": {"labels": {"@misc": "spacy_crf_lab.LabelTree.v1"}},
}
Items = list[dict[str, Any]]
THRESHOLDS = [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5]


class Judged(NamedTuple):
    half: float  # micro-F1 with a threshold of 0.5
    fitted: float  # and with that of dev
    best: float  # and of the most probable set of labels
    exact: float  # share of texts all of whose labels are right
    seconds: float  # of training


def read(part: str, limit: int | None = None) -> Items:
    items = [*srsly.read_jsonl(data_folder() / "stackoverflow_tags" / f"{part}.jsonl")]
    return items if limit is None else items[:limit]


def matrix(items: Items, labels: list[str]) -> np.ndarray:
    return np.array([[label in item["cats"] for label in labels] for item in items])


def micro_f(found: np.ndarray, gold: np.ndarray) -> float:
    return 200 * (found & gold).sum() / max(1, found.sum() + gold.sum())


def judged(
    probabilities: Callable[[Items], np.ndarray], best: Callable[[Items], np.ndarray], dev: Items, test: Items,
    labels: list[str], seconds: float,
) -> Judged:  # fmt: skip
    of_dev, of_test, gold = probabilities(dev), probabilities(test), matrix(test, labels)
    threshold = max(THRESHOLDS, key=lambda t: micro_f(of_dev >= t, matrix(dev, labels)))
    chosen = best(test)
    return Judged(
        micro_f(of_test >= 0.5, gold), micro_f(of_test >= threshold, gold), micro_f(chosen, gold),
        100 * (chosen == gold).all(axis=1).mean(), seconds,
    )  # fmt: skip


def examples_of(nlp: Language, items: Items, labels: list[str]) -> list[Example]:
    return [
        Example.from_dict(
            nlp.make_doc(item["text"]), {"cats": {label: float(label in item["cats"]) for label in labels}}
        )
        for item in items
    ]


def learned(nlp: Language, labels: list[str], items: Items) -> np.ndarray:
    docs = nlp.pipe([item["text"] for item in items])
    return np.array([[doc.cats[label] for label in labels] for doc in docs])


def ours(
    cliques: dict[str, Any], train: Items, dev: Items, test: Items, labels: list[str], l2: float, **emissions: Any
) -> Judged:
    nlp = spacy.blank("en")
    layer = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": WORDS, "min_count": 2}
    layer |= {"possible_states": True, **emissions}
    model = {"@architectures": "spacy_crf_lab.LabelGraph.v1", "emissions": layer, "cliques": cliques}
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": l2, "max_iterations": 60}
    pipe: Any = nlp.add_pipe("crf_textcat", config={"multilabel": True, "model": model, "optimizer": optimizer})
    examples = examples_of(nlp, train, labels)
    start = time.process_time()
    nlp.initialize(lambda: examples)
    while pipe.optimizer.stop_reason(pipe.name) is None:
        nlp.update(examples)
    seconds = time.process_time() - start

    def best(items: Items) -> np.ndarray:
        scores = pipe.model.predict([nlp.make_doc(item["text"]) for item in items])
        return pipe.decoding.structure.viterbi(scores).states[:, [pipe.labels.index(label) for label in labels]] == 1

    return judged(lambda items: learned(nlp, labels, items), best, dev, test, labels, seconds)


def chain(train: Items, dev: Items, test: Items, labels: list[str], c: float) -> Judged:
    """scikit-learn's ClassifierChain: each label by a logistic regression that sees the labels before it."""
    words = spacy.blank("en")
    counts = CountVectorizer(tokenizer=lambda text: [t.lower_ for t in words.make_doc(text)], token_pattern=None)
    counts.set_params(ngram_range=(1, 2), lowercase=False, binary=True)
    start = time.process_time()
    model = ClassifierChain(LogisticRegression(C=c, solver="liblinear"), order="random", random_state=0)
    model.fit(counts.fit_transform([item["text"] for item in train]), matrix(train, labels).astype(int))
    seconds = time.process_time() - start

    def ask(question: Callable) -> Callable[[Items], np.ndarray]:
        return lambda items: question(counts.transform([item["text"] for item in items]))

    return judged(ask(model.predict_proba), lambda items: ask(model.predict)(items) == 1, dev, test, labels, seconds)


def spacys(train: Items, dev: Items, test: Items, labels: list[str], epochs: int) -> Judged:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat_multilabel")
    examples = examples_of(nlp, train, labels)
    start = time.process_time()
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(epochs):
        for batch in minibatch(examples, 64):
            nlp.update(batch, sgd=optimizer)
    seconds = time.process_time() - start
    return judged(
        lambda items: learned(nlp, labels, items), lambda items: learned(nlp, labels, items) >= 0.5, dev, test, labels,
        seconds,
    )  # fmt: skip


def time_graph(train: Items, labels: list[str]) -> None:
    present = matrix(train, labels)
    template, rows = LearnedGraph(), []
    for method in ("nodewise", "graphical_lasso", "chow_liu"):
        for _ in range(2):  # the first call compiles
            start = time.process_time()
            known = Annotated.of([(np.concatenate([present, ~present], axis=1), None)], tuple(labels), "graph")
            edges = [*LearnedGraph(method=method, max_degree=len(labels)).pairs(known)]
            seconds = time.process_time() - start
        rows.append((method, len(edges), seconds))
    columns = (f"{len(labels)} labels x {len(train):,} titles, l1 = {template.l1}", "pairs", "CPU seconds")
    show("stackoverflow_tags: graphs", columns, rows)


def main(
    limit: int = typer.Option(None, help="Titles to train on; all by default."),
    rivals: str = typer.Option(",".join([*CLIQUES, "chain", "spacy"]), help="Which, between commas."),
    l2: float = typer.Option(0.1, help="Of L-BFGS."),
    c: float = typer.Option(5.0, help="C of scikit-learn's regressions."),
    epochs: int = typer.Option(3, help="Passes of spaCy's textcat_multilabel over the training data."),
    graph: bool = typer.Option(False, "--graph", help="Time the graph alone."),
) -> None:
    """Train all on titles of questions, and compare micro-F1, exact matches and seconds of training."""
    train, dev, test = read("train", limit), read("dev"), read("test")
    labels = sorted({label for item in read("train") for label in item["cats"]})
    if graph:
        return time_graph(train, labels)
    makers: dict[str, Callable[[], Judged]] = {
        **{name: lambda name=name: ours(CLIQUES[name], train, dev, test, labels, l2) for name in CLIQUES},
        "chain": lambda: chain(train, dev, test, labels, c),
        "spacy": lambda: spacys(train, dev, test, labels, epochs),
    }
    rows = [(name, *makers[name]()) for name in rivals.split(",")]
    columns = ("", "micro-F1 at 0.5", "at dev's threshold", "best set", "exact match, %", "CPU seconds of training")
    show(f"stackoverflow_tags: {len(train):,} titles", columns, rows)


if __name__ == "__main__":
    typer.run(main)
