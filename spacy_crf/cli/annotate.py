"""The command `annotate`, and its progress bar."""
# pyright: reportInvalidTypeForm=false

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from spacy.cli._util import Arg, Opt
from wasabi import msg

from ..errors import Errors, counted
from ..whole_files import named_in_errors
from .formats.writers import WRITERS
from .shared import (
    CodeOption,
    ComponentOption,
    ModelArgument,
    check_writable,
    choice,
    command,
    import_code,
    progress_bar,
)
from .texts import STANDARD

if TYPE_CHECKING:
    from .annotator import Progress

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
    from .annotator import AnnotateOptions, annotate_archive, annotate_file, annotate_stream

    import_code(code)
    default = "prodigy" if workers is None else "spans"
    wanted = format_.value if format_ else default, sort and sort.value, min_prob, component, strict
    options = AnnotateOptions(model, code, output_path, *wanted)
    given = {"--executor": executor, "--address": address, "--strict": strict, "--part-size": part_size}
    with _progress_bar() as progress:
        if workers is None:
            for option in (option for option, value in given.items() if value):
                raise ValueError(Errors.CRF788.format(option=option, other="--workers"))
            source = Path(texts)
            output = Path(output_path)
            is_standard = output_path == STANDARD
            if not is_standard:
                check_writable(output, source)
            if is_standard or (output.exists() and not output.is_file()):  # a pipe or a device
                name = "the standard output" if is_standard else output
                with (
                    named_in_errors(name),
                    nullcontext(sys.stdout.buffer) if is_standard else output.open("wb") as file,
                ):
                    annotate_stream(options, source, file)
                return
            found = annotate_file(options, source, progress)
        else:
            from ..workers.executors import Processes, Ray

            if sort is not None:
                raise ValueError(Errors.CRF789)
            is_ray = executor is not None and executor.value == "ray"
            part_bytes = int(part_size * 2**20) if part_size else None
            workforce = Ray(workers, address) if is_ray else Processes(workers)
            found = annotate_archive(options, texts, workforce, part_bytes, progress)
    doubtful = f", {found['doubtful']:,} less probable ones left out" if min_prob else ""
    left_out = f", {len(found['errors']):,} that could not be annotated are in errors.jsonl" if found["errors"] else ""
    msg.good(f"{output_path}: {counted(found['texts'], 'text')}, {counted(found['spans'], 'span')}{doubtful}{left_out}")


@contextmanager
def _progress_bar() -> Iterator["Progress"]:
    """Show a progress bar with the speed of this run and the time left."""
    with progress_bar("annotating") as update:
        began = time.monotonic()
        before: Optional[tuple[int, int]] = None  # texts and bytes of earlier runs

        def progress(texts: int, done: int, size: int) -> None:
            nonlocal before
            before = (texts, done) if before is None else before
            spent = time.monotonic() - began
            description = "annotating"
            if texts > before[0] and done > before[1]:
                left = (size - done) * spent / (done - before[1]) / 60
                description += f", {(texts - before[0]) / spent:,.0f} texts/s, about {left:.0f} minutes left"
            update(description=description, completed=done, total=size or None)

        yield progress
