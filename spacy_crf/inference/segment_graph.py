"""Segments under a state graph: a chain of segments whose states are those of the graph.

Rules are paths in a graph whose states know their label. A semi-Markov chain over these states is a semi-Markov chain like
any other, so `SemiMarkov` answers all its questions; what it says of states is then added up by label.
"""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from ..kernels import best_first as kernels
from ..types import Floats, SegmentClamp, SegmentScores, SpanList, StateGraph
from . import semi_markov
from .state_graph import cut_starts


class JoinedSegments(NamedTuple):
    """The sequences of each document as a single one: between two of them stands a break, a segment with a state of its own."""

    scores: SegmentScores  # of S + 1 states
    clamp: Optional[SegmentClamp]
    tokens: NDArray[np.int64]  # [T] places of the tokens in the sequences


def join_segment_sequences(
    scores: SegmentScores, clamp: Optional[SegmentClamp] = None, doc_starts: Optional[NDArray[np.int64]] = None
) -> JoinedSegments:
    """Sequences whose segmentations are those of all sequences of a document together, with the same scores.

    What `first` and `last` say of sequences becomes the transitions from and to the break, state S, which no token has and
    no segment goes across.

    doc_starts (int64[D + 1]): Where the documents start, each with a sequence; None for a single document.
    """
    n_tokens, size = scores.tokens.shape
    doc_starts = np.array([0, n_tokens]) if doc_starts is None else doc_starts
    starts = doc_starts if scores.starts is None else np.asarray(scores.starts)
    opening = np.setdiff1d(starts, doc_starts)
    places = np.arange(n_tokens) + np.searchsorted(opening, np.arange(n_tokens), side="right")
    breaks = opening + np.arange(len(opening))
    length = n_tokens + len(breaks)

    tokens = np.full((length, size + 1), -np.inf)
    tokens[places, :size] = scores.tokens
    tokens[breaks, size] = 0.0
    begins, ends = np.zeros((2, length, size + 1))
    begins[places, :size] = scores.begins
    ends[places, :size] = scores.ends
    of_break = np.full(len(scores.lengths), -np.inf)
    of_break[0] = 0.0
    before = np.asarray(scores.transitions)
    per_position = before.ndim == 3
    transitions = np.full(((length,) if per_position else ()) + (size + 1, size + 1), -np.inf)
    if per_position:
        transitions[places, :size, :size] = before
    else:
        transitions[:size, :size] = before
    transitions[..., :size, size] = scores.last
    transitions[..., size, :size] = scores.first
    listed = scores.listed
    if listed is not None:
        counts = np.zeros(length, dtype=np.int64)
        counts[places] = np.diff(listed.starts)
        listed = SpanList(np.append(0, np.cumsum(counts)).astype(np.int64), listed.lengths)
    joined = SegmentScores(
        tokens,
        begins,
        ends,
        np.column_stack([scores.lengths, of_break]),
        np.pad(scores.spans, ((0, 0), (0, 1))),
        transitions,
        np.append(scores.first, -np.inf),
        np.append(scores.last, -np.inf),
        listed,
        (doc_starts + np.searchsorted(opening, doc_starts)).astype(np.int64),
    )
    return JoinedSegments(joined, _join_clamp(clamp, length, places, breaks), places)


def _join_clamp(clamp, length, places, breaks) -> Optional[SegmentClamp]:
    if clamp is None:
        return None
    states = np.zeros((length, clamp.states.shape[1] + 1), dtype=bool)
    states[places, :-1] = clamp.states
    states[breaks, -1] = True
    may_begin, must_begin = np.ones(length, dtype=bool), np.ones(length, dtype=bool)
    may_begin[places] = clamp.may_begin
    must_begin[places] = clamp.must_begin
    may_begin[breaks + 1] = True  # as wherever a sequence begins
    return SegmentClamp(states, may_begin, must_begin)


