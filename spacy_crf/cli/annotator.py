"""How a part of many texts is read, annotated and written. `annotate_parts` gives the parts."""

import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

from spacy.language import Language
from spacy.tokens import Doc

from ..errors import Errors, shown
from ..lab.workers.work_folder import WorkFolder
from .archive_parts import PARQUET, Part, is_parquet, lines, opened_parquet
from .formats.annotation import check_length
from .formats.source import read_lines
from .formats.texts import SPAN_KEYS
from .formats.writers import WRITERS, check_spans, probability
from .formats.writers import Annotated as Found
from .shared import PROBABILITIES, load_pipeline, our_pipes
from .texts import Item, item_of_line, read_items

if TYPE_CHECKING:
    import pyarrow

TEXTS = 512  # of a batch; if one of them can't be annotated, each is annotated alone
_ROW = "row"  # of a table: the key under which an item keeps its number
_KEPT = 1 << 20  # bytes that a worker writes until it forgets the words of each part
Task = Union["Batch", Part]


class Options(NamedTuple):
    """format (str): Of the output, a name of ``WRITERS``. sort (bool): Whether the least certain texts come first.
    min_prob (float): Less probable spans are not written. component (str): The only component whose certainty counts; by
    default all of ours do."""

    format: str
    sort: bool = False
    min_prob: float = 0.0
    component: Optional[str] = None


class Job(NamedTuple):
    """The task of all workers of one command.

    model (str), code (str): As of every command. target (str): The folder of the parts. strict (bool): Whether a text that
    can't be annotated ends the work.
    """

    model: str
    code: Optional[str]
    target: str
    options: Options
    strict: bool = False


class Placed(NamedTuple):
    place: str
    item: Item


class Batch(NamedTuple):
    """Texts of a file that is annotated without workers. size (int): How many bytes of the file were read for them."""

    number: int
    items: list[Placed]
    size: int

    @property
    def checksum(self) -> int:
        texts = "\0".join(item["text"] for _, item in self.items)
        return zlib.crc32(texts.encode("utf8", "surrogatepass"))


class Finished(NamedTuple):
    """Counts of one part, or of several. errors (list): Places and reasons of texts that could not be annotated."""

    texts: int
    spans: int
    doubtful: int
    errors: list[tuple[str, str]]


class Written(NamedTuple):
    """The file of a part. checksum (int): Of the texts of a batch."""

    file: str
    bytes: int
    found: Finished
    checksum: int = 0


class Record(NamedTuple):
    """A text as it will be written, how uncertain it is, and how many spans were written and left out."""

    uncertainty: float
    spans: int
    doubtful: int
    text: str


class Annotator:
    """Annotates parts, in one worker.

    n_parts (int): How many parts there are: the names of their files are equally long, so that they sort.
    nlp (Language): The pipeline.
    RAISES (ValueError): CRF710 if the options need a certainty that no component knows.
    """

    def __init__(self, job: Job, n_parts: int = 0):
        from ..pipeline.prediction import tell_probabilities

        self._job, self._digits = job, max(5, len(str(n_parts - 1)))
        self.nlp = load_pipeline(job.model, Path(job.code) if job.code else None)
        is_asked = job.options.sort or job.options.min_prob > 0.0 or job.options.component is not None
        self._pipes = our_pipes(self.nlp, job.options.component, PROBABILITIES if is_asked else None)
        tell_probabilities(self._pipes)
        self._target = WorkFolder(job.target)
        self._written = 0  # bytes

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Written]]:
        """As an executor, in this process."""
        return ((task, self(task)) for task in tasks)

    def __call__(self, part: Task) -> Written:
        if isinstance(part, Batch):
            annotate, checksum = self._annotate_batch, part.checksum
        else:
            annotate, checksum = self._annotate_rows if is_parquet(part.path) else self._annotate_lines, 0
        errors = _Errors(self._job.strict)
        with self._zone():
            found, suffix, content = annotate(part, errors)
        if not found and len(errors.kept) >= TEXTS:
            raise all_wrong(part, errors.kept)
        name = f"part-{part.number:0{self._digits}}{suffix}"
        self._target.write(name, content)
        self._written += len(content)
        counts = len(found), sum(record.spans for record in found), sum(record.doubtful for record in found)
        by_place = sorted(errors.kept, key=lambda error: (len(error[0]), error[0]))  # places end with numbers
        return Written(name, len(content), Finished(*counts, by_place), checksum)

    @contextmanager
    def _zone(self) -> Iterator[None]:
        """A memory zone, so that the words of a part are forgotten with it; but not for the first parts. The tokenizer remembers
        how words are cut, a quarter of all work, only outside of memory zones."""
        with self.nlp.memory_zone() if self._written >= _KEPT else nullcontext():
            yield

    def _annotate_batch(self, batch: Batch, errors: "_Errors") -> tuple[list[Record], str, bytes]:
        """Lines with the uncertainty of a text and the text as it will be written."""
        found = list(self.records((item for _, item in batch.items)))
        lines_of_json = (json.dumps((record.uncertainty, record.text)) for record in found)
        return found, ".jsonl", "".join(f"{line}\n" for line in lines_of_json).encode("ascii")

    def _annotate_lines(self, part: Part, errors: "_Errors") -> tuple[list[Record], str, bytes]:
        writer, content = WRITERS[self._job.options.format], io.BytesIO()
        found = list(self._annotate(_items_of_lines(part, errors), errors))
        writer.join((record.text for record in found), content, self.nlp.vocab)
        return found, writer.suffix, content.getvalue()

    def _annotate_rows(self, part: Part, errors: "_Errors") -> tuple[list[Record], str, bytes]:
        """The rows that could be annotated, with two columns more: "spans" and "cats"."""
        from pyarrow.parquet import write_table

        with opened_parquet(part.path) as file:
            table = file.read_row_groups(range(part.begin, part.end))
        _check_columns(part, table.column_names)
        items = _items_of_rows(part, table.column("text").to_pylist(), errors)
        found = list(self._annotate(items, errors, format_="spans"))
        values = [json.loads(record.text) for record in found]
        table = table.take([value[_ROW] for value in values])
        for name, type_ in _column_types().items():
            table = table.append_column(name, _column([value.get(name, []) for value in values], type_))
        content = io.BytesIO()
        write_table(table, content)
        return found, PARQUET, content.getvalue()

    def _annotate(self, items: Iterable[Placed], errors: "_Errors", format_: Optional[str] = None) -> Iterator[Record]:
        """Annotates some texts at a time. If one of these can't be annotated, each of them is annotated alone."""
        items = iter(items)
        while some := list(islice(items, TEXTS)):
            try:
                found = list(self.records((item for _, item in some), format_))
            except Exception:  # whatever components raise
                found = []
                for place, item in some:
                    with errors.kept_of(place):
                        found += self.records([item], format_)
            yield from found

    def records(self, items: Iterable[Item], format_: Optional[str] = None) -> Iterator[Record]:
        """Annotates texts, for a format that may be another than the job's. A span without a probability counts as certain."""
        options, format_ = self._job.options, format_ or self._job.options.format
        for doc, item in self.nlp.pipe(((item["text"], item) for item in items), as_tuples=True):
            check_spans(format_, doc)
            found = [(span, probability(span)) for span in doc.ents]
            likely = [(span, prob) for span, prob in found if prob >= options.min_prob]
            doubtful = [span for span, prob in found if prob < options.min_prob]
            uncertainty = self._uncertainty(doc) if options.sort else 0.0
            text = WRITERS[format_].render(Found(doc, item, likely, doubtful))
            yield Record(uncertainty, len(likely), len(doubtful), text)

    def _uncertainty(self, doc: Doc) -> float:
        """The expected share of tokens whose most probable tag is wrong: long texts do not come first for being long."""
        if not len(doc):
            return 0.0
        return sum(float((1.0 - pipe.marginals(doc)[0].max(axis=1)).mean()) for pipe in self._pipes)


