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
from ..kernels.hashing import list_pairs, mark_pairs
from ..kernels.sparse_rows import (
    add_listed,
    add_references,
    add_rows,
    add_scores,
    lay_out_slots,
    scatter_gradient,
    scatter_listed,
    scatter_references,
)
from ..types import Bools, Floats, Ints, Settings, TemplateRows, TokenFeatures
from .node import check_equal, set_moved, write_param

if TYPE_CHECKING:
    from ..features.segments import SpanIndexBuilder


class Sight(NamedTuple):
    """Run of tokens that read a position: the token at -o has the template with offset o. At offsets in between without a
    template the scores are 0.
    """

    first: int  # the first such token, relative to the position
    width: int  # length of the run

    @classmethod
    def of(cls, offsets: Ints) -> "Sight":
        """The run of tokens for templates at some offsets.

        offsets (int64[O]): The offsets.
        """
        if not len(offsets):
            return cls(0, 0)
        return cls(-int(offsets.max()), int(offsets.max() - offsets.min()) + 1)

    def place(self, offset: int) -> int:
        """Place in the run of the token that reads at an offset.

        offset (int): The offset.
        """
        return -int(offset) - self.first


_NO_VALUES = np.zeros(0, dtype=np.float32)
_CHUNK = 4096  # tokens


class GradientPart(NamedTuple):
    """Part of a gradient for one of several threads: the rows whose masked number is the number of the part."""

    number: int
    mask: int


ALL = GradientPart(0, 0)


def parts_for(threads: int) -> list[GradientPart]:
    """As many parts of a gradient as threads, or up to twice as many.

    threads (int): Number of threads.
    """
    mask = (1 << (threads - 1).bit_length()) - 1
    return [GradientPart(number, mask) for number in range(mask + 1)]


Index = Union[FeatureIndex, HashedIndex, VectorIndex]


class SlotLayout(NamedTuple):
    """Layout of the weights as the kernels read them, see `kernels.sparse_rows`."""

    starts: Ints  # [F + 1]
    columns: NDArray[np.int32]  # [N] column of each slot, encoded for the kernels
    of_pair: Union[slice, Ints]  # [W] slot of each weight; a slice of all where slots and weights are the same
    first: NDArray[np.integer]  # [F + 1] first slot of each feature, -1 for features without weights


