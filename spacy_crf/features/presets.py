"""The registered feature sets of tokens: an empty one, and presets that work without tuning."""

from collections.abc import Callable, Sequence
from itertools import chain, product
from typing import Optional

from .. import checks
from ..types import Settings
from .extractor import FeatureSet
from .lexemes import Padding
from .templates import WIDEST_OFFSET, parse_template

# ``functions`` have no type below: confection would check the type against a block that it has not resolved yet, and refuse it.

# Found by `tests.benchmarks.feature_search`, on training data alone. Character n-grams gain 0.4 F1 on average (1.6 on wnut17),
# words with digits replaced by 0 and flags that have no value where they are false gain 0.1 each, pairs and triples of words gain
# 1.0 on mit_restaurant and 0.3 on snips, whose few words are ambiguous alone
_AFFIXES = [f"{side}{n}[0]" for side, n in product(("prefix", "suffix"), range(1, 5))]
_NGRAMS = ["ngrams3[0]", "ngrams4[0]"]


def pairs(window: int) -> list[str]:
    """Templates of pairs of neighbouring words, from offset -window to offset window."""
    return [f"lower[{n}]|lower[{n + 1}]" for n in range(-window, window)]


def features(
    templates: list[str],
    transitions: Optional[list[str]] = None,
    padding: Padding = True,
    functions: Optional[Settings] = None,
) -> FeatureSet:
    """Features as the user names them (``spacy_crf.features.v1``).

    templates (List[str]): Templates of features of tags.
    transitions (List[str]): Templates of features of pairs of tags.
    padding (bool): Whether positions outside the sequence have their own values; if not, templates that read them have no value.
        Or texts for these positions: a table with the lists "before" and "behind", the nearest first.
    functions (Dict[str, Callable]): Functions of Docs that templates read as ``fn:NAME[0]``, and of words, ``word:NAME[0]``.
    """
    return FeatureSet(templates, transitions, padding, functions)


def ner_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    window: int = 2,
    padding: bool = False,
    transitions: Optional[list[str]] = None,
    functions: Optional[Settings] = None,
) -> FeatureSet:
    """Features for entities: words, alone and up to three in a row, shapes, affixes and character n-grams around the token
    (``spacy_crf.ner_features.v1``).

    extra (List[str]): More templates, such as ``in:cities[-1..1]``.
    without (List[str]): Templates to leave out, such as ``shape[-2..2]``.
    window (int): Number of words that are read before and behind the token.
    padding (bool): Whether positions outside the sequence have their own values.
    transitions (List[str]): Templates of features of pairs of tags.
    functions (Dict[str, Callable]): Functions of Docs that templates read as ``fn:NAME[0]``, and of words, ``word:NAME[0]``.
    """
    owner = "spacy_crf.ner_features.v1"
    reach = checks.count(owner, "window", window, least=0, most=WIDEST_OFFSET)
    triples = [f"lower[{n - 1}]|lower[{n}]|lower[{n + 1}]" for n in range(1 - reach, reach)]
    around = f"[-{reach}..{reach}]"
    templates = [
        "bias",
        f"lower{around}",
        f"shape{around}",
        "orth[0]",
        "folded[-1..1]",
        *_AFFIXES,
        *_NGRAMS,
        *pairs(reach),
        *triples,
        "shape[-1]|shape[0]|shape[1]",
        *(f"if:{flag}{around}" for flag in ("is_title", "is_upper", "is_digit", "has_hyphen")),
    ]
    templates = changed(owner, templates, extra, without)
    return FeatureSet(templates, transitions, padding, functions)


def tagger_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    window: int = 2,
    padding: bool = True,
    transitions: Optional[list[str]] = None,
    functions: Optional[Settings] = None,
) -> FeatureSet:
    """Features for one tag per token: words, alone and in a row, affixes, shapes and character n-grams around the token
    (``spacy_crf.tagger_features.v1``). The parameters are those of `spacy_crf.ner_features.v1`."""
    owner = "spacy_crf.tagger_features.v1"
    reach = checks.count(owner, "window", window, least=0, most=WIDEST_OFFSET)
    templates = [
        "bias",
        f"lower[-{reach}..{reach}]",
        "shape[-1..1]",
        "orth[0]",
        "short_shape[0]",
        "folded[0]",
        *_AFFIXES,
        "suffix5[0]",
        *_NGRAMS,
        "suffix2[-1]",
        "suffix2[1]",
        "suffix3[-1]",
        "suffix3[1]",
        "has_hyphen[0]",
        "has_digit[0]",
        *pairs(reach),
        "lower[-1]|lower[1]",
        "lower[-1]|lower[0]|lower[1]",
        "suffix3[-1]|suffix3[0]",
    ]
    templates = changed(owner, templates, extra, without)
    return FeatureSet(templates, transitions, padding, functions)


