"""The component for spans that may overlap: a set of chains over the same tokens."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import pairwise
from typing import Any, NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example

from .. import checks
from ..errors import announcements
from ..features.doc_batch import DocBatch, Labelling
from ..inference.chain_set import split
from ..inference.span_choice import LEAST, places_of, prices_of
from ..inference.structure import LikelySpans
from ..models.node import AnnotatedDocs
from ..schemes import NO_SEGMENTS, SEGMENTS, Segments, get_scheme
from ..types import Floats, Ints, PathScores, Settings
from .annotation.entities import KEYS, GoldReport
from .annotation.spans import Groups, Slot, Spans, check_groups, groups_of, levels_of
from .chain_set import Chain, ChainSetPipe, SetTraining
from .decoding import Parts, without_edges
from .prediction import CRFEntityRecognizer, MinProb, label_thresholds, question_about, read_min_prob
from .probabilities import Batch

_NEGLIGIBLE = 1e-12  # on one of several levels


class FoundSpans(NamedTuple):
    """The spans of a batch of Docs, laid end to end, in their order."""

    segments: Segments
    probabilities: Floats  # [N]
    doc_starts: Ints  # [D + 1]

    def of_docs(self) -> list[bytes]:
        """A value for each Doc, equal in two predictions that find the same."""
        rows = np.stack(self.segments, axis=1)
        bounds = np.searchsorted(self.segments.start, self.doc_starts)
        return [rows[a:b].tobytes() for a, b in pairwise(bounds.tolist())]


class SpanChain(Chain):
    """The chain of some labels, on one of their levels: `slots` (Sequence[Slot])."""

    of: "CRFSpanCategorizer"
    annotation: Spans

    def __init__(self, of: "CRFSpanCategorizer", slots: Sequence[Slot]):
        labels = [slot.label for slot in slots]
        self.numbers = np.array([of.labels.index(label) for label in labels], dtype=np.int64)
        places = np.array([of.annotation.slots.index(slot) for slot in slots], dtype=np.int64)
        super().__init__(of, of.annotation.of_chain(slots), labels, places, decode="spans", min_prob=1.0)
        self.cfg["confidence"] = True

    def _connect_outer(self) -> None:
        """The set has connected them."""

    def parts(self) -> Parts:
        """Take over the present thresholds of the set, and return the parts by which the chain predicts."""
        self.cfg["min_prob"] = dict(zip(self.labels, self.of.thresholds()[self.numbers].tolist()))
        return super().parts()

    def ask(self, docs: DocBatch, scores: PathScores) -> "SpanQuestions":
        """The answers of the chain about a batch of Docs, by the `scores` of the chain, under its rules and the spans that each
        Doc forces and blocks."""
        return SpanQuestions(self, Batch(question_about(self.parts(), docs, scores)))


class SpanQuestions:
    """The likely spans of a batch of Docs in one chain, their probabilities, and the best set of spans. Labels are numbers of the
    chain's labels."""

    def __init__(self, chain: SpanChain, batch: Batch):
        self._chain = chain
        self._batch = batch
        self._most_probable = batch.most_probable()
        self.has_rules = self._most_probable is not None
        self.rules_ask_for_spans = batch.rules_ask_for_spans
        self.may_touch = chain.decoding.spans_may_touch

    def likely_spans(self, least: float) -> LikelySpans:
        """All spans that may belong to the best set.

        least (float): The least probability that is enough, on any level.
        """
        on_level = least_on_level(least, self._chain.annotation.n_levels)
        return self._batch.likely_spans(LEAST if self.rules_ask_for_spans else on_level)

    def span_probabilities(self, spans: Segments) -> Floats:
        """Probability of N spans, which are sorted by first token: float64[N]."""
        return self._batch.span_probabilities(spans)

    def choose(self, spans: Segments, gains: Floats) -> Segments:
        """The best set of some spans by their `gains` (float64[N]), see `Batch.choose`."""
        return self._batch.choose(spans, gains, self._most_probable)


