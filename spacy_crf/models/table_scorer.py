"""Scores with fixed weights: what prediction runs."""

from collections.abc import Iterable
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from ..features.extractor import CompiledTemplates
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

    def add(self, columns: TokenColumns, scores: Floats) -> float:
        """Add the scores of each token to ``scores`` (float64[T, C]).

        RETURNS (float): How many words of the columns' table need nothing any more but what is looked up; inf for all.
        """
        n_known = self._lexeme_scores.add(columns, scores)
        rest, index = self._rest, self._table.index
        if not len(self._table.pair_columns):
            return n_known
        if rest.templates:
            self._table.add_uses(index.known(rest.hash_positions(columns), columns.positions), self.slots, scores)
        if rest.item_templates:
            self._table.add_scores(rest.look_up(rest.hash_items(columns), index), self.slots, scores)
        return n_known


def most_lexemes(wanted: int, scorers: Iterable[TableScorer]) -> int:
    """How many lexemes a reader may keep whose scores all of them keep: as many as are wanted, or as there is memory for."""
    return min(wanted, _LEXEME_SCORES_BYTES // max(1, sum(scorer.bytes_per_lexeme for scorer in scorers)))
