"""Products of matrices, tile by tile: the sums of a tile stay in registers until they are complete.

As loops they took up to two and a half times as long. LLVM makes vectors of the innermost loop alone, which is as short as a row
of our matrices: either it adds up the parts of each vector in the end, or it loads and stores the sums for every product. So
tiles are written in LLVM's own language, as vectors of eight numbers, of which it makes several where a machine's are shorter.

Each sum is formed in the order of what is added up, whatever is at hand beside it. Rows of matrices are whole vectors; it is
fastest where they begin with a cache line.
"""

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from . import helper
from .numerics import LANES

WHOLE = 8  # numbers of a vector
# Vectors of sums that there are registers for, with AVX-512 and elsewhere; more than so many of a row are no faster
_MOST, _FEW, _OF_ROW = 16, 4, 8

INT = ir.IntType(64)
VECTOR = ir.VectorType(ir.DoubleType(), WHOLE)
_FUSED = ("contract",)


def _add_up(height, width, n, left, a, a_step, right, b, b_step, sums, s, s_step):
    """sums[s + i · s_step + j] += sum_k left[a + k · a_step + i] · right[b + k · b_step + j], of arrays taken as flat.

    height (int): What i is below, a literal. width (int): What j is below, a multiple of WHOLE. n (int): What k is below.
    """
    i, j, k = np.arange(height), np.arange(width), np.arange(n)[:, np.newaxis]
    left, right, sums = left.reshape(-1), right.reshape(-1), sums.reshape(-1)
    sums[s + i[:, np.newaxis] * s_step + j] += left[a + k * a_step + i].T @ right[b + k * b_step + j]


def _typed_add_up(typing, height, width, n, left, a, a_step, right, b, b_step, sums, s, s_step):
    """The same for numba."""
    rows = range(height.literal_value)

    def generate(context, builder, signature, arguments):
        pointers = [context.make_array(signature.args[m])(context, builder, arguments[m]).data for m in (3, 6, 9)]
        arrays = [*zip(pointers, arguments[4::3], arguments[5::3])]
        registers = _MOST if "+avx512f" in context.codegen().magic_tuple()[2] else _FEW
        most = min(registers // len(rows), _OF_ROW)
        rest = builder.urem(arguments[1], INT(most * WHOLE))
        whole = builder.sub(arguments[1], rest)
        with cgutils.for_range_slice(builder, INT(0), whole, INT(most * WHOLE), INT) as (column, _):
            _generate(builder, rows, range(most), arguments[2], *_moved(builder, arrays, column))
        for n_vectors in range(1, most):
            with builder.if_then(builder.icmp_signed("==", rest, INT(n_vectors * WHOLE))):
                _generate(builder, rows, range(n_vectors), arguments[2], *_moved(builder, arrays, whole))
        return context.get_dummy_value()

    places = [types.int64, types.int64]
    return types.void(height, types.int64, types.int64, left, *places, right, *places, sums, *places), generate


def _moved(builder, arrays, column):
    """To a column of sums."""
    left, *others = arrays
    return left, *((pointer, builder.add(begin, column), step) for pointer, begin, step in others)


def _generate(builder, rows, vectors, n, left, right, sums):
    """A tile: the loop over k. An array is a pointer, where to begin, and the step from row to row."""
    before = builder.block
    head, body, behind = [builder.append_basic_block(name) for name in ("next", "products", "sums")]
    tile = [(i, v) for i in rows for v in vectors]
    places = {(i, v): _vector_at(builder, sums, INT(i), v) for i, v in tile}
    old = {place: builder.load(pointer, align=8) for place, pointer in places.items()}
    builder.branch(head)

    builder.position_at_end(head)
    k = builder.phi(INT)
    k.add_incoming(INT(0), before)
    totals = {place: builder.phi(VECTOR) for place in tile}
    builder.cbranch(builder.icmp_signed("<", k, n), body, behind)

    builder.position_at_end(body)
    row = [builder.load(_vector_at(builder, right, k, v), align=8) for v in vectors]
    factors = [_everywhere(builder, builder.load(_pointer(builder, left, k, i))) for i in rows]
    for i, v in tile:
        product = builder.fmul(factors[i], row[v], flags=_FUSED)
        totals[i, v].add_incoming(old[i, v], before)
        totals[i, v].add_incoming(builder.fadd(totals[i, v], product, flags=_FUSED), body)
    k.add_incoming(builder.add(k, INT(1)), body)
    builder.branch(head)

    builder.position_at_end(behind)
    for place, pointer in places.items():
        builder.store(totals[place], pointer, align=8)


def _pointer(builder, array, row, column):
    pointer, begin, step = array
    return builder.gep(pointer, [builder.add(builder.add(begin, builder.mul(row, step)), INT(column))])


def _vector_at(builder, array, row, v):
    return builder.bitcast(_pointer(builder, array, row, v * WHOLE), VECTOR.as_pointer())


def _everywhere(builder, number):
    """A vector of nothing else."""
    undefined, first = ir.Constant(VECTOR, ir.Undefined), ir.Constant(ir.IntType(32), 0)
    of_first = ir.Constant(ir.VectorType(ir.IntType(32), WHOLE), [0] * WHOLE)
    return builder.shuffle_vector(builder.insert_element(undefined, number, first), undefined, of_first)


if numba.config.DISABLE_JIT:
    add_up = _add_up
else:
    add_up = intrinsic(prefer_literal=True)(_typed_add_up)


@helper(forceinline=True)
def add_product(rows, s, first, matrices, k, target, t, to):
    """target[t, to + j] += sum_i rows[s, first + i] · matrices[k, i, j].

    rows (float64[n, P]), matrices (float64[m, R, C]), target (float64[n, P]): C is a multiple of WHOLE.
    """
    height, width = matrices.shape[1:]
    row, matrix, sums = s * rows.shape[1] + first, k * height * width, t * target.shape[1] + to
    add_up(1, width, height, rows, row, 1, matrices, matrix, width, target, sums, 0)


@helper(forceinline=True)
def add_products_of_neighbours(left, first, right, matrix):
    """matrix[0, i, j] += sum_t left[t - 1, first + i] · right[t, j].

    left, right (float64[n, P]), matrix (float64[1, R, C]): R is a multiple of LANES, C of WHOLE.
    """
    tokens, wide = left.shape
    height, width = matrix.shape[1:]
    for i in range(0, height if tokens > 1 else 0, LANES):  # of no tokens there may be no matrix
        add_up(LANES, width, tokens - 1, left, first + i, wide, right, wide, wide, matrix, i * width, width)
