"""What a CRF component and its optimizer say to each other.

thinc's optimizers see one gradient per parameter and step. A line search wants to evaluate the whole training objective
again at other weights, so a component hands CRF optimizers an ``Objective`` instead.
"""

import math
from collections.abc import Hashable
from numbers import Integral, Real
from typing import Protocol

from thinc.api import Optimizer

from ..errors import Errors
from ..types import Floats


class Objective(Protocol):
    """A component's training loss, without regularizer, as a function of all its weights as one vector."""

    # Equal as long as it is the same function: same data, same layout of the weights. It is saved with the optimizer,
    # so build it from str, bytes, int and tuples of these that mean the same in another process (no id, no hash).
    signature: Hashable

    def weights(self) -> Floats:
        """RETURNS (float64[n]): A copy of the model's current weights."""
        ...

    def evaluate(self, weights: Floats) -> tuple[float, Floats]:
        """Leave the model as it is and answer for other weights.

        weights (float64[n]): Belong to the optimizer: neither change nor keep them.
        RETURNS (tuple[float, float64[n]]): The loss and its gradient, an array the optimizer may overwrite and keep.
        """
        ...

    def assign(self, weights: Floats) -> None:
        """Write the weights to the model, which may round them to float32. Called at the end of each step."""
        ...


class CRFOptimizer(Optimizer):
    """An optimizer that asks for the objective; thinc's, because ``[training.optimizer]`` takes no other."""

    def __init__(self) -> None:
        super().__init__(1.0, use_averages=False)

    def step(self, objective: Objective, *, key: str) -> float:
        """Improve the weights of one component.

        objective (Objective): The component's loss.
        key (str): The component's name. State is kept per key, so one optimizer serves several components.
        RETURNS (float): The objective with its regularizer after the step.
        """
        raise NotImplementedError

    def __call__(self, key, weights, gradient, *, lr_scale=1.0):
        raise ValueError(Errors.CRF202.format(optimizer=type(self).__name__, key=key))


def check_number(optimizer: str, name: str, value, *, minimum: float = 0.0) -> None:
    """Refuse a setting that is not a finite number of at least ``minimum``."""
    if not (isinstance(value, Real) and math.isfinite(value) and value >= minimum):
        must = f"a finite number, at least {minimum}"
        raise ValueError(Errors.CRF201.format(optimizer=optimizer, name=name, value=value, must=must))


def check_count(optimizer: str, name: str, value, *, minimum: int = 1) -> None:
    """Refuse a setting that is not a whole number of at least ``minimum``."""
    if not (isinstance(value, Integral) and value >= minimum):
        must = f"a whole number, at least {minimum}"
        raise ValueError(Errors.CRF201.format(optimizer=optimizer, name=name, value=value, must=must))
