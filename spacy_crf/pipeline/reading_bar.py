"""Shows in a terminal how many texts have been read, where that takes long."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from spacy.training import Example

# Nothing is shown of what takes fewer seconds
_SHORT = 2.0


def with_bar(blocks: Iterable[list[Example]], what: str) -> Iterator[list[Example]]:
    """The same blocks. What is read may be a stream, so nobody knows how much is left."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield from blocks
        return
    start, n_texts, bar = time.monotonic(), 0, None
    try:
        for block in blocks:
            yield block
            n_texts += len(block)
            if bar is None and time.monotonic() - start >= _SHORT:
                bar = _begun(what)
            _show(bar, n_texts)
    finally:
        if bar is not None:
            bar.stop()


def _begun(what: str) -> Any:
    from rich.console import Console  # most corpora are read sooner
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,} texts"),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(what, total=None)
    bar.start()
    return bar


def _show(bar: Optional[Any], n_texts: int) -> None:
    if bar is not None:
        bar.update(bar.task_ids[0], completed=n_texts)
