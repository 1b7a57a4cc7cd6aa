"""Features of the tokens that a token is tied to, as its own (Sutton & McCallum 2004): what stands around the other mention of a
name says what this one is, in a chain that stays one."""

from itertools import pairwise
from typing import Any, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc

from ... import checks
from ...features.doc_batch import DocBatch
from ...features.extractor import CompiledTemplates, FeatureSet
from ...features.items import ItemReader, Items
from .template import OF_WORDS, CliqueTemplate

NAME = "share_features"  # of the source, as fn:share_features[0]
TEMPLATES = ["lower[-2..2]", "shape[-1..1]", "suffix3[-1..1]"]
_MOST_WORDS = 500_000  # whose attributes are kept


class SharedFeatures(ItemReader):
    """At each token what templates find at those that it is tied to, each once.

    cliques (Dict[str, CliqueTemplate]): What ties them.
    templates (List[str]): Of attributes that words have by themselves.
    """

    def __init__(self, owner: str, cliques: dict[str, CliqueTemplate], templates: list[str]):
        self.cliques = cliques
        self._features = FeatureSet(templates)
        for template in self._features.templates:
            possible = all(part.attribute in OF_WORDS for part in template.parts)
            must = "templates of attributes that words have by themselves, such as lower, shape or suffix3"
            checks.expect(possible, owner, NAME, str(template), must)
        self._compiled: Optional[CompiledTemplates] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None}

    def __call__(self, doc: Doc) -> list[list[str]]:
        names: dict[int, str] = {}
        hashes, _, starts = self.read([doc], names)
        return [[names[h] for h in hashes[a:b].tolist()] for a, b in pairwise(starts.tolist())]

    def read(self, docs: list[Doc], names: Optional[dict[int, str]]) -> Items:
        docs, none = DocBatch.of(docs), np.zeros(0, dtype=np.int64)
        pairs = [template.find(docs) for template in self.cliques.values()] if len(docs.words) else []
        source, target = (np.concatenate([none, *(each[side] for each in pairs)]) for side in range(2))
        ends = np.append(source, target), np.append(target, source)
        compiled = self._compiler(names is not None)
        columns = compiled.reader.read(docs)
        # An item for each tied token, each of its partners, and each template
        found = compiled.hash_positions(columns)[:, columns.positions[ends[1]]]
        tokens, hashes = np.tile(ends[0], len(found)), found.ravel()
        order = np.lexsort((hashes, tokens))
        tokens, hashes = tokens[order], hashes[order]
        is_new = np.append(True, (np.diff(tokens) > 0) | (hashes[1:] != hashes[:-1]))[: len(tokens)]
        if names is not None:
            for number, of_template in enumerate(found):
                self._name(compiled, number, of_template, columns, ends[1], names, docs)
        counts = np.bincount(tokens[is_new], minlength=len(docs.words))
        starts = np.append(0, np.cumsum(counts)).astype(np.int64)
        return Items(hashes[is_new], np.ones(int(is_new.sum()), dtype=np.float32), starts)

    def _compiler(self, with_names: bool) -> CompiledTemplates:
        compiled = self._compiled
        is_fitting = compiled is not None and len(compiled.reader.table) <= _MOST_WORDS
        if not is_fitting or (with_names and compiled.reader.names is None):
            reader = self._features.reader({})
            reader.keep_names(with_names)
            compiled = self._compiled = CompiledTemplates(self._features.counted, reader)
        return compiled

    @staticmethod
    def _name(compiled: CompiledTemplates, number: int, of_template: NDArray[np.uint64], columns: Any,
              tokens: NDArray[np.int64], names: dict[int, str], docs: DocBatch) -> None:  # fmt: skip
        """Spells what a template finds."""
        distinct, first = np.unique(of_template, return_index=True)
        template, vocab = compiled.templates[number], docs[0].vocab if docs else None
        values = [
            compiled.reader.spell(part.attribute, compiled.part_values(columns, part, tokens[first]), vocab)
            for part in template.parts
        ]
        for hashed, *of_parts in zip(distinct.tolist(), *values):
            names[hashed] = f"{template}={'|'.join(of_parts)}"


def share(owner: str, emissions: Any, cliques: dict[str, CliqueTemplate], given: Any) -> list[str]:
    """Lets emissions read the features of the tokens that a token is tied to.

    given (Union[bool, List[str]]): Whether, or by which templates.
    RETURNS (List[str]): The templates, none if nothing is shared.
    """
    if given is False:
        return []
    templates = TEMPLATES if given is True else checks.listed(owner, NAME, given, "templates, or true or false")
    checks.expect(templates and cliques, owner, NAME, given, "false where there are no cliques, else true or templates")
    store = emissions.attrs.get("features")
    must = "false: the emissions have no features. Take spacy_crf.SparseEmissions.v1 or HashedEmissions.v1"
    checks.expect(store is not None, owner, NAME, given, must)
    source = SharedFeatures(owner, cliques, templates)
    store.set_stage(store.feature_set.with_source(NAME, source), store.first_stage)
    return templates
