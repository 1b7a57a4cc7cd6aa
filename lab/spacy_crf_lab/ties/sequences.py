"""Inference for single sequences with few ties inside, faster than a junction tree.

The recursion for sums keeps the labels of tokens whose ties are open (`kernels.frontier`).

The best labelling comes from cutset conditioning (Pearl 1986). Given the labels of the tokens in a cutset, every tie depends on a
single token, so the sequence is a chain. A batch of chains, one for each labelling of the cutset, gives the result. It takes time
in proportion to the square of the number of states for each token and labelling, while a junction tree takes at least their
cube.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import States
from spacy_crf.types import Floats

from ..kernels import frontier as kernels
from .method import Expected
from .scores import Problem

_MOST = 3.0  # frontiers for each state and token, on average: with more of them a junction tree is quicker
_MOST_OPEN = 4  # ties at once
_MOST_LABELLINGS = 4  # of a cutset for each state: with more of them a junction tree is quicker
_LARGEST = 1 << 22  # numbers of the emissions of a batch of chains


def _single_sequences(problem: Problem, asked: NDArray[np.bool_]) -> Iterator[tuple[int, slice, slice]]:
    """Components (of bool[C]) that are a single sequence, with their tokens and ties."""
    n_sequences = np.bincount(problem.component, minlength=len(problem.firsts))
    bounds = np.searchsorted(problem.of_ties, np.arange(len(problem.firsts) + 1)).tolist()
    for c in np.flatnonzero(asked & (n_sequences == 1)).tolist():
        b = int(problem.firsts[c])
        tokens = slice(int(problem.starts[b]), int(problem.starts[b + 1]))
        yield c, tokens, slice(*bounds[c : c + 2])


class Cutset(NamedTuple):
    """A cutset of one component, which is a single sequence."""

    component: int
    tokens: slice
    ties: slice
    places: list[int]  # tokens at one end or both of each tie
    labels: NDArray[np.int64]  # [n, len(places)] their labellings


def cutsets(problem: Problem, asked: NDArray[np.bool_]) -> list[Cutset]:
    """Cutsets of those of some components (bool[C]) that are a single sequence with few ties."""
    size = len(problem.label_of)
    found = []
    for c, tokens, ties in _single_sequences(problem, asked):
        places = _cover(problem.source[ties].tolist(), problem.target[ties].tolist(), size, problem.n_labels)
        if places is None:
            continue
        possible = [np.unique(problem.label_of[problem.chains.emissions[t] > -np.inf]).tolist() for t in places]
        labels = np.array(list(itertools.product(*possible)), dtype=np.int64).reshape(-1, len(places))
        if len(labels):
            found.append(Cutset(c, tokens, ties, places, labels))
    return found


def _cover(source: list[int], target: list[int], size: int, n_labels: int) -> Optional[list[int]]:
    """Tokens so that each tie ends at one of them, those with the most ties first; None if they have too many labellings."""
    left = list(zip(source, target))
    places = []
    while left:
        if n_labels ** (len(places) + 1) > _MOST_LABELLINGS * size:
            return None
        ends = list(itertools.chain.from_iterable(left))
        # Greedy: the token with the most ties that are not covered yet
        places.append(max(dict.fromkeys(ends), key=ends.count))
        left = [tie for tie in left if places[-1] not in tie]
    return places


def decide(problem: Problem, some: list[Cutset], states: States) -> None:
    """Set the states (int32[T]) of the components of some cutsets to their best labellings, in batches that memory can hold."""
    batch: list[Cutset] = []
    numbers = 0
    for cutset in some:
        more = len(cutset.labels) * (cutset.tokens.stop - cutset.tokens.start) * len(problem.label_of)
        if batch and numbers + more > _LARGEST:
            _decide_batch(problem, batch, states)
            batch = []
            numbers = 0
        batch.append(cutset)
        numbers += more
    if batch:
        _decide_batch(problem, batch, states)


def _decide_batch(problem: Problem, some: list[Cutset], states: States) -> None:
    counts = [len(cutset.labels) for cutset in some]
    label_of = problem.label_of
    begins, ends = np.repeat([(cutset.tokens.start, cutset.tokens.stop) for cutset in some], counts, axis=0).T
    starts = np.append(0, np.cumsum(ends - begins))
    copies = np.append(0, np.cumsum(counts))
    chains = arrays.cut(problem.chains, arrays.ranges(begins, ends), starts)
    for cutset, first, after in zip(some, copies[:-1], copies[1:]):
        begin = cutset.tokens.start
        column = {place: n for n, place in enumerate(cutset.places)}
        emissions = chains.emissions[starts[first] : starts[after]].reshape(len(cutset.labels), -1, len(label_of))
        # In each copy the tokens of the cutset have one label
        for place, labels in zip(cutset.places, cutset.labels.T):
            emissions[:, place - begin][labels[:, np.newaxis] != label_of] = -np.inf
        for e in range(cutset.ties.start, cutset.ties.stop):
            known = int(problem.source[e])
            other = int(problem.target[e])
            table = problem.tables[problem.kind[e]]
            if known not in column:
                known, other, table = other, known, table.T
            emissions[:, other - begin] += table[cutset.labels[:, column[known]]][:, label_of]
    path = LinearChain().viterbi(chains)
    for cutset, first, after in zip(some, copies[:-1], copies[1:]):
        best = first + int(path.scores[first:after].argmax())
        states[cutset.tokens] = path.states[starts[best] : starts[best + 1]]


def sum_up(problem: Problem, weights: Optional[Floats], found: Expected) -> None:
    """Compute the log partitions of components that are a single sequence with few ties open at once, and add the derivatives
    of their weighted sum.

    weights (float64[C]): Of the components in the sum; None for the log partitions alone.
    found (Expected): Its log partitions are NaN for the components to compute. NaN stays where numbers are too small to be
        trusted.
    """
    log_z, d_chains, d_tables = found
    chosen = list(chosen_of(problem, np.isnan(log_z)))
    if not chosen:
        return
    chains = problem.chains
    transitions = chains.transitions if chains.transitions.ndim == 3 else chains.transitions[np.newaxis]
    # Exponentials of scores less their maxima, which are added to log partitions at the end
    top = _finite(transitions.max(axis=(1, 2), initial=-np.inf))
    steps = np.exp(transitions - top[:, np.newaxis, np.newaxis])
    of_tables = problem.tables.max(axis=(1, 2), initial=-np.inf)
    tables = np.exp(problem.tables - of_tables[:, np.newaxis, np.newaxis])
    label_of = problem.label_of.astype(np.int64)
    derives = weights is not None
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
            d_own = np.zeros(part.shape)
            into = (d_steps[rows], d_tables)
        else:
            d_own = part[:0]
            into = (d_steps, tables[:0])
        total = kernels.sum_up(factors, frontier, float(weights[c]) if derives else 0.0, d_own, *into)
        if np.isnan(total):
            if derives:
                for array, old in zip(into, before):
                    array[:] = old
            continue
        of_steps = top[tokens][1:].sum() if len(steps) > 1 else (n_tokens - 1) * top[0]
        log_z[c] = total + largest.sum() + of_steps + of_tables[problem.kind[ties]].sum()
        if derives:
            d_chains.emissions[tokens] += d_own
            d_chains.first[:] += d_own[0]
            d_chains.last[:] += d_own[-1]


def _finite(maxima: Floats) -> Floats:
    return np.where(maxima > -np.inf, maxima, 0.0)


def chosen_of(problem: Problem, asked: NDArray[np.bool_]) -> Iterator[tuple[int, slice, slice, kernels.Frontier]]:
    """The components (of bool[C]) that `sum_up` is for, their tokens and ties, and which ties are open where."""
    for c, tokens, ties in _single_sequences(problem, asked):
        ends = problem.source[ties] - tokens.start, problem.target[ties] - tokens.start
        n_tokens = tokens.stop - tokens.start
        frontier = _frontier(*ends, problem.kind[ties], n_tokens, problem.n_labels)
        if frontier is not None and frontier.starts[-1] <= _MOST * len(problem.label_of) * n_tokens:
            yield c, tokens, ties, frontier


def _frontier(
    source: NDArray[np.int64], target: NDArray[np.int64], kind: NDArray[np.int64], n: int, n_labels: int
) -> Optional[kernels.Frontier]:
    """The open ties at each of n tokens of a sequence; None if too many are open somewhere."""
    first = np.minimum(source, target)
    last = np.maximum(source, target)
    # [n] the last token to which each token is tied
    until = np.full(n, -1)
    np.maximum.at(until, first, last)
    order = np.argsort(last, kind="stable")
    bounds = np.searchsorted(last[order], np.arange(n + 1))
    is_open: list[int] = []
    n_open = np.zeros(n, dtype=np.int64)
    places = np.zeros(len(order), dtype=np.int64)
    closing = []
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
