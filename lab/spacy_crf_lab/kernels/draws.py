"""Scores of tokens by several weight vectors at once."""

import numpy as np
from numpy.typing import NDArray

from spacy_crf.kernels import kernel
from spacy_crf.types import Floats, Ints


@kernel
def add_scores_of_draws(
    rows: NDArray[np.int32],
    values: NDArray[np.float32],
    starts: Ints,
    slot_starts: Ints,
    slot_columns: NDArray[np.int32],
    slots: NDArray[np.float32],
    scores: Floats,
):
    """Add the weights of the features of each token to its scores, as `kernels.sparse_rows.add_scores` does for one vector.

    rows (int32[N]), values (float32[N], or [0] for 1), starts (int64[T + 1]): The features of each token.
    slot_starts (int64[F + 1]), slot_columns (int32[M]): Columns of the slots of each feature.
    slots (float32[M, D]): The weights by each draw. scores (float64[D, T, C])
    """
    n_draws, _, n_columns = scores.shape
    sums = np.empty((n_columns, n_draws))
    for t in range(len(starts) - 1):
        sums[:] = 0.0
        for n in range(starts[t], starts[t + 1]):
            value = np.float64(values[n]) if len(values) > 0 else 1.0
            for slot in range(slot_starts[rows[n]], slot_starts[rows[n] + 1]):
                target = sums[slot_columns[slot]]
                for d in range(n_draws):
                    target[d] += value * slots[slot, d]
        for d in range(n_draws):
            for column in range(n_columns):
                scores[d, t, column] += sums[column, d]
