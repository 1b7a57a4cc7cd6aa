"""Features of ties. `TieFeatureSet` and `TieValues`: features of a pair of tokens, as a whole or of one of them, by which tables
weigh the pair of their labels. `SharedFeatures`: features of the tokens that a token is tied to, as features of its own (Sutton &
McCallum 2004), in a chain without ties."""

from itertools import chain, pairwise
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from spacy_crf import checks
from spacy_crf.features.doc_batch import DocBatch
from spacy_crf.features.extractor import CompiledTemplates, FeatureSet
from spacy_crf.features.gazetteers import Gazetteer
from spacy_crf.features.items import Functions, Items
from spacy_crf.features.templates import TemplatePart
from spacy_crf.features.token_columns import MOST_WORDS, TokenColumns
from spacy_crf.kernels.hashing import ABSENT

from .templates import BIAS, DISTANCE, OF_WORDS, TiePart, TieTemplate, TokenPairs

# Lower bounds of the bins for the number of sentences between two tokens
_DISTANCES = np.array([0, 1, 2, 3, 5, 9, 17, 33])
_ENDS = {1: "one", 2: "both"}  # ends of a tie that are in a gazetteer


class TieFeatureSet(FeatureSet):
    """The token attributes that templates of ties read."""

    def __init__(self, templates: dict[str, TieTemplate]):
        features = chain.from_iterable(template.parts for template in templates.values())
        parts = chain.from_iterable(features)
        read = dict.fromkeys(part.name for part in parts if part.name not in (BIAS, DISTANCE))
        super().__init__([BIAS, *(f"{name}[0]" for name in read)])


def tie_reader(
    features: FeatureSet, gazetteers: dict[str, Gazetteer], *, with_names: bool = False, max_words: int = MOST_WORDS
) -> CompiledTemplates:
    """Compile features of ties for reading Docs. with_names (bool): Whether to keep the texts of values."""
    reader = features.reader(gazetteers)
    reader.max_words = max_words
    reader.keep_names(with_names)
    return CompiledTemplates(features.counted, reader)


