"""Says that kernels are being compiled while they are: a first training must not look like a program that hangs.

numba tells of each function that it compiles, and of none that it finds in its cache: nobody who calls a kernel has to ask.
"""

import sys
from typing import Any, Optional

from numba.core import event

from ..errors import announcements
from .blas import postpone_search
from .garbage import collect_later

_PACKAGE = __name__.rpartition(".")[0]
_ONCE = (
    "spacy_crf: compiling numba kernels that nothing has asked for before: a first prediction takes about 5 seconds longer, a "
    "first training about 10, another first question up to 10. They are kept in %s"
)
_LONG = "spacy_crf: compiling '%s' for these features and this loss, once: up to %d seconds"


class Announcer(event.Listener):
    """Announces the first kernel that a process compiles, and each one that takes long; in a terminal a spinner turns."""

    def __init__(self) -> None:
        self.seconds: dict[str, int] = {}  # that kernels take which take long, by their names
        self._told = False
        self._depth = 0  # a kernel is compiled with the helpers that it calls
        self._spinner: Optional[Any] = None

    def on_start(self, event: event.Event) -> None:
        kernel = event.data["dispatcher"]
        if not _is_ours(kernel):
            return
        self._depth += 1
        if self._depth > 1:
            return
        if not self._told:
            self._told = True
            announcements.info(_ONCE, kernel.stats.cache_path)
        name = kernel.py_func.__name__
        if name in self.seconds:
            announcements.info(_LONG, name, self.seconds[name])
        if sys.stderr is not None and sys.stderr.isatty():
            from rich.console import Console  # most processes compile nothing

            self._spinner = Console(stderr=True).status(f"compiling {name}")
            self._spinner.start()

    def on_end(self, event: event.Event) -> None:
        if not _is_ours(event.data["dispatcher"]):
            return
        self._depth -= 1
        if self._depth == 0 and self._spinner is not None:
            self._spinner.stop()
            self._spinner = None


def _is_ours(kernel: Any) -> bool:
    module = kernel.py_func.__module__  # None where a string was executed
    return module is not None and module.startswith(_PACKAGE)


announcer = Announcer()
event.register("numba:compile", announcer)
postpone_search()  # here, for every kernel is declared after these two
collect_later()
