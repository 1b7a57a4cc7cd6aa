"""Clusters and vectors of words from raw texts, for templates such as ``cluster6[0]`` and ``vector[0]``."""
# pyright: reportInvalidTypeForm=false

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Optional

from spacy.cli._util import Opt
from spacy.language import Language
from spacy.training.initialize import convert_vectors
from wasabi import msg

from .. import checks
from ..blanks import split_words
from ..errors import Errors, optional_package
from ..whole_files import write_whole
from .shared import (
    FileOption,
    LangOption,
    PipelineOption,
    RawTextsArgument,
    blank,
    check_writable,
    choice,
    command,
    load_pipeline,
    progress_bar,
    save_pipeline,
)
from .texts import read_raw

if TYPE_CHECKING:
    from ..clusters.brown import Brown, CountedText, WordCounter
    from ..features.clusters import WordClusters

CLUSTERS = "spacy crf clusters"
VECTORS = "spacy crf vectors"
MOST_BROWN = 10_000  # clusters: more need a table of more than 1.6 GB
SAVE_SECONDS = 60.0
Method = choice("Method", ("cbow", "skipgram"))

# Called with a `description`, how much is `completed`, and the `total`
Progress = Callable[..., None]


@command("clusters")
def clusters_cli(
    output: FileOption,
    texts: RawTextsArgument = None,
    method: Optional[str] = Opt(None, help="brown or clark for texts, kmeans for vectors."),
    n: int = Opt(1000, "--clusters", help="Number of clusters."),
    min_count: int = Opt(3, help="Leave out words with fewer occurrences."),
    from_vectors: Optional[str] = Opt(None, help="A pipeline with word vectors, or a folder of vectors."),
    lang: LangOption = "en",
    lower: bool = Opt(False, "--lower", help="Ignore case."),
    digits: bool = Opt(False, "--digits", help="Keep digits: by default, all digits are one."),
    letters: float = Opt(0.0, help="Weight of the letters of a word, for clark."),
) -> None:
    """Put words that are used alike into clusters. Brown's and Clark's clusters are made of raw texts, others of word vectors. A
    command that makes Brown clusters and was stopped continues when it is given again."""
    from ..features.clusters import write_clusters

    texts = texts or []
    with progress_bar("reading") as progress:
        check_writable(output, *texts)
        if method is not None:
            checks.one_of(CLUSTERS, "--method", method, ("brown", "clark", "kmeans"))
        # k-means needs vectors, and the other methods need texts
        is_kmeans = from_vectors is not None
        possible = (None, "kmeans") if is_kmeans else (None, "brown", "clark")
        if is_kmeans == bool(texts) or method not in possible:
            raise ValueError(Errors.CRF952.format(files=", ".join(map(str, texts)) or "none", vectors=from_vectors))
        if is_kmeans:
            clusters = clusters_of_vectors(from_vectors, n, progress=progress)
        else:
            clusters = clusters_of_texts(
                texts,
                n,
                output,
                min_count=min_count,
                lang=lang,
                lower=lower,
                digits=digits,
                method=method,
                letters=letters,
                progress=progress,
            )
        write_clusters(output, clusters)
        _checkpoint(output).unlink(missing_ok=True)
    msg.good(f"{len(clusters.words):,} words in {len(clusters.paths):,} clusters: {output}")


def _silent(**changes: object) -> None:
    pass


