"""The log-likelihood of each sentence given the others: what trains ties without a sum over a graph."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..inference.structure import Structure
from ..inference.ties import TiedScores
from ..types import Floats
from .clamped import LogLikelihood
from .tied import Told


class SentenceLikelihood(LogLikelihood):
    """Negative log probability of each sentence given the annotation of the others (Besag 1975, with sentences as blocks): exact,
    and as fast as a chain, for what the ties of a token say to it is known. Where the annotation leaves a label open, they say
    nothing. Without ties it is `LogLikelihood`.

        - sum over sentences of log p(sentence | labels at the other ends of its ties)

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; none by default.
    """

    def __call__(
        self, structure: Structure, scores: Any, clamp: Any, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Any, NDArray[np.bool_]]:
        if not isinstance(scores, TiedScores):
            return super().__call__(structure, scores, clamp, weights=weights)
        structure.prepare(scores)  # for its checks
        told = Told.of(scores, clamp)
        losses, d_chains, impossible = super().__call__(structure.chain, told.chains, clamp, weights=weights)
        return losses, told.derivative(d_chains), impossible
