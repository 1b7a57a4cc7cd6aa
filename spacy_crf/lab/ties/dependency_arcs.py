"""The arcs of a dependency tree: words and their heads."""

from typing import Optional

import numpy as np
from spacy.attrs import HEAD, ORTH

from ...errors import Errors
from ...features.doc_batch import DocBatch, read_attributes
from .template import CliqueTemplate, TokenPairs, has_heads


class DependencyArcs(CliqueTemplate):
    """Ties each token to its head. A parser has to come before the component.

    features (List[str]): See `CliqueTemplate`: of the token, such as "dep[0]", or of its head, such as "head_pos".
    symmetric (bool): See `CliqueTemplate`.
    """

    other = "head_"

    def __init__(self, features: Optional[list[str]] = None, symmetric: bool = False):
        super().__init__(["dep[0]"] if features is None else features, symmetric)

    @property
    def reads(self) -> list[str]:
        return [*super().reads, "head"]

    def find(self, docs: DocBatch) -> TokenPairs:
        """RAISES (ValueError): CRF367 for a Doc without heads."""
        for doc in docs:
            if len(doc) > 1 and not has_heads(doc):
                raise ValueError(Errors.CRF367.format(owner=self.owner, text=doc.text[:40]))
        heads = read_attributes(docs, [HEAD, ORTH])[:, 0].astype(np.int64)
        [some] = np.nonzero(heads)
        return TokenPairs(some, some + heads[some])
