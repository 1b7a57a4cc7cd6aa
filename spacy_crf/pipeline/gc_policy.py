"""What lives as long as a training does is not searched for garbage again and again.

Python looks through all objects whenever their number has grown by a quarter: 0.1 s each time after spaCy's imports, and 0.2 s
with 8,000 Docs, which took a tenth of a training run (mit_restaurant).
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

# So often are young objects searched before all are: never
_NEVER = 1 << 30
_YOUNG = 1  # the generation of what has outlived a search at most


@contextmanager
def only_young_searched() -> Iterator[None]:
    """Garbage of today is collected, that of long ago after it: while much is read that stays, and little is thrown away."""
    *young, old = gc.get_threshold()
    gc.set_threshold(*young, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*young, old)


@contextmanager
def not_searched() -> Iterator[None]:
    """All that there is now is in use until the end. What is made meanwhile is searched as ever."""
    if gc.get_freeze_count():  # somebody else has said so, and says when it ends
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@cache
def left_at_exit() -> None:
    """When the process ends, garbage of today is collected, and all else is left to the system, which takes back all memory at
    once: Python would search it, and take cycles apart object by object, a seventh of the time of a small training. Whatever is
    no part of a cycle, such as a file, Python still closes."""
    atexit.register(_leave)


def _leave() -> None:
    gc.collect(_YOUNG)
    gc.freeze()
