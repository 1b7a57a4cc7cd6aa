"""Scores of a fixed corpus, made many times: batch by batch, for sparse features and for layers on a fixed encoder."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, singledispatch
from itertools import product
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..arrays import expect_below, expect_starts, of_file
from ..features.doc_batch import DocBatch
from ..inference.threads import run_chunks
from ..types import AnyClamp, Bools, Floats, Ints, Seed, SegmentClamp, SetClamp, SpanList, TokenFeatures
from .fixed_tokens import FixedTokens, TokensPass
from .neural import EncoderNode
from .node import Node
from .sparse import VECTORS, FoundFeatures, SparseFeatures, SparseNode
from .table import GradientPart, Table, parts_for
from .weights import NAMES
from .word_vectors import CorpusVectors

# Tokens that one thread scores at a time (half as many took 10 to 15 % longer); fewer if transitions depend on the position, and
# with many tags few enough that their scores stay in the cache (with 117 tags, 8 % of a pass)
_BLOCK = 1 << 13
_SCORES = 1 << 18
# Bound of the random numbers of marks; sums of 4 million of them are exact
_MARKS = 1 << 31
Collector = Callable[
    [int, NamedTuple, GradientPart], None
]  # adds up derivatives by the scores of a batch with a number


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
        """Whether each score is a sum of weights of a feature of the token and a state."""
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
        windows = [
            partial(self._collect_windows, kind, table)
            for kind, tokens in self._tokens.items()
            for table in range(tokens.n_tables)
        ]
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
        self._file: Optional[IO[bytes]] = None  # opened by the first vectors

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
