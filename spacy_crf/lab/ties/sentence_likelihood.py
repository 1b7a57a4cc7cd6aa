"""The log-likelihood of each sentence given the others: what trains ties without a sum over the graph of a Doc."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ...inference.structure import Structure
from ...losses.clamped import LogLikelihood
from ...types import Floats
from .blocks import tell_wide
from .elimination import Elimination
from .local_losses import Told
from .scores import TiedScores, are_inside, cut
from .structure import TiedChains

# Of sentences with ties inside them. Larger tables than those of 27 states and two open ties would take hundreds of times as long
# as a chain
SENTENCES = Elimination(max_table=20_000)


class SentenceLikelihood(LogLikelihood):
    """Negative log probability of each sentence given the annotation of the others (Besag 1975, with sentences as blocks). It is
    exact: what ties to other sentences say to a token is known, and a junction tree sums over sentences that have ties inside
    them. Where the annotation leaves a label open, ties say nothing to other sentences. Without ties it is `LogLikelihood`.

        - sum over sentences of log p(sentence | labels at the other ends of its ties)

    In sentences too wide for a junction tree, which is said once, each end of a tie is told the annotation of the other one.

    label_weights (Dict[str, float]), cost (Dict[str, Dict[str, float]]): See `ClampedLoss`; none by default.
    """

    def __call__(
        self, structure: Structure, scores: Any, clamp: Any, *, weights: Optional[Floats] = None
    ) -> tuple[Floats, Any, NDArray[np.bool_]]:
        if not isinstance(scores, TiedScores):
            return super().__call__(structure, scores, clamp, weights=weights)
        structure.prepare(scores)  # for its checks
        ties, inside = scores.ties, _summed_over(scores)
        told = Told.of(scores._replace(ties=ties.some(~inside)), clamp)
        if not inside.any():
            losses, d_chains, impossible = super().__call__(structure.chain, told.chains, clamp, weights=weights)
            return losses, told.derivative(d_chains), impossible
        joined = scores._replace(emissions=told.chains.emissions, ties=ties.some(inside))
        losses, d_joined, impossible = super().__call__(TiedChains(SENTENCES), joined, clamp, weights=weights)
        derivative = told.derivative(d_joined.chains)
        return losses, derivative._replace(tables=derivative.tables + d_joined.tables, ties=ties), impossible


def _summed_over(scores: TiedScores) -> NDArray[np.bool_]:
    """The ties inside sentences that are not too wide: bool[E]."""
    ties, starts = scores.ties, np.asarray(scores.starts)
    inside = are_inside(starts, ties.source, ties.target)
    if inside.any():
        halves = cut(scores._replace(ties=ties.some(inside)), None)
        fits = SENTENCES.sums_up(halves.tied, np.arange(len(halves.tied.firsts)))
        tell_wide(halves.tied.of_ties, fits, "SentenceLikelihood")
        wide = halves.tied_sequences[~fits]
        inside &= ~np.isin(np.searchsorted(starts, ties.source, side="right") - 1, wide)
    return inside
