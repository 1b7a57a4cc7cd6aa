"""Feature rows to scores and back for a few columns of each token, the same ones over many passes: which weights they meet is
listed once, and after that nothing else is read.

Slots as in `sparse_rows`. A place is a token and a column: t · C + c.
"""

import numpy as np

from ...kernels import helper, kernel
from ...kernels.sparse_rows import _SHARED


@kernel
def list_uses(references, listed, slot_columns, weight_of_slot, asked, uses):
    """Which weights are added to the score of each place.

    references (int[M, T]): Where the row of each template's feature at each token begins, -1 for none.
    listed (tuple): The same for further features (int[N]), and where those of each token begin (int64[T + 1]).
    slot_columns (int32[slots]), weight_of_slot (int[slots]): -1 where there is nothing to add.
    asked (tuple): How many columns there are, where the places of each token begin (int64[T + 1]), and their columns (int64[V]).
    uses (tuple): Receive a place and a weight each (int[U]).
    RETURNS (int): How many uses there are.
    """
    rows, row_starts = listed
    n_columns, place_starts, columns = asked
    is_asked = np.zeros(n_columns, dtype=np.bool_)
    found = 0
    for t in range(len(place_starts) - 1):
        here = columns[place_starts[t] : place_starts[t + 1]]
        if len(here) == 0:
            continue
        is_asked[here] = True
        for m in range(len(references)):
            if references[m, t] >= 0:
                found = _add_row(references[m, t], slot_columns, weight_of_slot, t, here, is_asked, uses, found)
        for n in range(row_starts[t], row_starts[t + 1]):
            if rows[n] >= 0:
                found = _add_row(rows[n], slot_columns, weight_of_slot, t, here, is_asked, uses, found)
        is_asked[here] = False
    return found


@helper
def _add_row(at, slot_columns, weight_of_slot, t, here, is_asked, uses, found):
    n_columns = len(is_asked)
    if slot_columns[at] == n_columns:
        for column in here:
            if weight_of_slot[at + column] >= 0:
                found = _add_use(t * n_columns + column, weight_of_slot[at + column], uses, found)
        return found
    column = slot_columns[at]
    while column >= 0:
        if is_asked[column]:
            found = _add_use(t * n_columns + column, weight_of_slot[at], uses, found)
        at += 1
        column = slot_columns[at]
    if is_asked[-1 - column]:
        found = _add_use(t * n_columns - 1 - column, weight_of_slot[at], uses, found)
    return found


@helper(inline="always")
def _add_use(place, weight, uses, found):
    places, weights = uses
    if found < len(places):
        places[found], weights[found] = place, weight
    return found + 1


@kernel
def add_uses(places, weights_of, weights, scores):
    """scores[place] += weights[weight] for each use.

    places, weights_of (int[U]), weights (float64[W]), scores (float64[T · C])
    """
    for n in range(len(places)):
        scores[places[n]] += weights[weights_of[n]]


@kernel
def scatter_uses(places, weights_of, d_scores, part, mask, gradient):
    """The gradient of `add_uses` for weights of one part, see `sparse_rows.scatter_references`."""
    for n in range(len(places)):
        if (weights_of[n] >> _SHARED) & mask == part:
            gradient[weights_of[n]] += d_scores[places[n]]
