"""Static vectors distilled from an encoder (model2vec), one for each piece of its tokenizer. The vector of a word is the mean of
the vectors of its pieces, so every word has one. Numpy suffices to read a folder with ``tokenizer.json``, ``model.safetensors``
and perhaps ``config.json``.
"""

import json
import math
import re
import unicodedata
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Settings

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
        """Whether saved data has all fields, with the right types."""
        types = [str, list, list, str, int, bool, bool, bool]
        n_scores = {"Unigram": len(self.pieces), "WordPiece": 0}.get(self.kind)
        whole = [*map(type, self)] == types and len(self.scores) == n_scores
        whole = whole and -1 <= self.unknown < len(self.pieces)
        return whole and {*map(type, self.pieces)} == {str} and {*map(type, self.scores)} <= {float}


class PieceVectors:
    """Vectors of the pieces of words.

    data (float32[V, D]): Vector of each piece.
    """

    def __init__(self, data: NDArray[np.float32], pieces: Pieces):
        self.data = data
        self.pieces = pieces
        self._rows = {piece: n for n, piece in enumerate(pieces.pieces) if n != pieces.unknown}
        self._longest = max(map(len, self._rows), default=0)

    def get_batch(self, texts: list[str]) -> NDArray[np.float32]:
        """Vectors of words, zeros for words without a known piece. RETURNS (float32[N, D])"""
        found = np.zeros((len(texts), self.data.shape[1]), dtype=np.float32)
        for vector, text in zip(found, texts):
            rows = list(chain.from_iterable(map(self._cut, self._words(text))))
            if rows:
                vector[:] = self.data[rows].mean(axis=0)
        if self.pieces.normalize:
            found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.float32(1e-12))
        return found

    def _words(self, text: str) -> list[str]:
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
        back = [(0, -1)] * (len(word) + 1)
        missing = min(self.pieces.scores) - 10.0
        for end in range(1, len(word) + 1):
            for begin in range(max(0, end - self._longest), end):
                row = self._rows.get(word[begin:end], -1)
                score = self.pieces.scores[row] if row >= 0 else missing if end - begin == 1 else -math.inf
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
    # Some models give a weight to each piece, and let pieces share rows
    # Pieces may share rows
    rows = tensors.get("mapping", np.arange(len(data))).astype(np.int64)
    weights = tensors.get("weights", np.ones(len(rows))).astype(np.float32)
    are_rows = 0 <= rows.min(initial=0) <= rows.max(initial=0) < len(data)
    if not len(pieces.pieces) == len(rows) == len(weights) or not are_rows:
        sizes = f"{len(rows)} vectors and {len(weights)} weights"
        raise ValueError(f"{FILES[0]} has {len(pieces.pieces)} pieces, and {FILES[1]} {sizes} for them")
    return PieceVectors(data.astype(np.float32)[rows] * weights[:, np.newaxis], pieces)


def _pieces(tokenizer: Settings, normalize: bool) -> Pieces:
    """RAISES (ValueError): For a tokenizer of another kind."""
    model = tokenizer.get("model") or {}
    vocab = model.get("vocab")
    kind = model.get("type")
    normalizer = tokenizer.get("normalizer") or {}
    parts = normalizer.get("normalizers", [normalizer])
    berts = [part for part in parts if part.get("type") == "BertNormalizer"]
    lower = any(part.get("type") == "Lowercase" for part in parts) or any(part.get("lowercase", True) for part in berts)
    strips = any(part.get("type") == "StripAccents" for part in parts)
    for part in berts:
        own = part.get("strip_accents")
        strips = strips or (part.get("lowercase", True) if own is None else own)
    how = {"lower": bool(lower), "strip_accents": bool(strips), "normalize": normalize}
    if kind == "Unigram" and isinstance(vocab, list) and vocab:
        unknown = model.get("unk_id")
        names, scores = zip(*vocab)
        return Pieces(kind, list(names), [*map(float, scores)], "", -1 if unknown is None else unknown, **how)
    if kind == "WordPiece" and isinstance(vocab, dict) and sorted(vocab.values()) == list(range(len(vocab))):
        unknown = vocab.get(model.get("unk_token"), -1)
        names = sorted(vocab, key=vocab.__getitem__)
        return Pieces(kind, names, [], model.get("continuing_subword_prefix", "##"), unknown, **how)
    possible = "only WordPiece and Unigram with all of their pieces can be used"
    raise ValueError(f"{FILES[0]} is of the kind {kind!r}, and {possible}")


def _read_tensors(data: bytes) -> dict[str, NDArray]:
    """The arrays of a file of the format safetensors: the length of a header, the header as JSON, and the numbers.

    RAISES (ValueError): For a damaged file.
    """
    behind = 8 + int.from_bytes(data[:8], "little")
    if not 8 < behind <= len(data):
        raise ValueError(f"{FILES[1]} is damaged")
    tensors = {}
    for name, tensor in json.loads(data[8:behind].decode("utf8")).items():
        if name == "__metadata__":
            continue
        begin, end = (behind + offset for offset in tensor["data_offsets"])
        kind = _TYPES.get(tensor["dtype"])
        if kind is None or not behind <= begin <= end <= len(data):
            raise ValueError(f"{FILES[1]} is damaged, or '{name}' is of the type {tensor['dtype']}")
        array = np.frombuffer(data[begin:end], dtype=kind)
        if tensor["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array.reshape(tensor["shape"])
    return tensors
