"""The feature index: from hashed features to rows. Counted once, pruned, frozen and saved with the model; or hashed, without any
count, for corpora that are streamed."""

import json
import zlib
from functools import cached_property
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels.hashing import count, find_known, insert, look_up, make_sieve
from ..whole_files import current_room, inflated

_SMALLEST = 1024


class HashTable:
    """Rows of 64-bit keys. Looking up is safe while another thread inserts."""

    slots_per_key = 4  # at least, when the table grows: for few collisions, and not to grow soon again

    def __init__(self, keys: Optional[NDArray[np.uint64]] = None):
        self._keys: list[NDArray[np.uint64]] = []
        self._size = 0
        self._slots_and_rows = _free_slots(_SMALLEST if keys is None else max(_SMALLEST, 2 * len(keys)))
        if keys is not None:
            self.insert(keys)

    def __len__(self) -> int:
        return self._size

    def insert(self, keys: NDArray[np.uint64]) -> None:
        """Gives new keys the next rows."""
        slots, rows = self.room_for(len(keys))
        insert(slots, rows, keys, self._size)
        self._append(keys)

    def room_for(self, n_new: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Makes sure that so many keys can be added with half of the slots left free.

        RETURNS (uint64[N], int32[N]): The slots and their rows.
        """
        slots, rows = self._slots_and_rows
        if 2 * (self._size + n_new) > len(slots):
            slots, rows = _free_slots(self.slots_per_key * (self._size + n_new))
            insert(slots, rows, self.keys, 0)
            self._slots_and_rows = (slots, rows)
        return slots, rows

    def _append(self, keys: NDArray[np.uint64]) -> None:
        self._keys.append(keys)
        self._size += len(keys)

    @property
    def keys(self) -> NDArray[np.uint64]:
        """All keys in the order of their rows."""
        self._keys = [np.concatenate(self._keys)] if self._keys else [np.zeros(0, dtype=np.uint64)]
        return self._keys[0]

    @property
    def arrays(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """The slots and their rows, as kernels look keys up."""
        return self._slots_and_rows

    def look_up(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], int]:
        """Row of each key, -1 for unknown keys and for 0; and how many of these there are."""
        found = np.empty(len(keys), dtype=np.int32)
        return found, look_up(*self._slots_and_rows, keys, found)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Row of each key, -1 for unknown keys and for 0."""
        return self.look_up(keys)[0]


def _free_slots(n: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """At least so many, and a power of two of them."""
    size = 1 << (n - 1).bit_length()
    return np.zeros(size, dtype=np.uint64), np.full(size, -1, dtype=np.int32)


class CountingTable(HashTable):
    """Rows of keys that are counted as they come."""

    slots_per_key = 2  # it is the largest thing there while the features of a corpus are counted

    def __init__(self, keys: Optional[NDArray[np.uint64]] = None):
        super().__init__(keys)
        self._counts = np.zeros(max(_SMALLEST, len(self)), dtype=np.int32)

    @property
    def counts(self) -> NDArray[np.int32]:
        return self._counts[: len(self)]

    def add(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Counts a batch of keys.

        RETURNS (int64[N]): Where in ``keys`` each new one was first met, in the order of their rows.
        """
        slots, rows = self.room_for(len(keys))
        if len(self) + len(keys) > len(self._counts):
            grown = np.zeros(2 * (len(self) + len(keys)), dtype=np.int32)
            grown[: len(self)] = self.counts
            self._counts = grown
        new_keys, new_at = np.empty(len(keys), dtype=np.uint64), np.empty(len(keys), dtype=np.int64)
        n_new = count(slots, rows, keys, len(self), self._counts, new_keys, new_at) - len(self)
        self._append(new_keys[:n_new].copy())
        return new_at[:n_new]


class Uses(NamedTuple):
    """Which tokens have which features."""

    tokens: NDArray[np.int32]  # [N]
    rows: NDArray[np.int32]  # [N]


class Names(NamedTuple):
    """How features are spelled, for humans.

    templates (list[str]): Names of the templates, and template_of (int32[F]) the one of each row.
    part_starts (int64[F + 1]), parts (int32[P]): The values filled in, as positions in ``strings``.
    """

    templates: list[str]
    template_of: NDArray[np.int32]
    part_starts: NDArray[np.int64]
    parts: NDArray[np.int32]
    strings: list[str]

    @classmethod
    def none(cls) -> "Names":
        empty = np.zeros(0, dtype=np.int32)
        return cls([], empty, np.zeros(1, dtype=np.int64), empty, [])

    def of(self, row: int) -> str:
        values = "|".join(self.strings[part] for part in self.parts[self.part_starts[row] : self.part_starts[row + 1]])
        template = self.templates[self.template_of[row]]
        # The bias is always there; the items of a number have no text
        return template if template == "bias" or not values else f"{template}={values}"

    def keep(self, rows: NDArray[np.bool_]) -> "Names":
        """Those of some of the rows (bool[F])."""
        widths = np.diff(self.part_starts)
        used, parts = np.unique(self.parts[np.repeat(rows, widths)], return_inverse=True)
        return Names(
            self.templates,
            self.template_of[rows],
            np.append(0, np.cumsum(widths[rows])),
            parts.astype(np.int32),
            [self.strings[part] for part in used],
        )

    def extend(self, other: "Names") -> "Names":
        """With those of other features behind."""
        templates = list(dict.fromkeys(self.templates + other.templates))
        place = {template: n for n, template in enumerate(templates)}
        moved = np.array([place[template] for template in other.templates], dtype=np.int32)
        return Names(
            templates,
            np.concatenate([self.template_of, moved[other.template_of]]).astype(np.int32),
            np.concatenate([self.part_starts, other.part_starts[1:] + self.part_starts[-1]]),
            np.concatenate([self.parts, other.parts + len(self.strings)]).astype(np.int32),
            self.strings + other.strings,
        )

    def packed(self) -> dict[str, Any]:
        return {
            "templates": self.templates,
            "template_of": pack_numbers(self.template_of),
            "widths": pack_numbers(np.diff(self.part_starts).astype(np.int32)),
            "parts": pack_numbers(self.parts),
            "strings": zlib.compress(json.dumps(self.strings, ensure_ascii=False).encode("utf8")),
        }

    @classmethod
    def from_packed(cls, packed: dict[str, Any]) -> "Names":
        """RAISES (ValueError): CRF509 for parts that don't fit together."""
        widths = unpack_numbers(packed["widths"])
        names = cls(
            list(packed["templates"]),
            unpack_numbers(packed["template_of"]),
            np.append(0, np.cumsum(widths, dtype=np.int64)),
            unpack_numbers(packed["parts"]),
            _read_strings(packed["strings"]),
        )
        if (
            (len(names.template_of), len(names.parts)) != (len(widths), names.part_starts[-1])
            or widths.min(initial=0) != 0
            or not _all_below(names.template_of, len(names.templates))
            or not _all_below(names.parts, len(names.strings))
            or {*map(type, names.templates), *map(type, names.strings)} - {str}
        ):
            raise ValueError(_NOT_WHOLE)
        return names


_NOT_WHOLE = Errors.CRF509.format(what="the feature index", found="of parts", expected="a whole one")


class FeatureIndex:
    """Rows of the known features, and their names for humans.

    keys (uint64[F]): Hash of each feature, in the order of the rows.
    templates, template_of, part_starts, parts, strings: See `Names`.
    """

    def __init__(
        self,
        keys: NDArray[np.uint64],
        templates: list[str],
        template_of: NDArray[np.int32],
        part_starts: NDArray[np.int64],
        parts: NDArray[np.int32],
        strings: list[str],
    ):
        self.keys = keys
        self.spelled = Names(templates, template_of, part_starts, parts, strings)

    @classmethod
    def packed(cls, keys: NDArray[np.uint64], names: Names) -> "FeatureIndex":
        """With names that are unpacked when they are asked for."""
        return cls._of_packed(keys, names.packed())

    @classmethod
    def _of_packed(cls, keys: NDArray[np.uint64], packed: dict[str, Any]) -> "FeatureIndex":
        index = cls.__new__(cls)
        index.keys, index._packed = keys, packed
        return index

    @cached_property
    def table(self) -> HashTable:
        """Of the keys."""
        return HashTable(self.keys)

    @cached_property
    def sieved(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int32]]:
        """The slots and rows of the table, behind a sieve that tells most of the unknown features from known ones."""
        return make_sieve(self.keys), *self.table.arrays

    @classmethod
    def empty(cls) -> "FeatureIndex":
        return cls(np.zeros(0, dtype=np.uint64), *Names.none())

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Row of each hashed feature, -1 where it is unknown."""
        return self.table.rows(keys)

    def known(self, hashes: NDArray[np.uint64], positions: NDArray[np.int64]) -> Uses:
        """The known features of tokens, template by template.

        hashes (uint64[M, P]), positions (int64[T]): Of all positions, and those of the tokens.
        """
        return Uses(*find_known(hashes, positions, self.sieved))

    def rows_of(self, other: "FeatureIndex") -> NDArray[np.int64]:
        """Where the features of another index are."""
        return self.rows(other.keys).astype(np.int64)

    def name(self, row: int) -> str:
        """The feature as a human would write it: ``lower[-1]|lower[0]=new|york``."""
        return self.spelled.of(row)

    def names(self) -> list[str]:
        """Names of all features, in the order of their rows."""
        return [*map(self.spelled.of, range(len(self)))]

    def keep(self, rows: NDArray[np.bool_]) -> "FeatureIndex":
        """The index of some of the rows, renumbered in their order.

        rows (bool[F])
        """
        return FeatureIndex(self.keys[rows], *self.spelled.keep(rows))

    def extend(self, other: "FeatureIndex") -> "FeatureIndex":
        """This index with the features of another one, which has none of its rows, behind."""
        return FeatureIndex(np.concatenate([self.keys, other.keys]), *self.spelled.extend(other.spelled))

    @cached_property
    def spelled(self) -> Names:
        """The names. Most who load a model never ask for them."""
        return Names.from_packed(self._packed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for msgpack. The names stay compressed, a third of their size, until they are asked for."""
        packed = self._packed
        self.__dict__.pop("spelled", None)
        return {**packed, "keys": self.keys.tobytes()}

    @cached_property
    def _packed(self) -> dict[str, Any]:
        """The names, compressed: once for all checkpoints of a training."""
        return self.spelled.packed()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "FeatureIndex":
        """RAISES (ValueError): CRF509 for parts that don't fit together."""
        packed = {name: data[name] for name in ("templates", "template_of", "widths", "parts", "strings")}
        index = cls._of_packed(np.frombuffer(data["keys"], dtype="<u8").astype(np.uint64), packed)
        if len(Names.from_packed(packed).template_of) != len(index):
            raise ValueError(_NOT_WHOLE)
        return index


class FeatureCounter:
    """Counts features as they come, then freezes those worth keeping into an index.

    templates (list[str]): Names of the templates.
    known (FeatureIndex): Its features keep their rows (warm start).
    """

    def __init__(self, templates: list[str], known: FeatureIndex):
        self.known = known
        self._names = templates
        self._table = CountingTable(known.keys)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def counts(self) -> NDArray[np.int32]:
        """RETURNS (int32[N]): How often each feature was met; the known ones come first."""
        return self._table.counts

    def _index(
        self, keep: NDArray[np.bool_], template_of: NDArray, widths: NDArray, parts: NDArray, strings: list[str]
    ):
        """The index of the features to keep (bool[N]); of those that are new, how they are spelled."""
        keys, n_known = self._table.keys, len(self.known)
        starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        new = FeatureIndex(keys[n_known:][keep[n_known:]], self._names, template_of, starts, parts, strings)
        return self.known.keep(keep[:n_known]).extend(new)


class HashedIndex:
    """A fixed number of rows that all features share by their hashes: nothing is counted, and nothing is known of a feature
    but its row, which may be that of others too (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning",
    without their signs: a weight of ours that two features share is as good as its average use).

    n_rows (int): A power of two.
    """

    def __init__(self, n_rows: int):
        self._n_rows = n_rows

    def __len__(self) -> int:
        return self._n_rows

    @property
    def keys(self) -> NDArray[np.uint64]:
        """What tells this index from another."""
        return np.array([self._n_rows], dtype=np.uint64)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Row of each hashed feature, -1 for none."""
        rows = (keys & np.uint64(self._n_rows - 1)).astype(np.int32)
        rows[keys == 0] = -1
        return rows

    def known(self, hashes: NDArray[np.uint64], positions: NDArray[np.int64]) -> Uses:
        """As `FeatureIndex.known`."""
        rows = self.rows(hashes[:, positions].ravel())
        [found] = np.nonzero(rows >= 0)
        return Uses((found % max(1, len(positions))).astype(np.int32), rows[found])

    def rows_of(self, other: "HashedIndex") -> NDArray[np.int64]:
        """Where the rows of another index are: it is as large."""
        return np.arange(len(self))

    def name(self, row: int) -> str:
        return f"row {row}"

    def names(self) -> list[str]:
        return list(map(self.name, range(len(self))))

    def keep(self, rows: NDArray[np.bool_]) -> "HashedIndex":
        """All rows stay: their numbers are the features."""
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"hashed_rows": self._n_rows}


class VectorIndex:
    """Rows of the numbers of vectors: those of the vector at the first offset, then of that at the next. All tokens have them.

    offsets (list[int]), width (int)
    """

    def __init__(self, offsets: list[int], width: int):
        self.offsets = offsets
        self.width = width

    def __len__(self) -> int:
        return len(self.offsets) * self.width

    @property
    def keys(self) -> NDArray[np.uint64]:
        """What tells this index from another."""
        return np.array([self.width, *self.offsets], dtype=np.int64).view(np.uint64)

    def rows_of(self, other: "VectorIndex") -> NDArray[np.int64]:
        """Where the rows of another index are: it has the same."""
        return np.arange(len(self))

    def name(self, row: int) -> str:
        return f"vector[{self.offsets[row // self.width]}]=#{row % self.width}"

    def names(self) -> list[str]:
        return list(map(self.name, range(len(self))))

    def keep(self, rows: NDArray[np.bool_]) -> "VectorIndex":
        """All rows stay: their numbers are those of the vectors."""
        return self

    def to_dict(self) -> dict[str, Any]:
        return {"vector_offsets": self.offsets, "width": self.width}


def index_from_dict(data: dict[str, Any]) -> "FeatureIndex | HashedIndex | VectorIndex":
    """Whichever index was saved."""
    if "vector_offsets" in data:
        return VectorIndex(list(data["vector_offsets"]), data["width"])
    return HashedIndex(data["hashed_rows"]) if "hashed_rows" in data else FeatureIndex.from_dict(data)


def _read_strings(packed: bytes) -> list[str]:
    text, room = inflated(packed), current_room()
    if room is not None:
        room.take(8 * len(text))  # a short one takes more than its letters
    return json.loads(text.decode("utf8"))


def _all_below(numbers: NDArray[np.integer], size: int) -> bool:
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < size)


def pack_numbers(numbers: NDArray[np.int32]) -> bytes:
    """Small numbers compress best byte by byte: all lowest bytes first, then the next."""
    return zlib.compress(numbers.astype("<i4", copy=False).view(np.uint8).reshape(-1, 4).T.tobytes())


def unpack_numbers(packed: bytes) -> NDArray[np.int32]:
    octets = np.frombuffer(inflated(packed), dtype=np.uint8).reshape(4, -1)
    return np.ascontiguousarray(octets.T).view("<i4").ravel().astype(np.int32)
