"""Features of whole segments: ``seg.length``, ``seg.first:shape|seg.last:shape``, ``seg.near:cities``.

A template is one or more parts joined by ``|``. ``seg.first:lower[-2..2]`` stands for five templates that read tokens around the
first one, ``seg.before:lower`` is ``seg.first:lower[-1]``. What a template reads decides where its weights are added:

    only seg.first and seg.before    at the first token of a segment      no work per span
    only seg.last and seg.after      at the last token                    no work per span
    seg.count, seg.contains          at each token of the segment         a repeated value counts once in seg.contains:
                                                                          spans with a repetition are listed
    seg.length alone                 one weight per length and label
    anything else                    at spans that are listed: those with a known feature

Segment features weigh labels, not ``O``: its segments have one token, and token templates say all there is to say.
"""

import math
import re
from collections.abc import Callable, Collection
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, Optional

import numpy as np
import srsly
from numpy.typing import NDArray
from spacy.matcher import Matcher
from spacy.strings import hash_string
from spacy.tokens import Doc, Span
from spacy.vocab import Vocab

from ..errors import Errors, shown
from ..kernels import segment_features as kernels
from ..kernels.hashing import NO_FEATURE, mix_all
from ..types import SpanList, TokenFeatures
from . import settings
from .columns import ColumnReader, TokenColumns, padding_values
from .extractor import CompiledTemplates, FeatureSet, check_attribute
from .feature_index import CountingTable, FeatureIndex
from .gazetteers import SPELLINGS, Gazetteer
from .items import Functions, hash_item, named_numbers
from .phrases import PhraseIndex, Spans
from .templates import OFFSETS, Part, combined, is_text, offsets_of

SpanSource = Callable[[Span], Any]
Pattern = list[dict[str, Any]]

# Parts that read one token, and the offset from the end of the segment that they stand for
_TOKEN_PARTS = {"first": 0, "before": -1, "last": 0, "after": 1, "contains": 0, "count": 0}
_OPENING, _CLOSING, _INSIDE = {"first", "before"}, {"last", "after"}, {"contains", "count"}
_WHOLE = {"text": "orth", "lower": "lower", "shape": "shape"}
_ITEMS = {"in", "near", "matches", "fn"}  # parts with any number of values per span
_PHRASES = {"in", "near"}  # of these, those that name a gazetteer
_NAMED = {*_TOKEN_PARTS, *_ITEMS}
KINDS = ("length", *_WHOLE, *_TOKEN_PARTS, *sorted(_ITEMS))
_PART_KINDS = {"length": kernels.LENGTH} | dict.fromkeys(_WHOLE, kernels.WHOLE)
_PART_KINDS |= dict.fromkeys(_OPENING, kernels.FIRST) | dict.fromkeys(_CLOSING, kernels.LAST)
_SPANS_AT_ONCE = 1 << 18
_CACHED_SPANS = 1 << 20

_PART = re.compile(rf"seg\.(?P<kind>[a-z]+)(?::(?P<name>[^\[\]\s]+){OFFSETS})?", re.VERBOSE)


class SegmentPart(NamedTuple):
    kind: str
    name: str
    offset: int = 0  # from the first or the last token

    def __str__(self) -> str:
        text = f"seg.{self.kind}:{self.name}" if self.name else f"seg.{self.kind}"
        return f"{text}[{self.offset}]" if self.offset else text

    @property
    def of_token(self) -> Part:
        """What a part that reads one token reads, counted from the end of the segment that its kind is about."""
        return Part(self.name, _TOKEN_PARTS[self.kind] + self.offset)


class SegmentTemplate(NamedTuple):
    """One conjunction of what a segment shows."""

    parts: tuple[SegmentPart, ...]

    def __str__(self) -> str:
        return "|".join(map(str, self.parts))

    @property
    def kinds(self) -> set[str]:
        return {part.kind for part in self.parts}


class PlacedTemplate(NamedTuple):
    """A segment template that reads single tokens, as `CompiledTemplates` wants it."""

    parts: tuple[Part, ...]
    text: str

    def __str__(self) -> str:
        return self.text


