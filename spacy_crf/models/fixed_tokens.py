"""Features of the tokens of a fixed corpus, of one table, from weights to scores and back: see `features.shared_windows`.

`WindowTable` has the features of windows that many tokens have, `FixedTokens` holds the features of a corpus, and `TokensPass` is
one pass over it. Where a structure prunes most states, it asks for the scores of three or four of some hundreds, again and again
until it looks for better ones: `ChosenScores` lists once which weights these scores need, and a pass then reads no others.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..arrays import ranges
from ..features.extractor import CompiledTemplates
from ..features.shared_windows import CorpusTokens, KindBuilder, with_features
from ..features.token_columns import TokenColumns
from ..inference.structure import ScorePlaces
from ..kernels.partial_scores import add_uses, list_uses, scatter_uses
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import Floats, TokenFeatures
from .table import GradientPart, Sight, Table

# Windows that occur less often than this times the number of tags have no table of their scores, a row of which is as long as
# all their features together: as fast on CoNLL-2000 (22 tags) and german_ler (39), and with many tags it saves much memory.
_OFTEN = 0.1
# Templates that have weights at fewer tokens than this are listed token by token
_SPARSE = 0.5
# Items lie beside the templates where no more than this times their number has to be kept for it
_PADDED = 2


class WindowTable(NamedTuple):
    """Features of the U different windows of one kind in a corpus, see `features.shared_windows`."""

    sight: Sight  # tokens that see a window
    first_slots: dict[int, NDArray[np.integer]]  # by place in the sight: [M, U] first slot of each feature, -1 for none
    reach: int  # of the reader of the corpus
    n_windows: int  # U

    def seen(self, windows: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.integer]:
        """First slots of the features of each token, -1 for none: int[M, T]."""
        lengths = np.diff(starts)
        # A token's own position among those of all sequences, which have more around them
        own = np.arange(starts[-1]) + np.repeat((2 * np.arange(len(lengths)) + 1) * self.reach, lengths)
        found = []
        for place, first_slots in self.first_slots.items():
            window = windows[own - self.sight.first - place]
            found.append(np.where(window >= 0, first_slots[:, window], -1))
        return np.vstack(found)


class FixedTokens:
    """Features that templates find at the tokens of a corpus, batch by batch, stored once for all windows that look alike.

    compiled (CompiledTemplates): The templates.
    table (Table): Which of their features have weights.
    """

    def __init__(self, compiled: CompiledTemplates, table: Table):
        self.table = table
        self.windows: list[WindowTable] = []
        self.blocks: list[CorpusTokens] = []  # with first slots in place of the rows of features
        self._builder = KindBuilder(compiled, table.index)
        self._reach, self._has_items = compiled.reader.reach, bool(compiled.item_templates)

    def add(self, columns: TokenColumns) -> None:
        """Add the next batch."""
        self.blocks.append(self._builder.add(columns))

    def finish(self) -> None:
        """Complete the corpus after the last batch."""
        often = max(2, int(_OFTEN * self.table.n_columns))
        shared, blocks = self._builder.finish(self.blocks, often=often)
        if self._has_items:
            blocks = [*map(items_side_by_side, blocks)]
        for kinds in shared:
            sight = Sight.of(kinds.offsets)
            first_slots = {
                sight.place(offset): np.ascontiguousarray(self.table.first_slots(of_offset))
                for offset, of_offset in zip(kinds.offsets, kinds.rows)
            }
            self.windows.append(WindowTable(sight, first_slots, self._reach, kinds.rows[0].shape[1]))
        self.blocks = [_by_slots(block, self.table.first_slots) for block in blocks]
        del self._builder

    def move(self, table: Table) -> None:
        """Replace the weights by those of another table of the same features, which may have fewer."""
        places, self.table = table.slots_after(self.table), table
        self.windows = [
            windows._replace(first_slots={place: places[slots] for place, slots in windows.first_slots.items()})
            for windows in self.windows
        ]
        self.blocks = [_less(_by_slots(block, places.__getitem__), table) for block in self.blocks]

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish these features from others."""
        for starts, kinds, rest, items in self.blocks:
            yield from (*kinds, starts, rest, items.rows)

    def stored(self) -> list[Any]:
        """The features as a file can hold them: lists, numbers and arrays."""
        windows = [[list(sight), [*map(list, slots.items())], *rest] for sight, slots, *rest in self.windows]
        return [windows, [[starts, kinds, rest, list(items)] for starts, kinds, rest, items in self.blocks]]

    @classmethod
    def from_stored(cls, stored: list[Any], table: Table) -> "FixedTokens":
        """Features from the data that `stored` gives."""
        tokens, (windows, blocks) = cls.__new__(cls), stored
        tokens.table = table
        tokens.windows = [WindowTable(Sight(*sight), dict(slots), *rest) for sight, slots, *rest in windows]
        tokens.blocks = [
            CorpusTokens(starts, kinds, rest, TokenFeatures(*items)) for starts, kinds, rest, items in blocks
        ]
        return tokens


