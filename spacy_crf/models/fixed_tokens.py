"""Features of the tokens of a fixed corpus, of one table, from weights to scores and back: see `features.shared_windows`.

`WindowTable` has the features of windows that many tokens have, `FixedTokens` holds the features of a corpus, and `TokensPass` is
one pass over it.
"""

from collections.abc import Iterable
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import expect_below, expect_starts, of_file, ranges
from ..features.extractor import CompiledTemplates
from ..features.shared_windows import CorpusTokens, KindBuilder, with_features
from ..features.token_columns import TokenColumns
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import Floats, Ints, TokenFeatures
from .table import GradientPart, Sight, Table

# Windows that occur fewer times than this times the number of tags have no table of their scores, since a row of the table is as
# long as all their features together: as fast on CoNLL-2000 (22 tags) and german_ler (39), and saves memory with many tags.
_OFTEN = 0.1
# Templates that have weights at a smaller share of the tokens are listed token by token
_SPARSE = 0.5
# Items become rows beside the templates if that takes no more than this many times their number
_PADDED = 2
_FAR = 1 << 20  # no template reads tokens so far away


class WindowTable(NamedTuple):
    """Features of the U different windows of one kind in a corpus, see `features.shared_windows`."""

    sight: Sight  # tokens that see a window
    first_slots: dict[int, NDArray[np.integer]]  # by place in the sight: [M, U] first slot of each feature, -1 for none
    reach: int  # of the reader of the corpus
    n_windows: int  # U


class PlacedFeatures(NamedTuple):
    """Features of N tokens, one by one."""

    tokens: Ints  # [K] from 0 to N - 1
    first_slots: NDArray[np.integer]  # [K] -1 for features without weights
    values: Optional[NDArray[np.float32]]  # [K] None if all are 1


