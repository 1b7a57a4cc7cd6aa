"""The command `annotate`: annotates texts in parts, each of which is written as a whole or not at all.

Without workers, a part is a batch of texts from one file, and all parts are joined at the end to make the output. With workers, a
part is a range of bytes or rows of an archive, each worker loads the pipeline from its path, and the parts themselves are the
output. A manifest names the finished parts; the same command continues with the others.
"""
# pyright: reportInvalidTypeForm=false

import hashlib
import io
import json
import re
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import entry_points
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Optional, Union

import spacy
from spacy.cli._util import Arg, Opt
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import get_package_path
from wasabi import msg

from .. import __version__
from ..errors import Errors, counted, shown
from ..pipeline.corpora import set_origin
from ..whole_files import named_in_errors, whole
from ..workers.executors import Executor
from ..workers.work_folder import Manifest, WorkFolder
from .archive_parts import PARQUET, Part, is_parquet, lines, opened_parquet, plan
from .formats.annotation import check_length
from .formats.source import Fields, Item, decoded
from .formats.texts import SPAN_KEYS
from .formats.writers import WRITERS, Annotated, check_spans, probability
from .shared import (
    PROBABILITIES,
    CodeOption,
    ComponentOption,
    ModelArgument,
    check_writable,
    choice,
    command,
    import_code,
    load_pipeline,
    not_loaded,
    our_pipes,
    progress_bar,
)
from .texts import STANDARD, items_of_line, read_items

if TYPE_CHECKING:
    from ..pipeline.prediction import CRFPipe


FormatName = choice("FormatName", WRITERS)
# Other packages add orders, see `annotator.uncertainty_by`
Order = choice("Order", ("uncertainty", *(entry.name for entry in entry_points(group="spacy_crf_orders"))))
ExecutorName = choice("ExecutorName", ("processes", "ray"))


@command("annotate", has_code=False)
def annotate_cli(
    model: ModelArgument,
    texts: str = Arg(..., help='Lines, or JSONL with "text"; - for the standard input. With --workers also a folder.'),
    output_path: str = Opt("-", "--output", "-o", help="The file, - for the standard output. With --workers a folder."),
    format_: Optional[FormatName] = Opt(None, "--format", help="By default prodigy; spans with --workers."),
    sort: Optional[Order] = Opt(
        None, help="Write the texts first whose tags are least certain, or in the order that a package adds."
    ),
    min_prob: float = Opt(0.0, min=0.0, max=1.0, help="Leave out less probable spans."),
    component: ComponentOption = None,
    code: CodeOption = None,
    workers: Optional[int] = Opt(None, min=1, max=1024, help="Number of workers that share an archive."),
    executor: Optional[ExecutorName] = Opt(None, help="Workers are processes on this machine or on a Ray cluster."),
    address: Optional[str] = Opt(None, help="Address of the Ray cluster; by default the command starts one."),
    strict: bool = Opt(False, "--strict", help="Stop at the first text that can't be annotated."),
    part_size: Optional[float] = Opt(None, min=0.001, help="MiB of texts in each part; by default 0.25 to 4."),
) -> None:
    """Annotate texts. Without --workers, the command writes one file: for Prodigy, doccano or Label Studio, columns, or a .spacy
    file. `convert` reads all of them back. With --workers, it annotates an archive of JSONL, lines of text or Parquet, and writes
    a folder of parts. To continue a command that was stopped, give it again."""

    import_code(code)
    default = "prodigy" if workers is None else "spans"
    options = AnnotateOptions(
        model=model,
        code=code,
        target=output_path,
        format=format_.value if format_ else default,
        sort=sort and sort.value,
        min_prob=min_prob,
        component=component,
        strict=strict,
    )
    only_of_workers = {"--executor": executor, "--address": address, "--strict": strict, "--part-size": part_size}
    with _progress_bar() as progress:
        if workers is None:
            for option, value in only_of_workers.items():
                if value:
                    raise ValueError(Errors.CRF788.format(option=option, other="--workers"))
            source = Path(texts)
            output = Path(output_path)
            is_standard = output_path == STANDARD
            if not is_standard:
                check_writable(output, source)
            # The standard output, a pipe or a device takes texts one by one, and can't be replaced by a finished file
            if is_standard or (output.exists() and not output.is_file()):
                name = "the standard output" if is_standard else output
                with (
                    named_in_errors(name),
                    nullcontext(sys.stdout.buffer) if is_standard else output.open("wb") as file,
                ):
                    annotate_stream(options, source, file)
                return
            total = annotate_file(options, source, progress)
        else:
            from ..workers.executors import Processes, Ray

            if sort is not None:
                raise ValueError(Errors.CRF789)
            is_ray = executor is not None and executor.value == "ray"
            part_bytes = int(part_size * 2**20) if part_size else None
            workforce = Ray(workers, address) if is_ray else Processes(workers)
            total = annotate_archive(options, texts, workforce, part_bytes, progress)
    doubtful = f", {total['doubtful']:,} less probable ones left out" if min_prob else ""
    errors = f", {len(total['errors']):,} that could not be annotated are in errors.jsonl" if total["errors"] else ""
    msg.good(f"{output_path}: {counted(total['texts'], 'text')}, {counted(total['spans'], 'span')}{doubtful}{errors}")


