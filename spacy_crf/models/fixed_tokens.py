"""Features of the tokens of a fixed corpus, of one table, from weights to scores and back: see `features.shared_windows`.

`KindRows` scores windows that many tokens have, `FixedTokens` holds the features of a corpus, and `TokensPass` is one pass over
it. Where a structure prunes most states, it asks for the scores of three or four of some hundreds, again and again until it looks
for better ones: `ChosenScores` lists once which weights these scores need, and a pass then reads no others.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import ranges
from ..features.extractor import CompiledTemplates
from ..features.shared_windows import CorpusTokens, KindBuilder, KindFeatures, with_features
from ..features.token_columns import TokenColumns
from ..inference.structure import ScorePlaces
from ..kernels.partial_scores import add_uses, list_uses, scatter_uses
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import Floats, TokenFeatures
from .table import ALL, GradientPart, Sight, Table

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


class KindRows:
    """Weights to scores and back over a fixed corpus whose windows are of few kinds (``features.shared_windows``)."""

    def __init__(self, kinds: KindFeatures, rows: Table, reach: int):
        self._sight = Sight.of(kinds.offsets)
        self._first_slots = {
            self._sight.place(offset): np.ascontiguousarray(rows.first_slots(of_offset))
            for offset, of_offset in zip(kinds.offsets, kinds.rows)
        }
        self._rows = rows
        self._reach = reach
        self._shape = (kinds.rows[0].shape[1], self._sight.width, rows.n_columns)

    def move(self, rows: Table, places: NDArray[np.integer]) -> None:
        """From here on the weights of the features are those of another table.

        places (int[N + 1]): Where each slot is in that, -1 for none.
        """
        self._rows, self._shape = rows, (*self._shape[:2], rows.n_columns)
        self._first_slots = {place: places[first_slots] for place, first_slots in self._first_slots.items()}

    def stored(self) -> list[Any]:
        """What a file can hold of it."""
        return [list(self._sight), [*map(list, self._first_slots.items())], self._reach, list(self._shape)]

    @classmethod
    def from_stored(cls, stored: list[Any], rows: Table) -> "KindRows":
        kinds = cls.__new__(cls)
        sight, first_slots, kinds._reach, shape = stored
        kinds._sight, kinds._shape = Sight(*sight), tuple(shape)
        kinds._first_slots, kinds._rows = dict(first_slots), rows
        return kinds

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

    def seen(self, kinds: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.integer]:
        """Where the weights of the features of each token begin, -1 for none: int[M, T]."""
        lengths = np.diff(starts)
        # A token's own position among those of all sequences, which have more around them
        own = np.arange(starts[-1]) + np.repeat((2 * np.arange(len(lengths)) + 1) * self._reach, lengths)
        found = []
        for place, first_slots in self._first_slots.items():
            kind = kinds[own - self._sight.first - place]
            found.append(np.where(kind >= 0, first_slots[:, kind], -1))
        return np.vstack(found)

    def scatter(
        self,
        kinds: NDArray[np.int32],
        starts: NDArray[np.int64],
        d_scores: Floats,
        d_table: Floats,
        *,
        part: GradientPart = ALL,
    ) -> None:
        """Adds the gradient of the kinds' scores to ``d_table``."""
        scatter_kind_rows(kinds, starts, self._reach, self._sight.first, d_scores, *part, d_table)

    def scatter_slots(self, d_table: Floats, d_slots: Floats, *, part: GradientPart = ALL) -> None:
        """Adds the gradient of the slots to ``d_slots``."""
        for place, first_slots in self._first_slots.items():
            self._rows.scatter_references(first_slots, d_table, d_slots, place=place, part=part)


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

    def scatter_windows(self, table: int, number: int, d_scores: Floats, *, part: GradientPart) -> None:
        """Keeps the derivatives of a batch for one of the tables."""
        block = self._blocks[number]
        self._kinds[table].scatter(block.kinds[table], block.starts, d_scores, self._d_scores[table], part=part)

    def scatter(self, number: int, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart) -> None:
        """Adds the gradients of slots that no windows read, and of weights of features with values."""
        block = self._blocks[number]
        self._table.scatter_references(block.rest, d_scores, d_slots, part=part)
        self._table.scatter_placed(block.items, d_scores, d_slots, gradient, part=part)

    def finish(self, d_slots: Floats, part: GradientPart) -> None:
        """Add the gradients of the slots that windows read, after the last batch."""
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


_USES = 24  # of a score, for which there is room at first
_MOST_WHOLE = 0.5  # above this share of tokens whose states are all asked for, nothing is listed


class WeightUses(NamedTuple):
    """Which weights are added to which scores."""

    places: NDArray[np.integer]  # [U] token · C + column
    weights: NDArray[np.integer]  # [U]


