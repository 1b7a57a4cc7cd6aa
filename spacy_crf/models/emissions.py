"""Emissions: from Docs to the scores of tags at tokens.

``SparseEmissions`` sums weights of features that were counted, ``HashedEmissions`` of features that share a fixed number of rows,
``Tok2VecEmissions`` puts a linear layer on a neural encoder. All are thinc models whose output is ``Emissions``.
"""

import threading
import zlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Optional

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Linear, Model, zero_init
from thinc.model import deserialize_attr, serialize_attr
from thinc.types import Floats2d

from .. import checks
from ..errors import Errors, announcements
from ..features import settings
from ..features.columns import TokenColumns
from ..features.doc_batch import DocBatch, sequence_starts
from ..features.extractor import CompiledTemplates, FeatureSet, IndexBuilder
from ..features.feature_index import CountingTable, HashedIndex
from ..features.gazetteers import Gazetteer
from ..kernels.hashing import list_pairs, mark_pairs
from ..schemes import NO_SEGMENTS, Segments
from ..types import Clamp, Floats, TokenFeatures
from .kept import Kept, check_equal, check_weights
from .parameters import enlarged, set_moved, spread
from .scorers import TableScorer, most_lexemes
from .sparse_rows import SparseRows


class Emissions(NamedTuple):
    """Scores of a batch of Docs, laid end to end and cut into sequences at known sentence starts."""

    scores: Floats  # [T, S]
    transitions: Optional[Floats]  # [T, S, S] from transition templates, None without
    starts: NDArray[np.int64]  # [B + 1]


class Prepared(NamedTuple):
    """Docs whose features are looked up already."""

    starts: NDArray[np.int64]  # [B + 1] of the sequences
    states: TokenFeatures
    transitions: Optional[TokenFeatures]


class AnnotatedDocs(NamedTuple):
    """A batch of training data, as models are initialized with it."""

    docs: list[Doc]
    allowed: Clamp  # [T, S] tags that the annotation allows
    starts: NDArray[np.int64]  # [B + 1] of the sequences
    unset: NDArray[np.bool_]  # [T] tokens of which the annotation says nothing
    weights: Optional[Floats] = None  # [B] how much each sequence counts
    structure: Any = None  # answers the loss in place of the model's own, where rules hold in training
    alternatives: Segments = NO_SEGMENTS  # segments that the annotation allows beside others
    excluded: Segments = NO_SEGMENTS  # segments that no clamp leaves out, for optimizers that don't ask the structure


Corpus = Callable[[], Iterable[AnnotatedDocs]]  # the batches, read as often as needed


class SparseFeatures:
    """What sparse emissions know: the templates, the gazetteers, and which pairs of feature and tag have a weight.

    Everything here but the templates (which are in the config) is saved with the model; what speeds up prediction is
    rebuilt.
    """

    def __init__(self, feature_set: FeatureSet, *, gazetteers: Optional[dict[str, Gazetteer]] = None, n_tags: int = 1):
        self.feature_set = feature_set
        self.gazetteers = gazetteers or {}
        self.n_tags = n_tags
        self.states = SparseRows.empty(n_tags)
        self.transitions = SparseRows.empty(n_tags * n_tags)
        self._check: Optional[int] = None
        self._compiled: Optional[tuple[CompiledTemplates, CompiledTemplates]] = None
        self._scorer: Optional[SparseScorer] = None
        self._lock = threading.Lock()

    @property
    def reader(self):
        return self.compiled[0].reader

    @property
    def compiled(self) -> tuple[CompiledTemplates, CompiledTemplates]:
        """Templates of tags and of pairs of tags, against one reader."""
        with self._lock:
            if self._compiled is None:
                reader = self.feature_set.reader(self.gazetteers)
                self._compiled = (
                    CompiledTemplates(self.feature_set.templates, reader),
                    CompiledTemplates(self.feature_set.transitions, reader),
                )
            return self._compiled

    @property
    def asks_functions(self) -> bool:
        """Whether functions or extensions give features."""
        return bool(self.reader.item_sources)

    def set_gazetteers(self, gazetteers: dict[str, Gazetteer]) -> None:
        """RAISES (ValueError): CRF106 if the templates name another one."""
        self.feature_set.reader(gazetteers)
        self.gazetteers = gazetteers
        self._compiled = self._scorer = None

    @property
    def tables(self) -> dict[str, SparseRows]:
        """The pairs that have a weight, by the name of their parameter."""
        return {"states": self.states, "transitions": self.transitions}

    def with_tables(self, tables: dict[str, SparseRows]) -> "SparseFeatures":
        """The same with other pairs."""
        features = SparseFeatures(self.feature_set, gazetteers=self.gazetteers, n_tags=self.n_tags)
        features.states, features.transitions = tables["states"], tables["transitions"]
        return features

    @property
    def check(self) -> int:
        """The same for features whose weights mean the same."""
        if self._check is None:
            check = 0
            for rows in (self.states, self.transitions):
                for array in (rows.index.keys, rows.pair_starts, rows.pair_columns):
                    check = zlib.crc32(np.ascontiguousarray(array), check)
            self._check = check
        return self._check

    def prepare(self, docs: list[Doc]) -> Prepared:
        states, transitions = self.compiled
        columns = self.reader.read(docs)
        return Prepared(
            columns.starts,
            states.rows(columns, self.states.index),
            transitions.rows(columns, self.transitions.index) if self.feature_set.transitions else None,
        )

    def scorer(self, weights: NDArray[np.float32], transition_weights: NDArray[np.float32]) -> "SparseScorer":
        """The scorer for these weights, kept until ``forget_scores`` or until the arrays are others."""
        scorer = self._scorer
        if scorer is None or scorer.weights[0] is not weights or scorer.weights[1] is not transition_weights:
            scorer = self._scorer = SparseScorer(self, weights, transition_weights)
        return scorer

    def forget_scores(self) -> None:
        """To be called when weights were changed in place, as thinc's optimizers do."""
        self._scorer = None

    def __getstate__(self) -> dict[str, Any]:
        """For copies and child processes: caches and the lock stay behind."""
        return {**self.__dict__, "_compiled": None, "_scorer": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def to_dict(self) -> dict[str, Any]:
        return {
            "templates": self.feature_set.spelled(),
            "gazetteers": {name: gazetteer.to_dict() for name, gazetteer in self.gazetteers.items()},
            "n_tags": self.n_tags,
            "states": self.states.to_dict(),
            "transitions": self.transitions.to_dict(),
        }

    def from_dict(self, data: dict[str, Any]) -> "SparseFeatures":
        """The same templates with what was saved.

        RAISES (ValueError): CRF301 if the templates are not those the model was trained with.
        """
        if data["templates"] != self.feature_set.spelled():
            differing = set(map(str, data["templates"])) ^ set(map(str, self.feature_set.spelled()))
            raise ValueError(Errors.CRF301.format(templates=", ".join(sorted(differing))))
        gazetteers = {name: Gazetteer.from_dict(saved) for name, saved in data["gazetteers"].items()}
        features = SparseFeatures(self.feature_set, gazetteers=gazetteers, n_tags=data["n_tags"])
        features.states = SparseRows.from_dict(data["states"])
        features.transitions = SparseRows.from_dict(data["transitions"])
        return features


@serialize_attr.register(SparseFeatures)
def _serialize_features(_, value: SparseFeatures, name: str, model: Model) -> bytes:
    return srsly.msgpack_dumps(value.to_dict())


@deserialize_attr.register(SparseFeatures)
def _deserialize_features(default: SparseFeatures, value: bytes, name: str, model: Model) -> SparseFeatures:
    return default.from_dict(srsly.msgpack_loads(value))


def SparseEmissions(
    features: FeatureSet, min_count: int = 1, possible_states: bool = False
) -> Model[list[Doc], Emissions]:
    """Sums of the weights of each token's features.

    features (FeatureSet): The templates.
    min_count (int): Features met less often in training are left out.
    possible_states (bool): Give every feature a weight for every tag, not only for those it was seen with.
    """
    _check_features(features)
    return Model(
        "sparse_emissions",
        _sparse_forward,
        init=_sparse_init,
        params={"states": None, "transitions": None},
        attrs={
            "features": SparseFeatures(features),
            "min_count": settings.count("min_count", min_count),
            "possible_states": settings.flag("possible_states", possible_states),
            "resize": _resize_sparse,
            "kept": Kept(("features",), (), _check_sparse),
        },
    )


def HashedEmissions(features: FeatureSet, rows: int = 1 << 18) -> Model[list[Doc], Emissions]:
    """Sums of the weights of each token's features, in a fixed number of rows that the features share by their hashes: for
    corpora that are streamed (``max_epochs = -1``), whose features nobody has counted. Every row has a weight for each tag.

    features (FeatureSet): The templates, none of transitions.
    rows (int): A power of two, about as large as the number of features or larger.
    """
    _check_features(features)
    rows = settings.count("rows", rows)
    settings.require(not rows & (rows - 1) and rows <= 1 << 30, "rows", rows, "it is a power of two, at most 2 ** 30")
    templates = [*map(str, features.transitions)]
    settings.require(not templates, "transitions", templates, "hashed emissions have no templates of transitions")
    return Model(
        "hashed_emissions",
        _sparse_forward,
        init=_hashed_init,
        params={"states": None, "transitions": None},
        attrs={
            "features": SparseFeatures(features),
            "rows": rows,
            "resize": _resize_sparse,
            "kept": Kept(("features",), ("rows",), _check_sparse),
        },
    )


def _check_features(features: Any) -> None:
    allowed = "give a feature set of tokens, such as spacy_crf.ner_features.v1"
    settings.require(isinstance(features, FeatureSet), "features", features, allowed)


def _sparse_forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Emissions, Callable]:
    features: SparseFeatures = model.attrs["features"]
    if not is_train:
        return features.scorer(model.get_param("states"), model.get_param("transitions"))(docs), _no_backprop
    features.forget_scores()
    prepared = features.prepare(docs)
    emissions = score_prepared(
        features,
        prepared,
        features.states.slots(model.get_param("states")),
        features.transitions.slots(model.get_param("transitions")),
    )

    def backprop(d_emissions: Emissions) -> list[Doc]:
        gradient = features.states.scatter(prepared.states, d_emissions.scores)
        model.inc_grad("states", gradient.astype(np.float32))
        if prepared.transitions is not None:
            d_pairs = d_emissions.transitions.reshape(len(d_emissions.scores), -1)
            gradient = features.transitions.scatter(prepared.transitions, d_pairs)
            model.inc_grad("transitions", gradient.astype(np.float32))
        return []

    return emissions, backprop


def _no_backprop(d_emissions: Emissions) -> list[Doc]:
    return []


def score_prepared(
    features: SparseFeatures, prepared: Prepared, slots: Floats, transition_slots: Floats, *, threads: int = 1
) -> Emissions:
    """Scores of Docs whose features are looked up, with weights spread into slots."""
    n_tokens = len(prepared.states.starts) - 1
    scores = np.zeros((n_tokens, features.n_tags))
    features.states.add_scores(prepared.states, slots, scores, threads=threads)
    transitions = None
    if prepared.transitions is not None:
        transitions = np.zeros((n_tokens, features.n_tags**2))
        features.transitions.add_scores(prepared.transitions, transition_slots, transitions, threads=threads)
        transitions = transitions.reshape(n_tokens, features.n_tags, features.n_tags)
    return Emissions(scores, transitions, prepared.starts)


class SparseScorer:
    """Scores Docs with fixed weights: what prediction runs."""

    def __init__(self, features: SparseFeatures, weights: NDArray[np.float32], transition_weights: NDArray[np.float32]):
        self.weights = (weights, transition_weights)
        self._features = features
        self._transition_slots = features.transitions.slots(transition_weights)
        states, self._transitions = features.compiled
        self._states = TableScorer(states, features.states, weights)
        features.reader.max_lexemes = most_lexemes([self._states])

    def __call__(self, docs: list[Doc]) -> Emissions:
        features = self._features
        columns = features.reader.read(docs)
        scores = np.zeros((len(columns.lexemes), features.n_tags))
        self._states.add(columns, scores)
        transitions = None
        if features.feature_set.transitions:
            transitions = np.zeros((len(scores), features.n_tags**2))
            rows = self._transitions.rows(columns, features.transitions.index)
            features.transitions.add_scores(rows, self._transition_slots, transitions)
            transitions = transitions.reshape(len(scores), features.n_tags, features.n_tags)
        return Emissions(scores, transitions, columns.starts)


