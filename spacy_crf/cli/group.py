"""The group of commands, which spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports this file. A command's own file is imported when the command is used: importing all of them
would delay ``spacy train`` by 0.05 s. Other packages add commands by entry points of the group `spacy_crf_commands`: the name of
the command, and the module that adds it to `app`.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Optional

import typer
from spacy.cli._util import app as spacy_app
from typer.core import TyperGroup
from typer.main import get_group

_COMMANDS = {  # by file
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
    "lookups": ("lookups",),
    "migrate": ("import",),
    "projects": ("card", "project"),
    "report": ("calibrate", "errors", "report", "threshold"),
    "train": ("compile", "train", "update"),
    "tune": ("tune",),
}


@cache
def command_modules() -> dict[str, str]:
    """RETURNS (dict[str, str]): The module of each command, of this package and of others, by the name of the command."""
    modules = {entry.name: entry.value for entry in entry_points(group="spacy_crf_commands")}
    for file, commands in _COMMANDS.items():
        modules |= dict.fromkeys(commands, f"{__package__}.{file}")
    return dict(sorted(modules.items()))


def import_commands(names: Optional[Iterable[str]] = None) -> None:
    """Import the modules of some commands, by default of all, which add the commands to `app`."""
    modules = command_modules()
    for name in modules if names is None else names:
        import_module(modules[name])


class _LazyGroup(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        self._import(command_modules())
        return list(command_modules())

    def get_command(self, ctx: Any, cmd_name: str) -> Optional[Any]:
        # For a misspelt name, typer looks for similar ones among all commands
        self._import([cmd_name] if cmd_name in command_modules() else command_modules())
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
