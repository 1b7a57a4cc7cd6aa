"""Texts of later updates: their new labels and features, and how often a model that goes on has met known ones."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Optional

from spacy.attrs import IDS
from spacy.training import Example

from ..errors import Errors, announcements
from ..models.node import Evidence
from . import supervision
from .labels import LabelPipe
from .saving import unchanged_by_errors

if TYPE_CHECKING:
    from ..optimizers.anchor import Anchor


def add_labels(pipe: LabelPipe, examples: Iterable[Example]) -> None:
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


def labels_of(pipe: LabelPipe, examples: Iterable[Example]) -> set[str]:
    """Labels of the gold annotation, of its alternatives and of soft labels."""
    labels = set()
    keys = supervision.Keys.of(pipe)
    for example in examples:
        labels.update(pipe.annotation.gold_labels(example.reference))
        for key in (keys.alternatives, keys.soft):
            if key in example.reference.spans:
                labels.update(span.label_ for span in example.reference.spans[key])
    return labels - pipe.annotation.outside


def unmet(pipe: LabelPipe, examples: Iterable[Example], met: set[int]) -> list[Example]:
    """Examples whose text was not met before with this annotation.

    met (Set[int]): Fingerprints of the texts that were met; receives those of the examples.
    """
    read = [IDS[name.upper()] for name in pipe.token_attributes]
    keys, new = supervision.Keys.of(pipe), []
    for example in examples:
        check = hash((example.reference.text, supervision.fingerprint(pipe.annotation, [example], keys, read)))
        if check not in met:
            met.add(check)
            new.append(example)
    return new


class Continuation:
    """Earlier training, of which nothing is left but its weights.

    evidence (Evidence): How often it met what weights belong to.
    """

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        self.since: Optional[Evidence] = None  # the texts that came since, each once
        self._met: set[int] = set()  # fingerprints of these texts
        self._start: Any = None  # which weights there were, and what they were

    def begin(self, pipe: LabelPipe) -> None:
        """Called before anything changes."""
        if self._start is None:
            frame = pipe.training.frame()
            self._start = frame, frame.weights()

    def meet(self, pipe: LabelPipe, examples: Iterable[Example]) -> None:
        """Counts texts that come for the first time."""
        new = [example.predicted for example in unmet(pipe, examples, self._met)]
        if new:
            found = pipe.training.frame().evidence_of(new)
            self.since = found if self.since is None else self.since.plus(found)

    def anchor(self, pipe: LabelPipe, batch: Optional[Evidence] = None) -> "Anchor":
        """batch (Evidence): What the next step is about, None for all that came since."""
        from ..optimizers.anchor import Anchor  # prediction does without

        self.begin(pipe)
        return Anchor.of(pipe.training.frame(), self._start, self.evidence, self.since or batch, batch)
