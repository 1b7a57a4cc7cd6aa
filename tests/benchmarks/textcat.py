"""Labels of texts against scikit-learn and spaCy, on the intents of snips: ``python -m tests.benchmarks.textcat``.

All see the same words (spaCy's tokenizer). CPU seconds on one thread; texts a second through ``nlp.pipe``, of which the tokenizer
is a part, are the median of runs that take turns.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPACY_CRF_THREADS", "1")

import spacy
import srsly
import typer
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from spacy.language import Language
from spacy.training import Example
from spacy.util import fix_random_seed, minibatch

from .data import data_folder
from .measure import show

EMISSIONS = {"@architectures": "spacy_crf.SparseEmissions.v1", "features": {"@misc": "spacy_crf.text_features.v1"}}
BOW = {
    "@architectures": "spacy.TextCatBOW.v3",
    "exclusive_classes": True,
    "length": 262144,
    "ngram_size": 2,
    "no_output_layer": False,
}
OURS = {
    "MaxEntText": {"@architectures": "spacy_crf.MaxEntText.v1"},
    "NaiveBayes": {"@architectures": "spacy_crf.NaiveBayes.v1", "alpha": 0.1},
}
Items = list[dict[str, Any]]


class Rival(NamedTuple):
    accuracy: float
    seconds: float  # of training
    nlp: Any  # None for scikit-learn


def read(part: str) -> Items:
    return [*srsly.read_jsonl(data_folder() / "snips_intents" / f"{part}.jsonl")]


def examples_of(nlp: Language, items: Items) -> list[Example]:
    return [Example.from_dict(nlp.make_doc(item["text"]), {"cats": {item["intent"]: 1.0}}) for item in items]


def ours(model: dict[str, Any], train: Items, test: Items, iterations: int) -> Rival:
    nlp = spacy.blank("en")
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": 0.1, "max_iterations": iterations}
    pipe = nlp.add_pipe("crf_textcat", config={"model": {**model, "emissions": EMISSIONS}, "optimizer": optimizer})
    examples = examples_of(nlp, train)

    def learn() -> None:
        nlp.initialize(lambda: examples)
        while pipe.optimizer.stop_reason(pipe.name) is None and pipe.model.attrs["node"].traits.counts is None:
            nlp.update(examples)

    return judged(nlp, learn, test)


def spacys(train: Items, test: Items, epochs: int) -> Rival:
    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("textcat", config={"model": BOW})
    examples = examples_of(nlp, train)

    def learn() -> None:
        optimizer = nlp.initialize(lambda: examples)
        for _ in range(epochs):
            for batch in minibatch(examples, 32):
                nlp.update(batch, sgd=optimizer)

    return judged(nlp, learn, test)


def judged(nlp: Language, learn: Callable[[], None], test: Items) -> Rival:
    start = time.process_time()
    learn()
    seconds = time.process_time() - start
    docs = nlp.pipe([item["text"] for item in test])
    right = [max(doc.cats, key=doc.cats.get) == item["intent"] for doc, item in zip(docs, test)]
    return Rival(100 * statistics.mean(right), seconds, nlp)


def scikit_learn(train: Items, test: Items, model: Any = None) -> Rival:
    """A classifier of scikit-learn on 1-2-grams, by default a logistic regression."""
    words = spacy.blank("en")
    counts = CountVectorizer(tokenizer=lambda text: [t.lower_ for t in words.make_doc(text)], token_pattern=None)
    counts.set_params(ngram_range=(1, 2), lowercase=False)
    texts, labels = ([[item[key] for item in items] for items in (train, test)] for key in ("text", "intent"))
    start = time.process_time()
    model = LogisticRegression(C=5.0, max_iter=1000) if model is None else model
    model.fit(counts.fit_transform(texts[0]), labels[0])
    seconds = time.process_time() - start
    return Rival(100 * model.score(counts.transform(texts[1]), labels[1]), seconds, None)


def speeds(pipelines: dict[str, Language], texts: list[str], repeats: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in pipelines}
    for _ in range(repeats):
        for name, nlp in pipelines.items():
            start = time.process_time()
            for _doc in nlp.pipe(texts):
                pass
            found[name].append(len(texts) / (time.process_time() - start))
    return {name: statistics.median(values) for name, values in found.items()}


def main(
    limit: int = typer.Option(None, help="Texts to train on; all by default."),
    models: str = typer.Option("", help="Which of ours, between commas; all by default."),
    iterations: int = typer.Option(40, help="Of L-BFGS at most: after these the accuracy stays."),
    epochs: int = typer.Option(3, help="Passes of spaCy's textcat over the training data."),
    repeats: int = typer.Option(3, help="Runs of each pipeline, of which the median counts."),
) -> None:
    """Train all on the intents of snips and compare accuracy, training time and speed."""
    train, test = read("train"), read("test")
    train = train if limit is None else train[:: max(1, len(train) // limit)]
    chosen = models.split(",") if models else OURS
    rivals = {name: ours(OURS[name], train, test, iterations) for name in chosen}
    rivals["scikit-learn, logistic regression on 1-2-grams"] = scikit_learn(train, test)
    rivals["spaCy's textcat, bag of 1-2-grams"] = spacys(train, test, epochs)
    pipelines = {"tokenizer alone": spacy.blank("en")}
    pipelines |= {name: rival.nlp for name, rival in rivals.items() if rival.nlp is not None}
    per_second = speeds(pipelines, [item["text"] for item in test] * 4, repeats)
    rows = [(name, r.accuracy, r.seconds, per_second.get(name)) for name, r in rivals.items()]
    rows.append(("tokenizer alone", None, None, per_second["tokenizer alone"]))
    show("snips: intents", ("", "accuracy, %", "CPU seconds of training", "texts/s"), rows)


if __name__ == "__main__":
    typer.run(main)
