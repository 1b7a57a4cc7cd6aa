"""Templates of ties: which tokens of a Doc are tied, and which features of two tied tokens weigh the pair of their labels.
Each template is registered. Here are their base, and the templates for pairs that a parser or a function has found; the others
are in `groups` and `spelling`."""

import re
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any, ClassVar, NamedTuple, NoReturn, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import HEAD, IDS, ORTH
from spacy.tokens import Doc, Span, Token

from spacy_crf import checks
from spacy_crf.errors import announcements, shown
from spacy_crf.features.clusters import WIDTHS
from spacy_crf.features.doc_batch import DocBatch, read_attributes
from spacy_crf.features.items import Functions
from spacy_crf.features.lexemes import LEXEME_ATTRIBUTES, NGRAMS, LexemeTable
from spacy_crf.features.token_columns import TOKEN_ATTRIBUTES
from spacy_crf.optimizers.objective import check_settings, setting

from ..errors import Errors, Warnings

# Attributes that words have by themselves, one value each
OF_WORDS = [name for name in LEXEME_ATTRIBUTES if name not in WIDTHS and name not in NGRAMS]
# Those of a pair, which has them as a whole
BIAS = "bias"
DISTANCE = "sent_distance"
# Those of which a tied word may have to have one
FLAGS = ["is_alpha", "is_ascii", "is_digit", "is_lower", "is_upper", "is_title", "is_punct", "is_space", "is_stop"]
FLAGS += ["is_quote", "is_bracket", "is_currency", "like_url", "like_num", "like_email"]
_MOST_WORDS = 1 << 17  # whose attributes are kept
_GAZETTEER = re.compile(r"in:[^\[\]|:\s]+")


template = dataclass(eq=False, repr=False)  # of settings, of which its own may be given by position


class TokenPairs(NamedTuple):
    """Tied tokens of a batch."""

    source: NDArray[np.int64]  # [E]
    target: NDArray[np.int64]  # [E]


class TiePart(NamedTuple):
    """A part of a feature of ties."""

    name: str  # BIAS, DISTANCE, or an attribute of tokens
    side: Optional[int]  # of the first token of a pair (0) or the second one (1); None for what is of the pair


@dataclass(kw_only=True, eq=False, repr=False)
class TieTemplate:
    """Base of the templates.

    features (List[str]): Features with weights for pairs of labels: "bias"; "sent_distance", the binned number of sentences
        between the tokens; "in:NAME", whether one or both tokens are in a gazetteer; or an attribute of the first token of a
        pair, such as "pos[0]", or of the second, such as "{other}pos". "|" joins several into one feature. Use an empty list for
        ties that only share features.
    symmetric (bool): Whether the order of the two labels is irrelevant.
    associative (bool): Whether ties can only reward equal labels: a feature has a weight of at least 0 for each label, which
        counts where both tokens have this label.
    """

    features: Optional[list[str]] = setting(None, checks.listed, of="texts")
    symmetric: bool = setting(True, checks.flag)
    associative: bool = setting(False, checks.flag)

    ties: ClassVar[str] = "tokens"  # or "documents"
    other: ClassVar[str] = "other_"  # in front of an attribute of the second token
    usual_features: ClassVar[list[str]] = [BIAS]
    attr = None  # by which words are the same; subclasses that have these two make them settings
    only = ()  # flags of which a word must have one
    edges = "next"  # how places are tied; subclasses that tie groups make it a setting

    def __post_init__(self) -> None:
        self.owner = type(self).__name__
        check_settings(self)
        self.features = list(self.usual_features) if self.features is None else self.features
        self.parts = [self._parse(feature) for feature in self.features]
        self._lexemes: Optional[LexemeTable] = None
        self._warned: set[str] = set()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lexemes": None}  # it fills again

    def warn_once(self, warning: str, **values: object) -> None:
        """Log a warning the first time that it applies."""
        if warning not in self._warned:
            self._warned.add(warning)
            announcements.warning(warning.format(owner=self.owner, **values))

    def as_text(self) -> list[object]:
        """The settings on which the meaning of weights depends: they are to be the same where a model is loaded."""
        return [self.owner, self.features, self.symmetric, *(["associative"] if self.associative else [])]

    def find(self, docs: DocBatch) -> TokenPairs:
        """The tokens that are tied."""
        raise NotImplementedError

    @property
    def attributes(self) -> list[str]:
        """Attributes of tokens that decide which are tied."""
        return [*([self.attr.lower()] if self.attr else []), *self.only]

    @property
    def reads(self) -> list[str]:
        """Attributes that decide which tokens are tied, and that earlier components set."""
        return [name for name in self.attributes if name in TOKEN_ATTRIBUTES]

    def read(self, docs: DocBatch, names: list[str]) -> list[NDArray[np.uint64]]:
        """Some of `attributes`, of all tokens: uint64[T] each. Attributes of words are read once for each word."""
        table = self._lexemes
        if table is None or table.size > _MOST_WORDS:  # a new one: other threads may be reading the old one
            of_words = [name for name in self.attributes if name in LEXEME_ATTRIBUTES]
            table = self._lexemes = LexemeTable(of_words, 0, False)
        found = []
        numbers = None
        for name in names:
            if name == "orth":
                found.append(docs.words)
            elif name in table.attributes:
                numbers = table.numbers(docs.words, docs) if numbers is None else numbers
                found.append(table.columns[numbers, table.attributes.index(name)])
            else:
                found.append(read_attributes(docs, [IDS[name.upper()], ORTH])[:, 0])
        return found

    def usable(self, docs: DocBatch) -> NDArray[np.bool_]:
        """Tokens that have one of the flags of `only`, or all tokens if there are none: bool[T]."""
        if not self.only:
            return np.ones(len(docs.words), dtype=bool)
        return reduce(np.bitwise_or, self.read(docs, self.only)) != 0

    def _parse(self, feature: object) -> list[TiePart]:
        """The parts of a feature."""
        known = {*OF_WORDS, *TOKEN_ATTRIBUTES} - {BIAS}
        must = (
            f'"{BIAS}", "{DISTANCE}", "in:GAZETTEER", an attribute with [0] or with "{self.other}" in front of it, or several, '
            f'joined by "|"; attributes are {", ".join(sorted(known))}, in:GAZETTEER'
        )
        parts = []
        for text in feature.split("|") if isinstance(feature, str) else [""]:
            part = self._place(text)
            of_pair = text in (BIAS, DISTANCE)
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
    """Flags one of which tokens must have, none for any token."""
    given = [value] if isinstance(value, str) else checks.listed(owner, name, value, "texts")
    for each in given:
        checks.one_of(owner, name, each, tuple(FLAGS))
    return given