class FixedTokens:
    """Features that templates find at the tokens of a corpus, batch by batch, stored once for all windows that look alike. The
    table says which of their features have weights.
    """

    def __init__(self, compiled: CompiledTemplates, table: Table):
        self.table = table
        self.windows: list[WindowTable] = []
        self.blocks: list[CorpusTokens] = []  # with first slots in place of feature rows
        self._builder = KindBuilder(compiled, table.index)
        self._reach = compiled.reader.reach
        self._has_items = bool(compiled.item_templates)

    def add(self, columns: TokenColumns) -> None:
        """Add the next batch.

        columns (TokenColumns): Attributes of its tokens.
        """
        self.blocks.append(self._builder.add(columns))

    def finish(self) -> None:
        """Complete the corpus after the last batch."""
        shared, blocks = self._builder.finish(self.blocks, often=max(2, int(_OFTEN * self.table.n_columns)))
        if self._has_items:
            blocks = [*map(items_side_by_side, blocks)]
        for kinds in shared:
            sight = Sight.of(kinds.offsets)
            first_slots = {
                sight.place(offset): np.ascontiguousarray(self.table.first_slots(of_offset))
                for offset, of_offset in zip(kinds.offsets, kinds.rows)
            }
            self.windows.append(WindowTable(sight, first_slots, self._reach, kinds.rows[0].shape[1]))
        # From here on blocks have first slots in place of rows of features
        first_slots = self.table.first_slots
        placed = self.table.placed
        self.blocks = [block._replace(rest=first_slots(block.rest), items=placed(block.items)) for block in blocks]
        del self._builder

    def move(self, table: Table) -> None:
        """Replace the weights by those of another table of the same features, which may have fewer weights."""
        places = table.slots_after(self.table)
        self.table = table
        before = self.blocks
        self.blocks = []
        for block in before:
            moved = block._replace(rest=places[block.rest], items=table.placed_after(block.items, places))
            self.blocks.append(_shorter(moved))
        for number, windows in enumerate(self.windows):
            first_slots = {place: places[slots] for place, slots in windows.first_slots.items()}
            self.windows[number] = windows._replace(first_slots=first_slots)

    def listed(self, number: int, tokens: Ints) -> "PlacedFeatures":
        """The features of some tokens of a batch, one by one.

        number (int): The number of the batch.
        tokens (int64[N]): The tokens.
        """
        starts, kinds, rest, items = self.blocks[number]
        behind = 2 * np.searchsorted(starts, tokens, side="right") - 1  # positions around sequences, in units of reach
        of_templates = [rest[:, tokens]]
        for windows, of_positions in zip(self.windows, kinds):
            for place, first_slots in windows.first_slots.items():
                # The window that stands at the place from which the token reads
                kind = of_positions[tokens - windows.sight.first - place + behind * windows.reach]
                of_templates.append(np.where(kind >= 0, first_slots[:, kind], -1))
        slots = np.vstack(of_templates)
        template, at = np.nonzero(slots >= 0)
        begin = items.starts[tokens]
        end = items.starts[tokens + 1]
        # Features of functions, which may have values, come one by one
        chosen = ranges(begin, end)
        values = None
        rows = items.rows[chosen]
        if items.values is not None:
            rows = self.table.first_slots(rows)
            values = np.append(np.ones(len(at), dtype=np.float32), items.values[chosen])
        at_items = np.repeat(np.arange(len(tokens)), end - begin)
        return PlacedFeatures(np.append(at, at_items), np.append(slots[template, at], rows), values)

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish these features from others."""
        for starts, kinds, rest, items in self.blocks:
            yield from (*kinds, starts, rest, items.rows)

    def stored(self) -> list:
        """The features as a file can hold them: lists, numbers and arrays."""
        windows = []
        for sight, first_slots, reach, n_windows in self.windows:
            windows.append([list(sight), [list(item) for item in first_slots.items()], reach, n_windows])
        return [windows, [[starts, kinds, rest, list(items)] for starts, kinds, rest, items in self.blocks]]

    @classmethod
    def from_stored(cls, stored: list, table: Table) -> "FixedTokens":
        """Features from the data that `stored` gives.

        stored (list): The data.
        table (Table): The table of the features.
        RAISES: An error of any class for other data.
        """
        tokens = cls.__new__(cls)
        windows, blocks = stored
        tokens.table = table
        tokens.windows = [WindowTable(Sight(*sight), dict(slots), *rest) for sight, slots, *rest in windows]
        tokens.blocks = [
            CorpusTokens(starts, kinds, rest, TokenFeatures(*items)) for starts, kinds, rest, items in blocks
        ]
        tokens._expect_whole()
        return tokens

    def _expect_whole(self) -> None:
        """RAISES (ValueError): For arrays by which kernels can't index."""
        for sight, first_slots, reach, n_windows in self.windows:
            numbers = [*sight, *first_slots, reach, n_windows]
            if not all(type(number) is int for number in numbers) or min(sight.width, reach, n_windows) < 0:
                raise ValueError(f"windows are described by {numbers}")
            ends = sight.first, sight.first + max(0, sight.width - 1)  # a window is within reach of those that see it
            if reach > _FAR or max(map(abs, ends)) > reach:
                raise ValueError(f"tokens from {ends[0]} to {ends[1]} see windows, beyond {reach}")
            for place, slots in first_slots.items():
                if not 0 <= place < sight.width or np.shape(slots)[1:] != (n_windows,):
                    raise ValueError(f"windows at {place} have the shape {np.shape(slots)}")
                self.table.expect_slots("slots of windows", slots)
        for starts, kinds, rest, items in self.blocks:
            n_tokens = rest.shape[1]
            of_file("starts of sequences", starts, np.int64, (None,), copied=False)
            expect_starts("starts of sequences", starts, n_tokens)
            if len(kinds) != len(self.windows) or len(items.starts) != n_tokens + 1:
                raise ValueError(f"{len(kinds)} kinds and {len(items.starts) - 1} tokens with other features")
            for windows, of_kind in zip(self.windows, kinds):
                n_positions = n_tokens + 2 * windows.reach * (len(starts) - 1)
                of_file("kinds of windows", of_kind, np.int32, (n_positions,), copied=False)
                expect_below("kinds of windows", of_kind, windows.n_windows, least=-1)
            self.table.expect_slots("slots of tokens", rest)
            self.table.expect_placed("other features of tokens", items)