@contextmanager
def _progress_bar() -> Iterator["Progress"]:
    """Show a progress bar with the speed of this run and the time left."""
    with progress_bar("annotating") as update:
        began = time.monotonic()
        earlier: Optional[tuple[int, int]] = None  # texts and bytes of earlier runs, which the first call tells

        def progress(texts: int, done: int, size: int) -> None:
            nonlocal earlier
            if earlier is None:
                earlier = texts, done
            new_texts = texts - earlier[0]
            new_bytes = done - earlier[1]
            seconds = time.monotonic() - began
            description = "annotating"
            if new_texts > 0 and new_bytes > 0:  # else the speed is not known yet
                minutes_left = (size - done) * seconds / new_bytes / 60
                description += f", {new_texts / seconds:,.0f} texts/s, about {minutes_left:.0f} minutes left"
            update(description=description, completed=done, total=size or None)

        yield progress


ERRORS = "errors.jsonl"
TEXTS = 512  # texts of a batch; if one of them can't be annotated, each is annotated alone
_PART = re.compile(r"part-([0-9]{5,20})\.[a-z0-9.]+")  # names of files in a work folder
_ROW = "row"  # key of an item for the number of its row in the table
_KEPT = 1 << 20  # bytes that a worker writes before it begins to forget the words of each part

# Called with the numbers of finished texts, finished bytes and all bytes
Progress = Callable[[int, int, int], object]
Task = Union["Batch", Part]
# Entry of a part in the manifest: its "file" and the file's "bytes", the "checksum" of a batch, the numbers of "texts" and
# "spans" that were written and of "doubtful" spans that were left out, and the "errors": place and reason of each failed text
Entry = dict[str, Any]
Run = Callable[[Iterable[Task]], Iterator[tuple[Task, Entry]]]


class AnnotateOptions(NamedTuple):
    """The options of the command `annotate`, for all of its workers.

    model (str): The pipeline: name of a package, or a folder.
    code (Path): A Python file with functions that the pipeline names.
    target (str): The folder of the parts, or the file to write.
    format (str): Name of the output format in ``WRITERS``.
    sort (str): "uncertainty" if texts with the least certain tags come first, or an entry point of the group `spacy_crf_orders`.
    min_prob (float): Less probable spans are left out.
    component (str): The component whose certainty counts; by default all of spacy_crf.
    strict (bool): Whether the work stops at the first text that can't be annotated.
    """

    model: str
    code: Optional[Path]
    target: str
    format: str
    sort: Optional[str] = None
    min_prob: float = 0.0
    component: Optional[str] = None
    strict: bool = False


