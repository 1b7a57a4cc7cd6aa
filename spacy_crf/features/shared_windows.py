"""Features of a fixed corpus, stored once for all windows with the same values.

A template that reads the tags at -1 and 0 finds the same values at a token as a template for 0 and 1 at the token before: both
read a window of two tags, one from offset -1, one from offset 0. Windows with the same tags are of one kind, and a kind has the
same features for each token that reads it at a certain offset. So a token needs three references for all templates within a
window of three tags, whatever the number of templates.

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

# All columns at all positions of a batch and around each sequence: uint64[N, C]; number of positions behind each: int64[N]
_Positions = tuple[NDArray[np.uint64], NDArray[np.int64]]
# Templates share windows if the first batch has at most this share of different windows
_FEW = 0.25


class KindFeatures(NamedTuple):
    """Features of U kinds of windows, for O offsets from which tokens read them."""

    offsets: NDArray[np.int64]  # [O] where a window begins, relative to the token
    rows: list[TemplateRows]  # [O] of int32[M, U]: features of a token that reads a window of each kind at this offset


class CorpusTokens(NamedTuple):
    """The features of a batch of T tokens in B sequences."""

    starts: NDArray[np.int64]  # [B + 1] where the sequences start
    # For each set of windows: int32[T + 2 * reach * B], kinds at all positions of the sequences and ``reach`` around each; -1 for
    # windows whose features are among the items
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
        """The features of the kinds that occur at least `often` times, and all batches with the new numbers of the kinds."""
        shared = []
        for number, windows in enumerate(self._windows or []):
            features = windows.features(self._index)
            counts = sum(np.bincount(batch.kinds[number], minlength=features.rows[0].shape[1]) for batch in corpus)
            # A kind that occurs once saves nothing: its features become items of the token
            common = counts >= often
            numbers = np.where(common, np.cumsum(common) - 1, -1).astype(np.int32)
            corpus = [self._leave_single(batch, number, features, numbers) for batch in corpus]
            shared.append(features._replace(rows=[rows[:, common] for rows in features.rows]))
        return shared, corpus

    def _leave_single(
        self, batch: CorpusTokens, number: int, features: KindFeatures, numbers: NDArray[np.int32]
    ) -> CorpusTokens:
        """Renumber the kinds of a batch; the features of kinds without a number become items."""
        kinds = batch.kinds[number]
        single = np.flatnonzero(numbers[kinds] < 0)
        lengths = np.diff(batch.starts)
        reach = self._compiled.reader.reach
        ends = np.cumsum(lengths + 2 * reach)
        sequence = np.searchsorted(ends, single, side="right")
        # As a token number, possibly outside of the sequence
        position = single - (2 * sequence + 1) * reach
        tokens = []
        rows = []
        for offset, rows_of_kinds in zip(features.offsets, features.rows):
            token = position - offset
            seen = (batch.starts[sequence] <= token) & (token < batch.starts[sequence + 1])
            found = rows_of_kinds[:, kinds[single[seen]]]  # [M, N]
            known = found >= 0
            tokens.append(np.broadcast_to(token[seen], found.shape)[known])
            rows.append(found[known])
        renumbered = [numbers[kinds] if n == number else others for n, others in enumerate(batch.kinds)]
        return batch._replace(
            kinds=renumbered, items=with_features(batch.items, np.concatenate(tokens), np.concatenate(rows))
        )

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
            # The widest windows contain the others, but have the most kinds.
            widths = self._compiled.widths[templates]
            for width in np.unique(widths)[::-1]:
                windows = _Windows(self._compiled, np.array(templates)[widths <= width], int(width))
                _, keys = windows.read(positions)
                if len(np.unique(keys)) <= _FEW * len(positions[0]):
                    chosen.append(windows)
                    break
        return chosen


class _Windows:
    """Windows of certain columns and one width, with the templates that fit into such a window.

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
        self._table = CountingTable()
        # Values of each kind
        self._values = [np.zeros((0, width * len(self._columns)), dtype=np.uint64)]
        # Templates by the offset of the window that they read
        self._at_offset: dict[int, list[int]] = {}
        for template in sorted(templates.tolist(), key=lambda template: -compiled.widths[template]):
            offsets = compiled.part_offsets[compiled.parts_of(template)]
            first = int(offsets.min())
            last = int(offsets.max())
            # The templates at one offset are looked up together
            fitting = [offset for offset in self._at_offset if offset <= first and last < offset + width]
            self._at_offset.setdefault(fitting[0] if fitting else first, []).append(template)

    def add(self, positions: _Positions) -> NDArray[np.int32]:
        """RETURNS (int32[N]): Kind of the window that begins at each position."""
        values, keys = self.read(positions)
        self._values.append(values[self._table.add(keys)])
        return self._table.rows(keys)

    def read(self, positions: _Positions) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The values in each window, and one key for them. Windows do not extend beyond the positions around a sequence."""
        columns = positions[0][:, self._columns]
        room = positions[1]
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
