"""Copies the columns of the chains of a set. (Numpy would take as long as the sums of a chain take.)"""

from . import kernel


@kernel(in_place=True)
def take(scores, states, sizes, out):
    """Copy the columns of each chain's states from scores (float64[n, S]) to a matrix; the matrices lie end to end in `out`.

    states (int64[N]): The states of all chains, end to end. sizes (int64[C]): Number of states of each chain.
    out (float64[n * N]): Receives the matrices.
    """
    n_tokens = len(scores)
    for t in range(n_tokens):
        first = 0
        for size in sizes:
            at = n_tokens * first + t * size
            for n in range(size):
                out[at + n] = scores[t, states[first + n]]
            first += size


@kernel(in_place=True)
def add(part, states, total):
    """Add `part` (float64[n, N]) to the columns `states` (int64[N]) of `total` (float64[n, S])."""
    for t in range(len(part)):
        for n in range(len(states)):
            total[t, states[n]] += part[t, n]