class Table:
    """Pairs of feature and column that have a weight; computes scores from weights, and derivatives of weights from those of
    scores.

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
        """Computed when scores are needed: counting features and joining counts does not need it."""
        # Rows with a third of all columns are faster to add as a whole
        threshold = max(1, self.n_columns // 3)
        starts, columns, of_pair = lay_out_slots(self.pair_starts, self.pair_columns, self.n_columns, threshold)
        # The last row is for row -1, no feature
        in_order = len(columns) == len(of_pair) and bool((of_pair[1:] > of_pair[:-1]).all())
        of_pair = slice(None) if in_order else of_pair
        narrow = len(columns) <= np.iinfo(np.int32).max
        first = np.append(np.where(np.diff(starts) > 0, starts[:-1], -1), -1)
        return SlotLayout(starts, columns, of_pair, first.astype(np.int32 if narrow else np.int64))

    @property
    def layout(self) -> SlotLayout:
        """The layout of the slots with plain numbers of columns."""
        columns = np.where(self._slots.columns < 0, -1 - self._slots.columns, self._slots.columns)
        return self._slots._replace(
            columns=columns % np.int32(self.n_columns), of_pair=np.arange(len(columns))[self._slots.of_pair]
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
        """A table with a weight for every pair, except pairs with the first columns.

        index (Index): The F features.
        n_columns (int): C.
        counts (int64[F]): How often training met each feature; zeros if None.
        first (int): The first column with weights.
        """
        columns = np.arange(first, n_columns, dtype=np.int32)
        starts = np.arange(len(index) + 1, dtype=np.int64) * len(columns)
        return cls(index, starts, np.tile(columns, len(index)), n_columns, counts)

    def thinned(self, kept: Bools) -> "Table":
        """A table with some of the weights, and all features.

        kept (bool[W]): The weights that stay.
        """
        starts = _starts(np.bincount(self.rows_of_pairs()[kept], minlength=len(self.index)))
        return Table(self.index, starts, self.pair_columns[kept], self.n_columns, self.counts)

    def pruned(self, kept: Bools) -> "Table":
        """A table with some of the weights, and the features that keep any.

        kept (bool[W]): The weights that stay.
        """
        # The index numbers its features anew, so counts and starts lose the rows of features without weights
        thinned = self.thinned(kept)
        widths = np.diff(thinned.pair_starts)
        index = self.index.keep(widths > 0)
        if len(index) == len(self.index):  # the rows of hashed features never change
            return Table(index, thinned.pair_starts, thinned.pair_columns, self.n_columns, self.counts)
        counts = self.counts[widths > 0]
        return Table(index, _starts(widths[widths > 0]), thinned.pair_columns, self.n_columns, counts)

    def resized(self, n_columns: int, columns: Ints, added: Iterable[int] = ()) -> "Table":
        """A table with more columns for the same features.

        n_columns (int): The new number of columns.
        columns (int64[C]): New number of each present column, in the same order.
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

    def places(self, before: "Table", columns: Optional[Ints] = None) -> Ints:
        """Places here of the weights of an earlier table: int64[W before].

        before (Table): The earlier table.
        columns (int64[C before]): The number here of each of its columns; None for the same numbers.
        """
        if not before.n_weights:  # nothing to look up
            return np.zeros(0, dtype=np.int64)
        # Row and column here of each weight there
        row = self.index.rows_of(before.index)[before.rows_of_pairs()]
        column = before.pair_columns if columns is None else columns[before.pair_columns]
        # A pair is the number row · C + column, which rises with the weights
        here = self.rows_of_pairs() * self.n_columns + self.pair_columns
        return np.searchsorted(here, row * self.n_columns + column)

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
        """Whether each weight has a slot of its own, in the same order."""
        return isinstance(self._slots.of_pair, slice)

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
        slots[self._slots.of_pair] = weights
        return slots

    def weights_of(self, slots: Floats) -> Floats:
        """Entries of slots that belong to weights: float64[W], which may be the same array.

        slots (float64[N]): The slots.
        """
        return slots[self._slots.of_pair]

    def add_scores(self, features: TokenFeatures, slots: Floats, scores: Floats) -> None:
        """Add the weights of each token's features: scores[t, c] += sum over features f of t of value[f] · weight[f, c].

        features (TokenFeatures): Features of T tokens.
        slots (float64[N]): Weights in the layout of the kernels.
        scores (float64[T, C], or with C = S · S float64[T, S, S]): Receive the sums.
        """
        values = _NO_VALUES if features.values is None else features.values
        columns = self._slots.starts, self._slots.columns
        add_scores(
            features.rows,
            values,
            features.starts,
            0,
            len(scores),
            *columns,
            slots,
            scores.reshape(len(scores), self.n_columns),
        )

    def add_uses(self, uses: KnownFeatures, slots: Floats, scores: Floats) -> None:
        """`add_scores` for features that come as pairs with a token.

        uses (KnownFeatures): The pairs.
        slots (float64[N]): Weights in the layout of the kernels.
        scores (float64[T, C]): Receive the sums.
        """
        scores = scores.reshape(len(scores), self.n_columns)
        add_rows(*uses, self._slots.starts, self._slots.columns, slots, scores)

    def first_slots(self, rows: TemplateRows) -> NDArray[np.integer]:
        """First slot of each feature, for ``add_references``: int[M, N], -1 for features without weights.

        rows (int32[M, N]): The features.
        """
        return self._slots.first[rows]

    def slots_after(self, before: "Table") -> NDArray[np.integer]:
        """First slot of each feature, indexed by its first slot in another table of the same features, with -1 behind all
        slots of that table, so that -1 stays -1.

        before (Table): The other table.
        """
        # The last entry is found by -1
        places = np.full(len(before._slots.columns) + 1, -1, dtype=self._slots.first.dtype)
        has_weights = before._slots.first >= 0
        places[before._slots.first[has_weights]] = self._slots.first[has_weights]
        return places

    def add_references(
        self, first_slots: NDArray[np.integer], slots: Floats, scores: Floats, *, place: int = 0, threads: int = 1
    ) -> None:
        """`add_scores` for features that come one per template.

        first_slots (int[M, N]): First slot of the feature of each of M templates at each of N tokens, -1 for none.
        slots (float64[N']): Weights in the layout of the kernels.
        scores (float64[N, O, C] or float64[N, C]): Receive the sums.
        place (int): The one of the O scores that receives the sums.
        threads (int): How many threads share the tokens.
        """
        scores = scores if scores.ndim == 3 else scores[:, np.newaxis]

        def add(begin: int) -> None:
            end = min(begin + _CHUNK, len(scores))
            add_references(first_slots, begin, end, self._slots.columns, slots, scores, place)

        run_chunks(add, range(0, len(scores), _CHUNK), threads)

    def scatter_references(
        self,
        first_slots: NDArray[np.integer],
        d_scores: Floats,
        d_slots: Floats,
        *,
        place: int = 0,
        part: GradientPart = ALL,
    ) -> None:
        """Add the gradient of the slots, the derivative of `add_references`.

        first_slots (int[M, N]): First slot of the feature of each template at each token, -1 for none.
        d_scores (float64[N, O, C] or float64[N, C]): Derivatives with respect to the scores.
        d_slots (float64[N']): Receives the sums.
        place (int): The one of the O scores.
        part (GradientPart): The rows that this thread adds up.
        """
        d_scores = d_scores if d_scores.ndim == 3 else d_scores[:, np.newaxis]
        scatter_references(first_slots, self._slots.columns, d_scores, place, *part, d_slots)

    def placed(self, features: TokenFeatures) -> TokenFeatures:
        """Features as a corpus stores them: the first slot of each in place of its row, except for features with values.

        features (TokenFeatures): The features.
        """
        return features if features.values is not None else features._replace(rows=self.first_slots(features.rows))

    def expect_placed(self, what: str, features: TokenFeatures) -> None:
        """Check features that a file holds, by which kernels index.

        what (str): What they are, for messages.
        features (TokenFeatures): The features.
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
        """Check first slots that a file holds.

        what (str): What they are, for messages.
        first_slots (int[...]): The slots.
        RAISES (ValueError): Without a code.
        """
        first = self._slots.first
        size = len(self._slots.columns)
        of_file(what, first_slots, first.dtype, (None,) * np.ndim(first_slots), copied=False)
        expect_below(what, first_slots.ravel(), size, least=-1)
        # Kernels read on to the end of a feature: a slot in its middle would lead them beyond
        begins = np.zeros(size + 1, dtype=bool)  # the last one stands for -1
        begins[first] = begins[-1] = True
        if not begins[first_slots].all():
            raise ValueError(f"{what} are not those of features")

    def placed_after(self, features: TokenFeatures, places: NDArray[np.integer]) -> TokenFeatures:
        """Features placed by another table of the same features, as placed by this one, without features that have no
        weights.

        features (TokenFeatures): The features, as the other table placed them.
        places (int[N + 1]): What `slots_after` gave.
        """
        if features.values is not None:
            return some_of(features, self.pair_starts[features.rows + 1] > self.pair_starts[features.rows])
        rows = places[features.rows]
        return some_of(features._replace(rows=rows), rows >= 0)

    def add_placed(self, features: TokenFeatures, slots: Floats, scores: Floats) -> None:
        """`add_scores` for the result of `placed`: without values, its `rows` are the first slots of the features.

        features (TokenFeatures): Features of T tokens.
        slots (float64[N]): Weights in the layout of the kernels.
        scores (float64[T, C]): Receive the sums.
        """
        if features.values is not None:
            self.add_scores(features, slots, scores)
        elif len(features.rows):
            scores = scores.reshape(len(scores), self.n_columns)
            add_listed(features.rows, features.starts, self._slots.columns, slots, scores)

    def scatter_placed(
        self, features: TokenFeatures, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart = ALL
    ) -> None:
        """Add the gradient of the slots, and for features with values that of the weights.

        features (TokenFeatures): Features of T tokens, as `placed` gives them.
        d_scores (float64[T, C]): Derivatives with respect to the scores.
        d_slots (float64[N]): Receives the gradient of the slots.
        gradient (float64[W]): Receives the gradient of the weights.
        part (GradientPart): The rows that this thread adds up.
        """
        if features.values is not None:
            self.scatter(features, d_scores, gradient, part=part)
        elif len(features.rows):
            d_scores = d_scores.reshape(len(d_scores), self.n_columns)
            scatter_listed(features.rows, features.starts, self._slots.columns, d_scores, *part, d_slots)

    def scatter(
        self, features: TokenFeatures, d_scores: Floats, gradient: Optional[Floats] = None, *, part: GradientPart = ALL
    ) -> Floats:
        """Add the gradient of the weights: gradient[f, c] += sum over tokens t with feature f of value[f] · d_scores[t,
        c].

        features (TokenFeatures): Features of T tokens.
        d_scores (float64[T, C]): Derivatives with respect to the scores.
        gradient (float64[W]): Receives the sums; zeros if None.
        part (GradientPart): The rows that this thread adds up.
        RETURNS (float64[W]): The gradient.
        """
        gradient = np.zeros(self.n_weights) if gradient is None else gradient
        values = _NO_VALUES if features.values is None else features.values
        d_scores = d_scores.reshape(len(d_scores), self.n_columns)
        pairs = (self.pair_starts, self.pair_columns)
        scatter_gradient(features.rows, values, features.starts, d_scores, *pairs, *part, gradient)
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

        data (dict): What `to_dict` gave.
        RAISES (ValueError): CRF509 for parts that do not fit together.
        """
        n_columns = data["n_columns"]
        widths = np.frombuffer(data["widths"], dtype="<u2" if n_columns < 1 << 16 else "<u4")
        columns = np.frombuffer(data["columns"], dtype=_column_type(n_columns)).astype(np.int32)
        pair_starts = np.append(0, np.cumsum(widths, dtype=np.int64))
        index = index_from_dict(data["index"])
        check_equal("the number of features", len(widths), len(index))
        check_equal("the number of weights", len(columns), int(pair_starts[-1]))
        # The columns of each feature rise, and are possible columns
        rises = np.append(columns[1:] > columns[:-1], True)
        rises[pair_starts[1:][widths > 0] - 1] = True
        inside = 0 <= columns.min(initial=0) <= columns.max(initial=0) < n_columns
        check_equal("the columns", bool(rises.all() and inside), True)
        counts = unpack_numbers(data["counts"])
        check_equal("the number of counts", len(counts), len(index))
        return cls(index, pair_starts, columns, n_columns, counts.astype(np.int64))


