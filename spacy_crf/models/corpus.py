"""Scores of a fixed corpus, made many times: batch by batch, for the layers of a model with sparse features."""

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from thinc.api import Model

from ..features.doc_batch import DocBatch
from ..inference.structure import Places
from ..inference.threads import run_chunks
from ..types import Floats, Seed, SegmentClamp, SpanList, TokenFeatures
from .emissions import EmissionFeatures, Emissions
from .fixed_tokens import FixedTokens, TokensPass
from .frozen import DenseCorpus
from .partial_scores import ChosenScores, Weighing
from .segments import SegmentFeatures
from .sparse import VECTORS, Found, SparseFeatures, SparseRole
from .table import Part, Table, parts_for
from .word_vectors import CorpusVectors

# Tokens that one thread scores at a time (half as many took 10 to 15 % longer); fewer where transitions depend on the position,
# and of many tags so many that their scores stay in the cache (with 117 tags, 8 % of a pass)
_BLOCK, _SCORES = 1 << 13, 1 << 18
# Below this are the random numbers of marks; sums of 4 million of them are exact
_MARKS = 1 << 31
Collector = Callable[[int, Any, Part], None]  # of the derivatives with respect to the scores of a batch with a number


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
        self._add(self.features.look_up(docs))

    def _add(self, found: Found) -> None:
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
        self._score(number, scores)
        return self._features.output(scores, found.starts, found.listed)

    def _score(self, number: int, scores: dict[str, Floats]) -> None:
        """Adds to scores by where they belong."""
        for kind, features in self._found[number].features.items():
            self._add_scores(kind, features, scores)

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
        batches, collectors = [*zip(numbers, derivatives)], self._collectors()

        def collect(task: tuple[Collector, Part]) -> None:
            collector, part = task
            for number, d_scores in batches:
                collector(number, d_scores, part)

        # Who adds a part goes through all tokens: threads are busy elsewhere first
        parts = parts_for(math.ceil(self._threads / len(collectors)))
        run_chunks(collect, [*product(collectors, parts)], self._threads)

    def _collectors(self) -> list[Collector]:
        """What adds up the derivatives of a batch, each of them somewhere else."""
        return [self._collect]

    def _collect(self, number: int, d_scores: Any, part: Part) -> None:
        """In slots and weights."""
        for kind, features in self._found[number].features.items():
            self._scatter(kind, features, d_scores, part)

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
        self.tokens = FixedTokens(features.compiled.templates["states"], features.states)
        self.pairs: list[Optional[TokenFeatures]] = []  # of transition templates
        has_vectors = VECTORS in features.tables
        self.vectors = CorpusVectors(features.tables[VECTORS], features.reader.reach) if has_vectors else None

    def add(self, docs: DocBatch) -> None:
        compiled = self.features.compiled
        columns, of_pairs = compiled.reader.read(docs), compiled.templates.get("transitions")
        self.tokens.add(columns)
        transitions = self.features.transitions
        self.pairs.append(transitions.placed(of_pairs.rows(columns, transitions.index)) if of_pairs else None)
        if self.vectors is not None:
            self.vectors.add(columns)

    def finish(self) -> None:
        self.tokens.finish()
        if self.vectors is not None:
            self.vectors.finish()

    @property
    def n_batches(self) -> int:
        return len(self.tokens.blocks)

    def choose(self, number: int, places: Optional[Places]) -> None:
        if number in self._chosen:
            self._before[number] = self._chosen.pop(number)
        if places is not None:
            chosen = ChosenScores.of(self.tokens, number, places, self._before.pop(number, None))
            if chosen is not None:
                self._chosen[number] = chosen

    def stored(self) -> Any:
        pairs = [None if of_batch is None else list(of_batch) for of_batch in self.pairs]
        vectors = None if self.vectors is None else [self.vectors.words, self.vectors.kinds]
        return [self.tokens.stored(), pairs, vectors]

    def with_stored(self, stored: Any) -> "EmissionCorpus":
        corpus = copy.copy(self)
        corpus._chosen, corpus._before = {}, {}
        tokens, pairs, vectors = stored
        corpus.tokens = FixedTokens.from_stored(tokens, self.features.states)
        corpus.pairs = [None if of_batch is None else TokenFeatures(*of_batch) for of_batch in pairs]
        if vectors is not None:
            corpus.vectors = copy.copy(self.vectors)
            corpus.vectors.words, corpus.vectors.kinds = vectors
        return corpus

    def _thin(self, before: dict[str, Table]) -> None:
        self._chosen, self._before = {}, {}
        self.tokens.move(self.features.states)
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
        yield from self.tokens.fingerprint()
        if self.vectors is not None:
            yield from self.vectors.fingerprint()

    def at(self, weights: dict[str, Floats], *, threads: int = 1) -> "EmissionPass":
        return EmissionPass(self, weights, threads)


