"""Sums whose last bit does not depend on who adds what up first."""

from typing import NamedTuple

from ...types import Floats


class Terms(NamedTuple):
    """What a shard says of an objective, or several together."""

    value: float
    n_impossible: int
    gradient: Floats

    def plus(self, other: "Terms") -> "Terms":
        """In the memory of one of them."""
        gradient = self.gradient
        gradient += other.gradient
        return Terms(self.value + other.value, self.n_impossible + other.n_impossible, gradient)


Node = tuple[int, int]


class Tree:
    """A sum over n shards by a tree that depends on n alone: neighbours first, then neighbouring pairs, and so on. Floating-point
    numbers added up in this order are the same bit by bit, whichever shards are added up where, and when.

    Node (level, place) is the sum of the shards from ``place << level`` on, ``1 << level`` of them or as many as are left.
    """

    def __init__(self, n: int):
        self._n = n
        self.left: dict[Node, Terms] = {}  # sums that wait for their neighbours

    def add(self, node: Node, terms: Terms) -> None:
        level, place = node
        while (1 << level) < self._n:
            neighbour = (level, place ^ 1)
            if neighbour[1] << level < self._n:
                if neighbour not in self.left:
                    break
                terms = self.left.pop(neighbour).plus(terms)
            level, place = level + 1, place >> 1
        if not terms.gradient.flags.writeable:  # as workers give arrays, which lie in the memory that they came in
            terms = terms._replace(gradient=terms.gradient.copy())
        self.left[level, place] = terms

    @property
    def total(self) -> Terms:
        [total] = self.left.values()
        return total
