"""Vectors of words, whose numbers templates take for features: ``vector[-1..1]``.

A word is looked up as it is written, then in lower case; one that is unknown has a vector of zeros, and so no features. Vectors
of parts of words (floret) know every word: its vector is the mean of those of its parts.

All vectors of a model are multiplied by one number, found when it is initialized, so that the words of the training data have
vectors of a certain length in the mean: how strongly weights are held back does not depend on who made the vectors.
"""

import zlib
from operator import attrgetter
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDS
from spacy.lexeme import Lexeme
from spacy.strings import StringStore
from spacy.vectors import Mode, Vectors

from ..errors import Errors

# The attribute in templates, and those of lexemes that vectors may be of
VECTOR = "vector"
KEYS = ("orth", "lower", "norm", "shape", "prefix", "suffix")

_BLOCK = 1 << 14  # rows that are computed with at a time


class Parts(NamedTuple):
    """How the vector of a word is made of rows that its parts have: what floret was told."""

    minn: int
    maxn: int
    hash_count: int
    hash_seed: int
    bow: str
    eow: str

    @property
    def are_possible(self) -> bool:
        numbers, marks = self[:4], self[4:]
        possible = [*map(type, self)] == [int] * len(numbers) + [str] * len(marks)
        return possible and 0 <= self.minn <= self.maxn < 1 << 31 and 1 <= self.hash_count <= 4 and self.hash_seed >= 0


