"""Readers for `[corpora]`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional
from weakref import WeakKeyDictionary

from spacy import training
from spacy.errors import Errors as SpacyErrors
from spacy.language import Language
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
