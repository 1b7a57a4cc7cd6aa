"""Linear chains against enumeration, alone and in batches, in the linear domain and in log space."""

import contextlib
import os
import subprocess
import sys
import textwrap

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_crf.inference import linear_chain as inference
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.threads import default_threads, run_chunks
from spacy_crf.kernels import linear_chain as kernels
from spacy_crf.schemes import SCHEMES
from spacy_crf.types import ChainScores

from . import reference
from .util import signatures

chain = LinearChain()
quickly = settings(deadline=None, derandomize=True, max_examples=60)

# Scores on a coarse grid make ties frequent; the large ones make the linear domain give up.
SCORES = {
    "moderate": st.floats(-5, 5, width=32),
    "ties": st.sampled_from([-1.0, 0.0, 0.0, 1.0]),
    "forbidden": st.one_of(st.just(-np.inf), st.floats(-3, 3, width=32)),
    "extreme": st.sampled_from([-np.inf, -1000.0, -400.0, -1.0, 0.0, 0.5, 400.0, 1000.0]),
}


BOOLEANS = st.booleans()


@st.composite
def problems(draw, kinds=tuple(SCORES), per_position=BOOLEANS, clamped=BOOLEANS):
    """Scores of up to three sequences of up to four tokens and three states, and perhaps a clamp."""
    size = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, 4), min_size=0, max_size=3))
    tokens = sum(lengths)
    shapes = [(tokens, size), (tokens, size, size) if draw(per_position) else (size, size), (size,), (size,)]
    value = SCORES[draw(st.sampled_from(kinds))]
    arrays = []
    for shape in shapes:
        count = int(np.prod(shape))
        arrays.append(np.array(draw(st.lists(value, min_size=count, max_size=count)), dtype=np.float64).reshape(shape))
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    clamp = None
    if draw(clamped):
        allowed = draw(st.lists(st.sampled_from([True, True, False]), min_size=tokens * size, max_size=tokens * size))
        clamp = np.array(allowed, dtype=bool).reshape(tokens, size)
    return ChainScores(*arrays, starts), clamp


def random_scores(lengths, size, *, seed=0, spread=2.0, forbidden=0.0, per_position=False):
    rng = np.random.default_rng(seed)
    tokens = sum(lengths)
    transitions = rng.normal(scale=spread, size=(tokens, size, size) if per_position else (size, size))
    transitions[rng.random(transitions.shape) < forbidden] = -np.inf
    return ChainScores(
        rng.normal(scale=spread, size=(tokens, size)),
        transitions,
        rng.normal(size=size),
        rng.normal(size=size),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )


def scheme_scores(lengths, n_labels, *, scheme="BILUO", seed=0, **spread):
    """Scores under a tag scheme, which forbids most transitions if there are many labels."""
    mask = SCHEMES[scheme].transition_mask(n_labels)
    scores = random_scores(lengths, len(mask.first), seed=seed, **spread)
    return scores._replace(
        transitions=np.where(mask.transitions, scores.transitions, -np.inf),
        first=np.where(mask.first, scores.first, -np.inf),
        last=np.where(mask.last, scores.last, -np.inf),
    )


@contextlib.contextmanager
def worth_it(share):
    """A block is used where it costs at most this share of the whole matrix: with inf everywhere, with 0 nowhere."""
    before = inference.WORTH_IT
    inference.WORTH_IT = share
    inference._find_block.cache_clear()
    try:
        yield
    finally:
        inference.WORTH_IT = before
        inference._find_block.cache_clear()


