"""The registered feature sets of tokens: one to fill in, and those that are good without tuning."""

from collections.abc import Callable
from typing import Any, Optional

from .. import checks
from .extractor import FeatureSet
from .lexemes import Padding
from .templates import WIDEST_OFFSET, parse_template

# ``functions`` are Any below: confection would check the type against a block that it has not called yet, and refuse it.

# Found by `tests.benchmarks.feature_search`, on training data alone. N-grams of characters gain 0.4 F1 in the mean (1.6 on
# wnut17), words with zeros for digits and flags that say nothing where they are false 0.1 each, two and three words in a row 1.0
# on mit_restaurant and 0.3 on snips, whose words are few and say little alone
_AFFIXES = [f"{side}{n}[0]" for side in ("prefix", "suffix") for n in range(1, 5)]
_NGRAMS = ["ngrams3[0]", "ngrams4[0]"]


def pairs(window: int) -> list[str]:
    return [f"lower[{n}]|lower[{n + 1}]" for n in range(-window, window)]


def _triples(window: int) -> list[str]:
    return [f"lower[{n - 1}]|lower[{n}]|lower[{n + 1}]" for n in range(1 - window, window)]


def ner_templates(window: int, words_in_a_row: list[str]) -> list[str]:
    around = f"[-{window}..{window}]"
    return [
        "bias",
        f"lower{around}",
        f"shape{around}",
        "orth[0]",
        "folded[-1..1]",
        *_AFFIXES,
        *_NGRAMS,
        *words_in_a_row,
        "shape[-1]|shape[0]|shape[1]",
        *(f"if:{flag}{around}" for flag in ("is_title", "is_upper", "is_digit", "has_hyphen")),
    ]


def tagger_templates(window: int, words_in_a_row: list[str]) -> list[str]:
    return [
        "bias",
        f"lower[-{window}..{window}]",
        "shape[-1..1]",
        "orth[0]",
        "short_shape[0]",
        "folded[0]",
        *_AFFIXES,
        "suffix5[0]",
        *_NGRAMS,
        *(f"suffix{n}[{offset}]" for n in (2, 3) for offset in (-1, 1)),
        "has_hyphen[0]",
        "has_digit[0]",
        *words_in_a_row,
        "suffix3[-1]|suffix3[0]",
    ]


def features(
    templates: list[str],
    transitions: Optional[list[str]] = None,
    padding: Padding = True,
    functions: Optional[dict[str, Any]] = None,
) -> FeatureSet:
    """Features as the user names them (``spacy_crf.features.v1``).

    templates (List[str]): Features of tags, in the template language.
    transitions (List[str]): Templates whose features weigh pairs of tags.
    padding (bool): Positions outside the sequence have values of their own; without, their templates are left out. Or
        the texts that stand there: a table of the lists "before" and "behind", the nearest first.
    functions (Dict[str, Callable[[Doc], List]]): Functions that templates read as ``fn:NAME[0]``.
    """
    return FeatureSet(templates, transitions, padding, functions)


def ner_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    window: int = 2,
    padding: bool = False,
    transitions: Optional[list[str]] = None,
    functions: Optional[dict[str, Any]] = None,
) -> FeatureSet:
    """Words, alone and up to three in a row, shapes, affixes and character n-grams around the token, for entities
    (``spacy_crf.ner_features.v3``).

    extra (List[str]): More templates, such as ``in:cities[-1..1]``.
    without (List[str]): Templates to leave out, such as ``shape[-2..2]``.
    window (int): How many words before and behind the token are read.
    padding (bool): Positions outside the sequence have values of their own.
    transitions (List[str]): Templates whose features weigh pairs of tags.
    functions (Dict[str, Callable[[Doc], List]]): Functions that templates read as ``fn:NAME[0]``.
    """
    owner = "spacy_crf.ner_features.v3"
    reach = checks.count(owner, "window", window, least=0, most=WIDEST_OFFSET)
    templates = changed(owner, ner_templates(reach, [*pairs(reach), *_triples(reach)]), extra, without)
    return FeatureSet(templates, transitions, padding, functions)


def tagger_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    window: int = 2,
    padding: bool = True,
    transitions: Optional[list[str]] = None,
    functions: Optional[dict[str, Any]] = None,
) -> FeatureSet:
    """Words, alone and in a row, affixes, shapes and character n-grams around the token, for one tag per token
    (``spacy_crf.tagger_features.v3``). Parameters as of `spacy_crf.ner_features.v3`."""
    owner = "spacy_crf.tagger_features.v3"
    reach = checks.count(owner, "window", window, least=0, most=WIDEST_OFFSET)
    words_in_a_row = [*pairs(reach), "lower[-1]|lower[1]", "lower[-1]|lower[0]|lower[1]"]
    templates = changed(owner, tagger_templates(reach, words_in_a_row), extra, without)
    return FeatureSet(templates, transitions, padding, functions)


# Found by `tests.benchmarks.textcat_search`: cross-validation on the training data of the intents of snips
_TEXT_TEMPLATES = [
    "lower[0]",
    "lower[-1]|lower[0]",
    "orth[0]",
    "orth[-1]|orth[0]",
    *(f"{side}{n}[0]" for side in ("prefix", "suffix") for n in range(2, 5)),
]


def text_features(
    extra: Optional[list[str]] = None,
    without: Optional[list[str]] = None,
    padding: bool = True,
    functions: Optional[dict[str, Any]] = None,
) -> FeatureSet:
    """Words, alone and two in a row, and their affixes, for labels of texts (``spacy_crf.text_features.v1``).

    extra (List[str]): More templates, such as ``shape[0]`` or ``cluster[0]``.
    without (List[str]): Templates to leave out, such as ``lower[-1]|lower[0]``.
    padding (bool): Positions outside the text have values of their own, so that its first word is known as such.
    functions (Dict[str, Callable[[Doc], List]]): Functions that templates read as ``fn:NAME[0]``.
    """
    return FeatureSet(changed("spacy_crf.text_features.v1", _TEXT_TEMPLATES, extra, without), None, padding, functions)


def changed(
    owner: str, templates: list[str], extra: Any, without: Any, parse: Callable[[str], list[Any]] = parse_template
) -> list[str]:
    """A preset with more templates and without some. RAISES (ValueError): CRF020 for one that it does not have.

    parse (Callable): From a line to the templates that it stands for.
    """
    extra = checks.listed(owner, "extra", extra, "templates")
    kept = dict.fromkeys(str(template) for line in templates for template in parse(line))
    for line in checks.listed(owner, "without", without, "templates"):
        for template in map(str, parse(line)):
            checks.expect(template in kept, owner, "without", line, f"templates that are there: {', '.join(templates)}")
            del kept[template]
    return [*kept, *extra]
