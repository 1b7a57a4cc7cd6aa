"""Templates of ties: which tokens of a Doc are tied, and what of two tied tokens says how much their labels have to do with each
other. Each is registered. Here are the base of them all, and those that take pairs as they find them: arcs of a parser, or what a
function names. `groups`, `similar_words` and `acronyms` have the others."""

import re
from functools import reduce
from itertools import islice
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import HEAD, IDS, ORTH
from spacy.tokens import Doc, Span, Token

from ... import checks
from ...errors import Errors, Warnings, announcements, shown
from ...features.clusters import WIDTHS
from ...features.doc_batch import DocBatch, read_attributes
from ...features.items import Functions
from ...features.lexemes import LEXEME_ATTRIBUTES, NGRAMS, LexemeTable
from ...features.token_columns import TOKEN_ATTRIBUTES

# Attributes that words have by themselves, one value each
OF_WORDS = [name for name in LEXEME_ATTRIBUTES if name not in WIDTHS and name not in NGRAMS]
# Those of a pair, which has them as a whole
BIAS, DISTANCE = "bias", "sent_distance"
# Those of which a tied word may have to have one
FLAGS = ["is_alpha", "is_ascii", "is_digit", "is_lower", "is_upper", "is_title", "is_punct", "is_space", "is_stop"]
FLAGS += ["is_quote", "is_bracket", "is_currency", "like_url", "like_num", "like_email"]
_MOST_WORDS = 1 << 17  # whose attributes are kept
_GAZETTEER = re.compile(r"in:[^\[\]|:\s]+")


class TokenPairs(NamedTuple):
    """Tied tokens of a batch."""

    source: NDArray[np.int64]  # [E]
    target: NDArray[np.int64]  # [E]

    @classmethod
    def none(cls) -> "TokenPairs":
        return cls(*np.zeros((2, 0), dtype=np.int64))


class TiePart(NamedTuple):
    """A part of a feature of ties."""

    name: str  # BIAS, DISTANCE, or an attribute of tokens
    side: Optional[int]  # of the first token of a pair (0) or the second one (1); None for what is of the pair


class TieTemplate:
    """Base of the templates.

    features (List[str]): What weighs a pair of labels: "bias"; "sent_distance", how many sentences lie between, about; "in:NAME",
        whether one of the two tokens, or both, stand in a gazetteer; or an attribute of the first token of a pair, such as
        "pos[0]", or of the second, such as "{other}pos". Several, joined by "|", are one feature. None at all for ties that share
        features alone.
    symmetric (bool): Whether it makes no difference which of the two labels is first.
    """

    other: ClassVar[str] = "other_"  # in front of an attribute of the second token

    def __init__(self, features: Any, symmetric: bool):
        owner = self.owner
        self.features = ["bias"] if features is None else checks.listed(owner, "features", features, "texts")
        self.symmetric = checks.flag(owner, "symmetric", symmetric)
        self.parts = [self._parse(feature) for feature in self.features]
        self._lexemes: Optional[LexemeTable] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lexemes": None}  # it fills again

    @property
    def owner(self) -> str:
        return type(self).__name__

    def spelled(self) -> list[Any]:
        """What weights of ties mean: to be the same where a model is loaded."""
        return [self.owner, self.features, self.symmetric]

    def find(self, docs: DocBatch) -> TokenPairs:
        """The tokens that are tied."""
        raise NotImplementedError

    @property
    def attributes(self) -> list[str]:
        """Those of tokens that say which are tied."""
        return []

    @property
    def reads(self) -> list[str]:
        """Attributes of tokens that say which are tied, and that components before this one set."""
        return [name for name in self.attributes if name in TOKEN_ATTRIBUTES]

    def read(self, docs: DocBatch, names: list[str]) -> list[NDArray[np.uint64]]:
        """Some of its attributes, of all tokens: uint64[T] each. What is a word's own is read once for each word."""
        table = self._lexemes
        if table is None or table.size > _MOST_WORDS:  # a new one: other threads may be reading the old one
            of_words = [name for name in self.attributes if name in LEXEME_ATTRIBUTES]
            table = self._lexemes = LexemeTable(of_words, 0, False)
        found, numbers = [], None
        for name in names:
            if name == "orth":
                found.append(docs.words)
            elif name in table.attributes:
                numbers = table.numbers(docs.words, docs) if numbers is None else numbers
                found.append(table.columns[numbers, table.attributes.index(name)])
            else:
                found.append(read_attributes(docs, [IDS[name.upper()], ORTH])[:, 0])
        return found

    def having(self, docs: DocBatch, flags: list[str]) -> NDArray[np.bool_]:
        """The tokens that have one of some flags, all if there are none: bool[T]."""
        if not flags:
            return np.ones(len(docs.words), dtype=bool)
        return reduce(np.bitwise_or, self.read(docs, flags)) != 0

    def _parse(self, feature: Any) -> list[TiePart]:
        """The parts of a feature."""
        known = {*OF_WORDS, *TOKEN_ATTRIBUTES} - {BIAS}
        must = (
            f'"{BIAS}", "{DISTANCE}", "in:GAZETTEER", an attribute with [0] or with "{self.other}" in front of it, or several, '
            f'joined by "|"; attributes are {", ".join(sorted(known))}, in:GAZETTEER'
        )
        parts = []
        for text in feature.split("|") if isinstance(feature, str) else [""]:
            part, of_pair = self._place(text), text in (BIAS, DISTANCE)
            is_known = of_pair or _GAZETTEER.fullmatch(part.name) or (part.side is not None and part.name in known)
            checks.expect(is_known, self.owner, "features", feature, must)
            parts.append(part)
        return parts

    def _place(self, text: str) -> TiePart:
        if text.endswith("[0]"):
            return TiePart(text.removesuffix("[0]"), 0)
        if text.startswith(self.other):
            return TiePart(text.removeprefix(self.other), 1)
        return TiePart(text, None)


def flags(owner: str, name: str, value: Any) -> list[str]:
    """Attributes one of which tokens must have, none for any token."""
    given = [value] if isinstance(value, str) else checks.listed(owner, name, value, "texts")
    for each in given:
        checks.one_of(owner, name, each, tuple(FLAGS))
    return given


def has_heads(doc: Doc) -> bool:
    """Whether a parser has been there, or any token has a head."""
    return doc.has_annotation("DEP") or bool(doc.to_array([HEAD, ORTH])[:, 0].any())


class DependencyArcs(TieTemplate):
    """Ties each token to its head. A parser has to come before the component.

    features (List[str]): See `TieTemplate`: of the token, such as "dep[0]", or of its head, such as "head_pos".
    symmetric (bool): See `TieTemplate`.
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
                raise ValueError(
                    Errors.CRF367.format(owner=self.owner, what="heads", text=doc.text[:40], reason="arcs are tied")
                )
        heads = read_attributes(docs, [HEAD, ORTH])[:, 0].astype(np.int64)
        [some] = np.nonzero(heads)
        return TokenPairs(some, some + heads[some])


class Pairs(TieTemplate):
    """Ties the pairs of tokens that a registered function gives of a Doc.

    function (Callable[[Doc], Iterable]): Gives pairs of tokens, of their numbers in the Doc, or of spans, whose first tokens are
        tied.
    reads (List[str]): Attributes of tokens that the function reads and that components before set, such as "head": they are
        named among what the component requires.
    max_edges (int): A Doc of which it gives more pairs has none of them: this is said once.
    features (List[str]), symmetric (bool): See `TieTemplate`.
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
