"""Weights of (feature, column) pairs, where a column is a tag or a pair of tags."""

import math
import threading
from collections.abc import Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..features.columns import TokenColumns
from ..features.extractor import CompiledTemplates
from ..features.feature_index import FeatureIndex, HashedIndex, index_from_dict, pack_numbers, unpack_numbers
from ..features.kinds import KindFeatures
from ..features.lexemes import LexemeTable
from ..inference.threads import run_chunks
from ..kernels.sparse_rows import (
    add_kind_rows,
    add_lexeme_rows,
    add_references,
    add_scores,
    lay_out_slots,
    scatter_gradient,
    scatter_kind_rows,
    scatter_references,
)
from ..types import Floats, TemplateRows, TokenFeatures
from .kept import check_equal

_NO_VALUES = np.zeros(0, dtype=np.float32)
_CHUNK = 4096  # tokens
_ASSUMED = 30  # how often each feature was met, where the model was saved by a version that did not count


class Part(NamedTuple):
    """Of a gradient that several threads add to: the rows whose number, masked, is that of the part."""

    number: int
    mask: int


ALL = Part(0, 0)


def parts_for(threads: int) -> list[Part]:
    """As many parts as threads, or up to twice."""
    mask = (1 << (threads - 1).bit_length()) - 1
    return [Part(number, mask) for number in range(mask + 1)]


class SlotLayout(NamedTuple):
    """Where weights are when they are spread into slots."""

    starts: NDArray[np.int64]  # [F + 1]
    columns: NDArray[np.int32]  # [N] column of each slot
    slot_of_pair: NDArray[np.int64]  # [W]


