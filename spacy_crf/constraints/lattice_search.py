r"""Search for the best labelling of a document under automata that no graph of states has room for:

    max_y  score(y) + sum_a score_a(y)       over all labellings y; score_a <= 0 is that of automaton a

    lattice -> max-marginals -> restricted lattice -> upper bound -> branch and bound -> proof, or the budget is spent
                                     ^                                     |
                                     +--- nodes that may be better <-------+

1. The max-marginal of a node is an upper bound on every labelling through it. The restricted lattice has the nodes whose
max-marginal is near the best score without automata, where automata read them, and alternatives to these. 2. Dual decomposition
lowers an upper bound on the labellings of the restricted lattice (`kernels.dual_decomposition`). 3. Branch and bound looks for
the best of them, and prunes by that bound (`kernels.branch_and_bound`). If it proves one to be the best, no labelling of the
restricted lattice is better. 4. A better labelling passes through a node outside whose max-marginal exceeds the best score;
max-marginals under the dual variables are bounds too. Such nodes are added, and the search goes back to 2. Without such nodes
the labelling is proved to be the best of all.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..kernels import dual_decomposition
from ..kernels.branch_and_bound import branch_and_bound
from ..kernels.dual_decomposition import LOWER, RATE, ROUNDING, UPPER, Descent
from ..kernels.lattice import LatticeArcs
from ..types import Floats
from .budget import Budget
from .lattice import ROWS, Lattice
from .lattice_automata import LatticeAutomaton, stacked

# The first restricted lattice
MARGIN = 6.0  # nodes whose max-marginal is at most so much (log-odds) below the best score
PER_ROW = 6  # nodes in each row that an automaton reads
ELSEWHERE = 32  # nodes in other rows, for each automaton that would read them
_WIDER = 4  # factor on these until some labelling is found
ALL_ARCS = 100_000  # lattices with at most so many arcs are taken whole

# When to give up
_ARCS_PER_SECOND = 4e6  # arcs that a search can use
_MOST_PREFIXES = 20_000_000  # automaton states of prefixes: 80 MB
MOST_IN_VAIN = 2  # extensions of the restricted lattice without a better labelling
_MOST_ROUNDS = 4  # of 2 and 3 while no labelling at all is known

# How work is shared out: descent and branch and bound take turns, and each turn may take longer than the one before
_FIRST_ITERATIONS = 20
_LONGER = 4  # at most by this factor
_SHARE = 0.25  # and at most this share of the remaining budget

# Seconds on a usual machine; `tests.benchmarks.constraints --only limits` compares them with this machine
_SETUP = 5e-4  # to set up a restricted lattice
_NODE = 4e-9  # to examine a node
_ADDED = 2.5e-9  # to connect a node, for each state
_MADE = 1.5e-8  # to make an arc or variable, for each automaton
# of an iteration of the descent, for each arc, variable and move of an automaton
_ARC = 5e-9
_VARIABLE = 5e-9
_MOVE = 3e-9
# of branch and bound: to try an arc, to read it, for each node
_TRIED = 2.5e-7
_READ = 6e-9
_VISITED = 7e-8
_BOUND = 4e-9  # of bounds outside the restricted lattice, for each token and move


class LatticeSearch:
    """The search in the lattice of one document. Each call of `solve` continues the search.

    lattice (Lattice): The lattice.
    automata (Sequence[LatticeAutomaton]): The automata of rules, and of texts that must have one label.
    """

    def __init__(self, lattice: Lattice, automata: Sequence[LatticeAutomaton]):
        self._lattice = lattice
        self._automata = automata
        self._score = -np.inf  # of the best labelling found: the lower bound
        self._path: Optional[NDArray[np.int32]] = None
        self._margin = MARGIN
        self._per_row = PER_ROW
        self._kept: Any = None  # bool[rows, S] nodes of the restricted lattice, None before the first search
        self._duals: Optional[list[Floats]] = None  # of the previous restricted lattice, see `RestrictedLattice`

    def solve(self, budget: Budget) -> tuple[Optional[NDArray[np.int32]], bool]:
        """Search for the best labelling, or continue the search.

        budget (Budget): Work that the search may take.
        RETURNS (int32[T] or None, bool): The best labelling found, as tags or as a path of segments, None if none was found; and
            whether it is proved that no labelling is better.
        """
        lattice = self._lattice
        if lattice.best == -np.inf:
            return None, True
        if self._kept is None:
            self._kept = self._first_nodes(budget)
        n_in_vain = 0  # searches since the last one that found a better labelling
        while budget.left > 0.0 and n_in_vain < MOST_IN_VAIN:
            kept, jumps, skipped = self._without_forced_nodes()
            if _n_arcs(kept) > max(ALL_ARCS, _ARCS_PER_SECOND * budget.left):
                break
            budget.spend(3 * _NODE * kept.size)
            arcs = lattice.arcs(kept, jumps)
            restricted = RestrictedLattice(arcs, self._automata, lattice.may_skip_tokens, self._duals)
            budget.spend(restricted.seconds)
            score, best_arcs, is_proved = restricted.solve(self._score, budget)
            if best_arcs is not None:
                self._score = score
                self._path = lattice.path(skipped, arcs, best_arcs)
            if self._path is None:
                missing = self._more_first_nodes(budget)
            elif is_proved:
                missing = self._better_nodes(restricted, budget)
                n_in_vain = n_in_vain + 1 if best_arcs is None else 0
            else:
                break
            if not missing.any():
                return self._path, is_proved
            self._add(self._kept, missing, budget)
        return self._path, False

    # 1. The restricted lattice

    def _first_nodes(self, budget: Budget) -> NDArray[np.bool_]:
        """Choose the first nodes: those near the best labelling, and more in rows that automata read."""
        lattice = self._lattice
        max_marginals = lattice.max_marginals
        possible = max_marginals > -np.inf
        if _n_arcs(possible) <= ALL_ARCS:
            budget.spend(_NODE * max_marginals.size)
            return possible
        is_near_best = possible & (max_marginals >= lattice.best - self._margin)
        kept = self._relevant(is_near_best) | self._on_best
        added = np.zeros_like(kept)
        for rows, is_read in zip(self._rows_read, self._states_read):
            if is_read.any():
                # Alternatives to the nodes that the automaton reads
                _add_best(added, max_marginals, rows, ~is_read, 1)
                # The best nodes elsewhere that it would read
                [states] = np.nonzero(is_read)
                elsewhere = np.where(kept[:, states], -np.inf, max_marginals[:, states]).ravel()
                n_least = len(elsewhere) - min(ELSEWHERE * self._per_row // PER_ROW, len(elsewhere))
                best = np.argpartition(elsewhere, n_least)[n_least:]
                row, column = np.divmod(best, len(states))
                added[row, states[column]] = True
        # In rows that any automaton reads: the best nodes, and an alternative that none reads
        rows = np.unique(np.concatenate(self._rows_read))
        is_read_by_any = np.any(self._states_read, axis=0)
        _add_best(added, max_marginals, rows, np.ones_like(is_read_by_any), self._per_row)
        _add_best(added, max_marginals, rows, ~is_read_by_any, 1)
        self._add(kept, added & possible, budget)
        budget.spend(_NODE * (3 + len(self._automata)) * max_marginals.size)
        return kept

    def _more_first_nodes(self, budget: Budget) -> NDArray[np.bool_]:
        """Choose more first nodes, since no labelling was found among those in use."""
        missing = np.zeros_like(self._kept)
        for margin in (_WIDER * self._margin, np.inf):
            self._margin = margin
            self._per_row *= _WIDER
            missing = self._first_nodes(budget) & ~self._kept
            if missing.any():
                break
        return missing

    def _add(self, kept: NDArray[np.bool_], added: NDArray[np.bool_], budget: Budget) -> None:
        """Add nodes to the kept nodes in place, and connect them."""
        n_before = int(kept.sum())
        self._lattice.add(kept, added)
        budget.spend(_NODE * kept.size + _ADDED * kept.shape[1] * (int(kept.sum()) - n_before))

    def _without_forced_nodes(self) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Remove kept nodes where a labelling has no choice and automata read nothing.

        RETURNS (bool[rows, S], int64[rows], int64[rows]): The remaining nodes; the row to which each row jumps, 0 for the next
            row; and the states of the removed nodes, -1 elsewhere.
        """
        kept = self._kept.copy()
        # A row is forced if only the best labelling is left there, and no automaton reads it
        is_forced = (kept.sum(axis=1) <= 1) & ~(kept & ~self._on_best).any(axis=1)
        for rows in self._rows_read:
            is_forced[rows] = False
        if any(automaton.reads_breaks for automaton in self._automata):
            is_forced[self._on_best[:, -1]] = False
        jumps = np.zeros(len(kept), dtype=np.int64)
        skipped = np.full(len(kept), -1)
        longest = self._lattice.longest_arc
        changes = np.flatnonzero(np.diff(np.concatenate([[False], is_forced, [False]])))
        for begin, end in changes.reshape(-1, 2).tolist():  # rows begin to end - 1 are forced
            # A long segment may begin in front of the forced rows, or end behind them: leave its rows out
            begin += longest - 1
            begin += (begin + 1) % ROWS  # the next row where segments may end
            inside = kept[begin : max(end - longest + 1, 0)]
            segment_ends = begin + ROWS * np.flatnonzero(inside.any(axis=1)[::ROWS])
            if len(segment_ends) > 2:
                first_end = segment_ends[0]
                last_end = segment_ends[-1]
                jumps[first_end] = last_end
                between = slice(first_end + 1, last_end)
                states = kept[between]
                skipped[between] = np.where(states.any(axis=1), states.argmax(axis=1), -1)
                kept[between] = False
        return kept, jumps, skipped

    @cached_property
    def _on_best(self) -> NDArray[np.bool_]:
        """Nodes of the best labelling without the automata."""
        best = self._lattice.best
        return self._lattice.max_marginals >= best - _rounding(best)

    @cached_property
    def _states_read(self) -> list[NDArray[np.bool_]]:
        """For each automaton, the states that it reads: bool[S]."""
        return [automaton.states_read() for automaton in self._automata]

    @cached_property
    def _rows_read(self) -> list[NDArray[np.int64]]:
        """For each automaton, the rows in which it reads the best labelling."""
        return [automaton.rows_read(self._on_best) for automaton in self._automata]

    def _relevant(self, nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Select the given nodes at which automata may change the labelling.

        The rows of the given nodes, other than those of the best labelling without automata, form runs. A run whose rows matter
        to no automaton is left out: there, that labelling remains the best. Rows matter where an automaton reads that labelling,
        or could gain by reading a given node. A long segment bypasses the rows that it covers, and everything read there, so runs
        reach as far as segments.
        """
        nodes = nodes & ~self._on_best
        # [rows] where an automaton may change the labelling
        matters = np.zeros(len(nodes), dtype=bool)
        for automaton, states in zip(self._automata, self._states_read):
            if automaton.may_gain:
                matters |= nodes[:, states].any(axis=1)
        for rows in self._rows_read:
            matters[rows] = True
            matters[np.maximum(rows, 1) - 1] = True  # an event may depend on the node before it
        bypassed = self._lattice.longest_arc - ROWS
        [filled] = np.nonzero(nodes.any(axis=1))  # rows with given nodes
        run = np.cumsum(np.diff(filled, prepend=filled[:1]) > bypassed + 1)  # number of the run of each filled row
        # Does a row matter from `bypassed` rows before each filled row to as many behind it?
        n_before = np.append(0, np.cumsum(matters))
        from_row = np.maximum(filled - bypassed, 0)
        to_row = np.minimum(filled + bypassed + 1, len(matters))
        n_mattering = np.bincount(run, n_before[to_row] > n_before[from_row])
        nodes[filled[n_mattering[run] == 0]] = False
        return nodes

    # 4. What is left outside

    def _better_nodes(self, restricted: "RestrictedLattice", budget: Budget) -> NDArray[np.bool_]:
        """Nodes outside the restricted lattice through which a labelling may be better than the best known labelling; only the
        best of these nodes if there are many. The dual variables of the restricted lattice are kept for the next one."""
        lattice = self._lattice
        least = self._score + _rounding(self._score)
        bounds = lattice.max_marginals
        missing = self._relevant(bounds > least) & ~self._kept
        # Fewer nodes are missing by the bounds under the dual variables, which take three passes over the lattice
        if _n_arcs(missing | self._kept) > ALL_ARCS and 4.0 * lattice.seconds < budget.left:
            moves = sum(automaton.following.size for automaton in self._automata if automaton.has_duals)
            moves += len(self._automata) * len(lattice.possible_events)
            budget.spend(_SETUP + 3.0 * lattice.seconds + _BOUND * lattice.tokens * moves)
            bounds_and_duals = restricted.bounds_of_nodes(lattice)
            if bounds_and_duals is not None:
                bounds, self._duals = bounds_and_duals
                missing &= bounds > least
        most_nodes = max(int(self._kept.sum()) // 2, ALL_ARCS // bounds.shape[1])
        if missing.sum() > most_nodes:
            missing &= bounds >= np.partition(bounds[missing], -most_nodes)[-most_nodes]
        return missing


class RestrictedLattice:
    """A part of a lattice, the automata that read it, and their dual variables.

    arcs (LatticeArcs): The arcs of the part.
    automata (Sequence[LatticeAutomaton]): The automata.
    may_skip_tokens (bool): Whether a labelling may pass a token without any event.
    duals (Optional[list[float64[n, C]]]): Dual variables of the previous restricted lattice, by automaton, token and kind of
        event.
    """

    def __init__(
        self,
        arcs: LatticeArcs,
        automata: Sequence[LatticeAutomaton],
        may_skip_tokens: bool,
        duals: Optional[list[Floats]] = None,
    ):
        self._arcs = arcs
        self._automata = automata
        self._may_skip_tokens = may_skip_tokens
        kinds = np.stack([automaton.read(arcs) for automaton in automata])  # [A, N]
        self._tables = stacked(automata)
        variables = dual_decomposition.make_variables(arcs, kinds, self._tables.states, may_skip_tokens)
        self._variables = variables
        self._problem = (arcs, self._tables, variables)  # for kernels
        self._tokens = np.repeat(variables.time, np.diff(variables.starts)) // ROWS  # [Z] token of each variable
        self._duals = np.zeros(len(variables.kind))  # [Z]
        hard_first = np.argsort([not automaton.is_hard for automaton in automata], kind="stable")
        dual_decomposition.first_duals(arcs, kinds, variables, hard_first, self._duals)
        for a, previous in enumerate(duals or []):
            # The kinds of a text's automaton depend on the arcs, and may have changed
            if previous.shape[1:] == automata[a].following.shape[1:]:
                numbers = self._variables_of(a, len(previous))
                values = previous[self._tokens[numbers], variables.kind[numbers]]
                is_possible = values < np.inf
                self._duals[numbers[is_possible]] = values[is_possible]

    def _variables_of(self, a: int, n_tokens: int) -> NDArray[np.int64]:
        """Numbers of the variables of automaton a at tokens: int64[N]. Variables at the end of the document are left out."""
        return np.flatnonzero((self._variables.automaton == a) & (self._tokens < n_tokens))

    @property
    def seconds(self) -> float:
        """Estimate the seconds that making the restricted lattice takes."""
        return _SETUP + _MADE * (1 + len(self._automata)) * (len(self._arcs.source) + len(self._variables.of_arc))

    @cached_property
    def _iteration(self) -> float:
        """Estimate the seconds of an iteration of the descent."""
        variables = self._variables
        n_states = np.diff(self._tables.states)
        # At each reading an automaton has the choice of its variables, and may also read nothing
        n_choices = np.diff(variables.readings) + np.bincount(variables.automaton, minlength=len(n_states))  # [A]
        moves = float(n_states @ n_choices)
        return _ARC * len(self._arcs.source) + _VARIABLE * len(variables.of_arc) + _MOVE * moves

    def solve(self, best_score: float, budget: Budget) -> tuple[float, Optional[NDArray[np.int32]], bool]:
        """Search for the best labelling of the restricted lattice, if its score is higher than `best_score`.

        best_score (float): The best score so far.
        budget (Budget): Work that the search may take.
        RETURNS (float, int32[M] or None, bool): Score and arcs of the best labelling, `best_score` and None if no labelling is
            better; and whether it is proved that no labelling has a higher score.
        """
        n_nodes = len(self._arcs.time)
        suffix = np.empty(n_nodes)
        suffixes = np.empty(int(self._variables.suffixes[-1]))
        values = np.zeros(4)
        values[[UPPER, LOWER, RATE]] = np.inf, best_score, 1.0
        descent = Descent(
            values=values,
            duals=self._duals.copy(),
            best_duals=self._duals,  # receives the dual variables of the lowest bound
            best_path=np.zeros(n_nodes, dtype=np.int32),
            length=np.zeros(1, dtype=np.int64),
        )
        width = 1  # prefixes that branch and bound extends at each node
        iterations = int(min(_FIRST_ITERATIONS, 0.5 * budget.left / self._iteration))
        rounds = 0
        is_proved = False
        while iterations > 0 and width > 0:
            n_iterations = dual_decomposition.descend(*self._problem, descent, suffix, suffixes, iterations)
            descending = self._iteration * n_iterations
            budget.spend(descending)
            branching = 0.0
            if values[UPPER] > -np.inf and values[UPPER] > values[LOWER] + _rounding(values[LOWER]):
                branching = self._branch(descent, suffix, suffixes, width)
                budget.spend(branching)
            is_proved = bool(values[UPPER] <= values[LOWER] + _rounding(values[LOWER]))
            rounds += 1
            if is_proved or (rounds >= _MOST_ROUNDS and values[LOWER] == -np.inf):
                break
            share = _SHARE * budget.left
            # At least 1e-6 s, since what took no time must not divide by 0
            iterations = int(min(_LONGER * iterations, share / max(descending, 1e-6) * iterations))
            width = int(min(_LONGER * width, share / max(branching, 1e-6) * width))
        dual_decomposition.find_bound(*self._problem, self._duals, suffix, suffixes)
        self._best_with_duals = suffix[0]  # of all labellings of the restricted lattice, under the dual variables alone
        best_arcs = descent.best_path[: descent.length[0]].copy() if descent.length[0] else None
        return float(values[LOWER]), best_arcs, is_proved

    def _branch(self, descent: Descent, suffix: Floats, suffixes: Floats, width: int) -> float:
        """Branch and bound under the best dual variables. Updates the bounds and the best labelling of `descent`.

        suffix (float64[V]), suffixes (float64): Work space, see `dual_decomposition.find_bound`.
        width (int): How many prefixes to extend at each node.
        RETURNS (float): The estimated seconds.
        """
        values = descent.values
        n_nodes = len(suffix)
        n_readers = 1 + len(self._automata)  # the lattice and the automata
        path = np.zeros(n_nodes, dtype=np.int32)
        dual_decomposition.find_bound(*self._problem, self._duals, suffix, suffixes)
        # About `width` prefixes stay at each node that was passed; nodes ahead may have more until they are reached. A prefix has
        # a state of each reader, and scores and links, which take about as much memory as 4 states
        n_prefixes = min((width + 2) * n_nodes + 64 * width, _MOST_PREFIXES // (4 + n_readers))
        score, n_arcs, bound_left_out, n_tried = branch_and_bound(
            *self._problem, suffix, suffixes, width, values[LOWER], n_prefixes, path
        )
        if score > values[LOWER]:
            values[LOWER] = score
            descent.length[0] = n_arcs
            descent.best_path[:] = path
        # Other labellings are at most as good as the best prefix that was left out
        values[UPPER] = min(values[UPPER], max(bound_left_out, values[LOWER]))
        return (_TRIED + _READ * n_readers) * n_tried + _VISITED * n_nodes

    def bounds_of_nodes(self, lattice: Lattice) -> Optional[tuple[Floats, list[Floats]]]:
        """Compute upper bounds on the labellings through each node of the whole lattice, under the dual variables.

        Events outside the restricted lattice get dual variables too: minus what a labelling with the event can gain over the best
        labelling of the restricted lattice. So it gains nothing, unless an automaton gains more by the event.

        lattice (Lattice): The whole lattice.
        RETURNS (float64[rows, S], list[float64[n, C]]): Bounds; and the dual variables by automaton, token and kind. None if
            they take too much memory.
        """
        n_tokens = lattice.tokens
        variables = self._variables
        automata = [(a, automaton) for a, automaton in enumerate(self._automata) if automaton.has_duals]
        event_duals = np.zeros((n_tokens, len(lattice.possible_events)))  # [n, E] sum of the variables of each event
        restricted_duals = []  # [n, C] by automaton; NaN where the restricted lattice has no variable
        for a, automaton in automata:
            duals = np.full((n_tokens, automaton.following.shape[1]), np.nan)
            numbers = self._variables_of(a, n_tokens)
            duals[self._tokens[numbers], variables.kind[numbers]] = self._duals[numbers]
            automaton.add_to_events(event_duals, np.nan_to_num(duals))
            restricted_duals.append(duals)
        max_marginals = lattice.max_marginals_with(event_duals)
        if max_marginals is None:
            return None
        # An event belongs to several automata: each is charged its part
        n_readers = sum(automaton.members[1:].any(axis=0) for _, automaton in automata)  # [E]
        gains = self._gains(lattice, max_marginals) / np.maximum(n_readers, 1)
        all_duals = [np.zeros((0, 0))] * len(self._automata)
        bound = 0.0  # on the sum of the scores of all automata
        for (a, automaton), duals in zip(automata, restricted_duals):
            members = automaton.members
            least = np.minimum(np.nanmin(duals, axis=0, initial=0.0), 0.0)  # [C]
            gains_of_kinds = np.stack([gains[:, events].max(axis=1, initial=0.0) for events in members], axis=1)
            free = self._completed(automaton, members, duals, np.zeros_like(duals))
            charged = self._completed(automaton, members, duals, np.maximum(-gains_of_kinds, least))
            all_duals[a] = charged
            tables = automaton.following, automaton.scores, automaton.last
            free_bound = dual_decomposition.bound_automaton(*tables, free)
            charged_bound = dual_decomposition.bound_automaton(*tables, charged)
            # The charges help unless the automaton would take an event repeatedly
            if charged_bound <= free_bound - least.min():
                bound += charged_bound
                automaton.add_to_events(event_duals, np.where(np.isnan(duals) & (charged < np.inf), charged, 0.0))
            else:
                bound += free_bound
        charged_marginals = lattice.max_marginals_with(event_duals)
        return None if charged_marginals is None else (charged_marginals + bound, all_duals)

    def _gains(self, lattice: Lattice, max_marginals: Floats) -> Floats:
        """By how much the best labelling with an event at a token is better than the best labelling of the restricted lattice,
        both under the dual variables alone: float64[n, E], at least 0."""
        best = np.full((lattice.tokens, len(lattice.possible_events)), -np.inf)
        for event in np.flatnonzero(lattice.possible_events.any(axis=1)):
            best[:, event] = max_marginals[::ROWS, lattice.possible_events[event]].max(axis=1)
        return np.maximum(best - self._best_with_duals, 0.0)

    def _completed(
        self, automaton: LatticeAutomaton, members: NDArray[np.bool_], duals: Floats, default: Floats
    ) -> Floats:
        """Complete the dual variables of an automaton, by token and kind.

        automaton (LatticeAutomaton): The automaton.
        members (bool[C, E]): The events of each kind.
        duals (float64[n, C]): Dual variables of the restricted lattice, NaN for kinds that it has not at the token.
        default (float64[n, C]): Values in place of NaN.
        RETURNS (float64[n, C]): Dual variables of all kinds, inf for impossible ones.
        """
        completed = np.where(np.isnan(duals), default, duals)
        completed[:, 0] = 0.0 if self._may_skip_tokens or members[0].any() else np.inf
        automaton.forbid_impossible(completed)
        return completed


def _add_best(
    kept: NDArray[np.bool_], max_marginals: Floats, rows: NDArray[np.int64], states: NDArray[np.bool_], n: int
) -> None:
    """Keep, in each of the rows, the n best nodes among the states (bool[S])."""
    [chosen] = np.nonzero(states)
    if len(rows) and len(chosen):
        candidates = max_marginals[np.ix_(rows, chosen)]
        n = min(n, len(chosen))
        least = np.partition(candidates, -n, axis=1)[:, -n, np.newaxis]
        kept[np.ix_(rows, chosen)] |= candidates >= least


def _n_arcs(kept: NDArray[np.bool_]) -> int:
    """Largest possible number of arcs between the nodes of neighbouring rows."""
    n_nodes = kept.sum(axis=1)
    return int((n_nodes[:-1] * n_nodes[1:]).sum())


def _rounding(score: float) -> float:
    """Largest difference between two scores of this size that are equal but for rounding."""
    return ROUNDING * (1.0 + abs(score)) if score > -np.inf else 0.0
