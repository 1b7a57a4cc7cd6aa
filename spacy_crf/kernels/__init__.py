"""Numba kernels: arrays in, arrays out. Compiled once per machine; this file sees to it that the result can be kept."""

import logging
import os
import tempfile
from pathlib import Path

import numba

logger = logging.getLogger("spacy.spacy_crf")

_announced = False
_asked: set[tuple] = set()  # looking into the cache folder takes longer than decoding a sentence: once is enough


def announce_compilation(*kernels, seconds: int = 5) -> None:
    """Say once per process that the first call takes longer, if any of the kernels is not in numba's cache yet.

    A kernel that was edited after it was cached counts as cached: this is a message, not a guarantee.
    """
    global _announced
    if _announced or kernels in _asked:
        return
    _asked.add(kernels)
    if all(map(_is_cached, kernels)):
        return
    _announced = True
    logger.warning(
        "spacy_crf: compiling numba kernels, once; this takes about %d seconds. They are kept in %s",
        seconds,
        kernels[0].stats.cache_path,
    )


def _is_cached(kernel) -> bool:
    if not hasattr(kernel, "stats"):  # plain Python under NUMBA_DISABLE_JIT
        return True
    function = kernel.py_func
    stem = f"{Path(function.__code__.co_filename).stem}.{function.__qualname__}-{function.__code__.co_firstlineno}"
    return any(Path(kernel.stats.cache_path or ".").glob(f"{stem}.*.nbi"))


def _probe():
    pass


def _ensure_cache_folder() -> None:
    """Where neither the installation nor the user's cache can be written (containers, functions in a cloud), numba
    refuses ``cache=True`` when it meets the first kernel: give it a temporary folder then."""
    if numba.config.CACHE_DIR:
        return
    try:
        numba.njit(cache=True)(_probe)
    except RuntimeError:
        numba.config.CACHE_DIR = str(_private_temporary_folder())


def _private_temporary_folder() -> Path:
    """The same folder in every process of this user. Loading a cached kernel runs code, so a folder that someone else
    could have prepared is not taken."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"spacy_crf_numba_{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if hasattr(os, "getuid"):
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.getuid() or status.st_mode & 0o022:
            return Path(tempfile.mkdtemp(prefix="spacy_crf_numba_"))
    return folder


_ensure_cache_folder()