@st.composite
def masks(draw, sizes):
    """Which transitions are allowed: by a tag scheme, or at random, then with states that nothing precedes or follows."""
    if draw(st.booleans()):
        scheme = SCHEMES[draw(st.sampled_from(["BILUO", "BIO", "IOB1"]))]
        possible = [n for n in range(1, 30) if 1 + n * len(scheme.prefixes) in sizes]
        return scheme.transition_mask(draw(st.sampled_from(possible))).transitions
    size = draw(st.sampled_from(sizes))
    allowed = np.random.default_rng(draw(st.integers(0, 999))).random((size, size)) < draw(st.floats(0, 1))
    allowed[:, draw(st.lists(st.integers(0, size - 1), max_size=3))] = False
    allowed[draw(st.lists(st.integers(0, size - 1), max_size=3))] = False
    return allowed


@st.composite
def sparse_problems(draw, kinds=tuple(SCORES)):
    """One sequence of three tokens and five states or more, most of whose transitions are forbidden, and perhaps a clamp."""
    allowed = draw(masks(sizes=(5, 6, 7, 9)))
    size = len(allowed)
    value = SCORES[draw(st.sampled_from(kinds))]
    emissions, transitions, (first, last) = (
        np.reshape(draw(st.lists(value, min_size=rows * size, max_size=rows * size)), (rows, size)).astype(np.float64)
        for rows in (3, size, 2)
    )
    clamp = None
    if draw(st.booleans()):
        clamp = np.random.default_rng(draw(st.integers(0, 99))).random((3, size)) < 0.7
    return ChainScores(emissions, np.where(allowed, transitions, -np.inf), first, last), clamp


def assert_scores_close(actual, expected, **tolerance):
    for name in ("emissions", "transitions", "first", "last"):
        np.testing.assert_allclose(
            getattr(actual, name), getattr(expected, name), **{"atol": 1e-9, **tolerance}, err_msg=name
        )


