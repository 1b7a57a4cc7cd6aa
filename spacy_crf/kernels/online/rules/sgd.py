"""Stochastic gradient descent with l1 (`blocks.descend_sequence` is the one without)."""

from ... import helper, kernel


@helper
def sgd_l1(slots, amounts, weights, settings, seen, scaling, paid):
    """`descend_sequence` with the cumulative penalty of Tsuruoka, Tsujii & Ananiadou 2009, figure 2.

    settings: As of SGD, and the weight of |w| per sequence. paid (float64[M]): q, what each weight was charged.
    """
    decay, rate, offset, l1 = settings
    rate /= offset + seen
    scaling[0] *= 1.0 - rate * decay
    scaling[1] += rate * l1
    for n in range(len(slots)):
        slot = slots[n]
        weights[slot] -= rate / scaling[0] * amounts[n]
        weights[slot] = _charge(weights[slot] * scaling[0], scaling[1], paid, slot) / scaling[0]


@helper
def _charge(weight, due, paid, slot):
    before = weight
    if weight > 0.0:
        weight = max(0.0, weight - (due + paid[slot]))
    elif weight < 0.0:
        weight = min(0.0, weight + (due - paid[slot]))
    paid[slot] += weight - before
    return weight


@kernel
def charge_all(learned, weights, scale, due, paid):
    """Brings every weight up to date, the used and the unused."""
    for slot in range(len(weights)):
        if learned[slot]:
            weights[slot] = _charge(weights[slot] * scale, due, paid, slot) / scale
