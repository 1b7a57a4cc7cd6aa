"""Emissions: from Docs to the scores of states at tokens.

``SparseEmissions`` sums weights of features that were counted, ``HashedEmissions`` of features that share a fixed number of rows,
``Tok2VecEmissions`` puts a linear layer on a neural encoder. All are thinc models whose output is ``Emissions``.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Linear, Model, zero_init
from thinc.types import Floats2d

from .. import checks
from ..arrays import states_of
from ..errors import announcements
from ..features.columns import ColumnReader, TokenColumns
from ..features.doc_batch import DocBatch, sequence_starts
from ..features.extractor import CompiledTemplates, FeatureSet, IndexBuilder
from ..features.feature_index import CountingTable, HashedIndex
from ..types import Clamp, Floats, SpanList
from . import sparse
from .role import AnnotatedDocs, Corpus, Role, Sizes, check_equal, check_weights, enlarged, gives, unset
from .sparse import Kind, SparseFeatures, SparseRole
from .table import PairCounter, Table


class Emissions(NamedTuple):
    """Scores of a batch of Docs, laid end to end and cut into sequences at known sentence starts."""

    scores: Floats  # [T, S]
    transitions: Optional[Floats]  # [T, S, S] from transition templates, None without
    starts: NDArray[np.int64]  # [B + 1]


class CompiledFeatures(NamedTuple):
    """Templates of states, and of pairs of states if there are any, against one reader."""

    reader: ColumnReader
    templates: dict[str, CompiledTemplates]


class EmissionFeatures(SparseFeatures):
    """Features of tokens that weigh states, and pairs of a state and the one before."""

    kinds: ClassVar = {"states": Kind("states", "scores"), "transitions": Kind("transitions", "transitions")}

    @property
    def states(self) -> Table:
        return self.tables["states"]

    @property
    def transitions(self) -> Table:
        return self.tables["transitions"]

    def compile(self) -> CompiledFeatures:
        reader, both = self.feature_set.reader(self.gazetteers, self.clusters), self.feature_set
        templates = {"states": both.templates} | ({"transitions": both.transitions} if both.transitions else {})
        return CompiledFeatures(reader, {kind: CompiledTemplates(some, reader) for kind, some in templates.items()})

    def widths(self, n_states: int) -> dict[str, int]:
        return {"states": n_states, "transitions": n_states * n_states}

    def output(self, scores: dict[str, Floats], starts: NDArray[np.int64], listed: Optional[SpanList]) -> Emissions:
        return Emissions(scores["scores"], scores.get("transitions"), starts)

    def counters(self) -> dict[str, PairCounter]:
        compiled = self.compiled.templates.items()
        return {
            kind: PairCounter(IndexBuilder(some, self.tables[kind].index), self.tables[kind]) for kind, some in compiled
        }

    def count(
        self, batch: AnnotatedDocs, columns: TokenColumns, counters: dict[str, PairCounter], sizes: Sizes
    ) -> None:
        allowed = states_of(batch.allowed)
        counters["states"].add(counters["states"].builder.add(columns), *tags_allowed(allowed, batch.unset))
        if "transitions" in counters:
            of_pairs = counters["transitions"]
            of_pairs.add(of_pairs.builder.add(columns), *pairs_allowed(allowed, batch.starts))

    def spell(self, tables: dict[str, Any]) -> dict[str, Any]:
        return {"n_tags": self.n_states, **tables}

    def load(self, data: dict[str, Any]) -> dict[str, Any]:
        self.n_states = data["n_tags"]
        return data


class EmissionRole(SparseRole):
    gives = Emissions

    def check(self, model: Model, n_states: int) -> None:
        super().check(model, n_states)
        index = self.features(model).tables["states"].index
        check_equal("hashed rows", len(index) if isinstance(index, HashedIndex) else None, model.attrs.get("rows"))


def SparseEmissions(
    features: FeatureSet, min_count: int = 1, possible_states: bool = False
) -> Model[list[Doc], Emissions]:
    """Sums of the weights of each token's features.

    features (FeatureSet): The templates.
    min_count (int): Features met less often in training are left out.
    possible_states (bool): Give every feature a weight for every tag, not only for those it was seen with.
    """
    _check_features("SparseEmissions", features)
    return Model(
        "sparse_emissions",
        sparse.forward,
        init=sparse.init,
        params={"states": None, "transitions": None},
        attrs={
            "features": EmissionFeatures(features),
            "min_count": checks.count("SparseEmissions", "min_count", min_count),
            "possible_states": checks.flag("SparseEmissions", "possible_states", possible_states),
            "role": EmissionRole("features"),
        },
    )


def HashedEmissions(features: FeatureSet, rows: int = 1 << 18) -> Model[list[Doc], Emissions]:
    """Sums of the weights of each token's features, in a fixed number of rows that the features share by their hashes: for
    corpora that are streamed (``max_epochs = -1``), whose features nobody has counted. Every row has a weight for each tag.

    features (FeatureSet): The templates, none of transitions.
    rows (int): A power of two, about as large as the number of features or larger.
    """
    owner = "HashedEmissions"
    _check_features(owner, features)
    rows = checks.count(owner, "rows", rows, most=1 << 30)
    checks.expect(not rows & (rows - 1), owner, "rows", rows, "a power of two")
    templates = [*map(str, features.transitions)]
    checks.expect(
        not templates, owner, "transitions", templates, "empty: these emissions have no templates of transitions"
    )
    return Model(
        "hashed_emissions",
        sparse.forward,
        init=_hashed_init,
        params={"states": None, "transitions": None},
        attrs={
            "features": EmissionFeatures(features),
            "rows": rows,
            "role": EmissionRole("features", meaning=("rows",)),
        },
    )


def _check_features(owner: str, features: Any) -> None:
    must = "a feature set of tokens, such as spacy_crf.ner_features.v1"
    checks.expect(isinstance(features, FeatureSet), owner, "features", features, must)


def _hashed_init(model: Model, X: Optional[Corpus] = None, Y: Optional[Sizes] = None) -> None:
    """Makes room for all pairs, and tells how many features of the corpus share their row. Weights that are there stay.

    X (Corpus): None to leave everything as it is. Y: What there is to make room for.
    """
    if X is None or Y is None:
        return
    n_tags = Sizes(*Y).n_states
    model.attrs["role"].resize(model, n_tags)
    features: EmissionFeatures = model.attrs["features"]
    is_new = len(features.states.index) != model.attrs["rows"]
    if is_new:
        features.tables["states"] = Table.full(HashedIndex(model.attrs["rows"]), n_tags)
        for name, table in features.tables.items():
            model.set_param(name, np.zeros(table.n_weights, dtype=np.float32))
    met = CountingTable()
    for batch in X():
        hashes = features.compiled.templates["states"].hash(features.reader.read(batch.docs))
        met.add(hashes.hashes.ravel())
        met.add(hashes.item_hashes)
    rows = features.states.index.rows(met.keys)
    known = rows >= 0
    counts = np.bincount(rows[known], weights=met.counts[known], minlength=model.attrs["rows"])
    features.states.counts = features.states.counts + counts.astype(np.int64)
    if is_new:
        _report_collisions(np.bincount(rows[known], minlength=model.attrs["rows"]), len(met))


def _report_collisions(users: NDArray[np.int64], n_features: int) -> None:
    """users (int64[F]): How many features have each row."""
    announcements.info(
        "Hashed features: of %d features that the initialization saw, %d share their row with others; %d of %d rows are used",
        n_features,
        users[users > 1].sum(),
        np.count_nonzero(users),
        len(users),
    )


def tags_allowed(allowed: Clamp, unset: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Tags that the annotation of each token names, as compressed rows; none where it says nothing and leaves several.

    allowed (bool[T, S]), unset (bool[T])
    """
    counts = allowed.sum(axis=1)
    silent = unset & (counts > 1)
    _, tags = np.nonzero(allowed & ~silent[:, None])
    return tags.astype(np.int32), np.append(0, np.cumsum(np.where(silent, 0, counts))).astype(np.int64)


