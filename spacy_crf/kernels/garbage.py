"""The garbage collector waits while a kernel is compiled: what numba makes for it lives until it is done, and going through
it, and through all that spaCy has loaded, again and again took a seventh of the time."""

import gc

from numba.core import event


class Waiting(event.Listener):
    """From the start of a kernel to its end; whoever has turned the collector off finds it off."""

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


def collect_later() -> None:
    """Than whatever is compiled from now on, by others too: it frees nothing of what is being compiled."""
    event.register("numba:compile", Waiting())
