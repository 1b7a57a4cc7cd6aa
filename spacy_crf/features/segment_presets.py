"""The registered feature sets of segments, good without tuning. Apart from the others: chains start without its kernels."""

from typing import Any, Optional

from .. import checks
from .presets import changed
from .segment_templates import OWNER, SegmentFeatureSet, parse_segment_template

# What a chain reads at the tags that begin and end an entity. In cross-validation all of it gains 0.7 F1 on conll2000 (2500
# sentences), 0.5 on cora_refs and 0.4 on usaddress over words, shapes, three letters and the neighbours outside. Flags, two words
# around, pairs of both ends, lengths with shapes and seg.contains:lower made no difference beyond chance.
_AT_BOTH_ENDS = [
    "lower[-1..1]",
    "shape[-1..1]",
    "orth",
    "prefix1",
    "prefix2",
    "prefix3",
    "prefix4",
    "suffix1",
    "suffix2",
    "suffix3",
    "suffix4",
    "lower[-1]|lower",
    "lower|lower[1]",
    "shape[-1]|shape|shape[1]",
]


def _at_both_ends(templates: list[str]) -> list[str]:
    return [
        "|".join(f"seg.{end}:{part}" for part in template.split("|"))
        for end in ("first", "last")
        for template in templates
    ]


# Where tokens have `ner_features.v3`, flags at both ends, as far as they hold, gain another 0.2 F1 on cora_refs in
# cross-validation. Character n-grams, words without digits, and pairs of words outside made no difference beyond chance there and
# on usaddress; all of these together lost 1.0 on one fold.
_FLAGS_AT_BOTH_ENDS = ["if:is_title", "if:is_upper", "if:is_digit", "if:has_hyphen"]
SEGMENT_TEMPLATES = ["seg.length", "seg.lower", "seg.shape", *_at_both_ends(_AT_BOTH_ENDS)]
SEGMENT_TEMPLATES += _at_both_ends(_FLAGS_AT_BOTH_ENDS)


def segment_features(
    templates: Optional[list[str]] = None,
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    patterns: Optional[dict[str, Any]] = None,
    functions: Optional[dict[str, Any]] = None,  # Any: see presets.py
) -> SegmentFeatureSet:
    """Features of whole segments, for use beside ``spacy_crf.ner_features.v3`` (``spacy_crf.segment_features.v2``).

    templates (List[str]): Templates in place of the preset: length, words, shapes, the ends and what surrounds them.
    extra (List[str]): More templates, such as ``seg.near:cities``.
    without (List[str]): Templates to leave out, such as ``seg.lower``.
    patterns (Dict[str, List]): Matcher patterns that templates read as ``seg.matches:NAME``.
    functions (Dict[str, Callable[[Span], Any]]): Functions that templates read as ``seg.fn:NAME``; those that they read as
        attributes of tokens, such as ``seg.first:fn:NAME``, take a Doc.
    """
    chosen = SEGMENT_TEMPLATES if templates is None else checks.listed(OWNER, "templates", templates, "templates")
    templates = changed(OWNER, chosen, extra, without, parse_segment_template)
    return SegmentFeatureSet(templates, patterns=patterns, functions=functions)
