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
# What reading content of another form raises, and reading a damaged file
WRONG_FORM = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
OUT_OF_BOUNDS = (MemoryError, NotImplementedError, RecursionError)
DAMAGED = (*WRONG_FORM, *OUT_OF_BOUNDS, EOFError, gzip.BadGzipFile, zipfile.BadZipFile, zlib.error)
LEAST = float(np.finfo(np.float64).min)


class LiteError(ValueError):
    """A file that is no export, or rows that the model can't read; the message says what to do."""


def read_file(path: Path) -> dict[str, Any]:
    """Read the file of an export: an .npz file, or JSON, which may be gzipped.

    RETURNS (dict): The content. Its long lists of numbers are arrays if they were members of an .npz file.
    RAISES (LiteError): For a file that is a hundred times as large without compression.
    """
    data = path.read_bytes()
    most_bytes = 100 * len(data) + (1 << 24)
    if data[:2] != b"PK":
        if data[:2] == b"\x1f\x8b":
            with gzip.open(BytesIO(data)) as file:
                data = file.read(most_bytes + 1)
        _check_size(len(data), most_bytes)
        return json.loads(data)
    with zipfile.ZipFile(BytesIO(data)) as members:
        _check_size(sum(member.file_size for member in members.infolist()), most_bytes)
    with np.load(BytesIO(data), allow_pickle=False) as members:
        content = json.loads(members["content"].tobytes())
        for name in members.files:
            if name != "content":
                _put(content, name, members[name])
    return content


def _check_size(n_bytes: int, most: int) -> None:
    """RAISES (LiteError): For a content of more than `most` bytes."""
    if n_bytes > most:
        raise LiteError(f"its content has more than {most:,} bytes, which no export of its size has. Copy it again.")


def _put(content: Any, place: str, array: Array) -> None:
    """Put an array at its place in the content, such as "readers/0/tables/states/weights"."""
    *folders, last = place.split("/")
    for folder in folders:
        content = content[int(folder) if isinstance(content, list) else folder]
    content[last] = array


def numbers(
    values: Any,
    dtype: Any = np.float64,
    shape: Optional[tuple] = None,
    *,
    least: float = -np.inf,
    most: float = float(np.finfo(np.float64).max),
) -> Array:
    """Check the numbers of an export.

    values (list or array): The numbers. In lists, null is -inf.
    dtype (type): The type of the result.
    shape (tuple): The shape that the numbers must have; any shape by default.
    least (float), most (float): The range of the numbers. Only without `least` may numbers be -inf.
    RETURNS (array): The numbers.
    RAISES (LiteError): For other numbers, or another shape.
    """
    array: Any = values
    if isinstance(values, list):
        array = np.asarray(values, dtype=object)
    if array.dtype == object:
        is_null = np.equal(array, np.array(None))
        array = np.where(is_null, -np.inf, array)
    if array.dtype.kind in "fO":
        array = array.astype(np.float64)
    is_right = (array >= least) & (array <= most)  # false for NaN
    if not is_right.all():
        wrong = array[~is_right].flat[0]
        raise LiteError(f"a number is {wrong}, out of the range from {least:g} to {most:g}. Copy the file again.")
    if shape is not None and array.shape != shape:
        raise LiteError(f"an array has the shape {array.shape} instead of {shape}. Copy the file again.")
    return array.astype(dtype)


def n_steps(content: Any) -> int:
    """How many steps the matrices of all graphs of states in a content have: S² for S states."""
    if isinstance(content, dict):
        n_states = len(content.get("tag_of", ()))
        return n_states**2 + sum(map(n_steps, content.values()))
    if isinstance(content, list) and content and isinstance(content[0], dict):
        return sum(map(n_steps, content))
    return 0
