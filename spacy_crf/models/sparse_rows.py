"""Weights of (feature, column) pairs, where a column is a tag or a pair of tags."""

import threading
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ..features.columns import LexemeTable
from ..features.extractor import CompiledTemplates
from ..features.feature_index import FeatureIndex
from ..inference.threads import run_chunks
from ..kernels.hashing import compress, hash_features
from ..kernels.sparse_rows import (
    add_neighbour_rows,
    add_scores,
    gather_gradient,
    lay_out_slots,
    scatter_gradient,
    transpose,
)
from ..types import Floats, TokenFeatures

_NO_VALUES = np.zeros(0, dtype=np.float32)
_CHUNK = 4096  # tokens, or a multiple of it references


class SparseRows:
    """Which pairs have a weight, and the two ways through them: weights to scores, gradient of scores to weights.

    index (FeatureIndex): The F features.
    pair_starts (int64[F + 1]), pair_columns (int32[W]): Columns of each feature's weights, in rising order.
    n_columns (int): C.
    """

    def __init__(self, index: FeatureIndex, pair_starts: NDArray, pair_columns: NDArray, n_columns: int):
        self.index = index
        self.pair_starts = pair_starts
        self.pair_columns = pair_columns
        self.n_columns = n_columns
        # Rows with a third of all columns are quicker to add whole
        self.dense_from = max(1, n_columns // 3)
        self._slot_starts, self._slot_columns, self._slot_of_pair = lay_out_slots(
            pair_starts, pair_columns, n_columns, self.dense_from
        )

    @classmethod
    def empty(cls, n_columns: int = 1) -> "SparseRows":
        return cls(FeatureIndex.empty(), np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32), n_columns)

    @property
    def n_weights(self) -> int:
        return len(self.pair_columns)

    def rows_of_pairs(self) -> NDArray[np.int64]:
        """RETURNS (int64[W]): The feature of each weight."""
        return np.repeat(np.arange(len(self.index)), np.diff(self.pair_starts))

    def slots(self, weights: NDArray) -> Floats:
        """The weights (float[W]) as the kernels add them up."""
        slots = np.zeros(len(self._slot_columns))
        slots[self._slot_of_pair] = weights
        return slots

    def add_scores(self, features: TokenFeatures, slots: Floats, scores: Floats, *, threads: int = 1) -> None:
        """Adds to ``scores`` (float64[T, C]) the weights of each token's features."""
        values = _NO_VALUES if features.values is None else features.values
        n_tokens = len(scores)

        def add(begin: int) -> None:
            end = min(begin + _CHUNK, n_tokens)
            add_scores(
                features.rows, values, features.starts, begin, end, self._slot_starts, self._slot_columns, slots, scores
            )

        run_chunks(add, range(0, n_tokens, _CHUNK), threads)

    def scatter(self, features: TokenFeatures, d_scores: Floats) -> Floats:
        """Gradient of the weights: float64[W]."""
        gradient = np.zeros(self.n_weights)
        values = _NO_VALUES if features.values is None else features.values
        scatter_gradient(
            features.rows, values, features.starts, d_scores, self.pair_starts, self.pair_columns, gradient
        )
        return gradient

    def to_dict(self) -> dict[str, Any]:
        widths = np.diff(self.pair_starts)
        return {
            "index": self.index.to_dict(),
            "widths": widths.astype("<u2" if self.n_columns < 1 << 16 else "<u4").tobytes(),
            "columns": self.pair_columns.astype(_column_type(self.n_columns)).tobytes(),
            "n_columns": self.n_columns,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SparseRows":
        n_columns = data["n_columns"]
        widths = np.frombuffer(data["widths"], dtype="<u2" if n_columns < 1 << 16 else "<u4")
        columns = np.frombuffer(data["columns"], dtype=_column_type(n_columns)).astype(np.int32)
        pair_starts = np.append(0, np.cumsum(widths, dtype=np.int64))
        return cls(FeatureIndex.from_dict(data["index"]), pair_starts, columns, n_columns)


def _column_type(n_columns: int) -> str:
    return "<u1" if n_columns <= 1 << 8 else "<u2" if n_columns <= 1 << 16 else "<i4"


class TransposedFeatures:
    """The features of a fixed set of tokens by feature, so that each weight's gradient is summed by one thread."""

    def __init__(self, features: TokenFeatures, rows: SparseRows):
        self._sparse_rows = rows
        values = _NO_VALUES if features.values is None else features.values
        self._tokens, self._values, self._starts = transpose(features.rows, values, features.starts, len(rows.index))
        # Chunks of features with about as many references each
        cuts = np.searchsorted(self._starts, np.arange(0, len(self._tokens), 16 * _CHUNK))
        bounds = np.unique(np.concatenate([cuts, [0, len(rows.index)]]))
        self._chunks = list(zip(bounds[:-1].tolist(), bounds[1:].tolist()))

    def gather(self, d_scores: Floats, gradient: Floats, *, threads: int = 1) -> None:
        """Adds the gradient of the weights to ``gradient`` (float64[W])."""
        rows = self._sparse_rows

        def gather(chunk: tuple[int, int]) -> None:
            gather_gradient(
                self._tokens,
                self._values,
                self._starts,
                *chunk,
                d_scores,
                rows.pair_starts,
                rows.pair_columns,
                rows.dense_from,
                gradient,
            )

        run_chunks(gather, self._chunks, threads)


class LexemeScores:
    """Scores of all templates that read one attribute of one lexeme, summed per lexeme and offset.

    They are the same wherever the word stands, so a window of -2..2 costs five row additions per token, whatever the
    number of templates. Filled as lexemes are met; safe to use from several threads.
    """

    def __init__(self, compiled: CompiledTemplates, single: NDArray[np.bool_], rows: SparseRows, slots: Floats):
        self._compiled = compiled
        self._rows = rows
        self._slots = slots
        offsets = compiled.part_offsets[compiled.part_starts[:-1]]
        self.offsets = np.unique(offsets[single])
        self._templates = [np.flatnonzero(single & (offsets == offset)) for offset in self.offsets]
        self._lock = threading.Lock()
        self._table: Optional[LexemeTable] = None
        self._scores = np.zeros((0, len(self.offsets), rows.n_columns), dtype=np.float32)
        self._filled = 0

    def add(self, columns, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of the lexemes around each token."""
        if len(self.offsets):
            table = self._up_to_date(columns.table)
            reach = self._compiled.reader.reach
            add_neighbour_rows(columns.lexemes, columns.starts, reach, self.offsets, table, scores)

    def _up_to_date(self, table: LexemeTable) -> NDArray[np.float32]:
        with self._lock:
            if table is not self._table:
                self._table, self._filled = table, 0
            size = len(table)
            if size > self._filled:
                if size > len(self._scores):
                    grown = np.zeros((max(size, 2 * len(self._scores)), *self._scores.shape[1:]), dtype=np.float32)
                    grown[: self._filled] = self._scores[: self._filled]
                    self._scores = grown
                self._scores[self._filled : size] = self._score(table, np.arange(self._filled, size, dtype=np.int32))
                self._filled = size
            return self._scores

    def _score(self, table: LexemeTable, lexemes: NDArray[np.int32]) -> Floats:
        """RETURNS (float64[N, O, C])"""
        compiled, n = self._compiled, len(lexemes)
        scores = np.zeros((n, len(self.offsets), self._rows.n_columns))
        for place, templates in enumerate(self._templates):
            hashes = hash_features(
                lexemes,
                table.columns,
                np.zeros((0, 0), dtype=np.uint64),
                np.arange(n + 1),
                compiled.reader.reach,
                compiled.seeds[templates],
                np.arange(len(templates) + 1),
                compiled.part_columns[compiled.part_starts[templates]],
                np.zeros(len(templates), dtype=np.int64),
            )
            rows, starts = compress(self._rows.index.rows(hashes.ravel()), n, len(templates))
            of_offset = np.zeros((n, self._rows.n_columns))
            self._rows.add_scores(TokenFeatures(rows, None, starts), self._slots, of_offset)
            scores[:, place] = of_offset
        return scores
