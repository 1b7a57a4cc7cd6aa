"""Decoding of texts whose sentences may have scores, by ``unit = "sent"``."""

from spacy.tokens import Doc

from spacy_crf.features.doc_batch import SENT
from spacy_crf.pipeline.crf_textcat import TextDecoding

from .errors import Errors


class SentenceDecoding(TextDecoding):
    def check_docs(self, docs: list[Doc]) -> None:
        """RAISES (ValueError): CRF470 for a Doc without sentences if sentences have scores."""
        if self.model.attrs["node"].traits.unit != SENT:
            return
        for doc in docs:
            if len(doc) > 1 and not doc.has_annotation("SENT_START"):
                raise ValueError(Errors.CRF470.format(name=self.annotation.name, text=doc.text[:40]))