class TieValues:
    """Computes values of features for pairs of tokens of a batch. Reads the tokens when a feature needs them."""

    def __init__(self, compiled: CompiledTemplates, docs: DocBatch):
        self._compiled = compiled
        self._docs = docs
        self._columns: Optional[TokenColumns] = None

    def of(self, template: TieTemplate, pairs: TokenPairs) -> NDArray[np.uint64]:
        """Compute the value of each feature of a template for each pair: uint64[E, M], a hash of all parts, or ABSENT."""
        found = np.empty((len(pairs.source), len(template.parts)), dtype=np.uint64)
        for number, parts in enumerate(template.parts):
            values = [self._of_part(part, pairs) for part in parts]
            mixed = values[0]
            if len(values) > 1:
                # Parts of a feature in one hash; their order matters
                mixed = np.full(len(pairs.source), 0x9E3779B97F4A7C15, dtype=np.uint64)
                for value in values:
                    mixed = (mixed ^ value) * np.uint64(0xBF58476D1CE4E5B9)
                    mixed ^= mixed >> np.uint64(29)
            is_absent = np.any([value == ABSENT for value in values], axis=0)
            found[:, number] = np.where(is_absent, ABSENT, mixed)
        return found

    def name(self, template: TieTemplate, feature: int, pairs: TokenPairs, example: int) -> str:
        """Format a feature with its value for one pair, for people to read."""
        pair = TokenPairs(*(tokens[example : example + 1] for tokens in pairs))
        shown = []
        features: Any = template.features
        for part in template.parts[feature]:
            value = self._of_part(part, pair)
            if part.side is not None:
                shown += self._compiled.reader.texts_of(part.name, value, self._docs[0].vocab)
            elif part.name != BIAS:
                shown.append(str(int(value[0])) if part.name == DISTANCE else _ENDS[int(value[0])])
        return features[feature] + ("=" + "|".join(shown) if shown else "")

    def _of_part(self, part: TiePart, pairs: TokenPairs) -> NDArray[np.uint64]:
        if part.side is not None:
            return self._of_tokens(part.name, pairs[part.side])
        if part.name == BIAS:
            return np.zeros(len(pairs.source), dtype=np.uint64)
        if part.name == DISTANCE:
            sentence = np.searchsorted(self._docs.sequence_starts(), np.stack(pairs), side="right")
            distance = np.searchsorted(_DISTANCES, abs(sentence[1] - sentence[0]), side="right") - 1
            return _DISTANCES[distance].astype(np.uint64)
        ends = np.sum([self._of_tokens(part.name, tokens) != ABSENT for tokens in pairs], axis=0, dtype=np.uint64)
        return np.where(ends > 0, ends, ABSENT)

    def _of_tokens(self, attribute: str, tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
        if self._columns is None:
            self._columns = self._compiled.reader.read(self._docs)
        return self._compiled.part_values(self._columns, TemplatePart(attribute, 0), tokens)


NAME = "share_features"  # of the source, as fn:share_features[0]
TEMPLATES = ["lower[-2..2]", "shape[-1..1]", "suffix3[-1..1]"]
_MOST_WORDS = 500_000  # whose attributes are kept


class SharedFeatures:
    """Reads items for each token: the values of templates at all tokens tied to it, each value once. The templates may read only
    attributes of words without context, such as lower or shape."""

    def __init__(self, owner: str, ties: dict[str, TieTemplate], templates: list[str]):
        self.ties = ties
        self._features = FeatureSet(templates)
        for template in self._features.templates:
            checks.expect(
                all(part.attribute in OF_WORDS for part in template.parts),
                owner,
                NAME,
                str(template),
                "templates of attributes that words have by themselves, such as lower, shape or suffix3",
            )
        self._compiled: Optional[CompiledTemplates] = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_compiled": None}

    def __call__(self, doc: Doc) -> list[list[str]]:
        names: dict[int, str] = {}
        hashes, _, starts = self.read_items([doc], names)
        texts = [names[value] for value in hashes.tolist()]
        return [texts[begin:end] for begin, end in pairwise(starts.tolist())]

    def read_items(self, docs: list[Doc], names: Optional[dict[int, str]]) -> Items:
        """The items of all tokens; `names` receives the text of each hash if it is given."""
        docs = DocBatch.of(docs)
        none = np.zeros(0, dtype=np.int64)
        pairs = [template.find(docs) for template in self.ties.values()] if len(docs.words) else []
        source = np.concatenate([none, *(each.source for each in pairs)])
        target = np.concatenate([none, *(each.target for each in pairs)])
        ends = np.append(source, target), np.append(target, source)
        compiled = self._compiler(names is not None)
        columns = compiled.reader.read(docs)
        # An item for each tied token, each of its partners, and each template
        found = compiled.hash_positions(columns)[:, columns.positions[ends[1]]]
        tokens = np.tile(ends[0], len(found))
        hashes = found.ravel()
        # Each value once for a token
        order = np.lexsort((hashes, tokens))
        tokens = tokens[order]
        hashes = hashes[order]
        is_new = np.append(True, (np.diff(tokens) > 0) | (hashes[1:] != hashes[:-1]))[: len(tokens)]
        if names is not None:
            vocab: Any = docs[0].vocab if docs else None
            for template, of_template in zip(compiled.templates, found):
                distinct, first = np.unique(of_template, return_index=True)
                values = [
                    compiled.reader.texts_of(part.attribute, compiled.part_values(columns, part, ends[1][first]), vocab)
                    for part in template.parts
                ]
                for hashed, *of_parts in zip(distinct.tolist(), *values):
                    names[hashed] = f"{template}={'|'.join(of_parts)}"
        counts = np.bincount(tokens[is_new], minlength=len(docs.words))
        starts = np.append(0, np.cumsum(counts)).astype(np.int64)
        return Items(hashes[is_new], np.ones(int(is_new.sum()), dtype=np.float32), starts)

    def _compiler(self, with_names: bool) -> CompiledTemplates:
        compiled = self._compiled
        is_full = compiled is not None and compiled.reader.table.size > _MOST_WORDS
        if compiled is None or is_full or (with_names and compiled.reader.names is None):
            compiled = self._compiled = tie_reader(self._features, {}, with_names=with_names)
        return compiled


def share(owner: str, emissions: Any, ties: dict[str, TieTemplate], given: Any) -> list[str]:
    """Let emissions read the features of the tokens that are tied to a token.

    given (Union[bool, List[str]]): Whether features are shared, or the templates of the shared features.
    RETURNS (List[str]): The templates, none if nothing is shared.
    """
    if given is False:
        return []
    templates = TEMPLATES if given is True else checks.listed(owner, NAME, given, "templates, or true or false")
    checks.expect(templates and ties, owner, NAME, given, "false where there are no cliques, else true or templates")
    store = emissions.attrs.get("features")
    checks.expect(
        store is not None,
        owner,
        NAME,
        given,
        "false: the emissions have no features. Take spacy_crf.SparseEmissions.v1 or HashedEmissions.v1",
    )
    source = SharedFeatures(owner, ties, templates)
    feature_set = store.feature_set.with_stage([f"fn:{NAME}[0]"])
    feature_set.functions = Functions({**feature_set.functions, NAME: source})
    store.set_stage(feature_set, store.first_stage)
    return templates
