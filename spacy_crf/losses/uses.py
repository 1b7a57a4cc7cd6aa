"""How much the uses of scores vary, in the form of a loss: optimizers ask a corpus for it by `CorpusObjective.ask`."""

from typing import Any, Optional

import numpy as np

from ..arrays import Scores, is_shared, named
from ..inference.structure import Structure
from ..types import Bools, Floats
from .clamped import LabelledLoss

TINY = float(np.finfo(np.float64).tiny)


class Variances(LabelledLoss):
    """Log partition; in place of its derivative how much the number of uses of each score varies. The sums by weights are close
    to the diagonal of the second derivatives of a log-likelihood (Sha & Pereira 2003, section 3.2)."""

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, *, weights: Optional[Floats] = None, **told: Any
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        log_z, varied = variances(structure, scores, None, weights)
        return log_z, varied, np.zeros(len(log_z), dtype=bool)


def variances(
    structure: Structure[Scores], scores: Scores, clamp: Any, weights: Optional[Floats]
) -> tuple[Floats, Scores]:
    """Log partitions, and how much the number of uses of each score varies, times the factor of its sequence.

    A score of a token or span is used with probability p: its variance is p - p². Of the uses of scores that all tokens share as
    large a share is uncertain as of the uses of states.

    weights (float64[B]): Factors of the sequences, or None.
    """
    work = structure.prepare(scores)
    log_z, uses = structure.expectations(work, clamp=clamp)
    weighted = uses if weights is None else structure.expectations(work, clamp=clamp, weights=weights)[1]
    of_tokens = weighted[0]
    certain = (np.minimum(uses[0], 1.0) * of_tokens).sum() / max(of_tokens.sum(), TINY)
    varied = {}
    for name, expected in named(weighted).items():
        share = certain if is_shared(uses, name) else np.minimum(getattr(uses, name), 1.0)
        varied[name] = expected * (1.0 - share)
    return log_z, weighted._replace(**varied)
