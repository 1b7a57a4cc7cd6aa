"""Arguments, errors, pipelines, output files and tables for all commands."""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from importlib.metadata import PackageNotFoundError
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import spacy
import typer
from click import UsageError
from spacy.cli._util import Arg, Opt, parse_config_overrides
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import Config, DummyTokenizer, import_file, load_config
from typer.core import TyperCommand
from typer.main import get_command
from wasabi import msg

from .. import checks
from ..errors import Errors, Warnings, counted, no_component, shown
from ..progress import Bar
from ..whole_files import beside, is_full, named_in_errors
from .group import app

if TYPE_CHECKING:
    from ..pipeline.pipe import LearningPipe

Function = TypeVar("Function", bound=Callable[..., None])
ModelArgument = Annotated[str, Arg(help="A pipeline: the name of a package, or a folder.")]
DataArgument = Annotated[Path, Arg(help="Annotated texts: .spacy, or a file that `convert` reads.", exists=True)]
FilesArgument = Annotated[
    Optional[list[str]],
    Arg(metavar="FILES", help="Annotated texts; also settings of the config, such as --nlp.lang de."),
]
RawTextsArgument = Annotated[Optional[list[Path]], Arg(metavar="TEXTS", help="Raw texts (.jsonl, .spacy, or lines).")]
ConfigOption = Annotated[
    Optional[Path], Opt("--config", help="A training config; by default that of `init-config`: crf_ner.", exists=True)
]
CodeOption = Annotated[Optional[Path], Opt("--code", help="Python file with functions to register.")]
ComponentOption = Annotated[Optional[str], Opt("--component", help="A component; by default all of spacy_crf.")]
JsonOption = Annotated[bool, Opt("--json", help="Print JSON.")]
LangOption = Annotated[str, Opt("--lang", help="Language of the tokenizer.")]
FileOption = Annotated[Path, Opt("--output", "-o", help="The file to write.")]
PageOption = Annotated[Optional[Path], Opt("--output", "-o", help="Write a page of HTML to this file.")]
ChartOption = Annotated[Optional[Path], Opt("--output", "-o", help="Write a chart (SVG) to this file.")]
PipelineOption = Annotated[Path, Opt("--output", "-o", help="Folder to write the pipeline to.")]
# spaCy's error for a registered name of a package that is built upon this one
_UNKNOWN_NAME = re.compile(r"'((spacy_crf_\w+)\.\w+\.v\d+)' in function registry")
# Settings of a command that takes overrides of the config, such as --training.seed 1
WITH_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


def packaged(name: str) -> Path:
    """Find a folder with files of the package. The folder is in an installed package, but beside the package in a clone."""
    package = Path(__file__).parents[1]
    folder = package / name
    return folder if folder.is_dir() else package.parent / name


CONFIGS = packaged("configs")


def choice(name: str, values: Iterable[str]) -> Any:
    """Make the type (an Enum) of an option that takes one of the given values."""
    return Enum(name, {value: value for value in values})


