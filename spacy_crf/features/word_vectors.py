"""Vectors of words, whose numbers are features in templates such as ``vector[-1..1]``. They come from the pipeline, or from a
path or a package that a component names.

A word is looked up as it is written, then in lower case; an unknown word has a vector of zeros, and so no features. With vectors
of parts of words (floret) every word has a vector, the mean of the vectors of its parts.

Initialization chooses a factor for all vectors of a model such that the words of the training data have vectors of a certain mean
length. So the strength of the regularization does not depend on the source of the vectors.
"""

import zlib
from dataclasses import KW_ONLY, dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, Optional, Union

import numpy as np
import spacy
from numpy.typing import NDArray
from spacy.attrs import IDS
from spacy.lexeme import Lexeme
from spacy.strings import StringStore
from spacy.training.initialize import load_vectors_into_model
from spacy.vectors import Mode, Vectors
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, announcements
from ..types import Settings
from ..whole_files import Saved
from .feature_index import find_sorted
from .piece_vectors import FILES, Pieces, PieceVectors, read_piece_vectors

VectorSource = Union[str, Path, Settings]

# The attribute in templates, and the attributes of lexemes to which vectors may belong
VECTOR = "vector"
KEYS = ("orth", "lower", "norm", "shape", "prefix", "suffix")

_BLOCK = 1 << 14  # rows in one computation
# Found on wnut17's dev set with l1 = l2 = 0.05: 42.6 F1, 42.0 with 1 and 41.5 with 3
_LENGTH = 2.0


class FloretSettings(NamedTuple):
    """The settings of floret, which determine how rows make up the vector of a word."""

    minn: int
    maxn: int
    hash_count: int
    hash_seed: int
    bow: str
    eow: str


@dataclass(eq=False)
class WordVectors:
    """A table of vectors, to look words up in; immutable.

    data (float32[R, D]): The rows.
    keys (uint64[N]), rows (int32[N]): Hashes of the words, in rising order, and the row of each; empty with ``parts``.
    parts (Union[FloretSettings, Pieces]): Settings or pieces if the vectors belong to parts of words, or None.
    key (str): The attribute of lexemes by which words are looked up.
    source (int): Checksum of the vectors and settings from which the table was made.
    length (float): Mean length of the vectors after scaling.
    scale (float): Factor that gives them this length; None before it is known.
    """

    data: NDArray[np.float32]
    keys: NDArray[np.uint64]
    rows: NDArray[np.int32]
    _: KW_ONLY
    parts: Union[FloretSettings, Pieces, None] = None
    key: str = "orth"
    source: int = 0
    length: float = 1.0
    scale: Optional[float] = None

    def __post_init__(self) -> None:
        self._by_parts: Union[PieceVectors, Vectors, None] = None
        if isinstance(self.parts, Pieces):
            self._by_parts = PieceVectors(self.data, self.parts)
        elif self.parts is not None:
            floret = self.parts._asdict()
            self._by_parts = Vectors(data=self.data, strings=StringStore(), mode="floret", **floret)

    @property
    def width(self) -> int:
        """Numbers in a vector: D."""
        return self.data.shape[1]

    def __deepcopy__(self, memo: dict) -> "WordVectors":
        return self

    def __reduce__(self) -> tuple:
        return WordVectors.from_dict, (self.to_dict(),)

    def of(self, lexemes: list[Lexeme]) -> NDArray[np.float32]:
        """Vector of each word, zeros for unknown words: float32[V, D]."""
        if self._by_parts is not None:
            texts = list(map(attrgetter(f"{self.key}_"), lexemes))
            found = self._by_parts.get_batch(texts).astype(np.float32)
        else:
            words = np.array(list(map(attrgetter(self.key), lexemes)), dtype=np.uint64)
            rows = find_sorted(self.keys, self.rows, words)
            unknown = np.flatnonzero(rows < 0) if self.key == "orth" else np.zeros(0, dtype=np.int64)
            if len(unknown):
                lower = np.array([lexemes[n].lower for n in unknown.tolist()], dtype=np.uint64)
                rows[unknown] = find_sorted(self.keys, self.rows, lower)
            found = np.where(rows[:, np.newaxis] >= 0, self.data[rows], np.float32(0))
        return found if self.scale is None else found * np.float32(self.scale)

    def scaled(self, words: NDArray[np.float32]) -> "WordVectors":
        """These vectors with a scale, which is computed if it is not known yet.

        words (float32[V, D]): Vectors of the words of the training data.
        RETURNS (WordVectors): New vectors, or these.
        """
        lengths = np.linalg.norm(words.astype(np.float64), axis=1)
        lengths = lengths[lengths > 0]
        if self.scale is not None or not len(lengths):
            return self
        return replace(self, scale=float(np.float32(self.length / lengths.mean())))

    def to_dict(self) -> Saved:
        """Plain values for msgpack."""
        return {
            "width": self.width,
            "data": self.data.astype("<f4").tobytes(),
            "keys": self.keys.astype("<u8").tobytes(),
            "rows": self.rows.astype("<i4").tobytes(),
            "parts": self.parts._asdict() if isinstance(self.parts, Pieces) else self.parts and list(self.parts),
            "key": self.key,
            "source": self.source,
            "length": self.length,
            "scale": self.scale,
        }

    @classmethod
    def from_dict(cls, data: Saved) -> "WordVectors":
        """RAISES (ValueError): CRF509 for damaged vectors."""
        table = np.frombuffer(data["data"], dtype="<f4").astype(np.float32)
        keys = np.frombuffer(data["keys"], dtype="<u8")
        rows = np.frombuffer(data["rows"], dtype="<i4")
        width = data["width"]
        parts = data["parts"]
        scale = data["scale"]
        whole = isinstance(width, int) and width > 0 and len(table) and len(table) % width == 0
        whole = whole and bool(np.isfinite(table).all()) and data["key"] in KEYS and len(keys) == len(rows)
        whole = whole and (scale is None or 0 < scale < np.inf) and bool((keys[1:] > keys[:-1]).all())
        whole = whole and 0 < data["length"] < np.inf
        if isinstance(parts, dict):
            parts = Pieces(**parts)
            whole = whole and parts.are_whole and len(parts.pieces) == len(table) // width
        elif parts is not None:
            parts = FloretSettings(*parts)
            whole = whole and [*map(type, parts)] == [int, int, int, int, str, str]
            whole = whole and 0 <= parts.minn <= parts.maxn < 1 << 31
            whole = whole and 1 <= parts.hash_count <= 4 and parts.hash_seed >= 0
        if not whole or not -1 < rows.min(initial=0) <= rows.max(initial=0) < len(table) // width:
            raise ValueError(
                Errors.CRF509.format(
                    what="the table of vectors",
                    found=f"of {len(table)} numbers, {len(keys)} words and {len(rows)} rows",
                    expected="a whole one",
                )
            )
        given = {name: data[name] for name in ("key", "source", "length", "scale")}
        return cls(table.reshape(-1, width), keys.astype(np.uint64), rows.astype(np.int32), parts=parts, **given)


