"""Scores of what whole segments show: sums of the weights of their features.

Weights live in four places (see features/segment_templates.py): at the first and at the last token of a segment, at each of its
tokens, and at the spans that are listed because they have a known feature.
"""

from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from thinc.api import Model, NumpyOps

from .. import checks
from ..arrays import ranges
from ..config_escapes import is_written
from ..errors import Errors, announcements
from ..features.clusters import Clusters
from ..features.extractor import IndexBuilder
from ..features.gazetteers import Gazetteer
from ..features.segment_templates import SegmentFeatureSet, segment_features
from ..features.segments import CompiledSegments, SpanIndexBuilder
from ..features.token_columns import TokenColumns
from ..inference.semi_markov import StateSegments
from ..types import Floats, SegmentClamp, SpanList, TokenFeatures
from . import sparse
from .role import AnnotatedDocs, Sizes
from .sparse import Counter, Kind, SparseFeatures, SparseRole
from .table import PairCounter

PLACES = ("begins", "ends", "tokens", "spans")


class SpanScores(NamedTuple):
    """What segment features add to the scores of a batch of Docs."""

    begins: Floats  # [T, S]
    ends: Floats  # [T, S]
    tokens: Floats  # [T, S]
    spans: Floats  # [N, S]
    listed: SpanList


class SegmentFeatures(SparseFeatures):
    """Features of segments. Spans that are longer than the longest segment of any label (``longest``) need none."""

    # What a span has more than once of the features of its tokens is taken off again
    kinds: ClassVar = {place: Kind(place, place) for place in PLACES} | {"repeats": Kind("tokens", "spans")}
    has_spans = True
    first_state = 1  # token templates say all there is to say of O
    longest = 1

    @property
    def asks_functions(self) -> bool:
        of_spans = any(part.kind == "fn" for template in self.feature_set.templates for part in template.parts)
        return of_spans or super().asks_functions

    def _compile(self) -> CompiledSegments:
        return CompiledSegments(self.feature_set, self.gazetteers, self.clusters)

    def set_lists(
        self, gazetteers: dict[str, Gazetteer], clusters: Optional[Clusters] = None, vectors: None = None
    ) -> None:
        super().set_lists(gazetteers, clusters)
        for name in self.feature_set.named(["near"]):
            if not gazetteers[name].scan:
                text = (
                    "seg.near:%s compares a segment with the likeliest of %d phrases, not with all (docs/features.md)"
                )
                announcements.info(text, name, len(gazetteers[name].entries))

    def widths(self, n_states: int) -> dict[str, int]:
        return dict.fromkeys(PLACES, n_states)

    def find_spans(self, docs: list[Doc], columns: TokenColumns) -> tuple[dict[str, TokenFeatures], Optional[SpanList]]:
        spans, tokens = self.tables["spans"].index, self.tables["tokens"].index
        known = self.compiled.known_spans(docs, columns, self.longest, spans, tokens)
        return {"spans": known.rows, "repeats": known.repeats}, known.listed

    def output(self, scores: dict[str, Floats], starts: NDArray[np.int64], listed: Optional[SpanList]) -> SpanScores:
        return SpanScores(**scores, listed=listed)

    def counters(self) -> dict[str, Counter]:
        builders = {kind: IndexBuilder(some, self.tables[kind].index) for kind, some in self.compiled.templates.items()}
        builders["spans"] = SpanIndexBuilder(self.compiled, self.tables["spans"].index)
        return {place: PairCounter(builder, self.tables[place]) for place, builder in builders.items()}

    def count(self, batch: AnnotatedDocs, columns: TokenColumns, counters: dict[str, Counter], sizes: Sizes) -> None:
        others = batch.alternatives._replace(label=1 + batch.alternatives.label)
        pairs = zip(certain_segments(batch.allowed, batch.starts), others)
        begin, end, state = (np.concatenate(both) for both in pairs)
        length = end - begin
        of_tokens = {
            "begins": (begin, state),
            "ends": (end - 1, state),
            "tokens": (ranges(begin, end), np.repeat(state, length)),
        }
        for place, chosen in of_tokens.items():
            counters[place].add_chosen(counters[place].builder.add(columns), *chosen)
        short = length <= sizes.longest
        spans = begin[short], length[short].astype(np.int32)
        found = counters["spans"].builder.add(batch.docs, columns, *spans)
        counters["spans"].add_chosen(found, np.arange(len(spans[0])), state[short])

    def measured(self, sizes: Sizes) -> dict[str, Any]:
        return {"longest": max(sizes.longest, self.longest)}

    def spell(self, tables: dict[str, Any]) -> dict[str, Any]:
        patterns = self.feature_set.spelled_patterns()
        return {"patterns": patterns, "n_states": self.n_states, "longest": self.longest, "rows": tables}

    def load(self, data: dict[str, Any]) -> dict[str, Any]:
        """RAISES (ValueError): CRF510 if the patterns are not those the model was trained with."""
        patterns = self.feature_set.spelled_patterns()
        saved = data["patterns"]
        if saved != patterns:
            if not is_written(saved, patterns):
                raise ValueError(Errors.CRF510.format(setting="patterns", saved=saved, ours=patterns))
            self.feature_set = self.feature_set.with_patterns(saved)
        self.n_states, self.longest = data["n_states"], data["longest"]
        return data["rows"]


class SegmentRole(SparseRole):
    gives = SpanScores


def SparseSegments(
    features: Optional[SegmentFeatureSet] = None, min_count: int = 1, possible_states: bool = False
) -> Model[list[Doc], SpanScores]:
    """Sums of the weights of the features of segments.

    features (SegmentFeatureSet): The templates; those of the preset if None.
    min_count (int): Features of fewer annotated segments are left out.
    possible_states (bool): Give every feature a weight for every label, not only for those it was seen with.
    """
    features = segment_features() if features is None else features
    owner, must = "SparseSegments", "a feature set of segments, such as spacy_crf.segment_features.v2"
    checks.expect(isinstance(features, SegmentFeatureSet), owner, "features", features, must)
    return Model(
        "sparse_segments",
        sparse.forward,
        init=sparse.init,
        params=dict.fromkeys(PLACES),
        attrs={
            "segment_features": SegmentFeatures(features),
            "min_count": checks.count(owner, "min_count", min_count, most=checks.ANY),
            "possible_states": checks.flag(owner, "possible_states", possible_states),
            "role": SegmentRole("segment_features"),
        },
        ops=NumpyOps(),
    )


def certain_segments(clamp: SegmentClamp, starts: NDArray[np.int64]) -> StateSegments:
    """The segments of which an annotation leaves no doubt: that are in every path a clamp allows, but for ``O``."""
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
    return StateSegments(begin[closed], end[closed], state[begin][closed].astype(np.int64))
