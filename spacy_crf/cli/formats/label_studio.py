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
    """A text with its annotation."""

    place: str  # the file and the number of the item, for messages
    id: object
    text: str
    spans: list[Fields]  # as the file has them
    choices: dict[str, Labels]  # labels of the text, by the name of the question

    @property
    def labels(self) -> Labels:
        """The answers to the only question about the whole text."""
        return next(iter(self.choices.values()), [])


def sniff(source: Source) -> bool:
    """Whether items are tasks of Label Studio, or of its export JSON-MIN."""
    keys = {*_ANNOTATIONS, "predictions"}
    return any(("data" in item and keys & item.keys()) or _is_min(item) for item in source.head_objects())


def read(source: Source, nlp: Language, settings: ReadSettings, report: Report) -> Iterator[Doc]:
    """Read tasks. If a task has several annotations, the one marked as ground truth counts, else the first. Skipped tasks, and
    tasks without annotation, are left out. If texts have labels and no text has a span, entities stay unannotated.

    RAISES (ValueError): CRF714 with the place, if there are several questions about whole texts.
    """
    labels = TextLabels()
    questions = {}  # by name, in the order of the file
    has_spans = False
    habits = HabitSearch(settings.offsets)
    # The labels, and how the file counts characters, are known only when all tasks are read; these reports are not needed
    for task in _tasks(source, settings, Report()):
        questions |= dict.fromkeys(task.choices)
        if len(questions) > 1:
            names = " and ".join(map(repr, questions))
            raise ValueError(Errors.CRF714.format(place=task.place, keys=names, last=list(questions)[-1]))
        labels.add(task.labels)
        has_spans |= bool(task.spans)
        if habits.needs(task.text):
            spans = [GivenSpan.of(span) for span in task.spans]
            habits.see(task.text, ((span.start, span.end, span.words) for span in spans))
    report.has_spans = has_spans or not questions
    report.offsets = habits.found()
    for task in _tasks(source, settings, report):
        index = index_of(task.text, report.offsets)
        spans, is_complete = read_spans(task.spans, task.text, task.place, report, index)
        doc = make_doc(
            nlp,
            task.text,
            spans if report.has_spans else None,
            is_complete=is_complete,
            place=task.place,
            settings=settings,
            report=report,
        )
        doc.cats = labels.cats(task.labels, task.place, report)
        set_origin(doc, task.place, task.id)
        yield doc


def _tasks(source: Source, settings: ReadSettings, report: Report) -> Iterator[LabelledTask]:
    """Read the tasks that have an annotation, and report the others."""
    for place, value in source.items():
        if not isinstance(value, dict):
            raise unreadable(place, f"it is not a task of Label Studio, but {shown(value)}")
        if _is_min(value):
            yield _read_min({key: part for key, part in value.items() if key not in settings.ignore}, place, settings)
        elif (annotation := _annotation(value, place, settings, report)) is not None:
            yield _read_task(value, annotation, place, settings)


def _is_min(item: Fields) -> bool:
    """Whether an item is a task of the export JSON-MIN."""
    return bool(_MIN_KEYS & item.keys()) and "data" not in item


def _annotation(fields: Fields, place: str, settings: ReadSettings, report: Report) -> Optional[Fields]:
    """Choose the annotation of a task that counts; None, with a line in the report, if there is none."""
    keys = (*_ANNOTATIONS, "predictions") if settings.predictions else _ANNOTATIONS
    annotations = next((fields[key] for key in keys if fields.get(key)), None) or []
    if not isinstance(annotations, list) or not all(isinstance(annotation, dict) for annotation in annotations):
        raise unreadable(place, f'"annotations" is not a list of objects: {shown(annotations)}')
    valid = [annotation for annotation in annotations if not annotation.get("was_cancelled")]
    if not valid:
        report.rejected.append(f"{place} ({'skipped' if annotations else 'not annotated'})")
        return None
    if len(valid) > 1:
        report.unread.append(f"{place} ({len(valid)} annotations)")
    return next((annotation for annotation in valid if annotation.get("ground_truth")), valid[0])


