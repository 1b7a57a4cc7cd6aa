"""Archives that a pipeline annotates: many texts, in parts, by several workers. See `distributed`.

A worker loads the pipeline by its path, reads a part, annotates it and writes it to a file of the part's number; a text that
can't be read or annotated is told beside it and left out. In the end all that went wrong is in one file.
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import spacy
from spacy.util import get_package_path

from .. import __version__
from ..distributed.executors import Executor
from ..distributed.parts import PARQUET, Part, Plan, is_parquet, lines, opened_parquet, plan
from ..distributed.target import Manifest, Target
from ..errors import Errors
from .annotation import Options, Record, certain_pipes, records, without_annotation
from .formats.source import read_lines
from .formats.writers import WRITERS
from .shared import load_pipeline
from .texts import Item, item_of_line

if TYPE_CHECKING:
    import pyarrow

ERRORS = "errors.jsonl"
_TEXTS = 512  # that are annotated at a time; where one of them fails, each of them is
_ROW = "row"  # of a table, as it goes to the record and back
_KEPT = 1 << 20  # bytes that a worker writes until it forgets words
Told = Callable[[int, int, int], Any]  # told how many texts and bytes are done, and bytes in all


class Placed(NamedTuple):
    place: str
    item: Item


class Job(NamedTuple):
    """What a worker has to know.

    model (str), code (str): As of every command. target (str): The folder. strict (bool): Whether a text that can't be
    annotated ends the work.
    """

    model: str
    code: Optional[str]
    target: str
    options: Options
    component: Optional[str]
    strict: bool


class Finished(NamedTuple):
    """A part, or several. errors (list): Which texts could not be read or annotated, and why."""

    texts: int
    spans: int
    doubtful: int
    errors: list[tuple[str, str]]


class Written(NamedTuple):
    """The file of a part."""

    file: str
    bytes: int
    found: Finished


def annotate_parts(job: Job, source: str, executor: Executor, part_bytes: Optional[int], told: Told) -> Finished:
    """Annotates what is not done yet, and lists what went wrong.

    part_bytes (int): How large a part is to be: what is lost if a worker dies. By default `plan` says.
    RAISES (ValueError): With a code, if the source, the target or a worker can't do it; CRF491 if the results would be
    texts of the next run.
    """
    planned, target = plan(source, part_bytes), Target(job.target)
    if target.is_within(source):
        raise ValueError(Errors.CRF491.format(target=job.target, source=source))
    head = {
        "files": planned.files,
        "part_bytes": planned.part_bytes,
        "model": fingerprint(job.model),
        "code": Path(job.code).read_text(encoding="utf8") if job.code else None,
        "options": [*job.options, job.component],
        "versions": [__version__, spacy.__version__],
    }
    with target.alone():
        manifest = Manifest(target, head)
        try:
            _annotate_left(job, planned, executor, manifest, told)
        finally:
            manifest.end()
        total = _in_all(manifest)
        if not total.texts and not total.errors:
            raise ValueError(Errors.CRF784.format(path=source, reason="there are no texts in it"))
        if total.errors:
            lines_of_errors = (json.dumps({"place": place, "error": error}) for place, error in total.errors)
            target.write(ERRORS, "".join(f"{line}\n" for line in lines_of_errors).encode("ascii"))
    return total


def _annotate_left(job: Job, planned: Plan, executor: Executor, manifest: Manifest, told: Told) -> None:
    """RAISES (ValueError): CRF779 if none of many texts can be annotated."""
    sizes, before = planned.sizes, _in_all(manifest)
    texts, left_out, done = before.texts, len(before.errors), sum(sizes[number] for number in manifest.done)
    told(texts, done, sum(sizes))
    left = [part for part in planned.parts if part.number not in manifest.done]
    for part, written in executor.run(partial(_Annotator, job, len(planned.parts)), left):
        manifest.enter(part.number, {"file": written.file, "bytes": written.bytes, **written.found._asdict()})
        texts, done = texts + written.found.texts, done + sizes[part.number]
        left_out += len(written.found.errors)
        if not texts and left_out >= _TEXTS:  # of small parts
            raise _all_wrong(part, written.found.errors)
        told(texts, done, sum(sizes))


def _all_wrong(part: Part, errors: list[tuple[str, str]]) -> ValueError:
    [place, error], *_ = errors
    return ValueError(Errors.CRF779.format(part=part.place, place=place, error=error))


def _in_all(manifest: Manifest) -> Finished:
    """What is told of all parts that are done, in their order."""
    parts = [manifest.done[number] for number in sorted(manifest.done)]
    texts, spans, doubtful = (sum(part[count] for part in parts) for count in ("texts", "spans", "doubtful"))
    return Finished(texts, spans, doubtful, [error for part in parts for error in part["errors"]])


def fingerprint(model: str) -> str:
    """Of a pipeline, by what its files hold. RAISES (ValueError): CRF715 if there is none."""
    folder = Path(model) if Path(model).exists() else None
    try:
        folder = folder or get_package_path(model)
    except ImportError as error:
        raise ValueError(Errors.CRF715.format(model=model, reason=error)) from None
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]


class _Annotator:
    """What a worker does with a part.

    n_parts (int): In all: the names of their files are equally long, for their order.
    """

    def __init__(self, job: Job, n_parts: int):
        self._job, self._digits = job, max(5, len(str(n_parts - 1)))
        self._nlp = load_pipeline(job.model, Path(job.code) if job.code else None)
        certain_pipes(self._nlp, job.options, job.component)  # before texts are blamed
        self._target = Target(job.target)
        self._written = 0  # bytes

    def __call__(self, part: Part) -> Written:
        errors = _Errors(self._job.strict)
        with self._zone():
            annotate = self._annotate_rows if is_parquet(part.path) else self._annotate_lines
            found, suffix, content = annotate(part, errors)
        if not found and len(errors.kept) >= _TEXTS:
            raise _all_wrong(part, errors.kept)
        name = f"part-{part.number:0{self._digits}}{suffix}"
        self._target.write(name, content)
        self._written += len(content)
        counts = len(found), sum(record.spans for record in found), sum(record.doubtful for record in found)
        told = sorted(errors.kept, key=lambda error: (len(error[0]), error[0]))  # places end with numbers
        return Written(name, len(content), Finished(*counts, told))

    @contextmanager
    def _zone(self) -> Iterator[None]:
        """Of the words of other parts nothing is kept, but for the first: the tokenizer keeps in mind how words are cut, a
        quarter of all work, only outside of memory zones."""
        with self._nlp.memory_zone() if self._written >= _KEPT else nullcontext():
            yield

    def _annotate_lines(self, part: Part, errors: "_Errors") -> tuple[list[Record], str, bytes]:
        writer, content = WRITERS[self._job.options.format], io.BytesIO()
        found = list(self._annotate(_items_of_lines(part, errors), self._job.options, errors))
        writer.join((record.text for record in found), content, self._nlp.vocab)
        return found, writer.suffix, content.getvalue()

    def _annotate_rows(self, part: Part, errors: "_Errors") -> tuple[list[Record], str, bytes]:
        """The rows that could be annotated, with two columns more: "spans" and "cats"."""
        from pyarrow.parquet import write_table

        with opened_parquet(part.path) as file:
            table = file.read_row_groups(range(part.begin, part.end))
        _check_columns(part, table.column_names)
        items = _items_of_rows(part, table.column("text").to_pylist(), errors)
        found = list(self._annotate(items, self._job.options._replace(format="spans"), errors))
        values = [json.loads(record.text) for record in found]
        table = table.take([value[_ROW] for value in values])
        for name, type_ in _column_types().items():
            table = table.append_column(name, _column([value.get(name, []) for value in values], type_))
        content = io.BytesIO()
        write_table(table, content)
        return found, PARQUET, content.getvalue()

    def _annotate(self, items: Iterable[Placed], options: Options, errors: "_Errors") -> Iterator[Record]:
        """Of some texts at a time; where one can't be annotated, of each of these alone."""
        items = iter(items)
        while some := list(islice(items, _TEXTS)):
            try:
                found = self._records(some, options)
            except Exception:  # whatever components raise
                found = []
                for placed in some:
                    with errors.kept_of(placed.place):
                        found += self._records([placed], options)
            yield from found

    def _records(self, items: Iterable[Placed], options: Options) -> list[Record]:
        return list(records(self._nlp, (item for _, item in items), options, self._job.component))