class Batch(NamedTuple):
    """Some texts of a file that is annotated without workers."""

    number: int  # from 0 on, in the order of the file
    items: list[Item]
    size: int  # number of bytes read from the file for these texts

    @property
    def checksum(self) -> int:
        """CRC-32 of the texts, by which a continued run sees that the file has changed."""
        texts = "\0".join(fields["text"] for _, fields in self.items)
        return zlib.crc32(texts.encode("utf8", "surrogatepass"))


class Record(NamedTuple):
    """An annotated text, written in the output format."""

    uncertainty: float
    spans: int  # number of written spans
    doubtful: int  # number of spans below `min_prob`, which are left out
    text: str  # in the output format


# --------------------------------------------------------------------------------------------------------- all parts


def annotate_archive(
    options: AnnotateOptions, source: str, executor: Executor, part_bytes: Optional[int], progress: Progress
) -> Entry:
    """Annotate the parts of an archive that earlier runs have not finished, and list the texts that could not be annotated.

    source (str): A file or a folder; see `plan`.
    executor (Executor): Runs the workers.
    part_bytes (int): Size of a part, the work that is lost if a worker dies; by default `plan` chooses it.
    progress (Callable): Called with the numbers of finished texts, finished bytes and all bytes.
    RETURNS (dict): The counts and the errors of all parts, see `_totals`.
    RAISES (ValueError): CRF491 if the target is within the source, where the next run would read the results as texts; other
        codes if the source, the target or a worker fails.
    """
    parts, stamps, part_bytes = plan(source, part_bytes)
    folder = WorkFolder(options.target)
    if folder.is_within(source):
        raise ValueError(Errors.CRF491.format(target=options.target, source=source))
    head = _head(options) | {"files": stamps, "part_bytes": part_bytes}
    # Only names and numbers go to the workers: each loads the pipeline itself
    run = partial(executor.run, partial(Annotator, options, len(parts)))
    with folder.alone():
        manifest = Manifest(folder, head, is_entry=_is_entry)
        # Parts in the manifest are done, also if another number of workers wrote them
        left = [part for part in parts if part.number not in manifest.done]
        total = _annotate(run, left, manifest, source, sum(part.size for part in parts), progress)
        if total["errors"]:
            listed = (json.dumps({"place": place, "error": error}) for place, error in total["errors"])
            folder.write(ERRORS, "".join(f"{line}\n" for line in listed).encode("ascii"))
    return total


def annotate_file(options: AnnotateOptions, source: Path, progress: Progress) -> Entry:
    """Annotate the texts of a file in this process, which has imported the code, and write one output file. Until the output is
    written, a folder beside it holds the finished parts.

    source (Path): Any file of texts, "-" for the standard input.
    RAISES (ValueError): With the place, if a text can't be annotated; CRF710 if the options need a certainty that no component
        gives; CRF784 if there are no texts; CRF786 if the folder has the parts of other work.
    """
    output = Path(options.target)
    path = Path(f"{options.target}.part")
    folder = WorkFolder(str(path))
    annotator = Annotator(options._replace(target=str(path), code=None))
    is_over = False  # whether the output has all texts, or no part was finished
    try:
        with folder.alone():
            manifest = Manifest(folder, _head(options) | {"file": str(source), "batch": TEXTS}, is_entry=_is_entry)
            try:
                # The source is read again from its beginning, and finished batches are compared by their checksums
                batches = read_batches(source, annotator.nlp, manifest.done, folder)
                size = 0 if str(source) == STANDARD else source.stat().st_size
                total = _annotate(annotator.run, batches, manifest, str(source), size, progress)
                files = [path / manifest.done[number]["file"] for number in sorted(manifest.done)]
                with whole(output) as file:
                    WRITERS[options.format].join(_joined(files, bool(options.sort)), file, annotator.nlp.vocab)
                for part in files:
                    part.unlink()
            finally:
                is_over = not any(path.glob("part-*"))
    finally:
        if is_over:
            folder.remove()
    return total


