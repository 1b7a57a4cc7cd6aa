"""Graphs of several shapes, asked here and by other packages: ``python -m lab.tests.benchmarks.graph_rivals --python PYTHON``

PYTHON is that of an environment with pgmpy, junctiontree and pgmax, those of them that are to be compared.
"""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.types import ChainScores
from spacy_crf_lab.ties.belief_propagation import BeliefPropagation
from spacy_crf_lab.ties.junction_tree import JunctionTree
from spacy_crf_lab.ties.scores import TiedScores, Ties
from spacy_crf_lab.ties.structure import TiedChains
from tests.benchmarks.measure import show

from . import graph_packages


def main(
    python: Annotated[str, typer.Option(help="Of the other packages; without, they are left out.")] = "",
    packages: Annotated[str, typer.Option(help="Between commas.")] = ",".join(graph_packages.PACKAGES),
) -> None:
    """Log partitions by junction trees, marginals by belief propagation; then passes over trees and chains."""
    exact = {
        "tree, 60 tokens of 5 labels": _tree(60, 5),
        "4 sentences of 8 tokens, 5 labels, 6 ties": _sentences(4, 8, 5, 6),
        "6 sentences of 10 tokens, 9 labels, 6 ties": _sentences(6, 10, 9, 6),
    }
    loopy = {"40 sentences of 25 tokens, 9 labels, 150 ties": _sentences(40, 25, 9, 150, spread=0.5)}
    rows = []
    for package in packages.split(",") if python else []:
        graphs = loopy if package == "pgmax" else exact
        for (name, scores), found in zip(graphs.items(), _ask(python, package, [*graphs.values()])):
            rows.append([package, name, *_compared(scores, found)])
    show("Other packages", ["package", "graph", "CPU ms there", "here", "times", "apart"], rows, note="Equal graphs.")
    passes = [[f"{size} tags, {n} tables", *_passes(size, n)] for size in (17, 50) for n in (1, 40)]
    header = ["4,000 tokens", "sums (tree/chain)", "derivatives", "best"]
    show("A tree, and a chain of the same tokens", header, passes, note="CPU time, paired; medians of 15.")
    rows = [[f"{size} tags", *_iteration(size)] for size in (39, 77)]
    header = ["2,900 tokens, 459 ties", "chain (CPU ms)", "belief propagation", "passes", "the first to a chain's"]
    show("Belief propagation and the chains alone", header, rows, note="Marginals; medians of 15.")


def _tree(n: int, size: int) -> TiedScores:
    rng = np.random.default_rng(1)
    pairs = [(t, int(rng.integers(max(0, t - 8), t))) for t in range(1, n)]
    return _graph([n], size, pairs, rng, len(pairs), chain=False)


def _sentences(n: int, length: int, size: int, n_ties: int, spread: float = 1.0) -> TiedScores:
    rng = np.random.default_rng(2)
    pairs = [
        tuple(int(s * length + rng.integers(length)) for s in rng.choice(n, size=2, replace=False))
        for _ in range(n_ties)
    ]
    return _graph([length] * n, size, [*dict.fromkeys(pairs)], rng, 1, spread=spread)


def _graph(lengths, size, pairs, rng, n_kinds, *, chain: bool = True, spread: float = 1.0) -> TiedScores:
    """Labels are the states."""
    source, target = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    ties = Ties(
        source.copy(),
        target.copy(),
        (np.arange(len(pairs)) % n_kinds).astype(np.int32),
        np.arange(n_kinds, dtype=np.int32)[:, np.newaxis],
        np.zeros(n_kinds, dtype=bool),
    )
    transitions = spread * rng.normal(size=(size, size)) if chain else np.zeros((size, size))
    emissions, none = rng.normal(size=(sum(lengths), size)), np.zeros(size)
    tables = spread * rng.normal(size=(n_kinds, size, size))
    starts = np.append(0, np.cumsum(lengths))
    return TiedScores(emissions, transitions, none, none, tables, np.arange(size), ties, starts)