def _read_task(fields: Fields, annotation: Fields, place: str, settings: ReadSettings) -> LabelledTask:
    """Read the text of a task, and the spans and labels of one of its annotations.

    RAISES (ValueError): CRF701 for a result that is no object, CRF707 for another kind of annotation.
    """
    results = annotation.get("result")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise unreadable(place, f'"result" is not a list of objects: {shown(results)}')
    data = fields["data"] if isinstance(fields.get("data"), dict) else {}
    task = LabelledTask(place, fields.get("id"), _text(data, place, settings), [], {})
    for result in results:
        kind = result.get("type")
        question = str(result.get("from_name"))
        value = result.get("value")
        if kind in settings.ignore or question in settings.ignore:
            continue
        if kind == "labels" and isinstance(value, dict):
            task.spans.extend(_spans(value, place))
        elif kind == "choices" and isinstance(value, dict) and "start" not in value:
            labels = parse_labels(value.get("choices"), place) or []
            task.choices[question] = [*(task.choices.get(question) or ()), *labels]
        else:
            raise ValueError(
                Errors.CRF707.format(
                    place=place,
                    key=kind,
                    value=shown(result),
                    known="results of type 'labels', and of type 'choices' that are about the whole text",
                )
            )
    return task


def _read_min(fields: Fields, place: str, settings: ReadSettings) -> LabelledTask:
    """Read a task of JSON-MIN, in which the keys of data come before the key "id", and those of annotation behind it.

    RAISES (ValueError): CRF707 for annotation that is neither spans nor labels, CRF714 for several lists of spans.
    """
    keys = list(fields)
    annotated = {*keys[keys.index("id") + 1 :]} if "id" in keys else set()
    annotated -= _MIN_KEYS | _OTHER_MIN_KEYS | {settings.word_column or "text"}
    choices = {}
    lists = {}
    for key, value in fields.items():
        if isinstance(value, dict) and "choices" in value:
            choices[key] = parse_labels(value["choices"], place)
        elif key in annotated and is_labels(value):
            choices[key] = parse_labels(value, place)
        elif isinstance(value, list):
            lists[key] = value
        elif holds_annotation(value):
            raise ValueError(Errors.CRF707.format(place=place, key=key, value=shown(value), known="lists of spans"))
    if len(lists) > 1:
        raise ValueError(Errors.CRF714.format(place=place, keys=" and ".join(map(repr, lists)), last=list(lists)[-1]))
    regions = chain.from_iterable(lists.values())
    return LabelledTask(
        place=place,
        id=fields.get("id"),
        text=_text({key: value for key, value in fields.items() if key not in choices}, place, settings),
        spans=list(chain.from_iterable(_spans(region, place) for region in regions)),
        choices=choices,
    )


def _text(data: Fields, place: str, settings: ReadSettings) -> str:
    """Find the text of a task: under the key that the settings name, by default "text", or the only text of its data.

    RAISES (ValueError): CRF701 if the task has no text, or several candidates.
    """
    text_key = settings.word_column or "text"
    texts = [value for key, value in data.items() if isinstance(value, str) and key == text_key]
    others = _MIN_KEYS | _OTHER_MIN_KEYS
    texts = texts or [value for key, value in data.items() if isinstance(value, str) and key not in others]
    if len(texts) != 1:
        wrong = f'its data hold {"several texts, none of them" if texts else "nothing"} under the key "{text_key}"'
        raise unreadable(place, f"{wrong}: {shown(data)}. Name the key of the text with --word-column")
    return texts[0]


def _spans(region: object, place: str) -> list[Fields]:
    """The spans of a region in the text: one for each of its labels. RAISES (ValueError): CRF701 if it has no labels."""
    fields: Fields = region if isinstance(region, dict) else {}
    labels = fields.get("labels")
    if not isinstance(labels, list) or not labels:
        raise unreadable(place, f'a span has no "labels": {shown(region)}')
    return [{**fields, "label": label} for label in labels]
