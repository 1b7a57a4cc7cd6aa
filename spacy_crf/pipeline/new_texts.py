"""Texts of later updates: their new labels and features, and how often a model that continues training has met known features."""

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
    """Add the labels of the annotation that the component does not have, except labels that it was told to leave out. After an
    error no label is added.

    RAISES (ValueError): CRF412 if the component has read its whole corpus already; or as `add_label`.
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
    """Labels in the gold annotation, its alternatives and the soft labels."""
    labels = set()
    keys = supervision.Keys.of(pipe)
    for example in examples:
        labels.update(pipe.annotation.gold_labels(example.reference))
        for key in (keys.alternatives, keys.soft):
            if key in example.reference.spans:
                labels.update(span.label_ for span in example.reference.spans[key])
    return labels - pipe.annotation.outside


def unmet(pipe: LabelPipe, examples: Iterable[Example], met: set[int]) -> list[Example]:
    """Examples whose text, with this annotation, is new. Their fingerprints are added to those of earlier texts (`met`)."""
    read = [IDS[name.upper()] for name in pipe.token_attributes]
    keys, new = supervision.Keys.of(pipe), []
    for example in examples:
        check = hash((example.reference.text, supervision.fingerprint(pipe.annotation, [example], keys, read)))
        if check not in met:
            met.add(check)
            new.append(example)
    return new


class Continuation:
    """What a model knows about earlier training whose data is gone.

    evidence (Evidence): How often earlier training met the feature, token or sequence of each weight.
    """

    def __init__(self, evidence: Evidence):
        self.evidence = evidence
        self.since: Optional[Evidence] = None  # evidence of the texts since then, each counted once
        self._met: set[int] = set()  # fingerprints of these texts
        self._start: Any = None  # layout and values of the weights at the start

    def begin(self, pipe: LabelPipe) -> None:
        """Store the weights, before anything changes."""
        if self._start is None:
            frame = pipe.training.frame()
            self._start = frame, frame.weights()

    def meet(self, pipe: LabelPipe, examples: Iterable[Example]) -> None:
        """Count texts that are new."""
        new = [example.predicted for example in unmet(pipe, examples, self._met)]
        if new:
            found = pipe.training.frame().evidence_of(new)
            self.since = found if self.since is None else self.since.plus(found)

    def anchor(self, pipe: LabelPipe, batch: Optional[Evidence] = None) -> "Anchor":
        """The anchor for the next step. batch (Evidence): Evidence of the texts in the step, None for all texts since then."""
        from ..optimizers.anchor import Anchor  # prediction does not need it

        self.begin(pipe)
        return Anchor.of(pipe.training.frame(), self._start, self.evidence, self.since or batch, batch)
