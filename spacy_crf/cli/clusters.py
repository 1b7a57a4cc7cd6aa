"""Clusters and vectors of words from raw texts, for templates such as ``cluster6[0]`` and ``vector[0]``."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer
from spacy.language import Language
from spacy.training.initialize import convert_vectors
from wasabi import msg

from .. import checks
from ..errors import Errors
from ..whole_files import write_whole
from .group import app
from .shared import (
    CodeOption,
    LangOption,
    blank,
    brief_errors,
    check_writable,
    choice,
    import_code,
    load_pipeline,
    save_pipeline,
)
from .texts import read_raw

if TYPE_CHECKING:
    from spacy.vectors import Vectors

    from ..features.clusters import WordClusters
    from ..lab.brown import Brown, WordCounter

CLUSTERS, VECTORS = "spacy crf clusters", "spacy crf vectors"
MOST_BROWN = 10_000  # clusters: more need a table of more than 1.6 GB
SAVE_SECONDS = 60.0

# Called with the name of a task, the amount that is done, and the whole amount
Progress = Callable[[str, int, int], None]


@app.command("clusters")
def clusters_cli(
    files: Annotated[
        list[Path], typer.Argument(metavar="[TEXTS]... OUTPUT", help="Raw texts (.jsonl, .spacy, or lines).")
    ],
    method: Annotated[Optional[str], typer.Option("--method", help="brown for texts, kmeans for vectors.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="Number of clusters.")] = 1000,
    min_count: Annotated[int, typer.Option("--min-count", help="Leave out words with fewer occurrences.")] = 3,
    from_vectors: Annotated[
        Optional[str], typer.Option("--from-vectors", help="A pipeline with word vectors, or a folder of vectors.")
    ] = None,
    lang: LangOption = "en",
    lower: Annotated[bool, typer.Option("--lower", help="Ignore case.")] = False,
    digits: Annotated[bool, typer.Option("--digits", help="Keep digits: by default, all digits are one.")] = False,
    code: CodeOption = None,
) -> None:
    """Put words that are used alike into clusters. Brown clusters are made of raw texts, others of word vectors. A command that
    was stopped continues when it is given again."""
    *texts, output = files
    with brief_errors(), progress_bars() as progress:
        import_code(code)
        check_writable(output, *texts)
        _check_arguments(method, texts, from_vectors)
        if from_vectors is not None:
            made = clusters_of_vectors(from_vectors, n, progress=progress)
        else:
            made = clusters_of_texts(
                texts, n, output, min_count=min_count, lang=lang, lower=lower, digits=digits, progress=progress
            )
        _write_clusters(made, output)
    msg.good(f"{len(made.words):,} words in {len(made.paths):,} clusters: {output}")


def _check_arguments(method: Optional[str], texts: list[Path], from_vectors: Optional[str]) -> None:
    """RAISES (ValueError): CRF020 or CRF952 for arguments that contradict each other."""
    if method is not None:
        checks.one_of(CLUSTERS, "--method", method, ("brown", "kmeans"))
    is_kmeans = from_vectors is not None
    if is_kmeans == bool(texts) or method not in (None, "kmeans" if is_kmeans else "brown"):
        raise ValueError(Errors.CRF952.format(files=", ".join(map(str, texts)) or "none", vectors=from_vectors))


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """Show a progress bar for each task."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Bars(*columns, transient=True) as bars:
        tasks: dict[str, int] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield progress


def _silent(what: str, done: int, total: int) -> None:
    pass


def _write_clusters(made: "WordClusters", output: Path) -> None:
    from ..features.clusters import write_clusters

    write_clusters(output, made)
    _checkpoint(output).unlink(missing_ok=True)


# ------------------------------------------------------------------------------------------------------------ vectors


def clusters_of_vectors(source: str, n: int, *, progress: Progress = _silent) -> "WordClusters":
    """Make clusters of the word vectors of a pipeline, or of a folder that `Vectors.to_disk` wrote.

    RAISES (ValueError): CRF715 if there is no such pipeline or folder, CRF948 or CRF948 if it has no vectors or too few.
    """
    from ..features.clusters import MOST_CLUSTERS, cluster_vectors

    n = checks.count(CLUSTERS, "--n", n, least=2, most=MOST_CLUSTERS)
    splits = iter(range(1, n))
    return cluster_vectors(
        _load_vectors(source), n, source, on_split=lambda: progress("splitting", next(splits), n - 1)
    )


def _load_vectors(source: str) -> "Vectors":
    from spacy.vectors import Vectors

    for folder in (Path(source), Path(source) / "vocab"):
        if (folder / "vectors").is_file() and (folder / "key2row").is_file():
            return Vectors().from_disk(folder)
    return load_pipeline(source).vocab.vectors