class SpanTraining(SetTraining):
    """Training of the component for spans."""

    pipe: "CRFSpanCategorizer"

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        """The annotation in the form in which the model counts features, see `Training.to_count`; `report` gets texts without
        any."""
        key = self.pipe.annotation.key
        for example in examples:
            if key not in example.reference.spans:
                report.add(f"texts have no doc.spans['{key}'], and count as not annotated", f"'{example.text[:40]}'")
        return super().to_count(docs, examples, report)._replace(docs=self._with_outer(docs, examples))

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        """The annotation in the form in which optimizers learn from examples, see `Training.data`."""
        return super().data(examples, kind)._replace(docs=self.docs_of(examples))

    def docs_of(self, examples: list[Example]) -> list[Doc]:
        """The predicted Docs of examples, as the model reads them in training."""
        return self._with_outer(super().docs_of(examples), examples)

    def _with_outer(self, docs: list[Doc], examples: list[Example]) -> list[Doc]:
        """The Docs with the annotated outermost spans, if templates read them."""
        if self.pipe.reads_outer:
            docs = DocBatch(docs)
            docs.labelling = self.pipe.annotation.outermost(examples)
        return docs


class OutermostSpans:
    """Labels Docs for templates that read outer, in prediction: the best labelling of each outermost chain, without rules."""

    def __init__(self, pipe: "CRFSpanCategorizer"):
        self._pipe = pipe

    def __call__(self, docs: DocBatch) -> Labelling:
        pipe = self._pipe
        no_spans = pipe.annotation.labelling(NO_SEGMENTS)
        outer = [chain for chain in pipe.chains if not chain.annotation.level]
        if len(outer) == len(pipe.chains):
            return no_spans
        # The outermost chains read no spans
        unlabelled = copy(docs)
        unlabelled.labelling = no_spans
        scores = pipe.model.predict(unlabelled)
        found = []
        for chain, chain_scores in zip(outer, split(scores, [chain.states for chain in outer])):
            parts, decoded_scores = without_edges(chain.parts(), docs, chain_scores)
            tags = parts.decoding.best_tags(decoded_scores, None)
            spans = chain.decoding.segments(tags, scores.starts)
            found.append(spans._replace(label=chain.slots[spans.label]))
        return pipe.annotation.labelling(Segments.join(found))


def _best_spans(levels: Sequence[SpanQuestions], thresholds: Floats) -> LikelySpans:
    """The spans that a group of labels writes, with their probabilities on any level. A span has to reach the threshold of its
    label with this probability. From these spans each level chooses its best set, by the probabilities on the level.

    thresholds (float64[L]): The least probability of each label of the group.
    """
    prices = prices_of(thresholds)
    likely = [level.likely_spans(float(prices.min(initial=1.0))) for level in levels]
    if len(levels) == 1:
        spans, probabilities = likely[0]
        on_level = [probabilities]
    else:
        spans = _each_once([of_level.segments for of_level in likely])
        on_level = [level.span_probabilities(spans) for level in levels]
        probabilities = _on_any(on_level)
    # A span is worth its probability, and costs the price that belongs to the threshold of its label
    gains = probabilities - prices[spans.label]
    enough = gains >= 0.0
    # Without rules, spans that do not touch are the best set themselves
    if not any(level.has_rules for level in levels) and _are_apart(spans.only(enough), levels[0].may_touch):
        return LikelySpans(spans.only(enough), probabilities[enough])
    prices_on_level = least_on_level(prices, len(levels))[spans.label]
    is_written = np.zeros(len(gains), dtype=bool)
    required = []  # spans of each level that are not likely, but that rules ask for
    for level, level_probabilities in zip(levels, on_level):
        gains_on_level = np.where(enough, level_probabilities - prices_on_level, gains)
        is_possible = (level_probabilities > 0.0) & (level.rules_ask_for_spans | enough)
        chosen = level.choose(spans.only(is_possible), gains_on_level[is_possible])
        index = places_of(chosen, spans)  # -1 for spans that are not likely
        is_written[index[index >= 0]] = True
        required.append(chosen.only(index < 0))
    written = LikelySpans(spans.only(is_written), probabilities[is_written])
    if not any(len(part.start) for part in required):
        return written
    unlikely = _each_once(required)
    probabilities_of_unlikely = _on_any([level.span_probabilities(unlikely) for level in levels])
    return LikelySpans.join([written, LikelySpans(unlikely, probabilities_of_unlikely)])


