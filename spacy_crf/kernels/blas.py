"""Keeps numba from looking for BLAS before anyone multiplies matrices.

With the first kernel, even one that it finds in its cache, numba imports `scipy.linalg`, to know whether it is there, which
takes 0.1 to 0.2 s of CPU time. Whether scipy has what numba needs, numba asks again when it compiles a product of matrices, and
no kernel of ours has one; scipy is installed where this package is.
"""

import importlib

from numba.np import linalg


def postpone_search() -> None:
    """numba's functions on arrays are loaded, and take it that there is BLAS."""
    search = getattr(linalg, "ensure_blas", None)
    if search is None:
        return  # a numba that looks for it elsewhere
    linalg.ensure_blas = _found
    try:
        arraymath = importlib.import_module("numba.np.arraymath")
    finally:
        linalg.ensure_blas = search
    if getattr(arraymath, "ensure_blas", None) is _found:
        arraymath.ensure_blas = search


def _found() -> None:
    pass
