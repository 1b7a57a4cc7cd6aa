"""Sums of the scores of experts, each of which scores a state in a column of its own, and back."""

from ...kernels import kernel


@kernel
def pool(scores, columns, shares, pooled):
    """Add up scores: pooled[t, y] = sum_i shares[i] · scores[t, columns[i, y]]

    scores (float64[T, C]), columns (int64[k, S]), shares (float64[k]), pooled (float64[T, S])
    """
    for t in range(len(scores)):
        for y in range(columns.shape[1]):
            total = 0.0
            for i in range(len(shares)):
                total += shares[i] * scores[t, columns[i, y]]
            pooled[t, y] = total


@kernel
def spread(d_pooled, columns, shares, d_scores):
    """Add the derivatives of `pool` by scores: d_scores[t, columns[i, y]] += shares[i] · d_pooled[t, y]

    d_pooled (float64[T, S]), columns (int64[k, S]), shares (float64[k]), d_scores (float64[T, C])
    """
    for t in range(len(d_pooled)):
        for i in range(len(shares)):
            for y in range(columns.shape[1]):
                d_scores[t, columns[i, y]] += shares[i] * d_pooled[t, y]
