"""The feature index: from hashed features to rows. Either features are counted once and pruned, and the index is saved with the
model; or features share a fixed number of rows by their hashes, without counting, for streamed corpora."""

import json
import zlib
from functools import cached_property
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..errors import Errors
from ..kernels import hashing
from ..types import TokenFeatures
from ..whole_files import Saved, inflated, take_room

_SMALLEST = 1024
_NO_PLACES = np.zeros(0, dtype=np.int64)
# Tokens, and the row of each token's feature
KnownFeatures = tuple[NDArray[np.int32], NDArray[np.int32]]


class HashTable:
    """Rows of 64-bit keys. Looking up is safe while another thread inserts."""

    # The least number after the table has grown: few collisions, and room to grow
    slots_per_key = 4

    def __init__(self, keys: Optional[NDArray[np.uint64]] = None):
        self._keys: list[NDArray[np.uint64]] = []
        self._size = 0
        # Slots (uint64[N]) and their rows (int32[N]), as kernels look keys up
        self.arrays = _free_slots(_SMALLEST if keys is None else max(_SMALLEST, 2 * len(keys)))
        if keys is not None:
            self.insert(keys)

    def __len__(self) -> int:
        return self._size

    def insert(self, keys: NDArray[np.uint64]) -> None:
        """Give new keys the next rows."""
        slots, rows = self.make_room(len(keys))
        hashing.insert(slots, rows, keys, self._size)
        self._append(keys)

    def make_room(self, n_new: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """Make room for new keys, so that half of the slots stay free.

        RETURNS (uint64[N], int32[N]): The slots and their rows.
        """
        slots, rows = self.arrays
        if 2 * (self._size + n_new) > len(slots):
            slots, rows = _free_slots(self.slots_per_key * (self._size + n_new))
            hashing.insert(slots, rows, self.keys, 0)
            self.arrays = (slots, rows)
        return slots, rows

    def _append(self, keys: NDArray[np.uint64]) -> None:
        self._keys.append(keys)
        self._size += len(keys)

    @property
    def keys(self) -> NDArray[np.uint64]:
        """All keys in the order of their rows."""
        self._keys = [np.concatenate(self._keys)] if self._keys else [np.zeros(0, dtype=np.uint64)]
        return self._keys[0]

    def look_up(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int32], int]:
        """Row of each key, -1 for unknown keys and for 0: int32[N]; and how many rows are -1."""
        rows = np.empty(len(keys), dtype=np.int32)
        n_unknown = hashing.find_rows(*self.arrays, keys, self._size, rows, _NO_PLACES)
        return rows, n_unknown

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Row of each key, -1 for unknown keys and for 0: int32[N]."""
        return self.look_up(keys)[0]


def _free_slots(n: int) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Free slots, as many as the next power of two, and their rows."""
    size = 1 << (n - 1).bit_length()
    return np.zeros(size, dtype=np.uint64), np.full(size, -1, dtype=np.int32)