class BriefCommand(TyperCommand):
    """A command that prints errors without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        with brief_errors():
            return super().invoke(ctx)


class CodeCommand(BriefCommand):
    """A command with the option --code, whose file is imported before the command runs."""

    def __init__(self, *names: Any, params: list[Any], **settings: Any):
        def with_code(code: CodeOption = None) -> None:
            pass

        # typer makes options of the parameters of functions only: let it read one that has nothing but this option
        app = typer.Typer(add_completion=False)
        app.command()(with_code)
        super().__init__(*names, params=[*params, *get_command(app).params], **settings)

    def invoke(self, ctx: Any) -> Any:
        code = ctx.params.pop("code")
        with brief_errors():
            import_code(None if code is None else Path(code))
            return super().invoke(ctx)


def command(name: str, *, has_code: bool = True, **settings: Any) -> Callable[[Function], Function]:
    """Register a function as a command, whose errors are printed without a traceback.

    has_code (bool): Whether to add the option --code. A command that passes the path on has the option itself.
    """
    return app.command(name, cls=CodeCommand if has_code else BriefCommand, **settings)


@contextmanager
def brief_errors() -> Iterator[None]:
    """Print the message of an error without a traceback, and exit: users need to see the mistake in their files, not our code."""
    try:
        yield
    except BrokenPipeError:  # the program that reads the output has ended
        raise
    except OSError as error:
        reason = error.strerror or error
        advice = " (make room, and give the same command again)" if is_full(error) else ""
        msg.fail(Errors.CRF706.format(path=error.filename or "A file", reason=f"{reason}{advice}"), exits=1)
    except UnicodeError as error:
        msg.fail(Errors.CRF733.format(reason=error), exits=1)
    except (ValueError, ImportError) as error:
        first, *others = str(error).split("\n")
        unknown = _UNKNOWN_NAME.search(str(error))
        if unknown is not None:
            # spaCy does not say which package is missing, but lists all registered names
            name, package = unknown.groups()
            first = Errors.CRF717.format(name=name, package=package.replace("_", "-"))
            others = []
        msg.fail(first)
        for line in others:  # wasabi would wrap them as one paragraph with the first line
            print(line)
        sys.exit(1)


@contextmanager
def progress_bar(task: str, unit: str = "") -> Iterator[Callable[..., None]]:
    """Show a progress bar on the standard error. Yields a function that updates the bar. The function takes the number `total` of
    things to do, the number `completed` so far, or else the number to `advance` by, and the `description` of the task.

    task (str): What is done, in words.
    unit (str): Name of the things that are counted; "" to show the share that is done.
    """
    done = 0
    with Bar(task, unit, at_once=True) as bar:

        def update(
            total: Optional[int] = None,
            advance: int = 0,
            completed: Optional[int] = None,
            description: Optional[str] = None,
        ) -> None:
            nonlocal done
            done = (done if completed is None else completed) + advance
            bar.total = bar.total if total is None else total
            bar.what = bar.what if description is None else description
            bar.show(done)

        bar.show(0)
        yield update


def load_pipeline(model: str) -> Language:
    """Load a pipeline. RAISES (ValueError): CRF715 if the pipeline can't be loaded, whatever the reason."""
    try:
        config = Path(model) / "config.cfg"
        # spaCy would look up a name that is not text, and raise an error of catalogue
        if config.is_file():
            _check_names(load_config(config), [])
        return spacy.load(model)
    except Exception as error:
        raise ValueError(not_loaded(model, error)) from error


def not_loaded(model: str, error: Exception) -> str:
    """The message for a pipeline that can't be loaded."""
    advice = "Register functions that its config names: --code FILE."
    if isinstance(error, (OSError, PackageNotFoundError)):
        advice = "Name an installed package, or a folder that `spacy train` or `nlp.to_disk` wrote."
    return Errors.CRF715.format(model=model, reason=error or type(error).__name__, advice=advice)


def name_of(nlp: Language, model: str) -> str:
    """The name of a pipeline, for titles of pages: its package, or else its folder and the one around it."""
    name = nlp.meta.get("name") or ""
    if name in ("", "pipeline"):
        return "/".join(Path(model).absolute().parts[-2:])
    return f"{nlp.lang}_{name}"


def split_overrides(arguments: Iterable[str]) -> tuple[list[Path], list[str]]:
    """Split the arguments of a command into files and overrides of a config, such as --training.seed 1 or --training.seed=1."""
    files: list[Path] = []
    overrides: list[str] = []
    for argument in arguments:
        is_value = bool(overrides) and overrides[-1].startswith("--") and "=" not in overrides[-1]
        if is_value or argument.startswith("--"):
            overrides.append(argument)
        else:
            files.append(Path(argument))
    return files, overrides


