"""`min_prob`: how probable something has to be in order to be found, one number for all labels or one for each."""

from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

import numpy as np

from .. import checks
from ..types import Floats

OTHERS = "*"  # the labels that are not named
MinProb = Union[float, dict[str, float]]


def check_min_prob(owner: str, value: Any) -> MinProb:
    """RAISES (ValueError): CRF020 for what is no probability, nor a table of them."""
    if not isinstance(value, Mapping):
        return checks.number(owner, "min_prob", value, most=1.0)
    table = checks.table(owner, "min_prob", value, "probabilities")
    return {label: checks.number(owner, f"min_prob of {label}", least, most=1.0) for label, least in table.items()}


def least_of_labels(name: str, value: MinProb, labels: Sequence[str]) -> Optional[Floats]:
    """The least probability of each label (float64[L]), None where nothing is too improbable.

    RAISES (ValueError): CRF020 for what is no probability, CRF846 for labels that the component does not have.
    """
    value = check_min_prob(f"Component '{name}'", value)
    if not isinstance(value, dict):
        return np.full(len(labels), value) if value > 0.0 else None
    checks.labels(f"Component '{name}', min_prob ('*' stands for all other labels)", value, [*labels, OTHERS])
    least = np.array([value.get(label, value.get(OTHERS, 0.0)) for label in labels])
    return least if least.any() else None
