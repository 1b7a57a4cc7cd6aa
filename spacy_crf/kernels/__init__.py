"""Numba kernels: arrays in, arrays out. Compiled once per machine; this file sees to it that the result is kept, and never stale.

numba looks only whether the file of a kernel has changed, not those of the helpers that it calls: an edit or an upgrade of a
helper would leave its callers with the old code. So what was compiled lies in a folder that is named by a digest of all sources
of kernels. It is where numba would have kept it: in NUMBA_CACHE_DIR if the user has set that, else beside the sources, else in
the user's cache; and where nothing of this can be written, in a temporary folder. Functions of others stay where they are.
"""

import hashlib
import logging
import os
import tempfile
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path

import numba

logger = logging.getLogger("spacy.spacy_crf")

_announced = False
_asked: set[tuple] = set()  # looking into the cache folder takes longer than decoding a sentence: once is enough


def kernel(function=None, **options):
    """Declares a function that numba compiles when it is first called, and keeps.

    options: More of those of `numba.njit`.
    """
    if function is None:
        return partial(kernel, **options)
    if numba.config.DISABLE_JIT:
        return function
    with _cache_in(cache_folder()):
        return numba.njit(cache=True, nogil=True, **options)(function)


# Helpers are called by kernels only: no way in for Python. What a helper calls is compiled again as a part of it, and then
# as a part of its callers, so calls are not nested deeply; and every array of a named tuple that it is given costs time.
helper = partial(kernel, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def announce_compilation(*kernels, seconds: int = 5) -> None:
    """Say once per process that the first call takes longer, if any of the kernels is not in numba's cache yet.

    This is a message, not a guarantee: a kernel counts as cached if it was compiled for any types.
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


@cache
def cache_folder() -> Path:
    """Where what is compiled of these sources is kept."""
    try:
        home = Path(numba.njit(cache=True)(_probe).stats.cache_path)
    except (
        RuntimeError
    ):  # neither the installation nor the user's cache can be written (containers, functions in a cloud)
        home = _private_temporary_folder()
    return home / _digest(Path(__file__).parent)


def _probe():
    pass


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


@contextmanager
def _cache_in(folder: Path):
    """While a function is declared: numba asks where it is to be kept at no other time."""
    before = {name: getattr(numba.config, name, "") for name in ("CACHE_DIR", "CACHE_LOCATOR_CLASSES")}
    numba.config.CACHE_DIR, numba.config.CACHE_LOCATOR_CLASSES = str(folder), ""
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(numba.config, name, value)


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
