"""The loss of a sequence and its derivative."""

import math
from typing import NamedTuple

import numpy as np

from ...types import Floats
from .. import helper, linear_chain, semi_markov
from .blocks import add_scores, clear
from .chain import best_path, derivatives_of_chain, expect_in_logs, expect_scaled, scores_of_chain
from .segments import (
    cover,
    derivatives_of_segments,
    exclude,
    expect_segments,
    log_potentials_of,
    running_sums,
    score_segments,
    scores_of_segments,
)


class LossArguments(NamedTuple):
    """The loss of one sequence: which sequence, and the weights that score its labellings."""

    b: int  # number of the sequence
    costs: Floats  # [S, S], or [0, 0] without costs
    weights: Floats  # [M]
    scale: float  # scale of the weights


# Inlined before LLVM sees the callers, so LLVM optimizes this function once instead of twice
@helper(inline="always")
def differentiate(corpus, work, pairs, chains, segments, maximum, arguments):
    """Write the derivative of a sequence's loss into the work space.

    RETURNS: The loss, times the weight of the sequence; and False if the derivative is certainly zero.
    """
    b, costs, _, _ = arguments
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    n = end - begin
    size = corpus.n_states
    factor = corpus.weights[b]
    _clear(corpus, work, pairs, segments, b)
    if n == 0 or factor == 0.0:
        return 0.0, False
    _score(corpus, work, pairs, chains, segments, arguments)
    value = reached = 0.0
    for step in range(2):  # first the labellings that the annotation allows, then all
        is_free = step == 1
        if not is_free and corpus.is_known[b]:
            reached = _score_annotation(corpus, work, chains, segments, b)
        else:
            if is_free and len(costs) > 0:
                _add_costs(work.nodes, corpus.gold, corpus.clamp, begin, end, costs)
            if segments is not None:
                running_sums(corpus, work, segments, b, not is_free)
                if len(segments.uses.excluded) > 0 and not corpus.is_known[b]:
                    exclude(segments, begin, end, costs, is_free)
            # The scores of forbidden states come back from `kept` before the second pass
            if chains is not None and not is_free:
                _forbid(work.nodes, chains.kept, corpus.clamp[begin:end])
            # The derivative is that of all labellings minus that of the allowed ones
            amount = factor if is_free else -factor
            if maximum:
                value = _use_best(corpus, work, pairs, chains, segments, b, amount)
            else:
                value = expect(corpus, work, pairs, chains, segments, b, amount)
            if not is_free:
                reached = value
                if chains is not None:
                    for t in range(n):
                        for j in range(size):
                            work.nodes[t, j] = chains.kept[t, j]
        if reached == -np.inf:
            return 0.0, False  # no labelling keeps the annotation: nothing to learn
    if corpus.is_known[b]:
        use_annotation(corpus, work, chains, segments, b, -factor)
    if segments is not None:
        cover(work, segments, n, size)
    _share_derivatives(work, pairs, n, size)
    return factor * max(value - reached, 0.0) if math.isfinite(value) else np.nan, True


@helper
def _clear(corpus, work, pairs, segments, b):
    """Set the derivatives of a sequence to 0, and its bounds."""
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    n = end - begin
    work.bounds[1] = n
    clear(work.d_nodes, n)
    clear(work.d_chain, corpus.n_states + 2)
    if len(pairs.scores) > 0:
        clear(pairs.d_scores, n)
    if segments is not None:
        clear(segments.d_begins, n)
        clear(segments.d_ends, n)
        clear(segments.d_lengths, len(segments.d_lengths))
        clear(segments.d_spans, segments.uses.listed_starts[end] - segments.uses.listed_starts[begin])


@helper(inline="always")
def _score(corpus, work, pairs, chains, segments, arguments):
    """Write the scores of a sequence, by the weights of its features, into the work space."""
    b, _, weights, scale = arguments
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    size = corpus.n_states
    chain = work.chain
    if chains is not None:
        add_scores(corpus.states, begin, end, size, weights, scale, np.bool_(False), work.nodes)
    if segments is not None:
        score_segments(corpus.states, work.nodes, segments, begin, end, size, weights, scale)
    for i in range(size + 2):
        for j in range(size):
            chain[i, j] = scale * weights[corpus.chain_start + i * size + j]
    if len(pairs.scores) > 0:
        add_scores(pairs.uses, begin, end, size * size, weights, scale, np.bool_(False), pairs.scores)
    _add_chain(work, pairs, end - begin, size)


