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

import re
from collections.abc import Callable, Collection
from typing import Any, NamedTuple, Optional

import srsly
from spacy.matcher import Matcher
from spacy.tokens import Span
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, known_names, shown
from .clusters import Clusters
from .extractor import FeatureSet, check_attribute
from .gazetteers import SPELLINGS, Gazetteer
from .items import Functions
from .lexemes import NGRAMS
from .templates import OFFSETS, Part, combined, is_text, offsets_of, require_named
from .token_columns import ColumnReader
from .two_stage import STAGE_ATTRIBUTES

SpanSource = Callable[[Span], Any]
Pattern = list[dict[str, Any]]

# Parts that read one token, and the offset from the end of the segment that they stand for
TOKEN_PARTS = {"first": 0, "before": -1, "last": 0, "after": 1, "contains": 0, "count": 0}
OPENING, CLOSING, _INSIDE = {"first", "before"}, {"last", "after"}, {"contains", "count"}
WHOLE = {"text": "orth", "lower": "lower", "folded": "folded", "shape": "shape"}
ITEMS = {"in", "near", "matches", "fn"}  # parts with any number of values per span
PHRASES = {"in", "near"}  # of these, those that name a gazetteer
_NAMED = {*TOKEN_PARTS, *ITEMS}
KINDS = ("length", *WHOLE, *TOKEN_PARTS, *sorted(ITEMS))

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
        return Part(self.name, TOKEN_PARTS[self.kind] + self.offset)


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
    RAISES (ValueError): CRF101 with the part that can't be read, CRF102 for offsets that can't be, CRF121 for parts that can't be
        joined.
    """
    choices = []
    text = text if is_text(text) else shown(text)
    for piece in text.split("|"):
        match = _PART.fullmatch(piece.strip())
        if match is None or match["kind"] not in KINDS or (match["name"] is not None) != (match["kind"] in _NAMED):
            raise ValueError(Errors.CRF101.format(template=text, part=piece, known=_known_parts(piece)))
        if match["low"] is not None and match["kind"] not in ("first", "last"):
            raise ValueError(Errors.CRF101.format(template=text, part=piece, known=_known_parts(piece)))
        offsets = offsets_of(match, text)
        choices.append([SegmentPart(match["kind"], match["name"] or "", offset) for offset in offsets])
    templates = [SegmentTemplate(parts) for parts in combined(choices, text)]
    for template in templates:
        items = sum(part.kind in ITEMS for part in template.parts)
        if (len(template.parts) > 1 and template.kinds & _INSIDE) or items > 1:
            raise ValueError(Errors.CRF121.format(template=text, reason=_JOINED))
    return templates


def _known_parts(asked: str) -> str:
    names = {"first": ":NAME[OFFSET]", "last": ":NAME[OFFSET]"} | dict.fromkeys(_NAMED - {"first", "last"}, ":NAME")
    return known_names([f"seg.{kind}{names.get(kind, '')}" for kind in KINDS], asked)


OWNER = "spacy_crf.segment_features.v2"
_JOINED = (
    "seg.contains, seg.count, extensions and functions of tokens stand alone; one of seg.in, seg.near, seg.matches and seg.fn "
    "can be joined with plain parts; character n-grams can be joined at the ends of the segment"
)


class SegmentFeatureSet:
    """The settings of segment features in a config (``spacy_crf.segment_features.v2``).

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
        given = checks.table(OWNER, "patterns", patterns, "Matcher patterns")
        self.patterns = {name: _pattern_list(name, pattern) for name, pattern in given.items()}
        self.functions = Functions(
            checks.table(
                OWNER,
                "functions",
                functions,
                "registered functions, as [....functions.NAME] @misc = ... gives them",
                callable,
            )
        )
        texts = checks.listed(OWNER, "templates", templates, "templates")
        self.templates = list(dict.fromkeys(template for text in texts for template in parse_segment_template(text)))
        for template in self.templates:
            for kind, name, _ in template.parts:
                if kind in TOKEN_PARTS:
                    check_attribute(name, template, self.functions)
                if kind == "contains" and name in NGRAMS:
                    raise ValueError(Errors.CRF121.format(template=template, reason=_JOINED))
                known = {"matches": self.patterns, "fn": self.functions}.get(kind)
                if known is not None:
                    require_named(template, name, kind, known)
        self.begins = self._placed(OPENING)
        self.ends = self._placed(CLOSING)
        self.tokens = self._placed(_INSIDE)
        placed = [t for t in self.templates if any(t.kinds <= kinds for kinds in (OPENING, CLOSING, _INSIDE))]
        self.has_length = any(t.kinds == {"length"} for t in self.templates)
        rest = [t for t in self.templates if t not in placed and t.kinds != {"length"}]
        self.spans = [t for t in rest if not t.kinds & ITEMS]
        self.span_items = [t for t in rest if t.kinds & ITEMS]
        for template in rest:
            for kind, name, _ in template.parts:
                if kind in TOKEN_PARTS and (name.startswith(("fn:", "ext:")) or name in NGRAMS):
                    raise ValueError(Errors.CRF121.format(template=template, reason=_JOINED))
        read = {str(part.of_token): None for t in self.templates for part in t.parts if part.kind in TOKEN_PARTS}
        read.update({f"{WHOLE[kind]}[0]": None for t in rest for kind in t.kinds if kind in WHOLE})
        if self.named(PHRASES):
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

    def with_patterns(self, spelled: dict[str, str]) -> "SegmentFeatureSet":
        """The same with patterns as `spelled_patterns` gave them."""
        read = {name: srsly.json_loads(patterns) for name, patterns in spelled.items()}
        return SegmentFeatureSet(list(map(str, self.templates)), {**self.patterns, **read}, self.functions)

    def named(self, kinds: Collection[str]) -> list[str]:
        """What parts of some kinds name, each once."""
        return list(dict.fromkeys(name for t in self.templates for kind, name, _ in t.parts if kind in kinds))

    @property
    def gazetteers(self) -> list[str]:
        """Names of the gazetteers that the templates read."""
        return list(dict.fromkeys([*self.named(PHRASES), *self._attributes.gazetteers]))

    @property
    def reads_clusters(self) -> bool:
        """Whether the templates read clusters of words."""
        return self._attributes.reads_clusters

    @property
    def vector_offsets(self) -> list[int]:
        """Segments read no vectors."""
        return []

    @property
    def token_attributes(self) -> list[str]:
        """Token attributes that the templates read."""
        return self._attributes.token_attributes

    @property
    def extensions(self) -> list[str]:
        """Custom extensions that the templates read."""
        return self._attributes.extensions

    @property
    def reads_stage(self) -> bool:
        """Whether the templates read what a first stage says."""
        return self._attributes.reads_stage

    def with_stage(self, templates: list[str]) -> "SegmentFeatureSet":
        """The same with more templates."""
        return SegmentFeatureSet([*map(str, self.templates), *templates], self.patterns, self.functions)

    def without_stage(self) -> "SegmentFeatureSet":
        """The same without templates that read what a first stage says."""
        kept = [str(t) for t in self.templates if not any(part.name in STAGE_ATTRIBUTES for part in t.parts)]
        return SegmentFeatureSet(kept, self.patterns, self.functions)

    def reader(
        self, gazetteers: dict[str, Gazetteer], clusters: Optional[Clusters] = None, vectors: None = None
    ) -> ColumnReader:
        """RAISES (ValueError): CRF106 for a gazetteer, CRF940 for clusters that are not there. Segments read no vectors."""
        for template in self.templates:
            for kind, name, _ in template.parts:
                if kind in PHRASES:
                    require_named(template, name, "in", gazetteers)
        return self._attributes.reader(gazetteers, clusters)


def _pattern_list(name: str, pattern: Any) -> list[Pattern]:
    """One pattern or several. RAISES (ValueError): CRF610 if it is neither."""
    if not pattern:
        raise ValueError(Errors.CRF610.format(owner=f"The pattern '{name}'", reason="it is empty"))
    patterns = [pattern] if isinstance(pattern, list) and isinstance(pattern[0], dict) else pattern
    try:
        Matcher(Vocab(), validate=True).add(name, patterns)
    except Exception as error:  # the Matcher raises what its schema raises
        raise ValueError(Errors.CRF610.format(owner=f"The pattern '{name}'", reason=error)) from error
    return patterns
