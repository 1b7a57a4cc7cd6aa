"""Adaptive regularization of weight vectors (Crammer, Kulesza & Dredze 2009)."""

from ... import helper


@helper
def arow(slots, amounts, loss, factor, weights, settings, variance):
    """Figure 1, with a diagonal covariance.

    loss (float): Without the factor of the sequence, with the margin: the number of wrong tokens; costs are one already.
    settings: gamma, r of the paper. variance (float64[M]): How unsure each weight is. It only falls.
    RETURNS: The loss with the factor.
    """
    noise = settings[0] / factor
    loss = max(0.0, loss)
    confidence = 0.0
    for n in range(len(slots)):
        confidence += variance[slots[n]] * (amounts[n] / factor) ** 2
    alpha = loss / (confidence + noise)
    for n in range(len(slots)):
        slot, difference = slots[n], amounts[n] / factor
        weights[slot] -= alpha * variance[slot] * difference
        variance[slot] = 1.0 / (1.0 / variance[slot] + difference**2 / noise)
    return factor * loss
