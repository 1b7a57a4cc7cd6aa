"""Chains of hidden states below a label, against enumeration and finite differences."""

from itertools import pairwise, product

import numpy as np
import pytest

from spacy_crf.inference import scaling
from spacy_crf.inference.linear_chain import LinearChain, TextScores, TextSoftmax
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.types import ChainScores
from spacy_crf_lab.hidden_chain import HiddenChains, HiddenScores
from tests.structures import assert_derivative

STRUCTURE = HiddenChains()
LENGTHS = {"usual": [3, 1, 4], "with empty ones": [0, 2, 0], "all empty": [0, 0], "none": []}


def random_scores(lengths, labels=3, hidden=2, shared=True, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    starts = np.append(0, np.cumsum(lengths)).astype(np.int64)
    columns = hidden if shared else labels * hidden
    shapes = [(len(lengths), labels), (int(starts[-1]), columns), (labels, hidden), (labels, hidden, hidden)]
    return HiddenScores(
        *(scale * random.normal(size=shape) for shape in [*shapes, (labels, hidden), (labels, hidden)]), starts
    )


def enumerated(scores, text):
    """The score of every label of a text with every sequence of hidden states."""
    labels, units, states, transitions, first, last, starts = scores
    n_labels, hidden = states.shape
    rows, found = units[starts[text] : starts[text + 1]], {}
    for y in range(n_labels):
        mine = rows if units.shape[1] == hidden else rows[:, y * hidden : (y + 1) * hidden]
        for h in product(range(hidden), repeat=len(rows)):
            score = labels[text, y] + sum(mine[t, k] + states[y, k] for t, k in enumerate(h))
            score += sum(transitions[y, i, j] for i, j in pairwise(h))
            found[y, h] = score + (first[y, h[0]] + last[y, h[-1]] if h else 0.0)
    return found


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("shared, hidden", [(True, 2), (False, 2), (True, 1), (False, 1), (True, 4)])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_sums_and_maxima_are_those_of_enumeration(lengths, shared, hidden, scale):
    scores = random_scores(lengths, hidden=hidden, shared=shared, scale=scale)
    clamp = np.random.default_rng(1).random(scores.labels.shape) < 0.6
    for allowed in (None, clamp):
        log_z = STRUCTURE.log_partition(scores, clamp=allowed)
        marginals, best = (ask(scores, clamp=allowed) for ask in (STRUCTURE.marginals, STRUCTURE.viterbi))
        for text in range(len(lengths)):
            found = enumerated(scores, text)
            mine = [value if allowed is None or allowed[text, y] else -np.inf for (y, _), value in found.items()]
            assert log_z[text] == pytest.approx(np.logaddexp.reduce(mine), abs=1e-8)
            assert best.scores[text] == pytest.approx(max(mine), abs=1e-8)
            if max(mine) > -np.inf:
                assert best.states[text] == max(zip(mine, found))[1][0]
                for y in range(3):
                    of_label = [value for value, (label, _) in zip(mine, found) if label == y]
                    expected = np.exp(np.logaddexp.reduce(of_label) - log_z[text])
                    assert marginals[text, y] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("loss", [LogLikelihood(), SoftmaxMargin(), MaxMargin(), Perceptron()], ids=repr)
@pytest.mark.parametrize("shared", [True, False])
def test_gradients_are_finite_differences(loss, shared):
    scores = random_scores([3, 0, 2, 1], shared=shared)
    clamp = np.array([[1, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=bool)
    weights = np.array([1.0, 2.0, 0.5, 3.0])
    losses, d_scores, impossible = loss(STRUCTURE, scores, clamp, weights=weights)
    assert (losses >= 0).all() and not impossible.any()
    assert_derivative(lambda moved: loss(STRUCTURE, moved, clamp, weights=weights)[0].sum(), scores, d_scores)


def test_texts_without_an_allowed_label_are_impossible():
    scores = random_scores([3, 2])
    clamp = np.array([[0, 0, 0], [1, 0, 0]], dtype=bool)
    losses, d_scores, impossible = LogLikelihood()(STRUCTURE, scores, clamp)
    assert impossible.tolist() == [True, False] and losses[0] == 0.0
    assert not d_scores.units[:3].any() and d_scores.units[3:].any()


def test_one_hidden_state_for_each_label_is_a_bag():
    scores = random_scores([3, 0, 4], hidden=1, shared=False)._replace(states=np.zeros((3, 1)))
    scores = scores._replace(transitions=np.zeros((3, 1, 1)), first=np.zeros((3, 1)), last=np.zeros((3, 1)))
    sums = scores.labels + [scores.units[b:e].sum(axis=0) for b, e in zip(scores.starts, scores.starts[1:])]
    bag = TextScores(sums, np.zeros((3, 3)), np.zeros(3), np.zeros(3), np.arange(4))
    np.testing.assert_allclose(STRUCTURE.marginals(scores), LinearChain().marginals(bag), atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_texts_are_chains_of_one_state(scale):
    """What is answered by a softmax is what a chain answers."""
    random = np.random.default_rng(0)
    emissions, *rest = (scale * random.normal(size=shape) for shape in [(5, 3), (3, 3), 3, 3])
    scores, weights = TextScores(emissions, *rest, np.arange(6)), np.array([1.0, 0.0, 2.0, 3.0, 0.5])
    clamp = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 0], [0, 0, 0], [1, 0, 1]], dtype=bool)
    for allowed in (None, clamp):
        np.testing.assert_allclose(
            TextSoftmax().marginals(scores, clamp=allowed), LinearChain().marginals(scores, clamp=allowed), atol=1e-12
        )
        mine, theirs = (
            each.expectations(scores, clamp=allowed, weights=weights) for each in (TextSoftmax(), LinearChain())
        )
        np.testing.assert_allclose(mine[0], theirs[0], atol=1e-9)
        for name in ChainScores.AXES:
            np.testing.assert_allclose(getattr(mine[1], name), getattr(theirs[1], name), atol=1e-12)
    nothing = TextScores(emissions[:0], *rest, np.arange(1))
    assert TextSoftmax().marginals(nothing).shape == (0, 3)


def test_texts_take_no_passes_of_chains(monkeypatch):
    """A faster way of chains was inherited, and gave up at what naive Bayes scores: half of the texts a second."""
    for name in ("forward", "backward", "expect"):
        monkeypatch.delattr(scaling, name)
    scores = TextScores(np.array([[0.0, 900.0], [1.0, 1.0]]), np.zeros((2, 2)), np.zeros(2), np.zeros(2), np.arange(3))
    np.testing.assert_allclose(TextSoftmax().marginals(scores), [[0.0, 1.0], [0.5, 0.5]])


def test_what_the_beginning_of_a_long_text_speaks_against_is_not_lost():
    """By e^2000 at its middle, which the rest makes good: labels don't share the scale of their sums."""
    scores = random_scores([2000], labels=2, hidden=2, shared=False, scale=0.01)
    scores.units[:1000, 2:] -= 2.0
    scores.units[1000:, :2] -= 2.0
    first, second = STRUCTURE.label_scores(scores)[0]
    assert abs(first - second) < 50 and STRUCTURE.marginals(scores)[0].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["labels", "units", "transitions", "states"])