def read_config(path: Optional[Path], overrides: list[str], *, interpolate: bool) -> Config:
    """Read a config, with the settings that the command line overrides.

    path (Path): None for the config that `init-config` writes for `crf_ner`.
    RAISES (ValueError): CRF731 for unknown options; CRF701 if the file can't be read, or a registered name in it is not text.
    """
    try:
        settings = parse_config_overrides(overrides)
    except UsageError as error:
        raise ValueError(Errors.CRF731.format(reason=error.format_message())) from None
    try:
        config = load_config(path or CONFIGS / "crf_ner.cfg", overrides=settings, interpolate=interpolate)
        _check_names(config, [])
    except ValueError as error:
        raise ValueError(Errors.CRF701.format(place=f"The config {path}", reason=error)) from None
    return config


def _check_names(block: Mapping[str, object], path: list[str]) -> None:
    """Check that all registered names in a block of a config are text, since spaCy looks up whatever is there.

    path (list[str]): The names of the block and of the blocks around it.
    RAISES (ValueError): CRF726 for another name.
    """
    for key, value in block.items():
        if str(key).startswith("@") and not isinstance(value, str):
            raise ValueError(Errors.CRF726.format(section=".".join(path), key=key, value=shown(value)))
        if isinstance(value, dict):
            _check_names(value, [*path, str(key)])


def import_code(path: Optional[Path]) -> None:
    """Run a Python file that registers functions. RAISES (ValueError): CRF701 if it fails."""
    if path is None:
        return
    try:
        if spec_from_file_location("python_code", path) is None:
            raise ImportError("its name does not end with .py")
        import_file("python_code", path)
    except Exception as error:  # whatever is in the file
        raise ValueError(
            Errors.CRF701.format(place=f"The Python file {path} (--code)", reason=f"{type(error).__name__}: {error}")
        ) from error


def blank(lang: str, tokenizer: Optional[dict[str, object]] = None) -> Language:
    """Make a pipeline with a tokenizer and no components.

    tokenizer (dict): Settings of the tokenizer, in place of those that the language has.
    RAISES (ValueError): CRF020 if spaCy lacks the language; CRF986 if its tokenizer can't be made.
    """
    try:
        spacy.util.get_lang_class(lang)
    except Exception as error:  # whatever spaCy raises
        raise ValueError(
            Errors.CRF020.format(
                owner="crf",
                name="--lang",
                value=repr(lang),
                must="the code of a language that spaCy has, such as en, or xx for any language",
            )
        ) from error
    try:
        return spacy.blank(lang, config={"nlp": {"tokenizer": tokenizer or {}}})
    except Exception as error:  # whatever the tokenizers of others raise
        raise ValueError(Errors.CRF986.format(lang=lang, reason=error)) from error


def blank_for_words(lang: str) -> Language:
    """Make a pipeline for reading files. If the tokenizer of the language can't be made, files that have words need none: it
    raises its error when it is called.

    RAISES (ValueError): CRF020 if spaCy lacks the language.
    """
    try:
        return blank(lang)
    except ValueError as error:
        if "CRF986" not in str(error):
            raise
        nlp = blank(lang, {"@tokenizers": "spacy.Tokenizer.v1"})
        nlp.tokenizer = _NoTokenizer(error)
        return nlp


class _NoTokenizer(DummyTokenizer):
    """Stands for a tokenizer that can't be made."""

    def __init__(self, error: ValueError):
        self._error = error

    def __call__(self, text: str) -> Doc:
        raise self._error


def numbers(command: str, option: str, text: str, is_possible: Callable[[float], bool], must: str) -> list[float]:
    """Parse the numbers of an option, which are separated by commas, and remove repetitions.

    is_possible (Callable): Returns whether the option takes a number.
    must (str): What the text must be, in words for the error.
    RAISES (ValueError): CRF020 for anything but possible numbers.
    """
    try:
        values = list(dict.fromkeys(map(float, text.split(","))))
    except ValueError:
        values = []
    checks.expect(values and all(map(is_possible, values)), command, option, text, must)
    return values


