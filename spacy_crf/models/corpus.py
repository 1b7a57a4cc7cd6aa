"""Scores of a fixed corpus, made many times: batch by batch, for the layers of a model with sparse features."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..features.kinds import CorpusTokens, KindBuilder, with_features
from ..inference.structure import Places
from ..inference.threads import run_chunks
from ..types import Floats, SegmentClamp, SpanList, TokenFeatures
from .chosen import ChosenScores, Weighing
from .cliques import CliqueRole, TieCorpus
from .emissions import EmissionFeatures, Emissions
from .frozen import DenseCorpus
from .sparse import VECTORS, Found, SparseFeatures, SparseRole
from .table import Part, Table, parts_for
from .windows import KindRows
from .word_vectors import CorpusVectors

# Tokens that one thread scores at a time (half as many took 10 to 15 % longer); fewer where transitions depend on the position,
# and of many tags so many that their scores stay in the cache (with 117 tags, 8 % of a pass)
_BLOCK, _SCORES = 1 << 13, 1 << 18
# Windows that occur less often than this times the number of tags have no table of their scores, a row of which is as long as
# all their features together: as fast on CoNLL-2000 (22 tags) and german_ler (39), and with many tags it saves much memory.
_OFTEN = 0.1
# Templates that have weights at fewer tokens than this are listed token by token
_SPARSE = 0.5
# Below this are the random numbers of marks; sums of 4 million of them are exact
_MARKS = 1 << 31
Seed = Union[int, Sequence[int]]
# Items lie beside the templates where no more than this times their number has to be kept for it
_PADDED = 2


def block_tokens(features: SparseFeatures) -> int:
    """How many tokens to put into one batch of a corpus."""
    if features.feature_set.transitions:
        return max(256, (_BLOCK * 32) // features.n_states**2)
    return min(_BLOCK, max(256, _SCORES // features.n_states))


class PackedClamp:
    """A clamp in an eighth of its memory."""

    def __init__(self, clamp: Any):
        self._type = type(clamp) if isinstance(clamp, tuple) else None
        arrays = clamp if self._type else (clamp,)
        self.octets = [np.packbits(array) for array in arrays]
        self._shapes = [array.shape for array in arrays]

    def stored(self) -> list[Any]:
        """What a file can hold of it."""
        return [self._type is not None, self.octets, [*map(list, self._shapes)]]

    @classmethod
    def from_stored(cls, stored: list[Any]) -> "PackedClamp":
        clamp = cls.__new__(cls)
        is_of_segments, clamp.octets, shapes = stored
        clamp._type, clamp._shapes = SegmentClamp if is_of_segments else None, [*map(tuple, shapes)]
        return clamp

    def moved(self, states: NDArray[np.int64]) -> "PackedClamp":
        """Of tokens: what it says of these states is said of the first, the second and so on."""
        return PackedClamp(self.unpacked()[:, states])

    def unpacked(self) -> Any:
        arrays = [
            np.unpackbits(octets, count=math.prod(shape)).view(np.bool_).reshape(shape)
            for octets, shape in zip(self.octets, self._shapes)
        ]
        return self._type(*arrays) if self._type else arrays[0]


class Corpus:
    """What a layer finds in the batches of a corpus, whose Docs are not kept.

    features (SparseFeatures): What is known of the features.
    """

    def __init__(self, features: SparseFeatures):
        self.features = features
        self._found: list[Found] = []

    @property
    def names(self) -> Iterable[str]:
        """Of the weights of the layer."""
        return self.features.tables

    def add(self, docs: DocBatch) -> None:
        """The next batch."""
        found = self.features.look_up(docs)
        placed = {kind: self._table(kind).placed(features) for kind, features in found.features.items()}
        self._found.append(found._replace(features=placed))

    def _table(self, kind: str) -> Table:
        """Of a kind of features."""
        return self.features.tables[self.features.kinds[kind].table]

    def finish(self) -> None:
        """After the last one."""

    def choose(self, number: int, places: Optional[Places]) -> None:
        """From here on these scores of a batch are asked for and no others, None for all: what else it says is not read."""

    def fingerprint(self) -> Iterable[Optional[NDArray]]:
        """The arrays that say what the corpus is."""
        for found in self._found:
            yield from (found.starts, *(found.listed or ()))
            for features in found.features.values():
                yield from features

    @property
    def n_batches(self) -> int:
        return len(self._found)

    def stored(self) -> Any:
        """What a file can hold of it: lists, texts, numbers and arrays; beside it, `with_stored` needs the features alone."""
        return [
            [found.starts, found.listed, {kind: list(features) for kind, features in found.features.items()}]
            for found in self._found
        ]

    def with_stored(self, stored: Any) -> "Corpus":
        """The same features, in the corpus that a file holds."""
        corpus = copy.copy(self)
        corpus._found = [
            Found(starts, {kind: TokenFeatures(*of) for kind, of in features.items()}, listed and SpanList(*listed))
            for starts, listed, features in stored
        ]
        return corpus

    def at(self, weights: dict[str, Floats], *, threads: int = 1) -> "Pass":
        """One pass over the corpus, with these weights by table."""
        return Pass(self, weights, threads)

    def marks(self, seed: Seed, *, threads: int = 1) -> dict[str, Floats]:
        """Derivatives of the weights by table, where those of the scores are random numbers, one for all states. They are equal
        for weights of a state that belong to the same tokens: whole numbers are added up without rounding."""
        generator = np.random.default_rng(seed)
        of_pass = self.at(
            {name: np.zeros(table.n_weights) for name, table in self.features.tables.items()}, threads=threads
        )
        for number in range(self.n_batches):
            of_pass.collect([number], [_random_like(of_pass.score(number), generator)])
        return of_pass.gradient()

    def thin(self, kept: dict[str, NDArray[np.bool_]]) -> None:
        """From here on only these weights by table (bool[W]) are known; those of others are 0."""
        features = self.features
        self.features = features.with_tables({name: features.tables[name].thinned(of) for name, of in kept.items()})
        self._thin(features.tables)

    def _thin(self, before: dict[str, Table]) -> None:
        """To what has weights."""
        for number, found in enumerate(self._found):
            placed = {kind: self._still_placed(kind, features, before) for kind, features in found.features.items()}
            self._found[number] = found._replace(features=placed)

    def _still_placed(self, kind: str, features: TokenFeatures, before: dict[str, Table]) -> TokenFeatures:
        return self._table(kind).placed_after(features, before[self.features.kinds[kind].table])


def _random_like(scores: Any, generator: np.random.Generator) -> Any:
    """Scores in whose place are random numbers, the same for all states."""

    def draw(array: Floats) -> Floats:
        numbers = generator.integers(_MARKS, size=len(array)).astype(np.float64)
        return np.broadcast_to(numbers.reshape(-1, *[1] * (array.ndim - 1)), array.shape).copy()

    arrays = {name: array for name, array in scores._asdict().items() if isinstance(array, np.ndarray)}
    return scores._replace(**{name: draw(array) for name, array in arrays.items() if array.dtype == np.float64})


class Pass:
    """Scores batches one by one, collects the derivatives with respect to the scores, and sums up those of the weights."""

    def __init__(self, corpus: Corpus, weights: dict[str, Floats], threads: int):
        self._features, self._found = corpus.features, corpus._found
        self._threads = threads
        self._slots = self._features.slots(weights)
        self._gradients = {name: np.zeros(len(of_table)) for name, of_table in weights.items()}
        self._d_slots = {name: table.zero_slots() for name, table in self._features.tables.items()}

    def score(self, number: int) -> Any:
        """What the layer says of one batch, by one thread."""
        found, scores = self._found[number], {}
        for kind, features in found.features.items():
            self._add_scores(kind, features, scores)
        return self._features.output(scores, found.starts, found.listed)

    def _add_scores(self, kind: str, features: TokenFeatures, scores: dict[str, Floats]) -> None:
        """Adds those of one kind of features to where they belong."""
        table, of = self._features.kinds[kind]
        if of not in scores:
            scores[of] = np.zeros((len(features.starts) - 1, *self._features.shape(table)))
        self._features.tables[table].add_placed(features, self._slots[table], scores[of])

    def _scatter(self, kind: str, features: TokenFeatures, d_scores: Any, part: Part) -> None:
        table, of = self._features.kinds[kind]
        into = self._d_slots[table], self._gradients[table]
        self._features.tables[table].scatter_placed(features, getattr(d_scores, of), *into, part=part)

    def collect(self, numbers: Iterable[int], derivatives: Iterable[Any]) -> None:
        """Derivatives with respect to what it said of some batches."""
        batches = [*zip((self._found[number] for number in numbers), derivatives)]

        def collect(part: Part) -> None:
            for found, d_scores in batches:
                for kind, features in found.features.items():
                    self._scatter(kind, features, d_scores, part)

        run_chunks(collect, parts_for(self._threads), self._threads)

    def gradient(self) -> dict[str, Floats]:
        """Derivatives with respect to the weights by table; call it once, at the end."""
        for name, d_slots in self._d_slots.items():
            self._gradients[name] += self._features.tables[name].weights_of(d_slots)
        return self._gradients


class EmissionCorpus(Corpus):
    """Features of tokens are stored once for all windows that look alike."""

    features: EmissionFeatures

    def __init__(self, features: EmissionFeatures):
        super().__init__(features)
        self._chosen: dict[int, ChosenScores] = {}  # by batch: nothing but these is asked for
        self._before: dict[int, ChosenScores] = {}  # the same, from when it was renewed to when that is known
        self._builder = KindBuilder(features.compiled.templates["states"], features.states.index)
        self._blocks: list[CorpusTokens] = []  # in place of the features that are found
        self.pairs: list[Optional[TokenFeatures]] = []  # of transition templates
        has_vectors = VECTORS in features.tables
        self.vectors = CorpusVectors(features.tables[VECTORS], features.reader.reach) if has_vectors else None

    def add(self, docs: DocBatch) -> None:
        compiled = self.features.compiled
        columns, of_pairs = compiled.reader.read(docs), compiled.templates.get("transitions")
        self._blocks.append(self._builder.add(columns))
        transitions = self.features.transitions
        self.pairs.append(transitions.placed(of_pairs.rows(columns, transitions.index)) if of_pairs else None)
        if self.vectors is not None:
            self.vectors.add(columns)

    def finish(self) -> None:
        often = max(2, int(_OFTEN * self.features.n_states))
        shared, blocks = self._builder.finish(self._blocks, often=often)
        if self.features.compiled.templates["states"].item_templates:
            blocks = [*map(items_side_by_side, blocks)]
        states = self.features.states
        self.kinds = [KindRows(kinds, states, self.features.reader.reach) for kinds in shared]
        self.blocks = [_by_slots(block, states.first_slots) for block in blocks]
        del self._builder, self._blocks
        if self.vectors is not None:
            self.vectors.finish()

    @property
    def n_batches(self) -> int:
        return len(self.blocks)

    def choose(self, number: int, places: Optional[Places]) -> None:
        if number in self._chosen:
            self._before[number] = self._chosen.pop(number)
        if places is not None:
            block, states, before = self.blocks[number], self.features.states, self._before.pop(number, None)
            chosen = ChosenScores.of(block, self.kinds, states, places, before)
            if chosen is not None:
                self._chosen[number] = chosen

    def stored(self) -> Any:
        blocks = [[starts, kinds, rest, list(items)] for starts, kinds, rest, items in self.blocks]
        pairs = [None if of_batch is None else list(of_batch) for of_batch in self.pairs]
        vectors = None if self.vectors is None else [self.vectors.words, self.vectors.kinds]
        return [[kinds.stored() for kinds in self.kinds], blocks, pairs, vectors]

    def with_stored(self, stored: Any) -> "EmissionCorpus":
        corpus = copy.copy(self)
        corpus._chosen, corpus._before = {}, {}
        kinds, blocks, pairs, vectors = stored
        corpus.kinds = [KindRows.from_stored(of_kinds, self.features.states) for of_kinds in kinds]
        corpus.blocks = [
            CorpusTokens(starts, of_kinds, rest, TokenFeatures(*items)) for starts, of_kinds, rest, items in blocks
        ]
        corpus.pairs = [None if of_batch is None else TokenFeatures(*of_batch) for of_batch in pairs]
        if vectors is not None:
            corpus.vectors = copy.copy(self.vectors)
            corpus.vectors.words, corpus.vectors.kinds = vectors
        return corpus

    def _thin(self, before: dict[str, Table]) -> None:
        self._chosen, self._before = {}, {}
        states = self.features.states
        places = states.slots_after(before["states"])
        for rows in self.kinds:
            rows.move(states, places)
        for number, block in enumerate(self.blocks):
            self.blocks[number] = _less(_by_slots(block, places.__getitem__), self.features.states)
        self.pairs = [pairs and self._still_placed("transitions", pairs, before) for pairs in self.pairs]

    @property
    def is_of_single_states(self) -> bool:
        """Whether each score is a sum of weights of a feature and a state."""
        return self.vectors is None and not any(of_batch is not None for of_batch in self.pairs)

    def move(self, features: EmissionFeatures) -> None:
        """From here on the weights belong to the states that these say."""
        before, self.features = self.features.tables, features
        self._thin(before)

    def fingerprint(self) -> Iterable[Optional[NDArray]]:
        for starts, kinds, rest, items in self.blocks:
            yield from (*kinds, starts, rest, items.rows)
        if self.vectors is not None:
            yield from self.vectors.fingerprint()

    def at(self, weights: dict[str, Floats], *, threads: int = 1) -> "EmissionPass":
        return EmissionPass(self, weights, threads)


def items_side_by_side(block: CorpusTokens) -> CorpusTokens:
    """Items that are there or not (most functions give no other numbers) beside the templates: what a function gives in the same
    order at each token is read faster so, nearly in half of the time on features of sklearn-crfsuite's tutorial."""
    rows, values, starts = block.items
    there = np.ones(len(rows), dtype=bool) if values is None else values != 0
    counts = np.diff(starts)
    width, n_tokens = int(counts.max(initial=0)), len(counts)
    if (values is not None and (values[there] != 1).any()) or width * n_tokens > _PADDED * len(rows):
        return block
    place = np.arange(len(rows)) - np.repeat(starts[:-1], counts)
    beside = np.full((width, n_tokens), -1, dtype=np.int32)
    beside[place[there], np.repeat(np.arange(n_tokens), counts)[there]] = rows[there]
    none = TokenFeatures(rows[:0], None, np.zeros(n_tokens + 1, dtype=np.int64))
    return block._replace(rest=np.vstack([block.rest, beside]), items=none)


