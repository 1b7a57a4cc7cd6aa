"""Saved files: msgpack in parts, sealed behind a header with a checksum, and written beside the old file before they replace
it."""

import errno
import gc
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
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from srsly.msgpack import Packer, unpackb

from .errors import Errors

# Plain values of one part of a saved model, as msgpack keeps them
Saved = dict[str, Any]
HEADER = struct.Struct("<IIQ")  # format version, CRC-32 of the rest, its length
_PIECE = 1 << 15  # bytes to compress at once
# Unpacked content may take so many times the bytes of its file. Empty blocks pad files that shrink to less than two such parts
_MOST_TIMES = 50
_EMPTY_BLOCK = b"\0\0\0\xff\xff"
ALWAYS_ROOM = 1 << 24  # bytes, also for the smallest file
_FED = 1 << 10  # bytes to decompress at once
_FEW = 64  # items of a list that is packed item by item
_LARGE = 1 << 15  # bytes of a part of its own
_UNFINISHED = re.compile(r"\.(.+)-[0-9a-f]{32}")
_BEGAN = time.time()


class FileFormat(NamedTuple):
    """The name of a kind of files for messages, the bytes they begin with, and the version that is written and read."""

    what: str
    magic: bytes
    version: int


def seal(form: FileFormat, content: bytes) -> bytes:
    """Compressed content behind a header with its checksum, see `unseal`."""
    file = io.BytesIO()
    seal_into(file, form, [content])
    return file.getvalue()


