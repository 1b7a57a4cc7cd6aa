"""Makes Docs from the annotation of tools: spans of characters, and labels of whole texts."""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import chain, product
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from .offsets import HABITS, index_of, suspected
from .source import Fields, ReadSettings, Report, unreadable

_HALF = re.compile("[\ud800-\udfff]")
# The keys of a span, in lower case and without "_"; of several keys of a kind the first counts
_START = ("start", "startoffset", "startchar", "startindex", "begin", "beginoffset", "offset")
_END = ("end", "endoffset", "endchar", "endindex")
_LABEL = ("label", "entitygroup", "entity", "entitytype", "type", "tag", "category")
# What Hugging Face's pipeline writes under "entity" for each part of a word
_SUBWORD = re.compile("[BI]-.+")


class Span(NamedTuple):
    """Characters ``start`` up to, not including, ``end``."""

    start: int
    end: int
    label: str

    def named_in(self, text: str) -> str:
        """The span with its words and its label, for messages."""
        return f"{self.start}-{self.end} '{text[self.start : self.end]}' ({self.label})"


class GivenSpan(NamedTuple):
    """A span as it is written: anything, with None for what is not there."""

    start: Any
    end: Any
    label: object
    words: object

    @classmethod
    def of(cls, span: object) -> "GivenSpan":
        """Take a span apart: ``[start, end, label]``, ``[label, start, end]``, or an object with these under any of the keys
        that tools use."""
        if isinstance(span, list) and len(span) == 3:
            # Some tools write the label first
            is_label_first = [type(part) for part in span] == [str, int, int]
            start, end, label = (*span[1:], span[0]) if is_label_first else span
            return cls(start, end, label, None)
        if not isinstance(span, dict):
            return cls(None, None, None, None)
        keys = _span_keys(tuple(span))
        start = _first(span, keys.start)
        end = _first(span, keys.end)
        if end is None:
            length = _first(span, keys.length)
            # Azure gives a length in place of an end
            # Azure
            end = start + length if type(start) is int and type(length) is int else None
        return cls(start, end, _first(span, keys.label), _first(span, keys.words))


class _SpanKeys(NamedTuple):
    """The keys of an object that can give each part of a span."""

    start: list[str]
    end: list[str]
    label: list[str]
    length: list[str]
    words: list[str]


@lru_cache(maxsize=1000)
def _span_keys(keys: tuple[str, ...]) -> _SpanKeys:
    """Find the keys of the parts of a span, the first to count first."""

    def named(names: tuple[str, ...]) -> list[str]:
        return [key for name, key in product(names, keys) if _plain(key) == name]

    return _SpanKeys(named(_START), named(_END), named(_LABEL), named(("length",)), named(("text",)))


def _plain(key: object) -> str:
    """A key in lower case and without "_": "start_offset", "startOffset" and "StartOffset" are one key."""
    return str(key).replace("_", "").lower()


def _first(fields: Fields, keys: Iterable[str]) -> Any:
    """The value under the first of some keys that has one, or None."""
    for key in keys:
        if fields[key] is not None:
            return fields[key]
    return None


def parse_span(span: object, text: str, place: str, index: Optional[dict[int, int]] = None) -> Span:
    """Parse a span, as `GivenSpan.of` takes it apart.

    text (str): The text that contains the span. place (str): Place of the span in the file, for messages.
    index (Optional[dict[int, int]]): The characters at the file's offsets, if it counts otherwise than Python.
    RAISES (ValueError): CRF701 if the value is not a span of the text; CRF871 if the span's words differ from the text.
    """
    start, end, label, words = GivenSpan.of(span)
    are_offsets = type(start) is int and type(end) is int
    at = start, end
    if are_offsets and index is not None:
        # An offset within a character of the text is not in the index, and -1 is never within the text
        at = index.get(start, -1), index.get(end, -1)
    is_within = are_offsets and 0 <= at[0] < at[1] <= len(text)
    if not is_within or not isinstance(label, str) or not label or not is_unicode(label):
        needs = f'a span needs "start" < "end" within the {len(text)} characters of the text, and a "label"'
        advice = _advice(text, end) if index is None else ""
        raise unreadable(place, f"{needs} – or is [start, end, label] – not {shown(span)}{advice}")
    found = Span(*at, label)
    # Without aggregation, Hugging Face writes a span for each subword
    if isinstance(span, dict) and span.get("entity") == label and _SUBWORD.fullmatch(label):
        advice = 'give `aggregation_strategy="simple"` to the pipeline of Hugging Face that wrote it'
        raise unreadable(place, f"{found.named_in(text)} is a part of a word, not an entity: {advice}")
    # Tools trim or join white space, so that only the words are compared
    if isinstance(words, str) and words.split() != text[found.start : found.end].split():
        advice = _advice(text, end) if index is None else ""
        raise ValueError(
            Errors.CRF871.format(
                place=place, words=shown(words), found=shown(text[found.start : found.end]), advice=advice
            )
        )
    return found


