"""The component for spans that may overlap: a set of chains over the same tokens. Each chain is a component that shares features
and weights with the others."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from heapq import nlargest
from itertools import chain as links
from itertools import pairwise, product
from typing import Any, NamedTuple, Optional

import numpy as np
from spacy.tokens import Doc, Span, SpanGroup
from spacy.training import Example
from thinc.api import Optimizer

from .. import checks
from ..constraints.rule import Rule
from ..errors import Errors, announcements, cant_train
from ..features.doc_batch import DocBatch
from ..inference.chain_set import ChainSet, of_states, split
from ..inference.structure import LikelySpans
from ..inference.threads import default_threads
from ..models.chain_set import chain_of, check_inner
from ..models.node import AnnotatedDocs
from ..schemes import SEGMENTS, Segments, get_scheme
from ..types import Floats, Ints, SetClamp
from .annotation.annotation import GoldReport
from .annotation.spans import Groups, Slot, Spans, check_groups, groups_of, levels_of
from .components import CRFEntityRecognizer
from .labels import only_docs
from .parts import Parts
from .prediction import CRFPipe, MinProb, check_min_prob, labelling, least_of_labels, predict
from .preset_annotation import BLOCKED, FORCED
from .supervision import KEYS
from .training import Training

_CERTAIN = 0.5  # spans of one chain with at least this probability do not overlap
_NEGLIGIBLE = 1e-12  # on one of several levels


class FoundSpans(NamedTuple):
    """The spans of a batch of Docs, laid end to end, in their order."""

    segments: Segments
    probabilities: Floats  # [N]
    doc_starts: Ints  # [D + 1]

    def of_docs(self) -> list[bytes]:
        """A value for each Doc, equal in two predictions that find the same."""
        rows, bounds = np.stack(self.segments, axis=1), np.searchsorted(self.segments.start, self.doc_starts)
        return [rows[a:b].tobytes() for a, b in pairwise(bounds.tolist())]


class Chain(CRFPipe):
    """One chain of a set as a component of its own.

    of (CRFSpanCategorizer): The component of the set. slots (Sequence[Slot]): The labels of the chain, on one of their levels.
    """

    def __init__(self, of: "CRFSpanCategorizer", slots: Sequence[Slot]):
        labels = [slot.label for slot in slots]
        self.of, self.labelled = of, of.labelled
        self.numbers = np.array([of.labels.index(label) for label in labels], dtype=np.int64)
        self.slots = np.array([of.annotation.slots.index(slot) for slot in slots], dtype=np.int64)
        self.states = np.flatnonzero(np.isin(of.decoding.label_of_states, [-1, *self.slots]))
        settings = {name: of.cfg[name] for name in ("max_words", *KEYS)}
        shared = {"loss": of.loss, "constraints": of.rules_for(labels), **settings}
        model, annotation = chain_of(of.model, self.states), of.annotation.of_chain(slots)
        super().__init__(of.vocab, model, of.name, annotation=annotation, decode="spans", min_prob=1.0, **shared)
        self.told = of.told
        self.cfg.update(labels=labels, confidence=True)
        self._labels_changed()

    def parts(self) -> Parts:
        self.cfg["min_prob"] = self.of.cfg["threshold"]
        return super().parts()

    def least(self) -> Floats:
        """The least probability of each label: float64[L]."""
        return self.of.least()[self.numbers]

    def find(self, docs: DocBatch, scores: Any, restricted: bool) -> LikelySpans:
        """The spans of a batch of Docs that are probable enough, with the labels of the set.

        scores: Of the chain. restricted (bool): Whether some Docs name spans that are blocked or forced.
        """
        parts, least = self.parts(), self.least()
        if restricted or parts.rules is not None or least.min(initial=1.0) < _CERTAIN:
            parts = parts._replace(settings={**parts.settings, "min_prob": dict(zip(self.labels, least.tolist()))})
            found = predict(parts, docs, scores)
            segments, probabilities = self.decoding.segments(found.tags, found.starts), found.probabilities
        else:
            # A span that is probable enough is so on one level at least
            least = 1.0 - (1.0 - least) ** (1.0 / self.annotation.n_levels)
            segments, probabilities = self.decoding.batch(scores, None).likely_spans(float(least.min(initial=1.0)))
            probable = probabilities >= least[segments.label]
            segments = Segments(*(column[probable] for column in segments))
            probabilities = probabilities[probable]
        return LikelySpans(segments._replace(label=self.numbers[segments.label]), probabilities)

    def weigh(self, scores: Any, spans: Segments) -> Floats:
        """The probability of spans with labels of the set, by their first token: float64[N], 0 for labels of other chains."""
        number = np.full(1 + len(self.of.labels), -1)
        number[self.numbers] = np.arange(len(self.numbers))
        own, found = number[spans.label] >= 0, np.zeros(len(spans.start))
        segments = Segments(spans.start[own], spans.end[own], number[spans.label[own]])
        found[own] = self.decoding.batch(of_states(scores, self.states), None).span_probabilities(segments)
        return found


class SetTraining(Training):
    """Training of a set: the annotation of each chain, side by side."""

    def check_fit(self, optimizer: Optional[Optimizer]) -> None:
        super().check_fit(optimizer)
        if getattr(optimizer, "wants_sequences", False) and len(self._pipe.chains) > 1:
            what, reason = (
                f"the {len(self._pipe.chains)} chains of '{self._pipe.name}'",
                "it walks along a single chain",
            )
            raise cant_train(optimizer, what, reason, "LBFGS, ConjugateGradient or Adam.v1")

    def to_count(self, docs: list[Doc], examples: list[Example], report: GoldReport) -> AnnotatedDocs:
        key = self._pipe.annotation.key
        for example in examples:
            if key not in example.reference.spans:
                report.add(f"texts have no doc.spans['{key}'], and count as not annotated", f"'{example.text[:40]}'")
        return self._joined([chain.training.to_count(docs, examples, report) for chain in self._pipe.chains])

    def data(self, examples: list[Example], kind: str = "objective") -> AnnotatedDocs:
        return self._joined([chain.training.data(examples, kind) for chain in self._pipe.chains])

    def _joined(self, parts: list[AnnotatedDocs]) -> AnnotatedDocs:
        chains = self._pipe.chains
        if len(chains) == 1:
            return parts[0]
        usual = self._pipe.model.attrs["role"].in_training.with_threads(default_threads())
        states = tuple(chain.states for chain in chains)
        columns = zip(*(self._of_set(chain, part.alternatives) for chain, part in zip(chains, parts)))
        return parts[0]._replace(
            allowed=SetClamp(tuple(part.allowed for part in parts), states),
            unset=np.logical_and.reduce([part.unset for part in parts]),
            structure=ChainSet([part.structure or usual for part in parts], states),
            alternatives=Segments(*map(np.concatenate, columns)),
        )

    @staticmethod
    def _of_set(chain: Chain, segments: Segments) -> Segments:
        return segments._replace(label=chain.slots[segments.label])


class CRFSpanCategorizer(CRFEntityRecognizer):
    """Finds spans that may overlap (factory ``crf_spancat``), and writes them to ``doc.spans`` with their probabilities.

    spans_key (str), threshold (MinProb), max_positive (Optional[int]), groups (Groups), scheme (str): See `make_crf_spancat`.
    """

    meaning = ("scheme", "groups", "nested")
    least_setting = "threshold"
    kernels_of = "chain_set"

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
            must = f"another key than spans_key, '{spans_key}'"
            checks.expect(settings.get(key) != spans_key, self.owner, key, settings.get(key), must)
        threshold, groups = check_min_prob(self.owner, threshold), check_groups(self.owner, groups)
        self._chooses_groups = groups == "auto"
        node = getattr(model, "attrs", {}).get("role")
        self.labelled = "segments" if getattr(node, "labelled", None) == "segments" else "tokens"
        if node is not None:
            check_inner(self.owner, "model", model)
        checks.flag(self.owner, "nested", nested)
        own = {"spans_key": spans_key, "threshold": threshold, "max_positive": max_positive, "groups": groups}
        own |= {"nested": nested, "levels": {}}
        super().__init__(vocab, model, name, **own, **settings)
        if self.loss.spans_key is not None:
            what = f"the chains of '{name}'"
            raise cant_train(self.loss, what, "its soft labels are those of one chain", "LogLikelihood")
        self.training = SetTraining(self)

    def _labels_changed(self) -> None:
        self._chains: Optional[list[Chain]] = None
        super()._labels_changed()

    def make_annotation(self) -> Spans:
        scheme = SEGMENTS if self.labelled == "segments" else get_scheme(self.cfg["scheme"])
        return Spans(scheme, self.cfg["spans_key"], self.cfg["groups"], self.cfg["levels"])

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        super().choose_settings(get_examples)
        if self._chooses_groups:
            docs = (example.reference for example in get_examples())
            self.cfg["groups"] = [list(self.labels)] if self.cfg["nested"] else groups_of(docs, self.annotation)
            self._labels_changed()
        if self.cfg["nested"]:
            self.cfg["levels"] = levels_of((example.reference for example in get_examples()), self.annotation)
            self._labels_changed()
        text = ", ".join("+".join(map(str, slots)) for slots in self.annotation.chains)
        announcements.info("%s: chains of labels: %s", self.name, text)

    def check_settings(self) -> None:
        super().check_settings()
        self.least()
        for chain in self.chains:
            chain.rules()

    @property
    def chains(self) -> list[Chain]:
        """The chains, each a component that predicts and answers questions about its own labels."""
        if self._chains is None:
            self._chains = [Chain(self, slots) for slots in self.annotation.chains]
        return self._chains

    @property
    def key(self) -> str:
        """Key of doc.spans where spans are read and written, as spaCy's `spancat` names it."""
        return self.cfg["spans_key"]

    def chain(self, label: str) -> Chain:
        """The chain of a label, on its outermost level. RAISES (ValueError): CRF846 for an unknown label."""
        checks.labels(self.owner, [label], self.labels)
        return next(chain for chain in self.chains if label in chain.labels)

    def least(self) -> Floats:
        """The least probability of each label: float64[L]."""
        least = least_of_labels(self.name, self.cfg["threshold"], self.labels)
        return np.zeros(len(self.labels)) if least is None else least

    # ----------------------------------------------------------------------------------------------------- rules

    def rules_for(self, labels: Sequence[str]) -> Any:
        """The rules of the chain of some labels: those that name its labels, and those that name none.

        RAISES (ValueError): CRF846 for unknown labels, CRF616 for a rule about several chains.
        """
        if self.constraints is None or len(self.annotation.chains) == 1:
            return self.constraints
        self.constraints.require_file()
        found = [self._of_chain(rule, set(labels)) for rule in self.constraints.rules]
        return replace(self.constraints, rules=[rule for rule in found if rule is not None])

    def _of_chain(self, rule: Rule, labels: set[str]) -> Optional[Rule]:
        named = {name for name in rule.names() if name != "O"}
        checks.labels(f"Rule '{rule.name}'", named, self.labels)
        alone = rule.by_label or rule.kind in ("only_on", "never_on", "starts_with", "ends_with")
        about_all = rule.reads_tags or rule.arguments.get("label") == "*"
        if not alone and (about_all or (named & labels and not named <= labels)):
            which = ", ".join(sorted(named)) or "all"
            raise ValueError(Errors.CRF616.format(name=self.name, rule=rule.name, labels=which))
        if named and not named & labels:
            return None
        own = [label for label in rule.label if label in labels] if named - labels else None
        return rule if own is None else replace(rule, arguments={**rule.arguments, "label": own})

    def rules(self) -> None:
        """Each chain has rules of its own, see `chains`."""

    def add_rule(self, rule: dict[str, Any]) -> None:
        super().add_rule(rule)
        self._chains = None
        try:
            for chain in self.chains:
                chain.rules()
        except ValueError:
            self.constraints.rules.pop()
            self._chains = None
            raise

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc], scores: Any = None) -> FoundSpans:
        """The spans that are probable enough. With a threshold of at least 0.5 these are all of them; spans of one chain with a
        lower one may overlap, and then the most valuable set of them is found, as by decode = "spans" of the other components.
        """
        docs = docs if isinstance(docs, DocBatch) else DocBatch(only_docs(self.name, docs))
        self.require_ready(docs)
        scores = self.model.predict(docs) if scores is None else scores
        restricted = any(BLOCKED in doc.spans or FORCED in doc.spans for doc in docs if doc.spans)
        parts = zip(self.chains, split(scores, [chain.states for chain in self.chains]))
        found = LikelySpans.join([chain.find(docs, own, restricted) for chain, own in parts])
        (begin, end, label), probabilities = self._united(found, scores, restricted) if self.cfg["levels"] else found
        order = np.lexsort((label, end, begin))
        most = self.cfg["max_positive"]
        if most is not None and len(order):
            ranked = np.lexsort((-probabilities, end, begin))
            new = np.append(True, (np.diff(begin[ranked]) != 0) | (np.diff(end[ranked]) != 0))
            rank = np.arange(len(ranked)) - np.flatnonzero(new)[np.cumsum(new) - 1]
            kept = np.zeros(len(ranked), dtype=bool)
            kept[ranked[rank < most]] = True
            order = order[kept[order]]
        return FoundSpans(Segments(begin[order], end[order], label[order]), probabilities[order], docs.bounds)

    def _united(self, found: LikelySpans, scores: Any, restricted: bool) -> LikelySpans:
        """Spans of several levels, each once, with the probability that it is there on any of them."""
        places, inverse = np.unique(np.stack(found.segments, axis=1), axis=0, return_inverse=True)
        spans, absent = Segments(*np.ascontiguousarray(places.T)), np.ones(len(places))
        if restricted or self.constraints is not None:  # on the levels where it was found
            np.multiply.at(absent, inverse.ravel(), 1.0 - found.probabilities)
            return LikelySpans(spans, 1.0 - absent)
        absent[inverse.ravel()] = 1.0 - found.probabilities
        several = np.isin(spans.label, [self.labels.index(label) for label in self.cfg["levels"]])
        of_levels, absent[several] = Segments(*(column[several] for column in spans)), 1.0
        for chain in self.chains:
            if chain.annotation.n_levels > 1:
                absent[several] *= 1.0 - chain.weigh(scores, of_levels)
        likely = 1.0 - absent >= self.least()[spans.label]
        return LikelySpans(Segments(*(column[likely] for column in spans)), (1.0 - absent)[likely])

    by_probability = True

    def deciding_by(self, least: MinProb) -> dict[str, Any]:
        return {"threshold": least}

    def expected_spans(self, scores: Any) -> float:
        return sum(chain.expected_spans(of_states(scores, chain.states)) for chain in self.chains)

    def set_annotations(self, docs: Iterable[Doc], found: FoundSpans) -> None:
        """Write the spans to ``doc.spans[spans_key]``, with their probabilities as ``attrs["scores"]``."""
        docs, key = list(docs), self.cfg["spans_key"]
        for vocab in {doc.vocab for doc in docs} - {self.vocab}:  # Docs of another pipeline
            self.annotation.introduce(vocab)
        hashes = [self.vocab.strings[label] for label in self.labels]
        begin, end, label = found.segments
        bounds = np.searchsorted(begin, found.doc_starts).tolist()
        columns = begin.tolist(), end.tolist(), label.tolist()
        for n, (doc, shift) in enumerate(zip(docs, found.doc_starts.tolist())):
            some = slice(bounds[n], bounds[n + 1])
            places = zip(*(column[some] for column in columns))
            spans = [Span(doc, b - shift, e - shift, label=hashes[number]) for b, e, number in places]
            doc.spans[key] = SpanGroup(doc, name=key, spans=spans, attrs={"scores": found.probabilities[some]})

    # --------------------------------------------------------------------------------------------- probabilities

    @contextmanager
    def _asked(self, doc: Doc) -> Iterator[list[Chain]]:
        """The chains, for which the model scores a Doc only once."""
        nodes = [chain.model.attrs["role"] for chain in self.chains]
        batch = DocBatch(only_docs(self.name, [doc]))
        self.require_ready(batch)
        given = doc, self.model.predict(batch)
        try:
            for node in nodes:
                node.given = given
            yield self.chains
        finally:
            for node in nodes:
                node.given = None

    def marginals(self, doc: Doc, **options: Any) -> tuple[Floats, list[str]]:
        """Probability of each tag of each chain at each token, see `CRFPipe.marginals`. The tags of each chain have sum 1."""
        with self._asked(doc) as chains:
            parts, tags = zip(*(chain.marginals(doc, **options) for chain in chains))
        return np.hstack(parts), [tag for of_chain in tags for tag in of_chain]

    def span_probabilities(self, doc: Doc, min_prob: float = 0.01, **options: Any) -> list[tuple[Span, float]]:
        levels = max((chain.annotation.n_levels for chain in self.chains), default=1)
        with self._asked(doc) as chains:
            least = min_prob if levels == 1 else min(min_prob, _NEGLIGIBLE)
            found = [item for chain in chains for item in chain.span_probabilities(doc, least, **options)]
        absent: dict[tuple[int, int, str], float] = {}
        for span, probability in found:
            place = span.start, span.end, span.label_
            absent[place] = absent.get(place, 1.0) * (1.0 - probability)
        likely = {place: 1.0 - rest for place, rest in absent.items() if 1.0 - rest >= min_prob}
        in_order = sorted(likely.items(), key=lambda item: -item[1])
        return [(Span(doc, begin, end, label=label), p) for (begin, end, label), p in in_order]

    def n_best(self, doc: Doc, n: int, **options: Any) -> list[tuple[float, list[Span]]]:
        """The most probable labellings, each of all chains, see `CRFPipe.n_best`."""
        best: list[tuple[float, list[Span]]] = [(1.0, [])]
        with self._asked(doc) as chains:
            for chain in chains:
                pairs = product(best, chain.n_best(doc, n, **options))
                longer = ((p * own, [*spans, *more]) for (p, spans), (own, more) in pairs)
                best = nlargest(n, longer, key=lambda item: item[0])
        return [(p, _in_order(spans)) for p, spans in best]

    def log_probability(self, doc: Doc, spans: Iterable[Span], **options: Any) -> float:
        """Log probability of one complete labelling of all chains, see `CRFPipe.log_probability`. Spans of different chains may
        overlap. Those of one group are on the levels where training would have them.
        """
        spans = list(spans)
        labelling(self.name, doc, spans, overlap=True)
        parts = [chain.annotation.own(spans) for chain in self.chains]
        if sum(map(len, parts)) < len({(span.start, span.end, span.label) for span in spans}):
            return -np.inf
        with self._asked(doc) as chains:
            return sum(chain.log_probability(doc, part, **options) for chain, part in zip(chains, parts))

    def sample(self, doc: Doc, n: int, seed: int, **options: Any) -> list[list[Span]]:
        with self._asked(doc) as chains:
            drawn = [chain.sample(doc, n, seed + number, **options) for number, chain in enumerate(chains)]
        return [_in_order(links.from_iterable(parts)) for parts in zip(*drawn)]

    def bounds(self, doc: Doc, **options: Any) -> tuple[float, float]:
        with self._asked(doc) as chains:
            lower, upper = zip(*(chain.bounds(doc, **options) for chain in chains))
        return sum(lower), sum(upper)

    def explain(
        self, doc: Doc, span: Optional[Span] = None, against: Any = None, kind: str = "contrast", **options: Any
    ) -> Any:
        """Explain a decision of the chain that has the label of the span, see `CRFPipe.explain`. Without a label, the span's most
        probable label is explained; with several chains, a span is needed."""
        if len(self.chains) == 1:
            return self.chains[0].explain(doc, span, against, kind, **options)
        checks.expect(isinstance(span, Span), self.owner, "span", span, "a span: each chain is explained by itself")
        if not span.label:
            likely = self.span_probabilities(doc, 0.0)
            span = next((one for one, _ in likely if (one.start, one.end) == (span.start, span.end)), span)
        return self.chain(span.label_).explain(doc, span, against, kind, **options)

    # --------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, {**state, "_chains": None}

    def _take_settings(self, saved: dict[str, Any]) -> None:
        if self._chooses_groups:
            self.cfg["groups"] = saved["groups"]
        self.cfg["levels"] = saved["levels"]
        super()._take_settings(saved)


def _in_order(spans: Iterable[Span]) -> list[Span]:
    return sorted(spans, key=lambda span: (span.start, span.end))