@quickly
@given(problems())
def test_sums_match_enumeration(problem):
    scores, clamp = problem
    weights = np.linspace(-1.0, 2.0, len(scores.starts) - 1)
    expected = reference.log_partition(scores, clamp)
    log_z, expectations = chain.expectations(scores, clamp=clamp, weights=weights)
    np.testing.assert_allclose(log_z, expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(chain.log_partition(scores, clamp=clamp), expected, rtol=1e-12, atol=1e-9)
    assert_scores_close(expectations, reference.expectations(scores, clamp, weights))
    assert expectations.starts is scores.starts


@quickly
@given(sparse_problems())
def test_sums_over_allowed_transitions_match_enumeration(problem):
    scores, clamp = problem
    expected_log_z = reference.log_partition(scores, clamp)
    expected = reference.expectations(scores, clamp)
    for share in (0.0, np.inf, inference.WORTH_IT):
        with worth_it(share):
            log_z, expectations = chain.expectations(scores, clamp=clamp)
            np.testing.assert_allclose(log_z, expected_log_z, rtol=1e-12, atol=1e-9)
            np.testing.assert_array_equal(chain.log_partition(scores, clamp=clamp), log_z)
            assert_scores_close(expectations, expected)


@quickly
@given(sparse_problems(kinds=["ties", "forbidden", "extreme"]))
def test_maxima_over_allowed_transitions_match_enumeration(problem):
    scores, clamp = problem
    allowed = reference.paths(scores, 0, 3, clamp)
    score, states = allowed[0] if allowed else (-np.inf, (-1, -1, -1))
    for share in (0.0, np.inf, inference.WORTH_IT):
        with worth_it(share):
            path = chain.viterbi(scores, clamp=clamp)
            assert path.scores[0] == pytest.approx(score, abs=1e-9)
            assert path.states.tolist() == list(states)


@quickly
@given(masks(sizes=(5, 8, 13, 21, 29, 37)), st.sampled_from([0.0, np.inf, inference.WORTH_IT]))
def test_each_allowed_transition_is_in_the_block_or_an_arc(allowed, share):
    size = len(allowed)
    with worth_it(share):
        layout = inference._find_block(size, np.packbits(allowed).tobytes())
    assert sorted(layout.order) == list(range(size))
    number = layout.number
    assert (layout.order[number] == np.arange(size)).all()
    sources, targets = layout.shape
    in_block = (number >= layout.offset) & (number < layout.offset + sources)
    in_block = in_block[:, np.newaxis] & (number < targets)
    on_arcs = np.zeros((size, size), dtype=int)
    np.add.at(on_arcs, (layout.order[layout.source], layout.order[layout.target]), 1)
    np.testing.assert_array_equal(on_arcs, allowed & ~in_block)
    assert layout.offset % kernels.LANES == sources % kernels.LANES == targets % kernels.LANES == 0
    assert layout.offset + sources < size + kernels.LANES and targets < size + kernels.LANES


@pytest.mark.parametrize(
    "scheme, n_labels, shape, arcs",
    [
        ("BILUO", 29, (60, 60), 116),  # of 14400: 59 · 59 in the block, and from {B-x, I-x} to {I-x, L-x}
        ("BIO", 29, (60, 32), 54),  # 58, but two of them come to lie in the rounded block
        ("BIO", 2, (8, 8), 0),  # the whole matrix
        ("IO", 40, (44, 44), 0),
    ],
)
def test_blocks_of_tag_schemes(scheme, n_labels, shape, arcs):
    batch = inference._check(kernels.forward, scheme_scores([1], n_labels, scheme=scheme))
    layout = inference._layout(batch.transitions, batch.per_position)
    assert layout.shape == shape
    assert len(layout.source) == arcs


def test_forbidden_transitions_change_nothing_but_the_time():
    scores = scheme_scores([9, 0, 1, 30, 2], 12)
    whole_numbers = scores._replace(emissions=np.rint(scores.emissions), transitions=np.rint(scores.transitions))
    answers = []
    for share in (0.0, np.inf):
        with worth_it(share):
            answers.append((*chain.expectations(scores), chain.viterbi(whole_numbers)))
    (log_z, expectations, path), (block_log_z, block_expectations, block_path) = answers
    np.testing.assert_allclose(block_log_z, log_z, rtol=1e-13)
    assert_scores_close(block_expectations, expectations, rtol=1e-11, atol=1e-13)
    np.testing.assert_array_equal(block_path.states, path.states)
    np.testing.assert_array_equal(block_path.scores, path.scores)
    assert (block_expectations.transitions[scores.transitions == -np.inf] == 0.0).all()


@quickly
@given(problems())
def test_marginals_match_enumeration(problem):
    scores, clamp = problem
    marginals = chain.marginals(scores, clamp=clamp)
    np.testing.assert_allclose(marginals, reference.expectations(scores, clamp).emissions, atol=1e-9)
    possible = np.repeat(np.isfinite(reference.log_partition(scores, clamp)), np.diff(scores.starts))
    np.testing.assert_allclose(marginals.sum(axis=1), possible, atol=1e-9)
    np.testing.assert_allclose(
        chain.edge_marginals(scores, clamp=clamp), reference.edge_marginals(scores, clamp), atol=1e-9
    )


@quickly
@given(problems())
def test_maxima_match_enumeration(problem):
    scores, clamp = problem
    path = chain.viterbi(scores, clamp=clamp)
    n_best = chain.n_best(scores, 4, clamp=clamp)
    for b, (begin, end) in enumerate(reference.sequences(scores)):
        allowed = reference.paths(scores, begin, end, clamp)
        expected = [score for score, _ in allowed[:4]]
        np.testing.assert_allclose([score for score, _ in n_best[b]], expected, rtol=1e-12, atol=1e-9)
        assert len({states.tobytes() for _, states in n_best[b]}) == len(expected)
        for score, states in n_best[b]:
            assert reference.path_score(scores, begin, end, states) == pytest.approx(score, abs=1e-9)
            assert states.dtype == np.int32
        if allowed:
            assert path.scores[b] == pytest.approx(expected[0], abs=1e-9)
            assert path.states[begin:end].tolist() == n_best[b][0][1].tolist()
        else:
            assert path.scores[b] == -np.inf
            assert (path.states[begin:end] == -1).all()


@quickly
@given(problems(kinds=["ties"], clamped=st.just(False)))
def test_ties_have_one_order(problem):
    scores, _ = problem  # small whole numbers: sums are exact, so the order of equals is part of the answer
    expected = reference.n_best(scores, 5)
    actual = chain.n_best(scores, 5)
    assert [[(score, tuple(states)) for score, states in best] for best in actual] == expected


@quickly
@given(problems(clamped=st.just(False)), st.data())
def test_given_paths_match_enumeration(problem, data):
    scores, _ = problem
    tokens, size = scores.emissions.shape
    states = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=tokens, max_size=tokens)), dtype=np.int32)
    ends = reference.sequences(scores)
    expected = np.array([reference.path_score(scores, begin, end, states[begin:end]) for begin, end in ends])
    np.testing.assert_allclose(chain.path_score(scores, states), expected, rtol=1e-12, atol=1e-9)
    log_probability = chain.log_probability(scores, states)
    for b in range(len(ends)):
        if expected[b] == -np.inf:
            assert log_probability[b] == -np.inf
        else:
            assert log_probability[b] == pytest.approx(expected[b] - reference.log_partition(scores)[b], abs=1e-9)
            assert log_probability[b] <= 0

    clamp = states[:, np.newaxis] == np.arange(size)
    np.testing.assert_array_equal(chain.only_path(clamp), states)
    free = scores._replace(
        **{name: np.zeros_like(getattr(scores, name)) for name in scores._fields if name != "starts"}
    )
    assert_scores_close(chain.path_expectations(scores, states), reference.expectations(free, clamp))


