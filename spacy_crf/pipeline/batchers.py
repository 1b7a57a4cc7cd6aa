"""Batchers for `[training.batcher]`."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Optional, TypeVar

from spacy.tokens import Doc
from spacy.training import Example

from .gc_policy import left_at_exit, not_searched

Item = TypeVar("Item")


def full_batch() -> Callable[[Iterable[Item]], Iterable[list[Item]]]:
    """Everything in one batch, for optimizers that look at the whole corpus in each step
    (``spacy_crf.full_batch.v1``)."""

    def batch(items: Iterable[Item]) -> Iterable[list[Item]]:
        yield list(items)

    return batch


class Tick:
    """What the clock and the components say to each other: a text without words carries it from one to the others, as spaCy's
    loop copies what else there is of an Example."""

    KEY = "spacy_crf_tick"  # in the user_data of the reference

    def __init__(self) -> None:
        # By the name of each component that took a step: whether another one can still improve it
        self.goes_on: dict[str, bool] = {}

    @property
    def is_last(self) -> bool:
        return bool(self.goes_on) and not any(self.goes_on.values())

    def example(self, like: Example) -> Example:
        vocab = like.reference.vocab
        return Example(Doc(vocab), Doc(vocab, user_data={self.KEY: self}))

    @classmethod
    def of(cls, example: Example) -> "Optional[Tick]":
        """The tick that an example carries, if it does."""
        return None if len(example.reference) else example.reference.user_data.get(cls.KEY)


def clock() -> Callable[[Iterable[Example]], Iterable[list[Example]]]:
    """Everything in the first batch; the ones after it only say that it is time for another step about the same, until no
    component has anything left to improve (``spacy_crf.clock.v1``). Of a stream, which components have read when they were
    initialized, nothing is read but the first example, which is given again and again."""

    def tick(examples: Iterable[Example]) -> Iterable[list[Example]]:
        left_at_exit()
        if not isinstance(examples, list):
            first = list(islice(examples, 1))
            if hasattr(examples, "close"):
                examples.close()  # spaCy's loop keeps the generator, and that the file
            while first:
                yield first
        elif examples:
            said = Tick()
            time_for_a_step = said.example(examples[0])
            with not_searched():
                yield [*examples, time_for_a_step]
                while not said.is_last:
                    yield [time_for_a_step]

    return tick
