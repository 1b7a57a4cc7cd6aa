"""What components share that predict under rules, and know the probabilities of what they say – whatever their structure.

Without rules and probabilities prediction is one `viterbi` and nothing else; the rest is imported when it is needed.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span
from spacy.training import Example
from thinc.api import Optimizer

from .. import checks
from ..errors import Errors, Warnings
from ..features.doc_batch import DocBatch, doc_bounds, read_attributes
from ..losses.clamped import ClampedLoss
from ..schemes import NO_SEGMENTS, Segments
from ..types import Floats
from .arguments import check_doc, labelling
from .crf_pipe import CRFPipe, Prediction, Supervision
from .gold_report import GoldReport

if TYPE_CHECKING:
    from ..constraints.facts import Facts
    from ..constraints.incorrect_spans import Excluded
    from ..constraints.rule_set import CompiledRules
    from ..constraints.rules import Constraints
    from ..constraints.training import RuledStructure
    from .decoding import Decoding, Distribution
    from .rule_matching import RuleMatcher
    from .settled import Question, Settled

logger = logging.getLogger("spacy.spacy_crf")

DECODERS = ("viterbi", "posterior")
_SPANS = attrgetter("spans.data")  # the dict inside: one Python call less for each Doc


class Rules(NamedTuple):
    """Rules compiled for the present labels."""

    all: "CompiledRules"
    matcher: "RuleMatcher"


class RuledPipe(CRFPipe):
    """Base of the components that predict under rules.

    confidence (bool): Whether every span found gets its probability, as ``span._.crf_prob``.
    decode (str): "viterbi", the most probable labelling; or "posterior", the valid one with the best expected number of
        right tags.
    min_prob (float): Spans with a lower probability are left out.
    constraints (Constraints): Rules that labellings keep.
    """

    constraints: "Optional[Constraints]" = None
    _compiled: Optional[Rules] = None
    _told_broken = False  # whether it was said which gold annotations break rules
    _told_global = False  # and which rules training leaves out
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
        owner = f"Component '{name}'"
        checks.one_of(owner, "decode", decode, DECODERS)
        min_prob = checks.number(owner, "min_prob", min_prob, most=1.0)
        if checks.flag(owner, "confidence", confidence):
            register_extension()
        if constraints is not None and not hasattr(constraints, "rules"):
            raise ValueError(Errors.CRF620.format(name=name, value=constraints))
        self.constraints = constraints
        self._own_rules = len(constraints.rules) if constraints is not None else 0
        super().__init__(vocab, model, name, confidence=confidence, decode=decode, min_prob=min_prob, **settings)
        if self._rules_train and not isinstance(self.loss, ClampedLoss):
            raise ValueError(Errors.CRF619.format(name=self.name, loss=type(self.loss).__name__))

    # ------------------------------------------------------------------------------------ what a component adds

    def segments(self, tags: NDArray[np.int32], starts: NDArray[np.int64]) -> Segments:
        """The spans that tags spell."""
        raise NotImplementedError

    def segments_tags(self, segments: Segments, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Tags of the labelling that consists of these spans: int32[T], -1 where a token needs a span and has none."""
        raise NotImplementedError

    def settle_preset(self, settled: "Settled", preset: NDArray[np.uint64], starts: NDArray[np.int64]) -> None:
        """Takes up the annotation that is present (what `read_preset` gives), in place."""
        raise NotImplementedError

    def settled_clamp(self, settled: "Settled", starts: NDArray[np.int64]) -> Any:
        """The clamp of the labellings that have the spans which are settled."""
        raise NotImplementedError

    def settled_scores(self, scores: Any, settled: "Settled") -> tuple[Any, Any]:
        """The scores and the clamp of the labellings that have all that is settled."""
        clamp, steps = self.spell(self.settled_clamp(settled, scores.starts), scores.starts)
        label = self.label_of_states()
        self.allowed_states(clamp)[:, label >= 0] &= ~settled.blocked[:, label[label >= 0]]
        return (self.without_steps(scores, steps) if len(steps) else scores), clamp

    def without_steps(self, scores: Any, steps: NDArray[np.int64]) -> Any:
        """Scores of the labellings that do not take certain steps, see `Scheme.spell`."""
        raise NotImplementedError

    def allowed_states(self, clamp: Any) -> NDArray[np.bool_]:
        """The part of a clamp that says which states each token may have, to be changed in place: bool[T, S]."""
        raise NotImplementedError

    def best_tags(self, scores: Any, clamp: Any) -> NDArray[np.int32]:
        """Tags of the most probable labelling."""
        raise NotImplementedError

    def best_with_probabilities(self, scores: Any, clamp: Any) -> tuple[NDArray[np.int32], Floats]:
        """Tags of the most probable labelling, and the probability of each of its spans."""
        tags = self.best_tags(scores, clamp)
        segments = self.segments(tags, scores.starts)
        return tags, self.decoding().batch(scores, clamp).span_probabilities(segments)

    def compile_rules(self, constraints: "Constraints") -> "CompiledRules":
        """Rules for the present labels."""
        raise NotImplementedError

    def ruled_structure(
        self,
        rules: "CompiledRules",
        facts: "Facts",
        known: Supervision,
        starts: NDArray[np.int64],
        doc_starts: NDArray[np.int64],
    ) -> "RuledStructure":
        """What answers the loss under rules, for documents of which this is known."""
        raise NotImplementedError

    def decoding(self) -> "Decoding":
        """How the component's structure decodes under rules, and what its distributions are."""
        raise NotImplementedError

    found = "an entity"  # what is found, in messages
    spans_are_tokens = False  # whether each token of a span is one by itself
    outside = 0  # the tag of tokens that lost their span; -1 if they stay without one
    scores_prefix = "ents"  # in the names of scores

    def refused(self, span: Span) -> Optional[str]:
        """Why a span in doc.spans["crf_forced"] can't be one of the component's, None if it can."""
        return None if span.label_ in self.labels else "the component has no such label"

    def refused_beside(
        self, settled: "Settled", starts: NDArray[np.int64], begin: int, end: int, label: int
    ) -> Optional[str]:
        """Why no labelling has these tokens as a span beside what is settled, None if one has."""
        return None

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

    def rules(self) -> Optional[Rules]:
        """The rules, compiled against the labels; None without rules.

        RAISES (ValueError): If they don't fit the labels, or contradict each other.
        """
        if self.constraints is None:
            return None
        self.constraints.require_file()
        if not self.constraints.rules:
            return None
        if self._compiled is None:
            from .rule_matching import RuleMatcher

            matcher = RuleMatcher(self.vocab, self.constraints.rules, len(self.tags()))
            self._compiled = Rules(self.compile_rules(self.constraints), matcher)
        return self._compiled

    def check_settings(self) -> None:
        super().check_settings()
        self.rules()

    def _labels_changed(self) -> None:
        super()._labels_changed()
        self._compiled = None

    # -------------------------------------------------------------------------------------------------- training

    def training_structure(self, docs: list[Doc], known: Supervision, starts: NDArray[np.int64]) -> Any:
        """The sums and maxima under the rules, if they hold in training, and without what is known to be wrong."""
        rules = self.rules() if self._rules_train else None
        if rules is None and not len(known.wrong.start) and not len(known.steps):
            return None
        from ..constraints.facts import Facts
        from ..constraints.rules import Constraints

        rule_set = self.compile_rules(Constraints([])) if rules is None else rules.all
        facts = Facts() if rules is None else rules.matcher(docs)
        structure = self.ruled_structure(rule_set, facts, known, starts, doc_bounds(docs))
        report = GoldReport()
        for rule, d in structure.broken:
            problem = f"gold annotations break the rule '{rule.name}', and are trained without it"
            report.add(problem, f"'{docs[d].text[:40]}'")
        if not self._told_broken:
            report.log(self.name)
            self._told_broken = bool(structure.broken)
        if rule_set.global_ and not self._told_global:
            self._warn(Warnings.CRFW610, rules=", ".join(rule.name for rule in rule_set.global_))
            self._told_global = True
        return structure

    def excluded(self, known: Supervision) -> "Excluded":
        """What is known to be wrong beside the clamp, and what it costs."""
        from ..constraints.incorrect_spans import Excluded

        return Excluded(known.wrong, known.steps, self.loss.least_costs(len(self.label_of_states())))

    @property
    def _rules_train(self) -> bool:
        return self.constraints is not None and self.constraints.in_training

    def _check_fit(self, optimizer: Optimizer) -> None:
        super()._check_fit(optimizer)
        if self._rules_train and getattr(optimizer, "wants_sequences", False):
            raise ValueError(Errors.CRF616.format(name=self.name, optimizer=type(optimizer).__name__))

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc]) -> Prediction:
        """Best valid tags of a batch of Docs that keep the rules, around the annotation they have already.

        RETURNS (Prediction)
        RAISES (ValueError): If the component has no labels, or was not initialized.
        """
        docs = DocBatch.of(docs)
        self._require_initialized()
        scores = self.model.predict(docs)
        preset, clamp, question = self.read_preset(docs), None, None
        bounds, starts = docs.bounds, scores.starts
        if preset is not None or any(map(_SPANS, docs)):
            question = self._restrict(docs, scores, preset)
            if question is not None:
                docs, scores, clamp = question[:3]
        rules = self.rules()
        settings = self.cfg
        probabilities = None
        if rules is not None or settings["decode"] == "posterior":
            from .probabilities import predict

            tags, probabilities = predict(self, docs, scores, clamp, rules)
        elif settings["confidence"] or settings["min_prob"] > 0.0:
            tags, probabilities = self.best_with_probabilities(scores, clamp)
        else:
            tags = self.best_tags(scores, clamp)
        if settings["min_prob"] > 0.0:
            known = None if question is None else question.settled
            tags, probabilities = self._without_unlikely(tags, probabilities, scores.starts, known)
        if question is not None:
            tags = question.tags(tags)
        return Prediction(tags, starts, bounds, preset, probabilities if settings["confidence"] else None)

    def _restrict(self, docs: DocBatch, scores: Any, preset: Optional[NDArray[np.uint64]]) -> "Optional[Question]":
        from .settled import restrict  # most prediction does without

        return restrict(self, docs, scores, preset)

    def _without_unlikely(self, tags: NDArray[np.int32], probabilities: Floats, starts: NDArray[np.int64], known):
        """Tags and probabilities less the spans below min_prob: their tokens are outside, or stay without a tag. Spans of known
        tokens (bool[T], None for none) stay."""
        begin, end, _ = self.segments(tags, starts)
        unlikely = probabilities < self.cfg["min_prob"]
        if known is not None:
            unlikely &= ~known[begin]
        covered = np.zeros(len(tags) + 1, dtype=np.int64)
        np.add.at(covered, begin[unlikely], 1)
        np.add.at(covered, end[unlikely], -1)
        return np.where(np.cumsum(covered[:-1]) > 0, self.outside, tags).astype(np.int32), probabilities[~unlikely]

    def write_probabilities(self, docs: Iterable[Doc], prediction: Prediction, present: Segments) -> None:
        """Set ``span._.crf_prob`` of the spans found. Those that were present keep what they have, and are certain if that is
        nothing."""
        begin, end, _ = self.segments(prediction.tags, prediction.starts)
        probabilities = prediction.probabilities
        if len(present.start):
            covered = np.zeros(len(prediction.tags) + 1, dtype=np.int64)
            np.add.at(covered, present.start, 1)
            np.add.at(covered, present.end, -1)
            found = np.cumsum(covered)[begin] == 0
            begin, end, probabilities = begin[found], end[found], probabilities[found]
            ones = np.ones(len(present.start))
            _write_probabilities(docs, prediction.doc_starts, present.start, present.end, ones, dict.setdefault)
        _write_probabilities(docs, prediction.doc_starts, begin, end, probabilities, dict.__setitem__)

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
        min_prob (float): From 0 to 1; with 0, every possible span.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[Tuple[Span, float]]): The most probable first; spans carry their label.
        """
        checks.number(self.owner, "min_prob", min_prob, most=1.0)
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
        checks.count(self.owner, "n", n)
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
        RAISES (ValueError): If spans overlap, or are those of another text.
        """
        check_doc(self.name, doc)
        found = labelling(self.name, doc, spans)
        distribution = self._distribution(doc, keep_annotation)
        inner = distribution.starts[1:-1]
        if any(label not in self.labels or ((inner > begin) & (inner < end)).any() for begin, end, label in found):
            return -np.inf
        columns = zip(*((begin, end, self.labels.index(label)) for begin, end, label in found))
        segments = Segments(*(np.array(c, dtype=np.int64) for c in columns)) if found else NO_SEGMENTS
        return distribution.log_probability(self.segments_tags(segments, distribution.starts))

    def sample(self, doc: Doc, n: int, seed: int, *, keep_annotation: bool = False) -> list[list[Span]]:
        """Labellings drawn from their distribution.

        doc (Doc): The text.
        n (int): How many.
        seed (int): One seed, one answer.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[List[Span]])
        """
        checks.count(self.owner, "n", n, least=0)
        checks.count(self.owner, "seed", seed, least=0)
        distribution = self._distribution(doc, keep_annotation)
        drawn = distribution.sample(n, seed)
        return [self._spans(doc, self.segments(tags, distribution.starts)) for tags in drawn]

    def _distribution(self, doc: Doc, keep_annotation: bool) -> "Distribution":
        from .probabilities import distribution

        check_doc(self.name, doc)
        self._require_initialized()
        docs = DocBatch([doc])
        scores = self.model.predict(docs)
        question = self._restrict(docs, scores, self.read_preset(docs) if keep_annotation else None)
        if question is None:
            return distribution(self, docs, scores, None, self.rules())
        return question.distribution(distribution(self, *question[:3], self.rules()))

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

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.cfg["confidence"]:
            register_extension()

    def left_behind(self) -> dict[str, Any]:
        return {**super().left_behind(), "_compiled": None}

    def settings_to_save(self) -> dict[str, Any]:
        settings = super().settings_to_save()
        if self.constraints is None:
            return settings
        tables = self.constraints.tables
        return {**settings, "rules": {"config": tables[: self._own_rules], "added": tables[self._own_rules :]}}

    def take_settings(self, saved: dict[str, Any]) -> None:
        super().take_settings(saved)
        rules = saved.get("rules")
        if rules is not None and (rules["config"] or rules["added"]):
            from ..constraints.rules import Constraints

            # The config has the last word about its rules, unless it names a file that did not come along.
            mine = self.constraints or Constraints([])
            own = rules["config"] if mine.missing else mine.tables[: self._own_rules]
            self.constraints = mine.replaced([*own, *rules["added"]])
            self._own_rules = len(own)


def _write_probabilities(docs, bounds, begin, end, probabilities: Floats, put: Callable) -> None:
    """What span._.set does, without Spans and Tokens, which took longer than all inference.

    put (Callable): Sets an item of a dict.
    """
    counts = np.diff(np.searchsorted(begin, bounds))
    having = [doc for doc, n_spans in zip(docs, counts.tolist()) if n_spans]
    offset, length = read_attributes(having, [IDX, LENGTH]).T.astype(np.int64)
    left_out = np.cumsum(np.where(counts > 0, 0, np.diff(bounds)))
    shift = np.repeat(left_out, counts)
    first, last = begin - shift, end - shift - 1
    found = zip(offset[first].tolist(), (offset[last] + length[last]).tolist(), probabilities.tolist())
    for doc, n_spans in zip(having, counts[counts > 0].tolist()):
        user_data = doc.user_data
        for start, stop, probability in islice(found, n_spans):
            put(user_data, ("._.", "crf_prob", start, stop), probability)


def register_extension() -> None:
    """``span._.crf_prob``: kept with the Doc's user data, so it survives ``DocBin(store_user_data=True)``."""
    if not Span.has_extension("crf_prob"):
        Span.set_extension("crf_prob", default=None)
