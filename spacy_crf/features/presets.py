"""The registered feature sets of tokens: one to fill in, two that are good without tuning."""

from typing import Any, Optional

from .. import checks
from .extractor import FeatureSet

# ``functions`` are Any below: confection compares what a type says with a block that it has not called yet, and refuses it.

# Capitals, digits and hyphens as one feature, not four: usaddress, snips and ingredients gain 0.2 to 0.4 F1, mit and wnut17 lose
_LETTERS = [f"is_title[{n}]|is_upper[{n}]|is_digit[{n}]|has_hyphen[{n}]" for n in range(-2, 3)]
NER_TEMPLATES = [
    "bias",
    "lower[-2..2]",
    "shape[-2..2]",
    "orth[0]",
    "prefix1[0]",
    "prefix2[0]",
    "prefix3[0]",
    "prefix4[0]",
    "suffix1[0]",
    "suffix2[0]",
    "suffix3[0]",
    "suffix4[0]",
    "lower[-1]|lower[0]",
    "lower[0]|lower[1]",
    "shape[-1]|shape[0]|shape[1]",
    *_LETTERS,
    "lower[-1]|lower[1]",
]
TAGGER_TEMPLATES = [
    "bias",
    "lower[-2..2]",
    "orth[0]",
    "shape[-1..1]",
    "short_shape[0]",
    "prefix1[0]",
    "prefix2[0]",
    "prefix3[0]",
    "prefix4[0]",
    "suffix1[0]",
    "suffix2[-1..1]",
    "suffix3[-1..1]",
    "suffix4[0]",
    "suffix5[0]",
    "has_hyphen[0]",
    "has_digit[0]",
    "lower[-1]|lower[0]",
    "lower[0]|lower[1]",
    "suffix3[-1]|suffix3[0]",
]


def features(
    templates: list[str],
    transitions: Optional[list[str]] = None,
    padding: bool = True,
    functions: Optional[dict[str, Any]] = None,
) -> FeatureSet:
    """Features as the user names them (``spacy_crf.features.v1``).

    templates (List[str]): Features of tags, in the template language.
    transitions (List[str]): Templates whose features weigh pairs of tags.
    padding (bool): Positions outside the sequence have values of their own; without, their templates are left out.
    functions (Dict[str, Callable[[Doc], List]]): Functions that templates read as ``fn:NAME[0]``.
    """
    return FeatureSet(templates, transitions, padding, functions)


def ner_features(extra: Optional[list[str]] = None, functions: Optional[dict[str, Any]] = None) -> FeatureSet:
    """Words, shapes and affixes around the token, for entities (``spacy_crf.ner_features.v1``).

    extra (List[str]): More templates, such as ``in:cities[-1..1]``.
    """
    extra = checks.listed("spacy_crf.ner_features.v1", "extra", extra, "templates")
    return FeatureSet([*NER_TEMPLATES, *extra], padding=False, functions=functions)


def tagger_features(extra: Optional[list[str]] = None, functions: Optional[dict[str, Any]] = None) -> FeatureSet:
    """Words, affixes and shapes around the token, for one tag per token (``spacy_crf.tagger_features.v1``).

    extra (List[str]): More templates.
    """
    extra = checks.listed("spacy_crf.tagger_features.v1", "extra", extra, "templates")
    return FeatureSet([*TAGGER_TEMPLATES, *extra], functions=functions)
