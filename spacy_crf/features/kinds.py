"""Features of a fixed corpus, stored once for all positions that look alike.

Most templates read a single position: at offset o they find the same features wherever the position's word (and tag, …)
is the same. Such positions are of one kind. A window of -2..2 then costs five references per token, whatever the number of
templates, and the features themselves are stored once per kind and offset.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..kernels.hashing import hash_rows
from ..types import TemplateRows, TokenFeatures
from .columns import TokenColumns, padding_values
from .extractor import CompiledTemplates
from .feature_index import CountingTable, FeatureIndex


class KindFeatures(NamedTuple):
    """Features of U kinds of positions at O offsets."""

    offsets: NDArray[np.int64]  # [O]
    rows: list[TemplateRows]  # [O] of int32[M, U]: what a position of that kind means for the token at -offset


class Kinds(NamedTuple):
    """The kinds of a batch of tokens. Positions outside the sequences are of the first ``2 * reach`` kinds, numbered as in
    ``kernels.hashing``."""

    kinds: NDArray[np.int32]  # [T]
    starts: NDArray[np.int64]  # [B + 1] of the sequences


class CorpusTokens(NamedTuple):
    """What a batch of tokens has of features."""

    kinds: Kinds
    rest: TemplateRows  # [M, T] of templates that read several positions
    items: Optional[TokenFeatures]  # of functions and extensions


class KindBuilder:
    """Finds the kinds of positions of a corpus, batch by batch."""

    def __init__(self, compiled: CompiledTemplates, index: FeatureIndex):
        self._index = index
        single = compiled.reads_one_position
        self._rest = compiled.only(~single)
        self._single = compiled.only(single, items=False)
        self._offset_of = np.array([template.parts[0].offset for template in self._single.templates], dtype=np.int64)
        # Two positions are of one kind if they agree in the columns that these templates read.
        self._columns = np.unique(self._single.part_columns)
        self._table = CountingTable()
        padding = padding_values(compiled.reader.reach, compiled.reader.padding)
        n_columns = len(compiled.reader.lexeme_attributes) + len(compiled.reader.token_attributes)
        n_columns += len(compiled.reader.gazetteers)
        self._values = [np.repeat(padding[:, None], n_columns, axis=1)]

    def add(self, columns: TokenColumns) -> CorpusTokens:
        """The features of a batch of tokens."""
        n_padding = len(self._values[0])
        values = np.hstack([columns.table.columns[columns.lexemes], columns.values[n_padding:]])  # [T, C]
        keys = hash_rows(np.ascontiguousarray(values[:, self._columns]))
        self._values.append(values[self._table.add(keys)])
        kinds = Kinds(self._table.rows(keys) + np.int32(n_padding), columns.starts)
        rest, items = self._rest.rows_by_template(columns, self._index)
        return CorpusTokens(kinds, rest, items if self._rest.item_templates else None)

    def finish(self) -> KindFeatures:
        """The features of all kinds met."""
        values = np.concatenate(self._values)  # [U, C]
        every = np.arange(len(values), dtype=np.int32)
        offsets = np.unique(self._offset_of)
        at_offset = [self._single.only(self._offset_of == offset) for offset in offsets]
        rows = [compiled.rows_of_positions(values, every, self._index) for compiled in at_offset]
        return KindFeatures(offsets, rows)