def _reading(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(description="reading", completed=done, total=total)


# ------------------------------------------------------------------------------------------------------------ vectors


def clusters_of_vectors(source: str, n: int, *, progress: Progress) -> "WordClusters":
    """Make clusters of the word vectors of a pipeline, or of a folder that `Vectors.to_disk` wrote.

    RAISES (ValueError): CRF715 if there is no such pipeline or folder, CRF948 if it has no vectors or too few.
    """
    from spacy.vectors import Vectors

    from ..features.clusters import MOST_CLUSTERS, cluster_vectors

    n = checks.count(CLUSTERS, "--clusters", n, least=2, most=MOST_CLUSTERS)
    folders = [folder for folder in (Path(source), Path(source) / "vocab") if (folder / "key2row").is_file()]
    vectors = Vectors().from_disk(folders[0]) if folders else load_pipeline(source).vocab.vectors
    progress(description="splitting", completed=0, total=n - 1)
    return cluster_vectors(vectors, n, source, on_split=lambda: progress(advance=1))


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
    method: Optional[str] = None,
    letters: float = 0.0,
    progress: Progress = _silent,
) -> "WordClusters":
    """Make clusters of the words of raw texts: by exchange (Clark 2003) with the method "clark", otherwise Brown's. A checkpoint
    beside the output lets the next call with the same arguments continue to make Brown clusters.

    RAISES (ValueError): If the texts can't be read, or have too few words; CRF951 if the checkpoint is damaged.
    """
    n = checks.count(CLUSTERS, "--clusters", n, least=2, most=MOST_BROWN)
    min_count = checks.count(CLUSTERS, "--min-count", min_count, most=checks.ANY)
    letters = checks.number(CLUSTERS, "--letters", letters)
    source = ", ".join(map(str, texts))

    def counted() -> "CountedText":
        return _counted(texts, lang, progress).text(min_count, lower=lower, digits=not digits)

    if method == "clark":
        from ..clusters.clark import PASSES, cluster

        words = counted()
        progress(description="clustering", completed=0, total=PASSES)
        return cluster(words, n, source, letters=letters, on_pass=lambda done: progress(completed=done))
    from ..clusters.brown import Brown

    checks.expect(not letters, CLUSTERS, "--letters", letters, "given with --method clark alone")
    settings = {"n": n, "min_count": min_count, "lang": lang, "lower": lower, "digits": digits}
    stats = [path.stat() for path in texts]
    files = [[str(path.resolve()), stat.st_size, stat.st_mtime_ns] for path, stat in zip(texts, stats)]
    # A checkpoint of other texts or settings must not be continued
    what = json.dumps([settings, files])
    checkpoint = _checkpoint(output)
    saved = time.monotonic()
    brown: Optional[Brown] = None
    if checkpoint.exists():
        try:
            brown = Brown.from_bytes(checkpoint.read_bytes(), what, str(checkpoint))
        except ValueError as error:
            raise ValueError(Errors.CRF951.format(path=checkpoint, reason=error)) from error
        if brown is None:
            msg.warn(f"Begun anew: {checkpoint} is about other texts or settings")
        else:
            msg.info(f"Goes on from {checkpoint}: {brown.done:,} of {len(brown.text.words):,} words")
    if brown is None:
        brown = Brown(counted(), n, source)

    def save(brown: "Brown") -> None:
        nonlocal saved
        progress(description="clustering", completed=brown.done, total=len(brown.text.words))
        if time.monotonic() - saved > SAVE_SECONDS:
            write_whole(checkpoint, brown.to_bytes(what))
            saved = time.monotonic()

    try:
        return brown.run(save)
    except KeyboardInterrupt:
        write_whole(checkpoint, brown.to_bytes(what))
        msg.info(f"Stopped: the same command goes on from {checkpoint}")
        raise


def _counted(texts: list[Path], lang: str, progress: Progress) -> "WordCounter":
    """Count the words of texts. RAISES (ValueError): CRF948 if there are none."""
    from ..clusters.brown import WordCounter

    nlp = tokenizer(lang)
    counter = WordCounter(nlp.vocab.strings)
    for _, doc in read_raw(texts, nlp, _reading(progress)):
        counter.add(doc)
    if not counter.n_words:
        raise ValueError(
            Errors.CRF948.format(what="clusters", source=", ".join(map(str, texts)), reason="there are no words")
        )
    return counter


