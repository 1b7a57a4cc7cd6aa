"""Templates of whole segments, such as ``seg.length``, ``seg.first:shape|seg.last:shape`` and ``seg.near:cities``; and the
registered preset of segment features.

A template is one or more parts joined by ``|``. ``seg.first:lower[-2..2]`` stands for five templates that read tokens around the
first one, ``seg.before:lower`` is ``seg.first:lower[-1]``. The parts of a template decide where its weights are added:

    only seg.first and seg.before    at the first token of a segment      no work per span
    only seg.last and seg.after      at the last token                    no work per span
    seg.count, seg.contains          at each token of the segment         a repeated value counts once in seg.contains:
                                                                          spans with a repetition are listed
    seg.length alone                 one weight per length and label
    anything else                    at spans that are listed: those with a known feature

Segment features weigh labels, not ``O``: segments of ``O`` have one token, for which token templates are enough.
"""

import re
from collections.abc import Callable, Collection
from itertools import chain, product
from operator import attrgetter
from typing import ClassVar, NamedTuple, Optional

import srsly
from spacy.matcher import Matcher
from spacy.tokens import Span
from spacy.vocab import Vocab

from .. import checks
from ..errors import Errors, known_names, shown
from ..types import Settings
from .clusters import Clusters
from .doc_batch import OUTER, STAGE_ATTRIBUTES
from .extractor import FUNCTIONS, OF_TOKENS, AttributesRead, FeatureSet, check_attribute
from .gazetteers import SPELLINGS, Gazetteer
from .items import Functions, is_item
from .lexemes import NGRAMS
from .presets import changed
from .templates import OFFSETS, Template, TemplatePart, combined, is_text, offsets_of, require_named
from .token_columns import ColumnReader

# Makes the values of a span, see `items.named_numbers`
SpanSource = Callable[[Span], object]
Pattern = list[Settings]  # of spaCy's Matcher

# Parts that read one token, with its offset from the end of the segment
TOKEN_PARTS = {"first": 0, "before": -1, "last": 0, "after": 1, "contains": 0, "count": 0}
OPENING = {"first", "before"}
CLOSING = {"last", "after"}
_INSIDE = {"contains", "count"}
WHOLE = {"text": "orth", "lower": "lower", "folded": "folded", "shape": "shape"}
# Parts with any number of values per span
ITEMS = {"in", "near", "matches", "fn"}
PHRASES = {"in", "near"}  # the ones that name a gazetteer
_NAMED = {*TOKEN_PARTS, *ITEMS}
KINDS = ("length", *WHOLE, *TOKEN_PARTS, *sorted(ITEMS))

_NAME_OF = attrgetter("name")
_PART = re.compile(rf"seg\.(?P<kind>[a-z]+)(?::(?P<name>[^\[\]\s]+){OFFSETS})?", re.VERBOSE)


class SegmentPart(NamedTuple):
    """A part of a template, such as ``seg.first:lower[1]``."""

    kind: str  # one of `KINDS`
    name: str  # of the attribute, gazetteer, pattern or function; "" for none
    offset: int = 0  # from the first or the last token

    def __str__(self) -> str:
        text = f"seg.{self.kind}:{self.name}" if self.name else f"seg.{self.kind}"
        return f"{text}[{self.offset}]" if self.offset else text

    @property
    def of_token(self) -> TemplatePart:
        """The attribute that a part reads, and the token's offset from the end of the segment that the part's kind names."""
        return TemplatePart(self.name, TOKEN_PARTS[self.kind] + self.offset)


class SegmentTemplate(NamedTuple):
    """A conjunction of parts."""

    parts: tuple[SegmentPart, ...]

    def __str__(self) -> str:
        return "|".join(map(str, self.parts))

    @property
    def kinds(self) -> set[str]:
        """The kinds of the parts."""
        return {part.kind for part in self.parts}

    @property
    def of_one_token(self) -> bool:
        """Whether the features are added at single tokens: all parts read tokens at one end of the segment, or inside it."""
        return any(self.kinds <= kinds for kinds in (OPENING, CLOSING, _INSIDE))


def parse_segment_template(text: str) -> list[SegmentTemplate]:
    """The templates that a line stands for.

    RETURNS (list[SegmentTemplate]): One for each combination of offsets.
    RAISES (ValueError): CRF101 with the part that can't be read, CRF102 for impossible offsets or too many templates, CRF121
        for parts that can't be joined.
    """
    choices = []
    text = text if is_text(text) else shown(text)
    for piece in text.split("|"):
        match = _PART.fullmatch(piece.strip())
        kind, name, low = (None, None, None) if match is None else match.group("kind", "name", "low")
        has_wrong_name = (name is not None) != (kind in _NAMED)
        has_wrong_offset = low is not None and kind not in ("first", "last")
        if match is None or kind not in KINDS or has_wrong_name or has_wrong_offset:
            tails = dict.fromkeys(_NAMED, ":NAME") | {"first": ":NAME[OFFSET]", "last": ":NAME[OFFSET]"}
            raise ValueError(
                Errors.CRF101.format(
                    template=text,
                    part=piece,
                    known=known_names([f"seg.{known}{tails.get(known, '')}" for known in KINDS], piece),
                )
            )
        choices.append([SegmentPart(kind, name or "", offset) for offset in offsets_of(match, text)])
    templates = [SegmentTemplate(parts) for parts in combined(choices, text)]
    for template in templates:
        n_items = sum(part.kind in ITEMS for part in template.parts)
        if (len(template.parts) > 1 and template.kinds & _INSIDE) or n_items > 1:
            raise ValueError(Errors.CRF121.format(template=text, reason=_JOINED))
    return templates


