"""Changes that this package makes to numba, once, before the first kernel is declared."""

import gc
import importlib
import secrets
from functools import partial

from numba.core import event
from numba.core.bytecode import FunctionIdentity
from numba.np import linalg


def number_at_random() -> None:
    """Give machine code names that no other process gives to different code.

    numba distinguishes functions of the same name and arguments by a number, and counts from 1 in every process. A process that
    loads kernels which two others compiled may find two inner functions with one number. The linker takes one for the other:
    `np.sort` of one kernel is then `np.argsort` of the other, and sorts nothing (numba issue 10486). From now on this process,
    and those forked from it, use 64 random bits of the operating system as numbers, for other packages too.
    """
    FunctionIdentity._unique_ids = iter(partial(secrets.randbits, 64), None)


def postpone_blas() -> None:
    """Keep numba from looking for BLAS before anyone multiplies matrices.

    With the first kernel, even one from its cache, numba imports `scipy.linalg` to know whether it is there, which takes 0.1 to
    0.2 s of CPU time. numba asks again when it compiles a product of matrices; no kernel of this package has one.
    """
    search = getattr(linalg, "ensure_blas", None)
    if search is None:
        return  # a numba that looks for it elsewhere
    linalg.ensure_blas = _found
    try:
        arraymath = importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = search
    if getattr(arraymath, "ensure_blas", None) is _found:
        arraymath.ensure_blas = search


def _found() -> None:
    pass


class PausedCollector(event.Listener):
    """Turns Python's garbage collector off while a kernel is compiled, if it was on.

    The objects that numba makes for a kernel live until it is compiled. The collector went through them, and through
    all that spaCy has loaded, again and again, and took a seventh of the time.
    """

    def __init__(self) -> None:
        self._depth = 0  # a kernel is compiled with the helpers that it calls, by one thread at a time
        self._was_on = False

    def on_start(self, event: event.Event) -> None:
        if self._depth == 0:
            self._was_on = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0 and self._was_on:
            gc.enable()


def pause_collector() -> None:
    """Pause the garbage collector whenever numba compiles something."""
    event.register("numba:compile", PausedCollector())
