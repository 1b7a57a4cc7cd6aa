"""Clique templates: which tokens of a Doc are tied, and what of two tied tokens says how much their labels have to do with each
other. Each is registered, and stands in a file of its own."""

import re
from functools import reduce
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import HEAD, IDS, ORTH
from spacy.tokens import Doc

from ... import checks
from ...features.clusters import WIDTHS
from ...features.columns import TOKEN_ATTRIBUTES
from ...features.doc_batch import DocBatch, read_attributes
from ...features.lexemes import LEXEME_ATTRIBUTES, NGRAMS, LexemeTable

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


class CliqueTemplate:
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
        if table is None or len(table) > _MOST_WORDS:  # a new one: other threads may be reading the old one
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
