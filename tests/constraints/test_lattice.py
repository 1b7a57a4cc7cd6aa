"""Lattices, upper bounds and the search in them: against enumeration, and on longer documents against the graph of all rules."""

import itertools
import math

import numpy as np
import pytest
from numba import config

from spacy_crf.arrays import join_sequences
from spacy_crf.constraints import lattice_search, solver
from spacy_crf.constraints.budget import Budget
from spacy_crf.constraints.lattice import Lattice
from spacy_crf.constraints.lattice_search import LatticeSearch, RestrictedLattice
from spacy_crf.constraints.rule import PatternMatches
from spacy_crf.constraints.rule_set import differing_texts
from spacy_crf.kernels import lattice as lattice_kernels
from spacy_crf.kernels.dual_decomposition import bound_automaton
from spacy_crf.schemes import SCHEMES
from spacy_crf.types import SegmentClamp
from tests import reference
from tests.constraints.test_constraints import decode, make_rules, scheme_scores
from tests.constraints.test_segment_rules import make_rules as make_segment_rules
from tests.constraints.test_segment_rules import make_scores as segment_scores
from tests.random_rules import random_rule, score_of
from tests.util import signatures

PLENTY = Budget(1e9)
MEMORY = {"order", "at_most", "at_least", "exactly", "requires", "excludes", "length", "in_one_piece"}


@pytest.fixture
def few_nodes(monkeypatch):
    _keep_few_nodes(monkeypatch)


def _keep_few_nodes(monkeypatch):
    """Every lattice begins with few nodes, as that of a long document does, and nothing comes before it."""
    monkeypatch.setattr(solver, "GRAPH_SHARE", 0.0)
    for name, value in {
        "ALL_ARCS": 0,
        "MARGIN": 0.7,
        "PER_ROW": 2,
        "ELSEWHERE": 1,
        "MOST_IN_VAIN": 10**6,
    }.items():
        monkeypatch.setattr(lattice_search, name, value)
    monkeypatch.setattr(solver, "MOST_PREFIXES", 1)


def make_lattice(rules, joined):
    log_potentials = rules.structure.prepare(joined.scores, joined.clamp).log_potentials
    return Lattice(log_potentials, rules.tags.events, rules.tags.n_events)


def chain_problem(seed, lengths=(2, 3), spread=1.5):
    rng = np.random.default_rng(seed)
    scheme = SCHEMES[list(SCHEMES)[seed % 4]]
    tables = [random_rule(rng, ["A", "B"], ["x"], kinds=MEMORY) for _ in range(rng.integers(1, 4))]
    scores, _ = scheme_scores(scheme, 2, list(lengths), seed=seed, spread=spread, per_position=seed % 3 == 1)
    clamp = None
    if seed % 2:
        clamp = rng.random(scores.emissions.shape) < 0.9
        clamp[:, 0] = True
    return make_rules(tables, scheme), scores, clamp


def segment_problem(seed, lengths=(2, 3)):
    rng = np.random.default_rng(seed)
    tables = [random_rule(rng, ["A", "B"], ["x"], kinds=MEMORY) for _ in range(rng.integers(1, 4))]
    scores, clamp = segment_scores(list(lengths), seed, per_position=seed % 3 == 1), None
    if seed % 2:
        tokens = sum(lengths)
        clamp = SegmentClamp(rng.random((tokens, 3)) < 0.9, rng.random(tokens) < 0.9, rng.random(tokens) < 0.1)
        clamp.states[:, 0] = clamp.may_begin[clamp.must_begin] = True
    return make_segment_rules(tables), scores, clamp


def problem(kind, seed, **settings):
    while True:  # until the rules don't contradict each other
        try:
            return (chain_problem if kind == "chain" else segment_problem)(seed, **settings)
        except ValueError as error:
            assert "CRF613" in str(error)
            seed += 1000


