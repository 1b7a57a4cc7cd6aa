"""Labels of texts, written to ``doc.cats``: one for each text, or several."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Optional, Union

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline.textcat import textcat_score
from spacy.pipeline.textcat_multilabel import textcat_multilabel_score
from spacy.tokens import Doc, Span
from spacy.training import Example

from .. import checks
from ..errors import Errors, cant_train, known_names
from ..features.clusters import ClusterSource
from ..features.doc_batch import DocBatch
from ..features.gazetteers import GazetteerFile
from ..features.word_vectors import VectorSource
from ..losses.clamped import CLAMPED_LOSSES, ClampedLoss, LabelledLoss
from ..models.texts import allow_several
from ..types import Floats, Settings
from . import set_text_certainty
from .annotation.cats import Cats, SeveralCats
from .annotation.entities import GoldReport, Keys, Supervision
from .decoding import Decoding
from .pipe import LearningPipe, batches
from .prediction import MinProb, label_thresholds, read_min_prob


class TextDecoding(Decoding):
    """Decoding of texts: states are the labels, and a clamp is bool[D, Y] for D texts."""

    def bounds(self, docs: list[Doc]) -> NDArray[np.int64]:
        """Bounds of the scores of each Doc (int64[D + 1]): a text is one sequence."""
        return self.starts(docs)

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: NDArray[np.int64], keys: Keys, report: GoldReport
    ) -> Supervision:
        """RETURNS (Supervision): `gold`: texts have neither alternatives nor incorrect spans."""
        return gold


class TextPrediction(NamedTuple):
    """The labels of a batch of texts."""

    probabilities: Floats  # [D, Y] rows sum to 1, unless texts may have several labels
    evidence: Optional[list[dict[str, Any]]] = None  # evidence of each text if `explain` is set
    confidence: Optional[Floats] = None  # [D] probability of what was decided if `confidence` is set


class CRFTextClassifier(LearningPipe):
    """Gives each text one label, or several (factory ``crf_textcat``).

    multilabel (bool): Whether texts may have several labels, or none.
    threshold (Union[float, Dict[str, float], None]): With several labels, the least probability of labels that a text has, or a
        table by label ("*" for all others); None for 0.5. For one label the scorer ignores it, as in spaCy's `textcat`.
    exclusive_classes (Optional[bool]): As in spaCy's `textcat`: the opposite of `multilabel`.
    confidence (bool): Whether ``doc._.crf_prob`` gets the probability of the label, or of the set of labels.
    explain (bool): Whether ``doc._.crf_evidence`` gets the evidence of each part of a Doc for its label.
    """

    labelled = "texts"
    threshold_setting = "threshold"
    decoding: TextDecoding

    def __init__(
        self,
        vocab,
        model,
        name="crf_textcat",
        *,
        loss,
        multilabel: bool = False,
        threshold: Optional[MinProb] = None,
        exclusive_classes: Optional[bool] = None,
        confidence: bool = False,
        explain: bool = False,
        **settings,
    ):
        self.name = name
        multilabel = checks.flag(self.owner, "multilabel", multilabel)
        if threshold is None:
            threshold = 0.5 if multilabel else 0.0
        threshold = read_min_prob(self.owner, threshold, "threshold")
        checks.expect(
            multilabel or isinstance(threshold, float),
            self.owner,
            "threshold",
            threshold,
            "a number, since a text has one label; multilabel = true takes a table",
        )
        if exclusive_classes is not None:
            checks.flag(self.owner, "exclusive_classes", exclusive_classes)
            checks.expect(
                exclusive_classes != multilabel,
                self.owner,
                "exclusive_classes",
                exclusive_classes,
                f"{str(not multilabel).lower()} or null. Whether texts have several labels is up to multilabel",
            )
        if multilabel:
            allow_several(model)
        if multilabel and settings.get("scorer") is textcat_score:  # the default, which compares single labels
            settings["scorer"] = textcat_multilabel_score
        if isinstance(loss, LabelledLoss) and not isinstance(loss, ClampedLoss):
            reason = "it is made of terms of single tokens, and a text has one label"
            raise cant_train(loss, f"component '{name}'", reason, CLAMPED_LOSSES)
        for setting, value in (("confidence", confidence), ("explain", explain)):
            checks.flag(self.owner, setting, value)
        super().__init__(
            vocab,
            model,
            name,
            annotation=SeveralCats() if multilabel else Cats(),
            loss=loss,
            multilabel=multilabel,
            threshold=threshold,
            positive_label=None,
            exclusive_classes=not multilabel,
            confidence=confidence,
            explain=explain,
            **settings,
        )

    def check_settings(self) -> None:
        """RAISES (ValueError): CRF469 if there are fewer than two labels that exclude each other."""
        super().check_settings()
        label_thresholds(self.name, self.cfg["threshold"], self.labels, "threshold")
        if len(self.labels) < 2 and not self.cfg["multilabel"]:
            raise ValueError(Errors.CRF469.format(name=self.name, labels=", ".join(self.labels) or "none"))
        positive = self.cfg["positive_label"]
        is_possible = positive in self.labels and len(self.labels) == 2 and not self.cfg["multilabel"]
        checks.expect(
            is_possible or positive is None,
            self.owner,
            "positive_label",
            positive,
            f"one of exactly two labels that exclude each other. Labels: {known_names(self.labels, positive)}",
        )

    def assigns(self) -> list[str]:
        """Attributes that the component writes, by its settings."""
        written = {"confidence": "doc._.crf_prob", "explain": "doc._.crf_evidence"}
        return [*super().assigns(), *(name for setting, name in written.items() if self.cfg[setting])]

    def predict(self, docs: Iterable[Doc]) -> TextPrediction:
        """Probability of each label for each text of a batch. The Docs are not changed.

        RAISES (ValueError): If the component has no labels or is not initialized.
        """
        docs = self.require_ready(docs)
        structure = self.decoding.structure
        scores = self.model.predict(docs)
        # States: each label is present; then, with `multilabel`, each label is absent
        probabilities = structure.marginals(scores)[:, : len(self.labels)]
        confidence = None  # the probability of all decisions about a text together
        if self.cfg["confidence"] and not self.cfg["multilabel"]:
            confidence = probabilities.max(axis=1, initial=0.0)
        elif self.cfg["confidence"]:
            # P(this set of labels) = Z(clamp of the set) / Z
            decided = probabilities >= self._thresholds()
            confidence = np.exp(
                structure.log_partition(scores, clamp=np.concatenate([decided, ~decided], axis=1))
                - structure.log_partition(scores)
            )
        return TextPrediction(
            probabilities=probabilities,
            evidence=self._evidence(docs, probabilities) if self.cfg["explain"] else None,
            confidence=confidence,
        )

    def set_annotations(self, docs: Iterable[Doc], prediction: TextPrediction) -> None:
        """Write the probabilities of a prediction to ``doc.cats`` of its Docs; values of other labels stay."""
        docs = list(docs)
        labels = self.labels
        for doc, row in zip(docs, prediction.probabilities.tolist()):
            doc.cats.update(zip(labels, row))
        if prediction.confidence is not None:
            for doc, probability in zip(docs, prediction.confidence.tolist()):
                cats = {label: doc.cats[label] for label in labels}
                set_text_certainty(doc, probability, cats)
        if prediction.evidence is not None:
            for doc, evidence in zip(docs, prediction.evidence):
                doc._.crf_evidence = evidence

    def _evidence(self, docs: DocBatch, probabilities: Floats) -> list[dict[str, Any]]:
        """Evidence for the most probable label of each text, in a form that a DocBin can store: the units (int64[U, 2], first
        token and the token behind the last), and what is known of them, such as their contributions to the log-odds (float64[U]).
        """
        best = probabilities.argmax(axis=1)  # [D] number of the most probable label
        reasons = self.model.attrs["node"].reasons(self.model, docs)
        unit_starts, text_starts = reasons.units
        unit_values = reasons.of_units(best)
        evidence = []
        for d, (begin, end) in enumerate(itertools.pairwise(text_starts.tolist())):
            edges = unit_starts[begin : end + 1] - docs.bounds[d]  # in tokens of the Doc
            values = {name: array[begin:end].copy() for name, array in unit_values.items()}
            units = np.column_stack([edges[:-1], edges[1:]])
            evidence.append({"label": self.labels[best[d]], "units": units, **values})
        return evidence

    def evidence(self, doc: Doc, label: Optional[str] = None) -> list[tuple[Span, float]]:
        """The parts of a text that speak for a label: how much the log-odds of the label fall without the features of a token, or
        of a sentence if sentences have scores. The Doc is not changed.

        label (str): The label, None for the most probable one.
        RETURNS (List[Tuple[Span, float]]): Parts in the order of the text; values below 0 speak against the label.
        RAISES (ValueError): CRF846 for a label that the component does not have.
        """
        docs = self.require_ready([doc])
        node = self.model.attrs["node"]
        [row] = self.predict(docs).probabilities
        checks.labels(self.owner, [] if label is None else [label], self.labels)
        reasons = node.reasons(self.model, docs)
        chosen = row.argmax() if label is None else self.labels.index(label)
        spans = [doc[begin:end] for begin, end in itertools.pairwise(reasons.units.tokens.tolist())]
        return [*zip(spans, reasons.of_units(np.array([chosen]))["evidence"].tolist())]

    def probabilities(self, doc: Doc) -> dict[str, float]:
        """RETURNS (Dict[str, float]): Probability of each label of one text, the most probable first. The Doc is not changed."""
        [row] = self.predict([doc]).probabilities.tolist()
        return dict(sorted(zip(self.labels, row), key=lambda item: -item[1]))

    def _thresholds(self) -> Floats:
        """The least probability of each label that a text has: float64[Y]."""
        thresholds = label_thresholds(self.name, self.cfg["threshold"], self.labels, "threshold")
        return np.zeros(len(self.labels)) if thresholds is None else thresholds

    def labels_of(self, doc: Doc) -> list[str]:
        """RETURNS (List[str]): The labels of a text, the most probable first: its most probable one; with `multilabel` all whose
        probability reaches the `threshold`. The Doc is not changed."""
        return self.decided(self.probabilities(doc))

    def decided(self, probabilities: dict[str, float]) -> list[str]:
        """RETURNS (List[str]): The labels of a text with these probabilities of labels, see `labels_of`."""
        by_probability = dict(sorted(probabilities.items(), key=lambda item: -item[1]))
        if not self.cfg["multilabel"]:
            return [*by_probability][:1]
        thresholds = dict(zip(self.labels, self._thresholds().tolist()))
        return [label for label, probability in by_probability.items() if probability >= thresholds[label]]

    def best_labels(self, doc: Doc) -> list[str]:
        """RETURNS (List[str]): The most probable set of labels of a text, which may differ from the set of labels that are each
        probable; without `multilabel`, the most probable label. The Doc is not changed."""
        if not self.cfg["multilabel"]:
            return self.labels_of(doc)
        docs = self.require_ready([doc])
        [states] = self.decoding.structure.viterbi(self.model.predict(docs)).states
        return [label for label, state in zip(self.labels, states.tolist()) if state == 1]

    @property
    def by_probability(self) -> bool:
        """Whether a threshold of probabilities decides, which `spacy_crf.fit_min_prob.v1` can fit."""
        return self.cfg["multilabel"]

    def threshold_settings(self, threshold: MinProb) -> Settings:
        """The settings by which a text has all labels that are at least as probable as the `threshold`."""
        return {"threshold": threshold}

    def probabilities_and_annotation(self, examples: list[Example]) -> tuple[Floats, NDArray[np.bool_]]:
        """With `multilabel`: the probability of each label of texts (float64[D, Y]), and which labels their annotation says are
        present, and absent (bool[2, D, Y])."""
        docs = [example.predicted for example in examples]
        found = [self.predict(batch).probabilities for batch in batches(self.name, docs, 256)]
        clamp = self.annotation.gold(examples, np.zeros(0, np.int64), GoldReport()).clamp
        may_have, may_lack = np.split(clamp, 2, axis=1)  # [D, Y] each
        # A label that a text may not lack is present
        return np.concatenate([np.zeros((0, len(self.labels))), *found]), np.stack([~may_lack, ~may_have])

    def score(self, examples: Iterable[Example], **settings: Any) -> dict[str, Any]:
        """Scores by the component's scorer; with `multilabel` and without another `threshold`, by that of each label."""
        if self.cfg["multilabel"]:
            settings = {
                **({} if "threshold" in settings else {"threshold": 0.5, "getter": self._around_half}),
                **settings,
            }
        return super().score(examples, **settings)

    def _around_half(self, doc: Doc, attr: str) -> dict[str, float]:
        """The probabilities of labels in ``doc.cats``, moved so that the threshold of each label becomes 0.5; 0 stays 0, 1 stays
        1. `attr` is "cats", as spaCy's scorer passes it."""
        thresholds = np.clip(self._thresholds(), 1e-12, 1.0 - 1e-12).tolist()
        cats = dict(getattr(doc, attr))
        # With p = probability and t = threshold: p (1 - t) / (p (1 - t) + (1 - p) t), which is 0.5 where p = t
        for label, t in zip(self.labels, thresholds):
            if label in cats:
                above = cats[label] * (1.0 - t)
                below = (1.0 - cats[label]) * t
                cats[label] = above / (above + below)
        return cats

    def explain(
        self,
        doc: Doc,
        label: Optional[str] = None,
        against: Optional[str] = None,
        kind: str = "words",
        **options: Any,
    ) -> Any:
        """Explain why a text has a label or does not have it: the share of each word, feature or weight in the decision. In a
        naive Bayes model, the weight of a feature is the logarithm of its relative frequency under a label.

        label (str): The label; None for the most probable one.
        against (str): The label to compare with; None for all others. With `multilabel`, None: the text without the label.
        kind (str): "words": the loss of log-odds without each word, and other words that would change the decision. "leave_out":
            the same for each feature at each token. "contrast": the difference between the scores of the label and of the most
            probable other label, which is the sum of the rows: each weight, times how much more often the label uses it. With
            `multilabel` it is the log-odds of the label.
            "log_odds": the log-odds of the label, split up among all weights by integrated gradients.
            "texts", for MaxEntText models: the contrast, split up among the training texts.
        **options: See `CRFPipe.explain`.
        RETURNS (Explanation)
        RAISES (ValueError): CRF846 for an unknown label, CRF840 if the decision cannot be split up among the texts, CRF838 for
            "leave_out" with `multilabel`.
        """
        from ..explain.explain import explain

        return explain(self, doc, label, against, kind, **options)

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        nlp: Optional[Language] = None,
        labels: Optional[list[str]] = None,
        gazetteers: Optional[dict[str, GazetteerFile]] = None,
        clusters: Optional[ClusterSource] = None,
        vectors: Optional[VectorSource] = None,
        words: Optional[dict[str, Any]] = None,
        start_from: Optional[Union[str, Path]] = None,
        corpus: Optional[Callable[[Language], Iterable[Example]]] = None,
        shards: Any = None,
        positive_label: Optional[str] = None,
    ) -> None:
        """See `LearningPipe.initialize` for the other parameters.

        positive_label (str): With two labels, the one whose F1 is the score, as in spaCy's `textcat`.
        RAISES (ValueError): CRF469 for fewer than two labels, CRF020 for a positive label that is not one of two labels.
        """
        before = self.cfg["positive_label"]
        self.cfg["positive_label"] = positive_label
        try:
            super().initialize(
                get_examples,
                nlp=nlp,
                labels=labels,
                gazetteers=gazetteers,
                clusters=clusters,
                vectors=vectors,
                words=words,
                start_from=start_from,
                corpus=corpus,
                shards=shards,
            )
        except BaseException:
            self.cfg["positive_label"] = before
            raise

    def _take_settings(self, saved: Settings) -> None:
        super()._take_settings(saved)
        self.cfg["positive_label"] = saved.get("positive_label")
