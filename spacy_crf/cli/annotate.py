"""Texts that a pipeline annotates: the command, and what goes into one file, for people to look through."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple, Optional

import typer
from spacy.language import Language
from wasabi import msg

from ..errors import Errors
from ..whole_files import named_in_errors, whole, write_whole
from .annotation import Options, Record, certain_pipes, checksum, records, without_annotation
from .formats.spans import check_length
from .formats.writers import WRITERS
from .group import app
from .shared import (
    CodeOption,
    ModelArgument,
    check_writable,
    choice,
    load_pipeline,
    told_briefly,
)
from .texts import STANDARD, Item, read_items

if TYPE_CHECKING:
    from rich.progress import Progress

    from .annotate_parts import Told

FormatName = choice("FormatName", WRITERS)
Order = choice("Order", ("uncertainty",))
ExecutorName = choice("ExecutorName", ("processes", "ray"))

_SECONDS = 60.0  # between two lines that tell how far it is, where there is no terminal


@app.command("annotate")
def annotate_cli(
    model: ModelArgument,
    input_path: Annotated[
        str,
        typer.Argument(
            help='Texts: one a line, or JSONL with a "text" in each; - for stdin. With --workers a folder too.'
        ),
    ],
    output_path: Annotated[str, typer.Argument(help="The file to write, - for stdout; with --workers a folder.")],
    format_: Annotated[
        Optional[FormatName], typer.Option("--format", "-f", help="Who takes it in; prodigy, or spans with --workers.")
    ] = None,
    sort: Annotated[Optional[Order], typer.Option("--sort", help="What is least certain comes first.")] = None,
    min_prob: Annotated[
        float, typer.Option("--min-prob", min=0.0, max=1.0, help="Leave out spans that are less probable.")
    ] = 0.0,
    component: Annotated[
        Optional[str], typer.Option("--component", "-c", help="Whose certainty; by default all.")
    ] = None,
    code: CodeOption = None,
    workers: Annotated[
        Optional[int], typer.Option("--workers", min=1, max=1024, help="How many share the work on an archive.")
    ] = None,
    executor: Annotated[
        Optional[ExecutorName], typer.Option("--executor", help="Processes of this machine, or a Ray cluster.")
    ] = None,
    address: Annotated[
        Optional[str], typer.Option("--address", help="Of the Ray cluster; else one is started.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="End with the first text that can't be annotated.")] = False,
    part_size: Annotated[
        Optional[float],
        typer.Option("--part-size", min=0.001, help="MiB that a worker takes at a time; by default 0.25 to 4."),
    ] = None,
) -> None:
    """Annotate texts for people to look through, or by the million. Into one file, in the form that Prodigy, doccano or Label
    Studio take in, as columns or as a .spacy file; `convert` reads all of them. With --workers into a folder, in parts, from
    JSONL, lines of text or Parquet. What is stopped goes on where it was when the same command is given again."""
    options = Options(
        format_.value if format_ else "prodigy" if workers is None else "spans", sort is not None, min_prob
    )
    given = {"--executor": executor, "--address": address, "--strict": strict, "--part-size": part_size}
    with told_briefly():
        if workers is None:
            for option in (option for option, value in given.items() if value):
                raise ValueError(Errors.CRF788.format(option=option))
            _annotate_file(model, Path(input_path), Path(output_path), options, component, code)
            return
        if sort is not None:
            raise ValueError(Errors.CRF789)
        from ..distributed.executors import Processes, Ray
        from .annotate_parts import Job, annotate_parts

        is_ray = executor is not None and executor.value == "ray"
        job = Job(model, str(code) if code else None, output_path, options, component, strict)
        with _bar_of_parts() as told:
            found = annotate_parts(
                job,
                input_path,
                Ray(workers, address) if is_ray else Processes(workers),
                part_bytes=int(part_size * 2**20) if part_size else None,
                told=told,
            )
        left_out = f", {len(found.errors):,} that could not be annotated are in errors.jsonl" if found.errors else ""
        msg.good(
            f"{output_path}: {found.texts:,} texts, {found.spans:,} spans{_doubtful(options, found.doubtful)}{left_out}"
        )


def _annotate_file(
    model: str, source: Path, target: Path, options: Options, component: Optional[str], code: Optional[Path]
) -> None:
    from rich.console import Console
    from rich.progress import Progress

    is_standard, found = str(target) == STANDARD, None
    with Progress(console=Console(stderr=True), transient=True) as progress:
        if not is_standard:
            check_writable(target, source)
        nlp = load_pipeline(model, code)
        items = _items(source, nlp, progress)
        name = f"{model} {source} {component}"
        if is_standard:
            with named_in_errors("the standard output"):
                annotate_to(sys.stdout.buffer, nlp, items, options, component=component)
        elif target.exists() and not target.is_file():  # a pipe or a device
            with named_in_errors(target), target.open("wb") as file:
                annotate_to(file, nlp, items, options, component=component)
        else:
            found = annotate(nlp, items, target, options, component=component, name=name)
    if found is not None:
        msg.good(f"{target}: {found.texts:,} texts, {found.spans:,} spans{_doubtful(options, found.doubtful)}")


def _doubtful(options: Options, n: int) -> str:
    return f", {n:,} less probable ones left out" if options.min_prob else ""


@contextmanager
def _bar_of_parts() -> Iterator["Told"]:
    """A bar with the texts a second of this run, and how long it will take; where there is no terminal a line now and then."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("annotating"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[speed]}"))
    around = {"console": console, "transient": True, "speed_estimate_period": 600.0}  # parts may take minutes
    with Progress(*columns, TimeRemainingColumn(), **around) as progress:
        task = progress.add_task("annotating", total=None, speed="")
        began, before, spoke = time.monotonic(), None, time.monotonic()  # before: texts and bytes of earlier runs

        def told(texts: int, done: int, size: int) -> None:
            nonlocal before, spoke
            before = (texts, done) if before is None else before
            now = time.monotonic()
            speed = f"{(texts - before[0]) / (now - began):,.0f} texts/s" if texts > before[0] else ""
            progress.update(task, completed=done, total=size, speed=speed)
            if not console.is_terminal and now - spoke >= _SECONDS and done > before[1]:
                left = (size - done) * (now - began) / (done - before[1]) / 60
                print(f"{done / size:.0%} done, {speed}, about {left:.0f} minutes left", file=sys.stderr, flush=True)
                spoke = now

        yield told


