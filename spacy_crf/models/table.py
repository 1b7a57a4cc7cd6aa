"""Weights of pairs of a feature and a column, which is a state or a pair of states."""

from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.vocab import Vocab
from thinc.api import Model

from ..arrays import expect_below, expect_starts, grown, of_file, ranges, spread
from ..features.extractor import IndexBuilder
from ..features.feature_index import (
    FeatureIndex,
    HashedIndex,
    KnownFeatures,
    VectorIndex,
    index_from_dict,
    pack_numbers,
    unpack_numbers,
)
from ..inference.threads import run_chunks
from ..kernels import sparse_rows as kernels
from ..types import Bools, Floats, Ints, Settings, TemplateRows, TokenFeatures
from .node import check_equal, rearrange_param, write_param

if TYPE_CHECKING:
    from ..features.segments import SpanIndexBuilder


class Sight(NamedTuple):
    """The tokens that read a position: `width` neighbours, from the token at `first` on. A template with offset o lets the
    token at -o read the position. A token in between that has no template with its offset adds scores of 0.
    """

    first: int  # relative to the position
    width: int

    @classmethod
    def of(cls, offsets: Ints) -> "Sight":
        """The tokens that read a position by templates with these offsets.

        offsets (int64[O]): The offsets of the templates.
        """
        if not len(offsets):
            return cls(0, 0)
        return cls(first=-int(offsets.max()), width=int(offsets.max() - offsets.min()) + 1)

    def viewer(self, offset: int) -> int:
        """Which of the `width` tokens reads the position by a template: its number, from 0 to width - 1.

        offset (int): The offset of the template.
        """
        return -int(offset) - self.first


_NO_VALUES = np.zeros(0, dtype=np.float32)
_CHUNK = 4096  # tokens
_MARKED = 1 << 14  # features whose bits are unpacked at a time, which bounds memory


class GradientPart(NamedTuple):
    """The rows of a gradient that one of several threads adds up: those with row & mask == number."""

    number: int
    mask: int


ALL = GradientPart(number=0, mask=0)


def parts_for(threads: int) -> list[GradientPart]:
    """Split a gradient into parts, for each thread one or two.

    threads (int): Number of threads.
    """
    # Kernels select rows by a mask of bits, so the number of parts is a power of two
    mask = (1 << (threads - 1).bit_length()) - 1
    return [GradientPart(number, mask) for number in range(mask + 1)]


Index = Union[FeatureIndex, HashedIndex, VectorIndex]


class SlotLayout(NamedTuple):
    """Layout of the weights as the kernels read them, see `kernels.sparse_rows`."""

    starts: Ints  # [F + 1]
    columns: NDArray[np.int32]  # [N] column of each slot, encoded for the kernels
    slot_of_weight: Union[slice, Ints]  # [W] slot of each weight; slice(None) where slots and weights are the same
    first: NDArray[np.integer]  # [F + 1] first slot of each feature, -1 for features without weights