def test_path_expectations_are_added():
    scores = random_scores([3, 2], 3)
    _, expectations = chain.expectations(scores)
    states = chain.viterbi(scores).states
    before = expectations.transitions.copy()
    weights = np.array([-1.0, -0.5])
    counts = chain.path_expectations(scores, states, weights=weights)
    assert chain.path_expectations(scores, states, weights=weights, out=expectations) is expectations
    np.testing.assert_allclose(expectations.transitions, before + counts.transitions)


def test_viterbi_counts_are_those_of_the_best_path():
    scores = random_scores([3, 0, 2], 3, per_position=True)
    best, counts = chain.viterbi_counts(scores, weights=np.array([1.0, 1.0, 2.0]))
    path = chain.viterbi(scores)
    np.testing.assert_array_equal(best, path.scores)
    np.testing.assert_array_equal(counts.emissions.argmax(axis=1), path.states)
    used = [
        np.where(np.isfinite(array) & (count != 0), array * count, 0.0).sum()
        for array, count in zip(scores[:4], counts)
    ]
    assert sum(used) == pytest.approx(best[0] + 2.0 * best[2])


def test_only_path_wants_exactly_one_state():
    clamp = np.eye(3, dtype=bool)
    assert chain.only_path(clamp).tolist() == [0, 1, 2]
    assert chain.only_path(clamp | np.array([True, False, False])) is None
    assert chain.only_path(clamp & np.array([True, False, False])) is None
    assert chain.only_path(np.ones((0, 3), dtype=bool)).tolist() == []


def test_everything_forbidden():
    scores = ChainScores(np.full((3, 2), -np.inf), np.zeros((2, 2)), np.zeros(2), np.zeros(2))
    log_z, expectations = chain.expectations(scores)
    assert log_z.tolist() == [-np.inf]
    assert all((array == 0).all() for array in expectations[:4])
    assert chain.viterbi(scores).states.tolist() == [-1, -1, -1]
    assert chain.n_best(scores, 2) == [[]]
    assert (chain.sample(scores, 2, seed=0) == -1).all()
    assert chain.path_score(scores, np.full(3, -1)).tolist() == [-np.inf]
    assert (chain.path_expectations(scores, np.full(3, -1)).emissions == 0).all()
    clamped = chain.marginals(random_scores([2, 2], 2), clamp=np.array([[0, 0], [1, 1], [1, 0], [0, 1]], dtype=bool))
    np.testing.assert_allclose(clamped, [[0, 0], [0, 0], [1, 0], [0, 1]], rtol=1e-12)