def annotate_stream(options: AnnotateOptions, source: Path, file: BinaryIO) -> None:
    """Annotate the texts of a file, and write them to an open file: one by one, unless they are to be sorted."""
    if options.sort:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "sorted"
            annotate_file(options._replace(target=str(path)), source, lambda *_: None)
            file.write(path.read_bytes())
        return
    annotator = Annotator(options._replace(code=None))
    texts = (record.text for record in annotator.records(unannotated(source, annotator.nlp)))
    WRITERS[options.format].join(texts, file, annotator.nlp.vocab)
    file.flush()


def _annotate(run: Run, left: Iterable[Task], manifest: Manifest, source: str, size: int, progress: Progress) -> Entry:
    """Annotate the parts that earlier runs have not finished, and enter the result of each in the manifest.

    run (Callable): Annotates parts, in this process or in workers.
    left (Iterable[Task]): The parts to annotate. A list has their sizes, from which the number of finished bytes follows.
    source (str): Name of the source for messages.
    size (int): Number of bytes of all parts.
    RETURNS (dict): The counts and errors of all parts, also of earlier runs.
    RAISES (ValueError): CRF779 if none of many texts can be annotated, CRF784 if there are no texts.
    """
    # A continued command counts what earlier runs have done
    earlier = _totals(manifest)
    texts = earlier["texts"]
    n_errors = len(earlier["errors"])
    done = size - sum(part.size for part in left) if isinstance(left, list) else 0
    progress(texts, done, size)
    try:
        for part, entry in run(left):
            manifest.enter(part.number, entry)
            texts += entry["texts"]
            n_errors += len(entry["errors"])
            done += part.size
            # If nothing succeeds, the cause is the pipeline or the input, and the other parts would fail too. `Annotator` checks
            # this within a part, and this line over small parts
            if not texts and n_errors >= TEXTS:
                raise _all_wrong(part, entry["errors"])
            progress(texts, done, size)
    finally:
        manifest.end()
    total = _totals(manifest)
    if not total["texts"] and not total["errors"]:
        raise ValueError(Errors.CRF784.format(path=source, reason="there are no texts in it"))
    return total


def _all_wrong(part: Any, errors: list[tuple[str, str]]) -> ValueError:
    """Make the error for a part none of whose texts can be annotated: it shows the first of their errors."""
    [place, error], *_ = errors
    return ValueError(Errors.CRF779.format(part=part.place, place=place, error=error))


def _totals(manifest: Manifest) -> Entry:
    """The counts and the errors of all parts."""
    parts = [manifest.done[number] for number in sorted(manifest.done)]
    errors = list(chain.from_iterable(part["errors"] for part in parts))
    total: Entry = {"texts": 0, "spans": 0, "doubtful": 0, "errors": errors}
    for part in parts:
        for name in ("texts", "spans", "doubtful"):
            total[name] += part[name]
    return total


def _is_entry(number: object, entry: object) -> bool:
    """Whether a line of a manifest is the entry of a part. A damaged manifest could name files that are no parts."""
    counts = ("bytes", "checksum", "texts", "spans", "doubtful")
    if not isinstance(entry, dict) or {*entry} != {"file", "errors", *counts}:
        return False
    numbers = [number, *(entry[name] for name in counts)]
    if not all(type(count) is int and count >= 0 for count in numbers):
        return False
    name = _PART.fullmatch(entry["file"]) if isinstance(entry["file"], str) else None
    if name is None or int(name[1]) != number:
        return False
    return isinstance(entry["errors"], list) and all(map(_is_error, entry["errors"]))


def _is_error(error: object) -> bool:
    """Whether a value of JSON is the place and the reason of an error."""
    return isinstance(error, list) and list(map(type, error)) == [str, str]


def _head(options: AnnotateOptions) -> Entry:
    """The head of a manifest: the pipeline and the options that identify the work.

    RAISES (ValueError): CRF715 if there is no such pipeline.
    """
    model = Path(options.model)
    try:
        folder = model if model.exists() else get_package_path(options.model)
    except ImportError as error:
        raise ValueError(not_loaded(options.model, error)) from None
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0")
        digest.update(path.read_bytes())
    return {
        "model": digest.hexdigest()[:16],
        "code": options.code.read_text(encoding="utf8") if options.code else None,
        "options": [options.format, options.sort, options.min_prob, options.component],
        "versions": [__version__, spacy.__version__],
    }