# Found by cross-validation on the training data of multilegal_sbd_pt, multilegal_sbd_fr and ewt_raw: other windows, and templates
# more or less, differ by less than 0.5 F1
def senter_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    window: int = 5,
    padding: bool = True,
    transitions: Optional[list[str]] = None,
    functions: Optional[Settings] = None,
) -> FeatureSet:
    """Features for starts of sentences: words and shapes around the token, affixes and white space on both sides of the possible
    start, and pairs across it (``spacy_crf.senter_features.v1``). The parameters are those of `spacy_crf.ner_features.v1`."""
    owner = "spacy_crf.senter_features.v1"
    reach = checks.count(owner, "window", window, least=0, most=WIDEST_OFFSET)
    around = f"[-{reach}..{reach}]"
    templates = [
        "bias",
        f"lower{around}",
        f"short_shape{around}",
        "orth[-1..0]",
        "prefix1[-1..1]",
        "suffix1[-2..0]",
        "suffix2[-2..-1]",
        "suffix3[-2..-1]",
        "length[-2..0]",
        "spacy[-2..0]",
        "is_title[-1..1]",
        "is_punct[-2..1]",
        *pairs(min(reach, 2)),
        "lower[-2]|lower[-1]|lower[0]",
        "lower[-1]|lower[0]|lower[1]",
        "short_shape[-1]|short_shape[0]",
        "short_shape[-2]|short_shape[-1]|short_shape[0]",
        "short_shape[-1]|short_shape[0]|short_shape[1]",
        "lower[-1]|short_shape[0]",
        "lower[-2]|lower[-1]|short_shape[0]",
        "short_shape[-1]|lower[0]",
        "suffix1[-1]|spacy[-1]|short_shape[0]",
        "length[-2]|lower[-1]|short_shape[0]",
    ]
    templates = changed(owner, templates, extra, without)
    return FeatureSet(templates, transitions, padding, functions)


# Found by `tests.benchmarks.textcat_search`: cross-validation on the training data of the intents of snips
_TEXT_TEMPLATES = [
    "lower[0]",
    "lower[-1]|lower[0]",
    "orth[0]",
    "orth[-1]|orth[0]",
    *(f"{side}{n}[0]" for side, n in product(("prefix", "suffix"), range(2, 5))),
]


def text_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    padding: bool = True,
    functions: Optional[Settings] = None,
) -> FeatureSet:
    """Features for labels of texts: words, alone and two in a row, and their affixes (``spacy_crf.text_features.v1``).

    extra (List[str]): More templates, such as ``shape[0]`` or ``cluster[0]``.
    without (List[str]): Templates to leave out, such as ``lower[-1]|lower[0]``.
    padding (bool): Whether positions outside the text have their own values, so that features can mark the first word.
    functions (Dict[str, Callable]): Functions of Docs that templates read as ``fn:NAME[0]``, and of words, ``word:NAME[0]``.
    """
    return FeatureSet(changed("spacy_crf.text_features.v1", _TEXT_TEMPLATES, extra, without), None, padding, functions)


def changed(
    owner: str,
    templates: list[str],
    extra: Optional[list[str]],
    without: Optional[list[str]],
    parse: Callable[[str], Sequence[object]] = parse_template,
) -> list[str]:
    """The templates of a preset, minus those of `without`, plus those of `extra`.

    owner (str): The registered name of the preset, for messages.
    parse (Callable): Parses a line into the templates that it stands for.
    RAISES (ValueError): CRF020 for a template to leave out that the preset does not have.
    """
    extra = checks.listed(owner, "extra", extra, "templates")
    remaining = dict.fromkeys(map(str, chain.from_iterable(map(parse, templates))))
    for line in checks.listed(owner, "without", without, "templates"):
        for template in map(str, parse(line)):
            is_there = template in remaining
            checks.expect(is_there, owner, "without", line, f"templates that are there: {', '.join(templates)}")
            del remaining[template]
    return [*remaining, *extra]
