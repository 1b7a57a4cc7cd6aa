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
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from srsly.msgpack import Packer, unpackb

from .errors import Errors

# Plain values of one part of a saved model, as msgpack keeps them
Saved = dict[str, Any]
HEADER = struct.Struct("<IIQ")  # format version, CRC-32 of the rest, its length
_PIECE = 1 << 15  # bytes to compress at once
# Unpacked content may take at most so many times the bytes of its file. Blocks that zlib shrinks to less than 2 / _MOST_TIMES of
# their size are padded with empty blocks, so that each file that is written can be read
_MOST_TIMES = 50
_EMPTY_BLOCK = b"\0\0\0\xff\xff"  # of a zlib stream
ALWAYS_ROOM = 1 << 24  # bytes that unpacked content may always take, also that of the smallest file
_FED = 1 << 10  # bytes to decompress at once, after which the room is checked
_FEW = 64  # items of a list that is packed item by item
_LARGE = 1 << 15  # bytes that are yielded as they are, and not copied by msgpack
_UNFINISHED = re.compile(r"\.(.+)-[0-9a-f]{32}")  # what `unfinished_name` returns
_BEGAN = time.time()  # of this process


class FileFormat(NamedTuple):
    """How files of a kind begin, and what messages call such a file."""

    what: str  # for messages: "a model"
    magic: bytes  # the first bytes of each file
    version: int  # of the content: the only one that is written and read


def seal(form: FileFormat, content: bytes) -> bytes:
    """Compress content, and put a header with a checksum before it. `unseal` is the inverse."""
    file = io.BytesIO()
    seal_into(file, form, [content])
    return file.getvalue()


def seal_into(file: BinaryIO, form: FileFormat, parts: Iterable[bytes]) -> None:
    """Write what `seal` returns to a file. The content comes in parts, so that one part is in memory at a time.

    file (BinaryIO): A file that can seek.
    """
    begin = file.tell()
    checksum = 0
    length = 0
    # Keeps the place of the header, which is complete only when the content is written
    file.write(form.magic + HEADER.pack(form.version, checksum, length))
    for piece in _compressed(parts):
        checksum = zlib.crc32(piece, checksum)
        length += file.write(piece)
    file.seek(begin)
    file.write(form.magic + HEADER.pack(form.version, checksum, length))


