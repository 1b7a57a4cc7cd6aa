"""Emissions: from Docs to the scores of states at tokens.

``SparseEmissions`` sums weights of counted features, ``HashedEmissions`` weights of features that share a fixed number of rows;
emissions of a neural encoder are in ``neural.py``. All are thinc models whose output is ``Emissions``.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model

from .. import checks
from ..arrays import each_chain, states_of
from ..errors import announcements
from ..features.extractor import CompiledTemplates, FeatureSet, IndexBuilder
from ..features.feature_index import CountingTable, HashedIndex
from ..features.token_columns import ColumnReader, TokenColumns
from ..types import Bools, Clamp, Floats, Ints, Settings, SpanList
from . import sparse
from .node import AnnotatedDocs, Batches, Sizes, check_equal, gives, write_param
from .sparse import INNER, VECTORS, ClusteredWords, Counter, ScoreKind, SparseFeatures
from .table import PairCounter, Table
from .word_scores import VectorCounter


class Emissions(NamedTuple):
    """Scores of a batch of Docs, laid end to end and cut into sequences at known sentence starts."""

    scores: Floats  # [T, S]
    transitions: Optional[Floats]  # [T, S, S] from transition templates, None without
    starts: Ints  # [B + 1]


def total(parts: Sequence[Emissions]) -> Emissions:
    """Sum of emissions of the same Docs.

    parts (Sequence[Emissions]): The emissions, of which only the first may have transitions.
    """
    first, *others = parts
    for other in others:
        first = first._replace(scores=first.scores + other.scores)
    return first


class CompiledFeatures(NamedTuple):
    """Templates of states, and of pairs of states if there are any, compiled for one reader."""

    reader: ColumnReader
    templates: dict[str, CompiledTemplates]


class EmissionFeatures(SparseFeatures):
    """Features of tokens, with weights of states and of pairs of a state and the state before."""

    kinds: ClassVar = {
        "states": ScoreKind("states", "scores"),
        "transitions": ScoreKind("transitions", "transitions"),
        VECTORS: ScoreKind(VECTORS, "scores"),
        INNER: ScoreKind(INNER, "scores"),
    }

    @property
    def states(self) -> Table:
        """The table of the weights of states."""
        return self.tables["states"]

    @property
    def transitions(self) -> Table:
        """The table of the weights of pairs of states."""
        return self.tables["transitions"]

    def _compile(self) -> CompiledFeatures:
        reader = self.feature_set.reader(self.gazetteers, self.clusters, self.vectors)
        both = self.feature_set
        templates = {"states": both.counted, "transitions": both.transitions, INNER: both.inner}
        used = {kind: some for kind, some in templates.items() if some or kind == "states"}
        return CompiledFeatures(reader, {kind: CompiledTemplates(some, reader) for kind, some in used.items()})

    def widths(self, n_states: int) -> dict[str, int]:
        """Number of columns of each table for `n_states`: S for states, vectors and inner states, S · S for pairs of
        states.
        """
        has = {VECTORS: self.feature_set.vector_offsets, INNER: self.feature_set.inner}
        of_some = {kind: n_states for kind, templates in has.items() if templates}
        return {"states": n_states, "transitions": n_states * n_states, **of_some}

    def output(self, scores: dict[str, Floats], starts: Ints, listed: Optional[SpanList]) -> Emissions:
        """Emissions from arrays of `scores`, for sequences with these `starts`; no spans are `listed`."""
        return Emissions(scores["scores"], scores.get("transitions"), starts)

    def with_states(self, states: Ints, n_states: int) -> "EmissionFeatures":
        """The weights for other states. (For features without pairs of states and vectors.)

        states (int64[S]): The new number of each state.
        n_states (int): The new number of states.
        """
        before = self.states
        columns = states[self.states.pair_columns].astype(np.int32)
        table = Table(before.index, before.pair_starts, columns, n_states, before.counts)
        return self.with_tables({**self.tables, "states": table}, n_states=n_states)

    def counters(self) -> dict[str, Counter]:
        """A counter of pairs for each table, and of vectors for the table of vectors."""
        compiled = self.compiled.templates.items()
        counters: dict[str, Counter] = {
            kind: PairCounter(IndexBuilder(some, self.tables[kind].index), self.tables[kind]) for kind, some in compiled
        }
        if VECTORS in self.tables:
            counters[VECTORS] = VectorCounter(self.tables[VECTORS], self.feature_set.vector_offsets, self.vector_width)
        return counters

    def count(self, batch: AnnotatedDocs, columns: TokenColumns, counters: dict[str, Counter], sizes: Sizes) -> None:
        """Count the features of a `batch` with attributes `columns` in the `counters` of the tables, for models of these
        `sizes`.
        """
        allowed = states_of(batch.allowed)
        counters["states"].add(counters["states"].builder.add(columns), *tags_allowed(allowed, batch.unset))
        if "transitions" in counters:
            of_pairs = counters["transitions"]
            found = of_pairs.builder.add(columns)
            # Each chain of a set has pairs of its own states
            for clamp in each_chain(batch.allowed):
                of_pairs.add(found, *pairs_of_tags(states_of(clamp), batch.starts, sizes.tag_of))
        if INNER in counters:
            # Only states of inner levels have such weights
            none = np.zeros(allowed.shape[1], dtype=bool)
            some = tags_allowed(allowed & (none if sizes.inner is None else sizes.inner), batch.unset)
            counters[INNER].add(counters[INNER].builder.add(columns), *some)
        if VECTORS in counters:
            counters[VECTORS].add(columns)

    def measured(self, sizes: Sizes) -> Settings:
        """The scale of the vectors, and how many words have one.

        sizes (Sizes): Sizes of the model.
        """
        if VECTORS not in self.tables or self.vectors is None:
            return {}
        words = self.compiled.reader.table.words
        n_known = int(words.any(axis=1).sum())
        return {"vectors": self.vectors.scaled(words), "have_vectors": (n_known, len(words))}

    def check_indexes(self, model: Model) -> None:
        """Check the loaded indexes, and the number of hashed rows of `model`. RAISES (ValueError): CRF509."""
        super().check_indexes(model)
        index = self.states.index
        check_equal("hashed rows", len(index) if isinstance(index, HashedIndex) else None, model.attrs.get("rows"))

    def pack(self, tables: Settings) -> Settings:
        """Data to save: the number of tags, and `tables`."""
        return {"n_tags": self.n_states, **tables}

    def load(self, data: Settings) -> Settings:
        """Take over saved `data`. RETURNS (dict): The data of each table."""
        self.n_states = data["n_tags"]
        return data


def SparseEmissions(
    features: FeatureSet, min_count: int = 1, possible_states: bool = False
) -> Model[list[Doc], Emissions]:
    """Sums of the weights of each token's features.

    features (FeatureSet): The templates.
    min_count (int): Features with fewer occurrences in training are left out.
    possible_states (bool): Whether every feature gets a weight for every tag, not only for tags that it occurs with.
    """
    _check_features("SparseEmissions", features)
    settings = sparse.counting_settings("SparseEmissions", min_count, possible_states)
    stored = EmissionFeatures(features)
    return sparse.make_layer("sparse_emissions", "features", stored, Emissions, sparse.init, **settings)


def HashedEmissions(features: FeatureSet, rows: int = 1 << 18) -> Model[list[Doc], Emissions]:
    """Sums of the weights of each token's features, in a fixed number of rows that the features share by their hashes: for
    streamed corpora (``max_epochs = -1``), whose features are not counted. Every row has a weight for each tag.

    features (FeatureSet): The templates, none of transitions.
    rows (int): A power of two, about as large as the number of features or larger.
    """
    owner = "HashedEmissions"
    _check_features(owner, features)
    rows = checks.count(owner, "rows", rows, most=1 << 26)
    checks.expect(not rows & (rows - 1), owner, "rows", rows, "a power of two")
    templates = [*map(str, features.transitions + features.inner)]
    checks.expect(
        not templates,
        owner,
        "features",
        templates,
        "without templates of transitions, and without outer: hashed features have weights for all states",
    )
    stored = EmissionFeatures(features)
    return sparse.make_layer(
        "hashed_emissions", "features", stored, Emissions, _hashed_init, meaning=("rows",), rows=rows
    )


def _check_features(owner: str, features: object) -> None:
    checks.expect(
        isinstance(features, FeatureSet),
        owner,
        "features",
        features,
        "a feature set of tokens, such as spacy_crf.ner_features.v1",
    )


def check_counted(owner: str, features: FeatureSet, unless: str = "") -> None:
    """Check a setting whose features must be features of tokens that are counted.

    owner (str): The architecture, for the message.
    features (object): The setting.
    unless (str): Which other features are possible, for the message.
    RAISES (ValueError): CRF020 for other templates.
    """
    _check_features(owner, features)
    others = [*map(str, features.transitions + features.inner), *(f"vector[{n}]" for n in features.vector_offsets)]
    checks.expect(not others, owner, "features", others, f"without templates of transitions, vectors and outer{unless}")


def _hashed_init(model: Model, X: Optional[Batches] = None, Y: Optional[Sizes] = None) -> None:
    """Add weights for all pairs, and log how many features of the corpus share their row. Present weights stay."""
    if X is None or Y is None:
        return
    n_tags = Sizes(*Y).n_states
    model.attrs["node"].resize(model, n_tags)
    features: EmissionFeatures = model.attrs["features"]
    is_new = len(features.states.index) != model.attrs["rows"]
    if is_new:
        features.tables["states"] = Table.full(HashedIndex(model.attrs["rows"]), n_tags)
    # Hashes of features, before they are cut down to rows, tell how many share one
    met = CountingTable()
    vectors = features.counters().get(VECTORS)
    for batch in X():
        columns = features.compiled.reader.read(batch.docs)
        hashes = features.compiled.templates["states"].hash(columns)
        met.add(hashes.hashes.ravel())
        met.add(hashes.item_hashes)
        if vectors is not None:
            vectors.add(columns)
    if vectors is not None:
        features.tables[VECTORS] = vectors.freeze(0, Sizes(*Y).vocab)
    if is_new:
        for name, table in features.tables.items():
            write_param(model, name, np.zeros(table.n_weights))
    # [N] row of each different feature of the corpus
    rows = features.states.index.rows(met.keys)
    known = rows >= 0
    counts = np.bincount(rows[known], weights=met.counts[known], minlength=model.attrs["rows"])
    features.states.counts = features.states.counts + counts.astype(np.int64)
    model.attrs["features"] = features.with_tables(
        features.tables,
        clustered=ClusteredWords(*features.compiled.reader.table.clustered),
        **features.measured(Sizes(*Y)),
    )
    if is_new:
        users = np.bincount(rows[known], minlength=model.attrs["rows"])
        announcements.info(
            "Hashed features: of %d features that the initialization saw, %d share their row with others; %d of %d rows are used",
            len(met),
            users[users > 1].sum(),
            np.count_nonzero(users),
            len(users),
        )


def tags_allowed(allowed: Clamp, unset: Bools) -> tuple[NDArray[np.int32], Ints]:
    """Tags that the annotation of each token allows; none for tokens without annotation that allow several tags.

    allowed (bool[T, S]): The allowed tags.
    unset (bool[T]): The tokens without annotation.
    RETURNS (int32[N], int64[T + 1]): Compressed rows.
    """
    # A token without annotation still says something where only one tag is possible
    counts = allowed.sum(axis=1)
    silent = unset & (counts > 1)
    _, tags = np.nonzero(allowed & ~silent[:, None])
    return tags.astype(np.int32), np.append(0, np.cumsum(np.where(silent, 0, counts))).astype(np.int64)


def pairs_allowed(allowed: Clamp, starts: Ints, steps: Optional[Bools] = None) -> tuple[NDArray[np.int32], Ints]:
    """The pair of tags ``i * S + j`` at each token whose annotation leaves one pair.

    allowed (bool[T, S]): The allowed tags.
    starts (int64[B + 1]): Where the sequences start.
    steps (bool[T]): Tokens to consider; all if None.
    RETURNS (int32[N], int64[T + 1]): Compressed rows.
    """
    # -1 for tokens with several tags, which are in no pair
    tags = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    known = np.zeros(len(tags), dtype=bool)
    known[1:] = (tags[1:] >= 0) & (tags[:-1] >= 0)
    # The first token of a sequence has no tag before it
    known[starts[:-1][starts[:-1] < len(tags)]] = False
    if steps is not None:
        known &= steps
    [at] = np.nonzero(known)
    pairs = tags[at - 1] * allowed.shape[1] + tags[at]
    return pairs.astype(np.int32), np.append(0, np.cumsum(known)).astype(np.int64)


def pairs_of_tags(allowed: Clamp, starts: Ints, tag_of: Optional[Ints]) -> tuple[NDArray[np.int32], Ints]:
    """All pairs of states at each token whose annotation leaves one pair of tags.

    allowed (bool[T, S]): The allowed states.
    starts (int64[B + 1]): Where the sequences start.
    tag_of (int64[S]): The tag of each state, rising; None if states are tags.
    RETURNS (int32[N], int64[T + 1]): Compressed rows.
    """
    if tag_of is None or len(tag_of) == 1 + tag_of.max(initial=-1):
        return pairs_allowed(allowed, starts)
    size = len(tag_of)
    first = np.searchsorted(tag_of, tag_of)
    pairs, bounds = pairs_allowed(allowed & (first == np.arange(size)), starts)  # pairs of the first states
    # Each pair of tags stands for counts[before] · counts[after] pairs of states, row by row
    counts = np.bincount(first, minlength=size)
    before = pairs // size
    after = pairs % size
    n = counts[before] * counts[after]
    place = np.arange(n.sum()) - np.repeat(np.cumsum(n) - n, n)
    width = np.repeat(counts[after], n)
    every = (np.repeat(before, n) + place // width) * size + np.repeat(after, n) + place % width
    return every.astype(np.int32), np.append(0, np.cumsum(n))[bounds]


def check_emissions(owner: str, emissions: object) -> None:
    """Check a setting that must be emissions.

    owner (str): The architecture, for the message.
    emissions (object): The setting.
    RAISES (ValueError): CRF020 for a model whose output is not Emissions.
    """
    checks.expect(
        gives(emissions) is Emissions, owner, "emissions", emissions, "emissions, such as spacy_crf.SparseEmissions.v1"
    )
