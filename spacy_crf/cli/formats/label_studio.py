"""Reads Label Studio's JSON: tasks with annotations."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc

from ...errors import Errors, shown
from ...pipeline.corpora import set_origin
from .annotation import GivenSpan, Labels, TextLabels, holds_annotation, is_labels, make_doc, parse_labels, read_spans
from .offsets import HabitSearch, index_of
from .source import Fields, ReadSettings, Report, Source, unreadable

_ANNOTATIONS = ("annotations", "completions")  # "completions" before version 1
# Keys of the export JSON-MIN, beside those of data and spans
_MIN_KEYS = {"annotator", "annotation_id", "lead_time"}
_OTHER_MIN_KEYS = {"created_at", "updated_at", "agreement"}


class LabelledTask(NamedTuple):
    """A text with its spans as they are written, and its labels by the name of the question."""

    place: str
    id: object
    text: str
    spans: list[Fields]
    choices: dict[str, Labels]

    @property
    def labels(self) -> Labels:
        """The answers to the only question about the whole text."""
        return next(iter(self.choices.values()), [])


def sniff(source: Source) -> bool:
    """Whether items are tasks of Label Studio, or of its export JSON-MIN."""
    keys = {*_ANNOTATIONS, "predictions"}
    return any(("data" in item and keys & item.keys()) or _is_min(item) for item in source.head_objects())


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read tasks. Of several annotations of a task, the one marked as ground truth counts, else the first. Skipped tasks, and
    tasks without annotation, are left out. If texts have labels and no text has a span, entities stay unannotated.

    RAISES (ValueError): CRF714 with the place, if there are several questions about whole texts.
    """
    labels = TextLabels()
    names = {}
    has_spans = False
    habits = HabitSearch(settings.offsets)
    for task in _tasks(source, settings, Report()):
        names |= dict.fromkeys(task.choices)
        if len(names) > 1:
            raise ValueError(
                Errors.CRF714.format(place=task.place, keys=" and ".join(map(repr, names)), last=list(names)[-1])
            )
        labels.add(task.labels)
        has_spans |= bool(task.spans)
        if habits.needs(task.text):
            given = [GivenSpan.of(span) for span in task.spans]
            habits.see(task.text, ((span.start, span.end, span.words) for span in given))
    report.has_spans = has_spans or not names
    report.offsets = habits.found()
    for task in _tasks(source, settings, report):
        index = index_of(task.text, report.offsets)
        spans, is_complete = read_spans(task.spans, task.text, task.place, report, index)
        found = spans if report.has_spans else None
        doc = make_doc(
            nlp, task.text, found, is_complete=is_complete, place=task.place, settings=settings, report=report
        )
        doc.cats = labels.cats(task.labels, task.place, report)
        set_origin(doc, task.place, task.id)
        yield doc


def _tasks(source: Source, settings: ReadSettings, report: Report) -> Iterator[LabelledTask]:
    for place, value in source.items():
        if not isinstance(value, dict):
            raise unreadable(place, f"it is not a task of Label Studio, but {shown(value)}")
        if _is_min(value):
            yield _of_min({key: part for key, part in value.items() if key not in settings.ignore}, place, settings)
        elif (annotation := _annotation(value, place, settings, report)) is not None:
            yield _of_task(value, annotation, place, settings)


def _is_min(item: Fields) -> bool:
    return bool(_MIN_KEYS & item.keys()) and "data" not in item


def _annotation(fields: Fields, place: str, settings: ReadSettings, report: Report) -> Optional[Fields]:
    """Choose the annotation of a task that counts, or None."""
    keys = (*_ANNOTATIONS, "predictions") if settings.predictions else _ANNOTATIONS
    of_task = next((fields[key] for key in keys if fields.get(key)), None) or []
    if not isinstance(of_task, list) or not all(isinstance(one, dict) for one in of_task):
        raise unreadable(place, f'"annotations" is not a list of objects: {shown(of_task)}')
    valid = [one for one in of_task if not one.get("was_cancelled")]
    if not valid:
        report.rejected.append(f"{place} ({'skipped' if of_task else 'not annotated'})")
        return None
    if len(valid) > 1:
        report.unread.append(f"{place} ({len(valid)} annotations)")
    return next((one for one in valid if one.get("ground_truth")), valid[0])


