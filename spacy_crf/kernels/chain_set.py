"""The columns of one chain of a set: numpy takes as long for them as the chain's own sums."""

from . import kernel


@kernel
def take(scores, states, out):
    """Copy the columns of some states (int64[N]) of scores (float64[n, S]) to `out` (float64[n, N])."""
    for t in range(len(scores)):
        for n in range(len(states)):
            out[t, n] = scores[t, states[n]]


@kernel
def add(part, states, total):
    """Add float64[n, N] to the columns of some states (int64[N]) of `total` (float64[n, S])."""
    for t in range(len(part)):
        for n in range(len(states)):
            total[t, states[n]] += part[t, n]