def all_paths(joined):
    """Score and nodes, as (row, state), of every labelling, with its path."""
    scores, clamp = joined.scores, joined.clamp
    if hasattr(scores, "emissions"):
        for score, path in reference.paths(scores, 0, len(scores.emissions), clamp):
            yield score, [(2 * t + end, state) for t, state in enumerate(path) for end in (0, 1)], np.array(path)
        return
    for score, segments in reference.segment_paths(scores, 0, len(scores.tokens), clamp):
        path = np.full(len(scores.tokens), -2)
        path[[begin for begin, _, _ in segments]] = [state for _, _, state in segments]
        nodes = [node for begin, end, state in segments for node in ((2 * begin, state), (2 * end - 1, state))]
        yield score, nodes, path


def added_to(rules, path, table):
    """What the events of a path get in addition."""
    before, total = len(rules.tags.label_of), 0.0
    for t, state in enumerate(path.tolist()):
        if state >= 0:
            total += table[t, rules.tags.events[before, state]]
            before = state
    return total


@pytest.mark.parametrize("kind", ["chain", "segments"])
@pytest.mark.parametrize("seed", range(8))
def test_max_marginals_and_arcs_are_those_of_all_labellings(kind, seed):
    rules, scores, clamp = problem(kind, seed)
    joined = join_sequences(scores, clamp)
    lattice = make_lattice(rules, joined)
    table = np.random.default_rng(seed).normal(size=(lattice.tokens, rules.tags.n_events))
    labellings = list(all_paths(joined))
    max_marginals, with_table = np.full((2, *lattice.max_marginals.shape), -np.inf)
    for score, nodes, path in labellings:
        for node in nodes:
            max_marginals[node] = max(max_marginals[node], score)
            with_table[node] = max(with_table[node], score + added_to(rules, path, table))
    np.testing.assert_allclose(lattice.max_marginals, max_marginals, atol=1e-9)
    np.testing.assert_allclose(lattice.max_marginals_with(table), with_table, atol=1e-9)
    assert signatures(lattice_kernels).get("find_max_marginals", 0) <= 1  # with prices as without
    assert lattice.best == pytest.approx(max((score for score, _, _ in labellings), default=-np.inf))
    if not labellings:
        return
    arcs = lattice.arcs(max_marginals > -np.inf, np.zeros(len(max_marginals), dtype=np.int64))
    found = {}

    def walk(node, score, taken):
        if node == len(arcs.time) - 1:
            path = lattice.path(np.full(len(max_marginals), -1), arcs, np.array(taken, dtype=np.int32))
            found[tuple(path.tolist())] = score
            return
        for e in range(arcs.starts[node], arcs.starts[node + 1]):
            walk(int(arcs.target[e]), score + arcs.scores[e], [*taken, e])

    walk(0, 0.0, [])
    assert found == {tuple(path.tolist()): pytest.approx(score, abs=1e-9) for score, _, path in labellings}


@pytest.mark.parametrize("kind", ["chain", "segments"])
@pytest.mark.parametrize("seed", range(30))
def test_searches_find_the_best(kind, seed, few_nodes):
    rules, scores, clamp = problem(kind, seed, lengths=(2, 3) if seed % 2 else (4, 1))
    joined = join_sequences(rules.decodable(scores, PatternMatches()), clamp)
    automata = solver.lattice_automata(rules)
    if not automata:  # all of them are masks
        return
    scores_of = {tuple(path.tolist()): score + said(rules, path) for score, _, path in all_paths(joined)}
    expected = max(scores_of.values(), default=-math.inf)
    lattice = make_lattice(rules, joined)
    found, finished = LatticeSearch(lattice, automata).solve(PLENTY)
    assert finished
    if found is None:
        assert expected == -math.inf
        return
    assert scores_of[tuple(found.tolist())] == pytest.approx(expected, abs=1e-9)


def said(rules, path):
    """What the automata take off a joined labelling."""
    before, events = len(rules.tags.label_of), []
    for state in path.tolist():
        if state >= 0:
            events.append(rules.tags.events[before, state])
            before = state
    return sum(score_of(rest, events) for _, rest in rules.parts)


