"""Clusters of words, as attributes of tokens: ``cluster`` and, of the clusters nearest in the tree, ``cluster4`` … ``cluster20``.

A cluster is a path from the root of a binary tree, "0110". The first bits name the larger clusters that contain it.

A word is looked up as it is written, then in lower case. If all digits in the words of a table are written 0, a word is looked
up with its digits written 0.

Clusters come from a file, the package spacy-lookups-data, the vocab's table, or bisecting k-means over word vectors, which splits
clusters in two until there are enough (Steinbach, Karypis & Kumar 2000). In some files clusters have names, such as numbers, in
place of paths. The beginnings of such names mean nothing.

A component may read several tables: ``cluster6:own[0]`` reads the table "own", ``cluster6[0]`` the table without a name.
"""

import gzip
import heapq
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple, Optional, Union

import numpy as np
import srsly
from numpy.typing import ArrayLike, NDArray
from spacy.strings import get_string_id, hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.util import load_language_data, registry
from spacy.vectors import Mode, Vectors
from spacy.vocab import Vocab

from .. import checks
from ..blanks import is_blank, split_columns
from ..errors import Errors, announcements, shown
from ..kernels import cache_folder
from ..kernels.hashing import ABSENT
from ..types import Floats, Settings
from ..whole_files import FileFormat, Saved, seal, unpacked, unpacking, unseal, write_whole
from .feature_index import byte_planes, find_sorted, of_byte_planes
from .word_vectors import table_of

ClusterSource = Union[str, Path, Settings]

# The attributes, and the length of the path that each reads; None for all of it
WIDTHS: dict[str, Optional[int]] = {"cluster": None, **{f"cluster{n}": n for n in (4, 6, 8, 10, 20)}}
FORMAT = FileFormat("a file of clusters", b"spacy_crf clusters\n", 1)
MOST_CLUSTERS = 1 << 16
# Sources that a config may name in place of a file
PACKAGE = "spacy-lookups-data"
VECTORS = "vectors"
LOOKUPS = "lookups"
PACKAGED_LANGUAGES = ("en", "de", "es")
_TABLE = "lexeme_cluster"
_N_CLUSTERS = 1000
_ITERATIONS = 20  # of k-means, and of the power method

DIGIT = re.compile(r"\d")
TABLE_NAME = re.compile(r"[^\[\]|:\s]+")  # as templates can write it


def is_of_clusters(attribute: str) -> bool:
    """Whether an attribute is read from a table of clusters: ``cluster6`` or ``cluster6:own``."""
    return attribute.partition(":")[0] in WIDTHS


def table_read(attribute: str) -> str:
    """The name of the table of clusters that an attribute reads: "own" for ``cluster6:own``, "" for ``cluster6``."""
    return attribute.partition(":")[2]


def with_zeros(text: str) -> str:
    """The text with all its digits written 0."""
    return DIGIT.sub("0", text)


