"""Numbers: ``python -m lab.tests.benchmarks.numbers``.

Texts: numbers of `crf_scorer`, smooth (`similar = ["next"]`) and pointwise (`[]`), and ridge regression of scikit-learn on the
same words: tokens whose numbers change slowly and whose words say them with errors; and how long the sentences around a sentence
of the English Web Treebank are (the mean number of tokens of five), by the words of the sentence. RMSE, and the share of numbers
in their 90 % intervals, for three strengths of the penalty.

Passes: numbers a second of the sums of a chain, one thread.

``--graph``: the graphical lasso of P numbers that form a chain, whose correlations are given: median CPU seconds of ours and of
scikit-learn's with its own settings, which sometimes ends without convergence; and how much the precision matrix of each differs
from that of scikit-learn with the smallest tolerances.
"""

import os
import time
import warnings
from collections.abc import Iterable

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SPACY_CRF_THREADS", "1")

import numpy as np
import spacy
import typer
from sklearn.covariance import graphical_lasso as sklearn_lasso
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import Ridge
from spacy.tokens import Doc, Span, Token
from spacy.training import Example

from spacy_crf_lab.gaussian_chain import Gaussians, GaussianScores, Similar
from spacy_crf_lab.gaussian_graph import graphical_lasso
from tests.benchmarks.document import SETS, read
from tests.benchmarks.measure import show

WORDS = ["lower[0]"]


def smooth(vocab, n_docs: int, seed: int) -> list[Doc]:
    """Docs whose tokens have numbers that change slowly, and whose words say them with errors."""
    random, docs = np.random.default_rng(seed), []
    for _ in range(n_docs):
        level, words, levels = 2.0 * random.normal(), [], []
        for _ in range(40):
            level = 0.95 * level + 0.3 * random.normal()
            levels.append(10.0 + 3.0 * level)
            words.append(f"w{int(np.clip(np.round(3 * (level + random.normal())), -9, 9))}")
        docs.append(Doc(vocab, words=words))
        for token, number in zip(docs[-1], levels):
            token._.number = number
    return docs


def surroundings(nlp, part: str) -> list[Doc]:
    """Documents; the number of a sentence is the mean length of the two before it, itself, and the two behind it."""
    docs = list(read("ud_ewt_docs", SETS["ud_ewt_docs"], part, nlp))
    for doc in docs:
        sents = list(doc.sents)
        for n, sent in enumerate(sents):
            sent._.number = float(np.mean([len(near) for near in sents[max(0, n - 2) : n + 3]]))
    return docs


def plain(docs: Iterable[Doc]) -> list[Doc]:
    """The words and sentences of Docs alone."""
    return [
        Doc(doc.vocab, words=[t.text for t in doc], sent_starts=[bool(t.is_sent_start) for t in doc]) for doc in docs
    ]


def judged(unit: str, train: list[Doc], test: list[Doc], similar: list[str], l2: float) -> list[str]:
    """RMSE, coverage and CPU seconds of training and of prediction."""
    nlp = spacy.blank("en")
    emissions = {
        "@architectures": "spacy_crf.SparseEmissions.v1",
        "min_count": 2,
        "features": {"@misc": "spacy_crf.features.v1", "templates": WORDS},
    }
    model = {"@architectures": "spacy_crf_lab.GaussianChain.v1", "emissions": emissions, "similar": similar}
    optimizer = {"@optimizers": "spacy_crf.LBFGS.v1", "l2": l2}
    settings = {"attribute": "number", "unit": unit, "model": model, "optimizer": optimizer}
    pipe = nlp.add_pipe("crf_scorer", config=settings)
    examples, begin = [Example(doc, gold) for doc, gold in zip(plain(train), train)], time.process_time()
    nlp.initialize(lambda: examples)
    for _ in range(6):
        nlp.update(examples)
    trained = time.process_time()
    docs = list(pipe.pipe(plain(test)))
    predicted = time.process_time()
    scores = pipe.score([Example(doc, gold) for doc, gold in zip(docs, test)])
    seconds = (f"{trained - begin:.1f}", f"{predicted - trained:.2f}")
    return [f"{scores['number_rmse']:.4f}", f"{scores['number_coverage']:.3f}", *seconds]


