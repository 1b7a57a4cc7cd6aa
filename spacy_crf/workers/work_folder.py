"""A folder that one command at a time fills with files, each written atomically, and a manifest of the finished work.

The manifest contains a description of the work, its input and its program. So the same command continues where it was stopped,
and a different command is refused. A file that was written but not entered in the manifest is written again.

Folders and archives are on this machine, or on a file system that fsspec knows, such as ``s3://bucket/texts``.
"""

import json
import os
import socket
import stat
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any, Optional, Union
from weakref import WeakValueDictionary, finalize

from ..errors import Errors, Warnings, announcements, optional_package, shown
from ..whole_files import is_unfinished, room_for, unfinished_name


class LocalFiles:
    """The file system of this machine, with fsspec's names."""

    def open(self, path: str, mode: str = "rb") -> IO:
        """Open a file."""
        return open(path, mode)

    def exists(self, path: str) -> bool:
        """Whether there is a file or a folder."""
        return os.path.exists(path)

    def isdir(self, path: str) -> bool:
        """Whether there is a folder."""
        return os.path.isdir(path)

    def info(self, path: str) -> "dict[str, Union[str, float]]":
        """Name, size in bytes and time of the last change of a file."""
        status = os.stat(path)
        return {"name": path, "size": status.st_size, "mtime": status.st_mtime}

    def find(self, path: str) -> list[str]:
        """All files below a folder; the path itself if it is a file."""
        if os.path.isfile(path):
            return [path]
        found = []
        for folder, _, names in os.walk(path):
            found += [f"{folder}/{name}" for name in names]
        return found

    def ls(self, path: str, detail: bool) -> "list[dict[str, Union[str, float]]]":
        """`info` of each file and folder in a folder."""
        return [self.info(f"{path}/{name}") for name in os.listdir(path)]

    def cat_file(self, path: str) -> bytes:
        """The content of a file."""
        with open(path, "rb") as file:
            return file.read()

    def mv(self, path: str, target: str) -> None:
        """Move a file, in place of the one that is there."""
        os.replace(path, target)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        os.remove(path)

    def unstrip_protocol(self, path: str) -> str:
        """The address of a path, which here is the path itself."""
        return path

    def invalidate_cache(self) -> None:
        """Do nothing: there is no cache."""


LOCAL = LocalFiles()


def file_system(path: str) -> tuple[Any, str]:
    """The file system of a path or an address, and the path there.

    RAISES (ImportError): CRF781 for an address without fsspec.
    """
    if "://" not in path and "::" not in path:
        return LOCAL, os.path.abspath(os.path.expanduser(path)).replace(os.sep, "/")
    return optional_package("fsspec", what=path, install="'spacy-crf[archives]'").core.url_to_fs(path)


MANIFEST = "manifest.jsonl"
LOCK = "lock"
_SHARE = 0.01  # largest share of the time for writing the manifest, which grows with the work
_SECONDS = 2.0  # shortest time between two writes of the manifest
# The byte that is locked. On Windows other processes can't read it, so it lies behind the bytes that name the process.
_LOCKED_BYTE = 1 << 30


def check_ours(folder: Path) -> None:
    """Check that nobody else has prepared a folder: all that is in it, and a link to it, belong to this user, and there are only
    files and folders in it. A link in it would lead writing, and deleting, to other places.

    RAISES (ValueError): CRF981 if something else is in it.
    """
    owner = _owner_of_new_files(folder)
    # The superuser may be asked to work in the folder of any user
    is_root = hasattr(os, "getuid") and os.getuid() == 0
    if not is_root and not {folder.lstat().st_uid, folder.stat().st_uid} <= {owner, 0}:
        raise ValueError(Errors.CRF981.format(path=folder, reason="a folder of another user"))
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            try:
                status = path.lstat()
            except FileNotFoundError:  # another process has just finished it
                continue
            if stat.S_ISLNK(status.st_mode):
                reason = "a link"
            elif not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                reason = "not a regular file"
            elif status.st_uid != owner:
                reason = "a file of another user"
            else:
                continue
            raise ValueError(Errors.CRF981.format(path=path, reason=reason))


def _owner_of_new_files(folder: Path) -> int:
    """The owner of a file that this process makes in a folder: on disks of other machines it may not be the user's own number."""
    path = folder / unfinished_name("owner")
    with room_for(path):
        path.touch(exist_ok=False)
    try:
        return path.lstat().st_uid
    finally:
        path.unlink()


