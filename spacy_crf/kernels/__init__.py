"""Numba kernels: functions of arrays, compiled once per machine. This file keeps their machine code and discards stale code.

numba checks only whether a kernel's own file has changed, not the files of its helpers: after an edit or an upgrade of a
helper, its callers would keep the old code. So the code compiled from a file is kept in a folder whose name is a digest of the
file's source and of the files that it imports from this package and from its own. The folder is where numba would put it: in
NUMBA_CACHE_DIR if the user has set that, else beside the sources, else in the user's cache; if none of these can be written, in
a temporary folder. Other packages' functions stay where they are.
"""

import hashlib
import os
import pickle
import re
import secrets
import stat
import sys
import tempfile
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import Any, Optional

from ..errors import Errors

# The versions of numba that pyproject.toml allows: from the first one, and below the last one
SUPPORTED = ((0, 60), (0, 69))

# The errors are of many kinds: of libraries that are missing or do not fit, and of a NumPy that is too new
try:
    import numba

    if not SUPPORTED[0] <= numba.version_info.short < SUPPORTED[1]:
        raise ImportError(f"its version is {numba.__version__}")
    from numba.core.caching import NullCache
    from numba.core.compiler import CompileResult
    from numba.core.cpu import CPUContext
    from numba.core.runtime import rtsys
    from numba.core.serialize import dumps

    from .announcing import announcer, packages
    from .compiling import crew
    from .numba_setup import compare_flags_quickly, number_at_random, pause_collector, remember_operators
except Exception as error:
    oldest, next_version = (".".join(map(str, version)) for version in SUPPORTED)
    versions = f"numba>={oldest},<{next_version}"
    raise ImportError(Errors.CRF017.format(reason=error, versions=versions)) from error

config: Any = numba.config  # its names are made when it is imported

number_at_random()
compare_flags_quickly()
remember_operators()
pause_collector()

_PACKAGE = Path(__file__).parents[1]
_IMPORT = re.compile(rf"^[ ]*from (\.+|{_PACKAGE.name}\b\.?)([\w.]*) import (\([^)]*\)|.*)$", re.MULTILINE)
_NAME = re.compile(r"\w+")
_NAMED_TUPLE = re.compile(r"^class \w+\(NamedTuple\):\n(?:[ ]+.*\n|\n)+", re.MULTILINE)


def kernel(function: Any = None, *, seconds: int = 0, in_place: bool = False, **options: Any) -> Any:
    """Declare a function that numba compiles at its first call, and whose machine code stays on disk.

    seconds (int): About how long compiling takes, if that is long enough to announce it.
    in_place (bool): Whether the function, with its helpers, neither makes nor returns arrays. numba then does not count
        references to arrays, which is a quarter of the code that it gives to LLVM.
    options: Further options of `numba.njit`. (Kernels get no entry point for C: it would be a twentieth of all compiled code.)
    """
    if function is None:
        return partial(kernel, seconds=seconds, in_place=in_place, **options)
    if config.DISABLE_JIT:
        return function
    packages.add(function.__module__.partition(".")[0])
    if seconds:
        announcer.seconds[function.__name__] = seconds
    compiled: Any = numba.njit  # whose annotation knows no further options
    dispatcher = compiled(nogil=True, no_cfunc_wrapper=True, _nrt=not in_place, **options)(function)
    dispatcher._cache = CodeFiles(function)
    return dispatcher


# Only kernels call helpers, so helpers get no entry point for Python. A helper's own helpers are compiled as a part of it, and
# again as a part of its callers, so calls are not nested deeply; and each array in a named tuple costs time.
helper = partial(kernel, no_cpython_wrapper=True)