@helper(inline="always")
def _add_chain(work, pairs, n, size):
    """Add the transition scores that all steps share to the scores of pairs."""
    if len(pairs.scores) > 0:
        for t in range(n):
            for i in range(size):
                for j in range(size):
                    pairs.scores[t, i * size + j] += work.chain[i, j]


@helper(inline="always")
def _share_derivatives(work, pairs, n, size):
    """Add the derivatives of single steps to the derivatives of the shared transitions."""
    if len(pairs.scores) > 0:
        for t in range(1, n):
            for i in range(size):
                for j in range(size):
                    work.d_chain[i, j] += pairs.d_scores[t, i * size + j]


@helper
def _forbid(nodes, kept, clamp):
    """Copy the scores of tokens to `kept`, and set the scores that the clamp forbids to -inf."""
    for t in range(clamp.shape[0]):
        for j in range(clamp.shape[1]):
            kept[t, j] = nodes[t, j]
            if not clamp[t, j]:
                nodes[t, j] = -np.inf


@helper
def _add_costs(nodes, gold, clamp, begin, end, costs):
    """Add the costs of wrong states. Where the annotation allows several states, the smallest cost against them counts."""
    for t in range(begin, end):
        for j in range(len(costs)):
            if gold[t] >= 0:
                nodes[t - begin, j] += costs[gold[t], j]
            elif not clamp[t, j]:
                least = np.inf
                for i in range(len(costs)):
                    if clamp[t, i]:
                        least = min(least, costs[i, j])
                nodes[t - begin, j] += least


@helper(inline="always")
def _score_annotation(corpus, work, chains, segments, b):
    """The score of the annotated labelling of a sequence."""
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    size = corpus.n_states
    if chains is not None:
        linear_chain.path_score(scores_of_chain(work, size), corpus.gold[begin:end], work.total)
    if segments is not None:
        scores = scores_of_segments(work, segments, size)
        semi_markov.path_score(scores, segments.uses.path[begin:end], work.total)
    return work.total[0]


@helper
def use_annotation(corpus, work, chains, segments, b, amount):
    """Add an amount to the derivative of each score that the annotation uses; for segments, `cover` completes the sums."""
    begin = corpus.starts[b]
    end = corpus.starts[b + 1]
    size = corpus.n_states
    work.amount[0] = amount
    if chains is not None:
        linear_chain.path_expectations(corpus.gold[begin:end], work.amount, derivatives_of_chain(work, size))
    if segments is not None:
        of_segments = derivatives_of_segments(work, segments, size)
        semi_markov.path_expectations(segments.uses.path[begin:end], work.amount, of_segments)


@helper(inline="always")
def _use_best(corpus, work, pairs, chains, segments, b, amount):
    """Write the best labelling into ``work.path``, and add an amount to the derivative of each score that the labelling uses.

    RETURNS (float): Its score.
    """
    n = corpus.starts[b + 1] - corpus.starts[b]
    size = corpus.n_states
    value = 0.0
    path = work.path[:n]
    work.amount[0] = amount
    if chains is not None:
        value = best_path(work, chains, pairs, path, n, size)
        if math.isfinite(value):
            linear_chain.path_expectations(path, work.amount, derivatives_of_chain(work, size))
    if segments is not None:
        semi_markov.viterbi(log_potentials_of(work, segments, n, size), path, work.total)
        value = work.total[0]
        if math.isfinite(value):
            of_segments = derivatives_of_segments(work, segments, size)
            semi_markov.path_expectations(path, work.amount, of_segments)
    return value


@helper(inline="always")
def expect(corpus, work, pairs, chains, segments, b, amount):
    """Add the expected uses of each score, times an amount (segments: see `cover`). RETURNS (float): Log partition."""
    n = corpus.starts[b + 1] - corpus.starts[b]
    size = corpus.n_states
    log_z = np.nan
    if chains is not None:
        if len(pairs.scores) == 0:
            log_z = expect_scaled(work, chains, n, size, amount)
        if math.isnan(log_z):
            log_z = expect_in_logs(work, chains, n, size, amount)
    if segments is not None:
        log_z = expect_segments(log_potentials_of(work, segments, n, size), work, segments, amount)
    return log_z