class NoLocks(ValueError):
    """Raised if the file system has no locks."""


class Lock:
    """The locked file `lock` of a folder. The system releases the lock when its process ends, however it ends. The file stays in
    the folder, and names the last process that held the lock.

    RAISES (ValueError): CRF736 if another process holds the lock, CRF475 if the disk is full, CRF981 for a link or another user's
        file. (NoLocks): CRF737.
    """

    def __init__(self, path: Path):
        if path.is_symlink():
            raise ValueError(Errors.CRF981.format(path=path, reason="a link"))
        # Follow no link, and don't wait for the reader of a pipe
        careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        self._file = FileIO(path, "a+b", opener=lambda name, flags: os.open(name, flags | careful, mode=0o666))
        finalize(self, self._file.close)
        try:
            _lock(self._file)
        except (BlockingIOError, PermissionError):
            self._file.seek(0)
            holder = self._file.read(300).decode("utf8", "replace") or "another one"
            raise ValueError(Errors.CRF736.format(path=path.parent, process=holder)) from None
        except OSError as error:
            raise NoLocks(Errors.CRF737.format(path=path.parent, reason=error.strerror)) from error
        with room_for(path):
            self._file.truncate(0)
            self._file.write(f"{os.getpid()} of {socket.gethostname()}".encode())

    def close(self) -> None:
        """Release the lock."""
        self._file.close()


_locks_of_this_process: "WeakValueDictionary[Path, Lock]" = WeakValueDictionary()


def shared_lock(folder: Path) -> Lock:
    """Lock a folder as long as an object refers to the lock. Successive trainings in a process share the lock."""
    path = folder.resolve() / LOCK
    lock = _locks_of_this_process.get(path)
    if lock is None:
        _locks_of_this_process[path] = lock = Lock(path)
    return lock


def _lock(file: FileIO) -> None:
    """Lock an open file. RAISES (OSError): BlockingIOError or PermissionError if another process holds the lock."""
    if os.name == "nt":
        import msvcrt

        file.seek(_LOCKED_BYTE)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class WorkFolder:
    """A folder, which a path or an address names.

    error (str): Message for the case that the work in the folder can't be continued, with the fields `path` and `reason`.
    """

    def __init__(self, folder: str, error: str = Errors.CRF786):
        self.folder = folder
        self._error = error
        self._system, self._root = file_system(folder)

    def refusal(self, reason: str) -> ValueError:
        """The folder's error: its work can't be continued for this reason."""
        return ValueError(self._error.format(path=self.folder, reason=reason))

    def is_within(self, source: str) -> bool:
        """Whether the folder is the folder `source`, or in it."""
        system, root = file_system(source)
        return system == self._system and f"{self._root}/".startswith(f"{root}/") and system.isdir(root)

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically. RAISES (ValueError): CRF475 if the disk is full."""
        path = f"{self._root}/{name}"
        # Two workers, perhaps on different machines, may write the same file if one of them was presumed dead
        unfinished = f"{self._root}/{unfinished_name(name)}"
        try:
            with room_for(Path(path)):
                with self._system.open(unfinished, "wb") as file:
                    file.write(content)
                self._system.mv(unfinished, path)
        finally:
            with suppress(OSError):  # the file is renamed already
                self._system.rm_file(unfinished)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        return self._system.cat_file(f"{self._root}/{name}")

    def sizes(self) -> dict[str, int]:
        """Size of each file in bytes, by name."""
        self._system.invalidate_cache()
        entries = self._system.ls(self._root, detail=True)
        return {entry["name"].rsplit("/", 1)[-1]: entry["size"] for entry in entries}

    def make(self) -> None:
        """Make the folder. RAISES (ValueError): The folder's error if it contains files, but no manifest; CRF981 if somebody else
        has prepared it."""
        if self._system is LOCAL:
            # If a file is in the place of the folder, CRF981 says so below
            with suppress(FileExistsError):
                os.makedirs(self._root, exist_ok=True)
            if not os.path.isdir(self._root):
                raise ValueError(Errors.CRF981.format(path=self._root, reason="not a folder"))
            check_ours(Path(self._root))
        else:
            self._system.makedirs(self._root, exist_ok=True)
        names = {name for name in self.sizes() if name != LOCK and not is_unfinished(name)}
        if names and MANIFEST not in names:
            raise self.refusal("there are other files in it")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Make the folder, and lock it against other processes if the file system has locks; buckets have none."""
        self.make()
        lock = nullcontext()
        if self._system is LOCAL:
            try:
                lock = closing(Lock(Path(self._root) / LOCK))
            except NoLocks as error:
                warnings.warn(Warnings.CRFW490.format(path=self.folder, reason=error.__cause__), stacklevel=4)
        with lock:
            yield

    def remove(self) -> None:
        """Remove the manifest and the lock of a local folder, and the folder if nothing else is in it."""
        for name in (MANIFEST, LOCK):
            Path(self._root, name).unlink(missing_ok=True)
        with suppress(OSError):
            Path(self._root).rmdir()

    def sweep(self) -> None:
        """Remove unfinished files of processes that died."""
        for name in filter(is_unfinished, self.sizes()):
            # A process that was presumed dead has just finished the file
            with suppress(FileNotFoundError):
                self._system.rm_file(f"{self._root}/{name}")