class SparseRows:
    """Which pairs have a weight, and the two ways through them: weights to scores, gradient of scores to weights.

    index (FeatureIndex or HashedIndex): The F features.
    pair_starts (int64[F + 1]), pair_columns (int32[W]): Columns of each feature's weights, in rising order.
    n_columns (int): C.
    counts (int64[F]): How often training met each feature; zeros if None.
    """

    def __init__(
        self,
        index: FeatureIndex | HashedIndex,
        pair_starts: NDArray,
        pair_columns: NDArray,
        n_columns: int,
        counts: Optional[NDArray[np.int64]] = None,
    ):
        self.index = index
        self.pair_starts = pair_starts
        self.pair_columns = pair_columns
        self.n_columns = n_columns
        self.counts = np.zeros(len(index), dtype=np.int64) if counts is None else counts
        # Rows with a third of all columns are quicker to add whole
        threshold = max(1, n_columns // 3)
        self._slot_starts, self._slot_columns, self._slot_of_pair = lay_out_slots(
            pair_starts, pair_columns, n_columns, threshold
        )
        # Row -1, no feature, is the last
        narrow = len(self._slot_columns) <= np.iinfo(np.int32).max
        first_slots = np.where(np.diff(self._slot_starts) > 0, self._slot_starts[:-1], -1)
        self._first_slots = np.append(first_slots, -1).astype(np.int32 if narrow else np.int64)

    @classmethod
    def empty(cls, n_columns: int = 1) -> "SparseRows":
        return cls(FeatureIndex.empty(), np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32), n_columns)

    @classmethod
    def full(
        cls, index: FeatureIndex | HashedIndex, n_columns: int, counts: Optional[NDArray[np.int64]] = None
    ) -> "SparseRows":
        """A weight for every pair."""
        starts = np.arange(len(index) + 1, dtype=np.int64) * n_columns
        return cls(index, starts, np.tile(np.arange(n_columns, dtype=np.int32), len(index)), n_columns, counts)

    def resized(self, n_columns: int, columns: NDArray[np.int64], added: Iterable[int] = ()) -> "SparseRows":
        """The same features with more columns.

        columns (int64[C]): Number of each column among the new ones; they keep their order.
        added (Iterable[int]): New columns for which every feature gets a weight.
        """
        added, n_rows = np.asarray(list(added), dtype=np.int64), len(self.index)
        row = np.concatenate([self.rows_of_pairs(), np.repeat(np.arange(n_rows), len(added))])
        column = np.concatenate([columns[self.pair_columns], np.tile(added, n_rows)])
        order = np.lexsort((column, row)) if len(added) else slice(None)
        starts = np.append(0, np.cumsum(np.bincount(row, minlength=n_rows))).astype(np.int64)
        return SparseRows(self.index, starts, column[order].astype(np.int32), n_columns, self.counts)

    @property
    def n_weights(self) -> int:
        return len(self.pair_columns)

    def places(self, before: "SparseRows", columns: Optional[NDArray[np.int64]] = None) -> NDArray[np.int64]:
        """Where the weights of earlier rows are, all of which are here: int64[W before].

        columns (int64[C before]): Number that each of their columns has here; the same if None.
        """
        row = self.index.rows_of(before.index)[before.rows_of_pairs()]
        column = before.pair_columns if columns is None else columns[before.pair_columns]
        here = self.rows_of_pairs() * self.n_columns + self.pair_columns
        return np.searchsorted(here, row * self.n_columns + column)

    def rows_of_pairs(self) -> NDArray[np.int64]:
        """RETURNS (int64[W]): The feature of each weight."""
        return np.repeat(np.arange(len(self.index)), np.diff(self.pair_starts))

    @property
    def layout(self) -> SlotLayout:
        columns = np.where(self._slot_columns < 0, -1 - self._slot_columns, self._slot_columns)
        return SlotLayout(self._slot_starts, columns % np.int32(self.n_columns), self._slot_of_pair)

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

    def first_slots(self, rows: TemplateRows) -> NDArray[np.integer]:
        """Where the weights of each feature begin (int[M, N]), -1 for none: what ``add_references`` takes."""
        return self._first_slots[rows]

    def add_references(
        self, first_slots: NDArray[np.integer], slots: Floats, scores: Floats, *, place: int = 0, threads: int = 1
    ) -> None:
        """`add_scores` for features that come one per template (int[M, N]).

        scores (float64[N, O, C] or float64[N, C]), place (int): Which of the O to add to.
        """
        scores = scores if scores.ndim == 3 else scores[:, np.newaxis]

        def add(begin: int) -> None:
            end = min(begin + _CHUNK, len(scores))
            add_references(first_slots, begin, end, self._slot_columns, slots, scores, place)

        run_chunks(add, range(0, len(scores), _CHUNK), threads)

    def scatter_references(
        self, first_slots: NDArray[np.integer], d_scores: Floats, d_slots: Floats, *, place: int = 0, part: Part = ALL
    ) -> None:
        """Adds the gradient of the slots to ``d_slots``."""
        d_scores = d_scores if d_scores.ndim == 3 else d_scores[:, np.newaxis]
        scatter_references(first_slots, self._slot_columns, d_scores, place, *part, d_slots)

    def zero_slots(self) -> Floats:
        return np.zeros(len(self._slot_columns))

    def weights_of(self, slots: Floats) -> Floats:
        """The entries that belong to weights: float64[W]."""
        return slots[self._slot_of_pair]

    def scatter(
        self, features: TokenFeatures, d_scores: Floats, gradient: Optional[Floats] = None, *, part: Part = ALL
    ) -> Floats:
        """Adds the gradient of the weights to ``gradient`` (float64[W]), or to zeros, and returns it."""
        gradient = np.zeros(self.n_weights) if gradient is None else gradient
        values = _NO_VALUES if features.values is None else features.values
        scatter_gradient(
            features.rows,
            values,
            features.starts,
            d_scores,
            self.pair_starts,
            self.pair_columns,
            *part,
            gradient,
        )
        return gradient

    def to_dict(self) -> dict[str, Any]:
        widths = np.diff(self.pair_starts)
        return {
            "index": self.index.to_dict(),
            "widths": widths.astype("<u2" if self.n_columns < 1 << 16 else "<u4").tobytes(),
            "columns": self.pair_columns.astype(_column_type(self.n_columns)).tobytes(),
            "n_columns": self.n_columns,
            "counts": pack_numbers(np.minimum(self.counts, np.iinfo(np.int32).max)),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "SparseRows":
        """RAISES (ValueError): CRF509 for parts that don't fit together."""
        n_columns = data["n_columns"]
        widths = np.frombuffer(data["widths"], dtype="<u2" if n_columns < 1 << 16 else "<u4")
        columns = np.frombuffer(data["columns"], dtype=_column_type(n_columns)).astype(np.int32)
        pair_starts = np.append(0, np.cumsum(widths, dtype=np.int64))
        index = index_from_dict(data["index"])
        check_equal("the number of features", len(widths), len(index))
        check_equal("the number of weights", len(columns), int(pair_starts[-1]))
        # Each feature's columns rise, and there are no others
        rises = np.append(columns[1:] > columns[:-1], True)
        rises[pair_starts[1:][widths > 0] - 1] = True
        check_equal(
            "the columns", bool(rises.all() and 0 <= columns.min(initial=0) <= columns.max(initial=0) < n_columns), True
        )
        counts = unpack_numbers(data["counts"]) if "counts" in data else np.full(len(index), _ASSUMED)
        check_equal("the number of counts", len(counts), len(index))
        return cls(index, pair_starts, columns, n_columns, counts.astype(np.int64))


def _column_type(n_columns: int) -> str:
    return "<u1" if n_columns <= 1 << 8 else "<u2" if n_columns <= 1 << 16 else "<i4"


class Sight(NamedTuple):
    """The tokens that see a position, as one run: a template at offset o is read by the token at -o. Where there is no template
    at an offset in between, the scores for that token are 0."""

    first: int  # the first such token, relative to the position
    width: int  # how many there are

    @classmethod
    def of(cls, offsets: NDArray[np.int64]) -> "Sight":
        if not len(offsets):
            return cls(0, 0)
        return cls(-int(offsets.max()), int(offsets.max() - offsets.min()) + 1)

    def place(self, offset: int) -> int:
        """Where in the run the token is that reads at an offset."""
        return -int(offset) - self.first


class KindRows:
    """Weights to scores and back over a fixed corpus whose windows are of few kinds (``features.kinds``)."""

    def __init__(self, kinds: KindFeatures, rows: SparseRows, reach: int):
        self._sight = Sight.of(kinds.offsets)
        self._first_slots = {self._sight.place(o): rows.first_slots(of_o) for o, of_o in zip(kinds.offsets, kinds.rows)}
        self._rows = rows
        self._reach = reach
        self._shape = (kinds.rows[0].shape[1], self._sight.width, rows.n_columns)

    def zeros(self) -> Floats:
        return np.zeros(self._shape)

    def score(self, slots: Floats, *, threads: int = 1) -> Floats:
        """Scores of each kind for each token that sees it: float64[U, O, C]."""
        table = self.zeros()
        for place, first_slots in self._first_slots.items():
            self._rows.add_references(first_slots, slots, table, place=place, threads=threads)
        return table

    def add_scores(self, kinds: NDArray[np.int32], starts: NDArray[np.int64], table: Floats, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of the kinds around each token."""
        add_kind_rows(kinds, starts, self._reach, self._sight.first, table, scores)

    def scatter(
        self,
        kinds: NDArray[np.int32],
        starts: NDArray[np.int64],
        d_scores: Floats,
        d_table: Floats,
        *,
        part: Part = ALL,
    ) -> None:
        """Adds the gradient of the kinds' scores to ``d_table``."""
        scatter_kind_rows(kinds, starts, self._reach, self._sight.first, d_scores, *part, d_table)

    def scatter_slots(self, d_table: Floats, d_slots: Floats, *, part: Part = ALL) -> None:
        """Adds the gradient of the slots to ``d_slots``."""
        for place, first_slots in self._first_slots.items():
            self._rows.scatter_references(first_slots, d_table, d_slots, place=place, part=part)


class LexemeScores:
    """Scores of all templates that read attributes of one lexeme, summed for each token that sees the lexeme.

    They are the same wherever the word stands, so a window of -2..2 costs the addition of one run of five rows per word,
    whatever the number of templates. Filled as lexemes are met; safe to use from several threads.
    """

    def __init__(self, compiled: CompiledTemplates, single: NDArray[np.bool_], rows: SparseRows, slots: Floats):
        self._rows = rows
        self._slots = slots
        offsets = compiled.part_offsets[compiled.part_starts[:-1]]
        self._sight = Sight.of(offsets[single])
        # By their offsets, so that those of each place are a slice
        chosen = sorted(np.flatnonzero(single), key=offsets.__getitem__)
        self._compiled = CompiledTemplates([compiled.templates[n] for n in chosen], compiled.reader)
        found, counts = np.unique(offsets[chosen], return_counts=True)
        ends = np.cumsum(counts)
        self._places = [(self._sight.place(o), slice(e - n, e)) for o, n, e in zip(found, counts, ends)]
        self._reach = compiled.reader.reach
        self._lock = threading.Lock()
        self._table: Optional[LexemeTable] = None
        self._scores = np.zeros((0, self._sight.width, rows.n_columns), dtype=np.float32)
        self._filled = 0

    @property
    def bytes_per_lexeme(self) -> int:
        return self._scores.itemsize * math.prod(self._scores.shape[1:])

    def add(self, columns: TokenColumns, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of the lexemes around each token."""
        if self._places:
            table = self._up_to_date(columns.table)
            add_lexeme_rows(columns.lexemes, columns.starts, self._reach, self._sight.first, table, scores)

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
        scores = np.zeros((len(lexemes), *self._scores.shape[1:]))
        values = table.columns[lexemes]
        rows = self._compiled.rows_of_values(values, self._compiled.part_columns, self._rows.index)
        first_slots = self._rows.first_slots(rows)
        for place, templates in self._places:
            self._rows.add_references(first_slots[templates], self._slots, scores, place=place)
        self._scores[lexemes[0] : lexemes[-1] + 1] = scores
