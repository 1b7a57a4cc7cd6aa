"""Vectors of words, whose numbers are features in templates such as ``vector[-1..1]``. They come from the pipeline, or from a
path or a package that a component names.

A word is looked up as it is written, then in lower case; an unknown word has a vector of zeros, and so no features. With vectors
of parts of words (floret) every word has a vector, the mean of the vectors of its parts.

Initialization chooses a factor for all vectors of a model such that the words of the training data have vectors of a certain mean
length. So the strength of the regularization does not depend on the source of the vectors.

A folder that model2vec wrote has static vectors distilled from an encoder, one for each piece of its tokenizer. The vector of a
word is the mean of the vectors of its pieces, so every word has one. Numpy suffices to read ``tokenizer.json``,
``model.safetensors`` and perhaps ``config.json``.
"""

import json
import math
import re
import unicodedata
import zlib
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain
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

FILES = ("tokenizer.json", "model.safetensors")
_LONGEST = 100  # characters of a word, as in BERT's tokenizer
_WORD = re.compile(r"\w+|[^\w\s]")
_BEGIN = "\u2581"  # marks the beginning of a word in pieces of a unigram model
# BF16 is the upper half of a float32
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_TYPES |= {"I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}


class Pieces(NamedTuple):
    """The pieces of a tokenizer, in the order of their rows, and the settings for splitting words into them."""

    kind: str  # WordPiece, or Unigram
    pieces: list[str]
    scores: list[float]  # logarithms of the probabilities, for a unigram model
    prefix: str  # marks pieces of WordPiece that do not begin a word
    unknown: int  # piece for unknown characters, -1 if there is none
    lower: bool
    strip_accents: bool
    normalize: bool  # whether vectors of words are scaled to length 1

    @property
    def are_whole(self) -> bool:
        """Whether the fields, which may come from a damaged file, have the right types and fit together."""
        types = [str, list, list, str, int, bool, bool, bool]  # of the fields, in their order
        n_scores = {"Unigram": len(self.pieces), "WordPiece": 0}.get(self.kind)
        return (
            [*map(type, self)] == types
            and len(self.scores) == n_scores
            and -1 <= self.unknown < len(self.pieces)
            and {*map(type, self.pieces)} == {str}
            and {*map(type, self.scores)} <= {float}
        )


class PieceVectors:
    """Vectors of the pieces of words, from which vectors of words are made.

    data (float32[V, D]): Vector of each piece.
    pieces (Pieces): The pieces, and how words are split into them.
    """

    def __init__(self, data: NDArray[np.float32], pieces: Pieces):
        self.data = data
        self.pieces = pieces
        self._rows = {piece: n for n, piece in enumerate(pieces.pieces) if n != pieces.unknown}
        self._longest = max(map(len, self._rows), default=0)

    def get_batch(self, texts: list[str]) -> NDArray[np.float32]:
        """Vectors of words, zeros for words without a known piece. RETURNS (float32[N, D])"""
        vectors = np.zeros((len(texts), self.data.shape[1]), dtype=np.float32)
        for vector, text in zip(vectors, texts):
            rows = list(chain.from_iterable(map(self._cut, self._words(text))))
            if rows:
                vector[:] = self.data[rows].mean(axis=0)
        if self.pieces.normalize:
            # Vectors of zeros stay zero
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32(1e-12))
        return vectors

    def _words(self, text: str) -> list[str]:
        """Normalize a text, and split it into the words that the tokenizer cuts into pieces."""
        text = text.lower() if self.pieces.lower else text
        if self.pieces.strip_accents:
            text = "".join(c for c in unicodedata.normalize("NFD", text) if unicodedata.category(c) != "Mn")
        if self.pieces.kind == "Unigram":
            return [_BEGIN + unicodedata.normalize("NFKC", text)]
        return _WORD.findall(text)

    def _cut(self, word: str) -> list[int]:
        """Rows of the pieces of a word; empty if one of its pieces is unknown."""
        if len(word) > _LONGEST:
            return []
        return self._likeliest(word) if self.pieces.kind == "Unigram" else self._greedy(word)

    def _greedy(self, word: str) -> list[int]:
        """Repeatedly take the longest piece with which the rest of the word begins (Schuster & Nakajima 2012)."""
        begin = 0
        rows = []
        while begin < len(word):
            prefix = self.pieces.prefix if begin else ""
            ends = range(min(len(word), begin + self._longest), begin, -1)
            end = next((end for end in ends if prefix + word[begin:end] in self._rows), None)
            if end is None:
                return []
            rows.append(self._rows[prefix + word[begin:end]])
            begin = end
        return rows

    def _likeliest(self, word: str) -> list[int]:
        """The most probable pieces of a unigram model (Kudo 2018, section 3.2). Characters without a piece are left out."""
        # best[end] = max_begin best[begin] + score of word[begin:end]
        best = [0.0] + [-math.inf] * len(word)
        back = [(0, -1)] * (len(word) + 1)  # begin and row of the last piece of word[:end]
        # As SentencePiece does, so that a character without a piece is never better than a piece
        missing = min(self.pieces.scores) - 10.0
        for end in range(1, len(word) + 1):
            for begin in range(max(0, end - self._longest), end):
                row = self._rows.get(word[begin:end], -1)
                if row >= 0:
                    score = self.pieces.scores[row]
                elif end - begin == 1:
                    score = missing
                else:
                    continue
                if best[begin] + score > best[end]:
                    best[end] = best[begin] + score
                    back[end] = (begin, row)
        rows = []
        end = len(word)
        while end:
            end, row = back[end]
            rows.append(row)
        return [row for row in rows[::-1] if row >= 0]