class WordVectors:
    """A table of vectors, to look words up in. Nothing of it changes.

    data (float32[R, D]): The rows.
    keys (uint64[N]), rows (int32[N]): Hashes of the words, in rising order, and the row of each; none with ``parts``.
    parts (Parts): Of vectors of parts of words, else None.
    key (str): The attribute of lexemes by which words are looked up.
    source (int): Checksum of what the table was made of, and how.
    length (float): That vectors shall have in the mean, and scale (float): by which they are multiplied so that they have it;
        None before that is known.
    """

    def __init__(
        self,
        data: NDArray[np.float32],
        keys: NDArray[np.uint64],
        rows: NDArray[np.int32],
        *,
        parts: Optional[Parts] = None,
        key: str = "orth",
        source: int = 0,
        length: float = 1.0,
        scale: Optional[float] = None,
    ):
        self.data = data
        self.keys = keys
        self.rows = rows
        self.parts = parts
        self.key = key
        self.source = source
        self.length = length
        self.scale = scale
        none = np.zeros(0, dtype=np.uint64)
        self._by_parts = None
        if parts is not None:
            self._by_parts = Vectors(data=data, strings=StringStore(), mode="floret", **parts._asdict())
            self.keys, self.rows = none, none.astype(np.int32)

    @property
    def width(self) -> int:
        """D."""
        return self.data.shape[1]

    def __deepcopy__(self, memo: dict) -> "WordVectors":
        return self

    def __reduce__(self) -> tuple:
        return WordVectors.from_dict, (self.to_dict(),)

    def of(self, lexemes: list[Lexeme]) -> NDArray[np.float32]:
        """The vector of each word, zeros for unknown ones: float32[V, D]."""
        if self._by_parts is not None:
            texts = list(map(attrgetter(f"{self.key}_"), lexemes))
            found = self._by_parts.get_batch(texts).astype(np.float32)
        else:
            rows = self._find(np.array(list(map(attrgetter(self.key), lexemes)), dtype=np.uint64))
            unknown = np.flatnonzero(rows < 0) if self.key == "orth" else ()
            if len(unknown):
                rows[unknown] = self._find(np.array([lexemes[n].lower for n in unknown.tolist()], dtype=np.uint64))
            found = np.where(rows[:, np.newaxis] >= 0, self.data[rows], np.float32(0))
        return found if self.scale is None else found * np.float32(self.scale)

    def _find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        if not len(self.keys):
            return np.full(len(keys), -1)
        at = np.searchsorted(self.keys, keys)
        at[at == len(self.keys)] = 0
        return np.where(self.keys[at] == keys, self.rows[at].astype(np.int64), -1)

    def scaled(self, words: NDArray[np.float32]) -> "WordVectors":
        """The same with a scale, if there is none yet, by the vectors that words of the training data have (float32[V, D])."""
        lengths = np.linalg.norm(words.astype(np.float64), axis=1)
        lengths = lengths[lengths > 0]
        if self.scale is not None or not len(lengths):
            return self
        return self._with(scale=float(np.float32(self.length / lengths.mean())))

    def _with(self, **changes: Any) -> "WordVectors":
        given = {name: getattr(self, name) for name in ("parts", "key", "source", "length", "scale")}
        return WordVectors(self.data, self.keys, self.rows, **{**given, **changes})

    def to_dict(self) -> dict[str, Any]:
        return {
            "width": self.width,
            "data": self.data.astype("<f4").tobytes(),
            "keys": self.keys.astype("<u8").tobytes(),
            "rows": self.rows.astype("<i4").tobytes(),
            "parts": None if self.parts is None else list(self.parts),
            "key": self.key,
            "source": self.source,
            "length": self.length,
            "scale": self.scale,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "WordVectors":
        """RAISES (ValueError): CRF509 for what no vectors are."""
        table = np.frombuffer(data["data"], dtype="<f4").astype(np.float32)
        keys, rows = np.frombuffer(data["keys"], dtype="<u8"), np.frombuffer(data["rows"], dtype="<i4")
        width, parts, scale = data["width"], data["parts"], data["scale"]
        whole = isinstance(width, int) and width > 0 and len(table) and len(table) % width == 0
        whole = whole and bool(np.isfinite(table).all()) and data["key"] in KEYS and len(keys) == len(rows)
        whole = whole and (scale is None or 0 < scale < np.inf) and bool((keys[1:] > keys[:-1]).all())
        whole = whole and (parts is None or Parts(*parts).are_possible) and 0 < data["length"] < np.inf
        if not whole or not -1 < rows.min(initial=0) <= rows.max(initial=0) < len(table) // width:
            found = f"of {len(table)} numbers, {len(keys)} words and {len(rows)} rows"
            raise ValueError(Errors.CRF509.format(what="the table of vectors", found=found, expected="a whole one"))
        return cls(
            table.reshape(-1, width),
            keys.astype(np.uint64),
            rows.astype(np.int32),
            parts=None if parts is None else Parts(*parts),
            **{name: data[name] for name in ("key", "source", "length", "scale")},
        )


def make_vectors(given: Vectors, dims: Optional[int], length: float, source: str) -> WordVectors:
    """The table of vectors of a pipeline, as a model keeps it.

    dims (int): How many numbers a vector shall have: its coordinates on the axes along which the rows are longest (the first
        right singular vectors of the table). None for the numbers that it has.
    length (float): See `WordVectors`. source (str): For messages.
    RAISES (ValueError): CRF803 if there are none that can be used, CRF803 for fewer numbers than dims.
    """
    key, data, keys, rows = _read(given, source)
    if dims is not None and dims > data.shape[1]:
        raise ValueError(
            Errors.CRF803.format(source=source, reason=f"{data.shape[1]} numbers can't be reduced to {dims}")
        )
    check = zlib.crc32(repr((dims, length, key)).encode("utf8"))
    for array in (data, keys, rows):
        check = zlib.crc32(np.ascontiguousarray(array), check)
    is_floret = given.mode == Mode.floret
    parts = Parts(*(getattr(given, name) for name in Parts._fields)) if is_floret else None
    if dims is not None and dims < data.shape[1]:
        used = slice(None) if is_floret else np.unique(rows)
        data = _reduced(data, data[used], dims)
    return WordVectors(data, keys, rows, parts=parts, key=key, source=check, length=length)


def _read(given: Vectors, source: str) -> tuple[str, NDArray[np.float32], NDArray[np.uint64], NDArray[np.int32]]:
    """The attribute, the rows, and the sorted keys with theirs. RAISES (ValueError): CRF803."""
    if not isinstance(given, Vectors):
        raise ValueError(Errors.CRF803.format(source=source, reason=f"they are of the class {type(given).__name__}"))
    attribute = next(name for name, number in IDS.items() if number == given.attr)
    key = attribute.lower()
    data = np.ascontiguousarray(given.data.get() if hasattr(given.data, "get") else given.data, dtype=np.float32)
    keys = np.fromiter(given.key2row, dtype=np.uint64, count=len(given.key2row))
    rows = np.fromiter(given.key2row.values(), dtype=np.int32, count=len(keys))
    order = np.argsort(keys)
    order = order[rows[order] >= 0]
    keys, rows = keys[order], rows[order]
    used = data if given.mode == Mode.floret else data[rows]
    reason = None
    if key not in KEYS:
        reason = f"they are looked up by {key}, which is no attribute of words"
    elif not used.size:
        reason = "there are none"
    elif not np.isfinite(used).all():
        reason = "some are no finite numbers"
    elif not used.any():
        reason = "all of them are zero"
    if reason is not None:
        raise ValueError(Errors.CRF803.format(source=source, reason=reason))
    return key, data, keys, rows


def _reduced(data: NDArray[np.float32], used: NDArray[np.float32], dims: int) -> NDArray[np.float32]:
    """The coordinates of all rows on the axes along which those that are used are longest."""
    products = np.zeros((data.shape[1], data.shape[1]))
    for begin in range(0, len(used), _BLOCK):
        block = used[begin : begin + _BLOCK].astype(np.float64)
        products += block.T @ block
    _, axes = np.linalg.eigh(products)
    axes = axes[:, : -dims - 1 : -1]
    # An axis may point either way: to the side where its largest number is positive
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dims)])
    reduced = [data[begin : begin + _BLOCK].astype(np.float64) @ axes for begin in range(0, len(data), _BLOCK)]
    return np.concatenate(reduced).astype(np.float32)
