"""What components with one tag per token have in common: rules, ways to decode, and exact probabilities.

Without rules and probabilities prediction is `LinearChain.viterbi` and nothing else; the rest is imported when it is needed.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ORTH
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Optimizer

from ..errors import Errors, Warnings
from ..features.columns import doc_bounds, read_attributes
from ..inference.spans import SpanStates, segments_of
from ..schemes import Segments
from ..types import ChainScores, Clamp, Floats
from .crf_pipe import CRFPipe, GoldReport, Prediction

if TYPE_CHECKING:
    from ..constraints.rule_set import RuleSet
    from ..constraints.rules import Constraints
    from .probabilities import Distribution
    from .rule_matching import RuleMatcher

logger = logging.getLogger("spacy.spacy_crf")

DECODERS = ("viterbi", "posterior")
BLOCKED, FORCED = "crf_blocked", "crf_forced"  # keys of doc.spans

# Settings that say how to predict: those of the config count, not those that were saved.
_OF_CONFIG = ("confidence", "decode", "min_prob")


class _Rules(NamedTuple):
    """Rules compiled for the present labels."""

    all: "RuleSet"
    hard: "RuleSet"
    matcher: "RuleMatcher"


class ChainPipe(CRFPipe):
    """Base of the components whose model gives ``ChainScores``.

    confidence (bool): Whether every span found gets its probability, as ``span._.crf_prob``.
    decode (str): "viterbi", the most probable labelling; or "posterior", the valid one with the best expected number of
        right tags.
    min_prob (float): Spans with a lower probability are left out.
    constraints (Constraints): Rules that labellings keep.
    """

    constraints: "Optional[Constraints]" = None
    _compiled: Optional[_Rules] = None
    _told_broken = False  # whether it was said which gold annotations break rules
    _own_rules = 0  # how many of the rules come from the config; the others were added

    def __init__(
        self,
        vocab,
        model,
        name: str,
        *,
        confidence: bool = False,
        decode: str = "viterbi",
        min_prob: float = 0.0,
        constraints: "Optional[Constraints]" = None,
        **settings: Any,
    ):
        if decode not in DECODERS:
            raise ValueError(Errors.CRF408.format(name=name, setting="decode", value=decode, known=", ".join(DECODERS)))
        if isinstance(min_prob, bool) or not 0.0 <= min_prob <= 1.0:
            known = "a number from 0 to 1"
            raise ValueError(Errors.CRF408.format(name=name, setting="min_prob", value=min_prob, known=known))
        if confidence:
            register_extension()
        self.constraints = constraints
        self._own_rules = len(constraints.rules) if constraints is not None else 0
        super().__init__(vocab, model, name, confidence=confidence, decode=decode, min_prob=min_prob, **settings)

    # ------------------------------------------------------------------------------------ what a component adds

    def span_states(self) -> SpanStates:
        """How tags spell spans."""
        raise NotImplementedError

    def segments_clamp(self, segments: Segments, starts: NDArray[np.int64]) -> Clamp:
        """Tags that are left if these are spans, and nothing is known of the other tokens: bool[T, S]."""
        raise NotImplementedError

    def segments_tags(self, segments: Segments, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Tags of the labelling that consists of these spans: int32[T], -1 where a token needs a span and has none."""
        raise NotImplementedError

    scores_prefix = "ents"  # in the names of scores

    def judged(self, example: Example) -> Iterator[tuple[Optional[float], bool]]:
        """Probability of each span found, and whether it is right."""
        raise NotImplementedError

    # ----------------------------------------------------------------------------------------------------- rules

    def add_rule(self, rule: dict[str, Any]) -> None:
        """Add a rule. It is enforced from now on, after those that are there, and saved with the component.

        rule (Dict[str, Any]): Such as {"rule": "at_most", "label": "ZIP", "n": 1}.
        RAISES (ValueError): With what is wrong about it; the rules stay as they were.
        """
        from ..constraints.rules import Constraints

        if self.constraints is None:
            self.constraints = Constraints([])
        self.constraints.add(rule)
        self._compiled = None
        try:
            if self.labels:
                self.rules()
        except ValueError:
            self.constraints.rules.pop()
            self._compiled = None
            raise

    def rules(self) -> Optional[_Rules]:
        """The rules, compiled against the labels; None without rules.

        RAISES (ValueError): If they don't fit the labels, or contradict each other.
        """
        if self.constraints is None:
            return None
        self.constraints.require_file()
        if not self.constraints.rules:
            return None
        if self._compiled is None:
            from ..constraints.automaton import SpanTags
            from ..constraints.rule_set import RuleSet
            from .rule_matching import RuleMatcher

            spans = self.span_states()
            label_of = (np.arange(len(self.tags())) - spans.offset) // spans.width
            tags = SpanTags(list(self.labels), np.maximum(label_of, -1), spans.continues)
            mask = self.transition_mask()
            matcher = RuleMatcher(self.vocab, self.constraints.rules, len(self.tags()))
            every = RuleSet(self.constraints, tags, mask)
            hard = every
            if not all(rule.hard for rule in self.constraints.rules):
                hard = RuleSet(self.constraints.only(lambda rule: rule.hard), tags, mask)
            self._compiled = _Rules(every, hard, matcher)
        return self._compiled

    def _labels_changed(self) -> None:
        super()._labels_changed()
        self._compiled = None

    def training_structure(self, docs: list[Doc], clamp: Clamp, starts: NDArray[np.int64]) -> Any:
        """The sums and maxima under the rules, if they hold in training."""
        rules = self.rules() if self.constraints is not None and self.constraints.in_training else None
        if rules is None:
            return None
        from ..constraints.training import RuledChain
        from ..inference.threads import default_threads

        facts, bounds = rules.matcher(docs), doc_bounds(docs)
        chain = RuledChain(rules.all, facts, clamp, starts, bounds, threads=default_threads())
        report = GoldReport()
        for rule, d in chain.broken:
            problem = f"gold annotations break the rule '{rule.name}', and are trained without it"
            report.add(problem, f"'{docs[d].text[:40]}'")
        if not self._told_broken:
            report.log(self.name)
            self._told_broken = bool(chain.broken)
        return chain

    def _check_fit(self, optimizer: Optimizer) -> None:
        super()._check_fit(optimizer)
        ruled = self.constraints is not None and self.constraints.in_training
        if ruled and getattr(optimizer, "wants_sequences", False):
            raise ValueError(Errors.CRF616.format(name=self.name, optimizer=type(optimizer).__name__))

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc]) -> Prediction:
        """Best valid tags of a batch of Docs that keep the rules, around the annotation they have already.

        RETURNS (Prediction)
        RAISES (ValueError): If the component has no labels, or was not initialized.
        """
        docs = list(docs)
        self._require_initialized()
        scores: ChainScores = self.model.predict(docs)
        preset = self.read_preset(docs)
        clamp = None if preset is None else self.preset_clamp(preset, scores.starts)
        if any(doc.spans for doc in docs):
            clamp = self._spans_clamp(docs, scores.starts, clamp)
        rules = self.rules()
        settings = self.cfg
        weigh = settings["confidence"] or settings["min_prob"] > 0.0
        if rules is None and settings["decode"] == "viterbi" and not weigh:
            path = self.model.attrs["structure"].viterbi(scores, clamp=clamp)
            return Prediction(path.states, scores.starts, doc_bounds(docs), preset)
        from .probabilities import predict

        tags, probabilities = predict(self, docs, scores, clamp, rules)
        if settings["min_prob"] > 0.0:
            tags, probabilities = self._without_unlikely(tags, probabilities, scores.starts)
        prediction = Prediction(tags, scores.starts, doc_bounds(docs), preset)
        return prediction._replace(probabilities=probabilities) if settings["confidence"] else prediction

    def segments(self, tags: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        """The spans that tags spell."""
        opening = np.zeros(len(tags), dtype=bool)
        opening[starts[:-1][starts[:-1] < len(tags)]] = True
        return segments_of(tags, self.span_states(), opening)

    def _without_unlikely(self, tags: NDArray[np.int32], probabilities: Floats, starts: NDArray[np.int64]):
        """Tags and probabilities less the spans below min_prob: their tokens are outside, or stay without a tag."""
        begin, end, _ = self.segments(tags, starts)
        unlikely = probabilities < self.cfg["min_prob"]
        covered = np.zeros(len(tags) + 1, dtype=np.int64)
        np.add.at(covered, begin[unlikely], 1)
        np.add.at(covered, end[unlikely], -1)
        outside = self.span_states().offset - 1  # 0 where there is O, else -1
        return np.where(np.cumsum(covered[:-1]) > 0, outside, tags).astype(np.int32), probabilities[~unlikely]

    def write_probabilities(self, docs: Iterable[Doc], prediction: Prediction) -> None:
        """Set ``span._.crf_prob`` of the spans found."""
        begin, end, _ = self.segments(prediction.tags, prediction.starts)
        bounds = prediction.doc_starts
        of_doc = np.searchsorted(begin, bounds).tolist()
        begin, end, probabilities = begin.tolist(), end.tolist(), prediction.probabilities.tolist()
        for doc, shift, first, last in zip(docs, bounds.tolist(), of_doc, of_doc[1:]):
            user_data = doc.user_data
            for n in range(first, last):
                # What span._.set does, without the Span.
                last_token = doc[end[n] - shift - 1]
                key = ("._.", "crf_prob", doc[begin[n] - shift].idx, last_token.idx + len(last_token))
                user_data[key] = probabilities[n]

    def _spans_clamp(self, docs: list[Doc], starts: NDArray[np.int64], clamp: Optional[Clamp]) -> Optional[Clamp]:
        """The clamp, narrowed by doc.spans["crf_blocked"] and doc.spans["crf_forced"]."""
        bounds = doc_bounds(docs)
        found: list[tuple[int, int, int]] = []
        label_of = (np.arange(len(self.tags())) - self.span_states().offset) // self.span_states().width
        for doc, shift in zip(docs, bounds.tolist()):
            taken = np.zeros(len(doc), dtype=bool)
            for span in doc.spans.get(FORCED, ()):
                problem = None
                crossed = (starts > shift + span.start) & (starts < shift + span.end)
                if span.label_ not in self.labels:
                    problem = "the component has no such label"
                elif taken[span.start : span.end].any():
                    problem = "it overlaps with another one"
                elif crossed.any():
                    problem = "it crosses the start of a sentence"
                if problem:
                    self._warn(Warnings.CRF604, doc=doc.text[:40], span=span.text, key=FORCED, reason=problem)
                else:
                    taken[span.start : span.end] = True
                    found.append((shift + span.start, shift + span.end, self.labels.index(span.label_)))
            for span in doc.spans.get(BLOCKED, ()):
                if clamp is None:
                    clamp = np.ones((int(bounds[-1]), len(label_of)), dtype=bool)
                wrong = label_of >= 0
                if span.label_:
                    wrong = label_of == (self.labels.index(span.label_) if span.label_ in self.labels else -2)
                clamp[shift + span.start : shift + span.end, wrong] = False
        if found:
            segments = Segments(*(np.array(column) for column in zip(*sorted(found))))
            forced = self.segments_clamp(segments, starts)
            if clamp is not None:
                kept = forced & clamp
                # Where both leave nothing, what is forced wins.
                clamp = np.where(kept.any(axis=1)[:, None], kept, forced)
            else:
                clamp = forced
        return clamp

    def _warn(self, message: str, **values: Any) -> None:
        logger.warning(message.format(component=self.name, **values))

    # --------------------------------------------------------------------------------------------- probabilities

    def marginals(self, doc: Doc, *, keep_annotation: bool = False) -> tuple[Floats, list[str]]:
        """Probability of each tag at each token.

        doc (Doc): The text. Nothing is written to it.
        keep_annotation (bool): Whether annotation that the Doc has already counts as certain, as it does in the pipeline; by
            default it is left out of account.
        RETURNS (float64[T, tags], List[str]): Rows with sum 1, and the names of the tags.
        """
        return self._distribution(doc, keep_annotation).marginals(), self.tags()

    def span_probabilities(
        self, doc: Doc, min_prob: float = 0.01, *, keep_annotation: bool = False
    ) -> list[tuple[Span, float]]:
        """All spans of at least some probability: that of precisely this span with this label, summed over all labellings
        that contain it.

        doc (Doc): The text.
        min_prob (float): With 0, every possible span.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[Tuple[Span, float]]): The most probable first; spans carry their label.
        """
        segments, probabilities = self._distribution(doc, keep_annotation).likely_spans(min_prob)
        spans = self._spans(doc, segments)
        order = np.argsort(-probabilities, kind="stable").tolist()
        return [(spans[n], float(probabilities[n])) for n in order]

    def n_best(self, doc: Doc, n: int, *, keep_annotation: bool = False) -> list[tuple[float, list[Span]]]:
        """The most probable labellings.

        doc (Doc): The text.
        n (int): How many at most.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[Tuple[float, List[Span]]]): Probability and spans of each, best first.
        """
        distribution = self._distribution(doc, keep_annotation)
        return [
            (probability, self._spans(doc, self.segments(tags, distribution.starts)))
            for probability, tags in distribution.n_best(n)
        ]

    def log_probability(self, doc: Doc, spans: Iterable[Span], *, keep_annotation: bool = False) -> float:
        """Log probability of one complete labelling.

        doc (Doc): The text.
        spans (Iterable[Span]): All its spans with their labels; the tokens beside them are outside.
        keep_annotation (bool): See `marginals`.
        RETURNS (float): -inf for a labelling that is not possible.
        RAISES (ValueError): If spans overlap.
        """
        found = sorted((span.start, span.end, span.label_) for span in spans)
        for (_, end, _), (begin, _, _) in pairwise(found):
            if begin < end:
                raise ValueError(Errors.CRF409.format(name=self.name, text=doc[begin].text, start=doc.text[:40]))
        distribution = self._distribution(doc, keep_annotation)
        inner = distribution.starts[1:-1]
        if any(label not in self.labels or ((inner > begin) & (inner < end)).any() for begin, end, label in found):
            return -np.inf
        columns = zip(*((begin, end, self.labels.index(label)) for begin, end, label in found))
        segments = Segments(*(np.array(c, dtype=np.int64) for c in columns)) if found else _no_segments()
        return distribution.log_probability(self.segments_tags(segments, distribution.starts))

    def sample(self, doc: Doc, n: int, seed: int, *, keep_annotation: bool = False) -> list[list[Span]]:
        """Labellings drawn from their distribution.

        doc (Doc): The text.
        n (int): How many.
        seed (int): One seed, one answer.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[List[Span]])
        """
        distribution = self._distribution(doc, keep_annotation)
        drawn = distribution.sample(n, seed)
        return [self._spans(doc, self.segments(tags, distribution.starts)) for tags in drawn]

    def _distribution(self, doc: Doc, keep_annotation: bool) -> "Distribution":
        from .probabilities import distribution

        self._require_initialized()
        scores: ChainScores = self.model.predict([doc])
        preset = self.read_preset([doc]) if keep_annotation else None
        clamp = None if preset is None else self.preset_clamp(preset, scores.starts)
        if doc.spans:
            clamp = self._spans_clamp([doc], scores.starts, clamp)
        return distribution(self, doc, scores, clamp, self.rules())

    def _spans(self, doc: Doc, segments: Segments) -> list[Span]:
        labels = self.labels
        return [Span(doc, b, e, label=labels[n]) for b, e, n in zip(*(column.tolist() for column in segments))]

    # -------------------------------------------------------------------------------------------------- scoring

    def score(self, examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
        """What the scorer says; with confidence, how far the probabilities can be trusted too."""
        examples = list(examples)
        scores = super().score(examples, **kwargs)
        if self.cfg.get("confidence"):
            from .calibration import score_calibration

            scores.update(score_calibration(self, examples))
        return scores

    # --------------------------------------------------------------------------------------------------- saving

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        if self.constraints is not None:
            tables = self.constraints.tables
            self.cfg["rules"] = {"config": tables[: self._own_rules], "added": tables[self._own_rules :]}
        return super().to_bytes(exclude=exclude)

    def _load(self, data: bytes, source: str) -> None:
        before = self.cfg
        super()._load(data, source)
        for setting in _OF_CONFIG:
            if setting in before:
                self.cfg[setting] = before[setting]
        saved = self.cfg.pop("rules", None)
        if saved is not None and (saved["config"] or saved["added"]):
            from ..constraints.rules import Constraints

            # The config has the last word about its rules, unless it names a file that did not come along.
            mine = self.constraints or Constraints([])
            own = saved["config"] if mine.missing else mine.tables[: self._own_rules]
            self.constraints = mine.replaced([*own, *saved["added"]])
            self._own_rules = len(own)
        self._compiled = None


def words_of(docs: list[Doc]) -> NDArray[np.uint64]:
    return read_attributes(docs, [ORTH])[:, 0]


def register_extension() -> None:
    """``span._.crf_prob``: kept with the Doc's user data, so it survives ``DocBin(store_user_data=True)``."""
    if not Span.has_extension("crf_prob"):
        Span.set_extension("crf_prob", default=None)


def _no_segments() -> Segments:
    return Segments(*np.zeros((3, 0), dtype=np.int64))
