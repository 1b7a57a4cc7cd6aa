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
    to the diagonal of the second derivatives of a log-likelihood (Sha & Pereira 2003, section 3.2).

    A score of a token or span is used with probability p: its variance is p - p². Of the uses of scores that all tokens share as
    large a share is uncertain as of the uses of states.
    """

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, *, weights: Optional[Floats] = None, **told: Any
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        log_z, uses = structure.expectations(scores, weights=weights)
        of_tokens = uses[0]
        certain = (np.minimum(of_tokens, 1.0) * of_tokens).sum() / max(of_tokens.sum(), TINY)
        for name, expected in named(uses).items():
            expected -= expected * (certain if is_shared(uses, name) else np.minimum(expected, 1.0))
        return log_z, uses, np.zeros(len(log_z), dtype=bool)
