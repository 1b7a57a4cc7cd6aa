"""The averaged perceptron (Collins 2002)."""

from ... import helper


@helper
def perceptron(slots, amounts, weights, settings, seen, drift):
    """Figure 1: w += unit · (features(annotation) - features(best labelling)).

    settings: unit.
    drift (float64[M]): Sum of all updates, each times the weight vectors before it, of which the zeros at the start are one:
        the average is weights - drift / vectors.
    """
    for n in range(len(slots)):
        weights[slots[n]] -= settings[0] * amounts[n]
        drift[slots[n]] -= (seen + 1.0) * settings[0] * amounts[n]
