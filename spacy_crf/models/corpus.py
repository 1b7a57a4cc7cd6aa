"""Scores of a fixed corpus, made many times: batch by batch, for sparse features and for layers on a fixed encoder.

`SparseCorpus` holds the features that a layer finds in a corpus, `FixedTokens` those of tokens, stored once for all windows that
look alike (`features.shared_windows`), and `DenseCorpus` the vectors of an encoder. A pass, such as `SparsePass`, goes from
weights to scores and back.
"""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, singledispatch
from itertools import product
from tempfile import TemporaryFile
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..arrays import expect_below, expect_starts, of_file, ranges
from ..features.doc_batch import DocBatch
from ..features.extractor import CompiledTemplates
from ..features.shared_windows import CorpusTokens, KindBuilder, with_features
from ..features.token_columns import TokenColumns
from ..inference.threads import run_chunks
from ..kernels.sparse_rows import add_kind_rows, scatter_kind_rows
from ..types import AnyClamp, Bools, Floats, Ints, Seed, SegmentClamp, SetClamp, SpanList, TokenFeatures
from .neural import EncoderNode
from .node import Node
from .sparse import VECTORS, FoundFeatures, SparseFeatures, SparseNode
from .table import GradientPart, Sight, Table, parts_for
from .weights import NAMES
from .word_scores import CorpusVectors

# Tokens that one thread scores at a time (half as many took 10 to 15 % longer); fewer if transitions depend on the position, and
# with many tags few enough that their scores stay in the cache (with 117 tags, 8 % of a pass)
_BLOCK = 1 << 13
_SCORES = 1 << 18
# Bound of the random numbers of marks; sums of 4 million of them are exact
_MARKS = 1 << 31
# Adds up derivatives with respect to the scores of the batch with a number
Collector = Callable[[int, NamedTuple, GradientPart], None]
# Windows that occur fewer times than this times the number of tags have no table of their scores, since a row of the table is as
# long as all their features together: as fast on CoNLL-2000 (22 tags) and german_ler (39), and saves memory with many tags.
_OFTEN = 0.1
# Templates that have weights at a smaller share of the tokens are listed token by token
_SPARSE = 0.5
# Items become rows beside the templates if that takes no more than this many times their number
_PADDED = 2
_FAR = 1 << 20  # no template reads tokens so far away


