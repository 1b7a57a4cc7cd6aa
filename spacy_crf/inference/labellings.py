"""Best labellings where several paths are one labelling, whose score is their sum."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels import labellings as kernels
from ..kernels.state_graph import Graph
from ..types import ChainScores
from .scaling import ChainWork
from .state_graph import GraphChain
from .structure import States, Structure

_MOST = 4  # prefixes to look at for each token


class Labellings(NamedTuple):
    """Those of one sequence."""

    found: list[tuple[float, States]]  # score, and a state of each tag; best first
    proven: bool  # whether there are none as good


def n_best(
    structure: Structure[Any], scores: ChainScores, tag_of: NDArray[np.int64], n: int, *, clamp: Any = None
) -> list[Labellings]:
    """The n best labellings of each sequence, fewer where there are fewer. Where it takes too long to prove which they are, those
    that are known, and the labellings of the best paths.

    structure (Structure): A chain, or one in a graph.
    scores (ChainScores): Of its states.
    tag_of (int64[S]): Their tags, which are in order.
    """
    work = structure.prepare(scores, clamp)
    graph = structure.arcs_of(work) if isinstance(structure, GraphChain) else _whole(work)
    states, totals = np.empty((n, work.n_tokens), dtype=np.int32), np.empty((work.n_sequences, n))
    counts, proven = np.empty(work.n_sequences, dtype=np.int64), np.empty(work.n_sequences, dtype=np.bool_)
    kernels.best_labellings(work.potentials, graph, tag_of.astype(np.int64), _MOST, states, totals, counts, proven)
    answers = []
    for b, (count, is_proven) in enumerate(zip(counts.tolist(), proven.tolist())):
        tokens = slice(int(work.starts[b]), int(work.starts[b + 1]))
        found = list(zip(totals[b, :count].tolist(), states[:count, tokens]))
        if not is_proven:
            found += _of_best_paths(structure, work.cut(work.chunk(b, b + 1)), tag_of, n, found)
        answers.append(Labellings(found[:n], is_proven))
    return answers


def _whole(work: ChainWork) -> Graph:
    """The arcs of all transitions that are possible anywhere."""
    size = work.n_states
    source, target = np.nonzero((work.transitions > -np.inf).any(axis=0))
    states, nothing = np.arange(size + 1), np.zeros(size)
    by_target = np.argsort(target, kind="stable")
    source_starts = np.searchsorted(source, states).astype(np.int64)
    target_starts = np.searchsorted(target[by_target], states).astype(np.int64)
    arcs = source.astype(np.int32), target.astype(np.int32), np.zeros(len(source))
    return Graph(source_starts, *arcs, nothing, nothing, states[:-1].astype(np.int32), target_starts, by_target)


def _of_best_paths(
    structure: Structure[Any], work: ChainWork, tag_of: NDArray[np.int64], n: int, known: list[tuple[float, States]]
) -> list[tuple[float, States]]:
    """The labellings of the best paths of one sequence, but for those that are known."""
    first = np.searchsorted(tag_of, tag_of)
    seen, found = {states.tobytes() for _, states in known}, []
    [paths] = structure.n_best(work, n)
    for _, path in paths:
        states = first[path].astype(np.int32)
        if states.tobytes() not in seen:
            seen.add(states.tobytes())
            allowed = tag_of == tag_of[states][:, np.newaxis]
            allowed &= True if work.clamp is None else work.clamp
            found.append((float(structure.log_partition(work.clamped(allowed))[0]), states))
    return sorted(found, key=lambda item: -item[0])
