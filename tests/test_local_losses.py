"""Losses over tokens and pairs, against their definition by enumeration and against finite differences."""

import itertools

import numpy as np
import pytest

from spacy_crf.inference.linear_chain import LinearChain
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin
from spacy_crf.losses.local import BesagPseudoLikelihood, Piecewise, PseudoLikelihood

from . import reference
from .test_losses import FIELDS, problem

chain = LinearChain()
STATES = ("A", "A", "B")
LOSSES = [PseudoLikelihood, BesagPseudoLikelihood, Piecewise]
each = pytest.mark.parametrize("loss", LOSSES)
WEIGHTS = {"A": 2.0, "B": 0.5}


def factor(clamp, t, weights):
    return weights[STATES[clamp[t].argmax()]] if weights and clamp[t].sum() == 1 else 1.0


def defined(loss, scores, clamp, sequence_weights, weights=None):
    """Every term by going through all labellings, states or pairs."""
    total = []
    for b, (begin, end) in enumerate(reference.sequences(scores)):
        value = 0.0
        paths = reference.paths(scores, begin, end)
        log_z = reference.log_sum([score for score, _ in paths])
        for t in range(begin, end):

            def one(path, t=t, begin=begin, end=end):
                """The scores at a token and around it."""
                terms = scores.emissions[t, path[t - begin]]
                terms += scores.last[path[t - begin]] if t == end - 1 else 0.0
                if t == begin:
                    return terms + scores.first[path[0]]
                return terms + reference.transition(scores, t, path[t - begin - 1], path[t - begin])

            if loss is PseudoLikelihood:
                term = log_z - reference.log_sum([score for score, path in paths if clamp[t, path[t - begin]]])
            elif loss is Piecewise:
                before = range(3) if t > begin else [0]
                pairs = [(i, j) for i in before for j in range(3)]
                place = t - begin
                scored = [(one([0] * (place - 1) + ([i] if place else []) + [j]), i, j) for i, j in pairs]
                inside = [s for s, i, j in scored if clamp[t, j] and (t == begin or clamp[t - 1, i])]
                term = reference.log_sum([s for s, _, _ in scored]) - reference.log_sum(inside)
            else:
                around = [u for u in (t - 1, t, t + 1) if begin <= u < end]
                if any(clamp[u].sum() != 1 for u in around):
                    continue
                gold = [int(clamp[u].argmax()) for u in range(begin, end) if True]
                options = []
                for state in range(3):
                    path = [*gold[: t - begin], state, *gold[t - begin + 1 :]]
                    score = one(path)
                    if t + 1 < end:
                        score += reference.transition(scores, t + 1, state, path[t - begin + 1])
                    options.append(score)
                term = reference.log_sum(options) - options[gold[t - begin]]
            value += factor(clamp, t, weights) * term
        total.append(sequence_weights[b] * value)
    return np.array(total)


@each
@pytest.mark.parametrize("kind", ["full", "partial", "free"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("per_position", [False, True])
def test_values_and_gradients(loss, kind, weights, per_position):
    scores, clamp, sequence_weights = problem(kind, per_position=per_position)
    bound = loss(label_weights=weights).bind(STATES)
    losses, d_scores, impossible = bound(chain, scores, clamp, weights=sequence_weights)
    np.testing.assert_allclose(losses, defined(loss, scores, clamp, sequence_weights, weights), atol=1e-10)
    assert not impossible.any()
    step = 1e-5
    for name in FIELDS:
        array = getattr(scores, name)
        for index in np.ndindex(array.shape):
            kept = array[index]
            array[index] = kept + step
            above = bound(chain, scores, clamp, weights=sequence_weights)[0].sum()
            array[index] = kept - step
            below = bound(chain, scores, clamp, weights=sequence_weights)[0].sum()
            array[index] = kept
            expected = (above - below) / (2 * step)
            assert getattr(d_scores, name)[index] == pytest.approx(expected, abs=1e-6), (name, index)


@each
def test_long_batches_are_cut_into_parts(loss, monkeypatch):
    scores, clamp, weights = problem("full")
    whole = loss()(chain, scores, clamp, weights=weights)
    monkeypatch.setattr("spacy_crf.losses.local._LARGEST_TABLE", 9)
    parts = loss()(chain, scores, clamp, weights=weights)
    np.testing.assert_allclose(parts[0], whole[0])
    for name in FIELDS:
        np.testing.assert_allclose(getattr(parts[1], name), getattr(whole[1], name), atol=1e-12)


@each
def test_impossible_annotation_teaches_nothing(loss):
    scores, clamp, _ = problem("full")
    scores.emissions[1, clamp[1]] = -np.inf
    losses, d_scores, impossible = loss()(chain, scores, clamp)
    assert impossible.tolist() == [True, False, False, False]
    assert losses[0] == 0.0 and (d_scores.emissions[:3] == 0.0).all()
    assert np.isfinite(losses).all() and all(np.isfinite(getattr(d_scores, name)).all() for name in FIELDS)


def test_piecewise_bounds_the_likelihood():
    scores, clamp, _ = problem("full")
    assert (Piecewise()(chain, scores, clamp)[0] >= LogLikelihood()(chain, scores, clamp)[0] - 1e-12).all()


# label weights and cost tables of the clamped losses


def test_costs_are_what_the_settings_say():
    loss = MaxMargin(label_weights={"B": 2.0}, cost={"A": {"B": 0.25}}).bind(STATES)
    np.testing.assert_allclose(loss.costs(3), [[0.0, 1.0, 0.25], [1.0, 0.0, 0.25], [2.0, 2.0, 0.0]])
    likelihood = LogLikelihood(label_weights={"B": 2.0}).bind(STATES)
    np.testing.assert_allclose(likelihood.costs(3), [[0, 0, 0], [0, 0, 0], [np.log(2.0), np.log(2.0), 0]])


def test_a_label_weight_counts_each_wrong_state_so_many_times():
    scores, clamp, _ = problem("full")
    weighted = LogLikelihood(label_weights={"B": 3.0}).bind(STATES)(chain, scores, clamp)[0]
    for b, (begin, end) in enumerate(reference.sequences(scores)):
        gold = clamp[begin:end].argmax(axis=1)
        terms = []
        for path in itertools.product(range(3), repeat=end - begin):
            factor = np.prod([3.0 for g, p in zip(gold, path) if g == 2 and p != g])
            terms.append(reference.path_score(scores, begin, end, path) + np.log(factor))
        expected = reference.log_sum(terms) - reference.path_score(scores, begin, end, gold)
        assert weighted[b] == pytest.approx(expected)


@pytest.mark.parametrize("loss", [LogLikelihood, MaxMargin, *LOSSES])
@pytest.mark.parametrize("value", [-1.0, float("nan"), 0.0])
def test_settings_that_make_no_sense_are_refused(loss, value):
    with pytest.raises(ValueError, match="CRF310"):
        loss(label_weights={"A": value})
    if loss is MaxMargin and value != 0.0:
        with pytest.raises(ValueError, match="CRF310"):
            loss(cost={"A": {"B": value}})


def test_unknown_labels_in_the_settings_are_named():
    for loss in (LogLikelihood(label_weights={"C": 2.0}), MaxMargin(cost={"A": {"C": 2.0}})):
        with pytest.raises(ValueError, match=r"CRF311.*: C. Its labels: A, B"):
            loss.bind(STATES).check_labels()
