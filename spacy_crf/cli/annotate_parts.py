"""Texts that a pipeline annotates, in parts, each of which is written as a whole or not at all.

Without workers a part is a batch of texts from one file, and in the end all parts are joined to the output. With workers a part
is some bytes or rows of an archive, each worker loads the pipeline by its path, and the parts themselves are the output. A
manifest names the parts that are done: the same command goes on with the others.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Optional

import spacy
from spacy.util import get_package_path

from .. import __version__
from ..errors import Errors
from ..lab.workers.executors import Executor
from ..lab.workers.work_folder import Manifest, WorkFolder
from ..whole_files import whole
from .annotator import TEXTS, Annotator, Finished, Job, Task, Written, all_wrong, read_batches
from .archive_parts import plan
from .formats.writers import WRITERS
from .texts import STANDARD

ERRORS = "errors.jsonl"
Told = Callable[[int, int, int], Any]  # called with the number of texts done, of bytes done, and of all bytes
Run = Callable[[Iterable[Task]], Iterator[tuple[Task, Written]]]


def annotate_archive(job: Job, source: str, executor: Executor, part_bytes: Optional[int], told: Told) -> Finished:
    """Annotates the parts of an archive that are not done yet, and lists the texts that could not be annotated.

    part_bytes (int): Size of a part, which is lost if a worker dies. By default `plan` says.
    RAISES (ValueError): With a code, if the source, the target or a worker can't do it; CRF491 if the results would be
        texts of the next run.
    """
    planned, target = plan(source, part_bytes), WorkFolder(job.target)
    if target.is_within(source):
        raise ValueError(Errors.CRF491.format(target=job.target, source=source))
    head = _head(job) | {"files": planned.files, "part_bytes": planned.part_bytes}
    run = partial(executor.run, partial(Annotator, job, len(planned.parts)))
    with target.alone():
        manifest = Manifest(target, head)
        left = [part for part in planned.parts if part.number not in manifest.done]
        total = _annotate(run, left, manifest, source, planned.size, told)
        if total.errors:
            listed = (json.dumps({"place": place, "error": error}) for place, error in total.errors)
            target.write(ERRORS, "".join(f"{line}\n" for line in listed).encode("ascii"))
    return total


def annotate_file(job: Job, source: Path, told: Told) -> Finished:
    """Annotates the texts of a file in this process, and writes them to one file, which `job` has as its target. Until that is
    done, the finished parts are in a folder beside it.

    source (Path): Any file of texts, "-" for the standard input.
    RAISES (ValueError): With the place, if a text can't be annotated; CRF710 if nobody knows the certainty that is asked for;
        CRF784 if there are no texts; CRF786 if the folder has the parts of something else.
    """
    output, folder = Path(job.target), Path(f"{job.target}.part")
    target, annotator = WorkFolder(str(folder)), Annotator(job._replace(target=str(folder)))
    head = _head(job) | {"file": str(source), "batch": TEXTS}
    try:
        with target.alone():
            manifest = Manifest(target, head)
            batches = read_batches(source, annotator.nlp, manifest.done, str(folder))
            size = 0 if str(source) == STANDARD else source.stat().st_size
            total = _annotate(annotator.run, batches, manifest, str(source), size, told)
            files = [folder / manifest.done[number]["file"] for number in sorted(manifest.done)]
            with whole(output) as file:
                WRITERS[job.options.format].join(_joined(files, job.options.sort), file, annotator.nlp.vocab)
            for path in files:
                path.unlink()
    finally:
        if not any(folder.glob("part-*")):  # all is in the output, or nothing was done
            shutil.rmtree(folder, ignore_errors=True)
    return total


def annotate_stream(job: Job, source: Path, file: BinaryIO) -> None:
    """Annotates the texts of a file to an open one: each text when it is done, unless they are to be sorted."""
    if job.options.sort:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "sorted"
            annotate_file(job._replace(target=str(path)), source, lambda *_: None)
            file.write(path.read_bytes())
        return
    annotator = Annotator(job)
    items = (item for batch in read_batches(source, annotator.nlp, {}, "") for _, item in batch.items)
    texts = (record.text for record in annotator.records(items))
    WRITERS[job.options.format].join(texts, file, annotator.nlp.vocab)
    file.flush()


def _annotate(run: Run, left: Iterable[Task], manifest: Manifest, source: str, size: int, told: Told) -> Finished:
    """Enters what `run` makes of the parts that are left. RETURNS (Finished): What is done of all parts.

    size (int): Bytes of all parts. source (str): For messages.
    RAISES (ValueError): CRF779 if none of many texts can be annotated, CRF784 if there are no texts.
    """
    before = _in_all(manifest)
    texts, left_out = before.texts, len(before.errors)
    done = size - sum(part.size for part in left) if isinstance(left, list) else 0
    told(texts, done, size)
    try:
        for part, (file, length, found, checksum) in run(left):
            manifest.enter(part.number, {"file": file, "bytes": length, "checksum": checksum, **found._asdict()})
            texts, left_out, done = texts + found.texts, left_out + len(found.errors), done + part.size
            if not texts and left_out >= TEXTS:  # of small parts
                raise all_wrong(part, found.errors)
            told(texts, done, size)
    finally:
        manifest.end()
    total = _in_all(manifest)
    if not total.texts and not total.errors:
        raise ValueError(Errors.CRF784.format(path=source, reason="there are no texts in it"))
    return total


def _in_all(manifest: Manifest) -> Finished:
    """Sums and errors of all parts that are done, in their order."""
    parts = [manifest.done[number] for number in sorted(manifest.done)]
    texts, spans, doubtful = (sum(part[count] for part in parts) for count in ("texts", "spans", "doubtful"))
    return Finished(texts, spans, doubtful, [error for part in parts for error in part["errors"]])


def _head(job: Job) -> dict[str, Any]:
    """The pipeline and options, by which a manifest tells the same work from other work."""
    return {
        "model": fingerprint(job.model),
        "code": Path(job.code).read_text(encoding="utf8") if job.code else None,
        "options": list(job.options),
        "versions": [__version__, spacy.__version__],
    }


def fingerprint(model: str) -> str:
    """A digest of the files of a pipeline. RAISES (ValueError): CRF715 if there is no such pipeline."""
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


def _joined(files: Iterable[Path], by_uncertainty: bool) -> Iterator[str]:
    """The texts of finished batches, in their order or the least certain first. One at a time is in memory."""
    if not by_uncertainty:
        yield from (text for path in files for _, _, text in _stored(path))
        return
    places = [(uncertainty, path, at) for path in files for uncertainty, at, _ in _stored(path)]
    for _, path, at in sorted(places, key=lambda place: -place[0]):
        yield next(_stored(path, at))[2]


def _stored(path: Path, at: int = 0) -> Iterator[tuple[float, int, str]]:
    """Uncertainty, place in the file and text of each record from a place on."""
    with path.open("rb") as file:
        file.seek(at)
        for line in file:
            uncertainty, text = json.loads(line)
            yield uncertainty, at, text
            at += len(line)
