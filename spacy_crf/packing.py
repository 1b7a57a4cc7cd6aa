"""What is saved as msgpack, in parts: of a large model or checkpoint there are no more copies than of one array at a time."""

from collections.abc import Iterator
from typing import Any

import srsly
from srsly.msgpack import Packer

_FEW = 64  # items of a list
_LARGE = 1 << 15  # bytes


def packed(value: Any) -> Iterator[bytes]:
    """What `srsly.msgpack_dumps` gives."""
    if isinstance(value, dict):
        yield Packer().pack_map_header(len(value))
        for key, of_key in value.items():
            yield srsly.msgpack_dumps(key)
            yield from packed(of_key)
    elif isinstance(value, (list, tuple)) and len(value) <= _FEW:  # more are small
        yield Packer().pack_array_header(len(value))
        for item in value:
            yield from packed(item)
    elif isinstance(value, bytes) and len(value) >= _LARGE:
        yield from packed_bytes([value])
    else:
        yield srsly.msgpack_dumps(value)


def packed_bytes(parts: list[bytes]) -> list[bytes]:
    """What `srsly.msgpack_dumps` gives of bytes that have some parts, if there are many."""
    return [b"\xc6" + sum(map(len, parts)).to_bytes(4, "big"), *parts]
