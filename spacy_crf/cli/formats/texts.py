"""Reads JSON of texts with spans or labels, in the formats of Prodigy, doccano, spaCy and similar tools; and XML
whose elements are the parts of texts, that of parserator (usaddress, probablepeople) and of AnyStyle. Each child of its root is a
text, and its children are named by labels: ``<Name><GivenName>Ann</GivenName> <Surname>Lee</Surname></Name>``."""

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING

from spacy.language import Language
from spacy.tokens import Doc

from ...blanks import split_words
from ...errors import Errors, known_names, shown
from ...pipeline.corpora import set_origin
from .annotation import (
    GivenSpan,
    Labels,
    Span,
    TextLabels,
    holds_annotation,
    is_labels,
    make_doc,
    parse_labels,
    read_spans,
)
from .offsets import HabitSearch, index_of
from .source import Fields, Item, ReadSettings, Report, Source, unreadable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

# The key in doc.spans, which the components' incorrect_spans_key names
INCORRECT = "incorrect_spans"
SPAN_KEYS = ("spans", "entities", "label", "labels", "annotation")
# Keys with labels of whole texts; some of them hold spans in other files
LABEL_KEYS = ("cats", "accept", "label", "labels", "annotation")
EXTENSIONS = "extensions"  # values of the extensions of a text, by their names
_EMPTY = (None, "", [], {})
_PRODIGY = {"answer", "_input_hash", "_view_id"}
# Annotation that tools write beside spans, which a Doc would lose
_OTHER_ANNOTATION = {"accept", "annotations", "ents", "ner", "relations", "tags"}
# spaCy 2's, where they are lists
_OF_TOKENS = {"deps", "heads", "lemmas", "morphs", "pos"}


def sniff_prodigy(source: Source) -> bool:
    """Whether items have the keys of Prodigy."""
    return any({"spans", "answer", "_input_hash"} & item.keys() for item in _objects(source))


