"""Texts that a pipeline annotates for people to look through, in the form that their tool takes in."""

import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, BinaryIO, NamedTuple, Optional

import typer
from spacy.language import Language
from spacy.tokens import Doc
from wasabi import msg

from ..errors import Errors, shown
from ..sealed import whole
from .formats.texts import SPAN_KEYS
from .formats.writers import WRITERS, check_spans, probability
from .formats.writers import Annotated as Found
from .main import (
    CodeOption,
    ModelArgument,
    app,
    check_writable,
    choice,
    load_pipeline,
    our_pipes,
    told_briefly,
)
from .raw_texts import STANDARD, Item, read_items

if TYPE_CHECKING:
    from rich.progress import Progress

    from ..pipeline.crf_pipe import CRFPipe

FormatName = choice("FormatName", WRITERS)
Order = choice("Order", ("uncertainty",))


class Options(NamedTuple):
    """format (str): Of the output, a name of ``WRITERS``. sort (bool): Whether what is least certain comes first.
    min_prob (float): Spans that are less probable are not written."""

    format: str
    sort: bool
    min_prob: float


class Record(NamedTuple):
    """A text as it will be written, and what of it is needed besides: a checksum that tells texts apart, its uncertainty, and
    how many spans were written and left out."""

    checksum: int
    uncertainty: float
    spans: int
    doubtful: int
    text: str


@app.command("annotate")
def annotate_cli(
    model: ModelArgument,
    input_path: Annotated[Path, typer.Argument(help='Texts: one a line, or JSONL with a "text" in each; - for stdin.')],
    output_path: Annotated[Path, typer.Argument(help="The file to write; - for stdout.")],
    format_: Annotated[FormatName, typer.Option("--format", "-f", help="Who takes it in.")] = FormatName.prodigy,
    sort: Annotated[Optional[Order], typer.Option("--sort", help="What is least certain comes first.")] = None,
    min_prob: Annotated[
        float, typer.Option("--min-prob", min=0.0, max=1.0, help="Leave out spans that are less probable.")
    ] = 0.0,
    component: Annotated[
        Optional[str], typer.Option("--component", "-c", help="Whose certainty; by default all.")
    ] = None,
    code: CodeOption = None,
) -> None:
    """Annotate texts for people to look through. The output is in the form that Prodigy, doccano or Label Studio take in, or
    columns, or a .spacy file; `convert` reads all of them. What is stopped goes on where it was when the same command is given
    again."""
    from rich.console import Console
    from rich.progress import Progress

    options = Options(format_.value, sort is not None, min_prob)
    is_standard, told = str(output_path) == STANDARD, None
    with told_briefly(), Progress(console=Console(stderr=True), transient=True) as progress:
        if not is_standard:
            check_writable(output_path, input_path)
        items = _items(input_path, progress)
        nlp = load_pipeline(model, code)
        name = f"{model} {input_path} {component}"
        if is_standard:
            annotate_to(sys.stdout.buffer, nlp, items, options, component=component)
        elif output_path.exists() and not output_path.is_file():  # a pipe or a device
            with output_path.open("wb") as file:
                annotate_to(file, nlp, items, options, component=component)
        else:
            told = annotate(nlp, items, output_path, options, component=component, name=name)
    if told is not None:
        doubtful = f", {told.doubtful:,} less probable ones left out" if min_prob else ""
        msg.good(f"{output_path}: {told.texts:,} texts, {told.spans:,} spans{doubtful}")


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
    RAISES (ValueError): If the pipeline has no component of ours, there are no texts, or the journal is of something else.
    """
    our_pipes(nlp, component, Errors.CRF710)  # before anything is written
    output.parent.mkdir(parents=True, exist_ok=True)
    journal = Journal(output.with_name(f"{output.name}.part"), f"{name} {options}")
    try:
        journal.extend(_records(nlp, journal.remaining(items), options, component))
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
    texts = (record.text for record in _records(nlp, items, options, component))
    WRITERS[options.format].join(texts, file, nlp.vocab)
    file.flush()


# ------------------------------------------------------------------------------------------------------------ texts


def _items(path: Path, bars: "Progress") -> Iterator[Item]:
    task = bars.add_task("annotating", total=None)
    for place, item in read_items(path, lambda done, total: bars.update(task, completed=done, total=total)):
        yield _without_annotation(item, place)


def _without_annotation(item: Item, place: str) -> Item:
    """RAISES (ValueError): CRF873 if it is annotated, which would be lost."""
    for key in SPAN_KEYS:
        if isinstance(item.get(key), list | dict) and item[key]:
            raise ValueError(Errors.CRF873.format(place=place, key=key, value=shown(item[key])))
    return {key: value for key, value in item.items() if key not in (*SPAN_KEYS, "tokens", "answer")}


# ---------------------------------------------------------------------------------------------------------- records


def _records(nlp: Language, items: Iterable[Item], options: Options, component: Optional[str]) -> Iterator[Record]:
    from ..pipeline.prediction import tell_probabilities

    pipes = our_pipes(nlp, component, Errors.CRF710)
    tell_probabilities(pipes)
    for doc, item in nlp.pipe(((item["text"], item) for item in items), as_tuples=True):
        check_spans(options.format, doc)
        likely = [span for span in doc.ents if probability(span) >= options.min_prob]
        doubtful = [span for span in doc.ents if probability(span) < options.min_prob]
        uncertainty = _uncertainty(doc, pipes) if options.sort else 0.0
        text = WRITERS[options.format].render(Found(doc, item, likely, doubtful))
        yield Record(_checksum(item), uncertainty, len(likely), len(doubtful), text)


def _uncertainty(doc: Doc, pipes: list["CRFPipe"]) -> float:
    """The share of tokens whose most probable tag is expected to be wrong: long texts do not come first for being long."""
    return sum(float((1.0 - pipe.marginals(doc)[0].max(axis=1)).mean()) for pipe in pipes) if len(doc) else 0.0


def _checksum(item: Item) -> int:
    return zlib.crc32(item["text"].encode("utf8", "surrogatepass"))


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
            path.write_text(json.dumps(name) + "\n", encoding="utf8")
        self._read()

    def remaining(self, items: Iterable[Item]) -> Iterator[Item]:
        """Items behind those that were done. RAISES (ValueError): CRF875 if those are others."""
        done = len(self._checksums)
        for n, item in enumerate(items):
            if n >= done:
                yield item
            elif self._checksums[n] != _checksum(item):
                raise ValueError(Errors.CRF875.format(path=self.path, reason=f"its text {n + 1} is another"))

    def extend(self, records: Iterable[Record]) -> None:
        with self.path.open("ab") as file:
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
