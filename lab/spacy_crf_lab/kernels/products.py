"""Products of sparse vectors: of tokens with all tokens of a basis, by lists of the basis tokens that have each feature."""

import numpy as np

from spacy_crf.kernels import kernel


@kernel
def add_products(rows, values, starts, begin, posting_starts, posting_tokens, posting_values, products):
    """products[t, m] += sum over the features f of token begin + t of value[t, f] · value[m, f]

    rows (int32[nnz], -1 for features that no basis token has), values (float32[nnz]), starts (int64[T + 1]): Tokens.
    posting_starts (int64[F + 1]), posting_tokens (int32[P]), posting_values (float32[P]): Basis tokens of each feature.
    products (float64[N, M])
    """
    for t in range(len(products)):
        target = products[t]
        for n in range(starts[begin + t], starts[begin + t + 1]):
            row = rows[n]
            if row >= 0:
                value = np.float64(values[n])
                for p in range(posting_starts[row], posting_starts[row + 1]):
                    target[posting_tokens[p]] += value * posting_values[p]
