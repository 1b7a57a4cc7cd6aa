"""Components that label tokens, and the one that finds entities by chains: from Docs to their tags in batches, rules,
probabilities, explanations.

Without rules and probabilities, prediction only calls `viterbi`; other modules are imported when they are needed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vocab import Vocab
from thinc.api import Model

from .. import checks
from ..checks import is_written
from ..errors import Warnings, announcements, cant_train
from ..features.doc_batch import DocBatch
from ..losses.clamped import CLAMPED_LOSSES, ClampedLoss
from ..schemes import MANY_SPANS, Segments, choose_scheme, get_scheme
from ..types import Floats, PathScores, Settings
from . import certainties_of
from .annotation.entities import Entities, Prediction
from .decoding import Decoder, Decoding, Parts, Question, Rules, without_edges
from .pipe import LearningPipe, check_doc

if TYPE_CHECKING:
    from ..constraints.settings import Constraints
    from .distribution import Distribution
    from .two_stage import FirstStage

SEARCHES = ("viterbi", "posterior", "spans")


def predict(parts: Parts, docs: DocBatch, scores: PathScores) -> Prediction:
    """The best valid tags of a batch of Docs under the rules, given the annotation that the Docs have already.

    parts (Parts): Annotation, decoding, rules and settings of the component.
    docs (DocBatch): The Docs.
    scores (PathScores): The model's scores of the Docs.
    """
    settings = parts.settings
    preset = parts.annotation.preset(docs)
    if preset is not None:
        from .preset_annotation import warn_of_overlaps

        warn_of_overlaps(parts, docs, scores, preset)
    question = question_about(parts, docs, scores, preset)
    decoding = question.parts.decoding
    rules = question.parts.rules
    certainties: dict[str, Floats] = {}  # [N] values of the spans, by extension, if they are needed
    thresholds: Optional[Floats] = None  # [L]
    if settings["min_prob"]:
        thresholds = label_thresholds(parts.name, settings["min_prob"], parts.annotation.labels)
    # Everything but one call of `viterbi` is in another module, which few components need
    if rules is not None or decoding.decoder is not None or settings["decode"] != "viterbi":
        from .probabilities import predict as predict_ruled

        tags, certainties = predict_ruled(question, thresholds)
    elif settings["confidence"] or thresholds is not None:
        tags, probabilities = decoding.best_with_probabilities(question.scores, question.clamp)
        certainties = {"crf_prob": probabilities}
    else:
        tags = decoding.best_tags(question.scores, question.clamp)
    # With decode = "spans", rules may ask for spans below the thresholds
    if thresholds is not None and (settings["decode"] != "spans" or rules is None):
        from .probabilities import drop_unlikely

        starts = question.scores.starts
        tags, is_likely = drop_unlikely(tags, certainties["crf_prob"], thresholds, starts, decoding, question.settled)
        certainties = {name: values[is_likely] for name, values in certainties.items()}
    return Prediction(
        tags=question.tags(tags),
        starts=scores.starts,
        doc_starts=docs.bounds,
        preset=preset,
        certainties=certainties if settings["confidence"] else None,
    )


def question_about(
    parts: Parts, docs: DocBatch, scores: PathScores, preset: Optional[NDArray[np.uint64]] = None
) -> Question:
    """The part of Docs that prediction still has to label.

    parts (Parts): The parts of the component.
    docs (DocBatch): The Docs, with the scores of the model (PathScores).
    preset (Optional[NDArray[np.uint64]]): The annotation that Docs have already, from `Annotation.preset`; None to ignore it.
    """
    if preset is not None or any(doc.spans for doc in docs):
        from .preset_annotation import restrict  # prediction rarely needs it

        question = restrict(parts, docs, scores, preset)
        if question is not None:
            return question
    return whole_question(parts, docs, scores)


def whole_question(parts: Parts, docs: DocBatch, scores: PathScores) -> Question:
    """The question about all tokens of Docs; annotation that the Docs have already is ignored.

    parts (Parts): The parts of the component.
    docs (DocBatch): The Docs, with the scores of the model (PathScores).
    """

    def restricted(other_scores: PathScores) -> PathScores:
        _, decoded_scores = without_edges(parts, docs, other_scores)
        return decoded_scores

    decoding_parts, decoded_scores = without_edges(parts, docs, scores)
    return Question(
        parts=decoding_parts,
        docs=docs,
        scores=decoded_scores,
        clamp=None,
        asked=docs,
        restricted=restricted,
        starts=scores.starts,
    )


OTHERS = "*"  # key of a table by label: all labels that the table does not name
MinProb = Union[float, dict[str, float]]


def read_min_prob(owner: str, value: object, setting: str = "min_prob") -> MinProb:
    """Read a threshold of probabilities from a config, in which a table by label may be a list of pairs.

    owner (str), setting (str): The component and the setting, for messages.
    value (object): A number, or a table by label.
    RAISES (ValueError): CRF020 for other values; CRF925 and CRF926 for tables that a config would not keep.
    """
    if isinstance(value, (Mapping, list, tuple)):
        value = checks.by_label(owner, setting, value, "probabilities")
    return check_min_prob(owner, value, setting)


def check_min_prob(owner: str, value: object, setting: str = "min_prob") -> MinProb:
    """Check a threshold of probabilities, and turn it into a float, or a dict of floats by label.

    owner (str), setting (str): The component and the setting, for messages.
    RAISES (ValueError): CRF020 for a value that is neither a probability nor a table of probabilities.
    """
    if not isinstance(value, Mapping):
        return checks.number(owner, setting, value, most=1.0)
    table = checks.table(owner, setting, value, "probabilities")
    return {label: checks.number(owner, f"{setting} of {label}", p, most=1.0) for label, p in table.items()}


def label_thresholds(name: str, value: MinProb, labels: Sequence[str], setting: str = "min_prob") -> Optional[Floats]:
    """The least probability of a span of each label: float64[L]. None if all are 0, so that every span is probable enough.

    name (str), setting (str): The component and the setting, for messages.
    value (MinProb): The setting: a number for all labels, or a table by label, in which "*" stands for all other labels.
    labels (Sequence[str]): The labels of the component.
    RAISES (ValueError): CRF020 for a value that is no probability, CRF846 for labels that the component does not have.
    """
    value = check_min_prob(f"Component '{name}'", value, setting)
    if not isinstance(value, dict):
        return np.full(len(labels), value) if value > 0.0 else None
    checks.labels(f"Component '{name}', {setting} ('*' stands for all other labels)", value, [*labels, OTHERS])
    of_others = value.get(OTHERS, 0.0)
    thresholds = np.array([value.get(label, of_others) for label in labels])
    return thresholds if thresholds.any() else None


class CRFPipe(LearningPipe):
    """Base of the components that label tokens. Subclasses define the annotation, the decoding and the defaults.

    second_stage (FirstStage): The first stage, whose labels templates read as stage:NAME.

    The factories in `spacy_crf.pipeline.factories` and `LearningPipe` describe the other settings.
    """

    labelled = "tokens"
    threshold_setting = "min_prob"  # name of the setting that holds the least probability of spans
    _compiled: Optional[Rules] = None

    def __init__(
        self,
        vocab: Vocab,
        model: Model,
        name: str,
        *,
        confidence: bool = False,
        decode: str = "viterbi",
        decoder: Optional[Decoder] = None,
        min_prob: MinProb = 0.0,
        constraints: "Optional[Constraints]" = None,
        second_stage: "Optional[FirstStage]" = None,
        **settings: Any,
    ):
        self.name = name
        checks.one_of(self.owner, "decode", decode, SEARCHES)
        checks.expect(
            decoder is None or isinstance(decoder, Decoder),
            self.owner,
            "decoder",
            decoder,
            "null, or a block that makes a decoder",
        )
        min_prob = read_min_prob(self.owner, min_prob)
        # A threshold of 0 makes spans free, so every token would be in a span, however improbable
        if decode == "spans" and min_prob == 0.0:
            self.warn(Warnings.CRFW422)
        for key in ("alternatives_spans_key", "incorrect_spans_key"):
            if settings.get(key) is not None:
                checks.text(self.owner, key, settings[key])
        checks.flag(self.owner, "confidence", confidence)
        checks.expect(
            constraints is None or hasattr(constraints, "rules"),
            self.owner,
            "constraints",
            constraints,
            f'a block [components.{name}.constraints] that begins with @misc = "spacy_crf.constraints.v1"',
        )
        self.first_stage = second_stage
        self.decoder = decoder
        self.constraints = constraints
        self._own_rules = len(constraints.rules) if constraints is not None else 0  # rules of the config
        super().__init__(vocab, model, name, confidence=confidence, decode=decode, min_prob=min_prob, **settings)
        if self.rules_train and not isinstance(self.loss, ClampedLoss):
            what = f"the rules of '{name}'"
            reason = "it ignores rules, which in_training = true puts into training"
            raise cant_train(self.loss, what, reason, CLAMPED_LOSSES)

    def _labels_changed(self) -> None:
        super()._labels_changed()
        self._compiled = None
        self.follow_settings()

    def follow_settings(self) -> None:
        """Switch to the `decoder` that the component has now. RAISES (ValueError): CRF020 for an unknown `decode`, or other codes
        if the decoder does not fit the model."""
        checks.one_of(self.owner, "decode", self.cfg["decode"], SEARCHES)
        if self.decoder != self.decoding.decoder:
            self.decoding.use(self.decoder)
            self._compiled = None

    def check_settings(self) -> None:
        """Check the settings against the labels. RAISES (ValueError): If rules or thresholds do not fit them."""
        super().check_settings()
        self.rules()
        label_thresholds(self.name, self.cfg["min_prob"], self.labels)

    def assigns(self) -> list[str]:
        """Attributes that the component writes: those of the annotation, and with `confidence` extensions such as crf_prob."""
        owner = "token" if self.annotation.spans_are_tokens else "span"
        extensions = certainties_of(self.decoder) if self.cfg["confidence"] else []
        return [*super().assigns(), *(f"{owner}._.{name}" for name in extensions)]

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc], scores: Optional[PathScores] = None) -> Prediction:
        """The best valid tags of a batch of Docs under the rules, given the annotation that the Docs have already. The Docs are
        not changed.

        docs (Iterable[Doc]): The batch.
        scores (Optional[PathScores]): The model's scores of the Docs; None to compute them.
        RAISES (ValueError): If the component has no labels, or is not initialized.
        """
        batch = self.require_ready(docs)
        return predict(self.parts(), batch, self.model.predict(batch) if scores is None else scores)

    @property
    def by_probability(self) -> bool:
        """Whether the component decides each span by its probability."""
        return self.cfg["decode"] == "spans"

    def threshold_settings(self, threshold: MinProb) -> Settings:
        """The settings by which the component finds all spans that are at least as probable as the `threshold`."""
        return {"decode": "spans", "min_prob": threshold}

    def expected_spans(self, docs: DocBatch, scores: PathScores) -> float:
        """The expected number of spans in `docs` with these scores, without rules: the sum of the probabilities of all spans that
        are not negligible."""
        from ..inference.span_choice import LEAST
        from .probabilities import ask

        parts = replace(self.parts(), rules=None)
        batch = ask(whole_question(parts, docs, scores))
        return float(batch.likely_spans(LEAST).probabilities.sum())

    def parts(self) -> Parts:
        """The parts by which the component predicts and learns, with its present settings and compiled rules.

        RAISES (ValueError): If settings are not possible, or rules don't fit the labels.
        """
        self.follow_settings()
        return Parts(
            name=self.name,
            model=self.model,
            annotation=self.annotation,
            decoding=self.decoding,
            loss=self.loss,
            rules=None if self.constraints is None else self.rules(),
            settings=self.cfg,
            warned=self.warned,
        )

    def set_annotations(self, docs: Iterable[Doc], prediction: Prediction) -> None:
        """Write a prediction to its Docs, beside their present annotation."""
        for vocab in {doc.vocab for doc in docs}:
            self.annotation.add_labels_to(vocab)
        present = self.annotation.write(list(docs), prediction)
        if prediction.probabilities is not None:
            from .probabilities import write_probabilities

            write_probabilities(docs, prediction, self.decoding, present)

    # ----------------------------------------------------------------------------------------------------- rules

    def add_rule(self, rule: Settings) -> None:
        """Add a rule behind the present rules. It applies from now on, and is saved with the component.

        rule (Dict): The rule, such as {"rule": "at_most", "label": "ZIP", "n": 1}.
        RAISES (ValueError): If the rule is not possible; the other rules are unchanged.
        """
        from ..constraints.settings import Constraints

        if self.constraints is None:
            self.constraints = Constraints([])
        self.constraints.add(rule)
        # The new rule may need the warning again, which is given once: that probabilities ignore some rules
        self.warned.discard(Warnings.CRFW603)
        self._compiled = None
        try:
            if self.labels:  # otherwise `check_settings` compiles the rules, when labels are known
                self.rules()
        except ValueError:
            self.constraints.rules.pop()
            self._compiled = None
            raise

    def rules(self) -> Optional[Rules]:
        """The rules, compiled against the labels; None without rules.

        RAISES (ValueError): If rules do not fit the labels, or contradict each other.
        """
        if self.constraints is None:
            return None
        self.constraints.require_file()
        if not self.constraints.rules:
            return None
        if self._compiled is None:
            self._compiled = self._compile(self.decoding)
        return self._compiled

    def _compile(self, decoding: Decoding) -> Rules:
        """Compile the rules for the states of a decoding."""
        from .rule_matching import RuleMatcher

        assert self.constraints is not None  # as `rules` has checked
        return Rules(
            all=decoding.compile_rules(self.constraints),
            matcher=RuleMatcher(self.vocab, self.constraints.rules, decoding.tag_of),
            make=self._compile,
            made={},
        )

    @property
    def rules_train(self) -> bool:
        """Whether the rules apply in training too."""
        return self.constraints is not None and self.constraints.in_training

    # --------------------------------------------------------------------------------------------- probabilities

    def marginals(self, doc: Doc, *, keep_annotation: bool = False) -> tuple[Floats, list[str]]:
        """Probability of each tag at each token.

        doc (Doc): The text, which is not changed.
        keep_annotation (bool): Whether annotation that the Doc has already counts as certain, as in the pipeline; by default it
            is ignored.
        RETURNS (float64[T, tags], List[str]): Probabilities, rows sum to 1; and the names of the tags.
        """
        return self.distribution(doc, keep_annotation=keep_annotation).marginals(), self.tags()

    def span_probabilities(
        self, doc: Doc, min_prob: float = 0.01, *, keep_annotation: bool = False
    ) -> list[tuple[Span, float]]:
        """All spans whose probability is at least `min_prob`. The probability of a span is the sum over all labellings that
        contain exactly this span with this label.

        doc (Doc): The text.
        min_prob (float): From 0 to 1; with 0, every possible span.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[Tuple[Span, float]]): Spans with labels, and their probabilities; the most probable first.
        """
        checks.number(self.owner, "min_prob", min_prob, most=1.0)
        segments, probabilities = self.distribution(doc, keep_annotation=keep_annotation).likely_spans(min_prob)
        spans = self.spans_of(doc, segments)
        # Equally probable spans stay in the order of the text
        order = np.argsort(-probabilities, kind="stable").tolist()
        return [(spans[n], float(probabilities[n])) for n in order]

    def n_best(self, doc: Doc, n: int, *, keep_annotation: bool = False) -> list[tuple[float, list[Span]]]:
        """The most probable labellings.

        doc (Doc): The text.
        n (int): Maximum number of labellings.
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

        spans (Iterable[Span]): All spans of the labelling, with labels; other tokens are outside.
        keep_annotation (bool): See `marginals`.
        RETURNS (float): -inf for an impossible labelling.
        RAISES (ValueError): If spans overlap, or belong to another text.
        """
        from .probabilities import labelling

        check_doc(self.name, doc)
        labelled_spans = labelling(self.name, doc, spans)
        distribution = self.distribution(doc, keep_annotation=keep_annotation)
        sentence_starts = distribution.starts[1:-1]
        rows = []
        for begin, end, label in labelled_spans:
            crosses = ((sentence_starts > begin) & (sentence_starts < end)).any()
            if label not in self.labels or crosses:
                return -np.inf
            rows.append((begin, end, self.labels.index(label)))
        tags = self.annotation.path(Segments.of_rows(rows), distribution.starts)
        return distribution.log_probability(tags)

    def sample(self, doc: Doc, n: int, seed: int, *, keep_annotation: bool = False) -> list[list[Span]]:
        """Labellings drawn from their distribution.

        doc (Doc): The text.
        n (int): Number of labellings.
        seed (int): The same seed gives the same labellings.
        keep_annotation (bool): See `marginals`.
        RETURNS (List[List[Span]]): The spans of each labelling.
        """
        n = checks.count(self.owner, "n", n, least=0)
        seed = checks.count(self.owner, "seed", seed, least=0, most=checks.ANY)
        distribution = self.distribution(doc, keep_annotation=keep_annotation)
        drawn = distribution.sample(n, seed)
        return [self.spans_of(doc, self.decoding.segments(tags, distribution.starts)) for tags in drawn]

    def distribution(self, doc: Doc, *, keep_annotation: bool = False) -> "Distribution":
        """The distribution over the labellings of a Doc, from which the other methods compute their results.

        doc (Doc): The text.
        keep_annotation (bool): See `marginals`.
        """
        from .probabilities import distribution

        question = self._ask_about(doc, keep_annotation)
        distribution_of_kept = distribution(question)
        if question.kept is None:
            return distribution_of_kept
        return distribution_of_kept._replace(kept=question.kept, starts=question.starts)

    def proven(self, doc: Doc, *, keep_annotation: bool = False) -> bool:
        """Whether the component is sure to find the most probable labelling of a text: the search under rules ends within the
        time limit, and a `decoder` with its own search finds a labelling as good as that of the exact search.

        doc (Doc): The text.
        keep_annotation (bool): See `marginals`.
        """
        from .probabilities import proven

        return proven(self._ask_about(doc, keep_annotation))

    def _ask_about(self, doc: Doc, keep_annotation: bool) -> Question:
        """The part of a Doc that prediction still has to label."""
        parts = self.parts()
        docs = self.require_ready([doc])
        preset = self.annotation.preset(docs) if keep_annotation else None
        return question_about(parts, docs, self.model.predict(docs), preset)

    def spans_of(self, doc: Doc, segments: Segments) -> list[Span]:
        """Turn segments, whose labels are numbers, into Spans of a Doc."""
        labels = self.labels
        rows = np.stack(segments, axis=1).tolist()
        return [Span(doc, begin, end, label=labels[n]) for begin, end, n in rows]

    def explain(
        self,
        doc: Doc,
        span: Optional[Span] = None,
        against: Optional[Union[str, Span, Iterable[Span]]] = None,
        kind: str = "words",
        **options: Any,
    ) -> Any:
        """Explain why a span is found or is not: the share of each word, feature or weight in the decision.

        doc (Doc): The text, which is not changed.
        span (Span): The span; without a label, its most probable label is explained. None for the best labelling as a whole.
        against (Union[str, Span, Iterable[Span]]): The alternative: another label of these tokens ("O" for none), another span,
            or a complete labelling. By default everything else, or without a span the second best labelling.
        kind (str): "words": the loss of log-odds without each word, and other words that would change the decision. "leave_out":
            the same for each feature, one at a time. "contrast": the difference between the scores of the best labelling with
            the span and of the best one without it, the sum of weights. "log_odds": the log-odds of the span, split up among all
            weights. "texts": the contrast, split up among the training texts. The shares add up to it, but a share does not tell
            how the decision would change without the text; on request, `effect` estimates the change of the log-odds.
        **options: For "words": `candidates`, the number of words to try for each label (0: none), and `near`, the number of words
            on each side. For "texts": `corpus`, the training Examples, `l2` and `l1`, by default those of the component's own
            optimizer, and `effect`, the number of texts for which to estimate the change without them, True for all.
        RETURNS (Explanation)
        RAISES (ValueError): For a span that cannot be explained.
        """
        from ..explain.explain import explain

        return explain(self, doc, span, against, kind, **options)

    def score(self, examples: Iterable[Example], **kwargs: object) -> dict[str, Any]:
        """Scores of the component's scorer for examples with predicted Docs; if it finds entities or spans, also the share of
        texts in which all are right and none is missing; with confidence also the calibration of probabilities; with a `decoder`
        that searches in its own way also the share of texts for which it finds the most probable labelling. `kwargs` are settings
        of the scorer."""
        examples = list(examples)
        scores = super().score(examples, **kwargs)
        if isinstance(self.annotation, Entities):
            are_right = self.annotation.texts_right(examples)
            share = sum(are_right) / len(are_right) if are_right else None
            scores[f"{self.annotation.scores_prefix}_texts"] = share
        if self.cfg["confidence"]:
            from .scorers import score_calibration

            scores.update(score_calibration(self.annotation, examples))
        self.follow_settings()
        # The exact search takes much longer than the decoder
        if self.decoding.special_search is not None and examples:
            is_proven = [self.proven(example.predicted) for example in examples]
            scores[f"{self.annotation.scores_prefix}_proven"] = sum(is_proven) / len(is_proven)
        return scores

    # --------------------------------------------------------------------------------------------------- saving

    def _settings(self) -> Settings:
        """The settings to save, with the rules."""
        settings = super()._settings()
        if self.constraints is None:
            return settings
        tables = self.constraints.tables
        return {**settings, "rules": {"config": tables[: self._own_rules], "added": tables[self._own_rules :]}}

    def _take_settings(self, saved: Settings) -> None:
        """Take over the learned state of a saved component, see `LearningPipe`, and its rules."""
        super()._take_settings(saved)
        rules = saved.get("rules")
        if rules is not None and (rules["config"] or rules["added"]):
            from ..constraints.settings import Constraints

            # The rules of the config replace the saved ones, unless the config names a file that does not exist.
            constraints = self.constraints or Constraints([])
            config_rules = rules["config"]
            if not constraints.missing:
                present = constraints.tables[: self._own_rules]
                config_rules = [_as_saved(rule, rules["config"]) for rule in present]
            self.constraints = constraints.replaced([*config_rules, *rules["added"]])
            self._own_rules = len(config_rules)


def _as_saved(rule: Settings, saved_rules: list[Settings]) -> Settings:
    """The saved rule as which a config would read this `rule`; the rule itself if it was not saved."""
    return next((saved for saved in saved_rules if is_written(saved, rule)), rule)


class CRFEntityRecognizer(CRFPipe):
    """Finds entities (factory ``crf_ner``). Entities that a Doc has already are kept, and the rest is decoded around them.
    Entities end where a sentence is known to end.

    scheme (str): The tag scheme, "auto" to choose one by the training data. For other settings see `make_crf_ner`.
    """

    annotation: Entities

    def __init__(self, vocab, model, name="crf_ner", *, scheme: str = "BILUO", **settings):
        self._chooses_scheme = scheme == "auto"
        first_scheme = get_scheme("BILUO" if self._chooses_scheme else scheme)
        # `_labels_changed` makes the annotation. Only imported models set space_edges: they keep the answers of their program
        defaults = {
            "annotation": None,
            "scheme": first_scheme.name,
            "space_edges": False,
            "fixed_settings": ("scheme",),
        }
        super().__init__(vocab, model, name, **{**defaults, **settings})

    def make_annotation(self) -> Entities:
        """The annotation by the present settings."""
        return Entities(get_scheme(self.cfg["scheme"]), space_edges=self.cfg["space_edges"])

    def choose_settings(self, get_examples: Callable[[], Iterable[Example]]) -> None:
        """Choose the scheme by the number of labels and the lengths of the annotated entities, if it is "auto"."""
        if not self._chooses_scheme:
            return
        spans = (span for example in get_examples() for span in self.annotation.gold_spans(example.reference))
        lengths = (len(span) for span in spans if span.label_ in self.labels)
        enough = MANY_SPANS * len(self.labels)  # more lengths would choose the same scheme
        self.cfg["scheme"] = choose_scheme(len(self.labels), list(islice(lengths, enough)))
        self._labels_changed()
        announcements.info("%s: entities are encoded as %s", self.name, self.cfg["scheme"])

    def _labels_changed(self) -> None:
        self.annotation = self.make_annotation()
        super()._labels_changed()

    def _take_settings(self, saved: Settings) -> None:
        if self._chooses_scheme:
            self.cfg["scheme"] = saved["scheme"]
        self.cfg["space_edges"] = saved["space_edges"]
        super()._take_settings(saved)
