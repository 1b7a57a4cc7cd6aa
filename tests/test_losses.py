"""Losses against their definition by enumeration and against finite differences."""

import numpy as np
import pytest

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin

from . import reference
from .test_linear_chain import random_scores

# Loss, and its value by enumeration: over the scores of the labellings, each with its mistakes.
LOSSES = {
    "log_likelihood": (LogLikelihood, lambda scored: reference.log_sum([score for score, _ in scored])),
    "perceptron": (Perceptron, lambda scored: max(score for score, _ in scored)),
    "max_margin": (MaxMargin, lambda scored: max(score + mistakes for score, mistakes in scored)),
    "softmax_margin": (
        SoftmaxMargin,
        lambda scored: reference.log_sum([score + mistakes for score, mistakes in scored]),
    ),
}
FIELDS = ("emissions", "transitions", "first", "last")

chain = LinearChain()
row = pytest.mark.parametrize("loss, value", [pytest.param(*pair, id=name) for name, pair in LOSSES.items()])
clamps = pytest.mark.parametrize("kind", ["full", "partial", "free"])


def problem(kind, *, per_position=False):
    scores = random_scores([3, 0, 1, 4], 3, seed=4, per_position=per_position)
    rng = np.random.default_rng(7)
    clamp = np.eye(3, dtype=bool)[rng.integers(0, 3, size=8)]
    if kind == "partial":
        clamp |= rng.random(clamp.shape) < 0.4
    if kind == "free":
        clamp[:] = True
    return scores, clamp, np.array([1.0, 3.0, 0.5, 2.0])


def defined_loss(scores, clamp, weights, value):
    total = []
    for b, (begin, end) in enumerate(reference.sequences(scores)):

        def scored(allowed, begin=begin, end=end):
            return [
                (score, sum(not clamp[t, state] for t, state in zip(range(begin, end), path)))
                for score, path in reference.paths(scores, begin, end, allowed)
            ]

        total.append(weights[b] * (value(scored(None)) - value(scored(clamp))))
    return np.array(total)


@row
@clamps
def test_losses_match_their_definition(loss, value, kind):
    scores, clamp, weights = problem(kind)
    losses, _, impossible = loss()(chain, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, defined_loss(scores, clamp, weights, value), atol=1e-12)
    assert not impossible.any()


@row
@clamps
@pytest.mark.parametrize("per_position", [False, True])
def test_gradients_match_finite_differences(loss, value, kind, per_position):
    scores, clamp, weights = problem(kind, per_position=per_position)
    _, d_scores, _ = loss()(chain, scores, clamp, weights=weights)
    step = 1e-5
    for name in FIELDS:
        array = getattr(scores, name)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + step
            above = loss()(chain, scores, clamp, weights=weights)[0].sum()
            array[index] = kept - step
            below = loss()(chain, scores, clamp, weights=weights)[0].sum()
            array[index] = kept
            derivative = (above - below) / (2 * step)
            assert getattr(d_scores, name)[index] == pytest.approx(derivative, abs=1e-7), (name, index)


@row
@clamps
def test_losses_take_a_single_sequence_and_no_weights(loss, value, kind):
    scores, clamp, _ = problem(kind)
    single = scores._replace(emissions=scores.emissions[4:], starts=None)
    losses, d_scores, _ = loss()(chain, single, clamp[4:])
    np.testing.assert_allclose(losses, loss()(chain, scores, clamp)[0][3:], atol=1e-12)
    assert d_scores.emissions.shape == (4, 3)


@row
@pytest.mark.parametrize("kind", ["full", "partial"])
def test_impossible_annotation_teaches_nothing(loss, value, kind):
    """A rule or a -inf transition excludes what the annotator wrote: reported, not learnt, and never NaN."""
    scores, clamp, weights = problem(kind)
    scores.emissions[1, clamp[1]] = -np.inf
    losses, d_scores, impossible = loss()(chain, scores, clamp, weights=weights)
    assert impossible.tolist() == [True, False, False, False]
    assert losses[0] == 0.0
    assert (d_scores.emissions[:3] == 0.0).all()
    others = scores._replace(emissions=scores.emissions[3:], starts=scores.starts[1:] - 3)
    other_losses, d_others, _ = loss()(chain, others, clamp[3:], weights=weights[1:])
    np.testing.assert_allclose(losses[1:], other_losses)
    for name in FIELDS[1:]:
        np.testing.assert_allclose(getattr(d_scores, name), getattr(d_others, name), atol=1e-12)


@row
def test_losses_are_zero_without_tokens(loss, value):
    losses, d_scores, impossible = loss()(chain, random_scores([], 2), np.ones((0, 2), dtype=bool))
    assert len(losses) == len(impossible) == 0
    assert (d_scores.transitions == 0.0).all()


@row
def test_losses_are_values(loss, value):
    assert loss() == loss()
    assert len({loss(), loss()}) == 1


def test_learned_scores_have_no_loss_left():
    scores, clamp, _ = problem("full")
    scores.emissions[:] = np.where(clamp, 200.0, -200.0)
    for loss in (LogLikelihood, Perceptron, MaxMargin, SoftmaxMargin):
        losses, d_scores, _ = loss()(chain, scores, clamp)
        np.testing.assert_allclose(losses, 0.0, atol=1e-12)
        np.testing.assert_allclose(d_scores.emissions, 0.0, atol=1e-12)