def some_of(features: TokenFeatures, chosen: Bools) -> TokenFeatures:
    """Some of the features of tokens.

    features (TokenFeatures): The features.
    chosen (bool[nnz]): Those that stay.
    """
    [kept] = np.nonzero(chosen)
    return TokenFeatures(
        rows=features.rows[kept],
        values=None if features.values is None else features.values[kept],
        starts=np.searchsorted(kept, features.starts).astype(np.int64),
    )


def _starts(widths: NDArray) -> Ints:
    """Starts of rows with these widths."""
    return np.append(0, np.cumsum(widths)).astype(np.int64)


def _column_type(n_columns: int) -> str:
    return "<u1" if n_columns <= 1 << 8 else "<u2" if n_columns <= 1 << 16 else "<i4"


class PairCounter:
    """Counts features, and marks the pairs of feature and column that occur.

    builder (IndexBuilder or SpanIndexBuilder): Numbers and names the features. known (Table): The present pairs.
    """

    def __init__(self, builder: Union[IndexBuilder, "SpanIndexBuilder"], known: Table):
        self.builder = builder
        self._known = known
        self._counts: Optional[Ints] = None  # counts of the features of chosen tokens
        self._seen = np.zeros((max(1024, len(known.index)), (known.n_columns + 63) // 64), dtype=np.uint64)
        every = np.arange(len(known.index) + 1)
        mark_pairs(every[:-1].astype(np.int32), every, known.pair_columns, known.pair_starts, self._seen)

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
        """`add` for the features of some tokens, each with one column.

        features (TokenFeatures): Features of T tokens.
        chosen (int64[M]): The tokens.
        columns (int64[M]): The column of each.
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
        # The builder counts the features of all tokens; these are those of chosen ones
        counts = np.bincount(rows, minlength=len(self))
        if self._counts is not None:
            counts[: len(self._counts)] += self._counts
        self._counts = counts

    def freeze(self, min_count: int, vocab: Vocab, first: Optional[int] = None) -> Table:
        """A table of the features that occur often enough, and of the known features.

        min_count (int): 0 keeps all, even features without a column, which may have one in other parts of a corpus.
        vocab (Vocab): Names the features.
        first (int): If given, each feature gets a weight for every column from this one on, not only for those it occurs
            with.
        """
        counts = self.builder.table.counts if self._counts is None else self._counts
        n_known = len(self._known.index)
        # Features must be frequent, and have a column; known ones stay
        keep = (counts >= min_count) & (self._seen[: len(self)].any(axis=1) | (min_count == 0))
        keep[:n_known] = True
        met = counts[keep].astype(np.int64)
        met[:n_known] += self._known.counts
        index = self.builder.freeze(keep, vocab)
        n_columns = self._known.n_columns
        if first is not None:
            return Table.full(index, n_columns, met, first=first)
        starts, columns = list_pairs(self._seen[: len(self)][keep], n_columns)
        return Table(index, starts, columns, n_columns, met)


def move_weights(model: Model, name: str, before: Table, after: Table, columns: Optional[Ints] = None) -> None:
    """Move the weights of a table to a larger one; weights of new pairs are zero.

    model (Model): The model with the weights.
    name (str): The name of the parameter.
    before (Table): The table of its weights.
    after (Table): The larger table.
    columns (int64[C]): The number there of each column; None for the same numbers.
    """
    if model.has_param(name):
        set_moved(model, name, partial(spread, places=after.places(before, columns), size=after.n_weights))
    else:
        write_param(model, name, np.zeros(after.n_weights))
