"""Tags times automaton states: the graph in which labellings that keep the rules are paths."""

import numpy as np

from ..types import StateGraph
from .automaton import Automaton, SpanTags


def rule_graph(tags: SpanTags, automaton: Automaton, allowed: np.ndarray) -> StateGraph:
    """The graph of the labellings that an automaton accepts.

    allowed (bool[S + 1, S + 1]): Which tag may follow which; arcs are made for these only. S is the break, whose row and
        column say too which tags begin and end sequences.
    RETURNS (StateGraph): Over S + 1 tags, its states ordered by tag; only those that lie on some path.
    """
    n_tags, n_states = len(tags.label_of) + 1, automaton.n_states
    before, after = np.nonzero(allowed)  # tag pairs
    events = tags.events[before, after]
    # State (tag, q) is number tag * Q + q. Every arc: a pair of tags, and a state of the automaton it is read in.
    q = np.arange(n_states)
    to = automaton.next[:, events]  # [Q, pairs]
    possible = (to >= 0) & (automaton.scores[:, events] > -np.inf)
    from_q, pair = np.nonzero(possible)
    source, target = before[pair] * n_states + from_q, after[pair] * n_states + to[from_q, pair]
    scores = automaton.scores[from_q, events[pair]]
    # The first event is read in state 0; no sequence begins or ends with a break.
    first = np.full((n_tags, n_states), -np.inf)
    opening = tags.events[-1, :-1]
    reached = automaton.next[0, opening]
    [kept] = np.nonzero((reached >= 0) & allowed[-1, :-1])
    first[kept, reached[kept]] = automaton.scores[0, opening[kept]]
    last = np.full((n_tags, n_states), -np.inf)
    last[:-1][allowed[:-1, -1]] = automaton.last
    first, last = first.reshape(-1), last.reshape(-1)
    useful = _reachable(source, target, first > -np.inf) & _reachable(target, source, last > -np.inf)
    number = np.cumsum(useful) - 1
    kept = useful[source] & useful[target]
    source, target, scores = number[source[kept]], number[target[kept]], scores[kept]
    tag_of = np.repeat(np.arange(n_tags), len(q))[useful]
    return _in_order(source, target, scores, first[useful], last[useful], tag_of)


def copied(graph: StateGraph, tag_of: np.ndarray) -> StateGraph:
    """The same graph for states that are copies of tags: each of its states for each copy of its tag.

    tag_of (int[C]): The tag of each copy, for all tags of the graph.
    """
    of_state, copy = np.nonzero(graph.tag_of[:, None] == tag_of)
    counts = np.bincount(of_state, minlength=len(graph.tag_of))
    before = np.cumsum(counts) - counts
    # Every arc between every two copies of its states
    sizes = counts[graph.source] * counts[graph.target]
    arc = np.repeat(np.arange(len(sizes)), sizes)
    pair = np.arange(len(arc)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    width = counts[graph.target[arc]]
    source = before[graph.source[arc]] + pair // width
    target = before[graph.target[arc]] + pair % width
    return _in_order(source, target, graph.scores[arc], graph.first[of_state], graph.last[of_state], copy)


def _in_order(source, target, scores, first, last, tag_of) -> StateGraph:
    """A graph whose arcs are in the order of their sources, and then of their targets."""
    order = np.lexsort((target, source))
    source, target, tag_of = (array.astype(np.int32) for array in (source[order], target[order], tag_of))
    return StateGraph(source, target, np.ascontiguousarray(scores[order]), first, last, tag_of)


def _reachable(source, target, start):
    reached = start
    while True:
        grown = reached.copy()
        grown[target[reached[source]]] = True
        if (grown == reached).all():
            return reached
        reached = grown