class CodeFiles(NullCache):
    """The machine code of a kernel: one file for each signature.

    numba's own cache has its compiler get ready before it reads a kernel, which takes three times as long as to read all kernels
    that a prediction needs; and processes that compile at once may overwrite each other's index. The files are pickles with
    machine code, as numba's are: who writes to the folder can run code, so `_private_temporary_folder` refuses those of others.
    """

    def __init__(self, function: FunctionType):
        """function (Callable): The kernel, not compiled."""
        self._function = function
        self._folder = cache_folder(function.__code__.co_filename)

    @property
    def cache_path(self) -> str:
        """The folder of the files, as numba asks for it."""
        return str(self._folder)

    def path(self, signature: tuple, target_context: CPUContext) -> Path:
        """The file for a signature. Its name has a digest of all that makes code differ whose sources are the same."""
        function = self._function
        code = function.__code__
        enclosed = [cell.cell_contents for cell in function.__closure__ or ()]
        processor = target_context.codegen().magic_tuple()
        made_of = (str(signature), code.co_firstlineno, code.co_code, dumps(enclosed), processor, numba.__version__)
        name = f"{Path(code.co_filename).stem}.{function.__name__.strip('<>')}"
        digest = hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]
        return self._folder / f"{name}-{digest}.{sys.implementation.cache_tag}.code"

    def load_overload(self, sig: tuple, target_context: CPUContext) -> Optional[CompileResult]:
        """Read the code for a signature. RETURNS (Optional[CompileResult]): The code; None if it has to be compiled."""
        path = self.path(sig, target_context)
        if not path.exists():
            crew.compile_missing(path)
        try:
            saved_signature, saved = pickle.loads(path.read_bytes())
        except Exception:  # not compiled yet; or damaged, so that any error may occur
            return None
        if saved_signature != sig:  # named tuples with the same name
            return None
        rtsys.initialize(target_context)  # compiled code calls its functions
        return CompileResult._rebuild(target_context, *saved)

    def save_overload(self, sig: tuple, data: CompileResult) -> None:
        """Write the code for a signature, unless it has addresses of this process in it, or nothing can be written."""
        if data.library.has_dynamic_globals:
            return
        path = self.path(sig, data.target_context)
        unfinished = path.with_name(f"{path.name}-{secrets.token_hex(8)}")  # nobody reads it before it is whole
        with suppress(OSError):  # a full disk, or a folder that can't be written any more
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                unfinished.write_bytes(dumps((sig, data._reduce())))
                unfinished.replace(path)
            finally:
                unfinished.unlink(missing_ok=True)


def cache_folder(path: str) -> Path:
    """The folder where numba keeps the compiled functions of a file."""
    return _home() / _digest(Path(path))


@cache
def _home() -> Path:
    """The folder where numba keeps compiled functions of this file."""
    try:
        probe: Any = numba.njit(cache=True)(_probe)
        return Path(probe.stats.cache_path)
    except RuntimeError:  # neither the installation nor the user's cache can be written (containers, clouds)
        return _private_temporary_folder()


def _probe():
    """Do nothing: numba is asked where it would keep this function."""


@cache
def _digest(path: Path) -> str:
    """Digest of a file, of the files that it imports from this package and its own, directly or indirectly, of this file, and of
    the named tuples."""
    own = path
    sources = {Path(__file__)}
    left = [path]
    while left:
        path = left.pop()
        if path not in sources:
            sources.add(path)
            left += _imported(path)
    kernels = {_PACKAGE / "kernels", *(parent for parent in own.parents if parent.name == "kernels")}
    digest = hashlib.sha256(_named_tuples(frozenset(kernels)))
    # With zeros between them, so that no two lists of files spell the same bytes
    for path in sorted(sources):
        digest.update(path.name.encode() + b"\0" + _source(path).encode() + b"\0")
    return digest.hexdigest()[:12]


@cache
def _named_tuples(folders: frozenset[Path]) -> bytes:
    """All named tuples that kernels of these folders may be given, also by callers that a kernel's file does not import.
    numba keeps their names with what it compiled: it fails to load a kernel whose tuple was renamed, and could read the wrong
    field of one whose fields changed their order."""
    files = [_PACKAGE / "types.py"]
    for folder in folders:
        files += folder.rglob("*.py")
    blocks = (_NAMED_TUPLE.findall(_source(path)) for path in sorted(files))
    return "".join(chain.from_iterable(blocks)).encode()


@cache
def _imported(path: Path) -> list[Path]:
    """The files of this package and of its own that a file names in its imports."""
    found = []
    for origin, module, names in _IMPORT.findall(_source(path)):
        # A relative import begins at the file's folder, another one at this package
        base = path.parents[len(origin) - 1] if origin.startswith(".") else _PACKAGE
        base = base.joinpath(*module.split(".")) if module else base
        candidates = [base, *(base / name for name in _NAME.findall(names))]
        for place in candidates:
            found += [place.with_suffix(".py"), place / "__init__.py"]
    return [file for file in found if file.is_file()]


@cache
def _source(path: Path) -> str:
    """The text of a file."""
    return path.read_text(encoding="utf-8")


def _private_temporary_folder() -> Path:
    """Temporary folder, the same in every process of this user. Loading a cached kernel runs code, so a folder that another user
    could have prepared is refused."""
    user = os.getuid() if hasattr(os, "getuid") else "user"
    folder = Path(tempfile.gettempdir()) / f"spacy_crf_numba_{user}"
    with suppress(FileExistsError):  # also another user's file or dangling link, see below
        folder.mkdir(mode=0o700)
    if hasattr(os, "getuid"):
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            return Path(tempfile.mkdtemp(prefix="spacy_crf_numba_"))
    return folder
