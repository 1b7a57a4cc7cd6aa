"""Label Studio's JSON: tasks, each with what its annotators made of it."""

from collections.abc import Iterator
from typing import Any, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from .settings import Report, Settings
from .source import Item, Source
from .spans import Span, make_doc, parse_span

_ANNOTATIONS = ("annotations", "completions")  # the latter before version 1
_MIN_KEYS = {"annotator", "annotation_id", "lead_time"}  # of its export JSON-MIN, where data and spans lie side by side


def sniff(source: Source) -> bool:
    items = [item for item in source.head_items() if isinstance(item, dict)] if source.is_json() else []
    return any(("data" in item and {*_ANNOTATIONS, "predictions"} & item.keys()) or _is_min(item) for item in items)


def read(source: Source, nlp: Language, settings: Settings, report: Report) -> Iterator[Doc]:
    """Of several annotations of a task, the one that is marked as the truth counts, or the first. Tasks that were skipped or
    that nobody annotated are left out."""
    for place, value in source.items():
        if not isinstance(value, dict):
            raise ValueError(Errors.CRF701.format(place=place, reason=f"it is no task, but {shown(value)}"))
        results = value if _is_min(value) else _annotation(Item(place, value), settings, report)
        report.has_spans = True
        if results is None:
            continue
        text, found = _of_min(value, place) if _is_min(value) else _of_task(Item(place, value), results, settings)
        yield make_doc(nlp, text, found, place=place, settings=settings, report=report)


def _is_min(item: dict[str, Any]) -> bool:
    return bool(_MIN_KEYS & item.keys()) and "data" not in item


def _annotation(task: Item, settings: Settings, report: Report) -> Optional[dict[str, Any]]:
    """The annotation that counts, or None."""
    place, fields = task
    keys = (*_ANNOTATIONS, "predictions") if settings.predictions else _ANNOTATIONS
    of_task = next((fields[key] for key in keys if fields.get(key)), None) or []
    if not isinstance(of_task, list) or not all(isinstance(one, dict) for one in of_task):
        raise ValueError(
            Errors.CRF701.format(place=place, reason=f'"annotations" is no list of objects: {shown(of_task)}')
        )
    valid = [one for one in of_task if not one.get("was_cancelled")]
    if not valid:
        report.rejected.append(f"{place} ({'skipped' if of_task else 'not annotated'})")
        return None
    if len(valid) > 1:
        report.unread.append(f"{place} ({len(valid)} annotations)")
    return next((one for one in valid if one.get("ground_truth")), valid[0])


def _of_task(task: Item, annotation: dict[str, Any], settings: Settings) -> tuple[str, list[Span]]:
    place, fields = task
    results = annotation.get("result")
    if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
        raise ValueError(Errors.CRF701.format(place=place, reason=f'"result" is no list of objects: {shown(results)}'))
    data = fields["data"] if isinstance(fields.get("data"), dict) else {}
    text, found = _text(data, place), []
    for result in results:
        kind, value = result.get("type"), result.get("value")
        if kind in settings.ignore:
            continue
        if kind != "labels" or not isinstance(value, dict):
            known = "results of type 'labels'"
            raise ValueError(Errors.CRF707.format(place=place, key=kind, value=shown(result), known=known))
        found += _spans(value, text, place)
    return text, found


def _of_min(fields: dict[str, Any], place: str) -> tuple[str, list[Span]]:
    lists = {key: value for key, value in fields.items() if isinstance(value, list)}
    if len(lists) > 1:
        keys = " and ".join(map(repr, lists))
        raise ValueError(Errors.CRF714.format(place=place, keys=keys, last=list(lists)[-1]))
    text = _text(fields, place)
    return text, [span for values in lists.values() for value in values for span in _spans(value, text, place)]


def _text(data: dict[str, Any], place: str) -> str:
    """The one text of a task."""
    texts = [value for key, value in data.items() if isinstance(value, str) and key == "text"]
    texts = texts or [value for key, value in data.items() if isinstance(value, str) and not _MIN_KEYS & {key}]
    if len(texts) != 1:
        reason = (
            f'its data have {"several texts, and none is" if texts else "nothing"} under the key "text": {shown(data)}'
        )
        raise ValueError(Errors.CRF701.format(place=place, reason=reason))
    return texts[0]


def _spans(value: Any, text: str, place: str) -> list[Span]:
    """Those of a place in the text: one for each of its labels."""
    labels = value.get("labels") if isinstance(value, dict) else None
    if not isinstance(labels, list) or not labels:
        raise ValueError(Errors.CRF701.format(place=place, reason=f'a span without "labels": {shown(value)}'))
    return [parse_span({**value, "label": label}, text, place) for label in labels]
