"""Files that are whole or none: behind a header with a checksum, written beside the old one before they take its place."""

import errno
import io
import os
import re
import shutil
import struct
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple, Optional, Union

from .errors import Errors

HEADER = struct.Struct("<IIQ")  # format version, CRC-32 of the rest, its length
_PIECE = 1 << 15  # bytes that are compressed at once
# How often the bytes of a file what is unpacked may have; what is written shrinks to half of that at most, by blocks of nothing
_MOST_TIMES, _EMPTY_BLOCK = 50, b"\0\0\0\xff\xff"
_ALWAYS_ROOM = 1 << 24  # bytes, also for the smallest file
_FED = 1 << 10  # bytes that are decompressed at once
_UNFINISHED = re.compile(r"\.(.+)-[0-9a-f]{32}")
_BEGAN = time.time()


class FileFormat(NamedTuple):
    """What a file is, for messages, the bytes it begins with, and the version that this package writes and reads."""

    what: str
    magic: bytes
    version: int


def seal(form: FileFormat, content: bytes) -> bytes:
    file = io.BytesIO()
    seal_into(file, form, [content])
    return file.getvalue()


def seal_into(file: BinaryIO, form: FileFormat, parts: Iterable[bytes]) -> None:
    """Writes the content that has some parts, one of which after the other is in memory.

    file (BinaryIO): It can seek.
    """
    begin, check, length = file.tell(), 0, 0
    file.write(form.magic + HEADER.pack(form.version, check, length))
    for piece in _compressed(parts):
        check, length = zlib.crc32(piece, check), length + file.write(piece)
    file.seek(begin)
    file.write(form.magic + HEADER.pack(form.version, check, length))


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """A zlib stream. More than half of a model are hashes and what is compressed already; of the rest a seventh is saved. Other
    strategies than runs took thrice the time for 7 % more, and leaving out what does not shrink saved 9 ms of 49 for 8 MB."""
    compress = zlib.compressobj(1, strategy=zlib.Z_RLE)
    for piece in _pieces(parts):
        block = compress.compress(piece) + compress.flush(zlib.Z_FULL_FLUSH)
        missing = 2 * len(piece) // _MOST_TIMES - len(block)
        yield block + max(0, missing // len(_EMPTY_BLOCK)) * _EMPTY_BLOCK
    yield compress.flush()


def _pieces(parts: Iterable[bytes]) -> Iterator[memoryview]:
    """Small parts together, large ones in several pieces."""
    small = b""
    for part in parts:
        if len(small) + len(part) < _PIECE:
            small += part
            continue
        for some in (small, part):
            for begin in range(0, len(some), _PIECE):
                yield memoryview(some)[begin : begin + _PIECE]
        small = b""
    if small:
        yield memoryview(small)


def unseal(form: FileFormat, data: bytes, source: str) -> bytearray:
    """Checks the whole of the data before any of it is used.

    source (str): Where the data comes from, for the messages.
    RAISES (ValueError): CRF501, CRF502 or CRF508.
    """
    start = len(form.magic) + HEADER.size
    if not isinstance(data, (bytes, bytearray)) or not data.startswith(form.magic) or len(data) < start:
        raise ValueError(Errors.CRF501.format(source=source, what=form.what))
    version, check, length = HEADER.unpack(data[len(form.magic) : start])
    if version != form.version:
        raise ValueError(Errors.CRF502.format(source=source, version=version, known=form.version))
    payload = memoryview(data)[start:]
    if len(payload) != length or zlib.crc32(payload) != check:
        raise ValueError(
            Errors.CRF508.format(
                source=source, reason=f"{len(payload)} bytes where {length} belong, or a wrong checksum"
            )
        )
    try:
        with unpacking(data):
            return inflated(payload)
    except (ValueError, zlib.error) as error:
        raise ValueError(Errors.CRF508.format(source=source, reason=error)) from error


class UnpackLimit:
    """How many bytes what is unpacked of a file may still take, so that a small file can't fill the memory."""

    def __init__(self, size: int):
        self._most = self._left = max(_MOST_TIMES * size, _ALWAYS_ROOM)

    def take(self, n_bytes: int) -> None:
        """RAISES (ValueError): CRF511 if there are not so many."""
        self._left -= n_bytes
        if self._left < 0:
            raise ValueError(Errors.CRF511.format(most=self._most, times=_MOST_TIMES))


_room: ContextVar[Optional[UnpackLimit]] = ContextVar("room", default=None)


@contextmanager
def unpacking(data: bytes) -> Iterator[None]:
    """What is unpacked inside comes from this data, and shares its room; or that of the file in which the data is."""
    token = _room.set(_room.get() or UnpackLimit(len(data) if isinstance(data, (bytes, bytearray)) else 0))
    try:
        yield
    finally:
        _room.reset(token)


def current_room() -> Optional[UnpackLimit]:
    """That of the file which is being unpacked; None where nothing bounds it."""
    return _room.get()


def inflated(data: bytes) -> bytearray:
    """What `zlib.decompress` gives, as long as there is room for it.

    RAISES (ValueError): CRF511 otherwise. RAISES (zlib.error): If the data is damaged.
    """
    content, inflate, view, room = bytearray(), zlib.decompressobj(), memoryview(data), current_room()
    for begin in range(0, len(view), _FED):
        piece = inflate.decompress(view[begin : begin + _FED])
        if room is not None:
            room.take(len(piece))
        content += piece
    if not inflate.eof:
        raise zlib.error("the stream is cut off")
    return content


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of the old one when all is in it, so that there is always a whole one. What is no
    file, such as a pipe or a device, gets it as it comes.

    RAISES (OSError): With the name of the file, whatever can't be written.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not path.is_file():
        with named_in_errors(path), path.open("wb") as file:
            yield file
        return
    with named_in_errors(path), beside(path) as unfinished:
        with unfinished.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, unfinished)
        unfinished.replace(path)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Where to write what is to take the place of a file or a folder. Nothing is left there in the end, nor what was left by
    earlier processes that were killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(unfinished_name(path.name))
    for left in _left_behind(path.parent).pop(path.name, []):
        _remove(left)
    try:
        yield unfinished
    finally:
        _remove(unfinished)


@lru_cache(maxsize=256)
def _left_behind(folder: Path) -> dict[str, list[Path]]:
    """What was being written in a folder before this process began, by what it was to become: who wrote it is most probably dead,
    while whoever writes later may be alive."""
    found: dict[str, list[Path]] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _UNFINISHED.fullmatch(entry.name)
            if match and entry.stat(follow_symlinks=False).st_mtime < _BEGAN:
                found.setdefault(match[1], []).append(folder / entry.name)
    return found


def unfinished_name(name: str) -> str:
    """A new name for a file or folder while it is written."""
    return f".{name}-{uuid.uuid4().hex}"


def is_unfinished(name: str) -> bool:
    return _UNFINISHED.fullmatch(name) is not None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def is_full(error: OSError) -> bool:
    """Whether there is no room on the disk."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """RAISES (ValueError): CRF475, with the path, if the disk gets full."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise ValueError(Errors.CRF475.format(path=path, reason=error.strerror)) from error
        raise


@contextmanager
def named_in_errors(path: Union[str, Path]) -> Iterator[None]:
    """The system does not say which file it is that it can't write to: a full disk is told of an open file."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file as `whole` does."""
    with whole(path) as file:
        file.write(data)
