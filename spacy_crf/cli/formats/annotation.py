"""Makes Docs from the annotation of tools: spans of characters, and labels of whole texts."""

import re
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from .source import ReadSettings, Report, unreadable

_HALF = re.compile("[\ud800-\udfff]")
_OFFSETS, _LABELS = {"start", "start_offset", "start_char"}, {"label", "labels", "tag", "type"}  # the keys of a span


class Span(NamedTuple):
    """Characters ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str

    def named_in(self, text: str) -> str:
        return f"{self.start}-{self.end} '{text[self.start : self.end]}' ({self.label})"


def parse_span(span: Any, text: str, place: str) -> Span:
    """Parse a span: ``[start, end, label]``, or an object with these under any of the keys that tools use.

    text (str): The text that contains the span. place (str): Place of the span in the file, for messages.
    RAISES (ValueError): CRF701 if the value is not a span of the text; CRF871 if the span's words differ from the text.
    """
    words: Any = None
    if isinstance(span, list) and len(span) == 3:
        start, end, label = span
    else:
        fields: Any = span if isinstance(span, dict) else {}
        start, end = (fields.get(name, fields.get(f"{name}_offset")) for name in ("start", "end"))
        label, words = fields.get("label"), fields.get("text")
    offsets = type(start) is int and type(end) is int and 0 <= start < end <= len(text)
    if not offsets or not isinstance(label, str) or not label or not is_unicode(label):
        needs = f'a span needs "start" < "end" within the {len(text)} characters of the text, and a "label"'
        raise unreadable(place, f"{needs} – or is [start, end, label] – not {shown(span)}")
    if isinstance(words, str) and words.split() != text[start:end].split():
        raise ValueError(Errors.CRF871.format(place=place, words=shown(words), found=shown(text[start:end])))
    return Span(start, end, label)


def is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode: JSON may hold halves of characters."""
    return _HALF.search(text) is None