def _ask(python: str, package: str, graphs: list[TiedScores]) -> list[dict[str, Any]]:
    """What a package says of some graphs; of none if it can't be run, which is shown."""
    arrays: dict[str, Any] = {"n": len(graphs)}
    for g, scores in enumerate(graphs):
        inside = np.setdiff1d(np.arange(len(scores.emissions)), scores.starts) if scores.transitions.any() else []
        edges = [(int(t) - 1, int(t)) for t in inside] + [
            *zip(scores.ties.source.tolist(), scores.ties.target.tolist())
        ]
        tables = [*[scores.transitions] * len(inside), *scores.tables[scores.ties.kind]]
        arrays |= {f"own{g}": scores.emissions, f"edges{g}": np.array(edges), f"tables{g}": np.array(tables)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "graphs.npz"
        np.savez(path, **arrays)
        # Isolated: the files beside it have names of packages
        command = [python, "-I", graph_packages.__file__, package, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        print(f"{package} can't be asked: {done.stderr.strip().splitlines()[-1:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _compared(scores: TiedScores, found: dict[str, Any]) -> list[object]:
    """Both times, and how far both answers are apart."""
    if "log_z" in found:
        structure = TiedChains(JunctionTree(max_table=10**8))
        log_z, _ = structure.expectations(scores)
        here, apart = _median(lambda: structure.expectations(scores)), abs(log_z.sum() - found["log_z"])
    else:
        structure = TiedChains(BeliefPropagation(iterations=100))
        marginals = structure.marginals(scores)
        here, apart = _median(lambda: structure.marginals(scores)), abs(marginals - np.array(found["marginals"])).max()
    there = found["seconds"]
    return [f"{1000 * there:.1f}", f"{1000 * here:.2f}", round(there / here), f"{apart:.0e}"]


def _median(ask: Callable[[], Any], rounds: int = 15) -> float:
    """CPU seconds."""
    ask()
    return float(np.median([_seconds(ask) for _ in range(rounds)]))


def _seconds(ask: Callable[[], Any]) -> float:
    start = time.process_time()
    ask()
    return time.process_time() - start


def _passes(size: int, n_tables: int) -> list[str]:
    """How much longer questions take for trees of 20 tokens than for chains of as many."""
    rng = np.random.default_rng(3)
    pairs = [(t, t - t % 20 + int(rng.integers(t % 20))) for t in range(4000) if t % 20]
    tree, chain = _graph([20] * 200, size, pairs, rng, n_tables, chain=False), LinearChain()
    scores = ChainScores(tree.emissions, rng.normal(size=(size, size)), tree.first, tree.last, tree.starts)
    structure, shares = TiedChains(JunctionTree()), []
    for name in ("log_partition", "expectations", "viterbi"):
        asked = [lambda: getattr(structure, name)(tree), lambda: getattr(chain, name)(scores)]  # noqa: B023
        for ask in asked:
            ask()
        pairs_of_seconds = [[_seconds(ask) for ask in asked] for _ in range(15)]
        shares.append(f"{np.median([there / here for there, here in pairs_of_seconds]):.1f}")
    return shares


def _iteration(size: int) -> list[object]:
    """The chains of a document, and the same with its ties until their messages stay."""
    rng = np.random.default_rng(4)
    scores = _sentences(90, 32, size, 459, spread=0.3)
    label_of = (np.arange(size) + 2 + (size > 40)) // (4 if size > 40 else 2)
    label_of[0], n_labels = 0, 20
    tables = 0.3 * rng.normal(size=(1, n_labels, n_labels))
    emissions = 3.0 * rng.normal(size=scores.emissions.shape)
    scores = scores._replace(emissions=emissions, label_of=np.minimum(label_of, 19), tables=tables)
    structure, chain = TiedChains(BeliefPropagation()), LinearChain()
    alone = _median(lambda: chain.marginals(scores.chains))
    both = _median(lambda: structure.marginals(scores))
    # The first iteration: those after it are over fewer chains, and the latter half of all damps, which takes more sweeps
    asked = [lambda: chain.marginals(scores.chains)]
    asked += [lambda n=n: TiedChains(BeliefPropagation(iterations=n)).marginals(scores) for n in (0, 1)]
    seconds = [[_seconds(ask) for ask in asked] for _ in range(15)]
    share = np.median([(first - none) / pass_ for pass_, none, first in seconds])
    unsettled = next(n for n in range(1, 100) if not _unsettled(scores, n))
    return [f"{1000 * alone:.1f}", f"{1000 * both:.1f}", unsettled, f"{share:.2f}"]


def _unsettled(scores: TiedScores, iterations: int) -> int:
    inference = BeliefPropagation(iterations=iterations)
    TiedChains(inference).marginals(scores)
    return inference.n_unconverged


if __name__ == "__main__":
    typer.run(main)
