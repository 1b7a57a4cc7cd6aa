"""Feature rows to scores and back: a sparse matrix of features times a matrix of weights that is itself sparse.

Feature f has weights only for some columns (tags, or pairs of tags). Before a pass the weights are spread into slots:
a row with few columns keeps them as they are, a row with many gets one slot for every column, so that the sum over a
token's features is mostly additions of whole rows.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def lay_out_slots(pair_starts, pair_columns, n_columns, threshold):
    """Slots of each row: all columns for rows with at least ``threshold`` weights, their own columns for the others.

    pair_starts (int64[F + 1]), pair_columns (int32[W])
    RETURNS (slot_starts int64[F + 1], slot_columns int32[N], slot_of_pair int64[W])
    """
    n_rows = len(pair_starts) - 1
    slot_starts = np.zeros(n_rows + 1, dtype=np.int64)
    for f in range(n_rows):
        width = pair_starts[f + 1] - pair_starts[f]
        slot_starts[f + 1] = slot_starts[f] + (n_columns if width >= threshold else width)
    slot_columns = np.empty(slot_starts[n_rows], dtype=np.int32)
    slot_of_pair = np.empty(len(pair_columns), dtype=np.int64)
    for f in range(n_rows):
        begin, end = pair_starts[f], pair_starts[f + 1]
        at = slot_starts[f]
        if slot_starts[f + 1] - at == n_columns:
            for column in range(n_columns):
                slot_columns[at + column] = column
            for p in range(begin, end):
                slot_of_pair[p] = at + pair_columns[p]
        else:
            for p in range(begin, end):
                slot_columns[at + p - begin] = pair_columns[p]
                slot_of_pair[p] = at + p - begin
    return slot_starts, slot_columns, slot_of_pair


@njit(cache=True, nogil=True)
def add_scores(rows, values, starts, begin, end, slot_starts, slot_columns, slots, scores):
    """scores[t, c] += sum over the features f of token t of values · weight[f, c], for tokens begin to end.

    rows (int32[nnz]), values (float32[nnz], or empty: all 1), starts (int64[T + 1]), slots (float64[N]),
    scores (float64[T, C])
    """
    n_columns = scores.shape[1]
    for t in range(begin, end):
        target = scores[t]
        for n in range(starts[t], starts[t + 1]):
            at, stop = slot_starts[rows[n]], slot_starts[rows[n] + 1]
            if len(values) > 0:
                value = np.float64(values[n])
                for s in range(at, stop):
                    target[slot_columns[s]] += value * slots[s]
            elif stop - at == n_columns:
                row = slots[at:stop]
                for c in range(n_columns):
                    target[c] += row[c]
            else:
                for s in range(at, stop):
                    target[slot_columns[s]] += slots[s]


@njit(cache=True, nogil=True)
def scatter_gradient(rows, values, starts, d_scores, pair_starts, pair_columns, gradient):
    """gradient[f, c] += sum over the tokens t with feature f of values · d_scores[t, c]; token by token, for a batch.

    d_scores (float64[T, C]), gradient (float64[W])
    """
    for t in range(len(starts) - 1):
        d_token = d_scores[t]
        for n in range(starts[t], starts[t + 1]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            for p in range(pair_starts[rows[n]], pair_starts[rows[n] + 1]):
                gradient[p] += value * d_token[pair_columns[p]]


@njit(cache=True, nogil=True)
def transpose(rows, values, starts, n_rows):
    """The same matrix by feature: which tokens have it.

    RETURNS (tokens int32[nnz], values float32[nnz or 0], feature_starts int64[F + 1])
    """
    feature_starts = np.zeros(n_rows + 1, dtype=np.int64)
    for n in range(len(rows)):
        feature_starts[rows[n] + 1] += 1
    for f in range(n_rows):
        feature_starts[f + 1] += feature_starts[f]
    free = feature_starts[:-1].copy()
    tokens = np.empty(len(rows), dtype=np.int32)
    moved = np.empty(len(values), dtype=np.float32)
    for t in range(len(starts) - 1):
        for n in range(starts[t], starts[t + 1]):
            at = free[rows[n]]
            tokens[at] = t
            if len(values) > 0:
                moved[at] = values[n]
            free[rows[n]] = at + 1
    return tokens, moved, feature_starts


@njit(cache=True, nogil=True)
def gather_gradient(
    tokens, values, feature_starts, begin, end, d_scores, pair_starts, pair_columns, dense_from, gradient
):
    """The gradient of ``scatter_gradient``, feature by feature for features begin to end: every weight is written by one
    thread only, and its terms are added in the order of the tokens, whatever the number of threads.

    dense_from (int): Rows with that many weights sum whole rows of d_scores first.
    """
    n_columns = d_scores.shape[1]
    total = np.empty(n_columns)
    for f in range(begin, end):
        first, stop = pair_starts[f], pair_starts[f + 1]
        if stop - first >= dense_from:
            total[:] = 0.0
            for n in range(feature_starts[f], feature_starts[f + 1]):
                d_token = d_scores[tokens[n]]
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                for c in range(n_columns):
                    total[c] += value * d_token[c]
            for p in range(first, stop):
                gradient[p] += total[pair_columns[p]]
        else:
            for n in range(feature_starts[f], feature_starts[f + 1]):
                d_token = d_scores[tokens[n]]
                value = np.float64(values[n]) if len(values) > 0 else 1.0
                for p in range(first, stop):
                    gradient[p] += value * d_token[pair_columns[p]]


@njit(cache=True, nogil=True)
def add_neighbour_rows(kinds, starts, first, stop, reach, offsets, table, scores):
    """scores[t] += sum over offsets o of table[kind at t + offsets[o], o], for tokens of the sequences first to stop.

    kinds (int32[T]): Lexemes, or other things that tokens share, starts (int64[B + 1]), offsets (int64[O]),
    table (float[U, O, C]); positions outside a sequence have the first ``2 * reach`` kinds, as in ``hashing``.
    Position by position, so that all that a kind has lies together.
    """
    n_columns = scores.shape[1]
    for b in range(first, stop):
        begin, end = starts[b], starts[b + 1]
        for position in range(begin - reach, end + reach):
            if position < begin:
                kind = begin - position - 1
            elif position >= end:
                kind = reach + position - end
            else:
                kind = kinds[position]
            for o in range(len(offsets)):
                t = position - offsets[o]
                if begin <= t < end:
                    source, target = table[kind, o], scores[t]
                    for c in range(n_columns):
                        target[c] += source[c]


@njit(cache=True, nogil=True)
def scatter_neighbour_rows(kinds, starts, reach, offset, o, d_scores, d_table):
    """The gradient of ``add_neighbour_rows`` for one offset: d_table[kind at t + offset, o] += d_scores[t]."""
    n_columns = d_scores.shape[1]
    for b in range(len(starts) - 1):
        begin, end = starts[b], starts[b + 1]
        for t in range(begin, end):
            position = t + offset
            if position < begin:
                kind = begin - position - 1
            elif position >= end:
                kind = reach + position - end
            else:
                kind = kinds[position]
            source, target = d_scores[t], d_table[kind, o]
            for c in range(n_columns):
                target[c] += source[c]


@njit(cache=True, nogil=True)
def add_template_scores(rows, begin, end, slot_starts, slot_columns, slots, scores, o):
    """``add_scores`` for features that come one per template, for items (tokens, or kinds) begin to end.

    rows (int32[M, N]): Feature of each template at each item, -1 for none, scores (float64[N, O, C]): item n at o.
    """
    n_columns = scores.shape[2]
    for n in range(begin, end):
        target = scores[n, o]
        for m in range(len(rows)):
            f = rows[m, n]
            if f >= 0:
                at, stop = slot_starts[f], slot_starts[f + 1]
                if stop - at == n_columns:
                    row = slots[at:stop]
                    for c in range(n_columns):
                        target[c] += row[c]
                else:
                    for s in range(at, stop):
                        target[slot_columns[s]] += slots[s]


@njit(cache=True, nogil=True)
def scatter_template(rows, slot_starts, slot_columns, d_scores, o, d_slots):
    """The gradient of ``add_template_scores`` for one template. Its features belong to no other template, so that
    templates can be done by different threads; item by item, the rows of frequent features stay in the cache.

    rows (int32[N]), d_scores (float64[N, O, C]): item n at o, d_slots (float64[number of slots])
    """
    n_columns = d_scores.shape[2]
    for n in range(len(rows)):
        f = rows[n]
        if f >= 0:
            source = d_scores[n, o]
            at, stop = slot_starts[f], slot_starts[f + 1]
            if stop - at == n_columns:
                target = d_slots[at:stop]
                for c in range(n_columns):
                    target[c] += source[c]
            else:
                for s in range(at, stop):
                    d_slots[s] += source[slot_columns[s]]
