"""Vectors of words and their parts from raw texts, for templates such as ``vector[0]`` and for encoders."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import typer
from spacy.language import Language
from spacy.training.initialize import convert_vectors
from wasabi import msg

from .. import checks
from ..errors import Errors
from .clusters import Progress, progress_bars, tokenizer
from .group import app
from .raw_texts import read_raw
from .shared import CodeOption, blank, check_writable, choice, import_code, save_pipeline, told_briefly

OWNER = "spacy crf vectors"
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
                checks.count(OWNER, option, getattr(self, name), most=most.get(name, 1 << 30))
        must = f"at most --longest, {self.longest}"
        checks.expect(self.shortest <= self.longest, OWNER, "--shortest", self.shortest, must)
        checks.one_of(OWNER, "--method", self.method, METHODS)
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
    lang: Annotated[str, typer.Option("--lang", "-l", help="Language whose tokenizer cuts the texts.")] = "en",
    code: CodeOption = None,
) -> None:
    """Learn vectors of words and their parts from raw texts. They are floret's; the output is a pipeline without components,
    which [initialize] vectors takes as it is."""
    *texts, output = files
    settings = Settings(dims, rows, shortest, longest, getattr(method, "value", method), epochs, min_count, threads)
    with told_briefly():
        import_code(code)
        _check_writable(output, texts)
        nlp = vectors_of_texts(texts, settings, lang=lang, verbose=sys.stderr.isatty())
        save_pipeline(nlp, output)
    msg.good(f"{len(nlp.vocab.vectors):,} vectors of {dims} numbers: {output}")
    msg.info(f'[initialize] vectors = "{output}"')


def _check_writable(output: Path, texts: list[Path]) -> None:
    """Before the work is done: whether its result can be kept, as a folder. RAISES (ValueError, OSError)."""
    checks.expect(texts, OWNER, "TEXTS", texts, "files of raw texts, and behind them the folder to write")
    checks.expect(output not in texts, OWNER, "OUTPUT", str(output), "another path than those of the texts")
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
