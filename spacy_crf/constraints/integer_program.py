"""Rules as an integer linear program over the trellis of a document (Roth & Yih 2005), for the solver HiGHS.

A labelling is a unit of flow through the tags; each automaton is a second network in which a unit flows too, and the two
agree, token by token, on what happens. So the program grows with the sum of the automata's states, not with their product.

Only steps that can be part of a solution become variables: a step whose best labelling – without the rules – scores less than
one that is known to keep them is left out. That one is found by trying with few steps first.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ..arrays import Joined
from ..errors import Errors
from ..types import Floats
from .automaton import Automaton, SpanTags

_FIRST_MARGIN = 4.0  # log-odds below the best labelling without the rules
_LAST_MARGIN = 100.0  # beyond, all steps are taken
_SLACK = 1e-6


class Solution(NamedTuple):
    """tags is None if no labelling keeps the rules."""

    tags: Optional[NDArray[np.int32]]  # [T]
    finished: bool  # whether it is the best one for sure


class _Trellis(NamedTuple):
    """All steps of a chain: from tag ``before`` to tag ``after`` at token t; what is
    before the first token is like a break."""

    t: NDArray[np.int64]
    before: NDArray[np.int64]
    after: NDArray[np.int64]
    scores: Floats
    best: Floats  # score of the best labelling with this step


def solve(
    joined: Joined,
    tags: SpanTags,
    automata: Sequence[Automaton],
    texts: Sequence[list[tuple[int, int]]],
    *,
    time_limit: float,
) -> Solution:
    """Best labelling of a joined chain of at least one token.

    automata: All of them accept it, and their scores count.
    texts: For each text its occurrences, tokens begin up to end; those that become spans have one label.
    time_limit (float): Seconds.
    RETURNS (Solution)
    RAISES (ValueError): CRF615 if scipy is not installed.
    """
    trellis = _trellis(joined)

    def optimise(chosen: NDArray[np.bool_], seconds: float):
        return _optimise(_Trellis(*(c[chosen] for c in trellis)), tags, automata, texts, seconds)

    return solve_with_few(trellis.best, automata, optimise, time_limit)


def solve_with_few(best: Floats, automata: Sequence[Automaton], optimise: Callable, time_limit: float) -> Solution:
    """Solves a program with the variables that can be part of a solution.

    best (float64[N]): For each variable the score of the best labelling that uses it, without the rules.
    optimise (Callable): From the variables chosen (bool[N]) and seconds to the labelling or None, its score, and whether the
        solver finished.
    """
    if not len(best):
        return Solution(None, True)
    limit = best.max()
    # Automata that reward may lift a labelling above what its steps promise.
    margin = _FIRST_MARGIN if all(automaton.is_lazy for automaton in automata) else np.inf
    until = time.perf_counter() + time_limit
    while True:
        chosen = best >= limit - margin - _SLACK
        left = max(until - time.perf_counter(), 0.1 * time_limit)
        answer, value, in_time = optimise(chosen, left)
        if chosen.all() or (in_time and answer is not None and limit - value <= margin):
            return Solution(answer, in_time)
        if time.perf_counter() > until:  # what was found is the best among few steps
            return Solution(answer, False)
        if answer is not None:
            margin = limit - value
        else:
            margin = 1.5 * margin if margin < _LAST_MARGIN else np.inf


def _trellis(joined: Joined) -> _Trellis:
    scores, clamp = joined.scores, joined.clamp
    emissions = scores.emissions if clamp is None else np.where(clamp, scores.emissions, -np.inf)
    tokens, size = emissions.shape
    matrices = scores.transitions if np.ndim(scores.transitions) == 3 else None
    alpha, beta = np.empty((2, tokens, size))
    alpha[0] = scores.first + emissions[0]
    for t in range(1, tokens):
        matrix = scores.transitions if matrices is None else matrices[t]
        alpha[t] = (alpha[t - 1][:, None] + matrix).max(axis=0) + emissions[t]
    beta[-1] = scores.last
    for t in range(tokens - 1, 0, -1):
        matrix = scores.transitions if matrices is None else matrices[t]
        beta[t - 1] = (matrix + (emissions[t] + beta[t])[None, :]).max(axis=1)
    last = np.zeros((tokens, size))
    last[-1] = scores.last
    columns = []
    for t in range(tokens):
        matrix = scores.transitions if matrices is None else matrices[t]
        step = scores.first[None, :] if t == 0 else matrix
        best = (0.0 if t == 0 else alpha[t - 1][:, None]) + step + (emissions[t] + beta[t])[None, :]
        before, after = np.nonzero(best > -np.inf)
        value = step[before, after] + emissions[t, after] + last[t, after]
        before_tag = np.full(len(after), size - 1) if t == 0 else before
        columns.append((np.full(len(after), t), before_tag, after, value, best[before, after]))
    return _Trellis(*(np.concatenate(column) for column in zip(*columns)))


class Program:
    """A linear program, built row by row. Its first variables are those that say what a labelling is.

    scores (float64[N]): What these are worth.
    """

    def __init__(self, scores: Floats):
        self.n_integral = self.n_variables = len(scores)
        self._costs = [-scores]
        self._columns: list[NDArray] = []
        self._rows: list[NDArray] = []
        self._values: list[NDArray] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add_variable(self, score: float = 0.0) -> int:
        """RETURNS (int): The number of a variable between 0 and 1."""
        self._costs.append(np.array([-score]))
        self.n_variables += 1
        return self.n_variables - 1

    def add_row(self, columns: Sequence[int], values: Union[float, Sequence[float]], low: float, high: float) -> None:
        """A condition: low <= values · variables <= high."""
        self._columns.append(np.asarray(columns, dtype=np.int64))
        self._rows.append(np.full(len(columns), len(self._low)))
        self._values.append(np.broadcast_to(np.asarray(values, dtype=float), len(columns)))
        self._low.append(low)
        self._high.append(high)

    def conserve(self, into: Sequence[int], out_of: Sequence[int]) -> None:
        """What flows into a place flows out of it."""
        self.add_row([*into, *out_of], [1.0] * len(into) + [-1.0] * len(out_of), 0.0, 0.0)

    def add_automaton(self, automaton: Automaton, events: NDArray[np.int32], at: list, *, rests: bool = False) -> None:
        """A unit of flow through the automaton, one step per token, of the kind that the labelling takes there.

        events (int32[N]): What each of the first variables means to automata.
        at (list): For each token the variables one of which is taken there.
        rests (bool): Or none of them: then the automaton stays where it is.
        """
        # Events that the automaton does not tell apart are one kind.
        _, kinds = np.unique(np.concatenate([automaton.next, automaton.scores]), axis=1, return_inverse=True)
        kinds = kinds.reshape(-1)
        event_of_kind = np.zeros(kinds.max() + 1, dtype=np.int64)
        event_of_kind[kinds] = np.arange(len(kinds))
        arriving: dict[int, list[int]] = {0: []}  # variables that lead to each state; the start has none
        for t, of_token in enumerate(at):
            of_kind: dict[int, list[int]] = {int(kind): [] for kind in np.unique(kinds[events[of_token]])}
            following: dict[int, list[int]] = {}
            is_last = t == len(at) - 1
            for state, into in arriving.items():
                steps = []
                for kind, taken in of_kind.items():
                    event = event_of_kind[kind]
                    steps.append((int(automaton.next[state, event]), automaton.scores[state, event], taken))
                if rests and t > 0:
                    steps.append((state, 0.0, []))
                leaving = []
                for to, score, taken in steps:
                    if is_last and to >= 0:
                        score = score + automaton.last[to]
                    if to < 0 or score == -np.inf:
                        continue
                    variable = self.add_variable(score)
                    taken.append(variable)
                    leaving.append(variable)
                    following.setdefault(to, []).append(variable)
                if t == 0:
                    self.add_row(leaving, 1.0, 1.0, 1.0)
                else:
                    self.conserve(into, leaving)
            for kind, taken in of_kind.items():
                self.conserve(taken, of_token[kinds[events[of_token]] == kind])
            arriving = following

    def run(self, time_limit: float) -> tuple[Optional[NDArray[np.int64]], float, bool]:
        """RETURNS: Which of the first variables are 1, None if there is no solution; its score; and whether the solver
        finished."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import coo_array
        except ImportError as error:
            raise ValueError(Errors.CRF615.format(name="the rules of this document")) from error
        matrix = coo_array(
            (np.concatenate(self._values), (np.concatenate(self._rows), np.concatenate(self._columns))),
            shape=(len(self._low), self.n_variables),
        )
        integral = np.zeros(self.n_variables)
        integral[: self.n_integral] = 1
        found = milp(
            np.concatenate(self._costs),
            integrality=integral,
            bounds=Bounds(0.0, 1.0),
            constraints=LinearConstraint(matrix.tocsr(), self._low, self._high),
            options={"time_limit": time_limit},
        )
        in_time = found.status != 1
        if found.x is None:
            return None, -np.inf, in_time
        return np.flatnonzero(found.x[: self.n_integral] > 0.5), -float(found.fun), in_time