def least_on_level(least: Any, n_levels: int) -> Any:
    """The probability on a single level that corresponds to the probability `least` of a span to be on any of `n_levels` levels,
    if it is equal on all levels."""
    # 1 - (1 - on_level) ** n_levels = least, as if the levels were independent
    return 1.0 - (1.0 - least) ** (1.0 / n_levels)


def _each_once(parts: Sequence[Segments]) -> Segments:
    """The spans of several lists, each once, sorted by first token."""
    columns = np.concatenate([np.stack(part, axis=1) for part in parts])
    return Segments.of_rows(np.unique(columns, axis=0).tolist())


def _on_any(on_level: Sequence[Floats]) -> Floats:
    """The probability that a span is on any level, from its probabilities on each level, as if these were independent:
    float64[N]."""
    return 1.0 - np.prod([1.0 - probabilities for probabilities in on_level], axis=0)


def _are_apart(spans: Segments, may_touch: bool) -> bool:
    """Whether no two of the spans, which are sorted by first token, overlap; and none touch, unless `may_touch` allows it."""
    end_before = np.maximum.accumulate(spans.end)[:-1]
    gap = spans.start[1:] - end_before
    return bool((gap >= (0 if may_touch else 1)).all())


class CRFSpanCategorizer(ChainSetPipe, CRFEntityRecognizer):
    """Finds spans that may overlap (factory ``crf_spancat``), and writes them to ``doc.spans`` with their probabilities.

    spans_key (str), threshold (MinProb), max_positive (Optional[int]), groups (Groups), scheme (str): See `make_crf_spancat`.
    """

    annotation: Spans
    threshold_setting = "threshold"

    def __init__(
        self,
        vocab,
        model,
        name="crf_spancat",
        *,
        spans_key: str = "sc",
        threshold: MinProb = 0.5,
        max_positive: Optional[int] = None,
        groups: Groups = "label",
        nested: bool = False,
        **settings,
    ):
        self.name = name
        checks.text(self.owner, "spans_key", spans_key)
        if max_positive is not None:
            checks.count(self.owner, "max_positive", max_positive)
        for key in KEYS:
            checks.expect(
                settings.get(key) != spans_key,
                self.owner,
                key,
                settings.get(key),
                f"another key than spans_key, '{spans_key}'",
            )
        threshold = read_min_prob(self.owner, threshold, "threshold")
        groups = check_groups(self.owner, groups)
        self._chooses_groups = groups == "auto"
        # Chains of tags or of segments, as the model has it
        node = getattr(model, "attrs", {}).get("node")
        self.labelled = "segments" if node is not None and node.traits.labelled == "segments" else "tokens"
        checks.flag(self.owner, "nested", nested)
        super().__init__(
            vocab,
            model,
            name,
            fixed_settings=("scheme", "groups", "nested"),
            spans_key=spans_key,
            threshold=threshold,
            max_positive=max_positive,
            groups=groups,
            nested=nested,
            levels={},  # `initialize` counts them in the training data
            **settings,
        )
        if not nested:
            super()._connect_outer()

    def make_training(self) -> SpanTraining:
        """RETURNS (SpanTraining): The initial state of the training of all chains."""
        return SpanTraining(self)

    def _connect_outer(self) -> None:
        for features in self.feature_stores:
            if features.feature_set.reads_outer:
                features.set_stage(features.feature_set, OutermostSpans(self))

    def _labels_changed(self) -> None:
        super()._labels_changed()
        # The level of each slot; the last entry, 0, is for the label -1 of states without a slot
        level = np.array([*(slot.level for slot in self.annotation.slots), 0])
        self.model.attrs["inner"] = level[self.decoding.label_of_states] > 0

    def make_chains(self) -> list[SpanChain]:
        """A chain for each group of labels, on each of its levels."""
        return [SpanChain(self, slots) for slots in self.annotation.chains]

    def make_annotation(self) -> Spans:
        """The annotation by the present settings."""
        scheme = SEGMENTS if self.labelled == "segments" else get_scheme(self.cfg["scheme"])
        return Spans(scheme, self.cfg["spans_key"], self.cfg["groups"], self.cfg["levels"])

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Choose the scheme, the groups and the levels by the annotated spans, as far as the config leaves them open."""
        super().choose_settings(get_examples)
        if self._chooses_groups:
            docs = (example.reference for example in get_examples())
            self.cfg["groups"] = [list(self.labels)] if self.cfg["nested"] else groups_of(docs, self.annotation)
            self._labels_changed()
        if self.cfg["nested"]:
            self.cfg["levels"] = levels_of((example.reference for example in get_examples()), self.annotation)
            self._labels_changed()
        chains = ["+".join(map(str, slots)) for slots in self.annotation.chains]
        announcements.info("%s: chains of labels: %s", self.name, ", ".join(chains))

    def check_settings(self) -> None:
        """Check the settings against the labels. RAISES (ValueError): If rules or thresholds do not fit them."""
        super().check_settings()
        self.thresholds()

    @property
    def key(self) -> str:
        """Key of doc.spans where spans are read and written, as spaCy's `spancat` names it."""
        return self.cfg["spans_key"]

    def thresholds(self) -> Floats:
        """The least probability of a span of each label: float64[L]."""
        thresholds = label_thresholds(self.name, self.cfg["threshold"], self.labels)
        return np.zeros(len(self.labels)) if thresholds is None else thresholds

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc], scores: Optional[PathScores] = None) -> FoundSpans:
        """Find the spans that reach the threshold of their label. Where spans of one chain overlap, the chain chooses the most
        valuable set of spans, as the other components do with decode = "spans".

        docs (Iterable[Doc]): A batch of Docs, which are not changed.
        scores (Optional[PathScores]): The model's scores of the Docs; None to compute them.
        """
        batch = self.require_ready(docs)
        scores = self.model.predict(batch) if scores is None else scores
        thresholds = self.thresholds()
        levels_of_group: dict[tuple[int, ...], list[SpanQuestions]] = {}  # by the numbers of the labels of the group
        for chain, chain_scores in zip(self.chains, split(scores, [chain.states for chain in self.chains])):
            levels = levels_of_group.setdefault(tuple(chain.numbers.tolist()), [])
            levels.append(chain.ask(batch, chain_scores))
        parts = []
        for numbers, levels in levels_of_group.items():
            label_numbers = np.array(numbers, dtype=np.int64)  # [L] from labels of the group to labels of the component
            segments, segment_probabilities = _best_spans(levels, thresholds[label_numbers])
            parts.append(LikelySpans(segments._replace(label=label_numbers[segments.label]), segment_probabilities))
        (begin, end, label), probabilities = LikelySpans.join(parts)
        order = np.lexsort((label, end, begin))  # by begin, then end, then label
        most_labels = self.cfg["max_positive"]
        if most_labels is not None and len(order):
            # Rank the labels at the same tokens by their probabilities, from 0 for the most probable one
            by_tokens = np.lexsort((-probabilities, end, begin))
            # Whether a span has other tokens than the one before it
            is_first = np.append(True, (np.diff(begin[by_tokens]) != 0) | (np.diff(end[by_tokens]) != 0))
            rank = np.arange(len(by_tokens)) - np.flatnonzero(is_first)[np.cumsum(is_first) - 1]
            is_kept = np.zeros(len(by_tokens), dtype=bool)
            is_kept[by_tokens[rank < most_labels]] = True
            order = order[is_kept[order]]
        return FoundSpans(Segments(begin[order], end[order], label[order]), probabilities[order], batch.bounds)

    by_probability: bool = True

    def threshold_settings(self, threshold: MinProb) -> Settings:
        """The settings by which the component finds all spans that are at least as probable as the `threshold`."""
        return {"threshold": threshold}

    def set_annotations(self, docs: Iterable[Doc], found: FoundSpans) -> None:
        """Write the spans that `predict` has found in Docs to ``doc.spans[spans_key]``, with their probabilities as
        ``attrs["scores"]``."""
        docs = list(docs)
        key = self.cfg["spans_key"]
        for vocab in {doc.vocab for doc in docs}:
            self.annotation.add_labels_to(vocab)
        hashes = [self.vocab.strings[label] for label in self.labels]
        rows = np.stack(found.segments, axis=1).tolist()
        bounds = np.searchsorted(found.segments.start, found.doc_starts).tolist()
        for n, (doc, shift) in enumerate(zip(docs, found.doc_starts.tolist())):
            of_doc = slice(bounds[n], bounds[n + 1])
            doc.spans[key] = SpanGroup(
                doc,
                name=key,
                spans=[Span(doc, b - shift, e - shift, label=hashes[label]) for b, e, label in rows[of_doc]],
                attrs={"scores": found.probabilities[of_doc]},
            )

    def span_probabilities(
        self, doc: Doc, min_prob: float = 0.01, *, keep_annotation: bool = False
    ) -> list[tuple[Span, float]]:
        """All spans with a probability of at least `min_prob`, on any of their levels, see `CRFPipe.span_probabilities`.

        doc (Doc), keep_annotation (bool): The arguments of that method.
        RETURNS (List[Tuple[Span, float]]): Spans with labels, and their probabilities; the most probable first.
        """
        least = min(min_prob, _NEGLIGIBLE) if self.cfg["levels"] else min_prob
        found = super().span_probabilities(doc, least, keep_annotation=keep_annotation)
        # P(on any level) = 1 - prod(1 - P(on the level)), as if the levels were independent
        if not self.cfg["levels"]:
            return found
        absent: dict[tuple[int, int, str], float] = {}  # probability that a span is on no level
        for span, probability in found:
            place = span.start, span.end, span.label_
            absent[place] = absent.get(place, 1.0) * (1.0 - probability)
        likely = {place: 1.0 - rest for place, rest in absent.items() if 1.0 - rest >= min_prob}
        in_order = sorted(likely.items(), key=lambda item: -item[1])
        return [(Span(doc, begin, end, label=label), p) for (begin, end, label), p in in_order]

    def chain_for(self, doc: Doc, span: Span) -> SpanChain:
        """The chain of the label of a span, on the level where the span is most probable in the Doc."""
        outermost = self.chain(span.label_)
        place = (span.start, span.end, span.label_)
        if outermost.annotation.n_levels == 1:
            return outermost

        def probability(chain: SpanChain) -> float:
            found = chain.span_probabilities(doc, _NEGLIGIBLE)
            return next((p for one, p in found if (one.start, one.end, one.label_) == place), 0.0)

        return max((chain for chain in self.chains if span.label_ in chain.labels), key=probability)

    # --------------------------------------------------------------------------------------------------- saving

    def _take_settings(self, saved: Settings) -> None:
        if self._chooses_groups:
            self.cfg["groups"] = saved["groups"]
        self.cfg["levels"] = saved["levels"]
        super()._take_settings(saved)