def block_tokens(features: SparseFeatures) -> int:
    """Number of tokens for one batch of a corpus.

    features (SparseFeatures): The features of the layer that scores it.
    """
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_states**2)
    return min(_BLOCK, max(256, _SCORES // features.n_states))


class PackedClamp(NamedTuple):
    """A clamp in an eighth of its memory. Clamps of numbers stay as they are."""

    octets: list[NDArray]  # uint8[N / 8], or the numbers
    shapes: list[list[int]]
    states_of: Sequence[Ints] = ()  # the states of each chain of a set; empty for a single chain

    @classmethod
    def of(cls, clamp: AnyClamp) -> "PackedClamp":
        """Pack a clamp.

        clamp (AnyClamp): The clamp of a chain, or of a set of chains.
        """
        chains = clamp.chains if isinstance(clamp, SetClamp) else (clamp,)
        arrays: list[NDArray] = []
        for chain in chains:
            arrays += chain if isinstance(chain, SegmentClamp) else [chain]
        packed = [np.packbits(array) if array.dtype == np.bool_ else array for array in arrays]
        states_of = clamp.states_of if isinstance(clamp, SetClamp) else ()
        return cls(packed, [list(array.shape) for array in arrays], states_of)

    def expect_whole(self, n_tokens: int) -> None:
        """Check the arrays that a file holds.

        n_tokens (int): T.
        RAISES (ValueError): If the arrays are no clamp of so many tokens.
        """
        for states in self.states_of:
            of_file("states of a chain", states, np.int64, (None,), copied=False)
        for octets, shape in zip(self.octets, self.shapes, strict=True):
            is_whole = all(type(size) is int and size >= 0 for size in shape) and shape[:1] == [n_tokens]
            if not is_whole:
                raise ValueError(f"its annotation is of the shape {shape}, for {n_tokens} tokens")
            # Clamps of bools are packed, and clamps of numbers are not
            if octets.dtype == np.float64:
                of_file("its annotation", octets, np.float64, tuple(shape), copied=False)
            else:
                of_file("its annotation", octets, np.uint8, ((math.prod(shape) + 7) // 8,), copied=False)

    def unpacked(self) -> Any:
        """The clamp, of the class that was packed."""
        arrays = []
        for octets, shape in zip(self.octets, self.shapes):
            if octets.dtype == np.float64:
                arrays.append(octets)
            else:
                arrays.append(np.unpackbits(octets, count=math.prod(shape)).view(np.bool_).reshape(shape))
        each = len(arrays) // max(1, len(self.states_of))  # arrays of a single chain
        parts = [arrays[n : n + each] for n in range(0, len(arrays), each)]
        clamps = tuple(SegmentClamp(*part) if each > 1 else part[0] for part in parts)
        return SetClamp(clamps, tuple(self.states_of)) if self.states_of else clamps[0]


# ------------------------------------------------------------------------------------------------ features of tokens


class WindowTable(NamedTuple):
    """Features of the U different windows of one kind in a corpus, see `features.shared_windows`."""

    sight: Sight  # tokens that see a window
    first_slots: dict[int, NDArray[np.integer]]  # by place in the sight: [M, U] first slot of each feature, -1 for none
    reach: int  # of the reader of the corpus
    n_windows: int  # U


class PlacedFeatures(NamedTuple):
    """Features of N tokens, one by one."""

    tokens: Ints  # [K] from 0 to N - 1
    first_slots: NDArray[np.integer]  # [K] -1 for features without weights
    values: Optional[NDArray[np.float32]]  # [K] None if all are 1


class FixedTokens:
    """Features that templates find at the tokens of a corpus, batch by batch, stored once for all windows that look alike. The
    table says which of their features have weights.
    """

    def __init__(self, compiled: CompiledTemplates, table: Table):
        self.table = table
        self.windows: list[WindowTable] = []
        self.blocks: list[CorpusTokens] = []  # with first slots in place of feature rows
        self._builder = KindBuilder(compiled, table.index)
        self._reach = compiled.reader.reach
        self._has_items = bool(compiled.item_templates)

    def add(self, columns: TokenColumns) -> None:
        """Add the next batch.

        columns (TokenColumns): Attributes of its tokens.
        """
        self.blocks.append(self._builder.add(columns))

    def finish(self) -> None:
        """Complete the corpus after the last batch."""
        shared, blocks = self._builder.finish(self.blocks, often=max(2, int(_OFTEN * self.table.n_columns)))
        if self._has_items:
            blocks = [*map(items_side_by_side, blocks)]
        for kinds in shared:
            sight = Sight.of(kinds.offsets)
            first_slots = {
                sight.place(offset): np.ascontiguousarray(self.table.first_slots(of_offset))
                for offset, of_offset in zip(kinds.offsets, kinds.rows)
            }
            self.windows.append(WindowTable(sight, first_slots, self._reach, kinds.rows[0].shape[1]))
        # From here on blocks have first slots in place of rows of features
        first_slots = self.table.first_slots
        placed = self.table.placed
        self.blocks = [block._replace(rest=first_slots(block.rest), items=placed(block.items)) for block in blocks]
        del self._builder

    def move(self, table: Table) -> None:
        """Replace the weights by those of another table of the same features, which may have fewer weights."""
        places = table.slots_after(self.table)
        self.table = table
        # New lists: a copy of this object, whose weights stay, may share the present ones
        blocks = []
        for block in self.blocks:
            moved = block._replace(rest=places[block.rest], items=table.placed_after(block.items, places))
            blocks.append(_shorter(moved))
        self.blocks = blocks
        all_windows = []
        for windows in self.windows:
            first_slots = {place: places[slots] for place, slots in windows.first_slots.items()}
            all_windows.append(windows._replace(first_slots=first_slots))
        self.windows = all_windows

    def listed(self, number: int, tokens: Ints) -> "PlacedFeatures":
        """The features of some tokens of a batch, one by one.

        number (int): The number of the batch.
        tokens (int64[N]): The tokens.
        """
        starts, kinds, rest, items = self.blocks[number]
        behind = 2 * np.searchsorted(starts, tokens, side="right") - 1  # positions around sequences, in units of reach
        of_templates = [rest[:, tokens]]
        for windows, of_positions in zip(self.windows, kinds):
            for place, first_slots in windows.first_slots.items():
                # The window that stands at the place from which the token reads
                kind = of_positions[tokens - windows.sight.first - place + behind * windows.reach]
                of_templates.append(np.where(kind >= 0, first_slots[:, kind], -1))
        slots = np.vstack(of_templates)
        template, at = np.nonzero(slots >= 0)
        begin = items.starts[tokens]
        end = items.starts[tokens + 1]
        # Features of functions, which may have values, come one by one
        chosen = ranges(begin, end)
        values = None
        rows = items.rows[chosen]
        if items.values is not None:
            rows = self.table.first_slots(rows)
            values = np.append(np.ones(len(at), dtype=np.float32), items.values[chosen])
        at_items = np.repeat(np.arange(len(tokens)), end - begin)
        return PlacedFeatures(np.append(at, at_items), np.append(slots[template, at], rows), values)

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish these features from others."""
        for starts, kinds, rest, items in self.blocks:
            yield from (*kinds, starts, rest, items.rows)

    def stored(self) -> list:
        """The features as a file can hold them: lists, numbers and arrays."""
        windows = []
        for sight, first_slots, reach, n_windows in self.windows:
            windows.append([list(sight), [list(item) for item in first_slots.items()], reach, n_windows])
        return [windows, [[starts, kinds, rest, list(items)] for starts, kinds, rest, items in self.blocks]]

    @classmethod
    def from_stored(cls, stored: list, table: Table) -> "FixedTokens":
        """Features from the data that `stored` gives.

        stored (list): The data.
        table (Table): The table of the features.
        RAISES: An error of any class for other data.
        """
        tokens = cls.__new__(cls)
        windows, blocks = stored
        tokens.table = table
        tokens.windows = [WindowTable(Sight(*sight), dict(slots), *rest) for sight, slots, *rest in windows]
        tokens.blocks = [
            CorpusTokens(starts, kinds, rest, TokenFeatures(*items)) for starts, kinds, rest, items in blocks
        ]
        tokens._expect_whole()
        return tokens

    def _expect_whole(self) -> None:
        """RAISES (ValueError): For arrays by which kernels can't index."""
        for sight, first_slots, reach, n_windows in self.windows:
            numbers = [*sight, *first_slots, reach, n_windows]
            if not all(type(number) is int for number in numbers) or min(sight.width, reach, n_windows) < 0:
                raise ValueError(f"windows are described by {numbers}")
            ends = sight.first, sight.first + max(0, sight.width - 1)  # a window is within reach of those that see it
            if reach > _FAR or max(map(abs, ends)) > reach:
                raise ValueError(f"tokens from {ends[0]} to {ends[1]} see windows, beyond {reach}")
            for place, slots in first_slots.items():
                if not 0 <= place < sight.width or np.shape(slots)[1:] != (n_windows,):
                    raise ValueError(f"windows at {place} have the shape {np.shape(slots)}")
                self.table.expect_slots("slots of windows", slots)
        for starts, kinds, rest, items in self.blocks:
            n_tokens = rest.shape[1]
            of_file("starts of sequences", starts, np.int64, (None,), copied=False)
            expect_starts("starts of sequences", starts, n_tokens)
            if len(kinds) != len(self.windows) or len(items.starts) != n_tokens + 1:
                raise ValueError(f"{len(kinds)} kinds and {len(items.starts) - 1} tokens with other features")
            for windows, of_kind in zip(self.windows, kinds):
                n_positions = n_tokens + 2 * windows.reach * (len(starts) - 1)
                of_file("kinds of windows", of_kind, np.int32, (n_positions,), copied=False)
                expect_below("kinds of windows", of_kind, windows.n_windows, least=-1)
            self.table.expect_slots("slots of tokens", rest)
            self.table.expect_placed("other features of tokens", items)


class TokensPass:
    """One pass over a corpus.

    tokens (FixedTokens): The features of the corpus.
    slots (float64[N]): Weights of the features, by slot.
    """

    def __init__(self, tokens: FixedTokens, slots: Floats, *, threads: int = 1):
        self._blocks = tokens.blocks
        self._windows = tokens.windows
        self._table = tokens.table
        self._slots = slots
        shapes = [(windows.n_windows, windows.sight.width, self._table.n_columns) for windows in self._windows]
        # Scores of each window for each token that sees it, and their derivatives: [U, O, C]
        self._scores = [*map(np.zeros, shapes)]
        self._d_scores = [*map(np.zeros, shapes)]
        for windows, scores in zip(self._windows, self._scores):
            for place, first_slots in windows.first_slots.items():
                self._table.add_references(first_slots, slots, scores, place=place, threads=threads)

    def add_scores(self, number: int, scores: Floats) -> None:
        """Add the scores of a batch.

        number (int): The number of the batch.
        scores (float64[T, C]): Receives the sums.
        """
        starts, kinds, rest, items = self._blocks[number]
        for windows, of_tokens, of_windows in zip(self._windows, kinds, self._scores):
            add_kind_rows(of_tokens, starts, windows.reach, windows.sight.first, of_windows, scores)
        self._table.add_references(rest, self._slots, scores)
        self._table.add_placed(items, self._slots, scores)

    @property
    def n_tables(self) -> int:
        """Number of tables of windows, whose derivatives are collected separately."""
        return len(self._windows)

    def scatter_windows(self, table: int, number: int, d_scores: Floats, *, part: GradientPart) -> None:
        """Collect the derivatives of a batch for one of the tables of windows.

        table (int): The number of the table.
        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of its tokens.
        part (GradientPart): The rows that this thread adds up.
        """
        block = self._blocks[number]
        windows = self._windows[table]
        where = block.kinds[table], block.starts, windows.reach, windows.sight.first
        scatter_kind_rows(*where, d_scores, *part, self._d_scores[table])

    def scatter(self, number: int, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart) -> None:
        """Add the gradients of slots that no window uses, and of weights of features with values.

        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of its tokens.
        d_slots (float64[N]): Receives the gradients of slots.
        gradient (float64[W]): Receives the gradients of weights of features with values.
        part (GradientPart): The rows that this thread adds up.
        """
        block = self._blocks[number]
        self._table.scatter_references(block.rest, d_scores, d_slots, part=part)
        self._table.scatter_placed(block.items, d_scores, d_slots, gradient, part=part)

    def finish(self, d_slots: Floats, part: GradientPart) -> None:
        """Add the gradients of the slots that windows use, after the last batch.

        d_slots (float64[N]): Receives the gradients.
        part (GradientPart): The rows that this thread adds up.
        """
        for windows, d_scores in zip(self._windows, self._d_scores):
            for place, first_slots in windows.first_slots.items():
                self._table.scatter_references(first_slots, d_scores, d_slots, place=place, part=part)


def items_side_by_side(block: CorpusTokens) -> CorpusTokens:
    """Move items without values (as most functions give them) into rows beside the templates: if a function gives items
    in the same order at each token, reading them takes nearly half of the time (features of sklearn-crfsuite's
    tutorial).

    block (CorpusTokens): The features of a batch.
    """
    rows, values, starts = block.items
    # A feature with the value 0 is as good as none
    there = np.ones(len(rows), dtype=bool) if values is None else values != 0
    counts = np.diff(starts)
    width = int(counts.max(initial=0))
    n_tokens = len(counts)
    if (values is not None and (values[there] != 1).any()) or width * n_tokens > _PADDED * len(rows):
        return block
    # Number of each item among the items of its token
    place = np.arange(len(rows)) - np.repeat(starts[:-1], counts)
    beside = np.full((width, n_tokens), -1, dtype=np.int32)
    beside[place[there], np.repeat(np.arange(n_tokens), counts)[there]] = rows[there]
    none = TokenFeatures(rows[:0], None, np.zeros(n_tokens + 1, dtype=np.int64))
    return block._replace(rest=np.vstack([block.rest, beside]), items=none)


def _shorter(block: CorpusTokens) -> CorpusTokens:
    """The block with templates that have few weights moved to the items, if that makes a pass shorter."""
    rest = block.rest
    items = block.items
    if items.values is not None:
        return block._replace(rest=rest[(rest >= 0).any(axis=1)])
    few = (rest >= 0).mean(axis=1) < _SPARSE
    tokens, template = np.nonzero(rest[few].T >= 0)
    return block._replace(rest=rest[~few], items=with_features(items, tokens, rest[few][template, tokens]))


# ------------------------------------------------------------------------------------------------- features of a layer


class SparseCorpus:
    """Features with weights that a sparse layer finds in the batches of a corpus, without the Docs.

    Features of tokens are stored once for all windows that look alike (`FixedTokens`), features of spans, of pairs of states and
    of texts batch by batch.
    """

    def __init__(self, features: SparseFeatures):
        self.features = features
        self.names: Iterable[str] = features.tables  # of the weights of the layer
        self.found: list[FoundFeatures] = []  # features of each batch that are stored batch by batch
        tables = features.tables
        compiled = features.compiled.templates
        # Stored by window: nothing of texts, the features of states of emissions, and all kinds of features of segments
        windows = () if features.unit is not None else ("states",) if "states" in compiled else tuple(compiled)
        self.tokens = {kind: FixedTokens(compiled[kind], tables[kind]) for kind in windows}
        has_vectors = VECTORS in tables and features.unit is None
        self.vectors = CorpusVectors(tables[VECTORS], features.compiled.reader.reach) if has_vectors else None

    def add(self, docs: DocBatch) -> None:
        """Look up the features of the next batch.

        docs (DocBatch): The batch.
        """
        features = self.features
        if features.unit is not None:
            found = features.look_up(docs)
        else:
            columns = features.compiled.reader.read(docs)
            for tokens in self.tokens.values():
                tokens.add(columns)
            if self.vectors is not None:
                self.vectors.add(columns)
            others, listed = features.find_spans(docs, columns)
            for kind, templates in features.compiled.templates.items():
                if kind not in self.tokens:
                    others[kind] = templates.rows(columns, self._table(kind).index)
            found = FoundFeatures(columns.starts, others, listed)
        placed = {kind: self._table(kind).placed(of_kind) for kind, of_kind in found.features.items()}
        self.found.append(found._replace(features=placed))

    def _table(self, kind: str) -> Table:
        return self.features.tables[self.features.kinds[kind].table]

    def finish(self) -> None:
        """Complete the corpus after the last batch."""
        for tokens in self.tokens.values():
            tokens.finish()
        if self.vectors is not None:
            self.vectors.finish()

    def fingerprint(self) -> Iterable[Optional[NDArray]]:
        """The arrays that distinguish this corpus from others."""
        for found in self.found:
            yield from (found.starts, *(found.listed or ()))
            for features in found.features.values():
                yield from features
        for tokens in self.tokens.values():
            yield from tokens.fingerprint()
        if self.vectors is not None:
            yield from self.vectors.fingerprint()

    @property
    def least_value(self) -> float:
        """The least value of a feature; 0 if all values are positive."""
        values = [] if self.vectors is None else [self.vectors.words]
        for found in self.found:
            # "repeats" are corrections of positive values
            values += [features.values for kind, features in found.features.items() if kind != "repeats"]
        for tokens in self.tokens.values():
            values += [block.items.values for block in tokens.blocks]
        return min([float(each.min(initial=0.0)) for each in values if each is not None], default=0.0)

    @property
    def is_of_single_states(self) -> bool:
        """Whether each score only sums weights that belong to one feature of the token and one state."""
        only_tokens = [*self.tokens] == ["states"] and self.vectors is None
        return only_tokens and not any(found.features for found in self.found)

    def stored(self) -> list:
        """The corpus as a file can hold it: lists, texts, numbers and arrays, for `with_stored`."""
        found = []
        for starts, by_kind, listed in self.found:
            found.append([starts, listed, {kind: list(features) for kind, features in by_kind.items()}])
        vectors = None if self.vectors is None else [self.vectors.words, self.vectors.kinds]
        return [found, {kind: tokens.stored() for kind, tokens in self.tokens.items()}, vectors]

    def with_stored(self, stored: list) -> "SparseCorpus":
        """The corpus that a file holds, with the same features.

        stored (list): What `stored` returned.
        RAISES: An error of any class for another corpus.
        """
        corpus = copy.copy(self)
        (of_batches, tokens, vectors) = stored
        corpus.found = []
        for starts, listed, by_kind in of_batches:
            features = {kind: TokenFeatures(*some) for kind, some in by_kind.items()}
            corpus.found.append(FoundFeatures(starts, features, listed and SpanList(*listed)))
        if {*tokens} != {*self.tokens} or (vectors is None) != (self.vectors is None):
            raise ValueError(f"it has features of {sorted(tokens)}, and the model of {sorted(self.tokens)}")
        corpus.tokens = {kind: FixedTokens.from_stored(of, self._table(kind)) for kind, of in tokens.items()}
        if vectors is not None and self.vectors is not None:
            own = copy.copy(self.vectors)
            own.words, own.kinds = vectors
            own.expect_whole([found.starts for found in corpus.found])
            corpus.vectors = own
        corpus._expect_whole()
        return corpus

    def _expect_whole(self) -> None:
        """RAISES (ValueError): For arrays by which kernels can't index."""
        for number, (starts, by_kind, listed) in enumerate(self.found):
            of_file("starts of sequences", starts, np.int64, (None,), copied=False)
            expect_starts("starts of sequences", starts, int(starts[-1]))
            n_tokens = int(starts[-1])
            n_spans = 0
            for tokens in self.tokens.values():
                if not np.array_equal(tokens.blocks[number].starts, starts):
                    raise ValueError("features of tokens are of other sequences")
            if listed is not None:
                n_spans = len(listed.lengths)
                of_file("starts of spans", listed.starts, np.int64, (n_tokens + 1,), copied=False)
                of_file("lengths of spans", listed.lengths, listed.lengths.dtype, (None,), copied=False)
                expect_starts("starts of spans", listed.starts, n_spans)
                expect_below("lengths of spans", listed.lengths, n_tokens + 1, least=1)
            for kind, features in by_kind.items():
                self._table(kind).expect_placed(f"features of {kind}", features)
                if len(features.starts) - 1 not in (n_tokens, n_spans, len(starts) - 1):
                    raise ValueError(f"features of {kind} are of {len(features.starts) - 1} places")

    def copied(self) -> "SparseCorpus":
        """A copy whose weights can be thinned and moved without changing this corpus."""
        corpus = copy.copy(self)
        corpus.found = [*self.found]
        corpus.tokens = {kind: copy.copy(tokens) for kind, tokens in self.tokens.items()}
        return corpus

    @property
    def has_values(self) -> bool:
        """Whether any feature has a value other than 1."""
        items: list[TokenFeatures] = []
        for tokens in self.tokens.values():
            items += [block.items for block in tokens.blocks]
        for found in self.found:
            items += found.features.values()
        return any(features.values is not None for features in items)

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> "SparsePass":
        """One pass over the corpus.

        weights (dict[str, float64[W]]): Weights by table.
        threads (int): How many threads score a batch.
        into (dict[str, float64[W]]): Zeros by table that may receive the derivatives.
        """
        return SparsePass(self, weights, threads, into or {})

    def marks(self, seed: Seed, *, threads: int = 1) -> dict[str, Floats]:
        """Derivatives of the weights by table, for random numbers as derivatives of the scores, equal for all states.
        Weights of a state that belong to the same tokens have equal marks: sums of whole numbers are exact.

        seed (Seed): Seed of the random numbers.
        threads (int): How many threads sum up.
        """
        generator = np.random.default_rng(seed)
        weights = {name: np.zeros(table.n_weights) for name, table in self.features.tables.items()}
        of_pass = self.at(weights, threads=threads)
        for number in range(len(self.found)):
            drawn = {}
            scores = of_pass.score(number)
            for name, array in scores._asdict().items():
                if isinstance(array, np.ndarray) and array.dtype == np.float64:
                    # One number for all states of a token: features of the same tokens get equal sums for each state
                    numbers = generator.integers(_MARKS, size=len(array)).astype(np.float64)
                    drawn[name] = np.broadcast_to(numbers.reshape(-1, *[1] * (array.ndim - 1)), array.shape).copy()
            of_pass.collect([number], [scores._replace(**drawn)])
        return of_pass.gradient()

    def thin(self, kept: dict[str, Bools]) -> None:
        """Keep the chosen weights of each table (bool[W], by the name of the table); weights that are not kept count as 0."""
        tables = {name: self.features.tables[name].thinned(of_table) for name, of_table in kept.items()}
        self.move(self.features.with_tables(tables))

    def move(self, features: SparseFeatures) -> None:
        """Replace the weights by the weights of other tables with the same features."""
        kinds = features.kinds.items()
        before = self.features.tables
        self.features = features
        places = {
            kind: features.tables[table].slots_after(before[table]) for kind, (table, _) in kinds if table in before
        }
        for number, found in enumerate(self.found):
            found_of = found.features.items()
            placed = {kind: self._table(kind).placed_after(of_kind, places[kind]) for kind, of_kind in found_of}
            self.found[number] = found._replace(features=placed)
        for kind, tokens in self.tokens.items():
            tokens.move(self._table(kind))


class SparsePass:
    """Scores batches one by one, collects the derivatives by their scores, and sums up the derivatives of the weights."""

    def __init__(self, corpus: SparseCorpus, weights: dict[str, Floats], threads: int, into: dict[str, Floats]):
        self._corpus = corpus
        self._features = corpus.features
        self._threads = threads
        self._slots = self._features.slots(weights)
        self._gradients = {name: np.zeros(len(of_table)) for name, of_table in weights.items()}
        # Where slots are weights, their derivatives go straight into the gradient
        self._d_slots = {
            name: into[name] if name in into and table.slots_are_weights else table.zero_slots()
            for name, table in corpus.features.tables.items()
        }
        self._tokens = {
            kind: TokensPass(tokens, self._slots[kind], threads=threads) for kind, tokens in corpus.tokens.items()
        }
        self._vectors = corpus.vectors
        if self._vectors is not None:
            self._of_words = self._vectors.score(weights[VECTORS], threads=threads)
            self._d_words = self._vectors.zeros()

    def score(self, number: int) -> NamedTuple:
        """Scores of the layer for one batch, in one thread.

        number (int): The number of the batch.
        """
        found = self._corpus.found[number]
        kinds = self._features.kinds
        scores = {}
        for kind, tokens in self._tokens.items():
            into = scores[kinds[kind].scores] = np.zeros((int(found.starts[-1]), self._features.n_states))
            tokens.add_scores(number, into)
        if self._vectors is not None:
            self._vectors.add_scores(number, self._of_words, scores[kinds[VECTORS].scores])
        for kind, features in found.features.items():
            table, of = kinds[kind]
            # No token has such a score yet: texts, spans and pairs of states
            if of not in scores:
                scores[of] = np.zeros((len(features.starts) - 1, *self._features.shape(table)))
            self._features.tables[table].add_placed(features, self._slots[table], scores[of])
        return self._features.output(scores, found.starts, found.listed)

    def collect(self, numbers: Iterable[int], derivatives: Iterable[NamedTuple]) -> None:
        """Collect the derivatives with respect to the scores of some batches.

        numbers (Iterable[int]): The numbers of the batches.
        derivatives (Iterable): The derivatives of each.
        """
        batches = [*zip(numbers, derivatives)]
        collectors = self._collectors()

        def collect(task: tuple[Collector, GradientPart]) -> None:
            collector, part = task
            for number, d_scores in batches:
                collector(number, d_scores, part)

        # Each part passes over all tokens, so threads first work on different collectors
        parts = parts_for(math.ceil(self._threads / len(collectors)))
        run_chunks(collect, [*product(collectors, parts)], self._threads)

    def _collectors(self) -> list[Collector]:
        """Functions that add up the derivatives of a batch, each of them in other arrays."""
        windows = []
        for kind, tokens in self._tokens.items():
            windows += [partial(self._collect_windows, kind, table) for table in range(tokens.n_tables)]
        return [self._collect, *windows, *([] if self._vectors is None else [self._collect_vectors])]

    def _collect(self, number: int, d_scores: NamedTuple, part: GradientPart) -> None:
        kinds = self._features.kinds
        tables = self._features.tables
        for kind, tokens in self._tokens.items():
            given = getattr(d_scores, kinds[kind].scores)
            into = (self._d_slots[kind], self._gradients[kind])
            tokens.scatter(number, given, *into, part=part)
        for kind, features in self._corpus.found[number].features.items():
            table, of = kinds[kind]
            into = self._d_slots[table], self._gradients[table]
            tables[table].scatter_placed(features, getattr(d_scores, of), *into, part=part)

    def _collect_windows(self, kind: str, table: int, number: int, d_scores: NamedTuple, part: GradientPart) -> None:
        given = getattr(d_scores, self._features.kinds[kind].scores)
        self._tokens[kind].scatter_windows(table, number, given, part=part)

    def _collect_vectors(self, number: int, d_scores: NamedTuple, part: GradientPart) -> None:
        given = getattr(d_scores, self._features.kinds[VECTORS].scores)
        if self._vectors is not None:
            self._vectors.scatter(number, given, self._d_words, part=part)

    def gradient(self) -> dict[str, Floats]:
        """Derivatives of the weights by table; call it once, at the end."""
        # Derivatives of windows become derivatives of their features once, after all batches
        for kind, tokens in self._tokens.items():
            run_chunks(partial(tokens.finish, self._d_slots[kind]), parts_for(self._threads), self._threads)
        for name, d_slots in self._d_slots.items():
            found = self._features.tables[name].weights_of(d_slots)
            if self._corpus.has_values:
                found += self._gradients[name]
            self._gradients[name] = found
        if self._vectors is not None:
            self._gradients[VECTORS] += self._vectors.gradient(self._d_words, threads=self._threads)
        return self._gradients


class DenseCorpus:
    """Vectors of the tokens of a corpus, batch by batch: the `SparseCorpus` of a layer on an encoder. They are in a temporary
    file, since those of a large corpus need more than the memory.

    layer (Model): On the encoder.
    """

    names = NAMES

    def __init__(self, layer: Model):
        self.layer = layer
        self.starts: list[Ints] = []
        self._file: Any = None  # opened by the first vectors

    def add(self, docs: DocBatch) -> None:
        """Compute the vectors of the next batch.

        docs (DocBatch): The batch.
        """
        ops = self.layer.ops
        self.append(ops.to_numpy(ops.flatten(self.layer.get_ref("tok2vec").predict(docs))), docs.sequence_starts())

    def append(self, vectors: NDArray[np.float32], starts: Ints) -> None:
        """Append the vectors of a batch to the file.

        vectors (float32[T, width]): The vectors.
        starts (int64[B + 1]): Where the sequences of the batch start.
        """
        self.starts.append(starts)
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115
        self._file.write(np.ascontiguousarray(vectors).data)

    def finish(self) -> None:
        """Complete the corpus after the last batch: from here on it has `vectors`, float32[T, width] of each batch."""
        # The operating system reads the vectors of a batch when a pass needs them
        ends = np.cumsum([starts[-1] for starts in self.starts])
        shape = int(ends[-1]), self.layer.get_ref("output").get_dim("nI")
        every = np.memmap(self._file, np.float32, "r", shape=shape) if ends[-1] else np.zeros(shape, np.float32)
        if self._file is not None:
            self._file.close()  # the file is gone with the last use of the vectors
            self._file = None
        self.vectors = np.split(every, ends[:-1])

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish this corpus from others."""
        yield from (*self.vectors, *self.starts)

    @property
    def least_value(self) -> float:
        """The least number in a vector; 0 if all are positive."""
        return min(float(each.min(initial=0.0)) for each in self.vectors)

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> "DensePass":
        """One pass over the corpus.

        weights (dict[str, float64[...]]): The parameters of the last layer by name.
        threads (int): Ignored: numpy uses its own.
        into (dict[str, float64[...]]): Ignored.
        """
        return DensePass(self, weights)


class DensePass:
    """One pass over a `DenseCorpus`, see `SparsePass`."""

    def __init__(self, corpus: DenseCorpus, weights: dict[str, Floats]):
        self._corpus = corpus
        self._weights = weights
        self._role = corpus.layer.attrs["node"]
        self._gradients = {name: np.zeros(array.shape) for name, array in weights.items()}

    def score(self, number: int) -> NamedTuple:
        """Scores of the layer for the batch `number`: vectors · Wᵀ + b."""
        scores = self._corpus.vectors[number] @ self._weights["W"].T + self._weights["b"]
        return self._role.split(self._corpus.layer, scores, self._corpus.starts[number])

    def collect(self, numbers: Iterable[int], derivatives: Iterable[NamedTuple]) -> None:
        """Add to dW and db the `derivatives` with respect to the scores of the batches with these `numbers`."""
        for number, derivative in zip(numbers, derivatives):
            # scores = vectors · Wᵀ + b, so dW = d_scoresᵀ · vectors and db = sum over tokens of d_scores
            d_scores = self._role.join(derivative)
            self._gradients["W"] += d_scores.T @ self._corpus.vectors[number]
            self._gradients["b"] += d_scores.sum(axis=0)

    def gradient(self) -> dict[str, Floats]:
        """Derivatives of the parameters by name, as vectors."""
        return {name: array.ravel() for name, array in self._gradients.items()}


@singledispatch
def corpus_by(node: Node, layer: Model) -> Any:
    """New storage for what a layer reads of a corpus, by the class of its node; for its methods see `SparseCorpus`."""
    raise NotImplementedError


@corpus_by.register
def _(node: SparseNode, layer: Model) -> SparseCorpus:
    return SparseCorpus(node.features(layer))


@corpus_by.register
def _(node: EncoderNode, layer: Model) -> DenseCorpus:
    return DenseCorpus(layer)