class Table:
    """The pairs of a feature and a column that have a weight. Computes scores from weights, and the gradient of the weights from
    derivatives with respect to the scores.

    Kernels read the weights from N slots, see `kernels.sparse_rows`. A corpus stores the first slot of a feature in place of its
    row (`with_first_slots`), which saves kernels a step.

    index (FeatureIndex, HashedIndex or VectorIndex): The F features.
    pair_starts (int64[F + 1]), pair_columns (int32[W]): Columns of each feature's weights, in rising order.
    n_columns (int): C.
    counts (int64[F]): How often training met each feature; zeros if None.
    """

    def __init__(
        self,
        index: Index,
        pair_starts: NDArray,
        pair_columns: NDArray,
        n_columns: int,
        counts: Optional[Ints] = None,
    ):
        self.index: Any = index  # of the kind of the table, see `Index`
        self.pair_starts = pair_starts
        self.pair_columns = pair_columns
        self.n_columns = n_columns
        self.counts = np.zeros(len(index), dtype=np.int64) if counts is None else counts

    @cached_property
    def _slots(self) -> SlotLayout:
        """The layout, computed on first use: counting features needs none."""
        # Rows with a third of all columns are faster to add as a whole
        threshold = max(1, self.n_columns // 3)
        widths = np.diff(self.pair_starts)  # [F]
        is_whole = widths >= threshold
        starts = _starts(np.where(is_whole, self.n_columns, widths))
        # A weight keeps its place in its row; in a whole row, the place is its column
        slots = np.arange(len(self.pair_columns)) + np.repeat(starts[:-1] - self.pair_starts[:-1], widths)
        in_whole = np.repeat(is_whole, widths)  # [W]
        slots[in_whole] = np.repeat(starts[:-1][is_whole], widths[is_whole]) + self.pair_columns[in_whole]
        columns = np.empty(starts[-1], dtype=np.int32)
        columns[slots] = self.pair_columns
        # A whole row is marked by its first column, another one by its last
        columns[starts[:-1][is_whole]] = self.n_columns
        last = starts[1:][~is_whole & (widths > 0)] - 1
        columns[last] = -1 - columns[last]
        are_weights = len(columns) == len(slots) and bool((slots[1:] > slots[:-1]).all())
        has_weights = np.diff(starts) > 0  # [F]
        first = np.append(np.where(has_weights, starts[:-1], -1), -1)  # the last entry is for row -1, no feature
        is_narrow = len(columns) <= np.iinfo(np.int32).max
        first = first.astype(np.int32 if is_narrow else np.int64)
        return SlotLayout(starts, columns, slice(None) if are_weights else slots, first)

    @property
    def layout(self) -> SlotLayout:
        """The layout of the slots with plain numbers of columns."""
        # The encoding marks where a row ends: a last column c is -1 - c, and the first column of a row of all columns is C
        columns = np.where(self._slots.columns < 0, -1 - self._slots.columns, self._slots.columns)
        return self._slots._replace(
            columns=columns % np.int32(self.n_columns),
            slot_of_weight=np.arange(len(columns))[self._slots.slot_of_weight],
        )

    @property
    def encoded_columns(self) -> NDArray[np.int32]:
        """The column of each slot, encoded for the kernels: int32[N]."""
        return self._slots.columns

    @classmethod
    def empty(cls, n_columns: int = 1) -> "Table":
        """A table without features.

        n_columns (int): C.
        """
        return cls(FeatureIndex.empty(), np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int32), n_columns)

    @classmethod
    def full(cls, index: Index, n_columns: int, counts: Optional[Ints] = None, *, first: int = 0) -> "Table":
        """A table where each feature has a weight for every column from `first` on.

        index (Index): The F features.
        n_columns (int): C.
        counts (int64[F]): How often training met each feature; zeros if None.
        first (int): The first column with weights.
        """
        # All features have the columns first, ..., C - 1
        columns = np.arange(first, n_columns, dtype=np.int32)
        starts = np.arange(len(index) + 1, dtype=np.int64) * len(columns)
        return cls(index, starts, np.tile(columns, len(index)), n_columns, counts)

    def thinned(self, kept: Bools) -> "Table":
        """A table of all features, with the weights where `kept` (bool[W]) is true."""
        widths = np.bincount(self.rows_of_pairs()[kept], minlength=len(self.index))  # [F]
        return Table(self.index, _starts(widths), self.pair_columns[kept], self.n_columns, self.counts)

    def pruned(self, kept: Bools) -> "Table":
        """A table of the features that keep a weight, with the weights where `kept` (bool[W]) is true."""
        thinned = self.thinned(kept)
        widths = np.diff(thinned.pair_starts)  # [F]
        has_weights = widths > 0
        index = self.index.keep(has_weights)
        if len(index) == len(self.index):  # the rows of hashed features never change
            return Table(index, thinned.pair_starts, thinned.pair_columns, self.n_columns, self.counts)
        # The index numbers its features anew
        starts = _starts(widths[has_weights])
        return Table(index, starts, thinned.pair_columns, self.n_columns, self.counts[has_weights])

    def resized(self, n_columns: int, columns: Ints, added: Iterable[int] = ()) -> "Table":
        """A table with more columns for the same features.

        n_columns (int): The new number of columns.
        columns (int64[C]): The new number of each present column; they rise.
        added (Iterable[int]): New columns for which every feature gets a weight.
        """
        added = np.asarray(list(added), dtype=np.int64)
        n_rows = len(self.index)
        row = np.concatenate([self.rows_of_pairs(), np.repeat(np.arange(n_rows), len(added))])
        column = np.concatenate([columns[self.pair_columns], np.tile(added, n_rows)])
        # Columns of each feature rise; present ones do already
        order = np.lexsort((column, row)) if len(added) else slice(None)
        starts = _starts(np.bincount(row, minlength=n_rows))
        return Table(self.index, starts, column[order].astype(np.int32), n_columns, self.counts)

    @property
    def n_weights(self) -> int:
        """Number of weights: W."""
        return len(self.pair_columns)

    def find_weights(self, before: "Table", columns: Optional[Ints] = None) -> Ints:
        """Find the weights of an earlier table among the weights of this one: int64[W of the earlier table].

        before (Table): The earlier table, whose pairs this one has.
        columns (int64[C of the earlier table]): The number in this table of each of its columns; None for equal numbers.
        """
        if not before.n_weights:  # its index may be of another class
            return np.zeros(0, dtype=np.int64)
        # The pairs of the earlier table, as rows and columns of this one
        rows = self.index.rows_of(before.index)[before.rows_of_pairs()]
        pair_columns = before.pair_columns if columns is None else columns[before.pair_columns]
        # row · C + column rises from weight to weight
        keys = self.rows_of_pairs() * self.n_columns + self.pair_columns
        return np.searchsorted(keys, rows * self.n_columns + pair_columns)

    def dense(self, weights: NDArray) -> Floats:
        """Weights of all pairs, 0 for pairs without a weight: float64[F, C].

        weights (float[W]): The weights.
        """
        dense = np.zeros((len(self.index), self.n_columns))
        dense[self.rows_of_pairs(), self.pair_columns] = weights
        return dense

    def rows_of_pairs(self) -> Ints:
        """The feature of each weight: int64[W]."""
        return np.repeat(np.arange(len(self.index)), np.diff(self.pair_starts))

    # ------------------------------------------------------------------------------------- weights to scores and back

    @property
    def slots_are_weights(self) -> bool:
        """Whether slot n holds weight n, for every n."""
        return isinstance(self._slots.slot_of_weight, slice)

    def zero_slots(self) -> Floats:
        """A zero for each slot: float64[N]."""
        return np.zeros(len(self._slots.columns))

    def slots(self, weights: NDArray) -> Floats:
        """Weights in the layout of the kernels: float64[N], which may be the same array.

        weights (float[W]): The weights.
        """
        if self.slots_are_weights:
            return weights.astype(np.float64, copy=False)
        slots = self.zero_slots()
        slots[self._slots.slot_of_weight] = weights
        return slots

    def weights_of(self, slots: Floats) -> Floats:
        """The inverse of `slots`: float64[W], which may be the same array.

        slots (float64[N]): Weights, or their gradient, in the layout of the kernels.
        """
        return slots[self._slots.slot_of_weight]

    def add_scores(self, features: TokenFeatures, slots: Floats, scores: Floats) -> None:
        """Add the weights of each token's features: scores[t, c] += sum over features f of t of value[f] · weight[f, c].

        features (TokenFeatures): Features of T tokens.
        slots (float64[N]): Weights in the layout of the kernels.
        scores (float64[T, C], or with C = S · S float64[T, S, S]): Receive the sums.
        """
        if features.values is None:
            self.add_uses((_tokens_of(features), features.rows), slots, scores)
            return
        scores = self._by_row(scores)
        kernels.add_scores(
            features.rows,
            features.values,
            features.starts,
            0,  # all tokens, from the first
            len(scores),
            self._slots.starts,
            self._slots.columns,
            slots,
            scores,
        )

    def add_uses(self, uses: KnownFeatures, slots: Floats, scores: Floats) -> None:
        """Add the weights of features to the scores of tokens, as `add_scores`, for pairs of a token and a feature.

        uses (KnownFeatures): The pairs.
        slots (float64[N]): Weights in the layout of the kernels.
        scores (float64[T, C]): Receive the sums.
        """
        tokens, rows = uses
        first_slots = self._slots.first.take(rows)[np.newaxis]  # for short texts twice as fast as an index
        kernels.add_references(first_slots, tokens, 0, len(tokens), self._slots.columns, slots, self._by_row(scores))

    def first_slots(self, rows: TemplateRows) -> NDArray[np.integer]:
        """The first slot of each feature: int[M, N], -1 for features without weights.

        rows (int32[M, N]): The features; -1 for none.
        """
        return self._slots.first[rows]

    def moved_slots(self, before: "Table") -> NDArray[np.integer]:
        """A map from first slots in another table to first slots in this one: moved[slot in the other table] is the slot of the
        same feature here, int[N + 1] for the N slots of the other table. It is -1 for features that have no weights here, and
        at index -1, which is no feature.

        before (Table): The other table, of the same features.
        """
        first = self._slots.first
        first_before = before._slots.first
        moved = np.full(len(before._slots.columns) + 1, -1, dtype=first.dtype)
        had_weights = first_before >= 0
        moved[first_before[had_weights]] = first[had_weights]
        return moved

    def add_references(
        self, first_slots: NDArray[np.integer], slots: Floats, scores: Floats, *, viewer: int = 0, threads: int = 1
    ) -> None:
        """Add the weights of each token's features to its scores, for features that come one per template.

        first_slots (int[M, N]): First slot of the feature of each of M templates at each of N tokens, -1 for none.
        slots (float64[N']): Weights in the layout of the kernels.
        scores (float64[N, O, C] or float64[N, C]): Receive the sums.
        viewer (int): Which of the O rows of scores of a token, one per token of a `Sight`, receives the sums.
        threads (int): How many threads share the tokens.
        """
        scores, tokens = self._viewed(scores, viewer)

        def add(begin: int) -> None:
            end = min(begin + _CHUNK, len(tokens))
            kernels.add_references(first_slots, tokens, begin, end, self._slots.columns, slots, scores)

        run_chunks(add, range(0, len(tokens), _CHUNK), threads)

    def _viewed(self, scores: Floats, viewer: int) -> tuple[Floats, NDArray[np.int32]]:
        """The scores (float64[N, O, C] or float64[N, C]) as rows (float64[N · O, C]), and the row of each of the N tokens for a
        viewer (int32[N]).
        """
        rows = self._by_row(scores)
        n_viewers = max(1, len(rows) // max(1, len(scores)))
        return rows, np.arange(viewer, len(rows), n_viewers, dtype=np.int32)

    def _by_row(self, scores: Floats) -> Floats:
        """A view of scores (float64[..., C], or with C = S · S float64[T, S, S]) as rows of C numbers: float64[N, C]."""
        return scores.reshape(-1, self.n_columns)

    def scatter_references(
        self,
        first_slots: NDArray[np.integer],
        d_scores: Floats,
        d_slots: Floats,
        *,
        viewer: int = 0,
        part: GradientPart = ALL,
    ) -> None:
        """Backpropagate through `add_references`: add the gradient of the slots.

        first_slots (int[M, N]): First slot of the feature of each template at each token, -1 for none.
        d_scores (float64[N, O, C] or float64[N, C]): Derivatives with respect to the scores.
        d_slots (float64[N']): Receives the sums.
        viewer (int): Which of the O rows of derivatives of a token to read.
        part (GradientPart): The rows that this thread adds up.
        """
        d_scores, tokens = self._viewed(d_scores, viewer)
        kernels.scatter_references(first_slots, tokens, self._slots.columns, d_scores, *part, d_slots)

    def with_first_slots(self, features: TokenFeatures) -> TokenFeatures:
        """Features as a corpus stores them: their `rows` are their first slots. Features with values stay as they are.

        features (TokenFeatures): The features, by row.
        """
        if features.values is not None:
            return features
        return features._replace(rows=self.first_slots(features.rows))

    def expect_with_slots(self, what: str, features: TokenFeatures) -> None:
        """Check features that a file holds, since kernels trust them.

        what (str): What the features are, for messages.
        features (TokenFeatures): The features, as `with_first_slots` returns them.
        RAISES (ValueError): Without a code.
        """
        rows, values, starts = features
        if values is None:
            self.expect_slots(what, rows)
        else:
            of_file(what, rows, np.int32, (None,), copied=False)
            of_file(f"values of {what}", values, np.float32, rows.shape, copied=False)
            expect_below(what, rows, len(self.pair_starts) - 1)
        of_file(f"starts of {what}", starts, np.int64, (None,), copied=False)
        expect_starts(f"starts of {what}", starts, len(rows))

    def expect_slots(self, what: str, first_slots: NDArray) -> None:
        """Check first slots that a file holds, since kernels trust them.

        what (str): What the slots are, for messages.
        first_slots (int[...]): The slots.
        RAISES (ValueError): Without a code.
        """
        first = self._slots.first
        n_slots = len(self._slots.columns)
        of_file(what, first_slots, first.dtype, (None,) * np.ndim(first_slots), copied=False)
        expect_below(what, first_slots.ravel(), n_slots, least=-1)
        # Kernels read on to the end of a feature: a slot in its middle would lead them beyond
        is_first = np.zeros(n_slots + 1, dtype=bool)
        is_first[first] = is_first[-1] = True  # -1, which is no feature, finds the last entry
        if not is_first[first_slots].all():
            raise ValueError(f"{what} are not those of features")

    def with_moved_slots(self, features: TokenFeatures, moved: NDArray[np.integer]) -> TokenFeatures:
        """Replace the first slots of another table by those of this one, and leave out features without weights.

        features (TokenFeatures): Features, as `with_first_slots` of the other table returned them.
        moved (int[N + 1]): The result of `moved_slots` for the other table.
        """
        if features.values is not None:
            has_weights = self.pair_starts[features.rows + 1] > self.pair_starts[features.rows]
            return filter_features(features, has_weights)
        first_slots = moved[features.rows]
        return filter_features(features._replace(rows=first_slots), first_slots >= 0)

    def add_scores_by_slot(self, features: TokenFeatures, slots: Floats, scores: Floats) -> None:
        """Add the weights of each token's features to its scores, as `add_scores`, for features that `with_first_slots`
        returned.

        features (TokenFeatures): Features of T tokens.
        slots (float64[N]): Weights in the layout of the kernels.
        scores (float64[T, C]): Receive the sums.
        """
        if features.values is not None:
            self.add_scores(features, slots, scores)
        elif len(features.rows):
            tokens = _tokens_of(features)
            first_slots = features.rows[np.newaxis]
            kernels.add_references(
                first_slots, tokens, 0, len(tokens), self._slots.columns, slots, self._by_row(scores)
            )

    def scatter_by_slot(
        self, features: TokenFeatures, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart = ALL
    ) -> None:
        """Add to `d_slots` the gradient of the slots; for features with values, add to `gradient` that of the weights.

        features (TokenFeatures): Features of T tokens, as `with_first_slots` returns them.
        d_scores (float64[T, C]): Derivatives with respect to the scores.
        d_slots (float64[N]): Receives the gradient of the slots.
        gradient (float64[W]): Receives the gradient of the weights.
        part (GradientPart): The rows that this thread adds up.
        """
        if features.values is not None:
            self.scatter(features, d_scores, gradient, part=part)
        elif len(features.rows):
            first_slots = features.rows[np.newaxis]
            d_scores = self._by_row(d_scores)
            kernels.scatter_references(first_slots, _tokens_of(features), self._slots.columns, d_scores, *part, d_slots)

    def scatter(
        self, features: TokenFeatures, d_scores: Floats, gradient: Optional[Floats] = None, *, part: GradientPart = ALL
    ) -> Floats:
        """Add the gradient of the weights: gradient[f, c] += sum over tokens t with feature f of value[f] · d_scores[t,
        c].

        features (TokenFeatures): Features of T tokens.
        d_scores (float64[T, C]): Derivatives with respect to the scores.
        gradient (float64[W]): Receives the sums; a new array of zeros if None.
        part (GradientPart): The rows that this thread adds up.
        RETURNS (float64[W]): The gradient.
        """
        gradient = np.zeros(self.n_weights) if gradient is None else gradient
        values = _NO_VALUES if features.values is None else features.values
        d_scores = d_scores.reshape(len(d_scores), self.n_columns)
        pair_starts = self.pair_starts
        kernels.scatter_gradient(
            features.rows, values, features.starts, d_scores, pair_starts, self.pair_columns, *part, gradient
        )
        return gradient

    # --------------------------------------------------------------------------------------------------------- saving

    def fingerprint(self) -> list[NDArray]:
        """Arrays that are equal for tables whose weights have the same meaning."""
        return [self.index.keys, self.pair_starts, self.pair_columns]

    def to_dict(self) -> Settings:
        """Data to save, for msgpack."""
        widths = np.diff(self.pair_starts)
        return {
            "index": self.index.to_dict(),
            "widths": widths.astype("<u2" if self.n_columns < 1 << 16 else "<u4").tobytes(),
            "columns": self.pair_columns.astype(_column_type(self.n_columns)).tobytes(),
            "n_columns": self.n_columns,
            "counts": pack_numbers(np.minimum(self.counts, np.iinfo(np.int32).max)),
        }

    @classmethod
    def from_dict(cls, data: Settings) -> "Table":
        """Load a saved table.

        data (dict): The result of `to_dict`.
        RAISES (ValueError): CRF509 if arrays do not fit together.
        """
        n_columns = data["n_columns"]
        widths = np.frombuffer(data["widths"], dtype="<u2" if n_columns < 1 << 16 else "<u4")
        columns = np.frombuffer(data["columns"], dtype=_column_type(n_columns)).astype(np.int32)
        pair_starts = np.append(0, np.cumsum(widths, dtype=np.int64))
        index = index_from_dict(data["index"])
        check_equal("the number of features", len(widths), len(index))
        check_equal("the number of weights", len(columns), int(pair_starts[-1]))
        # The columns of each feature rise, and are below n_columns
        rises = np.append(columns[1:] > columns[:-1], True)  # [W] whether the next column is larger
        last_of_feature = pair_starts[1:][widths > 0] - 1
        rises[last_of_feature] = True
        are_inside = 0 <= columns.min(initial=0) <= columns.max(initial=0) < n_columns
        check_equal("the columns", bool(rises.all() and are_inside), True)
        counts = unpack_numbers(data["counts"])
        check_equal("the number of counts", len(counts), len(index))
        return cls(index, pair_starts, columns, n_columns, counts.astype(np.int64))


def filter_features(features: TokenFeatures, is_kept: Bools) -> TokenFeatures:
    """The features of tokens where `is_kept` (bool[nnz]) is true."""
    [kept] = np.nonzero(is_kept)  # rising, so a token's features start behind the kept ones of the tokens before it
    return TokenFeatures(
        rows=features.rows[kept],
        values=None if features.values is None else features.values[kept],
        starts=np.searchsorted(kept, features.starts).astype(np.int64),
    )


def mark_pairs(
    rows: NDArray[np.int32], starts: Ints, columns: NDArray[np.int32], column_starts: Ints, seen: NDArray
) -> None:
    """Mark the pairs of a feature and a column that occur together at some token.

    rows (int32[N]), starts (int64[T + 1]): Features of each token.
    columns (int32[M]), column_starts (int64[T + 1]): Columns of each token.
    seen (uint64[F, W]): Receives one bit per column.
    """
    n_words = seen.shape[1]
    # The columns of each token, as bits
    bits = np.zeros((len(starts) - 1, n_words), dtype=np.uint64)
    tokens = np.repeat(np.arange(len(bits)), np.diff(column_starts))
    np.bitwise_or.at(bits, (tokens, columns >> 6), np.uint64(1) << (columns & 63).astype(np.uint64))
    # Most tokens have bits in few words: only these words are marked
    tokens, words = np.nonzero(bits)
    begins = starts[tokens]
    ends = starts[tokens + 1]
    n_features = ends - begins
    cells = rows[ranges(begins, ends)] * np.int64(n_words) + np.repeat(words, n_features)
    np.bitwise_or.at(seen.reshape(-1), cells, np.repeat(bits[tokens, words], n_features))


def list_pairs(seen: NDArray[np.uint64], n_columns: int) -> tuple[Ints, NDArray[np.int32]]:
    """The pairs marked in `seen` (uint64[F, W]).

    RETURNS (int64[F + 1], int32[N]): The columns of each feature in rising order, as compressed rows.
    """
    widths = []
    columns = []
    for begin in range(0, max(1, len(seen)), _MARKED):
        marked = seen[begin : begin + _MARKED].astype("<u8").view(np.uint8)
        is_pair = np.unpackbits(marked, axis=1, count=n_columns, bitorder="little")
        widths.append(is_pair.sum(axis=1))
        columns.append(is_pair.nonzero()[1].astype(np.int32))
    return _starts(np.concatenate(widths)), np.concatenate(columns)


def _tokens_of(features: TokenFeatures) -> NDArray[np.int32]:
    """The token of each of N features: int32[N]."""
    widths = np.diff(features.starts)
    return np.repeat(np.arange(len(widths), dtype=np.int32), widths)


def _starts(widths: NDArray) -> Ints:
    """Where rows with these `widths` (int[F]) start, when they stand one after the other: int64[F + 1]."""
    return np.append(0, np.cumsum(widths)).astype(np.int64)


def _column_type(n_columns: int) -> str:
    """The smallest type that a file can store these columns in."""
    if n_columns <= 1 << 16:
        return "<u1" if n_columns <= 1 << 8 else "<u2"
    return "<i4"


class PairCounter:
    """Counts features, and marks the pairs of feature and column that occur.

    builder (IndexBuilder or SpanIndexBuilder): Numbers and names the features.
    present (Table): The features and pairs that the model has already, which stay.
    """

    def __init__(self, builder: Union[IndexBuilder, "SpanIndexBuilder"], present: Table):
        self.builder = builder
        self._present = present
        self._counts: Optional[Ints] = None  # how often `add_chosen` met each feature
        # A row of bits for each feature: bit c is set if the feature occurs with column c
        n_rows = len(present.index)
        self._seen = np.zeros((max(1024, n_rows), (present.n_columns + 63) // 64), dtype=np.uint64)
        # The present pairs, as if token n had the only feature n, and the columns of feature n
        starts = np.arange(n_rows + 1)
        mark_pairs(starts[:-1].astype(np.int32), starts, present.pair_columns, present.pair_starts, self._seen)

    def __len__(self) -> int:
        return len(self.builder)

    @property
    def has_pairs(self) -> bool:
        """Whether any token is annotated."""
        return bool(self._seen.any())

    def add(self, features: TokenFeatures, columns: NDArray[np.int32], column_starts: Ints) -> None:
        """Count features of tokens.

        features (TokenFeatures): Features of T tokens.
        columns (int32[N]): Columns of the tokens, as compressed rows.
        column_starts (int64[T + 1]): Where the columns of each token start.
        """
        if len(self) > len(self._seen):
            self._seen = grown(self._seen, len(self._seen), 2 * len(self))
        mark_pairs(features.rows, features.starts, columns, column_starts, self._seen)

    def add_chosen(self, features: TokenFeatures, chosen: Ints, columns: Ints) -> None:
        """Count the features of chosen tokens, each of which has one column.

        features (TokenFeatures): Features of T tokens.
        chosen (int64[M]): The numbers of the chosen tokens.
        columns (int64[M]): The column of each chosen token.
        """
        begin = features.starts[:-1][chosen]
        end = features.starts[1:][chosen]
        # The features of the chosen tokens, one token after the other
        rows = features.rows[ranges(begin, end)]
        self.add(
            TokenFeatures(rows=rows, values=None, starts=np.append(0, np.cumsum(end - begin))),
            columns.astype(np.int32),
            np.arange(len(chosen) + 1),
        )
        # The builder has counted the features of all tokens; `freeze` reads counts of the chosen tokens in their place
        counts = np.bincount(rows, minlength=len(self))
        if self._counts is not None:
            counts[: len(self._counts)] += self._counts
        self._counts = counts

    def freeze(self, min_count: int, vocab: Vocab, first: Optional[int] = None) -> Table:
        """A table of the features that occur often enough, and of the present features.

        min_count (int): How often a new feature must occur. 0 keeps all, even features without a column, which may have one in
            other parts of a corpus.
        vocab (Vocab): Names the features.
        first (int): If given, each feature gets a weight for every column from this one on, not only for those it occurs
            with.
        """
        counts = self.builder.table.counts if self._counts is None else self._counts
        seen = self._seen[: len(self)]
        n_present = len(self._present.index)
        # Features must be frequent, and have a column; present ones stay
        is_kept = (counts >= min_count) & (seen.any(axis=1) | (min_count == 0))
        is_kept[:n_present] = True
        counts = counts[is_kept].astype(np.int64)
        counts[:n_present] += self._present.counts
        index = self.builder.freeze(is_kept, vocab)
        n_columns = self._present.n_columns
        if first is not None:
            return Table.full(index, n_columns, counts, first=first)
        starts, columns = list_pairs(seen[is_kept], n_columns)
        return Table(index, starts, columns, n_columns, counts)


def move_weights(model: Model, name: str, before: Table, after: Table, columns: Optional[Ints] = None) -> None:
    """Move the weights of a table to a larger one; weights of new pairs are zero.

    model (Model): The model with the weights.
    name (str): The name of the parameter.
    before (Table): The table of the present weights.
    after (Table): The larger table.
    columns (int64[C]): The number in the larger table of each present column; None for equal numbers.
    """
    if model.has_param(name):
        rearrange_param(model, name, partial(spread, places=after.find_weights(before, columns), size=after.n_weights))
    else:
        write_param(model, name, np.zeros(after.n_weights))
