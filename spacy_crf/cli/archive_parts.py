"""Cuts a corpus of files into parts, which workers read independently: lines of text files, or row groups of Parquet.

Files are paths, or `s3://…`, `gs://…` and other addresses that fsspec opens if its package for them is installed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Optional

from ..errors import Errors
from ..workers.work_folder import LOCAL, file_system

LINES = (".jsonl", ".ndjson", ".txt")
PARQUET = ".parquet"
_PARTS = 256  # default number of parts of an archive: enough for all workers to finish at about the same time
# bytes of a part
_LEAST = 1 << 18
_MOST = 1 << 22
# Properties that show whether a file has changed, as far as its file system has them
_STAMPS = ("size", "mtime", "ETag", "etag", "md5Hash", "generation", "LastModified")


class Part(NamedTuple):
    """A part of a corpus: the lines that begin within a range of bytes of a file, or a range of row groups of a Parquet file."""

    number: int  # from 0 on, in the order of the corpus
    path: str
    begin: int
    end: int
    size: int  # in bytes

    @property
    def place(self) -> str:
        """Where the part is, for messages."""
        return f"{self.path}, {'row groups' if is_parquet(self.path) else 'bytes'} {self.begin} to {self.end}"


def plan(source: str, part_bytes: Optional[int] = None) -> tuple[list[Part], dict[str, list[str]], int]:
    """Cut a file, or all text and Parquet files below a folder in the order of their names, into parts.

    part_bytes (int): Size of a part; by default derived from the size of the archive.
    RETURNS (tuple): The parts; for each file, the properties that show whether the file has changed; the size of a part.
    RAISES (ValueError): CRF784 if there are no such files, or one can't be read. (FileNotFoundError): If the path does not exist.
    """
    system, root = file_system(source)
    paths = sorted(path for path in system.find(root) if path.endswith((*LINES, PARQUET)))
    if not system.exists(root):
        raise FileNotFoundError(2, "No such file or directory", source)
    if not paths and system.isdir(root):
        raise ValueError(
            Errors.CRF784.format(path=source, reason=f"it has no file that ends with {', '.join(LINES)} or {PARQUET}")
        )
    # A single file is read whatever its name ends with
    infos = [(system.unstrip_protocol(path), system.info(path)) for path in paths or [root]]
    if not part_bytes:
        total = sum(info["size"] for _, info in infos)
        part_bytes = min(max(total // _PARTS, _LEAST), _MOST)
    parts: list[Part] = []
    for name, info in infos:
        for begin, end, size in _cut(name, info["size"], part_bytes):
            parts.append(Part(len(parts), name, begin, end, size))
    return parts, {name: _stamps(info) for name, info in infos}, part_bytes


def _stamps(info: Mapping[str, object]) -> list[str]:
    return [f"{key}={info[key]}" for key in _STAMPS if info.get(key) is not None]


def is_parquet(path: str) -> bool:
    """Whether a path names a Parquet file."""
    return path.endswith(PARQUET)


def _cut(path: str, size: int, part_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and size of the parts of a file of `size` bytes."""
    if not is_parquet(path):
        for begin in range(0, size, part_bytes):
            yield begin, min(begin + part_bytes, size), min(part_bytes, size - begin)
        return
    with opened_parquet(path) as file:
        begin = 0
        part_size = 0
        for n in range(file.num_row_groups):
            part_size += file.metadata.row_group(n).total_byte_size
            # A row group is never cut: Parquet reads it as a whole
            if part_size >= part_bytes or n == file.num_row_groups - 1:
                yield begin, n + 1, part_size
                begin = n + 1
                part_size = 0


def lines(part: Part) -> Iterator[tuple[str, bytes]]:
    """Read the lines of a part, each with its place."""
    system, path = file_system(part.path)
    with system.open(path, "rb") as file:
        byte = part.begin
        if byte:  # skip the rest of a line that began in the part before
            file.seek(byte - 1)
            byte += len(file.readline()) - 1
        while byte < part.end and (line := file.readline()):
            yield f"{part.path}, byte {byte}", line
            byte += len(line)


def opened_parquet(path: str) -> Any:
    """Open a Parquet file. RAISES (ImportError): CRF781 without pyarrow. (ValueError): CRF784 if the file can't be read."""
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ImportError(
            Errors.CRF781.format(
                what=f"{path}: Parquet", reason=error, package="pyarrow", install="'spacy-crf[parquet]'"
            )
        ) from None
    system, name = file_system(path)
    try:
        return ParquetFile(name, filesystem=None if system is LOCAL else system)
    except ArrowInvalid as error:
        raise ValueError(Errors.CRF784.format(path=path, reason=error)) from error
