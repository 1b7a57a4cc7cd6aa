"""Texts that have one label each: a chain of a single state."""

from ..types import ChainScores


class TextScores(ChainScores):
    """Potentials of B texts as those of chains: ``emissions[b]`` are the scores of the labels of text b, which is all of its
    chain; to them belongs ``first``, and ``transitions`` and ``last`` are not learned."""

    __slots__ = ()
