"""A folder that one process at a time works in."""

import os
import socket
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary, finalize

from ..errors import Errors
from ..whole_files import is_unfinished
from .mapped import no_room

NAME = "lock"
_PLACE = (
    1 << 30
)  # the byte that is locked: Windows lets nobody else read it, so it is none of those that say who has it
_held: "WeakValueDictionary[Path, Lock]" = WeakValueDictionary()  # of this process


class NoLocks(ValueError):
    """Of a file system."""


class Lock:
    """The file `lock` in a folder, locked as long as this object is there, or until the end of a ``with``: the system lets go of
    it when its process ends, however that ends. It stays in the folder, and says which process had it last.

    RAISES (ValueError): CRF736 if another process has it, CRF475 if there is no room. (NoLocks): CRF737.
    """

    def __init__(self, path: Path):
        self._file = path.open("a+b", buffering=0)
        finalize(self, self._file.close)
        try:
            _lock(self._file)
        except (BlockingIOError, PermissionError):
            self._file.seek(0)
            process = self._file.read(300).decode("utf8", "replace") or "another one"
            raise ValueError(Errors.CRF736.format(path=path.parent, process=process)) from None
        except OSError as error:
            raise NoLocks(Errors.CRF737.format(path=path.parent, reason=error.strerror)) from error
        try:
            self._file.truncate(0)
            self._file.write(f"{os.getpid()} of {socket.gethostname()}".encode())
        except OSError as error:
            raise no_room(error, path) from error

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, *args: Any) -> None:
        self._file.close()


def locked(folder: Path) -> Lock:
    """Locks a folder that is there. Who has it already in this process shares it: one training follows the other there.

    RAISES (ValueError): As `Lock`.
    """
    path = folder.resolve() / NAME
    lock = _held.get(path)
    if lock is None:
        _held[path] = lock = Lock(path)
    return lock


def files_beside_lock(folder: Path) -> list[Path]:
    """But for what somebody has left who was killed while it was written."""
    return [path for path in folder.iterdir() if path.name != NAME and not is_unfinished(path)]


def _lock(file: Any) -> None:
    """RAISES (OSError): BlockingIOError or PermissionError if another process has it."""
    if os.name == "nt":
        import msvcrt

        file.seek(_PLACE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
