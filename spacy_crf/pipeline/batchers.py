"""Batchers for `[training.batcher]`."""

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def full_batch() -> Callable[[Iterable[Item]], Iterable[list[Item]]]:
    """Everything in one batch, for optimizers that look at the whole corpus in each step
    (``spacy_crf.full_batch.v1``)."""

    def batch(items: Iterable[Item]) -> Iterable[list[Item]]:
        yield list(items)

    return batch
