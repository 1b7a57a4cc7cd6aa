"""A concave quadratic function over the simplex."""

import numpy as np

from spacy_crf.types import Floats

_ROUNDING = 1e-13


def mixture(products: Floats, offsets: Floats, shares: Floats) -> Floats:
    """The maximum of ``offsets·x - x·products·x / 2`` where x >= 0 sums to 1, by an active set (Nocedal & Wright 2006, section
    16.5).

    products (float64[M, M]): Positive semidefinite. shares (float64[M]): Where the search begins.
    """
    x = shares / shares.sum()
    least = _ROUNDING * (1.0 + np.abs(offsets).max() + np.abs(products).max())
    # Planes may be equal, so that without more on the diagonal there is no single maximum
    products = products + np.eye(len(x)) * (_ROUNDING * np.trace(products) / len(x) + np.finfo(np.float64).tiny)
    active = x > 0.0
    for _ in range(20 * len(x)):
        some = np.flatnonzero(active)
        # [products 1; 1 0] (x, level) = (offsets, 1): the maximum where the active x sum to 1
        system = np.ones((len(some) + 1, len(some) + 1))
        system[:-1, :-1] = products[np.ix_(some, some)]
        system[-1, -1] = 0.0
        *found, level = np.linalg.solve(system, np.append(offsets[some], 1.0))
        goal = np.zeros_like(x)
        goal[some] = found
        falling = active & (goal < 0.0)
        if falling.any():  # go there as far as all stay positive
            way = np.where(falling, x / np.where(falling, x - goal, 1.0), np.inf)
            first = int(way.argmin())
            x = x + way[first] * (goal - x)
            x[first] = 0.0
            active[first] = False
            continue
        x = goal
        # The multiplier of each bound x >= 0: a positive one says that the share should grow
        gains = np.where(active, -np.inf, offsets - products @ x - level)
        best = int(gains.argmax())
        if not gains[best] > least:
            break
        active[best] = True
    x = np.maximum(x, 0.0)
    return x / x.sum()