OWNER = "spacy_crf.segment_features.v1"
_JOINED = (
    "seg.contains, seg.count, extensions and functions of tokens stand alone; one of seg.in, seg.near, seg.matches and seg.fn "
    "can be joined with plain parts; character n-grams can be joined at the ends of the segment"
)


class SegmentFeatureSet(AttributesRead):
    """Settings of segment features in a config (``spacy_crf.segment_features.v1``).

    templates: Templates of segments.
    patterns: Matcher patterns, or lists of patterns, by the name that templates use (``seg.matches:NAME``).
    functions: Functions from a Span to strings or numbers, by name (``seg.fn:NAME``); or from a Doc to items for each token, for
        parts that name them as an attribute (``seg.first:fn:NAME``).
    RAISES (ValueError): CRF020, CRF610, and CRF101 to CRF121 for a template that cannot be used.
    """

    vector_offsets: ClassVar[list[int]] = []  # segments read no vectors

    def __init__(
        self,
        templates: list[str],
        patterns: Optional[Settings] = None,  # one pattern, or several
        functions: Optional[dict[str, SpanSource]] = None,
    ):
        patterns = checks.table(OWNER, "patterns", patterns, "Matcher patterns")
        self.patterns = {name: _pattern_list(name, pattern) for name, pattern in patterns.items()}
        self.functions = Functions(checks.table(OWNER, "functions", functions, FUNCTIONS, callable))
        texts = checks.listed(OWNER, "templates", templates, "templates")
        self.templates = list(dict.fromkeys(chain.from_iterable(map(parse_segment_template, texts))))
        for template in self.templates:
            for kind, name, _ in template.parts:
                if kind in TOKEN_PARTS:
                    check_attribute(name, template, self.functions)
                if name == OUTER:
                    raise ValueError(Errors.CRF121.format(template=template, reason=OF_TOKENS))
                if kind == "contains" and name in NGRAMS:
                    raise ValueError(Errors.CRF121.format(template=template, reason=_JOINED))
                known = {"matches": self.patterns, "fn": self.functions}.get(kind)
                if known is not None:
                    require_named(template, name, kind, known)
        # By where the weights are added, see above
        self.begins = self._token_templates(OPENING)
        self.ends = self._token_templates(CLOSING)
        self.tokens = self._token_templates(_INSIDE)
        self.has_length = any(t.kinds == {"length"} for t in self.templates)
        listed = [t for t in self.templates if not t.of_one_token and t.kinds != {"length"}]
        self.spans = [t for t in listed if not t.kinds & ITEMS]
        self.span_items = [t for t in listed if t.kinds & ITEMS]
        for template in listed:
            for kind, name, _ in template.parts:
                if kind in TOKEN_PARTS and (is_item(name) or name in NGRAMS):
                    raise ValueError(Errors.CRF121.format(template=template, reason=_JOINED))
        # Templates of tokens that stand for all columns that are read, at the offsets from which they are read
        parts = chain.from_iterable(t.parts for t in self.templates)
        read = [str(part.of_token) for part in parts if part.kind in TOKEN_PARTS]
        kinds = chain.from_iterable(t.kinds for t in listed)
        read += [f"{WHOLE[kind]}[0]" for kind in kinds if kind in WHOLE]
        if self.named(PHRASES):
            read += [f"{attr.lower()}[0]" for attr in SPELLINGS]
        self._of_tokens = FeatureSet(list(dict.fromkeys(["lower[0]", "lower[1]", *read])), functions=self.functions)

    def _token_templates(self, kinds: set[str]) -> list[Template]:
        """The templates all of whose parts are of these `kinds`, as templates of tokens."""
        chosen = []
        for template in self.templates:
            if template.kinds <= kinds:
                chosen.append(Template(parts=tuple(part.of_token for part in template.parts), name=str(template)))
        return chosen

    def as_text(self) -> list[str]:
        """The templates as lines of text. The rows of a saved index keep their meaning as long as these lines stay equal."""
        return [str(template) for template in self.templates]

    def patterns_as_text(self) -> dict[str, str]:
        """The patterns that templates name, as JSON."""
        return {name: srsly.json_dumps(self.patterns[name], sort_keys=True) for name in sorted(self.named(["matches"]))}

    def with_patterns(self, texts: dict[str, str]) -> "SegmentFeatureSet":
        """A copy with patterns in the form that `patterns_as_text` returns."""
        patterns = {name: srsly.json_loads(text) for name, text in texts.items()}
        return SegmentFeatureSet(list(map(str, self.templates)), {**self.patterns, **patterns}, self.functions)

    def named(self, kinds: Collection[str]) -> list[str]:
        """The names in the parts of these kinds, each once."""
        parts = chain.from_iterable(t.parts for t in self.templates)
        return list(dict.fromkeys(part.name for part in parts if part.kind in kinds))

    @property
    def gazetteers(self) -> list[str]:
        """Names of the gazetteers that the templates read."""
        return list(dict.fromkeys([*self.named(PHRASES), *self._of_tokens.gazetteers]))

    def attributes(self) -> list[str]:
        """The attributes of tokens that the templates read, each once."""
        return self._of_tokens.attributes()

    def with_stage(self, templates: list[str]) -> "SegmentFeatureSet":
        """A copy with these templates added."""
        return SegmentFeatureSet([*map(str, self.templates), *templates], self.patterns, self.functions)

    def without_stage(self) -> "SegmentFeatureSet":
        """A copy without templates that read the labels of a first stage."""
        stage = {*STAGE_ATTRIBUTES}
        kept = [str(template) for template in self.templates if stage.isdisjoint(map(_NAME_OF, template.parts))]
        return SegmentFeatureSet(kept, self.patterns, self.functions)

    def reader(
        self, gazetteers: dict[str, Gazetteer], clusters: Optional[dict[str, Clusters]] = None, vectors: None = None
    ) -> ColumnReader:
        """A reader of the columns that the templates read, as `FeatureSet.reader`; templates of segments read no vectors.

        RAISES (ValueError): CRF106 for a missing gazetteer, CRF940 for missing clusters.
        """
        for template in self.templates:
            for kind, name, _ in template.parts:
                if kind in PHRASES:
                    require_named(template, name, "in", gazetteers)
        return self._of_tokens.reader(gazetteers, clusters)