def _checkpoint(output: Path) -> Path:
    return output.with_name(f"{output.name}.checkpoint")


def tokenizer(lang: str) -> Language:
    """A blank pipeline for long texts. RAISES (ValueError): CRF020 if spaCy has no such language."""
    nlp = blank(lang)
    nlp.max_length = 1 << 40  # the limit protects parsers
    return nlp


@command("vectors")
def vectors_cli(
    texts: RawTextsArgument,
    output: PipelineOption,
    dims: int = Opt(100, min=1, max=1 << 12, help="Dimensions of a vector."),
    rows: int = Opt(50_000, min=1, max=1 << 24, help="Rows of the table for parts of words."),
    shortest: int = Opt(3, min=1, help="Characters of the shortest part of a word."),
    longest: int = Opt(5, min=1, max=100, help="Characters of the longest part of a word."),
    method: Method = Opt(Method.cbow, help="How vectors are learned."),
    epochs: int = Opt(5, min=1, max=10_000, help="Number of passes over the texts."),
    min_count: int = Opt(5, min=1, max=1 << 30, help="Leave out words with fewer occurrences."),
    threads: int = Opt(1, min=1, max=1024, help="Threads; only one gives the same vectors each time."),
    lang: LangOption = "en",
) -> None:
    """Learn vectors of words and their parts from raw texts. floret learns them; the output is a pipeline without components,
    whose path is the setting vectors in [initialize]."""
    checks.expect(shortest <= longest, VECTORS, "--shortest", shortest, f"at most --longest, {longest}")
    texts = texts or []
    check_writable(output / "config.cfg")
    options = {"dim": dims, "bucket": rows, "minn": shortest, "maxn": longest, "model": method.value, "epoch": epochs}
    options |= {"minCount": min_count, "thread": threads, "verbose": 2 if sys.stderr.isatty() else 0}
    nlp = vectors_of_texts(texts, lang, **options)
    save_pipeline(nlp, output)
    msg.good(f"{len(nlp.vocab.vectors):,} vectors of {dims} numbers: {output}")
    msg.info(f'[initialize] vectors = "{output}"')


def vectors_of_texts(texts: list[Path], lang: str = "en", **options: Any) -> Language:
    """Make a pipeline without components, whose vectors floret learns from raw texts.

    options: Settings of floret.
    RAISES (ImportError): CRF781 if floret is not installed.
    RAISES (ValueError): CRF948 if the texts have too few words; if texts can't be read.
    """
    train_unsupervised = optional_package(
        "floret",
        what="Learning vectors",
        install="'spacy-crf[vectors]'; on Python 3.13 and newer, pip install floret, which takes a C++ compiler",
    ).train_unsupervised
    with TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        table = Path(folder) / "vectors.floret"
        source = ", ".join(map(str, texts))
        n_words = 0
        with progress_bar("reading") as progress, path.open("w", encoding="utf8") as file:
            for _, doc in read_raw(texts, tokenizer(lang), _reading(progress)):
                words = split_words(" ".join(token.text for token in doc if not token.is_space))
                n_words += len(words)
                file.write(" ".join(words) + "\n")
        if not n_words:
            raise ValueError(Errors.CRF948.format(what="vectors", source=source, reason="there are no words"))
        try:
            # Two rows for each part of a word: fewer parts share all of their rows (Svenstrup et al. 2017)
            model = train_unsupervised(str(path), **options, mode="floret", hashCount=2)
        except ValueError as error:
            raise ValueError(
                Errors.CRF948.format(
                    what="vectors",
                    source=source,
                    reason=f"no word is there {options['minCount']} times, as --min-count asks ({error})",
                )
            ) from error
        model.save_floret_vectors(str(table))
        # floret makes the vector of any word from its parts
        nlp = blank(lang)  # without the words of the texts
        convert_vectors(nlp, table, truncate=0, prune=-1, mode="floret")
    return nlp
