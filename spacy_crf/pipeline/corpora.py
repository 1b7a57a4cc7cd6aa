"""Corpora of `spacy train`: a reader that keeps what it reads, batchers, and files of Docs.

Training data lives as long as the training, and is not searched for garbage again and again. Python looks through all objects
whenever their number has grown by a quarter: 0.1 s each time after spaCy's imports, and 0.2 s with 8,000 Docs, which took a tenth
of a training run (mit_restaurant).
"""

import atexit
import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Optional, TypeVar
from weakref import WeakKeyDictionary

from spacy import training
from spacy.errors import Errors as SpacyErrors
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Example

# What was read last for a pipeline, and by which settings: to be trained it gets other readers than to be initialized
_read_last: "WeakKeyDictionary[Language, tuple[tuple, list[Example]]]" = WeakKeyDictionary()


class Corpus(training.Corpus):
    """spaCy's reader, which keeps what it has read for the next time (``spacy_crf.Corpus.v1``): the dev set is read once for all
    evaluations, the training data once for all components that are initialized and for their training.

    path (Path): The .spacy file, or a folder of them.
    gold_preproc (bool): Whether the predicted Docs are the sentences and tokens of the annotation.
    max_length (int): Longer Docs are split into their sentences. 0 for no limit.
    limit (int): Most Docs to read. 0 for no limit.
    augmenter (Callable): Makes further Examples, which are kept as well.
    """

    def __init__(
        self,
        path: Optional[Path],
        gold_preproc: bool = False,
        max_length: int = 0,
        limit: int = 0,
        augmenter: Optional[Callable] = None,
    ):
        if path is None:
            raise ValueError(SpacyErrors.E913)
        super().__init__(path, gold_preproc=gold_preproc, max_length=max_length, limit=limit, augmenter=augmenter)
        self._settings = (str(path), gold_preproc, max_length, limit)
        self._kept: Optional[tuple[Language, list[Example]]] = None
        self._augments = augmenter is not None

    def __call__(self, nlp: Language) -> Iterator[Example]:
        if self._kept is None or self._kept[0] is not nlp:
            yield from self._read(nlp)
        else:
            yield from self._kept[1]

    def _read(self, nlp: Language) -> Iterator[Example]:
        settings, examples = _read_last.pop(nlp, (None, []))
        if settings != self._settings or self._augments:
            examples = []
            for example in super().__call__(nlp):
                examples.append(example)
                yield example
            _read_last[nlp] = self._settings, examples
        else:
            yield from examples
        self._kept = nlp, examples


Item = TypeVar("Item")


def full_batch() -> Callable[[Iterable[Item]], Iterable[list[Item]]]:
    """Everything in one batch, for optimizers that look at the whole corpus in each step
    (``spacy_crf.full_batch.v1``)."""

    def batch(items: Iterable[Item]) -> Iterable[list[Item]]:
        yield list(items)

    return batch


class Tick:
    """Messages between the clock and the components: a text without words carries it from one to the others, as spaCy's
    loop copies what else there is of an Example."""

    KEY = "spacy_crf_tick"  # in the user_data of the reference

    def __init__(self) -> None:
        # By the name of each component that took a step: whether another one can still improve it
        self.goes_on: dict[str, bool] = {}

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
                while not said.goes_on or any(said.goes_on.values()):
                    yield [time_for_a_step]

    return tick


# So often are young objects searched before all are: never
_NEVER = 1 << 30
_YOUNG = 1  # the generation of what has outlived a search at most


@contextmanager
def only_young_searched() -> Iterator[None]:
    """Within the context, the garbage collector searches only young objects; for phases that read much data, keep it, and
    discard little."""
    *young, old = gc.get_threshold()
    gc.set_threshold(*young, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*young, old)


@contextmanager
def not_searched() -> Iterator[None]:
    """Within the context, the garbage collector skips all objects that existed at its start; it searches newer ones as usual."""
    if gc.get_freeze_count():  # somebody else has said so, and says when it ends
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def left_at_exit() -> None:
    """When the process ends, garbage of today is collected, and all else is left to the system, which takes back all memory at
    once: Python would search it, and take cycles apart object by object, a seventh of the time of a small training. Whatever is
    no part of a cycle, such as a file, Python still closes."""
    atexit.register(_leave)


def _leave() -> None:
    gc.collect(_YOUNG)
    gc.freeze()


def doc_bin(docs: Iterable[Doc], **settings: Any) -> DocBin:
    """A DocBin that has the user data of those Docs that have some: encoding none and reading it takes several times as long as
    all the rest of a sentence."""
    stored = DocBin(**settings)
    for doc in docs:
        stored.store_user_data = bool(doc.user_data)
        stored.add(doc)
        if not doc.user_data:
            stored.user_data.append(None)
    stored.store_user_data = True
    return stored
