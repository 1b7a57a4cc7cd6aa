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
from ..kernels.hashing import NO_FEATURE, ColumnsRead, mix_all, read_columns
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
_SPANS_AT_ONCE = 1 << 18  # hashed in one step
_CACHED_SPANS = 1 << 20  # whose similarities to phrases are kept


class ListedSpans(NamedTuple):
    """Spans whose features are read, sorted by first token, then by length."""

    docs: list[Doc]
    columns: TokenColumns
    tokens: kernels.SpanTokens
    begin: NDArray[np.int64]  # [N]
    length: NDArray[np.int32]  # [N]
    whole: NDArray[np.uint64]  # [N, C] hash of all words of each span, for the columns that are read as a whole


class SpanItems(NamedTuple):
    """Items that a part such as ``seg.in`` finds at spans, or the features that templates make of these items."""

    span: NDArray[np.int64]  # [I] position in the list of spans
    hash: NDArray[np.uint64]  # [I]
    value: NDArray[np.floating]  # [I]
    names: Callable[[], list[str]]  # returns the name of each item
    template: Optional[NDArray[np.int32]] = None  # [I] of features: the template's position among those with items

    @classmethod
    def labelled(cls, span: NDArray, label: NDArray, names: list[str], values: NDArray) -> "SpanItems":
        """Items of which item i has the name names[label[i]]."""
        hashes = np.array([hash_string(name) for name in names] or [0], dtype=np.uint64)
        return cls(span, hashes[label], values, lambda: [names[n] for n in label.tolist()])


class KnownSpans(NamedTuple):
    """The N spans with a known feature, and these features."""

    listed: SpanList
    rows: TokenFeatures  # with rows of the index of spans
    # With rows of the index of tokens: negative values, which correct for features that several tokens of a span have
    repeats: TokenFeatures


class _SpanFeatures(NamedTuple):
    """F known features of spans."""

    begin: NDArray[np.int64]  # [F] first token of the span
    length: NDArray[np.int32]  # [F]
    row: NDArray[np.int32]  # [F]
    value: NDArray[np.float32]  # [F]


_NO_ITEMS = tuple(np.zeros(0, dtype) for dtype in (np.int64, np.uint64, np.float32, np.int32))


