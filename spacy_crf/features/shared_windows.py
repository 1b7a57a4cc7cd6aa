"""Features of a fixed corpus, stored once for all windows with equal values.

A template that reads the words at offsets -1 and 0 finds the values at a token that a template for 0 and 1 finds at the token
before: both read a window of two words, the first template from offset -1, the second from offset 0. Windows with equal values
are of one kind. A kind has the same features for every token that reads it at a certain offset, so the features are stored by
kind and offset, and a token only by the numbers of the kinds around it.

Templates that read a single position share windows of one position with all their columns. Templates that read several positions
share windows if they read the same columns. Templates whose windows mostly differ (pairs of words) do not share windows, and
neither do rare windows.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.hashing import hash_rows
from ..types import TemplateRows, TokenFeatures
from .extractor import CompiledTemplates
from .feature_index import CountingTable, FeatureIndex, by_token
from .token_columns import TokenColumns

# Templates share windows if the first batch has at most this share of different windows
_FEW = 0.25


class _Positions(NamedTuple):
    """All columns at the P positions of a batch: at the tokens, and at some positions before and behind each sequence."""

    values: NDArray[np.uint64]  # [P, C]
    n_behind: NDArray[np.int64]  # [P] how many positions of the sequence follow


class KindFeatures(NamedTuple):
    """Features of U kinds of windows, for each of O offsets from which tokens read the windows."""

    offsets: NDArray[np.int64]  # [O] where a window begins, relative to the token
    rows: list[TemplateRows]  # [O] of int32[M, U]: features of a token that reads a window of each kind at this offset


class CorpusTokens(NamedTuple):
    """The features of a batch of T tokens in B sequences."""

    starts: NDArray[np.int64]  # [B + 1] where the sequences start
    # For each set of windows: int32[T + 2 * reach * B], the kind of the window that begins at each position, and at ``reach``
    # positions around each sequence; -1 for windows whose features are among the items
    kinds: list[NDArray[np.int32]]
    rest: TemplateRows  # [M, T] features of the other templates
    items: TokenFeatures  # features of functions and extensions, and of rare windows


class KindBuilder:
    """Finds the kinds of windows of a corpus, batch by batch."""

    def __init__(self, compiled: CompiledTemplates, index: FeatureIndex):
        self._compiled = compiled
        self._index = index
        self._windows: list[_Windows] | None = None
        self._rest = compiled

    def add(self, columns: TokenColumns) -> CorpusTokens:
        """Number the kinds of windows of a batch, and look the other features up."""
        lengths = np.diff(columns.starts) + 2 * self._compiled.reader.reach
        ends = np.repeat(np.cumsum(lengths), lengths)  # [P]
        values = np.hstack([columns.table.columns[columns.lexemes], columns.values])
        positions = _Positions(values, n_behind=ends - 1 - np.arange(len(values)))
        if self._windows is None:
            self._windows = self._choose(positions)
            is_rest = np.ones(len(self._compiled.templates), dtype=bool)
            for windows in self._windows:
                is_rest[windows.templates] = False
            self._rest = self._compiled.only(is_rest)
        kinds = [windows.add(positions) for windows in self._windows]
        rest, items = self._rest.rows_by_template(columns, self._index)
        return CorpusTokens(columns.starts, kinds, rest, items)

    def finish(self, corpus: list[CorpusTokens], *, often: int = 2) -> tuple[list[KindFeatures], list[CorpusTokens]]:
        """The features of the kinds that occur at least `often` times, and all batches with the new numbers of the kinds."""
        shared = []
        for number, windows in enumerate(self._windows or []):
            features = windows.features(self._index)
            counts = sum(np.bincount(batch.kinds[number], minlength=features.rows[0].shape[1]) for batch in corpus)
            # A kind that occurs once saves nothing: its features become items of the token
            is_common = counts >= often
            new_kinds = np.where(is_common, np.cumsum(is_common) - 1, -1).astype(np.int32)
            corpus = [self._renumber(batch, number, features, new_kinds) for batch in corpus]
            shared.append(features._replace(rows=[rows[:, is_common] for rows in features.rows]))
        return shared, corpus

    def _renumber(
        self, batch: CorpusTokens, number: int, features: KindFeatures, new_kinds: NDArray[np.int32]
    ) -> CorpusTokens:
        """A batch with new numbers of the kinds of one set of windows. The features of rare kinds become items.

        number (int): Which set of windows.
        features (KindFeatures): The features of these windows.
        new_kinds (int32[U]): The new number of each kind, -1 for rare kinds.
        """
        kinds = batch.kinds[number]
        rare = np.flatnonzero(new_kinds[kinds] < 0)  # [N] positions
        reach = self._compiled.reader.reach
        ends = np.cumsum(np.diff(batch.starts) + 2 * reach)
        sequence = np.searchsorted(ends, rare, side="right")
        # The token at the position, possibly outside of the sequence
        first_token = rare - (2 * sequence + 1) * reach
        tokens = []
        rows = []
        for offset, rows_of_kinds in zip(features.offsets, features.rows):
            # The token that reads the window from this offset
            reader = first_token - offset
            is_inside = (batch.starts[sequence] <= reader) & (reader < batch.starts[sequence + 1])
            window_rows = rows_of_kinds[:, kinds[rare[is_inside]]]  # [M, windows]
            is_known = window_rows >= 0
            tokens.append(np.broadcast_to(reader[is_inside], window_rows.shape)[is_known])
            rows.append(window_rows[is_known])
        all_kinds = list(batch.kinds)
        all_kinds[number] = new_kinds[kinds]
        items = with_features(batch.items, np.concatenate(tokens), np.concatenate(rows))
        return batch._replace(kinds=all_kinds, items=items)

    def _choose(self, positions: _Positions) -> list["_Windows"]:
        """Decide which templates share windows, from the windows of the first batch."""
        chosen = []
        [single] = np.nonzero(self._compiled.widths == 1)
        if len(single):
            chosen.append(_Windows(self._compiled, single, 1))
        by_columns: dict[tuple[int, ...], list[int]] = {}
        for template in np.flatnonzero(self._compiled.widths > 1).tolist():
            parts = self._compiled.parts_of(template)
            by_columns.setdefault(tuple(np.unique(self._compiled.part_columns[parts])), []).append(template)
        for templates in by_columns.values():
            # The widest windows contain the others, but have the most kinds: take the widest that recur often enough
            widths = self._compiled.widths[templates]
            for width in np.unique(widths)[::-1]:
                windows = _Windows(self._compiled, np.array(templates)[widths <= width], int(width))
                _, keys = windows.read(positions)
                if len(np.unique(keys)) <= _FEW * len(positions.values):
                    chosen.append(windows)
                    break
        return chosen


class _Windows:
    """Windows of one width, of the columns that some templates read.

    compiled (CompiledTemplates): All templates.
    templates (int64[M]): The templates that share these windows.
    width (int): Width of the windows in positions; at least the width of each template.
    """

    def __init__(self, compiled: CompiledTemplates, templates: NDArray[np.int64], width: int):
        self.templates = templates
        self._compiled = compiled
        self._width = width
        parts = np.concatenate([compiled.parts_of(template) for template in templates])
        self._columns = np.unique(compiled.part_columns[parts])
        self._table = CountingTable()  # by key of the values: the kind
        # Values of the kinds, batch by batch
        self._values = [np.zeros((0, width * len(self._columns)), dtype=np.uint64)]
        # Templates by the offset of the window that they read. Templates at one offset are looked up together, so a template
        # takes the window of wider templates if it fits into it
        self._at_offset: dict[int, list[int]] = {}
        for template in sorted(templates.tolist(), key=lambda template: -compiled.widths[template]):
            offsets = compiled.part_offsets[compiled.parts_of(template)]
            first = int(offsets.min())
            last = int(offsets.max())
            fitting = [offset for offset in self._at_offset if offset <= first and last < offset + width]
            self._at_offset.setdefault(fitting[0] if fitting else first, []).append(template)

    def add(self, positions: _Positions) -> NDArray[np.int32]:
        """Number the kinds of a batch, and keep the values of new kinds.

        RETURNS (int32[P]): Kind of the window that begins at each position.
        """
        values, keys = self.read(positions)
        new = self._table.add(keys)
        self._values.append(values[new])
        return self._table.rows(keys)

    def read(self, positions: _Positions) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The values in the window that begins at each position, and a key of these values.

        RETURNS (uint64[P, width * columns], uint64[P]): Values, 0 where a window reaches past the last position of a sequence and
            its surroundings; and keys.
        """
        columns = positions.values[:, self._columns]
        values = np.zeros((len(columns), self._width, len(self._columns)), dtype=np.uint64)
        for distance in range(self._width):
            reaching = np.flatnonzero(positions.n_behind >= distance)
            values[reaching, distance] = columns[reaching + distance]
        values = values.reshape(len(columns), self._width * len(self._columns))
        return values, hash_rows(values)

    def features(self, index: FeatureIndex) -> KindFeatures:
        """Look the features of all kinds up, for each offset from which templates read them."""
        values = np.concatenate(self._values)
        offsets = sorted(self._at_offset)
        rows = []
        for offset in offsets:
            chosen = np.zeros(len(self._compiled.templates), dtype=bool)
            chosen[self._at_offset[offset]] = True
            templates = self._compiled.only(chosen, items=False)
            # Where a part's value is among the values of a window
            part_columns = (templates.part_offsets - offset) * len(self._columns)
            part_columns += np.searchsorted(self._columns, templates.part_columns)
            rows.append(templates.rows_of_values(values, part_columns, index))
        return KindFeatures(np.array(offsets, dtype=np.int64), rows)


def with_features(features: TokenFeatures, tokens: NDArray[np.int64], rows: NDArray[np.int32]) -> TokenFeatures:
    """The features of tokens and N more features of value 1: at `tokens` (int64[N]), with `rows` (int32[N])."""
    n_tokens = len(features.starts) - 1
    all_tokens = np.concatenate([np.repeat(np.arange(n_tokens), np.diff(features.starts)), tokens])
    values = features.values
    if values is not None:
        values = np.concatenate([values, np.ones(len(rows), dtype=np.float32)])
    return by_token(all_tokens, np.concatenate([features.rows, rows]), values, n_tokens)
