"""Exact answers by eliminating one variable after the other (Lauritzen & Spiegelhalter 1988; Koller & Friedman 2009, chapter 9).

A variable is eliminated by summing all that is said of it and of its neighbours over its states: what is left is said of the
neighbours alone. Which variable comes next is the one whose neighbours have to be joined by the fewest new edges (min-fill). The
table of a variable has an axis for each neighbour that is left, so it grows with every one of them: hence `max_table`.

    message[n1, n2, ...] = log sum_x exp(table[n1, n2, ..., x])

The tables are the cliques of a junction tree: the one of x lies below that of the first of its neighbours to be eliminated, which
all the others are neighbours of. So marginals come from the roots down, without a division, and so do samples and maxima.
Tokens that ties alone connect, without a cycle, are trees already: see `trees`.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays, checks
from ..errors import Errors, Warnings, announcements
from ..types import ChainScores, Floats
from .belief_propagation import BeliefPropagation
from .method import LOG_PARTITION, MAXIMUM, N_BEST, SAMPLE, WALK, Expected, Inference
from .structure import States
from .ties import Problem
from .trees import Trees

DROPS = (None, "mutual_information")


class Factor(NamedTuple):
    """Scores of some variables together."""

    variables: tuple[int, ...]
    scores: Floats  # an axis for each


class Clique(NamedTuple):
    """A variable that is eliminated, with the neighbours that it has left."""

    variable: int
    rest: tuple[int, ...]  # the neighbours, as they are eliminated
    table: Floats  # [neighbours..., states]
    message: Floats  # [neighbours...]


class Variables(NamedTuple):
    """A component: its tokens that have a choice, by the states that are left."""

    states: list[NDArray[np.int64]]
    factors: list[Factor]


class JunctionTree(Inference):
    """See above.

    max_table (int): Numbers of a table, at most. A sentence alone needs the square of the tags.
    drop (str): What is done where a table would be larger: it is an error if None; with "mutual_information" the ties that say
        least are left out, until all tables fit. It is said once how much they would have said.
    """

    exact = True
    answers = frozenset([LOG_PARTITION, MAXIMUM, SAMPLE, N_BEST, WALK])

    def __init__(self, max_table: int = 1_000_000, drop: Optional[str] = None):
        self.max_table = checks.count(type(self).__name__, "max_table", max_table)
        self.drop = checks.one_of(type(self).__name__, "drop", drop, DROPS)
        if drop is not None:
            # Without some ties there is no log partition to train with: gold labels would count in all ties, others in some
            self.exact, self.answers = False, self.answers - {LOG_PARTITION, WALK}
        self.n_dropped, self.n_ties = 0, 0  # of the components whose tables would have been too large
        self._told_dropped = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_table={self.max_table}, drop={self.drop!r})"

    def log_partition(self, problem: Problem) -> Floats:
        trees = Trees.of(problem)
        log_z = np.full(len(problem.firsts), np.nan) if trees is None else trees.expectations(None).log_z
        for c, part, _ in self._components(problem, np.isnan(log_z)):
            log_z[c] = _total(self._eliminate(_variables(part), log_sum))
        return log_z

    def expectations(self, problem: Problem, weights: Floats) -> Expected:
        trees = Trees.of(problem)
        if trees is None:
            none = np.full(len(problem.firsts), np.nan), arrays.zeros(problem.chains), np.zeros(problem.tables.shape)
        log_z, d_chains, d_tables = none if trees is None else trees.expectations(weights)
        for c, part, tokens in self._components(problem, np.isnan(log_z)):
            found = _variables(part)
            cliques = self._eliminate(found, log_sum)
            log_z[c] = _total(cliques)
            if log_z[c] > -np.inf and weights[c]:
                d_part, d_tables_of_part = _derive(part, found, _beliefs(cliques), weights[c])
                arrays.add(d_chains, d_part, tokens)
                d_tables += d_tables_of_part
        return Expected(log_z, d_chains, d_tables)

    def best(self, problem: Problem) -> States:
        trees, states = Trees.of(problem), np.full(len(problem.chains.emissions), -1, dtype=np.int32)
        left = np.ones(len(problem.firsts), dtype=bool)
        if trees is not None:
            found_states, scores = trees.best()
            left = ~(scores > -np.inf)
            known = ~left[trees.component]
            states[known] = found_states[known]
        for _, part, tokens in self._components(problem, left):
            found = _variables(part)
            cliques = self._eliminate(found, _largest)
            if _total(cliques) > -np.inf:
                chosen = [0] * len(tokens)
                for variable, rest, table, _ in reversed(cliques):
                    chosen[variable] = int(table[tuple(chosen[other] for other in rest)].argmax())
                states[tokens] = [own[state] for own, state in zip(found.states, chosen)]
        return states

    def as_chains(self, problem: Problem) -> ChainScores:
        """Markov chains whose pairs of neighbours have the probabilities that they have in the graph."""
        chains, (n_tokens, size) = problem.chains, problem.chains.emissions.shape
        if not chains.transitions.any():
            marginals = self.expectations(problem, np.ones(len(problem.firsts))).chains.emissions
            with np.errstate(divide="ignore"):
                return chains._replace(emissions=np.log(marginals), first=np.zeros(size), last=np.zeros(size))
        by_token = np.array(np.broadcast_to(chains.transitions, (n_tokens, size, size)))
        expected = self.expectations(
            problem._replace(chains=chains._replace(transitions=by_token)), np.ones(len(problem.firsts))
        ).chains
        pairs, opens = expected.transitions, arrays.ends(chains.starts, n_tokens)[0]
        before = pairs.sum(axis=2, keepdims=True)
        with np.errstate(divide="ignore"):
            steps = np.log(np.divide(pairs, before, out=np.zeros(pairs.shape), where=before > 0.0))
            emissions = np.where(opens[:, np.newaxis], np.log(expected.emissions), 0.0)
        possible = np.where(expected.emissions > 0.0, emissions, -np.inf)
        free = np.zeros(size)
        return ChainScores(possible, steps, free, free, chains.starts)

    def draw(self, problem: Problem, n: int, seed: int) -> States:
        states = np.full((n, len(problem.chains.emissions)), -1, dtype=np.int32)
        random = np.random.default_rng(seed)
        for _, part, tokens in self._components(problem, np.ones(len(problem.firsts), dtype=bool)):
            found = _variables(part)
            cliques = self._eliminate(found, log_sum)
            if _total(cliques) == -np.inf:
                continue
            chosen = np.empty((n, len(tokens)), dtype=np.int64)
            for variable, rest, table, message in reversed(cliques):
                given = tuple(chosen[:, other] for other in rest)
                shares = np.exp(table[given] - message[given][..., np.newaxis]).reshape(-1, table.shape[-1])
                bounds = np.cumsum(shares, axis=1)
                at = random.random((n, 1)) * bounds[:, -1:]
                chosen[:, variable] = np.minimum((bounds <= at).sum(axis=1), table.shape[-1] - 1)
            for variable, own in enumerate(found.states):
                states[:, tokens[variable]] = own[chosen[:, variable]]
        return states

    def walk_on(self, problem: Problem, states: States, times: int, random: np.random.Generator) -> States:
        """It needs no walk."""
        return self.draw(problem, len(states), int(random.integers(1 << 31)))

    def rank(self, problem: Problem, n: int) -> list[tuple[float, States]]:
        """Best first: each labelling of the variables that were eliminated last is worth as much as the best way to go on, which
        the tables say."""
        found = _variables(self._fitting(problem))
        cliques = self._eliminate(found, _largest)
        best, order, ranked = _total(cliques), cliques[::-1], []
        numbers = itertools.count()  # of equals, the one that was found first
        heap: list[tuple] = [(-best, next(numbers), 0, None)] if best > -np.inf else []
        while heap and len(ranked) < n:
            cost, _, depth, path = heapq.heappop(heap)
            if depth == len(order):
                ranked.append((-cost, _read(found, order, path)))
                continue
            clique = order[depth]
            known = _assigned(order, path, clique.rest)
            row, whole = clique.table[known], clique.message[known]
            for state, score in enumerate(row.tolist()):
                if score > -np.inf:
                    heapq.heappush(heap, (cost + float(whole) - score, next(numbers), depth + 1, (state, path)))
        return ranked

    def _eliminate(self, variables: Variables, reduce: Callable[[Floats], Floats]) -> list[Clique]:
        """The cliques, in the order in which their variables are eliminated.

        reduce (Callable): Sums over the last axis.
        RAISES (ValueError): CRF042 if a table would be too large.
        """
        sizes, (order, largest) = [len(states) for states in variables.states], _order(variables)
        place = {variable: n for n, (variable, _) in enumerate(order)}
        if largest > self.max_table:
            raise ValueError(Errors.CRF042.format(size=largest, tokens=len(sizes), most=self.max_table))
        waiting: list[list[Factor]] = [[] for _ in order]
        for factor in variables.factors:
            waiting[min(place[v] for v in factor.variables)].append(factor)
        cliques = []
        for n, (variable, neighbours) in enumerate(order):
            rest = tuple(sorted(neighbours, key=place.__getitem__))
            scope = (*rest, variable)
            table = np.zeros([sizes[v] for v in scope])
            for factor in waiting[n]:
                table += _aligned(factor, scope)
            message = reduce(table)
            cliques.append(Clique(variable, rest, table, message))
            if rest:
                waiting[place[rest[0]]].append(Factor(rest, message))
        return cliques

    def _components(
        self, problem: Problem, asked: NDArray[np.bool_]
    ) -> Iterator[tuple[int, Problem, NDArray[np.int64]]]:
        """Some components (bool[C]), as they are eliminated, and their tokens."""
        if len(asked) == 1 and asked[0]:
            yield 0, self._fitting(problem), np.arange(len(problem.chains.emissions))
            return
        for c in np.flatnonzero(asked).tolist():
            part, tokens = problem.only(c)
            yield c, self._fitting(part), tokens

    def _fitting(self, part: Problem) -> Problem:
        """A component, without ties that would make tables too large if these are to be left out: as few as possible, of those
        whose ends say least of each other. So much further from the whole is what is left (Koller & Friedman 2009, 8.5)."""
        if self.drop is None or _order(_variables(part))[1] <= self.max_table:
            return part
        information = BeliefPropagation(iterations=50, damping=0.2).information(part)
        order = np.argsort(information, kind="stable")

        def without(n: int) -> Problem:
            kept = np.sort(order[n:])
            ends = {name: getattr(part, name)[kept] for name in ("source", "target", "kind")}
            return part._replace(**ends, bounds=np.array([0, len(kept)]))

        fewest, n = 1, len(order)
        while fewest < n:
            half = (fewest + n) // 2
            fewest, n = (fewest, half) if _order(_variables(without(half)))[1] <= self.max_table else (half + 1, n)
        self.n_dropped, self.n_ties = self.n_dropped + n, self.n_ties + len(order)
        self._tell_dropped(n, len(order), float(information[order[:n]].sum()))
        return without(n)

    def _tell_dropped(self, n: int, n_ties: int, information: float) -> None:
        if not self._told_dropped:
            self._told_dropped = True
            message = Warnings.CRFW371.format(n=n, ties=n_ties, most=self.max_table, information=f"{information:.3g}")
            announcements.warning(message)


def _order(variables: Variables) -> tuple[list[tuple[int, set[int]]], int]:
    """In which variables are eliminated, with the neighbours that each has left, and how large the largest table is."""
    sizes = [len(states) for states in variables.states]
    order = min_fill([factor.variables for factor in variables.factors], sizes)
    return order, max((math.prod([sizes[v], *(sizes[u] for u in rest)]) for v, rest in order), default=0)


def min_fill(scopes: list[tuple[int, ...]], sizes: list[int]) -> list[tuple[int, set[int]]]:
    """An order in which variables are eliminated, and the neighbours that each has left: next is one whose neighbours lack the
    fewest edges, of equals the one with the smallest table.

    scopes: Variables that are scored together.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for variable in scope:
            neighbours[variable].update(scope)
    for variable, others in enumerate(neighbours):
        others.discard(variable)

    def cost(variable: int) -> tuple[int, float, int]:
        others = neighbours[variable]
        lacking = sum(len(others) - 1 - len(neighbours[other] & others) for other in others) // 2
        return lacking, sum(math.log(sizes[other]) for other in others), variable

    current = [cost(variable) for variable in range(len(sizes))]
    heap, order, done = list(current), [], [False] * len(sizes)
    heapq.heapify(heap)
    while heap:
        entry = heapq.heappop(heap)
        variable = entry[2]
        if done[variable] or entry != current[variable]:
            continue
        done[variable] = True
        rest = neighbours[variable]
        order.append((variable, rest))
        for other in rest:
            neighbours[other] |= rest
            neighbours[other] -= {other, variable}
        for changed in rest.union(*(neighbours[other] for other in rest)):
            now = cost(changed)
            if now != current[changed]:
                current[changed] = now
                heapq.heappush(heap, now)
    return order


