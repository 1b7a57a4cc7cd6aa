"""Exact inference by variable elimination (Lauritzen & Spiegelhalter 1988; Koller & Friedman 2009, chapter 9).

To eliminate a variable, the product of all factors on it and its neighbours is summed over its states, which leaves a factor on
the neighbours alone. The next variable is the one whose neighbours need the fewest new edges between them (min-fill). The table
of a variable has an axis for each remaining neighbour, so its size is exponential in their number; `max_table` limits it.

    message[n1, n2, ...] = log sum_x exp(table[n1, n2, ..., x])

The tables are the cliques of a junction tree: the parent of x's table is the table of the neighbour that is eliminated next, to
which all other neighbours are connected too. So marginals, samples and maxima are computed from the roots down, without division.
Tokens that only ties connect, without a cycle, form trees already: see `trees`. Single sequences with few ties inside have faster
methods: see `sequences`.
"""

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf import arrays, checks
from spacy_crf.errors import announcements
from spacy_crf.inference.structure import States
from spacy_crf.optimizers.objective import setting
from spacy_crf.types import ChainScores, Floats, Seed

from ..errors import Errors, Warnings
from ..kernels import junction_tree as kernels
from .belief_propagation import BeliefPropagation
from .method import LOG_PARTITION, MAXIMUM, N_BEST, SAMPLE, WALK, Expected, Inference
from .scores import Problem
from .sequences import chosen_of, cutsets, decide, sum_up
from .trees import Trees


