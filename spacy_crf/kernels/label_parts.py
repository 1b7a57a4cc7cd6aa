"""Scores of tags that are sums of the scores of their parts."""

from . import kernel


@kernel
def sum_parts(scores, tag_columns, starts, columns, out):
    """out[t, y] = scores[t, tag_columns[y]] + sum of scores[t, columns[n]] over the parts n of tag y.

    scores (float64[T, C]): Scores of C columns.
    tag_columns (int64[S]): Column of each tag.
    starts (int64[S + 1]), columns (int64[N]): Tag y has the parts starts[y] to starts[y + 1] - 1; the column of each part.
    out (float64[T, S]): Receives the scores of tags.
    """
    for t in range(out.shape[0]):
        for y in range(out.shape[1]):
            total = scores[t, tag_columns[y]]
            for n in range(starts[y], starts[y + 1]):
                total += scores[t, columns[n]]
            out[t, y] = total


@kernel
def spread_parts(derivative, tag_columns, starts, columns, out):
    """The gradient of `sum_parts`: add the derivatives for tags (float64[T, S]) to those for columns (`out`, float64[T, C])."""
    for t in range(derivative.shape[0]):
        for y in range(derivative.shape[1]):
            d = derivative[t, y]
            if d != 0.0:  # most tags are left out
                out[t, tag_columns[y]] += d
                for n in range(starts[y], starts[y + 1]):
                    out[t, columns[n]] += d