@pytest.mark.parametrize("kind", ["chain", "segments"])
@pytest.mark.parametrize("seed", range(10))
def test_upper_bounds_are_bounds(kind, seed, few_nodes):
    rules, scores, clamp = problem(kind, seed)
    joined = join_sequences(rules.decodable(scores, PatternMatches()), clamp)
    lattice = make_lattice(rules, joined)
    automata = solver.lattice_automata(rules)
    if not automata or lattice.best == -np.inf:
        return
    first = LatticeSearch(lattice, automata)
    kept = first._first_nodes(PLENTY)
    arcs = lattice.arcs(kept, np.zeros(len(kept), dtype=np.int64))
    restricted = RestrictedLattice(arcs, automata, lattice.may_skip_tokens)
    rng = np.random.default_rng(seed)
    restricted.solve(-np.inf, PLENTY)
    labellings = [(score + said(rules, path), nodes) for score, nodes, path in all_paths(joined)]
    for _ in range(3):
        bounds, _ = restricted.bounds_of_nodes(lattice)
        for score, nodes in labellings:
            for node in nodes:
                assert bounds[node] >= score - 1e-9
        restricted._duals[:] = rng.normal(scale=2.0, size=len(restricted._duals))


def test_the_bound_of_an_automaton_is_its_best_reading():
    rng = np.random.default_rng(0)
    following = np.array([[0, 1, -1], [1, 1, 0]], dtype=np.int32)
    scores, last = rng.normal(size=(2, 3)), np.array([0.0, -0.3])
    duals = rng.normal(size=(4, 3))
    duals[2, 1] = np.inf
    best = -np.inf
    for kinds in itertools.product(range(3), repeat=4):
        state, total = 0, 0.0
        for t, kind in enumerate(kinds):
            total += scores[state, kind] - duals[t, kind]
            state = following[state, kind]
            if state < 0:
                break
        else:
            best = max(best, total + last[state])
    assert bound_automaton(following, scores, last, duals) == pytest.approx(best)


