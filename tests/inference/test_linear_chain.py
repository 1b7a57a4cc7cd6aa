"""Linear chains in the linear domain and in log space: which transitions are left out, and when the linear domain gives up."""

import contextlib

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spacy_crf.inference import scaling
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.kernels import exponentials, log_space
from spacy_crf.kernels import linear_chain as kernels
from spacy_crf.schemes import SCHEMES
from spacy_crf.types import ChainScores
from tests import reference
from tests.structures import SCORES, assert_scores_close, starts_of
from tests.util import draws, signatures

chain = LinearChain()
quickly = draws(60)


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
        starts_of(lengths),
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
    before = scaling.WORTH_IT
    scaling.WORTH_IT = share
    scaling._find_block.cache_clear()
    scaling._latest_scores.clear()
    try:
        yield
    finally:
        scaling.WORTH_IT = before
        scaling._find_block.cache_clear()
        scaling._latest_scores.clear()


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


@quickly
@given(sparse_problems())
def test_sums_over_allowed_transitions_match_enumeration(problem):
    scores, clamp = problem
    expected_log_z = reference.log_partition(scores, clamp)
    expected = reference.expectations(scores, clamp)
    for share in (0.0, np.inf, scaling.WORTH_IT):
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
    for share in (0.0, np.inf, scaling.WORTH_IT):
        with worth_it(share):
            path = chain.viterbi(scores, clamp=clamp)
            assert path.scores[0] == pytest.approx(score, abs=1e-9)
            assert path.states.tolist() == list(states)


@quickly
@given(masks(sizes=(5, 8, 13, 21, 29, 37)), st.sampled_from([0.0, np.inf, scaling.WORTH_IT]))
def test_each_allowed_transition_is_in_the_block_or_an_arc(allowed, share):
    size = len(allowed)
    with worth_it(share):
        layout = scaling._find_block(size, np.packbits(allowed).tobytes())
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
    layout = chain.prepare(scheme_scores([1], n_labels, scheme=scheme)).ordered_scores.layout
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
    monkeypatch.setattr(scaling, "_scale", refuse_everything(scaling._scale))
    expected_log_z, expected = chain.expectations(scores)
    np.testing.assert_allclose(log_z, expected_log_z, rtol=1e-12)
    np.testing.assert_allclose(chain.log_partition(scores), expected_log_z, rtol=1e-12)
    assert_scores_close(expectations, expected)


@pytest.mark.parametrize("size", [1, 3, 7, 9, 20, 31, 36, 44, 50, 63, 66, 131])
def test_both_domains_agree_however_wide_the_tiles_are(size, monkeypatch):
    for scores in (random_scores([4, 1, 3, 5, 4, 2], size), random_scores([2], size, per_position=True)):
        log_z, expectations = chain.expectations(scores)
        with monkeypatch.context() as patched:
            patched.setattr(scaling, "_scale", refuse_everything(scaling._scale))
            expected_log_z, expected = chain.expectations(scores)
        np.testing.assert_allclose(log_z, expected_log_z, rtol=1e-13)
        assert_scores_close(expectations, expected)


def refuse_everything(scale):
    def refuse(*args):
        scaled = scale(*args)
        return scaled._replace(spread=np.full(len(scaled.spread), np.inf))

    return refuse


@pytest.mark.parametrize("in_order", [True, False])
def test_exponentials_are_those_of_numpy(in_order):
    scores = np.random.default_rng(0).normal(scale=100.0, size=(40, 11))
    scores[0, 3], scores[1], scores[2, 1:4] = -np.inf, -np.inf, (-0.0, 1e-310, -1e-310)
    scores[3, :6] = np.array([0.0, -1e-17, -0.3465735, -0.3465736, -699.9, -745.0]) + scores[3, 6:].max()
    order = np.arange(0) if in_order else np.arange(11)[::-1].copy()
    scaled, shift, spread = np.empty((40, 16)), np.zeros(40), np.zeros(40)
    kernels.scale(scores, order, scaled, shift, spread)
    largest = scores.max(axis=1)
    largest[1] = 0.0
    finite = np.where(scores > -np.inf, scores, largest[:, np.newaxis])
    np.testing.assert_array_equal(shift, largest)
    np.testing.assert_array_equal(spread, largest - finite.min(axis=1))
    difference = scores - largest[:, np.newaxis]
    expected = np.where(difference < exponentials.LEAST, 0.0, np.exp(difference))[:, :: 1 if in_order else -1]
    np.testing.assert_allclose(scaled[:, :11], expected, rtol=4.5e-16, atol=0.0)
    assert not scaled[:, 11:].any()


