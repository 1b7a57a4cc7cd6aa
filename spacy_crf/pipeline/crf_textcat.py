"""One label for each text, written to ``doc.cats``."""

import itertools
from collections.abc import Callable, Iterable
from inspect import Parameter, signature
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import registry

from .. import checks
from ..errors import Errors, cant_train, known_names
from ..features.doc_batch import SENT, DocBatch
from ..losses.clamped import CLAMPED_LOSSES, ClampedLoss, LabelledLoss
from ..types import Floats
from .annotation.annotation import GoldReport, Supervision
from .annotation.cats import Cats
from .decoding import Decoding
from .labels import check_doc, only_docs
from .supervision import Keys
from .training import LearningPipe


class TextDecoding(Decoding):
    """Decoding of texts: states are the labels, and a clamp is bool[D, Y] for D texts."""

    @property
    def looks_at_sentences(self) -> bool:
        return self.model.attrs["role"].unit == SENT

    def require_sentences(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): CRF470 for a Doc without sentences if sentences have scores."""
        if self.looks_at_sentences:
            for doc in docs:
                if len(doc) > 1 and not doc.has_annotation("SENT_START"):
                    raise ValueError(Errors.CRF470.format(name=self.annotation.name, text=doc.text[:40]))

    def starts(self, docs: list[Doc]) -> NDArray[np.int64]:
        self.require_sentences(docs)
        return super().starts(docs)

    bounds = starts  # a text is one sequence

    def probabilities(self, scores: Any) -> Floats:
        """Probability of each label: float64[D, Y]."""
        return self.structure.marginals(scores)

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: NDArray[np.int64], keys: Keys, report: GoldReport
    ) -> Supervision:
        return gold


class TextPrediction(NamedTuple):
    probabilities: Floats  # [D, Y] rows sum to 1
    hidden: Optional[list[dict[str, Any]]] = None  # evidence of each text if `explain` is set


class CRFTextClassifier(LearningPipe):
    """Gives each text one label (factory ``crf_textcat``).

    threshold (float): As in spaCy's `textcat`: it is saved and passed to the scorer, which ignores it for exclusive labels.
    exclusive_classes (bool): True.
    confidence (bool): Whether ``doc._.crf_prob`` gets the largest probability.
    explain (bool): Whether ``doc._.crf_hidden`` gets the evidence of each part of a Doc for its label.
    """

    labelled = "texts"
    decoding: TextDecoding

    def __init__(
        self,
        vocab,
        model,
        name="crf_textcat",
        *,
        loss,
        threshold: float = 0.0,
        exclusive_classes: bool = True,
        confidence: bool = False,
        explain: bool = False,
        **settings,
    ):
        self.name = name
        threshold = checks.number(self.owner, "threshold", threshold, most=1.0)
        checks.flag(self.owner, "exclusive_classes", exclusive_classes)
        must = "true, since a text has one label of this component. For several labels add a component for each "
        must += "question, or take spaCy's textcat_multilabel"
        checks.expect(exclusive_classes, self.owner, "exclusive_classes", False, must)
        if isinstance(loss, LabelledLoss) and not isinstance(loss, ClampedLoss):
            reason = "it is made of terms of single tokens, and a text has one label"
            raise cant_train(loss, f"component '{name}'", reason, CLAMPED_LOSSES)
        for setting, value in (("confidence", confidence), ("explain", explain)):
            checks.flag(self.owner, setting, value)
        own = {"threshold": threshold, "exclusive_classes": True, "positive_label": None}
        own |= {"confidence": confidence, "explain": explain}
        super().__init__(vocab, model, name, annotation=Cats(), loss=loss, **own, **settings)

    def check_settings(self) -> None:
        """RAISES (ValueError): CRF469 if there are fewer than two labels."""
        super().check_settings()
        if len(self.labels) < 2:
            raise ValueError(Errors.CRF469.format(name=self.name, labels=", ".join(self.labels) or "none"))
        positive = self.cfg["positive_label"]
        is_possible = positive is None or (positive in self.labels and len(self.labels) == 2)
        must = f"one of exactly two labels. Labels: {known_names(self.labels, positive)}"
        checks.expect(is_possible, self.owner, "positive_label", positive, must)

    def assigns(self) -> list[str]:
        written = {"confidence": "doc._.crf_prob", "explain": "doc._.crf_hidden"}
        return [*super().assigns(), *(name for setting, name in written.items() if self.cfg[setting])]

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read, and sentence starts if sentences have scores."""
        sentences = ["sent_start"] if self.decoding.looks_at_sentences else []
        return list(dict.fromkeys([*super().token_attributes, *sentences]))

    def predict(self, docs: Iterable[Doc]) -> TextPrediction:
        """Probability of each label for each text of a batch. The Docs are not changed.

        RAISES (ValueError): If the component has no labels or is not initialized; CRF470 for Docs without sentences if sentences
            have scores.
        """
        if not isinstance(docs, DocBatch):
            docs = DocBatch(only_docs(self.name, docs))
        self.require_ready(docs)
        self.decoding.require_sentences(docs)
        probabilities = self.decoding.probabilities(self.model.predict(docs))
        return TextPrediction(probabilities, self._hidden(docs, probabilities) if self.cfg["explain"] else None)

    def predict_together(self, docs: Iterable[Doc]) -> TextPrediction:
        """Like `predict`, for Docs that form one collection whatever their ``doc._.crf_group``: links tie them to each other if
        the model is `spacy_crf.LinkedTexts.v1`. `set_annotations` writes the result.

        RAISES (ValueError): As `predict`; CRF492 for invalid links, CRF493 for two Docs with one id.
        """
        batch = DocBatch(only_docs(self.name, docs))
        batch.together = True
        return self.predict(batch)

    def set_annotations(self, docs: Iterable[Doc], prediction: TextPrediction) -> None:
        """Write the probabilities to ``doc.cats``; values of other labels stay."""
        labels = self.labels
        for doc, row in zip(docs, prediction.probabilities.tolist()):
            doc.cats.update(zip(labels, row))
            if self.cfg["confidence"]:
                doc._.crf_prob = max(row)
        if prediction.hidden is not None:
            for doc, hidden in zip(docs, prediction.hidden):
                doc._.crf_hidden = hidden

    def _hidden(self, docs: DocBatch, probabilities: Floats) -> list[dict[str, Any]]:
        """Evidence for the most probable label of each text, in a form that a DocBin can store: the units (int64[U, 2], first
        token and the token behind the last), their contributions to the log-odds (float64[U]), and with hidden states the
        probabilities of these (float64[U, H])."""
        node, names, best = self.model.attrs["role"], self.labels, probabilities.argmax(axis=1)
        reasons, states = node.reasons(self.model, docs), node.states_below(self.model, docs, best)
        (tokens, texts), evidence = reasons.units, reasons.evidence(best)
        told = []
        for d, (begin, end) in enumerate(itertools.pairwise(texts.tolist())):
            edges = tokens[begin : end + 1] - docs.bounds[d]
            of_text = {"label": names[best[d]], "units": np.column_stack([edges[:-1], edges[1:]])}
            of_text["evidence"] = evidence[begin:end].copy()
            if states is not None:
                of_text["states"] = states[begin:end].copy()
            told.append(of_text)
        return told

    def evidence(self, doc: Doc, label: Optional[str] = None) -> list[tuple[Span, float]]:
        """The parts of a text that speak for a label: how much the log-odds of the label fall without the features of a token, or
        of a sentence if sentences have hidden states. The Doc is not changed.

        label (str): The label, None for the most probable one.
        RETURNS (List[Tuple[Span, float]]): Parts in the order of the text; values below 0 speak against the label.
        RAISES (ValueError): CRF846 for a label that the component does not have.
        """
        check_doc(self.name, doc)
        docs, node = DocBatch([doc]), self.model.attrs["role"]
        [row] = self.predict(docs).probabilities
        checks.labels(self.owner, [] if label is None else [label], self.labels)
        reasons = node.reasons(self.model, docs)
        chosen = row.argmax() if label is None else self.labels.index(label)
        spans = [doc[begin:end] for begin, end in itertools.pairwise(reasons.units.tokens.tolist())]
        return [*zip(spans, reasons.evidence(np.array([chosen])).tolist())]

    def probabilities(self, doc: Doc) -> dict[str, float]:
        """RETURNS (Dict[str, float]): Probability of each label of one text, the most probable first. The Doc is not changed."""
        check_doc(self.name, doc)
        [row] = self.predict([doc]).probabilities.tolist()
        return dict(sorted(zip(self.labels, row), key=lambda item: -item[1]))

    def explain(
        self,
        doc: Doc,
        label: Optional[str] = None,
        against: Optional[str] = None,
        kind: str = "contrast",
        **options: Any,
    ) -> Any:
        """Explain why a text has a label or does not have it: the share of each weight, feature or word in the decision. In a
        naive Bayes model, the weight of a feature is the logarithm of its relative frequency under a label.

        label (str): The label; None for the most probable one.
        against (str): The label to compare with; None for all others.
        kind (str): "contrast": the difference between the scores of the label and of the most probable other label, which is the
            sum of the rows: each weight, times how much more often the label uses it. In a hidden chain these are expected uses
            under each of the two labels, and the `base` is the difference of the entropies of the hidden states. "log_odds": the
            log-odds of the label, split up among all weights by integrated gradients. "leave_out": the loss of log-odds without
            each feature at each token. "words": the same for each word, and other words that would change the decision. "texts",
            for MaxEntText models: the contrast, split up among the training texts.
        **options: See `CRFPipe.explain`.
        RETURNS (Explanation)
        RAISES (ValueError): CRF846 for an unknown label, CRF840 if the decision cannot be split up among the texts.
        """
        return registry.get("misc", "spacy_crf.explain.v1")(self, doc, label, against, kind, **options)

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        positive_label: Optional[str] = None,
        **settings: Any,
    ) -> None:
        """See `LearningPipe.initialize`.

        positive_label (str): With two labels, the one whose F1 is the score, as in spaCy's `textcat`.
        RAISES (ValueError): CRF469 for fewer than two labels, CRF020 for a positive label that is not one of two labels.
        """
        before, self.cfg["positive_label"] = self.cfg["positive_label"], positive_label
        try:
            super().initialize(get_examples, **settings)
        except BaseException:
            self.cfg["positive_label"] = before
            raise

    # spaCy checks [initialize.components.NAME] against these parameters
    _inherited = signature(LearningPipe.initialize)
    _own = Parameter("positive_label", Parameter.KEYWORD_ONLY, default=None, annotation=Optional[str])
    initialize.__signature__ = _inherited.replace(parameters=[*_inherited.parameters.values(), _own])

    def _take_settings(self, saved: dict[str, Any]) -> None:
        super()._take_settings(saved)
        self.cfg["positive_label"] = saved.get("positive_label")
