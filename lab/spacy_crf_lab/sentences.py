"""Decoding of texts whose sentences may have scores, by ``unit = "sent"``."""

from collections.abc import Sequence

from spacy.tokens import Doc

from spacy_crf.features.doc_batch import SENT
from spacy_crf.pipeline.crf_textcat import TextDecoding

from .errors import Errors


class SentenceDecoding(TextDecoding):
    @property
    def token_attributes(self) -> Sequence[str]:
        """Attributes of tokens that other components set: the starts of sentences, if these have scores."""
        return ("sent_start",) if self.model.attrs["node"].unit == SENT else ()

    def check_docs(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): CRF470 for a Doc without sentences if sentences have scores."""
        if self.model.attrs["node"].unit != SENT:
            return
        for doc in docs:
            if len(doc) > 1 and not doc.has_annotation("SENT_START"):
                raise ValueError(Errors.CRF470.format(name=self.annotation.name, text=doc.text[:40]))