def parse_segment_template(text: str) -> list[SegmentTemplate]:
    """The templates that a line stands for.

    RETURNS (list[SegmentTemplate]): One for each combination of offsets.
    RAISES (ValueError): CRF120 with the part that can't be read, CRF102 for offsets that can't be, CRF121 for parts that can't be
        joined.
    """
    choices = []
    text = text if is_text(text) else shown(text)
    for piece in text.split("|"):
        match = _PART.fullmatch(piece.strip())
        if match is None or match["kind"] not in KINDS or (match["name"] is not None) != (match["kind"] in _NAMED):
            raise ValueError(Errors.CRF120.format(template=text, part=piece, known=_known_parts()))
        if match["low"] is not None and match["kind"] not in ("first", "last"):
            raise ValueError(Errors.CRF120.format(template=text, part=piece, known=_known_parts()))
        offsets = offsets_of(match, text)
        choices.append([SegmentPart(match["kind"], match["name"] or "", offset) for offset in offsets])
    templates = [SegmentTemplate(parts) for parts in combined(choices, text)]
    for template in templates:
        items = sum(part.kind in _ITEMS for part in template.parts)
        if (len(template.parts) > 1 and template.kinds & _INSIDE) or items > 1:
            raise ValueError(Errors.CRF121.format(template=text))
    return templates


def _known_parts() -> str:
    names = {"first": ":NAME[OFFSET]", "last": ":NAME[OFFSET]"} | dict.fromkeys(_NAMED - {"first", "last"}, ":NAME")
    return ", ".join(f"seg.{kind}{names.get(kind, '')}" for kind in KINDS)