def _of_task(fields: Fields, annotation: Fields, place: str, settings: ReadSettings) -> LabelledTask:
    results = annotation.get("result")
    if not isinstance(results, list) or not all(isinstance(one, dict) for one in results):
        raise unreadable(place, f'"result" is not a list of objects: {shown(results)}')
    data = fields["data"] if isinstance(fields.get("data"), dict) else {}
    found = LabelledTask(place, fields.get("id"), _text(data, place, settings), [], {})
    for result in results:
        kind = result.get("type")
        name = str(result.get("from_name"))
        value = result.get("value")
        if kind in settings.ignore or name in settings.ignore:
            continue
        if kind == "labels" and isinstance(value, dict):
            found.spans.extend(_spans(value, place))
        elif kind == "choices" and isinstance(value, dict) and "start" not in value:
            found.choices[name] = [*(found.choices.get(name) or ()), *(parse_labels(value.get("choices"), place) or ())]
        else:
            raise ValueError(
                Errors.CRF707.format(
                    place=place,
                    key=kind,
                    value=shown(result),
                    known="results of type 'labels', and of type 'choices' that are about the whole text",
                )
            )
    return found


def _of_min(fields: Fields, place: str, settings: ReadSettings) -> LabelledTask:
    """Read a task of JSON-MIN: data come before the task's number, annotation after it."""
    keys = list(fields)
    made = {*keys[keys.index("id") + 1 :]} if "id" in keys else set()
    made -= _MIN_KEYS | _OTHER_MIN_KEYS | {settings.word_column or "text"}
    choices = {}
    lists = {}
    for key, value in fields.items():
        if isinstance(value, dict) and "choices" in value:
            choices[key] = parse_labels(value["choices"], place)
        elif key in made and is_labels(value):
            choices[key] = parse_labels(value, place)
        elif isinstance(value, list):
            lists[key] = value
        elif holds_annotation(value):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known="lists of spans"))
    if len(lists) > 1:
        raise ValueError(Errors.CRF714.format(place=place, keys=" and ".join(map(repr, lists)), last=list(lists)[-1]))
    values = chain.from_iterable(lists.values())
    return LabelledTask(
        place=place,
        id=fields.get("id"),
        text=_text({key: value for key, value in fields.items() if key not in choices}, place, settings),
        spans=list(chain.from_iterable(_spans(value, place) for value in values)),
        choices=choices,
    )


def _text(data: Fields, place: str, settings: ReadSettings) -> str:
    """Find the text of a task. RAISES (ValueError): CRF701 if the task has no text, or several candidates."""
    asked = settings.word_column or "text"
    texts = [value for key, value in data.items() if isinstance(value, str) and key == asked]
    known = _MIN_KEYS | _OTHER_MIN_KEYS
    texts = texts or [value for key, value in data.items() if isinstance(value, str) and key not in known]
    if len(texts) != 1:
        wrong = f'its data hold {"several texts, none of them" if texts else "nothing"} under the key "{asked}"'
        raise unreadable(place, f"{wrong}: {shown(data)}. Name the key of the text with --word-column")
    return texts[0]


def _spans(value: object, place: str) -> list[Fields]:
    """The spans of a region in the text: one for each of its labels."""
    region: Fields = value if isinstance(value, dict) else {}
    labels = region.get("labels")
    if not isinstance(labels, list) or not labels:
        raise unreadable(place, f'a span has no "labels": {shown(value)}')
    return [{**region, "label": label} for label in labels]
