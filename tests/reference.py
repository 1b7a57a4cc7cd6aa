"""The definition of what the kernels compute: every path of a small problem, one after the other, in plain Python."""

import functools
import math

import numpy as np


def sequences(scores):
    """Begin and end of each sequence."""
    if scores.starts is None:
        return [(0, len(scores.emissions))]
    return [(int(begin), int(end)) for begin, end in zip(scores.starts, scores.starts[1:])]


def transition(scores, t, i, j):
    matrix = scores.transitions if np.ndim(scores.transitions) == 2 else scores.transitions[t]
    return float(matrix[i, j])


def path_score(scores, begin, end, path):
    """Score of one path (a state for each of the tokens begin:end)."""
    if begin == end:
        return 0.0
    total = float(scores.first[path[0]]) + float(scores.last[path[-1]])
    for t, state in zip(range(begin, end), path):
        total += float(scores.emissions[t, state])
        if t > begin:
            total += transition(scores, t, path[t - begin - 1], state)
    return total


def paths(scores, begin, end, clamp=None):
    """All (score, path) that are allowed, best first; among equals the lower last state, then the one before it."""
    found = []
    for path in possible_paths(scores, begin, end, clamp):
        score = path_score(scores, begin, end, path)
        if score > -math.inf:
            found.append((score, path))
    return sorted(found, key=lambda item: (-item[0], item[1][::-1]))


def possible_paths(scores, begin, end, clamp=None):
    """All paths, but for those of which a beginning is forbidden already."""
    size = np.shape(scores.emissions)[1]
    found = [()]
    for t in range(begin, end):
        allowed = np.asarray(scores.emissions[t]) > -np.inf
        if clamp is not None:
            allowed = allowed & clamp[t]
        states = np.flatnonzero(allowed).tolist()
        if t == begin:
            found = [(state,) for state in states]
        else:
            steps = [[j for j in states if transition(scores, t, i, j) > -math.inf] for i in range(size)]
            found = [(*path, state) for path in found for state in steps[path[-1]]]
    return found


def log_sum(terms):
    largest = max(terms, default=-math.inf)
    if largest == -math.inf:
        return largest
    return largest + math.log(math.fsum(math.exp(term - largest) for term in terms))


def log_partition(scores, clamp=None):
    return np.array([log_sum([score for score, _ in paths(scores, *ends, clamp)]) for ends in sequences(scores)])


def uses(scores, begin, end, path):
    """Index of each score that a path uses, as (field, index)."""
    if begin == end:
        return
    yield "first", (path[0],)
    yield "last", (path[-1],)
    for t, state in zip(range(begin, end), path):
        yield "emissions", (t, state)
        if t > begin:
            arc = (path[t - begin - 1], state)
            yield "transitions", arc if np.ndim(scores.transitions) == 2 else (t, *arc)


def expectations(scores, clamp=None, weights=None):
    """Weighted sum over sequences of the expected uses of each score."""
    expected = {name: np.zeros(np.shape(getattr(scores, name))) for name in scores._fields if name != "starts"}
    for b, (begin, end) in enumerate(sequences(scores)):
        allowed = paths(scores, begin, end, clamp)
        log_z = log_sum([score for score, _ in allowed])
        for score, path in allowed:
            for name, index in uses(scores, begin, end, path):
                expected[name][index] += math.exp(score - log_z) * (1.0 if weights is None else weights[b])
    return scores._replace(**expected)


def n_best(scores, n, clamp=None):
    return [paths(scores, begin, end, clamp)[:n] for begin, end in sequences(scores)]


# ----------------------------------------------------------------------------------------------------------- segments


def segment_sequences(scores):
    if scores.starts is None:
        return [(0, len(scores.tokens))]
    return [(int(begin), int(end)) for begin, end in zip(scores.starts, scores.starts[1:])]


def segmentations(begin, end, longest, size):
    """All lists of segments (begin, end, state) that cover the tokens begin:end."""
    if begin == end:
        yield ()
        return
    for stop in range(begin + 1, min(begin + longest, end) + 1):
        for rest in segmentations(stop, end, longest, size):
            for state in range(size):
                yield ((begin, stop, state), *rest)