def read_piece_vectors(folder: Path) -> PieceVectors:
    """Read a folder that model2vec wrote.

    RAISES (ValueError, OSError): For unusable files, with the reason.
    """
    tokenizer = json.loads((folder / FILES[0]).read_text(encoding="utf8"))
    config = folder / "config.json"
    normalize = bool(json.loads(config.read_text(encoding="utf8")).get("normalize")) if config.is_file() else False
    tensors = _read_tensors((folder / FILES[1]).read_bytes())
    pieces = _pieces(tokenizer, normalize)
    if not pieces.are_whole:
        raise ValueError(
            f"{FILES[0]} has pieces or scores that are no texts or numbers, or an unknown piece beyond them"
        )
    data = tensors.get("embeddings")
    if data is None or data.ndim != 2:
        raise ValueError(f"{FILES[1]} has no matrix 'embeddings', but {', '.join(tensors) or 'nothing'}")
    # Some models let pieces share rows, and give each piece a weight
    rows = tensors.get("mapping", np.arange(len(data))).astype(np.int64)
    weights = tensors.get("weights", np.ones(len(rows))).astype(np.float32)
    are_rows = 0 <= rows.min(initial=0) <= rows.max(initial=0) < len(data)
    if not len(pieces.pieces) == len(rows) == len(weights) or not are_rows:
        sizes = f"{len(rows)} vectors and {len(weights)} weights"
        raise ValueError(f"{FILES[0]} has {len(pieces.pieces)} pieces, and {FILES[1]} {sizes} for them")
    return PieceVectors(data.astype(np.float32)[rows] * weights[:, np.newaxis], pieces)


