"""The folder to which workers write: a file for each part, which is there as a whole or not at all; and what is done.

The manifest names what is made of what by what, so that the same command goes on where it was stopped and another one is told.
A part counts as done when it is in the manifest. One that was written, but not entered before the end came, is written again.
"""

import json
import os
import time
from contextlib import suppress
from typing import Any

import fsspec

from ..errors import Errors

MANIFEST = "manifest.jsonl"
_UNFINISHED = ".tmp"
_SECONDS = 2.0  # between two times that the manifest is written


class Target:
    """A folder, as fsspec takes it."""

    def __init__(self, folder: str):
        self.folder = folder
        self._system, self._root = fsspec.core.url_to_fs(folder)

    def write(self, name: str, content: bytes) -> None:
        """RAISES (OSError): If that can't be done. Nothing of it is left then."""
        path = f"{self._root}/{name}"
        unfinished = f"{path}.{os.getpid()}{_UNFINISHED}"  # two may be at it, if one was taken for dead
        try:
            with self._system.open(unfinished, "wb") as file:
                file.write(content)
            self._system.mv(unfinished, path)
        except BaseException:
            if self._system.exists(unfinished):
                self._system.rm_file(unfinished)
            raise

    def read(self, name: str) -> bytes:
        return self._system.cat_file(f"{self._root}/{name}")

    def has(self, name: str) -> bool:
        return self._system.exists(f"{self._root}/{name}")

    def prepare(self) -> None:
        """Makes the folder, and removes what was left by those who died while they wrote.

        RAISES (ValueError): CRF786 if there is something else in it than the work of `Manifest`.
        """
        self._system.makedirs(self._root, exist_ok=True)
        self.sweep()
        if self._system.ls(self._root) and not self.has(MANIFEST):
            raise ValueError(Errors.CRF786.format(folder=self.folder, reason="there are other files in it"))

    def sweep(self) -> None:
        for path in self._system.ls(self._root, detail=False):
            if path.endswith(_UNFINISHED):
                with suppress(FileNotFoundError):  # somebody who was taken for dead has just finished it
                    self._system.rm_file(path)


class Manifest:
    """What is done: lines of JSON, of which the first says of what and by what.

    head (dict): That. Work goes on only with the same.
    RAISES (ValueError): CRF786 if the folder holds the work of something else.
    """

    def __init__(self, target: Target, head: dict[str, Any]):
        self._target, self._head = target, head
        self.done: dict[int, dict[str, Any]] = {}  # by the number of the part
        self._written = time.monotonic()
        target.prepare()
        if target.has(MANIFEST):
            self._read()
        else:
            self.write()

    def enter(self, number: int, entry: dict[str, Any]) -> None:
        self.done[number] = entry
        if time.monotonic() - self._written >= _SECONDS:
            self.write()

    def write(self) -> None:
        entries = ({"part": number, **entry} for number, entry in sorted(self.done.items()))
        text = "".join(json.dumps(value) + "\n" for value in (self._head, *entries))
        self._target.write(MANIFEST, text.encode("utf8"))
        self._written = time.monotonic()

    def _read(self) -> None:
        try:
            head, *entries = map(json.loads, self._target.read(MANIFEST).splitlines())
            self.done = {entry.pop("part"): entry for entry in entries}
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(Errors.CRF786.format(folder=self._target.folder, reason=f"{MANIFEST}: {error}")) from error
        for key in self._head:
            if head.get(key) != self._head[key]:
                reason = f"what is there was made with other {key}: {head.get(key)}, now {self._head[key]}"
                raise ValueError(Errors.CRF786.format(folder=self._target.folder, reason=reason))
