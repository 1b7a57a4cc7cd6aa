"""Scores of what several tokens see: a word, or a window of words or tags, for all tokens around it at once."""

import math
import threading
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..features.extractor import CompiledTemplates
from ..features.lexemes import LexemeTable
from ..features.shared_windows import KindFeatures
from ..features.token_columns import TokenColumns
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import Floats
from .table import ALL, Part, Table


class Sight(NamedTuple):
    """The tokens that see a position, as one run: a template at offset o is read by the token at -o. Where there is no template
    at an offset in between, the scores for that token are 0."""

    first: int  # the first such token, relative to the position
    width: int  # how many there are

    @classmethod
    def of(cls, offsets: NDArray[np.int64]) -> "Sight":
        if not len(offsets):
            return cls(0, 0)
        return cls(-int(offsets.max()), int(offsets.max() - offsets.min()) + 1)

    def place(self, offset: int) -> int:
        """Where in the run the token is that reads at an offset."""
        return -int(offset) - self.first


class KindRows:
    """Weights to scores and back over a fixed corpus whose windows are of few kinds (``features.shared_windows``)."""

    def __init__(self, kinds: KindFeatures, rows: Table, reach: int):
        self._sight = Sight.of(kinds.offsets)
        self._first_slots = {
            self._sight.place(offset): np.ascontiguousarray(rows.first_slots(of_offset))
            for offset, of_offset in zip(kinds.offsets, kinds.rows)
        }
        self._rows = rows
        self._reach = reach
        self._shape = (kinds.rows[0].shape[1], self._sight.width, rows.n_columns)

    def move(self, rows: Table, places: NDArray[np.integer]) -> None:
        """From here on the weights of the features are those of another table.

        places (int[N + 1]): Where each slot is in that, -1 for none.
        """
        self._rows, self._shape = rows, (*self._shape[:2], rows.n_columns)
        self._first_slots = {place: places[first_slots] for place, first_slots in self._first_slots.items()}

    def stored(self) -> list[Any]:
        """What a file can hold of it."""
        return [list(self._sight), [*map(list, self._first_slots.items())], self._reach, list(self._shape)]

    @classmethod
    def from_stored(cls, stored: list[Any], rows: Table) -> "KindRows":
        kinds = cls.__new__(cls)
        sight, first_slots, kinds._reach, shape = stored
        kinds._sight, kinds._shape = Sight(*sight), tuple(shape)
        kinds._first_slots, kinds._rows = dict(first_slots), rows
        return kinds

    def zeros(self) -> Floats:
        return np.zeros(self._shape)

    def score(self, slots: Floats, *, threads: int = 1) -> Floats:
        """Scores of each kind for each token that sees it: float64[U, O, C]."""
        table = self.zeros()
        for place, first_slots in self._first_slots.items():
            self._rows.add_references(first_slots, slots, table, place=place, threads=threads)
        return table

    def add_scores(self, kinds: NDArray[np.int32], starts: NDArray[np.int64], table: Floats, scores: Floats) -> None:
        """Adds to ``scores`` (float64[T, C]) those of the kinds around each token."""
        add_kind_rows(kinds, starts, self._reach, self._sight.first, table, scores)

    def seen(self, kinds: NDArray[np.int32], starts: NDArray[np.int64]) -> NDArray[np.integer]:
        """Where the weights of the features of each token begin, -1 for none: int[M, T]."""
        lengths = np.diff(starts)
        # A token's own position among those of all sequences, which have more around them
        own = np.arange(starts[-1]) + np.repeat((2 * np.arange(len(lengths)) + 1) * self._reach, lengths)
        found = []
        for place, first_slots in self._first_slots.items():
            kind = kinds[own - self._sight.first - place]
            found.append(np.where(kind >= 0, first_slots[:, kind], -1))
        return np.vstack(found)

    def scatter(
        self,
        kinds: NDArray[np.int32],
        starts: NDArray[np.int64],
        d_scores: Floats,
        d_table: Floats,
        *,
        part: Part = ALL,
    ) -> None:
        """Adds the gradient of the kinds' scores to ``d_table``."""
        scatter_kind_rows(kinds, starts, self._reach, self._sight.first, d_scores, *part, d_table)

    def scatter_slots(self, d_table: Floats, d_slots: Floats, *, part: Part = ALL) -> None:
        """Adds the gradient of the slots to ``d_slots``."""
        for place, first_slots in self._first_slots.items():
            self._rows.scatter_references(first_slots, d_table, d_slots, place=place, part=part)


