"""Sums and maxima over sets of labels that are independent of each other: a text has each label or lacks it.

score(y) = sum_j labels[present or absent]_j
"""

from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from .. import arrays
from ..types import Floats, Ints, Path
from .structure import States, Structure, Work


class LabelSetScores(NamedTuple):
    """Potentials of B texts, each of which may have any of L labels."""

    labels: Floats  # [B, 2 L] scores of the L labels if they are present, then of the L labels if they are absent
    starts: Ints  # [B + 1]

    AXES = MappingProxyType({"labels": ("text", "state")})


class LabelSetWork(Work):
    """Checked scores, with a clamp: bool[B, 2 L]."""

    @property
    def clamped_labels(self) -> Floats:
        """Scores of present, then of absent labels, -inf where the clamp forbids them: float64[B, 2 L]."""
        return self.scores.labels if self.clamp is None else np.where(self.clamp, self.scores.labels, -np.inf)

    @property
    def sides(self) -> tuple[Floats, Floats]:
        """Scores of the labels if they are present, and if they are absent: float64[B, L] each, -inf where the clamp forbids."""
        present, absent = np.hsplit(self.clamped_labels, 2)
        return present, absent


class IndependentLabels(Structure):
    """Answers the questions of `Structure` for texts with any number of labels. Clamps are bool[B, 2 L], and paths int32[B,
    L]: 1 for labels that are present, -1 where a text has no labelling. Marginals are float64[B, 2 L]: the probability that
    each label is present, then the probability that it is absent.
    """

    answers = frozenset(["exact"])
    work = LabelSetWork

    def conform(self, scores: LabelSetScores) -> LabelSetScores:
        """Check `scores`, which must be finite. RAISES (ValueError): CRF010 for others."""
        conforming = arrays.conform(scores)
        # Scores of subclasses have further arrays
        if not all(np.isfinite(array).all() for array in arrays.named(conforming).values()):
            arrays.refuse(conforming)
        return conforming

    def expect(self, work: LabelSetWork, weights: Floats, out: LabelSetScores) -> Floats:
        """Log partitions of the texts of `work`; `out` receives weights[b] · P(label j is present or absent in text b)."""
        # Labels are independent, so the sum over all sets of labels is a product over labels:
        # log_z[b] = sum_j log(exp(present[b, j]) + exp(absent[b, j]))
        present, absent = work.sides
        label_log_z = np.logaddexp(present, absent)  # [B, L]
        log_z = label_log_z.sum(axis=1)
        is_possible = log_z > -np.inf
        factors = np.where(is_possible, weights, 0.0)[:, np.newaxis]
        finite_log_z = np.where(is_possible[:, np.newaxis], label_log_z, 0.0)  # -inf - -inf would be NaN
        # d log_z[b] / d present[b, j] = exp(present[b, j] - log(exp(present[b, j]) + exp(absent[b, j])))
        derivatives = []
        for side in (present, absent):
            log_probability = np.where(factors != 0.0, side - finite_log_z, -np.inf)
            derivatives.append(factors * np.exp(log_probability))
        out.labels[:] = np.hstack(derivatives)
        return log_z

    def best(self, work: LabelSetWork) -> Path:
        """The best set of labels of each text of `work`: label j where present[b, j] > absent[b, j]."""
        present, absent = work.sides
        best = np.maximum(present, absent).sum(axis=1)
        states = np.where((best > -np.inf)[:, np.newaxis], present > absent, -1)
        return Path(states.astype(np.int32), best)

    def add_path(self, work: LabelSetWork, states: States, weights: Floats, out: LabelSetScores) -> None:
        """Add `weights` (float64[B]) to the scores in `out` that the sets of labels `states` (int32[B, L]) of `work` use."""
        out.labels[:] += weights[:, np.newaxis] * np.hstack([states == 1, states == 0])
