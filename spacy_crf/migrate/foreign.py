"""What a linear chain of another program knows, whatever its file looks like."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MOST_LABELS = 4096  # a table of their pairs has to fit into the memory


@dataclass
class Weighted:
    """Features by their names, and the weights that they have.

    names (list[str]): F of them.
    rows (int64[W]), columns (int64[W]), weights (float64[W]): The feature, the label (or pair ``before * S + label``), and the
        weight.
    """

    names: list[str]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[np.float64]

    @classmethod
    def none(cls) -> "Weighted":
        return cls([], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


@dataclass
class ForeignModel:
    """A first-order linear chain.

    program (str): Whose it is.
    labels (list[str]): S of them.
    states (Weighted): Features of a token, which weigh its label.
    transitions (float64[S, S]): Weights of a label and the one behind it.
    pairs (Weighted): Features of a token, which weigh its label together with the one before.
    templates (list[str]): What makes the names of features, where the program knows that.
    """

    program: str
    labels: list[str]
    states: Weighted
    transitions: NDArray[np.float64]
    pairs: Weighted = field(default_factory=Weighted.none)
    templates: list[str] = field(default_factory=list)

    @property
    def n_weights(self) -> int:
        """That are not 0."""
        parts = (self.states.weights, self.transitions, self.pairs.weights)
        return int(sum(np.count_nonzero(weights) for weights in parts))