def pairs_allowed(
    allowed: Clamp, starts: NDArray[np.int64], steps: Optional[NDArray[np.bool_]] = None
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The pair of tags ``i * S + j`` at each token where the annotation leaves one, as compressed rows.

    allowed (bool[T, S]), steps (bool[T]): Tokens to look at; all if None.
    """
    tags = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    known = np.zeros(len(tags), dtype=bool)
    known[1:] = (tags[1:] >= 0) & (tags[:-1] >= 0)
    known[starts[:-1][starts[:-1] < len(tags)]] = False
    if steps is not None:
        known &= steps
    [at] = np.nonzero(known)
    pairs = tags[at - 1] * allowed.shape[1] + tags[at]
    return pairs.astype(np.int32), np.append(0, np.cumsum(known)).astype(np.int64)


class LinearRole(Role):
    gives = Emissions

    def resize(self, model: Model, n_states: int) -> None:
        output = model.get_ref("output")
        names = ("W", "b") if output.has_param("W") else ()
        before = {
            name: (output.get_param(name), output.get_grad(name) if output.has_grad(name) else None) for name in names
        }
        for name in names:
            output.set_param(name, None)  # thinc changes no dimension of a layer that has parameters
        output.set_dim("nO", n_states, force=True)
        for name, (values, gradient) in before.items():
            shape = (n_states, *values.shape[1:])
            output.set_param(name, output.ops.asarray(enlarged(values, shape)))
            if gradient is not None:
                output.set_grad(name, output.ops.asarray(enlarged(gradient, shape)))

    def forget(self, model: Model) -> None:
        unset(model.get_ref("output"))

    def check(self, model: Model, n_states: int) -> None:
        output = model.get_ref("output")
        check_equal("nO", output.maybe_get_dim("nO"), n_states)
        check_weights(output, {"W": (n_states, output.maybe_get_dim("nI")), "b": (n_states,)})


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
        attrs={"role": LinearRole()},
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


def _tok2vec_init(model: Model, X: Optional[Corpus] = None, Y: Optional[Sizes] = None) -> None:
    encoder, output = model.layers
    if X is not None and Y is not None:
        sample = next(iter(X())).docs[:10]
        encoder.initialize(X=sample)
        output.set_dim("nO", Sizes(*Y).n_states, force=True)
    else:
        encoder.initialize()
    if output.has_dim("nI") is None:
        output.set_dim("nI", encoder.get_dim("nO"))
    if output.has_dim("nO"):
        output.initialize()


def check_emissions(owner: str, emissions: Any) -> None:
    """RAISES (ValueError): CRF020 for what are no emissions."""
    possible = gives(emissions) is Emissions
    checks.expect(possible, owner, "emissions", emissions, "emissions, such as spacy_crf.SparseEmissions.v1")
