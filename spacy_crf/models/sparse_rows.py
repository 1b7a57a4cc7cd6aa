"""Weights of (feature, column) pairs, where a column is a tag or a pair of tags."""

import threading
from itertools import pairwise
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..features.columns import LexemeTable, TokenColumns
from ..features.extractor import CompiledTemplates
from ..features.feature_index import FeatureIndex
from ..features.kinds import KindFeatures, Kinds
from ..inference.threads import run_chunks
from ..kernels.sparse_rows import (
    add_neighbour_rows,
    add_scores,
    add_template_scores,
    gather_gradient,
    lay_out_slots,
    scatter_gradient,
    scatter_neighbour_rows,
    scatter_template,
    transpose,
)
from ..types import Floats, TemplateRows, TokenFeatures

_NO_VALUES = np.zeros(0, dtype=np.float32)
_CHUNK = 4096  # tokens, or a multiple of it references


class SlotLayout(NamedTuple):
    """Where weights are when they are spread into slots."""

    starts: NDArray[np.int64]  # [F + 1]
    columns: NDArray[np.int32]  # [N] column of each slot
    slot_of_pair: NDArray[np.int64]  # [W]


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

    @property
    def layout(self) -> SlotLayout:
        return SlotLayout(self._slot_starts, self._slot_columns, self._slot_of_pair)

    def slots(self, weights: NDArray) -> Floats:
        """The weights (float[W]) as the kernels add them up."""
        slots = self.zero_slots()
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

    def add_template_scores(
        self, rows: TemplateRows, slots: Floats, scores: Floats, *, place: int = 0, threads: int = 1
    ) -> None:
        """`add_scores` for features that come one per template (int32[M, N]).

        scores (float64[N, O, C] or float64[N, C]), place (int): Which of the O to add to.
        """
        scores = scores.reshape(len(scores), -1, self.n_columns)

        def add(begin: int) -> None:
            end = min(begin + _CHUNK, len(scores))
            add_template_scores(rows, begin, end, self._slot_starts, self._slot_columns, slots, scores, place)

        run_chunks(add, range(0, len(scores), _CHUNK), threads)

    def scatter_templates(
        self, rows: TemplateRows, d_scores: Floats, d_slots: Floats, *, place: int = 0, threads: int = 1
    ) -> None:
        """Adds the gradient of the slots to ``d_slots``; one thread at a time does a template."""
        d_scores = d_scores.reshape(len(d_scores), -1, self.n_columns)

        def scatter(of_template: NDArray[np.int32]) -> None:
            scatter_template(of_template, self._slot_starts, self._slot_columns, d_scores, place, d_slots)

        run_chunks(scatter, rows, threads)

    def zero_slots(self) -> Floats:
        return np.zeros(len(self._slot_columns))

    def weights_of(self, slots: Floats) -> Floats:
        """The entries that belong to weights: float64[W]."""
        return slots[self._slot_of_pair]

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
        self._chunks = _cut(self._starts, 16 * _CHUNK)

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


