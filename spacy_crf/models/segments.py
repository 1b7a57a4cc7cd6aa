"""Scores of whole segments: sums of the weights of their features, and scores of a neural encoder.

Weights of features live in four places (see features/segment_templates.py): at the first and at the last token of a segment, at
each of its tokens, and at the spans that are listed because they have a known feature. An encoder scores the tokens of a
segment, its first token and its last, and the mean of all its tokens. The mean is a score of the whole segment, so all segments
of up to `MOST_TOKENS` tokens are listed; longer segments have no such score.
"""

from itertools import chain
from typing import Any, ClassVar, NamedTuple, Optional, Union

import numpy as np
from spacy.tokens import Doc
from thinc.api import Model

from .. import checks
from ..arrays import each_chain, ranges
from ..checks import is_written
from ..errors import Errors, announcements
from ..features.clusters import Clusters
from ..features.extractor import IndexBuilder
from ..features.gazetteers import Gazetteer
from ..features.segment_templates import SegmentFeatureSet, segment_features
from ..features.segments import CompiledSegments, SpanIndexBuilder
from ..features.token_columns import TokenColumns
from ..inference.semi_markov import add_spans, begins_of, every_span
from ..schemes import Segments
from ..types import Floats, Ints, SegmentClamp, Settings, SpanList, TokenFeatures
from . import sparse
from .emissions import Emissions
from .neural import EncoderNode
from .node import AnnotatedDocs, Sizes, Traits, check_equal
from .sparse import Counter, ScoreKind, SparseFeatures
from .table import PairCounter

PLACES = ("begins", "ends", "tokens", "spans")


class SpanScores(NamedTuple):
    """Scores of segments of a batch of Docs, beside emissions."""

    begins: Floats  # [T, S]
    ends: Floats  # [T, S]
    tokens: Floats  # [T, S]
    spans: Floats  # [N, S]
    listed: Any  # SpanList, or None where nothing scores spans


class SegmentFeatures(SparseFeatures):
    """Features of segments. Spans that are longer than the longest segment of any label (``longest``) need none."""

    # Features of "repeats" subtract the weights of token features that a span has more than once
    kinds: ClassVar = {place: ScoreKind(place, place) for place in PLACES} | {"repeats": ScoreKind("tokens", "spans")}
    has_spans = True
    first_state = 1  # token features suffice for O
    longest = 1

    @property
    def asks_functions(self) -> bool:
        """Whether features come from functions or extensions."""
        parts = chain.from_iterable(template.parts for template in self.feature_set.templates)
        return any(part.kind == "fn" for part in parts) or super().asks_functions

    def _compile(self) -> CompiledSegments:
        return CompiledSegments(self.feature_set, self.gazetteers, self.clusters)

    def set_lists(
        self, gazetteers: dict[str, Gazetteer], clusters: Optional[dict[str, Clusters]] = None, vectors: None = None
    ) -> None:
        """Take the `gazetteers` and `clusters` that the templates read; no template of segments reads `vectors`."""
        super().set_lists(gazetteers, clusters)
        for name in self.feature_set.named(["near"]):
            if not gazetteers[name].scan:
                text = "seg.near:%s compares a segment with the likeliest of %d phrases, not all (docs/features.md)"
                announcements.info(text, name, len(gazetteers[name].entries))

    def widths(self, n_states: int) -> dict[str, int]:
        """Number of columns of each table: `n_states`."""
        return dict.fromkeys(PLACES, n_states)

    def find_spans(self, docs: list[Doc], columns: TokenColumns) -> tuple[dict[str, TokenFeatures], Optional[SpanList]]:
        """Features of the spans of `docs`, whose tokens have the attributes `columns`, and the spans that have features."""
        spans = self.tables["spans"].index
        tokens = self.tables["tokens"].index
        known = self.compiled.known_spans(docs, columns, self.longest, spans, tokens)
        return {"spans": known.rows, "repeats": known.repeats}, known.listed

    def output(self, scores: dict[str, Floats], starts: Ints, listed: Optional[SpanList]) -> SpanScores:
        """Scores of segments, from arrays of `scores` and the `listed` spans. `starts` is not used."""
        return SpanScores(**scores, listed=listed)

    def counters(self) -> dict[str, Counter]:
        """For each place of weights, a counter of pairs of a feature and a label."""
        builders: dict[str, Union[IndexBuilder, SpanIndexBuilder]] = {
            place: IndexBuilder(templates, self.tables[place].index)
            for place, templates in self.compiled.templates.items()
        }
        builders["spans"] = SpanIndexBuilder(self.compiled, self.tables["spans"].index)
        return {place: PairCounter(builder, self.tables[place]) for place, builder in builders.items()}

    def count(self, batch: AnnotatedDocs, columns: TokenColumns, counters: dict[str, Counter], sizes: Sizes) -> None:
        """Count the features of the annotated segments of a `batch`, whose tokens have the attributes `columns`, in the
        `counters` of the places. Segments are up to `sizes.longest` tokens long.
        """
        parts = []
        for clamp in each_chain(batch.allowed):
            if isinstance(clamp, SegmentClamp):
                parts.append(certain_segments(clamp, batch.starts))
        # Label l is state 1 + l
        parts.append(batch.alternatives._replace(label=1 + batch.alternatives.label))
        begin = np.concatenate([part.start for part in parts])
        end = np.concatenate([part.end for part in parts])
        state = np.concatenate([part.label for part in parts])
        length = end - begin
        tokens_of_places = {
            "begins": (begin, state),
            "ends": (end - 1, state),
            "tokens": (ranges(begin, end), np.repeat(state, length)),
        }
        for place, (tokens, states) in tokens_of_places.items():
            counters[place].add_chosen(counters[place].builder.add(columns), tokens, states)
        # Longer segments are impossible, but their tokens count
        is_short = length <= sizes.longest
        span_begin = begin[is_short]
        span_length = length[is_short].astype(np.int32)
        features = counters["spans"].builder.add(batch.docs, columns, span_begin, span_length)
        counters["spans"].add_chosen(features, np.arange(len(span_begin)), state[is_short])

    def measured(self, sizes: Sizes) -> Settings:
        """The longest segment, by the `sizes` of the corpus."""
        return {"longest": max(sizes.longest, self.longest)}

    def pack(self, tables: Settings) -> Settings:
        """Data to save: patterns, the longest segment, and `tables`."""
        patterns = self.feature_set.patterns_as_text()
        return {"patterns": patterns, "n_states": self.n_states, "longest": self.longest, "rows": tables}

    def load(self, data: Settings) -> Settings:
        """Take over the patterns and sizes in saved `data`.

        RETURNS (dict): The saved tables, by name.
        RAISES (ValueError): CRF510 if the patterns are not those the model was trained with.
        """
        patterns = self.feature_set.patterns_as_text()
        saved = data["patterns"]
        if saved != patterns:
            if not is_written(saved, patterns):
                raise ValueError(Errors.CRF510.format(setting="patterns", saved=saved, ours=patterns))
            self.feature_set = self.feature_set.with_patterns(saved)
        self.n_states = data["n_states"]
        self.longest = data["longest"]
        return data["rows"]