class WordClusters(NamedTuple):
    """Words in clusters, as they are found and written to a file."""

    words: NDArray[np.uint64]  # [N] their hashes, the most frequent first
    numbers: NDArray[np.uint16]  # [N] their clusters
    paths: list[str]  # [C] bits in a tree, or names
    digits: bool = False  # True if all digits of the words are written 0

    def first(self, n: Optional[int]) -> "WordClusters":
        """The n most frequent words, and their clusters."""
        used, numbers = np.unique(self.numbers[:n], return_inverse=True)
        return self._replace(
            words=self.words[:n],
            numbers=numbers.astype(np.uint16),
            paths=[self.paths[number] for number in used.tolist()],
        )

    @classmethod
    def of_words(cls, words: Iterable[tuple[str, str]], digits: bool = False) -> "WordClusters":
        """Number the clusters of words.

        words: Each word with its path, the most frequent first.
        RAISES (ValueError): CRF943 for too many clusters.
        """
        number_of: dict[str, int] = {}  # by path
        hashes = []
        numbers = []
        for word, path in words:
            # Unlike `hash_string`, right for words that are names of spaCy's symbols
            hashes.append(get_string_id(word))
            numbers.append(number_of.setdefault(path, len(number_of)))
        return cls.of_hashes(hashes, numbers, list(number_of), digits)

    @classmethod
    def of_hashes(cls, words: ArrayLike, numbers: ArrayLike, paths: list[str], digits: bool = False) -> "WordClusters":
        """Convert the fields to arrays. RAISES (ValueError): CRF943 for too many clusters."""
        if len(paths) > MOST_CLUSTERS:
            raise _not_readable(f"{len(paths)} clusters", f"at most {MOST_CLUSTERS} are possible")
        return cls(np.array(words, dtype=np.uint64), np.array(numbers, dtype=np.uint16), paths, digits)

    def to_dict(self) -> Saved:
        """Plain values for msgpack."""
        return {**self._asdict(), "words": byte_planes(self.words), "numbers": byte_planes(self.numbers)}

    @classmethod
    def from_dict(cls, data: Saved) -> "WordClusters":
        """The words and clusters that `to_dict` saved. RAISES (ValueError): CRF509 for damaged clusters."""
        words = of_byte_planes(data["words"], np.uint64)
        numbers = of_byte_planes(data["numbers"], np.uint16)
        paths = list(data["paths"])
        digits = data["digits"]
        fits = len(words) == len(numbers) > 0 and numbers.max() < len(paths) and isinstance(digits, bool)
        if not fits or not all(isinstance(path, str) for path in paths):
            raise ValueError(
                Errors.CRF509.format(
                    what="the table of clusters",
                    found=f"of {len(words)} words, {len(numbers)} numbers and {len(paths)} paths",
                    expected="a whole one",
                )
            )
        return cls(words, numbers, paths, digits)