def test_a_span_may_grow_into_its_neighbour(few_nodes):
    """In scheme IO two spans of one label with a token between them become one if it joins them: nothing is read at that token,
    but behind it."""
    scheme = SCHEMES["IO"]
    rules = make_rules([{"rule": "at_most", "label": "A", "n": 1}], scheme)
    scores, _ = scheme_scores(scheme, 2, [8], seed=0)
    for array in scores[:4]:
        array[...] = np.where(array > -np.inf, 0.0, -np.inf)
    scores.emissions[:] = [0.0, -9.0, -9.0]
    scores.emissions[:, 1] = [-9.0, 9.0, -3.0, 9.0, -9.0, -9.0, -1.0, -9.0]
    joined = join_sequences(rules.decodable(scores, PatternMatches()))
    found, finished = LatticeSearch(make_lattice(rules, joined), solver.lattice_automata(rules)).solve(PLENTY)
    assert finished and found.tolist() == [0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.jit
@pytest.mark.parametrize("seed", range(12))
def test_long_documents(seed, monkeypatch):
    """Stretches in which nothing happens are one step, and few nodes suffice: the same as under the product of all."""
    monkeypatch.setattr(lattice_search, "ALL_ARCS", 500)
    monkeypatch.setattr(solver, "MOST_TOKENS", 0)
    monkeypatch.setattr(solver, "GRAPH_SHARE", 0.0)
    n = 60 if config.DISABLE_JIT else 180
    rules, scores, _ = problem("chain", seed, lengths=[2 * n // 3, n // 3] if seed % 2 else [n], spread=2.5)
    scores.emissions[:, 0] += 5.0  # spans are few
    rules.constraints.time_limit = 1e6
    decoded = decode(rules, scores, [0, n], PatternMatches(), np.zeros(n, dtype=np.uint64))
    graph = rules.graph(frozenset(range(len(rules.automata))))
    joined = join_sequences(rules.apply(scores, PatternMatches()))
    expected = graph.viterbi(joined.scores).scores[0]
    if expected == -np.inf:
        assert decoded.relaxed
        return
    path = np.full(len(joined.scores.emissions), len(rules.tags.label_of), dtype=np.int32)
    path[joined.tokens] = decoded.tags
    assert not decoded.relaxed and (
        not decoded.unfinished or seed > 11
    )  # hunts find some that it finds, and can't prove
    assert graph.path_score(joined.scores, path)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", [3, 5])
def test_a_search_adds_the_nodes_of_better_labellings_alone(seed, monkeypatch):
    """With all nodes it would take five times the work."""
    monkeypatch.setattr(lattice_search, "ALL_ARCS", 500)
    rules, scores, _ = problem("chain", seed, lengths=[180], spread=2.5)
    scores.emissions[:, 0] += 5.0  # spans are few
    joined = join_sequences(rules.decodable(scores, PatternMatches()))
    found, finished = LatticeSearch(make_lattice(rules, joined), solver.lattice_automata(rules)).solve(Budget(0.004))
    assert finished and found is not None


@pytest.mark.parametrize("kind", ["chain", "segments"])
@pytest.mark.parametrize("seed", [*range(8), 701563093])  # in the last one a long segment passes by the text
def test_texts_have_one_label(kind, seed, few_nodes):
    scheme = SCHEMES[list(SCHEMES)[seed % 4]]
    table = [{"rule": "same_text_same_label"}]
    if kind == "chain":
        rules, (scores, _) = make_rules(table, scheme), scheme_scores(scheme, 2, [3, 2], seed=seed, spread=2.0)
    else:
        rules, scores = make_segment_rules(table), segment_scores([3, 2], seed)
    words = np.array([[7, 7, 7, 7, 7], [7, 8, 7, 7, 8]][seed % 2], dtype=np.uint64)
    decoded = decode(rules, scores, [0, 5], PatternMatches(), words)
    joined = join_sequences(scores)
    best = -math.inf
    for score, _, path in all_paths(joined):
        segments = rules.segments(path[joined.tokens].astype(np.int32), scores.starts)
        if not differing_texts(segments, words, np.zeros(5, dtype=np.int64)):
            best, expected = max((best, []), (score, path[joined.tokens].tolist()), key=lambda pair: pair[0])
            if score == best:
                answer = expected
    assert decoded.tags.tolist() == answer and not decoded.unfinished


@pytest.mark.jit
@pytest.mark.parametrize("kind", ["chain", "segments"])
@pytest.mark.parametrize("seed", range(6))
def test_whenever_the_time_is_up_the_answer_is_true(kind, seed, monkeypatch, few_nodes):
    """What does not yield is kept, and what is called the best is the best."""
    looks, until = itertools.count(), 10**9
    monkeypatch.setattr(Budget, "left", property(lambda self: 1.0 if next(looks) < until else -1.0))
    rules, scores, clamp = problem(kind, seed, lengths=[6, 5])
    best = decode(rules, scores, [0, 11], PatternMatches(), clamp=clamp)
    for until in range(0, 60, 3):  # noqa: B007
        looks = itertools.count()
        decoded = decode(rules, scores, [0, 11], PatternMatches(), clamp=clamp)
        relaxed = [rule for rules in decoded.relaxed.values() for rule in rules]
        totals = rules.totals(decoded.tags, scores.starts, np.array([0, 11]))[0]
        for (rule, _, _), total in zip(rules.automata, totals):
            assert total > -np.inf or rule in relaxed
        if not decoded.unfinished:
            assert decoded.tags.tolist() == best.tags.tolist() and decoded.relaxed == best.relaxed


@pytest.mark.jit
def test_a_search_that_continues_breaks_no_other_rule(few_nodes):
    """With some rules it found a labelling in its share of the time, and in the rest a better one that breaks another rule."""
    rng = np.random.default_rng(101)
    scheme = SCHEMES["BIO"]
    tables = [random_rule(rng, ["A", "B"], ["x"], kinds=MEMORY) for _ in range(rng.integers(3, 6))]
    scores, _ = scheme_scores(scheme, 2, [6, 5], seed=101, spread=1.5, per_position=False)
    rules = make_rules(tables, scheme)
    for limit in np.geomspace(0.003, 0.008, 10).tolist():
        rules.constraints.time_limit = limit
        decoded = decode(rules, scores, [0, 11], PatternMatches())
        relaxed = {rule.place for rule in decoded.relaxed.get(0, [])}
        totals = rules.totals(decoded.tags, scores.starts, np.array([0, 11]))
        assert not rules.broken(totals, rules.places - relaxed).any()