def _joined(files: Iterable[Path], by_uncertainty: bool) -> Iterator[str]:
    """Yield the texts of finished batches, in their order or the least certain first. Memory holds one text at a time."""
    if not by_uncertainty:
        for path in files:
            yield from (record.text for record in _stored(path))
        return
    records = []
    for path in files:
        records += [(record.uncertainty, path, record.byte) for record in _stored(path)]
    for _, path, byte in sorted(records, key=lambda record: -record[0]):
        yield next(_stored(path, byte)).text


class _Stored(NamedTuple):
    """A record in the file of a finished batch."""

    uncertainty: float
    byte: int  # where its line begins
    text: str  # in the output format


def _stored(path: Path, byte: int = 0) -> Iterator[_Stored]:
    """Read the records in the file of a finished batch, from a byte on."""
    with path.open("rb") as file:
        file.seek(byte)
        for line in file:
            try:
                uncertainty, text = json.loads(line)
                record = _Stored(float(uncertainty), byte, text + "")  # no text raises TypeError
            except (ValueError, TypeError, RecursionError) as error:
                raise ValueError(Errors.CRF786.format(path=path, reason=f"byte {byte}: {error}")) from error
            yield record
            byte += len(line)


# ---------------------------------------------------------------------------------------------------------- one part


class Annotator:
    """Annotates parts, in one worker.

    n_parts (int): Number of all parts. The names of their files have equal lengths, so that they sort.
    nlp (Language): The pipeline.
    RAISES (ValueError): CRF710 if the options need a certainty that no component gives.
    """

    def __init__(self, options: AnnotateOptions, n_parts: int = 0):
        from ..pipeline.probabilities import turn_on_confidence

        self._options = options
        self._digits = max(5, len(str(n_parts - 1)))
        import_code(options.code)
        self.nlp = load_pipeline(options.model)
        is_asked = options.sort or options.min_prob > 0.0 or options.component is not None
        self._pipes = our_pipes(self.nlp, options.component, PROBABILITIES if is_asked else None)
        turn_on_confidence(self._pipes)
        self._uncertainty = uncertainty_by(options.sort or "uncertainty", self._pipes)
        self._folder = WorkFolder(options.target)
        self._written = 0  # bytes
        # Place and reason of each text of the part that can't be annotated
        self._errors: list[tuple[str, str]] = []

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Entry]]:
        """Annotate parts in this process, as an executor does in others."""
        return ((task, self(task)) for task in tasks)

    def __call__(self, part: Task) -> Entry:
        """Annotate a part, and write its file. RETURNS (dict): Its entry for the manifest."""
        self._errors = []
        # A memory zone forgets the words of a part when the part ends. The first parts have no zone: only outside of zones does
        # the tokenizer cache how it splits words, a quarter of all work
        with self.nlp.memory_zone() if self._written >= _KEPT else nullcontext():
            if isinstance(part, Batch):
                # `annotate_file` will join these lines, perhaps by uncertainty
                records = list(self.records(part.items))
                stored = [json.dumps((record.uncertainty, record.text)) + "\n" for record in records]
                suffix = ".jsonl"
                content = "".join(stored).encode("ascii")
            elif is_parquet(part.path):
                suffix = PARQUET
                records, content = self._annotate_rows(part)
            else:
                writer = WRITERS[self._options.format]
                file = io.BytesIO()
                records = list(self._annotate(self._items_of_lines(part), self._options.format))
                writer.join((record.text for record in records), file, self.nlp.vocab)
                suffix = writer.suffix
                content = file.getvalue()
        if not records and len(self._errors) >= TEXTS:
            raise _all_wrong(part, self._errors)
        name = f"part-{part.number:0{self._digits}}{suffix}"
        self._folder.write(name, content)
        self._written += len(content)
        return {
            "file": name,
            "bytes": len(content),
            "checksum": part.checksum if isinstance(part, Batch) else 0,
            "texts": len(records),
            "spans": sum(record.spans for record in records),
            "doubtful": sum(record.doubtful for record in records),
            # Places end with numbers, of which the shorter is less
            "errors": sorted(self._errors, key=lambda error: (len(error[0]), error[0])),
        }

    def _annotate_rows(self, part: Part) -> tuple[list[Record], bytes]:
        """Annotate the rows of a part, and make a Parquet file of those that succeed, with two more columns: "spans" and "cats".

        RAISES (ValueError): CRF784 if the table has no column "text", or already has one of these columns.
        """
        import pyarrow
        from pyarrow.parquet import write_table

        span = {"start": pyarrow.int64(), "end": pyarrow.int64(), "label": pyarrow.string(), "prob": pyarrow.float64()}
        columns = {
            "spans": pyarrow.list_(pyarrow.struct(span)),
            "cats": pyarrow.map_(pyarrow.string(), pyarrow.float64()),
        }
        with opened_parquet(part.path) as file:
            table = file.read_row_groups(range(part.begin, part.end))
        names = table.column_names
        for name in columns:
            if name in names:
                raise ValueError(Errors.CRF784.format(path=part.path, reason=f"it has a column '{name}' already"))
        if "text" not in names:
            reason = f"it has no column 'text', but {', '.join(names)}"
            raise ValueError(Errors.CRF784.format(path=part.path, reason=reason))
        items = self._items_of_rows(part, table.column("text").to_pylist())
        records = list(self._annotate(items, "spans"))
        annotated = [json.loads(record.text) for record in records]
        table = table.take([fields[_ROW] for fields in annotated])
        spans = [fields["spans"] for fields in annotated]
        cats = [list(fields.get("cats", {}).items()) for fields in annotated]  # Arrow takes maps as lists of pairs
        for name, cells in (("spans", spans), ("cats", cats)):
            table = table.append_column(name, pyarrow.array(cells, type=columns[name]))
        content = io.BytesIO()
        write_table(table, content)
        return records, content.getvalue()

    def _annotate(self, items: Iterable[Item], format_: str) -> Iterator[Record]:
        """Annotate texts in batches. If one text of a batch can't be annotated, each text of the batch is annotated alone."""
        items = iter(items)
        while batch := list(islice(items, TEXTS)):
            try:
                records = list(self.records(batch, format_, with_places=False))
            except Exception:  # whatever components raise
                records = []
                for item in batch:
                    with self._collect_error(item.place):
                        records += self.records([item], format_, with_places=False)
            yield from records

    def records(
        self, items: Iterable[Item], format_: Optional[str] = None, *, with_places: bool = True
    ) -> Iterator[Record]:
        """Annotate texts, and yield their records in a format, by default that of the options. A span without a probability is
        certain.

        with_places (bool): Whether to write where each text comes from. Texts of archives keep only their fields, such as an id.
        """
        options = self._options
        format_ = format_ or options.format
        # Texts go in together, since kernels label batches faster
        for doc, (place, fields) in self.nlp.pipe(((item.value["text"], item) for item in items), as_tuples=True):
            if with_places:
                set_origin(doc, place, fields.get("id"))
            groups = [doc.spans[pipe.cfg["spans_key"]] for pipe in self._pipes if "spans_key" in pipe.cfg]
            check_spans(format_, doc, groups)
            spans = [(span, probability(span)) for span in doc.ents]
            for group in groups:
                spans += [(span, round(float(prob), 6)) for span, prob in zip(group, group.attrs["scores"])]
            likely = [(span, prob) for span, prob in spans if prob >= options.min_prob]
            doubtful = [span for span, prob in spans if prob < options.min_prob]
            yield Record(
                uncertainty=self._uncertainty(doc) if options.sort and len(doc) else 0.0,
                spans=len(likely),
                doubtful=len(doubtful),
                text=WRITERS[format_].render(Annotated(doc, fields, likely, doubtful)),
            )

    def _items_of_lines(self, part: Part) -> Iterator[Item]:
        """Read the texts of a part whose lines are texts or JSON objects, and collect the errors of lines that can't be read."""
        for place, line in lines(part):
            with self._collect_error(place):
                text = decoded(line, place, is_first=True)
                yield from (Item(place, _without_annotation(fields, place)) for _, fields in items_of_line(text, place))

    def _items_of_rows(self, part: Part, texts: list[object]) -> Iterator[Item]:
        """Make an item for each cell of the column "text", and collect the errors of cells that are no texts."""
        for row, text in enumerate(texts):
            place = f"{part.place}, row {row + 1}"
            with self._collect_error(place):
                if not isinstance(text, str):
                    raise ValueError(Errors.CRF709.format(place=place))
                yield Item(place, {"text": text, _ROW: row})

    @contextmanager
    def _collect_error(self, place: str) -> Iterator[None]:
        """Collect the error that the text at a place raises, so that the work goes on.

        RAISES (ValueError): CRF787 with the place, if the options are strict.
        """
        try:
            yield
        except OSError:
            raise  # the text is not the cause
        except Exception as error:
            if self._options.strict:
                raise ValueError(
                    Errors.CRF787.format(place=place, error=error, advice=" (without --strict it goes to errors.jsonl)")
                ) from error
            self._errors.append((place, str(error) or type(error).__name__))


