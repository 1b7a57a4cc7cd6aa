"""Reads the file of an export, and checks its numbers."""

import gzip
import json
import zipfile
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any, Optional

import numpy as np

FORMAT = "spacy_crf.lite"
VERSION = 4
Array = Any
# What reading content of another form raises
WRONG_FORM = (KeyError, IndexError, TypeError, ValueError, AttributeError)
DAMAGED = (EOFError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, *WRONG_FORM)
LEAST = float(np.finfo(np.float64).min)


class LiteError(ValueError):
    """A file that is no export, or rows that the model can't read; the message says what to do."""


def read_file(path: Path) -> dict[str, Any]:
    """Read the file of an export: an .npz file, or JSON, which may be gzipped.

    RETURNS (dict): The content. Its long lists of numbers are arrays if they were members of an .npz file.
    """
    data = path.read_bytes()
    if data[:2] != b"PK":
        is_gzipped = data[:2] == b"\x1f\x8b"
        return json.loads(gzip.decompress(data) if is_gzipped else data)
    with np.load(BytesIO(data), allow_pickle=False) as members:
        content = json.loads(members["content"].tobytes())
        for name in members.files:
            if name != "content":
                _put(content, name, members[name])
    return content


def _put(content: Any, place: str, array: Array) -> None:
    """Put an array at its place in the content, such as "readers/0/tables/states/weights"."""
    *folders, last = place.split("/")
    for folder in folders:
        content = content[int(folder) if isinstance(content, list) else folder]
    content[last] = array


def numbers(values: Any, dtype: Any = np.float64, shape: Optional[tuple] = None, *, least: float = -np.inf) -> Array:
    """Check the numbers of an export.

    values (list or array): The numbers. In lists, null is -inf.
    dtype (type): The type of the result.
    shape (tuple): The shape that the numbers must have; any shape by default.
    least (float): The least number allowed; only without it may numbers be -inf.
    RETURNS (array): The numbers.
    RAISES (LiteError): For other numbers, or another shape.
    """
    array: Any = values
    if isinstance(values, list):
        array = np.asarray(values, dtype=object)
    if array.dtype == object:
        is_null = np.equal(array, np.array(None))
        array = np.where(is_null, -np.inf, array)
    array = array.astype(dtype)
    is_wrong = np.isnan(array).any() or (array == np.inf).any() or (array.size and array.min() < least)
    if is_wrong:
        raise LiteError("a number is NaN, infinite or out of range. Export the model again.")
    if shape is not None and array.shape != shape:
        raise LiteError(f"an array has the shape {array.shape} instead of {shape}. Copy the file again.")
    return array