def _pattern_list(name: str, pattern: list) -> list[Pattern]:
    """A list of patterns, from a pattern or a list of patterns. RAISES (ValueError): CRF610 for anything else."""
    if not pattern:
        raise ValueError(Errors.CRF610.format(owner=f"The pattern '{name}'", reason="it is empty"))
    patterns = [pattern] if isinstance(pattern, list) and isinstance(pattern[0], dict) else pattern
    try:
        Matcher(Vocab(), validate=True).add(name, patterns)
    except Exception as error:  # the Matcher may raise any error of its schema
        raise ValueError(Errors.CRF610.format(owner=f"The pattern '{name}'", reason=error)) from error
    return patterns


# The templates that a chain reads at the first and last tags of an entity. In cross-validation all of them together gain 0.7 F1
# on conll2000 (2500 sentences), 0.5 on cora_refs and 0.4 on usaddress over words, shapes, three letters and the neighbours
# outside. Flags, two words around, pairs of both ends, lengths with shapes and seg.contains:lower made no significant difference.
_AT_BOTH_ENDS = [
    "lower[-1..1]",
    "shape[-1..1]",
    "orth",
    *(f"{side}{n}" for side, n in product(("prefix", "suffix"), range(1, 5))),
    "lower[-1]|lower",
    "lower|lower[1]",
    "shape[-1]|shape|shape[1]",
]


def _at_both_ends(templates: list[str]) -> list[str]:
    """The templates of tokens, read at the first token of a segment and then at its last token."""
    at_ends = []
    for end in ("first", "last"):
        for template in templates:
            parts = template.split("|")
            at_ends.append("|".join(f"seg.{end}:{part}" for part in parts))
    return at_ends


# If tokens have `ner_features.v1`, flags that are true at both ends gain another 0.2 F1 on cora_refs in cross-validation.
# Character n-grams, words without digits and pairs of words outside made no significant difference there and on usaddress; all of
# these together lost 1.0 on one fold.
_FLAGS = ["if:is_title", "if:is_upper", "if:is_digit", "if:has_hyphen"]
SEGMENT_TEMPLATES = ["seg.length", "seg.lower", "seg.shape", *_at_both_ends(_AT_BOTH_ENDS), *_at_both_ends(_FLAGS)]


def segment_features(
    templates: Optional[list[str]] = None,
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    patterns: Optional[Settings] = None,
    functions: Optional[Settings] = None,  # without their type: see presets.py
) -> SegmentFeatureSet:
    """Features of whole segments, for use beside ``spacy_crf.ner_features.v1`` (``spacy_crf.segment_features.v1``).

    templates (List[str]): Templates that replace the preset (length, words, shapes, both ends and their surroundings).
    extra (List[str]): More templates, such as ``seg.near:cities``.
    without (List[str]): Templates to leave out, such as ``seg.lower``.
    patterns (Dict[str, List]): Matcher patterns that templates read as ``seg.matches:NAME``.
    functions (Dict[str, Callable[[Span], Any]]): Functions that templates read as ``seg.fn:NAME``; functions that they read as
        attributes of tokens (``seg.first:fn:NAME``) take a Doc.
    """
    chosen = SEGMENT_TEMPLATES if templates is None else checks.listed(OWNER, "templates", templates, "templates")
    templates = changed(OWNER, chosen, extra, without, parse_segment_template)
    return SegmentFeatureSet(templates, patterns=patterns, functions=functions)
