"""The file a component is saved in: a header with a checksum, then compressed msgpack. Loading never runs code."""

import os
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import srsly
from thinc.api import Model

from ..errors import Errors

FORMAT_VERSION = 3
FILE_NAME = "model"

_MAGIC = b"spacy_crf\n"
_HEADER = struct.Struct("<IIQ")  # format version, CRC-32 of the rest, its length


class Saved(NamedTuple):
    settings: dict[str, Any]
    model: bytes


def pack(component: str, settings: dict[str, Any], model: Model) -> bytes:
    content = srsly.msgpack_dumps({"component": component, "settings": settings, "model": model.to_bytes()})
    # A seventh is saved, for weights and hashes hardly shrink; other strategies took thrice the time for 7 % more
    compress = zlib.compressobj(1, strategy=zlib.Z_RLE)
    payload = compress.compress(content) + compress.flush()
    return _MAGIC + _HEADER.pack(FORMAT_VERSION, zlib.crc32(payload), len(payload)) + payload


def unpack(data: bytes, source: str, component: str) -> Saved:
    """Checks the whole of the data before any of it is used.

    source (str): Where the data comes from, for the messages.
    RAISES (ValueError): CRF501 to CRF504.
    """
    start = len(_MAGIC) + _HEADER.size
    if not data.startswith(_MAGIC) or len(data) < start:
        raise ValueError(Errors.CRF501.format(source=source))
    version, check, length = _HEADER.unpack(data[len(_MAGIC) : start])
    if version != FORMAT_VERSION:
        raise ValueError(Errors.CRF502.format(source=source, version=version, known=FORMAT_VERSION))
    payload = data[start:]
    if len(payload) != length or zlib.crc32(payload) != check:
        raise ValueError(Errors.CRF503.format(source=source, got=len(payload), expected=length))
    content = srsly.msgpack_loads(zlib.decompress(payload))
    if content["component"] != component:
        raise ValueError(Errors.CRF504.format(source=source, saved=content["component"], component=component))
    return Saved(content["settings"], content["model"])


def load_model(model: Model, saved: Saved, source: str) -> None:
    """Fills the model; if what was saved does not fit it, the model stays as it was.

    RAISES (ValueError): CRF505.
    """
    before = model.to_dict()
    try:
        model.from_bytes(saved.model)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        model.from_dict(before)
        raise ValueError(Errors.CRF505.format(source=source, reason=error)) from error


def write(folder: Path, data: bytes) -> None:
    """Writes beside the old file and then takes its place, so that there is always a whole one."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{FILE_NAME}-{uuid.uuid4().hex}"
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(folder / FILE_NAME)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def read(folder: Path) -> tuple[Path, bytes]:
    """RETURNS (Path, bytes): The file and what it holds.

    RAISES (ValueError): CRF506 if it can't be read.
    """
    file = folder / FILE_NAME
    try:
        return file, file.read_bytes()
    except OSError as error:
        raise ValueError(Errors.CRF506.format(source=file, reason=error)) from error