def _advice(text: str, end: object) -> str:
    """The likely cause of wrong offsets of a span with this end, to append to a message."""
    before = text[:end] if type(end) is int and end > 0 else ""
    return "".join(f" – or does the file count {HABITS[name]}? Then add --offsets {name}" for name in suspected(before))


def _other_offsets(doc: Doc, span: Span) -> str:
    """The option under which a span would align with the tokens, for messages; empty if there is none."""
    # Ask only for habits under which the offsets would differ here
    for habit in suspected(doc.text[: span.end]):
        index = index_of(doc.text, [habit]) or {}
        start = index.get(span.start)
        end = index.get(span.end)
        if start is not None and end is not None and doc.char_span(start, end) is not None:
            return f" – {doc.text[start:end]!r} with --offsets {habit}"
    return ""


def read_spans(
    values: Iterable[object], text: str, place: str, report: Report, index: Optional[dict[int, int]] = None
) -> tuple[list[Span], bool]:
    """Parse the spans of a text. The report gets what is wrong with broken ones.

    index (Optional[dict[int, int]]): As of `parse_span`.
    RETURNS (Tuple[List[Span], bool]): The spans, and whether none of them is broken.
    """
    found: list[Span] = []
    is_complete = True
    for value in values:
        try:
            found.append(parse_span(value, text, place, index))
        except ValueError as error:
            report.broken.append(str(error))
            is_complete = False
    return found, is_complete


def is_unicode(text: str) -> bool:
    """Whether a text is valid Unicode: JSON may hold halves of characters."""
    return _HALF.search(text) is None


def holds_annotation(value: object) -> bool:
    """Whether a value of JSON contains spans with labels, or tags of tokens, at any depth."""
    # Without recursion: JSON may be nested deeper than Python recurses
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            keys = {*map(_plain, value)}
            if keys & {*_START, "points"} and keys & {*_LABEL, "labels"}:
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            # Tools write predictions with a score behind them
            is_span = [type(part) for part in value[:3]] in ([int, int, str], [str, int, int]) and len(value) < 5
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
    is_complete: bool = True,
    place: str,
    settings: ReadSettings,
    report: Report,
) -> Doc:
    """Make a Doc whose entities are spans of its text, as `annotated` does."""
    doc = tokenized(text, nlp, place)
    if spans is None:
        return doc
    return annotated(
        doc, text, spans, missing=missing, is_complete=is_complete, place=place, settings=settings, report=report
    )


