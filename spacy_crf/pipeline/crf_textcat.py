"""One label for each text, written to ``doc.cats``."""

from collections.abc import Callable, Iterable
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.training import Example
from thinc.api import Optimizer

from .. import checks
from ..errors import Errors, Warnings
from ..features.doc_batch import DocBatch
from ..features.units import SENT
from ..inference.hidden_chain import HiddenScores
from ..inference.texts import TextScores
from ..losses.clamped import ClampedLoss
from ..models.role import gives
from ..types import Floats
from .annotation.cats import Cats
from .arguments import check_doc
from .decoding import Decoding
from .gold_report import GoldReport
from .learning_pipe import LearningPipe
from .supervision import Keys, Supervision


class TextDecoding(Decoding):
    """States are the labels, and a clamp is bool[D, Y] for D texts."""

    takes = TextScores

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
        self, gold: Any, examples: list[Example], starts: NDArray[np.int64], keys: Keys, report: GoldReport
    ) -> Supervision:
        return Supervision(gold.clamp, gold.unset)


class HiddenDecoding(TextDecoding):
    takes = HiddenScores


class CRFTextClassifier(LearningPipe):
    """Gives each text one label (factory ``crf_textcat``).

    threshold (float): As of spaCy's `textcat`: it is saved and given to the scorer, which needs none where labels are exclusive.
    exclusive_classes (bool): True.
    """

    decoding_class = TextDecoding
    other_decodings = (HiddenDecoding,)

    def __init__(
        self,
        vocab,
        model,
        name="crf_textcat",
        *,
        loss,
        threshold: float = 0.0,
        exclusive_classes: bool = True,
        **settings,
    ):
        self.name = name
        threshold = checks.number(self.owner, "threshold", threshold, most=1.0)
        if not checks.flag(self.owner, "exclusive_classes", exclusive_classes):
            raise ValueError(Errors.CRF467.format(name=name))
        if not isinstance(loss, ClampedLoss):
            raise ValueError(Errors.CRF468.format(name=name, loss=type(loss).__name__))
        own = {"threshold": threshold, "exclusive_classes": True, "positive_label": None}
        super().__init__(vocab, model, name, annotation=Cats(), loss=loss, **own, **settings)

    def _check_model(self, model: Any) -> None:
        must = "an architecture of texts, such as spacy_crf.HiddenChain.v1 or spacy_crf.MaxEntText.v1"
        checks.expect(gives(model) in self._decodings, self.owner, "model", getattr(model, "name", model), must)

    def check_settings(self) -> None:
        """RAISES (ValueError): CRF469 if there are fewer than two labels."""
        super().check_settings()
        if len(self.labels) < 2:
            raise ValueError(Errors.CRF469.format(name=self.name, labels=", ".join(self.labels) or "none"))
        positive = self.cfg["positive_label"]
        if positive is not None and (positive not in self.labels or len(self.labels) > 2):
            raise ValueError(Errors.CRF471.format(name=self.name, value=positive, labels=", ".join(self.labels)))

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read, and the sentences if these have scores."""
        sentences = ["sent_start"] if self.decoding.looks_at_sentences else []
        return list(dict.fromkeys([*super().token_attributes, *sentences]))

    # ------------------------------------------------------------------------------------------------ prediction

    def predict(self, docs: Iterable[Doc]) -> Floats:
        """Probability of each label for each text of a batch.

        docs (Iterable[Doc]): The Docs, which stay as they are.
        RETURNS (float64[D, Y]): Rows with sum 1.
        RAISES (ValueError): If the component has no labels, or was not initialized; CRF470 for Docs without sentences, where it
            looks at these.
        """
        self._require_initialized()
        docs = DocBatch.of(docs)
        self.decoding.require_sentences(docs)
        return self.decoding.structure.marginals(self.model.predict(docs))

    def set_annotations(self, docs: Iterable[Doc], probabilities: Floats) -> None:
        """Write the probabilities to ``doc.cats``, beside what is there of other labels.

        docs (Iterable[Doc]): The Docs that were predicted.
        probabilities (float64[D, Y]): What `predict` gave.
        """
        labels = self.labels
        for doc, row in zip(docs, probabilities.tolist()):
            doc.cats.update(zip(labels, row))

    def probabilities(self, doc: Doc) -> dict[str, float]:
        """Probability of each label of one text, to which nothing is written.

        doc (Doc): The text.
        RETURNS (Dict[str, float]): The most probable first.
        """
        check_doc(self.name, doc)
        [row] = self.predict([doc]).tolist()
        return dict(sorted(zip(self.labels, row), key=lambda item: -item[1]))

    # -------------------------------------------------------------------------------------------------- training

    def initialize(
        self, get_examples: Callable[[], Iterable[Example]], *, positive_label: Optional[str] = None, **settings: Any
    ) -> None:
        """See `LearningPipe.initialize`.

        get_examples (Callable[[], Iterable[Example]]): The training data, read several times.
        positive_label (str): Of two labels the one whose F1 is the score, as of spaCy's `textcat`.
        RAISES (ValueError): CRF469 for fewer than two labels, CRF471 for a positive label that is none of two.
        """
        before = self.cfg["positive_label"]
        self.cfg["positive_label"] = positive_label
        try:
            super().initialize(get_examples, **settings)
        except BaseException:
            self.cfg["positive_label"] = before
            raise

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
        self._require_initialized()
        self.tell_once(Warnings.CRFW465, model=self.model.name)
        return losses
