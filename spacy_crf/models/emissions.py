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
    transitions: Optional[Floats]  # [T, S, S] from templates of transitions; None without such templates
    starts: Ints  # [B + 1] where the sequences start


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
        """Compile the templates, and make the reader of the columns that they read."""
        feature_set = self.feature_set
        reader = feature_set.reader(self.gazetteers, self.clusters, self.vectors)
        compiled = {"states": CompiledTemplates(feature_set.counted, reader)}
        for kind, templates in (("transitions", feature_set.transitions), (INNER, feature_set.inner)):
            if templates:
                compiled[kind] = CompiledTemplates(templates, reader)
        return CompiledFeatures(reader, compiled)

    def widths(self, n_states: int) -> dict[str, int]:
        """Number of columns of each table for `n_states`: S for states, vectors and inner states, S · S for pairs of
        states.
        """
        widths = {"states": n_states, "transitions": n_states * n_states}
        if self.feature_set.vector_offsets:
            widths[VECTORS] = n_states
        if self.feature_set.inner:
            widths[INNER] = n_states
        return widths

    def output(self, scores: dict[str, Floats], starts: Ints, listed: Optional[SpanList]) -> Emissions:
        """Emissions from arrays of `scores`, for sequences with these `starts`; no spans are `listed`."""
        return Emissions(scores["scores"], scores.get("transitions"), starts)

    def with_states(self, states: Ints, n_states: int) -> "EmissionFeatures":
        """A copy with the weights of other states. The features must have no weights of pairs of states and of vectors.

        states (int64[S]): The new number of each state.
        n_states (int): The new number of states.
        """
        before = self.states
        columns = states[self.states.pair_columns].astype(np.int32)
        table = Table(before.index, before.pair_starts, columns, n_states, before.counts)
        return self.with_tables({**self.tables, "states": table}, n_states=n_states)

    def counters(self) -> dict[str, Counter]:
        """A counter of pairs for each table, and of vectors for the table of vectors."""
        counters: dict[str, Counter] = {}
        for kind, templates in self.compiled.templates.items():
            table = self.tables[kind]
            counters[kind] = PairCounter(IndexBuilder(templates, table.index), table)
        if VECTORS in self.tables:
            counters[VECTORS] = VectorCounter(self.tables[VECTORS], self.feature_set.vector_offsets, self.vector_width)
        return counters

    def count(self, batch: AnnotatedDocs, columns: TokenColumns, counters: dict[str, Counter], sizes: Sizes) -> None:
        """Count the features of a `batch`, whose tokens have the attributes `columns`, in the `counters` of the tables, for a
        model of these `sizes`.
        """
        allowed = states_of(batch.allowed)
        tags, tag_starts = tags_allowed(allowed, batch.unset)
        counters["states"].add(counters["states"].builder.add(columns), tags, tag_starts)
        if "transitions" in counters:
            pair_counter = counters["transitions"]
            features = pair_counter.builder.add(columns)
            # Each chain of a set has pairs of its own states
            for clamp in each_chain(batch.allowed):
                pairs, pair_starts = pairs_of_tags(states_of(clamp), batch.starts, sizes.tag_of)
                pair_counter.add(features, pairs, pair_starts)
        if INNER in counters:
            # Only states of inner levels have such weights
            is_inner = np.zeros(allowed.shape[1], dtype=bool) if sizes.inner is None else sizes.inner
            inner_tags, inner_starts = tags_allowed(allowed & is_inner, batch.unset)
            counters[INNER].add(counters[INNER].builder.add(columns), inner_tags, inner_starts)
        if VECTORS in counters:
            counters[VECTORS].add(columns)

    def measured(self, sizes: Sizes) -> Settings:
        """The scale of the vectors, and how many words have one.

        sizes (Sizes): Sizes of the model.
        """
        if VECTORS not in self.tables or self.vectors is None:
            return {}
        vectors = self.compiled.reader.table.words  # of the words that were counted; 0 for words without a vector
        n_with_vector = int(vectors.any(axis=1).sum())
        return {"vectors": self.vectors.scaled(vectors), "have_vectors": (n_with_vector, len(vectors))}

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
    """Check that all features of a setting belong to single tokens and tags, and can be counted.

    owner (str): The architecture, for the message.
    features (object): The setting.
    unless (str): An exception to the requirement, for the message.
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
    hash_counts = CountingTable()
    vector_counter = features.counters().get(VECTORS)
    for batch in X():
        columns = features.compiled.reader.read(batch.docs)
        hashes = features.compiled.templates["states"].hash(columns)
        hash_counts.add(hashes.hashes.ravel())
        hash_counts.add(hashes.item_hashes)
        if vector_counter is not None:
            vector_counter.add(columns)
    if vector_counter is not None:
        features.tables[VECTORS] = vector_counter.freeze(0, Sizes(*Y).vocab)
    if is_new:
        for name, table in features.tables.items():
            write_param(model, name, np.zeros(table.n_weights))
    rows = features.states.index.rows(hash_counts.keys)  # [N] of each different feature of the corpus
    has_row = rows >= 0
    counts = np.bincount(rows[has_row], weights=hash_counts.counts[has_row], minlength=model.attrs["rows"])
    features.states.counts = features.states.counts + counts.astype(np.int64)
    model.attrs["features"] = features.with_tables(
        features.tables,
        clustered=ClusteredWords(*features.compiled.reader.table.clustered),
        **features.measured(Sizes(*Y)),
    )
    if is_new:
        n_features = np.bincount(rows[has_row], minlength=model.attrs["rows"])  # that share each row
        announcements.info(
            "Hashed features: of %d features that the initialization saw, %d share their row with others; %d of %d rows are used",
            len(hash_counts),
            n_features[n_features > 1].sum(),
            np.count_nonzero(n_features),
            len(n_features),
        )


def tags_allowed(allowed: Clamp, unset: Bools) -> tuple[NDArray[np.int32], Ints]:
    """The tags that the annotation of each token allows; none for tokens without annotation, unless a single tag is possible.

    allowed (bool[T, S]): The allowed tags.
    unset (bool[T]): The tokens without annotation.
    RETURNS (int32[N], int64[T + 1]): The tags of all tokens, and where the tags of each token start.
    """
    counts = allowed.sum(axis=1)
    is_open = unset & (counts > 1)
    _, tags = np.nonzero(allowed & ~is_open[:, np.newaxis])
    starts = np.append(0, np.cumsum(np.where(is_open, 0, counts)))
    return tags.astype(np.int32), starts.astype(np.int64)


def pairs_allowed(allowed: Clamp, starts: Ints, steps: Optional[Bools] = None) -> tuple[NDArray[np.int32], Ints]:
    """The pair of a tag and the tag before it, ``before * S + tag``, at each token whose annotation allows a single pair.

    allowed (bool[T, S]): The allowed tags.
    starts (int64[B + 1]): Where the sequences start.
    steps (bool[T]): Tokens to consider; all if None.
    RETURNS (int32[N], int64[T + 1]): The pairs of all tokens, and where the pairs of each token start.
    """
    only_tag = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)  # [T] -1 for several
    has_pair = np.zeros(len(only_tag), dtype=bool)
    has_pair[1:] = (only_tag[1:] >= 0) & (only_tag[:-1] >= 0)
    # The first token of a sequence has no tag before it
    has_pair[starts[:-1][starts[:-1] < len(only_tag)]] = False
    if steps is not None:
        has_pair &= steps
    [tokens] = np.nonzero(has_pair)
    pairs = only_tag[tokens - 1] * allowed.shape[1] + only_tag[tokens]
    return pairs.astype(np.int32), np.append(0, np.cumsum(has_pair)).astype(np.int64)


def pairs_of_tags(allowed: Clamp, starts: Ints, tag_of: Optional[Ints]) -> tuple[NDArray[np.int32], Ints]:
    """All pairs of states, as `pairs_allowed`, at each token whose annotation allows a single pair of tags.

    allowed (bool[T, S]): The allowed states.
    starts (int64[B + 1]): Where the sequences start.
    tag_of (int64[S]): The tag of each state, rising; None if states are tags.
    RETURNS (int32[N], int64[T + 1]): The pairs of all tokens, and where the pairs of each token start.
    """
    if tag_of is None or len(tag_of) == 1 + tag_of.max(initial=-1):
        return pairs_allowed(allowed, starts)
    n_states = len(tag_of)
    first_of_tag = np.searchsorted(tag_of, tag_of)  # [S] the first state of the tag of each state
    # The first states stand for their tags
    is_first = first_of_tag == np.arange(n_states)
    tag_pairs, bounds = pairs_allowed(allowed & is_first, starts)
    # A pair of tags with n and m states becomes a table of n · m pairs of states, listed row by row
    n_of_tag = np.bincount(first_of_tag, minlength=n_states)  # at the first states
    before = tag_pairs // n_states
    after = tag_pairs % n_states
    sizes = n_of_tag[before] * n_of_tag[after]
    cell = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # its number within the table
    width = np.repeat(n_of_tag[after], sizes)
    state_before = np.repeat(before, sizes) + cell // width
    state_after = np.repeat(after, sizes) + cell % width
    pairs = state_before * n_states + state_after
    first_pair = np.append(0, np.cumsum(sizes))  # of each pair of tags
    return pairs.astype(np.int32), first_pair[bounds]


def check_emissions(owner: str, emissions: object) -> None:
    """Check a setting that must be emissions.

    owner (str): The architecture, for the message.
    emissions (object): The setting.
    RAISES (ValueError): CRF020 for a model whose output is not Emissions.
    """
    checks.expect(
        gives(emissions) is Emissions, owner, "emissions", emissions, "emissions, such as spacy_crf.SparseEmissions.v1"
    )