def listed_number(scores, begin, end):
    """The number of a span in the list of spans, None if it is not there."""
    if scores.listed is None:
        return None
    for n in range(int(scores.listed.starts[begin]), int(scores.listed.starts[begin + 1])):
        if scores.listed.lengths[n] == end - begin:
            return n
    return None


def uses_of_segment(scores, begin, end, state):
    """Index of each score that a segment uses wherever it stands, as (field, index)."""
    yield "begins", (begin, state)
    yield "ends", (end - 1, state)
    yield "lengths", (end - begin - 1, state)
    for t in range(begin, end):
        yield "tokens", (t, state)
    listed = listed_number(scores, begin, end)
    if listed is not None:
        yield "spans", (listed, state)


def uses_between_segments(scores, segments):
    """Index of each score that a segmentation uses by the order of its states, as (field, index)."""
    for n, (begin, _, state) in enumerate(segments):
        if n == 0:
            yield "first", (state,)
        else:
            arc = (segments[n - 1][2], state)
            yield "transitions", arc if np.ndim(scores.transitions) == 2 else (begin, *arc)
    if segments:
        yield "last", (segments[-1][2],)


def segment_uses(scores, segments):
    """Index of each score that a segmentation uses, as (field, index)."""
    for segment in segments:
        yield from uses_of_segment(scores, *segment)
    yield from uses_between_segments(scores, segments)


def segments_allowed(clamp, segments, opening):
    """Does a clamp allow them? opening: the first token of the sequence."""
    if clamp is None:
        return True
    return all(
        all(clamp.states[t, state] for t in range(begin, end))
        and (begin == opening or clamp.may_begin[begin])
        and not any(clamp.must_begin[t] for t in range(begin + 1, end))
        for begin, end, state in segments
    )


def segment_paths(scores, begin, end, clamp=None):
    """All (score, segments) that are allowed, best first; among equals the lower last state first, then the shorter last
    segment, then the same of the one before."""
    longest, size = np.shape(scores.lengths)
    found = []

    @functools.cache
    def alone(segment):
        if not segments_allowed(clamp, [segment], begin):
            return -math.inf
        return sum(float(getattr(scores, name)[index]) for name, index in uses_of_segment(scores, *segment))

    for segments in segmentations(begin, end, longest, size):
        score = sum(map(alone, segments))
        if score > -math.inf:
            between = uses_between_segments(scores, segments)
            score += sum(float(getattr(scores, name)[index]) for name, index in between)
            if score > -math.inf:
                found.append((score, segments))
    return sorted(found, key=lambda item: (-item[0], [(state, e - b) for b, e, state in item[1][::-1]]))


def segment_log_partition(scores, clamp=None):
    ends = segment_sequences(scores)
    return np.array([log_sum([score for score, _ in segment_paths(scores, *pair, clamp)]) for pair in ends])


def segment_expectations(scores, clamp=None, weights=None):
    """Weighted sum over sequences of the expected uses of each score."""
    names = [name for name in scores._fields if name not in ("listed", "starts")]
    expected = {name: np.zeros(np.shape(getattr(scores, name))) for name in names}
    for b, (begin, end) in enumerate(segment_sequences(scores)):
        allowed = segment_paths(scores, begin, end, clamp)
        log_z = log_sum([score for score, _ in allowed])
        for score, segments in allowed:
            for name, index in segment_uses(scores, segments):
                expected[name][index] += math.exp(score - log_z) * (1.0 if weights is None else weights[b])
    return scores._replace(**expected)


def segment_marginals(scores, clamp=None):
    """Probability of each segment, by (begin, end, state)."""
    probability = {}
    for begin, end in segment_sequences(scores):
        allowed = segment_paths(scores, begin, end, clamp)
        log_z = log_sum([score for score, _ in allowed])
        for score, segments in allowed:
            for segment in segments:
                probability[segment] = probability.get(segment, 0.0) + math.exp(score - log_z)
    return probability