@dataclass(eq=False)
class JunctionTree(Inference):
    """Exact inference by eliminating one token after the other.

    max_table (int): Largest size of a table, in numbers. A sentence without ties needs the square of the number of tags.
    drop (str): Action if a table would be larger: None raises an error; "mutual_information" leaves out the least informative
        ties until all tables fit, and logs once how much information is lost.
    """

    max_table: int = setting(1_000_000, checks.count, most=100_000_000)
    drop: Optional[str] = setting(None, checks.one_of, allowed=(None, "mutual_information"))

    exact = True
    answers = frozenset([LOG_PARTITION, MAXIMUM, SAMPLE, N_BEST, WALK])
    keeps_rules = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop is not None:
            # Without some ties there is no log partition to train with: gold labels would count in all ties, others in some
            self.exact = False
            self.answers = self.answers - {LOG_PARTITION, WALK}
        # of the components whose tables would have been too large
        self.n_dropped = 0
        self.n_ties = 0
        self._has_warned = False

    def log_partition(self, problem: Problem) -> Floats:
        """Exact log partition of each component: float64[C]."""
        return self.expectations(problem, None).log_z

    def expectations(self, problem: Problem, weights: Optional[Floats]) -> Expected:
        """Compute log partitions and derivatives. weights (float64[C]): Weights of components; None for log partitions only."""
        trees = Trees.of(problem)
        if trees is None:
            log_z = np.full(len(problem.firsts), np.nan)
            found = Expected(log_z, arrays.zeros(problem.chains), np.zeros(problem.tables.shape))
        else:
            found = trees.expectations(weights)
        sum_up(problem, weights, found)
        for c, part, tokens in self._components(problem, np.isnan(found.log_z)):
            graph, tree, tables, _, found.log_z[c] = self._eliminate(part, kept=weights is not None)
            if weights is not None and weights[c] and found.log_z[c] > -np.inf:
                arrays.add(found.chains, _derive(part, graph, tree, tables, weights[c], found.tables), tokens)
        return found

    def best(self, problem: Problem) -> States:
        """The best labelling (int32[1, T]), by the quickest method for each component."""
        trees = Trees.of(problem)
        states = np.full(len(problem.chains.emissions), -1, dtype=np.int32)
        left = np.ones(len(problem.firsts), dtype=bool)
        if trees is not None:
            found_states, scores = trees.best()
            left = ~(scores > -np.inf)
            known = ~left[trees.component]
            states[known] = found_states[known]
        conditioned = cutsets(problem, left)
        decide(problem, conditioned, states)
        left[[cutset.component for cutset in conditioned]] = False
        for _, part, tokens in self._components(problem, left):
            *eliminated, _, total = self._eliminate(part, maximum=True)
            if total > -np.inf:
                of_part = np.empty(len(tokens), dtype=np.int32)
                kernels.best(*eliminated, of_part)
                states[tokens] = of_part
        return states[np.newaxis]

    def as_chains(self, problem: Problem) -> ChainScores:
        """Make Markov chains in which pairs of neighbouring tokens have the same probabilities as in the graph."""
        chains = problem.chains
        (n_tokens, size) = problem.chains.emissions.shape
        if not chains.transitions.any():
            marginals = self.expectations(problem, np.ones(len(problem.firsts))).chains.emissions
            with np.errstate(divide="ignore"):
                return chains._replace(emissions=np.log(marginals), first=np.zeros(size), last=np.zeros(size))
        by_token = np.array(np.broadcast_to(chains.transitions, (n_tokens, size, size)))
        expected = self.expectations(
            problem._replace(chains=chains._replace(transitions=by_token)), np.ones(len(problem.firsts))
        ).chains
        pairs = expected.transitions
        opens = arrays.ends(chains.starts, n_tokens)[0]
        before = pairs.sum(axis=2, keepdims=True)
        with np.errstate(divide="ignore"):
            # log p(j at t | i at t - 1)
            steps = np.log(np.divide(pairs, before, out=np.zeros(pairs.shape), where=before > 0.0))
            emissions = np.where(opens[:, np.newaxis], np.log(expected.emissions), 0.0)
        possible = np.where(expected.emissions > 0.0, emissions, -np.inf)
        free = np.zeros(size)
        return ChainScores(possible, steps, free, free, chains.starts)

    def draw(self, problem: Problem, n: int, seed: Seed) -> States:
        """Exact, independent samples: int32[n, T]."""
        states = np.full((n, len(problem.chains.emissions)), -1, dtype=np.int32)
        random = np.random.default_rng(seed)
        for _, part, tokens in self._components(problem, np.ones(len(problem.firsts), dtype=bool)):
            *eliminated, _, total = self._eliminate(part)
            if total > -np.inf:
                of_part = np.empty((n, len(tokens)), dtype=np.int32)
                kernels.draw(*eliminated, random.random(of_part.shape), of_part)
                states[:, tokens] = of_part
        return states

    def walk_on(self, problem: Problem, states: States, times: int, random: np.random.Generator) -> States:
        """Draw independent labellings, since an exact method needs no walk."""
        return self.draw(problem, len(states), int(random.integers(1 << 31)))

    def rank(self, problem: Problem, n: int) -> list[tuple[float, States]]:
        """Search best-first. The tables contain the exact score of the best completion for each labelling of the variables that
        were eliminated last."""
        graph, tree, tables, messages, total = self._eliminate(self._fitting(problem), maximum=True)
        sizes = np.diff(graph.bounds)
        variables, place, starts, rest = tree.order
        last = len(variables) - 1
        ranked = []
        numbers = itertools.count()  # of equal scores, the labelling found first
        # Cost, number, states of all variables but the last one (latest eliminated first), and the state of the last one
        heap: list[tuple] = [(-total, next(numbers), (), ())] if total > -np.inf else []
        while heap and len(ranked) < n:
            cost, _, before, latest = heapq.heappop(heap)
            chosen = before + latest
            k = last - len(chosen)
            if k < 0:
                states = np.empty(len(variables), dtype=np.int32)
                states[variables[::-1]] = graph.states[graph.bounds[variables[::-1]] + np.array(chosen, dtype=np.int64)]
                ranked.append((-cost, states))
                continue
            # The row of the table for the states of the neighbours, which were chosen before
            row = 0
            for other in rest[starts[k] : starts[k + 1]].tolist():
                row = row * int(sizes[other]) + chosen[last - int(place[other])]
            at = tree.tables[k] + row * sizes[variables[k]]
            whole = float(messages[tree.messages[k] + row])
            for state, score in enumerate(tables[at : at + sizes[variables[k]]].tolist()):
                if score > -np.inf:
                    heapq.heappush(heap, (cost + whole - score, next(numbers), chosen, (state,)))
        return ranked

    def _eliminate(
        self, part: Problem, *, maximum: bool = False, kept: bool = True
    ) -> tuple[kernels.Graph, kernels.Tree, Floats, Floats, float]:
        """Eliminate all tokens of a component.

        maximum (bool): Whether to take maxima in place of sums. kept (bool): Whether to keep the tables.
        RETURNS (tuple): The graph, the tree, its tables and messages, and the log-sum or maximum over all labellings.
        RAISES (ValueError): CRF042 if a table would be too large.
        """
        graph = _graph(part)
        order, largest = _order(graph, self.max_table)
        if largest > self.max_table:
            raise ValueError(Errors.CRF042.format(size=int(largest), tokens=len(graph.own), most=self.max_table))
        tree = _plan(graph, order, kept)
        return graph, tree, *kernels.eliminate(graph, tree, maximum)

    def _components(
        self, problem: Problem, asked: NDArray[np.bool_]
    ) -> Iterator[tuple[int, Problem, NDArray[np.int64]]]:
        """Yield some components (bool[C]): number, the part to eliminate, and tokens."""
        for c in np.flatnonzero(asked).tolist():
            part, tokens = problem.only(c)
            yield c, self._fitting(part), tokens

    def _fitting(self, part: Problem) -> Problem:
        """A component, without ties that would make tables too large if these are to be left out: as few as possible, of those
        whose ends say least of each other. So much further from the whole is what is left (Koller & Friedman 2009, 8.5)."""
        if self.drop is None or self.fits(part):
            return part
        information = BeliefPropagation(iterations=50, damping=0.2).information(part)
        order = np.argsort(information, kind="stable")

        def without(n: int) -> Problem:
            return part.with_ties(np.sort(order[n:]))

        fewest = 1
        n = len(order)
        # Bisection: the fewest ties without which the tables fit
        while fewest < n:
            half = (fewest + n) // 2
            fewest, n = (fewest, half) if self.fits(without(half)) else (half + 1, n)
        self.n_dropped += n
        self.n_ties += len(order)
        if not self._has_warned:
            self._has_warned = True
            announcements.warning(
                Warnings.CRFW371.format(
                    n=n, ties=len(order), most=self.max_table, information=f"{float(information[order[:n]].sum()):.3g}"
                )
            )
        return without(n)

    def sums_up(self, problem: Problem, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For which of some components (bool[C]) log partitions are feasible: bool[C]."""
        return self._within_reach(problem, asked, [c for c, *_ in chosen_of(problem, asked)])

    def decides(self, problem: Problem, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """For which of some components (bool[C]) best labellings are feasible: bool[C]."""
        return self._within_reach(problem, asked, [cutset.component for cutset in cutsets(problem, asked)])

    def _within_reach(self, problem: Problem, asked: NDArray[np.bool_], known: list[int]) -> NDArray[np.bool_]:
        found = np.zeros(len(asked), dtype=bool)
        found[known] = True
        left = np.flatnonzero(asked & ~found)
        if len(left):
            found[left] = self.fits(problem) or [self.fits(problem.only(c)[0]) for c in left.tolist()]
        return found

    def fits(self, part: Problem) -> bool:
        """Whether the largest table of a problem is within `max_table`."""
        return _order(_graph(part), self.max_table)[1] <= self.max_table


def _order(graph: kernels.Graph, most: int) -> tuple[kernels.Order, float]:
    """Find the order of elimination, and the size of the largest table, or of the first table that is too large."""
    return kernels.order(graph.source, graph.target, np.diff(graph.bounds), most)


def _graph(problem: Problem) -> kernels.Graph:
    """Make the graph of a component: the possible states of its tokens, and the scores of connected tokens."""
    chains = problem.chains
    own = problem.own
    transitions = chains.transitions if chains.transitions.ndim == 3 else chains.transitions[np.newaxis]
    # If all transitions score 0, tokens are not connected as a chain, and the uses of transitions are not counted
    t = np.flatnonzero(~arrays.ends(chains.starts, len(own))[0] & chains.transitions.any())
    states, bounds = kernels.possible(own)
    return kernels.Graph(
        own,
        states,
        bounds,
        np.concatenate([t - 1, problem.source]),
        np.concatenate([t, problem.target]),
        np.concatenate([np.full(len(t), -1), problem.kind]),
        np.ascontiguousarray(transitions),
        np.ascontiguousarray(problem.tables),
        problem.label_of.astype(np.int64),
    )


def _plan(graph: kernels.Graph, order: kernels.Order, kept: bool) -> kernels.Tree:
    """Plan the places of tables and messages."""
    variables, place, starts, rest = order
    n = len(variables)
    sizes = np.diff(graph.bounds)
    of_rest = np.append(sizes[rest[: starts[n]]], 1)  # the last variables may have no neighbours left
    rows = np.where(starts[1:] > starts[:-1], np.multiply.reduceat(of_rest, starts[:-1]), 1)
    tables = np.append(0, np.cumsum(rows * sizes[variables]))
    messages = np.append(0, np.cumsum(rows))
    if not kept:
        tables = np.append(np.zeros(n, dtype=np.int64), np.diff(tables).max(initial=0))
    # A tie is multiplied into the table of the end that is eliminated first
    firsts = np.minimum(place[graph.source], place[graph.target])
    edges = np.argsort(firsts, kind="stable")
    return kernels.Tree(order, tables, messages, edges, np.searchsorted(firsts[edges], np.arange(n + 1)))


def _derive(
    problem: Problem, graph: kernels.Graph, tree: kernels.Tree, tables: Floats, weight: float, d_tables: Floats
) -> ChainScores:
    """Compute the derivatives with respect to the scores of a component, and add those with respect to tables to `d_tables`."""
    chains = problem.chains
    d_chains = arrays.zeros(chains)
    d_transitions = d_chains.transitions.reshape(graph.transitions.shape)
    kernels.derive(graph, tree, tables, weight, d_chains.emissions, d_transitions, d_tables)
    opens, closes = arrays.ends(chains.starts, len(chains.emissions))
    d_chains.first[:] = d_chains.emissions[opens].sum(axis=0)
    d_chains.last[:] = d_chains.emissions[closes].sum(axis=0)
    return d_chains
