"""Functions of kernels in LLVM IR, each with a Python loop that replaces it where the IR does not compile.

The IR changes between versions (typed pointers are gone, for example), and numba promises nothing about it. So the first
kernel that calls such a function compiles it alone first. If that fails, kernels use the loop: slower, with the same results.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..errors import Warnings, announcements
from . import config

_LINE = 64  # bytes of a cache line
_INT = ir.IntType(32)
_LONG = ir.IntType(64)
_TO_READ = _INT(0)
_ALL_CACHES = _INT(3)
_DATA = _INT(1)


def with_loops(loops: Any) -> Callable[[Any], Any]:
    """Decorator for an intrinsic (see `numba.extending.intrinsic`) with a fallback; kernels call the function that it returns.

    loops (Callable): The fallback: the same function in Python that numba can compile.
    """

    def decorate(typed):
        if config.DISABLE_JIT:
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


_known_to_compile: dict = {}  # by intrinsic


def _compiles(typed, arguments) -> bool:
    """Whether LLVM compiles the code that an intrinsic generates; each process tries once."""
    if typed not in _known_to_compile:
        function = intrinsic(typed)
        caller = numba.njit(lambda given: function(*given))
        try:
            caller.compile((types.Tuple([*map(types.unliteral, arguments)]),))
            _known_to_compile[typed] = True
        except Exception as error:  # any error of numba or LLVM
            is_first = False not in _known_to_compile.values()
            _known_to_compile[typed] = False
            reason = str(error).strip().splitlines() or [type(error).__name__]
            if is_first:
                announcements.warning(Warnings.CRFW043.format(version=numba.__version__, reason=reason[0][:200]))
    return _known_to_compile[typed]


def _fetch_nothing(array, begin, end):
    """Prefetch nothing: the loop in place of `fetch`."""


@with_loops(_fetch_nothing)
def fetch(typing, array, begin, end):
    """Prefetch elements begin to end - 1 of an array, flattened: if a table is larger than a core's cache, loading a row takes as
    long as adding it. The range may reach beyond the end of the array."""

    def generate(context, builder, signature, arguments):
        pointer_type = ir.IntType(8).as_pointer()
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        begin, end = (builder.bitcast(builder.gep(data, [index]), pointer_type) for index in arguments[1:])
        n_bytes = builder.sub(builder.ptrtoint(end, _LONG), builder.ptrtoint(begin, _LONG))
        function = ir.FunctionType(ir.VoidType(), [pointer_type, _INT, _INT, _INT])
        prefetch = cgutils.get_or_insert_function(builder.module, function, "llvm.prefetch.p0i8")
        # One call for each line of the cache
        with cgutils.for_range_slice(builder, _LONG(0), n_bytes, _LONG(_LINE), _LONG) as (offset, _):
            builder.call(prefetch, [builder.gep(begin, [offset]), _TO_READ, _ALL_CACHES, _DATA])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64), generate
