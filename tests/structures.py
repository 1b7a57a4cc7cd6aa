"""The table of structures that `test_structures` and the tests of losses go through: a new structure is one row.

A row knows how problems of its kind are made, and how each of their labellings is enumerated in plain Python.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from spacy_crf import arrays
from spacy_crf.inference.higher_order import HigherOrder
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.pruned_lattice import HigherOrderScores, Orders, key_of
from spacy_crf.inference.semi_markov import SemiMarkov
from spacy_crf.inference.structure import Structure
from spacy_crf.schemes import SCHEMES
from spacy_crf.types import (
    GOES_ON,
    ChainScores,
    SegmentClamp,
    SegmentScores,
    SpanList,
    StateGraph,
)
from tests import reference

# Scores on a coarse grid make ties frequent; the large ones make the linear domain give up.
SCORES = {
    "moderate": st.floats(-5, 5, width=32),
    "ties": st.sampled_from([-1.0, 0.0, 0.0, 1.0]),
    "forbidden": st.one_of(st.just(-np.inf), st.floats(-3, 3, width=32)),
    "extreme": st.sampled_from([-np.inf, -1000.0, -400.0, -1.0, 0.0, 0.5, 400.0, 1000.0]),
}


class Problem(NamedTuple):
    structure: Structure
    scores: Any
    clamp: Any


class Labelling(NamedTuple):
    """One way to label a sequence; a labelling may be possible in several ways."""

    score: float
    states: tuple[int, ...]
    uses: list[tuple[str, tuple[int, ...]]]  # field and index of each score


class Row(NamedTuple):
    """make (Callable): From lengths of sequences, number of states, and a function that fills shapes, to a Problem."""

    make: Callable[..., Problem]
    ways: Callable[
        [Any, Any, int, int], list[Labelling]
    ]  # of a structure and scores: all that a sequence has, best first
    ties: bool = True  # whether the order of equals is part of the answer


def starts_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


# ------------------------------------------------------------------------------------------------------------- problems


def fill_with(rng, spread=2.0, forbidden=0.0):
    """Fills shapes with random scores; some of the transitions may be forbidden."""

    def fill(shape, name=""):
        scores = rng.normal(scale=spread, size=shape)
        if name == "transitions":
            scores[rng.random(shape) < forbidden] = -np.inf
        return scores

    return fill


def clamp_of(scores, bools):
    """bools (Callable): From a number and the chance of being forbidden."""
    n_tokens, size = scores[0].shape
    states = bools(n_tokens * size, 1 / 3).reshape(n_tokens, size)
    if not isinstance(scores, SegmentScores):
        return states
    return SegmentClamp(states, bools(n_tokens, 1 / 3), bools(n_tokens, 2 / 3))


def either(clamp, other):
    """Allows what one of two clamps allows, and more."""
    if not isinstance(clamp, SegmentClamp):
        return clamp | other
    return SegmentClamp(
        clamp.states | other.states, clamp.may_begin | other.may_begin, clamp.must_begin & other.must_begin
    )


def chain(lengths, size, fill, rng, per_position=False):
    tokens = sum(lengths)
    shape = (tokens, size, size) if per_position else (size, size)
    scores = ChainScores(
        fill((tokens, size)), fill(shape, "transitions"), fill((size,)), fill((size,)), starts_of(lengths)
    )
    return Problem(LinearChain(), scores, None)


def scheme_chain(lengths, size, fill, rng, per_position=False, *, scheme="BILUO"):
    """Most transitions are forbidden by a scheme, for as many labels as there are states: then some of them are arcs."""
    mask = SCHEMES[scheme].transition_mask(size)
    problem = chain(lengths, len(mask.first), fill, rng, per_position)
    forbidden = {name: np.where(getattr(mask, name), getattr(problem.scores, name), -np.inf) for name in mask._fields}
    return problem._replace(scores=problem.scores._replace(**forbidden))


def higher_order(lengths, size, fill, rng, per_position=False, *, order=2):
    """Some of all n-grams have a weight."""
    tags = range(size)
    grams = [gram for m in range(2, order + 1) for gram in itertools.product((*tags, size), *(m * [tags]))]
    keys = np.array(sorted(key_of(gram, size) for gram in grams if rng.random() < 0.6), dtype=np.int64)
    scores = chain(lengths, size, fill, rng, per_position).scores
    orders = Orders(order, keys, size)
    return Problem(HigherOrder(), HigherOrderScores(*scores[:4], fill(keys.shape), orders, scores.starts), None)


def third_order(*args):
    return higher_order(*args, order=3)


def higher_order_in_graph(lengths, size, fill, rng, per_position=False):
    graph = random_graph(size, rng, copies=2, several=True)
    return Problem(HigherOrder().over(graph), higher_order(lengths, size, fill, rng, per_position).scores, None)


def segments(lengths, size, fill, rng, per_position=False, *, longest=3):
    tokens = sum(lengths)
    starts, listed = [0], []
    for length in lengths:
        for t in range(length):
            listed.extend(k + 1 for k in range(min(longest, length - t)) if rng.random() < 0.4)
            starts.append(len(listed))
    shape = (tokens, size, size) if per_position else (size, size)
    scores = SegmentScores(
        *(fill((tokens, size)) for _ in range(3)),
        fill((longest, size)),
        fill((len(listed), size)),
        fill(shape, "transitions"),
        fill((size,)),
        fill((size,)),
        SpanList(np.array(starts, dtype=np.int64), np.array(listed, dtype=np.int32)),
        starts_of(lengths),
    )
    return Problem(SemiMarkov(), scores, None)


def single_segments(*args):
    """Of one token each: the other structure by another way."""
    return segments(*args, longest=1)


def random_graph(size, rng, *, copies, several):
    """Each tag in some copies, each copy with an arc to one copy of each tag; or several of them, by which a labelling may have
    several paths."""
    n_states = copies * size
    tag_of = np.repeat(np.arange(size), copies).astype(np.int32)
    allowed = rng.random((n_states, n_states)) < 0.6
    if not several:
        chosen = rng.integers(0, copies, size=(n_states, size))
        allowed &= chosen[:, tag_of] == np.arange(n_states) % copies
    source, target = (ends.astype(np.int32) for ends in np.nonzero(allowed))
    first, last = rng.normal(size=(2, n_states))
    first[rng.random(n_states) < 0.2] = -np.inf
    if not several:
        first[np.arange(n_states) % copies > 0] = -np.inf
    return StateGraph(source, target, rng.normal(size=len(source)), first, last, tag_of)


def graph_chain(lengths, size, fill, rng, per_position=False, *, several=False):
    graph = random_graph(size, rng, copies=2, several=several)
    first = np.where(graph.first > -np.inf, fill(graph.first.shape), -np.inf)
    graph = graph._replace(scores=fill(graph.scores.shape), first=first, last=fill(graph.last.shape))
    return Problem(LinearChain().over(graph), chain(lengths, size, fill, rng, per_position).scores, None)


def latent_chain(*args):
    return graph_chain(*args, several=True)


def graph_segments(lengths, size, fill, rng, per_position=False):
    graph = random_graph(size, rng, copies=2, several=True)
    scores = segments(lengths, size, fill, rng, per_position, longest=2).scores
    return Problem(SemiMarkov().over(graph), scores, None)


# ---------------------------------------------------------------------------------------------------------- enumeration


def chain_ways(structure, scores, begin, end):
    return [
        Labelling(score, path, list(reference.uses(scores, begin, end, path)))
        for score, path in reference.paths(scores, begin, end)
    ]


def higher_order_ways(structure, scores, begin, end):
    """Those of the chain, with what their n-grams score."""
    orders, found = scores.orders, []
    digits = orders.digits(len(scores.first))
    places = {key: n for n, key in enumerate(orders.keys.tolist())}
    for way in chain_ways(structure, scores, begin, end):
        tags = [orders.size, *digits[list(way.states)].tolist()]  # behind what is in front
        keys = [
            key_of(tags[t - m : t + 1], orders.size)
            for t in range(len(tags))
            for m in range(2, min(t, orders.order) + 1)
        ]
        uses = [("grams", (places[key],)) for key in keys if key in places]
        score = way.score + sum(float(scores.grams[index]) for _, index in uses)
        if score > -math.inf:
            found.append(Labelling(score, way.states, way.uses + uses))
    return sorted(found, key=lambda way: (-way.score, way.states[::-1]))


def segment_ways(structure, scores, begin, end):
    return [
        Labelling(score, as_path(segments, begin, end), list(reference.segment_uses(scores, segments)))
        for score, segments in reference.segment_paths(scores, begin, end)
    ]


def graph_ways(structure, scores, begin, end):
    """Every path of the graph, for each labelling of tags; what the graph itself scores counts too."""
    graph = structure.graph
    arc_of = {ends: a for a, ends in enumerate(zip(graph.source.tolist(), graph.target.tolist()))}
    found = []
    of_tags = {ChainScores: chain_ways, HigherOrderScores: higher_order_ways, SegmentScores: segment_ways}
    for way in of_tags[type(scores)](structure, scores, begin, end):
        entered = [state for state in way.states if state != GOES_ON]
        if not entered:
            found.append(way)
            continue
        for path in itertools.product(*(np.flatnonzero(graph.tag_of == tag).tolist() for tag in entered)):
            arcs = [arc_of.get(pair) for pair in itertools.pairwise(path)]
            if None in arcs:
                continue
            score = graph.first[path[0]] + graph.scores[arcs].sum() + graph.last[path[-1]]
            if score > -math.inf:
                found.append(Labelling(way.score + float(score), way.states, way.uses))
    return sorted(found, key=lambda way: -way.score)


def as_path(segments, begin, end):
    path = np.full(end - begin, GOES_ON)
    for first, _, state in segments:
        path[first - begin] = state
    return tuple(path.tolist())


def is_allowed(clamp, begin, states):
    """Does a clamp allow a labelling of the tokens from `begin` on?"""
    if clamp is None:
        return True
    if not isinstance(clamp, SegmentClamp):
        return all(clamp[begin + n, state] for n, state in enumerate(states))
    state = -1
    for n, entry in enumerate(states):
        t = begin + n
        if entry == GOES_ON:
            if clamp.must_begin[t]:
                return False
        else:
            state = entry
            if n and not clamp.may_begin[t]:
                return False
        if not clamp.states[t, state]:
            return False
    return True


STRUCTURES = {
    "chain": Row(chain, chain_ways),
    "scheme": Row(scheme_chain, chain_ways),
    "order 2": Row(higher_order, higher_order_ways),
    "order 3": Row(third_order, higher_order_ways),
    "segments": Row(segments, segment_ways),
    "segments of one token": Row(single_segments, segment_ways),
    "graph": Row(graph_chain, graph_ways, ties=False),
    "graph of several paths": Row(latent_chain, graph_ways, ties=False),
    "order 2 in a graph": Row(higher_order_in_graph, graph_ways, ties=False),
    "segments in a graph": Row(graph_segments, graph_ways, ties=False),
}


class Enumerated:
    """All that there is to know of a problem, by going through its labellings one by one."""

    def __init__(self, row: Row, problem: Problem):
        self.problem = problem
        scores, clamp = problem.scores, problem.clamp
        starts = [0, len(scores[0])] if scores.starts is None else scores.starts.tolist()
        self.ends = list(itertools.pairwise(starts))
        self.ways = [
            [way for way in row.ways(problem.structure, scores, *ends) if is_allowed(clamp, ends[0], way.states)]
            for ends in self.ends
        ]
        self.log_z = np.array([reference.log_sum([way.score for way in ways]) for ways in self.ways])

    def expectations(self, weights=None):
        """Weighted sum over sequences of the expected uses of each score."""
        total = arrays.zeros(self.problem.scores)
        for b, ways in enumerate(self.ways):
            for way in ways:
                p = math.exp(way.score - self.log_z[b]) * (1.0 if weights is None else weights[b])
                for name, index in way.uses:
                    getattr(total, name)[index] += p
        return total

    def score(self, b, states):
        """Of one labelling of a sequence: the sum over the ways to have it."""
        return reference.log_sum([way.score for way in self.ways[b] if way.states == states])

    def probability(self, b):
        """Of each labelling of a sequence."""
        found = {}
        for way in self.ways[b]:
            found[way.states] = found.get(way.states, 0.0) + math.exp(way.score - self.log_z[b])
        return found


@st.composite
def problems(draw, row, kinds=tuple(SCORES), clamped=True):
    """A Problem of up to three sequences of up to four tokens and three states."""
    lengths = draw(st.lists(st.integers(0, 3 if row.make in (scheme_chain, graph_segments) else 4), max_size=3))
    value = SCORES[draw(st.sampled_from(kinds))]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    size = draw(st.integers(1, 2 if row.ways is graph_ways or row.make is scheme_chain else 3))

    def fill(shape, name=""):
        count = int(np.prod(shape))
        return np.array(draw(st.lists(value, min_size=count, max_size=count)), dtype=np.float64).reshape(shape)

    problem = row.make(lengths, size, fill, rng, draw(st.booleans()))
    if clamped and draw(st.booleans()):
        problem = problem._replace(clamp=clamp_of(problem.scores, lambda n, chance: rng.random(n) >= chance))
    return problem


def random_problem(row, lengths, size=3, *, seed=0, per_position=False, **scores):
    rng = np.random.default_rng(seed)
    return row.make(lengths, size, fill_with(rng, **scores), rng, per_position)


def assert_scores_close(actual, expected, **tolerance):
    for name in type(expected).AXES:
        np.testing.assert_allclose(
            getattr(actual, name), getattr(expected, name), **{"atol": 1e-9, **tolerance}, err_msg=name
        )


def assert_derivative(value, scores, derivative, names=None, *, seed=0, directions=2, tolerance=1e-6):
    """The derivative of ``value(scores)`` equals finite differences, in random directions of each array of the scores.

    names: The arrays to check; all by default.
    """
    rng, step = np.random.default_rng(seed), 1e-5
    for name, array in arrays.named(scores).items():
        for _ in range(directions if names is None or name in names else 0):
            direction = rng.normal(size=array.shape)
            above, below = (value(scores._replace(**{name: array + way * direction})) for way in (step, -step))
            along = (getattr(derivative, name) * direction).sum()
            assert along == pytest.approx((above - below) / (2 * step), abs=tolerance), name