def has_heads(doc: Doc) -> bool:
    """Whether a parser has been there, or any token has a head."""
    return doc.has_annotation("DEP") or bool(doc.to_array([HEAD, ORTH])[:, 0].any())


@template
class DependencyArcs(TieTemplate):
    """Ties each token to its head. The pipeline needs a parser before the component.

    features (List[str]): See `TieTemplate`: attributes of the token, such as "dep[0]", or of its head, such as "head_pos".
    symmetric (bool), associative (bool): See `TieTemplate`.
    """

    symmetric: bool = setting(False, checks.flag)

    other: ClassVar[str] = "head_"
    usual_features: ClassVar[list[str]] = ["dep[0]"]

    @property
    def reads(self) -> list[str]:
        """Attributes that earlier components set: heads among them."""
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


def _function(owner: str, name: str, value: Any) -> Functions:
    checks.expect(callable(value), owner, name, value, "a registered function from a Doc to pairs of tokens")
    return Functions({name: value})


def _attributes(owner: str, name: str, value: Any) -> list[str]:
    return list(
        dict.fromkeys(checks.text(owner, name, each) for each in checks.listed(owner, name, value, "attributes"))
    )


@template
class Pairs(TieTemplate):
    """Ties the pairs of tokens that a registered function finds in a Doc.

    function (Callable[[Doc], Iterable]): Returns pairs of tokens, of token numbers in the Doc, or of spans, whose first tokens
        are tied.
    reads (List[str]): Attributes of tokens that the function reads and that earlier components set, such as "head": the component
        requires them.
    max_edges (int): A Doc in which the function finds more pairs has no ties; a warning is logged once.
    features (List[str]), symmetric (bool), associative (bool): See `TieTemplate`.
    """

    # Without a type: confection compares what an annotation names with a block that it has not called yet
    function: Any = field(metadata={"check": _function})
    max_edges: int = setting(100_000, checks.count, most=10_000_000)
    reads: Optional[list[str]] = setting(None, _attributes)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.reads = self.reads or []

    def find(self, docs: DocBatch) -> TokenPairs:
        """RAISES (ValueError): CRF372 for values that are not pairs of tokens of the Doc."""
        found = []
        for doc, begin in zip(docs, docs.bounds.tolist()):
            found += [(begin + u, begin + v) for u, v in self._of_doc(doc)]
        return TokenPairs(*np.array(found, dtype=np.int64).reshape(-1, 2).T.copy())

    def _of_doc(self, doc: Doc) -> list[tuple[int, int]]:
        given = self.function["function"](doc)
        try:
            pairs = list(islice(given, self.max_edges + 1))
        except TypeError:
            self._refuse(doc, given)
        if len(pairs) > self.max_edges:
            self.warn_once(Warnings.CRFW370, text=doc[:40].text[:40], most=self.max_edges)
            return []
        places = []
        for pair in pairs:
            ends = [_place(doc, end) for end in pair] if isinstance(pair, (tuple, list)) else []
            if len(ends) != 2 or None in ends or ends[0] == ends[1]:
                self._refuse(doc, pair)
            places.append((ends[0], ends[1]))
        return places

    def _refuse(self, doc: Doc, value: object) -> NoReturn:
        raise ValueError(Errors.CRF372.format(owner=self.owner, value=shown(value), text=doc.text[:40], n=len(doc)))


def _place(doc: Doc, end: Any) -> Optional[int]:
    """The number of a token in its Doc; None for anything else."""
    if isinstance(end, (Token, Span)):
        place = end.i if isinstance(end, Token) else end.start
        return place if end.doc is doc and place < len(doc) else None
    is_number = isinstance(end, (int, np.integer)) and not isinstance(end, bool)
    return int(end) if is_number and 0 <= end < len(doc) else None
