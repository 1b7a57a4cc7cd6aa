"""Minimal cuts and expansions of labels, here and by C++: ``python -m lab.tests.benchmarks.cuts``

Other packages: PyMaxflow (minimal cuts) and bkgco (GCO's expansions, which begin with the best label of each token). What is not
installed is left out.
"""

from collections import Counter
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from spacy_crf_lab.kernels import max_flow
from spacy_crf_lab.ties.best_labelling import LabelScores
from spacy_crf_lab.ties.graph_cut import GraphCut
from spacy_crf_lab.ties.scores import TiedScores, Ties
from spacy_crf_lab.ties.structure import TiedChains
from tests.benchmarks.measure import show, side_by_side

STRENGTHS = (0.5, 1.0, 2.0)


def main(
    nodes: Annotated[int, typer.Option(help="Number of nodes of the cuts.")] = 100_000,
    repeats: Annotated[int, typer.Option(help="Of each task.")] = 5,
) -> None:
    """Seconds of both, side by side, with all that is needed from arrays on; medians."""
    if find_spec("maxflow"):
        rows = [[name, *_cuts(*network, repeats)] for name, network in _networks(nodes)]
        header = ["graph", "PyMaxflow, s", "here, s", "times", "apart"]
        show(
            f"Minimal cuts, {nodes:,} nodes, about {3 * nodes:,} arcs",
            header,
            rows,
            note="Apart: of the flows, relative.",
        )
    if find_spec("bkgco"):
        rows = [[f"{labels} labels, strength {strength}", *_expansions(nodes // 10, labels, strength, repeats)]
                for labels in (3, 8, 20) for strength in STRENGTHS]  # fmt: skip
        header = ["graph", "bkgco, s", "here, s", "times", "energy there", "here"]
        show(f"Expansions, {nodes // 10:,} tokens with {3 * nodes // 10:,} ties", header, rows)
    rows = [[n, count] for n, count in sorted(rounds().items())]
    note = "The last one finds nothing better."
    show("Rounds of 150 graphs of 1,000 tokens, 8 labels", ["rounds", "graphs"], rows, note=note)


def rounds() -> Counter[int]:
    """How many graphs take each number of rounds of expansions, the one that finds nothing better included."""
    counts: Counter[int] = Counter()
    for seed in range(50):
        for strength in STRENGTHS:
            work = TiedChains(GraphCut()).prepare(_ties(1000, 8, strength, np.random.default_rng(seed)))
            graph = LabelScores.of(work.tied).graph
            counts[max_flow.expand(graph, graph.own.argmax(axis=1), 100, False)[0]] += 1
    return counts


def _networks(n: int) -> list[tuple[str, Any]]:
    """Tails, heads, capacities and those of the ends: arcs that lead anywhere, and a grid."""
    rng, found = np.random.default_rng(0), []
    anywhere = rng.integers(0, n, size=(2, 3 * n))
    anywhere = anywhere[:, anywhere[0] != anywhere[1]]
    cells = np.arange(int(n**0.5) ** 2).reshape(int(n**0.5), -1)
    shifted = (cells[:-1], cells[1:]), (cells[:, :-1], cells[:, 1:]), (cells[:-1, :-1], cells[1:, 1:])
    grid = np.stack([np.concatenate([pair[side].ravel() for pair in shifted]) for side in range(2)])
    for name, edges, n_nodes in (("random", anywhere, n), ("grid", grid, cells.size)):
        for strength in STRENGTHS:
            capacities = rng.random((2, edges.shape[1])) * strength
            found.append((f"{name}, strength {strength}", (*edges, *capacities, rng.normal(size=n_nodes))))
    return found


def _cuts(tails: NDArray, heads: NDArray, forth: NDArray, back: NDArray, ends: NDArray, repeats: int) -> list[float]:
    import maxflow  # pyright: ignore[reportMissingImports]

    flows = {}

    def there() -> None:
        graph = maxflow.Graph[float](len(ends), len(tails))
        graph.add_nodes(len(ends))
        graph.add_edges(tails, heads, forth, back)
        graph.add_grid_tedges(np.arange(len(ends)), np.maximum(ends, 0.0), np.maximum(-ends, 0.0))
        flows["there"] = graph.maxflow()

    def here() -> None:
        arcs, places = max_flow.lay_out(tails, heads, len(ends))
        rest, is_cut = np.empty(2 * len(tails)), np.empty(len(ends), dtype=bool)
        rest[places], rest[arcs.sister[places]] = forth, back
        flows["here"] = max_flow.minimal_cut(arcs, rest, ends.copy(), is_cut)

    seconds = side_by_side(there, here, repeats=repeats)
    return [*seconds, seconds[1] / seconds[0], abs(flows["here"] / flows["there"] - 1.0)]


def _ties(n: int, n_labels: int, strength: float, rng: np.random.Generator) -> TiedScores:
    """Scores of tokens, each a sentence, and rewards for equal labels, of four kinds."""
    edges = np.unique(np.sort(rng.integers(0, n, size=(2, 3 * n)), axis=0), axis=1).astype(np.int32)
    source, target = edges[:, edges[0] != edges[1]]
    tables = strength * np.linspace(0.25, 1.0, 4)[:, np.newaxis, np.newaxis] * np.eye(n_labels)
    kind, rows = rng.integers(0, 4, size=len(source)).astype(np.int32), np.arange(4, dtype=np.int32)[:, np.newaxis]
    ties, nothing = Ties(source, target, kind, rows, np.zeros(4, dtype=bool)), np.zeros(n_labels)
    own, none = rng.normal(size=(n, n_labels)), np.zeros((n_labels, n_labels))
    return TiedScores(own, none, nothing, nothing, tables, np.arange(n_labels), ties, np.arange(n + 1))


def _expansions(n: int, n_labels: int, strength: float, repeats: int) -> list[float]:
    from bkgco import GCO  # pyright: ignore[reportMissingImports]

    scores = _ties(n, n_labels, strength, np.random.default_rng(1))
    own, ties, energies = scores.emissions, scores.ties, {}
    rewards = scores.tables[ties.kind, 0, 0]
    # With floats, GCO may expand labels forever
    costs, of_ties = (np.round(1e6 * values).astype(np.int64) for values in (own.max() - own, rewards))

    def energy(labels: NDArray) -> float:
        return rewards[labels[ties.source] != labels[ties.target]].sum() - own[np.arange(n), labels].sum()

    def there() -> None:
        with GCO(n, n_labels, np.int64) as expanded:
            expanded.set_data_cost(costs).set_smooth_cost(1 - np.eye(n_labels, dtype=np.int64))
            expanded.set_neighbors(np.stack([ties.source, ties.target], axis=1), of_ties)
            expanded.set_labeling(own.argmax(axis=1).astype(np.int32))
            expanded.expansion()
            energies["there"] = energy(expanded.get_labeling())

    def here() -> None:
        energies["here"] = energy(TiedChains(GraphCut()).viterbi(scores).states)

    seconds = side_by_side(there, here, repeats=repeats)
    return [*seconds, seconds[1] / seconds[0], energies["there"], energies["here"]]


if __name__ == "__main__":
    typer.run(main)
