"""Files of arrays that are mapped into memory: processes that read the same file share its memory, and opening it takes no
time.

A file has a header with a checksum; lists, texts, numbers and the places of the arrays, as JSON; and the bytes of the arrays.
Reading a file never runs code from it.
"""

import json
import mmap
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ... import whole_files
from ...errors import Errors

_MAGIC = b"spacy_crf shard 1\n"
_ALIGNED = 64  # bytes: where arrays begin
_PLACE = "array"  # the only key of an object that stands for an array


def write(path: Path, value: Any) -> None:
    """Write a value to a file, atomically.

    value: Lists, dicts with texts as keys, texts, numbers, None and arrays.
    RAISES (ValueError): CRF475 if the disk is full.
    """
    arrays: list[NDArray] = []

    def of_numpy(item: Any) -> Any:
        if not isinstance(item, np.ndarray):
            return item.item()
        arrays.append(item)
        return {_PLACE: [item.dtype.str, item.shape]}

    said = json.dumps(value, default=of_numpy).encode("ascii")
    with whole(path) as file:
        file.write(_MAGIC + b"%08x %016x\n" % (zlib.crc32(said), len(said)) + said)
        for array in arrays:
            _fill_up(file)
            file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        _fill_up(file)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for atomic writing. RAISES (ValueError): CRF475 if the disk is full."""
    with whole_files.room_for(path), whole_files.whole(path) as file:
        yield file


def read(path: Path) -> Any:
    """Read a value that `write` wrote. Its arrays stay in the file until they are changed. RAISES (ValueError): CRF472."""
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
            head = len(_MAGIC) + 26
            check, size = (int(number, 16) for number in octets[len(_MAGIC) : head].tobytes().split())
            said = octets[head : head + size].tobytes()
            if octets[: len(_MAGIC)].tobytes() != _MAGIC or zlib.crc32(said) != check:
                raise ValueError("its beginning is not as it was written")
            at = _aligned(head + size)

            def with_array(found: dict[str, Any]) -> Any:
                nonlocal at
                if _PLACE not in found:
                    return found
                dtype, shape = np.dtype(found[_PLACE][0]), found[_PLACE][1]
                end = at + dtype.itemsize * int(np.prod(shape))
                array, at = np.frombuffer(octets[at:end], dtype=dtype).reshape(shape), _aligned(end)
                return array

            self.value = json.loads(said, object_hook=with_array)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(Errors.CRF472.format(path=path, reason=f"it is damaged: {error}")) from error

    def give_back(self) -> None:
        """Release the memory of the arrays until they are read again. Changes to the arrays are lost."""
        if hasattr(mmap, "MADV_DONTNEED"):  # as everywhere but on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


def _fill_up(file: BinaryIO) -> None:
    file.write(b"\0" * (_aligned(file.tell()) - file.tell()))
