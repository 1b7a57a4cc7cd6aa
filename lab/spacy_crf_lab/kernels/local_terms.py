"""Sums over all labellings for losses over single tokens and segments."""

import numpy as np

from spacy_crf.kernels import kernel


@kernel
def cover_probability(segments, allowed, span_starts, probability):
    """Probability that an allowed segment covers each token, in time O(N · S) and without differences of sums.

    segments (float64[N, S]): Marginals of all segments, by their first token and then by their length.
    allowed (bool[N, S]): The allowed segments.
    span_starts (int64[T + 1]): Bounds of the segments that begin at each token.
    probability (float64[T]): Zeros, added to.
    """
    for b in range(len(span_starts) - 1):
        longer = 0.0  # the marginals of those from b that are at least so long
        # A token at distance k from b is covered by the segments from b with more than k tokens
        for n in range(span_starts[b + 1] - 1, span_starts[b] - 1, -1):
            for j in range(segments.shape[1]):
                if allowed[n, j]:
                    longer += segments[n, j]
            probability[b + n - span_starts[b]] += longer


@kernel
def marginal_gradient(segments, steps, allowed, rewards, span_starts, starts, d_segments, d_steps):
    """The derivative of -E[reward of all segments], the rewards fixed, with respect to the scores of segments and transitions:
    minus the covariance of the total reward with the use of each score. O(T · (K·S + S²)). In a linear chain each token is one.

    segments (float64[N, S]), steps (float64[T, S, S]): Marginals of all segments, by their first token and then by their length,
        and of the transitions into a segment that begins at each token.
    allowed (bool[N, S]): Segments that are rewarded at each of their tokens.
    rewards (float64[T]): Reward of each token.
    span_starts (int64[T + 1]): Bounds of the segments that begin at each token.
    starts (int64[B + 1]): Where the sequences start.
    d_segments (float64[N, S]), d_steps (float64[T, S, S]): Receive the derivative.
    """
    size = segments.shape[1]
    for b in range(len(starts) - 1):
        begin = starts[b]
        end = starts[b + 1]
        # marginals
        begins = np.zeros((end - begin, size))
        leaves = np.zeros((end - begin, size))
        # Expected reward of the segments in front, given that one of this state begins here; and up to here, given that one ends
        before = np.zeros((end - begin, size))
        past = np.zeros((end - begin, size))
        # Expected reward from here on, given that one begins here; and of those behind, given that one ends here
        future = np.zeros((end - begin, size))
        behind = np.zeros((end - begin, size))
        expected = 0.0
        # before[t, j] = sum_i p(i ends at t-1 | j begins at t) past[t-1, i]
        # past[t, j] = sum_k p(it began at t-k | j ends at t) (before[t-k, j] + reward[t-k..t, j])
        for t in range(begin, end):
            for j in range(size):
                for n in range(span_starts[t], span_starts[t + 1]):
                    begins[t - begin, j] += segments[n, j]
                if t > begin and begins[t - begin, j] > 0.0:
                    for i in range(size):
                        before[t - begin, j] += steps[t, i, j] * past[t - begin - 1, i]
                    before[t - begin, j] /= begins[t - begin, j]
            reward = 0.0
            for n in range(span_starts[t], span_starts[t + 1]):
                last = t - begin + n - span_starts[t]
                reward += rewards[begin + last]
                for j in range(size):
                    own = reward if allowed[n, j] else 0.0
                    expected += segments[n, j] * own
                    leaves[last, j] += segments[n, j]
                    past[last, j] += segments[n, j] * (before[t - begin, j] + own)
            for j in range(size):
                if leaves[t - begin, j] > 0.0:
                    past[t - begin, j] /= leaves[t - begin, j]
        # future[t, j] = sum_k p(it ends at t+k | j begins at t) (reward[t..t+k, j] + behind[t+k, j])
        # behind[t-1, i] = sum_j p(j begins at t | i ends at t-1) future[t, j]
        for t in range(end - 1, begin - 1, -1):
            reward = 0.0
            for n in range(span_starts[t], span_starts[t + 1]):
                last = t - begin + n - span_starts[t]
                reward += rewards[begin + last]
                for j in range(size):
                    own = reward if allowed[n, j] else 0.0
                    future[t - begin, j] += segments[n, j] * (own + behind[last, j])
                    # E[total reward | this segment] - E[total reward], times its probability, is the covariance
                    total = before[t - begin, j] + own + behind[last, j]
                    d_segments[n, j] = -segments[n, j] * (total - expected)
            for j in range(size):
                if begins[t - begin, j] > 0.0:
                    future[t - begin, j] /= begins[t - begin, j]
            if t > begin:
                for i in range(size):
                    for j in range(size):
                        behind[t - begin - 1, i] += steps[t, i, j] * future[t - begin, j]
                        total = past[t - begin - 1, i] + future[t - begin, j]
                        d_steps[t, i, j] = -steps[t, i, j] * (total - expected)
                    if leaves[t - begin - 1, i] > 0.0:
                        behind[t - begin - 1, i] /= leaves[t - begin - 1, i]
