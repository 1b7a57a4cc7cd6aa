"""Scores with fixed weights: what prediction runs."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ..features.columns import TokenColumns
from ..features.extractor import CompiledTemplates
from ..types import Floats
from .sparse_rows import LexemeScores, SparseRows

# Memory for the scores of lexemes that prediction keeps
_LEXEME_SCORES_BYTES = 256 << 20


class TableScorer:
    """Scores of tokens by one table of weights. What templates read of a single lexeme is summed up once for each lexeme, the
    others are looked up.

    compiled (CompiledTemplates): The templates.
    rows (SparseRows), weights (float32[W]): The table.
    """

    def __init__(self, compiled: CompiledTemplates, rows: SparseRows, weights: NDArray[np.float32]):
        self.slots = rows.slots(weights)
        self._rows = rows
        self._is_empty = not rows.n_weights
        single = compiled.reads_one_lexeme
        self._lexeme_scores = LexemeScores(compiled, single, rows, self.slots)
        self._rest = compiled.only(~single)

    @property
    def bytes_per_lexeme(self) -> int:
        return self._lexeme_scores.bytes_per_lexeme

    def add(self, columns: TokenColumns, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of each token."""
        if self._is_empty:
            return
        self._lexeme_scores.add(columns, scores)
        if self._rest.templates or self._rest.item_templates:
            self._rows.add_scores(self._rest.rows(columns, self._rows.index), self.slots, scores)


def most_lexemes(scorers: Iterable[TableScorer]) -> int:
    """How many lexemes a reader may keep whose scores all of them keep."""
    return min(500_000, _LEXEME_SCORES_BYTES // max(1, sum(scorer.bytes_per_lexeme for scorer in scorers)))
