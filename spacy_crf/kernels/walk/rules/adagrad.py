"""A learning rate for each weight (Duchi, Hazan & Singer 2011), which catches up with the regularizers when it is used."""

import math

import numpy as np

from ... import helper, kernel


@helper
def adagrad(slots, amounts, weights, settings, squares):
    """Duchi, Hazan & Singer 2011, section 5.1 (composite mirror descent), each weight catching up when it is used.

    settings: The learning rates' numerator, and what is added to their denominators; weights of |w| and w² per sequence.
    squares (float64[M]): Sums of the squared gradients.
    """
    for n in range(len(slots)):
        squares[slots[n]] += amounts[n] ** 2
        weights[slots[n]] -= settings[0] / (settings[1] + math.sqrt(squares[slots[n]])) * amounts[n]


@helper
def catch_up(slot, weights, settings, seen, regularized, squares):
    """So many proximal steps w <- max(0, |w| - eta l1) / (1 + 2 eta l2) without a gradient in between, as one.

    regularized (float64[M]): Up to which step each weight is.
    """
    rate, epsilon, l1, l2 = settings
    steps = seen - regularized[slot]
    regularized[slot] = seen
    if squares[slot] == 0.0 or steps <= 0.0 or weights[slot] == 0.0:
        return
    eta = rate / (epsilon + math.sqrt(squares[slot]))
    shrink = 1.0 / (1.0 + 2.0 * eta * l2)
    power = shrink**steps
    charged = steps if l2 == 0.0 else shrink * (1.0 - power) / (1.0 - shrink)
    size = abs(weights[slot]) * power - eta * l1 * charged
    weights[slot] = np.sign(weights[slot]) * max(0.0, size)


@kernel
def catch_up_all(learned, weights, settings, seen, regularized, squares):
    """Brings every weight up to date with the regularizer."""
    for slot in range(len(weights)):
        if learned[slot]:
            catch_up(slot, weights, settings, seen, regularized, squares)