class KindRows:
    """Weights to scores and back over a fixed corpus whose positions are of few kinds (``features.kinds``)."""

    def __init__(self, kinds: KindFeatures, rows: SparseRows, reach: int):
        self._kinds = kinds
        self._rows = rows
        self._reach = reach
        n_kinds = kinds.rows[0].shape[1] if kinds.rows else 0
        self._shape = (n_kinds, len(kinds.offsets), rows.n_columns)

    def zeros(self) -> Floats:
        return np.zeros(self._shape)

    def score(self, slots: Floats, *, threads: int = 1) -> Floats:
        """Scores of each kind at each offset: float64[U, O, C]."""
        table = self.zeros()
        for place, rows in enumerate(self._kinds.rows):
            self._rows.add_template_scores(rows, slots, table, place=place, threads=threads)
        return table

    def add_scores(self, tokens: Kinds, table: Floats, scores: Floats, *, threads: int = 1) -> None:
        """Adds to ``scores`` (float64[T, C]) those of the kinds around each token."""

        def add(chunk: tuple[int, int]) -> None:
            add_neighbour_rows(tokens.kinds, tokens.starts, *chunk, self._reach, self._kinds.offsets, table, scores)

        run_chunks(add, _cut(tokens.starts, _CHUNK), threads)

    def scatter(self, tokens: Kinds, d_scores: Floats, d_table: Floats, *, threads: int = 1) -> None:
        """Adds the gradient of the kinds' scores to ``d_table``; one thread at a time does an offset."""

        def scatter(place: int) -> None:
            offset = self._kinds.offsets[place]
            scatter_neighbour_rows(tokens.kinds, tokens.starts, self._reach, offset, place, d_scores, d_table)

        run_chunks(scatter, range(len(self._kinds.offsets)), threads)

    def scatter_slots(self, d_table: Floats, d_slots: Floats, *, threads: int = 1) -> None:
        """Adds the gradient of the slots to ``d_slots``."""
        for place, rows in enumerate(self._kinds.rows):
            self._rows.scatter_templates(rows, d_table, d_slots, place=place, threads=threads)


def _cut(starts: NDArray[np.int64], size: int) -> list[tuple[int, int]]:
    """Ranges of rows that hold about ``size`` entries each, the same whatever the number of threads."""
    cuts = np.searchsorted(starts, np.arange(0, starts[-1], size))
    bounds = np.unique(np.concatenate([[0], cuts, [len(starts) - 1]]))
    return list(pairwise(bounds.tolist()))


class LexemeScores:
    """Scores of all templates that read one attribute of one lexeme, summed per lexeme and offset.

    They are the same wherever the word stands, so a window of -2..2 costs five row additions per token, whatever the
    number of templates. Filled as lexemes are met; safe to use from several threads.
    """

    def __init__(self, compiled: CompiledTemplates, single: NDArray[np.bool_], rows: SparseRows, slots: Floats):
        self._rows = rows
        self._slots = slots
        offsets = compiled.part_offsets[compiled.part_starts[:-1]]
        self.offsets = np.unique(offsets[single])
        self._templates = [compiled.only(single & (offsets == offset), items=False) for offset in self.offsets]
        self._reach = compiled.reader.reach
        self._lock = threading.Lock()
        self._table: Optional[LexemeTable] = None
        self._scores = np.zeros((0, len(self.offsets), rows.n_columns), dtype=np.float32)
        self._filled = 0

    def add(self, columns: TokenColumns, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of the lexemes around each token."""
        if len(self.offsets):
            table = self._up_to_date(columns.table)
            n_sequences = len(columns.starts) - 1
            add_neighbour_rows(
                columns.lexemes, columns.starts, 0, n_sequences, self._reach, self.offsets, table, scores
            )

    def _up_to_date(self, table: LexemeTable) -> NDArray[np.float32]:
        with self._lock:
            if table is not self._table:
                self._table, self._filled = table, 0
            size = len(table)
            if size > self._filled:
                if size > len(self._scores):
                    # A new array: other threads may be reading the old one
                    shape = (max(size, 2 * len(self._scores)), *self._scores.shape[1:])
                    grown = np.zeros(shape, dtype=np.float32)
                    grown[: self._filled] = self._scores[: self._filled]
                    self._scores = grown
                self._fill(table, np.arange(self._filled, size, dtype=np.int32))
                self._filled = size
            return self._scores

    def _fill(self, table: LexemeTable, lexemes: NDArray[np.int32]) -> None:
        scores = np.zeros((len(lexemes), len(self.offsets), self._rows.n_columns))
        for place, compiled in enumerate(self._templates):
            rows = compiled.rows_of_positions(table.columns, lexemes, self._rows.index)
            self._rows.add_template_scores(rows, self._slots, scores, place=place)
        self._scores[lexemes[0] : lexemes[-1] + 1] = scores
