"""The group of commands, which spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports this file. A command's own file is imported when the command is used: importing all of them
would delay ``spacy train`` by 0.05 s.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Optional

import typer
from spacy.cli._util import app as spacy_app
from typer.core import TyperGroup
from typer.main import get_group

_COMMANDS = {  # by file
    "aggregate": ("aggregate",),
    "annotate": ("annotate",),
    "clusters": ("clusters", "vectors"),
    "configs": ("init-config",),
    "convert": ("convert",),
    "curve": ("curve",),
    "data": ("data",),
    "demo": ("demo",),
    "distil": ("distil",),
    "export": ("export", "tag"),
    "explain": ("explain", "inspect", "rules", "show"),
    "fit": ("fit",),
    "graph": ("graph",),
    "lookups": ("lookups",),
    "migrate": ("import",),
    "projects": ("card", "project"),
    "report": ("calibrate", "errors", "report", "threshold"),
    "train": ("compile", "train", "update"),
    "tune": ("tune",),
}
_FILES = dict(sorted((command, file) for file, commands in _COMMANDS.items() for command in commands))


def import_commands(names: Iterable[str] = tuple(_FILES)) -> None:
    """Import the files of some commands, which add the commands to `app`."""
    for name in names:
        import_module(f".{_FILES[name]}", __package__)


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        self._import(_FILES)
        return list(_FILES)

    def get_command(self, ctx: Any, cmd_name: str) -> Optional[Any]:
        # For a misspelt name, typer looks for similar ones among all commands
        self._import([cmd_name] if cmd_name in _FILES else _FILES)
        return super().get_command(ctx, cmd_name)

    def _import(self, names: Iterable[str]) -> None:
        if not self.commands.keys() >= set(names):
            import_commands(names)
            self.commands = get_group(app).commands


app = typer.Typer(name="crf", cls=_LazyGroup, no_args_is_help=True, rich_markup_mode=None)  # no markup, as in spaCy


@app.callback()  # makes `app` a group even when a single command has been imported
def crf_cli() -> None:
    """Commands of spacy-crf: conditional random fields for spaCy."""


spacy_app.add_typer(app)
