"""What features of ties say of pairs of tokens: of the pair as a whole, or of one of the tokens, as features of tokens do."""

from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray

from ...features.columns import MOST_WORDS, TokenColumns
from ...features.doc_batch import DocBatch
from ...features.extractor import CompiledTemplates, FeatureSet
from ...features.gazetteers import Gazetteer
from ...features.templates import Part
from ...kernels.hashing import ABSENT
from .template import BIAS, DISTANCE, CliqueTemplate, TiePart, TokenPairs

# Sentences between two tokens, counted as one from these on
_DISTANCES = np.array([0, 1, 2, 3, 5, 9, 17, 33])
_ENDS = {1: "one", 2: "both"}  # of a tie, that stand in a gazetteer


class TieFeatureSet(FeatureSet):
    """What clique templates read of tokens.

    cliques (Dict[str, CliqueTemplate]): By name.
    """

    def __init__(self, cliques: dict[str, CliqueTemplate]):
        parts = [part for template in cliques.values() for feature in template.parts for part in feature]
        read = dict.fromkeys(part.name for part in parts if part.name not in (BIAS, DISTANCE))
        super().__init__([BIAS, *(f"{name}[0]" for name in read)])
        self._cliques = cliques

    @property
    def token_attributes(self) -> list[str]:
        """Also those that say which tokens are tied."""
        of_cliques = [name for template in self._cliques.values() for name in template.reads]
        return list(dict.fromkeys([*super().token_attributes, *of_cliques]))


class TieReader:
    """Reads them of Docs.

    features (TieFeatureSet): What is read.
    gazetteers (Dict[str, Gazetteer]): Those that it names.
    with_names (bool): Whether values can be spelt.
    max_words (int): Of which is kept what was read.
    """

    def __init__(
        self,
        features: FeatureSet,
        gazetteers: dict[str, Gazetteer],
        *,
        with_names: bool = False,
        max_words: int = MOST_WORDS,
    ):
        reader = features.reader(gazetteers)
        reader.max_words = max_words
        reader.keep_names(with_names)
        self._compiled = CompiledTemplates(features.counted, reader)

    def read(self, docs: DocBatch) -> "TieValues":
        return TieValues(self._compiled, docs)


class TieValues:
    """What features say of the pairs of tokens of a batch. The tokens are read when a feature asks for them."""

    def __init__(self, compiled: CompiledTemplates, docs: DocBatch):
        self._compiled, self._docs = compiled, docs
        self._columns: Optional[TokenColumns] = None

    def of(self, template: CliqueTemplate, pairs: TokenPairs) -> NDArray[np.uint64]:
        """What each feature of a template says of each pair: uint64[E, M], hashes of several parts; ABSENT if nothing."""
        found = np.empty((len(pairs.source), len(template.parts)), dtype=np.uint64)
        for number, parts in enumerate(template.parts):
            values = [self._of_part(part, pairs) for part in parts]
            says_nothing = np.any([each == ABSENT for each in values], axis=0)
            found[:, number] = np.where(says_nothing, ABSENT, values[0] if len(values) == 1 else _mixed(values))
        return found

    def spell(self, template: CliqueTemplate, feature: int, pairs: TokenPairs, example: int) -> str:
        """What humans read of a feature: as this pair has it."""
        pair = TokenPairs(*(tokens[example : example + 1] for tokens in pairs))
        shown = [self._spell_part(part, pair) for part in template.parts[feature] if part.name != BIAS]
        return template.features[feature] + ("=" + "|".join(shown) if shown else "")

    def _of_part(self, part: TiePart, pairs: TokenPairs) -> NDArray[np.uint64]:
        if part.side is not None:
            return self._of_tokens(part.name, pairs[part.side])
        if part.name == BIAS:
            return np.zeros(len(pairs.source), dtype=np.uint64)
        if part.name == DISTANCE:
            return _distances(self._docs, pairs)
        ends = np.sum([self._of_tokens(part.name, tokens) != ABSENT for tokens in pairs], axis=0, dtype=np.uint64)
        return np.where(ends > 0, ends, ABSENT)

    def _of_tokens(self, attribute: str, tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
        if self._columns is None:
            self._columns = self._compiled.reader.read(self._docs)
        return self._compiled.part_values(self._columns, Part(attribute, 0), tokens)

    def _spell_part(self, part: TiePart, pair: TokenPairs) -> str:
        value: Any = self._of_part(part, pair)
        if part.side is None:
            return str(int(value[0])) if part.name == DISTANCE else _ENDS[int(value[0])]
        [spelled] = self._compiled.reader.spell(part.name, value, self._docs[0].vocab)
        return spelled


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
