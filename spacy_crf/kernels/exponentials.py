"""exp of rows of scores minus their maximum, in loops that LLVM vectorises. (For numpy's exp it calls a function for each number,
which takes twice as long.)"""

import math

import numpy as np

from . import helper

LEAST = -700.0  # the smallest argument of exp
_INVERSE = 1.0 / math.log(2.0)
# log(2) in two parts: the product of a whole number and the first part is exact
_UPPER = float.fromhex("0x1.62e42fee00000p-1")
_LOWER = float.fromhex("0x1.a39ef35793c76p-33")
_ROUND = 1.5 * 2.0**52  # adding it rounds a number, and puts the whole number into the last bits
# exponent of a float64 minus the true one, and number of bits of its fraction
_BIAS = 1023
_FRACTION = 52


@helper(in_place=True, fastmath={"nnan", "nsz"}, forceinline=True)
def extremes(rows, t):
    """The largest score in a row of scores (float64[n, P]), and the smallest that is not -inf; -inf and inf if there is none.
    (LLVM vectorises a maximum only if it may ignore NaN and the sign of 0; other numbers stay what they are.)"""
    largest = -np.inf
    smallest = np.inf
    for j in range(rows.shape[1]):
        score = rows[t, j]
        largest = max(largest, score)
        smallest = min(smallest, score if score > -np.inf else np.inf)
    return largest, smallest


@helper(in_place=True, fastmath={"contract"}, forceinline=True)
def exp(x):
    """exp(x) for numbers from LEAST to -LEAST, exact to one unit in the last place: 2^n · exp(r), with r between -log(2) / 2 and
    log(2) / 2 and thirteen terms of the series of exp(r). LLVM vectorises loops around this function."""
    # n = round(x / log 2), r = x - n log 2, exp(x) = 2^n exp(r)
    rounded = x * _INVERSE + _ROUND
    n = rounded - _ROUND
    r = (x - n * _UPPER) - n * _LOWER
    y = 1.0 / 39916800.0 + r * (1.0 / 479001600.0)
    y = 1.0 / 3628800.0 + r * y
    y = 1.0 / 362880.0 + r * y
    y = 1.0 / 40320.0 + r * y
    y = 1.0 / 5040.0 + r * y
    y = 1.0 / 720.0 + r * y
    y = 1.0 / 120.0 + r * y
    y = 1.0 / 24.0 + r * y
    y = 1.0 / 6.0 + r * y
    y = 0.5 + r * y
    y = 1.0 + r * y
    y = 1.0 + r * y
    power = (np.float64(rounded).view(np.int64) + _BIAS) << _FRACTION  # n becomes the exponent of a float64
    return y * np.int64(power).view(np.float64)


@helper(in_place=True, fastmath={"contract"}, forceinline=True)
def exp_less(rows, t, largest, least):
    """rows[t] = exp(rows[t] - largest), with 0 where the difference is below `least`; NaN stays NaN.

    rows (float64[n, P]): Scores. largest (float64): Upper bound of row t.
    least (float64): LEAST, or -SPREAD for numbers that will be multiplied with each other.
    """
    for j in range(rows.shape[1]):
        difference = rows[t, j] - largest
        value = exp(max(difference, least))
        rows[t, j] = 0.0 if difference < least else value


@helper(in_place=True)
def exp_row(source, row, largest, target, to, least):
    """target[to] = exp(source[row] - largest), with 0 where the difference is below `least`, in two loops: since the arrays might
    overlap, LLVM does not vectorise one loop."""
    for j in range(target.shape[1]):
        target[to, j] = source[row, j]
    exp_less(target, to, largest, least)
