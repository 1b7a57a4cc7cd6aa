"""What a linear chain of another program knows, and the bytes of its file."""

import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors

MOST_LABELS = 4096  # a table of their pairs has to fit into the memory


@dataclass
class Weighted:
    """Features by their names, and the weights that they have.

    names (list[str]): F of them.
    rows (int64[W]), columns (int64[W]), weights (float64[W]): The feature, the label (or pair ``before * S + label``), and the
        weight.
    """

    names: list[str]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[np.float64]

    @classmethod
    def none(cls) -> "Weighted":
        return cls([], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


@dataclass
class ForeignModel:
    """A first-order linear chain.

    program (str): Whose it is.
    labels (list[str]): S of them.
    states (Weighted): Features of a token, which weigh its label.
    transitions (float64[S, S]): Weights of a label and the one behind it.
    pairs (Weighted): Features of a token, which weigh its label together with the one before.
    templates (list[str]): What makes the names of features, where the program knows that.
    """

    program: str
    labels: list[str]
    states: Weighted
    transitions: NDArray[np.float64]
    pairs: Weighted = field(default_factory=Weighted.none)
    templates: list[str] = field(default_factory=list)

    @property
    def n_weights(self) -> int:
        """That are not 0."""
        parts = (self.states.weights, self.transitions, self.pairs.weights)
        return int(sum(np.count_nonzero(weights) for weights in parts))


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

    def check_last_line(self) -> None:
        """RAISES (ValueError): CRF854 for a text that ends within a line: half of a number is a number too."""
        if not self._data.endswith(b"\n"):
            self.refuse("the last line", "it does not end: the file is cut off")

    def fields(self, form: str, at: int, what: str) -> tuple[Any, ...]:
        """Numbers as `struct` reads them."""
        return struct.unpack(form, self.part(at, struct.calcsize(form), what))

    def numbers(self, at: int, dtype: Any, n: int, what: str) -> NDArray:
        """An array of n numbers or records."""
        return np.frombuffer(self.part(at, n * np.dtype(dtype).itemsize, what), dtype=dtype)

    def find(self, octets: bytes, begin: int, end: int | None = None) -> int:
        """Where these bytes are, the end of the file if nowhere."""
        at = self._data.find(octets, begin, len(self._data) if end is None else end)
        return len(self._data) if at < 0 else at


# Bytes that are no UTF-8, as programs without Unicode cut characters into, and characters for private use that stand for them:
# each text of bytes is another text of characters.
_PRIVATE = {0xDC00 + byte: 0xF700 + byte for byte in range(0x80, 0x100)}
_BYTES = {private: escaped for escaped, private in _PRIVATE.items()}


def as_text(octets: bytes) -> str:
    """Bytes, most probably UTF-8, as a text."""
    return (
        octets.decode("utf8", errors="surrogateescape").translate(_PRIVATE) if not octets.isascii() else octets.decode()
    )


def as_octets(text: str) -> bytes:
    """The way back."""
    return text.translate(_BYTES).encode("utf8", errors="surrogateescape") if not text.isascii() else text.encode()
