"""The columns of one chain of a set: numpy takes as long for them as the chain's own sums."""

from . import kernel


@kernel
def take(scores, states, sizes, out):
    """Copy the columns of the states of each chain from scores (float64[n, S]) to an array of its own, one behind the other.

    states (int64[N]): Of all chains, end to end. sizes (int64[C]): Number of states of each chain. out (float64[n * N])
    """
    n_tokens = len(scores)
    for t in range(n_tokens):
        first = 0
        for size in sizes:
            at = n_tokens * first + t * size
            for n in range(size):
                out[at + n] = scores[t, states[first + n]]
            first += size


@kernel
def add(part, states, total):
    """Add float64[n, N] to the columns of some states (int64[N]) of `total` (float64[n, S])."""
    for t in range(len(part)):
        for n in range(len(states)):
            total[t, states[n]] += part[t, n]
