"""Where training begins, if its objective has more than one minimum: `restarts` of architectures with hidden states."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from spacy.training import Example

from ..errors import announcements
from ..losses.clamped import LogLikelihood
from ..models.objective import CorpusObjective
from ..optimizers.lbfgs import LBFGS
from .parts import Component

_ITERATIONS = 20  # after which beginnings are compared
_L2 = 0.1  # where the optimizer has none


def choose_beginning(pipe: Component, examples: Iterable[Example], optimizer: Any) -> None:
    """Takes some iterations of L-BFGS from each beginning, and lets training go on from where the objective is least.

    examples (Iterable[Example]): Annotated by earlier components, read once.
    optimizer (Optimizer): That of the training, whose l2 counts.
    """
    model = pipe.model
    loss = pipe.loss if pipe.loss.smooth else LogLikelihood().bind(pipe.decoding.state_labels)
    objective = CorpusObjective(model, loss, map(pipe.training.data, pipe.training.blocks(examples)))
    first, l2 = model.attrs["seed"], getattr(optimizer, "l2", _L2)
    found = []
    for seed in range(first, first + model.attrs["restarts"]):
        objective.assign(np.zeros_like(objective.weights()))
        model.attrs["role"].spread_out(model, seed)
        begins = LBFGS(l2=l2, iterations_per_step=_ITERATIONS)
        value = begins.step(objective, key=f"{pipe.name}, seed {seed}")
        found.append((value, seed, objective.weights()))
    best, seed, weights = min(found, key=lambda item: item[:2])
    objective.assign(weights)
    pipe.forget_scores()
    text = "%s: begins with seed %d, whose objective after %d iterations is %.2f; with the others it is %.2f to %.2f"
    others = [value for value, other, _ in found if other != seed]
    announcements.info(text, pipe.name, seed, _ITERATIONS, best, min(others), max(others))
