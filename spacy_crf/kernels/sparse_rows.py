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


@kernel(in_place=True)
def add_scores(rows, values, starts, begin, end, slot_starts, slot_columns, slots, scores):
    """scores[t, c] += sum over the features f of token t of values · weight[f, c], for the tokens `begin` to `end` - 1.

    rows (int32[nnz]), values (float32[nnz], or empty: all 1), starts (int64[T + 1]): Features of the tokens.
    slots (float64[N]): The weights, see `models.table.Table.slots`.
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


@kernel(in_place=True)
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


@kernel(in_place=True)
def add_references(first_slots, tokens, begin, end, slot_columns, slots, scores):
    """scores[tokens[n], c] += weight[f, c] for the features f in the columns n, from `begin` to `end` - 1, of a matrix.

    first_slots (int[M, N]): First slot of each feature, -1 for none. With templates as rows, the slots of frequent features
        stay in the cache.
    tokens (int32[N]): The row of the scores that the features of each column belong to.
    slot_columns (int32[S]): Column of each slot, as `models.table` encodes them.
    slots (float64[S] or float32[S]): The weights.
    scores (float64[T, C]): Receives the sums.
    """
    n_columns = scores.shape[1]
    for m in range(first_slots.shape[0]):
        for n in range(
            begin, end
        ):  # without slices of arrays: they are reference-counted, which took as long as the sums
            at = first_slots[m, n]
            if at < 0:
                continue
            t = np.uint64(tokens[n])  # numba looks for negative indices
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


@kernel(in_place=True)
def scatter_references(first_slots, tokens, slot_columns, d_scores, part, mask, d_slots):
    """The gradient of ``add_references`` for the slots of one part, which one of several threads adds up.

    d_scores (float64[T, C]): Derivatives with respect to the scores.
    part (int), mask (int): Number of the part, and the mask of shifted slot numbers that yields it.
    d_slots (float64[S]): Receives the sums.
    """
    n_columns = d_scores.shape[1]
    for m in range(first_slots.shape[0]):
        for n in range(first_slots.shape[1]):
            at = first_slots[m, n]
            if at < 0 or (at >> _SHARED) & mask != part:
                continue
            t = np.uint64(tokens[n])  # numba looks for negative indices
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


def add_kind_rows(kinds, starts, reach, first, table, scores):
    """scores[position + first + o] += table[kind at position, o], for all positions and O tokens that read it.

    kinds (int32[T + 2 * reach * B]): Kind of each position, see `hashing.place`, -1 for none; in prediction, its lexeme.
    starts (int64[B + 1]), table (float64[U, O, C] or float32[U, O, C]), scores (float64[T, C]).
    """
    rows = table.reshape(-1)
    _add_runs(kinds, starts, reach, first, table.shape[1:], 0, 0, False, rows, rows, scores.reshape(-1))


def scatter_kind_rows(kinds, starts, reach, first, d_scores, part, mask, d_table):
    """The gradient of ``add_kind_rows`` for kinds of one part: d_table[kind at position, o] += d_scores[position + first + o]."""
    rows = d_table.reshape(-1)
    _add_runs(kinds, starts, reach, first, d_table.shape[1:], part, mask, True, rows, d_scores.reshape(-1), rows)


@kernel(in_place=True)
def _add_runs(kinds, starts, reach, first, shape, part, mask, to_table, table, source, target):
    """Add the rows of kinds to the scores, or the derivatives with respect to the scores to the rows of kinds.

    The tokens that read a position are one run of rows, and one loop: row by row took twice as long.

    shape (tuple[int, int]): O and C.
    part (int), mask (int): Number of a part of the kinds, and the mask of kinds that yields it.
    to_table (bool): Whether the rows of kinds receive the sums.
    table, source, target (float[...]): The rows of kinds; the arrays to read and to add to, one of which is the table; all flat.
    """
    width, n_columns = shape
    is_large = len(table) >= LARGE
    for b in range(starts.shape[0] - 1):
        begin = starts[b]
        end = starts[b + 1]
        shift = (2 * b + 1) * reach
        for position in range(begin - reach, end + reach):
            if is_large and position + shift + AHEAD < len(kinds):
                # Prefetch rows that are needed soon, while the row of this position is added
                ahead = np.int64(kinds[position + shift + AHEAD])
                if ahead >= 0 and ahead & mask == part:
                    fetch(table, ahead * width * n_columns, (ahead + 1) * width * n_columns)
            kind = np.int64(kinds[position + shift])
            # The tokens that read this position, within the sequence
            low = position + first if position + first > begin else begin
            high = position + first + width if position + first + width < end else end
            n_numbers = (high - low) * n_columns
            if kind < 0 or kind & mask != part or n_numbers <= 0:
                continue
            # Unsigned, so that LLVM vectorises: numba looks for negative indices
            row = np.uint64((kind * width + low - position - first) * n_columns)
            scored = np.uint64(low * n_columns)
            at = scored if to_table else row
            to = row if to_table else scored
            for c in range(np.uint64(n_numbers)):
                target[to + c] += source[at + c]
