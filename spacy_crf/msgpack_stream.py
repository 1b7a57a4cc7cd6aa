"""What is saved as msgpack, in parts: of a large model or checkpoint there are no more copies than of one array at a time."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

from srsly.msgpack import Packer, unpackb

from .whole_files import current_room

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


def unpacked(data: bytes) -> Any:
    """What `srsly.msgpack_loads` gives, as long as there is room for its lists, tables and texts: a byte may stand for one.

    RAISES (ValueError): CRF511 if there is no more room; whatever msgpack raises.
    """
    was_on = gc.isenabled()
    gc.disable()  # or lists are gone through again and again as their number grows
    try:
        return unpackb(data, raw=False, **_hooks())
    finally:
        if was_on:
            gc.enable()


def _hooks() -> dict[str, Callable]:
    """What counts as lists and tables are made: half of what CPython takes for them and short texts, since gazetteers of many
    short words are seventy times as large as their file."""
    room = current_room()
    if room is None:
        return {}

    def of_list(items: list) -> list:
        room.take(15 + 28 * len(items))
        return items

    def of_table(table: dict) -> dict:
        room.take(100 + 50 * len(table))
        return table

    return {"list_hook": of_list, "object_hook": of_table}
