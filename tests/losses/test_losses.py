"""Losses that are one subtraction, with every structure: against their definition by enumeration and finite differences."""

import numpy as np
import pytest

from spacy_crf import arrays
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.types import GOES_ON
from tests import reference
from tests.structures import (
    STRUCTURES,
    Enumerated,
    assert_derivative,
    assert_scores_close,
    clamp_of,
    either,
    is_allowed,
    random_problem,
)

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
STATES = ("A", "A", "B")
each = pytest.mark.parametrize("row", STRUCTURES.values(), ids=STRUCTURES)
losses_too = pytest.mark.parametrize("loss, value", [pytest.param(*pair, id=name) for name, pair in LOSSES.items()])
clamps = pytest.mark.parametrize("kind", ["full", "partial", "free"])


def problem(row, kind="full", *, per_position=False):
    """With the clamp that an annotation leaves, and weights of the sequences."""
    found = random_problem(row, [3, 0, 1, 4], 2, seed=4, per_position=per_position)
    structure, scores, _ = found
    rng = np.random.default_rng(7)
    chosen = [ways[rng.integers(len(ways))].states for ways in Enumerated(row, found).ways]
    states = np.array([state for of_sequence in chosen for state in of_sequence], dtype=np.int32)
    clamp = structure.only(structure.prepare(scores), states)
    if kind == "partial":
        clamp = either(clamp, clamp_of(scores, lambda n, chance: rng.random(n) > 0.6))
    if kind == "free":
        clamp = either(clamp, clamp_of(scores, lambda n, chance: np.full(n, chance < 0.5)))
    return structure, scores, clamp, np.array([1.0, 3.0, 0.5, 2.0])


def mistakes(clamp, begin, states):
    """Tokens whose state the annotation does not allow."""
    last, count = 0, 0
    for t, state in enumerate(states, begin):
        last = last if state == GOES_ON else state
        count += not arrays.states_of(clamp)[t, last]
    return count


@each
@losses_too
@clamps
def test_losses_match_their_definition(row, loss, value, kind):
    structure, scores, clamp, weights = problem(row, kind)
    expected = []
    for ways, (begin, _) in zip(
        Enumerated(row, random_problem(row, [3, 0, 1, 4], 2, seed=4)).ways, [(0, 3), (3, 3), (3, 4), (4, 8)]
    ):
        scored = [(way.score, mistakes(clamp, begin, way.states), is_allowed(clamp, begin, way.states)) for way in ways]
        reached = value([(score, wrong) for score, wrong, allowed in scored if allowed])
        expected.append(value([(score, wrong) for score, wrong, _ in scored]) - reached)
    losses, _, impossible = loss()(structure, scores, clamp, weights=weights)
    np.testing.assert_allclose(losses, weights * expected, atol=1e-10)
    assert not impossible.any()


@each
@losses_too
@pytest.mark.parametrize("kind, per_position", [("full", False), ("partial", True), ("free", False)])
def test_gradients_match_finite_differences(row, loss, value, kind, per_position):
    structure, scores, clamp, weights = problem(row, kind, per_position=per_position)
    _, d_scores, _ = loss()(structure, scores, clamp, weights=weights)
    assert type(d_scores) is type(scores) and d_scores.starts is scores.starts
    assert_derivative(lambda moved: loss()(structure, moved, clamp, weights=weights)[0].sum(), scores, d_scores)


@each
@losses_too
def test_losses_take_a_single_sequence_and_no_weights(row, loss, value):
    structure, scores, clamp, _ = problem(row)
    single = arrays.cut(scores, slice(4, 8), np.array([0, 4]))._replace(starts=None)
    losses, d_scores, _ = loss()(structure, single, arrays.cut_clamp(clamp, slice(4, 8)))
    np.testing.assert_allclose(losses, loss()(structure, scores, clamp)[0][3:], atol=1e-12)
    assert len(d_scores[0]) == 4


@each
@losses_too
@pytest.mark.parametrize("kind", ["full", "partial"])
def test_impossible_annotation_teaches_nothing(row, loss, value, kind):
    """A rule or a -inf transition excludes what the annotator wrote: reported, not learnt, and never NaN."""
    structure, scores, clamp, weights = problem(row, kind)
    scores[0][1, arrays.states_of(clamp)[1]] = -np.inf
    losses, d_scores, impossible = loss()(structure, scores, clamp, weights=weights)
    assert impossible.tolist() == [True, False, False, False]
    assert losses[0] == 0.0
    assert (d_scores[0][:3] == 0.0).all()
    expected, d_expected, _ = loss()(structure, scores, clamp, weights=weights * [0.0, 1.0, 1.0, 1.0])
    np.testing.assert_allclose(losses, expected)
    assert_scores_close(d_scores, d_expected, atol=1e-12)