def annotate(
    nlp: Language,
    items: Iterable[Item],
    output: Path,
    options: Options,
    *,
    component: Optional[str] = None,
    name: str = "",
) -> "Counts":
    """Writes what a pipeline finds in texts. What is done is kept in a journal beside the output until all is.

    items (Iterable[dict]): Each with its "text". What else is there goes to the output too.
    component (str): The only one whose certainty counts; by default that of all of ours.
    name (str): What is annotated by what. A journal goes on with the same only.
    RAISES (ValueError): If nobody knows the certainty that is asked for, there are no texts, or the journal is of something else.
    """
    certain_pipes(nlp, options, component)  # before anything is written
    output.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(output.with_name(f"{output.name}.part"), f"{name} {options}")
    try:
        journal.extend(records(nlp, journal.remaining(items), options, component))
    finally:
        if not journal.counts.texts:
            journal.path.unlink()
    if not journal.counts.texts:
        raise ValueError(Errors.CRF718)
    with whole(output) as file:
        WRITERS[options.format].join(journal.texts(options.sort), file, nlp.vocab)
    journal.path.unlink()
    return journal.counts


def annotate_to(
    file: BinaryIO, nlp: Language, items: Iterable[Item], options: Options, *, component: Optional[str] = None
) -> None:
    """The same, to an open file: each text when it is done, unless they are to be sorted."""
    if options.sort:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "sorted"
            annotate(nlp, items, path, options, component=component)
            file.write(path.read_bytes())
        return
    texts = (record.text for record in records(nlp, items, options, component))
    WRITERS[options.format].join(texts, file, nlp.vocab)
    file.flush()


# ------------------------------------------------------------------------------------------------------------ texts


def _items(path: Path, nlp: Language, bars: "Progress") -> Iterator[Item]:
    """RAISES (ValueError): With the place, if a text can't be read, is annotated or is too long."""
    task = bars.add_task("annotating", total=None)
    for place, item in read_items(path, lambda done, total: bars.update(task, completed=done, total=total)):
        check_length(item["text"], nlp, place)
        yield without_annotation(item, place)


# ---------------------------------------------------------------------------------------------------------- journal


class Counts(NamedTuple):
    texts: int = 0
    spans: int = 0
    doubtful: int = 0

    def plus(self, record: Record) -> "Counts":
        return Counts(self.texts + 1, self.spans + record.spans, self.doubtful + record.doubtful)


class Journal:
    """Records on disk, one JSON list a line behind a line that says what they are of.

    RAISES (ValueError): CRF875 if there is one of something else.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.counts = Counts()
        self._places: list[tuple[float, int]] = []  # uncertainty, and where the record begins
        self._checksums: list[int] = []
        if not path.exists() or not self._has_records():
            write_whole(path, json.dumps(name).encode("ascii") + b"\n")
        self._read()

    def remaining(self, items: Iterable[Item]) -> Iterator[Item]:
        """Items behind those that were done. RAISES (ValueError): CRF875 if those are others."""
        done = len(self._checksums)
        for n, item in enumerate(items):
            if n >= done:
                yield item
            elif self._checksums[n] != checksum(item):
                raise ValueError(Errors.CRF875.format(path=self.path, reason=f"its text {n + 1} is another"))

    def extend(self, records: Iterable[Record]) -> None:
        with named_in_errors(self.path), self.path.open("ab") as file:
            for record in records:
                self._take(record, file.tell())
                file.write(json.dumps(record).encode("ascii") + b"\n")

    def texts(self, by_uncertainty: bool) -> Iterator[str]:
        places = sorted(self._places, key=lambda place: -place[0]) if by_uncertainty else self._places
        with self.path.open("rb") as file:
            for _, at in places:
                file.seek(at)
                yield Record(*json.loads(file.readline())).text

    def _has_records(self) -> bool:
        with self.path.open("rb") as file:
            return len(list(islice(file, 2))) == 2

    def _read(self) -> None:
        with self.path.open("rb+") as file:
            if file.readline() != json.dumps(self.name).encode("ascii") + b"\n":
                raise ValueError(Errors.CRF875.format(path=self.path, reason="it was begun by another command"))
            at = file.tell()
            for line in file:
                if not line.endswith(b"\n"):
                    break  # it was stopped within it
                try:
                    self._take(Record(*json.loads(line)), at)
                except (ValueError, TypeError) as error:
                    raise ValueError(Errors.CRF875.format(path=self.path, reason=f"is damaged ({error})")) from None
                at += len(line)
            file.truncate(at)

    def _take(self, record: Record, at: int) -> None:
        self.counts = self.counts.plus(record)
        self._places.append((record.uncertainty, at))
        self._checksums.append(record.checksum)
