"""What a report says of components that label texts: their right and wrong labels, words for these, suspicious annotation."""

from collections.abc import Iterable, Iterator
from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc
from spacy.training import Example

from ..explain.explanation import shorter
from ..features.doc_batch import DocBatch
from ..pipeline.annotation.entities import GoldReport
from ..pipeline.annotation.trimming import Mention
from ..pipeline.crf_textcat import CRFTextClassifier
from ..types import Bools

Matched = tuple[str, Optional[Mention], Optional[Mention]]  # kind, annotated label and found label


def is_of_texts(pipe: Any) -> bool:
    """Whether a component labels texts."""
    return isinstance(pipe, CRFTextClassifier)


def matches(pipe: CRFTextClassifier, example: Example) -> list[Matched]:
    """Compare the labels of a text with its annotation. Labels that the annotation does not mention are not judged."""
    reference = example.reference
    found = _found(pipe, example.predicted)
    known = example.predicted.cats
    annotated = [label for label, value in reference.cats.items() if value == 1.0]
    gold = {label: Mention(0, len(reference.text), label, known.get(label, 0.0)) for label in annotated}
    if pipe.cfg["multilabel"]:
        of_text: list[Matched] = []
        for label in reference.cats:
            if label in gold and label in found:
                of_text.append(("right", gold[label], found[label]))
            elif label in gold:
                of_text.append(("missed", gold[label], None))
            elif label in found:
                of_text.append(("spurious", None, found[label]))
        return of_text
    annotation: Any = pipe.annotation  # `Cats`
    if annotation.label_of(reference) is None or not found:
        return []
    [(right, said)] = gold.items()
    [(label, best)] = found.items()
    return [("right" if label == right else "label", said, best)]


def _found(pipe: CRFTextClassifier, doc: Doc) -> dict[str, Mention]:
    """The labels that a text has got, by the probabilities in ``doc.cats``."""
    own = {label: doc.cats[label] for label in pipe.labels if label in doc.cats}
    return {label: Mention(0, len(doc.text), label, own[label]) for label in pipe.decided(own)}


def words_for(pipe: CRFTextClassifier, doc: Doc, label: str, most: int) -> list[tuple[str, float]]:
    """The words (or sentences) of a text that speak most for a label, or against it, see `CRFTextClassifier.evidence`."""
    evidence = [(" ".join(span.text.split()), value) for span, value in pipe.evidence(doc, label)]
    evidence.sort(key=lambda item: -abs(item[1]))
    return [(shorter(words), value) for words, value in evidence[:most]]


def less_probable(
    pipe: CRFTextClassifier, examples: Iterable[Example]
) -> Iterator[tuple[Example, float, list[Mention], list[Mention]]]:
    """Find texts whose labels are less probable than the best ones. Skips texts whose annotation leaves labels open.

    RETURNS (Iterator): Each text, log p(best) - log p(annotated), its annotated labels and the best ones.
    """
    structure = pipe.decoding.structure
    for example in examples:
        doc = example.predicted
        [annotated] = pipe.annotation.gold([example], np.zeros(0, np.int64), GoldReport()).clamp
        if not len(doc) or annotated.sum() != (len(pipe.labels) if pipe.cfg["multilabel"] else 1):
            continue
        best = pipe.best_labels(doc)
        clamp = _clamp(pipe, best)
        if (clamp == annotated).all():
            continue
        scores = pipe.model.predict(DocBatch([doc]))
        log_p = [float(structure.log_partition(scores, clamp=one[np.newaxis]).sum()) for one in (clamp, annotated)]
        size = len(example.reference.text)
        gold = [Mention(0, size, label) for label, is_gold in zip(pipe.labels, annotated.tolist()) if is_gold]
        yield example, log_p[0] - log_p[1], gold, [Mention(0, size, label) for label in best]


def _clamp(pipe: CRFTextClassifier, labels: list[str]) -> Bools:
    """What a text with exactly these labels allows: bool[Y], with several labels bool[2 Y]."""
    has = np.array([label in labels for label in pipe.labels])
    return np.concatenate([has, ~has]) if pipe.cfg["multilabel"] else has
