"""Texts with their spans, one in each item: Prodigy's, doccano's and spaCy's."""

from collections.abc import Collection, Iterator
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from .settings import Report, Settings
from .source import Item, Source
from .spans import holds_annotation, make_doc, parse_span, tokenized

INCORRECT = "incorrect_spans"  # the key in doc.spans, which the components' incorrect_spans_key names
SPAN_KEYS = ("spans", "entities", "label", "labels")
# What tools write beside spans, and what this would lose
_OTHER_ANNOTATION = {"accept", "annotations", "ents", "ner", "relations", "tags"}
_OF_TOKENS = {"deps", "heads", "lemmas", "morphs", "pos"}  # spaCy 2's, where they are lists


def sniff_prodigy(source: Source) -> bool:
    return any({"spans", "answer", "_input_hash"} & item.keys() for item in _objects(source))


def sniff_doccano(source: Source) -> bool:
    items = _objects(source)
    spans = [span for item in items if isinstance(item.get("entities"), list) for span in item["entities"]]
    has_offsets = any(isinstance(span, dict) and "start_offset" in span for span in spans)
    return has_offsets or any({"label", "labels"} & item.keys() for item in items)


def sniff(source: Source) -> bool:
    return source.is_json()


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    """An object with a "text" and its spans, under any of the keys that these tools use, and the labels of the text as "cats"; or
    spaCy 2's pair of the text and ``{"entities": …, "cats": …}``."""
    for place, value in source.items():
        item = _as_object(value)
        if not isinstance(item, dict) or not isinstance(item.get("text"), str):
            raise ValueError(Errors.CRF701.format(place=place, reason=f'it has no "text": {shown(value)}'))
        keys = item.keys() - set(settings.ignore)
        has_spans, text = bool(keys & set(SPAN_KEYS)), item["text"]
        report.has_spans |= has_spans
        cats = _cats_of(item["cats"], place) if "cats" in keys else {}
        spans = [parse_span(span, text, place) for span in _spans_of(Item(place, item), settings.ignore)]
        answer, is_binary = item.get("answer"), _is_binary(item)
        if answer not in (None, "accept") and not (is_binary and answer == "reject"):
            report.rejected.append(f"{place} ({answer!r})")
            continue
        if cats and not has_spans:
            doc = tokenized(text, nlp, place)  # of entities nothing is said
        else:
            doc = make_doc(nlp, text, spans, place=place, settings=settings, report=report)
        doc.cats = cats
        if is_binary:
            _keep_answer(doc, answer == "reject")
            report.binary.append(place)
        yield doc


def _objects(source: Source) -> list[dict[str, Any]]:
    items = [_as_object(value) for value in source.head_items()] if source.is_json() else []
    return [item for item in items if isinstance(item, dict) and "text" in item]


def _as_object(value: Any) -> Any:
    """Of spaCy's pair too."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
        return {**value[1], "text": value[0]}
    return value


def _cats_of(value: Any, place: str) -> dict[str, float]:
    """The labels of a text, with 1 or true for those that it has. RAISES (ValueError): CRF701 for anything else."""
    pairs = value.items() if isinstance(value, dict) else [(None, value)] if value else []
    for label, share in pairs:
        if not label or isinstance(share, str) or share not in (0, 1):
            reason = f'"cats" is a table with 1 for each label that the text has, and 0 for others, not {shown(value)}'
            raise ValueError(Errors.CRF701.format(place=place, reason=reason))
    return {label: float(share) for label, share in pairs}


def _is_binary(item: dict[str, Any]) -> bool:
    """Whether Prodigy asked if these spans are right, and for nothing else in the text."""
    return item.get("_is_binary", item.get("_view_id") == "ner") is True


def _keep_answer(doc: Doc, is_rejected: bool) -> None:
    """Of the rest of the text nothing is known. What was rejected is no entity."""
    spans = list(doc.ents)
    doc.set_ents([] if is_rejected else spans, default="missing")
    if is_rejected:
        doc.spans[INCORRECT] = spans


def _spans_of(item: Item, ignore: Collection[str]) -> list[Any]:
    """The spans, as they were written. RAISES (ValueError): If anything else in it holds annotation."""
    place, fields = item.place, {key: value for key, value in item.value.items() if key not in ignore}
    if isinstance(fields.get("label"), str) and "spans" in fields:
        fields["label"] = None  # Prodigy writes there what was asked for
    keys = [key for key in SPAN_KEYS if fields.get(key) not in (None, [])]
    for key, value in fields.items():
        if key in (*SPAN_KEYS, "cats") or not value:
            continue
        is_of_tokens = key in _OF_TOKENS and isinstance(value, list)
        if key in _OTHER_ANNOTATION or is_of_tokens or holds_annotation(value):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known=", ".join(SPAN_KEYS)))
    if len(keys) > 1:
        raise ValueError(Errors.CRF714.format(place=place, keys=" and ".join(map(repr, keys)), last=keys[-1]))
    spans = fields[keys[0]] if keys else []
    if not isinstance(spans, list):
        raise ValueError(Errors.CRF701.format(place=place, reason=f'"{keys[0]}" is not a list of spans'))
    return spans