def split_segment_expectations(
    tokens: NDArray[np.int64], expected: SegmentScores, state_of: NDArray[np.int32], scores: SegmentScores
) -> SegmentScores:
    """Expectations of joined sequences with the states of a graph as those of the sequences they were made of.

    tokens (int64[T]): Places of the tokens in the joined sequences.
    state_of (int32[S']): What each state was before, S for the break.
    scores (SegmentScores): Of the sequences.
    """
    size = scores.tokens.shape[1]
    rows = [by_label(getattr(expected, name)[tokens], state_of, size) for name in ("tokens", "begins", "ends")]
    lengths, spans = by_label(expected.lengths, state_of, size), by_label(expected.spans, state_of, size)
    steps = by_label(by_label(expected.transitions, state_of, size + 1).swapaxes(-1, -2), state_of, size + 1)
    steps = steps.swapaxes(-1, -2)
    every = steps.reshape(-1, size + 1, size + 1).sum(axis=0)
    return SegmentScores(
        *rows,
        lengths,
        spans,
        steps[tokens, :size, :size] if steps.ndim == 3 else steps[:size, :size],
        every[size, :size] + by_label(expected.first, state_of, size),
        every[:size, size] + by_label(expected.last, state_of, size),
        scores.listed,
        scores.starts,
    )


class ExpandedSegments(NamedTuple):
    """Joined sequences with the states of a graph."""

    scores: SegmentScores  # of S' states
    clamp: Optional[SegmentClamp]
    tokens: NDArray[np.int64]  # [T] places of the tokens in the sequence
    state_of: NDArray[np.int32]  # [S'] what each state was before, S for the break


def expand(joined: JoinedSegments, graph: StateGraph) -> ExpandedSegments:
    """The same segments with the states of a graph (``graph.tag_of`` says what they were)."""
    scores = joined.scores
    if len(joined.tokens) == len(scores.tokens):
        # Without breaks their states would only be forbidden everywhere, and so keep the sums from the linear domain.
        graph = _part(graph, graph.tag_of < scores.tokens.shape[1] - 1)
    state_of = graph.tag_of
    size = len(state_of)
    before = scores.transitions
    transitions = np.full((*before.shape[:-2], size, size), -np.inf)
    arcs = state_of[graph.source], state_of[graph.target]
    transitions[..., graph.source, graph.target] = before[..., arcs[0], arcs[1]] + graph.scores
    expanded = SegmentScores(
        *(np.ascontiguousarray(array[:, state_of]) for array in scores[:5]),
        transitions,
        scores.first[state_of] + graph.first,
        scores.last[state_of] + graph.last,
        scores.listed,
        scores.starts,
    )
    clamp = joined.clamp
    if clamp is not None:
        clamp = clamp._replace(states=np.ascontiguousarray(clamp.states[:, state_of]))
    return ExpandedSegments(expanded, clamp, joined.tokens, state_of)


def _part(graph: StateGraph, kept: NDArray[np.bool_]) -> StateGraph:
    """The graph of some of its states (bool[S'])."""
    number = np.cumsum(kept) - 1
    arcs = kept[graph.source] & kept[graph.target]
    source, target = (number[ends[arcs]].astype(np.int32) for ends in (graph.source, graph.target))
    return StateGraph(source, target, graph.scores[arcs], graph.first[kept], graph.last[kept], graph.tag_of[kept])


def best_first(
    joined: JoinedSegments, events: NDArray[np.int32], automata: tuple, max_nodes: int
) -> tuple[int, NDArray[np.int32]]:
    """Best segmentation of joined sequences that a set of automata accepts, by best-first search.

    events (int32[S + 1, S + 1]): Event of each state after each state.
    automata (tuple): One below the other, and max_nodes (int): as in `kernels.best_first`.
    RETURNS (int, int32[T]): 1 if it was found, 0 if there is none, -1 if there were too many prefixes; and the path.
    """
    part = _part_of(joined)
    path = np.empty(len(part.tokens), dtype=np.int32)
    found = kernels.best_first_segments(part.folded, kernels.Automata(events, *automata), max_nodes, path)
    return found, path


