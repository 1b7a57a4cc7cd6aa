"""Asking for numbers before they are read: where no cache of a core holds a table, a row takes as long to come as to be added."""

from llvmlite import ir
from numba import types
from numba.core import cgutils

from .llvm_code import with_loops

LARGE = 3 << 17  # numbers of a table (3 MB): of one of 2.3 MB it took more time than it saved, of one of 3.5 MB less
AHEAD = 3  # rows, of what is read one after the other
_LINE = 64  # bytes

_INT, _LONG = ir.IntType(32), ir.IntType(64)
_TO_READ, _ALL_CACHES, _DATA = _INT(0), _INT(3), _INT(1)


def _fetch_nothing(array, begin, end):
    pass


@with_loops(_fetch_nothing)
def fetch(typing, array, begin, end):
    """Have array[begin:end], of an array taken as flat, in the caches soon. It may reach beyond the array's end."""

    def generate(context, builder, signature, arguments):
        pointer_type = ir.IntType(8).as_pointer()
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        begin, end = (builder.bitcast(builder.gep(data, [place]), pointer_type) for place in arguments[1:])
        length = builder.sub(*(builder.ptrtoint(pointer, _LONG) for pointer in (end, begin)))
        function = ir.FunctionType(ir.VoidType(), [pointer_type, _INT, _INT, _INT])
        prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8")
        with cgutils.for_range_slice(builder, _LONG(0), length, _LONG(_LINE), _LONG) as (n, _):
            builder.call(prefetch, [builder.gep(begin, [n]), _TO_READ, _ALL_CACHES, _DATA])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate
