"""State graphs: the recursions of the linear chain over sparse arcs between states that know their tag.

Emissions, transitions, first and last are scores of tags; each arc and each state adds a score of its own, and states
that can't be reached cost nothing. Alpha and beta are kept as logarithms. Each step between two tokens is done in the
linear domain, less the maxima, if everything that meets there lies within SPREAD of them (so that no product is
below e^-600, and none is lost), and by the textbook sum of logarithms if not.

Shapes: n tokens, G tags, S states, A arcs, sorted by source; the arcs of source i are ``source_starts[i]:source_starts[i + 1]``.
Transitions are [1, G, G] or [n, G, G].
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..types import Floats
from . import helper, kernel
from .numerics import SPREAD, best_end, draw, log_sum, merge


class Graph(NamedTuple):
    """Arcs between states, see `types.StateGraph`, by their source and by their target."""

    source_starts: NDArray[np.int64]  # [S + 1] the arcs of source i are source_starts[i]:source_starts[i + 1]
    source: NDArray[np.int32]  # [A]
    target: NDArray[np.int32]  # [A]
    scores: Floats  # [A]
    first: Floats  # [S]
    last: Floats  # [S]
    tag_of: NDArray[np.int32]  # [S]
    target_starts: NDArray[
        np.int64
    ]  # [S + 1] the arcs into state j are by_target[target_starts[j]:target_starts[j + 1]]
    by_target: NDArray[np.int64]  # [A]


class Posterior(NamedTuple):
    """What `forward` and `backward` leave, and how states spell spans."""

    alpha: Floats  # [n, S]
    beta: Floats  # [n, S]
    log_z: Floats  # [B]
    continues: NDArray[np.bool_]  # [G, G] which tag, directly after which, goes on with the same span
    label_starts: NDArray[np.int64]  # [L + 1] the states of label l are label_starts[l]:label_starts[l + 1]


@helper
def _arc_scores(transitions, k, graph, scores, potentials):
    """Scores of all arcs and their exponentials, less the maximum. RETURNS (float64, float64): The maximum, and how far from it
    the smallest finite score lies."""
    source, target, tag_of = graph.source, graph.target, graph.tag_of
    for a in range(scores.shape[0]):
        scores[a] = transitions[k, tag_of[source[a]], tag_of[target[a]]] + graph.scores[a]
    return _exponentials(scores, potentials)


@helper
def _exponentials(row, out):
    """exp of a row less its maximum. RETURNS (float64, float64): The maximum, and the distance of the smallest finite
    entry."""
    largest, smallest = -np.inf, np.inf
    for i in range(row.shape[0]):
        largest = max(largest, row[i])
        if row[i] > -np.inf:
            smallest = min(smallest, row[i])
    if largest == -np.inf:
        out[:] = 0.0
        return 0.0, 0.0
    for i in range(row.shape[0]):
        out[i] = np.exp(row[i] - largest) if row[i] > -np.inf else 0.0
    return largest, largest - smallest


@kernel
def forward(scores, graph, alpha, log_z):
    """Forward pass.

    scores (linear_chain.Scores): Of tags.
    graph (Graph)
    alpha (float64[n, S]): Receives the log score of all prefixes that end in each state.
    log_z (float64[B]): Receives the log partition.
    """
    emissions, transitions, first, last, starts = scores
    source_starts, _, target, _, graph_first, graph_last, tag_of, _, _ = graph
    states = tag_of.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    arcs, potentials = np.empty(target.shape[0]), np.empty(target.shape[0])
    before, total, largest = np.empty(states), np.empty(states), np.empty(states)
    terms = np.empty(states)
    shift = spread = 0.0
    if step == 0 and emissions.shape[0] > 0:
        shift, spread = _arc_scores(transitions, 0, graph, arcs, potentials)
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            log_z[b] = 0.0
            continue
        for j in range(states):
            alpha[begin, j] = first[tag_of[j]] + graph_first[j] + emissions[begin, tag_of[j]]
        # alpha[t, j] = emissions[t, j] + logsum_i(alpha[t-1, i] + arc[i, j])
        for t in range(begin + 1, end):
            if step == 1:
                shift, spread = _arc_scores(transitions, t, graph, arcs, potentials)
            before_shift, before_spread = _exponentials(alpha[t - 1], before)
            total[:] = 0.0
            if before_spread <= SPREAD and spread <= SPREAD:
                for i in range(states):
                    if before[i] > 0.0:
                        for a in range(source_starts[i], source_starts[i + 1]):
                            total[target[a]] += before[i] * potentials[a]
                for j in range(states):
                    if total[j] > 0.0:
                        alpha[t, j] = np.log(total[j]) + before_shift + shift + emissions[t, tag_of[j]]
                    else:
                        alpha[t, j] = -np.inf
                continue
            largest[:] = -np.inf
            for i in range(states):
                if alpha[t - 1, i] > -np.inf:
                    for a in range(source_starts[i], source_starts[i + 1]):
                        largest[target[a]] = max(largest[target[a]], alpha[t - 1, i] + arcs[a])
            for i in range(states):
                if alpha[t - 1, i] > -np.inf:
                    for a in range(source_starts[i], source_starts[i + 1]):
                        if arcs[a] > -np.inf:
                            total[target[a]] += np.exp(alpha[t - 1, i] + arcs[a] - largest[target[a]])
            for j in range(states):
                if total[j] > 0.0:
                    alpha[t, j] = np.log(total[j]) + largest[j] + emissions[t, tag_of[j]]
                else:
                    alpha[t, j] = -np.inf
        for j in range(states):
            terms[j] = alpha[end - 1, j] + last[tag_of[j]] + graph_last[j]
        log_z[b] = log_sum(terms)


@kernel
def backward(scores, graph, beta):
    """Backward pass. Arguments as in `forward`; beta (float64[n, S]) receives the log score of all suffixes behind each state."""
    emissions, transitions, _, last, starts = scores
    source_starts, _, target, _, _, graph_last, tag_of, _, _ = graph
    states = tag_of.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    arcs, potentials = np.empty(target.shape[0]), np.empty(target.shape[0])
    arriving, behind = np.empty(states), np.empty(states)
    shift = spread = 0.0
    if step == 0 and emissions.shape[0] > 0:
        shift, spread = _arc_scores(transitions, 0, graph, arcs, potentials)
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            continue
        for j in range(states):
            beta[end - 1, j] = last[tag_of[j]] + graph_last[j]
        # beta[t-1, i] = logsum_j(arc[i, j] + emissions[t, j] + beta[t, j])
        for t in range(end - 1, begin, -1):
            if step == 1:
                shift, spread = _arc_scores(transitions, t, graph, arcs, potentials)
            for j in range(states):
                arriving[j] = emissions[t, tag_of[j]] + beta[t, j]
            behind_shift, behind_spread = _exponentials(arriving, behind)
            safe = behind_spread <= SPREAD and spread <= SPREAD
            for i in range(states):
                total = 0.0
                if safe:
                    for a in range(source_starts[i], source_starts[i + 1]):
                        total += potentials[a] * behind[target[a]]
                    beta[t - 1, i] = np.log(total) + behind_shift + shift if total > 0.0 else -np.inf
                    continue
                largest = -np.inf
                for a in range(source_starts[i], source_starts[i + 1]):
                    largest = max(largest, arcs[a] + arriving[target[a]])
                if largest > -np.inf:
                    for a in range(source_starts[i], source_starts[i + 1]):
                        total += np.exp(arcs[a] + arriving[target[a]] - largest)
                beta[t - 1, i] = np.log(total) + largest if total > 0.0 else -np.inf


@kernel
def expectations(scores, graph, posterior, weights, out, d_graph):
    """The derivative of sum_b weights[b] · log_z[b] with respect to the scores of tags, and to those of the graph.

    posterior (tuple): alpha, beta (float64[n, S]) and log_z (float64[B]) from `forward` and `backward`.
    weights (float64[B]): Factor of each sequence.
    out (linear_chain.Scores), d_graph (tuple): Are added to; of the graph its arcs, firsts and lasts.
    """
    emissions, transitions, _, _, starts = scores
    source_starts, _, target, _, _, _, tag_of, _, _ = graph
    alpha, beta, log_z = posterior
    d_emissions, d_transitions, d_first, d_last, _ = out
    d_arcs, d_graph_first, d_graph_last = d_graph
    states = tag_of.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    arcs, potentials = np.empty(target.shape[0]), np.empty(target.shape[0])
    arriving, before, behind = np.empty(states), np.empty(states), np.empty(states)
    shift = 0.0
    if step == 0 and emissions.shape[0] > 0:
        shift, _ = _arc_scores(transitions, 0, graph, arcs, potentials)
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end or log_z[b] == -np.inf:
            continue
        for t in range(begin, end):
            for j in range(states):
                p = weights[b] * np.exp(alpha[t, j] + beta[t, j] - log_z[b])
                d_emissions[t, tag_of[j]] += p
                if t == begin:
                    d_first[tag_of[j]] += p
                    d_graph_first[j] += p
                if t == end - 1:
                    d_last[tag_of[j]] += p
                    d_graph_last[j] += p
            if t == begin:
                continue
            if step == 1:
                shift, _ = _arc_scores(transitions, t, graph, arcs, potentials)
            for j in range(states):
                arriving[j] = emissions[t, tag_of[j]] + beta[t, j]
            before_shift, _ = _exponentials(alpha[t - 1], before)
            behind_shift, _ = _exponentials(arriving, behind)
            exponent = before_shift + shift + behind_shift - log_z[b]
            # What vanishes in the product below is less than 1e-308 · e^exponent.
            safe = exponent <= SPREAD
            factor = weights[b] * np.exp(exponent) if safe else 0.0
            for i in range(states):
                if alpha[t - 1, i] == -np.inf:
                    continue
                for a in range(source_starts[i], source_starts[i + 1]):
                    j = target[a]
                    if safe:
                        edge = before[i] * potentials[a] * behind[j] * factor
                    else:
                        edge = weights[b] * np.exp(alpha[t - 1, i] + arcs[a] + arriving[j] - log_z[b])
                    d_transitions[t * step, tag_of[i], tag_of[j]] += edge
                    d_arcs[a] += edge


@kernel
def viterbi(scores, graph, path, totals):
    """Most probable path of each sequence; the lowest state wins a tie. Scores and graph as in `forward`.

    path (int32[n]): Receives the states, -1 where the sequence has no allowed path.
    totals (float64[B]): Receives their score.
    """
    emissions, transitions, first, last, starts = scores
    source_starts, _, target, arc_scores, graph_first, graph_last, tag_of, _, _ = graph
    tokens, states = emissions.shape[0], tag_of.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    delta, following = np.empty((1, states)), np.empty(states)  # score of the best prefix that ends here
    ends = last[tag_of] + graph_last
    back = np.empty((tokens, states), dtype=np.int32)
    for b in range(starts.shape[0] - 1):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            totals[b] = 0.0
            continue
        for j in range(states):
            delta[0, j] = first[tag_of[j]] + graph_first[j] + emissions[begin, tag_of[j]]
        # delta[t, j] = emissions[t, j] + max_i(delta[t-1, i] + arc[i, j])
        for t in range(begin + 1, end):
            following[:] = -np.inf
            for i in range(states):
                if delta[0, i] == -np.inf:
                    continue
                row = transitions[t * step, tag_of[i]]
                for a in range(source_starts[i], source_starts[i + 1]):
                    j = target[a]
                    score = delta[0, i] + row[tag_of[j]] + arc_scores[a]
                    if score > following[j]:
                        following[j] = score
                        back[t, j] = i
            for j in range(states):
                delta[0, j] = following[j] + emissions[t, tag_of[j]]
        best, totals[b] = best_end(delta, 0, ends)
        if best == -1:
            path[begin:end] = -1
            continue
        for t in range(end - 1, begin, -1):
            path[t] = best
            best = back[t, best]
        path[begin] = best


@kernel
def n_best(scores, graph, n, paths, totals):
    """The n best paths of one sequence of at least one token, best first.

    scores, graph: As in `forward`.
    paths (int32[n, T]), totals (float64[n]): Receive the paths.
    RETURNS (int): How many paths there are, at most n.
    """
    emissions, transitions, first, last, _ = scores
    _, source, _, arc_scores, graph_first, graph_last, tag_of, target_starts, by_target = graph
    tokens, states = emissions.shape[0], tag_of.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    delta = np.full((tokens, states, n), -np.inf)  # scores of the n best prefixes that end here, best first
    from_state, from_rank = np.full((tokens + 1, states, n), np.int32(-1)), np.empty((tokens + 1, states, n), np.int32)
    rows, arcs, sums = np.empty(states, dtype=np.int64), np.empty(states), np.empty(n)
    for j in range(states):
        delta[0, j, 0] = first[tag_of[j]] + graph_first[j] + emissions[0, tag_of[j]]
    for t in range(1, tokens + 1):
        # Row `tokens` is a single state after the last token, reached through `last`.
        for j in range(states if t < tokens else 1):
            n_arcs = target_starts[j + 1] - target_starts[j] if t < tokens else states
            for m in range(n_arcs):
                if t < tokens:
                    a = by_target[target_starts[j] + m]
                    i, arcs[m] = source[a], transitions[t * step, tag_of[source[a]], tag_of[j]] + arc_scores[a]
                else:
                    i, arcs[m] = m, last[tag_of[m]] + graph_last[m]
                rows[m] = (t - 1) * states + i
            found = merge(delta.reshape(-1, n), rows, arcs[:n_arcs], sums, from_state[t, j], from_rank[t, j])
            for rank in range(found):
                from_state[t, j, rank] = rows[from_state[t, j, rank]] - (t - 1) * states
                if t < tokens:
                    delta[t, j, rank] = sums[rank] + emissions[t, tag_of[j]]
                else:
                    totals[rank] = sums[rank]
    found = 0
    while found < n and from_state[tokens, 0, found] >= 0:
        state, rank = 0, found
        for t in range(tokens, 0, -1):
            state, rank = from_state[t, state, rank], from_rank[t, state, rank]
            paths[found, t - 1] = state
        found += 1
    return found


@kernel
def sample(scores, graph, alpha, uniforms, paths):
    """Draw paths from the posterior, backwards from what `forward` left.

    uniforms (float64[N, n]): Random numbers in [0, 1), one per path and token.
    paths (int32[N, n]): Receives the states, -1 where a sequence has no allowed path.
    """
    _, transitions, _, last, starts = scores
    _, source, _, arc_scores, _, graph_last, tag_of, target_starts, by_target = graph
    states = tag_of.shape[0]
    step = 1 if transitions.shape[0] > 1 else 0
    terms = np.empty(states)
    sources = np.empty(states, dtype=np.int64)
    for n in range(uniforms.shape[0]):
        for b in range(starts.shape[0] - 1):
            state = -1
            for t in range(starts[b + 1] - 1, starts[b] - 1, -1):
                at_end = t == starts[b + 1] - 1
                choices = states if at_end else target_starts[state + 1] - target_starts[state]
                for m in range(choices):
                    if at_end:
                        sources[m] = m
                        terms[m] = alpha[t, m] + last[tag_of[m]] + graph_last[m]
                    else:
                        a = by_target[target_starts[state] + m]
                        sources[m] = source[a]
                        arc = transitions[(t + 1) * step, tag_of[source[a]], tag_of[state]] + arc_scores[a]
                        terms[m] = alpha[t, source[a]] + arc
                chosen = draw(terms[:choices], uniforms[n, t])
                if chosen == -1:  # only possible at the last token: no path at all
                    paths[n, starts[b] : t + 1] = -1
                    break
                state = sources[chosen]
                paths[n, t] = state


# -------------------------------------------------------------------------------------------------------------- spans
#
# Given the scores, the states are a Markov chain:
#
#     P(j at t | i at t - 1) = exp(arc[i, j] + emissions[t, j] + beta[t, j] - beta[t - 1, i])
#
# so a span has the probability that one begins, times those of its steps, times that of leaving it, summed over the states
# of its label.


@helper
def _enter(scores, graph, posterior, s, t, entered):
    """entered[j] = P(a span begins at token t of sequence s with state j)."""
    emissions, transitions, _, _, starts = scores
    alpha, beta, log_z, continues, _ = posterior
    target, tag_of = graph.target, graph.tag_of
    k = t if transitions.shape[0] > 1 else 0
    at_start = t == starts[s]
    for j in range(tag_of.shape[0]):
        entered[j] = np.exp(alpha[t, j] + beta[t, j] - log_z[s]) if at_start else 0.0
    if at_start:
        return
    for i in range(tag_of.shape[0]):
        if alpha[t - 1, i] == -np.inf:
            continue
        for a in range(graph.source_starts[i], graph.source_starts[i + 1]):
            j = target[a]
            if not continues[tag_of[i], tag_of[j]] and beta[t, j] > -np.inf:
                arc = transitions[k, tag_of[i], tag_of[j]] + graph.scores[a]
                entered[j] += np.exp(alpha[t - 1, i] + arc + emissions[t, tag_of[j]] + beta[t, j] - log_z[s])


@helper
def _go_on(scores, graph, posterior, label, at_end, t, now, following):
    """One step of spans of a label: now (float64[S]), of its states at t - 1, becomes the probabilities of those that go on at t.

    following (float64[S]): Work space.
    RETURNS (float64): P(the span does not go on); at_end: the sequence ends before t.
    """
    emissions, transitions, _, _, _ = scores
    target, tag_of, beta, continues = graph.target, graph.tag_of, posterior.beta, posterior.continues
    low, high = posterior.label_starts[label], posterior.label_starts[label + 1]
    k = t if transitions.shape[0] > 1 and not at_end else 0
    leaving = 0.0
    following[low:high] = 0.0
    for i in range(low, high):
        if now[i] == 0.0:
            continue
        if at_end:
            leaving += now[i]
            continue
        for a in range(graph.source_starts[i], graph.source_starts[i + 1]):
            j = target[a]
            if beta[t, j] == -np.inf:
                continue
            arc = transitions[k, tag_of[i], tag_of[j]] + graph.scores[a]
            p = now[i] * np.exp(arc + emissions[t, tag_of[j]] + beta[t, j] - beta[t - 1, i])
            if continues[tag_of[i], tag_of[j]]:
                following[j] += p
            else:
                leaving += p
    now[low:high] = following[low:high]
    return min(leaving, 1.0)


@kernel
def span_probabilities(scores, graph, posterior, begin, end, label, probabilities):
    """Probability of each of the given spans.

    scores, graph: As in `forward`.
    posterior (Posterior)
    begin, end, label (int64[N]): The spans, by their first token, each inside one sequence.
    probabilities (float64[N]): Receives the answer.
    """
    starts = scores.starts
    now, following = np.empty(graph.tag_of.shape[0]), np.empty(graph.tag_of.shape[0])
    s = 0
    for n in range(begin.shape[0]):
        while starts[s + 1] <= begin[n]:
            s += 1
        probabilities[n] = 0.0
        if posterior.log_z[s] == -np.inf:
            continue
        _enter(scores, graph, posterior, s, begin[n], now)
        for t in range(begin[n] + 1, end[n] + 1):
            probabilities[n] = _go_on(scores, graph, posterior, label[n], t == starts[s + 1], t, now, following)


@kernel
def likely_spans(scores, graph, posterior, min_prob, begin, end, label, probabilities):
    """All spans of at least some probability, by their first token, label and length. Arguments as in `span_probabilities`.

    begin, end, label (int64[N]), probabilities (float64[N]): Receive the first N of the spans.
    RETURNS (int): How many there are, perhaps more than N.
    """
    starts, label_starts = scores.starts, posterior.label_starts
    now, following = np.empty(graph.tag_of.shape[0]), np.empty(graph.tag_of.shape[0])
    found = 0
    for s in range(starts.shape[0] - 1):
        if posterior.log_z[s] == -np.inf:
            continue
        for b in range(starts[s], starts[s + 1]):
            _enter(scores, graph, posterior, s, b, now)
            for number in range(label_starts.shape[0] - 1):
                low, high = label_starts[number], label_starts[number + 1]
                for t in range(b + 1, starts[s + 1] + 1):
                    possible = now[low:high].sum()
                    if possible < min_prob or possible == 0.0:
                        break
                    p = _go_on(scores, graph, posterior, number, t == starts[s + 1], t, now, following)
                    if p >= min_prob and p > 0.0:
                        if found < begin.shape[0]:
                            begin[found], end[found], label[found], probabilities[found] = b, t, number, p
                        found += 1
    return found
