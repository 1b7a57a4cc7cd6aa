"""How often annotation uses each score, and the highest scores, in the form of losses: see `CorpusObjective.ask`."""

from typing import Any, Optional

import numpy as np

from spacy_crf.arrays import Scores, states_of, zeros
from spacy_crf.errors import cant_train
from spacy_crf.inference.structure import Structure
from spacy_crf.losses.clamped import LabelledLoss
from spacy_crf.optimizers.objective import CRFOptimizer
from spacy_crf.types import Bools, Floats


def expect_known_states(optimizer: CRFOptimizer, pipe: Any) -> None:
    """RAISES (ValueError): CRF347 if the states of a component's model are hidden, for optimizers that need them."""
    if not pipe.model.attrs["role"].names_states(pipe.model):
        reason = "it asks for the state of each token, and annotation only names tags"
        raise cant_train(optimizer, f"the hidden states of '{pipe.name}'", reason, "LBFGS, SGD, AdaGrad or Adam.v1")


class Observed(LabelledLoss):
    """Zero; in place of its derivative how often the annotation uses each score. A sequence that no labelling fits uses nothing.

    incomplete (list): Gets an entry for each batch with a sequence whose annotation several labellings fit.
    """

    incomplete: list[bool]

    def __init__(self, incomplete: list[bool]):
        super().__init__()
        object.__setattr__(self, "incomplete", incomplete)

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, *, weights: Optional[Floats] = None, **told: Any
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        if "path" not in structure.answers:
            states, is_complete = None, (states_of(clamp).sum(axis=1) <= 1).all()
        else:
            states = structure.only_path(clamp)
            is_complete = states is not None
        if not is_complete:
            self.incomplete.append(True)
        work = structure.prepare(scores, annotated=clamp)
        if states is None:
            found, uses = structure.expectations(work, clamp=clamp, weights=weights)
        else:
            found, uses = structure.path_score(work, states), zeros(scores)
            weights = np.ones(len(found)) if weights is None else weights
            structure.path_expectations(work, states, weights=np.where(found == -np.inf, 0.0, weights), out=uses)
        return np.zeros(len(found)), uses, found == -np.inf


class Highest(LabelledLoss):
    """The score of the best labelling of each sequence, without a derivative."""

    def __call__(
        self, structure: Structure[Scores], scores: Scores, clamp: Any, **told: Any
    ) -> tuple[Floats, Scores, Bools]:
        """See `ClampedLoss`."""
        found, _ = structure.viterbi_counts(structure.prepare(scores))
        return found, zeros(scores), found == -np.inf
