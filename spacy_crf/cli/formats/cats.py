"""Labels of whole texts: how tools write them, and the ``doc.cats`` that they become."""

from collections.abc import Collection
from typing import Any, Optional

from ...errors import Errors, shown
from .settings import Report
from .spans import holds_annotation, is_unicode

# The labels that a text has, or a table with 1 for labels that it has and 0 for those that it has not; None says nothing
Labels = Optional[list[str] | dict[str, float]]


class TextLabels:
    """The labels of all texts of a file. A text that has some of them has none of the others, as spaCy wants to have it told.

    is_exclusive (bool): Whether each text has one label at most. A text without a label is then not annotated.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}  # in order
        self.is_exclusive = True

    def add(self, labels: Labels) -> None:
        self.names |= dict.fromkeys(labels or ())
        has = [label for label, share in labels.items() if share] if isinstance(labels, dict) else labels or ()
        self.is_exclusive &= len({*has}) < 2

    def cats(self, labels: Labels, place: str, report: Report) -> dict[str, float]:
        """What ``doc.cats`` holds for the labels of one text. A table is taken as it is."""
        if isinstance(labels, dict) or not self.names:
            return labels or {}
        if labels is None or (self.is_exclusive and not labels):
            report.unlabelled.append(place)
            return {}
        return {name: float(name in labels) for name in self.names}


def is_label(value: Any) -> bool:
    return (isinstance(value, str) and bool(value) and is_unicode(value)) or (type(value) is int and abs(value) < 2**63)


def is_labels(value: Any) -> bool:
    """Whether a value holds labels of a text, not spans."""
    is_list = isinstance(value, list) and bool(value) and all(map(is_label, value))
    return is_label(value) or (is_list and not holds_annotation(value))


def parse_labels(value: Any, place: str, names: Collection[str] = ()) -> Labels:
    """Labels as a string, a list of strings, or a table; None where the text is not labelled.

    names (Collection[str]): Of labels that are numbers, from 0.
    RAISES (ValueError): CRF880 for anything else.
    """
    if value in (None, "", {}):
        return None
    if isinstance(value, dict):
        return {_label(label, value, place): _share(share, value, place) for label, share in value.items()}
    return [_named(label, value, place, names) for label in (value if isinstance(value, list) else [value])]


def _named(label: Any, value: Any, place: str, names: Collection[str]) -> str:
    if type(label) is int and names:
        if not 0 <= label < len(names):
            raise ValueError(Errors.CRF870.format(place=place, tag=shown(label), n=len(names)))
        return list(names)[label]
    return _label(label, value, place)


def _label(label: Any, value: Any, place: str) -> str:
    if not is_label(label):
        raise ValueError(Errors.CRF880.format(place=place, value=shown(value)))
    return str(label)


def _share(share: Any, value: Any, place: str) -> float:
    if isinstance(share, str) or share not in (0, 1):
        raise ValueError(Errors.CRF880.format(place=place, value=shown(value)))
    return float(share)