def annotated(
    doc: Doc,
    text: str,
    spans: Iterable[Span],
    *,
    missing: Iterable[Span] = (),
    is_complete: bool = True,
    place: str,
    settings: ReadSettings,
    report: Report,
) -> Doc:
    """Set the entities of a Doc, which are spans of its text. The tokens of a span that does not align with them, and those of
    ``missing``, become missing annotation; if spans are broken (not ``is_complete``), all tokens without an entity do. With
    `spans_key` in the settings, the spans are in ``doc.spans`` instead, and a Doc with broken spans has none."""
    entities = []
    cut = []
    for span in missing:
        cut.extend(doc.char_span(span.start, span.end, alignment_mode="expand") or ())
    trimmed = []
    as_written: dict[Span, Span] = {}  # the trimmed ones
    # A label on a space would be on a token of its own, which no component predicts
    for span in spans:
        words = text[span.start : span.end]
        start = span.start + len(words) - len(words.lstrip())
        length = len(words.strip())
        if length:
            trimmed.append(Span(start, start + length, span.label))
        if length < len(words):
            places = report.trimmed if length else report.misaligned
            places.append(f"{place}, {span.named_in(text)}")
        if 0 < length < len(words):
            as_written[trimmed[-1]] = span
    # A group of spans has no place for missing annotation
    if settings.spans_key and not is_complete:
        return doc
    if settings.spans_key:
        found = [(span, doc.char_span(span.start, span.end, label=span.label)) for span in sorted({*trimmed})]
        report.unaligned += [f"{place}, {span.named_in(text)}" for span, of_tokens in found if of_tokens is None]
        doc.spans[settings.spans_key] = [of_tokens for _, of_tokens in found if of_tokens is not None]
        return doc
    kept, refused = _without_overlaps(trimmed, text, place, settings, report)
    for span in refused:
        cut.extend(doc.char_span(span.start, span.end, alignment_mode="expand") or ())
    for span in kept:
        entity = doc.char_span(span.start, span.end, label=span.label)
        if entity is None:
            advice = "" if report.offsets else _other_offsets(doc, as_written.get(span, span))
            report.misaligned.append(f"{place}, {span.named_in(text)}{advice}")
            # char_span returns None for a space between tokens
            cut.extend(doc.char_span(span.start, span.end, alignment_mode="expand") or ())
        else:
            entities.append(entity)
    # If an entity covers a token of a misaligned span, the entity takes precedence
    taken = {token.i for token in chain.from_iterable(entities)}
    lost = {token.i for token in cut} - taken
    unknown = [doc[i : i + 1] for i in sorted(lost)]
    doc.set_ents(entities, missing=unknown, default="outside" if is_complete else "missing")
    return doc


def _without_overlaps(
    spans: list[Span], text: str, place: str, settings: ReadSettings, report: Report
) -> tuple[list[Span], list[Span]]:
    """Sort spans, and keep only the longest of overlapping ones. RETURNS (Tuple): These, and spans that the settings refuse."""
    kept: list[Span] = []
    refused: list[Span] = []
    # One byte for each character: texts with thousands of spans are compared in linear time
    taken = bytearray(len(text))
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        # Longer spans come first, so what is taken belongs to a longer or equal span
        at = taken.find(1, span.start, span.end)
        if at < 0:
            kept.append(span)
            taken[span.start : span.end] = b"\1" * (span.end - span.start)
            continue
        other = next(other for other in kept if other.start <= at < other.end)
        if settings.overlaps == "error":
            first, second = (each.named_in(text) for each in sorted((other, span)))
            report.broken.append(Errors.CRF702.format(place=place, first=first, second=second))
            refused.append(span)
            continue
        report.overlapping.append(f"{place}, {span.named_in(text)} within {other.named_in(text)}")
    return sorted(kept), refused


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
        """Collect the labels of a text."""
        self.names |= dict.fromkeys(labels or ())
        # A table may list labels that the text does not have, with 0
        has = [label for label, share in labels.items() if share] if isinstance(labels, dict) else labels or ()
        self.is_exclusive &= len({*has}) < 2

    def cats(self, labels: Labels, place: str, report: Report) -> dict[str, float]:
        """Make ``doc.cats`` from the labels of a text. A table stays unchanged."""
        if isinstance(labels, dict):
            return labels
        if not self.names:
            return {}
        if labels is None or (self.is_exclusive and not labels):
            report.unlabelled.append(place)
            return {}
        return {name: float(name in labels) for name in self.names}


def is_label(value: object) -> bool:
    """Whether a value of JSON can be a label: a string, or an integer that fits into a Doc."""
    return (isinstance(value, str) and bool(value) and is_unicode(value)) or (type(value) is int and abs(value) < 2**63)


def is_labels(value: object) -> bool:
    """Whether a value is a label or a list of labels rather than spans."""
    is_list = isinstance(value, list) and bool(value) and all(map(is_label, value))
    return is_label(value) or (is_list and not holds_annotation(value))


def parse_labels(value: object, place: str, names: Collection[str] = ()) -> Labels:
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
