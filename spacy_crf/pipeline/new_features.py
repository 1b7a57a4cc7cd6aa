"""What the texts of an update bring that the component does not know: labels, features, and pairs of both."""

from collections.abc import Iterable

from spacy.attrs import IDS
from spacy.training import Example

from ..errors import Errors, announcements
from . import supervision
from .parts import Component
from .saving import unchanged_by_errors


def add_labels(pipe: Component, examples: Iterable[Example]) -> None:
    """Adds the labels that the annotation has and the component has not, but for those it was told to leave out: all, or after
    an error none.

    RAISES (ValueError): CRF412 if it has read all of its corpus already; what `add_label` says of a label that is not possible.
    """
    unknown = labels_of(pipe, examples).difference(pipe.labels, pipe.cfg["left_out"])
    if not unknown:
        return
    if pipe.training.has_read_corpus:
        raise ValueError(Errors.CRF412.format(name=pipe.name, labels=", ".join(map(repr, sorted(unknown)))))
    with unchanged_by_errors(pipe):
        for label in sorted(unknown):
            pipe.add_label(label)
    announcements.info("%s: new labels: %s", pipe.name, ", ".join(sorted(unknown)))


def labels_of(pipe: Component, examples: Iterable[Example]) -> set[str]:
    """Labels of the gold annotation, of its alternatives and of soft labels."""
    labels = set()
    keys = supervision.Keys.of(pipe)
    for example in examples:
        labels.update(pipe.annotation.gold_labels(example.reference))
        for key in (keys.alternatives, keys.soft):
            if key in example.reference.spans:
                labels.update(span.label_ for span in example.reference.spans[key])
    return labels - pipe.annotation.outside


class NewFeatures:
    """Adds features, and weights of features with labels, of texts that were not met before."""

    def __init__(self) -> None:
        self._texts = TextsMet()

    def add(self, pipe: Component, examples: list[Example]) -> None:
        new = self._texts.new_of(pipe, examples)
        if new:
            pipe.training.count(lambda: new)


class TextsMet:
    """Tells texts, with their annotation, that were met from new ones."""

    def __init__(self) -> None:
        self._met: set[int] = set()

    def new_of(self, pipe: Component, examples: Iterable[Example]) -> list[Example]:
        """Those that it is asked about for the first time."""
        return [example for example in examples if self._is_new(pipe, example)]

    def _is_new(self, pipe: Component, example: Example) -> bool:
        read = [IDS[name.upper()] for name in pipe.token_attributes]
        keys = supervision.Keys.of(pipe)
        check = hash((example.reference.text, supervision.fingerprint(pipe.annotation, [example], keys, read)))
        if check in self._met:
            return False
        self._met.add(check)
        return True
