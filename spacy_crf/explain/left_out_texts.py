"""What a decision would be had a text not been among those of training, without training anew: one step of Newton's method for
the objective without the text, from the weights w that were learned with it.

    (H - H_i + 2 l2) x = g_i        weights without text i: w + x

g_i is the derivative of the loss of the text, H_i the second one, H that of all texts. That H_i is taken off matters: most
features of a text are in few others, so that by H alone (Koh & Liang 2017) effects come out three to nine times too small. The
equations are solved by conjugate gradients (Hestenes & Stiefel 1952), which ask for products H v only: differences of gradients.
With l1, weights that are 0 stay so, and those that would change their sign become 0.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Optional

import numpy as np
from spacy.training import Example

from ..errors import Errors
from ..models.objective import CorpusObjective
from ..types import Floats
from .directions import Direction

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe

_PRECISION = 0.05  # what a solution may leave of the right side: the step itself is off by more
_MOST_PRODUCTS = 50
_SMALL = 1e-5  # the largest change of a weight by which gradients are compared


class LeftOut:
    """Weights without single texts.

    examples (List[Example]): All that the component was trained with.
    l2 (float), l1 (float): The regularization that it was trained with.
    RAISES (ValueError): CRF834 if the objective has no second derivatives, or several optima.
    """

    def __init__(self, pipe: "CRFPipe", examples: list[Example], l2: float, l1: float):
        _check(pipe)
        self._pipe, self._examples, self._l2, self._l1 = pipe, examples, l2, l1
        self._objective = self._of(pipe.training.blocks(examples))
        self._weights = self._objective.weights()
        self._gradient = self._objective.evaluate(self._weights)[1]
        self._changes: dict[int, Direction] = {}  # of the texts that were asked about
        self._free = np.ones(len(self._weights)) if not l1 else (self._weights != 0.0).astype(np.float64)

    def _of(self, blocks) -> CorpusObjective:
        pipe = self._pipe
        return CorpusObjective(pipe.model, pipe.loss, (pipe.training.data(block) for block in blocks))

    def influential(self, uses: Direction, n: int) -> list[int]:
        """The texts that change a score most, by H alone: one solution and a pass for all of them.

        uses (Direction): The derivative of the score.
        """
        every = CorpusObjective.evaluate
        towards = self._free * self._objective.join(uses.of_layers, uses.shared)
        step = _solve(
            lambda v: self._curve(v, self._free, lambda u: every(self._objective, u)[1], self._gradient), towards
        )
        slopes = [abs(slope) for _, slope in self._direction(step).slopes(self._examples)]
        return np.argsort(slopes)[::-1][:n].tolist()

    def change(self, number: int) -> Direction:
        """How the weights would change without a text."""
        if number not in self._changes:
            self._changes[number] = self._direction(self._step(number))
        return self._changes[number]

    def _step(self, number: int) -> Floats:
        own, weights, free = self._of([[self._examples[number]]]), self._weights, self._free
        slope = own.evaluate(weights)[1]

        def gradient(at: Floats) -> Floats:
            return self._objective.evaluate(at)[1] - own.evaluate(at)[1]

        def product(v: Floats) -> Floats:
            return self._curve(v, free, gradient, self._gradient - slope)

        step = _solve(product, free * slope)
        if self._l1:
            gone = (weights + step) * weights <= 0.0
            fixed = np.where(gone, -weights, 0.0)
            rest = slope - product(fixed)
            free = np.where(gone, 0.0, free)
            step = fixed + _solve(product, free * rest)
            step = np.where((weights + step) * weights < 0.0, -weights, step)
        return step

    def _curve(self, v: Floats, free: Floats, gradient: Callable[[Floats], Floats], here: Floats) -> Floats:
        """The second derivatives of the objective, times a vector."""
        size = np.abs(v).max()
        if not size:
            return v
        return free * (gradient(self._weights + _SMALL / size * v) - here) * (size / _SMALL) + 2 * self._l2 * v

    def _direction(self, step: Floats) -> Direction:
        return Direction(self._pipe, *self._objective.split(step))


def _check(pipe: "CRFPipe") -> None:
    reason: Optional[str] = None
    if not getattr(pipe.loss, "smooth", True):
        reason = f"its loss {type(pipe.loss).__name__} has no second derivatives"
    elif pipe.model.attrs["role"].has_hidden(pipe.model):
        reason = "it has hidden states, and training anew may end at another optimum"
    if reason is not None:
        raise ValueError(Errors.CRF834.format(name=pipe.name, reason=reason))


def _solve(product: Callable[[Floats], Floats], right: Floats) -> Floats:
    """Where a matrix times x is what stands on the right, or as near as needed: by conjugate gradients."""
    x, left, along = np.zeros_like(right), right.copy(), right.copy()
    size = right @ right
    enough = _PRECISION**2 * size
    for _ in range(_MOST_PRODUCTS):
        if size <= enough:
            break
        image = product(along)
        curvature = along @ image
        if curvature <= 0.0:
            break  # where annotation is partial the loss may bend downwards
        step = size / curvature
        x += step * along
        left -= step * image
        before, size = size, left @ left
        along = left + size / before * along
    return x