class Manifest:
    """The finished work in a folder, as lines of JSON: first the head, then on each line a key and the entry of a result.

    head (dict): Description of the work, its input and its program. Work continues only under the same head.
    first (str): Key of the first result worth keeping: without this result, work under another head starts anew. By default all
        results are worth keeping.
    is_entry (Callable): Whether a key and its entry may be what this command has written; by default any may.
    done (dict): Entries by key. If a result is a file, its entry has the name of the "file" in the folder and its number of
        "bytes"; an entry that does not match the folder is dropped.
    RAISES (ValueError): The folder's error if it holds work with another head.
    """

    def __init__(
        self,
        folder: WorkFolder,
        head: dict[str, object],
        first: Optional[str] = None,
        is_entry: Callable[[object, object], bool] = lambda key, known: True,
    ):
        self._folder = folder
        self.head = head
        self._is_entry = is_entry
        self.done: dict = {}
        self._next = 0.0  # time of the next write
        folder.sweep()
        if MANIFEST in folder.sizes():
            self._read(first)
        else:
            self.write()

    def _read(self, first: Optional[str]) -> None:
        """Read the entries whose files are in the folder. RAISES (ValueError): The folder's error for another head."""
        try:
            before, *entries = map(json.loads, self._folder.read(MANIFEST).splitlines())
            differing = [key for key in self.head if before.get(key) != self.head[key]]
            sizes = self._folder.sizes()
            for key, entry in entries:
                # An entry whose file is missing, or of another size, is not done
                has_file = isinstance(entry, dict) and "file" in entry
                if not has_file or sizes.get(str(entry["file"])) == entry.get("bytes", -1):
                    self.done[key] = entry
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise self._folder.refusal(f"{MANIFEST}: {error}") from error
        if not differing:
            for key, entry in self.done.items():
                if not self._is_entry(key, entry):
                    line = shown((key, entry))
                    raise self._folder.refusal(f"{MANIFEST} has a line that this command does not write: {line}")
            return
        is_worth_keeping = bool(self.done) if first is None else first in self.done
        if is_worth_keeping:
            key = differing[0]
            difference = _difference(before.get(key), self.head[key])
            raise self._folder.refusal(f"it was made with other {key}: {difference}")
        if self.done:
            announcements.info("%s: other work was begun there, and is begun anew", self._folder.folder)
            self.done = {}

    def enter(self, key: object, entry: object, *, at_once: bool = False) -> None:
        """Add the entry of a result, and write the manifest if a write is due or `at_once` is set."""
        self.done[key] = entry
        if at_once or time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Write the whole manifest."""
        # Timed, so that writing a long manifest takes only a small share of the work
        start = time.monotonic()
        # The whole manifest is written each time, so that a half-written line cannot occur
        lines = "".join(json.dumps(value) + "\n" for value in (self.head, *self.done.items()))
        self._folder.write(MANIFEST, lines.encode("utf8"))
        end = time.monotonic()
        self._next = end + max(_SECONDS, (end - start) / _SHARE)

    def end(self) -> None:
        """Write the manifest, after removing unfinished files to make room."""
        self._folder.sweep()
        self.write()


def _difference(before: object, now: object) -> str:
    """Describe where two values differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        key = next(key for key in {**before, **now} if before.get(key) != now.get(key))
        return f"{key}: {_difference(before.get(key), now.get(key))}"
    return f"then {json.dumps(before)[:200]}, now {json.dumps(now)[:200]}"
