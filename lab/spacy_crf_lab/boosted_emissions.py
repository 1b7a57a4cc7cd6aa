"""Emissions by boosted trees: the score of a token is a sum over regression trees of the values of the leaves that it reaches.

    scores[t, y] = sum_b value_b[leaf_b(x_t), y]

The trees ask for features of the token, one after the other, so they find by themselves which combinations of features matter.
`spacy_crf_lab.TreeBoost.v1` grows them (`tree_boost`). (Dietterich, Hao & Ashenfelter 2008, "Gradient tree boosting for training
conditional random fields", here with one tree for all labels.)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Optional, cast

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps, Optimizer

from spacy_crf import checks
from spacy_crf.errors import announcements, cant_train
from spacy_crf.explain.reading import LayerTerms, read_layer, read_terms
from spacy_crf.explain.weights import blocks_of
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.features.extractor import CompiledTemplates, FeatureSet, IndexBuilder
from spacy_crf.features.feature_index import FeatureIndex
from spacy_crf.features.token_columns import TokenColumns
from spacy_crf.models.corpus import corpus_by
from spacy_crf.models.emissions import CompiledFeatures, Emissions, check_counted
from spacy_crf.models.node import Batches, Node, Sizes, Traits, check_equal, no_backprop
from spacy_crf.models.sparse import ClusteredWords, SparseFeatures
from spacy_crf.models.structure import Block, Feature, TokenTerms
from spacy_crf.types import Floats, Ints, TemplateRows, TokenFeatures

from .errors import Errors
from .kernels.boosting import add_leaves
from .tree_growth import Postings
from .trees import CompiledForest, Forest

OWNER = "BoostedEmissions"
_TEMPLATE = "trees"  # that explanations name


class BoostedFeatures(SparseFeatures):
    """Templates, the lists that they read, the features for which trees may ask, and the trees."""

    def __init__(self, feature_set: FeatureSet, **lists: Any):
        super().__init__(feature_set, **lists)
        self.index = FeatureIndex.empty()
        self.forest = Forest.none(1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.forest.roots):,} trees)"

    def _compile(self) -> CompiledFeatures:
        reader = self.feature_set.reader(self.gazetteers, self.clusters, self.vectors)
        return CompiledFeatures(reader, {"states": CompiledTemplates(self.feature_set.counted, reader)})

    def rows_of(self, docs: list[Doc], index: FeatureIndex) -> tuple[TemplateRows, TokenFeatures]:
        """The features of all tokens: by template, and those that functions give."""
        return self.compiled.templates["states"].rows_by_template(self.compiled.reader.read(docs), index)

    def leaves(self, docs: list[Doc]) -> NDArray[np.int32]:
        """The leaf that each token reaches in each tree: int32[T, B]."""
        # The trees of the latest prediction as they are looked up, and the features that they ask for
        latest: Any = self._scorer
        if latest is None or latest[0].forest is not self.forest:
            compiled = CompiledForest(self.forest)
            # An index without names, which nobody asks for
            latest = cast(Any, (compiled, FeatureIndex(self.index.keys[compiled.rows])))
            self._scorer = latest
        compiled, index = latest
        return compiled.leaves(*self.rows_of(docs, index))

    def scores(self, docs: list[Doc]) -> Floats:
        """Scores of all tokens: float64[T, S]."""
        leaves = self.leaves(docs)
        scores = np.zeros((len(leaves), self.n_states))
        add_leaves(leaves, self.forest.values, scores)
        return scores

    def pack(self, tables: dict[str, object]) -> dict[str, object]:
        """The states, the index and the trees, as a file holds them."""
        return {"n_tags": self.n_states, "index": self.index.to_dict(), "forest": [*self.forest]}

    def load(self, data: dict[str, Any]) -> dict[str, object]:
        """Take over what `pack` returned. RETURNS (dict): No tables."""
        self._forget()
        self.n_states = data["n_tags"]
        self.index = FeatureIndex.from_dict(data["index"])
        self.forest = Forest(*map(np.array, data["forest"]))
        return {}


class BoostedNode(Node):
    """Node of a layer whose scores are those of trees."""

    gives = Emissions
    traits = Traits(learned=("boosted",), is_online=False)

    def check_fit(self, model: Model, pipe: Any, optimizer: Optional[Optimizer]) -> None:
        """RAISES (ValueError): CRF347 for another optimizer than TreeBoost."""
        from .tree_boost import TreeBoost  # which reads this file

        if optimizer is not None and not isinstance(optimizer, TreeBoost):
            what = f"the model of '{pipe.name}'"
            reason = "its trees have to grow"
            raise cant_train(optimizer, what, reason, "spacy_crf_lab.TreeBoost.v1")

    def resize(self, model: Model, n_states: int) -> None:
        """Give each leaf a score of 0 for new states."""
        features: BoostedFeatures = model.attrs["boosted"]
        if features.n_states != n_states:
            grown = {"n_states": n_states, "forest": features.forest.with_states(n_states)}
            model.attrs["boosted"] = features.with_tables({}, **grown)

    def forget(self, model: Model) -> None:
        """Remove the trees and the features."""
        before = model.attrs["boosted"]
        super().forget(model)
        none = {"index": FeatureIndex.empty(), "forest": Forest.none(1), "n_states": 1}
        model.attrs["boosted"] = before.with_tables({}, **none)

    def check(self, model: Model, n_states: int) -> None:
        """RAISES (ValueError): CRF509 for loaded trees that do not fit the features or the states."""
        features: BoostedFeatures = model.attrs["boosted"]
        features.check_lists()
        check_equal("states of the trees", features.n_states, n_states)
        features.forest.check(len(features.index), n_states)


def _paths(features: BoostedFeatures) -> tuple[list[str], Ints]:
    """The different paths, and the number of the path to each leaf."""
    names, path_of = np.unique(np.array(features.forest.paths(features.index), dtype=object), return_inverse=True)
    return names.tolist(), path_of.astype(np.int64)


def _feature(names: list[str], row: int) -> Feature:
    return Feature(names[row], _TEMPLATE, None)


@read_layer.register
def _(node: BoostedNode, layer: Model, docs: DocBatch) -> LayerTerms:
    """A term for each path that a token takes through the trees, added up over the trees with this path."""
    features: BoostedFeatures = layer.attrs["boosted"]
    leaves = features.leaves(docs)
    (names, path_of) = _paths(features)
    n_tokens, n_trees = leaves.shape
    # One number for each pair of token and path
    keys = np.repeat(np.arange(n_tokens), n_trees) * max(1, len(names)) + path_of[leaves].ravel()
    # Trees that ask the same on the way are one term
    taken, where = np.unique(keys, return_inverse=True)
    scores = np.zeros((len(taken), features.n_states))
    np.add.at(scores, where.ravel(), features.forest.values[leaves.ravel()].astype(np.float64))
    tokens, paths = np.divmod(taken, max(1, len(names)))
    terms = TokenTerms([names[path] for path in paths.tolist()], tokens, scores, _TEMPLATE)
    return replace(read_terms(terms, layer.predict(docs)), make_output=None)


@blocks_of.register
def _(node: BoostedNode, layer: Model) -> Iterator[Block]:
    """The values of the leaves, added up over the trees with the same path."""
    features: BoostedFeatures = layer.attrs["boosted"]
    names, path_of = _paths(features)
    values = np.zeros((len(names), features.n_states))
    np.add.at(values, path_of, features.forest.values.astype(np.float64))
    rows, states = np.indices(values.shape).reshape(2, -1)
    named = partial(_feature, names)
    yield Block(_TEMPLATE, values.ravel(), (states,), rows, named, None, ([_TEMPLATE], np.zeros_like(rows)))


class BoostedCorpus:
    """The features of the tokens of a corpus, and the scores that trees give them: see `corpus.SparseCorpus`.

    layer (Model): With the features and the trees.
    """

    names = ()

    def __init__(self, layer: Model):
        self._layer = layer
        self.starts: list[Ints] = []
        self._batches: list[tuple[TemplateRows, TokenFeatures]] = []
        self._forest: Optional[Forest] = None  # whose scores are there

    @property
    def features(self) -> BoostedFeatures:
        """The features and trees of the layer."""
        return self._layer.attrs["boosted"]

    def add(self, docs: DocBatch) -> None:
        """Read the features of a batch."""
        self._batches.append(self.features.rows_of(docs, self.features.index))
        self.starts.append(docs.sequence_starts())

    def finish(self) -> None:
        """Complete the corpus after the last batch."""
        self.postings = Postings.of(self._batches, len(self.features.index))
        self._bounds = np.append(0, np.cumsum([starts[-1] for starts in self.starts]))
        self.scores = np.zeros((int(self._bounds[-1]), self.features.n_states))  # [T, S]
        self.derivatives = np.zeros_like(self.scores)  # [T, S] of the latest loss, by the scores

    def fingerprint(self) -> Iterable[NDArray]:
        """The arrays that identify the corpus."""
        yield from (*self.postings, *self.starts)

    def set_trees(self, forest: Forest, scores: Floats) -> None:
        """Set the trees of the layer, and their scores (float64[T, S])."""
        self.features.forest = self._forest = forest
        self.scores = scores

    def at(
        self, weights: dict[str, Floats], *, threads: int = 1, into: Optional[dict[str, Floats]] = None
    ) -> "BoostedCorpus":
        """One pass over the corpus, with the scores of the present trees."""
        forest = self.features.forest
        # TreeBoost sets the scores with each tree; only a loaded forest is run
        if self._forest is not forest:
            scores = np.zeros_like(self.scores)
            compiled = CompiledForest(forest)
            # Features that no tree asks for share the last entry, -1
            place = np.full(len(self.features.index) + 1, -1, dtype=np.int32)
            place[compiled.rows] = np.arange(len(compiled.rows))
            for number, (rows, items) in enumerate(self._batches):
                leaves = compiled.leaves(place[rows], items._replace(rows=place[items.rows]))
                add_leaves(leaves, forest.values, scores[self._tokens(number)])
            self.set_trees(forest, scores)
        return self

    def _tokens(self, number: int) -> slice:
        return slice(int(self._bounds[number]), int(self._bounds[number + 1]))

    def score(self, number: int) -> Emissions:
        """The emissions of a batch: float64[T, S]."""
        return Emissions(self.scores[self._tokens(number)], None, self.starts[number])

    def collect(self, numbers: Iterable[int], derivatives: Iterable[Emissions]) -> None:
        """Keep the derivatives of batches by their emissions, from which trees grow."""
        for number, derivative in zip(numbers, derivatives):
            self.derivatives[self._tokens(number)] = derivative.scores

    def gradient(self) -> dict[str, Floats]:
        """No gradients: trees have no weights that move."""
        return {}


@corpus_by.register
def _(node: BoostedNode, layer: Model) -> BoostedCorpus:
    return BoostedCorpus(layer)


def BoostedEmissions(features: FeatureSet, min_count: int = 2) -> Model[list[Doc], Emissions]:
    """Scores by regression trees that ask for features of tokens, and find combinations of these by themselves. The optimizer
    `spacy_crf_lab.TreeBoost.v1` grows the trees.

    features (FeatureSet): The templates, none of transitions, vectors or outer. Trees ask whether a feature is there, or whether
        its value is above a threshold if functions give features with values.
    min_count (int): Features with fewer occurrences in training are left out.
    RAISES (ValueError): CRF020; CRF114 when training begins, if no feature occurs often enough.
    """
    check_counted(OWNER, features)
    return Model(
        "boosted_emissions",
        _forward,
        init=_init,
        attrs={
            "node": BoostedNode(),
            "boosted": BoostedFeatures(features),
            "min_count": checks.count(OWNER, "min_count", min_count, most=checks.ANY),
        },
        ops=NumpyOps(),
    )


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[Emissions, Callable]:
    batch = DocBatch.of(docs)
    return Emissions(model.attrs["boosted"].scores(batch), None, batch.sequence_starts()), no_backprop


def _init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Count the features. Present features and trees stay."""
    if X is None or Y is None:
        return
    sizes = Sizes(*Y)
    model.attrs["node"].resize(model, sizes.n_states)
    features: BoostedFeatures = model.attrs["boosted"]
    features.compiled.reader.keep_names(True)
    # Counts begin at the known features, which keep their rows
    builder = IndexBuilder(features.compiled.templates["states"], features.index)
    for batch in X():
        columns: TokenColumns = features.compiled.reader.read(batch.docs)
        builder.add(columns)
    n_known = len(features.index)
    min_count = model.attrs["min_count"]
    keep = builder.table.counts >= min_count
    # The trees ask for features by their row, so known features keep theirs
    keep[:n_known] = True
    if len(builder) and not keep.any():
        raise ValueError(Errors.CRF114.format(min_count=min_count, seen=len(builder)))
    index = builder.freeze(keep, sizes.vocab)
    announcements.info("%s: trees may ask for %d of %d features", OWNER, len(index), len(builder))
    clustered = ClusteredWords(*features.compiled.reader.table.clustered)
    model.attrs["boosted"] = features.with_tables({}, index=index, clustered=clustered)
