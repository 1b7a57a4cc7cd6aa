"""Labellings of tied sequences, sequence by sequence: as kernels see them, and what makes one better."""

import numpy as np
from numpy.typing import NDArray

from ..kernels import gibbs as kernels
from ..types import ChainScores
from .structure import States
from .ties import Problem


def potentials(chains: ChainScores) -> kernels.Chains:
    transitions = np.asarray(chains.transitions, dtype=np.float64)
    transitions = transitions if transitions.ndim == 3 else transitions[np.newaxis]
    contiguous = [np.ascontiguousarray(array) for array in (chains.emissions, transitions, chains.first, chains.last)]
    return kernels.Chains(*contiguous, np.ascontiguousarray(chains.starts, dtype=np.int64))


def neighbours(problem: Problem) -> tuple[kernels.Neighbours, NDArray[np.int64]]:
    """What is at the other ends of ties, and the order (int64[2 E]) in which sources and then targets are the ends at hand."""
    tokens, ends = np.append(problem.source, problem.target), np.append(problem.target, problem.source)
    # To a target the source says table[source, target], to a source the target says table[target, source] of the turned ones
    kinds = np.append(problem.kind + len(problem.tables), problem.kind)
    order = np.argsort(tokens, kind="stable")
    bounds = np.searchsorted(tokens[order], np.arange(len(problem.chains.emissions) + 1))
    tables = np.concatenate([problem.tables, problem.tables.swapaxes(1, 2)])
    return kernels.Neighbours(bounds, ends[order], kinds[order], tables, problem.label_of.astype(np.int64)), order


def best_improved(problem: Problem, found: list[States]) -> States:
    """The best labelling of those that some (int32[T]) become when one sequence after the other is improved, given the labels of
    the others, until there is nothing to improve.

    RETURNS (int32[T]): -1 in components of which the first one lacks tokens.
    """
    chains, (ties, _) = potentials(problem.chains), neighbours(problem)
    lost = problem.lost(found[0])
    some, of_lost = np.flatnonzero(~lost[problem.component]), lost[problem.of_tokens]
    better = np.where(of_lost, 0, np.stack(found)).astype(np.int32)
    for states in better:
        kernels.ascend(chains, ties, some, len(states), states)
    best = problem.score(better).argmax(axis=0)[problem.of_tokens]
    return np.where(of_lost, -1, better[best, np.arange(better.shape[1])]).astype(np.int32)
