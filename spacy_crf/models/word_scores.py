"""Scores that depend on single words, computed once for each word: the scores of a word by its features and by its vector, for
prediction (`TableScorer`) and for a fixed corpus (`CorpusVectors`).

A vector has a matrix of weights at each offset: score[j] = sum_d vector[d] · weight[d, j].
"""

import math
import threading
from collections.abc import Iterable
from typing import Any, Optional
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from spacy.vocab import Vocab

from ..arrays import expect_below, grown, of_file
from ..features.extractor import CompiledTemplates, template_seed
from ..features.feature_index import FeatureIndex, VectorIndex
from ..features.items import Items
from ..features.lexemes import LexemeTable
from ..features.templates import Template
from ..features.token_columns import ColumnReader, TokenColumns
from ..inference.threads import run_chunks
from ..kernels.hashing import mix_all
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import Floats, Ints, TokenFeatures
from .table import ALL, GradientPart, Sight, Table, some_of

# Memory for the cached scores of lexemes in prediction
_LEXEME_SCORES_BYTES = 256 << 20
_WORDS = 4096  # words in one computation, in float64


def seen_matrices(table: Table, weights: NDArray, sight: Sight) -> Floats:
    """Weights of vectors as matrices side by side, one for each token that reads a word: float64[D, O, C].

    table (Table): The table of the vectors.
    weights (float[W]): Its weights.
    sight (Sight): The tokens that read a word.
    """
    index: VectorIndex = table.index
    # Offsets between those of templates have a matrix of zeros
    seen = np.zeros((index.width, sight.width, table.n_columns))
    for offset, matrix in zip(index.offsets, np.split(table.dense(weights), len(index.offsets))):
        seen[:, sight.place(offset)] = matrix
    return seen


def token_vectors(columns: TokenColumns, index: VectorIndex) -> TokenFeatures:
    """Numbers of the vectors other than 0 as features of tokens.

    columns (TokenColumns): Attributes of T tokens, with the vectors of their words.
    index (VectorIndex): The features.
    """
    width = index.width
    n_tokens = len(columns.positions)
    values = np.empty((n_tokens, len(index.offsets), width), dtype=np.float32)
    for place, offset in enumerate(index.offsets):
        values[:, place] = columns.table.vectors[columns.lexemes[columns.positions + offset]]
    values = values.reshape(n_tokens, len(index.offsets) * width)
    tokens, rows = np.nonzero(values)
    return TokenFeatures(
        rows=rows.astype(np.int32),
        values=values[tokens, rows],
        starts=np.append(0, np.cumsum(np.bincount(tokens, minlength=n_tokens))).astype(np.int64),
    )


class VectorCounter:
    """Counts tokens that have vectors, as `PairCounter` counts features. `known` has the present weights."""

    def __init__(self, known: Table, offsets: list[int], width: int):
        self._known = known
        self._offsets = offsets
        self._width = width
        self._counts = np.zeros(len(offsets), dtype=np.int64)

    def add(self, columns: TokenColumns) -> None:
        """Count the words of a batch that have a vector.

        columns (TokenColumns): Attributes of its tokens.
        """
        has_vector = np.any(columns.table.vectors, axis=1)
        for place, offset in enumerate(self._offsets):
            self._counts[place] += has_vector[columns.lexemes[columns.positions + offset]].sum()

    def freeze(self, min_count: int, vocab: Vocab, first: Optional[int] = None) -> Table:
        """A table with a weight for each number and tag, or with the present weights.

        min_count (int): Ignored: vectors are few.
        vocab (Vocab): Ignored, as features have no names.
        first (int): Ignored: every tag has weights.
        """
        known = self._known
        counts = np.repeat(self._counts, self._width)
        if not len(known.index):
            return Table.full(VectorIndex(self._offsets, self._width), known.n_columns, counts)
        return Table(known.index, known.pair_starts, known.pair_columns, known.n_columns, known.counts + counts)