def check_writable(path: Optional[Path], *inputs: Optional[Path]) -> None:
    """Check that a command can write its result, before it does the work.

    path (Path): The file to write; None if the command writes no file.
    *inputs (Path): Files that the command reads and must not overwrite.
    RAISES (OSError): If a folder has the name of the file, or a file has the name of its folder, or the folder is not writable.
    RAISES (ValueError): CRF730 if the file is one of the inputs.
    """
    if path is None:
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    changed = path  # pipes and devices are written to
    if path.is_file() or not path.exists():
        # A file is replaced in its folder, which may have to be made in the nearest folder that exists
        changed = next(folder for folder in path.absolute().parents if folder.exists())
        if not changed.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(changed))
    if not os.access(changed, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(changed))
    if path.is_file() and any(read is not None and read.exists() and read.samefile(path) for read in inputs):
        raise ValueError(Errors.CRF730.format(path=path))


def save_pipeline(nlp: Language, output: Path) -> None:
    """Save a pipeline. New files replace the old ones only after all new files are written. If the process is killed while files
    are replaced, the folder holds parts of two pipelines, and its components refuse to be loaded (CRF927)."""
    from ..pipeline.saving import REPLACING

    # The new files are complete before the first old one is replaced
    output = output.absolute()  # "." has no name
    with named_in_errors(output), beside(output) as folder:
        nlp.to_disk(folder)
        output.mkdir(parents=True, exist_ok=True)
        (output / REPLACING).touch()
        for path in sorted(folder.rglob("*")):  # folders before what is in them
            target = output / path.relative_to(folder)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                path.replace(target)
        (output / REPLACING).unlink()


PROBABILITIES = "that gives probabilities of spans or tokens (crf_textcat has them in doc.cats: use `spacy evaluate`)"


def our_pipes(
    nlp: Language,
    component: Optional[str],
    wanted: Optional[str] = PROBABILITIES,
    is_wanted: Callable[[Any], object] = lambda pipe: True,
    *,
    of_tokens: bool = True,
) -> list[Any]:
    """Find the components of spacy_crf in a pipeline.

    component (str): Name of the only component to find; None for all.
    wanted (str): What the components must be, in words for the error; None if finding no component is not an error.
    is_wanted (Callable): Returns whether a component is to be found.
    of_tokens (bool): Whether to find only components that label tokens.
    RAISES (ValueError): If there are no such components, unless `wanted` is None.
    """
    from ..pipeline.pipe import LearningPipe
    from ..pipeline.prediction import CRFPipe

    type_of_pipe = CRFPipe if of_tokens else LearningPipe
    ours = [pipe for name, pipe in nlp.pipeline if isinstance(pipe, type_of_pipe) and component in (None, name)]
    pipes = [pipe for pipe in ours if is_wanted(pipe)]
    if not pipes and wanted is not None:
        raise without_component(nlp, wanted, component)
    return pipes


def without_component(nlp: Language, wanted: str, component: Optional[str] = None) -> ValueError:
    """The error for a pipeline that lacks a component: CRF711 if it has nothing but a tokenizer that learns, else CRF710; the
    arguments are those of `our_pipes`."""
    from ..pipeline.tokenizer import CharacterTokenizer

    if isinstance(nlp.tokenizer, CharacterTokenizer) and not nlp.pipe_names:
        named = f" named '{component}'" if component else ""
        return ValueError(Errors.CRF711.format(named=named))
    return no_component(wanted, nlp.pipe_names, component)


def warn_of_learned_texts(pipes: "Iterable[LearningPipe]", examples: list[Example], path: Path) -> None:
    """Warn of each component that has learned from some of the examples, since scores on these tell nothing about new texts.

    path (Path): Where the examples are from.
    """
    for pipe in pipes:
        learned = pipe.training.learned.count(examples)
        if learned:
            pipe.warn(Warnings.CRFW909, learned=learned, texts=counted(len(examples), "text"), path=path)


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, n_texts: int = 0, bold: object = None
) -> None:
    """Print a table. Long cells wrap, and brackets are not markup.

    n_texts (int): Number of leading columns that hold texts; the other columns hold numbers.
    bold: The row to print in bold.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title, "table.title"), title_justify="left")
    for n, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if n < n_texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row), style="bold" if row is bold else None)
    Console().print(table)
