"""What a sequence asks for: the derivative of its loss."""

import math

import numpy as np

from .. import helper
from .blocks import add_scores, clear
from .chain import best_path, expect_in_logs, expect_scaled, path_score, use_path
from .segments import best_segments, cover, exclude, expect_segments, fold, score_segments, segments_score, use_segments


# A part of its callers before LLVM sees them, which then optimizes it once instead of twice
@helper(inline="always")
def differentiate(corpus, work, pairs, chains, segments, bests, sums, b, costs, weights, scale):
    """Leaves the derivative of a sequence's loss in the work spaces.

    RETURNS: The loss, times the weight of the sequence; and whether the derivative may be anything but zero.
    """
    gold = corpus.gold
    clamp = corpus.clamp
    size = corpus.n_states
    nodes, chain = work.nodes, work.chain
    begin, end = corpus.starts[b], corpus.starts[b + 1]
    factor = corpus.weights[b]
    n = end - begin
    clear(work.d_nodes, n)
    clear(work.d_chain, size + 2)
    if pairs is not None:
        clear(pairs.d_scores, n)
    if segments is not None:
        clear(segments.d_begins, n)
        clear(segments.d_ends, n)
        clear(segments.d_lengths, len(segments.d_lengths))
        clear(segments.d_spans, segments.uses.listed_starts[end] - segments.uses.listed_starts[begin])
    if n == 0 or factor == 0.0:
        return 0.0, False
    if chains is not None:
        add_scores(corpus.states, begin, end, size, weights, scale, False, nodes)
    if segments is not None:
        score_segments(corpus.states, nodes, segments, begin, end, size, weights, scale)
    if pairs is not None:
        add_scores(pairs.uses, begin, end, size * size, weights, scale, False, pairs.scores)
    for i in range(size + 2):
        for j in range(size):
            chain[i, j] = scale * weights[corpus.chain_start + i * size + j]
    value = reached = 0.0
    for step in range(2):  # what the annotation allows, then everything
        is_free = step == 1
        if not is_free and corpus.is_known[b]:
            if chains is not None:
                reached = path_score(work, pairs, gold[begin:end], size)
            if segments is not None:
                reached = segments_score(work, pairs, segments, segments.uses.path[begin:end], size)
        else:
            if is_free and len(costs) > 0:
                _add_costs(nodes, gold, clamp, begin, end, costs)
            if segments is not None:
                fold(nodes, segments, clamp, begin, end, size, not is_free)
                if len(segments.uses.excluded) > 0 and not corpus.is_known[b]:
                    first, last = segments.uses.listed_starts[begin], segments.uses.listed_starts[end]
                    exclude(segments.uses.excluded[first:last], segments.spans, segments.kept, costs, is_free)
            if chains is not None and not is_free:
                for t in range(n):
                    for j in range(size):
                        chains.kept[t, j] = nodes[t, j]
                        if not clamp[begin + t, j]:
                            nodes[t, j] = -np.inf
            amount = factor if is_free else -factor
            if bests is not None:
                if chains is not None:
                    value = best_path(work, chains, pairs, bests.path, n, size)
                    if math.isfinite(value):
                        use_path(work, pairs, bests.path[:n], size, amount)
                if segments is not None:
                    value = best_segments(work, pairs, segments, bests.path, n, size)
                    if math.isfinite(value):
                        use_segments(work, pairs, segments, bests.path[:n], size, amount)
            if sums is not None:
                if chains is not None:
                    value = np.nan
                    if pairs is None:
                        value = expect_scaled(work, chains, sums, n, size, amount)
                    if math.isnan(value):
                        value = expect_in_logs(work, chains, pairs, n, size, amount)
                if segments is not None:
                    value = expect_segments(work, pairs, segments, n, size, amount)
            if not is_free:
                reached = value
                if chains is not None:
                    for t in range(n):
                        for j in range(size):
                            nodes[t, j] = chains.kept[t, j]
        if reached == -np.inf:
            return 0.0, False  # the annotation is forbidden: nothing to learn
    if corpus.is_known[b]:
        if chains is not None:
            use_path(work, pairs, gold[begin:end], size, -factor)
        if segments is not None:
            use_segments(work, pairs, segments, segments.uses.path[begin:end], size, -factor)
    if segments is not None:
        cover(segments.d_begins, segments.d_ends, n, size, work.d_nodes)
    return factor * max(value - reached, 0.0) if math.isfinite(value) else np.nan, True


@helper
def _add_costs(nodes, gold, clamp, begin, end, costs):
    """Where the annotation leaves several states, a wrong one costs what the cheapest of the mistakes costs."""
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
