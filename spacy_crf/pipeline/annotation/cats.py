"""Labels of texts as annotation: ``doc.cats``."""

import zlib
from collections.abc import Iterable
from typing import Optional

import numpy as np
from spacy.tokens import Doc
from spacy.training import Example

from ...errors import Errors
from ...types import Bools
from .entities import Annotation, GoldReport, Starts, Supervision
from .trimming import Mention


class Cats(Annotation):
    """One label per text: 1 marks the label of a text, 0 marks wrong labels. Beside a 1, other labels may be left out."""

    assigns = ("doc.cats",)
    found = "a label"
    scores_prefix = "cats"

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

    def label_of(self, doc: Doc) -> Optional[str]:
        """The annotated label of a text, None for none."""
        named = [label for label, value in doc.cats.items() if value == 1.0]
        if len(named) > 1:
            raise ValueError(Errors.CRF465.format(name=self.name, labels=", ".join(named), text=doc.text[:40]))
        self.check_values(doc)
        return named[0] if named else None

    def check_values(self, doc: Doc) -> None:
        for label, value in doc.cats.items():
            if value not in (0.0, 1.0):
                message = Errors.CRF466.format(name=self.name, label=label, value=value, text=doc.text[:40])
                raise ValueError(message)

    def sides(self, label: str, against: Optional[str]) -> tuple[list[Bools], list[Bools]]:
        """Clamps of a text that has a label, and of one that has another label (by default any).

        RAISES (ValueError): CRF838 for a label against itself.
        """
        if label == against:
            raise ValueError(Errors.CRF838.format(name=self.name, what=label, reason="`against` asks for the same"))
        others = [other for other in self.labels if other != label] if against is None else [against]
        having, *lacking = [np.array([[one == chosen for one in self.labels]]) for chosen in (label, *others)]
        return [having], lacking

    def label_in(self, side: Bools) -> Optional[str]:
        """The label that texts under such a clamp have, None for none."""
        return self.labels[int(side.argmax())]

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


class SeveralCats(Cats):
    """Any number of labels per text: 1 marks labels of the text, 0 labels that it does not have. Others are not known. Clamps are
    bool[D, 2 Y]: which labels may be present, then which may be absent."""

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """RAISES (ValueError): CRF466 for a value that is neither 0 nor 1."""
        n, places = len(self.labels), {label: n for n, label in enumerate(self.labels)}
        allowed = np.ones((len(examples), 2 * n), dtype=bool)
        for of_text, example in zip(allowed, examples):
            doc = example.reference
            self.check_values(doc)
            for label, value in doc.cats.items():
                if label in places:
                    of_text[places[label] + (n if value else 0)] = False
                elif value:
                    report.add("texts have a label the component does not know", f"'{label}' of '{doc.text[:40]}'")
        return Supervision(allowed, np.all(allowed, axis=1))

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The labels with a value of at least one half, as mentions of the whole text."""
        return [Mention(0, len(doc.text), label, value) for label, value in doc.cats.items() if value >= 0.5]

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        known = example.reference.cats
        found = [mention for mention in self.mentions_in(example.predicted) if mention.label in known]
        return self.mentions_in(example.reference), found

    def sides(self, label: str, against: Optional[str]) -> tuple[list[Bools], list[Bools]]:
        """Clamps of a text that has a label, and of one that lacks it.

        RAISES (ValueError): CRF838 for another label, which excludes none.
        """
        if against is not None:
            raise ValueError(
                Errors.CRF838.format(
                    name=self.name,
                    what=label,
                    reason="labels do not exclude each other: leave out `against`, to compare with the text without the label",
                )
            )
        having, lacking = np.ones((2, 1, 2 * len(self.labels)), dtype=bool)
        place = self.labels.index(label)
        having[:, place + len(self.labels)] = lacking[:, place] = False
        return [having], [lacking]

    def label_in(self, side: Bools) -> Optional[str]:
        absent = side[0, len(self.labels) :]
        return self.labels[int(absent.argmin())] if not absent.all() else None
