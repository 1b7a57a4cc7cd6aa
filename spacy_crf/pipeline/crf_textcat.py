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
from thinc.api import Optimizer

from .. import checks
from ..errors import Errors, Warnings, cant_train, known_names
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
    """States are the labels, and a clamp is bool[D, Y] for D texts."""

    @property
    def looks_at_sentences(self) -> bool:
        return self.model.attrs["role"].unit == SENT

    def require_sentences(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): CRF470 for a Doc without sentences, where these have scores."""
        if self.looks_at_sentences:
            for doc in docs:
                if len(doc) > 1 and not doc.has_annotation("SENT_START"):
                    raise ValueError(Errors.CRF470.format(name=self.annotation.name, text=doc.text[:40]))

    def starts(self, docs: list[Doc]) -> NDArray[np.int64]:
        self.require_sentences(docs)
        return super().starts(docs)

    bounds = starts  # a text is a sequence

    def supervise(
        self, gold: Supervision, examples: list[Example], starts: NDArray[np.int64], keys: Keys, report: GoldReport
    ) -> Supervision:
        return gold


class TextPrediction(NamedTuple):
    probabilities: Floats  # [D, Y] rows with sum 1
    hidden: Optional[list[dict[str, Any]]] = None  # of each text, what `explain` asks for


class CRFTextClassifier(LearningPipe):
    """Gives each text one label (factory ``crf_textcat``).

    threshold (float): As of spaCy's `textcat`: it is saved and given to the scorer, which needs none where labels are exclusive.
    exclusive_classes (bool): True.
    explain (bool): Whether each Doc is told which part of it speaks for its label, as ``doc._.crf_hidden``.
    """

    labelled = "texts"

    def __init__(
        self,
        vocab,
        model,
        name="crf_textcat",
        *,
        loss,
        threshold: float = 0.0,
        exclusive_classes: bool = True,
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
        checks.flag(self.owner, "explain", explain)
        own = {"threshold": threshold, "exclusive_classes": True, "explain": explain, "positive_label": None}
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
        return [*super().assigns(), *(["doc._.crf_hidden"] if self.cfg["explain"] else [])]

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read, and the sentences if these have scores."""
        sentences = ["sent_start"] if self.decoding.looks_at_sentences else []
        return list(dict.fromkeys([*super().token_attributes, *sentences]))

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc]) -> TextPrediction:
        """Probability of each label for each text of a batch.

        docs (Iterable[Doc]): The Docs, which stay as they are.
        RETURNS (TextPrediction): Its `probabilities` are float64[D, Y], rows with sum 1.
        RAISES (ValueError): If the component has no labels, or was not initialized; CRF470 for Docs without sentences, where it
            looks at these.
        """
        if not isinstance(docs, DocBatch):
            docs = DocBatch(only_docs(self.name, docs))
        self.require_ready(docs)
        self.decoding.require_sentences(docs)
        probabilities = self.decoding.structure.marginals(self.model.predict(docs))
        return TextPrediction(probabilities, self._hidden(docs, probabilities) if self.cfg["explain"] else None)

    def set_annotations(self, docs: Iterable[Doc], prediction: TextPrediction) -> None:
        """Write the probabilities to ``doc.cats``, beside what is there of other labels.

        docs (Iterable[Doc]): The Docs that were predicted.
        prediction (TextPrediction): What `predict` gave.
        """
        labels = self.labels
        for doc, row in zip(docs, prediction.probabilities.tolist()):
            doc.cats.update(zip(labels, row))
        if prediction.hidden is not None:
            for doc, hidden in zip(docs, prediction.hidden):
                doc._.crf_hidden = hidden

    def _hidden(self, docs: DocBatch, probabilities: Floats) -> list[dict[str, Any]]:
        """Evidence for the most probable label of each text, as a DocBin can hold it: the units (int64[U, 2], first token and
        the one behind the last), what each of them adds to the log-odds (float64[U]), and where there are hidden states, how
        probable these are (float64[U, H])."""
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
        """Which part of a text speaks for a label, and how much: what the log-odds of the label lose without the features of a
        token, or of a sentence where these have hidden states. Nothing is written to the Doc.

        doc (Doc): The text.
        label (str): The label, None for the most probable one.
        RETURNS (List[Tuple[Span, float]]): In the order of the text; below 0 for what speaks against the label.
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
        """Probability of each label of one text, to which nothing is written.

        doc (Doc): The text.
        RETURNS (Dict[str, float]): The most probable first.
        """
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
        """Why a text has a label, or has it not: what each weight, each feature or each word has to do with it. A naive Bayes
        model weighs a feature by the logarithm of its relative frequency below a label.

        doc (Doc): The text. Nothing is written to it.
        label (str): The label; None for the most probable one.
        against (str): The label that it is compared with; None for all others.
        kind (str): "contrast", the difference between the scores of the label and of the most probable of the others, which is
            the sum of the rows: each weight, as often as the one uses it more than the other. In a hidden chain it is as often
            as it is expected to be below each of the two labels, and by how much the hidden states are less certain below the
            one, their entropy, is the `base`. "log_odds", how likely the label is, split up among all weights by integrated
            gradients, "leave_out", what the log-odds lose without each feature at each token, "words", the same for each word,
            and other words that would change the decision. "texts", of a MaxEntText model, the contrast split up among the
            texts of training.
        **options: See `CRFPipe.explain`.
        RETURNS (Explanation)
        RAISES (ValueError): CRF846 for an unknown label, CRF840 for texts that a decision can't be split up among.
        """
        return registry.get("misc", "spacy_crf.explain.v1")(self, doc, label, against, kind, **options)

    # -------------------------------------------------------------------------------------------------- training

    def initialize(
        self,
        get_examples: Callable[[], Iterable[Example]],
        *,
        positive_label: Optional[str] = None,
        **settings: Any,
    ) -> None:
        """See `LearningPipe.initialize`.

        get_examples (Callable[[], Iterable[Example]]): The training data, read several times.
        positive_label (str): Of two labels the one whose F1 is the score, as of spaCy's `textcat`.
        RAISES (ValueError): CRF469 for fewer than two labels, CRF020 for a positive label that is none of two.
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

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optional[Optimizer] = None,
        losses: Optional[dict[str, float]] = None,
    ) -> dict[str, float]:
        if not self.model.attrs["role"].counts_alone:
            return super().update(examples, drop=drop, sgd=sgd, losses=losses)
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        self.require_ready([])
        self.warn_once(Warnings.CRFW465, model=self.model.name)
        return losses

    # --------------------------------------------------------------------------------------------------- saving

    def _take_settings(self, saved: dict[str, Any]) -> None:
        super()._take_settings(saved)
        self.cfg["positive_label"] = saved.get("positive_label")