def _by_slots(block: CorpusTokens, first_slots: Callable[[NDArray], NDArray[np.integer]]) -> CorpusTokens:
    """With where the weights of features begin in place of their rows, but for those of items with values."""
    items = block.items
    if items.values is None:
        items = items._replace(rows=first_slots(items.rows))
    return block._replace(rest=first_slots(block.rest), items=items)


def _less(block: CorpusTokens, states: Table) -> CorpusTokens:
    """Without the features that have no weights, as far as that makes a pass shorter."""
    rest, items = block.rest, block.items
    if items.values is not None:
        return block._replace(rest=rest[(rest >= 0).any(axis=1)], items=states.with_weights(items))
    few = (rest >= 0).mean(axis=1) < _SPARSE
    tokens, template = np.nonzero(rest[few].T >= 0)
    items = with_features(items, tokens, rest[few][template, tokens])
    [kept] = np.nonzero(items.rows >= 0)
    starts = np.searchsorted(kept, items.starts).astype(np.int64)
    return block._replace(rest=rest[~few], items=TokenFeatures(items.rows[kept], None, starts))


class EmissionPass(Pass):
    def __init__(self, corpus: EmissionCorpus, weights: dict[str, Floats], threads: int):
        super().__init__(corpus, weights, threads)
        self._corpus, self._states = corpus, corpus.features.states
        self._chosen, self._given = corpus._chosen, Weighing(weights["states"], self._slots["states"])
        self._kinds = corpus.kinds if len(self._chosen) < corpus.n_batches else []  # else nobody reads them
        self._tables = [kinds.score(self._slots["states"], threads=threads) for kinds in self._kinds]
        self._d_tables = [kinds.zeros() for kinds in self._kinds]
        self._vectors = corpus.vectors
        if self._vectors is not None:
            self._of_words = self._vectors.score(weights[VECTORS], threads=threads)
            self._d_words = self._vectors.zeros()

    def score(self, number: int) -> Emissions:
        starts = self._corpus.blocks[number].starts
        scores = {"scores": np.zeros((int(starts[-1]), self._features.n_states))}
        if number in self._chosen:
            self._chosen[number].score(self._states, self._given, scores["scores"])
        else:
            self._add_all(self._corpus.blocks[number], scores["scores"])
        if self._vectors is not None:
            self._vectors.add_scores(number, self._of_words, scores["scores"])
        if self._corpus.pairs[number] is not None:
            self._add_scores("transitions", self._corpus.pairs[number], scores)
        return self._features.output(scores, starts, None)

    def _add_all(self, block: CorpusTokens, scores: Floats) -> None:
        """Adds the scores of all states."""
        starts, kinds, rest, items = block
        for rows, of_tokens, table in zip(self._kinds, kinds, self._tables):
            rows.add_scores(of_tokens, starts, table, scores)
        self._states.add_references(rest, self._slots["states"], scores)
        self._states.add_placed(items, self._slots["states"], scores)

    def collect(self, numbers: Iterable[int], derivatives: Iterable[Emissions]) -> None:
        batches = [(n, self._corpus.pairs[n], d) for n, d in zip(numbers, derivatives)]
        gradient = Weighing(self._gradients["states"], self._d_slots["states"])

        def collect(part: Part) -> None:
            for number, pairs, d in batches:
                if number in self._chosen:
                    self._chosen[number].scatter(self._states, d.scores, gradient, part=part)
                else:
                    self._scatter_all(self._corpus.blocks[number], d.scores, part)
                if self._vectors is not None:
                    self._vectors.scatter(number, d.scores, self._d_words, part=part)
                if pairs is not None:
                    self._scatter("transitions", pairs, d, part)

        run_chunks(collect, parts_for(self._threads), self._threads)

    def _scatter_all(self, block: CorpusTokens, d_scores: Floats, part: Part) -> None:
        starts, kinds, rest, items = block
        for rows, of_tokens, d_table in zip(self._kinds, kinds, self._d_tables):
            rows.scatter(of_tokens, starts, d_scores, d_table, part=part)
        d_slots = self._d_slots["states"]
        self._states.scatter_references(rest, d_scores, d_slots, part=part)
        self._states.scatter_placed(items, d_scores, d_slots, self._gradients["states"], part=part)

    def gradient(self) -> dict[str, Floats]:
        def scatter(part: Part) -> None:
            for rows, d_table in zip(self._kinds, self._d_tables):
                rows.scatter_slots(d_table, self._d_slots["states"], part=part)

        run_chunks(scatter, parts_for(self._threads), self._threads)
        gradients = super().gradient()
        if self._vectors is not None:
            gradients[VECTORS] += self._vectors.gradient(self._d_words, threads=self._threads)
        return gradients


def corpus_of(layer: Model) -> Union[Corpus, DenseCorpus, TieCorpus]:
    """What keeps of a corpus what a layer of a model looks at."""
    if isinstance(layer.attrs["role"], CliqueRole):
        return TieCorpus(layer)
    if not isinstance(layer.attrs["role"], SparseRole):
        return DenseCorpus(layer)
    features = layer.attrs["role"].features(layer)
    of_tokens = isinstance(features, EmissionFeatures) and features.unit is None
    return EmissionCorpus(features) if of_tokens else Corpus(features)