def test_scores_that_are_no_numbers(name, value):
    scores = random_scores([3, 2])
    getattr(scores, name).flat[1] = value
    with pytest.raises(ValueError, match="CRF010"):
        STRUCTURE.log_partition(scores)


@pytest.mark.parametrize("shared", [True, False])
def test_a_unit_is_left_out_as_if_it_had_no_features(shared):
    scores = random_scores([3, 0, 2], shared=shared)
    found = STRUCTURE.left_out(scores)
    for unit, text in enumerate([0, 0, 0, 2, 2]):
        units = scores.units.copy()
        units[unit] = 0.0
        np.testing.assert_allclose(found[unit], STRUCTURE.label_scores(scores._replace(units=units))[text], atol=1e-9)


def test_states_below_a_label_are_those_of_its_chain():
    scores = random_scores([3, 2])
    found = STRUCTURE.states_below(scores, np.array([1, 0]))
    for text, label in ((0, 1), (1, 0)):
        rows = slice(scores.starts[text], scores.starts[text + 1])
        weights = {h: np.exp(value) for (y, h), value in enumerated(scores, text).items() if y == label}
        for t in range(rows.stop - rows.start):
            expected = [sum(w for h, w in weights.items() if h[t] == k) / sum(weights.values()) for k in range(2)]
            np.testing.assert_allclose(found[rows][t], expected, atol=1e-10)
