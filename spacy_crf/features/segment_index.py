"""Counts the features of segments, from which an index of them is made."""

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc
from spacy.vocab import Vocab

from ..types import TokenFeatures
from .feature_index import FeatureCounter, FeatureIndex
from .segment_templates import ITEMS, OPENING, WHOLE, SegmentPart
from .segments import CompiledSegments, compressed
from .templates import Part
from .token_columns import TokenColumns


class SpanIndexBuilder(FeatureCounter):
    """Counts the features of segments batch by batch."""

    def __init__(self, compiled: CompiledSegments, known: FeatureIndex):
        self._compiled = compiled
        self._templates = compiled.feature_set.spans + compiled.feature_set.span_items
        super().__init__([*map(str, self._templates)], known)
        self._template_of: list[int] = []
        self._spelled: list[tuple[str, ...]] = []

    def add(self, docs: list[Doc], columns: TokenColumns, begin: NDArray, length: NDArray) -> TokenFeatures:
        """Counts the features of some spans.

        RETURNS (TokenFeatures): Their rows among all features met so far, span by span.
        """
        hashes, items = self._compiled.hash(docs, columns, begin, length)
        width, n_plain = max(1, hashes.shape[1]), len(self._compiled.feature_set.spans)
        at, at_item, names = self._table.add(hashes.ravel()), self._table.add(items.hash), items.names()
        of_items = [names[n] for n in at_item.tolist()]
        span = np.concatenate([at // width, items.span[at_item]])
        template_of = np.concatenate([at % width, n_plain + items.template[at_item]])
        texts: list[tuple[str, ...]] = [()] * len(span)
        for number in np.unique(template_of):
            [new] = np.nonzero(template_of == number)
            spans = begin[span[new]], length[span[new]]
            parts = [
                [of_items[n] for n in (new - len(at)).tolist()]
                if part.kind in ITEMS
                else _spell(part, *spans, self._compiled, columns, docs[0].vocab)
                for part in self._templates[number].parts
            ]
            for n, text in zip(new.tolist(), zip(*parts)):
                texts[n] = text
        self._template_of += template_of.tolist()
        self._spelled += texts
        rows = self._table.rows(hashes.ravel())
        [known] = np.nonzero(rows >= 0)
        span = np.concatenate([known // width, items.span])
        rows = np.concatenate([rows[known], self._table.rows(items.hash)])
        order = np.argsort(span, kind="stable")
        return compressed(span[order], rows[order], np.ones(len(rows), dtype=np.float32), len(begin))

    def freeze(self, keep: NDArray[np.bool_], vocab: Vocab) -> FeatureIndex:
        """The features to keep (bool[N]), in the order in which they were met."""
        new = np.flatnonzero(keep[len(self.known) :]).tolist()
        texts = [self._spelled[n] for n in new]
        place: dict[str, int] = {}
        parts = [place.setdefault(text, len(place)) for of_feature in texts for text in of_feature]
        template_of = np.array([self._template_of[n] for n in new], dtype=np.int32)
        return self._index(keep, template_of, [*map(len, texts)], np.array(parts, dtype=np.int32), list(place))


def _spell(
    part: SegmentPart, begin, length, compiled: CompiledSegments, columns: TokenColumns, vocab: Vocab
) -> list[str]:
    """What a plain part finds in spans, for humans."""
    tokens, spell = compiled.tokens, compiled.reader.spell
    if part.kind == "length":
        return [*map(str, length.tolist())]
    if part.kind in WHOLE:
        attribute = WHOLE[part.kind]
        everywhere = np.arange(len(columns.positions))
        words = spell(attribute, tokens.part_values(columns, Part(attribute, 0), everywhere), vocab)
        return [" ".join(words[b:e]) for b, e in zip(begin.tolist(), (begin + length).tolist())]
    at = begin if part.kind in OPENING else begin + length - 1
    return spell(part.name, tokens.part_values(columns, part.of_token, at), vocab)
