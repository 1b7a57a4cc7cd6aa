"""The group of commands that spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports it with all commands: what a command needs beyond spaCy, it imports when it runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from spacy.cli._util import app as spacy_app
from wasabi import msg

app = typer.Typer(name="crf", help="Commands of spacy-crf: conditional random fields for spaCy.", no_args_is_help=True)
spacy_app.add_typer(app)


@contextmanager
def told_briefly() -> Iterator[None]:
    """Users of a command see what is wrong with their files, not where in our code it was found."""
    try:
        yield
    except (ValueError, OSError) as error:
        msg.fail(str(error), exits=1)
