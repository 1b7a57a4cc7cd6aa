"""Scores of what whole segments show: sums of the weights of their features.

Weights live in four places (see features/segments.py): at the first and at the last token of a segment, at each of its tokens,
and at the spans that are listed because they have a known feature.
"""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Model
from thinc.model import deserialize_attr, serialize_attr

from ..errors import Errors, announcements
from ..features import settings
from ..features.extractor import IndexBuilder
from ..features.feature_index import FeatureIndex
from ..features.gazetteers import Gazetteer
from ..features.segment_presets import segment_features
from ..features.segments import CompiledSegments, SegmentFeatureSet, SpanIndexBuilder
from ..types import Floats, SegmentClamp, SpanList, TokenFeatures
from .emissions import Corpus, move_weights
from .kept import Kept, check_equal, check_weights
from .scorers import TableScorer, most_lexemes
from .sparse_rows import SparseRows

PLACES = ("begins", "ends", "tokens", "spans")


class SpanScores(NamedTuple):
    """What segment features add to the scores of a batch of Docs."""

    begins: Floats  # [T, S]
    ends: Floats  # [T, S]
    tokens: Floats  # [T, S]
    spans: Floats  # [N, S]
    listed: SpanList


class PreparedSegments(NamedTuple):
    """Docs whose segment features are looked up already."""

    begins: TokenFeatures
    ends: TokenFeatures
    tokens: TokenFeatures
    spans: TokenFeatures  # of N spans
    repeats: TokenFeatures  # of N spans, of the features of tokens
    listed: SpanList


class CertainSegments(NamedTuple):
    """Segments of which an annotation leaves no doubt, labelled ones only."""

    begin: NDArray[np.int64]  # [N]
    end: NDArray[np.int64]  # [N]
    state: NDArray[np.int64]  # [N]


