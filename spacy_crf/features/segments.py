"""Features of whole segments: their hashes, the spans with a known feature, and the index of the features met in training."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product
from operator import attrgetter
from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray
from spacy.matcher import Matcher
from spacy.strings import hash_string  # pyright: ignore[reportAttributeAccessIssue]  not in its stub
from spacy.tokens import Doc
from spacy.vocab import Vocab

from ..arrays import ranges
from ..errors import Errors, function_failed, optional_package, shown
from ..kernels import segment_features as kernels
from ..kernels.hashing import NO_FEATURE, mix_all, read_columns
from ..types import SpanList, TokenFeatures
from .clusters import Clusters
from .extractor import CompiledTemplates
from .feature_index import FeatureCounter, FeatureIndex, by_token
from .gazetteers import SPELLINGS, Gazetteer
from .items import hash_item, named_numbers
from .phrases import PhraseIndex, SpelledSpans
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
from .templates import TemplatePart
from .token_columns import TokenColumns

_PART_KINDS = {"length": kernels.LENGTH} | dict.fromkeys(WHOLE, kernels.WHOLE)
_PART_KINDS |= dict.fromkeys(OPENING, kernels.FIRST) | dict.fromkeys(CLOSING, kernels.LAST)
_SPANS_AT_ONCE = 1 << 18
_CACHED_SPANS = 1 << 20


class ListedSpans(NamedTuple):
    """Spans whose features are read, sorted by first token, then by length."""

    docs: list[Doc]
    columns: TokenColumns
    tokens: kernels.SpanTokens
    begin: NDArray[np.int64]  # [N]
    length: NDArray[np.int32]  # [N]
    whole: NDArray[np.uint64]  # [N, C] hash of all words of each span, for the columns that are read as a whole


class SpanItems(NamedTuple):
    """Values that parts with items find at spans, or the features made of these values."""

    span: NDArray[np.int64]  # [I] position in the list of spans
    hash: NDArray[np.uint64]  # [I]
    value: NDArray[np.floating]  # [I]
    names: Callable[[], list[str]]  # returns the text of each value
    template: Optional[NDArray[np.int32]] = None  # [I] template of each feature, as a position in the templates

    @classmethod
    def labelled(cls, span: NDArray, label: NDArray, names: list[str], values: NDArray) -> "SpanItems":
        """Items whose values have few names, from the number (int[I]) of each item's name."""
        hashes = np.array([hash_string(name) for name in names] or [0], dtype=np.uint64)
        return cls(span, hashes[label], values, lambda: [names[n] for n in label.tolist()])


class KnownSpans(NamedTuple):
    """The N spans with a known feature, and these features."""

    listed: SpanList
    rows: TokenFeatures  # in the index of spans
    repeats: TokenFeatures  # in the index of tokens: negative values, which correct for repeated features


class _Found(NamedTuple):
    """F known features of spans."""

    begin: NDArray[np.int64]  # [F] first token of the span
    length: NDArray[np.int32]  # [F]
    row: NDArray[np.int32]  # [F]
    value: NDArray[np.float32]  # [F]


_NO_ITEMS = tuple(np.zeros(0, dtype) for dtype in (np.int64, np.uint64, np.float32, np.int32))


