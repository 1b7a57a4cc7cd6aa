"""A progress bar in the terminal for work that takes long; nothing where stderr is not a terminal."""

import sys
import time
from typing import Any, Optional

_SHORT = 2.0  # seconds: shorter work has no bar


class Bar:
    """A line on stderr, if that is a terminal. It appears after two seconds and disappears at the end.

    what (str): Text in front of the bar.
    unit (str): Name of the counted things.
    total (Optional[int]): Their number, which may change; None if it is unknown.
    at_once (bool): Show the bar from the beginning.
    """

    def __init__(self, what: str, unit: str, total: Optional[int] = None, *, at_once: bool = False):
        self._what, self._unit, self.total = what, unit, total
        self._shown_at = time.monotonic() + (0.0 if at_once else _SHORT)
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._progress: Any = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: Any) -> None:
        self.pause()

    @property
    def is_shown(self) -> bool:
        return self._progress is not None and self._progress.live.is_started

    def show(self, done: int, note: str = "") -> None:
        """Show how many are done."""
        if self._progress is None and self._is_terminal and time.monotonic() >= self._shown_at:
            self._progress = self._made()
        if self._progress is not None:
            self._progress.start()  # at first, and after a pause
            self._progress.update(self._progress.task_ids[0], completed=done, total=self.total, note=note)

    def pause(self) -> None:
        """Hide the bar until it is shown again, before other lines are written."""
        if self._progress is not None:
            self._progress.stop()

    def _made(self) -> Any:
        from rich.console import Console  # most tasks end before a bar is needed
        from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

        of_all = "" if self.total is None else " of {task.total:,}"
        done, note = f"{{task.completed:,}}{of_all} {self._unit}", "{task.fields[note]}"
        seconds = TimeElapsedColumn() if self.total is None else TimeRemainingColumn()
        columns = "{task.description}", BarColumn(), done, note, seconds
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.add_task(self._what, total=self.total, note="")
        return progress