def all_wrong(part: Part, errors: list[tuple[str, str]]) -> ValueError:
    [place, error], *_ = errors
    return ValueError(Errors.CRF779.format(part=part.place, place=place, error=error))


class _Errors:
    """Places of texts that can't be annotated, and reasons. is_strict (bool): Whether the first ends the work."""

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
                raise ValueError(
                    Errors.CRF787.format(place=place, error=error, advice=" (without --strict it goes to errors.jsonl)")
                ) from error
            self.kept.append((place, str(error) or type(error).__name__))


# ------------------------------------------------------------------------------------------------------------ texts


def read_batches(source: Path, nlp: Language, done: dict[int, dict[str, Any]], folder: str) -> Iterator[Batch]:
    """The texts of a file, but for batches that are done.

    RAISES (ValueError): With the place, if a text can't be read, is annotated or is too long; CRF786 if a batch that is done had
        other texts.
    """
    position = before = 0

    def progress(now: int, size: int) -> None:
        nonlocal position
        position = now

    items = _unannotated(read_items(source, progress), nlp)
    for number in count():
        batch = Batch(number, list(islice(items, TEXTS)), position - before)
        if not batch.items:
            return
        if number not in done:
            before = position
            yield batch
        elif done[number]["checksum"] != batch.checksum:
            reason = f"the texts from {batch.items[0].place} on are others"
            raise ValueError(Errors.CRF786.format(path=folder, reason=reason))


def _unannotated(items: Iterable[tuple[str, Item]], nlp: Language) -> Iterator[Placed]:
    for place, item in items:
        check_length(item["text"], nlp, place)
        yield Placed(place, _without_annotation(item, place))


def _without_annotation(item: Item, place: str) -> Item:
    """RAISES (ValueError): CRF873 if the text is annotated: its annotation would be lost."""
    for key in SPAN_KEYS:
        if isinstance(item.get(key), (list, dict)) and item[key]:
            raise ValueError(Errors.CRF873.format(place=place, key=key, value=shown(item[key])))
    return {key: value for key, value in item.items() if key not in (*SPAN_KEYS, "tokens", "answer")}


def _items_of_lines(part: Part, errors: _Errors) -> Iterator[Placed]:
    for place, line in lines(part):
        with errors.kept_of(place):
            [(_, text)] = read_lines([line], place)
            if text := text.strip():
                item = _without_annotation(item_of_line(text, place), place)
                yield Placed(place, item)


def _items_of_rows(part: Part, texts: list[Any], errors: _Errors) -> Iterator[Placed]:
    for row, text in enumerate(texts):
        place = f"{part.place}, row {row + 1}"
        with errors.kept_of(place):
            if not isinstance(text, str):
                raise ValueError(Errors.CRF709.format(place=place))
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
