"""Scores of chains with ties between tokens, and the division of a batch into tied and free sequences."""

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.scaling import ChainWork
from spacy_crf.inference.structure import Work
from spacy_crf.kernels import linear_chain as chain_kernels
from spacy_crf.kernels.linear_chain import ChainArrays
from spacy_crf.types import ChainScores, Floats

from ..kernels import ties as kernels
from ..kernels.gibbs import Neighbours

_NONE = np.zeros(0, dtype=np.int32)
_NO_GROUPS = np.zeros(1, dtype=np.int64)


class Ties(NamedTuple):
    """Pairs of tokens whose labels have a joint score. A tie adds ``table[i, j]`` to a labelling with label i at its source and
    label j at its target; the table of a kind of ties is the sum of the tables of its features. A group adds ``table[i, i]`` to a
    labelling with label i at all of its members: ``members[group_starts[g]:group_starts[g + 1]]``, at least two."""

    source: NDArray[np.int32]  # [E] tokens of the batch
    target: NDArray[np.int32]  # [E] others
    kind: NDArray[np.int32]  # [E]
    rows: NDArray[np.int32]  # [K, M] the features of each kind, -1 for none
    symmetric: NDArray[np.bool_]  # [F] features whose table counts both ways: with [j, i] where it has [i, j]
    members: NDArray[np.int32] = _NONE  # [M]
    group_starts: NDArray[np.int64] = _NO_GROUPS  # [G + 1]
    group_kind: NDArray[np.int32] = _NONE  # [G]

    @classmethod
    def none(cls) -> "Ties":
        """No ties."""
        return cls(_NONE, _NONE, _NONE, np.zeros((0, 0), dtype=np.int32), np.zeros(0, dtype=bool))

    def among(self, kept: arrays.Tokens, n_tokens: int) -> "Ties":
        """Ties whose ends are both kept (int64[T'] or a slice, of so many tokens), by their places among the kept tokens."""
        # -1 for tokens that are left out; a group needs all of its members
        place = np.full(n_tokens, -1, dtype=np.int32)
        place[kept] = np.arange(len(place[kept]))
        source = place[self.source]
        target = place[self.target]
        members = place[self.members]
        found = self._replace(source=source, target=target, members=members).some((source >= 0) & (target >= 0))
        return some_groups(found, np.minimum.reduceat(members, self.group_starts[:-1]) >= 0)

    @property
    def is_empty(self) -> bool:
        """Whether there are neither ties nor groups."""
        return not len(self.source) and not len(self.group_kind)

    @property
    def links(self) -> NDArray[np.int32]:
        """Pairs of tokens that connect the ends of ties, and then the neighbouring members of groups: int32[2, N]."""
        # A group of n members is a path of n - 1 links; none leads from one group to the next
        inside = np.ones(max(0, len(self.members) - 1), dtype=bool)
        inside[self.group_starts[1:-1] - 1] = False
        return np.stack(
            [np.append(self.source, self.members[:-1][inside]), np.append(self.target, self.members[1:][inside])]
        )

    def some(self, which: NDArray[np.bool_]) -> "Ties":
        """The chosen ties (bool[E])."""
        return self._replace(source=self.source[which], target=self.target[which], kind=self.kind[which])

    def sums(self, tables: Floats) -> Floats:
        """Sum the tables of features (float64[F, L, L]) to the table of each kind (float64[K, L, L])."""
        total = np.zeros((len(self.rows), *tables.shape[1:]))
        for column in self.rows.T:
            [some] = np.nonzero(column >= 0)
            total[some] += self._both_ways(tables[column[some]], column[some])
        return total

    def by_feature(self, of_kinds: Floats, out: Floats) -> None:
        """Add derivatives with respect to the tables of ties to the derivatives with respect to those of features."""
        for column in self.rows.T:
            [some] = np.nonzero(column >= 0)
            # Kinds with the same feature side by side, so that `reduceat` adds them up: out[rows] += keeps one of equal rows
            some = some[np.argsort(column[some], kind="stable")]
            rows, first = np.unique(column[some], return_index=True)
            of_column = self._both_ways(of_kinds[some], column[some])
            if len(rows) < len(some):
                of_column = np.add.reduceat(of_column, first, axis=0)
            out[rows] += of_column

    def _both_ways(self, tables: Floats, features: NDArray[np.int32]) -> Floats:
        """Tables (float64[N, L, L]), to which those of symmetric features (of int32[N]) are added the other way round."""
        symmetric = self.symmetric[features]
        # table[i, j] + table[j, i]; its derivative has the same form
        if symmetric.any():
            some = tables[symmetric]
            tables[symmetric] = some + some.swapaxes(1, 2)
        return tables


