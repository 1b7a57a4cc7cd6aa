"""Texts that have one label each: a chain of a single state, whose sums are those of a softmax."""

import numpy as np

from ..types import ChainScores, Floats
from .linear_chain import LinearChain
from .scaling import ChainWork
from .structure import Structure


class TextScores(ChainScores):
    """Potentials of B texts as those of chains: ``emissions[b]`` are the scores of the labels of text b, which is all of its
    chain; to them belongs ``first``, and ``transitions`` and ``last`` are not learned."""

    __slots__ = ()


class TextSoftmax(LinearChain):
    """Answers what a chain answers, without its passes: those of `scaling` give up where scores lie far apart, as they do of
    naive Bayes, and what follows then takes longer than all else."""

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
