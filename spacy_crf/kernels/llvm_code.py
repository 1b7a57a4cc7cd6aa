"""Functions of kernels in LLVM's own language, each with the loops that take its place where it doesn't compile.

The language changes from version to version (typed pointers went, say), and numba promises nothing about it. So the first kernel
that calls such a function compiles it alone before. If that fails, kernels use the loops: slower, with the same results.
"""

from functools import wraps

import numba
from numba import types
from numba.extending import intrinsic

from ..errors import Warnings, announcements


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