def uncertainty_by(order: str, pipes: "list[CRFPipe]") -> Callable[[Doc], float]:
    """Find the function by which texts are sorted.

    order (str): "uncertainty": the expected share of tokens whose most probable tag is wrong, so that long texts do not come
        first for being long. Or the name of an entry point of the group `spacy_crf_orders`: a function like this one, without
        `order`.
    RETURNS (Callable[[Doc], float]): The uncertainty of an annotated text that has tokens.
    """
    if order != "uncertainty":
        [entry] = entry_points(group="spacy_crf_orders", name=order)
        return entry.load()(pipes)

    def uncertainty(doc: Doc) -> float:
        shares = [1.0 - pipe.marginals(doc)[0].max(axis=1) for pipe in pipes]  # [T] for each component
        return sum(float(share.mean()) for share in shares)

    return uncertainty


# ------------------------------------------------------------------------------------------------------------- texts


def read_batches(source: Path, nlp: Language, done: dict[int, Entry], folder: WorkFolder) -> Iterator[Batch]:
    """Read the texts of a file in batches, without the batches that are done.

    RAISES (ValueError): As `unannotated`; CRF786 if the texts of a finished batch have changed.
    """
    position = 0  # number of bytes read
    begin = 0  # position before the batch

    def progress(done: int, size: int) -> None:
        nonlocal position
        position = done

    items = unannotated(source, nlp, progress)
    for number in count():
        # The arguments are evaluated in this order: reading the texts moves the position
        batch = Batch(number, list(islice(items, TEXTS)), position - begin)
        if not batch.items:
            return
        if number not in done:
            begin = position  # not behind finished batches: their bytes count as those of the next one
            yield batch
        elif done[number]["checksum"] != batch.checksum:
            raise folder.refusal(f"the texts from {batch.items[0].place} on are others")


def unannotated(source: Path, nlp: Language, *progress: Callable[[int, int], None]) -> Iterator[Item]:
    """Read the texts of a file. RAISES (ValueError): With the place, if a text can't be read, is annotated or is too long."""
    for place, fields in read_items(source, *progress):
        check_length(fields["text"], nlp, place)
        yield Item(place, _without_annotation(fields, place))


def _without_annotation(fields: Fields, place: str) -> Fields:
    """The fields of a text that stay. RAISES (ValueError): CRF873 if the text is annotated, since the output would lose it."""
    for key in SPAN_KEYS:
        if isinstance(fields.get(key), (list, dict)) and fields[key]:
            raise ValueError(Errors.CRF873.format(place=place, key=key, value=shown(fields[key])))
    return {key: value for key, value in fields.items() if key not in (*SPAN_KEYS, "tokens", "answer")}
