"""Improves labellings of tied sequences, sequence by sequence."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf.errors import announcements
from spacy_crf.inference.structure import States

from ..errors import Warnings
from ..kernels import gibbs as kernels
from .junction_tree import JunctionTree
from .scores import Problem, potentials

SENTENCES = JunctionTree()  # inference for single sequences with the ties inside them
_MORE = 1e-9  # least difference of scores that counts as an improvement
_announced: set[str] = set()


def best_improved(problem: Problem, found: States) -> States:
    """Improve each of some labellings (int32[N, T]) and return the best result. One sequence after the other gets its best
    labelling, given the labels of the others, until nothing improves (iterated conditional modes, Besag 1986).

    RETURNS (int32[T]): The result; -1 in components in which the first labelling has tokens without a state. With groups, the
        best of the labellings as they are.
    """
    chains = potentials(problem.chains)
    (ties, _) = problem.neighbours
    lost = problem.lost(found[0])
    is_alone, blocks = _blocks(problem, ties, lost[problem.component])
    some = np.flatnonzero(is_alone)
    of_lost = lost[problem.of_tokens]
    better = np.where(of_lost, 0, found).astype(np.int32)
    solved: dict[tuple[int, bytes], States] = {}  # the best labelling of a block, given its emissions
    for states in () if len(problem.group_kind) else better:
        changed = True
        while changed:
            kernels.ascend(chains, ties, some, len(states), states)
            changed = False
            for n, block in enumerate(blocks):
                part = block.given(ties, states)
                # Its emissions, with the scores of its ties to other sequences, determine its best labelling: solve it once
                emissions = part.chains.emissions.tobytes()
                if (n, emissions) not in solved:
                    [solved[n, emissions]] = SENTENCES.best(part)
                [[now], [best]] = part.score(np.stack([states[block.tokens], solved[n, emissions]]))
                if best > now + _MORE:
                    states[block.tokens] = solved[n, emissions]
                    changed = True
    best = problem.score(better).argmax(axis=0)[problem.of_tokens]
    return np.where(of_lost, -1, better[best, np.arange(better.shape[1])]).astype(np.int32)


class _Block(NamedTuple):
    """A sequence with ties inside it."""

    part: Problem  # the sequence with these ties only
    tokens: slice
    tied: NDArray[np.int64]  # [N] its tokens that are tied to other sequences, relative to its first token
    ties: NDArray[np.int64]  # [N] places of these ties in `Neighbours`

    def given(self, neighbours: kernels.Neighbours, states: States) -> Problem:
        """Add the scores of ties to the labels of other sequences to the sequence's emissions."""
        _, ends, kinds, tables, label_of = neighbours
        chains = self.part.chains
        emissions = chains.emissions.copy()
        np.add.at(emissions, self.tied, tables[kinds[self.ties], label_of[states[ends[self.ties]]]][:, label_of])
        return self.part._replace(chains=chains._replace(emissions=emissions))


def _blocks(
    problem: Problem, neighbours: kernels.Neighbours, lost: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], list[_Block]]:
    """Divide the sequences that have a labelling (not `lost`).

    RETURNS (bool[B], list[_Block]): Sequences to treat as chains, since they have no ties inside or are too wide for a junction
        tree; and blocks for the others.
    """
    inside = problem.inside
    starts = problem.starts
    blocks = []
    is_joined = np.zeros(len(lost), dtype=bool)
    if inside.any():
        apart = problem.by_sequence(inside)
        is_joined[np.unique(apart.of_ties)] = True
        is_joined &= ~lost
        is_joined = SENTENCES.decides(apart, is_joined)
        tell_wide(apart.of_ties, is_joined | lost, "a best labelling")
    for b in np.flatnonzero(is_joined).tolist():
        part = apart.only(b)[0]
        tokens = slice(int(starts[b]), int(starts[b + 1]))
        ties = np.arange(neighbours.bounds[tokens.start], neighbours.bounds[tokens.stop])
        ends = neighbours.ends[ties]
        ties = ties[(ends < tokens.start) | (ends >= tokens.stop)]
        blocks.append(
            _Block(part, tokens, np.searchsorted(neighbours.bounds, ties, side="right") - 1 - tokens.start, ties)
        )
    return ~lost & ~is_joined, blocks


def tell_wide(of_ties: NDArray[np.int64], fits: NDArray[np.bool_], what: str) -> None:
    """Announce once that some sequences of ties (int64[E]) are too wide for a junction tree, unless all of them fit (bool[B]).

    what (str): The result that is approximate for these sequences.
    """
    tied = np.unique(of_ties)
    n = int((~fits[tied]).sum())
    if n and what not in _announced:
        _announced.add(what)
        announcements.warning(Warnings.CRFW042.format(n=n, sentences=len(tied), what=what))
