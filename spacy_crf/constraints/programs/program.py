"""The search for the best labelling of a document under automata, if a short search fails: it uses a lattice of relevant nodes,
an upper bound by dual decomposition, and a search among the labellings that the bound leaves (`kernels.dual_decomposition`).

The first lattice has the nodes near places that automata read whose worth is close to the score of the best labelling without
automata, and alternatives to these. A labelling found there is the best of all if no other node is worth more; the worth of
nodes under the prices of the decomposition is an upper bound too. The search adds nodes that are worth more, until there are
none, they bring no gain, or the time is up.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ...kernels import dual_decomposition
from ...kernels.lattice import LatticeSteps
from ...types import Floats
from ..decoding import Budget
from .lattice import ROWS, Lattice
from .lattice_automata import LatticeAutomaton, stacked

_MARGIN = 6.0  # the first nodes are worth at most so much (log-odds) less than the best labelling
_FEW = 6  # first nodes in a row that an automaton reads
_MORE = 32  # first nodes in other rows that an automaton would read
_ALL = 100_000  # with at most so many steps, take all nodes at once
_STEPS = 4e6  # steps that a search can use per second
_PREFIXES = 20_000_000  # largest size of the table of automaton states of prefixes
_IN_VAIN = 2  # stop after so many extensions of the lattice without a gain
_TRIES = 4  # attempts to find any labelling in a part of the lattice
_SHARE = 0.25  # share of the remaining time for the next ascent, and for the next search
_ROUNDING = 1e-9


# Seconds on a usual machine; `tests.benchmarks.constraints --only limits` compares them with this machine
_SETUP = 5e-4  # to set up a part of the lattice
_NODE = 4e-9  # to examine a node
_ADDED = 2.5e-9  # to connect a node, for each state
_MADE = 1.5e-8  # to make a step or slot, for each automaton
_STEP, _SLOT, _MOVE = 5e-9, 5e-9, 3e-9  # of an iteration of an ascent, for each step, slot and move
_TRIED, _READ, _PLACE = 2.5e-7, 6e-9, 7e-8  # of a search: to try a step, to read it by an automaton, for each place
_BOUND = 4e-9  # of bounds outside a part, for each token and move


class Program:
    """The search in the lattice of one document under the automata of rules, and of texts that have one label. Each call of
    `solve` continues the search."""

    def __init__(self, lattice: Lattice, automata: Sequence[LatticeAutomaton]):
        self._lattice, self._lattice_automata = lattice, automata
        self._floor = -np.inf  # score of the best labelling found
        self._path: Optional[NDArray[np.int32]] = None
        self._margin, self._few = _MARGIN, _FEW
        self._kept: Any = None  # bool[rows, S] nodes of the present part, None before the first
        self._prices: Optional[list[Floats]] = None

    def solve(self, budget: Budget) -> tuple[Optional[NDArray[np.int32]], bool]:
        """The best labelling, or the best one that was found when the budget is spent.

        RETURNS (int32[T] or None, bool): Tags, or a path of segments; None if no labelling was found. And whether it is proven
            to be the best one, or that there is none.
        """
        lattice, in_vain = self._lattice, 0
        if lattice.best == -np.inf:
            return None, True
        if self._kept is None:
            self._kept = self._first_nodes(budget)
        while budget.left > 0.0 and in_vain < _IN_VAIN:
            kept, jumps, skipped = self._shortened()
            if _n_steps(kept) > max(_ALL, _STEPS * budget.left):
                break
            budget.spend(3 * _NODE * kept.size)
            part = _Part(lattice.steps(kept, jumps), self._lattice_automata, lattice.rests, self._prices)
            budget.spend(part.seconds)
            found, complete = part.climb(self._floor, budget)
            if found is not None:
                self._floor, taken = found
                self._path, in_vain = lattice.path(skipped, part.steps, taken), 0
            if self._path is None:
                for margin in (4.0 * self._margin, np.inf):
                    self._margin, self._few = margin, 4 * self._few
                    missing = self._first_nodes(budget) & ~self._kept
                    if missing.any():
                        break
            elif complete:
                missing = self._worth_more(part, budget)
                in_vain += found is None
            else:
                break
            if not missing.any():
                return self._path, complete
            self._add(self._kept, missing, budget)
        return self._path, False

    def _first_nodes(self, budget: Budget) -> NDArray[np.bool_]:
        """Choose the first nodes: those worth almost as much as the best labelling, and more in rows that automata read."""
        lattice, worth, few = self._lattice, self._lattice.worth, self._few
        possible = worth > -np.inf
        if _n_steps(possible) <= _ALL:
            budget.spend(_NODE * worth.size)
            return possible
        kept = self._relevant(possible & (worth >= lattice.best - self._margin)) | self._on_best
        added, rows = np.zeros_like(kept), []
        for of_reader, reads in zip(self._rows, self._read):
            rows.append(of_reader)
            if reads.any():
                # Alternatives to the nodes that the automaton reads, and nodes elsewhere that it would read
                _keep_best(added, worth, of_reader, ~reads, 1)
                [states] = np.nonzero(reads)
                others = np.where(kept[:, states], -np.inf, worth[:, states]).ravel()
                more = min(_MORE * few // _FEW, len(others))
                more = np.argpartition(others, len(others) - more)[len(others) - more :]
                added[more // len(states), states[more % len(states)]] = True
        every, is_read = np.unique(np.concatenate(rows)), np.any(self._read, axis=0)
        _keep_best(added, worth, every, np.ones_like(is_read), few)
        _keep_best(added, worth, every, ~is_read, 1)
        self._add(kept, added & possible, budget)
        budget.spend(_NODE * (3 + len(self._lattice_automata)) * worth.size)
        return kept

    def _add(self, kept: NDArray[np.bool_], added: NDArray[np.bool_], budget: Budget) -> None:
        before = int(kept.sum())
        self._lattice.add(kept, added)
        budget.spend(_NODE * kept.size + _ADDED * kept.shape[1] * (int(kept.sum()) - before))

    def _shortened(self) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Remove kept nodes where a labelling has no choice and automata read nothing.

        RETURNS (bool[rows, S], int64[rows], int64[rows]): The remaining nodes; the row that each row leads to, if it is not
            the next one; and the states of the removed nodes, -1 elsewhere.
        """
        kept, (n_rows, _) = self._kept.copy(), self._kept.shape
        plain = (kept.sum(axis=1) <= 1) & ~(kept & ~self._on_best).any(axis=1)
        for rows in self._rows:
            plain[rows] = False
        if any(automaton.reads_breaks for automaton in self._lattice_automata):
            plain[self._on_best[:, -1]] = False
        jumps, skipped = np.zeros(n_rows, dtype=np.int64), np.full(n_rows, -1)
        # A long segment may begin in front of a plain row and end behind it
        steps = self._lattice.longest_step
        edges = np.flatnonzero(np.diff(np.concatenate([[False], plain, [False]])))
        for begin, end in zip((edges[::2] + steps - 1).tolist(), (edges[1::2] - steps).tolist()):
            inside = slice(begin + (begin + 1) % ROWS, max(end + 1, 0))
            filled = ROWS * np.flatnonzero(kept[inside].any(axis=1)[::ROWS])
            if len(filled) > 2:
                first, last = inside.start + int(filled[0]), inside.start + int(filled[-1])
                jumps[first] = last
                between = slice(first + 1, last)
                states = kept[between]
                skipped[between] = np.where(states.any(axis=1), states.argmax(axis=1), -1)
                kept[between] = False
        return kept, jumps, skipped

    @cached_property
    def _on_best(self) -> NDArray[np.bool_]:
        """Nodes of the best labelling without the automata."""
        best = self._lattice.best
        return self._lattice.worth >= best - _slack(best)

    @cached_property
    def _read(self) -> list[NDArray[np.bool_]]:
        """For each automaton, the states that it reads: bool[S]."""
        return [automaton.states() for automaton in self._lattice_automata]

    @cached_property
    def _rows(self) -> list[NDArray[np.int64]]:
        """For each automaton, the rows in which it reads the best labelling."""
        return [automaton.rows(self._on_best) for automaton in self._lattice_automata]

    def _relevant(self, nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Keep the nodes that may be part of the best labelling. A run of rows with such nodes is removed if, within it, no
        automaton reads the best labelling without automata or could gain by reading the nodes: there, that labelling remains the
        best. A long segment bypasses the rows that it covers, and everything that automata read there."""
        nodes = nodes & ~self._on_best
        matters = np.zeros(len(nodes), dtype=bool)
        for automaton, reads in zip(self._lattice_automata, self._read):
            if automaton.may_gain:
                matters |= nodes[:, reads].any(axis=1)
        for rows in self._rows:
            matters[rows] = True
            matters[np.maximum(rows, 1) - 1] = True  # an event may depend on the node before it
        passed = self._lattice.longest_step - ROWS  # number of rows that the longest segment bypasses
        [filled] = np.nonzero(nodes.any(axis=1))
        before = np.append(0, np.cumsum(matters))
        has_say = before[np.minimum(filled + passed + 1, len(matters))] > before[np.maximum(filled - passed, 0)]
        run = np.cumsum(np.diff(filled, prepend=filled[:1]) > passed + 1)
        nodes[filled[np.bincount(run, has_say)[run] == 0]] = False
        return nodes

    def _worth_more(self, part: "_Part", budget: Budget) -> NDArray[np.bool_]:
        """Nodes on labellings that may be better than the best known one; only the best nodes if there are many."""
        lattice, least = self._lattice, self._floor + _slack(self._floor)
        worth, kept = lattice.worth, self._kept
        missing = self._relevant(worth > least) & ~kept
        if _n_steps(missing | kept) > _ALL and 4.0 * lattice.seconds < budget.left:
            priced = part.upper_bounds(lattice)
            moves = sum(automaton.following.size for automaton in self._lattice_automata if automaton.pays)
            moves += len(self._lattice_automata) * len(lattice.possible_events)
            budget.spend(_SETUP + 3.0 * lattice.seconds + _BOUND * lattice.tokens * moves)
            if priced is not None:
                missing &= priced > least
                worth, self._prices = priced, part.everywhere
        most = max(int(kept.sum()) // 2, _ALL // worth.shape[1])
        if missing.sum() > most:
            missing &= worth >= np.partition(worth[missing], -most)[-most]
        return missing


class _Part:
    """The kept nodes of a lattice, the automata that read them, and the prices that the automata pay.

    prices (Optional[list[float64[n, C]]]): Prices of the previous part, by automaton.
    """

    def __init__(
        self, steps: LatticeSteps, automata: Sequence[LatticeAutomaton], rests: bool, prices: Optional[list[Floats]]
    ):
        self.steps, self._lattice_automata = steps, automata
        kinds = np.stack([automaton.kinds(steps) for automaton in automata])
        self._automata = stacked(automata)
        self._slots = dual_decomposition.make_slots(steps, kinds, self._automata.states, rests)
        self._prices = np.zeros(len(self._slots.kind))
        order = np.argsort([not automaton.is_hard for automaton in automata], kind="stable")
        dual_decomposition.first_prices(steps, kinds, self._slots, order, self._prices)
        slots = self._slots
        tokens = np.repeat(slots.time, np.diff(slots.starts)) // ROWS
        for a, (automaton, before) in enumerate(zip(automata, prices or [])):
            if len(before) and before.shape[1] == automaton.following.shape[1]:
                own = np.flatnonzero((slots.automaton == a) & (tokens < len(before)))
                known = before[tokens[own], slots.kind[own]]
                self._prices[own[known < np.inf]] = known[known < np.inf]

    def climb(self, floor: float, budget: Budget) -> tuple[Optional[tuple[float, NDArray[np.int32]]], bool]:
        """Search this part for a labelling that is better than a known one.

        floor (float): Score of the known labelling.
        RETURNS (Tuple[float, int32[M]] or None, bool): Score and steps of the best labelling; and whether the result is proven.
        """
        part = self.steps, self._automata, self._slots
        n_places, n_automata = len(self.steps.time), len(self._slots.rows)
        rest, suffixes = np.empty(n_places), np.empty(int(self._slots.bounds[-1]))
        path, length = np.zeros((2, n_places), dtype=np.int32), np.zeros(1, dtype=np.int64)
        values, prices = np.array([np.inf, floor, 1.0, 0.0]), np.stack([self._prices, self._prices])
        climb = dual_decomposition.Climb(values, prices[0], prices[1], path[0], length)
        self._prices = climb.best_prices
        width, tries = 1, 0
        complete = False
        iterations = int(min(20, 0.5 * budget.left / self._iteration))
        while iterations > 0 and width > 0:
            climbing = self._iteration * dual_decomposition.ascend(*part, climb, rest, suffixes, iterations)
            budget.spend(climbing)
            searching = 0.0
            if values[0] > -np.inf and values[0] > values[1] + _slack(values[1]):
                dual_decomposition.bound(*part, climb.best_prices, rest, suffixes)
                most = min((width + 2) * n_places + 64 * width, _PREFIXES // (4 + n_automata))
                found = dual_decomposition.search(*part, rest, suffixes, width, values[1], most, path[1])
                score, taken, left_out, tried = found
                searching = (_TRIED + _READ * n_automata) * tried + _PLACE * n_places
                budget.spend(searching)
                if score > values[1]:
                    values[1], length[0] = score, taken
                    path[0] = path[1]
                values[0] = min(values[0], max(left_out, values[1]))
            complete, tries = values[0] <= values[1] + _slack(values[1]), tries + 1
            if complete or (tries >= _TRIES and not length[0] and floor == -np.inf):
                break
            # Ascent and search take more time in each round, as long as the budget lasts
            left = _SHARE * budget.left
            iterations = int(min(4 * iterations, left / max(climbing, 1e-6) * iterations))
            width = int(min(4 * width, left / max(searching, 1e-6) * width))
        dual_decomposition.bound(*part, climb.best_prices, rest, suffixes)
        self._of_labellings = rest[0]
        return (float(values[1]), path[0, : length[0]].copy()) if length[0] else None, complete

    @cached_property
    def _iteration(self) -> float:
        """Estimate the seconds of an iteration of an ascent."""
        slots, states = self._slots, np.diff(self._automata.states)
        read = np.diff(slots.rows) + np.bincount(slots.automaton, minlength=len(states))  # [A]
        return _STEP * len(self.steps.source) + _SLOT * len(slots.of_step) + _MOVE * float(states @ read)

    @property
    def seconds(self) -> float:
        """Estimate the seconds that making this part takes."""
        n_steps = len(self.steps.source) + len(self._slots.of_step)
        return _SETUP + _MADE * (1 + len(self._lattice_automata)) * n_steps

    def upper_bounds(self, lattice: Lattice) -> Optional[Floats]:
        """Upper bounds, under the prices, for labellings with each node: float64[rows, S]; None if they take too much memory.

        Events outside this part of the lattice get prices too: a price makes a labelling no better than the labellings of
        this part, unless an automaton gains more by the event."""
        slots, n_tokens = self._slots, lattice.tokens
        tokens = np.repeat(slots.time, np.diff(slots.starts)) // ROWS
        automata = [(a, one) for a, one in enumerate(self._lattice_automata) if one.pays]  # the others gain nothing
        table, of_slots = np.zeros((n_tokens, len(lattice.possible_events))), []
        for a, automaton in automata:
            own = np.flatnonzero((slots.automaton == a) & (tokens < n_tokens))  # the end has no events
            prices = np.full((n_tokens, automaton.following.shape[1]), np.nan)
            prices[tokens[own], slots.kind[own]] = self._prices[own]
            automaton.pay(table, np.nan_to_num(prices))
            of_slots.append(prices)
        worth = lattice.worth_with(table)
        if worth is None:
            return None
        # By how much events make a labelling better than the labellings of this part
        gain = np.full(table.shape, -np.inf)
        for event in np.flatnonzero(lattice.possible_events.any(axis=1)):
            gain[:, event] = worth[::ROWS, lattice.possible_events[event]].max(axis=1)
        gain = np.maximum(gain - self._of_labellings, 0.0)
        gain /= np.maximum(sum(automaton.members[1:].any(axis=0) for _, automaton in automata), 1)
        total = 0.0
        self.everywhere = [np.zeros((0, 0))] * len(self._lattice_automata)
        for (a, automaton), prices in zip(automata, of_slots):
            members = automaton.members
            largest = np.maximum(-np.nanmin(prices, axis=0, initial=0.0), 0.0)
            gains = np.stack([gain[:, events].max(axis=1, initial=0.0) for events in members], axis=1)
            charged = -np.minimum(gains, largest)
            bounds = []
            for default in (np.zeros_like(prices), charged):
                default[:, 0] = 0.0 if lattice.rests or members[0].any() else np.inf
                everywhere = np.where(np.isnan(prices), default, prices)
                automaton.forbid(everywhere)
                tables = automaton.following, automaton.scores, automaton.last
                bounds.append(dual_decomposition.bound_automaton(*tables, everywhere))
            self.everywhere[a] = everywhere
            if bounds[1] <= bounds[0] + largest.max():  # unless the automaton would take the event repeatedly
                automaton.pay(table, np.where(np.isnan(prices) & (everywhere < np.inf), everywhere, 0.0))
            total += bounds[1] if bounds[1] <= bounds[0] + largest.max() else bounds[0]
        worth = lattice.worth_with(table)
        return None if worth is None else worth + total


def _keep_best(
    kept: NDArray[np.bool_], worth: Floats, rows: NDArray[np.int64], states: NDArray[np.bool_], n: int
) -> None:
    """Keep the n best nodes of some rows and states."""
    [chosen] = np.nonzero(states)
    if not len(rows) or not len(chosen):
        return
    of_rows = worth[np.ix_(rows, chosen)]
    n = min(n, len(chosen))
    least = np.partition(of_rows, -n, axis=1)[:, -n, np.newaxis]
    kept[np.ix_(rows, chosen)] |= of_rows >= least


def _n_steps(kept: NDArray[np.bool_]) -> int:
    of_row = kept.sum(axis=1)
    return int((of_row[:-1] * of_row[1:]).sum())


def _slack(score: float) -> float:
    return _ROUNDING * (1.0 + abs(score)) if score > -np.inf else 0.0
