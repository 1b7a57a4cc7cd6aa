"""Scores of tokens with fixed weights, for prediction. Scores of single lexemes are computed once per lexeme."""

import math
import threading
from collections.abc import Iterable
from itertools import chain
from typing import Any, Optional
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..arrays import grown
from ..features.extractor import CompiledTemplates, template_seed
from ..features.feature_index import FeatureIndex
from ..features.items import Items
from ..features.lexemes import LexemeTable
from ..features.templates import Template
from ..features.token_columns import ColumnReader, TokenColumns
from ..kernels.hashing import mix_all
from ..kernels.sparse_rows import add_kind_rows
from ..types import Floats, TokenFeatures
from .table import Sight, Table, some_of
from .word_vectors import seen_matrices

# Memory for the cached scores of lexemes in prediction
_LEXEME_SCORES_BYTES = 256 << 20


class TableScorer:
    """Scores of tokens by one table of weights.

    Templates that read attributes of one lexeme, and its vector, give the same scores wherever the word stands. They are summed
    when the lexeme is first met, once for each token that reads it; so a window of -2..2 takes the addition of one run of five
    rows per word, whatever the number of templates. Features of other templates are looked up. Safe to use from several threads.

    by_lexeme (bool): Whether to cache these sums.
    vectors (tuple[Table, float32[W]]): Table and weights of the vectors of lexemes, if there are any.
    """

    def __init__(
        self,
        compiled: CompiledTemplates,
        table: Table,
        weights: NDArray[np.float32],
        *,
        by_lexeme: bool,
        vectors: Optional[tuple[Table, NDArray[np.float32]]] = None,
    ):
        self.slots: Any = table.slots(weights).astype(np.float32)  # just as exact, in half of the memory
        self._table = table
        if isinstance(table.index, FeatureIndex):  # of a saved model, some templates may have no features
            compiled = compiled.among({*table.index.templates})
        single = compiled.reads_one_lexeme & by_lexeme
        # Templates of a function of words alone: the offset, the source and the template's own hash of each
        of_items = [template for template in compiled.item_templates if by_lexeme and _is_of_word(template)]
        self._of_items: list[Any] = [(*template.parts[0][::-1], template_seed(template)) for template in of_items]
        # Templates that read several tokens, and functions of tokens: looked up in each text
        rest = [t for t in [*compiled.only(~single).templates, *compiled.item_templates] if t not in of_items]
        self._rest = CompiledTemplates(rest, compiled.reader)
        offsets = compiled.part_offsets[compiled.part_starts[:-1]]
        of_vectors = np.array([] if vectors is None else vectors[0].index.offsets, dtype=np.int64)
        self._sight = Sight.of(
            np.concatenate([offsets[single], of_vectors, *([offset] for offset, *_ in self._of_items)])
        )
        self._matrix = None if vectors is None else seen_matrices(*vectors, self._sight)
        # Sorted by offset, so that the templates of each place form a slice
        chosen = sorted(np.flatnonzero(single), key=offsets.__getitem__)
        self._of_lexemes = CompiledTemplates([compiled.templates[n] for n in chosen], compiled.reader)
        found, counts = np.unique(offsets[chosen], return_counts=True)
        ends = np.cumsum(counts)
        self._places = [(self._sight.place(o), slice(e - n, e)) for o, n, e in zip(found, counts, ends)]
        self._reach = compiled.reader.reach
        self._lock = threading.Lock()
        self._shape = (self._sight.width, table.n_columns)
        # For each table in use: scores, and the number of words that have them. (A thread may still use an older table.)
        self._known: WeakKeyDictionary[LexemeTable, tuple[NDArray[np.float32], int]] = WeakKeyDictionary()

    @property
    def bytes_per_lexeme(self) -> int:
        """Memory for the scores of one lexeme."""
        return 4 * math.prod(self._shape)

    @property
    def attributes(self) -> set[str]:
        """Attributes that are looked up for each token."""
        templates = [*self._rest.templates, *self._rest.item_templates]
        return {part.attribute for part in chain.from_iterable(template.parts for template in templates)}

    def read_by(self, reader: ColumnReader) -> None:
        """Read the columns of another reader.

        reader (ColumnReader): The reader, which keeps the attributes that are looked up.
        """
        self._rest = CompiledTemplates([*self._rest.templates, *self._rest.item_templates], reader)

    def add(self, columns: TokenColumns, scores: Floats) -> float:
        """Add the scores of each token.

        columns (TokenColumns): Attributes of T tokens.
        scores (float64[T, C]): Receive the sums.
        RETURNS (float): Number of words of the columns' table whose other attributes are not needed any more; inf for
            all.
        """
        n_known = self._add_lexemes(columns, scores)
        rest = self._rest
        index = self._table.index
        if not len(self._table.pair_columns):
            return n_known
        if rest.templates:
            self._table.add_uses(index.known(rest.hash_positions(columns), columns.positions), self.slots, scores)
        if rest.item_templates:
            self._table.add_scores(rest.look_up(rest.hash_items(columns), index), self.slots, scores)
        return n_known

    def _add_lexemes(self, columns: TokenColumns, scores: Floats) -> float:
        """Add the scores of the lexemes around each token to ``scores`` (float64[T, C]).

        RETURNS (float): Number of words of the table with scores; inf if no scores are needed.
        """
        if not self._sight.width:
            return math.inf
        table = columns.table
        # A table of words grows: scores are computed for the words that are new
        with self._lock:
            known, filled = self._known.get(table) or (np.zeros((0, *self._shape), dtype=np.float32), 0)
            size = table.size
            if size > filled:
                if size > len(known):
                    known = grown(known, filled, size)
                known[filled:size] = self._of_words(*table.rows(slice(filled, size)))
                for offset, source, seed in self._of_items:
                    items = table.items[source].of(np.arange(filled, size))
                    known[filled:size, self._sight.place(offset)] += self._scores_of_items(items, seed)
                self._known[table] = known, size
        add_kind_rows(columns.lexemes, columns.starts, self._reach, self._sight.first, known, scores)
        return max(size, filled)

    def _of_words(self, attributes: NDArray[np.uint64], vectors: NDArray[np.float32]) -> Floats:
        values = np.ascontiguousarray(attributes.T)
        rows = self._of_lexemes.rows_of_values(values, self._of_lexemes.part_columns, self._table.index)
        first_slots = self._table.first_slots(rows)
        scores = np.zeros((rows.shape[1], *self._shape))
        for place, templates in self._places:
            self._table.add_references(first_slots[templates], self.slots, scores, place=place)
        if self._matrix is not None:
            # In float64; otherwise the scores of a word would depend slightly on the other words
            scores += np.tensordot(vectors.astype(np.float64), self._matrix, axes=1)
        return scores

    def _scores_of_items(self, items: Items, seed: np.uint64) -> Floats:
        """Scores of words by their items: float64[N, C]. seed (uint64): The hash of the template."""
        # The hash of a feature is that of its template mixed with that of its item
        hashes = np.full(len(items.hashes), seed)
        mix_all(hashes, items.hashes)
        rows = self._table.index.rows(hashes)
        scores = np.zeros((len(items.starts) - 1, self._table.n_columns))
        if self._table.n_weights:
            found = some_of(TokenFeatures(rows, items.values, items.starts), rows >= 0)
            self._table.add_scores(found, self.slots, scores)
        return scores


def _is_of_word(template: Template) -> bool:
    return len(template.parts) == 1 and template.parts[0].attribute.startswith("word:")


def most_lexemes(wanted: int, scorers: Iterable[TableScorer]) -> int:
    """Number of lexemes whose scores are cached: the wanted number, or fewer if memory is short.

    wanted (int): The wanted number.
    scorers (Iterable[TableScorer]): The scorers, which share the memory.
    """
    return min(wanted, _LEXEME_SCORES_BYTES // max(1, sum(scorer.bytes_per_lexeme for scorer in scorers)))
