"""How fast optimizers find the minimum: ``python -m lab.tests.benchmarks.classic_optimizers``.

Three tables on conll2000: evaluations and CPU seconds until a log-likelihood is within 1e-4 of its minimum; passes and CPU
seconds until max-margin training has a relative duality gap; and, where nltk can be imported, an iteration of GIS and IIS beside
nltk's with equal features.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Optional

import numpy as np
import spacy
import typer

from spacy_crf.models.objective import CorpusObjective
from tests.benchmarks.data import make_examples, read_sentences
from tests.benchmarks.measure import show

from ..util import registered

NEAR = 1e-4
SMOOTH = {
    "L-BFGS": ("LBFGS", {}),
    "Newton": ("Newton", {}),
    "conjugate gradients": ("ConjugateGradient", {}),
    "preconditioned": ("ConjugateGradient", {"preconditioner": "diagonal"}),
    "mixed": ("ConjugateGradient", {"preconditioner": "diagonal", "mixed": True}),
    "GIS": ("GIS", {}),
    "IIS": ("IIS", {}),
}
DUAL = {
    "exponentiated gradients": "ExponentiatedGradient",
    "Frank-Wolfe": "FrankWolfe",
    "SMO": "SMO",
    "cutting planes": "CuttingPlane",
}
GAPS = (1e-1, 1e-2, 1e-3)
TEMPLATES = ["bias", "lower[-2..2]", "shape[0]", "suffix3[0]", "lower[-1]|lower[0]"]


def main(
    limit: int = typer.Option(2000, help="Sentences; 8,936 are all."),
    l2: float = typer.Option(0.1, help="Of the log-likelihood."),
    svm_l2: float = typer.Option(30.0, help="Of max-margin training."),
    most: int = typer.Option(300, help="Evaluations, or passes, after which an optimizer is stopped."),
    nltk_limit: int = typer.Option(500, help="Sentences for nltk."),
) -> None:
    """All tables."""
    title = f"Evaluations until the objective is within {NEAR} of the minimum, l2 = {l2}, {limit} sentences"
    header = ("optimizer", "evaluations", "iterations", "CPU seconds", "above the minimum")
    show(title, header, to_the_minimum(limit=limit, l2=l2, most=most))
    gaps = [label for gap in GAPS for label in (f"passes to {gap:g}", "CPU seconds")]
    title = f"Max-margin training to a relative duality gap, l2 = {svm_l2}, {limit} sentences"
    rows = to_the_gaps(limit=limit, l2=svm_l2, most=most)
    show(title, ("optimizer", *gaps, "gap at the end", "passes"), rows)
    with suppress(ImportError):
        show("CPU seconds of an iteration", ("", "spacy_crf", "nltk", "times"), beside_nltk(limit=nltk_limit))


def to_the_minimum(*, limit: int = 2000, l2: float = 0.1, most: int = 300) -> list[list[Any]]:
    """Name, evaluations, iterations, CPU seconds, and how far above the minimum each optimizer of a log-likelihood ended."""
    nlp, examples = prepared("LogLikelihood", limit)
    rows, least = [], None
    for name, (optimizer, settings) in [("", SMOOTH["L-BFGS"]), *SMOOTH.items()]:
        made = make(optimizer, l2=l2, tolerance=0.0, delta=0.0, iterations_per_step=1, **settings)
        with counting() as evaluations:
            objective = from_zero(nlp, made, examples)
            start = time.process_time()
            goal = -math.inf if least is None else least * (1.0 + NEAR)
            value = math.inf
            while value > goal and made.stop_reason("x") is None and evaluations[0] < (most if least else 2 * most):
                value = made.step(objective, key="x")
        if least is None:
            least = value
        else:
            seconds = time.process_time() - start
            rows.append([name, evaluations[0], made.iterations_made("x"), seconds, value / least - 1.0])
    return rows


def to_the_gaps(
    *, limit: int = 2000, l2: float = 30.0, most: int = 300, names: Optional[list[str]] = None
) -> list[list[Any]]:
    """Name, passes and CPU seconds to each of the gaps, the last gap and all passes of each optimizer in the dual. Those that go
    through the sequences one by one take a second pass, in which they measure the gap: it is not counted.
    """
    nlp, examples = prepared("MaxMargin", limit)
    rows = []
    for name in names or DUAL:
        each = {"iterations_per_step": 1} if DUAL[name] == "CuttingPlane" else {}
        warm = make(DUAL[name], l2=l2, **each)
        warm.step(from_zero(nlp, warm, examples[:20]), key="x")  # compiles
        made = make(DUAL[name], l2=l2, gap_tolerance=GAPS[-1], **each)
        objective, gap = from_zero(nlp, made, examples), math.inf
        reached: dict[float, tuple[int, float]] = {}
        start, n = time.process_time(), 0
        while gap > GAPS[-1] and n < most:
            value, n = made.step(objective, key="x"), n + 1
            gap = made.duality_gap("x") / value
            for least in GAPS:
                if gap <= least:
                    reached.setdefault(least, (n, time.process_time() - start))
        found = [figure for least in GAPS for figure in reached.get(least, (None, None))]
        rows.append([name, *found, gap, n])
    return rows


def beside_nltk(*, limit: int = 500, iterations: int = 3) -> list[list[Any]]:
    """CPU seconds of an iteration of GIS and of IIS: ours, nltk's, and their ratio. Tokens do not depend on each other, and both
    have a weight for each feature and tag that occur together."""
    from nltk.classify import maxent

    sentences = read_sentences("conll2000", "train", limit=limit)
    emissions = {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "features": {"@misc": "spacy_crf.features.v1", "templates": TEMPLATES, "padding": False},
    }
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_tagger", config={"model": {"@architectures": "spacy_crf_lab.MaxEnt.v1", "emissions": emissions}})
    examples = make_examples(nlp.vocab, sentences, entities=False)
    nlp.initialize(lambda: examples, sgd=make("GIS"))
    tokens = [token for sentence in sentences for token in featuresets(sentence)]
    rows = []
    for name, train in (
        ("GIS", maxent.train_maxent_classifier_with_gis),
        ("IIS", maxent.train_maxent_classifier_with_iis),
    ):
        ours = make(name, l2=0.0, iterations_per_step=1)
        objective = from_zero(nlp, ours, examples)
        ours.step(objective, key="x")
        seconds = []
        for _ in range(20):
            start = time.process_time()
            ours.step(objective, key="x")
            seconds.append(time.process_time() - start)
        took = []
        for n in (1, 1 + iterations):
            start = time.process_time()
            train(tokens, trace=0, max_iter=n)
            took.append(time.process_time() - start)
        theirs, own = (took[1] - took[0]) / iterations, float(np.median(seconds))
        rows.append([name, own, theirs, theirs / own])
    return rows


def featuresets(sentence: Any) -> Iterator[tuple[dict[str, str], str]]:
    """The features of `TEMPLATES` at each token of a sentence, with its tag, as nltk takes them."""
    words = [word.lower() for word in sentence.words]
    shapes = [token.shape_ for token in spacy.tokens.Doc(_VOCAB, words=sentence.words)]
    for t, tag in enumerate(sentence.tags):
        around = {f"lower{n}": words[t + n] for n in range(-2, 3) if 0 <= t + n < len(words)}
        if t:
            around["pair"] = f"{words[t - 1]}|{words[t]}"
        yield {"bias": "1", "shape": shapes[t], "suffix": sentence.words[t][-3:], **around}, tag


_VOCAB = spacy.blank("en").vocab


def prepared(loss: str, limit: int) -> tuple[Any, list[Any]]:
    """A pipeline that knows the features of the sentences, and the sentences."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"loss": {"@losses": registered(loss)}})
    examples = make_examples(nlp.vocab, read_sentences("conll2000", "train", limit=limit))
    nlp.initialize(lambda: examples, sgd=make("LBFGS" if loss == "LogLikelihood" else "CuttingPlane"))
    return nlp, examples


def make(optimizer: str, **settings: Any) -> Any:
    return spacy.registry.optimizers.get(registered(optimizer))(**settings)


def from_zero(nlp: Any, optimizer: Any, examples: list[Any]) -> Any:
    """The objective of the pipeline's component for an optimizer, at weights of 0."""
    [(_, pipe)] = nlp.pipeline
    objective = pipe.training.objective(optimizer, examples)
    objective.assign(np.zeros(len(objective.weights())))
    return objective


@contextmanager
def counting() -> Iterator[list[int]]:
    """Count evaluations of objectives, of their losses or of others."""
    evaluate_loss, found = CorpusObjective.evaluate_loss, [0]

    def counted(self: Any, *given: Any, **told: Any) -> Any:
        found[0] += 1
        return evaluate_loss(self, *given, **told)

    CorpusObjective.evaluate_loss = counted
    try:
        yield found
    finally:
        CorpusObjective.evaluate_loss = evaluate_loss


if __name__ == "__main__":
    typer.run(main)