def table_of(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64]]:
    """RETURNS (float32[R, D], uint64[N], int64[N]): All rows; the hashes of the words with a row, and the row of each."""
    data = vectors.data.get() if hasattr(vectors.data, "get") else vectors.data
    keys = np.fromiter(vectors.key2row, dtype=np.uint64, count=len(vectors.key2row))
    rows = np.fromiter(vectors.key2row.values(), dtype=np.int64, count=len(keys))
    return np.ascontiguousarray(data, dtype=np.float32), keys[rows >= 0], rows[rows >= 0]


def make_vectors(given: Union[Vectors, PieceVectors], dims: Optional[int], length: float, source: str) -> WordVectors:
    """The table that a model keeps, from the vectors of a pipeline.

    dims (int): Numbers in a vector of the table: coordinates on the axes along which the rows are longest (the first right
        singular vectors). None to keep the numbers as they are.
    length (float): See `WordVectors`.
    source (str): Where the vectors come from, for messages.
    RAISES (ValueError): CRF803 if the vectors cannot be used, or have fewer numbers than `dims`.
    """
    key = "orth"
    parts = None
    if isinstance(given, PieceVectors):
        data = given.data
        keys = np.zeros(0, np.uint64)
        rows = np.zeros(0, np.int32)
        parts = given.pieces
    elif isinstance(given, Vectors):
        key = next(name for name, number in IDS.items() if number == given.attr).lower()
        # Without words if the vectors are of parts of words
        data, keys, rows = table_of(given)
        order = np.argsort(keys)
        keys = keys[order]
        rows = rows[order].astype(np.int32)
        if given.mode == Mode.floret:
            parts = FloretSettings(*(getattr(given, name) for name in FloretSettings._fields))
    else:
        raise ValueError(Errors.CRF803.format(source=source, reason=f"they are of the class {type(given).__name__}"))
    width = data.shape[1]
    used = data if parts is not None else data[rows]
    reason = None
    if key not in KEYS:
        reason = f"they are looked up by {key}, which is no attribute of words"
    elif not used.size:
        reason = "there are none"
    elif not np.isfinite(used).all():
        reason = "some are no finite numbers"
    elif not used.any():
        reason = "all of them are zero"
    elif dims is not None and dims > width:
        reason = f"{width} numbers can't be reduced to {dims}"
    if reason is not None:
        raise ValueError(Errors.CRF803.format(source=source, reason=reason))
    # Equal vectors with equal settings give the same table, which a model then keeps
    check = zlib.crc32(repr((dims, length, key, *(parts if isinstance(parts, Pieces) else ()))).encode("utf8"))
    for array in (data, keys, rows):
        check = zlib.crc32(np.ascontiguousarray(array).data, check)
    if dims is not None and dims < width:
        data = _reduced(data, used if parts is not None else data[np.unique(rows)], dims)
    return WordVectors(data, keys, rows, parts=parts, key=key, source=check, length=length)


