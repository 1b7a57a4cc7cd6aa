"""What the templates of whole segments read of spans: hashes of their features, and the spans with a known one."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.matcher import Matcher
from spacy.strings import hash_string
from spacy.tokens import Doc, Span
from spacy.vocab import Vocab

from ..errors import Errors, shown
from ..kernels import segment_features as kernels
from ..kernels.hashing import NO_FEATURE, mix_all, read_columns
from ..types import SpanList, TokenFeatures
from .clusters import Clusters
from .extractor import CompiledTemplates
from .feature_index import FeatureIndex
from .gazetteers import SPELLINGS, Gazetteer
from .items import hash_item, named_numbers
from .phrases import PhraseIndex, Spans
from .segment_templates import (
    CLOSING,
    ITEMS,
    OPENING,
    PHRASES,
    TOKEN_PARTS,
    WHOLE,
    SegmentFeatureSet,
    SegmentPart,
    SegmentTemplate,
)
from .token_columns import TokenColumns

_PART_KINDS = {"length": kernels.LENGTH} | dict.fromkeys(WHOLE, kernels.WHOLE)
_PART_KINDS |= dict.fromkeys(OPENING, kernels.FIRST) | dict.fromkeys(CLOSING, kernels.LAST)
_SPANS_AT_ONCE = 1 << 18
_CACHED_SPANS = 1 << 20


class _Spans(NamedTuple):
    """Spans to look at, by their first token and then by their length."""

    docs: list[Doc]
    columns: TokenColumns
    tokens: kernels.SpanTokens
    begin: NDArray[np.int64]  # [N]
    length: NDArray[np.int32]  # [N]
    whole: NDArray[np.uint64]  # [N, C] hash of all words of each, for the columns that are read as a whole


class _Items(NamedTuple):
    """Values that a part with any number of them found at spans."""

    span: NDArray[np.int64]  # [N] position in the list of spans that was asked for
    hash: NDArray[np.uint64]  # [N] of the value
    value: NDArray[np.float64]  # [N]
    names: Callable[[], list[str]]  # of the values, if someone wants to know

    @classmethod
    def labelled(cls, span: NDArray, label: NDArray, names: list[str], values: NDArray) -> "_Items":
        """Of which each has one of few names."""
        hashes = np.array([hash_string(name) for name in names] or [0], dtype=np.uint64)
        return cls(span, hashes[label], values, lambda: [names[n] for n in label.tolist()])


class SpanItems(NamedTuple):
    """Hashed features of spans, of templates with such a part."""

    span: NDArray[np.int64]  # [I] position in the list of spans that was asked for
    hash: NDArray[np.uint64]  # [I]
    value: NDArray[np.float32]  # [I]
    template: NDArray[np.int32]  # [I] position in the templates
    names: Callable[[], list[str]]  # of the values


_NO_ITEMS = SpanItems(*(np.zeros(0, dtype) for dtype in (np.int64, np.uint64, np.float32, np.int32)), list)


class KnownSpans(NamedTuple):
    """The spans with a known feature, and their features."""

    listed: SpanList
    rows: TokenFeatures  # of N spans, in the index of the spans
    repeats: TokenFeatures  # of N spans, in the index of the tokens: what was counted more than once, negative


class CompiledSegments:
    """Segment templates compiled against a reader."""

    def __init__(
        self,
        feature_set: SegmentFeatureSet,
        gazetteers: dict[str, Gazetteer],
        clusters: Optional[Clusters] = None,
    ):
        self.feature_set = feature_set
        self.reader = feature_set.reader(gazetteers, clusters)
        placed = {"begins": feature_set.begins, "ends": feature_set.ends, "tokens": feature_set.tokens}
        self.templates = {place: CompiledTemplates(some, self.reader) for place, some in placed.items()}
        self.tokens = self.templates["tokens"]
        self.phrases: dict[str, PhraseIndex] = {}
        self._phrase_column: dict[str, str] = {}  # the attribute by which phrases are compared
        for name in feature_set.named(PHRASES):
            gazetteer = gazetteers[name]
            self.phrases[name] = PhraseIndex(gazetteer.entries, SPELLINGS[gazetteer.attr], scan=gazetteer.scan)
            self._phrase_column[name] = gazetteer.attr.lower()
        self._matchers: dict[str, Matcher] = {}
        self._similar: dict[tuple[str, int], list[tuple[int, float, float]]] = {}  # by gazetteer and hash of the span
        templates = feature_set.spans + feature_set.span_items
        self._columns = sorted(
            {part.name if part.kind in TOKEN_PARTS else WHOLE[part.kind] for t in templates for part in t.parts
             if part.kind in TOKEN_PARTS or part.kind in WHOLE} | {"lower", *self._phrase_column.values()}
        )  # fmt: skip
        self._plain = self._compile((template, template.parts) for template in feature_set.spans)
        self._reads_wholes = all(len(t.parts) == 1 and t.kinds <= WHOLE.keys() for t in feature_set.spans)
        # Of each template that has items: the part that gives them, and what it reads beside
        self._with_items = []
        for template in feature_set.span_items:
            [item] = [part for part in template.parts if part.kind in ITEMS]
            rest = [part for part in template.parts if part is not item]
            self._with_items.append((item, self._compile([(template, rest)])))
        whole = {WHOLE[kind] for t in templates for kind in t.kinds if kind in WHOLE} | {*self._phrase_column.values()}
        self._whole_columns = np.array(sorted(map(self._columns.index, whole)), dtype=np.int64)
        self._places = self.tokens.places(self._columns)

    def _compile(self, templates: Iterable[tuple[SegmentTemplate, Sequence[SegmentPart]]]) -> kernels.SpanTemplates:
        """Templates by their names, with some of their parts."""
        seeds, of_templates = [], []
        for template, parts in templates:
            seeds.append(hash_string(str(template)))
            of_templates.append(parts)
        parts = [*chain.from_iterable(of_templates)]
        arrays = [np.append(0, np.cumsum([*map(len, of_templates)])), [_PART_KINDS[part.kind] for part in parts]]
        arrays += [[*map(self._column, parts)], [*map(_offset, parts)]]
        return kernels.SpanTemplates(np.array(seeds, dtype=np.uint64), *(np.array(a, dtype=np.int64) for a in arrays))

    def _column(self, part: SegmentPart) -> int:
        if part.kind == "length":
            return 0
        return self._columns.index(part.name if part.kind in TOKEN_PARTS else WHOLE[part.kind])

    def read(self, columns: TokenColumns) -> kernels.SpanTokens:
        """What templates of spans read of the tokens of a batch."""
        closing = np.repeat(columns.starts[1:], np.diff(columns.starts))
        values = read_columns(columns.lexemes, columns.table.columns, columns.values, self._places)
        return kernels.SpanTokens(values, columns.positions, closing)

    def hash(
        self, docs: list[Doc], columns: TokenColumns, begin: NDArray[np.int64], length: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint64], SpanItems]:
        """Hashes all templates of spans at the given spans.

        begin (int64[N]), length (int32[N]): By their first token and then by their length.
        RETURNS (uint64[N, M], SpanItems): Those of plain templates, and those of the others.
        """
        spans = self._spans(docs, columns, self.read(columns), begin, length)
        return kernels.hash_spans(spans.tokens, self._plain, begin, length, spans.whole), self._items(spans)

    def _spans(self, docs, columns, tokens: kernels.SpanTokens, begin: NDArray, length: NDArray) -> _Spans:
        whole = np.zeros((len(begin), len(self._columns)), dtype=np.uint64)
        for column in self._whole_columns:
            whole[:, column] = kernels.hash_whole(tokens.values[column], tokens.positions[begin], length)
        return _Spans(docs, columns, tokens, begin, length, whole)

    def _items(self, spans: _Spans) -> SpanItems:
        """What templates with items find at spans."""
        found = [_NO_ITEMS]
        for number, (part, rest) in enumerate(self._with_items):
            items = self._find(part, spans)
            asked = (array[items.span] for array in (spans.begin, spans.length, spans.whole))
            hashes = kernels.hash_spans(spans.tokens, rest, *asked)[:, 0]
            mix_all(hashes, items.hash)
            [known] = np.nonzero(hashes != NO_FEATURE)
            values, template = items.value[known].astype(np.float32), np.full(len(known), number, dtype=np.int32)
            found.append(SpanItems(items.span[known], hashes[known], values, template, partial(_chosen, items, known)))
        *arrays, names = zip(*found)
        return SpanItems(*map(np.concatenate, arrays), lambda: [name for some in names for name in some()])

    # ---------------------------------------------------------------------------------------- values of whole spans

    def _find(self, part: SegmentPart, spans: _Spans) -> _Items:
        """Items of one part."""
        if part.kind == "fn":
            return self._call(part.name, spans)
        if part.kind == "near":
            return self._find_near(part.name, spans)
        if part.kind == "in":
            phrases = self.phrases[part.name]
            span, label = phrases.exact(spans.whole[:, self._columns.index(self._phrase_column[part.name])])
            return _Items.labelled(span, label, [label or "yes" for label in phrases.labels], np.ones(len(span)))
        span = self._find_matches(part.name, spans)
        return _Items.labelled(span, np.zeros(len(span), dtype=np.int32), ["yes"], np.ones(len(span)))

    def _find_near(self, name: str, spans: _Spans) -> _Items:
        phrases, cache, column = self.phrases[name], self._similar, self._columns.index(self._phrase_column[name])
        keys, words = spans.whole[:, column], spans.tokens.values[column]
        distinct, where, inverse = np.unique(keys, return_index=True, return_inverse=True)
        known = {key: cache.get((name, key)) for key in distinct.tolist()}
        new = np.array([n for n, similar in enumerate(known.values()) if similar is None], dtype=np.int64)
        if len(new):
            spelled = list(map(attrgetter(f"{self._phrase_column[name]}_"), chain.from_iterable(spans.docs)))
            at, width = spans.begin[where[new]], spans.length[where[new]]
            texts = [" ".join(spelled[b : b + k]) for b, k in zip(at.tolist(), width.tolist())]
            found = phrases.near(Spans(words, spans.tokens.positions[at], width, texts))
            asked = {key: [] for key in distinct[new].tolist()}
            for query, *similarity in zip(*(array.tolist() for array in found)):
                asked[int(distinct[new[query]])].append(tuple(similarity))
            known.update(asked)
            if len(cache) > _CACHED_SPANS:
                cache.clear()
            # Not before they are complete: other threads may be reading
            cache.update(((name, key), similar) for key, similar in asked.items())
        rows = [(n, *similarity) for n, similar in enumerate(known.values()) for similarity in similar]
        if not rows:
            return _Items.labelled(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), [], np.zeros(0))
        of, label, shared, alike = (np.array(column) for column in zip(*rows))
        # from distinct spans to all of them
        starts = np.append(0, np.cumsum(np.bincount(of, minlength=len(distinct))))
        span, row = _ranges(np.arange(len(keys)), starts[:-1][inverse], starts[1:][inverse])
        names = [f"{measure} {label}".strip() for measure in ("jaccard", "jaro-winkler") for label in phrases.labels]
        values = np.concatenate([shared[row], alike[row]])
        kind = np.concatenate([label[row], label[row] + len(phrases.labels)])
        some = values > 0
        return _Items.labelled(np.concatenate([span, span])[some], kind[some], names, values[some])

    def _find_matches(self, name: str, spans: _Spans) -> NDArray[np.int64]:
        docs = spans.docs
        matcher = self._matchers.get(name)
        if matcher is None or (docs and matcher.vocab is not docs[0].vocab):
            matcher = self._matchers[name] = Matcher(docs[0].vocab if docs else Vocab())
            matcher.add(name, self.feature_set.patterns[name])
        matched = [
            (int(offset) + start, end - start)
            for doc, offset in zip(docs, spans.columns.doc_starts)
            for _, start, end in matcher(doc)
        ]
        first, width = np.array(matched or np.zeros((0, 2)), dtype=np.int64).T
        base = np.int64(1 << 32)
        return np.flatnonzero(np.isin(spans.begin * base + spans.length, first * base + width))

    def _call(self, name: str, spans: _Spans) -> _Items:
        function, doc_starts = self.feature_set.functions[name], spans.columns.doc_starts
        at, texts, numbers = [], [], []
        of_doc = np.searchsorted(doc_starts, spans.begin, side="right") - 1
        start = spans.begin - doc_starts[of_doc]
        for n, (d, b, e) in enumerate(zip(of_doc.tolist(), start.tolist(), (start + spans.length).tolist())):
            span = spans.docs[d][b:e]
            for text, number in _span_items(name, span, function(span)):
                at.append(n)
                texts.append(text)
                numbers.append(number)
        hashes = np.array([hash_item(f"seg.fn:{name}", text) for text in texts], dtype=np.uint64)
        return _Items(np.array(at, dtype=np.int64), hashes, np.array(numbers, dtype=np.float64), lambda: texts)

    # ------------------------------------------------------------------------------------------------- known spans

    def known_spans(
        self, docs: list[Doc], columns: TokenColumns, longest: int, index: FeatureIndex, token_index: FeatureIndex
    ) -> KnownSpans:
        """All spans of at most `longest` tokens that have a feature in the index."""
        n_tokens, tokens = len(columns.positions), self.read(columns)
        wholes = self._known_wholes(tokens, longest, index)
        others = [*self._known(docs, columns, tokens, longest, index)]
        repeats = [*self._repeats(columns, tokens, longest, token_index)]
        if not others and not repeats:
            begin, length, rows = wholes
            starts, lengths, bounds = kernels.number_spans(begin, length, n_tokens)
            none = TokenFeatures(rows[:0], None, np.zeros_like(bounds))
            return KnownSpans(SpanList(starts, lengths), TokenFeatures(rows, None, bounds), none)
        parts = [(*wholes, np.ones(len(wholes[0]), dtype=np.float32)), *others, *repeats]
        n_own = sum(len(begin) for begin, *_ in parts[: 1 + len(others)])
        begin, length, rows, values = (np.concatenate(arrays) for arrays in zip(*parts))
        order = np.argsort(begin * (longest + 1) + length, kind="stable")
        begin, length, rows, values = (array[order] for array in (begin, length, rows, values))
        starts, lengths, bounds = kernels.number_spans(begin, length, n_tokens)
        span, is_own = np.repeat(np.arange(len(lengths)), np.diff(bounds)), order < n_own
        of_own = compressed(span[is_own], rows[is_own], values[is_own], len(lengths))
        of_repeats = compressed(span[~is_own], rows[~is_own], values[~is_own], len(lengths))
        return KnownSpans(SpanList(starts, lengths), of_own, of_repeats)

    def _known_wholes(self, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex) -> tuple[NDArray, ...]:
        """First tokens, lengths and rows of the known features, where all templates read nothing but whole spans."""
        if not self._reads_wholes or not self.feature_set.spans or not len(index):
            return _NONE_KNOWN
        return kernels.list_known(tokens, longest, self._plain.seeds, self._plain.columns, index.sieved)

    def _known(
        self, docs: list[Doc], columns: TokenColumns, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex
    ) -> Iterable[tuple]:
        """The same of the other templates, and of all where there are such, and their values."""
        is_asked = self._with_items or not self._reads_wholes
        n_tokens, at_once = len(tokens.closing), max(1, _SPANS_AT_ONCE // longest)
        for first in range(0, n_tokens if is_asked and len(index) else 0, at_once):
            begin, length = kernels.all_spans(tokens.closing, first, min(first + at_once, n_tokens), longest)
            spans = self._spans(docs, columns, tokens, begin, length)
            if not self._reads_wholes:
                hashes = kernels.hash_spans(tokens, self._plain, begin, length, spans.whole)
                rows = index.rows(hashes.ravel())
                [known] = np.nonzero(rows >= 0)
                span = known // max(1, hashes.shape[1])
                yield begin[span], length[span], rows[known], np.ones(len(known), dtype=np.float32)
            items = self._items(spans)
            rows = index.rows(items.hash)
            span = items.span[rows >= 0]
            yield begin[span], length[span], rows[rows >= 0], items.value[rows >= 0]

    def _repeats(
        self, columns: TokenColumns, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex
    ) -> Iterable[tuple]:
        """The same of values that a span holds more than once, for templates that ask whether it contains them."""
        contains = [n for n, t in enumerate(self.tokens.templates) if str(t).startswith("seg.contains:")]
        of_items = [n for n, t in enumerate(self.tokens.item_templates) if str(t).startswith("seg.contains:")]
        if not (contains or of_items) or not len(index):
            return
        features = self.tokens.hash(columns)
        for number in contains:
            keys = index.rows(np.ascontiguousarray(features.hashes[:, number]))
            begin, length, rows = kernels.list_repeats(keys, tokens.closing, longest)
            yield begin, length, rows, np.full(len(rows), -1.0, dtype=np.float32)
        rows = index.rows(features.item_hashes)
        [asked] = np.nonzero(np.isin(features.item_templates, of_items) & (rows >= 0))
        items = features.item_tokens[asked], rows[asked], features.item_values[asked]
        opening = np.repeat(columns.starts[:-1], np.diff(columns.starts))
        yield _repeated_items(*items, opening, tokens.closing, longest)


_NONE_KNOWN = tuple(np.zeros(0, dtype) for dtype in (np.int64, np.int32, np.int32))


def _repeated_items(token, row, value, opening, closing, longest: int):
    """The same for items, of which a token may have several: each but the first one of its row in a span."""
    order = np.lexsort((token, row))
    token, row, value = token[order], row[order], value[order]
    before, after = token[:-1], token[1:]
    first = np.maximum(after - longest + 1, opening[after])  # where a span with both begins at the earliest
    [pair] = np.nonzero((row[1:] == row[:-1]) & (before >= first))
    pair, begin = _ranges(pair, first[pair], before[pair] + 1)
    chosen, end = _ranges(np.arange(len(pair)), after[pair] + 1, np.minimum(begin + longest, closing[after[pair]]) + 1)
    pair, begin = pair[chosen], begin[chosen]
    return begin, (end - begin).astype(np.int32), row[1:][pair], -value[1:][pair]


def _ranges(keys, first, stop) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each key once for every number from its first to, not including, its stop; and these numbers."""
    counts = stop - first
    total = np.cumsum(counts)
    return np.repeat(keys, counts), np.arange(counts.sum()) + np.repeat(first - total + counts, counts)


def _offset(part: SegmentPart) -> int:
    return part.of_token.offset if part.kind in TOKEN_PARTS else 0


def _chosen(items: _Items, some: NDArray[np.int64]) -> list[str]:
    names = items.names()
    return [names[n] for n in some.tolist()]


def _span_items(name: str, span: Span, given: Any):
    """What a function gave for a span as pairs of a name and a number. RAISES (ValueError): CRF111."""
    if given is None:
        return []
    one = isinstance(given, (str, int, float, np.number))
    found = named_numbers([given] if one else given)
    if found is None or not all(map(math.isfinite, found[1])):
        where = f"The feature function '{name}', for the span '{span.text[:40]}'"
        raise ValueError(Errors.CRF111.format(where=where, value=shown(given)))
    return zip(*found)


def compressed(span, rows, values, n_spans: int) -> TokenFeatures:
    """Features by span, in rising order, as compressed rows."""
    starts = np.append(0, np.cumsum(np.bincount(span, minlength=n_spans))).astype(np.int64)
    return TokenFeatures(rows.astype(np.int32), None if (values == 1).all() else values, starts)
