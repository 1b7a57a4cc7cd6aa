"""Best labellings by linear programs over the local polytope (Wainwright & Jordan 2008, section 8), which HiGHS solves.

    max  sum_u sum_k score_u(k) m_u(k) + sum_uv sum_kl table(k, l) m_uv(k, l)
    sum_k m_u(k) = 1    sum_l m_uv(k, l) = m_u(k)    sum_k m_uv(k, l) = m_v(l)    all >= 0

Rewards for equal labels need K variables for a tie or a group c instead of K*K (Koller & Friedman 2009, section 13.5):

    max  ... + sum_c sum_k reward_c(k) m_c(k)    0 <= m_c(k) <= m_u(k) for each member u of c

Where chains have transitions, k is a tag. A group then has a variable for each label l, whose tags may differ by member:

    max  ... + sum_c sum_l reward_c(l) m_c(l)    0 <= m_c(l) <= sum_(k of l) m_u(k) for each member u of c

The value is an upper bound of all scores. Where all m_u(k) are 0 or 1, as always on trees and with two labels that attract each
other, they are the best labelling. Elsewhere they are rounded.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spacy_crf import checks
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import States
from spacy_crf.optimizers.objective import setting
from spacy_crf.types import Floats

from ..errors import Errors
from ..kernels.max_flow import Agreeing
from .best_labelling import BestLabelling, LabelScores
from .blocks import best_improved
from .scores import Problem

_SEEDS = 20  # of the random rounding, of which the best result counts
_MOST = 3_000_000  # variables: more would take hours
_WHOLE = 1e-6  # by which a variable may miss 0 and 1


@dataclass(eq=False)
class LinearProgram(BestLabelling):
    """Best labellings by linear programs: exact where the solution is whole, else rounded, with the gap to the upper bound. Needs
    scipy, and time for large graphs: it suits associative ties, or few tags.

    rounding (str): "kleinberg_tardos" for the best of 20 random roundings (Kleinberg & Tardos 2002): in expectation, costs at
        most double where ties cost the same for all pairs of different labels; "largest" for the label with the largest value.
    integer (bool): Whether to search whole solutions, which are the best labellings. This may take very long.
    """

    rounding: str = setting("kleinberg_tardos", checks.one_of, allowed=("kleinberg_tardos", "largest"))
    integer: bool = setting(False, checks.flag)

    takes_groups = True
    advice = " integer = true finds the best ones."

    def __post_init__(self) -> None:
        super().__post_init__()
        _scipy()

    def best(self, problem: Problem) -> States:
        """The rounded solutions of components (int32[1, T]), improved sequence by sequence."""
        apart = LinearChain().viterbi(problem.chains).states
        rounded = apart.copy()
        bounds = np.full(len(problem.firsts), -np.inf)
        lost = problem.lost(apart)
        for c, (part, tokens) in enumerate(problem.parts()):
            # A component without a labelling has no feasible solution
            if not lost[c]:
                rounded[tokens], bounds[c] = self.solve(part)
        found = best_improved(problem, np.stack([apart, rounded]))
        scores = np.where(lost, -np.inf, problem.score(np.where(found < 0, 0, found)[np.newaxis])[0])
        self.count(scores, bounds)
        return found[np.newaxis]

    def solve(self, part: Problem) -> tuple[States, float]:
        """Solve a component that has a labelling. RETURNS (int32[T], float): A labelling, and the upper bound of all scores."""
        scores = LabelScores.of(part)
        shares, bound = _solve(scores.graph, scores.label_of, self.integer)
        # A whole solution is the best labelling itself
        if self.rounding == "largest" or (abs(shares - shares.round()) < _WHOLE).all():
            return scores.states(shares.argmax(axis=1)), bound
        labellings = np.stack([scores.states(_round(shares, np.random.default_rng(n))) for n in range(_SEEDS)])
        return labellings[part.score(labellings)[:, 0].argmax()], bound


class _Rows(NamedTuple):
    """Constraints: sums of variables, a row for each."""

    row: NDArray[np.int64]  # [N] of each entry
    column: NDArray[np.int64]  # [N] variable
    value: Floats  # [N]

    def matrix(self, n_columns: int) -> Any:
        sparse, _ = _scipy()
        n_rows = int(self.row.max(initial=-1)) + 1
        return sparse.csr_array((self.value, (self.row, self.column)), shape=(n_rows, n_columns))


class _Agreed(NamedTuple):
    """Ties or groups with a reward for each of L labels that all of their members have."""

    members: NDArray[np.int64]  # [M] tokens
    of_member: NDArray[np.int64]  # [M] the group of each
    rewards: Floats  # [G, L]
    label_of: NDArray[np.int64]  # [K] of each tag

    def rows(self, first_row: int, first_column: int) -> _Rows:
        """m_c(l) - sum_(k of l) m_u(k) <= 0, for variables of groups from a column on."""
        n_labels = self.rewards.shape[1]
        n_tags = len(self.label_of)
        begin = first_row + n_labels * np.arange(len(self.members))[:, np.newaxis]  # [M, 1] rows of a member
        of_groups = first_column + n_labels * self.of_member[:, np.newaxis] + np.arange(n_labels)  # [M, L]
        of_tags = n_tags * self.members[:, np.newaxis] + np.arange(n_tags)  # [M, K]
        row = np.append(begin + np.arange(n_labels), begin + self.label_of)
        return _Rows(row, np.append(of_groups, of_tags), np.repeat([1.0, -1.0], [of_groups.size, of_tags.size]))


def _solve(graph: Agreeing, label_of: NDArray[np.int64], integer: bool) -> tuple[Floats, float]:
    """The shares of tags at tokens (float64[V, K]), and the value of the program. label_of (int64[K]): The label of each tag."""
    _, optimize = _scipy()
    n_tokens, n_labels = graph.own.shape
    tables = graph.tables
    n_own = n_tokens * n_labels
    equal = np.eye(n_labels, dtype=bool)
    # Tables that only reward equal labels need K variables in place of K²
    compact = (tables[:, ~equal] == 0.0).all(axis=1) & (tables[:, equal] >= 0.0).all(axis=1)
    is_compact = compact[graph.kind] if len(graph.kind) else np.zeros(0, dtype=bool)
    # Ties of two as groups of equal tags, and groups of equal labels
    ends = np.stack([graph.source[is_compact], graph.target[is_compact]], axis=1)
    of_ends = np.repeat(np.arange(len(ends)), 2)
    of_ties = tables[graph.kind[is_compact]].diagonal(axis1=1, axis2=2)
    ties = _Agreed(ends.ravel(), of_ends, of_ties, np.arange(n_labels))
    _, first_tag, label = np.unique(label_of, return_index=True, return_inverse=True)
    of_members = np.repeat(np.arange(len(graph.rewards)), np.diff(graph.group_starts))
    groups = _Agreed(graph.members, of_members, graph.rewards[:, first_tag], label)
    n_groups = ties.rewards.size + groups.rewards.size
    of_tie = ties.rows(0, n_own)
    of_group = groups.rows(len(ties.members) * n_labels, n_own + ties.rewards.size)
    at_most = _Rows(
        row=np.concatenate([of_tie.row, of_group.row]),
        column=np.concatenate([of_tie.column, of_group.column]),
        value=np.concatenate([of_tie.value, of_group.value]),
    )
    # The others: sum_l m_uv(k, l) - m_u(k) = 0 and sum_k m_uv(k, l) - m_v(l) = 0, behind sum_k m_u(k) = 1
    full = np.flatnonzero(~is_compact)
    pairs = n_own + n_groups + np.arange(len(full) * n_labels**2).reshape(-1, n_labels, n_labels)
    begin = n_tokens + 2 * n_labels * np.arange(len(full))[:, np.newaxis] + np.arange(n_labels)  # [E', K] rows of m_u
    row = [np.repeat(np.arange(n_tokens), n_labels), np.repeat(begin, n_labels)]
    row += [
        np.repeat((begin + n_labels)[:, np.newaxis], n_labels, axis=1).ravel(),
        begin.ravel(),
        begin.ravel() + n_labels,
    ]
    of_ends = (end[full, np.newaxis] * n_labels + np.arange(n_labels) for end in (graph.source, graph.target))
    column = [np.arange(n_own), pairs.ravel(), pairs.ravel(), *(places.ravel() for places in of_ends)]
    signs = np.repeat([1.0, -1.0], [n_own + 2 * pairs.size, 2 * begin.size])
    equals = _Rows(np.concatenate(row), np.concatenate(column), signs)
    scores = np.concatenate(
        [graph.own.ravel(), ties.rewards.ravel(), groups.rewards.ravel(), tables[graph.kind[full]].ravel()]
    )
    possible = scores > -np.inf
    n = len(scores)
    if n > _MOST:
        raise ValueError(Errors.CRF356.format(n=n, message=f"more than {_MOST}"))
    # milp minimizes; variables that the scores forbid are bounded by 0
    right = np.append(np.ones(n_tokens), np.zeros(begin.size * 2))
    found = optimize.milp(
        -np.where(possible, scores, 0.0),
        integrality=np.arange(n) < (n_own if integer else 0),
        bounds=optimize.Bounds(0.0, possible.astype(np.float64)),
        constraints=[
            optimize.LinearConstraint(equals.matrix(n), right, right),
            *([optimize.LinearConstraint(at_most.matrix(n), -np.inf, 0.0)] if len(at_most.row) else []),
        ],
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:  # HiGHS has had trouble with the numbers
        raise ValueError(Errors.CRF356.format(n=n, message=found.message))
    bound = found.fun if found.mip_dual_bound is None else found.mip_dual_bound
    return found.x[:n_own].reshape(graph.own.shape), -float(bound)


def _round(shares: Floats, random: np.random.Generator) -> NDArray[np.int64]:
    """Labels by their shares: draw a label and a threshold; tokens still without a label take it if their share reaches that."""
    labels = np.full(len(shares), -1)
    while (labels < 0).any():
        label = int(random.integers(shares.shape[1]))
        # In (0, 1], so that a share of 0 never reaches it
        threshold = 1.0 - random.random()
        labels[(labels < 0) & (shares[:, label] >= threshold)] = label
    return labels


def _scipy() -> tuple[Any, Any]:
    """scipy's sparse arrays and optimizers. RAISES (ImportError): CRF355 without scipy."""
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise ImportError(Errors.CRF355) from error
    return sparse, optimize
