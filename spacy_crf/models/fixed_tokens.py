"""Features of the tokens of a fixed corpus, of one table, and their weights to scores and back: see `features.shared_windows`."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features.extractor import CompiledTemplates
from ..features.shared_windows import CorpusTokens, KindBuilder, with_features
from ..features.token_columns import TokenColumns
from ..types import Floats, TokenFeatures
from .table import Part, Table
from .windows import KindRows

# Windows that occur less often than this times the number of tags have no table of their scores, a row of which is as long as
# all their features together: as fast on CoNLL-2000 (22 tags) and german_ler (39), and with many tags it saves much memory.
_OFTEN = 0.1
# Templates that have weights at fewer tokens than this are listed token by token
_SPARSE = 0.5
# Items lie beside the templates where no more than this times their number has to be kept for it
_PADDED = 2


class FixedTokens:
    """What templates find at the tokens of a corpus, batch by batch: stored once for all windows that look alike.

    compiled (CompiledTemplates): The templates.
    table (Table): Which of their features have weights.
    """

    def __init__(self, compiled: CompiledTemplates, table: Table):
        self.table = table
        self.kinds: list[KindRows] = []
        self.blocks: list[CorpusTokens] = []  # with where weights begin in place of the rows of features
        self._builder = KindBuilder(compiled, table.index)
        self._reach, self._has_items = compiled.reader.reach, bool(compiled.item_templates)

    def add(self, columns: TokenColumns) -> None:
        """The next batch."""
        self.blocks.append(self._builder.add(columns))

    def finish(self) -> None:
        """After the last one."""
        often = max(2, int(_OFTEN * self.table.n_columns))
        shared, blocks = self._builder.finish(self.blocks, often=often)
        if self._has_items:
            blocks = [*map(items_side_by_side, blocks)]
        self.kinds = [KindRows(kinds, self.table, self._reach) for kinds in shared]
        self.blocks = [_by_slots(block, self.table.first_slots) for block in blocks]
        del self._builder

    def move(self, table: Table) -> None:
        """From here on the weights of the features are those of another table, and may be fewer."""
        places, self.table = table.slots_after(self.table), table
        for rows in self.kinds:
            rows.move(table, places)
        self.blocks = [_less(_by_slots(block, places.__getitem__), table) for block in self.blocks]

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that say what it is."""
        for starts, kinds, rest, items in self.blocks:
            yield from (*kinds, starts, rest, items.rows)

    def stored(self) -> list[Any]:
        """What a file can hold of it: lists, numbers and arrays."""
        blocks = [[starts, kinds, rest, list(items)] for starts, kinds, rest, items in self.blocks]
        return [[kinds.stored() for kinds in self.kinds], blocks]

    @classmethod
    def from_stored(cls, stored: list[Any], table: Table) -> "FixedTokens":
        tokens = cls.__new__(cls)
        kinds, blocks = stored
        tokens.table, tokens.kinds = table, [KindRows.from_stored(of_kinds, table) for of_kinds in kinds]
        tokens.blocks = [
            CorpusTokens(starts, of_kinds, rest, TokenFeatures(*items)) for starts, of_kinds, rest, items in blocks
        ]
        return tokens


class TokensPass:
    """One pass over a corpus.

    tokens (FixedTokens): Its features.
    slots (float64[N]): Their weights.
    is_read (bool): Whether scores of windows are asked for.
    """

    def __init__(self, tokens: FixedTokens, slots: Floats, *, is_read: bool = True, threads: int = 1):
        self._blocks, self._table, self._slots = tokens.blocks, tokens.table, slots
        self._kinds = tokens.kinds if is_read else []
        self._scores = [kinds.score(slots, threads=threads) for kinds in self._kinds]
        self._d_scores = [kinds.zeros() for kinds in self._kinds]

    def add_scores(self, number: int, scores: Floats) -> None:
        """Adds those of a batch (float64[T, C])."""
        starts, kinds, rest, items = self._blocks[number]
        for rows, of_tokens, table in zip(self._kinds, kinds, self._scores):
            rows.add_scores(of_tokens, starts, table, scores)
        self._table.add_references(rest, self._slots, scores)
        self._table.add_placed(items, self._slots, scores)

    @property
    def n_tables(self) -> int:
        """How many tables of windows there are, whose derivatives are kept each for itself."""
        return len(self._kinds)

    def scatter_windows(self, table: int, number: int, d_scores: Floats, *, part: Part) -> None:
        """Keeps the derivatives of a batch for one of the tables."""
        block = self._blocks[number]
        self._kinds[table].scatter(block.kinds[table], block.starts, d_scores, self._d_scores[table], part=part)

    def scatter(self, number: int, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: Part) -> None:
        """Adds the gradients of slots that no windows read, and of weights of features with values."""
        block = self._blocks[number]
        self._table.scatter_references(block.rest, d_scores, d_slots, part=part)
        self._table.scatter_placed(block.items, d_scores, d_slots, gradient, part=part)

    def finish(self, d_slots: Floats, *, part: Part) -> None:
        """After the last batch: adds the gradients of the slots that windows read."""
        for rows, d_table in zip(self._kinds, self._d_scores):
            rows.scatter_slots(d_table, d_slots, part=part)


def items_side_by_side(block: CorpusTokens) -> CorpusTokens:
    """Items that are there or not (most functions give no other numbers) beside the templates: what a function gives in the same
    order at each token is read faster so, nearly in half of the time on features of sklearn-crfsuite's tutorial."""
    rows, values, starts = block.items
    there = np.ones(len(rows), dtype=bool) if values is None else values != 0
    counts = np.diff(starts)
    width, n_tokens = int(counts.max(initial=0)), len(counts)
    if (values is not None and (values[there] != 1).any()) or width * n_tokens > _PADDED * len(rows):
        return block
    place = np.arange(len(rows)) - np.repeat(starts[:-1], counts)
    beside = np.full((width, n_tokens), -1, dtype=np.int32)
    beside[place[there], np.repeat(np.arange(n_tokens), counts)[there]] = rows[there]
    none = TokenFeatures(rows[:0], None, np.zeros(n_tokens + 1, dtype=np.int64))
    return block._replace(rest=np.vstack([block.rest, beside]), items=none)


def _by_slots(block: CorpusTokens, first_slots: Callable[[NDArray], NDArray[np.integer]]) -> CorpusTokens:
    """With where the weights of features begin in place of their rows, but for those of items with values."""
    items = block.items
    if items.values is None:
        items = items._replace(rows=first_slots(items.rows))
    return block._replace(rest=first_slots(block.rest), items=items)


def _less(block: CorpusTokens, table: Table) -> CorpusTokens:
    """Without the features that have no weights, as far as that makes a pass shorter."""
    rest, items = block.rest, block.items
    if items.values is not None:
        return block._replace(rest=rest[(rest >= 0).any(axis=1)], items=table.with_weights(items))
    few = (rest >= 0).mean(axis=1) < _SPARSE
    tokens, template = np.nonzero(rest[few].T >= 0)
    items = with_features(items, tokens, rest[few][template, tokens])
    [kept] = np.nonzero(items.rows >= 0)
    starts = np.searchsorted(kept, items.starts).astype(np.int64)
    return block._replace(rest=rest[~few], items=TokenFeatures(items.rows[kept], None, starts))
