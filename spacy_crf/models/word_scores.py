"""Scores that depend on a single word, computed once for each word: `TableScorer` scores words by their features and vectors in
prediction, `CorpusVectors` scores the words of a fixed corpus by their vectors.

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
from .table import ALL, GradientPart, Sight, Table, filter_features

# Memory for the cached scores of lexemes in prediction
_LEXEME_SCORES_BYTES = 256 << 20
_WORDS = 4096  # words in one computation, in float64


def seen_matrices(table: Table, weights: NDArray, sight: Sight) -> Floats:
    """The weights of vectors, as a matrix (D numbers to C columns) for each of the O tokens that read a word: float64[D, O, C].

    table (Table): The table of the vectors.
    weights (float[W]): Its weights.
    sight (Sight): The tokens that read a word.
    """
    index: VectorIndex = table.index
    # Offsets between those of templates have a matrix of zeros
    seen = np.zeros((index.width, sight.width, table.n_columns))
    for offset, matrix in zip(index.offsets, np.split(table.dense(weights), len(index.offsets))):
        seen[:, sight.viewer(offset)] = matrix
    return seen


def token_vectors(columns: TokenColumns, index: VectorIndex) -> TokenFeatures:
    """The numbers in the vectors of tokens, as features with values; numbers that are 0 are left out.

    columns (TokenColumns): Attributes of T tokens, with the vectors of their words.
    index (VectorIndex): The features.
    """
    width = index.width
    n_tokens = len(columns.positions)
    values = np.empty((n_tokens, len(index.offsets), width), dtype=np.float32)
    for n, offset in enumerate(index.offsets):
        values[:, n] = columns.table.vectors[columns.lexemes[columns.positions + offset]]
    values = values.reshape(n_tokens, len(index.offsets) * width)
    tokens, rows = np.nonzero(values)
    return TokenFeatures(
        rows=rows.astype(np.int32),
        values=values[tokens, rows],
        starts=np.append(0, np.cumsum(np.bincount(tokens, minlength=n_tokens))).astype(np.int64),
    )


class VectorCounter:
    """Counts tokens that have vectors, as `PairCounter` counts features.

    present (Table): The weights that the model has already.
    offsets (list[int]): The offsets at which templates read vectors.
    width (int): How many numbers a vector has.
    """

    def __init__(self, present: Table, offsets: list[int], width: int):
        self._present = present
        self._offsets = offsets
        self._width = width
        self._counts = np.zeros(len(offsets), dtype=np.int64)

    def add(self, columns: TokenColumns) -> None:
        """Count the words of a batch that have a vector.

        columns (TokenColumns): Attributes of its tokens.
        """
        has_vector = np.any(columns.table.vectors, axis=1)
        for n, offset in enumerate(self._offsets):
            self._counts[n] += has_vector[columns.lexemes[columns.positions + offset]].sum()

    def freeze(self, min_count: int, vocab: Vocab, first: Optional[int] = None) -> Table:
        """The table of the present weights, or if there are none a table with a weight for each number and state.

        min_count (int): Ignored: vectors are few.
        vocab (Vocab): Ignored, as features have no names.
        first (int): Ignored: every tag has weights.
        """
        present = self._present
        counts = np.repeat(self._counts, self._width)
        if not len(present.index):
            return Table.full(VectorIndex(self._offsets, self._width), present.n_columns, counts)
        counts += present.counts
        return Table(present.index, present.pair_starts, present.pair_columns, present.n_columns, counts)


class CorpusVectors:
    """Vectors of the U different words of a fixed corpus, and which word stands where.

    table (Table): The weights of the vectors.
    reach (int): How far templates read to the left and right of a token.
    """

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
        # Batches may have different tables of lexemes
        tables = {id(table): table for table, _, _ in self._batches}
        vectors = [np.zeros((0, self._weights.index.width), dtype=np.float32)]
        numbers = {}  # by table: the word of each lexeme
        n_words = 0
        for key, table in tables.items():
            is_word = np.zeros(table.size, dtype=bool)  # whether the corpus has the lexeme, and it has a vector
            for batch_table, lexemes, _ in self._batches:
                if batch_table is table:
                    is_word[lexemes] = True
            is_word &= table.vectors[: table.size].any(axis=1)
            numbers[key] = np.where(is_word, n_words + np.cumsum(is_word) - 1, -1).astype(np.int32)
            vectors.append(table.vectors[: table.size][is_word])
            n_words += len(vectors[-1])
        self.words = np.concatenate(vectors)  # float32[U, D]
        # For each batch: the word at each position, and where the sequences start
        self.kinds = [(numbers[id(table)][lexemes], starts) for table, lexemes, starts in self._batches]
        del self._batches

    def expect_whole(self, starts: list[Ints]) -> None:
        """Check the words that a file holds, since kernels trust them.

        starts (list[int64[B + 1]]): Where the sequences of each batch start.
        RAISES (ValueError): If the numbers of words belong to other batches.
        """
        of_file("vectors", self.words, np.float32, (None, self._weights.index.width), copied=False)
        self.kinds = [(kinds, starts_of_kinds) for kinds, starts_of_kinds in self.kinds]  # lists become tuples
        for (kinds, starts_of_kinds), starts_of_batch in zip(self.kinds, starts, strict=True):
            of_file("numbers of words", kinds, np.int32, (int(starts_of_batch[-1]),), copied=False)
            expect_below("numbers of words", kinds, len(self.words), least=-1)
            if not np.array_equal(starts_of_kinds, starts_of_batch):
                raise ValueError("numbers of words are of other sequences")

    def zeros(self) -> Floats:
        """Zeros in the shape of the scores of words: float64[U, O, C]."""
        return np.zeros((len(self.words), self._sight.width, self._weights.n_columns))

    def score(self, weights: Floats, *, threads: int = 1) -> Floats:
        """Scores of each word for each of the O tokens that read it: float64[U, O, C].

        weights (float64[W]): The weights.
        threads (int): How many threads share the words.
        """
        scores = self.zeros()
        matrix = seen_matrices(self._weights, weights, self._sight).reshape(self.words.shape[1], -1)  # [D, O · C]

        def score_words(begin: int) -> None:
            words = self.words[begin : begin + _WORDS]
            chunk = words.astype(np.float64) @ matrix
            scores[begin : begin + _WORDS] = chunk.reshape(len(words), *scores.shape[1:])

        run_chunks(score_words, range(0, len(self.words), _WORDS), threads)
        return scores

    def gradient(self, d_table: Floats, *, threads: int = 1) -> Floats:
        """Gradient of the weights: float64[W].

        d_table (float64[U, O, C]): Derivatives with respect to the scores of words.
        threads (int): How many threads share the words.
        """
        n_dims = self.words.shape[1]
        n_columns = self._weights.n_columns
        # d matrix = wordsᵀ · d_table
        flat = d_table.reshape(len(d_table), math.prod(d_table.shape[1:]))

        def gradient_of_words(begin: int) -> Floats:
            return self.words[begin : begin + _WORDS].astype(np.float64).T @ flat[begin : begin + _WORDS]

        parts = run_chunks(gradient_of_words, range(0, len(self.words), _WORDS), threads)
        total = sum(parts, np.zeros((n_dims, flat.shape[1])))
        seen = total.reshape(n_dims, self._sight.width, n_columns)  # as the result of `seen_matrices`
        dense = np.concatenate([seen[:, self._sight.viewer(offset)] for offset in self._weights.index.offsets])
        return dense[self._weights.rows_of_pairs(), self._weights.pair_columns]

    def add_scores(self, number: int, table: Floats, scores: Floats) -> None:
        """Add the scores of the words around each token of a batch.

        number (int): The number of the batch.
        table (float64[U, O, C]): The result of `score`.
        scores (float64[T, C]): Receive the sums.
        """
        add_kind_rows(*self.kinds[number], self._reach, self._sight.first, table, scores)

    def scatter(self, number: int, d_scores: Floats, d_table: Floats, *, part: GradientPart = ALL) -> None:
        """Backpropagate through `add_scores`: add up derivatives with respect to the scores of words.

        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of the tokens of the batch.
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
    """Scores tokens by one table of weights. Several threads may use it at the same time.

    A template that reads a single lexeme gives the same scores wherever the word stands, and so does a vector. These scores are
    summed and cached when a text first has the lexeme, for each of the tokens that read it: with a window of -2..2 a word then
    takes the addition of five rows, whatever the number of templates. Features of other templates are looked up in each text.

    compiled (CompiledTemplates): The templates.
    table (Table): The features.
    weights (float32[W]): The weights of the features.
    by_lexeme (bool): Whether to cache scores of lexemes.
    vectors (tuple[Table, float32[W]]): Table and weights of the vectors of lexemes, if templates read vectors.
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
        if isinstance(table.index, FeatureIndex):  # pruning may have left templates without features
            compiled = compiled.among({*table.index.templates})
        reads_lexeme = compiled.reads_one_lexeme & by_lexeme
        # Templates that call a function of a single word: the offset, the function, and the hash of the template
        word_templates = [template for template in compiled.item_templates if by_lexeme and _is_of_word(template)]
        self._word_functions: list[tuple[int, str, np.uint64]] = []
        for template in word_templates:
            [(attribute, offset)] = template.parts
            self._word_functions.append((offset, attribute, template_seed(template)))
        # Templates that read several tokens, and functions of tokens: looked up in each text
        looked_up = [*compiled.only(~reads_lexeme).templates, *compiled.item_templates]
        looked_up = [template for template in looked_up if template not in word_templates]
        self._looked_up = CompiledTemplates(looked_up, compiled.reader)
        offsets = compiled.part_offsets[compiled.part_starts[:-1]]  # [M] of the first part of each template
        vector_offsets = np.array([] if vectors is None else vectors[0].index.offsets, dtype=np.int64)
        function_offsets = np.array([offset for offset, _, _ in self._word_functions], dtype=np.int64)
        self._sight = Sight.of(np.concatenate([offsets[reads_lexeme], vector_offsets, function_offsets]))
        self._matrix = None if vectors is None else seen_matrices(*vectors, self._sight)
        # Sorted by offset, so that the templates with one offset form a slice
        by_offset = sorted(np.flatnonzero(reads_lexeme), key=offsets.__getitem__)
        self._of_lexemes = CompiledTemplates([compiled.templates[n] for n in by_offset], compiled.reader)
        different, counts = np.unique(offsets[by_offset], return_counts=True)
        ends = np.cumsum(counts)
        self._slices = [(self._sight.viewer(o), slice(e - n, e)) for o, n, e in zip(different, counts, ends)]
        self._reach = compiled.reader.reach
        self._lock = threading.Lock()
        self._shape = (self._sight.width, table.n_columns)
        # For each table of lexemes: their scores, and how many lexemes have scores. (A thread may still use an older table.)
        self._cached: WeakKeyDictionary[LexemeTable, tuple[NDArray[np.float32], int]] = WeakKeyDictionary()

    @property
    def bytes_per_lexeme(self) -> int:
        """Memory for the cached scores of one lexeme."""
        return 4 * math.prod(self._shape)

    @property
    def attributes(self) -> set[str]:
        """The attributes that templates read in each text."""
        templates = [*self._looked_up.templates, *self._looked_up.item_templates]
        attributes: set[str] = set()
        for template in templates:
            attributes.update(part.attribute for part in template.parts)
        return attributes

    def read_by(self, reader: ColumnReader) -> None:
        """From now on, look features up in the columns of another reader.

        reader (ColumnReader): The reader, which keeps the `attributes`.
        """
        templates = [*self._looked_up.templates, *self._looked_up.item_templates]
        self._looked_up = CompiledTemplates(templates, reader)

    def add(self, columns: TokenColumns, scores: Floats) -> float:
        """Add the scores of each token.

        columns (TokenColumns): Attributes of T tokens.
        scores (float64[T, C]): Receive the sums.
        RETURNS (float): How many lexemes, the first ones of the table of lexemes, have cached scores, so that no text needs their
            attributes any more; inf for all.
        """
        n_cached = self._add_lexemes(columns, scores)
        looked_up = self._looked_up
        index = self._table.index
        if not len(self._table.pair_columns):
            return n_cached
        if looked_up.templates:
            uses = index.known(looked_up.hash_positions(columns), columns.positions)
            self._table.add_uses(uses, self.slots, scores)
        if looked_up.item_templates:
            features = looked_up.look_up(looked_up.hash_items(columns), index)
            self._table.add_scores(features, self.slots, scores)
        return n_cached

    def _add_lexemes(self, columns: TokenColumns, scores: Floats) -> float:
        """Add the scores of the lexemes around each token to ``scores`` (float64[T, C]).

        RETURNS (float): How many lexemes of the table have cached scores; inf if no template reads lexemes.
        """
        if not self._sight.width:
            return math.inf
        table = columns.table
        # A table of lexemes grows: the new lexemes get scores
        with self._lock:
            cached, n_cached = self._cached.get(table) or (np.zeros((0, *self._shape), dtype=np.float32), 0)
            size = table.size
            if size > n_cached:
                if size > len(cached):
                    cached = grown(cached, n_cached, size)
                attributes, vectors = table.rows(slice(n_cached, size))
                cached[n_cached:size] = self._lexeme_scores(attributes, vectors)
                for offset, function, seed in self._word_functions:
                    items = table.items[function].of(np.arange(n_cached, size))
                    cached[n_cached:size, self._sight.viewer(offset)] += self._item_scores(items, seed)
                self._cached[table] = cached, size
        add_kind_rows(columns.lexemes, columns.starts, self._reach, self._sight.first, cached, scores)
        return max(size, n_cached)

    def _lexeme_scores(self, attributes: NDArray[np.uint64], vectors: NDArray[np.float32]) -> Floats:
        """Scores of N lexemes by their attributes (uint64[N, A]) and vectors (float32[N, D]): float64[N, O, C]."""
        rows = self._of_lexemes.rows_of_values(attributes, self._of_lexemes.part_columns, self._table.index)
        first_slots = self._table.first_slots(rows)  # [M, N]
        scores = np.zeros((rows.shape[1], *self._shape))
        for viewer, templates in self._slices:
            self._table.add_references(first_slots[templates], self.slots, scores, viewer=viewer)
        if self._matrix is not None:
            # In float64; otherwise the scores of a word would depend slightly on the other words
            scores += np.tensordot(vectors.astype(np.float64), self._matrix, axes=1)
        return scores

    def _item_scores(self, items: Items, seed: np.uint64) -> Floats:
        """Scores of N words by the items that a function gives them: float64[N, C]. seed (uint64): The hash of the template."""
        # A feature's hash is the hash of its template, mixed with the hash of its item
        hashes = np.full(len(items.hashes), seed)
        mix_all(hashes, items.hashes)
        rows = self._table.index.rows(hashes)
        scores = np.zeros((len(items.starts) - 1, self._table.n_columns))
        if self._table.n_weights:
            features = filter_features(TokenFeatures(rows, items.values, items.starts), rows >= 0)
            self._table.add_scores(features, self.slots, scores)
        return scores


def _is_of_word(template: Template) -> bool:
    """Whether the template only calls a function of a word, which gets a string and not a token."""
    return len(template.parts) == 1 and template.parts[0].attribute.startswith("word:")


def most_lexemes(wanted: int, scorers: Iterable[TableScorer]) -> int:
    """How many lexemes may have cached scores: the wanted number, or as many as fit into `_LEXEME_SCORES_BYTES`.

    wanted (int): The wanted number.
    scorers (Iterable[TableScorer]): The scorers that share the memory.
    """
    return min(wanted, _LEXEME_SCORES_BYTES // max(1, sum(scorer.bytes_per_lexeme for scorer in scorers)))