def _pieces(tokenizer: Settings, normalize: bool) -> Pieces:
    """The pieces of a tokenizer, from its file ``tokenizer.json``.

    normalize (bool): Whether vectors of words are scaled to length 1.
    RAISES (ValueError): For a tokenizer that is neither WordPiece nor Unigram.
    """
    model = tokenizer.get("model") or {}
    vocab = model.get("vocab")
    kind = model.get("type")
    normalizer = tokenizer.get("normalizer") or {}
    lower = False
    strips = False
    for part in normalizer.get("normalizers", [normalizer]):
        step = part.get("type")
        bert_lower = step == "BertNormalizer" and part.get("lowercase", True)
        # BERT's normalizer strips accents if it makes lower case, unless it says otherwise
        bert_strips = step == "BertNormalizer" and part.get("strip_accents")
        lower = lower or step == "Lowercase" or bert_lower
        strips = strips or step == "StripAccents" or (bert_lower if bert_strips is None else bert_strips)
    settings = {"lower": bool(lower), "strip_accents": bool(strips), "normalize": normalize}
    if kind == "Unigram" and isinstance(vocab, list) and vocab:
        unknown = model.get("unk_id")
        names, scores = zip(*vocab)
        return Pieces(kind, list(names), [*map(float, scores)], "", -1 if unknown is None else unknown, **settings)
    # The values of a WordPiece vocabulary are the rows of the pieces
    if kind == "WordPiece" and isinstance(vocab, dict) and sorted(vocab.values()) == list(range(len(vocab))):
        unknown = vocab.get(model.get("unk_token"), -1)
        names = sorted(vocab, key=vocab.__getitem__)
        return Pieces(kind, names, [], model.get("continuing_subword_prefix", "##"), unknown, **settings)
    possible = "only WordPiece and Unigram with all of their pieces can be used"
    raise ValueError(f"{FILES[0]} is of the kind {kind!r}, and {possible}")