class SegmentFeatures:
    """What sparse segment scores know: the templates, the gazetteers, and which pairs of feature and state have a weight.

    longest (int): Tokens of the longest segment of any label; longer spans need no features.
    """

    def __init__(
        self,
        feature_set: SegmentFeatureSet,
        *,
        gazetteers: Optional[dict[str, Gazetteer]] = None,
        n_states: int = 1,
        longest: int = 1,
    ):
        self.feature_set = feature_set
        self.gazetteers = gazetteers or {}
        self.n_states = n_states
        self.longest = longest
        self.rows = {place: SparseRows.empty(n_states) for place in PLACES}
        self._compiled: Optional[CompiledSegments] = None
        self._scorer: Optional[SegmentScorer] = None
        self._lock = threading.Lock()

    @property
    def compiled(self) -> CompiledSegments:
        with self._lock:
            if self._compiled is None:
                self._compiled = CompiledSegments(self.feature_set, self.gazetteers)
            return self._compiled

    @property
    def asks_functions(self) -> bool:
        """Whether functions or extensions give features."""
        of_spans = any(part.kind == "fn" for template in self.feature_set.templates for part in template.parts)
        return of_spans or bool(self.compiled.reader.item_sources)

    def set_gazetteers(self, gazetteers: dict[str, Gazetteer]) -> None:
        """RAISES (ValueError): CRF106 if the templates name another one."""
        self.feature_set.reader(gazetteers)
        self.gazetteers = gazetteers
        self._compiled = self._scorer = None
        for name in self.feature_set.named(["near"]):
            if not gazetteers[name].scan:
                text = (
                    "seg.near:%s compares a segment with the likeliest of %d phrases, not with all (docs/features.md)"
                )
                announcements.info(text, name, len(gazetteers[name].entries))

    @property
    def tables(self) -> dict[str, SparseRows]:
        """The pairs that have a weight, by the name of their parameter."""
        return self.rows

    def with_tables(self, tables: dict[str, SparseRows]) -> "SegmentFeatures":
        """The same with other pairs."""
        settings = {"gazetteers": self.gazetteers, "n_states": self.n_states, "longest": self.longest}
        features = SegmentFeatures(self.feature_set, **settings)
        features.rows = tables
        return features

    def prepare(self, docs: list[Doc]) -> PreparedSegments:
        compiled = self.compiled
        columns = compiled.reader.read(docs)
        known = compiled.known_spans(docs, columns, self.longest, self.rows["spans"].index, self.rows["tokens"].index)
        return PreparedSegments(
            compiled.begins.rows(columns, self.rows["begins"].index),
            compiled.ends.rows(columns, self.rows["ends"].index),
            compiled.tokens.rows(columns, self.rows["tokens"].index),
            known.rows,
            known.repeats,
            known.listed,
        )

    def scorer(self, weights: list[NDArray[np.float32]]) -> "SegmentScorer":
        """The scorer for these weights by place, kept until ``forget_scores`` or until the arrays are others."""
        scorer = self._scorer
        if scorer is None or any(known is not given for known, given in zip(scorer.weights, weights)):
            scorer = self._scorer = SegmentScorer(self, weights)
        return scorer

    def forget_scores(self) -> None:
        """To be called when weights were changed in place, as thinc's optimizers do."""
        self._scorer = None

    def slots(self, weights: dict[str, NDArray]) -> dict[str, Floats]:
        """Weights by place, as the kernels add them up."""
        return {place: rows.slots(weights[place]) for place, rows in self.rows.items()}

    def __getstate__(self) -> dict[str, Any]:
        """For copies and child processes: caches and the lock stay behind."""
        return {**self.__dict__, "_compiled": None, "_scorer": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def to_dict(self) -> dict[str, Any]:
        return {
            "templates": self.feature_set.spelled(),
            "patterns": self.feature_set.spelled_patterns(),
            "gazetteers": {name: gazetteer.to_dict() for name, gazetteer in self.gazetteers.items()},
            "n_states": self.n_states,
            "longest": self.longest,
            "rows": {place: rows.to_dict() for place, rows in self.rows.items()},
        }

    def from_dict(self, data: dict[str, Any]) -> "SegmentFeatures":
        """The same templates with what was saved.

        RAISES (ValueError): CRF301 or CRF510 if the templates or patterns are not those the model was trained with.
        """
        if data["templates"] != self.feature_set.spelled():
            differing = set(map(str, data["templates"])) ^ set(map(str, self.feature_set.spelled()))
            raise ValueError(Errors.CRF301.format(templates=", ".join(sorted(differing))))
        patterns = self.feature_set.spelled_patterns()
        if data.get("patterns", patterns) != patterns:  # earlier models don't say
            raise ValueError(Errors.CRF510.format(setting="patterns", saved=data["patterns"], ours=patterns))
        features = SegmentFeatures(
            self.feature_set,
            gazetteers={name: Gazetteer.from_dict(saved) for name, saved in data["gazetteers"].items()},
            n_states=data["n_states"],
            longest=data["longest"],
        )
        features.rows = {place: SparseRows.from_dict(data["rows"][place]) for place in PLACES}
        return features


@serialize_attr.register(SegmentFeatures)
def _serialize_features(_, value: SegmentFeatures, name: str, model: Model) -> bytes:
    return srsly.msgpack_dumps(value.to_dict())


@deserialize_attr.register(SegmentFeatures)
def _deserialize_features(default: SegmentFeatures, value: bytes, name: str, model: Model) -> SegmentFeatures:
    return default.from_dict(srsly.msgpack_loads(value))


def SparseSegments(
    features: Optional[SegmentFeatureSet] = None, min_count: int = 1, possible_states: bool = False
) -> Model[list[Doc], SpanScores]:
    """Sums of the weights of the features of segments.

    features (SegmentFeatureSet): The templates; those of the preset if None.
    min_count (int): Features of fewer annotated segments are left out.
    possible_states (bool): Give every feature a weight for every label, not only for those it was seen with.
    """
    features = segment_features() if features is None else features
    settings.require(
        isinstance(features, SegmentFeatureSet), "features", features, "give spacy_crf.segment_features.v1"
    )
    return Model(
        "sparse_segments",
        _forward,
        init=_init,
        params=dict.fromkeys(PLACES),
        attrs={
            "segment_features": SegmentFeatures(features),
            "min_count": settings.count("min_count", min_count),
            "possible_states": settings.flag("possible_states", possible_states),
            "kept": Kept(("segment_features",), (), _check),
        },
    )


def _forward(model: Model, docs: list[Doc], is_train: bool) -> tuple[SpanScores, Callable]:
    features: SegmentFeatures = model.attrs["segment_features"]
    if not is_train:
        return features.scorer([model.get_param(place) for place in PLACES])(docs), _no_backprop
    features.forget_scores()
    prepared = features.prepare(docs)
    scores = score_segments(features, prepared, features.slots({place: model.get_param(place) for place in PLACES}))

    def backprop(d_scores: SpanScores) -> list[Doc]:
        rows = features.rows
        for place in PLACES:
            gradient = rows[place].scatter(getattr(prepared, place), getattr(d_scores, place))
            if place == "tokens":
                gradient += rows[place].scatter(prepared.repeats, d_scores.spans)
            model.inc_grad(place, gradient.astype(np.float32))
        return []

    return scores, backprop


def _no_backprop(d_scores: SpanScores) -> list[Doc]:
    return []


class SegmentScorer:
    """Scores the segments of Docs with fixed weights: what prediction runs.

    weights (List[float32[W]]): By place.
    """

    def __init__(self, features: SegmentFeatures, weights: list[NDArray[np.float32]]):
        self.weights = weights
        self._features = features
        compiled, rows = features.compiled, features.rows
        of_place = dict(zip(PLACES, weights))
        self._by_token = {
            place: TableScorer(getattr(compiled, place), rows[place], of_place[place]) for place in PLACES[:3]
        }
        self._span_slots = rows["spans"].slots(of_place["spans"])
        compiled.reader.max_lexemes = most_lexemes(self._by_token.values())

    def __call__(self, docs: list[Doc]) -> SpanScores:
        features, rows = self._features, self._features.rows
        columns = features.compiled.reader.read(docs)
        known = features.compiled.known_spans(
            docs, columns, features.longest, rows["spans"].index, rows["tokens"].index
        )
        scores = {place: np.zeros((len(columns.lexemes), features.n_states)) for place in PLACES[:3]}
        for place, scorer in self._by_token.items():
            scorer.add(columns, scores[place])
        spans = np.zeros((len(known.listed.lengths), features.n_states))
        if rows["spans"].n_weights:
            rows["spans"].add_scores(known.rows, self._span_slots, spans)
        if len(known.repeats.rows):
            rows["tokens"].add_scores(known.repeats, self._by_token["tokens"].slots, spans)
        return SpanScores(**scores, spans=spans, listed=known.listed)


def score_segments(
    features: SegmentFeatures, prepared: PreparedSegments, slots: dict[str, Floats], *, threads: int = 1
) -> SpanScores:
    """Scores of Docs whose features are looked up, with weights spread into slots."""
    n_tokens, n_spans = len(prepared.listed.starts) - 1, len(prepared.listed.lengths)
    sizes = {"begins": n_tokens, "ends": n_tokens, "tokens": n_tokens, "spans": n_spans}
    scores = {place: np.zeros((size, features.n_states)) for place, size in sizes.items()}
    for place in PLACES:
        if features.rows[place].n_weights:
            features.rows[place].add_scores(getattr(prepared, place), slots[place], scores[place], threads=threads)
    if len(prepared.repeats.rows):
        features.rows["tokens"].add_scores(prepared.repeats, slots["tokens"], scores["spans"], threads=threads)
    return SpanScores(**scores, listed=prepared.listed)


def certain_segments(clamp: SegmentClamp, starts: NDArray[np.int64]) -> CertainSegments:
    """The segments that are in every path a clamp allows, but for ``O``."""
    n_tokens = len(clamp.states)
    opens = clamp.must_begin.copy()
    opens[starts[:-1][starts[:-1] < n_tokens]] = True
    single = clamp.states.sum(axis=1) == 1
    state = np.where(single, clamp.states.argmax(axis=1), 0)
    joined = ~clamp.may_begin & ~opens & single
    [begin] = np.nonzero(opens & (state > 0))
    # the end: the first token behind that does not surely go on
    stops = np.append(np.flatnonzero(~joined), n_tokens)
    end = stops[np.searchsorted(stops, begin, side="right")]
    closed = np.append(opens, True)[end]
    return CertainSegments(begin[closed], end[closed], state[begin][closed].astype(np.int64))


def _init(model: Model, X: Optional[Corpus] = None, Y: Optional[tuple[Vocab, int, int]] = None) -> None:
    """Counts the features of the annotated segments in one pass over the corpus. Those that are there already stay.

    X (Corpus): None to leave everything as it is. Y: The vocab, the number of states, and the longest segment.
    """
    if X is None or Y is None:
        return
    vocab, n_states, longest = Y
    resize_segments(model, n_states)
    old: SegmentFeatures = model.attrs["segment_features"]
    compiled = old.compiled
    compiled.reader.keep_names(True)
    collectors = {
        place: _PairCollector(IndexBuilder(getattr(compiled, place), old.rows[place].index), old.rows[place])
        for place in PLACES[:3]
    }
    collectors["spans"] = _PairCollector(SpanIndexBuilder(compiled, old.rows["spans"].index), old.rows["spans"])
    for batch in X():
        columns = compiled.reader.read(batch.docs)
        others = batch.alternatives._replace(label=1 + batch.alternatives.label)
        pairs = zip(certain_segments(batch.allowed, batch.starts), others)
        begin, end, state = (np.concatenate(columns) for columns in pairs)
        length = (end - begin).astype(np.int32)
        inside = np.repeat(end - np.cumsum(length), length) + np.arange(length.sum())
        for place, at, states in (
            ("begins", begin, state),
            ("ends", end - 1, state),
            ("tokens", inside, np.repeat(state, length)),
        ):
            collectors[place].add(collectors[place].builder.add(columns), at, states)
        short = length <= longest
        spans = collectors["spans"].builder.add(batch.docs, columns, begin[short], length[short])
        collectors["spans"].add(spans, np.arange(int(short.sum())), state[short])
    features = SegmentFeatures(
        old.feature_set, gazetteers=old.gazetteers, n_states=n_states, longest=max(longest, old.longest)
    )
    for place, collector in collectors.items():
        rows = collector.freeze(model.attrs["min_count"], model.attrs["possible_states"], vocab)
        move_weights(model, place, old.rows[place], rows)
        features.rows[place] = rows
    model.attrs["segment_features"] = features


def _check(model: Model, n_states: int) -> None:
    features: SegmentFeatures = model.attrs["segment_features"]
    features.feature_set.reader(features.gazetteers)
    check_equal("states of the segment features", features.n_states, n_states)
    for place, rows in features.rows.items():
        check_equal(f"columns of {place}", rows.n_columns, n_states)
    check_weights(model, {place: (rows.n_weights,) for place, rows in features.rows.items()})


class _PairCollector:
    """Collects the pairs of feature and state that meet in annotated segments."""

    def __init__(self, builder: "IndexBuilder | SpanIndexBuilder", known: SparseRows):
        self.builder = builder
        self._known = known
        self._pairs = [known.rows_of_pairs() * known.n_columns + known.pair_columns]
        self._counts = np.zeros(0, dtype=np.int64)

    def add(self, features: TokenFeatures, at: NDArray[np.int64], states: NDArray[np.int64]) -> None:
        """features: Of tokens or spans; at (int64[M]): which of them, and states (int64[M]): the state of each."""
        counts = np.diff(features.starts)[at]
        reference = np.repeat(features.starts[:-1][at] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        rows = features.rows[reference].astype(np.int64)
        self._pairs.append(np.unique(rows * self._known.n_columns + np.repeat(states, counts)))
        met = np.bincount(rows, minlength=len(self._counts))
        met[: len(self._counts)] += self._counts
        self._counts = met

    def freeze(self, min_count: int, possible: bool, vocab: Vocab) -> SparseRows:
        counts = np.zeros(len(self.builder), dtype=np.int64)
        counts[: len(self._counts)] = self._counts[: len(counts)]
        keep = counts >= min_count
        keep[: len(self._known.index)] = True
        spans = isinstance(self.builder, SpanIndexBuilder)
        index: FeatureIndex = self.builder.freeze(keep) if spans else self.builder.freeze(keep, vocab)
        n_columns, met = self._known.n_columns, counts[keep]
        met[: len(self._known.index)] += self._known.counts
        if possible:  # every label, but not O
            starts = np.arange(len(index) + 1, dtype=np.int64) * (n_columns - 1)
            columns = np.tile(np.arange(1, n_columns, dtype=np.int32), len(index))
            return SparseRows(index, starts, columns, n_columns, met)
        rows, columns = np.divmod(np.unique(np.concatenate(self._pairs)), n_columns)
        of_kept = keep[rows]
        rows, columns = (np.cumsum(keep) - 1)[rows[of_kept]], columns[of_kept].astype(np.int32)
        starts = np.append(0, np.cumsum(np.bincount(rows, minlength=len(index)))).astype(np.int64)
        return SparseRows(index, starts, columns, n_columns, met)


def resize_segments(model: Model, n_states: int) -> None:
    """Makes room for new states behind those that are there. A feature gets a weight for one when training meets them together,
    or at once, where it has one for every label."""
    old: SegmentFeatures = model.attrs["segment_features"]
    if old.n_states == n_states:
        return
    features = SegmentFeatures(old.feature_set, gazetteers=old.gazetteers, n_states=n_states, longest=old.longest)
    added = range(max(1, old.n_states), n_states) if model.attrs["possible_states"] else ()
    for place, rows in old.rows.items():
        features.rows[place] = rows.resized(n_states, np.arange(old.n_states), added)
        move_weights(model, place, rows, features.rows[place])
    model.attrs["segment_features"] = features
