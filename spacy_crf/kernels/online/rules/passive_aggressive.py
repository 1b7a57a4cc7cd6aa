"""Passive-aggressive learning (Crammer, Dekel, Keshet, Shalev-Shwartz & Singer 2006)."""

from ... import helper


@helper
def passive_aggressive(slots, amounts, loss, factor, weights, settings, seen, drift):
    """The smallest change after which the annotation wins by a margin.

    loss (float): Without the factor of the sequence, with the margin: 1, or the root of the number of wrong tokens; costs are one
        already.
    settings: kind, 0 for PA (eq. 6: tau = loss / |d|²), 1 for PA-I (at most c), 2 for PA-II (|d|² + 1 / 2c); c.
    drift: As in `perceptron`.
    RETURNS: The loss with the factor.
    """
    kind, c = settings[0], settings[1] * factor
    loss = max(0.0, loss)
    square = 0.0
    for n in range(len(slots)):
        square += (amounts[n] / factor) ** 2
    if kind == 2.0:
        tau = loss / (square + 0.5 / c)
    else:
        tau = loss / square if square > 0.0 else 0.0
        if kind == 1.0:
            tau = min(tau, c)
    for n in range(len(slots)):
        update = tau / factor * amounts[n]
        weights[slots[n]] -= update
        drift[slots[n]] -= (seen + 1.0) * update
    return factor * loss
