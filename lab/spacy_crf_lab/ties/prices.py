"""The prices of a dual decomposition, by which chains and ties agree on labels, and the steps that change them: sweeps of
coordinate descent, steps against the subgradient, and alternating directions (AD3)."""

from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from spacy_crf.inference.structure import States
from spacy_crf.types import Floats

from ..kernels import tie_decomposition as kernels
from .scores import Problem, potentials

# gap, relative to the score, and gap up to which a labelling is proved
_CLOSED = 1e-9
_LEAST = 1e-6
_STALLED = 0.2  # share of the gap by which two sweeps have to lower the dual, or another method takes over
_DENSE = 5  # rows of all states are faster if more than one in so many steps is possible
_SHORTER = 0.7  # factor of the subgradient's steps after one that raised the dual
_RHO = 1.0  # first penalty of AD3
# the penalty changes by a factor if one residual is so many times the other
_UNEVEN = 10.0
_TURN = 2.0


class Found(NamedTuple):
    """The best labellings of the components of a problem after some iterations, and upper bounds of all scores."""

    states: States  # [T] the best labelling found
    scores: Floats  # [C] its scores, -inf where there is no labelling
    bounds: Floats  # [C] the least dual
    prices: Floats  # [2 E, L]
    parts: kernels.Parts


def is_open(found: Found) -> NDArray[np.bool_]:
    """The components whose labellings are not proved to be best: bool[C]."""
    return is_apart(found.scores, found.bounds)


def is_apart(scores: Floats, bounds: Floats) -> NDArray[np.bool_]:
    """Whether scores are below their upper bounds."""
    return scores + _LEAST + _CLOSED * np.where(scores > -np.inf, abs(scores), 0.0) < bounds


