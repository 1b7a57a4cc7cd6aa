"""Best labellings where several paths spell one labelling and its score is the log-sum over them."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import cut, cut_clamp
from ..kernels import labellings as kernels
from ..types import ChainScores
from .scaling import ChainWork
from .structure import States, Structure

_MOST = 4  # prefixes to look at for each token


class Labellings(NamedTuple):
    """Best labellings of one sequence."""

    found: list[tuple[float, States]]  # score, and a state of each tag; best first
    proven: bool  # whether there are none as good


def n_best(
    structure: Structure[Any], scores: ChainScores, tag_of: NDArray[np.int64], n: int, *, clamp: Any = None
) -> list[Labellings]:
    """The n best labellings of each sequence, fewer where fewer exist. If the proof takes too long, the answer consists of the
    labellings found so far and those of the best paths.

    structure (Structure): A chain, or a chain over the states of a graph.
    scores (ChainScores): Scores of the model's states.
    tag_of (int64[S]): Tag of each state, in rising order.
    n (int): How many labellings to list.
    clamp (bool[T, S]): States still allowed, or None.
    RETURNS (list[Labellings]): One entry for each sequence.
    """
    work = structure.prepare(scores, clamp)
    of_states = tag_of if work.tag_of is None else tag_of[work.tag_of]
    tags, totals = np.empty((n, work.n_tokens), dtype=np.int32), np.empty((work.n_sequences, n))
    counts, proven = np.empty(work.n_sequences, dtype=np.int64), np.empty(work.n_sequences, dtype=np.bool_)
    kernels.best_labellings(
        work.potentials, _arcs(work), of_states.astype(np.int64), _MOST, tags, totals, counts, proven
    )
    answers = []
    for b, (count, is_proven) in enumerate(zip(counts.tolist(), proven.tolist())):
        tokens = slice(int(work.starts[b]), int(work.starts[b + 1]))
        states = np.searchsorted(tag_of, tags[:count, tokens]).astype(np.int32)
        found = list(zip(totals[b, :count].tolist(), states))
        if not is_proven:
            sequence = cut(scores, tokens, np.array([0, tokens.stop - tokens.start]))
            found += _of_best_paths(structure, sequence, cut_clamp(clamp, tokens), tag_of, n, found)
        answers.append(Labellings(found[:n], is_proven))
    return answers


def _arcs(work: ChainWork) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Transitions that are possible at some token: the range of each source (int64[S + 1]), and the targets."""
    source, target = np.nonzero((work.transitions > -np.inf).any(axis=0))
    return np.searchsorted(source, np.arange(work.n_states + 1)), target


def _of_best_paths(
    structure: Structure[Any],
    sequence: ChainScores,
    clamp: Any,
    tag_of: NDArray[np.int64],
    n: int,
    known: list[tuple[float, States]],
) -> list[tuple[float, States]]:
    """Labellings that the best paths of one sequence spell, without those already known."""
    first = np.searchsorted(tag_of, tag_of)
    seen, found = {states.tobytes() for _, states in known}, []
    work = structure.prepare(sequence)
    [paths] = structure.n_best(work if clamp is None else work.clamped(clamp), n)
    for _, path in paths:
        states = first[path].astype(np.int32)
        if states.tobytes() not in seen:
            seen.add(states.tobytes())
            allowed = tag_of == tag_of[states][:, np.newaxis]
            allowed &= True if clamp is None else clamp
            found.append((float(structure.log_partition(work.clamped(allowed))[0]), states))
    return sorted(found, key=lambda item: -item[0])
