"""Every structure against enumeration of its labellings: what holds for one holds for all of them."""

import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import config

from spacy_crf import arrays
from spacy_crf.inference.threads import default_threads, run_chunks
from tests.structures import (
    STRUCTURES,
    Enumerated,
    Problem,
    assert_derivative,
    assert_scores_close,
    clamp_of,
    either,
    problems,
    random_problem,
)
from tests.util import draws

each = pytest.mark.parametrize("row", STRUCTURES.values(), ids=STRUCTURES)
positions = pytest.mark.parametrize("per_position", [False, True])
quickly = draws(25)


@each
@quickly
@given(data=st.data())
def test_sums_match_enumeration(row, data):
    structure, scores, clamp = problem = data.draw(problems(row))
    known = Enumerated(row, problem)
    weights = np.linspace(-1.0, 2.0, len(known.ends))
    log_z, expectations = structure.expectations(scores, clamp=clamp, weights=weights)
    np.testing.assert_allclose(log_z, known.log_z, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(structure.log_partition(scores, clamp=clamp), known.log_z, rtol=1e-12, atol=1e-9)
    assert_scores_close(expectations, known.expectations(weights))
    assert expectations.starts is scores.starts
    assert getattr(expectations, "listed", None) is getattr(scores, "listed", None)
    marginals = structure.marginals(scores, clamp=clamp)
    np.testing.assert_allclose(marginals, known.expectations()[0], atol=1e-9)
    possible = np.repeat(np.isfinite(known.log_z), np.diff(scores.starts))
    np.testing.assert_allclose(marginals.sum(axis=1), possible, atol=1e-9)


@each
@pytest.mark.parametrize("rest", [-np.inf, -1000.0, 1000.0])
@pytest.mark.parametrize("step", [1, 2])
def test_what_is_impossible_beside_what_is_large(row, rest, step):
    """Each array of scores in turn is impossible (at every `step`th place), and the others too or so large that exp overflows."""
    for impossible in range(6):
        filled = itertools.count()

        def fill(shape, name="", impossible=impossible, filled=filled):
            scores = np.full(shape, rest)
            if next(filled) == impossible:
                scores.ravel()[step - 1 :: step] = -np.inf
            return scores

        problem = row.make([2, 1, 0], 2, fill, np.random.default_rng(0), False)
        known = Enumerated(row, problem)
        np.testing.assert_allclose(problem.structure.log_partition(problem.scores), known.log_z, rtol=1e-12)
        assert_scores_close(problem.structure.expectations(problem.scores)[1], known.expectations())
        path = problem.structure.viterbi(problem.scores)
        best = [ways[0].score if ways else -np.inf for ways in known.ways]
        np.testing.assert_allclose(path.scores, best, rtol=1e-12)
        assert [path.states[begin] >= 0 for begin, _ in known.ends[:2]] == [bool(ways) for ways in known.ways[:2]]
        for found, ways in zip(problem.structure.n_best(problem.scores, 2), known.ways):
            np.testing.assert_allclose([score for score, _ in found], [way.score for way in ways[:2]], rtol=1e-12)


@each
@quickly
@given(data=st.data())
def test_edges_match_enumeration(row, data):
    """Uses of the transition into each token, by transitions of each token."""
    structure, scores, clamp = problem = data.draw(problems(row, kinds=["moderate", "forbidden"]))
    shape = (len(scores[0]), *np.shape(scores.transitions)[-2:])
    by_token = scores._replace(transitions=np.array(np.broadcast_to(scores.transitions, shape)))
    edges = structure.expectations(by_token, clamp=clamp)[1].transitions
    expected = Enumerated(row, problem._replace(scores=by_token)).expectations().transitions
    np.testing.assert_allclose(edges, expected, atol=1e-9)


@each
@quickly
@given(data=st.data())
def test_maxima_match_enumeration(row, data):
    structure, scores, clamp = problem = data.draw(problems(row))
    known = Enumerated(row, problem)
    path, n_best = structure.viterbi(scores, clamp=clamp), structure.n_best(scores, 4, clamp=clamp)
    weights = np.linspace(-1.0, 2.0, len(known.ends))
    best, counts = structure.viterbi_counts(scores, clamp=clamp, weights=weights)
    np.testing.assert_array_equal(best, path.scores)
    for b, (begin, end) in enumerate(known.ends):
        expected = [way.score for way in known.ways[b][:4]]
        np.testing.assert_allclose([score for score, _ in n_best[b]], expected, rtol=1e-12, atol=1e-9)
        scored = {}
        for way in known.ways[b]:
            scored.setdefault(way.states, []).append(way.score)
        for score, states in n_best[b]:
            assert min(abs(score - other) for other in scored[tuple(states)]) < 1e-9
            assert states.dtype == np.int32
        found = tuple(path.states[begin:end])
        if not expected:
            assert path.scores[b] == -np.inf
            assert set(found) <= {-1}
            continue
        assert path.scores[b] == pytest.approx(expected[0], abs=1e-9)
        assert max(scored[found]) == pytest.approx(expected[0], abs=1e-9)
        np.testing.assert_allclose(counts[0][begin:end].sum(axis=1), weights[b])
    pairs = zip(arrays.named(scores).values(), arrays.named(counts).values())
    used = [(np.where(np.isfinite(array), array, 0.0) * count).sum() for array, count in pairs]
    if structure.graph is None:  # whose arcs have scores of their own
        assert sum(used) == pytest.approx((weights * np.where(best > -np.inf, best, 0.0)).sum(), abs=1e-6)


@each
@quickly
@given(data=st.data())
def test_ties_have_one_order(row, data):
    if not row.ties:
        pytest.skip("any of the best is as good")
    # small whole numbers: sums are exact, so the order of equals is part of the answer
    structure, scores, clamp = problem = data.draw(problems(row, kinds=["ties"]))
    known, path = Enumerated(row, problem), structure.viterbi(scores, clamp=clamp)
    for b, best in enumerate(structure.n_best(scores, 5, clamp=clamp)):
        expected = [(way.score, way.states) for way in known.ways[b][:5]]
        assert [(score, tuple(states)) for score, states in best] == expected
        if expected:
            assert tuple(path.states[slice(*known.ends[b])]) == expected[0][1]


@each
@quickly
@given(data=st.data())
def test_given_labellings_match_enumeration(row, data):
    structure, scores, _ = problem = data.draw(problems(row, clamped=False))
    known = Enumerated(row, problem)
    chosen = [
        data.draw(st.sampled_from(ways)).states if ways else (-1,) * (end - begin)
        for ways, (begin, end) in zip(known.ways, known.ends)
    ]
    states = np.array([state for of_sequence in chosen for state in of_sequence], dtype=np.int32)
    expected = np.array([known.score(b, of_sequence) for b, of_sequence in enumerate(chosen)])
    np.testing.assert_allclose(structure.path_score(scores, states), expected, rtol=1e-12, atol=1e-9)
    log_probability = structure.log_probability(scores, states)
    for b, score in enumerate(expected):
        assert log_probability[b] <= 0
        assert log_probability[b] == (-np.inf if score == -np.inf else pytest.approx(score - known.log_z[b], abs=1e-9))
    work = structure.prepare(scores)
    only = structure.only(work, states)
    if (states != -1).all():
        np.testing.assert_array_equal(structure.only_path(only), states)
    weights = np.linspace(-1.0, 2.0, len(known.ends))
    _, under_clamp = structure.expectations(work, clamp=only, weights=weights)
    uses = structure.path_expectations(scores, states, weights=weights)
    assert_scores_close(uses, under_clamp)
    before = [array.copy() for array in arrays.named(under_clamp).values()]
    assert structure.path_expectations(work, states, weights=weights, out=under_clamp) is under_clamp
    for array, old, used in zip(arrays.named(under_clamp).values(), before, arrays.named(uses).values()):
        np.testing.assert_allclose(array, old + used, atol=1e-9)


@each
@positions
def test_derivatives_match_finite_differences(row, per_position):
    structure, scores, _ = random_problem(row, [5, 0, 1, 7], per_position=per_position)
    weights = np.array([1.0, 2.0, 0.5, -1.0])
    _, expectations = structure.expectations(scores, weights=weights)
    assert_derivative(lambda moved: (weights * structure.log_partition(moved)).sum(), scores, expectations)


@each
def test_everything_forbidden(row):
    structure, scores, _ = random_problem(row, [3])
    scores[0][1] = -np.inf
    log_z, expectations = structure.expectations(scores)
    assert log_z.tolist() == [-np.inf]
    assert all((array == 0).all() for array in arrays.named(expectations).values())
    assert structure.viterbi(scores).states.tolist() == [-1, -1, -1]
    assert structure.n_best(scores, 2) == [[]]
    assert (structure.sample(scores, 2, seed=0) == -1).all()
    none = np.full(3, -1)
    assert structure.path_score(scores, none).tolist() == structure.log_probability(scores, none).tolist() == [-np.inf]
    assert (structure.path_expectations(scores, none)[0] == 0).all()


@each
@positions
def test_empty_batches(row, per_position):
    structure, scores, _ = random_problem(row, [], per_position=per_position)
    assert structure.log_partition(scores).shape == (0,)
    assert structure.expectations(scores)[1][0].shape == scores[0].shape
    assert structure.n_best(scores, 3) == []
    assert structure.sample(scores, 2, seed=1).shape == (2, 0)
    single = scores._replace(starts=None)  # one sequence without tokens
    assert structure.log_partition(single).tolist() == structure.viterbi(single).scores.tolist() == [0.0]
    assert [(score, states.tolist()) for score, states in structure.n_best(single, 3)[0]] == [(0.0, [])]


@each
@positions
def test_very_large_scores(row, per_position):
    """They are sums all the same, and no sequence is the worse for its neighbour."""
    structure, scores, _ = random_problem(row, [3, 3], seed=2, per_position=per_position)
    for factor in (1.0, 300.0):
        scores[0][:3] *= factor
        known = Enumerated(row, Problem(structure, scores, None))
        log_z, expectations = structure.expectations(scores)
        np.testing.assert_allclose(log_z, known.log_z, rtol=1e-12)
        assert_scores_close(expectations, known.expectations())


@each
@positions
def test_batch_equals_one_by_one(row, per_position, monkeypatch):
    structure, scores, _ = random_problem(row, [3, 0, 11, 1, 6, 2, 0, 9], 4, forbidden=0.2, per_position=per_position)
    monkeypatch.setattr(type(structure), "chunk_tokens", 8)
    scores[0][4] *= 1000.0  # one sequence in log space
    log_z, expectations = structure.expectations(scores)
    path, total = structure.viterbi(scores), arrays.zeros(scores)
    for b, (begin, end) in enumerate(zip(scores.starts.tolist(), scores.starts[1:].tolist())):
        tokens = slice(begin, end)
        one = arrays.cut(scores, tokens, np.array([0, end - begin]))
        one_log_z, one_expectations = structure.expectations(one)
        assert one_log_z[0] == structure.log_partition(one)[0] == pytest.approx(log_z[b], rel=1e-14)
        assert_scores_close(one_expectations, arrays.cut(expectations, tokens, one.starts)._replace(
            **{name: getattr(one_expectations, name) for name in type(scores).AXES
               if arrays.axes(scores, name)[0] not in ("token", "span")}
        ), atol=1e-12)  # fmt: skip
        arrays.add(total, one_expectations, tokens)
        np.testing.assert_array_equal(structure.viterbi(one).states, path.states[tokens])
    assert_scores_close(total, expectations, rtol=1e-12, atol=1e-12)


@pytest.mark.jit
@each
def test_threads_change_no_bit(row, monkeypatch):
    n = 6 if config.DISABLE_JIT else 40  # sequences, in chunks of two or three
    structure, scores, _ = random_problem(row, [7] * n, 4, forbidden=0.2)
    monkeypatch.setattr(type(structure), "chunk_tokens", 16)
    rng = np.random.default_rng(1)
    clamp = clamp_of(scores, lambda n, chance: rng.random(n) >= 0.1 * chance)
    answers = []
    for threads in (1, 2, 3):
        structure.threads = threads
        found = []
        for allowed in (None, clamp):
            log_z, expectations = structure.expectations(scores, clamp=allowed)
            found += [log_z, *arrays.named(expectations).values(), structure.log_partition(scores, clamp=allowed)]
            found += [*structure.viterbi(scores, clamp=allowed), structure.sample(scores, 3, seed=5, clamp=allowed)]
        answers.append([array.tobytes() for array in found])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.jit
@each
@pytest.mark.parametrize("spread", [1.0, 800.0])
def test_samples_are_drawn_by_probability(row, spread):
    structure, scores, _ = problem = random_problem(row, [3, 2], 2, seed=3, spread=0.7)
    scores[0][0, 0] = spread
    n = 3000
    drawn = structure.sample(scores, n, seed=11)
    np.testing.assert_array_equal(drawn, structure.sample(scores, n, seed=11))
    assert (drawn != structure.sample(scores, n, seed=12)).any()
    known = Enumerated(row, problem)
    for b, ends in enumerate(known.ends):
        probability = known.probability(b)
        frequency = dict.fromkeys(probability, 0)
        for path in drawn[:, slice(*ends)].tolist():
            frequency[tuple(path)] += 1  # a forbidden path is a KeyError
        for states, p in probability.items():
            assert frequency[states] / n == pytest.approx(p, abs=4 * np.sqrt(max(0.0, p * (1 - p)) / n) + 1e-9)


@each
def test_only_path_wants_exactly_one(row):
    structure, scores, _ = random_problem(row, [3], 2)
    work = structure.prepare(scores)
    states = np.array([0, 1, 1])
    only = structure.only(work, states)
    assert structure.only_path(only).tolist() == [0, 1, 1]
    allowed = arrays.states_of(only)
    allowed[1, :2] = True
    assert structure.only_path(only) is None
    allowed[1] = False
    assert structure.only_path(only) is None
    assert structure.only_path(arrays.cut_clamp(only, slice(0, 0))).tolist() == []


@each
@positions
def test_joined_sequences_are_the_sequences(row, per_position):
    """With a break between them; the graphs of rules know it as one more tag."""
    if "graph" in row.ways.__name__:
        pytest.skip("a graph has the tags that it has")
    structure, scores, _ = random_problem(row, [2, 0, 1, 3, 2], 2, seed=1, per_position=per_position)
    rng = np.random.default_rng(0)
    clamp = clamp_of(scores, lambda n, chance: rng.random(n) >= chance)
    clamp = either(clamp, structure.only(structure.prepare(scores), structure.viterbi(scores).states))
    for doc_starts in (None, np.array([0, 3, 3, 8])):
        joined = arrays.join_sequences(scores, clamp, doc_starts)
        weights = np.ones(5) if doc_starts is None else np.array([1.0, 1.0, 1.0, 2.0, 2.0])
        log_z, expected = structure.expectations(scores, clamp=clamp, weights=weights)
        of_docs = None if doc_starts is None else np.array([1.0, 1.0, 2.0])
        joined_log_z, found = structure.expectations(joined.scores, clamp=joined.clamp, weights=of_docs)
        assert joined_log_z.sum() == pytest.approx(log_z.sum())
        assert_scores_close(arrays.split(joined, found, scores), expected)
        path = structure.viterbi(joined.scores, clamp=joined.clamp).states[joined.tokens]
        np.testing.assert_array_equal(path, structure.viterbi(scores, clamp=clamp).states)


# Mistakes


@each
def test_mistakes_are_named(row):
    structure, scores, _ = random_problem(row, [5], 2)
    first = scores._fields[0]

    def refused(changed, code, text, ask=structure.expectations):
        with pytest.raises(ValueError) as error:
            ask(changed)
        assert code in str(error.value) and text in str(error.value)

    for name, array in arrays.named(scores).items():
        for value in (np.nan, np.inf):
            wrong = array.copy()
            wrong.flat[-1] = value
            where = ", ".join(
                f"{axis} {n - 1}" for axis, n in zip(arrays.axes(scores, name), array.shape)
            )  # fmt: skip
            refused(scores._replace(**{name: wrong}), "CRF010", f"{name} score of {where} is {value}")
        shape = (*array.shape[:-1], array.shape[-1] + 1)
        if name != first and len(array):
            refused(scores._replace(**{name: np.zeros(shape)}), "CRF011", f"{name} has shape {shape}")
    refused(scores._replace(**{first: np.zeros(5)}), "CRF011", f"{first} has shape (5,)")
    refused(scores._replace(starts=np.array([0, 4])), "CRF012", "5 tokens")
    refused(scores._replace(starts=np.array([0, 3, 2, 5])), "CRF012", "[0 3 2 5]")
    n_tags = scores[0].shape[1]
    wrong = arrays.cut_clamp(structure.only(structure.prepare(scores), np.zeros(5, dtype=np.int32)), slice(0, 4))
    refused(scores, "CRF011", "clamp", lambda s: structure.viterbi(s, clamp=wrong))
    refused(scores, "CRF011", "weights has shape", lambda s: structure.expectations(s, weights=np.ones(2)))
    refused(scores, "CRF011", "states has shape", lambda s: structure.path_score(s, np.zeros(4, dtype=np.int32)))
    beyond = np.array([0, 0, 0, n_tags, 0], dtype=np.int32)
    refused(scores, "CRF013", f"Token 3 has state {n_tags}", lambda s: structure.path_score(s, beyond))
    refused(scores, "CRF020", "0", lambda s: structure.n_best(s, 0))


@each
def test_other_dtypes_and_layouts_are_taken(row):
    structure, scores, _ = random_problem(row, [4], 3)
    expected = structure.log_partition(scores)
    first, frozen = scores._fields[0], scores[0].copy()
    frozen.flags.writeable = False
    fortran = scores._replace(**{first: np.asfortranarray(scores[0])}, starts=scores.starts.astype(np.int32))
    assert structure.log_partition(fortran) == expected
    assert structure.log_partition(scores._replace(**{first: frozen})) == expected
    single = scores._replace(**{first: scores[0].astype(np.float32)})
    np.testing.assert_allclose(structure.log_partition(single), expected, rtol=1e-6)


# Threads


def test_results_come_in_the_order_of_the_chunks():
    assert run_chunks(lambda chunk: chunk * 2, range(20), 3) == list(range(0, 40, 2))
    assert run_chunks(lambda chunk: chunk, [], 3) == []


def test_nested_chunks_do_not_deadlock():
    def outer(chunk):
        return sum(run_chunks(lambda inner: inner * chunk, range(4), 2))

    assert run_chunks(outer, range(6), 2) == [6 * chunk for chunk in range(6)]


def test_default_threads(monkeypatch):
    monkeypatch.delenv("SPACY_CRF_THREADS", raising=False)
    assert 1 <= default_threads() <= (os.cpu_count() or 1)
    monkeypatch.setenv("SPACY_CRF_THREADS", "7")
    assert default_threads() == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_after_threads():
    """`nlp.pipe(n_process=2)` forks a process whose threads have run: the child needs threads of its own."""
    program = textwrap.dedent(
        """
        import multiprocessing
        from tests.structures import STRUCTURES, random_problem

        structure, scores, _ = random_problem(STRUCTURES["chain"], [4] * 6)
        type(structure).chunk_tokens, structure.threads = 4, 2

        def ask(_):
            return structure.expectations(scores)[1].transitions.tobytes()

        here = ask(0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            there = pool.map_async(ask, range(4)).get(timeout=60)
        assert there == [here] * 4
        """
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=120)