@each
@losses_too
def test_losses_are_zero_without_tokens(row, loss, value):
    structure, scores, _ = random_problem(row, [], 2)
    clamp = clamp_of(scores, lambda n, chance: np.ones(n, dtype=bool))
    losses, d_scores, impossible = loss()(structure, scores, clamp)
    assert len(losses) == len(impossible) == 0
    assert (d_scores.transitions == 0.0).all()


@each
@losses_too
def test_learned_scores_have_no_loss_left(row, loss, value):
    structure, scores, clamp, _ = problem(row)
    if "path" not in structure.answers or arrays.named(scores).keys() >= {"lengths"}:
        pytest.skip("by the states of tokens alone, segments and paths are not told apart")
    scores.emissions[:] = np.where(clamp, 200.0, -200.0)
    losses, d_scores, _ = loss()(structure, scores, clamp)
    np.testing.assert_allclose(losses, 0.0, atol=1e-12)
    np.testing.assert_allclose(d_scores.emissions, 0.0, atol=1e-12)


@losses_too
def test_scores_are_checked_once(loss, value, monkeypatch):
    structure, scores, clamp, weights = problem(STRUCTURES["chain"], "partial")
    calls, conform = [], structure.conform
    monkeypatch.setattr(structure, "conform", lambda asked: calls.append(asked) or conform(asked))
    loss()(structure, scores, clamp, weights=weights)
    assert len(calls) == 1


@losses_too
def test_a_loss_below_zero_is_not_hidden(loss, value):
    """What an approximation, or a mistake, leaves below 0 is told; what rounding leaves is not."""
    structure, scores, clamp, _ = problem(STRUCTURES["chain"], "free")

    class Approximate(type(structure)):
        answers = structure.answers - {"exact"}

        def _less(self, question, scores, clamp, weights):
            values, derivative = getattr(super(), question)(scores, clamp=clamp, weights=weights)
            return values if clamp is not None else values - 0.25, derivative

        def expectations(self, scores, *, clamp=None, weights=None):
            return self._less("expectations", scores, clamp, weights)

        def viterbi_counts(self, scores, *, clamp=None, weights=None):
            return self._less("viterbi_counts", scores, clamp, weights)

    # A search for the best labelling knows of one that is as good as the annotation: this
    expected = -0.25 if loss().smooth else 0.0
    np.testing.assert_allclose(loss()(Approximate(), scores, clamp)[0], expected)
    Approximate.answers = structure.answers
    np.testing.assert_allclose(loss()(Approximate(), scores, clamp)[0], -0.25)
    assert (loss()(structure, scores, clamp)[0] == 0.0).all()


@losses_too
def test_losses_are_values(loss, value):
    assert loss() == loss()
    assert len({loss(), loss()}) == 1


# label weights and cost tables


def test_costs_are_what_the_settings_say():
    loss = MaxMargin(label_weights={"B": 2.0}, cost={"A": {"B": 0.25}}).bind(STATES)
    np.testing.assert_allclose(loss.costs(3), [[0.0, 1.0, 0.25], [1.0, 0.0, 0.25], [2.0, 2.0, 0.0]])
    likelihood = LogLikelihood(label_weights={"B": 2.0}).bind(STATES)
    np.testing.assert_allclose(likelihood.costs(3), [[0, 0, 0], [0, 0, 0], [np.log(2.0), np.log(2.0), 0]])


@each
def test_a_label_weight_counts_each_wrong_state_so_many_times(row):
    structure, scores, clamp, _ = problem(row)
    size = scores[0].shape[1]
    labels = ["A", *["B"] * (size - 1)]
    losses = LogLikelihood(label_weights={"B": 3.0}).bind(labels)(structure, scores, clamp)[0]
    known = Enumerated(row, random_problem(row, [3, 0, 1, 4], 2, seed=4))
    heavy = arrays.states_of(clamp).argmax(axis=1) > 0
    only_heavy = arrays.states_of(clamp) | ~heavy[:, np.newaxis]
    for b, (ways, (begin, _)) in enumerate(zip(known.ways, known.ends)):
        terms = [way.score + np.log(3.0) * mistakes(only_heavy, begin, way.states) for way in ways]
        reached = [way.score for way in ways if is_allowed(clamp, begin, way.states)]
        assert losses[b] == pytest.approx(reference.log_sum(terms) - reference.log_sum(reached))


@pytest.mark.parametrize("loss", [LogLikelihood, MaxMargin])
@pytest.mark.parametrize("value", [-1.0, float("nan"), 0.0])
def test_settings_that_make_no_sense_are_refused(loss, value):
    with pytest.raises(ValueError, match="CRF020"):
        loss(label_weights={"A": value})
    if loss is MaxMargin and value != 0.0:
        with pytest.raises(ValueError, match="CRF020"):
            loss(cost={"A": {"B": value}})


def test_unknown_labels_in_the_settings_are_named():
    for loss in (LogLikelihood(label_weights={"C": 2.0}), MaxMargin(cost={"A": {"C": 2.0}})):
        with pytest.raises(ValueError, match=r"CRF846.*'C'. Labels: A, B"):
            loss.bind(STATES).check_labels()
