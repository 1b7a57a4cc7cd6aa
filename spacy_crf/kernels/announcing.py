"""Announces that kernels are being compiled: a first training must not look like a program that hangs.

numba reports each function that it compiles and none that it loads from its cache, so callers of kernels announce nothing.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any, Optional

from numba.core import event

from ..errors import announcements
from ..progress import Bar

_PACKAGE = __name__.rpartition(".")[0]
_ONCE = (
    "spacy_crf: compiling numba kernels that nothing has asked for before: a first prediction takes about 5 seconds longer, a "
    "first training 10 to 30, another first question up to 10. They are kept in %s. Ahead of time: `python -m spacy crf compile`"
)
_LONG = "spacy_crf: compiling '%s' for these features and this loss, once: up to %d seconds"


class Announcer(event.Listener):
    """Announces the first kernel that a process compiles, and each slow one; in a terminal, a bar counts down."""

    def __init__(self) -> None:
        self.seconds: dict[str, int] = {}  # compile time of slow kernels, by name
        self.compiled = 0  # number of kernels that this process compiled
        self._expected: Counter[str] = Counter()
        self._told = False
        self._depth = 0  # numba compiles a kernel together with its helpers
        self._bar: Optional[Bar] = None

    def expect(self, kernels: Counter[str]) -> None:
        """Announce kernels ("module.name") that will be called, each with its number of argument types."""
        self._expected |= kernels

    def on_start(self, event: Any) -> None:
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
            self._show(name)

    def on_end(self, event: Any) -> None:
        if not _is_ours(event.data["dispatcher"]):
            return
        self._depth -= 1
        if self._depth == 0:
            self.compiled += 1
            if self._bar is not None:
                self._bar.pause()  # the program's own lines may follow

    def _show(self, name: str) -> None:
        left = sum(max(0, times - _n_compiled(kernel)) for kernel, times in self._expected.items())
        if self._bar is None:
            self._bar = Bar("compiling", "kernels", left or None, at_once=True)
        if self._bar.total is not None:
            self._bar.total = self.compiled + max(left, 1)
        self._bar.show(self.compiled, name)


def _n_compiled(name: str) -> int:
    """Number of argument types for which a kernel is compiled already, in this process or in its cache."""
    module, _, function = name.rpartition(".")
    kernel = getattr(sys.modules.get(f"{_PACKAGE}.{module}"), function, None)
    if kernel is None:
        return 0
    return max(len(kernel.signatures), len(_kept(module, function, Path(kernel.stats.cache_path))))


def _kept(module: str, function: str, folder: Path) -> list[Path]:
    """The files in which numba keeps the machine code of a kernel, one for each type of its arguments."""
    return [*folder.glob(f"{module}.{function}-*.py{sys.version_info.major}{sys.version_info.minor}*.nbc")]


def _is_ours(kernel: Any) -> bool:
    module = kernel.py_func.__module__  # None where a string was executed
    return module is not None and module.partition(".")[0] == _PACKAGE.partition(".")[0]


announcer = Announcer()
event.register("numba:compile", announcer)