class TokensPass:
    """One pass over a corpus.

    tokens (FixedTokens): The features of the corpus.
    slots (float64[N]): Weights of the features, by slot.
    """

    def __init__(self, tokens: FixedTokens, slots: Floats, *, threads: int = 1):
        self._blocks = tokens.blocks
        self._windows = tokens.windows
        self._table = tokens.table
        self._slots = slots
        shapes = [(windows.n_windows, windows.sight.width, self._table.n_columns) for windows in self._windows]
        # Scores of each window for each token that sees it, and their derivatives: [U, O, C]
        self._scores = [*map(np.zeros, shapes)]
        self._d_scores = [*map(np.zeros, shapes)]
        for windows, scores in zip(self._windows, self._scores):
            for place, first_slots in windows.first_slots.items():
                self._table.add_references(first_slots, slots, scores, place=place, threads=threads)

    def add_scores(self, number: int, scores: Floats) -> None:
        """Add the scores of a batch.

        number (int): The number of the batch.
        scores (float64[T, C]): Receives the sums.
        """
        starts, kinds, rest, items = self._blocks[number]
        for windows, of_tokens, of_windows in zip(self._windows, kinds, self._scores):
            add_kind_rows(of_tokens, starts, windows.reach, windows.sight.first, of_windows, scores)
        self._table.add_references(rest, self._slots, scores)
        self._table.add_placed(items, self._slots, scores)

    @property
    def n_tables(self) -> int:
        """Number of tables of windows, whose derivatives are collected separately."""
        return len(self._windows)

    def scatter_windows(self, table: int, number: int, d_scores: Floats, *, part: GradientPart) -> None:
        """Collect the derivatives of a batch for one of the tables of windows.

        table (int): The number of the table.
        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of its tokens.
        part (GradientPart): The rows that this thread adds up.
        """
        block = self._blocks[number]
        windows = self._windows[table]
        where = block.kinds[table], block.starts, windows.reach, windows.sight.first
        scatter_kind_rows(*where, d_scores, *part, self._d_scores[table])

    def scatter(self, number: int, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart) -> None:
        """Add the gradients of slots that no window uses, and of weights of features with values.

        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of its tokens.
        d_slots (float64[N]): Receives the gradients of slots.
        gradient (float64[W]): Receives the gradients of weights of features with values.
        part (GradientPart): The rows that this thread adds up.
        """
        block = self._blocks[number]
        self._table.scatter_references(block.rest, d_scores, d_slots, part=part)
        self._table.scatter_placed(block.items, d_scores, d_slots, gradient, part=part)

    def finish(self, d_slots: Floats, part: GradientPart) -> None:
        """Add the gradients of the slots that windows use, after the last batch.

        d_slots (float64[N]): Receives the gradients.
        part (GradientPart): The rows that this thread adds up.
        """
        for windows, d_scores in zip(self._windows, self._d_scores):
            for place, first_slots in windows.first_slots.items():
                self._table.scatter_references(first_slots, d_scores, d_slots, place=place, part=part)


def items_side_by_side(block: CorpusTokens) -> CorpusTokens:
    """Move items without values (as most functions give them) into rows beside the templates: if a function gives items
    in the same order at each token, reading them takes nearly half of the time (features of sklearn-crfsuite's
    tutorial).

    block (CorpusTokens): The features of a batch.
    """
    rows, values, starts = block.items
    # A feature with the value 0 is as good as none
    there = np.ones(len(rows), dtype=bool) if values is None else values != 0
    counts = np.diff(starts)
    width = int(counts.max(initial=0))
    n_tokens = len(counts)
    if (values is not None and (values[there] != 1).any()) or width * n_tokens > _PADDED * len(rows):
        return block
    # Number of each item among the items of its token
    place = np.arange(len(rows)) - np.repeat(starts[:-1], counts)
    beside = np.full((width, n_tokens), -1, dtype=np.int32)
    beside[place[there], np.repeat(np.arange(n_tokens), counts)[there]] = rows[there]
    none = TokenFeatures(rows[:0], None, np.zeros(n_tokens + 1, dtype=np.int64))
    return block._replace(rest=np.vstack([block.rest, beside]), items=none)


def _shorter(block: CorpusTokens) -> CorpusTokens:
    """The block with templates that have few weights moved to the items, if that makes a pass shorter."""
    rest = block.rest
    items = block.items
    if items.values is not None:
        return block._replace(rest=rest[(rest >= 0).any(axis=1)])
    few = (rest >= 0).mean(axis=1) < _SPARSE
    tokens, template = np.nonzero(rest[few].T >= 0)
    return block._replace(rest=rest[~few], items=with_features(items, tokens, rest[few][template, tokens]))
