"""The group of commands that spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports it. The file of a command is imported when the command is asked for: all of them would keep
``spacy train`` waiting for 0.05 s.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Optional

import typer
from spacy.cli._util import app as spacy_app
from typer.core import TyperGroup
from typer.main import get_group

# The file that has each command
_FILES = {
    "annotate": "annotate",
    "calibrate": "report",
    "clusters": "clusters",
    "compile": "train",
    "convert": "convert",
    "curve": "tune",
    "data": "data",
    "distil": "distil",
    "errors": "report",
    "explain": "explain",
    "export": "migrate",
    "import": "migrate",
    "init-config": "init_config",
    "inspect": "explain",
    "report": "report",
    "rules": "explain",
    "show": "explain",
    "threshold": "tune",
    "train": "train",
    "tune": "tune",
    "update": "train",
    "upgrade": "upgrade",
    "vectors": "clusters",
}


def import_commands(names: Iterable[str] = tuple(_FILES)) -> None:
    """Their files, which add them to `app`."""
    for name in names:
        import_module(f".{_FILES[name]}", __package__)


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        self._import(_FILES)
        return list(_FILES)

    def get_command(self, ctx: Any, cmd_name: str) -> Optional[Any]:
        # What is no name may be a misspelt one, and typer looks among all for what was meant
        self._import([cmd_name] if cmd_name in _FILES else _FILES)
        return super().get_command(ctx, cmd_name)

    def _import(self, names: Iterable[str]) -> None:
        if not self.commands.keys() >= set(names):
            import_commands(names)
            self.commands = get_group(app).commands


app = typer.Typer(name="crf", cls=_LazyGroup, no_args_is_help=True, rich_markup_mode=None)  # of no markup, as spaCy's


@app.callback()  # with one, typer takes it for a group whatever has been imported of it
def crf_cli() -> None:
    """Commands of spacy-crf: conditional random fields for spaCy."""


spacy_app.add_typer(app)