def _compressed(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Compress content to the pieces of a zlib stream. More than half of a model is hashes and compressed data; the rest shrinks
    by a seventh."""
    # Other strategies than Z_RLE take three times as long and save 7 % more. Leaving out the parts that do not shrink would save
    # 9 ms of 49 for 8 MB, and is not done
    compress = zlib.compressobj(1, strategy=zlib.Z_RLE)
    for piece in _pieces(parts):
        block = compress.compress(piece) + compress.flush(zlib.Z_FULL_FLUSH)
        least_size = 2 * len(piece) // _MOST_TIMES
        n_empty = max(0, (least_size - len(block)) // len(_EMPTY_BLOCK))
        yield block + n_empty * _EMPTY_BLOCK
    yield compress.flush()


def _pieces(parts: Iterable[bytes]) -> Iterator[memoryview]:
    """Join small parts, and cut large ones, so that no piece has more than `_PIECE` bytes."""
    joined = b""  # small parts
    for part in parts:
        if len(joined) + len(part) < _PIECE:
            joined += part
            continue
        for content in (joined, part):
            for begin in range(0, len(content), _PIECE):
                yield memoryview(content)[begin : begin + _PIECE]
        joined = b""
    if joined:
        yield memoryview(joined)


def unseal(form: FileFormat, data: bytes, source: str) -> bytearray:
    """Check data that `seal` returned, and decompress its content.

    source (str): Origin of the data, for messages.
    RAISES (ValueError): CRF501 if the data is not of this kind, CRF502 for another version, CRF508 if it is damaged.
    """
    start = len(form.magic) + HEADER.size
    if not isinstance(data, (bytes, bytearray)) or not data.startswith(form.magic) or len(data) < start:
        raise ValueError(Errors.CRF501.format(source=source, what=form.what))
    # The checksum finds damage, not forgery
    version, checksum, length = HEADER.unpack(data[len(form.magic) : start])
    if version != form.version:
        raise ValueError(Errors.CRF502.format(source=source, version=version, known=form.version))
    payload = memoryview(data)[start:]
    if len(payload) != length or zlib.crc32(payload) != checksum:
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


# The bytes that the unpacked content of a file may take in all (`most`) and those that are left of them (`left`); None without a
# limit
_room: ContextVar[Optional[SimpleNamespace]] = ContextVar("room", default=None)


@contextmanager
def unpacking(data: bytes) -> Iterator[None]:
    """Within this context, limit the memory that all unpacked content takes together, so that a small file can't fill it: to a
    multiple of the size of this data, or of the file that contains the data if this context is within another one."""
    size = len(data) if isinstance(data, (bytes, bytearray)) else 0  # a file may have another type where bytes belong
    most = max(_MOST_TIMES * size, ALWAYS_ROOM)
    token = _room.set(_room.get() or SimpleNamespace(most=most, left=most))
    try:
        yield
    finally:
        _room.reset(token)


def take_room(n_bytes: int) -> None:
    """Count bytes of unpacked content.

    RAISES (ValueError): CRF511 if the content of the file takes more than `unpacking` allows.
    """
    room = _room.get()
    if room is not None:
        room.left -= n_bytes
        if room.left < 0:
            raise ValueError(Errors.CRF511.format(most=room.most, times=_MOST_TIMES))


def inflated(data: bytes) -> bytearray:
    """`zlib.decompress` within the limit of `unpacking`.

    RAISES (ValueError): CRF511 if the content is larger.
    RAISES (zlib.error): If the data is damaged.
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
    """The bytes of `srsly.msgpack_dumps(value)` in parts, so that memory holds a copy of only one array of a large model at a
    time."""
    # One packer for all parts, since to make one asks all installed packages for their encoders
    return _packed(Packer(use_bin_type=True), value)


def _packed(packer: Packer, value: object) -> Iterator[bytes]:
    """Yield the bytes of a value in MessagePack: large bytes, and each item of a dict or of a short list, by themselves."""
    if isinstance(value, dict):
        yield packer.pack_map_header(len(value))
        for key, of_key in value.items():
            yield packer.pack(key)
            yield from _packed(packer, of_key)
    elif isinstance(value, (list, tuple)) and len(value) <= _FEW:
        # Longer lists have small items, and are packed at once
        yield packer.pack_array_header(len(value))
        for item in value:
            yield from _packed(packer, item)
    elif isinstance(value, bytes) and len(value) >= _LARGE:
        yield from packed_bytes([value])
    else:
        yield packer.pack(value)


def packed_bytes(parts: list[bytes]) -> list[bytes]:
    """`srsly.msgpack_dumps(b"".join(parts))` in parts, without joining them."""
    n_bytes = sum(map(len, parts))
    header = b"\xc6" + n_bytes.to_bytes(4, "big")  # msgpack's type "bin 32"
    return [header, *parts]


def unpacked(data: bytes) -> Any:
    """`srsly.msgpack_loads(data)`, with lists and tables counted by `take_room`: each byte of msgpack may become a whole list.

    RAISES (ValueError): CRF511 if the content takes more memory than `unpacking` allows. Errors of msgpack are passed on.
    """
    hooks = {}
    if _room.get() is not None:
        # Lists and tables count half of what CPython takes for them and for short texts, since gazetteers of many short words are
        # seventy times as large as their file
        def counted_list(items: list) -> list:
            take_room(15 + 28 * len(items))
            return items

        def counted_table(table: dict) -> dict:
            take_room(100 + 50 * len(table))
            return table

        hooks = {"list_hook": counted_list, "object_hook": counted_table}
    was_on = gc.isenabled()
    gc.disable()  # the garbage collector would look through the growing lists again and again
    try:
        return unpackb(data, raw=False, **hooks)
    finally:
        if was_on:
            gc.enable()


# ------------------------------------------------------------------------------------------------------------- files


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write. It replaces the file at the path only when it is complete, so that there always is a whole file
    there. Pipes and devices are written directly.

    RAISES (OSError): The error names the file.
    """
    path = Path(os.path.realpath(path))  # so that a link is kept, and the file behind it replaced
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
    """Give a new path beside a file or folder (`path`), to which its replacement can be written and from which it is then moved.
    When the context ends, the new path is removed if it is still there.

    Before, remove the unfinished replacements that killed processes have left beside `path`. Those from before this process
    count as left, since the processes that wrote them are most probably dead.
    """
    # In the same folder, since a file can replace another one only on its own disk
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(unfinished_name(path.name))
    with suppress(OSError):
        for replacement in path.parent.glob(f".{escape(path.name)}-{32 * '[0-9a-f]'}"):
            if replacement.lstat().st_mtime < _BEGAN:
                _remove(replacement)
    try:
        yield unfinished
    finally:
        _remove(unfinished)


def unfinished_name(name: str) -> str:
    """A new name for a file or folder, to be used while it is written. The name is hidden and ends with 32 hexadecimal digits."""
    return f".{name}-{uuid.uuid4().hex}"


def is_unfinished(name: str) -> bool:
    """Whether a name comes from `unfinished_name`."""
    return _UNFINISHED.fullmatch(name) is not None


def _remove(path: Path) -> None:
    """Remove a file or a folder, if there is one and the system allows it."""
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
    """Write data to a file, which replaces the file at the path only when it is complete, see `whole`."""
    with whole(path) as file:
        file.write(data)
