"""One label for each text as annotation: ``doc.cats``."""

import zlib
from collections.abc import Iterable

import numpy as np
from spacy.tokens import Doc
from spacy.training import Example

from ...errors import Errors
from .annotation import Annotation, GoldReport, Mention, Starts, Supervision


class Cats(Annotation):
    """One label per text: 1 marks the label of a text, 0 marks wrong labels. Beside a 1, other labels may be left out."""

    found = "a label"
    spans_are_tokens = False
    scores_prefix = "cats"

    @property
    def assigns(self) -> list[str]:
        return ["doc.cats"]

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        return set(doc.cats)

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """RAISES (ValueError): CRF465 for a text with several labels, CRF466 for a value that is neither 0 nor 1."""
        allowed = np.ones((len(examples), len(self.labels)), dtype=bool)
        for of_text, example in zip(allowed, examples):
            doc = example.reference
            named = self.label_of(doc)
            if named is not None:
                if named in self.labels:
                    of_text[:] = False
                    of_text[self.labels.index(named)] = True
                else:
                    report.add("texts have a label the component does not know", f"'{named}' of '{doc.text[:40]}'")
                continue
            wrong = [self.labels.index(label) for label in doc.cats if label in self.labels]
            if 0 < len(wrong) < len(self.labels):
                of_text[wrong] = False
            elif wrong:
                report.add("texts have 0 for every label, and count as not annotated", f"'{doc.text[:40]}'")
        return Supervision(allowed, np.all(allowed, axis=1))

    def label_of(self, doc: Doc) -> "str | None":
        """The annotated label of a text, None for none."""
        named = [label for label, value in doc.cats.items() if value == 1.0]
        if len(named) > 1:
            raise ValueError(Errors.CRF465.format(name=self.name, labels=", ".join(named), text=doc.text[:40]))
        for label, value in doc.cats.items():
            if value not in (0.0, 1.0):
                message = Errors.CRF466.format(name=self.name, label=label, value=value, text=doc.text[:40])
                raise ValueError(message)
        return named[0] if named else None

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The label with the largest value, as one mention of the whole text."""
        if not doc.cats:
            return []
        label = max(doc.cats, key=doc.cats.__getitem__)
        return [Mention(0, len(doc.text), label, doc.cats[label])]

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        gold = self.mentions_in(example.reference)
        return gold, self.mentions_in(example.predicted) if gold else []

    def fingerprint(self, docs: list[Doc]) -> int:
        return zlib.crc32(repr([doc.cats for doc in docs]).encode("utf8", "surrogatepass"))
