"""Scores of the steps between the states of a sequence, the same for chains and for segments."""

from .. import helper


@helper(inline="always")
def step_scores(work, pairs, n, size):
    """[1, P, P], or with pairs [n, S, S]."""
    if len(pairs.scores) == 0:
        width = work.chain.shape[1]
        return work.chain[:width].reshape(1, width, width)
    return pairs.scores[:n].reshape(n, size, size)


@helper(inline="always")
def step_derivatives(work, pairs, n, size):
    if len(pairs.scores) == 0:
        width = work.d_chain.shape[1]
        return work.d_chain[:width].reshape(1, width, width)
    return pairs.d_scores[:n].reshape(n, size, size)


@helper(inline="always")
def add_chain(work, pairs, n, size):
    """To the scores of pairs those that all steps share."""
    if len(pairs.scores) > 0:
        for t in range(n):
            for i in range(size):
                for j in range(size):
                    pairs.scores[t, i * size + j] += work.chain[i, j]


@helper(inline="always")
def share_derivatives(work, pairs, n, size):
    """To the derivatives that all steps share those of single steps."""
    if len(pairs.scores) > 0:
        for t in range(1, n):
            for i in range(size):
                for j in range(size):
                    work.d_chain[i, j] += pairs.d_scores[t, i * size + j]
