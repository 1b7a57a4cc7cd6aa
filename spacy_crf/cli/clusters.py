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

    from ..features.brown import Brown, WordCounter
    from ..features.clusters import WordClusters

CLUSTERS, VECTORS = "spacy crf clusters", "spacy crf vectors"
MOST_BROWN = 10_000  # clusters: their table takes 1.6 GB
SAVE_SECONDS = 60.0

# Tells how far the work is: what is being done, how much of it is done, and how much there is
Progress = Callable[[str, int, int], None]


@app.command("clusters")
def clusters_cli(
    files: Annotated[
        list[Path], typer.Argument(metavar="[TEXTS]... OUTPUT", help="Raw texts (.jsonl, .spacy, or a text a line).")
    ],
    method: Annotated[Optional[str], typer.Option("--method", help="brown, for texts, or kmeans, for vectors.")] = None,
    n: Annotated[int, typer.Option("--n", "-n", help="How many clusters.")] = 1000,
    min_count: Annotated[int, typer.Option("--min-count", help="Leave out words that texts have less often.")] = 3,
    from_vectors: Annotated[
        Optional[str], typer.Option("--from-vectors", help="A pipeline with word vectors, or a folder of vectors.")
    ] = None,
    lang: LangOption = "en",
    lower: Annotated[bool, typer.Option("--lower", help="Leave case out of account.")] = False,
    digits: Annotated[bool, typer.Option("--digits", help="Tell words apart that differ in digits only.")] = False,
    code: CodeOption = None,
) -> None:
    """Put words that are used alike into clusters. Brown clusters are made of raw texts, others of word vectors. What is stopped
    goes on where it was when the same command is given again."""
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
    """RAISES (ValueError): CRF020 or CRF952 for arguments that don't go together."""
    if method is not None:
        checks.one_of(CLUSTERS, "--method", method, ("brown", "kmeans"))
    is_kmeans = from_vectors is not None
    if is_kmeans == bool(texts) or method not in (None, "kmeans" if is_kmeans else "brown"):
        raise ValueError(Errors.CRF952.format(files=", ".join(map(str, texts)) or "none", vectors=from_vectors))


@contextmanager
def progress_bars() -> Iterator[Progress]:
    """A bar for each thing that is done, as long as it lasts."""
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
    """Clusters of the word vectors of a pipeline, or of a folder that `Vectors.to_disk` wrote.

    RAISES (ValueError): CRF715 if there is none, CRF947 or CRF948 if it has no or too few vectors.
    """
    from ..features.clusters import MOST_CLUSTERS
    from ..features.vector_clusters import cluster_vectors

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
    """Brown clusters of the words of raw texts. While they are made, a checkpoint is beside the output, from which the next call
    with the same arguments goes on.

    RAISES (ValueError): If the texts can't be read, or have too few words.
    """
    from ..features.brown import Brown

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
    """What a checkpoint has, None if there is none for the same arguments. RAISES (ValueError): CRF951 if it is damaged."""
    from ..features.brown import Brown

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
    """RAISES (ValueError): CRF953 if spaCy has no such language."""
    nlp = blank(lang)
    nlp.max_length = 1 << 40  # it is there for parsers
    return nlp


def _read(paths: list[Path], nlp: Language, progress: Progress) -> "WordCounter":
    """RAISES (ValueError): CRF949 if there are no words."""
    from ..features.brown import WordCounter

    counter = WordCounter(nlp.vocab.strings)
    for text in read_raw(paths, nlp, lambda done, total: progress("reading", done, total)):
        counter.add(text.doc)
    if not counter.n_words:
        raise ValueError(Errors.CRF949.format(paths=", ".join(map(str, paths))))
    return counter


METHODS = ("cbow", "skipgram")


class Settings(NamedTuple):
    """What floret is told, with its names in the comments."""

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
        # Two rows for each part: fewer parts share all of theirs (Svenstrup et al. 2017)
        return {**dict(zip(names, self)), "mode": "floret", "hashCount": 2}


@app.command("vectors")
def vectors_cli(
    files: Annotated[
        list[Path], typer.Argument(metavar="TEXTS... OUTPUT", help="Raw texts (.jsonl, .spacy, or a text a line).")
    ],
    dims: Annotated[int, typer.Option("--dims", "-d", help="Numbers of a vector.")] = 100,
    rows: Annotated[int, typer.Option("--rows", help="Rows of the table that parts of words share.")] = 50_000,
    shortest: Annotated[int, typer.Option("--shortest", help="Characters of the shortest part of a word.")] = 3,
    longest: Annotated[int, typer.Option("--longest", help="Characters of the longest one.")] = 5,
    method: Annotated[choice("Method", METHODS), typer.Option("--method", help="How they are learned.")] = "cbow",
    epochs: Annotated[int, typer.Option("--epochs", help="How often the texts are read.")] = 5,
    min_count: Annotated[int, typer.Option("--min-count", help="Leave out words that texts have less often.")] = 5,
    threads: Annotated[int, typer.Option("--threads", help="Cores; with one, the same texts give the same.")] = 1,
    lang: LangOption = "en",
    code: CodeOption = None,
) -> None:
    """Learn vectors of words and their parts from raw texts. They are floret's; the output is a pipeline without components,
    which [initialize] vectors takes as it is."""
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
    """Before the work is done: whether its result can be kept, as a folder. RAISES (ValueError, OSError)."""
    checks.expect(texts, VECTORS, "TEXTS", texts, "files of raw texts, and behind them the folder to write")
    checks.expect(output not in texts, VECTORS, "OUTPUT", str(output), "another path than those of the texts")
    check_writable(output / "config.cfg")


def vectors_of_texts(texts: list[Path], settings: Settings, *, lang: str = "en", verbose: bool = False) -> Language:
    """A pipeline without components, whose vectors were learned from raw texts.

    verbose (bool): Whether to show how far it is.
    RAISES (ValueError): CRF808 if floret is not there, CRF809 if the texts have too few words; if they can't be read.
    """
    options = settings.checked().of_floret
    try:
        from floret import train_unsupervised
    except ImportError as error:
        raise ValueError(Errors.CRF808.format(reason=error)) from error
    with TemporaryDirectory() as folder:
        words, table, source = Path(folder) / "words.txt", Path(folder) / "vectors.floret", ", ".join(map(str, texts))
        with progress_bars() as progress:
            n_words = _write_words(texts, words, tokenizer(lang), progress)
        if not n_words:
            raise ValueError(Errors.CRF809.format(paths=source, reason="there are none at all"))
        try:
            model = train_unsupervised(str(words), **options, verbose=2 if verbose else 0)
        except ValueError as error:
            reason = f"none is there {settings.min_count} times or more often, which --min-count asks for ({error})"
            raise ValueError(Errors.CRF809.format(paths=source, reason=reason)) from error
        model.save_floret_vectors(str(table))
        nlp = blank(lang)  # without the words of the texts
        convert_vectors(nlp, table, truncate=0, prune=-1, mode="floret")
    return nlp


def _write_words(texts: list[Path], output: Path, nlp: Language, progress: Progress) -> int:
    """A text a line, its words between spaces. RETURNS (int): How many words there are."""
    n_words = 0
    with output.open("w", encoding="utf8") as file:
        for text in read_raw(texts, nlp, lambda done, total: progress("reading", done, total)):
            words = " ".join(token.text for token in text.doc).split()
            n_words += len(words)
            file.write(" ".join(words) + "\n")
    return n_words
