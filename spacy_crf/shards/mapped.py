"""Files of arrays that are mapped into memory: processes that read the same file share its memory, and opening it takes no more
time than a checksum.

A file has a header with checksums; lists, texts, numbers and the places of the arrays, as JSON; and the bytes of the arrays.
Reading a file never runs code from it.
"""

import json
import mmap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Union

import numpy as np
from numpy.typing import NDArray

from .. import whole_files
from ..errors import Errors
from ..types import Settings

_MAGIC = b"spacy_crf shard 2\n"
_HEAD = len(_MAGIC) + 35  # bytes of the header
_CHECKED = 1 << 24  # bytes for which the checksum is computed at a time
_ALIGNED = 64  # bytes: where arrays begin
_PLACE = "array"  # the only key of an object that stands for an array


def write(path: Path, value: object) -> None:
    """Write a value to a file, atomically.

    value: Lists, dicts with texts as keys, texts, numbers, None and arrays.
    RAISES (ValueError): CRF475 if the disk is full.
    """
    arrays: list[NDArray] = []

    def to_json(item: Union[NDArray, np.generic]) -> object:
        """Turn a number or an array of numpy into JSON. An array becomes its type and shape, and joins `arrays`."""
        if not isinstance(item, np.ndarray):
            return item.item()
        arrays.append(item)
        return {_PLACE: [item.dtype.str, item.shape]}

    # JSON names the arrays in the order in which their bytes follow
    described = json.dumps(value, default=to_json).encode("ascii")
    with whole(path) as file:
        file.write(bytes(_HEAD))
        file.write(described)
        _fill_up(file)
        check = 0
        for array in arrays:
            octets = np.ascontiguousarray(array).data.cast("B") if array.size else b""
            check = zlib.crc32(octets, check)
            file.write(octets)
            check = zlib.crc32(_fill_up(file), check)
        file.seek(0)
        file.write(_MAGIC + b"%08x %016x %08x\n" % (zlib.crc32(described), len(described), check))


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for atomic writing. RAISES (ValueError): CRF475 if the disk is full."""
    with whole_files.room_for(path), whole_files.whole(path) as file:
        yield file


def read(path: Path) -> list:
    """Read a value that `write` wrote. Its arrays stay in the file until they are changed.

    RAISES (ValueError): CRF472 if the file is damaged.
    """
    return File(path).value


class File:
    """A file that is mapped into memory: the arrays of its `value` stay in the file until they are changed.

    RAISES (ValueError): CRF472 if the file is damaged.
    """

    def __init__(self, path: Path):
        try:
            # Copy on write, since numba compiles functions again for read-only arrays
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            octets = np.frombuffer(self._map, dtype=np.uint8)
            if octets[: len(_MAGIC)].tobytes() != _MAGIC:
                raise ValueError("it is of another version, or none of its files")
            header = octets[len(_MAGIC) : _HEAD].tobytes()
            check, size, check_of_arrays = (int(number, 16) for number in header.split())
            described = octets[_HEAD : _HEAD + size].tobytes()
            position = _aligned(_HEAD + size)  # of the next array
            if zlib.crc32(described) != check or self._checksum(octets[position:]) != check_of_arrays:
                raise ValueError("it is not as it was written")

            def with_array(item: Settings) -> Union[Settings, NDArray]:
                """Replace an object of the JSON that stands for an array by the next array of the file; keep other objects."""
                nonlocal position
                if _PLACE not in item:
                    return item
                kind, shape = item[_PLACE]
                dtype = np.dtype(kind)
                if min(shape, default=0) < 0:
                    raise ValueError(f"an array of {kind} has the shape {shape}")
                end = position + dtype.itemsize * int(np.prod(shape))
                array = np.frombuffer(octets[position:end], dtype=dtype).reshape(shape)
                position = _aligned(end)
                return array

            self.value = json.loads(described, object_hook=with_array)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
            raise damaged(path, error) from error

    def give_back(self) -> None:
        """Release the memory of the arrays until they are read again. Changes to the arrays are lost."""
        if hasattr(mmap, "MADV_DONTNEED"):  # as everywhere but on Windows
            self._map.madvise(mmap.MADV_DONTNEED)

    def _checksum(self, octets: NDArray[np.uint8]) -> int:
        """A checksum of the arrays, which leaves them in the file."""
        check = 0
        for begin in range(0, len(octets), _CHECKED):
            check = zlib.crc32(octets[begin : begin + _CHECKED].data, check)
            self.give_back()
        return check


def damaged(path: Path, error: object) -> ValueError:
    """The error for a file whose content is not what it should be: CRF472."""
    reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    return ValueError(Errors.CRF472.format(path=path, reason=f"it is damaged: {reason.rstrip('.')}"))


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


def _fill_up(file: BinaryIO) -> bytes:
    """Write zeros up to where the next array begins. RETURNS (bytes): The zeros."""
    zeros = bytes(_aligned(file.tell()) - file.tell())
    file.write(zeros)
    return zeros
