"""Graphs of numbers beside scikit-learn: ``python -m tests.benchmarks.numbers``.

The graphical lasso of P numbers that form a chain, whose correlations are given: median CPU seconds of ours and of scikit-learn's
with its own settings, which sometimes ends without convergence; and how much the precision matrix of each differs from that of
scikit-learn with the smallest tolerances.
"""

import os
import time
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import typer
from sklearn.covariance import graphical_lasso as sklearn_lasso

from spacy_crf.lab.gaussian_graph import graphical_lasso

from .measure import show


def chain(n_rows: int, n_numbers: int, seed: int = 0) -> np.ndarray:
    """Numbers each of which depends on the one before."""
    random, rows = np.random.default_rng(seed), np.zeros((n_rows, n_numbers))
    for j in range(n_numbers):
        rows[:, j] = 0.5 * rows[:, j - 1] * (j > 0) + random.normal(size=n_rows)
    return rows


def main(repeats: int = 5, size: int = 100) -> None:
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
