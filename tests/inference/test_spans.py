"""Probabilities of spans against the sum over all labellings that contain them, under every scheme."""

import math
import tracemalloc

import numpy as np
import pytest

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.inference.structure import SpanStates
from spacy_crf.schemes import SCHEMES, Segments
from spacy_crf.types import ChainScores
from tests import reference


def scheme_scores(scheme, n_labels, lengths, *, seed, spread=1.5, per_position=False):
    """Random scores, -inf where the scheme forbids, and how the states spell spans."""
    rng = np.random.default_rng(seed)
    mask = scheme.transition_mask(n_labels)
    size, tokens = len(mask.first), sum(lengths)
    shape = (tokens, size, size) if per_position else (size, size)
    scores = ChainScores(
        rng.normal(scale=spread, size=(tokens, size)),
        np.where(mask.transitions, rng.normal(scale=spread, size=shape), -np.inf),
        np.where(mask.first, rng.normal(size=size), -np.inf),
        np.where(mask.last, rng.normal(size=size), -np.inf),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    )
    return scores, SpanStates.even(scheme.continues(n_labels), n_labels, offset=1, width=len(scheme.prefixes))


def enumerated(scores, scheme, clamp=None):
    """Probability of every (begin, end, label) that some labelling contains."""
    found = {}
    for begin, end in reference.sequences(scores):
        paths = reference.paths(scores, begin, end, clamp)
        log_z = reference.log_sum([score for score, _ in paths])
        for score, path in paths:
            segments = scheme.decode(np.array(path, dtype=np.int32), np.array([0, end - begin]))
            for b, e, label in zip(*(array.tolist() for array in segments)):
                key = (begin + b, begin + e, label)
                found[key] = found.get(key, 0.0) + math.exp(score - log_z)
    return found


def as_dict(likely):
    keys = zip(*(array.tolist() for array in likely.segments))
    return dict(zip(keys, likely.probabilities.tolist()))


@pytest.mark.parametrize("per_position", [False, True])
@pytest.mark.parametrize("spread", [1.5, 400.0])  # the second one does not fit into the linear domain
@pytest.mark.parametrize("name", SCHEMES)
def test_spans_match_enumeration(name, spread, per_position):
    scheme = SCHEMES[name]
    lengths = [3, 1, 0, 4] if name in ("IO", "BIO", "IOB1") else [3, 1, 0, 3]
    for seed in range(2):
        scores, spans = scheme_scores(scheme, 2, lengths, seed=seed, spread=spread, per_position=per_position)
        clamp = np.random.default_rng(seed).random(scores.emissions.shape) < 0.8 if seed else None
        expected = enumerated(scores, scheme, clamp)
        actual = as_dict(LinearChain().likely_spans(scores, spans, 0.0, clamp=clamp))
        for key in expected.keys() | actual.keys():
            assert actual.get(key, 0.0) == pytest.approx(expected.get(key, 0.0), abs=1e-9)
        segments = Segments(*(np.array(column) for column in zip(*sorted(expected))))
        probabilities = LinearChain().span_probabilities(scores, spans, segments, clamp=clamp)
        np.testing.assert_allclose(probabilities, [expected[key] for key in sorted(expected)], rtol=1e-9, atol=1e-12)
        likely = as_dict(LinearChain().likely_spans(scores, spans, 0.2, clamp=clamp))
        assert likely.keys() == {key for key, p in expected.items() if p >= 0.2}


def test_one_token_spans_of_plain_tags():
    rng = np.random.default_rng(0)
    scores = ChainScores(
        rng.normal(size=(4, 3)), rng.normal(size=(3, 3)), np.zeros(3), np.zeros(3), np.array([0, 3, 4])
    )
    spans = SpanStates.even(np.zeros((3, 3), dtype=bool), 3)
    likely = as_dict(LinearChain().likely_spans(scores, spans, 0.0))
    marginals = reference.expectations(scores).emissions
    assert {key: pytest.approx(p) for key, p in likely.items()} == {
        (t, t + 1, label): marginals[t, label] for t in range(4) for label in range(3)
    }


def test_nothing_allowed_and_nothing_there():
    scheme = SCHEMES["BIO"]
    scores, spans = scheme_scores(scheme, 1, [2], seed=0)
    forbidden = np.zeros(scores.emissions.shape, dtype=bool)
    assert not as_dict(LinearChain().likely_spans(scores, spans, 0.0, clamp=forbidden))
    asked = Segments(np.array([0]), np.array([2]), np.array([0]))
    assert LinearChain().span_probabilities(scores, spans, asked, clamp=forbidden).tolist() == [0.0]
    empty = scores._replace(emissions=np.zeros((0, 3)), starts=np.array([0, 0]))
    assert not as_dict(LinearChain().likely_spans(empty, spans, 0.0))
    assert not as_dict(LinearChain().likely_spans(empty._replace(starts=np.array([0])), spans, 0.0))


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
@pytest.mark.parametrize("n_labels", [2, 12])
def test_transitions_of_no_token(lengths, n_labels):
    """Templates of transitions give one matrix per token, and an empty Doc has none."""
    scores, spans = scheme_scores(SCHEMES["BILUO"], n_labels, lengths, seed=0, per_position=True)
    structure = LinearChain()
    none = Segments(*np.zeros((3, 0), dtype=np.int64))
    assert not len(structure.span_probabilities(scores, spans, none))
    assert not as_dict(structure.likely_spans(scores, spans, 0.0))
    assert not len(structure.viterbi(scores).states) and not len(structure.marginals(scores))
    assert structure.log_partition(scores).tolist() == [0.0] * len(lengths)


@pytest.mark.jit
def test_many_chunks_answer_like_one_sequence_at_a_time():
    scheme = SCHEMES["BILUO"]
    lengths = [37, 2100, 5, 900, 1, 1200]
    scores, spans = scheme_scores(scheme, 2, lengths, seed=3)
    together = LinearChain(threads=2).likely_spans(scores, spans, 0.05)
    asked = LinearChain(threads=2).span_probabilities(scores, spans, together.segments)
    np.testing.assert_allclose(asked, together.probabilities, rtol=1e-12)
    last = together.segments.start >= sum(lengths[:-1])  # only one of the sequences has spans
    few = Segments(*(column[last] for column in together.segments))
    np.testing.assert_array_equal(LinearChain().span_probabilities(scores, spans, few), asked[last])
    clamp = np.ones(scores.emissions.shape, dtype=bool)
    np.testing.assert_array_equal(LinearChain().span_probabilities(scores, spans, few, clamp=clamp), asked[last])
    found = 0
    for begin, end in reference.sequences(scores):
        alone = LinearChain().likely_spans(
            scores._replace(emissions=scores.emissions[begin:end], starts=np.array([0, end - begin])), spans, 0.05
        )
        np.testing.assert_allclose(
            alone.probabilities, together.probabilities[found : found + len(alone.probabilities)]
        )
        found += len(alone.probabilities)
    assert found == len(together.probabilities)


@pytest.mark.jit
def test_memory_of_a_long_sequence_that_does_not_fit_the_linear_domain():
    """Each step was written out: 27,000 tokens under six rules took 4.5 GB."""
    scheme, tokens = SCHEMES["BILUO"], 4_000
    scores, spelt = scheme_scores(scheme, 8, [tokens], seed=0, spread=400.0)
    size = len(scores.first)
    spans = Segments(np.arange(10), np.arange(1, 11), np.zeros(10, dtype=np.int64))
    LinearChain().span_probabilities(scores, spelt, spans)  # compiles
    tracemalloc.start()
    LinearChain().span_probabilities(scores, spelt, spans)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * tokens * size * 8