def seal_into(file: BinaryIO, form: FileFormat, parts: Iterable[bytes]) -> None:
    """Write content part by part, so that one part is in memory at a time.

    file (BinaryIO): A file that can seek.
    """
    begin = file.tell()
    check = 0
    length = 0
    file.write(form.magic + HEADER.pack(form.version, check, length))
    for piece in _compressed(parts):
        check = zlib.crc32(piece, check)
        length = length + file.write(piece)
    file.seek(begin)
    file.write(form.magic + HEADER.pack(form.version, check, length))


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """A zlib stream. More than half of a model is hashes and compressed data; the rest shrinks by a seventh."""
    # Other strategies than runs take three times as long and save 7 % more. Leaving out the parts that do not shrink would save
    # 9 ms of 49 for 8 MB, and is not done
    compress = zlib.compressobj(1, strategy=zlib.Z_RLE)
    for piece in _pieces(parts):
        block = compress.compress(piece) + compress.flush(zlib.Z_FULL_FLUSH)
        missing = 2 * len(piece) // _MOST_TIMES - len(block)
        yield block + max(0, missing // len(_EMPTY_BLOCK)) * _EMPTY_BLOCK
    yield compress.flush()


def _pieces(parts: Iterable[bytes]) -> Iterator[memoryview]:
    """Join small parts, and cut large ones into pieces."""
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
    """Check sealed data, and unpack its content.

    source (str): Origin of the data, for messages.
    RAISES (ValueError): CRF501, CRF502 or CRF508.
    """
    start = len(form.magic) + HEADER.size
    if not isinstance(data, (bytes, bytearray)) or not data.startswith(form.magic) or len(data) < start:
        raise ValueError(Errors.CRF501.format(source=source, what=form.what))
    # The checksum finds damage, not forgery
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


# Bytes that the unpacked content of a file may still take, and all that it may take; None without a limit
_room: ContextVar[Optional[list[int]]] = ContextVar("room", default=None)


@contextmanager
def unpacking(data: bytes) -> Iterator[None]:
    """Within this context, unpacked content shares the room of this data, or of the file that contains it: a small file can't
    fill the memory."""
    most = max(_MOST_TIMES * len(data) if isinstance(data, (bytes, bytearray)) else 0, ALWAYS_ROOM)
    token = _room.set(_room.get() or [most, most])
    try:
        yield
    finally:
        _room.reset(token)


def take_room(n_bytes: int) -> None:
    """Count bytes of unpacked content. RAISES (ValueError): CRF511 if the file that is being unpacked has no more room."""
    room = _room.get()
    if room is not None:
        room[0] -= n_bytes
        if room[0] < 0:
            raise ValueError(Errors.CRF511.format(most=room[1], times=_MOST_TIMES))


def inflated(data: bytes) -> bytearray:
    """`zlib.decompress`, as long as there is room.

    RAISES (ValueError): CRF511 otherwise. RAISES (zlib.error): If the data is damaged.
    """
    content = bytearray()
    inflate = zlib.decompressobj()
    view = memoryview(data)
    for begin in range(0, len(view), _FED):
        piece = inflate.decompress(view[begin : begin + _FED])
        take_room(len(piece))
        content += piece
    if not inflate.eof:
        raise zlib.error("the stream is cut off")
    return content


# ----------------------------------------------------------------------------------------------------------- msgpack


def packed(value: object) -> Iterator[bytes]:
    """The bytes of `srsly.msgpack_dumps` in parts: of a large model there is no more than a copy of one array at a time."""
    # A single one, since making it asks all installed packages for their encoders
    packer = Packer(use_bin_type=True)

    def parts(value: object) -> Iterator[bytes]:
        if isinstance(value, dict):
            yield packer.pack_map_header(len(value))
            for key, of_key in value.items():
                yield packer.pack(key)
                yield from parts(of_key)
        elif isinstance(value, (list, tuple)) and len(value) <= _FEW:
            # Longer lists have small items
            yield packer.pack_array_header(len(value))
            for item in value:
                yield from parts(item)
        elif isinstance(value, bytes) and len(value) >= _LARGE:
            yield from packed_bytes([value])
        else:
            yield packer.pack(value)

    return parts(value)


def packed_bytes(parts: list[bytes]) -> list[bytes]:
    """The bytes of `srsly.msgpack_dumps` for bytes of many parts."""
    return [b"\xc6" + sum(map(len, parts)).to_bytes(4, "big"), *parts]


def unpacked(data: bytes) -> Any:
    """`srsly.msgpack_loads`, as long as there is room for lists, tables and texts: a byte may stand for one.

    RAISES (ValueError): CRF511 if there is no more room; whatever msgpack raises.
    """
    hooks = {}
    if _room.get() is not None:
        # Lists and tables count half of what CPython takes for them and for short texts, since gazetteers of many short words are
        # seventy times as large as their file
        def of_list(items: list) -> list:
            take_room(15 + 28 * len(items))
            return items

        def of_table(table: dict) -> dict:
            take_room(100 + 50 * len(table))
            return table

        hooks = {"list_hook": of_list, "object_hook": of_table}
    was_on = gc.isenabled()
    gc.disable()  # it would look through the growing lists again and again
    try:
        return unpackb(data, raw=False, **hooks)
    finally:
        if was_on:
            gc.enable()


# ------------------------------------------------------------------------------------------------------------- files


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that replaces the old one when it is complete, so that there is always a whole one. Pipes and devices
    are written directly.

    RAISES (OSError): The error names the file.
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
    """A path beside a file or a folder, to write its replacement. In the end nothing is left there, nor what processes left that
    were killed: unfinished files from before this process, whose writers are most probably dead."""
    # In the same folder, since a file can replace another one only on its own disk
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(unfinished_name(path.name))
    with suppress(OSError):
        for left in path.parent.glob(f".{escape(path.name)}-{32 * '[0-9a-f]'}"):
            if left.lstat().st_mtime < _BEGAN:
                _remove(left)
    try:
        yield unfinished
    finally:
        _remove(unfinished)


def unfinished_name(name: str) -> str:
    """A new name for a file or folder while it is written."""
    return f".{name}-{uuid.uuid4().hex}"


def is_unfinished(name: str) -> bool:
    """Whether `unfinished_name` made a name."""
    return _UNFINISHED.fullmatch(name) is not None


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def is_full(error: OSError) -> bool:
    """Whether the disk is full."""
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
    """Add the path to errors of the system, which do not name an open file (on a full disk, for example)."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Write a file as `whole` does."""
    with whole(path) as file:
        file.write(data)
