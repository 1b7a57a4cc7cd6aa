"""Scores of chains of higher order: the n-grams of tags that have a weight, and their keys."""

from types import MappingProxyType
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ...types import ChainScores, Floats
from ..kernels import higher_order as kernels

MOST = 3  # the highest order


class Orders(NamedTuple):
    """Which n-grams have a weight, and how far lattices are pruned. (Constant: no derivative is taken.)

    The key of an n-gram is a number to the base ``size + 1``: first the digit 1, then its tags. ``size`` as a tag stands for the
    start of a sequence.
    """

    order: int
    keys: NDArray[np.int64]  # [G] sorted
    size: int  # tags
    keep: Optional[float] = None  # nodes that a token keeps after each level, on average; None for all
    thresholds: Optional[Floats] = (
        None  # [order] how probable what stays is at least; None: as `keep` says, at each asking
    )
    digit_of: Optional[NDArray[np.int64]] = None  # [S] of states, None where these are the tags
    slots: Optional[NDArray[np.int32]] = None  # of the keys, see `indexed`
    measured: Optional[Floats] = (
        None  # [order] of derivatives: how probable what stayed in training was at least, or NaN
    )

    @property
    def levels(self) -> int:
        """The highest order of an n-gram with a weight."""
        return max(1, self.order)

    def digits(self, n_states: int) -> NDArray[np.int64]:
        """Digit of each state in keys: int64[S]. States without a tag have the digit for the outside of a sequence."""
        digits = np.arange(n_states, dtype=np.int64) if self.digit_of is None else self.digit_of
        return np.append(digits, np.full(n_states - len(digits), self.size))


def indexed(orders: Orders) -> Orders:
    """The orders with a hash table of the keys.

    RETURNS (Orders)
    """
    if not orders.keys.flags.writeable:  # as loaded, for which all kernels would be compiled once more
        orders = orders._replace(keys=orders.keys.copy())
    slots = np.full(1 << max(4, (2 * len(orders.keys)).bit_length()), -1, dtype=np.int32)
    kernels.index_keys(orders.keys, slots)
    return orders._replace(slots=slots)


def key_of(tags: tuple[int, ...], size: int) -> int:
    """Key of an n-gram.

    tags (tuple[int, ...]): Its tags; the first may be ``size``, the start of a sequence.
    size (int): Number of tags.
    RETURNS (int)
    """
    key = 1
    for tag in tags:
        key = key * (size + 1) + tag
    return key


def tags_of_keys(keys: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Tags of n-grams by their keys.

    keys (int64[G]), size (int): Number of tags.
    RETURNS (int64[G, MOST + 1]): Padded in front with -1.
    """
    left, tags = keys.copy(), np.full((len(keys), MOST + 1), -1, dtype=np.int64)
    for place in range(MOST, -1, -1):
        has_more = left > 1
        tags[has_more, place] = left[has_more] % (size + 1)
        left[has_more] //= size + 1
    return tags


class HigherOrderScores(NamedTuple):
    """Potentials of a batch of chains: the scores of `ChainScores`, and scores of n-grams of three tags and more."""

    emissions: Floats  # [T, S]
    transitions: Floats  # [S, S] or [T, S, S]
    first: Floats  # [S]
    last: Floats  # [S]
    grams: Floats  # [G]
    orders: Orders
    starts: Optional[NDArray[np.int64]] = None  # [B + 1], None for a single sequence

    AXES = MappingProxyType({**ChainScores.AXES, "grams": ("gram",)})
