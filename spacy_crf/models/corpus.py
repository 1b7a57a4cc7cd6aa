"""Scores of a fixed corpus, which training computes again and again, batch by batch: by sparse features, and by layers on a
fixed encoder.

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

# Tokens that one thread scores at a time (half as many took 10 to 15 % longer)
_BLOCK = 1 << 13
# Scores of emissions that stay in the cache: with many tags, batches of so few tokens saved 8 % of a pass (117 tags)
_SCORES = 1 << 18
# Bound of the random numbers of marks; sums of 4 million of them are exact
_MARKS = 1 << 31
# Called with the number of a batch and the derivatives with respect to its scores, it adds up derivatives of weights
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
    """How many tokens a batch of a corpus should have.

    features (SparseFeatures): The features of the layer that scores the corpus.
    """
    if features.feature_set.transitions:  # S² scores of each token
        return max(256, (_BLOCK * 32) // features.n_states**2)
    return min(_BLOCK, max(256, _SCORES // features.n_states))


class PackedClamp(NamedTuple):
    """A clamp whose bools are packed into an eighth of their memory. Clamps of float64 stay as they are."""

    octets: list[NDArray]  # uint8[N / 8] for each array of N bools, or the array of float64
    shapes: list[list[int]]  # of the arrays
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
        """Check a clamp that a file holds.

        n_tokens (int): T.
        RAISES (ValueError): If the arrays are not a clamp of T tokens.
        """
        for states in self.states_of:
            of_file("states of a chain", states, np.int64, (None,), copied=False)
        for octets, shape in zip(self.octets, self.shapes, strict=True):
            is_whole = all(type(size) is int and size >= 0 for size in shape) and shape[:1] == [n_tokens]
            if not is_whole:
                raise ValueError(f"its annotation is of the shape {shape}, for {n_tokens} tokens")
            if octets.dtype == np.float64:
                of_file("its annotation", octets, np.float64, tuple(shape), copied=False)
            else:
                of_file("its annotation", octets, np.uint8, ((math.prod(shape) + 7) // 8,), copied=False)

    def unpacked(self) -> Any:
        """The clamp that `of` packed."""
        arrays = []
        for octets, shape in zip(self.octets, self.shapes):
            if octets.dtype == np.float64:
                arrays.append(octets)
            else:
                arrays.append(np.unpackbits(octets, count=math.prod(shape)).view(np.bool_).reshape(shape))
        # A chain has one array, a chain of segments several, and the chains of a set stand one after the other
        n_arrays = len(arrays) // max(1, len(self.states_of))
        chains = [arrays[n : n + n_arrays] for n in range(0, len(arrays), n_arrays)]
        clamps = tuple(SegmentClamp(*chain) if n_arrays > 1 else chain[0] for chain in chains)
        return SetClamp(clamps, tuple(self.states_of)) if self.states_of else clamps[0]


# ------------------------------------------------------------------------------------------------ features of tokens


class WindowTable(NamedTuple):
    """Features of the U different windows of one kind in a corpus, see `features.shared_windows`."""

    sight: Sight  # the tokens that read the features of a window
    # By the token's number in the sight: [M, U] of each feature, -1 for none
    first_slots: dict[int, NDArray[np.integer]]
    reach: int  # how far templates read to the left and right of a token
    n_windows: int  # U


class FeatureUses(NamedTuple):
    """Pairs of a token and one of its features, for N tokens."""

    tokens: Ints  # [K] from 0 to N - 1
    first_slots: NDArray[np.integer]  # [K] -1 for features without weights
    values: Optional[NDArray[np.float32]]  # [K] None if all are 1


class FixedTokens:
    """Features that templates find at the tokens of a corpus, batch by batch, stored once for all windows that look alike.

    compiled (CompiledTemplates): The templates.
    table (Table): The weights of the features.
    """

    def __init__(self, compiled: CompiledTemplates, table: Table):
        self.table = table
        self.windows: list[WindowTable] = []
        self.blocks: list[CorpusTokens] = []  # of each batch; `finish` puts first slots in place of rows of features
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
                sight.viewer(offset): np.ascontiguousarray(self.table.first_slots(rows))
                for offset, rows in zip(kinds.offsets, kinds.rows)
            }
            self.windows.append(WindowTable(sight, first_slots, self._reach, kinds.rows[0].shape[1]))
        self.blocks = []
        for block in blocks:
            items = self.table.with_first_slots(block.items)
            self.blocks.append(block._replace(rest=self.table.first_slots(block.rest), items=items))
        del self._builder

    def move(self, table: Table) -> None:
        """Replace the table by another table of the same features, which may have fewer weights."""
        new_slots = table.moved_slots(self.table)
        self.table = table
        # New lists: a copy of this object, whose weights stay, may share the present ones
        blocks = []
        for block in self.blocks:
            moved = block._replace(rest=new_slots[block.rest], items=table.with_moved_slots(block.items, new_slots))
            blocks.append(_shorter(moved))
        self.blocks = blocks
        all_windows = []
        for windows in self.windows:
            first_slots = {viewer: new_slots[slots] for viewer, slots in windows.first_slots.items()}
            all_windows.append(windows._replace(first_slots=first_slots))
        self.windows = all_windows

    def list_features(self, number: int, tokens: Ints) -> FeatureUses:
        """List the features of some tokens of a batch.

        number (int): The number of the batch.
        tokens (int64[N]): The tokens.
        """
        starts, kinds, rest, items = self.blocks[number]
        # Each sequence has `reach` further positions before and behind it: token t of sequence b is position
        # t + (2 b + 1) · reach
        n_reaches = 2 * np.searchsorted(starts, tokens, side="right") - 1  # [N] 2 b + 1
        slots_by_template = [rest[:, tokens]]
        for windows, kind_of_position in zip(self.windows, kinds):
            positions = tokens + n_reaches * windows.reach
            for viewer, first_slots in windows.first_slots.items():
                # The token is at sight.first + viewer, relative to the window
                kind = kind_of_position[positions - windows.sight.first - viewer]  # [N]
                slots_by_template.append(np.where(kind >= 0, first_slots[:, kind], -1))
        slots = np.vstack(slots_by_template)  # [M, N]
        template, index = np.nonzero(slots >= 0)
        begin = items.starts[tokens]
        end = items.starts[tokens + 1]
        # The other features, which may have values
        item_positions = ranges(begin, end)
        item_slots = items.rows[item_positions]
        values = None
        if items.values is not None:  # features with values are stored as rows
            item_slots = self.table.first_slots(item_slots)
            values = np.append(np.ones(len(index), dtype=np.float32), items.values[item_positions])
        item_index = np.repeat(np.arange(len(tokens)), end - begin)
        return FeatureUses(np.append(index, item_index), np.append(slots[template, index], item_slots), values)

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish these features from others."""
        for starts, kinds, rest, items in self.blocks:
            yield from (*kinds, starts, rest, items.rows)

    def stored(self) -> list:
        """The features as lists, numbers and arrays, which a file can hold."""
        windows = []
        for sight, first_slots, reach, n_windows in self.windows:
            windows.append([list(sight), [list(item) for item in first_slots.items()], reach, n_windows])
        return [windows, [[starts, kinds, rest, list(items)] for starts, kinds, rest, items in self.blocks]]

    @classmethod
    def from_stored(cls, stored: list, table: Table) -> "FixedTokens":
        """Load features from a file.

        stored (list): The result of `stored`.
        table (Table): The weights of the features.
        RAISES: An error of any class if the data are damaged.
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
        """Check features that a file holds, since kernels trust them. RAISES (ValueError)."""
        for sight, first_slots, reach, n_windows in self.windows:
            numbers = [*sight, *first_slots, reach, n_windows]
            are_counts = all(type(number) is int for number in numbers) and min(sight.width, reach, n_windows) >= 0
            if not are_counts:
                raise ValueError(f"windows are described by {numbers}")
            last = sight.first + max(0, sight.width - 1)
            # A token reads no window beyond its reach
            if reach > _FAR or max(abs(sight.first), abs(last)) > reach:
                raise ValueError(f"tokens from {sight.first} to {last} see windows, beyond {reach}")
            for viewer, slots in first_slots.items():
                if not 0 <= viewer < sight.width or np.shape(slots)[1:] != (n_windows,):
                    raise ValueError(f"windows at {viewer} have the shape {np.shape(slots)}")
                self.table.expect_slots("slots of windows", slots)
        for starts, kinds, rest, items in self.blocks:
            n_tokens = rest.shape[1]
            of_file("starts of sequences", starts, np.int64, (None,), copied=False)
            expect_starts("starts of sequences", starts, n_tokens)
            if len(kinds) != len(self.windows) or len(items.starts) != n_tokens + 1:
                raise ValueError(f"{len(kinds)} kinds and {len(items.starts) - 1} tokens with other features")
            for windows, kind_of_position in zip(self.windows, kinds):
                n_positions = n_tokens + 2 * windows.reach * (len(starts) - 1)
                of_file("kinds of windows", kind_of_position, np.int32, (n_positions,), copied=False)
                expect_below("kinds of windows", kind_of_position, windows.n_windows, least=-1)
            self.table.expect_slots("slots of tokens", rest)
            self.table.expect_with_slots("other features of tokens", items)


class TokensPass:
    """One pass over the tokens of a corpus: scores of the tokens from weights, and the gradient of the weights.

    tokens (FixedTokens): The features of the corpus.
    slots (float64[N]): Weights of the features, see `Table.slots`.
    threads (int): How many threads score the windows.
    """

    def __init__(self, tokens: FixedTokens, slots: Floats, *, threads: int = 1):
        self._blocks = tokens.blocks
        self._windows = tokens.windows
        self._table = tokens.table
        self._slots = slots
        shapes = [(windows.n_windows, windows.sight.width, self._table.n_columns) for windows in self._windows]
        # Scores of each window for each token that reads it, and the derivatives with respect to them: [U, O, C]
        self._scores = [*map(np.zeros, shapes)]
        self._d_scores = [*map(np.zeros, shapes)]
        for windows, scores in zip(self._windows, self._scores):
            for viewer, first_slots in windows.first_slots.items():
                self._table.add_references(first_slots, slots, scores, viewer=viewer, threads=threads)

    def add_scores(self, number: int, scores: Floats) -> None:
        """Add the scores of a batch.

        number (int): The number of the batch.
        scores (float64[T, C]): Receives the sums.
        """
        starts, kinds, rest, items = self._blocks[number]
        for windows, kind_of_position, window_scores in zip(self._windows, kinds, self._scores):
            add_kind_rows(kind_of_position, starts, windows.reach, windows.sight.first, window_scores, scores)
        self._table.add_references(rest, self._slots, scores)
        self._table.add_scores_by_slot(items, self._slots, scores)

    @property
    def n_tables(self) -> int:
        """Number of tables of windows, whose derivatives are collected separately."""
        return len(self._windows)

    def scatter_windows(self, table: int, number: int, d_scores: Floats, *, part: GradientPart) -> None:
        """Add up derivatives with respect to the scores of one of the tables of windows.

        table (int): The number of the table.
        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of the tokens of the batch.
        part (GradientPart): The rows that this thread adds up.
        """
        block = self._blocks[number]
        windows = self._windows[table]
        kind_of_position = block.kinds[table]
        first = windows.sight.first
        scatter_kind_rows(kind_of_position, block.starts, windows.reach, first, d_scores, *part, self._d_scores[table])

    def scatter(self, number: int, d_scores: Floats, d_slots: Floats, gradient: Floats, *, part: GradientPart) -> None:
        """Add the gradients of slots that no window uses, and of weights of features with values.

        number (int): The number of the batch.
        d_scores (float64[T, C]): Derivatives with respect to the scores of the tokens of the batch.
        d_slots (float64[N]): Receives the gradients of slots.
        gradient (float64[W]): Receives the gradients of weights of features with values.
        part (GradientPart): The rows that this thread adds up.
        """
        block = self._blocks[number]
        self._table.scatter_references(block.rest, d_scores, d_slots, part=part)
        self._table.scatter_by_slot(block.items, d_scores, d_slots, gradient, part=part)

    def finish(self, d_slots: Floats, part: GradientPart) -> None:
        """Add the gradients of the slots that windows use, after the last batch.

        d_slots (float64[N]): Receives the gradients.
        part (GradientPart): The rows that this thread adds up.
        """
        for windows, d_scores in zip(self._windows, self._d_scores):
            for viewer, first_slots in windows.first_slots.items():
                self._table.scatter_references(first_slots, d_scores, d_slots, viewer=viewer, part=part)


def items_side_by_side(block: CorpusTokens) -> CorpusTokens:
    """Move items whose values are 1 or 0 into rows beside those of the templates: row n has item n of each token.

    If a function gives items in the same order at each token, reading them takes nearly half of the time (features of
    sklearn-crfsuite's tutorial).

    block (CorpusTokens): The features of a batch.
    """
    rows, values, starts = block.items
    is_used = np.ones(len(rows), dtype=bool) if values is None else values != 0  # 0 adds nothing to a score
    has_values = values is not None and (values[is_used] != 1).any()
    counts = np.diff(starts)  # [T] items of each token
    width = int(counts.max(initial=0))
    n_tokens = len(counts)
    if has_values or width * n_tokens > _PADDED * len(rows):
        return block
    item = np.arange(len(rows)) - np.repeat(starts[:-1], counts)  # number of each item among the items of its token
    token = np.repeat(np.arange(n_tokens), counts)
    beside = np.full((width, n_tokens), -1, dtype=np.int32)
    beside[item[is_used], token[is_used]] = rows[is_used]
    no_items = TokenFeatures(rows[:0], None, np.zeros(n_tokens + 1, dtype=np.int64))
    return block._replace(rest=np.vstack([block.rest, beside]), items=no_items)


def _shorter(block: CorpusTokens) -> CorpusTokens:
    """Move features of templates that have weights at few tokens to the items, so that a pass skips the other tokens."""
    first_slots = block.rest  # [M, T]
    has_weights = first_slots >= 0
    if block.items.values is not None:  # items are rows, not slots
        return block._replace(rest=first_slots[has_weights.any(axis=1)])
    is_sparse = has_weights.mean(axis=1) < _SPARSE  # [M]
    moved = first_slots[is_sparse]
    tokens, template = np.nonzero(moved.T >= 0)  # token after token
    items = with_features(block.items, tokens, moved[template, tokens])
    return block._replace(rest=first_slots[~is_sparse], items=items)


# ------------------------------------------------------------------------------------------------- features of a layer


class SparseCorpus:
    """Features with weights that a sparse layer finds in the batches of a corpus, without the Docs.

    Features of tokens are stored once for all windows that look alike (`FixedTokens`), features of spans, of pairs of states and
    of texts batch by batch.
    """

    def __init__(self, features: SparseFeatures):
        self.features = features
        self.names: Iterable[str] = features.tables  # of the weights of the layer
        self.batches: list[FoundFeatures] = []  # the features that are stored batch by batch
        tables = features.tables
        compiled = features.compiled.templates
        # Kinds of features that are stored by window: none of texts, "states" of emissions, all kinds of segments
        kinds = tuple(compiled)
        if features.unit is not None:
            kinds = ()
        elif "states" in compiled:
            kinds = ("states",)
        self.tokens = {kind: FixedTokens(compiled[kind], tables[kind]) for kind in kinds}
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
            features_by_kind, spans = features.find_spans(docs, columns)
            for kind, templates in features.compiled.templates.items():
                if kind not in self.tokens:
                    features_by_kind[kind] = templates.rows(columns, self._table(kind).index)
            found = FoundFeatures(columns.starts, features_by_kind, spans)
        by_slot = {}
        for kind, token_features in found.features.items():
            by_slot[kind] = self._table(kind).with_first_slots(token_features)
        self.batches.append(found._replace(features=by_slot))

    def _table(self, kind: str) -> Table:
        """The table with the weights of the features of a kind."""
        return self.features.tables[self.features.kinds[kind].table]

    def finish(self) -> None:
        """Complete the corpus after the last batch."""
        for tokens in self.tokens.values():
            tokens.finish()
        if self.vectors is not None:
            self.vectors.finish()

    def fingerprint(self) -> Iterable[Optional[NDArray]]:
        """The arrays that distinguish this corpus from others."""
        for batch in self.batches:
            yield from (batch.starts, *(batch.listed or ()))
            for features in batch.features.values():
                yield from features
        for tokens in self.tokens.values():
            yield from tokens.fingerprint()
        if self.vectors is not None:
            yield from self.vectors.fingerprint()

    @property
    def least_value(self) -> float:
        """The least value of a feature; 0 if all values are positive."""
        arrays = [] if self.vectors is None else [self.vectors.words]
        for batch in self.batches:
            # "repeats" are corrections of positive values
            arrays += [features.values for kind, features in batch.features.items() if kind != "repeats"]
        for tokens in self.tokens.values():
            arrays += [block.items.values for block in tokens.blocks]
        return min([float(values.min(initial=0.0)) for values in arrays if values is not None], default=0.0)

    @property
    def is_of_single_states(self) -> bool:
        """Whether all scores are emissions, sums of weights of a feature of the token and a state."""
        has_only_tokens = [*self.tokens] == ["states"] and self.vectors is None
        return has_only_tokens and not any(batch.features for batch in self.batches)

    def stored(self) -> list:
        """The corpus as lists, texts, numbers and arrays, which a file can hold, for `with_stored`."""
        batches = []
        for starts, features_of_kinds, spans in self.batches:
            features = {kind: list(token_features) for kind, token_features in features_of_kinds.items()}
            batches.append([starts, spans, features])
        vectors = None if self.vectors is None else [self.vectors.words, self.vectors.kinds]
        return [batches, {kind: tokens.stored() for kind, tokens in self.tokens.items()}, vectors]

    def with_stored(self, stored: list) -> "SparseCorpus":
        """A copy of this corpus with the batches that a file holds.

        stored (list): The result of `stored`.
        RAISES: An error of any class if the file has features of another model, or is damaged.
        """
        corpus = copy.copy(self)
        batches, tokens, vectors = stored
        corpus.batches = []
        for starts, spans, features_of_kinds in batches:
            features = {kind: TokenFeatures(*arrays) for kind, arrays in features_of_kinds.items()}
            corpus.batches.append(FoundFeatures(starts, features, spans and SpanList(*spans)))
        if {*tokens} != {*self.tokens} or (vectors is None) != (self.vectors is None):
            raise ValueError(f"it has features of {sorted(tokens)}, and the model of {sorted(self.tokens)}")
        corpus.tokens = {kind: FixedTokens.from_stored(data, self._table(kind)) for kind, data in tokens.items()}
        if vectors is not None and self.vectors is not None:
            corpus.vectors = copy.copy(self.vectors)
            corpus.vectors.words, corpus.vectors.kinds = vectors
            corpus.vectors.expect_whole([batch.starts for batch in corpus.batches])
        corpus._expect_whole()
        return corpus

    def _expect_whole(self) -> None:
        """Check a corpus that a file holds, since kernels trust it. RAISES (ValueError)."""
        for number, (starts, features_of_kinds, spans) in enumerate(self.batches):
            of_file("starts of sequences", starts, np.int64, (None,), copied=False)
            expect_starts("starts of sequences", starts, int(starts[-1]))
            n_tokens = int(starts[-1])
            n_spans = 0
            for tokens in self.tokens.values():
                if not np.array_equal(tokens.blocks[number].starts, starts):
                    raise ValueError("features of tokens are of other sequences")
            if spans is not None:
                n_spans = len(spans.lengths)
                of_file("starts of spans", spans.starts, np.int64, (n_tokens + 1,), copied=False)
                of_file("lengths of spans", spans.lengths, spans.lengths.dtype, (None,), copied=False)
                expect_starts("starts of spans", spans.starts, n_spans)
                expect_below("lengths of spans", spans.lengths, n_tokens + 1, least=1)
            for kind, features in features_of_kinds.items():
                self._table(kind).expect_with_slots(f"features of {kind}", features)
                # Tokens, spans or texts have the features
                if len(features.starts) - 1 not in (n_tokens, n_spans, len(starts) - 1):
                    raise ValueError(f"features of {kind} are of {len(features.starts) - 1} places")

    def copied(self) -> "SparseCorpus":
        """A copy whose weights can be thinned and moved without changing this corpus."""
        corpus = copy.copy(self)
        corpus.batches = [*self.batches]
        corpus.tokens = {kind: copy.copy(tokens) for kind, tokens in self.tokens.items()}
        return corpus

    @property
    def has_values(self) -> bool:
        """Whether any feature has a value other than 1."""
        with_values: list[TokenFeatures] = []  # features that may have values
        for tokens in self.tokens.values():
            with_values += [block.items for block in tokens.blocks]
        for batch in self.batches:
            with_values += batch.features.values()
        return any(features.values is not None for features in with_values)

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> "SparsePass":
        """Start a pass over the corpus.

        weights (dict[str, float64[W]]): Weights, by the name of the table.
        threads (int): How many threads work on the pass.
        into (dict[str, float64[W]]): Zeros, by the name of the table; where possible, the pass adds its gradient to them.
        """
        return SparsePass(self, weights, threads, into or {})

    def marks(self, seed: Seed, *, threads: int = 1) -> dict[str, Floats]:
        """Mark the weights: each token has a random number, and the mark of a weight is the sum of the numbers of the tokens
        that use the weight (float64[W], by the name of the table). Weights of one state that the same tokens use have equal
        marks, since sums of whole numbers are exact.

        seed (Seed): Seed of the random numbers.
        threads (int): How many threads sum up.
        """
        # A mark is the derivative by the weight, if the random numbers are derivatives with respect to the scores
        generator = np.random.default_rng(seed)
        weights = {name: np.zeros(table.n_weights) for name, table in self.features.tables.items()}
        corpus_pass = self.at(weights, threads=threads)
        for number in range(len(self.batches)):
            d_scores = {}
            scores = corpus_pass.score(number)
            for name, array in scores._asdict().items():
                if isinstance(array, np.ndarray) and array.dtype == np.float64:
                    # All states of a token share its number
                    numbers = generator.integers(_MARKS, size=len(array)).astype(np.float64)
                    column = numbers.reshape(-1, *[1] * (array.ndim - 1))
                    d_scores[name] = np.broadcast_to(column, array.shape).copy()
            corpus_pass.collect([number], [scores._replace(**d_scores)])
        return corpus_pass.gradient()

    def thin(self, kept: dict[str, Bools]) -> None:
        """Set weights to 0 and store them no more, where `kept` (bool[W], by the name of the table) is false."""
        tables = {name: self.features.tables[name].thinned(is_kept) for name, is_kept in kept.items()}
        self.move(self.features.with_tables(tables))

    def move(self, features: SparseFeatures) -> None:
        """Replace the tables by the tables of `features`, which have the same features."""
        tables_before = self.features.tables
        self.features = features
        new_slots = {}
        for kind, use in features.kinds.items():
            if use.table in tables_before:
                new_slots[kind] = features.tables[use.table].moved_slots(tables_before[use.table])
        for number, batch in enumerate(self.batches):
            moved = {}
            for kind, token_features in batch.features.items():
                moved[kind] = self._table(kind).with_moved_slots(token_features, new_slots[kind])
            self.batches[number] = batch._replace(features=moved)
        for kind, tokens in self.tokens.items():
            tokens.move(self._table(kind))


class SparsePass:
    """One pass over a `SparseCorpus`: scores its batches, and sums up the gradient of the weights from derivatives with respect
    to the scores.

    corpus (SparseCorpus): The corpus.
    weights (dict[str, float64[W]]): Weights, by the name of the table.
    threads (int): How many threads work on the pass.
    into (dict[str, float64[W]]): Zeros, to which the pass may add the gradient.
    """

    def __init__(self, corpus: SparseCorpus, weights: dict[str, Floats], threads: int, into: dict[str, Floats]):
        self._corpus = corpus
        self._features = corpus.features
        self._threads = threads
        self._slots = self._features.slots(weights)
        self._gradients = {name: np.zeros(len(array)) for name, array in weights.items()}
        # Where slots are weights, their gradient needs no array of its own
        self._d_slots = {
            name: into[name] if name in into and table.slots_are_weights else table.zero_slots()
            for name, table in corpus.features.tables.items()
        }
        self._tokens = {
            kind: TokensPass(tokens, self._slots[kind], threads=threads) for kind, tokens in corpus.tokens.items()
        }
        self._vectors = corpus.vectors
        if self._vectors is not None:
            self._word_scores = self._vectors.score(weights[VECTORS], threads=threads)
            self._d_word_scores = self._vectors.zeros()

    def score(self, number: int) -> NamedTuple:
        """The output of the layer for one batch, computed by this thread.

        number (int): The number of the batch.
        """
        batch = self._corpus.batches[number]
        kinds = self._features.kinds
        scores = {}
        for kind, tokens in self._tokens.items():
            token_scores = np.zeros((int(batch.starts[-1]), self._features.n_states))
            tokens.add_scores(number, token_scores)
            scores[kinds[kind].scores] = token_scores
        if self._vectors is not None:
            self._vectors.add_scores(number, self._word_scores, scores[kinds[VECTORS].scores])
        for kind, features in batch.features.items():
            table, name = kinds[kind]
            if name not in scores:  # scores of texts, spans or pairs of states
                scores[name] = np.zeros((len(features.starts) - 1, *self._features.shape(table)))
            self._features.tables[table].add_scores_by_slot(features, self._slots[table], scores[name])
        return self._features.output(scores, batch.starts, batch.listed)

    def collect(self, numbers: Iterable[int], derivatives: Iterable[NamedTuple]) -> None:
        """Add up the gradient for some batches.

        numbers (Iterable[int]): The numbers of the batches.
        derivatives (Iterable): For each batch, the derivatives with respect to its scores.
        """
        batches = [*zip(numbers, derivatives)]
        collectors = self._collectors()

        def run_collector(task: tuple[Collector, GradientPart]) -> None:
            collector, part = task
            for number, d_scores in batches:
                collector(number, d_scores, part)

        # Each part passes over all tokens, so threads first work on different collectors
        parts = parts_for(math.ceil(self._threads / len(collectors)))
        run_chunks(run_collector, [*product(collectors, parts)], self._threads)

    def _collectors(self) -> list[Collector]:
        """Functions that threads may call at the same time, since each adds to arrays of its own."""
        collectors: list[Collector] = [self._collect_features]
        for kind, tokens in self._tokens.items():
            collectors += [partial(self._collect_windows, kind, table) for table in range(tokens.n_tables)]
        if self._vectors is not None:
            collectors.append(self._collect_vectors)
        return collectors

    def _collect_features(self, number: int, d_scores: NamedTuple, part: GradientPart) -> None:
        """Add up the gradients of all features but those of windows, in batch `number`."""
        kinds = self._features.kinds
        tables = self._features.tables
        for kind, tokens in self._tokens.items():
            d_tokens = getattr(d_scores, kinds[kind].scores)
            tokens.scatter(number, d_tokens, self._d_slots[kind], self._gradients[kind], part=part)
        for kind, features in self._corpus.batches[number].features.items():
            table, name = kinds[kind]
            d_slots = self._d_slots[table]
            tables[table].scatter_by_slot(features, getattr(d_scores, name), d_slots, self._gradients[table], part=part)

    def _collect_windows(self, kind: str, table: int, number: int, d_scores: NamedTuple, part: GradientPart) -> None:
        d_tokens = getattr(d_scores, self._features.kinds[kind].scores)
        self._tokens[kind].scatter_windows(table, number, d_tokens, part=part)

    def _collect_vectors(self, number: int, d_scores: NamedTuple, part: GradientPart) -> None:
        d_tokens = getattr(d_scores, self._features.kinds[VECTORS].scores)
        if self._vectors is not None:
            self._vectors.scatter(number, d_tokens, self._d_word_scores, part=part)

    def gradient(self) -> dict[str, Floats]:
        """Complete and return the gradient of the weights, by the name of the table. Call this method once, at the end."""
        # The derivatives of the scores of windows become a gradient of weights once, after all batches
        for kind, tokens in self._tokens.items():
            run_chunks(partial(tokens.finish, self._d_slots[kind]), parts_for(self._threads), self._threads)
        for name, d_slots in self._d_slots.items():
            gradient = self._features.tables[name].weights_of(d_slots)
            if self._corpus.has_values:
                gradient += self._gradients[name]
            self._gradients[name] = gradient
        if self._vectors is not None:
            self._gradients[VECTORS] += self._vectors.gradient(self._d_word_scores, threads=self._threads)
        return self._gradients


class DenseCorpus:
    """Vectors that an encoder gives the tokens of a corpus, batch by batch. A temporary file holds the vectors, since those of a
    large corpus need more than the memory. Has the methods of `SparseCorpus`.

    layer (Model): The layer on the encoder, whose scores are W · vector + b.
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
        doc_vectors = self.layer.get_ref("tok2vec").predict(docs)
        self.append(ops.to_numpy(ops.flatten(doc_vectors)), docs.sequence_starts())

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
        """Complete the corpus after the last batch: set `vectors`, a list of float32[T, width]."""
        ends = np.cumsum([starts[-1] for starts in self.starts])
        shape = int(ends[-1]), self.layer.get_ref("output").get_dim("nI")
        # The operating system reads the vectors of a batch when a pass needs them; an empty file can't be mapped
        vectors = np.memmap(self._file, np.float32, "r", shape=shape) if ends[-1] else np.zeros(shape, np.float32)
        if self._file is not None:
            self._file.close()  # the operating system deletes the file with the last use of the vectors
            self._file = None
        self.vectors = np.split(vectors, ends[:-1])

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that distinguish this corpus from others."""
        yield from (*self.vectors, *self.starts)

    @property
    def least_value(self) -> float:
        """The least number in a vector; 0 if all are positive."""
        return min(float(vectors.min(initial=0.0)) for vectors in self.vectors)

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> "DensePass":
        """Start a pass over the corpus.

        weights (dict[str, float64[...]]): W and b of the last layer.
        threads (int): Ignored: numpy uses its own.
        into (dict[str, float64[...]]): Ignored.
        """
        return DensePass(self, weights)


class DensePass:
    """One pass over a `DenseCorpus`, see `SparsePass`."""

    def __init__(self, corpus: DenseCorpus, weights: dict[str, Floats]):
        self._corpus = corpus
        self._weights = weights
        self._node = corpus.layer.attrs["node"]
        self._gradients = {name: np.zeros(array.shape) for name, array in weights.items()}

    def score(self, number: int) -> NamedTuple:
        """Scores of the layer for the batch `number`: vectors · Wᵀ + b."""
        scores = self._corpus.vectors[number] @ self._weights["W"].T + self._weights["b"]
        return self._node.split(self._corpus.layer, scores, self._corpus.starts[number])

    def collect(self, numbers: Iterable[int], derivatives: Iterable[NamedTuple]) -> None:
        """Add to dW and db the `derivatives` with respect to the scores of the batches with these `numbers`."""
        for number, derivative in zip(numbers, derivatives):
            # scores = vectors · Wᵀ + b, so dW = d_scoresᵀ · vectors and db = sum over tokens of d_scores
            d_scores = self._node.join(derivative)
            self._gradients["W"] += d_scores.T @ self._corpus.vectors[number]
            self._gradients["b"] += d_scores.sum(axis=0)

    def gradient(self) -> dict[str, Floats]:
        """The gradients of W and b, flattened."""
        return {name: array.ravel() for name, array in self._gradients.items()}


@singledispatch
def corpus_by(node: Node, layer: Model) -> Any:
    """An empty corpus for a layer, of the class that suits its node, with the methods of `SparseCorpus`.

    node (Node): The node of the layer.
    layer (Model): The layer.
    """
    raise NotImplementedError


@corpus_by.register
def _(node: SparseNode, layer: Model) -> SparseCorpus:
    return SparseCorpus(node.features(layer))


@corpus_by.register
def _(node: EncoderNode, layer: Model) -> DenseCorpus:
    return DenseCorpus(layer)
