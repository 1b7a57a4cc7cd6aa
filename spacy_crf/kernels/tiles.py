"""Products of matrices, tile by tile: the sums of a tile stay in registers until they are complete.

Plain loops took up to two and a half times as long: LLVM vectorises only the innermost loop, which is as short as a row of our
matrices, and either sums up each vector at the end or loads and stores the sums for every product. So tiles are written in LLVM
IR, as vectors of eight numbers, which LLVM splits on machines with shorter vectors.

Each sum adds its terms in their order, whatever the tile. Rows of matrices are whole vectors; products are fastest where rows
begin with a cache line.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .llvm_code import with_loops

WHOLE = 8  # numbers in a vector
# Vectors of sums that fit the registers, with AVX-512 and without; more than so many of one row are no faster
_MOST = 16
_FEW = 4
_OF_ROW = 8

INT = ir.IntType(64)
VECTOR = ir.VectorType(ir.DoubleType(), WHOLE)
_FUSED = ("contract",)


def _add_up_by_loops(width, n, left, a, a_step, right, b, b_step, sums, s):
    """`add_up`, where the IR does not compile."""
    left = left.reshape(-1)
    right = right.reshape(-1)
    sums = sums.reshape(-1)
    for i in range(len(s)):
        for k in range(n):
            for j in range(width):  # arrays would be made for products of arrays
                sums[s[i] + j] += left[a[i] + k * a_step] * right[b + k * b_step + j]


@with_loops(_add_up_by_loops)
def add_up(typing, width, n, left, a, a_step, right, b, b_step, sums, s):
    """sums[s[i] + j] += sum_k left[a[i] + k · a_step] · right[b + k · b_step + j], for each i; arrays count as flat.

    width (int): Upper bound of j, a multiple of WHOLE. n (int): Upper bound of k. a, s (tuple[int, ...]): For each row of a tile.
    """
    height = len(a)

    def generate(context, builder, signature, arguments):
        width, n, _, a, a_step, _, b, b_step, _, s = arguments

        def data_of(argument):
            return context.make_array(signature.args[argument])(context, builder, arguments[argument]).data

        left = data_of(2)
        right = data_of(5)
        sums = data_of(8)
        # Each row of the tile has its own factor and sums, and all share the vectors of `right`
        factors = [(left, builder.extract_value(a, i), a_step) for i in range(height)]
        targets = [builder.extract_value(s, i) for i in range(height)]
        registers = _MOST if "+avx512f" in context.codegen().magic_tuple()[2] else _FEW
        most = max(1, min(registers // height, _OF_ROW))

        def add_tile(column, n_vectors):
            rows = right, builder.add(b, column), b_step
            places = [_vectors_at(builder, sums, builder.add(to, column), n_vectors) for to in targets]
            _generate(builder, n, factors, rows, places)

        # Tiles of `most` vectors, then one of the width that is left
        rest = builder.urem(width, INT(most * WHOLE))
        whole = builder.sub(width, rest)
        with cgutils.for_range_slice(builder, INT(0), whole, INT(most * WHOLE), INT) as (column, _):
            add_tile(column, most)
        for n_vectors in range(1, most):
            with builder.if_then(builder.icmp_signed("==", rest, INT(n_vectors * WHOLE))):
                add_tile(whole, n_vectors)
        return context.get_dummy_value()

    whole = types.int64
    places = types.UniTuple(types.int64, height)
    return types.void(whole, whole, left, places, whole, right, whole, whole, sums, places), generate


def _generate(builder, n, factors, rows, places):
    """Code for one tile: the loop over k.

    factors, rows: Arrays: pointer, first place, and step from k to k + 1; `factors` has one for each row of the tile.
    places: Pointers to the sums, row by row.
    """
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first_lane = ir.Constant(ir.IntType(32), 0)
    of_first = ir.Constant(ir.VectorType(ir.IntType(32), WHOLE), [0] * WHOLE)
    before = builder.block
    head, body, behind = [builder.append_basic_block(name) for name in ("next", "products", "sums")]
    old = [_load(builder, row) for row in places]
    builder.branch(head)

    builder.position_at_end(head)
    k = builder.phi(INT)
    k.add_incoming(INT(0), before)
    totals = []  # a phi node for each vector of sums, row by row
    for row in places:
        totals.append([builder.phi(VECTOR) for _ in row])
    builder.cbranch(builder.icmp_signed("<", k, n), body, behind)

    builder.position_at_end(body)
    pointer, begin, step = rows
    at = builder.add(begin, builder.mul(k, step))
    vectors = _load(builder, _vectors_at(builder, pointer, at, len(places[0])))
    for (pointer, begin, step), of_row, old_of_row in zip(factors, totals, old):
        at = builder.add(begin, builder.mul(k, step))
        number = builder.load(builder.gep(pointer, [at]))
        # A vector that repeats the number
        factor = builder.shuffle_vector(builder.insert_element(undefined, number, first_lane), undefined, of_first)
        for vector, total, first in zip(vectors, of_row, old_of_row):
            product = builder.fmul(factor, vector, flags=_FUSED)
            total.add_incoming(first, before)
            total.add_incoming(builder.fadd(total, product, flags=_FUSED), body)
    k.add_incoming(builder.add(k, INT(1)), body)
    builder.branch(head)

    builder.position_at_end(behind)
    for row, of_row in zip(places, totals):
        for place, total in zip(row, of_row):
            builder.store(total, place, align=8)


def _vectors_at(builder, pointer, begin, n):
    """Pointers to n vectors that stand end to end from a place on."""
    places = [builder.gep(pointer, [builder.add(begin, INT(v * WHOLE))]) for v in range(n)]
    return [builder.bitcast(place, VECTOR.as_pointer()) for place in places]


def _load(builder, pointers):
    return [builder.load(pointer, align=8) for pointer in pointers]
