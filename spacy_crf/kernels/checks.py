"""Checks of the arguments that other kernels trust. For a short text, the same checks in numpy took twice as long as decoding."""

import numpy as np

from . import kernel


@kernel(in_place=True)
def well_formed(starts, n_tokens, arrays):
    """Whether sequences with these starts (int64[B + 1]) cover all tokens in order, and no score is NaN or inf.

    arrays (tuple of float64[n]): All scores, in one call: a call takes as long as the check.
    """
    if starts.shape[0] == 0 or starts[0] != 0 or starts[-1] != n_tokens:
        return False
    mistakes = 0
    for b in range(starts.shape[0] - 1):
        mistakes += starts[b] > starts[b + 1]
    for scores in arrays:
        for n in range(scores.shape[0]):
            mistakes += not scores[n] < np.inf  # in this form the test also catches NaN
    return mistakes == 0


@kernel(in_place=True)
def well_listed(first, lengths, starts, longest):
    """Whether a list of spans has the form of `types.SpanList`: each span lies within a sequence and has 1 to K tokens.

    first (int64[T + 1]), lengths (int32[N]): The list.
    starts (int64[B + 1]): Where sequences start.
    """
    if first.shape[0] != starts[-1] + 1 or first[0] != 0 or first[-1] != lengths.shape[0]:
        return False
    for b in range(starts.shape[0] - 1):
        for t in range(starts[b], starts[b + 1]):
            if first[t] > first[t + 1]:
                return False
            before = 0
            for n in range(first[t], first[t + 1]):
                if lengths[n] <= before or lengths[n] > min(longest, starts[b + 1] - t):
                    return False
                before = lengths[n]
    return True