class SegmentSteps(NamedTuple):
    """What the segmentations of joined sequences are made of: steps into segments, and segments."""

    begin: NDArray[np.int64]  # [N] first token of the segment
    end: NDArray[np.int64]  # [N] the token behind the segment, -1 for steps
    before: NDArray[np.int64]  # [N] state of the segment that a step leaves, at the start the break; -1 for segments
    state: NDArray[np.int64]  # [N]
    scores: Floats  # [N]
    best: Floats  # [N] score of the best segmentation with it


def possible_steps(joined: JoinedSegments) -> SegmentSteps:
    """All steps and segments that are part of some segmentation, in the order of their first token."""
    part = _part_of(joined)
    folded = part.folded
    tokens, size = part.tokens.shape
    longest = len(part.lengths)
    leave, out = np.empty((2, tokens, size))
    kernels.best_segment_suffixes(folded, leave, out)
    left = np.full((tokens, size), -np.inf)  # the best prefixes that end with a segment of this state
    found = []
    for t in range(tokens):
        # left[t-1, i] + transitions[i, j] + out[t, j]
        if t == 0:
            step, prefix = part.first[np.newaxis], np.zeros((1, 1))
        else:
            step, prefix = part.transitions[t if part.per_position else 0], left[t - 1][:, np.newaxis]
        best = prefix + step + out[t]
        before, state = np.nonzero(best > -np.inf)
        leaves = np.full(len(state), size - 1) if t == 0 else before
        found.append(
            (np.full(len(state), t), np.full(len(state), -1), leaves, state, step[before, state], best[before, state])
        )
        # entered[t, j] + opening[t, j] + lengths[k, j] + spans[.., j] + closing[t+k, j] + leave[t+k, j]
        entered = (prefix + step).max(axis=0)
        ends = np.arange(t, min(t + longest, tokens))
        score = folded.opening[t] + folded.lengths[: len(ends)] + folded.closing[ends]
        numbers = folded.span_of[t, : len(ends)]
        score[numbers >= 0] += folded.spans[numbers[numbers >= 0]]
        score[folded.reach[ends] > t] = -np.inf
        left[ends] = np.maximum(left[ends], entered + score)
        best = entered + score + leave[ends]
        last, state = np.nonzero(best > -np.inf)
        value = score[last, state] + np.where(ends[last] == tokens - 1, part.last[state], 0.0)
        none = np.full(len(state), -1)
        found.append((np.full(len(state), t), ends[last] + 1, none, state, value, best[last, state]))
    return SegmentSteps(*(np.concatenate(column) for column in zip(*found)))


def _part_of(joined: JoinedSegments):
    batch = semi_markov._check(joined.scores, joined.clamp)
    return batch.cut(batch.chunk(0, 1))


def cut_segments(
    scores: SegmentScores, clamp: Optional[SegmentClamp], tokens: slice
) -> tuple[SegmentScores, Optional[SegmentClamp]]:
    """The scores and the clamp of one document of a batch."""
    cut, listed, spans = {}, scores.listed, scores.spans
    for name in ("tokens", "begins", "ends"):
        cut[name] = getattr(scores, name)[tokens]
    if listed is not None:
        first, last = int(listed.starts[tokens.start]), int(listed.starts[tokens.stop])
        listed = SpanList(listed.starts[tokens.start : tokens.stop + 1] - first, listed.lengths[first:last])
        spans = spans[first:last]
    if np.ndim(scores.transitions) == 3:
        cut["transitions"] = scores.transitions[tokens]
    of_clamp = None if clamp is None else SegmentClamp(*(array[tokens] for array in clamp))
    starts = cut_starts(scores.starts, tokens)
    return scores._replace(**cut, spans=spans, listed=listed, starts=starts), of_clamp


def labels_of(states: NDArray[np.int32], state_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """A path of the states of a graph as a path of those it was made for; GOES_ON and -1 stay."""
    return np.where(states >= 0, state_of[states], states).astype(np.int32)


def by_label(columns: Floats, state_of: NDArray[np.int32], n_labels: int) -> Floats:
    """Sums of the columns that belong to each label: float64[..., S] from float64[..., S']; other columns are left out."""
    summed = np.zeros((*columns.shape[:-1], n_labels))
    for label in range(n_labels):
        summed[..., label] = columns[..., state_of == label].sum(axis=-1)
    return summed
