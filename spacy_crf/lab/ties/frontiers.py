"""Single sequences with ties inside them: sums along the sequence, which know the labels of tokens whose ties are open."""

from collections.abc import Iterator
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ...types import ChainScores, Floats
from ..kernels import frontier as kernels
from .scores import Problem

_MOST = 3.0  # frontiers for each state and token, on average: with more of them a junction tree is quicker
_MOST_OPEN = 4  # ties at once


def sum_up(
    problem: Problem,
    log_z: Floats,
    weights: Optional[Floats] = None,
    d_chains: Optional[ChainScores] = None,
    d_tables: Optional[Floats] = None,
) -> None:
    """Sets log partitions (float64[C], NaN where they are asked for) of components that are a single sequence of which few ties
    are open at once; and adds the derivative of their weighted sum (float64[C]), if that is asked for. NaN stays where numbers
    are not trusted."""
    chosen = list(chosen_of(problem, np.isnan(log_z)))
    if not chosen:
        return
    chains = problem.chains
    transitions = chains.transitions if chains.transitions.ndim == 3 else chains.transitions[np.newaxis]
    top = _finite(transitions.max(axis=(1, 2), initial=-np.inf))
    steps = np.exp(transitions - top[:, np.newaxis, np.newaxis])
    of_tables = problem.tables.max(axis=(1, 2), initial=-np.inf)
    tables, label_of = np.exp(problem.tables - of_tables[:, np.newaxis, np.newaxis]), problem.label_of.astype(np.int64)
    derives = weights is not None and d_chains is not None and d_tables is not None
    d_steps = d_chains.transitions.reshape(transitions.shape) if derives else np.zeros((0, *transitions.shape[1:]))
    own = problem.own
    for c, tokens, ties, frontier in chosen:
        part = own[tokens]
        largest = _finite(part.max(axis=1, initial=-np.inf))
        rows = tokens if len(steps) > 1 else slice(1)
        factors = kernels.Factors(np.exp(part - largest[:, np.newaxis]), steps[rows], tables, label_of)
        n_tokens = len(part)
        if derives:
            before = [array.copy() for array in (d_steps[rows], d_tables)]
            d_own, into = np.zeros(part.shape), (d_steps[rows], d_tables)
        else:
            d_own, into = part[:0], (d_steps, tables[:0])
        found = kernels.sum_up(factors, frontier, float(weights[c]) if derives else 0.0, d_own, *into)
        if np.isnan(found):
            if derives:
                for array, old in zip(into, before):
                    array[:] = old
            continue
        of_steps = top[tokens][1:].sum() if len(steps) > 1 else (n_tokens - 1) * top[0]
        log_z[c] = found + largest.sum() + of_steps + of_tables[problem.kind[ties]].sum()
        if derives:
            d_chains.emissions[tokens] += d_own
            d_chains.first[:] += d_own[0]
            d_chains.last[:] += d_own[-1]


def _finite(maxima: Floats) -> Floats:
    return np.where(maxima > -np.inf, maxima, 0.0)


def chosen_of(problem: Problem, asked: NDArray[np.bool_]) -> Iterator[tuple[int, slice, slice, kernels.Frontier]]:
    """The components (of bool[C]) that this is for, their tokens and ties, and what is open where."""
    n_sequences = np.bincount(problem.component, minlength=len(problem.firsts))
    for c in np.flatnonzero(asked & (n_sequences == 1)).tolist():
        b, ties = int(problem.firsts[c]), slice(int(problem.bounds[c]), int(problem.bounds[c + 1]))
        tokens = slice(int(problem.chains.starts[b]), int(problem.chains.starts[b + 1]))
        ends = problem.source[ties] - tokens.start, problem.target[ties] - tokens.start
        n_tokens = tokens.stop - tokens.start
        frontier = _frontier(*ends, problem.kind[ties], n_tokens, problem.n_labels)
        if frontier is not None and frontier.starts[-1] <= _MOST * len(problem.label_of) * n_tokens:
            yield c, tokens, ties, frontier


def _frontier(
    source: NDArray[np.int64], target: NDArray[np.int64], kind: NDArray[np.int64], n: int, n_labels: int
) -> Optional[kernels.Frontier]:
    """Of a sequence of n tokens; None if too many are open somewhere."""
    first, last = np.minimum(source, target), np.maximum(source, target)
    until = np.full(n, -1)
    np.maximum.at(until, first, last)
    order = np.argsort(last, kind="stable")
    bounds = np.searchsorted(last[order], np.arange(n + 1))
    is_open: list[int] = []
    n_open, places, closing = np.zeros(n, dtype=np.int64), np.zeros(len(order), dtype=np.int64), []
    for t in range(n):
        n_open[t] = len(is_open)
        for e in range(bounds[t], bounds[t + 1]):
            places[e] = is_open.index(int(first[order[e]]))
        closing.append([place for place, u in enumerate(is_open) if until[u] == t])
        is_open = [u for u in is_open if until[u] != t]
        if until[t] > t:
            is_open.append(t)
            if len(is_open) > _MOST_OPEN:
                return None
    closes = np.zeros((n, max(1, int(n_open.max(initial=0)))), dtype=bool)
    for t, some in enumerate(closing):
        closes[t, some] = True
    starts = np.append(0, np.cumsum(n_labels**n_open))
    is_turned = source[order] == last[order]
    return kernels.Frontier(n_open, closes, until > -1, bounds, places, kind[order], is_turned, starts)
