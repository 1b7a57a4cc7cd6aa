"""Feature rows to scores and back: a sparse matrix of features times a matrix of weights that is itself sparse.

Feature f has weights only for some columns (tags, or pairs of tags). Before a pass the weights are spread into slots: a row with
few columns keeps them as they are, a row with many gets one slot for every column, so that summing the features of a token mostly
adds whole rows.

The columns of the slots also mark where a row ends, so that the first slot of a row is enough to read the row: the first
slot of a row with all columns has column C; the last slot of any other row has -1 - c in place of column c.

Threads share a gradient by its slots, not by the tokens: each goes through all tokens and adds to its own part. Every sum
is then formed in the order of the tokens, whatever the number of threads.
"""

import numpy as np

from . import kernel
from .llvm_code import fetch

# Each thread owns runs of neighbouring slots: two threads must not keep writing to one cache line.
_SHARED = 5
# Size of a table (3 MB) from which on rows are prefetched: with 2.3 MB prefetching cost more time than it saved
# AHEAD counts rows
LARGE = 3 << 17
AHEAD = 3


@kernel
def lay_out_slots(pair_starts, pair_columns, n_columns, threshold):
    """Lay out the slots of each row: all columns for a row with at least ``threshold`` weights, only its own columns otherwise.

    pair_starts (int64[F + 1]), pair_columns (int32[W]): The pairs of feature f, which have weights, and their columns.
    threshold (int): At most C, the number of columns.
    RETURNS (slot_starts int64[F + 1], slot_columns int32[N], slot_of_pair int64[W]): The slots of feature f, their columns, and
        the slot of each weight.
    """
    n_rows = len(pair_starts) - 1
    slot_starts = np.zeros(n_rows + 1, dtype=np.int64)
    for f in range(n_rows):
        width = pair_starts[f + 1] - pair_starts[f]
        slot_starts[f + 1] = slot_starts[f] + (n_columns if width >= threshold else width)
    slot_columns = np.empty(slot_starts[n_rows], dtype=np.int32)
    slot_of_pair = np.empty(len(pair_columns), dtype=np.int64)
    for f in range(n_rows):
        begin = pair_starts[f]
        end = pair_starts[f + 1]
        at = slot_starts[f]
        stop = slot_starts[f + 1]
        # A whole row is marked by its first column, another one by its last
        if stop - at == n_columns:
            for column in range(n_columns):
                slot_columns[at + column] = column
            slot_columns[at] = n_columns
            for p in range(begin, end):
                slot_of_pair[p] = at + pair_columns[p]
        elif stop > at:
            for p in range(begin, end):
                slot_columns[at + p - begin] = pair_columns[p]
                slot_of_pair[p] = at + p - begin
            slot_columns[stop - 1] = -1 - slot_columns[stop - 1]
    return slot_starts, slot_columns, slot_of_pair


@kernel
def add_scores(rows, values, starts, begin, end, slot_starts, slot_columns, slots, scores):
    """scores[t, c] += sum over the features f of token t of values · weight[f, c], for the tokens `begin` to `end` - 1.

    rows (int32[nnz]), values (float32[nnz], or empty: all 1), starts (int64[T + 1]): Features of the tokens.
    slots (float64[N]): The weights, as laid out by `lay_out_slots`.
    scores (float64[T, C]): Receives the sums.
    """
    n_columns = scores.shape[1]
    for t in range(begin, end):
        target = scores[t]
        for n in range(starts[t], starts[t + 1]):
            at = slot_starts[rows[n]]
            stop = slot_starts[rows[n] + 1]
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            if stop - at == n_columns:
                row = slots[at:stop]
                for c in range(n_columns):
                    target[c] += value * row[c]
            elif stop > at:
                for s in range(at, stop - 1):
                    target[slot_columns[s]] += value * slots[s]
                target[-1 - slot_columns[stop - 1]] += value * slots[stop - 1]