class LexemeScores:
    """Scores of all templates that read attributes of one lexeme, or its vector, summed for each token that sees the lexeme.

    They are the same wherever the word stands, so a window of -2..2 costs the addition of one run of five rows per word,
    whatever the number of templates. Filled as lexemes are met; safe to use from several threads.
    """

    def __init__(
        self,
        compiled: CompiledTemplates,
        single: NDArray[np.bool_],
        rows: Table,
        slots: Floats,
        vectors: Optional[Any] = None,
    ):
        self._rows = rows
        self._slots = slots
        offsets = compiled.part_offsets[compiled.part_starts[:-1]]
        of_vectors = np.array([] if vectors is None else vectors.offsets, dtype=np.int64)
        self._sight = Sight.of(np.concatenate([offsets[single], of_vectors]))
        self._matrix = None if vectors is None else vectors.seen_by(self._sight)
        # By their offsets, so that those of each place are a slice
        chosen = sorted(np.flatnonzero(single), key=offsets.__getitem__)
        self._compiled = CompiledTemplates([compiled.templates[n] for n in chosen], compiled.reader)
        found, counts = np.unique(offsets[chosen], return_counts=True)
        ends = np.cumsum(counts)
        self._places = [(self._sight.place(o), slice(e - n, e)) for o, n, e in zip(found, counts, ends)]
        self._reach = compiled.reader.reach
        self._lock = threading.Lock()
        self._shape = (self._sight.width, rows.n_columns)
        # Of each table that is in use, and how many of its words they are of: a thread may go on with an older one
        self._of_tables: WeakKeyDictionary[LexemeTable, tuple[NDArray[np.float32], int]] = WeakKeyDictionary()

    @property
    def bytes_per_lexeme(self) -> int:
        return 4 * math.prod(self._shape)

    def add(self, columns: TokenColumns, scores: Floats) -> float:
        """Add the scores of the lexemes around each token to ``scores`` (float64[T, C]).

        RETURNS (float): Of how many words of the table there are scores; inf where none are needed.
        """
        if not self._sight.width:
            return math.inf
        table = columns.table
        with self._lock:
            known, filled = self._of_tables.get(table) or (np.zeros((0, *self._shape), dtype=np.float32), 0)
            size = table.size
            if size > filled:
                if size > len(known):
                    # A new array: other threads may be reading the old one
                    grown = np.zeros((max(size, 2 * len(known)), *self._shape), dtype=np.float32)
                    grown[:filled] = known[:filled]
                    known = grown
                known[filled:size] = self._of_words(*table.rows(slice(filled, size)))
                self._of_tables[table] = known, size
        add_kind_rows(columns.lexemes, columns.starts, self._reach, self._sight.first, known, scores)
        return max(size, filled)

    def _of_words(self, attributes: NDArray[np.uint64], vectors: NDArray[np.float32]) -> Floats:
        values = np.ascontiguousarray(attributes.T)
        rows = self._compiled.rows_of_values(values, self._compiled.part_columns, self._rows.index)
        first_slots, scores = self._rows.first_slots(rows), np.zeros((rows.shape[1], *self._shape))
        for place, templates in self._places:
            self._rows.add_references(first_slots[templates], self._slots, scores, place=place)
        if self._matrix is not None:
            # In float64, or a word would have slightly other scores among others
            scores += np.tensordot(vectors.astype(np.float64), self._matrix, axes=1)
        return scores