class SegmentFeatureSet:
    """What the config says of segment features (``spacy_crf.segment_features.v1``).

    templates: Features of segments, in the template language.
    patterns: Matcher patterns, or lists of them, by the name templates call them (``seg.matches:NAME``).
    functions: Functions from a Span to strings or numbers, by name (``seg.fn:NAME``); or from a Doc to items per token, where
        a part names them as an attribute (``seg.first:fn:NAME``).
    RAISES (ValueError): For a template that can't be used, with what is known.
    """

    def __init__(
        self,
        templates: list[str],
        patterns: Optional[dict[str, Any]] = None,
        functions: Optional[dict[str, SpanSource]] = None,
    ):
        given = settings.table("patterns", patterns)
        self.patterns = {name: _pattern_list(name, pattern) for name, pattern in given.items()}
        self.functions = Functions(settings.functions(functions))
        texts = settings.listed("templates", templates)
        self.templates = list(dict.fromkeys(template for text in texts for template in parse_segment_template(text)))
        for template in self.templates:
            for kind, name, _ in template.parts:
                if kind in _TOKEN_PARTS:
                    check_attribute(name, template, self.functions)
                known = {"matches": self.patterns, "fn": self.functions}.get(kind)
                if known is not None and name not in known:
                    names = ", ".join(known) or "none"
                    raise ValueError(Errors.CRF122.format(template=template, name=name, kind=kind, known=names))
        self.begins = self._placed(_OPENING)
        self.ends = self._placed(_CLOSING)
        self.tokens = self._placed(_INSIDE)
        placed = [t for t in self.templates if any(t.kinds <= kinds for kinds in (_OPENING, _CLOSING, _INSIDE))]
        self.has_length = any(t.kinds == {"length"} for t in self.templates)
        rest = [t for t in self.templates if t not in placed and t.kinds != {"length"}]
        self.spans = [t for t in rest if not t.kinds & _ITEMS]
        self.span_items = [t for t in rest if t.kinds & _ITEMS]
        for template in rest:
            for kind, name, _ in template.parts:
                if kind in _TOKEN_PARTS and name.startswith(("fn:", "ext:")):
                    raise ValueError(Errors.CRF121.format(template=template))
        read = {str(part.of_token): None for t in self.templates for part in t.parts if part.kind in _TOKEN_PARTS}
        read.update({f"{_WHOLE[kind]}[0]": None for t in rest for kind in t.kinds if kind in _WHOLE})
        if self.named(_PHRASES):
            read.update({f"{attr.lower()}[0]": None for attr in SPELLINGS})
        self._attributes = FeatureSet(["lower[0]", "lower[1]", *read], functions=self.functions)

    def _placed(self, kinds: set[str]) -> list[PlacedTemplate]:
        return [
            PlacedTemplate(tuple(part.of_token for part in template.parts), str(template))
            for template in self.templates
            if template.kinds <= kinds
        ]

    def spelled(self) -> list[str]:
        """Everything that decides what a saved index means, as text."""
        return [str(template) for template in self.templates]

    def spelled_patterns(self) -> dict[str, str]:
        """The patterns that templates name."""
        return {name: srsly.json_dumps(self.patterns[name], sort_keys=True) for name in sorted(self.named(["matches"]))}

    def named(self, kinds: Collection[str]) -> list[str]:
        """What parts of some kinds name, each once."""
        return list(dict.fromkeys(name for t in self.templates for kind, name, _ in t.parts if kind in kinds))

    @property
    def gazetteers(self) -> list[str]:
        """Names of the gazetteers that the templates read."""
        return list(dict.fromkeys([*self.named(_PHRASES), *self._attributes.gazetteers]))

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read."""
        return self._attributes.token_attributes

    @property
    def extensions(self) -> list[str]:
        """Custom extensions that the templates read."""
        return self._attributes.extensions

    def reader(self, gazetteers: dict[str, Gazetteer]) -> ColumnReader:
        """RAISES (ValueError): CRF106 for a gazetteer that is not there."""
        for template in self.templates:
            for kind, name, _ in template.parts:
                if kind in _PHRASES and name not in gazetteers:
                    known = ", ".join(gazetteers) or "none"
                    raise ValueError(Errors.CRF106.format(template=template, name=name, known=known))
        return self._attributes.reader(gazetteers)


def _pattern_list(name: str, pattern: Any) -> list[Pattern]:
    """One pattern or several. RAISES (ValueError): CRF123 if it is neither."""
    if not pattern:
        raise ValueError(Errors.CRF123.format(name=name, reason="it is empty"))
    patterns = [pattern] if isinstance(pattern, list) and isinstance(pattern[0], dict) else pattern
    try:
        Matcher(Vocab(), validate=True).add(name, patterns)
    except Exception as error:  # the Matcher raises what its schema raises
        raise ValueError(Errors.CRF123.format(name=name, reason=error)) from error
    return patterns


class _Items(NamedTuple):
    """Values that templates with `_ITEMS` found at spans."""

    span: NDArray[np.int64]  # [N] position in the list of spans that was asked for
    hash: NDArray[np.uint64]  # [N] of the value
    value: NDArray[np.float64]  # [N]


class SpanFeatures(NamedTuple):
    """Hashed features of some spans: a full matrix, and the items behind it."""

    hashes: NDArray[np.uint64]  # [N, M]
    item_spans: NDArray[np.int64]  # [I]
    item_hashes: NDArray[np.uint64]  # [I]
    item_values: NDArray[np.float32]  # [I]
    item_templates: NDArray[np.int32]  # [I] positions in the item templates
    item_names: list[list[str]]  # per item template, name of each of its items; empty while names are not kept


class KnownSpans(NamedTuple):
    """The spans with a known feature, and their features."""

    listed: SpanList
    rows: TokenFeatures  # of N spans, in the index of the spans
    repeats: TokenFeatures  # of N spans, in the index of the tokens: what was counted more than once, negative


class CompiledSegments:
    """Segment templates compiled against a reader."""

    def __init__(self, feature_set: SegmentFeatureSet, gazetteers: dict[str, Gazetteer]):
        self.feature_set = feature_set
        self.reader = feature_set.reader(gazetteers)
        placed = {"begins": feature_set.begins, "ends": feature_set.ends, "tokens": feature_set.tokens}
        self.templates = {place: CompiledTemplates(some, self.reader) for place, some in placed.items()}
        self.tokens = self.templates["tokens"]
        self.phrases: dict[str, PhraseIndex] = {}
        self._phrase_column: dict[str, str] = {}  # the attribute by which phrases are compared
        for name in feature_set.named(_PHRASES):
            gazetteer = gazetteers[name]
            self.phrases[name] = PhraseIndex(gazetteer.entries, SPELLINGS[gazetteer.attr], scan=gazetteer.scan)
            self._phrase_column[name] = gazetteer.attr.lower()
        self._matchers: dict[str, Matcher] = {}
        self._similar: dict[tuple[str, int], list[tuple[int, float, float]]] = {}  # by gazetteer and hash of the span
        templates = feature_set.spans + feature_set.span_items
        self._columns = sorted(
            {part.name if part.kind in _TOKEN_PARTS else _WHOLE[part.kind] for t in templates for part in t.parts
             if part.kind in _TOKEN_PARTS or part.kind in _WHOLE} | {"lower", *self._phrase_column.values()}
        )  # fmt: skip
        self._seeds = np.array([hash_string(str(t)) for t in feature_set.spans], dtype=np.uint64)
        parts = [part for t in feature_set.spans for part in t.parts]
        self._part_starts = np.append(0, np.cumsum([len(t.parts) for t in feature_set.spans])).astype(np.int64)
        self._part_kinds = np.array([_PART_KINDS[part.kind] for part in parts], dtype=np.int64)
        self._part_columns = np.array([self._column(part) for part in parts], dtype=np.int64)
        self._part_offsets = np.array([_offset(part) for part in parts], dtype=np.int64)
        self._padding = padding_values(self.reader.reach, True)

    @property
    def reads_spans(self) -> bool:
        return bool(self.feature_set.spans or self.feature_set.span_items)

    def _column(self, part: SegmentPart) -> int:
        if part.kind == "length":
            return 0
        return self._columns.index(part.name if part.kind in _TOKEN_PARTS else _WHOLE[part.kind])

    def hash(
        self,
        docs: list[Doc],
        columns: TokenColumns,
        begin: NDArray[np.int64],
        length: NDArray[np.int32],
        *,
        names: bool = False,
    ) -> SpanFeatures:
        """Hashes all templates of spans at the given spans.

        begin (int64[N]), length (int32[N]): By their first token and then by their length.
        names (bool): Whether the items are spelled, for an index.
        """
        tokens = np.arange(len(columns.lexemes))
        values = np.stack(
            [self.tokens.part_values(columns, Part(attribute, 0), tokens) for attribute in self._columns], axis=1
        )  # fmt: skip
        opening, closing = _sequence_bounds(columns.starts)
        whole = np.zeros((len(begin), len(self._columns)), dtype=np.uint64)
        of_templates = {_WHOLE[kind] for t in self.feature_set.templates for kind in t.kinds if kind in _WHOLE}
        for attribute in of_templates.intersection(self._columns).union(self._phrase_column.values()):
            column = self._columns.index(attribute)
            whole[:, column] = kernels.hash_whole(np.ascontiguousarray(values[:, column]), begin, length)
        fixed = (opening, closing, whole)
        hashes = kernels.hash_spans(
            values,
            self._padding,
            begin,
            length,
            *fixed,
            self._seeds,
            self._part_starts,
            self._part_kinds,
            self._part_columns,
            self._part_offsets,
        )
        found, spelled = [], []
        for number, template in enumerate(self.feature_set.span_items):
            [part] = [part for part in template.parts if part.kind in _ITEMS]
            items, texts = self._find(part, docs, columns, values, begin, length, whole)
            rest = SegmentTemplate(tuple(p for p in template.parts if p is not part))
            keys = kernels.hash_spans(
                values,
                self._padding,
                begin,
                length,
                *fixed,
                np.array([hash_string(str(template))], dtype=np.uint64),
                np.array([0, len(rest.parts)], dtype=np.int64),
                np.array([_PART_KINDS[p.kind] for p in rest.parts], dtype=np.int64),
                np.array([self._column(p) for p in rest.parts], dtype=np.int64),
                np.array([_offset(p) for p in rest.parts], dtype=np.int64),
            )[items.span, 0]
            mix_all(keys, items.hash)
            known = keys != NO_FEATURE
            found.append(
                (items.span[known], keys[known], items.value[known].astype(np.float32), np.full(known.sum(), number))
            )
            spelled.append([text for text, ok in zip(texts(), known) if ok] if names else [])
        if not found:
            none = np.zeros(0)
            found = [(none, none, none, none)]
        spans, keys, numbers, templates = (np.concatenate(arrays) for arrays in zip(*found))
        return SpanFeatures(
            hashes,
            spans.astype(np.int64),
            keys.astype(np.uint64),
            numbers.astype(np.float32),
            templates.astype(np.int32),
            spelled,
        )

    # ---------------------------------------------------------------------------------------- values of whole spans

    def _find(self, part, docs, columns, values, begin, length, whole) -> tuple[_Items, Callable[[], list[str]]]:
        """Items of one part, and their names if someone wants to know."""
        if part.kind == "in":
            phrases = self.phrases[part.name]
            span, label = phrases.exact(whole[:, self._columns.index(self._phrase_column[part.name])])
            names = [label or "yes" for label in phrases.labels]
            return _labelled(span, label, names, np.ones(len(span)))
        if part.kind == "near":
            column = self._columns.index(self._phrase_column[part.name])
            return self._find_near(part.name, docs, values[:, column].copy(), begin, length, whole[:, column])
        if part.kind == "matches":
            span = self._find_matches(part.name, docs, columns.doc_starts, begin, length)
            return _labelled(span, np.zeros(len(span), dtype=np.int32), ["yes"], np.ones(len(span)))
        return self._call(part.name, docs, columns.doc_starts, begin, length)

    def _find_near(self, name, docs, words, begin, length, keys) -> tuple[_Items, Callable[[], list[str]]]:
        phrases, cache = self.phrases[name], self._similar
        distinct, where, inverse = np.unique(keys, return_index=True, return_inverse=True)
        known = {key: cache.get((name, key)) for key in distinct.tolist()}
        new = np.array([n for n, similar in enumerate(known.values()) if similar is None], dtype=np.int64)
        if len(new):
            spelled = list(map(attrgetter(f"{self._phrase_column[name]}_"), chain.from_iterable(docs)))
            at, width = begin[where[new]], length[where[new]]
            texts = [" ".join(spelled[b : b + k]) for b, k in zip(at.tolist(), width.tolist())]
            found = phrases.near(Spans(words, at, width, texts))
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
            return _labelled(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32), [], np.zeros(0))
        of, label, shared, alike = (np.array(column) for column in zip(*rows))
        # from distinct spans to all of them
        starts = np.append(0, np.cumsum(np.bincount(of, minlength=len(distinct))))
        counts = np.diff(starts)[inverse]
        span = np.repeat(np.arange(len(keys)), counts)
        row = (
            np.repeat(starts[:-1][inverse], counts)
            + np.arange(len(span))
            - np.repeat(np.cumsum(counts) - counts, counts)
        )
        names = [f"{measure} {label}".strip() for measure in ("jaccard", "jaro-winkler") for label in phrases.labels]
        values = np.concatenate([shared[row], alike[row]])
        kind = np.concatenate([label[row], label[row] + len(phrases.labels)])
        some = values > 0
        return _labelled(np.concatenate([span, span])[some], kind[some], names, values[some])

    def _find_matches(self, name, docs, doc_starts, begin, length) -> NDArray[np.int64]:
        matcher = self._matchers.get(name)
        if matcher is None or (docs and matcher.vocab is not docs[0].vocab):
            matcher = self._matchers[name] = Matcher(docs[0].vocab if docs else Vocab())
            matcher.add(name, self.feature_set.patterns[name])
        matched = [
            (int(offset) + start, end - start)
            for doc, offset in zip(docs, doc_starts)
            for _, start, end in matcher(doc)
        ]
        first, width = np.array(matched or np.zeros((0, 2)), dtype=np.int64).T
        base = np.int64(1 << 32)
        return np.flatnonzero(np.isin(begin * base + length, first * base + width))

    def _call(self, name, docs, doc_starts, begin, length) -> tuple[_Items, Callable[[], list[str]]]:
        function = self.feature_set.functions[name]
        spans, texts, numbers = [], [], []
        of_doc = np.searchsorted(doc_starts, begin, side="right") - 1
        for n, (d, b, k) in enumerate(zip(of_doc.tolist(), begin.tolist(), length.tolist())):
            start = b - int(doc_starts[d])
            span = docs[d][start : start + k]
            for text, number in _span_items(name, span, function(span)):
                spans.append(n)
                texts.append(text)
                numbers.append(number)
        hashes = np.array([hash_item(f"seg.fn:{name}", text) for text in texts], dtype=np.uint64)
        return _Items(np.array(spans, dtype=np.int64), hashes, np.array(numbers, dtype=np.float64)), lambda: texts

    # ------------------------------------------------------------------------------------------------- known spans

    def known_spans(
        self, docs: list[Doc], columns: TokenColumns, longest: int, index: FeatureIndex, token_index: FeatureIndex
    ) -> KnownSpans:
        """All spans of at most `longest` tokens that have a feature in the index."""
        n_tokens = len(columns.lexemes)
        opening, closing = _sequence_bounds(columns.starts)
        at_once = max(1, _SPANS_AT_ONCE // longest)
        parts = []
        if self.reads_spans and len(index):
            for first in range(0, n_tokens, at_once):
                begin, length = kernels.all_spans(closing, first, min(first + at_once, n_tokens), longest)
                features = self.hash(docs, columns, begin, length)
                rows = index.rows(features.hashes.ravel())
                [known] = np.nonzero(rows >= 0)
                item_rows = index.rows(features.item_hashes)
                of = item_rows >= 0
                span = np.concatenate([known // max(1, features.hashes.shape[1]), features.item_spans[of]])
                values = np.concatenate([np.ones(len(known), dtype=np.float32), features.item_values[of]])
                parts.append((begin[span], length[span], np.concatenate([rows[known], item_rows[of]]), values))
        n_own = sum(len(part[0]) for part in parts)
        parts.extend(self._repeats(columns, opening, closing, longest, token_index))
        if not parts:
            none = TokenFeatures(np.zeros(0, dtype=np.int32), None, np.zeros(1, dtype=np.int64))
            return KnownSpans(SpanList(np.zeros(n_tokens + 1, dtype=np.int64), none.rows), none, none)
        begin, length, rows, values = (np.concatenate(arrays) for arrays in zip(*parts))
        keys, span = np.unique(begin * (longest + 1) + length, return_inverse=True)
        counts = np.bincount(keys // (longest + 1), minlength=n_tokens)
        listed = SpanList(np.append(0, np.cumsum(counts)).astype(np.int64), (keys % (longest + 1)).astype(np.int32))
        own = np.arange(len(rows)) < n_own
        return KnownSpans(
            listed,
            _compressed(span[own], rows[own], values[own], len(keys)),
            _compressed(span[~own], rows[~own], values[~own], len(keys)),
        )

    def _repeats(self, columns: TokenColumns, opening, closing, longest: int, index: FeatureIndex):
        """Values that a span holds more than once, for templates that ask whether it contains them."""
        contains = [n for n, t in enumerate(self.tokens.templates) if str(t).startswith("seg.contains:")]
        of_items = [n for n, t in enumerate(self.tokens.item_templates) if str(t).startswith("seg.contains:")]
        if not (contains or of_items) or not len(index):
            return
        features = self.tokens.hash(columns)
        hashes = features.hashes
        for number in contains:
            keys = index.rows(np.ascontiguousarray(hashes[:, number]))
            room = 0
            while True:
                begin = np.empty(room, dtype=np.int64)
                length, row = np.empty((2, room), dtype=np.int32)
                count = kernels.list_repeats(keys, closing, longest, begin, length, row)
                if count <= room:
                    yield begin[:count], length[:count], row[:count], np.full(count, -1.0, dtype=np.float32)
                    break
                room = count
        rows = index.rows(features.item_hashes)
        [asked] = np.nonzero(np.isin(features.item_templates, of_items) & (rows >= 0))
        yield _repeated_items(
            features.item_tokens[asked], rows[asked], features.item_values[asked], opening, closing, longest
        )


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
    return part.of_token.offset if part.kind in _TOKEN_PARTS else 0


def _labelled(span, label, names: list[str], values) -> tuple[_Items, Callable[[], list[str]]]:
    hashes = np.array([hash_string(name) for name in names] or [0], dtype=np.uint64)
    return _Items(span, hashes[label], values), lambda: [names[n] for n in label.tolist()]


def _span_items(name: str, span: Span, given: Any):
    """What a function gave for a span as pairs of a name and a number. RAISES (ValueError): CRF124."""
    if given is None:
        return []
    one = isinstance(given, (str, int, float, np.number))
    found = named_numbers([given] if one else given)
    if found is None or not all(map(math.isfinite, found[1])):
        raise ValueError(Errors.CRF124.format(name=name, value=shown(given), span=span.text[:40]))
    return zip(*found)


def _sequence_bounds(starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the sequence of each token begins and ends: int64[T], int64[T]."""
    widths = np.diff(starts)
    return np.repeat(starts[:-1], widths), np.repeat(starts[1:], widths)


