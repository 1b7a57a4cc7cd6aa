"""The log-likelihood of each sentence given the others: what trains ties without a sum over a graph."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from .. import arrays
from ..inference.structure import Structure
from ..inference.ties import TiedScores
from ..types import Floats
from .clamped import LogLikelihood


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
        ties, label_of, chains = scores.ties, np.asarray(scores.label_of), scores.chains
        gold = _labels(clamp, label_of, scores.tables.shape[1])
        tables = ties.sums(scores.tables)
        emissions = np.array(chains.emissions, dtype=np.float64)
        told = [np.flatnonzero(gold[end] >= 0) for end in (ties.target, ties.source)]
        ends = [(some, (ties.source, ties.target)[side][some]) for side, some in enumerate(told)]
        others = [gold[ties.target[told[0]]], gold[ties.source[told[1]]]]
        np.add.at(emissions, ends[0][1], tables[ties.kind[told[0]], :, others[0]][:, label_of])
        np.add.at(emissions, ends[1][1], tables[ties.kind[told[1]], others[1]][:, label_of])
        given = chains._replace(emissions=emissions)
        losses, d_chains, impossible = super().__call__(structure.chain, given, clamp, weights=weights)
        by_label = d_chains.emissions @ (label_of[:, np.newaxis] == np.arange(scores.tables.shape[1]))
        d_kinds = np.zeros(tables.shape)
        np.add.at(d_kinds.swapaxes(1, 2), (ties.kind[told[0]], others[0]), by_label[ends[0][1]])
        np.add.at(d_kinds, (ties.kind[told[1]], others[1]), by_label[ends[1][1]])
        d_scores = scores._replace(**arrays.named(d_chains), tables=np.zeros(np.shape(scores.tables)))
        ties.by_feature(d_kinds, d_scores.tables)
        return losses, d_scores, impossible


def _labels(clamp: NDArray[np.bool_], label_of: NDArray[np.int64], n_labels: int) -> NDArray[np.int64]:
    """The label that the annotation leaves to each token, -1 where there are several or none: int64[T]."""
    allowed = clamp @ (label_of[:, np.newaxis] == np.arange(n_labels))
    return np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