def log_sum(table: Floats) -> Floats:
    """Of the last axis."""
    largest = table.max(axis=-1, keepdims=True)
    shift = np.where(largest > -np.inf, largest, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(table - shift).sum(axis=-1)) + shift[..., 0]


def _largest(table: Floats) -> Floats:
    return table.max(axis=-1)


def _total(cliques: list[Clique]) -> float:
    return float(sum(clique.message for clique in cliques if not clique.rest))


def _aligned(factor: Factor, scope: tuple[int, ...]) -> Floats:
    """The scores with an axis for each variable of a scope, of size 1 for those that they say nothing of."""
    axes = sorted(range(len(factor.variables)), key=lambda axis: scope.index(factor.variables[axis]))
    scores = factor.scores.transpose(axes)
    sizes = iter(scores.shape)
    return scores.reshape([next(sizes) if variable in factor.variables else 1 for variable in scope])


def _beliefs(cliques: list[Clique]) -> dict[int, tuple[tuple[int, ...], Floats]]:
    """The probabilities of all cliques, with their variables, by the variable that they eliminate."""
    beliefs: dict[int, tuple[tuple[int, ...], Floats]] = {}
    for variable, rest, table, message in reversed(cliques):
        possible = message > -np.inf
        shift = np.where(possible, message, 0.0)[..., np.newaxis]
        belief = np.where(possible[..., np.newaxis], np.exp(table - shift), 0.0)
        if rest:
            belief *= _summed(beliefs[rest[0]], rest)[..., np.newaxis]
        beliefs[variable] = ((*rest, variable), belief)
    return beliefs


