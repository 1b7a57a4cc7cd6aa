"""The averaged perceptron (Collins 2002)."""

from ... import helper


@helper
def perceptron(slots, amounts, weights, seen, drift):
    """Figure 1: w += features(annotation) - features(best labelling).

    drift (float64[M]): Sum of all updates, each times the weight vectors before it, of which the zeros at the start are one:
        the average is weights - drift / vectors.
    """
    for n in range(len(slots)):
        weights[slots[n]] -= amounts[n]
        drift[slots[n]] -= (seen + 1.0) * amounts[n]
