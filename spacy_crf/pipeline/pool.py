"""The part of a pool that has an optimum: the weights of sparse features, which are found before the encoder learns."""

from collections.abc import Iterable, Iterator

import numpy as np
from spacy.training import Example

from ..errors import Errors, announcements
from ..features.doc_batch import DocBatch
from ..models.pool import held_out_sequences
from ..models.role import AnnotatedDocs
from ..models.shared_weights import TiedObjective
from .parts import Component


def check_pooled(pipe: Component) -> None:
    """RAISES (ValueError): CRF965 if the component's own optimizer is one of ours that knows no end."""
    if getattr(pipe.optimizer, "wants_sequences", False) or not getattr(pipe.optimizer, "wants_whole_corpus", True):
        raise ValueError(Errors.CRF965.format(name=pipe.name, optimizer=type(pipe.optimizer).__name__))


def find_optimum(pipe: Component, examples: Iterable[Example]) -> None:
    """Trains the member of a pool that has one by the component's own optimizer, and lets it rest from then on.

    examples (Iterable[Example]): Annotated by earlier components, read once.
    """
    pool, optimizer = pipe.model, pipe.optimizer
    announcements.info("%s: looking for the best weights of the features, before the encoder learns", pipe.name)
    objective = TiedObjective(pool.layers[0], pipe.loss, _taught(pipe, examples))
    optimizer.forget(pipe.name)
    while optimizer.stop_reason(pipe.name) is None:
        optimizer.step(objective, key=pipe.name)
    optimizer.forget(pipe.name)  # it takes much memory
    pipe.forget_scores()
    pool.attrs["role"].at_rest = 1


def _taught(pipe: Component, examples: Iterable[Example]) -> Iterator[AnnotatedDocs]:
    """Texts of which those that are held out count nothing."""
    for block in pipe.training.blocks(examples):
        batch = pipe.training.data(block)
        held_out = held_out_sequences(DocBatch.of(batch.docs), batch.starts, pipe.model.attrs["held_out"])
        weights = np.ones(len(held_out)) if batch.weights is None else batch.weights
        yield batch._replace(weights=np.where(held_out, 0.0, weights))