def _summed(belief: tuple[tuple[int, ...], Floats], scope: tuple[int, ...]) -> Floats:
    """The probabilities of some of the variables of a clique, in this order."""
    variables, probabilities = belief
    out = tuple(axis for axis, variable in enumerate(variables) if variable not in scope)
    left = [variable for variable in variables if variable in scope]
    return probabilities.sum(axis=out).transpose([left.index(variable) for variable in scope])


def _read(found: Variables, order: list[Clique], path: Any) -> States:
    states = np.empty(len(order), dtype=np.int32)
    for clique in reversed(order):
        state, path = path
        states[clique.variable] = found.states[clique.variable][state]
    return states


def _assigned(order: list[Clique], path: Any, wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The states of some variables that have one."""
    states = []
    while path is not None:
        state, path = path
        states.append(state)
    known = {clique.variable: state for clique, state in zip(order, reversed(states))}
    return tuple(known[variable] for variable in wanted)


# --------------------------------------------------------------------------------------------- from and to problems


def _step(chains: ChainScores, t: int) -> Floats:
    return chains.transitions[t] if chains.transitions.ndim == 3 else chains.transitions


def _steps(chains: ChainScores) -> NDArray[np.int64]:
    """Tokens that have one before them in their sequence. None where no transition says anything: then there is no chain, and of
    how often its transitions are used nothing is said."""
    if not chains.transitions.any():
        return np.zeros(0, dtype=np.int64)
    return np.flatnonzero(~arrays.ends(chains.starts, len(chains.emissions))[0])


def _variables(problem: Problem) -> Variables:
    """The tokens of a component by the states that are possible, and what scores them together."""
    chains, label_of = problem.chains, problem.label_of
    opens, closes = arrays.ends(chains.starts, len(chains.emissions))
    own = chains.emissions + np.where(opens[:, np.newaxis], chains.first, 0.0)
    own = own + np.where(closes[:, np.newaxis], chains.last, 0.0)
    states = [np.flatnonzero(row > -np.inf) for row in own]
    states = [some if len(some) else np.zeros(1, dtype=np.int64) for some in states]  # one that is not possible
    factors = [Factor((t,), own[t, some]) for t, some in enumerate(states)]
    for t in _steps(chains).tolist():
        factors.append(Factor((t - 1, t), _step(chains, t)[np.ix_(states[t - 1], states[t])]))
    for u, v, kind in zip(problem.source.tolist(), problem.target.tolist(), problem.kind.tolist()):
        labels = np.ix_(label_of[states[u]], label_of[states[v]])
        factors.append(Factor((u, v), problem.tables[kind][labels]))
    return Variables(states, factors)


def _derive(problem: Problem, found: Variables, beliefs: Any, weight: float) -> tuple[ChainScores, Floats]:
    """Derivatives with respect to the scores of a component."""
    chains, states = problem.chains, found.states
    d_chains, d_tables = arrays.zeros(chains), np.zeros(problem.tables.shape)
    place = {variable: n for n, variable in enumerate(reversed(beliefs))}  # as they were eliminated

    def together(u: int, v: int) -> Floats:
        return _summed(beliefs[min(u, v, key=place.__getitem__)], (u, v))

    for t, some in enumerate(states):
        d_chains.emissions[t, some] = weight * _summed(beliefs[t], (t,))
    opens, closes = arrays.ends(chains.starts, len(chains.emissions))
    d_chains.first[:] = d_chains.emissions[opens].sum(axis=0)
    d_chains.last[:] = d_chains.emissions[closes].sum(axis=0)
    for t in _steps(chains).tolist():
        _step(d_chains, t)[np.ix_(states[t - 1], states[t])] += weight * together(t - 1, t)
    for u, v, kind in zip(problem.source.tolist(), problem.target.tolist(), problem.kind.tolist()):
        i, j = np.meshgrid(problem.label_of[states[u]], problem.label_of[states[v]], indexing="ij")
        np.add.at(d_tables[kind], (i, j), weight * together(u, v))
    return d_chains, d_tables
