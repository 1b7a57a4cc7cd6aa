"""Maximum entropy: against its definition, the chain without transitions, scikit-learn, and the numbers of Berger et al."""

import math

import numpy as np
import pytest
import spacy
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from spacy_crf import arrays
from spacy_crf.losses.clamped import LogLikelihood, MaxMargin, Perceptron, SoftmaxMargin
from spacy_crf.optimizers.lbfgs import LBFGS
from spacy_crf.types import ChainScores
from spacy_crf_lab.maxent import IndependentTokens
from tests.structures import STRUCTURES, assert_derivative, random_problem
from tests.util import plain, tag_examples

from .test_baselines import BASELINES, EMISSIONS, examples_of, trained

COSTS = {"label_weights": {"B": 2.0}, "cost": {"A": {"C": 3.0}}}
LOSSES = [LogLikelihood(), LogLikelihood(**COSTS), SoftmaxMargin(**COSTS), Perceptron(), MaxMargin(**COSTS)]


def scores_and_clamp():
    """With transitions that must not matter, and annotation of each kind."""
    scores = random_problem(STRUCTURES["chain"], [3, 0, 1, 4], 3, seed=1).scores
    clamp = np.eye(3, dtype=bool)[[0, 2, 1, 1, 0, 2, 2, 0]]
    clamp[1], clamp[5, 0] = True, True
    return scores, clamp


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_losses_are_sums_over_tokens(loss):
    scores, clamp = scores_and_clamp()
    loss = loss.bind(["A", "B", "C"])
    weights = np.array([1.0, 2.0, 0.5, 3.0])
    losses, derivative, impossible = loss(IndependentTokens(), scores, clamp, weights=weights)
    costs = loss.costs(3)
    expected = np.zeros(4)
    for t, sequence in enumerate([0, 0, 0, 2, 3, 3, 3, 3]):
        row = scores.emissions[t].copy()
        allowed = np.flatnonzero(clamp[t])
        for j in range(3):
            if len(costs) and j not in allowed:
                row[j] += min(costs[i][j] for i in allowed)
        value = max if not loss.smooth else lambda some: math.log(sum(map(math.exp, some)))
        expected[sequence] += weights[sequence] * (value(row) - value(row[allowed]))
    np.testing.assert_allclose(losses, expected, atol=1e-12)
    assert not impossible.any()
    if not loss.smooth:
        return
    assert_derivative(
        lambda moved: loss(IndependentTokens(), moved, clamp, weights=weights)[0].sum(),
        scores,
        derivative,
        ["emissions"],
    )


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_impossible_annotation_teaches_nothing(loss):
    scores, clamp = scores_and_clamp()
    scores.emissions[2, 1] = -np.inf
    losses, derivative, impossible = loss.bind(["A", "B", "C"])(IndependentTokens(), scores, clamp)
    assert impossible.tolist() == [True, False, False, False] and losses[0] == 0.0
    assert not derivative.emissions[:3].any() and np.isfinite(derivative.emissions).all()


def test_predicts_as_a_chain_with_transitions_of_zero():
    chain = {"@architectures": "spacy_crf.LinearChain.v1", "emissions": EMISSIONS, "possible_transitions": True}
    for factory in ("crf_ner", "crf_tagger"):
        nlp = trained("MaxEnt", factory)
        other = spacy.blank("en", vocab=nlp.vocab)
        other.add_pipe(factory, config={"model": chain})
        examples = examples_of(other, factory)
        other.initialize(lambda examples=examples: examples)
        ours, theirs = nlp.get_pipe(factory), other.get_pipe(factory)
        weights = ours.model.get_ref("emissions").get_param("states")
        theirs.model.get_ref("emissions").set_param("states", weights)
        for name in ("transitions", "first", "last"):
            assert not ours.model.get_param(name).any()
        for text in ("Bob left New York for Acme Corp", "the old dog sleeps", ""):
            doc = nlp.make_doc(text)
            np.testing.assert_array_equal(ours.marginals(doc)[0], theirs.marginals(doc)[0])
            for one, two in zip(arrays.named(ours.model.predict([doc])).values(), theirs.model.predict([doc])):
                np.testing.assert_array_equal(one, two)
            assert nlp(plain(doc)).to_json() == other(plain(doc)).to_json()


def test_weights_are_those_of_scikit_learn():
    nlp = spacy.blank("en")
    emissions = {**EMISSIONS, "possible_states": True}
    nlp.add_pipe("crf_tagger", config={"model": {**BASELINES["MaxEnt"], "emissions": emissions}})
    examples = tag_examples(nlp)
    nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=LBFGS(l2=0.3, iterations_per_step=300, tolerance=1e-10))
    tagger = nlp.get_pipe("crf_tagger")
    layer = tagger.model.get_ref("emissions")
    features = layer.attrs["node"].features(layer)
    rows, columns = features.look_up([example.predicted for example in examples]).features["states"], tagger.tags()
    data = np.zeros((len(rows.starts) - 1, len(features.states.index)))
    data[np.repeat(np.arange(len(data)), np.diff(rows.starts)), rows.rows] = 1.0
    gold = [columns.index(token.tag_) for example in examples for token in example.reference]
    rival = LogisticRegression(C=1 / (2 * 0.3), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(data, gold)
    ours = layer.get_param("states").reshape(data.shape[1], len(columns))
    np.testing.assert_allclose(ours, rival.coef_.T, atol=1e-4)


# Berger, Della Pietra & Della Pietra 1996, section 2: the translation of "in", by the facts that are known about it
DANS, EN, A = (np.eye(5)[n] for n in range(3))
x = 0.9 - math.sqrt(0.81 - 0.3)  # of ½x² - 0.9x + 0.15 = 0
FACTS = {
    "nothing": ({}, [1 / 5] * 5),
    "dans or en": ({0.3: DANS + EN}, [3 / 20, 3 / 20, 7 / 30, 7 / 30, 7 / 30]),
    "dans or à too": ({0.3: DANS + EN, 0.5: DANS + A}, [x, 0.3 - x, 0.5 - x, (0.2 + x) / 2, (0.2 + x) / 2]),
}


@pytest.mark.parametrize("facts, expected", FACTS.values(), ids=FACTS)
def test_translations_of_in(facts, expected):
    features, frequencies = np.array([*facts.values()]).reshape(-1, 5), np.array([*facts])
    nothing = np.zeros((5, 5)), np.zeros(5), np.zeros(5)

    def dual(weights):
        """Whose minimum is the distribution of largest entropy in which each feature has its frequency."""
        scores = ChainScores((weights @ features)[np.newaxis], *nothing)
        [log_z], uses = IndependentTokens().expectations(scores)
        return log_z - weights @ frequencies, features @ uses.emissions[0] - frequencies

    weights = minimize(dual, np.zeros(len(facts)), jac=True, tol=1e-12).x if facts else np.zeros(0)
    scores = ChainScores((weights @ features)[np.newaxis], *nothing)
    np.testing.assert_allclose(IndependentTokens().marginals(scores)[0], expected, atol=1e-6)
    if len(facts) == 2:
        np.testing.assert_allclose(expected, [0.1859, 0.1141, 0.3141, 0.1929, 0.1929], atol=1e-4)
