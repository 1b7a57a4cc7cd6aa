"""Rules as an integer linear program over the trellis of a document (Roth & Yih 2005), for the solver HiGHS.

A labelling is a unit of flow through the tags; each automaton is a second network in which a unit flows too, and the two
agree, token by token, on what happens. So the program grows with the sum of the automata's states, not with their product.

Only steps that can be part of a solution become variables: a step whose best labelling – without the rules – scores less than
one that is known to keep them is left out. That one is found by trying with few steps first.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..inference.state_graph import Joined
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
    if not len(trellis.t):
        return Solution(None, True)
    limit = trellis.best.max()
    # Automata that reward may lift a labelling above what its steps promise.
    margin = _FIRST_MARGIN if all(automaton.is_lazy for automaton in automata) else np.inf
    until = time.perf_counter() + time_limit
    while True:
        chosen = trellis.best >= limit - margin - _SLACK
        left = max(until - time.perf_counter(), 0.1 * time_limit)
        answer, value, in_time = _optimise(_Trellis(*(c[chosen] for c in trellis)), tags, automata, texts, left)
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


class _Rows:
    """Rows of a sparse matrix of linear conditions, collected one after the other."""

    def __init__(self) -> None:
        self.columns: list[NDArray] = []
        self.rows: list[NDArray] = []
        self.values: list[NDArray] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def add(self, columns: Sequence[int], values: Sequence[float], low: float, high: float) -> None:
        self.columns.append(np.asarray(columns, dtype=np.int64))
        self.rows.append(np.full(len(columns), len(self.low)))
        self.values.append(np.broadcast_to(np.asarray(values, dtype=float), len(columns)))
        self.low.append(low)
        self.high.append(high)


def _optimise(steps: _Trellis, tags, automata, texts, time_limit):
    """RETURNS: The tags or None, their score, and whether the solver finished."""
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import coo_array
    except ImportError as error:
        raise ValueError(Errors.CRF615.format(name="the rules of this document")) from error
    n_steps, tokens = len(steps.t), int(steps.t.max()) + 1 if len(steps.t) else 0
    numbers = np.arange(n_steps)
    at = [numbers[steps.t == t] for t in range(tokens)]
    if not n_steps or any(len(of_token) == 0 for of_token in at):
        return None, -np.inf, True
    rows, costs = _Rows(), [-steps.scores]
    n_variables = n_steps
    rows.add(at[0], 1.0, 1.0, 1.0)
    for t in range(tokens - 1):  # what flows into a tag flows out of it
        for tag in np.unique(np.concatenate([steps.after[at[t]], steps.before[at[t + 1]]])):
            into, out_of = at[t][steps.after[at[t]] == tag], at[t + 1][steps.before[at[t + 1]] == tag]
            rows.add([*into, *out_of], [1.0] * len(into) + [-1.0] * len(out_of), 0.0, 0.0)
    events = tags.events[steps.before, steps.after]
    for automaton in automata:
        n_variables = _add_automaton(rows, costs, n_variables, automaton, events, at)
    for occurrences in texts:
        n_variables = _add_text(rows, costs, n_variables, occurrences, tags, steps, at)
    matrix = coo_array(
        (np.concatenate(rows.values), (np.concatenate(rows.rows), np.concatenate(rows.columns))),
        shape=(len(rows.low), n_variables),
    )
    integral = np.zeros(n_variables)
    integral[:n_steps] = 1
    found = milp(
        np.concatenate(costs),
        integrality=integral,
        bounds=Bounds(0.0, 1.0),
        constraints=LinearConstraint(matrix.tocsr(), rows.low, rows.high),
        options={"time_limit": time_limit},
    )
    in_time = found.status != 1
    if found.x is None:
        return None, -np.inf, in_time
    [taken] = np.nonzero(found.x[:n_steps] > 0.5)
    taken = taken[np.argsort(steps.t[taken])]
    return steps.after[taken].astype(np.int32), -float(found.fun), in_time


def _add_automaton(rows: _Rows, costs: list, n_variables: int, automaton: Automaton, events, at) -> int:
    """A unit of flow through the automaton, one step per token, of the kind that the chain takes there."""
    # Events that the automaton does not tell apart are one kind.
    _, kinds = np.unique(np.concatenate([automaton.next, automaton.scores]), axis=1, return_inverse=True)
    kinds = kinds.reshape(-1)
    event_of_kind = np.zeros(kinds.max() + 1, dtype=np.int64)
    event_of_kind[kinds] = np.arange(len(kinds))
    arriving: dict[int, list[int]] = {0: []}  # variables that lead to each state; the start has none
    for t, of_token in enumerate(at):
        of_kind: dict[int, list[int]] = {int(kind): [] for kind in np.unique(kinds[events[of_token]])}
        following: dict[int, list[int]] = {}
        new_costs = []
        for state, into in arriving.items():
            leaving = []
            for kind, taken in of_kind.items():
                event = event_of_kind[kind]
                to, score = int(automaton.next[state, event]), automaton.scores[state, event]
                if t == len(at) - 1 and to >= 0:
                    score = score + automaton.last[to]
                if to < 0 or score == -np.inf:
                    continue
                taken.append(n_variables)
                leaving.append(n_variables)
                following.setdefault(to, []).append(n_variables)
                new_costs.append(-score)
                n_variables += 1
            if t == 0:
                rows.add(leaving, 1.0, 1.0, 1.0)
            else:
                rows.add([*into, *leaving], [1.0] * len(into) + [-1.0] * len(leaving), 0.0, 0.0)
        for kind, taken in of_kind.items():
            steps = of_token[kinds[events[of_token]] == kind]
            rows.add([*taken, *steps], [1.0] * len(taken) + [-1.0] * len(steps), 0.0, 0.0)
        costs.append(np.array(new_costs))
        arriving = following
    return n_variables


def _add_text(rows: _Rows, costs: list, n_variables: int, occurrences, tags: SpanTags, steps: _Trellis, at) -> int:
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
                variable[label] = n_variables
                n_variables += 1
                costs.append(np.zeros(1))
            # Only a span of exactly these tokens takes all of these steps.
            columns = np.concatenate([*inside, [variable[label]]])
            rows.add(columns, [1.0] * (len(columns) - 1) + [-1.0], -np.inf, len(inside) - 1.0)
    if variable:
        rows.add(list(variable.values()), 1.0, -np.inf, 1.0)
    return n_variables
