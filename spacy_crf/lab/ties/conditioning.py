"""Single sequences with few ties inside them: the best labelling by cutset conditioning (Pearl 1986).

Where the labels of the tokens of a cutset are known, all ties say what they say to single tokens, and the sequence is a chain. So
it is asked as many times as the cutset has labellings, all of them together as one batch of chains. That takes the square of the
states for each token and labelling, where a junction tree takes their cube at least.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ... import arrays
from ...inference.linear_chain import LinearChain
from ...inference.structure import States
from ...types import ChainScores
from .scores import Problem

_MOST = 4  # labellings of a cutset for each state: with more of them a junction tree is quicker
_LARGEST = 1 << 22  # numbers of the emissions of a batch


class Cutset(NamedTuple):
    """Of one component, which is a single sequence."""

    component: int
    tokens: slice
    ties: slice
    places: tuple[int, ...]  # tokens at one end or both of each tie
    labels: NDArray[np.int64]  # [n, len(places)] their labellings


class Copies(NamedTuple):
    """Some components, as often as their cutsets have labellings."""

    problem: Problem
    cutsets: list[Cutset]
    rows: NDArray[np.int64]  # [R] token of each row
    starts: NDArray[np.int64]  # [N + 1] of the copies
    firsts: NDArray[np.int64]  # [n] number of the first copy of each cutset

    @classmethod
    def of(cls, problem: Problem, cutsets: list[Cutset]) -> "Copies":
        counts = [len(cutset.labels) for cutset in cutsets]
        lengths = np.repeat([cutset.tokens.stop - cutset.tokens.start for cutset in cutsets], counts)
        begins = np.repeat([cutset.tokens.start for cutset in cutsets], counts)
        starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
        rows = arrays.ranges(begins, begins + lengths)
        return cls(problem, cutsets, rows, starts, np.append(0, np.cumsum(counts[:-1])).astype(np.int64))

    @property
    def components(self) -> NDArray[np.int64]:
        return np.array([cutset.component for cutset in self.cutsets], dtype=np.int64)

    @property
    def chains(self) -> ChainScores:
        problem = self.problem
        chains, label_of = arrays.cut(problem.chains, self.rows, self.starts), problem.label_of
        for cutset, rows in self._by_cutset():
            emissions = chains.emissions[rows].reshape(len(cutset.labels), -1, len(label_of))
            for place, labels in zip(cutset.places, cutset.labels.T):
                at = emissions[:, place - cutset.tokens.start]
                at[labels[:, np.newaxis] != label_of] = -np.inf
            for kind, labels, other, is_turned in _told(problem, cutset):
                table = problem.tables[kind].T if is_turned else problem.tables[kind]
                emissions[:, other - cutset.tokens.start] += table[labels][:, label_of]
            chains.emissions[rows] = emissions.reshape(-1, len(label_of))
        return chains

    def best(self, states: States) -> None:
        """Sets the states (int32[T]) of the components to their best labellings."""
        path = LinearChain().viterbi(self.chains)
        for n, cutset in enumerate(self.cutsets):
            copies = slice(int(self.firsts[n]), int(self.firsts[n]) + len(cutset.labels))
            copy = copies.start + int(path.scores[copies].argmax())
            states[cutset.tokens] = path.states[self.starts[copy] : self.starts[copy + 1]]

    def _by_cutset(self) -> Iterator[tuple[Cutset, slice]]:
        """With the rows of its copies."""
        for cutset, first in zip(self.cutsets, self.firsts.tolist()):
            yield cutset, slice(int(self.starts[first]), int(self.starts[first + len(cutset.labels)]))


def _told(problem: Problem, cutset: Cutset) -> Iterator[tuple[int, NDArray[np.int64], int, bool]]:
    """Of each tie its kind, the labels (int64[n]) of an end in the cutset, the other end, and whether that is the source."""
    column = {place: n for n, place in enumerate(cutset.places)}
    for e in range(cutset.ties.start, cutset.ties.stop):
        source, target, kind = int(problem.source[e]), int(problem.target[e]), int(problem.kind[e])
        if source in column:
            yield kind, cutset.labels[:, column[source]], target, False
        else:
            yield kind, cutset.labels[:, column[target]], source, True


def cutsets(problem: Problem, asked: NDArray[np.bool_]) -> list[Cutset]:
    """Of some components (bool[C]) those that are a single sequence with few ties."""
    size, found = len(problem.label_of), []
    n_sequences = np.bincount(problem.component, minlength=len(problem.firsts))
    for c in np.flatnonzero(asked & (n_sequences == 1)).tolist():
        b, ties = int(problem.firsts[c]), slice(int(problem.bounds[c]), int(problem.bounds[c + 1]))
        places = _cover(problem.source[ties].tolist(), problem.target[ties].tolist(), size, problem.n_labels)
        if places is None:
            continue
        possible = [np.unique(problem.label_of[problem.chains.emissions[t] > -np.inf]).tolist() for t in places]
        labellings = list(itertools.product(*possible))
        if labellings:
            labels = np.array(labellings, dtype=np.int64).reshape(-1, len(places))
            tokens = slice(int(problem.chains.starts[b]), int(problem.chains.starts[b + 1]))
            found.append(Cutset(c, tokens, ties, tuple(places), labels))
    return found


def _cover(source: list[int], target: list[int], size: int, n_labels: int) -> Optional[list[int]]:
    """Tokens so that each tie ends at one of them, None if they have too many labellings: those with the most ties first."""
    left, places = list(zip(source, target)), []
    while left:
        if n_labels ** (len(places) + 1) > _MOST * size:
            return None
        ends = [end for tie in left for end in tie]
        places.append(max(dict.fromkeys(ends), key=ends.count))
        left = [tie for tie in left if places[-1] not in tie]
    return places


def in_batches(problem: Problem, some: list[Cutset]) -> Iterator[Copies]:
    """Copies of components, as many of which are one batch as memory should hold."""
    batch, numbers = [], 0
    for cutset in some:
        more = len(cutset.labels) * (cutset.tokens.stop - cutset.tokens.start) * len(problem.label_of)
        if batch and numbers + more > _LARGEST:
            yield Copies.of(problem, batch)
            batch, numbers = [], 0
        batch.append(cutset)
        numbers += more
    if batch:
        yield Copies.of(problem, batch)
