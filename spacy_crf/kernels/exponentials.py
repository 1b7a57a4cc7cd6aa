"""exp of rows of scores minus their maximum, in whole vectors.

numpy's exp and loops for minimum and maximum took twice as long: LLVM calls a function for each exp, and does not vectorise a
maximum that has to keep the sign of 0 and NaN, which scores do not need.
"""

import math

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from . import helper
from .llvm_code import with_loops
from .tiles import INT, VECTOR, WHOLE

LEAST = -700.0  # the smallest argument of exp
_INVERSE = 1.0 / math.log(2.0)
# log(2) in two parts: the product of a whole number and the first part is exact
_UPPER, _LOWER = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
_ROUND = 1.5 * 2.0**52  # adding it rounds a number, and puts the whole number into the last bits
_BIAS, _FRACTION = 1023, 52  # exponent of a float64 minus the true one, and number of bits of its fraction


def _power_by_loops(rounded):
    return math.ldexp(1.0, int(rounded - _ROUND)) if rounded == rounded else rounded  # NaN has no exponent


@with_loops(_power_by_loops)
def _two_to_the(typing, rounded):
    """2^n for n + _ROUND: n becomes the exponent of a float64."""

    def generate(context, builder, signature, arguments):
        exponent = builder.add(builder.bitcast(arguments[0], INT), INT(_BIAS))
        return builder.bitcast(builder.shl(exponent, INT(_FRACTION)), ir.DoubleType())

    return types.float64(types.float64), generate


def _extremes_by_loops(rows, t):
    largest, smallest = -np.inf, np.inf
    for j in range(rows.shape[1]):
        score = rows[t, j]
        if score > largest:
            largest = score
        if -np.inf < score < smallest:
            smallest = score
    return largest, smallest


@with_loops(_extremes_by_loops)
def extremes(typing, rows, t):
    """The largest score in a row of scores (float64[n, P], P a multiple of WHOLE), and the smallest that is not -inf; -inf and
    inf if there is none."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        width = builder.extract_value(array.shape, 1)
        begin = builder.mul(arguments[1], width)
        lowest, highest = (ir.Constant(VECTOR, [sign * math.inf] * WHOLE) for sign in (-1, 1))
        largest, smallest = (cgutils.alloca_once_value(builder, of_none) for of_none in (lowest, highest))
        with cgutils.for_range_slice(builder, INT(0), width, INT(WHOLE), INT) as (column, _):
            place = builder.gep(array.data, [builder.add(begin, column)])
            scores = builder.load(builder.bitcast(place, VECTOR.as_pointer()), align=8)
            possible = builder.select(builder.fcmp_ordered(">", scores, lowest), scores, highest)
            builder.store(_chosen(builder, ">", scores, builder.load(largest)), largest)
            builder.store(_chosen(builder, "<", possible, builder.load(smallest)), smallest)
        found = [_among(builder, ">", builder.load(largest)), _among(builder, "<", builder.load(smallest))]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(types.float64, 2)(rows, types.int64), generate


def _chosen(builder, which, numbers, others):
    return builder.select(builder.fcmp_ordered(which, numbers, others), numbers, others)


def _among(builder, which, vector):
    """The largest or smallest number of a vector."""
    distance = WHOLE // 2
    while distance:
        turned = ir.Constant(ir.VectorType(ir.IntType(32), WHOLE), [(n + distance) % WHOLE for n in range(WHOLE)])
        vector = _chosen(builder, which, builder.shuffle_vector(vector, vector, turned), vector)
        distance //= 2
    return builder.extract_element(vector, ir.IntType(32)(0))


@helper(fastmath={"contract"}, forceinline=True)
def exp(x):
    """exp(x) for numbers from LEAST to -LEAST, exact to one unit in the last place: 2^n · exp(r), with r between -log(2) / 2 and
    log(2) / 2 and thirteen terms of the series of exp(r). LLVM vectorises loops around this function."""
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
    return y * _two_to_the(rounded)


@helper(fastmath={"contract"}, forceinline=True)
def exp_less(rows, t, largest, least):
    """rows[t] = exp(rows[t] - largest), with 0 where the difference is below `least`; NaN stays NaN.

    rows (float64[n, P]): Scores. largest (float64): Upper bound of row t.
    least (float64): LEAST, or -SPREAD for numbers that will be multiplied with each other.
    """
    for j in range(rows.shape[1]):
        difference = rows[t, j] - largest
        value = exp(max(difference, least))
        rows[t, j] = 0.0 if difference < least else value


@helper
def exp_row(source, row, largest, target, to, least):
    """target[to] = exp(source[row] - largest), otherwise as `exp_less`. A single loop would call a function for each number,
    since the arrays might overlap."""
    for j in range(target.shape[1]):
        target[to, j] = source[row, j]
    exp_less(target, to, largest, least)
