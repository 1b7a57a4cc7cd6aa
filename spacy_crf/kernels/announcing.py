"""Announces that kernels are being compiled: a first training must not look like a program that hangs.

numba reports each function that it compiles and none that it loads from its cache, so callers of kernels announce nothing.
"""

import logging
from typing import Any, Optional

from numba.core import event

from ..errors import counted
from ..progress import Bar
from .compiling import crew

# Not among the announcements, which are switched off for what trains many times: that takes longest to compile
waiting = logging.getLogger("spacy.spacy_crf.kernels")
if waiting.level == logging.NOTSET:
    waiting.setLevel(logging.INFO)

packages = {__name__.partition(".")[0]}  # which declare kernels: this one, and others that import it
_ONCE = (
    "spacy_crf: compiling %s, which nothing has called before. They are kept in %s. Ahead of time: "
    "`python -m spacy crf compile`"
)
_LONG = "spacy_crf: compiling '%s' for these features and this loss, once: %d seconds where a core is free"


class Announcer(event.Listener):
    """Announces the first kernel that a process compiles, and each slow kernel; in a terminal, a bar says how many are left."""

    def __init__(self) -> None:
        self.seconds: dict[str, int] = {}  # compile time of slow kernels, by name
        self.compiled = 0  # number of kernels that this process compiled
        self._has_announced = False
        self._depth = 0  # numba compiles a kernel together with its helpers
        self._bar: Optional[Bar] = None

    def on_start(self, event: Any) -> None:
        """Announce a kernel of these packages that numba begins to compile, unless it is a helper of another kernel."""
        kernel = event.data["dispatcher"]
        if not _is_ours(kernel):
            return
        self._depth += 1
        if self._depth > 1:
            return
        left = crew.n_left()
        if not self._has_announced:
            self._has_announced = True
            waiting.info(_ONCE, counted(left, "numba kernel") if left else "numba kernels", kernel.stats.cache_path)
        name = kernel.py_func.__name__
        if name in self.seconds:
            waiting.info(_LONG, name, self.seconds[name])
        if self._bar is None:
            self._bar = Bar("compiling", "kernel", left or None, at_once=True)
        done = self.compiled
        if self._bar.total is not None:
            left = max(left, 1)  # this one, where nobody announced it: then the bar grows
            self._bar.total = max(self._bar.total, self.compiled + left)
            done = self._bar.total - left  # also by other processes
        self._bar.show(done, name)

    def on_end(self, event: Any) -> None:
        """Count a compiled kernel, and pause the bar."""
        if not _is_ours(event.data["dispatcher"]):
            return
        self._depth -= 1
        if self._depth == 0:
            self.compiled += 1
            if self._bar is not None:
                self._bar.pause()  # the program's own lines may follow


def _is_ours(kernel: Any) -> bool:
    module = kernel.py_func.__module__  # None where a string was executed
    return module is not None and module.partition(".")[0] in packages


announcer = Announcer()
event.register("numba:compile", announcer)
