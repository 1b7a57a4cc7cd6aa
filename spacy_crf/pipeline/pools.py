"""The initialization of a pool of sparse features and an encoder, whose own optimizer uses the objective."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from spacy.training import Example

from ..errors import announcements
from ..features.doc_batch import DocBatch
from ..models.node import AnnotatedDocs
from ..models.objective import TiedObjective
from ..models.pool import held_out_sequences
from .pipe import LearningPipe


def find_optimum(pipe: LearningPipe, read: Callable[[], Iterable[Example]]) -> None:
    """Train the sparse features of a pool, whose objective has an optimum, by the component's own optimizer. Afterwards this
    member is fixed, and the encoder learns. Held-out texts do not count."""
    pool = pipe.model
    optimizer: Any = pipe.optimizer  # a `CRFOptimizer`, see `Training.finds_optimum`
    if pipe.training.new_features is not None:
        return
    announcements.info("%s: looking for the best weights of the features, before the encoder learns", pipe.name)

    def training_batches() -> Iterator[AnnotatedDocs]:
        for block in pipe.training.blocks(read()):
            batch = pipe.training.data(block)
            held_out = held_out_sequences(DocBatch.of(batch.docs), batch.starts, pool.attrs["held_out"])
            weights = np.ones(len(held_out)) if batch.weights is None else batch.weights
            yield batch._replace(weights=np.where(held_out, 0.0, weights))

    objective = TiedObjective(pool.layers[0], pipe.loss, training_batches())
    optimizer.forget(pipe.name)
    while optimizer.stop_reason(pipe.name) is None:
        optimizer.step(objective, key=pipe.name)
    optimizer.forget(pipe.name)  # its state takes much memory
    pipe.forget_scores()
    pool.attrs["node"].n_frozen = 1