class EmissionPass(Pass):
    def __init__(self, corpus: EmissionCorpus, weights: dict[str, Floats], threads: int):
        super().__init__(corpus, weights, threads)
        self._corpus, self._states = corpus, corpus.features.states
        self._chosen, self._given = corpus._chosen, Weighing(weights["states"], self._slots["states"])
        self._gradient = Weighing(self._gradients["states"], self._d_slots["states"])
        is_read = len(self._chosen) < corpus.n_batches
        self._tokens = TokensPass(corpus.tokens, self._slots["states"], is_read=is_read, threads=threads)
        self._vectors = corpus.vectors
        if self._vectors is not None:
            self._of_words = self._vectors.score(weights[VECTORS], threads=threads)
            self._d_words = self._vectors.zeros()

    def score(self, number: int) -> Emissions:
        starts = self._corpus.tokens.blocks[number].starts
        scores = {"scores": np.zeros((int(starts[-1]), self._features.n_states))}
        if number in self._chosen:
            self._chosen[number].score(self._states, self._given, scores["scores"])
        else:
            self._tokens.add_scores(number, scores["scores"])
        if self._vectors is not None:
            self._vectors.add_scores(number, self._of_words, scores["scores"])
        if self._corpus.pairs[number] is not None:
            self._add_scores("transitions", self._corpus.pairs[number], scores)
        return self._features.output(scores, starts, None)

    def _collectors(self) -> list[Collector]:
        windows = [partial(self._collect_windows, table) for table in range(self._tokens.n_tables)]
        return [self._collect, *windows, *([] if self._vectors is None else [self._collect_vectors])]

    def _collect(self, number: int, d: Emissions, part: Part) -> None:
        gradient, pairs = self._gradient, self._corpus.pairs[number]
        if number in self._chosen:
            self._chosen[number].scatter(self._states, d.scores, gradient, part=part)
        else:
            self._tokens.scatter(number, d.scores, gradient.slots, gradient.weights, part=part)
        if pairs is not None:
            self._scatter("transitions", pairs, d, part)

    def _collect_windows(self, table: int, number: int, d: Emissions, part: Part) -> None:
        if number not in self._chosen:
            self._tokens.scatter_windows(table, number, d.scores, part=part)

    def _collect_vectors(self, number: int, d: Emissions, part: Part) -> None:
        self._vectors.scatter(number, d.scores, self._d_words, part=part)

    def gradient(self) -> dict[str, Floats]:
        finish = partial(_finish, self._tokens, self._d_slots["states"])
        run_chunks(finish, parts_for(self._threads), self._threads)
        gradients = super().gradient()
        if self._vectors is not None:
            gradients[VECTORS] += self._vectors.gradient(self._d_words, threads=self._threads)
        return gradients


class SegmentCorpus(Corpus):
    """Features of first and last tokens, and of those inside, are stored once for all windows that look alike."""

    features: SegmentFeatures

    def __init__(self, features: SegmentFeatures):
        super().__init__(features)
        compiled = features.compiled.templates
        self.tokens = {place: FixedTokens(compiled[place], features.tables[place]) for place in compiled}

    def add(self, docs: DocBatch) -> None:
        columns = self.features.reader.read(docs)
        for tokens in self.tokens.values():
            tokens.add(columns)
        of_spans, listed = self.features.find_spans(docs, columns)
        self._add(Found(columns.starts, of_spans, listed))

    def finish(self) -> None:
        for tokens in self.tokens.values():
            tokens.finish()

    def stored(self) -> Any:
        return [{place: tokens.stored() for place, tokens in self.tokens.items()}, super().stored()]

    def with_stored(self, stored: Any) -> "SegmentCorpus":
        tokens, of_spans = stored
        corpus = super().with_stored(of_spans)
        tables = self.features.tables
        corpus.tokens = {place: FixedTokens.from_stored(of_place, tables[place]) for place, of_place in tokens.items()}
        return corpus

    def _thin(self, before: dict[str, Table]) -> None:
        super()._thin(before)
        for place, tokens in self.tokens.items():
            tokens.move(self.features.tables[place])

    def fingerprint(self) -> Iterable[Optional[NDArray]]:
        yield from super().fingerprint()
        for tokens in self.tokens.values():
            yield from tokens.fingerprint()

    def at(self, weights: dict[str, Floats], *, threads: int = 1) -> "SegmentPass":
        return SegmentPass(self, weights, threads)


class SegmentPass(Pass):
    def __init__(self, corpus: SegmentCorpus, weights: dict[str, Floats], threads: int):
        super().__init__(corpus, weights, threads)
        self._tokens = {
            place: TokensPass(tokens, self._slots[place], threads=threads) for place, tokens in corpus.tokens.items()
        }

    def _score(self, number: int, scores: dict[str, Floats]) -> None:
        shape = int(self._found[number].starts[-1]), self._features.n_states
        for place, tokens in self._tokens.items():
            scores[place] = np.zeros(shape)
            tokens.add_scores(number, scores[place])
        super()._score(number, scores)

    def _collectors(self) -> list[Collector]:
        places = self._tokens.items()
        windows = [partial(self._collect_windows, p, table) for p, tokens in places for table in range(tokens.n_tables)]
        return [self._collect, *windows]

    def _collect(self, number: int, d_scores: Any, part: Part) -> None:
        for place, tokens in self._tokens.items():
            into = self._d_slots[place], self._gradients[place]
            tokens.scatter(number, getattr(d_scores, place), *into, part=part)
        super()._collect(number, d_scores, part)

    def _collect_windows(self, place: str, table: int, number: int, d_scores: Any, part: Part) -> None:
        self._tokens[place].scatter_windows(table, number, getattr(d_scores, place), part=part)

    def gradient(self) -> dict[str, Floats]:
        for place, tokens in self._tokens.items():
            finish = partial(_finish, tokens, self._d_slots[place])
            run_chunks(finish, parts_for(self._threads), self._threads)
        return super().gradient()


def _finish(tokens: TokensPass, d_slots: Floats, part: Part) -> None:
    tokens.finish(d_slots, part=part)


def corpus_of(layer: Model) -> Any:
    """What keeps of a corpus what a layer of a model looks at."""
    own = layer.attrs["role"].fixed(layer)
    if own is not None:
        return own
    if not isinstance(layer.attrs["role"], SparseRole):
        return DenseCorpus(layer)
    features = layer.attrs["role"].features(layer)
    of_tokens = isinstance(features, EmissionFeatures) and features.unit is None
    if isinstance(features, SegmentFeatures):
        return SegmentCorpus(features)
    return EmissionCorpus(features) if of_tokens else Corpus(features)