def some_groups(ties: Any, which: NDArray[np.bool_]) -> Any:
    """`Ties` or a `Problem` with some of its groups (bool[G])."""
    sizes = np.diff(ties.group_starts)
    starts = np.append(0, np.cumsum(sizes[which])).astype(np.int64)
    members = ties.members[np.repeat(which, sizes)]
    return ties._replace(members=members, group_starts=starts, group_kind=ties.group_kind[which])


def shared_labels(labels: NDArray, ties: Any) -> NDArray:
    """The label that all members of each group have, -1 for none. labels (int64[..., T]). RETURNS (int64[..., G])."""
    of_members = labels[..., ties.members]
    starts = ties.group_starts[:-1]
    # All labels of a group are equal if the lowest is the highest
    lowest = np.minimum.reduceat(of_members, starts, axis=-1)
    return np.where(lowest == np.maximum.reduceat(of_members, starts, axis=-1), lowest, -1)


class TiedScores(NamedTuple):
    """`ChainScores` with ties between tokens, of one sequence or of several."""

    emissions: Floats  # [T, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    tables: Floats  # [F, L, L] of features of ties, by the labels of source and target
    label_of: NDArray[np.int64]  # [S] label of each state
    ties: Ties
    starts: Optional[NDArray[np.int64]] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType({**ChainScores.AXES, "tables": ("feature", "label", "next label")})

    @property
    def chains(self) -> ChainScores:
        """The scores of the chains, without ties."""
        return ChainScores(*self[:4], starts=self.starts)


def potentials(chains: ChainScores) -> ChainArrays:
    """Convert the scores of chains to the arrays that kernels take."""
    transitions = np.asarray(chains.transitions, dtype=np.float64)
    transitions = transitions if transitions.ndim == 3 else transitions[np.newaxis]
    contiguous = [np.ascontiguousarray(array) for array in (chains.emissions, transitions, chains.first, chains.last)]
    return ChainArrays(*contiguous, starts=np.ascontiguousarray(chains.starts, dtype=np.int64))