class TokensPass:
    """One pass over a corpus.

    tokens (FixedTokens): The features of the corpus.
    slots (float64[N]): Their weights.
    is_read (bool): Whether any scores of windows are needed.
    """

    def __init__(self, tokens: FixedTokens, slots: Floats, *, is_read: bool = True, threads: int = 1):
        self._blocks, self._table, self._slots = tokens.blocks, tokens.table, slots
        self._windows = tokens.windows if is_read else []
        shapes = [(windows.n_windows, windows.sight.width, self._table.n_columns) for windows in self._windows]
        # Scores of each window for each token that sees it, and their derivatives: [U, O, C]
        self._scores, self._d_scores = [*map(np.zeros, shapes)], [*map(np.zeros, shapes)]
        for windows, scores in zip(self._windows, self._scores):
            for place, first_slots in windows.first_slots.items():
                self._table.add_references(first_slots, slots, scores, place=place, threads=threads)

    def add_scores(self, number: int, scores: Floats) -> None:
        """Add the scores of a batch to ``scores`` (float64[T, C])."""
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
        """Collect the derivatives of a batch for one of the tables of windows."""
        block, windows = self._blocks[number], self._windows[table]
        where = block.kinds[table], block.starts, windows.reach, windows.sight.first
        scatter_kind_rows(*where, d_scores, *part, self._d_scores[table])

    def scatter(self, number: int, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart) -> None:
        """Add the gradients of slots that no windows read, and of weights of features with values."""
        block = self._blocks[number]
        self._table.scatter_references(block.rest, d_scores, d_slots, part=part)
        self._table.scatter_placed(block.items, d_scores, d_slots, gradient, part=part)

    def finish(self, d_slots: Floats, part: GradientPart) -> None:
        """Add the gradients of the slots that windows read, after the last batch."""
        for windows, d_scores in zip(self._windows, self._d_scores):
            for place, first_slots in windows.first_slots.items():
                self._table.scatter_references(first_slots, d_scores, d_slots, place=place, part=part)


def items_side_by_side(block: CorpusTokens) -> CorpusTokens:
    """Items without values (as most functions give them) beside the templates: items that a function gives in the same order at
    each token are read faster, in nearly half of the time on features of sklearn-crfsuite's tutorial.
    """
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
    """The block with first slots in place of the rows of features, except for items with values."""
    items = block.items
    if items.values is None:
        items = items._replace(rows=first_slots(items.rows))
    return block._replace(rest=first_slots(block.rest), items=items)


def _less(block: CorpusTokens, table: Table) -> CorpusTokens:
    """The block without features that have no weights, if that makes a pass shorter."""
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
    """Weights that are added to scores, and these scores."""

    places: NDArray[np.integer]  # [U] token · C + column
    weights: NDArray[np.integer]  # [U]


class ChosenScores(NamedTuple):
    """Some scores of a batch of T tokens, with C columns, that many passes need."""

    known: NDArray[np.int64]  # [N] places with listed uses, rising
    uses: WeightUses
    whole: NDArray[np.int64]  # [M] tokens of which all columns are needed
    references: NDArray[np.integer]  # [templates, M] their features, as `Table.add_references` takes them
    listed: TokenFeatures  # further features of theirs, as `Table.add_placed` takes them

    @classmethod
    def of(
        cls,
        tokens: FixedTokens,
        number: int,
        asked: ScorePlaces,
        before: "Optional[ChosenScores]" = None,
    ) -> "Optional[ChosenScores]":
        """List the weights that some scores of a batch need.

        tokens (FixedTokens): Features of the corpus. number (int): Of the batch.
        asked (ScorePlaces): The scores; for a token without any, all of its scores.
        before (ChosenScores): The previous choice for the batch, mostly the same.
        RETURNS (ChosenScores): None if most scores are needed.
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
        references = [windows.seen(of_tokens, block.starts) for windows, of_tokens in zip(tokens.windows, block.kinds)]
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
    """Uses that are listed already, except for tokens whose scores are now all needed."""
    if before is None:
        return np.zeros(0, dtype=np.int64), None
    if not is_whole[before.known // n_columns].any():
        return before.known, before.uses
    stays = ~is_whole[before.uses.places // n_columns]
    return before.known[~is_whole[before.known // n_columns]], WeightUses(*(array[stays] for array in before.uses))


def _list_uses(
    references: NDArray[np.integer], items: TokenFeatures, states: Table, places: NDArray[np.int64]
) -> WeightUses:
    """Uses of weights at some places (int64[N], rising)."""
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