def holds_annotation(value: Any) -> bool:
    """Whether a value of JSON contains spans with labels, or tags of tokens, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if _OFFSETS.intersection(value) and _LABELS.intersection(value):
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            is_span = len(value) == 3 and [type(part) for part in value] == [int, int, str]
            if is_span or any(isinstance(part, str) and part[:2] in ("B-", "U-") for part in value):
                return True
            waiting.extend(value)
    return False


def check_length(text: str, nlp: Language, place: str) -> None:
    """Check the length of a text. RAISES (ValueError): CRF878 if it is too long for a pipeline."""
    if len(text) > nlp.max_length:
        raise ValueError(Errors.CRF878.format(place=place, n=len(text), most=nlp.max_length))


def check_doc(doc: Doc, nlp: Language, place: str) -> None:
    """Check a Doc that spaCy will tokenize again. RAISES (ValueError): CRF878 if its text is too long for the pipeline."""
    if len(doc) and not doc.has_unknown_spaces and doc[-1].idx + len(doc[-1]) > nlp.max_length:
        check_length(doc.text, nlp, place)


def tokenized(text: str, nlp: Language, place: str) -> Doc:
    """Tokenize a text. RAISES (ValueError): CRF878 if the text is too long, CRF701 if it is not valid Unicode."""
    check_length(text, nlp, place)
    try:
        return nlp.make_doc(text)
    except ValueError as error:
        raise unreadable(place, error) from error


def make_doc(
    nlp: Language,
    text: str,
    spans: Optional[Iterable[Span]],
    *,
    missing: Iterable[Span] = (),
    place: str,
    settings: ReadSettings,
    report: Report,
) -> Doc:
    """Make a Doc whose entities are spans of its text. The tokens of a span that does not align with them, and the tokens of
    ``missing``, become missing annotation. Without spans (None) the whole text stays unannotated. With `spans_key` in the
    settings, the spans are in ``doc.spans`` instead."""
    doc = tokenized(text, nlp, place)
    if spans is None:
        return doc
    entities, cut = [], []
    for span in missing:
        cut.extend(doc.char_span(span.start, span.end, alignment_mode="expand") or ())
    trimmed = []
    for span in spans:
        words = text[span.start : span.end]
        start, length = span.start + len(words) - len(words.lstrip()), len(words.strip())
        if length:
            trimmed.append(Span(start, start + length, span.label))
        if length < len(words):
            places = report.trimmed if length else report.misaligned
            places.append(f"{place}, {span.named_in(text)}")
    if settings.spans_key:
        found = [(span, doc.char_span(span.start, span.end, label=span.label)) for span in sorted({*trimmed})]
        report.unaligned += [f"{place}, {span.named_in(text)}" for span, of_tokens in found if of_tokens is None]
        doc.spans[settings.spans_key] = [of_tokens for _, of_tokens in found if of_tokens is not None]
        return doc
    for span in _without_overlaps(trimmed, text, place, settings, report):
        entity = doc.char_span(span.start, span.end, label=span.label)
        if entity is None:
            report.misaligned.append(f"{place}, {span.named_in(text)}")
            # char_span returns None for a space between tokens
            cut.extend(doc.char_span(span.start, span.end, alignment_mode="expand") or ())
        else:
            entities.append(entity)
    # If an entity covers a token of a misaligned span, the entity takes precedence
    taken = {token.i for entity in entities for token in entity}
    unknown = [doc[i : i + 1] for i in sorted({token.i for token in cut} - taken)]
    doc.set_ents(entities, missing=unknown, default="outside")
    return doc


def _without_overlaps(spans: list[Span], text: str, place: str, settings: ReadSettings, report: Report) -> list[Span]:
    """Sort spans, and keep only the longest of overlapping ones.

    RAISES (ValueError): CRF702 for overlapping spans, if the settings refuse them.
    """
    kept: list[Span] = []
    taken = bytearray(len(text))
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        at = taken.find(1, span.start, span.end)
        if at < 0:
            kept.append(span)
            taken[span.start : span.end] = b"\1" * (span.end - span.start)
            continue
        other = next(other for other in kept if other.start <= at < other.end)
        if settings.overlaps == "error":
            first, second = (each.named_in(text) for each in sorted((other, span)))
            raise ValueError(Errors.CRF702.format(place=place, first=first, second=second))
        report.overlapping.append(f"{place}, {span.named_in(text)} within {other.named_in(text)}")
    return sorted(kept)


# Labels of a text: a list, or a table with 1 for each label that the text has and 0 for each other one; None if not annotated
Labels = Optional[list[str] | dict[str, float]]


class TextLabels:
    """Collects the labels of a file's texts. In ``doc.cats``, a text with labels gets 0 for all other labels, as in spaCy.

    is_exclusive (bool): Whether each text has at most one label. If so, a text without labels is not annotated.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}  # labels in order of occurrence
        self.is_exclusive = True

    def add(self, labels: Labels) -> None:
        self.names |= dict.fromkeys(labels or ())
        has = [label for label, share in labels.items() if share] if isinstance(labels, dict) else labels or ()
        self.is_exclusive &= len({*has}) < 2

    def cats(self, labels: Any, place: str, report: Report) -> dict[str, float]:
        """Make ``doc.cats`` from the labels of a text. A table stays unchanged."""
        if isinstance(labels, dict) or not self.names:
            return labels or {}
        if labels is None or (self.is_exclusive and not labels):
            report.unlabelled.append(place)
            return {}
        return {name: float(name in labels) for name in self.names}


def is_label(value: Any) -> bool:
    return (isinstance(value, str) and bool(value) and is_unicode(value)) or (type(value) is int and abs(value) < 2**63)


def is_labels(value: Any) -> bool:
    """Whether a value is a label or a list of labels rather than spans."""
    is_list = isinstance(value, list) and bool(value) and all(map(is_label, value))
    return is_label(value) or (is_list and not holds_annotation(value))


def parse_labels(value: Any, place: str, names: Collection[str] = ()) -> Labels:
    """Parse the labels of a text: a string, a list of strings, or a table; None if the text has no labels.

    names (Collection[str]): Names of labels that are numbers, from 0 on.
    RAISES (ValueError): CRF880 for any other value.
    """
    if value in (None, "", {}):
        return None
    if isinstance(value, dict):
        if not all(
            is_label(label) and not isinstance(share, str) and share in (0, 1) for label, share in value.items()
        ):
            raise ValueError(Errors.CRF880.format(place=place, value=shown(value)))
        return {str(label): float(share) for label, share in value.items()}
    labels = value if isinstance(value, list) else [value]
    if not all(map(is_label, labels)):
        raise ValueError(Errors.CRF880.format(place=place, value=shown(value)))
    return [named(label, names, place) if type(label) is int and names else str(label) for label in labels]


def named(number: int, names: Collection[str], place: str) -> str:
    """Look up the name of a label or tag given by number. RAISES (ValueError): CRF870 if the number has no name."""
    if not 0 <= number < len(names):
        raise ValueError(Errors.CRF870.format(place=place, tag=shown(number), n=len(names)))
    return list(names)[number]
