"""How long an explanation takes, and how exact it is: ``python -m tests.benchmarks.explain``.

A model of conll2000 with the component's default features; spans that it finds in the test sentences, and some that it does not.
"""

import statistics
import time
from itertools import islice

import numpy as np
import typer
from spacy.tokens import Doc, Span

from spacy_crf.explain.explain import KINDS

from . import ours
from .data import make_doc, make_examples, read_sentences
from .measure import show

LIMITS = {"contrast": 0.020, "log_odds": 0.200}  # seconds
MOST_LEFT = 1e-6  # of the target


def main(
    factory: str = typer.Option("crf_ner", help="crf_ner or semicrf_ner."),
    iterations: int = typer.Option(50, help="Of L-BFGS."),
    train: int = typer.Option(9000, help="How many sentences to train on."),
    spans: int = typer.Option(100, help="How many spans to explain, of each kind."),
) -> None:
    """CPU seconds of one explanation, and the relative error of the sum of its rows."""
    nlp = ours.make_pipeline(factory)
    examples = make_examples(nlp.vocab, read_sentences("conll2000", "train", limit=train))
    ours.train(nlp, list(examples), l2=0.1, max_iterations=iterations)
    pipe = nlp.get_pipe(factory)
    docs = (make_doc(nlp.vocab, sentence) for sentence in read_sentences("conll2000", "test"))
    asked = list(islice(choose(pipe, docs), spans))
    rows = [measure(pipe, kind, asked) for kind in KINDS if kind != "texts"]
    heads = ["kind", "median ms", "90 % ms", "worst error", "limit ms", ""]
    title = f"{len(asked)} spans of conll2000, {sum(p > 1 - 1e-9 for _, _, p in asked)} with p > 1 - 1e-9"
    show(title, heads, rows, note=f"{factory}, {len(pipe.tags())} tags, {train} sentences. CPU time.")


def choose(pipe, docs):
    """Of each text the most probable span, the least probable of those above 1 %, and one with another label."""
    for doc in docs:
        found = pipe.span_probabilities(doc, 0.01)
        if found:
            (best, p), (worst, q) = found[0], found[-1]
            other = Span(doc, best.start, best.end, label=next(name for name in pipe.labels if name != best.label_))
            yield from ((doc, best, p), (doc, worst, q), (doc, other, 0.0))


def measure(pipe, kind: str, asked: list[tuple[Doc, Span, float]]) -> list[object]:
    """Cells of a row."""
    seconds, errors = [], []
    pipe.explain(*asked[0][:2], kind=kind)  # what is compiled or loaded once
    for doc, span, _ in asked:
        begin = time.process_time()
        found = pipe.explain(doc, span, kind=kind)
        seconds.append(time.process_time() - begin)
        if found.check is not None:
            errors.append(abs(found.check) / abs(found.target))
    median, limit, worst = statistics.median(seconds), LIMITS.get(kind), max(errors, default=None)
    met = "" if limit is None else "met" if median <= limit and worst <= MOST_LEFT else "MISSED"
    cells = [kind, f"{1000 * median:.1f}", f"{1000 * np.quantile(seconds, 0.9):.1f}"]
    return [*cells, "" if worst is None else f"{worst:.1e}", "" if limit is None else f"{1000 * limit:.0f}", met]


if __name__ == "__main__":
    typer.run(main)