def sniff_doccano(source: Source) -> bool:
    """Whether items have the keys of doccano."""
    items = _objects(source)
    entities = [item["entities"] for item in items if isinstance(item.get("entities"), list)]
    spans = chain.from_iterable(entities)
    has_offsets = any(isinstance(span, dict) and "start_offset" in span for span in spans)
    return has_offsets or any(
        isinstance(item.get("label"), list) or isinstance(item.get("labels"), list) for item in items
    )


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read objects with a "text", spans under any of ``SPAN_KEYS``, and labels under one of ``LABEL_KEYS``; or pairs of spaCy 2,
    of a text and ``{"entities": …, "cats": …}``. The "extensions" of a text are values of extensions of the Doc. The file is read
    twice, since any item may add a label, or show whether a key contains labels or spans."""
    label_keys, all_labels, some_has_spans = _look_through(source, settings, report)
    for place, item in _items(source, settings):
        text = item["text"]
        answer = item.get("answer")
        keys = [key for key in LABEL_KEYS if key in label_keys and key in item]
        filled = [key for key in keys if item[key] not in _EMPTY]
        if len(filled) > 1:
            raise ValueError(Errors.CRF714.format(place=place, keys=" and ".join(map(repr, filled)), last=filled[-1]))
        labels = _labels_under((filled or keys)[0], item, place, settings) if keys else None
        unread = {key: value for key, value in item.items() if key not in label_keys}
        has_spans = bool(unread.keys() & {*SPAN_KEYS}) and (some_has_spans or not label_keys)
        report.has_spans |= has_spans
        index = index_of(text, report.offsets)
        spans, is_complete = read_spans(_spans_of(unread, place), text, place, report, index)
        # An answer to Prodigy's question whether these spans are right leaves the rest of the text unannotated. Old versions do
        # not write "_is_binary", but the view "ner" asks only such questions
        is_binary = has_spans and item.get("_is_binary", item.get("_view_id") == "ner") is True
        is_answered = answer == "reject" and (is_binary or (bool(labels) and _answers_label(item)))
        if answer not in (None, "accept") and not is_answered:
            report.rejected.append(f"{place} ({answer!r})")
            continue
        # Argilla and DataTurks write so that a text is not annotated yet
        is_unannotated = "annotation" in item and item["annotation"] is None
        if is_unannotated and not label_keys:
            report.unlabelled.append(place)
        known_spans = None if is_unannotated or (label_keys and not has_spans) else spans
        doc = make_doc(nlp, text, known_spans, is_complete=is_complete, place=place, settings=settings, report=report)
        doc.cats = all_labels.cats(labels, place, report)
        set_origin(doc, place, _id_of(item))
        extensions = _extensions_of(item, place)
        report.extended += bool(extensions)
        for name, value in extensions.items():
            if not Doc.has_extension(name):
                Doc.set_extension(name, default=None)
            doc._.set(name, value)
        if is_binary and settings.spans_key:
            reason = "an answer about single spans leaves the rest of the text open, which groups of spans can't: convert it to"
            raise unreadable(place, f"{reason} doc.ents, without --spans-key")
        if is_binary:
            ents = list(doc.ents)
            if answer == "reject":
                doc.spans[INCORRECT] = ents
                ents = []
            # All other tokens may belong to any entity
            doc.set_ents(ents, default="missing")
            report.binary.append(place)
        yield doc


def _id_of(item: Fields) -> object:
    """The id of a text: under "id", under "id" in Prodigy's "meta", or else the hash of Prodigy's task; None without an id."""
    meta = item.get("meta")
    id_in_meta = meta.get("id") if isinstance(meta, dict) else None
    candidates = (item.get("id"), id_in_meta, item.get("_task_hash"))
    return next((id_ for id_ in candidates if id_ is not None), None)


def _extensions_of(item: Fields, place: str) -> Fields:
    """The values of extensions of a text. RAISES (ValueError): CRF701 for anything but values by the name of an extension."""
    extensions = item.get(EXTENSIONS) or {}
    if not isinstance(extensions, dict) or not all(map(str.isidentifier, extensions)):
        raise unreadable(
            place, f'"{EXTENSIONS}" is {shown(extensions)}, not an object with values by the name of an extension'
        )
    return extensions


def _look_through(source: Source, settings: ReadSettings, report: Report) -> tuple[set[str], TextLabels, bool]:
    """Read a file before its Docs are made, to find out how its annotation is written. How spans count characters goes into the
    report.

    RETURNS (Tuple[Set[str], TextLabels, bool]): The keys of labels of texts, all labels, and whether any text has spans.
    RAISES (ValueError): CRF868 if no item has the key ``label_column``, CRF880 for wrong labels.
    """
    label_keys = set()
    labels = TextLabels()
    has_spans = False
    has_label = False  # whether an item has the key "label", as `_items` calls the ``label_column``
    fields: Fields = {}
    habits = HabitSearch(settings.offsets)
    for place, fields in _items(source, settings):
        # Most texts are ASCII without CR LF, and show nothing of how offsets are counted
        for key in SPAN_KEYS if habits.needs(fields["text"]) else ():
            spans = [GivenSpan.of(span) for span in _regions(fields.get(key))]
            habits.see(fields["text"], ((span.start, span.end, span.words) for span in spans))
        for key in LABEL_KEYS:
            if key not in fields or not _holds_labels(key, fields):
                continue
            label_keys.add(key)
            if fields.get("answer") in (None, "accept") or _answers_label(fields):
                labels.add(_labels_under(key, fields, place, settings))
        has_spans = has_spans or any(fields.get(key) not in _EMPTY and not is_labels(fields[key]) for key in SPAN_KEYS)
        has_label |= "label" in fields
    report.offsets = habits.found()
    if settings.label_column is not None and fields and not has_label:
        known = known_names(fields, settings.label_column)  # those of the last item
        raise ValueError(Errors.CRF868.format(option="label-column", value=settings.label_column, known=known))
    return label_keys, labels, has_spans


def _items(source: Source, settings: ReadSettings) -> Iterator[Item]:
    """Read the objects with a text, without ignored keys. RAISES (ValueError): CRF701 for any other value."""
    for place, value in _values(source):
        item = _as_object(value, settings)
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            key = settings.word_column or "text"
            raise unreadable(place, f'it has no "{key}": {shown(value)}')
        # An ignored "text" would leave nothing to read
        for key in {*settings.ignore} - {"text"}:
            item.pop(key, None)
        about_spans = bool(item.get("spans")) or str(item.get("_view_id")).startswith(("ner", "span"))
        if about_spans and isinstance(item.get("label"), str) and _PRODIGY & item.keys():
            del item["label"]  # the label that Prodigy asked for
        yield Item(place, item)


def _values(source: Source) -> Iterator[Item]:
    """The values of a file. That of NER Annotator is one object, whose pairs are its values."""
    for place, value in source.items():
        pairs = value.get("annotations") if isinstance(value, dict) and "classes" in value else None
        if not isinstance(pairs, list):
            yield Item(place, value)
            continue
        for number, pair in enumerate(pairs, start=1):
            # None stands for a line without text
            if pair is not None:
                yield Item(f"{place}, pair {number}", pair)


def _objects(source: Source) -> list[Fields]:
    items = [_as_object(value, ReadSettings()) for value in source.head_items()] if source.is_json() else []
    return [item for item in items if isinstance(item, dict) and "text" in item]


def _as_object(value: object, settings: ReadSettings) -> object:
    """Convert an item, which may be a pair of a text with its annotation or its spans, to an object. Keys that the settings name
    become "text" and "label"."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict | list):
        annotation = value[1] if isinstance(value[1], dict) else {"entities": value[1]}
        return {**annotation, "text": value[0]}
    # DataTurks
    if isinstance(value, dict) and "text" not in value and {"content", "annotation"} <= value.keys():
        value = {"text" if key == "content" else key: part for key, part in value.items()}
    if not isinstance(value, dict) or (settings.word_column is None and settings.label_column is None):
        return value
    renamed = {settings.word_column: "text", settings.label_column: "label"}
    others = {key: part for key, part in value.items() if key not in renamed}
    return others | {renamed[key]: part for key, part in value.items() if key in renamed}


