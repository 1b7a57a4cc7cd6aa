"""Functions of kernels in LLVM's own language, each with loops that take its place where it doesn't compile.

The language changes from version to version (typed pointers went, say), and numba promises nothing about it. So the first kernel
that calls such a function compiles it alone before. If that fails, kernels use the loops: slower, with the same results.
"""

from functools import wraps

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..errors import Warnings, announcements

_LINE = 64  # bytes of a line of a cache
_INT, _LONG = ir.IntType(32), ir.IntType(64)
_TO_READ, _ALL_CACHES, _DATA = _INT(0), _INT(3), _INT(1)


def with_loops(loops):
    """Decorate the definition of an intrinsic (see `numba.extending.intrinsic`): kernels call what is returned.

    loops (Callable): The same function in Python, which numba can compile too.
    """

    def decorate(typed):
        if numba.config.DISABLE_JIT:
            return loops

        @intrinsic
        @wraps(typed)
        def chosen(typing, *arguments):
            signature, generate = typed(typing, *arguments)
            return signature, generate if _compiles(typed, arguments) else _generate_loops

        def _generate_loops(context, builder, signature, arguments):
            return context.compile_internal(builder, loops, signature, arguments)

        return chosen

    return decorate


_found: dict = {}


def _compiles(typed, arguments) -> bool:
    """Whether LLVM takes what an intrinsic generates: tried once in a process."""
    if typed not in _found:
        function = intrinsic(typed)
        try:
            numba.njit(lambda given: function(*given)).compile((types.Tuple([*map(types.unliteral, arguments)]),))
            _found[typed] = True
        except Exception as error:  # whatever numba or LLVM has against it
            is_first, _found[typed] = False not in _found.values(), False
            reason = str(error).strip().splitlines() or [type(error).__name__]
            if is_first:
                announcements.warning(Warnings.CRFW043.format(version=numba.__version__, reason=reason[0][:200]))
    return _found[typed]


def _fetch_nothing(array, begin, end):
    pass


@with_loops(_fetch_nothing)
def fetch(typing, array, begin, end):
    """Ask for array[begin:end], of an array taken as flat, before it is read: where no cache of a core holds a table, a row takes
    as long to come as to be added. The range may reach beyond the array's end."""

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
