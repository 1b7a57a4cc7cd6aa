"""Scores that are sums of the weights of features of tokens or of segments."""

import copy
import threading
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Optional, TypeVar

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps

from .. import checks
from ..errors import Errors
from ..features.doc_batch import UnitRows
from ..features.feature_index import VectorIndex
from ..features.token_columns import TokenColumns
from ..types import Bools, Floats, Ints, Settings, SpanList, TokenFeatures
from .node import (
    AnnotatedDocs,
    Batches,
    Node,
    Sizes,
    Traits,
    add_gradient,
    check_equal,
    check_weights,
    no_backprop,
    read_params,
    write_param,
)
from .resources import AnyFeatureSet, ListedFeatures
from .table import ALL, GradientPart, Table, filter_features, move_weights
from .word_scores import TableScorer, most_lexemes, token_vectors

Counter = Any  # a PairCounter, or a VectorCounter of the table of vectors
OfFeatures = TypeVar("OfFeatures", bound="SparseFeatures")
VECTORS = "vectors"  # name of the table of weights of vectors
INNER = "inner"  # name of the table of weights that only the states of inner levels of spans have


class ScoreKind(NamedTuple):
    """Which weights the features of one kind have, and which scores sum them."""

    table: str  # name of the table with the weights
    scores: str  # name of the array of scores, a field of the output


class ClusteredWords(NamedTuple):
    """The different words of a corpus, and which of them have a cluster."""

    words: NDArray[np.uint64]  # [N] hashes
    have_cluster: Bools  # [N, K] whether table k has a cluster for the word

    @classmethod
    def none(cls, n_tables: int) -> "ClusteredWords":
        """No words, for `n_tables` tables of clusters."""
        return cls(np.zeros(0, dtype=np.uint64), np.zeros((0, n_tables), dtype=np.bool_))

    def plus(self, words: NDArray[np.uint64], have_cluster: Bools) -> "ClusteredWords":
        """These words, together with the words of another part of the corpus.

        words (uint64[N]): The words of the other part.
        have_cluster (bool[N, K]): Whether table k has a cluster for the word.
        """
        different, first = np.unique(np.concatenate([self.words, words]), return_index=True)
        return ClusteredWords(different, np.concatenate([self.have_cluster, have_cluster])[first])


class FoundFeatures(NamedTuple):
    """Features of a batch of Docs, as rows of tables."""

    starts: Ints  # [B + 1] where the sequences start
    features: dict[str, TokenFeatures]  # by kind
    listed: Optional[SpanList] = None  # the spans that have features; None where only tokens have features


class SparseFeatures(ListedFeatures):
    """Templates, the gazetteers, clusters and vectors that they read, and the pairs of feature and state that have a weight.

    The model saves everything except the templates (which are in the config) and the caches of prediction.
    """

    kinds: ClassVar[dict[str, ScoreKind]] = {}  # by the name of a kind of features
    first_state = 0  # states below it have no weights of features
    has_spans = False  # whether spans have features, for which prediction reads the attributes of all words
    unit: Optional[str] = None  # the unit that has scores if texts have a label; None if tokens have labels
    clustered: Optional[ClusteredWords] = None  # set when the features are counted, if templates read clusters
    have_vectors = (0, 0)  # how many words of the corpus have a vector, and how many words it has

    def __init__(self, feature_set: AnyFeatureSet, *, n_states: int = 1, **lists: Any):
        super().__init__(feature_set, **lists)
        self.n_states = n_states
        # Pairs with a weight, by the name of the parameter
        self.tables = {name: Table.empty(width) for name, width in self.widths(n_states).items()}
        self._forget()

    def __repr__(self) -> str:  # for `spacy debug model`
        weights = ", ".join(f"{len(table.pair_columns):,} weights of {name}" for name, table in self.tables.items())
        return f"{type(self).__name__}({weights})"

    def _forget(self) -> None:
        self._compiled = None
        self._scorer: Optional[Scorer] = None  # for the weights of the latest prediction
        self._lock = threading.Lock()

    # ----------------------------------------------------------------------------------------------- for subclasses

    def _compile(self) -> Any:
        """Compile the templates for a reader without a first stage, see `compiled`."""
        raise NotImplementedError

    def find(self, columns: TokenColumns) -> dict[str, TokenFeatures]:
        """Features of tokens by kind.

        columns (TokenColumns): Attributes of the tokens of a batch.
        """
        found = {
            kind: templates.rows(columns, self.tables[self.kinds[kind].table].index)
            for kind, templates in self.compiled.templates.items()
        }
        if VECTORS in self.tables:
            found[VECTORS] = token_vectors(columns, self.tables[VECTORS].index)
        return found

    def find_spans(self, docs: list[Doc], columns: TokenColumns) -> tuple[dict[str, TokenFeatures], Optional[SpanList]]:
        """Features of spans by kind, and the spans that have features; None where only tokens have features.

        docs (list[Doc]): The batch.
        columns (TokenColumns): Attributes of its tokens.
        """
        return {}, None

    def widths(self, n_states: int) -> dict[str, int]:
        """Number of columns of each table, by its name.

        n_states (int): S.
        """
        return {}

    def output(self, scores: dict[str, Floats], starts: Ints, listed: Optional[SpanList]) -> NamedTuple:
        """Make the output of the model from arrays of scores.

        scores (dict[str, float64[...]]): The arrays, by the name of the field of the output.
        starts (int64[B + 1]): Where the sequences start.
        listed (Optional[SpanList]): The spans that have scores.
        """
        raise NotImplementedError

    def counters(self) -> dict[str, Counter]:
        """New counters of features, by the name of the table."""
        raise NotImplementedError

    def count(self, batch: AnnotatedDocs, columns: TokenColumns, counters: dict[str, Counter], sizes: Sizes) -> None:
        """Count the features of a batch.

        batch (AnnotatedDocs): The batch.
        columns (TokenColumns): Attributes of its tokens.
        counters (dict[str, Counter]): The counters, by the name of the table.
        sizes (Sizes): Sizes of the model.
        """
        raise NotImplementedError

    def measured(self, sizes: Sizes) -> Settings:
        """Attributes that the counted corpus determines.

        sizes (Sizes): Sizes of the model.
        """
        return {}

    def pack(self, tables: Settings) -> Settings:
        """Data to save beside templates, gazetteers and clusters.

        tables (dict): The data of each table.
        """
        raise NotImplementedError

    def load(self, data: Settings) -> Settings:
        """Take over saved data.

        data (dict): The data.
        RETURNS (dict): The data of each table.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ common to all

    def compile(self) -> Any:
        """Compile the templates for a new reader. The result has a `reader`, and `templates` (dict[str, CompiledTemplates])."""
        compiled = self._compile()
        compiled.reader.first_stage = self.first_stage
        compiled.reader.max_words = self.max_words
        return compiled

    @property
    def compiled(self) -> Any:
        """The result of `compile`, cached until `recompile`."""
        with self._lock:
            if self._compiled is None:
                self._compiled = self.compile()
            return self._compiled

    @property
    def asks_functions(self) -> bool:
        """Whether templates call functions or read extension attributes."""
        reader = self.compiled.reader
        return bool(reader.item_sources or reader.word_functions)

    def recompile(self) -> None:
        """Forget the compiled templates and the scorer."""
        super().recompile()
        self._scorer = None

    def with_tables(self: OfFeatures, tables: dict[str, Table], **changes: object) -> OfFeatures:
        """A copy with other tables.

        tables (dict[str, Table]): The tables by name.
        changes: Other attributes of the copy.
        """
        features = copy.copy(self)
        features.__dict__.update(changes, tables=tables)
        return features

    def columns_among(self, n_states: int) -> dict[str, Ints]:
        """The new number of each column, by the name of the table, if the number of states changes: int64[C].

        n_states (int): The new number of states.
        """
        # The pair of states i and j is column i · S + j
        states = np.arange(self.n_states)
        pairs = (states[:, np.newaxis] * n_states + states).ravel()
        return {name: pairs if self.is_of_pairs(name) else states for name in self.tables}

    def is_of_pairs(self, name: str) -> bool:
        """Whether a table has weights of pairs of states.

        name (str): The name of the table.
        """
        return name == "transitions"

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of the scores of one token: [S], or [S, S] for pairs of states.

        name (str): The name of the table.
        """
        return (self.n_states,) * (2 if self.is_of_pairs(name) else 1)

    def slots(self, weights: dict[str, NDArray]) -> dict[str, Floats]:
        """Weights in the layout of the kernels, by the name of the table: float64[N].

        weights (dict[str, float[W]]): Weights, by the name of the table.
        """
        return {name: table.slots(weights[name]) for name, table in self.tables.items()}

    def look_up(self, docs: list[Doc]) -> FoundFeatures:
        """Find the features of a batch of Docs.

        docs (list[Doc]): The batch.
        """
        columns = self.compiled.reader.read(docs)
        features = self.find(columns)
        if self.unit is not None:
            units = self.rows(columns)
            unit_features = {kind: units.gather(token_features) for kind, token_features in features.items()}
            return FoundFeatures(units.texts, unit_features)
        span_features, spans = self.find_spans(docs, columns)
        return FoundFeatures(columns.starts, {**features, **span_features}, spans)

    def of_unit(self, unit: str) -> "SparseFeatures":
        """A copy of the features, for scores of another unit.

        unit (str): What has scores: a token, a sentence or a text, as named in `features.doc_batch.UNITS`.
        """
        features = self.with_tables(self.tables, unit=unit)
        features._forget()
        return features

    def rows(self, columns: TokenColumns) -> UnitRows:
        """The tokens, sentences or texts of a batch that have scores in a model of texts.

        columns (TokenColumns): Attributes of the tokens of a batch.
        """
        return UnitRows.of(self.unit, columns.starts, columns.doc_starts)

    def score(self, found: FoundFeatures, slots: dict[str, Floats]) -> NamedTuple:
        """The output of the model for a batch.

        found (FoundFeatures): The features of the batch.
        slots (dict[str, float64[N]]): Weights in the layout of the kernels, by the name of the table.
        """
        scores: dict[str, Floats] = {}
        for kind, features in found.features.items():
            self.add_scores(kind, features, slots, scores)
        return self.output(scores, found.starts, found.listed)

    def add_scores(
        self, kind: str, features: TokenFeatures, slots: dict[str, Floats], scores: dict[str, Floats]
    ) -> None:
        """Add the weights of the features of one kind to scores.

        kind (str): The kind.
        features (TokenFeatures): The features.
        slots (dict[str, float64[N]]): Weights in the layout of the kernels, by the name of the table.
        scores (dict[str, float64[...]]): Arrays of the output, by the name of the field. Receives a new array if it lacks the one
            of this kind.
        """
        table, name = self.kinds[kind]
        if name not in scores:
            scores[name] = np.zeros((len(features.starts) - 1, *self.shape(table)))
        if len(features.rows):
            self.tables[table].add_scores(features, slots[table], scores[name])

    def scatter(
        self, found: FoundFeatures, d_scores: NamedTuple, gradients: dict[str, Floats], *, part: GradientPart = ALL
    ) -> None:
        """Add the gradient of the weights.

        found (FoundFeatures): The features of a batch.
        d_scores (NamedTuple): Derivatives with respect to the output.
        gradients (dict[str, float64[W]]): Receive the sums, by the name of the table.
        part (GradientPart): The rows that this thread adds up.
        """
        for kind, features in found.features.items():
            table, name = self.kinds[kind]
            self.tables[table].scatter(features, getattr(d_scores, name), gradients[table], part=part)

    def check_indexes(self, model: Model) -> None:
        """Check whether loaded indexes of features fit the settings of the model.

        model (Model): The model.
        RAISES (ValueError): CRF509 if an index does not fit.
        """
        if VECTORS in self.tables:
            index = self.tables[VECTORS].index
            check_equal("the index of vectors", isinstance(index, VectorIndex), True)
            check_equal("offsets of vectors", index.offsets, self.feature_set.vector_offsets)
            check_equal("numbers of vectors", index.width, self.vector_width)

    def scorer(self, weights: dict[str, NDArray[np.float32]]) -> "Scorer":
        """The scorer for weights, cached until ``clear_scores`` or until other arrays replace the weights.

        weights (dict[str, float32[W]]): Weights, by the name of the table.
        """
        # Other threads may replace `_scorer` at any time, so it is read once
        scorer = self._scorer
        if scorer is None or any(scorer.weights[name] is not array for name, array in weights.items()):
            scorer = self._scorer = Scorer(self, weights)
        return scorer

    def clear_scores(self) -> None:
        """Forget the scorer, after weights were changed in place (as thinc's optimizers do)."""
        self._scorer = None

    def __getstate__(self) -> Settings:
        """State for copies and child processes, without caches and lock."""
        return {name: value for name, value in self.__dict__.items() if name not in ("_compiled", "_scorer", "_lock")}

    def __setstate__(self, state: Settings) -> None:
        self.__dict__.update(state)
        self._forget()

    def __deepcopy__(self, memo: dict[int, object]) -> "SparseFeatures":
        """A deep copy, except that it shares the first stage: a component, too large to be copied whenever a model is saved."""
        copied = copy.copy(self)
        rest = {name: value for name, value in copied.__dict__.items() if name not in ("first_stage", "_lock")}
        copied.__dict__.update(copy.deepcopy(rest, memo))
        return copied

    def to_dict(self) -> Settings:
        """Data to save, for msgpack."""
        return {
            "templates": self.feature_set.as_text(),
            **super().to_dict(),
            **self.pack({name: table.to_dict() for name, table in self.tables.items()}),
        }

    def from_dict(self, data: Settings) -> "SparseFeatures":
        """A copy with saved data.

        data (dict): The result of `to_dict`.
        RAISES (ValueError): CRF301 if the model was trained with other templates.
        """
        if data["templates"] != self.feature_set.as_text():
            differing = set(map(str, data["templates"])) ^ set(map(str, self.feature_set.as_text()))
            raise ValueError(Errors.CRF301.format(templates=", ".join(sorted(differing))))
        features = super().from_dict(data)
        saved = features.load(data)
        features.tables = {name: Table.from_dict(saved[name]) for name in self.tables}
        return features


class Scorer:
    """Scores Docs in prediction, with caches for fixed weights (float32[W], by the name of the table)."""

    def __init__(self, features: SparseFeatures, weights: dict[str, NDArray[np.float32]]):
        self.weights = weights
        self._features = features
        compiled = features.compiled
        vectors = {}
        if VECTORS in features.tables:  # vectors add to the scores of states
            vectors["states"] = features.tables[VECTORS], weights[VECTORS]
        self._token_scorers = {
            kind: TableScorer(
                templates,
                features.tables[kind],
                weights[kind],
                by_lexeme=not features.is_of_pairs(kind),
                vectors=vectors.get(kind),
            )
            for kind, templates in compiled.templates.items()
        }
        self._slots = {kind: scorer.slots for kind, scorer in self._token_scorers.items()}
        for name in features.tables.keys() - self._slots.keys():
            self._slots[name] = features.tables[name].slots(weights[name]).astype(np.float32)
        self.reader = compiled.reader
        if not features.has_spans:
            attributes = set().union(*(scorer.attributes for scorer in self._token_scorers.values()))
            self.reader = compiled.reader.keeping(attributes)
            for scorer in self._token_scorers.values():
                scorer.read_by(self.reader)
        self.reader.max_words = most_lexemes(features.max_words, self._token_scorers.values())

    def __call__(self, docs: list[Doc]) -> NamedTuple:
        """The output of the layer for Docs, as `SparseFeatures.score`."""
        features = self._features
        columns = self.reader.read(docs)
        span_features, spans = features.find_spans(docs, columns)
        scores = {}
        n_cached = columns.table.size
        for kind, scorer in self._token_scorers.items():
            name = features.kinds[kind].scores
            if name not in scores:
                scores[name] = np.zeros((len(columns.positions), *features.shape(kind)))
            # Adds the scores, and returns how many words have cached scores
            n_of_scorer = scorer.add(columns, scores[name])
            n_cached = min(n_cached, n_of_scorer)
        # Words whose scores are cached need no attributes any more
        columns.table.drop_rows(int(n_cached))
        for kind, features_of_kind in span_features.items():
            features.add_scores(kind, features_of_kind, self._slots, scores)
        if features.unit is None:
            return features.output(scores, columns.starts, spans)
        units = features.rows(columns)
        return features.output({name: units.total(array) for name, array in scores.items()}, units.texts, None)


# ------------------------------------------------------------------------------------------------------ thinc models


def make_layer(
    name: str,
    attr: str,
    features: SparseFeatures,
    output: type,
    init: Callable,
    *,
    meaning: tuple[str, ...] = (),
    **attrs: object,
) -> Model:
    """Make a model whose output is sums of the weights of features.

    name (str): Name of the model.
    attr (str): Name of the attribute of the model that holds the features.
    features (SparseFeatures): The features.
    output (type): The class of the output.
    init (Callable): The function that initializes the model.
    meaning (tuple[str, ...]): Attributes that determine the meaning of the weights, see `Traits`.
    attrs: Settings, which become further attributes of the model.
    """
    attrs = {attr: features, "node": SparseNode(attr, output, meaning), **attrs}
    return Model(name, forward, init=init, params=dict.fromkeys(features.tables), attrs=attrs, ops=NumpyOps())


def counting_settings(owner: str, min_count: int, possible_states: bool) -> Settings:
    """Check the settings of layers whose features are counted.

    owner (str): Name of the architecture, for messages.
    min_count (int): How often a feature has to occur.
    possible_states (bool): Whether each feature gets a weight for every state.
    RAISES (ValueError): CRF020 for settings that do not fit.
    """
    return {
        "min_count": checks.count(owner, "min_count", min_count, most=checks.ANY),
        "possible_states": checks.flag(owner, "possible_states", possible_states),
    }


class SparseNode(Node):
    """Node of a model whose parameters are the weights of the features in its attribute `attr`."""

    def __init__(self, attr: str, gives: type, meaning: tuple[str, ...] = ()):
        self.attr = attr
        self.gives = gives
        self.traits = Traits(learned=(attr,), meaning=meaning)

    def features(self, model: Model) -> SparseFeatures:
        """The features of `model`."""
        return model.attrs[self.attr]

    def resize(self, model: Model, n_states: int) -> None:
        """Add states. Where each feature has a weight for every state, it gets weights for the new states at once; elsewhere when
        training meets the feature with the state.

        model (Model): The model of the layer.
        n_states (int): The new number of states.
        """
        old = self.features(model)
        if old.n_states == n_states:
            return
        columns = old.columns_among(n_states)
        tables = {}
        possible_states = model.attrs.get("possible_states", True)  # hashed features lack the setting
        for name, width in old.widths(n_states).items():
            has_all = (possible_states and name != INNER) or name == VECTORS
            added = np.setdiff1d(np.arange(width), columns[name]) if has_all else ()
            tables[name] = old.tables[name].resized(width, columns[name], added)
            move_weights(model, name, old.tables[name], tables[name], columns[name])
        model.attrs[self.attr] = old.with_tables(tables, n_states=n_states)

    def forget(self, model: Model) -> None:
        """Return `model` to its state before training; lists, templates and the first stage stay."""
        old = self.features(model)
        super().forget(model)
        features = type(old)(old.feature_set, gazetteers=old.gazetteers, clusters=old.clusters, vectors=old.vectors)
        features.set_stage(old.feature_set, old.first_stage)
        features.unit = old.unit
        features.max_words = old.max_words
        model.attrs[self.attr] = features

    def check(self, model: Model, n_states: int) -> None:
        """Check the loaded features and weights of `model` for `n_states` states. RAISES (ValueError): CRF509."""
        features = self.features(model)
        features.check_lists()
        features.check_indexes(model)
        check_equal("states of the features", features.n_states, n_states)
        for name, width in features.widths(n_states).items():
            check_equal(f"columns of {name}", features.tables[name].n_columns, width)
        check_weights(model, {name: (table.n_weights,) for name, table in features.tables.items()})


def forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[NamedTuple, Callable]:
    """Sums of the weights of the features of a batch.

    model (Model): A model that `make_layer` made.
    docs (list[Doc]): The batch.
    is_train (bool): Whether backpropagation follows.
    RETURNS (NamedTuple, Callable): The output, and the function that takes its derivatives.
    """
    features: SparseFeatures = model.attrs[model.attrs["node"].attr]
    weights = read_params(model, features.tables)
    if not is_train:
        return features.scorer(weights)(docs), no_backprop
    # Training changes the weights in place, after which cached scores are wrong
    features.clear_scores()
    found = _dropped(features.look_up(docs), model)

    def backprop(d_scores: NamedTuple) -> list[Doc]:
        used = {features.kinds[kind].table for kind in found.features}
        gradients = {name: np.zeros(table.n_weights) for name, table in features.tables.items() if name in used}
        features.scatter(found, d_scores, gradients)
        for name, gradient in gradients.items():
            add_gradient(model, name, gradient)
        return []

    return features.score(found, features.slots(weights)), backprop


def _dropped(found: FoundFeatures, model: Model) -> FoundFeatures:
    """Dropout: leave out a share of the features, and scale up the others (Srivastava et al. 2014)."""
    rate = model.attrs.get("dropout", 0.0)
    if not rate:
        return found
    features = {}
    for kind, (rows, values, starts) in found.features.items():
        mask = np.asarray(model.ops.get_dropout_mask((len(rows),), rate), dtype=np.float32)
        values = mask if values is None else values * mask
        features[kind] = filter_features(TokenFeatures(rows, values, starts), mask != 0)
    return found._replace(features=features)


def init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Count features and pairs of a feature and a state in one pass over the corpus. Present features and weights stay.

    model (Model): A model that `make_layer` made.
    X (Batches): The corpus; None to count nothing.
    Y (Sizes): Sizes of the corpus.
    RAISES (ValueError): CRF114 if no feature of a token occurs often enough.
    """
    if X is None or Y is None:
        return
    node = model.attrs["node"]
    sizes = Sizes(*Y)
    node.resize(model, sizes.n_states)
    old = node.features(model)
    min_count = model.attrs["min_count"]
    reader = old.compiled.reader
    reader.keep_names(True)
    counters = old.counters()
    for batch in X():
        old.count(batch, reader.read(batch.docs), counters, sizes)
    # With possible_states each feature has a weight for every state from the first one on
    first = old.first_state if model.attrs["possible_states"] else None
    tables = {**old.tables}
    for name, counter in counters.items():
        tables[name] = counter.freeze(min_count, sizes.vocab, None if name == INNER else first)
    if "states" in counters and not len(tables["states"].index) and VECTORS not in tables:
        state_counter = counters["states"]
        if state_counter.has_pairs:  # otherwise no token is annotated, which is not the fault of min_count
            raise ValueError(Errors.CRF114.format(min_count=min_count, seen=len(state_counter)))
    for name, table in tables.items():
        move_weights(model, name, old.tables[name], table)
    model.attrs[node.attr] = old.with_tables(
        tables, clustered=ClusteredWords(*reader.table.clustered), **old.measured(sizes)
    )


# ----------------------------------------------------------------------------------------------------------- pruning


def prune(model: Model) -> tuple[Model, int, int]:
    """A copy of a model of a structure without the zero weights of its sparse features.

    model (Model): The model.
    RETURNS (Model, int, int): The copy, the number of removed weights, and the number of removed features.
    """
    pruned = model.copy()
    n_weights = n_features = 0
    for layer in pruned.layers:
        node = layer.attrs["node"]
        if isinstance(node, SparseNode):
            before = node.features(layer)
            tables = {}
            for name, weights in read_params(layer, before.tables).items():
                table = before.tables[name]
                kept = weights != 0
                tables[name] = table.pruned(kept)
                write_param(layer, name, weights[kept])
                n_weights += int((~kept).sum())
                n_features += len(table.index) - len(tables[name].index)
            layer.attrs[node.attr] = before.with_tables(tables)
    return pruned, n_weights, n_features