def _compressed(span, rows, values, n_spans: int) -> TokenFeatures:
    order = np.argsort(span, kind="stable")
    starts = np.append(0, np.cumsum(np.bincount(span, minlength=n_spans))).astype(np.int64)
    return TokenFeatures(rows[order].astype(np.int32), None if (values == 1).all() else values[order], starts)


class SpanIndexBuilder:
    """Counts the features of segments batch by batch, then freezes those worth keeping into an index.

    known: An index whose features keep their rows (warm start).
    """

    def __init__(self, compiled: CompiledSegments, known: FeatureIndex):
        self.known = known
        self._compiled = compiled
        self._templates = compiled.feature_set.spans + compiled.feature_set.span_items
        self._table = CountingTable(known.keys)
        self._template_of: list[int] = []
        self._names: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._table)

    @property
    def counts(self) -> NDArray[np.int32]:
        """RETURNS (int32[N]): How often each feature was met; the known ones come first."""
        return self._table.counts

    def add(self, docs: list[Doc], columns: TokenColumns, begin: NDArray, length: NDArray) -> TokenFeatures:
        """Counts the features of some spans.

        RETURNS (TokenFeatures): Their rows among all features met so far, span by span.
        """
        features = self._compiled.hash(docs, columns, begin, length, names=True)
        width = max(1, features.hashes.shape[1])
        tokens = [token for doc in docs for token in doc] if len(begin) else []
        for at in self._table.add(features.hashes.ravel()).tolist():
            n, number = divmod(at, width)
            words = tokens[int(begin[n]) : int(begin[n]) + int(length[n])]
            template = self._templates[number]
            self._template_of.append(number)
            self._names.append([_spell(part, words, self._compiled, columns, int(begin[n])) for part in template.parts])
        spelled = [name for names in features.item_names for name in names]
        for at in self._table.add(features.item_hashes).tolist():
            number = len(self._compiled.feature_set.spans) + int(features.item_templates[at])
            n = int(features.item_spans[at])
            words = tokens[int(begin[n]) : int(begin[n]) + int(length[n])]
            self._template_of.append(number)
            self._names.append(
                [
                    spelled[at] if part.kind in _ITEMS else _spell(part, words, self._compiled, columns, int(begin[n]))
                    for part in self._templates[number].parts
                ]
            )
        rows = self._table.rows(features.hashes.ravel())
        [known] = np.nonzero(rows >= 0)
        span = np.concatenate([known // width, features.item_spans])
        rows = np.concatenate([rows[known], self._table.rows(features.item_hashes)])
        return _compressed(span, rows, np.ones(len(rows), dtype=np.float32), len(begin))

    def freeze(self, keep: NDArray[np.bool_], vocab: Vocab) -> FeatureIndex:
        """The features to keep (bool[N]), in the order in which they were met."""
        n_known = len(self.known)
        [new] = np.nonzero(keep[n_known:])
        names = [self._names[n] for n in new.tolist()]
        place: dict[str, int] = {}
        parts = [place.setdefault(text, len(place)) for texts in names for text in texts]
        index = FeatureIndex(
            self._table.keys[n_known:][new],
            [str(template) for template in self._templates],
            np.array([self._template_of[n] for n in new.tolist()], dtype=np.int32),
            np.append(0, np.cumsum([len(texts) for texts in names])).astype(np.int64),
            np.array(parts, dtype=np.int32),
            list(place),
        )
        return self.known.keep(keep[:n_known]).extend(index)


def _spell(part: SegmentPart, words, compiled: CompiledSegments, columns: TokenColumns, begin: int) -> str:
    """What a plain part finds in a span, for humans."""
    if part.kind == "length":
        return str(len(words))
    if part.kind == "text":
        return " ".join(word.orth_ for word in words)
    if part.kind == "lower":
        return " ".join(word.lower_ for word in words)
    if part.kind == "shape":
        return " ".join(word.shape_ for word in words)
    name, offset = part.of_token
    token = begin + offset + (0 if part.kind in _OPENING else len(words) - 1)
    sequence = np.searchsorted(columns.starts, begin, side="right") - 1
    before, behind = columns.starts[sequence] - token, token - columns.starts[sequence + 1] + 1
    if before > 0 or behind > 0:
        return f"<BOS{before}>" if before > 0 else f"<EOS{behind}>"
    value = compiled.tokens.part_values(columns, Part(name, 0), np.array([token]))[0]
    return compiled.reader.spell(name, value, words[0].vocab)