@kernel
def add_rows(tokens, rows, slot_starts, slot_columns, slots, scores):
    """scores[t, c] += weight[f, c] for N pairs of a token t (`tokens`, int32[N]) and a feature f (`rows`, int32[N])."""
    n_columns = scores.shape[1]
    for n in range(len(tokens)):  # slices of arrays are reference-counted, which took as long as everything else
        t = tokens[n]
        at = slot_starts[rows[n]]
        stop = slot_starts[rows[n] + 1]
        if stop - at == n_columns:
            for c in range(n_columns):
                scores[t, c] += slots[at + c]
        elif stop > at:
            for s in range(at, stop - 1):
                scores[t, slot_columns[s]] += slots[s]
            scores[t, -1 - slot_columns[stop - 1]] += slots[stop - 1]


@kernel
def scatter_gradient(rows, values, starts, d_scores, pair_starts, pair_columns, part, mask, gradient):
    """gradient[f, c] += sum over the tokens t with feature f of values · d_scores[t, c], for the features of one part.

    part, mask (int): Number of the part, and the mask of feature numbers that yields it; 0 and 0 for all features.
    d_scores (float64[T, C]), gradient (float64[W])
    """
    for t in range(len(starts) - 1):
        d_token = d_scores[t]
        for n in range(starts[t], starts[t + 1]):
            # Other threads add to the features of other parts
            if (rows[n] >> _SHARED) & mask == part:
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                for p in range(pair_starts[rows[n]], pair_starts[rows[n] + 1]):
                    gradient[p] += value * d_token[pair_columns[p]]


@kernel
def add_references(first_slots, begin, end, slot_columns, slots, scores, o):
    """Add the scores of one feature per template at each of N tokens, or kinds of windows: n from `begin` to `end` - 1.

    first_slots (int[M, N]): First slot of the feature that template m has at n, -1 for none.
    scores (float64[N, O, C]): The scores of n are added at [n, o].
    """
    n_columns = scores.shape[2]
    for n in range(begin, end):
        target = scores[n, o]
        for m in range(len(first_slots)):
            at = first_slots[m, n]
            if at >= 0:
                column = slot_columns[at]
                if column == n_columns:
                    row = slots[at : at + n_columns]
                    for c in range(n_columns):
                        target[c] += row[c]
                else:
                    while column >= 0:
                        target[column] += slots[at]
                        at += 1
                        column = slot_columns[at]
                    target[-1 - column] += slots[at]


@kernel
def scatter_references(first_slots, slot_columns, d_scores, o, part, mask, d_slots):
    """The gradient of ``add_references`` for the slots of one part, template by template: rows of frequent features stay in the
    cache.

    d_scores (float64[N, O, C]): Derivatives, read at [n, o].
    part (int), mask (int): Number of the part, and the mask of shifted slot numbers that yields it.
    d_slots (float64[slots]): Receives the sums.
    """
    n_columns = d_scores.shape[2]
    for m in range(len(first_slots)):
        for n in range(first_slots.shape[1]):
            at = first_slots[m, n]
            if at >= 0 and (at >> _SHARED) & mask == part:
                source = d_scores[n, o]
                column = slot_columns[at]
                if column == n_columns:
                    target = d_slots[at : at + n_columns]
                    for c in range(n_columns):
                        target[c] += source[c]
                else:
                    while column >= 0:
                        d_slots[at] += source[column]
                        at += 1
                        column = slot_columns[at]
                    d_slots[at] += source[-1 - column]


@kernel
def add_listed(first_slots, starts, slot_columns, slots, scores):
    """Add the scores of features in compressed rows: token t has the features starts[t] to starts[t + 1] - 1.

    first_slots (int[N]): First slot of each feature, -1 for none.
    starts (int64[T + 1]): Where the features of each token begin.
    scores (float64[T, C]): Receives the sums.
    """
    n_columns = scores.shape[1]
    for t in range(len(starts) - 1):
        for n in range(starts[t], starts[t + 1]):
            at = first_slots[n]
            if at >= 0:
                column = slot_columns[at]
                if column == n_columns:
                    for c in range(n_columns):
                        scores[t, c] += slots[at + c]
                else:
                    while column >= 0:
                        scores[t, column] += slots[at]
                        at += 1
                        column = slot_columns[at]
                    scores[t, -1 - column] += slots[at]


