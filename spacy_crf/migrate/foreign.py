"""A linear chain of another program: its labels and weights, and the bytes of its file."""

import struct
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import Errors

MOST_LABELS = 4096  # a table of label pairs has to fit into memory


@dataclass
class Weighted:
    """F named features, and W weights.

    names (list[str]): Names of the F features.
    rows (int64[W]): The feature of each weight.
    columns (int64[W]): The label of each weight, or its pair of labels as ``before * S + label``.
    weights (float64[W])
    """

    names: list[str]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[np.float64]

    @classmethod
    def none(cls) -> "Weighted":
        """No features and no weights."""
        return cls([], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))


@dataclass
class ForeignModel:
    """A first-order linear chain.

    program (str): The program that trained it.
    labels (list[str]): The S labels.
    states (Weighted): Features of a token with weights for its label.
    transitions (float64[S, S]): Weights for a label (row) and the next label (column).
    pairs (Weighted): Features of a token with weights for the pair of the previous label and its label.
    templates (list[str]): The lines that make the feature names, if the model's file has them.
    """

    program: str
    labels: list[str]
    states: Weighted
    transitions: NDArray[np.float64]
    pairs: Weighted = field(default_factory=Weighted.none)
    templates: list[str] = field(default_factory=list)

    @property
    def n_weights(self) -> int:
        """Number of weights other than 0."""
        parts = (self.states.weights, self.transitions, self.pairs.weights)
        return int(sum(np.count_nonzero(weights) for weights in parts))


class Octets:
    """The bytes of an untrusted file: reading never goes beyond the end, and never allocates more memory than the file has bytes.

    source (str): Name of the file, for messages. kind (str): Expected contents of the file, for messages.
    """

    def __init__(self, data: bytes, source: str, kind: str):
        self._data = data
        self.source = source
        self._kind = kind

    def __len__(self) -> int:
        return len(self._data)

    def refuse(self, place: str, reason: str) -> NoReturn:
        """Refuse the file. RAISES (ValueError): CRF854."""
        raise ValueError(Errors.CRF854.format(source=self.source, kind=self._kind, place=place, reason=reason))

    def part(self, at: int, size: int, what: str) -> bytes:
        """Read `size` bytes from a place on. RAISES (ValueError): CRF854 if the file ends before."""
        if at < 0 or size < 0 or at + size > len(self._data):
            self.refuse(f"{what}, byte {at}", f"{size} bytes are needed, and the file has {len(self._data)}")
        return self._data[at : at + size]

    def check_labels(self, labels: list[str]) -> None:
        """Check the labels. RAISES (ValueError): CRF854 if there are no labels, too many, or duplicates."""
        if not 0 < len(set(labels)) == len(labels) <= MOST_LABELS:
            reason = f"there are {len(labels)}, {len(set(labels))} different ones, of at most {MOST_LABELS}"
            self.refuse("the labels", reason)

    def check_last_line(self) -> None:
        """Check that the last line is complete, since half of a number is a number too. RAISES (ValueError): CRF854."""
        if not self._data.endswith(b"\n"):
            self.refuse("the last line", "it does not end: the file is cut off")

    def fields(self, form: str, at: int, what: str) -> tuple[Any, ...]:
        """Read numbers from a place on, by a format of `struct`."""
        return struct.unpack(form, self.part(at, struct.calcsize(form), what))

    def numbers(self, at: int, dtype: DTypeLike, n: int, what: str) -> NDArray:
        """Read an array of `n` numbers or records from a place on."""
        return np.frombuffer(self.part(at, n * np.dtype(dtype).itemsize, what), dtype=dtype)

    def find(self, octets: bytes, begin: int, end: int | None = None) -> int:
        """Find the first place of some bytes; the end of the file if it does not contain them."""
        at = self._data.find(octets, begin, len(self._data) if end is None else end)
        return len(self._data) if at < 0 else at


# Programs without Unicode split characters into bytes that are not UTF-8. Each such byte is decoded as a character for private
# use, so that different bytes make different texts.
_PRIVATE = {0xDC00 + byte: 0xF700 + byte for byte in range(0x80, 0x100)}
_BYTES = {private: escaped for escaped, private in _PRIVATE.items()}


def as_text(octets: bytes) -> str:
    """Decode bytes, which are probably UTF-8."""
    if octets.isascii():
        return octets.decode()
    return octets.decode("utf8", errors="surrogateescape").translate(_PRIVATE)


def as_octets(text: str) -> bytes:
    """Encode a text that `as_text` made."""
    return text.translate(_BYTES).encode("utf8", errors="surrogateescape") if not text.isascii() else text.encode()
