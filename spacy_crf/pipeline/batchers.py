"""Batchers for `[training.batcher]`."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def full_batch() -> Callable[[Iterable[Item]], Iterable[list[Item]]]:
    """Everything in one batch, for optimizers that look at the whole corpus in each step
    (``spacy_crf.full_batch.v1``)."""

    def batch(items: Iterable[Item]) -> Iterable[list[Item]]:
        yield list(items)

    return batch


def clock() -> Callable[[Iterable[Item]], Iterable[list[Item]]]:
    """The first item, again and again, for components that have read their corpus when they were initialized
    (``spacy_crf.clock.v1``): a batch tells them that it is time for a step, and nothing is read or kept for it."""

    def tick(items: Iterable[Item]) -> Iterable[list[Item]]:
        first = list(islice(items, 1))
        if hasattr(items, "close"):
            items.close()  # spaCy's loop keeps the generator, and that the file
        while first:
            yield first

    return tick
