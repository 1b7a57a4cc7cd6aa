"""Clusters of words, as attributes of tokens: ``cluster`` and, of the clusters nearest in the tree, ``cluster4`` … ``cluster20``.

A cluster is a path from the root of a binary tree, "0110". Its first bits name larger clusters that it is a part of.

A word is looked up as it is written, then in lower case. Where the table was made of words whose digits are all written 0, it is
looked up with such digits.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.strings import get_string_id, hash_string

from ..errors import Errors, shown
from ..kernels.hashing import ABSENT
from ..msgpack_stream import unpacked
from ..whole_files import FileFormat, seal, unpacking, unseal, write_whole

# The attributes, and how many bits of the path they are; all for None
WIDTHS: dict[str, Optional[int]] = {"cluster": None, **{f"cluster{n}": n for n in (4, 6, 8, 10, 20)}}
FORMAT = FileFormat("a file of clusters", b"spacy_crf clusters\n", 1)
MOST_CLUSTERS = 1 << 16

DIGIT = re.compile(r"\d")


def with_zeros(text: str) -> str:
    """The text with all its digits written 0."""
    return DIGIT.sub("0", text)


class WordClusters(NamedTuple):
    """Words in clusters, as they are found out and written to a file."""

    words: NDArray[np.uint64]  # [N] their hashes, the most frequent first
    numbers: NDArray[np.uint16]  # [N] their clusters
    paths: list[str]  # [C]
    digits: bool = False  # whether digits of the words are all written 0

    def first(self, n: Optional[int]) -> "WordClusters":
        """The n most frequent ones, and their clusters."""
        used, numbers = np.unique(self.numbers[:n], return_inverse=True)
        paths = [self.paths[number] for number in used.tolist()]
        return self._replace(words=self.words[:n], numbers=numbers.astype(np.uint16), paths=paths)

    @classmethod
    def of_words(cls, words: Iterable[tuple[str, str]], digits: bool = False) -> "WordClusters":
        """words: Each with its path, the most frequent first."""
        place: dict[str, int] = {}
        hashes, numbers = [], []
        for word, path in words:
            hashes.append(get_string_id(word))  # some words are symbols of spaCy
            numbers.append(place.setdefault(path, len(place)))
        return cls.of_hashes(hashes, numbers, list(place), digits)

    @classmethod
    def of_hashes(
        cls, words: Sequence[int], numbers: Sequence[int], paths: list[str], digits: bool = False
    ) -> "WordClusters":
        """RAISES (ValueError): CRF943 if there are too many clusters."""
        if len(paths) > MOST_CLUSTERS:
            raise ValueError(
                Errors.CRF943.format(source=f"{len(paths)} clusters", reason=f"at most {MOST_CLUSTERS} are possible")
            )
        return cls(np.array(words, dtype=np.uint64), np.array(numbers, dtype=np.uint16), paths, digits)


class Clusters:
    """The clusters of words, to look words up in. Nothing of it changes.

    given (WordClusters): In any order; of a word that is there twice, the first counts.
    """

    def __init__(self, given: WordClusters):
        self.words, first = np.unique(given.words, return_index=True)  # [N] sorted
        self.numbers = given.numbers[first]  # [N]
        self.paths = given.paths  # [C]
        self.digits = given.digits

    def __len__(self) -> int:
        return len(self.words)

    def __deepcopy__(self, memo: dict) -> "Clusters":
        return self

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Clusters) and self.to_dict() == other.to_dict()

    __hash__ = None

    def of(self, texts: list[str], orths: NDArray[np.uint64], lowers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The cluster of each word, -1 for unknown ones: int64[V].

        texts (list[str]), orths (uint64[V]), lowers (uint64[V]): The words, their hashes and those in lower case.
        """
        if self.digits:
            orths, lowers = orths.copy(), lowers.copy()
            for n, text in enumerate(texts):
                if DIGIT.search(text):
                    text = with_zeros(text)
                    orths[n], lowers[n] = get_string_id(text), get_string_id(text.lower())
        found = self._find(orths)
        unknown = np.flatnonzero(found < 0)
        found[unknown] = self._find(lowers[unknown])
        return found

    def _find(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        at = np.searchsorted(self.words, keys)
        at[at == len(self.words)] = 0
        return np.where(self.words[at] == keys, self.numbers[at].astype(np.int64), -1)

    @cached_property
    def values(self) -> dict[str, NDArray[np.uint64]]:
        """Of each attribute the value by cluster, and behind them the one of unknown words: uint64[C + 1]."""
        return {
            name: np.array([*(hash_string(path[:width]) for path in self.paths), ABSENT], dtype=np.uint64)
            for name, width in WIDTHS.items()
        }

    @property
    def value_names(self) -> dict[int, str]:
        """Names of the values by their hash."""
        names = {path[:width] for path in self.paths for width in WIDTHS.values()}
        return {hash_string(name): name for name in names}

    def to_dict(self) -> dict[str, Any]:
        return {
            "digits": self.digits,
            "paths": self.paths,
            "words": _octets(self.words),
            "numbers": _octets(self.numbers),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Clusters":
        """RAISES (ValueError): CRF509 for what no clusters are."""
        return cls(_unpacked(data))


def _octets(numbers: NDArray) -> bytes:
    """All lowest bytes first, then the next: the high ones of sorted numbers compress best."""
    return numbers.astype(numbers.dtype.newbyteorder("<")).view(np.uint8).reshape(len(numbers), -1).T.tobytes()


def _numbers(octets: bytes, dtype: type) -> NDArray:
    size = np.dtype(dtype).itemsize
    rows = np.frombuffer(octets, dtype=np.uint8).reshape(size, -1).T
    return np.ascontiguousarray(rows).view(np.dtype(dtype).newbyteorder("<")).ravel().astype(dtype)


def _packed(given: WordClusters) -> dict[str, Any]:
    return {**given._asdict(), "words": _octets(given.words), "numbers": _octets(given.numbers)}


def _unpacked(data: dict[str, Any]) -> WordClusters:
    """RAISES (ValueError): CRF509 for what no clusters are."""
    words, numbers = _numbers(data["words"], np.uint64), _numbers(data["numbers"], np.uint16)
    paths, digits = list(data["paths"]), data["digits"]
    whole = len(words) == len(numbers) > 0 and numbers.max() < len(paths) and isinstance(digits, bool)
    if not whole or not all(isinstance(path, str) and is_path(path) for path in paths):
        found = f"of {len(words)} words, {len(numbers)} numbers and {len(paths)} paths"
        raise ValueError(Errors.CRF509.format(what="the table of clusters", found=found, expected="a whole one"))
    return WordClusters(words, numbers, paths, digits)


def is_path(text: str) -> bool:
    return not set(text) - {"0", "1"}


def check_tree(paths: Iterable[str], source: Any) -> None:
    """RAISES (ValueError): CRF943 if a cluster is a part of another one: then they are no leaves of one tree."""
    for one, other in pairwise(sorted(set(paths))):
        if other.startswith(one):
            raise ValueError(
                Errors.CRF943.format(source=source, reason=f"the path {one!r} is the beginning of {other!r}")
            )


def write_clusters(path: Path, clusters: WordClusters) -> None:
    """Writes a file that `read_file` reads."""
    write_whole(path, seal(FORMAT, srsly.msgpack_dumps(_packed(clusters))))


def read_file(path: Path) -> WordClusters:
    """Reads what `spacy crf clusters` wrote, or paths as wcluster writes them: a line for each word, with bits, word and count
    between tabs.

    RAISES (ValueError): CRF943 or CRF943 with the file and what is wrong.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # or no path can be like this
        raise ValueError(Errors.CRF943.format(source=path, reason=error)) from error
    if data.startswith(FORMAT.magic):
        with unpacking(data):
            return _read_sealed(path, data)
    return _read_paths(path, data)


def _read_sealed(path: Path, data: bytes) -> WordClusters:
    content = unseal(FORMAT, data, str(path))
    try:
        return _unpacked(unpacked(content))
    except Exception as error:  # whatever msgpack raises, and what is not there
        raise ValueError(Errors.CRF508.format(source=path, reason=str(error).rstrip("."))) from error


def _read_paths(path: Path, data: bytes) -> WordClusters:
    """RAISES (ValueError): CRF943."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        reason = f"it is neither what `spacy crf clusters` writes nor text ({error.reason})"
        raise ValueError(Errors.CRF943.format(source=path, reason=reason)) from None
    rows = []
    for number, line in enumerate(lines, start=1):
        row = line.rstrip("\r").split("\t")
        if row == [""]:
            continue
        if len(row) != 3 or not is_path(row[0]) or not row[1] or not row[2].isdecimal():
            reason = f"line {number} is {shown(line)}, not bits, a word and its count between tabs"
            raise ValueError(Errors.CRF943.format(source=path, reason=reason))
        rows.append((-int(row[2]), row[1], row[0]))
    if not rows:
        raise ValueError(Errors.CRF943.format(source=path, reason="it holds no words"))
    check_tree((bits for _, _, bits in rows), path)
    rows.sort(key=lambda row: row[0])
    return WordClusters.of_words((word, bits) for _, word, bits in rows)


def of_lookups(table: Iterable[tuple[int, Any]], source: str) -> WordClusters:
    """Clusters as spaCy's table ``lexeme_cluster`` has them, by the hash of the word: a number whose lowest bit is the first of
    the path, or bits. How long a path is a number doesn't say: behind its last 1 it is taken to go on with 0. Words of the
    cluster 0 have none.

    RAISES (ValueError): CRF943 for anything else, or without words.
    """
    items = [(word, cluster) for word, cluster in table if cluster != 0]
    for word, cluster in items:
        if not (isinstance(cluster, str) and is_path(cluster)) and (not isinstance(cluster, int) or cluster < 0):
            reason = (
                f"the cluster of the word {word} is {shown(cluster)}, neither a number that is not negative nor bits"
            )
            raise ValueError(Errors.CRF943.format(source=source, reason=reason))
    if not items:
        raise ValueError(Errors.CRF943.format(source=source, reason="no word has a cluster"))
    longest = max((cluster.bit_length() for _, cluster in items if isinstance(cluster, int)), default=0)
    path_of = {cluster: cluster if isinstance(cluster, str) else f"{cluster:0{longest}b}"[::-1] for _, cluster in items}
    paths = list(dict.fromkeys(path_of.values()))
    place = {path: n for n, path in enumerate(paths)}
    numbers = [place[path_of[cluster]] for _, cluster in items]
    return WordClusters.of_hashes([word for word, _ in items], numbers, paths)
