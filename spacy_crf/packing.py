"""What is saved as msgpack, in parts: of a large model or checkpoint there are no more copies than of one array at a time."""

from collections.abc import Iterator
from typing import Any

from srsly.msgpack import Packer

_FEW = 64  # items of a list
_LARGE = 1 << 15  # bytes


def packed(value: Any) -> Iterator[bytes]:
    """What `srsly.msgpack_dumps` gives."""
    return _parts(value, Packer(use_bin_type=True))  # one: to make it, all installed packages are asked how they encode


def _parts(value: Any, packer: Packer) -> Iterator[bytes]:
    if isinstance(value, dict):
        yield packer.pack_map_header(len(value))
        for key, of_key in value.items():
            yield packer.pack(key)
            yield from _parts(of_key, packer)
    elif isinstance(value, (list, tuple)) and len(value) <= _FEW:  # more are small
        yield packer.pack_array_header(len(value))
        for item in value:
            yield from _parts(item, packer)
    elif isinstance(value, bytes) and len(value) >= _LARGE:
        yield from packed_bytes([value])
    else:
        yield packer.pack(value)


def packed_bytes(parts: list[bytes]) -> list[bytes]:
    """What `srsly.msgpack_dumps` gives of bytes that have some parts, if there are many."""
    return [b"\xc6" + sum(map(len, parts)).to_bytes(4, "big"), *parts]
