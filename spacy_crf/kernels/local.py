"""What losses over single tokens need to know of a chain."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def marginal_gradient(nodes, edges, rewards, starts, d_nodes, d_edges):
    """The derivative of -sum over tokens t of E[reward of t], the rewards fixed, with respect to emissions and transitions:
    minus the covariance of the total reward with the use of each score. O(T · S²).

    nodes (float64[T, S]), edges (float64[T, S, S]): Marginals of states, and of the pairs that end at each token.
    rewards (float64[T, S]): Of each state.
    starts (int64[B + 1]): Where the sequences start.
    d_nodes (float64[T, S]), d_edges (float64[T, S, S]): Receive the derivative.
    """
    states = nodes.shape[1]
    for b in range(len(starts) - 1):
        begin, end = starts[b], starts[b + 1]
        past = np.zeros((end - begin, states))  # expected reward up to here, given the state here
        future = np.zeros((end - begin, states))  # expected reward after this token, given the state here
        expected = 0.0
        # past[t, j] = reward[t, j] + sum_i p(i at t-1 | j at t) past[t-1, i]
        for t in range(begin, end):
            for j in range(states):
                expected += nodes[t, j] * rewards[t, j]
                past[t - begin, j] = rewards[t, j]
                if t > begin and nodes[t, j] > 0.0:
                    arriving = 0.0
                    for i in range(states):
                        arriving += edges[t, i, j] * past[t - begin - 1, i]
                    past[t - begin, j] += arriving / nodes[t, j]
        # future[t-1, i] = sum_j p(j at t | i at t-1) (reward[t, j] + future[t, j])
        for t in range(end - 1, begin, -1):
            for i in range(states):
                leaving = 0.0
                for j in range(states):
                    leaving += edges[t, i, j] * (rewards[t, j] + future[t - begin, j])
                    total = past[t - begin - 1, i] + rewards[t, j] + future[t - begin, j]
                    d_edges[t, i, j] = -edges[t, i, j] * (total - expected)
                if nodes[t - 1, i] > 0.0:
                    future[t - begin - 1, i] = leaving / nodes[t - 1, i]
        for t in range(begin, end):
            for j in range(states):
                d_nodes[t, j] = -nodes[t, j] * (past[t - begin, j] + future[t - begin, j] - expected)