class PriceSearch:
    """The prices of a problem, and the labellings found."""

    def __init__(self, problem: Problem, prices: Optional[Floats]):
        n_ties = len(problem.kind)
        n_chains = len(problem.component)
        n_components = len(problem.firsts)
        self.problem = problem
        self.parts = _parts(problem)
        self._prices = np.zeros((2 * n_ties, problem.n_labels)) if prices is None else prices.copy()
        self._rows = np.empty(self.parts.own.shape)
        self._near = np.empty(self.parts.own.shape)
        self._far = np.empty(self.parts.own.shape)
        self._of_chains = np.zeros(n_chains)
        self._of_ties = np.zeros(n_ties)
        self._states = np.zeros(len(self._rows), dtype=np.int32)  # the latest labelling
        self._pairs = np.zeros(2 * n_ties, dtype=np.int64)
        self._changed = np.ones(n_chains, dtype=bool)
        # the latest duals
        self._direction = 1
        self._before = np.full((2, n_components), np.inf)
        self._active: Optional[kernels.Active] = None  # for AD3
        self._joined = np.zeros(n_components, dtype=bool)  # the components whose active sets have been set
        self._penalty = np.full(n_components, _RHO)
        self._length = np.ones(n_components)
        self.stalled = np.zeros(n_components, dtype=bool)
        kernels.prepare(self.parts, self._prices, self._rows, self._of_chains)
        self.open = problem.by_component(self._of_chains) > -np.inf
        bounds = np.where(self.open, np.inf, -np.inf)
        self.found = Found(self._states.copy(), np.full(n_components, -np.inf), bounds, self._prices, self.parts)

    def sweep(self) -> None:
        """Visit the chains of components that have not stalled, and change the direction."""
        some = self.open & ~self.stalled
        d = self._direction
        if not some.any():
            return
        asked = some[self.problem.component]
        scratch = self._prices, self._rows, self._near, self._far
        kernels.sweep(self.parts, d, asked, *scratch, self._of_chains, self._of_ties)
        kernels.decide(self.parts, d, asked, self._prices, self._far, self._near, self._states)
        dual, gap = self._note(some)
        # Coordinate descent can get stuck where the dual is not smooth
        self.stalled |= self.open & some & (self._before[0] - dual < _STALLED * gap)
        self._before = np.stack([self._before[1], np.where(some, dual, np.inf)])
        self._direction = -d

    def descend(self) -> None:
        """Step against the subgradient where sweeps have stalled. The length of a step is that of Polyak 1969, by the best score
        in place of the least dual, and shorter after each step that raised the dual."""
        some = self.open & self.stalled
        dual, gap = self._solve(some)
        self._length[dual > self._before[1] + _CLOSED * abs(dual)] *= _SHORTER
        self._before[1] = np.where(some, dual, self._before[1])
        labels = self.problem.label_of[self._states[self.parts.tokens]]
        apart = np.bincount(self.problem.of_ties, (labels != self._pairs).reshape(-1, 2).sum(axis=1), len(gap))
        # Polyak: gap / |subgradient|²
        lengths = np.where(self.open & some, self._length * gap / np.maximum(2.0 * apart, 1.0), 0.0)
        kernels.descend(
            self.parts,
            lengths[self.problem.component],
            self._prices,
            self._rows,
            self._states,
            self._pairs,
            self._changed,
        )

    def negotiate(self) -> None:
        """Take a step of AD3 where sweeps have stalled."""
        some = self.open & self.stalled
        if self._active is None or not (some <= self._joined).all():
            self._solve(some)
            self._join(some)
        rhos = np.where(some, self._penalty, 0.0)[self.problem.component]
        residuals = np.zeros((len(rhos), 2))
        scratch = self._prices, self._rows, self._far, self._near
        kernels.negotiate(self.parts, self._active, rhos, *scratch, self._changed, residuals)
        primal = self.problem.by_component(residuals[:, 0])
        dual = self.problem.by_component(residuals[:, 1])
        # Balance both residuals (Boyd et al. 2011, section 3.4.1)
        self._penalty[primal > _UNEVEN * dual] *= _TURN
        self._penalty[dual > _UNEVEN * primal] /= _TURN
        self._solve(some)

    def _join(self, some: NDArray[np.bool_]) -> None:
        """Begin AD3 with the latest labellings of some components."""
        parts = self.parts
        (n_tokens, n_chains) = (len(self._rows), len(self._of_chains))
        if self._active is None:
            n = kernels.VERTICES
            n_labels = self.problem.n_labels
            states = np.zeros((n, n_tokens), dtype=np.int32)
            pairs = np.zeros((n, len(parts.tokens)), dtype=np.int64)
            weights = np.eye(1, n).repeat(n_chains, axis=0), np.eye(1, n).repeat(len(parts.kind), axis=0)
            self._active = kernels.Active(states, pairs, *weights, np.zeros((n_tokens, n_labels)))
        new = some & ~self._joined
        tokens = new[self.problem.of_tokens]
        ends = new[self.problem.of_ties].repeat(2)
        self._active.states[:, tokens] = self._states[tokens]
        self._active.pairs[:, ends] = self._pairs[ends]
        consensus = self._active.consensus
        consensus[tokens] = self.problem.label_of[self._states[tokens], np.newaxis] == np.arange(consensus.shape[1])
        np.add.at(consensus, (parts.tokens[ends], self._pairs[ends]), 1.0)
        consensus[tokens] /= consensus[tokens].sum(axis=1, keepdims=True)
        self._joined |= some

    def _solve(self, some: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Solve the subproblems of some components, given the prices, see `_note`."""
        asked = some[self.problem.component]
        scratch = (self._prices, self._rows, self._near, self._states, self._pairs)
        kernels.solve(self.parts, asked, self._changed, *scratch, self._of_chains, self._of_ties)
        return self._note(some)

    def _note(self, some: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Note the labellings and duals of some components. RETURNS (float64[C], float64[C]): Duals, and the least gaps."""
        problem = self.problem
        found = self.found
        of_ties: Any = np.bincount(problem.of_ties, self._of_ties, minlength=len(some))
        dual = problem.by_component(self._of_chains) + of_ties
        score = problem.score(self._states[np.newaxis])[0]
        is_better = some & (score > found.scores)
        tokens = is_better[problem.of_tokens]
        found.states[tokens] = self._states[tokens]
        found.scores[is_better] = score[is_better]
        # Every dual is an upper bound: the least one counts
        found.bounds[some] = np.minimum(found.bounds, dual)[some]
        self.open &= is_open(found)
        gap = np.zeros(len(some))
        gap[self.open] = found.bounds[self.open] - found.scores[self.open]
        return dual, gap


def _parts(problem: Problem) -> kernels.Parts:
    """Split a problem into its subproblems."""
    _, forth, _, _, starts = potentials(problem.chains)
    back = np.ascontiguousarray(forth.swapaxes(1, 2))
    possible: Any = (forth > -np.inf).any(axis=0)
    bounds = np.zeros((2, len(possible) + 1), dtype=np.int64)
    others = np.zeros((2, 0), dtype=np.int64)
    scores = np.zeros((2, 0))
    if possible.sum() * _DENSE < possible.size:
        bounds[:, 1:] = np.cumsum([possible.sum(axis=0), possible.sum(axis=1)], axis=1)
        others = np.stack([np.nonzero(possible.T)[1], np.nonzero(possible)[1]])
        scores = np.stack([back[0][possible.T], forth[0][possible]]) if len(forth) == 1 else scores
    tokens = np.stack([problem.source, problem.target], axis=1).ravel()
    ends = np.argsort(tokens, kind="stable")
    return kernels.Parts(
        np.ascontiguousarray(problem.own),
        starts,
        kernels.Steps(forth, back, bounds, others, scores),
        np.searchsorted(tokens[ends], np.arange(len(problem.own) + 1)),
        ends,
        tokens,
        problem.kind,
        np.stack([problem.tables, problem.tables.swapaxes(1, 2)]),
        problem.label_of.astype(np.int64),
        np.zeros((len(tokens), problem.n_labels), dtype=bool),
    )