def _sparse_init(model: Model, X: Optional[Corpus] = None, Y: Optional[tuple[Vocab, int]] = None) -> None:
    """Counts features and pairs in one pass over the corpus. Features and weights that are there already stay.

    X (Corpus): None to leave everything as it is. Y: The vocab, and the number of tags.
    """
    if X is None or Y is None:
        return
    vocab, n_tags = Y
    resize_emissions(model, n_tags)
    old: SparseFeatures = model.attrs["features"]
    reader = old.reader
    reader.keep_names(True)
    counters = [_PairCounter(compiled, rows) for compiled, rows in zip(old.compiled, (old.states, old.transitions))]
    for batch in X():
        columns = reader.read(batch.docs)
        counters[0].add(columns, *tags_allowed(batch.allowed, batch.unset))
        if old.feature_set.transitions:
            counters[1].add(columns, *pairs_allowed(batch.allowed, batch.starts))
    features = SparseFeatures(old.feature_set, gazetteers=old.gazetteers, n_tags=n_tags)
    features.states = counters[0].freeze(model.attrs["min_count"], model.attrs["possible_states"], vocab)
    features.transitions = counters[1].freeze(model.attrs["min_count"], model.attrs["possible_states"], vocab)
    if counters[0].has_pairs and not len(features.states.index):
        raise ValueError(Errors.CRF114.format(min_count=model.attrs["min_count"], seen=len(counters[0])))
    for name in ("states", "transitions"):
        move_weights(model, name, getattr(old, name), getattr(features, name))
    model.attrs["features"] = features


def _hashed_init(model: Model, X: Optional[Corpus] = None, Y: Optional[tuple[Vocab, int]] = None) -> None:
    """Makes room for all pairs, and tells how many features of the corpus share their row. Weights that are there stay.

    X (Corpus): None to leave everything as it is. Y: The vocab, and the number of tags.
    """
    if X is None or Y is None:
        return
    _, n_tags = Y
    resize_emissions(model, n_tags)
    features: SparseFeatures = model.attrs["features"]
    is_new = len(features.states.index) != model.attrs["rows"]
    if is_new:
        features.states = SparseRows.full(HashedIndex(model.attrs["rows"]), n_tags)
        for name in ("states", "transitions"):
            model.set_param(name, np.zeros(getattr(features, name).n_weights, dtype=np.float32))
    met = CountingTable()
    for batch in X():
        hashes = features.compiled[0].hash(features.reader.read(batch.docs))
        met.add(hashes.hashes.ravel())
        met.add(hashes.item_hashes)
    rows = features.states.index.rows(met.keys)
    known = rows >= 0
    counts = np.bincount(rows[known], weights=met.counts[known], minlength=model.attrs["rows"])
    features.states.counts = features.states.counts + counts.astype(np.int64)
    if is_new:
        _report_collisions(np.bincount(rows[known], minlength=model.attrs["rows"]), len(met))


def _check_sparse(model: Model, n_tags: int) -> None:
    features: SparseFeatures = model.attrs["features"]
    features.feature_set.reader(features.gazetteers)
    check_equal("tags of the features", features.n_tags, n_tags)
    check_equal("columns", (features.states.n_columns, features.transitions.n_columns), (n_tags, n_tags**2))
    index = features.states.index
    check_equal("hashed rows", len(index) if isinstance(index, HashedIndex) else None, model.attrs.get("rows"))
    shapes = {"states": (features.states.n_weights,), "transitions": (features.transitions.n_weights,)}
    check_weights(model, shapes)


def _report_collisions(users: NDArray[np.int64], n_features: int) -> None:
    """users (int64[F]): How many features have each row."""
    announcements.info(
        "Hashed features: of %d features that the initialization saw, %d share their row with others; %d of %d rows are used",
        n_features,
        users[users > 1].sum(),
        np.count_nonzero(users),
        len(users),
    )


class _PairCounter:
    """Counts features, and marks the pairs of feature and column that meet."""

    def __init__(self, compiled: CompiledTemplates, known: SparseRows):
        self._builder = IndexBuilder(compiled, known.index)
        self._known = known
        n_words = (known.n_columns + 63) // 64
        self._seen = np.zeros((max(1024, len(known.index)), n_words), dtype=np.uint64)
        mark_pairs(
            np.arange(len(known.index), dtype=np.int32),
            np.arange(len(known.index) + 1),
            known.pair_columns,
            known.pair_starts,
            self._seen,
        )

    def __len__(self) -> int:
        return len(self._builder)

    @property
    def has_pairs(self) -> bool:
        """Whether any token was annotated."""
        return bool(self._seen.any())

    def add(
        self, columns: TokenColumns, columns_of_tokens: NDArray[np.int32], column_starts: NDArray[np.int64]
    ) -> None:
        features = self._builder.add(columns)
        if len(self) > len(self._seen):
            grown = np.zeros((2 * len(self), self._seen.shape[1]), dtype=np.uint64)
            grown[: len(self._seen)] = self._seen
            self._seen = grown
        mark_pairs(features.rows, features.starts, columns_of_tokens, column_starts, self._seen)

    def freeze(self, min_count: int, possible: bool, vocab: Vocab) -> SparseRows:
        seen, n_columns = self._seen[: len(self)], self._known.n_columns
        keep = (self._builder.counts >= min_count) & seen.any(axis=1)
        keep[: len(self._known.index)] = True
        index = self._builder.freeze(keep, vocab)
        counts = self._builder.counts[keep].astype(np.int64)
        counts[: len(self._known.index)] += self._known.counts
        if possible:
            return SparseRows.full(index, n_columns, counts)
        return SparseRows(index, *list_pairs(seen[keep], n_columns), n_columns, counts)


