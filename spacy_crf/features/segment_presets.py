"""The registered feature set of segments, good without tuning. Apart from the others: chains start without its kernels."""

from typing import Any, Optional

from .segments import SegmentFeatureSet, SpanSource

# The ends of a segment read what a chain's tags with boundaries read at B and L.
SEGMENT_TEMPLATES = [
    "seg.length",
    "seg.lower",
    "seg.shape",
    *(
        f"seg.{end}:{name}"
        for end in ("first", "last")
        for name in ("lower", "shape", "short_shape", "prefix3", "suffix3")
    ),
    *(f"seg.{side}:{name}" for side in ("before", "after") for name in ("lower", "shape", "short_shape")),
    "seg.before:lower|seg.first:lower",
    "seg.last:lower|seg.after:lower",
    "seg.before:short_shape|seg.first:short_shape",
    "seg.last:short_shape|seg.after:short_shape",
]


def segment_features(
    templates: Optional[list[str]] = None,
    extra: Optional[list[str]] = None,
    patterns: Optional[dict[str, Any]] = None,
    functions: Optional[dict[str, SpanSource]] = None,
) -> SegmentFeatureSet:
    """Features of whole segments (``spacy_crf.segment_features.v1``).

    templates (List[str]): Templates; by default length, words, shapes, the ends and what surrounds them.
    extra (List[str]): More templates, such as ``seg.near:cities``.
    patterns (Dict[str, List]): Matcher patterns that templates read as ``seg.matches:NAME``.
    functions (Dict[str, Callable[[Span], Any]]): Functions that templates read as ``seg.fn:NAME``.
    """
    chosen = SEGMENT_TEMPLATES if templates is None else templates
    return SegmentFeatureSet([*chosen, *(extra or [])], patterns=patterns, functions=functions)