def _reduced(data: NDArray[np.float32], used: NDArray[np.float32], dims: int) -> NDArray[np.float32]:
    """The coordinates of all rows on the axes along which the used rows are longest."""
    # The right singular vectors of the rows are the eigenvectors of data.T @ data
    products = np.zeros((data.shape[1], data.shape[1]))
    for begin in range(0, len(used), _BLOCK):
        block = used[begin : begin + _BLOCK].astype(np.float64)
        products += block.T @ block
    _, axes = np.linalg.eigh(products)
    axes = axes[:, : -dims - 1 : -1]
    # The sign of an axis is arbitrary: make its largest number positive
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dims)])
    reduced = [data[begin : begin + _BLOCK].astype(np.float64) @ axes for begin in range(0, len(data), _BLOCK)]
    return np.concatenate(reduced).astype(np.float32)


def read_vectors(
    given: Optional[VectorSource], known: Optional[WordVectors], vocab: Vocab, *, name: str
) -> Optional[WordVectors]:
    """Read the vectors that a config names, or else the vectors of the pipeline. The model keeps its vectors if there are no
    others, or if the others are equal.

    known (WordVectors): The model's vectors.
    name (str): Name of the component, for messages.
    RETURNS (WordVectors): The vectors, or None.
    RAISES (ValueError): CRF020, CRF701 or CRF803 for vectors that can't be read.
    """
    possible = {
        "path": lambda path: path is None or checks.is_path(path),
        "dims": checks.is_optional_count,
        "length": lambda length: type(length) in (int, float) and 0 < length < np.inf,
    }
    must = "the path or name of a pipeline with vectors, or a table with 'path' (by default that of [initialize] vectors), "
    must += "'dims' (how many numbers a vector is reduced to) and 'length' (the mean length of the vectors)"
    settings = checks.path_and_settings(f"[initialize.components.{name}]", "vectors", given, possible, must)
    if settings["path"] is None:
        found = vocab.vectors
        source = "the pipeline ([initialize] vectors)"
        if isinstance(found, Vectors) and not found.shape[0]:
            return known
    else:
        source = str(settings["path"])
        if known is not None and not Path(source).exists() and not spacy.util.is_package(source):
            announcements.info("Component '%s': the vectors are those of the model: nothing is at %s", name, source)
            return known
        found = load_vectors(source, f"[initialize.components.{name}] vectors = {source}")
    made = make_vectors(found, settings.get("dims"), float(settings.get("length", _LENGTH)), source)
    if known is not None and made.source == known.source:
        return known
    words = "words by their parts" if made.parts else f"{len(made.keys)} words"
    announcements.info("%s: vectors of %s, of %d numbers", name, words, made.width)
    return made


def load_vectors(path: str, place: str) -> Union[Vectors, PieceVectors]:
    """Load the vectors of a pipeline, or of a folder that `Vectors.to_disk` or model2vec wrote.

    place (str): Where the path is given, for messages.
    RAISES (ValueError): CRF701.
    """
    try:
        if all((Path(path) / name).is_file() for name in FILES):
            return read_piece_vectors(Path(path))
        for folder in (Path(path), Path(path) / "vocab"):
            if (folder / "vectors").is_file():
                return Vectors().from_disk(folder, exclude=["strings"])
        nlp = spacy.blank("xx")
        load_vectors_into_model(nlp, path)
        return nlp.vocab.vectors
    except Exception as error:
        # spaCy, numpy and msgpack raise many kinds of errors
        raise ValueError(
            Errors.CRF701.format(
                place=place,
                reason=f"{error} Give the path or name of a pipeline with vectors, such as `spacy crf vectors` makes",
            )
        ) from error
