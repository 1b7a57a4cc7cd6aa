"""Scores of word vectors: at each offset, a vector times a matrix of weights, computed once for each word."""

import math
from collections.abc import Iterable
from typing import Optional

import numpy as np
from numpy.typing import NDArray
from spacy.vocab import Vocab

from ..arrays import expect_below, of_file
from ..features.feature_index import VectorIndex
from ..features.lexemes import LexemeTable
from ..features.token_columns import TokenColumns
from ..inference.threads import run_chunks
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import Floats, Ints, TokenFeatures
from .table import ALL, GradientPart, Sight, Table

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
