"""The package's only concurrency: threads over chunks, for kernels and numpy functions that release the GIL."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

_thread = threading.local()  # has `in_pool` in the threads of a pool


def default_threads() -> int:
    """How many threads to use by default: SPACY_CRF_THREADS if it is set, or the cores that this process may use."""
    setting = os.environ.get("SPACY_CRF_THREADS")
    if setting:
        return max(1, int(setting))
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_chunks(function: Callable[[Chunk], Result], chunks: Sequence[Chunk], threads: int = 1) -> list[Result]:
    """Call a function on each chunk.

    Sums of the results in their order have the same bits for any number of threads, as long as the chunks are the same. A call
    from a thread of a pool runs its chunks in that thread, one by one, since nested pools could deadlock.

    function (Callable): The function of a chunk.
    chunks (Sequence): The chunks.
    threads (int): How many chunks may run at a time.
    RETURNS (list): The results in the order of the chunks.
    """
    if threads <= 1 or len(chunks) <= 1 or getattr(_thread, "in_pool", False):
        return [function(chunk) for chunk in chunks]
    return list(_pool(threads).map(function, chunks))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spacy_crf", initializer=_enter_pool)


def _enter_pool() -> None:
    """Mark this thread as one of a pool."""
    _thread.in_pool = True


def _forget_pools() -> None:
    """Discard the thread pools after a fork: threads do not survive it, even in a fork from one of our own threads."""
    _pool.cache_clear()
    _thread.in_pool = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
