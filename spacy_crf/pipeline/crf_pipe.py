"""Components that label tokens: prediction, rules, probabilities, explanations.

What learns in them is in ``learning_pipe.py``; the way of a batch of Docs through prediction is in ``prediction.py``.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry
from spacy.vocab import Vocab
from thinc.api import Model, Optimizer

from .. import checks
from ..config_escapes import is_written
from ..errors import Warnings, cant_train
from ..features.doc_batch import DocBatch
from ..losses.clamped import CLAMPED_LOSSES, ClampedLoss, LabelledLoss
from ..schemes import NO_SEGMENTS, Segments
from ..types import Floats
from .annotation.annotation import Annotation
from .learning_pipe import LearningPipe
from .parts import Parts, Rules
from .prediction import (
    DECODERS,
    MinProb,
    Prediction,
    check_doc,
    check_min_prob,
    labelling,
    least_of_labels,
    only_docs,
    predict,
    write_probabilities,
)

if TYPE_CHECKING:
    from ..constraints.settings import Constraints
    from .decoding import Distribution
    from .preset_annotation import Question
    from .two_stage import FirstStage


class CRFPipe(LearningPipe):
    """Base of the components that label tokens, which say where labels are written, what the model gives, and what the defaults
    are.

    model (Model): From Docs to the scores of a structure.
    annotation (Annotation): Where labels are read and written.
    loss (ClampedLoss): What training minimises.
    optimizer (Optimizer), scorer (Callable): See `LearningPipe`.
    confidence (bool): Whether every span found gets its probability, as ``span._.crf_prob``.
    decode (str): "viterbi", the most probable labelling; "beam", that of a beam search; "posterior", the valid one with the best
        expected number of right tags; or "spans", the spans of at least `min_prob` of which most is right in the mean.
        "labelling" is the most probable labelling also where hidden states make several paths one, of which "viterbi" finds
        the best.
    beam (int), beam_margin (float): How many states decode = "beam" keeps of those that the labellings up to a token may end
        with, and how far these may be below the best one, in log-odds; None for any distance.
    min_prob (Union[float, Dict[str, float]]): Spans with a lower probability are left out; one for all labels, or by label.
    constraints (Constraints): Rules that labellings keep.
    second_stage (FirstStage): What labels a Doc first, for templates that read stage:NAME.
    settings: Others that are saved.
    """

    _compiled: Optional[Rules] = None

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str,
        *,
        annotation: Annotation,
        loss: LabelledLoss,
        optimizer: Optional[Optimizer] = None,
        scorer: Optional[Callable] = None,
        confidence: bool = False,
        decode: str = "viterbi",
        beam: int = 8,
        beam_margin: Optional[float] = None,
        min_prob: MinProb = 0.0,
        constraints: "Optional[Constraints]" = None,
        second_stage: "Optional[FirstStage]" = None,
        **settings: Any,
    ):
        self.name = name
        checks.one_of(self.owner, "decode", decode, DECODERS)
        beam, beam_margin = _check_beam(self.owner, beam, beam_margin)
        min_prob = check_min_prob(self.owner, min_prob)
        if decode == "spans" and min_prob == 0.0:
            self.warn(Warnings.CRFW422)
        for key in ("alternatives_spans_key", "incorrect_spans_key"):
            if settings.get(key) is not None:
                checks.text(self.owner, key, settings[key])
        checks.flag(self.owner, "confidence", confidence)
        block = f'a block [components.{name}.constraints] that begins with @misc = "spacy_crf.constraints.v1"'
        is_block = constraints is None or hasattr(constraints, "rules")
        checks.expect(is_block, self.owner, "constraints", constraints, block)
        self.first_stage = second_stage
        self.constraints = constraints
        self._own_rules = len(constraints.rules) if constraints is not None else 0  # from the config; others are added
        learns: dict[str, Any] = {"annotation": annotation, "loss": loss, "optimizer": optimizer, "scorer": scorer}
        how = {"decode": decode, "beam": beam, "beam_margin": beam_margin, "min_prob": min_prob}
        settings = {"confidence": confidence, **how, **settings}
        super().__init__(vocab, model, name, **learns, **settings)
        if self.rules_train and not isinstance(loss, ClampedLoss):
            what, reason = f"the rules of '{name}'", "it ignores rules, which in_training = true puts into training"
            raise cant_train(loss, what, reason, CLAMPED_LOSSES)

    def _labels_changed(self) -> None:
        super()._labels_changed()
        self._compiled = None
        self.follow_settings()

    def follow_settings(self) -> None:
        """Switch the search for the best labelling to the beam that the settings name.

        RAISES (ValueError): If the settings are not possible, or the model knows no beam.
        """
        beam, decode = None, self.cfg["decode"]
        if decode not in DECODERS:
            checks.one_of(self.owner, "decode", decode, DECODERS)
        if decode == "beam":
            states, margin = _check_beam(self.owner, self.cfg["beam"], self.cfg["beam_margin"])
            beam = registry.get("misc", "spacy_crf.beam.v1")(states, np.inf if margin is None else margin)
        if beam != self.decoding.beam:
            structure = self.decoding.structure
            self.decoding.searched = structure if beam is None else structure.within(beam)
            self.decoding.beam = beam
            self._compiled = None

    def check_settings(self) -> None:
        super().check_settings()
        self.rules()
        least_of_labels(self.name, self.cfg["min_prob"], self.labels)

    def assigns(self) -> list[str]:
        return [*super().assigns(), *(["span._.crf_prob"] if self.cfg["confidence"] else [])]

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc]) -> Prediction:
        """Best valid tags of a batch of Docs that keep the rules, around the annotation they have already.

        docs (Iterable[Doc]): The Docs, which stay as they are.
        RETURNS (Prediction)
        RAISES (ValueError): If the component has no labels, or was not initialized.
        """
        if not isinstance(docs, DocBatch):
            docs = DocBatch(only_docs(self.name, docs))
        self.require_ready(docs)
        return predict(self.parts(), docs)

    def parts(self) -> Parts:
        """What the component predicts by, with the rules compiled, as its settings are now.

        RETURNS (Parts)
        RAISES (ValueError): If settings are not possible, or rules don't fit the labels.
        """
        self.follow_settings()
        rules = None if self.constraints is None else self.rules()
        return Parts(self.name, self.model, self.annotation, self.decoding, rules, self.cfg, self.told)

    def set_annotations(self, docs: Iterable[Doc], prediction: Prediction) -> None:
        """Write what was predicted, beside what is there.

        docs (Iterable[Doc]): The Docs that were predicted.
        prediction (Prediction): What `predict` gave.
        """
        for vocab in {doc.vocab for doc in docs} - {self.vocab}:  # Docs of another pipeline
            self.annotation.introduce(vocab)
        present = self.annotation.write(docs, prediction)
        if prediction.probabilities is not None:
            write_probabilities(docs, prediction, self.decoding, present)

    # ----------------------------------------------------------------------------------------------------- rules

    def add_rule(self, rule: dict[str, Any]) -> None:
        """Add a rule. It is enforced from now on, after those that are there, and saved with the component.

        rule (Dict[str, Any]): Such as {"rule": "at_most", "label": "ZIP", "n": 1}.
        RAISES (ValueError): With what is wrong about it; the rules stay as they were.
        """
        from ..constraints.settings import Constraints

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

            matcher = RuleMatcher(self.vocab, self.constraints.rules, self.decoding.tag_of)
            self._compiled = Rules(self.decoding.compile_rules(self.constraints), matcher)
        return self._compiled

    @property
    def rules_train(self) -> bool:
        """Whether the rules hold in training too."""
        return self.constraints is not None and self.constraints.in_training

    # --------------------------------------------------------------------------------------------- probabilities

    def marginals(self, doc: Doc, *, keep_annotation: bool = False) -> tuple[Floats, list[str]]:
        """Probability of each tag at each token.

        doc (Doc): The text. Nothing is written to it.
        keep_annotation (bool): Whether annotation that the Doc has already counts as certain, as it does in the pipeline; by
            default it is left out of account.
        RETURNS (float64[T, tags], List[str]): Rows with sum 1, and the names of the tags.
        """
        return self.distribution(doc, keep_annotation=keep_annotation).marginals(), self.tags()

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
        segments, probabilities = self.distribution(doc, keep_annotation=keep_annotation).likely_spans(min_prob)
        spans = self.spans_of(doc, segments)
        order = np.argsort(-probabilities, kind="stable").tolist()
        return [(spans[n], float(probabilities[n])) for n in order]

    def n_best(self, doc: Doc, n: int, *, keep_annotation: bool = False) -> list[tuple[float, list[Span]]]:
        """The most probable labellings.

        doc (Doc): The text.
        n (int): How many at most.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[Tuple[float, List[Span]]]): Probability and spans of each, best first.
        """
        n = checks.count(self.owner, "n", n, most=100_000)
        distribution = self.distribution(doc, keep_annotation=keep_annotation)
        return [
            (probability, self.spans_of(doc, self.decoding.segments(tags, distribution.starts)))
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
        distribution = self.distribution(doc, keep_annotation=keep_annotation)
        inner = distribution.starts[1:-1]
        if any(label not in self.labels or ((inner > begin) & (inner < end)).any() for begin, end, label in found):
            return -np.inf
        columns = zip(*((begin, end, self.labels.index(label)) for begin, end, label in found))
        segments = Segments(*(np.array(c, dtype=np.int64) for c in columns)) if found else NO_SEGMENTS
        return distribution.log_probability(self.annotation.path(segments, distribution.starts))

    def sample(self, doc: Doc, n: int, seed: int, *, keep_annotation: bool = False) -> list[list[Span]]:
        """Labellings drawn from their distribution.

        doc (Doc): The text.
        n (int): How many.
        seed (int): One seed, one answer.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[List[Span]])
        """
        n = checks.count(self.owner, "n", n, least=0)
        seed = checks.count(self.owner, "seed", seed, least=0, most=checks.ANY)
        distribution = self.distribution(doc, keep_annotation=keep_annotation)
        drawn = distribution.sample(n, seed)
        return [self.spans_of(doc, self.decoding.segments(tags, distribution.starts)) for tags in drawn]

    def bounds(self, doc: Doc, *, keep_annotation: bool = False) -> tuple[float, float]:
        """What the log partition of a Doc lies between: the logarithm of the sum over all labellings of exp(score), by which
        probabilities are normalised. Both are the same where it is known exactly, as of chains.

        doc (Doc): The text.
        keep_annotation (bool): See `marginals`.
        RETURNS (Tuple[float, float]): Lower and upper bound.
        """
        return self.distribution(doc, keep_annotation=keep_annotation).bounds()

    def distribution(self, doc: Doc, *, keep_annotation: bool = False) -> "Distribution":
        """What the other methods ask: the distribution over the labellings of a Doc.

        doc (Doc): The text.
        keep_annotation (bool): See `marginals`.
        RETURNS (Distribution)
        """
        from .probabilities import distribution

        parts, docs, scores, clamp, question = self._ask_about(doc, keep_annotation)
        found = distribution(parts, docs, scores, clamp)
        if question is None or question.kept is None:
            return found
        return found._replace(kept=question.kept, starts=question.starts)

    def proven(self, doc: Doc, *, keep_annotation: bool = False) -> bool:
        """Whether the labelling that decode = "beam" finds in a text is the most probable one: the exact search is asked too.

        doc (Doc): The text.
        keep_annotation (bool): See `marginals`.
        RETURNS (bool): With decode = "viterbi" whether the search is exact, in the time that rules leave it.
        """
        from .probabilities import proven

        return proven(*self._ask_about(doc, keep_annotation)[:4])

    def _ask_about(self, doc: Doc, keep_annotation: bool) -> tuple[Parts, Any, Any, Any, "Optional[Question]"]:
        """The Doc, its scores, what is still allowed, and what that leaves to be asked if anything is settled."""
        from .preset_annotation import restrict

        check_doc(self.name, doc)
        docs, parts = DocBatch([doc]), self.parts()
        self.require_ready(docs)
        scores = self.model.predict(docs)
        question = restrict(parts, docs, scores, self.annotation.preset(docs) if keep_annotation else None)
        return (parts, docs, scores, None, None) if question is None else (parts, *question[:3], question)

    def spans_of(self, doc: Doc, segments: Segments) -> list[Span]:
        """Spans of a Doc, with their labels."""
        labels = self.labels
        return [Span(doc, b, e, label=labels[n]) for b, e, n in zip(*(column.tolist() for column in segments))]

    # --------------------------------------------------------------------------------------------- explanations

    def explain(
        self, doc: Doc, span: Optional[Span] = None, against: Any = None, kind: str = "contrast", **options: Any
    ) -> Any:
        """Why a span is found, or is not: what each weight, each feature or each word has to do with it.

        doc (Doc): The text. Nothing is written to it.
        span (Span): With its label; without one the most probable is taken. None for the best labelling as a whole.
        against (Union[str, Span, Iterable[Span]]): What it is compared with: another label of these tokens ("O" for none),
            another span, or a complete labelling. By default everything else, or without a span the second best labelling.
        kind (str): "contrast", the best labelling with the span and the best one without it: the difference of their scores.
            "log_odds", how likely the span is, split up among all weights. "leave_out", what the log-odds lose without each
            feature, one at a time. "words", the same for each word, and other words that would change the decision.
            "texts", the contrast split up among the texts of training: shares that add up, which is not what would change
            without a text. That, the `effect` on the log-odds, is told too where it is asked for.
        **options: Of "words": `candidates`, how many words of each label are tried. Of "texts": `corpus`, the Examples of
            training, `l2` and `l1`, by default those of the component's own optimizer, and `effect`, for how many of the texts
            it is told what would change without them: True for all.
        RETURNS (Explanation)
        RAISES (ValueError): For a span that can't be asked about.
        """
        return registry.get("misc", "spacy_crf.explain.v1")(self, doc, span, against, kind, **options)

    # -------------------------------------------------------------------------------------------------- scoring

    def score(self, examples: Iterable[Example], **kwargs: Any) -> dict[str, Any]:
        """What the scorer says; with confidence, how far the probabilities can be trusted too; with decode = "beam", in which
        share of the texts it finds the most probable labelling."""
        examples = list(examples)
        scores = super().score(examples, **kwargs)
        if self.cfg["confidence"]:
            from .scorers import score_calibration

            scores.update(score_calibration(self.annotation, examples))
        if self.cfg["decode"] == "beam" and examples:
            is_proven = [self.proven(example.predicted) for example in examples]
            scores[f"{self.annotation.scores_prefix}_proven"] = sum(is_proven) / len(is_proven)
        return scores

    # --------------------------------------------------------------------------------------------------- saving

    def __reduce__(self):
        make, arguments, state = super().__reduce__()
        return make, arguments, {**state, "_compiled": None}

    def _settings(self) -> dict[str, Any]:
        if self.constraints is None:
            return self.cfg
        tables = self.constraints.tables
        return {**self.cfg, "rules": {"config": tables[: self._own_rules], "added": tables[self._own_rules :]}}

    def _take_settings(self, saved: dict[str, Any]) -> None:
        super()._take_settings(saved)
        rules = saved.get("rules")
        if rules is not None and (rules["config"] or rules["added"]):
            from ..constraints.settings import Constraints

            # The config has the last word about its rules, unless it names a file that did not come along.
            mine, own = self.constraints or Constraints([]), rules["config"]
            if not mine.missing:
                tables = mine.tables[: self._own_rules]
                own = [next((rule for rule in own if is_written(rule, table)), table) for table in tables]
            self.constraints = mine.replaced([*own, *rules["added"]])
            self._own_rules = len(own)


def _check_beam(owner: str, states: Any, margin: Any) -> tuple[int, Optional[float]]:
    states = checks.count(owner, "beam", states)
    return states, None if margin is None else checks.number(owner, "beam_margin", margin)