class Problem(NamedTuple):
    """Sequences with ties to others or inside. Components are numbered in the order of their first sequences."""

    chains: ChainScores  # -inf where the clamp forbids
    component: NDArray[np.int64]  # [B] of each sequence
    firsts: NDArray[np.int64]  # [C] first sequence of each component
    source: NDArray[np.int64]  # [E] tokens; ties are sorted by their component, then by source and target
    target: NDArray[np.int64]  # [E]
    kind: NDArray[np.int64]  # [E]
    tables: Floats  # [K, L, L]
    label_of: NDArray[np.int64]  # [S]
    members: NDArray[np.int64]  # [M] of groups, as in `Ties`
    group_starts: NDArray[np.int64]  # [G + 1]
    group_kind: NDArray[np.int64]  # [G]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where the sequences start: int64[B + 1]."""
        return np.asarray(self.chains.starts)

    @property
    def n_labels(self) -> int:
        """Number of labels, L."""
        return self.tables.shape[1]

    @property
    def own(self) -> Floats:
        """Scores of single tokens: emissions plus the scores of first and last tags (float64[T, S])."""
        chains = self.chains
        own = self.chains.emissions
        if chains.first.any() or chains.last.any():
            opens, closes = arrays.ends(chains.starts, len(own))
            own = own + np.where(opens[:, np.newaxis], chains.first, 0.0)
            own = own + np.where(closes[:, np.newaxis], chains.last, 0.0)
        return own

    @property
    def of_ties(self) -> NDArray[np.int64]:
        """Component of each tie: int64[E]."""
        return self.of_tokens[self.source]

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Which ties join two tokens of one sequence: bool[E]."""
        return np.equal(*self.sequences)

    @property
    def sequences(self) -> NDArray[np.int64]:
        """Sequences of the ends of ties: int64[2, E]."""
        return sequences_of(self.starts, self)

    def by_sequence(self, inside: NDArray[np.bool_]) -> "Problem":
        """The sequences without the ties between them, each a component; with those inside them (bool[E])."""
        sequences = np.arange(len(self.component))
        kept = np.flatnonzero(inside)
        order = np.argsort(self.sequences[0, kept], kind="stable")
        return self.with_ties(kept[order])._replace(component=sequences, firsts=sequences)

    def by_label(self, of_states: Floats, width: int = 0) -> Floats:
        """Sums of numbers of states (float64[N, S]): float64[N, L], with columns of 0 up to a width."""
        return of_states @ (self.label_of[:, np.newaxis] == np.arange(max(self.n_labels, width))).astype(np.float64)

    def by_component(self, of_sequences: Floats) -> Floats:
        """Sums of numbers of sequences: float64[C]."""
        return np.bincount(self.component, of_sequences, minlength=len(self.firsts)).astype(np.float64, copy=False)

    def parts(self) -> "Iterator[tuple[Problem, NDArray[np.int64]]]":
        """Each component, and its tokens."""
        return map(self.only, range(len(self.firsts)))

    def only(self, c: int) -> "tuple[Problem, NDArray[np.int64]]":
        """A single component, and its tokens."""
        if len(self.firsts) == 1:
            return self, np.arange(len(self.chains.emissions))
        chains, tokens = cut_chains(self.chains, self.component == c)
        part = self.with_ties(self.of_ties == c)
        # Tokens by their places among the component's tokens
        source, target = np.searchsorted(tokens, [part.source, part.target])
        part = some_groups(part, self.of_groups == c)
        members = np.searchsorted(tokens, part.members)
        part = part._replace(
            chains=chains, firsts=np.zeros(1, dtype=np.int64), source=source, target=target, members=members
        )
        return part._replace(component=np.zeros(len(part.starts) - 1, dtype=np.int64)), tokens

    @property
    def neighbours(self) -> tuple[Neighbours, NDArray[np.int64]]:
        """The other ends of the ties of each token; the order (int64[2 E]) of the near ends among sources and then targets."""
        tokens = np.append(self.source, self.target)
        ends = np.append(self.target, self.source)
        # The message to a target reads table[source, target]; the message to a source reads the transposed table
        kinds = np.append(self.kind + len(self.tables), self.kind)
        order = np.argsort(tokens, kind="stable")
        bounds = np.searchsorted(tokens[order], np.arange(len(self.chains.emissions) + 1))
        tables = np.concatenate([self.tables, self.tables.swapaxes(1, 2)])
        return Neighbours(bounds, ends[order], kinds[order], tables, self.label_of.astype(np.int64)), order

    @property
    def of_groups(self) -> NDArray[np.int64]:
        """Component of each group: int64[G]."""
        return self.of_tokens[self.members[self.group_starts[:-1]]]

    def in_pairs(self) -> "Problem":
        """An approximation without groups. Neighbouring members are tied, and share the reward of their group: a labelling gets
        all of it where all members agree, and else a part of it. The kind of such a tie is n·K plus that of its group."""
        sizes = np.diff(self.group_starts)
        if not len(sizes):
            return self
        # A group of n members has n - 1 ties, each with reward / (n - 1): tables for each size that occurs
        shares, number = np.unique(sizes - 1, return_inverse=True)
        diagonal = self.tables * np.eye(self.n_labels)
        tables = np.concatenate([self.tables, *(diagonal / share for share in shares)])
        last = np.zeros(len(self.members), dtype=bool)
        last[self.group_starts[1:] - 1] = True
        first = np.flatnonzero(~last)
        kind = np.repeat((number.reshape(-1) + 1) * len(self.tables) + self.group_kind, sizes - 1)
        source = np.append(self.source, self.members[first])
        target = np.append(self.target, self.members[first + 1])
        order = np.lexsort((target, source, self.of_tokens[source]))
        found = some_groups(self, np.zeros(len(sizes), dtype=bool))
        return found._replace(
            source=source[order], target=target[order], kind=np.append(self.kind, kind)[order], tables=tables
        )

    def from_pairs(self, of_pairs: Floats) -> Floats:
        """Derivatives with respect to the tables, from those with respect to the tables of `in_pairs`."""
        # d reward = sum over sizes of d table / (n - 1), on the diagonal
        own, *of_shares = of_pairs.reshape(-1, *self.tables.shape)
        shares = np.unique(np.diff(self.group_starts) - 1)
        return own + sum(np.eye(self.n_labels) * tables / share for tables, share in zip(of_shares, shares))

    def with_ties(self, kept: NDArray) -> "Problem":
        """This problem with some of the ties, in their order (int64[E'] or bool[E])."""
        return self._replace(source=self.source[kept], target=self.target[kept], kind=self.kind[kept])

    @property
    def of_tokens(self) -> NDArray[np.int64]:
        """Component of each token: int64[T]."""
        return np.repeat(self.component, np.diff(self.starts))

    def lost(self, states: NDArray[np.int32]) -> NDArray[np.bool_]:
        """The components of which a labelling (int32[T]) lacks tokens: bool[C]."""
        return np.bincount(self.of_tokens, states < 0, minlength=len(self.firsts)) > 0

    def score(self, states: NDArray[np.int32]) -> Floats:
        """Scores of labellings (int32[N, T]): float64[N, C]."""
        chains = potentials(self.chains)
        of_chains = np.empty((len(states), len(self.component)))
        for labelling, scores in zip(states, of_chains):
            chain_kernels.path_score(chains, labelling, scores)
        total = np.zeros((len(states), len(self.firsts)))
        # score = sum over chains + sum over ties + sum over groups whose members agree
        np.add.at(total.T, self.component, of_chains.T)
        np.add.at(total.T, self.of_ties, self.tables[self._pairs(states)].T)
        shared = shared_labels(self.label_of[states], self)
        rewards = np.where(shared >= 0, self.tables[self.group_kind, shared, shared], 0.0)
        np.add.at(total.T, self.of_groups, rewards.T)
        return total

    def uses(self, states: NDArray[np.int32], weight: float) -> tuple[ChainScores, Floats]:
        """Uses of scores by labellings (int32[N, T]), times a weight: those of the chains, and those of the tables."""
        used = arrays.zeros(self.chains)
        tables = np.zeros(self.tables.shape)
        weights = np.full(len(self.component), weight)
        into = potentials(used)
        for labelling in states:
            chain_kernels.path_expectations(labelling, weights, into)
        np.add.at(tables, self._pairs(states), weight)
        return used, tables  # only samplers ask, which take no groups

    def _pairs(self, states: NDArray[np.int32]) -> tuple[NDArray, ...]:
        """Where the scores of the ties of labellings (int32[N, T]) stand."""
        labels = self.label_of[states[:, self.source]], self.label_of[states[:, self.target]]
        return np.broadcast_to(self.kind, labels[0].shape), *labels


class TiedWork(Work[TiedScores]):
    """Checked scores with a clamp, cut in two: sequences that ties touch, and sequences that no tie touches, which are free.
    Sequences and tokens are numbered as in the batch."""

    @property
    def label_of(self) -> NDArray[np.int64]:
        """Label of each state: int64[S]."""
        label_of = np.asarray(self.scores.label_of)
        return label_of if self.tag_of is None else label_of[self.tag_of]

    @cached_property
    def _of_ends(self) -> NDArray[np.int64]:
        """Sequences of the ends of ties, and of neighbouring members of groups: int64[2, N]."""
        return np.searchsorted(self.starts, self.scores.ties.links, side="right") - 1

    @cached_property
    def _is_tied(self) -> NDArray[np.bool_]:
        is_tied = np.zeros(self.n_sequences, dtype=bool)
        is_tied[self._of_ends] = True
        return is_tied

    @property
    def tied_sequences(self) -> NDArray[np.int64]:
        """Sequences that ties touch: int64[N]."""
        return np.flatnonzero(self._is_tied)

    @property
    def free_sequences(self) -> NDArray[np.int64]:
        """Sequences that no tie touches: int64[N]."""
        return np.flatnonzero(~self._is_tied)

    @cached_property
    def tied_tokens(self) -> NDArray[np.int64]:
        """Tokens of sequences that ties touch: int64[N]."""
        return np.flatnonzero(np.repeat(self._is_tied, np.diff(self.starts)))

    @cached_property
    def free_tokens(self) -> NDArray[np.int64]:
        """Tokens of sequences that no tie touches: int64[N]."""
        return np.flatnonzero(np.repeat(~self._is_tied, np.diff(self.starts)))

    @cached_property
    def free(self) -> ChainWork:
        """The sequences that no tie touches, copied on first use, since prediction does not need them."""
        chains = self.scores.chains
        clamp = self.clamp
        if self._is_tied.any():
            chains = cut_chains(chains, ~self._is_tied)[0]
            clamp = arrays.cut_clamp(clamp, self.free_tokens)
        return LinearChain().prepare(chains, clamp)

    @cached_property
    def possible(self) -> ChainScores:
        """The chains that ties touch, -inf where the clamp forbids."""
        chains, tokens = cut_chains(self.scores.chains, self._is_tied)
        if self.clamp is None:
            return chains
        return chains._replace(emissions=np.where(self.clamp[tokens], chains.emissions, -np.inf))

    @cached_property
    def tied(self) -> Optional[Problem]:
        """The sequences that ties touch; None if there are none."""
        ties = self.scores.ties
        if ties.is_empty:
            return None
        # Numbers of the tied sequences: by the connected components of the graph of sequences
        component = np.empty(int(self._is_tied.sum()), dtype=np.int64)
        of_ends = (np.cumsum(self._is_tied) - 1)[self._of_ends]
        kernels.connect(*of_ends, component)
        # Number of each token among those of tied sequences
        place = np.empty(self.n_tokens, dtype=np.int64)
        place[self.tied_tokens] = np.arange(len(self.tied_tokens))
        ends = place[np.stack([ties.source, ties.target])]
        # By component, source and target
        order = np.lexsort((*ends[::-1], component[of_ends[0, : len(ties.source)]]))
        return Problem(
            chains=self.possible,
            component=component,
            firsts=np.unique(component, return_index=True)[1],
            source=ends[0, order],
            target=ends[1, order],
            kind=ties.kind[order].astype(np.int64),
            tables=ties.sums(self.scores.tables),
            label_of=self.label_of,
            members=place[ties.members],
            group_starts=ties.group_starts,
            group_kind=ties.group_kind.astype(np.int64),
        )

    def spread(self, of_components: Floats) -> Floats:
        """Values of components as those of all sequences."""
        values = np.zeros(self.n_sequences)
        tied: Any = self.tied
        values[self.tied_sequences[tied.firsts]] = of_components
        return values

    @cached_property
    def first_of(self) -> NDArray[np.int64]:
        """The sequence that has the value of each sequence: int64[B]."""
        first = np.arange(self.n_sequences)
        if self.tied is not None:
            first[self.tied_sequences] = self.tied_sequences[self.tied.firsts][self.tied.component]
        return first


def sequences_of(starts: NDArray[np.int64], ties: "Union[Ties, Problem]") -> NDArray[np.int64]:
    """Sequences of the ends of ties: int64[2, E]."""
    return np.searchsorted(starts, [ties.source, ties.target], side="right") - 1


def cut_chains(chains: ChainScores, sequences: NDArray[np.bool_]) -> tuple[ChainScores, NDArray[np.int64]]:
    """Some of the sequences (bool[B]), and their tokens."""
    if sequences.all():
        return chains, np.arange(len(chains.emissions))
    lengths = np.diff(np.asarray(chains.starts))
    tokens = np.flatnonzero(np.repeat(sequences, lengths))
    return arrays.cut(chains, tokens, np.append(0, np.cumsum(lengths[sequences])).astype(np.int64)), tokens