class CorpusVectors:
    """Vectors of the words of a fixed corpus, with the table of their weights and the reach of the reader."""

    def __init__(self, table: Table, reach: int):
        self._weights = table
        self._reach = reach
        self._sight = Sight.of(np.array(table.index.offsets, dtype=np.int64))
        self._batches: list[tuple[LexemeTable, NDArray[np.int32], Ints]] = []

    def add(self, columns: TokenColumns) -> None:
        """Add the next batch.

        columns (TokenColumns): Attributes of its tokens.
        """
        self._batches.append((columns.table, columns.lexemes, columns.starts))

    def finish(self) -> None:
        """Number the words after the last batch, with -1 for words without a vector."""
        tables = {id(table): table for table, _, _ in self._batches}
        vectors = []
        numbers = {}
        n_words = 0
        for key, table in tables.items():
            met = np.zeros(table.size, dtype=bool)
            for of_batch, lexemes, _ in self._batches:
                if of_batch is table:
                    met[lexemes] = True
            met &= table.vectors[: table.size].any(axis=1)
            numbers[key] = np.where(met, n_words + np.cumsum(met) - 1, -1).astype(np.int32)
            vectors.append(table.vectors[: table.size][met])
            n_words += len(vectors[-1])
        self.words = np.concatenate([np.zeros((0, self._weights.index.width), dtype=np.float32), *vectors])  # [U, D]
        self.kinds = [(numbers[id(table)][lexemes], starts) for table, lexemes, starts in self._batches]
        del self._batches

    def expect_whole(self, starts: list[Ints]) -> None:
        """Check the numbers of words that a file holds.

        starts (list[int64[B + 1]]): Where the sequences of each batch start.
        RAISES (ValueError): If they belong to other batches.
        """
        of_file("vectors", self.words, np.float32, (None, self._weights.index.width), copied=False)
        self.kinds = [(kinds, of_batch) for kinds, of_batch in self.kinds]
        for (kinds, of_batch), ours in zip(self.kinds, starts, strict=True):
            of_file("numbers of words", kinds, np.int32, (int(ours[-1]),), copied=False)
            expect_below("numbers of words", kinds, len(self.words), least=-1)
            if not np.array_equal(of_batch, ours):
                raise ValueError("numbers of words are of other sequences")

    def zeros(self) -> Floats:
        """A zero for each score of each word: float64[U, O, C]."""
        return np.zeros((len(self.words), self._sight.width, self._weights.n_columns))

    def score(self, weights: Floats, *, threads: int = 1) -> Floats:
        """Scores of each word for each token that reads it: float64[U, O, C].

        weights (float64[W]): The weights.
        threads (int): How many threads share the words.
        """
        table = self.zeros()
        # [D, O · C]
        matrix = seen_matrices(self._weights, weights, self._sight).reshape(self.words.shape[1], -1)

        def score(begin: int) -> None:
            words = self.words[begin : begin + _WORDS]
            table[begin : begin + _WORDS] = (words.astype(np.float64) @ matrix).reshape(len(words), *table.shape[1:])

        run_chunks(score, range(0, len(self.words), _WORDS), threads)
        return table

    def gradient(self, d_table: Floats, *, threads: int = 1) -> Floats:
        """Gradient of the weights: float64[W].

        d_table (float64[U, O, C]): Derivatives with respect to the scores of words.
        threads (int): How many threads share the words.
        """
        n_dims = self.words.shape[1]
        n_columns = self._weights.n_columns
        # d matrix = wordsᵀ · d_table
        flat = d_table.reshape(len(d_table), math.prod(d_table.shape[1:]))

        def gradient(begin: int) -> Floats:
            return self.words[begin : begin + _WORDS].astype(np.float64).T @ flat[begin : begin + _WORDS]

        parts = run_chunks(gradient, range(0, len(self.words), _WORDS), threads)
        seen = sum(parts, np.zeros((n_dims, flat.shape[1]))).reshape(n_dims, self._sight.width, n_columns)
        dense = np.concatenate([seen[:, self._sight.place(offset)] for offset in self._weights.index.offsets])
        return dense[self._weights.rows_of_pairs(), self._weights.pair_columns]

    def add_scores(self, number: int, table: Floats, scores: Floats) -> None:
        """Add the scores of the words around each token of a batch.

        number (int): The number of the batch.
        table (float64[U, O, C]): The scores of words.
        scores (float64[T, C]): Receive the sums.
        """
        add_kind_rows(*self.kinds[number], self._reach, self._sight.first, table, scores)

    def scatter(self, number: int, d_scores: Floats, d_table: Floats, *, part: GradientPart = ALL) -> None:
        """Add the gradient of the words' scores.

        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of its tokens.
        d_table (float64[U, O, C]): Receives the sums.
        part (GradientPart): The rows that this thread adds up.
        """
        scatter_kind_rows(*self.kinds[number], self._reach, self._sight.first, d_scores, *part, d_table)

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish these vectors from others."""
        yield self.words
        for kinds, _ in self.kinds:
            yield kinds


# -------------------------------------------------------------------------------------------------------- prediction


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
        attributes: set[str] = set()
        for template in templates:
            attributes.update(part.attribute for part in template.parts)
        return attributes

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
