"""Weights with the names of what they weigh, which explanations show."""

import re
from collections.abc import Callable
from typing import NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray

from ..features.feature_index import FeatureIndex, HashedIndex, VectorIndex

_OFFSET = re.compile(r"\[(-?\d+)\]")


class Feature(NamedTuple):
    name: str
    template: str
    offset: Optional[int]

    @classmethod
    def of(cls, index: Union[FeatureIndex, HashedIndex, VectorIndex], row: int) -> "Feature":
        """The feature in a row of an index of any kind."""
        names, of_rows = templates_of(index, np.array([row]))
        template = names[int(of_rows[0])]
        return cls(index.name(row), template, offset_of(template))

    @classmethod
    def shared(cls, parameter: str, row: int = 0) -> "Feature":
        """Name of a parameter that all tokens share: "transition", "first", "last", or "length=N" for its row N - 1."""
        name = f"length={row + 1}" if parameter == "lengths" else parameter.removesuffix("s")
        return cls(name, parameter, None)


def templates_of(
    index: Union[FeatureIndex, HashedIndex, VectorIndex], rows: NDArray[np.integer]
) -> tuple[list[str], NDArray[np.integer]]:
    """The templates of the features of an index.

    index (FeatureIndex, HashedIndex or VectorIndex): An index of any kind.
    rows (int[N]): Rows of the index.
    RETURNS (list[str], int64[N]): Names of templates, and the number of the template of each row.
    """
    if isinstance(index, FeatureIndex):
        return index.feature_names.templates, index.feature_names.template_of[rows].astype(np.int64)
    if isinstance(index, VectorIndex):
        return [f"vector[{offset}]" for offset in index.offsets], rows // index.width
    return ["hashed rows"], np.zeros(len(rows), dtype=np.int64)


def offset_of(template: str) -> Optional[int]:
    """The offset of a template if all of its parts read the same offset, else None."""
    offsets = set(_OFFSET.findall(template))
    return int(offsets.pop()) if len(offsets) == 1 else None


class Block(NamedTuple):
    """The weights of one table, or of a parameter that all tokens share."""

    name: str
    weights: NDArray[np.float32]  # [W]
    states: tuple[NDArray[np.int64], ...]  # one or two states of each weight: int64[W]
    rows: NDArray[np.int64]  # [W] row of each weight's feature
    feature: Callable[[int], Feature]
    counts: Optional[NDArray[np.int64]] = None  # [F]
    # Names, and the number of each weight's template (int64[W])
    templates: Optional[tuple[list[str], NDArray[np.integer]]] = None
    # [S] the label of each state, where weights are for labels, not for states
    label_of: Optional[NDArray[np.int64]] = None

    def about(self, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which weights belong to wanted states (bool[S]) or their labels: bool[W]."""
        if self.label_of is not None:
            wanted = np.bincount(self.label_of, wanted[: len(self.label_of)]) > 0
        return np.logical_or.reduce([wanted[states] for states in self.states])