def _read_tensors(data: bytes) -> dict[str, NDArray]:
    """The arrays of a file of the format safetensors: the length of a header, the header as JSON, and the numbers.

    RAISES (ValueError): For a damaged file.
    """
    header_end = 8 + int.from_bytes(data[:8], "little")
    if not 8 < header_end <= len(data):
        raise ValueError(f"{FILES[1]} is damaged")
    tensors = {}
    for name, tensor in json.loads(data[8:header_end].decode("utf8")).items():
        if name == "__metadata__":
            continue
        begin, end = (header_end + offset for offset in tensor["data_offsets"])
        dtype = _TYPES.get(tensor["dtype"])
        if dtype is None or not header_end <= begin <= end <= len(data):
            raise ValueError(f"{FILES[1]} is damaged, or '{name}' is of the type {tensor['dtype']}")
        array = np.frombuffer(data[begin:end], dtype=dtype)
        if tensor["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array.reshape(tensor["shape"])
    return tensors


VectorSource = Union[str, Path, Settings]

# The attribute in templates, and the attributes of lexemes to which vectors may belong
VECTOR = "vector"
KEYS = ("orth", "lower", "norm", "shape", "prefix", "suffix")

_BLOCK = 1 << 14  # rows in one computation
# Found on wnut17's dev set with l1 = l2 = 0.05: 42.6 F1, 42.0 with 1 and 41.5 with 3
_LENGTH = 2.0


class FloretSettings(NamedTuple):
    """How floret makes the vector of a word from rows: settings under the names that spaCy's `Vectors` gives them."""

    minn: int  # characters of the shortest n-grams
    maxn: int  # characters of the longest n-grams
    hash_count: int  # rows of each n-gram
    hash_seed: int
    bow: str  # marks the beginning of a word
    eow: str  # marks the end of a word


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
            vectors = self._by_parts.get_batch(texts).astype(np.float32)
        else:
            words = np.array(list(map(attrgetter(self.key), lexemes)), dtype=np.uint64)
            rows = find_sorted(self.keys, self.rows, words)
            # Words that are unknown as written are looked up in lower case
            unknown = np.flatnonzero(rows < 0) if self.key == "orth" else np.zeros(0, dtype=np.int64)
            if len(unknown):
                lower = np.array([lexemes[n].lower for n in unknown.tolist()], dtype=np.uint64)
                rows[unknown] = find_sorted(self.keys, self.rows, lower)
            vectors = np.where(rows[:, np.newaxis] >= 0, self.data[rows], np.float32(0))
        return vectors if self.scale is None else vectors * np.float32(self.scale)

    def scaled(self, words: NDArray[np.float32]) -> "WordVectors":
        """These vectors with the factor `scale` that gives the vectors of words the mean length `length`.

        words (float32[V, D]): Vectors of the words of the training data.
        RETURNS (WordVectors): New vectors; or these, if they have a scale, or no word has a vector.
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
        """The vectors that `to_dict` saved. RAISES (ValueError): CRF509 for damaged vectors."""
        table = np.frombuffer(data["data"], dtype="<f4").astype(np.float32)
        keys = np.frombuffer(data["keys"], dtype="<u8")
        rows = np.frombuffer(data["rows"], dtype="<i4")
        width = data["width"]
        parts = data["parts"]
        settings = {name: data[name] for name in ("key", "source", "length", "scale")}
        scale = settings["scale"]
        is_valid = (
            isinstance(width, int)
            and width > 0
            and len(table)
            and len(table) % width == 0
            and bool(np.isfinite(table).all())
            and len(keys) == len(rows)
            and bool((keys[1:] > keys[:-1]).all())
            and -1 < rows.min(initial=0) <= rows.max(initial=0) < len(table) // width
            and settings["key"] in KEYS
            and 0 < settings["length"] < np.inf
            and (scale is None or 0 < scale < np.inf)
        )
        if isinstance(parts, dict):
            parts = Pieces(**parts)
            is_valid = is_valid and parts.are_whole and len(parts.pieces) == len(table) // width
        elif parts is not None:
            parts = FloretSettings(*parts)
            is_valid = (
                is_valid
                and [*map(type, parts)] == [int, int, int, int, str, str]
                and 0 <= parts.minn <= parts.maxn < 1 << 31
                and 1 <= parts.hash_count <= 4
                and parts.hash_seed >= 0
            )
        if not is_valid:
            raise ValueError(
                Errors.CRF509.format(
                    what="the table of vectors",
                    found=f"of {len(table)} numbers, {len(keys)} words and {len(rows)} rows",
                    expected="a whole one",
                )
            )
        return cls(table.reshape(-1, width), keys.astype(np.uint64), rows.astype(np.int32), parts=parts, **settings)


def table_of(vectors: Vectors) -> tuple[NDArray[np.float32], NDArray[np.uint64], NDArray[np.int64]]:
    """The numbers of spaCy's vectors as arrays in main memory.

    RETURNS (float32[R, D], uint64[N], int64[N]): All rows; the hashes of the words that have a row; and the row of each word.
    """
    # On a GPU, the data is an array of cupy
    data = vectors.data.get() if hasattr(vectors.data, "get") else vectors.data
    keys = np.fromiter(vectors.key2row, dtype=np.uint64, count=len(vectors.key2row))
    rows = np.fromiter(vectors.key2row.values(), dtype=np.int64, count=len(keys))
    return np.ascontiguousarray(data, dtype=np.float32), keys[rows >= 0], rows[rows >= 0]


def make_vectors(vectors: Union[Vectors, PieceVectors], dims: Optional[int], length: float, source: str) -> WordVectors:
    """Make the table of vectors that a model keeps.

    vectors (Union[Vectors, PieceVectors]): The vectors of a pipeline, or of a folder that model2vec wrote.
    dims (int): Numbers in a vector of the table: coordinates on the axes along which the rows are longest (the first right
        singular vectors). None to keep the numbers as they are.
    length (float): Mean length of the vectors after scaling.
    source (str): Where the vectors come from, for messages.
    RAISES (ValueError): CRF803 if the vectors cannot be used, or have fewer numbers than `dims`.
    """
    key = "orth"
    parts = None
    if isinstance(vectors, PieceVectors):
        data = vectors.data
        keys = np.zeros(0, np.uint64)
        rows = np.zeros(0, np.int32)
        parts = vectors.pieces
    elif isinstance(vectors, Vectors):
        key = next(name for name, number in IDS.items() if number == vectors.attr).lower()
        # Vectors of parts of words (floret) come without words
        data, keys, rows = table_of(vectors)
        order = np.argsort(keys)
        keys = keys[order]
        rows = rows[order].astype(np.int32)
        if vectors.mode == Mode.floret:
            parts = FloretSettings(*(getattr(vectors, name) for name in FloretSettings._fields))
    else:
        raise ValueError(Errors.CRF803.format(source=source, reason=f"they are of the class {type(vectors).__name__}"))
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
    # A model keeps its table if the vectors and settings have the checksum of the vectors and settings that it was made of
    settings = (dims, length, key, *(parts if isinstance(parts, Pieces) else ()))
    checksum = zlib.crc32(repr(settings).encode("utf8"))
    for array in (data, keys, rows):
        checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
    if dims is not None and dims < width:
        # Each row counts once, even if words share it
        data = _reduced(data, used if parts is not None else data[np.unique(rows)], dims)
    return WordVectors(data, keys, rows, parts=parts, key=key, source=checksum, length=length)


def _reduced(data: NDArray[np.float32], used: NDArray[np.float32], dims: int) -> NDArray[np.float32]:
    """The coordinates of all rows of `data` on the `dims` axes along which the `used` rows are longest: float32[R, dims]."""
    # The right singular vectors of the rows are the eigenvectors of data.T @ data
    products = np.zeros((data.shape[1], data.shape[1]))
    for begin in range(0, len(used), _BLOCK):
        block = used[begin : begin + _BLOCK].astype(np.float64)
        products += block.T @ block
    _, axes = np.linalg.eigh(products)
    # The last columns belong to the largest eigenvalues; the largest first
    axes = axes[:, : -dims - 1 : -1]
    # The sign of an axis is arbitrary: make its largest number positive
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dims)])
    reduced = [data[begin : begin + _BLOCK].astype(np.float64) @ axes for begin in range(0, len(data), _BLOCK)]
    return np.concatenate(reduced).astype(np.float32)


def read_vectors(
    source: Optional[VectorSource], current: Optional[WordVectors], vocab: Vocab, *, name: str
) -> Optional[WordVectors]:
    """Read the vectors that a config names.

    source (VectorSource): What the config names. None, or a table without a path, to read the vectors of the pipeline.
    current (WordVectors): The model's vectors. They stay if nothing is at the path, the pipeline has no vectors, or the vectors
        and settings that were read are those of which the model's vectors were made.
    vocab (Vocab): The pipeline's vocab.
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
    settings = checks.path_and_settings(f"[initialize.components.{name}]", "vectors", source, possible, must)
    if settings["path"] is None:
        loaded = vocab.vectors
        path = "the pipeline ([initialize] vectors)"
        if isinstance(loaded, Vectors) and not loaded.shape[0]:
            return current
    else:
        path = str(settings["path"])
        if current is not None and not Path(path).exists() and not spacy.util.is_package(path):
            announcements.info("Component '%s': the vectors are those of the model: nothing is at %s", name, path)
            return current
        loaded = load_vectors(path, f"[initialize.components.{name}] vectors = {path}")
    vectors = make_vectors(loaded, settings.get("dims"), float(settings.get("length", _LENGTH)), path)
    if current is not None and vectors.source == current.source:
        return current
    words = "words by their parts" if vectors.parts else f"{len(vectors.keys)} words"
    announcements.info("%s: vectors of %s, of %d numbers", name, words, vectors.width)
    return vectors


def load_vectors(path: str, place: str) -> Union[Vectors, PieceVectors]:
    """Load the vectors of a pipeline, or of a folder that `Vectors.to_disk` or model2vec wrote.

    path (str): Path or name of the pipeline, or path of the folder.
    place (str): Which setting names the path, for messages.
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