class CompiledSegments:
    """Segment templates with the columns of a reader in place of names of attributes."""

    def __init__(
        self,
        feature_set: SegmentFeatureSet,
        gazetteers: dict[str, Gazetteer],
        clusters: Optional[dict[str, Clusters]] = None,
    ):
        self.feature_set = feature_set
        self.reader = feature_set.reader(gazetteers, clusters)
        # By the tokens of a segment at which weights are added
        self.templates = {
            "begins": CompiledTemplates(feature_set.begins, self.reader),
            "ends": CompiledTemplates(feature_set.ends, self.reader),
            "tokens": CompiledTemplates(feature_set.tokens, self.reader),
        }
        self.tokens = self.templates["tokens"]
        # By name of the gazetteer: its phrases, and the attribute by which phrases are compared
        self.phrases: dict[str, PhraseIndex] = {}
        self._phrase_attribute: dict[str, str] = {}
        if feature_set.named({"near"}):
            optional_package("rapidfuzz", what="The similarity of spans to phrases", install="'spacy-crf[fuzzy]'")
        for name in feature_set.named(PHRASES):
            gazetteer = gazetteers[name]
            self.phrases[name] = PhraseIndex(gazetteer.entries, SPELLINGS[gazetteer.attr], scan=gazetteer.scan)
            self._phrase_attribute[name] = gazetteer.attribute
        self._matchers: dict[tuple[str, Vocab], Matcher] = {}
        # By gazetteer and hash of the span: label, Jaccard and Jaro-Winkler similarity of the nearest phrases
        self._similar: dict[tuple[str, int], list[tuple[int, float, float]]] = {}
        parts = list(chain.from_iterable(t.parts for t in feature_set.spans + feature_set.span_items))
        whole = {WHOLE[part.kind] for part in parts if part.kind in WHOLE} | {*self._phrase_attribute.values()}
        # Attributes of the columns that span templates read, and which of these columns are hashed for whole spans
        self._attributes = sorted({"lower", *whole, *(part.name for part in parts if part.kind in TOKEN_PARTS)})
        self._whole_columns = np.array(sorted(map(self._attributes.index, whole)), dtype=np.int64)
        self._columns_read = self.tokens.column_numbers(self._attributes)
        self._plain = self._compile((template, template.parts) for template in feature_set.spans)
        self._reads_wholes = all(len(t.parts) == 1 and t.kinds <= WHOLE.keys() for t in feature_set.spans)
        # For each template with items: the part that finds the items, and the other parts
        self._with_items = []
        for template in feature_set.span_items:
            [item] = [part for part in template.parts if part.kind in ITEMS]
            rest = [part for part in template.parts if part is not item]
            self._with_items.append((item, self._compile([(template, rest)])))

    def _compile(self, templates: Iterable[tuple[SegmentTemplate, Sequence[SegmentPart]]]) -> kernels.SpanTemplates:
        """Translate templates, each given with those of its parts that have no items, to the form that `hash_spans` reads."""
        seeds = []
        part_starts = [0]
        kinds = []
        columns = []
        offsets = []
        for template, parts in templates:
            seeds.append(hash_string(str(template)))
            for kind, name, offset in parts:
                attribute = name if kind in TOKEN_PARTS else WHOLE.get(kind)
                kinds.append(_PART_KINDS[kind])
                columns.append(0 if attribute is None else self._attributes.index(attribute))  # a length reads none
                offsets.append(TOKEN_PARTS.get(kind, 0) + offset)
            part_starts.append(len(kinds))
        return kernels.SpanTemplates(
            seeds=np.array(seeds, dtype=np.uint64),
            part_starts=np.array(part_starts, dtype=np.int64),
            kinds=np.array(kinds, dtype=np.int64),
            columns=np.array(columns, dtype=np.int64),
            offsets=np.array(offsets, dtype=np.int64),
        )

    def read(self, columns: TokenColumns) -> kernels.SpanTokens:
        """Read the columns that templates of spans need, at all positions of a batch."""
        closing = np.repeat(columns.starts[1:], np.diff(columns.starts))
        values = read_columns(ColumnsRead(columns.lexemes, columns.table.columns, columns.values, self._columns_read))
        return kernels.SpanTokens(values, columns.positions, closing)

    def read_spans(
        self, docs: list[Doc], columns: TokenColumns, tokens: kernels.SpanTokens, begin: NDArray, length: NDArray
    ) -> ListedSpans:
        """Hash the words of the spans that begin at `begin` (int64[N]) and have these lengths (int32[N]).

        tokens (SpanTokens): What `read` returns for the columns.
        """
        whole = np.zeros((len(begin), len(self._attributes)), dtype=np.uint64)
        for column in self._whole_columns:
            whole[:, column] = kernels.hash_whole(tokens.values[column], tokens.positions[begin], length)
        return ListedSpans(docs, columns, tokens, begin, length, whole)

    def hash(self, spans: ListedSpans) -> NDArray[np.uint64]:
        """Hash the features of plain templates at spans: uint64[N, M]."""
        return kernels.hash_spans(spans.tokens, self._plain, spans.begin, spans.length, spans.whole)

    def items(self, spans: ListedSpans) -> SpanItems:
        """The features of templates with items at spans."""
        found: list[tuple[NDArray, ...]] = [_NO_ITEMS]
        # The items of each template, and which of these items are part of a feature
        sources: list[tuple[SpanItems, NDArray[np.int64]]] = []
        for number, (part, rest) in enumerate(self._with_items):
            items = self._find(part, spans)
            begin = spans.begin[items.span]
            length = spans.length[items.span]
            feature_hashes = kernels.hash_spans(spans.tokens, rest, begin, length, spans.whole[items.span])[:, 0]
            mix_all(feature_hashes, items.hash)  # in place
            # An item at a span without a value for another part is no feature
            [used] = np.nonzero(feature_hashes != NO_FEATURE)
            numbers = np.full(len(used), number, dtype=np.int32)
            found.append((items.span[used], feature_hashes[used], items.value[used].astype(np.float32), numbers))
            sources.append((items, used))

        def names() -> list[str]:
            names_used = []
            for items, used in sources:
                item_names = items.names()
                names_used += [item_names[n] for n in used.tolist()]
            return names_used

        span, hashes, value, template = map(np.concatenate, zip(*found))
        return SpanItems(span, hashes, value, names, template)

    # ----------------------------------------------------------------------------------------- items of whole spans

    def _find(self, part: SegmentPart, spans: ListedSpans) -> SpanItems:
        """The items that a part such as ``seg.in:cities`` finds at spans."""
        if part.kind == "fn":
            return self._call(part.name, spans)
        if part.kind == "near":
            return self._find_near(part.name, spans)
        if part.kind == "in":
            phrases = self.phrases[part.name]
            span, label = phrases.exact(spans.whole[:, self._phrase_column(part.name)])
            return SpanItems.labelled(span, label, [label or "yes" for label in phrases.labels], np.ones(len(span)))
        span = self._find_matches(part.name, spans)  # the remaining kind: "matches"
        return SpanItems.labelled(span, np.zeros(len(span), dtype=np.int32), ["yes"], np.ones(len(span)))

    def _phrase_column(self, gazetteer: str) -> int:
        """The column of the words by which a gazetteer's phrases are compared."""
        return self._attributes.index(self._phrase_attribute[gazetteer])

    def _find_near(self, name: str, spans: ListedSpans) -> SpanItems:
        """The similarities of spans to the nearest phrases of a gazetteer: items such as ``jaccard LABEL``."""
        keys = spans.whole[:, self._phrase_column(name)]
        # Most spans of a corpus recur: each text is compared once
        distinct, first_span, inverse = np.unique(keys, return_index=True, return_inverse=True)
        similarities = {key: self._similar.get((name, key)) for key in distinct.tolist()}
        new = np.array([n for n, similar in enumerate(similarities.values()) if similar is None], dtype=np.int64)
        if len(new):
            compared = self._compare(name, spans, first_span[new])
            similarities.update(compared)
            if len(self._similar) > _CACHED_SPANS:
                self._similar.clear()
            # Stored only when complete, since other threads may be reading
            self._similar.update(((name, key), similar) for key, similar in compared.items())
        rows = [(n, *row) for n, similar in enumerate(similarities.values()) for row in similar or ()]
        if not rows:
            return SpanItems.labelled(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), [], np.zeros(0))
        text, label, jaccard, jaro_winkler = (np.array(column) for column in zip(*rows))
        # From distinct texts, whose rows are contiguous, to all spans
        first, behind = np.searchsorted(text, [inverse, inverse + 1])
        span = np.repeat(np.arange(len(keys)), behind - first)
        row = ranges(first, behind)
        labels = self.phrases[name].labels
        names = [f"{measure} {label}".strip() for measure, label in product(("jaccard", "jaro-winkler"), labels)]
        values = np.concatenate([jaccard[row], jaro_winkler[row]])
        name_of = np.concatenate([label[row], label[row] + len(labels)])
        is_near = values > 0
        return SpanItems.labelled(np.concatenate([span, span])[is_near], name_of[is_near], names, values[is_near])

    def _compare(
        self, name: str, spans: ListedSpans, chosen: NDArray[np.int64]
    ) -> dict[int, list[tuple[int, float, float]]]:
        """Compare some of the spans, no two of which have the same words, with the phrases of a gazetteer.

        chosen (int64[N]): Positions in the list of spans.
        RETURNS: For the hash of each chosen span the labels of the nearest phrases, and both similarities, as in `_similar`.
        """
        column = self._phrase_column(name)
        spelled = list(map(attrgetter(f"{self._phrase_attribute[name]}_"), chain.from_iterable(spans.docs)))
        begin = spans.begin[chosen]
        length = spans.length[chosen]
        texts = [" ".join(spelled[b : b + k]) for b, k in zip(begin.tolist(), length.tolist())]
        words = spans.tokens.values[column]
        nearest = self.phrases[name].near(SpelledSpans(words, spans.tokens.positions[begin], length, texts))
        keys = spans.whole[chosen, column].tolist()
        similarities = {key: [] for key in keys}
        for query, label, jaccard, jaro_winkler in zip(*(column.tolist() for column in nearest)):
            similarities[keys[query]].append((label, jaccard, jaro_winkler))
        return similarities

    def _find_matches(self, name: str, spans: ListedSpans) -> NDArray[np.int64]:
        """The positions of the spans that a pattern of spaCy's Matcher matches."""
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
        span_numbers = []
        texts = []
        numbers = []
        doc_numbers = np.searchsorted(doc_starts, spans.begin, side="right") - 1
        start = spans.begin - doc_starts[doc_numbers]  # in the Doc
        places = zip(doc_numbers.tolist(), start.tolist(), (start + spans.length).tolist())
        for n, (doc_number, span_start, span_end) in enumerate(places):
            span = spans.docs[doc_number][span_start:span_end]
            try:
                returned = function(span)
            except Exception as error:  # whatever users' functions raise
                raise function_failed(name, f"the span '{span.text[:40]}'", error) from error
            if returned is None:
                continue
            items = named_numbers([returned] if isinstance(returned, (str, int, float, np.number)) else returned)
            if items is None or not all(map(math.isfinite, items[1])):
                raise ValueError(
                    Errors.CRF111.format(
                        where=f"The feature function '{name}', for the span '{span.text[:40]}'", value=shown(returned)
                    )
                )
            item_names, item_values = items
            span_numbers += [n] * len(item_names)
            texts += item_names
            numbers += item_values
        hashes = np.array([hash_item(f"seg.fn:{name}", text) for text in texts], dtype=np.uint64)
        values = np.array(numbers, dtype=np.float64)
        return SpanItems(np.array(span_numbers, dtype=np.int64), hashes, values, lambda: texts)

    # ------------------------------------------------------------------------------------------------- known spans

    def known_spans(
        self, docs: list[Doc], columns: TokenColumns, longest: int, index: FeatureIndex, token_index: FeatureIndex
    ) -> KnownSpans:
        """All spans of at most `longest` tokens that have a feature.

        index (FeatureIndex), token_index (FeatureIndex): The known features of spans, and of tokens in segments.
        """
        n_tokens = len(columns.positions)
        tokens = self.read(columns)
        begin = np.zeros(0, dtype=np.int64)
        length = np.zeros(0, dtype=np.int32)
        rows = np.zeros(0, dtype=np.int32)
        if self._reads_wholes and self.feature_set.spans and len(index):
            seeds = self._plain.seeds
            begin, length, rows = kernels.list_known(tokens, longest, seeds, self._plain.columns, index.sieved)
        other_features = [*self._known(docs, columns, tokens, longest, index)]
        repeats = [*self._repeats(columns, tokens, longest, token_index)]
        if not other_features and not repeats:
            # `list_known` has sorted the spans
            spans, bounds = _distinct(begin, length, n_tokens)
            no_repeats = TokenFeatures(rows[:0], None, np.zeros_like(bounds))
            return KnownSpans(spans, TokenFeatures(rows, None, bounds), no_repeats)
        span_features = [_SpanFeatures(begin, length, rows, np.ones(len(rows), dtype=np.float32)), *other_features]
        n_span_features = sum(len(features.row) for features in span_features)
        joined = _SpanFeatures(*map(np.concatenate, zip(*span_features, *repeats)))
        # By first token, then by length; a span's features before its repeats
        order = np.argsort(joined.begin * (longest + 1) + joined.length, kind="stable")
        spans, bounds = _distinct(joined.begin[order], joined.length[order], n_tokens)
        sorted_rows = joined.row[order].astype(np.int32)
        values = joined.value[order]
        n_spans = len(spans.lengths)
        span = np.repeat(np.arange(n_spans), np.diff(bounds))
        is_repeat = order >= n_span_features
        by_index = []  # features of spans, whose rows are those of `index`, and repeats, whose rows are those of `token_index`
        for chosen in (~is_repeat, is_repeat):
            chosen_values = None if (values[chosen] == 1).all() else values[chosen]
            by_index.append(by_token(span[chosen], sorted_rows[chosen], chosen_values, n_spans))
        return KnownSpans(spans, *by_index)

    def _known(
        self, docs: list[Doc], columns: TokenColumns, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex
    ) -> Iterable[_SpanFeatures]:
        """The known features of templates with items, and of plain templates unless all of these read only whole spans, for which
        `list_known` is faster."""
        if not len(index) or (self._reads_wholes and not self._with_items):
            return
        n_tokens = len(tokens.closing)
        at_once = max(1, _SPANS_AT_ONCE // longest)
        for first in range(0, n_tokens, at_once):
            begin, length = all_spans(tokens.closing, first, min(first + at_once, n_tokens), longest)
            spans = self.read_spans(docs, columns, tokens, begin, length)
            if not self._reads_wholes:
                hashes = self.hash(spans)
                rows = index.rows(hashes.ravel())
                [known] = np.nonzero(rows >= 0)
                span = known // max(1, hashes.shape[1])
                yield _SpanFeatures(begin[span], length[span], rows[known], np.ones(len(known), dtype=np.float32))
            items = self.items(spans)
            item_rows = index.rows(items.hash)
            [known_items] = np.nonzero(item_rows >= 0)
            span_of_item = items.span[known_items]
            yield _SpanFeatures(
                begin[span_of_item], length[span_of_item], item_rows[known_items], items.value[known_items]
            )

    def _repeats(
        self, columns: TokenColumns, tokens: kernels.SpanTokens, longest: int, index: FeatureIndex
    ) -> Iterable[_SpanFeatures]:
        """Corrections for features of ``seg.contains`` that several tokens of a span have. The feature is added at each token,
        and should count once: each further occurrence gives the span the negative of its value."""
        contains = [n for n, t in enumerate(self.tokens.templates) if str(t).startswith("seg.contains:")]
        contains_items = [n for n, t in enumerate(self.tokens.item_templates) if str(t).startswith("seg.contains:")]
        if not (contains or contains_items) or not len(index):
            return
        features = self.tokens.hash(columns)
        for template in contains:
            token_rows = index.rows(np.ascontiguousarray(features.hashes[:, template]))
            begin, length, rows = kernels.list_repeats(token_rows, tokens.closing, longest)
            yield _SpanFeatures(begin, length, rows, np.full(len(rows), -1.0, dtype=np.float32))
        rows = index.rows(features.item_hashes)
        [chosen] = np.nonzero(np.isin(features.item_templates, contains_items) & (rows >= 0))
        yield _repeated_items(
            features.item_tokens[chosen],
            rows[chosen],
            features.item_values[chosen],
            opening=np.repeat(columns.starts[:-1], np.diff(columns.starts)),
            closing=tokens.closing,
            longest=longest,
        )


def _repeated_items(token, row, value, *, opening, closing, longest: int) -> _SpanFeatures:
    """Corrections for items that occur several times in a span: minus the value of each occurrence after the first.

    token (int64[N]), row (int32[N]), value (float32[N]): The items.
    opening (int64[T]), closing (int64[T]): Where the sequence of each token begins and ends.
    """
    order = np.lexsort((token, row))
    token = token[order]
    row = row[order]
    value = value[order]
    # Neighbours in this order are consecutive occurrences of an item
    before = token[:-1]
    after = token[1:]
    # A span with both occurrences begins at the token `earliest` to `before`
    earliest = np.maximum(after - longest + 1, opening[after])
    [pair] = np.nonzero((row[1:] == row[:-1]) & (before >= earliest))
    first_token = ranges(earliest[pair], before[pair] + 1)
    pair_of_first = np.repeat(pair, before[pair] + 1 - earliest[pair])
    # Such a span with this first token ends behind `after`, at `first_end` to `last_end`
    first_end = after[pair_of_first] + 1
    last_end = np.minimum(first_token + longest, closing[after[pair_of_first]])
    n_ends = last_end + 1 - first_end
    begin = np.repeat(first_token, n_ends)
    end = ranges(first_end, last_end + 1)
    pair_of_span = np.repeat(pair_of_first, n_ends)
    return _SpanFeatures(
        begin,
        (end - begin).astype(np.int32),
        row[1:][pair_of_span],
        -value[1:][pair_of_span],
    )


def all_spans(
    closing: NDArray[np.int64], first: int, last: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Every span of at most `longest` tokens whose first token is `first` to `last` - 1, sorted by first token, then by length.

    closing (int64[T]): Where the sequence of each token ends.
    RETURNS (int64[N], int32[N]): First tokens and lengths.
    """
    begin = np.arange(first, last)
    longest_here = np.minimum(longest, closing[first:last] - begin)
    lengths = ranges(np.ones_like(longest_here), longest_here + 1)  # 1, 2 … from each first token
    return np.repeat(begin, longest_here), lengths.astype(np.int32)


def _distinct(begin: NDArray[np.int64], length: NDArray[np.int32], n_tokens: int) -> tuple[SpanList, NDArray[np.int64]]:
    """The N distinct spans of a sorted list in which spans recur, and the bounds of their entries in the list (int64[N + 1])."""
    # The first of the entries of each distinct span
    [first] = np.nonzero((np.diff(begin, prepend=-1) != 0) | (np.diff(length, prepend=0) != 0))
    spans = SpanList(starts=np.searchsorted(begin[first], np.arange(n_tokens + 1)), lengths=length[first])
    return spans, np.append(first, len(begin))


class SpanIndexBuilder(FeatureCounter):
    """Counts the features of segments by batch, and makes an index of the features to keep."""

    def __init__(self, compiled: CompiledSegments, known: FeatureIndex):
        self._compiled = compiled
        self._templates = compiled.feature_set.spans + compiled.feature_set.span_items
        super().__init__([*map(str, self._templates)], known)
        # For each new feature: its template, and the texts of its parts
        self._template_of: list[int] = []
        self._texts: list[tuple[str, ...]] = []

    def add(self, docs: list[Doc], columns: TokenColumns, begin: NDArray, length: NDArray) -> TokenFeatures:
        """Count the features of some spans.

        begin (int64[N]), length (int32[N]): The spans.
        RETURNS (TokenFeatures): The rows of the features among all features met so far, span by span.
        """
        compiled = self._compiled
        spans = compiled.read_spans(docs, columns, compiled.read(columns), begin, length)
        hashes = compiled.hash(spans)
        items = compiled.items(spans)
        # Where new features are in the matrix [N, M] of plain features, read row by row, and among the items
        new_plain = self.table.add(hashes.ravel())
        new_items = self.table.add(items.hash)
        n_plain = max(1, hashes.shape[1])  # templates
        item_templates = len(compiled.feature_set.spans) + np.asarray(items.template)[new_items]
        template_of = np.concatenate([new_plain % n_plain, item_templates])
        new_spans = np.concatenate([new_plain // n_plain, items.span[new_items]])
        names = items.names()
        item_names = [names[n] for n in new_items.tolist()]
        texts: list[tuple[str, ...]] = [()] * len(new_spans)
        for number in np.unique(template_of):
            [features] = np.nonzero(template_of == number)
            chosen = new_spans[features]
            parts = []
            for part in self._templates[number].parts:
                if part.kind in ITEMS:
                    parts.append([item_names[n] for n in (features - len(new_plain)).tolist()])
                else:
                    parts.append(_texts_of(part, begin[chosen], length[chosen], compiled, columns, docs[0].vocab))
            for n, text in zip(features.tolist(), zip(*parts)):
                texts[n] = text
        self._template_of += template_of.tolist()
        self._texts += texts
        plain_rows = self.table.rows(hashes.ravel())
        [present] = np.nonzero(plain_rows >= 0)  # -1 where a part has no value
        span = np.concatenate([present // n_plain, items.span])
        rows = np.concatenate([plain_rows[present], self.table.rows(items.hash)])
        return by_token(span, rows.astype(np.int32), None, len(begin))

    def freeze(self, keep: NDArray[np.bool_], vocab: Vocab) -> FeatureIndex:
        """The index of the features to keep (bool[N]), in the order of their first occurrence."""
        new = np.flatnonzero(keep[len(self.known) :]).tolist()
        texts = [self._texts[n] for n in new]
        # Parts of features are numbers of texts; the texts are stored once
        number_of: dict[str, int] = {}  # by text
        parts = [number_of.setdefault(text, len(number_of)) for text in chain.from_iterable(texts)]
        template_of = np.array([self._template_of[n] for n in new], dtype=np.int32)
        widths = np.array([*map(len, texts)], dtype=np.int64)
        return self._index(keep, template_of, widths, np.array(parts, dtype=np.int32), list(number_of))


def _texts_of(
    part: SegmentPart, begin, length, compiled: CompiledSegments, columns: TokenColumns, vocab: Vocab
) -> list[str]:
    """The values that a part without items has at the spans `begin` (int64[N]) and `length` (int32[N]), as text."""
    tokens = compiled.tokens
    texts_of = compiled.reader.texts_of
    if part.kind == "length":
        return [*map(str, length.tolist())]
    if part.kind in WHOLE:
        attribute = WHOLE[part.kind]
        everywhere = np.arange(len(columns.positions))
        words = texts_of(attribute, tokens.part_values(columns, TemplatePart(attribute, 0), everywhere), vocab)
        return [" ".join(words[b:e]) for b, e in zip(begin.tolist(), (begin + length).tolist())]
    token = begin if part.kind in OPENING else begin + length - 1
    return texts_of(part.name, tokens.part_values(columns, part.of_token, token), vocab)
