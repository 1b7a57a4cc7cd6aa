"""A corpus on disk for training: one file of small pieces, from which any range of texts can be read on its own."""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.vocab import Vocab

from ..arrays import of_file
from ..errors import Errors
from ..pipeline.corpora import doc_bin, docs_in
from . import mapped

# largest size of a piece, except for its last text
_TOKENS = 4096
MOST_DOCS = 64


class Pieces:
    """The texts of a corpus, with their annotation and with the predictions of the components before the trained one.

    path (Path): The file of the pieces. An index beside it has their places.
    """

    def __init__(self, path: Path):
        self._path = path
        self._index_path = path.with_name(f"{path.name}.index")

    def write(self, examples: Iterable[Example], known: Optional[dict[str, int]] = None) -> dict[str, int]:
        """Write the pieces. RETURNS (dict): The numbers of texts and tokens, and a checksum of all texts.

        known (dict): The expected result, if the file was written before.
        RAISES (ValueError): CRF475 if the disk has no room for the pieces, CRF472 if the texts differ from those written
            before.
        """
        places: list[list[int]] = []
        check = 0
        with mapped.whole(self._path) as file:
            for piece in _pieces(examples):
                predicted = doc_bin([eg.predicted for eg in piece]).to_bytes()
                reference = doc_bin([eg.reference for eg in piece]).to_bytes()
                n_tokens = sum(len(eg.predicted) for eg in piece)
                places.append([file.tell(), len(predicted), len(reference), len(piece), n_tokens])
                check = zlib.crc32(reference, zlib.crc32(predicted, check))
                file.write(predicted + reference)
            index = np.array(places, dtype=np.int64).reshape(-1, 5)
            counts = {"texts": int(index[:, 3].sum()), "tokens": int(index[:, 4].sum()), "check": check}
            if known not in (None, counts):
                reason = f"its shards were made of other texts: then {known}, now {counts}"
                raise ValueError(Errors.CRF472.format(path=self._path.parent, reason=reason))
            # Inside the block, so that the pieces are not replaced if the index can't be written
            mapped.write(self._index_path, index)
        return counts

    def shard(self, number: int, n: int) -> range:
        """The pieces of one of n shards. Shards are contiguous and have about the same number of tokens."""
        # Shard k begins where k / n of the tokens are reached
        *_, n_tokens = self._index.T
        tokens = np.append(0, np.cumsum(n_tokens))  # before each piece, and in all
        first, after = np.searchsorted(tokens, tokens[-1] * np.array([number, number + 1]) / n)
        # The first and the last shard also have the pieces without tokens at the ends
        return range(int(first) if number else 0, len(tokens) - 1 if number == n - 1 else int(after))

    def read(self, vocab: Vocab, numbers: Iterable[int]) -> Iterator[Example]:
        """Read the texts of some pieces. RAISES (ValueError): CRF472 if the file is damaged."""
        with self._path.open("rb") as file:
            for begin, predicted_size, reference_size, _, _ in self._index[list(numbers)].tolist():
                try:
                    file.seek(begin)
                    predicted = list(docs_in(DocBin().from_bytes(file.read(predicted_size)), vocab))
                    reference = list(docs_in(DocBin().from_bytes(file.read(reference_size)), vocab))
                except Exception as error:
                    # Zlib and msgpack may raise anything
                    raise mapped.damaged(self._path, error) from error
                yield from map(Example, predicted, reference)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def _index(self) -> NDArray[np.int64]:
        """For each piece: its place, the bytes of its predicted and of its reference Docs, its texts, its tokens: int64[P, 5]."""
        index = mapped.read(self._index_path)
        try:
            return of_file("the index", index, np.int64, (None, 5), copied=False)
        except ValueError as error:
            raise mapped.damaged(self._index_path, error) from error


def _pieces(examples: Iterable[Example]) -> Iterator[list[Example]]:
    """Cut texts into pieces of about _TOKENS tokens, and of at most MOST_DOCS texts."""
    piece = []
    size = 0
    for example in examples:
        piece.append(example)
        size += len(example.predicted)
        if size >= _TOKENS or len(piece) == MOST_DOCS:
            yield piece
            piece = []
            size = 0
    if piece:
        yield piece
