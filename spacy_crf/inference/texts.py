"""Texts with one label each: a chain of a single state, whose marginals are a softmax."""

import numpy as np

from ..types import ChainScores, Floats
from .linear_chain import LinearChain
from .scaling import ChainWork
from .structure import Structure


class TextScores(ChainScores):
    """Potentials of B texts as chains. ``emissions[b]`` are the label scores of text b, the only token of its chain. ``first`` is
    the bias of each label; ``transitions`` and ``last`` are not learned.
    """

    __slots__ = ()


class TextSoftmax(LinearChain):
    """Answers the questions of a chain without its passes. The passes of `scaling` refuse scores that lie far apart, as those of
    naive Bayes do, and log space takes longer than all other work.
    """

    def forward(self, work: ChainWork) -> tuple[Floats, Floats]:
        rows = work.emissions + (work.scores.first + work.scores.last)
        largest = rows.max(axis=1, initial=-np.inf)
        shares = np.exp(rows - np.where(largest > -np.inf, largest, 0.0)[:, np.newaxis])
        total = shares.sum(axis=1)
        shares /= np.where(total > 0.0, total, 1.0)[:, np.newaxis]
        with np.errstate(divide="ignore"):
            return largest + np.log(total), shares

    def backward(self, work: ChainWork, kept: Floats, weights: Floats, out: ChainScores) -> None:
        np.multiply(kept, weights[:, np.newaxis], out=out.emissions)
        out.first[:] = out.last[:] = out.emissions.sum(axis=0)

    expect = Structure.expect  # by these two
