"""Features of a fixed corpus, stored once for all windows that look alike.

A template that reads the tags at -1 and 0 finds at a token the values that a template for 0 and 1 finds at the token before: both
look at a window of two tags, one from offset -1, one from offset 0. Windows with the same tags are of one kind, and a kind has
the same features for the token that sees it at some offset, wherever the window is. So the three templates of a window of three
tags, and all templates of its parts, cost a token three references, whatever the number of templates.

The templates that read a single position are the windows of one position, and read all their columns there. Templates that
read several positions share windows if they read the same columns. Where most windows of a corpus are of a kind of their
own (pairs of words), their templates are left as they are; and a window that few others look like is left as well.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.hashing import hash_rows
from ..types import TemplateRows, TokenFeatures
from .extractor import CompiledTemplates
from .feature_index import CountingTable, FeatureIndex, by_token
from .token_columns import TokenColumns

# All columns at all positions of a batch, those around each sequence too: uint64[N, C]; how many positions follow each: int64[N]
_Positions = tuple[NDArray[np.uint64], NDArray[np.int64]]
# Windows share kinds if there are no more than this share of kinds among the windows of the first batch
_FEW = 0.25


class KindFeatures(NamedTuple):
    """Features of U kinds of windows seen from O offsets."""

    offsets: NDArray[np.int64]  # [O] where a window begins, relative to the token
    rows: list[TemplateRows]  # [O] of int32[M, U]: the features of the token that sees a window of that kind


class CorpusTokens(NamedTuple):
    """The features of a batch of T tokens in B sequences."""

    starts: NDArray[np.int64]  # [B + 1] of the sequences
    # For each kind of window: int32[T + 2 * reach * B], of all positions of the sequences and ``reach`` around each; -1 where
    # the features are among the items
    kinds: list[NDArray[np.int32]]
    rest: TemplateRows  # [M, T] of the other templates
    items: TokenFeatures  # of functions and extensions, and of windows that few others look like


class KindBuilder:
    """Finds the kinds of windows of a corpus, batch by batch."""

    def __init__(self, compiled: CompiledTemplates, index: FeatureIndex):
        self._compiled = compiled
        self._index = index
        self._windows: list[_Windows] | None = None
        self._rest = compiled

    def add(self, columns: TokenColumns) -> CorpusTokens:
        """The features of a batch of tokens."""
        lengths = np.diff(columns.starts) + 2 * self._compiled.reader.reach
        values = np.hstack([columns.table.columns[columns.lexemes], columns.values])
        positions = values, np.repeat(np.cumsum(lengths), lengths) - 1 - np.arange(len(values))
        if self._windows is None:
            self._windows = self._choose(positions)
            rest = np.ones(len(self._compiled.templates), dtype=bool)
            for windows in self._windows:
                rest[windows.templates] = False
            self._rest = self._compiled.only(rest)
        kinds = [windows.add(positions) for windows in self._windows]
        rest, items = self._rest.rows_by_template(columns, self._index)
        return CorpusTokens(columns.starts, kinds, rest, items)

    def finish(self, corpus: list[CorpusTokens], *, often: int = 2) -> tuple[list[KindFeatures], list[CorpusTokens]]:
        """The features of the kinds that occur at least so often, and all batches with the numbers of these."""
        shared = []
        for number, windows in enumerate(self._windows or []):
            features = windows.features(self._index)
            counts = sum(np.bincount(batch.kinds[number], minlength=features.rows[0].shape[1]) for batch in corpus)
            common = counts >= often
            numbers = np.where(common, np.cumsum(common) - 1, -1).astype(np.int32)
            corpus = [self._leave_single(batch, number, features, numbers) for batch in corpus]
            shared.append(features._replace(rows=[rows[:, common] for rows in features.rows]))
        return shared, corpus

    def _leave_single(
        self, batch: CorpusTokens, number: int, features: KindFeatures, numbers: NDArray[np.int32]
    ) -> CorpusTokens:
        """A batch with new numbers of its kinds; the features of those without one become items."""
        kinds = batch.kinds[number]
        single = np.flatnonzero(numbers[kinds] < 0)
        lengths, reach = np.diff(batch.starts), self._compiled.reader.reach
        ends = np.cumsum(lengths + 2 * reach)
        sequence = np.searchsorted(ends, single, side="right")
        position = single - (2 * sequence + 1) * reach  # as a token's number, may it be outside the sequence
        tokens, rows = [], []
        for offset, rows_of_kinds in zip(features.offsets, features.rows):
            token = position - offset
            seen = (batch.starts[sequence] <= token) & (token < batch.starts[sequence + 1])
            found = rows_of_kinds[:, kinds[single[seen]]]  # [M, N]
            known = found >= 0
            tokens.append(np.broadcast_to(token[seen], found.shape)[known])
            rows.append(found[known])
        items = with_features(batch.items, np.concatenate(tokens), np.concatenate(rows))
        renumbered = [numbers[kinds] if n == number else others for n, others in enumerate(batch.kinds)]
        return batch._replace(kinds=renumbered, items=items)

    def _choose(self, positions: _Positions) -> list["_Windows"]:
        """Decides which windows to share, by those of the first batch."""
        chosen = []
        [single] = np.nonzero(self._compiled.widths == 1)
        if len(single):
            chosen.append(_Windows(self._compiled, single, 1))
        by_columns: dict[tuple[int, ...], list[int]] = {}
        for template in np.flatnonzero(self._compiled.widths > 1).tolist():
            parts = self._compiled.parts_of(template)
            by_columns.setdefault(tuple(np.unique(self._compiled.part_columns[parts])), []).append(template)
        for templates in by_columns.values():
            # The widest windows hold the others, but are of the most kinds.
            widths = self._compiled.widths[templates]
            for width in np.unique(widths)[::-1]:
                windows = _Windows(self._compiled, np.array(templates)[widths <= width], int(width))
                _, keys = windows.read(positions)
                if len(np.unique(keys)) <= _FEW * len(positions[0]):
                    chosen.append(windows)
                    break
        return chosen


class _Windows:
    """Windows of some columns and one width, and the templates that each read within one such window.

    compiled (CompiledTemplates): All templates.
    templates (int64[M]): Which of them.
    width (int): Of the windows, in positions; at least that of any template.
    """

    def __init__(self, compiled: CompiledTemplates, templates: NDArray[np.int64], width: int):
        self.templates = templates
        self._compiled = compiled
        self._width = width
        parts = np.concatenate([compiled.parts_of(template) for template in templates])
        self._columns = np.unique(compiled.part_columns[parts])
        self._table = CountingTable()
        self._values = [np.zeros((0, width * len(self._columns)), dtype=np.uint64)]  # of each kind
        self._at_offset: dict[int, list[int]] = {}  # templates by where the window that they see begins
        for template in sorted(templates.tolist(), key=lambda template: -compiled.widths[template]):
            offsets = compiled.part_offsets[compiled.parts_of(template)]
            first, last = int(offsets.min()), int(offsets.max())
            fitting = [offset for offset in self._at_offset if offset <= first and last < offset + width]
            self._at_offset.setdefault(fitting[0] if fitting else first, []).append(template)

    def add(self, positions: _Positions) -> NDArray[np.int32]:
        """RETURNS (int32[N]): The kind of the window that begins at each position."""
        values, keys = self.read(positions)
        self._values.append(values[self._table.add(keys)])
        return self._table.rows(keys)

    def read(self, positions: _Positions) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The values in each window, and one key for all of them. Nothing is read behind the positions around a sequence."""
        columns, room = positions[0][:, self._columns], positions[1]
        values = np.zeros((len(columns), self._width, len(self._columns)), dtype=np.uint64)
        for place in range(self._width):
            known = np.flatnonzero(room >= place)
            values[known, place] = columns[known + place]
        values = values.reshape(len(columns), self._width * len(self._columns))
        return values, hash_rows(values)

    def features(self, index: FeatureIndex) -> KindFeatures:
        values = np.concatenate(self._values)
        offsets = sorted(self._at_offset)
        rows = []
        for offset in offsets:
            chosen = np.zeros(len(self._compiled.templates), dtype=bool)
            chosen[self._at_offset[offset]] = True
            seen = self._compiled.only(chosen, items=False)
            places = (seen.part_offsets - offset) * len(self._columns)
            places += np.searchsorted(self._columns, seen.part_columns)
            rows.append(seen.rows_of_values(np.ascontiguousarray(values.T), places, index))
        return KindFeatures(np.array(offsets, dtype=np.int64), rows)


def with_features(features: TokenFeatures, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> TokenFeatures:
    """Add features of value 1 (rows int32[N]) to some tokens (int64[N])."""
    n_tokens = len(features.starts) - 1
    tokens = np.concatenate([np.repeat(np.arange(n_tokens), np.diff(features.starts)), tokens])
    values = features.values
    if values is not None:
        values = np.concatenate([values, np.ones(len(rows), dtype=np.float32)])
    return by_token(tokens, np.concatenate([features.rows, rows]), values, n_tokens)