# ---------------------------------------------------------------------------------------------------------- labels


def _holds_labels(key: str, item: Fields) -> bool:
    if key == "accept":
        return isinstance(item.get(key), list) and ("options" in item or item.get("_view_id") == "choice")
    return key in item if key == "cats" else is_labels(item.get(key))


def _answers_label(fields: Fields) -> bool:
    """Whether an item is an answer to Prodigy's question whether a text has one label."""
    is_asked = isinstance(fields.get("label"), str) and not fields.get("accept")
    return is_asked and fields.get("answer") in ("accept", "reject")


def _labels_under(key: str, fields: Fields, place: str, settings: ReadSettings) -> Labels:
    """Read the labels under a key. RAISES (ValueError): CRF880 if the value can't be labels."""
    labels = parse_labels(fields[key], place, settings.tag_names)
    if key == "accept" and isinstance(fields.get("options"), list):
        known = [option.get("id") if isinstance(option, dict) else option for option in fields["options"]]
        offered = parse_labels(known, place, settings.tag_names) or []
        return {label: float(label in (labels or ())) for label in [*offered, *(labels or ())]}
    if _answers_label(fields):
        # Other labels stay unannotated
        return dict.fromkeys(labels or (), float(fields["answer"] == "accept"))
    return labels


# ----------------------------------------------------------------------------------------------------------- spans


def _spans_of(fields: Fields, place: str) -> list[object]:
    """Get the spans of an item, as written. RAISES (ValueError): CRF707, CRF714 or CRF701 if other keys have annotation too."""
    keys = [key for key in SPAN_KEYS if fields.get(key) not in (None, [])]
    for key, value in fields.items():
        if key in SPAN_KEYS or not value:
            continue
        # spaCy 2 writes lists; the same keys hold other things elsewhere
        is_of_tokens = key in _OF_TOKENS and isinstance(value, list)
        if key in _OTHER_ANNOTATION or is_of_tokens or holds_annotation(value):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known=", ".join(SPAN_KEYS)))
    if len(keys) > 1:
        raise ValueError(Errors.CRF714.format(place=place, keys=" and ".join(map(repr, keys)), last=keys[-1]))
    spans = fields[keys[0]] if keys else []
    if not isinstance(spans, list):
        raise unreadable(place, f'"{keys[0]}" is not a list of spans')
    return _regions(spans)


def _regions(spans: object) -> list[object]:
    """Take apart spans with several labels, and the regions of DataTurks, which have points with inclusive ends; other spans stay
    as they are."""
    found: list[object] = []
    for span in spans if isinstance(spans, list) else ():
        fields = span if isinstance(span, dict) else {}
        points = fields.get("points")
        labels = fields.get("label") if points else fields.get("labels")
        if not isinstance(labels, list) or not labels:
            found.append(span)
            continue
        if not points:
            found += [{**fields, "label": label} for label in labels]
            continue
        if not isinstance(points, list):
            found.append(span)
            continue
        for point in points:
            end = point.get("end") if isinstance(point, dict) else None
            if type(end) is int:
                found += [{**point, "end": end + 1, "label": label} for label in labels]
            else:
                found.append(span)
    return found


_OUTSIDE = "Null"  # parserator's label of words without label


def read_xml(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read a Doc for each text. Parts are joined by one space, and neighbouring ones with the same label are one span.

    RAISES (ValueError): CRF701 with the place, if the file is not XML, or a text is empty, or has parts within parts.
    """
    from xml.etree import ElementTree  # here, since only files in XML need it

    try:
        root = ElementTree.fromstring(source.text())
    except ElementTree.ParseError as error:
        raise unreadable(source.path, f"not XML: {error}") from error
    report.has_spans = True
    for n, element in enumerate(root, 1):
        place = f"{source.path}, text {n} <{element.tag}>"
        text, spans = _parts_of(element)
        if not text or any(len(part) for part in element):
            raise unreadable(
                place, "a text consists of words, and of elements whose names are labels and which hold words only"
            )
        doc = make_doc(nlp, text, spans, place=place, settings=settings, report=report)
        set_origin(doc, place)
        yield doc


def _parts_of(element: "Element") -> tuple[str, list[Span]]:
    """The text of an element, whose parts are joined by spaces, and the spans of its parts."""
    pieces = [("", element.text)]  # label and words
    for part in element:
        pieces += [("" if part.tag == _OUTSIDE else part.tag, part.text), ("", part.tail)]
    text = ""
    spans: list[Span] = []
    for label, content in pieces:
        words = " ".join(split_words(content or ""))
        if not words:
            continue
        start = len(text) + bool(text)  # behind a space
        text = f"{text} {words}" if text else words
        if label and spans and spans[-1].label == label and spans[-1].end == start - 1:
            start = spans.pop().start  # continue the span in front
        if label:
            spans.append(Span(start, len(text), label))
    return text, spans
