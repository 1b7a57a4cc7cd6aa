"""Templates with all pairs of them, for feature induction."""

from itertools import combinations
from typing import Any, Optional

from spacy_crf.features.extractor import FeatureSet, is_vector, reads_outer
from spacy_crf.features.items import is_item
from spacy_crf.features.lexemes import NGRAMS, Padding
from spacy_crf.features.templates import Template, parse_templates


def feature_pairs(
    templates: list[str], padding: Padding = True, functions: Optional[dict[str, Any]] = None
) -> FeatureSet:
    """The templates, and each pair of them as one template (``spacy_crf_lab.feature_pairs.v1``).

    templates (List[str]): Templates of features of tags. No pairs are made with `bias`, `vector` and `outer`, and none of two
        attributes with several values or a number.
    padding (bool), functions (Dict[str, Callable]): See `spacy_crf.features.v1`.
    """
    return FeatureSet([*templates, *pairs(templates)], None, padding, functions)


def pairs(templates: list[str]) -> list[str]:
    """All pairs of templates."""
    joined = [t for t in parse_templates(templates) if str(t) != "bias" and not is_vector(t) and not reads_outer(t)]
    both = [Template(tuple(dict.fromkeys(one.parts + other.parts))) for one, other in combinations(joined, 2)]
    return [str(pair) for pair in both if sum(is_item(of) or of in NGRAMS for of, _ in pair.parts) < 2]
