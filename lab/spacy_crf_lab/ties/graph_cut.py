"""Best labellings by minimal cuts (Boykov, Veksler & Zabih 2001; Kolmogorov & Zabih 2004), where labels attract each other.

A cut gives each token one of two labels. With two labels in all, one cut finds the best labelling. With more, a cut finds the
best expansion of one label: which tokens take it, while the others keep theirs. Labels are expanded in turn until none finds a
better labelling. Costs that a cut can stand for are submodular: for any labels i and j of two tied tokens and any label a

    score(i, j) + score(a, a) >= score(i, a) + score(a, j)

which rewards for equal labels fulfil. A labelling that no expansion improves is then at least as good as one that gives up half
of the rewards of the best labelling.
"""

from dataclasses import dataclass
from typing import Optional

import numpy as np

from spacy_crf import checks
from spacy_crf.inference.structure import States
from spacy_crf.optimizers.objective import setting
from spacy_crf.schemes import TransitionMask

from ..errors import Errors
from ..kernels import max_flow as kernels
from .best_labelling import BestLabelling, LabelScores
from .scores import Problem

_ROUNDING = 1e-9  # by which a sum of scores may miss the condition


@dataclass(eq=False)
class GraphCut(BestLabelling):
    """Best labellings by graph cuts: exact with two labels, by expansions of one label after the other with more. Neighbouring
    and tied tokens have to attract equal labels, as with `associative = true` and `chain = false`.

    rounds (int): Number of rounds of expansions at most, if there are more than two labels.
    """

    rounds: int = setting(50, checks.count)

    takes_groups = True
    remedy = "More rounds help."  # pyright: ignore[reportAssignmentType]

    def check_labels(self, name: str, allowed: TransitionMask) -> None:
        """RAISES (ValueError): CRF354 if tags exclude each other as neighbours."""
        n = int((~np.asarray(allowed.transitions)).sum())
        if n:
            raise ValueError(Errors.CRF354.format(name=name, n=n, inference=self.name))

    def best(self, problem: Problem) -> States:
        """Find a labelling that no expansion improves. RAISES (ValueError): CRF350 for scores that a cut can't stand for."""
        scores = LabelScores.of(problem)
        graph = scores.graph
        n_labels = scores.graph.own.shape[1]
        self._check(scores)
        # With two labels an expansion of one label reaches every labelling
        exact = n_labels == 2
        component = problem.of_tokens
        if exact:
            labels = np.where(graph.own[:, 0] > -np.inf, 0, 1)[np.newaxis]
        else:
            labels = kernels.begin(graph, component, len(problem.firsts))
            labels = labels if (labels[0] != labels[1]).any() else labels[:1]
        moving: set[int] = set()
        for of_start in labels:
            if not kernels.expand(graph, of_start, self.rounds, exact)[1]:
                further = of_start.copy()
                kernels.expand(graph, further, 1, False)
                moving.update(component[further != of_start].tolist())
        self.n_asked += len(problem.firsts)
        self.n_unconverged += len(moving)
        states = np.stack([scores.states(of_start) for of_start in labels])
        lost = graph.own.max(axis=1, initial=-np.inf) == -np.inf
        best = problem.score(states).argmax(axis=0)[component]
        found = np.where(lost, -1, states[best, np.arange(len(component))]).astype(np.int32)
        return np.where(problem.lost(found)[component], -1, found)[np.newaxis]

    def _check(self, scores: LabelScores) -> None:
        tables = scores.graph.tables
        equal = np.eye(tables.shape[1], dtype=bool)
        for kind in np.flatnonzero((tables[:, ~equal] != 0.0).any(axis=1) | (tables[:, equal] < 0.0).any(axis=1)):
            found = _against(tables[kind])
            [uses] = np.nonzero(scores.graph.kind == kind)
            if found is not None and len(uses):
                what = "ties" if uses[0] < scores.n_ties else "neighbouring tags"
                raise ValueError(Errors.CRF350.format(what=what, **found))


def _against(table: np.ndarray) -> Optional[dict[str, float]]:
    """Labels whose scores (of float64[K, K]) a cut can't stand for; None if there are none."""
    tolerance = _ROUNDING * (1.0 + abs(table).max())
    for a in range(len(table)):
        with np.errstate(invalid="ignore"):
            # score(i, a) + score(a, j)
            apart = table[:, a, np.newaxis] + table[a]
            together = table + table[a, a]
            wrong = ~(together >= apart - tolerance)
        if wrong.any():
            i, j = np.argwhere(wrong)[0].tolist()
            return {"a": a, "i": i, "j": j, "together": float(together[i, j]), "apart": float(apart[i, j])}
    return None