class _Errors:
    """is_strict (bool): Whether the first is raised."""

    def __init__(self, is_strict: bool):
        self._is_strict = is_strict
        self.kept: list[tuple[str, str]] = []

    @contextmanager
    def kept_of(self, place: str) -> Iterator[None]:
        """RAISES (ValueError): CRF787 with the place, if it is strict."""
        try:
            yield
        except OSError:
            raise  # it is not the text
        except Exception as error:
            if self._is_strict:
                raise ValueError(Errors.CRF787.format(place=place, error=error)) from error
            self.kept.append((place, str(error) or type(error).__name__))


# ------------------------------------------------------------------------------------------------------------ texts


def _items_of_lines(part: Part, errors: _Errors) -> Iterator[Placed]:
    for place, line in lines(part):
        item = None
        with errors.kept_of(place):
            item = _item_of_line(line, place)
        if item is not None:
            yield Placed(place, item)


def _item_of_line(line: bytes, place: str) -> Optional[Item]:
    """None of an empty one. RAISES (ValueError): With the place, if it can't be read."""
    [(_, text)] = read_lines([line], place)
    text = text.strip()
    return without_annotation(item_of_line(text, place), place) if text else None


def _items_of_rows(part: Part, texts: list[Any], errors: _Errors) -> Iterator[Placed]:
    for row, text in enumerate(texts):
        place = f"{part.place}, row {row + 1}"
        with errors.kept_of(place):
            if not isinstance(text, str):
                raise ValueError(Errors.CRF709.format(place=place))
        if isinstance(text, str):
            yield Placed(place, {"text": text, _ROW: row})


def _check_columns(part: Part, names: list[str]) -> None:
    """RAISES (ValueError): CRF784."""
    missing, taken = {"text"} - {*names}, {*_column_types()} & {*names}
    if missing or taken:
        reason = (
            f"it has a column '{taken.pop()}' already" if taken else f"it has no column 'text', but {', '.join(names)}"
        )
        raise ValueError(Errors.CRF784.format(path=part.path, reason=reason))


def _column_types() -> dict[str, "pyarrow.DataType"]:
    import pyarrow

    span = {"start": pyarrow.int64(), "end": pyarrow.int64(), "label": pyarrow.string(), "prob": pyarrow.float64()}
    return {"spans": pyarrow.list_(pyarrow.struct(span)), "cats": pyarrow.map_(pyarrow.string(), pyarrow.float64())}


def _column(values: list[Any], type_: "pyarrow.DataType") -> "pyarrow.Array":
    import pyarrow

    return pyarrow.array([[*value.items()] if isinstance(value, dict) else value for value in values], type=type_)
