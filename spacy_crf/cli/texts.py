"""Reads the texts of commands: raw texts, and annotated texts from any file that `convert` or `spacy train` reads."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Optional

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.util import Config, dot_to_dict, dot_to_object

from ..blanks import BLANKS
from ..errors import Errors, shown
from ..pipeline.corpora import doc_bin
from .formats import ReadSettings, Report, brat, read, refuse_binary
from .formats.annotation import is_unicode, tokenized
from .formats.source import Item, Source, parsed, read_lines, unreadable
from .formats.spacy_files import docs_of
from .shared import blank

if TYPE_CHECKING:
    from ..pipeline.pipe import LearningPipe

STANDARD = "-"  # the name of the standard input or output
# Files in a folder of texts that `fit` has held out
PREDICTED = "predicted.spacy"
ANNOTATED = "annotated.spacy"
SUSPECTS = "suspects.jsonl"
_STEPS = 1000  # updates of a progress bar
# The beginning of a line that is meant to be a JSON object
_OBJECT = re.compile(r"""\{\s*(["'}]|$)""")
_OPTION = re.compile(r"--[a-z]")  # an option of `convert` in a message

# Called with the number of bytes read and the number of all bytes
Progress = Callable[[int, int], object]


def doc_before(nlp: Language, pipe: "LearningPipe", text: str) -> Doc:
    """Make a Doc from a text, and run the components in front of `pipe` on it.

    RAISES (ValueError): CRF878 if the text is too long, CRF701 if it is not valid Unicode.
    """
    first_disabled = nlp.pipe_names.index(pipe.name)
    return nlp(tokenized(text, nlp, "The text"), disable=nlp.pipe_names[first_disabled:])


def read_raw(paths: Iterable[Path], nlp: Language, progress: Optional[Progress] = None) -> Iterator[Item]:
    """Read the texts of files: JSONL, ``.spacy``, or one text on each line. Skips texts without words.

    nlp (Language): The pipeline whose tokenizer makes the Docs.
    progress (Callable): Called with the number of bytes read and the number of bytes of all files.
    RETURNS (Iterator[Item]): Place and Doc of each text.
    RAISES (ValueError): With file and line, if a text can't be read.
    """
    size_of_path = [(path, 0 if str(path) == STANDARD else path.stat().st_size) for path in paths]
    total = sum(size for _, size in size_of_path)
    finished = 0  # bytes of the files that are read

    def add_progress(done: int, _: int = 0) -> None:
        """Report that `done` bytes of the next file are read."""
        if progress is not None:
            progress(finished + done, total)

    for path, size in size_of_path:
        if path.suffix == ".spacy":
            for number, doc in enumerate(docs_of(path, nlp), start=1):
                yield Item(f"{path}, text {number}", doc)
        else:
            for place, fields in read_items(path, add_progress):
                if fields["text"].strip():
                    yield Item(place, tokenized(fields["text"], nlp, place))
        finished += size
        add_progress(0)


def read_items(path: Path, progress: Optional[Progress] = None) -> Iterator[Item]:
    """Read the texts of a file: JSON objects with a "text" and any other keys, or one text on each line.

    path (Path): "-" for the standard input.
    progress (Callable): Called with the number of bytes read and the number of bytes of the file.
    RETURNS (Iterator[Item]): Place and fields of each text.
    RAISES (ValueError): With the place, if a text can't be read.
    """
    if str(path) == STANDARD:
        if sys.stdin.isatty():
            print("Reading texts, one on each line, up to the end of the input (Ctrl-D)", file=sys.stderr)
        for place, line in read_lines(sys.stdin.buffer, "the standard input"):
            yield from items_of_line(line, place)
        return
    source = Source(path)
    reported = 0
    refuse_binary(path)
    is_json = source.is_json()
    for place, value in source.items() if is_json else source.lines():
        if progress is not None and source.position - reported >= source.size // _STEPS:
            reported = source.position
            progress(reported, source.size)
        yield from ([_item(value, place)] if is_json else items_of_line(value, place))


def items_of_line(line: str, place: str) -> list[Item]:
    """Read the text of a line, or of the JSON object on the line; an empty line has no text.

    RAISES (ValueError): CRF701 or CRF709 if the JSON is wrong or has no "text".
    """
    text = line.strip(BLANKS)
    value = parsed(text, place) if _OBJECT.match(text) else {"text": text}
    return [_item(value, place)] if text else []


def _item(value: object, place: str) -> Item:
    """The place and fields of a text that is read from JSON: a text alone, or an object with the field "text".

    RAISES (ValueError): CRF709 for any other value, CRF701 if the text is not valid Unicode.
    """
    if isinstance(value, str):
        return Item(place, {"text": value})
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise ValueError(Errors.CRF709.format(place=place))
    if not is_unicode(value["text"]):
        raise unreadable(place, f"the text {shown(value['text'])} is not valid Unicode")
    return Item(place, value)


def read_docs(
    path: Path, nlp: Language, settings: Optional[ReadSettings] = None, *, report: Optional[Report] = None
) -> list[Doc]:
    """Read the annotated Docs of a file, or of all .spacy files below a folder.

    nlp (Language): The pipeline whose tokenizer makes Docs of texts.
    settings (ReadSettings): How to read the file; by default detected from its contents.
    report (Report): Collects counts of the contents, and annotation that could not be used.
    RAISES (ValueError): With file and line, if a text can't be read; if there are no texts, or no annotation.
    """
    settings = settings or ReadSettings()
    report = report or Report()
    files = sorted(path.rglob("*.spacy")) if path.is_dir() and not brat.is_collection(path) else [path]
    try:
        docs_of_files = (read(Source(file, settings.encoding), nlp, settings, report) for file in files)
        docs = list(chain.from_iterable(docs_of_files))
    except ValueError as error:
        # Messages of formats name options of `convert`, which other commands lack
        if _OPTION.search(str(error)) is None:
            raise
        raise ValueError(Errors.CRF879.format(error=error)) from None
    if not docs:
        raise ValueError(Errors.CRF708.format(path=path))
    return docs


def read_judged(path: Path, nlp: Language) -> tuple[list[Example], bool]:
    """Read the texts that `fit` held out, each with the prediction of a model that had not seen it; or any other annotated texts.

    RETURNS (Tuple[List[Example], bool]): The texts, and whether they are held-out texts with predictions.
    """
    paths = [path / name for name in (PREDICTED, ANNOTATED)]
    if not all(path.is_file() for path in paths):
        return read_examples(path, nlp), False
    predicted, annotated = (docs_of(path, nlp) for path in paths)
    return [Example(*docs) for docs in zip(predicted, annotated, strict=True)], True


def read_all_examples(paths: Iterable[Path], nlp: Language) -> list[Example]:
    """Read the examples of several files, each as `read_examples` does."""
    return list(chain.from_iterable(read_examples(path, nlp) for path in paths))


@contextmanager
def with_corpora(config: Config, train: list[Path], dev: Optional[Path]) -> Iterator[Config]:
    """Give a config whose corpora read the texts of these files, converted to temporary .spacy files.

    config (Config): A config for `spacy train`, not interpolated.
    train, dev: Files of annotated texts; without files, a corpus stays as the config has it.
    RAISES (ValueError): CRF876 if the config has no setting for the path of a corpus; if texts can't be read.
    """
    settings = config.interpolate().get("nlp", {})
    with TemporaryDirectory() as folder:
        for corpus, paths in (("train", train), ("dev", [] if dev is None else [dev])):
            if not paths:
                continue
            nlp = blank(settings.get("lang", "en"), settings.get("tokenizer"))
            texts = Path(folder) / f"{corpus}.spacy"
            with learning(nlp):
                doc_bin(example.reference for example in read_all_examples(paths, nlp)).to_disk(texts)
            config = config.copy().merge(dot_to_dict({path_setting(config, corpus): str(texts)}))
        yield config


def learning(nlp: Language) -> AbstractContextManager[None]:
    """Let the tokenizer of a pipeline (`nlp`) make Docs of training texts in this context, even if it was never trained."""
    return nlp.tokenizer.learning() if hasattr(nlp.tokenizer, "learning") else nullcontext()


def path_setting(config: Config, corpus: str) -> str:
    """The name of the setting that holds the path of a corpus: "corpora.train.path", or the variable ("paths.train") to which
    this setting refers, since other settings may refer to it too.

    corpus (str): "train" or "dev".
    RAISES (ValueError): CRF876 if there is no such setting.
    """
    # Config readers name their corpus by path: training.train_corpus = "corpora.train"
    block = config.interpolate().get("training", {}).get(f"{corpus}_corpus", f"corpora.{corpus}")
    try:
        value = dot_to_object(config, f"{block}.path")
    except KeyError:
        value = None
    if not isinstance(value, str):
        raise ValueError(Errors.CRF876.format(corpus=block))
    is_variable = value.startswith("${") and value.endswith("}") and ":" not in value
    return value[2:-1] if is_variable else f"{block}.path"


def read_examples(path: Path, nlp: Language, spans_key: Optional[str] = None) -> list[Example]:
    """Read the examples of a .spacy file, of a folder of .spacy files, or of a file that `read_docs` reads. Print warnings about
    annotation that could not be used.

    spans_key (str): Key of ``doc.spans`` for the spans of files other than .spacy; None for ``doc.ents``.
    RAISES (ValueError): If there are no texts, or one can't be read.
    """
    report = Report()
    is_spacy = path.suffix == ".spacy" or (path.is_dir() and not brat.is_collection(path))
    docs = read_docs(path, nlp, ReadSettings(without_spans=is_spacy, spans_key=spans_key), report=report)
    if not is_spacy:
        report.print_warnings()
    examples = list(Corpus(path).make_examples(nlp, docs))
    if not examples:
        raise ValueError(Errors.CRF708.format(path=path))
    return examples