class Clusters:
    """The clusters of words, to look words up in; immutable.

    table (WordClusters): Words in any order; of two entries for a word the first counts.
    """

    def __init__(self, table: WordClusters):
        # Sorts the hashes for look-ups, and gives the first of equal words
        words, first = np.unique(table.words, return_index=True)
        self._table = table._replace(words=words, numbers=table.numbers[first])
        self.paths = table.paths
        self.digits = table.digits

    def __len__(self) -> int:
        return len(self._table.words)

    def __deepcopy__(self, memo: dict) -> "Clusters":
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clusters) and self.to_dict() == other.to_dict()

    def of(self, texts: list[str], orths: NDArray[np.uint64], lowers: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The cluster of each word, -1 for unknown words: int64[V].

        texts (list[str]), orths (uint64[V]), lowers (uint64[V]): The words, their hashes, and their hashes in lower case.
        """
        words = self._table.words
        numbers = self._table.numbers
        if self.digits:  # the table's words have all digits written 0
            orths = orths.copy()
            lowers = lowers.copy()
            for n, text in enumerate(texts):
                if DIGIT.search(text):
                    zeroed = with_zeros(text)
                    orths[n] = get_string_id(zeroed)
                    lowers[n] = get_string_id(zeroed.lower())
        clusters = find_sorted(words, numbers, orths)
        # Only words that are unknown as written are looked up in lower case
        unknown = np.flatnonzero(clusters < 0)
        clusters[unknown] = find_sorted(words, numbers, lowers[unknown])
        return clusters

    @cached_property
    def is_tree(self) -> bool:
        """Whether the first bits of a cluster name a larger cluster."""
        return all(map(is_bits, self.paths)) and not any(_contained(self.paths))

    @cached_property
    def values(self) -> dict[str, NDArray[np.uint64]]:
        """For each attribute of clusters, its values: of the C clusters, and then of words without a cluster (uint64[C + 1])."""
        values = {}
        for name, width in WIDTHS.items():
            hashes = [hash_string(path[:width]) for path in self.paths]
            values[name] = np.array([*hashes, ABSENT], dtype=np.uint64)
        return values

    @property
    def value_names(self) -> dict[int, str]:
        """The text of each value in `values`, by its hash."""
        texts = {path[:width] for path, width in product(self.paths, WIDTHS.values())}
        return {hash_string(text): text for text in texts}

    def to_dict(self) -> Saved:
        """Plain values for msgpack."""
        return self._table.to_dict()

    @classmethod
    def from_dict(cls, data: Saved) -> "Clusters":
        """The clusters that `to_dict` saved. RAISES (ValueError): CRF509 for damaged clusters."""
        return cls(WordClusters.from_dict(data))


def read_clusters(
    source: Optional[ClusterSource], current: Optional[Clusters], vocab: Vocab, *, name: str, table: str = ""
) -> Optional[Clusters]:
    """Read one table of clusters that a config names.

    source (ClusterSource): What the config names. None to keep the current clusters; without any, clusters that the vocab has are
        read, but only if `table` is "".
    current (Clusters): The model's clusters. They stay if the file that the config names is missing.
    name (str), table (str): Names of the component and the table.
    RETURNS (Clusters): The clusters, or None if nothing names any.
    RAISES (ValueError): CRF020 or CRF943 to CRF948 for clusters that can't be read or made.
    """
    if source is None:
        if current is not None or table or not vocab.lookups.has_table(_TABLE):
            return current
        source = LOOKUPS
    must = 'the path of a file, "spacy-lookups-data", "vectors" or "lookups", or a table with this as \'path\', and optionally '
    must += (
        "'most_words' (how many of the most frequent words to keep) and 'n' (how many clusters to make from vectors)"
    )
    possible = {"path": checks.is_path, "most_words": checks.is_optional_count, "n": checks.is_optional_count}
    setting = f"clusters '{table}'" if table else "clusters"
    owner = f"[initialize.components.{name}{'.words.tables' if table else ''}]"
    settings = checks.path_and_settings(owner, table or "clusters", source, possible, must)
    checks.expect(settings.get("n") is None or settings["path"] == VECTORS, owner, table or "clusters", source, must)
    path = str(settings["path"])
    if path == PACKAGE:
        words = packaged_clusters(vocab.lang)
    elif path == LOOKUPS:
        rows = vocab.lookups.get_table(_TABLE) if vocab.lookups.has_table(_TABLE) else {}
        words = of_lookups(rows.items(), f"the vocab's table '{_TABLE}'")
    elif path == VECTORS:
        words = cluster_vectors(vocab.vectors, settings.get("n") or _N_CLUSTERS, "the pipeline")
    elif current is not None and not Path(path).exists():
        announcements.info("Component '%s': the %s are those of the model: there is no file %s", name, setting, path)
        return current
    else:
        words = read_file(Path(path))
    clusters = Clusters(words.first(settings.get("most_words")))
    announcements.info("%s: %s of %d words in %d clusters", name, setting, len(clusters), len(clusters.paths))
    return clusters


def has_packaged_clusters(lang: str) -> bool:
    """Whether spacy-lookups-data is installed, and has clusters of words of a language."""
    return lang in registry.lookups and _TABLE in registry.lookups.get(lang)


def packaged_clusters(lang: str) -> WordClusters:
    """Load the clusters that spacy-lookups-data has for a language, and cache them as a file.

    RAISES (ValueError): CRF946 without the package, or if it has no clusters for this language.
    """
    if lang not in registry.lookups:
        reason = f"{PACKAGE} is not installed, or has nothing of it: pip install 'spacy-crf[clusters]'"
        raise ValueError(Errors.CRF946.format(lang=lang, reason=reason))
    if _TABLE not in registry.lookups.get(lang):
        reason = f"{PACKAGE} has some of {', '.join(PACKAGED_LANGUAGES)}"
        raise ValueError(Errors.CRF946.format(lang=lang, reason=reason))
    source = registry.lookups.get(lang)[_TABLE]
    file = next((path for path in (Path(source), Path(f"{source}.gz")) if path.is_file()), None)
    if file is None:
        raise ValueError(Errors.CRF946.format(lang=lang, reason=f"{source} is missing"))
    # The package has a million words, which take a second to unpack; a quarter of them has a cluster, and is read in 5 ms
    cached = cache_folder(__file__) / f"{lang}-{file.stat().st_size}-{file.stat().st_mtime_ns}.clusters"
    if cached.is_file():
        with suppress(ValueError):  # damaged
            return read_file(cached)
    words = dict(load_language_data(source))
    clusters = of_lookups(((get_string_id(word), cluster) for word, cluster in words.items() if cluster != 0), PACKAGE)
    with suppress(OSError):  # a read-only installation, or a full disk
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_clusters(cached, clusters)
    return clusters


def is_bits(text: object) -> bool:
    """Whether a value is a path: a text of the characters 0 and 1."""
    return isinstance(text, str) and not set(text) - {"0", "1"}


def _contained(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a path and a longer path that begins with it. Clusters that are the leaves of a tree have no such pairs."""
    # In alphabetical order, such a path is followed by a path that begins with it
    return ((path, longer) for path, longer in pairwise(sorted(set(paths))) if longer.startswith(path))


def _not_readable(source: object, reason: str) -> ValueError:
    return ValueError(Errors.CRF943.format(source=source, reason=reason))


def write_clusters(path: Path, clusters: WordClusters) -> None:
    """Write a file that `read_file` reads."""
    write_whole(path, seal(FORMAT, srsly.msgpack_dumps(clusters.to_dict())))


def read_file(path: Path) -> WordClusters:
    """Read clusters from a file of `spacy crf clusters`, from text in one of the forms of `_read_text`, or from JSON as in
    spacy-lookups-data. Each file may be packed by gzip.

    RAISES (ValueError): CRF943 with the file and the reason, CRF945 for a word in two clusters, CRF501 to CRF508 for a damaged
        file.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        # A ValueError for text that can't be a path
        raise _not_readable(path, str(error)) from error
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise _not_readable(path, f"it can't be unpacked ({error})") from error
    if ".json" in path.suffixes:
        return _read_json(path, data)
    if not data.startswith(FORMAT.magic):
        return _read_text(path, data)
    with unpacking(data):
        content = unseal(FORMAT, data, str(path))
        try:
            return WordClusters.from_dict(unpacked(content))
        except Exception as error:
            # Msgpack raises many kinds, and fields may be missing
            raise ValueError(Errors.CRF508.format(source=path, reason=str(error).rstrip("."))) from error


def _read_json(path: Path, data: bytes) -> WordClusters:
    """Read a JSON object from words to clusters, as in spacy-lookups-data. RAISES (ValueError): CRF943."""
    try:
        table = srsly.json_loads(data.decode("utf8"))
        if not isinstance(table, dict):
            raise ValueError("it is no table of words")
    except (ValueError, RecursionError) as error:
        raise _not_readable(path, str(error)) from error
    return of_lookups(((get_string_id(word), cluster) for word, cluster in table.items()), str(path))


def _read_text(path: Path, data: bytes) -> WordClusters:
    """Read lines whose columns are separated by tabs, or else by blanks:

        word, cluster, perhaps a weight      of ixa-pipes, Clark and Stanford
        path, word, perhaps its count        of wcluster and Koo, if at least half of the lines begin with bits

    Words behind paths are sorted by their counts. For a word in two clusters, the larger weight or count decides.

    RAISES (ValueError): CRF943 for other lines, CRF945 for a word that has the same weight in two clusters.
    """
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        reason = f"it is neither what `spacy crf clusters` writes nor text ({error.reason})"
        raise _not_readable(path, reason) from None
    numbered_lines = [(n, line.rstrip("\r")) for n, line in enumerate(lines, start=1) if not is_blank(line)]
    rows = [(n, line, split_columns(line)) for n, line in numbered_lines]
    if not rows:
        raise _not_readable(path, "it holds no words")
    # Brown clusters write the path first, other programs the word
    has_paths = 2 * sum(is_bits(row[0]) for _, _, row in rows) >= len(rows)
    entries: dict[str, tuple[float, str, int]] = {}  # by word: weight, cluster, number of the line
    for number, line, row in rows:
        first, second = [*row, ""][:2]
        cluster, word = (first, second) if has_paths else (second, first)
        weight = _weight(row[2:])
        if not cluster or not word or (has_paths and not is_bits(cluster)) or not math.isfinite(weight):
            wanted = "bits, a word and its count" if has_paths else "a word, its cluster and perhaps a weight"
            raise _not_readable(path, f"line {number} is {shown(line)}, not {wanted} between tabs")
        other_weight, other, other_line = entries.get(word, (-math.inf, cluster, 0))
        if other != cluster and other_weight == weight:
            raise ValueError(
                Errors.CRF945.format(
                    source=path,
                    line=number,
                    word=shown(word),
                    cluster=shown(cluster),
                    other_line=other_line,
                    other=shown(other),
                )
            )
        if weight > other_weight:
            entries[word] = (weight, cluster, number)
    if has_paths:
        for cluster, longer in _contained(cluster for _, cluster, _ in entries.values()):
            raise _not_readable(path, f"the path {cluster!r} is the beginning of {longer!r}")
        entries = dict(sorted(entries.items(), key=lambda entry: -entry[1][0]))  # the most frequent first
    return WordClusters.of_words((word, cluster) for word, (_, cluster, _) in entries.items())


def _weight(row: list[str]) -> float:
    """The weight in the columns behind a word and its cluster: 0 without such columns, NaN for anything but one number."""
    if not row:
        return 0.0
    try:
        return float(row[0]) if len(row) == 1 else math.nan
    except ValueError:
        return math.nan


def of_lookups(table: Iterable[tuple[int, object]], source: str) -> WordClusters:
    """Clusters in the form of spaCy's table ``lexeme_cluster``.

    table: The hash of each word, and its cluster: a path as bits; or a number whose lowest bit begins the path, and which does
        not say how many zeros end it. The number 0 means no cluster.
    source (str): Where the table comes from, for messages.
    RAISES (ValueError): CRF943 for other values, or without words.
    """
    items = [(word, cluster) for word, cluster in table if cluster != 0]
    for word, cluster in items:
        if not is_bits(cluster) and (not isinstance(cluster, int) or cluster < 0):
            expected = "neither a number that is not negative nor bits"
            raise _not_readable(source, f"the cluster of the word {word} is {shown(cluster)}, {expected}")
    if not items:
        raise _not_readable(source, "no word has a cluster")
    # The lowest bit begins the path, so numbers are read backwards, with zeros that give all paths the same length
    longest = max((cluster.bit_length() for _, cluster in items if isinstance(cluster, int)), default=0)
    path_of = {cluster: cluster if isinstance(cluster, str) else f"{cluster:0{longest}b}"[::-1] for _, cluster in items}
    paths = list(dict.fromkeys(path_of.values()))
    number_of = {path: n for n, path in enumerate(paths)}
    numbers = [number_of[path_of[cluster]] for _, cluster in items]
    return WordClusters.of_hashes([word for word, _ in items], numbers, paths)


def cluster_vectors(
    vectors: Vectors, n: int, source: str, *, on_split: Callable[[], None] = lambda: None
) -> WordClusters:
    """Cluster the words of a table of vectors by the direction of their vectors. Words without a vector, or with a vector of
    zeros, are in no cluster.

    n (int): Number of clusters.
    source (str): Where the vectors come from, for messages.
    on_split (Callable[[], None]): Called after each of the n - 1 splits.
    RAISES (ValueError): CRF948 if the table has no words, or fewer different vectors than clusters.
    """
    data, keys, rows = table_of(vectors)
    norms = np.sqrt(np.einsum("ij,ij->i", data, data))
    used = np.unique(rows[norms[rows] > 0]) if len(rows) else rows
    if vectors.mode == Mode.floret:
        reason = "they are of parts of words (floret), and have no list of words. Give vectors of words"
        raise ValueError(Errors.CRF948.format(what="clusters", source=source, reason=reason))
    if not len(used):
        reason = "all of them are zero" if len(keys) else "there are none"
        raise ValueError(Errors.CRF948.format(what="clusters", source=source, reason=reason))
    paths, numbers = split(data[used] / norms[used, np.newaxis], n, on_split)
    if len(paths) < n or n > MOST_CLUSTERS:
        raise ValueError(Errors.CRF948.format(what=f"{n} clusters", source=source, reason=f"it has {len(paths)} words"))
    cluster_of_row = np.full(len(data), -1, dtype=np.int64)
    cluster_of_row[used] = numbers
    clusters = cluster_of_row[rows]  # several words may share a row
    return WordClusters.of_hashes(keys[clusters >= 0], clusters[clusters >= 0], paths)


def split(points: Floats, n: int, on_split: Callable[[], None] = lambda: None) -> tuple[list[str], NDArray[np.int64]]:
    """Split points until there are n clusters, or no cluster has two different points. Each step splits the cluster with the
    largest sum of squared distances from its mean, by k-means with two centres. The centres begin on either side of the mean, in
    the direction in which the cluster is widest: nothing is random, so the same vectors give the same clusters.

    points (float32[N, D])
    RETURNS (list[str], int64[N]): The path of each cluster, and the cluster of each point.
    """
    # A heap of clusters as (minus sum of squared distances, path, points): the widest is split first
    open_clusters = [(-_spread(points), "", np.arange(len(points)))]
    closed: list[tuple[str, NDArray[np.int64]]] = []  # clusters of equal points
    while open_clusters and len(open_clusters) + len(closed) < n:
        _, path, members = heapq.heappop(open_clusters)
        is_second = _halves(points[members])
        if is_second is None:
            closed.append((path, members))
            continue
        for bit, half in (("0", members[~is_second]), ("1", members[is_second])):
            heapq.heappush(open_clusters, (-_spread(points[half]), path + bit, half))
        on_split()
    leaves = sorted([*closed, *((path, members) for _, path, members in open_clusters)], key=lambda leaf: leaf[0])
    numbers = np.empty(len(points), dtype=np.int64)
    for number, (_, members) in enumerate(leaves):
        numbers[members] = number
    return [path for path, _ in leaves], numbers


def _spread(points: Floats) -> float:
    """Sum of squared distances from the mean."""
    return float(np.square(points - points.mean(axis=0)).sum(dtype=np.float64))


def _halves(points: Floats) -> Optional[NDArray[np.bool_]]:
    """Split points (float32[N, D]) in two by k-means.

    RETURNS (bool[N]): Whether each point is in the second half. None if the points are equal, or nearly so.
    """
    if (points == points[0]).all():
        return None
    centred = points - points.mean(axis=0)
    # The power method finds the direction of the largest variance, from the point that is farthest from the mean
    direction = centred[np.square(centred).sum(axis=1).argmax()]
    for _ in range(_ITERATIONS):
        product = (centred @ direction) @ centred
        length = np.linalg.norm(product)
        if not length:
            break
        direction = product / length
    is_second = centred @ direction > 0
    for _ in range(_ITERATIONS):
        if is_second.all() or not is_second.any():
            return None
        first_centre = centred[~is_second].mean(axis=0)
        second_centre = centred[is_second].mean(axis=0)
        # |x - second|^2 < |x - first|^2
        middle = (second_centre @ second_centre - first_centre @ first_centre) / 2
        is_nearer = centred @ (second_centre - first_centre) > middle
        if (is_nearer == is_second).all():
            break
        is_second = is_nearer
    return is_second if is_second.any() and not is_second.all() else None