def find_sorted(keys: NDArray[np.uint64], numbers: NDArray, wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Look keys up in a sorted list.

    keys (uint64[F]), numbers (int[F]): The keys in rising order, and the number of each.
    wanted (uint64[N]): The keys to look up.
    RETURNS (int64[N]): The number of each wanted key, -1 for unknown keys.
    """
    if not len(keys):
        return np.full(len(wanted), -1)
    position = np.searchsorted(keys, wanted)
    # A key above all others is compared with the first key, which differs
    position[position == len(keys)] = 0
    return np.where(keys[position] == wanted, numbers[position].astype(np.int64), -1)


def by_token(tokens: NDArray, rows: NDArray, values: Optional[NDArray[np.float32]], n_tokens: int) -> TokenFeatures:
    """Sort N features, given by their tokens, rows and values, by token; the features of a token keep their order."""
    # Stable, so that the weights of a token's features are added in the same order in every batch
    order = np.argsort(tokens, kind="stable")
    return TokenFeatures(
        rows=rows[order],
        values=None if values is None else values[order],
        starts=np.append(0, np.cumsum(np.bincount(tokens, minlength=n_tokens))).astype(np.int64),
    )


class CountingTable(HashTable):
    """Hash table that counts its keys."""

    # While the features of a corpus are counted, this table takes the most memory
    slots_per_key = 2

    def __init__(self, keys: Optional[NDArray[np.uint64]] = None):
        super().__init__(keys)
        self._counts = np.zeros(max(_SMALLEST, len(self)), dtype=np.int32)

    @property
    def counts(self) -> NDArray[np.int32]:
        """How often each key was added: int32[N]."""
        return self._counts[: len(self)]

    def add(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Count a batch of keys.

        RETURNS (int64[N]): Where each new key first occurs in `keys`, in the order of the rows.
        """
        slots, rows = self.make_room(len(keys))
        if len(self) + len(keys) > len(self._counts):
            # Twice the size, so that each count is copied once on average
            grown = np.zeros(2 * (len(self) + len(keys)), dtype=np.int32)
            grown[: len(self)] = self.counts
            self._counts = grown
        found = np.empty(len(keys), dtype=np.int32)
        positions = np.empty(len(keys), dtype=np.int64)
        n_new = hashing.find_rows(slots, rows, keys, len(self), found, positions)
        np.add.at(self._counts, found[found >= 0], np.int32(1))
        self._append(keys[positions[:n_new]])
        return positions[:n_new]


class FeatureNames(NamedTuple):
    """The names of F features, for humans: a template, and the value of each of its parts."""

    templates: list[str]
    template_of: NDArray[np.int32]  # [F] position in templates
    part_starts: NDArray[np.int64]  # [F + 1] feature f has the values part_starts[f] to part_starts[f + 1] - 1 of parts
    parts: NDArray[np.int32]  # [P] values of the parts, as positions in strings
    strings: list[str]

    def of(self, row: int) -> str:
        """Name of the feature of a row, as ``lower[-1]|lower[0]=new|york``."""
        parts = self.parts[self.part_starts[row] : self.part_starts[row + 1]]
        values = "|".join(self.strings[part] for part in parts)
        template = self.templates[self.template_of[row]]
        # The bias has no value; items of numbers have no text
        return template if template == "bias" or not values else f"{template}={values}"

    def keep(self, rows: NDArray[np.bool_]) -> "FeatureNames":
        """The names of the rows to keep (bool[F]), with only the templates and strings that these names use."""
        widths = np.diff(self.part_starts)
        keeps_part = np.repeat(rows, widths)  # [P]
        strings_used, parts = np.unique(self.parts[keeps_part], return_inverse=True)
        templates_used, template_of = np.unique(self.template_of[rows], return_inverse=True)
        return FeatureNames(
            templates=[self.templates[template] for template in templates_used],
            template_of=template_of.astype(np.int32),
            part_starts=np.append(0, np.cumsum(widths[rows])),
            parts=parts.astype(np.int32),
            strings=[self.strings[string] for string in strings_used],
        )

    def extend(self, other: "FeatureNames") -> "FeatureNames":
        """These names, followed by the names of other features."""
        # Both may have templates in common
        templates = list(dict.fromkeys(self.templates + other.templates))
        position = {template: n for n, template in enumerate(templates)}
        new_positions = np.array([position[template] for template in other.templates], dtype=np.int32)
        return FeatureNames(
            templates,
            template_of=np.concatenate([self.template_of, new_positions[other.template_of]]).astype(np.int32),
            part_starts=np.concatenate([self.part_starts, other.part_starts[1:] + self.part_starts[-1]]),
            parts=np.concatenate([self.parts, other.parts + len(self.strings)]).astype(np.int32),
            strings=self.strings + other.strings,
        )

    def packed(self) -> Saved:
        """The names as compressed values for msgpack."""
        return {
            "templates": self.templates,
            "template_of": pack_numbers(self.template_of),
            "widths": pack_numbers(np.diff(self.part_starts).astype(np.int32)),
            "parts": pack_numbers(self.parts),
            "strings": zlib.compress(json.dumps(self.strings, ensure_ascii=False).encode("utf8")),
        }

    @classmethod
    def from_packed(cls, packed: Saved) -> "FeatureNames":
        """The names that `packed` has compressed. RAISES (ValueError): CRF509 if the fields don't fit together."""
        widths = unpack_numbers(packed["widths"])
        text = inflated(packed["strings"])
        # A short string takes more memory than its characters
        take_room(8 * len(text))
        names = cls(
            list(packed["templates"]),
            unpack_numbers(packed["template_of"]),
            np.append(0, np.cumsum(widths, dtype=np.int64)),
            unpack_numbers(packed["parts"]),
            json.loads(text.decode("utf8")),
        )
        is_whole = (
            len(names.template_of) == len(widths)
            and len(names.parts) == names.part_starts[-1]
            and widths.min(initial=0) >= 0
            and _all_below(names.template_of, len(names.templates))
            and _all_below(names.parts, len(names.strings))
            and {*map(type, names.templates), *map(type, names.strings)} <= {str}
        )
        if not is_whole:
            raise ValueError(_NOT_WHOLE)
        return names


_NOT_WHOLE = Errors.CRF509.format(what="the feature index", found="of parts", expected="a whole one")


class FeatureIndex:
    """Rows of the known features, and their names for humans.

    keys (uint64[F]): Hash of each feature, in the order of the rows.
    names (FeatureNames): Names of the features; None if `packed` has them.
    packed (Saved): The names as `FeatureNames.packed` returns them. They are unpacked at first use.
    """

    def __init__(
        self,
        keys: NDArray[np.uint64],
        names: Optional[FeatureNames] = None,
        *,
        packed: Optional[Saved] = None,
    ):
        self.keys = keys
        if names is not None:
            self.feature_names = names
        if packed is not None:
            self._packed = packed

    @cached_property
    def table(self) -> HashTable:
        """The rows of the keys."""
        return HashTable(self.keys)

    @cached_property
    def sieved(self) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int32]]:
        """A sieve that holds back most unknown features, and the slots and rows of the table, as `hashing.sift` reads them."""
        return hashing.make_sieve(self.keys), *self.table.arrays

    @classmethod
    def empty(cls) -> "FeatureIndex":
        """An index without features."""
        no_numbers = np.zeros(0, dtype=np.int32)
        names = FeatureNames([], no_numbers, np.zeros(1, dtype=np.int64), no_numbers, [])
        return cls(np.zeros(0, dtype=np.uint64), names)

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Row of each hashed feature, -1 for unknown features."""
        return self.table.rows(keys)

    def known(self, hashes: NDArray[np.uint64], positions: NDArray[np.int64]) -> KnownFeatures:
        """The known features of tokens, by template.

        hashes (uint64[M, P]): Hashes of M templates at all positions.
        positions (int64[T]): The positions of the tokens.
        RETURNS (int32[N], int32[N]): Tokens, and the rows of their features.
        """
        return hashing.find_known(hashes, positions, self.sieved)

    def rows_of(self, other: "FeatureIndex") -> NDArray[np.int64]:
        """Rows in this index of the features of another index: int64[F2]."""
        return self.rows(other.keys).astype(np.int64)

    def name(self, row: int) -> str:
        """Name of a feature, as a user would write it: ``lower[-1]|lower[0]=new|york``."""
        return self.feature_names.of(row)

    def names(self) -> list[str]:
        """Names of all features, in the order of their rows."""
        return [*map(self.feature_names.of, range(len(self)))]

    def keep(self, rows: NDArray[np.bool_]) -> "FeatureIndex":
        """The index of the rows to keep (bool[F]), which are numbered anew in their order."""
        return FeatureIndex(self.keys[rows], self.feature_names.keep(rows))

    def extend(self, other: "FeatureIndex") -> "FeatureIndex":
        """This index, followed by the features of another index, which must be disjoint."""
        return FeatureIndex(np.concatenate([self.keys, other.keys]), self.feature_names.extend(other.feature_names))

    @property
    def templates(self) -> list[str]:
        """The texts of the templates, among them all those with features."""
        return self._packed["templates"] if "_packed" in self.__dict__ else self.feature_names.templates

    @cached_property
    def feature_names(self) -> FeatureNames:
        """The names, unpacked at first use: most programs that load a model never need them."""
        return FeatureNames.from_packed(self._packed)

    def to_dict(self) -> Saved:
        """Plain values for msgpack. The names stay compressed, at a third of their size, until they are needed."""
        packed = self._packed
        # Forget the unpacked names
        self.__dict__.pop("feature_names", None)
        return {**packed, "keys": self.keys.tobytes()}

    @cached_property
    def _packed(self) -> Saved:
        """The names, compressed once for all checkpoints of a training."""
        return self.feature_names.packed()

    @classmethod
    def from_dict(cls, data: Saved) -> "FeatureIndex":
        """The index that `to_dict` saved. RAISES (ValueError): CRF509 if keys and names don't fit together."""
        packed = {name: data[name] for name in ("templates", "template_of", "widths", "parts", "strings")}
        index = cls(np.frombuffer(data["keys"], dtype="<u8").astype(np.uint64), packed=packed)
        if len(FeatureNames.from_packed(packed).template_of) != len(index):
            raise ValueError(_NOT_WHOLE)
        return index