class CompiledSegments:
    """Segment templates compiled against a reader of columns."""

    def __init__(
        self,
        feature_set: SegmentFeatureSet,
        gazetteers: dict[str, Gazetteer],
        clusters: Optional[dict[str, Clusters]] = None,
    ):
        self.feature_set = feature_set
        self.reader = feature_set.reader(gazetteers, clusters)
        placed = {"begins": feature_set.begins, "ends": feature_set.ends, "tokens": feature_set.tokens}
        self.templates = {place: CompiledTemplates(some, self.reader) for place, some in placed.items()}
        self.tokens = self.templates["tokens"]
        self.phrases: dict[str, PhraseIndex] = {}
        # By gazetteer: the attribute by which phrases are compared
        self._phrase_column: dict[str, str] = {}
        if feature_set.named({"near"}):
            optional_package("rapidfuzz", what="The similarity of spans to phrases", install="'spacy-crf[fuzzy]'")
        for name in feature_set.named(PHRASES):
            gazetteer = gazetteers[name]
            self.phrases[name] = PhraseIndex(gazetteer.entries, SPELLINGS[gazetteer.attr], scan=gazetteer.scan)
            self._phrase_column[name] = gazetteer.attribute
        self._matchers: dict[tuple[str, Vocab], Matcher] = {}
        # By gazetteer and hash of the span
        self._similar: dict[tuple[str, int], list[tuple[int, float, float]]] = {}
        parts = list(chain.from_iterable(t.parts for t in feature_set.spans + feature_set.span_items))
        whole = {WHOLE[part.kind] for part in parts if part.kind in WHOLE} | {*self._phrase_column.values()}
        self._columns = sorted({"lower", *whole, *(part.name for part in parts if part.kind in TOKEN_PARTS)})
        self._whole_columns = np.array(sorted(map(self._columns.index, whole)), dtype=np.int64)
        self._places = self.tokens.places(self._columns)
        self._plain = self._compile((template, template.parts) for template in feature_set.spans)
        self._reads_wholes = all(len(t.parts) == 1 and t.kinds <= WHOLE.keys() for t in feature_set.spans)
        # For each template with items: the part that finds the items, and the other parts
        self._with_items = []
        for template in feature_set.span_items:
            [item] = [part for part in template.parts if part.kind in ITEMS]
            rest = [part for part in template.parts if part is not item]
            self._with_items.append((item, self._compile([(template, rest)])))

    def _compile(self, templates: Iterable[tuple[SegmentTemplate, Sequence[SegmentPart]]]) -> kernels.SpanTemplates:
        """Compile some of the parts of each template."""
        seeds = []
        part_starts = [0]
        parts = []
        for template, some in templates:
            seeds.append(hash_string(str(template)))
            for kind, name, offset in some:
                column = 0 if kind == "length" else self._columns.index(name if kind in TOKEN_PARTS else WHOLE[kind])
                parts.append((_PART_KINDS[kind], column, TOKEN_PARTS.get(kind, 0) + offset))
            part_starts.append(len(parts))
        columns = np.array(parts, dtype=np.int64).reshape(-1, 3).T.copy()
        return kernels.SpanTemplates(np.array(seeds, dtype=np.uint64), np.array(part_starts, dtype=np.int64), *columns)

    def read(self, columns: TokenColumns) -> kernels.SpanTokens:
        """The columns that templates of spans read, at all positions of a batch."""
        closing = np.repeat(columns.starts[1:], np.diff(columns.starts))
        values = read_columns(columns.lexemes, columns.table.columns, columns.values, self._places)
        return kernels.SpanTokens(values, columns.positions, closing)

    def listed(
        self, docs: list[Doc], columns: TokenColumns, tokens: kernels.SpanTokens, begin: NDArray, length: NDArray
    ) -> ListedSpans:
        """The spans with these first tokens (int64[N]) and lengths (int32[N]). tokens (SpanTokens): From `read`."""
        whole = np.zeros((len(begin), len(self._columns)), dtype=np.uint64)
        for column in self._whole_columns:
            whole[:, column] = kernels.hash_whole(tokens.values[column], tokens.positions[begin], length)
        return ListedSpans(docs, columns, tokens, begin, length, whole)

    def hash(self, spans: ListedSpans) -> NDArray[np.uint64]:
        """The features of plain templates at spans: uint64[N, M]."""
        return kernels.hash_spans(spans.tokens, self._plain, spans.begin, spans.length, spans.whole)

    def items(self, spans: ListedSpans) -> SpanItems:
        """The features of templates with items at spans."""
        found: list[tuple[NDArray, ...]] = [_NO_ITEMS]
        # Values, and which of them are part of a feature
        values: list[tuple[SpanItems, NDArray[np.int64]]] = []
        for number, (part, rest) in enumerate(self._with_items):
            items = self._find(part, spans)
            asked = (array[items.span] for array in (spans.begin, spans.length, spans.whole))
            hashes = kernels.hash_spans(spans.tokens, rest, *asked)[:, 0]
            mix_all(hashes, items.hash)
            [known] = np.nonzero(hashes != NO_FEATURE)
            template = np.full(len(known), number, dtype=np.int32)
            found.append((items.span[known], hashes[known], items.value[known].astype(np.float32), template))
            values.append((items, known))

        def names() -> list[str]:
            found = []
            for items, known in values:
                of_items = items.names()
                found += [of_items[n] for n in known.tolist()]
            return found

        span, hashes, value, template = map(np.concatenate, zip(*found))
        return SpanItems(span, hashes, value, names, template)

    # ---------------------------------------------------------------------------------------- values of whole spans

    def _find(self, part: SegmentPart, spans: ListedSpans) -> SpanItems:
        """The values that a part with items finds."""
        if part.kind == "fn":
            return self._call(part.name, spans)
        if part.kind == "near":
            return self._find_near(part.name, spans)
        if part.kind == "in":
            phrases = self.phrases[part.name]
            span, label = phrases.exact(spans.whole[:, self._columns.index(self._phrase_column[part.name])])
            return SpanItems.labelled(span, label, [label or "yes" for label in phrases.labels], np.ones(len(span)))
        span = self._find_matches(part.name, spans)
        return SpanItems.labelled(span, np.zeros(len(span), dtype=np.int32), ["yes"], np.ones(len(span)))

    def _find_near(self, name: str, spans: ListedSpans) -> SpanItems:
        phrases = self.phrases[name]
        cache = self._similar
        column = self._columns.index(self._phrase_column[name])
        keys = spans.whole[:, column]
        words = spans.tokens.values[column]
        # Most spans of a corpus recur: each text is compared once
        distinct, where, inverse = np.unique(keys, return_index=True, return_inverse=True)
        known = {key: cache.get((name, key)) for key in distinct.tolist()}
        new = np.array([n for n, similar in enumerate(known.values()) if similar is None], dtype=np.int64)
        if len(new):
            spelled = list(map(attrgetter(f"{self._phrase_column[name]}_"), chain.from_iterable(spans.docs)))
            at = spans.begin[where[new]]
            width = spans.length[where[new]]
            texts = [" ".join(spelled[b : b + k]) for b, k in zip(at.tolist(), width.tolist())]
            found = phrases.near(SpelledSpans(words, begin=spans.tokens.positions[at], length=width, texts=texts))
            asked = {key: [] for key in distinct[new].tolist()}
            for query, *similarity in zip(*(array.tolist() for array in found)):
                asked[int(distinct[new[query]])].append(tuple(similarity))
            known.update(asked)
            if len(cache) > _CACHED_SPANS:
                cache.clear()
            # Stored only when complete, since other threads may be reading
            cache.update(((name, key), similar) for key, similar in asked.items())
        rows = [(n, *similarity) for n, similar in enumerate(known.values()) for similarity in similar or ()]
        if not rows:
            return SpanItems.labelled(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), [], np.zeros(0))
        of, label, shared, alike = (np.array(column) for column in zip(*rows))
        # From distinct spans, whose similarities are contiguous, to all spans
        first, behind = np.searchsorted(of, [inverse, inverse + 1])
        span = np.repeat(np.arange(len(keys)), behind - first)
        row = ranges(first, behind)
        names = [
            f"{measure} {label}".strip() for measure, label in product(("jaccard", "jaro-winkler"), phrases.labels)
        ]
        values = np.concatenate([shared[row], alike[row]])
        kind = np.concatenate([label[row], label[row] + len(phrases.labels)])
        some = values > 0
        return SpanItems.labelled(np.concatenate([span, span])[some], kind[some], names, values[some])

    def _find_matches(self, name: str, spans: ListedSpans) -> NDArray[np.int64]:
        docs = spans.docs
        if not docs:
            return np.zeros(0, dtype=np.int64)
        vocab = docs[0].vocab
        matcher = self._matchers.get((name, vocab))
        if matcher is None:
            matcher = self._matchers[name, vocab] = Matcher(vocab)
            matcher.add(name, self.feature_set.patterns[name])
        # First token and length of a span in one number
        base = np.int64(1 << 32)
        matched = []
        for doc, offset in zip(docs, spans.columns.doc_starts):
            matched += [(offset + start) * base + end - start for _, start, end in matcher(doc)]
        return np.flatnonzero(np.isin(spans.begin * base + spans.length, np.array(matched, dtype=np.int64)))

    def _call(self, name: str, spans: ListedSpans) -> SpanItems:
        """The items that a function returns for spans. RAISES (ValueError): CRF111 for values that are no items."""
        function = self.feature_set.functions[name]
        doc_starts = spans.columns.doc_starts
        at = []
        texts = []
        numbers = []
        of_doc = np.searchsorted(doc_starts, spans.begin, side="right") - 1
        start = spans.begin - doc_starts[of_doc]
        for n, (d, b, e) in enumerate(zip(of_doc.tolist(), start.tolist(), (start + spans.length).tolist())):
            span = spans.docs[d][b:e]
            try:
                given = function(span)
            except Exception as error:  # whatever users' functions raise
                raise function_failed(name, f"the span '{span.text[:40]}'", error) from error
            if given is None:
                continue
            found = named_numbers([given] if isinstance(given, (str, int, float, np.number)) else given)
            if found is None or not all(map(math.isfinite, found[1])):
                raise ValueError(
                    Errors.CRF111.format(
                        where=f"The feature function '{name}', for the span '{span.text[:40]}'", value=shown(given)
                    )
                )
            at += [n] * len(found[0])
            texts += found[0]
            numbers += found[1]
        hashes = np.array([hash_item(f"seg.fn:{name}", text) for text in texts], dtype=np.uint64)
        return SpanItems(np.array(at, dtype=np.int64), hashes, np.array(numbers, dtype=np.float64), lambda: texts)

    # ------------------------------------------------------------------------------------------------- known spans

    def known_spans(
        self, docs: list[Doc], columns: TokenColumns, longest: int, index: FeatureIndex, token_index: FeatureIndex
    ) -> KnownSpans:
        """All spans of at most `longest` tokens that have a feature in the index."""
        n_tokens = len(columns.positions)
        tokens = self.read(columns)
        begin = np.zeros(0, dtype=np.int64)
        length = np.zeros(0, dtype=np.int32)
        rows = np.zeros(0, dtype=np.int32)
        if self._reads_wholes and self.feature_set.spans and len(index):
            seeds = self._plain.seeds
            begin, length, rows = kernels.list_known(tokens, longest, seeds, self._plain.columns, index.sieved)
        others = [*self._known(docs, columns, tokens, longest, index)]
        repeats = [*self._repeats(columns, tokens, longest, token_index)]
        if not others and not repeats:
            spans, bounds = _distinct(begin, length, n_tokens)
            none = TokenFeatures(rows[:0], None, np.zeros_like(bounds))
            return KnownSpans(spans, TokenFeatures(rows, None, bounds), none)
        own = [_Found(begin, length, rows, np.ones(len(rows), dtype=np.float32)), *others]
        n_own = sum(len(part.row) for part in own)
        found = _Found(*map(np.concatenate, zip(*own, *repeats)))
        # By first token, then by length; a span's own features before its repeats
        order = np.argsort(found.begin * (longest + 1) + found.length, kind="stable")
        spans, bounds = _distinct(found.begin[order], found.length[order], n_tokens)
        rows = found.row[order].astype(np.int32)
        values = found.value[order]
        n_spans = len(spans.lengths)
        span = np.repeat(np.arange(n_spans), np.diff(bounds))
        features = []
        for some in (order < n_own, order >= n_own):
            known_values = None if (values[some] == 1).all() else values[some]
            features.append(by_token(span[some], rows[some], known_values, n_spans))
        return KnownSpans(spans, *features)

    def _known(
        self, docs: list[Doc], columns: TokenColumns, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex
    ) -> Iterable[_Found]:
        """The known features of templates with items, and of plain templates except those that read only whole spans."""
        if not len(index) or (self._reads_wholes and not self._with_items):
            return
        n_tokens = len(tokens.closing)
        at_once = max(1, _SPANS_AT_ONCE // longest)
        for first in range(0, n_tokens, at_once):
            begin, length = all_spans(tokens.closing, first, min(first + at_once, n_tokens), longest)
            spans = self.listed(docs, columns, tokens, begin, length)
            if not self._reads_wholes:
                hashes = self.hash(spans)
                rows = index.rows(hashes.ravel())
                [known] = np.nonzero(rows >= 0)
                span = known // max(1, hashes.shape[1])
                yield _Found(begin[span], length[span], rows[known], np.ones(len(known), dtype=np.float32))
            items = self.items(spans)
            rows = index.rows(items.hash)
            span = items.span[rows >= 0]
            yield _Found(begin[span], length[span], rows[rows >= 0], items.value[rows >= 0])

    def _repeats(
        self, columns: TokenColumns, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex
    ) -> Iterable[_Found]:
        """The features of ``seg.contains`` that a span contains more than once; they are counted at each of its tokens."""
        contains = [n for n, t in enumerate(self.tokens.templates) if str(t).startswith("seg.contains:")]
        of_items = [n for n, t in enumerate(self.tokens.item_templates) if str(t).startswith("seg.contains:")]
        if not (contains or of_items) or not len(index):
            return
        features = self.tokens.hash(columns)
        for number in contains:
            keys = index.rows(np.ascontiguousarray(features.hashes[:, number]))
            begin, length, rows = kernels.list_repeats(keys, tokens.closing, longest)
            yield _Found(begin, length, rows, np.full(len(rows), -1.0, dtype=np.float32))
        rows = index.rows(features.item_hashes)
        [asked] = np.nonzero(np.isin(features.item_templates, of_items) & (rows >= 0))
        items = features.item_tokens[asked], rows[asked], features.item_values[asked]
        opening = np.repeat(columns.starts[:-1], np.diff(columns.starts))
        yield _repeated_items(*items, opening, tokens.closing, longest)


def _repeated_items(token, row, value, opening, closing, longest: int) -> _Found:
    """Corrections for items that occur several times in a span: minus the value of each occurrence after the first."""
    order = np.lexsort((token, row))
    token = token[order]
    row = row[order]
    value = value[order]
    before = token[:-1]
    after = token[1:]
    # The earliest first token of a span with both occurrences
    first = np.maximum(after - longest + 1, opening[after])
    [pair] = np.nonzero((row[1:] == row[:-1]) & (before >= first))
    # Every first token from `first` to the earlier occurrence
    n_begins = before[pair] + 1 - first[pair]
    begin = ranges(first[pair], before[pair] + 1)
    pair = np.repeat(pair, n_begins)
    # Every end behind the later occurrence
    first = after[pair] + 1
    behind = np.minimum(begin + longest, closing[after[pair]]) + 1
    chosen = np.repeat(np.arange(len(pair)), behind - first)
    end = ranges(first, behind)
    pair = pair[chosen]
    begin = begin[chosen]
    return _Found(begin, (end - begin).astype(np.int32), row[1:][pair], -value[1:][pair])


def all_spans(
    closing: NDArray[np.int64], first: int, last: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Every span of at most `longest` tokens whose first token is `first` to `last` - 1, sorted by first token, then by length.

    closing (int64[T]): Where the sequence of each token ends.
    RETURNS (int64[N], int32[N]): First tokens and lengths.
    """
    begin = np.arange(first, last)
    counts = np.minimum(longest, closing[first:last] - begin)
    return np.repeat(begin, counts), ranges(np.ones_like(counts), counts + 1).astype(np.int32)


def _distinct(begin: NDArray[np.int64], length: NDArray[np.int32], n_tokens: int) -> tuple[SpanList, NDArray[np.int64]]:
    """The distinct spans of a sorted list with repeats, and the bounds of each span's entries in the list (int64[N + 1])."""
    [first] = np.nonzero((np.diff(begin, prepend=-1) != 0) | (np.diff(length, prepend=0) != 0))
    spans = SpanList(starts=np.searchsorted(begin[first], np.arange(n_tokens + 1)), lengths=length[first])
    return spans, np.append(first, len(begin))


class SpanIndexBuilder(FeatureCounter):
    """Counts the features of segments by batch, and makes an index of the features to keep."""

    def __init__(self, compiled: CompiledSegments, known: FeatureIndex):
        self._compiled = compiled
        self._templates = compiled.feature_set.spans + compiled.feature_set.span_items
        super().__init__([*map(str, self._templates)], known)
        self._template_of: list[int] = []
        self._spelled: list[tuple[str, ...]] = []

    def add(self, docs: list[Doc], columns: TokenColumns, begin: NDArray, length: NDArray) -> TokenFeatures:
        """Count the features of some spans.

        begin (int64[N]), length (int32[N]): The spans.
        RETURNS (TokenFeatures): The rows of the features among all features met so far, span by span.
        """
        listed = self._compiled.listed(docs, columns, self._compiled.read(columns), begin, length)
        hashes = self._compiled.hash(listed)
        items = self._compiled.items(listed)
        width = max(1, hashes.shape[1])
        n_plain = len(self._compiled.feature_set.spans)
        at = self.table.add(hashes.ravel())
        at_item = self.table.add(items.hash)
        names = items.names()
        of_items = [names[n] for n in at_item.tolist()]
        span = np.concatenate([at // width, items.span[at_item]])
        template_of = np.concatenate([at % width, n_plain + np.asarray(items.template)[at_item]])
        texts: list[tuple[str, ...]] = [()] * len(span)
        for number in np.unique(template_of):
            [new] = np.nonzero(template_of == number)
            spans = begin[span[new]], length[span[new]]
            parts = []
            for part in self._templates[number].parts:
                if part.kind in ITEMS:
                    parts.append([of_items[n] for n in (new - len(at)).tolist()])
                else:
                    parts.append(_texts_of(part, *spans, self._compiled, columns, docs[0].vocab))
            for n, text in zip(new.tolist(), zip(*parts)):
                texts[n] = text
        self._template_of += template_of.tolist()
        self._spelled += texts
        rows = self.table.rows(hashes.ravel())
        [known] = np.nonzero(rows >= 0)
        span = np.concatenate([known // width, items.span])
        rows = np.concatenate([rows[known], self.table.rows(items.hash)])
        return by_token(span, rows.astype(np.int32), None, len(begin))

    def freeze(self, keep: NDArray[np.bool_], vocab: Vocab) -> FeatureIndex:
        """The index of the features to keep (bool[N]), in the order of their first occurrence."""
        new = np.flatnonzero(keep[len(self.known) :]).tolist()
        texts = [self._spelled[n] for n in new]
        place: dict[str, int] = {}
        parts = [place.setdefault(text, len(place)) for text in chain.from_iterable(texts)]
        template_of = np.array([self._template_of[n] for n in new], dtype=np.int32)
        widths = np.array([*map(len, texts)], dtype=np.int64)
        return self._index(keep, template_of, widths, np.array(parts, dtype=np.int32), list(place))


def _texts_of(
    part: SegmentPart, begin, length, compiled: CompiledSegments, columns: TokenColumns, vocab: Vocab
) -> list[str]:
    """The values of a plain part at spans, as text."""
    tokens = compiled.tokens
    texts_of = compiled.reader.texts_of
    if part.kind == "length":
        return [*map(str, length.tolist())]
    if part.kind in WHOLE:
        attribute = WHOLE[part.kind]
        everywhere = np.arange(len(columns.positions))
        words = texts_of(attribute, tokens.part_values(columns, TemplatePart(attribute, 0), everywhere), vocab)
        return [" ".join(words[b:e]) for b, e in zip(begin.tolist(), (begin + length).tolist())]
    at = begin if part.kind in OPENING else begin + length - 1
    return texts_of(part.name, tokens.part_values(columns, part.of_token, at), vocab)