def tags_allowed(allowed: Clamp, unset: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Tags that the annotation of each token names, as compressed rows; none where it says nothing and leaves several.

    allowed (bool[T, S]), unset (bool[T])
    """
    counts = allowed.sum(axis=1)
    silent = unset & (counts > 1)
    _, tags = np.nonzero(allowed & ~silent[:, None])
    return tags.astype(np.int32), np.append(0, np.cumsum(np.where(silent, 0, counts))).astype(np.int64)


def pairs_allowed(allowed: Clamp, starts: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The pair of tags ``i * S + j`` at each token where the annotation leaves one, as compressed rows."""
    tags = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    known = np.zeros(len(tags), dtype=bool)
    known[1:] = (tags[1:] >= 0) & (tags[:-1] >= 0)
    known[starts[:-1][starts[:-1] < len(tags)]] = False
    [at] = np.nonzero(known)
    pairs = tags[at - 1] * allowed.shape[1] + tags[at]
    return pairs.astype(np.int32), np.append(0, np.cumsum(known)).astype(np.int64)


def check_emissions(owner: str, emissions: Any) -> None:
    """RAISES (ValueError): CRF020 for what are no emissions."""
    possible = isinstance(emissions, Model) and "resize" in emissions.attrs and "gives" not in emissions.attrs
    checks.expect(possible, owner, "emissions", emissions, "emissions, such as spacy_crf.SparseEmissions.v1")


def resize_emissions(model: Model, n_tags: int) -> None:
    """Makes room for new tags, behind those that are there; their weights are zero."""
    model.attrs["resize"](model, n_tags)


def _resize_sparse(model: Model, n_tags: int) -> None:
    """A feature gets a weight for a new tag when training meets them together, or at once, where it has one for every tag."""
    old: SparseFeatures = model.attrs["features"]
    if old.n_tags == n_tags:
        return
    features = SparseFeatures(old.feature_set, gazetteers=old.gazetteers, n_tags=n_tags)
    tags = np.arange(old.n_tags)
    features.states = old.states.resized(n_tags, tags, range(old.n_tags, n_tags) if _has_all_pairs(model) else ())
    pairs = (tags[:, np.newaxis] * n_tags + tags).ravel()
    new_pairs = np.setdiff1d(np.arange(n_tags**2), pairs) if _has_all_pairs(model) else ()
    features.transitions = old.transitions.resized(n_tags**2, pairs, new_pairs)
    move_weights(model, "states", old.states, features.states, tags)
    move_weights(model, "transitions", old.transitions, features.transitions, pairs)
    model.attrs["features"] = features


def _has_all_pairs(model: Model) -> bool:
    """Whether every feature has a weight for every tag: so it is with hashed ones."""
    return bool(model.attrs.get("possible_states", True))


def move_weights(
    model: Model, name: str, before: SparseRows, after: SparseRows, columns: Optional[NDArray[np.int64]] = None
) -> None:
    """Weights stay with their feature and tag; those of new pairs are zero."""
    if model.has_param(name):
        set_moved(model, name, partial(spread, places=after.places(before, columns), size=after.n_weights))
    else:
        model.set_param(name, np.zeros(after.n_weights, dtype=np.float32))


def Tok2VecEmissions(tok2vec: Model[list[Doc], list[Floats2d]]) -> Model[list[Doc], Emissions]:
    """A linear layer on the token vectors of a neural encoder, such as spaCy's tok2vec.

    tok2vec (Model[List[Doc], List[Floats2d]]): The encoder, whose width is its dimension ``nO``.
    """
    is_encoder = isinstance(tok2vec, Model) and tok2vec.has_dim("nO") is not False
    checks.expect(is_encoder, "Tok2VecEmissions", "tok2vec", tok2vec, "an encoder with the dimension nO")
    output = Linear(init_W=zero_init)  # knows nothing before it has learned, as spaCy's tagger
    return Model(
        "tok2vec_emissions",
        _tok2vec_forward,
        init=_tok2vec_init,
        layers=[tok2vec, output],
        refs={"tok2vec": tok2vec, "output": output},
        attrs={"resize": _resize_linear, "kept": Kept((), (), _check_linear)},
    )


def _tok2vec_forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Emissions, Callable]:
    encoder, output = model.layers
    vectors, backprop_vectors = encoder(docs, is_train)
    lengths = [len(vector) for vector in vectors]
    flat, backprop_output = output(model.ops.flatten(vectors), is_train)
    batch = DocBatch.of(docs)
    emissions = Emissions(
        np.ascontiguousarray(model.ops.to_numpy(flat), dtype=np.float64),
        None,
        sequence_starts(batch.sent_start, batch.bounds),
    )

    def backprop(d_emissions: Emissions) -> list[Doc]:
        d_flat = backprop_output(model.ops.asarray2f(d_emissions.scores.astype(np.float32)))
        return backprop_vectors(model.ops.unflatten(d_flat, lengths))

    return emissions, backprop


def _tok2vec_init(model: Model, X: Optional[Corpus] = None, Y: Optional[tuple[Vocab, int]] = None) -> None:
    encoder, output = model.layers
    if X is not None and Y is not None:
        sample = next(iter(X())).docs[:10]
        encoder.initialize(X=sample)
        output.set_dim("nO", Y[1], force=True)
    else:
        encoder.initialize()
    if output.has_dim("nI") is None:
        output.set_dim("nI", encoder.get_dim("nO"))
    if output.has_dim("nO"):
        output.initialize()


def _check_linear(model: Model, n_tags: int) -> None:
    output = model.get_ref("output")
    check_equal("nO", output.maybe_get_dim("nO"), n_tags)
    check_weights(output, {"W": (n_tags, output.maybe_get_dim("nI")), "b": (n_tags,)})


def _resize_linear(model: Model, n_tags: int) -> None:
    """New tags start at zero."""
    output = model.get_ref("output")
    names = ("W", "b") if output.has_param("W") else ()
    before = {
        name: (output.get_param(name), output.get_grad(name) if output.has_grad(name) else None) for name in names
    }
    for name in names:
        output.set_param(name, None)  # thinc changes no dimension of a layer that has parameters
    output.set_dim("nO", n_tags, force=True)
    for name, (values, gradient) in before.items():
        shape = (n_tags, *values.shape[1:])
        output.set_param(name, output.ops.asarray(enlarged(values, shape)))
        if gradient is not None:
            output.set_grad(name, output.ops.asarray(enlarged(gradient, shape)))
