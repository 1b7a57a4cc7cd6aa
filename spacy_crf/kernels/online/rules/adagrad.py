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
def catch_up(first, size, weights, settings, seen, regularized, squares):
    """So many proximal steps w <- max(0, |w| - eta l1) / (1 + 2 eta l2) without a gradient in between, as one, for slots that are
    used together.

    regularized (float64[M]): Up to which step each weight is.
    """
    rate, epsilon, l1, l2 = settings
    last = 0.0
    for slot in range(first, first + size):  # that of those that are weights
        last = max(last, regularized[slot])
        regularized[slot] = seen
    steps = seen - last
    if steps <= 0.0:
        return
    for slot in range(first, first + size):
        if squares[slot] == 0.0 or weights[slot] == 0.0:
            continue
        eta = rate / (epsilon + math.sqrt(squares[slot]))
        excess = 2.0 * eta * l2
        # By squaring: a general power took two thirds of a pass
        power, square, n = 1.0, 1.0 / (1.0 + excess), np.int64(steps)
        while n > 0:
            if n & 1:
                power *= square
            square *= square
            n >>= 1
        # The sum of all powers up to there; as a series where 1 - power would have few digits, or none
        if steps * excess < 1e-4:
            charged = steps * (1.0 - 0.5 * (steps + 1.0) * excess * (1.0 - (steps + 2.0) / 3.0 * excess))
        else:
            charged = (1.0 - power) / excess
        left = abs(weights[slot]) * power - eta * l1 * charged
        weights[slot] = np.sign(weights[slot]) * max(0.0, left)


@kernel
def catch_up_all(learned, weights, settings, seen, regularized, squares):
    """Brings every weight up to date with the regularizer."""
    for slot in range(len(weights)):
        if learned[slot]:
            catch_up(slot, np.int64(1), weights, settings, seen, regularized, squares)
