"""Semi-Markov chains against enumeration, alone and in batches, in the linear domain and in log space."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spacy_crf.inference import semi_markov as inference
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.semi_markov import SemiMarkov, segments_of
from spacy_crf.kernels import semi_markov as kernels
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.types import GOES_ON, ChainScores, SegmentClamp, SegmentScores, SpanList

from . import reference
from .test_linear_chain import SCORES
from .util import signatures

semi = SemiMarkov()
quickly = settings(deadline=None, derandomize=True, max_examples=60)
BOOLEANS = st.booleans()
FIELDS = ("tokens", "begins", "ends", "lengths", "spans", "transitions", "first", "last")


def starts_of(lengths):
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def list_spans(draw_one, lengths, longest):
    """Some of the spans of each sequence, in the order of the list."""
    starts, listed = [0], []
    for length in lengths:
        for t in range(length):
            listed.extend(k + 1 for k in range(min(longest, length - t)) if draw_one())
            starts.append(len(listed))
    return SpanList(np.array(starts, dtype=np.int64), np.array(listed, dtype=np.int32))


@st.composite
def problems(draw, kinds=tuple(SCORES), clamped=BOOLEANS, per_position=BOOLEANS):
    """Scores of up to three sequences of up to four tokens, up to three states and lengths, and perhaps a clamp."""
    size, longest = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(0, 4), min_size=0, max_size=3))
    tokens = sum(lengths)
    listed = list_spans(lambda: draw(BOOLEANS), lengths, longest)
    value = SCORES[draw(st.sampled_from(kinds))]
    shapes = [(tokens, size)] * 3 + [(longest, size), (len(listed.lengths), size)]
    shapes += [(tokens, size, size) if draw(per_position) else (size, size), (size,), (size,)]
    arrays = []
    for shape in shapes:
        count = int(np.prod(shape))
        arrays.append(np.array(draw(st.lists(value, min_size=count, max_size=count)), dtype=np.float64).reshape(shape))
    clamp = None
    if draw(clamped):

        def bools(n, chance):
            return np.array(draw(st.lists(st.sampled_from(chance), min_size=n, max_size=n)), dtype=bool)

        clamp = SegmentClamp(
            bools(tokens * size, [True, True, False]).reshape(tokens, size),
            bools(tokens, [True, True, False]),
            bools(tokens, [True, False, False]),
        )
    return SegmentScores(*arrays, listed, starts_of(lengths)), clamp


def random_scores(lengths, size, longest=3, *, seed=0, spread=2.0, forbidden=0.0, per_position=False):
    rng = np.random.default_rng(seed)
    tokens = sum(lengths)
    transitions = rng.normal(scale=spread, size=(tokens, size, size) if per_position else (size, size))
    transitions[rng.random(transitions.shape) < forbidden] = -np.inf
    listed = list_spans(lambda: rng.random() < 0.4, lengths, longest)
    return SegmentScores(
        *rng.normal(scale=spread, size=(3, tokens, size)),
        rng.normal(size=(longest, size)),
        rng.normal(scale=spread, size=(len(listed.lengths), size)),
        transitions,
        rng.normal(size=size),
        rng.normal(size=size),
        listed,
        starts_of(lengths),
    )


def assert_scores_close(actual, expected, **tolerance):
    for name in FIELDS:
        np.testing.assert_allclose(
            getattr(actual, name), getattr(expected, name), **{"atol": 1e-9, **tolerance}, err_msg=name
        )


def as_path(segments, begin, end):
    path = np.full(end - begin, GOES_ON)
    for first, _, state in segments:
        path[first - begin] = state
    return tuple(path.tolist())


@quickly
@given(problems())
def test_sums_match_enumeration(problem):
    scores, clamp = problem
    weights = np.linspace(-1.0, 2.0, len(scores.starts) - 1)
    expected = reference.segment_log_partition(scores, clamp)
    log_z, expectations = semi.expectations(scores, clamp=clamp, weights=weights)
    np.testing.assert_allclose(log_z, expected, rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(semi.log_partition(scores, clamp=clamp), expected, rtol=1e-12, atol=1e-9)
    assert_scores_close(expectations, reference.segment_expectations(scores, clamp, weights))
    assert expectations.starts is scores.starts and expectations.listed is scores.listed


@quickly
@given(problems(), st.sampled_from([0.0, 0.3, 1.0]))
def test_marginals_match_enumeration(problem, min_prob):
    scores, clamp = problem
    marginals = semi.marginals(scores, clamp=clamp)
    possible = np.repeat(np.isfinite(reference.segment_log_partition(scores, clamp)), np.diff(scores.starts))
    np.testing.assert_allclose(marginals.sum(axis=1), possible, atol=1e-9)
    expected = reference.segment_marginals(scores, clamp)
    found = semi.segment_marginals(scores, clamp=clamp, min_prob=min_prob)
    actual = {(int(b), int(e), int(s)): p for b, e, s, p in zip(*found)}
    assert actual == pytest.approx({key: expected[key] for key in actual}, abs=1e-9)
    # A little below the threshold, rounding may decide.
    assert {key for key, p in expected.items() if p >= min_prob * (1 - 1e-7)} <= set(actual)
    assert set(actual) <= {key for key, p in expected.items() if p >= min_prob * (1 - 1e-5)}


@quickly
@given(problems())
def test_maxima_match_enumeration(problem):
    scores, clamp = problem
    path = semi.viterbi(scores, clamp=clamp)
    n_best = semi.n_best(scores, 4, clamp=clamp)
    for b, (begin, end) in enumerate(reference.segment_sequences(scores)):
        allowed = reference.segment_paths(scores, begin, end, clamp)
        expected = [score for score, _ in allowed[:4]]
        np.testing.assert_allclose([score for score, _ in n_best[b]], expected, rtol=1e-12, atol=1e-9)
        assert len({states.tobytes() for _, states in n_best[b]}) == len(expected)
        score_of = {as_path(segments, begin, end): score for score, segments in allowed}
        for score, states in n_best[b]:
            assert score_of[tuple(states)] == pytest.approx(score, abs=1e-9)
            assert states.dtype == np.int32
        if allowed:
            assert path.scores[b] == pytest.approx(expected[0], abs=1e-9)
            assert score_of[tuple(path.states[begin:end])] == pytest.approx(expected[0], abs=1e-9)
        else:
            assert path.scores[b] == -np.inf
            assert (path.states[begin:end] == -1).all()


@quickly
@given(problems(kinds=["ties"]))
def test_ties_have_one_order(problem):
    scores, clamp = problem  # small whole numbers: sums are exact, so the order of equals is part of the answer
    actual = semi.n_best(scores, 5, clamp=clamp)
    path = semi.viterbi(scores, clamp=clamp)
    for b, (begin, end) in enumerate(reference.segment_sequences(scores)):
        expected = [
            (score, as_path(segments, begin, end))
            for score, segments in reference.segment_paths(scores, begin, end, clamp)
        ]
        assert [(score, tuple(states)) for score, states in actual[b]] == expected[:5]
        if expected:
            assert tuple(path.states[begin:end]) == expected[0][1]


@quickly
@given(problems(clamped=st.just(False)), st.data())
def test_given_paths_match_enumeration(problem, data):
    scores, _ = problem
    tokens, size = scores.tokens.shape
    states = np.full(tokens, GOES_ON, dtype=np.int32)
    for begin, end in reference.segment_sequences(scores):
        while begin < end:
            states[begin] = data.draw(st.integers(0, size - 1))
            begin += data.draw(st.integers(1, min(len(scores.lengths), end - begin)))
    expected, allowed = [], np.zeros((tokens, size), dtype=bool)
    for first, end, state in zip(*segments_of(states)):
        allowed[first:end, state] = True
    clamp = SegmentClamp(allowed, states != GOES_ON, states != GOES_ON)
    for begin, end in reference.segment_sequences(scores):
        scored = reference.segment_paths(scores, begin, end, clamp)
        assert len(scored) <= 1
        expected.append(scored[0][0] if scored else -np.inf)
    np.testing.assert_allclose(semi.path_score(scores, states), expected, rtol=1e-12, atol=1e-9)
    log_probability = semi.log_probability(scores, states)
    log_z = reference.segment_log_partition(scores)
    for b, score in enumerate(expected):
        assert log_probability[b] <= 0
        assert log_probability[b] == (-np.inf if score == -np.inf else pytest.approx(score - log_z[b], abs=1e-9))
    np.testing.assert_array_equal(semi.only_path(clamp), states)
    again = np.full(tokens, GOES_ON, dtype=np.int32)
    segments = segments_of(states)
    again[segments.begin] = segments.state
    np.testing.assert_array_equal(again, states)
    free = scores._replace(**{name: np.zeros_like(getattr(scores, name)) for name in FIELDS})
    assert_scores_close(semi.path_expectations(scores, states), reference.segment_expectations(free, clamp))


def test_segments_of_length_one_are_a_linear_chain():
    """Second oracle: with K = 1 it is the other structure, at sizes that no enumeration reaches."""
    scores = random_scores([40, 3, 0, 77], 5, 1, forbidden=0.2)
    emissions = scores.tokens + scores.begins + scores.ends + scores.lengths[0]
    [span_tokens] = np.nonzero(np.diff(scores.listed.starts))
    emissions[span_tokens] += scores.spans
    chain_scores = ChainScores(emissions, scores.transitions, scores.first, scores.last, scores.starts)
    log_z, expectations = LinearChain().expectations(chain_scores)
    actual_log_z, actual = semi.expectations(scores)
    np.testing.assert_allclose(actual_log_z, log_z, rtol=1e-12)
    np.testing.assert_allclose(actual.tokens, expectations.emissions, atol=1e-10)
    np.testing.assert_allclose(actual.transitions, expectations.transitions, atol=1e-9)
    np.testing.assert_array_equal(semi.viterbi(scores).states, LinearChain().viterbi(chain_scores).states)


def test_only_path_wants_exactly_one():
    states, cuts = np.array([[1, 0], [1, 0], [0, 1]], dtype=bool), np.array([1, 0, 1], dtype=bool)
    assert semi.only_path(SegmentClamp(states, cuts, cuts)).tolist() == [0, GOES_ON, 1]
    assert semi.only_path(SegmentClamp(states, np.ones(3, dtype=bool), cuts)) is None
    assert semi.only_path(SegmentClamp(states | True, cuts, cuts)) is None
    assert semi.only_path(SegmentClamp(states & False, cuts, cuts)) is None
    torn = np.array([1, 0, 0], dtype=bool)
    assert semi.only_path(SegmentClamp(states, torn, torn)) is None
    assert semi.only_path(SegmentClamp(states[:0], cuts[:0], cuts[:0])).tolist() == []


def test_everything_forbidden():
    scores = random_scores([3], 2)
    scores.tokens[1] = -np.inf
    log_z, expectations = semi.expectations(scores)
    assert log_z.tolist() == [-np.inf]
    assert all((getattr(expectations, name) == 0).all() for name in FIELDS)
    assert semi.viterbi(scores).states.tolist() == [-1, -1, -1]
    assert semi.n_best(scores, 2) == [[]]
    assert (semi.sample(scores, 2, seed=0) == -1).all()
    assert semi.segment_marginals(scores, min_prob=0.0).begin.tolist() == []
    assert semi.path_score(scores, np.full(3, -1)).tolist() == [-np.inf]
    assert (semi.path_expectations(scores, np.full(3, -1)).tokens == 0).all()
    assert segments_of(np.full(3, -1)).begin.tolist() == []


def test_segments_longer_than_allowed_have_no_path():
    scores = random_scores([4], 2, 2)
    assert semi.path_score(scores, np.array([0, GOES_ON, GOES_ON, 1])).tolist() == [-np.inf]


@pytest.mark.parametrize("per_position", [False, True])
def test_empty_batches(per_position):
    scores = random_scores([], 3, per_position=per_position)
    assert semi.log_partition(scores).shape == (0,)
    assert semi.expectations(scores)[1].tokens.shape == (0, 3)
    assert semi.n_best(scores, 3) == []
    assert semi.sample(scores, 2, seed=1).shape == (2, 0)
    single = scores._replace(starts=None, listed=None)  # one sequence without tokens
    assert semi.log_partition(single).tolist() == [0.0]
    assert semi.viterbi(single).scores.tolist() == [0.0]
    assert [(score, states.tolist()) for score, states in semi.n_best(single, 3)[0]] == [(0.0, [])]


def drifting(slope, tokens=60, longest=20):
    """One state loses, token by token, what it can only win back as one long segment."""
    scores = random_scores([tokens], 3, longest, spread=0.5)
    scores.tokens[:, 1] -= slope
    scores.lengths[-1, 1] += min(slope * longest, 90.0)
    return scores


HARD = {
    "drift": drifting(3.0),
    "steep drift": drifting(60.0),
    "won back": drifting(-60.0),
    "long segments only": drifting(20.0)._replace(
        lengths=np.where(np.arange(20)[:, None] < 3, -np.inf, 0.0) + np.zeros(3)
    ),
    "spread": random_scores([30], 4, spread=400.0),
    "spread per position": random_scores([30], 4, spread=400.0, per_position=True),
    "sparse": random_scores([200], 4, spread=60.0, forbidden=0.5),
    "one state": drifting(50.0)._replace(first=np.array([-np.inf, 0.0, -np.inf])),
}


@pytest.mark.parametrize("scores", HARD.values(), ids=HARD)
def test_both_domains_agree(scores, monkeypatch):
    """Where the linear domain gives an answer it is that of log space; the cases are those where it may well refuse."""
    log_z, expectations = semi.expectations(scores)
    monkeypatch.setattr(inference, "_forward", refuse_everything)
    expected_log_z, expected = semi.expectations(scores)
    np.testing.assert_allclose(log_z, expected_log_z, rtol=1e-12)
    np.testing.assert_allclose(semi.log_partition(scores), expected_log_z, rtol=1e-12)
    assert_scores_close(expectations, expected)


def refuse_everything(part, exponentials, log_z):
    log_z[:] = np.nan


def test_moderate_scores_stay_in_the_linear_domain(monkeypatch):
    monkeypatch.setattr(kernels, "log_forward", None)
    assert np.isfinite(semi.expectations(random_scores([50, 3, 1], 9, 8, spread=6.0, forbidden=0.3))[0]).all()
    assert np.isfinite(semi.expectations(drifting(10.0))[0]).all()


def test_long_sequences_stay_exact():
    """Differences of running sums over 20 000 tokens: forgetting nothing, and not drifting away."""
    scores = random_scores([20_000], 3, 4, spread=3.0)
    scores.tokens[:] += 5.0
    log_z, expectations = semi.expectations(scores)
    np.testing.assert_allclose(expectations.tokens.sum(axis=1), 1.0, atol=1e-8)
    pieces = semi.log_partition(scores._replace(tokens=scores.tokens - 5.0))
    assert log_z[0] == pytest.approx(pieces[0] + 5.0 * 20_000, rel=1e-12)


@pytest.mark.parametrize("per_position", [False, True])
def test_batch_equals_one_by_one(per_position, monkeypatch):
    monkeypatch.setattr(inference, "CHUNK_TOKENS", 8)
    scores = random_scores([3, 0, 11, 1, 6, 2, 0, 9], 5, forbidden=0.2, per_position=per_position)
    scores.tokens[4] *= 1000.0  # one sequence in log space
    log_z, expectations = semi.expectations(scores)
    path = semi.viterbi(scores)
    for b, (begin, end) in enumerate(reference.segment_sequences(scores)):
        spans = slice(*scores.listed.starts[[begin, end]])
        one = scores._replace(
            **{name: getattr(scores, name)[begin:end] for name in ("tokens", "begins", "ends")},
            spans=scores.spans[spans],
            transitions=scores.transitions[begin:end] if per_position else scores.transitions,
            listed=SpanList(scores.listed.starts[begin : end + 1] - spans.start, scores.listed.lengths[spans]),
            starts=None,
        )
        one_log_z, one_expectations = semi.expectations(one)
        assert one_log_z[0] == pytest.approx(log_z[b], rel=1e-14)
        np.testing.assert_allclose(one_expectations.tokens, expectations.tokens[begin:end], atol=1e-12)
        np.testing.assert_allclose(one_expectations.spans, expectations.spans[spans], atol=1e-12)
        np.testing.assert_array_equal(semi.viterbi(one).states, path.states[begin:end])
        if per_position:
            np.testing.assert_allclose(one_expectations.transitions, expectations.transitions[begin:end], atol=1e-12)


def test_threads_change_no_bit(monkeypatch):
    monkeypatch.setattr(inference, "CHUNK_TOKENS", 16)
    scores = random_scores([7] * 40, 6, forbidden=0.2)
    answers = []
    for threads in (1, 2, 3):
        threaded = SemiMarkov(threads=threads)
        log_z, expectations = threaded.expectations(scores)
        path = threaded.viterbi(scores)
        arrays = [log_z, *expectations[:8], path.states, path.scores, threaded.sample(scores, 3, seed=5)]
        arrays += [threaded.log_partition(scores), *threaded.segment_marginals(scores)]
        answers.append([array.tobytes() for array in arrays])
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize("spread", [1.0, 800.0])
def test_sampler_draws_by_probability(spread):
    scores = random_scores([3, 2], 2, 2, seed=3, spread=0.7)
    scores.tokens[0, 0] = spread
    scores.transitions[0, 1] = -np.inf
    n = 4000
    drawn = semi.sample(scores, n, seed=11)
    np.testing.assert_array_equal(drawn, semi.sample(scores, n, seed=11))
    assert (drawn != semi.sample(scores, n, seed=12)).any()
    for begin, end in reference.segment_sequences(scores):
        allowed = reference.segment_paths(scores, begin, end)
        log_z = reference.log_sum([score for score, _ in allowed])
        frequency = {as_path(segments, begin, end): 0 for _, segments in allowed}
        for path in drawn[:, begin:end].tolist():
            frequency[tuple(path)] += 1  # a forbidden path is a KeyError
        for score, segments in allowed:
            probability = np.exp(score - log_z)
            assert frequency[as_path(segments, begin, end)] / n == pytest.approx(
                probability, abs=4 * np.sqrt(probability * (1 - probability) / n) + 1e-12
            )


CLAMPS = {
    "full": SegmentClamp(
        np.array([[0, 1], [0, 1], [1, 0], [1, 0], [0, 1]], dtype=bool),
        np.array([1, 0, 1, 1, 1], dtype=bool),
        np.array([1, 0, 1, 1, 1], dtype=bool),
    ),
    "partial": SegmentClamp(
        np.array([[1, 1], [0, 1], [1, 1], [1, 0], [1, 1]], dtype=bool),
        np.array([1, 0, 1, 1, 1], dtype=bool),
        np.array([1, 0, 0, 1, 0], dtype=bool),
    ),
}


@pytest.mark.parametrize("loss", [LogLikelihood(), Perceptron(), MaxMargin(), SoftmaxMargin()])
@pytest.mark.parametrize("clamp", CLAMPS.values(), ids=CLAMPS)
def test_gradients_of_losses_match_finite_differences(loss, clamp):
    scores, weights = random_scores([3, 2], 2, 2, seed=4), np.array([1.0, 0.5])
    losses, d_scores, impossible = loss(semi, scores, clamp, weights=weights)
    assert (losses >= 0).all() and not impossible.any()
    step = 1e-5
    for name in FIELDS:
        array = getattr(scores, name)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + step
            above = loss(semi, scores, clamp, weights=weights)[0].sum()
            array[index] = kept - step
            below = loss(semi, scores, clamp, weights=weights)[0].sum()
            array[index] = kept
            assert getattr(d_scores, name)[index] == pytest.approx((above - below) / (2 * step), abs=1e-7), name


@pytest.mark.parametrize(
    "change, code, text",
    [
        (lambda s: s.tokens.__setitem__((4, 1), np.nan), "CRF010", "tokens score of token 4, state 1 is nan"),
        (lambda s: s.lengths.__setitem__((2, 0), np.inf), "CRF010", "lengths score of length 2, state 0 is inf"),
        (lambda s: s.spans.__setitem__((0, 0), np.nan), "CRF010", "spans score of span 0, state 0"),
        (lambda s: s._replace(begins=np.zeros((5, 3))), "CRF011", "begins has shape (5, 3)"),
        (lambda s: s._replace(transitions=np.zeros((3, 2))), "CRF011", "transitions has shape (3, 2)"),
        (lambda s: s._replace(tokens=np.zeros(5)), "CRF011", "tokens has shape (5,)"),
        (lambda s: s._replace(starts=np.array([0, 4])), "CRF012", "5 tokens"),
        (lambda s: s._replace(lengths=np.zeros((0, 2))), "CRF015", "lengths has shape (0, 2)"),
        (lambda s: s._replace(listed=SpanList(np.zeros(3), s.listed.lengths)), "CRF016", "starts"),
        (lambda s: s._replace(listed=SpanList(s.listed.starts, s.listed.lengths + 9)), "CRF016", "outside 1 to 3"),
        (lambda s: s._replace(listed=SpanList([0, 0, 0, 0, 0, 1], [2]), spans=np.zeros((1, 2))), "CRF016", "beyond"),
        (lambda s: s._replace(listed=SpanList([0, 2, 2, 2, 2, 2], [2, 2]), spans=np.zeros((2, 2))), "CRF016", "rise"),
    ],
)
def test_mistakes_are_named(change, code, text):
    scores = random_scores([5], 2)
    scores = change(scores) or scores
    with pytest.raises(ValueError) as error:
        semi.expectations(scores)
    assert code in str(error.value) and text in str(error.value)


def test_mistakes_beside_the_scores_are_named():
    scores = random_scores([5], 2)
    with pytest.raises(ValueError, match=r"CRF011: clamp\.may_begin has shape"):
        semi.viterbi(scores, clamp=SegmentClamp(np.ones((5, 2)), np.ones(4), np.ones(5)))
    with pytest.raises(ValueError, match="CRF013: Token 3 has state 2"):
        semi.path_score(scores, np.array([0, 1, 0, 2, 1], dtype=np.int32))
    with pytest.raises(ValueError, match="CRF014"):
        semi.n_best(scores, 0)


@pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="nothing is compiled")
def test_second_call_compiles_nothing():
    def ask_everything(scores):
        tokens, size = scores.tokens.shape
        clamp = SegmentClamp(np.ones((tokens, size)), np.ones(tokens), np.zeros(tokens))
        semi.expectations(scores, clamp=clamp)
        semi.expectations(scores)
        semi.log_partition(scores)
        semi.n_best(scores, 2, clamp=clamp)
        semi.sample(scores, 2, seed=0)
        semi.segment_marginals(scores)
        semi.viterbi_counts(scores, clamp=clamp)
        semi.log_probability(scores, semi.viterbi(scores).states)
        semi.only_path(clamp)

    def compiled():
        return signatures(kernels)

    ask_everything(random_scores([3, 1], 2))
    before = compiled()
    # At most one signature each: the cold start is paid once
    assert {name: count for name, count in before.items() if count > 1} == {}
    ask_everything(random_scores([1], 5)._replace(starts=None, listed=None, spans=np.zeros((0, 5))))
    ask_everything(random_scores([], 1, per_position=True))
    assert compiled() == before