def test_the_exponential_of_nan_is_nan():
    scores = np.zeros((1, 8))
    scores[0, 2] = np.nan
    scaled = np.empty((1, 8))
    kernels.scale(scores, np.arange(0), scaled, np.zeros(1), np.zeros(1))
    assert np.isnan(scaled[0, 2])


def test_arcs_of_labels_that_lack_tags_are_few_runs():
    """B-x to L-x and I-x, I-x to I-x and L-x of labels of which some lack I-x, in an order of its own."""
    rng, scores = np.random.default_rng(0), scheme_scores([3], 20)
    begin, inside, last, unit = np.arange(1, 81).reshape(20, 4).T
    kept = np.concatenate([[0], begin, rng.permutation(inside)[:12], last, unit])
    transitions = scores.transitions[np.ix_(kept, kept)]
    layout = scaling._find_layout(transitions[np.newaxis])
    assert not layout.is_whole
    assert len(layout.source) > 50
    assert len(layout.runs) == 4


def test_parts_of_a_chunk_add_up(monkeypatch):
    """What goes through the cache part by part is what all of it is at once, sequences in log space and empty ones too."""
    lengths = [5, 0, 9, 1, 7, 0, 3, 12, 2]
    scores = scheme_scores(lengths, 5, spread=2.0)
    scores.emissions[14] *= 1000.0
    weights = np.linspace(0.5, 2.0, len(lengths))
    log_z, expected = chain.expectations(scores, weights=weights)
    monkeypatch.setattr(scaling, "LEAST_TOKENS", 8)
    monkeypatch.setattr(scaling, "CACHED_SCORES", 8)
    in_parts, found = chain.expectations(scores, weights=weights)
    np.testing.assert_array_equal(in_parts, log_z)
    assert_scores_close(found, expected)


def test_marginals_of_some_tokens_are_the_same_bits(monkeypatch):
    """What belief propagation asks for: of the tied tokens alone, part by part."""
    scores = scheme_scores([5, 0, 9, 1, 7, 0, 3, 12, 2], 5, spread=2.0)
    expected, rows = chain.marginals(scores), np.array([0, 6, 13, 14, 20, 33, 38])
    monkeypatch.setattr(scaling, "LEAST_TOKENS", 8)
    monkeypatch.setattr(scaling, "CACHED_SCORES", 8)
    found, log_z = scaling.marginals(chain.prepare(scores), rows)
    np.testing.assert_array_equal(found, expected[rows])
    np.testing.assert_array_equal(log_z, chain.log_partition(scores))


def test_no_tokens_with_transitions_of_their_own_have_no_expectations():
    """There is no matrix then that products of neighbours could be added to: only kernels without numba say so."""
    none, size = np.zeros(5), 5
    scores = ChainScores(np.zeros((0, size)), np.zeros((0, size, size)), none, none, np.array([0, 0]))
    log_z, expected = chain.expectations(scores)
    assert log_z.tolist() == [0.0] and expected.transitions.shape == (0, size, size)


def test_moderate_scores_stay_in_the_linear_domain(monkeypatch):
    monkeypatch.setattr(log_space, "log_forward", None)
    for scores in (random_scores([50, 3, 1], 9, spread=10.0, forbidden=0.3), scheme_scores([50, 3, 1], 9, spread=10.0)):
        assert np.isfinite(chain.expectations(scores)[0]).all()


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_second_call_compiles_nothing():
    def ask_everything(scores, clamp):
        chain.expectations(scores, clamp=clamp)
        chain.log_partition(scores)
        chain.expectations(scores._replace(transitions=np.tile(scores.transitions, (len(scores.emissions), 1, 1))))
        chain.n_best(scores, 2, clamp=clamp)
        chain.sample(scores, 2, seed=0)
        chain.viterbi_counts(scores, clamp=clamp)
        chain.log_probability(scores, chain.viterbi(scores).states)
        chain.only_path(clamp)

    def compiled():
        return {**signatures(kernels), **signatures(log_space)}

    first = random_scores([3, 1], 2, spread=500.0)
    ask_everything(first, np.ones((4, 2), dtype=bool))
    ask_everything(scheme_scores([4], 7), np.ones((4, 29), dtype=bool))  # in an order of its own
    before = compiled()
    # At most one signature each: the cold start is paid once
    assert {name: count for name, count in before.items() if count > 1} == {}
    ask_everything(random_scores([1], 5)._replace(starts=None), np.ones((1, 5), dtype=bool))
    ask_everything(random_scores([], 1, per_position=True), np.ones((0, 1), dtype=bool))
    ask_everything(scheme_scores([3, 2], 6), np.ones((5, 25), dtype=bool))
    assert compiled() == before
