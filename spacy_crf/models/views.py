"""What optimizers see of a model: all its weights as one vector, and a corpus as a function of them, whole or by sequences."""

from collections.abc import Iterable
from typing import Any

from thinc.api import Model

from ..losses.clamped import LabelledLoss
from .emissions import AnnotatedDocs
from .objective import ChainWeights, LinearChainObjective
from .segment_sequences import SegmentSequencesObjective
from .semi_markov import SemiMarkovObjective, SemiMarkovWeights
from .sequences import SequencesObjective

# By the name of the architecture
_VIEWS: dict[str, dict[str, type]] = {
    "linear_chain": {"weights": ChainWeights, "objective": LinearChainObjective, "sequences": SequencesObjective},
    "semi_markov": {
        "weights": SemiMarkovWeights,
        "objective": SemiMarkovObjective,
        "sequences": SegmentSequencesObjective,
    },
}


def view_weights(model: Model) -> Any:
    """The weights of a model with sparse emissions."""
    return _VIEWS[model.name]["weights"](model)


def view_corpus(kind: str, model: Model, loss: LabelledLoss, corpus: Iterable[AnnotatedDocs]) -> Any:
    """A corpus, in batches that are read once, as optimizers ask for it.

    kind (str): "objective" for those that evaluate all of it, "sequences" for those that learn from one after the other.
    """
    return _VIEWS[model.name][kind](model, loss, corpus)
