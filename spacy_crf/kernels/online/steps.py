"""Scores of the steps between the states of a sequence, the same for chains and for segments."""

from .. import helper


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
