"""Scores with fixed weights: what prediction runs."""

from collections.abc import Iterable
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..features.extractor import CompiledTemplates
from ..features.lexemes import LexemeTable
from ..features.token_columns import ColumnReader, TokenColumns
from ..types import Floats
from .table import Table
from .windows import LexemeScores
from .word_vectors import VectorWeights

# Memory for the scores of lexemes that prediction keeps
_LEXEME_SCORES_BYTES = 256 << 20


class TableScorer:
    """Scores of tokens by one table of weights. What templates read of a single lexeme is summed up once for each lexeme, the
    others are looked up.

    compiled (CompiledTemplates): The templates.
    table (Table), weights (float32[W]): Which weights there are, and what they are.
    by_lexeme (bool): Whether there is room for sums.
    vectors (VectorWeights): Of the vectors of lexemes, if there are any.
    """

    def __init__(
        self,
        compiled: CompiledTemplates,
        table: Table,
        weights: NDArray[np.float32],
        *,
        by_lexeme: bool,
        vectors: Optional[VectorWeights] = None,
    ):
        self.slots = table.slots(weights).astype(np.float32)  # as exact, in half of the memory
        self._table = table
        single = compiled.reads_one_lexeme & by_lexeme
        self._lexeme_scores = LexemeScores(compiled, single, table, self.slots, vectors)
        self._rest = compiled.only(~single)

    @property
    def bytes_per_lexeme(self) -> int:
        return self._lexeme_scores.bytes_per_lexeme

    @property
    def attributes(self) -> set[str]:
        """What is looked up for each token, plain attributes."""
        templates = [*self._rest.templates, *self._rest.item_templates]
        return {part.attribute for template in templates for part in template.parts}

    def read_by(self, reader: ColumnReader) -> None:
        """From here on columns are those of another reader, which keeps the attributes that are looked up."""
        self._rest = CompiledTemplates([*self._rest.templates, *self._rest.item_templates], reader)

    def known(self, table: LexemeTable) -> float:
        """Of how many words of a table nothing is asked any more but what is looked up."""
        return self._lexeme_scores.known(table)

    def add(self, columns: TokenColumns, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of each token."""
        self._lexeme_scores.add(columns, scores)
        if not self._table.n_weights:
            return
        rest, index = self._rest, self._table.index
        if rest.templates:
            self._table.add_uses(index.known(rest.hash_positions(columns), columns.positions), self.slots, scores)
        if rest.item_templates:
            self._table.add_scores(rest.look_up(rest.hash_items(columns), index), self.slots, scores)


def most_lexemes(wanted: int, scorers: Iterable[TableScorer]) -> int:
    """How many lexemes a reader may keep whose scores all of them keep: as many as are wanted, or as there is memory for."""
    return min(wanted, _LEXEME_SCORES_BYTES // max(1, sum(scorer.bytes_per_lexeme for scorer in scorers)))
