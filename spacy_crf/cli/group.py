"""The group of commands, which spaCy's command line finds by the entry point in ``spacy_cli``.

Every ``python -m spacy …`` imports this file. A command's own file is imported when the command is used: importing all of them
would delay ``spacy train`` by 0.05 s. Other packages add commands by entry points of the group `spacy_crf_commands`: the name of
the command, and the module that adds it to `app`.

All commands share one grammar, as in spaCy's: what a command reads stands behind its name, and what it writes behind --output or
-o, the only short option.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from itertools import chain
from typing import Any, Optional

import typer
from spacy.cli._util import app as spacy_app
from typer.core import TyperGroup
from typer.main import get_group

_GROUPS = {  # by title: the file of each command
    "Start": {"init-config": "init_config", "project": "projects", "demo": "demo", "compile": "train"},
    "Data and words": {
        "convert": "data",
        "data": "data",
        "clusters": "clusters",
        "vectors": "clusters",
        "lookups": "configs",
        "distil": "distil",
    },
    "Train": {"train": "train", "fit": "train", "tune": "tune", "curve": "train", "update": "train"},
    "Look at a pipeline": {
        "show": "explain",
        "explain": "explain",
        "inspect": "explain",
        "evaluate": "evaluate",
        "threshold": "evaluate",
    },
    "Use a pipeline": {"annotate": "annotate", "tag": "migrate", "card": "projects"},
    "Models of other programs": {"import": "migrate", "export": "migrate"},
}
_OTHERS = "Added by other packages"
_HABITS = {  # names that spaCy or other programs use
    "apply": "annotate",
    "debug": "data",
    "find-threshold": "threshold",
    "info": "inspect",
    "init": "init-config",
    "label": "annotate",
    "package": "card",
    "predict": "show (texts that you type) or annotate (files)",
    "search": "tune",
    "serve": "demo",
    "test": "evaluate",
}


@cache
def command_modules() -> dict[str, str]:
    """The module of each command, of this package and of others, by the name of the command."""
    modules = {entry.name: entry.value for entry in entry_points(group="spacy_crf_commands")}
    for commands in _GROUPS.values():
        modules |= {name: f"{__package__}.{file}" for name, file in commands.items()}
    return dict(sorted(modules.items()))


def import_commands(names: Optional[Iterable[str]] = None) -> None:
    """Import the modules of the commands with these names, by default of all. Each module adds its commands to `app`."""
    modules = command_modules()
    for name in modules if names is None else names:
        import_module(modules[name])


class _LazyGroup(TyperGroup):
    """A group that imports a command when typer asks for it."""

    def list_commands(self, ctx: Any) -> list[str]:
        self._import(command_modules())
        return list(command_modules())

    def get_command(self, ctx: Any, cmd_name: str) -> Optional[Any]:
        if cmd_name in _HABITS:
            ctx.fail(f"No such command '{cmd_name}': it is {_HABITS[cmd_name]}")
        # For a misspelt name, typer looks for similar ones among all commands
        self._import([cmd_name] if cmd_name in command_modules() else command_modules())
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group."""
        others = command_modules().keys() - chain.from_iterable(_GROUPS.values())
        names_by_title = {**_GROUPS, _OTHERS: sorted(others)}
        widest = max(map(len, command_modules()))  # characters of the longest name
        for title, names in names_by_title.items():
            rows = []
            for name in names:
                command: Any = self.get_command(ctx, name)
                # click takes 6 columns for the margins
                rows.append((name.ljust(widest), command.get_short_help_str(formatter.width - 6 - widest)))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _import(self, names: Iterable[str]) -> None:
        """Import the commands with these names, unless the group has all of them already."""
        if not self.commands.keys() >= set(names):
            import_commands(names)
            self.commands = get_group(app).commands  # with those that the modules have added to `app`


# No markup, as in spaCy
app = typer.Typer(name="crf", cls=_LazyGroup, no_args_is_help=True, rich_markup_mode=None)


# Makes `app` a group even when a single command has been imported
@app.callback()
def crf_cli() -> None:
    """Commands of spacy-crf: conditional random fields for spaCy."""


spacy_app.add_typer(app)
