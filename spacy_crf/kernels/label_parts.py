"""Scores of tags that are sums of the scores of their parts."""

from . import kernel


@kernel
def sum_parts(scores, tag_columns, starts, columns, out):
    """out[t, y] = scores[t, column of y] + the sum of the columns of its parts.

    scores (float64[T, C]), tag_columns (int64[S]), starts (int64[S + 1]), columns (int64[N]), out (float64[T, S])
    """
    for t in range(out.shape[0]):
        for y in range(out.shape[1]):
            total = scores[t, tag_columns[y]]
            for n in range(starts[y], starts[y + 1]):
                total += scores[t, columns[n]]
            out[t, y] = total


@kernel
def spread_parts(derivative, tag_columns, starts, columns, out):
    """Add derivatives with respect to tags (float64[T, S]) to those with respect to columns (out, float64[T, C])."""
    for t in range(derivative.shape[0]):
        for y in range(derivative.shape[1]):
            d = derivative[t, y]
            if d != 0.0:  # most tags are left out
                out[t, tag_columns[y]] += d
                for n in range(starts[y], starts[y + 1]):
                    out[t, columns[n]] += d
