"""The reader of configs for Docs that link to each other."""

from collections.abc import Iterator

from spacy.language import Language
from spacy.training import Example

from spacy_crf.pipeline.corpora import Corpus

from .links import pass_links


class LinkedCorpus(Corpus):
    """Like `spacy_crf.Corpus.v1`, whose settings it has; predicted Docs get the links of the annotated ones
    (``spacy_crf_lab.LinkedCorpus.v1``)."""

    def __call__(self, nlp: Language) -> Iterator[Example]:
        """The examples, read from the file or kept from an earlier call."""
        return pass_links(super().__call__(nlp))
