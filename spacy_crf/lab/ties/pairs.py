"""Pairs of tokens that a function names: ties of one's own."""

from itertools import islice
from typing import Any, Optional

import numpy as np
from spacy.tokens import Doc, Span, Token

from ... import checks
from ...errors import Errors, Warnings, announcements, shown
from ...features.doc_batch import DocBatch
from ...features.items import Functions
from .template import CliqueTemplate, TokenPairs


class Pairs(CliqueTemplate):
    """Ties the pairs of tokens that a registered function gives of a Doc.

    function (Callable[[Doc], Iterable]): Gives pairs of tokens, of their numbers in the Doc, or of spans, whose first tokens are
        tied.
    reads (List[str]): Attributes of tokens that the function reads and that components before set, such as "head": they are
        named among what the component requires.
    max_edges (int): A Doc of which it gives more pairs has none of them: this is said once.
    features (List[str]), symmetric (bool): See `CliqueTemplate`.
    """

    def __init__(
        self,
        function: Any,  # confection compares what a type says with a block that it has not called yet
        features: Optional[list[str]] = None,
        symmetric: bool = True,
        max_edges: int = 100_000,
        reads: Optional[list[str]] = None,
    ):
        super().__init__(features, symmetric)
        owner = self.owner
        checks.expect(
            callable(function), owner, "function", function, "a registered function from a Doc to pairs of tokens"
        )
        self._functions = Functions({"function": function})
        self.max_edges = checks.count(owner, "max_edges", max_edges, most=10_000_000)
        self._reads = [checks.text(owner, "reads", name) for name in checks.listed(owner, "reads", reads, "attributes")]
        self._told = False

    @property
    def reads(self) -> list[str]:
        return list(dict.fromkeys([*super().reads, *self._reads]))

    def find(self, docs: DocBatch) -> TokenPairs:
        """RAISES (ValueError): CRF372 for what are no pairs of tokens of the Doc."""
        found = [(begin + u, begin + v) for doc, begin in zip(docs, docs.bounds.tolist()) for u, v in self._of_doc(doc)]
        if not found:
            return TokenPairs.none()
        return TokenPairs(*np.array(found, dtype=np.int64).T.copy())

    def _of_doc(self, doc: Doc) -> list[tuple[int, int]]:
        given: Any = self._functions["function"](doc)
        try:
            pairs = list(islice(given, self.max_edges + 1))
        except TypeError:
            self._refuse(doc, given)
        if len(pairs) > self.max_edges:
            if not self._told:
                self._told = True
                text = doc[:40].text[:40]
                announcements.warning(Warnings.CRFW370.format(owner=self.owner, text=text, most=self.max_edges))
            return []
        return [self._read(doc, pair) for pair in pairs]

    def _read(self, doc: Doc, pair: Any) -> tuple[int, int]:
        places = [_place(doc, end) for end in pair] if isinstance(pair, (tuple, list)) else []
        if len(places) != 2 or None in places or places[0] == places[1]:
            self._refuse(doc, pair)
        return places[0], places[1]

    def _refuse(self, doc: Doc, value: Any) -> None:
        raise ValueError(Errors.CRF372.format(owner=self.owner, value=shown(value), text=doc.text[:40], n=len(doc)))


def _place(doc: Doc, end: Any) -> Optional[int]:
    """The number of a token in its Doc; None for anything else."""
    if isinstance(end, (Token, Span)):
        place = end.i if isinstance(end, Token) else end.start
        return place if end.doc is doc and place < len(doc) else None
    is_number = isinstance(end, (int, np.integer)) and not isinstance(end, bool)
    return int(end) if is_number and 0 <= end < len(doc) else None