class FeatureCounter:
    """Counts the features of batches, and makes an index of the features to keep.

    templates (list[str]): Names of the templates.
    known (FeatureIndex): An index whose features keep their rows (warm start).
    """

    def __init__(self, templates: list[str], known: FeatureIndex):
        self.known = known
        self._names = templates
        self.table = CountingTable(known.keys)  # the known features first

    def __len__(self) -> int:
        return len(self.table)

    def _index(
        self, keep: NDArray[np.bool_], template_of: NDArray, widths: NDArray, parts: NDArray, strings: list[str]
    ) -> FeatureIndex:
        """The index of the features to keep.

        keep (bool[N]): Whether to keep each feature met, the known features first.
        template_of (int32[F]), widths (int64[F]), parts (int32[P]), strings (list[str]): Template, number of parts and values of
            each new feature to keep, see `FeatureNames`.
        """
        n_known = len(self.known)
        new_keys = self.table.keys[n_known:]
        part_starts = np.append(0, np.cumsum(widths)).astype(np.int64)
        names = FeatureNames(self._names, template_of, part_starts, parts, strings)
        new = FeatureIndex(new_keys[keep[n_known:]], names)
        return self.known.keep(keep[:n_known]).extend(new)


class FixedIndex:
    """An index with a fixed number of rows, which are neither counted nor removed.

    keys (uint64[N]): The settings as numbers: indexes with equal keys are equal.
    """

    def __init__(self, n_rows: int, keys: NDArray[np.uint64]):
        self._n_rows = n_rows
        self.keys = keys

    def __len__(self) -> int:
        return self._n_rows

    def rows_of(self, other: "FixedIndex") -> NDArray[np.int64]:
        """The rows of another index, which must have equal keys."""
        return np.arange(len(self))

    def name(self, row: int) -> str:
        """Name of a row: a number, since several features may share it."""
        return f"row {row}"

    def names(self) -> list[str]:
        """Names of all rows."""
        return list(map(self.name, range(len(self))))

    def keep(self, rows: NDArray[np.bool_]) -> "FixedIndex":
        """The index itself, since the numbers of its rows have a meaning."""
        return self


