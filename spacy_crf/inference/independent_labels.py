"""Sums and maxima over sets of labels that are independent of each other: a text has each label or lacks it.

score(y) = sum_j labels[present or absent]_j
"""

from types import MappingProxyType
from typing import Any, NamedTuple, Optional

import numpy as np

from .. import arrays
from ..types import Bools, Floats, Ints, Path
from .structure import Structure


class LabelSetScores(NamedTuple):
    """Potentials of B texts with any of L labels."""

    labels: Floats  # [B, 2 L] of present labels, then of absent ones
    starts: Ints  # [B + 1]

    AXES = MappingProxyType({"labels": ("text", "state")})


class LabelSetWork(NamedTuple):
    """Checked scores, with a clamp."""

    scores: Any
    clamp: Optional[Bools]  # bool[B, 2 L]

    @property
    def n_sequences(self) -> int:
        return len(self.scores.labels)

    @property
    def own(self) -> Floats:
        """Scores of present and absent labels, -inf where the clamp forbids: float64[B, 2 L]."""
        return self.scores.labels if self.clamp is None else np.where(self.clamp, self.scores.labels, -np.inf)

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """Scores of present labels and of absent ones: float64[B, L] each."""
        present, absent = np.hsplit(self.own, 2)
        return present, absent

    def check_weights(self, weights: Optional[Floats]) -> Floats:
        """Weights of the texts: float64[B], 1 by default."""
        return np.ones(self.n_sequences) if weights is None else np.asarray(weights, dtype=np.float64)


class IndependentLabels(Structure[Any]):
    """Implements the methods of `Structure` for texts with any number of labels. Clamps are bool[B, 2 L], and paths int32[B, L]:
    1 for labels that are present, -1 without any labelling. Marginals have the probabilities of present labels, then those of
    absent ones.
    """

    answers = frozenset()

    def prepare(self, scores: Any, clamp: Optional[Bools] = None, *, annotated: Any = None) -> Any:
        if isinstance(scores, LabelSetWork):
            return scores if clamp is None else scores._replace(clamp=clamp)
        checked = {name: arrays.contiguous(array, np.float64) for name, array in arrays.named(scores).items()}
        scores = scores._replace(**checked)
        if not all(np.isfinite(array).all() for array in checked.values()):
            arrays.refuse(scores)
        if clamp is not None:
            arrays.check_shape("clamp", clamp, scores.labels.shape, "two bools per text and label: present, absent")
        return LabelSetWork(scores, clamp)

    def log_partition(self, scores: Any, *, clamp: Optional[Bools] = None) -> Floats:
        return self.expectations(scores, clamp=clamp)[0]

    def expectations(
        self, scores: Any, *, clamp: Optional[Bools] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Any]:
        # log_z[b] = sum_j log(exp(present[b, j]) + exp(absent[b, j]))
        work = self.prepare(scores, clamp)
        present, absent = work.sides
        of_labels = np.logaddexp(present, absent)
        log_z = of_labels.sum(axis=1)
        possible = log_z > -np.inf
        factors = np.where(possible, work.check_weights(weights), 0.0)[:, np.newaxis]
        reached = np.where(possible[:, np.newaxis], of_labels, 0.0)
        shares = [factors * np.exp(np.where(factors != 0.0, side - reached, -np.inf)) for side in (present, absent)]
        return log_z, work.scores._replace(labels=np.hstack(shares))

    def viterbi(self, scores: Any, *, clamp: Optional[Bools] = None) -> Path:
        """The best set of labels of each text; of equals, a label is absent."""
        present, absent = self.prepare(scores, clamp).sides
        best = np.maximum(present, absent).sum(axis=1)
        states = np.where((best > -np.inf)[:, np.newaxis], present > absent, -1)
        return Path(states.astype(np.int32), best)

    def viterbi_counts(
        self, scores: Any, *, clamp: Optional[Bools] = None, weights: Optional[Floats] = None
    ) -> tuple[Floats, Any]:
        work = self.prepare(scores, clamp)
        states, best = self.viterbi(work)
        uses = work.check_weights(weights)[:, np.newaxis] * np.hstack([states == 1, states == 0])
        return best, work.scores._replace(labels=uses)