def ridge(unit: str, train: list[Doc], test: list[Doc]) -> list[str]:
    """RMSE and CPU seconds of scikit-learn's ridge regression of single numbers on counts of words."""

    def parts(docs):
        found = [part for doc in docs for part in (doc if unit == "token" else doc.sents)]
        return [part.text for part in found], np.array([part._.number for part in found])

    (texts, numbers), (new, gold) = parts(train), parts(test)
    begin = time.process_time()
    counts = CountVectorizer(min_df=2, token_pattern=r"\S+")
    model = Ridge(alpha=10.0, solver="lsqr").fit(counts.fit_transform(texts), numbers)
    trained = time.process_time()
    errors = model.predict(counts.transform(new)) - gold
    return [f"{np.sqrt(np.mean(errors**2)):.4f}", "", f"{trained - begin:.1f}", f"{time.process_time() - trained:.2f}"]


def passes(n: int = 1_000_000, length: int = 25) -> str:
    """Millions of numbers a second whose sums, means and variances are computed."""
    earlier = np.arange(n - 1)
    earlier = earlier[(earlier + 1) % length != 0]
    similar = Similar(earlier, earlier + 1, np.zeros(len(earlier), np.int64), np.ones(len(earlier)))
    sums_of_weights = np.random.default_rng(0).normal(size=(n, 1))
    scores, sums, seconds = (
        GaussianScores(sums_of_weights, np.zeros(2), similar, np.arange(0, n + 1, length)),
        Gaussians(),
        [],
    )
    for _ in range(5):
        begin = time.process_time()
        sums.moments(scores)
        seconds.append(time.process_time() - begin)
    return f"{n / np.median(seconds) / 1e6:.1f}"


def chain(n_rows: int, n_numbers: int, seed: int = 0) -> np.ndarray:
    """Numbers each of which depends on the one before."""
    random, rows = np.random.default_rng(seed), np.zeros((n_rows, n_numbers))
    for j in range(n_numbers):
        rows[:, j] = 0.5 * rows[:, j - 1] * (j > 0) + random.normal(size=n_rows)
    return rows


def main(graph: bool = False, repeats: int = 5, size: int = 100) -> None:
    if graph:
        lassos(repeats, size)
        return
    Token.set_extension("number", default=None, force=True)
    Span.set_extension("number", default=None, force=True)
    nlp, rows = spacy.blank("en"), []
    tasks = {
        "smooth tokens": ("token", smooth(nlp.vocab, 200, 0), smooth(nlp.vocab, 200, 1)),
        "lengths around": ("sent", surroundings(nlp, "train"), surroundings(nlp, "test")),
    }
    for name, task in tasks.items():
        for l2 in (1.0, 10.0, 100.0):
            rows.append([f"{name}, smooth, l2 = {l2:g}", *judged(*task, ["next"], l2)])
            rows.append([f"{name}, pointwise, l2 = {l2:g}", *judged(*task, [], l2)])
        rows.append([f"{name}, scikit-learn, alpha = 10", *ridge(*task)])
    show("Numbers", ["", "RMSE", "in 90 % intervals", "training, s", "prediction, s"], rows)
    print(f"{passes()} million numbers a second")


def lassos(repeats: int, size: int) -> None:
    warnings.simplefilter("ignore")  # that scikit-learn did not converge
    correlation, rows = np.corrcoef(chain(2000, size), rowvar=False), []
    for l1 in (0.02, 0.05, 0.1, 0.2):
        seconds: list[list[float]] = [[], []]
        found = [graphical_lasso(correlation, l1)] * 2  # compiled
        exact = sklearn_lasso(correlation, alpha=l1, tol=1e-8, enet_tol=1e-9, max_iter=1000)[1]
        for _ in range(repeats):
            for n, run in enumerate((graphical_lasso, lambda s, a: sklearn_lasso(s, alpha=a)[1])):
                begin = time.process_time()
                found[n] = run(correlation, l1)
                seconds[n].append(time.process_time() - begin)
        ours, theirs = map(np.median, seconds)
        apart, edges = [np.abs(one - exact).max() for one in found], int((np.triu(found[0], 1) != 0).sum())
        seconds_of = (f"{ours:.4f}", f"{theirs:.4f}", f"{ours / theirs:.2f}")
        rows.append([l1, f"{edges:,}", *seconds_of, *(f"{one:.1e}" for one in apart)])
    header = ["l1", "pairs", "ours, s", "scikit-learn, s", "ratio", "ours apart", "scikit-learn apart"]
    show(f"Graphical lasso of {size} numbers", header, rows)


if __name__ == "__main__":
    typer.run(main)
