"""Gains of weights that a model does not have yet, each of them added alone: by how much the log-likelihood of the tokens with
its feature rises if their neighbours do not change.

    gain(d) = sum_t factor[t] · (observed[t, c] · value · d - log(1 + expected[t, c] · (exp(value · d) - 1)))

for a weight d of column c (McCallum 2003, section 4.1).
"""

import math

from spacy_crf.kernels import kernel


@kernel
def add_gains(tokens, rows, values, columns, expected, observed, factors, wanted, moves, gains, slopes, curves):
    """Add the gains at ``moves``, or if ``slopes`` has room for them, their first derivatives and less their second ones.

    tokens (int64[K]), rows (int[K]), values (float32[K], or empty: all 1): Features of tokens, the first slot of each or -1.
    columns (int32[slots]): Encoded, see `kernels.sparse_rows`. expected, observed (float64[N, C]), factors (float64[N])
    wanted (bool[slots]), moves (float64[slots]), gains, slopes, curves (float64[slots], or empty)
    """
    n_columns = expected.shape[1]
    for k in range(len(rows)):
        s = rows[k]
        t = tokens[k]
        if s >= 0:
            value = float(values[k]) if len(values) > 0 else 1.0
            is_whole = columns[s] == n_columns
            c = 0
            ends = False
            while not ends:
                if is_whole:
                    ends = c == n_columns - 1
                else:
                    ends = columns[s] < 0
                    c = -1 - columns[s] if ends else columns[s]
                if wanted[s]:
                    # With the weight, P(c) becomes q = p e^(v d) / (1 + p (e^(v d) - 1))
                    p = expected[t, c]
                    grown = math.exp(value * moves[s])
                    total = 1.0 + p * (grown - 1.0)
                    if len(slopes) > 0:
                        q = p * grown / total
                        slopes[s] += factors[t] * value * (observed[t, c] - q)
                        curves[s] += factors[t] * value * value * q * (1.0 - q)
                    else:
                        gains[s] += factors[t] * (observed[t, c] * value * moves[s] - math.log(total))
                s += 1
                c += 1
