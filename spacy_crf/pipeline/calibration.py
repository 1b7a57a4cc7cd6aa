"""How far probabilities can be trusted: of the spans to which the component gives 80 %, are 80 % right?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.training import Example

from .annotation.annotation import Annotation

N_BINS = 10


def calibration(probabilities: NDArray[np.float64], right: NDArray[np.bool_]) -> dict[str, Any]:
    """Calibration of probabilities against what came true.

    probabilities (float64[N]), right (bool[N])
    RETURNS (Dict[str, Any]): "calibration", ten bins with their bounds, the number of spans, their mean probability and the share
        that is right (None where there are no spans); "calibration_error", the mean distance of the two, weighted by the spans
        (Naeini et al. 2015); "brier", the mean squared distance of probability and truth. The last two are None without any span.
    """
    bins, error = [], 0.0
    number = np.minimum((probabilities * N_BINS).astype(np.int64), N_BINS - 1)
    for n in range(N_BINS):
        inside = number == n
        count = int(inside.sum())
        mean = float(probabilities[inside].mean()) if count else None
        share = float(right[inside].mean()) if count else None
        if count:
            error += count * abs(mean - share)
        bins.append({"from": n / N_BINS, "to": (n + 1) / N_BINS, "spans": count, "probability": mean, "right": share})
    total = len(probabilities)
    return {
        "calibration": bins,
        "calibration_error": error / total if total else None,
        "brier": float(((probabilities - right) ** 2).mean()) if total else None,
    }


def score_calibration(annotation: Annotation, examples: Iterable[Example]) -> dict[str, Any]:
    """Calibration of the spans found, by their ``crf_prob``, under the names ``ents_…`` (``tags_…`` for taggers).

    Spans whose gold annotation is missing say nothing.
    """
    probabilities, right = [], []
    for example in examples:
        for probability, is_right in annotation.judged(example):
            if probability is not None:
                probabilities.append(probability)
                right.append(is_right)
    found = calibration(np.array(probabilities, dtype=np.float64), np.array(right, dtype=bool))
    return {f"{annotation.scores_prefix}_{name}": value for name, value in found.items()}
