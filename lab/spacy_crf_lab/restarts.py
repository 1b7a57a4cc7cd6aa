"""Models whose objective has more than one minimum: a seed decides which one training finds, or the best of several seeds."""

from collections.abc import Callable

import numpy as np
from thinc.api import Model

from spacy_crf.errors import announcements
from spacy_crf.losses.clamped import LogLikelihood
from spacy_crf.models.node import Traits
from spacy_crf.models.objective import CorpusObjective
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.pipeline.initialization import Initialization

_ITERATIONS = 20  # iterations before starting points are compared
_L2 = 0.1  # if the optimizer has no l2


class Seeded:
    """Mixin for the nodes of such models. Attributes: "seed", and "restarts", the number of seeds to try."""

    traits: Traits
    spread_out: Callable

    def begin(self, model: Model, initialization: Initialization, is_new: bool) -> None:
        """Announce the seed, and choose the best of several seeds for a new model."""
        if not self.traits.names_states:
            announcements.info(
                "%s: with hidden states the objective has more than one minimum: which is found is up to the seed, which is %d",
                initialization.pipe.name,
                model.attrs["seed"],
            )
        if is_new and model.attrs["restarts"] > 1 and initialization.pipe.training.new_features is None:
            self._choose(model, initialization)

    def _choose(self, model: Model, initialization: Initialization) -> None:
        """Run some iterations of L-BFGS from each seed, and start from the lowest objective."""
        pipe = initialization.pipe
        loss = pipe.loss if pipe.loss.smooth else LogLikelihood().bind(pipe.decoding.state_labels)
        blocks = pipe.training.blocks(initialization.as_in_training())
        objective = CorpusObjective(model, loss, map(pipe.training.data, blocks))
        first = model.attrs["seed"]
        l2 = getattr(initialization.optimizer, "l2", _L2)
        found = []
        for seed in range(first, first + model.attrs["restarts"]):
            objective.assign(np.zeros_like(objective.weights()))
            self.spread_out(model, seed)
            begins = LBFGS(l2=l2, iterations_per_step=_ITERATIONS)
            value = begins.step(objective, key=f"{pipe.name}, seed {seed}")
            found.append((value, seed, objective.weights()))
        best, seed, weights = min(found, key=lambda item: item[:2])
        objective.assign(weights)
        pipe.clear_scores()
        text = (
            "%s: begins with seed %d, whose objective after %d iterations is %.2f; that of the others is %.2f to %.2f"
        )
        others = [value for value, other, _ in found if other != seed]
        announcements.info(text, pipe.name, seed, _ITERATIONS, best, min(others), max(others))
