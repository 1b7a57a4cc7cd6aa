"""What a Doc shows of a word by its other forms: those that differ from it in case only."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import helper, kernel
from .hashing import ABSENT

MOST_SHAPES = 16  # of one word that are counted; others are rare


class FormColumns(NamedTuple):
    """Attributes of T tokens."""

    lower: NDArray[np.uint64]  # [T]
    shape: NDArray[np.uint64]  # [T]
    orth: NDArray[np.uint64]  # [T]
    is_title: NDArray[np.uint64]  # [T] 0 or 1
    capitals: NDArray[np.uint64]  # [T] how many


@kernel
def document_values(forms, doc_starts, begins):
    """For each token, by the tokens of the same lower-case word of its Doc: whether another one is in title case, the shape
    of most, and the form with most capitals; of equals the first.

    doc_starts (int64[D + 1]), begins (bool[T + 1]): Where a sentence begins; such tokens are left out of account, unless all do.
    RETURNS (uint64[T, 3]): ABSENT for words that are in the Doc once.
    """
    values = np.full((len(forms.lower), 3), ABSENT, dtype=np.uint64)
    for d in range(len(doc_starts) - 1):
        begin, end = doc_starts[d], doc_starts[d + 1]
        # A sort that keeps the order of equals takes three times as long
        order = begin + np.argsort(forms.lower[begin:end])
        first = 0
        while first < len(order):
            last = first + 1
            while last < len(order) and forms.lower[order[last]] == forms.lower[order[first]]:
                last += 1
            if last > first + 1:
                _of_word(np.sort(order[first:last]), forms, begins, values)
            first = last
    return values


@helper
def _of_word(tokens, forms, begins, values):
    """Those of one word: its tokens (int64[N]) in their order."""
    all_begin = True
    for t in tokens:
        all_begin = all_begin and begins[t]
    titles, n_shapes, form = 0, 0, -1
    shapes, counts = np.empty(MOST_SHAPES, dtype=np.uint64), np.zeros(MOST_SHAPES, dtype=np.int64)
    for t in tokens:
        if begins[t] and not all_begin:
            continue
        titles += forms.is_title[t] == 1
        if form < 0 or forms.capitals[t] > forms.capitals[form]:
            form = t
        n = 0
        while n < n_shapes and shapes[n] != forms.shape[t]:
            n += 1
        if n < MOST_SHAPES:
            shapes[n] = forms.shape[t]
            counts[n] += 1
            n_shapes = max(n_shapes, n + 1)
    shape = shapes[counts.argmax()]
    for t in tokens:
        own = forms.is_title[t] == 1 and (all_begin or not begins[t])
        values[t, 0] = titles > own
        values[t, 1] = shape
        values[t, 2] = forms.orth[form]