# -------------------------------------------------------------------------------------------------------------- texts


def clusters_of_texts(
    texts: list[Path],
    n: int,
    output: Path,
    *,
    min_count: int = 3,
    lang: str = "en",
    lower: bool = False,
    digits: bool = False,
    progress: Progress = _silent,
) -> "WordClusters":
    """Make Brown clusters of the words of raw texts. A checkpoint beside the output lets the next call with the same arguments
    continue the work.

    RAISES (ValueError): If the texts can't be read, or have too few words.
    """
    from ..lab.brown import Brown

    n = checks.count(CLUSTERS, "--n", n, least=2, most=MOST_BROWN)
    min_count = checks.count(CLUSTERS, "--min-count", min_count, most=checks.ANY)
    settings = {"n": n, "min_count": min_count, "lang": lang, "lower": lower, "digits": digits}
    what = json.dumps([settings, [_fingerprint(path) for path in texts]])
    checkpoint, saved = _checkpoint(output), time.monotonic()
    source = ", ".join(map(str, texts))
    brown = _go_on(checkpoint, what)
    if brown is None:
        text = _read(texts, tokenizer(lang), progress).text(min_count, lower=lower, digits=not digits)
        brown = Brown(text, n, source)

    def save(brown: "Brown") -> None:
        nonlocal saved
        progress("clustering", brown.done, len(brown.text.words))
        if time.monotonic() - saved > SAVE_SECONDS:
            write_whole(checkpoint, brown.to_bytes(what))
            saved = time.monotonic()

    try:
        return brown.run(save)
    except KeyboardInterrupt:
        write_whole(checkpoint, brown.to_bytes(what))
        msg.info(f"Stopped: the same command goes on from {checkpoint}")
        raise


def _checkpoint(output: Path) -> Path:
    return output.with_name(f"{output.name}.checkpoint")


def _fingerprint(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _go_on(checkpoint: Path, what: str) -> "Optional[Brown]":
    """The work of a checkpoint; None if there is none for the same arguments. RAISES (ValueError): CRF951 if it is damaged."""
    from ..lab.brown import Brown

    if not checkpoint.exists():
        return None
    try:
        brown = Brown.from_bytes(checkpoint.read_bytes(), what, str(checkpoint))
    except ValueError as error:
        raise ValueError(Errors.CRF951.format(path=checkpoint, reason=error)) from error
    if brown is None:
        msg.warn(f"Begun anew: {checkpoint} is about other texts or settings")
    else:
        msg.info(f"Goes on from {checkpoint}: {brown.done:,} of {len(brown.text.words):,} words")
    return brown


def tokenizer(lang: str) -> Language:
    """A blank pipeline for long texts. RAISES (ValueError): CRF020 if spaCy has no such language."""
    nlp = blank(lang)
    nlp.max_length = 1 << 40  # the limit protects parsers
    return nlp


def _read(paths: list[Path], nlp: Language, progress: Progress) -> "WordCounter":
    """Count the words of texts. RAISES (ValueError): CRF948 if there are no words."""
    from ..lab.brown import WordCounter

    counter = WordCounter(nlp.vocab.strings)
    for text in read_raw(paths, nlp, lambda done, total: progress("reading", done, total)):
        counter.add(text.doc)
    if not counter.n_words:
        source = ", ".join(map(str, paths))
        raise ValueError(Errors.CRF948.format(what="clusters", source=source, reason="there are no words"))
    return counter


METHODS = ("cbow", "skipgram")


class Settings(NamedTuple):
    """The settings of floret, whose names for them stand in the comments."""

    dims: int = 100  # dim
    rows: int = 50_000  # bucket
    shortest: int = 3  # minn, characters of the shortest part of a word
    longest: int = 5  # maxn
    method: str = "cbow"  # model
    epochs: int = 5  # epoch
    min_count: int = 5  # minCount
    threads: int = 1  # thread

    def checked(self) -> "Settings":
        """RAISES (ValueError): CRF020."""
        most = {"dims": 1 << 12, "rows": 1 << 24, "longest": 100, "epochs": 10_000, "threads": 1024}
        for name in self._fields:
            if name != "method":
                option = f"--{name.replace('_', '-')}"
                checks.count(VECTORS, option, getattr(self, name), most=most.get(name, 1 << 30))
        must = f"at most --longest, {self.longest}"
        checks.expect(self.shortest <= self.longest, VECTORS, "--shortest", self.shortest, must)
        checks.one_of(VECTORS, "--method", self.method, METHODS)
        return self

    @property
    def of_floret(self) -> dict[str, Any]:
        names = ("dim", "bucket", "minn", "maxn", "model", "epoch", "minCount", "thread")
        # Two rows for each part of a word: fewer parts share all of their rows (Svenstrup et al. 2017)
        return {**dict(zip(names, self)), "mode": "floret", "hashCount": 2}


@app.command("vectors")
def vectors_cli(
    files: Annotated[
        list[Path], typer.Argument(metavar="TEXTS... OUTPUT", help="Raw texts (.jsonl, .spacy, or lines).")
    ],
    dims: Annotated[int, typer.Option("--dims", "-d", help="Dimensions of a vector.")] = 100,
    rows: Annotated[int, typer.Option("--rows", help="Rows of the table for parts of words.")] = 50_000,
    shortest: Annotated[int, typer.Option("--shortest", help="Characters of the shortest part of a word.")] = 3,
    longest: Annotated[int, typer.Option("--longest", help="Characters of the longest part of a word.")] = 5,
    method: Annotated[choice("Method", METHODS), typer.Option("--method", help="How vectors are learned.")] = "cbow",
    epochs: Annotated[int, typer.Option("--epochs", help="Number of passes over the texts.")] = 5,
    min_count: Annotated[int, typer.Option("--min-count", help="Leave out words with fewer occurrences.")] = 5,
    threads: Annotated[int, typer.Option("--threads", help="Threads; only one gives the same vectors each time.")] = 1,
    lang: LangOption = "en",
    code: CodeOption = None,
) -> None:
    """Learn vectors of words and their parts from raw texts. floret learns them; the output is a pipeline without components,
    whose path is the setting vectors in [initialize]."""
    *texts, output = files
    settings = Settings(dims, rows, shortest, longest, getattr(method, "value", method), epochs, min_count, threads)
    with brief_errors():
        import_code(code)
        _check_writable(output, texts)
        nlp = vectors_of_texts(texts, settings, lang=lang, verbose=sys.stderr.isatty())
        save_pipeline(nlp, output)
    msg.good(f"{len(nlp.vocab.vectors):,} vectors of {dims} numbers: {output}")
    msg.info(f'[initialize] vectors = "{output}"')


def _check_writable(output: Path, texts: list[Path]) -> None:
    """Check, before the work is done, that the output folder can be written. RAISES (ValueError, OSError)."""
    checks.expect(texts, VECTORS, "TEXTS", texts, "files of raw texts, and behind them the folder to write")
    checks.expect(output not in texts, VECTORS, "OUTPUT", str(output), "another path than those of the texts")
    check_writable(output / "config.cfg")


def vectors_of_texts(texts: list[Path], settings: Settings, *, lang: str = "en", verbose: bool = False) -> Language:
    """Make a pipeline without components, whose vectors floret learns from raw texts.

    verbose (bool): Whether to show the progress of floret.
    RAISES (ValueError): CRF781 if floret is not installed, CRF948 if the texts have too few words; if texts can't be read.
    """
    options = settings.checked().of_floret
    try:
        from floret import train_unsupervised
    except ImportError as error:
        needed = {"package": "floret", "install": "'spacy-crf[vectors]'"}
        raise ValueError(Errors.CRF781.format(what="Learning vectors", reason=error, **needed)) from error
    with TemporaryDirectory() as folder:
        words, table, source = Path(folder) / "words.txt", Path(folder) / "vectors.floret", ", ".join(map(str, texts))
        with progress_bars() as progress:
            n_words = _write_words(texts, words, tokenizer(lang), progress)
        if not n_words:
            raise ValueError(Errors.CRF948.format(what="vectors", source=source, reason="there are no words"))
        try:
            model = train_unsupervised(str(words), **options, verbose=2 if verbose else 0)
        except ValueError as error:
            reason = f"no word is there {settings.min_count} times, as --min-count asks ({error})"
            raise ValueError(Errors.CRF948.format(what="vectors", source=source, reason=reason)) from error
        model.save_floret_vectors(str(table))
        nlp = blank(lang)  # without the words of the texts
        convert_vectors(nlp, table, truncate=0, prune=-1, mode="floret")
    return nlp


def _write_words(texts: list[Path], output: Path, nlp: Language, progress: Progress) -> int:
    """Write each text as a line of words between spaces. RETURNS (int): The number of words."""
    n_words = 0
    with output.open("w", encoding="utf8") as file:
        for text in read_raw(texts, nlp, lambda done, total: progress("reading", done, total)):
            words = " ".join(token.text for token in text.doc).split()
            n_words += len(words)
            file.write(" ".join(words) + "\n")
    return n_words
