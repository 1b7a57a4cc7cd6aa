"""Parameters that are laid out anew when a model learns more labels or features."""

from collections.abc import Callable
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model
from thinc.util import data_validation


class StructureModel(Model):
    """A model from Docs to scores, whose dimension ``nO`` is that of its parameter "first": the states, which may become more.
    thinc's own dimensions can't change once there are parameters."""

    def initialize(self, X: Any = None, Y: Any = None) -> "StructureModel":
        with data_validation(False):  # they are a corpus, and what is to be predicted of it
            return super().initialize(X, Y)

    def has_dim(self, name: str) -> Optional[bool]:
        if name != "nO":
            return super().has_dim(name)
        return True if self.has_param("first") else None

    def get_dim(self, name: str) -> int:
        return self.get_param("first").size if name == "nO" and self.has_dim("nO") else super().get_dim(name)


def set_moved(model: Model, name: str, move: Callable[[NDArray], NDArray]) -> None:
    """Lays out a parameter anew, and a gradient that waits for its step.

    move (Callable[[NDArray], NDArray]): From an array as it was to one as it shall be.
    """
    if model.has_grad(name):
        model.set_grad(name, move(model.get_grad(name)))
    model.set_param(name, move(model.get_param(name)))


def spread(values: NDArray, places: NDArray[np.int64], size: int) -> NDArray[np.float32]:
    """Values at their places in an array of zeros."""
    moved = np.zeros(size, dtype=np.float32)
    moved[places] = values
    return moved


def enlarged(values: NDArray, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values in the first corner of an array of zeros; what has no room there is left out."""
    moved = np.zeros(shape, dtype=np.float32)
    kept = tuple(slice(min(sizes)) for sizes in zip(values.shape, shape))
    moved[kept] = values[kept]
    return moved