@pytest.mark.parametrize("per_position", [False, True])
def test_empty_batches(per_position):
    scores = random_scores([], 3, per_position=per_position)
    assert chain.log_partition(scores).shape == (0,)
    assert chain.expectations(scores)[1].emissions.shape == (0, 3)
    assert chain.n_best(scores, 3) == []
    assert chain.sample(scores, 2, seed=1).shape == (2, 0)
    single = scores._replace(starts=None)  # one sequence without tokens
    assert chain.log_partition(single).tolist() == [0.0]
    assert chain.viterbi(single).scores.tolist() == [0.0]
    assert [(score, states.tolist()) for score, states in chain.n_best(single, 3)[0]] == [(0.0, [])]


def near_disconnected(tokens):
    """Two islands without a bridge; the end is allowed only on the one that loses all its mass on the way."""
    emissions = np.zeros((tokens, 2))
    emissions[:, 1] = -200.0
    transitions = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    return ChainScores(emissions, transitions, np.zeros(2), np.array([-np.inf, 0.0]))


@pytest.mark.parametrize("last", [[-np.inf, 0.0], [0.0, -50.0]])
def test_vanishing_prefixes_are_not_lost(last):
    scores = near_disconnected(9)._replace(last=np.array(last))
    log_z, expectations = chain.expectations(scores)
    np.testing.assert_allclose(log_z, reference.log_partition(scores), rtol=1e-14)
    assert_scores_close(expectations, reference.expectations(scores))


@pytest.mark.parametrize(
    "scores",
    [
        near_disconnected(9),  # entries of alpha
        near_disconnected(9)._replace(first=np.array([-np.inf, 0.0]), last=np.zeros(2)),  # entries of beta
        random_scores([30], 4, spread=400.0),  # spread of the scores
        random_scores([30], 4, spread=400.0, per_position=True),
        random_scores([200], 4, spread=60.0, forbidden=0.5),
        scheme_scores([60, 60], 9, spread=60.0),
    ],
)
def test_both_domains_agree(scores, monkeypatch):
    """Where the linear domain gives an answer it is that of log space; the cases are those where it may well refuse."""
    log_z, expectations = chain.expectations(scores)
    monkeypatch.setattr(inference, "_scale", refuse_everything(inference._scale))
    expected_log_z, expected = chain.expectations(scores)
    np.testing.assert_allclose(log_z, expected_log_z, rtol=1e-12)
    np.testing.assert_allclose(chain.log_partition(scores), expected_log_z, rtol=1e-12)
    assert_scores_close(expectations, expected)


def refuse_everything(scale):
    return lambda *args: scale(*args)._replace(spread=np.full(len(args[0].emissions), np.inf))


def test_moderate_scores_stay_in_the_linear_domain(monkeypatch):
    monkeypatch.setattr(kernels, "log_forward", None)
    for scores in (random_scores([50, 3, 1], 9, spread=10.0, forbidden=0.3), scheme_scores([50, 3, 1], 9, spread=10.0)):
        assert np.isfinite(chain.expectations(scores)[0]).all()


LENGTHS = [3, 0, 11, 1, 6, 2, 0, 9]


