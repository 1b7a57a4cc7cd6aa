"""Clique templates: which tokens of a Doc are tied, and what of two tied tokens says how much their labels have to do with each
other. Each is registered, and stands in a file of its own."""

import re
from typing import Any, ClassVar, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import HEAD, IDS, ORTH
from spacy.strings import StringStore
from spacy.tokens import Doc

from .. import checks
from ..features.doc_batch import DocBatch, read_attributes
from ..features.lexemes import LEXEME_ATTRIBUTES, LexemeTable

# Attributes that features read
TEXTS = ["orth", "lower", "norm", "shape", "prefix", "suffix", "tag", "pos", "morph", "dep", "lemma", "ent_type"]
FLAGS = ["is_alpha", "is_ascii", "is_digit", "is_lower", "is_upper", "is_title", "is_punct", "is_space", "is_stop"]
FLAGS += ["is_quote", "is_bracket", "is_currency", "like_url", "like_num", "like_email"]
# Those that components before this one set
SET_BY_OTHERS = ("tag", "pos", "morph", "dep", "lemma", "ent_type")
_MOST_WORDS = 1 << 17  # whose attributes are kept
_PLACE = re.compile(r"(\w+?)\[0\]$")
# Sentences between two tokens, counted as one from these on
_DISTANCES = np.array([0, 1, 2, 3, 5, 9, 17, 33])


class TokenPairs(NamedTuple):
    """Tied tokens of a batch."""

    source: NDArray[np.int64]  # [E]
    target: NDArray[np.int64]  # [E]

    @classmethod
    def none(cls) -> "TokenPairs":
        return cls(*np.zeros((2, 0), dtype=np.int64))


class CliqueTemplate:
    """Base of the templates.

    features (List[str]): What weighs a pair of labels: "bias"; "sent_distance", how many sentences lie between, about; or an
        attribute of the first token of a pair, such as "pos[0]", or of the second, such as "{other}pos". Several, joined by "|",
        are one feature. None at all for ties that share features alone.
    symmetric (bool): Whether it makes no difference which of the two labels is first.
    """

    other: ClassVar[str] = "other_"  # in front of an attribute of the second token

    def __init__(self, features: Any, symmetric: bool):
        owner = self.owner
        self.features = ["bias"] if features is None else checks.listed(owner, "features", features, "texts")
        self.symmetric = checks.flag(owner, "symmetric", symmetric)
        self._parts = [self._parse(feature) for feature in self.features]
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
        """Those of tokens that it looks at."""
        names = dict.fromkeys(name for parts in self._parts for name, _ in parts)
        return [name for name in names if name not in ("bias", "sent_distance")]

    @property
    def reads(self) -> list[str]:
        """Attributes that components before this one set."""
        return [name for name in self.attributes if name in SET_BY_OTHERS]

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

    def values(self, docs: DocBatch, pairs: TokenPairs) -> NDArray[np.uint64]:
        """What each feature says of each pair: uint64[E, M], hashes of several parts."""
        columns = {}
        for name in dict.fromkeys(name for parts in self._parts for name, _ in parts):
            if name == "bias":
                columns[name] = np.zeros((2, len(pairs.source)), dtype=np.uint64)
            elif name == "sent_distance":
                columns[name] = np.array([_distances(docs, pairs)] * 2)
            else:
                [of_tokens] = self.read(docs, [name])
                columns[name] = np.array([of_tokens[pairs.source], of_tokens[pairs.target]])
        found = np.empty((len(pairs.source), len(self._parts)), dtype=np.uint64)
        for number, parts in enumerate(self._parts):
            values = [columns[name][side] for name, side in parts]
            found[:, number] = values[0] if len(values) == 1 else _mixed(values)
        return found

    def spell(self, feature: int, docs: DocBatch, pairs: TokenPairs, example: int) -> str:
        """What humans read of a feature: as this pair has it."""
        strings, shown = docs[0].vocab.strings, []
        for name, side in self._parts[feature]:
            if name == "bias":
                continue
            if name == "sent_distance":
                shown.append(str(int(_distances(docs, pairs)[example])))
                continue
            [values] = self.read(docs, [name])
            shown.append(_text(name, int(values[pairs[side][example]]), strings))
        return self.features[feature] + ("=" + "|".join(shown) if shown else "")

    def _parse(self, feature: Any) -> list[tuple[str, int]]:
        """The parts of a feature: names, and of which of the two tokens."""
        known = ", ".join([*TEXTS, *FLAGS])
        must = (
            f'"bias", "sent_distance", an attribute with [0] or with "{self.other}" in front of it, or several, joined by "|"; '
            f"attributes are {known}"
        )
        parts = []
        for part in feature.split("|") if isinstance(feature, str) else [""]:
            match = _PLACE.match(part)
            name, side = (match[1], 0) if match else (part.removeprefix(self.other), 1)
            if part in ("bias", "sent_distance"):
                name, side = part, 0
            elif not match and not part.startswith(self.other):
                name = ""
            is_known = name in TEXTS or name in FLAGS or name in ("bias", "sent_distance")
            checks.expect(is_known, self.owner, "features", feature, must)
            parts.append((name, side))
        return parts


def flags(owner: str, name: str, value: Any) -> list[str]:
    """Attributes one of which tokens must have, none for any token."""
    given = [value] if isinstance(value, str) else checks.listed(owner, name, value, "texts")
    for each in given:
        checks.one_of(owner, name, each, tuple(FLAGS))
    return given


def has_heads(doc: Doc) -> bool:
    """Whether a parser has been there, or any token has a head."""
    return doc.has_annotation("DEP") or bool(doc.to_array([HEAD, ORTH])[:, 0].any())


def _distances(docs: DocBatch, pairs: TokenPairs) -> NDArray[np.uint64]:
    """How many sentences lie between, about: uint64[E]."""
    sentences = np.searchsorted(docs.sequence_starts(), np.stack(pairs), side="right")
    return _DISTANCES[np.searchsorted(_DISTANCES, abs(sentences[1] - sentences[0]), side="right") - 1].astype(np.uint64)


def _mixed(values: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    hashed = np.full(len(values[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for value in values:
        hashed = (hashed ^ value) * np.uint64(0xBF58476D1CE4E5B9)
        hashed ^= hashed >> np.uint64(29)
    return hashed


def _text(name: str, value: int, strings: StringStore) -> str:
    if name not in TEXTS:
        return str(bool(value)).lower()
    return strings[value] if value in strings else str(value)