@kernel
def scatter_listed(first_slots, starts, slot_columns, d_scores, part, mask, d_slots):
    """The gradient of ``add_listed`` for the slots of one part, those whose number shifted by ``_SHARED`` is `part` under the
    `mask`: several threads each write their own."""
    n_columns = d_scores.shape[1]
    for t in range(len(starts) - 1):
        for n in range(starts[t], starts[t + 1]):
            at = first_slots[n]
            if at >= 0 and (at >> _SHARED) & mask == part:
                column = slot_columns[at]
                if column == n_columns:
                    for c in range(n_columns):
                        d_slots[at + c] += d_scores[t, c]
                else:
                    while column >= 0:
                        d_slots[at] += d_scores[t, column]
                        at += 1
                        column = slot_columns[at]
                    d_slots[at] += d_scores[t, -1 - column]


@kernel
def add_kind_rows(kinds, starts, reach, first, table, scores):
    """scores[position + first + o] += table[kind at position, o], for all positions and O tokens that read it.

    kinds (int32[T + 2 * reach * B]): Kind of each position, see `hashing.place`, -1 for none; in prediction, its lexeme.
    starts (int64[B + 1]), table (float64[U, O, C] or float32[U, O, C]), scores (float64[T, C]).
    The tokens that read a position are one run of rows, and one loop: row by row took twice as long.
    """
    n_columns = scores.shape[1]
    width = table.shape[1]
    sums = scores.reshape(-1)
    rows = table.reshape(-1)
    is_large = len(rows) >= LARGE
    for b in range(len(starts) - 1):
        begin = starts[b]
        end = starts[b + 1]
        shift = (2 * b + 1) * reach
        for position in range(begin - reach, end + reach):
            if is_large and position + shift + AHEAD < len(kinds):
                # Prefetch rows that are needed soon, while the row of this position is added
                ahead = np.int64(kinds[position + shift + AHEAD])
                if ahead >= 0:
                    fetch(rows, ahead * width * n_columns, (ahead + 1) * width * n_columns)
            kind = np.int64(kinds[position + shift])
            # The tokens that read this position, within the sequence
            low = max(position + first, begin)
            high = min(position + first + width, end)
            if kind >= 0 and low < high:
                at = (kind * width + low - position - first) * n_columns
                target = sums[low * n_columns : high * n_columns]
                source = rows[at : at + len(target)]
                for c in range(len(target)):
                    target[c] += source[c]


@kernel
def scatter_kind_rows(kinds, starts, reach, first, d_scores, part, mask, d_table):
    """The gradient of ``add_kind_rows`` for kinds of one part: d_table[kind at position, o] += d_scores[position + first + o]."""
    n_columns = d_scores.shape[1]
    width = d_table.shape[1]
    rows = d_scores.reshape(-1)
    sums = d_table.reshape(-1)
    is_large = len(sums) >= LARGE
    for b in range(len(starts) - 1):
        begin = starts[b]
        end = starts[b + 1]
        shift = (2 * b + 1) * reach
        for position in range(begin - reach, end + reach):
            if is_large and position + shift + AHEAD < len(kinds):
                ahead = np.int64(kinds[position + shift + AHEAD])
                if ahead >= 0 and ahead & mask == part:
                    fetch(sums, ahead * width * n_columns, (ahead + 1) * width * n_columns)
            kind = np.int64(kinds[position + shift])
            low = max(position + first, begin)
            high = min(position + first + width, end)
            if kind >= 0 and kind & mask == part and low < high:
                at = (kind * width + low - position - first) * n_columns
                source = rows[low * n_columns : high * n_columns]
                target = sums[at : at + len(source)]
                for c in range(len(source)):
                    target[c] += source[c]
