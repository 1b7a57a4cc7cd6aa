"""Makes Docs from the annotation of tools: spans of characters, and labels of whole texts."""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from itertools import chain, product
from typing import Any, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from .offsets import HABITS, habits_that_matter, index_of
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
    """The parts of a span as a file has them, of any type; None for a part that the file lacks."""

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
    """Sort the keys of an object by the part of a span that they give; the key that counts if it has a value is first."""

    def named(names: tuple[str, ...]) -> list[str]:
        return [key for name, key in product(names, keys) if _plain(key) == name]

    return _SpanKeys(named(_START), named(_END), named(_LABEL), named(("length",)), named(("text",)))


def _plain(key: object) -> str:
    """A key in lower case and without "_": "start_offset", "startOffset" and "StartOffset" are one key."""
    return str(key).replace("_", "").lower()


def _first(fields: Fields, keys: Iterable[str]) -> Any:
    """The value under the first key whose value is not None; None without such a key."""
    return next((fields[key] for key in keys if fields[key] is not None), None)


def parse_span(span: object, text: str, place: str, index: Optional[dict[int, int]] = None) -> Span:
    """Parse a span of a file, in any form that `GivenSpan.of` takes apart.

    text (str): The text that contains the span.
    place (str): Place of the span in the file, for messages.
    index (Optional[dict[int, int]]): The character of the text at each offset of the file; None if the offsets are characters.
    RAISES (ValueError): CRF701 if the value is not a span of the text; CRF871 if the span's words differ from the text.
    """
    start, end, label, words = GivenSpan.of(span)
    are_offsets = type(start) is int and type(end) is int
    # The characters of the text
    first = start
    behind = end
    if are_offsets and index is not None:
        # An offset within a character of the text is not in the index, and -1 is never within the text
        first = index.get(start, -1)
        behind = index.get(end, -1)
    is_within = are_offsets and 0 <= first < behind <= len(text)
    if not is_within or not isinstance(label, str) or not label or not is_unicode(label):
        needs = f'a span needs "start" < "end" within the {len(text)} characters of the text, and a "label"'
        advice = _advice(text, end) if index is None else ""
        raise unreadable(place, f"{needs} – or is [start, end, label] – not {shown(span)}{advice}")
    parsed = Span(first, behind, label)
    # Without aggregation, Hugging Face writes a span for each subword
    if isinstance(span, dict) and span.get("entity") == label and _SUBWORD.fullmatch(label):
        advice = 'give `aggregation_strategy="simple"` to the pipeline of Hugging Face that wrote it'
        raise unreadable(place, f"{parsed.named_in(text)} is a part of a word, not an entity: {advice}")
    # Tools trim or join white space, so that only the words are compared
    in_text = text[first:behind]
    if isinstance(words, str) and words.split() != in_text.split():
        advice = _advice(text, end) if index is None else ""
        raise ValueError(Errors.CRF871.format(place=place, words=shown(words), found=shown(in_text), advice=advice))
    return parsed


def _advice(text: str, end: object) -> str:
    """The likely causes of wrong offsets, with the option for each, to append to a message.

    end (object): The end of the span as the file has it.
    """
    before = text[:end] if type(end) is int and end > 0 else ""
    return "".join(
        f" – or does the file count {HABITS[name]}? Then add --offsets {name}" for name in habits_that_matter(before)
    )


def _other_offsets(doc: Doc, span: Span) -> str:
    """The option --offsets under which a span would align with the tokens, for messages; empty if there is none."""
    # Other habits would count the characters in front of the span alike
    for habit in habits_that_matter(doc.text[: span.end]):
        index = index_of(doc.text, [habit]) or {}
        start = index.get(span.start)
        end = index.get(span.end)
        if start is not None and end is not None and doc.char_span(start, end) is not None:
            return f" – {doc.text[start:end]!r} with --offsets {habit}"
    return ""


def read_spans(
    values: Iterable[object], text: str, place: str, report: Report, index: Optional[dict[int, int]] = None
) -> tuple[list[Span], bool]:
    """Parse the spans of a text. Broken spans are left out, and the report gets messages about them.

    index (Optional[dict[int, int]]): As of `parse_span`.
    RETURNS (Tuple[List[Span], bool]): The spans, and whether no span is broken.
    """
    spans: list[Span] = []
    messages = []
    for value in values:
        try:
            spans.append(parse_span(value, text, place, index))
        except ValueError as error:
            messages.append(str(error))
    report.broken += messages
    return spans, not messages


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
            # A span as a list; tools write predictions with a score behind the three parts
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
    """Tokenize a text, and set its spans as `annotated` does; without `spans`, the Doc stays unannotated."""
    doc = tokenized(text, nlp, place)
    if spans is None:
        return doc
    return set_entities(
        doc, text, spans, missing=missing, is_complete=is_complete, place=place, settings=settings, report=report
    )


