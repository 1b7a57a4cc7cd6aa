"""Spans that something before the component has linked: a resolver of coreference, a linker of entities."""

from collections.abc import Iterator
from typing import Optional

from spacy.tokens import Doc, Span

from ... import checks
from ...features.doc_batch import DocBatch
from .groups import Phrases, PhraseTemplate
from .repeated_phrases import spans_of


class LinkedSpans(PhraseTemplate):
    """Ties spans of a Doc that are linked.

    spans_key (str): "KEY", spans of `doc.spans[KEY]` that have the same `span.id_` are linked, those without one to none; "KEY*",
        the spans of each group are whose name begins with this, as with "coref_clusters_*".
    words (str): "first", the first words of two spans are tied; "all", the second ones, the third ones … as well.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]), symmetric (bool): See `CliqueTemplate`.
    """

    def __init__(
        self,
        spans_key: str = "links",
        words: str = "first",
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges, words)
        self.spans_key = checks.text(self.owner, "spans_key", spans_key)

    def phrases(self, docs: DocBatch) -> Phrases:
        """RAISES (ValueError): CRF371 for a Doc without the spans."""
        return self.of_spans(docs, self._linked)

    def _linked(self, doc: Doc) -> Iterator[tuple[Span, Optional[int]]]:
        """Spans and the numbers of what they are linked by."""
        if not self.spans_key.endswith("*"):
            for span in spans_of(self.owner, doc, self.spans_key):
                yield span, span.id or None
            return
        groups = [name for name in doc.spans if name.startswith(self.spans_key[:-1])]
        for number, name in enumerate(groups):
            for span in doc.spans[name]:
                yield span, number
