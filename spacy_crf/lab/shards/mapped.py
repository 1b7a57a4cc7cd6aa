"""Files of arrays that are mapped into memory: processes that read the same file share its memory, and opening it takes no
time.

Behind a header with a checksum stand lists, texts, numbers and the places of the arrays, as JSON; then the arrays, as they are.
Reading never runs code.
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
_PLACE = "array"  # stands for an array in what is said


def write(path: Path, value: Any) -> None:
    """Writes a file that is whole or not there.

    value: Lists, dicts with texts or numbers as keys, texts, numbers, None and arrays.
    RAISES (ValueError): CRF475 if there is no room for it.
    """
    arrays: list[NDArray] = []
    said = json.dumps(_said(value, arrays)).encode("ascii")
    with whole(path) as file:
        file.write(_MAGIC + b"%08x %016x\n" % (zlib.crc32(said), len(said)) + said)
        for array in arrays:
            _fill_up(file)
            file.write(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        _fill_up(file)


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file that is whole or not there. RAISES (ValueError): CRF475 if there is no room for it."""
    with whole_files.room_for(path), whole_files.whole(path) as file:
        yield file


def read(path: Path) -> Any:
    """Read a value that `write` wrote. Its arrays stay in the file until they are changed. RAISES (ValueError): CRF472."""
    return File(path).value


class File:
    """A file that is mapped.

    value: What `write` was given, whose arrays stay in the file until they are changed.
    RAISES (ValueError): CRF472 if the file is damaged.
    """

    def __init__(self, path: Path):
        try:
            # Copy on write: to compiled functions, arrays that can not be changed are of another type
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            octets = np.frombuffer(self._map, dtype=np.uint8)
            head = len(_MAGIC) + 26
            check, size = (int(number, 16) for number in octets[len(_MAGIC) : head].tobytes().split())
            said = octets[head : head + size].tobytes()
            if octets[: len(_MAGIC)].tobytes() != _MAGIC or zlib.crc32(said) != check:
                raise ValueError("its beginning is not as it was written")
            self.value = _Reader(octets, _aligned(head + size)).value(json.loads(said))
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(Errors.CRF472.format(path=path, reason=f"it is damaged: {error}")) from error

    def give_back(self) -> None:
        """Release the memory of the arrays until they are read again. Changes of the arrays are lost."""
        if hasattr(mmap, "MADV_DONTNEED"):  # as everywhere but on Windows
            self._map.madvise(mmap.MADV_DONTNEED)


def _said(value: Any, arrays: list[NDArray]) -> Any:
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return {_PLACE: [value.dtype.str, value.shape]}
    if isinstance(value, dict):
        return {"items": [[key, _said(of_key, arrays)] for key, of_key in value.items()]}
    if isinstance(value, (list, tuple)):
        return [_said(item, arrays) for item in value]
    return value.item() if isinstance(value, np.generic) else value


class _Reader:
    """Takes the arrays one after the other."""

    def __init__(self, octets: NDArray[np.uint8], at: int):
        self._octets, self._at = octets, at

    def value(self, said: Any) -> Any:
        if isinstance(said, list):
            return [self.value(item) for item in said]
        if not isinstance(said, dict):
            return said
        if _PLACE not in said:
            return {key: self.value(of_key) for key, of_key in said["items"]}
        name, shape = said[_PLACE]
        dtype = np.dtype(name)
        size = dtype.itemsize * int(np.prod(shape))
        array = np.frombuffer(self._octets[self._at : self._at + size], dtype=dtype).reshape(shape)
        self._at = _aligned(self._at + size)
        return array


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


def _fill_up(file: BinaryIO) -> None:
    file.write(b"\0" * (_aligned(file.tell()) - file.tell()))
