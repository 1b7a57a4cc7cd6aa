"""The group of commands that spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports it with all commands: what a command needs beyond spaCy, it imports when it runs.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import spacy
import typer
from spacy.cli._util import app as spacy_app
from spacy.cli._util import import_code
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import Config, load_config
from wasabi import msg

from ..errors import Errors

if TYPE_CHECKING:
    from ..pipeline.crf_pipe import CRFPipe

app = typer.Typer(name="crf", help="Commands of spacy-crf: conditional random fields for spaCy.", no_args_is_help=True)
spacy_app.add_typer(app)

# What commands share
ModelArgument = Annotated[str, typer.Argument(help="A pipeline: the name of a package, or a folder.")]
CodeOption = Annotated[Optional[Path], typer.Option("--code", help="Python file with functions to register.")]


def choice(name: str, values: Iterable[str]) -> type[Enum]:
    """The type of an option that takes one of these."""
    return Enum(name, {value: value for value in values})


@contextmanager
def told_briefly() -> Iterator[None]:
    """Users of a command see what is wrong with their files, not where in our code it was found."""
    try:
        yield
    except OSError as error:
        reason = Errors.CRF706.format(path=error.filename, reason=error.strerror) if error.filename else str(error)
        msg.fail(reason, exits=1)
    except (ValueError, ImportError) as error:
        msg.fail(str(error), exits=1)


def load_pipeline(model: str, code: Optional[Path] = None) -> Language:
    """A pipeline, once the functions are registered that its config may name.

    RAISES (ValueError): CRF715 if it can't be loaded, whatever the reason.
    """
    import_code(code)
    try:
        return spacy.load(model)
    except Exception as error:
        raise ValueError(Errors.CRF715.format(model=model, reason=error or type(error).__name__)) from error


def read_config(path: Path, overrides: dict[str, Any], *, interpolate: bool) -> Config:
    """RAISES (ValueError): CRF725 if the file can't be read."""
    try:
        return load_config(path, overrides=overrides, interpolate=interpolate)
    except ValueError as error:
        raise ValueError(Errors.CRF725.format(path=path, reason=error)) from None


def check_writable(path: Path) -> None:
    """Before the work is done: whether its result can be kept. Makes the folders above.

    RAISES (OSError): If there is a folder in its place, or a file in place of a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def our_pipes(
    nlp: Language, component: Optional[str], none: str, is_wanted: Callable[["CRFPipe"], bool] = lambda pipe: True
) -> list["CRFPipe"]:
    """The components of ours in a pipeline, or the one of a name.

    none (str): The error where there are none.
    is_wanted (Callable): Which of them will do.
    RAISES (ValueError): If there are none.
    """
    from ..pipeline.crf_pipe import CRFPipe

    ours = [pipe for name, pipe in nlp.pipeline if isinstance(pipe, CRFPipe) and component in (None, name)]
    found = [pipe for pipe in ours if is_wanted(pipe)]
    if not found:
        named, components = f" named '{component}'" if component else "", ", ".join(nlp.pipe_names) or "none"
        raise ValueError(none.format(named=named, components=components))
    return found


def doc_before(nlp: Language, pipe: "CRFPipe", text: str) -> Doc:
    """A text as it comes to a component."""
    doc = nlp.make_doc(text)
    for _, other in takewhile(lambda item: item[1] is not pipe, nlp.pipeline):
        doc = other(doc)
    return doc


def print_table(
    title: str, columns: Iterable[str], rows: Iterable[Iterable[str]], *, n_texts: int = 0, bold: Any = None
) -> None:
    """Texts as they are, brackets as well; what is too long for the terminal goes on in the next line.

    n_texts (int): The first columns hold texts, the others numbers. bold: The row that is shown so.
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