class ChosenScores(NamedTuple):
    """What a batch of T tokens gives of its scores, which have C columns."""

    known: NDArray[np.int64]  # [N] places whose uses are listed, rising
    uses: WeightUses
    whole: NDArray[np.int64]  # [M] tokens of which all columns are asked for
    references: NDArray[np.integer]  # [templates, M] features of these, as `Table.add_references` takes them
    listed: TokenFeatures  # further ones, as `Table.add_placed` takes them

    @classmethod
    def of(
        cls,
        tokens: FixedTokens,
        number: int,
        asked: ScorePlaces,
        before: "Optional[ChosenScores]" = None,
    ) -> "Optional[ChosenScores]":
        """tokens (FixedTokens): Of a corpus, of which this is the batch with a number.

        asked (ScorePlaces): What is asked for; of a token without any, everything.
        before (ChosenScores): What was asked for of the same batch: mostly the same.
        RETURNS (ChosenScores): None where that is most of all.
        """
        block, states = tokens.blocks[number], tokens.table
        n_columns, items = states.n_columns, block.items
        n_tokens = int(block.starts[-1])
        is_whole = np.bincount(asked.tokens, minlength=n_tokens) == 0
        [whole] = np.nonzero(is_whole)
        if items.values is not None or len(whole) > _MOST_WHOLE * n_tokens:
            return None
        known, uses = _still_asked(before, is_whole, n_columns)
        new = np.setdiff1d(asked.tokens * n_columns + asked.states, known, assume_unique=True)
        references = [rows.seen(of_tokens, block.starts) for rows, of_tokens in zip(tokens.kinds, block.kinds)]
        references = np.vstack([*references, block.rest])
        uses = _join(uses, _list_uses(references, items, states, new))
        begin, end = items.starts[whole], items.starts[whole + 1]
        of_whole = TokenFeatures(items.rows[ranges(begin, end)], None, np.append(0, np.cumsum(end - begin)))
        return cls(np.union1d(known, new), uses, whole, np.ascontiguousarray(references[:, whole]), of_whole)

    def score(self, states: Table, weights: Floats, slots: Floats, scores: Floats) -> None:
        """Add the chosen scores to ``scores`` (float64[T, C]), with weights (float64[W]) that are also given by slot."""
        add_uses(*self.uses, weights, scores.reshape(-1))
        if len(self.whole):
            of_whole = np.zeros((len(self.whole), scores.shape[1]))
            states.add_references(self.references, slots, of_whole)
            states.add_placed(self.listed, slots, of_whole)
            scores[self.whole] = of_whole

    def scatter(
        self, states: Table, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart
    ) -> None:
        """Add the gradients of slots and of weights; the derivatives of other scores are 0."""
        scatter_uses(*self.uses, d_scores.reshape(-1), *part, gradient)
        if len(self.whole):
            d_whole = d_scores[self.whole]
            states.scatter_references(self.references, d_whole, d_slots, part=part)
            states.scatter_placed(self.listed, d_whole, d_slots, gradient, part=part)


def _still_asked(
    before: Optional[ChosenScores], is_whole: NDArray[np.bool_], n_columns: int
) -> tuple[NDArray[np.int64], Optional[WeightUses]]:
    """What is listed already, but for tokens of which now everything is asked for."""
    if before is None:
        return np.zeros(0, dtype=np.int64), None
    if not is_whole[before.known // n_columns].any():
        return before.known, before.uses
    stays = ~is_whole[before.uses.places // n_columns]
    return before.known[~is_whole[before.known // n_columns]], WeightUses(*(array[stays] for array in before.uses))


def _list_uses(
    references: NDArray[np.integer], items: TokenFeatures, states: Table, places: NDArray[np.int64]
) -> WeightUses:
    """The weights that are added at some places, in rising order."""
    tokens, columns = places // states.n_columns, places % states.n_columns
    starts = np.append(0, np.cumsum(np.bincount(tokens, minlength=references.shape[1])))
    narrow = references.shape[1] * states.n_columns <= np.iinfo(np.int32).max
    listed = items.rows.astype(references.dtype), items.starts
    asked = states.n_columns, starts, columns
    size = _USES * len(places)
    while True:
        uses = WeightUses(
            np.empty(size, dtype=np.int32 if narrow else np.int64), np.empty(size, dtype=references.dtype)
        )
        found = list_uses(references, listed, states.slot_columns, states.weight_of_slot, asked, tuple(uses))
        if found <= size:
            return WeightUses(*(array[:found].copy() for array in uses))
        size = found


def _join(uses: Optional[WeightUses], more: WeightUses) -> WeightUses:
    return more if uses is None else WeightUses(*map(np.concatenate, zip(uses, more)))
