"""The folder to which workers write: a file for each part, which is there as a whole or not at all; and what is done.

The manifest names what is made of what by what, so that the same command goes on where it was stopped and another one is told.
A part counts as done when it is in the manifest, and its file is as long as it says. One that was written, but not entered before
the end came, is written again.
"""

import json
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from ..errors import Errors, Warnings
from . import lock
from .mapped import no_room

MANIFEST = "manifest.jsonl"
_UNFINISHED = ".tmp"
_SECONDS = 2.0  # between two times that the manifest is written, at least
_SHARE = 0.01  # of the time, at most, that writing it takes: it grows with the archive


class Target:
    """A folder, as fsspec takes it."""

    def __init__(self, folder: str):
        self.folder = folder
        self._system, self._root = fsspec.core.url_to_fs(folder)

    def is_within(self, source: str) -> bool:
        system, root = fsspec.core.url_to_fs(source)
        return system == self._system and f"{self._root}/".startswith(f"{root}/") and system.isdir(root)

    def write(self, name: str, content: bytes) -> None:
        """RAISES (ValueError): CRF475 if there is no room. (OSError): If it can't be done for another reason. Nothing of it is
        left then."""
        path = f"{self._root}/{name}"
        # Two may be at it, if one was taken for dead, perhaps on different machines
        unfinished = f"{path}.{uuid.uuid4().hex}{_UNFINISHED}"
        try:
            with self._system.open(unfinished, "wb") as file:
                file.write(content)
            self._system.mv(unfinished, path)
        except OSError as error:
            raise no_room(error, Path(path)) from error
        finally:
            with suppress(OSError):  # it has its name then
                self._system.rm_file(unfinished)

    def read(self, name: str) -> bytes:
        return self._system.cat_file(f"{self._root}/{name}")

    def has(self, name: str) -> bool:
        return self._system.exists(f"{self._root}/{name}")

    def sizes(self) -> dict[str, int]:
        """The bytes of what is in it, by name."""
        self._system.invalidate_cache()
        entries = self._system.ls(self._root, detail=True)
        return {entry["name"].rsplit("/", 1)[-1]: entry["size"] for entry in entries}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Makes the folder, and keeps others from writing there: as long as this process lives, and where file systems have
        locks, which buckets have not.

        RAISES (ValueError): CRF736 if another process writes there, CRF786 if there is something else in it than the work of
        `Manifest`.
        """
        self._system.makedirs(self._root, exist_ok=True)
        others = [name for name in self.sizes() if name != lock.NAME and not name.endswith(_UNFINISHED)]
        if others and not self.has(MANIFEST):
            raise ValueError(Errors.CRF786.format(folder=self.folder, reason="there are other files in it"))
        if not isinstance(self._system, LocalFileSystem):
            yield
            return
        try:
            held: Any = lock.Lock(Path(self._root) / lock.NAME)
        except lock.NoLocks as error:
            warnings.warn(Warnings.CRFW490.format(path=self.folder, reason=error.__cause__), stacklevel=4)
            held = nullcontext()
        with held:
            yield

    def sweep(self) -> None:
        """Removes what was left by those who died while they wrote."""
        for name in self.sizes():
            if name.endswith(_UNFINISHED):
                with suppress(FileNotFoundError):  # somebody who was taken for dead has just finished it
                    self._system.rm_file(f"{self._root}/{name}")


class Manifest:
    """What is done: lines of JSON, of which the first says of what and by what.

    head (dict): That. Work goes on only with the same.
    done (dict): By the number of a part its "file", how many "bytes" that has, and what there is to say of it.
    RAISES (ValueError): CRF786 if the folder holds the work of something else.
    """

    def __init__(self, target: Target, head: dict[str, Any]):
        self._target, self._head = target, head
        self.done: dict[int, dict[str, Any]] = {}
        self._next = 0.0  # time to write it
        target.sweep()
        if target.has(MANIFEST):
            self._read()
        else:
            self.write()

    def enter(self, number: int, entry: dict[str, Any]) -> None:
        self.done[number] = entry
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        start = time.monotonic()
        entries = ({"part": number, **entry} for number, entry in sorted(self.done.items()))
        text = "".join(json.dumps(value) + "\n" for value in (self._head, *entries))
        self._target.write(MANIFEST, text.encode("utf8"))
        end = time.monotonic()
        self._next = end + max(_SECONDS, (end - start) / _SHARE)

    def end(self) -> None:
        """What is done is entered, and nothing half is left."""
        self._target.sweep()  # first, which may make room
        self.write()

    def _read(self) -> None:
        try:
            head, *entries = map(json.loads, self._target.read(MANIFEST).splitlines())
            sizes = self._target.sizes()
            whole = [entry for entry in entries if sizes.get(entry["file"]) == entry["bytes"]]
            self.done = {entry.pop("part"): entry for entry in whole}
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(Errors.CRF786.format(folder=self._target.folder, reason=f"{MANIFEST}: {error}")) from error
        for key in self._head if self.done else ():  # where nothing is done, nothing is lost
            if head.get(key) != self._head[key]:
                reason = f"what is there was made with other {key}: {head.get(key)}, now {self._head[key]}"
                raise ValueError(Errors.CRF786.format(folder=self._target.folder, reason=reason))
