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
    """One label per text: 1 marks the label of a text, 0 marks wrong labels. Beside a 1, other labels may be left out. Clamps are
    bool[D, Y] for D texts and Y labels.
    """

    assigns = ("doc.cats",)
    noun = "a label"
    scores_prefix = "cats"

    def gold_labels(self, doc: Doc) -> Iterable[str]:
        """RETURNS (Set[str]): The labels that ``doc.cats`` names, whatever their values."""
        return set(doc.cats)

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the labels of the reference Docs, see `Annotation.gold`.

        RETURNS (Supervision): With a clamp of texts (bool[D, Y]): the annotated label alone; without one, all but those marked 0.
        RAISES (ValueError): CRF465 for a text with several labels, CRF466 for a value that is neither 0 nor 1.
        """
        allowed = np.ones((len(examples), len(self.labels)), dtype=bool)
        for row, example in zip(allowed, examples):
            doc = example.reference
            label = self.label_of(doc)
            # Without a label of value 1, all values are 0
            excluded = [self.labels.index(name) for name in doc.cats if name in self.labels]
            if label is not None and label in self.labels:
                row[:] = False
                row[self.labels.index(label)] = True
            elif label is not None:
                report.add("texts have a label the component does not know", f"'{label}' of '{doc.text[:40]}'")
            elif 0 < len(excluded) < len(self.labels):
                row[excluded] = False
            elif excluded:
                report.add("texts have 0 for every label, and count as not annotated", f"'{doc.text[:40]}'")
        return Supervision(allowed, np.all(allowed, axis=1))

    def label_of(self, doc: Doc) -> Optional[str]:
        """The annotated label of a text; None if it has no label.

        RAISES (ValueError): CRF465 for several labels, CRF466 for a value that is neither 0 nor 1.
        """
        labels = [label for label, value in doc.cats.items() if value == 1.0]
        if len(labels) > 1:
            raise ValueError(Errors.CRF465.format(name=self.name, labels=", ".join(labels), text=doc.text[:40]))
        self.check_values(doc)
        return labels[0] if labels else None

    def check_values(self, doc: Doc) -> None:
        """RAISES (ValueError): CRF466 for a value in ``doc.cats`` that is neither 0 nor 1."""
        for label, value in doc.cats.items():
            if value not in (0.0, 1.0):
                message = Errors.CRF466.format(name=self.name, label=label, value=value, text=doc.text[:40])
                raise ValueError(message)

    def sides(self, label: str, against: Optional[str]) -> tuple[list[Bools], list[Bools]]:
        """Clamps of a text that has a label, and of the same text with another label.

        label (str): The label of the first side.
        against (Optional[str]): The label of the second side; None for all others, with a clamp for each.
        RETURNS (Tuple[List[bool[1, Y]], List[bool[1, Y]]]): The clamps of both sides.
        RAISES (ValueError): CRF838 for a label against itself.
        """
        if label == against:
            raise ValueError(Errors.CRF838.format(name=self.name, what=label, reason="`against` asks for the same"))
        others = [other for other in self.labels if other != label] if against is None else [against]
        # One row, since a clamp has a row for each text
        names = np.array([self.labels])  # [1, Y]
        return [names == label], [names == other for other in others]

    def label_in(self, side: Bools) -> Optional[str]:
        """The label that texts under a clamp of `sides` have."""
        return self.labels[int(side.argmax())]

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The label with the largest value, as one mention of the whole text."""
        if not doc.cats:
            return []
        label = max(doc.cats, key=doc.cats.__getitem__)
        return [Mention(0, len(doc.text), label, doc.cats[label])]

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): The annotated label and the label found; neither without annotation."""
        gold = self.mentions_in(example.reference)
        return gold, self.mentions_in(example.predicted) if gold else []

    def fingerprint(self, docs: list[Doc]) -> int:
        """A checksum of ``doc.cats`` of the Docs."""
        return zlib.crc32(repr([doc.cats for doc in docs]).encode("utf8", "surrogatepass"))


class SeveralCats(Cats):
    """Several labels per text, or none: 1 marks labels of the text, 0 labels that it does not have. Others are not known. Clamps
    are bool[D, 2 Y]: which labels may be present, then which may be absent."""

    def gold(self, examples: list[Example], starts: Starts, report: GoldReport) -> Supervision:
        """Read the labels of the reference Docs, see `Annotation.gold`.

        RETURNS (Supervision): With a clamp of texts: bool[D, 2 Y].
        RAISES (ValueError): CRF466 for a value that is neither 0 nor 1.
        """
        index_of = {label: n for n, label in enumerate(self.labels)}
        # [D, 2, Y] First whether a label may be present, then whether it may be absent: a value of 1 excludes the second
        allowed = np.ones((len(examples), 2, len(self.labels)), dtype=bool)
        for text_allows, example in zip(allowed, examples):
            doc = example.reference
            self.check_values(doc)
            for label, value in doc.cats.items():
                if label in index_of:
                    text_allows[int(value), index_of[label]] = False
                elif value:
                    report.add("texts have a label the component does not know", f"'{label}' of '{doc.text[:40]}'")
        clamp = allowed.reshape(len(examples), 2 * len(self.labels))
        return Supervision(clamp, np.all(clamp, axis=1))

    def mentions_in(self, doc: Doc) -> list[Mention]:
        """The labels with a value of at least one half, as mentions of the whole text."""
        return [Mention(0, len(doc.text), label, value) for label, value in doc.cats.items() if value >= 0.5]

    def mentions(self, example: Example) -> tuple[list[Mention], list[Mention]]:
        """RETURNS (Tuple[List[Mention], List[Mention]]): The annotated labels, and the labels found among those of which the
        annotation says whether the text has them."""
        known = example.reference.cats
        found = [mention for mention in self.mentions_in(example.predicted) if mention.label in known]
        return self.mentions_in(example.reference), found

    def sides(self, label: str, against: Optional[str]) -> tuple[list[Bools], list[Bools]]:
        """Clamps of a text that has a label, and of the same text without it.

        label (str): The label.
        against (Optional[str]): None, since no other label excludes the first one.
        RETURNS (Tuple[List[bool[1, 2 Y]], List[bool[1, 2 Y]]]): The clamps of both sides.
        RAISES (ValueError): CRF838 if `against` is given, since labels of texts do not exclude each other.
        """
        if against is not None:
            reason = "labels do not exclude each other: leave out `against`, to compare with the text without the label"
            raise ValueError(Errors.CRF838.format(name=self.name, what=label, reason=reason))
        names = np.array([self.labels])  # [1, Y]
        any_label = np.ones_like(names, dtype=bool)
        # Texts have the label where it may not be absent, and lack it where it may not be present
        having = np.hstack([any_label, names != label])
        lacking = np.hstack([names != label, any_label])
        return [having], [lacking]

    def label_in(self, side: Bools) -> Optional[str]:
        """The label that texts under a clamp of `sides` must have; None if all labels may be absent."""
        absent = side[0, len(self.labels) :]  # [Y]
        return self.labels[int(absent.argmin())] if not absent.all() else None