class HashedIndex(FixedIndex):
    """A fixed number of rows that all features share by their hashes, without counting. Several features may have the same row
    (Weinberger et al. 2009, "Feature Hashing for Large Scale Multitask Learning", but without signs: a weight that two features
    share fits their average use).

    n_rows (int): A power of two.
    """

    def __init__(self, n_rows: int):
        super().__init__(n_rows, np.array([n_rows], dtype=np.uint64))

    def rows(self, keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Row of each hashed feature, -1 for NO_FEATURE: int32[N]."""
        # n_rows is a power of two: the lowest bits of the hash are the row
        rows = (keys & np.uint64(len(self) - 1)).astype(np.int32)
        rows[keys == 0] = -1
        return rows

    def known(self, hashes: NDArray[np.uint64], positions: NDArray[np.int64]) -> KnownFeatures:
        """The features of tokens, by template: tokens (int32[N]) and rows (int32[N]), see `FeatureIndex.known`."""
        rows = self.rows(hashes[:, positions].ravel())  # [M * T]
        [features] = np.nonzero(rows >= 0)
        tokens = features % max(1, len(positions))
        return tokens.astype(np.int32), rows[features]

    def to_dict(self) -> Saved:
        """Plain values for msgpack."""
        return {"hashed_rows": len(self)}


class VectorIndex(FixedIndex):
    """Rows for the numbers of word vectors: first the numbers of the vector at the first offset, then at the next offset.

    offsets (list[int]): Offsets of the vectors from a token.
    width (int): Numbers in each vector.
    """

    def __init__(self, offsets: list[int], width: int):
        self.offsets = offsets
        self.width = width
        # The keys of a `FixedIndex` are its settings, as uint64; offsets may be negative
        super().__init__(len(offsets) * width, np.array([width, *offsets], dtype=np.int64).view(np.uint64))

    def name(self, row: int) -> str:
        """Name of a row: the offset of its vector, and the place of the number in it."""
        return f"vector[{self.offsets[row // self.width]}]=#{row % self.width}"

    def to_dict(self) -> Saved:
        """Plain values for msgpack."""
        return {"vector_offsets": self.offsets, "width": self.width}


def index_from_dict(data: Saved) -> "FeatureIndex | HashedIndex | VectorIndex":
    """The index from saved data, of the class that was saved."""
    if "vector_offsets" in data:
        return VectorIndex(list(data["vector_offsets"]), data["width"])
    return HashedIndex(data["hashed_rows"]) if "hashed_rows" in data else FeatureIndex.from_dict(data)


def _all_below(numbers: NDArray[np.integer], size: int) -> bool:
    """Whether all numbers are positions in a list of this size."""
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < size)


def pack_numbers(numbers: NDArray[np.int32]) -> bytes:
    """Compress numbers (int32[N])."""
    return zlib.compress(byte_planes(numbers.astype(np.int32, copy=False)))


def unpack_numbers(packed: bytes) -> NDArray[np.int32]:
    """The numbers that `pack_numbers` compressed."""
    return of_byte_planes(inflated(packed), np.int32)


def byte_planes(numbers: NDArray[np.integer]) -> bytes:
    """The lowest bytes of all numbers, then the next bytes, and so on. Small numbers have equal high bytes, which compress well
    when they stand together."""
    octets = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    return octets.reshape(-1, numbers.itemsize).T.tobytes()


def of_byte_planes(octets: bytes, dtype: type) -> NDArray:
    """The numbers that `byte_planes` packed."""
    planes = np.frombuffer(octets, dtype=np.uint8).reshape(np.dtype(dtype).itemsize, -1)
    return np.ascontiguousarray(planes.T).view(np.dtype(dtype).newbyteorder("<")).ravel().astype(dtype)
