"""Semi-Markov chains: probabilities of segments, lists of spans, and when the linear domain gives up."""

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spacy_crf.inference import semi_markov as inference
from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.semi_markov import SemiMarkov
from spacy_crf.inference.structure import SpanStates
from spacy_crf.kernels import log_space
from spacy_crf.kernels import semi_markov as kernels
from spacy_crf.schemes import Segments
from spacy_crf.types import GOES_ON, ChainScores, SegmentClamp, SegmentScores, SpanList
from tests import reference
from tests.inference.test_linear_chain import quickly
from tests.structures import STRUCTURES, assert_scores_close, problems, starts_of
from tests.util import signatures

semi = SemiMarkov()
ALL_STATES = SpanStates.even(None, 0)  # each state is a label


def list_spans(draw_one, lengths, longest):
    """Some of the spans of each sequence, in the order of the list."""
    starts, listed = [0], []
    for length in lengths:
        for t in range(length):
            listed.extend(k + 1 for k in range(min(longest, length - t)) if draw_one())
            starts.append(len(listed))
    return SpanList(np.array(starts, dtype=np.int64), np.array(listed, dtype=np.int32))


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


@quickly
@given(problems(STRUCTURES["segments"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_probabilities_of_segments_match_enumeration(problem, min_prob):
    _, scores, clamp = problem
    expected = reference.segment_marginals(scores, clamp)
    segments, probabilities = semi.likely_spans(scores, ALL_STATES, min_prob, clamp=clamp)
    actual = dict(zip(zip(*(column.tolist() for column in segments)), probabilities))
    assert actual == pytest.approx({key: expected[key] for key in actual}, abs=1e-9)
    # A little below the threshold, rounding may decide.
    assert {key for key, p in expected.items() if p >= min_prob * (1 - 1e-7)} <= set(actual)
    assert set(actual) <= {key for key, p in expected.items() if p >= min_prob * (1 - 1e-5)}
    if expected:
        asked = Segments(*(np.array(column) for column in zip(*sorted(expected))))
        found = semi.span_probabilities(scores, ALL_STATES, asked, clamp=clamp)
        np.testing.assert_allclose(found, [expected[key] for key in sorted(expected)], atol=1e-9)


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


def test_segments_longer_than_allowed_have_no_path():
    scores = random_scores([4], 2, 2)
    assert semi.path_score(scores, np.array([0, GOES_ON, GOES_ON, 1])).tolist() == [-np.inf]


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
    monkeypatch.setattr(inference, "_linear_forward", lambda work: None)
    expected_log_z, expected = semi.expectations(scores)
    np.testing.assert_allclose(log_z, expected_log_z, rtol=1e-12)
    np.testing.assert_allclose(semi.log_partition(scores), expected_log_z, rtol=1e-12)
    assert_scores_close(expectations, expected)


def test_moderate_scores_stay_in_the_linear_domain(monkeypatch):
    monkeypatch.setattr(log_space, "log_forward", None)
    assert np.isfinite(semi.expectations(random_scores([50, 3, 1], 9, 8, spread=6.0, forbidden=0.3))[0]).all()
    assert np.isfinite(semi.expectations(drifting(10.0))[0]).all()


def test_long_sequences_stay_exact():
    """Differences of running sums over 20 000 tokens: forgetting nothing, and not drifting away."""
    n = 1_000 if numba.config.DISABLE_JIT else 20_000
    scores = random_scores([n], 3, 4, spread=3.0)
    scores.tokens[:] += 5.0
    log_z, expectations = semi.expectations(scores)
    np.testing.assert_allclose(expectations.tokens.sum(axis=1), 1.0, atol=1e-8)
    log_space = semi.log_partition(scores._replace(tokens=scores.tokens - 5.0))
    assert log_z[0] == pytest.approx(log_space[0] + 5.0 * n, rel=1e-12)


@pytest.mark.parametrize(
    "change, code, text",
    [
        (lambda s: s._replace(lengths=np.zeros((0, 2))), "CRF011", "lengths has shape (0, 2)"),
        (lambda s: s._replace(listed=SpanList(np.zeros(3), s.listed.lengths)), "CRF016", "at most 3"),
        (lambda s: s._replace(listed=SpanList(s.listed.starts, s.listed.lengths + 9)), "CRF016", "at most 3"),
        (lambda s: s._replace(listed=SpanList([0, 0, 0, 0, 0, 1], [2]), spans=np.zeros((1, 2))), "CRF016", "at most 3"),
        (
            lambda s: s._replace(listed=SpanList([0, 2, 2, 2, 2, 2], [2, 2]), spans=np.zeros((2, 2))),
            "CRF016",
            "at most 3",
        ),
    ],
)
def test_mistakes_are_named(change, code, text):
    scores = random_scores([5], 2)
    scores = change(scores) or scores
    with pytest.raises(ValueError) as error:
        semi.expectations(scores)
    assert code in str(error.value) and text in str(error.value)


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
        semi.likely_spans(scores, ALL_STATES, 0.1)
        semi.viterbi_counts(scores, clamp=clamp)
        semi.log_probability(scores, semi.viterbi(scores).states)
        semi.only_path(clamp)

    def compiled():
        return {**signatures(kernels), **signatures(log_space)}

    ask_everything(random_scores([3, 1], 2))
    before = compiled()
    # At most one signature each: the cold start is paid once
    assert {name: count for name, count in before.items() if count > 1} == {}
    ask_everything(random_scores([1], 5)._replace(starts=None, listed=None, spans=np.zeros((0, 5))))
    ask_everything(random_scores([], 1, per_position=True))
    assert compiled() == before