@pytest.mark.parametrize(
    "scores",
    [
        random_scores(LENGTHS, 5, forbidden=0.2),
        random_scores(LENGTHS, 5, forbidden=0.2, per_position=True),
        scheme_scores(LENGTHS, 5),
    ],
)
def test_batch_equals_one_by_one(scores, monkeypatch):
    monkeypatch.setattr(inference, "CHUNK_TOKENS", 8)
    per_position = scores.transitions.ndim == 3
    scores.emissions[4] *= 1000.0  # one sequence in log space
    log_z, expectations = chain.expectations(scores)
    path = chain.viterbi(scores)
    transitions = 0.0
    for b, (begin, end) in enumerate(reference.sequences(scores)):
        one = scores._replace(
            emissions=scores.emissions[begin:end],
            transitions=scores.transitions[begin:end] if per_position else scores.transitions,
            starts=None,
        )
        one_log_z, one_expectations = chain.expectations(one)
        assert one_log_z[0] == log_z[b]
        assert chain.log_partition(one)[0] == log_z[b]
        np.testing.assert_array_equal(one_expectations.emissions, expectations.emissions[begin:end])
        np.testing.assert_array_equal(chain.viterbi(one).states, path.states[begin:end])
        if per_position:
            np.testing.assert_array_equal(one_expectations.transitions, expectations.transitions[begin:end])
        else:
            transitions = transitions + one_expectations.transitions
    if not per_position:
        np.testing.assert_allclose(transitions, expectations.transitions, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scores", [random_scores([7] * 40, 6, forbidden=0.2), scheme_scores([7] * 40, 5)])
def test_threads_change_no_bit(scores, monkeypatch):
    monkeypatch.setattr(inference, "CHUNK_TOKENS", 16)
    clamp = np.random.default_rng(1).random(scores.emissions.shape) < 0.95
    answers = []
    for threads in (1, 2, 3):
        threaded = LinearChain(threads=threads)
        log_z, expectations = threaded.expectations(scores, clamp=clamp)
        path = threaded.viterbi(scores, clamp=clamp)
        samples = threaded.sample(scores, 3, seed=5, clamp=clamp)
        log_partition = threaded.log_partition(scores, clamp=clamp)
        arrays = [log_z, *expectations[:4], path.states, path.scores, samples, log_partition]
        answers.append([array.tobytes() for array in arrays])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    "change, code, text",
    [
        (lambda s: s.emissions.__setitem__((4, 1), np.nan), "CRF010", "emissions score of token 4, state 1 is nan"),
        (lambda s: s.emissions.__setitem__((2, 0), np.inf), "CRF010", "token 2, state 0 is inf"),
        (
            lambda s: s.transitions.__setitem__((1, 0), np.nan),
            "CRF010",
            "transitions score of state 1, next state 0 is nan",
        ),
        (lambda s: s.first.__setitem__(1, np.inf), "CRF010", "first score of state 1"),
        (lambda s: s.last.__setitem__(0, np.nan), "CRF010", "last score of state 0"),
        (lambda s: s._replace(first=np.zeros(3)), "CRF011", "first has shape (3,)"),
        (lambda s: s._replace(transitions=np.zeros((3, 2))), "CRF011", "transitions has shape (3, 2)"),
        (lambda s: s._replace(transitions=np.zeros((4, 2, 2))), "CRF011", "transitions has shape (4, 2, 2)"),
        (lambda s: s._replace(emissions=np.zeros(5)), "CRF011", "emissions has shape (5,)"),
        (lambda s: s._replace(starts=np.array([0, 4])), "CRF012", "5 tokens"),
        (lambda s: s._replace(starts=np.array([0, 3, 2, 5])), "CRF012", "[0 3 2 5]"),
    ],
)
def test_mistakes_are_named(change, code, text):
    scores = random_scores([5], 2)
    scores = change(scores) or scores
    with pytest.raises(ValueError) as error:
        chain.expectations(scores)
    assert code in str(error.value) and text in str(error.value)


