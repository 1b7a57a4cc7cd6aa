"""Binary files that may be anything: nothing outside of them is read, and no more memory is taken than they have bytes."""

import struct
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors


class Octets:
    """The bytes of a file.

    source (str): Its name, and kind (str): what it should be, for messages.
    """

    def __init__(self, data: bytes, source: str, kind: str):
        self._data = data
        self.source = source
        self._kind = kind

    def __len__(self) -> int:
        return len(self._data)

    def refuse(self, place: str, reason: str) -> NoReturn:
        """RAISES (ValueError): CRF854."""
        raise ValueError(Errors.CRF854.format(source=self.source, kind=self._kind, place=place, reason=reason))

    def part(self, at: int, size: int, what: str) -> bytes:
        """Some bytes. RAISES (ValueError): CRF854 if the file has not all of them."""
        if at < 0 or size < 0 or at + size > len(self._data):
            self.refuse(f"{what}, byte {at}", f"{size} bytes are needed, and the file has {len(self._data)}")
        return self._data[at : at + size]

    def fields(self, form: str, at: int, what: str) -> tuple[Any, ...]:
        """Numbers as `struct` reads them."""
        return struct.unpack(form, self.part(at, struct.calcsize(form), what))

    def numbers(self, at: int, dtype: Any, n: int, what: str) -> NDArray:
        """An array of n numbers or records."""
        return np.frombuffer(self.part(at, n * np.dtype(dtype).itemsize, what), dtype=dtype)


def as_text(octets: bytes, encoding: str = "utf8") -> str:
    """Bytes that are no text in the encoding become what no text has: half characters."""
    return octets.decode(encoding, errors="surrogateescape")


def is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
