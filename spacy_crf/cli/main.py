"""The group of commands that spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports it with all commands: what a command needs beyond spaCy, it imports when it runs.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Optional

import spacy
import typer
from spacy.cli._util import app as spacy_app
from spacy.cli._util import import_code
from spacy.language import Language
from wasabi import msg

from ..errors import Errors

app = typer.Typer(name="crf", help="Commands of spacy-crf: conditional random fields for spaCy.", no_args_is_help=True)
spacy_app.add_typer(app)

# What commands share
ModelArgument = Annotated[str, typer.Argument(help="A pipeline: the name of a package, or a folder.")]
CodeOption = Annotated[Optional[Path], typer.Option("--code", help="Python file with functions to register.")]


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


def check_writable(path: Path) -> None:
    """Before the work is done: whether its result can be kept. Makes the folders above.

    RAISES (OSError): If there is a folder in its place, or a file in place of a folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def sought(nlp: Language, component: Optional[str]) -> dict[str, str]:
    """For errors: which component was asked for, and which there are."""
    return {"named": f" named '{component}'" if component else "", "components": ", ".join(nlp.pipe_names) or "none"}