def SparseSegments(
    features: Optional[SegmentFeatureSet] = None, min_count: int = 1, possible_states: bool = False
) -> Model[list[Doc], SpanScores]:
    """Sums of the weights of the features of segments.

    features (SegmentFeatureSet): The templates; those of the preset if None.
    min_count (int): Features with fewer annotated segments are left out.
    possible_states (bool): Whether every feature gets a weight for every label, not only for labels that it occurs with.
    """
    features = segment_features() if features is None else features
    owner = "SparseSegments"
    checks.expect(
        isinstance(features, SegmentFeatureSet),
        owner,
        "features",
        features,
        "a feature set of segments, such as spacy_crf.segment_features.v1",
    )
    settings = sparse.counting_settings(owner, min_count, possible_states)
    stored = SegmentFeatures(features)
    return sparse.make_layer("sparse_segments", "segment_features", stored, SpanScores, sparse.init, **settings)


def certain_segments(clamp: SegmentClamp, starts: Ints) -> Segments:
    """The segments that are in every path that a clamp allows, without segments of ``O``. Their labels are states.

    clamp (SegmentClamp): What the annotation allows.
    starts (int64[B + 1]): Where the sequences start.
    """
    n_tokens = len(clamp.states)
    begins = clamp.must_begin.copy()  # [T] whether every path begins a segment here
    begins[starts[:-1][starts[:-1] < n_tokens]] = True
    has_one_state = clamp.states.sum(axis=1) == 1
    state = np.where(has_one_state, clamp.states.argmax(axis=1), 0)
    continues = ~clamp.may_begin & ~begins & has_one_state  # [T] whether every path continues the segment before
    [begin] = np.nonzero(begins & (state > 0))
    # A segment reaches up to the next token that does not continue it in every path
    stops = np.append(np.flatnonzero(~continues), n_tokens)
    end = stops[np.searchsorted(stops, begin, side="right")]
    # It is certain to end there if every path begins a segment, or the corpus ends
    is_certain = np.append(begins, True)[end]
    return Segments(begin[is_certain], end[is_certain], state[begin][is_certain].astype(np.int64))


# ---------------------------------------------------------------------------------------- scores of a neural encoder


MOST_TOKENS = 24  # in a list of all spans, which takes memory for each


class EncodedSegments(NamedTuple):
    """Scores that an encoder gives segments."""

    emissions: Emissions
    spans: SpanScores  # scores of tokens are 0


