"""Progress of work that takes long: bars in a terminal, which share one display, and lines now and then elsewhere."""

import logging
import sys
import time
from typing import Any, Optional

from .errors import counted

SHORT = 2.0  # seconds: shorter work has no bar
LINE_EVERY = 60.0  # seconds between two lines, where stderr is no terminal


class Bar:
    """A progress bar on stderr, if stderr is a terminal. The bar appears after two seconds and disappears at the end of the
    ``with`` block. Bars of nested blocks are on lines below each other.

    what (str): Text in front of the bar.
    unit (str): Name of the things that are counted; "" to show the share that is done.
    total (Optional[int]): Number of all things, which may change; None if it is unknown.
    at_once (bool): Whether to show the bar from the beginning and, if stderr is no terminal, to print a line each minute.
    """

    def __init__(self, what: str, unit: str, total: Optional[int] = None, *, at_once: bool = False):
        self.what = what
        self.total = total
        self._unit = unit
        self._prints_lines = at_once
        self._appears_at = time.monotonic() + (0.0 if at_once else SHORT)
        self._last_line_at = time.monotonic()
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._row: Optional[_Row] = None  # in the display

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._row is not None:
            _display.remove(self._row)
            self._row = None

    @property
    def is_shown(self) -> bool:
        """Whether the bar is visible."""
        return self._row is not None and _display.shows(self._row)

    def show(self, done: int, note: str = "") -> None:
        """Show that `done` things are done, with a note behind the bar."""
        now = time.monotonic()
        if not self._is_terminal:
            if self._prints_lines and now - self._last_line_at >= LINE_EVERY:
                self._last_line_at = now
                print(f"{self.what}: {self.share(done)} {note}".rstrip(), file=sys.stderr, flush=True)
            return
        if self._row is None and now >= self._appears_at:
            self._row = _display.add_row()
        if self._row is not None:
            _display.show(self._row, self, done, note)

    def pause(self) -> None:
        """Hide the bar until it is shown again."""
        if self._row is not None:
            _display.hide(self._row)

    def share(self, done: int) -> str:
        """How much is done, in words: a number of the counted things, or a percentage."""
        if not self._unit:
            return f"{done / self.total:.0%}" if self.total else ""
        if self.total is None:
            return counted(done, self._unit)
        return f"{done:,} of {counted(self.total, self._unit)}"


# A row of a display: rich's table of rows, and the row in it
_Row = tuple[Any, int]


class _Display:
    """All bars of this process. Two displays of rich would write over each other."""

    def __init__(self) -> None:
        self._progress: Any = None
        self._rows: dict[_Row, bool] = {}  # whether each is visible
        self._stderr: object = None

    def add_row(self) -> _Row:
        """Add a hidden row."""
        # While bars are shown, rich replaces sys.stderr by a proxy
        stderr = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
        if self._progress is None or self._stderr is not stderr:
            self._progress = _new_progress()
            self._rows = {}
            self._stderr = stderr
        row = self._progress, self._progress.add_task("", total=None, visible=False, share="", note="")
        self._rows[row] = False
        return row

    def shows(self, row: _Row) -> bool:
        """Whether a row is visible."""
        return self._rows.get(row, False) and row[0].live.is_started

    def show(self, row: _Row, bar: Bar, done: int, note: str) -> None:
        """Write how many things are done into the row of a bar, and make the row visible."""
        progress, task = row
        if row in self._rows:  # unless another stderr has a new display
            appears = not self._rows[row]
            self._rows[row] = True
            progress.update(
                task,
                description=bar.what,
                visible=True,
                refresh=appears and progress.live.is_started,
                completed=done,
                total=bar.total,
                share=bar.share(done),
                note=note,
            )
            # Bars are removed before the log writes a line, which would begin behind a bar
            for handler in (*logging.getLogger("spacy").handlers, *logging.getLogger().handlers):
                if _without_bars not in handler.filters:
                    handler.addFilter(_without_bars)
            progress.start()  # at first, and after a line was written

    def hide(self, row: _Row) -> None:
        """Make a row invisible; it keeps its place."""
        progress, task = row
        if self._rows.get(row):
            self._rows[row] = False
            if not any(self._rows.values()):
                progress.stop()
            progress.update(task, visible=False)

    def remove(self, row: _Row) -> None:
        """Take a row out of the display."""
        self.hide(row)
        if self._rows.pop(row, None) is not None:
            progress, task = row
            progress.remove_task(task)

    def clear(self) -> None:
        """Remove the bars from the terminal until one is shown again."""
        if self._progress is not None:
            self._progress.stop()


def _new_progress() -> Any:
    """An empty display of bars on stderr."""
    # Most tasks end before a bar is needed, and importing rich takes a tenth of a second
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, TimeElapsedColumn, TimeRemainingColumn

    left = TimeRemainingColumn()
    spent = TimeElapsedColumn()

    class TimeColumn(ProgressColumn):
        """The time left, or without a total the time spent."""

        def render(self, task: Any) -> Any:
            return (spent if task.total is None else left).render(task)

    columns = "{task.description}", BarColumn(), "{task.fields[share]}", "{task.fields[note]}", TimeColumn()
    # Estimated over ten minutes: parts of the work may take one each
    return Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=600.0)


def _without_bars(record: logging.LogRecord) -> bool:
    """A filter that lets every record pass, and removes the bars before it is written."""
    _display.clear()
    return True


_display = _Display()