def set_entities(
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
    """Set the entities of a Doc, which are spans of its text.

    Tokens become missing annotation if they belong to a span that does not align with tokens, or to a span of `missing`; without
    `is_complete`, all tokens without an entity do. With `spans_key` in the settings, the spans are in ``doc.spans`` instead.

    is_complete (bool): Whether all spans of the text could be read. Groups of ``doc.spans`` are complete, or are not set.
    place (str): Place of the text in the file, for the report.
    RETURNS (Doc): The same Doc.
    """
    trimmed, as_written = _trim(spans, text, place, report)
    if settings.spans_key:
        if is_complete:
            _set_group(doc, trimmed, settings.spans_key, text, place, report)
        return doc
    longest, refused = _without_overlaps(trimmed, text, place, settings, report)
    entities = []
    without_entity = [*missing, *refused]
    for span in longest:
        entity = doc.char_span(span.start, span.end, label=span.label)
        if entity is not None:
            entities.append(entity)
            continue
        advice = "" if report.offsets else _other_offsets(doc, as_written.get(span, span))
        report.misaligned.append(f"{place}, {span.named_in(text)}{advice}")
        without_entity.append(span)
    unknown: set[int] = set()  # tokens
    for span in without_entity:
        # None for a space between tokens
        tokens = doc.char_span(span.start, span.end, alignment_mode="expand") or ()
        unknown.update(token.i for token in tokens)
    # If an entity covers a token of a misaligned span, the entity takes precedence
    unknown -= {token.i for token in chain.from_iterable(entities)}
    missing_tokens = [doc[i : i + 1] for i in sorted(unknown)]
    doc.set_ents(entities, missing=missing_tokens, default="outside" if is_complete else "missing")
    return doc


def _trim(spans: Iterable[Span], text: str, place: str, report: Report) -> tuple[list[Span], dict[Span, Span]]:
    """Leave out white space at the ends of spans, and spans of white space, and report both: no component predicts labels
    of blank tokens.

    RETURNS (tuple[list[Span], dict[Span, Span]]): The trimmed spans; and by trimmed span, the longer span as it is written.
    """
    trimmed = []
    as_written: dict[Span, Span] = {}
    for span in spans:
        words = text[span.start : span.end]
        start = span.start + len(words) - len(words.lstrip())
        length = len(words.strip())
        if not length:
            report.misaligned.append(f"{place}, {span.named_in(text)}")
            continue
        trimmed.append(Span(start, start + length, span.label))
        if length < len(words):
            report.trimmed.append(f"{place}, {span.named_in(text)}")
            as_written[trimmed[-1]] = span
    return trimmed, as_written


def _set_group(doc: Doc, spans: list[Span], key: str, text: str, place: str, report: Report) -> None:
    """Set the group ``doc.spans[key]`` to the spans that align with tokens, each once."""
    group = []
    for span in sorted({*spans}):
        of_tokens = doc.char_span(span.start, span.end, label=span.label)
        if of_tokens is None:
            report.unaligned.append(f"{place}, {span.named_in(text)}")
        else:
            group.append(of_tokens)
    doc.spans[key] = group


def _without_overlaps(
    spans: list[Span], text: str, place: str, settings: ReadSettings, report: Report
) -> tuple[list[Span], list[Span]]:
    """Keep only the longest of overlapping spans, and report the others.

    RETURNS (tuple[list[Span], list[Span]]): The longest spans, sorted; and with ``overlaps = "error"`` the other spans.
    """
    longest: list[Span] = []
    refused: list[Span] = []
    # 1 for each character of a kept span: texts with thousands of spans are compared in linear time
    is_covered = bytearray(len(text))
    for span in sorted(spans, key=lambda span: (span.start - span.end, span.start)):
        # Longer spans come first, so that a longer or equal span covers a covered character
        character = is_covered.find(1, span.start, span.end)
        if character < 0:
            longest.append(span)
            is_covered[span.start : span.end] = b"\1" * (span.end - span.start)
            continue
        other = next(other for other in longest if other.start <= character < other.end)
        if settings.overlaps == "error":
            first, second = sorted((other, span))
            report.broken.append(
                Errors.CRF702.format(place=place, first=first.named_in(text), second=second.named_in(text))
            )
            refused.append(span)
        else:
            report.overlapping.append(f"{place}, {span.named_in(text)} within {other.named_in(text)}")
    return sorted(longest), refused


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
        # A table has 0 for labels that the text does not have
        if isinstance(labels, dict):
            labels = [label for label, share in labels.items() if share]
        self.is_exclusive &= len({*(labels or ())}) < 2

    def cats(self, labels: Labels, place: str, report: Report) -> dict[str, float]:
        """Make ``doc.cats`` from the labels of a text: 1 for its labels, 0 for all others. A table is ``doc.cats`` already. The
        report gets the place of a text without labels."""
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