def _optimise(steps: _Trellis, tags, automata, texts, time_limit):
    """RETURNS: The tags or None, their score, and whether the solver finished."""
    n_steps, tokens = len(steps.t), int(steps.t.max()) + 1 if len(steps.t) else 0
    numbers = np.arange(n_steps)
    at = [numbers[steps.t == t] for t in range(tokens)]
    if not n_steps or any(len(of_token) == 0 for of_token in at):
        return None, -np.inf, True
    program = Program(steps.scores)
    program.add_row(at[0], 1.0, 1.0, 1.0)
    for t in range(tokens - 1):
        for tag in np.unique(np.concatenate([steps.after[at[t]], steps.before[at[t + 1]]])):
            program.conserve(at[t][steps.after[at[t]] == tag], at[t + 1][steps.before[at[t + 1]] == tag])
    events = tags.events[steps.before, steps.after]
    for automaton in automata:
        program.add_automaton(automaton, events, at)
    for occurrences in texts:
        _add_text(program, occurrences, tags, steps, at)
    taken, value, in_time = program.run(time_limit)
    if taken is None:
        return None, value, in_time
    return steps.after[taken[np.argsort(steps.t[taken])]].astype(np.int32), value, in_time


def _add_text(program: Program, occurrences, tags: SpanTags, steps: _Trellis, at) -> None:
    """One variable for each label that an occurrence may have; at most one of them is 1."""
    label_of = np.append(tags.label_of, -1)  # of the break
    goes_on = np.pad(tags.continues, (0, 1))
    continuing = goes_on[steps.before, steps.after]
    variable: dict[int, int] = {}
    for begin, end in occurrences:
        for label in np.unique(label_of[steps.after[at[begin]]]).tolist():
            if label < 0:
                continue
            inside = [at[begin][~continuing[at[begin]] & (label_of[steps.after[at[begin]]] == label)]]
            for t in range(begin + 1, end):
                inside.append(at[t][continuing[at[t]] & (label_of[steps.after[at[t]]] == label)])
            if end < len(at):
                inside.append(at[end][~continuing[at[end]] & (label_of[steps.before[at[end]]] == label)])
            if label not in variable:
                variable[label] = program.add_variable()
            # Only a span of exactly these tokens takes all of these steps.
            columns = np.concatenate([*inside, [variable[label]]])
            program.add_row(columns, [1.0] * (len(columns) - 1) + [-1.0], -np.inf, len(inside) - 1.0)
    if variable:
        program.add_row(list(variable.values()), 1.0, -np.inf, 1.0)
