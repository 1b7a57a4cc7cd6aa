"""The same word at several places of a Doc (skip-chains: Sutton & McCallum 2004; Finkel, Grenager & Manning 2005)."""

from typing import Any, Optional

from ... import checks
from ...features.doc_batch import DocBatch
from ..kernels.ties import repeated
from .groups import GroupTemplate
from .template import TokenPairs, flags

ATTRIBUTES = ("ORTH", "LOWER", "NORM", "LEMMA", "SHAPE", "PREFIX", "SUFFIX")


class RepeatedWords(GroupTemplate):
    """Ties the places at which a Doc has the same word.

    attr (str): By which words are the same: ORTH, LOWER, NORM, LEMMA, SHAPE, PREFIX or SUFFIX.
    only (Union[str, List[str]]): Flags of which a word must have one, such as "is_title"; None for any word.
    edges (str), max_edges (int): See `GroupTemplate`.
    features (List[str]): See `CliqueTemplate`.
    symmetric (bool): See `CliqueTemplate`.
    """

    def __init__(
        self,
        attr: str = "ORTH",
        only: Any = "is_title",
        edges: str = "next",
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 1000,
    ):
        super().__init__(features, symmetric, edges, max_edges)
        self.attr = checks.one_of(self.owner, "attr", attr, ATTRIBUTES)
        self.only = flags(self.owner, "only", only)

    @property
    def attributes(self) -> list[str]:
        return [self.attr.lower(), *self.only]

    def find(self, docs: DocBatch) -> TokenPairs:
        [words] = self.read(docs, [self.attr.lower()])
        some = repeated(words, (words != 0) & self.having(docs, self.only), docs.bounds)
        one, other = self.tie(docs, some, words[some])
        return TokenPairs(some[one], some[other])