class SegmentEncoderNode(EncoderNode):
    """Node of an encoder whose last layer gives each state four scores at each token."""

    gives = EncodedSegments
    kinds = 4
    traits = Traits(learned=("longest",))  # tokens of the longest segment with a mean

    def split(self, model: Model, scores: Floats, starts: Ints) -> EncodedSegments:
        """The output of `model`: `scores` of tokens, begins and ends, and means over the tokens of spans within sequences
        (`starts`).
        """
        kinds = scores.reshape(len(scores), self.kinds, scores.shape[1] // self.kinds)  # [T, kinds, S]
        tokens, begins, ends, averaged = np.ascontiguousarray(kinds.transpose(1, 0, 2))
        listed = every_span(starts, model.attrs["longest"])
        return EncodedSegments(
            emissions=Emissions(tokens, None, starts),
            spans=SpanScores(begins, ends, np.zeros_like(tokens), means(averaged, listed), listed),
        )

    def join(self, d_output: EncodedSegments) -> Floats:
        """Backpropagate through `split`: derivatives with respect to the scores of tokens, from `d_output`: float64[T, kinds ·
        S].
        """
        spans = d_output.spans
        d_means = scatter_means(spans.spans, spans.listed)
        parts = [d_output.emissions.scores, spans.begins, spans.ends, d_means]
        return np.concatenate(parts, axis=1)

    def set_corpus_attributes(self, model: Model, sizes: Sizes) -> None:
        """Set the longest segment of `model` that has a mean, by the `sizes` of the corpus."""
        model.attrs["longest"] = min(MOST_TOKENS, max(sizes.longest, model.attrs["longest"] or 1))

    def check(self, model: Model, n_states: int) -> None:
        """Check the last layer of `model` for `n_states` states, and the longest segment with a mean. RAISES
        (ValueError): CRF509.
        """
        super().check(model, n_states)
        longest = model.attrs["longest"]
        check_equal("longest segment with a mean", type(longest) is int and 1 <= longest <= MOST_TOKENS, True)


def means(scores: Floats, listed: SpanList) -> Floats:
    """Mean of the scores of the tokens of each span: float64[N, S].

    scores (float64[T, S]): Scores of tokens.
    listed (SpanList): The spans.
    """
    # sums[t] = sum of scores before t, so the sum over a span is a difference of two sums
    sums = np.vstack([np.zeros_like(scores[:1]), scores]).cumsum(axis=0) if len(scores) else scores
    begin = begins_of(listed)
    return (sums[begin + listed.lengths] - sums[begin]) / listed.lengths[:, np.newaxis]


def scatter_means(d_spans: Floats, listed: SpanList) -> Floats:
    """Derivatives with respect to the scores of tokens: float64[T, S].

    d_spans (float64[N, S]): Derivatives with respect to `means`.
    listed (SpanList): The spans.
    """
    # Each token of a span gets its share: add it at the first token, subtract it behind the last, and sum up
    shares = d_spans / listed.lengths[:, np.newaxis]
    changes = np.zeros((len(listed.starts), d_spans.shape[1]))
    begin = begins_of(listed)
    for length in range(1, 1 + int(listed.lengths.max(initial=0))):
        spans = np.flatnonzero(listed.lengths == length)  # no two of these spans begin at the same token
        changes[begin[spans]] += shares[spans]
        changes[begin[spans] + length] -= shares[spans]
    return changes[:-1].cumsum(axis=0)


def total_of_spans(parts: list[SpanScores], tokens: Floats) -> SpanScores:
    """The sum of the scores of segments by several layers.

    parts (list[SpanScores]): The scores by each layer, which may list other spans than the others.
    tokens (float64[T, S]): Scores of tokens, for the shape of the sum if there are no layers.
    """
    if not parts:
        zeros = np.zeros_like(tokens)
        return SpanScores(zeros, zeros, zeros, np.zeros((0, tokens.shape[1])), None)
    total = parts[0]
    for part in parts[1:]:
        begin = begins_of(part.listed)
        listed, old_numbers, part_numbers = add_spans(total.listed, begin, begin + part.listed.lengths, len(tokens))
        spans = np.zeros((len(listed.lengths), tokens.shape[1]))
        spans[old_numbers] += total.spans
        spans[part_numbers] += part.spans
        total = SpanScores(
            begins=total.begins + part.begins,
            ends=total.ends + part.ends,
            tokens=total.tokens + part.tokens,
            spans=spans,
            listed=listed,
        )
    return total


def part_of_spans(d_spans: SpanScores, listed: SpanList) -> SpanScores:
    """Derivatives with respect to the scores of one layer.

    d_spans (SpanScores): Derivatives with respect to the sum of several layers.
    listed (SpanList): The spans that this layer listed.
    """
    if listed is None or d_spans.listed is None or len(listed.lengths) == len(d_spans.listed.lengths):
        return d_spans
    begin = begins_of(listed)
    _, _, numbers = add_spans(d_spans.listed, begin, begin + listed.lengths, len(d_spans.tokens))
    return d_spans._replace(spans=d_spans.spans[numbers], listed=listed)