def test_mistakes_beside_the_scores_are_named():
    scores = random_scores([5], 2)
    with pytest.raises(ValueError, match="CRF011: clamp has shape"):
        chain.viterbi(scores, clamp=np.ones((4, 2), dtype=bool))
    with pytest.raises(ValueError, match="CRF011: weights has shape"):
        chain.expectations(scores, weights=np.ones(2))
    with pytest.raises(ValueError, match="CRF011: states has shape"):
        chain.path_score(scores, np.zeros(4, dtype=np.int32))
    with pytest.raises(ValueError, match="CRF013: Token 3 has state 2"):
        chain.path_score(scores, np.array([0, 1, 0, 2, 1], dtype=np.int32))
    with pytest.raises(ValueError, match="CRF014"):
        chain.n_best(scores, 0)


def test_other_dtypes_and_layouts_are_taken():
    scores = random_scores([4], 3)
    expected = chain.log_partition(scores)
    frozen = scores.emissions.copy()
    frozen.flags.writeable = False
    fortran = scores._replace(emissions=np.asfortranarray(scores.emissions), starts=scores.starts.astype(np.int32))
    assert chain.log_partition(fortran) == expected
    assert chain.log_partition(scores._replace(emissions=frozen)) == expected
    single = scores._replace(emissions=scores.emissions.astype(np.float32))
    np.testing.assert_allclose(chain.log_partition(single), expected, rtol=1e-6)


@pytest.mark.parametrize("spread", [1.0, 800.0])
def test_sampler_draws_by_probability(spread):
    scores = random_scores([3, 2], 2, seed=3, spread=0.7)
    scores.emissions[0, 0] = spread
    scores.transitions[0, 1] = -np.inf
    n = 4000
    drawn = chain.sample(scores, n, seed=11)
    np.testing.assert_array_equal(drawn, chain.sample(scores, n, seed=11))
    assert (drawn != chain.sample(scores, n, seed=12)).any()
    for begin, end in reference.sequences(scores):
        allowed = reference.paths(scores, begin, end)
        log_z = reference.log_sum([score for score, _ in allowed])
        frequency = {path: 0 for _, path in allowed}
        for path in drawn[:, begin:end].tolist():
            frequency[tuple(path)] += 1  # a forbidden path is a KeyError
        for score, path in allowed:
            probability = np.exp(score - log_z)
            assert frequency[path] / n == pytest.approx(
                probability, abs=4 * np.sqrt(probability * (1 - probability) / n)
            )


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_second_call_compiles_nothing():
    def ask_everything(scores, clamp):
        chain.expectations(scores, clamp=clamp)
        chain.log_partition(scores)
        chain.edge_marginals(scores)
        chain.n_best(scores, 2, clamp=clamp)
        chain.sample(scores, 2, seed=0)
        chain.viterbi_counts(scores, clamp=clamp)
        chain.log_probability(scores, chain.viterbi(scores).states)
        chain.only_path(clamp)

    def compiled():
        return signatures(kernels)

    first = random_scores([3, 1], 2, spread=500.0)
    ask_everything(first, np.ones((4, 2), dtype=bool))
    before = compiled()
    # At most one signature each: the cold start is paid once
    assert {name: count for name, count in before.items() if count > 1} == {}
    ask_everything(random_scores([1], 5)._replace(starts=None), np.ones((1, 5), dtype=bool))
    ask_everything(random_scores([], 1, per_position=True), np.ones((0, 1), dtype=bool))
    ask_everything(scheme_scores([3, 2], 6), np.ones((5, 25), dtype=bool))
    assert compiled() == before


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
        from spacy_crf.inference import linear_chain as inference
        from tests.test_linear_chain import random_scores

        inference.CHUNK_TOKENS = 4
        chain = inference.LinearChain(threads=2)
        scores = random_scores([4] * 6, 3)

        def ask(_):
            return chain.expectations(scores)[1].transitions.tobytes()

        here = ask(0)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            there = pool.map_async(ask, range(4)).get(timeout=60)
        assert there == [here] * 4
        """
    )
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=120)
